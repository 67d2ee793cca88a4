//! Routers with two key servers on one PostgreSQL database, all as processes: either may be killed, and the database too.
//!
//! PLA, several key servers by process: the lessor killed while packets are sent: another leases within seconds, routers never let pass more than
//! the rate and their bursts, and keep most of it meanwhile; what is sent is billed once, by whichever server; a revocation at either is in
//! force at all routers; with the database gone nobody leases, and all goes on when it is back.
//! PLA-06, set back: the database of two key servers is put back to an old copy while packets are sent: both refuse it, and go on with all
//! routers once it is adopted; what is sent is billed once.
//! PLA, usage and a full disk: PostgreSQL's disk is full while routers report: packets pass, usage waits, and is billed once afterwards.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use wayleave_lab::netns::{self, NetworkNamespace};
use wayleave_lab::postgres::Postgres;

use super::billed::{Sender, Site, keeps_rate, octets};
use super::common::{Folder, Router, eventually, free};
use super::platypus::WAYPOINTS;

/// Octets a second through both routers; about a third of what is sent.
const RATE: u64 = 40_000;
const BURST: u64 = 65_535;

/// Which of the two servers a router says of itself to do this.
fn does(router: &Router, what: &str) -> Vec<bool> {
    let status = router.status();
    let servers = status["provider"]["servers"].as_array().cloned().unwrap_or_default();
    servers.iter().map(|server| server[what] == true).collect()
}

/// The number of the key server that leases, if routers and servers agree on it.
fn lessor(site: &Site, second: &Router) -> Option<usize> {
    let own: Vec<bool> = [&site.key, second].map(|server| server.status()["lessor"]["own"] == true).into();
    let agree = site.routers.iter().all(|router| does(router, "leases") == own);
    (agree && own.iter().filter(|own| **own).count() == 1).then(|| own.iter().position(|own| *own)).flatten()
}

/// Two routers, and two key servers with one database; both are connected to both. `init`: which database.
fn two_servers(init: &[&str]) -> (Site, Router) {
    let address = free();
    let servers = |folder: &Folder, first: &str| {
        let made = folder.run(&["keys", "node", "second.identity", "--kind", "identity", "--json"]);
        let made: Value = serde_json::from_slice(&made.stdout).expect("JSON");
        let identity = made["public"].as_str().expect("a key");
        format!("servers = [{first}, {{ identity = \"{identity}\", address = \"{address}\" }}]")
    };
    let site = Site::with(init, "", servers, |which, writer| {
        format!("revocations = {{ file = \"{which}.revoked\", key = {writer}, required = false }}\n")
    });
    // The other one: keys and database are the same, and so are the routers.
    let config = fs::read_to_string(site.folder.0.join("key.toml")).expect("there");
    let config = &config[..config.find("[status]").expect("a section")];
    let value = |key: &str, section: &str| {
        let from = &config[config.find(&format!("\n{section}\n")).expect("a section")..];
        from.lines()
            .find_map(|line| line.strip_prefix(&format!("{key} = ")))
            .expect("a key")
            .trim_matches('"')
            .to_owned()
    };
    let config = config
        .replace(&value("listen", "[key.routers]"), &address)
        .replace(&value("listen", "[key.api]"), &free())
        .replace(&value("listen", "[key]"), &free())
        .replace("\"server.identity\"", "\"second.identity\"")
        .replace("\"server/revoked\"", "\"server/revoked-2\"")
        .replacen("[key]\n", "[key]\nposition = \"position-2\"\n", 1);
    site.folder.write("second.toml", &config);
    site.ok(&["cap", "new-list", "--config", "second.toml"]);
    let second = Router::start_role("key", &site.folder, "second", NetworkNamespace::Own, &config);
    let (rate, burst) = (RATE.to_string(), BURST.to_string());
    site.ok(&["cap", "grant", "--principal", "7", "--waypoint", &WAYPOINTS[0].to_string(), "--config", "key.toml"]);
    site.ok(&["cap", "rate", "7", &rate, "--burst", &burst, "--config", "key.toml"]);
    eventually("both routers are connected to both servers", || {
        site.routers.iter().all(|router| does(router, "connected") == [true, true])
    });
    eventually("each reports to one of them", || {
        site.routers.iter().all(|router| does(router, "takes_usage").iter().filter(|takes| **takes).count() == 1)
    });
    eventually("both keep the rate", || site.routers.iter().all(|router| keeps_rate(router, 7)));
    eventually("one leases, and all say so", || lessor(&site, &second).is_some());
    (site, second)
}

