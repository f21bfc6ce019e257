//! Signals that ask the process to stop.

use tokio::signal::unix::{SignalKind, signal};

/// Waits for SIGTERM or SIGINT and returns its name. From then on another one ends the process at
/// once, with 128 and its number as the shell would report it.
pub async fn stop_requested() -> &'static str {
    const INSTALLS: &str = "signal handlers can be installed on a running runtime";
    let mut terminate = signal(SignalKind::terminate()).expect(INSTALLS);
    let mut interrupt = signal(SignalKind::interrupt()).expect(INSTALLS);
    let name = tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    };
    actix::spawn(async move {
        let code = tokio::select! {
            _ = terminate.recv() => 143,
            _ = interrupt.recv() => 130,
        };
        tracing::warn!("second signal: ending at once");
        std::process::exit(code);
    });
    name
}
