//! Held messages: what is tried again, what is left to a person, and what a person can do.

mod common;

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use common::{
    Database, Diary, Kind, POINTS_APPLIER, client, config_text, emulator, eventually, hapax,
    parse_config, points, run, send_all, until_empty,
};
use hapax::emulator::Emulator;
use hapax::{Applier, ApplyError, DbConnection, EventContext, Outcome, Service};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::Value;

on_each_database!(
    what_fails_for_a_while_is_applied_from_the_table,
    what_never_works_is_left_to_a_person_in_the_end,
    a_person_sees_and_settles_what_is_held,
    a_storm_of_copies_costs_one_run_and_one_row,
    every_one_of_thousands_of_bodies_is_applied_or_held,
);

const SEED: u64 = 20_261_204;

#[derive(Clone, Default)]
struct Sometimes {
    works: Arc<AtomicBool>,
    runs: Arc<AtomicUsize>,
}

impl Applier for Sometimes {
    const EVENT_TYPE: &'static str = "points.awarded";
    const MAX_ATTEMPTS: u32 = 2;
    type Payload = Value;

    fn apply(
        &self,
        _: &mut DbConnection,
        _: &EventContext<'_>,
        _: Value,
    ) -> Result<Outcome, ApplyError> {
        self.runs.fetch_add(1, Ordering::SeqCst);
        match self.works.load(Ordering::SeqCst) {
            true => Ok(Outcome::Applied),
            false => Err(ApplyError::Retry("the partner is away".into())),
        }
    }
}

/// A configuration whose held messages are tried again after a second.
fn config_of(database: &Database, emulator: &Emulator, more: &str) -> hapax::config::Config {
    let mut config = parse_config(&config_text(database, &emulator.endpoint(), more));
    config.held.first_retry_seconds = 1;
    config.held.longest_retry_seconds = 1;
    config
}

async fn what_fails_for_a_while_is_applied_from_the_table(kind: Kind) {
    let database = Database::new(kind);
    let emulator = emulator(&["orders"]);
    send_all(&client(&emulator.endpoint()), "orders", &[points("evt-1", 1, 1)]).await;
    let applier = Sometimes::default();
    let (works, diary) = (applier.works.clone(), Diary::default());
    let service = Service::new(config_of(&database, &emulator, "")).unwrap();
    let service = service.register(applier).unwrap().observe(diary.observer());
    let running = service.start().await.unwrap();
    until_empty(&emulator, "orders").await;
    assert_eq!(database.texts("SELECT state AS value FROM held_message"), ["retrying"]);
    assert_eq!((database.held(), database.processed()), (vec!["failing".to_owned()], 0));
    eventually("it is tried from the table", || diary.count("held retried: postponed") > 0).await;
    works.store(true, Ordering::SeqCst);
    eventually("it is applied", || database.processed() == 1 && database.held().is_empty()).await;
    eventually("that is told", || diary.count("held retried: applied") == 1).await;
    running.drain().await;
}

async fn what_never_works_is_left_to_a_person_in_the_end(kind: Kind) {
    let database = Database::new(kind);
    let emulator = emulator(&["orders"]);
    send_all(&client(&emulator.endpoint()), "orders", &[points("evt-1", 1, 1)]).await;
    let applier = Sometimes::default();
    let runs = applier.runs.clone();
    let mut config = config_of(&database, &emulator, "");
    config.held.max_retries = 2;
    let service = Service::new(config).unwrap().register(applier).unwrap();
    let running = service.start().await.unwrap();
    eventually("it is given up", || {
        database.try_processed().is_some() && database.held() == ["retries_exhausted"]
    })
    .await;
    assert_eq!(database.texts("SELECT state AS value FROM held_message"), ["quarantined"]);
    assert_eq!(runs.load(Ordering::SeqCst), 4, "twice when delivered, twice from the table");
    running.drain().await;
}

/// The program with a configuration file.
struct Tool(PathBuf);