/// On one machine a lock says who leases, and the row does not change: the other one waits for as long as that process lives.
#[test]
fn of_two_key_servers_on_one_file_one_leases_until_it_is_killed() {
    let name = "router::servers::of_two_key_servers_on_one_file_one_leases_until_it_is_killed";
    if netns::enter_for_test(name).is_none() {
        return;
    }
    let (mut site, mut second) = two_servers(&[]);
    let epoch = |server: &Router| server.status()["lessor"]["epoch"].as_u64();
    let first = lessor(&site, &second).expect("it was just now");
    let before = epoch(&site.key);
    assert_eq!(before, epoch(&second));
    // Longer than a row of PostgreSQL may stand as it is.
    std::thread::sleep(Duration::from_secs(12));
    assert_eq!((lessor(&site, &second), epoch(&site.key), epoch(&second)), (Some(first), before, before));
    let server = if first == 0 { &mut site.key } else { &mut second };
    server.kill();
    let killed = Instant::now();
    let other = 1 - first;
    eventually("the other leases", || {
        let own = [&site.key, &second][other].status()["lessor"]["own"] == true;
        own && site.routers.iter().all(|router| does(router, "leases")[other])
    });
    println!("after a kill the other leases within {:?}", killed.elapsed());
    assert!(epoch([&site.key, &second][other]) > before);
    let server = if first == 0 { &mut site.key } else { &mut second };
    server.start_process();
    eventually("it is back", || site.routers.iter().all(|router| does(router, "connected") == [true, true]));
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(lessor(&site, &second), Some(other));
}

#[test]
fn of_two_key_servers_either_may_be_killed_and_the_database_too() {
    let name = "router::servers::of_two_key_servers_either_may_be_killed_and_the_database_too";
    if netns::enter_for_test(name).is_none() {
        return;
    }
    let Some(mut postgres) = Postgres::start_for_test() else { return };
    let (mut site, mut second) = two_servers(&["--database", &postgres.url()]);
    let first = lessor(&site, &second).expect("it was just now");
    let sender = Sender::start(0);
    let begin = Instant::now();
    let sent = |sender: &Sender| -> u64 {
        let arrived = sender.arrived();
        (0..2).map(|router| arrived[router] * octets(0, router) as u64).sum()
    };
    let within = |sender: &Sender| {
        let most = RATE * (begin.elapsed().as_micros() as u64 + 50_000) / 1_000_000 + 2 * BURST;
        assert!(sent(sender) <= most, "{} of {most}", sent(sender));
    };
    // Bursts are used up, and shares follow demand.
    let measure = |sender: &Sender, time: Duration| {
        let (before, begin) = (sent(sender), Instant::now());
        std::thread::sleep(time);
        (sent(sender) - before) * 1_000_000 / begin.elapsed().as_micros() as u64
    };
    eventually("bursts are used up", || {
        let rate = measure(&sender, Duration::from_secs(2));
        (RATE * 95 / 100..RATE * 105 / 100).contains(&rate)
    });
    // One after the other is killed while it leases.
    for round in 0..2 {
        let which = (first + round) % 2;
        let server = if which == 0 { &mut site.key } else { &mut second };
        server.kill();
        let meanwhile = measure(&sender, Duration::from_secs(3));
        assert!(meanwhile > RATE * 9 / 10, "{meanwhile} octets a second without a lessor");
        within(&sender);
        let other = 1 - which;
        eventually("the other leases", || {
            let own = [&site.key, &second][other].status()["lessor"]["own"] == true;
            own && site.routers.iter().all(|router| does(router, "leases")[other])
        });
        within(&sender);
        let server = if which == 0 { &mut site.key } else { &mut second };
        server.start_process();
        eventually("it is back", || site.routers.iter().all(|router| does(router, "connected") == [true, true]));
        assert_eq!(lessor(&site, &second), Some(other), "who leases goes on");
    }
    // The database is gone for longer than a term.
    postgres.kill().expect("killed");
    eventually("nobody leases", || [&site.key, &second].iter().all(|server| server.status()["lessor"]["own"] == false));
    let problems = site.key.status()["problems"].to_string();
    assert!(problems.contains("who leases rates is not known"), "{problems}");
    let meanwhile = measure(&sender, Duration::from_secs(2));
    assert!(meanwhile > RATE * 9 / 10, "{meanwhile} octets a second without a database");
    postgres.restart().expect("it replays its log");
    eventually("one leases again", || lessor(&site, &second).is_some());
    within(&sender);
    // One that is stopped in order leaves at once.
    let which = lessor(&site, &second).expect("it was just now");
    let server = if which == 0 { &mut site.key } else { &mut second };
    server.stop();
    let stopped = Instant::now();
    let other = 1 - which;
    eventually("the other leases", || [&site.key, &second][other].status()["lessor"]["own"] == true);
    println!("after a stop the other leases within {:?}", stopped.elapsed());
    let server = if which == 0 { &mut site.key } else { &mut second };
    server.start_process();
    eventually("it is back", || site.routers.iter().all(|router| does(router, "connected") == [true, true]));
    // A revocation at either is in force at both routers.
    let lists = |server: &Router| server.status()["list"].as_u64();
    for config in ["key.toml", "second.toml"] {
        let number = site.key.status()["number"].as_u64().expect("a number");
        site.ok(&["cap", "revoke", &(100 + number).to_string(), "--config", config]);
        eventually("both routers have the list of the change", || {
            site.routers.iter().all(|router| {
                router.status()["revocations"]["sequence"].as_u64().is_some_and(|list| list >> 32 > number)
            })
        });
        eventually("both servers too", || {
            [&site.key, &second].iter().all(|of| lists(of).is_some_and(|list| list >> 32 > number))
        });
    }
    let (_, arrived) = sender.stop();
    eventually("all that arrived is billed, once", || site.billed() == arrived);
    for server in [&site.key, &second] {
        let log = server.log();
        for wrong in ["set back", "older than those", "goes by another rate", "heard of another lessor"] {
            assert!(!log.contains(wrong), "{wrong}: {log}");
        }
    }
}

