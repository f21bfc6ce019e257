//! Applies the events of one type and shard, batching while busy.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use super::backoff::Backoff;
use super::concurrency::Concurrency;
use super::delivery::{Acknowledge, Hold, Work};
use super::gathering::{Gathering, UnderWay};
use super::health::Health;
use super::link::Link;
use super::observer::{Observation, Observer};
use super::quarantine::Quarantine;
use super::supervisor::Heart;
use super::transaction::{Application, BatchResult, Candidate, Verdict, apply_batch};
use crate::handler::Policy;
use crate::store::HoldReason;

/// First and longest pause while the database is contended.
const CONTENTION_PAUSES: (Duration, Duration) =
    (Duration::from_millis(10), Duration::from_millis(500));
/// First and longest pause while the database cannot be used.
const UNAVAILABLE_PAUSES: (Duration, Duration) =
    (Duration::from_millis(100), Duration::from_secs(5));
/// First and longest pause before an event that failed is tried again.
const FAILURE_PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Between two looks for waiting events whose queue is about to drop them.
const RESCUE_INTERVAL: Duration = Duration::from_secs(1);
/// The part of its time after which an event counts as late.
const LATE_PART: f64 = 0.8;
/// Shortest time between two warnings of late events.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// Lets one warning through in a while.
#[derive(Default)]
struct Warning(std::cell::Cell<Option<Instant>>);

impl Warning {
    fn may_warn(&self) -> bool {
        let is_due = self.0.get().is_none_or(|last| last.elapsed() > WARNING_INTERVAL);
        if is_due {
            self.0.set(Some(Instant::now()));
        }
        is_due
    }
}

/// What the shards of one event type have in common.
pub struct Group {
    /// How an event is applied.
    pub application: Arc<Application>,
    /// How they are worked on.
    pub policy: Policy,
    /// How many of the shards' transactions run at the same time.
    pub concurrency: Concurrency,
    /// When a batch begins that is not full; one for all groups.
    pub gathering: Arc<Gathering>,
    /// A batch that takes longer than this is given up with its Applier.
    pub stuck_after: Duration,
    /// Where events go that cannot be applied.
    pub quarantine: Link<Quarantine>,
    /// Who is told what happens.
    pub observer: Observer,
    /// Where it is said whether the database can be used.
    pub health: Health,
}

/// What becomes of the events that wait.
enum Phase {
    /// There are none.
    Idle,
    /// They wait for others to share their transaction.
    Gathering(SpawnHandle),
    /// They wait for the batch that is under way, or for a pause to end.
    Busy,
}

/// The actor, one an event type and shard.
pub struct Applier {
    group: Arc<Group>,
    heart: Heart,
    ready: VecDeque<Work>,
    /// Events that failed, with the time of their next try.
    delayed: Vec<(Instant, Work)>,
    wake: Option<SpawnHandle>,
    /// Events in a batch at most: as many as the policy allows, fewer under contention.
    batch_limit: usize,
    phase: Phase,
    /// How long its last transaction took.
    last_took: Duration,
    late_warning: Warning,
    contention: Backoff,
    unavailable: Backoff,
    /// Its name as a part of the service.
    part: String,
}

impl Applier {
    /// A shard of `group`, by number.
    pub fn new(group: Arc<Group>, shard: usize, heart: Heart) -> Self {
        let batch_limit = group.policy.max_batch_events;
        let part = format!("database/{}/{shard}", group.application.event_type);
        Self {
            group,
            heart,
            ready: VecDeque::new(),
            delayed: Vec::new(),
            wake: None,
            batch_limit,
            phase: Phase::Idle,
            last_took: Duration::ZERO,
            late_warning: Warning::default(),
            contention: Backoff::new(CONTENTION_PAUSES.0, CONTENTION_PAUSES.1),
            unavailable: Backoff::new(UNAVAILABLE_PAUSES.0, UNAVAILABLE_PAUSES.1),
            part,
        }
    }

