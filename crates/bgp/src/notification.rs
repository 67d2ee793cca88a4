//! NOTIFICATION: codes, subcodes and their names (RFC 4271 section 4.5, RFC 4486, RFC 9003).

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{AttributeCode, RawAttribute};

/// Octets of a text that cannot be read that are shown: our own limit.
const MAX_SHOWN: usize = 32;

/// Error codes.
pub mod code {
    /// RFC 4271 section 6.1.
    pub const MESSAGE_HEADER: u8 = 1;
    /// RFC 4271 section 6.2.
    pub const OPEN: u8 = 2;
    /// RFC 4271 section 6.3.
    pub const UPDATE: u8 = 3;
    /// RFC 4271 section 6.5.
    pub const HOLD_TIMER_EXPIRED: u8 = 4;
    /// RFC 4271 section 6.6.
    pub const FINITE_STATE_MACHINE: u8 = 5;
    /// RFC 4271 section 6.7.
    pub const CEASE: u8 = 6;
    /// RFC 7313 section 5.
    pub const ROUTE_REFRESH: u8 = 7;
}

/// Subcodes of a message header error.
pub mod header {
    /// The marker is not all ones.
    pub const NOT_SYNCHRONIZED: u8 = 1;
    /// The length is impossible; data: the length field.
    pub const BAD_LENGTH: u8 = 2;
    /// The type is unknown; data: the type field.
    pub const BAD_TYPE: u8 = 3;
}

/// Subcodes of an OPEN error.
pub mod open {
    /// Anything else.
    pub const UNSPECIFIC: u8 = 0;
    /// Data: the highest version we speak, two octets.
    pub const UNSUPPORTED_VERSION: u8 = 1;
    /// Not the AS that was expected.
    pub const BAD_PEER_AS: u8 = 2;
    /// Zero, or our own within one AS (RFC 6286).
    pub const BAD_IDENTIFIER: u8 = 3;
    /// An optional parameter that is no capability.
    pub const UNSUPPORTED_PARAMETER: u8 = 4;
    /// One or two seconds.
    pub const UNACCEPTABLE_HOLD_TIME: u8 = 6;
    /// A capability that we require is absent (RFC 5492); data: the capability.
    pub const UNSUPPORTED_CAPABILITY: u8 = 7;
    /// RFC 9234 section 4.2.
    pub const ROLE_MISMATCH: u8 = 11;
}

/// Subcodes of an UPDATE error.
pub mod update {
    /// A section length contradicts the message's, or an attribute that must not be repeated is.
    pub const MALFORMED_ATTRIBUTE_LIST: u8 = 1;
    /// Data: the attribute's code.
    pub const MISSING_WELL_KNOWN: u8 = 3;
    /// Data: the attribute.
    pub const OPTIONAL_ATTRIBUTE: u8 = 9;
    /// A prefix cannot be read.
    pub const INVALID_NETWORK_FIELD: u8 = 10;
}

/// Subcodes of a finite state machine error (RFC 6608).
pub mod finite_state_machine {
    /// Unspecified.
    pub const UNSPECIFIED: u8 = 0;
    /// An unexpected message in OpenSent.
    pub const IN_OPEN_SENT: u8 = 1;
    /// An unexpected message in OpenConfirm.
    pub const IN_OPEN_CONFIRM: u8 = 2;
    /// An unexpected message in Established.
    pub const IN_ESTABLISHED: u8 = 3;
}

/// Subcodes of a cease (RFC 4486).
pub mod cease {
    /// Data: AFI, SAFI and the limit.
    pub const MAXIMUM_PREFIXES: u8 = 1;
    /// May carry a text (RFC 9003).
    pub const ADMINISTRATIVE_SHUTDOWN: u8 = 2;
    /// The peer was removed from the configuration.
    pub const PEER_DECONFIGURED: u8 = 3;
    /// May carry a text (RFC 9003).
    pub const ADMINISTRATIVE_RESET: u8 = 4;
    /// Not accepted.
    pub const CONNECTION_REJECTED: u8 = 5;
    /// Configuration changed otherwise.
    pub const OTHER_CONFIGURATION_CHANGE: u8 = 6;
    /// RFC 4271 section 6.8.
    pub const CONNECTION_COLLISION: u8 = 7;
    /// Memory or another resource is short.
    pub const OUT_OF_RESOURCES: u8 = 8;
    /// RFC 8538.
    pub const HARD_RESET: u8 = 9;
}

