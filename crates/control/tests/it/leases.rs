//! Leases of a rate over eight routers, with clocks that run apart and a network that loses, delays, repeats and cuts off: steady
//! demand gets the rate, and no cut gets more than the rate and the bursts.
//!
//! PLA, leases: eight routers, clocks that run apart, messages lost, repeated and late, routers cut off, the lessor gone for a while
//! or for good: never above the rate and the bursts; 98 of a hundred under steady demand; a lessor that is away for 30 s costs nothing.

use std::collections::BTreeSet;
use std::time::Duration;

use wayleave_control::leases::{FALL, HOLD, INTERVAL, LEASE, Lease, LeaseAnswer, LeaseRequest, Lessor, Offline, floor};
use wayleave_core::Instant;

use crate::common::Random;

const ROUTERS: usize = 8;
const RATE: u64 = 10_000_000;
const BURST: u64 = 65_535;
/// One step of the world, in nanoseconds.
const STEP: u64 = 5_000_000;

/// The routers with these numbers from zero on.
fn numbers(count: usize) -> BTreeSet<u16> {
    (0..count as u16).collect()
}

/// A clock that began some time ago and runs fast or slow.
#[derive(Clone, Copy)]
struct Clock {
    begun: u64,
    per_mille: u64,
}

impl Clock {
    fn at(self, world: u64) -> Instant {
        Instant(self.begun + world / 1_000 * self.per_mille)
    }
}

enum Message {
    Request(LeaseRequest),
    Answer(LeaseAnswer),
}

/// How bad the network is: messages of a hundred that are lost, that come twice, and the longest delay.
#[derive(Clone, Copy)]
struct Weather {
    lost: u64,
    twice: u64,
    delay: u64,
}

struct Router {
    /// Its index in the configuration. Another one may have the same, if a machine was copied.
    index: usize,
    lease: Lease,
    clock: Clock,
    /// How often it was started, and at which lessor it is connected.
    starts: u64,
    connected: usize,
    asks: u64,
    /// Octets a second that are offered.
    demand: u64,
    is_cut: bool,
    /// A plain bucket: octets it holds.
    tokens: u64,
}

struct World {
    now: u64,
    random: Random,
    /// None while it is away, and how many there were.
    lessor: Option<Lessor>,
    lessors: usize,
    offline: Offline,
    clock: Clock,
    routers: Vec<Router>,
    /// When a message arrives, at or from which router, over the link to which lessor.
    flying: Vec<(u64, usize, usize, Message)>,
    weather: Weather,
    passed: u64,
    /// The greatest sum of rates that routers used at once.
    most: u64,
}

impl World {
    fn new(seed: u64, weather: Weather) -> Self {
        Self::with(seed, weather, Offline::Decay)
    }

    fn with(seed: u64, weather: Weather, offline: Offline) -> Self {
        let mut random = Random(seed);
        let mut clock = || Clock { begun: random.below(1 << 50), per_mille: 940 + random.below(126) };
        let lessor = clock();
        let routers = (0..ROUTERS).map(|index| Router {
            index,
            lease: Lease::new(RATE, offline, ROUTERS, (1_000 + index as u64, 0)),
            clock: clock(),
            starts: 0,
            connected: 1,
            asks: index as u64 * 11_000_000,
            demand: 0,
            is_cut: false,
            tokens: BURST,
        });
        let routers = routers.collect();
        let machine = Some(Lessor::new(RATE, offline, &numbers(ROUTERS), lessor.at(0)));
        Self {
            now: 0,
            random,
            lessor: machine,
            lessors: 1,
            offline,
            clock: lessor,
            routers,
            flying: Vec::new(),
            weather,
            passed: 0,
            most: 0,
        }
    }

    fn send(&mut self, router: usize, message: impl Fn() -> Message) {
        let copies = if self.random.below(100) < self.weather.twice { 2 } else { 1 };
        for _ in 0..copies {
            if self.random.below(100) >= self.weather.lost && !self.routers[router].is_cut {
                let at = self.now + self.random.below(self.weather.delay);
                self.flying.push((at, router, self.routers[router].connected, message()));
            }
        }
    }

