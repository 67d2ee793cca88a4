//! A simulated exchange beside its plaintext reference: every change goes to both.

#![allow(unreachable_pub, reason = "shared by the modules of this test")]

pub mod attested;
pub mod held;
pub mod routers;

use std::collections::BTreeMap;
use std::time::Duration;

use wayleave_bgp::{Attributes, Nlri, Origin};
use wayleave_core::{Asn, Prefix};
use wayleave_lab::sim::{Node, PARTIES, RS_ASN, Setup, Sim, member_address, member_asn};
use wayleave_route_server::oracle::Oracle;
use wayleave_route_server::policy::validate::Martians;
use wayleave_route_server::policy::{Policy, PolicyConfig};

/// Makes tests of functions that take who multiplies policies and keys: one test for each mode.
macro_rules! in_both_modes {
    ($($name:ident),+ $(,)?) => {$(
        mod $name {
            use wayleave_route_server::object::ExportMode;

            #[test]
            fn direct() {
                super::$name(ExportMode::Direct);
            }

            #[test]
            fn mpc() {
                super::$name(ExportMode::Mpc);
            }
        }
    )+};
}
pub(crate) use in_both_modes;

/// Virtual time within which every exchange must come to rest.
pub const LIMIT: Duration = Duration::from_secs(600);

