//! `/metrics`, `/livez`, `/readyz` and `/status`.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use actix_web::dev::ServerHandle;
use actix_web::http::header::{AUTHORIZATION, CONTENT_TYPE};
use actix_web::{App, HttpRequest, HttpResponse, HttpServer, web};
use secrecy::{ExposeSecret, SecretString};
use serde_json::json;
use subtle::ConstantTimeEq;

use super::Metrics;
use crate::pipeline::{ActorState, ActorStatus, BudgetUse};

/// Where the admin pages are served.
#[derive(Debug, Clone)]
pub struct AdminOptions {
    /// Address; port 0 picks a free one.
    pub listen: SocketAddr,
    /// Demanded as `Authorization: Bearer TOKEN`, if given.
    pub token: Option<SecretString>,
}

/// What the pages tell, looked up when they are asked for.
pub trait Insight: Send + Sync {
    /// Every actor's state.
    fn actors(&self) -> Vec<ActorStatus>;
    /// How much of each queue's budget is used.
    fn budgets(&self) -> Vec<BudgetUse>;
    /// Open and idle database connections.
    fn pool(&self) -> (u32, u32);
    /// The parts that do not work, with their reasons.
    fn troubles(&self) -> std::collections::BTreeMap<String, String>;
}

struct Shared {
    metrics: Arc<Metrics>,
    insight: Box<dyn Insight>,
    token: Option<SecretString>,
}

/// The running server.
pub struct AdminServer {
    address: SocketAddr,
    handle: ServerHandle,
}

impl AdminServer {
    /// Binds the address and serves in the background of the current actix system.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub fn start(
        options: AdminOptions,
        metrics: Arc<Metrics>,
        insight: Box<dyn Insight>,
    ) -> std::io::Result<Self> {
        let listener = TcpListener::bind(options.listen)?;
        let address = listener.local_addr()?;
        let shared = web::Data::new(Shared { metrics, insight, token: options.token });
        let app = move || App::new().app_data(shared.clone()).default_service(web::to(page));
        let server = HttpServer::new(app).workers(1).disable_signals().listen(listener)?.run();
        let handle = server.handle();
        actix::spawn(server);
        Ok(Self { address, handle })
    }

    /// The address that was bound.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops serving.
    pub async fn stop(self) {
        self.handle.stop(false).await;
    }
}

async fn page(request: HttpRequest, shared: web::Data<Shared>) -> HttpResponse {
    if !may_look(&request, shared.token.as_ref()) {
        return HttpResponse::Unauthorized().body("a bearer token is needed\n");
    }
    match request.path() {
        "/metrics" => metrics(&shared),
        "/livez" => HttpResponse::Ok().body("alive\n"),
        "/readyz" => ready(&shared),
        "/status" => status(&shared),
        _ => HttpResponse::NotFound().body("/metrics /livez /readyz /status\n"),
    }
}

fn may_look(request: &HttpRequest, token: Option<&SecretString>) -> bool {
    let Some(token) = token else { return true };
    let given = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let given = given.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or("");
    given.as_bytes().ct_eq(token.expose_secret().as_bytes()).into()
}

fn metrics(shared: &Shared) -> HttpResponse {
    let Shared { metrics, insight, .. } = shared;
    let text = metrics.render(&insight.actors(), &insight.budgets(), insight.pool());
    let openmetrics = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    HttpResponse::Ok().insert_header((CONTENT_TYPE, openmetrics)).body(text)
}

/// Says which part is not ready, and why.
fn ready(shared: &Shared) -> HttpResponse {
    let mut troubles = shared.insight.troubles();
    for ActorStatus { name, state, last_ending, .. } in shared.insight.actors() {
        if state == ActorState::BackingOff {
            troubles.insert(name, last_ending.unwrap_or_default());
        }
    }
    if troubles.is_empty() {
        return HttpResponse::Ok().body("ready\n");
    }
    let lines = troubles.iter().map(|(part, reason)| format!("{part}: {reason}\n"));
    HttpResponse::ServiceUnavailable().body(lines.collect::<String>())
}

fn status(shared: &Shared) -> HttpResponse {
    let (connections, idle) = shared.insight.pool();
    HttpResponse::Ok().json(json!({
        "actors": shared.insight.actors(),
        "queues": shared.insight.budgets(),
        "pool": { "connections": connections, "idle": idle },
        "troubles": shared.insight.troubles(),
    }))
}