    fn step(&mut self) {
        self.now += STEP;
        let (due, flying) = std::mem::take(&mut self.flying).into_iter().partition(|(at, ..)| *at <= self.now);
        self.flying = flying;
        let due: Vec<_> = due;
        for (_, router, link, message) in due {
            // What was under way when the line was cut is lost, or arrives: both happen. What was under way over another link is lost.
            if link != self.routers[router].connected {
                continue;
            }
            match message {
                Message::Request(request) => {
                    let now = self.clock.at(self.now);
                    let index = self.routers[router].index as u16;
                    let lessor = self.lessor.as_mut().filter(|_| link == self.lessors);
                    if let Some(answer) = lessor.and_then(|lessor| lessor.handle(index, &request, now)) {
                        self.send(router, || Message::Answer(answer));
                    }
                }
                Message::Answer(answer) => {
                    let Router { lease, clock, .. } = &mut self.routers[router];
                    lease.handle(&answer, clock.at(self.now));
                }
            }
        }
        for index in 0..self.routers.len() {
            let now = self.now;
            let is_due = self.lessor.is_some() && self.random.below(20) == 0;
            let router = &mut self.routers[index];
            if router.connected != self.lessors && is_due && !router.is_cut {
                router.connected = self.lessors;
                router.lease.reconnected();
            }
            if now >= router.asks {
                router.asks = now + INTERVAL.as_nanos() as u64;
                let request = router.lease.request(router.demand, router.clock.at(now));
                self.send(index, || Message::Request(request));
            }
        }
        let now = self.now;
        // Whoever runs twice has its floor twice; all else is shared.
        let mut sum = floor(RATE, ROUTERS) * ROUTERS as u64;
        for router in &mut self.routers {
            let rate = router.lease.rate(router.clock.at(now));
            sum += rate - router.lease.floor();
            router.tokens = (router.tokens + rate * STEP / 1_000_000_000).min(BURST);
            let offered = u128::from(router.demand) * u128::from(STEP) / 1_000_000_000;
            let passes = router.tokens.min(u64::try_from(offered).unwrap_or(u64::MAX));
            router.tokens -= passes;
            self.passed += passes;
        }
        self.most = self.most.max(sum);
        assert!(sum <= RATE, "{sum} octets a second are allowed at {now}");
    }

    /// It forgets its lease, and what it asked for.
    fn restart(&mut self, router: usize) {
        let random = self.random.next() & 0xffff_ffff;
        let router = &mut self.routers[router];
        router.starts += 1;
        router.lease = Lease::new(RATE, self.offline, ROUTERS, (router.starts << 32 | random, 0));
    }

    /// The lessor is gone, or another one begins.
    fn lessor(&mut self, is_there: bool) {
        self.lessor = is_there.then(|| Lessor::new(RATE, self.offline, &numbers(ROUTERS), self.clock.at(self.now)));
        self.lessors += usize::from(is_there);
    }

    fn run(&mut self, span: Duration) {
        let end = self.now + span.as_nanos() as u64;
        while self.now < end {
            self.step();
        }
    }

    /// What passes in `span`.
    fn measured(&mut self, span: Duration) -> u64 {
        let before = self.passed;
        self.run(span);
        self.passed - before
    }

    fn offer(&mut self, demands: [u64; ROUTERS]) {
        for (router, demand) in self.routers.iter_mut().zip(demands) {
            router.demand = demand;
        }
    }
}

const GOOD: Weather = Weather { lost: 0, twice: 0, delay: 20_000_000 };

/// What a router says of its floor takes no more from the others than a lone router's floor: a hundredth.
#[test]
fn a_router_that_lies_of_its_floor_takes_a_hundredth_from_the_others() {
    let numbers = BTreeSet::from([1, 2]);
    let mut lessor = Lessor::new(100_000, Offline::Decay, &numbers, Instant(0));
    let later = Instant(0) + Duration::from_secs(1_000);
    let share = |lessor: &mut Lessor, number: u64| {
        let request = LeaseRequest { session: 1 << 32, number, uses: number - 1, share: 0, demand: 200_000 };
        lessor.handle(1, &request, later + Duration::from_millis(100 * number)).expect("a router").share
    };
    assert_eq!(share(&mut lessor, 1), 99_000);
    lessor.use_floor(2, u64::MAX / 100);
    assert_eq!(share(&mut lessor, 2), 100_000 - 1_000 - 500);
    // A floor of before the rate was lowered is honest: for so long the others have less.
    lessor.change(50_000, Offline::Decay, &numbers);
    lessor.use_floor(2, 500);
    assert_eq!(share(&mut lessor, 3), 50_000 - 500 - 250);
    lessor.use_floor(2, 250);
    assert_eq!(share(&mut lessor, 4), 49_500);
    // One that is no router's says nothing.
    lessor.use_floor(3, 1_000);
    assert_eq!(share(&mut lessor, 5), 49_500);
}

