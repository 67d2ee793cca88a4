//! Eight routers of a provider that share a principal's rate by leases of their key server, all as processes: the sum is the rate,
//! however demand is spread, and never more than the rate and the bursts, whoever is cut off or killed.
//!
//! PLA, leases by process: eight routers and their key server, demand even and uneven, links cut, the server killed or
//! standing still: the rate within a fiftieth under steady demand; never above it and the bursts; what was shared stays.
//! PLA, a router more: it is configured at the running key server while packets pass the others: these go on passing, and it gets its share.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use wayleave_crypto::secret::Key128;
use wayleave_lab::netns::{self, NetworkNamespace};
use wayleave_packet::platypus::header::{Capability, Carriage, Interval, Marks, Principal, Width};
use wayleave_packet::platypus::mint::{Hop, Nonce, Route, WaypointKey, WaypointKeys, encapsulate, epoch};
use wayleave_runtime::clock::unix_now;

use super::billed::keeps_rate;
use super::common::{Folder, Router, eventually, free};
use super::platypus::{HOST, LAST, PLATYPUS, Socket, lay_out};
use crate::common::relay::Relay;
use crate::common::text;

const ROUTERS: usize = 8;
/// Octets a second of all together.
const RATE: u64 = 800_000;
/// The least that a router takes.
const BURST: u64 = 65_535;
/// Inner octets of a packet.
const LENGTH: usize = 1_200;
/// Demand is so many times the rate.
const TIMES: u64 = 2;

fn waypoint(which: usize) -> Ipv4Addr {
    Ipv4Addr::new(198, 51, 100, 10 + which as u8)
}

fn key(which: usize) -> [u8; 16] {
    [10 + which as u8; 16]
}

/// The `number`-th packet of this second, of principal 7 at one waypoint.
fn packet(which: usize, number: u32) -> Vec<u8> {
    let (now, interval) = (unix_now(), Interval::new(12).expect("in range"));
    let capability = Capability {
        waypoint: IpAddr::V4(waypoint(which)),
        principal: Principal::new(7).expect("24 bits"),
        interval,
        epoch: epoch::epoch_at(interval, now),
        marks: Marks::default(),
        delegation: None,
        width: Width::Full,
    };
    let keys = WaypointKeys::new(WaypointKey::new(&Key128::new(key(which))));
    let hops = [Hop { key: keys.stamp_key(&capability).expect("one key for ever"), capability }];
    let nonce = Nonce::new(now, number);
    let route = Route { hops: &hops, nonce, sealed: false, reply_option: &[], carriage: Carriage::Ip };
    let mut inner = vec![0; LENGTH];
    inner[0] = 0x45;
    inner[2..4].copy_from_slice(&(LENGTH as u16).to_be_bytes());
    (inner[8], inner[9]) = (64, 17);
    inner[12..16].copy_from_slice(&HOST.octets());
    inner[16..20].copy_from_slice(&LAST.octets());
    let mut out = Vec::new();
    encapsulate(&inner, &route, &mut out).expect("a sound packet");
    out
}

/// The routers, each with a link to the key server that can be cut.
struct Site {
    routers: Vec<Router>,
    links: Vec<Relay>,
    key: Router,
    folder: Folder,
    /// Where the key server has its routers' links, and its identity.
    address: String,
    own: String,
}

/// What the key server's configuration has of a router.
fn section(folder: &Folder, which: usize) -> String {
    let made = folder.run(&["keys", "node", &format!("{which}.identity"), "--kind", "identity", "--json"]);
    let made: Value = serde_json::from_slice(&made.stdout).expect("JSON");
    folder.keys(&format!("{which}.key"), "platypus", &[(0, key(which))]);
    format!(
        "[[key.router]]\nnumber = {}\nidentity = \"{}\"\n[[key.waypoint]]\naddress = \"{}\"\nkey = \"{which}.key\"\n",
        which + 1,
        made["public"].as_str().expect("a key"),
        waypoint(which)
    )
}

