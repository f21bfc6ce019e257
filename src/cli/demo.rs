//! `hapax demo`: the whole story in a few lines, through the real pipeline.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use diesel::prelude::*;
use diesel::sql_types::{BigInt, Text};
use serde::Deserialize;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::{Failure, logging, placeholder_credentials, quiet_log};
use crate::cmq::signature::SignatureMethod;
use crate::cmq::{Client, ClientOptions, Endpoint};
use crate::config::Config;
use crate::emulator::{Emulator, EmulatorOptions};
use crate::handler::{Applier, ApplyError, EventContext, Outcome};
use crate::pipeline::Observation;
use crate::service::{Service, store_options};
use crate::store::{DbConnection, Store};

const QUEUE: &str = "orders";
/// Longest wait for each step of the story.
const STEP_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Deserialize)]
struct PointsAwarded {
    account_id: i64,
    points: i64,
}

/// Adds points to a balance. Its first attempt fails after the update and before the commit.
#[derive(Default)]
struct AwardPoints {
    failed_once: AtomicBool,
}

impl Applier for AwardPoints {
    const EVENT_TYPE: &'static str = "points.awarded";
    type Payload = PointsAwarded;

    fn apply(
        &self,
        tx: &mut DbConnection,
        _: &EventContext<'_>,
        awarded: PointsAwarded,
    ) -> Result<Outcome, ApplyError> {
        let changed = diesel::sql_query("UPDATE account SET balance = balance + ? WHERE id = ?")
            .bind::<BigInt, _>(awarded.points)
            .bind::<BigInt, _>(awarded.account_id)
            .execute(tx)?;
        if changed != 1 {
            return Ok(Outcome::Rejected("there is no such account".into()));
        }
        if !self.failed_once.swap(true, Ordering::SeqCst) {
            return Err(ApplyError::Retry("the process fails just before the commit".into()));
        }
        Ok(Outcome::Applied)
    }
}

pub fn demo() -> Result<(), Failure> {
    logging::set_up(&crate::config::LogConfig { filter: "error".into(), ..quiet_log() });
    let folder = tempfile::tempdir().map_err(Failure::running)?;
    actix::System::new().block_on(play(folder.path()))
}

/// A message on its way through the story: what is sent, and what is said of it.
struct Scene {
    announcement: &'static str,
    body: String,
    /// Observations until the message is deleted.
    happenings: usize,
}

