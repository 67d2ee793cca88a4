//! Capabilities that routes are stamped with, from files: at a host and in the network.

use std::net::Ipv4Addr;
use std::path::PathBuf;

use toml::Spanned;
use tracing::{error, warn};
use wayleave_core::{Prefix, UnixTime};
use wayleave_dataplane::stamper::Route;
use wayleave_packet::platypus::header::{Carriage, DelegationId};

use crate::config::router::stamper::{RouteSection, StamperSection};
use crate::config::{Fault, Source};
use crate::failure::Failure;
use crate::key_files::capability::Capabilities;

/// Octets that a packet may grow by: a header, UDP, and eight capabilities of the greatest length.
pub const HEADROOM: usize = 44 + 8 + 8 * 64;
/// Seconds before the end of capabilities at which the log warns.
const WARNED_AHEAD: u64 = 3_600;

/// The capabilities of each route with the names of their files.
pub struct RouteCapabilities(Vec<Vec<(Capabilities, String)>>);

impl RouteCapabilities {
    /// Reads all files.
    ///
    /// # Errors
    /// The first file that cannot be used, at its name.
    pub fn load(section: &StamperSection, source: &Source) -> Result<Self, Failure> {
        let one = |named: &Spanned<PathBuf>| {
            let path = source.resolve(named.get_ref());
            let loaded = Capabilities::load(&path);
            let loaded = loaded.map_err(|failure| source.failure(Fault::of(named.span(), &failure)))?;
            Ok((loaded, path.display().to_string()))
        };
        let route = |route: &Spanned<RouteSection>| {
            route.get_ref().capabilities.iter().map(one).collect::<Result<_, Failure>>()
        };
        Ok(Self(section.routes.iter().map(route).collect::<Result<_, Failure>>()?))
    }

    /// The routes of `section`, with the keys that waypoints accept at `now`.
    pub fn routes(&self, section: &StamperSection, now: UnixTime) -> Vec<Route> {
        let route = |(section, files): (&Spanned<RouteSection>, &Vec<(Capabilities, String)>)| {
            let section = section.get_ref();
            Route {
                // Packets of a route whose capabilities have ended are left unstamped, and counted.
                hops: files.iter().map(|(capabilities, _)| capabilities.hop_or_first(now)).collect(),
                sealed: section.sealed,
                carriage: if section.udp { Carriage::Udp } else { Carriage::Ip },
                mtu: usize::try_from(*section.mtu.get_ref()).unwrap_or(usize::MAX),
            }
        };
        section.routes.iter().zip(&self.0).map(route).collect()
    }

    /// By route: what pays for replies to `client`, delegated to that address alone.
    ///
    /// # Errors
    /// The first file that cannot be used, at its name.
    pub fn replies(
        section: &StamperSection,
        source: &Source,
        client: Option<Ipv4Addr>,
    ) -> Result<Vec<Option<Capabilities>>, Failure> {
        let delegated = |route: &RouteSection| {
            let (Some(named), Some(client)) = (&route.reply, client) else { return Ok(None) };
            let failed = |failure: Failure| source.failure(Fault::of(named.span(), &failure));
            let held = Capabilities::load(&source.resolve(named.get_ref())).map_err(failed)?;
            let prefix = Prefix::new(client.into(), 32).map_err(|error| failed(Failure::new(error)))?;
            let id = u32::try_from(*route.reply_id.get_ref()).ok().and_then(DelegationId::new);
            // Who holds a delegation makes it narrower; its number stays.
            let id = id.filter(|_| held.delegation.is_none());
            held.delegate(prefix, id).map(Some).map_err(failed)
        };
        section.routes.iter().map(|route| delegated(route.get_ref())).collect()
    }

    /// By route: each waypoint's capabilities, with the name of their file.
    pub fn by_route(&self) -> impl Iterator<Item = &[(Capabilities, String)]> {
        self.0.iter().map(Vec::as_slice)
    }

    /// The key epochs that are stamped with at `now`; `None` where no capability is accepted.
    pub fn epochs(&self, now: UnixTime) -> Vec<Option<CapabilityEpoch>> {
        let all = self.0.iter().flatten();
        all.map(|(capabilities, _)| {
            let epoch = capabilities.hop(now)?.capability.epoch;
            Some(CapabilityEpoch { epoch, is_about_to_end: now.secs() + WARNED_AHEAD > capabilities.end() })
        })
        .collect()
    }

    /// Logs which files have come to their end, or are about to.
    pub fn warn(&self, now: UnixTime) {
        for (capabilities, name) in self.0.iter().flatten() {
            let end = capabilities.end();
            if capabilities.hop(now).is_none() {
                error!(
                    "{name} has no capability for the present epoch: packets on its route leave without a stamp; put a new \
                     file in its place, and reload"
                );
            } else if now.secs() + WARNED_AHEAD > end {
                warn!("the capabilities in {name} end at Unix time {end}: put a new file in its place, and reload");
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