impl Tool {
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = hapax();
        command.args(arguments).arg("--config").arg(&self.0);
        command
    }

    fn run(&self, arguments: &[&str]) -> (i32, String) {
        let (code, output, errors) = run(&mut self.command(arguments));
        (code, output + &errors)
    }

    /// The JSON objects that a successful run printed.
    fn json(&self, arguments: &[&str]) -> Vec<Value> {
        let (code, output, errors) = run(&mut self.command(arguments));
        assert_eq!(code, 0, "{errors}");
        output.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn answered(&self, arguments: &[&str], answer: &str) -> String {
        use std::io::Write;
        let mut command = self.command(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(answer.as_bytes()).unwrap();
        String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
    }
}

async fn a_person_sees_and_settles_what_is_held(kind: Kind) {
    let database = Database::new(kind).with_accounts(1);
    let emulator = emulator(&["orders"]);
    let client = client(&emulator.endpoint());
    let applier =
        POINTS_APPLIER.replace("[applier.parameters]", "keep_payload = true\n[applier.parameters]");
    let text = config_text(&database, &emulator.endpoint(), &applier);
    let file = database.folder.path().join("hapax.toml");
    std::fs::write(&file, &text).unwrap();
    let tool = Tool(file);
    let running = Service::new(parse_config(&text)).unwrap().start().await.unwrap();
    send_all(&client, "orders", &[points("evt-1", 1, 10)]).await;
    until_empty(&emulator, "orders").await;
    send_all(&client, "orders", &[points("evt-1", 1, 99)]).await;
    until_empty(&emulator, "orders").await;
    send_all(&client, "orders", &[points("evt-2", 7, 5), "not json\u{1b}[31m".into()]).await;
    until_empty(&emulator, "orders").await;
    running.drain().await;

    let listed = tool.json(&["held", "list", "--json"]);
    let reason =
        |of: &str| listed.iter().find(|held| held["reason"] == of).unwrap()["id"].to_string();
    assert_eq!(listed.len(), 3, "{listed:?}");
    let (conflict, rejected, malformed) =
        (reason("conflict"), reason("rejected"), reason("malformed"));
    assert_eq!(tool.json(&["held", "list", "--json", "--reason", "conflict"]).len(), 1);
    assert_eq!(tool.json(&["held", "list", "--json", "--type", "points.awarded"]).len(), 2);
    assert_eq!(tool.json(&["held", "list", "--json", "--queue", "another"]).len(), 0);
    assert_eq!(tool.json(&["held", "list", "--json", "--older-than", "1h"]).len(), 0);
    let (code, output) = tool.run(&["held", "list", "--reason", "boredom"]);
    assert!(code == 2 && output.contains("past_horizon"), "{output}");
    let (_, output) = tool.run(&["held", "list"]);
    assert!(output.starts_with("ID") && output.contains("quarantined"), "{output}");

    let (code, output) = tool.run(&["held", "show", &conflict]);
    assert_eq!(code, 0, "{output}");
    assert!(output.contains("≠ payload/points: 10 was applied, 99 came"), "{output}");
    let shown = tool.json(&["held", "show", &conflict, "--json"]).remove(0);
    assert_eq!(shown["differences"][0]["pointer"], "/points");
    assert_eq!(shown["applied"]["payload"], r#"{"account_id":1,"points":10}"#);
    let (code, output) = tool.run(&["held", "show", &malformed]);
    assert!(code == 0 && output.contains("the body is no event"), "{output}");
    assert!(!output.contains('\u{1b}'), "nothing from outside controls the terminal");
    assert_eq!(tool.run(&["held", "show", "999"]).0, 1);

    let (code, output) = tool.run(&["held", "retry", &rejected]);
    assert!(code == 1 && output.contains("changed 0 rows"), "{output}");
    database.execute("INSERT INTO account VALUES (7, 0)");
    assert_eq!(tool.run(&["held", "retry", &rejected]), (0, format!("{rejected}: applied\n")));
    assert_eq!((database.balance(7), database.processed()), (5, 2));
    let (code, output) = tool.run(&["held", "retry", "--all", "--reason", "conflict"]);
    assert!(code == 1 && output.contains("quarantined (conflict)"), "{output}");
    assert_eq!(database.balance(1), 10);

    let exported = tool.json(&["held", "export", "--reason", "conflict"]).remove(0);
    assert_eq!(exported["body"], points("evt-1", 1, 99));
    assert!(tool.answered(&["held", "discard", &conflict], "no\n").contains("kept"));
    assert!(tool.answered(&["held", "discard", &conflict], "").contains("kept"), "no answer");
    let discard = ["held", "discard", &conflict, "--note", "a test"];
    assert!(tool.answered(&discard, "yes\n").contains("discarded"));
    let notes = database.texts("SELECT note AS value FROM discarded_message");
    assert_eq!((notes, database.held()), (vec!["a test".to_owned()], vec!["malformed".to_owned()]));

    let known = tool.json(&["inspect", "evt-1", "--json"]).remove(0);
    assert_eq!(known["applied"]["event_type"], "points.awarded");
    assert_eq!(known["discarded"][0]["reason"], "conflict");
    assert!(tool.run(&["inspect", "evt-9"]).1.starts_with("evt-9: not applied"));
    let (code, output) = tool.run(&["verify"]);
    assert_eq!(code, 0, "{output}");
    database.execute("UPDATE held_message SET copies = 0");
    let (code, output) = tool.run(&["verify"]);
    assert!(code == 1 && output.contains("BROKEN by 1 rows"), "{output}");
}

async fn a_storm_of_copies_costs_one_run_and_one_row(kind: Kind) {
    const COPIES: usize = 3_000;
    let database = Database::new(kind);
    let emulator = emulator(&["orders"]);
    let client = client(&emulator.endpoint());
    let applier = Sometimes::default();
    applier.works.store(true, Ordering::SeqCst);
    let runs = applier.runs.clone();
    let service = Service::new(config_of(&database, &emulator, "")).unwrap();
    let diary = Diary::default();
    let service = service.register(applier).unwrap().observe(diary.observer());
    let running = service.start().await.unwrap();
    send_all(&client, "orders", &vec![points("evt-1", 1, 1); COPIES]).await;
    until_empty(&emulator, "orders").await;
    assert_eq!((runs.load(Ordering::SeqCst), database.processed()), (1, 1));
    assert_eq!(diary.count("duplicate"), COPIES - 1);
    send_all(&client, "orders", &vec![points("evt-1", 1, 2); COPIES / 10]).await;
    until_empty(&emulator, "orders").await;
    running.drain().await;
    assert_eq!((runs.load(Ordering::SeqCst), database.held()), (1, vec!["conflict".to_owned()]));
    assert_eq!(database.number("SELECT copies FROM held_message"), COPIES as i64 / 10);
}

/// An event's body with a few bytes deleted, doubled or replaced; often it is one still.
fn hostile_body(random: &mut StdRng, number: usize) -> String {
    let mut body = points(&format!("evt-{}", number / 2), 1, 1);
    for _ in 0..random.random_range(0..3) {
        let at = random.random_range(0..body.len());
        if !body.is_char_boundary(at) || !body.is_char_boundary(at + 1) {
            continue;
        }
        match random.random_range(0..3) {
            0 => drop(body.remove(at)),
            1 => {
                let doubled = body[at..=at].to_owned();
                body.insert_str(at, &doubled);
            }
            _ => body.replace_range(
                at..=at,
                ["\u{0}", "é", "\"", "{", "😀", "9", "\\u0000", "\u{feff}"]
                    [random.random_range(0..8)],
            ),
        }
        if body.is_empty() {
            return "x".into();
        }
    }
    body
}

async fn every_one_of_thousands_of_bodies_is_applied_or_held(kind: Kind) {
    const BODIES: usize = 3_000;
    println!("seed {SEED}");
    let mut random = StdRng::seed_from_u64(SEED);
    let database = Database::new(kind).with_accounts(1);
    let emulator = emulator(&["orders"]);
    let bodies: Vec<String> = (0..BODIES).map(|n| hostile_body(&mut random, n)).collect();
    send_all(&client(&emulator.endpoint()), "orders", &bodies).await;
    let diary = Diary::default();
    let service = Service::new(config_of(&database, &emulator, POINTS_APPLIER)).unwrap();
    let running = service.observe(diary.observer()).start().await.unwrap();
    until_empty(&emulator, "orders").await;
    running.drain().await;
    let copies = "SELECT coalesce(sum(copies), 0) FROM held_message";
    let (applied, duplicates) = (diary.count("applied"), diary.count("duplicate"));
    let held = database.number(copies) as usize;
    println!("{kind:?}: {applied} applied, {duplicates} duplicates, {held} held");
    assert_eq!(applied + duplicates + held, BODIES);
    assert_eq!(database.processed(), applied as i64);
    assert!(applied > BODIES / 10 && duplicates > 0 && held > BODIES / 10);
}