impl Site {
    /// With the first so many of the routers.
    fn start(routers: usize) -> Self {
        let folder = lay_out();
        for which in 0..ROUTERS {
            let line = ["addr", "add", &format!("{}/32", waypoint(which)), "dev", "lo"];
            assert!(Command::new("ip").args(line).status().expect("ip").success());
        }
        let ok = |line: &[&str]| {
            let output = folder.run(line);
            assert!(output.status.success(), "{line:?}: {}", text(&output.stderr));
            text(&output.stdout)
        };
        let identity = |file: &str| {
            let made: Value =
                serde_json::from_str(&ok(&["keys", "node", file, "--kind", "identity", "--json"])).expect("JSON");
            made["public"].as_str().expect("a key").to_owned()
        };
        let zone = ["--zone", "keys.example.net", "--name-server", "ns1.example.net"];
        ok(&[&["cap", "init", "server", "--listen", &free(), "--status", "127.0.0.1:1"], &zone[..]].concat());
        let mut server = fs::read_to_string(folder.0.join("server/key.toml")).expect("there");
        server.truncate(server.find("[status]").expect("a section"));
        for file in ["accounts.key", "writer.key", "accounts.db", "revoked"] {
            server = server.replace(&format!("\"{file}\""), &format!("\"server/{file}\""));
        }
        let (address, own) = (free(), identity("server.identity"));
        server += &format!("[key.routers]\nlisten = \"{address}\"\nidentity = \"server.identity\"\n");
        server.extend((0..routers).map(|which| section(&folder, which)));
        let key = Router::start_role("key", &folder, "key", NetworkNamespace::Own, &server);
        let waypoint_of = waypoint(0).to_string();
        ok(&["cap", "grant", "--principal", "7", "--waypoint", &waypoint_of, "--config", "key.toml"]);
        let (rate, burst) = (RATE.to_string(), BURST.to_string());
        ok(&["cap", "rate", "7", &rate, "--burst", &burst, "--config", "key.toml"]);
        let mut site = Self { routers: Vec::new(), links: Vec::new(), key, folder, address, own };
        site.links = (0..routers).map(|_| site.link()).collect();
        // All at once: each accepts nothing for some seconds after its start.
        site.routers = std::thread::scope(|scope| {
            let start = |(which, link)| {
                scope.spawn({
                    let site = &site;
                    move || site.start_router(which, link)
                })
            };
            let threads: Vec<_> = site.links.iter().enumerate().map(start).collect();
            threads.into_iter().map(|thread| thread.join().expect("started")).collect()
        });
        site.is_settled();
        site
    }

    /// A way to the key server that can be cut.
    fn link(&self) -> Relay {
        Relay::start(self.address.parse().expect("an address")).expect("a relay")
    }

    fn start_router(&self, which: usize, link: &Relay) -> Router {
        let config = format!(
            "[forwarding]\nformat = \"platypus\"\nkeys = \"{which}.key\"\nstate = \"{which}.redb\"\n[platypus]\n\
             waypoints = [\"{}\"]\nreplay_capacity = 100000\n\
             provider = {{ identity = \"{which}.identity\", server = {{ identity = \"{}\", address = \"{}\" }} }}\n",
            waypoint(which),
            self.own,
            link.address
        );
        Router::start(&self.folder, &format!("waypoint{which}"), NetworkNamespace::Own, &config)
    }

    /// Configures one router more at the key server, which goes on running, and starts it.
    fn add_router(&mut self) {
        let (which, file) = (self.routers.len(), self.folder.0.join("key.toml"));
        let config = fs::read_to_string(file).expect("there");
        let (config, status) = config.split_once("[status]").expect("its page");
        self.folder.write("key.toml", &format!("{config}{}[status]{status}", section(&self.folder, which)));
        self.key.reload();
        let link = self.link();
        self.routers.push(self.start_router(which, &link));
        self.links.push(link);
        self.is_settled();
    }

    /// All routers are connected, and share the rate with so many.
    fn is_settled(&self) {
        let count = self.routers.len();
        eventually("all routers are connected", || self.connected() == count);
        eventually("all were told the rate", || self.routers.iter().all(|router| keeps_rate(router, 7)));
        let shared = |router: &Router| router.status()["provider"]["rates"][0]["routers"].as_u64();
        eventually("all know of each other", || self.routers.iter().all(|router| shared(router) == Some(count as u64)));
    }

    fn connected(&self) -> usize {
        let status = self.key.status();
        status["routers"].as_array().into_iter().flatten().filter(|router| router["connected"] == true).count()
    }
}