/// Subcodes of a ROUTE-REFRESH error (RFC 7313 section 5).
pub mod route_refresh {
    /// Data: the whole message.
    pub const INVALID_LENGTH: u8 = 1;
}

/// Why a session ends.
#[derive(Clone, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub struct Notification {
    /// One of [`code`], or a newer one.
    pub code: u8,
    /// Its meaning depends on the code; 0: unspecific.
    pub subcode: u8,
    /// Its meaning depends on both.
    pub data: Vec<u8>,
}

impl Notification {
    /// Without data.
    #[must_use]
    pub fn new(code: u8, subcode: u8) -> Self {
        Self { code, subcode, data: Vec::new() }
    }

    /// With data.
    #[must_use]
    pub fn with_data(code: u8, subcode: u8, data: impl Into<Vec<u8>>) -> Self {
        Self { code, subcode, data: data.into() }
    }

    /// Decodes the body of a NOTIFICATION, after its header. One without code and subcode has a wrong length.
    pub fn decode(body: &[u8]) -> Result<Self, Notification> {
        match body {
            [code, subcode, data @ ..] => Ok(Self::with_data(*code, *subcode, data)),
            _ => Err(Self::new(code::MESSAGE_HEADER, header::BAD_LENGTH)),
        }
    }

    /// A cease with a text for the peer's operator (RFC 9003); the text is cut at 255 octets, between characters.
    #[must_use]
    pub fn shutdown(subcode: u8, text: &str) -> Self {
        let mut end = text.len().min(255);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let mut data = vec![end as u8];
        data.extend_from_slice(&text.as_bytes()[..end]);
        Self { code: code::CEASE, subcode, data }
    }

    /// The text of an administrative shutdown or reset (RFC 9003), if there is one.
    #[must_use]
    pub fn shutdown_text(&self) -> Option<&str> {
        if self.code != code::CEASE
            || !matches!(self.subcode, cease::ADMINISTRATIVE_SHUTDOWN | cease::ADMINISTRATIVE_RESET)
        {
            return None;
        }
        let (&length, rest) = self.data.split_first()?;
        let text = rest.get(..usize::from(length))?;
        std::str::from_utf8(text).ok().filter(|text| !text.is_empty())
    }

    /// The text of a shutdown (RFC 9003) that cannot be read, as hexadecimal digits: longer than the data, or not UTF-8.
    fn unreadable_text(&self) -> Option<String> {
        let is_shutdown = self.code == code::CEASE
            && matches!(self.subcode, cease::ADMINISTRATIVE_SHUTDOWN | cease::ADMINISTRATIVE_RESET);
        let is_empty = matches!(self.data[..], [] | [0]);
        if !is_shutdown || is_empty || self.shutdown_text().is_some() {
            return None;
        }
        let shown = &self.data[..self.data.len().min(MAX_SHOWN)];
        let more = if shown.len() < self.data.len() { ".." } else { "" };
        Some(shown.iter().map(|octet| format!("{octet:02x}")).collect::<String>() + more)
    }

    /// Whether it ends the session without anything being kept (RFC 8538 section 3).
    #[must_use]
    pub fn is_hard_reset(&self) -> bool {
        (self.code, self.subcode) == (code::CEASE, cease::HARD_RESET)
    }

    /// The NOTIFICATION within a hard reset (RFC 8538 section 3).
    #[must_use]
    pub fn of_hard_reset(&self) -> Option<Self> {
        let (&[code, subcode], data) = self.data.split_first_chunk::<2>()?;
        let is_nested = (code, subcode) == (code::CEASE, cease::HARD_RESET);
        (self.is_hard_reset() && !is_nested).then(|| Self { code, subcode, data: data.to_vec() })
    }

    /// What an error in an UPDATE lies in: the attribute that the data repeats, and its family and next hop (RFC 4271 section
    /// 6.3).
    fn subject(&self) -> Option<String> {
        if self.code != code::UPDATE {
            return None;
        }
        match self.subcode {
            update::MISSING_WELL_KNOWN => Some(AttributeCode(*self.data.first()?).to_string()),
            2 | 4..=9 => {
                let (attribute, _) = RawAttribute::decode(&self.data).ok()?;
                Some(match family_words(&attribute) {
                    Some(family) => format!("{} of {family}", attribute.code),
                    None => attribute.code.to_string(),
                })
            }
            _ => None,
        }
    }

