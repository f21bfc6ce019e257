//! What passes between the actors.

use std::sync::Arc;

use chrono::{DateTime, NaiveDateTime};
use tokio::time::Instant;

use super::budget::{Permit, ShareToken};
use super::link::Link;
use super::{Acker, Health, Observer};
use crate::cmq::Message;
use crate::event::{Event, EventReader};
use crate::store::HoldReason;

/// What is the same for all deliveries of a queue.
pub struct QueueContext {
    /// The queue's name.
    pub name: String,
    /// Reads events out of its bodies.
    pub reader: EventReader,
    /// Who deletes this queue's messages.
    pub acker: Link<Acker>,
    /// Who is told what happens.
    pub observer: Observer,
    /// Where it is said whether the queue can be polled.
    pub health: Health,
}

/// A received message on its way. Dropping it leaves it to the queue, which brings it again.
pub struct Delivery {
    /// Where it came from.
    pub queue: Arc<QueueContext>,
    /// The message.
    pub message: Message,
    /// When it was received.
    pub received_at: Instant,
    /// When its receipt handle is no longer to be relied on.
    pub deadline: Instant,
    /// From when on it is moved to safety if it cannot be applied: before the queue drops it.
    pub rescue_at: Option<Instant>,
    /// Its place in the queue's budget.
    pub permit: Permit,
}

impl Delivery {
    /// Whether work on it is pointless, for the queue hands it out again about now.
    pub fn is_past_deadline(&self) -> bool {
        Instant::now() >= self.deadline
    }

    /// Whether the queue is about to drop it for good.
    pub fn is_expiring(&self) -> bool {
        self.rescue_at.is_some_and(|at| Instant::now() >= at)
    }

    /// Whether over half of the time until its deadline is gone.
    pub fn has_waited_long(&self) -> bool {
        let allowed = self.deadline.saturating_duration_since(self.received_at);
        self.received_at.elapsed() > allowed / 2
    }

    /// When the producer sent it, UTC, if the queue says so.
    pub fn enqueued_at(&self) -> Option<NaiveDateTime> {
        let seconds = Some(self.message.enqueue_time).filter(|seconds| *seconds > 0)?;
        DateTime::from_timestamp(seconds, 0).map(|time| time.naive_utc())
    }
}

/// A delivery with its event, for an Applier.
#[derive(actix::Message)]
#[rtype(result = "()")]
pub struct Work {
    /// The event.
    pub event: Event,
    /// Whose event it is, where its event type declares that.
    pub partition_key: Option<String>,
    /// What brought it.
    pub delivery: Delivery,
    /// Failed tries so far.
    pub failures: u32,
    /// The event type's share of the budget.
    pub share: ShareToken,
}

impl Work {
    /// Its part of a batch's limit in bytes.
    pub fn payload_bytes(&self) -> usize {
        self.event.payload.as_str().len()
    }
}

/// A delivery that cannot be applied, for the Quarantine.
#[derive(actix::Message)]
#[rtype(result = "()")]
pub struct Hold {
    /// What brought it.
    pub delivery: Delivery,
    /// Its event, if it has one.
    pub event: Option<Event>,
    /// The kind of reason.
    pub reason: HoldReason,
    /// The reason in a sentence.
    pub detail: String,
}

/// A delivery whose effect or copy is durable, for the Acker.
#[derive(actix::Message)]
#[rtype(result = "()")]
pub struct Acknowledge {
    /// The message to delete.
    pub message_id: String,
    /// The handle of this receive.
    pub receipt_handle: String,
    /// When the handle is no longer to be relied on.
    pub deadline: Instant,
    /// Kept until the message is deleted, so that undeleted ones stay bounded.
    pub permit: Permit,
}

impl Acknowledge {
    /// Sends a delivery to its queue's Acker; its body is freed.
    pub fn send(delivery: Delivery) {
        let Delivery { queue, message, deadline, permit, .. } = delivery;
        let (message_id, receipt_handle) = (message.msg_id, message.receipt_handle);
        queue.acker.send(Self { message_id, receipt_handle, deadline, permit });
    }
}
