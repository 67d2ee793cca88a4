//! A model of a waypoint: written from `docs/wire/platypus.md` alone, octet by octet, with another CMAC.
//!
//! PLA-01: a plain model beside the waypoint on random and mutated packets, by IP and over links: equal.

use std::net::IpAddr;

use cmac::{Cmac, KeyInit, Mac};
use wayleave_core::{Afi, Prefix};
use wayleave_packet::platypus::verify::{Arrival, Link, Policy, Verdict, Waypoint};

use super::packets;
use super::random::Random;
use super::world;

/// A waypoint as the model knows it.
pub(crate) struct Here {
    pub(crate) address: IpAddr,
    pub(crate) key: [u8; 16],
    pub(crate) narrow: bool,
    /// Networks by their first octets: waypoints that the provider runs, and that peers run, and those behind two links, with
    /// the sources behind these if they are named; own networks, senders within these, and customers.
    pub(crate) own: Vec<Vec<u8>>,
    pub(crate) peers: Vec<Vec<u8>>,
    pub(crate) behind: [Behind; 2],
    pub(crate) refused: Vec<Vec<u8>>,
    pub(crate) sources: Vec<Vec<u8>>,
    pub(crate) customers: Vec<Vec<u8>>,
}

/// What is behind a link.
#[derive(Default)]
pub(crate) struct Behind {
    own: Vec<Vec<u8>>,
    peers: Vec<Vec<u8>>,
    sources: Option<Vec<Vec<u8>>>,
}

impl Here {
    /// A waypoint that allows what those of the other tests do.
    pub(crate) fn new(address: IpAddr, key: [u8; 16]) -> Self {
        let peers = vec![vec![198, 51, 100], vec![0x20, 1, 0xd, 0xb8, 0, 1, 0, 0]];
        let (own, behind, refused, sources, customers) = Default::default();
        Self { address, key, narrow: true, own, peers, behind, refused, sources, customers }
    }

    /// At the first waypoint the outer source is the original one; later it is a waypoint that the provider or a configured
    /// peer runs, and never just an address that the sender wrote: neither into the list, nor, at the other end of a link,
    /// into the outer header. Over a link paths begin from the sources that it names, and where it names none from any, but for
    /// links of peers. No packet comes from own networks, but from hosts in them that stamp, and their packets come from
    /// these themselves or by the provider's waypoints. Nor do customers' packets come by a peer's, whoever sends them on.
    fn is_source_right(&self, outer: &[u8], original: &[u8], visited: &[Listed], arrival: Arrival) -> bool {
        let is_in = |networks: &[Vec<u8>], address: &[u8]| networks.iter().any(|network| address.starts_with(network));
        let size = outer.len();
        let by_the_provider = |one: &Listed| {
            let address = &one.bare[..size];
            address == octets(self.address)
                || is_in(&self.own, address)
                || self.behind.iter().any(|link| is_in(&link.own, address))
        };
        let is_one_by_one = match (visited.last().map(|one| &one.bare[..size]), arrival) {
            (None, Arrival::Ip) => outer == original,
            (None, Arrival::Link(number)) => {
                let Behind { peers, sources, .. } = &self.behind[usize::from(number) - 1];
                let may_begin = sources.as_ref().map_or(peers.is_empty(), |sources| is_in(sources, original));
                outer == original && may_begin
            }
            (Some(before), _) if outer != before => false,
            (Some(before), Arrival::Ip) => {
                before == octets(self.address) || is_in(&self.own, before) || is_in(&self.peers, before)
            }
            (Some(before), Arrival::Link(number)) => {
                let Behind { own, peers, .. } = &self.behind[usize::from(number) - 1];
                is_in(own, before) || is_in(peers, before)
            }
        };
        let is_allowed = if visited.iter().all(by_the_provider) {
            !is_in(&self.refused, original) || is_in(&self.sources, original)
        } else {
            !is_in(&self.refused, original) && !is_in(&self.customers, original)
        };
        is_one_by_one && is_allowed && !is_martian(original)
    }
}

pub(crate) fn mac(key: &[u8], message: &[u8]) -> Vec<u8> {
    let mut mac = Cmac::<aes::Aes128>::new_from_slice(key).expect("16 octets");
    mac.update(message);
    mac.finalize().into_bytes().to_vec()
}

