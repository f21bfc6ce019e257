//! The binary as its users type it.

mod common;

use std::path::Path;
use std::process::{Command, Stdio};

use common::{
    Database, Kind, POINTS_APPLIER, Process, SECRET_ID, SECRET_KEY, block_on, config_text,
    emulator, eventually, example, hapax, left_in, points, run, until_empty,
};

fn write(database: &Database, text: &str) -> String {
    let file = database.folder.path().join("hapax.toml");
    std::fs::write(&file, text).unwrap();
    file.display().to_string()
}

#[test]
fn the_demo_ends_with_one_effect() {
    let (code, output, errors) = run(hapax().arg("demo"));
    assert_eq!((code, errors.as_str()), (0, ""));
    assert_eq!(output.lines().last(), Some("balance=10, processed=1"), "{output}");
    for part in ["rolled back", "applied before", "(conflict)", "(unknown_type)"] {
        assert!(output.contains(part), "{output}");
    }
}

#[test]
fn bad_arguments_end_with_2_and_a_hint() {
    for (arguments, hint) in [
        (&["frobnicate"][..], "unrecognized subcommand"),
        (&[], "Usage"),
        (&["run", "--config", "no-such-file.toml"], "no-such-file.toml: cannot be read"),
        (&["check", "--config", "no-such-file.toml"], "no-such-file.toml: cannot be read"),
        (&["emulator", "--queue", "1bad"], "is not a name"),
        (&["emulator", "--queue", "q:colour=red"], "the keys are visibility_timeout"),
        (&["emulator", "--listen", "nowhere"], "invalid socket address"),
        (&["send", "x"], "--config"),
        (&["send", "--endpoint", "http://127.0.0.1:1", "x"], "--queue"),
        (
            &["send", "--endpoint", "ftp://x", "--queue", "q", "x"],
            "its scheme must be http or https",
        ),
        (
            &["send", "--endpoint", "http://cmq.example", "--queue", "q", "x"],
            "TENCENTCLOUD_SECRET_ID",
        ),
    ] {
        let (code, _, errors) = run(hapax().args(arguments));
        assert_eq!(code, 2, "{arguments:?}: {errors}");
        assert!(errors.contains(hint), "{arguments:?} should say {hint:?}: {errors}");
    }
}

#[test]
fn a_bad_configuration_is_refused_at_the_start_with_file_and_key() {
    let database = Database::new(Kind::Sqlite);
    let good = config_text(&database, "http://127.0.0.1:1", POINTS_APPLIER);
    for (text, hint) in [
        (good.replace("sqlite:", "oracle:"), "database.url: the scheme \"oracle\" is not known"),
        (good.replace(":points", ":pints"), "applier[0].statement[0].sql: it names :pints"),
        (format!("{good}{POINTS_APPLIER}"), "applier[1].event_type: there are two appliers"),
        (good.replace("consumer =", "consumr ="), "consumr: unknown field `consumr`"),
        (good.replace("secret_key", "#"), "TENCENTCLOUD_SECRET_KEY"),
        (config_text(&database, "http://127.0.0.1:1", ""), "there is no applier"),
    ] {
        let file = write(&database, &text);
        let (code, _, errors) = run(hapax().args(["run", "--config", &file]));
        assert_eq!(code, 2, "{errors}");
        assert!(errors.contains(hint) && errors.contains(&file), "{errors} should say {hint:?}");
        assert!(!errors.contains(SECRET_KEY), "{errors}");
    }
}

#[test]
fn an_unreachable_database_ends_the_start_with_its_reason() {
    let database = Database::new(Kind::Sqlite);
    let text = config_text(&database, "http://127.0.0.1:1", POINTS_APPLIER)
        .replace(&database.url, "postgres://someone:hunter2@127.0.0.1:1/app")
        .replace("[credentials]", "connect_timeout_seconds = 1\n[credentials]");
    let file = write(&database, &text);
    let (code, _, errors) = run(hapax().args(["run", "--config", &file]));
    assert_eq!(code, 1);
    assert!(errors.contains("no connection to postgres://someone@127.0.0.1:1/app within 1 s"));
    assert!(errors.contains("refused") && !errors.contains("hunter2"), "{errors}");
}

