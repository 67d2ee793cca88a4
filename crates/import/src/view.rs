//! Values of a tree with their places, read as what they should be.

use std::net::IpAddr;

use wayleave_core::Asn;

use super::tree::{Node, NodeValue};
use super::{Faults, Place, shown};

/// A value and its path from the top.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) node: &'a Node,
    path: Path<'a>,
}

/// A path is written out only where something is to be said of it.
#[derive(Clone, Copy)]
enum Path<'a> {
    Top,
    Key(&'a View<'a>, &'a str),
    Index(&'a View<'a>, usize),
}

impl<'a> View<'a> {
    pub(super) fn top(node: &'a Node) -> Self {
        Self { node, path: Path::Top }
    }

    pub(super) fn place(&self) -> Place {
        Place { line: self.node.line, path: self.path_text() }
    }

    fn path_text(&self) -> String {
        match self.path {
            Path::Top => String::new(),
            Path::Key(of, key) => {
                let of = of.path_text();
                if of.is_empty() { shown(key) } else { format!("{of}.{}", shown(key)) }
            }
            Path::Index(of, index) => format!("{}[{index}]", of.path_text()),
        }
    }

    /// The value of a key, if it has one.
    pub(super) fn get(&'a self, key: &'a str) -> Option<View<'a>> {
        self.node.get(key).map(|node| View { node, path: Path::Key(self, key) })
    }

    /// The items of a list; anything else is a fault.
    pub(super) fn items(&'a self, faults: &mut Faults) -> Vec<View<'a>> {
        match &self.node.value {
            NodeValue::List(items) => {
                items.iter().enumerate().map(|(index, node)| View { node, path: Path::Index(self, index) }).collect()
            }
            _ if self.node.is_null() => Vec::new(),
            _ => {
                faults.at(&self.place(), "expected a list");
                Vec::new()
            }
        }
    }

    /// The items of a list, or the one value.
    pub(super) fn one_or_many(&'a self) -> Vec<View<'a>> {
        match &self.node.value {
            NodeValue::List(items) => {
                items.iter().enumerate().map(|(index, node)| View { node, path: Path::Index(self, index) }).collect()
            }
            _ if self.node.is_null() => Vec::new(),
            _ => vec![View { node: self.node, path: self.path }],
        }
    }

    /// The entries of a map; anything else is a fault.
    pub(super) fn entries(&'a self, faults: &mut Faults) -> Vec<(&'a str, View<'a>)> {
        match &self.node.value {
            NodeValue::Map(entries) => {
                entries.iter().map(|(key, node)| (key.as_str(), View { node, path: Path::Key(self, key) })).collect()
            }
            _ if self.node.is_null() => Vec::new(),
            _ => {
                faults.at(&self.place(), "expected a map of keys and values");
                Vec::new()
            }
        }
    }

    pub(super) fn is_map(&self) -> bool {
        matches!(self.node.value, NodeValue::Map(_))
    }

    /// The word that it is.
    pub(super) fn text(&self) -> Option<&'a str> {
        match &self.node.value {
            NodeValue::Scalar { text, .. } if !self.node.is_null() => Some(text.trim()),
            _ => None,
        }
    }

    fn wrong(&self, faults: &mut Faults, expected: &str) {
        let message = match self.text() {
            Some(text) => format!("`{}`, expected {expected}", shown(text)),
            None => format!("expected {expected}"),
        };
        faults.at(&self.place(), message);
    }

    pub(super) fn address(&self, faults: &mut Faults) -> Option<IpAddr> {
        let address = self.text().and_then(|text| text.parse().ok());
        if address.is_none() {
            self.wrong(faults, "an IPv4 or IPv6 address");
        }
        address
    }

    /// An AS number that may appear in a route.
    pub(super) fn asn(&self, faults: &mut Faults) -> Option<Asn> {
        let Some(asn) = self.text().and_then(|text| text.parse::<Asn>().ok()) else {
            self.wrong(faults, "an AS number");
            return None;
        };
        if !asn.is_routable() {
            faults.at(&self.place(), format!("{asn} is reserved, expected an AS number that may appear in a route"));
            return None;
        }
        Some(asn)
    }

    pub(super) fn number(&self, most: u32, faults: &mut Faults) -> Option<u32> {
        let number = self.text().and_then(|text| text.parse().ok()).filter(|number| *number <= most);
        if number.is_none() {
            self.wrong(faults, &format!("a number from 0 to {most}"));
        }
        number
    }

    /// A truth value as YAML 1.1, Python and JSON have them.
    pub(super) fn truth(&self, faults: &mut Faults) -> Option<bool> {
        let truth = match self.text().map(str::to_ascii_lowercase).as_deref() {
            Some("true" | "yes" | "on" | "t" | "y" | "1") => Some(true),
            Some("false" | "no" | "off" | "f" | "n" | "0") => Some(false),
            _ => None,
        };
        if truth.is_none() {
            self.wrong(faults, "true or false");
        }
        truth
    }

    /// Whether it says no, or nothing: a setting that is not set.
    pub(super) fn is_unset(&self) -> bool {
        match &self.node.value {
            NodeValue::Scalar { text, .. } => {
                self.node.is_null() || matches!(text.to_ascii_lowercase().as_str(), "" | "false" | "no" | "off")
            }
            NodeValue::List(items) => items.is_empty(),
            NodeValue::Map(entries) => entries.is_empty(),
        }
    }

    /// It in a few words.
    pub(super) fn summary(&self) -> String {
        match &self.node.value {
            NodeValue::Scalar { text, .. } => shown(text),
            NodeValue::List(items) => {
                let words: Option<Vec<&str>> = items
                    .iter()
                    .take(4)
                    .map(|node| match &node.value {
                        NodeValue::Scalar { text, .. } => Some(text.as_str()),
                        _ => None,
                    })
                    .collect();
                match words {
                    Some(words) if items.len() <= 4 => shown(&words.join(" ")),
                    _ => format!("{} entries", items.len()),
                }
            }
            NodeValue::Map(entries) => format!("{} keys", entries.len()),
        }
    }
}
