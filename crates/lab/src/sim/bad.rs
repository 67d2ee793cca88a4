//! Members, parties and links that misbehave on purpose, and how a test injects what they send.

use std::sync::Arc;
use std::time::Duration;

use wayleave_bgp::Nlri;
use wayleave_core::Instant;
use wayleave_core::wire::{self, Writer};
use wayleave_crypto::commit::{Commitment, commit};
use wayleave_crypto::hash::hash;
use wayleave_crypto::seal;
use wayleave_crypto::secret::{Key128, Seed};
use wayleave_crypto::sign::SigningKey;
use wayleave_route_server::frames::{FromMember, PartyFrame, SessionId, Step, ToMember};
use wayleave_route_server::member::{Alarm, MemberEvent};
use wayleave_route_server::object::{self, Description, ExportMode, Format, Handle, Header, Kind, ShareOne, ShareTwo};
use wayleave_route_server::versions::{Speaks, VERSIONS};

use super::{EXCHANGE, FrameAction, Node, PARTIES, Recorded, Sim, Tamper, member_key};

/// Limit on the steps of [`Sim::run_for`]: a simulation that takes more does not come to rest.
const MAX_STEPS: u64 = 5_000_000;

/// What an observer of an encrypted link sees of a frame, and the frame's type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    pub from: Node,
    pub to: Node,
    pub at: Instant,
    pub kind: u8,
    pub len: usize,
}

/// Octets of a name.
const NAME: usize = 8;

/// Octets of the names of what is gone in a step.
fn gone(step: &Step) -> usize {
    match step {
        Step::Slice { content, .. } => NAME * (content.gone.len() + content.gone_instances.len()),
        _ => 0,
    }
}

impl Recorded {
    /// The frame without its content, and without the length of what a member says that it holds, and of what is gone of that: both follow
    /// from which handles share a bucket, which the parties know.
    #[must_use]
    pub fn shape(&self) -> Shape {
        let kind = self.bytes.first().copied().unwrap_or(0);
        let named = match (self.from, self.to) {
            (Node::Member(_), _) if matches!(kind, 6 | 9 | 11) => self.bytes.len(),
            (Node::Party(_), Node::Party(_)) if kind == 7 => match PartyFrame::decode(&self.bytes) {
                Ok(PartyFrame::Propose { steps, .. }) => steps.iter().map(gone).sum(),
                _ => 0,
            },
            (Node::Party(_), Node::Member(_)) if kind == 3 => match ToMember::decode(&self.bytes) {
                Ok(ToMember::Tick(tick)) => {
                    tick.slice.map_or(0, |slice| NAME * (slice.gone.len() + slice.gone_instances.len()))
                }
                _ => 0,
            },
            _ => 0,
        };
        Shape { from: self.from, to: self.to, at: self.at, kind, len: self.bytes.len() - named }
    }
}

impl Sim {
    /// Appends a frame to a link as if `from` had sent it. `false` if there is no such link.
    pub fn inject(&mut self, from: Node, to: Node, bytes: &[u8]) -> bool {
        let ends = |(a, b): &(Node, Node)| (*a, *b) == (from, to) || (*a, *b) == (to, from);
        let Some(link) = self.links.iter().find(|(_, pair)| ends(pair)).map(|(link, _)| *link) else { return false };
        self.send(from, link, bytes.into());
        true
    }

    /// Whether there is a link between two processes.
    #[must_use]
    pub fn has_link(&self, a: Node, b: Node) -> bool {
        self.links.values().any(|ends| *ends == (a, b) || *ends == (b, a))
    }

    /// Replaces the member in `slot` by the test: its links are up, without answers.
    pub fn play_member(&mut self, slot: u32) {
        self.kill(Node::Member(slot));
        self.tables.remove(&slot);
        for party in PARTIES {
            self.connect(Node::Member(slot), party);
        }
    }

    /// Replaces `party` by the test on the link between the parties; members have no link to it.
    pub fn play_party(&mut self, party: Node) {
        self.kill(party);
        self.connect(PARTIES[0], PARTIES[1]);
    }

    /// Takes every link down; [`Sim::settle`] connects them again.
    pub fn cut_all(&mut self) {
        let all: Vec<_> = self.links.keys().copied().collect();
        for link in all {
            self.cut(link);
        }
    }

