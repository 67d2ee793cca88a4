//! YAML and JSON of strangers as one tree, in which each value knows its line (YAML) and its path.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use saphyr_parser::{Event, Parser, ScalarStyle, ScanError};
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

/// Values of a file, each time that an alias stands for them. The largest exchanges' files have some ten thousands.
const MAX_NODES: usize = 1 << 20;
/// Octets of texts and keys of a file, likewise.
const MAX_TEXTS: usize = 4 * super::MAX_OCTETS as usize;
/// How deep values are nested.
const MAX_DEPTH: usize = 32;

/// A value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Node {
    pub(super) value: NodeValue,
    /// Its line, from 1; JSON has none.
    pub(super) line: Option<usize>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum NodeValue {
    /// Text, numbers and all else that is one word. A plain one is not quoted: it may be a number, truth or nothing.
    Scalar {
        text: String,
        is_plain: bool,
    },
    List(Vec<Node>),
    /// In the order of the file, each key once.
    Map(Vec<(String, Node)>),
}

/// Why a file is no tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct TreeError {
    pub(super) line: Option<usize>,
    pub(super) message: String,
}

impl TreeError {
    fn new(line: impl Into<Option<usize>>, message: impl Into<String>) -> Self {
        Self { line: line.into(), message: message.into() }
    }
}

impl Node {
    fn scalar(text: impl Into<String>, is_plain: bool, line: Option<usize>) -> Self {
        Self { value: NodeValue::Scalar { text: text.into(), is_plain }, line }
    }

    /// The value of a key, if this is a map that has it with another value than none.
    pub(super) fn get(&self, key: &str) -> Option<&Node> {
        let NodeValue::Map(entries) = &self.value else { return None };
        entries.iter().find(|(name, _)| name == key).map(|(_, node)| node).filter(|node| !node.is_null())
    }

    /// Whether it stands for no value.
    pub(super) fn is_null(&self) -> bool {
        let NodeValue::Scalar { text, is_plain } = &self.value else { return false };
        *is_plain && matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL")
    }

    /// How much it has, with itself, and how deep its values are nested.
    fn extent(&self) -> Extent {
        let sum = |inner: &mut dyn Iterator<Item = (usize, &Node)>| {
            let first = Extent { size: 1, octets: 0, depth: 0 };
            let all = inner.fold(first, |all, (key, node)| {
                let of = node.extent();
                Extent {
                    size: all.size + of.size,
                    octets: all.octets + key + of.octets,
                    depth: of.depth.max(all.depth),
                }
            });
            Extent { depth: all.depth + 1, ..all }
        };
        match &self.value {
            NodeValue::Scalar { text, .. } => Extent { size: 1, octets: text.len(), depth: 0 },
            NodeValue::List(items) => sum(&mut items.iter().map(|node| (0, node))),
            NodeValue::Map(entries) => sum(&mut entries.iter().map(|(key, node)| (key.len(), node))),
        }
    }
}

#[derive(Clone, Copy)]
struct Extent {
    /// Values.
    size: usize,
    /// Of texts and keys.
    octets: usize,
    depth: usize,
}

/// Reads one document: JSON if it begins as an object or a list of JSON does, YAML otherwise.
///
/// # Errors
/// What is wrong, and in which line.
pub(super) fn parse(text: &str) -> Result<Node, TreeError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.trim_start().starts_with(['{', '[']) { json(text) } else { Yaml::default().read(text) }
}

/// A list or map that is not closed yet.
enum Open {
    List { items: Vec<Node>, line: usize, anchor: usize },
    Map { entries: Entries, key: Option<String>, merged: Vec<(String, Node)>, line: usize, anchor: usize },
}

/// Builds the tree from the parser's events, without recursion.
#[derive(Default)]
struct Yaml {
    open: Vec<Open>,
    root: Option<Node>,
    /// Values that an alias may stand for, by the parser's number of the anchor.
    anchored: BTreeMap<usize, (Node, Extent)>,
    nodes: usize,
    octets: usize,
}

impl Yaml {
    fn read(mut self, text: &str) -> Result<Node, TreeError> {
        for event in Parser::new_from_str(text) {
            let (event, span) = event.map_err(|error: ScanError| {
                TreeError::new(error.marker().line(), format!("no YAML: {}", error.info()))
            })?;
            self.event(event, span.start.line())?;
        }
        self.root.ok_or_else(|| TreeError::new(None, "the file is empty"))
    }

