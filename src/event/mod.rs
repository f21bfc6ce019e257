//! From a message body to an [`Event`]: encoding, strict JSON, envelope, digest. No I/O, and any
//! bytes at all end in an event or in [`Malformed`].

mod body;
mod digest;
mod envelope;
pub mod json;
mod pointer;
mod time;

use chrono::{DateTime, Utc};
use serde::de::DeserializeOwned;

pub use body::{BodyEncoding, decode_body};
pub use digest::Digest;
pub use envelope::{Envelope, EventIdPointers, Preset};
pub use pointer::{Pointer, PointerError};
pub use time::{EventReader, EventTimeName, EventTimeRule, EventTimeSource};

/// Longest event id, in bytes: it is part of a primary key on every backend.
pub const MAX_EVENT_ID_BYTES: usize = 512;
/// Longest event type, in bytes.
pub const MAX_EVENT_TYPE_BYTES: usize = 255;

/// A business event as it is claimed, compared and applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The idempotency key: compared byte by byte, 1 to 512 bytes.
    pub id: String,
    /// Selects the applier, 1 to 255 bytes.
    pub event_type: String,
    /// When the event happened, by the producer's word.
    pub occurred_at: Option<DateTime<Utc>>,
    /// The payload.
    pub payload: Payload,
    /// Of event type and payload; equal digests mean the same event.
    pub digest: Digest,
    /// The time that is fixed with the id, where the event type has one.
    pub event_time: Option<DateTime<Utc>>,
    /// Where the digest covers the time, the one that does not: claims from before the event type was
    /// told to have such a time hold that.
    pub digest_without_time: Option<Digest>,
}

/// A payload as the JSON text that the producer sent, already known to be strict JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Payload(String);

impl Payload {
    /// The JSON text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Reads the payload into a type of the applier's.
    ///
    /// # Errors
    /// The payload does not fit the type.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_str(&self.0)
    }

    /// The text of the string, number or boolean at `pointer`; nothing where there is none.
    pub fn scalar(&self, pointer: &Pointer) -> Option<String> {
        let json = self.json();
        let found = pointer.find(&json)?;
        match found.node {
            json::Node::String(_) => found.as_str().map(str::to_owned),
            json::Node::Number(_) | json::Node::Bool(_) => Some(found.text.to_owned()),
            json::Node::Null | json::Node::Array(_) | json::Node::Object(_) => None,
        }
    }

    /// The payload as a tree.
    pub fn json(&self) -> json::Json<'_> {
        json::parse(&self.0).expect("the payload was parsed before")
    }
}

/// Why a body is no event. Says what is wrong and where, never what the body contains.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub String);

impl Malformed {
    fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}
