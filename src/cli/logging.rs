//! Structured logs on standard error.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::config::{LogConfig, LogFormat};

/// Sets up logging for the whole process; panics are logged, too.
pub fn set_up(config: &LogConfig) {
    let filter = EnvFilter::try_new(&config.filter).unwrap_or_else(|_| EnvFilter::new("info"));
    let terminal = std::io::stderr().is_terminal();
    let human = match config.format {
        LogFormat::Auto => terminal,
        LogFormat::Human => true,
        LogFormat::Json => false,
    };
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(terminal)
        .with_target(false);
    // Fails only where logging was set up before, which then stays.
    _ = match human {
        true => builder.try_init(),
        false => builder.json().flatten_event(true).try_init(),
    };
    std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
}
