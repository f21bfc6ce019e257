//! The payload digest: SHA-256 over the event type and a canonical form of the payload.
//!
//! Canonical form: no white space, object keys sorted by code points, strings escaped only where JSON
//! demands it, numbers as `[-]digits[e exponent]` with neither leading nor trailing zeros in the
//! digits. So 10, 10.0 and 1e1 are one number, 9007199254740992 and 9007199254740993 are two, and no
//! text is ever rounded (RFC 8785 goes through doubles and would).

use std::fmt;

use chrono::{DateTime, Utc};
use sha2::{Digest as _, Sha256};

use super::Malformed;
use super::json::{Json, Node};

/// Largest exponent of a number, in digits; more cannot be a quantity of anything.
const MAX_EXPONENT_DIGITS: usize = 18;

/// 32 bytes that stand for an event type with its payload.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// The digest of an event.
    ///
    /// # Errors
    /// A number's exponent has more than 18 digits.
    pub fn of(event_type: &str, payload: &Json<'_>) -> Result<Self, Malformed> {
        let mut hash = Sha256::new();
        hash.update((event_type.len() as u64).to_be_bytes());
        hash.update(event_type);
        let mut canonical = String::with_capacity(payload.text.len());
        write_canonical(payload, &mut canonical)?;
        hash.update(canonical);
        Ok(Self(hash.finalize().into()))
    }

    /// The digest of an event whose time counts, too, to the nanosecond.
    pub fn with_time(self, time: DateTime<Utc>) -> Self {
        let mut hash = Sha256::new();
        hash.update(self.0);
        hash.update(time.timestamp().to_be_bytes());
        hash.update(time.timestamp_subsec_nanos().to_be_bytes());
        Self(hash.finalize().into())
    }

    /// The digest of bytes that are no event.
    pub fn of_bytes(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

fn write_canonical(json: &Json<'_>, out: &mut String) -> Result<(), Malformed> {
    match &json.node {
        Node::Null => out.push_str("null"),
        Node::Bool(true) => out.push_str("true"),
        Node::Bool(false) => out.push_str("false"),
        Node::Number(text) => out.push_str(&canonical_number(text)?),
        Node::String(text) => write_string(text, out),
        Node::Array(elements) => {
            out.push('[');
            for (index, element) in elements.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_canonical(element, out)?;
            }
            out.push(']');
        }
        Node::Object(members) => {
            let mut sorted: Vec<_> = members.iter().collect();
            sorted.sort_unstable_by(|left, right| left.0.cmp(&right.0));
            out.push('{');
            for (index, (key, value)) in sorted.into_iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_string(key, out);
                out.push(':');
                write_canonical(value, out)?;
            }
            out.push('}');
        }
    }
    Ok(())
}

fn write_string(text: &str, out: &mut String) {
    let escaped = serde_json::to_string(text).expect("a string can always be written");
    out.push_str(&escaped);
}

