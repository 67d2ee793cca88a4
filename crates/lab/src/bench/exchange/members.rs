//! The members of a benchmark: some are whole, the machine that is shipped; the others are sinks.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use wayleave_bgp::peer::PeerEvent;
use wayleave_bgp::{Attributes, Nlri, Update};
use wayleave_core::{Instant, Machine, Prefix};
use wayleave_crypto::sign::SigningKey;
use wayleave_member::{Input, MemberProxy, Output};
use wayleave_route_server::directory::MemberSet;
use wayleave_route_server::frames::FromMember;
use wayleave_route_server::member::MemberConfig;
use wayleave_route_server::object::ExportMode;
use wayleave_route_server::party::{LinkId, PartyNumber};
use wayleave_route_server::policy::{Policy, PolicyConfig};
use wayleave_route_server::versions::Speaks;

use super::{BOTH, fresh, now, thread_time};
use crate::sim::{EXCHANGE, RS_ASN, Setup, directory_of, member_key, operator_keys};
use crate::sink::{Sink, SinkTotals};

/// What members ask of the links.
#[derive(Debug)]
pub enum ToParty {
    Up { party: PartyNumber, link: LinkId, slot: u32, exporter: [u8; 32] },
    Down { party: PartyNumber, link: LinkId },
    Frame { party: PartyNumber, link: LinkId, bytes: Vec<u8> },
}

/// For whom the members' thread worked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whose {
    Announcer,
    Receivers,
    Sinks,
}

/// Processor time of the members' thread, in the order of [`Whose`].
pub type Work = [Duration; 3];

/// The whole member that says what all hold: the first receiver.
const HOLDER: u32 = 1;

struct Whole {
    proxy: MemberProxy,
    whose: Whose,
    table: BTreeMap<Prefix, Attributes>,
}

/// All members.
pub struct Members {
    seed: u64,
    export: ExportMode,
    pub set: MemberSet,
    whole: BTreeMap<u32, Whole>,
    sinks: BTreeMap<u32, (Sink, SigningKey)>,
    links: HashMap<LinkId, (u32, PartyNumber)>,
    by_slot: BTreeMap<(u32, PartyNumber), LinkId>,
    next_link: LinkId,
    /// What the [`HOLDER`] has said that it holds since its links came up.
    held: Option<FromMember>,
    /// What is to be sent.
    pub out: Vec<ToParty>,
    pub work: Work,
    /// Links that somebody closed, and why.
    pub closed: Vec<String>,
    /// What members had to say to their operators and that is no change of a route.
    pub events: Vec<String>,
}

impl Members {
    /// No members yet, of an exchange with the slots of `setup`.
    #[must_use]
    pub fn new(setup: &Setup) -> Self {
        Self {
            seed: setup.seed,
            export: setup.export,
            set: MemberSet::clone(directory_of(setup).set()),
            whole: BTreeMap::new(),
            sinks: BTreeMap::new(),
            links: HashMap::new(),
            by_slot: BTreeMap::new(),
            next_link: 1,
            held: None,
            out: Vec::new(),
            work: Work::default(),
            closed: Vec::new(),
            events: Vec::new(),
        }
    }

    /// A whole member in `slot`, without links, whose router announces nothing so far.
    pub fn add_whole(&mut self, slot: u32, whose: Whose) {
        self.add_whole_with(slot, whose, &[]);
    }

    /// A whole member in `slot`, without links, whose router announces these prefixes with these attributes and then marks the end of
    /// its table. A proxy that was there before has gone with all that it held.
    ///
    /// # Panics
    /// If the default policy is none.
    pub fn add_whole_with(&mut self, slot: u32, whose: Whose, table: &[(Vec<Nlri>, Attributes)]) {
        let config = MemberConfig {
            exchange: EXCHANGE.to_owned(),
            rs_asn: RS_ASN,
            operators: operator_keys(self.seed).map(|key| key.verifying_key()),
            slot,
            keys: Vec::new(),
            select_best: true,
            stale: Duration::from_secs(3600),
            settle: Duration::from_secs(5),
            lab: true,
            accept_as_set: false,
            paths: 1,
            has_role: false,
            validates: false,
            speaks: Speaks::default(),
        };
        let policy = Box::new(Policy::compile(&PolicyConfig::default()).expect("the default policy is one"));
        let proxy = MemberProxy::new(config, policy, member_key(self.seed, slot), &fresh(), &[], None, now());
        self.whole.insert(slot, Whole { proxy, whose, table: BTreeMap::new() });
        self.router(slot, PeerEvent::Up);
        table.iter().for_each(|(announced, attributes)| self.update(slot, &[], announced, Some(attributes)));
        self.router(slot, PeerEvent::EndOfRib);
    }

