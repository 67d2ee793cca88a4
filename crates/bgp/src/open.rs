//! OPEN and its capabilities (RFC 4271 section 4.2, RFC 5492, RFC 9072).

use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};
use wayleave_core::{Afi, Asn};

use crate::notification::{code, open};
use crate::{MessageError, Notification};

/// Which way path identifiers may go (RFC 7911 section 4), seen from the sender of the capability.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub enum AddPathMode {
    /// 1: it can receive them.
    Receive,
    /// 2: it can send them.
    Send,
    /// 3: both.
    Both,
    /// Any other value, to be ignored.
    Other(u8),
}

/// One family of an ADD-PATH capability.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub struct AddPathEntry {
    pub afi: u16,
    pub safi: u8,
    pub mode: AddPathMode,
}

/// One family of a graceful restart capability (RFC 4724 section 3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub struct GracefulRestartFamily {
    pub afi: u16,
    pub safi: u8,
    /// Bit 0x80: forwarding state was kept.
    pub flags: u8,
}

/// One family of a long-lived graceful restart capability (RFC 9494 section 3.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub struct LongLivedFamily {
    pub afi: u16,
    pub safi: u8,
    /// Bit 0x80: forwarding state was kept.
    pub flags: u8,
    /// Seconds, in three octets.
    pub stale_time: u32,
}

/// One capability of an OPEN.
#[derive(Clone, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub enum Capability {
    /// Code 1 (RFC 4760).
    Multiprotocol { afi: u16, safi: u8 },
    /// Code 2 (RFC 2918).
    RouteRefresh,
    /// Code 6 (RFC 8654).
    ExtendedMessage,
    /// Code 9 (RFC 9234): 0 provider, 1 route server, 2 its client, 3 customer, 4 peer.
    Role(u8),
    /// Code 64 (RFC 4724).
    GracefulRestart {
        /// The upper four bits: 8 restarted, 4 notifications too (RFC 8538 section 2).
        flags: u8,
        /// Seconds, 0 to 4,095.
        restart_time: u16,
        /// The families whose routes survive.
        families: Vec<GracefulRestartFamily>,
    },
    /// Code 65 (RFC 6793).
    FourOctetAs(Asn),
    /// Code 69 (RFC 7911).
    AddPath(Vec<AddPathEntry>),
    /// Code 70 (RFC 7313).
    EnhancedRouteRefresh,
    /// Code 71 (RFC 9494). Without families it says only that stale routes are understood.
    LongLivedGracefulRestart(Vec<LongLivedFamily>),
    /// Any other, kept as it came.
    Unknown {
        code: u8,
        /// Its value, at most 255 octets.
        value: Vec<u8>,
    },
}

/// The version of BGP.
const VERSION: u8 = 4;
/// The type of the parameter that holds capabilities.
const CAPABILITIES: u8 = 2;
/// Length and type that announce the extended form (RFC 9072 section 2).
const EXTENDED: u8 = 255;
/// An OPEN has at most 4,096 octets: 19 of header, 10 fixed, 3 of extended length, 3 of the parameter.
const MAX_CAPABILITIES_LEN: usize = 4_096 - 19 - 10 - 3 - 3;

fn unspecific() -> Notification {
    Notification::new(code::OPEN, open::UNSPECIFIC)
}

/// The capabilities of all optional parameters, from the octet of their length on.
fn decode_parameters(octets: &[u8]) -> Result<Vec<Capability>, Notification> {
    let (&length, rest) = octets.split_first().ok_or_else(unspecific)?;
    let is_extended = length == EXTENDED && rest.first() == Some(&EXTENDED);
    let (length, mut rest) = match rest {
        [_, a, b, rest @ ..] if is_extended => (usize::from(u16::from_be_bytes([*a, *b])), rest),
        rest => (usize::from(length), rest),
    };
    if length != rest.len() {
        return Err(unspecific());
    }
    let mut capabilities = Vec::new();
    while !rest.is_empty() {
        let (kind, length, after) = match *rest {
            [kind, a, b, ref after @ ..] if is_extended => (kind, usize::from(u16::from_be_bytes([a, b])), after),
            [kind, length, ref after @ ..] if !is_extended => (kind, usize::from(length), after),
            _ => return Err(unspecific()),
        };
        let (mut value, after) = after.split_at_checked(length).ok_or_else(unspecific)?;
        if kind != CAPABILITIES {
            return Err(Notification::new(code::OPEN, open::UNSUPPORTED_PARAMETER));
        }
        while !value.is_empty() {
            let (capability, beyond) = Capability::decode(value).ok_or_else(unspecific)?;
            capabilities.push(capability);
            value = beyond;
        }
        rest = after;
    }
    Ok(capabilities)
}

impl AddPathMode {
    fn octet(self) -> u8 {
        match self {
            AddPathMode::Receive => 1,
            AddPathMode::Send => 2,
            AddPathMode::Both => 3,
            AddPathMode::Other(octet) => octet,
        }
    }

