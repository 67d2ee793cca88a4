//! Datagrams in a stream, each behind its length (`docs/wire/link.md`, "Over TLS").

/// Octets of a datagram, at most: a jumbo frame's.
pub const LONGEST: usize = 9_216;
/// Octets of a datagram's length.
pub const LENGTH: usize = 2;

/// No datagram is of this length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a datagram of {0} octets, expected 1 to {LONGEST}")]
pub struct BadLength(usize);

/// The first datagram in what has come of a stream, if all of it is there.
///
/// # Errors
/// If it is empty or longer than [`LONGEST`]: the peer errs, and nothing behind it can be read.
pub fn first_datagram(octets: &[u8]) -> Result<Option<&[u8]>, BadLength> {
    let Some((length, behind)) = octets.split_first_chunk::<LENGTH>() else { return Ok(None) };
    let length = usize::from(u16::from_be_bytes(*length));
    if length == 0 || length > LONGEST {
        return Err(BadLength(length));
    }
    Ok(behind.get(..length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_datagram_is_read_when_all_of_it_is_there_and_none_is_empty_or_too_long() {
        let mut stream = vec![0, 3, 7, 8, 9, 0, 1];
        for length in 0..5 {
            assert_eq!(first_datagram(&stream[..length]), Ok(None));
        }
        assert_eq!(first_datagram(&stream), Ok(Some(&[7, 8, 9][..])));
        assert_eq!(first_datagram(&stream.split_off(5)), Ok(None));
        assert_eq!(first_datagram(&[0, 0]), Err(BadLength(0)));
        for length in 0..=u16::MAX {
            let is_long = usize::from(length) > LONGEST;
            assert_eq!(first_datagram(&length.to_be_bytes()).is_err(), is_long || length == 0, "{length}");
        }
    }
}
