//! What the stack's protocol sends by, and receives from: packets in memory.

use std::collections::BTreeMap;
use std::net::IpAddr;

use smoltcp::phy::{self, DeviceCapabilities, Medium};
use smoltcp::time::Instant as StackInstant;
use wayleave_core::Instant;

use super::Packet;
use super::icmp::{read_destination, read_ip};

/// What the stack sends by.
#[derive(Default)]
pub(super) struct Device {
    pub(super) mtu: usize,
    /// Packets that may be put out.
    pub(super) capacity: usize,
    pub(super) arrived: Option<Vec<u8>>,
    pub(super) out: Vec<Vec<u8>>,
    /// The MTU of the path to an address, where it is less than that of the link, and since when it is known.
    pub(super) mtus: BTreeMap<IpAddr, (usize, Instant)>,
}

impl Device {
    /// The packets that were put out. The protocol keeps the segments of a connection at one length: those that a path does not take are
    /// cut behind it.
    pub(super) fn take_out(&mut self) -> Vec<Packet> {
        let of = |octets: Vec<u8>| {
            let mtu = || {
                let (mtu, _) = self.mtus.get(&read_destination(&octets)?)?;
                let (_, _, 6, _) = read_ip(&octets)? else { return None };
                let ip = if octets[0] >> 4 == 4 { 20 } else { 40 };
                let headers = ip + usize::from(octets.get(ip + 12)? >> 4) * 4;
                u16::try_from(mtu.checked_sub(headers)?).ok().filter(|_| octets.len() > *mtu)
            };
            let segment = if self.mtus.is_empty() { None } else { mtu() };
            Packet { octets, segment }
        };
        std::mem::take(&mut self.out).into_iter().map(of).collect()
    }
}

impl phy::Device for Device {
    type RxToken<'a> = Arrived;
    type TxToken<'a> = Leave<'a>;

    fn receive(&mut self, _: StackInstant) -> Option<(Arrived, Leave<'_>)> {
        let packet = self.arrived.take()?;
        Some((Arrived(packet), Leave(&mut self.out)))
    }

    fn transmit(&mut self, _: StackInstant) -> Option<Leave<'_>> {
        (self.out.len() < self.capacity).then_some(Leave(&mut self.out))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = self.mtu;
        capabilities
    }
}

pub(super) struct Arrived(Vec<u8>);

impl phy::RxToken for Arrived {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, take: F) -> R {
        take(&self.0)
    }
}

pub(super) struct Leave<'a>(&'a mut Vec<Vec<u8>>);

impl phy::TxToken for Leave<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, write: F) -> R {
        let mut packet = vec![0; length];
        let result = write(&mut packet);
        self.0.push(packet);
        result
    }
}
