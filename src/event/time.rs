//! The time that is fixed with an event's id: copies of an event have the same, whenever they are sent.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, SubsecRound, Utc};
use serde::Deserialize;

use super::{BodyEncoding, Envelope, Event, Malformed, decode_body};

/// Where an event type's time comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventTimeSource {
    /// The envelope's occurred-at, which the digest then covers: a producer that stamps its retries
    /// anew is found out by conflicts.
    OccurredAt,
    /// The id is a UUID of version 7 (RFC 9562, section 5.7).
    UuidV7,
    /// The id is a ULID (github.com/ulid/spec).
    Ulid,
    /// The id is a decimal number, the upper bits of which are milliseconds since an epoch.
    Snowflake {
        /// The epoch, in milliseconds since 1970.
        epoch_millis: u64,
        /// How many lower bits are no time.
        shift_bits: u32,
    },
}

impl fmt::Display for EventTimeSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OccurredAt => f.write_str("occurred_at"),
            Self::UuidV7 => f.write_str("uuidv7"),
            Self::Ulid => f.write_str("ulid"),
            Self::Snowflake { epoch_millis, shift_bits } => {
                write!(f, "snowflake from {epoch_millis} ms, shifted by {shift_bits} bits")
            }
        }
    }
}

/// The word for a source in the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum EventTimeName {
    OccurredAt,
    Uuidv7,
    Ulid,
    Snowflake,
}

/// How an event type's time is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventTimeRule {
    /// Where it comes from.
    pub source: EventTimeSource,
    /// How far in the future it may be.
    pub max_future_skew: Duration,
}

impl EventTimeRule {
    /// Gives `event` its time, and a digest that covers it where the id does not.
    fn apply(&self, event: &mut Event, now: DateTime<Utc>) -> Result<(), Malformed> {
        let time = match self.source {
            EventTimeSource::OccurredAt => event.occurred_at.ok_or_else(|| {
                Malformed::new("it has no occurred-at, by which events of its type are forgotten")
            })?,
            source => time_of_id(source, &event.id)?,
        };
        if time > now + self.max_future_skew {
            return Err(Malformed::new(format!(
                "its time {time} is more than {} s in the future",
                self.max_future_skew.as_secs()
            )));
        }
        if self.source == EventTimeSource::OccurredAt {
            event.digest_without_time = Some(event.digest);
            event.digest = event.digest.with_time(time);
        }
        // As exact as the databases keep it.
        event.event_time = Some(time.trunc_subsecs(6));
        Ok(())
    }
}

fn time_of_id(source: EventTimeSource, id: &str) -> Result<DateTime<Utc>, Malformed> {
    // An id of several parts ends with the one that the producer made.
    let id = id.rsplit(' ').next().unwrap_or(id);
    let (millis, what) = match source {
        EventTimeSource::UuidV7 => (uuid_v7_millis(id), "a UUID of version 7"),
        EventTimeSource::Ulid => (ulid_millis(id), "a ULID"),
        EventTimeSource::Snowflake { epoch_millis, shift_bits } => {
            let number = id.parse::<u64>().ok().filter(|_| !id.starts_with('+'));
            let millis = number.and_then(|number| (number >> shift_bits).checked_add(epoch_millis));
            (millis, "a Snowflake number")
        }
        EventTimeSource::OccurredAt => (None, "a time"),
    };
    millis
        .and_then(|millis| DateTime::from_timestamp_millis(i64::try_from(millis).ok()?))
        .ok_or_else(|| Malformed::new(format!("its id is not {what}, by which its time is told")))
}

fn uuid_v7_millis(id: &str) -> Option<u64> {
    let groups: Vec<&str> = id.split('-').collect();
    let lengths = [8, 4, 4, 4, 12];
    let is_uuid = groups.len() == lengths.len()
        && groups.iter().zip(lengths).all(|(group, length)| {
            group.len() == length && group.bytes().all(|byte| byte.is_ascii_hexdigit())
        });
    let variant = groups.get(3)?.chars().next()?.to_ascii_lowercase();
    let is_v7 = is_uuid && groups[2].starts_with('7') && matches!(variant, '8' | '9' | 'a' | 'b');
    is_v7.then(|| u64::from_str_radix(&format!("{}{}", groups[0], groups[1]), 16).ok()).flatten()
}

fn ulid_millis(id: &str) -> Option<u64> {
    const ALPHABET: &str = "0123456789ABCDEFGHJKMNPQRSTVWXYZ";
    const LENGTH: usize = 26;
    const TIME_LENGTH: usize = 10;
    let digits = id.chars().map(|c| ALPHABET.find(c.to_ascii_uppercase()));
    let digits: Vec<u64> = digits.map(|at| at.map(|at| at as u64)).collect::<Option<_>>()?;
    let fits = digits.len() == LENGTH && digits[0] < 8;
    fits.then(|| digits[..TIME_LENGTH].iter().fold(0, |millis, digit| millis << 5 | digit))
}

