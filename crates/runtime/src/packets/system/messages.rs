//! Datagrams in batches, with the segment sizes of offloads.

use std::io;
use std::mem::{MaybeUninit, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::null_mut;

use super::checked;
use super::link::{LINK, LinkAddress};

/// Bytes of an address of either family.
const ADDRESS: usize = size_of::<libc::sockaddr_in6>();

/// An address as the kernel reads and writes it.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct RawAddress([u8; ADDRESS]);

/// Bytes for two control messages with a number in each.
const CONTROL: usize = 48;

/// A buffer for control messages.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control([u8; CONTROL]);

/// A received message.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Received {
    pub(in super::super) length: usize,
    /// The length of its packets; zero if it is one packet.
    pub(in super::super) segment: usize,
    pub(in super::super) from: SocketAddr,
    /// It was longer than the memory for it.
    pub(in super::super) is_cut: bool,
}

/// What the system says of the header of a message that a raw socket of IPv6 received.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(in super::super) struct HeaderFields {
    /// Traffic class and flow label, in 28 bits.
    pub(in super::super) flow: u32,
    pub(in super::super) hop_limit: u8,
}

/// The structures that `recvmmsg` needs, reused from call to call.
pub(in super::super) struct Receiver {
    headers: Box<[libc::mmsghdr]>,
    buffers: Box<[libc::iovec]>,
    names: Box<[RawAddress]>,
    controls: Box<[Control]>,
}

// SAFETY: the pointers in `headers` and `buffers` are written anew at the beginning of each call, and not used after it.
unsafe impl Send for Receiver {}

impl Receiver {
    /// For at most `most` messages a call.
    pub(in super::super) fn new(most: usize) -> Self {
        Self {
            // SAFETY: all zeros is a valid `mmsghdr`: null pointers and lengths of zero.
            headers: vec![unsafe { zeroed() }; most].into(),
            buffers: vec![libc::iovec { iov_base: null_mut(), iov_len: 0 }; most].into(),
            names: vec![RawAddress([0; ADDRESS]); most].into(),
            controls: vec![Control([0; CONTROL]); most].into(),
        }
    }

