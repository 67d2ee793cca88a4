//! A key server as a process: capabilities are granted, looked up, delegated and revoked by their holders, and routers' lists
//! follow.
//!
//! PLA-04, look-ups: a capability granted, looked up, delegated and revoked by who holds it, by commands.
//! PLA-06, look-ups: the server killed after the acknowledgement of a revocation; an old copy of its database: the
//! revocation is durable; an old copy does not start.
//! PLA-06, behind and set back: a server whose list is missing: it does not start.
//! PLA-07, slow and old: a resolver that drips its answer by TCP in front of an honest one: the next is asked.
//! PLA-07, by process: a resolver between `cap lookup` and a key server with answers of another epoch, poisoned,
//! truncated, misdirected, repeated, garbage or none, by UDP alone and by TCP too: the right secret, or none and the
//! reason.
//! PLA, key server's flood: a holder beside a source that floods: it is served by TCP.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hickory_proto::op::{Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::TXT;
use hickory_proto::rr::rdata::opt::EdnsOption;
use hickory_proto::rr::{Name, RData, Record, RecordType};
use serde_json::Value;
use wayleave_lab::netns::{NetworkNamespace, skipped};
use wayleave_lab::routers::{DIG, Installation, RouterPackage, UNBOUND, default_cache, locate_or_fetch_router};
use wayleave_runtime::clock::unix_now;

use crate::common::metrics::assert_named_by_the_rule;
use crate::common::screen::assert_one_screen;
use crate::common::{Folder, assert_known, eventually, free, text};
use crate::overlay::harness::Running;

const WAYPOINT: &str = "198.51.100.1";

/// A key server with one waypoint, and the program in its folder.
pub(super) struct Server {
    pub(super) folder: Folder,
    pub(super) running: Running,
    pub(super) listen: String,
    pub(super) config: String,
    pub(super) writer: String,
}

impl Server {
    pub(super) fn new(name: &str) -> Self {
        Self::with(name, &[])
    }

    /// With these options of `cap init`.
    pub(super) fn with(name: &str, more: &[&str]) -> Self {
        let folder = Folder::new(&format!("key-{name}"));
        let [listen, status] = [free(), free()];
        folder.ok(&["keys", "forwarding", "router.key", "--format", "platypus"]);
        let init = ["cap", "init", "server", "--zone", "keys.example.net", "--name-server", "ns1.example.net"];
        folder.ok(&[&init[..], &["--listen", &listen, "--status", &status], more].concat());
        let config = "server/key.toml".to_owned();
        let path = folder.0.join(&config);
        let waypoint = format!("[[key.waypoint]]\naddress = \"{WAYPOINT}\"\nkey = \"../router.key\"\n\n[status]");
        fs::write(&path, fs::read_to_string(&path).expect("there").replace("[status]", &waypoint)).expect("written");
        folder.ok(&["check", &config]);
        let running = Running::start("key", folder.0.join("server"), "key", &status);
        let writer = running.status("writer").as_str().expect("a key").to_owned();
        Self { folder, running, listen, config, writer }
    }

    /// Grants a capability, and writes its line into a file.
    pub(super) fn grant(&self, file: &str, more: &[&str]) -> PathBuf {
        let base = ["cap", "grant", "--waypoint", WAYPOINT, "--config", &self.config];
        let line = self.folder.ok(&[&base, more].concat());
        self.keep(file, &line)
    }

    fn keep(&self, file: &str, line: &str) -> PathBuf {
        assert!(line.starts_with("wayleave-cap-") && line.trim_end().lines().count() == 1, "{line}");
        self.folder.write(file, line);
        self.folder.0.join(file)
    }

    /// A command that asks the server.
    pub(super) fn ask(&self, command: &[&str]) -> Output {
        self.folder.run(&[command, &["--server", &self.listen]].concat())
    }

    pub(super) fn answered(&self, command: &[&str]) -> String {
        let output = self.ask(command);
        assert!(output.status.success(), "{command:?}: {}{}", text(&output.stderr), self.running.log());
        text(&output.stdout)
    }

    pub(super) fn refused(&self, command: &[&str], why: &str) {
        let output = self.ask(command);
        assert!(!output.status.success(), "{command:?}");
        let said = text(&output.stderr);
        assert!(said.contains(why), "{said}");
    }

    pub(super) fn answers(&self, what: &str) -> u64 {
        self.running.counted("answers", what)
    }

    /// The entries of the list that routers read.
    pub(super) fn list(&self) -> (u64, Vec<String>) {
        let list = self.folder.ok(&["cap", "revoked", "server/revoked", "--key", &self.writer, "--json"]);
        let list: Value = serde_json::from_str(&list).expect("JSON");
        let entries = list["entries"].as_array().expect("a list").iter();
        let entries = entries.map(|entry| entry.as_str().expect("a text").to_owned()).collect();
        (list["sequence"].as_u64().expect("a number"), entries)
    }
}

#[test]
fn a_capability_is_granted_looked_up_delegated_and_revoked_by_who_holds_it() {
    live(Server::new("life"));
}

