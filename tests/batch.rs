//! Statements and appliers that change the rows of a whole batch at once.

mod common;

use common::{
    Database, Diary, Kind, POINTS_APPLIER, client, config_text, emulator, parse_config, points,
    send_all, until_empty,
};
use hapax::diesel::{RunQueryDsl, sql_query};
use hapax::{Applier, ApplyError, DbConnection, EventContext, Outcome, Service};

on_each_database!(
    a_batch_changes_its_rows_by_one_statement,
    values_of_every_type_arrive_exactly,
    an_applier_in_rust_may_take_whole_batches,
);

/// The accounts' balances by one statement, and a row for each event by another.
fn applier(kind: Kind) -> String {
    let sums = "SELECT account_id, sum(points) AS points FROM batch GROUP BY account_id";
    let update = match kind {
        Kind::Mysql => format!(
            "UPDATE account JOIN ({sums}) AS s ON s.account_id = account.id
             SET balance = balance + s.points"
        ),
        _ => format!(
            "UPDATE account SET balance = balance + s.points FROM ({sums}) AS s
             WHERE s.account_id = account.id"
        ),
    };
    let (declared, _) = POINTS_APPLIER.split_once("[[applier.statement]]").unwrap();
    format!(
        r#"{declared}
        [[applier.statement]]
        batch_sql = """{update}"""
        rows = 1
        rows_per = ["account_id"]
        [[applier.statement]]
        batch_sql = "INSERT INTO ledger SELECT event_id, account_id, b.points FROM batch AS b"
        rows = 1
        "#
    )
}

async fn a_batch_changes_its_rows_by_one_statement(kind: Kind) {
    let database = Database::new(kind).with_accounts(10);
    database.execute(
        "CREATE TABLE ledger (event_id VARCHAR(64) PRIMARY KEY, account BIGINT, points BIGINT)",
    );
    let emulator = emulator(&["orders"]);
    let diary = Diary::default();
    let mut bodies: Vec<String> =
        (0..500).map(|n| points(&format!("evt-{n}"), 1 + n % 10, n)).collect();
    // A stranger's account, and a payload without points: their batches are redone one by one.
    bodies.insert(99, points("stranger", 77, 1));
    bodies.insert(333, points("no-points", 1, 1).replace("points\":1", "p\":1"));
    send_all(&client(&emulator.endpoint()), "orders", &bodies).await;
    let config = config_text(&database, &emulator.endpoint(), &applier(kind));
    let service = Service::new(parse_config(&config)).unwrap().observe(diary.observer());
    let running = service.start().await.unwrap();
    until_empty(&emulator, "orders").await;
    running.drain().await;
    assert_eq!(database.processed(), 500);
    assert_eq!(database.held(), ["rejected", "rejected"]);
    assert_eq!(database.number("SELECT sum(balance) FROM account"), 499 * 500 / 2);
    assert_eq!(database.balance(3), (0..50).map(|n| 10 * n + 2).sum::<i64>());
    assert_eq!(database.number("SELECT count(*) FROM ledger"), 500);
    assert_eq!(database.number("SELECT points FROM ledger WHERE event_id = 'evt-7'"), 7);
    assert!(diary.count("committed") < 300, "it was done by batches");
}