#[test]
fn steady_demand_gets_the_rate_within_two_per_cent_however_it_is_spread() {
    let spreads: [[u64; ROUTERS]; 5] = [
        [RATE; ROUTERS],
        [10 * RATE, 0, 0, 0, 0, 0, 0, 0],
        [RATE, RATE / 2, RATE / 4, RATE / 8, RATE / 16, 0, 0, RATE / 1_000],
        [RATE / 4; ROUTERS],
        // As much as the rate, but all of it at two.
        [RATE * 6 / 10, RATE * 4 / 10, 0, 0, 0, 0, 0, 0],
    ];
    for (seed, demands) in spreads.into_iter().enumerate() {
        let mut world = World::new(seed as u64, GOOD);
        world.offer(demands);
        world.run(Duration::from_secs(3));
        let passed = world.measured(Duration::from_secs(20));
        let (least, most) = (RATE * 20 / 100 * 98, RATE * 20 + BURST * ROUTERS as u64);
        assert!((least..=most).contains(&passed), "{demands:?}: {passed} of {}", RATE * 20);
    }
}

#[test]
fn demand_that_moves_takes_the_rate_along() {
    let mut world = World::new(9, GOOD);
    for round in 0..ROUTERS {
        let mut demands = [0; ROUTERS];
        demands[round] = 2 * RATE;
        world.offer(demands);
        world.run(Duration::from_secs(1));
        let passed = world.measured(Duration::from_secs(4));
        assert!(passed >= RATE * 4 / 100 * 98, "{round}: {passed}");
    }
}

#[test]
fn routers_that_are_cut_off_fall_to_their_floors_and_the_others_get_what_they_had() {
    for offline in [Offline::Decay, Offline::Floor] {
        let mut world = World::with(3, GOOD, offline);
        world.offer([RATE; ROUTERS]);
        world.run(Duration::from_secs(3));
        for router in &mut world.routers[..4] {
            router.is_cut = true;
        }
        let halves = |world: &World| {
            let rates = world.routers.iter().map(|router| router.lease.rate(router.clock.at(world.now)));
            let rates: Vec<u64> = rates.collect();
            (rates[..4].iter().sum::<u64>(), rates[4..].iter().sum::<u64>())
        };
        let floors = floor(RATE, ROUTERS) * 4;
        if offline == Offline::Decay {
            // As it was for a while, then less and less, which the others get.
            world.run(HOLD / 2);
            let (cut, connected) = halves(&world);
            assert!(cut >= RATE * 45 / 100 && connected >= RATE * 45 / 100, "{cut} {connected}");
            world.run(HOLD / 2 + FALL / 2);
            let (cut, connected) = halves(&world);
            assert!(
                (RATE * 20 / 100..RATE * 30 / 100).contains(&cut) && connected >= RATE * 65 / 100,
                "{cut} {connected}"
            );
            world.run(FALL);
        }
        world.run(LEASE * 2);
        assert_eq!(halves(&world).0, floors);
        world.run(Duration::from_secs(1));
        assert!(world.measured(Duration::from_secs(10)) >= RATE * 10 / 100 * 98);
        // All of them: each has its floor in the end, and no more.
        for router in &mut world.routers {
            router.is_cut = true;
        }
        world.run(if offline == Offline::Decay { HOLD + FALL + LEASE * 2 } else { LEASE * 2 });
        let passed = world.measured(Duration::from_secs(10));
        let floors = floor(RATE, ROUTERS) * ROUTERS as u64 * 10;
        assert!(passed.abs_diff(floors) <= floors / 100, "{passed} of {floors}");
    }
}

