//! The SQL database: connections, migrations, the transaction, claims, held messages and what its
//! errors mean. Knows neither CMQ nor how events are written.

mod audit;
mod claim;
mod connection;
mod error_class;
mod held;
mod horizon;
mod migrations;
mod pool;
mod schema;
mod scratch;
mod server;
mod statement;
mod transaction;
mod url;

pub use audit::{DiscardedMessage, EventRecord, Finding, ProcessedEvent, inspect, verify};
pub use claim::{Claim, NewClaim, claim};
pub use connection::DbConnection;
pub use error_class::{DatabaseErrorClass, classify};
pub use held::{
    Discard, HeldCount, HeldFilter, HeldMessage, HeldState, HoldReason, NewHeldMessage, discard,
    due, find_held, held_counts, hold, lease, list_held, postpone, quarantine, release, schedule,
};
pub use horizon::{Horizon, advance_horizon, horizon, horizons, newest_event_time, purge_claims};
pub use migrations::{MigrationStatus, migrate, pending_migrations};
pub use pool::{Store, StoreError, StoreOptions, TransactionError};
pub use scratch::Scratch;
pub use server::{concerns, connection_limit};
pub use statement::{JsonText, ROWSET_NAME, Rowset, SqlType, SqlValue, Statement, StatementError};
pub use transaction::in_transaction;
pub use url::{Backend, DatabaseUrl, DatabaseUrlError};
