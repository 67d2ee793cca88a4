//! Addresses of the loopback for processes that are yet to start.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicU16, Ordering};
use std::{fs, io, process};

/// The lowest port given out.
const LOW: u16 = 12_000;
/// One above the highest, unless the system lends such ports to others.
const HIGH: u16 = 30_000;

/// A port of 127.0.0.1 that nothing uses, for TCP and for UDP, in the network namespace of the caller's thread.
///
/// A port that the system chooses (a bind to port 0) it may lend again the moment it is let go, to whoever connects or
/// binds next; the process that was to have it then finds it taken. So this one is below those the system lends
/// (`net.ipv4.ip_local_port_range`), and no other call of this process gets the same one within some thousand. Only a
/// program that asks for the very port can take it in between.
///
/// # Errors
/// Where the system lends nearly all ports itself, or all are in use.
pub fn free_address() -> io::Result<SocketAddr> {
    static CALLS: AtomicU16 = AtomicU16::new(0);
    let high = lowest_lent().unwrap_or(HIGH).min(HIGH);
    let Some(range) = high.checked_sub(LOW).filter(|range| *range > 0) else {
        return Err(io::Error::other(format!("the system lends all ports from {high} on to clients")));
    };
    // Processes that run beside each other begin in different places.
    let begin = process::id().wrapping_mul(0x9e37_79b1) >> 16;
    for _ in 0..range {
        let call = CALLS.fetch_add(1, Ordering::Relaxed);
        let port = LOW + ((begin + u32::from(call)) % u32::from(range)) as u16;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        if TcpListener::bind(address).is_ok() && UdpSocket::bind(address).is_ok() {
            return Ok(address);
        }
    }
    Err(io::Error::new(io::ErrorKind::AddrInUse, format!("all ports from {LOW} to {high} are in use")))
}

/// The lowest port that the system lends to a client (ip(7), `ip_local_port_range`).
fn lowest_lent() -> Option<u16> {
    fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok()?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_address_comes_twice_and_none_that_the_system_lends() {
        let lent = lowest_lent().expect("Linux says it");
        let addresses: BTreeSet<SocketAddr> = (0..500).map(|_| free_address().expect("an address")).collect();
        assert_eq!(addresses.len(), 500);
        assert!(addresses.iter().all(|address| address.ip().is_loopback() && address.port() < lent));
    }

    #[test]
    fn an_address_in_use_is_passed_over() {
        let first = free_address().expect("an address").port();
        // Many of those that come next, held by one protocol or the other (some may be in use by others already).
        let held: Vec<SocketAddr> = (first + 1..first + 40).map(|port| (Ipv4Addr::LOCALHOST, port).into()).collect();
        let _tcp: Vec<_> = held.iter().step_by(2).map(TcpListener::bind).collect();
        let _udp: Vec<_> = held.iter().skip(1).step_by(2).map(UdpSocket::bind).collect();
        let next = free_address().expect("an address");
        assert!(!held.contains(&next), "{next}");
    }
}