/// The key server is started again, or was away: in no half minute does a customer lose a hundredth, whichever router it sends at; and once
/// all routers have spoken demand moves as before.
#[test]
fn a_lessor_that_is_away_for_half_a_minute_costs_nobody_a_hundredth() {
    for away in [0, 1, 30] {
        let mut world = World::new(away, GOOD);
        world.offer([4 * RATE, RATE, 0, 0, RATE, 0, 0, 0]);
        world.run(Duration::from_secs(3));
        world.lessor(false);
        let mut passed = world.measured(Duration::from_secs(away));
        world.lessor(true);
        passed += world.measured(Duration::from_secs(30 - away));
        assert!(passed >= RATE * 30 / 100 * 98, "away for {away} s: {passed} of {}", RATE * 30);
        world.offer([0, 0, 0, 2 * RATE, 0, 0, 0, 0]);
        world.run(Duration::from_secs(1));
        assert!(world.measured(Duration::from_secs(4)) >= RATE * 4 / 100 * 98, "demand moves");
        // A router that is away at that time keeps what it had, and nobody else gets it before its time is over.
        world.offer([RATE; ROUTERS]);
        world.run(Duration::from_secs(1));
        world.routers[3].is_cut = true;
        world.lessor(true);
        world.run(Duration::from_secs(10));
        world.offer([RATE, 0, 0, RATE, 0, 0, 0, 0]);
        let share = |world: &World, router: usize| {
            let Router { lease, clock, .. } = &world.routers[router];
            lease.rate(clock.at(world.now))
        };
        world.run(Duration::from_secs(10));
        assert!(share(&world, 0) < RATE / 7 && share(&world, 3) > RATE / 9);
        world.run((HOLD + FALL) * 5 / 4);
        assert!(share(&world, 0) > RATE * 95 / 100, "{}", share(&world, 0));
    }
}

/// A customer that was idle for a moment when the key server went has a part of what nobody used.
#[test]
fn who_was_idle_when_the_lessor_went_has_its_part_of_what_was_free() {
    let mut world = World::new(6, GOOD);
    world.offer([RATE / 4, 0, 0, 0, 0, 0, 0, 0]);
    world.run(Duration::from_secs(3));
    world.lessor(false);
    world.offer([0, RATE, 0, 0, 0, 0, 0, 0]);
    world.run(Duration::from_secs(1));
    assert!(world.measured(Duration::from_secs(10)) >= RATE * 10 * 8 / 100);
}

/// The operator changes a rate, what becomes of shares, and who the routers are, at the lessor first or at the routers first, while some are
/// cut off: the sum is never above the greater rate, and never above the new one once the time of the old is over.
#[test]
fn reloads_in_any_order_bring_the_sum_above_neither_rate() {
    for seed in 0..60_u64 {
        let mut world = World::with(seed, GOOD, [Offline::Decay, Offline::Floor][seed as usize % 2]);
        world.offer([RATE; ROUTERS]);
        world.run(Duration::from_secs(2));
        let (cut, rate) = (world.random.below(8) as usize, [RATE, RATE / 10][world.random.below(2) as usize]);
        world.routers[cut].is_cut = true;
        let offline = [Offline::Decay, Offline::Floor][world.random.below(2) as usize];
        // As when both ends say another thing: who asks by other terms is not answered.
        let is_lessor_first = world.random.below(2) == 0;
        let change_lessor = |world: &mut World| {
            if world.random.below(3) == 0 {
                world.lessor(true);
            }
            let lessor = world.lessor.as_mut().expect("there");
            lessor.change(rate, offline, &numbers(ROUTERS));
        };
        let settle = |world: &mut World| {
            let cuts: Vec<bool> = world.routers.iter().map(|router| router.is_cut).collect();
            world.routers.iter_mut().for_each(|router| router.is_cut = true);
            let span = world.random.below(3_000);
            world.run(Duration::from_millis(span));
            world.routers.iter_mut().zip(cuts).for_each(|(router, is_cut)| router.is_cut = is_cut);
        };
        if is_lessor_first {
            change_lessor(&mut world);
            settle(&mut world);
        }
        for router in &mut world.routers {
            router.lease.change(rate, offline, ROUTERS);
        }
        if !is_lessor_first {
            settle(&mut world);
            change_lessor(&mut world);
        }
        world.offline = offline;
        world.run(Duration::from_secs(3));
        // All have the new rate: the one that is cut off too, which has no more than that.
        let rates = |world: &World| -> u64 {
            world.routers.iter().map(|router| router.lease.rate(router.clock.at(world.now))).sum()
        };
        assert!(rates(&world) <= RATE, "seed {seed}");
        world.routers[cut].is_cut = false;
        world.run((HOLD + FALL) * 8 / 7 + Duration::from_secs(3));
        let sum = rates(&world);
        assert!(sum <= rate && sum >= rate * 95 / 100, "seed {seed}: {sum} of {rate}");
    }
}

