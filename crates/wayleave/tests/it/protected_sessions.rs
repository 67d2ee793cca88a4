//! Real BIRD and FRR (and GoBGP and OpenBGPD as a member's) whose sessions have passwords (TCP MD5) and TTL security (GTSM), with a proxy between them that has the same.
//!
//! BGP-15: a proxy between BIRD and FRR, which listens or connects, with their protection, with another and with none:
//! a session where both ends agree; no secret in log or status.

use std::fs;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use wayleave_core::{Asn, Prefix};
use wayleave_lab::bird::Bird;
use wayleave_lab::demo::http;
use wayleave_lab::demo::layout::Software;
use wayleave_lab::frr::Frr;
use wayleave_lab::gobgp::Gobgp;
use wayleave_lab::netns::{Network, NetworkNamespace, Rung, enter_for_test, inside, skipped};
use wayleave_lab::openbgpd::OpenBgpd;
use wayleave_lab::process::wait_until;
use wayleave_lab::role_process::RoleProcess;
use wayleave_lab::router_config::RouterConfig;
use wayleave_lab::routers::{GOBGP, OPENBGPD, Routers, default_cache, locate_or_fetch};
use wayleave_lab::table::{Announcement, Router};

const TIMEOUT: Duration = Duration::from_secs(60);
/// The routers' addresses, and those that the proxy has for each.
const LEFT: Ipv4Addr = lan(1);
const RIGHT: Ipv4Addr = lan(2);
const FOR_LEFT: Ipv4Addr = lan(11);
const FOR_RIGHT: Ipv4Addr = lan(12);
const STATUS: &str = "127.0.0.1:8485";
const LEFT_PASSWORD: &str = "left-Side7";
const RIGHT_PASSWORD: &str = "right+Side8";
const LEFT_AS: u32 = 64_501;
const RIGHT_AS: u32 = 64_502;

const fn lan(host: u8) -> Ipv4Addr {
    Ipv4Addr::new(192, 0, 2, host)
}

/// A LAN with two routers' namespaces and the proxy's.
struct Lan {
    network: Network,
    routers: Routers,
    left: NetworkNamespace,
    proxy: NetworkNamespace,
    right: NetworkNamespace,
}

impl Lan {
    /// `None` outside the namespaces, or where there are none.
    fn new(test: &str) -> Option<Self> {
        let mut routers = match locate_or_fetch(&default_cache(), &mut |line| eprintln!("{line}")) {
            Ok(routers) => routers,
            Err(error) => {
                skipped(&error.to_string());
                return None;
            }
        };
        // Without these their part is left out.
        for package in [&GOBGP, &OPENBGPD] {
            let _ = routers.add(package, &default_cache(), &mut |line| eprintln!("{line}"));
        }
        enter_for_test(&format!("protected_sessions::{test}"))?;
        let network = Network::new().expect("a network");
        let attach = |name: &str, hosts: &[Ipv4Addr]| {
            let addresses: Vec<String> = hosts.iter().map(|host| format!("{host}/24")).collect();
            network.attach(name, &addresses).expect("attached")
        };
        let (left, right) = (attach("left", &[LEFT]), attach("right", &[RIGHT]));
        let proxy = attach("proxy", &[FOR_LEFT, FOR_RIGHT]);
        Some(Self { network, routers, left, proxy, right })
    }

    fn router(&self, software: Software, at: &NetworkNamespace, config: RouterConfig) -> Box<dyn Router> {
        let state = self.network.state();
        let installation = self.routers.of(software.package()).expect("it is there");
        match software {
            Software::Bird => Box::new(Bird::with_config(installation, at.clone(), config, state)),
            Software::Frr => Box::new(Frr::with_config(installation, at.clone(), config, state)),
            Software::Gobgp => Box::new(Gobgp::with_config(installation, at.clone(), config, state)),
            Software::OpenBgpd => Box::new(OpenBgpd::with_config(installation, at.clone(), config, state)),
        }
    }

    fn write(&self, name: &str, text: &str) {
        let file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(self.path(name));
        file.and_then(|mut file| file.write_all(text.as_bytes())).expect("written");
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.network.state().join(name)
    }

