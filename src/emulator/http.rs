//! The emulator's HTTP face on actix-web: one path, GET and POST, long polls.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use actix_web::dev::{Server, ServerHandle};
use actix_web::{App, HttpRequest, HttpResponse, HttpServer, web};
use serde_json::Value;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::actions::{self, ReceiveRequest};
use super::answer::{Refusal, success};
use super::broker::{Broker, QueueSpec, TopicSpec};
use super::faults::{self, Fault, Faults};
use super::queue::UnixMillis;
use crate::cmq::signature::{self, Target};
use crate::cmq::{Credentials, MAX_BATCH_MESSAGES, MAX_MESSAGE_BYTES, Parameters};

/// Largest request: a full batch of the largest bodies, each byte percent-encoded.
const MAX_REQUEST_BYTES: usize = 3 * MAX_BATCH_MESSAGES * MAX_MESSAGE_BYTES + (1 << 16);
/// Oldest and newest `Timestamp`, in seconds from now, that a signed request may carry.
const MAX_CLOCK_SKEW_SECONDS: u64 = 600;
/// Longer than clients keep an idle connection, so that none is closed just when it is used again.
const KEEP_ALIVE: Duration = Duration::from_secs(75);
/// Threads that serve requests.
const WORKERS: usize = 2;

/// What an emulator starts with.
#[derive(Debug, Clone)]
pub struct EmulatorOptions {
    /// Address to listen on; port 0 picks a free one.
    pub listen: SocketAddr,
    /// Signatures are checked against these; without any, every request is taken.
    pub credentials: Option<Credentials>,
    /// Queues that exist from the start.
    pub queues: Vec<QueueSpec>,
    /// Topics that exist from the start.
    pub topics: Vec<TopicSpec>,
}

struct Shared {
    broker: Mutex<Broker>,
    arrivals: Mutex<HashMap<String, Arc<Notify>>>,
    credentials: Mutex<Option<Credentials>>,
    address: String,
    /// Wall-clock start plus a monotonic clock, so that the queues' time never runs backwards.
    started: (UnixMillis, Instant),
    requests: AtomicU64,
    faults: Faults,
}

impl Shared {
    fn now(&self) -> UnixMillis {
        let (wall, monotonic) = self.started;
        wall + monotonic.elapsed().as_millis() as UnixMillis
    }

    fn broker(&self) -> MutexGuard<'_, Broker> {
        self.broker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn arrivals(&self, queue: &str) -> Arc<Notify> {
        let mut arrivals = self.arrivals.lock().unwrap_or_else(PoisonError::into_inner);
        arrivals.entry(queue.to_owned()).or_default().clone()
    }
}

/// A running emulator, served on the actix system it was started in.
pub struct Emulator {
    shared: Arc<Shared>,
    address: SocketAddr,
    handle: ServerHandle,
}

impl Emulator {
    /// Binds the address and starts serving in the background.
    ///
    /// # Errors
    /// The address cannot be bound, or a declared topic leads to a queue that is not declared.
    pub fn start(options: EmulatorOptions) -> std::io::Result<Self> {
        let listener = TcpListener::bind(options.listen)?;
        let address = listener.local_addr()?;
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = wall.as_millis() as UnixMillis;
        let shared = Arc::new(Shared {
            broker: Mutex::new(broker_of(now, options.queues, options.topics)?),
            arrivals: Mutex::default(),
            credentials: Mutex::new(options.credentials),
            address: format!("http://{address}"),
            started: (now, Instant::now()),
            requests: AtomicU64::new(0),
            faults: Faults::default(),
        });
        let server = serve(listener, shared.clone())?;
        let handle = server.handle();
        actix::spawn(server);
        Ok(Self { shared, address, handle })
    }

    /// The address that was bound.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The endpoint for clients.
    pub fn endpoint(&self) -> String {
        self.shared.address.clone()
    }

    /// Looks at or changes the queues directly, with the emulator's own time.
    pub fn with_broker<T>(&self, f: impl FnOnce(&mut Broker, UnixMillis) -> T) -> T {
        let now = self.shared.now();
        f(&mut self.shared.broker(), now)
    }

    /// Lets the next `times` requests for `action` go wrong.
    pub fn inject(&self, action: &str, fault: &Fault, times: usize) {
        self.shared.faults.add(action, fault, times);
    }

    /// Forgets the faults that are still to come.
    pub fn heal(&self) {
        self.shared.faults.clear();
    }

    /// How many requests there were.
    pub fn requests(&self) -> u64 {
        self.shared.requests.load(Ordering::Relaxed)
    }

    /// Changes the credentials that signatures are checked against.
    pub fn set_credentials(&self, credentials: Option<Credentials>) {
        let mut current = self.shared.credentials.lock().unwrap_or_else(PoisonError::into_inner);
        *current = credentials;
    }

    /// Stops serving; requests in the air are cut off.
    pub async fn stop(self) {
        self.handle.stop(false).await;
    }
}

fn broker_of(
    now: UnixMillis,
    queues: Vec<QueueSpec>,
    topics: Vec<TopicSpec>,
) -> std::io::Result<Broker> {
    let mut broker = Broker::default();
    let refuse = |what: String| std::io::Error::new(std::io::ErrorKind::InvalidInput, what);
    for QueueSpec { name, attributes } in queues {
        let made = broker.create_queue(now, &name, attributes).map(drop);
        made.map_err(|error| refuse(format!("queue {name}: {error}")))?;
    }
    for TopicSpec { name, subscriptions } in topics {
        broker.create_topic(&name);
        for subscription in subscriptions {
            let queue = subscription.queue.clone();
            let made = broker.subscribe(&name, subscription);
            made.map_err(|error| refuse(format!("topic {name}, queue {queue}: {error}")))?;
        }
    }
    Ok(broker)
}