/// Sends twice the rate through all routers by weight, and counts octets where they arrive, of each router.
struct Load {
    stop: Arc<AtomicBool>,
    weights: Arc<[AtomicU64; ROUTERS]>,
    arrived: Arc<[AtomicU64; ROUTERS]>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Load {
    fn start() -> Self {
        let (stop, arrived) = (Arc::<AtomicBool>::default(), Arc::<[AtomicU64; ROUTERS]>::default());
        let weights = Arc::<[AtomicU64; ROUTERS]>::default();
        weights.iter().for_each(|weight| weight.store(1, Ordering::Relaxed));
        let mut host = Socket::new(HOST, PLATYPUS);
        let mut last = Socket::new(LAST, PLATYPUS);
        let length = packet(0, 0).len() as u64;
        let (stopped, weighed) = (Arc::clone(&stop), Arc::clone(&weights));
        let sender = std::thread::spawn(move || {
            // Octets that each router is still to be sent, times all weights.
            let (mut due, mut number, mut before) = ([0u64; ROUTERS], 0, Instant::now());
            while !stopped.load(Ordering::Relaxed) {
                let now = Instant::now();
                // What a machine that stood still has missed is not made up for.
                let micros = (now - before).min(Duration::from_millis(50)).as_micros() as u64;
                before = now;
                let weights: Vec<u64> = weighed.iter().map(|weight| weight.load(Ordering::Relaxed)).collect();
                let all = weights.iter().sum::<u64>().max(1);
                for which in 0..ROUTERS {
                    due[which] += RATE * TIMES * micros / 1_000_000 * weights[which];
                    while due[which] >= length * all {
                        due[which] -= length * all;
                        host.send(&packet(which, number));
                        number += 1;
                    }
                }
                std::thread::sleep(Duration::from_millis(3));
            }
        });
        let (stopped, count) = (Arc::clone(&stop), Arc::clone(&arrived));
        let receiver = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                for packet in last.receive(Duration::from_millis(20)) {
                    let source = Ipv4Addr::new(packet[12], packet[13], packet[14], packet[15]);
                    let which = (0..ROUTERS).find(|which| waypoint(*which) == source).expect("one of the routers");
                    count[which].fetch_add(packet.len() as u64, Ordering::Relaxed);
                }
            }
        });
        Self { stop, weights, arrived, threads: vec![sender, receiver] }
    }

    fn weigh(&self, weights: [u64; ROUTERS]) {
        self.weights.iter().zip(weights).for_each(|(weight, of)| weight.store(of, Ordering::Relaxed));
    }

    fn arrived(&self) -> u64 {
        (0..ROUTERS).map(|which| self.arrived_by(which)).sum()
    }

    /// By one of the routers.
    fn arrived_by(&self, which: usize) -> u64 {
        self.arrived[which].load(Ordering::Relaxed)
    }

    /// What arrives within a time, in thousandths of the rate.
    fn measure(&self, time: Duration) -> u64 {
        let (before, begin) = (self.arrived(), Instant::now());
        std::thread::sleep(time);
        let arrived = self.arrived() - before;
        arrived * 1_000_000_000 / (RATE * begin.elapsed().as_micros() as u64)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

#[test]
fn eight_routers_keep_one_rate_within_two_per_cent_and_cut_off_in_any_way_never_exceed_it_by_more_than_their_bursts() {
    let name = "router::leased::eight_routers_keep_one_rate_within_two_per_cent_and_cut_off_in_any_way_never_exceed_it_by_more_than_their_bursts";
    if netns::enter_for_test(name).is_none() {
        return;
    }
    let mut site = Site::start(ROUTERS);
    let load = Load::start();
    let begin = Instant::now();
    // By the time of the last octet that was counted, with a moment for what waits to be counted.
    let within = |load: &Load, what: &str| {
        let (arrived, micros) = (load.arrived(), begin.elapsed().as_micros() as u64 + 50_000);
        let most = RATE * micros / 1_000_000 + BURST * ROUTERS as u64;
        assert!(arrived <= most, "{what}: {arrived} octets, at most {most}");
    };
    // Steady demand, spread evenly and not. The promise is of the leases, not of a machine that has other things to do: one window of
    // several is enough, and none may be above.
    for weights in [[1; ROUTERS], [8, 1, 4, 1, 2, 1, 1, 2]] {
        load.weigh(weights);
        // Bursts are used up, and leases follow demand.
        std::thread::sleep(Duration::from_secs(2));
        let mut seen = Vec::new();
        let is_steady = (0..4).any(|_| {
            seen.push(load.measure(Duration::from_secs(2)));
            within(&load, "steady");
            seen.last().is_some_and(|rate| (980..=1_020).contains(rate))
        });
        println!("weights {weights:?}: {seen:?} thousandths of the rate");
        assert!(is_steady, "{weights:?}: {seen:?} thousandths of the rate");
    }
    // Cuts of any kind, in an order that does not repeat.
    load.weigh([1; ROUTERS]);
    let mut state = 7u64;
    let mut random = |bound: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % bound
    };
    let (mut cut, mut is_stopped) = ([false; ROUTERS], false);
    for _ in 0..24 {
        let which = random(ROUTERS as u64) as usize;
        match random(5) {
            0 | 1 => {
                cut[which] = !cut[which];
                site.links[which].cut(cut[which]);
            }
            2 => {
                site.key.kill();
                site.key.start_process();
                is_stopped = false;
            }
            3 => {
                // It stands still, and goes on with what was asked before.
                site.key.signal(if is_stopped { "-CONT" } else { "-STOP" });
                is_stopped = !is_stopped;
            }
            _ => {
                let mut weights = [1; ROUTERS];
                weights[which] = 20;
                load.weigh(weights);
            }
        }
        std::thread::sleep(Duration::from_millis(100 + random(400)));
        within(&load, "cut off");
    }
    // The key server dies: what routers had stays. Two of them die too: nobody has what was theirs.
    site.links.iter().for_each(|link| link.cut(false));
    site.key.kill();
    site.key.start_process();
    load.weigh([1; ROUTERS]);
    eventually("the rate comes back", || load.measure(Duration::from_secs(1)) > 500);
    // Until all have spoken nobody gets more than it had when demand moved, so that it may be less than the rate.
    let with = load.measure(Duration::from_secs(3));
    site.key.kill();
    let without = load.measure(Duration::from_secs(3));
    println!("with a key server {with}, without {without} thousandths of the rate");
    assert!(without * 10 >= with * 8, "{without} thousandths of the rate after {with}");
    within(&load, "without a key server");
    site.routers.truncate(ROUTERS - 2);
    std::thread::sleep(Duration::from_millis(1_500));
    within(&load, "killed");
    // And they come back.
    site.links.iter().for_each(|link| link.cut(false));
    site.key.start_process();
    load.weigh([1, 1, 1, 1, 1, 1, 0, 0]);
    eventually("the rate comes back", || load.measure(Duration::from_secs(1)) > 500);
    within(&load, "at the end");
}

