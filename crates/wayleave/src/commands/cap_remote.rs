//! Where a provider's `cap` commands work: at the database of this machine, or at the API of a key server elsewhere.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use wayleave_control::capability::ApiUrl;
use wayleave_runtime::api_tls::KeyPin;
use zeroize::Zeroizing;

use crate::api_client::ApiTarget;
use crate::config::kinds::{TOKEN_PREFIX, TextKind};
use crate::config::parse::argument;
use crate::failure::{Failure, Outcome};
use crate::key_files::private;
use crate::provider::orders::{MAX_REASON, check_same_name, is_reason};

/// Entries of a page that is asked for.
const PAGE: usize = 1_000;
/// Pages that are read, at most: a server that names a next one for ever is told so.
const MAX_PAGES: usize = 100_000;
/// How often a list is begun again whose pages do not go together, and after which pause.
const RESTARTS: usize = 300;
const PAUSE: Duration = Duration::from_secs(1);
/// The status by which a server says so (RFC 9110 section 15.5.11).
const GONE: u16 = 410;

/// The provider's side: at the key server's own machine, or from elsewhere.
#[derive(Args, Debug)]
pub struct Provider {
    /// The key server's configuration, on its own machine. The provider's commands need this or --api.
    #[arg(long, short)]
    pub config: Option<PathBuf>,
    /// The API of the key server, from elsewhere: https://HOST:PORT. Needs --token and --pin.
    #[arg(long, value_name = "URL", requires_all = ["token", "pin"], conflicts_with = "config")]
    pub api: Option<ApiUrl>,
    /// The file of a token for the API (`wayleave keys token`).
    #[arg(long, value_name = "FILE", requires = "api")]
    pub token: Option<PathBuf>,
    /// The pin of the API's key (`spki:sha256:...`): `api_pin` of `wayleave keys show` for its api.key; the server logs it too.
    #[arg(long, requires = "api", value_parser = argument::<KeyPin>)]
    pub pin: Option<KeyPin>,
}

/// Why the provider changes something.
#[derive(Args, Debug)]
pub struct Why {
    /// Why, for the trail of changes (`cap changes`).
    #[arg(long, value_parser = reason)]
    pub reason: Option<String>,
}

/// A reason that the trail takes.
fn reason(text: &str) -> Result<String, String> {
    if !is_reason(text) {
        return Err(format!("expected at most {MAX_REASON} octets without control characters"));
    }
    Ok(text.to_owned())
}

impl Why {
    pub fn text(&self) -> &str {
        self.reason.as_deref().unwrap_or_default()
    }
}

/// Where a command works.
pub enum KeyServerAt<'a> {
    /// By this configuration.
    Here(&'a Path),
    At(ApiTarget),
}

impl Provider {
    /// Where to work.
    ///
    /// # Errors
    /// If nothing says so, or the token cannot be read.
    pub fn place(&self) -> Outcome<KeyServerAt<'_>> {
        Ok(self.place_if_any()?.ok_or_else(|| {
            Failure::usage("no key server given").help("add --config FILE, or --api URL --token FILE --pin PIN")
        })?)
    }

    /// Where to change something, and why.
    ///
    /// # Errors
    /// If nothing says so, or the token cannot be read.
    pub fn place_for(&self, why: &Why) -> Outcome<KeyServerAt<'_>> {
        let mut place = self.place()?;
        if let KeyServerAt::At(at) = &mut place {
            at.reason.clone_from(&why.reason);
        }
        Ok(place)
    }

    /// Where to work, if it is the provider who works.
    ///
    /// # Errors
    /// If the token cannot be read.
    pub fn place_if_any(&self) -> Outcome<Option<KeyServerAt<'_>>> {
        if let Some(config) = &self.config {
            return Ok(Some(KeyServerAt::Here(config)));
        }
        let (Some(url), Some(token), Some(pin)) = (&self.api, &self.token, self.pin) else { return Ok(None) };
        let text = private::read(token)?;
        check_token(&text, token)?;
        let token = Some(Zeroizing::new(text.trim().to_owned()));
        Ok(Some(KeyServerAt::At(ApiTarget { url: url.clone(), pin, token, reason: None })))
    }
}