fn serve(listener: TcpListener, shared: Arc<Shared>) -> std::io::Result<Server> {
    let app = move || {
        App::new()
            .app_data(web::Data::from(shared.clone()))
            .app_data(web::PayloadConfig::new(MAX_REQUEST_BYTES))
            .default_service(web::to(answer))
    };
    let server = HttpServer::new(app)
        .workers(WORKERS)
        .keep_alive(KEEP_ALIVE)
        .disable_signals()
        .listen(listener)?;
    Ok(server.run())
}

/// Application errors are answered with HTTP 200, as CMQ does.
async fn answer(request: HttpRequest, body: web::Bytes, shared: web::Data<Shared>) -> HttpResponse {
    if !matches!(request.path(), "/" | crate::cmq::DEFAULT_PATH) {
        return HttpResponse::NotFound().finish();
    }
    let request_id = shared.requests.fetch_add(1, Ordering::Relaxed).to_string();
    let parameters = match request.method().as_str() {
        "GET" => Parameters::from_urlencoded(request.query_string().as_bytes()),
        _ => Parameters::from_urlencoded(&body),
    };
    let fault = shared.faults.take(parameters.get("Action").unwrap_or(""));
    if let Some(fault) = fault.clone().filter(|fault| !fault.lets_through()) {
        return faults::commit(fault, String::new()).await;
    }
    let answer = match handle(&request, &parameters, &shared).await {
        Ok(fields) => success(&request_id, fields),
        Err(refusal) => refusal.to_json(&request_id),
    };
    match fault {
        Some(fault) => faults::commit(fault, answer.to_string()).await,
        None => HttpResponse::Ok().json(answer),
    }
}

async fn handle(
    request: &HttpRequest,
    parameters: &Parameters,
    shared: &Shared,
) -> Result<Value, Refusal> {
    let method = request.method().as_str();
    if !matches!(method, "GET" | "POST") {
        let text = format!("unexpected http {method} only GET or POST is supported");
        return Err(Refusal::parameters(10410, text));
    }
    let action = parameters.get("Action").ok_or_else(|| Refusal::missing("Action"))?;
    let credentials = shared.credentials.lock().unwrap_or_else(PoisonError::into_inner).clone();
    if let Some(credentials) = credentials {
        authenticate(request, parameters, &credentials, shared.now())?;
    }
    let receive = ReceiveRequest::read(&mut shared.broker(), action, parameters)?;
    if let Some(receive) = receive {
        return long_poll(shared, &receive).await;
    }
    let now = shared.now();
    let done = actions::perform(&mut shared.broker(), now, action, parameters, &shared.address)?;
    for queue in &done.woken_queues {
        shared.arrivals(queue).notify_waiters();
    }
    Ok(done.fields)
}

fn authenticate(
    request: &HttpRequest,
    parameters: &Parameters,
    credentials: &Credentials,
    now: UnixMillis,
) -> Result<(), Refusal> {
    if parameters.get("SecretId") != Some(credentials.secret_id.as_str()) {
        return Err(Refusal::authentication("the secret id is not known"));
    }
    let timestamp = parameters.get("Timestamp").and_then(|text| text.parse::<u64>().ok());
    if timestamp.is_none_or(|time| time.abs_diff(now / 1_000) > MAX_CLOCK_SKEW_SECONDS) {
        return Err(Refusal::authentication("the timestamp is missing or too far from now"));
    }
    if credentials.token() != parameters.get("Token") {
        return Err(Refusal::authentication("the token is not right"));
    }
    let host = request.headers().get("host").and_then(|host| host.to_str().ok()).unwrap_or("");
    let target = Target { method: request.method().as_str(), host, path: request.path() };
    match signature::verify(target, parameters, credentials.secret_key()) {
        true => Ok(()),
        false => Err(Refusal::authentication("the signature is not right")),
    }
}

/// Answers as soon as there is a message, or when the wait is over.
async fn long_poll(shared: &Shared, receive: &ReceiveRequest) -> Result<Value, Refusal> {
    let arrivals = shared.arrivals(&receive.queue);
    let wait = Duration::from_secs(receive.polling_wait_seconds.into());
    let deadline = Instant::now() + wait;
    loop {
        let arrival = arrivals.notified();
        tokio::pin!(arrival);
        // Registered before looking, so that no message slips in between.
        arrival.as_mut().enable();
        let now = shared.now();
        let next_wake = {
            let mut broker = shared.broker();
            if let Some(fields) = receive.try_receive(&mut broker, now)? {
                return Ok(fields);
            }
            broker.queue(&receive.queue)?.queue.next_wake()
        };
        if Instant::now() >= deadline {
            return Err(Refusal::no_message());
        }
        let until_wake = next_wake.map(|at| Duration::from_millis(at.saturating_sub(now).max(1)));
        let wake = until_wake.map_or(deadline, |wait| deadline.min(Instant::now() + wait));
        tokio::select! {
            () = arrival => {}
            () = tokio::time::sleep_until(wake) => {}
        }
    }
}
