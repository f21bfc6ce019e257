//! Where in a body the event id, type, time and payload stand.

use chrono::{DateTime, Utc};
use serde::Deserialize;

use super::json::{self, Json, Node};
use super::{Digest, Event, MAX_EVENT_ID_BYTES, MAX_EVENT_TYPE_BYTES, Malformed, Payload, Pointer};

/// A known envelope, from which single pointers may deviate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Preset {
    /// `event_id`, `event_type`, `occurred_at` and `payload` at the top.
    #[default]
    Native,
    /// CloudEvents 1.0 in JSON: the id is source *and* id, the payload `data`.
    CloudEvents,
}

/// One pointer, or several whose values together are the event id.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged, expecting = "expected a JSON Pointer or a list of JSON Pointers")]
pub enum EventIdPointers {
    /// The id is one string of the body.
    One(Pointer),
    /// The id is made of several strings of the body.
    Several(Vec<Pointer>),
}

impl EventIdPointers {
    fn as_slice(&self) -> &[Pointer] {
        match self {
            Self::One(pointer) => std::slice::from_ref(pointer),
            Self::Several(pointers) => pointers,
        }
    }
}

/// How an event is read out of a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Envelope {
    preset: Preset,
    event_id: EventIdPointers,
    event_type: Pointer,
    occurred_at: Pointer,
    payload: Pointer,
}

impl Envelope {
    /// The preset with what deviates from it.
    pub fn new(
        preset: Preset,
        event_id: Option<EventIdPointers>,
        event_type: Option<Pointer>,
        occurred_at: Option<Pointer>,
        payload: Option<Pointer>,
    ) -> Self {
        let pointer = |text: &str| text.parse::<Pointer>().expect("the presets are right");
        let (ids, of_type, at, data): (&[&str], _, _, _) = match preset {
            Preset::Native => (&["/event_id"], "/event_type", "/occurred_at", "/payload"),
            Preset::CloudEvents => (&["/source", "/id"], "/type", "/time", "/data"),
        };
        let ids = || EventIdPointers::Several(ids.iter().copied().map(pointer).collect());
        Self {
            preset,
            event_id: event_id.unwrap_or_else(ids),
            event_type: event_type.unwrap_or_else(|| pointer(of_type)),
            occurred_at: occurred_at.unwrap_or_else(|| pointer(at)),
            payload: payload.unwrap_or_else(|| pointer(data)),
        }
    }

    /// Reads an event out of a body's JSON text.
    ///
    /// # Errors
    /// The text is not strict JSON, or does not have what the envelope demands.
    pub fn open(&self, text: &str) -> Result<Event, Malformed> {
        let json = json::parse(text)?;
        if self.preset == Preset::CloudEvents {
            check_cloudevents(&json)?;
        }
        let event_type = string_at(&json, &self.event_type)?;
        check_key("event type", &event_type, MAX_EVENT_TYPE_BYTES)?;
        let id = self.event_id(&json)?;
        check_key("event id", &id, MAX_EVENT_ID_BYTES)?;
        let occurred_at = self.occurred_at(&json)?;
        let (payload, digest) = self.payload(&json, &event_type)?;
        let (event_time, digest_without_time) = (None, None);
        Ok(Event { id, event_type, occurred_at, payload, digest, event_time, digest_without_time })
    }

    fn event_id(&self, json: &Json<'_>) -> Result<String, Malformed> {
        match self.event_id.as_slice() {
            [pointer] => string_at(json, pointer),
            pointers => {
                let parts: Vec<String> = pointers
                    .iter()
                    .map(|pointer| Ok(escape_part(&string_at(json, pointer)?)))
                    .collect::<Result<_, Malformed>>()?;
                Ok(parts.join(" "))
            }
        }
    }

    fn occurred_at(&self, json: &Json<'_>) -> Result<Option<DateTime<Utc>>, Malformed> {
        let at = &self.occurred_at;
        match at.find(json).map(|found| &found.node) {
            None | Some(Node::Null) => Ok(None),
            Some(Node::String(text)) => match DateTime::parse_from_rfc3339(text) {
                Ok(time) => Ok(Some(time.to_utc())),
                Err(error) => {
                    Err(Malformed::new(format!("{at} is not a time as in RFC 3339: {error}")))
                }
            },
            Some(_) => Err(Malformed::new(format!("{at} is not a string with an RFC 3339 time"))),
        }
    }

    fn payload(&self, json: &Json<'_>, event_type: &str) -> Result<(Payload, Digest), Malformed> {
        if let Some(found) = self.payload.find(json) {
            return Ok((Payload(found.text.to_owned()), Digest::of(event_type, found)?));
        }
        if self.preset != Preset::CloudEvents {
            return Err(Malformed::new(format!("{} (the payload) is missing", self.payload)));
        }
        let text = match json.member("data_base64") {
            Some(data) => format!("{{\"data_base64\":{}}}", data.text),
            None => "null".to_owned(),
        };
        let digest = Digest::of(event_type, &json::parse(&text)?)?;
        Ok((Payload(text), digest))
    }
}

impl Default for Envelope {
    fn default() -> Self {
        Self::new(Preset::Native, None, None, None, None)
    }
}

/// What CloudEvents 1.0 demands beyond the pointers.
fn check_cloudevents(json: &Json<'_>) -> Result<(), Malformed> {
    if json.member("specversion").and_then(Json::as_str) != Some("1.0") {
        return Err(Malformed::new("not a CloudEvent: /specversion is not \"1.0\""));
    }
    for name in ["id", "source"] {
        if json.member(name).and_then(Json::as_str).is_none_or(str::is_empty) {
            return Err(Malformed::new(format!("not a CloudEvent: /{name} is not a text")));
        }
    }
    match (json.member("data"), json.member("data_base64")) {
        (Some(_), Some(_)) => Err(Malformed::new("a CloudEvent with both data and data_base64")),
        _ => Ok(()),
    }
}

