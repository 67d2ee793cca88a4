//! Capabilities that routes are stamped with, from files: at a host and in the network.

use std::path::PathBuf;

use toml::Spanned;
use tracing::{error, warn};
use wayleave_control::capability::{Credential, LookupFailure, PREFIX};
use wayleave_core::{Afi, Prefix, UnixTime};
use wayleave_crypto::secret::Key128;
use wayleave_dataplane::stamper::Route;
use wayleave_packet::platypus::header::{Carriage, DelegationId, Marks};
use wayleave_runtime::clock::utc;

use crate::config::router::stamper::{RouteSection, StamperSection};
use crate::config::stamper::Addresses;
use crate::config::{Fault, Source};
use crate::failure::Failure;
use crate::key_files::capability::Capabilities;
use crate::key_files::private;

/// Octets that a packet may grow by: a header, UDP, and eight capabilities of the greatest length.
pub const HEADROOM: usize = 44 + 8 + 8 * 64;
/// Seconds before the end of capabilities at which the log warns.
const WARNED_AHEAD: u64 = 3_600;

/// What carries packets that are sent in UDP, or are not.
pub fn carriage(udp: bool) -> Carriage {
    if udp { Carriage::Udp } else { Carriage::Ip }
}

/// What is known now of a capability that is named by its line.
pub struct Known {
    /// Key epochs and the secrets of them.
    pub secrets: Vec<(u32, Marks, Key128)>,
    /// Why the last look-up failed, if it did.
    pub failure: Option<LookupFailure>,
}

/// Who looks up the secrets of capabilities that are named by their lines.
pub trait Lines {
    /// What is known of a capability; from now on its secrets are looked up.
    ///
    /// # Errors
    /// Why there is no such thing here.
    fn hold(&mut self, credential: &Credential) -> Result<Known, Failure>;
}

/// Nobody does: only a host's stamper.
pub struct NoLines;

impl Lines for NoLines {
    fn hold(&mut self, _: &Credential) -> Result<Known, Failure> {
        Err(Failure::new("is the line of a capability, whose secrets no router looks up")
            .help("`wayleave cap lookup --line LINE --out FILE` makes a file of capabilities"))
    }
}

/// What a file pays with.
#[derive(Clone)]
pub struct CapabilityFile {
    pub capabilities: Capabilities,
    /// The file's name.
    pub name: String,
    pub kind: HeldKind,
}

/// Where secrets come from.
#[derive(Clone)]
pub enum HeldKind {
    /// The file has them.
    File,
    /// The file has the capability's line; why the last look-up failed, if it did.
    Line(Box<Credential>, Option<LookupFailure>),
}

impl CapabilityFile {
    /// Reads a file of capabilities, or one with the line of a capability.
    fn load(named: &Spanned<PathBuf>, source: &Source, lines: &mut dyn Lines) -> Result<Self, Failure> {
        let path = source.resolve(named.get_ref());
        let name = path.display().to_string();
        let mut read = || {
            let text = private::read(&path)?;
            if !text.trim_start().starts_with(PREFIX) {
                return Ok((Capabilities::parse(&text, &name)?, HeldKind::File));
            }
            let credential: Credential =
                text.trim().parse().map_err(|error| Failure::new(format!("{name}: {error}")))?;
            let Known { secrets, failure } = lines.hold(&credential)?;
            Ok((Capabilities::of_line(&credential, &secrets), HeldKind::Line(Box::new(credential), failure)))
        };
        let (capabilities, kind) =
            read().map_err(|failure: Failure| source.failure(Fault::of(named.span(), &failure)))?;
        Ok(Self { capabilities, name, kind })
    }

    /// What keeps packets from being stamped at `now`, or is about to.
    pub fn trouble(&self, now: UnixTime) -> Option<String> {
        let name = &self.name;
        let has_ended = self.capabilities.end() <= now.secs();
        match (&self.kind, has_ended) {
            (HeldKind::File, false) | (HeldKind::Line(_, None), false) => None,
            (HeldKind::File, true) => Some(format!("the capabilities in {name} have ended")),
            (HeldKind::Line(_, None), true) => Some(format!("the secret of {name} is being looked up")),
            (HeldKind::Line(_, Some(failure)), true) => Some(format!("the secret of {name} is missing: {failure}")),
            (HeldKind::Line(_, Some(failure)), false) => {
                Some(format!("the next secret of {name} is missing, the present one serves: {failure}"))
            }
        }
    }
}

/// The capabilities of each route.
pub struct RouteCapabilities(Vec<Vec<CapabilityFile>>);

impl RouteCapabilities {
    /// Reads all files.
    ///
    /// # Errors
    /// The first file that cannot be used, at its name.
    pub fn load(section: &StamperSection, source: &Source, lines: &mut dyn Lines) -> Result<Self, Failure> {
        let mut routes = Vec::with_capacity(section.routes.len());
        for route in &section.routes {
            let held = route.get_ref().capabilities.iter().map(|named| CapabilityFile::load(named, source, lines));
            routes.push(held.collect::<Result<_, Failure>>()?);
        }
        Ok(Self(routes))
    }