    /// Receives messages into `memory`, message `i` at `i * stride` with at most `size` octets. Returns how many came.
    pub(in super::super) fn receive(
        &mut self,
        fd: BorrowedFd<'_>,
        memory: &mut [u8],
        stride: usize,
        size: usize,
    ) -> io::Result<usize> {
        let buffers = memory.chunks_mut(stride).filter(|buffer| buffer.len() >= size);
        let mut count = 0;
        for (index, buffer) in buffers.enumerate().take(self.headers.len()) {
            self.buffers[index] = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: size };
            let header = &mut self.headers[index].msg_hdr;
            header.msg_name = self.names[index].0.as_mut_ptr().cast();
            header.msg_namelen = ADDRESS as libc::socklen_t;
            header.msg_iov = &raw mut self.buffers[index];
            header.msg_iovlen = 1;
            header.msg_control = self.controls[index].0.as_mut_ptr().cast();
            header.msg_controllen = size_of::<Control>() as _;
            header.msg_flags = 0;
            count = index + 1;
        }
        // SAFETY: each of the `count` headers points to an address, a buffer and a control buffer of the lengths it says, which
        // are borrowed mutably across the call and do not overlap.
        let answer = checked(unsafe {
            libc::recvmmsg(fd.as_raw_fd(), self.headers.as_mut_ptr(), count as u32, libc::MSG_DONTWAIT as _, null_mut())
        });
        match answer {
            Ok(count) => Ok(count as usize),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Message `index` of the last call.
    pub(in super::super) fn message(&self, index: usize) -> Received {
        let header = &self.headers[index];
        Received {
            length: header.msg_len as usize,
            segment: self.segment(index),
            from: self.names[index].read(),
            is_cut: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
        }
    }

    /// The number in the control message UDP_GRO, or zero.
    fn segment(&self, index: usize) -> usize {
        let is_gro = |of: &(i32, i32, [u8; 4])| (of.0, of.1) == (libc::SOL_UDP, libc::UDP_GRO);
        let found = self.controls(index).find(is_gro);
        found.map_or(0, |(_, _, number)| usize::try_from(i32::from_ne_bytes(number)).unwrap_or(0))
    }

    /// What the control messages of IPv6 say of message `index` of the last call. Without a flow label and traffic class the system says
    /// nothing of them.
    pub(in super::super) fn header_fields(&self, index: usize) -> HeaderFields {
        let mut fields = HeaderFields::default();
        for (level, kind, number) in self.controls(index) {
            match (level, kind) {
                (libc::IPPROTO_IPV6, libc::IPV6_FLOWINFO) => fields.flow = u32::from_be_bytes(number),
                (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                    fields.hop_limit = u8::try_from(i32::from_ne_bytes(number)).unwrap_or(0);
                }
                _ => {}
            }
        }
        fields
    }

    /// Level, kind and number of each control message.
    fn controls(&self, index: usize) -> impl Iterator<Item = (i32, i32, [u8; 4])> {
        let length = self.headers[index].msg_hdr.msg_controllen.min(CONTROL);
        let mut rest = &self.controls[index].0[..length];
        std::iter::from_fn(move || {
            let (head, level_at) = (size_of::<libc::cmsghdr>(), size_of::<usize>());
            let length = usize::from_ne_bytes(*rest.first_chunk()?);
            let four = |at: usize| rest.get(at..)?.first_chunk::<4>().copied();
            let message = (i32::from_ne_bytes(four(level_at)?), i32::from_ne_bytes(four(level_at + 4)?), four(head)?);
            // CMSG_NXTHDR: each begins at a word.
            rest = rest.get(length.max(head).next_multiple_of(size_of::<usize>())..).unwrap_or_default();
            Some(message)
        })
    }
}

impl RawAddress {
    fn write(address: SocketAddr) -> (Self, libc::socklen_t) {
        let mut out = [0; ADDRESS];
        out[2..4].copy_from_slice(&address.port().to_be_bytes());
        let (family, length) = match address {
            SocketAddr::V4(v4) => {
                out[4..8].copy_from_slice(&v4.ip().octets());
                (libc::AF_INET, size_of::<libc::sockaddr_in>())
            }
            SocketAddr::V6(v6) => {
                out[8..24].copy_from_slice(&v6.ip().octets());
                out[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
                (libc::AF_INET6, ADDRESS)
            }
        };
        out[..2].copy_from_slice(&(family as u16).to_ne_bytes());
        (Self(out), length as libc::socklen_t)
    }

    fn read(&self) -> SocketAddr {
        let port = u16::from_be_bytes([self.0[2], self.0[3]]);
        if u16::from_ne_bytes([self.0[0], self.0[1]]) == libc::AF_INET6 as u16 {
            let mut octets = [0; 16];
            octets.copy_from_slice(&self.0[8..24]);
            // Without its link, a link-local address cannot be answered.
            let scope = u32::from_ne_bytes([self.0[24], self.0[25], self.0[26], self.0[27]]);
            return SocketAddrV6::new(Ipv6Addr::from(octets), port, 0, scope).into();
        }
        SocketAddr::new(IpAddr::V4(Ipv4Addr::new(self.0[4], self.0[5], self.0[6], self.0[7])), port)
    }
}

/// The structures that `sendmmsg` needs, reused from call to call: messages are gathered, and then sent at once.
#[derive(Default)]
pub(in super::super) struct Sender {
    messages: Vec<Message>,
    pieces: Vec<libc::iovec>,
    names: Vec<(RawAddress, libc::socklen_t)>,
    controls: Vec<Control>,
    headers: Vec<libc::mmsghdr>,
}

/// The pieces of a message among `Sender::pieces`, and the length of the packets that it is cut into.
struct Message {
    first: usize,
    count: usize,
    segment: u16,
}

// SAFETY: as of `Receiver`.
unsafe impl Send for Sender {}

impl Sender {
    /// Removes all messages.
    pub(in super::super) fn clear(&mut self) {
        self.messages.clear();
        self.pieces.clear();
        self.names.clear();
    }

    /// Begins a message to `to`.
    pub(in super::super) fn begin(&mut self, to: SocketAddr) {
        self.messages.push(Message { first: self.pieces.len(), count: 0, segment: 0 });
        self.names.push(RawAddress::write(to));
    }

