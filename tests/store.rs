//! The store against real databases.

mod common;

use std::time::Duration;

use common::{Database, Kind, store_options};
use diesel::result::{DatabaseErrorKind, Error};
use hapax::store::{
    Claim, DatabaseErrorClass, HoldReason, Horizon, JsonText, NewClaim, NewHeldMessage, SqlValue,
    Statement, Store, StoreOptions, advance_horizon, claim, classify, hold, horizon,
    in_transaction, migrate, purge_claims,
};

on_each_database!(
    a_claim_is_fresh_once_and_then_known_by_its_digest,
    claims_of_any_number_are_answered_one_by_one,
    a_rolled_back_claim_is_fresh_again,
    a_transaction_that_ended_within_is_not_taken_for_committed,
    ids_are_told_apart_byte_by_byte,
    a_claim_that_a_purge_made_fresh_sees_the_horizon,
    only_the_claims_own_key_counts_as_known,
    instances_that_start_at_once_migrate_once,
    a_message_held_again_is_one_row,
    parameters_of_every_type_arrive_exactly,
    a_connection_that_saw_a_panic_is_not_used_again,
);

const LIMIT: Duration = Duration::from_secs(60);
const DIGEST: [u8; 32] = [7; 32];

fn new_claim(event_id: &str) -> NewClaim<'_> {
    let (event_type, message_id) = ("t", "Msg-1");
    let (occurred_at, event_time, payload) = (None, None, None);
    NewClaim {
        event_id,
        event_type,
        payload_digest: &DIGEST,
        message_id,
        occurred_at,
        event_time,
        payload,
    }
}

fn migrated(kind: Kind) -> (Database, Store) {
    let database = Database::new(kind);
    let store = database.store();
    store.run_here(migrate).unwrap().unwrap();
    (database, store)
}

fn claim_now(store: &Store, consumer: &str, ids: &[&str]) -> Result<Vec<Claim>, Error> {
    claim_guessing(store, consumer, ids, false)
}

fn claim_guessing(
    store: &Store,
    consumer: &str,
    ids: &[&str],
    expects_known: bool,
) -> Result<Vec<Claim>, Error> {
    let claims: Vec<NewClaim<'_>> = ids.iter().map(|id| new_claim(id)).collect();
    let work = |connection: &mut _| {
        in_transaction(connection, LIMIT, |tx| claim(tx, consumer, &claims, expects_known))
    };
    store.run_here(work).unwrap()
}

async fn a_claim_is_fresh_once_and_then_known_by_its_digest(kind: Kind) {
    let (_database, store) = migrated(kind);
    let known = Claim::Known(DIGEST.to_vec());
    for (guess, consumer) in [(false, "c"), (true, "d")] {
        let claim = |ids: &[&str]| claim_guessing(&store, consumer, ids, guess).unwrap();
        assert_eq!(claim(&["b", "a"]), [Claim::Fresh, Claim::Fresh], "{guess}");
        assert_eq!(claim(&["a", "c", "b"]), [known.clone(), Claim::Fresh, known.clone()]);
        assert_eq!(claim(&["b", "a"]), [known.clone(), known.clone()]);
    }
    assert_eq!(claim_now(&store, "another", &["a"]).unwrap(), [Claim::Fresh]);
}

async fn claims_of_any_number_are_answered_one_by_one(kind: Kind) {
    let (_database, store) = migrated(kind);
    let mut claimed = 0;
    // Twice, for a statement may stay prepared.
    for count in [1, 2, 3, 5, 8, 64, 100, 256, 257].into_iter().flat_map(|count| [count, count]) {
        let fresh: Vec<String> = (claimed..claimed + count).map(|n| format!("evt-{n}")).collect();
        let ask = |ids: &[String]| {
            let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
            claim_now(&store, "c", &ids).unwrap()
        };
        assert_eq!(ask(&fresh), vec![Claim::Fresh; count], "{count}");
        let others = [format!("other-{claimed}")];
        let answers = ask(&[fresh.as_slice(), &others].concat());
        let known = vec![Claim::Known(DIGEST.to_vec()); count];
        assert_eq!(answers, [known, vec![Claim::Fresh]].concat(), "{count}");
        claimed += count;
    }
}

