//! A role on one screen: what is wrong, who is at the other end of each link, a few counts. `wayleave show status` prints it as
//! text, and the first status page as HTML.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use wayleave_runtime::clock::utc;

use crate::output::{cell, table};

/// The screen of a terminal, in lines and columns.
const LINES: usize = 24;
const COLUMNS: usize = 80;
/// Lines for problems on one screen. The first problem is printed whole, whatever its length.
const PROBLEM_LINES: usize = 9;
/// Rows of the table that are always there.
const LEAST_ROWS: usize = 3;
/// Rows and problems of the page.
const PAGE_ROWS: usize = 1_000;

/// What a role shows first.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Overview {
    /// Which one it is, such as `party 1 of demo-ix`.
    pub title: String,
    pub ready: bool,
    /// What is wrong now, each with what to do.
    pub problems: Vec<String>,
    /// Headings of the table of peers, links or members.
    pub columns: Vec<String>,
    pub rows: Vec<Row>,
    /// A few counts, each in words.
    pub counts: Vec<String>,
    /// Of a party of a route server: its number, and its exchange. Who shows several roles decides by these what may stand side by side.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub party: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exchange: Option<String>,
}

/// A peer, a link or a member.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Row {
    /// Whether all is well with it. Others come first.
    pub well: bool,
    pub cells: Vec<String>,
}

impl Overview {
    pub fn new(title: impl Into<String>, columns: &[&str]) -> Self {
        let columns = columns.iter().map(|column| (*column).to_owned()).collect();
        Self { title: title.into(), columns, ..Self::default() }
    }

    /// Adds a row; a value that is null is an empty cell.
    pub fn row<const N: usize>(&mut self, well: bool, cells: [Value; N]) {
        debug_assert_eq!(N, self.columns.len(), "a cell for each column");
        self.rows.push(Row { well, cells: cells.iter().map(cell).collect() });
    }

    /// Adds a count.
    pub fn count(&mut self, words: impl Into<String>) {
        self.counts.push(words.into());
    }

    /// Takes the problems of a status, the state of the store, and what the role misses, once each; what is not well comes
    /// first.
    #[must_use]
    pub fn finished(mut self, status: &Value, readiness: Result<(), String>) -> Self {
        let listed = status["problems"].as_array().into_iter().flatten().map(cell);
        self.problems = listed.chain(std::mem::take(&mut self.problems)).collect();
        if let Some(store) = status["store"].as_str().filter(|store| *store != "good") {
            self.problems.insert(0, store.to_owned());
        }
        self.ready = readiness.is_ok();
        if let Err(why) = readiness {
            // Most say what is down, and then one of the problems, or a problem says more.
            let says_it = |problem: &String| why.contains(problem.as_str()) || problem.starts_with(&why);
            if !self.problems.iter().any(says_it) {
                self.problems.insert(0, why);
            }
        }
        self.rows.sort_by_key(|row| row.well);
        self
    }

