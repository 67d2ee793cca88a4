//! The frames between members and parties, and between the two parties.
//!
//! A frame is one octet of type and its fields, inside one length-prefixed record of a TLS link. Everything counted is
//! bounded before it is allocated, and nothing may be left over.

use std::fmt;
use std::sync::Arc;

use crate::digests::{self, BucketDigests, Differs, Digest, Roots, Through};
use crate::object::{ExportMode, Handle, Header, MAX_BLOB, MAX_PREFIXES, MAX_SLOTS, ShareOne, ShareTwo};
use crate::wire::{Malformed, Reader, Writer};
use wayleave_bgp::Nlri;
use wayleave_crypto::secret::Seed;

/// Version of the frames; both ends must have the same.
pub const PROTOCOL: u16 = 6;
/// Largest frame in bytes; longer ones are refused by the link before they are read.
pub const MAX_FRAME: usize = 16 << 20;
/// Bytes of one part of a frame to a member that is longer than this.
pub const PART: usize = 4 << 20;
/// Largest frame to a member that comes in parts: a full tick of a large exchange.
pub const MAX_IN_PARTS: usize = 1 << 30;
/// Candidates of one prefix that Select-Best looks at: our own limit. Where there are more, every slot's first path counts before any
/// slot's second.
pub const MAX_CANDIDATES: usize = 128;
/// Of each member's paths to a prefix, by path identifiers, so many compete with those of others: our own limit.
pub const MAX_PATHS: usize = 4;
/// Bytes of a candidate.
const CANDIDATE: usize = 34;
/// Objects of one slice of a synchronisation; our own limit.
pub const MAX_SLICE: u32 = 4096;
const MAX_NAME: usize = 128;
const MAX_LIST: usize = 4 << 20;

/// One pair of links of a member, chosen at random when it connects. Both parties act for it only while both have it.
pub type SessionId = [u8; 16];
/// Number of a batch: rises with each, never used twice.
pub type Seq = u64;
/// One prefix of one object: the object, and the prefix's place in its list.
pub type Candidate = (Handle, u16);
/// The candidates of one prefix, in number order.
pub type Instance = Arc<[Candidate]>;

/// The instances that need a round, in the order of a ranking and of its results: the first `live` ones before those that can wait;
/// among each, those with equally many candidates (padded to a power of two) together, the fewest first, so that each evaluation
/// ends a run of them. Returns their places in `instances`.
#[must_use]
pub fn round_order(instances: &[Instance], live: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..instances.len()).filter(|place| instances[*place].len() > 1).collect();
    order.sort_by_key(|place| (*place >= live, instances[*place].len().next_power_of_two()));
    order
}

/// A frame from a member to a party.
#[derive(Clone, Debug)]
pub enum FromMember {
    Hello {
        protocol: u16,
        exchange: String,
        /// The link's certificate must be that slot's.
        slot: u32,
        /// The same towards both parties.
        session: SessionId,
        /// Whether the member takes part in Select-Best. The parties see this.
        select_best: bool,
    },
    SubmitOne {
        header: Box<Header>,
        /// Share and blob, for an announcement.
        body: Option<(ShareOne, Arc<[u8]>)>,
    },
    SubmitTwo {
        header: Box<Header>,
        /// The share, for an announcement or a column.
        share: Option<ShareTwo>,
    },
    /// The member's ranking of every candidate of a batch; to party 1 a seed.
    RankOne {
        seq: Seq,
        /// Ties the two shares of one ranking together; random.
        row: [u8; 16],
        /// Party 1's share is this seed's output.
        seed: Seed,
    },
    /// The same, to party 2: the ranking XOR the seed's output.
    RankTwo {
        seq: Seq,
        row: [u8; 16],
        /// Two bytes a candidate: valid bit, class.
        share: Vec<u8>,
    },
    /// To party 1: the member requests everything again, because its import rules changed.
    Resync,
    /// To party 1: what the member holds, after its hello and when its view is in doubt. It requests what differs.
    Holds {
        /// The last batch that it took.
        seq: Seq,
        through: Through,
        /// The first epoch of those in which Select-Best chose for it among the instances.
        epoch: u64,
        roots: Roots,
        /// Of its own objects, as far as it knows what the parties have.
        own: Digest,
    },
    /// Answers [`ToMember::Compare`]: the same by buckets.
    Buckets { seq: Seq, through: Through, epoch: u64, objects: BucketDigests, instances: BucketDigests, own: Digest },
    /// What the party may send since the link came up ([`crate::credit`]).
    Credit { limit: u64 },
}

/// A route for a receiver.
#[derive(Clone, PartialEq, Eq)]
pub struct Deliver {
    pub handle: Handle,
    /// The epoch whose dummy key says "not exported".
    pub epoch: u64,
    /// This party's share of the key for this receiver.
    pub share: [u8; 16],
    /// Indices of prefixes that are already dead.
    pub dead: Vec<u16>,
    /// From party 1 the blob, from party 2 its hash.
    pub body: Body,
}

impl fmt::Debug for Deliver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Deliver({:?}, epoch {}, dead {:?})", self.handle, self.epoch, self.dead)
    }
}

/// What party 1 or party 2 has of a blob.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Body {
    Blob(Arc<[u8]>),
    Hash([u8; 32]),
}

