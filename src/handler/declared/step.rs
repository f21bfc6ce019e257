//! One statement of a declared applier: run for each event, or once for a batch.

use std::collections::{BTreeMap, HashSet};

use diesel::result::QueryResult;

use super::{CONTEXT_PARAMETERS, DeclaredApplierError, StatementSpec, Values};
use crate::handler::ParameterSpec;
use crate::store::{Backend, DbConnection, ROWSET_NAME, Rowset, SqlType, SqlValue, Statement};

/// A statement with what it has to change.
pub enum Step {
    /// Run for each event.
    Each {
        statement: Statement,
        /// Rows that it must change.
        rows: Option<usize>,
        /// Its place among the statements, counted from 1.
        number: usize,
    },
    /// Run once for a batch.
    Batch(BatchStep),
}

/// A statement over the rowset of a batch.
pub struct BatchStep {
    statement: Statement,
    rowset: Rowset,
    /// Rows that it must change for each event.
    rows: Option<usize>,
    /// The parameters that tell the events' rows apart; without any, each event has its own.
    rows_per: Option<Vec<String>>,
    number: usize,
}

/// What a statement did not do, in words; the database's own errors come first.
type Applied = QueryResult<Result<(), String>>;

/// Reads `statement[index]` by the rules of `backend`.
pub fn parse(
    index: usize,
    spec: &StatementSpec,
    parameters: &BTreeMap<String, ParameterSpec>,
    backend: Backend,
) -> Result<Step, DeclaredApplierError> {
    let refuse = |key: &str, reason: String| DeclaredApplierError {
        key: format!("statement[{index}].{key}"),
        reason,
    };
    let (rows, number) = (spec.rows, index + 1);
    let step = match (&spec.sql, &spec.batch_sql) {
        (Some(sql), None) => {
            if spec.rows_per.is_some() {
                let reason = "it goes with batch_sql only; remove it".to_owned();
                return Err(refuse("rows_per", reason));
            }
            let statement = parse_each(sql, parameters, backend).map_err(|r| refuse("sql", r))?;
            Step::Each { statement, rows, number }
        }
        (None, Some(sql)) => {
            let (statement, rowset) =
                parse_batch(sql, parameters, backend).map_err(|r| refuse("batch_sql", r))?;
            let rows_per = rows_per(spec, &rowset).map_err(|r| refuse("rows_per", r))?;
            Step::Batch(BatchStep { statement, rowset, rows, rows_per, number })
        }
        (None, None) => {
            let reason = "it is missing; write sql (run for each event) or batch_sql (run once for \
                          all events of a transaction)";
            return Err(refuse("sql", reason.into()));
        }
        (Some(_), Some(_)) => {
            let reason = "there is sql, too; a statement has one of them";
            return Err(refuse("batch_sql", reason.into()));
        }
    };
    if rows.is_some() && !step.statement().changes_rows() {
        let reason = "rows counts changed rows, and this statement is no INSERT, UPDATE, DELETE, \
                      REPLACE or MERGE; remove it";
        return Err(refuse("rows", reason.into()));
    }
    Ok(step)
}

fn parse_each(
    sql: &str,
    parameters: &BTreeMap<String, ParameterSpec>,
    backend: Backend,
) -> Result<Statement, String> {
    let statement = Statement::parse(sql, backend).map_err(|error| error.to_string())?;
    let is_context = |name: &&str| CONTEXT_PARAMETERS.iter().any(|(known, _)| known == name);
    let is_known = |name: &&str| parameters.contains_key(*name) || is_context(name);
    if let Some(unknown) = statement.parameters().into_iter().find(|name| !is_known(name)) {
        return Err(format!(
            "it names :{unknown}, which is not declared; add it to the applier's parameters, for \
             example {unknown} = {{ pointer = \"/{unknown}\", type = \"text\" }}"
        ));
    }
    Ok(statement)
}