    fn from_octet(octet: u8) -> Self {
        match octet {
            1 => AddPathMode::Receive,
            2 => AddPathMode::Send,
            3 => AddPathMode::Both,
            other => AddPathMode::Other(other),
        }
    }
}

impl Capability {
    /// Reads one capability and hands back the rest; `None` if it is cut short or its length contradicts its code.
    #[must_use]
    pub fn decode(octets: &[u8]) -> Option<(Self, &[u8])> {
        let &[code, length, ref rest @ ..] = octets else { return None };
        let (value, rest) = rest.split_at_checked(usize::from(length))?;
        let capability = match (code, value) {
            (1, &[a, b, _, safi]) => Capability::Multiprotocol { afi: u16::from_be_bytes([a, b]), safi },
            (2, []) => Capability::RouteRefresh,
            (6, []) => Capability::ExtendedMessage,
            (9, &[role]) => Capability::Role(role),
            (64, &[a, b, ref families @ ..]) => Capability::GracefulRestart {
                flags: a >> 4,
                restart_time: u16::from_be_bytes([a & 0x0f, b]),
                families: quads(families)?
                    .map(|[a, b, safi, flags]| GracefulRestartFamily { afi: u16::from_be_bytes([a, b]), safi, flags })
                    .collect(),
            },
            (65, &[a, b, c, d]) => Capability::FourOctetAs(Asn(u32::from_be_bytes([a, b, c, d]))),
            (69, entries) => Capability::AddPath(
                quads(entries)?
                    .map(|[a, b, safi, mode]| AddPathEntry {
                        afi: u16::from_be_bytes([a, b]),
                        safi,
                        mode: AddPathMode::from_octet(mode),
                    })
                    .collect(),
            ),
            (70, []) => Capability::EnhancedRouteRefresh,
            (71, families) if families.len() % 7 == 0 => Capability::LongLivedGracefulRestart(
                families.as_chunks::<7>().0.iter().map(|family| long_lived_family(*family)).collect(),
            ),
            (1 | 2 | 6 | 9 | 64 | 65 | 70, _) => return None,
            (code, value) => Capability::Unknown { code, value: value.to_vec() },
        };
        Some((capability, rest))
    }

    /// Appends the capability; what exceeds 255 octets of value is left out.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let (code, mut value) = self.to_raw();
        value.truncate(255);
        out.extend_from_slice(&[code, value.len() as u8]);
        out.extend_from_slice(&value);
    }

    /// Code and value.
    #[must_use]
    pub fn to_raw(&self) -> (u8, Vec<u8>) {
        match self {
            Capability::Multiprotocol { afi, safi } => {
                let [a, b] = afi.to_be_bytes();
                (1, vec![a, b, 0, *safi])
            }
            Capability::RouteRefresh => (2, Vec::new()),
            Capability::ExtendedMessage => (6, Vec::new()),
            Capability::Role(role) => (9, vec![*role]),
            Capability::GracefulRestart { flags, restart_time, families } => {
                let [a, b] = (u16::from(*flags) << 12 | restart_time & 0x0fff).to_be_bytes();
                let mut value = vec![a, b];
                for GracefulRestartFamily { afi, safi, flags } in families.iter().take(63) {
                    let [a, b] = afi.to_be_bytes();
                    value.extend_from_slice(&[a, b, *safi, *flags]);
                }
                (64, value)
            }
            Capability::FourOctetAs(asn) => (65, asn.0.to_be_bytes().to_vec()),
            Capability::AddPath(entries) => {
                let mut value = Vec::new();
                for AddPathEntry { afi, safi, mode } in entries.iter().take(63) {
                    let [a, b] = afi.to_be_bytes();
                    value.extend_from_slice(&[a, b, *safi, mode.octet()]);
                }
                (69, value)
            }
            Capability::EnhancedRouteRefresh => (70, Vec::new()),
            Capability::LongLivedGracefulRestart(families) => {
                let mut value = Vec::new();
                for LongLivedFamily { afi, safi, flags, stale_time } in families.iter().take(36) {
                    let ([a, b], [_, c, d, e]) = (afi.to_be_bytes(), stale_time.to_be_bytes());
                    value.extend_from_slice(&[a, b, *safi, *flags, c, d, e]);
                }
                (71, value)
            }
            Capability::Unknown { code, value } => (*code, value.clone()),
        }
    }

    /// Multiprotocol extensions for `afi` unicast.
    #[must_use]
    pub fn unicast(afi: Afi) -> Self {
        Capability::Multiprotocol { afi: afi.code(), safi: 1 }
    }
}

fn long_lived_family([a, b, safi, flags, c, d, e]: [u8; 7]) -> LongLivedFamily {
    let stale_time = u32::from_be_bytes([0, c, d, e]);
    LongLivedFamily { afi: u16::from_be_bytes([a, b]), safi, flags, stale_time }
}

/// Groups of four octets, if nothing is left over.
fn quads(octets: &[u8]) -> Option<impl Iterator<Item = [u8; 4]>> {
    let (quads, rest) = octets.as_chunks::<4>();
    rest.is_empty().then(|| quads.iter().copied())
}

