//! What a database error means for the work at hand. The one place where this is decided.
//!
//! diesel hands out neither SQLSTATE nor error numbers beyond a few kinds, so the rest is told by the
//! server's text. A server that speaks another language than English falls through to
//! [`DatabaseErrorClass::Unclear`], which is safe: the event is retried alone and then held.

use diesel::result::{DatabaseErrorKind, Error};

/// What to do about a database error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DatabaseErrorClass {
    /// Another transaction was in the way: redo the whole transaction after a pause.
    Contention,
    /// The database cannot be used at the moment, whichever event it is: redo later. No event is
    /// held for it.
    Unavailable,
    /// The event itself violates the schema: reject it, a retry cannot help.
    Rejected,
    /// May be the event's fault: retry it alone a few times, then hold it.
    Unclear,
}

/// How the texts begin, of PostgreSQL (`src/backend`, `src/interfaces/libpq`) and of SQLite
/// (`sqlite3ErrStr`). Only beginnings, for a trigger of the user's may raise any text: it must not be
/// taken for the database's own trouble, which would stop its event type.
const CONTENTION: &[&str] = &[
    "deadlock detected",
    "could not serialize access",
    "canceling statement due to lock timeout",
    "could not obtain lock",
    "database is locked",
    "database table is locked",
    "database schema is locked",
];
const UNAVAILABLE: &[&str] = &[
    "terminating connection",
    "server closed the connection",
    "connection to server",
    "no connection to the server",
    "could not receive data from server",
    "could not send data to server",
    "ssl connection has been closed",
    "ssl syscall error",
    "ssl error",
    "fatal:",
    "the database system is",
    "sorry, too many clients",
    "too many connections",
    "remaining connection slots",
    "could not extend file",
    "could not write",
    "database or disk is full",
    "disk i/o error",
    "out of memory",
    "unable to open database file",
    "attempt to write a readonly database",
    "permission denied for",
    "no such table",
    "no such column",
];
/// PostgreSQL's words for what a statement names in vain: `relation "account" does not exist`.
const MISSING: &[&str] = &["relation \"", "column ", "function ", "schema \"", "operator "];

/// What `error` means.
pub fn classify(error: &Error) -> DatabaseErrorClass {
    use DatabaseErrorClass::{Contention, Rejected, Unavailable, Unclear};
    match error {
        Error::DatabaseError(kind, information) => match kind {
            DatabaseErrorKind::SerializationFailure => Contention,
            DatabaseErrorKind::ClosedConnection
            | DatabaseErrorKind::UnableToSendCommand
            | DatabaseErrorKind::ReadOnlyTransaction => Unavailable,
            DatabaseErrorKind::UniqueViolation
            | DatabaseErrorKind::ForeignKeyViolation
            | DatabaseErrorKind::NotNullViolation
            | DatabaseErrorKind::CheckViolation
            | DatabaseErrorKind::RestrictViolation
            | DatabaseErrorKind::ExclusionViolation => Rejected,
            _ => by_text(information.message()),
        },
        Error::BrokenTransactionManager
        | Error::RollbackErrorOnCommit { .. }
        | Error::AlreadyInTransaction
        | Error::NotInTransaction => Unavailable,
        Error::InvalidCString(_) | Error::SerializationError(_) | Error::NotFound => Rejected,
        _ => Unclear,
    }
}

fn by_text(text: &str) -> DatabaseErrorClass {
    let text = text.to_lowercase();
    let begins = |known: &[&str]| known.iter().any(|start| text.starts_with(start));
    let first_line = text.lines().next().unwrap_or("");
    if begins(CONTENTION) {
        DatabaseErrorClass::Contention
    } else if begins(UNAVAILABLE) || begins(MISSING) && first_line.ends_with("does not exist") {
        DatabaseErrorClass::Unavailable
    } else {
        DatabaseErrorClass::Unclear
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_told_apart_by_how_they_begin() {
        use DatabaseErrorClass::{Contention, Unavailable, Unclear};
        for (text, expected) in [
            ("deadlock detected", Contention),
            ("could not serialize access due to concurrent update", Contention),
            ("canceling statement due to lock timeout", Contention),
            ("database is locked", Contention),
            ("relation \"account\" does not exist", Unavailable),
            ("column \"balance\" does not exist", Unavailable),
            ("permission denied for table account", Unavailable),
            ("no such table: account", Unavailable),
            ("database or disk is full", Unavailable),
            ("could not extend file \"base/1/2\": No space left on device", Unavailable),
            ("terminating connection due to administrator command", Unavailable),
            ("server closed the connection unexpectedly\n\tThis probably means", Unavailable),
            ("canceling statement due to statement timeout", Unclear),
            ("value too long for type character varying(3)", Unclear),
            ("invalid input syntax for type uuid: \"x\"", Unclear),
            // Raised by a trigger of the user's.
            ("account 7 does not exist", Unclear),
            ("withdrawal: permission denied for account 7", Unclear),
            ("order 7: deadlock detected in the workflow", Unclear),
        ] {
            let error = Error::DatabaseError(DatabaseErrorKind::Unknown, Box::new(text.to_owned()));
            assert_eq!(classify(&error), expected, "{text}");
        }
    }
}