    /// Starts `wayleave run ROLE` with this configuration.
    fn run(&self, role: &str, config: &str) -> RoleProcess {
        self.write("proxy.toml", config);
        self.write("left.password", &format!("{LEFT_PASSWORD}\n"));
        self.write("right.password", RIGHT_PASSWORD);
        let binary = Path::new(env!("CARGO_BIN_EXE_wayleave"));
        let (config, log) = (self.path("proxy.toml"), self.path("proxy.log"));
        let mut process = RoleProcess::new("proxy".to_owned(), &self.proxy, binary, role, config, log);
        process.start().expect("started");
        wait_until(TIMEOUT, || self.ask("/api/v1/status").ok()).unwrap_or_else(|| panic!("{}", self.log()));
        process
    }

    fn ask(&self, page: &str) -> Result<Value, String> {
        http::get_json(&self.proxy, STATUS.parse().expect("an address"), page).map_err(|error| error.to_string())
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("proxy.log")).unwrap_or_default()
    }
}

/// A counter of the kernel's TCP in a namespace, as `nstat -az TcpExtNAME` shows it.
fn dropped(place: &NetworkNamespace, name: &str) -> u64 {
    let table = place.within(|| fs::read_to_string("/proc/thread-self/net/netstat")).expect("the namespace");
    let table = table.expect("the kernel's counters");
    let mut lines = table.lines().filter_map(|line| line.strip_prefix("TcpExt: "));
    let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
    let found = names.split(' ').zip(values.split(' ')).find(|(of, _)| *of == name).expect("a counter of the kernel");
    found.1.parse().expect("a number")
}

/// Waits until the kernel of `place` has dropped three more segments for this reason.
fn drops(place: &NetworkNamespace, name: &str, before: u64, log: impl Fn() -> String) {
    let found = wait_until(TIMEOUT, || (dropped(place, name) >= before + 3).then_some(()));
    found.unwrap_or_else(|| panic!("{place:?} drops nothing for {name}\n{}", log()));
}

fn comes_up(routers: &mut [&mut Box<dyn Router>], lan: &Lan) {
    for router in routers {
        let up = wait_until(TIMEOUT, || router.is_established().ok().filter(|up| *up));
        up.unwrap_or_else(|| panic!("{}: not up\n{}\n{}", router.name(), router.log_tail(), lan.log()));
    }
}

/// The configuration of a router whose only neighbour the proxy shows it.
fn config(name: &str, own: (u32, Ipv4Addr), peer: (u32, Ipv4Addr), passive: bool) -> RouterConfig {
    let config = RouterConfig::new(name, Asn(own.0), own.1).with("proxy", peer.1, Asn(peer.0));
    if passive { config.passive() } else { config }
}

