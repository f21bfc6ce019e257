//! Trying held messages again. A lease keeps two instances from trying one at the same time; that is for
//! economy alone, for the claim decides what is applied.

use chrono::NaiveDateTime;
use diesel::prelude::*;
use diesel::result::QueryResult;

use super::super::connection::DbConnection;
use super::super::schema::held_message as h;
use super::{HeldState, HoldReason};

/// Ids of retrying messages of `consumer` that are due, longest due first, `limit` at most.
///
/// # Errors
/// The database's.
pub fn due(
    connection: &mut DbConnection,
    consumer: &str,
    now: NaiveDateTime,
    limit: i64,
) -> QueryResult<Vec<i64>> {
    h::table
        .filter(h::consumer.eq(consumer))
        .filter(h::state.eq(HeldState::Retrying.as_str()))
        .filter(h::next_retry_at.le(now))
        .order(h::next_retry_at)
        .limit(limit)
        .select(h::id)
        .load(connection)
}

/// Takes a due message until `until`; returns whether it could be had.
///
/// # Errors
/// The database's.
pub fn lease(
    connection: &mut DbConnection,
    id: i64,
    now: NaiveDateTime,
    until: NaiveDateTime,
) -> QueryResult<bool> {
    let due = h::table
        .filter(h::id.eq(id))
        .filter(h::state.eq(HeldState::Retrying.as_str()))
        .filter(h::next_retry_at.le(now));
    Ok(diesel::update(due).set(h::next_retry_at.eq(until)).execute(connection)? == 1)
}

/// Puts the next try off. `attempts` are those made from the table so far.
///
/// # Errors
/// The database's.
pub fn postpone(
    connection: &mut DbConnection,
    id: i64,
    attempts: i32,
    next_retry_at: NaiveDateTime,
    detail: &str,
) -> QueryResult<()> {
    diesel::update(h::table.find(id))
        .set((
            h::state.eq(HeldState::Retrying.as_str()),
            h::attempts.eq(attempts),
            h::next_retry_at.eq(next_retry_at),
            h::detail.eq(detail.replace('\0', "\u{fffd}")),
        ))
        .execute(connection)
        .map(drop)
}

/// Leaves a message to a person, for `reason`.
///
/// # Errors
/// The database's.
pub fn quarantine(
    connection: &mut DbConnection,
    id: i64,
    reason: HoldReason,
    detail: &str,
) -> QueryResult<()> {
    diesel::update(h::table.find(id))
        .set((
            h::state.eq(HeldState::Quarantined.as_str()),
            h::reason.eq(reason.as_str()),
            h::next_retry_at.eq(None::<NaiveDateTime>),
            h::detail.eq(detail.replace('\0', "\u{fffd}")),
        ))
        .execute(connection)
        .map(drop)
}

/// Lets a running service try a message of `consumer` at once, and as often as a new one. Returns whether
/// it is still held.
///
/// # Errors
/// The database's.
pub fn schedule(
    connection: &mut DbConnection,
    consumer: &str,
    id: i64,
    now: NaiveDateTime,
) -> QueryResult<bool> {
    let message = h::table.filter(h::consumer.eq(consumer)).filter(h::id.eq(id));
    let changed = diesel::update(message)
        .set((
            h::state.eq(HeldState::Retrying.as_str()),
            h::attempts.eq(0),
            h::next_retry_at.eq(now),
        ))
        .execute(connection)?;
    Ok(changed == 1)
}

/// Forgets a message whose event is committed.
///
/// # Errors
/// The database's.
pub fn release(connection: &mut DbConnection, id: i64) -> QueryResult<()> {
    diesel::delete(h::table.find(id)).execute(connection).map(drop)
}
