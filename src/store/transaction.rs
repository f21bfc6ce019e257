//! The transaction in which events are claimed and applied.

use std::time::Duration;

#[cfg(any(feature = "postgres", feature = "mysql"))]
use diesel::connection::SimpleConnection;
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
    format!(
        "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL statement_timeout = {millis}"
    )
}

/// An error ends PostgreSQL's transaction, but its COMMIT then answers with success (a ROLLBACK). The
/// query in front of it fails in a transaction that has ended so.
#[cfg(feature = "postgres")]
const POSTGRES_COMMIT: &str = "SELECT 1; COMMIT";

/// MySQL ends a transaction at a deadlock, and commits it at a statement like CREATE TABLE. Without
/// autocommit, what an applier does after that is not committed one by one; and the savepoint is gone,
/// so that [`MYSQL_COMMIT`] fails. The comments are for MariaDB and for MySQL only, which limit a
/// statement's time in different words (MySQL that of SELECT alone, so the wait for locks is limited,
/// too).
#[cfg(feature = "mysql")]
fn mysql_begin(statement_timeout: Duration) -> String {
    let (seconds, millis) = (statement_timeout.as_secs_f64(), statement_timeout.as_millis());
    let lock_seconds = statement_timeout.as_secs().max(1);
    format!(
        "SET SESSION autocommit = 0, time_zone = '+00:00', innodb_lock_wait_timeout = {lock_seconds}
             /*M!100101 , max_statement_time = {seconds} */ /*!50708 , max_execution_time = {millis} */;
         SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED;
         START TRANSACTION READ WRITE;
         SAVEPOINT hapax"
    )
}
#[cfg(feature = "mysql")]
const MYSQL_COMMIT: &str = "RELEASE SAVEPOINT hapax; COMMIT";

type Manager = <DbConnection as diesel::Connection>::TransactionManager;

/// Runs `work` in a transaction: commits when it returns `Ok`, rolls back otherwise. A transaction that
/// ended within `work`, by an error that `work` did not return, is not committed: that is an error, too.
/// An error of the commit itself leaves the outcome unknown. If `work` panics the transaction stays open, which
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
        Ok(value) => match commit(connection) {
            Ok(()) => Ok(value),
            Err(error) => {
                roll_back(connection);
                Err(error.into())
            }
        },
        Err(error) => {
            roll_back(connection);
            Err(error)
        }
    }
}

/// A rollback that fails leaves the connection broken, and the pool discards it.
fn roll_back(connection: &mut DbConnection) {
    let is_open = Manager::transaction_manager_status_mut(connection).transaction_depth();
    if let Ok(None) = is_open {
        return;
    }
    if let Err(rollback) = Manager::rollback_transaction(connection) {
        tracing::debug!(%rollback, "a rollback failed");
    }
}

fn commit(connection: &mut DbConnection) -> QueryResult<()> {
    match connection {
        #[cfg(feature = "sqlite")]
        DbConnection::Sqlite(inner) => AnsiTransactionManager::commit_transaction(inner),
        #[cfg(feature = "postgres")]
        DbConnection::Postgres(inner) => inner.batch_execute(POSTGRES_COMMIT).map_err(ended_within),
        #[cfg(feature = "mysql")]
        DbConnection::Mysql(inner) => {
            inner.batch_execute(MYSQL_COMMIT).map_err(ended_within)?;
            // diesel did not see this COMMIT.
            *AnsiTransactionManager::transaction_manager_status_mut(inner) = Default::default();
            Ok(())
        }
    }
}

/// How the two servers say that the transaction to commit is no more.
#[cfg(any(feature = "postgres", feature = "mysql"))]
const ENDED_WITHIN: &[&str] = &["current transaction is aborted", "SAVEPOINT hapax does not exist"];

#[cfg(any(feature = "postgres", feature = "mysql"))]
fn ended_within(error: Error) -> Error {
    let text = error.to_string();
    match ENDED_WITHIN.iter().any(|known| text.starts_with(known)) {
        true => Error::QueryBuilderError(
            "the transaction ended before its commit, by a database error that the applier did not \
             return or by a statement that commits; nothing was committed by hapax"
                .into(),
        ),
        false => error,
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
        #[cfg(feature = "mysql")]
        DbConnection::Mysql(inner) => {
            AnsiTransactionManager::begin_transaction_sql(inner, &mysql_begin(statement_timeout))
        }
    }
}