async fn values_of_every_type_arrive_exactly(kind: Kind) {
    let database = Database::new(kind);
    let (bytes, json, double, timestamp, text) = match kind {
        Kind::Sqlite => ("BLOB", "TEXT", "REAL", "TEXT", "TEXT"),
        Kind::Postgres => ("BYTEA", "JSONB", "DOUBLE PRECISION", "TIMESTAMPTZ", "TEXT"),
        // The server's default need not be utf8mb4, and must not show.
        Kind::Mysql => ("BLOB", "JSON", "DOUBLE", "TIMESTAMP(6)", "TEXT CHARACTER SET utf8mb4"),
    };
    database.execute(&format!(
        "CREATE TABLE v (big BIGINT, small INTEGER, num NUMERIC(30, 4), real_ {double}, t {text},
                         yes BOOLEAN, at_ {timestamp}, doc {json}, raw {bytes})"
    ));
    let types =
        ["bigint", "integer", "numeric", "double", "text", "boolean", "timestamp", "json", "bytes"];
    let names = ["big", "small", "num", "real_", "t", "yes", "at_", "doc", "raw"];
    let parameters: String = names
        .iter()
        .zip(types)
        .map(|(n, t)| format!("{n} = {{ pointer = \"/{n}\", type = \"{t}\", optional = true }}\n"))
        .collect();
    let columns = names.join(", ");
    let applier = format!(
        "[[applier]]\nevent_type = \"v\"\n[applier.parameters]\n{parameters}
         [[applier.statement]]\nbatch_sql = \"INSERT INTO v SELECT {columns} FROM batch\"\nrows = 1"
    );
    let emulator = emulator(&["orders"]);
    let event = |id: &str, payload: &str| {
        format!(r#"{{"event_id":"{id}","event_type":"v","payload":{payload}}}"#)
    };
    let bodies = [
        event(
            "1",
            r#"{"big": 9007199254740993, "small": -1, "num": 12345678901.25, "real_": 0.1,
                "t": "it's; \"\\ \n-- :t 积分😀", "yes": true,
                "at_": "2025-12-01T08:00:00.123456+08:00", "doc": {"n": 9007199254740993},
                "raw": "AP8="}"#,
        ),
        event("2", r#"{"big": -9223372036854775808, "num": -0.0001, "yes": false, "t": ""}"#),
    ];
    send_all(&client(&emulator.endpoint()), "orders", &bodies).await;
    let config = config_text(&database, &emulator.endpoint(), &applier);
    let running = Service::new(parse_config(&config)).unwrap().start().await.unwrap();
    until_empty(&emulator, "orders").await;
    running.drain().await;
    assert_eq!(database.held(), Vec::<String>::new());
    let newline = match kind {
        Kind::Sqlite => "'it''s; \"\\ ' || char(10) || '-- :t 积分😀'",
        Kind::Postgres => "'it''s; \"\\ ' || chr(10) || '-- :t 积分😀'",
        Kind::Mysql => "concat('it''s; \"\\\\ ', char(10), '-- :t 积分😀')",
    };
    let (time, document, raw) = match kind {
        Kind::Sqlite => ("'2025-12-01 00:00:00.123456'", "'{\"n\": 9007199254740993}'", "x'00ff'"),
        Kind::Postgres => {
            ("'2025-12-01 00:00:00.123456+00'", "'{\"n\": 9007199254740993}'", "'\\x00ff'")
        }
        Kind::Mysql => ("'2025-12-01 00:00:00.123456'", "'{\"n\": 9007199254740993}'", "x'00ff'"),
    };
    let first = format!(
        "SELECT count(*) FROM v WHERE big = 9007199254740993 AND small = -1 AND
         num = 12345678901.25 AND real_ = 0.1 AND t = {newline} AND yes AND at_ = {time} AND
         doc = {document} AND raw = {raw}"
    );
    assert_eq!(database.number(&first), 1);
    let second = "SELECT count(*) FROM v WHERE big = -9223372036854775808 AND num = -0.0001 AND
                  NOT yes AND t = '' AND small IS NULL AND real_ IS NULL AND at_ IS NULL AND
                  doc IS NULL AND raw IS NULL";
    assert_eq!(database.number(second), 1);
}

/// Adds up before it writes; refuses batches with an event of account 2 in them, and that event alone.
struct Sums;

#[derive(serde::Deserialize)]
struct Points {
    account_id: i64,
    points: i64,
}

fn add(tx: &mut DbConnection, points: i64) -> Result<Outcome, ApplyError> {
    let sql = format!("UPDATE account SET balance = balance + {points} WHERE id = 1");
    sql_query(sql).execute(tx)?;
    Ok(Outcome::Applied)
}

impl Applier for Sums {
    const EVENT_TYPE: &'static str = "points.awarded";
    const SHARDS: Option<usize> = Some(1);
    type Payload = Points;

    fn apply(
        &self,
        tx: &mut DbConnection,
        _: &EventContext<'_>,
        event: Points,
    ) -> Result<Outcome, ApplyError> {
        match event.account_id {
            2 => Ok(Outcome::Rejected("account 2 is closed".into())),
            _ => add(tx, event.points),
        }
    }

    fn apply_batch(
        &self,
        tx: &mut DbConnection,
        events: Vec<(EventContext<'_>, Points)>,
    ) -> Result<Outcome, ApplyError> {
        assert!(events.len() > 1, "a single event goes to apply");
        add(tx, events.iter().map(|(_, event)| event.points).sum())?;
        match events.iter().any(|(_, event)| event.account_id == 2) {
            true => panic!("one of them is of account 2"),
            false => Ok(Outcome::Applied),
        }
    }
}

async fn an_applier_in_rust_may_take_whole_batches(kind: Kind) {
    let database = Database::new(kind).with_accounts(1);
    let emulator = emulator(&["orders"]);
    let diary = Diary::default();
    let mut bodies: Vec<String> = (0..300).map(|n| points(&format!("evt-{n}"), 1, n)).collect();
    bodies.insert(200, points("closed", 2, 1_000_000));
    send_all(&client(&emulator.endpoint()), "orders", &bodies).await;
    let config = config_text(&database, &emulator.endpoint(), "");
    let service = Service::new(parse_config(&config)).unwrap().register(Sums).unwrap();
    let running = service.observe(diary.observer()).start().await.unwrap();
    until_empty(&emulator, "orders").await;
    running.drain().await;
    assert_eq!((database.balance(1), database.processed()), (299 * 300 / 2, 300));
    assert_eq!(database.held(), ["rejected"]);
    assert!(diary.count("committed") < 200, "it was done by batches");
}