on_each_database!(check_lists_what_is_wrong);

async fn check_lists_what_is_wrong(kind: Kind) {
    {
        let database = Database::new(kind).with_accounts(1);
        let emulator = emulator(&["orders"]);
        let endpoint = emulator.endpoint();
        let good = config_text(&database, &endpoint, POINTS_APPLIER);
        let check = async |text: &str| {
            let file = write(&database, text);
            let command = move || run(hapax().args(["check", "--config", &file]));
            tokio::task::spawn_blocking(command).await.unwrap()
        };
        let (code, output, errors) = check(&good).await;
        assert_eq!((code, errors.as_str()), (0, ""), "{output}");
        assert!(output.contains("queue orders") && output.contains("nothing is wrong"), "{output}");
        let (code, _, errors) = check(&good.replace("\"orders\"", "\"missing\"")).await;
        assert!(
            code == 1 && errors.contains("queue[0].name: QueryQueueRoute was refused"),
            "{errors}"
        );
        let (code, _, errors) = check(&good.replace(SECRET_KEY, "wrong")).await;
        assert!(code == 1 && errors.contains("4100"), "{errors}");
        let (code, _, errors) = check(&good.replace("balance =", "balence =")).await;
        assert!(code == 1 && errors.contains("applier[0].statement[0].sql: "), "{errors}");
        assert!(errors.contains("balence"), "{errors}");
        let away = good.replace(&database.url, "sqlite:///nonexistent/app.db");
        let (code, _, errors) = check(&away).await;
        assert!(code == 1 && errors.contains("database.url: no connection"), "{errors}");
        let closed = good.replace(&endpoint, "http://127.0.0.1:1");
        let (code, _, errors) = check(&closed).await;
        assert!(code == 1 && errors.contains("queue[0].endpoint"), "{errors}");
    }
}

#[test]
fn migrate_says_what_it_did() {
    let database = Database::new(Kind::Sqlite);
    let file = write(&database, &config_text(&database, "http://127.0.0.1:1", ""));
    let migrate = || run(hapax().args(["migrate", "--config", &file]));
    assert!(migrate().1.contains("applied 2026"));
    assert!(migrate().1.contains("is up to date"));
}

#[test]
fn messages_are_sent_from_arguments_files_and_standard_input() {
    block_on(async {
        let mut command = hapax();
        command.args(["emulator", "--listen", "127.0.0.1:0", "--queue", "q"]);
        let mut process = Process::start(command);
        process.until_says("any signature is accepted").await;
        let output = process.output();
        let endpoint =
            output.lines().find_map(|line| line.strip_prefix("listening on ")).unwrap().to_owned();
        let send = || {
            let mut command = hapax();
            command.args(["send", "--endpoint", &endpoint, "--queue", "q"]);
            command
        };
        let (code, ids, said) = run(send().args(["one", "two"]));
        assert_eq!((code, ids.lines().count()), (0, 2));
        assert_eq!(said, "sent 2 messages to q\n");
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("lines.jsonl");
        let lines: Vec<String> = (0..40).map(|n| format!("{{\"n\":{n}}}")).collect();
        std::fs::write(&file, lines.join("\n\n")).unwrap();
        let (code, ids, said) = run(send().arg("--file").arg(&file));
        assert_eq!((code, ids.lines().count()), (0, 40), "{said}");
        let mut child = send()
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::io::Write::write_all(child.stdin.as_mut().unwrap(), b"a\nb\n").unwrap();
        assert!(child.wait().unwrap().success());
        let client = common::client(&endpoint);
        let mut received = 0;
        loop {
            match client.batch_receive_message("q", 16, 0).await.unwrap().len() {
                0 => break,
                count => received += count,
            }
        }
        assert_eq!(received, 44);
        let (code, _, errors) = run(send().args(["--queue", "none", "x"]));
        assert_ne!(code, 0, "{errors}");
        process.signal("-TERM");
        assert_eq!(process.ended().await, Some(0));
    });
}