    /// The registered name of the code.
    #[must_use]
    pub fn code_name(&self) -> &'static str {
        match self.code {
            code::MESSAGE_HEADER => "message header error",
            code::OPEN => "OPEN message error",
            code::UPDATE => "UPDATE message error",
            code::HOLD_TIMER_EXPIRED => "hold timer expired",
            code::FINITE_STATE_MACHINE => "finite state machine error",
            code::CEASE => "cease",
            code::ROUTE_REFRESH => "ROUTE-REFRESH message error",
            _ => "unknown error",
        }
    }

    /// The registered name of the subcode.
    #[must_use]
    pub fn subcode_name(&self) -> Option<&'static str> {
        Some(match (self.code, self.subcode) {
            (code::MESSAGE_HEADER, 1) => "connection not synchronized",
            (code::MESSAGE_HEADER, 2) => "bad message length",
            (code::MESSAGE_HEADER, 3) => "bad message type",
            (code::OPEN, 1) => "unsupported version number",
            (code::OPEN, 2) => "bad peer AS",
            (code::OPEN, 3) => "bad BGP identifier",
            (code::OPEN, 4) => "unsupported optional parameter",
            (code::OPEN, 6) => "unacceptable hold time",
            (code::OPEN, 7) => "unsupported capability",
            (code::OPEN, 11) => "role mismatch",
            (code::UPDATE, 1) => "malformed attribute list",
            (code::UPDATE, 2) => "unrecognized well-known attribute",
            (code::UPDATE, 3) => "missing well-known attribute",
            (code::UPDATE, 4) => "attribute flags error",
            (code::UPDATE, 5) => "attribute length error",
            (code::UPDATE, 6) => "invalid ORIGIN attribute",
            (code::UPDATE, 8) => "invalid NEXT_HOP attribute",
            (code::UPDATE, 9) => "optional attribute error",
            (code::UPDATE, 10) => "invalid network field",
            (code::UPDATE, 11) => "malformed AS_PATH",
            (code::FINITE_STATE_MACHINE, 1) => "unexpected message in OpenSent",
            (code::FINITE_STATE_MACHINE, 2) => "unexpected message in OpenConfirm",
            (code::FINITE_STATE_MACHINE, 3) => "unexpected message in Established",
            (code::CEASE, 1) => "maximum number of prefixes reached",
            (code::CEASE, 2) => "administrative shutdown",
            (code::CEASE, 3) => "peer deconfigured",
            (code::CEASE, 4) => "administrative reset",
            (code::CEASE, 5) => "connection rejected",
            (code::CEASE, 6) => "other configuration change",
            (code::CEASE, 7) => "connection collision resolution",
            (code::CEASE, 8) => "out of resources",
            (code::CEASE, 9) => "hard reset",
            (code::ROUTE_REFRESH, 1) => "invalid message length",
            _ => return None,
        })
    }
}

impl fmt::Display for Notification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code_name())?;
        if let Some(name) = self.subcode_name() {
            write!(f, ": {name}")?;
        }
        write!(f, " ({}/{})", self.code, self.subcode)?;
        if let Some(subject) = self.subject() {
            return write!(f, ": {subject}");
        }
        if let Some(inner) = self.of_hard_reset() {
            return write!(f, ": {inner}");
        }
        match (self.shutdown_text(), self.unreadable_text()) {
            (Some(text), _) => write!(f, ": {text:?}"),
            (None, Some(octets)) => write!(f, ": a text that cannot be read, 0x{octets}"),
            (None, None) => Ok(()),
        }
    }
}

/// Family and next hop of a multiprotocol attribute.
fn family_words(attribute: &RawAttribute<'_>) -> Option<String> {
    if !matches!(attribute.code, AttributeCode::MP_REACH_NLRI | AttributeCode::MP_UNREACH_NLRI) {
        return None;
    }
    let &[a, b, safi, ref rest @ ..] = attribute.value else { return None };
    let family = match (u16::from_be_bytes([a, b]), safi) {
        (1, 1) => "IPv4 unicast".to_owned(),
        (2, 1) => "IPv6 unicast".to_owned(),
        (afi, safi) => format!("AFI {afi} SAFI {safi}"),
    };
    match rest.first() {
        Some(length) if attribute.code == AttributeCode::MP_REACH_NLRI => {
            Some(format!("{family} with a next hop of {length} octets"))
        }
        _ => Some(family),
    }
}
