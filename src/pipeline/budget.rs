//! What bounds a queue's messages in memory: permits, bytes, and each event type's share.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// A type may hold this many times as many permits as no type holds (the dynamic threshold of
/// Choudhury and Hahne, IEEE/ACM Transactions on Networking 6(2), 1998). With 3, one backed-up type
/// gets three quarters of the permits, two get three sevenths each, and some always stay free.
const SHARE_PER_FREE_PERMIT: usize = 3;

/// Longest pause of polling because a type is at its share. A type that drains in the meantime
/// loses nothing; one that does not must not stop the others for longer.
const MAX_CROWDED_PAUSE: Duration = Duration::from_secs(1);

/// The budget of one queue.
pub struct Budget {
    max_messages: usize,
    max_bytes: usize,
    permits: Arc<Semaphore>,
    bytes: AtomicUsize,
    shares: Vec<AtomicUsize>,
    shared: AtomicUsize,
    released: Notify,
}

/// The right to keep one message in memory. Dropping it gives the place free.
pub struct Permit {
    budget: Arc<Budget>,
    bytes: usize,
    _place: OwnedSemaphorePermit,
}

/// One message counted towards its type's share, until it is dropped.
pub struct ShareToken {
    budget: Arc<Budget>,
    share: usize,
}

impl Budget {
    /// A budget of `max_messages` messages and about `max_bytes` bytes of bodies, divided among
    /// `shares` event types. The bytes are known only after receiving, so what is under way in
    /// polls comes on top of them.
    pub fn new(max_messages: usize, max_bytes: usize, shares: usize) -> Arc<Self> {
        Arc::new(Self {
            max_messages,
            max_bytes,
            permits: Arc::new(Semaphore::new(max_messages)),
            bytes: AtomicUsize::new(0),
            shares: (0..shares).map(|_| AtomicUsize::new(0)).collect(),
            shared: AtomicUsize::new(0),
            released: Notify::new(),
        })
    }

    /// Waits for `count` permits (as many as there are at all, if that is less).
    pub async fn acquire(self: &Arc<Self>, count: usize) -> Vec<Permit> {
        self.wait_until(|| self.bytes.load(Ordering::Relaxed) < self.max_bytes).await;
        let count = count.min(self.max_messages);
        let mut places = self
            .permits
            .clone()
            .acquire_many_owned(count as u32)
            .await
            .expect("the semaphore is never closed");
        (0..count)
            .map(|_| places.split(1).expect("as many were acquired"))
            .map(|place| Permit { budget: self.clone(), bytes: 0, _place: place })
            .collect()
    }

    /// Waits until no message is in memory and no poll is under way.
    pub async fn idle(&self) {
        let all = self.permits.acquire_many(self.max_messages as u32).await;
        drop(all.expect("the semaphore is never closed"));
    }

    /// How many permits are taken.
    pub fn in_flight(&self) -> usize {
        self.max_messages - self.permits.available_permits()
    }

    /// Counts one message towards a type's share; `None` when the type has its share already. A
    /// single type may take everything.
    pub fn take_share(self: &Arc<Self>, share: usize) -> Option<ShareToken> {
        if self.is_at_its_share(share) {
            return None;
        }
        self.shares[share].fetch_add(1, Ordering::Relaxed);
        self.shared.fetch_add(1, Ordering::Relaxed);
        Some(ShareToken { budget: self.clone(), share })
    }

    /// Waits while some type is at its share, but not for long.
    pub async fn uncrowded(&self) {
        let crowded = || (0..self.shares.len()).any(|share| self.is_at_its_share(share));
        _ = tokio::time::timeout(MAX_CROWDED_PAUSE, self.wait_until(|| !crowded())).await;
    }

    fn is_at_its_share(&self, share: usize) -> bool {
        if self.shares.len() == 1 {
            return false;
        }
        let free = self.max_messages.saturating_sub(self.shared.load(Ordering::Relaxed));
        self.shares[share].load(Ordering::Relaxed) >= SHARE_PER_FREE_PERMIT * free
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
    /// Counts the received message's size.
    pub fn set_bytes(&mut self, bytes: usize) {
        self.budget.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.bytes += bytes;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.budget.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        self.budget.released.notify_waiters();
    }
}

impl Drop for ShareToken {
    fn drop(&mut self) {
        self.budget.shares[self.share].fetch_sub(1, Ordering::Relaxed);
        self.budget.shared.fetch_sub(1, Ordering::Relaxed);
        self.budget.released.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    fn take_all(budget: &Arc<Budget>, share: usize) -> Vec<ShareToken> {
        std::iter::from_fn(|| budget.take_share(share)).take(10_000).collect()
    }

    #[test]
    fn one_backed_up_type_leaves_a_quarter_for_the_others() {
        let budget = Budget::new(1_000, 1, 3);
        let hog = take_all(&budget, 0);
        assert_eq!(hog.len(), 750);
        assert_eq!(take_all(&budget, 1).len(), 188, "three quarters of what is left");
        drop(hog);
        assert_eq!(take_all(&budget, 0).len(), 750);
    }

    #[test]
    fn a_single_type_may_take_everything() {
        let budget = Budget::new(10, 1, 1);
        assert_eq!(take_all(&budget, 0).len(), 10_000);
    }

    #[tokio::test(start_paused = true)]
    async fn a_crowd_stops_polling_for_a_second_at_most() {
        let budget = Budget::new(100, 1, 2);
        budget.uncrowded().await;
        let hog = take_all(&budget, 0);
        let before = tokio::time::Instant::now();
        budget.uncrowded().await;
        assert_eq!(before.elapsed(), MAX_CROWDED_PAUSE);
        let (_, ()) = tokio::join!(budget.uncrowded(), async { drop(hog) });
        assert_eq!(before.elapsed(), MAX_CROWDED_PAUSE);
    }

    #[tokio::test]
    async fn permits_and_bytes_bound_what_is_in_memory() {
        let budget = Budget::new(20, 100, 1);
        let mut first = budget.acquire(16).await;
        assert!(budget.acquire(16).now_or_never().is_none(), "4 permits are left");
        assert_eq!(budget.acquire(4).await.len(), 4);
        first[0].set_bytes(100);
        assert!(budget.acquire(1).now_or_never().is_none(), "the bytes are used up");
        assert!(budget.idle().now_or_never().is_none());
        drop(first);
        assert_eq!(budget.acquire(50).await.len(), 20);
        budget.idle().await;
        assert_eq!(budget.in_flight(), 0);
    }
}