/// Puts an attesting proxy between two routers: the proxy listens for both, or connects to both.
fn proxied(lan: &Lan, [left, right]: [Software; 2], listens: bool) {
    let end = |at: Ipv4Addr, router: Ipv4Addr, more: &str| {
        let way = if listens {
            format!("listen = \"{at}:179\", address = \"{router}\"")
        } else {
            format!("connect = \"{router}:179\", bind = \"{at}\"")
        };
        format!("{{ {way}, {more} }}")
    };
    let attest = |inside: &str, outside: &str| {
        format!(
            "[attest]\nasn = {LEFT_AS}\nstate = \"proxy.redb\"\n[keys]\n[[pair]]\nname = \"right\"\n\
             inside = {}\noutside = {}\n[status]\nlisten = \"{STATUS}\"\n",
            end(FOR_LEFT, LEFT, inside),
            end(FOR_RIGHT, RIGHT, outside)
        )
    };
    let of = |side: &str| format!("password_file = \"{side}.password\", ttl_security = true");
    let protected = attest(&of("left"), &format!("asn = {RIGHT_AS}, {}", of("right")));
    let name = |side: &str, software: Software| format!("{side}-{software:?}-{listens}").to_lowercase();
    let left_config = || config(&name("left", left), (LEFT_AS, LEFT), (RIGHT_AS, FOR_LEFT), !listens);
    let right_config = || config(&name("right", right), (RIGHT_AS, RIGHT), (LEFT_AS, FOR_RIGHT), !listens);
    let at_left = || lan.router(left, &lan.left, left_config().protected(Some(LEFT_PASSWORD), true));
    let at_right = || lan.router(right, &lan.right, right_config().protected(Some(RIGHT_PASSWORD), true));

    // The left router has another password, the right one sends with a smaller TTL.
    let mut proxy = lan.run("attest", &protected);
    let mut wrong_left = lan.router(left, &lan.left, left_config().protected(Some("another"), true));
    let mut wrong_right = lan.router(right, &lan.right, right_config().protected(Some(RIGHT_PASSWORD), false));
    let refuses_password = if listens { &lan.proxy } else { &lan.left };
    let before = (dropped(refuses_password, "TCPMD5Failure"), dropped(&lan.proxy, "TCPMinTTLDrop"));
    wrong_left.start().expect("left starts");
    wrong_right.start().expect("right starts");
    drops(refuses_password, "TCPMD5Failure", before.0, || lan.log());
    drops(&lan.proxy, "TCPMinTTLDrop", before.1, || lan.log());
    assert!(!wrong_left.is_established().expect("an answer") && !wrong_right.is_established().expect("an answer"));
    if !listens {
        let is_protected =
            wait_until(TIMEOUT, || lan.log().contains("this session is protected (TCP MD5").then_some(()));
        is_protected.unwrap_or_else(|| panic!("{}", lan.log()));
    }
    wrong_left.kill();
    wrong_right.kill();

    // A router without a password, and one that is told of none.
    let mut wrong_left = lan.router(left, &lan.left, left_config().protected(None, true));
    let (place, counter) = if listens { (&lan.proxy, "TCPMD5NotFound") } else { (&lan.left, "TCPMD5Unexpected") };
    let before = dropped(place, counter);
    wrong_left.start().expect("left starts");
    drops(place, counter, before, || lan.log());
    assert!(!wrong_left.is_established().expect("an answer"));
    wrong_left.kill();

    // All as it should be: routes pass both ways. The proxy is started again, since it would keep its connection to the router
    // that sent with a smaller TTL until the timer of OPEN: it heard neither OPEN nor end of it.
    assert!(proxy.stop(TIMEOUT), "{}", lan.log());
    let mut proxy = lan.run("attest", &protected);
    let (mut left, mut right) = (at_left(), at_right());
    let prefixes: [Prefix; 2] = ["198.51.100.0/24", "203.0.113.0/24"].map(|text| text.parse().expect("a prefix"));
    left.announce(&[Announcement::of(prefixes[0])]).expect("announced");
    right.announce(&[Announcement::of(prefixes[1])]).expect("announced");
    left.start().expect("left starts");
    right.start().expect("right starts");
    comes_up(&mut [&mut left, &mut right], lan);
    for (router, prefix, asn) in [(&mut left, prefixes[1], RIGHT_AS), (&mut right, prefixes[0], LEFT_AS)] {
        let found = wait_until(TIMEOUT, || {
            let table = router.table().expect("a table");
            table.into_iter().find(|route| route.prefix == prefix && route.best && route.as_path == [Asn(asn)])
        });
        found.unwrap_or_else(|| panic!("{} has no route to {prefix}\n{}", router.name(), lan.log()));
    }
    let status = lan.ask("/api/v1/status").expect("a page");
    for side in ["inside", "outside"] {
        assert_eq!(status["pairs"][0][side]["protection"], "TCP MD5, TTL security (1 hop)", "{status:#}");
        assert_eq!(status["pairs"][0][side]["up"], true, "{status:#}");
    }
    let log = lan.log();
    assert!(log.contains("protection of the session with the inside peer: TCP MD5, TTL security (1 hop)"), "{log}");
    assert!(!log.contains(LEFT_PASSWORD) && !log.contains(RIGHT_PASSWORD), "{log}");
    assert!(proxy.stop(TIMEOUT), "{}", lan.log());

    // The routers' own protection: without the proxy's there is no session.
    let place = if listens { &lan.proxy } else { &lan.right };
    let counter = if listens { "TCPMD5Unexpected" } else { "TCPMD5NotFound" };
    let before = dropped(place, counter);
    let mut proxy = lan.run("attest", &attest("", &format!("asn = {RIGHT_AS}")));
    drops(place, counter, before, || lan.log());
    assert!(!left.is_established().expect("an answer") && !right.is_established().expect("an answer"));
    assert!(proxy.stop(TIMEOUT), "{}", lan.log());
}