async fn a_rolled_back_claim_is_fresh_again(kind: Kind) {
    let (database, store) = migrated(kind);
    let failed: Result<(), Error> = store
        .run_here(|connection| {
            in_transaction(connection, LIMIT, |tx| {
                claim(tx, "c", &[new_claim("a")], false)?;
                Err(Error::RollbackTransaction)
            })
        })
        .unwrap();
    assert!(failed.is_err());
    assert_eq!(database.processed(), 0);
    assert_eq!(claim_now(&store, "c", &["a"]).unwrap(), [Claim::Fresh]);
}

/// The purge comes between the begin of the transaction and its claim. SQLite's begin locks it out.
async fn a_claim_that_a_purge_made_fresh_sees_the_horizon(kind: Kind) {
    if kind == Kind::Sqlite {
        return;
    }
    let (_database, store) = migrated(kind);
    let at = |day: &str| format!("2025-{day}T00:00:00").parse::<chrono::NaiveDateTime>().unwrap();
    let old = NewClaim { event_time: Some(at("11-01")), ..new_claim("old") };
    let claim_old = |tx: &mut _| claim(tx, "c", &[old], false);
    store.run_here(|c| in_transaction(c, LIMIT, claim_old)).unwrap().unwrap();
    let (event_type, event_time) = ("t".to_owned(), "occurred_at".to_owned());
    let to = Horizon { event_type, event_time, horizon: at("12-01") };
    let forget = || {
        let advance = |tx: &mut _| advance_horizon(tx, "c", &to).map(drop);
        store.run_here(|c| in_transaction(c, LIMIT, advance)).unwrap().unwrap();
        let purge = |tx: &mut _| purge_claims(tx, "c", "t", to.horizon, 10);
        assert_eq!(store.run_here(|c| in_transaction(c, LIMIT, purge)).unwrap().unwrap(), 1);
    };
    let (before, answer, after) = store
        .run_here(|connection| {
            in_transaction(connection, LIMIT, |tx| {
                let before = horizon(tx, "c", "t")?;
                forget();
                let answer = claim(tx, "c", &[old], false)?;
                Ok::<_, Error>((before, answer, horizon(tx, "c", "t")?))
            })
        })
        .unwrap()
        .unwrap();
    assert_eq!(
        (before, answer.as_slice()),
        (None, &[Claim::Fresh][..]),
        "a check before misses it"
    );
    assert_eq!(after, Some(to.horizon));
}

/// As an applier's that swallows a database error and goes on.
async fn a_transaction_that_ended_within_is_not_taken_for_committed(kind: Kind) {
    use diesel::RunQueryDsl;
    let (database, store) = migrated(kind);
    database.execute("CREATE TABLE account (id BIGINT PRIMARY KEY, balance BIGINT NOT NULL)");
    // What ends a transaction from within: an error on PostgreSQL, DDL (or a deadlock) on MySQL, on
    // SQLite only the statement itself.
    let ending = match kind {
        Kind::Sqlite => "ROLLBACK",
        Kind::Postgres => "SELECT 1 FROM nowhere",
        Kind::Mysql => "ROLLBACK",
    };
    let result: Result<(), Error> = store
        .run_here(|connection| {
            in_transaction(connection, LIMIT, |tx| {
                claim(tx, "c", &[new_claim("a")], false)?;
                _ = diesel::sql_query(ending).execute(tx);
                if kind != Kind::Sqlite {
                    _ = diesel::sql_query("INSERT INTO account VALUES (1, 1)").execute(tx);
                }
                Ok(())
            })
        })
        .unwrap();
    let error = result.unwrap_err();
    assert_ne!(classify(&error), DatabaseErrorClass::Rejected, "{error}");
    assert_eq!(database.processed(), 0);
    assert_eq!(database.number("SELECT count(*) FROM account"), 0);
    assert_eq!(claim_now(&store, "c", &["a"]).unwrap(), [Claim::Fresh], "the store goes on");
}