#[test]
fn dev_applies_the_line_that_it_prints() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let mut command = hapax();
        command.args(["dev", "--listen", "127.0.0.1:0", "--data"]).arg(folder.path());
        let mut process = Process::start(command);
        process.until_says("hapax send").await;
        let output = process.output();
        let line = output.lines().find(|line| line.trim().starts_with("hapax send")).unwrap();
        let line = line.trim().replacen("hapax", env!("CARGO_BIN_EXE_hapax"), 1);
        for _ in 0..2 {
            let sent = common::clean(Command::new("sh")).args(["-c", &line]).status().unwrap();
            assert!(sent.success());
        }
        process.until_says("event \"evt-1\" applied").await;
        process.until_says("was applied before").await;
        process.signal("-INT");
        assert_eq!(process.ended().await, Some(0), "{}", process.output());
        assert!(folder.path().join("dev.db").exists());
    });
}

async fn run_until_applied(kind: Kind, command: impl Fn(&str) -> Command, applier: &str) {
    let database = Database::new(kind).with_accounts(1);
    let emulator = emulator(&["orders"]);
    let file = write(&database, &config_text(&database, &emulator.endpoint(), applier));
    let client = common::client(&emulator.endpoint());
    for body in [points("evt-1", 1, 10), points("evt-1", 1, 10), points("evt-2", 1, 1)] {
        client.send_message("orders", &body, 0).await.unwrap();
    }
    let mut process = Process::start(command(&file));
    until_empty(&emulator, "orders").await;
    process.signal("-TERM");
    assert_eq!(process.ended().await, Some(0), "{}", process.output());
    assert_eq!((database.balance(1), database.processed()), (11, 2));
}

fn run_command(file: &str) -> Command {
    let mut command = hapax();
    command.args(["run", "--config", file]);
    command
}

#[test]
fn run_applies_until_it_is_asked_to_stop() {
    block_on(run_until_applied(Kind::Sqlite, run_command, POINTS_APPLIER));
    block_on(run_until_applied(Kind::Postgres, run_command, POINTS_APPLIER));
}

#[test]
fn the_example_service_works() {
    let command = |file: &str| {
        let mut command = example("points_service");
        command.arg(file);
        command
    };
    block_on(run_until_applied(Kind::Sqlite, command, ""));
    block_on(run_until_applied(Kind::Postgres, command, ""));
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let source = std::fs::read_to_string(manifest.join("examples/points_service.rs")).unwrap();
    assert!(source.lines().count() < 60);
}

#[test]
fn the_environment_overrides_the_file_and_secrets_stay_out_of_the_log() {
    block_on(async {
        let database = Database::new(Kind::Sqlite).with_accounts(1);
        let emulator = emulator(&["refunds"]);
        let text = config_text(&database, "http://127.0.0.1:1", POINTS_APPLIER)
            .replace(SECRET_KEY, "wrong");
        let file = write(&database, &text);
        let mut command = run_command(&file);
        command
            .env("HAPAX_QUEUE__0__NAME", "refunds")
            .env("HAPAX_QUEUE__0__ENDPOINT", emulator.endpoint())
            .env("HAPAX_LOG__FILTER", "trace")
            .env("TENCENTCLOUD_SECRET_ID", SECRET_ID)
            .env("TENCENTCLOUD_SECRET_KEY", SECRET_KEY);
        let process = Process::start(command);
        let client = common::client(&emulator.endpoint());
        client.send_message("refunds", &points("evt-1", 1, 10), 0).await.unwrap();
        eventually("the event is applied", || left_in(&emulator, "refunds") == 0).await;
        assert_eq!(database.balance(1), 10);
        assert!(!process.output().contains(SECRET_KEY));
        assert!(process.output().contains("\"level\":\"INFO\""), "logs are JSON off a terminal");
    });
}

