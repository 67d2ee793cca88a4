//! The attestation of a member, driven by hand: what becomes of jobs that are in flight when something changes.
//!
//! SIX, set changes: members that change, join and leave while keys are made and signatures wait: everything is signed
//! for who is there, at a limited rate, and nothing for those that left.
//! KCX-15: a customer's chain that a member without keys passes on: it is withdrawn when the chain ends.
//! KCX-19: work on one route panics: only that route is left out, it is told, and tried again ten minutes later.
//! KCX-36: a few-time key that may not sign yet: End-of-RIB comes behind the routes that wait, and a changed route is
//! withdrawn.
//! KCX-38: an announcer that goes on and on: a quarter of the bound and not a route more; others have their room.

use std::collections::HashMap;
use std::time::Duration;

use wayleave_attestation::chain::{Attestation, TYPE_CODE};
use wayleave_attestation::leaf::LeafKey;
use wayleave_attestation::member::{
    Finding, Input, MOST_MEMORY, MemberAttestation, MemberAttestationConfig, MemberAttestationEvent, Output,
};
use wayleave_attestation::pipeline::policy::{Policy, VerdictClass};
use wayleave_attestation::pipeline::{Job, PipelineConfig, RouteEvent};
use wayleave_attestation::pki::{RegisteredKey, View, Vrp};
use wayleave_attestation::proxy::MAX_OCTETS;
use wayleave_attestation::sign::{self, KeyPair, KeyRing, Origination, Recipient, Speaker, endorse};
use wayleave_attestation::suite::{self, SuiteId};
use wayleave_attestation::validate::Rules;
use wayleave_bgp::{AsPathBuf, AttributeCode, AttributeFlags, Attributes, Nlri, Origin};
use wayleave_core::{Afi, Asn, Instant, Machine, Now, UnixTime};
use wayleave_crypto::secret::Secret;

use crate::common::few_time::Counting;
use crate::common::network::p;

const MEMBER: Asn = Asn(65_001);
const CUSTOMER: Asn = Asn(64_500);
const BEGIN: u64 = 1_700_000_000;
const ATTRIBUTE: AttributeCode = AttributeCode(TYPE_CODE);

fn few_time() -> KeyRing {
    faulty(0)
}

/// A few-time key, and signatures over which it panics first.
fn faulty(faults: u64) -> KeyRing {
    let key = Box::new(Counting { faults, ..Counting::new(&[7; 32], BEGIN - 1000) });
    KeyRing { pairs: vec![KeyPair { suite: SuiteId::KcEd25519, key, registered: true }] }
}

/// A key of `asn`, which is registered.
fn pair(asn: Asn) -> KeyPair {
    let mut seed = [9; 32];
    seed[..4].copy_from_slice(&asn.0.to_be_bytes());
    let suite = SuiteId::KcEd25519;
    KeyPair { suite, key: suite::of(suite).expect("built in").generate(&Secret::new(seed)), registered: true }
}

fn path(asns: &[Asn]) -> Attributes {
    let mut edit = Attributes::builder();
    edit.origin(Origin::Igp).as_path(AsPathBuf::from_sequence(asns).as_path()).ipv4_next_hop([192, 0, 2, 1].into());
    edit.finish()
}

/// What went to the exchange at once.
struct Announcement {
    withdrawn: usize,
    announced: usize,
    /// The first octet of what names those for whom it was signed.
    under: Option<u8>,
}

/// The attestation of a member, its clock, and its jobs that nobody has run yet.
struct Driven {
    member: MemberAttestation,
    now: Now,
    announcements: Vec<Announcement>,
    events: Vec<MemberAttestationEvent>,
    work: Vec<Job>,
    findings: Vec<Vec<Finding>>,
    ends_of_rib: usize,
}

impl Driven {
    fn new(ring: KeyRing) -> Self {
        Self::with_memory(ring, MOST_MEMORY)
    }

