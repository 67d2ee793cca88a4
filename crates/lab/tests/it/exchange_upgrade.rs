//! Upgrades of an exchange, one process after the other, while routes change: members and parties of two versions, and one step back.
//! The second version is this program with one frame more on each kind of link, and a format of objects with one field more.
//!
//! SIX, versions: a party that says other versions to its peer than to members, or to one member than to others: the honest party and the
//! member are told of it, and nothing is served. A member that announces in a format that not all read: refused, with that reason.

use std::collections::BTreeSet;
use std::time::Duration;

use wayleave_core::Prefix;
use wayleave_lab::sim::bad::Forger;
use wayleave_lab::sim::{FrameAction, Node, PARTIES, Setup, Tamper};
use wayleave_route_server::frames::{FromMember, PartyFrame, Refusal, Rejection, ToMember};
use wayleave_route_server::object::{ExportMode, Format};
use wayleave_route_server::party::{PartyEvent, PartyStatus};
use wayleave_route_server::versions::{Speaks, VERSIONS, Versions};

use crate::common::{Exchange, in_both_modes, nlri, route};

const MEMBERS: u32 = 6;
const TICK: Duration = Duration::from_millis(20);
/// The second version, and the second format.
const SECOND: u16 = 8;
const SECOND_FORMAT: u16 = 1;

/// An exchange in which routes change all the time.
struct Upgrade {
    exchange: Exchange,
    /// Prefixes whose announcers stay.
    stay: BTreeSet<Prefix>,
    changes: u32,
}

/// What was seen of the second version.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Seen {
    /// Frames of it, to members and between the parties.
    to_members: usize,
    between_parties: usize,
    /// Objects that were announced in its format.
    objects: usize,
}

impl Upgrade {
    fn new(export: ExportMode, seed: u64) -> Self {
        let setup = Setup { members: MEMBERS as usize, tick: TICK, seed, export, ..Setup::default() };
        let mut upgrade = Self { exchange: Exchange::new(setup), stay: BTreeSet::new(), changes: 0 };
        for slot in 0..MEMBERS {
            // One that nobody else announces, and one for which members compete.
            for prefix in [format!("20.{}.0.0/16", 100 + slot), format!("20.{}.0.0/16", 200 + slot / 2)] {
                let nlri = nlri(&prefix);
                upgrade.stay.insert(nlri.prefix);
                upgrade.exchange.announce(slot, &[nlri], &route(slot, &[64500 + slot], &[]));
            }
        }
        upgrade.exchange.check();
        upgrade.exchange.sim.recording = Some(Vec::new());
        upgrade
    }

    /// Routes come and go for so many ticks.
    fn churn(&mut self, ticks: u32) {
        for _ in 0..ticks {
            self.changes += 1;
            let slot = u32::try_from(self.exchange.sim.choose(MEMBERS as usize)).expect("few");
            let prefix = nlri(&format!("20.{}.0.0/16", self.exchange.sim.choose(12)));
            if self.exchange.sim.choose(3) == 0 {
                self.exchange.withdraw(slot, &[prefix]);
            } else {
                self.exchange.announce(slot, &[prefix], &route(slot, &[64500 + self.changes % 100], &[]));
            }
            self.exchange.sim.connect_all();
            self.exchange.sim.run_for(TICK);
        }
    }

    /// A process ends, and starts again as one that speaks `speaks`. Returns what was seen of the second version from its end on until
    /// all is at rest, with every router's table as it has to be. No other router loses a route meanwhile whose announcer stays.
    fn restart(&mut self, node: Node, speaks: Speaks) -> Seen {
        let name = format!("{node:?} to {speaks:?}");
        self.exchange.sim.router_changes.clear();
        self.exchange.sim.recording = Some(Vec::new());
        self.exchange.sim.speaks.insert(node, speaks);
        self.churn(3);
        self.exchange.sim.kill(node);
        self.churn(3);
        self.exchange.sim.start(node);
        self.churn(10);
        self.exchange.check();
        for (slot, prefix, has) in &self.exchange.sim.router_changes {
            let is_own = node == Node::Member(*slot);
            assert!(*has || is_own || !self.stay.contains(prefix), "{name}: member {slot} loses {prefix}");
        }
        // What has been agreed on by now holds for what comes.
        self.churn(10);
        self.exchange.check();
        let alarms: u64 = (0..MEMBERS).map(|slot| self.exchange.sim.alarms(slot).count() as u64).sum();
        assert_eq!(alarms, 0, "{name}");
        assert!(!self.exchange.sim.party_events.iter().any(|(_, event)| is_fault(event)), "{name}");
        self.seen()
    }