/// From the grant of a capability to its revocation, with a kill between.
pub(super) fn live(mut server: Server) {
    server.grant("own.line", &["--principal", "7", "--name", "customer"]);
    eventually("the server follows the database", || server.running.count("grants") == 1);
    server.answered(&["cap", "lookup", "--line", "own.line", "--out", "own.cap"]);
    let shown = server.folder.ok(&["keys", "show", "own.cap"]);
    assert!(shown.contains("principal       7") && shown.contains(WAYPOINT), "{shown}");
    assert_eq!(server.answers("secrets"), 2, "this epoch's and the next");
    // The secret is the one that the waypoint's own key makes.
    let own = ["--key", "router.key", "--waypoint", WAYPOINT, "--principal", "7", "--epochs", "2"];
    server.folder.ok(&[&["cap", "mint", "minted.cap"], &own[..]].concat());
    let read = |file: &str| fs::read_to_string(server.folder.0.join(file)).expect("there");
    assert_eq!(read("own.cap"), read("minted.cap"));
    // A delegation, and one of it, by their holders alone.
    let delegation = ["--prefix", "203.0.0.0/8", "--id", "3"];
    let line = server.answered(&[&["cap", "delegate", "--line", "own.line"], &delegation[..]].concat());
    server.keep("branch.line", &line);
    let line =
        server.answered(&["cap", "delegate", "--line", "branch.line", "--prefix", "203.0.113.0/24", "--id", "9"]);
    server.keep("desk.line", &line);
    server.answered(&["cap", "lookup", "--line", "desk.line", "--out", "desk.cap"]);
    let shown = server.folder.ok(&["keys", "show", "desk.cap"]);
    assert!(shown.contains("203.0.113.0/24") && shown.contains("sub-delegation  9"), "{shown}");
    server.folder.ok(&[
        "cap",
        "narrow",
        "minted-branch.cap",
        "--of",
        "minted.cap",
        "--prefix",
        "203.0.0.0/8",
        "--id",
        "3",
    ]);
    let narrower = ["--of", "minted-branch.cap", "--prefix", "203.0.113.0/24", "--id", "9"];
    server.folder.ok(&[&["cap", "narrow", "minted-desk.cap"], &narrower[..]].concat());
    assert_eq!(read("desk.cap"), read("minted-desk.cap"));
    // Its principal says where the branch sends from; what is handed on from it sends from there too.
    let elsewhere = ["--sources", "192.0.2.0/24,198.18.0.0/24"];
    server.answered(&[&["cap", "delegate", "--line", "own.line"], &delegation[..], &elsewhere].concat());
    let desk = ["cap", "delegate", "--line", "branch.line", "--prefix", "203.0.113.0/24", "--id", "9"];
    server.refused(&[&desk[..], &elsewhere].concat(), "a sub-delegation has no sources of its own");
    let listed = server.folder.ok(&["cap", "list", "--config", &server.config]);
    assert!(listed.contains("sources of delegation 3: 192.0.2.0/24, 198.18.0.0/24"), "{listed}");
    server.answered(&["cap", "lookup", "--line", "desk.line", "--out", "bound.cap"]);
    assert_eq!(read("bound.cap").matches("bound = true").count(), 2, "{}", read("bound.cap"));
    // Revoked by its holder; the list has it before the acknowledgement, and a kill loses nothing.
    let (before, entries) = server.list();
    assert!(entries.is_empty());
    server.refused(&["cap", "revoke", "--line", "desk.line", "--delegation", "4"], "refuses");
    server.answered(&["cap", "revoke", "--line", "branch.line", "--delegation", "3"]);
    server.running.kill();
    let (after, entries) = server.list();
    assert_eq!(entries, ["7/3"]);
    assert!(after > before);
    // What the server has left, its list with source prefixes among it, is known as what it is.
    assert_known(&server.folder, &server.folder.0.join("server"));
    let shown = server.folder.ok(&["keys", "show", "server/revoked"]);
    assert!(shown.contains("list of revoked capabilities") && shown.contains("sources   2"), "{shown}");
    // As a kill in the middle of another list leaves it.
    ["revoked.new", "revoked.part"].iter().for_each(|file| server.folder.write(&format!("server/{file}"), "part"));
    server.running.resume();
    server.refused(&["cap", "lookup", "--line", "desk.line"], "revoked");
    server.answered(&["cap", "lookup", "--line", "own.line"]);
    let (again, entries) = server.list();
    assert_eq!(entries, ["7/3"]);
    assert!(again > after, "a list never has a lower number after a restart");
    // By datagram and by TCP: a resolver may repeat the denial of another time.
    assert_eq!(server.answers("revoked"), 2);
    // The provider takes it back.
    server.folder.ok(&["cap", "revoke", "7/3", "--lift", "--config", &server.config]);
    eventually("the list follows", || server.list().1.is_empty());
    server.answered(&["cap", "lookup", "--line", "desk.line"]);
    let listed = server.folder.ok(&["cap", "list", "--config", &server.config]);
    assert!(listed.contains("customer") && listed.contains("3/9"), "{listed}");
    let page: SocketAddr = server.running.page.parse().expect("an address");
    assert_named_by_the_rule("key", &NetworkNamespace::Own, page);
    assert_one_screen(&NetworkNamespace::Own, page);
}

/// Threat 0b, 2: what if state is old? The list that routers have was made of a later one.
#[test]
fn a_server_with_an_old_copy_of_its_database_does_not_start_also_where_nothing_is_remembered_of_it() {
    let mut server = Server::new("old");
    server.grant("own.line", &["--principal", "7"]);
    let (folder, backup) = (server.folder.0.join("server"), server.folder.0.join("backup"));
    server.running.kill();
    copy_database(&folder, &backup);
    server.running.resume();
    server.folder.ok(&["cap", "revoke", "7", "--config", &server.config]);
    // A revocation has no end; the time is that of what was granted.
    let listed = server.folder.ok(&["cap", "list", "--config", &server.config]);
    assert!(listed.contains(": revoked (was granted until 20") && listed.contains("Z), interval"), "{listed}");
    let grant = ["cap", "grant", "--waypoint", WAYPOINT, "--principal", "7", "--config", &server.config];
    let output = server.folder.run(&grant);
    let said = text(&output.stderr);
    assert!(output.status.success() && said.contains("this capability is revoked"), "{said}");
    eventually("the list follows", || server.list().1 == ["7"]);
    server.running.kill();
    copy_database(&backup, &folder);
    fs::remove_file(folder.join("position")).expect("there");
    let run = || server.folder.run(&["run", "key", "--config", &server.config]);
    let said = text(&run().stderr);
    assert!(said.contains("old copy"), "{said}");
    fs::remove_file(folder.join("accounts.db")).expect("removed");
    let said = text(&run().stderr);
    assert!(said.contains("restore it from a backup"), "{said}");
}

