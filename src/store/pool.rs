//! The connection pool, and the way from async code to it.

use std::sync::Arc;
use std::time::Duration;

use diesel::r2d2::{HandleError, ManageConnection, Pool, R2D2Connection};
use diesel::result::QueryResult;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::connection::DbConnection;
use super::transaction::in_transaction;
use super::url::{Backend, DatabaseUrl};

/// How the store is reached.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// The database.
    pub url: DatabaseUrl,
    /// Most connections.
    pub pool_size: u32,
    /// Longest wait for a connection.
    pub connect_timeout: Duration,
    /// Longest time that a statement may take; SQLite has no such limit.
    pub statement_timeout: Duration,
    /// Whether statements stay prepared on their connection. Behind a proxy that gives each
    /// transaction another connection, and does not know of them, they must not.
    pub prepared_statements: bool,
}

impl StoreOptions {
    fn concurrency(&self) -> usize {
        match self.url.backend() {
            #[cfg(feature = "sqlite")]
            Backend::Sqlite => 1,
            #[cfg(feature = "postgres")]
            Backend::Postgres => self.pool_size as usize,
            #[cfg(feature = "mysql")]
            Backend::Mysql => self.pool_size as usize,
        }
    }
}

/// The database could not be used at all; nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// No connection could be had.
    #[error("no connection to {url} within {seconds} s: {reason}")]
    Connect {
        /// The database, without a password.
        url: String,
        /// How long it was tried.
        seconds: u64,
        /// The last error of the client library.
        reason: String,
    },
    /// The work on the connection panicked; its connection is discarded.
    #[error("work on the database panicked: {0}")]
    Panicked(String),
}

/// A transaction did not take place, or its outcome is unknown.
#[derive(Debug, thiserror::Error)]
pub enum TransactionError {
    /// The database could not be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The database refused something.
    #[error(transparent)]
    Database(#[from] diesel::result::Error),
}

/// The pooled database. Cheap to clone.
#[derive(Clone)]
pub struct Store {
    pool: Pool<Manager>,
    /// Work waits here, not in a thread. SQLite has one writer at a time, so its work takes turns.
    turns: Arc<Semaphore>,
    options: Arc<StoreOptions>,
}

impl Store {
    /// A pool that connects when it is first used.
    pub fn new(options: StoreOptions) -> Self {
        let pool = Pool::builder()
            .max_size(options.pool_size)
            .min_idle(Some(0))
            .connection_timeout(options.connect_timeout)
            .error_handler(Box::new(LogErrors))
            .build_unchecked(Manager {
                url: options.url.clone(),
                prepared_statements: options.prepared_statements,
            });
        let turns = Arc::new(Semaphore::new(options.concurrency()));
        Self { pool, turns, options: Arc::new(options) }
    }

    /// Which kind of database it is.
    pub fn backend(&self) -> Backend {
        self.options.url.backend()
    }

    /// Longest time that a statement may take.
    pub fn statement_timeout(&self) -> Duration {
        self.options.statement_timeout
    }

    /// How many pieces of work run at the same time.
    pub fn concurrency(&self) -> usize {
        self.options.concurrency()
    }

    /// Open and idle connections.
    pub fn connections(&self) -> (u32, u32) {
        let state = self.pool.state();
        (state.connections, state.idle_connections)
    }

    /// Waits for the turn to use a connection. Keep it while using one: it bounds the threads that
    /// block at the same time.
    pub async fn turn(&self) -> OwnedSemaphorePermit {
        self.turns.clone().acquire_owned().await.expect("the semaphore is never closed")
    }

    /// Runs `work` with a connection on a thread that may block.
    ///
    /// # Errors
    /// No connection within the configured time, or `work` panicked.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut DbConnection) -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        let turn = self.turn().await;
        let store = self.clone();
        let task = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            store.run_here(work)
        });
        match task.await {
            Ok(result) => result,
            Err(error) => Err(StoreError::Panicked(error.to_string())),
        }
    }

    /// Runs `work` with a connection on this thread.
    ///
    /// # Errors
    /// No connection within the configured time.
    pub fn run_here<T>(&self, work: impl FnOnce(&mut DbConnection) -> T) -> Result<T, StoreError> {
        let mut connection = self.pool.get().map_err(|error| StoreError::Connect {
            url: self.options.url.to_string(),
            seconds: self.options.connect_timeout.as_secs(),
            reason: error.to_string(),
        })?;
        Ok(work(&mut connection))
    }
}

impl Store {
    /// Runs `work` in a transaction on a thread that may block.
    ///
    /// # Errors
    /// The database cannot be used, or refused something.
    pub async fn transact<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut DbConnection) -> QueryResult<T> + Send + 'static,
    ) -> Result<T, TransactionError> {
        let limit = self.statement_timeout();
        Ok(self.run(move |connection| in_transaction(connection, limit, work)).await??)
    }

    /// Runs `work` in a transaction on this thread.
    ///
    /// # Errors
    /// As [`Self::transact`].
    pub fn transact_here<T>(
        &self,
        work: impl FnOnce(&mut DbConnection) -> QueryResult<T>,
    ) -> Result<T, TransactionError> {
        let limit = self.statement_timeout();
        Ok(self.run_here(|connection| in_transaction(connection, limit, work))??)
    }
}

struct Manager {
    url: DatabaseUrl,
    prepared_statements: bool,
}

impl ManageConnection for Manager {
    type Connection = DbConnection;
    type Error = diesel::r2d2::Error;

    fn connect(&self) -> Result<DbConnection, Self::Error> {
        DbConnection::open(&self.url, self.prepared_statements)
            .map_err(diesel::r2d2::Error::ConnectionError)
    }

    fn is_valid(&self, connection: &mut DbConnection) -> Result<(), Self::Error> {
        connection.verify().map_err(diesel::r2d2::Error::QueryError)
    }

    /// A connection that saw a panic still has its transaction open and is broken by that.
    fn has_broken(&self, connection: &mut DbConnection) -> bool {
        std::thread::panicking() || connection.is_broken()
    }
}

#[derive(Debug)]
struct LogErrors;

impl<E: std::error::Error> HandleError<E> for LogErrors {
    fn handle_error(&self, error: E) {
        tracing::debug!(%error, "a database connection could not be made");
    }
}
