//! The few commands of bpf(2) that an AF_XDP socket needs: create a map of sockets, load a program, attach it to an
//! interface.

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::checked;

const MAP_CREATE: libc::c_long = 0;
const MAP_UPDATE_ELEM: libc::c_long = 2;
const PROG_LOAD: libc::c_long = 5;
const LINK_CREATE: libc::c_long = 28;
const MAP_TYPE_XSKMAP: u32 = 17;
const PROG_TYPE_XDP: u32 = 6;
const ATTACH_TYPE_XDP: u32 = 37;

/// How a program is attached to an interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) enum Attach {
    /// In the driver.
    Driver = 4,
    /// Behind the driver, in the kernel's own path: works with every driver, and is slower.
    Generic = 2,
}

/// `bpf(command, attributes)`; the attributes are one of the structures below, as `union bpf_attr` lays them out.
fn bpf<T>(command: libc::c_long, attributes: &mut T) -> io::Result<libc::c_int> {
    let attributes = std::ptr::from_mut(attributes);
    // SAFETY: the kernel reads as many octets as it is told there are, and the pointers among them lead to memory that the
    // callers below borrow across the call. None of these commands writes to the attributes beyond their length.
    let answer = unsafe { libc::syscall(libc::SYS_bpf, command, attributes.cast::<c_void>(), size_of::<T>()) };
    checked(answer as libc::c_int)
}

fn descriptor(number: libc::c_int) -> OwnedFd {
    // SAFETY: the kernel has just made this descriptor for us alone.
    unsafe { OwnedFd::from_raw_fd(number) }
}

/// A map from queues to AF_XDP sockets.
pub(in super::super) fn socket_map(queues: u32) -> io::Result<OwnedFd> {
    // Type, octets of a key, octets of a value, entries, flags.
    let mut attributes = [MAP_TYPE_XSKMAP, 4, 4, queues, 0];
    bpf(MAP_CREATE, &mut attributes).map(descriptor)
}

#[repr(C)]
struct Update {
    map: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// Sets the map's entry `queue` to `socket`.
pub(in super::super) fn put(map: BorrowedFd<'_>, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
    let value = socket.as_raw_fd() as u32;
    let (key_at, value_at) = (std::ptr::from_ref(&queue) as u64, std::ptr::from_ref(&value) as u64);
    let mut attributes = Update { map: map.as_raw_fd() as u32, padding: 0, key: key_at, value: value_at, flags: 0 };
    bpf(MAP_UPDATE_ELEM, &mut attributes).map(drop)
}

#[repr(C)]
struct Load {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    version: u32,
    flags: u32,
}

/// Loads an XDP program.
pub(in super::super) fn load(instructions: &[u64]) -> io::Result<OwnedFd> {
    let license = c"Apache-2.0";
    let mut attributes = Load {
        kind: PROG_TYPE_XDP,
        count: instructions.len() as u32,
        instructions: instructions.as_ptr() as u64,
        license: license.as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log: 0,
        version: 0,
        flags: 0,
    };
    bpf(PROG_LOAD, &mut attributes).map(descriptor)
}

/// Attaches a program to an interface, until the answer is dropped.
pub(in super::super) fn attach(program: BorrowedFd<'_>, interface: u32, how: Attach) -> io::Result<OwnedFd> {
    let mut attributes = [program.as_raw_fd() as u32, interface, ATTACH_TYPE_XDP, how as u32, 0, 0];
    bpf(LINK_CREATE, &mut attributes).map(descriptor)
}
