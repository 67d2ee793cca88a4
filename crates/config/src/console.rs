//! The configuration of a console.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use serde::Deserialize;
use toml::Spanned;

use super::check::{Checked, RoleConfig};
use super::fetch::Target;
use super::parse::{Text, TextValue};
use super::rs::StatusSection;
use super::{Fault, Source};
use crate::failure::{Failure, Failures};

/// Roles that a console shows, at most.
pub const MAX_SOURCES: usize = 256;
/// Characters of a name, at most.
const MAX_NAME: usize = 63;
/// Characters of a token: as many as make it unguessable, and as a header holds.
const TOKEN: std::ops::RangeInclusive<usize> = 32..=128;

/// `run console`.
pub const ROLE: RoleConfig = RoleConfig {
    name: "console",
    section: "console",
    sections: "[console] and [[source]]",
    check: ConsoleFile::checked,
    template: |_| template(),
};

/// The file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConsoleFile {
    pub console: ConsoleSection,
    /// The roles that are shown.
    #[serde(default, rename = "source")]
    pub sources: Vec<SourceEntry>,
    /// Where the console is.
    pub status: Option<StatusSection>,
}

/// `[console]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConsoleSection {
    /// The file of the token that a browser must have. Without one the console is for this machine alone.
    pub token: Option<Spanned<PathBuf>>,
    /// Whether it may show both parties of one exchange.
    #[serde(default)]
    pub lab: bool,
}

/// `[[source]]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceEntry {
    /// As the console calls the role.
    pub name: Spanned<String>,
    /// The role's status pages.
    pub at: Spanned<Text<StatusPages>>,
}

/// Where status pages are: `http://ADDRESS:PORT`, or `unix:PATH` of a socket that leads there.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct StatusPages(String);

impl StatusPages {
    /// What reads them.
    #[must_use]
    pub fn target(&self) -> Target {
        Target { url: Some(self.0.clone()), config: None }
    }
}

impl fmt::Display for StatusPages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TextValue for StatusPages {
    const EXPECTED: &'static str = "a role's status pages by an IP address or localhost, such as \"http://127.0.0.1:8490\", or \"unix:/run/alpha.sock\"";
    fn read(text: &str) -> Option<Self> {
        let is_socket = text.strip_prefix("unix:").is_some_and(|path| path.starts_with('/'));
        let authority = text.strip_prefix("http://").map(|rest| rest.trim_end_matches('/'));
        let is_page = authority.is_some_and(|authority| {
            let port = authority.rsplit_once(':').and_then(|(name, port)| Some((name, port.parse::<u16>().ok()?)));
            port.is_some_and(|(name, port)| port != 0 && is_host(name))
        });
        (is_socket || is_page).then(|| Self(text.trim_end_matches('/').to_owned()))
    }
}

impl ConsoleFile {
    /// Reads and checks the file, not the token that it names.
    pub fn parse(source: &Source) -> Result<Self, Failures> {
        let file: Self = source.parse()?;
        let faults = file.faults();
        if faults.is_empty() {
            return Ok(file);
        }
        Err(Failures(faults.into_iter().map(|fault| source.failure(fault)).collect()))
    }

    /// The token that a browser must have, if one is needed.
    ///
    /// # Errors
    /// The file cannot be read, others can read it, or it holds no token.
    pub fn token(&self, source: &Source) -> Result<Option<String>, Failure> {
        self.console.token.as_ref().map(|named| read_token(&source.resolve(named.get_ref()))).transpose()
    }

    fn faults(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        if self.sources.len() > MAX_SOURCES {
            let at = self.sources[MAX_SOURCES].name.span();
            faults.push(Fault::at(at, format!("{} sources, expected at most {MAX_SOURCES}", self.sources.len())));
        }
        for (at, entry) in self.sources.iter().enumerate() {
            let name = entry.name.get_ref();
            if !is_name(name) {
                let message = format!("`{}` is no name of a source", name.escape_debug());
                let help = format!("1 to {MAX_NAME} letters, digits, `.`, `_` and `-`");
                faults.push(Fault::at(entry.name.span(), message).help(help));
            }
            if self.sources[..at].iter().any(|other| other.name.get_ref() == name) {
                faults.push(Fault::at(
                    entry.name.span(),
                    format!("two sources are `{name}`, expected a name of its own"),
                ));
            }
            if self.sources[..at].iter().any(|other| other.at.get_ref() == entry.at.get_ref()) {
                faults.push(Fault::at(entry.at.span(), "the same pages twice, expected each once"));
            }
        }
        if let Some(status) = &self.status
            && !status.listen.get_ref().0.ip().is_loopback()
            && self.console.token.is_none()
        {
            let message = "others can reach the console there, and it has no token";
            let help = "name a file as `token` in [console] (`openssl rand -hex 32` prints one), or listen on 127.0.0.1 and come by \
                        `ssh -L`";
            faults.push(Fault::at(status.listen.span(), message).help(help));
        }
        if let Some(status) = &self.status
            && (*status.shares.get_ref() || *status.birdwatcher.get_ref())
        {
            let span = if *status.shares.get_ref() { status.shares.span() } else { status.birdwatcher.span() };
            faults.push(Fault::at(span, "a console has no such page").help("that is a setting of a party or a member"));
        }
        faults
    }