fn event(id: &str, event_type: &str, points: i64) -> String {
    let payload = format!(r#"{{"account_id":1,"points":{points}}}"#);
    format!(r#"{{"event_id":"{id}","event_type":"{event_type}","payload":{payload}}}"#)
}

fn scenes() -> Vec<Scene> {
    let scene = |announcement, body, happenings| Scene { announcement, body, happenings };
    vec![
        scene(
            "An event awards 10 points. Its first attempt fails before the commit.",
            event("evt-1", "points.awarded", 10),
            3,
        ),
        scene("The same event is delivered again.", event("evt-1", "points.awarded", 10), 2),
        scene("And once more.", event("evt-1", "points.awarded", 10), 2),
        scene(
            "The same event id arrives with 99 points instead of 10.",
            event("evt-1", "points.awarded", 99),
            2,
        ),
        scene("An event of a type that nobody handles.", event("evt-2", "points.burnt", 5), 2),
    ]
}

async fn play(folder: &Path) -> Result<(), Failure> {
    let emulator = Emulator::start(EmulatorOptions {
        listen: ([127, 0, 0, 1], 0).into(),
        credentials: None,
        queues: vec![QUEUE.parse().map_err(Failure::running)?],
        topics: Vec::new(),
    })
    .map_err(Failure::running)?;
    let config = config(folder, &emulator.endpoint())?;
    let store = Store::new(store_options(&config));
    store
        .run(|connection| {
            diesel::sql_query("CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER)")
                .execute(connection)?;
            diesel::sql_query("INSERT INTO account VALUES (1, 0)").execute(connection)
        })
        .await
        .map_err(Failure::running)?
        .map_err(Failure::running)?;
    let (sender, mut happenings) = unbounded_channel();
    let service = Service::new(config)
        .and_then(|service| service.register(AwardPoints::default()))
        .map_err(Failure::running)?
        .observe(Arc::new(move |observation| {
            if let Some(text) = describe(observation) {
                _ = sender.send(text);
            }
        }));
    let running = service.start().await.map_err(Failure::running)?;
    let client = client(&emulator.endpoint())?;
    println!("Account 1 has 0 points.");
    for scene in scenes() {
        println!("\n{}", scene.announcement);
        client.send_message(QUEUE, &scene.body, 0).await.map_err(Failure::running)?;
        narrate(&mut happenings, scene.happenings).await?;
    }
    running.drain().await;
    emulator.stop().await;
    report(&store).await
}

fn config(folder: &Path, endpoint: &str) -> Result<Config, Failure> {
    let file = folder.join("demo.db");
    let text = format!(
        r#"
        consumer = "demo"
        [database]
        url = "sqlite://{}"
        [credentials]
        secret_id = "emulator"
        secret_key = "emulator"
        [[queue]]
        name = "{QUEUE}"
        endpoint = "{endpoint}"
        polling_wait_seconds = 1
        "#,
        file.display()
    );
    Config::parse(Path::new("(demo)"), &text, std::iter::empty()).map_err(Failure::running)
}

fn client(endpoint: &str) -> Result<Client, Failure> {
    let endpoint = Endpoint::parse(endpoint).map_err(Failure::running)?;
    let signature_method = SignatureMethod::default();
    let options = ClientOptions { credentials: placeholder_credentials().into(), signature_method };
    Client::new(endpoint, options).map_err(Failure::running)
}

/// What is told of a happening; polls and the like are not part of the story.
fn describe(observation: &Observation<'_>) -> Option<String> {
    Some(match observation {
        Observation::Applied { event_id, .. } => {
            format!("{event_id} is applied: its row and the new balance are committed together.")
        }
        Observation::Duplicate { event_id, .. } => {
            format!("{event_id} was applied before: nothing changes.")
        }
        Observation::Failed { reason, .. } => {
            format!("{reason}: everything is rolled back, to be tried again.")
        }
        Observation::Held { reason, detail, .. } => {
            format!("It is held in the table held_message ({}): {detail}.", reason.as_str())
        }
        Observation::Deleted { .. } => "Only now the message is deleted from the queue.".into(),
        Observation::Dropped { why, .. } | Observation::NotDeleted { why, .. } => {
            format!("The queue brings the message again: {why}.")
        }
        _ => return None,
    })
}

async fn narrate(happenings: &mut UnboundedReceiver<String>, count: usize) -> Result<(), Failure> {
    for _ in 0..count {
        match tokio::time::timeout(STEP_TIMEOUT, happenings.recv()).await {
            Ok(Some(text)) => println!("  - {text}"),
            _ => return Err(Failure::running("the story stands still; please report this")),
        }
    }
    Ok(())
}

#[derive(QueryableByName)]
struct Totals {
    #[diesel(sql_type = BigInt)]
    balance: i64,
    #[diesel(sql_type = BigInt)]
    processed: i64,
    #[diesel(sql_type = Text)]
    held: String,
}

async fn report(store: &Store) -> Result<(), Failure> {
    let totals = store
        .run(|connection| {
            diesel::sql_query(
                "SELECT (SELECT balance FROM account WHERE id = 1) AS balance,
                        (SELECT count(*) FROM processed_event) AS processed,
                        (SELECT group_concat(reason, ' and ') FROM
                            (SELECT reason FROM held_message ORDER BY id)) AS held",
            )
            .get_result::<Totals>(connection)
        })
        .await
        .map_err(Failure::running)?
        .map_err(Failure::running)?;
    let Totals { balance, processed, held } = totals;
    println!("\nFive deliveries later, one effect; held for a person: {held}.");
    println!("balance={balance}, processed={processed}");
    Ok(())
}