/// Pads with zeros to a multiple of 16.
fn padded(mut message: Vec<u8>) -> Vec<u8> {
    message.resize(message.len().next_multiple_of(16), 0);
    message
}

fn number(octets: &[u8]) -> u64 {
    octets.iter().fold(0, |number, octet| number << 8 | u64::from(*octet))
}

/// One capability of the list.
struct Listed {
    bare: Vec<u8>,
    binding: Vec<u8>,
    words: u64,
}

/// What the waypoint sends on of what comes by IP; `None` for everything else.
pub(crate) fn process(here: &Here, datagram: &[u8], now: u64) -> Option<Vec<u8>> {
    process_from(here, datagram, Arrival::Ip, &mut false, now)
}

/// The same for a packet that came as `arrival` says; and whether its source is doubtful, so that nobody may be answered.
fn process_from(here: &Here, datagram: &[u8], arrival: Arrival, is_doubtful: &mut bool, now: u64) -> Option<Vec<u8>> {
    let is_ipv6 = match datagram.first()? >> 4 {
        4 => false,
        6 => true,
        _ => return None,
    };
    let (ip_length, size) = if is_ipv6 { (40, 16) } else { (20, 4) };
    if datagram.len() < ip_length {
        return None;
    }
    let (total, protocol, ttl, source, destination);
    if is_ipv6 {
        total = 40 + number(&datagram[4..6]) as usize;
        protocol = datagram[6];
        ttl = 7;
        (source, destination) = (8, 24);
    } else {
        if datagram[0] != 0x45 {
            return None;
        }
        total = number(&datagram[2..4]) as usize;
        protocol = datagram[9];
        ttl = 8;
        (source, destination) = (12, 16);
        let mut header = datagram[..20].to_vec();
        world::write_checksum(&mut header);
        let sum = |header: &[u8]| number(&header[10..12]) % 0xffff;
        if sum(&header) != sum(datagram) {
            return None;
        }
        let fragment = number(&datagram[6..8]);
        if fragment != 0 && fragment != 0x4000 {
            return None;
        }
    }
    if total < ip_length || total > datagram.len() {
        return None;
    }
    let datagram = &datagram[..total];
    let start = match protocol {
        253 => ip_length,
        17 => {
            let udp = &datagram[ip_length..];
            if udp.len() < 8 || number(&udp[2..4]) != 49_253 || number(&udp[4..6]) as usize != udp.len() {
                return None;
            }
            ip_length + 8
        }
        _ => return None,
    };

    let header = &datagram[start..];
    let list_at = 4 + 2 * size + 8;
    if header.len() < list_at || header[0] >> 4 != 1 || header[0] & 1 != 0 || (header[0] & 2 != 0) != is_ipv6 {
        return None;
    }
    let list_end = list_at + 4 * usize::from(header[1]);
    if header.len() < list_end {
        return None;
    }
    let listed = list(&header[list_at..list_end], size)?;
    let mut places = vec![0];
    for one in &listed {
        places.push(places[places.len() - 1] + one.words);
    }
    let index = places.iter().position(|place| *place == u64::from(header[2]))?;
    let current = listed.get(index)?;
    for one in &listed {
        if listed.iter().filter(|other| other.bare[..size] == one.bare[..size]).count() > 2 {
            return None;
        }
    }

    let original = &header[4..4 + size];
    let last = &header[4 + size..4 + 2 * size];
    let nonce = &header[4 + 2 * size..list_at];
    let address = octets(here.address);
    let waypoint = &current.bare[..size];
    if waypoint != address || datagram[destination..destination + size] != address {
        return None;
    }
    *is_doubtful = !here.is_source_right(&datagram[source..source + size], original, &listed[..index], arrival);
    if *is_doubtful {
        return None;
    }
    let is_in = |networks: &[Vec<u8>], address: &[u8]| networks.iter().any(|network| address.starts_with(network));
    let next = listed.get(index + 1).map_or(last, |one| &one.bare[..size]);
    if [last, next].into_iter().any(|to| is_martian(to) || is_in(&here.refused, to)) {
        return None;
    }
    let kind = current.bare[size + 3];
    if kind & 0x20 != 0 && !here.narrow {
        return None;
    }
    if kind & 0x80 != 0 {
        let prefix = &current.bare[size + 8..2 * size + 8];
        let length = usize::from(current.bare[2 * size + 8]);
        if (0..length).any(|i| bit(prefix, i) != bit(last, i)) {
            return None;
        }
    }
    if datagram[ttl] < 2 {
        return None;
    }
    let epoch = number(&current.bare[size + 4..size + 8]) & 0x3fff_ffff;
    if (now >> (kind & 0x1f)).abs_diff(epoch) > 1 {
        return None;
    }
    let stamped = number(&nonce[..4]);
    let ahead = (stamped + (1 << 32) - now % (1 << 32)) % (1 << 32);
    if ahead > 1 && ahead < (1 << 32) - 5 {
        return None;
    }

    let (key, mask) = binding_inputs(&here.key, header, is_ipv6, &listed, index);
    let expected = mac(&key, &mask);
    if expected[..current.binding.len()] != current.binding {
        return None;
    }

    let mut out = datagram.to_vec();
    out[start + 2] = places[index + 1] as u8;
    out[ttl] -= 1;
    out[source..source + size].copy_from_slice(&address);
    let next = next.to_vec();
    out[destination..destination + size].copy_from_slice(&next);
    if protocol == 17 {
        out[start - 2..start].fill(0);
    }
    if !is_ipv6 {
        world::write_checksum(&mut out);
    }
    Some(out)
}

