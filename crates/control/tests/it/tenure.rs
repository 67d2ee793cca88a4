//! Several key servers with one database: one leases rates at a time, whoever dies, stands still, is cut off, or finds an old copy of the
//! database; and routers never have more than the rate.
//!
//! PLA, one lessor at a time: key servers killed, standing still, with clocks that run apart or stop, cut off from the database or from
//! routers; the database gone, or set back; routers started again: the sum of all that routers may let pass is never above the rate, and
//! what they had stays over the change.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use wayleave_control::capability::{
    JournalId, RatePayer, RateTerms, RouterClient, RouterClientEvent, RouterServer, RouterServerConfig,
    RouterServerInput, RouterServerOutput, SharedRate,
};
use wayleave_control::leases::{FALL, HOLD, Offline};
use wayleave_control::tenure::{Holder, LessorRow, RENEWAL, Tenure, VACANT, VALID};
use wayleave_core::{IdentityKey, Instant, Machine, Now, UnixTime};
use wayleave_packet::platypus::header::Principal;

const RATE: u64 = 1_000_000;
const SERVERS: usize = 3;
const ROUTERS: usize = 4;
/// The world's step, and how often the row is looked at, in milliseconds.
const STEP: u64 = 50;
const LOOK: u64 = RENEWAL.as_millis() as u64;

fn payer() -> RatePayer {
    RatePayer { principal: Principal::new(7).expect("24 bits"), delegation: None }
}

fn routers() -> BTreeMap<IdentityKey, u16> {
    (0..ROUTERS as u8).map(|which| (IdentityKey([which; 32]), which.into())).collect()
}

/// Numbers that look like chance.
struct Random(u64);

impl Random {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }
}

/// A clock that is by up to a sixteenth faster or slower than the world's, and may stop with its machine; the wall clock goes on.
#[derive(Clone, Copy)]
struct Drift {
    parts: u64,
    /// When it was set, in the world's milliseconds and its own.
    since: (u64, u64),
    is_stopped: bool,
}

impl Drift {
    fn new(random: &mut Random) -> Self {
        Self { parts: 15 + random.below(3), since: (0, random.below(1 << 30)), is_stopped: false }
    }

    fn millis(&self, world: u64) -> u64 {
        let passed = if self.is_stopped { 0 } else { world - self.since.0 };
        self.since.1 + passed * self.parts / 16
    }

    fn stop(&mut self, world: u64, is_stopped: bool) {
        self.since = (world, self.millis(world));
        self.is_stopped = is_stopped;
    }

    fn now(&self, world: u64) -> Now {
        let unix = UnixTime((1_800_000_000_000 + world) * 1_000);
        Now { instant: Instant(self.millis(world) * 1_000_000), unix }
    }
}

/// A key server's process.
struct Server {
    machine: RouterServer,
    tenure: Tenure,
    told: Option<u64>,
    /// Since when no router is connected.
    alone: Option<Instant>,
    /// The row is to be looked at now.
    is_due: bool,
}

/// A key server's machine.
struct Site {
    process: Option<Server>,
    clock: Drift,
    /// Its process stands still; frames wait.
    is_still: bool,
    has_database: bool,
}

/// A router's process.
struct Router {
    client: RouterClient,
    demand: u64,
    started: u32,
}

/// A frame on its way from or to a router by a link, and when it arrives.
struct Frame {
    link: u64,
    to_server: bool,
    octets: Vec<u8>,
    arrives: u64,
}

