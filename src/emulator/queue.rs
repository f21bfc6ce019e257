//! One queue as a pure state machine: no I/O, no clock. Each call is handed the time, in
//! milliseconds since the Unix epoch, which must not run backwards.
//!
//! Semantics follow the TDMQ for CMQ documentation (product 1111): a received message is invisible
//! for the visibility time-out, only the handle of its latest receive deletes it, and a message that
//! is not deleted within the maximum unacknowledged time is acknowledged by the server itself.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

/// Milliseconds since the Unix epoch.
pub type UnixMillis = u64;

/// Most messages of a queue that may be invisible at a time (documentation, product 1111).
pub const MAX_INVISIBLE_MESSAGES: usize = 100_000;

/// What a queue is set to. Ranges are checked by [`Attributes::check`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attributes {
    /// Default long poll in seconds, 0 to 30.
    pub polling_wait_seconds: u32,
    /// How long a received message stays invisible, in seconds, 1 to 43,200.
    pub visibility_timeout_seconds: u32,
    /// Largest body in bytes, 1,024 to 1,048,576.
    pub max_message_bytes: u32,
    /// Maximum unacknowledged time in seconds, 30 to 1,296,000. On the wire it is
    /// `msgRetentionSeconds`; TDMQ allows 43,200 at most, the Python SDK's default is 345,600.
    pub max_unacked_seconds: u32,
    /// How long deleted messages can be rewound to, in seconds, 0 (off) to 1,296,000.
    pub rewind_seconds: u32,
    /// Most messages that the queue holds.
    pub max_messages: u32,
}

impl Default for Attributes {
    fn default() -> Self {
        Self {
            polling_wait_seconds: 0,
            visibility_timeout_seconds: 30,
            max_message_bytes: 1_048_576,
            max_unacked_seconds: 3_600,
            rewind_seconds: 0,
            max_messages: 10_000_000,
        }
    }
}

impl Attributes {
    /// The wire name of the first attribute that is out of its range.
    pub fn check(&self) -> Result<(), &'static str> {
        let ranges = [
            ("pollingWaitSeconds", self.polling_wait_seconds, 0, 30),
            ("visibilityTimeout", self.visibility_timeout_seconds, 1, 43_200),
            ("maxMsgSize", self.max_message_bytes, 1_024, 1_048_576),
            ("msgRetentionSeconds", self.max_unacked_seconds, 30, 1_296_000),
            ("rewindSeconds", self.rewind_seconds, 0, 1_296_000),
            ("maxMsgHeapNum", self.max_messages, 1, 1_000_000_000),
        ];
        match ranges.iter().find(|(_, value, low, high)| !(low..=high).contains(&value)) {
            Some((name, ..)) => Err(name),
            None => Ok(()),
        }
    }
}

/// A message was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The body is longer than the queue's `maxMsgSize`.
    #[error("message body is longer than maxMsgSize")]
    BodyTooLong,
    /// The body is empty.
    #[error("message body is empty")]
    BodyEmpty,
    /// The queue holds as many messages as it may.
    #[error("the queue is full")]
    QueueFull,
}

/// A handle deletes nothing: it never existed, its message was received again, became visible again,
/// or is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the receipt handle is invalid or has expired")]
pub struct DeadHandle;

/// What one receive hands out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received {
    /// The same over redeliveries.
    pub message_id: String,
    /// The body as it was sent.
    pub body: String,
    /// The handle of this receive.
    pub receipt_handle: String,
    /// When it was sent.
    pub sent_at: UnixMillis,
    /// When it was first received.
    pub first_received_at: UnixMillis,
    /// When it becomes visible again.
    pub next_visible_at: UnixMillis,
    /// How often it was received, this time included.
    pub receive_count: u32,
}

/// How many messages are in which state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Can be received now.
    pub active: usize,
    /// Received and neither deleted nor visible again.
    pub inactive: usize,
    /// Sent with a delay that is not over.
    pub delayed: usize,
    /// Deleted, but can be rewound to.
    pub rewindable: usize,
    /// Acknowledged by the server itself since the queue was made, that is: lost to the consumer.
    pub expired: u64,
}

type Sequence = u64;