    fn with_memory(ring: KeyRing, most_memory: usize) -> Self {
        let config = MemberAttestationConfig {
            pipeline: PipelineConfig {
                asn: MEMBER,
                attribute: ATTRIBUTE,
                rules: Rules::default(),
                uncertainty: 0,
                lifetime: 24 * 60,
                policy: Policy::default(),
                own: None,
                announces_unauthorised: false,
            },
            max_octets: MAX_OCTETS,
            most_memory,
        };
        // The first slots pass in which a few-time key does not sign.
        let now = Now { instant: Instant(1_000_000_000), unix: UnixTime((BEGIN - 20) * 1_000_000) };
        let member = MemberAttestation::new(config, ring, &HashMap::new(), now);
        let mut driven = Self {
            member,
            now,
            announcements: Vec::new(),
            events: Vec::new(),
            work: Vec::new(),
            findings: Vec::new(),
            ends_of_rib: 0,
        };
        driven.give(Input::ClockSynchronised(true));
        driven.sleep_until(BEGIN);
        driven.members(1, &[MEMBER, Asn(65_002)]);
        driven
    }

    /// With a few-time key that routes have needed just now: its slots are durable.
    fn with_slots() -> Self {
        let mut driven = Self::new(few_time());
        driven.announce("10.9.0.0/16", path(&[MEMBER]));
        while let Some(job) = driven.work.pop() {
            driven.finish(job);
        }
        driven.give(Input::RouterUpdate {
            withdrawn: vec![Nlri::new(p("10.9.0.0/16"))],
            announced: Vec::new(),
            attributes: None,
        });
        assert!(driven.work.is_empty() && !driven.signed_for().is_empty());
        driven.announcements.clear();
        driven
    }

    fn give(&mut self, input: Input) {
        self.member.handle(input, self.now);
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(output) = self.member.poll() {
            match output {
                Output::Announce { withdrawn, announced, under, .. } => {
                    let under = under.map(|digest| digest[0]);
                    self.announcements.push(Announcement {
                        withdrawn: withdrawn.len(),
                        announced: announced.len(),
                        under,
                    });
                }
                Output::Persist(reserve) => self.member.handle(Input::Persisted(reserve.id), self.now),
                Output::Job(job) => self.work.push(job),
                Output::Event(event) => self.events.push(event),
                Output::Findings { findings, .. } => self.findings.push(findings),
                Output::EndOfRib => self.ends_of_rib += 1,
            }
        }
    }

    fn members(&mut self, set: u64, asns: &[Asn]) {
        let neighbours = asns.iter().map(|asn| (*asn, Vec::<LeafKey>::new())).collect();
        self.give(Input::Members { set, digest: [set as u8; 32], neighbours });
    }

    fn announce(&mut self, prefix: &str, attributes: Attributes) {
        let announced = vec![Nlri::new(p(prefix))];
        self.give(Input::RouterUpdate { withdrawn: Vec::new(), announced, attributes: Some(attributes) });
    }

    /// The one thing that is being worked on.
    fn only_work(&mut self) -> Job {
        assert_eq!(self.work.len(), 1, "{:?}", self.work);
        self.work.remove(0)
    }

    fn finish(&mut self, job: Job) {
        self.give(Input::JobDone(job.run()));
    }

    /// Sleeps until `unix`, as a driver does, and does all work at once.
    fn sleep_until(&mut self, unix: u64) {
        while let Some(at) = self.member.deadline() {
            let passed = at.since(self.now.instant).as_micros() as u64;
            if self.now.unix.0 + passed > unix * 1_000_000 {
                break;
            }
            self.now = Now { instant: at, unix: UnixTime(self.now.unix.0 + passed) };
            self.member.handle_timeout(self.now);
            self.drain();
            while let Some(job) = self.work.pop() {
                self.finish(job);
            }
        }
        let left = unix * 1_000_000 - self.now.unix.0;
        self.now = Now { instant: self.now.instant + Duration::from_micros(left), unix: UnixTime(unix * 1_000_000) };
    }

    /// For whom each announcement so far was signed; withdrawals are none.
    fn signed_for(&self) -> Vec<Option<u8>> {
        self.announcements
            .iter()
            .filter(|announcement| announcement.announced > 0)
            .map(|announcement| announcement.under)
            .collect()
    }
}

