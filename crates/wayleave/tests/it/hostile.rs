//! Hostile members of an exchange of real processes, one after the other: each costs twenty honest members less than their latency was
//! when nobody attacked, and the parties name it.
//!
//! The honest members are processes of the binary with speaking routers, on loopback. The hostile ones are played by this process, which
//! rests for longer than it works. What the parties count is asserted exactly; of the latencies only a ratio within one run.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::time::timeout;
use wayleave_bgp::{LargeCommunity, Nlri};
use wayleave_core::{Asn, Prefix};
use wayleave_crypto::secret::Secret;
use wayleave_crypto::sign::SigningKey;
use wayleave_lab::demo::exchange::DemoExchange;
use wayleave_lab::demo::http::get;
use wayleave_lab::demo::layout::{Layout, MemberLayout, ProcessLayout, Software};
use wayleave_lab::netns::NetworkNamespace;
use wayleave_lab::ports::free_address;
use wayleave_lab::process::wait_until;
use wayleave_lab::table::Announcement;
use wayleave_route_server::frames::{FromMember, PROTOCOL, ToMember};
use wayleave_route_server::object::{self, Description, ExportMode, Fresh, Kind};
use wayleave_runtime::identity::{Fingerprint, Identity};
use wayleave_runtime::links::{Connecting, Limits, LinkEvent, Links};
use wayleave_runtime::tls::{Pin, PinVerifier, Pins, Role};

const HONEST: usize = 20;
/// Changes that are measured for each hostile member, if the environment does not say.
const CHANGES: usize = 32;
const TIMEOUT: Duration = Duration::from_secs(30);
/// The least that counts as the quiet latency where few changes are measured, of which the worst decides: other processes share
/// this machine. With a thousand changes (`make soak`) there is no such floor.
const NOISE: Duration = Duration::from_millis(150);
/// By how much a party's memory may grow while it is attacked: credit and pools.
const GROWTH_KIB: u64 = 128 << 10;

/// What hostile members do, in the order of their slots: the list that names them, at which party, and the beginning of what its
/// operator reads of it.
const ATTACKS: [(&str, (&str, usize, &str), Attack); 7] = [
    ("mute", ("on_probation", 0, "does not rank in time"), mute),
    ("deaf", ("on_probation", 0, "does not rank in time"), read_nothing),
    ("resynchronisations", ("over_budget", 0, "sends more, or asks"), ask_for_everything),
    ("flapping", ("over_budget", 0, "sends more, or asks"), flap),
    ("wrong rankings", ("misbehaving", 1, "sends frames that break the protocol"), rank_wrongly),
    ("updates", ("over_budget", 0, "sends more, or asks"), flood),
    ("padded blobs", ("over_budget", 0, "sends more, or asks"), pad),
];
type Attack = fn(&Hostile, &AtomicBool);

/// A member that this process plays.
struct Hostile {
    slot: u32,
    identity: Identity,
    /// Address and certificate of each party.
    parties: [(String, Fingerprint); 2],
    runtime: Runtime,
    set: u64,
}

/// Its links to both parties, greeted.
struct Session {
    links: Links,
    events: mpsc::Receiver<LinkEvent>,
    /// To party 1 and to party 2.
    up: [u64; 2],
    epoch: u64,
    high_water: u64,
    _connecting: Vec<Connecting>,
}

impl Hostile {
    fn connect(&self) -> Option<Session> {
        let (to, mut events) = mpsc::channel::<LinkEvent>(1024);
        let links = Links::new(Limits::default());
        let _inside = self.runtime.enter();
        let connecting = (1u32..).zip(&self.parties).map(|(number, (address, fingerprint))| {
            let pin = Pin { name: format!("party {number}"), role: Role::Party, id: number };
            let verifier = PinVerifier::new(Pins::new([(*fingerprint, pin)]), Role::Party);
            links.connect(address.clone(), &self.identity, verifier, to.clone()).expect("a configuration")
        });
        let connecting: Vec<Connecting> = connecting.collect();
        let mut up = [0; 2];
        while up.contains(&0) {
            match self.next(&mut events)? {
                LinkEvent::Up { link, pin, .. } => up[pin.id as usize - 1] = link,
                LinkEvent::Down { .. } => return None,
                _ => {}
            }
        }
        let hello = FromMember::Hello {
            protocol: PROTOCOL,
            exchange: "demo-ix".to_owned(),
            slot: self.slot,
            session: [7; 16],
            select_best: true,
        };
        up.iter().for_each(|link| links.send(*link, hello.encode().into()));
        // It keeps nothing, and is sent everything.
        links.send(up[0], FromMember::Resync.encode().into());
        let (mut welcomed, mut epoch, mut high_water) = (0, 0, 0);
        while welcomed < 2 {
            match self.next(&mut events)? {
                LinkEvent::Frame { bytes, .. } => {
                    if let Ok(ToMember::Welcome { epoch: of_party, high_water: seen, .. }) = ToMember::decode(&bytes) {
                        welcomed += 1;
                        (epoch, high_water) = (of_party.max(epoch), seen.max(high_water));
                    }
                }
                LinkEvent::Down { .. } => return None,
                _ => {}
            }
        }
        Some(Session { links, events, up, epoch, high_water, _connecting: connecting })
    }

