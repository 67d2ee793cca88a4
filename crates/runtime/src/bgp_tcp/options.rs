//! Options of TCP sockets that no safe interface covers: the key of TCP MD5, the TTL of both directions, the octets that are not
//! acknowledged. Nothing is decided here.
#![allow(unsafe_code, reason = "setsockopt and ioctl, in one call each that says why it is sound")]

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use zeroize::Zeroizing;

/// Octets of the kernel's `struct tcp_md5sig` (`linux/tcp.h`), and where its fields begin. The address comes first, with room
/// for the longest kind; flags, prefix length and interface stay zero: a key for one address on any interface.
const MD5SIG: usize = 216;
const KEY_LENGTH: usize = 130;
const KEY: usize = 136;

/// Octets of the longest key.
pub(super) const MAX_KEY: usize = libc::TCP_MD5SIG_MAXKEYLEN;

const _: () = assert!(KEY + MAX_KEY == MD5SIG);

/// Signs what is sent to `peer` with `key`, and drops what comes from there without it. On a listener this holds from the
/// first segment of a connection on. A socket of IPv6 takes IPv4 peers as mapped addresses.
pub(super) fn set_md5_key(socket: BorrowedFd<'_>, is_ipv6: bool, peer: IpAddr, key: &[u8]) -> io::Result<()> {
    if key.len() > MAX_KEY {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut option = Zeroizing::new([0u8; MD5SIG]);
    match (peer, is_ipv6) {
        // As in `sockaddr_in`: family, port, address.
        (IpAddr::V4(address), false) => {
            option[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
            option[4..8].copy_from_slice(&address.octets());
        }
        // As in `sockaddr_in6`: family, port, flow, address.
        (address, true) => {
            let address = match address {
                IpAddr::V4(address) => address.to_ipv6_mapped(),
                IpAddr::V6(address) => address,
            };
            option[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
            option[8..24].copy_from_slice(&address.octets());
        }
        (IpAddr::V6(_), false) => return Err(io::ErrorKind::InvalidInput.into()),
    }
    option[KEY_LENGTH..KEY_LENGTH + 2].copy_from_slice(&(key.len() as u16).to_ne_bytes());
    option[KEY..KEY + key.len()].copy_from_slice(key);
    set(socket, libc::IPPROTO_TCP, libc::TCP_MD5SIG, option.as_slice())
}

/// The option by which a key of TCP-AO is added (`linux/tcp.h`), which `libc` does not name yet.
const TCP_AO_ADD_KEY: libc::c_int = 38;

/// Whether the kernel knows TCP-AO (RFC 5925; Linux 6.7 and later with `CONFIG_TCP_AO`): it then refuses a key of four octets for its
/// length, and otherwise the option.
pub(super) fn knows_tcp_ao(socket: BorrowedFd<'_>) -> bool {
    let refused = set_number(socket, libc::IPPROTO_TCP, TCP_AO_ADD_KEY, 0);
    refused.is_err_and(|error| error.raw_os_error() == Some(libc::EINVAL))
}

/// The TTL, or hop limit, of what is sent.
pub(super) fn set_ttl(socket: BorrowedFd<'_>, is_ipv6: bool, ttl: u8) -> io::Result<()> {
    if is_ipv6 {
        set_number(socket, libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS, ttl)?;
    }
    // Also of IPv6 sockets: they take connections over IPv4.
    set_number(socket, libc::IPPROTO_IP, libc::IP_TTL, ttl)
}

/// Drops what arrives with a smaller TTL or hop limit.
pub(super) fn set_least_ttl(socket: BorrowedFd<'_>, is_ipv6: bool, ttl: u8) -> io::Result<()> {
    if is_ipv6 {
        set_number(socket, libc::IPPROTO_IPV6, libc::IPV6_MINHOPCOUNT, ttl)?;
    }
    set_number(socket, libc::IPPROTO_IP, libc::IP_MINTTL, ttl)
}

/// Octets that were written and that the peer's TCP has not acknowledged, with a FIN as one (tcp(7), `SIOCOUTQ`).
pub(super) fn unacknowledged(socket: BorrowedFd<'_>) -> io::Result<usize> {
    let mut octets: libc::c_int = 0;
    // SAFETY: the kernel writes one int to `octets`, which lives across the call.
    let answer = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &mut octets) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(usize::try_from(octets).unwrap_or(0)) }
}

fn set_number(socket: BorrowedFd<'_>, level: libc::c_int, name: libc::c_int, value: u8) -> io::Result<()> {
    set(socket, level, name, &libc::c_int::from(value).to_ne_bytes())
}

fn set(socket: BorrowedFd<'_>, level: libc::c_int, name: libc::c_int, value: &[u8]) -> io::Result<()> {
    // SAFETY: the kernel reads `value.len()` octets at `value`, which lives across the call.
    let answer = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, name, value.as_ptr().cast(), value.len() as libc::socklen_t)
    };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
