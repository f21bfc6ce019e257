//! `held_message`: messages that could not be applied, kept with their reason.

mod browse;
mod discard;
mod retry;

use chrono::NaiveDateTime;
use diesel::dsl::sql;
use diesel::prelude::*;
use diesel::result::QueryResult;
use diesel::sql_types::{BigInt, Text};

use super::connection::DbConnection;
use super::schema::held_message;

pub use browse::{HeldCount, HeldFilter, HeldMessage, find_held, held_counts, list_held};
pub use discard::{Discard, discard};
pub use retry::{due, lease, postpone, quarantine, release, schedule};

/// What becomes of a held message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeldState {
    /// Is tried again from the table, with growing delays.
    Retrying,
    /// Needs a person.
    Quarantined,
}

impl HeldState {
    /// The value of the column `state`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Retrying => "retrying",
            Self::Quarantined => "quarantined",
        }
    }
}

/// Why a message is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HoldReason {
    /// The body is no event.
    Malformed,
    /// No applier for its event type.
    UnknownType,
    /// The event id was applied before with another payload.
    Conflict,
    /// The applier or the schema refused it.
    Rejected,
    /// It failed as often as it may in one process.
    Failing,
    /// It could not be applied before its queue would have dropped it.
    Rescued,
    /// It failed as often as it may from the table, too.
    RetriesExhausted,
    /// It is older than the de-duplication horizon.
    PastHorizon,
}

impl HoldReason {
    /// All reasons.
    pub const ALL: [Self; 8] = [
        Self::Malformed,
        Self::UnknownType,
        Self::Conflict,
        Self::Rejected,
        Self::Failing,
        Self::Rescued,
        Self::RetriesExhausted,
        Self::PastHorizon,
    ];

    /// The value of the column `reason`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::UnknownType => "unknown_type",
            Self::Conflict => "conflict",
            Self::Rejected => "rejected",
            Self::Failing => "failing",
            Self::Rescued => "rescued",
            Self::RetriesExhausted => "retries_exhausted",
            Self::PastHorizon => "past_horizon",
        }
    }

    /// What becomes of a message that is held for this reason.
    pub fn state(self) -> HeldState {
        match self {
            Self::Failing | Self::Rescued => HeldState::Retrying,
            _ => HeldState::Quarantined,
        }
    }
}

/// A message to be held.
#[derive(Debug, Clone)]
pub struct NewHeldMessage {
    /// The queue it came from.
    pub queue: String,
    /// Equal for copies of the same thing: they fold into one row. 32 bytes.
    pub hold_key: Vec<u8>,
    /// The message's id.
    pub message_id: String,
    /// The event's id, where one could be read.
    pub event_id: Option<String>,
    /// The event's type, where one could be read.
    pub event_type: Option<String>,
    /// The kind of reason; it decides what becomes of the message.
    pub reason: HoldReason,
    /// When it is tried again, UTC, if it is retrying.
    pub next_retry_at: Option<NaiveDateTime>,
    /// The reason in a sentence. NUL, which PostgreSQL cannot hold, is taken out.
    pub detail: String,
    /// The body, byte by byte as it was received.
    pub body: Vec<u8>,
    /// When the producer sent it, UTC.
    pub enqueued_at: Option<NaiveDateTime>,
}

/// Writes a message down. Another copy of what is held already is counted there, and what is said of it
/// last counts; the same message again changes nothing but that.
///
/// # Errors
/// The database's.
pub fn hold(
    connection: &mut DbConnection,
    consumer: &str,
    message: &NewHeldMessage,
) -> QueryResult<()> {
    use held_message as h;
    let now = chrono::Utc::now().naive_utc();
    let detail = message.detail.replace('\0', "\u{fffd}");
    macro_rules! upsert {
        ($connection:expr, $conflict:expr) => {
            diesel::insert_into(h::table)
                .values((
                    h::consumer.eq(consumer),
                    h::queue.eq(&message.queue),
                    h::hold_key.eq(&message.hold_key),
                    h::message_id.eq(&message.message_id),
                    h::event_id.eq(&message.event_id),
                    h::event_type.eq(&message.event_type),
                    h::state.eq(message.reason.state().as_str()),
                    h::reason.eq(message.reason.as_str()),
                    h::detail.eq(&detail),
                    h::body.eq(&message.body),
                    h::enqueued_at.eq(message.enqueued_at),
                    h::first_held_at.eq(now),
                    h::last_held_at.eq(now),
                    h::next_retry_at.eq(message.next_retry_at),
                ))
                .on_conflict($conflict)
                .do_update()
                .set((
                    h::copies.eq(h::copies
                        + sql::<BigInt>("CASE held_message.message_id WHEN ")
                            .bind::<Text, _>(&message.message_id)
                            .sql(" THEN 0 ELSE 1 END")),
                    h::message_id.eq(&message.message_id),
                    h::state.eq(message.reason.state().as_str()),
                    h::reason.eq(message.reason.as_str()),
                    h::next_retry_at.eq(message.next_retry_at),
                    h::detail.eq(&detail),
                    h::last_held_at.eq(now),
                ))
                .execute($connection)
        };
    }
    match connection {
        #[cfg(feature = "sqlite")]
        DbConnection::Sqlite(inner) => upsert!(inner, (h::consumer, h::queue, h::hold_key)),
        #[cfg(feature = "postgres")]
        DbConnection::Postgres(inner) => upsert!(inner, (h::consumer, h::queue, h::hold_key)),
        // The table has one unique key beside the generated id, so no other conflict can be meant.
        #[cfg(feature = "mysql")]
        DbConnection::Mysql(inner) => upsert!(inner, diesel::dsl::DuplicatedKeys),
    }
    .map(drop)
}
