//! `hapax held show`: the held message beside what was applied.

use serde_json::{Value, json};

use super::super::Failure;
use super::super::tables::{Tables, hex, json_time, print_columns, printable, time, time_utc};
use super::as_json;
use super::difference::{Difference, differences};
use crate::event::Event;
use crate::service::Service;
use crate::store::{HeldMessage, ProcessedEvent, inspect};

pub fn show(tables: &Tables, message: &HeldMessage, as_object: bool) -> Result<(), Failure> {
    let event = event_of(tables, message)?;
    let applied = match &message.event_id {
        Some(id) => tables.transaction(|tx, consumer| inspect(tx, consumer, id))?.applied,
        None => None,
    };
    let found = match (&event, &applied) {
        (Ok(event), Some(ProcessedEvent { payload: Some(payload), .. })) => {
            match crate::event::json::parse(payload) {
                Ok(kept) => differences(&kept, &event.payload.json()),
                Err(_) => Vec::new(),
            }
        }
        _ => Vec::new(),
    };
    match as_object {
        true => println!("{}", object(message, event.as_ref(), applied.as_ref(), &found)),
        false => print(message, event.as_ref(), applied.as_ref(), &found),
    }
    Ok(())
}

/// The event in the held body, or why there is none.
fn event_of(tables: &Tables, message: &HeldMessage) -> Result<Result<Event, String>, Failure> {
    let service = Service::new(tables.config.clone()).map_err(Failure::usage)?;
    let readers = service.held_retry(tables.store.clone()).readers;
    let Some(reader) = readers.get(&message.queue) else {
        return Ok(Err(format!("the queue {:?} is not configured", message.queue)));
    };
    Ok(match std::str::from_utf8(&message.body) {
        Ok(body) => reader.read(body).map_err(|error| error.0),
        Err(error) => Err(format!("the body is not UTF-8: {error}")),
    })
}

fn print(
    message: &HeldMessage,
    event: Result<&Event, &String>,
    applied: Option<&ProcessedEvent>,
    found: &[Difference],
) {
    let HeldMessage { id, state, reason, queue, copies, attempts, .. } = message;
    println!("held message {id}: {state} ({reason}), queue {queue}, {copies} copies");
    println!("  {}", printable(&message.detail));
    println!("  held from {} to {}", time(message.first_held_at), time(message.last_held_at));
    if let Some(next) = message.next_retry_at {
        println!("  tried {attempts} times from the table; next try at {}", time(next));
    }
    println!();
    match event {
        Ok(event) => print_beside(message, event, applied),
        Err(reason) => println!("the body is no event: {}", printable(reason)),
    }
    for Difference { pointer, applied, incoming } in found {
        let side = |text: &Option<String>| text.as_deref().map_or("(nothing)".into(), printable);
        println!(
            "≠ payload{}: {} was applied, {} came",
            printable(pointer),
            side(applied),
            side(incoming)
        );
    }
    println!("\nbody:\n{}", printable(&String::from_utf8_lossy(&message.body)));
}

fn print_beside(message: &HeldMessage, event: &Event, applied: Option<&ProcessedEvent>) {
    let at = |at: Option<_>| at.map_or("-".to_owned(), time_utc);
    let incoming = [
        ("event", event.id.clone()),
        ("type", event.event_type.clone()),
        ("occurred at", at(event.occurred_at)),
        ("event time", at(event.event_time)),
        ("message", message.message_id.clone()),
        ("digest", event.digest.to_string()),
    ];
    let Some(applied) = applied else {
        println!("the event was not applied");
        incoming.iter().for_each(|(name, value)| println!("  {name:12}{}", printable(value)));
        return;
    };
    let then = |at: Option<_>| at.map_or("-".to_owned(), time);
    let kept = [
        applied.event_id.clone(),
        applied.event_type.clone(),
        then(applied.occurred_at),
        then(applied.event_time),
        applied.message_id.clone(),
        hex(&applied.payload_digest),
    ];
    let mut rows = vec![["", "", "APPLIED", "INCOMING"].map(str::to_owned).to_vec()];
    for ((name, incoming), kept) in incoming.into_iter().zip(kept) {
        let mark = if incoming == kept { "" } else { "≠" };
        let cells = [mark.to_owned(), name.to_owned(), printable(&kept), printable(&incoming)];
        rows.push(cells.to_vec());
    }
    print_columns(&rows);
    println!("  applied at {}", time(applied.processed_at));
    if applied.payload.is_none() {
        println!(
            "  its payload is not kept; set keep_payload for its event type to compare the next"
        );
    }
}

fn object(
    message: &HeldMessage,
    event: Result<&Event, &String>,
    applied: Option<&ProcessedEvent>,
    found: &[Difference],
) -> Value {
    let incoming = match event {
        Ok(event) => json!({
            "event_id": event.id,
            "event_type": event.event_type,
            "occurred_at": event.occurred_at.map(time_utc),
            "event_time": event.event_time.map(time_utc),
            "digest": event.digest.to_string(),
            "payload": event.payload.as_str(),
        }),
        Err(reason) => json!({ "no_event": reason }),
    };
    let differences: Vec<Value> = found
        .iter()
        .map(|one| {
            json!({ "pointer": one.pointer, "applied": one.applied, "incoming": one.incoming })
        })
        .collect();
    json!({
        "held": as_json(message),
        "incoming": incoming,
        "applied": applied.map(applied_json),
        "differences": differences,
    })
}

/// A claim as JSON.
pub fn applied_json(applied: &ProcessedEvent) -> Value {
    json!({
        "event_id": applied.event_id,
        "event_type": applied.event_type,
        "occurred_at": json_time(applied.occurred_at),
        "event_time": json_time(applied.event_time),
        "message_id": applied.message_id,
        "processed_at": time(applied.processed_at),
        "digest": hex(&applied.payload_digest),
        "payload": applied.payload,
    })
}
