//! Members that take and discard what the parties send: so many cost a benchmark or a simulation little beside the parties.
//!
//! A sink greets, grants credit as it takes frames up, and ranks in rounds: rankings of the right shape in which every candidate counts
//! and has an equal class. Or it opts out of Select-Best. It opens nothing, and of what party 1 sends it reads no more than the first
//! octet. It announces routes when told. It keeps nothing, and says so: connected again it is sent everything, unless somebody who has what it has had
//! tells it the digests of that.

use std::collections::{BTreeMap, VecDeque};

use wayleave_bgp::{Attributes, Nlri};
use wayleave_core::Instant;
use wayleave_crypto::hash::hash;
use wayleave_crypto::secret::Seed;
use wayleave_crypto::sign::SigningKey;
use wayleave_route_server::credit::{self, Receiving, Sending};
use wayleave_route_server::digests;
use wayleave_route_server::directory::{MemberSet, Slot};
use wayleave_route_server::frames::{FromMember, OwnObject, SessionId, Tick, ToMember};
use wayleave_route_server::object::{self, Description, ExportMode, Format, Fresh, Handle, Kind, ShareOne, ShareTwo};
use wayleave_route_server::party::PartyNumber;
use wayleave_route_server::policy::communities::{self, Controls};
use wayleave_route_server::versions::Speaks;

use crate::sim::{EXCHANGE, RS_ASN};

/// Octets of a ranking for each candidate.
const RANK_OCTETS: usize = 2;
/// What a ranking says of a candidate: it counts, in a class that all have.
const RANKED: [u8; RANK_OCTETS] = [1, 1];
/// The first octet of a part of a frame to a member, and of a tick.
const PART: u8 = 6;
const TICK: u8 = 3;

/// A frame to a party.
pub type Sent = (PartyNumber, Vec<u8>);

/// What a sink has taken so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SinkTotals {
    pub frames: u64,
    pub octets: u64,
    /// Objects that party 2 delivered.
    pub deliveries: u64,
    pub rankings: u64,
    /// Objects that were refused.
    pub refused: u64,
}

struct Link {
    receiving: Receiving,
    sending: Sending,
    /// Frames for which there is no credit yet.
    waiting: VecDeque<Vec<u8>>,
    parts: Vec<u8>,
}

/// A member that takes and discards.
pub struct Sink {
    slot: u32,
    seed: u64,
    drawn: u64,
    /// Whether it takes part in Select-Best.
    selects: bool,
    session: SessionId,
    links: [Option<Link>; 2],
    /// As the parties say.
    epoch: u64,
    high_water: u64,
    synced: bool,
    /// The last batch whose tick party 2 sent it; 0 before it has been sent everything once.
    last: u64,
    /// Whether it waits to be told what it holds.
    waits: bool,
    /// Whether it lets itself be told.
    keeps: bool,
    /// Its own live prefixes, by the version that has each, and the slots that its rows cover.
    own: BTreeMap<Nlri, u64>,
    width: u32,
    pub taken: SinkTotals,
}

fn index(party: PartyNumber) -> usize {
    usize::from(party == PartyNumber::Two)
}

/// The prefixes in the order that an object has them.
fn in_order(prefixes: &[Nlri]) -> Vec<Nlri> {
    let mut prefixes = prefixes.to_vec();
    prefixes.sort_unstable();
    prefixes
}

impl Sink {
    /// The sink in `slot`, whose randomness follows from `seed`; `selects`: whether it takes part in Select-Best.
    #[must_use]
    pub fn new(seed: u64, slot: u32, selects: bool) -> Self {
        let (links, taken) = ([None, None], SinkTotals::default());
        Self {
            slot,
            seed,
            drawn: 0,
            selects,
            session: [0; 16],
            links,
            epoch: 0,
            high_water: 0,
            synced: false,
            last: 0,
            waits: false,
            keeps: false,
            own: BTreeMap::new(),
            width: 0,
            taken,
        }
    }

    /// One that says what it has had when it connects again, once it is told ([`Self::say_held`]).
    #[must_use]
    pub fn keeping(self) -> Self {
        Self { keeps: true, ..self }
    }

    fn random(&mut self) -> [u8; 32] {
        self.drawn += 1;
        let parts: [&[u8]; 3] = [&self.seed.to_be_bytes(), &self.slot.to_be_bytes(), &self.drawn.to_be_bytes()];
        hash("wayleave/lab/sink/v1", &parts)
    }

