//! Packets through a network of routers, there and back, and paths spliced from its segments.
//!
//! SCI-03, 08: hop fields spliced between segments, valleys and turns, over a whole topology: refused where the
//! segments meet.
//! SCI-04: replies on reversed paths, shortcuts, peering links: arrive and return.
//! SCI-05, SCMP: every link of many paths down, one after the other: the sender gets the error, and it names the link.

use std::collections::BTreeMap;

use super::fixture::{TIME, at, local};
use crate::common::{Random, times};
use wayleave_core::Now;
use wayleave_dataplane::frame::{Frame, Ingress};
use wayleave_dataplane::scion::{Action, Config, Interface, Keys, Link, Owner, Router};
use wayleave_packet::scion::scmp::Message;
use wayleave_packet::scion::{
    Direction, ForwardingKey, Header, HostAddress, IsdAs, Packet, Path, PathBuilder, Segment, StandardPath, next_header,
};

/// An AS of the network: its links by interface number (the neighbour, the interface there, what the link is to us).
struct As {
    key: ForwardingKey,
    links: BTreeMap<u16, (usize, u16, Link)>,
    router: Router,
}

/// A tree of ASes below a full mesh of cores, with some links between peers.
struct Network {
    ases: Vec<As>,
    /// From a core down to each AS, by every way; for each hop the AS.
    down: Vec<(Vec<usize>, Segment)>,
    /// Between two cores, in the direction of construction.
    core: Vec<(Vec<usize>, Segment)>,
}

fn name(index: usize) -> IsdAs {
    IsdAs::new(1, 0xff00_0000_1000 + index as u64)
}

impl Network {
    fn new(cores: usize, count: usize, seed: u64) -> Self {
        let mut source = Random(seed);
        let mut links: Vec<BTreeMap<u16, (usize, u16, Link)>> = vec![BTreeMap::new(); count];
        let mut join = |a: usize, b: usize, kind: (Link, Link)| {
            let (i, j) = (links[a].len() as u16 + 1, links[b].len() as u16 + 1);
            links[a].insert(i, (b, j, kind.0));
            links[b].insert(j, (a, i, kind.1));
        };
        for a in 0..cores {
            for b in 0..a {
                join(a, b, (Link::Core, Link::Core));
            }
        }
        for child in cores..count {
            // Each AS has one or two providers that came before it.
            let first = source.below(child);
            join(first, child, (Link::Child, Link::Parent));
            if source.one_in(3) {
                let second = source.below(child);
                if second != first {
                    join(second, child, (Link::Child, Link::Parent));
                }
            }
        }
        for _ in 0..count / 4 {
            let (a, b) = (cores + source.below(count - cores), cores + source.below(count - cores));
            if a != b {
                join(a, b, (Link::Peer, Link::Peer));
            }
        }
        let ases: Vec<As> =
            links.into_iter().enumerate().map(|(index, links)| Self::autonomous(index, links)).collect();
        let mut network = Self { ases, down: Vec::new(), core: Vec::new() };
        for core in 0..cores {
            network.beacon(&mut source, vec![core], vec![]);
        }
        network.between_cores(&mut source, cores);
        network
    }

    fn autonomous(index: usize, links: BTreeMap<u16, (usize, u16, Link)>) -> As {
        let mut octets = [0; 16];
        octets[..8].copy_from_slice(&(index as u64 * 0x9e37_79b9).to_be_bytes());
        let key = ForwardingKey::new(&octets);
        let interface = |(&id, &(neighbor, _, link)): (&u16, &(usize, u16, Link))| Interface {
            id,
            link,
            neighbor: name(neighbor),
            owner: Owner::This,
        };
        let config = Config {
            isd_as: name(index),
            address: HostAddress::V4([10, 255, 255, 1].into()),
            siblings: 0,
            interfaces: links.iter().map(interface).collect(),
            keys: Keys::one(key.clone()),
            local: local(),
            answers_per_second: 1_000_000_000,
            answers_burst: 1_000_000,
        };
        As { key, links, router: Router::new(&config).unwrap() }
    }

    /// Passes a beacon on to all customers; `ways` are the interfaces (out, in) taken so far.
    fn beacon(&mut self, source: &mut Random, path: Vec<usize>, ways: Vec<(u16, u16)>) {
        if path.len() > 1 {
            let segment = self.mint(source.next() as u16, &path, &ways);
            self.down.push((path.clone(), segment));
        }
        if path.len() == 6 {
            return;
        }
        let last = *path.last().unwrap();
        for (id, (neighbor, there, link)) in self.ases[last].links.clone() {
            if link == Link::Child && !path.contains(&neighbor) {
                let longer = [path.clone(), vec![neighbor]].concat();
                self.beacon(source, longer, [ways.clone(), vec![(id, there)]].concat());
            }
        }
    }

