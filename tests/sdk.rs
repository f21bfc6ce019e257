//! The official Python SDK as producer and consumer.

mod common;

use std::process::Command;

use common::{
    Database, Kind, POINTS_APPLIER, Process, SECRET_ID, SECRET_KEY, config_text, emulator, hapax,
    until_empty,
};

on_each_database!(events_sent_by_the_sdk_are_applied_once);

const EVENTS: i64 = 1_000;
const ACCOUNTS: i64 = 10;

/// Runs the SDK script; it is copied first, for the SDK writes a log beside the script.
async fn sdk(endpoint: &str, arguments: &[&str]) -> String {
    let python = std::env::var("TEST_PYTHON")
        .expect("TEST_PYTHON is not set: run the tests with tests/run, which installs the SDK");
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("sdk_client.py");
    std::fs::write(&script, include_str!("sdk/sdk_client.py")).unwrap();
    let mut command = Command::new(python);
    command.arg(script).args([endpoint, SECRET_ID, SECRET_KEY]).args(arguments);
    let run = move || {
        let _folder = folder;
        common::run(&mut command)
    };
    let (code, output, errors) = tokio::task::spawn_blocking(run).await.unwrap();
    assert_eq!(code, 0, "{errors}");
    output.trim().to_owned()
}

async fn events_sent_by_the_sdk_are_applied_once(kind: Kind) {
    let database = Database::new(kind).with_accounts(ACCOUNTS);
    let emulator = emulator(&["orders"]);
    let events = EVENTS.to_string();
    let sent = sdk(&emulator.endpoint(), &["produce", "orders", &events]).await;
    assert_eq!(sent.parse::<i64>().unwrap(), EVENTS + (EVENTS + 2) / 3);
    let file = database.folder.path().join("hapax.toml");
    let text = config_text(&database, &emulator.endpoint(), POINTS_APPLIER);
    std::fs::write(&file, text).unwrap();
    let mut command = hapax();
    command.args(["run", "--config"]).arg(&file);
    let mut process = Process::start(command);
    until_empty(&emulator, "orders").await;
    process.signal("-TERM");
    assert_eq!(process.ended().await, Some(0), "{}", process.output());
    for account in 1..=ACCOUNTS {
        let expected: i64 = (account - 1..EVENTS).step_by(ACCOUNTS as usize).sum();
        assert_eq!(database.balance(account), expected, "account {account}");
    }
    assert_eq!(database.processed(), EVENTS);
    assert_eq!(database.held(), Vec::<String>::new());
}

#[test]
fn the_sdk_receives_and_deletes_from_the_emulator() {
    common::block_on(async {
        let emulator = emulator(&[]);
        sdk(&emulator.endpoint(), &["consume", "scratch"]).await;
    });
}
