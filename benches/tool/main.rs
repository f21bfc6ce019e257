//! What the benchmarks need beside hapax itself; `benches/run` calls it.

mod one_by_one;
mod round_trips;
mod send;
mod serve;

use clap::{Parser, Subcommand};
use hapax::cmq::signature::SignatureMethod;
use hapax::cmq::{Client, ClientOptions, Credentials, Endpoint};

#[derive(Parser)]
#[command(about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Fills a queue, or sends to it at a rate
    Send(send::SendArguments),
    /// Runs hapax with an applier in Rust, and measures how long events take
    Serve(serve::ServeArguments),
    /// Changes the database in one transaction an event, as pgbench does
    OneByOne(one_by_one::OneByOneArguments),
    /// Measures the round trips that a lone event needs at least
    RoundTrips(round_trips::RoundTripsArguments),
}

fn main() {
    match Arguments::parse().command {
        Command::Send(arguments) => send::send(arguments),
        Command::Serve(arguments) => serve::serve(arguments),
        Command::OneByOne(arguments) => one_by_one::one_by_one(&arguments),
        Command::RoundTrips(arguments) => round_trips::round_trips(&arguments),
    }
}

/// The emulator takes any signature, so any credentials will do.
fn client(endpoint: &str) -> Client {
    let credentials = Credentials::new("bench".into(), "bench".to_owned().into(), None);
    let options = ClientOptions {
        credentials: credentials.into(),
        signature_method: SignatureMethod::default(),
    };
    Client::new(Endpoint::parse(endpoint).unwrap(), options).unwrap()
}

/// The value of a sorted list below which this part (0 to 1) of it lies.
fn quantile(sorted: &[u64], part: f64) -> u64 {
    let last = sorted.len().saturating_sub(1);
    sorted.get((last as f64 * part).round() as usize).copied().unwrap_or_default()
}
