//! What the tests share: real databases, the real emulator, real processes.
#![allow(dead_code, unused_imports)]

mod server;
mod wire;

use std::future::Future;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use diesel::prelude::*;
use diesel::sql_types::{BigInt, Text};
use hapax::cmq::signature::SignatureMethod;
use hapax::cmq::{Client, ClientOptions, Credentials, Endpoint};
use hapax::config::Config;
use hapax::emulator::{Emulator, EmulatorOptions};
use hapax::pipeline::{Observation, Observer};
use hapax::store::{Store, StoreOptions};
pub use server::{PrivateServer, as_user};
pub use wire::{Cut, Wire};

/// Longest wait for anything that a test waits for.
pub const DEADLINE: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Sqlite,
    Postgres,
    Mysql,
}

#[derive(QueryableByName)]
struct Number {
    #[diesel(sql_type = BigInt)]
    value: i64,
}

/// An empty database of a test's own; it is gone afterwards.
pub struct Database {
    pub kind: Kind,
    pub url: String,
    pub folder: tempfile::TempDir,
    /// Of a database that has to be dropped.
    name: Option<String>,
}

impl Database {
    pub fn new(kind: Kind) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let folder = tempfile::tempdir().unwrap();
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("hapax_{}_{number}", std::process::id());
        let url = match kind {
            Kind::Sqlite => format!("sqlite://{}", folder.path().join("test.db").display()),
            Kind::Postgres => {
                execute(&store_at(&postgres_url()), &format!("CREATE DATABASE {name}"));
                format!("{}/{name}", server_of(&postgres_url()))
            }
            Kind::Mysql => {
                execute(&store_at(&mysql_url()), &format!("CREATE DATABASE {name}"));
                format!("{}/{name}", server_of(&mysql_url()))
            }
        };
        Self { kind, url, folder, name: Some(name) }
    }

    /// The only database of a server of its own.
    pub fn on(server: &PrivateServer) -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { kind: server.kind(), url: server.url(), folder, name: None }
    }

    pub fn store(&self) -> Store {
        store_at(&self.url)
    }

    /// The account table with accounts 1 to `accounts`, each with balance 0.
    /// The table appears with its rows: a service that runs meanwhile must not find it without them.
    pub fn with_accounts(self, accounts: i64) -> Self {
        let columns = "id BIGINT PRIMARY KEY, balance BIGINT NOT NULL";
        self.execute(&format!("CREATE TABLE account_in_the_making ({columns})"));
        let rows: Vec<String> = (1..=accounts).map(|id| format!("({id}, 0)")).collect();
        self.execute(&format!("INSERT INTO account_in_the_making VALUES {}", rows.join(", ")));
        self.execute("ALTER TABLE account_in_the_making RENAME TO account");
        self
    }

    pub fn execute(&self, sql: &str) {
        execute(&self.store(), sql);
    }

    pub fn number(&self, sql: &str) -> i64 {
        let integer = match self.kind {
            Kind::Mysql => "SIGNED",
            Kind::Sqlite | Kind::Postgres => "BIGINT",
        };
        let sql = format!("SELECT CAST(({sql}) AS {integer}) AS value");
        let query = |connection: &mut hapax::DbConnection| {
            diesel::sql_query(&sql).get_result::<Number>(connection).unwrap().value
        };
        self.store().run_here(query).unwrap()
    }

    pub fn texts(&self, sql: &str) -> Vec<String> {
        #[derive(QueryableByName)]
        struct Row {
            #[diesel(sql_type = Text)]
            value: String,
        }
        let text = match self.kind {
            Kind::Mysql => "CHAR",
            Kind::Sqlite | Kind::Postgres => "TEXT",
        };
        let sql = format!("SELECT CAST(value AS {text}) AS value FROM ({sql}) AS found");
        let query = |connection: &mut hapax::DbConnection| {
            diesel::sql_query(&sql).load::<Row>(connection).unwrap()
        };
        self.store().run_here(query).unwrap().into_iter().map(|row| row.value).collect()
    }

    /// As [`Self::processed`]; nothing while the server is away.
    pub fn try_processed(&self) -> Option<i64> {
        let connect_timeout = Duration::from_secs(1);
        let store = Store::new(StoreOptions { connect_timeout, ..store_options(&self.url) });
        let count = |connection: &mut hapax::DbConnection| {
            let query = diesel::sql_query("SELECT count(*) AS value FROM processed_event");
            query.get_result::<Number>(connection).ok().map(|row| row.value)
        };
        store.run_here(count).ok().flatten()
    }

    pub fn processed(&self) -> i64 {
        self.number("SELECT count(*) FROM processed_event")
    }

    pub fn balance(&self, account: i64) -> i64 {
        self.number(&format!("SELECT balance FROM account WHERE id = {account}"))
    }

    /// `reason` of each held message, oldest first.
    pub fn held(&self) -> Vec<String> {
        self.texts("SELECT reason AS value FROM held_message ORDER BY id")
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let Some(name) = &self.name else { return };
        match self.kind {
            Kind::Sqlite => {}
            Kind::Postgres => {
                let sql = format!("DROP DATABASE {name} WITH (FORCE)");
                execute(&store_at(&postgres_url()), &sql);
            }
            Kind::Mysql => execute(&store_at(&mysql_url()), &format!("DROP DATABASE {name}")),
        }
    }
}

