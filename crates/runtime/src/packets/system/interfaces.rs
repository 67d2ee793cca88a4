//! Numbers and addresses of network interfaces.

use std::ffi::CString;
use std::io;
use std::mem::zeroed;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::checked;

/// Returns an interface's number.
pub(in super::super) fn index(name: &str) -> io::Result<u32> {
    let name = CString::new(name)?;
    // SAFETY: a string that ends with zero and lives across the call.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(io::Error::last_os_error()),
        index => Ok(index),
    }
}

/// Returns an interface's own Ethernet address; `socket` is any socket in its network namespace.
pub(in super::super) fn ethernet_address(socket: BorrowedFd<'_>, name: &str) -> io::Result<[u8; 6]> {
    let address = hardware_address(socket, name)?;
    if address.sa_family != libc::ARPHRD_ETHER {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "this network interface is no Ethernet"));
    }
    Ok(std::array::from_fn(|octet| address.sa_data[octet] as u8))
}

/// Whether an interface has no link layer: IP packets go to a program by it (TUN), or to WireGuard in the system.
pub(in super::super) fn has_no_link_layer(socket: BorrowedFd<'_>, name: &str) -> io::Result<bool> {
    Ok(hardware_address(socket, name)?.sa_family == libc::ARPHRD_NONE)
}

fn hardware_address(socket: BorrowedFd<'_>, name: &str) -> io::Result<libc::sockaddr> {
    // SAFETY: all zeros is a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, octet) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = octet.cast_signed() as libc::c_char;
    }
    // SAFETY: this request reads the name and writes the address in the structure, which lives across the call.
    checked(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFHWADDR as _, &raw mut request) })?;
    // SAFETY: the call has written this member of the union; any octets are valid in it.
    Ok(unsafe { request.ifr_ifru.ifru_hwaddr })
}
