//! What real servers say when something is in the way, and what hapax takes it for: the evidence of
//! `src/store/error_class.rs`.

mod common;

use std::sync::Barrier;
use std::time::Duration;

use common::{Database, Kind, PrivateServer, store_at, store_options};
use diesel::connection::SimpleConnection;
use diesel::result::Error;
use diesel::{RunQueryDsl, sql_query};
use hapax::DbConnection;
use hapax::store::{
    DatabaseErrorClass, Store, StoreOptions, classify, concerns, connection_limit, in_transaction,
};

use DatabaseErrorClass::{Contention, Rejected, Unavailable, Unclear};

on_each_database!(
    a_deadlock_is_contention,
    a_lock_time_out_is_contention,
    a_serialization_failure_is_contention,
    a_cancelled_statement_is_contention,
    a_statement_time_out_may_be_the_events_fault,
    a_killed_connection_is_replaced,
    a_full_disk_is_nobodys_event,
    too_many_connections_are_waited_for,
    a_missing_table_or_column_is_nobodys_event,
    a_missing_right_is_nobodys_event,
    violations_of_the_schema_are_the_events_fault,
);

const LIMIT: Duration = Duration::from_secs(60);

fn run(tx: &mut DbConnection, sql: &str) -> Result<(), Error> {
    sql_query(sql).execute(tx).map(drop)
}

fn transaction(
    store: &Store,
    work: impl FnOnce(&mut DbConnection) -> Result<(), Error>,
) -> Result<(), Error> {
    store.run_here(|connection| in_transaction(connection, LIMIT, work)).unwrap()
}

#[track_caller]
fn assert_class(result: Result<(), Error>, expected: DatabaseErrorClass) {
    let error = result.unwrap_err();
    assert_eq!(classify(&error), expected, "{error}");
}

const FIRST: &str = "UPDATE account SET balance = balance + 1 WHERE id = 1";
const SECOND: &str = "UPDATE account SET balance = balance + 1 WHERE id = 2";

/// SQLite has one writer at a time: the transactions follow each other.
async fn a_deadlock_is_contention(kind: Kind) {
    let database = Database::new(kind).with_accounts(2);
    let store = database.store();
    let both_hold_one = Barrier::new(2);
    let cross = |first: &'static str, second: &'static str| {
        transaction(&store, |tx| {
            run(tx, first)?;
            if kind != Kind::Sqlite {
                both_hold_one.wait();
            }
            run(tx, second)
        })
    };
    let results = std::thread::scope(|scope| {
        let other = scope.spawn(|| cross(SECOND, FIRST));
        [cross(FIRST, SECOND), other.join().unwrap()]
    });
    let committed = results.iter().filter(|result| result.is_ok()).count();
    results.into_iter().filter(Result::is_err).for_each(|failed| assert_class(failed, Contention));
    assert_eq!(committed, if kind == Kind::Sqlite { 2 } else { 1 });
    assert_eq!(database.balance(1), committed as i64);
}

async fn a_lock_time_out_is_contention(kind: Kind) {
    let database = Database::new(kind).with_accounts(1);
    let (holder, waiter) = (database.store(), database.store());
    transaction(&holder, |tx| {
        run(tx, FIRST)?;
        let waited = transaction(&waiter, |tx| {
            match kind {
                Kind::Sqlite => {}
                Kind::Postgres => run(tx, "SET LOCAL lock_timeout = '50ms'")?,
                Kind::Mysql => run(tx, "SET SESSION innodb_lock_wait_timeout = 1")?,
            }
            run(tx, FIRST)
        });
        assert_class(waited, Contention);
        Ok(())
    })
    .unwrap();
    assert_eq!(database.balance(1), 1);
}