    fn next(&self, events: &mut mpsc::Receiver<LinkEvent>) -> Option<LinkEvent> {
        self.runtime.block_on(async { timeout(Duration::from_secs(5), events.recv()).await }).ok().flatten()
    }

    fn signing_key(&self) -> SigningKey {
        SigningKey::from_seed(&Secret::new(*self.identity.signing_seed()))
    }

    fn description(&self, session: &Session, version: u64, kind: Kind) -> Description {
        Description { slot: self.slot, set: self.set, epoch: session.epoch, version, salt: [3; 32], kind }
    }

    /// Withdrawals, the shortest objects, each as its frames to both parties.
    fn withdrawals(&self, session: &Session, count: u64) -> Vec<[Arc<[u8]>; 2]> {
        let signing = self.signing_key();
        let prefix = Nlri::from("50.0.0.0/16".parse::<Prefix>().expect("a prefix"));
        let one = |version| {
            let description = self.description(session, version, Kind::Withdraw { prefixes: vec![prefix] });
            let header = Box::new(object::withdraw("demo-ix", description, &signing));
            let two = FromMember::SubmitTwo { header: header.clone(), share: None }.encode();
            [FromMember::SubmitOne { header, body: None }.encode().into(), two.into()]
        };
        (session.high_water + 1..=session.high_water + count).map(one).collect()
    }

    /// Announcements with the largest blobs that the parties take, for everybody to open, each of a prefix of its own.
    fn padded(&self, session: &Session, count: u64) -> Vec<[Arc<[u8]>; 2]> {
        let signing = self.signing_key();
        let one = |version: u64| {
            let [.., a, b] = version.to_be_bytes();
            let prefix = Nlri::from(format!("51.{a}.{b}.0/24").parse::<Prefix>().expect("a prefix"));
            let description = self.description(session, version, Kind::Announce { prefixes: vec![prefix] });
            let random = |purpose: u8| {
                let mut octets = [purpose; 32];
                octets[..8].copy_from_slice(&version.to_be_bytes());
                octets
            };
            let key = *random(1).first_chunk().expect("16 of 32 octets");
            let fresh = Fresh { key, seed: random(2), openings: [random(3), random(4)] };
            // Nothing that is a path attribute: whoever opens it has the work, and an alarm.
            let inside = (&[0xff; 7_000][..], &[0; 32]);
            let exported = [true; HONEST + ATTACKS.len()];
            let sealed =
                object::announce(ExportMode::Direct, "demo-ix", description, inside, &exported, &fresh, &signing);
            let header = Box::new(sealed.header);
            let two = FromMember::SubmitTwo { header: header.clone(), share: Some(sealed.two) }.encode();
            let body = Some((sealed.one, sealed.blob.into()));
            [FromMember::SubmitOne { header, body }.encode().into(), two.into()]
        };
        (session.high_water + 1..=session.high_water + count).map(one).collect()
    }
}

impl Session {
    /// Takes what has come; returns the batches of which rankings are awaited. `None` once a link is down.
    fn awaited_rankings(&mut self) -> Option<Vec<u64>> {
        let mut awaited = Vec::new();
        while let Ok(event) = self.events.try_recv() {
            match event {
                LinkEvent::Down { .. } => return None,
                LinkEvent::Frame { bytes, .. } => match ToMember::decode(&bytes) {
                    Ok(ToMember::Tick(tick)) if tick.rank => awaited.push(tick.seq),
                    _ => {}
                },
                _ => {}
            }
        }
        Some(awaited)
    }

