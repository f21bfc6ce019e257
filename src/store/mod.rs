//! The SQL database: connections, migrations, the transaction, claims, held messages and what its
//! errors mean. Knows neither CMQ nor how events are written.

mod claim;
mod connection;
mod error_class;
mod held;
mod migrations;
mod pool;
mod schema;
mod server;
mod statement;
mod transaction;
mod url;

pub use claim::{Claim, NewClaim, claim};
pub use connection::DbConnection;
pub use error_class::{DatabaseErrorClass, classify};
pub use held::{HeldState, NewHeldMessage, hold};
pub use migrations::{MigrationStatus, migrate, pending_migrations};
pub use pool::{Store, StoreError, StoreOptions};
pub use server::{concerns, connection_limit};
pub use statement::{JsonText, SqlType, SqlValue, Statement, StatementError};
pub use transaction::in_transaction;
pub use url::{Backend, DatabaseUrl, DatabaseUrlError};
