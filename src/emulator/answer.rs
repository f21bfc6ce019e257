//! Answers in the protocol's own form.

use serde_json::{Map, Value, json};

use super::broker::BrokerError;
use super::queue::Received;
use crate::cmq::{ApiErrorCode, ArrayError};

/// A refusal: code, module code where the documentation names one, and text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub code: i64,
    pub module: Option<u32>,
    pub text: String,
}

impl Refusal {
    /// A refusal of the request's parameters; module codes as in the documentation's table of
    /// common error codes (product 1496).
    pub fn parameters(module: u32, text: impl Into<String>) -> Self {
        Self { code: ApiErrorCode::BAD_PARAMETERS, module: Some(module), text: text.into() }
    }

    pub fn missing(name: &str) -> Self {
        Self::parameters(10390, format!("lacked of required parameter {name}"))
    }

    pub fn out_of_range(name: &str) -> Self {
        Self::parameters(10350, format!("parameter {name} value or length is out of range"))
    }

    pub fn unknown_action() -> Self {
        Self::parameters(10280, "action is not existed")
    }

    pub fn no_message() -> Self {
        let text = "no message".into();
        Self { code: ApiErrorCode::NO_MESSAGE, module: Some(10200), text }
    }

    pub fn authentication(text: &str) -> Self {
        Self { code: ApiErrorCode::AUTHENTICATION_FAILED, module: None, text: text.into() }
    }

    /// Which code an invalid handle gets is not documented; 4000 is this emulator's choice.
    pub fn dead_handle() -> Self {
        Self::parameters(10110, "the receipt handle is invalid or has expired")
    }

    pub fn message(&self) -> String {
        match self.module {
            Some(module) => format!("({module}){}", self.text),
            None => self.text.clone(),
        }
    }

    pub fn to_json(&self, request_id: &str) -> Value {
        json!({ "code": self.code, "message": self.message(), "requestId": request_id })
    }
}

impl From<ArrayError> for Refusal {
    fn from(error: ArrayError) -> Self {
        let module = match &error {
            ArrayError::Missing(_) => 10390,
            ArrayError::TooMany(_) => 10370,
            ArrayError::NotConsecutive(_) => 10380,
            ArrayError::BadIndex(_) => 10310,
        };
        Self::parameters(module, error.to_string())
    }
}

impl From<BrokerError> for Refusal {
    fn from(error: BrokerError) -> Self {
        let text = error.to_string();
        match error {
            BrokerError::NoSuchQueue | BrokerError::NoSuchTopic => {
                Self { code: ApiErrorCode::NO_SUCH_QUEUE, module: None, text }
            }
            BrokerError::AlreadyExists(_) => Self::parameters(10110, text),
            BrokerError::Send(_) => Self::parameters(10350, text),
        }
    }
}

/// A success with the fields of `fields` beside the common ones.
pub fn success(request_id: &str, fields: Value) -> Value {
    let mut answer = Map::new();
    answer.insert("code".into(), ApiErrorCode::SUCCESS.into());
    answer.insert("message".into(), "".into());
    answer.insert("requestId".into(), request_id.into());
    if let Value::Object(fields) = fields {
        answer.extend(fields);
    }
    answer.into()
}

/// A received message with the protocol's field names; times in seconds.
pub fn received(message: &Received) -> Value {
    json!({
        "msgId": message.message_id,
        "msgBody": message.body,
        "receiptHandle": message.receipt_handle,
        "enqueueTime": message.sent_at / 1_000,
        "firstDequeueTime": message.first_received_at / 1_000,
        "nextVisibleTime": message.next_visible_at / 1_000,
        "dequeueCount": message.receive_count,
    })
}
