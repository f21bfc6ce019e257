//! One connection type over all backends.
//!
//! diesel's `MultiConnection` was chosen over a trait per backend: an applier gets one concrete type on
//! which diesel's query builder works whatever the database, and the few statements that differ (claims,
//! holds, migrations) match on the variant. A trait per backend would make every applier, and every
//! query in it, generic over the backend.

use diesel::connection::{CacheSize, SimpleConnection};
use diesel::prelude::*;
use diesel::result::{ConnectionError, QueryResult};

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

/// Fails on a standby, whatever the role's own default is, and costs one round trip.
#[cfg(feature = "postgres")]
const POSTGRES_CAN_WRITE: &str = "BEGIN READ WRITE; COMMIT";

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
                mysql::require_strict_mode(&mut connection)?;
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
            Self::Postgres(inner) => inner.batch_execute(POSTGRES_CAN_WRITE),
            #[cfg(feature = "mysql")]
            Self::Mysql(inner) => mysql::require_writable(inner),
        }
    }

    /// How many connections the server grants this user at the same time; `None` where there is no
    /// limit.
    ///
    /// # Errors
    /// The database's.
    pub fn server_connection_limit(&mut self) -> QueryResult<Option<i64>> {
        match self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite(_) => Ok(None),
            #[cfg(feature = "postgres")]
            Self::Postgres(inner) => {
                // In a transaction, for the sake of transaction-pooling proxies.
                inner.transaction(|inner| number(inner, POSTGRES_CONNECTION_LIMIT)).map(Some)
            }
            #[cfg(feature = "mysql")]
            Self::Mysql(inner) => number(inner, mysql::CONNECTION_LIMIT).map(Some),
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

/// The smallest of the limits of the server, the role and the database.
#[cfg(feature = "postgres")]
const POSTGRES_CONNECTION_LIMIT: &str = "SELECT least(
        current_setting('max_connections')::bigint
            - current_setting('superuser_reserved_connections')::bigint,
        nullif(rolconnlimit, -1),
        nullif(datconnlimit, -1)) AS number
    FROM pg_roles, pg_database WHERE rolname = current_user AND datname = current_database()";

#[cfg(any(feature = "postgres", feature = "mysql"))]
#[derive(diesel::QueryableByName)]
struct Number {
    #[diesel(sql_type = diesel::sql_types::BigInt)]
    number: i64,
}

#[cfg(any(feature = "postgres", feature = "mysql"))]
fn number<C>(connection: &mut C, sql: &str) -> QueryResult<i64>
where
    C: diesel::connection::LoadConnection,
    diesel::query_builder::SqlQuery: for<'a> diesel::query_dsl::LoadQuery<'a, C, Number>,
{
    Ok(diesel::sql_query(sql).get_result::<Number>(connection)?.number)
}

#[cfg(feature = "mysql")]
mod mysql {
    use diesel::result::{DatabaseErrorKind, Error};
    use diesel::sql_types::Text;

    use super::*;

    /// `max_user_connections` is 0 where there is no limit to a user's.
    pub const CONNECTION_LIMIT: &str = "SELECT CAST(
        IF(@@max_user_connections = 0, @@max_connections,
           LEAST(@@max_connections, @@max_user_connections)) AS SIGNED) AS number";
    const IS_READ_ONLY: &str =
        "SELECT CAST(CAST(@@global.read_only AS CHAR) NOT IN ('0', 'OFF') AS SIGNED) AS number";

    #[derive(diesel::QueryableByName)]
    struct Mode {
        #[diesel(sql_type = Text)]
        mode: String,
    }

    /// Without strict mode MySQL cuts a value off that does not fit, and calls it a warning. The two
    /// modes that are refused change what quotes and backslashes mean in a declared statement.
    pub fn require_strict_mode(connection: &mut MysqlConnection) -> Result<(), ConnectionError> {
        let mode = diesel::sql_query("SELECT CAST(@@sql_mode AS CHAR) AS mode")
            .get_result::<Mode>(connection)
            .map_err(ConnectionError::CouldntSetupConfiguration)?
            .mode;
        let has = |name: &str| mode.split(',').any(|word| word == name);
        if !has("STRICT_TRANS_TABLES") && !has("STRICT_ALL_TABLES") {
            return Err(ConnectionError::BadConnection(format!(
                "the server's sql_mode is {mode:?}, which is not strict: values that do not fit would \
                 be cut off; add STRICT_TRANS_TABLES to it"
            )));
        }
        match ["ANSI_QUOTES", "NO_BACKSLASH_ESCAPES"].into_iter().find(|name| has(name)) {
            Some(name) => Err(ConnectionError::BadConnection(format!(
                "the server's sql_mode has {name}, by which declared statements would be misread; \
                 take it out for hapax's user"
            ))),
            None => Ok(()),
        }
    }

    /// A user with the right to write to a replica is refused, too: what is written there is lost.
    pub fn require_writable(connection: &mut MysqlConnection) -> QueryResult<()> {
        match number(connection, IS_READ_ONLY)? {
            0 => Ok(()),
            _ => {
                let text = "the server is read-only (a replica?)".to_owned();
                Err(Error::DatabaseError(DatabaseErrorKind::ReadOnlyTransaction, Box::new(text)))
            }
        }
    }
}