/// A live object of the receiver of a slice.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OwnObject {
    pub version: u64,
    /// Slots that its row covers: fewer than its announcer knows, if columns of it were lost.
    pub width: u32,
    /// Prefixes that it still owns, ascending where it is digested.
    pub live: Vec<Nlri>,
}

impl OwnObject {
    pub(crate) fn write(&self, w: &mut Writer) {
        w.u64(self.version).u32(self.width).list(&self.live, |w, nlri| {
            w.nlri(nlri);
        });
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self { version: r.u64()?, width: r.u32()?, live: r.list(10, MAX_PREFIXES, Reader::nlri)? })
    }
}

/// Part of a synchronisation: objects and prefixes in an order that the parties keep, of which a member gets all in turn.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Slice {
    /// In the first one: what is sent. The receiver keeps the rest.
    pub begins: Option<Differs>,
    /// In the last one: what the receiver must have now. What it had before in the buckets that were sent, and was not in a
    /// slice, is gone.
    pub ends: Option<Roots>,
    /// Some of the receiver's own live objects.
    pub own: Vec<OwnObject>,
    /// Whether all own objects have been listed with this slice, or are as the receiver said.
    pub own_ends: bool,
}

/// One batch as one member sees it. Party 1 and party 2 send ticks that differ in shares and bodies only.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tick {
    pub seq: Seq,
    /// The view under which both parties made it.
    pub view: [u8; 32],
    /// With the next part of everything, for a receiver that is synchronised: what `deliver` and `instances` have of it, and this.
    pub slice: Option<Slice>,
    /// Versions of the receiver's own that this batch applied.
    pub applied: Vec<u64>,
    /// New objects, and objects that a column opened to this receiver.
    pub deliver: Vec<Deliver>,
    /// Prefixes that died.
    pub dead: Vec<Candidate>,
    /// Objects without a live prefix.
    pub gone: Vec<Handle>,
    /// The prefixes whose candidates changed, each with its candidates in number order. One candidate needs no round.
    pub instances: Vec<Instance>,
    /// How many of them, from the first on, changed just now: their results go before those of the others, which a slice or a new
    /// epoch lists again.
    pub live: u32,
    /// Whether a ranking is awaited from this receiver.
    pub rank: bool,
    /// Places, ascending, of instances in which only routes of the receiver's own AS changed, which it does not use: what was chosen
    /// for it stays, and whatever it ranks there counts as zero.
    pub unranked: Vec<u32>,
}

/// A frame from a party to a member.
#[derive(Clone, Debug)]
pub enum ToMember {
    /// Answers a [`FromMember::Hello`].
    Welcome {
        protocol: u16,
        session: SessionId,
        /// The epoch for new objects.
        epoch: u64,
        /// The highest version that the party has seen from this slot.
        high_water: u64,
        /// Milliseconds between batches; a ranking leaves this long after its tick.
        tick_ms: u32,
        /// How the exchange multiplies policy and key; both parties must say the same.
        export: ExportMode,
        /// Octets of the largest blob that this party takes.
        max_blob: u32,
        /// What the member may cost, and what of that is left; party 1's counts.
        budget: BudgetLeft,
        set: Arc<[u8]>,
    },
    /// The member set or the epoch changed.
    Renew {
        /// The epoch for new objects.
        epoch: u64,
        set: Arc<[u8]>,
    },
    Tick(Box<Tick>),
    /// This party's share of a part of the results of a batch, as the evaluations end. Parts come in order.
    Outcome {
        seq: Seq,
        /// The place of its first instance in [`round_order`].
        first: u32,
        /// One octet each: valid 1, index 7.
        share: Vec<u8>,
    },
    Part {
        /// Whether it is the last one.
        last: bool,
        bytes: Vec<u8>,
    },
    /// An object was refused.
    Refused {
        version: u64,
        reason: Refusal,
    },
    /// The round of this batch goes on, and has done so since the last report: its results will come.
    Progress {
        seq: Seq,
    },
    /// From party 1: the ranking of this batch was not at both parties in time. The member's own order decides.
    Missed {
        seq: Seq,
    },
    /// Answers a [`FromMember::Hello`] that is not taken; the party then closes the link.
    Rejected {
        why: Rejection,
    },
    /// What the member may send since the link came up ([`crate::credit`]).
    Credit {
        limit: u64,
    },
    /// From party 1: the member's synchronisation waits until so many others have had theirs.
    Queued {
        ahead: u32,
    },
    /// From party 1: the member was sent everything too often, and is again in so many seconds at the earliest.
    Deferred {
        seconds: u32,
    },
    /// From party 1: the member asked too often to have Select-Best choose among everything; its own order decides. It may again in
    /// so many seconds.
    OwnOrder {
        seconds: u32,
    },
    /// From party 1: asks for [`FromMember::Buckets`].
    Compare,
}

/// What a member may cost a party, and what is left of it: of that member alone. Turns and what is stored are zero at party 2.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BudgetLeft {
    /// Route objects a second.
    pub objects: u32,
    /// Octets a second.
    pub octets: u32,
    /// Prefixes that it may announce.
    pub prefixes: u32,
    /// Octets of its blobs that party 1 stores, and that it stores at most.
    pub stored: u64,
    pub max_stored: u64,
    /// How often in an hour it is sent everything, and how often it may be at once from now on.
    pub syncs: u32,
    pub syncs_left: u32,
    /// How often in an hour Select-Best chooses among that, and how often it may at once from now on.
    pub choices: u32,
    pub choices_left: u32,
}

