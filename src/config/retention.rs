//! `[[retention]]`: how long claims of an event type are kept.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;

use super::{Config, Problem, QueueConfig};
use crate::event::{EventTimeName, EventTimeRule, EventTimeSource};
use crate::pipeline::Retention;

const DAY_SECONDS: u64 = 86_400;
/// The longest maximum unacknowledged time that a queue can have (CMQ: 12 h).
const MAX_UNACKED_SECONDS: u32 = 43_200;
/// Bits below the time in most Snowflake numbers.
const DEFAULT_SNOWFLAKE_SHIFT_BITS: u32 = 22;

/// `[[retention]]`. Without one for its type, a claim is kept for ever.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetentionConfig {
    /// Whose claims.
    pub event_type: String,
    /// For how long an event is remembered after it happened, in days, 1 to 36,500. Must exceed the
    /// longest way that an event can come back.
    pub retention_days: u32,
    /// Where the time comes from that is fixed with an event's id.
    pub event_time: EventTimeName,
    /// The epoch of Snowflake numbers, in milliseconds since 1970.
    pub snowflake_epoch_millis: Option<u64>,
    /// Bits below the time in Snowflake numbers, 1 to 40.
    pub snowflake_shift_bits: Option<u32>,
    /// How far in the future an event's time may be, in seconds, 0 to 86,400.
    #[serde(default = "default_max_future_skew_seconds")]
    pub max_future_skew_seconds: u64,
    /// For how long the producer may send an event again, in days, 0 to 36,500.
    pub producer_retry_days: u32,
    /// For how long a message may be held before it is tried again, in days, 0 to 36,500.
    #[serde(default = "default_max_held_days")]
    pub max_held_days: u32,
}

fn default_max_future_skew_seconds() -> u64 {
    300
}

fn default_max_held_days() -> u32 {
    30
}

impl RetentionConfig {
    fn source(&self) -> EventTimeSource {
        match self.event_time {
            EventTimeName::OccurredAt => EventTimeSource::OccurredAt,
            EventTimeName::Uuidv7 => EventTimeSource::UuidV7,
            EventTimeName::Ulid => EventTimeSource::Ulid,
            EventTimeName::Snowflake => EventTimeSource::Snowflake {
                epoch_millis: self.snowflake_epoch_millis.unwrap_or(0),
                shift_bits: self.snowflake_shift_bits.unwrap_or(DEFAULT_SNOWFLAKE_SHIFT_BITS),
            },
        }
    }

    /// What is wrong: the key below the entry, and why.
    pub(super) fn problems(&self, queues: &[QueueConfig]) -> Vec<Problem> {
        let mut found = Vec::new();
        let mut add = |key: &str, reason: String| found.push(Problem { key: key.into(), reason });
        for (key, days) in [
            ("retention_days", self.retention_days),
            ("producer_retry_days", self.producer_retry_days),
            ("max_held_days", self.max_held_days),
        ] {
            if days > 36_500 {
                add(key, format!("it must be 36500 at most, and is {days}"));
            }
        }
        if self.max_future_skew_seconds > DAY_SECONDS {
            let given = self.max_future_skew_seconds;
            add("max_future_skew_seconds", format!("it must be 86400 at most, and is {given}"));
        }
        let is_snowflake = self.event_time == EventTimeName::Snowflake;
        if is_snowflake && self.snowflake_epoch_millis.is_none() {
            let reason = "it is needed: Snowflake numbers do not say when their time begins";
            add("snowflake_epoch_millis", reason.into());
        }
        for (key, is_given) in [
            ("snowflake_epoch_millis", self.snowflake_epoch_millis.is_some()),
            ("snowflake_shift_bits", self.snowflake_shift_bits.is_some()),
        ] {
            if is_given && !is_snowflake {
                add(key, "it is for event_time = \"snowflake\" only; remove it".into());
            }
        }
        if self.snowflake_shift_bits.is_some_and(|bits| !(1..=40).contains(&bits)) {
            add("snowflake_shift_bits", "it must be from 1 to 40".into());
        }
        if let Some(reason) = self.too_short(queues) {
            add("retention_days", reason);
        }
        found
    }

    /// Why the retention is no longer than the way that an event can come back.
    fn too_short(&self, queues: &[QueueConfig]) -> Option<String> {
        let unacked =
            |queue: &QueueConfig| queue.max_unacked_seconds.unwrap_or(MAX_UNACKED_SECONDS);
        let unacked = u64::from(queues.iter().map(unacked).max().unwrap_or(0));
        let rewind = u64::from(queues.iter().map(|queue| queue.rewind_seconds).max().unwrap_or(0));
        let held = u64::from(self.max_held_days) * DAY_SECONDS;
        let producer = u64::from(self.producer_retry_days) * DAY_SECONDS;
        let way_back = unacked + rewind + held + producer;
        let given = u64::from(self.retention_days) * DAY_SECONDS;
        let days = |seconds: u64| format!("{:.2}", seconds as f64 / DAY_SECONDS as f64);
        (given <= way_back).then(|| {
            format!(
                "it is {} days, and an event can come back for {} days: {} (longest \
                 max_unacked_seconds of a queue; {MAX_UNACKED_SECONDS} where not given) + {} (longest \
                 rewind_seconds of a queue) + {} (max_held_days) + {} (producer_retry_days); give more \
                 than that",
                days(given),
                days(way_back),
                days(unacked),
                days(rewind),
                days(held),
                days(producer),
            )
        })
    }
}

impl Config {
    /// Whose claims are deleted, and when.
    pub fn retention_rules(&self) -> Vec<Retention> {
        let rule = |config: &RetentionConfig| Retention {
            event_type: config.event_type.clone(),
            event_time: config.source(),
            keep_for: Duration::from_secs(u64::from(config.retention_days) * DAY_SECONDS),
        };
        self.retention.iter().map(rule).collect()
    }

    /// How event types' times are read.
    pub fn event_times(&self) -> Arc<HashMap<String, EventTimeRule>> {
        let rule = |config: &RetentionConfig| {
            let max_future_skew = Duration::from_secs(config.max_future_skew_seconds);
            (config.event_type.clone(), EventTimeRule { source: config.source(), max_future_skew })
        };
        Arc::new(self.retention.iter().map(rule).collect())
    }
}
