//! Embedded migrations, run under a lock so that several instances may start at once.

use diesel::migration::Result as MigrationResult;
use diesel_migrations::{EmbeddedMigrations, MigrationHarness, embed_migrations};

use super::connection::DbConnection;

#[cfg(feature = "sqlite")]
const SQLITE: EmbeddedMigrations = embed_migrations!("migrations/sqlite");
#[cfg(feature = "postgres")]
const POSTGRES: EmbeddedMigrations = embed_migrations!("migrations/postgres");
#[cfg(feature = "mysql")]
const MYSQL: EmbeddedMigrations = embed_migrations!("migrations/mysql");

/// Key of PostgreSQL's advisory lock: "hapax" in ASCII.
#[cfg(feature = "postgres")]
const POSTGRES_LOCK_KEY: i64 = 0x68_61_70_61_78;

/// What [`migrate`] did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MigrationStatus {
    /// Names of the migrations that were applied now, oldest first.
    pub applied: Vec<String>,
}

/// Brings the tables up to date under a lock, so an instance that starts at the same time waits and then
/// finds nothing to do. All of it is one transaction, but for MySQL, where each statement that creates a
/// table commits; there the migrations are written so that they can be run again.
///
/// # Errors
/// The database refused a statement, for instance for want of the right to create tables.
pub fn migrate(connection: &mut DbConnection) -> MigrationResult<MigrationStatus> {
    match connection {
        #[cfg(feature = "sqlite")]
        DbConnection::Sqlite(inner) => inner.immediate_transaction(|inner| run(inner, SQLITE)),
        #[cfg(feature = "postgres")]
        DbConnection::Postgres(inner) => diesel::Connection::transaction(inner, |inner| {
            let lock = format!("SELECT pg_advisory_xact_lock({POSTGRES_LOCK_KEY})");
            diesel::connection::SimpleConnection::batch_execute(inner, &lock)?;
            run(inner, POSTGRES)
        }),
        #[cfg(feature = "mysql")]
        DbConnection::Mysql(inner) => mysql::under_lock(inner, |inner| run(inner, MYSQL)),
    }
}

/// Names of the migrations that are missing in the database, oldest first.
///
/// # Errors
/// The database's.
pub fn pending_migrations(connection: &mut DbConnection) -> MigrationResult<Vec<String>> {
    // In a transaction, for outside of one a transaction-pooling proxy may give each round trip another
    // connection.
    macro_rules! names {
        ($connection:expr, $source:expr) => {
            diesel::Connection::transaction($connection, |connection| {
                let pending = connection.pending_migrations($source)?;
                let names = pending.iter().map(|migration| migration.name().to_string());
                MigrationResult::Ok(names.collect())
            })?
        };
    }
    let names = match connection {
        #[cfg(feature = "sqlite")]
        DbConnection::Sqlite(inner) => names!(inner, SQLITE),
        #[cfg(feature = "postgres")]
        DbConnection::Postgres(inner) => names!(inner, POSTGRES),
        #[cfg(feature = "mysql")]
        DbConnection::Mysql(inner) => names!(inner, MYSQL),
    };
    Ok(names)
}

fn run<DB, C>(connection: &mut C, source: EmbeddedMigrations) -> MigrationResult<MigrationStatus>
where
    DB: diesel::backend::Backend,
    C: MigrationHarness<DB>,
{
    let versions = connection.run_pending_migrations(source)?;
    Ok(MigrationStatus { applied: versions.iter().map(ToString::to_string).collect() })
}

#[cfg(feature = "mysql")]
mod mysql {
    use diesel::prelude::*;
    use diesel::result::QueryResult;
    use diesel::sql_types::{BigInt, Nullable};

    use super::MigrationResult;

    /// The lock is the server's, so it is named after the database.
    const LOCK_NAME: &str = "CONCAT('hapax ', MD5(DATABASE()))";
    /// Longest wait for another instance's migrations, in seconds.
    const LOCK_TIMEOUT_SECONDS: u32 = 300;

    #[derive(QueryableByName)]
    struct Answer {
        #[diesel(sql_type = Nullable<BigInt>)]
        value: Option<i64>,
    }

    fn ask(connection: &mut MysqlConnection, function: &str) -> QueryResult<Option<i64>> {
        let sql = format!("SELECT {function} AS value");
        Ok(diesel::sql_query(sql).get_result::<Answer>(connection)?.value)
    }

    pub fn under_lock<T>(
        connection: &mut MysqlConnection,
        work: impl FnOnce(&mut MysqlConnection) -> MigrationResult<T>,
    ) -> MigrationResult<T> {
        let lock = format!("GET_LOCK({LOCK_NAME}, {LOCK_TIMEOUT_SECONDS})");
        if ask(connection, &lock)? != Some(1) {
            let text = format!("another instance's migrations took over {LOCK_TIMEOUT_SECONDS} s");
            return Err(text.into());
        }
        let result = work(connection);
        ask(connection, &format!("RELEASE_LOCK({LOCK_NAME})"))?;
        result
    }
}
