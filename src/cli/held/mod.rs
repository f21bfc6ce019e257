//! `hapax held`

mod difference;
mod show;

pub use show::applied_json;

use std::io::Write;
use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, Engine};
use chrono::{TimeDelta, Utc};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::tables::{Tables, hex, json_time, print_columns, printable, time};
use super::{ConfigArguments, Failure};
use crate::event::Digest;
use crate::pipeline::{HeldRetry, RetryOutcome};
use crate::service::Service;
use crate::store::{
    Discard, HeldFilter, HeldMessage, HeldState, HoldReason, discard, find_held, list_held,
    schedule,
};

/// Messages that are read at a time.
const PAGE: i64 = 500;

#[derive(Args)]
pub struct HeldArguments {
    #[command(subcommand)]
    command: HeldCommand,
}

#[derive(Subcommand)]
enum HeldCommand {
    /// List held messages, oldest first
    List(ListArguments),
    /// Show a held message beside what was applied of its event
    Show(ShowArguments),
    /// Try held messages again, as if they were delivered now
    Retry(RetryArguments),
    /// Give held messages up; a row of discarded_message remains
    Discard(DiscardArguments),
    /// Write held messages to standard output with their bodies, one JSON object a line
    Export(ExportArguments),
}

#[derive(Args)]
struct FilterArguments {
    /// Only of this queue
    #[arg(long)]
    queue: Option<String>,
    /// Only of this event type
    #[arg(long = "type", value_name = "EVENT_TYPE")]
    event_type: Option<String>,
    /// Only held for this reason
    #[arg(long, value_parser = reason)]
    reason: Option<&'static str>,
    /// Only in this state: retrying or quarantined
    #[arg(long, value_parser = state)]
    state: Option<&'static str>,
    /// Only held for longer than this, such as 30m, 2h or 7d
    #[arg(long, value_name = "AGE", value_parser = humantime::parse_duration)]
    older_than: Option<Duration>,
}

fn reason(text: &str) -> Result<&'static str, String> {
    let words = HoldReason::ALL.map(HoldReason::as_str);
    words
        .into_iter()
        .find(|word| *word == text)
        .ok_or_else(|| format!("one of {}", words.join(", ")))
}

fn state(text: &str) -> Result<&'static str, String> {
    let words = [HeldState::Retrying, HeldState::Quarantined].map(HeldState::as_str);
    words
        .into_iter()
        .find(|word| *word == text)
        .ok_or_else(|| format!("one of {}", words.join(", ")))
}

impl FilterArguments {
    fn filter(&self) -> HeldFilter {
        let before = |age: Duration| {
            Utc::now().naive_utc().checked_sub_signed(TimeDelta::from_std(age).ok()?)
        };
        HeldFilter {
            queue: self.queue.clone(),
            event_type: self.event_type.clone(),
            state: self.state,
            reason: self.reason,
            held_before: self.older_than.and_then(before),
            after_id: None,
        }
    }
}

#[derive(Args)]
struct ListArguments {
    #[command(flatten)]
    filter: FilterArguments,
    /// Most messages
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    config: ConfigArguments,
}

#[derive(Args)]
struct ShowArguments {
    /// As listed
    id: i64,
    /// One JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    config: ConfigArguments,
}

#[derive(Args)]
struct RetryArguments {
    /// As listed
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    ids: Vec<i64>,
    /// All that the filters let through
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    filter: FilterArguments,
    /// Apply even what is older than the de-duplication horizon: it may have been applied before
    #[arg(long)]
    past_horizon: bool,
    #[command(flatten)]
    config: ConfigArguments,
}

#[derive(Args)]
struct DiscardArguments {
    /// As listed
    #[arg(required = true)]
    ids: Vec<i64>,
    /// Why, for those who ask later
    #[arg(long, default_value = "")]
    note: String,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    config: ConfigArguments,
}