struct World {
    random: Random,
    millis: u64,
    row: LessorRow,
    old_row: LessorRow,
    is_database_up: bool,
    /// All processes are on one machine, and who has the lock.
    is_one_machine: bool,
    lock: Option<Holder>,
    sites: Vec<Site>,
    routers: Vec<Router>,
    clocks: Vec<Drift>,
    /// Links that are up, each from a router to a server; and pairs that are cut.
    links: BTreeMap<u64, (usize, usize)>,
    next_link: u64,
    cut: [[bool; SERVERS]; ROUTERS],
    frames: VecDeque<Frame>,
    processes: u8,
    /// The greatest sum that there was.
    most: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let clocks: Vec<Drift> = (0..ROUTERS).map(|_| Drift::new(&mut random)).collect();
        let sites: Vec<Site> = (0..SERVERS)
            .map(|_| Site { process: None, clock: Drift::new(&mut random), is_still: false, has_database: true })
            .collect();
        let mut world = Self {
            random,
            millis: 0,
            row: LessorRow::default(),
            old_row: LessorRow::default(),
            is_database_up: true,
            is_one_machine: false,
            lock: None,
            sites,
            routers: Vec::new(),
            clocks,
            links: BTreeMap::new(),
            next_link: 0,
            cut: [[false; SERVERS]; ROUTERS],
            frames: VecDeque::new(),
            processes: 0,
            most: 0,
        };
        world.routers = (0..ROUTERS).map(|which| World::router(which, 1)).collect();
        (0..SERVERS).for_each(|which| world.start(which));
        world
    }

    fn router(which: usize, started: u32) -> Router {
        let mut client = RouterClient::new(JournalId([which as u8; 16]), BTreeMap::new(), None);
        // As it was told before.
        let rate = SharedRate { payer: payer(), rate: RATE, routers: ROUTERS as u16, offline: Offline::Decay };
        client.share(&[rate], u64::from(started) << 32 | which as u64);
        Router { client, demand: RATE, started }
    }

    fn restart_router(&mut self, which: usize) {
        self.close(|(router, _)| router == which);
        self.routers[which] = Self::router(which, self.routers[which].started + 1);
    }

    fn start(&mut self, which: usize) {
        self.kill(which);
        let now = self.sites[which].clock.now(self.millis);
        let rates = BTreeMap::from([(payer(), RateTerms { rate: RATE, ..RateTerms::default() })]);
        let config =
            RouterServerConfig { routers: routers(), rates, confirmed: BTreeMap::new(), ahead: BTreeMap::new() };
        self.processes += 1;
        let tenure = Tenure::new(Holder([self.processes; 16]));
        let machine = RouterServer::new(config, now.instant);
        self.sites[which].process = Some(Server { machine, tenure, told: None, alone: None, is_due: false });
        self.sites[which].is_still = false;
    }

    fn kill(&mut self, which: usize) {
        if let Some(server) = self.sites[which].process.take() {
            self.lock.take_if(|holder| *holder == server.tenure.holder());
        }
        self.close(|(_, server)| server == which);
    }

    /// Links of these end, and the routers know it. A server that stands still does not.
    fn close(&mut self, is: impl Fn((usize, usize)) -> bool) {
        let closed: Vec<u64> = self.links.iter().filter(|(_, of)| is(**of)).map(|(link, _)| *link).collect();
        for link in closed {
            let Some((router, server)) = self.links.remove(&link) else { continue };
            let of = &mut self.routers[router];
            let events = of.client.disconnected(link);
            let is_rates = |event: &RouterClientEvent| matches!(event, RouterClientEvent::Rates(_));
            assert!(events.iter().all(is_rates), "one link to each server");
            self.input(server, RouterServerInput::Disconnected { link });
        }
    }

    fn input(&mut self, which: usize, input: RouterServerInput) {
        let site = &mut self.sites[which];
        let now = site.clock.now(self.millis);
        let Some(server) = &mut site.process else { return };
        server.machine.handle(input, now);
        while let Some(output) = server.machine.poll() {
            match output {
                RouterServerOutput::Send { link, octets } => {
                    let arrives = self.millis + STEP + self.random.below(4) * STEP;
                    self.frames.push_back(Frame { link, to_server: false, octets, arrives });
                }
                RouterServerOutput::Superseded { epoch, .. } => assert!(server.tenure.heard_of(epoch, now)),
                RouterServerOutput::Renew => server.is_due = true,
                RouterServerOutput::Close { .. }
                | RouterServerOutput::Check { .. }
                | RouterServerOutput::Store { .. }
                | RouterServerOutput::Refusals { .. }
                | RouterServerOutput::Event(_) => {}
            }
        }
    }

    /// As the task beside the machine does.
    fn look(&mut self, which: usize) {
        let is_up = self.is_database_up && self.sites[which].has_database;
        let site = &mut self.sites[which];
        let now = site.clock.now(self.millis);
        let Some(server) = &mut site.process else { return };
        server.is_due = false;
        let tenure = &mut server.tenure;
        tenure.heed(now);
        let is_connected = server.machine.status().values().any(|of| of.link.is_some());
        server.alone = if is_connected { None } else { server.alone.or(Some(now.instant)) };
        let is_unreached = server.alone.is_some_and(|since| server.told.is_none() || now.instant.since(since) >= VALID);
        let is_unreached = is_unreached && !(self.is_one_machine && server.told.is_some());
        let own = tenure.holder();
        if is_unreached {
            if tenure.renews(now).is_some() {
                tenure.given_up(None);
                if is_up && self.row.holder.take_if(|holder| *holder == own).is_some() {
                    self.row.renewed += 1;
                    tenure.given_up(Some(self.row.clone()));
                }
            }
        } else if let Some(epoch) = tenure.renews(now) {
            if self.is_one_machine {
                tenure.renewed(true, now, now);
            } else if is_up {
                let is_own = (self.row.epoch, self.row.holder) == (epoch, Some(own));
                self.row.renewed += u64::from(is_own);
                tenure.renewed(is_own, now, now);
            }
        } else if is_up {
            let is_alone = self.is_one_machine.then(|| *self.lock.get_or_insert(own) == own);
            if let Some(epoch) = tenure.wants(&self.row, is_alone, now) {
                assert!(epoch >= self.row.epoch && (epoch > self.row.epoch || self.row.holder.is_none()));
                let renewed = if epoch == self.row.epoch { self.row.renewed + 1 } else { 0 };
                let mut numbers = tenure.routers(&routers().into_values().collect(), now.instant);
                numbers.extend(&self.row.routers);
                tenure.taken(&self.row, epoch, now);
                self.row = LessorRow { epoch, renewed, holder: Some(own), name: String::new(), routers: numbers };
            }
        }
        let others = tenure.routers(&routers().into_values().collect(), now.instant);
        let term = tenure.term(now);
        if term.is_none() {
            self.lock.take_if(|holder| *holder == own);
        }
        if term.is_some() || server.told.is_some() {
            server.told = term.map(|term| term.epoch);
            self.input(which, RouterServerInput::Term(term, others));
        }
    }

    fn step(&mut self) {
        self.millis += STEP;
        let millis = self.millis;
        for router in 0..ROUTERS {
            for server in 0..SERVERS {
                let is_up = self.links.values().any(|of| *of == (router, server));
                let site = &self.sites[server];
                if is_up || self.cut[router][server] || site.is_still || site.process.is_none() {
                    continue;
                }
                self.next_link += 1;
                let link = self.next_link;
                self.links.insert(link, (router, server));
                self.routers[router].client.connected(link);
                self.input(server, RouterServerInput::Connected { link, peer: IdentityKey([router as u8; 32]) });
                let (octets, arrives) = (self.routers[router].client.watch(), millis + STEP);
                self.frames.push_back(Frame { link, to_server: true, octets, arrives });
            }
        }
        for which in 0..SERVERS {
            let is_due = self.sites[which].process.as_ref().is_some_and(|server| server.is_due);
            if (is_due || millis % LOOK == which as u64 * 3 * STEP) && !self.sites[which].is_still {
                self.look(which);
            }
        }
        // In order on each link, as TCP is.
        let mut blocked = Vec::new();
        for _ in 0..self.frames.len() {
            let Some(frame) = self.frames.pop_front() else { break };
            let Some((router, server)) = self.links.get(&frame.link).copied() else { continue };
            let way = (frame.link, frame.to_server);
            let waits = frame.arrives > millis || self.cut[router][server] || self.sites[server].is_still;
            if blocked.contains(&way) || waits && frame.to_server || waits && frame.arrives > millis {
                blocked.push(way);
                self.frames.push_back(frame);
                continue;
            }
            if frame.to_server {
                self.input(server, RouterServerInput::Frame { link: frame.link, octets: frame.octets });
                continue;
            }
            let now = self.clocks[router].now(millis).instant;
            let events = self.routers[router].client.frame(frame.link, &frame.octets, now).expect("sound");
            for event in events {
                if let RouterClientEvent::Superseded { octets, .. } = event {
                    let arrives = millis + STEP;
                    self.frames.push_back(Frame { link: frame.link, to_server: true, octets, arrives });
                }
            }
        }
        if millis.is_multiple_of(100) {
            for router in 0..ROUTERS {
                let now = self.clocks[router].now(millis).instant;
                let of = &mut self.routers[router];
                of.client.demand(&payer(), of.demand);
                let Some((link, octets)) = of.client.ask(now) else { continue };
                let arrives = millis + STEP + self.random.below(3) * STEP;
                self.frames.push_back(Frame { link, to_server: true, octets, arrives });
            }
        }
        let sum = self.sum();
        self.most = self.most.max(sum);
        assert!(sum <= RATE, "{sum} at {millis} ms");
    }

    /// What all routers may let pass.
    fn sum(&self) -> u64 {
        let each = self.routers.iter().zip(&self.clocks);
        each.flat_map(|(of, clock)| of.client.rates(clock.now(self.millis).instant)).map(|(_, rate)| rate).sum()
    }

    fn run(&mut self, time: Duration) {
        (0..time.as_millis() as u64 / STEP).for_each(|_| self.step());
    }

    fn lessors(&self) -> Vec<usize> {
        let is = |site: &Site| {
            let now = site.clock.now(self.millis);
            site.process.as_ref().is_some_and(|server| server.tenure.term(now).is_some())
        };
        (0..SERVERS).filter(|which| is(&self.sites[*which])).collect()
    }
}

