//! What bounds a queue's messages in memory: permits, bytes, and each event type's share.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::cmq::MAX_BATCH_MESSAGES;

/// A type that is backed up may hold this many times as many permits as no type holds (the dynamic
/// threshold of Choudhury and Hahne, IEEE/ACM Transactions on Networking 6(2), 1998). With 3, one
/// such type gets three quarters of the permits, two get three sevenths each.
const SHARE_PER_FREE_PERMIT: usize = 3;
/// One part in so many of the permits, and a poll's worth at least, is kept from each single type.
const RESERVED_PART: usize = 8;
/// A type is backed up when its messages stay in memory for longer than this. Also the longest
/// pause of polling because a type is at its share: one that drains in the meantime loses nothing,
/// and one that does not must not stop the others for longer.
const BACKED_UP_AFTER: Duration = Duration::from_secs(1);

/// How much of a queue's budget is used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BudgetUse {
    /// The queue.
    pub queue: String,
    /// Permits in use: messages in memory and asked for.
    pub in_flight: usize,
    /// Permits there are.
    pub limit: usize,
    /// Messages that wait for their Applier or are with it, by event type.
    pub waiting: BTreeMap<String, usize>,
}

/// The budget of one queue.
pub struct Budget {
    max_messages: usize,
    max_bytes: usize,
    permits: Arc<Semaphore>,
    bytes: AtomicUsize,
    /// Longest stay in memory that is polled for.
    max_stay: Duration,
    /// All messages together.
    whole: Mutex<Share>,
    shares: Vec<Mutex<Share>>,
    shared: AtomicUsize,
    released: Notify,
}

/// What one event type, or all of them together, hold.
struct Share {
    held: usize,
    /// When a message of the type last left, or came when there was none.
    last_progress: Instant,
    /// How long that message had been here.
    last_stay: Duration,
}

impl Share {
    fn new() -> Self {
        Self { held: 0, last_progress: Instant::now(), last_stay: Duration::ZERO }
    }

    fn enter(&mut self) {
        if self.held == 0 {
            self.last_progress = Instant::now();
        }
        self.held += 1;
    }

    fn leave(&mut self, since: Instant) {
        self.held -= 1;
        self.last_progress = Instant::now();
        self.last_stay = since.elapsed();
    }

    /// How long a message that comes now is likely to stay.
    fn stay(&self) -> Duration {
        match self.held {
            0 => Duration::ZERO,
            _ => self.last_stay.max(self.last_progress.elapsed()),
        }
    }

    fn is_backed_up(&self) -> bool {
        self.last_stay.max(self.stay()) > BACKED_UP_AFTER
    }
}

/// The right to keep one message in memory. Dropping it gives the place free.
pub struct Permit {
    budget: Arc<Budget>,
    bytes: usize,
    /// When the message came, if one did.
    since: Option<Instant>,
    _place: OwnedSemaphorePermit,
}

/// One message counted towards its type's share, until it is dropped.
pub struct ShareToken {
    budget: Arc<Budget>,
    share: usize,
    since: Instant,
}

impl Budget {
    /// A budget of `max_messages` messages and about `max_bytes` bytes of bodies, divided among
    /// `shares` event types. The bytes are known only after receiving, so what is under way in
    /// polls comes on top of them. While messages stay for longer than `max_stay`, no more are
    /// polled than one poll brings: what waits in memory is to be done within its visibility time-out.
    pub fn new(
        max_messages: usize,
        max_bytes: usize,
        max_stay: Duration,
        shares: usize,
    ) -> Arc<Self> {
        Arc::new(Self {
            max_messages,
            max_bytes,
            permits: Arc::new(Semaphore::new(max_messages)),
            bytes: AtomicUsize::new(0),
            max_stay,
            whole: Mutex::new(Share::new()),
            shares: (0..shares).map(|_| Mutex::new(Share::new())).collect(),
            shared: AtomicUsize::new(0),
            released: Notify::new(),
        })
    }

