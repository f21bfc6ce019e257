//! Puts the actors together.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::Acker;
use super::applier::{Applier, Group};
use super::budget::{Budget, BudgetUse};
use super::concurrency::Concurrency;
use super::delivery::QueueContext;
use super::gathering::Gathering;
use super::health::Health;
use super::held_retry::{HeldRetry, RetrySchedule};
use super::link::Link;
use super::observer::Observer;
use super::purger::{Purge, Purger, Retention};
use super::quarantine::Quarantine;
use super::receiver::{Polling, Receiver};
use super::retrier::Retrier;
use super::router::{Route, Router};
use super::supervisor::{Board, Supervision, Supervisor};
use super::transaction::Application;
use crate::cmq::Client;
use crate::event::EventReader;
use crate::handler::{ErasedApplier, Registry};
use crate::store::Store;

/// A batch that takes longer than this is given up with its Applier: well beyond any statement
/// time-out, for a transaction that hangs at the client's end.
const STUCK_AFTER: Duration = Duration::from_secs(600);

/// A queue to consume.
pub struct QueueOptions {
    /// Its name.
    pub name: String,
    /// The client of its endpoint.
    pub client: Client,
    /// Reads events out of its bodies.
    pub reader: EventReader,
    /// The queue's visibility time-out.
    pub visibility_timeout: Duration,
    /// The queue's maximum unacknowledged time, if it is known.
    pub max_unacked: Option<Duration>,
    /// The age from which on a message is moved to safety if it cannot be applied.
    pub rescue_after: Option<Duration>,
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
    /// When held messages are tried again.
    pub retry_schedule: RetrySchedule,
    /// Which claims are deleted, and when.
    pub retention: Vec<Retention>,
    /// How the actors are watched.
    pub supervision: Supervision,
    /// Who is told what happens.
    pub observer: Observer,
}

/// The running actors.
pub struct Pipeline {
    budgets: Vec<(String, Arc<Budget>)>,
    /// By share.
    event_types: Vec<String>,
    health: Health,
    draining: Arc<AtomicBool>,
    board: Board,
}

impl Pipeline {
    /// Starts all actors in a thread of their own and supervises them from the current actix system;
    /// consumption begins at once.
    pub fn start(options: PipelineOptions) -> Self {
        let PipelineOptions { consumer, store, registry, queues, supervision, observer, .. } =
            options;
        let (schedule, retention) = (options.retry_schedule, options.retention);
        let mut starting = Starting {
            supervisor: Supervisor::new(supervision),
            budgets: Vec::new(),
            health: Health::default(),
            draining: Arc::default(),
            quarantine: Link::new(),
            observer,
        };
        starting.quarantine(consumer.clone(), store.clone(), schedule);
        let event_types = registry.iter().map(|(event_type, _)| event_type.to_owned()).collect();
        let applications = applications(&consumer, &store, &registry, &retention);
        let routes = starting.appliers(&applications, store.concurrency());
        let reader = |queue: &QueueOptions| (queue.name.clone(), queue.reader.clone());
        let readers = queues.iter().map(reader).collect();
        let (name, shared) = (consumer.clone(), store.clone());
        starting.retrier(HeldRetry {
            consumer: name,
            store: shared,
            applications,
            readers,
            schedule,
        });
        starting.purger(Purge { consumer, store, retention });
        for queue in queues {
            starting.queue(queue, routes.clone());
        }
        let Starting { supervisor, budgets, draining, health, .. } = starting;
        let board = supervisor.board();
        actix::spawn(supervisor.watch());
        Self { budgets, event_types, health, draining, board }
    }

    /// Where to see how the actors are.
    pub fn board(&self) -> Board {
        self.board.clone()
    }

    /// What the parts say of themselves.
    pub fn health(&self) -> Health {
        self.health.clone()
    }

    /// How to look up how much of each queue's budget is used.
    pub fn budgets(&self) -> impl Fn() -> Vec<BudgetUse> + Send + Sync + use<> {
        let (budgets, event_types) = (self.budgets.clone(), self.event_types.clone());
        let waiting = move |budget: &Budget| {
            let held = |(share, name): (usize, &String)| (name.clone(), budget.held(share));
            event_types.iter().enumerate().map(held).collect()
        };
        let use_of = move |(queue, budget): &(String, Arc<Budget>)| BudgetUse {
            queue: queue.clone(),
            in_flight: budget.in_flight(),
            limit: budget.limit(),
            waiting: waiting(budget),
        };
        move || budgets.iter().map(&use_of).collect()
    }

    /// Stops polling and waits until every message in memory is settled or given up, `timeout` at
    /// most. Returns how many were left.
    pub async fn drain(self, timeout: Duration) -> usize {
        self.draining.store(true, Ordering::Relaxed);
        let idle =
            futures_util::future::join_all(self.budgets.iter().map(|(_, budget)| budget.idle()));
        let left = match tokio::time::timeout(timeout, idle).await {
            Ok(_) => 0,
            Err(_) => self.budgets.iter().map(|(_, budget)| budget.in_flight()).sum(),
        };
        self.board.close();
        left
    }
}

