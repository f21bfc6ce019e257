//! One connection type over all backends.
//!
//! diesel's `MultiConnection` was chosen over a trait per backend: an applier gets one concrete type on
//! which diesel's query builder works whatever the database, and the few statements that differ (claims,
//! holds, migrations) match on the variant. A trait per backend would make every applier, and every
//! query in it, generic over the backend.

use diesel::connection::{CacheSize, SimpleConnection};
use diesel::prelude::*;
use diesel::result::{ConnectionError, QueryResult};

#[cfg(any(feature = "postgres", feature = "mysql"))]
use super::server;
use super::url::{Backend, DatabaseUrl};

/// A connection to the configured database. Appliers get it with a transaction open on it.
#[derive(diesel::MultiConnection)]
pub enum DbConnection {
    /// SQLite.
    #[cfg(feature = "sqlite")]
    Sqlite(SqliteConnection),
    /// PostgreSQL.
    #[cfg(feature = "postgres")]
    Postgres(PgConnection),
    /// MySQL or MariaDB.
    #[cfg(feature = "mysql")]
    Mysql(MysqlConnection),
}

/// How long SQLite waits for another process's write, in milliseconds. Within this process writes
/// take turns before they come here.
#[cfg(feature = "sqlite")]
const SQLITE_BUSY_TIMEOUT_MILLIS: u32 = 5_000;

impl DbConnection {
    /// Connects and sets the session up. `DbConnection::establish` would try one backend after the
    /// other with any URL; here the scheme decides.
    pub(super) fn open(
        url: &DatabaseUrl,
        prepared_statements: bool,
    ) -> Result<Self, ConnectionError> {
        let target = url.connection_string();
        let mut connection = match url.backend() {
            #[cfg(feature = "sqlite")]
            Backend::Sqlite => {
                let mut connection = SqliteConnection::establish(&target)?;
                connection
                    .batch_execute(&format!(
                        "PRAGMA busy_timeout = {SQLITE_BUSY_TIMEOUT_MILLIS};
                         PRAGMA journal_mode = WAL;
                         PRAGMA synchronous = FULL;
                         PRAGMA foreign_keys = ON;"
                    ))
                    .map_err(ConnectionError::CouldntSetupConfiguration)?;
                Self::Sqlite(connection)
            }
            #[cfg(feature = "postgres")]
            Backend::Postgres => Self::Postgres(PgConnection::establish(&target)?),
            #[cfg(feature = "mysql")]
            Backend::Mysql => {
                let mut connection = MysqlConnection::establish(&target)?;
                server::mysql::require_strict_mode(&mut connection)?;
                Self::Mysql(connection)
            }
        };
        if !prepared_statements {
            connection.set_prepared_statement_cache_size(CacheSize::Disabled);
        }
        connection.verify().map_err(ConnectionError::CouldntSetupConfiguration)?;
        Ok(connection)
    }

    /// Whether the server answers and takes writes: a connection that outlived a failover may lead to
    /// a server that is a replica now. Uses no transaction of the session and no prepared statement
    /// that outlives the call.
    pub(super) fn verify(&mut self) -> QueryResult<()> {
        match self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite(_) => Ok(()),
            #[cfg(feature = "postgres")]
            Self::Postgres(inner) => inner.batch_execute(server::postgres::REQUIRE_WRITABLE),
            #[cfg(feature = "mysql")]
            Self::Mysql(inner) => server::mysql::require_writable(inner),
        }
    }

    /// Which kind of database this is.
    pub fn backend(&self) -> Backend {
        match self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite(_) => Backend::Sqlite,
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => Backend::Postgres,
            #[cfg(feature = "mysql")]
            Self::Mysql(_) => Backend::Mysql,
        }
    }
}