    /// Lets the next batch begin, or gather, unless one is under way: whatever came in the meantime is
    /// in it.
    fn proceed(&mut self, context: &mut Context<Self>) {
        match self.phase {
            Phase::Busy => return,
            Phase::Gathering(_) if !self.has_full_batch() => return,
            Phase::Gathering(waiting) => drop(context.cancel_future(waiting)),
            Phase::Idle => {}
        }
        self.phase = Phase::Idle;
        self.bring_what_is_due();
        if self.ready.is_empty() {
            return self.wake_for_delayed(context);
        }
        let gathering = &self.group.gathering;
        let under_way = match self.has_full_batch() {
            true => Some(gathering.begin()),
            false => gathering.begin_if_quiet(),
        };
        match under_way {
            Some(under_way) => self.begin(under_way, context),
            None => {
                let waiting = gathering.clone().begin_in_time(self.last_took).into_actor(self);
                let begin = waiting.map(|under_way, applier, context| {
                    applier.begin(under_way, context);
                });
                self.phase = Phase::Gathering(context.spawn(begin));
            }
        }
    }

    /// What comes until there is a connection to use is still in the batch.
    fn begin(&mut self, under_way: UnderWay, context: &mut Context<Self>) {
        self.phase = Phase::Busy;
        let group = self.group.clone();
        let ready =
            async move { (group.concurrency.slot().await, group.application.store.turn().await) };
        let begin = ready.into_actor(self).then(move |(slot, turn), applier, _| {
            let batch = applier.next_batch();
            applier.heart.work_begins(applier.group.stuck_after);
            run(applier.group.clone(), batch, Turn { under_way, slot, turn }).into_actor(applier)
        });
        context.spawn(begin.map(|settled, applier, context| applier.settle(settled, context)));
    }

    fn has_full_batch(&self) -> bool {
        let bytes = || self.ready.iter().map(Work::payload_bytes).sum::<usize>();
        self.ready.len() >= self.batch_limit || bytes() >= self.group.policy.max_batch_bytes
    }

    fn bring_what_is_due(&mut self) {
        let now = Instant::now();
        for index in (0..self.delayed.len()).rev() {
            if self.delayed[index].0 <= now {
                self.ready.push_back(self.delayed.swap_remove(index).1);
            }
        }
    }

    fn next_batch(&mut self) -> Vec<Work> {
        let mut batch: Vec<Work> = Vec::new();
        let mut bytes_left = self.group.policy.max_batch_bytes;
        while batch.len() < self.batch_limit {
            let Some(work) = self.ready.pop_front() else { break };
            if work.delivery.is_past_deadline() {
                self.drop_late(&work);
                continue;
            }
            let bytes = work.payload_bytes();
            if bytes > bytes_left && !batch.is_empty() {
                self.ready.push_front(work);
                break;
            }
            bytes_left = bytes_left.saturating_sub(bytes);
            batch.push(work);
        }
        batch
    }

    /// Other processes can only be avoided by transactions that want fewer rows. So the limit falls
    /// fast and recovers slowly.
    fn adapt_batch_limit(&mut self, settled: &Settled) {
        if settled.contended_alone {
            self.batch_limit = (self.batch_limit / 4).max(1);
        } else if settled.events.len() == self.batch_limit {
            self.batch_limit = (self.batch_limit + 1).min(self.group.policy.max_batch_events);
        }
    }

    fn wake_for_delayed(&mut self, context: &mut Context<Self>) {
        if let Some(next) = self.delayed.iter().map(|(at, _)| *at).min() {
            let wait = next.saturating_duration_since(Instant::now());
            let timer = context.run_later(wait, Self::proceed);
            if let Some(earlier) = self.wake.replace(timer) {
                context.cancel_future(earlier);
            }
        }
    }

    fn settle(&mut self, settled: Settled, context: &mut Context<Self>) {
        self.heart.work_ended();
        self.last_took = settled.took;
        self.adapt_batch_limit(&settled);
        let mut pause = Duration::ZERO;
        let mut again = Vec::new();
        for (work, verdict) in settled.events {
            match verdict {
                Verdict::Contention(reason) => {
                    self.observe_failure(&work, &reason);
                    if pause.is_zero() {
                        pause = self.contention.pause();
                    }
                    again.extend(self.rescue_if_expiring(work, &reason));
                }
                Verdict::Unavailable(reason) => {
                    self.note_unavailable(&reason);
                    if pause.is_zero() {
                        pause = self.unavailable.pause();
                    }
                    again.extend(self.rescue_if_expiring(work, &reason));
                }
                verdict => self.finish(work, verdict),
            }
        }
        if pause.is_zero() {
            self.contention.reset();
            self.note_available();
            self.phase = Phase::Idle;
            return self.proceed(context);
        }
        again.into_iter().rev().for_each(|work| self.ready.push_front(work));
        context.run_later(pause, |applier, context| {
            applier.phase = Phase::Idle;
            applier.proceed(context);
        });
    }