#[test]
fn members_that_change_while_keys_are_made_ahead_get_everything_signed_for_them() {
    let mut driven = Driven::with_slots();
    driven.announce("10.1.0.0/16", path(&[MEMBER]));
    let sign = driven.only_work();
    driven.finish(sign);
    assert_eq!(driven.signed_for(), [Some(1)]);
    let ahead = driven.only_work();
    assert_eq!(format!("{ahead:?}"), "Job { source: 0, kind: \"make keys ahead\" }");
    driven.members(2, &[MEMBER, Asn(65_002), Asn(65_003)]);
    assert!(driven.work.is_empty(), "whoever signs needs the keys");
    driven.finish(ahead);
    let sign = driven.only_work();
    driven.finish(sign);
    assert_eq!(driven.signed_for(), [Some(1), Some(2)]);
}

#[test]
fn what_is_being_signed_when_members_change_holds_for_those_it_is_for_and_is_signed_again_for_the_others() {
    let mut driven = Driven::with_slots();
    driven.announce("10.1.0.0/16", path(&[MEMBER]));
    let sign = driven.only_work();
    driven.members(2, &[MEMBER, Asn(65_002), Asn(65_003)]);
    driven.finish(sign);
    assert_eq!(driven.signed_for(), [Some(1)]);
    let sign = driven.only_work();
    driven.finish(sign);
    assert_eq!(driven.signed_for(), [Some(1), Some(2)]);
}

/// Routes signed by `unix` seconds after the beginning.
fn signed_after(driven: &mut Driven, millis: u64) -> usize {
    let until = driven.now.instant + Duration::from_millis(millis);
    while let Some(at) = driven.member.deadline().filter(|at| *at <= until) {
        let passed = at.since(driven.now.instant).as_micros() as u64;
        driven.now = Now { instant: at, unix: UnixTime(driven.now.unix.0 + passed) };
        driven.member.handle_timeout(driven.now);
        driven.drain();
        driven.finish_all();
    }
    driven.announcements.iter().map(|announcement| announcement.announced).sum()
}

#[test]
fn new_and_changed_members_get_everything_signed_at_a_limited_rate_and_those_that_leave_nothing() {
    let mut driven = Driven::new(KeyRing { pairs: vec![pair(MEMBER)] });
    for number in 0..50 {
        driven.announce(&format!("10.{number}.0.0/16"), path(&[MEMBER]));
    }
    driven.finish_all();
    let mut signed = 50;
    assert_eq!(signed_after(&mut driven, 0), signed);
    let mut change = |set: u64, asns: &[u32], expected: usize| {
        let neighbours = asns.iter().map(|asn| (Asn(*asn), Vec::new())).collect();
        driven.give(Input::Members { set, digest: [asns.len() as u8; 32], neighbours });
        driven.finish_all();
        assert!(signed_after(&mut driven, 0) - signed <= 20, "set {set}: at once");
        assert!(signed_after(&mut driven, 150) - signed <= 40, "set {set}: after one interval");
        assert_eq!(signed_after(&mut driven, 2000) - signed, expected, "set {set}");
        signed += expected;
    };
    change(2, &[MEMBER.0, 65_002, 65_003], 50);
    change(3, &[MEMBER.0, 65_002, 65_003], 0);
    change(4, &[MEMBER.0, 65_003], 0);
    change(5, &[MEMBER.0, 65_003, 65_004, 65_005], 50);
}

#[test]
fn a_route_over_which_signing_panicked_is_reported_and_tried_again_ten_minutes_later() {
    // Once in its burst, once alone.
    let mut driven = Driven::new(faulty(2));
    driven.announce("10.1.0.0/16", path(&[MEMBER]));
    // The first job finds that no slot is durable yet, and trees are made meanwhile.
    for _ in 0..3 {
        let sign = driven.only_work();
        driven.finish(sign);
    }
    assert!(
        matches!(driven.events.last(), Some(MemberAttestationEvent::Route { event: RouteEvent::Failed { .. }, .. })),
        "{:?}",
        driven.events
    );
    assert_eq!(driven.signed_for(), []);
    driven.sleep_until(BEGIN + 599);
    assert_eq!(driven.signed_for(), []);
    driven.sleep_until(BEGIN + 600);
    assert_eq!(driven.signed_for(), [Some(1)]);
}