/// What earlier versions had in the configuration is named, with what is in its place.
#[test]
fn what_is_no_longer_in_the_configuration_is_named_with_what_to_do() {
    let server = Server::new("former");
    let config = fs::read_to_string(server.folder.0.join(&server.config)).expect("there");
    let identity = "node:ed25519:3b6a27bcceb6a42d62a3a8d02a6f0d73653215771de243a63ac048a18b59da29";
    for (more, said) in [
        (
            "[[key.rate]]\nprincipal = 7\nrate = 5\n",
            ["rates over all routers are in the database now", "cap rate PRINCIPAL"],
        ),
        (
            "[key.routers]\nlisten = \"127.0.0.1:1\"\nidentity = \"writer.key\"\nusage = \"usage\"\n",
            ["what routers report is in the database", "cap import-usage FILE"],
        ),
        (
            &format!("[[key.replica]]\nidentity = \"{identity}\"\n"),
            ["nobody copies records", "share a PostgreSQL database"],
        ),
    ] {
        server.folder.write("server/former.toml", &config.replace("[status]", &format!("{more}[status]")));
        let output = text_of(&server.folder.run(&["check", "server/former.toml"]));
        let output = output.split_whitespace().filter(|word| *word != "│").collect::<Vec<_>>().join(" ");
        for said in said {
            assert!(output.contains(said), "{more}: {output}");
        }
    }
}

/// Copies a SQLite database that nobody uses, with what a killed process left of it, between two folders.
pub(super) fn copy_database(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("made");
    for file in ["accounts.db", "accounts.db-wal", "accounts.db-shm"] {
        let _ = fs::remove_file(to.join(file));
        if from.join(file).exists() {
            fs::copy(from.join(file), to.join(file)).expect("copied");
        }
    }
}

/// The disk was lost, and the backup is of before a revocation and has no list.
#[test]
fn a_server_whose_list_is_missing_does_not_start_until_the_operator_begins_another() {
    let mut server = Server::new("no-list");
    server.grant("own.line", &["--principal", "7"]);
    eventually("the list follows", || server.running.count("number") == 1);
    server.running.kill();
    let list = server.folder.0.join("server/revoked");
    let begin = ["cap", "new-list", "--config", &server.config];
    assert!(text_of(&server.folder.run(&begin)).contains("the server goes on from it"));
    fs::remove_file(&list).expect("there");
    let output = server.folder.run(&["run", "key", "--config", &server.config]);
    let said = text_of(&output);
    assert!(!output.status.success() && said.contains("old copy") && said.contains("then begin a list with"), "{said}");
    assert!(!list.exists(), "nothing is written over what may be restored");
    server.folder.ok(&begin);
    server.running.resume();
    server.answered(&["cap", "lookup", "--line", "own.line"]);
    assert_eq!(server.list().0 >> 32, 1);
}

#[test]
fn strangers_garbage_and_lines_that_were_cut_get_nothing() {
    let server = Server::new("strangers");
    let line = server.grant("own.line", &["--principal", "7"]);
    let text = fs::read_to_string(line).expect("there");
    eventually("the server follows the database", || server.running.count("grants") == 1);
    server.folder.write("cut.line", &text[..text.len() - 8]);
    server.refused(&["cap", "lookup", "--line", "cut.line"], "cut or changed");
    // Another provider's principal 7.
    let other = Server::new("strangers-other");
    fs::copy(other.grant("foreign.line", &["--principal", "7"]), server.folder.0.join("foreign.line")).expect("copied");
    server.refused(&["cap", "lookup", "--line", "foreign.line"], "does not know the capability");
    server.refused(&["cap", "revoke", "--line", "foreign.line"], "not known whether");
    assert_eq!((server.answers("secrets"), server.answers("orders")), (0, 0));
    assert!(server.answers("unknown") > 0 && server.answers("orders_forged") > 0);
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    for length in 0..200usize {
        socket.send_to(&vec![0xff; length], &server.listen).expect("sent");
        socket.send_to(&vec![0; length], &server.listen).expect("sent");
        // In parts that the socket's buffer has room for.
        if length % 20 == 19 {
            eventually("all is counted", || server.answers("malformed") == 2 * (length as u64 + 1));
        }
    }
    server.answered(&["cap", "lookup", "--line", "own.line"]);
}

/// An installation of a program that speaks DNS; where it cannot be had the test says so.
pub(crate) fn fetched(what: &RouterPackage, test: &str) -> Option<Installation> {
    match locate_or_fetch_router(what, &default_cache(), &mut |_| ()) {
        Ok(found) => Some(found),
        Err(error) => {
            skipped(&format!("{test} with {}: {error}", what.name));
            None
        }
    }
}

fn program(of: &Installation, name: &str) -> Command {
    let mut command = Command::new(of.program(name));
    command.envs(of.library_path().map(|path| ("LD_LIBRARY_PATH", path)));
    command
}

#[test]
fn dig_reads_the_zone_by_udp_and_tcp() {
    let Some(dig) = fetched(&DIG, "the zone of a key server") else { return };
    let server = Server::new("dig");
    let port = server.listen.rsplit_once(':').expect("a port").1.to_owned();
    let ask = |more: &[&str]| {
        let base = ["@127.0.0.1", "-p", &port, "+noall", "+answer", "+comments", "keys.example.net"];
        let output = program(&dig, "dig").args(base).args(more).output().expect("it runs");
        text(&output.stdout)
    };
    assert!(ask(&["SOA"]).contains("hostmaster.keys.example.net"));
    assert!(ask(&["NS", "+notcp"]).contains("ns1.example.net"));
    let by_tcp = ask(&["TXT", "+tcp"]);
    assert!(by_tcp.contains("key server") && by_tcp.contains("COOKIE") && by_tcp.contains("aa"), "{by_tcp}");
}

