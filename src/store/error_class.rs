//! What a database error means for the work at hand. The one place where this is decided.
//!
//! diesel hands out neither SQLSTATE nor error numbers beyond a few kinds, so the rest is told by the
//! server's text. A server that speaks another language than English falls through to
//! [`DatabaseErrorClass::Unclear`], which is safe: the event is retried alone and then held.

use diesel::result::{DatabaseErrorKind, Error};

use DatabaseErrorClass::{Contention, Rejected, Unavailable, Unclear};

/// What to do about a database error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DatabaseErrorClass {
    /// Another transaction was in the way: redo the whole transaction after a pause.
    Contention,
    /// The database cannot be used at the moment, whichever event it is: be unhealthy, and redo later
    /// on a connection that works. No event is held for it.
    Unavailable,
    /// The event itself violates the schema: reject it, a retry cannot help.
    Rejected,
    /// May be the event's fault: retry it alone a few times, then hold it.
    Unclear,
}

/// How a server's text begins, and what it must have in it besides. Beginnings, for a trigger of the
/// user's may raise any text: it must not be taken for the database's own trouble, which would stop its
/// event type.
struct Rule {
    begins: &'static str,
    contains: &'static str,
    class: DatabaseErrorClass,
}

const fn rule(class: DatabaseErrorClass, begins: &'static str, contains: &'static str) -> Rule {
    Rule { begins, contains, class }
}

