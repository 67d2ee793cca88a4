//! Addresses and routes of the system, by netlink (RFC 3549).

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::net::netdevice::index_to_name;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with};
use tokio::net::{TcpSocket, TcpStream};
use wayleave_core::{Afi, Prefix};

use crate::packets::{has_no_link_layer, set_mark};

/// A metric that is worse than any other route's.
pub const WORST: u32 = 0x7fff_0000;

const NEW_ADDRESS: u16 = 20;
const GET_ADDRESS: u16 = 22;
const NEW_ROUTE: u16 = 24;
const DELETE_ROUTE: u16 = 25;
const GET_ROUTE: u16 = 26;
const NEW_RULE: u16 = 32;
const DELETE_RULE: u16 = 33;
const REQUEST: u16 = 1;
const ACKNOWLEDGE: u16 = 4;
const REPLACE_CREATE: u16 = 0x100 | 0x400;
const REQUEST_CREATE: u16 = 0x200 | 0x400;
const DUMP: u16 = 0x300;
const ERROR: u16 = 2;
const DONE: u16 = 3;

/// Attributes of addresses and routes.
mod attribute {
    pub(super) const ADDRESS: u16 = 1;
    pub(super) const LOCAL: u16 = 2;
    pub(super) const FLAGS: u16 = 8;
    pub(super) const DESTINATION: u16 = 1;
    pub(super) const INTERFACE: u16 = 4;
    pub(super) const GATEWAY: u16 = 5;
    pub(super) const PRIORITY: u16 = 6;
    pub(super) const SEVERAL: u16 = 9;
    pub(super) const VIA: u16 = 18;
    pub(super) const PREFERRED_SOURCE: u16 = 7;
    pub(super) const TABLE: u16 = 15;
}

/// Attributes of rules (`linux/fib_rules.h`).
mod rule {
    pub(super) const DESTINATION: u16 = 1;
    pub(super) const SOURCE: u16 = 2;
    pub(super) const INTERFACE: u16 = 3;
    pub(super) const PRIORITY: u16 = 6;
    pub(super) const MARK: u16 = 10;
    pub(super) const SUPPRESS_PREFIX_LENGTH: u16 = 14;
    pub(super) const TABLE: u16 = 15;
    pub(super) const MASK: u16 = 16;
    pub(super) const USERS: u16 = 20;
}

/// The action of a rule that names a table.
const TO_TABLE: u8 = 1;
/// Packets of this machine's own sockets come from here.
const OWN: &str = "lo";

/// The main table of routes.
pub const MAIN: u32 = 254;

/// Which packets look up their routes in a table of their own (`ip rule`): all conditions must hold.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct RoutingRule {
    pub afi: Afi,
    /// Rules are tried from the least number on.
    pub priority: u32,
    pub table: u32,
    /// The socket's mark.
    pub mark: Option<u32>,
    /// Number of the socket's user.
    pub user: Option<u32>,
    pub source: Option<Prefix>,
    pub destination: Option<Prefix>,
    /// Only packets of this machine's own sockets.
    pub is_own: bool,
    /// Routes of the table to prefixes of at most so many bits do not count.
    pub suppressed: Option<u8>,
}

impl RoutingRule {
    /// A rule for all packets of a family.
    #[must_use]
    pub fn of(afi: Afi, priority: u32, table: u32) -> Self {
        let (mark, user, source, destination, suppressed) = (None, None, None, None, None);
        Self { afi, priority, table, mark, user, source, destination, is_own: false, suppressed }
    }
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

    /// Sends packets to `prefix` to the interface of number `index`, by another table than the main one; sockets without an address take
    /// `source`, if it is given.
    ///
    /// # Errors
    /// What the system said.
    pub fn add_to_table(&mut self, table: u32, prefix: &Prefix, index: u32, source: Option<IpAddr>) -> io::Result<()> {
        let mut body = in_table(head(prefix, UNICAST, SCOPE_LINK), table);
        attribute(&mut body, attribute::INTERFACE, &index.to_ne_bytes());
        if let Some(source) = source {
            attribute(&mut body, attribute::PREFERRED_SOURCE, &octets(source));
        }
        self.request(NEW_ROUTE, REPLACE_CREATE, &body)
    }