/// A chain of the customer's to the member, which has no keys, that ends an hour after the beginning.
fn customers_route() -> Attributes {
    let prefixes = [p("10.1.0.0/16")];
    let origination = Origination { prefixes: &prefixes, sequence: 1 };
    let speaker = Speaker { asn: CUSTOMER, prepend: 1, not_before: BEGIN, lifetime: 60 };
    let mut ring = KeyRing { pairs: vec![pair(CUSTOMER)] };
    let leaf = endorse(&[], 112).expect("a leaf without keys");
    let onward = Recipient::Neighbour(MEMBER, leaf.view());
    let value = sign::originate(&origination, &speaker, &mut ring, onward).expect("signed").value;
    assert_eq!(Attestation::decode(&value).expect("well formed").hop_count(), 1);
    let mut edit = path(&[MEMBER, CUSTOMER]).edit();
    edit.set(ATTRIBUTE, AttributeFlags::OPTIONAL_TRANSITIVE, &value);
    edit.finish()
}

#[test]
fn a_customers_chain_that_a_member_without_keys_passes_on_is_withdrawn_when_it_ends() {
    let mut driven = Driven::new(KeyRing::default());
    let mut view = View::new(1);
    let (not_before, not_after) = (0, u64::MAX);
    let public = pair(CUSTOMER).key.public().to_vec();
    view.add_key(CUSTOMER, RegisteredKey { suite: SuiteId::KcEd25519, public, not_before, not_after });
    view.add_vrp(Vrp { prefix: p("10.1.0.0/16"), max_length: 16, asn: CUSTOMER });
    driven.give(Input::View(view.into()));
    driven.announce("10.1.0.0/16", customers_route());
    let look = driven.only_work();
    driven.finish(look);
    assert_eq!(driven.announcements.len(), 1);
    driven.sleep_until(BEGIN + 3600);
    assert_eq!(driven.announcements.len(), 1, "it holds");
    driven.sleep_until(BEGIN + 3601);
    let last = driven.announcements.last().expect("a withdrawal");
    assert_eq!((last.withdrawn, last.announced), (1, 0));
    assert!(matches!(
        driven.events.last(),
        Some(MemberAttestationEvent::Route { event: RouteEvent::Refused { class: VerdictClass::Expired, .. }, .. })
    ));
    driven.sleep_until(BEGIN + 7200);
    assert_eq!(driven.announcements.len(), 2, "once");
}

/// A view in which the customer's key and one of AS 7 are registered.
fn registered(generation: u64, of_seven: u8) -> Input {
    let mut view = View::new(generation);
    let key = |public| RegisteredKey { suite: SuiteId::KcEd25519, public, not_before: 0, not_after: u64::MAX };
    view.add_key(CUSTOMER, key(pair(CUSTOMER).key.public().to_vec()));
    view.add_key(Asn(7), key(vec![of_seven; 32]));
    view.add_vrp(Vrp { prefix: p("10.1.0.0/16"), max_length: 16, asn: CUSTOMER });
    Input::View(view.into())
}

/// A route of the member in slot 5 along `asns`, with the customer's attestation after `change`.
fn received(id: u8, asns: &[Asn], change: impl FnOnce(&mut Vec<u8>)) -> Input {
    let route = customers_route();
    let mut value = route.get(ATTRIBUTE).expect("attested").value.to_vec();
    change(&mut value);
    let mut edit = path(asns).edit();
    edit.set(ATTRIBUTE, AttributeFlags::OPTIONAL_TRANSITIVE, &value);
    let prefixes = vec![Nlri::new(p("10.1.0.0/16"))];
    Input::Route { id: [id; 32], announcer: 5, set: [1; 32], prefixes, attributes: edit.finish() }
}