fn parse_batch(
    sql: &str,
    parameters: &BTreeMap<String, ParameterSpec>,
    backend: Backend,
) -> Result<(Statement, Rowset), String> {
    // What the statement cannot mean needs not be sent.
    let named = CONTEXT_PARAMETERS.iter().filter(|(name, _)| sql.contains(name));
    let context = named.map(|(name, sql_type)| ((*name).to_owned(), *sql_type));
    let declared = parameters.iter().map(|(name, spec)| (name.clone(), spec.sql_type));
    let columns: BTreeMap<String, SqlType> = context.chain(declared).collect();
    if let Some(name) = columns.keys().find(|name| !Rowset::may_be_column(name)) {
        return Err(format!(
            "{name:?} cannot be the name of a column of the rowset; rename the parameter to letters, \
             digits and _"
        ));
    }
    let rowset = Rowset::new(backend, columns.into_iter().collect());
    let statement = Statement::parse_over(sql, &rowset).map_err(|error| error.to_string())?;
    if let Some(name) = statement.parameters().into_iter().find(|name| *name != ROWSET_NAME) {
        return Err(format!(
            "it names :{name}, but it is run once for all events; take the column {name} of batch"
        ));
    }
    Ok((statement, rowset))
}

fn rows_per(spec: &StatementSpec, rowset: &Rowset) -> Result<Option<Vec<String>>, String> {
    let Some(names) = &spec.rows_per else { return Ok(None) };
    if spec.rows.is_none() {
        return Err("it goes with rows; write rows = 1 beside it, say".into());
    }
    match names.iter().find(|name| !rowset.names().any(|column| column == *name)) {
        None => Ok(Some(names.clone())),
        Some(unknown) => Err(format!("{unknown:?} is no parameter of this applier")),
    }
}

/// The steps for one event after the other.
pub fn apply_each(steps: &[Step], tx: &mut DbConnection, events: &[Values<'_>]) -> Applied {
    for values in events {
        for step in steps {
            let Step::Each { statement, rows, number } = step else { continue };
            let changed = statement.execute(tx, |name| &values[name])?;
            if let Err(reason) = compare(*number, changed, *rows) {
                return Ok(Err(reason));
            }
        }
    }
    Ok(Ok(()))
}

fn compare(number: usize, changed: usize, expected: Option<usize>) -> Result<(), String> {
    match expected {
        Some(expected) if expected != changed => {
            Err(format!("statement {number} changed {changed} rows instead of {expected}"))
        }
        _ => Ok(()),
    }
}

impl Step {
    /// Whether it is run for each event.
    pub fn is_for_each(&self) -> bool {
        matches!(self, Self::Each { .. })
    }

    fn statement(&self) -> &Statement {
        match self {
            Self::Each { statement, .. } | Self::Batch(BatchStep { statement, .. }) => statement,
        }
    }

    /// The key of the configuration that holds its SQL.
    pub fn key(&self) -> &'static str {
        match self {
            Self::Each { .. } => "sql",
            Self::Batch(_) => "batch_sql",
        }
    }

    /// Whether the parameter means anything to it. A rowset has all that are declared.
    pub fn uses(&self, name: &str) -> bool {
        match self {
            Self::Each { statement, .. } => statement.parameters().contains(name),
            Self::Batch(_) => true,
        }
    }

    /// Lets the database plan it.
    pub fn explain(&self, tx: &mut DbConnection, values: &Values<'_>) -> QueryResult<()> {
        match self {
            Self::Each { statement, .. } => statement.explain(tx, |name| &values[name]),
            Self::Batch(step) => {
                let rows = step.rows(&[]);
                step.statement.explain(tx, |_| &rows)
            }
        }
    }
}

impl BatchStep {
    /// Runs it for these events.
    pub fn apply(&self, tx: &mut DbConnection, events: &[Values<'_>]) -> Applied {
        let rows = self.rows(events);
        let changed = self.statement.execute(tx, |_| &rows)?;
        let expected = self.rows.map(|rows| rows * self.rows_apart(events));
        Ok(compare(self.number, changed, expected))
    }

    fn rows(&self, events: &[Values<'_>]) -> SqlValue {
        self.rowset.rows(events.iter().map(|values| self.rowset.names().map(|name| &values[name])))
    }

    /// How many events change rows of their own.
    fn rows_apart(&self, events: &[Values<'_>]) -> usize {
        let Some(names) = &self.rows_per else { return events.len() };
        let key = |values: &Values<'_>| {
            names.iter().map(|name| format!("{:?}", values[name.as_str()])).collect::<Vec<_>>()
        };
        events.iter().map(key).collect::<HashSet<_>>().len()
    }
}
