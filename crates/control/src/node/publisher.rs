//! A node's advert: made anew ahead of its end and when something changed, durable before it is sent, sent until each server has it.

use std::collections::BTreeMap;
use std::time::Duration;

use wayleave_core::{IdentityKey, Instant, Now};
use wayleave_crypto::secret::Seed;
use wayleave_crypto::sign::SigningKey;
use wayleave_crypto::signed::Signed;
use wayleave_packet::icing::header::Version;
use wayleave_packet::icing::mint::{EpochKey, NodeSecret};

use crate::advert::{
    Advert, Endpoint, Extension, Link, MAX_EPOCH, MAX_LIFETIME, MAX_LINKS, MAX_TAGS, MIN_MTU, PACKETS_EXTENSION,
    TLS_EXTENSION, TagOffer,
};
use crate::database::Refusal;
use crate::frames::{Body, Frame};
use crate::realm::{self, Membership, Server};

/// The first request number of registrations; those of other clients of one link are below.
pub(super) const REQUESTS: u32 = 1 << 31;
/// Two adverts are at least this far apart: servers take two a second.
const LEAST: Duration = Duration::from_secs(1);
/// A server that has not answered by then is sent the advert again.
const REPEAT: Duration = Duration::from_secs(5);
/// After a refusal that time may mend.
const SOON: Duration = Duration::from_secs(1);
/// After a refusal that somebody has to mend.
const LATE: Duration = Duration::from_secs(30);
/// A server that finds every advert out of time has this node make another after 30 s times two to this power at most: over an hour, in
/// which others have long made it do so.
const MOST_DOUBTS: u8 = 7;
/// What a server says of a higher number of ours is believed up to here, which no clock comes near: otherwise one could have a node use up
/// its numbers, and be refused by all others for ever.
const BELIEVED: u64 = u64::MAX / 2;
/// A node ID is used so many seconds beyond its epoch at most: paths of a moment ago have it still.
const MAX_OVERLAP: u32 = 3_600;
/// Seconds of an epoch at least.
pub const MIN_EPOCH: u32 = 4;

/// What a node tells of itself besides its IDs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Profile {
    /// Octets of the longest ICING packet that it takes.
    pub mtu: u16,
    /// Without any, a node that is not open departs.
    pub links: Vec<Link>,
    /// Where members that it does not list begin sessions, if it is open.
    pub open: Option<Endpoint>,
    /// Where neighbours begin sessions over TLS, if they can.
    pub tls: Option<Endpoint>,
    pub tags: Vec<TagOffer>,
    /// Who consents for it.
    pub consent: Option<Server>,
}

impl Default for Profile {
    fn default() -> Self {
        Self { mtu: MIN_MTU, links: Vec::new(), open: None, tls: None, tags: Vec::new(), consent: None }
    }
}

/// What every data plane of this program reads.
fn packets_extension() -> Extension {
    Extension { kind: PACKETS_EXTENSION, value: vec![Version::Standard as u8, Version::Sealed as u8] }
}

fn tls_extension(endpoint: &Endpoint) -> Extension {
    Extension { kind: TLS_EXTENSION, value: endpoint.as_str().as_bytes().to_vec() }
}

/// A node's own ID of one epoch, as it is published, with its secret.
#[derive(Clone, Debug)]
pub struct OwnId {
    pub key: EpochKey,
    pub signed: [u8; EpochKey::LENGTH],
    pub secret: NodeSecret,
}

/// What a publisher needs to know.
pub struct PublisherConfig {
    pub identity: SigningKey,
    pub membership: Signed<Membership>,
    /// From which the node's IDs follow, one for each epoch; a server that forwards nothing has none, and departs.
    pub ids: Option<Seed>,
    /// Seconds of an epoch, [`MIN_EPOCH`] to half of [`MAX_EPOCH`].
    pub epoch: u32,
    /// Minutes that an advert lasts, 1 to [`MAX_LIFETIME`].
    pub lifetime: u8,
    /// The own advert that was stored last.
    pub last: Option<Signed<Advert>>,
}

