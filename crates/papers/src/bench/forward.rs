//! Forwarding in memory: no processing, IPv4 lookup, SCION and SCION of 2015. The caller's closure is the clock.

use std::time::Duration;

use wayleave_core::{Instant, Now, UnixTime};
use wayleave_crypto::lanes::{Aes128, CmacKey, CpuKernel};
use wayleave_crypto::prg::Prg;
use wayleave_dataplane::frame::{BURST, Frame, Ingress};
use wayleave_dataplane::scion::delivery::LocalDelivery;
use wayleave_dataplane::scion::{Action, Config, Interface, Keys, Link, Owner, Router};
use wayleave_packet::scion::{
    Direction, ForwardingKey, Header, HostAddress, IsdAs, Packet, Path, PathBuilder, Segment, next_header,
};

use super::slots::{Headroom, PACKETS, Slots};
use crate::dir24::Dir24;
use crate::ipv4;
use crate::scion_2015::Switch;
use crate::scion_2015::{HalfPath, OpaqueKey, join};

/// Unix seconds at which all packets are valid.
const TIME: u32 = 1_800_000_000;
/// Ingress and egress interface.
const IN: u16 = 17;
const OUT: u16 = 42;

/// What is done with each packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ForwardTask {
    /// One octet is read and written, which is the least that memory allows.
    None,
    /// DIR-24-8 lookup of the IPv4 destination; TTL and checksum are rewritten.
    Ip,
    /// A transit hop of today's SCION.
    Scion,
    /// The same on paths of three to eight hops in random order, so that packets of a burst seldom share a flow class.
    ScionMixed,
    /// A transit hop of SCION of 2015.
    Scion2015,
}

impl ForwardTask {
    /// Octets of the shortest packet: where there are hops, a header with three of them and eight octets of payload.
    #[must_use]
    pub fn least(self) -> usize {
        match self {
            Self::None | Self::Ip => 20,
            Self::Scion => 92,
            Self::ScionMixed => 152,
            Self::Scion2015 => 56,
        }
    }
}

/// Packets in their slots, and what processes them.
pub struct ForwardBench {
    slots: Slots,
    /// Copies of the headers, restored after each pass.
    fresh: Vec<u8>,
    header: usize,
    engine: Engine,
    /// IPv4 destinations, different ones in every pass: a router looks up more of its table than a cache holds.
    destinations: Vec<u32>,
    passes: usize,
}

impl std::fmt::Debug for ForwardBench {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ForwardBench of packets of {} octets", self.slots.length())
    }
}

enum Engine {
    None,
    Ip(Box<Dir24>),
    Scion(Box<Router>),
    Scion2015(Box<Switch>),
}

impl ForwardBench {
    /// Packets of `length` octets, or of the least length, generated from `seed`. [`ForwardTask::Ip`] looks up `routes`.
    ///
    /// # Errors
    /// If the routes do not make a table.
    pub fn new(
        work: ForwardTask,
        length: usize,
        routes: &[(u32, u8, u16)],
        kernel: CpuKernel,
        headroom: Headroom,
        seed: u8,
    ) -> Result<Self, crate::dir24::TableError> {
        let mut slots = Slots::new(length.max(work.least()), headroom);
        let length = slots.length();
        let random = Prg::new(&[seed; 16]);
        let mut draw = [[0u8; 16]; PACKETS];
        random.fill(0, draw.as_flattened_mut());
        let cmac = CmacKey::with_kernel(&[seed; 16], kernel);
        let aes = Aes128::with_kernel(&[seed; 16], kernel);
        let (scion, opaque) = (ForwardingKey::from_cmac(cmac), OpaqueKey::from_aes(aes));
        for (slot, draw) in slots.iter_mut().zip(&draw) {
            let packet = match work {
                ForwardTask::None => vec![0; length],
                ForwardTask::Ip => ip_packet(length, routes, draw),
                ForwardTask::Scion => scion_packet(length, &scion, draw, 3),
                ForwardTask::ScionMixed => scion_packet(length, &scion, draw, 3 + usize::from(draw[14]) % 6),
                ForwardTask::Scion2015 => scion_2015_packet(length, &opaque, draw),
            };
            slot.copy_from_slice(&packet);
        }
        let engine = match work {
            ForwardTask::None => Engine::None,
            ForwardTask::Ip => Engine::Ip(Box::new(Dir24::new(routes)?)),
            ForwardTask::Scion | ForwardTask::ScionMixed => {
                Engine::Scion(Box::new(Router::new(&config(scion)).expect("our own configuration")))
            }
            ForwardTask::Scion2015 => Engine::Scion2015(Box::new(Switch::new(opaque, &[IN, OUT]))),
        };
        let header = length.min(128);
        let fresh = slots.fronts(header);
        let destinations = if work == ForwardTask::Ip { destinations(routes, &random) } else { Vec::new() };
        Ok(Self { slots, fresh, header, engine, destinations, passes: 0 })
    }