    fn finish(&mut self, work: Work, verdict: Verdict) {
        let event_type = self.group.application.event_type.as_str();
        let (event_id, message_id) = (&work.event.id, &work.delivery.message.msg_id);
        match verdict {
            Verdict::Applied => {
                tracing::debug!(event_id, message_id, "applied");
                let waited = work.delivery.received_at.elapsed();
                self.warn_if_late(&work, waited);
                (self.group.observer)(&Observation::Applied {
                    event_type,
                    event_id,
                    message_id,
                    waited,
                });
                Acknowledge::send(work.delivery);
            }
            Verdict::Duplicate => {
                tracing::debug!(event_id, message_id, "applied before; nothing to do");
                (self.group.observer)(&Observation::Duplicate { event_type, event_id, message_id });
                Acknowledge::send(work.delivery);
            }
            Verdict::Conflict(detail) => self.hold(work, HoldReason::Conflict, detail),
            Verdict::Rejected(detail) => self.hold(work, HoldReason::Rejected, detail),
            Verdict::PastHorizon(detail) => self.hold(work, HoldReason::PastHorizon, detail),
            Verdict::Failed(reason) => self.retry_or_hold(work, reason),
            Verdict::Contention(_) | Verdict::Unavailable(_) => {}
        }
    }

    /// Events that take nearly as long as their visibility time-out are about to be delivered twice.
    fn warn_if_late(&self, work: &Work, waited: Duration) {
        let allowed = work.delivery.deadline.saturating_duration_since(work.delivery.received_at);
        if waited > allowed.mul_f64(LATE_PART) && self.late_warning.may_warn() {
            tracing::warn!(
                event_type = self.group.application.event_type.as_str(),
                ?waited,
                ?allowed,
                "events take nearly as long as the queue's visibility time-out; raise it, or make the \
                 applier faster"
            );
        }
    }

    fn retry_or_hold(&mut self, mut work: Work, reason: String) {
        self.observe_failure(&work, &reason);
        work.failures += 1;
        let left = self.group.policy.max_attempts.saturating_sub(work.failures);
        if left == 0 {
            let detail = format!("it failed {} times, at last with: {reason}", work.failures);
            return self.hold(work, HoldReason::Failing, detail);
        }
        let Some(work) = self.rescue_if_expiring(work, &reason) else { return };
        let mut backoff = Backoff::new(FAILURE_PAUSES.0, FAILURE_PAUSES.1);
        let pause = (0..work.failures).map(|_| backoff.pause()).last().unwrap_or_default();
        // All tries fit before the deadline, or the failures would be forgotten with the delivery.
        let now = Instant::now();
        let fitting = work.delivery.deadline.saturating_duration_since(now) / (left + 1);
        self.delayed.push((now + pause.min(fitting), work));
    }

    /// Moves an event to safety that could not be applied yet, if its queue is about to drop it for good.
    fn rescue_if_expiring(&self, work: Work, why: &str) -> Option<Work> {
        if !work.delivery.is_expiring() {
            return Some(work);
        }
        let detail = format!("its queue was about to drop it, and it could not be applied: {why}");
        self.hold(work, HoldReason::Rescued, detail);
        None
    }

    /// What waits behind others, or for its next try, may run out of time, too.
    fn rescue_waiting(&mut self, _: &mut Context<Self>) {
        let is_rescued =
            |work: &Work| work.delivery.is_expiring() && work.delivery.has_waited_long();
        let (rescued, ready): (Vec<Work>, Vec<Work>) = self.ready.drain(..).partition(is_rescued);
        self.ready = ready.into();
        for work in rescued {
            self.rescue_if_expiring(work, "it waited behind others");
        }
        for (at, work) in std::mem::take(&mut self.delayed) {
            let kept = self.rescue_if_expiring(work, "it failed before");
            self.delayed.extend(kept.map(|work| (at, work)));
        }
    }

