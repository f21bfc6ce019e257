//! Prometheus metrics. Names and units follow the Prometheus conventions: base units, `_total` for
//! counters (the encoder adds it), labels of few values.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use chrono::Utc;

use crate::pipeline::{ActorState, ActorStatus, BudgetUse, Observation};
use crate::store::{HeldCount, HoldReason};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct QueueLabels {
    queue: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TypeLabels {
    event_type: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    event_type: String,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HeldLabels {
    queue: String,
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    reason: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RetryLabels {
    outcome: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WaitingLabels {
    queue: String,
    event_type: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ActorLabels {
    actor: String,
}

type Counters<L> = Family<L, Counter>;
type Gauges<L> = Family<L, Gauge>;

/// What is counted and measured.
pub struct Metrics {
    registry: Registry,
    deliveries: Counters<QueueLabels>,
    polls: Counters<QueueLabels>,
    empty_polls: Counters<QueueLabels>,
    failed_polls: Counters<QueueLabels>,
    outcomes: Counters<OutcomeLabels>,
    held: Counters<HeldLabels>,
    held_now: Gauges<ReasonLabels>,
    held_oldest_seconds: Gauges<ReasonLabels>,
    held_retries: Counters<RetryLabels>,
    purged_claims: Counters<TypeLabels>,
    horizon_seconds: Gauges<TypeLabels>,
    dropped: Counters<QueueLabels>,
    deleted: Counters<QueueLabels>,
    not_deleted: Counters<QueueLabels>,
    failed_deletes: Counters<QueueLabels>,
    batch_events: Family<TypeLabels, Histogram>,
    commit_seconds: Family<TypeLabels, Histogram>,
    settle_seconds: Family<TypeLabels, Histogram>,
    oldest_age: Gauges<QueueLabels>,
    in_flight: Gauges<QueueLabels>,
    in_flight_limit: Gauges<QueueLabels>,
    waiting: Gauges<WaitingLabels>,
    oldest_age_limit: Gauges<QueueLabels>,
    pool_connections: Gauge,
    pool_idle: Gauge,
    restarts: Counters<ActorLabels>,
    running: Gauges<ActorLabels>,
}

fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 16))
}

fn events() -> Histogram {
    Histogram::new(exponential_buckets(1.0, 2.0, 10))
}

impl Metrics {
    /// Metrics at zero.
    pub fn new() -> Self {
        let mut metrics = Self {
            registry: Registry::with_prefix("hapax"),
            deliveries: Family::default(),
            polls: Family::default(),
            empty_polls: Family::default(),
            failed_polls: Family::default(),
            outcomes: Family::default(),
            held: Family::default(),
            held_now: Family::default(),
            held_oldest_seconds: Family::default(),
            held_retries: Family::default(),
            purged_claims: Family::default(),
            horizon_seconds: Family::default(),
            dropped: Family::default(),
            deleted: Family::default(),
            not_deleted: Family::default(),
            failed_deletes: Family::default(),
            batch_events: Family::new_with_constructor(events),
            commit_seconds: Family::new_with_constructor(seconds),
            settle_seconds: Family::new_with_constructor(seconds),
            oldest_age: Family::default(),
            in_flight: Family::default(),
            in_flight_limit: Family::default(),
            waiting: Family::default(),
            oldest_age_limit: Family::default(),
            pool_connections: Gauge::default(),
            pool_idle: Gauge::default(),
            restarts: Family::default(),
            running: Family::default(),
        };
        metrics.register();
        metrics
    }

    fn register(&mut self) {
        let registry = &mut self.registry;
        let mut add = |name, help, metric| registry.register(name, help, metric);
        add("deliveries", "Messages received", self.deliveries.clone());
        add("polls", "Receive requests that were answered", self.polls.clone());
        add("empty_polls", "Receive requests that brought nothing", self.empty_polls.clone());
        add("failed_polls", "Receive requests that failed", self.failed_polls.clone());
        add("dropped_deliveries", "Messages left to the queue unprocessed", self.dropped.clone());
        add("deleted_messages", "Messages deleted from the queue", self.deleted.clone());
        add(
            "undeleted_messages",
            "Settled messages that could not be deleted",
            self.not_deleted.clone(),
        );
        add("failed_deletes", "Delete requests that failed", self.failed_deletes.clone());
        registry.register("events", "Events by outcome", self.outcomes.clone());
        registry.register("held_messages", "Messages held, by reason", self.held.clone());
        registry.register(
            "held_messages_now",
            "Messages that are held, by reason; counted every 15 s",
            self.held_now.clone(),
        );
        registry.register(
            "held_message_oldest_age_seconds",
            "Time since the oldest held message was held first, by reason",
            self.held_oldest_seconds.clone(),
        );
        registry.register("held_retries", "Tries of held messages", self.held_retries.clone());
        registry.register("purged_claims", "Claims deleted", self.purged_claims.clone());
        registry.register(
            "horizon_timestamp_seconds",
            "The de-duplication horizon, in seconds since 1970",
            self.horizon_seconds.clone(),
        );
        registry.register("batch_events", "Events a transaction", self.batch_events.clone());
        registry.register_with_unit(
            "commit_duration",
            "From the begin of a transaction to its commit",
            Unit::Seconds,
            self.commit_seconds.clone(),
        );
        registry.register_with_unit(
            "receive_to_commit",
            "From the receipt of a message to the commit of its event",
            Unit::Seconds,
            self.settle_seconds.clone(),
        );
        let mut gauge = |name, help, metric| registry.register(name, help, metric);
        gauge(
            "oldest_message_age_seconds",
            "Age of the oldest message of the last poll that brought any",
            self.oldest_age.clone(),
        );
        gauge(
            "in_flight_messages",
            "Permits in use: messages in memory and asked for",
            self.in_flight.clone(),
        );
        gauge("in_flight_messages_limit", "Permits there are", self.in_flight_limit.clone());
        registry.register(
            "waiting_events",
            "Events that wait for their Applier or are with it",
            self.waiting.clone(),
        );
        registry.register(
            "oldest_message_age_limit_seconds",
            "Age at which the queue drops a message (max_unacked_seconds)",
            self.oldest_age_limit.clone(),
        );
        registry.register(
            "pool_connections",
            "Open database connections",
            self.pool_connections.clone(),
        );
        registry.register(
            "pool_idle_connections",
            "Idle database connections",
            self.pool_idle.clone(),
        );
        registry.register("actor_restarts", "Restarts of an actor", self.restarts.clone());
        registry.register("actor_running", "1 while an actor runs", self.running.clone());
    }

    /// Tells the age at which a queue drops a message.
    pub fn set_age_limit(&self, queue: &str, seconds: u32) {
        let of = QueueLabels { queue: queue.to_owned() };
        self.oldest_age_limit.get_or_create(&of).set(seconds.into());
    }

    /// Counts what happened.
    pub fn observe(&self, observation: &Observation<'_>) {
        let of = |queue: &str| QueueLabels { queue: queue.to_owned() };
        match observation {
            Observation::Polled { queue, received, oldest_age } => {
                self.polls.get_or_create(&of(queue)).inc();
                self.deliveries.get_or_create(&of(queue)).inc_by(*received as u64);
                if *received == 0 {
                    self.empty_polls.get_or_create(&of(queue)).inc();
                }
                if let Some(age) = oldest_age {
                    self.oldest_age.get_or_create(&of(queue)).set(age.as_secs() as i64);
                }
            }
            Observation::PollFailed { queue, .. } => {
                _ = self.failed_polls.get_or_create(&of(queue)).inc();
            }
            Observation::Committed { event_type, events, took } => {
                let of = TypeLabels { event_type: (*event_type).to_owned() };
                self.batch_events.get_or_create(&of).observe(*events as f64);
                self.commit_seconds.get_or_create(&of).observe(took.as_secs_f64());
            }
            Observation::Applied { event_type, waited, .. } => {
                let of = TypeLabels { event_type: (*event_type).to_owned() };
                self.settle_seconds.get_or_create(&of).observe(waited.as_secs_f64());
                self.count(event_type, "applied");
            }
            Observation::Duplicate { event_type, .. } => self.count(event_type, "duplicate"),
            Observation::Failed { event_type, .. } => self.count(event_type, "failed"),
            Observation::Held { queue, reason, .. } => {
                let of = HeldLabels { queue: (*queue).to_owned(), reason: reason.as_str() };
                self.held.get_or_create(&of).inc();
            }
            Observation::Dropped { queue, .. } => {
                _ = self.dropped.get_or_create(&of(queue)).inc();
            }
            Observation::Deleted { queue, .. } => {
                _ = self.deleted.get_or_create(&of(queue)).inc();
            }
            Observation::NotDeleted { queue, .. } => {
                _ = self.not_deleted.get_or_create(&of(queue)).inc();
            }
            Observation::DeleteFailed { queue, .. } => {
                _ = self.failed_deletes.get_or_create(&of(queue)).inc();
            }
            Observation::HeldRetried { outcome } => {
                let of = RetryLabels { outcome: (*outcome).to_owned() };
                self.held_retries.get_or_create(&of).inc();
            }
            Observation::HeldCounted { counts } => self.set_held(counts),
            Observation::Purged { event_type, horizon, claims } => {
                let of = TypeLabels { event_type: (*event_type).to_owned() };
                self.purged_claims.get_or_create(&of).inc_by(*claims as u64);
                self.horizon_seconds.get_or_create(&of).set(horizon.and_utc().timestamp());
            }
        }
    }

    /// A reason of which nothing is held is told, too, as 0.
    fn set_held(&self, counts: &[HeldCount]) {
        let now = Utc::now().naive_utc();
        for reason in HoldReason::ALL {
            let of = ReasonLabels { reason: reason.as_str().to_owned() };
            let found = counts.iter().find(|count| count.reason == reason.as_str());
            self.held_now.get_or_create(&of).set(found.map_or(0, |count| count.messages));
            let oldest = found.and_then(|count| count.oldest);
            let age = oldest.map_or(0, |oldest| (now - oldest).num_seconds());
            self.held_oldest_seconds.get_or_create(&of).set(age);
        }
    }

    fn count(&self, event_type: &str, outcome: &'static str) {
        let of = OutcomeLabels { event_type: event_type.to_owned(), outcome };
        self.outcomes.get_or_create(&of).inc();
    }

    /// The text of `/metrics`, with what is looked up at that time.
    pub fn render(
        &self,
        actors: &[ActorStatus],
        budgets: &[BudgetUse],
        pool: (u32, u32),
    ) -> String {
        for BudgetUse { queue, in_flight, limit, waiting } in budgets {
            for (event_type, held) in waiting {
                let of = WaitingLabels { queue: queue.clone(), event_type: event_type.clone() };
                self.waiting.get_or_create(&of).set(*held as i64);
            }
            let of = QueueLabels { queue: queue.clone() };
            self.in_flight.get_or_create(&of).set(*in_flight as i64);
            self.in_flight_limit.get_or_create(&of).set(*limit as i64);
        }
        for ActorStatus { name, state, restarts, .. } in actors {
            let of = ActorLabels { actor: name.clone() };
            let counter = self.restarts.get_or_create(&of);
            counter.inc_by(restarts.saturating_sub(counter.get()));
            let running = i64::from(*state == ActorState::Running);
            self.running.get_or_create(&of).set(running);
        }
        self.pool_connections.set(i64::from(pool.0));
        self.pool_idle.set(i64::from(pool.1));
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("a String can always be written to");
        text
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}