    fn seen(&self) -> Seen {
        let mut seen = Seen::default();
        for frame in self.exchange.sim.recording.iter().flatten() {
            match (frame.from, frame.to) {
                (Node::Party(_), Node::Member(_)) => {
                    seen.to_members +=
                        usize::from(ToMember::decode(&frame.bytes).is_ok_and(|frame| frame.since() == Some(SECOND)));
                }
                (Node::Party(_), Node::Party(_)) => {
                    seen.between_parties +=
                        usize::from(PartyFrame::decode(&frame.bytes).is_ok_and(|frame| frame.since() == Some(SECOND)));
                }
                _ => {
                    let second = match FromMember::decode(&frame.bytes) {
                        Ok(FromMember::SubmitOne { header, .. }) => header.description.format.number() == SECOND_FORMAT,
                        _ => false,
                    };
                    seen.objects += usize::from(second);
                }
            }
        }
        seen
    }

    fn party(&self, party: Node) -> PartyStatus {
        self.exchange.sim.party(party).expect("it runs").status()
    }

    /// The versions of all members' sessions, as they and both parties say.
    fn sessions(&mut self) -> Vec<u16> {
        let of = |slot| {
            self.exchange.sim.member(slot).and_then(|member| member.status().protocol_version).expect("a session")
        };
        let sessions: Vec<u16> = (0..MEMBERS).map(of).collect();
        for party in PARTIES {
            let at_party: Vec<u16> = self.party(party).speaks.iter().filter_map(|of| of.protocol_version).collect();
            assert_eq!(at_party, sessions, "{party:?}");
        }
        sessions
    }

    fn formats(&self) -> [u16; 2] {
        PARTIES.map(|party| self.party(party).format)
    }
}

fn is_fault(event: &PartyEvent) -> bool {
    matches!(event, PartyEvent::BadFrame { .. } | PartyEvent::VersionsDiffer { .. } | PartyEvent::Mismatch { .. })
}

