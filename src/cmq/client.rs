//! The HTTP client: one method an action, POST and signed.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use reqwest::Url;
use reqwest::header::{CONTENT_TYPE, HeaderValue};

use super::answer::{self, Answer, AnswerError, excerpt};
use super::protocol::{DEFAULT_PATH, MAX_BATCH_MESSAGES, MAX_MESSAGE_BYTES};
use super::signature::{self, SignatureMethod, Target};
use super::{
    ApiErrorCode, CmqError, CredentialProvider, Credentials, DeleteFailure, Message, Parameters,
};

/// Time to establish a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time a request may take beyond its long poll.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Idle connections are closed after this, before a server's usual keep-alive limit.
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Largest answer that is read: a full batch of the largest bodies, each byte escaped twofold, and
/// some room. Longer answers are an error, so that no server can fill the memory.
const MAX_ANSWER_BYTES: usize = 2 * MAX_BATCH_MESSAGES * MAX_MESSAGE_BYTES + (1 << 20);

/// A CMQ endpoint: scheme, host and path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    url: Url,
    host: String,
}

/// An endpoint's URL cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{url:?} is not an endpoint: {reason}; write for example http://127.0.0.1:19324")]
pub struct EndpointError {
    url: String,
    reason: String,
}

impl Endpoint {
    /// Reads an `http://` or `https://` URL. Without a path of its own it gets `/v2/index.php`.
    ///
    /// # Errors
    /// Not a URL, another scheme, or user, query or fragment in it.
    pub fn parse(text: &str) -> Result<Self, EndpointError> {
        let refuse = |reason: &str| EndpointError { url: text.into(), reason: reason.into() };
        let mut url = Url::parse(text).map_err(|error| refuse(&error.to_string()))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(refuse("its scheme must be http or https"));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(EndpointError {
                url: "…".into(),
                reason: "it must not carry a user or password".into(),
            });
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(refuse("it must not carry a query or fragment"));
        }
        let host = url.host_str().ok_or_else(|| refuse("it names no host"))?;
        let host = match url.port() {
            Some(port) => format!("{host}:{port}"),
            None => host.to_owned(),
        };
        if url.path() == "/" {
            url.set_path(DEFAULT_PATH);
        }
        Ok(Self { url, host })
    }

    fn target(&self) -> Target<'_> {
        Target { method: "POST", host: &self.host, path: self.url.path() }
    }
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.url.fmt(f)
    }
}

/// How requests are signed.
#[derive(Debug, Clone)]
pub struct ClientOptions {
    /// Whose requests these are.
    pub credentials: CredentialProvider,
    /// Hash of the signature.
    pub signature_method: SignatureMethod,
}

/// A client of one endpoint. Cheap to clone; clones share their connections.
#[derive(Debug, Clone)]
pub struct Client {
    http: reqwest::Client,
    endpoint: Endpoint,
    options: ClientOptions,
}

impl Client {
    /// A client of `endpoint`.
    ///
    /// # Errors
    /// The TLS library could not be initialised.
    pub fn new(endpoint: Endpoint, options: ClientOptions) -> Result<Self, CmqError> {
        let http = http_client().map_err(|error| CmqError::Transport {
            action: "(set up HTTP)",
            endpoint: endpoint.to_string(),
            reason: with_causes(&error),
        })?;
        Ok(Self { http, endpoint, options })
    }

    /// The same client with connections of its own: a connection is driven by the thread that made it,
    /// and hangs when that thread does.
    pub fn with_own_connections(&self) -> Self {
        let http = http_client().expect("it could be made before");
        Self { http, ..self.clone() }
    }

    /// The endpoint that requests go to.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// SendMessage: returns the message id.
    pub async fn send_message(
        &self,
        queue: &str,
        body: &str,
        delay_seconds: u32,
    ) -> Result<String, CmqError> {
        let mut parameters = queue_parameters(queue);
        parameters.push("msgBody", body);
        parameters.push("delaySeconds", delay_seconds.to_string());
        self.call("SendMessage", parameters, 0, answer::sent).await
    }

    /// BatchSendMessage, 16 bodies at most: returns the message ids in the bodies' order.
    pub async fn batch_send_message(
        &self,
        queue: &str,
        bodies: &[&str],
        delay_seconds: u32,
    ) -> Result<Vec<String>, CmqError> {
        let mut parameters = queue_parameters(queue);
        parameters.push_array("msgBody", bodies.iter().copied());
        parameters.push("delaySeconds", delay_seconds.to_string());
        self.call("BatchSendMessage", parameters, 0, answer::sent_list).await
    }

