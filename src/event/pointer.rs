//! JSON Pointers (RFC 6901).

use std::fmt;

use serde::Deserialize;

use super::json::{Json, Node};

/// A place in a JSON document; the empty pointer is the whole document.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Pointer {
    text: String,
    tokens: Vec<String>,
}

/// The text is no JSON Pointer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a JSON Pointer: it must be empty or begin with '/', and '~' must be followed by \
     0 or 1 (example: \"/payload/account_id\")"
)]
pub struct PointerError(String);

impl Pointer {
    /// The value at this place.
    pub fn find<'j, 'a>(&self, json: &'j Json<'a>) -> Option<&'j Json<'a>> {
        self.tokens.iter().try_fold(json, |json, token| match json.node {
            Node::Object(_) => json.member(token),
            Node::Array(_) => array_index(token).and_then(|index| json.element(index)),
            _ => None,
        })
    }
}

/// RFC 6901: digits without leading zeros.
fn array_index(token: &str) -> Option<usize> {
    let plain = token == "0" || !token.starts_with(['0', '+']);
    plain.then(|| token.parse().ok()).flatten()
}

impl TryFrom<String> for Pointer {
    type Error = PointerError;

    fn try_from(text: String) -> Result<Self, PointerError> {
        if text.is_empty() {
            return Ok(Self { text, tokens: Vec::new() });
        }
        let escapes_are_right = text.replace("~0", "").replace("~1", "").find('~').is_none();
        match text.strip_prefix('/') {
            Some(path) if escapes_are_right => {
                let unescape = |token: &str| token.replace("~1", "/").replace("~0", "~");
                let tokens = path.split('/').map(unescape).collect();
                Ok(Self { text, tokens })
            }
            _ => Err(PointerError(text)),
        }
    }
}

impl std::str::FromStr for Pointer {
    type Err = PointerError;

    fn from_str(text: &str) -> Result<Self, PointerError> {
        text.to_owned().try_into()
    }
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::super::json::parse;
    use super::*;

    #[test]
    fn pointers_find_what_rfc_6901_says() {
        let text = r#"{"foo":["bar","baz"],"":0,"a/b":1,"m~n":8,"~1":9,"o":{"x":null}}"#;
        let json = parse(text).unwrap();
        for (pointer, expected) in [
            ("", Some(text)),
            ("/foo/0", Some("\"bar\"")),
            ("/foo/2", None),
            ("/foo/-", None),
            ("/foo/00", None),
            ("/foo/+1", None),
            ("/", Some("0")),
            ("/a~1b", Some("1")),
            ("/m~0n", Some("8")),
            ("/~01", Some("9")),
            ("/o/x", Some("null")),
            ("/o/x/y", None),
            ("/nothing", None),
        ] {
            let found = pointer.parse::<Pointer>().unwrap();
            assert_eq!(found.find(&json).map(|json| json.text), expected, "{pointer}");
        }
        for bad in ["foo", "#/foo", "/~", "/~2"] {
            assert!(bad.parse::<Pointer>().is_err(), "{bad}");
        }
    }
}
