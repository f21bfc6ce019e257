//! A complete service: events of one type, applied by Rust code in the database's transaction.
//!
//!     cargo run --example points_service -- points.toml

use diesel::prelude::*;
use hapax::{Applier, ApplyError, DbConnection, EventContext, Outcome, Service, ServiceError};

diesel::table! {
    account (id) {
        id -> BigInt,
        balance -> BigInt,
    }
}

#[derive(serde::Deserialize)]
struct PointsAwarded {
    account_id: i64,
    points: i64,
}

struct AwardPoints;

impl Applier for AwardPoints {
    const EVENT_TYPE: &'static str = "points.awarded";
    type Payload = PointsAwarded;

    fn apply(
        &self,
        tx: &mut DbConnection,
        event: &EventContext<'_>,
        awarded: PointsAwarded,
    ) -> Result<Outcome, ApplyError> {
        if awarded.points <= 0 {
            return Ok(Outcome::Rejected("points must be positive".into()));
        }
        let changed = diesel::update(account::table.find(awarded.account_id))
            .set(account::balance.eq(account::balance + awarded.points))
            .execute(tx)?;
        println!("{}: {} points", event.event_id, awarded.points);
        match changed {
            1 => Ok(Outcome::Applied),
            _ => Ok(Outcome::Rejected(format!("there is no account {}", awarded.account_id))),
        }
    }
}

fn main() -> Result<(), ServiceError> {
    let file = std::env::args().nth(1).unwrap_or_else(|| "points.toml".into());
    Service::from_config_file(file)?.register(AwardPoints)?.run()
}
