//! Questions in the shape that nearly all of them have, read and answered in place: one name below the zone, TXT, class IN, and at
//! most an OPT record with a cookie or padding. What has any other shape is left to the general decoder, which answers alike: a
//! test compares both.

use super::message::MAX_UDP;
use super::server::{COOKIE, HEADER, OPT};

/// Octets of a name (RFC 1035 section 2.3.4).
const MAX_NAME: usize = 255;
const MAX_LABEL: u8 = 63;
const PADDING: u16 = 12;
const TYPE_SOA: u16 = 6;
const TYPE_TXT: u16 = 16;
const TYPE_OPT: u16 = 41;
const CLASS_IN: u16 = 1;
/// A pointer to an earlier name (RFC 1035 section 4.1.4).
const POINTER: u16 = 0xc000;

/// A question.
pub(super) struct Quick<'a> {
    octets: &'a [u8],
    /// Where the zone's name begins, and where the question ends.
    zone_at: usize,
    end: usize,
    /// The client's longest datagram, if it has an OPT record.
    pub(super) payload: Option<u16>,
    pub(super) cookie: Option<&'a [u8]>,
}

/// What is answered.
pub(super) struct QuickAnswer<'a> {
    /// At most 15.
    pub(super) code: u8,
    /// TTL and content of a TXT record.
    pub(super) text: Option<(u32, &'a [u8])>,
    /// The zone's SOA record behind its name: TTL, and data that may point at the zone's name.
    pub(super) soa: Option<&'a QuickSoa>,
    /// The whole option.
    pub(super) cookie: Option<&'a [u8]>,
    /// Nothing but that TCP should be used.
    pub(super) is_cut: bool,
}

/// An SOA record without the names that lie in the zone.
pub(super) struct QuickSoa {
    pub(super) ttl: u32,
    /// Names as labels; `true` if the zone's name follows, and otherwise the root.
    pub(super) names: [(Vec<u8>, bool); 2],
    pub(super) numbers: [u32; 5],
}

impl QuickSoa {
    fn data(&self) -> usize {
        self.names.iter().map(|(labels, is_within)| labels.len() + if *is_within { 2 } else { 1 }).sum::<usize>() + 20
    }
}

fn u16_at(octets: &[u8], at: usize) -> Option<u16> {
    octets.get(at..at + 2).map(|two| u16::from_be_bytes([two[0], two[1]]))
}

impl<'a> Quick<'a> {
    /// Reads a question below the zone whose name is `zone`, in lower case with the root at its end.
    pub(super) fn read(octets: &'a [u8], zone: &[u8]) -> Option<Self> {
        // A query with one question; of the flags at most RD, AD and CD.
        let (head, _) = octets.split_first_chunk::<HEADER>()?;
        let additional = head[11];
        if head[2] & !1 != 0 || head[3] & !0x30 != 0 || head[4..11] != [0, 1, 0, 0, 0, 0, 0] || additional > 1 {
            return None;
        }
        let mut at = HEADER;
        loop {
            let length = *octets.get(at)?;
            at += 1 + usize::from(length);
            match length {
                0 => break,
                1..=MAX_LABEL if at - HEADER < MAX_NAME => {}
                _ => return None,
            }
        }
        let zone_at = at.checked_sub(zone.len()).filter(|begin| *begin >= HEADER)?;
        // A length is below every letter, so that comparing without regard to case compares lengths as they are.
        if !octets[zone_at..at].eq_ignore_ascii_case(zone) {
            return None;
        }
        let mut label = HEADER;
        while label < zone_at {
            label += 1 + usize::from(octets[label]);
        }
        if label != zone_at || u16_at(octets, at)? != TYPE_TXT || u16_at(octets, at + 2)? != CLASS_IN {
            return None;
        }
        let mut read = Self { octets, zone_at, end: at + 4, payload: None, cookie: None };
        let mut at = read.end;
        if additional == 1 {
            let (fixed, options) = octets.get(at..)?.split_first_chunk::<OPT>()?;
            // The root, OPT, the payload; then no high response code, version 0, flags; the length of the options.
            if fixed[0] != 0 || u16_at(fixed, 1)? != TYPE_OPT || fixed[5..7] != [0, 0] {
                return None;
            }
            read.payload = u16_at(fixed, 3);
            at += OPT;
            let end = at + usize::from(u16_at(fixed, 9)?);
            if options.len() != end - at {
                return None;
            }
            let mut has_padding = false;
            while at < end {
                let (code, length) = (u16_at(octets, at)?, usize::from(u16_at(octets, at + 2)?));
                let option = octets.get(at + 4..at + 4 + length)?;
                at += 4 + length;
                match code {
                    COOKIE if read.cookie.is_none() => read.cookie = Some(option),
                    PADDING if !has_padding => has_padding = true,
                    _ => return None,
                }
            }
        }
        (at == octets.len()).then_some(read)
    }

