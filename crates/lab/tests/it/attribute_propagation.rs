//! What routers in the middle do with the attribute of attestations, which they do not know: real routers between two
//! speakers of ours.
//!
//! KCX-10, versions: attributes of 300, 1,500 and 3,500 octets, and a grant, through BIRD and FRR, and in `make soak`
//! through some twenty versions of four routers: carried octet for octet as the table in
//! `target/attribute-propagation.md` says; the grant goes no further, no session ends.

#![allow(clippy::disallowed_methods, reason = "a test of the laboratory does I/O")]

use std::fmt;
use std::fmt::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use wayleave_attestation::chain::TYPE_CODE;
use wayleave_attestation::proxy::handover::HANDOVER;
use wayleave_bgp::{AsPathBuf, AttributeCode, AttributeFlags, Attributes, Origin};
use wayleave_core::{Asn, Prefix};
use wayleave_lab::bird::Bird;
use wayleave_lab::frr::Frr;
use wayleave_lab::gobgp::Gobgp;
use wayleave_lab::netns::{Network, NetworkNamespace, enter_for_test, inside, skipped};
use wayleave_lab::openbgpd::OpenBgpd;
use wayleave_lab::packages::{self, Use};
use wayleave_lab::process::wait_until;
use wayleave_lab::router_config::RouterConfig;
use wayleave_lab::routers::{BIRD, FRR, Installation, Release, RouterPackage, default_cache, fetch_from, fetched_from};
use wayleave_lab::speaker::{Identity, Routes, Speaker};
use wayleave_lab::table::Router;

use crate::common::routers::{ROUTER_TIMEOUT, routers};

/// How long a router may take to pass on a route that it passes on at all.
const PASSED_ON: Duration = Duration::from_secs(8);
/// Octets of the attributes: one hop of `kc-ed25519` with some prefixes, one of `kc-hbs`, and nearly a whole message.
const LENGTHS: [usize; 3] = [300, 1_500, 3_500];
/// The code of the experiment of 2019.
const EXPERIMENT: u8 = 255;
/// BIRD's code for labels between its own parts.
const INTERNAL_TO_BIRD: u8 = 254;

/// Routers whose packages distributions have, the old versions of each first.
fn routers_of_releases() -> impl Iterator<Item = (&'static RouterPackage, &'static Release)> {
    packages::of(Use::Soak).filter_map(|listed| Some((listed.package, listed.release?)))
}

/// What became of a route's attribute behind a router.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// Octet for octet, with flags of the same kind.
    Carried,
    Changed,
    /// The route came without it.
    Stripped,
    /// The route did not come, and the sessions stayed up.
    Withheld,
    /// A session ended.
    Reset,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Carried => "carried",
            Self::Changed => "changed",
            Self::Stripped => "stripped",
            Self::Withheld => "route withheld",
            Self::Reset => "reset",
        })
    }
}

/// An attribute that is sent through a router.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Probe {
    code: AttributeCode,
    flags: AttributeFlags,
    length: usize,
}

impl Probe {
    /// An attestation by this code, in every length.
    fn attestations(code: u8) -> [Self; 3] {
        let flags = AttributeFlags::OPTIONAL_TRANSITIVE;
        LENGTHS.map(|length| Self { code: AttributeCode(code), flags, length })
    }

    fn grant(code: AttributeCode) -> Self {
        Self { code, flags: AttributeFlags::OPTIONAL_NON_TRANSITIVE, length: 80 }
    }

    /// What we send.
    fn ours() -> Vec<Self> {
        Self::attestations(TYPE_CODE).into_iter().chain([Self::grant(HANDOVER)]).collect()
    }

    /// The same, and what we do not send, for the reasons that its outcomes show.
    fn all() -> Vec<Self> {
        let avoided = Self::attestations(EXPERIMENT).into_iter();
        let internal = Self::grant(AttributeCode(INTERNAL_TO_BIRD));
        Self::ours().into_iter().chain(avoided).chain([internal]).collect()
    }

    fn value(self) -> Vec<u8> {
        (0..self.length).map(|n| (n * 7 % 251) as u8).collect()
    }

    /// What it is at the end of the path.
    fn outcome_of(self, route: &Attributes) -> Outcome {
        match route.get(self.code) {
            None => Outcome::Stripped,
            Some(found) => {
                let same_kind = found.flags.is_transitive() == self.flags.is_transitive();
                if same_kind && found.value == self.value() { Outcome::Carried } else { Outcome::Changed }
            }
        }
    }
}

/// A router that runs until it is dropped.
enum Middle {
    Bird(Bird),
    Frr(Frr),
    Other(Box<dyn Router>),
}