    fn state(&self) -> &'static str {
        if self.ready { "ready" } else { "not ready" }
    }

    /// The text for one screen, or with `all` of everything.
    pub fn text(&self, all: bool) -> String {
        let mut text = format!("{}: {}\n", self.title, self.state());
        let problems = self.problems(all);
        if !problems.is_empty() {
            text += &format!("\n{problems}");
        }
        let counts = filled(&self.counts);
        if !self.rows.is_empty() {
            let heading = 2;
            let tail = 1 + lines(&counts) + usize::from(!counts.is_empty()) + 1;
            let left = LINES.saturating_sub(lines(&text) + heading + tail);
            text += &format!("\n{}", self.table(if all { usize::MAX } else { left.max(LEAST_ROWS) }));
        }
        if !counts.is_empty() {
            text += &format!("\n{counts}");
        }
        text
    }

    fn problems(&self, all: bool) -> String {
        let (mut text, mut used) = (String::new(), 0);
        for (at, problem) in self.problems.iter().enumerate() {
            let line = format!("problem: {problem}\n");
            used += lines(&line);
            if !all && at > 0 && used > PROBLEM_LINES {
                return text
                    + &match self.problems.len() - at {
                        1 => "1 more problem: `--all` lists it\n".to_owned(),
                        rest => format!("{rest} more problems: `--all` lists them\n"),
                    };
            }
            text += &line;
        }
        text
    }

    /// The table with so many lines below its heading.
    fn table(&self, most: usize) -> String {
        let shown = if self.rows.len() > most { most - 1 } else { self.rows.len() };
        let rows: Vec<Vec<String>> = self.rows.iter().take(shown).map(|row| row.cells.clone()).collect();
        let headings: Vec<String> = self.columns.iter().map(|column| column.to_uppercase()).collect();
        let text = table(&headings.iter().map(String::as_str).collect::<Vec<_>>(), &rows);
        match self.rows.len() - shown {
            0 => text,
            rest => text + &format!("{rest} more: `--all` lists them\n"),
        }
    }

    /// A page that needs no script and nothing else; `pages` are the paths of the JSON views.
    pub fn html(&self, role: &str, now: &str, pages: &[String]) -> String {
        let mut body = format!(
            "<h1>{}: <strong class={}>{}</strong></h1>\n",
            escaped(&self.title),
            if self.ready { "well" } else { "bad" },
            self.state()
        );
        if !self.problems.is_empty() {
            let items = self.problems.iter().take(PAGE_ROWS).map(|problem| format!("<li>{}</li>\n", escaped(problem)));
            body += &format!("<h2>Problems</h2>\n<ul class=bad>\n{}</ul>\n", items.collect::<String>());
        }
        if !self.rows.is_empty() {
            body += &self.html_table();
        }
        if !self.counts.is_empty() {
            let items = self.counts.iter().map(|count| format!("<li>{}</li>\n", escaped(count)));
            body += &format!("<h2>Counts</h2>\n<ul>\n{}</ul>\n", items.collect::<String>());
        }
        let link = |path: &str| format!("<li><a href=\"{0}\">{0}</a></li>\n", escaped(path));
        let probes = ["/healthz", "/readyz", "/metrics"].into_iter().map(link);
        let links: String = probes.chain(pages.iter().map(|path| link(path))).collect();
        body += &format!("<h2>Pages</h2>\n<ul>\n{links}</ul>\n");
        format!(
            "<!doctype html>\n<html lang=en>\n<meta charset=utf-8>\n<meta name=viewport content=\"width=device-width\">\n\
             <title>{role}: {state}</title>\n<style>{STYLE}</style>\n{body}<p>As of {now}. `wayleave show status --all` has \
             every counter.</p>\n</html>\n",
            state = self.state(),
        )
    }

    fn html_table(&self) -> String {
        let headings: String = self.columns.iter().map(|column| format!("<th>{}", escaped(column))).collect();
        let row = |row: &Row| {
            let cells: String = row.cells.iter().map(|cell| format!("<td>{}", escaped(cell))).collect();
            format!("<tr class={}>{cells}\n", if row.well { "well" } else { "bad" })
        };
        let rows: String = self.rows.iter().take(PAGE_ROWS).map(row).collect();
        let rest = match self.rows.len().saturating_sub(PAGE_ROWS) {
            0 => String::new(),
            rest => format!("<p>{rest} more.</p>\n"),
        };
        format!("<table>\n<tr>{headings}\n{rows}</table>\n{rest}")
    }
}

/// How a few-time key stands.
pub fn few_time_key(key: &Value) -> String {
    let time = |of: &str| key[of].as_u64().map(utc);
    let waits = key["waits"].as_str().map(|why| match time("until") {
        Some(until) => format!(", waits until {until} ({why})"),
        None => format!(", waits ({why})"),
    });
    format!(
        "{}: {} of {} signatures left in slot {}{}, lasts until {}",
        cell(&key["suite"]),
        cell(&key["left"]),
        cell(&key["of"]),
        cell(&key["slot"]),
        waits.unwrap_or_default(),
        time("ends").unwrap_or_default()
    )
}

