//! The configuration of a stamping Platypus router: routes of waypoints, and the destinations that use them.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::Spanned;
use wayleave_control::capability::{Credential, PREFIX};
use wayleave_core::Prefix;
use wayleave_dataplane::stamper::ConfigError;
use wayleave_packet::platypus::mint::Position;

use super::RouterFile;
use crate::failure::Failure;
use crate::key_files::capability::Capabilities;
use crate::key_files::private;
use crate::rs::{FileFault, range};
use crate::{Fault, Source};

/// Largest number of stampers that share capabilities: each has a part of the nonces of a second.
const MOST_STAMPERS: u64 = 1 << 16;
/// Delegations have numbers of 24 bits.
const MOST_ID: u64 = (1 << 24) - 1;
/// Largest MTU of a link.
const LONGEST: u64 = 65_535;

/// `[stamper]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StamperSection {
    /// Position of new capabilities in a packet that is stamped already.
    #[serde(default)]
    pub position: PositionName,
    /// Index of this stamper, from 0, and number of stampers that share the capabilities.
    pub share: Option<Spanned<[u32; 2]>>,
    pub routes: Vec<Spanned<RouteSection>>,
    pub rules: Vec<Spanned<RuleSection>>,
}

/// Before the current capability, or after the last one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PositionName {
    #[default]
    Next,
    Last,
}

impl PositionName {
    pub fn position(self) -> Position {
        match self {
            Self::Next => Position::Next,
            Self::Last => Position::Last,
        }
    }
}

/// Waypoints in order.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteSection {
    pub name: String,
    /// Files of capabilities, in the order of waypoints.
    pub capabilities: Vec<Spanned<PathBuf>>,
    /// Later stampers may not add capabilities.
    #[serde(default)]
    pub sealed: bool,
    /// Stamped packets are sent in UDP.
    #[serde(default)]
    pub udp: bool,
    /// MTU of the route.
    #[serde(default = "default_mtu")]
    pub mtu: Spanned<u64>,
    /// At a host: capabilities that pay for replies. Servers' stampers are handed a delegation for this host's address.
    pub reply: Option<Spanned<PathBuf>>,
    /// The number of that delegation, by which it is revoked.
    #[serde(default = "default_reply_id")]
    pub reply_id: Spanned<u64>,
}

/// Which packets are stamped.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleSection {
    /// Final destinations; the longest prefix counts. At a host a rule that says who sends may leave it out: any destination of both
    /// families.
    pub to: Option<Prefix>,
    /// The route's name; without one packets are unchanged.
    pub route: Option<Spanned<String>>,
    /// At a host: only packets of this user's sockets, by name or number.
    pub user: Option<Spanned<UserName>>,
    /// At a host: only packets with this mark, which a socket (`SO_MARK`) or nftables sets.
    pub mark: Option<Spanned<u32>>,
    /// At a host: only packets of sockets in this control group, by its path below the root of version 2.
    pub cgroup: Option<Spanned<String>>,
    /// At a host: what becomes of these packets while they cannot be stamped.
    pub otherwise: Option<Spanned<Otherwise>>,
}

/// What becomes of packets that cannot be stamped: they leave as they are, or not at all.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Otherwise {
    #[default]
    Plain,
    Drop,
}

impl Otherwise {
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Drop => "drop",
        }
    }
}

impl RuleSection {
    pub fn otherwise(&self) -> Otherwise {
        self.otherwise.as_ref().map_or(Otherwise::Plain, |otherwise| *otherwise.get_ref())
    }
}

/// A user of this machine.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(untagged)]
pub enum UserName {
    Number(u32),
    Name(String),
}

impl UserName {
    /// Its number; `None` if this machine has no user of that name.
    pub fn number(&self) -> Option<u32> {
        let name = match self {
            Self::Number(number) => return Some(*number),
            Self::Name(name) => name,
        };
        let users = std::fs::read_to_string("/etc/passwd").ok()?;
        users.lines().find_map(|line| {
            let mut fields = line.split(':');
            let is_wanted = fields.next() == Some(name);
            is_wanted.then(|| fields.nth(1)?.parse().ok())?
        })
    }
}

fn default_reply_id() -> Spanned<u64> {
    super::unplaced(1)
}

fn default_mtu() -> Spanned<u64> {
    super::unplaced(1_500)
}

impl StamperSection {
    /// Index of the route that a rule names.
    pub fn route(&self, name: &str) -> Option<usize> {
        self.routes.iter().position(|route| route.get_ref().name == name)
    }

    /// Index and number of stampers.
    pub fn share(&self) -> [u32; 2] {
        self.share.as_ref().map_or([0, 1], |share| *share.get_ref())
    }

    /// The first file of capabilities that cannot be used. A stamper at a host takes the lines of capabilities too.
    pub fn file_fault(&self, source: &Source, takes_lines: bool) -> Option<FileFault> {
        let named =
            self.routes.iter().map(Spanned::get_ref).flat_map(|route| route.capabilities.iter().chain(&route.reply));
        for named in named {
            let path = source.resolve(named.get_ref());
            if !path.exists() {
                let fault = Fault::at(named.span(), format!("{} does not exist yet", path.display()));
                let make = "`wayleave cap lookup --out FILE` or `wayleave cap mint FILE` makes it";
                return Some(FileFault::Missing(fault.help(make)));
            }
            let failure: Option<Failure> = match takes_lines.then(|| line(&path)).flatten() {
                Some(read) => read.err(),
                None => Capabilities::load(&path).err(),
            };
            if let Some(failure) = failure {
                return Some(FileFault::Unusable(Fault::of(named.span(), &failure)));
            }
        }
        None
    }
}

