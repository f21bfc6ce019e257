//! What the bytes of an answer say. No I/O, and any bytes at all end in an answer or in an error.

use serde::Deserialize;

use super::{ApiErrorCode, DeleteFailure, Message};

/// How much of a foreign answer an error shows.
const EXCERPT_CHARS: usize = 120;

/// Why an answer does not hold what was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AnswerError {
    /// HTML, cut-off JSON, a field missing: not CMQ's. Says what is wrong, with an excerpt.
    Foreign(String),
    /// CMQ refused the request.
    Refused {
        /// The answer's `code`.
        code: i64,
        /// The answer's `message`.
        message: String,
        /// The answer's `requestId`.
        request_id: String,
    },
}

/// What reading an answer gives.
pub type Answer<T> = Result<T, AnswerError>;

#[derive(Deserialize)]
struct Head {
    code: i64,
    #[serde(default, alias = "Message")]
    message: String,
    #[serde(default, rename = "requestId", alias = "RequestId")]
    request_id: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sent {
    msg_id: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SentList {
    msg_list: Vec<Sent>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReceivedList {
    #[serde(default)]
    msg_info_list: Vec<Message>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ErrorList {
    #[serde(default)]
    error_list: Vec<DeleteFailure>,
}

#[derive(Deserialize)]
struct Route {
    addr: Vec<String>,
}

/// Of an action that returns nothing.
///
/// # Errors
/// The answer is not CMQ's, or a refusal.
pub fn done(bytes: &[u8]) -> Answer<()> {
    head(bytes)?.success()
}

/// The message id of SendMessage and PublishMessage.
///
/// # Errors
/// The answer is not CMQ's, or a refusal.
pub fn sent(bytes: &[u8]) -> Answer<String> {
    successful::<Sent>(bytes).map(|sent| sent.msg_id)
}

/// The message ids of BatchSendMessage and BatchPublishMessage.
///
/// # Errors
/// The answer is not CMQ's, or a refusal.
pub fn sent_list(bytes: &[u8]) -> Answer<Vec<String>> {
    let sent: SentList = successful(bytes)?;
    Ok(sent.msg_list.into_iter().map(|message| message.msg_id).collect())
}

/// The message of ReceiveMessage; none where the long poll ended without one.
///
/// # Errors
/// The answer is not CMQ's, or a refusal.
pub fn received(bytes: &[u8]) -> Answer<Option<Message>> {
    or_no_message(successful(bytes).map(Some))
}

/// The messages of BatchReceiveMessage.
///
/// # Errors
/// The answer is not CMQ's, or a refusal.
pub fn received_list(bytes: &[u8]) -> Answer<Vec<Message>> {
    or_no_message(successful(bytes).map(|received: ReceivedList| received.msg_info_list))
}

/// The handles that BatchDeleteMessage could not delete.
///
/// # Errors
/// The answer is not CMQ's, or a refusal as a whole.
pub fn deleted_list(bytes: &[u8]) -> Answer<Vec<DeleteFailure>> {
    let head = head(bytes)?;
    match head.code {
        ApiErrorCode::SUCCESS => Ok(parse::<ErrorList>(bytes)?.error_list),
        ApiErrorCode::BATCH_DELETE_PARTLY_FAILED | ApiErrorCode::BATCH_DELETE_FAILED => {
            match parse::<ErrorList>(bytes)?.error_list {
                failures if failures.is_empty() => Err(head.refusal()),
                failures => Ok(failures),
            }
        }
        _ => Err(head.refusal()),
    }
}

/// The addresses of QueryQueueRoute.
///
/// # Errors
/// The answer is not CMQ's, or a refusal.
pub fn route(bytes: &[u8]) -> Answer<Vec<String>> {
    successful::<Route>(bytes).map(|route| route.addr)
}

/// The beginning of what somebody answered, to show in an error.
pub(super) fn excerpt(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).chars().take(EXCERPT_CHARS).collect()
}

impl Head {
    fn success(self) -> Answer<()> {
        match self.code {
            ApiErrorCode::SUCCESS => Ok(()),
            _ => Err(self.refusal()),
        }
    }

    fn refusal(self) -> AnswerError {
        let Self { code, message, request_id } = self;
        AnswerError::Refused { code, message, request_id }
    }
}

fn head(bytes: &[u8]) -> Answer<Head> {
    parse(bytes)
}

fn successful<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Answer<T> {
    head(bytes)?.success()?;
    parse(bytes)
}

fn parse<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Answer<T> {
    serde_json::from_slice(bytes)
        .map_err(|error| AnswerError::Foreign(format!("{error} in {:?}", excerpt(bytes))))
}

fn or_no_message<T: Default>(answer: Answer<T>) -> Answer<T> {
    match answer {
        Err(AnswerError::Refused { code: ApiErrorCode::NO_MESSAGE, .. }) => Ok(T::default()),
        answer => answer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_odd_message_does_not_hide_its_neighbours() {
        let odd = [
            (r#""a\ud800b""#, r#""a\ud800b""#),
            ("7", "7"),
            ("null", "null"),
            (r#"{"event_id": "e"}"#, r#"{"event_id": "e"}"#),
        ];
        for (sent, read) in odd {
            let answer = format!(
                r#"{{"code":0,"msgInfoList":[
                    {{"msgId":"1","receiptHandle":"h1","msgBody":{sent}}},
                    {{"msgId":"2","receiptHandle":"h2","msgBody":"\u0041"}},
                    {{"msgId":"3","receiptHandle":"h3"}}]}}"#
            );
            let messages = received_list(answer.as_bytes()).unwrap();
            let bodies: Vec<&str> = messages.iter().map(|m| m.msg_body.as_str()).collect();
            assert_eq!(bodies, [read, "A", ""]);
        }
    }

    #[test]
    fn a_long_poll_without_a_message_is_no_error() {
        let none = br#"{"code":7000,"message":"(10200)no message"}"#;
        assert_eq!(received(none), Ok(None));
        assert_eq!(received_list(none), Ok(Vec::new()));
        assert!(matches!(done(none), Err(AnswerError::Refused { code: 7000, .. })));
    }

    #[test]
    fn a_batch_delete_that_failed_says_for_which_handles() {
        let failed = |code, list: &str| {
            deleted_list(format!(r#"{{"code":{code},"errorList":[{list}]}}"#).as_bytes())
        };
        let one = r#"{"code":4440,"receiptHandle":"h"}"#;
        for code in [0, 6010, 6020] {
            assert_eq!(failed(code, one).unwrap()[0].receipt_handle, "h");
        }
        assert_eq!(failed(0, ""), Ok(Vec::new()));
        for (code, list) in [(6010, ""), (6020, ""), (4440, one)] {
            assert!(matches!(failed(code, list), Err(AnswerError::Refused { .. })), "{code}");
        }
    }
}
