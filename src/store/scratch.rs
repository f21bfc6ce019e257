//! A place of its own in the user's database, for drills: a schema, a database, or another file.

use diesel::prelude::*;
use diesel::result::QueryResult;

use super::connection::DbConnection;
use super::url::{Backend, DatabaseUrl, DatabaseUrlError};

/// Where drills take place.
#[derive(Debug, Clone)]
pub struct Scratch {
    /// The way there. On PostgreSQL sessions carry the place's name as `application_name`.
    pub url: DatabaseUrl,
    #[cfg_attr(not(any(feature = "postgres", feature = "mysql")), expect(dead_code))]
    name: String,
}

impl Scratch {
    /// A place beside what `url` leads to; `name` is a word of letters, digits and underscores.
    ///
    /// # Errors
    /// The URL cannot be extended.
    pub fn beside(url: &DatabaseUrl, name: &str) -> Result<Self, DatabaseUrlError> {
        Ok(Self { url: url.beside(name)?, name: name.to_owned() })
    }

    /// Makes the place, by a connection to the user's own.
    ///
    /// # Errors
    /// The database's, for want of the right to create it.
    pub fn create(&self, connection: &mut DbConnection) -> QueryResult<()> {
        self.execute(connection, "CREATE")
    }

    /// Removes the place with all that is in it, by a connection to the user's own.
    ///
    /// # Errors
    /// The database's.
    pub fn remove(&self, connection: &mut DbConnection) -> QueryResult<()> {
        self.execute(connection, "DROP")
    }

    fn execute(&self, connection: &mut DbConnection, verb: &str) -> QueryResult<()> {
        let sql: Option<String> = match connection.backend() {
            #[cfg(feature = "sqlite")]
            Backend::Sqlite => {
                if verb == "DROP" {
                    self.url.remove_files();
                }
                None
            }
            #[cfg(feature = "postgres")]
            Backend::Postgres if verb == "DROP" => {
                Some(format!("DROP SCHEMA {} CASCADE", self.name))
            }
            #[cfg(feature = "postgres")]
            Backend::Postgres => Some(format!("CREATE SCHEMA {}", self.name)),
            #[cfg(feature = "mysql")]
            Backend::Mysql => Some(format!("{verb} DATABASE {}", self.name)),
        };
        match sql {
            Some(sql) => diesel::sql_query(sql).execute(connection).map(drop),
            None => Ok(()),
        }
    }

    /// Whether the database has sessions that can be ended.
    pub fn has_sessions(&self) -> bool {
        match self.url.backend() {
            #[cfg(feature = "sqlite")]
            Backend::Sqlite => false,
            #[cfg(feature = "postgres")]
            Backend::Postgres => true,
            #[cfg(feature = "mysql")]
            Backend::Mysql => true,
        }
    }

    /// Ends all sessions in the place but this one; returns how many there were. SQLite has none.
    ///
    /// # Errors
    /// The database's.
    pub fn end_sessions(&self, connection: &mut DbConnection) -> QueryResult<usize> {
        match connection.backend() {
            #[cfg(feature = "sqlite")]
            Backend::Sqlite => Ok(0),
            #[cfg(feature = "postgres")]
            Backend::Postgres => diesel::sql_query(format!(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                 WHERE application_name = '{}' AND pid <> pg_backend_pid()",
                self.name
            ))
            .execute(connection),
            #[cfg(feature = "mysql")]
            Backend::Mysql => {
                let sql = format!(
                    "SELECT CAST(id AS SIGNED) AS id FROM information_schema.processlist
                     WHERE db = '{}' AND id <> CONNECTION_ID()",
                    self.name
                );
                let sessions: Vec<Session> = diesel::sql_query(sql).load(connection)?;
                // A session may have ended by itself.
                let end = |session: &Session| {
                    diesel::sql_query(format!("KILL {}", session.id)).execute(connection).is_ok()
                };
                Ok(sessions.iter().map(end).filter(|ended| *ended).count())
            }
        }
    }
}

#[cfg(feature = "mysql")]
#[derive(QueryableByName)]
struct Session {
    #[diesel(sql_type = diesel::sql_types::BigInt)]
    id: i64,
}
