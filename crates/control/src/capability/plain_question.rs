//! Look-ups in the shape that holders and resolvers send them, read in place: what else is a question takes the general decoder.
//!
//! One question of class IN and type TXT, whose name is the message of a look-up in front of the zone, and at most an OPT record
//! with at most a cookie and padding (RFC 1035, RFC 6891, RFC 7830, RFC 7873). Whatever is read here, the general decoder reads
//! alike; a test and a fuzz target compare both.

use super::dns::{COOKIE, HEADER, IN_CLASS, OPT, OPT_TYPE, OPTION, PADDING, TYPE_AND_CLASS};
use super::message::QUESTION_TYPE;
use super::name::{LookupName, RequestName};
use super::zone::Zone;

/// Flags that a query may have: recursion desired; authentic data and checking disabled (RFC 4035), which are not ours to answer.
const FLAGS: [u8; 2] = [0x01, 0x30];

/// A look-up.
pub(super) struct PlainQuestion<'a> {
    pub(super) id: u16,
    pub(super) recursion_desired: bool,
    /// The name as it was asked for, the root's label at its end.
    pub(super) wire: &'a [u8],
    pub(super) name: LookupName,
    /// The octets of an answer that the client takes, if it has an OPT record.
    pub(super) payload: Option<u16>,
    pub(super) cookie: Option<&'a [u8]>,
}

/// The OPT record at the end of a question.
struct Extension<'a> {
    payload: u16,
    cookie: Option<&'a [u8]>,
}

impl<'a> PlainQuestion<'a> {
    /// Reads a whole message; `None` if it has any other shape.
    pub(super) fn read(octets: &'a [u8], zone: &Zone) -> Option<Self> {
        let (header, rest) = octets.split_first_chunk::<HEADER>()?;
        let [high, low, first, second, counts @ .., additional] = *header;
        if first & !FLAGS[0] != 0 || second & !FLAGS[1] != 0 || counts != [0, 1, 0, 0, 0, 0, 0] || additional > 1 {
            return None;
        }
        let (wire, name, rest) = read_name(rest, zone)?;
        let (kind, rest) = rest.split_first_chunk::<TYPE_AND_CLASS>()?;
        if *kind != [0, u16::from(QUESTION_TYPE) as u8, 0, IN_CLASS] {
            return None;
        }
        let extension = match (additional, rest) {
            (0, []) => None,
            (1, rest) => Some(read_extension(rest)?),
            _ => return None,
        };
        Some(Self {
            id: u16::from_be_bytes([high, low]),
            recursion_desired: first != 0,
            wire,
            name,
            payload: extension.as_ref().map(|extension| extension.payload),
            cookie: extension.and_then(|extension| extension.cookie),
        })
    }
}

/// A name that is a look-up's label in front of the zone: its octets, what it says, and what is behind it.
fn read_name<'a>(octets: &'a [u8], zone: &Zone) -> Option<(&'a [u8], LookupName, &'a [u8])> {
    let (label, mut rest) = read_label(octets)?;
    for expected in zone.labels() {
        let (label, behind) = read_label(rest)?;
        if !label.eq_ignore_ascii_case(expected.as_bytes()) {
            return None;
        }
        rest = behind;
    }
    let rest = rest.strip_prefix(&[0])?;
    let RequestName::Lookup(name) = RequestName::of(std::iter::once(label)).ok()? else { return None };
    Some((&octets[..octets.len() - rest.len()], name, rest))
}

/// A label, which is not the root's, and what is behind it. A pointer begins like a label that is longer than one can be.
fn read_label(octets: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = octets.split_first()?;
    rest.split_at_checked(usize::from(*length)).filter(|_| (1..=63).contains(length))
}

/// An OPT record and nothing else.
fn read_extension(octets: &[u8]) -> Option<Extension<'_>> {
    let (record, mut options) = octets.split_first_chunk::<OPT>()?;
    // The root's name; no upper half of a response code, and version 0. Flags, such as DNSSEC OK, mean nothing here.
    let [0, 0, OPT_TYPE, payload @ .., 0, 0, _, _, high, low] = *record else { return None };
    if usize::from(u16::from_be_bytes([high, low])) != options.len() {
        return None;
    }
    let (mut cookie, mut has_padding) = (None, false);
    while let Some((head, rest)) = options.split_first_chunk::<OPTION>() {
        let [code, length] = [[head[0], head[1]], [head[2], head[3]]].map(u16::from_be_bytes);
        let (data, rest) = rest.split_at_checked(usize::from(length))?;
        match code {
            COOKIE if cookie.is_none() => cookie = Some(data),
            PADDING if !has_padding => has_padding = true,
            _ => return None,
        }
        options = rest;
    }
    options.is_empty().then_some(Extension { payload: u16::from_be_bytes(payload), cookie })
}
