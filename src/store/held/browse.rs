//! Looking at held messages.

use chrono::NaiveDateTime;
use diesel::dsl::{count_star, min};
use diesel::prelude::*;
use diesel::result::QueryResult;

use super::super::connection::DbConnection;
use super::super::schema::held_message;

/// A held message.
#[derive(Debug, Clone, PartialEq, Eq, Queryable, Selectable)]
#[diesel(table_name = held_message)]
#[allow(missing_docs)]
pub struct HeldMessage {
    pub id: i64,
    pub queue: String,
    pub message_id: String,
    pub event_id: Option<String>,
    pub event_type: Option<String>,
    pub state: String,
    pub reason: String,
    pub detail: String,
    pub body: Vec<u8>,
    pub copies: i64,
    pub enqueued_at: Option<NaiveDateTime>,
    pub first_held_at: NaiveDateTime,
    pub last_held_at: NaiveDateTime,
    pub attempts: i32,
    pub next_retry_at: Option<NaiveDateTime>,
}

/// Which held messages are meant; what is `None` does not matter.
#[derive(Debug, Clone, Default)]
pub struct HeldFilter {
    /// Of this queue.
    pub queue: Option<String>,
    /// Of this event type.
    pub event_type: Option<String>,
    /// In this state.
    pub state: Option<&'static str>,
    /// For this reason.
    pub reason: Option<&'static str>,
    /// First held before this time, UTC.
    pub held_before: Option<NaiveDateTime>,
    /// With a greater id.
    pub after_id: Option<i64>,
}

/// Held messages of `consumer`, oldest first, `limit` at most.
///
/// # Errors
/// The database's.
pub fn list_held(
    connection: &mut DbConnection,
    consumer: &str,
    filter: &HeldFilter,
    limit: i64,
) -> QueryResult<Vec<HeldMessage>> {
    use held_message as h;
    let mut query =
        h::table.filter(h::consumer.eq(consumer)).order(h::id).limit(limit).into_boxed();
    if let Some(queue) = &filter.queue {
        query = query.filter(h::queue.eq(queue));
    }
    if let Some(event_type) = &filter.event_type {
        query = query.filter(h::event_type.eq(event_type));
    }
    if let Some(state) = filter.state {
        query = query.filter(h::state.eq(state));
    }
    if let Some(reason) = filter.reason {
        query = query.filter(h::reason.eq(reason));
    }
    if let Some(time) = filter.held_before {
        query = query.filter(h::first_held_at.lt(time));
    }
    if let Some(id) = filter.after_id {
        query = query.filter(h::id.gt(id));
    }
    query.select(HeldMessage::as_select()).load(connection)
}

/// A held message of `consumer` by its id.
///
/// # Errors
/// The database's.
pub fn find_held(
    connection: &mut DbConnection,
    consumer: &str,
    id: i64,
) -> QueryResult<Option<HeldMessage>> {
    use held_message as h;
    h::table
        .filter(h::consumer.eq(consumer))
        .filter(h::id.eq(id))
        .select(HeldMessage::as_select())
        .first(connection)
        .optional()
}

/// How many messages are held for a reason, and since when the oldest is, UTC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldCount {
    /// As [`HoldReason::as_str`](super::HoldReason::as_str).
    pub reason: String,
    /// Messages, copies folded.
    pub messages: i64,
    /// When the first of them was held.
    pub oldest: Option<NaiveDateTime>,
}

/// Counts of `consumer`'s held messages by reason.
///
/// # Errors
/// The database's.
pub fn held_counts(connection: &mut DbConnection, consumer: &str) -> QueryResult<Vec<HeldCount>> {
    use held_message as h;
    let rows: Vec<(String, i64, Option<NaiveDateTime>)> = h::table
        .filter(h::consumer.eq(consumer))
        .group_by(h::reason)
        .select((h::reason, count_star(), min(h::first_held_at)))
        .load(connection)?;
    let count = |(reason, messages, oldest)| HeldCount { reason, messages, oldest };
    Ok(rows.into_iter().map(count).collect())
}