/// The stamping key of capability `index` and what its binding is the MAC of. `header` begins with the Platypus header.
fn binding_inputs(k: &[u8], header: &[u8], is_ipv6: bool, listed: &[Listed], index: usize) -> (Vec<u8>, Vec<u8>) {
    let (size, family) = if is_ipv6 { (16, b'6') } else { (4, b'4') };
    let list_at = 4 + 2 * size + 8;
    let payload = &header[list_at + 4 * usize::from(header[1])..];
    let again = u8::from(listed[..index].iter().any(|one| one.bare == listed[index].bare));
    let mut mask = vec![b'P', b'b', b'1', family, header[3], header[0] | again];
    mask.extend((payload.len() as u16).to_be_bytes());
    mask.extend_from_slice(&header[4..4 + 2 * size]);
    mask.extend_from_slice(&listed[index].bare);
    mask.extend_from_slice(&header[list_at - 8..list_at]);
    mask = padded(mask);
    if header[0] & 4 != 0 {
        mask.push(listed.len() as u8);
        for one in listed {
            mask.extend_from_slice(&one.bare);
        }
        mask = padded(mask);
    }
    mask.extend_from_slice(payload);
    (stamp_key(k, &listed[index], &header[4..4 + size], family), mask)
}

/// What an implementer wants to see of a sound packet that arrives at its waypoint: stamping key, mask, binding.
pub(crate) fn explain(k: &[u8], datagram: &[u8], start: usize) -> [Vec<u8>; 3] {
    let is_ipv6 = datagram[0] >> 4 == 6;
    let size = if is_ipv6 { 16 } else { 4 };
    let header = &datagram[start..];
    let list_at = 4 + 2 * size + 8;
    let listed = list(&header[list_at..list_at + 4 * usize::from(header[1])], size).expect("a sound packet");
    let mut place = 0;
    let is_current = |one: &Listed| {
        place += one.words;
        place > u64::from(header[2])
    };
    let index = listed.iter().position(is_current).expect("a sound packet");
    let (key, mask) = binding_inputs(k, header, is_ipv6, &listed, index);
    [key, mask, listed[index].binding.clone()]
}

