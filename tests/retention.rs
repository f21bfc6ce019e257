//! What is forgotten is what is refused.

mod common;

use std::sync::Arc;
use std::time::Instant;

use chrono::{DateTime, TimeDelta, Utc};
use common::{
    DEADLINE, Database, Diary, Kind, POINTS_APPLIER, client, config_text, emulator, hapax,
    parse_config, run, send_all, until_empty,
};
use hapax::config::Config;
use hapax::emulator::Emulator;
use hapax::pipeline::Purge;
use hapax::store::horizons;
use hapax::{Service, ServiceError};

on_each_database!(
    what_was_forgotten_is_refused_and_what_is_remembered_is_a_duplicate,
    replays_during_a_purge_change_nothing,
    a_producer_that_stamps_its_retries_anew_is_found_out,
    a_clock_that_jumps_ahead_forgets_nothing,
    a_horizon_stays_in_force_when_the_configuration_forgets_it,
    a_retention_shorter_than_the_way_back_is_refused_with_the_sum,
    many_claims_are_purged_while_events_are_applied,
);

/// Kept for a day, and no event can come back for longer.
const RETENTION: &str = r#"
        [[retention]]
        event_type = "points.awarded"
        retention_days = 1
        event_time = "occurred_at"
        producer_retry_days = 0
        max_held_days = 0
"#;

struct Setting {
    database: Database,
    emulator: Emulator,
    diary: Diary,
}

impl Setting {
    fn new(kind: Kind) -> Self {
        let database = Database::new(kind).with_accounts(1);
        Self { database, emulator: emulator(&["orders"]), diary: Diary::default() }
    }

    fn text(&self, retention: &str) -> String {
        let more =
            format!("rewind_seconds = 0\nmax_unacked_seconds = 60\n{POINTS_APPLIER}{retention}");
        config_text(&self.database, &self.emulator.endpoint(), &more)
    }

    fn config(&self) -> Config {
        parse_config(&self.text(RETENTION))
    }

    /// Lets a service take what is in the queue and what comes with `bodies`.
    async fn deliver(&self, bodies: &[String]) {
        let service = Service::new(self.config()).unwrap().observe(self.diary.observer());
        let running = service.start().await.unwrap();
        send_all(&client(&self.emulator.endpoint()), "orders", bodies).await;
        until_empty(&self.emulator, "orders").await;
        running.drain().await;
    }

    fn purge(&self) -> Arc<Purge> {
        let (consumer, retention) = ("points-service".to_owned(), self.config().retention_rules());
        Arc::new(Purge { consumer, store: self.database.store(), retention })
    }

    async fn purge_now(&self) -> usize {
        let purge = self.purge();
        purge.run(&purge.retention[0]).await.unwrap().claims
    }
}

fn hours_ago(hours: i64) -> DateTime<Utc> {
    Utc::now() - TimeDelta::hours(hours)
}

fn event(id: &str, occurred_at: DateTime<Utc>) -> String {
    format!(
        r#"{{"event_id":"{id}","event_type":"points.awarded","occurred_at":"{}","payload":{{"account_id":1,"points":1}}}}"#,
        occurred_at.to_rfc3339()
    )
}

async fn what_was_forgotten_is_refused_and_what_is_remembered_is_a_duplicate(kind: Kind) {
    let setting = Setting::new(kind);
    let old = event("old", hours_ago(72));
    let recent = event("recent", hours_ago(2));
    let old_conflict = old.replace("\"points\":1", "\"points\":2");
    let disputed = event("disputed", hours_ago(73));
    let disputed_conflict = disputed.replace("\"points\":1", "\"points\":2");
    // Beside the service, whose own purge finds nothing to do before there is a recent event.
    setting.deliver(&[old.clone(), disputed.clone()]).await;
    setting.deliver(&[disputed_conflict]).await;
    setting.deliver(std::slice::from_ref(&recent)).await;
    assert_eq!(setting.database.balance(1), 3);
    setting.purge_now().await;
    let left = "SELECT event_id AS value FROM processed_event ORDER BY event_id";
    assert_eq!(setting.database.texts(left), ["disputed", "recent"], "a held event's claim stays");
    setting.deliver(&[old, old_conflict, recent, disputed]).await;
    assert_eq!(setting.database.balance(1), 3);
    assert_eq!(setting.database.held(), ["conflict", "past_horizon", "past_horizon"]);
    let details = setting.database.texts(
        "SELECT detail AS value FROM held_message WHERE reason = 'past_horizon' ORDER BY id",
    );
    assert!(details[0].starts_with("older than the de-duplication horizon"), "{details:?}");

    let file = setting.database.folder.path().join("hapax.toml");
    std::fs::write(&file, setting.text(RETENTION)).unwrap();
    let id = "SELECT min(id) FROM held_message WHERE reason = 'past_horizon'";
    let id = setting.database.number(id).to_string();
    let mut command = hapax();
    let (code, output, _) = run(command.args(["held", "retry", &id, "--config"]).arg(&file));
    assert!(code == 1 && output.contains("past_horizon"), "{output}");
    assert_eq!(setting.database.balance(1), 3);
    let mut command = hapax();
    command.args(["held", "retry", &id, "--past-horizon", "--config"]).arg(&file);
    assert_eq!(run(&mut command).0, 0);
    assert_eq!(setting.database.balance(1), 4, "a person took the responsibility");
}