#[test]
fn one_of_several_leases_and_when_it_is_killed_another_does_within_seconds_and_nobody_loses_a_tenth() {
    let mut world = World::new(1);
    world.run(Duration::from_secs(5));
    let [first] = world.lessors()[..] else { panic!("{:?}", world.lessors()) };
    let before = world.sum();
    assert!(before > RATE * 98 / 100, "{before}");
    world.kill(first);
    let (begin, mut least) = (world.millis, before);
    while world.lessors().is_empty() {
        world.step();
        least = least.min(world.sum());
    }
    let took = Duration::from_millis(world.millis - begin);
    // By clocks that run apart by a sixteenth.
    assert!((VALID..VACANT * 17 / 15 + 2 * RENEWAL).contains(&took), "{took:?}");
    world.run(Duration::from_secs(30));
    assert!(world.sum().min(least) > RATE * 9 / 10, "{least} {}", world.sum());
    // A whole minute without any of them.
    (0..SERVERS).for_each(|which| world.kill(which));
    world.run(Duration::from_secs(30));
    assert!(world.sum() > RATE * 9 / 10, "{}", world.sum());
    world.start(first);
    world.run(Duration::from_secs(20));
    assert!(world.sum() > RATE * 98 / 100, "{}", world.sum());
}

#[test]
fn without_the_database_leases_end_and_what_was_given_dwindles() {
    let mut world = World::new(2);
    world.run(Duration::from_secs(5));
    world.is_database_up = false;
    world.run(VALID * 9 / 8 + RENEWAL);
    assert_eq!(world.lessors(), [0; 0]);
    world.run(Duration::from_secs(40));
    assert!(world.sum() > RATE * 9 / 10, "{}", world.sum());
    world.run(HOLD + FALL);
    assert!(world.sum() <= RATE / 100, "the floors: {}", world.sum());
    world.is_database_up = true;
    world.run(Duration::from_secs(10));
    assert!(world.lessors().len() == 1 && world.sum() > RATE * 98 / 100, "{}", world.sum());
}

