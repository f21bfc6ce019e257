//! Assembles the parts, runs them, and stops them in order.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::admin::{AdminOptions, AdminServer, Insight, Metrics};
use crate::cmq::{
    Client, ClientOptions, CmqError, CredentialProvider, CredentialSource, Credentials,
    CredentialsError, Endpoint, ProviderError,
};
use crate::config::{AdminConfig, Config, ConfigError, QueueConfig, SupervisionConfig};
use crate::event::{EventReader, EventTimeRule};
use crate::handler::{Applier, DeclaredApplier, Registry, RegistryError};
use crate::pipeline::{
    ActorStatus, Board, BudgetUse, Health, HeldRetry, Observer, Pipeline, PipelineOptions,
    QueueOptions, Retention, Supervision, applications,
};
use crate::store::{
    DbConnection, Store, StoreError, StoreOptions, concerns, connection_limit, horizons,
    in_transaction, migrate,
};

/// The service could not be assembled or started.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Two appliers for one event type.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// No applier at all.
    #[error(
        "there is no applier, so every message would be held; declare an [[applier]] in the \
         configuration, or register one in Rust"
    )]
    NoApplier,
    /// A credential is missing.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// The credentials could not be read from where the configuration says.
    #[error("credentials: {0}")]
    Provider(#[from] ProviderError),
    /// The HTTP client could not be made.
    #[error(transparent)]
    Client(#[from] CmqError),
    /// The database could not be reached.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// hapax's own tables could not be brought up to date.
    #[error(
        "hapax's tables could not be brought up to date: {0}; run `hapax migrate` with a user \
             who may create tables, then set database.migrate_at_start = false"
    )]
    Migration(String),
    /// Claims would be deleted, or were deleted, against what is configured.
    #[error("retention: {0}")]
    Retention(String),
    /// The admin pages cannot be served.
    #[error("admin.listen: cannot listen on {0}: {1}")]
    Admin(SocketAddr, std::io::Error),
    /// A part of the service ended again and again.
    #[error("a part of the service ended too often: {0}")]
    GivenUp(String),
}

/// A service that is configured, but not running.
pub struct Service {
    config: Config,
    registry: Registry,
    observer: Observer,
}

impl Service {
    /// A service as the file says, with the appliers that are declared there.
    ///
    /// # Errors
    /// The configuration cannot be used.
    pub fn from_config_file(file: impl AsRef<Path>) -> Result<Self, ServiceError> {
        Self::new(Config::load(file.as_ref())?)
    }

    /// A service as `config` says, with the appliers that are declared there.
    ///
    /// # Errors
    /// A declared applier cannot be used.
    pub fn new(config: Config) -> Result<Self, ServiceError> {
        let mut registry = Registry::default();
        let backend = config.database.url.backend();
        for spec in &config.appliers {
            let event_type = spec.event_type.clone();
            let applier = DeclaredApplier::new(spec.clone(), backend)
                .expect("a loaded configuration has valid appliers");
            registry.insert(&event_type, Arc::new(applier))?;
        }
        Ok(Self { config, registry, observer: Arc::new(|_| {}) })
    }

    /// Adds an applier written in Rust.
    ///
    /// # Errors
    /// Its event type has an applier already.
    pub fn register<A: Applier>(mut self, applier: A) -> Result<Self, ServiceError> {
        self.registry.register(applier)?;
        Ok(self)
    }

    /// Lets `observer` see what happens.
    pub fn observe(mut self, observer: Observer) -> Self {
        self.observer = observer;
        self
    }

    /// What tries held messages again, by hand: without the appliers that another program registers.
    pub(crate) fn held_retry(&self, store: Store) -> HeldRetry {
        let (config, times) = (&self.config, self.config.event_times());
        let retention = config.retention_rules();
        let reader_of = |queue: &QueueConfig| (queue.name.clone(), reader(queue, &times));
        HeldRetry {
            consumer: config.consumer.clone(),
            applications: applications(&config.consumer, &store, &self.registry, &retention),
            readers: config.queues.iter().map(reader_of).collect(),
            store,
            schedule: config.held.schedule(),
        }
    }

