//! The de-duplication horizon of an event type: claims of events before it may be deleted, so no event
//! before it is applied. It only ever advances, and it does so before the rows go.

use chrono::NaiveDateTime;
use diesel::prelude::*;
use diesel::result::QueryResult;

use super::connection::DbConnection;
use super::schema::{held_message as h, horizons as z, processed_event as p};

/// The horizon, UTC, if one was ever set.
///
/// # Errors
/// The database's.
pub fn horizon(
    connection: &mut DbConnection,
    consumer: &str,
    event_type: &str,
) -> QueryResult<Option<NaiveDateTime>> {
    z::table.find((consumer, event_type)).select(z::horizon).first(connection).optional()
}

/// A horizon that was set.
#[derive(Debug, Clone, PartialEq, Eq, Queryable)]
pub struct Horizon {
    /// The event type.
    pub event_type: String,
    /// Events before it are not applied, UTC.
    pub horizon: NaiveDateTime,
    /// Where the events' time comes from.
    pub event_time: String,
}

/// All horizons of `consumer`.
///
/// # Errors
/// The database's.
pub fn horizons(connection: &mut DbConnection, consumer: &str) -> QueryResult<Vec<Horizon>> {
    z::table
        .filter(z::consumer.eq(consumer))
        .order(z::event_type)
        .select((z::event_type, z::horizon, z::event_time))
        .load(connection)
}

/// The newest own time among the claims of an event type, UTC.
///
/// # Errors
/// The database's.
pub fn newest_event_time(
    connection: &mut DbConnection,
    consumer: &str,
    event_type: &str,
) -> QueryResult<Option<NaiveDateTime>> {
    p::table
        .filter(p::consumer.eq(consumer))
        .filter(p::event_type.eq(event_type))
        .filter(p::event_time.is_not_null())
        .select(diesel::dsl::max(p::event_time))
        .first(connection)
}

/// Advances the horizon, and never back; returns where it is then. To be committed before [`purge_claims`].
///
/// # Errors
/// The database's; a unique violation if another instance set the first horizon at the same time.
pub fn advance_horizon(
    connection: &mut DbConnection,
    consumer: &str,
    to: &Horizon,
) -> QueryResult<NaiveDateTime> {
    let key = (consumer, to.event_type.as_str());
    match horizon(connection, consumer, &to.event_type)? {
        Some(now) if now >= to.horizon => return Ok(now),
        Some(_) => {
            let behind = z::table.find(key).filter(z::horizon.lt(to.horizon));
            diesel::update(behind).set(z::horizon.eq(to.horizon)).execute(connection)?
        }
        None => diesel::insert_into(z::table)
            .values((
                z::consumer.eq(consumer),
                z::event_type.eq(&to.event_type),
                z::horizon.eq(to.horizon),
                z::event_time.eq(&to.event_time),
            ))
            .execute(connection)?,
    };
    Ok(horizon(connection, consumer, &to.event_type)?.unwrap_or(to.horizon))
}

/// Deletes claims of events whose own time is before `horizon`, `limit` at most, but for those of events
/// that are held; returns how many. Instances that do so at the same time share the work or do it once.
///
/// # Errors
/// The database's.
pub fn purge_claims(
    connection: &mut DbConnection,
    consumer: &str,
    event_type: &str,
    horizon: NaiveDateTime,
    limit: i64,
) -> QueryResult<usize> {
    let held = h::table
        .filter(h::consumer.eq(consumer))
        .filter(h::event_id.is_not_null())
        .filter(h::event_id.eq(p::event_id.nullable()))
        .select(h::id);
    let mut ids: Vec<String> = p::table
        .filter(p::consumer.eq(consumer))
        .filter(p::event_type.eq(event_type))
        .filter(p::event_time.lt(horizon))
        .filter(diesel::dsl::not(diesel::dsl::exists(held)))
        .order(p::event_time)
        .limit(limit)
        .select(p::event_id)
        .load(connection)?;
    ids.sort_unstable();
    let rows = p::table
        .filter(p::consumer.eq(consumer))
        .filter(p::event_id.eq_any(&ids))
        .filter(p::event_time.lt(horizon));
    diesel::delete(rows).execute(connection)
}