impl BudgetLeft {
    fn write(&self, w: &mut Writer) {
        w.u32(self.objects).u32(self.octets).u32(self.prefixes).u64(self.stored).u64(self.max_stored);
        w.u32(self.syncs).u32(self.syncs_left).u32(self.choices).u32(self.choices_left);
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            objects: r.u32()?,
            octets: r.u32()?,
            prefixes: r.u32()?,
            stored: r.u64()?,
            max_stored: r.u64()?,
            syncs: r.u32()?,
            syncs_left: r.u32()?,
            choices: r.u32()?,
            choices_left: r.u32()?,
        })
    }
}

/// Why a party does not take the hello of a member that its certificate has proved. It says nothing that the member set, which
/// the member may have, does not.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Rejection {
    /// The member speaks another version.
    #[error("the party speaks version {ours} of the protocol")]
    Protocol {
        /// The party's.
        ours: u16,
    },
    /// The member names another exchange.
    #[error("the party is of the exchange `{ours}`")]
    Exchange {
        /// The party's.
        ours: String,
    },
    /// The member names another slot.
    #[error("the certificate is that of slot {proved}")]
    Slot {
        /// The one that has the link's certificate.
        proved: u32,
    },
    /// The member's slot was removed: it is a member no more. It may come at any time.
    #[error("slot {slot} was removed with member set {set}")]
    Removed {
        slot: u32,
        /// The number of the first set in which it is not active, as far as the party knows.
        set: u64,
        /// The party whose operator removed it; 0 where both operators signed that it has left.
        by: u8,
    },
}

impl Rejection {
    fn write(&self, w: &mut Writer) {
        match self {
            Self::Protocol { ours } => w.u8(1).u16(*ours),
            Self::Exchange { ours } => w.u8(2).blob(ours.as_bytes()),
            Self::Slot { proved } => w.u8(3).u32(*proved),
            Self::Removed { slot, set, by } => w.u8(4).u32(*slot).u64(*set).u8(*by),
        };
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(match r.u8()? {
            1 => Self::Protocol { ours: r.u16()? },
            2 => Self::Exchange { ours: string(r)? },
            3 => Self::Slot { proved: r.u32()? },
            4 => Self::Removed { slot: r.u32()?, set: r.u64()?, by: r.u8()? },
            _ => return Err(Malformed::Value("rejection")),
        })
    }
}

/// Why an object was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[repr(u8)]
pub enum Refusal {
    #[error("its version is not above the last one")]
    OldVersion = 1,
    #[error("it was made in an earlier epoch")]
    Epoch = 2,
    #[error("it was made under another member set")]
    Set = 3,
    #[error("its signature, commitment or hash is wrong")]
    Proof = 4,
    #[error("the two parties got different objects, or one got none")]
    Mismatch = 5,
    #[error("its row or blob has the wrong size")]
    Size = 6,
    #[error("it exceeds the member's prefix limit")]
    MaxPrefix = 7,
    #[error("too many objects of the member are waiting")]
    Busy = 8,
    #[error("its sealed route is larger than the parties take (`max_blob`)")]
    BlobSize = 9,
    #[error("the member sends more than its budget, and does not wait for credit")]
    Budget = 10,
    #[error("it exceeds the octets that the parties store for the member")]
    Stored = 11,
}

impl Refusal {
    fn from_code(code: u8) -> Option<Self> {
        use Refusal::{BlobSize, Budget, Busy, Epoch, MaxPrefix, Mismatch, OldVersion, Proof, Set, Size, Stored};
        [OldVersion, Epoch, Set, Proof, Mismatch, Size, MaxPrefix, Busy, BlobSize, Budget, Stored]
            .into_iter()
            .find(|r| *r as u8 == code)
    }
}

/// One step of what a batch does, in the order in which both parties apply it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Applies an object that both parties hold.
    Object {
        slot: u32,
        version: u64,
        /// [`Header::digest`].
        digest: [u8; 32],
    },
    /// Removes so many objects of a slot whose member has left or was away for longer than the stale timer.
    Expire { slot: u32, objects: u32 },
    /// Begins to send a member whose two links are up what it lacks: so many objects with this batch. `chooses`: whether it ranks
    /// what it is sent so, if it takes part in Select-Best.
    Sync { slot: u32, session: SessionId, select_best: bool, chooses: bool, objects: u32, differs: Differs },
    /// A member lost a link.
    Gone { slot: u32 },
    /// Begins an epoch: the recommendation of these slots changed, so the prefixes with a candidate of theirs are evaluated again,
    /// from the first one on.
    Epoch { epoch: u64, changed: Vec<u32> },
    /// A newer directory: sets that both operators signed, and removals.
    Set { set: Arc<[u8]> },
    /// Goes on to send everything to a member: so many objects more.
    Slice { slot: u32, objects: u32 },
    /// A member takes up too little of what is sent to it: it gets nothing more, and later everything again.
    Pause { slot: u32 },
    /// So many prefixes more are looked at, since an epoch began: those with a candidate whose value changed are evaluated again.
    Relist { prefixes: u32 },
}