    /// Octets of each packet.
    #[must_use]
    pub fn length(&self) -> usize {
        self.slots.length()
    }

    /// Processes every packet once and restores it. Returns how many were forwarded, and the time without the restoring.
    pub fn pass(&mut self, clock: &mut impl FnMut() -> Duration) -> (usize, Duration) {
        let now = Now { instant: Instant(0), unix: UnixTime(u64::from(TIME + 60) * 1_000_000) };
        let mut forwarded = 0;
        let start = clock();
        for mut frames in self.slots.frames(Ingress::External(IN)) {
            let actions = match &mut self.engine {
                Engine::None => none(&mut frames),
                Engine::Ip(table) => ip(table, &mut frames),
                Engine::Scion(router) => router.process(&mut frames, now),
                Engine::Scion2015(switch) => switch.process(&mut frames),
            };
            forwarded += actions.iter().filter(|action| matches!(action, Action::Forward(_))).count();
        }
        let took = clock().saturating_sub(start);
        self.slots.put_back(&self.fresh, self.header);
        self.passes += 1;
        let first = self.passes * PACKETS;
        for (number, slot) in self.slots.iter_mut().enumerate().take(self.destinations.len()) {
            let dst = self.destinations[(first + number) % self.destinations.len()];
            slot[16..20].copy_from_slice(&dst.to_be_bytes());
        }
        (forwarded, took)
    }
}

fn config(key: ForwardingKey) -> Config {
    let interface = |id, link, asn| Interface { id, link, neighbor: IsdAs::new(1, asn), owner: Owner::This };
    Config {
        isd_as: IsdAs::new(1, 200),
        address: HostAddress::V4([192, 0, 2, 1].into()),
        siblings: 0,
        interfaces: vec![interface(IN, Link::Parent, 100), interface(OUT, Link::Child, 300)],
        keys: Keys::one(key),
        local: LocalDelivery {
            discovery: None,
            control: None,
            end_host_ports: [31_000, 32_767],
            shared_port: 30_041,
            is_on_loopback: false,
        },
        answers_per_second: 100,
        answers_burst: 10,
    }
}

/// A transit hop in construction direction, the second of `hops`.
fn scion_packet(length: usize, key: &ForwardingKey, draw: &[u8; 16], hops: usize) -> Vec<u8> {
    let other = ForwardingKey::new(draw);
    let mut segment = Segment::new(u16::from_be_bytes([draw[0], draw[1]]), TIME);
    segment.extend(&other, 63, 0, 7, &[]);
    segment.extend(key, 63, IN, OUT, &[]);
    (3..hops).for_each(|_| segment.extend(&other, 63, 9, 10, &[]));
    segment.extend(&other, 63, 9, 0, &[]);
    let path = PathBuilder::new().segment(&segment, 0..hops, Direction::Construction).and_then(PathBuilder::build);
    let mut path = path.expect("three hops or more are a path");
    path.infos[0].seg_id = segment.beta(1);
    path.meta.current_hop = 1;
    let mut header = Header {
        traffic_class: 0,
        flow_id: u32::from_be_bytes([draw[2], draw[3], draw[4], draw[5]]) >> 12,
        next_header: next_header::UDP,
        dst: IsdAs::new(1, 300),
        src: IsdAs::new(1, 100),
        dst_host: HostAddress::V4([draw[6], draw[7], draw[8], draw[9]].into()),
        src_host: HostAddress::V4([draw[10], draw[11], draw[12], draw[13]].into()),
        path: Path::Standard(path),
    };
    header.flow_id |= 1;
    let payload = vec![0; length - header.wire_len()];
    Packet { header, payload }.encode()
}