    pub(super) fn id(&self) -> u16 {
        u16::from_be_bytes([self.octets[0], self.octets[1]])
    }

    /// The labels in front of the zone.
    pub(super) fn labels(&self) -> impl Iterator<Item = &'a [u8]> {
        let mut rest = &self.octets[HEADER..self.zone_at];
        std::iter::from_fn(move || {
            let (length, behind) = rest.split_first()?;
            let (label, behind) = behind.split_at_checked(usize::from(*length))?;
            rest = behind;
            Some(label)
        })
    }

    /// Octets of an answer with one TXT record of `text` octets, without a cookie.
    pub(super) fn length(&self, record: usize) -> usize {
        self.end + record + if self.payload.is_some() { OPT } else { 0 }
    }

    /// The answer in at most `limit` octets, and whether something that was asked for had to be left out.
    pub(super) fn answer(&self, answer: &QuickAnswer<'_>, limit: usize) -> Option<(Vec<u8>, bool)> {
        let text = answer.text.map_or(0, |(_, text)| 2 + 10 + 1 + text.len());
        let soa = answer.soa.map_or(0, |soa| 2 + 10 + soa.data());
        let cookie = answer.cookie.filter(|_| self.payload.is_some());
        let option = cookie.map_or(0, |cookie| 4 + cookie.len());
        let bare = self.length(0);
        // First the cookie goes, then what is of use to caches alone; then the answer, which TCP may have.
        let (text, soa, cookie, is_cut) = match limit {
            _ if answer.is_cut => (None, None, None, true),
            _ if bare + text + soa + option <= limit => (answer.text, answer.soa, cookie, false),
            _ if bare + text + soa <= limit => (answer.text, answer.soa, None, false),
            _ if bare + text <= limit => (answer.text, None, None, false),
            _ => (None, None, None, true),
        };
        if bare > limit {
            return None;
        }
        let mut out = Vec::with_capacity(limit.min(bare + text.map_or(0, |(_, text)| 13 + text.len()) + 256));
        out.extend_from_slice(&self.octets[..self.end]);
        // A response with authority, except for failures; RD as it came.
        let authority = if matches!(answer.code, 0 | 3) { 4 } else { 0 };
        out[2] = 0x80 | authority | u8::from(is_cut) << 1 | self.octets[2] & 1;
        out[3] = answer.code;
        (out[7], out[9], out[11]) =
            (u8::from(text.is_some()), u8::from(soa.is_some()), u8::from(self.payload.is_some()));
        let record = |out: &mut Vec<u8>, name: usize, kind: u16, ttl: u32, length: usize| {
            out.extend_from_slice(&(POINTER | name as u16).to_be_bytes()); // within the question
            out.extend_from_slice(&kind.to_be_bytes());
            out.extend_from_slice(&CLASS_IN.to_be_bytes());
            out.extend_from_slice(&ttl.to_be_bytes());
            out.extend_from_slice(&(length as u16).to_be_bytes()); // less than a message
        };
        if let Some((ttl, text)) = text {
            record(&mut out, HEADER, TYPE_TXT, ttl, 1 + text.len());
            out.push(text.len() as u8); // one string
            out.extend_from_slice(text);
        }
        if let Some(soa) = soa {
            record(&mut out, self.zone_at, TYPE_SOA, soa.ttl, soa.data());
            for (labels, is_within) in &soa.names {
                out.extend_from_slice(labels);
                if *is_within {
                    out.extend_from_slice(&(POINTER | self.zone_at as u16).to_be_bytes()); // within the question
                } else {
                    out.push(0);
                }
            }
            soa.numbers.iter().for_each(|number| out.extend_from_slice(&number.to_be_bytes()));
        }
        if self.payload.is_some() {
            out.push(0);
            out.extend_from_slice(&TYPE_OPT.to_be_bytes());
            out.extend_from_slice(&MAX_UDP.to_be_bytes());
            out.extend_from_slice(&[0; 4]);
            out.extend_from_slice(&(cookie.map_or(0, |cookie| 4 + cookie.len()) as u16).to_be_bytes()); // at most 28
            if let Some(cookie) = cookie {
                out.extend_from_slice(&COOKIE.to_be_bytes());
                out.extend_from_slice(&(cookie.len() as u16).to_be_bytes()); // at most 24
                out.extend_from_slice(cookie);
            }
        }
        Some((out, is_cut))
    }
}
