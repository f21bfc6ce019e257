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

/// Texts of PostgreSQL (`src/backend`, `src/interfaces/libpq`) and of SQLite (`sqlite3ErrStr`).
const CONTENTION: &[&str] = &[
    "deadlock detected",
    "could not serialize access",
    "canceling statement due to lock timeout",
    "could not obtain lock",
    "database is locked",
    "database table is locked",
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
    "the database system is",
    "too many connections",
    "too many clients",
    "remaining connection slots",
    "no space left on device",
    "could not extend file",
    "could not write",
    "database or disk is full",
    "disk i/o error",
    "out of memory",
    "unable to open database file",
    "attempt to write a readonly database",
    "read-only transaction",
    "permission denied",
    "no such table",
    "no such column",
    "does not exist",
    "in recovery mode",
];

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
    let is_one_of = |known: &[&str]| known.iter().any(|part| text.contains(part));
    if is_one_of(CONTENTION) {
        DatabaseErrorClass::Contention
    } else if is_one_of(UNAVAILABLE) {
        DatabaseErrorClass::Unavailable
    } else {
        DatabaseErrorClass::Unclear
    }
}