    /// Begins a message to a neighbour on a link.
    pub(in super::super) fn begin_on_link(&mut self, to: &LinkAddress) {
        self.messages.push(Message { first: self.pieces.len(), count: 0, segment: 0 });
        let mut name = [0; ADDRESS];
        name[..LINK].copy_from_slice(&to.0);
        self.names.push((RawAddress(name), LINK as libc::socklen_t));
    }

    /// Appends octets to the message, by reference. [`Self::send`] checks that they lie in the memory that it borrows.
    pub(in super::super) fn append(&mut self, octets: &[u8]) {
        let Some(message) = self.messages.last_mut() else { return };
        let base = octets.as_ptr().cast_mut().cast();
        if message.count > 0
            && let Some(last) = self.pieces.last_mut()
            && last.iov_base.wrapping_byte_add(last.iov_len) == base
        {
            last.iov_len += octets.len();
            return;
        }
        message.count += 1;
        self.pieces.push(libc::iovec { iov_base: base, iov_len: octets.len() });
    }

    /// Lets the system cut the message into packets of `length` octets.
    pub(in super::super) fn cut(&mut self, length: u16) {
        if let Some(message) = self.messages.last_mut() {
            message.segment = length;
        }
    }

    /// Whether the message may have another piece (UIO_MAXIOV).
    pub(in super::super) fn has_capacity(&self) -> bool {
        self.messages.last().is_some_and(|message| message.count < 1024)
    }

    /// Sends the messages from number `first` on, whose octets lie in `memory`. Returns how many the system accepted, at
    /// least one.
    pub(in super::super) fn send(&mut self, fd: BorrowedFd<'_>, memory: &[u8], first: usize) -> io::Result<usize> {
        let within = memory.as_ptr_range();
        let lies_within = |piece: &libc::iovec| {
            let begin = piece.iov_base.cast_const().cast::<u8>();
            within.start <= begin && begin.wrapping_add(piece.iov_len) <= within.end
        };
        assert!(self.pieces.iter().all(lies_within), "a message's octets lie elsewhere");
        self.write_headers();
        let rest = &mut self.headers[first..];
        // SAFETY: each header points to an address, pieces and a control buffer in vectors of ours that are not touched until
        // the call returns; the pieces lie within `memory`, as was just asserted, which is borrowed across the call. The
        // kernel reads them only.
        let sent = checked(unsafe {
            libc::sendmmsg(fd.as_raw_fd(), rest.as_mut_ptr(), rest.len() as u32, libc::MSG_DONTWAIT as _)
        })?;
        Ok(sent as usize)
    }

    /// Writes the headers, now that the vectors that they point into no longer move.
    fn write_headers(&mut self) {
        self.headers.clear();
        self.controls.clear();
        self.controls.resize(self.messages.len(), Control([0; CONTROL]));
        for (index, message) in self.messages.iter().enumerate() {
            // SAFETY: all zeros is a valid `mmsghdr`.
            let mut header: libc::mmsghdr = unsafe { MaybeUninit::zeroed().assume_init() };
            let (name, length) = &mut self.names[index];
            header.msg_hdr.msg_name = name.0.as_mut_ptr().cast();
            header.msg_hdr.msg_namelen = *length;
            header.msg_hdr.msg_iov = self.pieces[message.first..].as_mut_ptr();
            header.msg_hdr.msg_iovlen = message.count as _;
            if message.segment != 0 {
                let control = &mut self.controls[index].0;
                let (head, level_at) = (size_of::<libc::cmsghdr>(), size_of::<usize>());
                control[..level_at].copy_from_slice(&(head + 2).to_ne_bytes());
                control[level_at..level_at + 4].copy_from_slice(&libc::SOL_UDP.to_ne_bytes());
                control[level_at + 4..level_at + 8].copy_from_slice(&libc::UDP_SEGMENT.to_ne_bytes());
                control[head..head + 2].copy_from_slice(&message.segment.to_ne_bytes());
                header.msg_hdr.msg_control = control.as_mut_ptr().cast();
                header.msg_hdr.msg_controllen = (head + size_of::<usize>()) as _;
            }
            self.headers.push(header);
        }
    }

    /// The number of messages.
    pub(in super::super) fn len(&self) -> usize {
        self.messages.len()
    }
}