/// A row of the parties' inventories, compared when their link comes up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InventoryRow {
    pub slot: u32,
    pub version: u64,
    /// [`Header::digest`].
    pub digest: [u8; 32],
    /// Width of its rows in slots.
    pub width: u32,
    /// Indices of dead prefixes.
    pub dead: Vec<u16>,
}

/// An object of which the two parties have different rows or dead prefixes, and what counts: slot, version, the narrower row's width,
/// and the indices of prefixes that are dead at either.
pub type Difference = (u32, u64, u32, Vec<u16>);

/// What a message of the two-party computation belongs to. Neither stream waits for the other's messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum EngineStream {
    Evaluation = 1,
    /// Correlations are made.
    Setup = 2,
}

/// A frame between the two parties.
#[derive(Clone, Debug)]
pub enum PartyFrame {
    Hello {
        protocol: u16,
        exchange: String,
        party: u8,
        /// Half of the session id of the engine; random.
        nonce: [u8; 16],
        epoch: u64,
        /// The last batch that the party knows; the next is above both parties'.
        seq: Seq,
        /// The signed member set that the party knows.
        set: Arc<[u8]>,
        /// Milliseconds between batches.
        tick_ms: u32,
        /// How this party multiplies policy and key; both must do the same.
        export: ExportMode,
        /// Octets of the largest blob that this party's operator agrees to; the lower of the two counts.
        max_blob: u32,
        /// The last batch in this party's store.
        stored: Seq,
        /// The last batch that it knows to be in the peer party's.
        agreed: Seq,
    },
    Inventory {
        rows: Vec<InventoryRow>,
        /// The highest version seen, per slot.
        high_water: Vec<(u32, u64)>,
        more: bool,
    },
    /// Part of what party 1 concludes from both inventories, if that is long. [`Self::Reconciled`] has the last part.
    Reconciling {
        /// (slot, version) to drop.
        drop: Vec<(u32, u64)>,
        differ: Vec<Difference>,
    },
    /// Party 1's conclusion from both inventories. What party 2 need not drop, both have.
    Reconciled {
        epoch: u64,
        set: Arc<[u8]>,
        /// (slot, version) to drop.
        drop: Vec<(u32, u64)>,
        differ: Vec<Difference>,
        /// The highest version seen, per slot.
        high_water: Vec<(u32, u64)>,
        /// The view that both must have now.
        view: [u8; 32],
    },
    /// Party 2 holds these objects, which wait to be applied.
    Holding {
        /// (slot, version, digest).
        objects: Vec<(u32, u64, [u8; 32])>,
    },
    /// Party 2's link to a member is up.
    Joined {
        slot: u32,
        session: SessionId,
        select_best: bool,
    },
    /// Party 2's link to a member is down.
    Left {
        slot: u32,
        session: SessionId,
    },
    Propose {
        seq: Seq,
        steps: Vec<Step>,
    },
    /// Party 2 has applied the batch durably, with this view as the result.
    Accept {
        seq: Seq,
        view: [u8; 32],
    },
    /// Party 2 lacks objects of the batch.
    Reject {
        seq: Seq,
        /// (slot, version).
        missing: Vec<(u32, u64)>,
    },
    /// Party 1 has the same view; both deliver.
    Go {
        seq: Seq,
    },
    /// Party 2 has a member's ranking.
    Ranked {
        seq: Seq,
        slot: u32,
        /// The ranking's id.
        row: [u8; 16],
    },
    /// Party 1 starts the rounds of a batch with these rankings.
    Evaluate {
        seq: Seq,
        /// (slot, ranking's id), ascending.
        rows: Vec<(u32, [u8; 16])>,
    },
    /// Party 1 has begun the next evaluation of this batch: the next part of its round, or of Export-All. The order of these frames is
    /// that of the engine's work.
    Next {
        seq: Seq,
    },
    /// Party 1 orders correlations, which both make in the order in which they were ordered.
    Refill {
        /// (width, correlations): a chunk each.
        demand: Vec<(u32, u64)>,
    },
    /// A message of the two-party computation.
    Engine {
        stream: EngineStream,
        /// Counts the messages of this stream on this link, from 0.
        step: u64,
        bytes: Vec<u8>,
    },
    /// Party 1 drops objects that have not reached both parties in time, that differ, or that it refuses. It tells their members why.
    Drop {
        /// (slot, version).
        objects: Vec<(u32, u64)>,
    },
    /// Party 2's operator has a newer directory, which party 1 is to put into a batch.
    Members {
        set: Arc<[u8]>,
    },
    /// What the peer party may send since the link came up ([`crate::credit`]).
    Credit {
        limit: u64,
    },
    /// Whether a member takes up too little of what party 2 sends to it, so that it can get nothing more now.
    Held {
        slot: u32,
        held: bool,
    },
}

fn string(r: &mut Reader<'_>) -> Result<String, Malformed> {
    String::from_utf8(r.blob(MAX_NAME)?.to_vec()).map_err(|_| Malformed::Value("text"))
}

fn places(r: &mut Reader<'_>) -> Result<Vec<u16>, Malformed> {
    r.list(2, MAX_PREFIXES, Reader::u16)
}

fn write_places(w: &mut Writer, places: &[u16]) {
    w.list(places, |w, p| {
        w.u16(*p);
    });
}

fn candidate(r: &mut Reader<'_>) -> Result<Candidate, Malformed> {
    Ok((Handle(r.array()?), r.u16()?))
}