impl Middle {
    fn start(
        package: &RouterPackage,
        installation: &Installation,
        place: &NetworkNamespace,
        site: RouterConfig,
        network: &Network,
    ) -> Result<Self, String> {
        let state = network.state();
        match package.name {
            "BIRD" => {
                let mut bird = Bird::with_config(installation, place.clone(), site, state);
                bird.start().map_err(|error| error.to_string())?;
                Ok(Self::Bird(bird))
            }
            "FRR" => {
                let mut frr = Frr::with_config(installation, place.clone(), site, state);
                frr.start().map_err(|error| error.to_string())?;
                Ok(Self::Frr(frr))
            }
            name => {
                let mut router: Box<dyn Router> = match name {
                    "GoBGP" => Box::new(Gobgp::with_config(installation, place.clone(), site, state)),
                    _ => Box::new(OpenBgpd::with_config(installation, place.clone(), site, state)),
                };
                router.start().map_err(|error| error.to_string())?;
                Ok(Self::Other(router))
            }
        }
    }

    fn log_tail(&self) -> String {
        match self {
            Self::Bird(bird) => bird.log_tail(),
            Self::Frr(frr) => frr.log_tail(),
            Self::Other(router) => router.log_tail(),
        }
    }
}

/// The longest messages of both sessions (RFC 8654).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Messages {
    /// 4,096 octets.
    Ordinary,
    /// 65,535 octets, where the laboratory can tell the router.
    Extended,
}

/// Two speakers and a router between them.
struct TableRow {
    middle: Middle,
    left: Speaker,
    right: Speaker,
    /// The left speaker's address, the next hop of its routes.
    address: Ipv4Addr,
}

const LEFT: Asn = Asn(64501);
const MIDDLE: Asn = Asn(64502);
const RIGHT: Asn = Asn(64503);

fn prefix(number: usize) -> Prefix {
    format!("198.51.100.{}/30", 4 * number).parse().expect("a prefix")
}

impl TableRow {
    /// The `number`-th line of a network.
    fn new(
        network: &Network,
        number: u8,
        (package, installation): (&RouterPackage, &Installation),
        messages: Messages,
    ) -> Result<Self, String> {
        let address = |host: u8| Ipv4Addr::new(192, 0, 2, 3 * number + host);
        let place = |host: u8| {
            let host = 3 * number + host;
            // FRR 10 refuses sessions for IPv6 routes where it has no address of that family.
            let addresses = [format!("192.0.2.{host}/24"), format!("2001:db8::{host}/64")];
            network.attach(&format!("r{host}"), &addresses).expect("attached")
        };
        let [at_left, at_middle, at_right] = [1, 2, 3].map(place);
        let with = |site: RouterConfig, name: &str, host, asn| {
            let site = site.with(name, address(host), asn).passive();
            if messages == Messages::Ordinary { site.short_messages() } else { site }
        };
        let site = RouterConfig::new(&format!("middle{number}"), MIDDLE, address(2));
        let site = with(with(site, "left", 1, LEFT), "right", 3, RIGHT);
        let middle = Middle::start(package, installation, &at_middle, site, network)?;
        let speaker = |name: &str, asn, host, place| {
            let (name, address6) = (name.to_owned(), Ipv6Addr::LOCALHOST);
            let peer = (address(2), 179).into();
            Speaker::start(Identity { name, asn, address: address(host), address6, peer_asn: MIDDLE, peer }, place)
        };
        let (left, right) = (speaker("left", LEFT, 1, at_left), speaker("right", RIGHT, 3, at_right));
        Ok(Self { middle, left, right, address: address(1) })
    }

    fn route(&self, probe: Option<Probe>) -> Attributes {
        let mut edit = Attributes::builder();
        edit.origin(Origin::Igp).as_path(AsPathBuf::from_sequence(&[LEFT]).as_path()).ipv4_next_hop(self.address);
        if let Some(probe) = probe {
            edit.set(probe.code, probe.flags, &probe.value());
        }
        edit.finish()
    }

    /// Waits until a route without the attribute passes; `None` if it does not.
    fn is_up(&self) -> Option<()> {
        self.left.announce(Routes::from([(prefix(0), self.route(None))]));
        wait_until(ROUTER_TIMEOUT, || {
            (self.left.is_established() && self.right.learned().contains_key(&prefix(0))).then_some(())
        })
    }

    fn send(&self, number: usize, probe: Probe) -> Outcome {
        let ended = || self.left.ended() + self.right.ended();
        let (before, place) = (ended(), prefix(number + 1));
        self.left.announce(Routes::from([(prefix(0), self.route(None)), (place, self.route(Some(probe)))]));
        let outcome = wait_until(PASSED_ON, || {
            if ended() > before {
                return Some(Outcome::Reset);
            }
            self.right.learned().get(&place).map(|route| probe.outcome_of(route))
        });
        if outcome == Some(Outcome::Reset) {
            // Without the attribute the session must come back, for the next one.
            assert!(self.is_up().is_some(), "{}", self.middle.log_tail());
        }
        outcome.unwrap_or(Outcome::Withheld)
    }

