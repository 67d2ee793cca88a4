//! A TUN interface with offloads: the system hands over large segments whole, and takes them whole.

use std::fs::OpenOptions;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use rustix::io::{Errno, read, writev};
use rustix::net::{AddressFamily, SocketType, socket};

use super::system::{interfaces, tun};

/// Octets of the `virtio_net_hdr` in front of each packet.
pub const HEADER: usize = 10;
/// Octets of the longest packet, with its header.
pub const LONGEST: usize = HEADER + 65_535;

/// `TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6`: checksums and TCP segments are left to us.
const TCP: libc::c_uint = 1 | 2 | 4;
/// `TUN_F_USO4 | TUN_F_USO6`: UDP segments too (Linux 6.2).
const UDP: libc::c_uint = 0x20 | 0x40;

/// An interface, or a queue of one, which ends with this value, or with the last queue.
#[derive(Debug)]
pub struct Tun {
    device: OwnedFd,
    name: String,
    index: u32,
    takes_datagrams: bool,
}

impl Tun {
    /// Makes an interface and takes it up.
    ///
    /// # Errors
    /// What the system said: without `/dev/net/tun`, or without the right to make interfaces, there is none.
    pub fn open(name: &str, mtu: u32) -> io::Result<Self> {
        let tun = Self::open_device(name, tun::Kind::Interface)?;
        tun.take_up(mtu)?;
        Ok(tun)
    }

    /// Makes an interface with `count` queues, for a thread each, and takes it up. The system puts packets of one flow into one queue: the one
    /// into which packets of its other direction were written.
    ///
    /// # Errors
    /// As [`Tun::open`].
    pub fn open_queues(name: &str, mtu: u32, count: usize) -> io::Result<Vec<Self>> {
        if count < 2 {
            return Self::open(name, mtu).map(|tun| vec![tun]);
        }
        let first = Self::open_device(name, tun::Kind::FirstQueue)?;
        let mut all = vec![first];
        for _ in 1..count {
            all.push(Self::open_device(&all[0].name, tun::Kind::Queue)?);
        }
        all[0].take_up(mtu)?;
        Ok(all)
    }

    fn open_device(name: &str, kind: tun::Kind) -> io::Result<Self> {
        let flags = (libc::O_NONBLOCK | libc::O_CLOEXEC).cast_unsigned().cast_signed();
        let device = OpenOptions::new().read(true).write(true).custom_flags(flags).open("/dev/net/tun")?;
        let device = OwnedFd::from(device);
        let name = tun::make(device.as_fd(), name, kind)?;
        tun::set_header(device.as_fd(), HEADER as libc::c_int)?;
        let takes_datagrams = tun::set_offloads(device.as_fd(), TCP | UDP).is_ok();
        if !takes_datagrams {
            tun::set_offloads(device.as_fd(), TCP)?;
        }
        let index = interfaces::index(&name)?;
        Ok(Self { device, name, index, takes_datagrams })
    }

    fn take_up(&self, mtu: u32) -> io::Result<()> {
        let any = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
        tun::take_up(any.as_fd(), &self.name, mtu)
    }

    /// The interface's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The interface's number.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Whether the system knows packets that stand for several datagrams.
    #[must_use]
    pub fn takes_datagrams(&self) -> bool {
        self.takes_datagrams
    }

    /// Reads a packet with its header into `out`, which has room for [`LONGEST`] octets; `None` if none waits.
    ///
    /// # Errors
    /// What the system said.
    pub fn read(&self, out: &mut [u8]) -> io::Result<Option<usize>> {
        match read(&self.device, out) {
            Ok(length) => Ok(Some(length)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Hands a packet to the system. Returns whether it was taken; the system drops it if it has no room.
    ///
    /// # Errors
    /// What the system said of this packet.
    pub fn write(&self, header: &[u8; HEADER], octets: &[u8]) -> io::Result<bool> {
        match writev(&self.device, &[IoSlice::new(header), IoSlice::new(octets)]) {
            Ok(_) => Ok(true),
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}