impl Driven {
    fn finish_all(&mut self) {
        while !self.work.is_empty() {
            let job = self.work.remove(0);
            self.finish(job);
        }
    }
}

#[test]
fn a_changed_key_concerns_the_members_routes_whose_path_names_its_as() {
    let mut driven = Driven::new(KeyRing::default());
    driven.give(registered(1, 1));
    driven.give(received(1, &[CUSTOMER], |_| ()));
    driven.give(received(2, &[Asn(7), CUSTOMER], |_| ()));
    driven.announce("10.1.0.0/16", customers_route());
    driven.finish_all();
    let status = driven.member.status();
    assert_eq!((status.counts.validated, status.classes["valid"]), (2, 1));
    let signatures = status.counts.signatures;
    driven.give(registered(2, 2));
    driven.finish_all();
    let status = driven.member.status();
    // The route of AS 7, whose signature is for somebody else: only right ones are remembered.
    assert_eq!((status.counts.validated, status.counts.signatures), (3, signatures + 1));
    driven.give(registered(3, 2));
    assert_eq!(driven.work.len(), 0, "nothing has changed");
}

#[test]
fn an_announcer_of_many_wrong_signatures_is_suspect_and_still_served() {
    let mut driven = Driven::new(KeyRing::default());
    driven.give(registered(1, 1));
    for id in 0..100 {
        let garble = |value: &mut Vec<u8>| *value.last_mut().expect("a signature") ^= id.max(1);
        driven.give(received(id, &[CUSTOMER], garble));
    }
    driven.finish_all();
    let is_suspect = |event: &&MemberAttestationEvent| matches!(event, MemberAttestationEvent::Suspect(5));
    assert_eq!(driven.events.iter().filter(is_suspect).count(), 1);
    let status = driven.member.status();
    assert_eq!((status.suspects, status.classes["invalid"], status.waiting[0]), (1, 100, 0));
    // Each table has an account, and what is received goes when it has gone.
    assert!(status.memory["routes"].octets > 100 * 300);
    (0..100).for_each(|id| driven.give(Input::Gone([id; 32])));
    assert_eq!(driven.member.status().memory["routes"].octets, 0);
    driven.give(received(1, &[CUSTOMER], |_| ()));
    driven.finish_all();
    assert_eq!(driven.member.status().classes["valid"], 1);
}

#[test]
fn routes_of_other_members_take_no_more_than_their_bound_and_one_announcer_a_quarter_of_it() {
    const MOST: usize = 4 << 20;
    let mut driven = Driven::with_memory(KeyRing::default(), MOST);
    let mut big = path(&[Asn(65_002)]).edit();
    big.set(ATTRIBUTE, wayleave_bgp::AttributeFlags::OPTIONAL_TRANSITIVE, &[2; 16_000]);
    let big = big.finish();
    let route = |announcer: u32, number: u32| {
        let mut id = [announcer as u8; 32];
        id[..4].copy_from_slice(&number.to_be_bytes());
        let prefixes = vec![Nlri::new(p(&format!("10.{announcer}.{}.0/24", number % 256)))];
        Input::Route { id, announcer, set: [1; 32], prefixes, attributes: big.clone() }
    };
    let routes = |driven: &Driven| driven.member.status().memory["routes"];
    let refused = |driven: &Driven| {
        let is_full = |event: &&MemberAttestationEvent| matches!(event, MemberAttestationEvent::OutOfMemory(2));
        driven.events.iter().filter(is_full).count()
    };
    // An announcer that goes on and on: its share, and not a route more. Each refused route is one that the member must not use.
    for number in 0..1_000 {
        driven.give(route(2, number));
        driven.work.clear();
    }
    let status = routes(&driven);
    assert_eq!(status.most_octets, MOST);
    assert!(status.octets <= MOST / 4 && status.octets > MOST / 5, "{status:?}");
    let is_refused = |findings: &&Vec<Finding>| findings.iter().all(|finding| finding.attributes.is_none());
    assert_eq!(refused(&driven), driven.findings.iter().filter(is_refused).count());
    assert!(refused(&driven) > 900);
    assert_eq!(driven.member.status().counts.out_of_memory, refused(&driven) as u64);
    // Others have their room.
    driven.give(route(3, 0));
    assert!(routes(&driven).octets > status.octets);
    // The same route again takes no more, and what goes makes room.
    driven.give(route(3, 0));
    let Input::Route { id, .. } = route(3, 0) else { unreachable!("it is a route") };
    driven.give(Input::Gone(id));
    assert_eq!(routes(&driven).octets, status.octets);
    let Input::Route { id, .. } = route(2, 0) else { unreachable!("it is a route") };
    driven.give(Input::Gone(id));
    let before = refused(&driven);
    driven.give(route(2, 5_000));
    assert_eq!((refused(&driven), routes(&driven).octets), (before, status.octets));
}

