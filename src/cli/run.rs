//! `hapax run`

use std::path::Path;

use super::{EXIT_RESTART_LIMIT, Failure, load, logging};
use crate::service::{Service, ServiceError};

pub fn run(file: &Path) -> Result<(), Failure> {
    let config = load(file)?;
    logging::set_up(&config.log);
    let started = Service::new(config).and_then(Service::run);
    started.map_err(|error| match error {
        ServiceError::Credentials(_) | ServiceError::NoApplier | ServiceError::Registry(_) => {
            Failure::usage(format!("{}: {error}", file.display()))
        }
        ServiceError::GivenUp(_) => Failure { text: error.to_string(), code: EXIT_RESTART_LIMIT },
        error => Failure::running(error),
    })
}