in_both_modes!(members_of_two_versions_are_served_while_parties_and_then_members_are_upgraded_and_one_steps_back);
fn members_of_two_versions_are_served_while_parties_and_then_members_are_upgraded_and_one_steps_back(
    export: ExportMode,
) {
    let (first, second) = (Speaks::default(), Speaks::everything());
    let mut upgrade = Upgrade::new(export, 2_600);
    upgrade.churn(10);
    upgrade.exchange.check();
    assert_eq!(upgrade.seen(), Seen::default());

    // Party 1 alone: nothing changes.
    assert_eq!(upgrade.restart(PARTIES[0], second), Seen::default());
    assert_eq!(upgrade.sessions(), [7; MEMBERS as usize]);
    assert_eq!(upgrade.party(PARTIES[0]).peer_protocol_version, Some(7));

    // With party 2 the parties raise what is between them.
    let seen = upgrade.restart(PARTIES[1], second);
    assert!(seen.between_parties > 0 && seen.to_members == 0 && seen.objects == 0, "{seen:?}");
    assert_eq!(upgrade.sessions(), [7; MEMBERS as usize]);
    assert_eq!(PARTIES.map(|party| upgrade.party(party).peer_protocol_version), [Some(8); 2]);

    // Each member has the second version at once, and the second format once the last one has.
    for slot in 0..MEMBERS {
        let seen = upgrade.restart(Node::Member(slot), second);
        let is_last = slot + 1 == MEMBERS;
        assert!(seen.to_members > 0, "{slot}: {seen:?}");
        assert_eq!(seen.objects > 0, is_last, "{slot}: {seen:?}");
        let sessions = upgrade.sessions();
        assert!((0..MEMBERS).zip(&sessions).all(|(of, version)| *version == if of <= slot { 8 } else { 7 }));
        let holding_back: Vec<u32> = (slot + 1..MEMBERS).collect();
        for party in PARTIES {
            let status = upgrade.party(party);
            assert_eq!((status.holding_back, status.format), (holding_back.clone(), u16::from(is_last)));
        }
    }

    // A member steps back: it gets all routes in the first format, and no others are made.
    upgrade.restart(Node::Member(2), first);
    assert_eq!(upgrade.sessions()[2], 7);
    assert_eq!(upgrade.formats(), [0; 2]);
    assert_eq!(upgrade.party(PARTIES[1]).holding_back, [2]);
    upgrade.exchange.sim.recording = Some(Vec::new());
    upgrade.churn(10);
    upgrade.exchange.check();
    assert_eq!(upgrade.seen(), Seen::default());

    // So does a party, in whose store is nothing of the second format any more.
    upgrade.restart(PARTIES[1], first);
    assert_eq!(upgrade.sessions(), [7; MEMBERS as usize]);
    assert_eq!(upgrade.party(PARTIES[0]).peer_protocol_version, Some(7));

    // And on again. What fell rises an hour later.
    upgrade.restart(PARTIES[1], second);
    let seen = upgrade.restart(Node::Member(2), second);
    assert_eq!(seen.objects, 0, "{seen:?}");
    assert_eq!(upgrade.formats(), [0, 1], "party 2 has forgotten that it fell");
    upgrade.exchange.sim.run_for(Duration::from_secs(3600));
    assert_eq!(upgrade.formats(), [1; 2]);
    upgrade.churn(10);
    upgrade.exchange.check();
    assert!(upgrade.seen().objects > 0);
    assert_eq!(upgrade.sessions(), [8; MEMBERS as usize]);
}

#[test]
fn what_an_absent_member_reads_counts_until_it_is_back_or_removed() {
    let mut exchange = Exchange::new(Setup { members: 3, seed: 2_601, ..Setup::default() });
    for node in PARTIES.into_iter().chain([0, 1].map(Node::Member)) {
        exchange.sim.speaks.insert(node, Speaks::everything());
    }
    exchange.sim.kill(Node::Member(2));
    for node in PARTIES.into_iter().chain([0, 1].map(Node::Member)) {
        exchange.sim.kill(node);
        exchange.sim.start(node);
    }
    exchange.check();
    let format = |exchange: &Exchange, party| exchange.sim.party(party).expect("it runs").status().format;
    assert_eq!(PARTIES.map(|party| format(&exchange, party)), [0; 2], "it was there, and reads the first");
    // A member that joins has nothing to lose, and holds nobody back before it is there.
    exchange.leave(2);
    exchange.check();
    assert_eq!(PARTIES.map(|party| format(&exchange, party)), [1; 2]);
    let joins = exchange.sim.set.slots.len();
    exchange.sim.speaks.insert(Node::Member(u32::try_from(joins).expect("few")), Speaks::everything());
    exchange.join();
    exchange.check();
    assert_eq!(PARTIES.map(|party| format(&exchange, party)), [1; 2]);
}

/// What a party says of the versions that it speaks is changed towards those whom `whom` names.
fn says(party: Node, versions: Versions, whom: impl Fn(Node) -> bool + 'static) -> Tamper {
    Box::new(move |from, to, bytes| {
        if from != party || !whom(to) {
            return FrameAction::Pass;
        }
        // Where a greeting has its range, in all versions.
        let [0x01, _, _, _, _, rest @ ..] = bytes else { return FrameAction::Pass };
        let [a, b] = [versions.least, versions.highest].map(u16::to_be_bytes);
        FrameAction::Change([&[1][..], &a, &b, rest].concat())
    })
}

