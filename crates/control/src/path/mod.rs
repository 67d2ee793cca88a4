//! Paths: the server that finds them, and the client that asks and checks.

mod client;
mod server;
mod subscription;

use wayleave_core::IdentityKey;
use wayleave_packet::icing::header::Tag;
use wayleave_packet::{Hop, HopId, Path, PathError};

use crate::advert::TagUse;
use crate::database::Database;
use crate::labels::Labels;
use crate::realm::Roles;
use crate::topology::{End, PartialPath, Phase, Step, counted_step};

pub use client::{
    MAX_HOSTS, PathClient, PathClientConfig, PathClientInput, PathClientOutput, PathFailure, RENEW_AHEAD,
    REQUEST_TIMEOUT,
};
pub use server::{
    MAX_LINKS, PathServer, PathServerConfig, PathServerEvent, PathServerInput, PathServerOutput, REQUESTS, Statistics,
};
pub use subscription::{Subscription, SubscriptionInput, SubscriptionOutput};

/// Why nodes do not make a path: an error of whoever claims that they do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PathFault {
    #[error("node {0} is no member, or has no advert that counts")]
    Unknown(usize),
    #[error("the link from node {0} to the next does not count")]
    Link(usize),
    #[error("the step from node {0} makes a valley")]
    Valley(usize),
    #[error("node {0} passes no packets on, or offers no tag for its part")]
    Tag(usize),
    #[error(transparent)]
    Path(#[from] PathError),
}

/// The path over these nodes as the database has them at the Unix second `now`: IDs, interfaces, tags, expiry, MTU, labels. Each
/// link counts, or is a step that one of `partials` begins with.
///
/// # Errors
/// If they make no valley-free path.
pub fn build(
    database: &Database,
    labels: &Labels,
    partials: &[PartialPath],
    nodes: &[IdentityKey],
    now: u64,
) -> Result<Path, PathFault> {
    let end = |(at, identity): (usize, &IdentityKey)| {
        let advert = database.advert(identity, now).ok_or(PathFault::Unknown(at))?;
        let membership = database.membership(identity, now).map_err(|_| PathFault::Unknown(at))?;
        Ok((advert, membership.grants.roles.has(Roles::FORWARDER)))
    };
    let ends: Vec<End<'_>> = nodes.iter().enumerate().map(end).collect::<Result<_, PathFault>>()?;
    let mut phase = Phase::Climbing;
    for (at, pair) in ends.windows(2).enumerate() {
        let claimed = partials.iter().filter(|partial| partial.nodes.len() > at + 1);
        let mut claimed = claimed.filter(|partial| partial.nodes[..at + 2] == nodes[..at + 2]);
        let step: Option<Step> = counted_step(pair[0], pair[1])
            .or_else(|| claimed.next().and_then(|partial| partial.steps.get(at).copied()));
        phase = phase.after(step.ok_or(PathFault::Link(at))?).ok_or(PathFault::Valley(at))?;
    }
    let (mut expiry, mut mtu) = (u64::MAX, u16::MAX);
    let mut hops = Vec::with_capacity(nodes.len());
    for (at, (advert, is_forwarder)) in ends.into_iter().enumerate() {
        let membership = database.membership(&advert.identity, now).map_err(|_| PathFault::Unknown(at))?;
        let key = advert.current(now).ok_or(PathFault::Unknown(at))?;
        expiry = expiry.min(advert.expires()).min(membership.not_after).min(key.not_after.into());
        mtu = mtu.min(advert.mtu);
        let tag = match at {
            0 => Some(Tag(0)),
            _ if at + 1 == nodes.len() => advert.tag(TagUse::Deliver),
            _ => advert.tag(TagUse::Transit).filter(|_| is_forwarder),
        };
        let tag = tag.ok_or(PathFault::Tag(at))?;
        let interface =
            |other: Option<&IdentityKey>| other.and_then(|other| advert.link(other)).map_or(0, |link| link.interface);
        hops.push(Hop {
            at: HopId::Node { identity: advert.identity, id: key.node, tag },
            ingress: interface(at.checked_sub(1).and_then(|before| nodes.get(before))),
            egress: interface(nodes.get(at + 1)),
        });
    }
    Ok(Path::icing(hops, expiry, mtu)?.with_labels(labels.of_path(nodes))?)
}