    /// A whole member's operator loads another policy.
    pub fn set_policy(&mut self, slot: u32, policy: Policy) {
        self.timed(slot, |members| {
            if let Some(whole) = members.whole.get_mut(&slot) {
                whole.proxy.reseed(&fresh());
                whole.proxy.handle(Input::Policy(Box::new(policy)), now());
            }
            members.drain(slot);
        });
    }

    /// The member in `slot` goes down, and its links with it.
    pub fn remove(&mut self, slot: u32) {
        self.whole.remove(&slot);
        self.sinks.remove(&slot);
        for party in BOTH {
            if let Some(link) = self.by_slot.remove(&(slot, party)) {
                self.links.remove(&link);
                self.out.push(ToParty::Down { party, link });
            }
        }
    }

    /// Whether the parties have welcomed all sinks, which can announce from then on.
    #[must_use]
    pub fn sinks_are_welcome(&self) -> bool {
        self.sinks.values().all(|(sink, _)| sink.is_welcome())
    }

    /// A sink in `slot`, without links. One that keeps what it takes says, when it connects again, what a whole member does that has
    /// taken the same; any other is sent everything.
    pub fn add_sink(&mut self, slot: u32, selects: bool, keeps: bool) {
        let sink = Sink::new(self.seed, slot, selects);
        let sink = if keeps { sink.keeping() } else { sink };
        self.sinks.insert(slot, (sink, member_key(self.seed, slot)));
    }

    /// Sinks that wait for that say what a whole member says that it holds.
    fn sinks_hold(&mut self) {
        let Some(held) = self.held.clone() else { return };
        let waiting: Vec<u32> =
            self.sinks.iter().filter(|(_, (sink, _))| sink.waits()).map(|(slot, _)| *slot).collect();
        waiting.into_iter().for_each(|slot| self.sink(slot, |sink, at, out| sink.say_held(&held, at, out)));
    }

    fn slots(&self) -> impl Iterator<Item = u32> {
        self.whole.keys().chain(self.sinks.keys()).copied()
    }

    /// Connects all members to the parties that are up.
    pub fn connect(&mut self, is_up: [bool; 2]) {
        let slots: Vec<u32> = self.slots().collect();
        for slot in slots {
            let missing = BOTH
                .into_iter()
                .filter(|party| is_up[super::index(*party)] && !self.by_slot.contains_key(&(slot, *party)));
            for party in missing.collect::<Vec<_>>() {
                self.connect_to(slot, party);
            }
        }
        self.sinks_hold();
    }

    fn connect_to(&mut self, slot: u32, party: PartyNumber) {
        let link = self.next_link;
        self.next_link += 1;
        self.links.insert(link, (slot, party));
        self.by_slot.insert((slot, party), link);
        let exporter = fresh();
        self.out.push(ToParty::Up { party, link, slot, exporter: *exporter.expose() });
        self.timed(slot, |members| match members.whole.get_mut(&slot) {
            Some(whole) => {
                whole.proxy.handle(Input::LinkUp { link, party, exporter }, now());
                members.drain(slot);
            }
            None => members.sink(slot, |sink, at, out| sink.link_up(party, at, out)),
        });
    }

    /// The process of `party` has gone.
    pub fn party_gone(&mut self, party: PartyNumber) {
        let gone: Vec<LinkId> = self.links.iter().filter(|(_, (_, of))| *of == party).map(|(link, _)| *link).collect();
        gone.into_iter().for_each(|link| self.link_down(link));
    }