/// In lower case; the first that fits counts. The evidence: `tests/database_errors.rs` provokes on real
/// servers what is marked with *; the others are from `src/backend` and `src/interfaces/libpq` of
/// PostgreSQL with their SQLSTATE, MariaDB's `errmsg-utf8.txt` and its client's `errmsg.c` with their
/// number, and SQLite's `sqlite3ErrStr`.
const RULES: &[Rule] = &[
    // PostgreSQL: another transaction, or an administrator, was in the way.
    rule(Contention, "deadlock detected", ""), // 40P01 *
    rule(Contention, "could not serialize access", ""), // 40001 *
    rule(Contention, "canceling statement due to lock timeout", ""), // 55P03 *
    rule(Contention, "could not obtain lock", ""), // 55P03, NOWAIT
    rule(Contention, "canceling statement due to user request", ""), // 57014 *
    // PostgreSQL: no connection.
    rule(Unavailable, "terminating connection", ""), // 57P01 *
    rule(Unavailable, "server closed the connection", ""), // libpq *
    rule(Unavailable, "connection to server", ""),   // libpq *
    rule(Unavailable, "no connection to the server", ""), // libpq
    rule(Unavailable, "could not receive data from server", ""), // libpq
    rule(Unavailable, "could not send data to server", ""), // libpq
    rule(Unavailable, "ssl ", "connection has been closed"), // libpq
    rule(Unavailable, "ssl syscall error", ""),      // libpq
    rule(Unavailable, "ssl error", ""),              // libpq
    rule(Unavailable, "fatal:", ""),                 // while connecting *
    rule(Unavailable, "the database system is", ""), // 57P03
    rule(Unavailable, "sorry, too many clients", ""), // 53300
    rule(Unavailable, "too many connections", ""),   // 53300 *
    rule(Unavailable, "remaining connection slots", ""), // 53300
    rule(Unavailable, "query_wait_timeout", ""),     // PgBouncer
    // PostgreSQL: the server cannot do it for anyone.
    rule(Unavailable, "cannot set transaction read-write mode", ""), // 25006, a standby *
    rule(Unavailable, "could not extend file", ""),                  // 53100 *
    rule(Unavailable, "could not write", ""),                        // 53100
    rule(Unavailable, "out of memory", ""),                          // 53200
    rule(Unavailable, "out of shared memory", ""),                   // 53200
    rule(Unavailable, "permission denied for", ""),                  // 42501 *
    rule(Unavailable, "relation \"", "\" does not exist"),           // 42P01 *
    rule(Unavailable, "column ", " does not exist"),                 // 42703 *
    rule(Unavailable, "function ", " does not exist"),               // 42883
    rule(Unavailable, "schema \"", "\" does not exist"),             // 3F000
    rule(Unavailable, "operator ", " does not exist"),               // 42883
    // MySQL and MariaDB: another transaction, or an administrator, was in the way.
    rule(Contention, "deadlock found", ""), // 1213, of a COMMIT too *
    rule(Contention, "lock wait timeout exceeded", ""), // 1205 *
    rule(Contention, "record has changed since last read", ""), // 1020 *
    rule(Contention, "statement aborted because lock(s)", ""), // 3572, NOWAIT
    rule(Unclear, "query execution was interrupted (", ""), // 1969, the time is over *
    rule(Unclear, "query execution was interrupted, ", ""), // 3024, the time is over
    rule(Contention, "query execution was interrupted", ""), // 1317, KILL QUERY *
    // MySQL and MariaDB: no connection.
    rule(Unavailable, "connection was killed", ""), // 1927 *
    rule(Unavailable, "server shutdown in progress", ""), // 1053
    rule(Unavailable, "lost connection to", ""),    // 2013, 2055 *
    rule(Unavailable, "server has gone away", ""),  // 2006 *
    rule(Unavailable, "mysql server has gone away", ""), // 2006
    rule(Unavailable, "can't connect to", ""),      // 2002, 2003 *
    rule(Unavailable, "got ", "communication packets"), // 1158 to 1161
    rule(Unavailable, "commands out of sync", ""),  // 2014
    rule(Unavailable, "malformed communication packet", ""), // 1835, 2027
    rule(Unavailable, "user ", "max_user_connections"), // 1203, 1226 *
    rule(Unavailable, "wsrep has not yet prepared node", ""), // 1047, Galera
    // MySQL and MariaDB: the server cannot do it for anyone.
    rule(Unavailable, "the m", "server is running with the --"), // 1290, read-only *
    rule(Unavailable, "running in read-only mode", ""),          // 1836
    rule(Unavailable, "the server is read-only", ""),            // hapax's own check *
    rule(Unavailable, "the table '", "' is full"),               // 1114 *
    rule(Unavailable, "disk full", ""),                          // 1021
    rule(Unavailable, "error writing file", ""),                 // 1026
    rule(Unavailable, "got error ", "from storage engine"),      // 1030
    rule(Unavailable, "access denied for", ""),                  // 1044, 1045
    rule(Unavailable, "", " command denied to user "),           // 1142, 1143 *
    rule(Unavailable, "table '", "' doesn't exist"),             // 1146 *
    rule(Unavailable, "unknown column '", "' in "),              // 1054 *
    rule(Unavailable, "function ", " does not exist"),           // 1305
    rule(Unavailable, "procedure ", " does not exist"),          // 1305
    // MariaDB: the schema's own rules, where diesel knows MySQL's number only.
    rule(Rejected, "constraint `", "` failed for `"), // 4025 *
    // SQLite.
    rule(Contention, "database is locked", ""), // 5 *
    rule(Contention, "database table is locked", ""), // 6
    rule(Contention, "database schema is locked", ""), // 6
    rule(Unavailable, "database or disk is full", ""), // 13 *
    rule(Unavailable, "disk i/o error", ""),    // 10
    rule(Unavailable, "unable to open database file", ""), // 14 *
    rule(Unavailable, "attempt to write a readonly database", ""), // 8 *
    rule(Unavailable, "database disk image is malformed", ""), // 11
    rule(Unavailable, "file is not a database", ""), // 26
    rule(Unavailable, "no such table", ""),     // 1 *
    rule(Unavailable, "no such column", ""),    // 1 *
];

/// What `error` means.
pub fn classify(error: &Error) -> DatabaseErrorClass {
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
    let first_line = text.lines().next().unwrap_or("");
    let fits =
        |rule: &&Rule| first_line.starts_with(rule.begins) && first_line.contains(rule.contains);
    RULES.iter().find(fits).map_or(Unclear, |rule| rule.class)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_told_apart_by_how_they_begin() {
        for (text, expected) in [
            ("could not serialize access due to concurrent update", Contention),
            ("column \"balance\" does not exist", Unavailable),
            ("server closed the connection unexpectedly\n\tThis probably means", Unavailable),
            ("Query execution was interrupted", Contention),
            ("Query execution was interrupted (max_statement_time exceeded)", Unclear),
            ("Query execution was interrupted, maximum statement execution time exceeded", Unclear),
            ("canceling statement due to statement timeout", Unclear),
            ("value too long for type character varying(3)", Unclear),
            ("Data too long for column 'a' at row 1", Unclear),
            ("invalid input syntax for type uuid: \"x\"", Unclear),
            // Raised by a trigger of the user's.
            ("account 7 does not exist", Unclear),
            ("withdrawal: permission denied for account 7", Unclear),
            ("order 7: deadlock detected in the workflow", Unclear),
            ("the account is read-only", Unclear),
        ] {
            assert_eq!(by_text(text), expected, "{text}");
        }
    }
}