#[test]
fn routers_keep_their_protection_when_an_attesting_proxy_listens_between_them() {
    let test = "routers_keep_their_protection_when_an_attesting_proxy_listens_between_them";
    let Some(lan) = Lan::new(test) else { return };
    proxied(&lan, [Software::Bird, Software::Frr], true);
    proxied(&lan, [Software::Frr, Software::Bird], true);
}

#[test]
fn routers_keep_their_protection_when_an_attesting_proxy_connects_to_them() {
    let test = "routers_keep_their_protection_when_an_attesting_proxy_connects_to_them";
    let Some(lan) = Lan::new(test) else { return };
    proxied(&lan, [Software::Bird, Software::Frr], false);
    proxied(&lan, [Software::Frr, Software::Bird], false);
}

/// A member's configuration with keys that `wayleave` makes, and parties that do not answer.
fn member(lan: &Lan, router: &str) -> String {
    let wayleave = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_wayleave"));
        let output = command.args(arguments).current_dir(lan.network.state()).output().expect("the program runs");
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    for name in ["alpha", "operator1", "operator2"] {
        if !lan.path(&format!("{name}.key")).exists() {
            wayleave(&["keys", "new", &format!("{name}.key")]);
        }
    }
    let operators = ["operator1.key", "operator2.key"].map(|file| {
        let shown = wayleave(&["keys", "show", file]);
        shown.lines().find_map(|line| line.strip_prefix("sign")).expect("a key").trim().to_owned()
    });
    format!(
        "[member]\nname = \"alpha\"\nslot = 0\nkey = \"alpha.key\"\nstate = \"alpha.redb\"\nlab = true\n\
         [exchange]\nname = \"ix\"\nasn = {RIGHT_AS}\noperators = {operators:?}\n\
         party1 = {{ address = \"127.0.0.1:1\", pin = \"sha256:{}\" }}\n\
         party2 = {{ address = \"127.0.0.1:2\", pin = \"sha256:{}\" }}\n\
         [router]\n{router}\nasn = {LEFT_AS}\nrouter_id = \"{FOR_LEFT}\"\n\
         password_file = \"left.password\"\nttl_security = true\n[status]\nlisten = \"{STATUS}\"\n",
        "ab".repeat(32),
        "cd".repeat(32)
    )
}

#[test]
fn a_members_router_keeps_its_protection() {
    let Some(lan) = Lan::new("a_members_router_keeps_its_protection") else { return };
    let listens = format!("listen = \"{FOR_LEFT}:179\"\naddress = \"{LEFT}\"");
    let connects = format!("connect = \"{}\"", SocketAddr::from((LEFT, 179)));
    for (software, way) in
        [(Software::Bird, &listens), (Software::Frr, &listens), (Software::Bird, &connects), (Software::Frr, &connects)]
    {
        let passive = way == &connects;
        let site = |name: &str| {
            let name = format!("{name}-{software:?}-{passive}").to_lowercase();
            config(&name, (LEFT_AS, LEFT), (RIGHT_AS, FOR_LEFT), passive)
        };
        let mut proxy = lan.run("member", &member(&lan, way));
        let mut wrong = lan.router(software, &lan.left, site("wrong").protected(Some("another"), true));
        let place = if passive { &lan.left } else { &lan.proxy };
        let before = dropped(place, "TCPMD5Failure");
        wrong.start().expect("it starts");
        drops(place, "TCPMD5Failure", before, || lan.log());
        wrong.kill();
        let mut far = lan.router(software, &lan.left, site("far").protected(Some(LEFT_PASSWORD), false));
        let before = dropped(&lan.proxy, "TCPMinTTLDrop");
        far.start().expect("it starts");
        drops(&lan.proxy, "TCPMinTTLDrop", before, || lan.log());
        assert!(!far.is_established().expect("an answer"));
        far.kill();
        // It would keep the connection, of whose end it hears nothing.
        assert!(proxy.stop(TIMEOUT), "{}", lan.log());
        let keeps = software == Software::Bird && !passive;
        let site = site("right");
        has_a_protected_session(&lan, software, way, if keeps { site.graceful() } else { site }, keeps);
    }
    // GoBGP waits for the proxy. OpenBGPD connects.
    for (software, way, passive) in [(Software::Gobgp, &connects, true), (Software::OpenBgpd, &listens, false)] {
        if lan.routers.of(software.package()).is_none()
            || software == Software::OpenBgpd && inside() != Some(Rung::Root)
        {
            skipped(&format!("{} as a member's router cannot run here", software.name()));
            continue;
        }
        let site = config(&format!("right-{}", software.name()), (LEFT_AS, LEFT), (RIGHT_AS, FOR_LEFT), passive);
        has_a_protected_session(&lan, software, way, site, false);
    }
}

