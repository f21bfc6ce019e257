//! When a batch begins that is not full.
//!
//! A transaction costs the same for one event as for many, so events that come one by one while the
//! database is at work had better share one. A lone event must not wait for others, though. So a batch
//! that is not full begins when no other of the service is under way, and otherwise waits for as long
//! as those that are would take one after the other. The more of them there are, the longer it waits:
//! many shards, or event types, do not end up with a transaction for each event.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// Longest wait of an event for others. A type whose transactions hang delays others by this much.
const MAX_WAIT: Duration = Duration::from_millis(50);

/// What all shards know of each other's batches.
#[derive(Default)]
pub struct Gathering {
    under_way: AtomicUsize,
    quiet: Notify,
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

    /// A batch begins when no other is under way, or when it has waited for as long as those that are
    /// take one after the other, if each takes `usual`.
    pub async fn begin_in_time(self: Arc<Self>, usual: Duration) -> UnderWay {
        let under_way = self.under_way.load(Ordering::Acquire);
        let wait = usual.saturating_mul(under_way.try_into().unwrap_or(u32::MAX));
        let deadline = Instant::now() + wait.min(MAX_WAIT);
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

    const USUAL: Duration = Duration::from_millis(5);

    #[tokio::test(start_paused = true)]
    async fn a_lone_batch_begins_at_once() {
        let gathering = Arc::new(Gathering::default());
        for _ in 0..3 {
            assert!(gathering.clone().begin_in_time(USUAL).now_or_never().is_some());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_waits_until_none_is_under_way() {
        let gathering = Arc::new(Gathering::default());
        let first = gathering.begin();
        let second = tokio::spawn(gathering.clone().begin_in_time(USUAL));
        let third = tokio::spawn(gathering.clone().begin_in_time(USUAL));
        tokio::time::sleep(USUAL / 2).await;
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
    async fn a_batch_waits_for_as_long_as_the_others_take_and_not_for_long() {
        let gathering = Arc::new(Gathering::default());
        let mut under_way = Vec::new();
        for (others, usual, wait) in [
            (1, USUAL, USUAL),
            (3, USUAL, 3 * USUAL),
            (100, USUAL, MAX_WAIT),
            (100, MAX_WAIT, MAX_WAIT),
        ] {
            under_way.resize_with(others, || gathering.begin());
            let start = Instant::now();
            drop(gathering.clone().begin_in_time(usual).await);
            assert_eq!(start.elapsed(), wait, "{others} others");
        }
    }
}
