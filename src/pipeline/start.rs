//! Puts the actors together.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use actix::Actor;

use super::Acker;
use super::applier::{Applier, Group};
use super::budget::Budget;
use super::delivery::QueueContext;
use super::link::Link;
use super::observer::Observer;
use super::quarantine::Quarantine;
use super::receiver::{Polling, Receiver, StopPolling};
use super::router::{Route, Router};
use crate::cmq::Client;
use crate::event::{BodyEncoding, Envelope};
use crate::handler::Registry;
use crate::store::Store;

/// A queue to consume.
pub struct QueueOptions {
    /// Its name.
    pub name: String,
    /// The client of its endpoint.
    pub client: Client,
    /// How bodies are encoded.
    pub body_encoding: BodyEncoding,
    /// Where in a body the event stands.
    pub envelope: Envelope,
    /// The queue's visibility time-out.
    pub visibility_timeout: Duration,
    /// Length of a long poll in seconds.
    pub polling_wait_seconds: u32,
    /// Long polls at the same time while the queue is full.
    pub max_concurrent_polls: usize,
    /// Most messages in memory.
    pub max_in_flight_messages: usize,
    /// Most bytes of bodies in memory, beyond what polls in the air bring.
    pub max_in_flight_bytes: usize,
}

/// What the pipeline consists of.
pub struct PipelineOptions {
    /// The consumer whose claims these are.
    pub consumer: String,
    /// The database.
    pub store: Store,
    /// The appliers.
    pub registry: Registry,
    /// The queues.
    pub queues: Vec<QueueOptions>,
    /// Who is told what happens.
    pub observer: Observer,
}

/// The running actors.
pub struct Pipeline {
    receivers: Vec<Link<Receiver>>,
    budgets: Vec<Arc<Budget>>,
}

impl Pipeline {
    /// Starts all actors on the current actix system; consumption begins at once.
    pub fn start(options: PipelineOptions) -> Self {
        let PipelineOptions { consumer, store, registry, queues, observer } = options;
        let quarantine = Link::new();
        quarantine
            .point_at(Quarantine::new(consumer.clone(), store.clone(), observer.clone()).start());
        let default_shards = shards_per_type(store.concurrency(), registry.len());
        let mut routes = HashMap::new();
        for (share, (event_type, applier)) in registry.iter().enumerate() {
            let policy = applier.policy();
            let group = Arc::new(Group {
                event_type: event_type.to_owned(),
                applier: applier.clone(),
                policy,
                consumer: consumer.clone(),
                store: store.clone(),
                quarantine: quarantine.clone(),
                observer: observer.clone(),
            });
            let shards = (0..policy.shards.unwrap_or(default_shards)).map(|_| {
                let link = Link::new();
                link.point_at(Applier::new(group.clone()).start());
                link
            });
            routes.insert(event_type.to_owned(), Route { share, shards: shards.collect() });
        }
        let mut pipeline = Self { receivers: Vec::new(), budgets: Vec::new() };
        for queue in queues {
            pipeline.start_queue(queue, routes.clone(), quarantine.clone(), observer.clone());
        }
        pipeline
    }

    fn start_queue(
        &mut self,
        options: QueueOptions,
        routes: HashMap<String, Route>,
        quarantine: Link<Quarantine>,
        observer: Observer,
    ) {
        let shares = routes.len().max(1);
        let budget =
            Budget::new(options.max_in_flight_messages, options.max_in_flight_bytes, shares);
        let (acker, router, receiver) = (Link::new(), Link::new(), Link::new());
        let queue = Arc::new(QueueContext {
            name: options.name,
            body_encoding: options.body_encoding,
            envelope: options.envelope,
            acker: acker.clone(),
            observer,
        });
        let polling = Polling {
            max_concurrent_polls: options.max_concurrent_polls,
            wait_seconds: options.polling_wait_seconds,
            visibility_timeout: options.visibility_timeout,
        };
        let client = options.client;
        acker.point_at(Acker::new(queue.clone(), client.clone()).start());
        router.point_at(Router::new(routes, quarantine, budget.clone()).start());
        receiver.point_at(Receiver::new(queue, client, router, budget.clone(), polling).start());
        self.receivers.push(receiver);
        self.budgets.push(budget);
    }

    /// Stops polling and waits until every message in memory is settled or given up, `timeout` at
    /// most. Returns how many were left.
    pub async fn drain(self, timeout: Duration) -> usize {
        for receiver in &self.receivers {
            receiver.send(StopPolling);
        }
        let idle = futures_util::future::join_all(self.budgets.iter().map(|budget| budget.idle()));
        match tokio::time::timeout(timeout, idle).await {
            Ok(_) => 0,
            Err(_) => self.budgets.iter().map(|budget| budget.in_flight()).sum(),
        }
    }
}

/// One connection is left for holding messages; the rest is divided evenly, so that a type whose
/// transactions hang cannot take the connections of the others.
fn shards_per_type(connections: usize, types: usize) -> usize {
    (connections.saturating_sub(1) / types.max(1)).max(1)
}

#[cfg(test)]
mod tests {
    use super::shards_per_type;

    #[test]
    fn connections_are_divided_among_the_event_types() {
        for (connections, types, shards) in [(8, 1, 7), (8, 2, 3), (8, 7, 1), (8, 50, 1), (1, 1, 1)]
        {
            assert_eq!(shards_per_type(connections, types), shards, "{connections} {types}");
        }
    }
}