/// A router that is no longer configured, or in whose place another is, may go on for its time: nobody has that meanwhile.
#[test]
fn what_a_router_has_that_is_taken_out_is_nobodys_until_its_time_is_over() {
    for is_replaced in [false, true] {
        let mut world = World::new(11, GOOD);
        world.offer([RATE, RATE, 0, 0, 0, 0, 0, 0]);
        world.run(Duration::from_secs(3));
        world.routers[1].is_cut = true;
        let before = world.routers[1].lease.rate(world.routers[1].clock.at(world.now));
        assert!(before > RATE * 45 / 100, "{before}");
        let lessor = world.lessor.as_mut().expect("there");
        lessor.remove(1);
        let left =
            if is_replaced { numbers(ROUTERS) } else { numbers(ROUTERS).into_iter().filter(|of| *of != 1).collect() };
        lessor.change(RATE, Offline::Decay, &left);
        if is_replaced {
            // The new machine was started more often than the one that goes on.
            let (begun, per_mille) = (77, 1_000);
            world.routers.push(Router {
                index: 1,
                lease: Lease::new(RATE, Offline::Decay, ROUTERS, (9 << 32, 0)),
                clock: Clock { begun, per_mille },
                starts: 9,
                connected: world.lessors,
                asks: 0,
                demand: 10 * RATE,
                is_cut: false,
                tokens: 0,
            });
        }
        // Each step looks at the sum.
        world.run(HOLD);
        let own = world.routers[0].lease.rate(world.routers[0].clock.at(world.now));
        assert!(own < RATE * 55 / 100, "{own}");
        world.run((HOLD + FALL) * 8 / 7);
    }
}

/// A router that is started again and again has its share when that ends, also if the lessor has just begun and another router is silent.
#[test]
fn a_router_that_was_started_many_times_has_what_it_had() {
    let mut world = World::new(12, GOOD);
    world.offer([RATE, RATE, 0, 0, 0, 0, 0, 0]);
    world.run(Duration::from_secs(3));
    for _ in 0..20 {
        world.restart(0);
        world.run(Duration::from_millis(700));
    }
    world.run(Duration::from_secs(1));
    assert!(world.measured(Duration::from_secs(4)) >= RATE * 4 / 100 * 98);
    world.routers[5].is_cut = true;
    world.lessor(true);
    world.run(Duration::from_secs(3));
    world.restart(0);
    world.run(Duration::from_secs(1));
    let passed = world.measured(Duration::from_secs(4));
    assert!(passed >= RATE * 4 / 100 * 90, "{passed}");
}

/// A rate that is taken out of a router's configuration and put back goes on behind its own requests.
#[test]
fn a_lease_that_begins_behind_another_of_its_process_is_answered() {
    let now = Instant(1_000_000_000_000);
    let mut lessor = Lessor::new(RATE, Offline::Decay, &numbers(1), now);
    let mut lease = Lease::new(RATE, Offline::Decay, 1, (5, 0));
    for _ in 0..100 {
        assert!(lessor.handle(0, &lease.request(RATE, now), now).is_some());
    }
    let mut again = Lease::new(RATE, Offline::Decay, 1, (5, lease.number()));
    assert!(lessor.handle(0, &again.request(RATE, now), now).is_some());
}

/// A router is started again while the lessor runs: what the process before had is nobody's.
#[test]
fn a_router_that_is_started_again_has_its_share_within_a_second() {
    let mut world = World::new(5, GOOD);
    world.offer([RATE, RATE, 0, 0, 0, 0, 0, 0]);
    world.run(Duration::from_secs(3));
    for _ in 0..3 {
        world.restart(0);
        world.run(Duration::from_secs(1));
        let passed = world.measured(Duration::from_secs(4));
        assert!(passed >= RATE * 4 / 100 * 98, "{passed}");
    }
}