    fn event(&mut self, event: Event<'_>, line: usize) -> Result<(), TreeError> {
        match event {
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => Ok(()),
            Event::DocumentStart(_) if self.root.is_some() => {
                Err(TreeError::new(line, "a second document in the file, expected one"))
            }
            Event::DocumentStart(_) => Ok(()),
            Event::Scalar(text, style, anchor, _) => {
                self.count(1, text.len(), line)?;
                let node = Node::scalar(text, style == ScalarStyle::Plain, Some(line));
                self.value(node, anchor, line)
            }
            Event::Alias(anchor) => {
                let Some((node, extent)) = self.anchored.get(&anchor) else {
                    return Err(TreeError::new(line, "an alias of a value that is not complete yet"));
                };
                let (node, extent) = (node, *extent);
                let nodes = (self.nodes, self.octets);
                (self.nodes, self.octets) = count(nodes, extent.size, extent.octets, line)?;
                let node = node.clone();
                self.nest(extent.depth, line)?;
                self.value(node, 0, line)
            }
            Event::SequenceStart(anchor, _) => self.begin(Open::List { items: Vec::new(), line, anchor }, line),
            Event::MappingStart(anchor, _) => {
                let (entries, merged) = (Entries::default(), Vec::new());
                self.begin(Open::Map { entries, key: None, merged, line, anchor }, line)
            }
            Event::SequenceEnd | Event::MappingEnd => self.end(line),
        }
    }

    fn count(&mut self, more: usize, octets: usize, line: usize) -> Result<(), TreeError> {
        (self.nodes, self.octets) = count((self.nodes, self.octets), more, octets, line)?;
        Ok(())
    }

    fn begin(&mut self, open: Open, line: usize) -> Result<(), TreeError> {
        self.count(1, 0, line)?;
        self.nest(1, line)?;
        self.open.push(open);
        Ok(())
    }

    /// Whether this many more levels may be.
    fn nest(&self, more: usize, line: usize) -> Result<(), TreeError> {
        if self.open.len() + more > MAX_DEPTH {
            return Err(TreeError::new(line, format!("values are nested deeper than {MAX_DEPTH}")));
        }
        Ok(())
    }

    fn end(&mut self, line: usize) -> Result<(), TreeError> {
        let (value, line, anchor) = match self.open.pop() {
            Some(Open::List { items, line, anchor }) => (NodeValue::List(items), line, anchor),
            Some(Open::Map { mut entries, merged, line, anchor, .. }) => {
                // `<<: *common`: what the map has not itself.
                for (name, node) in merged {
                    let _ = entries.add(name, node); // what the map says itself counts, then what was first
                }
                (NodeValue::Map(entries.list), line, anchor)
            }
            None => return Err(TreeError::new(line, "an end without a beginning")),
        };
        self.value(Node { value, line: Some(line) }, anchor, line)
    }

    /// A value that is complete goes where it belongs.
    fn value(&mut self, node: Node, anchor: usize, line: usize) -> Result<(), TreeError> {
        if anchor > 0 {
            let extent = node.extent();
            // What may be repeated is a copy.
            self.count(extent.size, extent.octets, line)?;
            self.anchored.insert(anchor, (node.clone(), extent));
        }
        match self.open.last_mut() {
            None => self.root = Some(node),
            Some(Open::List { items, .. }) => items.push(node),
            Some(Open::Map { entries, key, merged, .. }) => match key.take() {
                None => match node.value {
                    NodeValue::Scalar { text, .. } => *key = Some(text),
                    _ => return Err(TreeError::new(line, "a key that is a list or a map, expected a word")),
                },
                Some(name) if name == "<<" => merge(node, merged).map_err(|message| TreeError::new(line, message))?,
                Some(name) => entries.add(name, node).map_err(|message| TreeError::new(line, message))?,
            },
        }
        Ok(())
    }
}

