//! Tries retrying messages when they are due, and tells how many messages are held.

use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use chrono::{TimeDelta, Utc};
use tokio::time::Instant;

use super::held_retry::HeldRetry;
use super::observer::{Observation, Observer};
use crate::store::{HeldCount, due, held_counts, in_transaction, lease};

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
        let is_time = self.counted_at.is_none_or(|at| at.elapsed() >= COUNT_INTERVAL);
        let (retry, observer) = (self.retry.clone(), self.observer.clone());
        let look = async move {
            let turn = retry.store.turn().await;
            let blocking = tokio::task::spawn_blocking(move || {
                let _turn = turn;
                look_now(&retry, &observer, is_time)
            });
            blocking.await.unwrap_or_else(|error| Err(error.to_string()))
        };
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

fn look_now(retry: &HeldRetry, observer: &Observer, count: bool) -> Result<Look, String> {
    let limit = retry.store.statement_timeout();
    let now = Utc::now().naive_utc();
    let (ids, counts) = retry
        .store
        .run_here(|connection| {
            in_transaction(connection, limit, |tx| {
                let counts = count.then(|| held_counts(tx, &retry.consumer)).transpose()?;
                let ids = due(tx, &retry.consumer, now, MAX_MESSAGES)?;
                Ok::<_, diesel::result::Error>((ids, counts))
            })
        })
        .map_err(|error| error.to_string())?
        .map_err(|error| error.to_string())?;
    let mut tried = 0;
    for id in ids {
        let take = |connection: &mut _| {
            in_transaction(connection, limit, |tx| lease(tx, id, now, now + LEASE))
        };
        match retry.store.run_here(take) {
            Ok(Ok(true)) => {}
            Ok(Ok(false)) => continue,
            Ok(Err(error)) => return Err(error.to_string()),
            Err(error) => return Err(error.to_string()),
        }
        let outcome = retry.retry(id, false)?;
        tracing::info!(held_id = id, outcome = outcome.as_str(), "tried a held message");
        observer(&Observation::HeldRetried { outcome: outcome.as_str() });
        tried += 1;
    }
    Ok(Look { tried, counts })
}

impl Actor for Retrier {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Self::Context) {
        self.look(context);
    }
}