/// How many times more cases `make soak` asks for.
#[allow(clippy::disallowed_methods, reason = "a test asks how long it may take")]
pub fn factor() -> usize {
    std::env::var("WAYLEAVE_SIM_FACTOR").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

/// The AS of the member in `slot`.
pub fn asn(slot: u32) -> Asn {
    member_asn(slot)
}

/// A prefix without a path identifier.
pub fn nlri(text: &str) -> Nlri {
    Nlri::new(text.parse().expect("a prefix"))
}

/// A route as the router of `slot` announces it: its AS, then `tail`, with large communities.
pub fn route(slot: u32, tail: &[u32], communities: &[&str]) -> Attributes {
    let communities: Vec<_> = communities.iter().map(|c| c.parse().expect("a community")).collect();
    let mut editor = Attributes::builder();
    for asn in tail.iter().rev() {
        editor.prepend(Asn(*asn), 1);
    }
    editor.prepend(member_asn(slot), 1).origin(Origin::Igp).ipv4_next_hop(member_address(slot));
    if !communities.is_empty() {
        editor.large_communities(&communities);
    }
    editor.finish()
}

/// A policy from TOML.
pub fn policy(text: &str) -> Policy {
    let config: PolicyConfig = toml::from_str(text).expect("a policy");
    Policy::compile(&config).expect("a sound policy")
}

/// Both.
pub struct Exchange {
    pub sim: Sim,
    pub oracle: Oracle,
}

impl Exchange {
    pub fn new(setup: Setup) -> Self {
        let mut exchange = Self::of(Sim::new(setup));
        assert!(exchange.sim.settle(LIMIT), "the exchange did not start");
        exchange.oracle.set_order(exchange.sim.order_key(PARTIES[0]).expect("the parties have agreed on an order"));
        exchange
    }

    /// Around a simulation in which nothing was announced yet.
    pub fn of(sim: Sim) -> Self {
        let oracle = Oracle::new(sim.set.clone(), RS_ASN, BTreeMap::new()).with_martians(Martians::AllowDocumentation);
        Self { sim, oracle }
    }

    pub fn announce(&mut self, slot: u32, nlri: &[Nlri], attributes: &Attributes) {
        self.sim.announce(slot, nlri, attributes);
        self.oracle.announce(slot, nlri, attributes);
    }

    pub fn withdraw(&mut self, slot: u32, nlri: &[Nlri]) {
        self.sim.withdraw(slot, nlri);
        self.oracle.withdraw(slot, nlri);
    }

    pub fn set_policy(&mut self, slot: u32, policy: &Policy) {
        self.sim.set_policy(slot, policy.clone());
        self.oracle.set_policy(slot, policy.clone());
    }

    pub fn recommend(&mut self, recommendation: &BTreeMap<u32, u8>) {
        self.sim.recommend(recommendation.clone());
        self.oracle.recommend(recommendation.clone());
    }

    pub fn join(&mut self) -> u32 {
        let slot = self.sim.join();
        self.oracle.adopt(self.sim.set.clone()).expect("a set that follows");
        slot
    }

    pub fn leave(&mut self, slot: u32) {
        self.sim.leave(slot);
        self.oracle.adopt(self.sim.set.clone()).expect("a set that follows");
    }

    /// Lets everything come to rest and compares every router's table.
    pub fn check(&mut self) {
        assert!(self.sim.settle(LIMIT), "the exchange did not come to rest: {}", self.describe());
        self.compare();
    }

    /// What a failed test tells.
    pub fn describe(&mut self) -> String {
        let statuses: Vec<_> = PARTIES.iter().map(|p| self.sim.party(*p).map(|p| p.status())).collect();
        let slots: Vec<u32> = self.sim.tables.keys().copied().collect();
        let members: Vec<_> = slots.iter().map(|s| self.sim.member(*s).map(|m| m.status())).collect();
        let closed: Vec<_> = self
            .sim
            .closed
            .iter()
            .filter(|(a, b, _)| PARTIES.contains(a) && PARTIES.contains(b))
            .rev()
            .take(5)
            .collect();
        let events: Vec<_> = self.sim.party_events.iter().rev().take(5).collect();
        format!("{statuses:?}\n{members:?}\n{closed:?}\n{events:?}")
    }

    pub fn compare(&self) {
        let mut oracle = self.oracle.clone();
        oracle.set_order(self.sim.order_key(PARTIES[0]).expect("the parties have agreed on an order"));
        for slot in self.sim.tables.keys() {
            let table = self.sim.table(*slot);
            let expected: BTreeMap<Prefix, Attributes> =
                oracle.table(*slot).into_iter().map(|(prefix, (_, attributes))| (prefix, attributes)).collect();
            for (prefix, attributes) in &expected {
                assert_eq!(table.get(prefix), Some(attributes), "member {slot}, {prefix}");
            }
            for prefix in table.keys() {
                assert!(expected.contains_key(prefix), "member {slot} has {prefix}, which it may not have");
            }
        }
    }

    /// One random change, of the kinds that happen at an exchange.
    pub fn random_change(&mut self, with_members: bool) {
        let slots: Vec<u32> = self.sim.tables.keys().copied().collect();
        let slot = slots[self.sim.choose(slots.len())];
        match self.sim.choose(if with_members { 24 } else { 20 }) {
            0..=10 => self.random_announcement(slot),
            11..=15 => {
                let count = 1 + self.sim.choose(3);
                let prefixes = self.random_prefixes(count);
                self.withdraw(slot, &prefixes);
            }
            16..=18 => {
                let policy = self.random_policy();
                self.set_policy(slot, &policy);
            }
            19 => {
                let recommendation = slots.iter().map(|s| (*s, self.sim.choose(256))).collect::<Vec<_>>();
                let recommendation =
                    recommendation.into_iter().map(|(s, r)| (s, u8::try_from(r).expect("below 256"))).collect();
                self.recommend(&recommendation);
            }
            20 if slots.len() > 3 => self.leave(slot),
            _ if self.sim.set.slots.len() < 12 => {
                self.join();
            }
            _ => {}
        }
    }

    /// The router in `slot` announces random routes, which communities may keep from others.
    pub fn random_announcement(&mut self, slot: u32) {
        let count = 1 + self.sim.choose(3);
        let prefixes = self.random_prefixes(count);
        let tail: Vec<u32> = (0..=self.sim.choose(3)).map(|i| 64_500 + u32::try_from(i).expect("few")).collect();
        let peer = 65_000 + self.sim.choose(6);
        let communities = match self.sim.choose(5) {
            0 => vec![format!("64496:0:{peer}")],
            1 => vec!["64496:0:0".to_owned(), format!("64496:1:{peer}")],
            2 => vec!["64496:0:0".to_owned()],
            _ => vec![],
        };
        let communities: Vec<&str> = communities.iter().map(String::as_str).collect();
        let attributes = route(slot, &tail, &communities);
        self.announce(slot, &prefixes, &attributes);
    }

    /// At most so many different ones.
    pub fn random_prefixes(&mut self, count: usize) -> Vec<Nlri> {
        let mut prefixes: Vec<Nlri> = (0..count).map(|_| nlri(&format!("20.{}.0.0/16", self.sim.choose(12)))).collect();
        prefixes.sort_unstable();
        prefixes.dedup();
        prefixes
    }

    /// One with at most one rule, of export or import.
    pub fn random_policy(&mut self) -> Policy {
        let (a, b) = (65_000 + self.sim.choose(6), self.sim.choose(12));
        policy(&match self.sim.choose(5) {
            0 => String::new(),
            1 => format!("[[rule]]\ndirection = \"export\"\nhide_from = [\"{a}\"]\n"),
            2 => format!("[[rule]]\ndirection = \"export\"\nprefix = [\"20.{b}.0.0/16\"]\nannounce = \"none\"\n"),
            3 => format!("[[rule]]\ndirection = \"import\"\npeer = [\"{a}\"]\nclass = 200\n"),
            _ => format!("[[rule]]\ndirection = \"import\"\nprefix = [\"20.{b}.0.0/16\"]\nreject = true\n"),
        })
    }

    /// Kills a random process, lets some steps pass, and starts it again.
    pub fn kill_one(&mut self) -> Node {
        let slots: Vec<u32> = self.sim.tables.keys().copied().collect();
        let victim = match self.sim.choose(3) {
            0 => PARTIES[0],
            1 => PARTIES[1],
            _ => Node::Member(slots[self.sim.choose(slots.len())]),
        };
        self.sim.kill(victim);
        for _ in 0..self.sim.choose(200) {
            self.sim.step(Duration::from_secs(5));
        }
        self.sim.start(victim);
        victim
    }
}
