//! Polls a queue, as far as permits allow.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use actix::{Actor, ActorFutureExt, AsyncContext, Context, WrapFuture};
use tokio::time::Instant;

use super::backoff::Backoff;
use super::budget::Budget;
use super::delivery::{Delivery, QueueContext};
use super::link::Link;
use super::observer::Observation;
use super::router::{Incoming, Router};
use crate::cmq::{Client, CmqError, ErrorClass, MAX_BATCH_MESSAGES, Message};

/// First and longest pause after a failed poll.
const RETRY_PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

/// A receipt handle is not relied on for the last tenth of its visibility time-out, 2 s at most: the
/// answer was under way for a while, and the delete has to arrive in time.
const MAX_DEADLINE_MARGIN: Duration = Duration::from_secs(2);

/// The part of the maximum unacknowledged time after which a message counts as old.
const OLD_PART: f64 = 0.7;

/// Times on the wire are whole seconds, and the answer was under way for a while.
const VISIBILITY_TOLERANCE_SECONDS: i64 = 2;

/// How a queue is polled.
#[derive(Debug, Clone, Copy)]
pub struct Polling {
    /// Long polls at the same time while the queue is full; an idle queue costs one.
    pub max_concurrent_polls: usize,
    /// Length of a long poll in seconds.
    pub wait_seconds: u32,
    /// The queue's visibility time-out.
    pub visibility_timeout: Duration,
    /// The queue's maximum unacknowledged time, if it is known.
    pub max_unacked: Option<Duration>,
    /// The age from which on a message is moved to safety if it cannot be applied.
    pub rescue_after: Option<Duration>,
}

/// The actor. It starts with one poll; each that comes back full adds one, up to the limit, and each
/// that comes back empty takes one away.
pub struct Receiver {
    queue: Arc<QueueContext>,
    client: Client,
    router: Link<Router>,
    budget: Arc<Budget>,
    polling: Polling,
    running: usize,
    wanted: usize,
    /// No new polls once it is set. Polls in the air are awaited, for they may bring messages.
    draining: Arc<AtomicBool>,
    backoff: Backoff,
    /// How polls fail at the moment.
    failing: Option<ErrorClass>,
    last_poll_was_useful: bool,
    warned_of_visibility: bool,
}

enum Polled {
    /// How many messages came and how many of them the Router kept.
    Messages {
        received: usize,
        kept: usize,
        /// The visibility time-out in seconds, as the first message's times have it.
        observed_visibility: Option<i64>,
        /// The greatest age of its messages.
        oldest_age: Option<Duration>,
    },
    Failed(CmqError),
}

impl Receiver {
    /// A receiver that starts polling when it is started.
    pub fn new(
        queue: Arc<QueueContext>,
        client: Client,
        router: Link<Router>,
        budget: Arc<Budget>,
        polling: Polling,
        draining: Arc<AtomicBool>,
    ) -> Self {
        Self {
            queue,
            client,
            router,
            budget,
            polling,
            running: 0,
            wanted: 1,
            draining,
            backoff: Backoff::new(RETRY_PAUSES.0, RETRY_PAUSES.1),
            failing: None,
            last_poll_was_useful: true,
            warned_of_visibility: false,
        }
    }

    fn fill_up(&mut self, context: &mut Context<Self>) {
        while !self.is_draining() && self.running < self.wanted {
            self.running += 1;
            let poll = self.poll().into_actor(self).map(|polled, receiver, context| {
                receiver.running -= 1;
                receiver.after_poll(polled, context);
            });
            context.spawn(poll);
        }
    }

    fn poll(&self) -> impl Future<Output = Polled> + use<> {
        let (queue, client) = (self.queue.clone(), self.client.clone());
        let (router, budget) = (self.router.clone(), self.budget.clone());
        let draining = self.draining.clone();
        let Polling { wait_seconds, visibility_timeout, rescue_after, .. } = self.polling;
        let last_poll_was_useful = self.last_poll_was_useful;
        async move {
            budget.uncrowded(last_poll_was_useful).await;
            let permits = budget.acquire_for_poll().await;
            // A poll that was still waiting for permits has asked for nothing yet.
            if draining.load(Ordering::Relaxed) {
                return Polled::Messages {
                    received: 0,
                    kept: 0,
                    observed_visibility: None,
                    oldest_age: None,
                };
            }
            let limit = permits.len();
            let received = client.batch_receive_message(&queue.name, limit, wait_seconds).await;
            let messages = match received {
                Ok(messages) => messages,
                Err(error) => return Polled::Failed(error),
            };
            let margin = (visibility_timeout / 10).min(MAX_DEADLINE_MARGIN);
            let received_at = Instant::now();
            let deadline = received_at + visibility_timeout - margin;
            let oldest_age = messages.iter().filter_map(age).max();
            let received = messages.len();
            let observed_visibility = messages.first().and_then(visible_for);
            let deliveries = messages.into_iter().zip(permits).map(|(message, mut permit)| {
                permit.fill(message.msg_body.len());
                let left =
                    |after: Duration| after.saturating_sub(age(&message).unwrap_or_default());
                let rescue_at = rescue_after.map(|after| received_at + left(after));
                let queue = queue.clone();
                Delivery { queue, message, received_at, deadline, rescue_at, permit }
            });
            let incoming = Incoming(deliveries.collect());
            let name = queue.name.as_str();
            (queue.observer)(&Observation::Polled { queue: name, received, oldest_age });
            let kept = match router.address() {
                Some(router) => router.send(incoming).await.unwrap_or(0),
                None => 0,
            };
            Polled::Messages { received, kept, observed_visibility, oldest_age }
        }
    }

    fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    fn after_poll(&mut self, polled: Polled, context: &mut Context<Self>) {
        match polled {
            Polled::Messages { received, kept, observed_visibility, oldest_age } => {
                self.recovered();
                self.compare_age(oldest_age);
                self.compare_visibility(observed_visibility);
                self.last_poll_was_useful = received == 0 || kept > 0;
                self.wanted = match received {
                    MAX_BATCH_MESSAGES.. => self.running + 2,
                    0 => self.wanted.saturating_sub(1),
                    _ => self.wanted,
                }
                .clamp(1, self.polling.max_concurrent_polls);
                self.fill_up(context);
            }
            Polled::Failed(error) => {
                self.wanted = 1;
                let (queue, reason) = (self.queue.name.as_str(), error.to_string());
                (self.queue.observer)(&Observation::PollFailed { queue, reason: &reason });
                let pause = self.backoff.pause().max(error.class().min_pause());
                self.failed(&error, pause);
                context.run_later(pause, Self::fill_up);
            }
        }
    }

    /// A queue that is set otherwise than the configuration says makes hapax work in vain, or wait.
    fn compare_visibility(&mut self, observed: Option<i64>) {
        let configured = self.polling.visibility_timeout.as_secs() as i64;
        let Some(observed) = observed else { return };
        let differs =
            (observed - configured).abs() > VISIBILITY_TOLERANCE_SECONDS.max(configured / 10);
        if differs && !std::mem::replace(&mut self.warned_of_visibility, true) {
            tracing::warn!(
                queue = self.queue.name,
                configured_seconds = configured,
                observed_seconds = observed,
                "visibility_timeout_seconds is not what the queue's messages say (or this machine's \
                 clock is off); set it as the queue is set"
            );
        }
    }

    /// Says when messages come near the age at which the queue drops them, and when they no longer do.
    fn compare_age(&mut self, oldest_age: Option<Duration>) {
        let (Some(limit), Some(age)) = (self.polling.max_unacked, oldest_age) else { return };
        let part = format!("backlog/{}", self.queue.name);
        if age < limit.mul_f64(OLD_PART) {
            self.queue.health.is_up(&part);
            return;
        }
        let left = limit.saturating_sub(age);
        let reason = format!(
            "messages are {} s old and the queue drops them at {} s: {} s are left until loss",
            age.as_secs(),
            limit.as_secs(),
            left.as_secs()
        );
        if self.queue.health.is_down(&part, &reason) {
            tracing::warn!(queue = self.queue.name, "{reason}");
        }
    }

    /// Logs changes, not repetitions.
    fn failed(&mut self, error: &CmqError, pause: Duration) {
        let class = Some(error.class());
        self.queue.health.is_down(&self.part(), &error.to_string());
        if std::mem::replace(&mut self.failing, class) != class {
            tracing::warn!(queue = self.queue.name, %error, ?pause, "polling fails; retrying");
        }
    }

    fn recovered(&mut self) {
        self.backoff.reset();
        if self.failing.take().is_some() | self.queue.health.is_up(&self.part()) {
            tracing::info!(queue = self.queue.name, "polling works again");
        }
    }

    fn part(&self) -> String {
        format!("queue/{}", self.queue.name)
    }
}

/// Seconds until the message becomes visible again, by the wall clock.
fn visible_for(message: &Message) -> Option<i64> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs() as i64;
    Some(message.next_visible_time).filter(|at| *at > 0).map(|at| at - now)
}

/// How long ago a message was sent, by the wall clock: for display, in seconds as the queue counts.
fn age(message: &Message) -> Option<Duration> {
    let sent = u64::try_from(message.enqueue_time).ok().filter(|seconds| *seconds > 0)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    Some(now.saturating_sub(Duration::from_secs(sent)))
}

impl Actor for Receiver {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Self::Context) {
        self.fill_up(context);
    }
}
