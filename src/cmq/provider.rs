//! Where credentials come from, and when they are read anew.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use reqwest::Url;
use secrecy::SecretString;
use serde::Deserialize;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::Credentials;
use super::client::read_at_most;

/// Temporary credentials are replaced this long before they expire.
const REFRESH_BEFORE_EXPIRY: Duration = Duration::from_secs(300);
/// Shortest time between two readings, so that wrong credentials never spin.
const MIN_REFRESH_INTERVAL: Duration = Duration::from_secs(5);
/// Time that the metadata endpoint may take.
const METADATA_TIMEOUT: Duration = Duration::from_secs(5);
/// Largest answer of the metadata endpoint, in bytes.
const MAX_METADATA_BYTES: usize = 64 << 10;

/// Where credentials come from.
#[derive(Debug, Clone)]
pub enum CredentialSource {
    /// They are given and stay.
    Fixed(Credentials),
    /// A JSON file with `secret_id`, `secret_key` and, if temporary, `token` and `expires_at` (Unix
    /// seconds).
    File(PathBuf),
    /// The role of the machine, from the cloud's instance metadata: the whole URL, for example
    /// `http://metadata.tencentyun.com/latest/meta-data/cam/security-credentials/ROLE`.
    InstanceRole(Url),
}

/// Credentials could not be read.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the credentials cannot be read from {place}: {reason}")]
pub struct ProviderError {
    place: String,
    reason: String,
}

/// The current credentials, kept fresh. Cheap to clone.
#[derive(Debug, Clone)]
pub struct CredentialProvider(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    source: CredentialSource,
    current: RwLock<Current>,
    /// When they were read last; the lock lets one reader read.
    last_reading: Mutex<Instant>,
}

#[derive(Debug, Clone)]
struct Current {
    credentials: Credentials,
    /// Unix seconds.
    expires_at: Option<u64>,
    refused: bool,
}

impl From<Credentials> for CredentialProvider {
    fn from(credentials: Credentials) -> Self {
        let current = Current::new(credentials.clone(), None);
        Self::with(CredentialSource::Fixed(credentials), current)
    }
}

impl CredentialProvider {
    /// Reads the credentials for the first time.
    ///
    /// # Errors
    /// They cannot be read.
    pub async fn read(source: CredentialSource) -> Result<Self, ProviderError> {
        let current = source.read().await?;
        Ok(Self::with(source, current))
    }

    fn with(source: CredentialSource, current: Current) -> Self {
        let last_reading = Mutex::new(Instant::now());
        Self(Arc::new(Inner { source, current: RwLock::new(current), last_reading }))
    }

    /// The credentials to sign with. Reads them anew if they were refused or expire soon; if that
    /// fails, the old ones are tried further.
    pub async fn get(&self) -> Credentials {
        if self.current().wants_refresh() && !matches!(self.0.source, CredentialSource::Fixed(_)) {
            self.refresh().await;
        }
        self.current().credentials
    }

    /// The service refused `credentials`: they are read anew before the next request.
    pub fn refused(&self, credentials: &Credentials) {
        let mut current = self.0.current.write().unwrap_or_else(PoisonError::into_inner);
        // A slower request may still report the ones before.
        if current.credentials == *credentials {
            current.refused = true;
        }
    }

    fn current(&self) -> Current {
        self.0.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn refresh(&self) {
        let mut last_reading = self.0.last_reading.lock().await;
        if last_reading.elapsed() < MIN_REFRESH_INTERVAL || !self.current().wants_refresh() {
            return;
        }
        *last_reading = Instant::now();
        match self.0.source.read().await {
            Ok(current) => {
                let secret_id = current.credentials.secret_id.as_str();
                tracing::info!(secret_id, "credentials were read anew");
                *self.0.current.write().unwrap_or_else(PoisonError::into_inner) = current;
            }
            Err(error) => tracing::warn!(%error, "the credentials stay as they are for now"),
        }
    }
}

impl Current {
    fn new(credentials: Credentials, expires_at: Option<u64>) -> Self {
        Self { credentials, expires_at, refused: false }
    }

    fn wants_refresh(&self) -> bool {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let soon = (now + REFRESH_BEFORE_EXPIRY).as_secs();
        self.refused || self.expires_at.is_some_and(|at| at < soon)
    }
}

#[derive(Deserialize)]
struct FileFormat {
    secret_id: String,
    secret_key: SecretString,
    token: Option<SecretString>,
    expires_at: Option<u64>,
}

/// What `security-credentials/ROLE` of the instance metadata answers.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct RoleFormat {
    tmp_secret_id: String,
    tmp_secret_key: SecretString,
    token: Option<SecretString>,
    expired_time: Option<u64>,
}

impl CredentialSource {
    async fn read(&self) -> Result<Current, ProviderError> {
        match self {
            Self::Fixed(credentials) => Ok(Current::new(credentials.clone(), None)),
            Self::File(file) => {
                let refuse = |reason: String| ProviderError {
                    place: format!("the file {}", file.display()),
                    reason,
                };
                let bytes = std::fs::read(file).map_err(|error| refuse(error.to_string()))?;
                let FileFormat { secret_id, secret_key, token, expires_at } =
                    parse(&bytes).map_err(refuse)?;
                Ok(Current::new(Credentials::new(secret_id, secret_key, token), expires_at))
            }
            Self::InstanceRole(url) => {
                let refuse = |reason| ProviderError { place: url.to_string(), reason };
                let bytes = fetch(url.clone()).await.map_err(refuse)?;
                let RoleFormat { tmp_secret_id, tmp_secret_key, token, expired_time } =
                    parse(&bytes).map_err(refuse)?;
                let credentials = Credentials::new(tmp_secret_id, tmp_secret_key, token);
                Ok(Current::new(credentials, expired_time))
            }
        }
    }
}

/// serde_json's own text could show a part of a secret.
fn parse<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, String> {
    serde_json::from_slice(bytes).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        format!("it is not the JSON that was expected, at line {line}, column {column}")
    })
}

async fn fetch(url: Url) -> Result<Vec<u8>, String> {
    let text = |error: reqwest::Error| error.to_string();
    let client = reqwest::Client::builder().timeout(METADATA_TIMEOUT).no_proxy().build();
    let mut answer = client.map_err(text)?.get(url).send().await.map_err(text)?;
    if !answer.status().is_success() {
        return Err(format!("it answered HTTP {}", answer.status().as_u16()));
    }
    read_at_most(&mut answer, MAX_METADATA_BYTES).await.map_err(|error| error.to_string())
}