/// Two believe that they lease: one stands still, its machine's clock too, and finds on its return that routers ask another one.
#[test]
fn one_that_stood_still_with_its_clock_is_asked_by_nobody_any_more() {
    let mut world = World::new(3);
    world.run(Duration::from_secs(5));
    let [first] = world.lessors()[..] else { panic!("{:?}", world.lessors()) };
    world.sites[first].is_still = true;
    world.sites[first].clock.stop(world.millis, true);
    world.run(Duration::from_secs(60));
    assert_eq!(world.lessors().len(), 1, "by both of its clocks");
    world.sites[first].clock.stop(world.millis, false);
    world.sites[first].is_still = false;
    world.run(Duration::from_secs(10));
    let [second] = world.lessors()[..] else { panic!("{:?}", world.lessors()) };
    assert!(second != first && world.sum() > RATE * 98 / 100, "{}", world.sum());
}

#[test]
fn a_lessor_of_a_database_that_was_set_back_begins_above_what_routers_have_heard_of() {
    let mut world = World::new(4);
    world.run(Duration::from_secs(5));
    // Its clock was ahead by a day when it took the row: routers have heard of an epoch that the time alone does not exceed.
    let epoch = world.row.epoch + 86_400;
    let [first] = world.lessors()[..] else { panic!("{:?}", world.lessors()) };
    world.kill(first);
    world.old_row = world.row.clone();
    world.row.epoch = epoch;
    world.run(Duration::from_secs(20));
    assert!(world.row.epoch > epoch);
    world.row = world.old_row.clone();
    world.run(Duration::from_secs(40));
    assert!(world.row.epoch > epoch && world.lessors().len() == 1);
    assert!(world.sum() > RATE * 98 / 100, "{}", world.sum());
    // One of them is made up: nobody begins above it, and others are heeded all the same.
    let mut tenure = Tenure::new(Holder([1; 16]));
    let now = world.clocks[0].now(world.millis);
    assert!(!tenure.heard_of(u64::MAX, now) && tenure.heard_of(now.unix.secs() + 1_000, now));
    tenure.heed(now);
    assert_eq!(tenure.wants(&LessorRow::default(), None, now), Some(now.unix.secs() + 1_001));
    // What one router says ends no term again and again.
    assert!(tenure.heard_of(now.unix.secs() + 5_000, now));
    let later = |secs: u64| Now { instant: now.instant + Duration::from_secs(secs), unix: now.unix };
    for (secs, epoch) in [(299, 1_001), (300, 5_001)] {
        tenure.heed(later(secs));
        assert_eq!(tenure.wants(&LessorRow::default(), None, later(secs)), Some(now.unix.secs() + epoch));
    }
}

