//! Deletes settled messages from their queue, in batches.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use tokio::time::Instant;

use super::backoff::Backoff;
use super::delivery::{Acknowledge, QueueContext};
use super::observer::Observation;
use crate::cmq::{Client, CmqError, DeleteFailure, ErrorClass, MAX_BATCH_MESSAGES};

/// How long a handle waits for others to share its request.
const LINGER: Duration = Duration::from_millis(5);
/// Delete requests in the air at the same time.
const MAX_CONCURRENT_REQUESTS: usize = 4;
/// First and longest pause after a failed request.
const RETRY_PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// The actor, one a queue.
pub struct Acker {
    queue: Arc<QueueContext>,
    client: Client,
    /// By message id: of several handles of one message only the newest counts.
    waiting: HashMap<String, Handle>,
    order: VecDeque<String>,
    requests: usize,
    lingering: bool,
    /// No request before this, after one failed.
    paused_until: Option<Instant>,
    backoff: Backoff,
}

struct Handle {
    acknowledge: Acknowledge,
    tried: bool,
}

impl Acker {
    /// Deletes from `queue` through `client`.
    pub fn new(queue: Arc<QueueContext>, client: Client) -> Self {
        Self {
            queue,
            client,
            waiting: HashMap::new(),
            order: VecDeque::new(),
            requests: 0,
            lingering: false,
            paused_until: None,
            backoff: Backoff::new(RETRY_PAUSES.0, RETRY_PAUSES.1),
        }
    }

    fn enqueue(&mut self, handle: Handle) {
        let message_id = handle.acknowledge.message_id.clone();
        if self.waiting.insert(message_id.clone(), handle).is_none() {
            self.order.push_back(message_id);
        }
    }

    /// Sends full batches at once, and what else waits when the linger is over.
    fn flush(&mut self, linger_is_over: bool, context: &mut Context<Self>) {
        if self.paused_until.is_some_and(|until| Instant::now() < until) {
            return;
        }
        self.paused_until = None;
        let enough = match linger_is_over {
            true => 1,
            false => MAX_BATCH_MESSAGES,
        };
        while self.order.len() >= enough && self.requests < MAX_CONCURRENT_REQUESTS {
            let batch = self.next_batch();
            if !batch.is_empty() {
                self.delete(batch, context);
            }
        }
        self.linger(context);
    }

    fn linger(&mut self, context: &mut Context<Self>) {
        let may_send = self.requests < MAX_CONCURRENT_REQUESTS;
        if may_send && !self.order.is_empty() && !std::mem::replace(&mut self.lingering, true) {
            context.run_later(LINGER, |acker, context| {
                acker.lingering = false;
                acker.flush(true, context);
            });
        }
    }

    /// A handle past its deadline is tried once, for the deadline is cautious, and not again.
    fn next_batch(&mut self) -> Vec<Handle> {
        let mut batch = Vec::new();
        while batch.len() < MAX_BATCH_MESSAGES {
            let Some(message_id) = self.order.pop_front() else { break };
            let handle = self.waiting.remove(&message_id).expect("each id in order waits");
            match handle.tried && Instant::now() >= handle.acknowledge.deadline {
                true => self.give_up(&handle, "its receipt handle has expired"),
                false => batch.push(handle),
            }
        }
        batch
    }

    fn delete(&mut self, batch: Vec<Handle>, context: &mut Context<Self>) {
        self.requests += 1;
        let (client, queue) = (self.client.clone(), self.queue.clone());
        let request = async move {
            let handles: Vec<&str> =
                batch.iter().map(|handle| handle.acknowledge.receipt_handle.as_str()).collect();
            let result = client.batch_delete_message(&queue.name, &handles).await;
            (batch, result)
        };
        context.spawn(request.into_actor(self).map(|(batch, result), acker, context| {
            acker.requests -= 1;
            match result {
                Ok(failures) => acker.deleted(batch, &failures, context),
                Err(error) => acker.failed(batch, &error, context),
            }
            acker.flush(false, context);
        }));
    }

    /// A handle that the queue could not delete for the moment is tried again; one that it refuses
    /// is dead.
    fn deleted(
        &mut self,
        batch: Vec<Handle>,
        failures: &[DeleteFailure],
        context: &mut Context<Self>,
    ) {
        let failed: HashMap<&str, &DeleteFailure> =
            failures.iter().map(|failure| (failure.receipt_handle.as_str(), failure)).collect();
        let mut again = Vec::new();
        for handle in batch {
            match failed.get(handle.acknowledge.receipt_handle.as_str()) {
                None => {
                    let (queue, message_id) = (&self.queue.name, &handle.acknowledge.message_id);
                    (self.queue.observer)(&Observation::Deleted { queue, message_id });
                }
                Some(failure) if ErrorClass::of_code(failure.code).is_retryable() => {
                    again.push(handle);
                }
                Some(DeleteFailure { code, message, .. }) => {
                    self.give_up(&handle, &format!("the queue refused it with {code}: {message}"));
                }
            }
        }
        match again.is_empty() {
            true => self.backoff.reset(),
            false => {
                let pause = self.backoff_pause(ErrorClass::Transient);
                self.try_again(again, pause, context);
            }
        }
    }

    fn failed(&mut self, batch: Vec<Handle>, error: &CmqError, context: &mut Context<Self>) {
        let pause = self.backoff_pause(error.class());
        tracing::debug!(queue = self.queue.name, %error, ?pause, "a delete failed; retrying");
        let (queue, reason) = (self.queue.name.as_str(), error.to_string());
        (self.queue.observer)(&Observation::DeleteFailed { queue, reason: &reason });
        self.try_again(batch, pause, context);
    }

    fn backoff_pause(&mut self, class: ErrorClass) -> Duration {
        self.backoff.pause().max(class.min_pause())
    }

    fn try_again(&mut self, batch: Vec<Handle>, pause: Duration, context: &mut Context<Self>) {
        for mut handle in batch {
            handle.tried = true;
            // A newer handle of the message may have come in the meantime: that one counts.
            if !self.waiting.contains_key(&handle.acknowledge.message_id) {
                self.enqueue(handle);
            }
        }
        self.paused_until = Some(Instant::now() + pause);
        context.run_later(pause, |acker, context| acker.flush(true, context));
    }

    fn give_up(&self, handle: &Handle, why: &str) {
        let message_id = handle.acknowledge.message_id.as_str();
        let queue = self.queue.name.as_str();
        tracing::info!(queue, message_id, why, "not deleted; it will be found a duplicate");
        (self.queue.observer)(&Observation::NotDeleted { queue, message_id, why });
    }
}

impl Actor for Acker {
    type Context = Context<Self>;
}

impl Handler<Acknowledge> for Acker {
    type Result = ();

    fn handle(&mut self, acknowledge: Acknowledge, context: &mut Self::Context) {
        self.enqueue(Handle { acknowledge, tried: false });
        self.flush(false, context);
    }
}
