//! `hapax migrate`

use std::path::Path;

use super::{Failure, load};
use crate::service::store_options;
use crate::store::{Store, migrate as bring_up_to_date};

pub fn migrate(file: &Path) -> Result<(), Failure> {
    let config = load(file)?;
    let store = Store::new(store_options(&config));
    let status = store
        .run_here(bring_up_to_date)
        .map_err(|error| Failure::running(format!("{}: database.url: {error}", file.display())))?
        .map_err(|error| Failure::running(format!("the migrations failed: {error}")))?;
    let url = &config.database.url;
    match status.applied.as_slice() {
        [] => println!("{url} is up to date"),
        applied => applied.iter().for_each(|name| println!("{url}: applied {name}")),
    }
    Ok(())
}