/// A lock on a file says which process leases: none takes the row from one that lives, though that does not change.
#[test]
fn on_one_machine_the_process_with_the_lock_leases_and_the_next_begins_at_once() {
    let mut world = World::new(5);
    world.is_one_machine = true;
    world.run(Duration::from_secs(60));
    let [first] = world.lessors()[..] else { panic!("{:?}", world.lessors()) };
    let epoch = world.row.epoch;
    world.sites[first].is_still = true;
    world.run(Duration::from_secs(60));
    assert_eq!((world.lessors().len(), world.row.epoch), (0, epoch), "it has the lock");
    world.sites[first].is_still = false;
    world.run(Duration::from_secs(5));
    assert_eq!(world.lessors(), [first]);
    world.kill(first);
    world.run(Duration::from_secs(3));
    assert!(world.lessors().len() == 1 && world.sum() > RATE * 98 / 100, "{}", world.sum());
}

/// The only server, whose network was away: nobody leased meanwhile, and what it gave is known.
#[test]
fn a_lessor_that_takes_back_what_nobody_took_goes_on_in_its_term() {
    let mut world = World::new(7);
    (1..SERVERS).for_each(|which| world.kill(which));
    world.run(Duration::from_secs(5));
    let epoch = world.row.epoch;
    // One router does not come back: who does not know what it has gives nobody more than that for minutes.
    world.cut.iter_mut().for_each(|of| of[0] = true);
    world.close(|_| true);
    world.run(Duration::from_secs(20));
    assert_eq!((world.lessors().len(), world.row.holder), (0, None));
    world.cut[1..].iter_mut().for_each(|of| of[0] = false);
    (1..ROUTERS).for_each(|router| world.restart_router(router));
    world.run(Duration::from_secs(5));
    assert_eq!((world.lessors(), world.row.epoch), (vec![0], epoch));
    assert!(world.sum() > RATE * 95 / 100, "{}", world.sum());
}