async fn ids_are_told_apart_byte_by_byte(kind: Kind) {
    let (database, store) = migrated(kind);
    let ids = ["a", "A", "a ", " a", "á", "a\u{301}", "é", "e", "😀", "😁", "ß", "ss", "\u{1}"];
    assert_eq!(claim_now(&store, "c", &ids).unwrap(), vec![Claim::Fresh; ids.len()]);
    let known = vec![Claim::Known(DIGEST.to_vec()); ids.len()];
    assert_eq!(claim_now(&store, "c", &ids).unwrap(), known);
    assert_eq!(database.processed(), ids.len() as i64);
}

async fn only_the_claims_own_key_counts_as_known(kind: Kind) {
    let (database, store) = migrated(kind);
    database.execute("CREATE UNIQUE INDEX another_key ON processed_event (message_id)");
    claim_now(&store, "c", &["a"]).unwrap();
    let error = claim_now(&store, "c", &["b"]).unwrap_err();
    assert!(
        matches!(error, Error::DatabaseError(DatabaseErrorKind::UniqueViolation, _)),
        "{error}"
    );
    assert_eq!(database.processed(), 1);
}

async fn instances_that_start_at_once_migrate_once(kind: Kind) {
    let database = Database::new(kind);
    let threads: Vec<_> = (0..6)
        .map(|_| {
            let store = Store::new(StoreOptions { pool_size: 1, ..store_options(&database.url) });
            std::thread::spawn(move || store.run_here(migrate).unwrap().unwrap().applied.len())
        })
        .collect();
    let applied: Vec<usize> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    let all = applied.iter().max().unwrap();
    assert!(*all > 0);
    assert_eq!(applied.iter().sum::<usize>(), *all, "one instance applied all: {applied:?}");
}

async fn a_message_held_again_is_one_row(kind: Kind) {
    let (database, store) = migrated(kind);
    let message = NewHeldMessage {
        queue: "q".into(),
        hold_key: DIGEST.to_vec(),
        message_id: "Msg-1".into(),
        event_id: None,
        event_type: None,
        reason: HoldReason::Malformed,
        next_retry_at: None,
        detail: "with \0 inside".into(),
        body: vec![0, 255, 39],
        enqueued_at: None,
    };
    let copy = NewHeldMessage { message_id: "Msg-2".into(), ..message.clone() };
    for held in [&message, &message, &copy] {
        store.run_here(|connection| hold(connection, "c", held)).unwrap().unwrap();
    }
    assert_eq!(database.held(), ["malformed"]);
    assert_eq!(database.number("SELECT copies FROM held_message"), 2);
    let bytes = match kind {
        Kind::Sqlite => "SELECT hex(body) AS value FROM held_message",
        Kind::Postgres => "SELECT upper(encode(body, 'hex')) AS value FROM held_message",
        Kind::Mysql => "SELECT hex(body) AS value FROM held_message",
    };
    assert_eq!(database.texts(bytes), ["00FF27"]);
}

