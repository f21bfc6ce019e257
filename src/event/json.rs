//! Strict JSON: as RFC 8259, and besides no duplicate keys, a bounded depth, and numbers kept as
//! they were written. serde_json does the grammar; its own `Value` would round numbers through
//! doubles and let the last of two equal keys win.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::Malformed;

/// Deepest nesting of arrays and objects.
pub const MAX_DEPTH: usize = 128;

/// A JSON value with its source text.
#[derive(Debug, Clone, PartialEq)]
pub struct Json<'a> {
    /// The text of this value, without surrounding white space.
    pub text: &'a str,
    /// What it is.
    pub node: Node<'a>,
}

/// What a JSON value is.
#[derive(Debug, Clone, PartialEq)]
pub enum Node<'a> {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// A number as it was written.
    Number(&'a str),
    /// A string, unescaped.
    String(Cow<'a, str>),
    /// An array.
    Array(Vec<Json<'a>>),
    /// An object; keys are distinct and in source order.
    Object(Vec<(Cow<'a, str>, Json<'a>)>),
}

impl<'a> Json<'a> {
    /// The member of that name, if this is an object that has it.
    pub fn member(&self, key: &str) -> Option<&Json<'a>> {
        match &self.node {
            Node::Object(members) => members.iter().find(|(k, _)| k == key).map(|(_, v)| v),
            _ => None,
        }
    }

    /// The element at that place, if this is an array that has it.
    pub fn element(&self, index: usize) -> Option<&Json<'a>> {
        match &self.node {
            Node::Array(elements) => elements.get(index),
            _ => None,
        }
    }

    /// The text, if this is a string.
    pub fn as_str(&self) -> Option<&str> {
        match &self.node {
            Node::String(text) => Some(text),
            _ => None,
        }
    }

    /// The kind of value, for messages.
    pub fn kind(&self) -> &'static str {
        match self.node {
            Node::Null => "null",
            Node::Bool(_) => "a boolean",
            Node::Number(_) => "a number",
            Node::String(_) => "a string",
            Node::Array(_) => "an array",
            Node::Object(_) => "an object",
        }
    }
}

/// Reads one JSON text.
///
/// # Errors
/// Not JSON, a duplicate key, or nested deeper than [`MAX_DEPTH`].
pub fn parse(text: &str) -> Result<Json<'_>, Malformed> {
    let trimmed = text.trim_matches([' ', '\t', '\n', '\r']);
    match trimmed.as_bytes().first() {
        Some(b'{' | b'[' | b'"') => build(trimmed, 0),
        // What `build` takes for granted of other values.
        _ => build(read::<&RawValue>(text)?.get(), 0),
    }
}

/// Up to here, comparing each key with each is quicker than hashing them.
const FEW_KEYS: usize = 16;

