//! From a place in a payload to a value to bind. Nothing is converted that could change its meaning: what
//! does not fit the declared type rejects the event.

use base64::prelude::{BASE64_STANDARD, Engine};
use bigdecimal::BigDecimal;
use chrono::DateTime;
use serde::Deserialize;

use crate::event::Pointer;
use crate::event::json::{Json, Node};
use crate::store::{JsonText, SqlType, SqlValue};

/// Most digits of a numeric, and the largest power of ten in it: well within what the databases hold, and
/// small enough to be written out.
const MAX_NUMERIC_DIGITS: usize = 1_000;

/// Where a parameter comes from and what it is.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParameterSpec {
    /// Place in the payload.
    pub pointer: Pointer,
    /// SQL type.
    #[serde(rename = "type")]
    pub sql_type: SqlType,
    /// Whether it may be missing or null; it is NULL then.
    #[serde(default)]
    pub optional: bool,
}

impl ParameterSpec {
    /// The value in `payload`.
    ///
    /// # Errors
    /// It is missing, or does not fit the type; the text says which, without the value.
    pub fn value(&self, payload: &Json<'_>) -> Result<SqlValue, String> {
        let found = self.pointer.find(payload).filter(|json| json.node != Node::Null);
        let Some(json) = found else {
            return match self.optional {
                true => Ok(null(self.sql_type)),
                false => Err(format!("the payload has no {}", self.pointer)),
            };
        };
        convert(json, self.sql_type).map_err(|reason| {
            format!("{} of the payload is no {}: {reason}", self.pointer, self.sql_type)
        })
    }
}

/// NULL of a type.
pub fn null(sql_type: SqlType) -> SqlValue {
    match sql_type {
        SqlType::Bigint => SqlValue::Bigint(None),
        SqlType::Integer => SqlValue::Integer(None),
        SqlType::Numeric => SqlValue::Numeric(None),
        SqlType::Double => SqlValue::Double(None),
        SqlType::Text => SqlValue::Text(None),
        SqlType::Boolean => SqlValue::Boolean(None),
        SqlType::Timestamp => SqlValue::Timestamp(None),
        SqlType::Json => SqlValue::Json(None),
        SqlType::Bytes => SqlValue::Bytes(None),
    }
}

fn convert(json: &Json<'_>, sql_type: SqlType) -> Result<SqlValue, String> {
    Ok(match sql_type {
        SqlType::Bigint => SqlValue::Bigint(Some(integer(json)?)),
        SqlType::Integer => {
            let wide = integer(json)?;
            let narrow = i32::try_from(wide).map_err(|_| "it is beyond 32 bits")?;
            SqlValue::Integer(Some(narrow))
        }
        SqlType::Numeric => SqlValue::Numeric(Some(numeric(json)?)),
        SqlType::Double => SqlValue::Double(Some(double(json)?)),
        SqlType::Text => SqlValue::Text(Some(text(json)?.to_owned())),
        SqlType::Boolean => match json.node {
            Node::Bool(value) => SqlValue::Boolean(Some(value)),
            _ => return Err(format!("it is {}", json.kind())),
        },
        SqlType::Timestamp => {
            let time = DateTime::parse_from_rfc3339(text(json)?)
                .map_err(|error| format!("it is not a time as in RFC 3339: {error}"))?;
            SqlValue::Timestamp(Some(time.to_utc()))
        }
        SqlType::Json => match has_nul(json) {
            false => SqlValue::Json(Some(JsonText(json.text.to_owned()))),
            true => return Err("it has a string with NUL".into()),
        },
        SqlType::Bytes => {
            let bytes = BASE64_STANDARD
                .decode(text(json)?)
                .map_err(|error| format!("it is not Base64: {error}"))?;
            SqlValue::Bytes(Some(bytes))
        }
    })
}

fn text<'j>(json: &'j Json<'_>) -> Result<&'j str, String> {
    match json.as_str() {
        Some(text) if text.contains('\0') => Err("it contains NUL".into()),
        Some(text) => Ok(text),
        None => Err(format!("it is {}", json.kind())),
    }
}

/// A number's text. Producers whose numbers are doubles send large ones as strings, so those count too.
fn number_text<'j>(json: &'j Json<'_>) -> Result<&'j str, String> {
    match &json.node {
        Node::Number(text) => Ok(text),
        Node::String(text) if matches!(serde_json::from_str(text), Ok(Json64(_))) => Ok(text),
        Node::String(_) => Err("it is a string that holds no number".into()),
        _ => Err(format!("it is {}", json.kind())),
    }
}

/// Matches text that is one JSON number, of whatever size.
struct Json64(#[allow(dead_code)] Box<serde_json::value::RawValue>);

impl<'de> Deserialize<'de> for Json64 {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<serde_json::value::RawValue>::deserialize(deserializer)?;
        match raw.get().starts_with(|c: char| c.is_ascii_digit() || c == '-') {
            true => Ok(Self(raw)),
            false => Err(serde::de::Error::custom("not a number")),
        }
    }
}

