//! The transfer encoding of a message body.

use std::borrow::Cow;

use base64::prelude::{BASE64_STANDARD, Engine};
use serde::Deserialize;

use super::Malformed;

/// How producers wrote the body. The SDKs' "encoding" switch sends Base64.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BodyEncoding {
    /// JSON text as it is.
    #[default]
    Plain,
    /// Base64 (standard alphabet, padded) of JSON text in UTF-8.
    Base64,
}

/// The JSON text of a body.
///
/// # Errors
/// Not Base64, or not UTF-8 behind it.
pub fn decode_body(body: &str, encoding: BodyEncoding) -> Result<Cow<'_, str>, Malformed> {
    match encoding {
        BodyEncoding::Plain => Ok(Cow::Borrowed(body)),
        BodyEncoding::Base64 => {
            let bytes = BASE64_STANDARD
                .decode(body.trim_ascii())
                .map_err(|error| Malformed::new(format!("the body is not Base64: {error}")))?;
            String::from_utf8(bytes)
                .map(Cow::Owned)
                .map_err(|_| Malformed::new("the body is not UTF-8 after Base64"))
        }
    }
}