/// A claim may look fresh because its old row was purged a moment ago.
async fn replays_during_a_purge_change_nothing(kind: Kind) {
    const EVENTS: i64 = 600;
    let setting = Setting::new(kind);
    let mut bodies: Vec<String> =
        (0..EVENTS).map(|n| event(&format!("old-{n}"), hours_ago(72))).collect();
    setting.deliver(&bodies).await;
    setting.deliver(&[event("now", Utc::now())]).await;
    let balance = setting.database.balance(1);
    // The service that started last may have purged already: the events came again to be seen.
    let purge = setting.purge();
    let purging = actix::spawn(async move {
        for _ in 0..20 {
            purge.run(&purge.retention[0]).await.unwrap();
        }
    });
    bodies.extend(bodies.clone());
    setting.deliver(&bodies).await;
    purging.await.unwrap();
    setting.purge_now().await;
    assert_eq!(setting.database.balance(1), balance, "nothing was applied twice");
    setting.deliver(&bodies[..100]).await;
    assert_eq!(setting.database.balance(1), balance);
}

async fn a_producer_that_stamps_its_retries_anew_is_found_out(kind: Kind) {
    let setting = Setting::new(kind);
    setting.deliver(&[event("evt-1", hours_ago(2))]).await;
    setting.deliver(&[event("evt-1", hours_ago(1))]).await;
    assert_eq!(
        (setting.database.balance(1), setting.database.held()),
        (1, vec!["conflict".into()])
    );
    let future = event("evt-2", Utc::now() + TimeDelta::hours(1));
    let timeless = common::points("evt-3", 1, 1);
    setting.deliver(&[future, timeless]).await;
    assert_eq!(setting.database.held(), ["conflict", "malformed", "malformed"]);
}

/// What matters is the newest event, not the clock: as if the clock had jumped a year ahead.
async fn a_clock_that_jumps_ahead_forgets_nothing(kind: Kind) {
    let setting = Setting::new(kind);
    let a_year_ago = 365 * 24;
    let bodies: Vec<String> =
        (0..20).map(|n| event(&format!("evt-{n}"), hours_ago(a_year_ago + n))).collect();
    setting.deliver(&bodies).await;
    assert_eq!(setting.purge_now().await, 0);
    setting.deliver(&bodies).await;
    assert_eq!((setting.database.balance(1), setting.database.held().len()), (20, 0));
    assert_eq!(setting.diary.count("duplicate"), 20);
}

async fn a_horizon_stays_in_force_when_the_configuration_forgets_it(kind: Kind) {
    let setting = Setting::new(kind);
    setting.deliver(&[event("evt-1", hours_ago(48)), event("evt-2", hours_ago(1))]).await;
    assert_eq!(setting.purge_now().await, 1);
    let all = |c: &mut _| horizons(c, "points-service").unwrap();
    let before = setting.database.store().run_here(all).unwrap();
    let refused = |retention: &str| {
        let config = parse_config(&setting.text(retention));
        async move { Service::new(config).unwrap().start().await.map(drop).unwrap_err() }
    };
    for retention in ["".to_owned(), RETENTION.replace("occurred_at", "ulid")] {
        let error = refused(&retention).await;
        assert!(matches!(error, ServiceError::Retention(_)), "{error}");
        assert!(error.to_string().contains("could be applied twice"), "{error}");
    }
    let longer = RETENTION.replace("retention_days = 1", "retention_days = 30");
    let config = parse_config(&setting.text(&longer));
    let running = Service::new(config).unwrap().start().await.unwrap();
    send_all(&client(&setting.emulator.endpoint()), "orders", &[event("evt-1", hours_ago(48))])
        .await;
    until_empty(&setting.emulator, "orders").await;
    running.drain().await;
    assert_eq!(setting.database.store().run_here(all).unwrap(), before, "it never goes back");
    assert_eq!(
        (setting.database.balance(1), setting.database.held()),
        (2, vec!["past_horizon".into()])
    );
}

