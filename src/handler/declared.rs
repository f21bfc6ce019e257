//! Appliers declared in the configuration: parameters from the payload, statements in SQL.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use serde::Deserialize;

use super::parameter::{ParameterSpec, null};
use super::registry::{ErasedApplier, Policy};
use super::{ApplyError, DEFAULT_MAX_ATTEMPTS, DEFAULT_MAX_BATCH_EVENTS, EventContext, Outcome};
use crate::event::Pointer;
use crate::store::{
    Backend, DbConnection, SqlType, SqlValue, Statement, StatementError, in_transaction,
};

/// Parameters that each statement has without declaring them.
const CONTEXT_PARAMETERS: &[(&str, SqlType)] = &[
    ("event_id", SqlType::Text),
    ("event_type", SqlType::Text),
    ("occurred_at", SqlType::Timestamp),
    ("message_id", SqlType::Text),
];

/// An `[[applier]]` of the configuration.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeclaredApplierSpec {
    /// The event type.
    pub event_type: String,
    /// Named parameters.
    #[serde(default)]
    pub parameters: BTreeMap<String, ParameterSpec>,
    /// Statements, run in this order in one transaction.
    #[serde(rename = "statement")]
    pub statements: Vec<StatementSpec>,
    /// Transactions at the same time.
    pub shards: Option<usize>,
    /// Events that one transaction takes at most.
    pub max_batch_events: Option<usize>,
    /// Tries before an event is held.
    pub max_attempts: Option<u32>,
    /// Where in the payload it says whose event it is.
    pub partition_key: Option<Pointer>,
    /// Whether the payload is kept beside the claim.
    #[serde(default)]
    pub keep_payload: bool,
}

/// An `[[applier.statement]]` of the configuration.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StatementSpec {
    /// One SQL statement with `:name` parameters.
    pub sql: String,
    /// Rows that it must change; another number rejects the event.
    pub rows: Option<usize>,
}

/// What is wrong with a declared applier: the key within the applier, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {reason}")]
pub struct DeclaredApplierError {
    /// The key below `applier[N]`.
    pub key: String,
    /// What is wrong and what to do.
    pub reason: String,
}

struct ExpectingStatement {
    statement: Statement,
    rows: Option<usize>,
}

/// An applier made of SQL.
pub struct DeclaredApplier {
    parameters: BTreeMap<String, ParameterSpec>,
    statements: Vec<ExpectingStatement>,
    policy: Policy,
}

impl DeclaredApplier {
    /// Parses the statements by the rules of `backend`.
    ///
    /// # Errors
    /// A statement cannot be parsed or names a parameter that is not declared, a declared one is not
    /// used, or a number is out of range.
    pub fn new(spec: DeclaredApplierSpec, backend: Backend) -> Result<Self, DeclaredApplierError> {
        let refuse = |key: &str, reason: &str| DeclaredApplierError {
            key: key.to_owned(),
            reason: reason.to_owned(),
        };
        if spec.event_type.is_empty() {
            return Err(refuse("event_type", "it is empty"));
        }
        if spec.statements.is_empty() {
            return Err(refuse("statement", "there is none; declare at least one"));
        }
        for (key, value) in [
            ("shards", spec.shards),
            ("max_batch_events", spec.max_batch_events),
            ("max_attempts", spec.max_attempts.map(|attempts| attempts as usize)),
        ] {
            if value == Some(0) {
                return Err(refuse(key, "it must be 1 or more"));
            }
        }
        let statements = spec
            .statements
            .iter()
            .enumerate()
            .map(|(index, statement)| parse(index, statement, &spec.parameters, backend))
            .collect::<Result<Vec<_>, _>>()?;
        let uses = |name: &str| statements.iter().any(|s| s.statement.parameters().contains(name));
        if let Some(unused) = spec.parameters.keys().find(|name| !uses(name)) {
            let reason = "no statement uses it; remove it, or write it as :name in a statement";
            return Err(refuse(&format!("parameters.{unused}"), reason));
        }
        let policy = Policy {
            shards: spec.shards,
            max_batch_events: spec.max_batch_events.unwrap_or(DEFAULT_MAX_BATCH_EVENTS),
            max_attempts: spec.max_attempts.unwrap_or(DEFAULT_MAX_ATTEMPTS),
            partition_key: spec.partition_key,
            keep_payload: spec.keep_payload,
        };
        Ok(Self { parameters: spec.parameters, statements, policy })
    }