    /// A link to `party` is up. With the second it greets both.
    pub fn link_up(&mut self, party: PartyNumber, now: Instant, out: &mut Vec<Sent>) {
        self.links[index(party)] = Some(Link {
            receiving: Receiving::new(credit::TO_MEMBER),
            sending: Sending::new(credit::FROM_MEMBER, now),
            waiting: VecDeque::new(),
            parts: Vec::new(),
        });
        if self.links.iter().any(Option::is_none) {
            return;
        }
        self.synced = false;
        self.session = *self.random().first_chunk().expect("16 of 32");
        let (slot, session, select_best) = (self.slot, self.session, self.selects);
        let exchange = EXCHANGE.to_owned();
        let Speaks { versions, formats } = Speaks::default();
        let later = Vec::new();
        let hello = FromMember::Hello { versions, exchange, slot, session, select_best, formats, later }.encode();
        // The parties that it meets are of the same build.
        let begin = FromMember::Begin { version: versions.highest, told: [versions; 2] }.encode();
        for party in [PartyNumber::One, PartyNumber::Two] {
            self.send(party, hello.clone(), now, out);
            self.send(party, begin.clone(), now, out);
        }
        self.waits = self.keeps && self.last > 0;
        if !self.waits {
            self.send(PartyNumber::One, FromMember::holds_nothing().encode(), now, out);
        }
    }

    /// Whether it waits to be told what it holds.
    #[must_use]
    pub fn waits(&self) -> bool {
        self.waits
    }

    /// Says to party 1 that it holds what another member does, whose frame this is, if that has taken the same batches; otherwise it asks
    /// for everything. Its own objects are its own.
    pub fn say_held(&mut self, held: &FromMember, now: Instant, out: &mut Vec<Sent>) {
        self.waits = false;
        let frame = match held {
            FromMember::Holds { seq, through, epoch, roots, .. } if *seq == self.last => {
                let mut live: BTreeMap<u64, Vec<Nlri>> = BTreeMap::new();
                self.own.iter().for_each(|(nlri, version)| live.entry(*version).or_default().push(*nlri));
                let own = live.into_iter().map(|(version, live)| OwnObject {
                    version,
                    width: self.width,
                    live,
                    outside: Vec::new(),
                });
                FromMember::Holds { seq: *seq, through: *through, epoch: *epoch, roots: *roots, own: digests::own(own) }
            }
            _ => FromMember::holds_nothing(),
        };
        self.send(PartyNumber::One, frame.encode(), now, out);
    }

    /// A link is down; the other one is of no use, and its owner takes it down too.
    pub fn link_down(&mut self, party: PartyNumber) {
        self.links[index(party)] = None;
        self.synced = false;
    }

    /// Whether the parties have sent it everything since its links came up.
    #[must_use]
    pub fn is_synced(&self) -> bool {
        self.synced
    }

    /// Whether all that it announces is on its way.
    #[must_use]
    pub fn has_sent(&self) -> bool {
        self.links.iter().flatten().all(|link| link.waiting.is_empty())
    }

    /// Takes a frame.
    ///
    /// # Panics
    /// If a party breaks the protocol, or rejects it.
    pub fn frame(&mut self, party: PartyNumber, bytes: &[u8], now: Instant, out: &mut Vec<Sent>) {
        let Some(link) = &mut self.links[index(party)] else { return };
        self.taken.frames += 1;
        self.taken.octets += bytes.len() as u64;
        let kind = bytes.first().copied().unwrap_or(0);
        let is_long = matches!(kind, PART | TICK);
        if is_long && party == PartyNumber::One {
            return self.count(party, bytes.len(), now, out);
        }
        let frame = ToMember::decode(bytes).expect("a party keeps to the protocol");
        match frame {
            ToMember::Credit { limit } => {
                link.sending.granted(limit, now).expect("a grant for what was sent");
                return self.flush(party, now, out);
            }
            ToMember::Part { last, bytes: part } => {
                link.parts.extend(part);
                if last {
                    let whole = std::mem::take(&mut link.parts);
                    if let Ok(ToMember::Tick(tick)) = ToMember::decode(&whole) {
                        self.tick(&tick, now, out);
                    }
                }
            }
            ToMember::Tick(tick) => self.tick(&tick, now, out),
            ToMember::Welcome { epoch, high_water, .. } => {
                (self.epoch, self.high_water) = (epoch, self.high_water.max(high_water));
            }
            ToMember::Renew { epoch, .. } => self.epoch = epoch,
            ToMember::Compare => {
                let FromMember::Holds { seq, epoch, through, own, .. } = FromMember::holds_nothing() else { return };
                let (objects, instances) = (Vec::new(), Vec::new());
                let said = FromMember::Buckets { seq, epoch, through, objects, instances, own };
                self.send(PartyNumber::One, said.encode(), now, out);
            }
            // It has kept none of it.
            ToMember::NameObjects { question, .. } => {
                let said = FromMember::ObjectNames { question, through: Handle([0xff; 32]), names: Vec::new() };
                self.send(PartyNumber::One, said.encode(), now, out);
            }
            ToMember::NameInstances { question, .. } => {
                let (through, names, open) = ([0xff; 32], Vec::new(), Vec::new());
                let said = FromMember::InstanceNames { question, through, names, open };
                self.send(PartyNumber::One, said.encode(), now, out);
            }
            ToMember::Refused { .. } => self.taken.refused += 1,
            ToMember::Rejected { why } => panic!("the sink in slot {} was rejected: {why}", self.slot),
            _ => {}
        }
        self.count(party, bytes.len(), now, out);
    }