    /// A party has closed a link.
    pub fn party_closed(&mut self, link: LinkId, why: &str) {
        self.closed.push(format!("by a party, of slot {:?}: {why}", self.links.get(&link)));
        self.link_down(link);
    }

    fn link_down(&mut self, link: LinkId) {
        let Some((slot, party)) = self.links.remove(&link) else { return };
        self.by_slot.remove(&(slot, party));
        self.held.take_if(|_| slot == HOLDER);
        if let Some(whole) = self.whole.get_mut(&slot) {
            whole.proxy.handle(Input::LinkDown { link }, now());
            return self.drain(slot);
        }
        if let Some((sink, _)) = self.sinks.get_mut(&slot) {
            sink.link_down(party);
        }
        // As a member does: both links are connected again.
        for party in BOTH {
            if let Some(link) = self.by_slot.remove(&(slot, party)) {
                self.links.remove(&link);
                self.sinks.get_mut(&slot).into_iter().for_each(|(sink, _)| sink.link_down(party));
                self.out.push(ToParty::Down { party, link });
            }
        }
    }

    /// A frame of a party.
    pub fn frame(&mut self, link: LinkId, bytes: Vec<u8>) {
        let Some((slot, party)) = self.links.get(&link).copied() else { return };
        self.timed(slot, |members| match members.whole.get_mut(&slot) {
            Some(whole) => {
                whole.proxy.reseed(&fresh());
                whole.proxy.handle(Input::Frame { link, bytes }, now());
                members.drain(slot);
            }
            None => members.sink(slot, |sink, at, out| sink.frame(party, &bytes, at, out)),
        });
    }