#[test]
fn a_party_that_says_other_versions_to_its_peer_than_to_a_member_is_noticed_and_the_member_is_not_served() {
    let higher = Versions { highest: SECOND, ..VERSIONS };
    for (liar, honest) in [(PARTIES[0], PARTIES[1]), (PARTIES[1], PARTIES[0])] {
        // To the peer party it says more than to members; or to one member less than to all others, which is a downgrade.
        for (is_all, speaks) in [(true, Speaks::default()), (false, Speaks::everything())] {
            let mut exchange = Exchange::new(Setup { members: 3, seed: 2_602, ..Setup::default() });
            exchange.announce(0, &[nlri("20.0.0.0/16")], &route(0, &[64500], &[]));
            exchange.check();
            let nodes: Vec<Node> = PARTIES.into_iter().chain((0..3).map(Node::Member)).collect();
            for node in &nodes {
                exchange.sim.speaks.insert(*node, speaks);
                exchange.sim.kill(*node);
            }
            exchange.sim.forget_events();
            exchange.sim.recording = Some(Vec::new());
            exchange.sim.tamper = Some(if is_all {
                says(liar, higher, move |to| to == honest)
            } else {
                says(liar, VERSIONS, |to| to == Node::Member(2))
            });
            for node in &nodes {
                exchange.sim.start(*node);
            }
            for _ in 0..20 {
                exchange.sim.connect_all();
                exchange.sim.run_for(Duration::from_millis(50));
            }
            let name = format!("{liar:?}, all: {is_all}");
            let named = |(at, event): &(Node, PartyEvent)| {
                *at == honest
                    && matches!(event, PartyEvent::VersionsDiffer { slot: 2, told: VERSIONS, ours } if *ours == higher)
            };
            assert!(exchange.sim.party_events.iter().any(named), "{name}: {:?}", exchange.sim.party_events);
            let told = exchange.sim.recording.iter().flatten().any(|frame| {
                let Ok(ToMember::Rejected { why: Rejection::Told { told, ours } }) = ToMember::decode(&frame.bytes)
                else {
                    return false;
                };
                (frame.from, frame.to) == (honest, Node::Member(2)) && (told, ours) == (VERSIONS, higher)
            });
            assert!(told, "{name}: the member is told");
            let is_served = |slot| {
                PARTIES
                    .iter()
                    .any(|party| exchange.sim.party(*party).expect("it runs").status().members.contains(&slot))
            };
            assert!(!is_served(2), "{name}");
            assert_eq!(is_served(1), !is_all, "{name}: others are served");
            exchange.sim.tamper = None;
            exchange.sim.cut_all();
            exchange.check();
        }
    }
}

#[test]
fn a_session_of_another_version_than_follows_from_the_three_ranges_does_not_begin() {
    let (none, both) = (Versions { least: 900, highest: 901 }, Versions { highest: SECOND, ..VERSIONS });
    let begin = |version, told| FromMember::Begin { version, told }.encode();
    for (speaks, frame, said) in [
        (Speaks::default(), begin(SECOND, [VERSIONS; 2]), "not the highest"),
        (Speaks::default(), begin(7, [none; 2]), "it says that this party speaks version 900 to 901"),
        // A lower one than all three speak, as who wants an older version used would have it.
        (Speaks::everything(), begin(7, [both; 2]), "not the highest"),
        (Speaks::default(), FromMember::holds_nothing().encode(), "before its session has begun"),
    ] {
        for party in PARTIES {
            let mut exchange = Exchange::new(Setup { members: 2, seed: 2_605, ..Setup::default() });
            exchange.announce(1, &[nlri("20.0.0.0/16")], &route(1, &[64500], &[]));
            for node in PARTIES {
                exchange.sim.speaks.insert(node, speaks);
                exchange.sim.kill(node);
                exchange.sim.start(node);
            }
            exchange.check();
            exchange.sim.play_member(0);
            exchange.sim.run_for(Duration::from_millis(10));
            let mut hello = Forger::new(2_605, 0).hello([9; 16], true);
            hello[4] = u8::try_from(speaks.versions.highest).expect("a low one");
            exchange.sim.inject(Node::Member(0), party, &hello);
            exchange.sim.inject(Node::Member(0), party, &frame);
            exchange.sim.run_for(Duration::from_millis(10));
            let named = |(at, event): &(Node, PartyEvent)| {
                *at == party && matches!(event, PartyEvent::BadFrame { slot: Some(0), what } if what.contains(said))
            };
            assert!(exchange.sim.party_events.iter().any(named), "{said}: {:?}", exchange.sim.party_events);
            exchange.sim.kill(Node::Member(0));
            exchange.sim.start(Node::Member(0));
            exchange.check();
        }
    }
}