    /// Lets the database plan each statement, for `limit` at most; returns what it says against which.
    pub fn check(
        &self,
        connection: &mut DbConnection,
        limit: Duration,
    ) -> Vec<DeclaredApplierError> {
        let context = CONTEXT_PARAMETERS.iter().copied();
        let declared = self.parameters.iter().map(|(name, spec)| (name.as_str(), spec.sql_type));
        let values: HashMap<&str, SqlValue> =
            context.chain(declared).map(|(name, sql_type)| (name, null(sql_type))).collect();
        let mut errors = Vec::new();
        for (index, ExpectingStatement { statement, .. }) in self.statements.iter().enumerate() {
            let explain = |tx: &mut _| statement.explain(tx, |name| &values[name]);
            if let Err(error) = in_transaction(connection, limit, explain) {
                let (key, reason) = (format!("statement[{index}].sql"), error.to_string());
                errors.push(DeclaredApplierError { key, reason });
            }
        }
        errors
    }

    fn values(&self, event: &EventContext<'_>) -> Result<HashMap<&str, SqlValue>, String> {
        let mut values = HashMap::from([
            ("event_id", SqlValue::Text(Some(event.event_id.to_owned()))),
            ("event_type", SqlValue::Text(Some(event.event_type.to_owned()))),
            ("occurred_at", SqlValue::Timestamp(event.occurred_at)),
            ("message_id", SqlValue::Text(Some(event.message_id.to_owned()))),
        ]);
        let payload = event.payload.json();
        for (name, spec) in &self.parameters {
            values.insert(name, spec.value(&payload)?);
        }
        Ok(values)
    }
}

fn parse(
    index: usize,
    spec: &StatementSpec,
    parameters: &BTreeMap<String, ParameterSpec>,
    backend: Backend,
) -> Result<ExpectingStatement, DeclaredApplierError> {
    let key = |name: &str| format!("statement[{index}].{name}");
    let statement = Statement::parse(&spec.sql, backend).map_err(|error: StatementError| {
        DeclaredApplierError { key: key("sql"), reason: error.to_string() }
    })?;
    let is_context = |name: &&str| CONTEXT_PARAMETERS.iter().any(|(known, _)| known == name);
    let is_known = |name: &&str| parameters.contains_key(*name) || is_context(name);
    if let Some(unknown) = statement.parameters().into_iter().find(|name| !is_known(name)) {
        let reason = format!(
            "it names :{unknown}, which is not declared; add it to the applier's parameters, for \
             example {unknown} = {{ pointer = \"/{unknown}\", type = \"text\" }}"
        );
        return Err(DeclaredApplierError { key: key("sql"), reason });
    }
    if spec.rows.is_some() && !statement.changes_rows() {
        let reason = "rows counts changed rows, and this statement is no INSERT, UPDATE, DELETE, \
                      REPLACE or MERGE; remove it";
        return Err(DeclaredApplierError { key: key("rows"), reason: reason.into() });
    }
    Ok(ExpectingStatement { statement, rows: spec.rows })
}

impl ErasedApplier for DeclaredApplier {
    fn policy(&self) -> Policy {
        self.policy.clone()
    }

    fn apply(
        &self,
        tx: &mut DbConnection,
        event: &EventContext<'_>,
    ) -> Result<Outcome, ApplyError> {
        let values = match self.values(event) {
            Ok(values) => values,
            Err(reason) => return Ok(Outcome::Rejected(reason)),
        };
        for (index, ExpectingStatement { statement, rows }) in self.statements.iter().enumerate() {
            let changed = statement.execute(tx, |name| &values[name])?;
            if let Some(expected) = rows.filter(|expected| *expected != changed) {
                return Ok(Outcome::Rejected(format!(
                    "statement {} changed {changed} rows instead of {expected}",
                    index + 1
                )));
            }
        }
        Ok(Outcome::Applied)
    }
}
