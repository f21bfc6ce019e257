//! Database URLs: the scheme selects the backend.

use std::borrow::Cow;
use std::fmt;

use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;

/// A kind of database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// SQLite, bundled.
    #[cfg(feature = "sqlite")]
    Sqlite,
    /// PostgreSQL.
    #[cfg(feature = "postgres")]
    Postgres,
    /// MySQL or MariaDB.
    #[cfg(feature = "mysql")]
    Mysql,
}

/// Where the database is. `Display` and `Debug` show no password.
#[derive(Clone, Deserialize)]
#[serde(try_from = "String")]
pub struct DatabaseUrl {
    backend: Backend,
    secret: SecretString,
}

/// A database URL that cannot be used. Does not show the URL, for it may hold a password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DatabaseUrlError {
    /// The scheme is none of a backend's.
    #[error(
        "the scheme {0:?} is not known; write postgres://USER@HOST:5432/DATABASE, \
         mysql://USER@HOST:3306/DATABASE or sqlite://PATH/FILE.db"
    )]
    UnknownScheme(String),
    /// The backend exists, but not in this build.
    #[error("this build of hapax has no {0}; build it with --features {0}")]
    NotBuilt(&'static str),
    /// SQLite without a file.
    #[error("sqlite:// must be followed by the path of a file, for example sqlite://data/app.db")]
    NoFile,
}

impl DatabaseUrl {
    /// Which kind of database it is.
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// What the client library is given: the file's path for SQLite, or else the whole URL.
    pub(super) fn connection_string(&self) -> Cow<'_, str> {
        let url = self.secret.expose_secret();
        match self.backend {
            #[cfg(feature = "sqlite")]
            Backend::Sqlite => sqlite_path(url).into(),
            #[cfg(feature = "postgres")]
            Backend::Postgres => url.into(),
            #[cfg(feature = "mysql")]
            Backend::Mysql => match url.strip_prefix("mariadb:") {
                Some(rest) => format!("mysql:{rest}").into(),
                None => url.into(),
            },
        }
    }
}

impl DatabaseUrl {
    /// The URL with its password, for a child process's environment.
    pub(crate) fn expose(&self) -> &str {
        self.secret.expose_secret()
    }

    /// The way to a schema, database or file of the name `name`, beside this one.
    pub(super) fn beside(&self, name: &str) -> Result<Self, DatabaseUrlError> {
        let url = self.secret.expose_secret();
        match self.backend {
            #[cfg(feature = "sqlite")]
            Backend::Sqlite => format!("{url}.{name}").try_into(),
            #[cfg(feature = "postgres")]
            Backend::Postgres => {
                let separator = if url.contains('?') { '&' } else { '?' };
                let options = format!("options=-csearch_path%3D{name}&application_name={name}");
                format!("{url}{separator}{options}").try_into()
            }
            #[cfg(feature = "mysql")]
            Backend::Mysql => {
                let (path, query) = url.split_once('?').map_or((url, None), |(a, b)| (a, Some(b)));
                let server = path.rsplit_once('/').map_or(path, |(server, _)| server);
                let query = query.map(|query| format!("?{query}")).unwrap_or_default();
                format!("{server}/{name}{query}").try_into()
            }
        }
    }

    /// Removes a SQLite file with what belongs to it.
    #[cfg(feature = "sqlite")]
    pub(super) fn remove_files(&self) {
        let path = self.connection_string();
        for suffix in ["", "-wal", "-shm"] {
            _ = std::fs::remove_file(format!("{path}{suffix}"));
        }
    }
}

fn scheme(url: &str) -> &str {
    url.split_once(':').map_or("", |(scheme, _)| scheme)
}

#[cfg(feature = "sqlite")]
fn sqlite_path(url: &str) -> &str {
    let rest = url.strip_prefix("sqlite:").unwrap_or(url);
    rest.strip_prefix("//").unwrap_or(rest)
}

impl TryFrom<String> for DatabaseUrl {
    type Error = DatabaseUrlError;

