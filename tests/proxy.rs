//! Behind a proxy that gives each transaction another connection.

mod common;

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Stdio};
use std::time::Instant;

use common::{
    DEADLINE, Database, Kind, POINTS_APPLIER, as_user, block_on, client, config_text, emulator,
    parse_config, points, run, send_all, until_empty,
};
use hapax::Service;

/// Connections to the server that all clients share.
const SERVER_CONNECTIONS: i64 = 3;

/// A PgBouncer in transaction mode, on a free loopback port.
struct PgBouncer {
    process: Child,
    port: u16,
    _folder: tempfile::TempDir,
}

impl PgBouncer {
    fn in_front_of(url: &url::Url) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let path = folder.path().display();
        let users = format!("\"{}\" \"\"\n", url.username());
        std::fs::write(folder.path().join("users.txt"), users).unwrap();
        let server_port = url.port().unwrap();
        let settings = format!(
            "[databases]\n* = host=127.0.0.1 port={server_port}\n[pgbouncer]\n\
             listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
             auth_type = trust\nauth_file = {path}/users.txt\n\
             pool_mode = transaction\ndefault_pool_size = {SERVER_CONNECTIONS}\n\
             ignore_startup_parameters = extra_float_digits\n"
        );
        let file = folder.path().join("pgbouncer.ini");
        std::fs::write(&file, settings).unwrap();
        let open = ["-R", "a+rX"].map(str::to_owned);
        assert_eq!(run(std::process::Command::new("chmod").args(open).arg(folder.path())).0, 0);
        let mut command = as_user("postgres", "/usr/sbin/pgbouncer".into());
        command.arg("--quiet").arg(file).stdout(Stdio::null()).stderr(Stdio::null());
        let process = command.spawn().unwrap();
        let start = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(start.elapsed() < DEADLINE, "PgBouncer does not listen");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        Self { process, port, _folder: folder }
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        _ = self.process.kill();
        _ = self.process.wait();
    }
}

#[test]
fn two_services_share_three_connections_through_a_transaction_pooling_proxy() {
    block_on(async {
        let database = Database::new(Kind::Postgres).with_accounts(10);
        let mut url: url::Url = database.url.parse().unwrap();
        let proxy = PgBouncer::in_front_of(&url);
        url.set_port(Some(proxy.port)).unwrap();
        let emulator = emulator(&["orders"]);
        let bodies: Vec<String> =
            (0..1_000).map(|n| points(&format!("evt-{}", n / 2), 1 + n / 2 % 10, 1)).collect();
        send_all(&client(&emulator.endpoint()), "orders", &bodies).await;
        let applier = POINTS_APPLIER.replace(
            "[applier.parameters]",
            "partition_key = \"/account_id\"\n[applier.parameters]",
        );
        let service = || {
            let text = config_text(&database, &emulator.endpoint(), &applier);
            let mut config = parse_config(&text);
            config.database.url = url.as_str().parse().unwrap();
            config.database.prepared_statements = false;
            Service::new(config).unwrap()
        };
        let (one, other) = (service().start().await.unwrap(), service().start().await.unwrap());
        until_empty(&emulator, "orders").await;
        let connections = database.number(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
             AND pid <> pg_backend_pid()",
        );
        one.drain().await;
        other.drain().await;
        assert!((1..=SERVER_CONNECTIONS).contains(&connections), "{connections}");
        assert_eq!(database.number("SELECT sum(balance) FROM account"), 500);
        assert_eq!((database.processed(), database.held().len()), (500, 0));
    });
}
