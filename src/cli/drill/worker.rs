//! `hapax drill-worker`: `hapax run` with a fail point armed. For `hapax drill` alone.

use std::time::Duration;

use clap::Args;

use super::super::{ConfigArguments, Failure, run};
use crate::failpoint::{FailAction, FailPoint, arm};

#[derive(Args)]
pub struct WorkerArguments {
    #[arg(long)]
    halt_at: Option<FailPoint>,
    #[arg(long, requires = "pause_millis")]
    pause_at: Option<FailPoint>,
    #[arg(long)]
    pause_millis: Option<u64>,
    #[arg(long)]
    lose_answer_at: Option<FailPoint>,
    #[command(flatten)]
    config: ConfigArguments,
}

pub fn worker(arguments: &WorkerArguments) -> Result<(), Failure> {
    if let Some(point) = arguments.halt_at {
        arm(point, FailAction::Halt);
    }
    if let (Some(point), Some(millis)) = (arguments.pause_at, arguments.pause_millis) {
        arm(point, FailAction::Pause(Duration::from_millis(millis)));
    }
    if let Some(point) = arguments.lose_answer_at {
        arm(point, FailAction::LoseAnswer);
    }
    run::run(&arguments.config.config)
}
