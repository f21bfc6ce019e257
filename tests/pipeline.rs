//! The whole pipeline in one process: real client, real emulator, real databases.

mod common;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, Engine};
use common::{
    Database, Diary, Kind, POINTS_APPLIER, client, config_text, emulator, eventually, left_in,
    parse_config, points, send_all, until_empty,
};
use hapax::emulator::Emulator;
use hapax::handler::DEFAULT_MAX_ATTEMPTS;
use hapax::{Applier, ApplyError, DbConnection, EventContext, Outcome, RunningService, Service};
use serde::Deserialize;

on_each_database!(
    duplicates_conflicts_and_strangers_are_told_apart,
    one_bad_event_does_not_fail_its_neighbours,
    copies_of_an_event_in_one_batch_count_once,
    every_hostile_body_is_applied_or_held,
    a_failing_event_is_retried_and_then_held,
    a_panic_fails_only_its_event,
    a_message_is_not_deleted_while_it_cannot_be_held,
    what_is_rejected_leaves_no_claim,
    what_a_trigger_raises_is_the_events_fault,
    base64_bodies_and_cloudevents_are_understood,
    a_slow_event_type_does_not_hold_up_another,
    a_backlog_is_drained_by_concurrent_polls,
);

struct Setting {
    database: Database,
    emulator: Emulator,
    client: hapax::cmq::Client,
    diary: Diary,
}

impl Setting {
    fn new(kind: Kind, queue: &str) -> Self {
        let database = Database::new(kind).with_accounts(3);
        let emulator = emulator(&[queue]);
        let client = client(&emulator.endpoint());
        Self { database, emulator, client, diary: Diary::default() }
    }

    fn service(&self, more: &str) -> Service {
        let config = parse_config(&config_text(&self.database, &self.emulator.endpoint(), more));
        Service::new(config).unwrap().observe(self.diary.observer())
    }

    async fn send(&self, bodies: &[String]) {
        send_all(&self.client, "orders", bodies).await;
    }

    async fn finish(&self, running: RunningService) {
        until_empty(&self.emulator, "orders").await;
        running.drain().await;
    }
}

async fn duplicates_conflicts_and_strangers_are_told_apart(kind: Kind) {
    let setting = Setting::new(kind, "orders");
    let reordered = r#"{"payload": {"points": 1e1, "account_id":1}, "event_type":"points.awarded",
                        "event_id":"evt-1"}"#;
    let stranger = r#"{"event_id":"evt-2","event_type":"points.burnt","payload":{}}"#;
    setting.send(&[points("evt-1", 1, 10)]).await;
    let running = setting.service(POINTS_APPLIER).start().await.unwrap();
    until_empty(&setting.emulator, "orders").await;
    setting.send(&[reordered.into(), points("evt-1", 1, 99), stranger.into()]).await;
    setting.finish(running).await;
    assert_eq!((setting.database.balance(1), setting.database.processed()), (10, 1));
    let mut held = setting.database.held();
    held.sort();
    assert_eq!(held, ["conflict", "unknown_type"]);
    assert_eq!(setting.diary.count("duplicate evt-1"), 1);
    assert_eq!(setting.diary.count("deleted"), 4);
}

async fn one_bad_event_does_not_fail_its_neighbours(kind: Kind) {
    let setting = Setting::new(kind, "orders");
    let mut bodies: Vec<String> = (0..15).map(|n| points(&format!("evt-{n}"), 1, 1)).collect();
    bodies.push(points("no-such-account", 77, 1));
    bodies.push(points("no-number", 1, 1).replace("\"points\":1", "\"points\":\"many\""));
    setting.send(&bodies).await;
    let running = setting.service(POINTS_APPLIER).start().await.unwrap();
    setting.finish(running).await;
    assert_eq!((setting.database.balance(1), setting.database.processed()), (15, 15));
    assert_eq!(setting.database.held(), ["rejected", "rejected"]);
    let mut details = setting.database.texts("SELECT detail AS value FROM held_message");
    details.sort();
    assert_eq!(
        details[0],
        "/points of the payload is no bigint: it is a string that holds no number"
    );
    assert_eq!(details[1], "statement 1 changed 0 rows instead of 1");
}