    fn between_cores(&mut self, source: &mut Random, cores: usize) {
        for a in 0..cores {
            for (id, (b, there, link)) in self.ases[a].links.clone() {
                if link == Link::Core {
                    let path = vec![a, b];
                    let segment = self.mint(source.next() as u16, &path, &[(id, there)]);
                    self.core.push((path, segment));
                }
            }
        }
    }

    fn mint(&self, seg_id: u16, path: &[usize], ways: &[(u16, u16)]) -> Segment {
        let mut segment = Segment::new(seg_id, TIME);
        for (index, &of) in path.iter().enumerate() {
            let ingress = if index == 0 { 0 } else { ways[index - 1].1 };
            let egress = ways.get(index).map_or(0, |way| way.0);
            let links = &self.ases[of].links;
            let peers: Vec<u16> = links.iter().filter(|(_, link)| link.2 == Link::Peer).map(|(id, _)| *id).collect();
            segment.extend(&self.ases[of].key, 63, ingress, egress, &peers);
        }
        segment
    }

    /// Sends a packet from a host in `from`; where it is delivered, and as what.
    fn send(&mut self, from: usize, packet: &Packet, now: Now) -> Result<(usize, Packet), (usize, Action)> {
        let mut octets = packet.encode();
        let (mut here, mut ingress) = (from, Ingress::Internal);
        for _ in 0..100 {
            let mut frames = [Frame { octets: &mut octets, ingress }];
            let action = self.ases[here].router.process(&mut frames, now)[0];
            match action {
                Action::Deliver => return Ok((here, Packet::decode(&octets).unwrap())),
                Action::Forward(out) => {
                    let (next, there, _) = self.ases[here].links[&out];
                    (here, ingress) = (next, Ingress::External(there));
                }
                other => return Err((here, other)),
            }
        }
        panic!("a packet that never ends");
    }

    /// Sends a packet, and follows the error that a router on its way makes of it back to a host. Returns that host's AS, and
    /// the error.
    fn send_into_trouble(&mut self, from: usize, packet: &Packet, now: Now) -> (usize, Vec<u8>) {
        let mut octets = packet.encode();
        let (mut here, mut ingress) = (from, Ingress::Internal);
        for _ in 0..200 {
            let mut frames = [Frame { octets: &mut octets, ingress }];
            let router = &mut self.ases[here].router;
            let action = router.process(&mut frames, now)[0];
            let (next, there) = match (action, ingress) {
                (Action::Deliver, _) => return (here, octets),
                (Action::Forward(out), _) => (self.ases[here].links[&out].0, self.ases[here].links[&out].1),
                // Back to the neighbour that the packet came from.
                (Action::Answer(_), Ingress::External(by)) => {
                    octets = router.answers().next().expect("an answer").to_vec();
                    (self.ases[here].links[&by].0, self.ases[here].links[&by].1)
                }
                (Action::Answer(_), _) => return (here, router.answers().next().expect("an answer").to_vec()),
                (other, _) => panic!("{other:?} in {here}"),
            };
            (here, ingress) = (next, Ingress::External(there));
        }
        panic!("a packet that never ends");
    }
}

fn packet(from: usize, to: usize, path: StandardPath) -> Packet {
    Packet {
        header: Header {
            traffic_class: 0,
            flow_id: 1,
            next_header: next_header::UDP,
            dst: name(to),
            src: name(from),
            dst_host: HostAddress::V4([10, 0, 0, 1].into()),
            src_host: HostAddress::V4([10, 0, 0, 2].into()),
            path: Path::Standard(path),
        },
        payload: vec![7; 40],
    }
}

/// All joins of up to three segments from the network's lists that pass no AS twice, with the ASes where they begin and
/// end.
fn joins(network: &Network) -> Vec<(usize, usize, PathBuilder)> {
    let mut all = Vec::new();
    let whole = |segment: &Segment| 0..segment.hops.len();
    for (up, up_segment) in &network.down {
        let start = *up.last().unwrap();
        let begun = PathBuilder::new().segment(up_segment, whole(up_segment), Direction::Against).unwrap();
        all.push((start, up[0], begun.clone()));
        for (down, down_segment) in &network.down {
            let end = *down.last().unwrap();
            if up[1..].iter().any(|of| down[1..].contains(of)) {
                continue;
            }
            if up[0] == down[0] {
                let path = begun.clone().segment(down_segment, whole(down_segment), Direction::Construction).unwrap();
                all.push((start, end, path));
            }
            for (core, core_segment) in &network.core {
                if core[0] == up[0] && core[1] == down[0] {
                    let path = begun.clone().segment(core_segment, whole(core_segment), Direction::Construction);
                    let path = path.unwrap().segment(down_segment, whole(down_segment), Direction::Construction);
                    all.push((start, end, path.unwrap()));
                }
            }
        }
    }
    all
}

