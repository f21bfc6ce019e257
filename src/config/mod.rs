//! The typed configuration: a TOML file, each key of which can be overridden from the environment.

mod load;
mod retention;
mod validate;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use secrecy::SecretString;
use serde::Deserialize;

use crate::cmq::signature::SignatureMethod;
use crate::event::{BodyEncoding, Envelope, EventIdPointers, Pointer, Preset};
use crate::handler::DeclaredApplierSpec;
use crate::pipeline::RetrySchedule;
use crate::store::DatabaseUrl;

pub use retention::RetentionConfig;

pub use load::{ConfigError, ENVIRONMENT_PREFIX, Problem};

/// Longest consumer name, in bytes.
pub const MAX_CONSUMER_BYTES: usize = 64;

/// The whole configuration.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Name of this consumer, 1 to 64 bytes: claims belong to it, so services that share a database
    /// need different names, and instances of one service the same.
    pub consumer: String,
    /// The database.
    pub database: DatabaseConfig,
    /// The CMQ credentials; the environment variables `TENCENTCLOUD_SECRET_ID`,
    /// `TENCENTCLOUD_SECRET_KEY` and `TENCENTCLOUD_TOKEN` come first.
    #[serde(default)]
    pub credentials: CredentialsConfig,
    /// The queues to consume.
    #[serde(rename = "queue", default)]
    pub queues: Vec<QueueConfig>,
    /// Appliers declared in SQL.
    #[serde(rename = "applier", default)]
    pub appliers: Vec<DeclaredApplierSpec>,
    /// How held messages are tried again.
    #[serde(default)]
    pub held: HeldConfig,
    /// How long claims are kept; for ever where an event type has no entry.
    #[serde(default)]
    pub retention: Vec<RetentionConfig>,
    /// How long a stop waits for what was received, in seconds.
    #[serde(default = "default_drain_timeout_seconds")]
    pub drain_timeout_seconds: u64,
    /// Metrics, health and status over HTTP; not served without this table.
    pub admin: Option<AdminConfig>,
    /// How the parts are watched.
    #[serde(default)]
    pub supervision: SupervisionConfig,
    /// What is logged.
    #[serde(default)]
    pub log: LogConfig,
}

/// `[admin]`
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdminConfig {
    /// Address; port 0 picks a free one. Off the loopback a token is needed.
    #[serde(default = "default_admin_listen")]
    pub listen: SocketAddr,
    /// Demanded as `Authorization: Bearer TOKEN`.
    pub token: Option<SecretString>,
}

/// `[supervision]`
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SupervisionConfig {
    /// An actor without a sign of life for this long is restarted, in seconds, 1 to 3,600.
    pub frozen_after_seconds: u64,
    /// An actor that ends more often than this within the window ends the service, 0 to 1,000.
    pub max_restarts: usize,
    /// The window, in seconds, 1 to 86,400.
    pub restart_window_seconds: u64,
}

impl Default for SupervisionConfig {
    fn default() -> Self {
        Self { frozen_after_seconds: 20, max_restarts: 10, restart_window_seconds: 60 }
    }
}

/// `[held]`
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HeldConfig {
    /// The first delay before a retrying message is tried again, in seconds, 1 to 86,400; each is twice
    /// the one before.
    pub first_retry_seconds: u64,
    /// The longest delay, in seconds, 1 to 86,400.
    pub longest_retry_seconds: u64,
    /// Tries from the table; then the message is left to a person, 1 to 10,000.
    pub max_retries: u32,
}

impl HeldConfig {
    /// When held messages are tried again.
    pub fn schedule(&self) -> RetrySchedule {
        RetrySchedule {
            first: Duration::from_secs(self.first_retry_seconds),
            longest: Duration::from_secs(self.longest_retry_seconds),
            max_retries: self.max_retries,
        }
    }
}

impl Default for HeldConfig {
    fn default() -> Self {
        Self { first_retry_seconds: 10, longest_retry_seconds: 900, max_retries: 20 }
    }
}

/// `[database]`
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DatabaseConfig {
    /// `postgres://…`, `mysql://…` or `sqlite://FILE`.
    pub url: DatabaseUrl,
    /// Most connections, 1 to 1,000.
    #[serde(default = "default_pool_size")]
    pub pool_size: u32,
    /// Longest wait for a connection, in seconds, 1 to 300.
    #[serde(default = "default_connect_timeout_seconds")]
    pub connect_timeout_seconds: u64,
    /// Longest time that a statement may take, in seconds, 1 to 43,200; SQLite has no such limit.
    #[serde(default = "default_statement_timeout_seconds")]
    pub statement_timeout_seconds: u64,
    /// Whether statements stay prepared on their connection. `false` behind a proxy that pools
    /// transactions without knowing of prepared statements (PgBouncer before 1.21).
    #[serde(default = "default_true")]
    pub prepared_statements: bool,
    /// Whether `run` brings hapax's own tables up to date.
    #[serde(default = "default_true")]
    pub migrate_at_start: bool,
}