fn postgres_url() -> String {
    from_environment("TEST_POSTGRES_URL")
}

fn mysql_url() -> String {
    from_environment("TEST_MYSQL_URL")
}

/// A variable that tests/run sets.
pub fn from_environment(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| {
        panic!("{name} is not set: run the tests with tests/run, which starts the servers")
    })
}

fn server_of(url: &str) -> &str {
    url.rsplit_once('/').unwrap().0
}

pub fn store_at(url: &str) -> Store {
    Store::new(store_options(url))
}

pub fn store_options(url: &str) -> StoreOptions {
    StoreOptions {
        url: url.parse().unwrap(),
        pool_size: 4,
        connect_timeout: Duration::from_secs(10),
        statement_timeout: Duration::from_secs(60),
        prepared_statements: true,
    }
}

fn execute(store: &Store, sql: &str) {
    let run =
        |connection: &mut hapax::DbConnection| diesel::sql_query(sql).execute(connection).unwrap();
    store.run_here(run).unwrap();
}

/// Ends a random connection to `database`, if it has one; the killer's own store is spared.
pub fn kill_one(killer: &Store, kind: Kind) -> bool {
    #[derive(QueryableByName)]
    struct Row {
        #[diesel(sql_type = diesel::sql_types::BigInt)]
        id: i64,
    }
    let victims = match kind {
        Kind::Sqlite => panic!("SQLite has no connections to kill"),
        Kind::Postgres => {
            "SELECT pid::bigint AS id FROM pg_stat_activity WHERE datname = current_database()
             AND pid <> pg_backend_pid() ORDER BY random() LIMIT 1"
        }
        Kind::Mysql => {
            "SELECT CAST(id AS SIGNED) AS id FROM information_schema.processlist
             WHERE db = DATABASE() AND id <> CONNECTION_ID() ORDER BY rand() LIMIT 1"
        }
    };
    let kill = |connection: &mut hapax::DbConnection| {
        let Some(row) = diesel::sql_query(victims).load::<Row>(connection).unwrap().pop() else {
            return false;
        };
        let sql = match kind {
            Kind::Mysql => format!("KILL {}", row.id),
            _ => format!("SELECT pg_terminate_backend({})", row.id),
        };
        // It may be gone by itself.
        diesel::sql_query(sql).execute(connection).is_ok()
    };
    killer.run_here(kill).unwrap()
}

