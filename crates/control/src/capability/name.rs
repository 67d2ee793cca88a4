//! The names that are asked for: a message in base32 (RFC 4648 section 7, without padding) in front of the zone.
//!
//! DNS compares names without regard to case, and resolvers change it at will (PLA-07), so that both cases mean the same. What
//! does not fit one label continues in the next.

use wayleave_packet::platypus::header::Interval;

use super::keys::Handle;
use super::zone::Zone;

/// Characters of a label, at most (RFC 1035 section 2.3.4).
const MAX_LABEL: usize = 63;
/// Octets of the longest message.
pub(super) const MAX_MESSAGE: usize = 80;
/// Octets of a look-up: operation and interval, epoch, handle.
const LOOKUP: usize = 1 + 4 + 16;

const DIGITS: &[u8; 32] = b"0123456789abcdefghijklmnopqrstuv";

/// Why labels are no message of ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NameError {
    #[error("the name is not below the zone")]
    Foreign,
    /// Perhaps a name in front of which others exist, as resolvers ask for when they shorten questions (RFC 9156).
    #[error("the name has no message of a known kind")]
    Unknown,
}

/// What a question asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LookupName {
    pub interval: Interval,
    /// The full number of the key epoch.
    pub epoch: u32,
    pub handle: Handle,
}

/// A message in a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RequestName {
    /// The temporal secret of an epoch.
    Lookup(LookupName),
    /// A request under MAC, for [`super::Request`] to decode.
    Signed(Vec<u8>),
}

/// The operation, in the upper three bits of the first octet; an interval's exponent is below.
const OPERATION_LOOKUP: u8 = 0;
const OPERATION_SIGNED: u8 = 1;

impl LookupName {
    /// The labels in front of the zone.
    #[must_use]
    pub fn labels(&self) -> Vec<String> {
        let mut octets = [0; LOOKUP];
        octets[0] = OPERATION_LOOKUP << 5 | self.interval.exponent();
        octets[1..5].copy_from_slice(&self.epoch.to_be_bytes());
        octets[5..].copy_from_slice(&self.handle.0);
        labels(&octets)
    }
}

/// The labels of a signed request.
#[must_use]
pub(super) fn signed_labels(octets: &[u8]) -> Vec<String> {
    let mut all = vec![OPERATION_SIGNED << 5];
    all.extend_from_slice(octets);
    labels(&all)
}

impl RequestName {
    /// Reads the labels of a question's name, the leftmost first.
    ///
    /// # Errors
    /// [`NameError::Foreign`] if the zone is not at its end, [`NameError::Unknown`] if what is in front is no message.
    pub fn read<'a>(labels: impl DoubleEndedIterator<Item = &'a [u8]>, zone: &Zone) -> Result<Self, NameError> {
        let mut labels = labels;
        for expected in zone.labels().rev() {
            if !labels.next_back().is_some_and(|label| label.eq_ignore_ascii_case(expected.as_bytes())) {
                return Err(NameError::Foreign);
            }
        }
        Self::of(labels)
    }

    /// Reads the labels in front of the zone.
    ///
    /// # Errors
    /// [`NameError::Unknown`] if they are no message.
    pub(super) fn of<'a>(labels: impl Iterator<Item = &'a [u8]>) -> Result<Self, NameError> {
        let mut memory = [0; MAX_MESSAGE];
        let octets = message(labels, &mut memory).ok_or(NameError::Unknown)?;
        let (first, rest) = octets.split_first().ok_or(NameError::Unknown)?;
        match first >> 5 {
            OPERATION_LOOKUP if octets.len() == LOOKUP => {
                let interval = Interval::new(first & 0x1f).ok_or(NameError::Unknown)?;
                let (epoch, handle) = rest.split_first_chunk::<4>().ok_or(NameError::Unknown)?;
                let handle = Handle(handle.try_into().map_err(|_| NameError::Unknown)?);
                Ok(Self::Lookup(LookupName { interval, epoch: u32::from_be_bytes(*epoch), handle }))
            }
            OPERATION_SIGNED if *first == OPERATION_SIGNED << 5 => Ok(Self::Signed(rest.to_vec())),
            _ => Err(NameError::Unknown),
        }
    }
}

/// Octets as labels of at most 63 digits.
fn labels(octets: &[u8]) -> Vec<String> {
    let mut digits = String::with_capacity(octets.len().div_ceil(5) * 8);
    let (mut bits, mut count) = (0u16, 0);
    for octet in octets {
        bits = bits << 8 | u16::from(*octet);
        count += 8;
        while count >= 5 {
            count -= 5;
            digits.push(char::from(DIGITS[usize::from(bits >> count & 31)]));
        }
        bits &= (1 << count) - 1;
    }
    if count > 0 {
        digits.push(char::from(DIGITS[usize::from(bits << (5 - count) & 31)]));
    }
    digits.as_bytes().chunks(MAX_LABEL).map(|label| String::from_utf8_lossy(label).into_owned()).collect()
}

/// The octets of labels; `None` if they are not what [`labels`] makes of any.
fn message<'a, 'b>(labels: impl Iterator<Item = &'a [u8]>, memory: &'b mut [u8; MAX_MESSAGE]) -> Option<&'b [u8]> {
    let mut length = 0;
    let (mut bits, mut count, mut previous) = (0u16, 0, MAX_LABEL);
    for label in labels {
        // Every label but the last is full, so that a message has one name.
        if previous != MAX_LABEL || label.is_empty() {
            return None;
        }
        previous = label.len();
        for digit in label {
            let value = match digit {
                b'0'..=b'9' => digit - b'0',
                b'a'..=b'v' => digit - b'a' + 10,
                b'A'..=b'V' => digit - b'A' + 10,
                _ => return None,
            };
            bits = bits << 5 | u16::from(value);
            count += 5;
            if count >= 8 {
                count -= 8;
                *memory.get_mut(length)? = (bits >> count) as u8;
                length += 1;
            }
            bits &= (1 << count) - 1;
        }
    }
    // What is left over is less than a digit, and zero.
    (count < 5 && bits == 0).then_some(&memory[..length])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base32_is_that_of_rfc_4648_section_10() {
        let vectors = [
            ("f", "co"),
            ("fo", "cpng"),
            ("foo", "cpnmu"),
            ("foob", "cpnmuog"),
            ("fooba", "cpnmuoj1"),
            ("foobar", "cpnmuoj1e8"),
        ];
        for (octets, digits) in vectors {
            assert_eq!(labels(octets.as_bytes()), [digits]);
            let mut memory = [0; MAX_MESSAGE];
            assert_eq!(message([digits.as_bytes()].into_iter(), &mut memory), Some(octets.as_bytes()));
            let upper = digits.to_ascii_uppercase();
            assert_eq!(message([upper.as_bytes()].into_iter(), &mut memory), Some(octets.as_bytes()));
        }
        for wrong in ["c", "cp", "cpnn", "w0", "cpn-", "", "cpnmuoj1e"] {
            assert_eq!(message([wrong.as_bytes()].into_iter(), &mut [0; MAX_MESSAGE]), None, "{wrong}");
        }
    }
}
