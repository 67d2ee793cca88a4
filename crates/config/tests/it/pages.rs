//! What a page of the guide, or a template, says of configurations: its TOML, and the keys that stand in its text as code.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

pub(crate) const GUIDE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide");

/// A page of the guide.
pub(crate) struct Page {
    /// The whole keys in its TOML.
    toml: BTreeSet<String>,
    /// Its paragraphs, lists and tables.
    pub(crate) blocks: Vec<String>,
}

impl Page {
    pub(crate) fn read(name: &str) -> Self {
        let text = fs::read_to_string(Path::new(GUIDE).join(name)).expect("a page");
        let (mut toml, mut prose) = (BTreeSet::new(), String::new());
        for (at, part) in text.split("```").enumerate() {
            match part.strip_prefix("toml\n") {
                Some(snippet) if at % 2 == 1 => toml.extend(settings(snippet)),
                _ if at % 2 == 1 => {}
                _ => prose += part,
            }
        }
        Self { toml, blocks: prose.split("\n\n").map(str::to_owned).collect() }
    }

    /// Whether it has the key: in its TOML, or as code in its text. There, a key whose name is not the only one stands in one block
    /// with its section.
    pub(crate) fn has(&self, section: &str, key: &str, is_only: bool) -> bool {
        let table = section.rsplit('.').next().unwrap_or_default();
        let is_in = |block: &String| {
            let names: BTreeSet<String> = code(block).flat_map(names).collect();
            names.contains(key) && (is_only || section.is_empty() || names.contains(table))
        };
        self.toml.contains(&joined(section, key)) || self.blocks.iter().any(is_in)
    }
}

pub(crate) fn joined(section: &str, key: &str) -> String {
    if section.is_empty() { key.to_owned() } else { format!("{section}.{key}") }
}

/// What stands between backquotes.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// The section in `[section]` or `[[section]] key = value`, and what stands behind it.
fn heading(code: &str) -> (&str, &str) {
    let Some((section, rest)) = code.strip_prefix('[').and_then(|code| code.split_once(']')) else { return ("", code) };
    (section.trim_start_matches('['), rest.trim_start_matches(']').trim())
}

fn is_key(text: &str) -> bool {
    let is_inside = |octet: u8| octet.is_ascii_lowercase() || octet.is_ascii_digit() || b"_.".contains(&octet);
    !text.is_empty() && text.bytes().all(is_inside)
}

/// The keys in `key`, `key = value` or `{ key = value, key = value }`.
fn keys(code: &str) -> BTreeSet<String> {
    if is_key(code) { BTreeSet::from([code.to_owned()]) } else { settings(code) }
}

/// The names of all sections and keys in code, each by itself.
fn names(code: &str) -> Vec<String> {
    let (section, rest) = heading(code);
    let keys = keys(rest);
    let all = [section].into_iter().chain(keys.iter().map(String::as_str));
    all.flat_map(|name| name.split('.')).map(str::to_owned).collect()
}

/// The sections, and the whole keys, that a block names as `[section]` and `[section] key`.
pub(crate) fn qualified(block: &str) -> Vec<String> {
    let headings = code(block).map(heading).filter(|(section, _)| is_key(section));
    let all = headings.flat_map(|(section, rest)| {
        let keys = keys(rest).into_iter().map(|key| joined(section, &key));
        keys.chain([section.to_owned()]).collect::<Vec<_>>()
    });
    all.collect()
}

/// The keys that a table explains, and the section, if its head names one: `key`, `setting`, or ``key of `[section]` ``.
pub(crate) fn keys_of_table(block: &str) -> (String, Vec<String>) {
    let cell = |line: &str| line.strip_prefix("| ").and_then(|line| Some(line.split(" |").next()?.to_owned()));
    let cells: Vec<String> = block.lines().filter_map(cell).collect();
    let head = cells.first().map_or("", String::as_str);
    let is_of_keys = head == "key" || head == "setting" || head.starts_with("key of ");
    let bare = cells.iter().skip(1).filter(|_| is_of_keys).flat_map(|cell| code(cell)).filter(|code| is_key(code));
    (code(head).flat_map(names).last().unwrap_or_default(), bare.map(str::to_owned).collect())
}

/// The sections and whole keys in a text of TOML, also those that `#` alone puts out of use, as in templates. A parser would refuse
/// these: templates show alternatives, of which a file has one.
pub(crate) fn settings(text: &str) -> BTreeSet<String> {
    let (mut found, mut section, mut tables) = (BTreeSet::new(), String::new(), Vec::<String>::new());
    let (mut word, mut key) = (String::new(), String::new());
    let is_remark = |line: &&str| line.strip_prefix("# ").is_some_and(|rest| !rest.starts_with(' '));
    for line in text.lines().filter(|line| !is_remark(line)).map(|line| line.strip_prefix('#').unwrap_or(line)) {
        if line.starts_with('[') && tables.is_empty() {
            section = heading(line).0.to_owned();
            let ends = section.match_indices('.').map(|(end, _)| end).chain([section.len()]);
            found.extend(ends.map(|end| section[..end].to_owned()));
            continue;
        }
        // Every second part stands within quotes, where nothing is a key. A remark ends the line.
        let line = line.split('"').step_by(2).collect::<Vec<_>>().join(" ").replace('{', " { ").replace('}', " } ");
        for next in line.split('#').next().unwrap_or_default().split_whitespace() {
            match next {
                "{" => tables.push(key.clone()),
                "}" => key = tables.pop().unwrap_or_default(),
                "=" if is_key(&word) => {
                    key.clone_from(&word);
                    let path = tables.iter().filter(|table| !table.is_empty()).chain([&key]);
                    found.insert(path.fold(section.clone(), |path, key| joined(&path, key)));
                }
                _ => word = next.to_owned(),
            }
        }
    }
    found
}
