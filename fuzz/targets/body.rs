//! A message body, in both encodings and both presets: an event or a reason, and always the same.
#![no_main]

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use hapax::event::{
    BodyEncoding, Envelope, EventReader, EventTimeRule, EventTimeSource, MAX_EVENT_ID_BYTES,
    MAX_EVENT_TYPE_BYTES, Preset,
};
use libfuzzer_sys::fuzz_target;

fn reader(choice: u8) -> EventReader {
    let preset = if choice & 1 == 0 { Preset::Native } else { Preset::CloudEvents };
    let source = match choice >> 2 & 3 {
        0 => EventTimeSource::OccurredAt,
        1 => EventTimeSource::UuidV7,
        2 => EventTimeSource::Ulid,
        _ => EventTimeSource::Snowflake { epoch_millis: 1_288_834_974_657, shift_bits: 22 },
    };
    let rule = EventTimeRule { source, max_future_skew: Duration::from_secs(300) };
    EventReader {
        body_encoding: if choice & 2 == 0 { BodyEncoding::Plain } else { BodyEncoding::Base64 },
        envelope: Envelope::new(preset, None, None, None, None),
        times: Arc::new(HashMap::from([("points.awarded".to_owned(), rule)])),
    }
}

// The first character chooses the reader, the rest is the body.
fuzz_target!(|text: &str| {
    let mut characters = text.chars();
    let choice = characters.next().map_or(0, |choice| choice as u8);
    let (reader, body) = (reader(choice), characters.as_str());
    let Ok(event) = reader.read(body) else { return };
    assert!((1..=MAX_EVENT_ID_BYTES).contains(&event.id.len()));
    assert!((1..=MAX_EVENT_TYPE_BYTES).contains(&event.event_type.len()));
    assert_eq!(event.payload.json().text, event.payload.as_str());
    assert_eq!(reader.read(body), Ok(event));
});
