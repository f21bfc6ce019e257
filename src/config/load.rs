//! File plus environment into [`Config`].

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::Value;

use super::Config;

/// `HAPAX_DATABASE__POOL_SIZE=4` overrides `database.pool_size`, `HAPAX_QUEUE__0__NAME=q` the name of the
/// first queue.
pub const ENVIRONMENT_PREFIX: &str = "HAPAX_";
const KEY_SEPARATOR: &str = "__";

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The key, for example `queue[0].endpoint`; empty for the file as a whole.
    pub key: String,
    /// What is wrong with it and what to do.
    pub reason: String,
}

/// The configuration cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// The file.
    pub file: PathBuf,
    /// All that is wrong, as far as it could be told.
    pub problems: Vec<Problem>,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Problem { key, reason }) in self.problems.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            let file = self.file.display();
            match key.as_str() {
                "" => write!(f, "{file}: {reason}")?,
                key => write!(f, "{file}: {key}: {reason}")?,
            }
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}

/// A value from the environment and the key that it overrides.
struct Override {
    variable: String,
    key: Vec<String>,
    text: String,
}

impl Config {
    /// Reads and validates a file, overridden from this process's environment.
    ///
    /// # Errors
    /// Everything that is wrong with it, with file and key.
    pub fn load(file: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(file).map_err(|error| {
            let reason = format!("cannot be read: {error}; name another file with --config");
            one_problem(file, String::new(), reason)
        })?;
        Self::parse(file, &text, std::env::vars())
    }

    /// As [`Self::load`], from text and variables that are given.
    ///
    /// # Errors
    /// Everything that is wrong, with file and key.
    pub fn parse(
        file: &Path,
        text: &str,
        variables: impl Iterator<Item = (String, String)>,
    ) -> Result<Self, ConfigError> {
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
            // The error's own text would show the line, which may hold a secret.
            let line = error.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
            let reason = format!("line {line}: not TOML: {}", error.message());
            one_problem(file, String::new(), reason)
        })?;
        let overrides = overrides(variables);
        let config = deserialize(file, &table, &overrides)?;
        match config.problems() {
            problems if problems.is_empty() => Ok(config),
            problems => Err(ConfigError { file: file.to_owned(), problems }),
        }
    }
}

fn one_problem(file: &Path, key: String, reason: String) -> ConfigError {
    ConfigError { file: file.to_owned(), problems: vec![Problem { key, reason }] }
}

fn overrides(variables: impl Iterator<Item = (String, String)>) -> Vec<Override> {
    let mut overrides: Vec<Override> = variables
        .filter_map(|(variable, text)| {
            let key = variable.strip_prefix(ENVIRONMENT_PREFIX)?;
            let key = key.split(KEY_SEPARATOR).map(str::to_ascii_lowercase).collect();
            Some(Override { variable, key, text })
        })
        .collect();
    overrides.sort_by(|left, right| left.key.cmp(&right.key));
    overrides
}

/// A variable's text is taken as TOML where that fits, and else as a string: `8` is a number for
/// `pool_size` and a text for `consumer`.
fn deserialize(
    file: &Path,
    table: &toml::Table,
    overrides: &[Override],
) -> Result<Config, ConfigError> {
    let mut as_text = vec![false; overrides.len()];
    loop {
        let mut root = Value::Table(table.clone());
        for (given, as_text) in overrides.iter().zip(&as_text) {
            set(&mut root, &given.key, value(&given.text, *as_text)).map_err(|reason| {
                let reason = format!("the environment variable {}: {reason}", given.variable);
                one_problem(file, String::new(), reason)
            })?;
        }
        let error = match serde_path_to_error::deserialize::<_, Config>(root) {
            Ok(config) => return Ok(config),
            Err(error) => error,
        };
        let key = match error.path().to_string() {
            path if path == "." => String::new(),
            path => path,
        };
        let culprit = overrides.iter().position(|given| key_text(&given.key) == key);
        match culprit {
            Some(index) if !as_text[index] => as_text[index] = true,
            culprit => {
                let message = error.into_inner().message().trim_end().to_owned();
                let reason = match culprit {
                    Some(index) => {
                        let variable = &overrides[index].variable;
                        format!("{message} (from the environment variable {variable})")
                    }
                    None => message,
                };
                return Err(one_problem(file, key, reason));
            }
        }
    }
}