/// The capabilities of a list, if it holds whole and sound ones only, at most eight.
fn list(mut octets: &[u8], size: usize) -> Option<Vec<Listed>> {
    let mut listed = Vec::new();
    while !octets.is_empty() {
        let kind = *octets.get(size + 3)?;
        if !(4..=24).contains(&(kind & 0x1f)) {
            return None;
        }
        let mut bare = size + 8;
        match kind >> 6 {
            0 => {}
            1 => return None,
            2 => bare += size + 4,
            _ => bare += size + 8,
        }
        let whole = bare + if kind & 0x20 == 0 { 16 } else { 8 };
        if octets.len() < whole || listed.len() == 8 {
            return None;
        }
        if kind & 0x80 == 0 && octets[size + 4] & 0x40 != 0 {
            return None;
        }
        if kind & 0x80 != 0 {
            let prefix = &octets[size + 8..2 * size + 8];
            let length = usize::from(octets[2 * size + 8]);
            if length > 8 * size || (length..8 * size).any(|i| bit(prefix, i)) {
                return None;
            }
            if kind & 0x40 != 0 && usize::from(octets[2 * size + 12]) > length {
                return None;
            }
            if octets[size + 4] & 0x40 != 0 && length != 8 * size {
                return None;
            }
        }
        listed.push(Listed {
            bare: octets[..bare].to_vec(),
            binding: octets[bare..whole].to_vec(),
            words: (whole / 4) as u64,
        });
        octets = &octets[whole..];
    }
    Some(listed)
}

fn stamp_key(k: &[u8], capability: &Listed, source: &[u8], family: u8) -> Vec<u8> {
    let size = source.len();
    let label = |purpose: u8| vec![b'P', purpose, b'1', family];
    let bare = &capability.bare;
    let kind = bare[size + 3];
    let mut block = label(b's');
    block.extend_from_slice(&bare[..size + 3]);
    block.push(kind & 0x1f);
    let is_reply = bare[size + 4] & 0x40 != 0;
    block.push(bare[size + 4] & 0xbf);
    block.extend_from_slice(&bare[size + 5..size + 8]);
    let mut s = mac(k, &padded(block));
    if kind & 0x80 == 0 {
        return s;
    }
    let prefix = &bare[size + 8..2 * size + 8];
    let length = usize::from(bare[2 * size + 8]);
    let mut block = label(b'd');
    block.extend_from_slice(&bare[2 * size + 9..2 * size + 12]);
    s = mac(&s, &padded(block));
    for i in 0..=length {
        if kind & 0x40 != 0 && usize::from(bare[2 * size + 12]) == i {
            let mut block = label(b'u');
            block.extend_from_slice(&bare[2 * size + 12..2 * size + 16]);
            s = mac(&s, &padded(block));
        }
        if i < length {
            let mut block = label(b't');
            block.extend([i as u8 + 1, u8::from(bit(prefix, i))]);
            s = mac(&s, &padded(block));
        }
    }
    let mut block = label(if is_reply { b'r' } else { b'k' });
    block.push(length as u8);
    if is_reply {
        block.extend_from_slice(source);
    }
    mac(&s, &padded(block))
}

