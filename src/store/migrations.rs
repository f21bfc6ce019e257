//! Embedded migrations, run under a lock so that several instances may start at once.

use diesel::migration::Result as MigrationResult;
use diesel_migrations::{EmbeddedMigrations, MigrationHarness, embed_migrations};

use super::connection::DbConnection;

#[cfg(feature = "sqlite")]
const SQLITE: EmbeddedMigrations = embed_migrations!("migrations/sqlite");
#[cfg(feature = "postgres")]
const POSTGRES: EmbeddedMigrations = embed_migrations!("migrations/postgres");

/// Key of PostgreSQL's advisory lock: "hapax" in ASCII.
#[cfg(feature = "postgres")]
const POSTGRES_LOCK_KEY: i64 = 0x68_61_70_61_78;

/// What [`migrate`] did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MigrationStatus {
    /// Names of the migrations that were applied now, oldest first.
    pub applied: Vec<String>,
}

/// Brings the tables up to date. All of it is one transaction that holds a lock, so an instance that
/// starts at the same time waits and then finds nothing to do.
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
    }
}

/// Names of the migrations that are missing in the database, oldest first.
///
/// # Errors
/// The database's.
pub fn pending_migrations(connection: &mut DbConnection) -> MigrationResult<Vec<String>> {
    let names = match connection {
        #[cfg(feature = "sqlite")]
        DbConnection::Sqlite(inner) => inner
            .pending_migrations(SQLITE)?
            .iter()
            .map(|migration| migration.name().to_string())
            .collect(),
        #[cfg(feature = "postgres")]
        DbConnection::Postgres(inner) => inner
            .pending_migrations(POSTGRES)?
            .iter()
            .map(|migration| migration.name().to_string())
            .collect(),
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