    /// Takes the links of the member in `slot` down; its process lives on.
    pub fn cut_member(&mut self, slot: u32) {
        let ends = |(a, b): &(Node, Node)| [*a, *b].contains(&Node::Member(slot));
        let of_member: Vec<_> = self.links.iter().filter(|(_, pair)| ends(pair)).map(|(link, _)| *link).collect();
        of_member.into_iter().for_each(|link| self.cut(link));
    }

    /// Takes the link between the parties down, and no other.
    pub fn cut_parties(&mut self) {
        self.cut_between(PARTIES[0], PARTIES[1]);
    }

    /// Takes the link between two processes down, and no other.
    pub fn cut_between(&mut self, a: Node, b: Node) {
        let ends = |pair: &(Node, Node)| *pair == (a, b) || *pair == (b, a);
        let between: Vec<_> = self.links.iter().filter(|(_, pair)| ends(pair)).map(|(link, _)| *link).collect();
        between.into_iter().for_each(|link| self.cut(link));
    }

    /// Runs for `time` of virtual time without reconnecting links.
    ///
    /// # Panics
    /// If that takes more than `MAX_STEPS`: a process sends without end.
    pub fn run_for(&mut self, time: Duration) {
        let until = self.now.instant + time;
        let mut steps = 0;
        while self.now.instant < until && self.step(until.since(self.now.instant)) {
            steps += 1;
            assert!(steps < MAX_STEPS, "{MAX_STEPS} steps in {time:?}");
        }
        self.set_instant(self.now.instant.max(until));
    }

    /// The alarms that the member in `slot` raised.
    pub fn alarms(&self, slot: u32) -> impl Iterator<Item = &Alarm> {
        self.member_events.iter().filter_map(move |(of, event)| match event {
            MemberEvent::Alarm(alarm) if *of == slot => Some(alarm),
            _ => None,
        })
    }

    /// Clears the recorded events.
    pub fn forget_events(&mut self) {
        self.party_events.clear();
        self.member_events.clear();
        self.closed.clear();
    }
}

/// Applies the first action that `change` returns; every later frame passes.
pub fn once(mut change: impl FnMut(Node, Node, &[u8]) -> Option<FrameAction> + 'static) -> Tamper {
    let mut is_done = false;
    Box::new(move |from, to, bytes| {
        if is_done {
            return FrameAction::Pass;
        }
        let action = change(from, to, bytes);
        is_done = action.is_some();
        action.unwrap_or(FrameAction::Pass)
    })
}

/// How a member gives the two parties different halves of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Split {
    /// Party 2 gets nothing.
    OnlyToOne,
    /// Party 1 gets nothing.
    OnlyToTwo,
    /// The parties get different valid objects of the same version.
    DifferentObjects,
    /// Party 1 gets version n, party 2 version n + 1.
    VersionsApart,
    /// Party 2 gets version n, party 1 version n + 1.
    VersionsApartTheOtherWay,
}

impl Split {
    /// Each of them.
    pub const ALL: [Self; 5] =
        [Self::OnlyToOne, Self::OnlyToTwo, Self::DifferentObjects, Self::VersionsApart, Self::VersionsApartTheOtherWay];

    /// Splits the next object of the member in `slot` of the simulation with this `seed`.
    #[must_use]
    pub fn tamper(self, seed: u64, slot: u32) -> Tamper {
        let victim = match self {
            Self::OnlyToTwo | Self::VersionsApartTheOtherWay => PARTIES[0],
            _ => PARTIES[1],
        };
        once(move |from, to, bytes| {
            if (from, to) != (Node::Member(slot), victim) {
                return None;
            }
            let key = member_key(seed, slot);
            match FromMember::decode(bytes).ok()? {
                FromMember::SubmitOne { header, body } => Some(self.apply(&header, &key, |header| {
                    FromMember::SubmitOne { header: Box::new(header), body: body.clone() }
                })),
                FromMember::SubmitTwo { header, share } => Some(self.apply(&header, &key, |header| {
                    FromMember::SubmitTwo { header: Box::new(header), share: share.clone() }
                })),
                _ => None,
            }
        })
    }

