//! `held_message`: messages that could not be applied, kept with their reason.

use chrono::NaiveDateTime;
use diesel::dsl::sql;
use diesel::prelude::*;
use diesel::result::QueryResult;
use diesel::sql_types::{BigInt, Text};

use super::connection::DbConnection;
use super::schema::held_message;

/// What becomes of a held message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeldState {
    /// Needs a person.
    Quarantined,
}

impl HeldState {
    /// The value of the column `state`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Quarantined => "quarantined",
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
    /// What becomes of it.
    pub state: HeldState,
    /// The kind of reason, a word.
    pub reason: &'static str,
    /// The reason in a sentence. NUL, which PostgreSQL cannot hold, is taken out.
    pub detail: String,
    /// The body, byte by byte as it was received.
    pub body: Vec<u8>,
    /// When the producer sent it, UTC.
    pub enqueued_at: Option<NaiveDateTime>,
}

/// Writes a message down. Another copy of what is held already is counted there; the same message
/// again changes nothing but the time.
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
                    h::state.eq(message.state.as_str()),
                    h::reason.eq(message.reason),
                    h::detail.eq(&detail),
                    h::body.eq(&message.body),
                    h::enqueued_at.eq(message.enqueued_at),
                    h::first_held_at.eq(now),
                    h::last_held_at.eq(now),
                ))
                .on_conflict($conflict)
                .do_update()
                .set((
                    h::copies.eq(h::copies
                        + sql::<BigInt>("CASE held_message.message_id WHEN ")
                            .bind::<Text, _>(&message.message_id)
                            .sql(" THEN 0 ELSE 1 END")),
                    h::message_id.eq(&message.message_id),
                    h::reason.eq(message.reason),
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
