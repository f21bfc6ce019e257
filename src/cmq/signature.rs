//! Request signatures (documentation of product 406, "signature"): HMAC over method, host, path and
//! the raw parameters sorted by name.

use base64::prelude::{BASE64_STANDARD, Engine};
use hmac::{Hmac, Mac};
use serde::Deserialize;
use subtle::ConstantTimeEq;

use super::Parameters;

/// The HMAC's hash. The wire names are `HmacSHA256` and `HmacSHA1`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub enum SignatureMethod {
    /// HMAC-SHA256, hapax's default.
    #[default]
    #[serde(rename = "HmacSHA256")]
    HmacSha256,
    /// HMAC-SHA1, which a server also assumes when no method is named.
    #[serde(rename = "HmacSHA1")]
    HmacSha1,
}

impl SignatureMethod {
    /// The value of the parameter `SignatureMethod`.
    pub fn wire_name(self) -> &'static str {
        match self {
            Self::HmacSha256 => "HmacSHA256",
            Self::HmacSha1 => "HmacSHA1",
        }
    }

    /// Anything but `HmacSHA256`, or nothing, means HMAC-SHA1.
    pub fn from_wire_name(name: Option<&str>) -> Self {
        match name {
            Some("HmacSHA256") => Self::HmacSha256,
            _ => Self::HmacSha1,
        }
    }

    fn mac(self, key: &[u8], text: &[u8]) -> Vec<u8> {
        const ANY_LENGTH: &str = "HMAC takes a key of any length";
        match self {
            Self::HmacSha256 => Hmac::<sha2::Sha256>::new_from_slice(key)
                .expect(ANY_LENGTH)
                .chain_update(text)
                .finalize()
                .into_bytes()
                .to_vec(),
            Self::HmacSha1 => Hmac::<sha1::Sha1>::new_from_slice(key)
                .expect(ANY_LENGTH)
                .chain_update(text)
                .finalize()
                .into_bytes()
                .to_vec(),
        }
    }
}

/// Where a request goes to, as far as its signature covers it.
#[derive(Debug, Clone, Copy)]
pub struct Target<'a> {
    /// `GET` or `POST`.
    pub method: &'a str,
    /// Host as in the `Host` header: with the port when the URL names one.
    pub host: &'a str,
    /// Path, from the leading `/`.
    pub path: &'a str,
}

/// Whether values that begin with `@` are part of the string to sign. The Python SDK leaves them out
/// of POST requests; servers accept either.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtValues {
    /// Signed like any other value.
    Signed,
    /// Left out.
    LeftOut,
}

/// The text that is signed: values raw, names sorted by bytes and `_` in a name turned into `.`.
pub fn string_to_sign(target: Target<'_>, parameters: &Parameters, at_values: AtValues) -> String {
    let mut sorted: Vec<_> = parameters
        .iter()
        .filter(|(name, _)| *name != "Signature")
        .filter(|(_, value)| at_values == AtValues::Signed || !value.starts_with('@'))
        .collect();
    sorted.sort();
    let pairs: Vec<String> = sorted
        .into_iter()
        .map(|(name, value)| format!("{}={value}", name.replace('_', ".")))
        .collect();
    let Target { method, host, path } = target;
    format!("{method}{host}{path}?{}", pairs.join("&"))
}

/// The value of the parameter `Signature`.
pub fn sign(
    target: Target<'_>,
    parameters: &Parameters,
    method: SignatureMethod,
    secret_key: &str,
) -> String {
    let text = string_to_sign(target, parameters, AtValues::Signed);
    BASE64_STANDARD.encode(method.mac(secret_key.as_bytes(), text.as_bytes()))
}

/// Whether the request's own `Signature` is right for `secret_key`, by the method it names.
pub fn verify(target: Target<'_>, parameters: &Parameters, secret_key: &str) -> bool {
    let method = SignatureMethod::from_wire_name(parameters.get("SignatureMethod"));
    let Some(Ok(given)) = parameters.get("Signature").map(|s| BASE64_STANDARD.decode(s)) else {
        return false;
    };
    [AtValues::Signed, AtValues::LeftOut].iter().any(|at_values| {
        let text = string_to_sign(target, parameters, *at_values);
        given.ct_eq(&method.mac(secret_key.as_bytes(), text.as_bytes())).into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[derive(Deserialize)]
    struct Vector {
        name: String,
        method: String,
        host: String,
        path: String,
        secret_key: String,
        params: BTreeMap<String, String>,
        string_to_sign: String,
        signature: String,
    }

    impl Vector {
        fn target(&self) -> Target<'_> {
            Target { method: &self.method, host: &self.host, path: &self.path }
        }

        fn parameters(&self) -> Parameters {
            let mut parameters = Parameters::default();
            for (name, value) in self.params.iter().rev() {
                parameters.push(name, value);
            }
            parameters
        }
    }

    fn vectors() -> Vec<Vector> {
        let text = include_str!("../../tests/data/signature_vectors.json");
        let vectors: Vec<Vector> = serde_json::from_str(text).unwrap();
        assert_eq!(vectors.len(), 8);
        vectors
    }

    #[test]
    fn every_vector_of_the_official_sdk_is_reproduced() {
        for vector in vectors() {
            let parameters = vector.parameters();
            let text = string_to_sign(vector.target(), &parameters, AtValues::Signed);
            assert_eq!(text, vector.string_to_sign, "{}", vector.name);
            let method = SignatureMethod::from_wire_name(parameters.get("SignatureMethod"));
            let signature = sign(vector.target(), &parameters, method, &vector.secret_key);
            assert_eq!(signature, vector.signature, "{}", vector.name);
        }
    }

    #[test]
    fn every_vector_verifies_and_any_change_to_it_does_not() {
        for vector in vectors() {
            let mut parameters = vector.parameters();
            parameters.push("Signature", &vector.signature);
            assert!(verify(vector.target(), &parameters, &vector.secret_key), "{}", vector.name);
            assert!(!verify(vector.target(), &parameters, "another key"), "{}", vector.name);
            let elsewhere = Target { host: "example.invalid", ..vector.target() };
            assert!(!verify(elsewhere, &parameters, &vector.secret_key), "{}", vector.name);
            parameters.push("added", "1");
            assert!(!verify(vector.target(), &parameters, &vector.secret_key), "{}", vector.name);
        }
    }

    #[test]
    fn values_beginning_with_at_verify_signed_and_left_out() {
        let target = Target { method: "POST", host: "h", path: "/" };
        let mut all = Parameters::for_action("SendMessage");
        all.push("msgBody", "@x");
        let without = Parameters::for_action("SendMessage");
        for signed in [&all, &without] {
            let mut sent = all.clone();
            sent.push("Signature", sign(target, signed, SignatureMethod::HmacSha1, "k"));
            assert!(verify(target, &sent, "k"));
        }
    }

    #[test]
    fn a_missing_or_unreadable_signature_does_not_verify() {
        let target = Target { method: "GET", host: "h", path: "/" };
        let mut parameters = Parameters::for_action("ListQueue");
        assert!(!verify(target, &parameters, "k"));
        parameters.push("Signature", "*not base64*");
        assert!(!verify(target, &parameters, "k"));
    }
}
