//! The command line: one file a subcommand.

mod check;
#[cfg(feature = "sqlite")]
mod demo;
#[cfg(feature = "sqlite")]
mod dev;
mod drill;
mod emulator;
mod held;
mod inspect;
mod logging;
mod migrate;
mod purge;
mod run;
mod send;
mod tables;
mod verify;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::cmq::{Credentials, CredentialsError};
use crate::config::{Config, LogConfig};

/// Something went wrong while running.
const EXIT_FAILURE: u8 = 1;
/// The configuration or the arguments cannot be used; clap's own code for bad arguments.
const EXIT_USAGE: u8 = 2;
/// A part of the service ended more often than the supervisor allows.
const EXIT_RESTART_LIMIT: u8 = 3;

/// Applies every business event from a TDMQ for CMQ queue to a SQL database once.
#[derive(Parser)]
#[command(name = "hapax", version, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Play the whole story on an embedded emulator and SQLite
    #[cfg(feature = "sqlite")]
    Demo,
    /// Start emulator, SQLite and service, to try events by hand
    #[cfg(feature = "sqlite")]
    Dev(dev::DevArguments),
    /// Consume the configured queues until SIGTERM or SIGINT
    Run(ConfigArguments),
    /// Serve an in-memory CMQ
    Emulator(emulator::EmulatorArguments),
    /// Send messages to a queue
    Send(send::SendArguments),
    /// Bring hapax's own tables up to date
    Migrate(ConfigArguments),
    /// Check configuration, database and queues, and list what is wrong
    Check(ConfigArguments),
    /// Play the faults that have to be survived, with real processes, on your database or an embedded one
    Drill(drill::DrillArguments),
    #[command(hide = true)]
    DrillWorker(drill::WorkerArguments),
    /// Look at held messages, try them again, or give them up
    Held(held::HeldArguments),
    /// Say what is known of an event: whether it was applied, when, and whether it is held
    Inspect(inspect::InspectArguments),
    /// Compare hapax's tables with the rules they keep
    Verify(verify::VerifyArguments),
    /// Delete claims that are older than their retention now, instead of waiting for the service to
    Purge(ConfigArguments),
}

#[derive(Args)]
struct ConfigArguments {
    /// The configuration file
    #[arg(long, value_name = "FILE", default_value = "hapax.toml")]
    config: PathBuf,
}

/// Why a subcommand failed: its text for the user, and the exit code.
struct Failure {
    text: String,
    code: u8,
}

impl Failure {
    fn usage(error: impl ToString) -> Self {
        Self { text: error.to_string(), code: EXIT_USAGE }
    }

    fn running(error: impl ToString) -> Self {
        Self { text: error.to_string(), code: EXIT_FAILURE }
    }
}

/// Parses the process's arguments and carries them out.
pub fn main() -> ExitCode {
    let Arguments { command } = Arguments::parse();
    let result = match command {
        #[cfg(feature = "sqlite")]
        Command::Demo => demo::demo(),
        #[cfg(feature = "sqlite")]
        Command::Dev(arguments) => dev::dev(arguments),
        Command::Run(arguments) => run::run(&arguments.config),
        Command::Emulator(arguments) => emulator::emulator(arguments),
        Command::Send(arguments) => send::send(arguments),
        Command::Migrate(arguments) => migrate::migrate(&arguments.config),
        Command::Check(arguments) => check::check(&arguments.config),
        Command::Drill(arguments) => drill::drill(&arguments),
        Command::DrillWorker(arguments) => drill::worker(&arguments),
        Command::Held(arguments) => held::held(arguments),
        Command::Inspect(arguments) => inspect::inspect(&arguments),
        Command::Verify(arguments) => verify::verify(&arguments),
        Command::Purge(arguments) => purge::purge(&arguments.config),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure { text, code }) => {
            let lines = text.lines().filter(|line| !line.is_empty());
            lines.for_each(|line| eprintln!("hapax: {line}"));
            ExitCode::from(code)
        }
    }
}

fn load(file: &std::path::Path) -> Result<Config, Failure> {
    Config::load(file).map_err(Failure::usage)
}

/// The environment's credentials. An endpoint on the loopback (an emulator) needs none: a request
/// must be signed, so a placeholder signs it.
fn credentials_for(endpoint: &str) -> Result<Credentials, CredentialsError> {
    let host = url::Url::parse(endpoint).ok().and_then(|url| match url.host()? {
        url::Host::Ipv4(address) => Some(address.is_loopback()),
        url::Host::Ipv6(address) => Some(address.is_loopback()),
        url::Host::Domain(name) => Some(name == "localhost"),
    });
    match Credentials::from_env_or(None, None, None) {
        Err(_) if host == Some(true) => Ok(placeholder_credentials()),
        result => result,
    }
}

fn placeholder_credentials() -> Credentials {
    Credentials::new("emulator".into(), "emulator".to_owned().into(), None)
}

fn quiet_log() -> LogConfig {
    LogConfig { filter: "warn".into(), ..LogConfig::default() }
}
