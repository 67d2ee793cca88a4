//! Files of Platypus capabilities, for stamping by a principal or the holder of a delegation: one secret for each key
//! epoch.

use std::net::IpAddr;
use std::path::Path;

use serde::{Deserialize, Serialize};
use wayleave_control::capability::{Credential, PREFIX, Terms};
use wayleave_core::{Afi, Prefix, UnixTime};
use wayleave_crypto::secret::Key128;
use wayleave_packet::platypus::header::{
    Capability, Delegation, DelegationId, Interval, Marks, Principal, SubDelegation, Width,
};
use wayleave_packet::platypus::mint::{
    DelegateError, DelegatedSecret, Hop, StampKey, TemporalSecret, WaypointKey, epoch,
};
use zeroize::Zeroizing;

use crate::failure::{Failure, Outcome};
use crate::key_files::forwarding::{ForwardingKeys, read_secret};
use crate::key_files::private;

/// The role in a file's header.
pub const ROLE: &str = "capability";
/// Largest number of key epochs in a file.
pub const MOST_EPOCHS: u32 = 4_096;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CapabilityFile {
    role: String,
    waypoint: IpAddr,
    principal: u32,
    /// Binary logarithm of a key epoch's length in seconds.
    interval: u8,
    /// Whether bindings have 64 bits.
    #[serde(default)]
    narrow: bool,
    delegation: Option<DelegationLine>,
    secret: Vec<SecretLine>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DelegationLine {
    prefix: Prefix,
    id: u32,
    sub: Option<SubLine>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SubLine {
    at: u8,
    id: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SecretLine {
    epoch: u32,
    /// Whether routers must know from where the principal may send.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    bound: bool,
    secret: Zeroizing<String>,
}

/// A capability at one waypoint in several key epochs.
#[derive(Clone)]
pub struct Capabilities {
    pub waypoint: IpAddr,
    pub principal: Principal,
    pub interval: Interval,
    pub width: Width,
    pub delegation: Option<Delegation>,
    /// In ascending order of epochs, with the marks from which they were made.
    secrets: Vec<(u32, Marks, Key128)>,
}

impl Capabilities {
    /// Creates capabilities for `epochs` key epochs, from the one at `now` on, from the keys of a waypoint.
    pub fn mint(
        keys: &ForwardingKeys,
        (waypoint, principal, interval, width): (IpAddr, Principal, Interval, Width),
        epochs: u32,
        now: UnixTime,
    ) -> Self {
        let first = epoch::epoch_at(interval, now);
        let secret = |epoch| {
            let key = WaypointKey::new(&Key128::new(*keys.at(epoch::epoch_begin(interval, epoch))));
            (epoch, Marks::default(), Key128::new(*key.secret(waypoint, principal, interval, epoch).expose()))
        };
        let secrets = (first..first.saturating_add(epochs)).map(secret).collect();
        Self { waypoint, principal, interval, width, delegation: None, secrets }
    }

    /// Capabilities whose secrets a key server gave, in ascending order of epochs; at least one.
    pub fn of_secrets(
        (waypoint, principal, interval, width): (IpAddr, Principal, Interval, Width),
        delegation: Option<Delegation>,
        secrets: Vec<(u32, Marks, Key128)>,
    ) -> Self {
        Self { waypoint, principal, interval, width, delegation, secrets }
    }

    /// Capabilities of a line with the secrets that were looked up so far; without any, no waypoint accepts it.
    pub fn of_line(credential: &Credential, secrets: &[(u32, Marks, Key128)]) -> Self {
        let Terms { waypoint, principal, interval, width, delegation } = credential.terms;
        let secrets = match secrets {
            // Of the first key epoch of all, in 1970: a stamper leaves packets alone, as with any that has ended.
            [] => vec![(0, Marks::default(), Key128::new([0; 16]))],
            secrets => secrets.to_vec(),
        };
        Self::of_secrets((waypoint, principal, interval, width), delegation, secrets)
    }

    /// A delegation for destinations in `prefix`, with the number `id`. Narrowing an existing delegation needs no number.
    pub fn delegate(&self, prefix: Prefix, id: Option<DelegationId>) -> Result<Self, Failure> {
        let refused = |error: DelegateError| Failure::usage(error);
        let mut delegation = None;
        let mut secrets = Vec::with_capacity(self.secrets.len());
        for (epoch, marks, key) in &self.secrets {
            let next = match (self.delegation, id) {
                (None, None) => {
                    return Err(
                        Failure::usage("the delegation has no number").help("add --id, by which it can be revoked")
                    );
                }
                (None, Some(id)) => TemporalSecret::new(key.clone(), self.afi()).delegate(id, prefix),
                (Some(existing), None) => DelegatedSecret::new(key.clone(), existing).narrow(prefix),
                (Some(existing), Some(id)) => {
                    DelegatedSecret::new(key.clone(), existing).hand_on(id).and_then(|next| next.narrow(prefix))
                }
            };
            let next = next.map_err(refused)?;
            delegation = Some(next.delegation());
            secrets.push((*epoch, *marks, Key128::new(*next.expose())));
        }
        Ok(Self { delegation, secrets, ..*self })
    }

    /// The stamping key for the key epoch at `now`, or for the next or previous one, which waypoints accept too, if the file
    /// lacks it.
    pub fn hop(&self, now: UnixTime) -> Option<Hop> {
        let (epoch, marks, key) = self.held(now)?;
        Some(Hop { capability: self.capability(*epoch, *marks), key: self.stamp_key(key) })
    }

    /// The same for replies of `server` alone, with a capability that is delegated.
    pub fn reply_hop(&self, now: UnixTime, server: IpAddr) -> Option<Hop> {
        let ((epoch, marks, key), delegation) = self.held(now).zip(self.delegation)?;
        let key = DelegatedSecret::new(key.clone(), delegation).reply_key(server);
        Some(Hop { capability: self.capability(*epoch, marks.with_reply()), key })
    }

    /// What is used at `now`.
    fn held(&self, now: UnixTime) -> Option<&(u32, Marks, Key128)> {
        let chosen = epoch::to_stamp_with(self.interval, self.secrets.iter().map(|(of, ..)| *of), now)?;
        self.secrets.iter().find(|(of, ..)| *of == chosen)
    }

    /// The stamping key, or that of the first epoch if none is accepted now.
    pub fn hop_or_first(&self, now: UnixTime) -> Hop {
        // A file has at least one epoch.
        let (epoch, marks, key) = self.held(now).unwrap_or(&self.secrets[0]);
        Hop { capability: self.capability(*epoch, *marks), key: self.stamp_key(key) }
    }

    fn stamp_key(&self, key: &Key128) -> StampKey {
        match self.delegation {
            None => TemporalSecret::new(key.clone(), self.afi()).stamp_key(),
            Some(delegation) => DelegatedSecret::new(key.clone(), delegation).stamp_key(),
        }
    }

    /// The family of the waypoint, and so of packets.
    pub fn afi(&self) -> Afi {
        if self.waypoint.is_ipv4() { Afi::Ipv4 } else { Afi::Ipv6 }
    }

    /// The first and the last key epoch.
    pub fn epochs(&self) -> (u32, u32) {
        let ends = self.secrets.first().zip(self.secrets.last());
        ends.map_or((0, 0), |((first, ..), (last, ..))| (*first, *last))
    }

    /// The Unix second from which no waypoint accepts any of them.
    pub fn end(&self) -> u64 {
        let (_, last) = self.epochs();
        (u64::from(last) + 1 + epoch::ADJACENT_EPOCHS) << self.interval.exponent()
    }

    /// Reads a file, which must be readable by its owner alone.
    pub fn load(path: &Path) -> Result<Self, Failure> {
        Self::parse(&private::read(path)?, &path.display().to_string())
    }

    /// Reads the content of the file `name`.
    pub fn parse(text: &str, name: &str) -> Result<Self, Failure> {
        // The parser's message would quote the line, which is secret.
        let refused = |what: &str| Failure::new(format!("{name} {what}"));
        if text.trim_start().starts_with(PREFIX) {
            return Err(refused("is the line of a capability, not a file with its secrets").help(
                "`wayleave cap lookup --line LINE --out FILE` makes one; routes of `run stamper` take the line itself",
            ));
        }
        let file: CapabilityFile = toml::from_str(text).map_err(|_| refused("is not a file of capabilities"))?;
        if file.role != ROLE {
            return Err(refused(&format!("has keys for `{}`, not for `{ROLE}`", file.role)));
        }
        Self::from_file(&file).ok_or_else(|| refused("is a damaged file of capabilities"))
    }

    fn from_file(file: &CapabilityFile) -> Option<Self> {
        let sub = |line: &SubLine| Some(SubDelegation { at: line.at, id: DelegationId::new(line.id)? });
        let delegation = match &file.delegation {
            None => None,
            Some(line) => Some(Delegation {
                prefix: line.prefix,
                id: DelegationId::new(line.id)?,
                sub: match &line.sub {
                    None => None,
                    Some(line) => Some(sub(line)?),
                },
            }),
        };
        let mut secrets = Vec::with_capacity(file.secret.len());
        for line in &file.secret {
            let marks = if line.bound { Marks::BOUND } else { Marks::default() };
            secrets.push((line.epoch, marks, Key128::new(read_secret(&line.secret)?)));
        }
        let all = Self {
            waypoint: file.waypoint,
            principal: Principal::new(file.principal)?,
            interval: Interval::new(file.interval)?,
            width: if file.narrow { Width::Narrow } else { Width::Full },
            delegation,
            secrets,
        };
        let is_sound = all.epochs().1 <= Marks::EPOCH
            && all.secrets.is_sorted_by(|a, b| a.0 < b.0)
            && (1..=MOST_EPOCHS as usize).contains(&all.secrets.len());
        (is_sound && all.capability(all.epochs().0, Marks::default()).is_consistent()).then_some(all)
    }

    fn capability(&self, epoch: u32, marks: Marks) -> Capability {
        Capability {
            waypoint: self.waypoint,
            principal: self.principal,
            interval: self.interval,
            epoch,
            marks,
            delegation: self.delegation,
            width: self.width,
        }
    }

    /// Writes or replaces a file that only its owner can read.
    pub fn save(&self, path: &Path, replace: bool) -> Outcome {
        let text = self.text().map_err(|error| Failure::new(format!("{}: {error}", path.display())))?;
        if replace { private::replace(path, &text) } else { private::create(path, &text) }
    }

    fn text(&self) -> Result<Zeroizing<String>, toml::ser::Error> {
        let secret = |(epoch, marks, key): &(u32, Marks, Key128)| SecretLine {
            epoch: *epoch,
            bound: marks.is_bound(),
            secret: Zeroizing::new(format!("{:032x}", u128::from_be_bytes(*key.expose()))),
        };
        let line = |delegation: Delegation| DelegationLine {
            prefix: delegation.prefix,
            id: delegation.id.number(),
            sub: delegation.sub.map(|sub| SubLine { at: sub.at, id: sub.id.number() }),
        };
        let file = CapabilityFile {
            role: ROLE.to_owned(),
            waypoint: self.waypoint,
            principal: self.principal.number(),
            interval: self.interval.exponent(),
            narrow: self.width == Width::Narrow,
            delegation: self.delegation.map(line),
            secret: self.secrets.iter().map(secret).collect(),
        };
        toml::to_string(&file).map(Zeroizing::new)
    }
}

#[cfg(test)]
mod tests {
    use wayleave_packet::platypus::mint::WaypointKeys;

    use super::*;
    use crate::key_files::forwarding::FormatName;

    const SECOND: u64 = 1_800_000_000;

    fn minted(epochs: u32) -> (ForwardingKeys, Capabilities) {
        let keys = ForwardingKeys::generate(FormatName::Platypus).expect("randomness");
        let interval = Interval::new(12).expect("in range");
        let waypoint = "198.51.100.1".parse().expect("an address");
        let principal = Principal::new(7).expect("24 bits");
        let of = (waypoint, principal, interval, Width::Full);
        let minted = Capabilities::mint(&keys, of, epochs, UnixTime(SECOND * 1_000_000));
        (keys, minted)
    }

    fn prefix(text: &str) -> Prefix {
        text.parse().expect("a prefix")
    }

    #[test]
    fn what_is_minted_and_handed_on_stamps_as_the_waypoint_verifies() {
        let (keys, minted) = minted(3);
        let id = |id| DelegationId::new(id);
        let delegated = minted.delegate(prefix("203.0.0.0/8"), id(3)).expect("delegated");
        let handed_on = delegated.delegate(prefix("203.0.112.0/20"), id(9)).expect("handed on");
        let narrower = handed_on.delegate(prefix("203.0.113.0/24"), None).expect("narrower");
        let waypoint = WaypointKeys::new(WaypointKey::new(&Key128::new(*keys.at(0))));
        for capabilities in [&minted, &delegated, &handed_on, &narrower] {
            for epochs in 0..3 {
                let hop = capabilities.hop(UnixTime((SECOND + epochs * 4_096) * 1_000_000)).expect("accepted");
                assert_eq!(waypoint.stamp_key(&hop.capability).expect("a key"), hop.key);
            }
        }
        let delegation = narrower.delegation.expect("delegated");
        assert_eq!((delegation.prefix, delegation.sub.map(|sub| sub.at)), (prefix("203.0.113.0/24"), Some(8)));
        assert!(delegated.delegate(prefix("192.0.2.0/24"), None).is_err(), "outside");
        assert!(narrower.delegate(prefix("203.0.113.0/25"), id(1)).is_err(), "handed on twice");
        assert!(minted.delegate(prefix("203.0.0.0/8"), None).is_err(), "without a number");
    }

    /// A secret that is bound stays so in what is delegated from it, and in the file.
    #[test]
    fn bound_secrets_are_written_and_read_as_such_and_stamp_as_the_waypoint_verifies() {
        let (keys, minted) = minted(2);
        let waypoint = WaypointKeys::new(WaypointKey::new(&Key128::new(*keys.at(0))));
        let key = WaypointKey::new(&Key128::new(*keys.at(0)));
        let of = (minted.waypoint, minted.principal, minted.interval, minted.width);
        let bound = |epoch: u32| {
            let capability = minted.capability(epoch, Marks::BOUND);
            let secret = key.secret(minted.waypoint, minted.principal, minted.interval, capability.secret_epoch());
            (epoch, Marks::BOUND, Key128::new(*secret.expose()))
        };
        let (first, last) = minted.epochs();
        // The first was obtained before the principal had sources.
        let held = Capabilities::of_secrets(of, None, vec![minted.secrets[0].clone(), bound(last)]);
        let delegated = held.delegate(prefix("203.0.113.9/32"), DelegationId::new(3)).expect("delegated");
        let server = "192.0.2.1".parse().expect("an address");
        for (epoch, marks) in [(first, Marks::NONE), (last, Marks::BOUND)] {
            let now = UnixTime(epoch::epoch_begin(minted.interval, epoch) * 1_000_000);
            for capabilities in [&held, &delegated] {
                let Hop { capability, key } = capabilities.hop(now).expect("accepted");
                assert_eq!((capability.epoch, capability.marks), (epoch, marks));
                assert_eq!(waypoint.stamp_key(&capability), Some(key));
            }
            let Hop { capability, key } = delegated.reply_hop(now, server).expect("delegated");
            assert_eq!(capability.marks, marks.with_reply());
            assert_eq!(waypoint.stamp_key_from(&capability, server), Some(key));
            assert!(held.reply_hop(now, server).is_none());
        }
        let text = delegated.text().expect("it can be written");
        assert_eq!(text.matches("bound = true").count(), 1, "no word of it where there is none");
        let read = Capabilities::parse(&text, "a file").expect("it can be read");
        assert_eq!(
            read.secrets.iter().map(|(epoch, marks, _)| (*epoch, *marks)).collect::<Vec<_>>(),
            [(first, Marks::NONE), (last, Marks::BOUND)]
        );
    }

    #[test]
    fn a_capability_is_taken_for_as_long_as_a_waypoint_accepts_it() {
        let (_, minted) = minted(2);
        let hop = |second: u64| minted.hop(UnixTime(second * 1_000_000)).map(|hop| hop.capability.epoch);
        let first = SECOND >> 12;
        assert_eq!(minted.epochs(), (first as u32, first as u32 + 1));
        assert_eq!(hop((first - 1) << 12), Some(first as u32), "the next one");
        assert_eq!(hop(((first - 1) << 12) - 1), None);
        assert_eq!(hop((first + 1) << 12), Some(first as u32 + 1));
        assert_eq!(hop(minted.end() - 1), Some(first as u32 + 1), "the previous one");
        assert_eq!(hop(minted.end()), None);
    }
}
