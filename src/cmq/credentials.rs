//! The API credentials, and the environment variables that carry them.

use secrecy::{ExposeSecret, SecretString};

/// Environment variable of the secret id.
pub const SECRET_ID_VARIABLE: &str = "TENCENTCLOUD_SECRET_ID";
/// Environment variable of the secret key.
pub const SECRET_KEY_VARIABLE: &str = "TENCENTCLOUD_SECRET_KEY";
/// Environment variable of a temporary credential's token.
pub const TOKEN_VARIABLE: &str = "TENCENTCLOUD_TOKEN";

/// A secret id with its key and, for temporary credentials, a token. `Debug` shows neither key nor
/// token.
#[derive(Debug, Clone)]
pub struct Credentials {
    /// `SecretId`, sent with each request.
    pub secret_id: String,
    secret_key: SecretString,
    token: Option<SecretString>,
}

/// A credential is missing.
#[derive(Debug, thiserror::Error)]
#[error(
    "no CMQ credentials: {missing} is not set; set the environment variables {SECRET_ID_VARIABLE} \
     and {SECRET_KEY_VARIABLE} (and {TOKEN_VARIABLE} for temporary credentials), or \
     credentials.secret_id and credentials.secret_key in the configuration"
)]
pub struct CredentialsError {
    missing: &'static str,
}

impl PartialEq for Credentials {
    fn eq(&self, other: &Self) -> bool {
        self.secret_id == other.secret_id
            && self.secret_key() == other.secret_key()
            && self.token() == other.token()
    }
}

impl Credentials {
    /// Credentials from their parts; an empty token is none.
    pub fn new(secret_id: String, secret_key: SecretString, token: Option<SecretString>) -> Self {
        let token = token.filter(|token| !token.expose_secret().is_empty());
        Self { secret_id, secret_key, token }
    }

    /// Whether the environment names a secret id.
    pub fn are_in_environment() -> bool {
        std::env::var(SECRET_ID_VARIABLE).is_ok_and(|id| !id.is_empty())
    }

    /// Takes each part from the environment or else from the given fall-backs. A token of the
    /// fall-back is used only with the fall-back's own secret id.
    ///
    /// # Errors
    /// Neither place has a secret id, or neither has a secret key.
    pub fn from_env_or(
        secret_id: Option<String>,
        secret_key: Option<SecretString>,
        token: Option<SecretString>,
    ) -> Result<Self, CredentialsError> {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        if let Some(id) = variable(SECRET_ID_VARIABLE) {
            let key = variable(SECRET_KEY_VARIABLE).map(SecretString::from).or(secret_key);
            let key = key.ok_or(CredentialsError { missing: SECRET_KEY_VARIABLE })?;
            return Ok(Self::new(id, key, variable(TOKEN_VARIABLE).map(SecretString::from)));
        }
        let id = secret_id.ok_or(CredentialsError { missing: SECRET_ID_VARIABLE })?;
        let key = variable(SECRET_KEY_VARIABLE).map(SecretString::from).or(secret_key);
        let key = key.ok_or(CredentialsError { missing: SECRET_KEY_VARIABLE })?;
        Ok(Self::new(id, key, token))
    }

    /// The signing key. Never log it.
    pub fn secret_key(&self) -> &str {
        self.secret_key.expose_secret()
    }

    /// The temporary credential's token. Never log it.
    pub fn token(&self) -> Option<&str> {
        self.token.as_ref().map(ExposeSecret::expose_secret)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_shows_no_secret() {
        let credentials =
            Credentials::new("AKID".into(), "the-key".into(), Some("the-token".into()));
        let shown = format!("{credentials:?}");
        assert!(shown.contains("AKID"));
        assert!(!shown.contains("the-key") && !shown.contains("the-token"), "{shown}");
    }
}
