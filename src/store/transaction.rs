//! The transaction in which events are claimed and applied.

use std::time::Duration;

use diesel::connection::{AnsiTransactionManager, TransactionManager};
use diesel::result::{Error, QueryResult};

use super::connection::DbConnection;

/// SQLite takes its write lock at the start: a transaction that reads first and writes later would
/// fail at the write when another one came in between.
#[cfg(feature = "sqlite")]
const SQLITE_BEGIN: &str = "BEGIN IMMEDIATE";
/// Everything that a transaction needs is said in it, in one round trip: a server or role may default to
/// other values, and behind a transaction-pooling proxy no session keeps any.
#[cfg(feature = "postgres")]
fn postgres_begin(statement_timeout: Duration) -> String {
    let millis = statement_timeout.as_millis();
    format!("BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL statement_timeout = {millis}")
}

type Manager = <DbConnection as diesel::Connection>::TransactionManager;

/// Runs `work` in a transaction: commits when it returns `Ok`, rolls back otherwise. An error of the
/// commit itself leaves the outcome unknown. If `work` panics the transaction stays open, which
/// marks the connection as broken. A statement that takes longer than `statement_timeout` is an error
/// (not on SQLite).
///
/// # Errors
/// What `work` returned, or the database's own error from BEGIN or COMMIT.
pub fn in_transaction<T, E: From<Error>>(
    connection: &mut DbConnection,
    statement_timeout: Duration,
    work: impl FnOnce(&mut DbConnection) -> Result<T, E>,
) -> Result<T, E> {
    begin(connection, statement_timeout)?;
    match work(connection) {
        Ok(value) => {
            Manager::commit_transaction(connection)?;
            Ok(value)
        }
        Err(error) => {
            // A rollback that fails leaves the connection broken, and the pool discards it.
            if let Err(rollback) = Manager::rollback_transaction(connection) {
                tracing::debug!(%rollback, "a rollback failed");
            }
            Err(error)
        }
    }
}

fn begin(connection: &mut DbConnection, statement_timeout: Duration) -> QueryResult<()> {
    _ = statement_timeout;
    match connection {
        #[cfg(feature = "sqlite")]
        DbConnection::Sqlite(inner) => {
            AnsiTransactionManager::begin_transaction_sql(inner, SQLITE_BEGIN)
        }
        #[cfg(feature = "postgres")]
        DbConnection::Postgres(inner) => {
            AnsiTransactionManager::begin_transaction_sql(inner, &postgres_begin(statement_timeout))
        }
    }
}