    /// Sends one after the other; an error is why nothing passes at all.
    fn send_all(&self, probes: Vec<Probe>) -> Result<Vec<(Probe, Outcome)>, String> {
        self.is_up().ok_or_else(|| {
            let (left, right) = (self.left.last_failure(), self.right.last_failure());
            format!("no route passes: {left}, {right}\n{}", self.middle.log_tail())
        })?;
        Ok(probes.into_iter().enumerate().map(|(number, probe)| (probe, self.send(number, probe))).collect())
    }
}

/// The attribute by its default code is carried in every length that the router has room for, and no private key passes.
fn assert_carried(name: &str, messages: Messages, outcomes: &[(Probe, Outcome)]) {
    // BIRD keeps 1,024 octets of an ordinary message for prefixes, logs `Attribute list too long for PREFIX`, and sends no such route.
    let is_too_long = |length| messages == Messages::Ordinary && name.starts_with("BIRD") && length > 3_000;
    for (probe, outcome) in outcomes {
        if probe.code == AttributeCode(TYPE_CODE) {
            let expected = if is_too_long(probe.length) { Outcome::Withheld } else { Outcome::Carried };
            assert_eq!(*outcome, expected, "{name}: {} octets", probe.length);
        }
        if probe.code == HANDOVER {
            // BIRD 3 withdraws such a route, where RFC 4271 section 5 has it drop the attribute alone.
            let stops =
                matches!(outcome, Outcome::Stripped) || name.starts_with("BIRD 3") && *outcome == Outcome::Withheld;
            assert!(stops, "{name}: a grant is {outcome}");
        }
    }
}

#[test]
fn bird_and_frr_carry_the_attribute_in_every_length_and_drop_a_grant() {
    let Some(routers) = routers() else { return };
    let test = "attribute_propagation::bird_and_frr_carry_the_attribute_in_every_length_and_drop_a_grant";
    if enter_for_test(test).is_none() {
        return;
    }
    let network = Network::new().expect("a network");
    for (number, router) in [(&BIRD, &routers.bird), (&FRR, &routers.frr)].into_iter().enumerate() {
        let line = TableRow::new(&network, number as u8, router, Messages::Extended).expect("started");
        let name = format!("{} {}", router.0.name, router.1.version);
        assert_carried(&name, Messages::Extended, &line.send_all(Probe::ours()).expect("up"));
    }
}

/// A router, and what it did with each probe.
struct Row {
    name: String,
    messages: Messages,
    outcomes: Vec<(Probe, Outcome)>,
}

/// A row for each router, a column for each probe.
fn table(rows: &[Row]) -> String {
    let mut text = "| router |".to_owned();
    for Probe { code, flags, length } in Probe::all() {
        let kind = if flags.is_transitive() { "" } else { ", a grant" };
        let _ = write!(text, " {}: {length}{kind} |", code.0);
    }
    text += "\n|---|";
    text += &"---|".repeat(Probe::all().len());
    for Row { name, outcomes, .. } in rows {
        let _ = write!(text, "\n| {name} |");
        for (_, outcome) in outcomes {
            let _ = write!(text, " {outcome} |");
        }
    }
    text + "\n"
}

#[test]
#[ignore = "fetches some two dozen routers of several releases, and takes minutes"]
fn routers_of_many_versions_carry_the_attribute() {
    let cache = default_cache();
    if inside().is_none() {
        for (package, release) in routers_of_releases() {
            if let Err(error) = fetch_from(release, package, &cache, &mut |line| eprintln!("{line}")) {
                skipped(&format!("{} of {}: {error}", package.name, release.name));
            }
        }
    }
    if enter_for_test("attribute_propagation::routers_of_many_versions_carry_the_attribute").is_none() {
        return;
    }
    let network = Network::new().expect("a network");
    let mut rows = Vec::new();
    let mut lines = 0;
    for (package, release) in routers_of_releases() {
        let Some(installation) = fetched_from(release, package, &cache) else { continue };
        let modes =
            if package.name == "BIRD" { &[Messages::Ordinary, Messages::Extended][..] } else { &[Messages::Ordinary] };
        for messages in modes {
            let extended = if *messages == Messages::Extended { ", extended messages" } else { "" };
            let name = format!("{} {} ({}){extended}", package.name, installation.version, release.name);
            println!("{name}");
            let line = TableRow::new(&network, lines, (package, &installation), *messages);
            match line.and_then(|line| line.send_all(Probe::all())) {
                Ok(outcomes) => rows.push(Row { name, messages: *messages, outcomes }),
                Err(error) => skipped(&format!("{name}: {error}")),
            }
            lines += 1;
        }
    }
    let text = table(&rows);
    println!("{text}");
    std::fs::write(cache.with_file_name("attribute-propagation.md"), text).expect("written");
    assert!(!rows.is_empty(), "no router could be fetched");
    for Row { name, messages, outcomes } in &rows {
        assert_carried(name, *messages, outcomes);
    }
}
