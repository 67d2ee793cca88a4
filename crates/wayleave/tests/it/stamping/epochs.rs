//! Ten thousand ends of key epochs under load, in virtual time: holders look their secrets up while look-ups fail and clocks differ,
//! and stamp bursts across each end; a router verifies, the waypoint's key is rotated, and somebody keeps old secrets. One holder revokes
//! epoch after epoch, and whoever has these secrets sends on.
//!
//! PLA, epochs: 10,000 ends of the shortest key epochs in virtual time, with clocks up to 0.9 s off, one look-up in
//! five lost, late and early secrets, repeats, and a holder that revokes every fifth epoch: no packet is lost and no
//! late one passes; what is revoked is refused until nobody accepts its epoch, and its entry stays no longer.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use wayleave_control::capability::{
    ChangeBody, Client, Credential, Denial, Grant, KeyServer, KeyServerConfig, Lookup, LookupConfig, LookupFailure,
    LookupInput, LookupOutput, LookupPolicy, NameServer, Obtained, Order, Ordering, ProviderKey, Renewal, Served,
    Status, Terms, Transport, Zone,
};
use wayleave_core::{Instant, Machine, Now, UnixTime};
use wayleave_crypto::lanes::CpuKernel;
use wayleave_crypto::secret::{Key128, Seed};
use wayleave_crypto::sign::SigningKey;
use wayleave_dataplane::frame::{Frame, Ingress};
use wayleave_dataplane::platypus::revocation::{ListKind, Revocation, sign_list};
use wayleave_dataplane::platypus::{Action, Config, Reason, ReplayPolicy, Router, record};
use wayleave_dataplane::replay::ReplayFilter;
use wayleave_dataplane::stamper::{self, Location, Outcome, OutgoingPacket, Rule, RuleAction, Stamper};
use wayleave_packet::platypus::header::{Carriage, Delegation, DelegationId, Interval, Principal, Width};
use wayleave_packet::platypus::mint::{
    DelegatedSecret, Hop, Nonce, Route, StampKey, TemporalSecret, WaypointKey, WaypointKeys, encapsulate, epoch,
};
use wayleave_packet::platypus::verify::{Policy, Waypoint};

/// Ends of the shortest key epochs.
const BOUNDARIES: u64 = 10_000;
/// Key epochs of sixteen seconds, the shortest, for all holders but one; its epochs last 64 seconds.
const EXPONENT: u8 = 4;
const LENGTH: u64 = 1 << EXPONENT;
const LONGER: u8 = 6;
/// Which holder has the longer epochs, and which one a delegation.
const HOLDERS: u32 = 4;
const OF_LONGER: u32 = 3;
const DELEGATE: u32 = 4;
/// The holder that revokes an epoch out of so many, and seconds between two lists of revocations.
const REVOKER: u32 = 5;
const REVOKED: u64 = 5;
const LISTED: u64 = 7;
/// Seconds between two rotations of the waypoint's key, and from the announcement of one until it counts.
const ROTATED: u64 = 40_000;
const AHEAD: u64 = 200;
/// Packets of a holder's at an instant that is at the end of an epoch, and at any other.
const LOAD: [usize; 2] = [16, 1];
/// Free octets in front of a packet: a header, and a capability with a delegation.
const HEADROOM: usize = 128;
/// Octets of a packet before it is stamped.
const INNER: usize = 24;
const WAYPOINT: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1));
const SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(203, 0, 113, 53)), 53);
const BEGIN: u64 = 1_795_240_800 / LENGTH * LENGTH;

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// A time by a clock that is some microseconds ahead.
fn at(micros: u64, ahead: i64) -> Now {
    let unix = (BEGIN * 1_000_000 + micros).saturating_add_signed(ahead);
    Now { instant: Instant(micros * 1_000), unix: UnixTime(unix) }
}

/// The waypoint's keys after so many rotations.
fn keys(rotations: u64) -> WaypointKeys {
    let key = |number: u64| WaypointKey::new(&Key128::new([7 + number as u8; 16]));
    let mut keys = WaypointKeys::new(key(0));
    for number in 1..=rotations {
        keys.rotate(key(number), BEGIN + number * ROTATED).expect("each is newer");
    }
    keys
}