    /// Runs until SIGTERM or SIGINT, then drains. Blocks; call it outside any async runtime.
    ///
    /// # Errors
    /// The service could not be started.
    pub fn run(self) -> Result<(), ServiceError> {
        actix::System::new().block_on(async move {
            let running = self.start().await?;
            let board = running.board();
            tokio::select! {
                signal = crate::signals::stop_requested() => {
                    tracing::info!(signal, "stopping");
                    running.drain().await;
                    Ok(())
                }
                reason = board.given_up() => {
                    tracing::error!(reason, "giving up, so that the platform starts hapax anew");
                    running.drain().await;
                    Err(ServiceError::GivenUp(reason))
                }
            }
        })
    }

    /// Starts the service on the current actix system.
    ///
    /// # Errors
    /// A credential is missing, or the database cannot be reached or brought up to date.
    pub async fn start(self) -> Result<RunningService, ServiceError> {
        let Self { config, registry, observer } = self;
        if registry.is_empty() {
            return Err(ServiceError::NoApplier);
        }
        let credentials = credentials(&config).await?;
        let store = Store::new(store_options(&config));
        prepare(&store, config.database.migrate_at_start).await?;
        warn_of_settings(&store, config.database.pool_size).await?;
        if registry.len() >= store.concurrency() && store.concurrency() > 1 {
            tracing::warn!(
                event_types = registry.len(),
                pool_size = config.database.pool_size,
                "fewer connections than event types: a slow event type can hold up others; raise \
                 database.pool_size"
            );
        }
        let retention = config.retention_rules();
        check_retention(&store, &config.consumer, &registry, &retention).await?;
        let times = config.event_times();
        let queues = config
            .queues
            .iter()
            .map(|queue| queue_options(queue, &times, &credentials))
            .collect::<Result<Vec<_>, _>>()?;
        let names: Vec<&str> = config.queues.iter().map(|queue| queue.name.as_str()).collect();
        let event_types: Vec<&str> = registry.iter().map(|(event_type, _)| event_type).collect();
        let database = config.database.url.to_string();
        tracing::info!(consumer = config.consumer, database, ?names, ?event_types, "started");
        let consumer = config.consumer.clone();
        let supervision = supervision(&config.supervision);
        let metrics = Arc::new(metrics(&config.queues));
        let counting = metrics.clone();
        let observer: Observer = Arc::new(move |observation| {
            counting.observe(observation);
            observer(observation);
        });
        let (connections, admin) = (store.clone(), config.admin.clone());
        let options = PipelineOptions {
            consumer,
            store,
            registry,
            queues,
            retry_schedule: config.held.schedule(),
            retention,
            supervision,
            observer,
        };
        let pipeline = Pipeline::start(options);
        let insight = Box::new(ServiceInsight {
            board: pipeline.board(),
            health: pipeline.health(),
            budgets: Box::new(pipeline.budgets()),
            store: connections,
        });
        let admin = admin.map(|admin| start_admin(admin, metrics, insight)).transpose()?;
        let drain_timeout = Duration::from_secs(config.drain_timeout_seconds);
        Ok(RunningService { pipeline, admin, drain_timeout })
    }
}

/// A service that is running.
pub struct RunningService {
    pipeline: Pipeline,
    admin: Option<AdminServer>,
    drain_timeout: Duration,
}

impl RunningService {
    /// Where metrics, health and status are served, if they are.
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin.as_ref().map(AdminServer::address)
    }

    /// Where to see how the actors are.
    pub fn board(&self) -> Board {
        self.pipeline.board()
    }

    /// Stops polling, and waits until what was received is settled, or the drain time-out is over.
    pub async fn drain(self) {
        let seconds = self.drain_timeout.as_secs();
        match self.pipeline.drain(self.drain_timeout).await {
            0 => tracing::info!("drained; nothing is left in memory"),
            left => tracing::warn!(
                left,
                "not drained within {seconds} s; the queue brings the messages again"
            ),
        }
        if let Some(admin) = self.admin {
            admin.stop().await;
        }
    }
}