/// The network at its worst, cuts at any time, restarts of routers and of the lessor, demand that jumps. In every step the sum of
/// all rates is checked; at the end, what passed.
#[test]
fn cut_off_in_any_way_the_sum_is_never_over_by_more_than_the_bursts() {
    let mut moved = 0;
    for seed in 0..40 {
        let weather = [
            GOOD,
            Weather { lost: 30, twice: 20, delay: 300_000_000 },
            Weather { lost: 5, twice: 50, delay: 900_000_000 },
            Weather { lost: 60, twice: 0, delay: 100_000_000 },
        ][seed as usize % 4];
        let mut world = World::with(seed, weather, [Offline::Decay, Offline::Floor][seed as usize / 4 % 2]);
        world.offer([RATE; ROUTERS]);
        for _ in 0..120 {
            let router = world.random.below(ROUTERS as u64) as usize;
            match world.random.below(8) {
                0 | 1 => world.routers[router].is_cut = !world.routers[router].is_cut,
                2 => world.routers[router].demand = world.random.below(3) * RATE,
                3 => world.restart(router),
                4 => {
                    let is_there = world.random.below(4) > 0;
                    world.lessor(is_there);
                }
                _ => {}
            }
            let most = if world.random.below(20) == 0 { 40_000 } else { 400 };
            let span = world.random.below(most);
            world.run(Duration::from_millis(span));
        }
        let seconds = u128::from(world.now);
        let most = u128::from(RATE) * seconds / 1_000_000_000 + u128::from(BURST) * ROUTERS as u128;
        assert!(u128::from(world.passed) <= most, "seed {seed}: {} of {most}", world.passed);
        moved += u64::from(world.most > RATE / 2);
    }
    // The checks were of something: in most worlds more than half of the rate was leased at some time.
    assert!(moved > 20, "{moved}");
}

/// A machine that was copied runs beside the first one with the same identity; another one starts again every few moments, and its
/// clock stands still or jumps ahead each time; a third one claims a demand beyond all measure. The sum of shares is checked in every
/// step; and whoever is honest gets what is its.
#[test]
fn two_processes_of_one_router_a_flapping_one_and_one_that_lies_share_what_there_is() {
    const COPY: usize = ROUTERS;
    for seed in 0..20 {
        let weather = [GOOD, Weather { lost: 20, twice: 20, delay: 200_000_000 }][seed as usize % 2];
        let mut world = World::new(seed, weather);
        let mut random = Random(100 + seed);
        let (begun, per_mille) = (random.below(1 << 50), 940 + random.below(126));
        world.routers.push(Router {
            index: 0,
            lease: Lease::new(RATE, Offline::Decay, ROUTERS, (77, 0)),
            clock: Clock { begun, per_mille },
            starts: 0,
            connected: 1,
            asks: 0,
            demand: 10 * RATE,
            is_cut: false,
            tokens: 0,
        });
        world.offer([10 * RATE, RATE, 1 << 63, RATE, RATE, RATE, RATE, RATE]);
        world.run(Duration::from_secs(2));
        let (mut whole, mut honest, mut steps) = (0, 0, 0);
        for _ in 0..300 {
            if world.random.below(3) == 0 {
                world.restart(1);
                world.routers[1].clock.begun += random.below(2_000_000_000);
            }
            let span = world.random.below(100);
            world.run(Duration::from_millis(span));
            let rates: Vec<u64> =
                world.routers.iter().map(|router| router.lease.rate(router.clock.at(world.now))).collect();
            (whole, steps) = (whole + rates.iter().sum::<u64>(), steps + 1);
            honest += rates[3..COPY].iter().sum::<u64>();
        }
        if seed % 2 == 0 {
            // The five are five of seven or eight with equal claims, whatever is claimed beyond the rate.
            assert!(whole / steps >= RATE * 85 / 100, "seed {seed}: {whole} in {steps} steps");
            assert!(honest / steps >= RATE * 45 / 100, "seed {seed}: {honest} in {steps} steps");
        }
    }
}

#[test]
fn a_router_that_asks_without_end_costs_a_bounded_number_of_leases() {
    let now = Instant(1_000_000_000_000);
    let mut lessor = Lessor::new(RATE, Offline::Decay, &numbers(2), now);
    let later = now + Duration::from_secs(1);
    let request = |session, number| LeaseRequest { session, number, uses: 0, share: 0, demand: u64::MAX };
    for number in 0..100_000 {
        let _ = lessor.handle(0, &request(number % 20, 1 + number / 20), later);
    }
    assert_eq!(lessor.given(), 8 * 64);
    let other = LeaseRequest { session: 9, number: 1, uses: 0, share: 0, demand: RATE };
    assert!(lessor.handle(1, &other, later).is_some(), "the other is heard");
    let ended = later + HOLD * 2 + FALL * 2;
    assert!(lessor.handle(0, &request(99, 1), ended).is_some(), "leases end");
    assert_eq!(lessor.given(), 2 + 2, "of each the answer, and that it had nothing before");
}

