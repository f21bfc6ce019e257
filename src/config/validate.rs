//! What the types cannot say.

use std::collections::HashSet;
use std::fmt::Display;
use std::ops::RangeInclusive;

use secrecy::ExposeSecret;
use url::Url;

use super::{Config, MAX_CONSUMER_BYTES, Problem, QueueConfig};
use crate::cmq::{Endpoint, MAX_POLLING_WAIT_SECONDS, is_valid_name};
use crate::handler::{DeclaredApplier, RegistryError};

#[derive(Default)]
struct Problems(Vec<Problem>);

impl Problems {
    fn add(&mut self, key: impl Into<String>, reason: impl Into<String>) {
        self.0.push(Problem { key: key.into(), reason: reason.into() });
    }

    fn range<T: PartialOrd + Display>(&mut self, key: String, value: T, range: RangeInclusive<T>) {
        if !range.contains(&value) {
            let (low, high) = (range.start(), range.end());
            self.add(key, format!("it must be from {low} to {high}, and is {value}"));
        }
    }
}

impl Config {
    /// Everything that is wrong beyond the types.
    pub(super) fn problems(&self) -> Vec<Problem> {
        let mut problems = Problems::default();
        if self.consumer.is_empty() || self.consumer.len() > MAX_CONSUMER_BYTES {
            problems.add("consumer", format!("it must have 1 to {MAX_CONSUMER_BYTES} bytes"));
        }
        problems.range("database.pool_size".into(), self.database.pool_size, 1..=1_000);
        let connect = self.database.connect_timeout_seconds;
        problems.range("database.connect_timeout_seconds".into(), connect, 1..=300);
        let statement = self.database.statement_timeout_seconds;
        problems.range("database.statement_timeout_seconds".into(), statement, 1..=43_200);
        problems.range("drain_timeout_seconds".into(), self.drain_timeout_seconds, 0..=3_600);
        let given = &self.credentials;
        let ways = [given.secret_id.is_some(), given.file.is_some(), given.role.is_some()];
        if ways.into_iter().filter(|way| *way).count() > 1 {
            problems.add("credentials", "secret_id, file and role exclude each other; keep one");
        }
        if let Err(error) = Url::parse(&given.metadata_endpoint) {
            problems.add("credentials.metadata_endpoint", format!("it is not a URL: {error}"));
        }
        if let Some(admin) = &self.admin
            && !admin.listen.ip().is_loopback()
            && admin.token.as_ref().is_none_or(|token| token.expose_secret().is_empty())
        {
            problems.add("admin.token", "it is needed when admin.listen is not on the loopback");
        }
        let supervision = &self.supervision;
        let frozen = supervision.frozen_after_seconds;
        problems.range("supervision.frozen_after_seconds".into(), frozen, 1..=3_600);
        problems.range("supervision.max_restarts".into(), supervision.max_restarts, 0..=1_000);
        let window = supervision.restart_window_seconds;
        problems.range("supervision.restart_window_seconds".into(), window, 1..=86_400);
        if tracing_subscriber::EnvFilter::try_new(&self.log.filter).is_err() {
            problems
                .add("log.filter", "it is no level (error, warn, info, debug, trace) or filter");
        }
        if self.queues.is_empty() {
            problems.add("queue", "there is none; declare at least one [[queue]]");
        }
        let mut names = HashSet::new();
        for (index, queue) in self.queues.iter().enumerate() {
            if !names.insert((&queue.name, &queue.endpoint)) {
                problems.add(format!("queue[{index}].name"), "the queue is declared twice");
            }
            check_queue(&format!("queue[{index}]"), queue, &mut problems);
        }
        self.check_appliers(&mut problems);
        let held = &self.held;
        problems.range("held.first_retry_seconds".into(), held.first_retry_seconds, 1..=86_400);
        problems.range("held.longest_retry_seconds".into(), held.longest_retry_seconds, 1..=86_400);
        problems.range("held.max_retries".into(), held.max_retries, 1..=10_000);
        self.check_retention(&mut problems);
        problems.0
    }

    fn check_retention(&self, problems: &mut Problems) {
        let mut types = HashSet::new();
        for (index, retention) in self.retention.iter().enumerate() {
            let entry = format!("retention[{index}]");
            if !types.insert(&retention.event_type) {
                let reason = "there are two entries for this event type; keep one of them";
                problems.add(format!("{entry}.event_type"), reason);
            }
            for Problem { key, reason } in retention.problems(&self.queues) {
                problems.add(format!("{entry}.{key}"), reason);
            }
        }
    }

    fn check_appliers(&self, problems: &mut Problems) {
        let mut types = HashSet::new();
        for (index, applier) in self.appliers.iter().enumerate() {
            let key = format!("applier[{index}]");
            if !types.insert(&applier.event_type) {
                let reason = RegistryError::Twice(applier.event_type.clone()).to_string();
                problems.add(format!("{key}.event_type"), reason);
            }
            let backend = self.database.url.backend();
            if let Err(error) = DeclaredApplier::new(applier.clone(), backend) {
                problems.add(format!("{key}.{}", error.key), error.reason);
            }
        }
    }
}

fn check_queue(key: &str, queue: &QueueConfig, problems: &mut Problems) {
    let key = |name: &str| format!("{key}.{name}");
    if !is_valid_name(&queue.name) {
        let reason = "it must begin with a letter and hold letters, digits and -, 64 at most";
        problems.add(key("name"), reason);
    }
    if let Err(error) = Endpoint::parse(&queue.endpoint) {
        problems.add(key("endpoint"), error.to_string());
    }
    let visibility = queue.visibility_timeout_seconds;
    problems.range(key("visibility_timeout_seconds"), visibility, 1..=43_200);
    if let Some(max_unacked) = queue.max_unacked_seconds {
        problems.range(key("max_unacked_seconds"), max_unacked, 30..=43_200);
    }
    problems.range(key("rescue_at_percent"), queue.rescue_at_percent, 10..=95);
    problems.range(key("rewind_seconds"), queue.rewind_seconds, 0..=1_296_000);
    let wait = queue.polling_wait_seconds;
    problems.range(key("polling_wait_seconds"), wait, 0..=MAX_POLLING_WAIT_SECONDS);
    problems.range(key("max_concurrent_polls"), queue.max_concurrent_polls, 1..=64);
    problems.range(key("max_in_flight_messages"), queue.max_in_flight_messages, 1..=100_000);
    problems.range(key("max_in_flight_bytes"), queue.max_in_flight_bytes, 1..=1 << 40);
}