/// A process that ends with the test.
pub(crate) struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts Unbound in a network namespace, at this address. It asks the server of one zone for names in it, and whom that delegates to; it
/// logs to `unbound.log` in the folder.
pub(crate) fn unbound_in(
    unbound: &Installation,
    folder: &Path,
    place: &NetworkNamespace,
    listen: &str,
    (zone, server): (&str, &str),
) -> Ends {
    let at = |address: &str| address.replace(':', "@");
    let configuration = format!(
        "server:\n  interface: {}\n  access-control: 0.0.0.0/0 allow\n  do-daemonize: no\n  chroot: \"\"\n  username: \"\"\n  \
         directory: \"{}\"\n  pidfile: \"\"\n  use-syslog: no\n  logfile: \"\"\n  do-not-query-localhost: no\n  \
         module-config: \"iterator\"\n  use-caps-for-id: yes\n  qname-minimisation: yes\n  do-ip6: no\n\
         remote-control:\n  control-enable: no\n\
         stub-zone:\n  name: \"{zone}\"\n  stub-addr: {}\n",
        at(listen),
        folder.display(),
        at(server)
    );
    fs::write(folder.join("unbound.conf"), configuration).expect("written");
    let log = fs::File::create(folder.join("unbound.log")).expect("a log");
    let mut command = place.command(unbound.program("unbound"));
    unbound.prepare(&mut command);
    command.args(["-d", "-c", "unbound.conf"]).current_dir(folder).stderr(log).stdout(Stdio::null());
    Ends(command.spawn().expect("it runs"))
}

/// The paper's own way: through a resolver that knows nothing of us, changes the case of letters, shortens names and caches.
#[test]
fn a_caching_resolver_carries_look_ups_and_orders_and_answers_the_second_from_its_cache() {
    let Some(unbound) = fetched(&UNBOUND, "look-ups through a resolver") else { return };
    let server = Server::new("unbound");
    let resolver = free();
    let zone = ("keys.example.net", server.listen.as_str());
    let _resolver = unbound_in(&unbound, &server.folder.0, &NetworkNamespace::Own, &resolver, zone);
    eventually("the resolver listens", || TcpStream::connect(&resolver).is_ok());
    server.grant("own.line", &["--principal", "7", "--interval", "16"]);
    server.grant("other.line", &["--principal", "8", "--interval", "16"]);
    eventually("the server follows the database", || server.running.count("grants") == 2);
    let through = |command: &[&str]| {
        let output = server.folder.run(&[command, &["--server", &resolver]].concat());
        let log = fs::read_to_string(server.folder.0.join("unbound.log")).unwrap_or_default();
        assert!(output.status.success(), "{command:?}: {}{log}", text(&output.stderr));
        text(&output.stdout)
    };
    through(&["cap", "lookup", "--line", "own.line", "--out", "own.cap"]);
    let given = server.answers("secrets");
    assert_eq!(given, 2, "this epoch's and the next");
    assert!(server.answers("truncated") >= 1, "the resolver does not pad, and asks by TCP");
    for _ in 0..3 {
        through(&["cap", "lookup", "--line", "own.line"]);
    }
    assert_eq!(server.answers("secrets"), given, "from the cache");
    // An order is never cached.
    let line = through(&["cap", "delegate", "--line", "own.line", "--prefix", "203.0.113.0/24", "--id", "3"]);
    server.keep("branch.line", &line);
    through(&["cap", "lookup", "--line", "branch.line"]);
    through(&["cap", "revoke", "--line", "own.line", "--delegation", "3"]);
    through(&["cap", "revoke", "--line", "own.line", "--delegation", "3"]);
    assert_eq!((server.list().1, server.answers("orders")), (vec!["7/3".to_owned()], 3));
    // Withdrawn: the revocation in all epochs stays, and says all that routers need.
    through(&["cap", "withdraw", "--line", "own.line", "3"]);
    through(&["cap", "withdraw", "--line", "own.line", "3"]);
    assert_eq!(server.list().1, ["7/3"]);
    assert_eq!(server.running.count("grants"), 2);
    let line =
        through(&["cap", "delegate", "--line", "own.line", "--prefix", "203.0.113.0/24", "--id", "4", "--days", "2"]);
    server.keep("branch.line", &line);
    through(&["cap", "lookup", "--line", "branch.line"]);
    through(&["cap", "lookup", "--line", "other.line"]);
    // Nor is what a holder asks of its own capability.
    for _ in 0..2 {
        let status = through(&["cap", "status", "--line", "own.line"]);
        assert!(status.contains("203.0.113.0/24"), "{status}");
    }
}

/// The status of a capability's own line, as its holder sees it.
fn status_of(server: &Server, line: &str) -> Value {
    serde_json::from_str(&server.answered(&["cap", "status", "--line", line, "--json"])).expect("JSON")
}

