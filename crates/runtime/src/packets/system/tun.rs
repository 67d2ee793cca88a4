//! TUN interfaces.

use std::ffi::CStr;
use std::io;
use std::mem::zeroed;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::checked;

/// What a descriptor of `/dev/net/tun` becomes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) enum Kind {
    /// An interface that nobody has yet.
    Interface,
    /// The same, which may have several queues, and its first one.
    FirstQueue,
    /// A further queue of an interface.
    Queue,
}

/// Makes the descriptor of `/dev/net/tun` a TUN interface called `name`, or one of its queues, with a `virtio_net_hdr` in front of each packet.
/// Returns the name that it got.
///
/// # Errors
/// What the system said: `EBUSY` if somebody has the interface. Without asking for that the queues of two programs would share its packets.
pub(in super::super) fn make(fd: BorrowedFd<'_>, name: &str, kind: Kind) -> io::Result<String> {
    /// `IFF_TUN_EXCL`.
    const ALONE: libc::c_int = 0x8000;
    let mut request = named(name)?;
    let of_kind = match kind {
        Kind::Interface => ALONE,
        Kind::FirstQueue => ALONE | libc::IFF_MULTI_QUEUE,
        Kind::Queue => libc::IFF_MULTI_QUEUE,
    };
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR | of_kind) as libc::c_short;
    // SAFETY: this request reads name and flags and writes the name in the structure, which lives across the call.
    checked(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) })?;
    // SAFETY: the kernel wrote a name that ends with zero, as it is shorter than the field.
    let name = unsafe { CStr::from_ptr(request.ifr_name.as_ptr()) };
    Ok(name.to_string_lossy().into_owned())
}

/// Says which unfinished packets the interface may hand over.
pub(in super::super) fn set_offloads(fd: BorrowedFd<'_>, offloads: libc::c_uint) -> io::Result<()> {
    // SAFETY: this request takes a number.
    checked(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETOFFLOAD as _, libc::c_ulong::from(offloads)) })?;
    Ok(())
}

/// Sets the octets of the `virtio_net_hdr`.
pub(in super::super) fn set_header(fd: BorrowedFd<'_>, octets: libc::c_int) -> io::Result<()> {
    // SAFETY: this request reads a number that lives across the call.
    checked(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETVNETHDRSZ as _, &raw const octets) })?;
    Ok(())
}

/// Sets an interface's MTU and takes it up; `socket` is any socket in its network namespace.
pub(in super::super) fn take_up(socket: BorrowedFd<'_>, name: &str, mtu: u32) -> io::Result<()> {
    let mut request = named(name)?;
    request.ifr_ifru.ifru_mtu = mtu.cast_signed();
    // SAFETY: this request reads name and MTU in the structure, which lives across the call.
    checked(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFMTU as _, &raw mut request) })?;
    let mut request = named(name)?;
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: this request reads name and flags in the structure, which lives across the call.
    checked(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &raw mut request) })?;
    Ok(())
}

fn named(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: all zeros is a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { zeroed() };
    if name.is_empty() || name.len() >= request.ifr_name.len() || name.contains('\0') {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, octet) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = octet.cast_signed() as libc::c_char;
    }
    Ok(request)
}