#[test]
fn a_lessor_that_no_router_reaches_leaves_the_row_to_another() {
    let mut world = World::new(6);
    world.run(Duration::from_secs(5));
    let [first] = world.lessors()[..] else { panic!("{:?}", world.lessors()) };
    (0..ROUTERS).for_each(|router| world.cut[router][first] = true);
    world.close(|(_, server)| server == first);
    world.run(VALID * 2);
    let [second] = world.lessors()[..] else { panic!("{:?}", world.lessors()) };
    assert!(second != first && world.sum() > RATE * 98 / 100, "{}", world.sum());
}

/// Whoever writes to the database, or an old copy of it, names another holder while the lessor is one still: the next begins at once.
#[test]
fn two_that_both_lease_never_give_more_than_the_rate_together() {
    for seed in 30..36 {
        let mut world = World::new(seed);
        world.run(Duration::from_secs(5));
        let (mut both, mut shared) = (0, 0);
        for _ in 0..120 {
            let server = world.random.below(SERVERS as u64) as usize;
            world.row.holder = world.sites[server].process.as_ref().map(|of| of.tenure.holder());
            for _ in 0..5 {
                let (router, demand) = (world.random.below(ROUTERS as u64) as usize, world.random.below(2) * RATE);
                world.routers[router].demand = demand;
                if world.random.below(20) == 0 {
                    world.restart_router(router);
                }
                // Who holds the row does not renew it, and does not see yet that it is another's.
                if world.random.below(3) == 0 {
                    let lessor = world.lessors().first().copied().unwrap_or(0);
                    world.sites[lessor].has_database ^= true;
                }
                let pause = 100 + STEP * world.random.below(10);
                world.run(Duration::from_millis(pause));
                both += usize::from(world.lessors().len() > 1);
                let asked = world.routers.iter().filter_map(|of| world.links.get(&of.client.lessor()?));
                let asked: BTreeSet<usize> = asked.map(|(_, server)| *server).collect();
                shared += usize::from(asked.len() > 1);
            }
            world.sites.iter_mut().for_each(|site| site.has_database = true);
        }
        assert!(both > 20 && shared > 0, "seed {seed}: {both} {shared}");
    }
}

#[test]
fn whatever_happens_routers_never_have_more_than_the_rate_and_have_it_again_afterwards() {
    for seed in 10..20 {
        let mut world = World::new(seed);
        world.is_one_machine = seed % 4 == 3;
        world.run(Duration::from_secs(5));
        for _ in 0..60 {
            let (server, router) =
                (world.random.below(SERVERS as u64) as usize, world.random.below(ROUTERS as u64) as usize);
            match world.random.below(12) {
                0 => world.kill(server),
                1 => world.start(server),
                2 | 3 => {
                    let site = &mut world.sites[server];
                    site.is_still = !site.is_still;
                    if site.clock.is_stopped || world.random.below(3) == 0 {
                        let is_still = site.is_still;
                        site.clock.stop(world.millis, is_still);
                    }
                }
                4 => world.sites[server].has_database ^= true,
                5 => world.is_database_up ^= true,
                6 if !world.is_one_machine => world.row = world.old_row.clone(),
                6 | 7 => world.old_row = world.row.clone(),
                8 | 9 => {
                    let is_cut = !world.cut[router][server];
                    world.cut[router][server] = is_cut;
                    if is_cut && world.random.below(2) == 0 {
                        world.close(|of| of == (router, server));
                    }
                }
                10 => world.restart_router(router),
                _ => world.routers[router].demand = RATE / (1 + world.random.below(30)),
            }
            let longest = if world.random.below(4) == 0 { 40_000 } else { 4_000 };
            let pause = 500 + world.random.below(longest);
            world.run(Duration::from_millis(pause));
        }
        // All is well again.
        world.is_database_up = true;
        world.cut = Default::default();
        for which in 0..SERVERS {
            world.sites[which].has_database = true;
            world.sites[which].is_still = false;
            let millis = world.millis;
            world.sites[which].clock.stop(millis, false);
            if world.sites[which].process.is_none() {
                world.start(which);
            }
        }
        world.routers.iter_mut().for_each(|router| router.demand = RATE);
        // Until a term ends once more for what routers have heard of.
        world.run(HOLD + FALL + Duration::from_secs(360));
        let sum = world.sum();
        assert!(world.lessors().len() == 1 && sum > RATE * 98 / 100, "seed {seed}: {sum}");
    }
}