#[test]
fn a_members_end_of_rib_comes_after_routes_that_wait_for_a_slot_and_a_changed_route_is_withdrawn() {
    let mut driven = Driven::new(few_time());
    driven.sleep_until(BEGIN + 40);
    driven.announce("10.1.0.0/16", path(&[MEMBER]));
    while let Some(job) = driven.work.pop() {
        driven.finish(job);
    }
    assert_eq!(driven.signed_for().len(), 1);
    driven.give(Input::ClockSynchronised(false));
    let mut other = path(&[MEMBER]).edit();
    other.med(Some(7));
    driven.announce("10.1.0.0/16", other.finish());
    driven.give(Input::RouterEndOfRib);
    let withdrawn = |driven: &Driven| driven.announcements.iter().map(|said| said.withdrawn).sum::<usize>();
    assert_eq!((withdrawn(&driven), driven.ends_of_rib), (0, 0), "not tried yet");
    while let Some(job) = driven.work.pop() {
        driven.finish(job);
    }
    assert_eq!((withdrawn(&driven), driven.ends_of_rib), (1, 0));
    driven.give(Input::ClockSynchronised(true));
    driven.sleep_until(BEGIN + 80);
    assert_eq!((driven.signed_for().len(), withdrawn(&driven), driven.ends_of_rib), (2, 1, 1));
}

#[test]
fn routes_that_stay_announced_after_a_loss_are_signed_again_until_they_are_gone() {
    let mut driven = Driven::new(KeyRing { pairs: vec![pair(MEMBER)] });
    let [kept, again, other] = ["10.1.0.0/16", "10.2.0.0/16", "10.3.0.0/16"];
    for prefix in [kept, again, other] {
        driven.announce(prefix, path(&[MEMBER]));
    }
    driven.finish_all();
    assert_eq!(driven.signed_for().len(), 3);
    let stays = |prefixes: &[&str]| Input::RouterLost { stays: prefixes.iter().map(|of| Nlri::new(p(of))).collect() };
    driven.give(Input::RouterEndOfRib);
    driven.give(stays(&[kept, again]));
    let mut members = vec![MEMBER, Asn(65_002)];
    let mut joins = |driven: &mut Driven| {
        members.push(Asn(65_100 + members.len() as u32));
        driven.members(members.len() as u64, &members);
        driven.finish_all();
        driven.signed_for().len()
    };
    assert_eq!(joins(&mut driven), 5, "what stays is signed for a new member");
    driven.announce(again, path(&[MEMBER]));
    driven.give(Input::RouterEndOfRib);
    driven.give(stays(&[kept, again]));
    driven.finish_all();
    assert_eq!((driven.signed_for().len(), driven.ends_of_rib), (6, 1), "the second loss ends the wait for it");
    assert_eq!(joins(&mut driven), 7, "the router did not say that it still has the first one");
    driven.give(Input::StaleGone(Afi::Ipv6));
    assert_eq!(joins(&mut driven), 8);
    driven.give(Input::StaleGone(Afi::Ipv4));
    assert_eq!(joins(&mut driven), 8);
}