/// An OPEN message.
#[derive(Clone, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub struct Open {
    /// The sender's AS: the one of the four-octet capability, if there is one, else of the two-octet field.
    pub asn: Asn,
    /// Seconds: 0, or at least 3.
    pub hold_time: u16,
    /// The sender's identifier, not zero (RFC 6286).
    pub identifier: Ipv4Addr,
    /// In wire order, repetitions included.
    pub capabilities: Vec<Capability>,
}

impl Open {
    /// Decodes the body of an OPEN, after its header (RFC 4271 section 6.2). The session checks
    /// whether the AS is the expected one.
    pub fn decode(body: &[u8]) -> Result<Self, MessageError> {
        let &[version, a, b, c, d, i, j, k, l, ref parameters @ ..] = body else { return Err(unspecific().into()) };
        if version != VERSION {
            return Err(Notification::with_data(code::OPEN, open::UNSUPPORTED_VERSION, [0, VERSION]).into());
        }
        let capabilities = decode_parameters(parameters)?;
        let narrow = Asn(u32::from(u16::from_be_bytes([a, b])));
        let wide = capabilities.iter().rev().find_map(|capability| match capability {
            Capability::FourOctetAs(asn) => Some(*asn),
            _ => None,
        });
        let opened = Open {
            asn: wide.unwrap_or(narrow),
            hold_time: u16::from_be_bytes([c, d]),
            identifier: Ipv4Addr::new(i, j, k, l),
            capabilities,
        };
        // RFC 7607 section 2.
        if opened.asn == Asn(0) || narrow == Asn(0) {
            return Err(Notification::new(code::OPEN, open::BAD_PEER_AS).into());
        }
        if matches!(opened.hold_time, 1 | 2) {
            return Err(Notification::new(code::OPEN, open::UNACCEPTABLE_HOLD_TIME).into());
        }
        // RFC 6286 section 2.2.
        if opened.identifier.is_unspecified() {
            return Err(Notification::new(code::OPEN, open::BAD_IDENTIFIER).into());
        }
        Ok(opened)
    }

    /// Appends the body, after the header: all capabilities in one parameter (RFC 5492 section 4), in the form of
    /// RFC 9072 if they exceed 253 octets. Capabilities beyond what an OPEN holds are left out, the last first.
    pub fn encode_body(&self, out: &mut Vec<u8>) {
        out.push(VERSION);
        out.extend_from_slice(&self.asn.two_octets().to_be_bytes());
        out.extend_from_slice(&self.hold_time.to_be_bytes());
        out.extend_from_slice(&self.identifier.octets());
        let mut capabilities = Vec::new();
        for capability in &self.capabilities {
            let before = capabilities.len();
            capability.encode(&mut capabilities);
            if capabilities.len() > MAX_CAPABILITIES_LEN {
                capabilities.truncate(before);
                break;
            }
        }
        match u8::try_from(capabilities.len()) {
            Ok(0) => out.push(0),
            Ok(length) if length <= 253 => out.extend_from_slice(&[length + 2, CAPABILITIES, length]),
            _ => {
                let length = capabilities.len() as u16; // at most MAX_CAPABILITIES_LEN
                let [a, b] = (length + 3).to_be_bytes();
                let [c, d] = length.to_be_bytes();
                out.extend_from_slice(&[EXTENDED, EXTENDED, a, b, CAPABILITIES, c, d]);
            }
        }
        out.extend_from_slice(&capabilities);
    }

    /// Whether the sender supports `afi` unicast: its OPEN lists it, or lists no family at all and `afi` is IPv4.
    #[must_use]
    pub fn has_family(&self, afi: Afi) -> bool {
        let mut families = self.capabilities.iter().filter_map(|capability| match capability {
            Capability::Multiprotocol { afi, safi } => Some((*afi, *safi)),
            _ => None,
        });
        match families.next() {
            None => afi == Afi::Ipv4,
            Some(first) => std::iter::once(first).chain(families).any(|family| family == (afi.code(), 1)),
        }
    }

    /// Whether the sender speaks four-octet AS numbers.
    #[must_use]
    pub fn has_four_octet_as(&self) -> bool {
        self.capabilities.iter().any(|capability| matches!(capability, Capability::FourOctetAs(_)))
    }

    /// Whether `capability` is among the sender's.
    #[must_use]
    pub fn has(&self, capability: &Capability) -> bool {
        self.capabilities.contains(capability)
    }

    /// Which way the sender takes path identifiers for `afi` unicast; the last entry counts (RFC 7911 section 4).
    #[must_use]
    pub fn add_path(&self, afi: Afi) -> Option<AddPathMode> {
        self.capabilities
            .iter()
            .filter_map(|capability| match capability {
                Capability::AddPath(entries) => Some(entries),
                _ => None,
            })
            .flatten()
            .rfind(|entry| (entry.afi, entry.safi) == (afi.code(), 1))
            .map(|entry| entry.mode)
    }
}
