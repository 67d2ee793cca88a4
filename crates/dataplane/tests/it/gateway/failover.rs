//! A node on a path in use is killed, at any moment: traffic goes on over another path, in both directions.
//!
//! ICC-08, at random: in virtual time a node on the active path of either direction or both is killed at any moment,
//! also while sessions, lists and consents are renewed, after a pause, and again after it came back
//! (`WAYLEAVE_FAILOVER_SEEDS`): each flow goes on within three seconds, one that only begins within six; no active path
//! has the dead node while another lives.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use wayleave_core::IdentityKey;
use wayleave_dataplane::gateway::{PathPolicy, PathStatus};

use super::stream::{Kind, Stream};
use super::timed::{MILLISECOND, SECOND, Timed};
use super::world::{A, B, identity};
use crate::common::{Random, times};

/// What the demonstration promises: no gap of application data is as long as this.
const BOUND: u64 = 3 * SECOND;
/// The same where packets are lost: what is sent again after a path died may be, and then TCP repeats it after twice the time.
const BOUND_WITH_LOSS: u64 = 7 * SECOND;
/// The same for a flow that has only begun, or goes on after a pause: lists, consents and a session are fetched meanwhile, and each
/// may take as long as the slowest server of these worlds.
const BOUND_AT_FIRST: u64 = 8 * SECOND;
/// A killed forwarder that is back refuses packets at first, and its path has to be listed, consented to and answered.
const SETTLES: u64 = 9 * SECOND;

/// Two paths in the west, as in the demonstration; a shorter one through the east; one that shares a node with each in the west.
const WEST: [&[usize]; 2] = [&[A, 2, 3, 4, B], &[A, 5, 6, 7, B]];
const EAST: &[usize] = &[A, 9, B];
const ACROSS: &[usize] = &[A, 2, 6, 4, B];

fn policy(name: &str, avoid: &[usize]) -> PathPolicy {
    PathPolicy {
        name: name.to_owned(),
        avoid: avoid.iter().map(|node| identity(*node)).collect(),
        ..PathPolicy::default()
    }
}

/// One world, from one seed.
struct Play {
    world: Timed,
    random: Random,
    /// What happened, for who reads a failure.
    story: String,
    names: usize,
}

