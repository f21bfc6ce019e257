//! Pauses between tries: exponential, jittered, bounded.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};

/// An endless series of growing pauses that starts anew after a success.
pub struct Backoff {
    builder: ExponentialBuilder,
    pauses: ExponentialBackoff,
}

impl Backoff {
    /// Pauses from about `first` up to about `longest`; each is up to twice as long by jitter.
    pub fn new(first: Duration, longest: Duration) -> Self {
        let builder = ExponentialBuilder::new()
            .with_min_delay(first)
            .with_max_delay(longest)
            .with_factor(2.0)
            .with_jitter()
            .without_max_times();
        Self { pauses: builder.build(), builder }
    }

    /// The next pause.
    pub fn pause(&mut self) -> Duration {
        self.pauses.next().expect("the series is endless")
    }

    /// Starts anew.
    pub fn reset(&mut self) {
        self.pauses = self.builder.build();
    }
}