/// What one server has.
#[derive(Default)]
struct Registration {
    /// Whether a link is up.
    is_up: bool,
    /// The highest sequence that it has.
    has: u64,
    /// When it is sent the advert again.
    again: Option<Instant>,
    /// How many adverts in a row were made because it found the one before out of time.
    doubts: u8,
}

/// What a publisher asks for.
pub(super) enum Wish {
    /// Store this, then call [`Publisher::persisted`].
    Persist(Box<Signed<Advert>>),
    Send {
        to: IdentityKey,
        octets: Vec<u8>,
    },
    /// The IDs in use have changed.
    Ids(Vec<OwnId>),
}

/// What became of an answer.
pub(super) enum Outcome {
    /// The server has this sequence.
    Registered(u64),
    Refused(Refusal),
    /// It is no answer to a registration.
    None,
}

/// Keeps the servers' copies of the node's advert fresh.
pub(super) struct Publisher {
    config: PublisherConfig,
    profile: Profile,
    /// What is durable and published.
    current: Option<Signed<Advert>>,
    /// What is being stored.
    pending: Option<Signed<Advert>>,
    /// The highest sequence that was ever used, by what is known.
    sequence: u64,
    servers: BTreeMap<IdentityKey, Registration>,
    ids: Vec<OwnId>,
    /// When the advert is made again, at the latest.
    due: Instant,
    /// When one may be made again.
    not_before: Instant,
    is_changed: bool,
}

impl Publisher {
    pub(super) fn new(mut config: PublisherConfig, servers: &[Server]) -> Self {
        config.epoch = config.epoch.clamp(MIN_EPOCH, MAX_EPOCH / 2);
        config.lifetime = config.lifetime.clamp(1, MAX_LIFETIME);
        let sequence = config.last.as_ref().map_or(0, |last| last.object().sequence);
        Self {
            config,
            profile: Profile::default(),
            current: None,
            pending: None,
            sequence,
            servers: servers.iter().map(|server| (server.identity, Registration::default())).collect(),
            ids: Vec::new(),
            due: Instant(0),
            not_before: Instant(0),
            is_changed: true,
        }
    }

    pub(super) fn membership(&self) -> &Signed<Membership> {
        &self.config.membership
    }

    /// Takes a later membership, with which the advert is published anew; says whether it was one.
    pub(super) fn set_membership(&mut self, membership: Signed<Membership>) -> bool {
        let (before, next) = (self.config.membership.object(), membership.object());
        let is_later = next.identity == before.identity
            && next.realm == before.realm
            && next.number > before.number
            && realm::verify(&membership, &before.realm).is_ok();
        if is_later {
            self.config.membership = membership;
            self.is_changed = true;
        }
        is_later
    }

    pub(super) fn ids(&self) -> &[OwnId] {
        &self.ids
    }

    /// The sequence that is durable, and the servers that have it.
    pub(super) fn state(&self) -> (u64, usize) {
        let sequence = self.current.as_ref().map_or(0, |advert| advert.object().sequence);
        (sequence, self.servers.values().filter(|server| sequence > 0 && server.has >= sequence).count())
    }

    pub(super) fn set_profile(&mut self, mut profile: Profile) {
        if self.config.ids.is_none() {
            profile.links.clear();
            profile.open = None;
        }
        profile.links.sort();
        profile.links.truncate(MAX_LINKS);
        profile.tags.sort();
        profile.tags.truncate(MAX_TAGS);
        profile.mtu = profile.mtu.max(MIN_MTU);
        self.is_changed |= profile != self.profile;
        self.profile = profile;
    }

    pub(super) fn links(&self) -> &[Link] {
        &self.profile.links
    }

    pub(super) fn connected(&mut self, server: IdentityKey, now: Now) {
        if let Some(registration) = self.servers.get_mut(&server) {
            registration.is_up = true;
            // It may have lost what it had.
            registration.has = 0;
            registration.again = Some(now.instant);
        }
    }