/// Starts a proxy and the router of the right password, and ends both once the proxy has the router's route; or, of a router that
/// asked that its routes are kept, once it has started again.
fn has_a_protected_session(lan: &Lan, software: Software, way: &str, site: RouterConfig, keeps: bool) {
    let route: Prefix = "198.51.100.0/24".parse().expect("a prefix");
    let mut proxy = lan.run("member", &member(lan, way));
    let mut router = lan.router(software, &lan.left, site.protected(Some(LEFT_PASSWORD), true));
    router.announce(&[Announcement::of(route)]).expect("announced");
    router.start().expect("it starts");
    comes_up(&mut [&mut router], lan);
    let has = || lan.ask("/api/v1/status").ok().filter(|status| status["router_routes"] == 1);
    let status = wait_until(TIMEOUT, has).unwrap_or_else(|| panic!("no route\n{}", lan.log()));
    assert_eq!(status["router_protection"], "TCP MD5, TTL security (1 hop)", "{status:#}");
    let log = lan.log();
    assert!(log.contains("protection of the session with the router: TCP MD5, TTL security (1 hop)"), "{log}");
    assert!(!log.contains(LEFT_PASSWORD), "{log}");
    router.kill();
    if keeps {
        restarts(lan, &mut router);
    }
    assert!(proxy.stop(TIMEOUT), "{}", lan.log());
}

/// A BIRD that was killed, and whose system closed TCP, asked that its routes are kept (RFC 4724, RFC 9494): they are, as long-lived stale
/// ones too, while it is away. It is back without `-R` and so without the F bit, which ends them; that it announces the route anew is all
/// that is seen then. What stays where a router sets the bit is shown without processes (`wayleave_bgp::peer::stale`).
fn restarts(lan: &Lan, router: &mut Box<dyn Router>) {
    let routes = |stale: u64| {
        let has = |status: &Value| status["router_routes"] == 1 && status["stale_routes"] == stale;
        let status = wait_until(TIMEOUT, || lan.ask("/api/v1/status").ok().filter(has));
        status.unwrap_or_else(|| panic!("{stale} stale routes are expected\n{}", lan.log()));
    };
    routes(1);
    let is_long_lived =
        || lan.ask("/api/v1/peers").ok().filter(|peers| peers["peers"][2]["stale"][0]["long_lived"] == true);
    wait_until(TIMEOUT, is_long_lived).unwrap_or_else(|| panic!("never long-lived\n{}", lan.log()));
    let log = lan.log();
    assert!(
        log.contains("the router's routes stay announced: ") && log.contains("with LLGR_STALE (RFC 9494)"),
        "{log}"
    );
    routes(1);
    router.start().expect("it starts again");
    comes_up(&mut [router], lan);
    routes(0);
    let ended = || lan.log().contains("routes that it has not announced again are withdrawn").then_some(());
    wait_until(TIMEOUT, ended).unwrap_or_else(|| panic!("they stayed\n{}", lan.log()));
}
