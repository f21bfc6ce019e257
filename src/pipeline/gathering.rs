//! When a batch begins that is not full.
//!
//! A transaction costs the same for one event as for many, so events that come one by one while the
//! database is at work had better share one. A lone event must not wait for others, though. So a batch
//! that is not full begins when no other of its type is under way, and otherwise waits for as long as
//! a transaction takes at most: that at most doubles the time an event takes, and only under load.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// Longest wait of an event for others. What a transaction costs beside its events is well below a
/// millisecond on a database near by, so waiting for longer does not pay.
const MAX_WAIT: Duration = Duration::from_millis(10);

/// What the shards of one event type know of each other's batches.
#[derive(Default)]
pub struct Gathering {
    under_way: AtomicUsize,
    quiet: Notify,
    /// How long the last transaction took, in microseconds.
    last_micros: AtomicU64,
}

/// A batch is under way until this is dropped.
pub struct UnderWay(Arc<Gathering>);

impl Gathering {
    /// A batch begins, whatever else is under way.
    pub fn begin(self: &Arc<Self>) -> UnderWay {
        self.under_way.fetch_add(1, Ordering::AcqRel);
        UnderWay(self.clone())
    }

    /// A batch begins if no other is under way.
    pub fn begin_if_quiet(self: &Arc<Self>) -> Option<UnderWay> {
        let only = self.under_way.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire);
        only.is_ok().then(|| UnderWay(self.clone()))
    }

    /// A batch begins when no other is under way, or when it has waited for long enough.
    pub async fn begin_in_time(self: Arc<Self>) -> UnderWay {
        let last = Duration::from_micros(self.last_micros.load(Ordering::Relaxed));
        let deadline = Instant::now() + last.min(MAX_WAIT);
        loop {
            if let Some(under_way) = self.begin_if_quiet() {
                return under_way;
            }
            let quiet = tokio::time::timeout_at(deadline, self.quiet.notified());
            if quiet.await.is_err() {
                return self.begin();
            }
        }
    }

    /// A transaction took this long.
    pub fn learn(&self, took: Duration) {
        self.last_micros.store(took.as_micros() as u64, Ordering::Relaxed);
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if self.0.under_way.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.quiet.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_lone_batch_begins_at_once() {
        let gathering = Arc::new(Gathering::default());
        gathering.learn(Duration::from_secs(1));
        for _ in 0..3 {
            assert!(gathering.clone().begin_in_time().now_or_never().is_some());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_waits_until_none_is_under_way() {
        let gathering = Arc::new(Gathering::default());
        gathering.learn(MAX_WAIT);
        let first = gathering.begin();
        let second = tokio::spawn(gathering.clone().begin_in_time());
        let third = tokio::spawn(gathering.clone().begin_in_time());
        tokio::time::sleep(MAX_WAIT / 2).await;
        assert!(!second.is_finished());
        let start = Instant::now();
        drop(first);
        let second = second.await.unwrap();
        assert_eq!(start.elapsed(), Duration::ZERO);
        // The third is not on its way as well.
        tokio::task::yield_now().await;
        assert!(!third.is_finished());
        drop(second);
        third.await.unwrap();
        assert_eq!(start.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_waits_for_as_long_as_a_transaction_takes_and_not_for_long() {
        let gathering = Arc::new(Gathering::default());
        let _first = gathering.begin();
        for (took, wait) in
            [(Duration::from_millis(2), Duration::from_millis(2)), (MAX_WAIT * 100, MAX_WAIT)]
        {
            gathering.learn(took);
            let start = Instant::now();
            gathering.clone().begin_in_time().await;
            assert_eq!(start.elapsed(), wait);
        }
    }
}