    pub(super) fn checked(source: &Source) -> Checked {
        let file = match Self::parse(source) {
            Ok(file) => file,
            Err(failures) => return Checked::wrong("console", failures),
        };
        let (mut errors, mut warnings) = (Vec::new(), Vec::new());
        if let (Err(failure), Some(named)) = (file.token(source), &file.console.token) {
            errors.push(Fault::of(named.span(), &failure));
        }
        if file.status.is_none() {
            let message = "there is no [status], so that the console is nowhere";
            warnings.push(Fault::at(0..0, message).help("add [status] with `listen = \"127.0.0.1:8470\"`"));
        }
        if file.sources.is_empty() {
            let help = "add a [[source]] with `name` and `at` for each role";
            warnings.push(Fault::at(0..0, "there is no [[source]], so that the console shows nothing").help(help));
        }
        Checked::found("console", source, errors, warnings)
    }
}

/// Whether a role answers a request to this name: to any other it does not, since a page in a browser may have led there.
fn is_host(name: &str) -> bool {
    let is_v6 = |name: &str| name.strip_suffix(']').is_some_and(|name| name.parse::<Ipv6Addr>().is_ok());
    name == "localhost" || name.parse::<Ipv4Addr>().is_ok() || name.strip_prefix('[').is_some_and(is_v6)
}

fn is_name(name: &str) -> bool {
    let is_fit = |octet: u8| octet.is_ascii_alphanumeric() || b"._-".contains(&octet);
    (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(is_fit) && !name.starts_with('.')
}

/// A token of a file that nobody else may read.
fn read_token(path: &std::path::Path) -> Result<String, Failure> {
    use std::os::unix::fs::PermissionsExt as _;
    let system = |error| Failure::system(format!("cannot read the console's token {}", path.display()), &error);
    let mode = std::fs::metadata(path).map_err(system)?.permissions().mode();
    if mode & 0o077 != 0 {
        return Err(Failure::new(format!("others than its owner can read {}", path.display()))
            .help(format!("chmod 600 {}", path.display())));
    }
    let text = std::fs::read_to_string(path).map_err(system)?;
    let token = text.trim();
    if TOKEN.contains(&token.len()) && token.bytes().all(|octet| octet.is_ascii_alphanumeric()) {
        return Ok(token.to_owned());
    }
    Err(Failure::new(format!("{} holds no token", path.display()))
        .help("expected 32 to 128 letters and digits; `openssl rand -hex 32` prints such a one"))
}

/// What `wayleave init console` prints.
fn template() -> String {
    "# A console: what your roles say, on one page. Run it with: wayleave run console --config FILE\n\
     # It only reads. Paths are relative to this file.\n\
     \n\
     [console]\n\
     # Who opens the page needs this token, 32 to 128 letters and digits, in a file that only you can read. Needed unless the\n\
     # console listens on this machine alone. `openssl rand -hex 32` prints one.\n\
     #token = \"console.token\"\n\
     # A laboratory's console may show both parties of one exchange.\n\
     #lab = false\n\
     \n\
     # The roles that it shows, each with its status pages.\n\
     [[source]]\n\
     name = \"alpha\"\n\
     at = \"http://127.0.0.1:8490\"\n\
     \n\
     # Where the console is.\n\
     [status]\n\
     listen = \"127.0.0.1:8470\"\n"
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(text: &str) -> Vec<String> {
        let file: ConsoleFile = Source::of_text("console.toml", text).parse().expect("a console's file");
        file.faults().into_iter().map(|fault| fault.message).collect()
    }

    #[test]
    fn a_console_that_others_reach_has_a_token_and_each_source_its_own_name_and_place() {
        let template = template();
        assert_eq!(faults(&template), [""; 0]);
        let open = template.replace("127.0.0.1:8470", "192.0.2.1:8470");
        assert_eq!(faults(&open), ["others can reach the console there, and it has no token"]);
        assert_eq!(faults(&open.replace("#token", "token")), [""; 0]);
        let twice = format!("{template}[[source]]\nname = \"alpha\"\nat = \"http://127.0.0.1:8490/\"\n");
        assert_eq!(
            faults(&twice),
            ["two sources are `alpha`, expected a name of its own", "the same pages twice, expected each once"]
        );
        assert_eq!(faults(&template.replace("\"alpha\"", "\"<b>\"")), ["`<b>` is no name of a source"]);
    }

    #[test]
    fn a_source_is_at_a_port_or_a_socket() {
        for good in ["http://127.0.0.1:8490", "http://[::1]:8490/", "http://localhost:1", "unix:/run/alpha.sock"] {
            assert!(StatusPages::read(good).is_some(), "{good}");
        }
        for bad in [
            "",
            "127.0.0.1:8490",
            "https://a:1",
            "http://a",
            "http://proxy.example:1",
            "http://::1:8490",
            "http://:80",
            "http://a:0",
            "http://a:1/x",
            "http://u@a:1",
            "unix:x",
        ] {
            assert!(StatusPages::read(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn a_token_is_the_owners_alone_and_long() {
        use std::os::unix::fs::PermissionsExt as _;
        let file = std::env::temp_dir().join(format!("wayleave-token-{}", std::process::id()));
        let read = |text: &str, mode| {
            std::fs::write(&file, text).expect("written");
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).expect("changed");
            read_token(&file).map_err(|failure| failure.to_string())
        };
        let token = "0123456789abcdef".repeat(4);
        assert_eq!(read(&format!("{token}\n"), 0o600).as_ref(), Ok(&token));
        assert!(read(&token, 0o640).expect_err("others read it").starts_with("others than its owner can read"));
        for wrong in ["", "short", &"a b".repeat(20)] {
            assert!(read(wrong, 0o600).expect_err("no token").ends_with("holds no token"), "{wrong}");
        }
        std::fs::remove_file(&file).expect("removed");
    }
}
