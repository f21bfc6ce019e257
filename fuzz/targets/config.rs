//! A configuration file and an override: a configuration, or problems that name file and key.
#![no_main]

use std::path::Path;

use hapax::config::Config;
use libfuzzer_sys::fuzz_target;

// A line `KEY=value`, or an empty one, and the file.
fuzz_target!(|text: &str| {
    let Some((line, file)) = text.split_once('\n') else { return };
    let variable = line.split_once('=').map(|(key, value)| (format!("HAPAX_{key}"), value.into()));
    if let Err(error) = Config::parse(Path::new("fuzzed.toml"), file, variable.into_iter()) {
        assert!(error.to_string().contains("fuzzed.toml"));
    }
});
