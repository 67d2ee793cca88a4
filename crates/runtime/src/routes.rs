//! Addresses and routes of the system, by netlink (RFC 3549).

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with};
use wayleave_core::Prefix;

/// A metric that is worse than any other route's.
pub const WORST: u32 = 0x7fff_0000;

const NEW_ADDRESS: u16 = 20;
const NEW_ROUTE: u16 = 24;
const DELETE_ROUTE: u16 = 25;
const REQUEST_ACK: u16 = 1 | 4;
const REPLACE_CREATE: u16 = 0x100 | 0x400;
const ERROR: u16 = 2;

/// Attributes of addresses and routes.
mod attribute {
    pub(super) const ADDRESS: u16 = 1;
    pub(super) const LOCAL: u16 = 2;
    pub(super) const FLAGS: u16 = 8;
    pub(super) const DESTINATION: u16 = 1;
    pub(super) const INTERFACE: u16 = 4;
    pub(super) const PRIORITY: u16 = 6;
}

/// No duplicate address detection: nobody else is on the interface.
const NO_DAD: u32 = 2;
const TABLE_MAIN: u8 = 254;
const PROTOCOL_STATIC: u8 = 4;
const UNICAST: u8 = 1;
const BLACKHOLE: u8 = 6;
const SCOPE_LINK: u8 = 253;

/// A socket to the system's routing tables.
#[derive(Debug)]
pub struct Routes {
    socket: OwnedFd,
    sequence: u32,
}

impl Routes {
    /// Opens the socket.
    ///
    /// # Errors
    /// What the system said.
    pub fn open() -> io::Result<Self> {
        // No protocol is protocol 0, NETLINK_ROUTE.
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        Ok(Self { socket, sequence: 0 })
    }

    /// Gives the interface of number `index` an address of its own.
    ///
    /// # Errors
    /// What the system said.
    pub fn add_address(&mut self, index: u32, address: IpAddr) -> io::Result<()> {
        let octets = octets(address);
        let mut body = vec![family(address), octets.len() as u8 * 8, 0, 0];
        body.extend(index.to_ne_bytes());
        attribute(&mut body, attribute::LOCAL, &octets);
        attribute(&mut body, attribute::ADDRESS, &octets);
        if address.is_ipv6() {
            attribute(&mut body, attribute::FLAGS, &NO_DAD.to_ne_bytes());
        }
        self.request(NEW_ADDRESS, REPLACE_CREATE, &body)
    }

    /// Sends packets to `prefix` to the interface of number `index`.
    ///
    /// # Errors
    /// What the system said.
    pub fn add(&mut self, prefix: &Prefix, index: u32) -> io::Result<()> {
        let mut body = head(prefix, UNICAST, SCOPE_LINK);
        attribute(&mut body, attribute::INTERFACE, &index.to_ne_bytes());
        self.request(NEW_ROUTE, REPLACE_CREATE, &body)
    }

    /// Takes [`Routes::add`] back. A route that is not there is no error.
    ///
    /// # Errors
    /// What the system said.
    pub fn remove(&mut self, prefix: &Prefix, index: u32) -> io::Result<()> {
        let mut body = head(prefix, UNICAST, SCOPE_LINK);
        attribute(&mut body, attribute::INTERFACE, &index.to_ne_bytes());
        absent_is_gone(self.request(DELETE_ROUTE, 0, &body))
    }

    /// Drops packets to `prefix` that no other route takes. The route stays when the process ends.
    ///
    /// # Errors
    /// What the system said.
    pub fn add_blackhole(&mut self, prefix: &Prefix) -> io::Result<()> {
        let mut body = head(prefix, BLACKHOLE, 0);
        attribute(&mut body, attribute::PRIORITY, &WORST.to_ne_bytes());
        self.request(NEW_ROUTE, REPLACE_CREATE, &body)
    }

    /// Takes [`Routes::add_blackhole`] back. A route that is not there is no error.
    ///
    /// # Errors
    /// What the system said.
    pub fn remove_blackhole(&mut self, prefix: &Prefix) -> io::Result<()> {
        let mut body = head(prefix, BLACKHOLE, 0);
        attribute(&mut body, attribute::PRIORITY, &WORST.to_ne_bytes());
        absent_is_gone(self.request(DELETE_ROUTE, 0, &body))
    }

    fn request(&mut self, kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
        self.sequence += 1;
        let mut message = Vec::with_capacity(16 + body.len());
        message.extend((16 + body.len() as u32).to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.extend((REQUEST_ACK | flags).to_ne_bytes());
        message.extend(self.sequence.to_ne_bytes());
        message.extend(0u32.to_ne_bytes());
        message.extend(body);
        send(&self.socket, &message, SendFlags::empty())?;
        let mut answer = [0; 4096];
        loop {
            let (length, _) = recv(&self.socket, &mut answer[..], RecvFlags::empty())?;
            let word = |at: usize| u32::from_ne_bytes([answer[at], answer[at + 1], answer[at + 2], answer[at + 3]]);
            let is_answer = length >= 20 && u16::from_ne_bytes([answer[4], answer[5]]) == ERROR;
            if is_answer && word(8) == self.sequence {
                return match word(16).cast_signed() {
                    0 => Ok(()),
                    code => Err(io::Error::from_raw_os_error(-code)),
                };
            }
        }
    }
}

fn absent_is_gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if matches!(error.raw_os_error(), Some(libc::ESRCH | libc::ENODEV)) => Ok(()),
        other => other,
    }
}

/// The `rtmsg` of a route, with its destination.
fn head(prefix: &Prefix, kind: u8, scope: u8) -> Vec<u8> {
    let address = prefix.address();
    // Scopes are IPv4's.
    let scope = if address.is_ipv4() { scope } else { 0 };
    let mut body = vec![family(address), prefix.len(), 0, 0, TABLE_MAIN, PROTOCOL_STATIC, scope, kind, 0, 0, 0, 0];
    attribute(&mut body, attribute::DESTINATION, &octets(address));
    body
}

fn attribute(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
    out.extend((4 + value.len() as u16).to_ne_bytes());
    out.extend(kind.to_ne_bytes());
    out.extend(value);
    out.resize(out.len().next_multiple_of(4), 0);
}

fn family(address: IpAddr) -> u8 {
    if address.is_ipv4() { libc::AF_INET as u8 } else { libc::AF_INET6 as u8 }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}
