//! Actors that end in every way, in a service that goes on.

mod common;

use std::time::{Duration, Instant};

use common::{
    DEADLINE, Database, Diary, Kind, POINTS_APPLIER, block_on, client, config_text, emulator,
    eventually, left_in, parse_config, points, send_all, until_empty,
};
use hapax::emulator::Emulator;
use hapax::pipeline::{ActorState, Board, Disturbance};
use hapax::{RunningService, Service};

const ACTORS: [&str; 5] =
    ["receiver/orders", "router/orders", "applier/points.awarded/0", "quarantine", "acker/orders"];

struct Setting {
    database: Database,
    emulator: Emulator,
    diary: Diary,
    running: RunningService,
    board: Board,
}

async fn start(max_restarts: usize) -> Setting {
    let database = Database::new(Kind::Sqlite).with_accounts(1);
    let emulator = emulator(&["orders:visibility_timeout=2"]);
    let more = format!(
        "visibility_timeout_seconds = 2
        [supervision]
        frozen_after_seconds = 1
        max_restarts = {max_restarts}
        {POINTS_APPLIER}"
    );
    let text = config_text(&database, &emulator.endpoint(), &more)
        .replace("[database]", "drain_timeout_seconds = 1\n[database]");
    let diary = Diary::default();
    let service = Service::new(parse_config(&text)).unwrap().observe(diary.observer());
    let running = service.start().await.unwrap();
    let board = running.board();
    Setting { database, emulator, diary, running, board }
}

fn restarts(board: &Board, actor: &str) -> (u64, String) {
    let status = board.statuses().into_iter().find(|status| status.name == actor).unwrap();
    (status.restarts, status.last_ending.unwrap_or_default())
}

/// Each actor ends once in this way while events flow; all of them are applied once.
fn every_actor_survives(disturbance: Disturbance, ending: &str) {
    block_on(async {
        let setting = start(1_000).await;
        let client = client(&setting.emulator.endpoint());
        let mut sent = 0;
        for actor in ACTORS {
            let before = restarts(&setting.board, actor).0;
            setting.board.disturb(actor, disturbance);
            eventually(&format!("{actor} is restarted"), || {
                restarts(&setting.board, actor).0 > before
            })
            .await;
            let bodies: Vec<String> =
                (sent..sent + 40).map(|n| points(&format!("evt-{n}"), 1, 1)).collect();
            sent += 40;
            send_all(&client, "orders", &bodies).await;
            client.send_message("orders", &format!("malformed: {actor}"), 0).await.unwrap();
            eventually(&format!("after {actor} the queue is empty"), || {
                left_in(&setting.emulator, "orders") == 0
            })
            .await;
            let (_, last) = restarts(&setting.board, actor);
            assert!(last.starts_with(ending), "{actor}: {last}");
            let states = setting.board.statuses();
            assert!(states.iter().all(|status| status.state == ActorState::Running), "{states:?}");
        }
        setting.running.drain().await;
        assert_eq!((setting.database.balance(1), setting.database.processed()), (sent, sent));
        assert_eq!(setting.database.held().len(), ACTORS.len());
        assert_eq!(setting.diary.count("applied"), sent as usize);
    });
}

#[test]
fn an_actor_that_stops_is_restarted() {
    every_actor_survives(Disturbance::Stop, "stopped");
}

#[test]
fn an_actor_that_fails_is_restarted() {
    every_actor_survives(Disturbance::Fail, "failed: disturbed on purpose");
}

#[test]
fn an_actor_that_panics_is_restarted() {
    every_actor_survives(Disturbance::Panic, "panicked: disturbed on purpose");
}

#[test]
fn an_actor_that_hangs_is_restarted() {
    every_actor_survives(Disturbance::Hang, "frozen");
}

#[test]
fn an_actor_that_blocks_its_thread_is_restarted_in_another() {
    every_actor_survives(Disturbance::Block, "frozen");
}

#[test]
fn events_under_way_survive_their_actors() {
    block_on(async {
        let setting = start(1_000).await;
        let client = client(&setting.emulator.endpoint());
        let mut sent = 0;
        for actor in ACTORS.iter().cycle().take(2 * ACTORS.len()) {
            let before = restarts(&setting.board, actor).0;
            setting.board.disturb(actor, Disturbance::Panic);
            let start = Instant::now();
            while restarts(&setting.board, actor).0 == before {
                assert!(start.elapsed() < DEADLINE, "{actor} is not restarted");
                let bodies: Vec<String> =
                    (sent..sent + 16).map(|n| points(&format!("evt-{n}"), 1, 1)).collect();
                sent += 16;
                send_all(&client, "orders", &bodies).await;
            }
        }
        until_empty(&setting.emulator, "orders").await;
        setting.running.drain().await;
        assert_eq!((setting.database.balance(1), setting.database.processed()), (sent, sent));
    });
}

#[test]
fn an_actor_that_ends_too_often_is_given_up() {
    block_on(async {
        let setting = start(2).await;
        for round in 1..=3 {
            setting.board.disturb("router/orders", Disturbance::Panic);
            eventually("it is restarted", || {
                let (restarts, _) = restarts(&setting.board, "router/orders");
                let all_run =
                    setting.board.statuses().iter().all(|s| s.state == ActorState::Running);
                restarts == round && all_run
            })
            .await;
        }
        let given_up = tokio::time::timeout(Duration::from_secs(10), setting.board.given_up());
        let reason = given_up.await.unwrap();
        assert!(reason.starts_with("router/orders ended 3 times within 60s"), "{reason}");
        assert!(reason.contains("disturbed on purpose"), "{reason}");
    });
}