fn waypoint(rotations: u64) -> Waypoint {
    Waypoint::new(WAYPOINT, keys(rotations), Policy::default())
}

/// What holder `number` was granted.
fn terms(number: u32) -> Terms {
    let prefix = "203.0.113.0/24".parse().expect("a prefix");
    let delegation = Delegation { prefix, id: DelegationId::new(5).expect("24 bits"), sub: None };
    Terms {
        waypoint: WAYPOINT,
        principal: Principal::new(number).expect("24 bits"),
        interval: Interval::new(if number == OF_LONGER { LONGER } else { EXPONENT }).expect("in range"),
        width: Width::Full,
        delegation: (number == DELEGATE).then_some(delegation),
    }
}

fn provider() -> ProviderKey {
    ProviderKey::new(Seed::new([1; 32]))
}

fn signer() -> SigningKey {
    SigningKey::from_seed(&Seed::new([2; 32]))
}

fn zone() -> Zone {
    "keys.example.net".parse().expect("a zone")
}

/// A key server with a grant for each holder, and for the one that revokes.
fn server() -> (KeyServer, Vec<Credential>) {
    let signer = signer();
    let mut server = KeyServer::new(KeyServerConfig {
        zone: zone(),
        name_servers: vec![NameServer { name: "ns1.example.net".to_owned(), addresses: Vec::new() }],
        provider: provider(),
        signer,
        waypoints: HashMap::from([(WAYPOINT, keys(0))]),
        policy: LookupPolicy::default(),
        responses_per_second: 0,
    })
    .expect("a server");
    let held = (1..=REVOKER).map(|number| {
        let terms = terms(number);
        let principal = terms.principal;
        let account = ChangeBody::Account { principal, generation: 0, name: String::new() };
        for body in [account, ChangeBody::Grant(Grant { terms, not_before: 0, not_after: u64::MAX })] {
            let change = server.sign(body, at(0, 0).unix).expect("allowed");
            server.apply(&change).expect("the next");
        }
        Credential { zone: zone(), terms, key: provider().account(principal, 0).master(&terms) }
    });
    let held = held.collect();
    (server, held)
}

/// A look-up whose questions reach the server, or are lost.
fn look_up(
    server: &mut KeyServer,
    credential: &Credential,
    epoch: u32,
    (holder, true_time): (Now, Now),
    is_lost: bool,
    number: u64,
) -> Result<Obtained, LookupFailure> {
    let mut seed = [3; 32];
    seed[..8].copy_from_slice(&number.to_be_bytes());
    let config = LookupConfig { credential: credential.clone(), epoch, servers: vec![SERVER], seed: Seed::new(seed) };
    let mut lookup = Lookup::new(config);
    lookup.handle(LookupInput::Start, holder);
    let client = |transport| Client { address: [192, 0, 2, 9].into(), transport };
    loop {
        match lookup.poll() {
            Some(LookupOutput::Done(outcome)) => return outcome,
            Some(LookupOutput::Datagram { octets, .. }) if !is_lost => {
                if let Served::Reply(octets) = server.serve(&octets, client(Transport::Udp), true_time) {
                    lookup.handle(LookupInput::Datagram { from: SERVER, octets }, holder);
                }
            }
            Some(LookupOutput::Stream { to, .. }) => lookup.handle(LookupInput::StreamFailed(to), holder),
            Some(_) => {}
            None => {
                let deadline = lookup.deadline().expect("it waits for something");
                lookup.handle_timeout(Now { instant: deadline, unix: holder.unix });
            }
        }
    }
}

/// An ordinary packet to somewhere in the delegation's prefix.
fn inner() -> [u8; INNER] {
    let mut packet = [0; INNER];
    (packet[0], packet[3], packet[8], packet[9]) = (0x45, INNER as u8, 64, 6);
    packet[12..16].copy_from_slice(&[192, 0, 2, 7]);
    packet[16..20].copy_from_slice(&[203, 0, 113, 9]);
    packet
}

