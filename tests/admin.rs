//! The service as seen from outside.

mod common;

use common::{
    Database, Kind, POINTS_APPLIER, SECRET_KEY, block_on, client, config_text, emulator,
    parse_config, points, until_empty,
};
use hapax::pipeline::Disturbance;
use hapax::{RunningService, Service};

async fn get(running: &RunningService, path: &str, token: &str) -> (u16, String) {
    let url = format!("http://{}{path}", running.admin_address().unwrap());
    let request =
        reqwest::Client::new().get(url).header("Authorization", format!("Bearer {token}"));
    let answer = request.send().await.unwrap();
    let status = answer.status().as_u16();
    (status, String::from_utf8(answer.bytes().await.unwrap().to_vec()).unwrap())
}

async fn until_page(running: &RunningService, path: &str, holds: impl Fn(u16, &str) -> bool) {
    let start = std::time::Instant::now();
    loop {
        let (status, text) = get(running, path, "").await;
        if holds(status, &text) {
            return;
        }
        assert!(start.elapsed() < common::DEADLINE, "{path}: {status} {text}");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

const ADMIN: &str = "[admin]\nlisten = \"127.0.0.1:0\"\n";

#[test]
fn metrics_count_what_happened() {
    block_on(async {
        let database = Database::new(Kind::Sqlite).with_accounts(1);
        let emulator = emulator(&["orders"]);
        let client = client(&emulator.endpoint());
        for body in [points("a", 1, 1), points("b", 1, 1), points("b", 1, 1), "malformed".into()] {
            client.send_message("orders", &body, 0).await.unwrap();
        }
        let more = format!("max_unacked_seconds = 60\n{ADMIN}{POINTS_APPLIER}");
        let config = parse_config(&config_text(&database, &emulator.endpoint(), &more));
        let running = Service::new(config).unwrap().start().await.unwrap();
        until_empty(&emulator, "orders").await;
        until_page(&running, "/metrics", |_, text| text.contains("hapax_empty_polls_total")).await;
        let (status, text) = get(&running, "/metrics", "").await;
        assert_eq!(status, 200);
        for line in [
            "hapax_deliveries_total{queue=\"orders\"} 4",
            "hapax_events_total{event_type=\"points.awarded\",outcome=\"applied\"} 2",
            "hapax_events_total{event_type=\"points.awarded\",outcome=\"duplicate\"} 1",
            "hapax_held_messages_total{queue=\"orders\",reason=\"malformed\"} 1",
            "hapax_deleted_messages_total{queue=\"orders\"} 4",
            "hapax_in_flight_messages_limit{queue=\"orders\"} 2048",
            "hapax_actor_running{actor=\"receiver/orders\"} 1",
            "hapax_receive_to_commit_seconds_count{event_type=\"points.awarded\"} 2",
            "hapax_waiting_events{queue=\"orders\",event_type=\"points.awarded\"} 0",
            "hapax_oldest_message_age_limit_seconds{queue=\"orders\"} 60",
            "hapax_pool_connections ",
            "# UNIT hapax_commit_duration_seconds seconds",
            "# EOF",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
        let (_, status) = get(&running, "/status", "").await;
        let status: serde_json::Value = serde_json::from_str(&status).unwrap();
        assert_eq!(status["actors"].as_array().unwrap().len(), 6, "{status}");
        assert_eq!(status["queues"][0]["limit"], 2048);
        assert!(!text.contains(SECRET_KEY) && !status.to_string().contains(SECRET_KEY));
        assert_eq!(get(&running, "/", "").await.0, 404);
        running.drain().await;
    });
}

#[test]
fn readiness_says_which_part_is_not_ready_and_why() {
    block_on(async {
        let database = Database::new(Kind::Sqlite).with_accounts(1);
        let emulator = emulator(&["orders"]);
        let more = format!("{ADMIN}{POINTS_APPLIER}");
        let config = parse_config(&config_text(&database, &emulator.endpoint(), &more));
        let running = Service::new(config).unwrap().start().await.unwrap();
        assert_eq!(get(&running, "/readyz", "").await, (200, "ready\n".into()));
        running.board().disturb("router/orders", Disturbance::Panic);
        until_page(&running, "/readyz", |status, text| {
            status == 503 && text.contains("router/orders: panicked: disturbed on purpose")
        })
        .await;
        until_page(&running, "/readyz", |status, _| status == 200).await;
        database.execute("ALTER TABLE account RENAME TO elsewhere");
        client(&emulator.endpoint()).send_message("orders", &points("a", 1, 1), 0).await.unwrap();
        until_page(&running, "/readyz", |status, text| {
            status == 503 && text.contains("database/points.awarded/0: no such table")
        })
        .await;
        database.execute("ALTER TABLE elsewhere RENAME TO account");
        until_page(&running, "/readyz", |status, _| status == 200).await;
        emulator.with_broker(|broker, _| broker.delete_queue("orders").unwrap());
        until_page(&running, "/readyz", |status, text| {
            status == 503
                && text.contains("queue/orders: BatchReceiveMessage was refused with code 4440")
        })
        .await;
        assert_eq!(get(&running, "/livez", "").await.0, 200);
        running.drain().await;
    });
}

#[test]
fn a_token_is_demanded_where_one_is_set_and_needed_off_the_loopback() {
    block_on(async {
        let database = Database::new(Kind::Sqlite);
        let emulator = emulator(&["orders"]);
        let more = format!("{ADMIN}token = \"opensesame\"\n{POINTS_APPLIER}");
        let text = config_text(&database, &emulator.endpoint(), &more);
        let running = Service::new(parse_config(&text)).unwrap().start().await.unwrap();
        for (token, status) in [("", 401), ("opensesam", 401), ("opensesame", 200)] {
            assert_eq!(get(&running, "/metrics", token).await.0, status, "{token}");
        }
        running.drain().await;
        let open = text.replace("127.0.0.1:0", "0.0.0.0:0").replace("token = \"opensesame\"", "");
        let error =
            hapax::config::Config::parse("t".as_ref(), &open, std::iter::empty()).unwrap_err();
        assert!(error.to_string().contains("admin.token: it is needed"), "{error}");
    });
}