#[test]
fn legal_joins_arrive_and_replies_on_the_reversed_path_return() {
    let mut network = Network::new(3, 14, 1);
    let all = joins(&network);
    assert!(all.len() > 200, "{}", all.len());
    let step = (all.len() / times("WAYLEAVE_SCION_PATHS", 400)).max(1);
    for index in (0..all.len()).step_by(step) {
        let (from, to) = (all[index].0, all[index].1);
        let sent = packet(from, to, all[index].2.clone().build().unwrap());
        let (arrived, received) = network.send(from, &sent, at(1)).unwrap_or_else(|error| panic!("{error:?} {sent:?}"));
        assert_eq!(arrived, to);
        let Path::Standard(path) = &received.header.path else { panic!() };
        let (returned, _) = network.send(to, &packet(to, from, path.reversed()), at(2)).unwrap();
        assert_eq!(returned, from);
        // A path reversed before it was travelled has the wrong accumulators, unless it has none to undo.
        let Path::Standard(path) = &sent.header.path else { panic!() };
        let mut early = path.reversed();
        (early.meta.current_info, early.meta.current_hop) = (0, 0);
        if path.hops.len() > path.infos.len() + 1 {
            assert!(network.send(to, &packet(to, from, early), at(2)).is_err());
        }
    }
}

/// Every link of many paths, one after the other, is down: the sender gets the error, by the way that the packet came, and the
/// error names the AS and the interface where it would have gone on.
#[test]
fn an_error_returns_to_the_sender_and_names_the_link_that_is_down() {
    let mut network = Network::new(3, 14, 1);
    let all = joins(&network);
    let step = (all.len() / times("WAYLEAVE_SCION_PATHS", 100)).max(1);
    let mut links = 0;
    for index in (0..all.len()).step_by(step) {
        let (from, to) = (all[index].0, all[index].1);
        let sent = packet(from, to, all[index].2.clone().build().unwrap());
        // The way: each AS with the interface by which the packet leaves it.
        let mut way = Vec::new();
        let (mut octets, mut here, mut ingress) = (sent.encode(), from, Ingress::Internal);
        while let Action::Forward(out) =
            network.ases[here].router.process(&mut [Frame { octets: &mut octets, ingress }], at(1))[0]
        {
            way.push((here, out));
            let (next, there, _) = network.ases[here].links[&out];
            (here, ingress) = (next, Ingress::External(there));
        }
        for (of, out) in way {
            network.ases[of].router.set_link(out, false);
            let (receiver, error) = network.send_into_trouble(from, &sent, at(1));
            network.ases[of].router.set_link(out, true);
            assert_eq!(receiver, from, "{sent:?}");
            let error = Packet::decode(&error).expect("sound");
            assert_eq!((error.header.dst, error.header.dst_host), (name(from), sent.header.src_host));
            let (message, quote) = Message::decode(&error.payload).expect("an error");
            assert_eq!(message, Message::ExternalInterfaceDown { isd_as: name(of), interface: out.into() });
            assert_eq!(quote.len(), sent.encode().len());
            links += 1;
        }
    }
    assert!(links > 300, "{links}");
}

#[test]
fn shortcuts_and_peering_links_arrive_and_return() {
    let mut network = Network::new(2, 16, 3);
    let (mut shortcuts, mut peerings) = (0, 0);
    let downs = network.down.clone();
    for (up, up_segment) in &downs {
        for (down, down_segment) in &downs {
            let (from, to) = (*up.last().unwrap(), *down.last().unwrap());
            if from == to || up.iter().skip(1).any(|of| *of == to) || down.iter().skip(1).any(|of| *of == from) {
                continue;
            }
            for i in 1..up.len() - 1 {
                for j in 1..down.len() - 1 {
                    if up[i] == down[j] && shortcuts < 200 && up[i + 1] != down[j + 1] {
                        let path = PathBuilder::new()
                            .segment(up_segment, i..up.len(), Direction::Against)
                            .and_then(|path| path.segment(down_segment, j..down.len(), Direction::Construction))
                            .and_then(PathBuilder::build);
                        let (_, received) = network.send(from, &packet(from, to, path.unwrap()), at(1)).unwrap();
                        let Path::Standard(path) = &received.header.path else { panic!() };
                        network.send(to, &packet(to, from, path.reversed()), at(2)).unwrap();
                        shortcuts += 1;
                    }
                }
            }
            // The two ASes at which the segments are left and joined peer with each other.
            for i in 1..up.len() {
                for j in 1..down.len() {
                    let links: Vec<_> = network.ases[up[i]].links.iter().map(|(id, link)| (*id, *link)).collect();
                    let peers: Vec<_> = links.into_iter().filter(|(_, link)| link.2 == Link::Peer).collect();
                    for (number, (_, (neighbor, there, _))) in peers.iter().enumerate() {
                        let theirs = &network.ases[down[j]].links;
                        let other =
                            theirs.iter().filter(|(_, link)| link.2 == Link::Peer).position(|(id, _)| id == there);
                        if *neighbor != down[j] || peerings >= 200 {
                            continue;
                        }
                        let path = PathBuilder::new()
                            .peering(up_segment, i..up.len(), Direction::Against, number)
                            .and_then(|path| {
                                path.peering(down_segment, j..down.len(), Direction::Construction, other.unwrap())
                            })
                            .and_then(PathBuilder::build)
                            .unwrap();
                        let sent = packet(from, to, path);
                        let (arrived, received) =
                            network.send(from, &sent, at(1)).unwrap_or_else(|e| panic!("{e:?} {sent:?}"));
                        assert_eq!(arrived, to);
                        let Path::Standard(path) = &received.header.path else { panic!() };
                        network.send(to, &packet(to, from, path.reversed()), at(2)).unwrap();
                        peerings += 1;
                    }
                }
            }
        }
    }
    assert!(shortcuts > 5 && peerings > 5, "{shortcuts} {peerings}");
}