fn bit(octets: &[u8], i: usize) -> bool {
    octets[i / 8] & (0x80 >> (i % 8)) != 0
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

fn is_martian(octets: &[u8]) -> bool {
    let starts = |prefix: &[u8]| octets.starts_with(prefix);
    match octets.len() {
        4 => starts(&[0]) || starts(&[127]) || octets[0] >= 224 || starts(&[169, 254]) || starts(&[192, 0, 0]),
        _ => {
            starts(&[0; 8])
                || starts(&[0xff])
                || starts(&[1, 0, 0, 0, 0, 0, 0, 0])
                || octets[0] == 0xfe && octets[1] >= 0x80
                || starts(&[0, 0x64, 0xff, 0x9b, 0, 0, 0, 0, 0, 0, 0, 0]) && is_martian(&octets[12..])
                || starts(&[0x20, 0x02]) && is_martian(&octets[2..6])
        }
    }
}

/// A network of a waypoint's family by its first octets.
fn network(first: &[u8], like: IpAddr) -> Prefix {
    let mut octets = first.to_vec();
    octets.resize(16, 0);
    let length = 8 * first.len() as u8;
    let address = match like {
        IpAddr::V4(_) => IpAddr::from(*octets.first_chunk::<4>().expect("four octets")),
        IpAddr::V6(_) => IpAddr::from(*octets.first_chunk::<16>().expect("sixteen octets")),
    };
    Prefix::truncated(address, length.min(if like.is_ipv4() { 32 } else { 128 })).expect("within the family's bits")
}

/// What a waypoint allows: mostly all that is asked for.
fn policy(random: &mut Random, address: IpAddr, all: &[IpAddr]) -> Here {
    let named = |random: &mut Random, one_in: u64| -> Vec<Vec<u8>> {
        all.iter().filter(|_| !random.one_in(one_in)).map(|peer| octets(*peer)).collect()
    };
    let (own, peers) = (named(random, 2), named(random, 12));
    let afi = if address.is_ipv4() { Afi::Ipv4 } else { Afi::Ipv6 };
    let source = octets(world::source_address(afi));
    let size = source.len();
    let networks = |random: &mut Random, one_in: u64| {
        let length = size - random.below(size as u64 / 2) as usize;
        random.one_in(one_in).then(|| source[..length].to_vec()).into_iter().collect()
    };
    let (refused, sources, customers) = (networks(random, 12), networks(random, 2), networks(random, 12));
    let behind = [(); 2].map(|()| {
        let (own, peers) = (named(random, 4), if random.one_in(2) { named(random, 4) } else { Vec::new() });
        Behind { own, peers, sources: (!random.one_in(3)).then(|| networks(random, 2)) }
    });
    Here { own, peers, behind, refused, sources, customers, ..Here::new(address, world::key_octets(address)) }
}

/// What the waypoint and the model make of one packet. Nobody is answered whose address is doubtful.
fn compare(here: &Here, datagram: &[u8], arrival: Arrival, now: u64) -> Option<Vec<u8>> {
    let mut is_doubtful = false;
    let expected = process_from(here, datagram, arrival, &mut is_doubtful, now);
    let networks =
        |networks: &[Vec<u8>]| -> Vec<Prefix> { networks.iter().map(|octets| network(octets, here.address)).collect() };
    let policy = Policy {
        narrow: here.narrow,
        own: networks(&here.own),
        peers: networks(&here.peers),
        links: (here.behind.iter())
            .map(|link| Link {
                own: networks(&link.own),
                peers: networks(&link.peers),
                sources: link.sources.as_deref().map(networks),
            })
            .collect(),
        refused: networks(&here.refused),
        sources: networks(&here.sources),
        customers: networks(&here.customers),
        ..Policy::default()
    };
    let waypoint = Waypoint::new(here.address, world::keys_of(here.address), policy);
    let found = world::process_from(&waypoint, datagram, arrival, now);
    assert!(!is_doubtful || matches!(found, Err(Verdict::Drop(_))), "{found:?} for {datagram:02x?}, {arrival:?}");
    let found = found.ok();
    assert_eq!(found, expected, "{datagram:02x?} at {now}, {arrival:?}");
    found
}

/// Random routes of one to eight waypoints, walked to their end, and mutated at every step.
#[test]
fn the_waypoint_equals_the_model_on_random_and_mutated_packets() {
    let mut random = Random::new(1);
    let (mut forwarded, mut refused) = (0u64, 0u64);
    while forwarded + refused < packets(1_000_000) {
        let (mut datagram, addresses) = world::random_packet(&mut random, world::NOW);
        for address in &addresses {
            let here = Here { narrow: !random.one_in(8), ..policy(&mut random, *address, &addresses) };
            let arrival = if random.one_in(3) { Arrival::Link(1 + random.below(2) as u16) } else { Arrival::Ip };
            for _ in 0..4 {
                let mutant = world::mutate(&mut random, &datagram);
                match compare(&here, &mutant, arrival, world::NOW) {
                    Some(_) => forwarded += 1,
                    None => refused += 1,
                }
            }
            // Now and then it goes on as if it had passed, so that every rule is tried far down the path.
            let passed = compare(&here, &datagram, arrival, world::NOW);
            match &passed {
                Some(_) => forwarded += 1,
                None => refused += 1,
            }
            let all = Here::new(*address, world::key_octets(*address));
            match passed.or_else(|| process(&all, &datagram, world::NOW)) {
                Some(next) => datagram = next,
                None => break,
            }
        }
    }
    assert!(forwarded > refused / 20 && refused > forwarded / 20, "{forwarded} forwarded, {refused} refused");
}
