//! Request parameters: what is signed and sent as a form.

use super::protocol::MAX_BATCH_MESSAGES;

/// Why a numbered array parameter could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ArrayError {
    /// No element at all.
    #[error("lacked of required parameter {0}.N")]
    Missing(String),
    /// More elements than one request may carry.
    #[error("{0} parameter batch size is out of range")]
    TooMany(String),
    /// The numbers have a gap, or begin neither at 0 nor at 1.
    #[error("{0} parameter is not consequent")]
    NotConsecutive(String),
    /// What follows the dot is not a number.
    #[error("error: parameter {0} key format error")]
    BadIndex(String),
}

/// The parameters of one request, in the order they were added.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Parameters(Vec<(String, String)>);

impl Parameters {
    /// The parameters of a request for `action`.
    pub fn for_action(action: &str) -> Self {
        Self(vec![("Action".into(), action.into())])
    }

    /// Reads a query string or a form body; names and values are percent-decoded.
    pub fn from_urlencoded(bytes: &[u8]) -> Self {
        Self(url::form_urlencoded::parse(bytes).into_owned().collect())
    }

    /// The form body or query string.
    pub fn to_urlencoded(&self) -> String {
        url::form_urlencoded::Serializer::new(String::new()).extend_pairs(self.iter()).finish()
    }

    /// Adds one parameter.
    pub fn push(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.0.push((name.into(), value.into()));
    }

    /// Adds `name.1`, `name.2`, …
    pub fn push_array<'a>(&mut self, name: &str, values: impl IntoIterator<Item = &'a str>) {
        for (index, value) in values.into_iter().enumerate() {
            self.push(format!("{name}.{}", index + 1), value);
        }
    }

    /// Adds all of `others`.
    pub fn extend(&mut self, others: Parameters) {
        self.0.extend(others.0);
    }

    /// The first value of `name`.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.iter().find(|(n, _)| *n == name).map(|(_, v)| v)
    }

    /// Whether `name` stands more than once.
    pub fn is_repeated(&self, name: &str) -> bool {
        self.iter().filter(|(n, _)| *n == name).count() > 1
    }

    /// The values of `name.N`, ordered by N. N may start at 0 (Go SDK) or at 1 (Python SDK) and must
    /// be consecutive.
    ///
    /// # Errors
    /// No element, more than 16, a gap, or an index that is not a number.
    pub fn array(&self, name: &str) -> Result<Vec<&str>, ArrayError> {
        let mut elements = Vec::new();
        for (key, value) in self.iter() {
            let Some(index) = key.strip_prefix(name).and_then(|rest| rest.strip_prefix('.')) else {
                continue;
            };
            let index: usize = index.parse().map_err(|_| ArrayError::BadIndex(key.to_owned()))?;
            elements.push((index, value));
        }
        elements.sort_by_key(|(index, _)| *index);
        let first = match elements.first() {
            None => return Err(ArrayError::Missing(name.to_owned())),
            Some((first, _)) => *first,
        };
        if elements.len() > MAX_BATCH_MESSAGES {
            return Err(ArrayError::TooMany(name.to_owned()));
        }
        let consecutive = elements.iter().map(|(i, _)| *i).eq(first..first + elements.len());
        if first > 1 || !consecutive {
            return Err(ArrayError::NotConsecutive(name.to_owned()));
        }
        Ok(elements.into_iter().map(|(_, value)| value).collect())
    }

    /// All parameters, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(n, v)| (n.as_str(), v.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Vec<String>, ArrayError> {
        Parameters::from_urlencoded(text.as_bytes())
            .array("h")
            .map(|values| values.into_iter().map(str::to_owned).collect())
    }

    #[test]
    fn arrays_start_at_0_or_1_and_are_consecutive() {
        assert_eq!(parse("h.0=a&h.1=b").unwrap(), ["a", "b"]);
        assert_eq!(parse("h.2=b&h.1=a").unwrap(), ["a", "b"]);
        let eleven: Vec<String> = (1..=11).rev().map(|i| format!("h.{i}={i:02}")).collect();
        assert_eq!(parse(&eleven.join("&")).unwrap()[10], "11");
        assert_eq!(parse("x=1"), Err(ArrayError::Missing("h".into())));
        for gap in ["h.1=a&h.3=b", "h.2=a", "h.1=a&h.1=b"] {
            assert_eq!(parse(gap), Err(ArrayError::NotConsecutive("h".into())), "{gap}");
        }
        assert_eq!(parse("h.x=a"), Err(ArrayError::BadIndex("h.x".into())));
        let many: Vec<String> = (0..17).map(|i| format!("h.{i}=v")).collect();
        assert_eq!(parse(&many.join("&")), Err(ArrayError::TooMany("h".into())));
    }

    #[test]
    fn what_is_sent_is_what_is_read() {
        let mut parameters = Parameters::for_action("SendMessage");
        parameters.push("msgBody", "a=1&b=2 +%\u{1F600}\u{0}\n");
        let read = Parameters::from_urlencoded(parameters.to_urlencoded().as_bytes());
        assert_eq!(read, parameters);
    }
}