/// As a list of candidates, in one allocation.
fn instance(r: &mut Reader<'_>) -> Result<Instance, Malformed> {
    let count = r.count(CANDIDATE, MAX_CANDIDATES)?;
    if count == 0 {
        return Err(Malformed::Value("instance without candidates"));
    }
    let (candidates, _) = r.bytes(count * CANDIDATE)?.as_chunks::<CANDIDATE>();
    let split = |bytes: &[u8; CANDIDATE]| {
        let (handle, place) = bytes.split_first_chunk::<32>().expect("34 bytes have 32");
        (Handle(*handle), u16::from_be_bytes([place[0], place[1]]))
    };
    Ok(candidates.iter().map(split).collect())
}

fn write_candidate(w: &mut Writer, candidate: &Candidate) {
    w.bytes(&candidate.0.0).u16(candidate.1);
}

fn shared(r: &mut Reader<'_>, most: usize) -> Result<Arc<[u8]>, Malformed> {
    Ok(r.blob(most)?.into())
}

fn export(r: &mut Reader<'_>) -> Result<ExportMode, Malformed> {
    ExportMode::from_code(r.u8()?).ok_or(Malformed::Value("export mode"))
}

const MAX_SET: usize = crate::directory::MAX_ENCODED;

impl FromMember {
    /// The frame's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new();
        match self {
            Self::Hello { protocol, exchange, slot, session, select_best } => {
                w.u8(1).u16(*protocol).blob(exchange.as_bytes()).u32(*slot).bytes(session).bool(*select_best);
            }
            Self::SubmitOne { header, body } => {
                w.u8(2);
                header.write(&mut w);
                w.bool(body.is_some());
                if let Some((share, blob)) = body {
                    w.bytes(&share.opening).bytes(share.seed.expose()).blob(blob);
                }
            }
            Self::SubmitTwo { header, share } => {
                w.u8(3);
                header.write(&mut w);
                w.bool(share.is_some());
                if let Some(share) = share {
                    w.bytes(&share.opening).blob(&share.row);
                }
            }
            Self::RankOne { seq, row, seed } => {
                w.u8(4).u64(*seq).bytes(row).bytes(seed.expose());
            }
            Self::RankTwo { seq, row, share } => {
                w.u8(5).u64(*seq).bytes(row).blob(share);
            }
            Self::Resync => {
                w.u8(6);
            }
            Self::Credit { limit } => {
                w.u8(7).u64(*limit);
            }
            Self::Holds { seq, through, epoch, roots, own } => {
                w.u8(8).u64(*seq).u64(*epoch);
                through.write(&mut w);
                roots.write(&mut w);
                w.bytes(own);
            }
            Self::Buckets { seq, through, epoch, objects, instances, own } => {
                w.u8(9).u64(*seq).u64(*epoch);
                through.write(&mut w);
                digests::write_buckets(&mut w, objects);
                digests::write_buckets(&mut w, instances);
                w.bytes(own);
            }
        }
        w.finish()
    }

    /// Reads a frame.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut r = Reader::new(bytes);
        let frame = match r.u8()? {
            1 => Self::Hello {
                protocol: r.u16()?,
                exchange: string(&mut r)?,
                slot: r.u32()?,
                session: r.array()?,
                select_best: r.bool()?,
            },
            2 => {
                let header = Box::new(Header::read(&mut r)?);
                let body = if r.bool()? {
                    let share = ShareOne { opening: r.array()?, seed: Seed::new(r.array()?) };
                    Some((share, shared(&mut r, MAX_BLOB)?))
                } else {
                    None
                };
                Self::SubmitOne { header, body }
            }
            3 => {
                let header = Box::new(Header::read(&mut r)?);
                let share = if r.bool()? {
                    Some(ShareTwo { opening: r.array()?, row: shared(&mut r, MAX_FRAME)? })
                } else {
                    None
                };
                Self::SubmitTwo { header, share }
            }
            4 => Self::RankOne { seq: r.u64()?, row: r.array()?, seed: Seed::new(r.array()?) },
            5 => Self::RankTwo { seq: r.u64()?, row: r.array()?, share: r.blob(MAX_FRAME)?.to_vec() },
            6 => Self::Resync,
            7 => Self::Credit { limit: r.u64()? },
            8 => Self::Holds {
                seq: r.u64()?,
                epoch: r.u64()?,
                through: Through::read(&mut r)?,
                roots: Roots::read(&mut r)?,
                own: r.array()?,
            },
            9 => Self::Buckets {
                seq: r.u64()?,
                epoch: r.u64()?,
                through: Through::read(&mut r)?,
                objects: digests::read_buckets(&mut r)?,
                instances: digests::read_buckets(&mut r)?,
                own: r.array()?,
            },
            _ => return Err(Malformed::Value("frame type")),
        };
        r.end()?;
        Ok(frame)
    }
}