struct Stored {
    id: String,
    body: String,
    sent_at: UnixMillis,
    /// Start of the maximum unacknowledged time: the send, or the rewind.
    unacked_since: UnixMillis,
    first_received_at: Option<UnixMillis>,
    receive_count: u32,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Active,
    Delayed { until: UnixMillis },
    Invisible { until: UnixMillis, handle: u64 },
}

struct Acknowledged {
    at: UnixMillis,
    message: Stored,
}

/// One queue.
pub struct Queue {
    attributes: Attributes,
    messages: BTreeMap<Sequence, Stored>,
    active: BTreeSet<Sequence>,
    /// Delayed and invisible messages by the time at which they become active.
    waking: BTreeSet<(UnixMillis, Sequence)>,
    /// Messages by the start of their maximum unacknowledged time.
    unacked: BTreeSet<(UnixMillis, Sequence)>,
    handles: HashMap<u64, Sequence>,
    acknowledged: VecDeque<Acknowledged>,
    next_sequence: Sequence,
    next_handle: u64,
    expired: u64,
}

impl Queue {
    /// An empty queue.
    pub fn new(attributes: Attributes) -> Self {
        Self {
            attributes,
            messages: BTreeMap::new(),
            active: BTreeSet::new(),
            waking: BTreeSet::new(),
            unacked: BTreeSet::new(),
            handles: HashMap::new(),
            acknowledged: VecDeque::new(),
            next_sequence: 0,
            next_handle: 1,
            expired: 0,
        }
    }

    /// What the queue is set to.
    pub fn attributes(&self) -> &Attributes {
        &self.attributes
    }

    /// Sets the queue anew. A message that is invisible already keeps its time.
    pub fn set_attributes(&mut self, attributes: Attributes) {
        self.attributes = attributes;
    }

    /// Takes a message in; it can be received `delay_seconds` later.
    ///
    /// # Errors
    /// The body is empty or too long, or the queue is full.
    pub fn send(
        &mut self,
        now: UnixMillis,
        id: String,
        body: String,
        delay_seconds: u32,
    ) -> Result<(), SendError> {
        self.advance(now);
        if body.is_empty() {
            return Err(SendError::BodyEmpty);
        }
        if body.len() > self.attributes.max_message_bytes as usize {
            return Err(SendError::BodyTooLong);
        }
        if self.messages.len() >= self.attributes.max_messages as usize {
            return Err(SendError::QueueFull);
        }
        let state = match delay_seconds {
            0 => State::Active,
            delay => State::Delayed { until: now + seconds(delay) },
        };
        self.insert(Stored {
            id,
            body,
            sent_at: now,
            unacked_since: now,
            first_received_at: None,
            receive_count: 0,
            state,
        });
        Ok(())
    }

    /// Hands out up to `limit` active messages, oldest first, and makes them invisible.
    pub fn receive(&mut self, now: UnixMillis, limit: usize) -> Vec<Received> {
        self.advance(now);
        let room = MAX_INVISIBLE_MESSAGES.saturating_sub(self.handles.len());
        let sequences: Vec<_> = self.active.iter().copied().take(limit.min(room)).collect();
        sequences.into_iter().map(|sequence| self.hand_out(now, sequence)).collect()
    }

    /// Deletes the message whose latest receive gave `receipt_handle`.
    ///
    /// # Errors
    /// The handle is dead.
    pub fn delete(&mut self, now: UnixMillis, receipt_handle: &str) -> Result<(), DeadHandle> {
        self.advance(now);
        let handle = parse_handle(receipt_handle).ok_or(DeadHandle)?;
        let sequence = *self.handles.get(&handle).ok_or(DeadHandle)?;
        self.acknowledge(now, sequence);
        Ok(())
    }

    /// Makes messages that were sent at or after `from` and deleted within the rewind window active
    /// again, each with its old id. Returns how many.
    pub fn rewind(&mut self, now: UnixMillis, from: UnixMillis) -> usize {
        self.advance(now);
        let (again, kept): (VecDeque<_>, VecDeque<_>) = std::mem::take(&mut self.acknowledged)
            .into_iter()
            .partition(|acknowledged| acknowledged.message.sent_at >= from);
        self.acknowledged = kept;
        let count = again.len();
        for Acknowledged { message, .. } in again {
            self.insert(Stored { state: State::Active, unacked_since: now, ..message });
        }
        count
    }

