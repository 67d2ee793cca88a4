//! `[key.api]`: the HTTPS API of a key server, and who may use it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::Spanned;
use wayleave_control::capability::ApiUrl;
use wayleave_packet::platypus::header::Principal;
use wayleave_runtime::api_tls::{ApiKey, ApiKeyError};
use wayleave_runtime::clock::{unix_of_utc, utc};
use wayleave_runtime::identity::Identity;

use super::parse::{Text, TextValue, TokenHash};
use super::rs::{FileFault, key_fault, range};
use super::{Fault, Source};
use crate::failure::{Failure, Outcome};

/// The key file where the configuration names none; `wayleave cap init` makes it.
pub const DEFAULT_IDENTITY: &str = "api.key";
/// Tokens of a configuration.
const MAX_TOKENS: usize = 64;
/// Requests a second of one source prefix without a token: by default, and at most.
const REQUESTS: u64 = 5;
const MOST_REQUESTS: u64 = 10_000;

/// A token that expires within these seconds is named by `wayleave check` and in the log: two weeks.
const EXPIRES_SOON: u64 = 14 * 86_400;

/// The section.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApiSection {
    /// Where requests come, by HTTPS.
    pub listen: Spanned<Text<SocketAddr>>,
    /// Where holders of invitations reach it; as `listen` by default.
    pub url: Option<Spanned<Text<ApiUrl>>>,
    /// The key file whose certificate is shown.
    pub identity: Option<Spanned<PathBuf>>,
    /// A chain of certificates of the operator's own (PEM), in the place of `identity`, and its private key.
    pub certificate: Option<Spanned<PathBuf>>,
    pub private_key: Option<Spanned<PathBuf>>,
    /// Requests a second of one source prefix without a token.
    #[serde(default = "default_requests")]
    pub requests_per_second: Spanned<u64>,
    #[serde(default)]
    pub token: Vec<Spanned<TokenEntry>>,
}

fn default_requests() -> Spanned<u64> {
    Spanned::new(0..0, REQUESTS)
}

/// `[[key.api.token]]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenEntry {
    /// Who has it, for the log.
    pub name: String,
    /// SHA-256 of the token; the token itself is nowhere here.
    pub hash: Text<TokenHash>,
    #[serde(default = "default_access")]
    pub access: Spanned<Text<Access>>,
    /// Whose a token with access to its own is.
    pub principal: Option<Spanned<u32>>,
    /// From when on the token is none any more.
    pub expires: Option<Spanned<Text<Expiry>>>,
}

fn default_access() -> Spanned<Text<Access>> {
    Spanned::new(0..0, Text(Access::Read))
}

/// What a token's holder may do: what those before it may, and more.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Access {
    /// Read the account and the usage of one principal.
    Own,
    /// Read everything.
    Read,
    /// Change accounts, grants and invitations.
    Sell,
    /// Do everything: revocations too.
    Operate,
}

impl Access {
    /// The name in a configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Own => "own",
            Self::Read => "read",
            Self::Sell => "sell",
            Self::Operate => "operate",
        }
    }
}

impl TextValue for Access {
    const EXPECTED: &'static str = "\"own\", \"read\", \"sell\" or \"operate\" (\"full\" was its name before)";
    fn read(text: &str) -> Option<Self> {
        [Self::Own, Self::Read, Self::Sell, Self::Operate].into_iter().find(|access| access.name() == text)
    }
}

/// When a token expires, in Unix seconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Expiry(pub u64);

impl TextValue for Expiry {
    const EXPECTED: &'static str = "a time such as \"2027-01-31T00:00:00Z\"";
    fn read(text: &str) -> Option<Self> {
        unix_of_utc(text).map(Self)
    }
}

impl TokenEntry {
    /// Whose it is, if it is for what is one principal's own.
    pub fn principal(&self) -> Option<Principal> {
        self.principal.as_ref().and_then(|number| Principal::new(*number.get_ref()))
    }

    /// From which Unix second on it is none any more.
    pub fn expires(&self) -> Option<u64> {
        self.expires.as_ref().map(|expires| expires.get_ref().0.0)
    }

    fn fault(&self) -> Option<Fault> {
        let is_own = self.access.get_ref().0 == Access::Own;
        match &self.principal {
            None if is_own => {
                let message = "`access = \"own\"` without `principal`, expected the number of whom it is";
                Some(Fault::at(self.access.span(), message))
            }
            Some(named) if !is_own => {
                let message =
                    "`principal` of a token that is not restricted to it, expected `access = \"own\"` beside it";
                Some(Fault::at(named.span(), message))
            }
            Some(named) if self.principal().is_none() => {
                Some(Fault::at(named.span(), "not a principal, expected a number of 24 bits"))
            }
            _ => None,
        }
    }
}