/// Reads events out of the bodies of a queue.
#[derive(Debug, Clone)]
pub struct EventReader {
    /// How bodies are encoded.
    pub body_encoding: BodyEncoding,
    /// Where in a body the event stands.
    pub envelope: Envelope,
    /// By event type; types without a rule have no time of their own.
    pub times: Arc<HashMap<String, EventTimeRule>>,
}

impl EventReader {
    /// The event in `body`.
    ///
    /// # Errors
    /// There is none, or it has no time where its type needs one.
    pub fn read(&self, body: &str) -> Result<Event, Malformed> {
        let text = decode_body(body, self.body_encoding)?;
        let mut event = self.envelope.open(&text)?;
        if let Some(rule) = self.times.get(&event.event_type) {
            rule.apply(&mut event, Utc::now())?;
        }
        Ok(event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(source: EventTimeSource, id: &str) -> Option<i64> {
        time_of_id(source, id).ok().map(|time| time.timestamp_millis())
    }

    #[test]
    fn ids_tell_their_time() {
        use EventTimeSource::{Snowflake, Ulid, UuidV7};
        let twitter = Snowflake { epoch_millis: 1_288_834_974_657, shift_bits: 22 };
        for (source, id, expected) in [
            // RFC 9562, appendix A.6.
            (UuidV7, "017F22E2-79B0-7CC3-98C4-DC0C0C07398F", Some(1_645_557_742_000)),
            (UuidV7, "/orders 017f22e2-79b0-7cc3-98c4-dc0c0c07398f", Some(1_645_557_742_000)),
            (UuidV7, "017f22e2-79b0-4cc3-98c4-dc0c0c07398f", None),
            (UuidV7, "017f22e279b07cc398c4dc0c0c07398f", None),
            (UuidV7, "017f22e2-79b0-7cc3-18c4-dc0c0c07398f", None),
            (UuidV7, "017f22e2-79b0-7cc3-98c4-dc0c0c07398é", None),
            // The example of the ULID specification.
            (Ulid, "01ARZ3NDEKTSV4RRFFQ69G5FAV", Some(1_469_922_850_259)),
            (Ulid, "01arz3ndektsv4rrffq69g5fav", Some(1_469_922_850_259)),
            (Ulid, "81ARZ3NDEKTSV4RRFFQ69G5FAV", None),
            (Ulid, "01ARZ3NDEKTSV4RRFFQ69G5FAI", None),
            (Ulid, "01ARZ3NDEK", None),
            (twitter, "1541815603606036480", Some(1_656_432_460_105)),
            (twitter, "+1541815603606036480", None),
            (twitter, "evt-1", None),
            (Snowflake { epoch_millis: u64::MAX, shift_bits: 0 }, "1", None),
        ] {
            assert_eq!(millis(source, id), expected, "{source:?} {id}");
        }
    }

    fn reader(source: EventTimeSource) -> EventReader {
        let rule = EventTimeRule { source, max_future_skew: Duration::from_secs(300) };
        EventReader {
            body_encoding: BodyEncoding::Plain,
            envelope: Envelope::default(),
            times: Arc::new(HashMap::from([("t".to_owned(), rule)])),
        }
    }

    fn body(time: &str) -> String {
        format!(r#"{{"event_id":"1","event_type":"t","occurred_at":"{time}","payload":1}}"#)
    }

    #[test]
    fn the_digest_covers_the_time_where_the_id_does_not() {
        let reader = reader(EventTimeSource::OccurredAt);
        let one = reader.read(&body("2025-12-01T00:00:00Z")).unwrap();
        let same = reader.read(&body("2025-12-01T08:00:00+08:00")).unwrap();
        let stamped_anew = reader.read(&body("2025-12-01T00:00:01Z")).unwrap();
        assert_eq!(one.digest, same.digest);
        assert_ne!(one.digest, stamped_anew.digest);
        assert_eq!(one.digest_without_time, stamped_anew.digest_without_time);
    }

    #[test]
    fn a_time_that_is_missing_or_far_in_the_future_is_malformed() {
        let reader = reader(EventTimeSource::OccurredAt);
        let later = |seconds| (Utc::now() + chrono::TimeDelta::seconds(seconds)).to_rfc3339();
        assert!(reader.read(&body(&later(200))).is_ok());
        assert!(reader.read(&body(&later(400))).is_err());
        assert!(reader.read(r#"{"event_id":"1","event_type":"t","payload":1}"#).is_err());
        let other = r#"{"event_id":"1","event_type":"u","payload":1}"#;
        assert_eq!(reader.read(other).unwrap().event_time, None);
    }
}
