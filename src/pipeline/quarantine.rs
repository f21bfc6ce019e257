//! Writes down what cannot be applied, and only then lets it be deleted from its queue.

use std::collections::VecDeque;
use std::time::Duration;

use actix::prelude::*;
use chrono::Utc;

use super::backoff::Backoff;
use super::delivery::{Acknowledge, Hold};
use super::health::Health;
use super::held_retry::RetrySchedule;
use super::observer::{Observation, Observer};
use crate::event::Digest;
use crate::store::{HeldState, NewHeldMessage, Store, hold};

/// Messages that one transaction takes at most.
const MAX_BATCH_MESSAGES: usize = 64;
/// First and longest pause after a failed write.
const RETRY_PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Its name as a part of the service.
const PART: &str = "database/held_message";

/// The actor.
pub struct Quarantine {
    consumer: String,
    store: Store,
    schedule: RetrySchedule,
    observer: Observer,
    health: Health,
    waiting: VecDeque<Hold>,
    busy: bool,
    backoff: Backoff,
}

impl Quarantine {
    /// Holds messages for `consumer`.
    pub fn new(
        consumer: String,
        store: Store,
        schedule: RetrySchedule,
        observer: Observer,
        health: Health,
    ) -> Self {
        let backoff = Backoff::new(RETRY_PAUSES.0, RETRY_PAUSES.1);
        let waiting = VecDeque::new();
        Self { consumer, store, schedule, observer, health, waiting, busy: false, backoff }
    }

    fn proceed(&mut self, context: &mut Context<Self>) {
        self.waiting.retain(|hold| !hold.delivery.is_past_deadline());
        if self.busy || self.waiting.is_empty() {
            return;
        }
        let size = self.waiting.len().min(MAX_BATCH_MESSAGES);
        let batch: Vec<Hold> = self.waiting.drain(..size).collect();
        self.busy = true;
        let (store, consumer) = (self.store.clone(), self.consumer.clone());
        let write = write(store, consumer, self.schedule, batch).into_actor(self);
        context.spawn(write.map(|(batch, result), quarantine, context| match result {
            Ok(()) => quarantine.written(batch, context),
            Err(reason) => quarantine.failed(batch, &reason, context),
        }));
    }

    fn written(&mut self, batch: Vec<Hold>, context: &mut Context<Self>) {
        for Hold { delivery, event, reason, detail } in batch {
            let message_id = delivery.message.msg_id.as_str();
            let event_id = event.as_ref().map(|event| event.id.as_str());
            let queue = delivery.queue.name.as_str();
            let why = reason.as_str();
            tracing::warn!(queue, message_id, event_id, reason = why, detail, "held");
            let detail = detail.as_str();
            (self.observer)(&Observation::Held { queue, message_id, reason, detail });
            Acknowledge::send(delivery);
        }
        self.backoff.reset();
        if self.health.is_up(PART) {
            tracing::info!("messages can be held again");
        }
        self.busy = false;
        self.proceed(context);
    }

    fn failed(&mut self, batch: Vec<Hold>, reason: &str, context: &mut Context<Self>) {
        if self.health.is_down(PART, reason) {
            tracing::warn!(reason, messages = batch.len(), "cannot hold messages; retrying");
        }
        batch.into_iter().rev().for_each(|hold| self.waiting.push_front(hold));
        context.run_later(self.backoff.pause(), |quarantine, context| {
            quarantine.busy = false;
            quarantine.proceed(context);
        });
    }
}

async fn write(
    store: Store,
    consumer: String,
    schedule: RetrySchedule,
    batch: Vec<Hold>,
) -> (Vec<Hold>, Result<(), String>) {
    let rows: Vec<NewHeldMessage> = batch.iter().map(|held| row(held, schedule)).collect();
    let written =
        store.transact(move |tx| rows.iter().try_for_each(|row| hold(tx, &consumer, row))).await;
    let result = written.map_err(|error| error.to_string());
    (batch, result)
}

fn row(held: &Hold, schedule: RetrySchedule) -> NewHeldMessage {
    let Hold { delivery, event, reason, detail } = held;
    let message = &delivery.message;
    NewHeldMessage {
        queue: delivery.queue.name.clone(),
        hold_key: hold_key(held).0.to_vec(),
        message_id: message.msg_id.clone(),
        event_id: event.as_ref().map(|event| event.id.clone()),
        event_type: event.as_ref().map(|event| event.event_type.clone()),
        reason: *reason,
        next_retry_at: match reason.state() {
            HeldState::Retrying => Some(schedule.next(0, Utc::now().naive_utc())),
            HeldState::Quarantined => None,
        },
        detail: detail.clone(),
        body: message.msg_body.clone().into_bytes(),
        enqueued_at: delivery.enqueued_at(),
    }
}

/// Copies of an event are one, however they are spelt; bodies that are no event are told apart by
/// their bytes.
fn hold_key(held: &Hold) -> Digest {
    match &held.event {
        Some(event) => {
            let mut key = event.digest.0.to_vec();
            key.extend_from_slice(event.id.as_bytes());
            Digest::of_bytes(&key)
        }
        None => Digest::of_bytes(held.delivery.message.msg_body.as_bytes()),
    }
}

impl Actor for Quarantine {
    type Context = Context<Self>;
}

impl Handler<Hold> for Quarantine {
    type Result = ();

    fn handle(&mut self, hold: Hold, context: &mut Self::Context) {
        self.waiting.push_back(hold);
        self.proceed(context);
    }
}
