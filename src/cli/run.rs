//! `hapax run`

use std::path::Path;

use super::{EXIT_RESTART_LIMIT, Failure, load, logging};
use crate::service::{Service, ServiceError};

pub fn run(file: &Path) -> Result<(), Failure> {
    let config = load(file)?;
    logging::set_up(&config.log);
    let started = Service::new(config).and_then(Service::run);
    started.map_err(|error| failure(file, &error))
}

fn failure(file: &Path, error: &ServiceError) -> Failure {
    match error {
        ServiceError::Credentials(_) | ServiceError::NoApplier | ServiceError::Registry(_) => {
            Failure::usage(format!("{}: {error}", file.display()))
        }
        ServiceError::GivenUp(_) => Failure { text: error.to_string(), code: EXIT_RESTART_LIMIT },
        error => Failure::running(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restart_storm_has_an_exit_code_of_its_own() {
        let code = |error: ServiceError| failure(Path::new("hapax.toml"), &error).code;
        assert_eq!(code(ServiceError::GivenUp("router/q ended 11 times".into())), 3);
        assert_eq!(code(ServiceError::NoApplier), 2);
        assert_eq!(code(ServiceError::Migration("permission denied".into())), 1);
    }
}