/// Whether a file with the line of a capability is sound; `None` if it is another file.
fn line(path: &Path) -> Option<Result<(), Failure>> {
    match private::read(path) {
        Ok(text) if text.trim_start().starts_with(PREFIX) => {
            let read = text.trim().parse::<Credential>();
            Some(read.map(drop).map_err(|error| Failure::new(format!("{}: {error}", path.display()))))
        }
        _ => None,
    }
}

impl RouterFile {
    /// Whether packets are stamped; if so, a router needs no waypoints of its own.
    pub(super) fn stamper_faults(&self, faults: &mut Vec<Fault>) {
        let stamping = self.link.iter().find(|link| !link.get_ref().stamp.is_empty());
        let Some(stamper) = &self.stamper else {
            faults.extend(stamping.map(|link| Fault::at(link.span(), "`stamp` without [stamper], expected its rules")));
            return;
        };
        let at = stamper.span();
        let section = stamper.get_ref();
        section.faults(faults);
        for reply in section.routes.iter().filter_map(|route| route.get_ref().reply.as_ref()) {
            let message = "a router hands over no capabilities for replies, expected no `reply`";
            faults.push(Fault::at(reply.span(), message).help("`wayleave run stamper` does, at the host that pays"));
        }
        for rule in &section.rules {
            let (at, rule) = (rule.span(), rule.get_ref());
            if rule.to.is_none() {
                faults.push(Fault::at(at, "a rule without destinations, expected `to`"));
            }
            let sender = [
                rule.user.as_ref().map(Spanned::span),
                rule.mark.as_ref().map(Spanned::span),
                rule.cgroup.as_ref().map(Spanned::span),
            ];
            if let Some(otherwise) = &rule.otherwise {
                let message = "a router drops no packet because it cannot stamp it, expected no `otherwise`";
                faults.push(
                    Fault::at(otherwise.span(), message).help("`wayleave run stamper` does, at the host that sends"),
                );
            }
            if let Some(span) = sender.into_iter().flatten().next() {
                let message = "a router does not know who sent a packet, expected a rule by destination alone";
                faults.push(
                    Fault::at(span, message).help("`wayleave run stamper` chooses by user, mark and control group"),
                );
            }
        }
        if stamping.is_none() {
            let message = "no packet is stamped, expected `stamp` in a [[link]]: the sources behind it";
            faults.push(Fault::at(at, message));
        }
    }
}

impl StamperSection {
    /// What is wrong with routes and rules that no stamper takes, and where.
    pub fn locate(&self, error: ConfigError) -> Fault {
        let rule = |index: usize| self.rules.get(index).map(Spanned::span);
        let route = |index: usize| self.routes.get(index).map(Spanned::span);
        let (span, message) = match error {
            ConfigError::Twice(index) => (rule(index), "a second rule for the same destinations, expected one"),
            ConfigError::NoRoute(index) => {
                (rule(index), "the route is of another family, expected one of the destinations'")
            }
            ConfigError::Delegation(index) => (
                rule(index),
                "the route's capabilities are not delegated for all of these, expected narrower destinations",
            ),
            ConfigError::Route(index) | ConfigError::Carriage(index) => (
                route(index),
                "a route that no packet can take, expected one to eight waypoints of one family, none thrice",
            ),
            ConfigError::Share(..) => (None, "no such share"),
        };
        Fault { span, message: message.to_owned(), help: None }
    }

    /// What is wrong with routes and rules, wherever the stamper is.
    pub fn faults(&self, faults: &mut Vec<Fault>) {
        let section = self;
        if let Some(share) = &section.share {
            let [own, of] = *share.get_ref();
            if own >= of || u64::from(of) > MOST_STAMPERS {
                let message =
                    format!("stamper {own} of {of}, expected a number below that of all, {MOST_STAMPERS} at most");
                faults.push(Fault::at(share.span(), message));
            }
        }
        for (index, route) in section.routes.iter().enumerate() {
            let (at, route) = (route.span(), route.get_ref());
            faults.extend(range(&route.mtu, 576, LONGEST, "octets"));
            faults.extend(range(&route.reply_id, 0, MOST_ID, ""));
            if section.route(&route.name) != Some(index) {
                faults.push(Fault::at(at.clone(), format!("a second route `{}`, expected another name", route.name)));
            }
            if route.capabilities.is_empty() {
                faults.push(Fault::at(at, "a route without capabilities, expected a file for each waypoint"));
            }
        }
        for rule in &section.rules {
            if let Some(name) = &rule.get_ref().route
                && section.route(name.get_ref()).is_none()
            {
                faults.push(Fault::at(name.span(), format!("no route `{}`, expected the name of one", name.get_ref())));
            }
        }
    }
}