#[test]
fn a_router_is_added_to_a_running_provider_gets_its_share_and_stops_nobody() {
    let name = "router::leased::a_router_is_added_to_a_running_provider_gets_its_share_and_stops_nobody";
    if netns::enter_for_test(name).is_none() {
        return;
    }
    let mut site = Site::start(1);
    let load = Load::start();
    let begin = Instant::now();
    let within = |load: &Load, routers: u64| {
        let (arrived, micros) = (load.arrived(), begin.elapsed().as_micros() as u64 + 50_000);
        let most = RATE * micros / 1_000_000 + BURST * routers;
        assert!(arrived <= most, "{arrived} octets, at most {most}");
    };
    load.weigh([1, 0, 0, 0, 0, 0, 0, 0]);
    eventually("its burst is used up, and it has the rate", || {
        (900..=1_020).contains(&load.measure(Duration::from_secs(1)))
    });
    within(&load, 1);
    // The first one goes on while the other one is made: at its rate, and refusing nobody for another reason than that.
    let refused = |router: &Router| {
        let reasons = router.status()["reasons"].as_object().cloned().unwrap_or_default();
        reasons.into_iter().filter(|(reason, _)| reason != "rate").collect::<Vec<_>>()
    };
    let (before, refused_before, adding) = (load.arrived_by(0), refused(&site.routers[0]), Instant::now());
    site.add_router();
    let meanwhile = (load.arrived_by(0) - before) * 1_000_000 / adding.elapsed().as_micros() as u64;
    assert!(meanwhile > RATE * 8 / 10, "{meanwhile} octets a second");
    assert_eq!(refused(&site.routers[0]), refused_before);
    within(&load, 2);
    // Half of the demand is the new one's, and so is half of the rate.
    load.weigh([1, 1, 0, 0, 0, 0, 0, 0]);
    let by_each = |load: &Load| {
        let arrived = || [0, 1].map(|which| load.arrived_by(which));
        let before = arrived();
        std::thread::sleep(Duration::from_secs(2));
        let after = arrived();
        [0, 1].map(|which| (after[which] - before[which]) * 500 / RATE)
    };
    let mut seen = Vec::new();
    eventually("each has its half", || {
        seen.push(by_each(&load));
        within(&load, 2);
        seen.last().is_some_and(|shares| shares.iter().all(|share| (420..=580).contains(share)))
    });
    println!("thousandths of the rate at each: {seen:?}");
    // Neither has been started again, nor was anybody's configuration but the key server's touched.
    assert_eq!((site.key.reloads(), site.routers[0].reloads()), (1, 0));
    assert!(!site.key.log().contains("goes by another rate"), "{}", site.key.log());
}