    /// Takes what has come. `false` once a link is down.
    fn drain(&mut self) -> bool {
        let mut is_up = true;
        while let Ok(event) = self.events.try_recv() {
            is_up &= !matches!(event, LinkEvent::Down { .. });
        }
        is_up
    }
}

/// Sleeps for three times as long as it has worked, and a little.
fn rest(since: Instant) {
    sleep(since.elapsed() * 3 + Duration::from_millis(5));
}

/// Reads, and says nothing after its hello.
fn mute(hostile: &Hostile, ends: &AtomicBool) {
    let mut session = hostile.connect();
    while !ends.load(Ordering::Relaxed) {
        let begin = Instant::now();
        if session.as_mut().is_none_or(|session| !session.drain()) {
            session = hostile.connect();
        }
        rest(begin);
    }
}

/// Reads nothing after the welcome.
fn read_nothing(hostile: &Hostile, ends: &AtomicBool) {
    let _session = hostile.connect();
    while !ends.load(Ordering::Relaxed) {
        sleep(Duration::from_millis(5));
    }
}

/// Asks for everything some hundred times a second.
fn ask_for_everything(hostile: &Hostile, ends: &AtomicBool) {
    let mut session = hostile.connect();
    while !ends.load(Ordering::Relaxed) {
        let begin = Instant::now();
        match session.as_mut() {
            Some(open) => {
                for link in open.up {
                    (0..20).for_each(|_| open.links.send(link, FromMember::Resync.encode().into()));
                }
                if !open.drain() {
                    session = hostile.connect();
                }
            }
            None => session = hostile.connect(),
        }
        rest(begin);
    }
}

/// Connects and goes, as often as it can.
fn flap(hostile: &Hostile, ends: &AtomicBool) {
    while !ends.load(Ordering::Relaxed) {
        let begin = Instant::now();
        drop(hostile.connect());
        rest(begin);
    }
}

/// Ranks the batches of the moment at party 2 in a wrong length, and those of the past; connects again when it is cut.
fn rank_wrongly(hostile: &Hostile, ends: &AtomicBool) {
    let mut session = hostile.connect();
    while !ends.load(Ordering::Relaxed) {
        let begin = Instant::now();
        let Some(awaited) = session.as_mut().and_then(Session::awaited_rankings) else {
            session = hostile.connect();
            rest(begin);
            continue;
        };
        if let Some(open) = &session {
            for seq in awaited.into_iter().chain(0..20) {
                let rank = FromMember::RankTwo { seq, row: [1; 16], share: vec![1; 4_099] };
                open.links.send(open.up[1], rank.encode().into());
            }
        }
        rest(begin);
    }
}

/// Sends valid withdrawals without regard to credit, and connects again when it is cut.
fn flood(hostile: &Hostile, ends: &AtomicBool) {
    send_all(hostile, ends, |session| hostile.withdrawals(session, 20_000), 3_000);
}

/// The same with the largest announcements.
fn pad(hostile: &Hostile, ends: &AtomicBool) {
    send_all(hostile, ends, |session| hostile.padded(session, 2_000), 500);
}

/// Sends objects again and again, so many at once.
fn send_all(
    hostile: &Hostile,
    ends: &AtomicBool,
    objects: impl FnOnce(&Session) -> Vec<[Arc<[u8]>; 2]>,
    at_once: usize,
) {
    let mut session = hostile.connect();
    let objects = session.as_ref().map(objects).unwrap_or_default();
    let mut all = objects.iter().cycle();
    while !ends.load(Ordering::Relaxed) {
        let begin = Instant::now();
        if session.as_mut().is_none_or(|session| !session.drain()) {
            session = hostile.connect();
        }
        if let Some(open) = &session {
            for frames in all.by_ref().take(at_once) {
                open.up.iter().zip(frames).for_each(|(link, frame)| open.links.send(*link, Arc::clone(frame)));
            }
        }
        rest(begin);
    }
}

/// The exchange with its honest members, at rest.
struct Running {
    exchange: DemoExchange,
    changes: u32,
}

