//! A wire to a database that breaks around COMMIT.
#![allow(dead_code)]

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What hapax sends to commit, on either server; the check of a new connection ends differently.
const COMMITS: [&[u8]; 2] = [b"SELECT 1; COMMIT", b"RELEASE SAVEPOINT hapax; COMMIT"];

/// When the wire breaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cut {
    /// The server never sees the COMMIT.
    BeforeCommit,
    /// The server commits; its answer is lost.
    AfterCommit,
}

/// A relay on a loopback port that cuts every n-th commit.
pub struct Wire {
    pub port: u16,
    cuts: Arc<AtomicUsize>,
}

impl Wire {
    pub fn to(server_port: u16, cut: Cut, every: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (commits, cuts) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let counted = cuts.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(("127.0.0.1", server_port)) else { continue };
                let (commits, cuts) = (commits.clone(), counted.clone());
                std::thread::spawn(move || relay(&client, &server, cut, every, &commits, &cuts));
            }
        });
        Self { port, cuts }
    }

    /// How often it broke.
    pub fn cuts(&self) -> usize {
        self.cuts.load(Ordering::Relaxed)
    }
}

fn relay(
    client: &TcpStream,
    server: &TcpStream,
    cut: Cut,
    every: usize,
    commits: &AtomicUsize,
    cuts: &AtomicUsize,
) {
    let is_cut = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = [0; 1 << 16];
            while let Ok(size @ 1..) = (&*server).read(&mut buffer) {
                if is_cut.load(Ordering::SeqCst) == 1
                    || (&*client).write_all(&buffer[..size]).is_err()
                {
                    break;
                }
            }
            close(client, server);
        });
        let mut buffer = [0; 1 << 16];
        while let Ok(size @ 1..) = (&*client).read(&mut buffer) {
            let chunk = &buffer[..size];
            let is_commit = COMMITS
                .iter()
                .any(|commit| chunk.windows(commit.len()).any(|window| window == *commit));
            if is_commit && commits.fetch_add(1, Ordering::SeqCst) % every == every - 1 {
                cuts.fetch_add(1, Ordering::SeqCst);
                if cut == Cut::BeforeCommit {
                    break;
                }
                is_cut.store(1, Ordering::SeqCst);
            }
            if (&*server).write_all(chunk).is_err() {
                break;
            }
        }
        if is_cut.load(Ordering::SeqCst) == 0 {
            close(client, server);
        }
    });
}

fn close(client: &TcpStream, server: &TcpStream) {
    _ = client.shutdown(Shutdown::Both);
    _ = server.shutdown(Shutdown::Both);
}