/// A transit hop in the down half, the second of three.
fn scion_2015_packet(length: usize, key: &OpaqueKey, draw: &[u8; 16]) -> Vec<u8> {
    let other = OpaqueKey::new(draw);
    let mut down = HalfPath::default();
    down.extend(&other, 0, u16::from_be_bytes([draw[0], draw[1]]));
    down.extend(key, IN, OUT);
    down.extend(&other, 9, 0);
    let (src, dst) = draw.split_at(8);
    let (src, dst) = (src.try_into().expect("eight octets"), dst.try_into().expect("eight octets"));
    let mut header = join(&HalfPath::default(), &down, src, dst, next_header::UDP).expect("three fields");
    header.pointer = 1;
    let fixed = header.encode(&[]).len();
    header.encode(&vec![0; length - fixed])
}

/// A million addresses, each under one of `routes`.
fn destinations(routes: &[(u32, u8, u16)], random: &Prg) -> Vec<u32> {
    let mut draws = vec![[0u8; 8]; 1 << 20];
    random.fill(1 << 32, draws.as_flattened_mut());
    draws.iter().map(|draw| destination(routes, draw)).collect()
}

/// An address under one of `routes`.
fn destination(routes: &[(u32, u8, u16)], draw: &[u8; 8]) -> u32 {
    let number = |at: usize| u32::from_be_bytes([draw[at], draw[at + 1], draw[at + 2], draw[at + 3]]);
    routes
        .get(number(0) as usize % routes.len().max(1))
        .map_or(number(4), |(prefix, bits, _)| prefix | number(4).checked_shr((*bits).into()).unwrap_or(0))
}

/// An IPv4 header to an address under one of `routes`.
fn ip_packet(length: usize, routes: &[(u32, u8, u16)], draw: &[u8; 16]) -> Vec<u8> {
    let dst = destination(routes, draw.first_chunk().expect("eight octets"));
    let mut packet = vec![0; length];
    let [l0, l1] = (length as u16).to_be_bytes();
    packet[..12].copy_from_slice(&[0x45, 0, l0, l1, 0, 0, 0x40, 0, 64, 17, 0, 0]);
    packet[12..16].copy_from_slice(&draw[8..12]);
    packet[16..20].copy_from_slice(&dst.to_be_bytes());
    ipv4::write_checksum(&mut packet);
    packet
}

/// A trace of the paper of 2015, Table 1: packets, octets, and the overhead that the paper prints.
pub const TABLE_1: [(u64, f64, f64); 3] =
    [(1_012_841_645, 704.53e9, 0.0442), (1_878_632_515, 1_609.67e9, 0.0359), (2_256_208_197, 1_546.03e9, 0.0449)];

/// The share of opaque fields in all octets sent, if `packets` with `octets` in all carry `hops` fields each.
#[must_use]
pub fn overhead(packets: u64, octets: f64, hops: u32) -> f64 {
    let added = packets as f64 * 8.0 * f64::from(hops);
    added / (octets + added)
}

/// A sender of SCION packets: it copies a header in front of each payload. It computes no MAC, since hop fields come with
/// the path.
#[derive(Debug)]
pub struct ScionStampBench {
    slots: Slots,
    headers: Vec<Vec<u8>>,
}

impl ScionStampBench {
    /// Packets of `length` octets, or of the least length, on 64 paths of three hops.
    #[must_use]
    pub fn new(length: usize, headroom: Headroom, seed: u8) -> Self {
        let key = ForwardingKey::new(&[seed; 16]);
        let header = |n: u8| {
            scion_packet(ForwardTask::Scion.least(), &key, &[n; 16], 3)[..ForwardTask::Scion.least() - 8].to_vec()
        };
        Self {
            slots: Slots::new(length.max(ForwardTask::Scion.least()), headroom),
            headers: (0..64).map(header).collect(),
        }
    }

    /// Octets of each packet.
    #[must_use]
    pub fn length(&self) -> usize {
        self.slots.length()
    }

    /// Writes every packet's header once; returns how many, and the time.
    pub fn pass(&mut self, clock: &mut impl FnMut() -> Duration) -> (usize, Duration) {
        let start = clock();
        let mut stamped = 0;
        for (slot, header) in self.slots.iter_mut().zip(self.headers.iter().cycle()) {
            let payload = (slot.len() - header.len()) as u16;
            slot[..header.len()].copy_from_slice(header);
            slot[6..8].copy_from_slice(&payload.to_be_bytes());
            stamped += 1;
        }
        (stamped, clock().saturating_sub(start))
    }

