//! hapax with an applier in Rust, row by row, and with a clock at its commits and deletes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use clap::Args;
use diesel::prelude::*;
use hapax::pipeline::Observation;
use hapax::{Applier, ApplyError, DbConnection, EventContext, Outcome, Service};

use crate::quantile;

#[derive(Args)]
pub struct ServeArguments {
    #[arg(long)]
    config: std::path::PathBuf,
    /// Register the applier of `points.awarded` that is written in Rust
    #[arg(long)]
    in_rust: bool,
    /// Measure latencies, and print them at the end
    #[arg(long)]
    latencies: bool,
}

diesel::table! {
    account (id) {
        id -> BigInt,
        balance -> BigInt,
    }
}

#[derive(serde::Deserialize)]
struct PointsAwarded {
    account_id: i64,
    points: i64,
}

struct AwardPoints;

impl Applier for AwardPoints {
    const EVENT_TYPE: &'static str = "points.awarded";
    type Payload = PointsAwarded;

    fn apply(
        &self,
        tx: &mut DbConnection,
        _: &EventContext<'_>,
        awarded: PointsAwarded,
    ) -> Result<Outcome, ApplyError> {
        let changed = diesel::update(account::table.find(awarded.account_id))
            .set(account::balance.eq(account::balance + awarded.points))
            .execute(tx)?;
        match changed {
            1 => Ok(Outcome::Applied),
            _ => Ok(Outcome::Rejected(format!("there is no account {}", awarded.account_id))),
        }
    }
}

/// In microseconds.
#[derive(Default)]
struct Latencies {
    send_to_commit: Vec<u64>,
    commit_to_delete: Vec<u64>,
    committed: HashMap<String, Instant>,
}

impl Latencies {
    fn observe(&mut self, observation: &Observation<'_>) {
        match observation {
            Observation::Applied { event_id, message_id, .. } => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as u64;
                let sent = event_id.rsplit('-').next().and_then(|micros| micros.parse().ok());
                self.send_to_commit.extend(sent.map(|sent| now.saturating_sub(sent)));
                self.committed.insert((*message_id).to_owned(), Instant::now());
            }
            Observation::Deleted { message_id, .. } => {
                let committed = self.committed.remove(*message_id);
                self.commit_to_delete.extend(committed.map(|at| at.elapsed().as_micros() as u64));
            }
            _ => {}
        }
    }

    fn print(&mut self) {
        self.send_to_commit.sort_unstable();
        self.commit_to_delete.sort_unstable();
        let part = |times: &[u64]| {
            format!(
                r#"{{"count":{},"p50":{},"p99":{}}}"#,
                times.len(),
                quantile(times, 0.5),
                quantile(times, 0.99)
            )
        };
        println!(
            r#"{{"send_to_commit_micros":{},"commit_to_delete_micros":{}}}"#,
            part(&self.send_to_commit),
            part(&self.commit_to_delete)
        );
    }
}

pub fn serve(arguments: ServeArguments) {
    let mut service = Service::from_config_file(arguments.config).unwrap();
    if arguments.in_rust {
        service = service.register(AwardPoints).unwrap();
    }
    let latencies: Arc<Mutex<Latencies>> = Arc::default();
    if arguments.latencies {
        let latencies = latencies.clone();
        service = service.observe(Arc::new(move |observation: &Observation<'_>| {
            latencies.lock().unwrap().observe(observation);
        }));
    }
    service.run().unwrap();
    if arguments.latencies {
        latencies.lock().unwrap().print();
    }
}
