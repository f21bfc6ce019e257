//! Claims: one row per event in `processed_event`, inserted in the transaction that applies the event.

use std::collections::{HashMap, HashSet};

use chrono::NaiveDateTime;
use diesel::prelude::*;
use diesel::result::QueryResult;

use super::connection::DbConnection;
#[cfg(any(feature = "sqlite", feature = "mysql"))]
use super::schema::processed_event;

/// The claim of one event.
#[derive(Debug, Clone, Copy)]
pub struct NewClaim<'a> {
    /// The idempotency key; distinct within one call of [`claim`].
    pub event_id: &'a str,
    /// The event's type.
    pub event_type: &'a str,
    /// SHA-256 of the event.
    pub payload_digest: &'a [u8],
    /// The message that brought it.
    pub message_id: &'a str,
    /// When it happened, UTC, by the producer's word.
    pub occurred_at: Option<NaiveDateTime>,
    /// The time that is fixed with the id, UTC; a row without one is never purged.
    pub event_time: Option<NaiveDateTime>,
    /// The payload, where it is to be kept.
    pub payload: Option<&'a str>,
}

/// What a claim found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claim {
    /// The row is new: the event is to be applied in this transaction.
    Fresh,
    /// The event was applied before, with this digest.
    Known(Vec<u8>),
    /// The row was there and vanished again (a purge); the transaction must be redone.
    Vanished,
}

/// Ids that are claimed now, and digests of those that were before.
struct Found {
    fresh: HashSet<String>,
    known: HashMap<String, Vec<u8>>,
}

/// The digests of the applied ones among some ids, by id; a macro over the connections of two backends.
#[cfg(any(feature = "sqlite", feature = "mysql"))]
macro_rules! digests {
    ($connection:expr, $consumer:expr, $ids:expr) => {{
        let ids: Vec<&str> = $ids;
        let rows: Vec<(String, Vec<u8>)> = match ids.is_empty() {
            true => Vec::new(),
            false => processed_event::table
                .filter(processed_event::consumer.eq($consumer))
                .filter(processed_event::event_id.eq_any(ids))
                .select((processed_event::event_id, processed_event::payload_digest))
                .load($connection)?,
        };
        rows.into_iter().collect::<HashMap<String, Vec<u8>>>()
    }};
}

#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;

/// Claims events for `consumer`; the answers are in the claims' order. Rows are locked in the order of
/// their ids, whatever order they come in, so that two batches cannot wait for each other.
///
/// Only a conflict on the claim's own key counts as known; any other violation is an error.
///
/// Takes one round trip if all are fresh, and another for the digests of those that are known.
/// `expects_known` is a guess at whether there are any. MySQL takes two more round trips where it is
/// wrong; the answers are the same.
///
/// # Errors
/// The database's.
pub fn claim(
    connection: &mut DbConnection,
    consumer: &str,
    claims: &[NewClaim<'_>],
    expects_known: bool,
) -> QueryResult<Vec<Claim>> {
    #[cfg(not(feature = "mysql"))]
    let _ = expects_known;
    let processed_at = chrono::Utc::now().naive_utc();
    let mut sorted = claims.to_vec();
    sorted.sort_unstable_by_key(|claim| claim.event_id);
    let Found { fresh, known } = match connection {
        #[cfg(feature = "sqlite")]
        DbConnection::Sqlite(inner) => {
            let fresh = sqlite::insert(inner, consumer, &sorted, processed_at)?;
            let known = digests!(inner, consumer, ids_without(&sorted, &fresh));
            Found { fresh, known }
        }
        #[cfg(feature = "postgres")]
        DbConnection::Postgres(inner) => {
            let fresh = postgres::insert(inner, consumer, &sorted, processed_at)?;
            let known = postgres::digests(inner, consumer, ids_without(&sorted, &fresh))?;
            Found { fresh, known }
        }
        #[cfg(feature = "mysql")]
        DbConnection::Mysql(inner) => {
            mysql::claim(inner, consumer, &sorted, processed_at, expects_known)?
        }
    };
    let answer = |claim: &NewClaim<'_>| match known.get(claim.event_id) {
        _ if fresh.contains(claim.event_id) => Claim::Fresh,
        Some(digest) => Claim::Known(digest.clone()),
        None => Claim::Vanished,
    };
    Ok(claims.iter().map(answer).collect())
}

#[cfg(any(feature = "sqlite", feature = "postgres"))]
fn ids_without<'a>(claims: &[NewClaim<'a>], known: &HashSet<String>) -> Vec<&'a str> {
    claims.iter().map(|claim| claim.event_id).filter(|id| !known.contains(*id)).collect()
}
