//! The drills. Each leaves a state that is compared, as text, with what was expected.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use super::super::Failure;
use super::stage::{Scene, State, VISIBILITY_SECONDS};
use crate::emulator::Fault;
use crate::failpoint::FailPoint;

/// Expected and found.
type Outcome = Result<(String, String), Failure>;

/// A drill.
pub struct Drill {
    pub name: &'static str,
    /// What is done, for the report.
    pub does: &'static str,
    /// Whether it is about sessions of a server.
    pub needs_sessions: bool,
    pub play: for<'a> fn(&'a Scene<'a>) -> Pin<Box<dyn Future<Output = Outcome> + 'a>>,
}

macro_rules! drills {
    ($($name:literal, $does:literal, $play:ident $(, $needs_sessions:literal)?;)*) => {
        /// In the order in which they are played.
        pub const DRILLS: &[Drill] =
            &[$(Drill {
                name: $name,
                does: $does,
                needs_sessions: false $(|| $needs_sessions)?,
                play: |scene| Box::pin($play(scene)),
            }),*];
    };
}

drills! {
    "kill before the commit",
        "SIGKILL when the event was applied and not committed, then another worker",
        kill_before_the_commit;
    "kill between commit and delete",
        "SIGKILL when the event was committed and its message not deleted, then another worker",
        kill_between_commit_and_delete;
    "past the visibility time-out",
        "a worker takes longer than the visibility time-out, and a second gets the message, too",
        past_the_visibility_time_out;
    "lost commit answer",
        "the commit takes place, but the worker believes that it failed",
        lost_commit_answer;
    "lost delete answer",
        "the delete takes place, but its answer is lost",
        lost_delete_answer;
    "duplicate sends",
        "the producer sends an event 50 times",
        duplicate_sends;
    "id reused",
        "an applied event's id comes with another payload",
        id_reused;
    "sessions killed",
        "the database's sessions are ended again and again during work",
        sessions_killed, true;
    "two processes",
        "two workers share 200 events, each sent twice",
        two_processes;
    "poison message",
        "a body that is no event and an event that is rejected, among good ones",
        poison_message;
}

fn state(balance: i64, claims: i64, held: &[&str]) -> String {
    let held = held.iter().map(|reason| (*reason).to_owned()).collect();
    State { balance, claims, held, queued: 0 }.to_string()
}

async fn kill_before_the_commit(scene: &Scene<'_>) -> Outcome {
    scene.send(&[scene.event("evt", 10)]).await?;
    let mut first = scene.worker(&["--halt-at", "before-commit"])?;
    first.reaches(FailPoint::BeforeCommit).await?;
    first.kill();
    let after_kill = scene.state()?;
    let _second = scene.worker(&[])?;
    let found = format!("{} after the kill, then {}", after_kill.balance, scene.settled().await?);
    Ok((format!("0 after the kill, then {}", state(10, 1, &[])), found))
}

async fn kill_between_commit_and_delete(scene: &Scene<'_>) -> Outcome {
    scene.send(&[scene.event("evt", 10)]).await?;
    let mut first = scene.worker(&["--halt-at", "after-commit"])?;
    first.reaches(FailPoint::AfterCommit).await?;
    first.kill();
    let after_kill = scene.state()?;
    let _second = scene.worker(&[])?;
    let found = format!(
        "{} after the kill with {} queued, then {}",
        after_kill.balance,
        after_kill.queued,
        scene.settled().await?
    );
    Ok((format!("10 after the kill with 1 queued, then {}", state(10, 1, &[])), found))
}

async fn past_the_visibility_time_out(scene: &Scene<'_>) -> Outcome {
    scene.send(&[scene.event("evt", 10)]).await?;
    let pause = Duration::from_secs(VISIBILITY_SECONDS + 2).as_millis().to_string();
    let arguments = ["--pause-at", "before-commit", "--pause-millis", &pause];
    let mut slow = scene.worker(&arguments)?;
    slow.reaches(FailPoint::BeforeCommit).await?;
    let _second = scene.worker(&[])?;
    let found = scene.settled().await?;
    Ok((state(10, 1, &[]), found.to_string()))
}

async fn lost_commit_answer(scene: &Scene<'_>) -> Outcome {
    scene.send(&[scene.event("evt", 10)]).await?;
    let mut worker = scene.worker(&["--lose-answer-at", "after-commit"])?;
    worker.reaches(FailPoint::AfterCommit).await?;
    let found = scene.settled().await?;
    Ok((state(10, 1, &[]), found.to_string()))
}

async fn lost_delete_answer(scene: &Scene<'_>) -> Outcome {
    let requests = &scene.stage.emulator;
    requests.inject("BatchDeleteMessage", &Fault::LoseAnswer, 1);
    scene.send(&[scene.event("evt", 10)]).await?;
    let _worker = scene.worker(&[])?;
    let found = scene.settled().await?;
    requests.heal();
    Ok((state(10, 1, &[]), found.to_string()))
}

async fn duplicate_sends(scene: &Scene<'_>) -> Outcome {
    scene.send(&vec![scene.event("evt", 10); 50]).await?;
    let _worker = scene.worker(&[])?;
    Ok((state(10, 1, &[]), scene.settled().await?.to_string()))
}

async fn id_reused(scene: &Scene<'_>) -> Outcome {
    let _worker = scene.worker(&[])?;
    scene.send(&[scene.event("evt", 10)]).await?;
    scene.settled().await?;
    scene.send(&[scene.event("evt", 99)]).await?;
    Ok((state(10, 1, &["conflict"]), scene.settled().await?.to_string()))
}

async fn sessions_killed(scene: &Scene<'_>) -> Outcome {
    const EVENTS: i64 = 200;
    let bodies: Vec<String> = (0..EVENTS).map(|n| scene.event(&format!("evt-{n}"), 1)).collect();
    let _worker = scene.worker(&[])?;
    for batch in bodies.chunks(20) {
        scene.send(batch).await?;
        tokio::time::sleep(Duration::from_millis(50)).await;
        scene.stage.end_sessions()?;
    }
    Ok((state(EVENTS, EVENTS, &[]), scene.settled().await?.to_string()))
}

async fn two_processes(scene: &Scene<'_>) -> Outcome {
    const EVENTS: i64 = 200;
    let bodies: Vec<String> =
        (0..2 * EVENTS).map(|n| scene.event(&format!("evt-{}", n % EVENTS), 1)).collect();
    scene.send(&bodies).await?;
    let _workers = (scene.worker(&[])?, scene.worker(&[])?);
    Ok((state(EVENTS, EVENTS, &[]), scene.settled().await?.to_string()))
}

async fn poison_message(scene: &Scene<'_>) -> Outcome {
    let _worker = scene.worker(&[])?;
    scene.send(&["this is no event".to_owned()]).await?;
    scene.settled().await?;
    let too_much = scene.event("evt-bad", 1).replace("\"points\":1", "\"points\":1.5");
    scene.send(&[scene.event("evt-1", 1), too_much, scene.event("evt-2", 1)]).await?;
    Ok((state(2, 2, &["malformed", "rejected"]), scene.settled().await?.to_string()))
}
