//! SQL with named parameters, the same on every backend: `:name` is bound, never spliced.

use std::collections::BTreeSet;
use std::fmt;

use bigdecimal::BigDecimal;
use chrono::{DateTime, Utc};
use diesel::query_builder::{AstPass, QueryFragment, QueryId};
use diesel::result::QueryResult;
use diesel::{RunQueryDsl, sql_types};
use serde::Deserialize;

pub use self::rowset::{ROWSET_NAME, Rowset};
use super::connection::DbConnection;
use super::url::Backend;

/// The SQL type of a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SqlType {
    /// 64-bit integer.
    Bigint,
    /// 32-bit integer.
    Integer,
    /// Exact decimal. SQLite has none: there it is bound as text, which a column of NUMERIC affinity
    /// turns into a number.
    Numeric,
    /// 64-bit floating point.
    Double,
    /// Text.
    Text,
    /// Boolean.
    Boolean,
    /// A point in time, bound in UTC.
    Timestamp,
    /// A JSON document (`jsonb` on PostgreSQL, text on SQLite and MySQL).
    Json,
    /// Bytes.
    Bytes,
}

impl fmt::Display for SqlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bigint => "bigint",
            Self::Integer => "integer",
            Self::Numeric => "numeric",
            Self::Double => "double",
            Self::Text => "text",
            Self::Boolean => "boolean",
            Self::Timestamp => "timestamp",
            Self::Json => "json",
            Self::Bytes => "bytes",
        })
    }
}

/// A value to bind. `None` is NULL of its type.
#[derive(Debug, Clone, PartialEq)]
pub enum SqlValue {
    /// For [`SqlType::Bigint`].
    Bigint(Option<i64>),
    /// For [`SqlType::Integer`].
    Integer(Option<i32>),
    /// For [`SqlType::Numeric`].
    Numeric(Option<BigDecimal>),
    /// For [`SqlType::Double`].
    Double(Option<f64>),
    /// For [`SqlType::Text`].
    Text(Option<String>),
    /// For [`SqlType::Boolean`].
    Boolean(Option<bool>),
    /// For [`SqlType::Timestamp`].
    Timestamp(Option<DateTime<Utc>>),
    /// For [`SqlType::Json`]: the document as JSON text.
    Json(Option<JsonText>),
    /// For [`SqlType::Bytes`].
    Bytes(Option<Vec<u8>>),
}

/// JSON text, bound without going through a tree that would round its numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JsonText(pub String);

/// How a time is written where it is bound as text, in UTC: to the microsecond, as all databases keep it.
const TIMESTAMP_FORMAT: &str = "%F %T%.6f";

/// What is wrong with a statement.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StatementError {
    /// Nothing in it.
    #[error("the statement is empty")]
    Empty,
    /// A second statement follows.
    #[error("it holds more than one statement; write each as a [[applier.statement]] of its own")]
    SeveralStatements,
    /// A string, quoted name or comment does not end.
    #[error("{0} is not closed")]
    Unclosed(&'static str),
    /// A positional parameter.
    #[error("{0:?} is a positional parameter; write named ones, like :account_id")]
    Positional(String),
    /// It would end or change the transaction that hapax runs it in.
    #[error("{0} is not allowed: hapax runs the statement in its own transaction")]
    TransactionControl(String),
    /// A statement over a batch that does not read from it.
    #[error("it does not read from the rowset `batch`; write FROM batch or JOIN batch")]
    NoRowset,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Text(String),
    Parameter(String),
}

/// A parsed statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statement {
    pieces: Vec<Piece>,
    changes_rows: bool,
    can_be_planned: bool,
}

impl Statement {
    /// Finds the `:name` parameters of one SQL statement, skipping strings, quoted names and
    /// comments by the rules of `backend`.
    ///
    /// # Errors
    /// See [`StatementError`].
    pub fn parse(sql: &str, backend: Backend) -> Result<Self, StatementError> {
        lexer::parse(sql, backend, None)
    }

    /// As [`Self::parse`], for a statement that reads from `rowset` by the name `batch`, after FROM, JOIN
    /// or USING. The rows are the value of its parameter `batch`.
    ///
    /// # Errors
    /// See [`StatementError`].
    pub fn parse_over(sql: &str, rowset: &Rowset) -> Result<Self, StatementError> {
        lexer::parse(sql, rowset.backend(), Some(rowset))
    }

    /// The distinct parameter names.
    pub fn parameters(&self) -> BTreeSet<&str> {
        self.pieces
            .iter()
            .filter_map(|piece| match piece {
                Piece::Parameter(name) => Some(name.as_str()),
                Piece::Text(_) => None,
            })
            .collect()
    }