proptest::proptest! {
    /// A plain model beside the lessor: every answer may be in use by its process from when it was given to the lease's end, the greatest
    /// that the process has not said to have left behind. Whatever is asked when and by whom, the sum is within the pool.
    #[test]
    fn whatever_is_asked_shares_that_may_be_in_use_never_sum_to_more_than_the_pool(
        rate in proptest::prelude::prop_oneof![0..1_000_u64, 1_000..1_u64 << 40, u64::MAX - 9..=u64::MAX],
        count in 1..9_usize,
        offline in proptest::prelude::prop_oneof![proptest::prelude::Just(Offline::Decay), proptest::prelude::Just(Offline::Floor)],
        steps in proptest::collection::vec((0..10_u16, 0..3_u64, 0..6_u64, proptest::prelude::any::<u64>(), proptest::prelude::prop_oneof![9 => 0..200_u64, 1 => 0..100_000_u64]), 0..200),
    ) {
        let pool = rate - floor(rate, count) * count as u64;
        let mut now = Instant(1_000_000_000_000);
        let mut lessor = Lessor::new(rate, offline, &numbers(count), now);
        // By router and process: the last number, and the shares by number with their ends.
        let mut model = std::collections::BTreeMap::<(u16, u64), (u64, Vec<(u64, u64, Instant)>)>::new();
        for (router, session, back, demand, pause) in steps {
            now = now + Duration::from_millis(pause);
            let (last, given) = model.entry((router, session)).or_default();
            *last += 1;
            // It uses one of its last answers, or says that it uses none.
            let uses = given.iter().rev().nth(back as usize).map_or(0, |(number, ..)| *number);
            let demand = demand >> (demand % 64);
            let request = LeaseRequest { session, number: *last, uses, share: 0, demand };
            let answer = lessor.handle(router, &request, now);
            proptest::prop_assert!(usize::from(router) < count || answer.is_none());
            if let Some(LeaseAnswer { number, share, .. }) = answer {
                // Answers before the one in use are used no more.
                given.retain(|(number, ..)| *number >= uses);
                given.push((number, share, now));
            }
            let in_use = model.values().map(|(_, given)| {
                // The schedule as the page has it: in full for the lease and a minute, and then a line down to nothing in four.
                let left = |(_, share, at): &(u64, u64, Instant)| {
                    let age = now.since(*at).as_millis();
                    match (offline, age) {
                        (_, ..500) | (Offline::Decay, ..60_500) => u128::from(*share),
                        (Offline::Decay, ..300_500) => u128::from(*share) * (300_500 - age) / 240_000,
                        _ => 0,
                    }
                };
                given.iter().map(left).max().unwrap_or(0)
            });
            proptest::prop_assert!(in_use.sum::<u128>() <= u128::from(pool));
        }
    }
}

#[test]
fn requests_of_strangers_and_repeated_ones_get_no_answer() {
    let now = Instant(1_000_000_000_000);
    let mut lessor = Lessor::new(RATE, Offline::Decay, &numbers(2), now);
    let later = now + Duration::from_secs(1);
    let request = |number, uses| LeaseRequest { session: 5, number, uses, share: 0, demand: RATE };
    assert_eq!(lessor.handle(2, &request(1, 0), later), None, "there are two");
    // A lessor without memory gives nothing until all have said what they use.
    let share = |answer: Option<LeaseAnswer>| answer.expect("an answer").share;
    assert_eq!(share(lessor.handle(0, &request(1, 0), now + Duration::from_millis(100))), 0);
    assert_eq!(share(lessor.handle(0, &request(2, 0), later)), 0);
    let other = |number, uses| LeaseRequest { session: 6, number, uses, share: 0, demand: 0 };
    assert_eq!(share(lessor.handle(1, &other(1, 0), later)), 0);
    assert_eq!(share(lessor.handle(0, &request(3, 0), later)), RATE - 2 * floor(RATE, 2));
    assert_eq!(lessor.handle(0, &request(3, 0), later), None, "again");
    assert_eq!(lessor.handle(0, &request(1, 0), later), None, "an old one");
    // The other gets nothing while the first may use all, though half is its part.
    let other = |number, uses| LeaseRequest { demand: RATE, ..other(number, uses) };
    assert_eq!(share(lessor.handle(1, &other(2, 0), later)), 0);
    // The first is answered with half, but has not said yet that it uses that.
    let half = share(lessor.handle(0, &request(4, 3), later));
    assert_eq!(half, (RATE - 2 * floor(RATE, 2)) / 2);
    assert_eq!(share(lessor.handle(1, &other(3, 2), later)), 0);
    assert_eq!(share(lessor.handle(0, &request(5, 4), later)), half);
    assert_eq!(share(lessor.handle(1, &other(4, 3), later)), half);
}

