//! The system calls of packet I/O that no safe interface covers: messages in batches, rings shared with the kernel, BPF.
//! Nothing is decided here.
#![allow(unsafe_code, reason = "each block says why it is sound")]

pub(super) mod bpf;
pub(super) mod interfaces;
pub(super) mod link;
pub(super) mod messages;
pub(super) mod options;
pub(super) mod rings;
pub(super) mod tun;

use std::io;

/// The answer of a system call that is negative on failure.
fn checked(answer: libc::c_int) -> io::Result<libc::c_int> {
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}
