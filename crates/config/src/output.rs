//! The output of commands: aligned tables for people, versioned JSON for programs.

use std::io::{IsTerminal, Write, stderr, stdout};

use serde_json::{Value, json};
use wayleave_runtime::clock::utc;

/// Fields of JSON objects whose numbers are seconds since 1970: people read them as times.
const TIMES: [&str; 20] = [
    "unix",
    "until",
    "ends",
    "begins",
    "from",
    "before",
    "not_before",
    "not_after",
    "membership_until",
    "proven_until",
    "consented_until",
    "refuses_until",
    "expires",
    "issued",
    "confirmed",
    "next_list",
    "list_key_until",
    "dead_since",
    "last_signed",
    "needed_until",
];

/// Whether standard output supports colours.
pub fn colour() -> bool {
    stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Prints text. Ends the process quietly if the reader has gone (`| head`).
pub fn print(text: &str) {
    let mut out = stdout().lock();
    if out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err() {
        std::process::exit(0);
    }
}

/// Prints a warning where errors go. A reader that has gone misses it.
pub fn warn(text: &str) {
    let _ = writeln!(stderr().lock(), "warning: {text}");
}

/// The problems of a page, a line each.
#[must_use]
pub fn problems(page: &Value) -> String {
    page["problems"].as_array().into_iter().flatten().map(|problem| format!("problem: {}\n", cell(problem))).collect()
}

/// Prints a JSON object with `"version": 1`.
pub fn print_json(value: Value) {
    print(&format!("{}\n", versioned(value)));
}

/// The object with `"version": 1`; any other value becomes its `"items"`.
pub fn versioned(value: Value) -> Value {
    match value {
        Value::Object(mut fields) => {
            fields.insert("version".to_owned(), json!(1));
            Value::Object(fields)
        }
        other => json!({ "version": 1, "items": other }),
    }
}

/// A table with columns as wide as their widest cell.
pub fn table(headings: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain([headings[column].len()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..headings.len()).map(width).collect();
    let line = |cells: Vec<&str>| {
        let padded = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    let head = line(headings.to_vec());
    let head = if colour() { format!("\x1b[1m{}\x1b[0m\n", head.trim_end()) } else { head };
    rows.iter().map(|row| line(row.iter().map(String::as_str).collect())).fold(head, |text, line| text + &line)
}

/// `name: value` lines of an object, nested names joined by spaces.
pub fn fields(value: &Value) -> String {
    let mut rows = Vec::new();
    flatten("", value, &mut rows);
    let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    rows.iter().map(|(name, value)| format!("{name:width$}  {value}\n")).collect()
}

fn flatten(prefix: &str, value: &Value, rows: &mut Vec<(String, String)>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields.iter().filter(|(name, _)| *name != "version") {
                let value = if value.is_object() { value } else { &Value::from(cell_of(name, value)) };
                let name = name.replace('_', " ");
                let name = if prefix.is_empty() { name } else { format!("{prefix} {name}") };
                flatten(&name, value, rows);
            }
        }
        other => rows.push((prefix.to_owned(), cell(other))),
    }
}

/// A value in one cell.
pub fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::Array(items) if items.is_empty() => "-".to_owned(),
        Value::Array(items) => items.iter().map(cell).collect::<Vec<_>>().join(" "),
        other => other.to_string(),
    }
}

/// The value of a field in one cell, times as ISO 8601 has them.
pub fn cell_of(field: &str, value: &Value) -> String {
    if !TIMES.contains(&field) {
        return cell(value);
    }
    match value {
        Value::Array(items) if !items.is_empty() => {
            items.iter().map(|item| cell_of(field, item)).collect::<Vec<_>>().join(" ")
        }
        // Zero is no time: since ever, or not yet.
        value => {
            value.as_u64().map_or_else(|| cell(value), |secs| if secs == 0 { cell(&Value::Null) } else { utc(secs) })
        }
    }
}

/// Objects as a table of these fields, without fields that no row has.
pub fn objects(rows: &[Value], columns: &[&str]) -> String {
    let columns: Vec<&str> =
        columns.iter().copied().filter(|column| rows.iter().any(|row| row.get(column).is_some())).collect();
    let headings: Vec<String> = columns.iter().map(|column| column.to_uppercase().replace('_', " ")).collect();
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| columns.iter().map(|column| cell_of(column, &row[column])).collect()).collect();
    table(&headings.iter().map(String::as_str).collect::<Vec<_>>(), &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = vec![vec!["a".to_owned(), "long cell".to_owned()], vec!["bcd".to_owned(), "x".to_owned()]];
        assert_eq!(table(&["N", "TEXT"], &rows), "N    TEXT\na    long cell\nbcd  x\n");
    }

    #[test]
    fn problems_of_a_page_are_a_line_each() {
        let page = json!({ "routes": [], "problems": ["rs2: no session", "rs3: no session"] });
        assert_eq!(problems(&page), "problem: rs2: no session\nproblem: rs3: no session\n");
        assert_eq!(problems(&json!({ "routes": [] })), "");
    }

    #[test]
    fn people_read_times_and_programs_numbers() {
        let row = json!({ "not_after": 1_700_000_000, "asn": 64_496, "from": [0, 60], "until": null, "next_list": 60 });
        let text = objects(std::slice::from_ref(&row), &["asn", "not_after", "from", "until"]);
        assert!(text.contains("2023-11-14T22:13:20Z  - 1970-01-01T00:01:00Z  -"), "{text}");
        let text = fields(&json!({ "a": row }));
        assert!(
            text.contains("a not after  2023-11-14T22:13:20Z\n")
                && text.contains("a asn        64496\n")
                && text.contains("a next list  1970-01-01T00:01:00Z\n"),
            "{text}"
        );
    }

    #[test]
    fn json_always_carries_its_version() {
        assert_eq!(versioned(json!({ "a": 1 })), json!({ "a": 1, "version": 1 }));
        assert_eq!(versioned(json!([1])), json!({ "items": [1], "version": 1 }));
    }
}