    fn try_from(url: String) -> Result<Self, DatabaseUrlError> {
        let backend = match scheme(&url) {
            #[cfg(feature = "sqlite")]
            "sqlite" => match sqlite_path(&url) {
                "" | ":memory:" => return Err(DatabaseUrlError::NoFile),
                _ => Backend::Sqlite,
            },
            #[cfg(not(feature = "sqlite"))]
            "sqlite" => return Err(DatabaseUrlError::NotBuilt("sqlite")),
            #[cfg(feature = "postgres")]
            "postgres" | "postgresql" => Backend::Postgres,
            #[cfg(not(feature = "postgres"))]
            "postgres" | "postgresql" => return Err(DatabaseUrlError::NotBuilt("postgres")),
            #[cfg(feature = "mysql")]
            "mysql" | "mariadb" => Backend::Mysql,
            #[cfg(not(feature = "mysql"))]
            "mysql" | "mariadb" => return Err(DatabaseUrlError::NotBuilt("mysql")),
            other => return Err(DatabaseUrlError::UnknownScheme(other.to_owned())),
        };
        Ok(Self { backend, secret: url.into() })
    }
}

impl std::str::FromStr for DatabaseUrl {
    type Err = DatabaseUrlError;

    fn from_str(url: &str) -> Result<Self, DatabaseUrlError> {
        url.to_owned().try_into()
    }
}

impl fmt::Display for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let url = self.secret.expose_secret();
        match self.backend {
            #[cfg(feature = "sqlite")]
            Backend::Sqlite => f.write_str(url),
            #[cfg(feature = "postgres")]
            Backend::Postgres => f.write_str(&without_password(url)),
            #[cfg(feature = "mysql")]
            Backend::Mysql => f.write_str(&without_password(url)),
        }
    }
}

/// Parameters may hold a password, too, so they are left out.
#[cfg(any(feature = "postgres", feature = "mysql"))]
fn without_password(url: &str) -> String {
    let parsed = url::Url::parse(url).ok().filter(|parsed| !parsed.cannot_be_a_base());
    let shown = parsed.and_then(|mut parsed| {
        if parsed.password().is_some() {
            parsed.set_password(None).ok()?;
        }
        parsed.set_query(None);
        Some(parsed.to_string())
    });
    shown.unwrap_or_else(|| format!("{}://…", scheme(url)))
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DatabaseUrl({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(all(feature = "sqlite", feature = "postgres"))]
    fn the_scheme_selects_the_backend() {
        let parse = |url: &str| url.parse::<DatabaseUrl>();
        for (url, path) in [
            ("sqlite://data/app.db", "data/app.db"),
            ("sqlite:///tmp/app.db", "/tmp/app.db"),
            ("sqlite:app.db", "app.db"),
        ] {
            let parsed = parse(url).unwrap();
            assert_eq!((parsed.backend(), &*parsed.connection_string()), (Backend::Sqlite, path));
        }
        assert_eq!(parse("postgres://u@h/d").unwrap().backend(), Backend::Postgres);
        assert_eq!(parse("sqlite://").unwrap_err(), DatabaseUrlError::NoFile);
        assert_eq!(parse("sqlite::memory:").unwrap_err(), DatabaseUrlError::NoFile);
        for url in ["", "oracle://h", "app.db"] {
            let error = parse(url).unwrap_err();
            assert!(matches!(error, DatabaseUrlError::UnknownScheme(_)), "{url}");
        }
    }

    #[test]
    #[cfg(feature = "mysql")]
    fn mariadb_is_another_word_for_mysql() {
        let parsed: DatabaseUrl = "mariadb://u:p@h/d".parse().unwrap();
        assert_eq!(parsed.connection_string(), "mysql://u:p@h/d");
        assert_eq!(parsed.to_string(), "mariadb://u@h/d");
    }

    #[test]
    #[cfg(feature = "postgres")]
    fn a_password_is_never_shown() {
        for url in [
            "postgres://user:hunter2@host:5432/db",
            "postgres://user@host/db?password=hunter2",
            "postgres://:hunter2@/db",
            "postgres:hunter2",
        ] {
            let parsed: DatabaseUrl = url.parse().unwrap();
            let shown = format!("{parsed} {parsed:?}");
            assert!(!shown.contains("hunter2"), "{shown}");
        }
    }
}
