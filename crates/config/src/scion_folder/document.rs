//! Values of a JSON or TOML document with their paths, and what is found wrong with them.

use std::fmt;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;

use serde_json::Value;

/// What is wrong in a file of a folder, or done otherwise by this router.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Remark {
    /// The file, and the path of the value within it, such as `topology.json: border_routers.br1.internal_addr`.
    pub place: String,
    pub message: String,
}

impl fmt::Display for Remark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.message)
    }
}

/// Faults, with which the router does not start, and warnings.
#[derive(Clone, Default, Debug)]
pub(super) struct Findings {
    pub(super) faults: Vec<Remark>,
    pub(super) warnings: Vec<Remark>,
}

/// A value with the place that it came from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Placed<T> {
    pub(super) value: T,
    pub(super) place: String,
}

/// A value of a document. Values are never repeated in messages: somebody may have put a secret in a wrong place, and messages
/// reach status pages.
#[derive(Clone, Copy)]
pub(super) struct Node<'a> {
    file: &'a str,
    parent: Option<&'a Node<'a>>,
    key: &'a str,
    value: &'a Value,
}

impl<'a> Node<'a> {
    /// The whole document.
    pub(super) fn top(file: &'a str, value: &'a Value) -> Self {
        Self { file, parent: None, key: "", value }
    }

    /// The file and the path within it.
    pub(super) fn place(&self) -> String {
        let mut keys = Vec::new();
        let mut node = Some(self);
        while let Some(Node { parent: parent @ Some(_), key, .. }) = node {
            // Keys of a document may have anything in them, and places are printed.
            keys.push(key.escape_debug().to_string());
            node = *parent;
        }
        keys.reverse();
        if keys.is_empty() { self.file.to_owned() } else { format!("{}: {}", self.file, keys.join(".")) }
    }

    /// The place that a member of this name has, or would have.
    pub(super) fn place_of(&self, key: &str) -> String {
        let place = self.place();
        if self.parent.is_none() { format!("{place}: {key}") } else { format!("{place}.{key}") }
    }

    /// The member of this name; `null` counts as none.
    pub(super) fn member(&'a self, key: &'a str) -> Option<Node<'a>> {
        let value = self.value.as_object()?.get(key).filter(|value| !value.is_null())?;
        Some(Node { file: self.file, parent: Some(self), key, value })
    }

    /// All members, by name.
    pub(super) fn members(&'a self) -> Vec<Node<'a>> {
        let members = self.value.as_object().into_iter().flatten();
        let node = |(key, value): (&'a String, &'a Value)| Node { file: self.file, parent: Some(self), key, value };
        let mut all: Vec<Node<'a>> = members.map(node).filter(|node| !node.value.is_null()).collect();
        all.sort_by_key(|node| node.key);
        all
    }

    pub(super) fn key(&self) -> &'a str {
        self.key
    }

    fn placed<T>(&self, value: T) -> Placed<T> {
        Placed { value, place: self.place() }
    }
}

impl Findings {
    pub(super) fn fault(&mut self, place: String, message: impl Into<String>) {
        self.faults.push(Remark { place, message: message.into() });
    }

    pub(super) fn warn(&mut self, place: String, message: impl Into<String>) {
        self.warnings.push(Remark { place, message: message.into() });
    }

    /// Whether a node is an object, which it is said to have to be otherwise.
    pub(super) fn is_object(&mut self, node: &Node<'_>) -> bool {
        let is_object = node.value.is_object();
        if !is_object {
            self.fault(node.place(), "expected an object with members");
        }
        is_object
    }

    /// The member of this name, which must be there.
    pub(super) fn needed<'a>(&mut self, node: &'a Node<'a>, key: &'a str, expected: &str) -> Option<Node<'a>> {
        let member = node.member(key);
        if member.is_none() {
            self.fault(node.place_of(key), format!("is missing, expected {expected}"));
        }
        member
    }

    pub(super) fn text<'a>(&mut self, node: &Node<'a>) -> Option<Placed<&'a str>> {
        let text = node.value.as_str();
        if text.is_none() {
            self.fault(node.place(), "expected text in quotes");
        }
        Some(node.placed(text?))
    }

    pub(super) fn flag(&mut self, node: &Node<'_>) -> Option<bool> {
        let flag = node.value.as_bool();
        if flag.is_none() {
            self.fault(node.place(), "expected true or false");
        }
        flag
    }

    pub(super) fn number(&mut self, node: &Node<'_>, range: RangeInclusive<u64>) -> Option<Placed<u64>> {
        let number = node.value.as_u64().filter(|number| range.contains(number));
        if number.is_none() {
            self.fault(node.place(), format!("expected a number from {} to {}", range.start(), range.end()));
        }
        Some(node.placed(number?))
    }

    /// The texts of a list.
    pub(super) fn texts<'a>(&mut self, node: &Node<'a>) -> Vec<&'a str> {
        let texts = node.value.as_array().and_then(|list| list.iter().map(Value::as_str).collect::<Option<Vec<_>>>());
        if texts.is_none() {
            self.fault(node.place(), "expected a list of texts");
        }
        texts.unwrap_or_default()
    }

    /// A value that is written as text, such as an AS.
    pub(super) fn parsed<T: FromStr>(&mut self, node: &Node<'_>, expected: &str) -> Option<Placed<T>> {
        let text = self.text(node)?;
        match text.value.parse() {
            Ok(value) => Some(Placed { value, place: text.place }),
            Err(_) => {
                self.fault(text.place, format!("expected {expected}"));
                None
            }
        }
    }

    /// An address with a port. The open-source router looks names up and binds any address for `:PORT`; this one does neither.
    pub(super) fn address(&mut self, node: &Node<'_>) -> Option<Placed<SocketAddr>> {
        let text = self.text(node)?;
        let fault = match text.value.parse::<SocketAddr>() {
            Ok(address) if address.port() != 0 => return Some(Placed { value: address, place: text.place }),
            Ok(_) => "the port is 0, expected the one that others send to",
            Err(_) if text.value.starts_with(':') => {
                "a port alone, expected ADDRESS:PORT with an address of this machine: this router binds no wildcard address"
            }
            Err(_) if text.value.contains('%') => {
                "an address with the name of a zone, expected one without, or with the zone's number"
            }
            Err(_) => {
                "expected ADDRESS:PORT, such as 192.0.2.1:50000 or [2001:db8::1]:50000; this router does not look names up"
            }
        };
        self.fault(text.place, fault);
        None
    }

    /// The members of a node that are not in `known`.
    pub(super) fn unknown<'a>(&mut self, node: &'a Node<'a>, known: &[&str]) -> Vec<Node<'a>> {
        node.members().into_iter().filter(|member| !known.contains(&member.key)).collect()
    }
}

/// Line and column, from 1, of an offset in a text.
pub(super) fn line_column(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    (before.matches('\n').count() + 1, column)
}
