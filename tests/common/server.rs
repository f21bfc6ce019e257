//! A database server of a test's own, to be stopped and started.
#![allow(dead_code)]

use std::cell::RefCell;
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::{Kind, from_environment};

pub struct PrivateServer {
    kind: Kind,
    folder: tempfile::TempDir,
    port: u16,
    /// MariaDB's; PostgreSQL puts itself in the background.
    process: RefCell<Option<Child>>,
}

impl PrivateServer {
    /// An empty server that runs on a free loopback port.
    pub fn start_new(kind: Kind) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let server = Self { kind, folder, port, process: RefCell::new(None) };
        if is_root() {
            let path = server.folder.path().display().to_string();
            run(Command::new("chown").args([server.user(), &path]));
        }
        let data = server.data();
        match kind {
            Kind::Sqlite => panic!("SQLite has no server"),
            Kind::Postgres => {
                let options = ["--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8"];
                run(server.postgres("initdb").args(["-D", &data, "-U", "hapax"]).args(options));
            }
            Kind::Mysql => {
                let options =
                    ["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"];
                let mut install = server.as_user("mariadb-install-db".into());
                run(install.args(options).arg(format!("--datadir={data}")));
            }
        }
        server.start();
        server
    }

    pub fn kind(&self) -> Kind {
        self.kind
    }

    pub fn url(&self) -> String {
        let port = self.port;
        match self.kind {
            Kind::Mysql => format!("mysql://root@127.0.0.1:{port}/mysql"),
            _ => format!("postgres://hapax@127.0.0.1:{port}/postgres"),
        }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn start(&self) {
        let (data, port) = (self.data(), self.port);
        if self.kind == Kind::Mysql {
            let mut command = self.as_user(from_environment("TEST_MYSQL_SERVER").into());
            command.args(["--no-defaults", "--bind-address=127.0.0.1", "--skip-log-bin"]);
            command.args([format!("--port={port}"), format!("--datadir={data}")]);
            command.arg(format!("--socket={data}/socket"));
            command.stdout(Stdio::null()).stderr(Stdio::null());
            *self.process.borrow_mut() = Some(command.spawn().unwrap());
            return self.until_it_listens();
        }
        let options = format!("-p {port} -k {data} -c listen_addresses=127.0.0.1");
        let log = format!("{data}/log");
        let mut command = self.postgres("pg_ctl");
        run(command.args(["-D", &data, "-w", "-l", &log, "-o", &options, "start"]));
    }

    /// Stops as a crash would.
    pub fn stop(&self) {
        if let Some(mut process) = self.process.borrow_mut().take() {
            process.kill().unwrap();
            process.wait().unwrap();
        } else {
            run(self.postgres("pg_ctl").args(["-D", &self.data(), "-m", "immediate", "stop"]));
        }
    }

    /// Makes PostgreSQL a standby from its next start on.
    pub fn become_standby(&self) {
        std::fs::write(PathBuf::from(self.data()).join("standby.signal"), "").unwrap();
    }

    /// Makes a PostgreSQL standby a primary.
    pub fn promote(&self) {
        run(self.postgres("pg_ctl").args(["-D", &self.data(), "-w", "promote"]));
    }

    fn until_it_listens(&self) {
        let start = Instant::now();
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            assert!(start.elapsed() < super::DEADLINE, "the server does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn data(&self) -> String {
        self.folder.path().join("data").display().to_string()
    }

    fn user(&self) -> &'static str {
        match self.kind {
            Kind::Mysql => "mysql",
            _ => "postgres",
        }
    }

    fn postgres(&self, name: &str) -> Command {
        self.as_user(PathBuf::from(from_environment("TEST_POSTGRES_BIN")).join(name))
    }

    fn as_user(&self, program: PathBuf) -> Command {
        let mut command = as_user(self.user(), program);
        command.current_dir(self.folder.path());
        command
    }
}

/// The servers refuse to run as root. `setpriv` leaves the program in its place, so that it is the
/// process to be stopped.
pub fn as_user(user: &str, program: PathBuf) -> Command {
    match is_root() {
        true => {
            let mut command = Command::new("setpriv");
            command.args(["--reuid", user, "--regid", user, "--init-groups", "--"]).arg(program);
            command
        }
        false => Command::new(program),
    }
}

impl Drop for PrivateServer {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.borrow_mut().take() {
            _ = process.kill();
            _ = process.wait();
        } else if self.kind == Kind::Postgres {
            let mut command = self.postgres("pg_ctl");
            command.args(["-D", &self.data(), "-m", "immediate", "stop"]);
            _ = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
        }
    }
}

fn run(command: &mut Command) {
    let output = command.stdin(Stdio::null()).stdout(Stdio::null()).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{command:?}: {errors}");
}

fn is_root() -> bool {
    Command::new("id").arg("-u").output().unwrap().stdout == b"0\n"
}
