//! One batch of events through the database: claim, compare, apply, commit.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::applier::Group;
use super::delivery::Work;
use super::supervisor::panic_text;
use crate::event::Digest;
use crate::handler::{ApplyError, EventContext, Outcome};
use crate::store::{
    Claim, DatabaseErrorClass, DbConnection, NewClaim, claim, classify, in_transaction,
};

/// How one event of a batch ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Committed now.
    Applied,
    /// Committed before, with the same payload.
    Duplicate,
    /// Committed before, with another payload.
    Conflict(String),
    /// Refused for good.
    Rejected(String),
    /// Rolled back; to be tried again, because of what the event itself did.
    Failed(String),
    /// Rolled back; to be tried again, because another transaction was in the way.
    Contention(String),
    /// Rolled back or never begun: the database cannot be used.
    Unavailable(String),
}

/// Why a transaction was rolled back.
enum Failure {
    Event(Verdict),
    Everything(Verdict),
}

impl From<diesel::result::Error> for Failure {
    fn from(error: diesel::result::Error) -> Self {
        let text = error.to_string();
        match classify(&error) {
            DatabaseErrorClass::Contention => Self::Everything(Verdict::Contention(text)),
            DatabaseErrorClass::Unavailable => Self::Everything(Verdict::Unavailable(text)),
            DatabaseErrorClass::Rejected => Self::Event(Verdict::Rejected(text)),
            DatabaseErrorClass::Unclear => Self::Event(Verdict::Failed(text)),
        }
    }
}

/// What became of a batch.
pub struct BatchResult {
    /// In the batch's order.
    pub verdicts: Vec<Verdict>,
    /// Whether other transactions were in the way of the batch as a whole.
    pub contended: bool,
}

/// Applies a batch in one transaction; if an event of it fails, or other transactions are in the way
/// of its many rows, each event in a transaction of its own, so that none fails for its neighbour.
/// Blocks.
pub fn apply_batch(group: &Group, batch: &[Work]) -> BatchResult {
    let all: Vec<&Work> = batch.iter().collect();
    let failure = match try_batch(group, &all) {
        Ok(verdicts) => return BatchResult { verdicts, contended: false },
        Err(failure) => failure,
    };
    let contended = matches!(failure, Failure::Everything(Verdict::Contention(_)));
    let verdicts = match failure {
        Failure::Everything(verdict @ Verdict::Unavailable(_)) => vec![verdict; batch.len()],
        Failure::Event(verdict) | Failure::Everything(verdict) if batch.len() == 1 => {
            vec![verdict]
        }
        Failure::Event(_) | Failure::Everything(_) => one_by_one(group, batch),
    };
    BatchResult { verdicts, contended }
}

fn one_by_one(group: &Group, batch: &[Work]) -> Vec<Verdict> {
    let mut unavailable: Option<Verdict> = None;
    batch
        .iter()
        .map(|work| {
            if let Some(verdict) = &unavailable {
                return verdict.clone();
            }
            match try_batch(group, &[work]) {
                Ok(mut verdicts) => verdicts.remove(0),
                Err(Failure::Event(verdict)) => verdict,
                Err(Failure::Everything(verdict)) => {
                    if matches!(verdict, Verdict::Unavailable(_)) {
                        unavailable = Some(verdict.clone());
                    }
                    verdict
                }
            }
        })
        .collect()
}

/// A panic unwinds through the connection's guard, so the pool discards the connection.
fn try_batch(group: &Group, batch: &[&Work]) -> Result<Vec<Verdict>, Failure> {
    let attempt = AssertUnwindSafe(|| {
        group.store.run_here(|connection| {
            let limit = group.store.statement_timeout();
            in_transaction(connection, limit, |tx| claim_and_apply(tx, group, batch))
        })
    });
    match catch_unwind(attempt) {
        Ok(Ok(result)) => result,
        Ok(Err(error)) => Err(Failure::Everything(Verdict::Unavailable(error.to_string()))),
        Err(panic) => {
            let text = format!("the applier panicked: {}", panic_text(panic.as_ref()));
            Err(Failure::Event(Verdict::Failed(text)))
        }
    }
}

fn claim_and_apply(
    tx: &mut DbConnection,
    group: &Group,
    batch: &[&Work],
) -> Result<Vec<Verdict>, Failure> {
    let mut firsts = first_of_each_id(batch);
    // Every process locks rows in the same order, so that none waits for another in a circle.
    firsts.sort_by(|one, other| one.partition_key.cmp(&other.partition_key));
    let claims: Vec<NewClaim<'_>> = firsts.iter().map(|work| new_claim(work)).collect();
    let answers = claim(tx, &group.consumer, &claims)?;
    let mut applied: HashMap<&str, Option<Vec<u8>>> = HashMap::with_capacity(firsts.len());
    for (work, answer) in firsts.iter().zip(answers) {
        let known = match answer {
            Claim::Known(digest) => Some(digest),
            Claim::Fresh => {
                apply(tx, group, work)?;
                None
            }
            Claim::Vanished => {
                let text = "the event's claim vanished while it was looked at".into();
                return Err(Failure::Everything(Verdict::Contention(text)));
            }
        };
        applied.insert(&work.event.id, known);
    }
    Ok(batch
        .iter()
        .map(|work| match applied.get_mut(work.event.id.as_str()) {
            Some(Some(digest)) => compare(work, digest),
            // The first copy is the one that was applied; the next are compared with it.
            Some(fresh) => {
                *fresh = Some(work.event.digest.0.to_vec());
                Verdict::Applied
            }
            None => unreachable!("each id of the batch was claimed"),
        })
        .collect())
}

fn first_of_each_id<'a>(batch: &[&'a Work]) -> Vec<&'a Work> {
    let mut seen = std::collections::HashSet::with_capacity(batch.len());
    batch.iter().copied().filter(|work| seen.insert(work.event.id.as_str())).collect()
}

fn new_claim(work: &Work) -> NewClaim<'_> {
    NewClaim {
        event_id: &work.event.id,
        event_type: &work.event.event_type,
        payload_digest: &work.event.digest.0,
        message_id: &work.delivery.message.msg_id,
        occurred_at: work.event.occurred_at.map(|time| time.naive_utc()),
    }
}

fn apply(tx: &mut DbConnection, group: &Group, work: &Work) -> Result<(), Failure> {
    let Work { event, delivery, failures, .. } = work;
    let message_id = &delivery.message.msg_id;
    let context = EventContext::new(event, &delivery.queue.name, message_id, failures + 1);
    match group.applier.apply(tx, &context) {
        Ok(Outcome::Applied) => Ok(()),
        Ok(Outcome::Rejected(reason)) => Err(Failure::Event(Verdict::Rejected(reason))),
        Err(ApplyError::Retry(reason)) => Err(Failure::Event(Verdict::Failed(reason))),
        Err(ApplyError::Database(error)) => Err(error.into()),
    }
}

fn compare(work: &Work, applied: &[u8]) -> Verdict {
    let incoming = work.event.digest;
    if incoming.0 == applied {
        return Verdict::Duplicate;
    }
    let applied = applied.try_into().map(Digest).unwrap_or(Digest([0; 32]));
    Verdict::Conflict(format!(
        "the event {:?} was applied before with another payload: its digest was {applied} and is \
         {incoming} now",
        work.event.id
    ))
}
