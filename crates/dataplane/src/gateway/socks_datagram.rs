//! Datagrams between an application and a proxy: each has a header that says whom it is for, or from (RFC 1928 section 7).

use super::proxy::{Target, read_socks_address};

/// Octets of the longest header: that with the longest name.
pub const LONGEST_HEADER: usize = 3 + 1 + 1 + 255 + 2;

/// A datagram of an application.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Datagram<'a> {
    pub target: Target,
    /// The kind of the address and the address, as the application wrote them: answers from there have the same.
    pub form: &'a [u8],
    pub payload: &'a [u8],
}

/// Why a datagram is dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DatagramFault {
    #[error("it ends within its header")]
    Truncated,
    #[error("the reserved octets are not zero")]
    Reserved,
    /// Nobody has to put them together (RFC 1928 section 7).
    #[error("it is a fragment")]
    Fragment,
    #[error("there is no such kind of address")]
    AddressKind,
    #[error("the name is not well-formed")]
    Name,
    #[error("there is no port 0")]
    Port,
}

/// Reads a datagram of an application.
///
/// # Errors
/// What is wrong with it.
pub fn decode(octets: &[u8]) -> Result<Datagram<'_>, DatagramFault> {
    let (header, rest) = octets.split_first_chunk::<3>().ok_or(DatagramFault::Truncated)?;
    match header {
        [0, 0, 0] => {}
        [0, 0, _] => return Err(DatagramFault::Fragment),
        _ => return Err(DatagramFault::Reserved),
    }
    let (host, length) = match read_socks_address(rest) {
        Ok(Some(read)) => read,
        Ok(None) => return Err(DatagramFault::Truncated),
        Err(()) => return Err(DatagramFault::AddressKind),
    };
    let (form, rest) = rest.split_at(length);
    let (port, payload) = rest.split_first_chunk::<2>().ok_or(DatagramFault::Truncated)?;
    let host = host.ok_or(DatagramFault::Name)?;
    let port = u16::from_be_bytes(*port);
    if port == 0 {
        return Err(DatagramFault::Port);
    }
    Ok(Datagram { target: Target { host, port }, form, payload })
}

/// Writes a datagram for an application: from the address of this form, as [`Datagram::form`] had it.
pub fn encode(form: &[u8], port: u16, payload: &[u8], out: &mut Vec<u8>) {
    out.clear();
    out.extend([0, 0, 0]);
    out.extend(form);
    out.extend(port.to_be_bytes());
    out.extend(payload);
}

#[cfg(test)]
mod tests {
    //! ICD, datagrams to a proxy: headers cut at every octet, fragments, names that hide others: dropped, and never read as another's.

    use std::net::IpAddr;

    use super::super::proxy::Host;
    use super::*;

    const V6: [u8; 16] = [0xfd, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];

    fn datagram(kind: u8, host: &[u8], port: u16) -> Vec<u8> {
        [&[0, 0, 0, kind], host, &port.to_be_bytes()].concat()
    }

    #[test]
    fn a_datagram_is_for_whom_its_header_says_and_answers_have_the_same_form() {
        let address = |text: &str| Host::Address(text.parse::<IpAddr>().expect("an address"));
        for (kind, host, expected) in [
            (1, &[10, 0, 2, 1][..], address("10.0.2.1")),
            (4, &V6, address("fd00:2::1")),
            (3, b"\x0cclean.B.demo", Host::Name("clean.b.demo".to_owned())),
            (3, b"\x0810.0.2.1", address("10.0.2.1")),
        ] {
            let whole = [&datagram(kind, host, 53), &b"payload"[..]].concat();
            let read = decode(&whole).expect("well-formed");
            assert_eq!((read.target, read.payload), (Target { host: expected, port: 53 }, &b"payload"[..]));
            let mut answer = Vec::new();
            encode(read.form, 53, b"payload", &mut answer);
            assert_eq!(answer, whole);
            let header = whole.len() - b"payload".len();
            assert!(header <= LONGEST_HEADER);
            for length in 0..header {
                assert_eq!(decode(&whole[..length]), Err(DatagramFault::Truncated), "{length}");
            }
            assert!(decode(&whole[..header]).is_ok_and(|read| read.payload.is_empty()));
        }
    }

    #[test]
    fn what_is_not_well_formed_or_a_fragment_is_dropped() {
        let of = |octets: &[u8]| decode(octets).expect_err("dropped");
        let whole = datagram(1, &[10, 0, 2, 1], 53);
        let changed = |at: usize, octet: u8| {
            let mut octets = whole.clone();
            octets[at] = octet;
            octets
        };
        assert_eq!(of(&changed(0, 1)), DatagramFault::Reserved);
        assert_eq!(of(&changed(1, 1)), DatagramFault::Reserved);
        assert_eq!(of(&changed(2, 1)), DatagramFault::Fragment);
        assert_eq!(of(&changed(2, 0x80)), DatagramFault::Fragment);
        assert_eq!(of(&changed(3, 2)), DatagramFault::AddressKind);
        assert_eq!(of(&datagram(1, &[10, 0, 2, 1], 0)), DatagramFault::Port);
        for name in [&b"\x00"[..], b"\x04b\0.a", b"\x02\xc3\xa4", b"\x02..", b"\x03a:1"] {
            assert_eq!(of(&datagram(3, name, 53)), DatagramFault::Name, "{}", name.escape_ascii());
        }
    }
}