/// A process that is killed at any moment leaves either no effect or one, and the next one finishes.
#[test]
fn killed_processes_leave_one_effect_of_each_event() {
    block_on(async {
        for kind in [Kind::Sqlite, Kind::Postgres] {
            let database = Database::new(kind).with_accounts(5);
            let emulator = emulator(&["orders:visibility_timeout=1"]);
            let more = format!("visibility_timeout_seconds = 1\n{POINTS_APPLIER}");
            let file = write(&database, &config_text(&database, &emulator.endpoint(), &more));
            let client = common::client(&emulator.endpoint());
            let bodies: Vec<String> =
                (0..1_000).map(|n| points(&format!("evt-{n}"), 1 + n % 5, 1)).collect();
            common::send_all(&client, "orders", &bodies).await;
            let deleted = |share: usize| 1_000 - 100 * share;
            for kill in 1..=5 {
                let process = Process::start(run_command(&file));
                eventually("some messages are deleted", || {
                    left_in(&emulator, "orders") <= deleted(kill)
                })
                .await;
                process.signal("-KILL");
            }
            let mut process = Process::start(run_command(&file));
            until_empty(&emulator, "orders").await;
            process.signal("-TERM");
            assert_eq!(process.ended().await, Some(0));
            let total = database.number("SELECT sum(balance) FROM account");
            assert_eq!((total, database.processed()), (1_000, 1_000), "{kind:?}");
        }
    });
}

/// Handlers take longer than the visibility time-out, so the two processes get the same messages.
#[test]
fn two_processes_that_share_messages_apply_each_event_once() {
    block_on(async {
        let database = Database::new(Kind::Postgres).with_accounts(3);
        let emulator = emulator(&["orders:visibility_timeout=1"]);
        let pause = "        [[applier.statement]]\n        sql = \"SELECT pg_sleep(0.4)\"\n";
        let applier =
            POINTS_APPLIER.replacen("event_type", "max_batch_events = 4\n        event_type", 1)
                + pause;
        let more = format!("visibility_timeout_seconds = 1\n{applier}");
        let file = write(&database, &config_text(&database, &emulator.endpoint(), &more));
        let client = common::client(&emulator.endpoint());
        let bodies: Vec<String> =
            (0..60).map(|n| points(&format!("evt-{n}"), 1 + n % 3, 1)).collect();
        common::send_all(&client, "orders", &bodies).await;
        let mut processes =
            [Process::start(run_command(&file)), Process::start(run_command(&file))];
        until_empty(&emulator, "orders").await;
        for process in &mut processes {
            process.signal("-TERM");
            assert_eq!(process.ended().await, Some(0), "{}", process.output());
        }
        for account in 1..=3 {
            assert_eq!(database.balance(account), 20);
        }
        assert_eq!((database.processed(), database.held().len()), (60, 0));
        let warned = "events take nearly as long as the queue's visibility time-out";
        assert!(processes.iter().any(|process| process.output().contains(warned)));
    });
}

/// The drain settles what was received: nothing is left invisible, and no total is wrong.
#[test]
fn fifty_stops_under_load_each_end_with_0_and_leave_nothing_invisible() {
    const STOPS: i64 = 50;
    /// More than one process may have in memory, so that each is stopped under load.
    const EVENTS_A_STOP: i64 = 1_000;
    block_on(async {
        let database = Database::new(Kind::Sqlite).with_accounts(5);
        let emulator = emulator(&["orders"]);
        let more = format!("max_in_flight_messages = 100\n{POINTS_APPLIER}");
        let file = write(&database, &config_text(&database, &emulator.endpoint(), &more));
        let client = common::client(&emulator.endpoint());
        let counts = || {
            emulator.with_broker(|broker, now| broker.queue("orders").unwrap().queue.counts(now))
        };
        let mut stopped_under_load = 0;
        for stop in 1..=STOPS {
            let numbers = (stop - 1) * EVENTS_A_STOP..stop * EVENTS_A_STOP;
            let bodies: Vec<String> =
                numbers.map(|n| points(&format!("evt-{n}"), 1 + n % 5, 1)).collect();
            common::send_all(&client, "orders", &bodies).await;
            let before = common::left_in(&emulator, "orders");
            let mut process = Process::start(run_command(&file));
            eventually("some are deleted", || common::left_in(&emulator, "orders") < before).await;
            process.signal("-TERM");
            assert_eq!(process.ended().await, Some(0), "stop {stop}: {}", process.output());
            assert_eq!(counts().inactive, 0, "stop {stop}");
            stopped_under_load += i64::from(counts().active > 0);
            let done = stop * EVENTS_A_STOP - counts().active as i64;
            let total = database.number("SELECT sum(balance) FROM account");
            assert_eq!((total, database.processed()), (done, done), "stop {stop}");
        }
        assert!(stopped_under_load > STOPS / 2, "{stopped_under_load}");
    });
}

