//! Addresses of the link layer.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::checked;

/// A neighbour on an Ethernet, as the kernel reads it (`sockaddr_ll`).
#[derive(Clone, Copy)]
pub(in super::super) struct LinkAddress(pub(super) [u8; LINK]);

/// Bytes of a `sockaddr_ll`.
pub(super) const LINK: usize = size_of::<libc::sockaddr_ll>();

impl std::fmt::Debug for LinkAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:02x?}", &self.0[12..18])
    }
}

impl LinkAddress {
    /// The neighbour with the Ethernet address `to` at the interface of number `index`.
    pub(in super::super) fn new(index: u32, ether_type: u16, to: [u8; 6]) -> Self {
        let mut out = [0; LINK];
        out[..2].copy_from_slice(&(libc::AF_PACKET as u16).to_ne_bytes());
        out[2..4].copy_from_slice(&ether_type.to_be_bytes());
        out[4..8].copy_from_slice(&index.to_ne_bytes());
        out[11] = 6; // octets of the address
        out[12..18].copy_from_slice(&to);
        Self(out)
    }
}

/// Returns the number of the interface that a packet socket is bound to; `None` if that was removed.
pub(in super::super) fn bound(fd: BorrowedFd<'_>) -> io::Result<Option<u32>> {
    let mut address = [0u8; LINK];
    let mut length = LINK as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` octets to the address, and both live across the call.
    checked(unsafe { libc::getsockname(fd.as_raw_fd(), address.as_mut_ptr().cast(), &raw mut length) })?;
    let index = i32::from_ne_bytes([address[4], address[5], address[6], address[7]]);
    Ok(u32::try_from(index).ok().filter(|index| *index > 0))
}

/// Binds a packet socket to the address's interface and Ethertype.
pub(in super::super) fn bind(fd: BorrowedFd<'_>, address: &LinkAddress) -> io::Result<()> {
    let length = address.0.len() as libc::socklen_t;
    // SAFETY: the kernel reads `length` octets of the address, which lives across the call.
    checked(unsafe { libc::bind(fd.as_raw_fd(), address.0.as_ptr().cast(), length) })?;
    Ok(())
}