    fn count(&mut self, party: PartyNumber, octets: usize, now: Instant, out: &mut Vec<Sent>) {
        let Some(link) = &mut self.links[index(party)] else { return };
        link.receiving.received(credit::cost(octets), now).expect("a party keeps to its credit");
        if let Some(limit) = link.receiving.grant(now) {
            out.push((party, FromMember::Credit { limit }.encode()));
        }
    }

    fn tick(&mut self, tick: &Tick, now: Instant, out: &mut Vec<Sent>) {
        self.taken.deliveries += tick.deliver.len() as u64;
        self.synced |= tick.slice.as_ref().is_some_and(|slice| slice.ends.is_some());
        if self.synced {
            self.last = tick.seq;
        }
        if !tick.rank {
            return;
        }
        let (seq, candidates) =
            (tick.seq, tick.instances.iter().map(|one| one.len()).filter(|routes| *routes > 1).sum());
        let (row, seed) = (self.random(), Seed::new(self.random()));
        let row = *row.first_chunk().expect("16 of 32");
        // Party 1's share is what the seed expands to; whatever that is, the ranking that the two make has the right shape.
        let share = RANKED.repeat(candidates);
        self.send(PartyNumber::One, FromMember::RankOne { seq, row, seed }.encode(), now, out);
        self.send(PartyNumber::Two, FromMember::RankTwo { seq, row, share }.encode(), now, out);
        self.taken.rankings += 1;
    }

    /// Whether a party has welcomed it, so that it can announce.
    #[must_use]
    pub fn is_welcome(&self) -> bool {
        self.epoch > 0
    }

    /// Announces a route to one prefix or more to the members of `set` to which its communities let it go, once there is credit for it.
    ///
    /// # Panics
    /// If no party has welcomed it.
    pub fn announce(
        &mut self,
        (set, export): (&MemberSet, ExportMode),
        key: &SigningKey,
        prefixes: &[Nlri],
        attributes: &Attributes,
        (now, out): (Instant, &mut Vec<Sent>),
    ) {
        assert!(self.epoch > 0, "a party has welcomed it");
        let controls = Controls::read(attributes, RS_ASN);
        let permits = |slot: &Slot| slot.active && controls.decide(slot.asn).permits();
        let exported: Vec<bool> = set.slots.iter().map(permits).collect();
        let attributes = communities::strip(attributes, RS_ASN);
        let kind = Kind::Announce { prefixes: in_order(prefixes) };
        let description = self.describe(set, kind);
        self.own.extend(prefixes.iter().map(|nlri| (*nlri, description.version)));
        self.width = u32::try_from(set.slots.len()).expect("few slots");
        let fresh = Fresh {
            key: *self.random().first_chunk().expect("16 of 32"),
            seed: self.random(),
            openings: [self.random(), self.random()],
        };
        let sealed =
            object::announce(export, EXCHANGE, description, (&attributes.encode(), &[0; 32]), &exported, &fresh, key);
        let body: (ShareOne, _) = (sealed.one, sealed.blob);
        let share: ShareTwo = sealed.two;
        let header = Box::new(sealed.header);
        let one = FromMember::SubmitOne { header: header.clone(), body: Some((body.0, body.1.into())) };
        let two = FromMember::SubmitTwo { header, share: Some(share) };
        self.send(PartyNumber::One, one.encode(), now, out);
        self.send(PartyNumber::Two, two.encode(), now, out);
    }

    /// Withdraws its routes to these prefixes.
    pub fn withdraw(
        &mut self,
        set: &MemberSet,
        key: &SigningKey,
        prefixes: &[Nlri],
        (now, out): (Instant, &mut Vec<Sent>),
    ) {
        let description = self.describe(set, Kind::Withdraw { prefixes: in_order(prefixes) });
        self.own.retain(|nlri, _| !prefixes.contains(nlri));
        let header = Box::new(object::withdraw(EXCHANGE, description, key));
        let one = FromMember::SubmitOne { header: header.clone(), body: None };
        let two = FromMember::SubmitTwo { header, share: None };
        self.send(PartyNumber::One, one.encode(), now, out);
        self.send(PartyNumber::Two, two.encode(), now, out);
    }

    fn describe(&mut self, set: &MemberSet, kind: Kind) -> Description {
        self.high_water += 1;
        let (slot, epoch, version, salt) = (self.slot, self.epoch, self.high_water, self.random());
        Description { format: Format::default(), slot, set: set.number, epoch, version, salt, kind }
    }

    fn send(&mut self, party: PartyNumber, bytes: Vec<u8>, now: Instant, out: &mut Vec<Sent>) {
        let Some(link) = &mut self.links[index(party)] else { return };
        link.waiting.push_back(bytes);
        self.flush(party, now, out);
    }

    fn flush(&mut self, party: PartyNumber, now: Instant, out: &mut Vec<Sent>) {
        let Some(link) = &mut self.links[index(party)] else { return };
        while let Some(bytes) = link.waiting.front() {
            let cost = credit::cost_from_member(bytes);
            if !link.sending.has_credit(cost) {
                return;
            }
            link.sending.send(cost, now);
            out.extend(link.waiting.pop_front().map(|bytes| (party, bytes)));
        }
    }
}
