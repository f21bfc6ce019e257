//! The baseline where there is no pgbench: a transaction an event, on some connections.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use diesel::connection::{Connection as _, SimpleConnection};
use diesel::prelude::*;
use rand::Rng;

#[derive(Args)]
pub struct OneByOneArguments {
    #[arg(long)]
    url: String,
    /// Connections at the same time
    #[arg(long)]
    clients: usize,
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    #[arg(long, default_value_t = 100_000)]
    accounts: i64,
}

diesel::table! {
    account (id) {
        id -> BigInt,
        balance -> BigInt,
    }
}

diesel::table! {
    one_by_one (event_id) {
        event_id -> Text,
        payload_digest -> Binary,
    }
}

/// A transaction: the claim as a plain insert, and the change.
macro_rules! transaction {
    ($connection:expr, $event_id:expr, $account:expr) => {
        $connection.transaction::<_, diesel::result::Error, _>(|connection| {
            diesel::insert_into(one_by_one::table)
                .values((
                    one_by_one::event_id.eq($event_id),
                    one_by_one::payload_digest.eq([7_u8; 32].as_slice()),
                ))
                .execute(connection)?;
            diesel::update(account::table.find($account))
                .set(account::balance.eq(account::balance + 1))
                .execute(connection)
        })
    };
}

/// One connection; its transactions until the time is over.
pub fn work(url: &str, accounts: i64, client: usize, until: Instant, done: &AtomicU64) {
    let mut random = rand::rng();
    let mut connection = Connection::open(url);
    for number in 0_u64.. {
        if Instant::now() > until {
            break;
        }
        let event_id = format!("evt-{client}-{number}");
        connection.transact(&event_id, random.random_range(1..=accounts));
        done.fetch_add(1, Ordering::Relaxed);
    }
}

pub enum Connection {
    Sqlite(SqliteConnection),
    Postgres(PgConnection),
    #[cfg(feature = "mysql")]
    Mysql(MysqlConnection),
}

impl Connection {
    pub fn open(url: &str) -> Self {
        let (scheme, rest) = url.split_once("://").unwrap();
        match scheme {
            "sqlite" => {
                let mut connection = SqliteConnection::establish(rest).unwrap();
                let settings = "PRAGMA busy_timeout = 30000; PRAGMA journal_mode = WAL; \
                                PRAGMA synchronous = FULL";
                connection.batch_execute(settings).unwrap();
                Self::Sqlite(connection)
            }
            #[cfg(feature = "mysql")]
            "mysql" => {
                let mut connection = MysqlConnection::establish(url).unwrap();
                let settings = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED";
                connection.batch_execute(settings).unwrap();
                Self::Mysql(connection)
            }
            _ => Self::Postgres(PgConnection::establish(url).unwrap()),
        }
    }

    pub fn transact(&mut self, event_id: &str, account: i64) {
        let changed = match self {
            // A transaction that begins as a reader fails when it becomes a writer beside another.
            Self::Sqlite(connection) => connection
                .immediate_transaction(|connection| transaction!(connection, event_id, account)),
            Self::Postgres(connection) => transaction!(connection, event_id, account),
            #[cfg(feature = "mysql")]
            Self::Mysql(connection) => transaction!(connection, event_id, account),
        };
        assert_eq!(changed.unwrap(), 1);
    }

    pub fn execute(&mut self, sql: &str) {
        match self {
            Self::Sqlite(connection) => connection.batch_execute(sql),
            Self::Postgres(connection) => connection.batch_execute(sql),
            #[cfg(feature = "mysql")]
            Self::Mysql(connection) => connection.batch_execute(sql),
        }
        .unwrap();
    }

    /// An empty table of claims.
    pub fn prepare(&mut self) {
        self.execute("DROP TABLE IF EXISTS one_by_one");
        self.execute(match self {
            Self::Postgres(_) => {
                "CREATE TABLE one_by_one (event_id text PRIMARY KEY, payload_digest bytea NOT NULL)"
            }
            _ => {
                "CREATE TABLE one_by_one (event_id varchar(128) PRIMARY KEY, payload_digest blob NOT NULL)"
            }
        });
    }
}

pub fn one_by_one(arguments: &OneByOneArguments) {
    Connection::open(&arguments.url).prepare();
    let done = AtomicU64::new(0);
    let start = Instant::now();
    let until = start + Duration::from_secs(arguments.seconds);
    std::thread::scope(|scope| {
        for client in 0..arguments.clients {
            let done = &done;
            scope.spawn(move || work(&arguments.url, arguments.accounts, client, until, done));
        }
    });
    let rate = done.into_inner() as f64 / start.elapsed().as_secs_f64();
    println!(r#"{{"clients":{},"per_second":{rate:.0}}}"#, arguments.clients);
}