    /// Lets time pass: what is due becomes active, expires, or leaves the rewind window.
    pub fn advance(&mut self, now: UnixMillis) {
        self.expire(now);
        while let Some(&(until, sequence)) = self.waking.first().filter(|(until, _)| *until <= now)
        {
            self.waking.remove(&(until, sequence));
            let message = self.messages.get_mut(&sequence).expect("a waking message is stored");
            if let State::Invisible { handle, .. } = message.state {
                self.handles.remove(&handle);
            }
            message.state = State::Active;
            self.active.insert(sequence);
        }
        let window = seconds(self.attributes.rewind_seconds);
        while self.acknowledged.front().is_some_and(|first| first.at + window < now) {
            self.acknowledged.pop_front();
        }
    }

    /// When [`Self::advance`] next has something to do for a waiting receiver.
    pub fn next_wake(&self) -> Option<UnixMillis> {
        self.waking.first().map(|(until, _)| *until)
    }

    /// How many messages are in which state.
    pub fn counts(&mut self, now: UnixMillis) -> Counts {
        self.advance(now);
        let active = self.active.len();
        let inactive = self.handles.len();
        Counts {
            active,
            inactive,
            delayed: self.messages.len() - active - inactive,
            rewindable: self.acknowledged.len(),
            expired: self.expired,
        }
    }

    /// When the oldest message that is not deleted was sent.
    pub fn oldest_sent_at(&self) -> Option<UnixMillis> {
        self.messages.values().next().map(|message| message.sent_at)
    }

    fn insert(&mut self, message: Stored) {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        match message.state {
            State::Active => _ = self.active.insert(sequence),
            State::Delayed { until } | State::Invisible { until, .. } => {
                self.waking.insert((until, sequence));
            }
        }
        self.unacked.insert((message.unacked_since, sequence));
        self.messages.insert(sequence, message);
    }

    fn hand_out(&mut self, now: UnixMillis, sequence: Sequence) -> Received {
        let handle = self.next_handle;
        self.next_handle += 1;
        let until = now + seconds(self.attributes.visibility_timeout_seconds);
        self.active.remove(&sequence);
        self.waking.insert((until, sequence));
        self.handles.insert(handle, sequence);
        let message = self.messages.get_mut(&sequence).expect("an active message is stored");
        message.state = State::Invisible { until, handle };
        message.receive_count += 1;
        Received {
            message_id: message.id.clone(),
            body: message.body.clone(),
            receipt_handle: format_handle(handle, &message.id),
            sent_at: message.sent_at,
            first_received_at: *message.first_received_at.get_or_insert(now),
            next_visible_at: until,
            receive_count: message.receive_count,
        }
    }

    fn expire(&mut self, now: UnixMillis) {
        let limit = seconds(self.attributes.max_unacked_seconds);
        while let Some(&(since, sequence)) = self.unacked.first() {
            if since + limit > now {
                break;
            }
            self.acknowledge(now, sequence);
            self.expired += 1;
        }
    }

    fn acknowledge(&mut self, now: UnixMillis, sequence: Sequence) {
        let message = self.messages.remove(&sequence).expect("an unacknowledged message is stored");
        self.unacked.remove(&(message.unacked_since, sequence));
        match message.state {
            State::Active => _ = self.active.remove(&sequence),
            State::Delayed { until } => _ = self.waking.remove(&(until, sequence)),
            State::Invisible { until, handle } => {
                self.waking.remove(&(until, sequence));
                self.handles.remove(&handle);
            }
        }
        if self.attributes.rewind_seconds > 0 {
            self.acknowledged.push_back(Acknowledged { at: now, message });
        }
    }
}

fn seconds(seconds: u32) -> UnixMillis {
    UnixMillis::from(seconds) * 1_000
}

/// Handles use each kind of sign that the SDKs allow, so that clients are tried on them.
fn format_handle(handle: u64, message_id: &str) -> String {
    format!("{handle}:{message_id}#%_")
}

fn parse_handle(text: &str) -> Option<u64> {
    text.split_once(':')?.0.parse().ok()
}

#[cfg(test)]
mod tests;
