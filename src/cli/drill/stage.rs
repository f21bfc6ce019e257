//! Where a drill takes place: a database of its own, an emulated queue, and worker processes.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use diesel::prelude::*;
use diesel::result::QueryResult;
use diesel::sql_types::BigInt;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::super::{Failure, placeholder_credentials};
use crate::cmq::signature::SignatureMethod;
use crate::cmq::{Client, ClientOptions, Endpoint};
use crate::config::Config;
use crate::emulator::{Emulator, EmulatorOptions, QueueSpec};
use crate::failpoint::{FailPoint, announcement};
use crate::service::store_options;
use crate::store::{
    DatabaseUrl, DbConnection, HeldFilter, Scratch, Store, StoreOptions, list_held, migrate,
};

/// Longest wait for anything within a drill.
const PATIENCE: Duration = Duration::from_secs(30);
/// The queues' visibility time-out: a killed worker's message comes again after it.
pub const VISIBILITY_SECONDS: u64 = 2;

/// The database and the emulator of all drills.
pub struct Stage {
    folder: tempfile::TempDir,
    scratch: Scratch,
    /// To the user's own place, in which the drills' is made.
    home: Store,
    store: Store,
    pub emulator: Emulator,
    client: Client,
}

impl Stage {
    /// On the configured database, or on a SQLite file of its own.
    pub fn set_up(config: Option<&Config>) -> Result<Self, Failure> {
        let folder = tempfile::tempdir().map_err(Failure::running)?;
        let name = format!("hapax_drill_{}", std::process::id());
        let home = match config {
            Some(config) => store_options(config),
            None => embedded(&folder)?,
        };
        let scratch = Scratch::beside(&home.url, &name).map_err(Failure::usage)?;
        let store = Store::new(StoreOptions { url: scratch.url.clone(), ..home.clone() });
        let emulator = Emulator::start(EmulatorOptions {
            listen: ([127, 0, 0, 1], 0).into(),
            credentials: None,
            queues: Vec::new(),
            topics: Vec::new(),
        })
        .map_err(Failure::running)?;
        let endpoint = Endpoint::parse(&emulator.endpoint()).map_err(Failure::running)?;
        let signature_method = SignatureMethod::default();
        let credentials = placeholder_credentials().into();
        let client = Client::new(endpoint, ClientOptions { credentials, signature_method })
            .map_err(Failure::running)?;
        let stage = Self { folder, scratch, home: Store::new(home), store, emulator, client };
        stage.at_home(|home| stage.scratch.create(home)).map_err(|failure| {
            let text = format!(
                "{}; drills need the right to create a schema (PostgreSQL) or a database (MySQL)",
                failure.text
            );
            Failure { text, ..failure }
        })?;
        match stage.furnish() {
            Ok(()) => Ok(stage),
            Err(failure) => {
                _ = stage.at_home(|home| stage.scratch.remove(home));
                Err(failure)
            }
        }
    }

    fn furnish(&self) -> Result<(), Failure> {
        let table = "CREATE TABLE drill_account (id BIGINT PRIMARY KEY, balance BIGINT NOT NULL)";
        let work = |connection: &mut DbConnection| {
            migrate(connection).map_err(Failure::running)?;
            diesel::sql_query(table).execute(connection).map(drop).map_err(Failure::running)
        };
        self.store.run_here(work).map_err(Failure::running)?
    }

    /// Whether the database has sessions that can be ended.
    pub fn has_sessions(&self) -> bool {
        self.scratch.has_sessions()
    }

    /// Removes what [`Self::set_up`] made.
    pub async fn clear(self) -> Result<(), Failure> {
        let Self { scratch, home, store, emulator, .. } = self;
        emulator.stop().await;
        drop(store);
        home.run_here(|connection| scratch.remove(connection))
            .map_err(Failure::running)?
            .map_err(Failure::running)
    }

    /// The next drill's scene.
    pub fn scene(&self, number: i64) -> Result<Scene<'_>, Failure> {
        let queue = format!("drill-{number}");
        let spec = format!("{queue}:visibility_timeout={VISIBILITY_SECONDS}");
        let QueueSpec { name, attributes } = spec.parse().map_err(Failure::running)?;
        self.emulator
            .with_broker(|broker, now| broker.create_queue(now, &name, attributes).map(drop))
            .map_err(Failure::running)?;
        let insert = format!("INSERT INTO drill_account VALUES ({number}, 0)");
        self.change(|tx| diesel::sql_query(insert).execute(tx).map(drop))?;
        Ok(Scene { stage: self, number, queue })
    }

    /// Ends all sessions of the drills' database but the one that is used for it.
    pub fn end_sessions(&self) -> Result<usize, Failure> {
        self.at_home(|home| self.scratch.end_sessions(home))
    }

    fn at_home<T>(
        &self,
        work: impl FnOnce(&mut DbConnection) -> QueryResult<T>,
    ) -> Result<T, Failure> {
        self.home.run_here(work).map_err(Failure::running)?.map_err(Failure::running)
    }

    fn change<T>(
        &self,
        work: impl FnOnce(&mut DbConnection) -> QueryResult<T>,
    ) -> Result<T, Failure> {
        self.store.transact_here(work).map_err(Failure::running)
    }
}

fn embedded(folder: &tempfile::TempDir) -> Result<StoreOptions, Failure> {
    let url = format!("sqlite://{}", folder.path().join("app.db").display());
    Ok(StoreOptions {
        url: url.parse::<DatabaseUrl>().map_err(Failure::usage)?,
        pool_size: 4,
        connect_timeout: Duration::from_secs(10),
        statement_timeout: Duration::from_secs(30),
        prepared_statements: true,
    })
}

