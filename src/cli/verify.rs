//! `hapax verify`

use clap::Args;
use serde_json::json;

use super::tables::Tables;
use super::{ConfigArguments, Failure};
use crate::store::{Finding, verify as compare};

#[derive(Args)]
pub struct VerifyArguments {
    /// One JSON object a line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    config: ConfigArguments,
}

pub fn verify(arguments: &VerifyArguments) -> Result<(), Failure> {
    let tables = Tables::open(&arguments.config.config)?;
    let findings = tables.transaction(compare)?;
    for Finding { rule, broken } in &findings {
        match (arguments.json, broken) {
            (true, _) => println!("{}", json!({ "rule": rule, "broken": broken })),
            (false, 0) => println!("ok: {rule}"),
            (false, broken) => println!("BROKEN by {broken} rows: {rule}"),
        }
    }
    match findings.iter().filter(|finding| finding.broken > 0).count() {
        0 => Ok(()),
        broken => Err(Failure::running(format!("{broken} rules are broken"))),
    }
}
