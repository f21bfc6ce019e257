//! Named places at which a drill stops a process, or takes an answer for lost. Nothing happens at them
//! unless the hidden subcommand `drill-worker` armed one: neither configuration nor environment can.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A place in the code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum FailPoint {
    /// A batch is applied, and not yet committed.
    BeforeCommit,
    /// A batch is committed, and its messages are not yet deleted.
    AfterCommit,
}

/// What happens there, once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailAction {
    /// The thread stands still for ever, to be killed with its process.
    Halt,
    /// The thread stands still for a while.
    Pause(Duration),
    /// What was done is taken for failed.
    LoseAnswer,
}

struct Armed {
    point: FailPoint,
    action: FailAction,
    is_over: AtomicBool,
}

static ARMED: OnceLock<Armed> = OnceLock::new();

/// Lets `action` happen at the first time that this process reaches `point`; a second call does nothing.
pub fn arm(point: FailPoint, action: FailAction) {
    _ = ARMED.set(Armed { point, action, is_over: AtomicBool::new(false) });
}

/// What is printed when an armed point is reached.
pub fn announcement(point: FailPoint) -> String {
    format!("fail point {point:?} reached")
}

/// Marks a place. Returns whether the answer is to be taken for lost.
pub fn reach(point: FailPoint) -> bool {
    let Some(armed) = ARMED.get().filter(|armed| armed.point == point) else { return false };
    if armed.is_over.swap(true, Ordering::SeqCst) {
        return false;
    }
    println!("{}", announcement(point));
    match armed.action {
        FailAction::Halt => loop {
            std::thread::park();
        },
        FailAction::Pause(duration) => {
            std::thread::sleep(duration);
            false
        }
        FailAction::LoseAnswer => true,
    }
}
