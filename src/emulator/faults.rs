//! Faults that the emulator commits on purpose, for tests and drills.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use actix_web::HttpResponse;
use actix_web::http::StatusCode;
use actix_web::web::Bytes;
use futures_util::{StreamExt, stream};

/// Size of the chunks of answers that are made up.
const CHUNK_BYTES: usize = 64 << 10;
/// A silent server goes on after this, so that no test waits for ever.
const MAX_SILENCE: Duration = Duration::from_secs(120);

/// What goes wrong with one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// Not carried out; refused with this code.
    Refuse(i64),
    /// Not carried out; a gateway answers with this HTTP status and HTML.
    Gateway(u16),
    /// Not carried out; HTTP 200 with HTML.
    Html,
    /// Not carried out; an answer of this many bytes.
    Huge(usize),
    /// Not carried out; no answer at all.
    Silence,
    /// Carried out, but the answer is lost with the connection.
    LoseAnswer,
    /// Carried out, but the answer is cut off in the middle.
    Truncate,
    /// Carried out, and the answer comes byte by byte, this far apart.
    Drip(Duration),
}

impl Fault {
    /// Whether the request is carried out before something goes wrong.
    pub(super) fn lets_through(&self) -> bool {
        matches!(self, Self::LoseAnswer | Self::Truncate | Self::Drip(_))
    }
}

/// The faults that are still to come, by action.
#[derive(Default)]
pub(super) struct Faults(Mutex<VecDeque<(String, Fault)>>);

impl Faults {
    pub fn add(&self, action: &str, fault: &Fault, times: usize) {
        let mut faults = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        faults.extend(std::iter::repeat_n((action.to_owned(), fault.clone()), times));
    }

    pub fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    pub fn take(&self, action: &str) -> Option<Fault> {
        let mut faults = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let index = faults.iter().position(|(of, _)| of == action)?;
        faults.remove(index).map(|(_, fault)| fault)
    }
}

/// The faulty answer; `answer` is what would have been answered.
pub(super) async fn commit(fault: Fault, answer: String) -> HttpResponse {
    match fault {
        Fault::Refuse(code) => {
            HttpResponse::Ok().body(format!(r#"{{"code":{code},"message":"injected"}}"#))
        }
        Fault::Gateway(status) => {
            let status = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY);
            HttpResponse::build(status).content_type("text/html").body("<h1>bad gateway</h1>")
        }
        Fault::Html => HttpResponse::Ok().content_type("text/html").body("<h1>welcome</h1>"),
        Fault::Huge(bytes) => {
            let chunks = bytes.div_ceil(CHUNK_BYTES);
            let chunk = Bytes::from(vec![b' '; CHUNK_BYTES]);
            let body = stream::iter(std::iter::repeat_n(Ok::<_, Infallible>(chunk), chunks));
            HttpResponse::Ok().streaming(body)
        }
        Fault::Silence => {
            tokio::time::sleep(MAX_SILENCE).await;
            HttpResponse::Ok().finish()
        }
        Fault::LoseAnswer => broken_off(String::new()),
        Fault::Truncate => broken_off(answer[..answer.len() / 2].to_owned()),
        Fault::Drip(pause) => {
            let bytes = stream::iter(answer.into_bytes()).then(move |byte| async move {
                tokio::time::sleep(pause).await;
                Ok::<_, Infallible>(Bytes::from(vec![byte]))
            });
            HttpResponse::Ok().streaming(bytes)
        }
    }
}

/// A body that ends in an error, which makes actix-web cut the connection.
fn broken_off(start: String) -> HttpResponse {
    let error = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
    HttpResponse::Ok().streaming(stream::iter([Ok(Bytes::from(start)), Err(error)]))
}
