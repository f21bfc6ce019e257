//! A CMQ emulator: [`queue`] is a pure state machine that is handed the time, [`broker`] keeps the
//! queues and topics, `actions` speaks the protocol's parameters and answers, and `http` serves
//! them. Everything is in memory.

mod actions;
mod answer;
pub mod broker;
mod faults;
mod http;
pub mod queue;

pub use broker::{Broker, QueueSpec, Subscription, TopicSpec};
pub use faults::Fault;
pub use http::{Emulator, EmulatorOptions};
