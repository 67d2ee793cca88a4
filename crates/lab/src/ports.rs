//! Free loopback ports for processes that are about to start.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::ops::{Range, RangeInclusive};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};
use std::{fs, io, process};

/// Ports that this module may choose from.
const OWN: Range<u16> = 12_000..30_000;
/// With fewer ports the same one would be returned again too soon.
const FEW: u16 = 1_000;

/// A free port of 127.0.0.1, for TCP and UDP, in the network namespace of the calling thread.
///
/// A port chosen by the kernel (a bind to port 0) can be assigned to another socket as soon as it is released, and the
/// process that was to have it then fails to bind. So this port is outside the kernel's ephemeral range
/// (`net.ipv4.ip_local_port_range`), and no other call of this process returns it again within hundreds of calls. Only a
/// program that binds to this port explicitly can take it in between. Where the ephemeral range covers nearly all ports,
/// the kernel chooses.
///
/// # Errors
/// If no port is free.
pub fn free_address() -> io::Result<SocketAddr> {
    static CALLS: AtomicU16 = AtomicU16::new(0);
    let Some(ports) = reserved_range().map_or(Some(OWN), |reserved| ports_next_to(&reserved)) else {
        return TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr();
    };
    // Processes that run at the same time begin at different ports.
    let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.subsec_nanos());
    static BEGIN: OnceLock<u32> = OnceLock::new();
    let begin = *BEGIN.get_or_init(|| process::id().wrapping_mul(0x9e37_79b1) >> 16 ^ time >> 8);
    search(&ports, begin, &CALLS)
}

/// The first of the ports that is free, from the one that follows from `begin` and the calls so far.
fn search(ports: &Range<u16>, begin: u32, calls: &AtomicU16) -> io::Result<SocketAddr> {
    for _ in ports.clone() {
        let call = u32::from(calls.fetch_add(1, Ordering::Relaxed));
        let port = ports.start + (begin.wrapping_add(call) % u32::from(ports.end - ports.start)) as u16;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        if TcpListener::bind(address).is_ok() && UdpSocket::bind(address).is_ok() {
            return Ok(address);
        }
    }
    Err(io::Error::new(io::ErrorKind::AddrInUse, format!("all ports of {ports:?} are in use")))
}

/// Ports outside the ephemeral range: below it, else above; `None` if there are few.
fn ports_next_to(reserved: &RangeInclusive<u16>) -> Option<Range<u16>> {
    let below = OWN.start..OWN.end.min(*reserved.start());
    let above = reserved.end().saturating_add(1)..u16::MAX;
    [below, above].into_iter().find(|ports| ports.len() >= usize::from(FEW))
}

/// The ephemeral range (ip(7), `ip_local_port_range`).
fn reserved_range() -> Option<RangeInclusive<u16>> {
    let text = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok()?;
    let mut ends = text.split_whitespace().map(str::parse);
    Some(ends.next()?.ok()?..=ends.next()?.ok()?)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_address_comes_twice_and_none_that_the_system_lends() {
        let reserved = reserved_range().expect("Linux says it");
        let addresses: BTreeSet<SocketAddr> = (0..500).map(|_| free_address().expect("an address")).collect();
        assert_eq!(addresses.len(), 500);
        assert!(
            ports_next_to(&reserved).is_none() || addresses.iter().all(|address| !reserved.contains(&address.port()))
        );
    }

    #[test]
    fn ports_are_taken_below_those_that_are_lent_or_above_or_nowhere() {
        assert_eq!(ports_next_to(&(32_768..=60_999)), Some(12_000..30_000));
        assert_eq!(ports_next_to(&(20_000..=60_999)), Some(12_000..20_000));
        assert_eq!(ports_next_to(&(10_000..=60_999)), Some(61_000..65_535));
        assert_eq!(ports_next_to(&(1_024..=65_535)), None);
    }

    #[test]
    fn an_address_in_use_is_passed_over() {
        let ports = 30_100..30_140;
        let calls = AtomicU16::new(0);
        let first = search(&ports, 0, &calls).expect("an address").port();
        let next = calls.load(Ordering::Relaxed);
        // All but the last two, by one protocol or the other; some may be in use by others already.
        let (tcp, udp) = (TcpListener::bind::<SocketAddr>, UdpSocket::bind::<SocketAddr>);
        let address = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let _tcp: Vec<_> = (first..30_138).step_by(2).map(|port| tcp(address(port))).collect();
        let _udp: Vec<_> = (first + 1..30_138).step_by(2).map(|port| udp(address(port))).collect();
        let calls = AtomicU16::new(next);
        assert!(search(&ports, 0, &calls).expect("an address").port() >= 30_138);
    }
}