/// One drill's queue, account and consumer.
pub struct Scene<'a> {
    pub stage: &'a Stage,
    number: i64,
    queue: String,
}

/// What a drill leaves behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    pub balance: i64,
    pub claims: i64,
    /// Reasons, oldest first.
    pub held: Vec<String>,
    /// Messages in the queue.
    pub queued: usize,
}

impl std::fmt::Display for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { balance, claims, held, queued } = self;
        let held = if held.is_empty() { "nothing".to_owned() } else { held.join(" and ") };
        write!(f, "balance {balance}, {claims} claims, {held} held, {queued} queued")
    }
}

impl Scene<'_> {
    /// The event `id`, which adds points to the account.
    pub fn event(&self, id: &str, points: i64) -> String {
        let account = self.number;
        format!(
            r#"{{"event_id":"{id}","event_type":"drill","payload":{{"account":{account},"points":{points}}}}}"#
        )
    }

    /// Sends bodies to the queue.
    pub async fn send(&self, bodies: &[String]) -> Result<(), Failure> {
        let bodies: Vec<&str> = bodies.iter().map(String::as_str).collect();
        for batch in bodies.chunks(16) {
            let sent = self.stage.client.batch_send_message(&self.queue, batch, 0).await;
            sent.map_err(Failure::running)?;
        }
        Ok(())
    }

    /// Starts a worker; `arguments` arm its fail point.
    pub fn worker(&self, arguments: &[&str]) -> Result<Worker, Failure> {
        let file = self.configuration()?;
        let program = std::env::current_exe().map_err(Failure::running)?;
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            if name.starts_with("HAPAX_") || name.starts_with("TENCENTCLOUD_") {
                command.env_remove(name);
            }
        }
        // Not in the file, for it may hold a password.
        command.env("HAPAX_DATABASE__URL", self.stage.scratch.url.expose());
        command.arg("drill-worker").args(arguments).arg("--config").arg(file);
        Worker::start(command)
    }

    fn configuration(&self) -> Result<PathBuf, Failure> {
        let text = format!(
            r#"
            consumer = "{queue}"
            [database]
            url = "sqlite://overridden"
            pool_size = 4
            [credentials]
            secret_id = "emulator"
            secret_key = "emulator"
            [[queue]]
            name = "{queue}"
            endpoint = "{endpoint}"
            visibility_timeout_seconds = {VISIBILITY_SECONDS}
            polling_wait_seconds = 1
            [[applier]]
            event_type = "drill"
            [applier.parameters]
            account = {{ pointer = "/account", type = "bigint" }}
            points = {{ pointer = "/points", type = "bigint" }}
            [[applier.statement]]
            sql = "UPDATE drill_account SET balance = balance + :points WHERE id = :account"
            rows = 1
            "#,
            queue = self.queue,
            endpoint = self.stage.emulator.endpoint(),
        );
        let file = self.stage.folder.path().join(format!("{}.toml", self.queue));
        std::fs::write(&file, text).map_err(Failure::running)?;
        Ok(file)
    }

    /// What there is now.
    pub fn state(&self) -> Result<State, Failure> {
        #[derive(QueryableByName)]
        struct Row {
            #[diesel(sql_type = BigInt)]
            balance: i64,
            #[diesel(sql_type = BigInt)]
            claims: i64,
        }
        let (number, consumer) = (self.number, self.queue.as_str());
        let sql = format!(
            "SELECT balance, (SELECT count(*) FROM processed_event WHERE consumer = '{consumer}')
             AS claims FROM drill_account WHERE id = {number}"
        );
        let (row, held) = self.stage.change(|tx| {
            let row: Row = diesel::sql_query(&sql).get_result(tx)?;
            Ok((row, list_held(tx, consumer, &HeldFilter::default(), 100)?))
        })?;
        let held = held.into_iter().map(|message| message.reason).collect();
        Ok(State { balance: row.balance, claims: row.claims, held, queued: self.queued() })
    }

    fn queued(&self) -> usize {
        self.stage.emulator.with_broker(|broker, now| {
            broker.queue(&self.queue).map_or(0, |queue| {
                let counts = queue.queue.counts(now);
                counts.active + counts.inactive + counts.delayed
            })
        })
    }

    /// Waits until nothing is left in the queue, and says what there is then.
    pub async fn settled(&self) -> Result<State, Failure> {
        let start = Instant::now();
        while self.queued() > 0 && start.elapsed() < PATIENCE {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.state()
    }
}

/// A worker process; it is killed when it is dropped.
pub struct Worker {
    child: Child,
    lines: UnboundedReceiver<String>,
}

impl Worker {
    fn start(mut command: Command) -> Result<Self, Failure> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(Failure::running)?;
        let (sender, lines) = unbounded_channel();
        if let Some(output) = child.stdout.take() {
            std::thread::spawn(move || {
                let lines = BufReader::new(output).lines().map_while(Result::ok);
                lines.for_each(|line| _ = sender.send(line));
            });
        }
        Ok(Self { child, lines })
    }

    /// Waits until the worker is at its fail point.
    pub async fn reaches(&mut self, point: FailPoint) -> Result<(), Failure> {
        let expected = announcement(point);
        let found = tokio::time::timeout(PATIENCE, async {
            while let Some(line) = self.lines.recv().await {
                if line == expected {
                    return true;
                }
            }
            false
        });
        match found.await {
            Ok(true) => Ok(()),
            _ => Err(Failure::running(format!("the worker did not reach {point:?}"))),
        }
    }

    /// Kills the worker with SIGKILL.
    pub fn kill(mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}
