//! Autonomous System numbers.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// An Autonomous System number, four octets (RFC 6793).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Default)]
#[serde(transparent)]
pub struct Asn(pub u32);

impl Asn {
    /// `AS_TRANS`, which replaces a four-octet number on a two-octet session (RFC 6793 section 9).
    pub const TRANS: Asn = Asn(23456);

    /// Whether the number may appear in a route: neither 0 (RFC 7607), nor [`Asn::TRANS`], nor a last one
    /// (RFC 7300).
    #[must_use]
    pub fn is_routable(self) -> bool {
        !matches!(self.0, 0 | 23_456 | 65_535 | u32::MAX)
    }

    /// The two-octet form: the number itself, or [`Asn::TRANS`] if it does not fit.
    #[must_use]
    pub fn two_octets(self) -> u16 {
        u16::try_from(self.0).unwrap_or(23456)
    }
}

impl fmt::Display for Asn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AS{}", self.0)
    }
}

impl fmt::Debug for Asn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not an AS number in asplain form (RFC 5396), with or without the letters `AS`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an AS number (0 to 4294967295)")]
pub struct ParseAsnError(String);

impl FromStr for Asn {
    type Err = ParseAsnError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits = text.strip_prefix("AS").or_else(|| text.strip_prefix("as")).unwrap_or(text);
        if digits.starts_with('+') {
            return Err(ParseAsnError(text.to_owned()));
        }
        digits.parse().map(Asn).map_err(|_| ParseAsnError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_asplain_with_and_without_letters() {
        assert_eq!("64497".parse(), Ok(Asn(64497)));
        assert_eq!("AS4200000000".parse(), Ok(Asn(4_200_000_000)));
        assert!("AS".parse::<Asn>().is_err());
        assert!("+5".parse::<Asn>().is_err());
        assert!("4294967296".parse::<Asn>().is_err());
    }

    #[test]
    fn a_number_that_does_not_fit_becomes_as_trans() {
        assert_eq!(Asn(70_000).two_octets(), 23456);
        assert_eq!(Asn(64497).two_octets(), 64497);
    }
}