fn numeric(json: &Json<'_>) -> Result<BigDecimal, String> {
    let number: BigDecimal =
        number_text(json)?.parse().map_err(|_| "its exponent is out of range".to_owned())?;
    let (digits, scale) = number.as_bigint_and_exponent();
    let digits = digits.to_string().len();
    match digits <= MAX_NUMERIC_DIGITS && scale.unsigned_abs() <= MAX_NUMERIC_DIGITS as u64 {
        true => Ok(number),
        false => Err(format!("it has more than {MAX_NUMERIC_DIGITS} digits")),
    }
}

fn integer(json: &Json<'_>) -> Result<i64, String> {
    let number = numeric(json)?;
    if !number.is_integer() {
        return Err("it is not a whole number".into());
    }
    bigdecimal::ToPrimitive::to_i64(&number).ok_or_else(|| "it is beyond 64 bits".into())
}

fn double(json: &Json<'_>) -> Result<f64, String> {
    match json.node {
        Node::Number(text) => match text.parse::<f64>() {
            Ok(number) if number.is_finite() => Ok(number),
            _ => Err("it is beyond a double's range".into()),
        },
        _ => Err(format!("it is {}", json.kind())),
    }
}

fn has_nul(json: &Json<'_>) -> bool {
    match &json.node {
        Node::String(text) => text.contains('\0'),
        Node::Array(elements) => elements.iter().any(has_nul),
        Node::Object(members) => {
            members.iter().any(|(key, value)| key.contains('\0') || has_nul(value))
        }
        Node::Null | Node::Bool(_) | Node::Number(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::json::parse;

    fn value(sql_type: SqlType, json: &str) -> Result<SqlValue, String> {
        let pointer = "".parse().unwrap();
        ParameterSpec { pointer, sql_type, optional: false }.value(&parse(json).unwrap())
    }

    #[test]
    fn values_that_fit_their_type_are_exact() {
        use SqlType::*;
        let decimal = |text: &str| SqlValue::Numeric(Some(text.parse().unwrap()));
        for (sql_type, json, expected) in [
            (Bigint, "9007199254740993", SqlValue::Bigint(Some(9_007_199_254_740_993))),
            (Bigint, "\"9007199254740993\"", SqlValue::Bigint(Some(9_007_199_254_740_993))),
            (Bigint, "-9223372036854775808", SqlValue::Bigint(Some(i64::MIN))),
            (Bigint, "10.0", SqlValue::Bigint(Some(10))),
            (Bigint, "1e1", SqlValue::Bigint(Some(10))),
            (Integer, "2147483647", SqlValue::Integer(Some(i32::MAX))),
            (Numeric, "0.10", decimal("0.10")),
            (Numeric, "\"123456789012345678.90\"", decimal("123456789012345678.90")),
            (Double, "1.5e3", SqlValue::Double(Some(1500.0))),
            (Text, r#""é\n""#, SqlValue::Text(Some("é\n".into()))),
            (Boolean, "true", SqlValue::Boolean(Some(true))),
            (Json, r#"{"a": 1.0}"#, SqlValue::Json(Some(JsonText(r#"{"a": 1.0}"#.into())))),
            (Bytes, "\"AAE=\"", SqlValue::Bytes(Some(vec![0, 1]))),
        ] {
            assert_eq!(value(sql_type, json).unwrap(), expected, "{sql_type} {json}");
        }
    }

    #[test]
    fn values_that_do_not_fit_are_refused() {
        use SqlType::*;
        for (sql_type, json) in [
            (Bigint, "9223372036854775808"),
            (Bigint, "1.5"),
            (Bigint, "1e1000000000"),
            (Bigint, "1e-1000000000"),
            (Bigint, "\"\""),
            (Bigint, "\" 1\u{a0}\""),
            (Bigint, "\"1_000\""),
            (Bigint, "\"0x10\""),
            (Bigint, "true"),
            (Bigint, "null"),
            (Integer, "2147483648"),
            (Numeric, "1e2000"),
            (Numeric, "\"NaN\""),
            (Double, "1e999"),
            (Double, "\"1\""),
            (Text, "1"),
            (Text, r#""\u0000""#),
            (Boolean, "1"),
            (Timestamp, "\"2025-12-01\""),
            (Timestamp, "1764547200"),
            (Json, r#"{"a":["\u0000"]}"#),
            (Json, r#"{"\u0000":1}"#),
            (Bytes, "\"*\""),
        ] {
            assert!(value(sql_type, json).is_err(), "{sql_type} {json}");
        }
    }

    #[test]
    fn what_is_optional_may_be_missing_or_null() {
        let spec = |optional| ParameterSpec {
            pointer: "/a".parse().unwrap(),
            sql_type: SqlType::Text,
            optional,
        };
        for payload in ["{}", r#"{"a":null}"#] {
            let payload = parse(payload).unwrap();
            assert_eq!(spec(true).value(&payload), Ok(SqlValue::Text(None)));
            assert_eq!(spec(false).value(&payload), Err("the payload has no /a".into()));
        }
    }
}