    fn apply(self, header: &Header, key: &SigningKey, frame: impl Fn(Header) -> FromMember) -> FrameAction {
        let mut description = header.description.clone();
        match self {
            Self::OnlyToOne | Self::OnlyToTwo => return FrameAction::Drop,
            Self::DifferentObjects => description.salt[0] ^= 1,
            Self::VersionsApart | Self::VersionsApartTheOtherWay => description.version += 1,
        }
        FrameAction::Change(frame(signed_again(header, description, key)).encode())
    }
}

/// The header with another description, validly signed by `key`.
#[must_use]
pub fn signed_again(header: &Header, description: Description, key: &SigningKey) -> Header {
    Header::sign(EXCHANGE, description, header.blob_hash, header.commitments, key)
}

/// An object of a dishonest member; each field can be invalid.
#[derive(Clone, Debug)]
pub struct Draft {
    /// The exchange for which the header is signed.
    pub exchange: String,
    /// What both parties see.
    pub description: Description,
    /// What the blob describes; the same in an honest object.
    pub inside: Description,
    /// Path attributes in the blob, in BGP's encoding.
    pub attributes: Vec<u8>,
    pub key: [u8; 16],
    /// Who may have it, by slot.
    pub exported: Vec<bool>,
    /// Whose key signs the route inside.
    pub route_signer: u32,
    /// Whose key signs the header.
    pub header_signer: u32,
    /// Bytes appended to the blob; an honest blob has the length of a size class.
    pub excess: usize,
    /// Whether the blob that is sent is not the one that the header names.
    pub other_blob: bool,
    /// How the exchange multiplies policy and key.
    pub export: ExportMode,
}

/// A dishonest member that makes its own objects.
pub struct Forger {
    seed: u64,
    slot: u32,
    drawn: u64,
    pub version: u64,
}

/// An object, ready to be sent.
#[derive(Clone, Debug)]
pub struct Object {
    pub header: Header,
    pub one: Option<(ShareOne, Arc<[u8]>)>,
    pub two: Option<ShareTwo>,
}

impl Object {
    /// The frame for party 1.
    #[must_use]
    pub fn to_one(&self) -> Vec<u8> {
        FromMember::SubmitOne { header: Box::new(self.header.clone()), body: self.one.clone() }.encode()
    }

    /// The frame for party 2.
    #[must_use]
    pub fn to_two(&self) -> Vec<u8> {
        FromMember::SubmitTwo { header: Box::new(self.header.clone()), share: self.two.clone() }.encode()
    }
}

impl Forger {
    /// The member in `slot` of the simulation of this `seed`. Its versions start above those of an honest member.
    #[must_use]
    pub fn new(seed: u64, slot: u32) -> Self {
        Self { seed, slot, drawn: 0, version: 1 << 20 }
    }

    fn random(&mut self) -> [u8; 32] {
        self.drawn += 1;
        hash("wayleave/lab/forger/v1", &[&u64::from(self.slot).to_be_bytes(), &self.drawn.to_be_bytes()])
    }

    /// A hello on both links, and what begins the session.
    pub fn greet(&mut self, sim: &mut Sim, select_best: bool) -> SessionId {
        let session = *self.random().first_chunk().expect("16 of 32");
        for party in PARTIES {
            sim.inject(Node::Member(self.slot), party, &self.hello(session, select_best));
            sim.inject(Node::Member(self.slot), party, &begin());
        }
        sim.inject(Node::Member(self.slot), PARTIES[0], &FromMember::holds_nothing().encode());
        session
    }

    /// A hello, and what begins its session, on one link.
    pub fn greet_one(&self, sim: &mut Sim, party: Node, session: SessionId) {
        sim.inject(Node::Member(self.slot), party, &self.hello(session, true));
        sim.inject(Node::Member(self.slot), party, &begin());
    }

    /// A hello.
    #[must_use]
    pub fn hello(&self, session: SessionId, select_best: bool) -> Vec<u8> {
        let exchange = EXCHANGE.to_owned();
        let Speaks { versions, formats } = Speaks::default();
        let later = Vec::new();
        FromMember::Hello { versions, exchange, slot: self.slot, session, select_best, formats, later }.encode()
    }