#[test]
fn an_object_in_a_format_that_not_all_members_read_is_refused_by_both_parties() {
    const BAD: u32 = 0;
    let mut exchange = Exchange::new(Setup { members: 3, seed: 2_603, ..Setup::default() });
    exchange.announce(1, &[nlri("20.0.0.0/16")], &route(1, &[64500], &[]));
    exchange.check();
    exchange.sim.play_member(BAD);
    let mut forger = Forger::new(2_603, BAD);
    forger.greet(&mut exchange.sim, true);
    exchange.sim.run_for(Duration::from_millis(10));
    exchange.sim.forget_events();
    let format = Format::Second { note: 7 };
    let mut draft = forger.draft(&exchange.sim, &[nlri("20.9.0.0/16")], &route(BAD, &[64500], &[]));
    (draft.description.format, draft.inside.format) = (format, format);
    let object = forger.seal(&draft);
    forger.submit(&mut exchange.sim, &object);
    exchange.sim.run_for(Duration::from_millis(10));
    for party in PARTIES {
        let refused = |(at, event): &(Node, PartyEvent)| {
            *at == party && matches!(event, PartyEvent::Refused { slot: BAD, reason: Refusal::Format, .. })
        };
        assert!(exchange.sim.party_events.iter().any(refused), "{party:?}: {:?}", exchange.sim.party_events);
    }
    exchange.sim.kill(Node::Member(BAD));
    exchange.sim.start(Node::Member(BAD));
    exchange.check();
}

#[test]
fn a_program_of_before_is_told_the_version_in_its_own_words_and_a_later_one_the_range() {
    // As version 6 wrote it: version, exchange, slot, session, whether it ranks.
    let before = [&[1, 0, 6, 0, 0, 0, 6][..], b"sim-ix", &[0, 0, 0, 0], &[9; 16], &[1]].concat();
    let mut after = Forger::new(2_604, 0).hello([9; 16], true);
    after[1..5].copy_from_slice(&[0, 9, 0, 10]);
    for (hello, answer, said) in [
        (before, vec![7, 1, 0, 7], "it speaks version 6 of the protocol, and this program 7: it is the older"),
        (after, vec![7, 5, 0, 7, 0, 7, 0, 0, 0, 0], "this program is the older of the two"),
    ] {
        let mut exchange = Exchange::new(Setup { members: 2, seed: 2_604, ..Setup::default() });
        exchange.sim.play_member(0);
        exchange.sim.run_for(Duration::from_millis(10));
        exchange.sim.recording = Some(Vec::new());
        for party in PARTIES {
            exchange.sim.inject(Node::Member(0), party, &hello);
        }
        exchange.sim.run_for(Duration::from_millis(10));
        for party in PARTIES {
            let answers: Vec<&[u8]> = exchange
                .sim
                .recording
                .iter()
                .flatten()
                .filter(|frame| frame.from == party)
                .map(|frame| &*frame.bytes)
                .collect();
            assert!(answers.contains(&answer.as_slice()), "{answers:?}");
            let told = |(at, event): &(Node, PartyEvent)| {
                *at == party && matches!(event, PartyEvent::BadFrame { slot: Some(0), what } if what.contains(said))
            };
            assert!(exchange.sim.party_events.iter().any(told), "{:?}", exchange.sim.party_events);
        }
    }
}