struct ServiceInsight {
    board: Board,
    health: Health,
    budgets: Box<dyn Fn() -> Vec<BudgetUse> + Send + Sync>,
    store: Store,
}

impl Insight for ServiceInsight {
    fn actors(&self) -> Vec<ActorStatus> {
        self.board.statuses()
    }

    fn budgets(&self) -> Vec<BudgetUse> {
        (self.budgets)()
    }

    fn pool(&self) -> (u32, u32) {
        self.store.connections()
    }

    fn troubles(&self) -> BTreeMap<String, String> {
        self.health.troubles()
    }
}

fn start_admin(
    config: AdminConfig,
    metrics: Arc<Metrics>,
    insight: Box<dyn Insight>,
) -> Result<AdminServer, ServiceError> {
    let AdminConfig { listen, token } = config;
    let server = AdminServer::start(AdminOptions { listen, token }, metrics, insight)
        .map_err(|error| ServiceError::Admin(listen, error))?;
    tracing::info!(address = %server.address(), "serving /metrics /livez /readyz /status");
    Ok(server)
}

/// The credentials of the environment, or else those that the configuration names.
pub(crate) async fn credentials(config: &Config) -> Result<CredentialProvider, ServiceError> {
    let given = config.credentials.clone();
    let elsewhere = !Credentials::are_in_environment();
    let source = match (given.file, given.role) {
        (Some(file), _) if elsewhere => CredentialSource::File(file),
        (_, Some(role)) if elsewhere => {
            let endpoint = given.metadata_endpoint.trim_end_matches('/');
            let url = format!("{endpoint}/latest/meta-data/cam/security-credentials/{role}");
            CredentialSource::InstanceRole(url.parse().expect("a loaded configuration is valid"))
        }
        _ => CredentialSource::Fixed(Credentials::from_env_or(
            given.secret_id,
            given.secret_key,
            given.token,
        )?),
    };
    Ok(CredentialProvider::read(source).await?)
}

fn supervision(config: &SupervisionConfig) -> Supervision {
    Supervision {
        frozen_after: Duration::from_secs(config.frozen_after_seconds),
        max_restarts: config.max_restarts,
        restart_window: Duration::from_secs(config.restart_window_seconds),
    }
}

fn metrics(queues: &[QueueConfig]) -> Metrics {
    let metrics = Metrics::new();
    for queue in queues {
        if let Some(seconds) = queue.max_unacked_seconds {
            metrics.set_age_limit(&queue.name, seconds);
        }
    }
    metrics
}

pub(crate) fn store_options(config: &Config) -> StoreOptions {
    StoreOptions {
        url: config.database.url.clone(),
        pool_size: config.database.pool_size,
        connect_timeout: Duration::from_secs(config.database.connect_timeout_seconds),
        statement_timeout: Duration::from_secs(config.database.statement_timeout_seconds),
        prepared_statements: config.database.prepared_statements,
    }
}

pub(crate) fn client(
    queue: &QueueConfig,
    credentials: &CredentialProvider,
) -> Result<Client, CmqError> {
    let endpoint = Endpoint::parse(&queue.endpoint).expect("a loaded configuration is valid");
    let signature_method = queue.signature_method;
    Client::new(endpoint, ClientOptions { credentials: credentials.clone(), signature_method })
}

fn reader(queue: &QueueConfig, times: &EventTimes) -> EventReader {
    let (body_encoding, envelope) = (queue.body_encoding, queue.envelope.envelope());
    EventReader { body_encoding, envelope, times: times.clone() }
}