/// The pipeline while it is put together. Who is sent to is started before who sends.
struct Starting {
    supervisor: Supervisor,
    budgets: Vec<(String, Arc<Budget>)>,
    health: Health,
    draining: Arc<AtomicBool>,
    quarantine: Link<Quarantine>,
    observer: Observer,
}

impl Starting {
    fn quarantine(&mut self, consumer: String, store: Store, schedule: RetrySchedule) {
        let (link, observer) = (self.quarantine.clone(), self.observer.clone());
        let health = self.health.clone();
        self.supervisor.supervise("quarantine".into(), link, move |_| {
            let (store, health) = (store.clone(), health.clone());
            Quarantine::new(consumer.clone(), store, schedule, observer.clone(), health)
        });
    }

    fn retrier(&mut self, retry: HeldRetry) {
        let (retry, observer) = (Arc::new(retry), self.observer.clone());
        self.supervisor.supervise("retrier".into(), Link::new(), move |_| {
            Retrier::new(retry.clone(), observer.clone())
        });
    }

    fn purger(&mut self, purge: Purge) {
        if purge.retention.is_empty() {
            return;
        }
        let (purge, observer) = (Arc::new(purge), self.observer.clone());
        self.supervisor.supervise("purger".into(), Link::new(), move |_| {
            Purger::new(purge.clone(), observer.clone())
        });
    }

    fn appliers(
        &mut self,
        applications: &BTreeMap<String, Arc<Application>>,
        connections: usize,
    ) -> HashMap<String, Route> {
        let default_shards = shards_per_type(connections, applications.len());
        let gathering = Arc::<Gathering>::default();
        let mut routes = HashMap::new();
        for (share, (event_type, application)) in applications.iter().enumerate() {
            let policy = application.applier.policy();
            let count = policy.shards.unwrap_or(match policy.works_on_sets {
                true => default_shards.min(SHARDS_OF_SETS),
                false => default_shards,
            });
            let partition_key = policy.partition_key.clone();
            let group = Arc::new(Group {
                application: application.clone(),
                policy,
                concurrency: Concurrency::new(count),
                gathering: gathering.clone(),
                stuck_after: STUCK_AFTER,
                quarantine: self.quarantine.clone(),
                observer: self.observer.clone(),
                health: self.health.clone(),
            });
            let shards = (0..count).map(|shard| self.shard(&group, shard)).collect();
            routes.insert(event_type.to_owned(), Route { share, shards, partition_key });
        }
        routes
    }

    fn shard(&mut self, group: &Arc<Group>, shard: usize) -> Link<Applier> {
        let (link, group) = (Link::new(), group.clone());
        let name = format!("applier/{}/{shard}", group.application.event_type);
        self.supervisor
            .supervise(name, link.clone(), move |heart| Applier::new(group.clone(), shard, heart));
        link
    }

    fn queue(&mut self, options: QueueOptions, routes: HashMap<String, Route>) {
        let shares = routes.len().max(1);
        let budget = Budget::new(
            options.max_in_flight_messages,
            options.max_in_flight_bytes,
            options.visibility_timeout / 2,
            shares,
        );
        self.budgets.push((options.name.clone(), budget.clone()));
        let (acker, router) = (Link::new(), Link::new());
        let queue = Arc::new(QueueContext {
            name: options.name,
            reader: options.reader,
            acker: acker.clone(),
            observer: self.observer.clone(),
            health: self.health.clone(),
        });
        let polling = Polling {
            max_concurrent_polls: options.max_concurrent_polls,
            wait_seconds: options.polling_wait_seconds,
            visibility_timeout: options.visibility_timeout,
            max_unacked: options.max_unacked,
            rescue_after: options.rescue_after,
        };
        let (context, client) = (queue.clone(), options.client.clone());
        self.supervisor.supervise(format!("acker/{}", queue.name), acker, move |_| {
            Acker::new(context.clone(), client.with_own_connections())
        });
        let (quarantine, shared) = (self.quarantine.clone(), budget.clone());
        self.supervisor.supervise(format!("router/{}", queue.name), router.clone(), move |_| {
            Router::new(routes.clone(), quarantine.clone(), shared.clone())
        });
        let (draining, client) = (self.draining.clone(), options.client);
        self.supervisor.supervise(format!("receiver/{}", queue.name), Link::new(), move |_| {
            let client = client.with_own_connections();
            let (queue, router, budget) = (queue.clone(), router.clone(), budget.clone());
            Receiver::new(queue, client, router, budget, polling, draining.clone())
        });
    }
}

/// How the events of each registered type are applied.
pub fn applications(
    consumer: &str,
    store: &Store,
    registry: &Registry,
    retention: &[Retention],
) -> BTreeMap<String, Arc<Application>> {
    let application = |(event_type, applier): (&str, &Arc<dyn ErasedApplier>)| {
        let application = Application {
            event_type: event_type.to_owned(),
            applier: applier.clone(),
            consumer: consumer.to_owned(),
            store: store.clone(),
            has_horizon: retention.iter().any(|rule| rule.event_type == event_type),
            keep_payload: applier.policy().keep_payload,
            had_known: AtomicBool::new(false),
        };
        (event_type.to_owned(), Arc::new(application))
    };
    registry.iter().map(application).collect()
}

/// Shards of a type whose statements take whole batches: one of them gathers while the other commits.
const SHARDS_OF_SETS: usize = 2;

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