    /// Whether it is an INSERT, UPDATE, DELETE, REPLACE or MERGE, so that the number of rows that
    /// [`Self::execute`] returns means rows changed.
    pub fn changes_rows(&self) -> bool {
        self.changes_rows
    }

    /// Runs the statement with the value that `value_of` gives for each parameter name; returns the
    /// number of rows it changed.
    ///
    /// # Errors
    /// The database's.
    pub fn execute<'a>(
        &'a self,
        connection: &mut DbConnection,
        value_of: impl Fn(&str) -> &'a SqlValue,
    ) -> QueryResult<usize> {
        self.run("", connection, value_of)
    }

    /// Lets the database plan the statement without running it, so that a table or column that it names
    /// in vain shows. What cannot be planned (a CALL, say) passes.
    ///
    /// # Errors
    /// The database's.
    pub fn explain<'a>(
        &'a self,
        connection: &mut DbConnection,
        value_of: impl Fn(&str) -> &'a SqlValue,
    ) -> QueryResult<()> {
        match self.can_be_planned {
            true => self.run("EXPLAIN ", connection, value_of).map(drop),
            false => Ok(()),
        }
    }

    fn run<'a>(
        &'a self,
        prefix: &'static str,
        connection: &mut DbConnection,
        value_of: impl Fn(&str) -> &'a SqlValue,
    ) -> QueryResult<usize> {
        let prefix = std::iter::once(Part::Text(prefix));
        let parts = self.pieces.iter().map(|piece| match piece {
            Piece::Text(text) => Part::Text(text),
            Piece::Parameter(name) => Part::Value(value_of(name)),
        });
        let bound = Bound(prefix.chain(parts).collect());
        match connection {
            #[cfg(feature = "sqlite")]
            DbConnection::Sqlite(inner) => bound.execute(inner),
            #[cfg(feature = "postgres")]
            DbConnection::Postgres(inner) => bound.execute(inner),
            #[cfg(feature = "mysql")]
            DbConnection::Mysql(inner) => bound.execute(inner),
        }
    }
}

enum Part<'a> {
    Text(&'a str),
    Value(&'a SqlValue),
}

/// A statement with its values. It has no static query id, so diesel caches the prepared statement by
/// its text.
struct Bound<'a>(Vec<Part<'a>>);

impl QueryId for Bound<'_> {
    type QueryId = ();
    const HAS_STATIC_QUERY_ID: bool = false;
}

impl<C> RunQueryDsl<C> for Bound<'_> {}

type OrNull<T> = sql_types::Nullable<T>;

macro_rules! bound_on {
    ($feature:literal, $backend:ty, $module:ident) => {
        #[cfg(feature = $feature)]
        impl QueryFragment<$backend> for Bound<'_> {
            fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, $backend>) -> QueryResult<()> {
                for part in &self.0 {
                    match part {
                        Part::Text(text) => out.push_sql(text),
                        Part::Value(value) => $module::push(&mut out, value)?,
                    }
                }
                Ok(())
            }
        }
    };
}

bound_on!("sqlite", diesel::sqlite::Sqlite, sqlite);
bound_on!("postgres", diesel::pg::Pg, postgres);
bound_on!("mysql", diesel::mysql::Mysql, mysql);

#[cfg(feature = "sqlite")]
mod sqlite {
    use diesel::serialize::{IsNull, Output, ToSql};
    use diesel::sqlite::Sqlite;

    use super::*;

    pub fn push<'b>(out: &mut AstPass<'_, 'b, Sqlite>, value: &'b SqlValue) -> QueryResult<()> {
        match value {
            SqlValue::Bigint(v) => out.push_bind_param::<OrNull<sql_types::BigInt>, _>(v),
            SqlValue::Integer(v) => out.push_bind_param::<OrNull<sql_types::Integer>, _>(v),
            SqlValue::Numeric(_) | SqlValue::Json(_) | SqlValue::Timestamp(_) => {
                out.push_bind_param::<OrNull<sql_types::Text>, _>(value)
            }
            SqlValue::Double(v) => out.push_bind_param::<OrNull<sql_types::Double>, _>(v),
            SqlValue::Text(v) => out.push_bind_param::<OrNull<sql_types::Text>, _>(v),
            SqlValue::Boolean(v) => out.push_bind_param::<OrNull<sql_types::Bool>, _>(v),
            SqlValue::Bytes(v) => out.push_bind_param::<OrNull<sql_types::Binary>, _>(v),
        }
    }

    /// The types that SQLite does not have, as text.
    impl ToSql<OrNull<sql_types::Text>, Sqlite> for SqlValue {
        fn to_sql<'b>(&'b self, out: &mut Output<'b, '_, Sqlite>) -> diesel::serialize::Result {
            let text = match self {
                Self::Numeric(Some(number)) => number.to_plain_string(),
                Self::Json(Some(JsonText(text))) => text.clone(),
                Self::Timestamp(Some(time)) => time.format(TIMESTAMP_FORMAT).to_string(),
                _ => return Ok(IsNull::Yes),
            };
            out.set_value(text);
            Ok(IsNull::No)
        }
    }
}