/// PLA-04, the holder's own view, by commands: it sees how its capability stands, and limits its delegations alone.
#[test]
fn a_holder_sees_how_its_capability_stands_and_limits_its_delegations() {
    let server = Server::new("status");
    server.grant("own.line", &["--principal", "7", "--days", "30"]);
    server.grant("other.line", &["--principal", "8"]);
    eventually("the server follows the database", || server.running.count("grants") == 2);
    let status = status_of(&server, "own.line");
    assert!(status["denied"].is_null() && status["octets_per_second"].is_null(), "{status}");
    assert!(status["packets"].is_null() && status["refused"].is_null(), "no router reports here: {status}");
    assert_eq!(status["delegations"].as_array().map(Vec::len), Some(0));
    // More than a page of them.
    for number in 1..=15 {
        let number = number.to_string();
        let line =
            server.answered(&["cap", "delegate", "--line", "own.line", "--prefix", "203.0.113.0/24", "--id", &number]);
        server.keep("branch.line", &line);
    }
    server.answered(&["cap", "limit", "--line", "own.line", "15", "1250000", "--burst", "65536"]);
    // Nobody is there: who was asked is named, and what to do.
    let away = server.folder.run(&["cap", "status", "--line", "own.line", "--server", &crate::common::free()]);
    let said = text(&away.stderr);
    assert!(said.contains("the servers that --server names gave no answer of the key server"), "{said}");
    assert!(said.contains("does the key server run"), "{said}");
    let delegations = status_of(&server, "own.line")["delegations"].clone();
    assert_eq!(delegations.as_array().map(Vec::len), Some(15));
    assert_eq!(
        (&delegations[14]["delegation"], &delegations[14]["octets_per_second"]),
        (&"15".into(), &1_250_000.into())
    );
    let own = status_of(&server, "branch.line");
    assert_eq!((&own["octets_per_second"], &own["burst_octets"]), (&1_250_000.into(), &65_536.into()));
    server.refused(&["cap", "limit", "--line", "branch.line", "15", "9000000"], "does not allow this");
    server.refused(&["cap", "limit", "--line", "other.line", "15", "9000000"], "does not allow this");
    server.refused(&["cap", "limit", "--line", "own.line", "15", "0"], "from 1 to");
    // The provider's own rate stands beside it, and is not the holder's to end.
    let config = &server.config;
    server.folder.ok(&["cap", "rate", "7", "1000000", "--delegation", "15", "--config", config]);
    eventually("the lower one counts", || status_of(&server, "branch.line")["octets_per_second"] == 1_000_000);
    server.answered(&["cap", "limit", "--line", "own.line", "15", "--end"]);
    assert_eq!(status_of(&server, "branch.line")["octets_per_second"], 1_000_000);
    let changes = server.folder.ok(&["cap", "changes", "--config", config]);
    assert!(changes.contains("limited by its holder to 1250000 octets a second"), "{changes}");
    // Revoked: the holder sees why it is given nothing.
    server.answered(&["cap", "revoke", "--line", "own.line", "--delegation", "15"]);
    let denied = status_of(&server, "branch.line")["denied"].clone();
    assert!(denied.as_str().is_some_and(|why| why.contains("revoked")), "{denied}");
    server.folder.ok(&["cap", "revoke", "8", "--config", config]);
    eventually("the server follows the database", || status_of(&server, "other.line")["denied"].is_string());
    // The API was configured after the start: who invites is told that nobody is let in.
    let path = server.folder.0.join(config);
    let text_of = fs::read_to_string(&path).expect("a configuration");
    let section = format!("[key.api]\nlisten = \"{}\"\n\n[status]", crate::common::free());
    fs::write(&path, text_of.replace("[status]", &section)).expect("written");
    let invited =
        ["cap", "invite", "--again", "--name", "late", "--principal", "9", "--waypoint", WAYPOINT, "--config", config];
    // It is not said where the server's page does not answer at once.
    eventually("it is said", || {
        let output = server.folder.run(&invited);
        assert!(output.status.success(), "{output:?}");
        text(&output.stderr).contains("this key server runs without its API")
    });
}

/// The paper's temporal traffic engineering: no keys at this time of day, for one of two principals.
#[test]
fn a_rule_for_this_hour_denies_keys_to_whom_it_names_until_a_reload_takes_it_back() {
    let server = Server::new("rule");
    server.grant("own.line", &["--principal", "7"]);
    server.grant("other.line", &["--principal", "8"]);
    eventually("the server follows the database", || server.running.count("grants") == 2);
    let path = server.folder.0.join(&server.config);
    let first = fs::read_to_string(&path).expect("there");
    let reload = |config: &str| {
        fs::write(&path, config).expect("written");
        server.folder.ok(&["check", &server.config]);
        let reloads = || server.running.log().matches("configuration reloaded").count();
        let before = reloads();
        server.running.signal("-HUP");
        eventually("the configuration is reloaded", || reloads() > before);
    };
    let hour = |ahead: u64| (unix_now().secs() / 3_600 + ahead) % 24;
    let rule = |from: u64, to: u64| {
        let hours = format!("{:02}:00-{:02}:00", hour(from), hour(to));
        format!(
            "[[key.rule]]\nname = \"busy\"\nallow = false\nhours = \"{hours}\"\nprincipals = [7]\nretry_secs = 540\n[status]"
        )
    };
    // This hour and the next one, which may begin meanwhile.
    reload(&first.replace("[status]", &rule(0, 2)));
    server.refused(
        &["cap", "lookup", "--line", "own.line"],
        "the provider's policy gives no key now; ask again in 540 s",
    );
    let denied = server.answers("not_now");
    assert!(denied > 0 && server.answers("secrets") == 0, "{denied}");
    server.answered(&["cap", "lookup", "--line", "other.line"]);
    assert_eq!(server.answers("not_now"), denied);
    // The same rule at another time of day.
    reload(&first.replace("[status]", &rule(4, 6)));
    server.answered(&["cap", "lookup", "--line", "own.line", "--out", "own.cap"]);
    reload(&first.replace("[status]", &rule(0, 2)));
    server.refused(&["cap", "lookup", "--line", "own.line"], "ask again in 540 s");
    assert!(server.answers("not_now") > denied);
    reload(&first);
    server.answered(&["cap", "lookup", "--line", "own.line"]);
}

/// How a question came to a resolver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Transport {
    Udp,
    Tcp,
}

/// Names and texts that a resolver keeps.
type Cache = Vec<(Name, Vec<u8>)>;

/// What a resolver does with a question: the key server's answer is at hand; what it returns is sent.
type Resolve = Box<dyn FnMut(Transport, &Message, &dyn Fn(&Message) -> Message) -> Vec<Vec<u8>> + Send>;

