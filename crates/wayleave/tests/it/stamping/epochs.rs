//! Ten thousand ends of key epochs under load, in virtual time: holders look their secrets up while look-ups fail and clocks differ,
//! a router verifies, and somebody keeps old secrets.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use wayleave_control::capability::{
    ChangeBody, Client, Credential, Grant, KeyServer, KeyServerConfig, Lookup, LookupConfig, LookupFailure,
    LookupInput, LookupOutput, LookupPolicy, NameServer, Obtained, ProviderKey, Renewal, Served, Terms, Transport,
    Zone,
};
use wayleave_core::{Instant, Machine, Now, UnixTime};
use wayleave_crypto::lanes::CpuKernel;
use wayleave_crypto::secret::{Key128, Seed};
use wayleave_crypto::sign::SigningKey;
use wayleave_dataplane::frame::{Frame, Ingress};
use wayleave_dataplane::platypus::{Action, Config, Reason, ReplayPolicy, Router, record};
use wayleave_dataplane::replay::ReplayFilter;
use wayleave_packet::platypus::header::{Carriage, Interval, Principal, Width};
use wayleave_packet::platypus::mint::{
    Hop, Nonce, Route, TemporalSecret, WaypointKey, WaypointKeys, encapsulate, epoch,
};
use wayleave_packet::platypus::verify::{Policy, Waypoint};

const BOUNDARIES: u64 = 10_000;
/// Key epochs of sixteen seconds, the shortest.
const EXPONENT: u8 = 4;
const LENGTH: u64 = 1 << EXPONENT;
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

fn keys() -> WaypointKeys {
    WaypointKeys::new(WaypointKey::new(&Key128::new([7; 16])))
}

fn interval() -> Interval {
    Interval::new(EXPONENT).expect("in range")
}

fn provider() -> ProviderKey {
    ProviderKey::new(Seed::new([1; 32]))
}

fn zone() -> Zone {
    "keys.example.net".parse().expect("a zone")
}