    /// A valid draft of the next version, exported to all members of `sim`.
    pub fn draft(&mut self, sim: &Sim, prefixes: &[Nlri], attributes: &wayleave_bgp::Attributes) -> Draft {
        let kind = Kind::Announce { prefixes: prefixes.to_vec() };
        let description = self.describe(sim, kind);
        Draft {
            exchange: EXCHANGE.to_owned(),
            inside: description.clone(),
            description,
            attributes: attributes.encode(),
            key: *self.random().first_chunk().expect("16 of 32"),
            exported: sim.set.slots.iter().map(|slot| slot.active).collect(),
            route_signer: self.slot,
            header_signer: self.slot,
            excess: 0,
            other_blob: false,
            export: sim.export(),
        }
    }

    /// A valid description of the next version.
    pub fn describe(&mut self, sim: &Sim, kind: Kind) -> Description {
        self.version = self.version.saturating_add(1);
        let epoch = sim.party(PARTIES[0]).map_or(1, |party| party.status().epoch);
        Description {
            format: Format::default(),
            slot: self.slot,
            set: sim.set.number,
            epoch,
            version: self.version,
            salt: self.random(),
            kind,
        }
    }

    /// A withdrawal.
    pub fn withdraw(&mut self, sim: &Sim, prefixes: &[Nlri]) -> Object {
        let description = self.describe(sim, Kind::Withdraw { prefixes: prefixes.to_vec() });
        let header = object::withdraw(EXCHANGE, description, &member_key(self.seed, self.slot));
        Object { header, one: None, two: None }
    }

    /// Makes an object of a draft, as `wayleave_route_server::object::announce` does of valid routes.
    pub fn seal(&mut self, draft: &Draft) -> Object {
        let handle = draft.description.handle(&draft.exchange);
        let key = Key128::new(draft.key);
        let mut blob = seal_route(&handle, draft, &key, &member_key(self.seed, draft.route_signer));
        blob.resize(blob.len() + draft.excess, 0);
        let one = ShareOne { opening: self.random(), seed: Seed::new(self.random()) };
        let row = match draft.export {
            ExportMode::Direct => {
                object::key_row(EXCHANGE, (&one.seed, None), &key, draft.description.epoch, 0, &draft.exported)
            }
            ExportMode::Mpc => {
                let masked = key.xor(&Key128::new(object::key_mask(&one.seed)));
                [&masked.expose()[..], &object::policy_row(&one.seed, None, &draft.exported)].concat()
            }
        };
        let two = ShareTwo { opening: self.random(), row: row.into() };
        let commitments: [Commitment; 2] = [
            commit("wayleave/route-server/share-one/v1", &one.opening, one.seed.expose()),
            commit("wayleave/route-server/share-two/v1", &two.opening, &two.row),
        ];
        let signer = member_key(self.seed, draft.header_signer);
        let blob_hash = object::blob_hash(&blob);
        if draft.other_blob {
            blob[40] ^= 1;
        }
        let header = Header::sign(&draft.exchange, draft.description.clone(), blob_hash, commitments, &signer);
        Object { header, one: Some((one, blob.into())), two: Some(two) }
    }

    /// Sends an object to both parties.
    pub fn submit(&self, sim: &mut Sim, object: &Object) {
        sim.inject(Node::Member(self.slot), PARTIES[0], &object.to_one());
        sim.inject(Node::Member(self.slot), PARTIES[1], &object.to_two());
    }
}

/// Begins a session with parties that speak what this build does by default.
#[must_use]
pub fn begin() -> Vec<u8> {
    FromMember::Begin { version: VERSIONS.highest, told: [VERSIONS; 2] }.encode()
}

fn seal_route(handle: &Handle, draft: &Draft, key: &Key128, signer: &SigningKey) -> Vec<u8> {
    let mut signed = Writer::new();
    let signed_for = [0; 32];
    signed.bytes(&handle.0).blob(&draft.attributes).bytes(&signed_for);
    let signature = signer.sign("wayleave/route-server/route/v1", &signed.finish());
    let mut w = Writer::new();
    w.blob(&wire::encode(&draft.inside)).blob(&draft.attributes).bytes(&signed_for).bytes(&signature);
    let mut plain = w.finish();
    plain.resize(object::size_class(plain.len() + seal::OVERHEAD) - seal::OVERHEAD, 0);
    seal::seal("wayleave/route-server/blob/v1", key, &handle.0, &plain)
}