    /// When a member's next timer is due.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.whole.values().filter_map(|whole| whole.proxy.deadline()).min()
    }

    /// Runs the timers that are due.
    pub fn timers(&mut self) {
        let at = now().instant;
        let is_due = |whole: &Whole| whole.proxy.deadline().is_some_and(|due| due <= at);
        let due: Vec<u32> = self.whole.iter().filter(|(_, whole)| is_due(whole)).map(|(slot, _)| *slot).collect();
        for slot in due {
            self.timed(slot, |members| {
                if let Some(whole) = members.whole.get_mut(&slot) {
                    whole.proxy.reseed(&fresh());
                    whole.proxy.handle_timeout(now());
                }
                members.drain(slot);
            });
        }
    }

    fn router(&mut self, slot: u32, event: PeerEvent) {
        self.timed(slot, |members| {
            if let Some(whole) = members.whole.get_mut(&slot) {
                whole.proxy.reseed(&fresh());
                whole.proxy.handle(Input::Router(event), now());
            }
            members.drain(slot);
        });
    }

    /// The router of a whole member, or a sink, announces or withdraws.
    pub fn update(&mut self, slot: u32, withdrawn: &[Nlri], announced: &[Nlri], attributes: Option<&Attributes>) {
        if self.whole.contains_key(&slot) {
            let (withdrawn, announced) = (withdrawn.to_vec(), announced.to_vec());
            let update = Update { withdrawn, announced, attributes: attributes.cloned(), ..Update::default() };
            return self.router(slot, PeerEvent::Update(Box::new(update)));
        }
        let (set, export) = (self.set.clone(), self.export);
        self.timed(slot, |members| {
            let Some((sink, key)) = members.sinks.get_mut(&slot) else { return };
            let (at, mut out) = (now().instant, Vec::new());
            if !withdrawn.is_empty() {
                sink.withdraw(&set, key, withdrawn, (at, &mut out));
            }
            if let Some(attributes) = attributes.filter(|_| !announced.is_empty()) {
                sink.announce((&set, export), key, announced, attributes, (at, &mut out));
            }
            members.sent(slot, out);
        });
    }

    fn sink(&mut self, slot: u32, act: impl FnOnce(&mut Sink, Instant, &mut Vec<crate::sink::Sent>)) {
        let Some((sink, _)) = self.sinks.get_mut(&slot) else { return };
        let mut out = Vec::new();
        act(sink, now().instant, &mut out);
        self.sent(slot, out);
    }

    fn sent(&mut self, slot: u32, out: Vec<crate::sink::Sent>) {
        for (party, bytes) in out {
            if let Some(link) = self.by_slot.get(&(slot, party)).copied() {
                self.out.push(ToParty::Frame { party, link, bytes });
            }
        }
    }

    fn drain(&mut self, slot: u32) {
        while let Some(whole) = self.whole.get_mut(&slot) {
            let Some(output) = whole.proxy.poll() else { return };
            match output {
                Output::Send { link, frame } => {
                    if let Some((_, party)) = self.links.get(&link).copied() {
                        // The receiver's, to whom nothing is its own.
                        let held = (slot == HOLDER).then(|| FromMember::decode(&frame).ok()).flatten();
                        self.out.push(ToParty::Frame { party, link, bytes: frame });
                        if let Some(held @ FromMember::Holds { .. }) = held {
                            self.held = Some(held);
                            self.sinks_hold();
                        }
                    }
                }
                Output::Close { link, reason, .. } => {
                    if let Some((slot, party)) = self.links.remove(&link) {
                        self.by_slot.remove(&(slot, party));
                        self.out.push(ToParty::Down { party, link });
                        self.closed.push(format!("by the member in slot {slot}: {reason}"));
                    }
                }
                Output::Persist { id, .. } => whole.proxy.handle(Input::Persisted(id), now()),
                Output::Install { prefix, attributes: Some(attributes) } => {
                    drop(whole.table.insert(prefix, attributes))
                }
                Output::Install { prefix, attributes: None } => drop(whole.table.remove(&prefix)),
                Output::Job(job) => whole.proxy.handle(Input::JobDone(job.run()), now()),
                Output::PersistSlot { id, .. } => whole.proxy.handle(Input::SlotPersisted(id), now()),
                Output::Event(event) => {
                    if self.events.len() < 100 {
                        self.events.push(format!("slot {slot}: {event:?}"));
                    }
                }
                // Its routers get one route to a prefix.
                Output::AttestationEvent(_) | Output::InstallPaths { .. } => {}
            }
        }
    }

    fn timed(&mut self, slot: u32, act: impl FnOnce(&mut Self)) {
        let begin = thread_time();
        act(self);
        let whose = self.whole.get(&slot).map_or(Whose::Sinks, |whole| whole.whose);
        self.work[whose as usize] += thread_time().saturating_sub(begin);
    }

    /// The table of a whole member's router.
    #[must_use]
    pub fn table(&self, slot: u32) -> Option<&BTreeMap<Prefix, Attributes>> {
        self.whole.get(&slot).map(|whole| &whole.table)
    }

    /// What the proxy of a whole member says of a prefix, as `wayleave why --json` prints it.
    pub fn why(&mut self, slot: u32, prefix: Prefix) -> String {
        let why = self.whole.get_mut(&slot).map(|whole| whole.proxy.why(prefix));
        serde_json::to_string(&why).unwrap_or_default()
    }

    /// Whether all members have been sent everything, and all that they announce is on its way or done.
    #[must_use]
    pub fn are_at_rest(&self) -> bool {
        self.whole.values().all(|whole| whole.proxy.is_at_rest())
            && self.sinks.values().all(|(sink, _)| sink.is_synced() && sink.has_sent())
    }

    /// How many have been sent everything since their links came up, of all.
    #[must_use]
    pub fn synced(&self) -> (usize, usize) {
        let whole = self.whole.values().filter(|whole| whole.proxy.is_at_rest()).count();
        let sinks = self.sinks.values().filter(|(sink, _)| sink.is_synced()).count();
        (whole + sinks, self.whole.len() + self.sinks.len())
    }

    /// What all sinks have taken.
    #[must_use]
    pub fn taken(&self) -> SinkTotals {
        self.sinks.values().fold(SinkTotals::default(), |sum, (sink, _)| SinkTotals {
            frames: sum.frames + sink.taken.frames,
            octets: sum.octets + sink.taken.octets,
            deliveries: sum.deliveries + sink.taken.deliveries,
            rankings: sum.rankings + sink.taken.rankings,
            refused: sum.refused + sink.taken.refused,
        })
    }
}