/// What the router does with packets that come at once.
fn decide(router: &mut Router, packets: &mut [Vec<u8>], now: Now) -> Vec<Action> {
    let count = packets.len();
    let mut frames: Vec<Frame<'_>> =
        packets.iter_mut().map(|octets| Frame { octets, ingress: Ingress::Internal }).collect();
    router.process(&mut frames, now)[..count].to_vec()
}

/// A holder of a capability with its stamper.
struct Holder {
    credential: Credential,
    renewal: Renewal,
    stamper: Stamper,
    /// The epoch that it stamps with.
    epoch: Option<u32>,
    /// Microseconds that its clock is ahead.
    ahead: i64,
}

impl Holder {
    fn new(credential: Credential, number: u8) -> Self {
        let renewal = Renewal::new(credential.clone(), Seed::new([number; 32]));
        let config = stamper::Config { location: Location::Host, routes: Vec::new(), rules: Vec::new(), share: (0, 1) };
        let stamper = Stamper::new(config, CpuKernel::best()).expect("without routes");
        Self { credential, renewal, stamper, epoch: None, ahead: 0 }
    }

    fn stamp_key(&self, key: &Key128) -> StampKey {
        match self.credential.terms.delegation {
            None => TemporalSecret::new(key.clone(), wayleave_core::Afi::Ipv4).stamp_key(),
            Some(delegation) => DelegatedSecret::new(key.clone(), delegation).stamp_key(),
        }
    }

    /// Lets the stamper use the secret that is to be used now, as `run stamper` does when it looks at its capabilities.
    fn choose(&mut self, now: UnixTime) {
        let terms = self.credential.terms;
        let secrets = self.renewal.secrets();
        let epoch = epoch::to_stamp_with(terms.interval, secrets.iter().map(|(of, ..)| *of), now);
        if epoch == self.epoch {
            return;
        }
        let found = secrets.iter().find(|(of, ..)| Some(*of) == epoch);
        let (epoch, _, key) = found.expect("there is always a secret");
        let hop = Hop { capability: terms.capability(*epoch), key: self.stamp_key(key) };
        let route =
            stamper::Route { hops: vec![hop], sealed: false, carriage: Carriage::Ip, mtu: 1_500, only_from: None };
        let to = "203.0.113.0/24".parse().expect("a prefix");
        let rule = Rule { to, user: None, mark: None, action: RuleAction::Take(0) };
        self.epoch = Some(*epoch);
        self.stamper.reload(vec![route], &[rule]).expect("sound");
    }

    /// So many packets, stamped at this time by the holder's clock; none leaves without a stamp.
    fn stamp(&mut self, count: usize, now: UnixTime) -> Vec<Vec<u8>> {
        let mut buffers = vec![[0; HEADROOM + INNER]; count];
        buffers.iter_mut().for_each(|buffer| buffer[HEADROOM..].copy_from_slice(&inner()));
        let mut packets: Vec<OutgoingPacket<'_>> =
            buffers.iter_mut().map(|buffer| OutgoingPacket { buffer, begin: HEADROOM, user: None, mark: 0 }).collect();
        let mut outcomes = vec![Outcome::Stamped(0..0); count];
        self.stamper.stamp(&mut packets, now, &mut outcomes);
        let stamped = |(buffer, outcome): (&[u8; HEADROOM + INNER], Outcome)| match outcome {
            Outcome::Stamped(range) => buffer[range].to_vec(),
            unchanged => panic!("{}, {} us ahead: {unchanged:?}", self.credential.terms, self.ahead),
        };
        buffers.iter().zip(outcomes).map(stamped).collect()
    }
}