#[cfg(feature = "postgres")]
mod postgres {
    use std::io::Write;

    use diesel::pg::Pg;
    use diesel::serialize::{IsNull, Output, ToSql};

    use super::*;

    pub fn push<'b>(out: &mut AstPass<'_, 'b, Pg>, value: &'b SqlValue) -> QueryResult<()> {
        match value {
            SqlValue::Bigint(v) => out.push_bind_param::<OrNull<sql_types::BigInt>, _>(v),
            SqlValue::Integer(v) => out.push_bind_param::<OrNull<sql_types::Integer>, _>(v),
            SqlValue::Numeric(v) => out.push_bind_param::<OrNull<sql_types::Numeric>, _>(v),
            SqlValue::Double(v) => out.push_bind_param::<OrNull<sql_types::Double>, _>(v),
            SqlValue::Text(v) => out.push_bind_param::<OrNull<sql_types::Text>, _>(v),
            SqlValue::Boolean(v) => out.push_bind_param::<OrNull<sql_types::Bool>, _>(v),
            SqlValue::Timestamp(v) => out.push_bind_param::<OrNull<sql_types::Timestamptz>, _>(v),
            SqlValue::Json(_) => out.push_bind_param::<OrNull<sql_types::Jsonb>, _>(value),
            SqlValue::Bytes(v) => out.push_bind_param::<OrNull<sql_types::Binary>, _>(v),
        }
    }

    /// The binary form of jsonb is a version byte and the text (`jsonb_recv` in PostgreSQL's
    /// `jsonb.c`).
    impl ToSql<OrNull<sql_types::Jsonb>, Pg> for SqlValue {
        fn to_sql<'b>(&'b self, out: &mut Output<'b, '_, Pg>) -> diesel::serialize::Result {
            match self {
                Self::Json(Some(JsonText(text))) => {
                    out.write_all(&[1])?;
                    out.write_all(text.as_bytes())?;
                    Ok(IsNull::No)
                }
                _ => Ok(IsNull::Yes),
            }
        }
    }
}

#[cfg(feature = "mysql")]
mod mysql {
    use std::io::Write;

    use diesel::mysql::Mysql;
    use diesel::serialize::{IsNull, Output, ToSql};

    use super::*;

    pub fn push<'b>(out: &mut AstPass<'_, 'b, Mysql>, value: &'b SqlValue) -> QueryResult<()> {
        match value {
            SqlValue::Bigint(v) => out.push_bind_param::<OrNull<sql_types::BigInt>, _>(v),
            SqlValue::Integer(v) => out.push_bind_param::<OrNull<sql_types::Integer>, _>(v),
            SqlValue::Numeric(v) => out.push_bind_param::<OrNull<sql_types::Numeric>, _>(v),
            SqlValue::Double(v) => out.push_bind_param::<OrNull<sql_types::Double>, _>(v),
            SqlValue::Text(v) => out.push_bind_param::<OrNull<sql_types::Text>, _>(v),
            SqlValue::Boolean(v) => out.push_bind_param::<OrNull<sql_types::Bool>, _>(v),
            SqlValue::Timestamp(_) | SqlValue::Json(_) => {
                out.push_bind_param::<OrNull<sql_types::Text>, _>(value)
            }
            SqlValue::Bytes(v) => out.push_bind_param::<OrNull<sql_types::Binary>, _>(v),
        }
    }

    /// JSON is text in the connection's utf8mb4; a time is text in the session's time zone, which is UTC.
    impl ToSql<OrNull<sql_types::Text>, Mysql> for SqlValue {
        fn to_sql<'b>(&'b self, out: &mut Output<'b, '_, Mysql>) -> diesel::serialize::Result {
            match self {
                Self::Json(Some(JsonText(text))) => out.write_all(text.as_bytes())?,
                Self::Timestamp(Some(time)) => write!(out, "{}", time.format(TIMESTAMP_FORMAT))?,
                _ => return Ok(IsNull::Yes),
            }
            Ok(IsNull::No)
        }
    }
}

mod lexer;
mod rowset;