/// What was counted with so much more.
fn count((nodes, octets): (usize, usize), more: usize, text: usize, line: usize) -> Result<(usize, usize), TreeError> {
    let (nodes, octets) = (nodes.saturating_add(more), octets.saturating_add(text));
    if nodes > MAX_NODES {
        let message = format!("more than {MAX_NODES} values, aliases counted as what they stand for");
        return Err(TreeError::new(line, message));
    }
    if octets > MAX_TEXTS {
        let message = format!("more than {} MiB of text, aliases counted as what they stand for", MAX_TEXTS >> 20);
        return Err(TreeError::new(line, message));
    }
    Ok((nodes, octets))
}

/// What `<<` adds: a map, or each map of a list (<https://yaml.org/type/merge.html>).
fn merge(node: Node, merged: &mut Vec<(String, Node)>) -> Result<(), &'static str> {
    const EXPECTED: &str = "`<<` adds neither a map nor a list of maps";
    match node.value {
        NodeValue::Map(entries) => merged.extend(entries),
        NodeValue::List(maps) => {
            for map in maps {
                let NodeValue::Map(entries) = map.value else { return Err(EXPECTED) };
                merged.extend(entries);
            }
        }
        NodeValue::Scalar { .. } => return Err(EXPECTED),
    }
    Ok(())
}

/// A map as it is read.
#[derive(Default)]
struct Entries {
    list: Vec<(String, Node)>,
    keys: BTreeSet<String>,
}

impl Entries {
    /// A repeated key has no one meaning: which of the two counts differs from reader to reader.
    fn add(&mut self, name: String, node: Node) -> Result<(), String> {
        if !self.keys.insert(name.clone()) {
            return Err(format!("the key `{}` twice in one map", super::shown(&name)));
        }
        self.list.push((name, node));
        Ok(())
    }
}

fn json(text: &str) -> Result<Node, TreeError> {
    let nodes = Cell::new(0);
    let mut reader = serde_json::Deserializer::from_str(text);
    let failed = |error: serde_json::Error| {
        TreeError::new(Some(error.line()).filter(|line| *line > 0), format!("no JSON: {error}"))
    };
    let node = Json { nodes: &nodes, depth: 0 }.deserialize(&mut reader).map_err(failed)?;
    reader.end().map_err(failed)?;
    Ok(node)
}

/// Reads one value of JSON.
struct Json<'a> {
    nodes: &'a Cell<usize>,
    depth: usize,
}