/// Whether a file may have a token, and nothing else: no other secret goes to the server. Who makes tokens of his own writes them as he likes.
fn check_token(text: &str, file: &Path) -> Result<(), Failure> {
    let text = text.trim();
    let is_line = !text.is_empty() && text.bytes().all(|octet| matches!(octet, b' '..=b'~'));
    let what = match (TextKind::of(text), text.strip_prefix(TOKEN_PREFIX)) {
        (_, Some(digits)) if !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_hexdigit()) => {
            return Ok(());
        }
        (Some(TextKind::Token), _) => "a damaged API token".to_owned(),
        // 64 digits are as good a token as the ID of a node, which is public.
        (None | Some(TextKind::IcingNode), _) if is_line && text.parse::<toml::Table>().is_err() => return Ok(()),
        (None, _) => "not one line of printable ASCII, or that of a configuration or key file".to_owned(),
        (Some(kind), _) => kind.to_string(),
    };
    Err(Failure::new(format!("{} has {what}, expected an API token; nothing was sent", file.display()))
        .help("--token names the file that `wayleave keys token` made; `wayleave keys show` says what another file is"))
}

/// All entries of a list that comes in pages. If it changes so that its pages do not go together, it is read again from the first.
///
/// # Errors
/// What the server refuses.
pub fn all(at: &ApiTarget, path: &str, list: &str) -> Outcome<Vec<Value>> {
    for _ in 0..RESTARTS {
        if let Some(entries) = pages(at, path, list)? {
            return Ok(entries);
        }
        std::thread::sleep(PAUSE);
    }
    Err(Failure::new(format!("{} changes what it lists all the time", at.url)).help("ask again in some minutes").into())
}

/// The pages of a list one after another; `None` if the server says that a later one does not go with those before.
fn pages(at: &ApiTarget, path: &str, list: &str) -> Outcome<Option<Vec<Value>>> {
    let (mut entries, mut after) = (Vec::new(), String::new());
    let first = if path.contains('?') { '&' } else { '?' };
    for _ in 0..MAX_PAGES {
        let reply = at.ask("GET", &format!("{path}{first}most={PAGE}{after}"), None)?;
        if reply.status == GONE && !after.is_empty() {
            return Ok(None);
        }
        let mut page = at.read(&reply)?;
        if let Value::Array(of_page) = page[list].take() {
            entries.extend(of_page);
        }
        after = match &page["next"] {
            Value::Number(next) => format!("&after={next}"),
            Value::String(next) => format!("&after={}", next.replace('/', "%2F")),
            _ => return Ok(Some(entries)),
        };
    }
    Err(Failure::new(format!("{} names one page after another and has no last one", at.url)).into())
}

/// The account of a principal with its grants; `None` if there is none.
///
/// # Errors
/// What the server refuses.
pub fn account(at: &ApiTarget, principal: u32) -> Outcome<Option<Value>> {
    let path = format!("/v1/accounts/{principal}");
    let reply = at.ask("GET", &path, None)?;
    if reply.status == 404 {
        return Ok(None);
    }
    at.read(&reply).map(Some)
}

/// Grants by the API: the account is opened, or named if it has no name, first, as it is here. Returns what was granted.
///
/// # Errors
/// What the server refuses.
pub fn grant(at: &ApiTarget, name: Option<&str>, order: &Value) -> Outcome<Value> {
    let principal = order["principal"].as_u64().and_then(|number| u32::try_from(number).ok()).unwrap_or(u32::MAX);
    match account(at, principal)? {
        None => {
            let account = json!({ "principal": principal, "name": name.unwrap_or_default() });
            at.json("POST", "/v1/accounts", Some(&account))?;
        }
        Some(account) if account["name"].as_str().is_some_and(|held| !held.is_empty()) => {
            check_same_name(principal, account["name"].as_str(), name)?;
        }
        Some(account) if name.is_some_and(|name| account["name"] != name) => {
            at.json("PATCH", &format!("/v1/accounts/{principal}"), Some(&json!({ "name": name })))?;
        }
        Some(_) => {}
    }
    at.json("POST", "/v1/grants", Some(order))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_another_secret_is_named_and_not_shown() {
        let file = Path::new("x");
        let token = format!("{TOKEN_PREFIX}{}\n", "5e".repeat(32));
        for own in [&token, &"5e".repeat(32), "uqLWcg9yTz5Bb2xv+w==\n"] {
            assert!(check_token(own, file).is_ok(), "{own}");
        }
        for (text, what) in [
            (
                "wayleave-cap-1-5ec2e7",
                "x has the line of a capability, which is secret, expected an API token; nothing was sent",
            ),
            ("wayleave-token-", "x has a damaged API token"),
            (&format!("{token}5ec2e7"), "x has a damaged API token"),
            ("kind = \"writer\"\nseed = \"5ec2e7\"\n", "x has not one line of printable ASCII, or that of"),
            ("seed = \"5ec2e7\"", "x has not one line of printable ASCII, or that of"),
            ("", "x has not one line of printable ASCII"),
        ] {
            let said = check_token(text, file).expect_err(what).to_string();
            assert!(said.contains(what) && !said.contains("5ec2e7"), "{said}");
        }
    }
}