async fn a_retention_shorter_than_the_way_back_is_refused_with_the_sum(kind: Kind) {
    let setting = Setting::new(kind);
    for (retention, expected) in [
        (RETENTION.replace("max_held_days = 0", ""), "30.00 (max_held_days)"),
        (RETENTION.replace("producer_retry_days = 0", "producer_retry_days = 7"), "7.00 (producer"),
        (RETENTION.replace("        producer_retry_days = 0\n", ""), "producer_retry_days"),
        (RETENTION.replace("occurred_at", "snowflake"), "retention[0].snowflake_epoch_millis"),
    ] {
        let text = setting.text(&retention);
        let error = Config::parse(std::path::Path::new("h.toml"), &text, std::iter::empty());
        let error = error.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

/// Claims to be purged; `TEST_RETENTION_CLAIMS` says otherwise, and then speeds are worth reading.
const CLAIMS: i64 = 20_000;

/// Old claims, as if that many events had been applied ten days ago, a millisecond apart.
fn fill(database: &Database, claims: i64) {
    let columns =
        "consumer, event_id, event_type, payload_digest, message_id, processed_at, event_time";
    let base = (Utc::now() - TimeDelta::days(10)).format("%F %T");
    database.execute(&match database.kind {
        Kind::Sqlite => format!(
            "INSERT INTO processed_event ({columns})
             WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {claims})
             SELECT 'points-service', 'old-' || i, 'points.awarded', zeroblob(32), 'Msg', '{base}',
                    strftime('%Y-%m-%d %H:%M:%f', '{base}', (i / 1000.0) || ' seconds') FROM n"
        ),
        Kind::Postgres => format!(
            "INSERT INTO processed_event ({columns})
             SELECT 'points-service', 'old-' || i, 'points.awarded', decode(repeat('00', 32), 'hex'),
                    'Msg', '{base}', timestamp '{base}' + i * interval '1 millisecond'
             FROM generate_series(1, {claims}) AS i"
        ),
        Kind::Mysql => format!(
            "INSERT INTO processed_event ({columns})
             SELECT 'points-service', CONCAT('old-', seq), 'points.awarded', REPEAT(CHAR(0), 32),
                    'Msg', '{base}', '{base}' + INTERVAL seq * 1000 MICROSECOND
             FROM seq_1_to_{claims}"
        ),
    });
}

/// Seconds to apply new events, by a service of this configuration that goes on running.
async fn seconds_for(
    setting: &Setting,
    config: Config,
    name: &str,
    events: i64,
) -> (f64, hapax::RunningService) {
    let bodies: Vec<String> =
        (0..events).map(|n| event(&format!("{name}-{n}"), Utc::now())).collect();
    send_all(&client(&setting.emulator.endpoint()), "orders", &bodies).await;
    let service = Service::new(config).unwrap().observe(setting.diary.observer());
    let start = Instant::now();
    let running = service.start().await.unwrap();
    until_empty(&setting.emulator, "orders").await;
    (start.elapsed().as_secs_f64(), running)
}

async fn many_claims_are_purged_while_events_are_applied(kind: Kind) {
    let given = std::env::var("TEST_RETENTION_CLAIMS").ok();
    let claims = given.as_ref().map_or(CLAIMS, |text| text.parse().unwrap());
    let events = if given.is_some() { 20_000 } else { 500 };
    let setting = Setting::new(kind);
    let mut without_retention = setting.config();
    without_retention.retention.clear();
    let (_, running) = seconds_for(&setting, without_retention.clone(), "first", 10).await;
    running.drain().await;
    fill(&setting.database, claims);
    let (alone, running) = seconds_for(&setting, without_retention, "alone", events).await;
    running.drain().await;
    // The newest event is what time is counted from.
    setting.database.execute(&format!(
        "UPDATE processed_event SET event_time = '{}' WHERE event_id = 'first-0'",
        Utc::now().format("%F %T")
    ));
    let start = Instant::now();
    let (beside, running) = seconds_for(&setting, setting.config(), "beside", events).await;
    while setting.diary.count("purged") == 0 {
        assert!(start.elapsed() < DEADLINE * 60, "the purge does not end");
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    let seconds = start.elapsed().as_secs_f64();
    running.drain().await;
    println!(
        "{kind:?}: {claims} claims deleted in {seconds:.1} s, {:.0} a second; {events} events took \
         {alone:.2} s alone and {beside:.2} s beside the purge, {:.2} times as long",
        claims as f64 / seconds,
        beside / alone
    );
    let old = "SELECT count(*) FROM processed_event WHERE event_id LIKE 'old-%'";
    assert_eq!(setting.database.number(old), 0);
    assert_eq!(setting.database.processed(), 10 + 2 * events);
    assert_eq!(setting.database.balance(1), 10 + 2 * events);
    // The first came at another time than it comes at now.
    setting.deliver(&[event("old-1", hours_ago(240)), event("beside-0", Utc::now())]).await;
    assert_eq!(setting.database.balance(1), 10 + 2 * events);
    let mut held = setting.database.held();
    held.sort();
    assert_eq!(held, ["conflict", "past_horizon"]);
}
