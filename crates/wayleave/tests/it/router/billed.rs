//! Routers and their provider's key server as processes: what routers forward is on the statement, whoever is killed; revocations are
//! pushed; a shared rate is kept by all routers together.
//!
//! PLA, usage by process: routers and key server killed while packets are sent and each is repeated (100 kills by
//! `WAYLEAVE_BILLED_KILLS`): the statement is never above what arrived, and below it by a second of each payer's
//! packets at most, over all kills of routers together; what was counted just before a kill is on it.
//! PLA, usage and PostgreSQL: the database killed in turn with the key server, and lost to a synchronous standby while routers report:
//! nothing is missing, and nothing is billed twice.
//! PLA-06, pushed: a revocation at the key server; the server gone, and the routers restarted: refused by each router,
//! then too.
//! PLA-06, set back: a key server that comes back from an old backup: routers that have seen more take no rates of it until it is adopted.
//! PLA-04, sources by process: a waypoint that sends for others, at index 1; the server gone, and the routers restarted, one without
//! all that it was told: refused by each router, then too.
//! PLA, leases: a shared rate between running routers: it goes where the packets are, and stays there without the
//! key server.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use wayleave_lab::netns::{self, NetworkNamespace};
use wayleave_lab::postgres::Postgres;
use wayleave_packet::platypus::header::Marks;
use wayleave_runtime::clock::unix_now;

use super::common::{Folder, Router, eventually, free};
use super::platypus::{HOST, KEYS, LAST, PLATYPUS, Socket, WAYPOINTS, config, lay_out, packet, packet_by, packet_of};
use crate::common::text;

/// Packets a second while processes are killed.
const PACE: u64 = 400;
/// Kills; `make soak` has more.
const KILLS: usize = 6;

/// Two routers and a key server in one namespace.
pub(super) struct Site {
    pub(super) folder: Folder,
    pub(super) routers: Vec<Router>,
    pub(super) key: Router,
    /// Where its API is.
    api: String,
}

impl Site {
    pub(super) fn new(name: &str, of_key: &str, of_routers: impl Fn(usize, &str) -> String) -> Option<Self> {
        netns::enter_for_test(&format!("router::{name}"))?;
        Some(Self::with(&[], of_key, |_, server| format!("server = {server}"), of_routers))
    }

    /// `init`: more arguments of `cap init`; `servers`: what follows `identity` in routers' `provider`, by the folder and the key server there
    /// is.
    pub(super) fn with(
        init: &[&str],
        of_key: &str,
        servers: impl FnOnce(&Folder, &str) -> String,
        of_routers: impl Fn(usize, &str) -> String,
    ) -> Self {
        let folder = lay_out();
        let ok = |line: &[&str]| {
            let output = folder.run(line);
            assert!(output.status.success(), "{line:?}: {}", text(&output.stderr));
            text(&output.stdout)
        };
        let identity = |file: &str| {
            let made = ok(&["keys", "node", file, "--kind", "identity", "--json"]);
            let made: Value = serde_json::from_str(&made).expect("JSON");
            made["public"].as_str().expect("a key").to_owned()
        };
        let zone = ["--zone", "keys.example.net", "--name-server", "ns1.example.net"];
        ok(&[&["cap", "init", "server", "--listen", &free(), "--status", "127.0.0.1:1"], &zone[..], init].concat());
        let mut server = fs::read_to_string(folder.0.join("server/key.toml")).expect("there");
        server.truncate(server.find("[status]").expect("a section"));
        for file in ["accounts.key", "writer.key", "accounts.db", "revoked"] {
            server = server.replace(&format!("\"{file}\""), &format!("\"server/{file}\""));
        }
        let writer = server.lines().find_map(|line| line.strip_prefix("writer = ")).expect("a key").to_owned();
        let (address, own) = (free(), identity("server.identity"));
        let token: Value = serde_json::from_str(&ok(&["keys", "token", "read.token", "--json"])).expect("JSON");
        let (api, hash) = (free(), &token["hash"]);
        server += &format!(
            "[key.api]\nlisten = \"{api}\"\nidentity = \"server/api.key\"\n[[key.api.token]]\nname = \"billing\"\nhash = {hash}\n\
             [key.routers]\nlisten = \"{address}\"\nidentity = \"server.identity\"\n{of_key}"
        );
        for which in 0..2 {
            let router = identity(&format!("{which}.identity"));
            server += &format!(
                "[[key.router]]\nnumber = {}\nname = \"r{which}\"\nidentity = \"{router}\"\n\
                 [[key.waypoint]]\naddress = \"{}\"\nkey = \"{which}.key\"\n",
                which + 1,
                WAYPOINTS[which]
            );
            folder.keys(&format!("{which}.key"), "platypus", &[(0, KEYS[which])]);
        }
        let key = Router::start_role("key", &folder, "key", NetworkNamespace::Own, &server);
        let servers = servers(&folder, &format!("{{ identity = \"{own}\", address = \"{address}\" }}"));
        let routers = (0..2)
            .map(|which| {
                let provider = format!(
                    "provider = {{ identity = \"{which}.identity\", {servers} }}\n{}",
                    of_routers(which, &writer)
                );
                let config = config(which, &provider);
                Router::start(&folder, &format!("waypoint{which}"), NetworkNamespace::Own, &config)
            })
            .collect();
        Self { folder, routers, key, api }
    }