/// A resolver in front of a key server, of any honesty.
struct Resolver {
    address: String,
    resolve: Arc<Mutex<Resolve>>,
}

impl Resolver {
    fn new(server: &str) -> Self {
        let server: SocketAddr = server.parse().expect("an address");
        let udp = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let address = udp.local_addr().expect("bound");
        let tcp = TcpListener::bind(address).expect("the same port by TCP");
        let honest: Resolve = Box::new(|_, question, server| vec![encoded(&server(question))]);
        let resolve = Arc::new(Mutex::new(honest));
        let forward = move |question: &Message| by_tcp(server, question);
        let by_udp = Arc::clone(&resolve);
        std::thread::spawn(move || {
            let mut octets = [0; 4_096];
            while let Ok((length, from)) = udp.recv_from(&mut octets) {
                let question = Message::from_vec(&octets[..length]).expect("a question");
                let answers = by_udp.lock().expect("no panic")(Transport::Udp, &question, &forward);
                answers.iter().for_each(|answer| drop(udp.send_to(answer, from)));
            }
        });
        let over_tcp = Arc::clone(&resolve);
        std::thread::spawn(move || {
            for stream in tcp.incoming() {
                let mut stream = stream.expect("a connection");
                let Some(question) = read_message(&mut stream) else { continue };
                let question = Message::from_vec(&question).expect("a question");
                let answers = over_tcp.lock().expect("no panic")(Transport::Tcp, &question, &forward);
                // Without an answer the connection ends.
                answers.iter().for_each(|answer| write_message(&mut stream, answer));
            }
        });
        Self { address: address.to_string(), resolve }
    }

    /// From now on it does this.
    fn becomes(&self, resolve: Resolve) {
        *self.resolve.lock().expect("no panic") = resolve;
    }
}

fn encoded(message: &Message) -> Vec<u8> {
    message.to_vec().expect("encoded")
}

fn read_message(stream: &mut TcpStream) -> Option<Vec<u8>> {
    stream.set_read_timeout(Some(Duration::from_secs(30))).ok()?;
    let mut length = [0; 2];
    stream.read_exact(&mut length).ok()?;
    let mut octets = vec![0; usize::from(u16::from_be_bytes(length))];
    stream.read_exact(&mut octets).ok()?;
    Some(octets)
}

fn write_message(stream: &mut TcpStream, octets: &[u8]) {
    let _ = stream.write_all(&(octets.len() as u16).to_be_bytes()).and_then(|()| stream.write_all(octets));
}

/// The key server's answer.
fn by_tcp(server: SocketAddr, question: &Message) -> Message {
    let mut stream = TcpStream::connect(server).expect("the key server listens");
    write_message(&mut stream, &encoded(question));
    Message::from_vec(&read_message(&mut stream).expect("an answer")).expect("a message")
}

/// An answer to this question without records.
fn empty(question: &Message, code: ResponseCode) -> Message {
    let mut message = question.clone();
    message.metadata.message_type = MessageType::Response;
    message.metadata.response_code = code;
    message.edns = None;
    message
}

/// The name with every letter in the other case (0x20, as resolvers do against poisoning).
fn other_case(name: &Name) -> Name {
    let swap = |letter: char| {
        if letter.is_ascii_lowercase() { letter.to_ascii_uppercase() } else { letter.to_ascii_lowercase() }
    };
    Name::from_ascii(name.to_ascii().chars().map(swap).collect::<String>()).expect("a name")
}