#[test]
fn a_visibility_time_out_that_is_not_the_queue_s_is_a_warning_that_names_both() {
    block_on(async {
        let database = Database::new(Kind::Sqlite).with_accounts(1);
        let emulator = emulator(&["orders:visibility_timeout=30"]);
        let more = format!("visibility_timeout_seconds = 100\n{POINTS_APPLIER}");
        let file = write(&database, &config_text(&database, &emulator.endpoint(), &more));
        let client = common::client(&emulator.endpoint());
        client.send_message("orders", &points("a", 1, 1), 0).await.unwrap();
        let process = Process::start(run_command(&file));
        process.until_says("visibility_timeout_seconds is not what the queue's messages say").await;
        let output = process.output();
        assert!(output.contains("\"configured_seconds\":100"), "{output}");
        assert!(
            output.contains("\"observed_seconds\":30")
                || output.contains("\"observed_seconds\":29")
        );
    });
}

#[test]
fn a_second_signal_ends_the_process_at_once() {
    block_on(async {
        let database = Database::new(Kind::Postgres).with_accounts(1);
        let emulator = emulator(&["orders"]);
        let applier = POINTS_APPLIER.to_owned()
            + "        [[applier.statement]]\n        sql = \"SELECT pg_sleep(60)\"\n";
        let file = write(&database, &config_text(&database, &emulator.endpoint(), &applier));
        let client = common::client(&emulator.endpoint());
        client.send_message("orders", &points("a", 1, 1), 0).await.unwrap();
        let mut process = Process::start(run_command(&file));
        let sleeping = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND
                        datname = current_database()";
        eventually("it is at work", || database.number(sleeping) == 1).await;
        process.signal("-TERM");
        process.until_says("stopping").await;
        process.signal("-TERM");
        assert_eq!(process.ended().await, Some(143));
        assert_eq!((database.balance(1), left_in(&emulator, "orders")), (0, 1));
    });
}

/// A whole process that stood still is no reason to restart anything in it.
#[test]
fn a_process_that_was_suspended_goes_on() {
    block_on(async {
        let database = Database::new(Kind::Sqlite).with_accounts(1);
        let emulator = emulator(&["orders"]);
        let more =
            format!("[supervision]\nfrozen_after_seconds = 1\nmax_restarts = 0\n{POINTS_APPLIER}");
        let file = write(&database, &config_text(&database, &emulator.endpoint(), &more));
        let mut process = Process::start(run_command(&file));
        process.until_says("started").await;
        let client = common::client(&emulator.endpoint());
        for event in ["a", "b", "c"] {
            client.send_message("orders", &points(event, 1, 1), 0).await.unwrap();
            until_empty(&emulator, "orders").await;
            process.signal("-STOP");
            tokio::time::sleep(std::time::Duration::from_millis(2_500)).await;
            process.signal("-CONT");
        }
        client.send_message("orders", &points("d", 1, 1), 0).await.unwrap();
        until_empty(&emulator, "orders").await;
        process.signal("-TERM");
        assert_eq!(process.ended().await, Some(0), "{}", process.output());
        assert!(!process.output().contains("an actor ended"), "{}", process.output());
        assert_eq!(database.balance(1), 4);
    });
}
