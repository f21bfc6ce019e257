//! The service as seen from outside: metrics, health, status.

mod http;
mod metrics;

pub use http::{AdminOptions, AdminServer, Insight};
pub use metrics::Metrics;
