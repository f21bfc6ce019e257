//! How many transactions of one event type run at the same time.
//!
//! Transactions that want the same rows in different orders deadlock, and each deadlock costs the
//! database's own time-out (a second on PostgreSQL), so more of them at a time get less done. Like a
//! congested network's window, the limit falls by half when they get in each other's way, and rises by
//! one after a while without.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Transactions without contention before one more is tried, at first. Doubles with each contention,
/// for what was in the way may stay.
const FIRST_PATIENCE: u32 = 64;
/// See [`FIRST_PATIENCE`].
const MAX_PATIENCE: u32 = 16_384;

/// The adaptive limit.
pub struct Concurrency {
    slots: Arc<Semaphore>,
    state: Mutex<State>,
}

struct State {
    /// Slots there are, those in use included.
    slots: usize,
    /// Slots there should be.
    target: usize,
    max: usize,
    /// Transactions since the last change.
    clean: u32,
    patience: u32,
}

impl Concurrency {
    /// Begins at `max`.
    pub fn new(max: usize) -> Self {
        let slots = Arc::new(Semaphore::new(max));
        let state = State { slots: max, target: max, max, clean: 0, patience: FIRST_PATIENCE };
        Self { slots, state: Mutex::new(state) }
    }

    /// Waits for a slot.
    pub async fn slot(&self) -> OwnedSemaphorePermit {
        self.slots.clone().acquire_owned().await.expect("the semaphore is never closed")
    }

    /// Gives a slot back and learns from what happened in it. Returns whether the limit is at its
    /// lowest and still there was contention.
    pub fn release(&self, slot: OwnedSemaphorePermit, contended: bool) -> bool {
        let mut state = self.state();
        let was_lowest = state.target == 1;
        match contended {
            true => {
                state.target = (state.target / 2).max(1);
                state.clean = 0;
                state.patience = (state.patience * 2).min(MAX_PATIENCE);
            }
            false => state.clean += 1,
        }
        if state.clean >= state.patience && state.target < state.max {
            state.target += 1;
            state.clean = 0;
        }
        if state.slots > state.target {
            slot.forget();
            state.slots -= 1;
        } else if state.slots < state.target {
            self.slots.add_permits(1);
            state.slots += 1;
        }
        contended && was_lowest
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    fn free_slots(concurrency: &Concurrency) -> usize {
        let mut slots = Vec::new();
        while let Some(slot) = concurrency.slot().now_or_never() {
            slots.push(slot);
        }
        slots.len()
    }

    #[tokio::test]
    async fn contention_halves_the_limit_and_quiet_raises_it_by_one() {
        let concurrency = Concurrency::new(8);
        let mut slots = Vec::new();
        for _ in 0..8 {
            slots.push(concurrency.slot().await);
        }
        assert!(!concurrency.release(slots.pop().unwrap(), true));
        for slot in slots {
            concurrency.release(slot, false);
        }
        assert_eq!(free_slots(&concurrency), 4);
        for expected_lowest in [false, false, true] {
            let slot = concurrency.slot().await;
            assert_eq!(concurrency.release(slot, true), expected_lowest);
        }
        for _ in 0..3 {
            if let Some(slot) = concurrency.slot().now_or_never() {
                concurrency.release(slot, false);
            }
        }
        assert_eq!(free_slots(&concurrency), 1);
        for _ in 0..MAX_PATIENCE {
            let slot = concurrency.slot().await;
            concurrency.release(slot, false);
        }
        assert!(free_slots(&concurrency) > 1);
    }
}