impl Play {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed.wrapping_mul(0x2545_f491_4f6c_dd1d));
        let mut orders = WEST.to_vec();
        if random.one_in(2) {
            orders.push(EAST);
        }
        if random.one_in(4) {
            orders.push(ACROSS);
        }
        for place in (1..orders.len()).rev() {
            orders.swap(place, random.below(place + 1));
        }
        let mut world = Timed::new(&orders, random.next());
        world.lasts = random.pick(&[6, 6, 10, 30, 600]);
        if random.one_in(2) {
            // Nodes have just come: the path server learns paths one after the other.
            let now = world.micros;
            let late = (0..world.orders.len()).map(|_| now + random.pick(&[0, 500, 1_000, 3_000]) * MILLISECOND);
            world.listed = late.collect();
            world.listed[random.below(orders.len())] = now;
        }
        world.adverts = random.pick(&[60, 60, 3_600]);
        world.link.1 = random.pick(&[1, 3, 40]) * MILLISECOND;
        world.list.1 = random.pick(&[20, 200, 1_500]) * MILLISECOND;
        world.consent.1 = random.pick(&[20, 200, 1_000]) * MILLISECOND;
        world.loses = random.pick(&[0, 0, 0, 500]);
        let (clean, fast) = (policy("clean", &[9]), policy("fast", &[]));
        let of_a = if random.one_in(2) { [clean.clone(), fast.clone()] } else { [fast.clone(), clean.clone()] };
        let of_b = if random.one_in(2) { [clean, fast] } else { [fast, clean] };
        world.set_policies(A, &of_a);
        world.set_policies(B, &of_b);
        let first = |policies: &[PathPolicy; 2]| policies[0].name.clone();
        let story = format!(
            "seed {seed}: paths {orders:?}, first policies {} and {}, consent {} s, adverts {} s, link {}, list {}, consent {} us, loss {}\n",
            first(&of_a),
            first(&of_b),
            world.lasts,
            world.adverts,
            world.link.1,
            world.list.1,
            world.consent.1,
            world.loses
        );
        let mut play = Self { world, random, story, names: 2 };
        play.streams();
        play
    }

    fn streams(&mut self) {
        let count = 1 + self.random.below(4);
        for number in 0..count {
            let begins = self.random.pick(&[A, A, B]);
            let writes = self.random.pick(&[A, B]);
            let kind = self.random.pick(&[Kind::Datagrams, Kind::Stream, Kind::Stream]);
            let to = match self.random.below(self.names + 1) {
                0 => format!("10.0.{}.1", if begins == A { B } else { A }),
                name => format!("198.18.1.{}", name - 1),
            };
            let every = self.random.pick(&[20, 100, 200]) * MILLISECOND;
            let _ = writeln!(self.story, "  stream {number}: {kind:?} begun at {begins} to {to}, written at {writes}");
            self.world.streams.push(Stream::new(number, kind, (begins, writes), &to, every));
        }
    }

    fn tell(&mut self, what: &str) {
        let at = self.world.micros % (10_000 * SECOND);
        let _ = writeln!(self.story, "  {:.3} {what}", at as f64 / 1e6);
    }

    fn run(&mut self, micros: u64) {
        self.world.run(micros);
    }

    /// The routes on which flows are live: their active paths.
    fn active(&mut self, gateway: usize) -> Vec<PathStatus> {
        let now = self.world.now();
        let peers = self.world.gateway(gateway).status(now);
        let routes = peers.into_iter().flat_map(|peer| peer.routes).filter(|route| route.is_live);
        routes.filter_map(|route| route.active).collect()
    }

    /// A node of an active path: of one direction, of the other, or of both.
    fn victim(&mut self) -> usize {
        let nodes = |paths: Vec<PathStatus>| -> BTreeSet<IdentityKey> {
            paths.into_iter().flat_map(|path| path.nodes[1..path.nodes.len() - 1].to_vec()).collect()
        };
        let [forward, back] = [A, B].map(|gateway| self.active(gateway)).map(nodes);
        let (what, which): (&str, Vec<IdentityKey>) = match self.random.below(3) {
            0 => ("forward", forward.iter().copied().collect()),
            1 => ("back", back.iter().copied().collect()),
            _ => ("both", forward.intersection(&back).copied().collect()),
        };
        let places = [2, 3, 4, 5, 6, 7];
        let victim = match which.len() {
            0 => self.random.pick(&places),
            count => usize::from(which[self.random.below(count)].0[0] - 1),
        };
        self.tell(&format!("kill {victim} ({what})"));
        victim
    }

    fn begin_all(&mut self) {
        for stream in 0..self.world.streams.len() {
            self.world.begin(stream);
        }
        self.tell("streams begin");
    }

    /// What is to be known of a failure.
    fn fail(&mut self, what: &str) -> String {
        self.tell(what);
        let now = self.world.now();
        for gateway in [A, B] {
            for peer in self.world.gateway(gateway).status(now) {
                let _ = writeln!(self.story, "  gateway {gateway}: {} sessions", peer.sessions);
                for path in &peer.paths {
                    let _ = writeln!(self.story, "    path {}", shown(path));
                }
                for route in &peer.routes {
                    let mirror = route.mirror.as_ref().map(|nodes| over(nodes));
                    let [active, spare] = [&route.active, &route.spare].map(|path| path.as_ref().map(shown));
                    let _ = writeln!(
                        self.story,
                        "    route {} mirror {mirror:?} live {} {:?}\n      active {active:?}\n      spare {spare:?}",
                        route.policy, route.is_live, route.state
                    );
                }
            }
        }
        self.story.clone()
    }

    /// Which paths each gateway sends by, and which of its paths it holds for dead.
    fn seen(&mut self) -> String {
        let now = self.world.now();
        let mut seen = String::new();
        for gateway in [A, B] {
            let peers = self.world.gateway(gateway).status(now);
            let of =
                |paths: Vec<&PathStatus>| paths.iter().map(|path| over(&path.nodes)).collect::<Vec<_>>().join(", ");
            let live = peers.iter().flat_map(|peer| &peer.routes).filter(|route| route.is_live);
            let (active, spare): (Vec<_>, Vec<_>) = live.map(|route| (&route.active, &route.spare)).unzip();
            let dead = peers.iter().flat_map(|peer| &peer.paths).filter(|path| path.dead_since.is_some()).collect();
            let [active, spare] = [active, spare].map(|paths| of(paths.into_iter().flatten().collect()));
            let _ = write!(seen, "| {gateway} by {active}; spare {spare}; dead {} ", of(dead));
        }
        seen
    }

    /// After a kill of `victim` at `at`: everything goes on.
    fn watch(&mut self, victim: usize, at: u64, span: u64) -> Result<u64, String> {
        let (mut longest, mut before) = (0, String::new());
        let end = at + span;
        let usual = if self.world.loses > 0 { BOUND_WITH_LOSS } else { BOUND };
        while self.world.micros < end {
            let seen = self.seen();
            if seen != before {
                self.tell(&seen);
                before = seen;
            }
            self.run(100 * MILLISECOND);
            let now = self.world.micros;
            for stream in 0..self.world.streams.len() {
                let of = &self.world.streams[stream];
                if !of.is_on {
                    continue;
                }
                let gap = of.gap(at.saturating_sub(200 * MILLISECOND), now);
                longest = longest.max(gap);
                let bound = if of.has_progress(at) { usual } else { BOUND_AT_FIRST };
                if gap >= bound {
                    return Err(self.fail(&format!("stream {stream} stands still")));
                }
            }
            let has_begun = self.world.streams.iter().all(|of| !of.is_on || of.has_progress(at));
            if now < at + if has_begun { usual } else { BOUND_AT_FIRST } {
                continue;
            }
            for gateway in [A, B] {
                let dead = self.active(gateway).iter().any(|path| path.nodes.contains(&identity(victim)));
                if dead {
                    return Err(self.fail(&format!("gateway {gateway} has the dead node on an active path")));
                }
            }
        }
        Ok(longest)
    }

    /// Plays it all. Returns the longest gap, or the story if one was too long.
    fn play(&mut self) -> Result<u64, String> {
        let mut longest = 0;
        self.begin_all();
        let warm = match self.random.below(4) {
            // While the first session begins.
            0 if self.world.listed.iter().all(|at| *at <= self.world.micros) => self.random.next() % SECOND,
            _ if self.world.listed.iter().any(|at| *at > self.world.micros) => {
                // What is not known yet cannot be gone over to.
                9 * SECOND + self.random.next() % (20 * SECOND)
            }
            _ => 2 * SECOND + self.random.next() % (20 * SECOND),
        };
        self.run(warm);
        for _ in 0..3 {
            if self.random.one_in(3) {
                for stream in 0..self.world.streams.len() {
                    self.world.pause(stream);
                }
                self.tell("streams pause");
                let pause = self.random.next() % (40 * SECOND);
                self.run(pause);
                self.begin_all();
                let after = self.random.next() % (3 * SECOND);
                self.run(after);
            }
            let victim = self.victim();
            self.world.kill(victim);
            let at = self.world.micros;
            let span = 4 * SECOND + self.random.next() % (40 * SECOND);
            longest = longest.max(self.watch(victim, at, span)?);
            self.world.revive(victim);
            self.tell("revive");
            let after = SETTLES + self.random.next() % (25 * SECOND);
            self.run(after);
        }
        Ok(longest)
    }
}

fn over(nodes: &[IdentityKey]) -> String {
    nodes.iter().map(|node| (node.0[0] - 1).to_string()).collect::<Vec<_>>().join(" ")
}

fn shown(path: &PathStatus) -> String {
    let dead = if path.dead_since.is_some() { ", dead" } else { "" };
    let refused = path.refused.as_deref().unwrap_or("");
    format!("{} until {:?}{dead} {refused} rtt {:?}", over(&path.nodes), path.proven_until, path.round_trip)
}

#[test]
fn whichever_node_is_killed_and_whenever_traffic_goes_on_within_three_seconds() {
    let seeds = times("WAYLEAVE_FAILOVER_SEEDS", 60) as u64;
    let first = times("WAYLEAVE_FAILOVER_SEED", 0) as u64;
    let mut longest = 0;
    let mut failures = Vec::new();
    for seed in first..first + seeds {
        match Play::new(seed).play() {
            Ok(gap) => longest = longest.max(gap),
            Err(story) => failures.push(story),
        }
    }
    eprintln!("{seeds} seeds: the longest gap was {:.2} s", longest as f64 / 1e6);
    assert!(failures.is_empty(), "{} of {seeds} failed:\n{}", failures.len(), failures.join("\n"));
}
