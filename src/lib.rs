//! *hapax* (Greek: once) takes business events from TDMQ for CMQ queues into a SQL database, each of
//! them once, however often it is delivered.
//!
//! A service of your own is an [`Applier`] per event type and a [`Service`] that runs them:
//!
//! ```no_run
//! use hapax::{Applier, ApplyError, DbConnection, EventContext, Outcome, Service};
//!
//! #[derive(serde::Deserialize)]
//! struct Refunded {
//!     order_id: i64,
//! }
//!
//! struct RefundOrder;
//!
//! impl Applier for RefundOrder {
//!     const EVENT_TYPE: &'static str = "order.refunded";
//!     type Payload = Refunded;
//!
//!     fn apply(
//!         &self,
//!         tx: &mut DbConnection,
//!         _: &EventContext<'_>,
//!         refunded: Refunded,
//!     ) -> Result<Outcome, ApplyError> {
//!         use diesel::{RunQueryDsl, sql_query, sql_types::BigInt};
//!         let changed = sql_query("UPDATE orders SET refunded = true WHERE id = $1")
//!             .bind::<BigInt, _>(refunded.order_id)
//!             .execute(tx)?;
//!         match changed {
//!             1 => Ok(Outcome::Applied),
//!             _ => Ok(Outcome::Rejected("there is no such order".into())),
//!         }
//!     }
//! }
//!
//! fn main() -> Result<(), hapax::ServiceError> {
//!     Service::from_config_file("refunds.toml")?.register(RefundOrder)?.run()
//! }
//! ```
//!
//! The modules, from the top of the import order to the bottom: [`service`], [`config`], [`pipeline`],
//! then [`event`], [`handler`], [`store`] and [`cmq`]; [`emulator`] and [`admin`] stand beside them.

#![warn(missing_docs)]

pub mod admin;
#[doc(hidden)]
pub mod cli;
pub mod cmq;
pub mod config;
pub mod emulator;
pub mod event;
mod failpoint;
pub mod handler;
pub mod pipeline;
pub mod service;
pub mod signals;
pub mod store;

pub use diesel;
pub use handler::{Applier, ApplyError, EventContext, Outcome};
pub use service::{RunningService, Service, ServiceError};
pub use store::DbConnection;
