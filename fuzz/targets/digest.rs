//! Two JSON texts: one digest exactly if they mean the same, by a comparison of its own.
#![no_main]

use std::collections::BTreeMap;

use hapax::event::Digest;
use hapax::event::json::{self, Json, Node};
use libfuzzer_sys::fuzz_target;

/// What a text means, without a canonical form.
#[derive(PartialEq, Eq)]
enum Meaning {
    Null,
    Bool(bool),
    Number { negative: bool, digits: Vec<u8>, exponent: i128 },
    String(String),
    Array(Vec<Meaning>),
    Object(BTreeMap<String, Meaning>),
}

fn meaning(json: &Json<'_>) -> Meaning {
    match &json.node {
        Node::Null => Meaning::Null,
        Node::Bool(value) => Meaning::Bool(*value),
        Node::Number(text) => number(text),
        Node::String(text) => Meaning::String(text.to_string()),
        Node::Array(elements) => Meaning::Array(elements.iter().map(meaning).collect()),
        Node::Object(members) => Meaning::Object(
            members.iter().map(|(key, json)| (key.to_string(), meaning(json))).collect(),
        ),
    }
}

/// Reads digit by digit, and takes the zeros away one by one.
fn number(text: &str) -> Meaning {
    let (mut digits, mut fraction, mut in_fraction) = (Vec::new(), 0, false);
    let mut exponent = 0;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'0'..=b'9' => {
                digits.push(byte);
                fraction += i128::from(in_fraction);
            }
            b'.' => in_fraction = true,
            b'e' | b'E' => {
                exponent = text[at + 1..].parse().unwrap_or(0);
                break;
            }
            _ => (),
        }
    }
    exponent -= fraction;
    while digits.first() == Some(&b'0') {
        digits.remove(0);
    }
    while digits.last() == Some(&b'0') {
        digits.pop();
        exponent += 1;
    }
    match digits.is_empty() {
        true => Meaning::Number { negative: false, digits, exponent: 0 },
        false => Meaning::Number { negative: text.starts_with('-'), digits, exponent },
    }
}

// A line, and the rest.
fuzz_target!(|texts: &str| {
    let Some((left, right)) = texts.split_once('\n') else { return };
    let parsed = (json::parse(left), json::parse(right));
    for (text, parsed) in [(left, &parsed.0), (right, &parsed.1)] {
        let is_json = serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok();
        assert!(is_json || parsed.is_err(), "read what is no JSON: {text:?}");
    }
    let (Ok(left), Ok(right)) = parsed else { return };
    let (Ok(left_digest), Ok(right_digest)) = (Digest::of("t", &left), Digest::of("t", &right))
    else {
        return;
    };
    assert_eq!(left_digest == right_digest, meaning(&left) == meaning(&right));
});