/// When packets are sent within a second, in microseconds, and whether an epoch ends there: at any time, around the end of an epoch by the
/// router's clock, and at the end by each holder's.
fn instants(second: u64, holders: &[Holder], random: &mut Random) -> Vec<(u64, bool)> {
    let mut instants = vec![(random.below(1_000_000), false), (random.below(1_000_000), false)];
    if second.is_multiple_of(LENGTH) {
        let behind = holders.iter().filter(|holder| holder.ahead <= 0);
        instants.extend(behind.map(|holder| (holder.ahead.unsigned_abs(), true)));
        instants.extend([(0, true), (1, true)]);
    }
    if second % LENGTH == LENGTH - 1 {
        let early = holders.iter().filter(|holder| holder.ahead > 0);
        instants.extend(early.map(|holder| (1_000_000 - holder.ahead.unsigned_abs(), true)));
        instants.push((999_999, true));
    }
    instants.sort_unstable();
    instants
}

/// A packet that somebody stamps now with a holder's secret of any epoch.
fn stamped_with(holder: u32, epoch: u32, rotations: u64, number: u32, now: UnixTime) -> Vec<u8> {
    let capability = terms(holder).capability(epoch);
    let hops = [Hop { key: keys(rotations).stamp_key(&capability).expect("held"), capability }];
    let nonce = Nonce::new(now, number);
    let route = Route { hops: &hops, nonce, sealed: false, reply_option: &[], carriage: Carriage::Ip };
    let mut out = Vec::new();
    encapsulate(&inner(), &route, &mut out).expect("sound");
    out
}

/// Packets of somebody who has the first holder's secrets of epochs that have ended twice, or are in the future: stamped now.
fn late(rotations: u64, number: u32, now: UnixTime) -> Vec<Vec<u8>> {
    let current = epoch::epoch_at(terms(1).interval, now);
    [current - 2, current + 2].map(|epoch| stamped_with(1, epoch, rotations, number, now)).to_vec()
}

/// The holder that revokes key epochs, by orders to the key server; and the router, which has the server's lists.
struct Revoker {
    credential: Credential,
    /// The second, within its epoch, at which the next one is revoked.
    next: u64,
    /// Epochs that are revoked, as far as any router may still have to know.
    revoked: Vec<u32>,
    lists: u64,
    orders: u64,
    /// Packets of revoked epochs that were refused, and of others that passed.
    refused: u64,
    passed: u64,
}

impl Revoker {
    fn new(credential: Credential) -> Self {
        Self { credential, next: LENGTH, revoked: Vec::new(), lists: 0, orders: 0, refused: 0, passed: 0 }
    }

    fn interval(&self) -> Interval {
        self.credential.terms.interval
    }

    /// Orders what is due, twice; its own clock is up to nine tenths of a second from the server's.
    fn order(&mut self, server: &mut KeyServer, (second, ahead): (u64, i64), random: &mut Random) -> bool {
        if second < self.next {
            return false;
        }
        // In the last second of an epoch as often as in all others together.
        let within = if random.below(2) == 0 { LENGTH - 1 } else { random.below(LENGTH) };
        self.next = (second / LENGTH + REVOKED) * LENGTH + within;
        let (own, now) = (at(second * 1_000_000, ahead), at(second * 1_000_000, 0));
        let epoch = epoch::epoch_at(self.interval(), own.unix);
        for _ in 0..2 {
            self.orders += 1;
            let nonce = (self.orders as u32).to_be_bytes();
            let ordering = Ordering::new(self.credential.clone(), Order::RevokeEpoch, nonce, epoch, own.unix);
            let client = Client { address: [192, 0, 2, 9].into(), transport: Transport::Udp };
            let Served::Order(order) = server.serve(&ordering.question(7), client, now) else { panic!("an order") };
            // The second time it is done already.
            assert_eq!(order.change.is_some(), self.orders % 2 == 1);
            order.change.iter().for_each(|change| server.apply(change).expect("the next"));
            let answer = server.acknowledge(&order, Ok(()), now);
            let acknowledged = ordering.read(&answer, 7).expect("an answer").expect("acknowledged");
            assert_eq!(acknowledged.status, Status::Done);
        }
        self.revoked.push(epoch);
        true
    }

