//! Connections to the database that are lost, at any moment.

mod common;

use std::time::{Duration, Instant};

use common::{
    Cut, DEADLINE, Database, Diary, Kind, POINTS_APPLIER, Wire, client, config_text, emulator,
    kill_one, left_in, parse_config, points, send_all, store_options, until_empty,
};
use hapax::Service;
use hapax::emulator::Emulator;
use hapax::store::{Store, StoreOptions};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

on_each_database!(
    connections_killed_at_random_moments_change_no_total,
    a_commit_that_never_arrives_is_redone,
    a_commit_whose_answer_is_lost_is_not_applied_again,
);

const SEED: u64 = 20_261_203;

/// How many connections are killed; `TEST_KILLS` says otherwise.
const KILLS: usize = 150;

fn kills() -> usize {
    std::env::var("TEST_KILLS").map_or(KILLS, |text| text.parse().unwrap())
}

async fn service_at(
    url: &str,
    database: &Database,
    emulator: &Emulator,
    diary: &Diary,
) -> hapax::RunningService {
    let text = config_text(database, &emulator.endpoint(), POINTS_APPLIER);
    let mut config = parse_config(&text);
    config.database.url = url.parse().unwrap();
    Service::new(config).unwrap().observe(diary.observer()).start().await.unwrap()
}

async fn connections_killed_at_random_moments_change_no_total(kind: Kind) {
    if kind == Kind::Sqlite {
        return;
    }
    println!("seed {SEED}");
    let mut random = StdRng::seed_from_u64(SEED);
    let database = Database::new(kind).with_accounts(10);
    let emulator = emulator(&["orders"]);
    let client = client(&emulator.endpoint());
    let diary = Diary::default();
    let running = service_at(&database.url, &database, &emulator, &diary).await;
    let killer = Store::new(StoreOptions { pool_size: 1, ..store_options(&database.url) });
    let (mut killed, mut sent) = (0, 0);
    let start = Instant::now();
    while killed < kills() {
        assert!(start.elapsed() < DEADLINE * 10, "only {killed} connections were killed");
        if left_in(&emulator, "orders") < 200 {
            let bodies: Vec<String> =
                (sent..sent + 320).map(|n| points(&format!("evt-{n}"), 1 + n % 10, 1)).collect();
            sent += 320;
            send_all(&client, "orders", &bodies).await;
        }
        killed += usize::from(kill_one(&killer, kind));
        tokio::time::sleep(Duration::from_micros(random.random_range(0..30_000))).await;
    }
    let seconds = start.elapsed().as_secs_f32();
    until_empty(&emulator, "orders").await;
    running.drain().await;
    let total = database.number("SELECT sum(balance) FROM account");
    let again = diary.count("duplicate");
    println!("{kind:?}: {killed} kills in {seconds} s, {sent} events, {again} found applied");
    assert_eq!((total, database.processed()), (sent, sent));
    assert_eq!(database.held(), Vec::<String>::new());
}

/// Applies 200 events over a wire that breaks at every third commit; returns how many were found
/// applied already.
async fn over_a_breaking_wire(kind: Kind, cut: Cut) -> usize {
    let database = Database::new(kind).with_accounts(10);
    let emulator = emulator(&["orders"]);
    let diary = Diary::default();
    let mut url: url::Url = database.url.parse().unwrap();
    let wire = Wire::to(url.port().unwrap(), cut, 3);
    url.set_port(Some(wire.port)).unwrap();
    if kind == Kind::Postgres {
        url.set_query(Some("sslmode=disable"));
    }
    let bodies: Vec<String> =
        (0..200).map(|n| points(&format!("evt-{n}"), 1 + n % 10, 1)).collect();
    send_all(&client(&emulator.endpoint()), "orders", &bodies).await;
    let running = service_at(url.as_str(), &database, &emulator, &diary).await;
    until_empty(&emulator, "orders").await;
    running.drain().await;
    assert!(wire.cuts() > 0, "the wire broke");
    println!("{kind:?}: the wire broke at {} commits", wire.cuts());
    assert_eq!(database.number("SELECT sum(balance) FROM account"), 200);
    assert_eq!((database.processed(), database.held().len()), (200, 0));
    diary.count("duplicate")
}

async fn a_commit_that_never_arrives_is_redone(kind: Kind) {
    if kind != Kind::Sqlite {
        assert_eq!(over_a_breaking_wire(kind, Cut::BeforeCommit).await, 0);
    }
}

async fn a_commit_whose_answer_is_lost_is_not_applied_again(kind: Kind) {
    if kind != Kind::Sqlite {
        assert!(over_a_breaking_wire(kind, Cut::AfterCommit).await > 0);
    }
}
