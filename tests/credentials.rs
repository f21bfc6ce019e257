//! Credentials that change while the service runs.

mod common;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use actix_web::{App, HttpServer, web};
use common::{
    Database, Kind, POINTS_APPLIER, block_on, client_with, config_text, credentials, emulator,
    eventually, parse_config, points, until_empty,
};
use hapax::Service;
use hapax::cmq::Credentials;
use hapax::emulator::Emulator;

fn other() -> Credentials {
    Credentials::new("AKIDother".into(), "other-key".to_owned().into(), Some("t".to_owned().into()))
}

fn config(database: &Database, emulator: &Emulator, way: &str) -> hapax::config::Config {
    let text = config_text(database, &emulator.endpoint(), POINTS_APPLIER);
    let lines = text.lines().filter(|line| !line.trim().starts_with("secret_"));
    let text: Vec<&str> = lines.collect();
    parse_config(&text.join("\n").replace("[credentials]", &format!("[credentials]\n{way}")))
}

async fn send(emulator: &Emulator, credentials: Credentials, id: &str) {
    let client = client_with(&emulator.endpoint(), credentials, Default::default());
    client.send_message("orders", &points(id, 1, 1), 0).await.unwrap();
}

#[test]
fn a_file_is_read_anew_when_its_credentials_are_refused() {
    block_on(async {
        let database = Database::new(Kind::Sqlite).with_accounts(1);
        let emulator = emulator(&["orders"]);
        let file = database.folder.path().join("credentials.json");
        std::fs::write(&file, r#"{"secret_id":"AKIDtest","secret_key":"test-secret-key"}"#)
            .unwrap();
        let config = config(&database, &emulator, &format!("file = {file:?}"));
        let running = Service::new(config).unwrap().start().await.unwrap();
        send(&emulator, credentials(), "a").await;
        until_empty(&emulator, "orders").await;
        emulator.set_credentials(Some(other()));
        send(&emulator, other(), "b").await;
        let text = r#"{"secret_id":"AKIDother","secret_key":"other-key","token":"t"}"#;
        std::fs::write(&file, text).unwrap();
        until_empty(&emulator, "orders").await;
        running.drain().await;
        assert_eq!(database.balance(1), 2);
    });
}

/// What the instance metadata answers: credentials that expire within a minute.
fn role_answer(id: &str, key: &str, token: &str) -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    format!(
        r#"{{"TmpSecretId":"{id}","TmpSecretKey":"{key}","Token":"{token}","ExpiredTime":{},"Code":"Success"}}"#,
        now + 60
    )
}

#[test]
fn a_role_s_credentials_are_replaced_before_they_expire() {
    block_on(async {
        let database = Database::new(Kind::Sqlite).with_accounts(1);
        let emulator = emulator(&["orders"]);
        let answer = Arc::new(Mutex::new(role_answer("AKIDtest", "test-secret-key", "")));
        let served = answer.clone();
        let server = HttpServer::new(move || {
            let served = served.clone();
            App::new().route(
                "/latest/meta-data/cam/security-credentials/consumer",
                web::get().to(move || std::future::ready(served.lock().unwrap().clone())),
            )
        })
        .workers(1)
        .bind("127.0.0.1:0")
        .unwrap();
        let address = server.addrs()[0];
        actix::spawn(server.run());
        let way = format!("role = \"consumer\"\nmetadata_endpoint = \"http://{address}/\"");
        let config = config(&database, &emulator, &way);
        let running = Service::new(config).unwrap().start().await.unwrap();
        send(&emulator, credentials(), "a").await;
        until_empty(&emulator, "orders").await;
        *answer.lock().unwrap() = role_answer("AKIDother", "other-key", "t");
        emulator.set_credentials(Some(other()));
        send(&emulator, other(), "b").await;
        until_empty(&emulator, "orders").await;
        running.drain().await;
        assert_eq!(database.balance(1), 2);
    });
}

#[test]
fn wrong_credentials_are_told_and_do_not_spin() {
    block_on(async {
        let database = Database::new(Kind::Sqlite).with_accounts(1);
        let emulator = emulator(&["orders"]);
        emulator.set_credentials(Some(other()));
        let text = config_text(&database, &emulator.endpoint(), POINTS_APPLIER)
            + "\n[admin]\nlisten = \"127.0.0.1:0\"\n";
        let running = Service::new(parse_config(&text)).unwrap().start().await.unwrap();
        eventually("it polls", || emulator.requests() > 0).await;
        let start = Instant::now();
        let url = format!("http://{}/readyz", running.admin_address().unwrap());
        let answer = reqwest::get(url).await.unwrap();
        assert_eq!(answer.status().as_u16(), 503);
        let text = String::from_utf8(answer.bytes().await.unwrap().to_vec()).unwrap();
        assert!(text.contains("4100") && text.contains("secret id is not known"), "{text}");
        eventually("it tries again", || emulator.requests() > 1).await;
        assert!(start.elapsed() > Duration::from_secs(4), "it waits before it tries again");
        running.drain().await;
    });
}

#[test]
fn credentials_that_cannot_be_read_end_the_start() {
    block_on(async {
        let database = Database::new(Kind::Sqlite);
        let emulator = emulator(&["orders"]);
        for (way, hint) in [
            ("file = \"/nonexistent/file.json\"", "/nonexistent/file.json: No such file"),
            (
                "role = \"r\"\nmetadata_endpoint = \"http://127.0.0.1:1\"",
                "http://127.0.0.1:1/latest",
            ),
        ] {
            let started = Service::new(config(&database, &emulator, way)).unwrap().start().await;
            let error = started.err().unwrap().to_string();
            assert!(error.starts_with("credentials: ") && error.contains(hint), "{error}");
        }
    });
}