    fn hold(&self, work: Work, reason: HoldReason, detail: String) {
        let Work { event, delivery, .. } = work;
        self.group.quarantine.send(Hold { delivery, event: Some(event), reason, detail });
    }

    fn observe_failure(&self, work: &Work, reason: &str) {
        let (event_id, message_id) = (&work.event.id, &work.delivery.message.msg_id);
        tracing::debug!(event_id, message_id, reason, "rolled back");
        let event_type = self.group.application.event_type.as_str();
        (self.group.observer)(&Observation::Failed { event_type, event_id, message_id, reason });
    }

    fn drop_late(&self, work: &Work) {
        let (event_id, message_id) = (&work.event.id, &work.delivery.message.msg_id);
        let why = "its visibility time-out ended before its turn came";
        tracing::debug!(event_id, message_id, why, "dropped");
        let queue = work.delivery.queue.name.as_str();
        (self.group.observer)(&Observation::Dropped { queue, message_id, why });
    }

    fn note_unavailable(&mut self, reason: &str) {
        if self.group.health.is_down(&self.part, reason) {
            let event_type = self.group.application.event_type.as_str();
            tracing::warn!(event_type, reason, "the database cannot be used; retrying");
        }
    }

    fn note_available(&mut self) {
        self.unavailable.reset();
        if self.group.health.is_up(&self.part) {
            let event_type = self.group.application.event_type.as_str();
            tracing::info!(event_type, "the database can be used again");
        }
    }
}

/// A batch that came back.
struct Settled {
    events: Vec<(Work, Verdict)>,
    took: Duration,
    /// Whether transactions of other processes were in its way, as far as can be told: few of this
    /// one's ran beside it.
    contended_alone: bool,
}

/// What a batch has while it is under way.
struct Turn {
    under_way: UnderWay,
    slot: OwnedSemaphorePermit,
    turn: OwnedSemaphorePermit,
}

/// Runs a batch where it may block. A batch that is lost with its thread goes back to the queue.
async fn run(group: Arc<Group>, batch: Vec<Work>, Turn { under_way, slot, turn }: Turn) -> Settled {
    let shared = group.clone();
    if batch.is_empty() {
        shared.concurrency.release(slot, false);
        return Settled { events: Vec::new(), took: Duration::ZERO, contended_alone: false };
    }
    let blocking = tokio::task::spawn_blocking(move || {
        let _held = (turn, under_way);
        let start = Instant::now();
        let candidates: Vec<Candidate<'_>> = batch.iter().map(candidate).collect();
        let BatchResult { verdicts, contended } = apply_batch(&group.application, &candidates);
        let took = start.elapsed();
        observe_commit(&group, &verdicts, took);
        (batch.into_iter().zip(verdicts).collect(), took, contended)
    });
    let (events, took, contended) = blocking.await.unwrap_or_else(|error| {
        tracing::error!(%error, "a batch was lost; the queue brings its messages again");
        (Vec::new(), Duration::ZERO, false)
    });
    Settled { events, took, contended_alone: shared.concurrency.release(slot, contended) }
}

fn candidate(work: &Work) -> Candidate<'_> {
    Candidate {
        event: &work.event,
        partition_key: work.partition_key.as_deref(),
        queue: &work.delivery.queue.name,
        message_id: &work.delivery.message.msg_id,
        attempt: work.failures + 1,
        may_be_past_horizon: false,
    }
}

fn observe_commit(group: &Group, verdicts: &[Verdict], took: Duration) {
    let is_settled = |verdict: &&Verdict| matches!(verdict, Verdict::Applied | Verdict::Duplicate);
    let events = verdicts.iter().filter(is_settled).count();
    if events > 0 {
        let event_type = group.application.event_type.as_str();
        (group.observer)(&Observation::Committed { event_type, events, took });
    }
}

impl Actor for Applier {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Self::Context) {
        context.run_interval(RESCUE_INTERVAL, Self::rescue_waiting);
    }
}

impl Handler<Work> for Applier {
    type Result = ();

    fn handle(&mut self, work: Work, context: &mut Self::Context) {
        self.ready.push_back(work);
        self.proceed(context);
    }
}
