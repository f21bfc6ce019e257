//! `hapax drill`: what has to be tried before going live, on the user's own database.

mod drills;
mod stage;
mod worker;

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use super::{Failure, load, logging, quiet_log};
use crate::config::LogConfig;
use drills::{DRILLS, Drill};
use stage::Stage;
pub use worker::{WorkerArguments, worker};

#[derive(Args)]
pub struct DrillArguments {
    /// Drill on the database of this configuration, in a schema or database of its own; without it,
    /// on a SQLite file that is removed afterwards
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Only drills whose name contains this
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
}

pub fn drill(arguments: &DrillArguments) -> Result<(), Failure> {
    // The emulator is told to lose answers, which actix takes for errors.
    logging::set_up(&LogConfig { filter: "hapax=warn".into(), ..quiet_log() });
    let config = arguments.config.as_deref().map(load).transpose()?;
    let is_wanted = |drill: &Drill| {
        arguments.only.as_ref().is_none_or(|text| drill.name.contains(text.as_str()))
    };
    let wanted: Vec<(i64, &Drill)> =
        (1..).zip(DRILLS).filter(|(_, drill)| is_wanted(drill)).collect();
    if wanted.is_empty() {
        let names: Vec<&str> = DRILLS.iter().map(|drill| drill.name).collect();
        return Err(Failure::usage(format!("no such drill; there are: {}", names.join(", "))));
    }
    actix::System::new().block_on(async {
        let stage = Stage::set_up(config.as_ref())?;
        let failed = tokio::select! {
            failed = play_all(&stage, &wanted, arguments.json) => Ok(failed),
            signal = crate::signals::stop_requested() => Err(signal),
        };
        stage.clear().await?;
        match failed {
            Ok(0) => Ok(()),
            Ok(failed) => Err(Failure::running(format!("{failed} drills failed"))),
            Err(signal) => Err(Failure::running(format!("{signal}: the rest was not played"))),
        }
    })
}

/// How many drills failed.
async fn play_all(stage: &Stage, drills: &[(i64, &Drill)], as_json: bool) -> usize {
    let mut failed = 0;
    for (number, drill) in drills {
        if drill.needs_sessions && !stage.has_sessions() {
            if !as_json {
                println!("skip  {}: SQLite has no sessions", drill.name);
            }
            continue;
        }
        failed += usize::from(!play(stage, *number, drill, as_json).await);
    }
    failed
}

/// Whether the drill passed.
async fn play(stage: &Stage, number: i64, drill: &Drill, as_json: bool) -> bool {
    let Drill { name, does, .. } = drill;
    let start = std::time::Instant::now();
    let (expected, found) = match stage.scene(number) {
        Ok(scene) => (drill.play)(&scene)
            .await
            .unwrap_or_else(|failure| ("to come to an end".to_owned(), failure.text)),
        Err(failure) => ("to begin".to_owned(), failure.text),
    };
    let passed = expected == found;
    let seconds = start.elapsed().as_secs_f64();
    if as_json {
        let line = json!({
            "drill": name, "does": does, "expected": expected, "found": found, "passed": passed,
            "seconds": seconds,
        });
        println!("{line}");
    } else if passed {
        println!("ok    {name}: {does}; {found}, as expected ({seconds:.1} s)");
    } else {
        println!("FAIL  {name}: {does}; expected: {expected}; found: {found} ({seconds:.1} s)");
    }
    passed
}
