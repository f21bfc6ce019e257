//! What a request can fail with, and what to do about it.

use std::time::Duration;

use super::ApiErrorCode;

/// A failed CMQ request.
#[derive(Debug, thiserror::Error)]
pub enum CmqError {
    /// No usable HTTP answer: refused, reset, timed out, name not resolved.
    #[error("{action} to {endpoint} failed: {reason}")]
    Transport {
        /// The CMQ action.
        action: &'static str,
        /// The endpoint's URL.
        endpoint: String,
        /// The transport's own words, causes included.
        reason: String,
    },
    /// An HTTP status other than 200, from a gateway or the service.
    #[error("{action} to {endpoint} answered HTTP {status}: {excerpt}")]
    Http {
        /// The CMQ action.
        action: &'static str,
        /// The endpoint's URL.
        endpoint: String,
        /// The HTTP status code.
        status: u16,
        /// The first bytes of the body.
        excerpt: String,
    },
    /// HTTP 200, but no CMQ answer: HTML, cut-off JSON, a field missing, too large.
    #[error("{action} to {endpoint} gave an answer that is not CMQ's: {reason}")]
    BadAnswer {
        /// The CMQ action.
        action: &'static str,
        /// The endpoint's URL.
        endpoint: String,
        /// What is wrong with it.
        reason: String,
    },
    /// CMQ refused the request.
    #[error("{action} was refused with code {code}: {message} (request {request_id})")]
    Api {
        /// The CMQ action.
        action: &'static str,
        /// The answer's `code`.
        code: i64,
        /// The answer's `message`.
        message: String,
        /// The answer's `requestId`, for Tencent Cloud's support.
        request_id: String,
    },
}

/// What a caller should do about a failed request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorClass {
    /// Trouble in between or on the server: retry with back-off.
    Transient,
    /// The requests-per-second limit: back off, then retry.
    Throttled,
    /// The credentials were refused: retrying as it is cannot help.
    Authentication,
    /// The queue does not exist: retry slowly, somebody has to create it.
    NoSuchQueue,
    /// A parameter is wrong: configuration or a bug.
    Permanent,
}

impl ErrorClass {
    /// What to do about a code of the documentation's table of error codes.
    pub fn of_code(code: i64) -> Self {
        match code {
            ApiErrorCode::AUTHENTICATION_FAILED | ApiErrorCode::ACCESS_DENIED => {
                Self::Authentication
            }
            ApiErrorCode::THROTTLED => Self::Throttled,
            ApiErrorCode::NO_SUCH_QUEUE => Self::NoSuchQueue,
            4000..=4999 => Self::Permanent,
            _ => Self::Transient,
        }
    }

    /// Whether the same request may succeed later without anybody's doing.
    pub fn is_retryable(self) -> bool {
        matches!(self, Self::Transient | Self::Throttled)
    }

    /// The shortest sensible pause before trying again.
    pub fn min_pause(self) -> Duration {
        match self {
            Self::Transient => Duration::from_millis(100),
            Self::Throttled => Duration::from_millis(500),
            Self::Authentication | Self::NoSuchQueue | Self::Permanent => Duration::from_secs(5),
        }
    }
}

impl CmqError {
    /// What to do about it.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Transport { .. } | Self::BadAnswer { .. } => ErrorClass::Transient,
            Self::Http { status: 401 | 403, .. } => ErrorClass::Authentication,
            Self::Http { .. } => ErrorClass::Transient,
            Self::Api { code, .. } => ErrorClass::of_code(*code),
        }
    }

    /// Whether the same request may succeed later without anybody's doing.
    pub fn is_retryable(&self) -> bool {
        self.class().is_retryable()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_documented_code_has_its_class() {
        let class = |code| {
            let (message, request_id) = (String::new(), String::new());
            CmqError::Api { action: "ReceiveMessage", code, message, request_id }.class()
        };
        for (code, expected) in [
            (4000, ErrorClass::Permanent),
            (4100, ErrorClass::Authentication),
            (4420, ErrorClass::Throttled),
            (4440, ErrorClass::NoSuchQueue),
            (4999, ErrorClass::Permanent),
            (5100, ErrorClass::Authentication),
            (6000, ErrorClass::Transient),
            (6010, ErrorClass::Transient),
        ] {
            assert_eq!(class(code), expected, "{code}");
        }
    }
}
