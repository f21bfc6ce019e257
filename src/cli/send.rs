//! `hapax send`

use std::io::{BufRead, BufReader, IsTerminal, Read};
use std::path::{Path, PathBuf};

use base64::prelude::{BASE64_STANDARD, Engine};
use clap::Args;

use super::{Failure, credentials_for, load};
use crate::cmq::signature::SignatureMethod;
use crate::cmq::{
    Client, ClientOptions, Credentials, Endpoint, MAX_BATCH_MESSAGES, MAX_MESSAGE_BYTES,
};
use crate::event::BodyEncoding;
use crate::service::{client, credentials};

#[derive(Args)]
pub struct SendArguments {
    /// Bodies to send; without any, and without --file, JSON lines are read from standard input
    bodies: Vec<String>,
    /// Send each line of this file as a message; - is standard input
    #[arg(long, value_name = "FILE", conflicts_with = "bodies")]
    file: Option<PathBuf>,
    /// Take endpoint, credentials and body encoding from this configuration
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with = "endpoint",
        required_unless_present = "endpoint"
    )]
    config: Option<PathBuf>,
    /// The endpoint, for example http://127.0.0.1:19324
    #[arg(long, value_name = "URL", requires = "queue")]
    endpoint: Option<String>,
    /// The queue; by default the first one of the configuration
    #[arg(long, value_name = "NAME")]
    queue: Option<String>,
    /// Encode bodies in Base64
    #[arg(long)]
    base64: bool,
    /// Deliver after this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    delay: u32,
}

/// Where messages go.
struct Target {
    client: Client,
    queue: String,
    base64: bool,
}

pub fn send(arguments: SendArguments) -> Result<(), Failure> {
    actix::System::new().block_on(async move {
        let target = target(&arguments).await?;
        let SendArguments { bodies, file, delay, .. } = arguments;
        let sent = match (bodies.is_empty(), file) {
            (false, _) => send_all(&target, bodies.into_iter().map(Ok), delay).await?,
            (true, file) => send_all(&target, lines(file.as_deref())?, delay).await?,
        };
        let queue = &target.queue;
        eprintln!("sent {sent} message{} to {queue}", if sent == 1 { "" } else { "s" });
        Ok(())
    })
}

async fn target(arguments: &SendArguments) -> Result<Target, Failure> {
    if let Some(url) = &arguments.endpoint {
        let endpoint = Endpoint::parse(url).map_err(Failure::usage)?;
        let credentials = credentials_for(url).map_err(Failure::usage)?;
        let client = new_client(endpoint, credentials)?;
        let queue = arguments.queue.clone().expect("clap demands it with --endpoint");
        return Ok(Target { client, queue, base64: arguments.base64 });
    }
    let file = arguments.config.as_deref().expect("clap demands it without --endpoint");
    let config = load(file)?;
    let named = |name: &String| config.queues.iter().find(|queue| queue.name == *name);
    let queue = match &arguments.queue {
        None => &config.queues[0],
        Some(name) => named(name).ok_or_else(|| {
            Failure::usage(format!("{}: queue: there is none of the name {name:?}", file.display()))
        })?,
    };
    let credentials = credentials(&config).await.map_err(Failure::usage)?;
    Ok(Target {
        client: client(queue, &credentials).map_err(Failure::running)?,
        queue: queue.name.clone(),
        base64: arguments.base64 || queue.body_encoding == BodyEncoding::Base64,
    })
}

fn new_client(endpoint: Endpoint, credentials: Credentials) -> Result<Client, Failure> {
    let signature_method = SignatureMethod::default();
    let credentials = credentials.into();
    Client::new(endpoint, ClientOptions { credentials, signature_method }).map_err(Failure::running)
}

/// The non-empty lines of a file or of standard input.
fn lines(file: Option<&Path>) -> Result<impl Iterator<Item = std::io::Result<String>>, Failure> {
    let reader: Box<dyn Read> = match file {
        Some(file) if file != Path::new("-") => {
            let open = std::fs::File::open(file);
            Box::new(open.map_err(|error| {
                Failure::usage(format!("{} cannot be read: {error}", file.display()))
            })?)
        }
        _ => {
            if std::io::stdin().is_terminal() {
                eprintln!("reading messages from the terminal, one a line; end with Ctrl-D");
            }
            Box::new(std::io::stdin())
        }
    };
    let lines = BufReader::new(reader).lines();
    Ok(lines.filter(|line| !matches!(line, Ok(text) if text.trim().is_empty())))
}

/// Sends in batches, bounded by number and by bytes; prints a message id a line. Returns how many.
async fn send_all(
    target: &Target,
    bodies: impl Iterator<Item = std::io::Result<String>>,
    delay: u32,
) -> Result<usize, Failure> {
    let (mut batch, mut bytes, mut sent) = (Vec::new(), 0, 0);
    for (index, body) in bodies.enumerate() {
        let body = body.map_err(|error| {
            Failure::running(format!("message {} cannot be read: {error}", index + 1))
        })?;
        let body = match target.base64 {
            true => BASE64_STANDARD.encode(body),
            false => body,
        };
        if batch.len() == MAX_BATCH_MESSAGES || bytes + body.len() > MAX_MESSAGE_BYTES {
            sent += send_batch(target, &mut batch, delay, sent).await?;
            bytes = 0;
        }
        bytes += body.len();
        batch.push(body);
    }
    sent += send_batch(target, &mut batch, delay, sent).await?;
    Ok(sent)
}

async fn send_batch(
    target: &Target,
    batch: &mut Vec<String>,
    delay: u32,
    sent: usize,
) -> Result<usize, Failure> {
    if batch.is_empty() {
        return Ok(0);
    }
    let bodies: Vec<&str> = batch.iter().map(String::as_str).collect();
    let ids = target.client.batch_send_message(&target.queue, &bodies, delay).await;
    let ids = ids
        .map_err(|error| Failure::running(format!("{error}; {sent} messages were sent before")))?;
    ids.iter().for_each(|id| println!("{id}"));
    batch.clear();
    Ok(ids.len())
}