fn data_of(postgres: &Postgres) -> PathBuf {
    let url = postgres.url();
    Path::new(url.split_once("?host=").expect("a folder").1).join("data")
}

fn shell(command: &str) {
    let done = Command::new("sh").args(["-ec", command]).status().expect("sh runs");
    assert!(done.success(), "{command}");
}

#[test]
fn two_key_servers_go_on_with_their_routers_once_a_database_that_was_set_back_is_adopted() {
    let name = "router::servers::two_key_servers_go_on_with_their_routers_once_a_database_that_was_set_back_is_adopted";
    if netns::enter_for_test(name).is_none() {
        return;
    }
    let Some(mut postgres) = Postgres::start_for_test() else { return };
    let (site, second) = two_servers(&["--database", &postgres.url()]);
    let set = |rate: u64| drop(site.ok(&["cap", "rate", "7", &rate.to_string(), "--config", "key.toml"]));
    let told = |rate: u64| {
        let of = |router: &Router| router.status()["provider"]["rates"][0]["rate"].as_u64();
        site.routers.iter().all(|router| of(router) == Some(rate))
    };
    let are_up = |is_up: bool| [&site.key, &second].iter().all(|server| server.status()["database"]["up"] == is_up);
    let sender = Sender::start(0);
    eventually("usage is billed", || site.billed().iter().all(|billed| *billed > 0));
    let data = data_of(&postgres);
    let (at, backup) = (data.display(), data.with_file_name("backup"));
    let backup = backup.display();
    postgres.stop().expect("stopped");
    shell(&format!("cp -a {at} {backup}"));
    postgres.restart().expect("started");
    eventually("both servers have it", || are_up(true));
    set(2 * RATE);
    eventually("both routers are told", || told(2 * RATE));
    postgres.stop().expect("stopped");
    shell(&format!("rm -r {at}; mv {backup} {at}"));
    postgres.restart().expect("started");
    eventually("neither server believes it", || are_up(false));
    let count = sender.arrived();
    eventually("packets pass", || sender.arrived().iter().zip(count).all(|(now, before)| *now > before + 50));
    assert!(told(2 * RATE), "what was told stays");

    // Of the two servers one has it adopted: both go on, in the same process.
    let adopted = site.ok(&["cap", "adopt", "--config", "key.toml", "--reason", "the disk was lost"]);
    assert!(adopted.contains("timeline  1"), "{adopted}");
    eventually("both servers believe it", || are_up(true));
    set(3 * RATE);
    eventually("both routers are told", || told(3 * RATE));
    eventually("one leases, and all say so", || lessor(&site, &second).is_some());
    eventually("each router has a server that takes usage, and nothing is set back any more", || {
        site.routers.iter().all(|router| {
            let takes = does(router, "takes_usage").iter().filter(|takes| **takes).count();
            takes == 1 && !router.status()["provider"]["problems"].to_string().contains("set back")
        })
    });
    let (_, arrived) = sender.stop();
    eventually("all that arrived is billed, once", || site.billed() == arrived);
}