    #[cfg(test)]
    fn first(&mut self) -> &[u8] {
        self.slots.iter_mut().next().expect("many")
    }
}

/// [`ForwardTask::None`].
fn none(frames: &mut [Frame<'_>; BURST]) -> [Action; BURST] {
    let mut actions = [Action::default(); BURST];
    for (frame, action) in frames.iter_mut().zip(&mut actions) {
        let pointer = frame.octets[3];
        frame.octets[3] = pointer.wrapping_add(1);
        *action = Action::Forward(u16::from(pointer) + 1);
    }
    actions
}

/// IPv4 forwarding by RFC 1812: version and length, TTL, longest prefix match, checksum by RFC 1624.
fn ip(table: &Dir24, frames: &mut [Frame<'_>; BURST]) -> [Action; BURST] {
    let mut actions = [Action::default(); BURST];
    for (frame, action) in frames.iter_mut().zip(&mut actions) {
        let Some((header, _)) = frame.octets.split_first_chunk_mut::<20>() else { continue };
        if header[0] != 0x45 || header[8] < 2 {
            continue;
        }
        let dst = u32::from_be_bytes([header[16], header[17], header[18], header[19]]);
        let Some(next_hop) = table.lookup(dst) else { continue };
        header[8] -= 1;
        let sum = u32::from(u16::from_be_bytes([header[10], header[11]])) + 0x0100;
        let sum = ((sum & 0xffff) + (sum >> 16)) as u16;
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        *action = Action::Forward(next_hop);
    }
    actions
}

/// A table of `count` routes with the distribution of prefix lengths that public collectors see in the default-free zone,
/// in thousandths. The addresses follow from `seed`.
#[must_use]
pub fn generated_routes(count: usize, seed: u8) -> Vec<(u32, u8, u16)> {
    const SHARES: [(u8, u16); 11] = [
        (24, 600),
        (23, 710),
        (22, 825),
        (21, 875),
        (20, 920),
        (19, 945),
        (18, 960),
        (17, 970),
        (16, 985),
        (14, 995),
        (12, 1000),
    ];
    let mut draw = vec![[0u8; 8]; count];
    Prg::new(&[seed; 16]).fill(0, draw.as_flattened_mut());
    let route = |[a, b, c, d, s0, s1, h0, h1]: &[u8; 8]| {
        let share = u16::from_be_bytes([*s0, *s1]) % 1_000;
        let length = SHARES.iter().find(|(_, up_to)| share < *up_to).map_or(24, |(length, _)| *length);
        // Unicast space from 1.0.0.0 to 223.255.255.255.
        let address = u32::from_be_bytes([1 + a % 223, *b, *c, *d]) & (u32::MAX << (32 - length));
        (address, length, u16::from_be_bytes([*h0, *h1]) % 256 + 1)
    };
    draw.iter().map(route).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_1_of_the_paper_follows_from_its_counts_within_a_thousandth() {
        for (packets, octets, printed) in TABLE_1 {
            assert!((overhead(packets, octets, 4) - printed).abs() < 0.000_5);
        }
    }

    #[test]
    fn a_stamped_packet_is_a_sound_one() {
        let mut bench = ScionStampBench::new(200, Headroom::Staggered, 5);
        assert_eq!(bench.pass(&mut Duration::default).0, PACKETS);
        let layout = wayleave_packet::scion::Layout::decode(bench.first()).expect("sound");
        assert_eq!(layout.position.hops, 3);
    }

    #[test]
    fn every_packet_of_every_benchmark_is_forwarded_in_every_pass() {
        let routes = generated_routes(10_000, 3);
        for work in
            [ForwardTask::None, ForwardTask::Ip, ForwardTask::Scion, ForwardTask::ScionMixed, ForwardTask::Scion2015]
        {
            for length in [64, 1_518] {
                let mut bench =
                    ForwardBench::new(work, length, &routes, CpuKernel::best(), Headroom::Staggered, 5).unwrap();
                for _ in 0..2 {
                    assert_eq!(bench.pass(&mut Duration::default).0, PACKETS, "{work:?} {length}");
                }
            }
        }
    }
}