#[test]
fn valleys_and_turns_are_refused_where_the_segments_meet() {
    let mut network = Network::new(2, 12, 5);
    let downs = network.down.clone();
    let mut tried = 0;
    for (first, first_segment) in &downs {
        for (second, second_segment) in &downs {
            // Down to a customer, and from there up again to another provider: a valley.
            let meet = *first.last().unwrap();
            if second.last() != Some(&meet) || first[0] == second[0] {
                continue;
            }
            let path = PathBuilder::new()
                .segment(first_segment, 0..first.len(), Direction::Construction)
                .and_then(|path| path.segment(second_segment, 0..second.len(), Direction::Against))
                .and_then(PathBuilder::build);
            let sent = packet(first[0], second[0], path.unwrap());
            let (at_as, action) = network.send(first[0], &sent, at(1)).unwrap_err();
            assert!(matches!(action, Action::Answer(_) | Action::Drop(_)));
            assert_eq!(at_as, meet, "it comes as far as the valley's bottom");
            tried += 1;
        }
    }
    // Up, down and up again.
    for (up, up_segment) in downs.iter().filter(|(path, _)| path.len() > 1) {
        for (down, down_segment) in &downs {
            let (meet, from) = (*down.last().unwrap(), *up.last().unwrap());
            if up[0] != down[0] || from == meet || up.contains(&meet) || down.contains(&from) {
                continue;
            }
            for (third, third_segment) in &downs {
                if third.last() != Some(&meet) || third[0] == from {
                    continue;
                }
                let path = PathBuilder::new()
                    .segment(up_segment, 0..up.len(), Direction::Against)
                    .and_then(|path| path.segment(down_segment, 0..down.len(), Direction::Construction))
                    .and_then(|path| path.segment(third_segment, 0..third.len(), Direction::Against))
                    .and_then(PathBuilder::build);
                assert!(network.send(from, &packet(from, third[0], path.unwrap()), at(1)).is_err());
                tried += 1;
            }
        }
    }
    assert!(tried > 10, "{tried}");
}

#[test]
fn hop_fields_spliced_between_segments_are_refused() {
    let mut network = Network::new(4, 50, 7);
    let downs = network.down.clone();
    let (mut spliced, mut passed, mut collisions) = (0u64, 0u64, 0u64);
    let most = times("WAYLEAVE_SCION_SPLICES", 20_000) as u64;
    'all: for (path, segment) in &downs {
        for (other, donor) in &downs {
            for place in 1..path.len() {
                for (from, of) in other.iter().enumerate().skip(1) {
                    // A hop field of the same AS in another segment: its key is the same, its accumulator is not.
                    if path[place] != *of || donor.hops[from] == segment.hops[place] {
                        continue;
                    }
                    let mut forged = segment.clone();
                    forged.hops[place] = donor.hops[from].clone();
                    forged.hops.truncate(place + 1);
                    let built = PathBuilder::new().segment(&forged, 0..place + 1, Direction::Construction);
                    let sent = packet(path[0], path[place], built.unwrap().build().unwrap());
                    spliced += 1;
                    if network.send(path[0], &sent, at(1)).is_ok() {
                        passed += 1;
                        // With equal accumulators, timestamps and interfaces the hop fields are the same ones.
                        collisions += u64::from(segment.beta(place) == donor.beta(from));
                    }
                    if spliced == most {
                        break 'all;
                    }
                }
            }
        }
    }
    assert!(spliced > 1_000, "{spliced}");
    assert_eq!(passed, collisions, "only where the accumulators collide");
    assert!(passed <= 1 + 8 * spliced / 65_536, "{passed} of {spliced}");
}