/// PLA-07, by process: between `cap lookup` and the key server there is a resolver that does what it likes. The secret is the
/// right one or there is none, and the command says why.
#[test]
fn a_hostile_resolver_delays_a_look_up_or_makes_it_fail_and_never_replaces_a_secret() {
    let server = Server::new("hostile");
    let resolver = Resolver::new(&server.listen);
    server.grant("own.line", &["--principal", "7", "--interval", "16"]);
    eventually("the server follows the database", || server.running.count("grants") == 1);
    let look_up = |out: &str| {
        server.folder.run(&["cap", "lookup", "--line", "own.line", "--out", out, "--server", &resolver.address])
    };
    let read = |file: &str| fs::read_to_string(server.folder.0.join(file)).ok();
    let succeeds = |what: &str| {
        let output = look_up("own.cap");
        assert!(output.status.success(), "{what}: {}", text_of(&output));
        assert_eq!(read("own.cap"), read("right.cap"), "{what}");
        fs::remove_file(server.folder.0.join("own.cap")).expect("there");
        text_of(&output)
    };
    let fails = |what: &str, why: &str| {
        let output = look_up("own.cap");
        let said = text_of(&output);
        assert!(!output.status.success() && said.contains(why) && !said.contains("panic"), "{what}: {said}");
        assert_eq!(read("own.cap"), None, "{what}");
    };
    // What it is asked for honestly, it keeps.
    let cache: Arc<Mutex<Cache>> = Arc::default();
    let kept = Arc::clone(&cache);
    resolver.becomes(Box::new(move |_, question, server| {
        let answer = server(question);
        let RData::TXT(text) = &answer.answers[0].data else { panic!("a text") };
        kept.lock().expect("no panic").push((answer.answers[0].name.clone(), text.txt_data.concat()));
        vec![encoded(&answer)]
    }));
    assert!(look_up("right.cap").status.success());
    let cache = cache.lock().expect("no panic").clone();
    assert_eq!(cache.len(), 2, "this epoch's and the next");

    type Answer = fn(&Message, &dyn Fn(&Message) -> Message) -> Vec<Vec<u8>>;
    let record = |message: &mut Message, octets: &[u8]| {
        let name = message.queries[0].name().clone();
        message.add_answer(Record::from_rdata(name, 60, RData::TXT(TXT::from_bytes(vec![octets]))));
    };
    let poisoned = move |question: &Message, octets: &[u8]| {
        let mut message = empty(question, ResponseCode::NoError);
        record(&mut message, octets);
        vec![encoded(&message)]
    };
    // What no honest answer follows: by TCP it is asked for again; where TCP is hostile too, the command says what is wrong.
    let withheld: [(&str, Answer, &str); 7] = [
        ("silence", |_, _| vec![], "no server answered"),
        ("SERVFAIL", |question, _| vec![encoded(&empty(question, ResponseCode::ServFail))], "response code 2"),
        ("no such name", |question, _| vec![encoded(&empty(question, ResponseCode::NXDomain))], "does not know"),
        (
            "truncated",
            |question, _| {
                let mut message = empty(question, ResponseCode::NoError);
                message.metadata.truncation = true;
                vec![encoded(&message)]
            },
            "no server answered",
        ),
        ("garbage", |_, _| vec![vec![0xff; 60]], "no server answered"),
        (
            "another question",
            |question, server| {
                let mut message = server(question);
                message.queries = vec![Query::query(Name::from_ascii("a.example.").expect("a name"), RecordType::TXT)];
                vec![encoded(&message)]
            },
            "no server answered",
        ),
        (
            "an answer under another name",
            |question, server| {
                let mut message = server(question);
                message.answers[0].name = Name::from_ascii("a.keys.example.net.").expect("a name");
                vec![encoded(&message)]
            },
            "does not know",
        ),
    ];
    for (what, answer, why) in withheld {
        resolver.becomes(Box::new(move |transport, question, server| match transport {
            Transport::Udp => answer(question, server),
            Transport::Tcp => vec![encoded(&server(question))],
        }));
        succeeds(what);
        resolver.becomes(Box::new(move |_, question, server| answer(question, server)));
        fails(what, why);
    }
    for by_tcp_too in [false, true] {
        let check = |what: &str| match by_tcp_too {
            true => fails(what, "a resolver poisons or damages them"),
            false => assert!(succeeds(what).contains("poisoned or damaged"), "{what}"),
        };
        resolver.becomes(Box::new(move |transport, question, server| match transport {
            Transport::Tcp if !by_tcp_too => vec![encoded(&server(question))],
            _ => poisoned(question, &[7; 69]),
        }));
        check("poisoned");
        // An answer of another epoch, which is authentic, from its cache.
        let cache = cache.clone();
        resolver.becomes(Box::new(move |transport, question, server| match transport {
            Transport::Tcp if !by_tcp_too => vec![encoded(&server(question))],
            _ => {
                let other = cache.iter().find(|(name, _)| *name != *question.queries[0].name()).expect("of two");
                poisoned(question, &other.1)
            }
        }));
        check("an answer of another epoch");
    }

    // What an answer survives, in one round trip by UDP.
    let survived: [(&str, Answer); 5] = [
        ("letters of the other case", |question, server| {
            let mut mangled = question.clone();
            let name = other_case(question.queries[0].name());
            mangled.queries[0].set_name(name);
            vec![encoded(&server(&mangled))]
        }),
        ("no EDNS", |question, server| {
            let mut bare = question.clone();
            bare.edns = None;
            vec![encoded(&server(&bare))]
        }),
        ("three times", |question, server| vec![encoded(&server(question)); 3]),
        ("behind garbage, other identifiers and a query", |question, server| {
            let right = encoded(&server(question));
            let mut other = right.clone();
            other[1] ^= 1;
            vec![vec![], vec![0xff; 30], other, encoded(question), right]
        }),
        ("records of others beside it", |question, server| {
            let mut message = server(question);
            let name = message.queries[0].name().clone();
            let other = Record::from_rdata(name, 60, RData::TXT(TXT::from_bytes(vec![&[7; 69]])));
            message.answers.insert(0, other);
            vec![encoded(&message)]
        }),
    ];
    for (what, answer) in survived {
        resolver.becomes(Box::new(move |transport, question, server| match transport {
            Transport::Udp => answer(question, server),
            Transport::Tcp => vec![],
        }));
        succeeds(what);
    }
    for (ttl, is_reported) in [(0, false), (u32::MAX >> 1, true)] {
        resolver.becomes(Box::new(move |_, question, server| {
            let mut message = server(question);
            message.answers[0].ttl = ttl;
            vec![encoded(&message)]
        }));
        assert_eq!(succeeds("a TTL that was changed").contains("TTL was changed"), is_reported, "{ttl}");
    }
}

/// A resolver that sends its answer by TCP an octet at a time, each sooner than a read gives up. Counts the connections, and those that
/// were open until it had sent an answer of a minute.
fn dripping() -> (String, Arc<[AtomicUsize; 2]>) {
    let udp = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let address = udp.local_addr().expect("bound");
    let tcp = TcpListener::bind(address).expect("the same port by TCP");
    let counts = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let counted = Arc::clone(&counts);
    std::thread::spawn(move || {
        let mut octets = [0; 4_096];
        while let Ok((length, from)) = udp.recv_from(&mut octets) {
            let question = Message::from_vec(&octets[..length]).expect("a question");
            let mut answer = empty(&question, ResponseCode::NoError);
            answer.metadata.truncation = true;
            let _ = udp.send_to(&encoded(&answer), from);
        }
    });
    std::thread::spawn(move || {
        for stream in tcp.incoming() {
            let (mut stream, counted) = (stream.expect("a connection"), Arc::clone(&counted));
            counted[0].fetch_add(1, Ordering::Relaxed);
            std::thread::spawn(move || {
                let mut drip = |octets: &[u8]| stream.write_all(octets).is_ok();
                let is_open = drip(&[0xff, 0xff])
                    && (0..600).all(|_| {
                        std::thread::sleep(Duration::from_millis(100));
                        drip(&[7])
                    });
                counted[1].fetch_add(usize::from(is_open), Ordering::Relaxed);
            });
        }
    });
    (address.to_string(), counts)
}

