//! From received messages to settled ones: the actors and what passes between them.
//!
//! ```text
//! Receiver ──Incoming──> Router ──Work──> Applier[type][shard] ──Acknowledge──> Acker
//!                          └─────Hold──> Quarantine <──Hold──┘       (Quarantine ──> Acker too)
//! ```
//! A [`Delivery`] carries its permit: dropping it anywhere frees its place, and the queue brings the
//! message again after its visibility time-out. Nothing but a commit leads to the [`Acker`].
//!
//! Beside them, the Retrier tries held messages again, and the Purger deletes claims that are older than
//! their retention.

mod acker;
mod applier;
mod backoff;
mod budget;
mod concurrency;
mod delivery;
mod gathering;
mod health;
mod held_retry;
mod link;
mod observer;
mod purger;
mod quarantine;
mod receiver;
mod retrier;
mod router;
mod start;
mod supervisor;
mod transaction;

pub use acker::Acker;
pub use applier::Applier;
pub use budget::{Budget, BudgetUse};
pub use delivery::{Delivery, QueueContext};
pub use health::Health;
pub use held_retry::{HeldRetry, RetryOutcome, RetrySchedule};
pub use observer::{Observation, Observer};
pub use purger::{Purge, Purged, Retention};
pub use quarantine::Quarantine;
pub use receiver::Receiver;
pub use router::{Router, shard_of};
pub use start::{Pipeline, PipelineOptions, QueueOptions, applications};
#[doc(hidden)]
pub use supervisor::Disturbance;
pub use supervisor::{ActorState, ActorStatus, Board, Ending, Heart, Supervision};
pub use transaction::Application;
