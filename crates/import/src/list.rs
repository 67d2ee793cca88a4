//! `members.csv`: whom an exchange expects, for its operators and for spreadsheets (RFC 4180).

use std::collections::BTreeMap;
use std::net::IpAddr;

use wayleave_core::Asn;

use super::{Faults, ImportFault, ImportedMember, Place, shown};

/// The columns; the others are for people.
const COLUMNS: [&str; 8] =
    ["name", "asn", "addresses", "max_prefix", "max_prefix_ipv4", "max_prefix_ipv6", "as_sets", "description"];

/// A member that an exchange expects.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExpectedMember {
    pub name: String,
    pub asn: Asn,
    pub addresses: Vec<IpAddr>,
    pub max_prefix: Option<u32>,
}

/// The list of imported members.
pub fn write_list(members: &[ImportedMember]) -> String {
    let mut text = COLUMNS.join(",") + "\n";
    for member in members {
        let number = |number: Option<u32>| number.map_or(String::new(), |number| number.to_string());
        let addresses: Vec<String> = member.addresses().iter().map(ToString::to_string).collect();
        let fields = [
            member.name.clone(),
            member.asn.0.to_string(),
            addresses.join(" "),
            number(member.max_prefix()),
            number(member.limits[0]),
            number(member.limits[1]),
            member.as_sets.join(" "),
            member.description.clone().unwrap_or_default(),
        ];
        text += &fields.map(|field| field_text(&field)).join(",");
        text.push('\n');
    }
    text
}

/// A field, quoted where it must be. A spreadsheet takes one that begins as a formula for a formula, and in some countries a semicolon
/// for the end of a field, also within quotes that do not begin its own field.
fn field_text(text: &str) -> String {
    let parts = text.split(';').map(|part| {
        let is_formula = part.trim_start_matches(' ').starts_with(['=', '+', '-', '@', '\t']);
        if is_formula { format!("'{part}") } else { part.to_owned() }
    });
    let text = parts.collect::<Vec<_>>().join(";");
    if text.contains([',', ';', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text }
}

/// Reads a list. Columns may be in another order, and there may be others; `max_prefix` may be absent or empty.
///
/// # Errors
/// Every fault, with its line.
pub fn parse(text: &str) -> Result<Vec<ExpectedMember>, Faults> {
    let mut faults = Faults::default();
    let mut records = records(text.strip_prefix('\u{feff}').unwrap_or(text), &mut faults).into_iter();
    let at = |line| Place { line: Some(line), path: String::new() };
    let headings = records.next().map(|(_, fields)| fields).unwrap_or_default();
    let column = |name: &str| headings.iter().position(|heading| heading.trim() == name);
    let columns = ["name", "asn", "addresses"].map(column);
    let [Some(name), Some(asn), Some(addresses)] = columns else {
        faults.push(ImportFault::new(&at(1), "expected a first line with the columns `name`, `asn` and `addresses`"));
        return Err(faults);
    };
    let max_prefix = column("max_prefix");
    let mut members = Vec::new();
    let mut names: BTreeMap<String, usize> = BTreeMap::new();
    for (line, fields) in records {
        let field = |column: usize| fields.get(column).map_or("", |field| field.trim());
        let wrong = |text: &str, expected: &str, faults: &mut Faults| {
            faults.at(&at(line), format!("`{}`, expected {expected}", shown(text)));
        };
        let member = ExpectedMember {
            name: field(name).to_owned(),
            asn: field(asn).parse().unwrap_or_default(),
            addresses: field(addresses).split_whitespace().filter_map(|text| text.parse().ok()).collect(),
            max_prefix: max_prefix.map(field).and_then(|text| text.parse().ok()),
        };
        if member.name.is_empty() {
            wrong("", "a name", &mut faults);
        }
        if !member.asn.is_routable() {
            wrong(field(asn), "an AS number that may appear in a route", &mut faults);
        }
        if member.addresses.is_empty() || member.addresses.len() != field(addresses).split_whitespace().count() {
            wrong(field(addresses), "addresses with a space between them", &mut faults);
        }
        let limit = max_prefix.map_or("", field);
        if member.max_prefix.is_none() && !limit.is_empty() {
            wrong(limit, "a number of prefixes, or nothing", &mut faults);
        }
        if let Some(before) = names.insert(member.name.clone(), line) {
            faults.at(&at(line), format!("`{}` stands in line {before} already", shown(&member.name)));
        }
        members.push(member);
    }
    if faults.is_empty() { Ok(members) } else { Err(faults) }
}

/// The records with their lines. Empty lines are none.
fn records(text: &str, faults: &mut Faults) -> Vec<(usize, Vec<String>)> {
    let mut all = Vec::new();
    let (mut fields, mut field) = (Vec::new(), String::new());
    let (mut line, mut begun, mut quoted) = (1, 1, false);
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => {
                chars.next();
                field.push('"');
            }
            '"' if quoted => quoted = false,
            '"' if field.is_empty() => quoted = true,
            ',' if !quoted => fields.push(std::mem::take(&mut field)),
            '\r' if !quoted => {}
            '\n' if !quoted => {
                fields.push(std::mem::take(&mut field));
                let record = std::mem::take(&mut fields);
                if record.iter().any(|field| !field.trim().is_empty()) {
                    all.push((begun, record));
                }
                (line, begun) = (line + 1, line + 1);
            }
            c => {
                line += usize::from(c == '\n');
                field.push(c);
            }
        }
    }
    if quoted {
        faults.at(&Place { line: Some(begun), path: String::new() }, "a quoted field that does not end");
    }
    fields.push(field);
    if fields.iter().any(|field| !field.trim().is_empty()) {
        all.push((begun, fields));
    }
    all
}