const STYLE: &str = "body{font:15px sans-serif;margin:2em;max-width:70em}table{border-collapse:collapse}\
                     td,th{text-align:left;padding:.2em 1em .2em 0}h1{font-size:1.3em}h2{font-size:1.1em}\
                     ul{padding-left:1.2em}.bad{color:#a00}strong.well{color:#060}";

/// Lines that a text takes on the screen.
fn lines(text: &str) -> usize {
    text.lines().map(|line| line.chars().count().div_ceil(COLUMNS).max(1)).sum()
}

/// Words with semicolons, in lines that a screen does not break.
fn filled(words: &[String]) -> String {
    let (mut text, mut column) = (String::new(), 0);
    for (at, word) in words.iter().enumerate() {
        let word = if at + 1 < words.len() { format!("{word};") } else { word.clone() };
        let width = word.chars().count();
        if column > 0 && column + 1 + width > COLUMNS {
            text.push('\n');
            column = 0;
        }
        if column > 0 {
            text.push(' ');
            column += 1;
        }
        text += &word;
        column += width;
    }
    if text.is_empty() { text } else { text + "\n" }
}

/// Text between tags or in a quoted attribute.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\'' => out += "&#39;",
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn large() -> Overview {
        let mut overview = Overview::new("party 1 of demo-ix", &["peer", "state"]);
        for slot in 0..200 {
            overview.row(slot != 150, [json!(format!("member-{slot}")), json!("connected")]);
        }
        (0..40).for_each(|at| overview.count(format!("number-{at} {at}")));
        let problems: Vec<String> = (0..100).map(|at| format!("{at}: {}", "x".repeat(200))).collect();
        overview.finished(&json!({ "problems": problems, "store": "good" }), Err("the peer party is down".to_owned()))
    }

    #[test]
    fn the_largest_overview_is_one_screen_with_what_is_wrong_first() {
        let text = large().text(false);
        assert!(lines(&text) <= LINES, "{} lines: {text}", lines(&text));
        let problem = text.find("problem: the peer party is down").expect("the first problem");
        let (bad, well) = (text.find("member-150").expect("first"), text.find("member-0 ").expect("second"));
        assert!(problem < bad && bad < well, "{text}");
        assert!(text.contains("more problems: `--all`") && text.contains("more: `--all`"), "{text}");
        let all = large().text(true);
        assert!(all.contains("member-199") && all.contains("problem: 99: "), "{all}");
    }

    #[test]
    fn what_a_role_misses_is_said_once() {
        let of = |problems: Value, why: &str| {
            Overview::new("x", &[]).finished(&json!({ "problems": problems }), Err(why.to_owned())).problems
        };
        assert_eq!(of(json!(["no answer"]), "the link to party 1 is down: no answer"), ["no answer"]);
        assert_eq!(of(json!(["no answer"]), "no routes yet"), ["no routes yet", "no answer"]);
        let more = "pair a is not up: neither peer has connected";
        assert_eq!(of(json!([more]), "pair a is not up"), [more]);
    }

    #[test]
    fn whatever_a_name_holds_stays_text_on_the_page() {
        let mut overview = Overview::new("<b>", &["peer"]);
        overview.row(true, [json!("<script>alert(1)</script>")]);
        let status = json!({ "problems": ["a & \"b\" <img src=x onerror='1'>"] });
        let page = overview.finished(&status, Ok(())).html("rs", "now", &["/api/v1/status".to_owned()]);
        assert!(!page.contains("<script") && !page.contains("<img") && !page.contains("<b>"), "{page}");
        assert!(page.contains("&lt;script&gt;") && page.contains("href=\"/api/v1/status\""), "{page}");
    }
}
