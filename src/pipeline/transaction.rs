//! One batch of events through the database: claim, compare, apply, commit.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::supervisor::panic_text;
use crate::event::{Digest, Event};
use crate::failpoint::{FailPoint, reach};
use crate::handler::{ApplyError, ErasedApplier, EventContext, Outcome};
use crate::store::{
    Claim, DatabaseErrorClass, DbConnection, NewClaim, Store, claim, classify, horizon,
    in_transaction,
};

/// How events of one type are applied.
pub struct Application {
    /// The event type.
    pub event_type: String,
    /// What is done with an event.
    pub applier: Arc<dyn ErasedApplier>,
    /// The consumer whose claims these are.
    pub consumer: String,
    /// The database.
    pub store: Store,
    /// Whether claims of this type are ever deleted, so that events may be too old.
    pub has_horizon: bool,
    /// Whether payloads are kept.
    pub keep_payload: bool,
    /// Whether the last batch had events that were applied before, so that the next one may, too.
    pub had_known: AtomicBool,
}

/// An event that wants to be applied.
#[derive(Clone, Copy)]
pub struct Candidate<'a> {
    /// The event.
    pub event: &'a Event,
    /// Whose it is, where its event type declares that.
    pub partition_key: Option<&'a str>,
    /// The queue it came from.
    pub queue: &'a str,
    /// The message that brought it.
    pub message_id: &'a str,
    /// 1 at the first try.
    pub attempt: u32,
    /// Whether a person takes the responsibility that it was not applied before its claim could have
    /// been forgotten.
    pub may_be_past_horizon: bool,
}

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
    /// Too old for it to be known whether it was applied before.
    PastHorizon(String),
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
pub fn apply_batch(application: &Application, batch: &[Candidate<'_>]) -> BatchResult {
    let failure = match try_batch(application, batch) {
        Ok(verdicts) => return BatchResult { verdicts, contended: false },
        Err(failure) => failure,
    };
    let contended = matches!(failure, Failure::Everything(Verdict::Contention(_)));
    let verdicts = match failure {
        Failure::Everything(verdict @ Verdict::Unavailable(_)) => vec![verdict; batch.len()],
        Failure::Event(verdict) | Failure::Everything(verdict) if batch.len() == 1 => {
            vec![verdict]
        }
        Failure::Event(_) | Failure::Everything(_) => one_by_one(application, batch),
    };
    BatchResult { verdicts, contended }
}

fn one_by_one(application: &Application, batch: &[Candidate<'_>]) -> Vec<Verdict> {
    let mut unavailable: Option<Verdict> = None;
    batch
        .iter()
        .map(|candidate| {
            if let Some(verdict) = &unavailable {
                return verdict.clone();
            }
            match try_batch(application, &[*candidate]) {
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
fn try_batch(application: &Application, batch: &[Candidate<'_>]) -> Result<Vec<Verdict>, Failure> {
    let attempt = AssertUnwindSafe(|| {
        application.store.run_here(|connection| {
            let limit = application.store.statement_timeout();
            in_transaction(connection, limit, |tx| claim_and_apply(tx, application, batch))
        })
    });
    match catch_unwind(attempt) {
        Ok(Ok(Ok(_))) if reach(FailPoint::AfterCommit) => {
            let text = "the answer to the commit was lost, for a drill".into();
            Err(Failure::Everything(Verdict::Unavailable(text)))
        }
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
    application: &Application,
    batch: &[Candidate<'_>],
) -> Result<Vec<Verdict>, Failure> {
    let mut firsts = first_of_each_id(batch);
    // Every process locks rows in the same order, so that none waits for another in a circle.
    firsts.sort_by_key(|candidate| candidate.partition_key);
    let claims: Vec<NewClaim<'_>> =
        firsts.iter().map(|candidate| candidate.new_claim(application.keep_payload)).collect();
    let expects_known = application.had_known.load(Ordering::Relaxed);
    let answers = claim(tx, &application.consumer, &claims, expects_known)?;
    let has_known = answers.iter().any(|answer| matches!(answer, Claim::Known(_)));
    application.had_known.store(has_known, Ordering::Relaxed);
    refuse_what_is_past_the_horizon(tx, application, &firsts, &answers)?;
    let mut applied: HashMap<&str, Option<Vec<u8>>> = HashMap::with_capacity(firsts.len());
    let mut fresh = Vec::with_capacity(firsts.len());
    for (candidate, answer) in firsts.iter().zip(answers) {
        let known = match answer {
            Claim::Known(digest) => Some(digest),
            Claim::Fresh => {
                fresh.push(candidate.context());
                None
            }
            Claim::Vanished => {
                let text = "the event's claim vanished while it was looked at".into();
                return Err(Failure::Everything(Verdict::Contention(text)));
            }
        };
        applied.insert(&candidate.event.id, known);
    }
    if !fresh.is_empty() {
        apply(tx, application, &fresh)?;
    }
    reach(FailPoint::BeforeCommit);
    Ok(batch
        .iter()
        .map(|candidate| match applied.get_mut(candidate.event.id.as_str()) {
            Some(Some(digest)) => compare(candidate.event, digest),
            // The first copy is the one that was applied; the next are compared with it.
            Some(fresh) => {
                *fresh = Some(candidate.event.digest.0.to_vec());
                Verdict::Applied
            }
            None => unreachable!("each id of the batch was claimed"),
        })
        .collect())
}

fn first_of_each_id<'a>(batch: &[Candidate<'a>]) -> Vec<Candidate<'a>> {
    let mut seen = std::collections::HashSet::with_capacity(batch.len());
    batch.iter().copied().filter(|candidate| seen.insert(candidate.event.id.as_str())).collect()
}

/// After the claims, by a later statement of the same transaction: a claim that is fresh because a purge
/// took the old row away sees the horizon that was committed before the row went. A check before the
/// claims could see the old horizon, and the claim then miss the row.
fn refuse_what_is_past_the_horizon(
    tx: &mut DbConnection,
    application: &Application,
    candidates: &[Candidate<'_>],
    answers: &[Claim],
) -> Result<(), Failure> {
    if !application.has_horizon || !answers.contains(&Claim::Fresh) {
        return Ok(());
    }
    let found = horizon(tx, &application.consumer, &application.event_type)?;
    let Some(horizon) = found else { return Ok(()) };
    for (candidate, answer) in candidates.iter().zip(answers) {
        let time = candidate.event.event_time.map(|time| time.naive_utc());
        if *answer == Claim::Fresh
            && !candidate.may_be_past_horizon
            && let Some(time) = time.filter(|time| *time < horizon)
        {
            return Err(Failure::Event(Verdict::PastHorizon(format!(
                "older than the de-duplication horizon: its time is {time}, the horizon {horizon} \
                 (UTC), so it cannot be known whether it was applied before"
            ))));
        }
    }
    Ok(())
}

impl<'a> Candidate<'a> {
    fn context(&self) -> EventContext<'a> {
        EventContext::new(self.event, self.queue, self.message_id, self.attempt)
    }

    fn new_claim(&self, keep_payload: bool) -> NewClaim<'a> {
        let event = self.event;
        NewClaim {
            event_id: &event.id,
            event_type: &event.event_type,
            payload_digest: &event.digest.0,
            message_id: self.message_id,
            occurred_at: event.occurred_at.map(|time| time.naive_utc()),
            event_time: event.event_time.map(|time| time.naive_utc()),
            payload: keep_payload.then(|| event.payload.as_str()),
        }
    }
}

fn apply(
    tx: &mut DbConnection,
    application: &Application,
    events: &[EventContext<'_>],
) -> Result<(), Failure> {
    match application.applier.apply(tx, events) {
        Ok(Outcome::Applied) => Ok(()),
        Ok(Outcome::Rejected(reason)) => Err(Failure::Event(Verdict::Rejected(reason))),
        Err(ApplyError::Retry(reason)) => Err(Failure::Event(Verdict::Failed(reason))),
        Err(ApplyError::Database(error)) => Err(error.into()),
    }
}

fn compare(event: &Event, applied: &[u8]) -> Verdict {
    let same = |digest: Digest| digest.0 == applied;
    if same(event.digest) || event.digest_without_time.is_some_and(same) {
        return Verdict::Duplicate;
    }
    let applied = applied.try_into().map(Digest).unwrap_or(Digest([0; 32]));
    Verdict::Conflict(format!(
        "the event {:?} was applied before with another payload: its digest was {applied} and is \
         {} now",
        event.id, event.digest
    ))
}