#[test]
fn a_resolver_that_drips_its_answer_does_not_keep_the_next_from_being_asked() {
    let server = Server::new("drip");
    server.grant("own.line", &["--principal", "7", "--interval", "16"]);
    eventually("the server follows the database", || server.running.count("grants") == 1);
    let (first, counts) = dripping();
    let through = |command: &[&str]| {
        let output = server.folder.run(&[command, &["--server", &first, "--server", &server.listen]].concat());
        assert!(output.status.success(), "{command:?}: {}", text_of(&output));
    };
    through(&["cap", "lookup", "--line", "own.line"]);
    // Nor does it keep a holder from revoking.
    through(&["cap", "revoke", "--line", "own.line"]);
    let [begun, endured] = [0, 1].map(|of| counts[of].load(Ordering::Relaxed));
    assert!(begun >= 2 && endured == 0, "{begun} connections, {endured} of them to the end");
}

/// What is stray does not end the wait for an acknowledgement, as it does not that for a secret.
#[test]
fn orders_are_acknowledged_behind_stray_datagrams() {
    let server = Server::new("stray");
    let resolver = Resolver::new(&server.listen);
    server.grant("own.line", &["--principal", "7"]);
    eventually("the server follows the database", || server.running.count("grants") == 1);
    resolver.becomes(Box::new(|transport, question, server| {
        let right = encoded(&server(question));
        let mut other = right.clone();
        other[1] ^= 1;
        match transport {
            Transport::Udp => vec![vec![], vec![0xff; 30], other, encoded(question), right],
            Transport::Tcp => vec![],
        }
    }));
    let through = |command: &[&str]| server.folder.ok(&[command, &["--server", &resolver.address]].concat());
    let line = through(&["cap", "delegate", "--line", "own.line", "--prefix", "203.0.113.0/24", "--id", "3"]);
    server.keep("branch.line", &line);
    through(&["cap", "revoke", "--line", "own.line", "--delegation", "3"]);
    assert_eq!((server.list().1, server.answers("orders")), (vec!["7/3".to_owned()], 2));
    // Nothing but what is stray: the order may have been carried out, and the command says that this is not known.
    resolver.becomes(Box::new(|_, question, _| vec![vec![0xff; 30], encoded(question)]));
    let revoke = ["cap", "revoke", "--line", "own.line", "--delegation", "4", "--server", &resolver.address];
    let said = text(&server.folder.run(&revoke).stderr);
    assert!(said.contains("not known whether"), "{said}");
}

/// What a source may have by UDP: over the limit it is told to come by TCP, or nothing; a cookie of its own lifts the limit.
#[test]
fn a_flood_of_one_source_is_truncated_and_dropped_and_the_holder_beside_it_is_served_by_tcp() {
    let mut server = Server::new("flood");
    server.grant("own.line", &["--principal", "7"]);
    server.running.kill();
    let path = server.folder.0.join(&server.config);
    let first = fs::read_to_string(&path).expect("there");
    let limited = |limit: &str| first.replace("[key]\n", &format!("[key]\nresponses_per_second = {limit}\n"));
    fs::write(&path, limited("1_000_001")).expect("written");
    let checked = server.folder.run(&["check", &server.config]);
    assert!(!checked.status.success() && text_of(&checked).contains("1000000"), "{}", text_of(&checked));
    fs::write(&path, limited("1")).expect("written");
    server.folder.ok(&["check", &server.config]);
    server.running.resume();
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    socket.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
    let mut question = Message::new(1, MessageType::Query, OpCode::Query);
    question.add_query(Query::query(Name::from_ascii("keys.example.net.").expect("a name"), RecordType::TXT));
    let mut edns = hickory_proto::op::Edns::new();
    edns.options_mut().insert(EdnsOption::Unknown(10, vec![5; 8]));
    edns.options_mut().insert(EdnsOption::Unknown(12, vec![0; 200]));
    question.set_edns(edns);
    (0..100).for_each(|_| assert!(socket.send_to(&encoded(&question), &server.listen).is_ok()));
    eventually("all are counted", || {
        let of = |what| server.answers(what);
        of("static_records") + of("rate_slipped") + of("rate_dropped") == 100
    });
    let (slipped, dropped) = (server.answers("rate_slipped"), server.answers("rate_dropped"));
    // Every second one, of those between two that were answered.
    assert!(slipped >= 30 && dropped >= slipped && server.answers("static_records") >= 2, "{slipped} {dropped}");
    let mut octets = [0; 2_048];
    let mut cookie = None;
    for _ in 0..100 - dropped {
        let length = socket.recv(&mut octets).expect("an answer");
        let answer = Message::from_vec(&octets[..length]).expect("a message");
        assert!(answer.metadata.truncation == answer.answers.is_empty());
        cookie = answer.edns.and_then(|edns| edns.option(10.into()).cloned()).or(cookie);
    }
    // A holder of the same prefix has its secrets, and who shows its cookie has answers by UDP.
    server.answered(&["cap", "lookup", "--line", "own.line"]);
    assert_eq!(server.answers("secrets"), 2);
    if let Some(edns) = &mut question.edns {
        edns.options_mut().remove(10.into());
        edns.options_mut().insert(cookie.expect("a cookie"));
    }
    for _ in 0..20 {
        socket.send_to(&encoded(&question), &server.listen).expect("sent");
        let length = socket.recv(&mut octets).expect("an answer");
        assert_eq!(Message::from_vec(&octets[..length]).expect("a message").answers.len(), 1);
    }
    let page: SocketAddr = server.running.page.parse().expect("an address");
    assert_named_by_the_rule("key", &NetworkNamespace::Own, page);
    assert_one_screen(&NetworkNamespace::Own, page);
}

fn text_of(output: &Output) -> String {
    text(&output.stderr) + &text(&output.stdout)
}