    pub(super) fn ok(&self, line: &[&str]) -> String {
        let output = self.folder.run(line);
        assert!(output.status.success(), "{line:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    /// Packets of principal 7 at each router, by the statement.
    pub(super) fn billed(&self) -> [u64; 2] {
        let statement = self.ok(&["cap", "usage", "--config", "key.toml", "--by", "router", "--json"]);
        let statement: Value = serde_json::from_str(&statement).expect("JSON");
        let lines = statement["usage"].as_array().expect("lines");
        [1, 2].map(|router| {
            let of = |line: &&Value| line["router"] == router && line["principal"] == 7;
            let packets = lines.iter().find(of).and_then(|line| line["packets"].as_str());
            packets.map_or(0, |packets| packets.parse().expect("a number"))
        })
    }

    /// The statement by the API is the one at the server's own machine, in every form.
    fn is_billed_alike_from_elsewhere(&self) {
        let shown = self.ok(&["keys", "show", "server/api.key", "--json"]);
        let shown: Value = serde_json::from_str(&shown).expect("JSON");
        let (url, pin) = (format!("https://{}", self.api), shown["api_pin"].as_str().expect("a pin").to_owned());
        let at = ["--api", url.as_str(), "--token", "read.token", "--pin", pin.as_str()];
        for by in ["principal", "delegation", "epoch", "router"] {
            for form in
                [&["--json"][..], &["--csv"], &["--principal", "7"], &["--from", "2026-01-01"], &["--to", "2026-01-01"]]
            {
                let command = [&["cap", "usage", "--by", by], form].concat();
                let here = self.ok(&[&command[..], &["--config", "key.toml"]].concat());
                assert_eq!(self.ok(&[&command[..], &at].concat()), here, "{command:?}");
            }
        }
    }

    pub(super) fn connected(&self) -> bool {
        let status = self.key.status();
        status["routers"].as_array().into_iter().flatten().filter(|router| router["connected"] == true).count() == 2
    }
}

/// Whose packets a sender sends in turn: principals, and one's delegation.
const PAYERS: [Payer; 3] = [(7, None), (7, Some(9)), (8, None)];
type Payer = (u32, Option<u32>);
/// Packets of each payer by router.
type Counts = [[u64; 2]; PAYERS.len()];

/// Sends packets through each router at a steady pace, each of them twice, until it is told to stop.
pub(super) struct Sender {
    stop: Arc<AtomicBool>,
    /// For each router.
    sent: Arc<AtomicU64>,
    arrived: Arc<[[AtomicU64; 2]; PAYERS.len()]>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

/// Inner octets of a payer's packets through a router, by which they are told apart where they arrive.
fn length(payer: usize, router: usize) -> usize {
    100 + router * 100 + payer * 20
}

impl Sender {
    /// Of principal 7 alone.
    pub(super) fn start(first: u32) -> Self {
        Self::start_for(1, first)
    }

    /// Of so many of the payers.
    fn start_for(payers: usize, first: u32) -> Self {
        let (stop, sent) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let arrived = Arc::<[[AtomicU64; 2]; PAYERS.len()]>::default();
        let mut host = Socket::new(HOST, PLATYPUS);
        let mut last = Socket::new(LAST, PLATYPUS);
        let (stopped, count) = (Arc::clone(&stop), Arc::clone(&sent));
        let sender = std::thread::spawn(move || {
            let (begin, mut number) = (Instant::now(), 0);
            while !stopped.load(Ordering::Relaxed) {
                let payer = number as usize % payers;
                for router in 0..2 {
                    let packet = packet_of(PAYERS[payer], &[router], first + number, length(payer, router));
                    host.send(&packet);
                    host.send(&packet);
                }
                number += 1;
                count.store(number.into(), Ordering::Relaxed);
                let due = begin + Duration::from_micros(1_000_000 / PACE) * number;
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
            }
        });
        let (stopped, count) = (Arc::clone(&stop), Arc::clone(&arrived));
        let octets = |payer: usize| [0, 1].map(|router| octets(payer, router));
        let all: Vec<[usize; 2]> = (0..PAYERS.len()).map(octets).collect();
        let receiver = std::thread::spawn(move || {
            let mut quiet = 0;
            while quiet < 10 {
                let packets = last.receive(Duration::from_millis(50));
                for packet in &packets {
                    let is_alike = |octets: &usize| *octets == packet.len();
                    let payer = all.iter().position(|of| of.iter().any(is_alike)).expect("one of ours");
                    let router = all[payer].iter().position(is_alike).expect("one of the two");
                    count[payer][router].fetch_add(1, Ordering::Relaxed);
                }
                quiet = if packets.is_empty() && stopped.load(Ordering::Relaxed) { quiet + 1 } else { 0 };
            }
        });
        Self { stop, sent, arrived, threads: vec![sender, receiver] }
    }

    fn counts(&self) -> Counts {
        self.arrived.each_ref().map(|of| of.each_ref().map(|count| count.load(Ordering::Relaxed)))
    }

    /// Packets at each router.
    pub(super) fn arrived(&self) -> [u64; 2] {
        [0, 1].map(|router| self.counts().iter().map(|of| of[router]).sum())
    }

    fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        std::mem::take(&mut self.threads).into_iter().for_each(|thread| thread.join().expect("no panic"));
    }

    /// How many packets were sent through each router, each counted once, and how many arrived.
    pub(super) fn stop(mut self) -> (u64, [u64; 2]) {
        self.end();
        (self.sent.load(Ordering::Relaxed), self.arrived())
    }

    /// How many of each payer arrived.
    fn stop_counts(mut self) -> Counts {
        self.end();
        self.counts()
    }
}

/// Octets of a payer's packet through a router.
pub(super) fn octets(payer: usize, router: usize) -> usize {
    packet_of(PAYERS[payer], &[router], 0, length(payer, router)).len()
}

/// Packets and octets of the lines of a statement, by principal and one more column.
fn sums(site: &Site, by: &str, column: &str) -> BTreeMap<(u64, Option<u64>), [u64; 2]> {
    let said = site.ok(&["cap", "usage", "--config", "key.toml", "--by", by, "--json"]);
    let said: Value = serde_json::from_str(&said).expect("JSON");
    let line = |line: &Value| {
        let number = |of: &str| line[of].as_str().and_then(|text| text.parse().ok()).expect("a number");
        ((line["principal"].as_u64().expect("a number"), line[column].as_u64()), [number("packets"), number("octets")])
    };
    said["usage"].as_array().expect("lines").iter().map(line).collect()
}

/// What the routers have counted until now is durable there, and reported.
fn settle(site: &Site) {
    let next_second = unix_now().secs() + 1;
    let is_reported = |router: &Router| {
        let provider = &router.status()["provider"];
        provider["durable_until"].as_u64() >= Some(next_second) && provider["waiting"] == 0
    };
    eventually("everything is durable and reported", || site.connected() && site.routers.iter().all(is_reported));
}

/// Packets and octets by principal and what else tells lines apart.
type Sums = BTreeMap<(u64, Option<u64>), [u64; 2]>;

/// Compares what statements gained with what arrived: of no payer, and at no router, is there more on them, and of what each payer sent
/// through a router at most these seconds less, however often that was killed.
fn judge(site: &Site, before: &[Sums; 2], arrived: &Counts, seconds: [u64; 2]) {
    /// Packets of one payer through one router in a second.
    const RATE: u64 = PACE / PAYERS.len() as u64;
    let after = [sums(site, "delegation", "delegation"), sums(site, "router", "router")];
    let gained = |of: usize, key: (u64, Option<u64>)| -> [u64; 2] {
        let at = |sums: &Sums| sums.get(&key).copied().unwrap_or_default();
        [0, 1].map(|column| at(&after[of])[column] - at(&before[of])[column])
    };
    let check = |what: String, [packets, octets]: [u64; 2], parts: &[(usize, usize)]| {
        let arrived_packets: u64 = parts.iter().map(|(payer, router)| arrived[*payer][*router]).sum();
        let arrived_octets: u64 =
            parts.iter().map(|(payer, router)| arrived[*payer][*router] * self::octets(*payer, *router) as u64).sum();
        let missing: u64 = parts.iter().map(|(_, router)| seconds[*router] * RATE).sum();
        println!("{what}: {arrived_packets} arrived, {packets} on the statement, {missing} may be missing");
        assert!(packets <= arrived_packets && octets <= arrived_octets, "{what}: {packets} of {arrived_packets}");
        assert!(packets + missing >= arrived_packets, "{what}: {packets} of {arrived_packets}");
        if let [(payer, router)] = parts {
            assert_eq!(octets, packets * self::octets(*payer, *router) as u64, "{what}");
        }
    };
    for (payer, (principal, delegation)) in PAYERS.into_iter().enumerate() {
        let gained = gained(0, (principal.into(), delegation.map(u64::from)));
        check(format!("{:?}", PAYERS[payer]), gained, &[(payer, 0), (payer, 1)]);
    }
    for router in 0..2 {
        for (principal, parts) in [(7, &[(0, router), (1, router)][..]), (8, &[(2, router)])] {
            let gained = gained(1, (principal, Some(router as u64 + 1)));
            check(format!("principal {principal} at router {router}"), gained, parts);
        }
    }
}

#[test]
fn statements_equal_what_arrived_and_are_never_above_it_whoever_is_killed() {
    let name = "billed::statements_equal_what_arrived_and_are_never_above_it_whoever_is_killed";
    let Some(mut site) = Site::new(name, "", |_, _| String::new()) else { return };
    site.ok(&[
        "cap",
        "grant",
        "--principal",
        "7",
        "--name",
        "desk",
        "--waypoint",
        &WAYPOINTS[0].to_string(),
        "--config",
        "key.toml",
    ]);
    eventually("both routers are connected", || site.connected());
    let sender = Sender::start(0);
    eventually("packets arrive", || sender.arrived()[1] > 500);
    let (sent, arrived) = sender.stop();
    assert_eq!(arrived, [sent; 2], "each of them once");
    eventually("the statement is complete", || site.billed() == arrived);
    let csv = site.ok(&["cap", "usage", "--config", "key.toml", "--by", "principal", "--csv"]);
    let octets: u64 = (0..2).map(|which| sent * octets(0, which) as u64).sum();
    assert_eq!(csv, format!("principal,account,late,packets,octets\r\n7,desk,false,{},{octets}\r\n", sent * 2));

    site.is_billed_alike_from_elsewhere();

    // Without a key server usage waits; and the statement can be read from its file.
    site.key.kill();
    assert_eq!(site.billed(), arrived);
    let sender = Sender::start(1_000_000);
    std::thread::sleep(Duration::from_secs(1));
    let (_, more) = sender.stop();
    assert_eq!(site.billed(), arrived);
    site.key.start_process();
    let before = [arrived[0] + more[0], arrived[1] + more[1]];
    eventually("what waited is reported", || site.billed() == before);

    judge_kills(&mut site, None, &[(&[2], 0), (&[0, 1, 2], 1)]);
}

/// The same with PostgreSQL, which is killed in turn with the key server.
#[test]
fn statements_from_postgresql_equal_what_arrived_whoever_is_killed() {
    if netns::enter_for_test("router::billed::statements_from_postgresql_equal_what_arrived_whoever_is_killed")
        .is_none()
    {
        return;
    }
    let Some(mut postgres) = Postgres::start_for_test() else { return };
    let database = postgres.url();
    let server = |_: &Folder, server: &str| format!("server = {server}");
    let mut site = Site::with(&["--database", &database], "", server, |_, _| String::new());
    eventually("both routers are connected", || site.connected());
    judge_kills(&mut site, Some(&mut postgres), &[(&[2, 3], 0)]);
}

/// The primary is lost, and its address goes over to the synchronous standby: the key server goes on in the same process.
#[test]
fn a_standby_takes_over_while_routers_report_and_all_is_billed_once() {
    if netns::enter_for_test("router::billed::a_standby_takes_over_while_routers_report_and_all_is_billed_once")
        .is_none()
    {
        return;
    }
    let Some(mut primary) = Postgres::start_for_test() else { return };
    let mut standby = Postgres::standby(&primary, true).expect("a standby");
    // A socket's path is short.
    let link = std::env::temp_dir().join(format!("wayleave-primary-{}", std::process::id()));
    let folder = |of: &Postgres| of.url().split_once("host=").expect("a folder").1.to_owned();
    let point_to = |server: &Postgres| {
        let _ = fs::remove_file(&link); // there may be none
        symlink(folder(server), &link).expect("linked");
    };
    point_to(&primary);
    let database = primary.url().replace(&folder(&primary), &link.display().to_string());
    let server = |_: &Folder, server: &str| format!("server = {server}");
    let site = Site::with(&["--database", &database], "", server, |_, _| String::new());
    eventually("both routers are connected", || site.connected());
    settle(&site);
    let before = [sums(&site, "delegation", "delegation"), sums(&site, "router", "router")];
    let sender = Sender::start_for(PAYERS.len(), 2_000_000);
    eventually("packets arrive", || sender.arrived().iter().all(|arrived| *arrived > 300));
    primary.kill().expect("killed");
    standby.promote().expect("promoted");
    point_to(&standby);
    eventually("the database is back", || site.key.status()["database"]["up"] == true);
    let count = sender.arrived();
    eventually("packets arrive", || (0..2).all(|which| sender.arrived()[which] > count[which] + 300));
    let arrived = sender.stop_counts();
    settle(&site);
    judge(&site, &before, &arrived, [0; 2]);
    fs::remove_file(&link).expect("removed");
}

/// Anybody is killed, again and again, while packets are sent and repeated: routers, by their place, the key server (2) or its database (3).
/// A key server has what it acknowledged, and routers report the rest again: its kills take nothing. Each with the seconds of packets
/// that may be missing.
fn judge_kills(site: &mut Site, mut postgres: Option<&mut Postgres>, phases: &[(&[usize], u64)]) {
    let kills = std::env::var("WAYLEAVE_BILLED_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(KILLS);
    for (phase, (victims, seconds)) in phases.iter().enumerate() {
        settle(site);
        let before = [sums(site, "delegation", "delegation"), sums(site, "router", "router")];
        let sender = Sender::start_for(PAYERS.len(), 2_000_000 + 1_000_000 * phase as u32);
        for kill in 0..kills {
            std::thread::sleep(Duration::from_millis(200 + 37 * (kill as u64 % 11)));
            let victim = match (victims[kill % victims.len()], &mut postgres) {
                (3, Some(postgres)) => {
                    postgres.kill().expect("killed");
                    postgres.restart().expect("started");
                    continue;
                }
                (router @ (0 | 1), _) => &mut site.routers[router],
                _ => &mut site.key,
            };
            victim.kill();
            victim.start_process();
        }
        let count = sender.arrived();
        eventually("packets arrive again", || (0..2).all(|which| sender.arrived()[which] > count[which]));
        let arrived = sender.stop_counts();
        settle(site);
        judge(site, &before, &arrived, [*seconds; 2]);
    }
}

/// What a customer sees by its own line is what the provider's statement says, as often as it asks.
#[test]
fn a_holder_sees_by_its_line_what_the_statement_says_and_a_delegate_its_own_part() {
    let name = "billed::a_holder_sees_by_its_line_what_the_statement_says_and_a_delegate_its_own_part";
    let Some(site) = Site::new(name, "", |_, _| String::new()) else { return };
    eventually("both routers are connected", || site.connected());
    let sender = Sender::start_for(PAYERS.len(), 0);
    eventually("packets arrive", || sender.arrived()[0] >= 40);
    sender.stop_counts();
    settle(&site);
    let billed = |delegation: Option<u64>, column: &str| -> u64 {
        let of = |((principal, of), _): &(&(u64, Option<u64>), &[u64; 2])| {
            *principal == 7 && (delegation.is_none() || *of == delegation)
        };
        let which = usize::from(column == "octets");
        sums(&site, "delegation", "delegation").iter().filter(of).map(|(_, sums)| sums[which]).sum()
    };
    let config = fs::read_to_string(site.folder.0.join("key.toml")).expect("there");
    let listen =
        config.lines().find_map(|line| line.strip_prefix("listen = \"")?.strip_suffix('"')).expect("an address");
    let waypoint = WAYPOINTS[0].to_string();
    let line = site.ok(&["cap", "grant", "--principal", "7", "--waypoint", &waypoint, "--config", "key.toml"]);
    site.folder.write("own.line", &line);
    let part = ["--prefix", "203.0.113.0/24", "--id", "9", "--server", listen];
    let line = site.ok(&[&["cap", "delegate", "--line", "own.line"], &part[..]].concat());
    site.folder.write("branch.line", &line);
    let status = |line: &str| -> Value {
        let said = site.ok(&["cap", "status", "--line", line, "--server", listen, "--json"]);
        serde_json::from_str(&said).expect("JSON")
    };
    for (line, delegation) in [("own.line", None), ("branch.line", Some(9))] {
        let status = status(line);
        for column in ["packets", "octets"] {
            let billed = billed(delegation, column);
            assert!(billed > 0);
            assert_eq!(status[column].as_str(), Some(billed.to_string().as_str()), "{line} {column}: {status}");
        }
        assert_eq!(status["is_partial"], false);
    }
    assert_eq!(status("own.line")["delegations"][0]["delegation"], "9");
}

/// A kill takes what was counted in the last few milliseconds, and not what a commit of the store would have been needed for.
#[test]
fn what_a_router_counted_just_before_it_was_killed_is_on_the_statement() {
    let name = "billed::what_a_router_counted_just_before_it_was_killed_is_on_the_statement";
    let Some(mut site) = Site::new(name, "", |_, _| String::new()) else { return };
    eventually("both routers are connected", || site.connected());
    let empty = [BTreeMap::new(), BTreeMap::new()];
    let (mut arrived, mut sent) = (Counts::default(), 0);
    let counted = |site: &Site| -> u64 {
        let accounts = site.routers[0].json("accounts");
        let rows = accounts["accounts"].as_array().into_iter().flatten();
        rows.filter_map(|row| row["packets"].as_str()?.parse::<u64>().ok()).sum()
    };
    for round in 0..8 {
        // The key server is away: what the router knows, it alone knows.
        site.key.kill();
        let mut sender = Sender::start_for(PAYERS.len(), round * 1_000_000);
        eventually("packets arrive", || sender.arrived()[0] >= 40);
        sender.stop.store(true, Ordering::Relaxed);
        sender.threads.remove(0).join().expect("no panic");
        sent += sender.sent.load(Ordering::Relaxed);
        eventually("each of them is counted", || counted(&site) == sent);
        // What is shown is in the tally a moment later, before the next question is answered.
        assert_eq!(counted(&site), sent);
        site.routers[0].kill();
        let tally = fs::metadata(site.folder.0.join("0.redb.tally")).expect("beside the state file");
        assert_eq!(tally.permissions().mode() & 0o777, 0o600);
        site.routers[0].start_process();
        site.key.start_process();
        for (sum, count) in arrived.iter_mut().zip(sender.stop_counts()) {
            (0..2).for_each(|router| sum[router] += count[router]);
        }
    }
    settle(&site);
    judge(&site, &empty, &arrived, [0, 0]);
}

/// An old copy of a router's state is put back; then the state of one router is copied to the other.
#[test]
fn a_routers_state_that_is_put_back_or_copied_to_another_router_bills_nothing_twice() {
    let name = "billed::a_routers_state_that_is_put_back_or_copied_to_another_router_bills_nothing_twice";
    let Some(mut site) = Site::new(name, "", |_, _| String::new()) else { return };
    eventually("both routers are connected", || site.connected());
    let empty = [BTreeMap::new(), BTreeMap::new()];
    let mut arrived = Counts::default();
    let send = |site: &Site, arrived: &mut Counts, first: u32| {
        let sender = Sender::start_for(PAYERS.len(), first);
        let begun = sender.arrived();
        eventually("packets arrive", || (0..2).all(|router| sender.arrived()[router] > begun[router] + 300));
        for (sum, count) in arrived.iter_mut().zip(sender.stop_counts()) {
            (0..2).for_each(|router| sum[router] += count[router]);
        }
        settle(site);
    };
    let file = |site: &Site, name: &str| site.folder.0.join(name);
    send(&site, &mut arrived, 0);
    judge(&site, &empty, &arrived, [0, 0]);
    site.routers[0].kill();
    fs::copy(file(&site, "0.redb"), file(&site, "old.redb")).expect("copied");
    site.routers[0].start_process();
    send(&site, &mut arrived, 1_000_000);
    judge(&site, &empty, &arrived, [1, 0]);
    // The old copy: what the server has stays, and the router counts on from there.
    site.routers[0].kill();
    fs::copy(file(&site, "old.redb"), file(&site, "0.redb")).expect("copied");
    site.routers[0].start_process();
    eventually("the router is told", || site.key.log().contains("its state was put back"));
    send(&site, &mut arrived, 2_000_000);
    judge(&site, &empty, &arrived, [1, 0]);
    // The other router gets a copy: it has reported all of its own.
    site.routers.iter_mut().for_each(|router| router.kill());
    fs::copy(file(&site, "0.redb"), file(&site, "1.redb")).expect("copied");
    site.routers.iter_mut().for_each(|router| router.start_process());
    send(&site, &mut arrived, 3_000_000);
    judge(&site, &empty, &arrived, [1, 1]);
}

#[test]
fn revocations_are_pushed_to_routers_and_stay_when_the_key_server_is_gone() {
    let list =
        |_: usize, writer: &str| format!("revocations = {{ file = \"pushed\", key = {writer}, required = true }}\n");
    let list = |which: usize, writer: &str| list(which, writer).replace("pushed", &format!("pushed{which}"));
    let Some(mut site) =
        Site::new("billed::revocations_are_pushed_to_routers_and_stay_when_the_key_server_is_gone", "", list)
    else {
        return;
    };
    let sequence = |site: &Site, which: usize| site.routers[which].status()["revocations"]["sequence"].as_u64();
    eventually("both have a list", || (0..2).all(|which| sequence(&site, which).is_some()));
    let before = sequence(&site, 0).expect("a list");
    let mut host = Socket::new(HOST, PLATYPUS);
    let mut last = Socket::new(LAST, PLATYPUS);
    (0..20).for_each(|number| host.send(&packet(&[0, 1], number, 100)));
    assert_eq!(last.all(20).len(), 20);

    site.ok(&["cap", "grant", "--principal", "7", "--waypoint", &WAYPOINTS[0].to_string(), "--config", "key.toml"]);
    site.ok(&["cap", "revoke", "7", "--config", "key.toml"]);
    eventually("both have the next list", || (0..2).all(|which| sequence(&site, which) > Some(before)));
    eventually("the principal is revoked", || site.routers[0].status()["revocations"]["entries"] == 1);
    (20..40).for_each(|number| host.send(&packet(&[0, 1], number, 100)));
    eventually("no packet passes", || site.routers[0].count("reasons", "revoked") == 20);
    site.key.kill();
    for router in &mut site.routers {
        router.kill();
        router.start_process();
    }
    eventually("the list is read", || site.routers[0].status()["revocations"]["entries"] == 1);
    (40..60).for_each(|number| host.send(&packet(&[0, 1], number, 100)));
    eventually("no packet passes", || site.routers[0].count("reasons", "revoked") == 20);
    assert!(last.receive(Duration::from_millis(200)).is_empty());
}

#[test]
fn sources_are_pushed_and_a_router_that_restarts_cut_off_goes_on_with_them() {
    let list = |which: usize, writer: &str| {
        format!("revocations = {{ file = \"pushed{which}\", key = {writer}, required = false }}\n")
    };
    let name = "billed::sources_are_pushed_and_a_router_that_restarts_cut_off_goes_on_with_them";
    let Some(mut site) = Site::new(name, "", list) else { return };
    let list = |site: &Site, what: &str| [0, 1].map(|which| site.routers[which].status()["revocations"][what].as_u64());
    let reason = |site: &Site, which: usize, reason: &str| site.routers[which].count("reasons", reason);
    let mut host = Socket::new(HOST, PLATYPUS);
    let mut last = Socket::new(LAST, PLATYPUS);
    let mut number = 0;
    // Ten packets through the waypoints, the first with the first payer.
    let mut send = |payers: &[u32], marks: Marks| {
        let path: Vec<_> = payers.iter().map(|principal| (*principal, None)).enumerate().collect();
        for _ in 0..10 {
            host.send(&packet_by(&path, marks, number, 100));
            number += 1;
        }
    };
    eventually("both have a list", || list(&site, "sequence").iter().all(Option::is_some));
    // An account with sources of which the list knows nothing: as at a router that was cut off before it was opened.
    send(&[7], Marks::BOUND);
    eventually("it is refused", || reason(&site, 0, "sources-unknown") == 10);
    let own = format!("{HOST}/32");
    for (principal, waypoint, sources) in
        [("7", WAYPOINTS[0], &*own), ("9", WAYPOINTS[1], "198.18.0.0/24,198.19.0.0/16")]
    {
        let grant = ["cap", "grant", "--principal", principal, "--waypoint", &waypoint.to_string()];
        site.ok(&[&grant[..], &["--sources", sources, "--config", "key.toml"]].concat());
    }
    let has_sources = |site: &Site| list(site, "sources") == [Some(2); 2];
    eventually("both know them", || has_sources(&site));
    // Principal 8 pays at the first waypoint, whose router forwards honestly; 9 at the second, from where it may not.
    let mut judge = |site: &Site| {
        send(&[7], Marks::BOUND);
        assert_eq!(last.all(10).len(), 10);
        send(&[8, 9], Marks::NONE);
        eventually("the second router refuses all", || reason(site, 1, "sources") == 10);
        assert!(last.receive(Duration::from_millis(200)).is_empty());
    };
    judge(&site);
    site.key.kill();
    for router in &mut site.routers {
        router.kill();
        router.start_process();
    }
    eventually("the list is read", || has_sources(&site));
    judge(&site);
    // Without all that it was told it lets pass whom nobody bound.
    site.routers[0].kill();
    ["pushed0", "0.redb"].iter().for_each(|file| fs::remove_file(site.folder.0.join(file)).expect("there"));
    site.routers[0].start_process();
    send(&[7], Marks::BOUND);
    eventually("it is refused", || reason(&site, 0, "sources-unknown") == 10);
    send(&[8, 8], Marks::NONE);
    assert_eq!(last.all(10).len(), 10);
}

#[test]
fn a_shared_rate_goes_where_the_packets_are_and_stays_there_without_the_key_server() {
    const RATE: u64 = 400_000;
    const BURST: u64 = 65_535;
    let name = "billed::a_shared_rate_goes_where_the_packets_are_and_stays_there_without_the_key_server";
    let Some(mut site) = Site::new(name, "", |_, _| String::new()) else { return };
    site.ok(&["cap", "grant", "--principal", "7", "--waypoint", &WAYPOINTS[0].to_string(), "--config", "key.toml"]);
    let (rate, burst) = (RATE.to_string(), BURST.to_string());
    site.ok(&["cap", "rate", "7", &rate, "--burst", &burst, "--config", "key.toml"]);
    eventually("both routers were told the rate", || site.routers.iter().all(|router| keeps_rate(router, 7)));
    let mut host = Socket::new(HOST, PLATYPUS);
    let octets = |site: &Site| -> u64 {
        let accounts = site.routers[0].json("accounts");
        let rows = accounts["accounts"].as_array().into_iter().flatten();
        rows.filter_map(|row| row["octets"].as_str()?.parse::<u64>().ok()).sum()
    };
    let mut number = 0;
    // Sends twice the rate for a time through the first router alone; returns what it let pass, and the time. `kills`: the key server dies
    // in the middle, and what is returned is of the time after that.
    let mut flood = |site: &mut Site, time: Duration, mut kills: bool| {
        let (mut begin, mut before, mut sent) = (Instant::now(), octets(site), 0);
        while begin.elapsed() < time {
            if kills && begin.elapsed() > Duration::from_secs(1) {
                site.key.kill();
                std::thread::sleep(Duration::from_millis(20));
                (kills, begin, before, sent) = (false, Instant::now(), octets(site), 0);
            }
            while sent < RATE * 2 * begin.elapsed().as_millis() as u64 / 1_000 {
                let packet = packet(&[0], number, 1_000);
                host.send(&packet);
                sent += packet.len() as u64;
                number += 1;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let elapsed = begin.elapsed();
        let passed = super::super::stamping::world::settled(|| octets(site)) - before;
        (passed, elapsed)
    };
    flood(&mut site, Duration::from_secs(1), false);
    let (passed, elapsed) = flood(&mut site, Duration::from_secs(4), false);
    let whole = RATE * elapsed.as_millis() as u64 / 1_000;
    assert!(passed <= whole + BURST, "{passed} of {whole}");
    assert!(passed >= whole / 100 * 85, "{passed} of {whole}");

    // Without the key server it keeps what it had, for a minute.
    let (passed, elapsed) = flood(&mut site, Duration::from_secs(3), true);
    let whole = RATE * elapsed.as_millis() as u64 / 1_000;
    assert!(passed <= whole + BURST, "{passed} of {whole}");
    assert!(passed >= whole / 100 * 85, "{passed} of {whole}");
    let problems = site.routers[0].status()["provider"]["problems"].to_string();
    assert!(problems.contains("no link to the key server at 127.0.0.1:"), "{problems}");
    site.key.start_process();
    eventually("the rate comes back", || {
        let (passed, elapsed) = flood(&mut site, Duration::from_secs(1), false);
        passed >= RATE / 2 * elapsed.as_millis() as u64 / 1_000
    });

    // It is lowered by one command.
    let lowered = RATE / 4;
    site.ok(&["cap", "rate", "7", &lowered.to_string(), "--burst", &burst, "--config", "key.toml"]);
    let listed: Value =
        serde_json::from_str(&site.ok(&["cap", "rate", "--config", "key.toml", "--json"])).expect("JSON");
    let said = json!({
        "principal": 7, "delegation": null, "octets_per_second": lowered, "burst_octets": BURST, "offline": "decay",
    });
    assert_eq!(listed["rates"], json!([said]));
    let told = |router: &Router| router.status()["provider"]["rates"][0]["rate"].as_u64();
    eventually("both are told", || site.routers.iter().all(|router| told(router) == Some(lowered)));
    flood(&mut site, Duration::from_secs(2), false);
    let (passed, elapsed) = flood(&mut site, Duration::from_secs(3), false);
    let whole = lowered * elapsed.as_millis() as u64 / 1_000;
    assert!(passed <= whole + BURST && passed >= whole / 2, "{passed} of {whole}");

    // Started again without a key server, a router keeps to its floor of what it was told.
    site.key.kill();
    site.routers[0].kill();
    site.routers[0].start_process();
    assert!(told(&site.routers[0]) == Some(lowered) && keeps_rate(&site.routers[0], 7));
    let (passed, elapsed) = flood(&mut site, Duration::from_secs(2), false);
    let floor = lowered / 200 * elapsed.as_millis() as u64 / 1_000;
    assert!(passed > 0 && passed <= floor + BURST, "{passed} of {floor}");
}

/// The key server's machine comes back from a backup of everything that it knew its database by: routers are left that have seen more.
#[test]
fn a_router_takes_no_rates_of_a_database_that_was_set_back_until_it_is_adopted() {
    let name = "billed::a_router_takes_no_rates_of_a_database_that_was_set_back_until_it_is_adopted";
    let Some(mut site) = Site::new(name, "", |_, _| String::new()) else { return };
    let set = |site: &Site, rate: &str| drop(site.ok(&["cap", "rate", "7", rate, "--config", "key.toml"]));
    let told = |router: &Router| router.status()["provider"]["rates"][0]["rate"].as_u64();
    let all_told = |site: &Site, rate: u64| site.routers.iter().all(|router| told(router) == Some(rate));
    site.ok(&["cap", "grant", "--principal", "7", "--waypoint", &WAYPOINTS[0].to_string(), "--config", "key.toml"]);
    set(&site, "400000");
    eventually("both are told", || all_told(&site, 400_000));
    // SQLite may leave a part of the database in its log.
    let files = ["server/accounts.db", "server/accounts.db-wal", "server/revoked", "position"];
    let file = |site: &Site, name: &str| site.folder.0.join(name);
    site.key.stop();
    for name in files.into_iter().filter(|name| file(&site, name).exists()) {
        fs::copy(file(&site, name), file(&site, &format!("{name}.backup"))).expect("copied");
    }
    site.key.start_process();
    set(&site, "500000");
    eventually("both are told", || all_told(&site, 500_000));
    site.key.stop();
    let _ = fs::remove_file(file(&site, "server/accounts.db-shm")); // it may be gone
    for name in files {
        let _ = fs::remove_file(file(&site, name)); // as may be the log
        let backup = file(&site, &format!("{name}.backup"));
        if backup.exists() {
            fs::rename(backup, file(&site, name)).expect("restored");
        }
    }
    site.key.start_process();
    let problems = |router: &Router| router.status()["provider"]["problems"].to_string();
    let are_refused = |site: &Site| site.routers.iter().all(|router| problems(router).contains("was set back"));
    eventually("both have noticed", || are_refused(&site));
    let ahead = |site: &Site| {
        site.key.status()["routers"].as_array().is_some_and(|all| all.iter().all(|of| of["ahead"] == true))
    };
    eventually("and the key server has", || ahead(&site));
    let own_problems = |site: &Site| site.key.status()["problems"].to_string();
    let said = own_problems(&site);
    assert!(said.contains("the database was set back to an old copy, or is another one"), "{said}");
    assert!(said.contains("wayleave cap adopt"), "{said}");
    // It has as many changes as before and more, of another history.
    set(&site, "600000");
    set(&site, "700000");
    site.routers[0].kill();
    site.routers[0].start_process();
    eventually("both have noticed", || are_refused(&site));
    assert!(all_told(&site, 500_000), "it stays, also over a restart");

    site.key.stop();
    site.ok(&["cap", "adopt", "--config", "key.toml", "--reason", "the disk was lost"]);
    site.key.start_process();
    eventually("both are told", || all_told(&site, 700_000));
    eventually("all is well", || site.routers.iter().all(|router| problems(router) == "[]") && !ahead(&site));
    assert!(!own_problems(&site).contains("set back"), "{}", own_problems(&site));
}

/// Whether a router holds a principal to a rate.
pub(super) fn keeps_rate(router: &Router, principal: u64) -> bool {
    let status = router.status();
    let rooms = status["replay_filter"]["rooms"].as_array().cloned().unwrap_or_default();
    rooms.iter().any(|room| room["payer"]["principal"] == principal)
}
