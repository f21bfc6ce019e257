//! The rowset that a statement over a whole batch reads from. Its rows travel as one JSON text, an array
//! of arrays, in one bind parameter: so a statement's text does not depend on the batch's size, and is
//! prepared once. Every value in it is a string, which each backend turns into the column's type: a JSON
//! number would go through a double on MySQL and SQLite.

use std::fmt::Write;

use super::lexer::is_word;
use super::{JsonText, SqlType, SqlValue, TIMESTAMP_FORMAT};
use crate::store::Backend;

/// The rowset's name in a statement.
pub const ROWSET_NAME: &str = "batch";

/// The columns of a rowset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rowset {
    backend: Backend,
    columns: Vec<(String, SqlType)>,
}

impl Rowset {
    /// A rowset with these columns, whose names are words.
    pub fn new(backend: Backend, columns: Vec<(String, SqlType)>) -> Self {
        Self { backend, columns }
    }

    /// Whether `name` may name a column: it is one word to the lexer.
    pub fn may_be_column(name: &str) -> bool {
        is_word(name)
    }

    /// Whose SQL it is written in.
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// The columns' names, in the order of a row's values.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.columns.iter().map(|(name, _)| name.as_str())
    }

    /// The rows as a value to bind, each with its values in the columns' order.
    pub fn rows<'a, R: IntoIterator<Item = &'a SqlValue>>(
        &self,
        rows: impl IntoIterator<Item = R>,
    ) -> SqlValue {
        let mut json = String::from("[");
        for (index, row) in rows.into_iter().enumerate() {
            json.push_str(if index > 0 { ",[" } else { "[" });
            for (index, value) in row.into_iter().enumerate() {
                json.push_str(if index > 0 { "," } else { "" });
                self.write(value, &mut json);
            }
            json.push(']');
        }
        json.push(']');
        SqlValue::Json(Some(JsonText(json)))
    }

    /// What stands before and after the rows' parameter, where a statement reads from the rowset.
    pub(super) fn sql(&self) -> (String, String) {
        match self.backend {
            #[cfg(feature = "sqlite")]
            Backend::Sqlite => {
                let columns = self.each_column(|at, name, sql_type| {
                    let text = format!("value ->> {at}");
                    format!("{} AS \"{name}\"", sqlite_column(&text, sql_type))
                });
                (format!("(SELECT {columns} FROM json_each("), "))".into())
            }
            #[cfg(feature = "postgres")]
            Backend::Postgres => {
                let columns = self.each_column(|at, name, sql_type| {
                    let text = format!("(row_values ->> {at})");
                    format!("{} AS {name}", postgres_column(&text, sql_type))
                });
                (format!("(SELECT {columns} FROM jsonb_array_elements("), ") AS row_values)".into())
            }
            #[cfg(feature = "mysql")]
            Backend::Mysql => {
                let columns = self.each_column(|_, name, sql_type| match sql_type {
                    SqlType::Bytes => format!("UNHEX(`{name}`) AS `{name}`"),
                    _ => format!("`{name}`"),
                });
                let paths = self.each_column(|at, name, sql_type| {
                    let sql_type = mysql_type(sql_type);
                    format!("`{name}` {sql_type} PATH '$[{at}]' NULL ON EMPTY ERROR ON ERROR")
                });
                (
                    format!("(SELECT {columns} FROM JSON_TABLE("),
                    format!(", '$[*]' COLUMNS ({paths})) AS row_values)"),
                )
            }
        }
    }

    fn each_column(&self, sql: impl Fn(usize, &str, SqlType) -> String) -> String {
        let columns = self.columns.iter().enumerate();
        let columns: Vec<String> =
            columns.map(|(at, (name, sql_type))| sql(at, name, *sql_type)).collect();
        columns.join(", ")
    }

    fn write(&self, value: &SqlValue, json: &mut String) {
        let quoted = |text: &str| serde_json::to_string(text).expect("a string can be written");
        let written = match value {
            SqlValue::Bigint(Some(number)) => write!(json, "\"{number}\""),
            SqlValue::Integer(Some(number)) => write!(json, "\"{number}\""),
            SqlValue::Numeric(Some(number)) => write!(json, "\"{}\"", number.to_plain_string()),
            SqlValue::Double(Some(number)) => write!(json, "\"{number:?}\""),
            SqlValue::Text(Some(text)) => write!(json, "{}", quoted(text)),
            SqlValue::Boolean(Some(value)) => write!(json, "\"{}\"", u8::from(*value)),
            SqlValue::Timestamp(Some(time)) => {
                let zone = self.zone();
                write!(json, "\"{}{zone}\"", time.format(TIMESTAMP_FORMAT))
            }
            SqlValue::Json(Some(JsonText(text))) => write!(json, "{}", quoted(text)),
            SqlValue::Bytes(Some(bytes)) => {
                let hex = bytes.iter().map(|byte| format!("{byte:02x}"));
                write!(json, "\"{}\"", hex.collect::<String>())
            }
            _ => write!(json, "null"),
        };
        written.expect("a String can be written to");
    }

    /// Where a session's time zone may be another than UTC, the text says which it means.
    fn zone(&self) -> &'static str {
        match self.backend {
            #[cfg(feature = "postgres")]
            Backend::Postgres => "+00",
            #[cfg(feature = "sqlite")]
            Backend::Sqlite => "",
            #[cfg(feature = "mysql")]
            Backend::Mysql => "",
        }
    }
}

#[cfg(feature = "sqlite")]
fn sqlite_column(text: &str, sql_type: SqlType) -> String {
    match sql_type {
        SqlType::Bigint | SqlType::Integer | SqlType::Boolean => {
            format!("CAST({text} AS INTEGER)")
        }
        SqlType::Double => format!("CAST({text} AS REAL)"),
        SqlType::Numeric | SqlType::Text | SqlType::Timestamp | SqlType::Json => text.to_owned(),
        SqlType::Bytes => format!("unhex({text})"),
    }
}

#[cfg(feature = "postgres")]
fn postgres_column(text: &str, sql_type: SqlType) -> String {
    let sql_type = match sql_type {
        SqlType::Bigint => "bigint",
        SqlType::Integer => "integer",
        SqlType::Numeric => "numeric",
        SqlType::Double => "double precision",
        SqlType::Text => "text",
        SqlType::Boolean => "boolean",
        SqlType::Timestamp => "timestamptz",
        SqlType::Json => "jsonb",
        SqlType::Bytes => return format!("decode({text}, 'hex')"),
    };
    format!("{text}::{sql_type}")
}

/// DECIMAL has 65 digits at most (MySQL and MariaDB manuals); a value with more is an error.
#[cfg(feature = "mysql")]
fn mysql_type(sql_type: SqlType) -> &'static str {
    match sql_type {
        SqlType::Bigint => "BIGINT",
        SqlType::Integer => "INT",
        SqlType::Numeric => "DECIMAL(65, 30)",
        SqlType::Double => "DOUBLE",
        SqlType::Boolean => "TINYINT",
        SqlType::Timestamp => "DATETIME(6)",
        // Without its character set it would have the database's, and lose what that does not know.
        SqlType::Text | SqlType::Json | SqlType::Bytes => "LONGTEXT CHARACTER SET utf8mb4",
    }
}
