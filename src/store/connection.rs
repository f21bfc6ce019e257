//! One connection type over all backends.
//!
//! diesel's `MultiConnection` was chosen over a trait per backend: an applier gets one concrete type on
//! which diesel's query builder works whatever the database, and the few statements that differ (claims,
//! holds, migrations) match on the variant. A trait per backend would make every applier, and every
//! query in it, generic over the backend.

use diesel::connection::SimpleConnection;
use diesel::prelude::*;
use diesel::result::ConnectionError;

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
}

/// How long SQLite waits for another process's write, in milliseconds. Within this process writes
/// take turns before they come here.
#[cfg(feature = "sqlite")]
const SQLITE_BUSY_TIMEOUT_MILLIS: u32 = 5_000;

impl DbConnection {
    /// Connects and sets the session up. `DbConnection::establish` would try one backend after the
    /// other with any URL; here the scheme decides.
    pub(super) fn open(url: &DatabaseUrl) -> Result<Self, ConnectionError> {
        let target = url.connection_string();
        match url.backend() {
            #[cfg(feature = "sqlite")]
            Backend::Sqlite => {
                let mut connection = SqliteConnection::establish(target)?;
                connection
                    .batch_execute(&format!(
                        "PRAGMA busy_timeout = {SQLITE_BUSY_TIMEOUT_MILLIS};
                         PRAGMA journal_mode = WAL;
                         PRAGMA synchronous = FULL;
                         PRAGMA foreign_keys = ON;"
                    ))
                    .map_err(ConnectionError::CouldntSetupConfiguration)?;
                Ok(Self::Sqlite(connection))
            }
            #[cfg(feature = "postgres")]
            Backend::Postgres => Ok(Self::Postgres(PgConnection::establish(target)?)),
        }
    }

    /// Which kind of database this is.
    pub fn backend(&self) -> Backend {
        match self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite(_) => Backend::Sqlite,
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => Backend::Postgres,
        }
    }
}