    /// The router gets the server's list, of what has not expired, as the role writes it.
    fn list(&mut self, server: &KeyServer, router: &mut Router, now: UnixTime) {
        self.lists += 1;
        let in_force = |entry: &&Revocation| entry.expires_at().is_none_or(|second| second > now.secs());
        let entries: Vec<Revocation> = server.state().revocations().filter(in_force).copied().collect();
        let (list, signature) = sign_list(&signer(), self.lists, now, ListKind::Whole, &entries);
        router.revocations().apply(&list, &signature, &signer().verifying_key()).expect("the next");
    }

    /// Whoever has the secrets of all epochs that a router accepts now sends a packet with each: those of revoked epochs are refused for
    /// as long, and no others.
    fn send(&mut self, router: &mut Router, rotations: u64, number: u32, now: Now) {
        let current = epoch::epoch_at(self.interval(), now.unix);
        for epoch in current - 1..=current + 1 {
            let mut packet = [stamped_with(REVOKER, epoch, rotations, number, now.unix)];
            let [action] = decide(router, &mut packet, now)[..] else { panic!("one packet") };
            if self.revoked.contains(&epoch) {
                assert_eq!(action, Action::Drop(Reason::Revoked), "epoch {epoch} in epoch {current}");
                self.refused += 1;
            } else {
                assert_eq!(action, Action::Route, "epoch {epoch} in epoch {current}");
                self.passed += 1;
            }
        }
    }

    /// Entries are kept until the end of the second epoch after their own, and no longer.
    fn expire(&mut self, router: &mut Router, now: UnixTime) {
        router.revocations().expire(now);
        let interval = self.interval();
        self.revoked.retain(|epoch| epoch::epoch_begin(interval, epoch + 3) > now.secs());
        assert_eq!(router.revocations().len(), self.revoked.len());
    }
}