/// SQLite's transactions are serial by themselves.
async fn a_serialization_failure_is_contention(kind: Kind) {
    let database = Database::new(kind).with_accounts(1);
    let (reader, writer) = (database.store(), database.store());
    let result = match kind {
        Kind::Sqlite => return,
        Kind::Postgres => transaction(&reader, |tx| {
            run(tx, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")?;
            run(tx, "SELECT * FROM account")?;
            transaction(&writer, |tx| run(tx, FIRST))?;
            run(tx, FIRST)
        }),
        Kind::Mysql => reader
            .run_here(|connection| {
                connection.batch_execute(
                    "SET SESSION innodb_snapshot_isolation = ON;
                     SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ;
                     START TRANSACTION",
                )?;
                run(connection, "SELECT * FROM account")?;
                transaction(&writer, |tx| run(tx, FIRST))?;
                run(connection, FIRST)
            })
            .unwrap(),
    };
    assert_class(result, Contention);
    assert_eq!(database.balance(1), 1);
}

/// A statement that takes 30 s, and runs under the server's eyes all the time.
fn slow(kind: Kind) -> &'static str {
    match kind {
        Kind::Sqlite => panic!("SQLite has no such function"),
        Kind::Postgres => "SELECT pg_sleep(30)",
        // MariaDB takes an interrupted SLEEP for slept out, but not where it reads a table.
        Kind::Mysql => "SELECT count(*) FROM information_schema.tables WHERE SLEEP(30) = 0",
    }
}

/// Ends the slow statement of `database` from outside, once it runs: `how` is PostgreSQL's function or
/// MySQL's command.
fn interrupt(database: &Database, how: &str) {
    let deadline = std::time::Instant::now() + common::DEADLINE;
    let found = loop {
        assert!(std::time::Instant::now() < deadline, "the slow statement does not run");
        let found = match database.kind {
            Kind::Sqlite => panic!("SQLite has no server"),
            Kind::Postgres => database.texts(
                "SELECT pid AS value FROM pg_stat_activity WHERE datname = current_database()
                 AND query LIKE '%pg_sleep(30)%' AND state = 'active' AND pid <> pg_backend_pid()",
            ),
            Kind::Mysql => database.texts(
                "SELECT id AS value FROM information_schema.processlist WHERE db = DATABASE()
                 AND info LIKE '%SLEEP(30)%' AND id <> CONNECTION_ID()",
            ),
        };
        if let [id] = found.as_slice() {
            break id.clone();
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    match database.kind {
        Kind::Mysql => database.execute(&format!("{how} {found}")),
        _ => database.execute(&format!("SELECT {how}({found})")),
    }
}

async fn a_cancelled_statement_is_contention(kind: Kind) {
    let how = match kind {
        Kind::Sqlite => return,
        Kind::Postgres => "pg_cancel_backend",
        Kind::Mysql => "KILL QUERY",
    };
    let database = Database::new(kind);
    let store = database.store();
    std::thread::scope(|scope| {
        let cancelled = scope.spawn(|| transaction(&store, |tx| run(tx, slow(kind))));
        interrupt(&database, how);
        assert_class(cancelled.join().unwrap(), Contention);
    });
}

/// SQLite has no statement time-out.
async fn a_statement_time_out_may_be_the_events_fault(kind: Kind) {
    if kind == Kind::Sqlite {
        return;
    }
    let database = Database::new(kind);
    let limit = Duration::from_millis(50);
    let result = database
        .store()
        .run_here(|connection| in_transaction(connection, limit, |tx| run(tx, slow(kind))))
        .unwrap();
    assert_class(result, Unclear);
}

async fn a_killed_connection_is_replaced(kind: Kind) {
    let how = match kind {
        Kind::Sqlite => return,
        Kind::Postgres => "pg_terminate_backend",
        Kind::Mysql => "KILL",
    };
    let database = Database::new(kind).with_accounts(1);
    let store = Store::new(StoreOptions { pool_size: 1, ..store_options(&database.url) });
    std::thread::scope(|scope| {
        let killed = scope.spawn(|| {
            transaction(&store, |tx| {
                run(tx, FIRST)?;
                run(tx, slow(kind))
            })
        });
        interrupt(&database, how);
        assert_class(killed.join().unwrap(), Unavailable);
    });
    transaction(&store, |tx| run(tx, FIRST)).unwrap();
    assert_eq!(database.balance(1), 1);
}

async fn a_full_disk_is_nobodys_event(kind: Kind) {
    let database = Database::new(kind);
    let store = Store::new(StoreOptions { pool_size: 1, ..store_options(&database.url) });
    let fill = match kind {
        Kind::Sqlite => {
            database.execute("CREATE TABLE t (a BLOB)");
            store.run_here(|c| run(c, "PRAGMA max_page_count = 100")).unwrap().unwrap();
            "INSERT INTO t VALUES (zeroblob(1000000))"
        }
        Kind::Postgres => {
            database.execute("CREATE TABLE t (a CHAR(1000))");
            limit_file_size(&store);
            "INSERT INTO t SELECT 'x' FROM generate_series(1, 40000)"
        }
        Kind::Mysql => {
            store
                .run_here(|c| {
                    run(c, "SET SESSION max_heap_table_size = 16384")?;
                    run(c, "CREATE TABLE t (a CHAR(250)) ENGINE = MEMORY")
                })
                .unwrap()
                .unwrap();
            "INSERT INTO t SELECT seq FROM seq_1_to_10000"
        }
    };
    assert_class(transaction(&store, |tx| run(tx, fill)), Unavailable);
}

/// Files of the server's process for this connection may grow to 20 MB (more than a segment of the
/// log), which to the server is the same failing system call as a full disk.
fn limit_file_size(store: &Store) {
    #[derive(diesel::QueryableByName)]
    struct Row {
        #[diesel(sql_type = diesel::sql_types::Integer)]
        pid: i32,
    }
    let query = |c: &mut _| sql_query("SELECT pg_backend_pid() AS pid").get_result::<Row>(c);
    let pid = store.run_here(query).unwrap().unwrap().pid.to_string();
    let mut command = common::as_user("postgres", "prlimit".into());
    assert!(command.args(["--fsize=20000000", "--pid", &pid]).status().unwrap().success());
}

/// A user of the server's with few rights, and the URL to connect as him; gone with the guard.
struct Guest<'a> {
    database: &'a Database,
    name: String,
    url: String,
}

impl<'a> Guest<'a> {
    fn of(database: &'a Database, most_connections: u32) -> Self {
        let name = format!("g_{}", database.url.rsplit_once('/').unwrap().1);
        let (scheme, rest) = database.url.split_once("://").unwrap();
        let rest = rest.split_once('@').unwrap().1;
        let url = format!("{scheme}://{name}:p@{rest}");
        match database.kind {
            Kind::Mysql => {
                database.execute(&format!(
                    "CREATE USER {name}@'%' IDENTIFIED BY 'p'
                     WITH MAX_USER_CONNECTIONS {most_connections}"
                ));
                database.execute(&format!("GRANT SELECT ON account TO {name}@'%'"));
            }
            _ => {
                database.execute(&format!(
                    "CREATE ROLE {name} LOGIN PASSWORD 'p' CONNECTION LIMIT {most_connections}"
                ));
                database.execute(&format!("GRANT SELECT ON account TO {name}"));
            }
        }
        Self { database, name, url }
    }
}

impl Drop for Guest<'_> {
    fn drop(&mut self) {
        let name = &self.name;
        match self.database.kind {
            Kind::Mysql => self.database.execute(&format!("DROP USER {name}@'%'")),
            _ => {
                self.database.execute(&format!("DROP OWNED BY {name}"));
                self.database.execute(&format!("DROP ROLE {name}"));
            }
        }
    }
}

