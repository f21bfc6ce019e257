//! Names, limits and types of the wire protocol. Sources: Tencent Cloud documentation, products 1111
//! and 1496, and the official Python SDK.

use serde::{Deserialize, Deserializer, Serialize};

/// The path that the documentation and the Python SDK use; some SDKs default to `/`.
pub const DEFAULT_PATH: &str = "/v2/index.php";

/// Most messages or receipt handles that one batch request may carry.
pub const MAX_BATCH_MESSAGES: usize = 16;

/// Largest message body, in bytes (1 MiB).
pub const MAX_MESSAGE_BYTES: usize = 1 << 20;

/// Longest queue or topic name, in bytes.
pub const MAX_NAME_BYTES: usize = 64;

/// Longest long poll, in seconds.
pub const MAX_POLLING_WAIT_SECONDS: u32 = 30;

/// Whether `name` may name a queue or a topic: it begins with a letter and holds letters, digits,
/// `-` and `_` (the last is allowed by the Go SDK only), 64 bytes at most.
pub fn is_valid_name(name: &str) -> bool {
    name.len() <= MAX_NAME_BYTES
        && name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
}

/// The `code` field of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ApiErrorCode;

impl ApiErrorCode {
    /// The request was carried out.
    pub const SUCCESS: i64 = 0;
    /// A parameter is missing, out of range or not known.
    pub const BAD_PARAMETERS: i64 = 4000;
    /// Signature, secret id, token or clock were refused.
    pub const AUTHENTICATION_FAILED: i64 = 4100;
    /// The queue's requests-per-second limit was reached.
    pub const THROTTLED: i64 = 4420;
    /// The queue or topic does not exist.
    pub const NO_SUCH_QUEUE: i64 = 4440;
    /// Access or project not right.
    pub const ACCESS_DENIED: i64 = 5100;
    /// A batch delete failed for some handles.
    pub const BATCH_DELETE_PARTLY_FAILED: i64 = 6010;
    /// A batch delete failed for every handle.
    pub const BATCH_DELETE_FAILED: i64 = 6020;
    /// The long poll ended without a message.
    pub const NO_MESSAGE: i64 = 7000;
}

/// A message as a receive returns it. Times are Unix seconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Message {
    /// Stays the same over redeliveries.
    pub msg_id: String,
    /// The body as the producer sent it. Where the answer has something else than a text there, such as
    /// a string with half a surrogate pair, it is the JSON of that.
    #[serde(default, deserialize_with = "any_body")]
    pub msg_body: String,
    /// Belongs to this one receive and dies with its visibility time-out.
    pub receipt_handle: String,
    /// When the message was sent.
    #[serde(default, deserialize_with = "lenient_seconds")]
    pub enqueue_time: i64,
    /// When the message becomes visible again unless it is deleted.
    #[serde(default, deserialize_with = "lenient_seconds")]
    pub next_visible_time: i64,
    /// Reserved by the documentation: for display only.
    #[serde(default, deserialize_with = "lenient_seconds")]
    pub first_dequeue_time: i64,
    /// Reserved by the documentation: for display only.
    #[serde(default, deserialize_with = "lenient_seconds")]
    pub dequeue_count: i64,
}

/// One message whose body is no text must not hide the others of its answer: it is to be received, and
/// found malformed.
fn any_body<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let json = <&serde_json::value::RawValue>::deserialize(deserializer)?;
    Ok(serde_json::from_str(json.get()).unwrap_or_else(|_| json.get().to_owned()))
}

/// These fields are never decided by alone, so an odd spelling must not lose the message: anything
/// but a number, or a number in a string, reads as 0.
fn lenient_seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    Ok(match serde_json::Value::deserialize(deserializer)? {
        serde_json::Value::Number(number) => number.as_i64().unwrap_or(0),
        serde_json::Value::String(text) => text.parse().unwrap_or(0),
        _ => 0,
    })
}

/// One handle that a batch delete could not delete.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeleteFailure {
    /// The handle's own error code.
    pub code: i64,
    /// The handle's own error text.
    #[serde(default, alias = "Message")]
    pub message: String,
    /// The handle as it was sent.
    pub receipt_handle: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_begin_with_a_letter_and_stay_within_64_bytes() {
        for good in ["a", "orders", "Orders-1", "orders_v2", &"q".repeat(64)] {
            assert!(is_valid_name(good), "{good}");
        }
        for bad in ["", "1a", "-a", "a b", "a.b", "käse", &"q".repeat(65)] {
            assert!(!is_valid_name(bad), "{bad}");
        }
    }

    #[test]
    fn a_message_is_read_however_its_reserved_fields_are_spelt() {
        let message: Message = serde_json::from_str(
            r#"{"new":1,"msgId":"Msg-1","receiptHandle":"h","msgBody":"b","enqueueTime":"7",
                "dequeueCount":null,"nextVisibleTime":9}"#,
        )
        .unwrap();
        assert_eq!((message.enqueue_time, message.next_visible_time), (7, 9));
        assert_eq!((message.dequeue_count, message.first_dequeue_time), (0, 0));
    }
}
