//! `hapax dev`: emulator, SQLite and service in one process, to try events by hand.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use diesel::RunQueryDsl;

use super::{Failure, logging, quiet_log};
use crate::config::Config;
use crate::emulator::{Emulator, EmulatorOptions};
use crate::pipeline::Observation;
use crate::service::{Service, store_options};
use crate::signals::stop_requested;
use crate::store::Store;

#[derive(Args)]
pub struct DevArguments {
    /// Address of the emulator; port 0 picks a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:19324")]
    listen: SocketAddr,
    /// Keep the database in this folder instead of a temporary one
    #[arg(long, value_name = "FOLDER")]
    data: Option<PathBuf>,
}

pub fn dev(arguments: DevArguments) -> Result<(), Failure> {
    logging::set_up(&quiet_log());
    let DevArguments { listen, data } = arguments;
    match data {
        Some(folder) => {
            std::fs::create_dir_all(&folder).map_err(|error| {
                Failure::usage(format!("{} cannot be made: {error}", folder.display()))
            })?;
            actix::System::new().block_on(serve(listen, &folder))
        }
        None => {
            let folder = tempfile::tempdir().map_err(Failure::running)?;
            actix::System::new().block_on(serve(listen, folder.path()))
        }
    }
}

async fn serve(listen: SocketAddr, folder: &Path) -> Result<(), Failure> {
    let emulator = Emulator::start(EmulatorOptions {
        listen,
        credentials: None,
        queues: vec!["orders:visibility_timeout=30".parse().map_err(Failure::running)?],
        topics: Vec::new(),
    })
    .map_err(|error| {
        let remedy = "choose another address with --listen, or port 0 for any";
        Failure::running(format!("the emulator cannot listen on {listen}: {error}; {remedy}"))
    })?;
    let file = folder.join("dev.db");
    let config = config(&file, &emulator.endpoint())?;
    create_account_table(&config).await?;
    let service = Service::new(config).map_err(Failure::running)?;
    let running = service
        .observe(Arc::new(|observation| {
            if let Some(text) = describe(observation) {
                println!("{text}");
            }
        }))
        .start()
        .await
        .map_err(Failure::running)?;
    greet(&emulator.endpoint(), &file);
    stop_requested().await;
    running.drain().await;
    emulator.stop().await;
    Ok(())
}

fn config(file: &Path, endpoint: &str) -> Result<Config, Failure> {
    let text = format!(
        r#"
        consumer = "dev"
        [database]
        url = "sqlite://{}"
        [credentials]
        secret_id = "emulator"
        secret_key = "emulator"
        [[queue]]
        name = "orders"
        endpoint = "{endpoint}"
        [[applier]]
        event_type = "points.awarded"
        [applier.parameters]
        account_id = {{ pointer = "/account_id", type = "bigint" }}
        points = {{ pointer = "/points", type = "bigint" }}
        [[applier.statement]]
        sql = """
            INSERT INTO account (id, balance) VALUES (:account_id, :points)
            ON CONFLICT (id) DO UPDATE SET balance = balance + :points"""
        rows = 1
        "#,
        file.display()
    );
    Config::parse(Path::new("(dev)"), &text, std::iter::empty()).map_err(Failure::running)
}

async fn create_account_table(config: &Config) -> Result<(), Failure> {
    let sql =
        "CREATE TABLE IF NOT EXISTS account (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL)";
    Store::new(store_options(config))
        .run(move |connection| diesel::sql_query(sql).execute(connection))
        .await
        .map_err(Failure::running)?
        .map_err(Failure::running)?;
    Ok(())
}

fn greet(endpoint: &str, file: &Path) {
    let body = r#"{"event_id":"evt-1","event_type":"points.awarded","payload":{"account_id":1,"points":10}}"#;
    println!("emulator: {endpoint}, queue orders, any credentials");
    println!("database: sqlite://{}, table account", file.display());
    println!("service:  running, applies points.awarded; Ctrl-C stops it");
    println!("\nSend an event from another terminal, as often as you like:\n");
    println!("  hapax send --endpoint {endpoint} --queue orders '{body}'\n");
}

fn describe(observation: &Observation<'_>) -> Option<String> {
    Some(match observation {
        Observation::Applied { event_id, message_id, .. } => {
            format!("{message_id}: event {event_id:?} applied")
        }
        Observation::Duplicate { event_id, message_id, .. } => {
            format!("{message_id}: event {event_id:?} was applied before, nothing to do")
        }
        Observation::Failed { event_id, message_id, reason, .. } => {
            format!("{message_id}: event {event_id:?} rolled back: {reason}")
        }
        Observation::Held { message_id, reason, detail, .. } => {
            format!("{message_id}: held ({}): {detail}", reason.as_str())
        }
        Observation::Dropped { message_id, why, .. } => {
            format!("{message_id}: left to the queue: {why}")
        }
        Observation::Deleted { message_id, .. } => format!("{message_id}: deleted from the queue"),
        Observation::NotDeleted { message_id, why, .. } => {
            format!("{message_id}: not deleted: {why}")
        }
        _ => return None,
    })
}
