//! The zone that is delegated to a key server.

use std::fmt;
use std::str::FromStr;

/// Characters of a zone's name, at most: with the longest request in front, a name has at most 255 octets (RFC 1035
/// section 2.3.4).
pub const MAX_ZONE: usize = 100;
/// Characters of a label (RFC 1035 section 2.3.4).
const MAX_LABEL: usize = 63;

/// The name of a key server's zone, in lower case and without a dot at its end.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Zone(String);

/// Why a text is no zone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ZoneError {
    #[error("a zone's name has at most {MAX_ZONE} characters, since requests stand in front of it")]
    TooLong,
    #[error("a zone's name has labels of 1 to 63 letters, digits and hyphens, with dots between them")]
    Label,
}

impl Zone {
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The labels, the leftmost first.
    pub fn labels(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.0.split('.')
    }
}

impl FromStr for Zone {
    type Err = ZoneError;

    fn from_str(text: &str) -> Result<Self, ZoneError> {
        let text = text.strip_suffix('.').unwrap_or(text);
        if text.len() > MAX_ZONE {
            return Err(ZoneError::TooLong);
        }
        let is_letter = |octet: u8| octet.is_ascii_alphanumeric() || octet == b'-' || octet == b'_';
        let is_label = |label: &str| (1..=MAX_LABEL).contains(&label.len()) && label.bytes().all(is_letter);
        if text.split('.').all(is_label) { Ok(Self(text.to_ascii_lowercase())) } else { Err(ZoneError::Label) }
    }
}

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