async fn copies_of_an_event_in_one_batch_count_once(kind: Kind) {
    let setting = Setting::new(kind, "orders");
    let mut bodies = vec![points("evt", 1, 5); 15];
    bodies.push(points("evt", 1, 6));
    setting.send(&bodies).await;
    let running = setting.service(POINTS_APPLIER).start().await.unwrap();
    setting.finish(running).await;
    assert_eq!((setting.database.balance(1), setting.database.processed()), (5, 1));
    assert_eq!(setting.database.held(), ["conflict"]);
    assert_eq!(setting.diary.count("duplicate evt"), 14);
}

fn hostile_bodies() -> Vec<String> {
    let ok = |id: &str| points(id, 1, 1);
    let payload = |id: &str, payload: &str| {
        format!(r#"{{"event_id":"{id}","event_type":"points.awarded","payload":{payload}}}"#)
    };
    vec![
        " ".into(),
        "\u{0}".into(),
        "not json".into(),
        "{".into(),
        "null".into(),
        "[]".into(),
        "\u{feff}{}".into(),
        "[".repeat(10_000),
        payload("deep", &("[".repeat(10_000) + &"]".repeat(10_000))),
        ok(&"x".repeat(10_000)),
        ok("number").replace("\"number\"", "42"),
        ok("\\u0000"),
        ok("dup").replace("\"payload\"", "\"payload\":{},\"payload\""),
        ok("dup2").replace("\"points\":1", "\"points\":1,\"points\":2"),
        payload("nul", r#"{"account_id":"\u0000","points":1}"#),
        payload("beyond", r#"{"account_id":1,"points":9223372036854775808}"#),
        payload("huge", r#"{"account_id":1,"points":1e999999999999}"#),
        payload("absurd", r#"{"account_id":1,"points":1e9999999999999999999999}"#),
        payload("array", "[1,2]"),
        payload("injection", r#"{"account_id":"1; DROP TABLE account","points":1}"#),
        payload("surrogate", r#"{"account_id":1,"points":1,"x":"\ud800"}"#),
        payload(
            "large",
            &format!(r#"{{"account_id":1,"points":1,"x":"{}"}}"#, "é".repeat(500_000)),
        ),
        ok("'; DROP TABLE account; --"),
        ok("ok-1"),
        ok("ok-2").replace("\"points\":1", "\"points\":1.0"),
    ]
}

async fn every_hostile_body_is_applied_or_held(kind: Kind) {
    let setting = Setting::new(kind, "orders");
    let bodies = hostile_bodies();
    for body in &bodies {
        setting.send(std::slice::from_ref(body)).await;
    }
    let running = setting.service(POINTS_APPLIER).start().await.unwrap();
    setting.finish(running).await;
    let held = setting.database.held().len() as i64;
    let processed = setting.database.processed();
    assert_eq!(processed, 4, "large, injection in the id, ok-1, ok-2");
    assert_eq!(setting.database.balance(1), 4);
    assert_eq!(processed + held, bodies.len() as i64);
    let raw = match kind {
        Kind::Sqlite | Kind::Mysql => "SELECT count(*) FROM held_message WHERE body = x'00'",
        Kind::Postgres => "SELECT count(*) FROM held_message WHERE body = '\\x00'",
    };
    assert_eq!(setting.database.number(raw), 1, "the bytes are kept as they were");
}

#[derive(Deserialize)]
struct Award {
    account_id: i64,
    points: i64,
}

fn add_points(tx: &mut DbConnection, award: &Award) -> Result<Outcome, ApplyError> {
    use diesel::prelude::*;
    diesel::table! { account (id) { id -> BigInt, balance -> BigInt, } }
    let changed = diesel::update(account::table.find(award.account_id))
        .set(account::balance.eq(account::balance + award.points))
        .execute(tx)?;
    match changed {
        1 => Ok(Outcome::Applied),
        _ => Ok(Outcome::Rejected("there is no such account".into())),
    }
}

/// Fails after the update, for events whose id begins with `bad`.
struct Failing;

impl Applier for Failing {
    const EVENT_TYPE: &'static str = "points.awarded";
    type Payload = Award;

    fn apply(
        &self,
        tx: &mut DbConnection,
        event: &EventContext<'_>,
        award: Award,
    ) -> Result<Outcome, ApplyError> {
        add_points(tx, &award)?;
        match event.event_id.starts_with("bad") {
            true => Err(ApplyError::Retry("the partner does not answer".into())),
            false => Ok(Outcome::Applied),
        }
    }
}

async fn a_failing_event_is_retried_and_then_held(kind: Kind) {
    let setting = Setting::new(kind, "orders");
    let mut bodies: Vec<String> = (0..10).map(|n| points(&format!("evt-{n}"), 1, 1)).collect();
    bodies.insert(5, points("bad", 1, 1_000));
    setting.send(&bodies).await;
    let running = setting.service("").register(Failing).unwrap().start().await.unwrap();
    setting.finish(running).await;
    assert_eq!((setting.database.balance(1), setting.database.processed()), (10, 10));
    assert_eq!(setting.database.held(), ["failing"]);
    assert_eq!(setting.diary.count("failed bad"), DEFAULT_MAX_ATTEMPTS as usize);
    let details = setting.database.texts("SELECT detail AS value FROM held_message");
    assert_eq!(details, ["it failed 5 times, at last with: the partner does not answer"]);
}

/// Panics after the update, for every tenth event.
struct Panicking;

impl Applier for Panicking {
    const EVENT_TYPE: &'static str = "points.awarded";
    const MAX_ATTEMPTS: u32 = 2;
    type Payload = Award;

    fn apply(
        &self,
        tx: &mut DbConnection,
        event: &EventContext<'_>,
        award: Award,
    ) -> Result<Outcome, ApplyError> {
        add_points(tx, &award)?;
        assert!(!event.event_id.ends_with('0'), "event {} is cursed", event.event_id);
        Ok(Outcome::Applied)
    }
}

async fn a_panic_fails_only_its_event(kind: Kind) {
    let setting = Setting::new(kind, "orders");
    let bodies: Vec<String> = (0..100).map(|n| points(&format!("evt-{n}"), 1, 1)).collect();
    setting.send(&bodies).await;
    let running = setting.service("").register(Panicking).unwrap().start().await.unwrap();
    setting.finish(running).await;
    assert_eq!((setting.database.balance(1), setting.database.processed()), (90, 90));
    assert_eq!(setting.database.held(), ["failing"; 10]);
    let details = setting.database.texts("SELECT detail AS value FROM held_message");
    assert!(details.iter().all(|detail| detail.contains("is cursed")), "{details:?}");
}

async fn a_message_is_not_deleted_while_it_cannot_be_held(kind: Kind) {
    let setting = Setting::new(kind, "orders");
    let running = setting.service(POINTS_APPLIER).start().await.unwrap();
    setting.database.execute("ALTER TABLE held_message RENAME TO out_of_reach");
    setting.send(&["not json".into(), points("evt-1", 1, 10)]).await;
    eventually("the good event is settled", || setting.diary.count("deleted") == 1).await;
    assert_eq!(left_in(&setting.emulator, "orders"), 1);
    setting.database.execute("ALTER TABLE out_of_reach RENAME TO held_message");
    setting.finish(running).await;
    assert_eq!(setting.database.held(), ["malformed"]);
    assert_eq!(setting.database.balance(1), 10);
}

async fn what_is_rejected_leaves_no_claim(kind: Kind) {
    let setting = Setting::new(kind, "orders");
    setting.send(&[points("evt-1", 9, 10)]).await;
    let running = setting.service(POINTS_APPLIER).start().await.unwrap();
    until_empty(&setting.emulator, "orders").await;
    assert_eq!((setting.database.processed(), setting.database.held().len()), (0, 1));
    setting.database.execute("INSERT INTO account VALUES (9, 0)");
    setting.send(&[points("evt-1", 9, 10)]).await;
    setting.finish(running).await;
    assert_eq!((setting.database.balance(9), setting.database.processed()), (10, 1));
}

/// Whatever its text: the other events of the type go on.
async fn what_a_trigger_raises_is_the_events_fault(kind: Kind) {
    let setting = Setting::new(kind, "orders");
    match kind {
        Kind::Sqlite => setting.database.execute(
            "CREATE TRIGGER guard BEFORE UPDATE ON account WHEN new.balance > 100
             BEGIN SELECT RAISE(ABORT, 'a limit does not exist'); END",
        ),
        Kind::Postgres => {
            setting.database.execute(
                "CREATE FUNCTION guard() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 IF new.balance > 100 THEN RAISE 'a limit does not exist'; END IF;
                 RETURN new; END $$",
            );
            setting.database.execute(
                "CREATE TRIGGER guard BEFORE UPDATE ON account FOR EACH ROW EXECUTE FUNCTION guard()",
            );
        }
        Kind::Mysql => setting.database.execute(
            "CREATE TRIGGER guard BEFORE UPDATE ON account FOR EACH ROW IF new.balance > 100 THEN
             SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'a limit does not exist'; END IF",
        ),
    }
    let bodies = [points("evt-1", 1, 1), points("evt-2", 1, 1_000), points("evt-3", 1, 1)];
    setting.send(&bodies).await;
    let running = setting.service(POINTS_APPLIER).start().await.unwrap();
    setting.finish(running).await;
    assert_eq!((setting.database.balance(1), setting.database.processed()), (2, 2));
    assert_eq!(setting.database.held(), ["failing"]);
}

async fn base64_bodies_and_cloudevents_are_understood(kind: Kind) {
    let setting = Setting::new(kind, "orders");
    let event = |source: &str| {
        let text = format!(
            r#"{{"specversion":"1.0","type":"points.awarded","source":"{source}","id":"1",
                "time":"2025-12-01T00:00:00Z","data":{{"account_id":1,"points":10}}}}"#
        );
        BASE64_STANDARD.encode(text)
    };
    let not_utf8 = BASE64_STANDARD.encode([0xff, 0xfe]);
    setting.send(&[event("/a"), event("/a"), event("/b"), not_utf8, "*".into()]).await;
    let more = format!(
        "body_encoding = \"base64\"\n[queue.envelope]\npreset = \"cloudevents\"\n{POINTS_APPLIER}"
    );
    let running = setting.service(&more).start().await.unwrap();
    setting.finish(running).await;
    assert_eq!((setting.database.balance(1), setting.database.processed()), (20, 2));
    assert_eq!(setting.database.held(), ["malformed", "malformed"]);
    let dated = "SELECT count(*) FROM processed_event WHERE occurred_at = '2025-12-01 00:00:00'";
    match kind {
        Kind::Sqlite => {
            let dated = dated.replace("= '2025-12-01 00:00:00'", "LIKE '2025-12-01 00:00:00%'");
            assert_eq!(setting.database.number(&dated), 2);
        }
        Kind::Postgres | Kind::Mysql => assert_eq!(setting.database.number(dated), 2),
    }
}

#[derive(Default)]
struct Gate {
    is_open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn open(&self) {
        *self.is_open.lock().unwrap() = true;
        self.opened.notify_all();
    }

    fn pass(&self) {
        drop(self.opened.wait_while(self.is_open.lock().unwrap(), |is_open| !*is_open));
    }
}

/// Waits outside the database until the test lets it go on.
struct Slow {
    gate: Arc<Gate>,
    entered: Arc<AtomicU32>,
}

#[derive(Deserialize)]
struct Anything {}

impl Applier for Slow {
    const EVENT_TYPE: &'static str = "report.requested";
    type Payload = Anything;

    fn apply(
        &self,
        _: &mut DbConnection,
        _: &EventContext<'_>,
        _: Anything,
    ) -> Result<Outcome, ApplyError> {
        self.entered.fetch_add(1, Ordering::SeqCst);
        self.gate.pass();
        Ok(Outcome::Applied)
    }
}

/// SQLite has one writer, so there a slow transaction does hold up others; what must not is a slow
/// type's backlog.
async fn a_slow_event_type_does_not_hold_up_another(kind: Kind) {
    if kind == Kind::Sqlite {
        return;
    }
    let setting = Setting::new(kind, "orders:visibility_timeout=60");
    let slow =
        |n| format!(r#"{{"event_id":"slow-{n}","event_type":"report.requested","payload":{{}}}}"#);
    // More slow events than fit in memory come first.
    let mut bodies: Vec<String> = (0..300).map(slow).collect();
    bodies.extend((0..100).map(|n| points(&format!("evt-{n}"), 1, 1)));
    setting.send(&bodies).await;
    let (gate, entered) = (Arc::new(Gate::default()), Arc::new(AtomicU32::new(0)));
    let more =
        format!("visibility_timeout_seconds = 60\nmax_in_flight_messages = 64\n{POINTS_APPLIER}");
    let applier = Slow { gate: gate.clone(), entered: entered.clone() };
    let running = setting.service(&more).register(applier).unwrap().start().await.unwrap();
    eventually("the fast events are applied", || setting.diary.count("applied evt-") == 100).await;
    assert!(entered.load(Ordering::SeqCst) > 0, "the slow ones are under way");
    assert_eq!(setting.diary.count("applied slow-"), 0);
    assert!(setting.diary.count("dropped") > 0, "those beyond their share are left to the queue");
    gate.open();
    running.drain().await;
    assert_eq!(setting.database.balance(1), 100);
}

async fn a_backlog_is_drained_by_concurrent_polls(kind: Kind) {
    let setting = Setting::new(kind, "orders");
    let bodies: Vec<String> =
        (0..2_000).map(|n| points(&format!("evt-{n}"), 1 + n % 3, 1)).collect();
    setting.send(&bodies).await;
    let running = setting.service(POINTS_APPLIER).start().await.unwrap();
    setting.finish(running).await;
    let total = setting.database.number("SELECT sum(balance) FROM account");
    assert_eq!((total, setting.database.processed()), (2_000, 2_000));
    assert_eq!(setting.diary.count("duplicate"), 0);
}

#[test]
fn a_drain_settles_what_was_received_and_leaves_nothing_invisible() {
    common::block_on(async {
        let setting = Setting::new(Kind::Sqlite, "orders");
        let bodies: Vec<String> = (0..500).map(|n| points(&format!("evt-{n}"), 1, 1)).collect();
        setting.send(&bodies).await;
        let running = setting.service(POINTS_APPLIER).start().await.unwrap();
        eventually("some are applied", || setting.diary.count("applied") > 0).await;
        tokio::time::timeout(Duration::from_secs(20), running.drain()).await.unwrap();
        let inactive = setting
            .emulator
            .with_broker(|broker, now| broker.queue("orders").unwrap().queue.counts(now).inactive);
        assert_eq!(inactive, 0, "no message is left invisible");
        let left = left_in(&setting.emulator, "orders") as i64;
        assert_eq!(setting.database.balance(1), 500 - left);
    });
}

/// The other 9,000 are applied once, and the panic's message is kept with each of the 1,000.
#[test]
fn a_thousand_panics_among_ten_thousand_events_fail_only_their_events() {
    common::block_on(async {
        let setting = Setting::new(Kind::Sqlite, "orders:visibility_timeout=300");
        let bodies: Vec<String> = (0..10_000).map(|n| points(&format!("evt-{n}"), 1, 1)).collect();
        setting.send(&bodies).await;
        let service = setting.service("visibility_timeout_seconds = 300");
        let running = service.register(Panicking).unwrap().start().await.unwrap();
        setting.finish(running).await;
        assert_eq!((setting.database.balance(1), setting.database.processed()), (9_000, 9_000));
        let held = "SELECT count(*) FROM held_message WHERE reason = 'failing' AND
                    detail LIKE '%the applier panicked: event ' || event_id || ' is cursed%'";
        assert_eq!(setting.database.number(held), 1_000);
    });
}
