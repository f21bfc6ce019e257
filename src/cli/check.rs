//! `hapax check`

use std::path::Path;

use super::{Failure, load};
use crate::cmq::{CmqError, CredentialProvider, ErrorClass};
use crate::config::{Config, Problem, QueueConfig};
use crate::handler::{DeclaredApplier, DeclaredApplierError};
use crate::service::{client, credentials, server_concerns, store_options};
use crate::store::{DbConnection, Store, pending_migrations};

pub fn check(file: &Path) -> Result<(), Failure> {
    let config = load(file)?;
    println!("{}: the configuration is valid", file.display());
    let mut problems = Vec::new();
    let store = Store::new(store_options(&config));
    if check_database(&config, &store, &mut problems) {
        check_settings(&config, &store, &mut problems);
        check_appliers(&config, &store, &mut problems);
    }
    check_queues(&config, &mut problems);
    if config.appliers.is_empty() {
        let reason = "there is none: every message would be held, unless the service registers \
                      appliers in Rust";
        println!("{}: applier: note: {reason}", file.display());
    }
    if problems.is_empty() {
        println!("nothing is wrong");
        return Ok(());
    }
    let lines = problems.into_iter().map(|Problem { key, reason }| {
        let file = file.display();
        format!("{file}: {key}: {reason}")
    });
    Err(Failure::running(lines.collect::<Vec<_>>().join("\n")))
}

/// Whether the database could be reached.
fn check_database(config: &Config, store: &Store, problems: &mut Vec<Problem>) -> bool {
    let mut add =
        |reason: String| problems.push(Problem { key: "database.url".to_owned(), reason });
    let url = &config.database.url;
    match store.run_here(pending_migrations) {
        Err(error) => {
            add(error.to_string());
            return false;
        }
        Ok(Err(error)) => add(format!("the migrations could not be looked at: {error}")),
        Ok(Ok(pending)) if pending.is_empty() => println!("{url}: connected; up to date"),
        Ok(Ok(_)) if config.database.migrate_at_start => {
            println!("{url}: connected; `hapax run` will bring the tables up to date");
        }
        Ok(Ok(pending)) => add(format!(
            "connected, but {} migrations are missing and database.migrate_at_start is false; run \
             `hapax migrate`",
            pending.len()
        )),
    }
    true
}

fn check_settings(config: &Config, store: &Store, problems: &mut Vec<Problem>) {
    let (limit, pool_size) = (store.statement_timeout(), config.database.pool_size);
    let concerns = store.run_here(|connection| server_concerns(connection, limit, pool_size));
    let key = || "database.url".to_owned();
    match concerns {
        Ok(Ok(concerns)) => {
            let found = concerns.into_iter().map(|reason| Problem { key: key(), reason });
            problems.extend(found);
        }
        Ok(Err(error)) => problems.push(Problem { key: key(), reason: error.to_string() }),
        Err(_) => {}
    }
}

fn check_appliers(config: &Config, store: &Store, problems: &mut Vec<Problem>) {
    for (index, spec) in config.appliers.iter().enumerate() {
        let applier = DeclaredApplier::new(spec.clone(), store.backend())
            .expect("a loaded configuration has valid appliers");
        let limit = store.statement_timeout();
        let check = |connection: &mut DbConnection| applier.check(connection, limit);
        let errors = store.run_here(check).unwrap_or_default();
        for DeclaredApplierError { key, reason } in errors {
            problems.push(Problem { key: format!("applier[{index}].{key}"), reason });
        }
    }
}

fn check_queues(config: &Config, problems: &mut Vec<Problem>) {
    actix::System::new().block_on(async {
        let credentials = match credentials(config).await {
            Ok(credentials) => credentials,
            Err(error) => {
                let key = "credentials".to_owned();
                return problems.push(Problem { key, reason: error.to_string() });
            }
        };
        for (index, queue) in config.queues.iter().enumerate() {
            match ask(queue, &credentials).await {
                Ok(()) => println!("queue {} at {}: reached", queue.name, queue.endpoint),
                Err(error) => problems.push(Problem {
                    key: format!("queue[{index}].{}", culprit(&error)),
                    reason: error.to_string(),
                }),
            }
        }
    });
}

async fn ask(queue: &QueueConfig, credentials: &CredentialProvider) -> Result<(), CmqError> {
    client(queue, credentials)?.query_queue_route(&queue.name).await.map(drop)
}

/// The key that most likely has to be changed.
fn culprit(error: &CmqError) -> &'static str {
    match error.class() {
        ErrorClass::NoSuchQueue => "name",
        ErrorClass::Authentication => "endpoint (credentials)",
        _ => "endpoint",
    }
}
