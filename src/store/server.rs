//! What the server is set to, as far as hapax depends on it.

#[cfg(any(feature = "postgres", feature = "mysql"))]
use diesel::prelude::*;
use diesel::result::QueryResult;

use super::connection::DbConnection;

/// How many connections the server grants this user at the same time; `None` where there is no limit.
///
/// # Errors
/// The database's.
pub fn connection_limit(connection: &mut DbConnection) -> QueryResult<Option<i64>> {
    match connection {
        #[cfg(feature = "sqlite")]
        DbConnection::Sqlite(_) => Ok(None),
        #[cfg(feature = "postgres")]
        DbConnection::Postgres(inner) => number(inner, postgres::CONNECTION_LIMIT).map(Some),
        #[cfg(feature = "mysql")]
        DbConnection::Mysql(inner) => number(inner, mysql::CONNECTION_LIMIT).map(Some),
    }
}

/// Settings of the server by which a promise of hapax's would not hold, one sentence each.
///
/// # Errors
/// The database's.
pub fn concerns(connection: &mut DbConnection) -> QueryResult<Vec<String>> {
    match connection {
        #[cfg(feature = "sqlite")]
        DbConnection::Sqlite(_) => Ok(Vec::new()),
        #[cfg(feature = "postgres")]
        DbConnection::Postgres(inner) => sentences(inner, postgres::CONCERNS),
        #[cfg(feature = "mysql")]
        DbConnection::Mysql(inner) => sentences(inner, mysql::CONCERNS),
    }
}

#[cfg(any(feature = "postgres", feature = "mysql"))]
#[derive(QueryableByName)]
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

#[cfg(any(feature = "postgres", feature = "mysql"))]
#[derive(QueryableByName)]
struct Sentence {
    #[diesel(sql_type = diesel::sql_types::Text)]
    sentence: String,
}

#[cfg(any(feature = "postgres", feature = "mysql"))]
fn sentences<C>(connection: &mut C, sql: &str) -> QueryResult<Vec<String>>
where
    C: diesel::connection::LoadConnection,
    diesel::query_builder::SqlQuery: for<'a> diesel::query_dsl::LoadQuery<'a, C, Sentence>,
{
    let rows = diesel::sql_query(sql).load::<Sentence>(connection)?;
    Ok(rows.into_iter().map(|row| row.sentence).collect())
}

#[cfg(feature = "postgres")]
pub mod postgres {
    /// Fails on a standby, whatever the role's own default is, and costs one round trip.
    pub const REQUIRE_WRITABLE: &str = "BEGIN READ WRITE; COMMIT";

    /// The smallest of the limits of the server, the role and the database.
    pub const CONNECTION_LIMIT: &str = "SELECT least(
            current_setting('max_connections')::bigint
                - current_setting('superuser_reserved_connections')::bigint,
            nullif(rolconnlimit, -1),
            nullif(datconnlimit, -1)) AS number
        FROM pg_roles, pg_database WHERE rolname = current_user AND datname = current_database()";

    pub const CONCERNS: &str = "SELECT name || ' is off: a crash of the server can lose what was
            deleted from the queue already' AS sentence
        FROM pg_settings WHERE name IN ('synchronous_commit', 'fsync') AND setting = 'off'";
}

#[cfg(feature = "mysql")]
pub mod mysql {
    use diesel::result::{ConnectionError, DatabaseErrorKind, Error};

    use super::*;

    /// `max_user_connections` is 0 where there is no limit to a user's.
    pub const CONNECTION_LIMIT: &str = "SELECT CAST(
        IF(@@max_user_connections = 0, @@max_connections,
           LEAST(@@max_connections, @@max_user_connections)) AS SIGNED) AS number";

    pub const CONCERNS: &str = "SELECT CONCAT('innodb_flush_log_at_trx_commit is ',
            @@innodb_flush_log_at_trx_commit, ' and not 1: a crash of the server can lose what was ',
            'deleted from the queue already') AS sentence
        FROM DUAL WHERE @@innodb_flush_log_at_trx_commit <> 1
        UNION ALL
        SELECT CONCAT('the table ', t.table_name, ' has the engine ', t.engine, ', which cannot ',
            'roll back: an event that is tried again changes it again; ALTER it to InnoDB')
        FROM information_schema.tables t JOIN information_schema.engines e ON t.engine = e.engine
        WHERE t.table_schema = DATABASE() AND t.table_type = 'BASE TABLE'
            AND e.transactions <> 'YES'";

    const IS_READ_ONLY: &str =
        "SELECT CAST(CAST(@@global.read_only AS CHAR) NOT IN ('0', 'OFF') AS SIGNED) AS number";

    const SQL_MODE: &str = "SELECT CAST(@@sql_mode AS CHAR) AS sentence";

    /// Without strict mode MySQL cuts a value off that does not fit, and calls it a warning. The two
    /// modes that are refused change what quotes and backslashes mean in a declared statement.
    pub fn require_strict_mode(connection: &mut MysqlConnection) -> Result<(), ConnectionError> {
        let mode = sentences(connection, SQL_MODE)
            .map_err(ConnectionError::CouldntSetupConfiguration)?
            .concat();
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
