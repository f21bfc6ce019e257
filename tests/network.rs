//! A network and a queue that misbehave.

mod common;

use std::time::Duration;

use common::{
    Database, Diary, Kind, POINTS_APPLIER, Process, block_on, client, config_text, emulator,
    eventually, hapax, left_in, parse_config, points, send_all, until_empty,
};
use hapax::emulator::{Emulator, Fault};
use hapax::{RunningService, Service};

struct Setting {
    database: Database,
    emulator: Emulator,
    client: hapax::cmq::Client,
    diary: Diary,
}

impl Setting {
    fn new(visibility_seconds: u32) -> Self {
        let database = Database::new(Kind::Sqlite).with_accounts(1);
        let emulator = emulator(&[&format!("orders:visibility_timeout={visibility_seconds}")]);
        let client = client(&emulator.endpoint());
        Self { database, emulator, client, diary: Diary::default() }
    }

    async fn start(&self, visibility_seconds: u32) -> RunningService {
        let more = format!("visibility_timeout_seconds = {visibility_seconds}\n{POINTS_APPLIER}");
        let config = parse_config(&config_text(&self.database, &self.emulator.endpoint(), &more));
        Service::new(config).unwrap().observe(self.diary.observer()).start().await.unwrap()
    }
}

fn faults() -> Vec<Fault> {
    vec![
        Fault::Refuse(4420),
        Fault::Refuse(6000),
        Fault::Gateway(502),
        Fault::Gateway(503),
        Fault::Html,
        Fault::Huge(100 << 20),
        Fault::LoseAnswer,
        Fault::Truncate,
        Fault::Drip(Duration::from_millis(1)),
    ]
}

/// With each fault in turn for the given action, 40 events are applied once.
async fn survives(action: &str, faults: Vec<Fault>) {
    let setting = Setting::new(2);
    let running = setting.start(2).await;
    let mut sent = 0;
    for fault in faults {
        setting.emulator.inject(action, &fault, 3);
        let bodies: Vec<String> =
            (sent..sent + 40).map(|n| points(&format!("evt-{n}"), 1, 1)).collect();
        sent += 40;
        send_all(&setting.client, "orders", &bodies).await;
        eventually(&format!("{action} survives {fault:?}"), || {
            left_in(&setting.emulator, "orders") == 0
        })
        .await;
        setting.emulator.heal();
    }
    running.drain().await;
    assert_eq!((setting.database.balance(1), setting.database.processed()), (sent, sent));
    assert_eq!(setting.database.held(), Vec::<String>::new());
}

#[test]
fn polls_survive_every_fault() {
    block_on(survives("BatchReceiveMessage", faults()));
}

#[test]
fn deletes_survive_every_fault() {
    block_on(survives("BatchDeleteMessage", faults()));
}

#[test]
fn a_server_that_accepts_and_says_nothing_is_given_up_in_time() {
    block_on(survives("BatchReceiveMessage", vec![Fault::Silence]));
}

/// The first handle waits for a throttled delete until its message comes again; the newer one counts.
#[test]
fn the_newest_handle_of_a_message_deletes_it() {
    block_on(async {
        let setting = Setting::new(1);
        setting.emulator.inject("BatchDeleteMessage", &Fault::Refuse(4420), 1_000);
        let running = setting.start(1).await;
        send_all(&setting.client, "orders", &[points("evt", 1, 5)]).await;
        eventually("it came again", || setting.diary.count("duplicate evt") > 0).await;
        assert_eq!(left_in(&setting.emulator, "orders"), 1, "it could not be deleted");
        setting.emulator.heal();
        until_empty(&setting.emulator, "orders").await;
        eventually("it is told", || setting.diary.count("deleted") == 1).await;
        running.drain().await;
        assert_eq!((setting.database.balance(1), setting.database.processed()), (5, 1));
        assert_eq!(setting.diary.count("applied evt"), 1);
    });
}

/// A lost answer to a delete makes the retry find dead handles: told once, nothing repeated.
#[test]
fn a_handle_that_is_dead_is_told_once() {
    block_on(async {
        let setting = Setting::new(30);
        setting.emulator.inject("BatchDeleteMessage", &Fault::LoseAnswer, 1);
        let running = setting.start(30).await;
        send_all(&setting.client, "orders", &[points("evt", 1, 5)]).await;
        eventually("it is given up", || setting.diary.count("not deleted") == 1).await;
        running.drain().await;
        assert_eq!(left_in(&setting.emulator, "orders"), 0);
        assert_eq!(setting.database.balance(1), 5);
    });
}

#[test]
fn a_failing_endpoint_is_logged_once_and_found_again() {
    block_on(async {
        let database = Database::new(Kind::Sqlite).with_accounts(1);
        let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let text = config_text(&database, &format!("http://{address}"), POINTS_APPLIER)
            + "\n[admin]\nlisten = \"127.0.0.1:0\"\n";
        let file = database.folder.path().join("hapax.toml");
        std::fs::write(&file, text).unwrap();
        let mut command = hapax();
        command.args(["run", "--config"]).arg(&file);
        let process = Process::start(command);
        process.until_says("polling fails").await;
        let output = process.output();
        let admin = output.split("\"address\":\"").nth(1).unwrap().split('"').next().unwrap();
        let url = format!("http://{admin}/metrics");
        let failed_polls = async || {
            let answer = reqwest::get(&url).await.unwrap().bytes().await.unwrap();
            let text = String::from_utf8(answer.to_vec()).unwrap();
            let line = text.lines().find(|line| line.starts_with("hapax_failed_polls_total"));
            line.map_or(0, |line| line.rsplit(' ').next().unwrap().parse::<u32>().unwrap())
        };
        let start = std::time::Instant::now();
        while failed_polls().await < 4 {
            assert!(start.elapsed() < common::DEADLINE);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(process.output().matches("polling fails").count(), 1);
        let emulator = Emulator::start(hapax::emulator::EmulatorOptions {
            listen: address,
            credentials: None,
            queues: vec!["orders".parse().unwrap()],
            topics: Vec::new(),
        })
        .unwrap();
        send_all(&client(&emulator.endpoint()), "orders", &[points("evt", 1, 5)]).await;
        until_empty(&emulator, "orders").await;
        process.until_says("polling works again").await;
        assert_eq!(database.balance(1), 5);
    });
}

/// An idle queue costs one long poll at a time; a full one ramps up.
#[test]
fn an_idle_queue_costs_one_poll_at_a_time() {
    block_on(async {
        let setting = Setting::new(30);
        let running = setting.start(30).await;
        eventually("it polls", || setting.diary.count("polled 0") >= 2).await;
        let (before, start) = (setting.emulator.requests(), std::time::Instant::now());
        eventually("it polls further", || setting.emulator.requests() >= before + 3).await;
        assert!(start.elapsed() > Duration::from_millis(1_900), "each poll waits for a second");
        running.drain().await;
    });
}