impl Tick {
    fn write(&self, w: &mut Writer) {
        w.u64(self.seq).bytes(&self.view).bool(self.slice.is_some());
        if let Some(slice) = &self.slice {
            w.bool(slice.begins.is_some());
            slice.begins.iter().for_each(|differs| differs.write(w));
            w.bool(slice.ends.is_some());
            slice.ends.iter().for_each(|roots| roots.write(w));
            w.bool(slice.own_ends);
            w.list(&slice.own, |w, own| own.write(w));
        }
        w.list(&self.applied, |w, v| {
            w.u64(*v);
        });
        w.list(&self.deliver, |w, d| {
            w.bytes(&d.handle.0).u64(d.epoch).bytes(&d.share);
            write_places(w, &d.dead);
            match &d.body {
                Body::Blob(blob) => w.u8(1).blob(blob),
                Body::Hash(hash) => w.u8(2).bytes(hash),
            };
        });
        w.list(&self.dead, write_candidate);
        w.list(&self.gone, |w, h| {
            w.bytes(&h.0);
        });
        w.list(&self.instances, |w, instance| {
            w.list(instance, write_candidate);
        });
        w.u32(self.live).bool(self.rank).list(&self.unranked, |w, place| {
            w.u32(*place);
        });
    }

    /// About how many bytes it takes: what is long in most ticks.
    pub(crate) fn octets(&self) -> usize {
        let body = |deliver: &Deliver| if let Body::Blob(blob) = &deliver.body { blob.len() } else { 32 };
        let delivered: usize = self.deliver.iter().map(|deliver| body(deliver) + 128).sum();
        let instances: usize = self.instances.iter().map(|instance| instance.len() * CANDIDATE + 4).sum();
        256 + delivered + instances + (self.dead.len() + self.gone.len()) * CANDIDATE
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            seq: r.u64()?,
            view: r.array()?,
            slice: if r.bool()? {
                let begins = if r.bool()? { Some(Differs::read(r)?) } else { None };
                let ends = if r.bool()? { Some(Roots::read(r)?) } else { None };
                let own_ends = r.bool()?;
                let own = r.list(16, MAX_LIST, OwnObject::read)?;
                Some(Slice { begins, ends, own, own_ends })
            } else {
                None
            },
            applied: r.list(8, MAX_LIST, Reader::u64)?,
            deliver: r.list(93, MAX_LIST, |r| {
                let (handle, epoch, share) = (Handle(r.array()?), r.u64()?, r.array()?);
                let dead = places(r)?;
                let body = match r.u8()? {
                    1 => Body::Blob(shared(r, MAX_BLOB)?),
                    2 => Body::Hash(r.array()?),
                    _ => return Err(Malformed::Value("body")),
                };
                Ok(Deliver { handle, epoch, share, dead, body })
            })?,
            dead: r.list(34, MAX_LIST, candidate)?,
            gone: r.list(32, MAX_LIST, |r| r.array().map(Handle))?,
            instances: r.list(4, MAX_LIST, instance)?,
            live: r.u32()?,
            rank: r.bool()?,
            unranked: r.list(4, MAX_LIST, Reader::u32)?,
        })
    }
}

impl ToMember {
    /// The frame's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = match self {
            Self::Tick(tick) => Writer::with_room(tick.octets()),
            _ => Writer::new(),
        };
        match self {
            Self::Welcome { protocol, session, epoch, high_water, tick_ms, export, max_blob, budget, set } => {
                w.u8(1).u16(*protocol).bytes(session).u64(*epoch).u64(*high_water).u32(*tick_ms);
                w.u8(export.code()).u32(*max_blob);
                budget.write(&mut w);
                w.blob(set);
            }
            Self::Renew { epoch, set } => {
                w.u8(2).u64(*epoch).blob(set);
            }
            Self::Tick(tick) => {
                w.u8(3);
                tick.write(&mut w);
            }
            Self::Outcome { seq, first, share } => {
                w.u8(4).u64(*seq).u32(*first).blob(share);
            }
            Self::Refused { version, reason } => {
                w.u8(5).u64(*version).u8(*reason as u8);
            }
            Self::Part { last, bytes } => {
                w.u8(6).bool(*last).blob(bytes);
            }
            Self::Missed { seq } => {
                w.u8(8).u64(*seq);
            }
            Self::Progress { seq } => {
                w.u8(9).u64(*seq);
            }
            Self::Rejected { why } => {
                w.u8(7);
                why.write(&mut w);
            }
            Self::Credit { limit } => {
                w.u8(10).u64(*limit);
            }
            Self::Queued { ahead } => {
                w.u8(11).u32(*ahead);
            }
            Self::Deferred { seconds } => {
                w.u8(12).u32(*seconds);
            }
            Self::OwnOrder { seconds } => {
                w.u8(13).u32(*seconds);
            }
            Self::Compare => {
                w.u8(14);
            }
        }
        w.finish()
    }

    /// Reads a frame.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut r = Reader::new(bytes);
        let frame = match r.u8()? {
            1 => Self::Welcome {
                protocol: r.u16()?,
                session: r.array()?,
                epoch: r.u64()?,
                high_water: r.u64()?,
                tick_ms: r.u32()?,
                export: export(&mut r)?,
                max_blob: r.u32()?,
                budget: BudgetLeft::read(&mut r)?,
                set: shared(&mut r, MAX_SET)?,
            },
            2 => Self::Renew { epoch: r.u64()?, set: shared(&mut r, MAX_SET)? },
            3 => Self::Tick(Box::new(Tick::read(&mut r)?)),
            4 => Self::Outcome { seq: r.u64()?, first: r.u32()?, share: r.blob(MAX_FRAME)?.to_vec() },
            5 => Self::Refused {
                version: r.u64()?,
                reason: Refusal::from_code(r.u8()?).ok_or(Malformed::Value("refusal"))?,
            },
            6 => Self::Part { last: r.bool()?, bytes: r.blob(PART)?.to_vec() },
            8 => Self::Missed { seq: r.u64()? },
            9 => Self::Progress { seq: r.u64()? },
            7 => Self::Rejected { why: Rejection::read(&mut r)? },
            10 => Self::Credit { limit: r.u64()? },
            11 => Self::Queued { ahead: r.u32()? },
            12 => Self::Deferred { seconds: r.u32()? },
            13 => Self::OwnOrder { seconds: r.u32()? },
            14 => Self::Compare,
            _ => return Err(Malformed::Value("frame type")),
        };
        r.end()?;
        Ok(frame)
    }
}

