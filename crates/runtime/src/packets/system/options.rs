//! Options of sockets.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::checked;

/// Sets an option that is a number.
pub(in super::super) fn set(
    fd: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    set_value(fd, level, name, &value)
}

/// Sets an option that is a plain structure of C.
pub(super) fn set_value<T: Copy>(
    fd: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: &T,
) -> io::Result<()> {
    let length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel reads `length` octets at `value`, which lives across the call.
    checked(unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, std::ptr::from_ref(value).cast(), length) })?;
    Ok(())
}

/// Lets the system queue `octets` bytes to be received and as many to be sent; without privileges, up to its limit.
pub(in super::super) fn buffers(fd: BorrowedFd<'_>, octets: libc::c_int) -> io::Result<()> {
    for (forced, limited) in [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)] {
        if set(fd, libc::SOL_SOCKET, forced, octets).is_err() {
            set(fd, libc::SOL_SOCKET, limited, octets)?;
        }
    }
    Ok(())
}

/// Lets a program of classic BPF choose among the sockets of a reuse-port group, by their index in the order of binding.
pub(in super::super) fn choose_by(fd: BorrowedFd<'_>, program: &[[u32; 2]]) -> io::Result<()> {
    attach(fd, libc::SO_ATTACH_REUSEPORT_CBPF, program)
}

/// Lets a program of classic BPF decide what a socket receives.
pub(in super::super) fn filter_by(fd: BorrowedFd<'_>, program: &[[u32; 2]]) -> io::Result<()> {
    attach(fd, libc::SO_ATTACH_FILTER, program)
}

fn attach(fd: BorrowedFd<'_>, option: libc::c_int, program: &[[u32; 2]]) -> io::Result<()> {
    let mut instructions: Vec<libc::sock_filter> = program
        .iter()
        .map(|[head, k]| libc::sock_filter { code: (head >> 16) as u16, jt: (head >> 8) as u8, jf: *head as u8, k: *k })
        .collect();
    // The kernel copies the instructions during the call that `set_value` makes, while they live.
    let program = libc::sock_fprog { len: instructions.len() as u16, filter: instructions.as_mut_ptr() };
    set_value(fd, libc::SOL_SOCKET, option, &program)
}
