//! What happens in the pipeline, for those who watch it.

use std::sync::Arc;

use super::HoldReason;

/// One thing that happened. `event_id` is the idempotency key, `message_id` the queue's; `reason`,
/// `detail` and `why` are sentences for a person.
#[allow(missing_docs)]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Observation<'a> {
    /// The event was committed now.
    Applied { event_id: &'a str, message_id: &'a str },
    /// The event was committed before; nothing changed.
    Duplicate { event_id: &'a str, message_id: &'a str },
    /// A try failed and was rolled back.
    Failed { event_id: &'a str, message_id: &'a str, reason: &'a str },
    /// The message was written to `held_message`.
    Held { message_id: &'a str, reason: HoldReason, detail: &'a str },
    /// The message was given up to the queue, which brings it again.
    Dropped { message_id: &'a str, why: &'a str },
    /// The message was deleted from the queue.
    Deleted { message_id: &'a str },
    /// The message could not be deleted; the queue brings it again.
    NotDeleted { message_id: &'a str, why: &'a str },
}

/// Called for each observation, on the actors' own threads: it must be quick and must not block.
pub type Observer = Arc<dyn Fn(&Observation<'_>) + Send + Sync>;