impl Step {
    /// Appends the encoding, which both parties also hash into their view.
    pub fn write(&self, w: &mut Writer) {
        match self {
            Self::Object { slot, version, digest } => w.u8(1).u32(*slot).u64(*version).bytes(digest),
            Self::Expire { slot, objects } => w.u8(2).u32(*slot).u32(*objects),
            Self::Sync { slot, session, select_best, chooses, objects, differs } => {
                w.u8(3).u32(*slot).bytes(session).bool(*select_best).bool(*chooses).u32(*objects);
                differs.write(w);
                w
            }
            Self::Gone { slot } => w.u8(4).u32(*slot),
            Self::Epoch { epoch, changed } => w.u8(5).u64(*epoch).list(changed, |w, slot| {
                w.u32(*slot);
            }),
            Self::Set { set } => w.u8(6).blob(set),
            Self::Slice { slot, objects } => w.u8(7).u32(*slot).u32(*objects),
            Self::Pause { slot } => w.u8(8).u32(*slot),
            Self::Relist { prefixes } => w.u8(9).u32(*prefixes),
        };
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(match r.u8()? {
            1 => Self::Object { slot: r.u32()?, version: r.u64()?, digest: r.array()? },
            2 => Self::Expire { slot: r.u32()?, objects: slice(r)? },
            3 => {
                let (slot, session) = (r.u32()?, r.array()?);
                let (select_best, chooses, objects) = (r.bool()?, r.bool()?, slice(r)?);
                Self::Sync { slot, session, select_best, chooses, objects, differs: Differs::read(r)? }
            }
            4 => Self::Gone { slot: r.u32()? },
            5 => Self::Epoch { epoch: r.u64()?, changed: r.list(4, MAX_SLOTS, Reader::u32)? },
            6 => Self::Set { set: shared(r, MAX_SET)? },
            7 => Self::Slice { slot: r.u32()?, objects: slice(r)? },
            8 => Self::Pause { slot: r.u32()? },
            9 => Self::Relist { prefixes: slice(r)? },
            _ => return Err(Malformed::Value("step")),
        })
    }
}

/// A number of objects, or prefixes, that one batch may bring to a member.
fn slice(r: &mut Reader<'_>) -> Result<u32, Malformed> {
    match r.u32()? {
        objects @ 0..=MAX_SLICE => Ok(objects),
        _ => Err(Malformed::Value("size of a slice")),
    }
}

fn slot_version(r: &mut Reader<'_>) -> Result<(u32, u64), Malformed> {
    Ok((r.u32()?, r.u64()?))
}

fn difference(r: &mut Reader<'_>) -> Result<Difference, Malformed> {
    Ok((r.u32()?, r.u64()?, r.u32()?, places(r)?))
}

fn write_differences(w: &mut Writer, differ: &[Difference]) {
    w.list(differ, |w, (slot, version, width, dead)| {
        w.u32(*slot).u64(*version).u32(*width);
        write_places(w, dead);
    });
}

fn write_slot_versions(w: &mut Writer, list: &[(u32, u64)]) {
    w.list(list, |w, (slot, version)| {
        w.u32(*slot).u64(*version);
    });
}

