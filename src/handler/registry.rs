//! The appliers by event type, their types erased, so that the pipeline knows no concrete one.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Applier, ApplyError, EventContext, Outcome};
use crate::event::{Pointer, PointerError};
use crate::store::DbConnection;

/// How events of one type are worked on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// Transactions at the same time; `None` lets the service choose.
    pub shards: Option<usize>,
    /// Whether one statement takes a whole batch. Then a few large transactions do more than many small
    /// ones.
    pub works_on_sets: bool,
    /// Events that one transaction takes at most.
    pub max_batch_events: usize,
    /// Bytes of payloads that one transaction takes at most; a single event may have more.
    pub max_batch_bytes: usize,
    /// Tries before an event is held.
    pub max_attempts: u32,
    /// Where in the payload it says whose event it is.
    pub partition_key: Option<Pointer>,
    /// Whether the payload is kept beside the claim.
    pub keep_payload: bool,
}

/// An applier of any kind.
pub trait ErasedApplier: Send + Sync {
    /// How its events are worked on.
    fn policy(&self) -> Policy;

    /// Applies the events of one transaction, all or none of them.
    ///
    /// # Errors
    /// As [`Applier::apply_batch`].
    fn apply(
        &self,
        tx: &mut DbConnection,
        events: &[EventContext<'_>],
    ) -> Result<Outcome, ApplyError>;
}

struct Typed<A> {
    applier: A,
    partition_key: Option<Pointer>,
}

impl<A: Applier> ErasedApplier for Typed<A> {
    fn policy(&self) -> Policy {
        Policy {
            shards: A::SHARDS,
            works_on_sets: false,
            max_batch_events: A::MAX_BATCH_EVENTS.max(1),
            max_batch_bytes: A::MAX_BATCH_BYTES,
            max_attempts: A::MAX_ATTEMPTS.max(1),
            partition_key: self.partition_key.clone(),
            keep_payload: A::KEEP_PAYLOAD,
        }
    }

    fn apply(
        &self,
        tx: &mut DbConnection,
        events: &[EventContext<'_>],
    ) -> Result<Outcome, ApplyError> {
        let parsed = events.iter().map(|event| Ok((*event, event.payload.parse()?)));
        let mut parsed: Vec<(EventContext<'_>, A::Payload)> =
            match parsed.collect::<Result<_, serde_json::Error>>() {
                Ok(parsed) => parsed,
                Err(error) => {
                    return Ok(Outcome::Rejected(format!(
                        "the payload does not fit what the applier expects: {error}"
                    )));
                }
            };
        match parsed.len() {
            0 => Ok(Outcome::Applied),
            1 => {
                let (event, payload) = parsed.remove(0);
                self.applier.apply(tx, &event, payload)
            }
            _ => self.applier.apply_batch(tx, parsed),
        }
    }
}

/// An applier that cannot be registered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    /// Two appliers for one event type.
    #[error("there are two appliers for the event type {0:?}; keep one of them")]
    Twice(String),
    /// `PARTITION_KEY` is no place in a payload.
    #[error("PARTITION_KEY of the applier for the event type {0:?}: {1}")]
    PartitionKey(String, PointerError),
}

/// The appliers of a service.
#[derive(Default, Clone)]
pub struct Registry(BTreeMap<String, Arc<dyn ErasedApplier>>);

impl Registry {
    /// Adds an applier written in Rust.
    ///
    /// # Errors
    /// The event type has an applier already, or the partition key is no JSON Pointer.
    pub fn register<A: Applier>(&mut self, applier: A) -> Result<(), RegistryError> {
        let refuse = |error| RegistryError::PartitionKey(A::EVENT_TYPE.to_owned(), error);
        let partition_key = A::PARTITION_KEY.map(str::parse).transpose().map_err(refuse)?;
        self.insert(A::EVENT_TYPE, Arc::new(Typed { applier, partition_key }))
    }

    /// Adds an applier of any kind.
    ///
    /// # Errors
    /// The event type has an applier already.
    pub fn insert(
        &mut self,
        event_type: &str,
        applier: Arc<dyn ErasedApplier>,
    ) -> Result<(), RegistryError> {
        if self.0.contains_key(event_type) {
            return Err(RegistryError::Twice(event_type.to_owned()));
        }
        self.0.insert(event_type.to_owned(), applier);
        Ok(())
    }

    /// The appliers by event type.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Arc<dyn ErasedApplier>)> {
        self.0.iter().map(|(event_type, applier)| (event_type.as_str(), applier))
    }

    /// How many event types have an applier.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no event type has an applier.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