/// Parts are joined by a space, so a space inside a part must look different.
fn escape_part(part: &str) -> String {
    part.replace('%', "%25").replace(' ', "%20")
}

fn string_at(json: &Json<'_>, pointer: &Pointer) -> Result<String, Malformed> {
    match pointer.find(json) {
        None => Err(Malformed::new(format!("{pointer} is missing"))),
        Some(found) => match found.as_str() {
            Some(text) => Ok(text.to_owned()),
            None => Err(Malformed::new(format!("{pointer} is {}, not a string", found.kind()))),
        },
    }
}

/// Keys go into indexed text columns, and PostgreSQL's cannot hold NUL.
fn check_key(what: &str, text: &str, max_bytes: usize) -> Result<(), Malformed> {
    if text.is_empty() {
        return Err(Malformed::new(format!("the {what} is empty")));
    }
    if text.len() > max_bytes {
        return Err(Malformed::new(format!(
            "the {what} is {} bytes long; {max_bytes} at most are allowed",
            text.len()
        )));
    }
    match text.contains('\0') {
        true => Err(Malformed::new(format!("the {what} contains NUL"))),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(text: &str) -> Result<Event, String> {
        Envelope::default().open(text).map_err(|malformed| malformed.to_string())
    }

    #[test]
    fn a_native_body_is_an_event() {
        let event = open(
            r#"{"event_id":"e-1","event_type":"points.awarded","extra":1,
                "occurred_at":"2025-12-01T08:00:00+08:00","payload":{"points": 10}}"#,
        )
        .unwrap();
        assert_eq!((event.id.as_str(), event.event_type.as_str()), ("e-1", "points.awarded"));
        assert_eq!(event.occurred_at.unwrap().to_rfc3339(), "2025-12-01T00:00:00+00:00");
        assert_eq!(event.payload.as_str(), r#"{"points": 10}"#);
    }

    #[test]
    fn what_is_wrong_with_a_body_is_said() {
        let id = "x".repeat(10_000);
        for (body, reason) in [
            ("", "not JSON"),
            ("[]", "/event_type is missing"),
            (r#"{"event_type":"t","event_id":42,"payload":{}}"#, "/event_id is a number, not"),
            (r#"{"event_type":"t","event_id":"","payload":{}}"#, "the event id is empty"),
            (r#"{"event_type":"t","event_id":"\u0000","payload":{}}"#, "the event id contains NUL"),
            (r#"{"event_type":"t\u0000","event_id":"i","payload":{}}"#, "type contains NUL"),
            (r#"{"event_type":null,"event_id":"i","payload":{}}"#, "/event_type is null, not"),
            (r#"{"event_type":"t","event_id":"i"}"#, "/payload (the payload) is missing"),
            (r#"{"event_type":"t","event_id":"i","payload":1,"payload":1}"#, "duplicate key"),
            (r#"{"event_type":"t","event_id":"i","payload":1,"occurred_at":"now"}"#, "RFC 3339"),
            (r#"{"event_type":"t","event_id":"i","payload":1,"occurred_at":17}"#, "RFC 3339"),
            (
                &format!(r#"{{"event_type":"t","event_id":"{id}","payload":{{}}}}"#),
                "the event id is 10000 bytes long; 512 at most",
            ),
        ] {
            let error = open(body).unwrap_err();
            assert!(error.contains(reason), "{error:?} should say {reason:?}");
        }
    }

    #[test]
    fn pointers_may_deviate_from_the_preset() {
        let pointer = |text: &str| text.parse::<Pointer>().ok();
        let ids = EventIdPointers::Several(vec![pointer("/a").unwrap(), pointer("/b").unwrap()]);
        let envelope =
            Envelope::new(Preset::Native, Some(ids), pointer("/kind"), None, pointer(""));
        let text = r#"{"a":"x y","b":"z","kind":"k"}"#;
        let event = envelope.open(text).unwrap();
        assert_eq!((event.id.as_str(), event.event_type.as_str()), ("x%20y z", "k"));
        assert_eq!(event.payload.as_str(), text);
    }

    #[test]
    fn a_cloudevent_is_identified_by_source_and_id() {
        let envelope = Envelope::new(Preset::CloudEvents, None, None, None, None);
        let open = |source: &str, id: &str, rest: &str| {
            envelope.open(&format!(
                r#"{{"specversion":"1.0","type":"t","source":"{source}","id":"{id}"{rest}}}"#
            ))
        };
        let event = open("/shop", "1", r#","time":"2025-01-01T00:00:00Z","data":{"a":1}"#).unwrap();
        assert_eq!((event.id.as_str(), event.payload.as_str()), ("/shop 1", r#"{"a":1}"#));
        assert!(event.occurred_at.is_some());
        assert_ne!(open("a", "b c", "").unwrap().id, open("a b", "c", "").unwrap().id);
        assert_eq!(open("a", "b", "").unwrap().payload.as_str(), "null");
        let text = open("a", "b", r#","data":"AA==""#).unwrap();
        let binary = open("a", "b", r#","data_base64":"AA==""#).unwrap();
        assert_ne!(text.digest, binary.digest);
        assert!(open("", "b", "").is_err());
        assert!(open("a", "b", r#","data":1,"data_base64":"AA==""#).is_err());
        assert!(envelope.open(r#"{"type":"t","source":"a","id":"b"}"#).is_err());
    }
}