impl PartyFrame {
    /// The frame's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new();
        match self {
            Self::Hello {
                protocol,
                exchange,
                party,
                nonce,
                epoch,
                seq,
                set,
                tick_ms,
                export,
                max_blob,
                stored,
                agreed,
            } => {
                w.u8(1).u16(*protocol).blob(exchange.as_bytes()).u8(*party).bytes(nonce);
                w.u64(*epoch).u64(*seq).blob(set);
                w.u32(*tick_ms).u8(export.code()).u32(*max_blob).u64(*stored).u64(*agreed);
            }
            Self::Inventory { rows, high_water, more } => {
                w.u8(2).list(rows, |w, row| {
                    w.u32(row.slot).u64(row.version).bytes(&row.digest).u32(row.width);
                    write_places(w, &row.dead);
                });
                write_slot_versions(&mut w, high_water);
                w.bool(*more);
            }
            Self::Reconciled { epoch, set, drop, differ, high_water, view } => {
                w.u8(3).u64(*epoch).blob(set);
                write_slot_versions(&mut w, drop);
                write_differences(&mut w, differ);
                write_slot_versions(&mut w, high_water);
                w.bytes(view);
            }
            Self::Holding { objects } => {
                w.u8(4).list(objects, |w, (slot, version, digest)| {
                    w.u32(*slot).u64(*version).bytes(digest);
                });
            }
            Self::Joined { slot, session, select_best } => {
                w.u8(5).u32(*slot).bytes(session).bool(*select_best);
            }
            Self::Left { slot, session } => {
                w.u8(6).u32(*slot).bytes(session);
            }
            Self::Propose { seq, steps } => {
                w.u8(7).u64(*seq).list(steps, |w, step| step.write(w));
            }
            Self::Accept { seq, view } => {
                w.u8(8).u64(*seq).bytes(view);
            }
            Self::Reject { seq, missing } => {
                w.u8(9).u64(*seq);
                write_slot_versions(&mut w, missing);
            }
            Self::Go { seq } => {
                w.u8(10).u64(*seq);
            }
            Self::Ranked { seq, slot, row } => {
                w.u8(11).u64(*seq).u32(*slot).bytes(row);
            }
            Self::Evaluate { seq, rows } => {
                w.u8(12).u64(*seq).list(rows, |w, (slot, row)| {
                    w.u32(*slot).bytes(row);
                });
            }
            Self::Refill { demand } => {
                w.u8(13).list(demand, |w, (width, count)| {
                    w.u32(*width).u64(*count);
                });
            }
            Self::Engine { stream, step, bytes } => {
                w.u8(14).u8(*stream as u8).u64(*step).blob(bytes);
            }
            Self::Drop { objects } => {
                w.u8(15);
                write_slot_versions(&mut w, objects);
            }
            Self::Members { set } => {
                w.u8(16).blob(set);
            }
            Self::Credit { limit } => {
                w.u8(17).u64(*limit);
            }
            Self::Held { slot, held } => {
                w.u8(18).u32(*slot).bool(*held);
            }
            Self::Next { seq } => {
                w.u8(19).u64(*seq);
            }
            Self::Reconciling { drop, differ } => {
                w.u8(20);
                write_slot_versions(&mut w, drop);
                write_differences(&mut w, differ);
            }
        }
        w.finish()
    }

    /// Reads a frame.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut r = Reader::new(bytes);
        let frame = match r.u8()? {
            1 => Self::Hello {
                protocol: r.u16()?,
                exchange: string(&mut r)?,
                party: r.u8()?,
                nonce: r.array()?,
                epoch: r.u64()?,
                seq: r.u64()?,
                set: shared(&mut r, MAX_SET)?,
                tick_ms: r.u32()?,
                export: export(&mut r)?,
                max_blob: r.u32()?,
                stored: r.u64()?,
                agreed: r.u64()?,
            },
            2 => Self::Inventory {
                rows: r.list(52, MAX_LIST, |r| {
                    Ok(InventoryRow {
                        slot: r.u32()?,
                        version: r.u64()?,
                        digest: r.array()?,
                        width: r.u32()?,
                        dead: places(r)?,
                    })
                })?,
                high_water: r.list(12, MAX_SLOTS, slot_version)?,
                more: r.bool()?,
            },
            3 => Self::Reconciled {
                epoch: r.u64()?,
                set: shared(&mut r, MAX_SET)?,
                drop: r.list(12, MAX_LIST, slot_version)?,
                differ: r.list(20, MAX_LIST, difference)?,
                high_water: r.list(12, MAX_SLOTS, slot_version)?,
                view: r.array()?,
            },
            4 => Self::Holding { objects: r.list(44, MAX_LIST, |r| Ok((r.u32()?, r.u64()?, r.array()?)))? },
            5 => Self::Joined { slot: r.u32()?, session: r.array()?, select_best: r.bool()? },
            6 => Self::Left { slot: r.u32()?, session: r.array()? },
            7 => Self::Propose { seq: r.u64()?, steps: r.list(5, MAX_LIST, Step::read)? },
            8 => Self::Accept { seq: r.u64()?, view: r.array()? },
            9 => Self::Reject { seq: r.u64()?, missing: r.list(12, MAX_LIST, slot_version)? },
            10 => Self::Go { seq: r.u64()? },
            11 => Self::Ranked { seq: r.u64()?, slot: r.u32()?, row: r.array()? },
            12 => Self::Evaluate { seq: r.u64()?, rows: r.list(20, MAX_SLOTS, |r| Ok((r.u32()?, r.array()?)))? },
            13 => Self::Refill { demand: r.list(12, 64, |r| Ok((r.u32()?, r.u64()?)))? },
            14 => {
                let stream = match r.u8()? {
                    1 => EngineStream::Evaluation,
                    2 => EngineStream::Setup,
                    _ => return Err(Malformed::Value("stream of the engine")),
                };
                Self::Engine { stream, step: r.u64()?, bytes: r.blob(MAX_FRAME)?.to_vec() }
            }
            15 => Self::Drop { objects: r.list(12, MAX_LIST, slot_version)? },
            16 => Self::Members { set: shared(&mut r, MAX_SET)? },
            17 => Self::Credit { limit: r.u64()? },
            18 => Self::Held { slot: r.u32()?, held: r.bool()? },
            19 => Self::Next { seq: r.u64()? },
            20 => Self::Reconciling {
                drop: r.list(12, MAX_LIST, slot_version)?,
                differ: r.list(20, MAX_LIST, difference)?,
            },
            _ => return Err(Malformed::Value("frame type")),
        };
        r.end()?;
        Ok(frame)
    }
}