/// The data of a server on a disk of its own, with a little room. The mount is that of this test's own namespace, and ends with it.
struct SmallDisk {
    data: PathBuf,
}

impl SmallDisk {
    fn new(postgres: &mut Postgres) -> Self {
        let data = data_of(postgres);
        postgres.stop().expect("stopped");
        let (at, disk) = (data.display(), data.with_file_name("disk"));
        let disk = disk.display();
        shell(&format!(
            "size=$(du -sm {at} | cut -f 1); mkdir {disk}; mount -t tmpfs -o size=$((size + 6))m tmpfs {disk}; \
             cp -a {at}/. {disk}/; mount --bind {disk} {at}"
        ));
        postgres.restart().expect("started");
        Self { data }
    }

    fn fill(&self) {
        let mut file = fs::File::create(self.data.join("fill")).expect("made");
        let block = [7; 4_096];
        while file.write_all(&block).is_ok() {}
    }

    fn free(&self) {
        fs::remove_file(self.data.join("fill")).expect("removed");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let disk = self.data.with_file_name("disk");
        let _ = Command::new("umount").arg("-l").args([&self.data, &disk]).status();
    }
}

#[test]
fn a_full_disk_of_the_database_loses_no_usage_and_stops_no_packet() {
    let name = "router::servers::a_full_disk_of_the_database_loses_no_usage_and_stops_no_packet";
    if netns::enter_for_test(name).is_none() {
        return;
    }
    let Some(mut postgres) = Postgres::start_for_test() else { return };
    let disk = SmallDisk::new(&mut postgres);
    let init = ["--database", &postgres.url()];
    let site = Site::with(&init, "", |_, server| format!("server = {server}"), |_, _| String::new());
    let sender = Sender::start(0);
    eventually("usage is billed", || site.billed().iter().all(|billed| *billed > 0));
    disk.fill();
    // Something may still fit into what the database has.
    let mut number = 100_u32;
    loop {
        let output = site.folder.run(&["cap", "revoke", &number.to_string(), "--config", "key.toml"]);
        if !output.status.success() {
            break;
        }
        number += 1;
        assert!(number < 2_000, "the disk is full");
    }
    // Totals are written over those of before, and its log has some files ahead: until these are used up.
    eventually("usage waits", || {
        let _ = postgres.administer("SELECT pg_switch_wal()"); // fails in the end
        site.routers.iter().all(|router| router.status()["provider"]["waiting"].as_u64() > Some(0))
            && !site.key.status()["problems"].as_array().expect("problems").is_empty()
    });
    let before = sender.arrived();
    eventually("packets pass", || sender.arrived().iter().zip(before).all(|(now, before)| *now > before + 200));
    disk.free();
    postgres.restart().expect("it replays its log");
    eventually("changes are made again", || {
        site.folder.run(&["cap", "revoke", &number.to_string(), "--config", "key.toml"]).status.success()
    });
    let (_, arrived) = sender.stop();
    eventually("all that arrived is billed, once", || site.billed() == arrived);
    let all = u64::from(number) - 100 + 1;
    eventually("the server has all revocations", || site.key.status()["revocations"].as_u64() == Some(all));
    eventually("nothing is wrong any more", || {
        let problems = site.key.status()["problems"].as_array().expect("problems").clone();
        !problems.iter().any(|problem| problem.as_str().is_some_and(|problem| problem.contains("cannot be written")))
    });
    postgres.stop().expect("stopped");
}
