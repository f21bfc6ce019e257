//! Trying a held message again: the same transaction and comparison as for a delivery.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use chrono::{NaiveDateTime, TimeDelta, Utc};

use super::transaction::{Application, Candidate, Verdict, apply_batch};
use crate::event::{Event, EventReader};
use crate::store::{
    HeldMessage, HoldReason, Store, TransactionError, find_held, postpone, quarantine, release,
};

/// When held messages are tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetrySchedule {
    /// The first delay; each is twice the one before.
    pub first: Duration,
    /// The longest delay.
    pub longest: Duration,
    /// Tries from the table; then the message is left to a person.
    pub max_retries: u32,
}

impl RetrySchedule {
    /// When to try again after `attempts` tries from the table, UTC.
    pub fn next(&self, attempts: u32, now: NaiveDateTime) -> NaiveDateTime {
        let doubled = self.first.saturating_mul(1_u32.checked_shl(attempts).unwrap_or(u32::MAX));
        let delay = TimeDelta::from_std(doubled.min(self.longest)).unwrap_or(TimeDelta::MAX);
        now.checked_add_signed(delay).unwrap_or(now)
    }
}

/// How a try ended; what is no end is written to the message's row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RetryOutcome {
    /// The event is committed, and the message no longer held.
    Applied,
    /// The event was committed before, and the message is no longer held.
    Duplicate,
    /// It is left to a person.
    Quarantined(HoldReason, String),
    /// It will be tried again.
    Postponed(String),
    /// It is no longer held.
    Gone,
}

impl RetryOutcome {
    /// The outcome in a word.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Duplicate => "duplicate",
            Self::Quarantined(..) => "quarantined",
            Self::Postponed(_) => "postponed",
            Self::Gone => "gone",
        }
    }
}

/// What a retry needs to know.
pub struct HeldRetry {
    /// Whose messages.
    pub consumer: String,
    /// The database.
    pub store: Store,
    /// By event type.
    pub applications: BTreeMap<String, Arc<Application>>,
    /// By queue.
    pub readers: HashMap<String, EventReader>,
    /// When to try again.
    pub schedule: RetrySchedule,
}

impl HeldRetry {
    /// Tries the message once. Blocks.
    ///
    /// # Errors
    /// The database cannot be used; nothing has changed, or the event is committed and the message
    /// still held, which another try finds out.
    pub fn retry(&self, id: i64, may_be_past_horizon: bool) -> Result<RetryOutcome, String> {
        let found = self
            .store
            .transact_here(|tx| find_held(tx, &self.consumer, id))
            .map_err(|error| error.to_string())?;
        let Some(message) = found else { return Ok(RetryOutcome::Gone) };
        let outcome = match self.open(&message) {
            Ok((event, application)) => self
                .decide(&message, self.apply(&message, &event, application, may_be_past_horizon)),
            Err((reason, detail)) => RetryOutcome::Quarantined(reason, detail),
        };
        self.write_down(&message, &outcome).map_err(|error| error.to_string())?;
        Ok(outcome)
    }

    fn open(&self, message: &HeldMessage) -> Result<(Event, &Application), (HoldReason, String)> {
        let malformed = |detail: String| (HoldReason::Malformed, detail);
        let Some(reader) = self.readers.get(&message.queue) else {
            let detail = format!("the queue {:?} is not configured", message.queue);
            return Err((HoldReason::UnknownType, detail));
        };
        let body = std::str::from_utf8(&message.body)
            .map_err(|error| malformed(format!("the body is not UTF-8: {error}")))?;
        let event = reader.read(body).map_err(|error| malformed(error.0))?;
        match self.applications.get(&event.event_type) {
            Some(application) => Ok((event, application)),
            None => {
                let detail = format!("no applier for the event type {:?}", event.event_type);
                Err((HoldReason::UnknownType, detail))
            }
        }
    }

    fn apply(
        &self,
        message: &HeldMessage,
        event: &Event,
        application: &Application,
        may_be_past_horizon: bool,
    ) -> Verdict {
        let candidate = Candidate {
            event,
            partition_key: None,
            queue: &message.queue,
            message_id: &message.message_id,
            attempt: u32::try_from(message.attempts).unwrap_or(0) + 1,
            may_be_past_horizon,
        };
        apply_batch(application, &[candidate]).verdicts.remove(0)
    }

    fn decide(&self, message: &HeldMessage, verdict: Verdict) -> RetryOutcome {
        let left_to_a_person = |reason, detail| RetryOutcome::Quarantined(reason, detail);
        match verdict {
            Verdict::Applied => RetryOutcome::Applied,
            Verdict::Duplicate => RetryOutcome::Duplicate,
            Verdict::Conflict(detail) => left_to_a_person(HoldReason::Conflict, detail),
            Verdict::Rejected(detail) => left_to_a_person(HoldReason::Rejected, detail),
            Verdict::PastHorizon(detail) => left_to_a_person(HoldReason::PastHorizon, detail),
            Verdict::Failed(detail) => match attempts_after_failure(message) {
                tries if tries >= self.schedule.max_retries => left_to_a_person(
                    HoldReason::RetriesExhausted,
                    format!("it failed {tries} times from the table, at last with: {detail}"),
                ),
                _ => RetryOutcome::Postponed(detail),
            },
            Verdict::Contention(detail) | Verdict::Unavailable(detail) => {
                RetryOutcome::Postponed(detail)
            }
        }
    }

    fn write_down(
        &self,
        message: &HeldMessage,
        outcome: &RetryOutcome,
    ) -> Result<(), TransactionError> {
        let id = message.id;
        self.store.transact_here(|tx| match outcome {
            RetryOutcome::Applied | RetryOutcome::Duplicate => release(tx, id),
            RetryOutcome::Quarantined(reason, detail) => quarantine(tx, id, *reason, detail),
            RetryOutcome::Postponed(detail) => {
                let attempts = attempts_after_failure(message);
                let next = self.schedule.next(attempts, Utc::now().naive_utc());
                postpone(tx, id, i32::try_from(attempts).unwrap_or(i32::MAX), next, detail)
            }
            RetryOutcome::Gone => Ok(()),
        })
    }
}

fn attempts_after_failure(message: &HeldMessage) -> u32 {
    u32::try_from(message.attempts).unwrap_or(0).saturating_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_up_to_the_longest() {
        let schedule = RetrySchedule {
            first: Duration::from_secs(10),
            longest: Duration::from_secs(900),
            max_retries: 20,
        };
        let now = Utc::now().naive_utc();
        let delays =
            [0, 1, 2, 6, 7, 40, u32::MAX].map(|n| (schedule.next(n, now) - now).num_seconds());
        assert_eq!(delays, [10, 20, 40, 640, 900, 900, 900]);
    }
}
