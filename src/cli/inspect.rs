//! `hapax inspect`

use clap::Args;
use serde_json::{Value, json};

use super::held::{applied_json, as_json};
use super::tables::{Tables, hex, printable, time};
use super::{ConfigArguments, Failure};
use crate::store::{DiscardedMessage, EventRecord, ProcessedEvent, inspect as look_up};

#[derive(Args)]
pub struct InspectArguments {
    /// The event's id: compared byte by byte
    event_id: String,
    /// One JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    config: ConfigArguments,
}

pub fn inspect(arguments: &InspectArguments) -> Result<(), Failure> {
    let tables = Tables::open(&arguments.config.config)?;
    let id = arguments.event_id.as_str();
    let record = tables.transaction(|tx, consumer| look_up(tx, consumer, id))?;
    match arguments.json {
        true => println!("{}", object(id, &record)),
        false => print(id, &record),
    }
    Ok(())
}

fn print(id: &str, record: &EventRecord) {
    let EventRecord { applied, held, discarded } = record;
    match applied {
        None => println!("{id}: not applied"),
        Some(ProcessedEvent { event_type, payload_digest, message_id, processed_at, .. }) => {
            println!("{id}: applied at {}", time(*processed_at));
            println!("  type     {}", printable(event_type));
            println!("  message  {}", printable(message_id));
            println!("  digest   {}", hex(payload_digest));
        }
    }
    for message in held {
        println!(
            "held as {} since {}, {} ({}): {}",
            message.id,
            time(message.first_held_at),
            message.state,
            message.reason,
            printable(&message.detail)
        );
    }
    for message in discarded {
        println!(
            "message {} discarded at {} by {:?} ({}): {}",
            message.held_id,
            time(message.discarded_at),
            message.discarded_by,
            message.reason,
            printable(&message.note)
        );
    }
}

fn object(id: &str, record: &EventRecord) -> Value {
    let discarded = |message: &DiscardedMessage| {
        json!({
            "held_id": message.held_id,
            "queue": message.queue,
            "message_id": message.message_id,
            "reason": message.reason,
            "body_sha256": hex(&message.body_digest),
            "discarded_by": message.discarded_by,
            "note": message.note,
            "discarded_at": time(message.discarded_at),
        })
    };
    json!({
        "event_id": id,
        "applied": record.applied.as_ref().map(applied_json),
        "held": record.held.iter().map(as_json).collect::<Vec<_>>(),
        "discarded": record.discarded.iter().map(discarded).collect::<Vec<_>>(),
    })
}