    pub(super) fn disconnected(&mut self, server: IdentityKey) {
        if let Some(registration) = self.servers.get_mut(&server) {
            registration.is_up = false;
        }
    }

    pub(super) fn answer(&mut self, from: IdentityKey, frame: &Frame, now: Now) -> Outcome {
        let sequence = self.current.as_ref().map_or(0, |own| own.object().sequence);
        let Some(registration) = self.servers.get_mut(&from) else { return Outcome::None };
        // A server that cannot read our advert does not know the number of the registration either: it is of another version.
        let is_unread = matches!(frame.body, Body::Refused(Refusal::Malformed))
            && frame.request == 0
            && registration.is_up
            && registration.has < sequence;
        if frame.request < REQUESTS && !is_unread {
            return Outcome::None;
        }
        match &frame.body {
            Body::Registered { number } => {
                registration.has = registration.has.max(*number);
                registration.doubts = 0;
                if (1..=registration.has).contains(&sequence) {
                    registration.again = None;
                }
                Outcome::Registered(*number)
            }
            Body::Refused(refusal) => {
                let unix = now.unix.secs();
                // One of the clocks is wrong. A new advert may do; one that was just made would not, and where the last ones did not, the
                // server's clock is wrong, or it lies.
                let pause = LATE.as_secs() << registration.doubts;
                let is_old = |advert: &Signed<Advert>| advert.object().issued + pause <= unix;
                let is_out_of_time = matches!(refusal, Refusal::Expired | Refusal::Future);
                let is_mended = is_out_of_time && self.current.as_ref().is_some_and(is_old);
                self.is_changed |= is_mended;
                if is_mended {
                    registration.doubts = (registration.doubts + 1).min(MOST_DOUBTS);
                }
                let is_unbelievable = matches!(refusal, Refusal::Older(number) if *number > BELIEVED);
                let is_temporary = matches!(
                    refusal,
                    Refusal::Recovering | Refusal::Busy | Refusal::TooOften | Refusal::Older(_) | Refusal::Full
                ) && !is_unbelievable
                    || is_mended;
                registration.again = Some(now.instant + if is_temporary { SOON } else { LATE });
                match refusal {
                    // Our store was lost, or a copy of it is older: we go on above what others know.
                    Refusal::Older(number) if !is_unbelievable => {
                        self.sequence = self.sequence.max(*number);
                        self.is_changed = true;
                    }
                    Refusal::Conflict => self.is_changed = true,
                    _ => {}
                }
                Outcome::Refused(*refusal)
            }
            _ => Outcome::None,
        }
    }

    pub(super) fn persisted(&mut self, now: Now) {
        self.current = self.pending.take().or(self.current.take());
        for registration in self.servers.values_mut() {
            registration.again = Some(now.instant);
        }
    }

    /// The IDs of the epochs around `unix`: the previous, the current and the next one.
    fn ids_at(&self, unix: u64) -> Vec<OwnId> {
        let Some(seed) = &self.config.ids else { return Vec::new() };
        let length = self.config.epoch;
        let epoch = (unix / u64::from(length)) as u32;
        let (overlap, ahead) = (length.min(MAX_OVERLAP), (length / 4).min(120));
        let own = |epoch: u32| {
            let known = self.ids.iter().find(|id| id.key.epoch == epoch).cloned();
            known.unwrap_or_else(|| {
                let secret = NodeSecret::derive(seed, epoch);
                let begin = epoch.saturating_mul(length);
                let not_before = begin.saturating_sub(ahead);
                let not_after = begin.saturating_add(length - 1).saturating_add(overlap);
                let key = EpochKey { epoch, not_before, not_after, node: secret.id() };
                OwnId { key, signed: key.sign(&self.config.identity), secret }
            })
        };
        (epoch.saturating_sub(1)..=epoch.saturating_add(1)).map(own).collect()
    }