    /// Waits for the permits of one poll and returns them: as many as a batch may have, or fewer in
    /// a small budget.
    pub async fn acquire_for_poll(self: &Arc<Self>) -> Vec<Permit> {
        let has_room = || self.bytes.load(Ordering::Relaxed) < self.max_bytes;
        self.wait_until(|| has_room() && !self.is_slow()).await;
        let count = self.poll_size();
        let mut places = self
            .permits
            .clone()
            .acquire_many_owned(count as u32)
            .await
            .expect("the semaphore is never closed");
        (0..count)
            .map(|_| places.split(1).expect("as many were acquired"))
            .map(|place| Permit { budget: self.clone(), bytes: 0, since: None, _place: place })
            .collect()
    }

    /// Waits until no message is in memory and no poll is under way.
    pub async fn idle(&self) {
        let all = self.permits.acquire_many(self.max_messages as u32).await;
        drop(all.expect("the semaphore is never closed"));
    }

    /// How many permits there are.
    pub fn limit(&self) -> usize {
        self.max_messages
    }

    /// How many messages a type holds.
    pub fn held(&self, share: usize) -> usize {
        self.share(share).held
    }

    /// How many permits are taken.
    pub fn in_flight(&self) -> usize {
        self.max_messages - self.permits.available_permits()
    }

    /// Counts one message towards a type's share; `None` when there is no room for it beside the
    /// other types. A single type may take everything.
    pub fn take_share(self: &Arc<Self>, share: usize) -> Option<ShareToken> {
        let mut state = self.share(share);
        let at_reserve = state.held + self.reserved() >= self.max_messages;
        let stuck = self.is_crowding(&state) && state.is_backed_up();
        if self.shares.len() > 1 && (at_reserve || stuck) {
            return None;
        }
        state.enter();
        self.shared.fetch_add(1, Ordering::Relaxed);
        Some(ShareToken { budget: self.clone(), share, since: Instant::now() })
    }

    /// Waits while a type is at its share that drains, for then the wait is short; and, unless
    /// `last_poll_was_useful`, also while one is that does not. Never for long.
    pub async fn uncrowded(&self, last_poll_was_useful: bool) {
        let worth_waiting = |state: &Share| {
            self.is_crowding(state) && !(last_poll_was_useful && state.is_backed_up())
        };
        let crowded = || (0..self.shares.len()).any(|share| worth_waiting(&self.share(share)));
        _ = tokio::time::timeout(BACKED_UP_AFTER, self.wait_until(|| !crowded())).await;
    }

    fn is_slow(&self) -> bool {
        let whole = self.whole();
        whole.held >= self.poll_size() && whole.stay() > self.max_stay
    }

    fn whole(&self) -> MutexGuard<'_, Share> {
        self.whole.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn share(&self, share: usize) -> MutexGuard<'_, Share> {
        self.shares[share].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_crowding(&self, state: &Share) -> bool {
        let free = self.max_messages.saturating_sub(self.shared.load(Ordering::Relaxed));
        self.shares.len() > 1 && state.held >= SHARE_PER_FREE_PERMIT * free
    }

    fn reserved(&self) -> usize {
        (self.max_messages / RESERVED_PART).max(MAX_BATCH_MESSAGES).min(self.max_messages / 2)
    }

    fn poll_size(&self) -> usize {
        match self.shares.len() {
            1 => self.max_messages,
            _ => self.reserved().max(1),
        }
        .min(MAX_BATCH_MESSAGES)
    }

    async fn wait_until(&self, condition: impl Fn() -> bool) {
        loop {
            let released = self.released.notified();
            tokio::pin!(released);
            released.as_mut().enable();
            if condition() {
                return;
            }
            released.await;
        }
    }
}

impl Permit {
    /// Counts a received message of this size.
    pub fn fill(&mut self, bytes: usize) {
        self.budget.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.bytes += bytes;
        self.budget.whole().enter();
        self.since = Some(Instant::now());
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(since) = self.since {
            self.budget.whole().leave(since);
        }
        self.budget.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        self.budget.released.notify_waiters();
    }
}

