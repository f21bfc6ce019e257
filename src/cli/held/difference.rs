//! Where two JSON documents differ.

use crate::event::json::{Json, Node};

/// A place in which the documents differ, as a JSON Pointer, and the text on either side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    pub pointer: String,
    pub applied: Option<String>,
    pub incoming: Option<String>,
}

/// All places, in the order of the first document.
pub fn differences(applied: &Json<'_>, incoming: &Json<'_>) -> Vec<Difference> {
    let mut found = Vec::new();
    compare(String::new(), Some(applied), Some(incoming), &mut found);
    found
}

fn compare(
    pointer: String,
    applied: Option<&Json<'_>>,
    incoming: Option<&Json<'_>>,
    found: &mut Vec<Difference>,
) {
    match (applied.map(|json| &json.node), incoming.map(|json| &json.node)) {
        (Some(Node::Object(left)), Some(Node::Object(right))) => {
            let more = right.iter().filter(|(key, _)| left.iter().all(|(other, _)| other != key));
            for (key, _) in left.iter().chain(more) {
                let below = format!("{pointer}/{}", key.replace('~', "~0").replace('/', "~1"));
                let (one, other) = (
                    applied.and_then(|json| json.member(key)),
                    incoming.and_then(|json| json.member(key)),
                );
                compare(below, one, other, found);
            }
        }
        (Some(Node::Array(left)), Some(Node::Array(right))) => {
            for index in 0..left.len().max(right.len()) {
                let below = format!("{pointer}/{index}");
                compare(below, left.get(index), right.get(index), found);
            }
        }
        (Some(left), Some(right)) if left == right => {}
        (None, None) => {}
        _ => found.push(Difference {
            pointer,
            applied: applied.map(|json| json.text.to_owned()),
            incoming: incoming.map(|json| json.text.to_owned()),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::json::parse;

    #[test]
    fn differences_are_named_by_their_place() {
        for (applied, incoming, expected) in [
            (r#"{"a":1,"b":[1,2]}"#, r#"{"b":[1,2],"a":1}"#, vec![]),
            (r#"{"a":1,"b":[1,2]}"#, r#"{"a":2,"b":[1,3,4]}"#, vec!["/a", "/b/1", "/b/2"]),
            (r#"{"a/b":{"c":1}}"#, r#"{"a/b":{"d":1}}"#, vec!["/a~1b/c", "/a~1b/d"]),
            ("1", r#""1""#, vec![""]),
        ] {
            let found = differences(&parse(applied).unwrap(), &parse(incoming).unwrap());
            let places: Vec<_> = found.iter().map(|one| one.pointer.as_str()).collect();
            assert_eq!(places, expected, "{applied} {incoming}");
        }
    }
}