fn queue_options(
    queue: &QueueConfig,
    times: &EventTimes,
    credentials: &CredentialProvider,
) -> Result<QueueOptions, ServiceError> {
    Ok(QueueOptions {
        name: queue.name.clone(),
        client: client(queue, credentials)?,
        reader: reader(queue, times),
        visibility_timeout: Duration::from_secs(queue.visibility_timeout_seconds.into()),
        max_unacked: queue.max_unacked_seconds.map(|seconds| Duration::from_secs(seconds.into())),
        rescue_after: queue.max_unacked_seconds.map(|seconds| {
            Duration::from_secs(u64::from(seconds) * u64::from(queue.rescue_at_percent) / 100)
        }),
        polling_wait_seconds: queue.polling_wait_seconds,
        max_concurrent_polls: queue.max_concurrent_polls,
        max_in_flight_messages: queue.max_in_flight_messages,
        max_in_flight_bytes: queue.max_in_flight_bytes,
    })
}

type EventTimes = Arc<std::collections::HashMap<String, EventTimeRule>>;

/// A horizon stays in force when the configuration forgets it: without the events' time, those whose
/// claims are gone could not be told from new ones.
async fn check_retention(
    store: &Store,
    consumer: &str,
    registry: &Registry,
    retention: &[Retention],
) -> Result<(), ServiceError> {
    let types: Vec<&str> = registry.iter().map(|(event_type, _)| event_type).collect();
    let no_applier = |rule: &&Retention| !types.contains(&rule.event_type.as_str());
    if let Some(Retention { event_type, .. }) = retention.iter().find(no_applier) {
        let text =
            format!("there is no applier for the event type {event_type:?}; remove its entry");
        return Err(ServiceError::Retention(text));
    }
    let (consumer, limit) = (consumer.to_owned(), store.statement_timeout());
    let found = store
        .run(move |connection| in_transaction(connection, limit, |tx| horizons(tx, &consumer)))
        .await?
        .map_err(|error| ServiceError::Retention(format!("the horizons: {error}")))?;
    found.iter().try_for_each(|horizon| {
        let rule = retention.iter().find(|rule| rule.event_type == horizon.event_type);
        let now = rule.map(|rule| rule.event_time.to_string());
        match now {
            Some(now) if now == horizon.event_time => Ok(()),
            _ => Err(ServiceError::Retention(format!(
                "claims of {:?} before {} (UTC) were deleted by the time of {}; give it an entry again \
                 with that event_time, or events from before could be applied twice",
                horizon.event_type, horizon.horizon, horizon.event_time
            ))),
        }
    })
}

/// Says what of the server's settings is against hapax's promises; it works nevertheless.
async fn warn_of_settings(store: &Store, pool_size: u32) -> Result<(), ServiceError> {
    let limit = store.statement_timeout();
    match store.run(move |connection| server_concerns(connection, limit, pool_size)).await? {
        Ok(concerns) => concerns.iter().for_each(|concern| tracing::warn!("database: {concern}")),
        Err(error) => tracing::debug!(%error, "the server's settings could not be looked at"),
    }
    Ok(())
}

/// [`concerns`], and a pool larger than what the server grants. In a transaction, for outside of one a
/// transaction-pooling proxy may give each round trip another connection.
pub(crate) fn server_concerns(
    connection: &mut DbConnection,
    limit: Duration,
    pool_size: u32,
) -> Result<Vec<String>, diesel::result::Error> {
    in_transaction(connection, limit, |tx| {
        let mut found = concerns(tx)?;
        if let Some(granted) = connection_limit(tx)?
            && i64::from(pool_size) > granted
        {
            found.push(format!(
                "database.pool_size is {pool_size}, and the server grants this user {granted} \
                 connections; lower it, or raise the server's limit"
            ));
        }
        Ok(found)
    })
}

/// Bad connection data shows at the start, not at the first message.
async fn prepare(store: &Store, migrate_now: bool) -> Result<(), ServiceError> {
    let outcome = store
        .run(move |connection| match migrate_now {
            true => migrate(connection).map(Some).map_err(|error| error.to_string()),
            false => Ok(None),
        })
        .await?;
    if let Some(status) = outcome.map_err(ServiceError::Migration)? {
        for name in &status.applied {
            tracing::info!(name, "migration applied");
        }
    }
    Ok(())
}