impl Running {
    fn start(state: &Path) -> Self {
        let mut layout = Layout::simulated(state).expect("free ports");
        for number in layout.members.len()..HONEST + ATTACKS.len() {
            let free = || free_address().expect("a free port");
            layout.members.push(MemberLayout {
                name: format!("member{number}"),
                asn: Asn(64_520 + u32::try_from(number).expect("few")),
                software: Software::Bird,
                router: Ipv4Addr::new(192, 0, 2, 1 + u8::try_from(number).expect("few")),
                router_namespace: NetworkNamespace::Own,
                bgp: free(),
                proxy: ProcessLayout { namespace: NetworkNamespace::Own, status: free() },
            });
        }
        let binary = Path::new(env!("CARGO_BIN_EXE_wayleave"));
        let mut exchange = DemoExchange::new(layout, binary, None).expect("keys and configurations");
        for party in &mut exchange.parties {
            party.role.start().expect("a party that starts");
        }
        for member in &mut exchange.members[..HONEST] {
            member.role.start().expect("a member that starts");
            member.router.start().expect("a speaker");
        }
        let mut running = Self { exchange, changes: 0 };
        let up = wait_until(TIMEOUT, || {
            running.exchange.members[..HONEST]
                .iter_mut()
                .all(|m| m.router.is_established().unwrap_or(false))
                .then_some(())
        });
        assert!(up.is_some(), "sessions came up; {:?}", running.exchange.exited());
        for member in 0..HONEST {
            running.change(member, &[own(member), contested(member)]);
        }
        let full = wait_until(TIMEOUT, || {
            let members = running.exchange.members[..HONEST].iter_mut();
            let mut tables = members.map(|member| member.router.table().unwrap_or_default().len());
            tables.all(|routes| routes == HONEST - 1 + HONEST / 2).then_some(())
        });
        assert!(full.is_some(), "every member has every route; {:?}", running.exchange.exited());
        running
    }

    fn status(&self, party: usize) -> Value {
        self.exchange.parties[party].ask("/api/v1/status").expect("it runs")
    }

    /// What a party's operator sees: `show status` and the page of metrics.
    fn shown(&self, party: usize) -> (String, String) {
        let at = &self.exchange.parties[party].at.process;
        let text = self.exchange.files.tool(&["show", "status", "--url", &at.status.to_string()]).expect("shown");
        (text, get(&at.namespace, at.status, "/metrics").expect("a page"))
    }

    /// A member announces a new version of each of these; returns its mark.
    fn change(&mut self, member: usize, prefixes: &[Prefix]) -> LargeCommunity {
        self.changes += 1;
        let mark = LargeCommunity::new(4_200_000_000, 0, self.changes);
        let name = self.exchange.members[member].at.name.clone();
        for prefix in prefixes {
            let route = Announcement::of(*prefix).with_large(mark);
            self.exchange.replace(&name, route).expect("a router that takes routes");
        }
        mark
    }

    /// The 99th percentile of the latencies from a router to another.
    fn p99(&mut self, changes: usize) -> Duration {
        let mut latencies: Vec<Duration> = (0..changes)
            .map(|change| {
                // Of two members with equal routes the first one's is chosen.
                let member = change * 7 % HONEST;
                let (from, prefix) =
                    if change.is_multiple_of(2) { (member, own(member)) } else { (member & !1, contested(member)) };
                let to = (from + 7) % HONEST;
                let begin = Instant::now();
                let mark = self.change(from, &[prefix]);
                loop {
                    let table = self.exchange.members[to].router.table().unwrap_or_default();
                    let is_there = |marks: &[LargeCommunity]| marks.contains(&mark);
                    if table.iter().any(|route| route.prefix == prefix && is_there(&route.large_communities)) {
                        break;
                    }
                    assert!(begin.elapsed() < TIMEOUT, "{prefix} arrives; {:?}", self.exchange.exited());
                    sleep(Duration::from_millis(1));
                }
                let took = begin.elapsed();
                sleep(Duration::from_millis((change * 37 % 60) as u64));
                took
            })
            .collect();
        latencies.sort_unstable();
        latencies[changes * 99 / 100]
    }

    /// The most resident memory that each party has had, in KiB.
    fn memory(&self) -> [u64; 2] {
        self.exchange.parties.each_ref().map(|party| {
            let status = party.role.id().and_then(|id| fs::read_to_string(format!("/proc/{id}/status")).ok());
            let of = |text: String| {
                let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"))?.trim().to_owned();
                line.split(' ').next()?.parse().ok()
            };
            status.and_then(of).expect("it runs")
        })
    }

