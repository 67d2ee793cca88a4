//! Snippets of the guide, tried as they stand there.
//!
//! A fence names its language: `sh` is run, `toml` is laid over an initial configuration and checked, `bird`, `frr`, `gobgp` and `openbgpd` configure real
//! routers, `text` is a picture or what a program printed.

mod applications_page;
mod attest_page;
mod capabilities_page;
mod exchange_page;
mod gateways_page;
mod invitations_page;
mod key_servers_page;
mod lab_page;
mod member_page;
mod organisations_page;
mod overlay_page;
mod play;
mod router_page;
mod routers;
mod sell_page;
mod session_page;
mod stamper_page;
mod ten_minutes_page;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::common::{Folder, text};

/// How many snippets of a language a page has where a test of this module tries them all. Whoever adds one adds its test.
const TRIED: [(&str, &[(&str, usize)]); 15] = [
    ("applications.md", &[("sh", 5), ("toml", 1), ("bird", 0), ("frr", 0)]),
    ("attest-a-session.md", &[("sh", 0), ("toml", 0), ("bird", 1), ("frr", 1)]),
    ("attest.md", &[("sh", 4), ("toml", 3), ("bird", 1), ("frr", 1)]),
    ("capabilities.md", &[("sh", 5), ("toml", 6), ("bird", 0), ("frr", 0)]),
    ("console.md", &[("sh", 0), ("toml", 1), ("bird", 0), ("frr", 0)]),
    ("exchange.md", &[("sh", 10), ("toml", 5), ("bird", 0), ("frr", 0)]),
    ("invitations.md", &[("sh", 5), ("toml", 1), ("bird", 0), ("frr", 0)]),
    ("lab.md", &[("sh", 3), ("toml", 3), ("bird", 0), ("frr", 0)]),
    ("member.md", &[("sh", 6), ("toml", 8), ("bird", 1), ("frr", 1), ("gobgp", 1), ("openbgpd", 1)]),
    ("overlay.md", &[("sh", 9), ("toml", 6), ("bird", 0), ("frr", 0)]),
    ("policies.md", &[("sh", 0), ("toml", 4), ("bird", 0), ("frr", 0)]),
    ("router.md", &[("sh", 5), ("toml", 2), ("bird", 0), ("frr", 0)]),
    ("shadow.md", &[("sh", 0), ("toml", 0), ("bird", 1), ("frr", 0)]),
    ("stamper.md", &[("sh", 5), ("toml", 7), ("bird", 0), ("frr", 0)]),
    ("two-pairs.md", &[("sh", 0), ("toml", 1), ("bird", 0), ("frr", 0)]),
];

/// The snippets of one language on a page of the guide, in order.
pub(crate) fn snippets(page: &str, language: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide").join(page);
    let content = fs::read_to_string(path).expect("a page");
    let mut found = Vec::new();
    let mut lines = content.lines();
    while let Some(line) = lines.next() {
        let Some(of) = line.strip_prefix("```") else { continue };
        let body: Vec<&str> = lines.by_ref().take_while(|line| !line.starts_with("```")).collect();
        assert!(
            ["sh", "toml", "bird", "frr", "gobgp", "openbgpd", "text"].contains(&of),
            "{page}: a snippet names no language that can be tried: ```{of}\n{}",
            body.join("\n")
        );
        if of == language {
            found.push(body.join("\n") + "\n");
        }
    }
    found
}

/// The only snippet of a language on a page.
pub(crate) fn snippet(page: &str, language: &str) -> String {
    let [one] = snippets(page, language).try_into().expect("one snippet");
    one
}

#[test]
fn snippets_are_tried_and_all_name_their_language() {
    for (page, languages) in TRIED {
        for (language, expected) in languages {
            let found = snippets(page, language).len();
            assert_eq!(found, *expected, "{page}: {language} snippets; a test tries each");
        }
    }
    for file in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide")).expect("the guide") {
        let name = file.expect("a page").file_name().into_string().expect("a name");
        let is_listed = TRIED.iter().any(|(page, _)| *page == name);
        let found: usize = ["sh", "toml", "bird", "frr"].iter().map(|language| snippets(&name, language).len()).sum();
        assert!(is_listed || found == 0, "{name} has {found} snippets, and no test tries them");
    }
}

/// A user's shell in a folder: `wayleave` is on its path.
struct Shell {
    folder: Folder,
    path: String,
    /// What a reader puts in the place of words of the guide, such as keys that were printed before.
    instead: Vec<(String, String)>,
}

impl Shell {
    fn new(name: &str) -> Self {
        let binary = PathBuf::from(env!("CARGO_BIN_EXE_wayleave"));
        let folder = binary.parent().expect("a folder").display().to_string();
        let path = format!("{folder}:{}", std::env::var("PATH").unwrap_or_default());
        Self { folder: Folder::new(name), path, instead: Vec::new() }
    }

    fn put(&mut self, word: &str, value: &str) {
        self.instead.push((word.to_owned(), value.to_owned()));
    }

    fn filled(&self, line: &str) -> String {
        self.instead.iter().fold(line.to_owned(), |line, (word, value)| line.replace(word, value))
    }

    /// Runs a command, which must succeed, and gives what it printed.
    fn run(&self, line: &str) -> String {
        self.attempt(line).unwrap_or_else(|said| panic!("{line}\n{said}"))
    }

    /// Runs a command, and gives what it printed, or all of it if it failed.
    fn attempt(&self, line: &str) -> Result<String, String> {
        let mut command = Command::new("bash");
        command.args(["-euo", "pipefail", "-c", &self.filled(line)]).current_dir(&self.folder.0);
        command.env("PATH", &self.path).env("NO_COLOR", "1").env_remove("WAYLEAVE_LOG").stdin(Stdio::null());
        let output = command.output().expect("bash runs");
        let said = text(&output.stdout);
        if output.status.success() { Ok(said) } else { Err(said + &text(&output.stderr)) }
    }

    /// A public part of a key file, as `keys show` prints it.
    fn public(&self, file: &str, part: &str) -> String {
        let printed = self.run(&format!("wayleave keys show {file} --json"));
        let printed: serde_json::Value = serde_json::from_str(&printed).expect("JSON");
        printed[part].as_str().unwrap_or_else(|| panic!("{file} has no {part}: {printed}")).to_owned()
    }
}

/// The commands of a snippet: lines that end with a backslash go on, comments are left out.
fn commands(snippet: &str) -> Vec<String> {
    let joined = snippet.replace("\\\n", " ");
    let without_comment = |line: &str| line.split(" #").next().unwrap_or_default().trim().to_owned();
    joined.lines().map(without_comment).filter(|line| !line.is_empty() && !line.starts_with('#')).collect()
}

/// A configuration with the snippet's settings in the place of those that it has.
fn laid_over(initial: &str, snippet: &str) -> String {
    let mut all: toml::Table = initial.parse().expect("a configuration");
    let more: toml::Table = snippet.parse().unwrap_or_else(|error| panic!("{error}\n{snippet}"));
    lay_over(&mut all, more);
    all.to_string()
}

fn lay_over(all: &mut toml::Table, more: toml::Table) {
    for (key, value) in more {
        match (all.get_mut(&key), value) {
            (Some(toml::Value::Table(there)), toml::Value::Table(value)) => lay_over(there, value),
            (_, value) => drop(all.insert(key, value)),
        }
    }
}