/// `[credentials]`
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CredentialsConfig {
    /// Secret id.
    pub secret_id: Option<String>,
    /// Secret key.
    pub secret_key: Option<SecretString>,
    /// Token of temporary credentials.
    pub token: Option<SecretString>,
    /// A JSON file with `secret_id`, `secret_key` and, if temporary, `token` and `expires_at` (Unix
    /// seconds). Read anew when they are refused or expire soon.
    pub file: Option<PathBuf>,
    /// Name of the machine's role, whose credentials the instance metadata has.
    pub role: Option<String>,
    /// The instance metadata's address.
    #[serde(default = "default_metadata_endpoint")]
    pub metadata_endpoint: String,
}

impl Default for CredentialsConfig {
    fn default() -> Self {
        let metadata_endpoint = default_metadata_endpoint();
        let (secret_id, secret_key, token, file, role) = (None, None, None, None, None);
        Self { secret_id, secret_key, token, file, role, metadata_endpoint }
    }
}

/// `[[queue]]`
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueueConfig {
    /// The queue's name.
    pub name: String,
    /// `http://` or `https://` URL of the region's endpoint.
    pub endpoint: String,
    /// The queue's visibility time-out in seconds, 1 to 43,200, as it is set in CMQ.
    #[serde(default = "default_visibility_timeout_seconds")]
    pub visibility_timeout_seconds: u32,
    /// The queue's maximum unacknowledged time in seconds, 30 to 43,200, as it is set in CMQ: the age
    /// at which the queue drops a message. Where it is given, hapax warns in time.
    pub max_unacked_seconds: Option<u32>,
    /// The part of `max_unacked_seconds`, in percent, after which a message that cannot be applied is
    /// moved to `held_message`, 10 to 95.
    #[serde(default = "default_rescue_at_percent")]
    pub rescue_at_percent: u32,
    /// How far the queue can be rewound, in seconds, 0 to 1,296,000 (15 days), as it is set in CMQ.
    #[serde(default = "default_rewind_seconds")]
    pub rewind_seconds: u32,
    /// Length of a long poll in seconds, 0 to 30. Tencent recommends about 3.
    #[serde(default = "default_polling_wait_seconds")]
    pub polling_wait_seconds: u32,
    /// Long polls at the same time while the queue is full, 1 to 64; an idle queue costs one.
    #[serde(default = "default_max_concurrent_polls")]
    pub max_concurrent_polls: usize,
    /// Most messages in memory, 1 to 100,000.
    #[serde(default = "default_max_in_flight_messages")]
    pub max_in_flight_messages: usize,
    /// Most bytes of bodies in memory; polls in the air come on top (16 MiB each at most).
    #[serde(default = "default_max_in_flight_bytes")]
    pub max_in_flight_bytes: usize,
    /// How bodies are encoded.
    #[serde(default)]
    pub body_encoding: BodyEncoding,
    /// Hash of the request signatures.
    #[serde(default)]
    pub signature_method: SignatureMethod,
    /// Where in a body the event stands.
    #[serde(default)]
    pub envelope: EnvelopeConfig,
}

/// `[queue.envelope]`
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EnvelopeConfig {
    /// `native` or `cloudevents`.
    #[serde(default)]
    pub preset: Preset,
    /// JSON Pointer to the event id, or several whose values together are the id.
    pub event_id: Option<EventIdPointers>,
    /// JSON Pointer to the event type.
    pub event_type: Option<Pointer>,
    /// JSON Pointer to the time at which the event happened.
    pub occurred_at: Option<Pointer>,
    /// JSON Pointer to the payload; empty for the whole body.
    pub payload: Option<Pointer>,
}

impl EnvelopeConfig {
    /// The preset with what deviates from it.
    pub fn envelope(&self) -> Envelope {
        let Self { preset, event_id, event_type, occurred_at, payload } = self.clone();
        Envelope::new(preset, event_id, event_type, occurred_at, payload)
    }
}

/// `[log]`
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogConfig {
    /// What is logged: a level, or directives as of tracing-subscriber's `EnvFilter`.
    #[serde(default = "default_log_filter")]
    pub filter: String,
    /// How it is written.
    #[serde(default)]
    pub format: LogFormat,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self { filter: default_log_filter(), format: LogFormat::default() }
    }
}

/// How log lines are written, always to standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Human on a terminal, JSON otherwise.
    #[default]
    Auto,
    /// For reading.
    Human,
    /// One JSON object a line.
    Json,
}

fn default_metadata_endpoint() -> String {
    "http://metadata.tencentyun.com".into()
}

fn default_drain_timeout_seconds() -> u64 {
    30
}

fn default_admin_listen() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 9464))
}

fn default_pool_size() -> u32 {
    8
}

fn default_connect_timeout_seconds() -> u64 {
    5
}

fn default_statement_timeout_seconds() -> u64 {
    30
}

fn default_true() -> bool {
    true
}

fn default_visibility_timeout_seconds() -> u32 {
    30
}

fn default_rescue_at_percent() -> u32 {
    50
}

fn default_rewind_seconds() -> u32 {
    1_296_000
}

fn default_polling_wait_seconds() -> u32 {
    3
}

fn default_max_concurrent_polls() -> usize {
    4
}

fn default_max_in_flight_messages() -> usize {
    2_048
}

fn default_max_in_flight_bytes() -> usize {
    64 << 20
}

fn default_log_filter() -> String {
    "info".into()
}
