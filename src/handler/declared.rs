//! Appliers declared in the configuration: parameters from the payload, statements in SQL.

mod step;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;

use self::step::{Step, apply_each, parse};
use super::parameter::{ParameterSpec, null};
use super::registry::{ErasedApplier, Policy};
use super::{
    ApplyError, DEFAULT_MAX_ATTEMPTS, DEFAULT_MAX_BATCH_BYTES, DEFAULT_MAX_BATCH_EVENTS,
    DEFAULT_MAX_SET_EVENTS, EventContext, Outcome,
};
use crate::event::Pointer;
use crate::store::{Backend, DbConnection, SqlType, SqlValue, in_transaction};

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
    /// Bytes of payloads that one transaction takes at most; a single event may have more.
    pub max_batch_bytes: Option<usize>,
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
    /// One SQL statement with `:name` parameters, run for each event.
    pub sql: Option<String>,
    /// One SQL statement that reads from the rowset `batch`, run once for all events of a transaction.
    pub batch_sql: Option<String>,
    /// Rows that it must change for each event; another number rejects the event.
    pub rows: Option<usize>,
    /// With `batch_sql`: the parameters that tell the events' rows apart. Events with the same values
    /// change the same rows, and count once.
    pub rows_per: Option<Vec<String>>,
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

/// An event's values by parameter name. There are few, so they are looked for one by one.
struct Values<'a>(Vec<(&'a str, SqlValue)>);

impl std::ops::Index<&str> for Values<'_> {
    type Output = SqlValue;

    fn index(&self, name: &str) -> &SqlValue {
        let found = self.0.iter().find(|(declared, _)| *declared == name);
        &found.expect("names are checked when statements are parsed").1
    }
}

/// An applier made of SQL.
pub struct DeclaredApplier {
    parameters: BTreeMap<String, ParameterSpec>,
    steps: Vec<Step>,
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
            ("max_batch_bytes", spec.max_batch_bytes),
            ("max_attempts", spec.max_attempts.map(|attempts| attempts as usize)),
        ] {
            if value == Some(0) {
                return Err(refuse(key, "it must be 1 or more"));
            }
        }
        let steps = spec
            .statements
            .iter()
            .enumerate()
            .map(|(index, statement)| parse(index, statement, &spec.parameters, backend))
            .collect::<Result<Vec<_>, _>>()?;
        let uses = |name: &str| steps.iter().any(|step| step.uses(name));
        if let Some(unused) = spec.parameters.keys().find(|name| !uses(name)) {
            let reason = "no statement uses it; remove it, or write it as :name in a statement";
            return Err(refuse(&format!("parameters.{unused}"), reason));
        }
        let works_on_sets = !steps.iter().any(Step::is_for_each);
        let default_max_events = match works_on_sets {
            true => DEFAULT_MAX_SET_EVENTS,
            false => DEFAULT_MAX_BATCH_EVENTS,
        };
        let policy = Policy {
            shards: spec.shards,
            works_on_sets,
            max_batch_events: spec.max_batch_events.unwrap_or(default_max_events),
            max_batch_bytes: spec.max_batch_bytes.unwrap_or(DEFAULT_MAX_BATCH_BYTES),
            max_attempts: spec.max_attempts.unwrap_or(DEFAULT_MAX_ATTEMPTS),
            partition_key: spec.partition_key,
            keep_payload: spec.keep_payload,
        };
        Ok(Self { parameters: spec.parameters, steps, policy })
    }

    /// Lets the database plan each statement, for `limit` at most; returns what it says against which.
    pub fn check(
        &self,
        connection: &mut DbConnection,
        limit: Duration,
    ) -> Vec<DeclaredApplierError> {
        let context = CONTEXT_PARAMETERS.iter().copied();
        let declared = self.parameters.iter().map(|(name, spec)| (name.as_str(), spec.sql_type));
        let nulls = context.chain(declared).map(|(name, sql_type)| (name, null(sql_type)));
        let values = Values(nulls.collect());
        let mut errors = Vec::new();
        for (index, step) in self.steps.iter().enumerate() {
            let explain = |tx: &mut _| step.explain(tx, &values);
            if let Err(error) = in_transaction(connection, limit, explain) {
                let key = format!("statement[{index}].{}", step.key());
                let reason = error.to_string();
                errors.push(DeclaredApplierError { key, reason });
            }
        }
        errors
    }

    fn values(&self, event: &EventContext<'_>) -> Result<Values<'_>, String> {
        let mut values = Vec::with_capacity(CONTEXT_PARAMETERS.len() + self.parameters.len());
        values.extend([
            ("event_id", SqlValue::Text(Some(event.event_id.to_owned()))),
            ("event_type", SqlValue::Text(Some(event.event_type.to_owned()))),
            ("occurred_at", SqlValue::Timestamp(event.occurred_at)),
            ("message_id", SqlValue::Text(Some(event.message_id.to_owned()))),
        ]);
        let payload = event.payload.json();
        for (name, spec) in &self.parameters {
            values.push((name.as_str(), spec.value(&payload)?));
        }
        Ok(Values(values))
    }
}

impl ErasedApplier for DeclaredApplier {
    fn policy(&self) -> Policy {
        self.policy.clone()
    }

    fn apply(
        &self,
        tx: &mut DbConnection,
        events: &[EventContext<'_>],
    ) -> Result<Outcome, ApplyError> {
        let values = events.iter().map(|event| self.values(event));
        let values = match values.collect::<Result<Vec<_>, _>>() {
            Ok(values) => values,
            Err(reason) => return Ok(Outcome::Rejected(reason)),
        };
        // Statements for each event stay together: the second of one event comes before the first of
        // the next, as if each had come alone.
        for steps in self.steps.chunk_by(|one, next| one.is_for_each() && next.is_for_each()) {
            let applied = match steps {
                [Step::Batch(step)] => step.apply(tx, &values)?,
                steps => apply_each(steps, tx, &values)?,
            };
            if let Err(reason) = applied {
                return Ok(Outcome::Rejected(reason));
            }
        }
        Ok(Outcome::Applied)
    }
}