fn has_duplicates(members: &[(Text<'_>, &RawValue)]) -> bool {
    if members.len() > FEW_KEYS {
        let mut keys = HashSet::with_capacity(members.len());
        return !members.iter().all(|(Text(key), _)| keys.insert(key.as_ref()));
    }
    let is_before = |at: usize| members[..at].iter().any(|(Text(key), _)| *key == members[at].0.0);
    (1..members.len()).any(is_before)
}

fn build(text: &str, depth: usize) -> Result<Json<'_>, Malformed> {
    if depth > MAX_DEPTH {
        return Err(Malformed::new(format!("the JSON is nested deeper than {MAX_DEPTH} levels")));
    }
    let node = match text.as_bytes()[0] {
        b'n' => Node::Null,
        b't' => Node::Bool(true),
        b'f' => Node::Bool(false),
        b'"' => Node::String(read::<Text>(text)?.0),
        b'[' => Node::Array(
            read::<Vec<&RawValue>>(text)?
                .into_iter()
                .map(|element| build(element.get(), depth + 1))
                .collect::<Result<_, _>>()?,
        ),
        b'{' => Node::Object(build_object(text, depth)?),
        _ => Node::Number(text),
    };
    Ok(Json { text, node })
}

fn build_object(text: &str, depth: usize) -> Result<Vec<(Cow<'_, str>, Json<'_>)>, Malformed> {
    let Members(members) = read(text)?;
    if has_duplicates(&members) {
        return Err(Malformed::new("an object of the JSON has a duplicate key"));
    }
    members
        .into_iter()
        .map(|(Text(key), value)| Ok((key, build(value.get(), depth + 1)?)))
        .collect()
}

fn read<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, Malformed> {
    serde_json::from_str(text).map_err(|error| Malformed::new(format!("not JSON: {error}")))
}

#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// An object's members, duplicates included.
struct Members<'a>(Vec<(Text<'a>, &'a RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MembersVisitor;

        impl<'de> Visitor<'de> for MembersVisitor {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }

        deserializer.deserialize_map(MembersVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn values_keep_their_source_text() {
        let json = parse(r#" {"a": [1.50, "x\u00e9"], "b": null} "#).unwrap();
        let a = json.member("a").unwrap();
        assert_eq!(a.text, r#"[1.50, "x\u00e9"]"#);
        assert_eq!(a.element(0).unwrap().node, Node::Number("1.50"));
        assert_eq!(a.element(1).unwrap().as_str(), Some("xé"));
        assert_eq!(json.member("b").unwrap().node, Node::Null);
        assert_eq!(json.member("c"), None);
    }

    #[test]
    fn what_is_not_strict_json_is_refused() {
        let many_keys = |count: usize, last: &str| {
            let keys = (0..count - 1).map(|n| format!("\"k{n}\":{n},")).collect::<String>();
            format!("{{{keys}\"{last}\":0}}")
        };
        assert!(parse(&many_keys(FEW_KEYS, "last")).is_ok());
        assert!(parse(&many_keys(FEW_KEYS + 1, "last")).is_ok());
        let deep = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
        for bad in [
            "",
            " ",
            "{",
            "nul",
            "1 2",
            "01",
            "+1",
            "NaN",
            "'a'",
            "[1,]",
            r#"{"a":1,"a":1}"#,
            r#"{"a":1,"\u0061":2}"#,
            r#" {"a":1,"b":2,"c":3,"b":4} "#,
            &many_keys(FEW_KEYS, "k0"),
            &many_keys(FEW_KEYS + 1, "k7"),
            "{} {}",
            "\"a\" 1",
            "\u{a0}{}",
            r#"[[{"x":{"k":1,"k":2}}]]"#,
            r#""\ud800""#,
            "\u{feff}{}",
            "\"a\nb\"",
            &deep(MAX_DEPTH + 2),
            &deep(10_000),
            &"[".repeat(10_000),
        ] {
            assert!(parse(bad).is_err(), "{}", bad.chars().take(40).collect::<String>());
        }
        assert!(parse(&deep(MAX_DEPTH + 1)).is_ok());
    }

    #[test]
    fn a_key_of_serde_json_s_own_is_a_key_like_any_other() {
        let text = r#"{"$serde_json::private::Number":"1","$serde_json::private::RawValue":"2"}"#;
        assert!(matches!(parse(text).unwrap().node, Node::Object(members) if members.len() == 2));
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC*") {
            _ = parse(&text);
        }

        #[test]
        fn json_like_text_is_taken_exactly_when_serde_json_takes_it(
            text in r#"[\[\]{}:,"0-9.eE+\-a\\utrfnls ]{0,24}"#
        ) {
            let lenient = serde_json::from_str::<serde_json::Value>(&text).is_ok();
            match parse(&text) {
                Ok(_) => prop_assert!(lenient),
                // A number beyond a double's range is no value for serde_json, but exact here.
                Err(Malformed(reason)) => prop_assert!(!lenient || reason.contains("duplicate key")),
            }
        }
    }
}