/// What is said to be in use is believed as long as somebody may use what an earlier lessor gave, and never beyond the pool.
#[test]
fn a_share_that_nobody_gave_is_not_believed_for_ever() {
    let now = Instant(1_000_000_000_000);
    let pool = RATE - 2 * floor(RATE, 2);
    let share = |answer: Option<LeaseAnswer>| answer.expect("an answer").share;
    let asks = |session, number, uses, share| LeaseRequest { session, number, uses, share, demand: RATE };
    let mut lessor = Lessor::new(RATE, Offline::Decay, &numbers(2), now);
    assert_eq!(share(lessor.handle(0, &asks(1, 1, 9, u64::MAX), now)), pool, "it goes on");
    // The other has the rest of its own, though the first said that it uses all.
    assert_eq!(share(lessor.handle(1, &asks(2, 1, 9, pool / 4), now)), 0, "all have spoken: the first has all");
    let later = now + Duration::from_secs(1);
    assert_eq!(share(lessor.handle(0, &asks(3, 1, 9, pool), later)), 0, "another process has nothing from before");
    let mut alone = Lessor::new(RATE, Offline::Decay, &numbers(2), now);
    let ended = now + (HOLD + FALL) * 8 / 7 + LEASE * 2;
    assert_eq!(share(alone.handle(0, &asks(1, 1, 9, pool / 2), ended)), pool, "the time of what the other had is over");
}

#[test]
fn an_answer_that_comes_late_does_not_replace_a_newer_one_and_ends_with_its_request() {
    let at = |millis: u64| Instant(1_000_000_000_000 + millis * 1_000_000);
    let mut lease = Lease::new(RATE, Offline::Floor, 2, (5, 0));
    let own = floor(RATE, 2);
    let answer = |number, share| LeaseAnswer { session: 5, number, share };
    let numbers: Vec<u64> = (0..3).map(|round| lease.request(RATE, at(round * 100)).number).collect();
    assert_eq!(numbers, [1, 2, 3]);
    lease.handle(&answer(2, 700), at(210));
    lease.handle(&answer(1, 9_000), at(220));
    assert_eq!(lease.rate(at(230)), own + 700, "the older one is greater, and out of force");
    lease.handle(&LeaseAnswer { session: 6, ..answer(3, 9_000) }, at(240));
    lease.handle(&answer(4, 9_000), at(240));
    assert_eq!(lease.rate(at(240)), own + 700, "another process's, and one that nobody asked for");
    assert_eq!(lease.request(RATE, at(300)).uses, 2);
    // From when it was asked for, not from when it came.
    assert_eq!((lease.rate(at(599)), lease.rate(at(600))), (own + 700, own));
    let request = lease.request(RATE, at(600));
    assert_eq!((request.uses, request.share), (2, 0));
    lease.handle(&answer(3, 9_000), at(700));
    assert_eq!(lease.rate(at(700)), own, "too late for its own time");
}

/// The lessor before this one knew a router that is not configured here, or had just been taken out: it may have had all.
#[test]
fn what_a_router_has_that_only_the_lessor_before_knew_is_given_to_nobody() {
    let (own, others) = (BTreeSet::from([1, 2]), BTreeSet::from([1, 2, 3]));
    let mut lessor = Lessor::after(RATE, Offline::Decay, (&own, &others), Instant(0));
    let mut numbers = [0, 0];
    let mut sum = |lessor: &mut Lessor, secs: u64, share: u64| -> u64 {
        let ask = |router: u16| {
            let number = &mut numbers[usize::from(router) - 1];
            *number += 1;
            let request =
                LeaseRequest { session: router.into(), number: *number, uses: *number - 1, share, demand: RATE };
            lessor.handle(router, &request, Instant(secs * 1_000_000_000)).map_or(0, |answer| answer.share)
        };
        (1..=2).map(ask).sum()
    };
    assert_eq!(sum(&mut lessor, 1, RATE / 10), RATE / 10 * 2);
    for secs in [10, 100, 300] {
        assert!(sum(&mut lessor, secs, RATE / 10) <= RATE / 10 * 2, "{secs}");
    }
    assert!((344..350).map(|secs| sum(&mut lessor, secs, RATE / 10)).max() > Some(RATE * 9 / 10));
}