/// Makes a test of each function on each database, in a module a backend.
#[macro_export]
macro_rules! on_each_database {
    ($($name:ident),* $(,)?) => {
        mod sqlite {
            $(#[test] fn $name() { $crate::common::block_on(super::$name($crate::common::Kind::Sqlite)) })*
        }
        mod postgres {
            $(#[test] fn $name() { $crate::common::block_on(super::$name($crate::common::Kind::Postgres)) })*
        }
        mod mysql {
            $(#[test] fn $name() { $crate::common::block_on(super::$name($crate::common::Kind::Mysql)) })*
        }
    };
}

pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    actix::System::new().block_on(future)
}

/// Polls until `condition` holds; fails the test with `what` after [`DEADLINE`].
pub async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < DEADLINE, "not within {DEADLINE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

pub const SECRET_ID: &str = "AKIDtest";
pub const SECRET_KEY: &str = "test-secret-key";

pub fn credentials() -> Credentials {
    Credentials::new(SECRET_ID.into(), SECRET_KEY.to_owned().into(), None)
}

/// An emulator that checks signatures, with queues as on the command line.
pub fn emulator(queues: &[&str]) -> Emulator {
    Emulator::start(EmulatorOptions {
        listen: ([127, 0, 0, 1], 0).into(),
        credentials: Some(credentials()),
        queues: queues.iter().map(|queue| queue.parse().unwrap()).collect(),
        topics: Vec::new(),
    })
    .unwrap()
}

pub fn client(endpoint: &str) -> Client {
    client_with(endpoint, credentials(), SignatureMethod::default())
}

pub fn client_with(endpoint: &str, credentials: Credentials, method: SignatureMethod) -> Client {
    let options = ClientOptions { credentials: credentials.into(), signature_method: method };
    Client::new(Endpoint::parse(endpoint).unwrap(), options).unwrap()
}

/// How many messages a queue still has, in whatever state.
pub fn left_in(emulator: &Emulator, queue: &str) -> usize {
    emulator.with_broker(|broker, now| {
        let counts = broker.queue(queue).unwrap().queue.counts(now);
        counts.active + counts.inactive + counts.delayed
    })
}

pub async fn until_empty(emulator: &Emulator, queue: &str) {
    eventually("the queue is empty", || left_in(emulator, queue) == 0).await;
}

/// A configuration of the queue `orders` and one applier that adds points to an account.
pub fn config_text(database: &Database, endpoint: &str, more: &str) -> String {
    format!(
        r#"
        consumer = "points-service"
        [database]
        url = "{}"
        [credentials]
        secret_id = "{SECRET_ID}"
        secret_key = "{SECRET_KEY}"
        [[queue]]
        name = "orders"
        endpoint = "{endpoint}"
        polling_wait_seconds = 1
        {more}
        "#,
        database.url
    )
}

pub const POINTS_APPLIER: &str = r#"
        [[applier]]
        event_type = "points.awarded"
        [applier.parameters]
        account_id = { pointer = "/account_id", type = "bigint" }
        points = { pointer = "/points", type = "bigint" }
        [[applier.statement]]
        sql = "UPDATE account SET balance = balance + :points WHERE id = :account_id"
        rows = 1
"#;

pub fn parse_config(text: &str) -> Config {
    Config::parse(Path::new("test.toml"), text, std::iter::empty()).unwrap()
}

pub fn points(event_id: &str, account: i64, points: i64) -> String {
    format!(
        r#"{{"event_id":"{event_id}","event_type":"points.awarded","payload":{{"account_id":{account},"points":{points}}}}}"#
    )
}

pub async fn send_all(client: &Client, queue: &str, bodies: &[String]) {
    let bodies: Vec<&str> = bodies.iter().map(String::as_str).collect();
    for batch in bodies.chunks(16) {
        client.batch_send_message(queue, batch, 0).await.unwrap();
    }
}

/// Remembers observations as texts like `applied evt-1`.
#[derive(Clone, Default)]
pub struct Diary(Arc<Mutex<Vec<String>>>);

impl Diary {
    pub fn observer(&self) -> Observer {
        let entries = self.0.clone();
        Arc::new(move |observation| entries.lock().unwrap().push(text_of(observation)))
    }

    pub fn entries(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    pub fn count(&self, start: &str) -> usize {
        self.entries().iter().filter(|entry| entry.starts_with(start)).count()
    }
}

fn text_of(observation: &Observation<'_>) -> String {
    match observation {
        Observation::Applied { event_id, .. } => format!("applied {event_id}"),
        Observation::Duplicate { event_id, .. } => format!("duplicate {event_id}"),
        Observation::Failed { event_id, reason, .. } => format!("failed {event_id}: {reason}"),
        Observation::Held { reason, detail, .. } => format!("held {}: {detail}", reason.as_str()),
        Observation::Dropped { message_id, why, .. } => format!("dropped {message_id}: {why}"),
        Observation::Deleted { message_id, .. } => format!("deleted {message_id}"),
        Observation::NotDeleted { message_id, why, .. } => {
            format!("not deleted {message_id}: {why}")
        }
        Observation::Polled { received, .. } => format!("polled {received}"),
        Observation::PollFailed { reason, .. } => format!("poll failed: {reason}"),
        Observation::Committed { events, .. } => format!("committed {events}"),
        Observation::DeleteFailed { reason, .. } => format!("delete failed: {reason}"),
        Observation::HeldRetried { outcome } => format!("held retried: {outcome}"),
        Observation::HeldCounted { counts } => format!("held counted: {}", counts.len()),
        Observation::Purged { event_type, claims, .. } => format!("purged {event_type}: {claims}"),
    }
}

/// A hapax process; it is killed when the test ends.
pub struct Process {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
}

pub fn hapax() -> Command {
    clean(Command::new(env!("CARGO_BIN_EXE_hapax")))
}

/// Without the variables that would change what hapax does.
pub fn clean(mut command: Command) -> Command {
    for (name, _) in std::env::vars() {
        if name.starts_with("HAPAX_") || name.starts_with("TENCENTCLOUD_") {
            command.env_remove(name);
        }
    }
    command
}

/// A binary of `examples/`, built by `cargo test`.
pub fn example(name: &str) -> Command {
    let folder = PathBuf::from(env!("CARGO_BIN_EXE_hapax")).parent().unwrap().join("examples");
    clean(Command::new(folder.join(name)))
}

impl Process {
    pub fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines: Arc<Mutex<Vec<String>>> = Arc::default();
        let output: [Box<dyn std::io::Read + Send>; 2] =
            [Box::new(child.stdout.take().unwrap()), Box::new(child.stderr.take().unwrap())];
        for stream in output {
            let lines = lines.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    lines.lock().unwrap().push(line);
                }
            });
        }
        Self { child, lines }
    }

    pub fn output(&self) -> String {
        self.lines.lock().unwrap().join("\n")
    }

    pub async fn until_says(&self, text: &str) {
        eventually(&format!("{text:?} in {}", self.output()), || self.output().contains(text))
            .await;
    }

    /// Memory in use, in KiB.
    pub fn resident_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    pub fn signal(&self, signal: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
    }

    /// Waits for the end and returns the exit code.
    pub async fn ended(&mut self) -> Option<i32> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(start.elapsed() < DEADLINE, "still running: {}", self.output());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// Runs a command to its end: exit code, standard output, standard error.
pub fn run(command: &mut Command) -> (i32, String, String) {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr))
}
