//! `hapax purge`

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use super::Failure;
use super::tables::{Tables, time};
use crate::pipeline::{Purge, Purged, Retention};

pub fn purge(file: &Path) -> Result<(), Failure> {
    let tables = Tables::open(file)?;
    let retention = tables.config.retention_rules();
    for applier in &tables.config.appliers {
        let event_type = &applier.event_type;
        if retention.iter().all(|rule| rule.event_type != *event_type) {
            println!("{event_type}: kept for ever, for it has no [[retention]]");
        }
    }
    let (consumer, store) = (tables.config.consumer.clone(), tables.store.clone());
    let purge = Arc::new(Purge { consumer, store, retention });
    actix::System::new().block_on(async {
        for rule in &purge.retention {
            purge_one(&purge, rule).await?;
        }
        Ok(())
    })
}

async fn purge_one(purge: &Arc<Purge>, rule: &Retention) -> Result<(), Failure> {
    let start = Instant::now();
    let event_type = &rule.event_type;
    let Purged { horizon, claims } = purge
        .run(rule)
        .await
        .map_err(|error| Failure::running(format!("{event_type}: {error}")))?;
    let seconds = start.elapsed().as_secs_f64();
    match horizon {
        None => println!("{event_type}: nothing to purge; no claim has a time of its own"),
        Some(horizon) => println!(
            "{event_type}: horizon {}; {claims} claims deleted in {seconds:.1} s",
            time(horizon)
        ),
    }
    Ok(())
}