    fn hostile(&self, number: usize) -> Hostile {
        let slot = HONEST + number;
        let files = &self.exchange.files;
        let identity = |name: &str| Identity::load(Path::new(&files.path(&format!("{name}.key")))).expect("a key file");
        let party = |index: usize| {
            let at = &self.exchange.parties[index].at;
            (at.listen.to_string(), identity(&format!("party{}", at.number)).fingerprint())
        };
        Hostile {
            slot: u32::try_from(slot).expect("few"),
            identity: identity(&self.exchange.members[slot].at.name),
            parties: [party(0), party(1)],
            runtime: tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .enable_all()
                .build()
                .expect("a thread"),
            set: self.status(0)["member_set"].as_u64().expect("a number"),
        }
    }
}

fn own(member: usize) -> Prefix {
    format!("20.{member}.0.0/16").parse().expect("a prefix")
}

/// The prefix to which a member and the next one have routes.
fn contested(member: usize) -> Prefix {
    format!("21.{}.0.0/16", member / 2).parse().expect("a prefix")
}

fn has(status: &Value, list: &str, slot: usize) -> bool {
    status[list].as_array().is_some_and(|slots| slots.iter().any(|listed| *listed == slot))
}

#[test]
fn no_hostile_member_sets_the_others_latency_or_memory() {
    let state = Path::new(env!("CARGO_TARGET_TMPDIR")).join("hostile");
    let _ = fs::remove_dir_all(&state);
    fs::create_dir_all(&state).expect("a folder");
    let changes = std::env::var("WAYLEAVE_HOSTILE_CHANGES").ok().and_then(|text| text.parse().ok());
    let changes = changes.unwrap_or(CHANGES);
    let mut running = Running::start(&state);
    // Few changes do not make a percentile: then noise has a floor.
    let floor = if changes < 1000 { NOISE } else { Duration::ZERO };
    for (number, (name, (list, party, words), attack)) in ATTACKS.into_iter().enumerate() {
        let (slot, before, quiet) = (HONEST + number, running.memory(), running.p99(changes));
        let (hostile, ends) = (running.hostile(number), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| attack(&hostile, &ends));
            // The first rounds without its rankings are waited for, while routes change.
            let mut turns = 0;
            let named = wait_until(TIMEOUT, || {
                turns += 1;
                running.p99(2);
                let status = running.status(party);
                has(&status, list, slot).then(|| running.shown(party))
            });
            let during = named.as_ref().map(|_| running.p99(changes));
            ends.store(true, Ordering::Relaxed);
            let status = running.status(party);
            let (Some((text, page)), Some(during)) = (named, during) else {
                panic!("{name}: never under {list}: {status:#}")
            };
            println!("{name}: p99 {during:?}, quiet {quiet:?}, named after {turns} turns");
            let of = &running.exchange.members[slot].at;
            let problem = format!("problem: the member in slot {slot} ({}, {}) {words}", of.name, of.asn);
            assert!(text.contains(&problem), "{name}: {problem}: {text}");
            let why = list.replace('_', "-");
            let sample =
                format!("\nwayleave_rs_reported_members{{slot=\"{slot}\",member=\"{}\",why=\"{why}\"}} 1", of.name);
            assert!(page.contains(&sample), "{name}: {sample}: {page}");
            assert!(during < 2 * quiet.max(floor), "{name}: {during:?}, {quiet:?} when quiet");
            for (before, after) in before.into_iter().zip(running.memory()) {
                assert!(after < before + GROWTH_KIB, "{name}: from {before} to {after} KiB");
            }
        });
    }
    let status = running.status(0);
    assert!((0..HONEST).all(|slot| has(&status, "members", slot)), "{status:#}");
    for list in ["on_probation", "over_budget", "behind"] {
        assert!((0..HONEST).all(|slot| !has(&status, list, slot)), "honest members are not named: {status:#}");
    }
    let refused = running.status(0)["counters"]["refused"].as_u64().unwrap_or(0);
    assert!(refused > 0, "the flood is refused by name: {status:#}");
    assert!(running.exchange.parties.iter_mut().all(|party| party.role.is_running()));
}
