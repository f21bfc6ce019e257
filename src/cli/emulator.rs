//! `hapax emulator`

use std::net::SocketAddr;

use clap::Args;

use super::{Failure, logging, quiet_log};
use crate::cmq::Credentials;
use crate::emulator::{Emulator, EmulatorOptions, QueueSpec, TopicSpec};
use crate::signals::stop_requested;

#[derive(Args)]
pub struct EmulatorArguments {
    /// Address to listen on; port 0 picks a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:19324")]
    listen: SocketAddr,
    /// A queue: NAME[:KEY=VALUE,…] with the keys visibility_timeout, max_unacked, polling_wait,
    /// rewind (seconds), max_message_bytes, max_messages; may be repeated
    #[arg(long = "queue", value_name = "QUEUE")]
    queues: Vec<QueueSpec>,
    /// A topic: NAME[:QUEUE[=TAG|TAG…],…]; may be repeated
    #[arg(long = "topic", value_name = "TOPIC")]
    topics: Vec<TopicSpec>,
    /// Check signatures against this secret id
    #[arg(long, env = "TENCENTCLOUD_SECRET_ID", requires = "secret_key")]
    secret_id: Option<String>,
    /// Check signatures against this secret key
    #[arg(long, env = "TENCENTCLOUD_SECRET_KEY", hide_env_values = true, requires = "secret_id")]
    secret_key: Option<String>,
    /// Demand this token
    #[arg(long, env = "TENCENTCLOUD_TOKEN", hide_env_values = true)]
    token: Option<String>,
}

pub fn emulator(arguments: EmulatorArguments) -> Result<(), Failure> {
    logging::set_up(&quiet_log());
    let EmulatorArguments { listen, queues, topics, secret_id, secret_key, token } = arguments;
    let credentials = secret_id
        .zip(secret_key)
        .map(|(id, key)| Credentials::new(id, key.into(), token.map(Into::into)));
    let checked = match &credentials {
        Some(credentials) => format!("signatures are checked for {}", credentials.secret_id),
        None => "no credentials are given, so any signature is accepted".to_owned(),
    };
    let names: Vec<String> = queues.iter().map(|queue| queue.name.clone()).collect();
    actix::System::new().block_on(async move {
        let options = EmulatorOptions { listen, credentials, queues, topics };
        let emulator = Emulator::start(options).map_err(|error| {
            Failure::running(format!("the emulator cannot listen on {listen}: {error}"))
        })?;
        println!("listening on {}", emulator.endpoint());
        println!("queues: {}", if names.is_empty() { "none yet".into() } else { names.join(", ") });
        println!("{checked}");
        if !listen.ip().is_loopback() {
            eprintln!("hapax: {listen} can be reached from other machines");
        }
        stop_requested().await;
        emulator.stop().await;
        Ok(())
    })
}
