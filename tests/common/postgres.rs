//! A PostgreSQL server of a test's own, to be stopped and started.
#![allow(dead_code)]

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;

pub struct PrivatePostgres {
    programs: PathBuf,
    folder: tempfile::TempDir,
    port: u16,
}

impl PrivatePostgres {
    /// An empty cluster that runs on a free loopback port.
    pub fn start_new() -> Self {
        let programs = std::env::var("TEST_POSTGRES_BIN")
            .expect("TEST_POSTGRES_BIN is not set: run the tests with tests/run");
        let folder = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let server = Self { programs: programs.into(), folder, port };
        if is_root() {
            let path = server.folder.path().display().to_string();
            assert!(Command::new("chown").args(["postgres", &path]).status().unwrap().success());
        }
        let data = server.data();
        let options = ["--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8"];
        server.program("initdb", &[&["-D", &data, "-U", "hapax"], &options[..]].concat());
        server.start();
        server
    }

    pub fn url(&self) -> String {
        format!("postgres://hapax@127.0.0.1:{}/postgres", self.port)
    }

    pub fn start(&self) {
        let (data, port) = (self.data(), self.port);
        let options = format!("-p {port} -k {data} -c listen_addresses=127.0.0.1");
        let log = format!("{data}/log");
        self.program("pg_ctl", &["-D", &data, "-w", "-l", &log, "-o", &options, "start"]);
    }

    /// Stops as a crash would.
    pub fn stop(&self) {
        self.program("pg_ctl", &["-D", &self.data(), "-m", "immediate", "stop"]);
    }

    fn data(&self) -> String {
        self.folder.path().join("data").display().to_string()
    }

    /// PostgreSQL refuses to run as root.
    fn program(&self, name: &str, arguments: &[&str]) {
        let program = self.programs.join(name);
        let mut command = match is_root() {
            true => {
                let mut command = Command::new("runuser");
                command.args(["-u", "postgres", "--"]).arg(program);
                command
            }
            false => Command::new(program),
        };
        command.current_dir(self.folder.path()).args(arguments);
        let output = command.stdout(std::process::Stdio::null()).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{name} {arguments:?}: {errors}");
    }
}

impl Drop for PrivatePostgres {
    fn drop(&mut self) {
        let data = self.data();
        let stop = std::panic::AssertUnwindSafe(|| {
            self.program("pg_ctl", &["-D", &data, "-m", "immediate", "stop"]);
        });
        _ = std::panic::catch_unwind(stop);
    }
}

fn is_root() -> bool {
    let output = Command::new("id").arg("-u").output().unwrap();
    output.stdout == b"0\n"
}
