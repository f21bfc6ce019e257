//! What the subcommands that look at hapax's tables share.

use std::path::Path;

use chrono::{DateTime, NaiveDateTime, SecondsFormat};
use diesel::result::QueryResult;
use serde_json::Value;

use super::{Failure, load};
use crate::config::Config;
use crate::service::store_options;
use crate::store::{DbConnection, Store, TransactionError};

/// The configured database.
pub struct Tables {
    pub config: Config,
    pub store: Store,
}

impl Tables {
    pub fn open(file: &Path) -> Result<Self, Failure> {
        let config = load(file)?;
        let store = Store::new(store_options(&config));
        Ok(Self { config, store })
    }

    /// Runs `work` in a transaction, with the consumer's name.
    pub fn transaction<T>(
        &self,
        work: impl FnOnce(&mut DbConnection, &str) -> QueryResult<T>,
    ) -> Result<T, Failure> {
        let consumer = self.config.consumer.as_str();
        self.store.transact_here(|tx| work(tx, consumer)).map_err(|error| match error {
            TransactionError::Store(error) => Failure::running(error),
            TransactionError::Database(error) => Failure::running(format!(
                "{}: {error}; if a table or column is missing, run `hapax migrate`",
                self.config.database.url
            )),
        })
    }
}

/// A time of the tables, in RFC 3339.
pub fn time(time: NaiveDateTime) -> String {
    time.and_utc().to_rfc3339_opts(SecondsFormat::Millis, true)
}

/// As [`time`], of a time with a zone.
pub fn time_utc(time: DateTime<chrono::Utc>) -> String {
    time.to_rfc3339_opts(SecondsFormat::Millis, true)
}

/// As [`time`]; null if there is none.
pub fn json_time(at: Option<NaiveDateTime>) -> Value {
    at.map(time).into()
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Text from outside, safe for a terminal: control characters could move its cursor or colour it.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// Rows in columns as wide as their widest cell, the first row being the heads.
pub fn print_columns(rows: &[Vec<String>]) {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    for row in rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        println!("{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
}