impl Drop for ShareToken {
    fn drop(&mut self) {
        let mut state = self.budget.share(self.share);
        state.leave(self.since);
        drop(state);
        self.budget.shared.fetch_sub(1, Ordering::Relaxed);
        self.budget.released.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    const LONG: Duration = Duration::from_secs(60);

    fn take_all(budget: &Arc<Budget>, share: usize) -> Vec<ShareToken> {
        std::iter::from_fn(|| budget.take_share(share)).take(10_000).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_type_that_drains_may_take_all_but_the_reserve() {
        let budget = Budget::new(1_000, 1, LONG, 3);
        let hot = take_all(&budget, 0);
        assert_eq!(hot.len(), 875);
        drop(hot);
        assert_eq!(take_all(&budget, 0).len(), 875);
    }

    #[tokio::test(start_paused = true)]
    async fn a_type_that_is_backed_up_leaves_a_quarter_for_the_others() {
        let budget = Budget::new(1_000, 1, LONG, 3);
        let first = budget.take_share(0).unwrap();
        tokio::time::advance(2 * BACKED_UP_AFTER).await;
        let hog = take_all(&budget, 0);
        assert_eq!(hog.len() + 1, 750);
        assert!(budget.take_share(1).is_some(), "the others go on");
        // What drains slowly is backed up as well as what does not drain at all.
        drop(first);
        assert_eq!(take_all(&budget, 0).len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_single_type_may_take_everything() {
        let budget = Budget::new(10, 1, LONG, 1);
        assert_eq!(take_all(&budget, 0).len(), 10_000);
    }

    #[tokio::test(start_paused = true)]
    async fn a_crowd_stops_polling_for_a_second_at_most() {
        let budget = Budget::new(100, 1, LONG, 2);
        budget.uncrowded(true).await;
        let hog = take_all(&budget, 0);
        let start = Instant::now();
        budget.uncrowded(true).await;
        assert_eq!(start.elapsed(), BACKED_UP_AFTER, "it might have drained");
        tokio::time::advance(BACKED_UP_AFTER).await;
        let start = Instant::now();
        budget.uncrowded(true).await;
        assert_eq!(start.elapsed(), Duration::ZERO, "it does not drain: the others go on");
        budget.uncrowded(false).await;
        assert_eq!(start.elapsed(), BACKED_UP_AFTER, "there is nothing but its messages");
        let start = Instant::now();
        let (_, ()) = tokio::join!(budget.uncrowded(false), async { drop(hog) });
        assert_eq!(start.elapsed(), Duration::ZERO);
    }

    #[tokio::test]
    async fn permits_and_bytes_bound_what_is_in_memory() {
        let budget = Budget::new(40, 100, LONG, 1);
        let mut first = budget.acquire_for_poll().await;
        let second = budget.acquire_for_poll().await;
        assert_eq!((first.len(), second.len(), budget.in_flight()), (16, 16, 32));
        assert!(budget.acquire_for_poll().now_or_never().is_none(), "8 permits are left");
        drop(second);
        first[0].fill(100);
        assert!(budget.acquire_for_poll().now_or_never().is_none(), "the bytes are used up");
        assert!(budget.idle().now_or_never().is_none());
        drop(first);
        assert_eq!(budget.acquire_for_poll().await.len(), 16);
        budget.idle().await;
        assert_eq!(budget.in_flight(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_is_polled_than_can_be_done_in_time() {
        let max_stay = Duration::from_secs(15);
        let budget = Budget::new(100, usize::MAX, max_stay, 1);
        let mut first = budget.acquire_for_poll().await;
        first.iter_mut().for_each(|permit| permit.fill(1));
        assert!(budget.acquire_for_poll().now_or_never().is_some(), "so far there is no hurry");
        tokio::time::advance(max_stay * 2).await;
        assert!(budget.acquire_for_poll().now_or_never().is_none(), "nothing moves");
        drop(first.pop());
        assert!(budget.acquire_for_poll().now_or_never().is_some(), "less than one poll waits");
        let mut second = budget.acquire_for_poll().await;
        second.iter_mut().for_each(|permit| permit.fill(1));
        assert!(budget.acquire_for_poll().now_or_never().is_none(), "messages stay for too long");
        drop(first);
        tokio::time::advance(max_stay / 2).await;
        drop(second.pop());
        assert!(budget.acquire_for_poll().now_or_never().is_some(), "messages move on quickly");
    }

    #[tokio::test]
    async fn a_small_budget_polls_for_fewer() {
        for (max_messages, types, poll) in [(1, 1, 1), (1, 5, 1), (10, 1, 10), (10, 2, 5)] {
            let budget = Budget::new(max_messages, 1, LONG, types);
            assert_eq!(budget.acquire_for_poll().await.len(), poll, "{max_messages} {types}");
        }
    }
}