#[derive(Args)]
struct ExportArguments {
    #[command(flatten)]
    filter: FilterArguments,
    #[command(flatten)]
    config: ConfigArguments,
}

pub fn held(arguments: HeldArguments) -> Result<(), Failure> {
    match arguments.command {
        HeldCommand::List(arguments) => list(&arguments),
        HeldCommand::Show(arguments) => {
            let tables = Tables::open(&arguments.config.config)?;
            show::show(&tables, &one(&tables, arguments.id)?, arguments.json)
        }
        HeldCommand::Retry(arguments) => retry(&arguments),
        HeldCommand::Discard(arguments) => give_up(&arguments),
        HeldCommand::Export(arguments) => export(&arguments),
    }
}

fn one(tables: &Tables, id: i64) -> Result<HeldMessage, Failure> {
    let found = tables.transaction(|tx, consumer| find_held(tx, consumer, id))?;
    found.ok_or_else(|| {
        let consumer = &tables.config.consumer;
        Failure::running(format!(
            "no message with the id {id} is held for the consumer {consumer:?}; `hapax held list` \
             has those that are"
        ))
    })
}

fn list(arguments: &ListArguments) -> Result<(), Failure> {
    let tables = Tables::open(&arguments.config.config)?;
    let (filter, limit) = (arguments.filter.filter(), i64::from(arguments.limit));
    let mut found =
        tables.transaction(|tx, consumer| list_held(tx, consumer, &filter, limit + 1))?;
    let has_more = found.len() as i64 > limit;
    found.truncate(arguments.limit as usize);
    if arguments.json {
        found.iter().for_each(|message| println!("{}", as_json(message)));
        return Ok(());
    }
    if found.is_empty() {
        println!("no message is held");
        return Ok(());
    }
    let heads =
        ["ID", "STATE", "REASON", "QUEUE", "TYPE", "EVENT", "COPIES", "HELD SINCE", "NEXT TRY"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    rows.extend(found.iter().map(row));
    print_columns(&rows);
    if has_more {
        println!("there are more; raise --limit");
    }
    Ok(())
}

fn row(message: &HeldMessage) -> Vec<String> {
    let or_dash = |text: &Option<String>| text.as_deref().map_or("-".into(), printable);
    vec![
        message.id.to_string(),
        message.state.clone(),
        message.reason.clone(),
        message.queue.clone(),
        or_dash(&message.event_type),
        or_dash(&message.event_id),
        message.copies.to_string(),
        time(message.first_held_at),
        message.next_retry_at.map_or("-".into(), time),
    ]
}

pub fn as_json(message: &HeldMessage) -> Value {
    json!({
        "id": message.id,
        "queue": message.queue,
        "message_id": message.message_id,
        "event_id": message.event_id,
        "event_type": message.event_type,
        "state": message.state,
        "reason": message.reason,
        "detail": message.detail,
        "copies": message.copies,
        "attempts": message.attempts,
        "enqueued_at": json_time(message.enqueued_at),
        "first_held_at": time(message.first_held_at),
        "last_held_at": time(message.last_held_at),
        "next_retry_at": json_time(message.next_retry_at),
        "body_sha256": hex(&Digest::of_bytes(&message.body).0),
    })
}

/// Calls `work` with each message that the filter lets through.
fn for_each(
    tables: &Tables,
    mut filter: HeldFilter,
    mut work: impl FnMut(HeldMessage) -> Result<(), Failure>,
) -> Result<(), Failure> {
    loop {
        let page = tables.transaction(|tx, consumer| list_held(tx, consumer, &filter, PAGE))?;
        let Some(last) = page.last() else { return Ok(()) };
        filter.after_id = Some(last.id);
        page.into_iter().try_for_each(&mut work)?;
    }
}

fn retry(arguments: &RetryArguments) -> Result<(), Failure> {
    let tables = Tables::open(&arguments.config.config)?;
    let service = Service::new(tables.config.clone()).map_err(Failure::usage)?;
    let retry = service.held_retry(tables.store.clone());
    let mut left = 0;
    let mut try_one = |message: HeldMessage| {
        let (is_settled, text) = retry_one(&tables, &retry, &message, arguments.past_horizon)?;
        println!("{}: {text}", message.id);
        left += usize::from(!is_settled);
        Ok(())
    };
    match arguments.all {
        true => for_each(&tables, arguments.filter.filter(), try_one)?,
        false => arguments.ids.iter().try_for_each(|id| try_one(one(&tables, *id)?))?,
    }
    match left {
        0 => Ok(()),
        left => Err(Failure::running(format!("{left} of them are still held"))),
    }
}

/// Whether nothing is left to do, and what happened.
fn retry_one(
    tables: &Tables,
    retry: &HeldRetry,
    message: &HeldMessage,
    past_horizon: bool,
) -> Result<(bool, String), Failure> {
    let is_applied_elsewhere = |event_type: &String| !retry.applications.contains_key(event_type);
    if message.event_type.as_ref().is_some_and(is_applied_elsewhere) {
        let now = Utc::now().naive_utc();
        tables.transaction(|tx, consumer| schedule(tx, consumer, message.id, now))?;
        let text =
            "no applier for it is declared here; a running service that has one tries it now";
        return Ok((true, text.to_owned()));
    }
    let outcome = retry.retry(message.id, past_horizon).map_err(Failure::running)?;
    Ok(match outcome {
        RetryOutcome::Applied => (true, "applied".to_owned()),
        RetryOutcome::Duplicate => (true, "applied before; no longer held".to_owned()),
        RetryOutcome::Gone => (true, "no longer held".to_owned()),
        RetryOutcome::Quarantined(reason, detail) => {
            (false, format!("quarantined ({}): {}", reason.as_str(), printable(&detail)))
        }
        RetryOutcome::Postponed(detail) => {
            (false, format!("it failed and will be tried again: {}", printable(&detail)))
        }
    })
}

fn give_up(arguments: &DiscardArguments) -> Result<(), Failure> {
    let tables = Tables::open(&arguments.config.config)?;
    let by = std::env::var("USER").or_else(|_| std::env::var("LOGNAME")).unwrap_or_default();
    for id in &arguments.ids {
        let message = one(&tables, *id)?;
        if !arguments.yes && !confirms(&message)? {
            println!("{id}: kept");
            continue;
        }
        let digest = Digest::of_bytes(&message.body);
        let note = arguments.note.as_str();
        let trace = Discard { by: &by, note, body_digest: &digest.0 };
        tables.transaction(|tx, consumer| discard(tx, consumer, &message, trace))?;
        println!("{id}: discarded");
    }
    Ok(())
}

fn confirms(message: &HeldMessage) -> Result<bool, Failure> {
    let HeldMessage { id, queue, reason, event_id, .. } = message;
    let event = event_id.as_deref().map_or("no event".into(), printable);
    print!(
        "Discard message {id} ({reason}, {event}, queue {queue})? Its body is lost; `hapax held export` \
         keeps it. Type yes: "
    );
    let mut answer = String::new();
    std::io::stdout()
        .flush()
        .and_then(|()| std::io::stdin().read_line(&mut answer))
        .map_err(|error| Failure::running(format!("no answer: {error}")))?;
    Ok(answer.trim() == "yes")
}

fn export(arguments: &ExportArguments) -> Result<(), Failure> {
    let tables = Tables::open(&arguments.config.config)?;
    for_each(&tables, arguments.filter.filter(), |message| {
        let mut value = as_json(&message);
        match std::str::from_utf8(&message.body) {
            Ok(text) => value["body"] = text.into(),
            Err(_) => value["body_base64"] = BASE64_STANDARD.encode(&message.body).into(),
        }
        println!("{value}");
        Ok(())
    })
}
