//! Deletes claims that are older than their retention, paced, and only after the horizon says so.

use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use chrono::{NaiveDateTime, TimeDelta, Utc};
use diesel::result::QueryResult;

use super::observer::{Observation, Observer};
use crate::event::EventTimeSource;
use crate::store::{
    DbConnection, Horizon, Store, TransactionError, advance_horizon, newest_event_time,
    purge_claims,
};

/// Between two purges.
const INTERVAL: Duration = Duration::from_secs(60);
/// Claims that one transaction deletes at most.
const MAX_BATCH_CLAIMS: i64 = 500;
/// Shortest pause between two transactions.
const MIN_PAUSE: Duration = Duration::from_millis(5);
/// Otherwise the pause is so many times as long as the last transaction took, so that a purge has the
/// database a quarter of the time at most: with half of it, events took twice as long on two cores.
const PAUSE_PER_WORK: u32 = 3;

/// How long claims of an event type are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retention {
    /// The event type.
    pub event_type: String,
    /// Where its events' time comes from.
    pub event_time: EventTimeSource,
    /// For how long an event is remembered after it happened.
    pub keep_for: Duration,
}

/// Purges claims of one consumer.
pub struct Purge {
    /// Whose claims.
    pub consumer: String,
    /// The database.
    pub store: Store,
    /// By which rules.
    pub retention: Vec<Retention>,
}

/// What became of one event type's claims.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Purged {
    /// Where the horizon is now, UTC; `None` while there is no claim with a time.
    pub horizon: Option<NaiveDateTime>,
    /// Claims deleted.
    pub claims: usize,
}

impl Purge {
    /// Advances the horizon of one event type, and deletes what is before it.
    ///
    /// # Errors
    /// The database's; what was deleted stays deleted.
    pub async fn run(self: &Arc<Self>, rule: &Retention) -> Result<Purged, TransactionError> {
        let purge = self.clone();
        let (rule, event_type) = (rule.clone(), rule.event_type.clone());
        let advanced = self.store.transact(move |tx| purge.advance(tx, &rule)).await?;
        let Some(horizon) = advanced else { return Ok(Purged { horizon: None, claims: 0 }) };
        let mut claims = 0;
        loop {
            let start = tokio::time::Instant::now();
            let (consumer, event_type) = (self.consumer.clone(), event_type.clone());
            let batch = move |tx: &mut DbConnection| {
                purge_claims(tx, &consumer, &event_type, horizon, MAX_BATCH_CLAIMS)
            };
            let deleted = self.store.transact(batch).await?;
            claims += deleted;
            if deleted == 0 {
                return Ok(Purged { horizon: Some(horizon), claims });
            }
            tokio::time::sleep((start.elapsed() * PAUSE_PER_WORK).max(MIN_PAUSE)).await;
        }
    }

    /// Time is counted from the newest event, if that is before this machine's clock: a clock that jumps
    /// ahead forgets nothing.
    fn advance(
        &self,
        tx: &mut DbConnection,
        rule: &Retention,
    ) -> QueryResult<Option<NaiveDateTime>> {
        let newest = newest_event_time(tx, &self.consumer, &rule.event_type)?;
        let Some(newest) = newest else { return Ok(None) };
        let keep_for = TimeDelta::from_std(rule.keep_for).unwrap_or(TimeDelta::MAX);
        let latest = newest.min(Utc::now().naive_utc());
        let Some(horizon) = latest.checked_sub_signed(keep_for) else { return Ok(None) };
        let event_type = rule.event_type.clone();
        let to = Horizon { event_type, horizon, event_time: rule.event_time.to_string() };
        advance_horizon(tx, &self.consumer, &to).map(Some)
    }
}

/// The actor.
pub struct Purger {
    purge: Arc<Purge>,
    observer: Observer,
}

impl Purger {
    /// Purges now and then.
    pub fn new(purge: Arc<Purge>, observer: Observer) -> Self {
        Self { purge, observer }
    }

    fn run(&mut self, context: &mut Context<Self>) {
        let (purge, observer) = (self.purge.clone(), self.observer.clone());
        let all = async move {
            for rule in &purge.retention {
                let event_type = rule.event_type.as_str();
                match purge.run(rule).await {
                    Ok(Purged { horizon: Some(horizon), claims }) => {
                        observer(&Observation::Purged { event_type, horizon, claims });
                    }
                    Ok(Purged { horizon: None, .. }) => {}
                    Err(error) => tracing::warn!(event_type, %error, "claims were not purged"),
                }
            }
        };
        context.spawn(all.into_actor(self).map(|(), _, context| {
            context.run_later(INTERVAL, Self::run);
        }));
    }
}

impl Actor for Purger {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Self::Context) {
        self.run(context);
    }
}
