//! What happens in the pipeline, for those who watch it.

use std::sync::Arc;
use std::time::Duration;

use chrono::NaiveDateTime;

use crate::store::{HeldCount, HoldReason};

/// One thing that happened. `event_id` is the idempotency key, `message_id` the queue's; `reason`,
/// `detail` and `why` are sentences for a person.
#[allow(missing_docs)]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Observation<'a> {
    /// A poll came back. `oldest_age` is the greatest age of its messages since they were sent.
    Polled { queue: &'a str, received: usize, oldest_age: Option<Duration> },
    /// A poll failed.
    PollFailed { queue: &'a str, reason: &'a str },
    /// A batch was committed, or looked at and found to be known.
    Committed { event_type: &'a str, events: usize, took: Duration },
    /// The event was committed now, `waited` after it was received.
    Applied { event_type: &'a str, event_id: &'a str, message_id: &'a str, waited: Duration },
    /// The event was committed before; nothing changed.
    Duplicate { event_type: &'a str, event_id: &'a str, message_id: &'a str },
    /// A try failed and was rolled back.
    Failed { event_type: &'a str, event_id: &'a str, message_id: &'a str, reason: &'a str },
    /// The message was written to `held_message`.
    Held { queue: &'a str, message_id: &'a str, reason: HoldReason, detail: &'a str },
    /// The message was given up to the queue, which brings it again.
    Dropped { queue: &'a str, message_id: &'a str, why: &'a str },
    /// The message was deleted from the queue.
    Deleted { queue: &'a str, message_id: &'a str },
    /// The message could not be deleted; the queue brings it again.
    NotDeleted { queue: &'a str, message_id: &'a str, why: &'a str },
    /// A held message was tried again.
    HeldRetried { outcome: &'a str },
    /// What is held by now, by reason.
    HeldCounted { counts: &'a [HeldCount] },
    /// Claims of events before the horizon (UTC) were deleted.
    Purged { event_type: &'a str, horizon: NaiveDateTime, claims: usize },
    /// A delete request failed and will be sent again.
    DeleteFailed { queue: &'a str, reason: &'a str },
}

/// Called for each observation, on the actors' own threads: it must be quick and must not block.
pub type Observer = Arc<dyn Fn(&Observation<'_>) + Send + Sync>;
