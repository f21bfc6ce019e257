//! Tries retrying messages when they are due, and tells how many messages are held.

use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use chrono::{TimeDelta, Utc};
use tokio::time::Instant;

use super::held_retry::{HeldRetry, RetryOutcome};
use super::observer::{Observation, Observer};
use crate::store::{HeldCount, due, held_counts, lease};

/// Between two looks for messages that are due.
const INTERVAL: Duration = Duration::from_secs(1);
/// Between two counts of what is held.
const COUNT_INTERVAL: Duration = Duration::from_secs(15);
/// Messages that one look takes at most.
const MAX_MESSAGES: i64 = 100;
/// For how long another instance leaves a message alone that this one tries.
const LEASE: TimeDelta = TimeDelta::minutes(10);

/// The actor.
pub struct Retrier {
    retry: Arc<HeldRetry>,
    observer: Observer,
    counted_at: Option<Instant>,
}

/// What a look found.
#[derive(Default)]
struct Look {
    tried: usize,
    counts: Option<Vec<HeldCount>>,
}

impl Retrier {
    /// Tries what `retry` can.
    pub fn new(retry: Arc<HeldRetry>, observer: Observer) -> Self {
        Self { retry, observer, counted_at: None }
    }

    fn look(&mut self, context: &mut Context<Self>) {
        let count = self.counted_at.is_none_or(|at| at.elapsed() >= COUNT_INTERVAL);
        let look = look(self.retry.clone(), self.observer.clone(), count);
        context.spawn(look.into_actor(self).map(|found, retrier, context| {
            let found = found.unwrap_or_else(|reason| {
                tracing::debug!(reason, "held messages could not be looked at");
                Look::default()
            });
            if let Some(counts) = &found.counts {
                retrier.counted_at = Some(Instant::now());
                (retrier.observer)(&Observation::HeldCounted { counts });
            }
            let pause = if found.tried > 0 { Duration::ZERO } else { INTERVAL };
            context.run_later(pause, Self::look);
        }));
    }
}

async fn look(retry: Arc<HeldRetry>, observer: Observer, count: bool) -> Result<Look, String> {
    let consumer = retry.consumer.clone();
    let (ids, counts) = retry
        .store
        .transact(move |tx| {
            let counts = count.then(|| held_counts(tx, &consumer)).transpose()?;
            Ok((due(tx, &consumer, Utc::now().naive_utc(), MAX_MESSAGES)?, counts))
        })
        .await
        .map_err(|error| error.to_string())?;
    let mut tried = 0;
    for id in ids {
        // A turn a message: on SQLite the appliers wait meanwhile.
        let turn = retry.store.turn().await;
        let retry = retry.clone();
        let blocking = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            try_if_free(&retry, id)
        });
        let Some(outcome) = blocking.await.map_err(|error| error.to_string())?? else { continue };
        tracing::info!(held_id = id, outcome = outcome.as_str(), "tried a held message");
        observer(&Observation::HeldRetried { outcome: outcome.as_str() });
        tried += 1;
    }
    Ok(Look { tried, counts })
}

/// Nothing if another instance tries it.
fn try_if_free(retry: &HeldRetry, id: i64) -> Result<Option<RetryOutcome>, String> {
    let now = Utc::now().naive_utc();
    let is_free = retry.store.transact_here(|tx| lease(tx, id, now, now + LEASE));
    match is_free.map_err(|error| error.to_string())? {
        true => retry.retry(id, false).map(Some),
        false => Ok(None),
    }
}

impl Actor for Retrier {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Self::Context) {
        self.look(context);
    }
}