/// A key server with a grant for each principal.
fn server(principals: u32) -> (KeyServer, Vec<Credential>) {
    let signer = SigningKey::from_seed(&Seed::new([2; 32]));
    let mut server = KeyServer::new(KeyServerConfig {
        zone: zone(),
        name_servers: vec![NameServer { name: "ns1.example.net".to_owned(), addresses: Vec::new() }],
        provider: provider(),
        writer: signer.verifying_key(),
        signer: Some(signer),
        waypoints: HashMap::from([(WAYPOINT, keys())]),
        policy: LookupPolicy::default(),
        responses_per_second: 0,
    })
    .expect("a server");
    let held = (1..=principals).map(|number| {
        let principal = Principal::new(number).expect("24 bits");
        let terms = Terms { waypoint: WAYPOINT, principal, interval: interval(), width: Width::Full, delegation: None };
        let account = ChangeBody::Account { principal, generation: 0, name: String::new() };
        for body in [account, ChangeBody::Grant(Grant { terms, not_before: 0, not_after: u64::MAX })] {
            let change = server.sign(body, at(0, 0).unix).expect("the writer").expect("allowed");
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

/// A packet stamped with this secret at this time by the sender's clock.
fn packet(hop: &Hop, stamp: UnixTime, number: u32) -> Vec<u8> {
    let hops = [hop.clone()];
    let nonce = Nonce::new(stamp, number);
    let route = Route { hops: &hops, nonce, sealed: false, reply_option: &[], carriage: Carriage::Ip };
    let mut inner = vec![0x45, 0, 0, 24, 0, 0, 0, 0, 64, 6, 0, 0, 192, 0, 2, 7, 203, 0, 113, 9];
    inner.resize(24, 0);
    let mut out = Vec::new();
    encapsulate(&inner, &route, &mut out).expect("sound");
    out
}

fn decide(router: &mut Router, mut octets: Vec<u8>, now: Now) -> Action {
    let mut frames = [Frame { octets: &mut octets, ingress: Ingress::Internal }];
    router.process(&mut frames, now)[0]
}

struct Holder {
    renewal: Renewal,
    /// Microseconds that its clock is ahead.
    ahead: i64,
}

#[test]
fn ten_thousand_ends_of_key_epochs_lose_no_packet_and_let_no_late_one_pass() {
    let (mut server, credentials) = server(4);
    let mut random = Random(11);
    let mut router = Router::new(
        Config {
            waypoints: vec![Waypoint::new(WAYPOINT, keys(), Policy::default())],
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
    let mut holders: Vec<Holder> = credentials
        .iter()
        .zip(0..)
        .map(|(credential, number)| Holder {
            renewal: Renewal::new(credential.clone(), Seed::new([number; 32])),
            ahead: 0,
        })
        .collect();
    let (mut number, mut sent, mut late, mut failed, mut found) = (0_u32, 0_u64, 0_u64, 0_u64, 0_u64);
    let (mut dropped, mut open) = (BTreeMap::<&str, u64>::new(), BTreeMap::new());
    let waypoint = WaypointKey::new(&Key128::new([7; 16]));
    for second in 0..BOUNDARIES * LENGTH {
        let micros = second * 1_000_000;
        while !server.prepare(at(micros, 0).unix, u32::MAX) {}
        if second % 1_000 == 0 {
            // Clocks are up to nine tenths of a second from the router's.
            for holder in &mut holders {
                holder.ahead = i64::try_from(random.below(1_800_000)).expect("small") - 900_000;
            }
        }
        // At the end of an epoch by the router's clock, and at any time within the second.
        let mut instants = vec![0, random.below(1_000_000), random.below(1_000_000)];
        if second > 0 && second % LENGTH == 0 {
            instants.extend([1, 2]);
        }
        instants.sort_unstable();
        for micros in instants.into_iter().map(|part| micros + part) {
            let now = at(micros, 0);
            for (holder, credential) in holders.iter_mut().zip(&credentials) {
                let own = at(micros, holder.ahead);
                if let Some(epoch) = holder.renewal.due(own.unix) {
                    // One in five look-ups finds no server, but for the first.
                    let is_lost = second > 0 && random.below(5) == 0;
                    number = number.wrapping_add(1);
                    let outcome = look_up(&mut server, credential, epoch, (own, now), is_lost, number.into());
                    failed += u64::from(outcome.is_err());
                    found += u64::from(outcome.is_ok());
                    holder.renewal.done(outcome, own.unix);
                }
                // As stampers do: the secret of the epoch by the own clock, or one beside it.
                let current = epoch::epoch_at(interval(), own.unix);
                let secrets = holder.renewal.secrets();
                let secret = [current, current + 1, current - 1].iter().find_map(|epoch| {
                    let (_, key) = secrets.iter().find(|(of, _)| of == epoch)?;
                    Some((*epoch, key.clone()))
                });
                let (epoch, key) = secret.expect("there is always one");
                let capability = credential.terms.capability(epoch);
                let hop = Hop { capability, key: TemporalSecret::new(key, wayleave_core::Afi::Ipv4).stamp_key() };
                number = number.wrapping_add(1);
                sent += 1;
                let octets = packet(&hop, own.unix, number);
                match decide(&mut router, octets.clone(), now) {
                    Action::Route => {}
                    action => panic!("second {second}, epoch {epoch}, {} us ahead: {action:?}", holder.ahead),
                }
                assert_eq!(decide(&mut router, octets, now), Action::Drop(Reason::Replayed));
            }
            // Whoever kept the secret of an epoch that has ended twice, or has one of the future: stamped now.
            let current = epoch::epoch_at(interval(), now.unix);
            for epoch in [current - 2, current + 2] {
                let capability = credentials[0].terms.capability(epoch);
                let secret = waypoint.secret(WAYPOINT, capability.principal, interval(), epoch);
                let hop = Hop { capability, key: secret.stamp_key() };
                number = number.wrapping_add(1);
                late += 1;
                match decide(&mut router, packet(&hop, now.unix, number), now) {
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
    assert_eq!(dropped.values().sum::<u64>(), late);
    assert_eq!(dropped.len(), 1, "for one reason: {dropped:?}");
    assert!(found >= BOUNDARIES * 4 && failed > BOUNDARIES / 2, "{found} found, {failed} failed");
    assert!(sent > BOUNDARIES * LENGTH * 12, "{sent}");
}