    /// By the wall clock, by which others judge it, half of the advert's time is over, or it is of the future: the clock was set, or the
    /// machine slept.
    fn is_out_of_time(&self, unix: u64) -> bool {
        let advert = self.pending.as_ref().or(self.current.as_ref()).map(Signed::object);
        advert.is_some_and(|advert| !(advert.issued..advert.issued + self.half().as_secs()).contains(&unix))
    }

    /// Half of the time that an advert lasts.
    fn half(&self) -> Duration {
        Duration::from_secs(30 * u64::from(self.config.lifetime))
    }

    /// What is to be done now.
    pub(super) fn work(&mut self, now: Now) -> Vec<Wish> {
        let mut wishes = Vec::new();
        let unix = now.unix.secs();
        // Before the advert, which is made of these IDs; and the wish for them first, so that the node knows their secrets by then.
        let ids = self.ids_at(unix);
        if ids.iter().map(|id| id.key).ne(self.ids.iter().map(|id| id.key)) {
            wishes.push(Wish::Ids(ids.clone()));
            self.ids = ids;
            self.is_changed = true;
        }
        let is_changed = self.is_changed || self.is_out_of_time(unix);
        if self.pending.is_none() && (is_changed && self.not_before <= now.instant || self.due <= now.instant) {
            wishes.extend(self.renew(now).map(Box::new).map(Wish::Persist));
        }
        if let Some(advert) = self.current.as_ref().filter(|advert| advert.object().expires() >= unix) {
            let sequence = advert.object().sequence;
            for (server, registration) in &mut self.servers {
                let is_due = registration.again.is_some_and(|at| at <= now.instant);
                if !registration.is_up || !is_due || registration.has >= sequence {
                    continue;
                }
                registration.again = Some(now.instant + REPEAT);
                let request = REQUESTS | (sequence as u32 & (REQUESTS - 1));
                let body = Body::Register { membership: self.config.membership.clone(), advert: advert.clone() };
                wishes.push(Wish::Send { to: *server, octets: Frame { request, body }.encode() });
            }
        }
        wishes
    }

    fn renew(&mut self, now: Now) -> Option<Signed<Advert>> {
        let unix = now.unix.secs();
        let membership = self.config.membership.object();
        let advert = Advert {
            realm: membership.realm,
            identity: membership.identity,
            // At least the time, so that a node that lost its store seldom has to ask what it used.
            sequence: self.sequence.saturating_add(1).max(unix),
            issued: unix,
            lifetime: self.config.lifetime,
            mtu: self.profile.mtu,
            ids: self.ids.iter().skip(1).map(|id| id.signed).collect(),
            links: self.profile.links.clone(),
            tags: self.profile.tags.clone(),
            consent: self.profile.consent.clone(),
            open: self.profile.open.clone(),
            extensions: self.profile.tls.iter().map(tls_extension).chain([packets_extension()]).collect(),
        };
        self.not_before = now.instant + LEAST;
        self.due = now.instant + self.half();
        self.is_changed = false;
        let signed = Signed::sign(&advert, &self.config.identity).ok()?;
        self.sequence = advert.sequence;
        self.pending = Some(signed.clone());
        Some(signed)
    }

    pub(super) fn deadline(&self, now: Now) -> Option<Instant> {
        let epoch = u64::from(self.config.epoch);
        let unix = now.unix.secs();
        let rolls = now.instant + Duration::from_secs((unix / epoch + 1) * epoch - unix);
        let due = if self.is_changed { self.not_before } else { self.due };
        let renewal = self.pending.is_none().then_some(due);
        // One that has expired is sent to nobody.
        let current = self.current.as_ref().filter(|advert| advert.object().expires() >= unix);
        let sequence = current.map(|advert| advert.object().sequence);
        let servers =
            self.servers.values().filter(|server| server.is_up && sequence.is_some_and(|own| server.has < own));
        let repeats = servers.filter_map(|server| server.again);
        repeats.chain(renewal).chain([rolls]).min()
    }
}