impl TextValue for ApiUrl {
    const EXPECTED: &'static str = "an address such as \"https://keys.example.net:8495\", without a path";
    fn read(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

impl ApiSection {
    /// What is wrong with the section; `others` are the other addresses where the role listens.
    pub(super) fn faults(&self, others: &[SocketAddr]) -> Vec<Fault> {
        let mut faults = Vec::new();
        let listen = self.listen.get_ref().0;
        if others.contains(&listen) {
            let message = format!("{listen} is in use by this configuration already, expected another port");
            faults.push(Fault::at(self.listen.span(), message));
        }
        match (&self.identity, &self.certificate, &self.private_key) {
            (Some(identity), Some(_), _) => {
                let message = "both `identity` and `certificate`, expected one: the server shows one certificate";
                faults.push(Fault::at(identity.span(), message));
            }
            (_, Some(named), None) => {
                let message = "`certificate` without `private_key`, expected the file of its private key";
                faults.push(Fault::at(named.span(), message));
            }
            (_, None, Some(named)) => {
                let message = "`private_key` without `certificate`, expected the file of its chain";
                faults.push(Fault::at(named.span(), message));
            }
            _ => {}
        }
        faults.extend(range(&self.requests_per_second, 1, MOST_REQUESTS, "requests a second"));
        if let Some(beyond) = self.token.get(MAX_TOKENS) {
            faults.push(Fault::at(beyond.span(), format!("more than {MAX_TOKENS} tokens")));
        }
        for (at, token) in self.token.iter().enumerate() {
            let own = token.get_ref();
            let is_taken =
                |other: &Spanned<TokenEntry>| other.get_ref().name == own.name || other.get_ref().hash.0 == own.hash.0;
            if self.token[..at].iter().any(is_taken) {
                faults.push(Fault::at(token.span(), "the same name or hash of a token twice, expected each once"));
            }
            faults.extend(own.fault());
        }
        faults
    }

    /// Tokens that are refused now, or soon.
    pub fn warnings(&self, now: u64) -> Vec<Fault> {
        let warning = |token: &Spanned<TokenEntry>| {
            let (own, expires) = (token.get_ref(), token.get_ref().expires()?);
            let verb = match expires {
                expires if expires <= now => "has expired",
                expires if expires <= now + EXPIRES_SOON => "expires soon",
                _ => return None,
            };
            let message = format!("the token `{}` {verb}, at {}: then its holder is refused", own.name, utc(expires));
            let fault = Fault::at(own.expires.as_ref()?.span(), message);
            Some(fault.help("wayleave keys token FILE makes another one; its hash and a later `expires` go here"))
        };
        self.token.iter().filter_map(warning).collect()
    }

    /// Faults of the files that the section names.
    pub(super) fn file_faults(&self, source: &Source) -> Vec<FileFault> {
        if let Some(named) = &self.identity {
            return key_fault(named, source).into_iter().collect();
        }
        let Err(failure) = self.key(source) else { return Vec::new() };
        let span = self.certificate.as_ref().map_or_else(|| self.listen.span(), Spanned::span);
        let fault = Fault::of(span, &failure);
        let is_missing = match (&self.certificate, &self.private_key) {
            (Some(chain), Some(key)) => [chain, key].iter().any(|file| !source.resolve(file.get_ref()).exists()),
            _ => !source.resolve(Path::new(DEFAULT_IDENTITY)).exists(),
        };
        vec![if is_missing { FileFault::Missing(fault) } else { FileFault::Unusable(fault) }]
    }

    /// What the server shows.
    ///
    /// # Errors
    /// What is wrong with the files.
    pub fn key(&self, source: &Source) -> Result<ApiKey, Failure> {
        let failed = |error: ApiKeyError| Failure::new(error.to_string());
        if let (Some(chain), Some(key)) = (&self.certificate, &self.private_key) {
            return ApiKey::load(&source.resolve(chain.get_ref()), &source.resolve(key.get_ref())).map_err(failed);
        }
        let named = self.identity.as_ref().map_or(Path::new(DEFAULT_IDENTITY), |named| named.get_ref());
        let identity = Identity::load(&source.resolve(named)).map_err(|error| {
            Failure::new(error.to_string()).help(format!(
                "wayleave keys new {} makes a key and its certificate; or name your own by `certificate` and `private_key`",
                named.display()
            ))
        })?;
        ApiKey::of_identity(&identity).map_err(failed)
    }

    /// Where holders reach the API.
    ///
    /// # Errors
    /// If it is not known.
    pub fn url(&self) -> Outcome<ApiUrl> {
        if let Some(url) = &self.url {
            return Ok(url.get_ref().0.clone());
        }
        let listen = self.listen.get_ref().0;
        let known = (!listen.ip().is_unspecified()).then(|| format!("https://{listen}").parse().ok()).flatten();
        Ok(known.ok_or_else(|| {
            Failure::new(format!("the API listens at {listen}, which is no address that holders of invitations reach"))
                .help("add `url = \"https://HOST:PORT\"` to [key.api]")
        })?)
    }

    /// Requests a second of one source prefix without a token.
    pub fn requests_per_second(&self) -> u32 {
        u32::try_from(*self.requests_per_second.get_ref()).unwrap_or(u32::MAX)
    }
}

/// The section as a comment in a new configuration, or in force if the API listens.
pub fn template(listen: Option<&str>) -> String {
    let (mark, listen) = if let Some(listen) = listen { ("", listen) } else { ("#", "192.0.2.1:8495") };
    format!(
        "# The HTTPS API, by which people are invited and accounts are kept; docs/api has its description (OpenAPI).\n\
         {mark}[key.api]\n\
         {mark}listen = \"{listen}\"\n\
         # Where holders of invitations reach it, if not there.\n\
         #url = \"https://keys.example.net:8495\"\n\
         # It shows the certificate of api.key, whose key invitations pin; or a chain of your own (PEM).\n\
         #certificate = \"chain.pem\"\n\
         #private_key = \"chain.key\"\n\
         # Requests a second of one source prefix without a token. Reloaded on SIGHUP, as tokens are.\n\
         #requests_per_second = 5\n\
         # Who may do what: read its own (`own`, with `principal`), `read`, change accounts, grants and invitations (`sell`), or do\n\
         # everything (`operate`). wayleave keys token FILE makes a token and prints its hash.\n\
         #[[key.api.token]]\n\
         #name = \"billing\"\n\
         #hash = \"token:sha256:{}\"\n\
         #access = \"read\"\n\
         #expires = \"2027-01-31T00:00:00Z\"\n",
        "00".repeat(32)
    )
}