    /// ReceiveMessage: `None` when nothing came within `polling_wait_seconds` (0 to 30).
    pub async fn receive_message(
        &self,
        queue: &str,
        polling_wait_seconds: u32,
    ) -> Result<Option<Message>, CmqError> {
        let mut parameters = queue_parameters(queue);
        parameters.push("pollingWaitSeconds", polling_wait_seconds.to_string());
        self.call("ReceiveMessage", parameters, polling_wait_seconds, answer::received).await
    }

    /// BatchReceiveMessage: up to `limit` (1 to 16) messages; none when nothing came within
    /// `polling_wait_seconds` (0 to 30).
    pub async fn batch_receive_message(
        &self,
        queue: &str,
        limit: usize,
        polling_wait_seconds: u32,
    ) -> Result<Vec<Message>, CmqError> {
        let mut parameters = queue_parameters(queue);
        parameters.push("numOfMsg", limit.to_string());
        parameters.push("pollingWaitSeconds", polling_wait_seconds.to_string());
        let read = answer::received_list;
        self.call("BatchReceiveMessage", parameters, polling_wait_seconds, read).await
    }

    /// DeleteMessage.
    pub async fn delete_message(&self, queue: &str, receipt_handle: &str) -> Result<(), CmqError> {
        let mut parameters = queue_parameters(queue);
        parameters.push("receiptHandle", receipt_handle);
        self.call("DeleteMessage", parameters, 0, answer::done).await
    }

    /// BatchDeleteMessage, 16 handles at most: returns the handles that could not be deleted, each
    /// with its reason.
    pub async fn batch_delete_message(
        &self,
        queue: &str,
        receipt_handles: &[&str],
    ) -> Result<Vec<DeleteFailure>, CmqError> {
        let mut parameters = queue_parameters(queue);
        parameters.push_array("receiptHandle", receipt_handles.iter().copied());
        self.call("BatchDeleteMessage", parameters, 0, answer::deleted_list).await
    }

    /// PublishMessage to a topic: returns the message id. `tags` and `routing_key` select the
    /// subscriptions that get it.
    pub async fn publish_message(
        &self,
        topic: &str,
        body: &str,
        tags: &[&str],
        routing_key: Option<&str>,
    ) -> Result<String, CmqError> {
        let mut parameters = topic_parameters(topic, tags, routing_key);
        parameters.push("msgBody", body);
        self.call("PublishMessage", parameters, 0, answer::sent).await
    }

    /// BatchPublishMessage, 16 bodies at most: returns the message ids in the bodies' order.
    pub async fn batch_publish_message(
        &self,
        topic: &str,
        bodies: &[&str],
        tags: &[&str],
        routing_key: Option<&str>,
    ) -> Result<Vec<String>, CmqError> {
        let mut parameters = topic_parameters(topic, tags, routing_key);
        parameters.push_array("msgBody", bodies.iter().copied());
        self.call("BatchPublishMessage", parameters, 0, answer::sent_list).await
    }

    /// QueryQueueRoute: the addresses that serve the queue. Neither receives nor changes anything, so
    /// it also tells whether queue and credentials are right.
    pub async fn query_queue_route(&self, queue: &str) -> Result<Vec<String>, CmqError> {
        self.call("QueryQueueRoute", queue_parameters(queue), 0, answer::route).await
    }

    /// Signs and sends, and reads the answer. Credentials that are refused are reported to their
    /// provider.
    async fn call<T>(
        &self,
        action: &'static str,
        parameters: Parameters,
        polling_wait_seconds: u32,
        read: impl FnOnce(&[u8]) -> Answer<T>,
    ) -> Result<T, CmqError> {
        let credentials = self.options.credentials.get().await;
        let body = self.exchange(action, parameters, polling_wait_seconds, &credentials).await?;
        read(&body).map_err(|error| match error {
            AnswerError::Foreign(reason) => self.bad_answer(action, reason),
            AnswerError::Refused { code, message, request_id } => {
                if [ApiErrorCode::AUTHENTICATION_FAILED, ApiErrorCode::ACCESS_DENIED]
                    .contains(&code)
                {
                    self.options.credentials.refused(&credentials);
                }
                CmqError::Api { action, code, message, request_id }
            }
        })
    }

