//! The database goes away under load, and comes back.

mod common;

use std::time::{Duration, Instant};

use common::{
    Database, Kind, POINTS_APPLIER, PrivateServer, Process, block_on, client, config_text,
    emulator, eventually, hapax, points, send_all, until_empty,
};

/// How long the database is away.
const OUTAGE: Duration = Duration::from_secs(30);
/// How much the service's memory may grow meanwhile.
const MAX_GROWTH_KIB: u64 = 16 << 10;

#[test]
fn an_outage_of_the_database_grows_no_memory_restarts_nothing_and_loses_nothing() {
    let server = PrivateServer::start_new(Kind::Postgres);
    block_on(async {
        let database = Database::on(&server).with_accounts(10);
        let emulator = emulator(&["orders:visibility_timeout=10"]);
        let more = format!(
            "visibility_timeout_seconds = 10\n[admin]\nlisten = \"127.0.0.1:0\"\n{POINTS_APPLIER}"
        );
        let file = database.folder.path().join("hapax.toml");
        std::fs::write(&file, config_text(&database, &emulator.endpoint(), &more)).unwrap();
        let client = client(&emulator.endpoint());
        let mut sent = 0;
        let mut send = async |count: i64| {
            let bodies: Vec<String> =
                (sent..sent + count).map(|n| points(&format!("evt-{n}"), 1 + n % 10, 1)).collect();
            sent += count;
            send_all(&client, "orders", &bodies).await;
            sent
        };
        send(4_000).await;
        let mut command = hapax();
        command.args(["run", "--config"]).arg(&file);
        let mut process = Process::start(command);
        until_empty(&emulator, "orders").await;
        send(2_000).await;
        let before = process.resident_kib();
        server.stop();
        let (start, mut most) = (Instant::now(), 0);
        while start.elapsed() < OUTAGE {
            send(100).await;
            most = most.max(process.resident_kib());
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        process.until_says("the database cannot be used").await;
        server.start();
        let sent = send(100).await;
        until_empty(&emulator, "orders").await;
        println!("memory before {before} KiB, at most {most} KiB during {OUTAGE:?}");
        assert!(most < before + MAX_GROWTH_KIB, "{before} KiB grew to {most} KiB");
        let output = process.output();
        assert!(output.contains("the database can be used again"), "{output}");
        assert!(!output.contains("an actor ended"), "{output}");
        process.signal("-TERM");
        assert_eq!(process.ended().await, Some(0));
        let total = database.number("SELECT sum(balance) FROM account");
        assert_eq!((total, database.processed()), (sent, sent));
        assert_eq!(database.held(), Vec::<String>::new());
    });
}

/// How often the server is stopped and started under load.
const RESTARTS: usize = 10;

async fn restarts_under_load_change_no_total(kind: Kind) {
    let server = PrivateServer::start_new(kind);
    let database = Database::on(&server).with_accounts(10);
    let emulator = emulator(&["orders:visibility_timeout=20"]);
    let more = format!("visibility_timeout_seconds = 20\n{POINTS_APPLIER}");
    let file = database.folder.path().join("hapax.toml");
    std::fs::write(&file, config_text(&database, &emulator.endpoint(), &more)).unwrap();
    let client = client(&emulator.endpoint());
    let mut command = hapax();
    command.args(["run", "--config"]).arg(&file);
    let mut process = Process::start(command);
    process.until_says("started").await;
    let mut sent = 0;
    for _ in 0..RESTARTS {
        let before = sent;
        for _ in 0..4 {
            let bodies: Vec<String> =
                (sent..sent + 160).map(|n| points(&format!("evt-{n}"), 1 + n % 10, 1)).collect();
            sent += 160;
            send_all(&client, "orders", &bodies).await;
        }
        // In the middle of the work: some of it is done, and some is not.
        eventually("the work goes on", || database.processed() > before).await;
        server.stop();
        server.start();
        eventually("the server answers", || database.try_processed().is_some()).await;
    }
    until_empty(&emulator, "orders").await;
    let output = process.output();
    assert!(!output.contains("an actor ended"), "{output}");
    process.signal("-TERM");
    assert_eq!(process.ended().await, Some(0), "the process is the one that was started");
    let total = database.number("SELECT sum(balance) FROM account");
    println!("{kind:?}: {RESTARTS} restarts, {sent} events");
    assert_eq!((total, database.processed()), (sent, sent));
    assert_eq!(database.held(), Vec::<String>::new());
}

#[test]
fn restarts_of_postgres_under_load_change_no_total() {
    block_on(restarts_under_load_change_no_total(Kind::Postgres));
}

#[test]
fn restarts_of_mariadb_under_load_change_no_total() {
    block_on(restarts_under_load_change_no_total(Kind::Mysql));
}