    /// The capabilities that are named by their lines.
    pub fn lines(&self) -> impl Iterator<Item = &Credential> {
        self.0.iter().flatten().filter_map(|held| match &held.kind {
            HeldKind::File => None,
            HeldKind::Line(credential, _) => Some(&**credential),
        })
    }

    /// The routes of `section`, with the keys that waypoints accept at `now`.
    pub fn routes(&self, section: &StamperSection, now: UnixTime) -> Vec<Route> {
        let route = |(section, files): (&Spanned<RouteSection>, &Vec<CapabilityFile>)| {
            let section = section.get_ref();
            Route {
                // Packets of a route whose capabilities have ended are left unstamped, and counted.
                hops: files.iter().map(|held| held.capabilities.hop_or_first(now)).collect(),
                sealed: section.sealed,
                carriage: carriage(section.udp),
                mtu: usize::try_from(*section.mtu.get_ref()).unwrap_or(usize::MAX),
                only_from: None,
            }
        };
        section.routes.iter().zip(&self.0).map(route).collect()
    }

    /// The family of a route's waypoints.
    pub fn family(&self, route: usize) -> Option<Afi> {
        self.0.get(route)?.first().map(|held| held.capabilities.afi())
    }

    /// By route: what pays for replies to the client, delegated to its address of the waypoint's family alone; nothing yet if its secret
    /// is being looked up.
    ///
    /// # Errors
    /// The first file that cannot be used, at its name.
    pub fn replies(
        section: &StamperSection,
        source: &Source,
        client: Addresses,
        (lines, used): (&mut dyn Lines, &mut Vec<Credential>),
    ) -> Result<Vec<Option<Capabilities>>, Failure> {
        let mut delegated = |route: &RouteSection| {
            let Some(named) = &route.reply else { return Ok(None) };
            let failed = |failure: Failure| source.failure(Fault::of(named.span(), &failure));
            let held = CapabilityFile::load(named, source, lines)?;
            if let HeldKind::Line(credential, _) = &held.kind {
                used.push((**credential).clone());
                if held.capabilities.epochs() == (0, 0) {
                    return Ok(None);
                }
            }
            let held = held.capabilities;
            let afi = held.afi();
            let Some(client) = client.of(afi) else {
                let key = if afi == Afi::Ipv4 { "address" } else { "address6" };
                let message = "these capabilities pay for replies to an address of their waypoint's family, and this host has none";
                return Err(failed(Failure::new(message).help(format!("set `{key}` in [host]"))));
            };
            let prefix = Prefix::new(client, afi.bits()).map_err(|error| failed(Failure::new(error)))?;
            let id = u32::try_from(*route.reply_id.get_ref()).ok().and_then(DelegationId::new);
            // Who holds a delegation makes it narrower; its number stays.
            let id = id.filter(|_| held.delegation.is_none());
            held.delegate(prefix, id).map(Some).map_err(failed)
        };
        section.routes.iter().map(|route| delegated(route.get_ref())).collect()
    }

    /// By route: each waypoint's capabilities.
    pub fn by_route(&self) -> impl Iterator<Item = &[CapabilityFile]> {
        self.0.iter().map(Vec::as_slice)
    }

    /// The key epochs that are stamped with at `now`; `None` where no capability is accepted.
    pub fn epochs(&self, now: UnixTime) -> Vec<Option<CapabilityEpoch>> {
        let all = self.0.iter().flatten();
        all.map(|held| {
            let epoch = held.capabilities.hop(now)?.capability.epoch;
            let is_of_file = matches!(held.kind, HeldKind::File);
            let is_about_to_end = is_of_file && now.secs() + WARNED_AHEAD > held.capabilities.end();
            Some(CapabilityEpoch { epoch, is_about_to_end })
        })
        .collect()
    }

    /// Logs which files have come to their end, or are about to.
    pub fn warn(&self, now: UnixTime) {
        for CapabilityFile { capabilities, name, .. } in
            self.0.iter().flatten().filter(|held| matches!(held.kind, HeldKind::File))
        {
            let end = capabilities.end();
            if capabilities.hop(now).is_none() {
                error!(
                    "{name} has no capability for the present epoch: packets on its route leave without a stamp; put a new \
                     file in its place, and reload"
                );
            } else if now.secs() + WARNED_AHEAD > end {
                let end = utc(end);
                warn!("the capabilities in {name} end at {end}: put a new file in its place, and reload");
            }
        }
    }
}

/// The key epoch that a file's capabilities are used with at one time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CapabilityEpoch {
    epoch: u32,
    is_about_to_end: bool,
}
