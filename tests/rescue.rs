//! A queue that drops what stays undeleted for too long, and a database that cannot be used meanwhile.

mod common;

use std::time::{Duration, Instant};

use common::{
    Database, Diary, Kind, POINTS_APPLIER, client, config_text, emulator, eventually, left_in,
    parse_config, points, send_all,
};
use hapax::{Applier, ApplyError, DbConnection, EventContext, Outcome, Service};

on_each_database!(
    what_the_queue_would_drop_is_moved_to_safety_and_applied_afterwards,
    what_fails_for_longer_than_the_queue_waits_is_not_lost,
);

/// The shortest that CMQ knows.
const MAX_UNACKED_SECONDS: u64 = 30;
const EVENTS: i64 = 100;

/// How long nothing can be applied; `TEST_FAILING_SECONDS` says otherwise.
fn failing_time() -> Duration {
    let seconds = std::env::var("TEST_FAILING_SECONDS").map_or(40, |text| text.parse().unwrap());
    assert!(seconds > MAX_UNACKED_SECONDS, "the queue would not drop anything");
    Duration::from_secs(seconds)
}

fn queue() -> String {
    format!("orders:visibility_timeout=10,max_unacked={MAX_UNACKED_SECONDS}")
}

fn config(database: &Database, endpoint: &str, applier: &str) -> hapax::config::Config {
    let more = format!(
        "visibility_timeout_seconds = 10\nmax_unacked_seconds = {MAX_UNACKED_SECONDS}\n{applier}"
    );
    let mut config = parse_config(&config_text(database, endpoint, &more));
    config.held.first_retry_seconds = 1;
    config.held.longest_retry_seconds = 5;
    config.held.max_retries = 1_000;
    config
}

fn bodies() -> Vec<String> {
    (0..EVENTS).map(|n| points(&format!("evt-{n}"), 1 + n % 10, 1)).collect()
}

/// The table is missing, which is nobody's event: everything waits, and is rescued in time.
async fn what_the_queue_would_drop_is_moved_to_safety_and_applied_afterwards(kind: Kind) {
    let database = Database::new(kind);
    let emulator = emulator(&[&queue()]);
    let diary = Diary::default();
    let config = config(&database, &emulator.endpoint(), POINTS_APPLIER);
    let service = Service::new(config).unwrap().observe(diary.observer());
    let running = service.start().await.unwrap();
    let start = Instant::now();
    send_all(&client(&emulator.endpoint()), "orders", &bodies()).await;
    eventually("all are held", || database.held().len() as i64 == EVENTS).await;
    let seconds = start.elapsed().as_secs_f32();
    assert!(start.elapsed() < Duration::from_secs(MAX_UNACKED_SECONDS), "{seconds} s");
    let rescued = || diary.count("held rescued") == EVENTS as usize;
    eventually("all were rescued", rescued).await;
    let deleted = || diary.count("deleted") == EVENTS as usize;
    eventually("all are deleted, and none was dropped by the queue", deleted).await;
    assert_eq!(left_in(&emulator, "orders"), 0);
    eventually("the failing time is over", || start.elapsed() > failing_time()).await;
    let database = database.with_accounts(10);
    eventually("all are applied", || database.processed() == EVENTS).await;
    running.drain().await;
    assert_eq!(database.number("SELECT sum(balance) FROM account"), EVENTS);
    assert_eq!(database.held(), Vec::<String>::new());
    println!("{kind:?}: {EVENTS} events were safe {seconds} s after they were sent");
}

/// Fails until the time is over.
struct FailsUntil(Instant);

impl Applier for FailsUntil {
    const EVENT_TYPE: &'static str = "points.awarded";
    type Payload = serde_json::Value;

    fn apply(
        &self,
        _: &mut DbConnection,
        _: &EventContext<'_>,
        _: serde_json::Value,
    ) -> Result<Outcome, ApplyError> {
        match Instant::now() > self.0 {
            true => Ok(Outcome::Applied),
            false => Err(ApplyError::Retry("the partner is away".into())),
        }
    }
}

async fn what_fails_for_longer_than_the_queue_waits_is_not_lost(kind: Kind) {
    let database = Database::new(kind);
    let emulator = emulator(&[&queue()]);
    let diary = Diary::default();
    let works_from = Instant::now() + failing_time();
    let service = Service::new(config(&database, &emulator.endpoint(), "")).unwrap();
    let service = service.register(FailsUntil(works_from)).unwrap().observe(diary.observer());
    let running = service.start().await.unwrap();
    send_all(&client(&emulator.endpoint()), "orders", &bodies()).await;
    let deleted = || diary.count("deleted") == EVENTS as usize;
    eventually("all are deleted, and none was dropped by the queue", deleted).await;
    assert_eq!(left_in(&emulator, "orders"), 0);
    while Instant::now() < works_from {
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(database.processed(), 0);
    }
    eventually("all are applied", || database.processed() == EVENTS).await;
    eventually("none is held", || database.held().is_empty()).await;
    running.drain().await;
    println!("{kind:?}: {} tries from the table", diary.count("held retried"));
}
