//! Somebody on a link: what goes by is seen, and datagrams under anybody's address are sent.

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_recv_buffer_size, set_socket_timeout};
use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with};

use crate::netns::NetworkNamespace;

/// Frames that are kept; the oldest go first.
pub const LIMIT_FRAMES: usize = 200_000;
/// Octets of a frame: a datagram that the system has not cut yet.
const MAX_FRAME: usize = 66 << 10;
/// Octets that the system may queue.
const BUFFERS: usize = 8 << 20;
/// How often a capture looks whether it is to end.
const POLL: Duration = Duration::from_millis(50);
/// `ETH_P_ALL`, in network order.
const EVERYTHING: u32 = 3u16.to_be() as u32;
/// A header of Ethernet, of IPv4 without options, and of UDP.
const ETHERNET: usize = 14;
const IPV4: usize = 20;
const UDP: usize = 8;

/// A UDP datagram over IPv4 as it was seen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Datagram {
    pub from: SocketAddrV4,
    pub to: SocketAddrV4,
    pub payload: Vec<u8>,
}

impl Datagram {
    /// The datagram in an Ethernet frame, if it is one.
    #[must_use]
    pub fn of(frame: &[u8]) -> Option<Self> {
        let packet = frame.get(ETHERNET..).filter(|_| frame[12..ETHERNET] == [8, 0])?;
        let header = usize::from(packet.first()? & 15) * 4;
        if packet.first()? >> 4 != 4 || packet.get(9) != Some(&17) {
            return None;
        }
        let address = |at: usize| packet.get(at..at + 4)?.first_chunk::<4>().map(|octets| Ipv4Addr::from(*octets));
        let udp = packet.get(header..)?;
        let number = |at: usize| udp.get(at..at + 2)?.first_chunk::<2>().map(|octets| u16::from_be_bytes(*octets));
        let length = usize::from(number(4)?);
        Some(Self {
            from: SocketAddrV4::new(address(12)?, number(0)?),
            to: SocketAddrV4::new(address(16)?, number(2)?),
            payload: udp.get(UDP..length)?.to_vec(),
        })
    }
}

type Frames = Arc<Mutex<VecDeque<Vec<u8>>>>;

/// What goes over every interface of a namespace, while this lives.
#[derive(Debug)]
pub struct Capture {
    frames: Frames,
    ends: Arc<AtomicBool>,
}

impl Capture {
    /// Sees every frame of `place` from now on, each at every interface that it passes, and keeps those that `keeps` wants.
    ///
    /// # Errors
    /// What the system said: it needs CAP_NET_RAW there.
    pub fn start(place: &NetworkNamespace, keeps: fn(&[u8]) -> bool) -> io::Result<Self> {
        let protocol = NonZeroU32::new(EVERYTHING).map(Protocol::from_raw);
        let open = || socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, protocol);
        let socket = place.within(open)??;
        set_socket_timeout(&socket, Timeout::Recv, Some(POLL))?;
        set_socket_recv_buffer_size(&socket, BUFFERS)?;
        let (frames, ends) = (Frames::default(), Arc::new(AtomicBool::new(false)));
        let (to, ended) = (Arc::clone(&frames), Arc::clone(&ends));
        std::thread::spawn(move || collect(&socket, keeps, &to, &ended));
        Ok(Self { frames, ends })
    }

    /// What was kept so far.
    #[must_use]
    pub fn frames(&self) -> Vec<Vec<u8>> {
        self.frames.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    /// The datagrams among them.
    #[must_use]
    pub fn datagrams(&self) -> Vec<Datagram> {
        let frames = self.frames.lock().unwrap_or_else(PoisonError::into_inner);
        frames.iter().filter_map(|frame| Datagram::of(frame)).collect()
    }

    /// Forgets what was kept.
    pub fn clear(&self) {
        self.frames.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
    }
}

fn collect(socket: &OwnedFd, keeps: fn(&[u8]) -> bool, to: &Mutex<VecDeque<Vec<u8>>>, ends: &AtomicBool) {
    let mut frame = vec![0; MAX_FRAME];
    while !ends.load(Ordering::Relaxed) {
        // An interface that goes down is told of by an error; the others go on.
        let Ok((length, _)) = recv(socket, &mut frame, RecvFlags::empty()) else { continue };
        if keeps(&frame[..length]) {
            let mut frames = to.lock().unwrap_or_else(PoisonError::into_inner);
            if frames.len() >= LIMIT_FRAMES {
                frames.pop_front();
            }
            frames.push_back(frame[..length].to_vec());
        }
    }
}

/// Sends datagrams under any address.
#[derive(Debug)]
pub struct Forger {
    socket: OwnedFd,
}

impl Forger {
    /// One who is in `place`.
    ///
    /// # Errors
    /// What the system said: it needs CAP_NET_RAW there.
    pub fn new(place: &NetworkNamespace) -> io::Result<Self> {
        // IPPROTO_RAW: the header of IP is in what is sent.
        let protocol = NonZeroU32::new(255).map(Protocol::from_raw);
        let open = || socket_with(AddressFamily::INET, SocketType::RAW, SocketFlags::CLOEXEC, protocol);
        Ok(Self { socket: place.within(open)?? })
    }

    /// Sends a datagram. Its checksum of UDP is zero: none (RFC 768); the system writes that of IP.
    ///
    /// # Errors
    /// What the system said.
    pub fn send(&self, datagram: &Datagram) -> io::Result<()> {
        let (from, to, payload) = (&datagram.from, &datagram.to, &datagram.payload);
        let length = |header: usize| u16::try_from(header + payload.len()).map_err(io::Error::other);
        let mut packet = vec![0x45, 0];
        packet.extend(length(IPV4 + UDP)?.to_be_bytes());
        packet.extend([0, 0, 0, 0, 64, 17, 0, 0]);
        packet.extend(from.ip().octets());
        packet.extend(to.ip().octets());
        packet.extend(from.port().to_be_bytes());
        packet.extend(to.port().to_be_bytes());
        packet.extend(length(UDP)?.to_be_bytes());
        packet.extend([0, 0]);
        packet.extend(payload);
        sendto(&self.socket, &packet, SendFlags::empty(), &SocketAddr::V4(SocketAddrV4::new(*to.ip(), 0)))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_that_carries_a_datagram_is_told_from_others() {
        let mut frame = vec![0; 12];
        frame.extend([8, 0, 0x45, 0, 0, 31, 0, 0, 0, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2]);
        frame.extend([0, 7, 0, 9, 0, 11, 0, 0, 1, 2, 3]);
        let datagram = Datagram::of(&frame).expect("a datagram");
        assert_eq!((datagram.from.port(), datagram.to.port(), &datagram.payload[..]), (7, 9, &[1, 2, 3][..]));
        for length in 0..frame.len() {
            assert_eq!(Datagram::of(&frame[..length]), None, "{length}");
        }
        frame[23] = 6;
        assert_eq!(Datagram::of(&frame), None, "TCP");
    }
}