impl<'de> DeserializeSeed<'de> for Json<'_> {
    type Value = Node;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        self.nodes.set(self.nodes.get() + 1);
        if self.nodes.get() > MAX_NODES {
            return Err(D::Error::custom(format_args!("more than {MAX_NODES} values")));
        }
        if self.depth > MAX_DEPTH {
            return Err(D::Error::custom(format_args!("values are nested deeper than {MAX_DEPTH}")));
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Json<'_> {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::scalar("null", true, None))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
        Ok(Node::scalar(value.to_string(), true, None))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
        Ok(Node::scalar(value.to_string(), true, None))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
        Ok(Node::scalar(value.to_string(), true, None))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Node, E> {
        // `1.0`, a version, stays as it is.
        Ok(Node::scalar(format!("{value:?}"), true, None))
    }

    fn visit_str<E>(self, value: &str) -> Result<Node, E> {
        Ok(Node::scalar(value, false, None))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Node, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(Json { nodes: self.nodes, depth: self.depth + 1 })? {
            list.push(item);
        }
        Ok(Node { value: NodeValue::List(list), line: None })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut entries = Entries::default();
        while let Some(key) = map.next_key::<String>()? {
            let node = map.next_value_seed(Json { nodes: self.nodes, depth: self.depth + 1 })?;
            entries.add(key, node).map_err(A::Error::custom)?;
        }
        Ok(Node { value: NodeValue::Map(entries.list), line: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fails(text: &str) -> (Option<usize>, String) {
        let error = parse(text).expect_err("no tree");
        (error.line, error.message)
    }

    #[test]
    fn yaml_and_json_give_one_tree_and_yaml_has_lines() {
        let yaml = parse("# members\nclients:\n- asn: 64497\n  ip: '192.0.2.1'\n- asn:\n").expect("YAML");
        let NodeValue::List(clients) = &yaml.get("clients").expect("a key").value else { panic!("{yaml:?}") };
        assert_eq!((clients[0].line, clients[0].get("ip").expect("an address").line), (Some(3), Some(4)));
        assert_eq!(clients[1].get("asn"), None, "no value");
        let json = parse("{\"clients\": [{\"asn\": 64497, \"ip\": \"192.0.2.1\", \"v\": 1.0}]}").expect("JSON");
        let NodeValue::List(clients) = &json.get("clients").expect("a key").value else { panic!("{json:?}") };
        assert_eq!(clients[0].get("v").expect("a number"), &Node::scalar("1.0", true, None));
    }

    #[test]
    fn an_alias_stands_for_its_value_and_a_merge_adds_what_is_missing() {
        let text = "common: &c {passive: true, gtsm: true}\nclient:\n  gtsm: false\n  <<: *c\nsame: *c\n";
        let tree = parse(text).expect("YAML");
        let client = tree.get("client").expect("a map");
        assert_eq!(client.get("gtsm").expect("its own").value, Node::scalar("false", true, None).value);
        assert_eq!(client.get("passive").expect("merged").value, Node::scalar("true", true, None).value);
        assert_eq!(tree.get("same"), tree.get("common"));
        // Of several maps the first one counts.
        let text = "a: &a {gtsm: true}\nb: &b {gtsm: false, ttl: 2, passive: true}\nclient: {ttl: 1, <<: [*a, *b]}\n";
        let tree = parse(text).expect("YAML");
        let client = tree.get("client").expect("a map");
        for (key, value) in [("gtsm", "true"), ("ttl", "1"), ("passive", "true")] {
            assert_eq!(client.get(key).expect(key).value, Node::scalar(value, true, None).value, "{key}");
        }
    }

    #[test]
    fn what_is_no_tree_of_one_meaning_is_refused_with_its_line() {
        for (text, line, expected) in [
            ("clients:\n- asn: 1\n  asn: 2\n", Some(3), "the key `asn` twice"),
            ("{\"a\": 1,\n \"a\": 2}", Some(2), "the key `a` twice"),
            ("a: 1\n---\nb: 2\n", Some(2), "a second document"),
            ("a: [1, 2\nb: 3\n", None, "no YAML"),
            ("a: *unknown\n", Some(1), "no YAML"),
            ("a: &a [*a]\n", Some(1), "not complete yet"),
            ("? [1]\n: 2\n", Some(1), "a key that is a list"),
            ("a: &a {b: 1}\nc:\n  <<: [*a, 1]\n", Some(3), "`<<` adds neither"),
            ("c: {<<: all}\n", Some(1), "`<<` adds neither"),
            ("{\"a\": }", Some(1), "no JSON"),
            ("{} x", Some(1), "no JSON"),
            ("", None, "the file is empty"),
            ("# nothing\n", None, "the file is empty"),
        ] {
            let (at, message) = fails(text);
            assert!(message.contains(expected), "{text}: {message}");
            assert!(line.is_none() || at == line, "{text}: {at:?}");
        }
    }

    /// Ten lines that stand for ten thousand million values; and values in values.
    #[test]
    fn neither_aliases_nor_nesting_take_memory_or_stack() {
        let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..10 {
            let before = format!("*a{}", level - 1);
            text += &format!("a{level}: &a{level} [{}]\n", vec![before; 10].join(", "));
        }
        assert!(fails(&text).1.contains("more than 1048576 values"));
        // One long text, or one long key, many times.
        let long = "x".repeat(1 << 20);
        for anchored in [format!("a: &a {long}\n"), format!("a: &a\n  {long}: 1\n").replace(&long, &long[..1000])] {
            let count = 100_000_000 / anchored.len();
            let text = format!("{anchored}b: [{}]\n", vec!["*a"; count].join(", "));
            assert!(fails(&text).1.contains("more than 64 MiB of text"));
        }
        for text in [
            "[".repeat(100_000),
            "{\"a\":".repeat(100_000),
            format!("a: {}", "[".repeat(100_000)),
            "- ".repeat(100_000),
            (0..2_000).map(|depth| format!("{}a:\n", " ".repeat(depth))).collect(),
        ] {
            assert!(parse(&text).is_err());
        }
        assert!(fails(&format!("a: {}", "[".repeat(40))).1.contains("nested deeper"));
        assert!(fails(&"[".repeat(40)).1.contains("nested deeper"));
    }
}
