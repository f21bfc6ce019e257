//! What the tables say of an event, and whether they agree with each other.

use chrono::NaiveDateTime;
use diesel::prelude::*;
use diesel::result::QueryResult;

use super::connection::DbConnection;
use super::held::{HeldMessage, HeldState};
use super::schema::{
    discarded_message as d, held_message as h, horizons as z, processed_event as p,
};

/// A claim: an event that was applied.
#[derive(Debug, Clone, PartialEq, Eq, Queryable, Selectable)]
#[diesel(table_name = p)]
#[allow(missing_docs)]
pub struct ProcessedEvent {
    pub event_id: String,
    pub event_type: String,
    pub payload_digest: Vec<u8>,
    pub message_id: String,
    pub occurred_at: Option<NaiveDateTime>,
    pub processed_at: NaiveDateTime,
    pub event_time: Option<NaiveDateTime>,
    pub payload: Option<String>,
}

/// A message that a person discarded.
#[derive(Debug, Clone, PartialEq, Eq, Queryable, Selectable)]
#[diesel(table_name = d)]
#[allow(missing_docs)]
pub struct DiscardedMessage {
    pub held_id: i64,
    pub queue: String,
    pub message_id: String,
    pub reason: String,
    pub body_digest: Vec<u8>,
    pub discarded_by: String,
    pub note: String,
    pub discarded_at: NaiveDateTime,
}

/// All that the tables know of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventRecord {
    /// Its claim, if it was applied.
    pub applied: Option<ProcessedEvent>,
    /// Messages of it that are held.
    pub held: Vec<HeldMessage>,
    /// Messages of it that were discarded.
    pub discarded: Vec<DiscardedMessage>,
}

/// What is known of an event of `consumer`.
///
/// # Errors
/// The database's.
pub fn inspect(
    connection: &mut DbConnection,
    consumer: &str,
    event_id: &str,
) -> QueryResult<EventRecord> {
    let applied = p::table
        .find((consumer, event_id))
        .select(ProcessedEvent::as_select())
        .first(connection)
        .optional()?;
    let held = h::table
        .filter(h::consumer.eq(consumer))
        .filter(h::event_id.eq(event_id))
        .order(h::id)
        .select(HeldMessage::as_select())
        .load(connection)?;
    let discarded = d::table
        .filter(d::consumer.eq(consumer))
        .filter(d::event_id.eq(event_id))
        .order(d::id)
        .select(DiscardedMessage::as_select())
        .load(connection)?;
    Ok(EventRecord { applied, held, discarded })
}

/// A rule that the tables keep, and how many rows break it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The rule, as a sentence.
    pub rule: &'static str,
    /// Rows that break it.
    pub broken: i64,
}

/// Compares `consumer`'s rows with the rules that hapax keeps. Reads each table a few times.
///
/// # Errors
/// The database's.
pub fn verify(connection: &mut DbConnection, consumer: &str) -> QueryResult<Vec<Finding>> {
    let now = chrono::Utc::now().naive_utc() + MAX_CLOCK_SKEW;
    let claims = || p::table.filter(p::consumer.eq(consumer));
    let held = || h::table.filter(h::consumer.eq(consumer));
    let retrying = HeldState::Retrying.as_str();
    let mut findings = Vec::new();
    let mut add = |rule, broken| findings.push(Finding { rule, broken });
    add(
        "no claim was committed in the future",
        claims().filter(p::processed_at.gt(now)).count().get_result(connection)?,
    );
    add(
        "each retrying message has a time for its next try",
        held()
            .filter(h::state.eq(retrying))
            .filter(h::next_retry_at.is_null())
            .count()
            .get_result(connection)?,
    );
    add(
        "no quarantined message has a time for its next try",
        held()
            .filter(h::state.ne(retrying))
            .filter(h::next_retry_at.is_not_null())
            .count()
            .get_result(connection)?,
    );
    add(
        "each held message has at least one copy, and was last held no earlier than first",
        held()
            .filter(h::copies.lt(1).or(h::last_held_at.lt(h::first_held_at)))
            .count()
            .get_result(connection)?,
    );
    add(
        "each conflict has the claim it conflicts with",
        conflicts_without_claim(connection, consumer)?,
    );
    add(
        "each horizon lies in the past",
        z::table
            .filter(z::consumer.eq(consumer))
            .filter(z::horizon.gt(now))
            .count()
            .get_result(connection)?,
    );
    add("digests have 32 bytes, in a sample of claims", odd_digests(connection, consumer)?);
    Ok(findings)
}

/// Clocks of several machines differ.
const MAX_CLOCK_SKEW: chrono::TimeDelta = chrono::TimeDelta::minutes(5);
/// Claims whose digest is looked at.
const SAMPLE_CLAIMS: i64 = 1_000;

fn conflicts_without_claim(connection: &mut DbConnection, consumer: &str) -> QueryResult<i64> {
    let claim = p::table
        .filter(p::consumer.eq(h::consumer))
        .filter(p::event_id.nullable().eq(h::event_id))
        .select(p::event_id);
    h::table
        .filter(h::consumer.eq(consumer))
        .filter(h::reason.eq(super::HoldReason::Conflict.as_str()))
        .filter(diesel::dsl::not(diesel::dsl::exists(claim)))
        .count()
        .get_result(connection)
}

fn odd_digests(connection: &mut DbConnection, consumer: &str) -> QueryResult<i64> {
    let digests: Vec<Vec<u8>> = p::table
        .filter(p::consumer.eq(consumer))
        .order(p::event_id.desc())
        .limit(SAMPLE_CLAIMS)
        .select(p::payload_digest)
        .load(connection)?;
    Ok(digests.iter().filter(|digest| digest.len() != 32).count() as i64)
}