fn value(text: &str, as_text: bool) -> Value {
    #[derive(Deserialize)]
    struct Wrapped {
        value: Value,
    }
    let parsed = || toml::from_str::<Wrapped>(&format!("value = {text}")).ok();
    match as_text {
        true => Value::String(text.to_owned()),
        false => parsed().map_or_else(|| Value::String(text.to_owned()), |wrapped| wrapped.value),
    }
}

/// `queue.0.name` as serde_path_to_error writes it: `queue[0].name`.
fn key_text(key: &[String]) -> String {
    let mut text = String::new();
    for part in key {
        match part.parse::<usize>() {
            Ok(index) => text.push_str(&format!("[{index}]")),
            Err(_) if text.is_empty() => text.push_str(part),
            Err(_) => text.push_str(&format!(".{part}")),
        }
    }
    text
}

fn set(root: &mut Value, key: &[String], new: Value) -> Result<(), String> {
    let Some((first, rest)) = key.split_first() else {
        *root = new;
        return Ok(());
    };
    let empty = || match rest.first() {
        Some(next) if next.parse::<usize>().is_ok() => Value::Array(Vec::new()),
        Some(_) => Value::Table(toml::Table::new()),
        None => Value::String(String::new()),
    };
    match root {
        Value::Table(table) => set(table.entry(first).or_insert_with(empty), rest, new),
        Value::Array(list) => {
            let index: usize = first.parse().map_err(|_| format!("{first} is no list index"))?;
            if index > list.len() {
                return Err(format!("the list has only {} entries", list.len()));
            }
            if index == list.len() {
                list.push(empty());
            }
            set(&mut list[index], rest, new)
        }
        _ => Err(format!("{first} is below a key that holds a single value")),
    }
}

#[cfg(test)]
#[cfg(all(feature = "sqlite", feature = "postgres"))]
mod tests {
    use super::*;

    const GOOD: &str = r#"
        consumer = "points-service"
        [database]
        url = "postgres://user:hunter2@127.0.0.1:5432/app"
        pool_size = 8
        [[queue]]
        name = "orders"
        endpoint = "http://127.0.0.1:19324"
        visibility_timeout_seconds = 30
        polling_wait_seconds = 3
        [[applier]]
        event_type = "points.awarded"
        parameters = { id = { pointer = "/id", type = "bigint" }, n = { pointer = "/n", type = "bigint" } }
        [[applier.statement]]
        sql = "UPDATE account SET balance = balance + :n WHERE id = :id"
        rows = 1
    "#;

    fn parse(text: &str, variables: &[(&str, &str)]) -> Result<Config, String> {
        let variables = variables.iter().map(|(name, value)| (name.to_string(), value.to_string()));
        Config::parse(Path::new("app.toml"), text, variables).map_err(|error| error.to_string())
    }

    #[test]
    fn every_kind_of_key_can_be_overridden_from_the_environment() {
        let config = parse(
            GOOD,
            &[
                ("HAPAX_CONSUMER", "7"),
                ("HAPAX_DATABASE__POOL_SIZE", "3"),
                ("HAPAX_DATABASE__MIGRATE_AT_START", "false"),
                ("HAPAX_QUEUE__0__NAME", "true"),
                ("HAPAX_QUEUE__0__ENVELOPE__PRESET", "cloudevents"),
                ("HAPAX_QUEUE__1__NAME", "refunds"),
                ("HAPAX_QUEUE__1__ENDPOINT", "http://127.0.0.1:1"),
                ("HAPAX_APPLIER__0__STATEMENT__0__SQL", "DELETE FROM a WHERE b IN (:id, :n)"),
                ("HAPAX_CREDENTIALS__SECRET_KEY", "123"),
                ("PATH", "/bin"),
            ],
        )
        .unwrap();
        assert_eq!((config.consumer.as_str(), config.database.pool_size), ("7", 3));
        assert!(!config.database.migrate_at_start);
        assert_eq!((config.queues[0].name.as_str(), config.queues.len()), ("true", 2));
        assert!(config.appliers[0].statements[0].sql.as_deref().unwrap().starts_with("DELETE"));
    }

