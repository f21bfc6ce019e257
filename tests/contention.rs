//! Transactions that want the same rows: several processes, every event delivered more than once.

mod common;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use common::{
    Database, Diary, Kind, POINTS_APPLIER, Process, client, config_text, emulator, hapax,
    parse_config, points, send_all, until_empty,
};
use hapax::{Applier, ApplyError, DbConnection, EventContext, Outcome, Service};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

on_each_database!(
    processes_that_want_the_same_rows_apply_each_event_once,
    a_partition_key_keeps_its_events_apart_from_each_other,
);

const ACCOUNTS: i64 = 100;
const EVENTS: usize = 3_000;
const SEED: u64 = 20_261_202;
/// 16 workers in two processes.
const PROCESSES: usize = 2;

/// Deadlocks that the server counted so far, over all its databases on MariaDB.
fn deadlocks(database: &Database) -> i64 {
    match database.kind {
        Kind::Sqlite => 0,
        Kind::Postgres => database
            .number("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"),
        Kind::Mysql => database.number(
            "SELECT variable_value FROM information_schema.global_status
             WHERE variable_name = 'INNODB_DEADLOCKS'",
        ),
    }
}

/// Each event one to three times, in random order.
fn deliveries(random: &mut StdRng) -> (Vec<String>, HashMap<i64, i64>) {
    let mut totals = HashMap::new();
    let mut bodies = Vec::new();
    for number in 0..EVENTS {
        let (account, amount) = (random.random_range(1..=ACCOUNTS), random.random_range(1..=9));
        *totals.entry(account).or_insert(0) += amount;
        let body = points(&format!("evt-{number}"), account, amount);
        bodies.extend(std::iter::repeat_n(body, random.random_range(1..=3)));
    }
    bodies.shuffle(random);
    (bodies, totals)
}

async fn processes_that_want_the_same_rows_apply_each_event_once(kind: Kind) {
    for partition_key in ["", "partition_key = \"/account_id\"\n"] {
        println!("seed {SEED}, {partition_key:?}");
        let database = Database::new(kind).with_accounts(ACCOUNTS);
        let emulator = emulator(&["orders"]);
        let (bodies, totals) = deliveries(&mut StdRng::seed_from_u64(SEED));
        send_all(&client(&emulator.endpoint()), "orders", &bodies).await;
        let applier = POINTS_APPLIER.replace(
            "[applier.parameters]",
            &format!("shards = 8\n{partition_key}[applier.parameters]"),
        );
        let file = database.folder.path().join("hapax.toml");
        std::fs::write(&file, config_text(&database, &emulator.endpoint(), &applier)).unwrap();
        let before = deadlocks(&database);
        let mut processes: Vec<Process> = (0..PROCESSES)
            .map(|_| {
                let mut command = hapax();
                command.env("HAPAX_DATABASE__POOL_SIZE", "9");
                command.args(["run", "--config"]).arg(&file);
                Process::start(command)
            })
            .collect();
        until_empty(&emulator, "orders").await;
        for process in &mut processes {
            process.signal("-TERM");
            assert_eq!(process.ended().await, Some(0), "{}", process.output());
        }
        for (account, total) in &totals {
            assert_eq!(database.balance(*account), *total, "account {account}");
        }
        assert_eq!(database.processed(), EVENTS as i64);
        assert_eq!(database.held(), Vec::<String>::new());
        let met = deadlocks(&database) - before;
        println!("{kind:?}: {} deliveries, {met} deadlocks met, none surfaced", bodies.len());
    }
}

#[derive(serde::Deserialize)]
struct Award {
    account_id: i64,
}

/// Remembers which accounts are being worked on, and whether one was twice at the same time.
#[derive(Clone, Default)]
struct OneAtATime(Arc<Mutex<(Vec<i64>, usize, usize)>>);

impl Applier for OneAtATime {
    const EVENT_TYPE: &'static str = "points.awarded";
    const SHARDS: Option<usize> = Some(4);
    const MAX_BATCH_EVENTS: usize = 1;
    const PARTITION_KEY: Option<&'static str> = Some("/account_id");
    type Payload = Award;

    fn apply(
        &self,
        tx: &mut DbConnection,
        _: &EventContext<'_>,
        award: Award,
    ) -> Result<Outcome, ApplyError> {
        {
            let (working, clashes, most) = &mut *self.0.lock().unwrap();
            *clashes += usize::from(working.contains(&award.account_id));
            working.push(award.account_id);
            *most = working.len().max(*most);
        }
        diesel::RunQueryDsl::execute(diesel::sql_query("SELECT * FROM account"), tx)?;
        std::thread::yield_now();
        let (working, ..) = &mut *self.0.lock().unwrap();
        let index = working.iter().position(|account| *account == award.account_id).unwrap();
        working.swap_remove(index);
        Ok(Outcome::Applied)
    }
}

async fn a_partition_key_keeps_its_events_apart_from_each_other(kind: Kind) {
    let database = Database::new(kind).with_accounts(20);
    let emulator = emulator(&["orders"]);
    let bodies: Vec<String> =
        (0..400).map(|n| points(&format!("evt-{n}"), 1 + n % 20, 1)).collect();
    send_all(&client(&emulator.endpoint()), "orders", &bodies).await;
    let applier = OneAtATime::default();
    let config = parse_config(&config_text(&database, &emulator.endpoint(), ""));
    let service = Service::new(config).unwrap().register(applier.clone()).unwrap();
    let diary = Diary::default();
    let running = service.observe(diary.observer()).start().await.unwrap();
    until_empty(&emulator, "orders").await;
    running.drain().await;
    let (_, clashes, most) = &*applier.0.lock().unwrap();
    assert_eq!((*clashes, diary.count("applied")), (0, 400));
    assert!(kind == Kind::Sqlite || *most > 1, "different keys run side by side");
}