#[test]
fn ten_thousand_ends_of_key_epochs_lose_no_packet_and_let_no_late_one_pass() {
    let (mut server, mut credentials) = server();
    let mut revoker = Revoker::new(credentials.pop().expect("the last"));
    let mut random = Random(11);
    let mut router = Router::new(
        Config {
            waypoints: vec![waypoint(0)],
            repeated: ReplayPolicy::Drop,
            replay: ReplayFilter::new(&Key128::new([3; 16]), 10_000, UnixTime(0)),
            need_revocations: false,
            answers_per_second: 100,
            accounts: 4_096,
            account_seed: 1,
            delegations: 16,
        },
        CpuKernel::best(),
    );
    let mut holders: Vec<Holder> =
        credentials.into_iter().zip(0..).map(|(credential, number)| Holder::new(credential, number)).collect();
    let (mut number, mut sent, mut late_ones, mut failed, mut found) = (0_u32, 0_u64, 0_u64, 0_u64, 0_u64);
    let (mut dropped, mut open) = (BTreeMap::<&str, u64>::new(), BTreeMap::new());
    let mut rotations = 0;
    for second in 0..BOUNDARIES * LENGTH {
        let micros = second * 1_000_000;
        if (second + AHEAD) / ROTATED > rotations {
            // Both have the next key before the first epoch that it is for.
            rotations += 1;
            server.reload(HashMap::from([(WAYPOINT, keys(rotations))]), LookupPolicy::default(), 0);
            router.set_waypoints(vec![waypoint(rotations)]);
        }
        while !server.prepare(at(micros, 0).unix, u32::MAX) {}
        if second % 1_000 == 0 {
            // Clocks are up to nine tenths of a second from the router's.
            for holder in &mut holders {
                holder.ahead = i64::try_from(random.below(1_800_000)).expect("small") - 900_000;
            }
        }
        let ahead = i64::try_from(random.below(1_800_000)).expect("small") - 900_000;
        let is_revoked = revoker.order(&mut server, (second, ahead), &mut random);
        if is_revoked || second % LISTED == 0 {
            revoker.list(&server, &mut router, at(micros, 0).unix);
        }
        revoker.expire(&mut router, at(micros, 0).unix);
        for (part, is_end) in instants(second, &holders, &mut random) {
            let micros = micros + part;
            let now = at(micros, 0);
            number = number.wrapping_add(1);
            revoker.send(&mut router, rotations, number, now);
            for holder in &mut holders {
                let own = at(micros, holder.ahead);
                if let Some(epoch) = holder.renewal.due(own.unix) {
                    // One in five look-ups finds no server, but for the first.
                    let is_lost = second > 0 && random.below(5) == 0;
                    number = number.wrapping_add(1);
                    let outcome = look_up(&mut server, &holder.credential, epoch, (own, now), is_lost, number.into());
                    failed += u64::from(outcome.is_err());
                    found += u64::from(outcome.is_ok());
                    holder.renewal.done(outcome, own.unix);
                }
                // The role looks at its capabilities twice a second, not with each packet: now and then it is behind.
                if holder.epoch.is_none() || random.below(2) == 0 {
                    holder.choose(own.unix);
                }
                let mut packets = holder.stamp(if is_end { LOAD[0] } else { LOAD[1] }, own.unix);
                sent += packets.len() as u64;
                let mut copies = packets.clone();
                for action in decide(&mut router, &mut packets, now) {
                    assert_eq!(action, Action::Route, "second {second}, {}", holder.credential.terms);
                }
                for action in decide(&mut router, &mut copies, now) {
                    assert_eq!(action, Action::Drop(Reason::Replayed));
                }
            }
            number = number.wrapping_add(1);
            for action in decide(&mut router, &mut late(rotations, number, now.unix), now) {
                late_ones += 1;
                match action {
                    Action::Drop(Reason::Packet(reason)) | Action::Answer(Reason::Packet(reason)) => {
                        *dropped.entry(reason.name()).or_default() += 1
                    }
                    action => panic!("an epoch's secret two epochs away: {action:?}"),
                }
            }
        }
        if second % 60 == 0 {
            // As the process does: accounts of epochs that are over make room.
            let journal = router.accounts().journal().into_iter();
            open.extend(journal.map(|(charge, _)| (record::encode(&charge), charge)));
            let now = at(micros, 0).unix;
            open.retain(|_, charge| !record::is_over(charge, now) || !router.accounts().close(charge));
        }
    }
    // The key server says so too, for as long as it answers for the epoch.
    let now = at((BOUNDARIES * LENGTH - 1) * 1_000_000, 0);
    let current = epoch::epoch_at(revoker.interval(), now.unix);
    for epoch in current - 1..=current + 1 {
        let outcome = look_up(&mut server, &revoker.credential, epoch, (now, now), false, 0);
        let is_denied = matches!(outcome, Err(LookupFailure::Denied(Denial::Revoked)));
        assert!(is_denied == revoker.revoked.contains(&epoch) && is_denied != outcome.is_ok(), "{outcome:?}");
    }
    // What has expired is swept out of its state now and then.
    let held: Vec<u32> = server.state().revocations().filter_map(|entry| Some(entry.epoch?.1)).collect();
    assert!(revoker.revoked.iter().all(|epoch| held.contains(epoch)) && held.len() < revoker.orders as usize / 2);
    assert!(revoker.orders / 2 > BOUNDARIES / REVOKED - 10, "{}", revoker.orders);
    assert!(revoker.refused > revoker.orders * LENGTH && revoker.passed > revoker.refused, "{}", revoker.refused);
    assert_eq!(dropped.values().sum::<u64>(), late_ones);
    assert_eq!(dropped.len(), 1, "for one reason: {dropped:?}");
    assert_eq!(rotations, BOUNDARIES * LENGTH / ROTATED);
    // The secrets of each epoch, of three holders and of one whose epochs are four times as long.
    let expected = BOUNDARIES * u64::from(HOLDERS - 1) + (BOUNDARIES >> (LONGER - EXPONENT));
    assert!(found >= expected && failed > BOUNDARIES / 2, "{found} found, {failed} failed");
    let ends = BOUNDARIES * u64::from(HOLDERS) * 3 * LOAD[0] as u64;
    assert!(sent > BOUNDARIES * LENGTH * 2 * u64::from(HOLDERS) + ends, "{sent}");
}