async fn parameters_of_every_type_arrive_exactly(kind: Kind) {
    let (database, store) = migrated(kind);
    let (bytes, json, double, timestamp) = match kind {
        Kind::Sqlite => ("BLOB", "TEXT", "REAL", "TEXT"),
        Kind::Postgres => ("BYTEA", "JSONB", "DOUBLE PRECISION", "TIMESTAMPTZ"),
        Kind::Mysql => ("BLOB", "JSON", "DOUBLE", "TIMESTAMP(6)"),
    };
    database.execute(&format!(
        "CREATE TABLE v (big BIGINT, small INTEGER, num NUMERIC(30, 4), real_ {double}, t TEXT,
                         yes BOOLEAN, at_ {timestamp}, doc {json}, raw {bytes})"
    ));
    let sql = "INSERT INTO v VALUES (:big, :small, :num, :real, :t, :yes, :at, :doc, :raw)";
    let at = chrono::DateTime::parse_from_rfc3339("2025-12-01T08:00:00.123456+08:00").unwrap();
    let value = |name: &str| match name {
        "big" => SqlValue::Bigint(Some(9_007_199_254_740_993)),
        "small" => SqlValue::Integer(Some(-1)),
        "num" => SqlValue::Numeric(Some("12345678901.25".parse().unwrap())),
        "real" => SqlValue::Double(Some(0.1)),
        "t" => SqlValue::Text(Some("it's; -- :t".into())),
        "yes" => SqlValue::Boolean(Some(true)),
        "at" => SqlValue::Timestamp(Some(at.to_utc())),
        "doc" => SqlValue::Json(Some(JsonText(r#"{"n": 9007199254740993}"#.into()))),
        _ => SqlValue::Bytes(Some(vec![0, 255])),
    };
    let values: std::collections::HashMap<_, _> =
        ["big", "small", "num", "real", "t", "yes", "at", "doc", "raw"]
            .map(|n| (n, value(n)))
            .into();
    let backend = store.backend();
    let statement = Statement::parse(sql, backend).unwrap();
    for _ in 0..2 {
        let run = |connection: &mut _| statement.execute(connection, |name| &values[name]);
        assert_eq!(store.run_here(run).unwrap().unwrap(), 1);
    }
    let check = match kind {
        Kind::Sqlite => {
            "SELECT count(*) FROM v WHERE big = 9007199254740993 AND small = -1 AND
             num = 12345678901.25 AND real_ = 0.1 AND t = 'it''s; -- :t' AND yes = 1 AND
             at_ = '2025-12-01 00:00:00.123456' AND doc = '{\"n\": 9007199254740993}' AND
             raw = x'00ff'"
        }
        Kind::Postgres => {
            "SELECT count(*) FROM v WHERE big = 9007199254740993 AND small = -1 AND
             num = 12345678901.25 AND real_ = 0.1 AND t = 'it''s; -- :t' AND yes AND
             at_ = '2025-12-01 00:00:00.123456+00' AND doc = '{\"n\": 9007199254740993}' AND
             raw = '\\x00ff'"
        }
        Kind::Mysql => {
            "SELECT count(*) FROM v WHERE big = 9007199254740993 AND small = -1 AND
             num = 12345678901.25 AND real_ = 0.1 AND t = 'it''s; -- :t' AND yes = 1 AND
             at_ = '2025-12-01 00:00:00.123456' AND doc = '{\"n\": 9007199254740993}' AND
             raw = x'00ff'"
        }
    };
    assert_eq!(database.number(check), 2);
    let null = Statement::parse("INSERT INTO v (doc, num) VALUES (:doc, :num)", backend).unwrap();
    let nulls = |name: &str| match name {
        "doc" => &SqlValue::Json(None),
        _ => &SqlValue::Numeric(None),
    };
    store.run_here(|connection| null.execute(connection, nulls)).unwrap().unwrap();
    assert_eq!(database.number("SELECT count(*) FROM v WHERE doc IS NULL AND num IS NULL"), 1);
}

async fn a_connection_that_saw_a_panic_is_not_used_again(kind: Kind) {
    let database = Database::new(kind).with_accounts(1);
    let store = Store::new(StoreOptions { pool_size: 1, ..store_options(&database.url) });
    let result = store
        .run(|connection| {
            in_transaction(connection, LIMIT, |tx| -> Result<(), Error> {
                diesel::RunQueryDsl::execute(
                    diesel::sql_query("UPDATE account SET balance = 99"),
                    tx,
                )?;
                panic!("in the middle")
            })
        })
        .await;
    assert!(result.unwrap_err().to_string().contains("in the middle"));
    let next =
        store.run(|connection| in_transaction(connection, LIMIT, |_| Ok::<_, Error>(()))).await;
    next.unwrap().unwrap();
    assert_eq!(database.balance(1), 0);
}