    async fn exchange(
        &self,
        action: &'static str,
        parameters: Parameters,
        polling_wait_seconds: u32,
        credentials: &Credentials,
    ) -> Result<Vec<u8>, CmqError> {
        let wait = Duration::from_secs(u64::from(polling_wait_seconds));
        let mut response = self
            .http
            .post(self.endpoint.url.clone())
            .header(CONTENT_TYPE, HeaderValue::from_static("application/x-www-form-urlencoded"))
            .body(self.signed(action, parameters, credentials).to_urlencoded())
            .timeout(wait + REQUEST_TIMEOUT)
            .send()
            .await
            .map_err(|error| self.transport(action, &error))?;
        let status = response.status().as_u16();
        let body =
            read_at_most(&mut response, MAX_ANSWER_BYTES).await.map_err(|error| match error {
                ReadError::TooLong(_) => self.bad_answer(action, error.to_string()),
                ReadError::Transport(error) => self.transport(action, &error),
            })?;
        if status != 200 {
            let endpoint = self.endpoint.to_string();
            return Err(CmqError::Http { action, endpoint, status, excerpt: excerpt(&body) });
        }
        Ok(body)
    }

    fn signed(
        &self,
        action: &'static str,
        parameters: Parameters,
        credentials: &Credentials,
    ) -> Parameters {
        let signature_method = &self.options.signature_method;
        let timestamp = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let mut signed = Parameters::for_action(action);
        signed.push("Timestamp", timestamp.to_string());
        signed.push("Nonce", rand::random_range(1..i64::MAX).to_string());
        signed.push("SecretId", &credentials.secret_id);
        signed.push("SignatureMethod", signature_method.wire_name());
        signed.push("RequestClient", concat!("hapax/", env!("CARGO_PKG_VERSION")));
        if let Some(token) = credentials.token() {
            signed.push("Token", token);
        }
        signed.extend(parameters);
        let target = self.endpoint.target();
        let signature =
            signature::sign(target, &signed, *signature_method, credentials.secret_key());
        signed.push("Signature", signature);
        signed
    }

    fn bad_answer(&self, action: &'static str, reason: String) -> CmqError {
        CmqError::BadAnswer { action, endpoint: self.endpoint.to_string(), reason }
    }

    fn transport(&self, action: &'static str, error: &reqwest::Error) -> CmqError {
        let reason = with_causes(error);
        CmqError::Transport { action, endpoint: self.endpoint.to_string(), reason }
    }
}

/// A body was not read to its end.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    #[error("it is longer than {0} bytes")]
    TooLong(usize),
    #[error(transparent)]
    Transport(#[from] reqwest::Error),
}

/// Reads a body of at most `max_bytes`, so that no server can fill the memory.
pub(super) async fn read_at_most(
    response: &mut reqwest::Response,
    max_bytes: usize,
) -> Result<Vec<u8>, ReadError> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        if body.len() + chunk.len() > max_bytes {
            return Err(ReadError::TooLong(max_bytes));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

fn http_client() -> reqwest::Result<reqwest::Client> {
    reqwest::Client::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .pool_idle_timeout(POOL_IDLE_TIMEOUT)
        .tcp_nodelay(true)
        .redirect(reqwest::redirect::Policy::none())
        .build()
}

fn queue_parameters(queue: &str) -> Parameters {
    let mut parameters = Parameters::default();
    parameters.push("queueName", queue);
    parameters
}

fn topic_parameters(topic: &str, tags: &[&str], routing_key: Option<&str>) -> Parameters {
    let mut parameters = Parameters::default();
    parameters.push("topicName", topic);
    parameters.push_array("msgTag", tags.iter().copied());
    if let Some(key) = routing_key {
        parameters.push("routingKey", key);
    }
    parameters
}

/// reqwest's own text leaves out what the operating system said.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_without_a_path_gets_the_documented_one() {
        for (text, shown, host) in [
            ("http://127.0.0.1:19324", "http://127.0.0.1:19324/v2/index.php", "127.0.0.1:19324"),
            ("https://cmq.example/", "https://cmq.example/v2/index.php", "cmq.example"),
            ("https://cmq.example:443/x", "https://cmq.example/x", "cmq.example"),
        ] {
            let endpoint = Endpoint::parse(text).unwrap();
            assert_eq!((endpoint.to_string().as_str(), endpoint.host.as_str()), (shown, host));
        }
    }

    #[test]
    fn an_unusable_endpoint_is_refused_and_shows_no_password() {
        for text in ["", "127.0.0.1:19324", "ftp://h", "http://h/?a=b", "http://h/#f"] {
            assert!(Endpoint::parse(text).is_err(), "{text}");
        }
        let error = Endpoint::parse("http://user:hunter2@h").unwrap_err().to_string();
        assert!(!error.contains("hunter2"), "{error}");
    }
}