    /// Takes [`Routes::add_to_table`] back. A route that is not there is no error.
    ///
    /// # Errors
    /// What the system said.
    pub fn remove_from_table(&mut self, table: u32, prefix: &Prefix, index: u32) -> io::Result<()> {
        let mut body = in_table(head(prefix, UNICAST, SCOPE_LINK), table);
        attribute(&mut body, attribute::INTERFACE, &index.to_ne_bytes());
        absent_is_gone(self.request(DELETE_ROUTE, 0, &body))
    }

    /// Adds a rule. The rule stays when the process ends.
    ///
    /// # Errors
    /// What the system said.
    pub fn add_rule(&mut self, of: &RoutingRule) -> io::Result<()> {
        self.request(NEW_RULE, REQUEST_CREATE, &rule_body(of))
    }

    /// Takes [`Routes::add_rule`] back. A rule that is not there is no error.
    ///
    /// # Errors
    /// What the system said.
    pub fn remove_rule(&mut self, of: &RoutingRule) -> io::Result<()> {
        match self.request(DELETE_RULE, 0, &rule_body(of)) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            other => other,
        }
    }

    /// Removes all rules of a family with this priority. That there is none is no error.
    ///
    /// # Errors
    /// What the system said.
    pub fn remove_rules(&mut self, afi: Afi, priority: u32) -> io::Result<()> {
        let mut body = rule_head(afi, None, None, 0);
        attribute(&mut body, rule::PRIORITY, &priority.to_ne_bytes());
        loop {
            match self.request(DELETE_RULE, 0, &body) {
                Ok(()) => {}
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Drops packets to `prefix` that no other route of the table takes. The route stays when the process ends.
    ///
    /// # Errors
    /// What the system said.
    pub fn add_blackhole_to_table(&mut self, table: u32, prefix: &Prefix) -> io::Result<()> {
        let mut body = in_table(head(prefix, BLACKHOLE, 0), table);
        attribute(&mut body, attribute::PRIORITY, &WORST.to_ne_bytes());
        self.request(NEW_ROUTE, REPLACE_CREATE, &body)
    }

    /// Removes all routes of a table to `prefix`.
    ///
    /// # Errors
    /// What the system said.
    pub fn clear_prefix(&mut self, table: u32, prefix: &Prefix) -> io::Result<()> {
        const ANY_SCOPE: u8 = 255;
        loop {
            match self.request(DELETE_ROUTE, 0, &in_table(head(prefix, 0, ANY_SCOPE), table)) {
                Ok(()) => {}
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Removes all routes of a family from a table.
    ///
    /// # Errors
    /// What the system said.
    pub fn clear_table(&mut self, afi: Afi, table: u32) -> io::Result<()> {
        self.prefixes(afi, table)?.iter().try_for_each(|prefix| self.clear_prefix(table, prefix))
    }

    /// The prefixes to which a table has routes.
    ///
    /// # Errors
    /// What the system said.
    pub fn prefixes(&mut self, afi: Afi, table: u32) -> io::Result<BTreeSet<Prefix>> {
        self.routes(afi, |route| (route.table == table).then_some(route.to))
    }

    /// The prefixes of the networks at which the machine is itself: routes of the main table that name no gateway.
    ///
    /// # Errors
    /// What the system said.
    pub fn beside(&mut self, afi: Afi) -> io::Result<BTreeSet<Prefix>> {
        self.routes(afi, |route| (route.table == MAIN && !route.has_gateway).then_some(route.to))
    }

    /// The routes of all tables.
    ///
    /// # Errors
    /// What the system said.
    pub fn all(&mut self, afi: Afi) -> io::Result<Vec<OtherRoute>> {
        let all = self.routes(afi, |Route { table, to, interface, .. }| Some((table, to, interface)))?;
        let name = |index: u32| index_to_name(&self.socket, index).ok();
        let any = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        let of = |(table, to, interface): (u32, Prefix, Option<u32>)| {
            let interface = interface.and_then(name);
            let is_tunnel = interface.as_deref().is_some_and(|name| has_no_link_layer(any.as_fd(), name));
            OtherRoute { table, to, interface, is_tunnel }
        };
        Ok(all.into_iter().map(of).collect())
    }

    /// The machine's addresses, of all its interfaces and of both families.
    ///
    /// # Errors
    /// What the system said.
    pub fn addresses(&mut self) -> io::Result<BTreeSet<IpAddr>> {
        let mut all = BTreeSet::new();
        for afi in [Afi::Ipv4, Afi::Ipv6] {
            let head = [family_of(afi), 0, 0, 0, 0, 0, 0, 0];
            all.extend(self.dump(GET_ADDRESS, NEW_ADDRESS, &head, read_address)?);
        }
        Ok(all)
    }

    fn routes<T: Ord>(&mut self, afi: Afi, wanted: impl Fn(Route) -> Option<T>) -> io::Result<BTreeSet<T>> {
        let mut head = [0; 12];
        head[0] = family_of(afi);
        self.dump(GET_ROUTE, NEW_ROUTE, &head, |body| read_route(body).and_then(&wanted))
    }

    /// Asks for all there is, and reads the answers of the kind `answer`.
    fn dump<T: Ord>(
        &mut self,
        question: u16,
        answer: u16,
        head: &[u8],
        read: impl Fn(&[u8]) -> Option<T>,
    ) -> io::Result<BTreeSet<T>> {
        self.send(question, DUMP, head)?;
        let mut found = BTreeSet::new();
        let mut buffer = vec![0; 1 << 16];
        loop {
            let (length, _) = recv(&self.socket, &mut buffer[..], RecvFlags::empty())?;
            let mut rest = &buffer[..length.min(buffer.len())];
            while let Some((kind, sequence, body, after)) = split_message(rest) {
                rest = after;
                match kind {
                    _ if sequence != self.sequence => {}
                    DONE => return Ok(found),
                    ERROR => return Err(io::Error::from_raw_os_error(-code(body))),
                    kind if kind == answer => found.extend(read(body)),
                    _ => {}
                }
            }
        }
    }

    fn send(&mut self, kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
        self.sequence += 1;
        let mut message = Vec::with_capacity(16 + body.len());
        message.extend((16 + body.len() as u32).to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.extend((REQUEST | flags).to_ne_bytes());
        message.extend(self.sequence.to_ne_bytes());
        message.extend(0u32.to_ne_bytes());
        message.extend(body);
        send(&self.socket, &message, SendFlags::empty())?;
        Ok(())
    }

    fn request(&mut self, kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
        self.send(kind, ACKNOWLEDGE | flags, body)?;
        let mut answer = [0; 4096];
        loop {
            let (length, _) = recv(&self.socket, &mut answer[..], RecvFlags::empty())?;
            match split_message(&answer[..length.min(answer.len())]) {
                Some((ERROR, sequence, body, _)) if sequence == self.sequence => {
                    return match code(body) {
                        0 => Ok(()),
                        code => Err(io::Error::from_raw_os_error(-code)),
                    };
                }
                _ => {}
            }
        }
    }
}

/// Kind, sequence number and body of the first message, and what is behind it.
fn split_message(octets: &[u8]) -> Option<(u16, u32, &[u8], &[u8])> {
    let (head, _) = octets.split_first_chunk::<16>()?;
    let word = |at: usize| u32::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let length = word(0) as usize;
    let body = octets.get(16..length)?;
    let after = octets.get(length.next_multiple_of(4)..).unwrap_or(&[]);
    Some((u16::from_ne_bytes([head[4], head[5]]), word(8), body, after))
}

/// What an answer says of its request: zero, or the negative number of an error.
fn code(body: &[u8]) -> i32 {
    body.first_chunk().map_or(-libc::EBADMSG, |code| i32::from_ne_bytes(*code))
}

/// A route of any table, for an operator: `table 254 has 198.18.0.0/15 at the interface eth0`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct OtherRoute {
    pub table: u32,
    pub to: Prefix,
    /// None if it drops packets, or the interface is gone.
    pub interface: Option<String>,
    /// It leads to a program's interface (TUN), or to WireGuard's.
    pub is_tunnel: bool,
}

impl fmt::Display for OtherRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { table, to, interface, .. } = self;
        write!(f, "routing table {table} has {to}")?;
        match interface {
            Some(name) => write!(f, " at the interface {name}"),
            None => write!(f, " at no interface"),
        }
    }
}

/// The machine's own address in a message about one (`struct ifaddrmsg`): at an interface with two ends `ADDRESS` is the other one's.
fn read_address(body: &[u8]) -> Option<IpAddr> {
    let (head, mut attributes) = body.split_first_chunk::<8>()?;
    let is_v4 = head[0] == family_of(Afi::Ipv4);
    let (mut local, mut address) = (None, None);
    while let Some((front, _)) = attributes.split_first_chunk::<4>() {
        let length = usize::from(u16::from_ne_bytes([front[0], front[1]]));
        let value = attributes.get(4..length)?;
        let named = || match is_v4 {
            true => value.first_chunk::<4>().map(|octets| IpAddr::from(*octets)),
            false => value.first_chunk::<16>().map(|octets| IpAddr::from(*octets)),
        };
        match u16::from_ne_bytes([front[2], front[3]]) {
            attribute::LOCAL => local = named(),
            attribute::ADDRESS => address = named(),
            _ => {}
        }
        attributes = attributes.get(length.next_multiple_of(4)..).unwrap_or(&[]);
    }
    local.or(address)
}

/// A route, as far as it matters here.
struct Route {
    table: u32,
    to: Prefix,
    interface: Option<u32>,
    has_gateway: bool,
}

fn read_route(body: &[u8]) -> Option<Route> {
    let (head, mut attributes) = body.split_first_chunk::<12>()?;
    let (mut table, mut interface, mut has_gateway) = (u32::from(head[4]), None, false);
    let is_v4 = head[0] == family_of(Afi::Ipv4);
    let mut address = if is_v4 { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) };
    while let Some((front, _)) = attributes.split_first_chunk::<4>() {
        let length = usize::from(u16::from_ne_bytes([front[0], front[1]]));
        let value = attributes.get(4..length)?;
        match u16::from_ne_bytes([front[2], front[3]]) {
            attribute::GATEWAY | attribute::VIA | attribute::SEVERAL => has_gateway = true,
            attribute::INTERFACE => interface = Some(u32::from_ne_bytes(*value.first_chunk()?)),
            attribute::TABLE => table = u32::from_ne_bytes(*value.first_chunk()?),
            attribute::DESTINATION if is_v4 => address = IpAddr::from(*value.first_chunk::<4>()?),
            attribute::DESTINATION => address = IpAddr::from(*value.first_chunk::<16>()?),
            _ => {}
        }
        attributes = attributes.get(length.next_multiple_of(4)..).unwrap_or(&[]);
    }
    Some(Route { table, to: Prefix::truncated(address, head[1]).ok()?, interface, has_gateway })
}

/// The mark of connections to servers that this process opens; zero without one.
static MARK: AtomicU32 = AtomicU32::new(0);

/// Marks the connections to servers that this process opens from now on (`SO_MARK`), for rules that keep them out of the tables of a role
/// that carries packets itself. This needs CAP_NET_ADMIN.
pub fn mark_connections(mark: u32) {
    MARK.store(mark, Ordering::Relaxed);
}

/// Whether this process may mark what it sends.
#[must_use]
pub fn may_mark(mark: u32) -> bool {
    UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|socket| set_mark(socket.as_fd(), mark)).is_ok()
}

/// Opens a connection, marked if that was asked for.
///
/// # Errors
/// What the system said of the last address.
pub(crate) async fn connect(address: &str) -> io::Result<TcpStream> {
    let mark = MARK.load(Ordering::Relaxed);
    if mark == 0 {
        return TcpStream::connect(address).await;
    }
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for to in tokio::net::lookup_host(address).await? {
        let socket = if to.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        set_mark(socket.as_fd(), mark)?;
        match socket.connect(to).await {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
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

/// The same `rtmsg` for a table whose number may be greater than an octet.
fn in_table(mut body: Vec<u8>, table: u32) -> Vec<u8> {
    body[4] = 0;
    attribute(&mut body, attribute::TABLE, &table.to_ne_bytes());
    body
}

fn rule_body(of: &RoutingRule) -> Vec<u8> {
    let mut body = rule_head(of.afi, of.source.as_ref(), of.destination.as_ref(), TO_TABLE);
    attribute(&mut body, rule::PRIORITY, &of.priority.to_ne_bytes());
    attribute(&mut body, rule::TABLE, &of.table.to_ne_bytes());
    if let Some(mark) = of.mark {
        attribute(&mut body, rule::MARK, &mark.to_ne_bytes());
        attribute(&mut body, rule::MASK, &u32::MAX.to_ne_bytes());
    }
    if let Some(user) = of.user {
        attribute(&mut body, rule::USERS, &[user.to_ne_bytes(), user.to_ne_bytes()].concat());
    }
    if let Some(source) = &of.source {
        attribute(&mut body, rule::SOURCE, &octets(source.address()));
    }
    if let Some(destination) = &of.destination {
        attribute(&mut body, rule::DESTINATION, &octets(destination.address()));
    }
    if let Some(length) = of.suppressed {
        attribute(&mut body, rule::SUPPRESS_PREFIX_LENGTH, &u32::from(length).to_ne_bytes());
    }
    if of.is_own {
        attribute(&mut body, rule::INTERFACE, &[OWN.as_bytes(), &[0]].concat());
    }
    body
}

/// The `fib_rule_hdr` of a rule.
fn rule_head(afi: Afi, source: Option<&Prefix>, destination: Option<&Prefix>, action: u8) -> Vec<u8> {
    let length = |prefix: Option<&Prefix>| prefix.map_or(0, Prefix::len);
    vec![family_of(afi), length(destination), length(source), 0, 0, 0, 0, action, 0, 0, 0, 0]
}

fn attribute(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
    out.extend((4 + value.len() as u16).to_ne_bytes());
    out.extend(kind.to_ne_bytes());
    out.extend(value);
    out.resize(out.len().next_multiple_of(4), 0);
}

fn family(address: IpAddr) -> u8 {
    family_of(if address.is_ipv4() { Afi::Ipv4 } else { Afi::Ipv6 })
}

fn family_of(afi: Afi) -> u8 {
    match afi {
        Afi::Ipv4 => libc::AF_INET as u8,
        Afi::Ipv6 => libc::AF_INET6 as u8,
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;

    /// Addresses of documentation, which no machine has.
    #[test]
    fn the_addresses_of_this_machine_are_those_of_all_its_interfaces() {
        let all = Routes::open().and_then(|mut routes| routes.addresses()).expect("no privilege is needed");
        // Whatever the machine has, a socket may be bound to; link-local ones name an interface beside.
        let is_of_link = |address: &IpAddr| matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
        for address in all.iter().filter(|address| !is_of_link(address)) {
            let bound = UdpSocket::bind((*address, 0));
            // One that the system has still to try out.
            assert!(bound.is_ok_and(|socket| socket.local_addr().is_ok()) || address.is_ipv6(), "{address}");
        }
        if let Ok(connected) = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)) {
            assert!(all.contains(&connected.local_addr().expect("bound").ip()), "{all:?}");
        }
        assert!(
            !all.contains(&"192.0.2.255".parse().expect("an address")) && !all.contains(&Ipv6Addr::UNSPECIFIED.into())
        );
    }

    #[test]
    fn at_an_interface_with_two_ends_the_local_one_is_the_machines() {
        let mut body = vec![family_of(Afi::Ipv4), 32, 0, 0, 0, 0, 0, 0];
        attribute(&mut body, attribute::ADDRESS, &[192, 0, 2, 2]);
        attribute(&mut body, attribute::LOCAL, &[192, 0, 2, 1]);
        assert_eq!(read_address(&body), Some(Ipv4Addr::new(192, 0, 2, 1).into()));
        let mut body = vec![family_of(Afi::Ipv6), 64, 0, 0, 0, 0, 0, 0];
        attribute(&mut body, attribute::ADDRESS, &[0x5a; 16]);
        assert_eq!(read_address(&body), Some(IpAddr::from([0x5a; 16])));
        for length in 0..body.len() {
            assert!(read_address(&body[..length]).is_none(), "{length}");
        }
    }
}