async fn too_many_connections_are_waited_for(kind: Kind) {
    if kind == Kind::Sqlite {
        return;
    }
    let database = Database::new(kind).with_accounts(1);
    let guest = Guest::of(&database, 1);
    let connect_timeout = Duration::from_secs(1);
    let patient = store_at(&guest.url);
    let hasty = Store::new(StoreOptions { connect_timeout, ..store_options(&guest.url) });
    patient
        .run_here(|connection| {
            assert_eq!(connection_limit(connection).unwrap(), Some(1));
            let refused = hasty.run_here(|_| ()).unwrap_err().to_string();
            assert!(refused.contains("connections"), "{refused}");
            assert!(!refused.contains(":p@"), "{refused}");
        })
        .unwrap();
    drop(patient);
    let patient = store_at(&guest.url);
    patient.run_here(|connection| run(connection, "SELECT 1")).unwrap().unwrap();
}

async fn a_missing_table_or_column_is_nobodys_event(kind: Kind) {
    let database = Database::new(kind).with_accounts(1);
    let store = database.store();
    for sql in ["INSERT INTO nowhere VALUES (1)", "UPDATE account SET missing = 1"] {
        assert_class(transaction(&store, |tx| run(tx, sql)), Unavailable);
    }
}

async fn a_missing_right_is_nobodys_event(kind: Kind) {
    let database = Database::new(kind).with_accounts(1);
    if kind == Kind::Sqlite {
        let store = Store::new(StoreOptions { pool_size: 1, ..store_options(&database.url) });
        store.run_here(|c| run(c, "PRAGMA query_only = ON")).unwrap().unwrap();
        return assert_class(transaction(&store, |tx| run(tx, FIRST)), Unavailable);
    }
    let guest = Guest::of(&database, 4);
    let store = store_at(&guest.url);
    assert_class(transaction(&store, |tx| run(tx, FIRST)), Unavailable);
    drop(store);
}