/// The canonical form of a number that follows JSON's grammar.
///
/// # Errors
/// The exponent has more than 18 digits.
pub fn canonical_number(text: &str) -> Result<String, Malformed> {
    let (sign, unsigned) = match text.strip_prefix('-') {
        Some(rest) => ("-", rest),
        None => ("", text),
    };
    let (mantissa, exponent) = unsigned.split_once(['e', 'E']).unwrap_or((unsigned, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{whole}{fraction}");
    let digits = digits.trim_start_matches('0');
    let significant = digits.trim_end_matches('0');
    if significant.is_empty() {
        return Ok("0".into());
    }
    let trailing_zeros = (digits.len() - significant.len()) as i64;
    let exponent = parse_exponent(exponent)? - fraction.len() as i64 + trailing_zeros;
    Ok(match exponent {
        0 => format!("{sign}{significant}"),
        _ => format!("{sign}{significant}e{exponent}"),
    })
}

fn parse_exponent(text: &str) -> Result<i64, Malformed> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let digits = digits.trim_start_matches('0');
    if digits.len() > MAX_EXPONENT_DIGITS {
        return Err(Malformed::new("a number's exponent is out of range"));
    }
    let magnitude: i64 = match digits {
        "" => 0,
        digits => digits.parse().expect("18 digits fit 64 bits"),
    };
    Ok(sign * magnitude)
}

#[cfg(test)]
mod tests {
    use super::super::json;
    use super::*;
    use bigdecimal::BigDecimal;
    use proptest::prelude::*;
    use std::str::FromStr;

    fn digest(payload: &str) -> Digest {
        Digest::of("t", &json::parse(payload).unwrap()).unwrap()
    }

    #[test]
    fn payloads_that_mean_the_same_have_one_digest() {
        for (left, right) in [
            (r#"{"a":1,"b":2}"#, r#"{"b":2,"a":1}"#),
            (r#"{"a":{"x":1,"y":[1,2]}}"#, "{ \"a\" :\t{\"y\":[ 1,2 ],\r\n \"x\":1 } }"),
            (r#""é""#, r#""\u00e9""#),
            (r#""😀""#, r#""\ud83d\ude00""#),
            (r#""a/b""#, r#""a\/b""#),
            (r#""\n\u000A""#, r#""\u000a\n""#),
            (r#"{"é":1}"#, r#"{"\u00E9":1}"#),
            ("10", "10.0"),
            ("10", "1e1"),
            ("10", "1.0E+1"),
            ("10", "100e-1"),
            ("0", "-0"),
            ("0", "0.000e999999999999999999999"),
            ("0.1", "1e-1"),
            ("123456789012345678901234567890", "1.2345678901234567890123456789e29"),
        ] {
            assert_eq!(digest(left), digest(right), "{left} {right}");
        }
    }

    #[test]
    fn payloads_that_mean_different_things_have_different_digests() {
        for (left, right) in [
            ("9007199254740992", "9007199254740993"),
            ("1", "-1"),
            ("1", "\"1\""),
            ("0.1", "0.10000000000000001"),
            ("1e400", "1e401"),
            ("\"\u{e9}\"", "\"e\u{301}\""),
            (r#""a""#, r#""A""#),
            (r#""a""#, r#""a ""#),
            ("null", "false"),
            ("[]", "{}"),
            ("[1,2]", "[2,1]"),
            ("[1,[2]]", "[[1],2]"),
            (r#"{"a":null}"#, "{}"),
            (r#"["a,b"]"#, r#"["a","b"]"#),
            (r#""\u0000""#, r#""""#),
        ] {
            assert_ne!(digest(left), digest(right), "{left} {right}");
        }
    }

    #[test]
    fn the_event_type_is_part_of_the_digest() {
        let json = json::parse("{}").unwrap();
        assert_ne!(Digest::of("a", &json).unwrap(), Digest::of("b", &json).unwrap());
    }

    #[test]
    fn the_canonical_form_does_not_change_between_versions() {
        let payload = r#"{"points": 10.0, "account_id": 42, "note": "积分\n"}"#;
        let digest = Digest::of("points.awarded", &json::parse(payload).unwrap()).unwrap();
        // SHA-256 of the type's length (8 bytes, big-endian), the type, and
        // {"account_id":42,"note":"积分\n","points":1e1}, computed independently.
        let expected = "a2bc1198d654af9e155742ab340cac61e2d4e42b83e0f2a985a87a0f195d3081";
        assert_eq!(digest.to_string(), expected);
    }

    #[test]
    fn an_exponent_of_absurd_length_is_refused() {
        assert!(canonical_number("1e1000000000000000000").is_err());
        assert_eq!(canonical_number("1e0000000000000000000000001").unwrap(), "1e1");
    }

    fn number() -> impl Strategy<Value = String> {
        "-?(0|[1-9][0-9]{0,20})(\\.[0-9]{1,20})?([eE][+-]?[0-9]{1,2})?"
    }

    /// Few enough values that two of them are often the same.
    fn payload() -> impl Strategy<Value = serde_json::Value> {
        use serde_json::{Value, json};
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            (-1_i64..2).prop_map(Value::from),
            "[aé\"]{0,1}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 8, 2, |inner| {
            let members = prop::collection::btree_map("[ab]", inner.clone(), 0..3);
            prop_oneof![
                prop::collection::vec(inner, 0..3).prop_map(Value::from),
                members.prop_map(|members| json!(members)),
            ]
        })
    }

    proptest! {
        #[test]
        fn digests_are_equal_exactly_when_the_payloads_mean_the_same(
            left in payload(), right in payload()
        ) {
            let pretty = serde_json::to_string_pretty(&right).unwrap();
            prop_assert_eq!(digest(&left.to_string()) == digest(&pretty), left == right);
        }

        #[test]
        fn numbers_are_equal_exactly_when_their_decimal_values_are(
            left in number(), right in number()
        ) {
            let same_value =
                BigDecimal::from_str(&left).unwrap() == BigDecimal::from_str(&right).unwrap();
            let same_text = canonical_number(&left).unwrap() == canonical_number(&right).unwrap();
            prop_assert_eq!(same_text, same_value);
        }

        #[test]
        fn the_canonical_form_is_the_same_number(text in number()) {
            let canonical = canonical_number(&text).unwrap();
            prop_assert_eq!(
                BigDecimal::from_str(&canonical).unwrap(),
                BigDecimal::from_str(&text).unwrap()
            );
        }
    }
}
