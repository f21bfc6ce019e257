//! What is done with an event: the [`Applier`] trait, the registry of appliers, and appliers that are
//! declared in the configuration as SQL.

mod declared;
mod parameter;
mod registry;

use chrono::{DateTime, Utc};
use serde::de::DeserializeOwned;

use crate::event::{Event, Payload};
use crate::store::DbConnection;

pub use declared::{DeclaredApplier, DeclaredApplierError, DeclaredApplierSpec, StatementSpec};
pub use parameter::ParameterSpec;
pub use registry::{ErasedApplier, Policy, Registry, RegistryError};

/// Events that one transaction takes at most, unless the applier says otherwise.
pub const DEFAULT_MAX_BATCH_EVENTS: usize = 64;
/// The same where every statement takes the whole batch.
pub const DEFAULT_MAX_SET_EVENTS: usize = 256;
/// Bytes of payloads that one transaction takes at most, unless the applier says otherwise: small enough
/// for one statement's parameters (MariaDB's default `max_allowed_packet` is 16 MiB).
pub const DEFAULT_MAX_BATCH_BYTES: usize = 2 << 20;
/// How often an event is tried before it is held, unless the applier says otherwise.
pub const DEFAULT_MAX_ATTEMPTS: u32 = 5;

/// Applies the events of one type.
///
/// An applier runs in the transaction that also holds the event's claim: what it does through `tx`
/// happens once, or not at all. What it does elsewhere (files, other services) is not covered and may
/// happen more than once; write an outbox row instead. It runs on a thread that may block.
pub trait Applier: Send + Sync + 'static {
    /// The event type that is applied here.
    const EVENT_TYPE: &'static str;
    /// How many transactions may apply events of this type at the same time; by default the
    /// service divides its connections among the types.
    const SHARDS: Option<usize> = None;
    /// Events that one transaction takes at most.
    const MAX_BATCH_EVENTS: usize = DEFAULT_MAX_BATCH_EVENTS;
    /// Bytes of payloads that one transaction takes at most; a single event may have more.
    const MAX_BATCH_BYTES: usize = DEFAULT_MAX_BATCH_BYTES;
    /// How often an event is tried in one go when it fails by [`ApplyError::Retry`], by a panic, or by a
    /// database error that may be its own fault; then it is held, and tried again from the table.
    const MAX_ATTEMPTS: u32 = DEFAULT_MAX_ATTEMPTS;

    /// Where in the payload it says whose event it is (an account, an order), as a JSON Pointer. In one
    /// process, events with the same partition key are applied one after the other, by one shard;
    /// and every process applies a transaction's events in the keys' order. So transactions that change
    /// one row a key neither wait for each other within a process nor deadlock with another's.
    const PARTITION_KEY: Option<&'static str> = None;

    /// Whether the payload is kept beside the claim, so that a conflicting one can be compared with it.
    const KEEP_PAYLOAD: bool = false;

    /// The payload. An event whose payload does not fit this type is rejected.
    type Payload: DeserializeOwned;

    /// Applies one event. Return every database error: a transaction that went on after one may have
    /// ended on the server, and is then not committed.
    ///
    /// diesel does not keep its UPDATE statements and `sql_query` prepared, which costs a round trip
    /// each time; a [`crate::store::Statement`] stays prepared.
    ///
    /// # Errors
    /// An error rolls the event back. See [`ApplyError`] for what follows.
    fn apply(
        &self,
        tx: &mut DbConnection,
        event: &EventContext<'_>,
        payload: Self::Payload,
    ) -> Result<Outcome, ApplyError>;

    /// Applies the events of one transaction, all of them fresh and with distinct ids; by default one
    /// after the other. An applier that changes many rows by one statement is several times faster, all
    /// the more with large batches in few transactions: `MAX_BATCH_EVENTS = 256`, `SHARDS = Some(2)`.
    ///
    /// Whatever is not [`Outcome::Applied`] rolls all of them back; then each is applied by
    /// [`Self::apply`] in a transaction of its own, so that the event that is to blame is found.
    ///
    /// # Errors
    /// As [`Self::apply`].
    fn apply_batch(
        &self,
        tx: &mut DbConnection,
        events: Vec<(EventContext<'_>, Self::Payload)>,
    ) -> Result<Outcome, ApplyError> {
        for (event, payload) in events {
            if let rejected @ Outcome::Rejected(_) = self.apply(tx, &event, payload)? {
                return Ok(rejected);
            }
        }
        Ok(Outcome::Applied)
    }
}

/// What an applier may know of an event beside its payload.
#[derive(Debug, Clone, Copy)]
pub struct EventContext<'a> {
    /// The idempotency key.
    pub event_id: &'a str,
    /// The event's type.
    pub event_type: &'a str,
    /// When it happened, by the producer's word.
    pub occurred_at: Option<DateTime<Utc>>,
    /// The queue it came from.
    pub queue: &'a str,
    /// The message that brought it.
    pub message_id: &'a str,
    /// 1 at the first try in this process.
    pub attempt: u32,
    payload: &'a Payload,
}

impl<'a> EventContext<'a> {
    /// The context of `event`.
    pub fn new(event: &'a Event, queue: &'a str, message_id: &'a str, attempt: u32) -> Self {
        Self {
            event_id: &event.id,
            event_type: &event.event_type,
            occurred_at: event.occurred_at,
            queue,
            message_id,
            attempt,
            payload: &event.payload,
        }
    }
}

/// How an event ended that raised no error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The changes are to be committed.
    Applied,
    /// The business refuses the event, for the reason given: it is rolled back and held.
    Rejected(String),
}

/// Why an event could not be applied; it is rolled back.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// A database error: what follows depends on its class.
    #[error(transparent)]
    Database(#[from] diesel::result::Error),
    /// Something else is in the way for now: the event is retried with growing pauses, and held after
    /// [`Applier::MAX_ATTEMPTS`].
    #[error("{0}")]
    Retry(String),
}