async fn violations_of_the_schema_are_the_events_fault(kind: Kind) {
    let database = Database::new(kind).with_accounts(1);
    database.execute("CREATE TABLE c (n BIGINT NOT NULL CHECK (n > 0))");
    database.execute(
        "CREATE TABLE child (parent BIGINT NOT NULL, FOREIGN KEY (parent) REFERENCES account (id))",
    );
    let store = database.store();
    for sql in [
        "INSERT INTO account VALUES (1, 0)",
        "INSERT INTO account VALUES (2, NULL)",
        "INSERT INTO c VALUES (0)",
        "INSERT INTO child VALUES (9)",
    ] {
        assert_class(transaction(&store, |tx| run(tx, sql)), Rejected);
    }
}

#[test]
fn settings_that_break_a_promise_are_named() {
    let database = Database::new(Kind::Postgres);
    let found = |store: &Store| store.run_here(concerns).unwrap().unwrap();
    assert_eq!(found(&database.store()), Vec::<String>::new());
    let name = database.url.rsplit_once('/').unwrap().1;
    database.execute(&format!("ALTER DATABASE {name} SET synchronous_commit = off"));
    let concern = found(&database.store()).remove(0);
    assert!(concern.starts_with("synchronous_commit is off"), "{concern}");
    let database = Database::new(Kind::Mysql).with_accounts(1);
    assert_eq!(found(&database.store()), Vec::<String>::new());
    database.execute("CREATE TABLE log (n INT) ENGINE = MyISAM");
    let concern = found(&database.store()).remove(0);
    assert!(concern.starts_with("the table log has the engine MyISAM"), "{concern}");
}

#[test]
fn a_standby_is_refused_until_it_is_promoted() {
    let server = PrivateServer::start_new(Kind::Postgres);
    let database = Database::on(&server).with_accounts(1);
    let connect_timeout = Duration::from_secs(1);
    let store = Store::new(StoreOptions { connect_timeout, ..store_options(&database.url) });
    transaction(&store, |tx| run(tx, FIRST)).unwrap();
    server.stop();
    server.become_standby();
    server.start();
    let refused = store.run_here(|_| ()).unwrap_err().to_string();
    assert!(refused.contains("cannot set transaction read-write mode"), "{refused}");
    server.promote();
    transaction(&store, |tx| run(tx, FIRST)).unwrap();
    assert_eq!(database.balance(1), 2);
}

#[test]
fn a_mysql_server_that_is_read_only_or_not_strict_is_refused() {
    let server = PrivateServer::start_new(Kind::Mysql);
    let database = Database::on(&server).with_accounts(1);
    let connect_timeout = Duration::from_secs(1);
    let store = Store::new(StoreOptions { connect_timeout, ..store_options(&database.url) });
    let root = store_at(&server.url());
    root.run_here(|root| {
        run(root, "SET GLOBAL read_only = ON").unwrap();
        let refused = store.run_here(|_| ()).unwrap_err().to_string();
        assert!(refused.contains("read-only"), "{refused}");
        run(root, "SET GLOBAL read_only = OFF").unwrap();
        transaction(&store, |tx| run(tx, FIRST)).unwrap();
        for (mode, word) in [("", "not strict"), ("STRICT_ALL_TABLES,ANSI_QUOTES", "ANSI_QUOTES")] {
            run(root, &format!("SET GLOBAL sql_mode = '{mode}'")).unwrap();
            let fresh =
                Store::new(StoreOptions { connect_timeout, ..store_options(&database.url) });
            let refused = fresh.run_here(|_| ()).unwrap_err().to_string();
            assert!(refused.contains(word), "{refused}");
        }
    })
    .unwrap();
    assert_eq!(database.kind, Kind::Mysql);
}