    #[test]
    fn what_is_wrong_is_said_with_file_and_key() {
        let without = |line: &str| GOOD.lines().filter(|l| !l.contains(line)).collect::<Vec<_>>();
        for (text, variables, expected) in [
            (
                GOOD.replace("pool_size = 8", "pool_size = \"8\""),
                &[][..],
                "app.toml: database.pool_size: invalid type: string \"8\", expected u32",
            ),
            (
                GOOD.replace("pool_size", "pool_sise"),
                &[],
                "database.pool_sise: unknown field `pool_sise`, expected one of",
            ),
            (
                GOOD.replace("postgres:", "oracle:"),
                &[],
                "app.toml: database.url: the scheme \"oracle\" is not known",
            ),
            (GOOD.replace("name = \"orders\"", "name = \"1\""), &[], "app.toml: queue[0].name: "),
            (GOOD.replace("http://127", "ftp://127"), &[], "app.toml: queue[0].endpoint: "),
            (
                GOOD.replace("= 30", "= 0"),
                &[],
                "queue[0].visibility_timeout_seconds: it must be from 1 to 43200",
            ),
            (
                GOOD.replace(":n ", ":m "),
                &[],
                "applier[0].statement[0].sql: it names :m, which is not declared",
            ),
            (
                GOOD.replace("\"/n\"", "\"n\""),
                &[],
                "applier[0].parameters.n.pointer: \"n\" is not a JSON Pointer",
            ),
            (
                GOOD.replace(
                    "{ pointer = \"/n\", type = \"bigint\" }",
                    "{ pointer = \"/n\", type = \"money\" }",
                ),
                &[],
                "applier[0].parameters.n.type: unknown variant `money`",
            ),
            (GOOD.replace("[[queue]]", "[[queue]"), &[], "app.toml: line 6: not TOML"),
            (without("consumer").join("\n"), &[], "app.toml: missing field `consumer`"),
            (
                GOOD.into(),
                &[("HAPAX_DATABASE__POOL_SIZE", "many")][..],
                "expected u32 (from the environment variable HAPAX_DATABASE__POOL_SIZE)",
            ),
            (
                GOOD.into(),
                &[("HAPAX_QUEUE__5__NAME", "q")],
                "the environment variable HAPAX_QUEUE__5__NAME: the list has only 1 entries",
            ),
            (GOOD.into(), &[("HAPAX_NO_SUCH_KEY", "1")], "no_such_key: unknown field"),
        ] {
            let error = parse(&text, variables).unwrap_err();
            assert!(error.contains(expected), "{error:?} should say {expected:?}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn all_problems_are_listed_at_once() {
        let again = GOOD[GOOD.find("[[applier]]").unwrap()..].to_owned();
        let text = GOOD.replace("= 30", "= 0").replace("= 3\n", "= 31\n") + &again;
        let error = parse(&text, &[]).unwrap_err();
        assert_eq!(error.lines().count(), 3, "{error}");
        assert!(error.contains("applier[1].event_type: there are two appliers"), "{error}");
    }

    #[test]
    fn a_syntax_error_does_not_show_a_secret() {
        let error = parse("[credentials]\nsecret_key = \"hunter2", &[]).unwrap_err();
        assert!(error.contains("line 2") && !error.contains("hunter2"), "{error}");
    }
}
