//! The frames between members and parties, and between the two parties.
//!
//! A frame is one octet of type and its fields, inside one length-prefixed record of a TLS link. Everything counted is
//! bounded before it is allocated, and nothing may be left over.
//!
//! A frame that was added to the protocol says since which version it is there, and is none in a session of an older one. Greetings
//! ([`FromMember::Hello`], [`FromMember::Begin`], [`ToMember::Welcome`], [`ToMember::Rejected`], [`PartyFrame::Hello`]) and grants of credit
//! come before a version is agreed on, and are alike in all of them ([`crate::versions`]).

use std::fmt;
use std::sync::Arc;

use crate::codecs::{NlriCodec, SeedCodec};
use crate::digests::{BucketDigests, BucketSet, Buckets, Digest, InstanceHash, Roots, ShortName, Through};
use crate::object::{ExportMode, Handle, Header, MAX_BLOB, MAX_PREFIXES, MAX_SLOTS, ShareOne, ShareTwo};
use crate::versions::{MAX_LATER, Versions};
use wayleave_bgp::Nlri;
use wayleave_core::Prefix;
use wayleave_core::wire::{self, AtMost, Blob, Codec, List32, Malformed, Maybe, Own, Reader, Utf8, Wire, Writer};
use wayleave_crypto::secret::Seed;

/// Milliseconds between batches, at most; as the configuration has it.
pub const MAX_TICK_MS: u32 = 60_000;
/// Largest frame in bytes; longer ones are refused by the link before they are read.
pub const MAX_FRAME: usize = 16 << 20;
/// Bytes of one part of a frame to a member that is longer than this.
pub const PART: usize = 4 << 20;
/// Largest frame to a member that comes in parts: a full tick of a large exchange.
pub const MAX_IN_PARTS: usize = 1 << 30;
/// Candidates of one prefix that Select-Best looks at: our own limit. Where there are more, every slot's first path counts before any
/// slot's second, and among equals the parties' numbers decide ([`crate::order`]).
pub const MAX_CANDIDATES: usize = 128;
/// Of each member's paths to a prefix, by path identifiers, so many compete with those of others: our own limit.
pub const MAX_PATHS: usize = 4;
/// Bytes of a candidate.
const CANDIDATE: usize = 34;
/// Bytes of a prefix with its path identifier, at most.
const NLRI: usize = 22;
/// Objects, and instances, that one batch sends a member of what it lacks, and prefixes that it looks at again: our own limit.
pub const MAX_SLICE: u32 = 4096;
/// Names of what a member holds in one frame: our own limit, of a third of a megabyte.
pub const MAX_NAMES: usize = 1 << 15;
/// In the place of a batch's number, which is never zero: the evaluation of late rankings.
pub const LATE: Seq = 0;
/// Late rankings that are evaluated together, and batches of which there may be some: our own limits.
pub const MAX_LATE_ROWS: usize = 4096;
pub const MAX_LATE_ROUNDS: usize = 512;
const MAX_NAME: usize = 128;
const MAX_LIST: usize = 4 << 20;
/// Names of one slice: those of one frame, twice.
const MAX_GONE: usize = 2 * MAX_NAMES;

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

wayleave_core::wire! {
    /// A frame from a member to a party.
    #[derive(Clone, Debug)]
    pub enum FromMember: "a frame's type" {
        1 = Hello {
            versions: Versions,
            exchange: String as Name,
            /// The link's certificate must be that slot's.
            slot: u32,
            /// The same towards both parties.
            session: SessionId,
            /// Whether the member takes part in Select-Best. The parties see this.
            select_best: bool,
            /// The formats of objects that the member reads.
            formats: Versions,
            later: Vec<u8> as Later,
        },
        /// Once both parties have welcomed the member, and before anything else: the version of the session. From here on both directions
        /// of the link are of it, and before it there is nothing that depends on it.
        10 = Begin {
            version: u16,
            /// What party 1 and party 2 said in their welcomes that they speak.
            told: [Versions; 2] as [Own; 2],
        },
        2 = SubmitOne {
            header: Box<Header>,
            /// Share and blob, for an announcement.
            body: Option<(ShareOne, Arc<[u8]>)> as Maybe<(Own, Blob<MAX_BLOB>)>,
        },
        3 = SubmitTwo {
            header: Box<Header>,
            /// The share, for an announcement or a column.
            share: Option<ShareTwo>,
        },
        /// The member's ranking of every candidate of a batch; to party 1 a seed.
        4 = RankOne {
            seq: Seq,
            /// Ties the two shares of one ranking together; random.
            row: [u8; 16],
            /// Party 1's share is this seed's output.
            seed: Seed as SeedCodec,
        },
        /// The same, to party 2: the ranking XOR the seed's output.
        5 = RankTwo {
            seq: Seq,
            row: [u8; 16],
            /// Two bytes a candidate: valid bit, class.
            share: Vec<u8> as Blob<MAX_FRAME>,
        },
        /// To party 1: what the member holds, after its hello and when its view is in doubt. It requests what differs.
        8 = Holds {
            /// The last batch that it took.
            seq: Seq,
            /// The first epoch of those in which Select-Best chose for it among the instances.
            epoch: u64,
            through: Through,
            roots: Roots,
            /// Of its own objects, as far as it knows what the parties have.
            own: Digest,
        },
        /// Answers [`ToMember::Compare`]: the same by buckets.
        9 = Buckets {
            seq: Seq,
            epoch: u64,
            through: Through,
            objects: BucketDigests as Buckets,
            instances: BucketDigests as Buckets,
            own: Digest,
        },
        /// Answers [`ToMember::NameObjects`]: of the buckets that it names, what the member holds from its hash on, through another one.
        6 = ObjectNames {
            question: u32,
            through: Handle,
            /// Names, each with the check of the dead prefixes.
            names: Vec<(ShortName, u32)> as List32<MAX_NAMES>,
        },
        /// Answers [`ToMember::NameInstances`] likewise.
        11 = InstanceNames {
            question: u32,
            through: InstanceHash,
            names: Vec<ShortName> as List32<MAX_NAMES>,
            /// Others, which are to be listed again: no result came, or some of their candidates had not come.
            open: Vec<ShortName> as List32<MAX_NAMES>,
        },
        /// What the party may send since the link came up ([`crate::credit`]).
        7 = Credit { limit: u64 },
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
        pub dead: Vec<u16> as Places,
        /// From party 1 the blob, from party 2 its hash.
        pub body: Body,
    }
}

impl fmt::Debug for Deliver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Deliver({:?}, epoch {}, dead {:?})", self.handle, self.epoch, self.dead)
    }
}

wayleave_core::wire! {
    /// What party 1 or party 2 has of a blob.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub enum Body: "a blob or its hash" {
        1 = Blob(Arc<[u8]> as Blob<MAX_BLOB>),
        2 = Hash([u8; 32]),
    }

    /// A live object of the receiver of a slice.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub struct OwnObject {
        pub version: u64,
        /// Slots that its row covers: fewer than its announcer knows, if columns of it were lost, and none if it was lost itself.
        pub width: u32,
        /// Prefixes that it still owns, ascending where it is digested.
        pub live: Vec<Nlri> as List32<MAX_PREFIXES, NlriCodec>,
        /// Those of them that do not compete, since too many others do.
        pub outside: Vec<Nlri> as List32<MAX_PREFIXES, NlriCodec>,
    }

    /// Part of what a member lacks: what of `deliver`, `dead` and `instances` is not new to everybody, and this.
    #[derive(Clone, PartialEq, Eq, Debug, Default)]
    pub struct Slice {
        /// In the first one: whether all own objects are listed. Otherwise they are as the receiver said.
        pub begins: Option<bool>,
        /// In the last one: what the receiver must have now.
        pub ends: Option<Roots>,
        /// Whether all own objects have been listed with this slice, or are as the receiver said.
        pub own_ends: bool,
        /// Some of the receiver's own live objects.
        pub own: Vec<OwnObject> as Long,
        /// Prefixes that died of objects that the receiver named.
        pub died: Vec<Candidate> as Long,
        /// Objects that the receiver named and that are gone.
        pub gone: Vec<ShortName> as List32<MAX_GONE>,
        /// The same of instances.
        pub gone_instances: Vec<ShortName> as List32<MAX_GONE>,
        /// Lost objects, with the prefixes of which nothing else is known: a receiver's router may keep what it has of these for now.
        /// With the last slice all have been listed that there are.
        pub lost: Vec<LostEntry> as Long<(Own, Own, Places)>,
    }

    /// One batch as one member sees it. Party 1 and party 2 send ticks that differ in shares and bodies only.
    #[derive(Clone, PartialEq, Eq, Debug, Default)]
    pub struct Tick {
        pub seq: Seq,
        /// The view under which both parties made it.
        pub view: [u8; 32],
        /// With the next part of what the receiver lacks: what `deliver` and `instances` have of it, and this.
        pub slice: Option<Slice>,
        /// Versions of the receiver's own that this batch applied.
        pub applied: Vec<u64> as Long,
        /// New objects, and objects that a column opened to this receiver.
        pub deliver: Vec<Deliver> as Long,
        /// Prefixes that died.
        pub dead: Vec<Candidate> as Long,
        /// Objects without a live prefix.
        pub gone: Vec<Handle> as Long,
        /// The prefixes whose candidates changed, each with its candidates in number order: by the hashes of these. One candidate needs no
        /// round.
        pub instances: Vec<Instance> as Long<InstanceCodec>,
        /// How many of them, from the first on, changed just now: their results go before those of the others, which a slice or a new
        /// epoch lists again, and which are by their hashes, too.
        pub live: u32,
        /// Whether a ranking is awaited from this receiver.
        pub rank: bool,
        /// Places, ascending, of instances in which only routes of the receiver's own AS changed, which it does not use: what was chosen
        /// for it stays, and whatever it ranks there counts as zero.
        pub unranked: Vec<u32> as Long,
        /// The receiver's own routes that compete no more, since too many others do; and those that compete again, or are gone.
        pub outside: Vec<Nlri> as Long<NlriCodec>,
        pub inside: Vec<Nlri> as Long<NlriCodec>,
    }

    /// A frame from a party to a member.
    #[derive(Clone, Debug)]
    pub enum ToMember: "a frame's type" {
        /// Answers a [`FromMember::Hello`].
        1 = Welcome {
            versions: Versions,
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
            /// The highest format of objects that this party and all members read, as far as it knows.
            format: u16,
            set: Arc<[u8]> as Blob<MAX_SET>,
            later: Vec<u8> as Later,
        },
        /// The member set or the epoch changed.
        2 = Renew {
            /// The epoch for new objects.
            epoch: u64,
            set: Arc<[u8]> as Blob<MAX_SET>,
        },
        3 = Tick(Box<Tick>),
        /// This party's share of a part of the results of a batch, as the evaluations end. Parts come in order.
        4 = Outcome {
            seq: Seq,
            /// The place of its first instance in [`round_order`].
            first: u32,
            /// One octet each: valid 1, index 7.
            share: Vec<u8> as Blob<MAX_FRAME>,
        },
        6 = Part {
            /// Whether it is the last one.
            last: bool,
            bytes: Vec<u8> as Blob<PART>,
        },
        /// An object was refused.
        5 = Refused {
            version: u64,
            reason: Refusal,
        },
        /// The round of this batch goes on, and has done so since the last report: its results will come.
        9 = Progress {
            seq: Seq,
        },
        /// From party 1: the ranking of this batch does not count. The member's own order decides.
        8 = Missed {
            seq: Seq,
            why: Miss,
        },
        /// Answers a [`FromMember::Hello`] that is not taken; the party then closes the link.
        7 = Rejected {
            why: Rejection,
        },
        /// What the member may send since the link came up ([`crate::credit`]).
        10 = Credit {
            limit: u64,
        },
        /// From party 1: the member's synchronisation waits until so many others have had theirs.
        11 = Queued {
            ahead: u32,
        },
        /// From party 1: the member was sent what it lacks too often, and is again in so many seconds at the earliest.
        12 = Deferred {
            seconds: u32,
        },
        /// From party 1: the member asked too often to have Select-Best choose among what it is sent; its own order decides. It may again in
        /// so many seconds.
        13 = OwnOrder {
            seconds: u32,
        },
        /// From party 1: asks for [`FromMember::Buckets`].
        14 = Compare,
        /// From party 1: asks for [`FromMember::ObjectNames`] in some buckets, from a handle on.
        15 = NameObjects {
            /// The answer has it, too.
            question: u32,
            /// It is of what the member holds after this batch.
            after: Seq,
            buckets: BucketSet,
            from: Handle,
        },
        /// From party 1: asks for [`FromMember::InstanceNames`] likewise.
        16 = NameInstances {
            question: u32,
            after: Seq,
            buckets: BucketSet,
            from: InstanceHash,
        },
        /// The highest format of objects that the party and all members read has changed.
        17 = Format {
            format: u16,
        },
        /// The session has begun. Of the second version that is built for tests.
        18 since 8 if (feature = "next-version") = Begun {
            version: u16,
        },
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
        /// How often in an hour it is sent what it lacks, and how often it may be at once from now on.
        pub syncs: u32,
        pub syncs_left: u32,
        /// How often in an hour Select-Best chooses among that, and how often it may at once from now on.
        pub choices: u32,
        pub choices_left: u32,
    }

    /// Why a party does not take the hello of a member that its certificate has proved. It says nothing that the member set, which
    /// the member may have, does not.
    #[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
    pub enum Rejection: "the reason of a rejection" {
        /// The member speaks a version before 7. In this form it is read by programs of all versions up to 6.
        #[error("the party speaks version {ours} of the protocol")]
        1 = Protocol {
            /// The party's highest.
            ours: u16,
        },
        /// The member names another exchange.
        #[error("the party is of the exchange `{ours}`")]
        2 = Exchange {
            /// The party's.
            ours: String as Name,
        },
        /// The member names another slot.
        #[error("the certificate is that of slot {proved}")]
        3 = Slot {
            /// The one that has the link's certificate.
            proved: u32,
        },
        /// The member's slot was removed: it is a member no more. It may come at any time.
        #[error("slot {slot} was removed with member set {set}")]
        4 = Removed {
            slot: u32,
            /// The number of the first set in which it is not active, as far as the party knows.
            set: u64,
            /// The party whose operator removed it; 0 where both operators signed that it has left.
            by: u8,
        },
        /// The member and the party have no version in common. It has this form in all versions.
        #[error("the party speaks version {ours} of the protocol")]
        5 = Versions {
            /// The party's.
            ours: Versions,
            later: Vec<u8> as Later,
        },
        /// The member began a session after it was told another range by the peer party than this party was.
        #[error(
            "the other party told this proxy that it speaks version {told} of the protocol, and told this party that it speaks {ours}"
        )]
        6 = Told {
            told: Versions,
            /// What the peer party told the party.
            ours: Versions,
        },
        /// The member reads no format of objects in which the others announce.
        #[error("other members announce in format {ours}, which this proxy does not read any more")]
        7 = Format {
            ours: u16,
        },
    }

    /// Why a ranking does not count.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
    pub enum Miss: "the reason of a missed ranking" {
        #[error("it was not at both parties in time")]
        1 = Absent,
        #[error("rankings of the member were late before, and are not waited for")]
        2 = Probation,
        #[error("it came late, and the member's budget for late rankings is spent")]
        3 = Budget,
        #[error("it came late, and the parties had no time for it")]
        4 = Share,
    }

    /// Why an object was not taken.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
    pub enum Refusal: "the reason of a refusal" {
        #[error("its version is not above the last one, or so high that none is left after it")]
        1 = OldVersion,
        #[error("it was made in an earlier epoch")]
        2 = Epoch,
        #[error("it was made under another member set")]
        3 = Set,
        #[error("its signature, commitment or hash is wrong")]
        4 = Proof,
        #[error("the two parties got different objects, or one got none")]
        5 = Mismatch,
        #[error("its row or blob has the wrong size")]
        6 = Size,
        #[error("it exceeds the member's prefix limit")]
        7 = MaxPrefix,
        #[error("too many objects of the member are waiting")]
        8 = Busy,
        #[error("its sealed route is larger than the parties take (`max_blob`)")]
        9 = BlobSize,
        #[error("the member sends more than its budget, and does not wait for credit")]
        10 = Budget,
        #[error("it exceeds the octets that the parties store for the member")]
        11 = Stored,
        #[error("it has a format that not all members read")]
        12 = Format,
    }

    /// One step of what a batch does, in the order in which both parties apply it.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub enum Step: "a step" {
        /// Applies an object that both parties hold.
        1 = Object {
            slot: u32,
            version: u64,
            /// [`Header::digest`].
            digest: [u8; 32],
        },
        /// Removes so many objects of a slot whose member has left or was away for longer than the stale timer.
        2 = Expire { slot: u32, objects: u32 as AtMost<MAX_SLICE> },
        /// Begins to send a member whose two links are up what it lacks, and all that changes. `chooses`: whether it ranks what it is sent
        /// so, if it takes part in Select-Best; `own`: whether its own objects are listed.
        3 = Sync { slot: u32, session: SessionId, select_best: bool, chooses: bool, own: bool },
        /// A member lost a link.
        4 = Gone { slot: u32 },
        /// Begins an epoch: the recommendation of these slots changed, so the prefixes with a candidate of theirs are evaluated again,
        /// from the first one on.
        5 = Epoch { epoch: u64, changed: Vec<u32> as List32<MAX_SLOTS> },
        /// A newer directory: sets that both operators signed, and removals.
        6 = Set { set: Arc<[u8]> as Blob<MAX_SET> },
        /// Goes on to send a member what it lacks.
        7 = Slice { slot: u32, content: Box<SliceContent> },
        /// A member takes up too little of what is sent to it: it gets nothing more, and later what it lacks.
        8 = Pause { slot: u32 },
        /// So many prefixes more are looked at, since an epoch began: those with a candidate whose value changed are evaluated again.
        9 = Relist { prefixes: u32 as AtMost<MAX_SLICE> },
        /// Forgets so many lost objects, those that were lost first: their announcer was removed, or has not said for longer than the stale
        /// timer what became of them.
        10 = Forget { objects: u32 as AtMost<MAX_SLICE> },
    }

    /// Part of what one member lacks, as party 1 names it. Both parties send it as it is after the batch.
    #[derive(Clone, PartialEq, Eq, Debug, Default)]
    pub struct SliceContent {
        /// Versions of the member's own objects, and whether these are the last.
        pub own: Vec<u64> as Long,
        pub own_ends: bool,
        /// Slots and versions of objects.
        pub objects: Vec<(u32, u64)> as Long,
        /// The same of objects that the member has, of which prefixes died.
        pub died: Vec<(u32, u64)> as Long,
        /// Prefixes to list.
        pub prefixes: Vec<Prefix> as Long,
        /// What the member named and what is gone.
        pub gone: Vec<ShortName> as List32<MAX_GONE>,
        pub gone_instances: Vec<ShortName> as List32<MAX_GONE>,
        /// Slots and versions of lost objects, and for how many seconds they have been lost.
        pub lost: Vec<(u32, u64, u32)> as Long,
        /// Instances whose hashes are below this one have been sent, or are as the member has them; none while objects are still to come.
        pub settled: Option<InstanceHash>,
        /// Whether it is the last part.
        pub ends: bool,
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
        pub dead: Vec<u16> as Places,
    }

    /// An object, or a part of one, that one party alone had when their link came up, and of which neither knows that it was withdrawn or
    /// replaced.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub struct LostObject {
        pub slot: u32,
        pub version: u64,
        pub handle: Handle,
        /// When it was lost first, in microseconds of Unix time.
        pub since: u64,
        /// Its prefixes that were lost: index, the first slot for which it is lost, and prefix. Both parties may have it for the slots below.
        pub prefixes: Vec<LostPrefix> as List32<MAX_PREFIXES, (Own, Own, NlriCodec)>,
    }
}

/// A prefix of a lost object: its index, the first slot for which it is lost, and itself.
pub type LostPrefix = (u16, u32, Nlri);

/// A lost object as a member is told of it: for how many seconds it has been lost, and the indices of the prefixes that were.
pub type LostEntry = (Handle, u32, Vec<u16>);

/// What party 2 has and party 1 does not: slot, version, and whether it is lost, rather than known to be withdrawn or replaced.
pub type DroppedObject = (u32, u64, bool);

/// An object of which the two parties have different rows or dead prefixes, and what counts: slot, version, the narrower row's width,
/// and the indices of prefixes that are dead at either.
pub type Difference = (u32, u64, u32, Vec<u16>);

wayleave_core::wire! {
    /// What a message of the two-party computation belongs to. Neither stream waits for the other's messages.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub enum EngineStream: "a stream of the engine" {
        1 = Evaluation,
        /// Correlations are made.
        2 = Setup,
    }

    /// A frame between the two parties.
    #[derive(Clone, Debug)]
    pub enum PartyFrame: "a frame's type" {
        1 = Hello {
            versions: Versions,
            exchange: String as Name,
            party: u8,
            /// Half of the session id of the engine; random.
            nonce: [u8; 16],
            epoch: u64,
            /// The last batch that the party knows; the next is above both parties'.
            seq: Seq,
            /// The signed member set that the party knows.
            set: Arc<[u8]> as Blob<MAX_SET>,
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
            /// The last batch that it has applied: what it stores may be behind that.
            applied: Seq,
            /// Its clock, in microseconds of Unix time.
            clock: u64,
            /// The number of the order of candidates in this party's configuration; both must have the same.
            order: u32,
            /// Commits to this party's share of the key of that order, should it be drawn.
            commitment: [u8; 32],
            /// Shows which key this party has of that order, if it has one ([`crate::order::OrderKey::check`]).
            has_order: Option<[u8; 32]>,
            later: Vec<u8> as Later,
        },
        2 = Inventory {
            rows: Vec<InventoryRow> as Long,
            /// The highest version seen, per slot.
            high_water: Vec<(u32, u64)> as List32<MAX_SLOTS>,
            /// The highest version applied, per slot.
            applied: Vec<(u32, u64)> as List32<MAX_SLOTS>,
            more: bool,
        },
        /// Part of what party 1 concludes from both inventories, if that is long. [`Self::Reconciled`] has the last part.
        20 = Reconciling {
            /// (slot, version) to drop, and whether it is lost.
            drop: Vec<DroppedObject> as Long,
            differ: Vec<Difference> as Long<(Own, Own, Own, Places)>,
        },
        /// Party 1's conclusion from both inventories. What party 2 need not drop, both have.
        3 = Reconciled {
            epoch: u64,
            set: Arc<[u8]> as Blob<MAX_SET>,
            /// As in [`Self::Reconciling`].
            drop: Vec<DroppedObject> as Long,
            differ: Vec<Difference> as Long<(Own, Own, Own, Places)>,
            /// The highest version seen, per slot.
            high_water: Vec<(u32, u64)> as List32<MAX_SLOTS>,
            /// The view that both must have now.
            view: [u8; 32],
        },
        /// Lost objects that this party knows of, after party 1's conclusion: each party sends all of them, and both have those of both.
        22 = Lost {
            objects: Vec<LostObject> as Long,
            more: bool,
        },
        /// Party 2 holds these objects, which wait to be applied.
        4 = Holding {
            /// (slot, version, digest).
            objects: Vec<(u32, u64, [u8; 32])> as Long,
        },
        /// Party 2's link to a member is up.
        5 = Joined {
            slot: u32,
            session: SessionId,
            select_best: bool,
        },
        /// Party 2's link to a member is down.
        6 = Left {
            slot: u32,
            session: SessionId,
        },
        7 = Propose {
            seq: Seq,
            steps: Vec<Step> as Long,
        },
        /// Party 2 has applied the batch durably, with this view as the result.
        8 = Accept {
            seq: Seq,
            view: [u8; 32],
        },
        /// Party 2 lacks objects of the batch.
        9 = Reject {
            seq: Seq,
            /// (slot, version).
            missing: Vec<(u32, u64)> as Long,
        },
        /// Party 1 has the same view; both deliver.
        10 = Go {
            seq: Seq,
        },
        /// Party 2 has a member's ranking.
        11 = Ranked {
            seq: Seq,
            slot: u32,
            /// The ranking's id.
            row: [u8; 16],
        },
        /// Party 1 starts the round of a batch with these rankings.
        12 = Evaluate {
            seq: Seq,
            /// (slot, ranking's id), ascending.
            rows: Vec<(u32, [u8; 16])> as List32<MAX_SLOTS>,
            /// Slots, ascending, whose rankings are not at both parties: they may be evaluated later, with [`Self::Late`].
            late: Vec<u32> as List32<MAX_SLOTS>,
        },
        /// Party 1 has these late rankings evaluated together, and those of some batches not any more.
        23 = Late {
            /// (batch, slot, ranking's id).
            rows: Vec<(Seq, u32, [u8; 16])> as List32<MAX_LATE_ROWS>,
            /// Batches of which no late ranking that is not named by now will be.
            ended: Vec<Seq> as List32<MAX_LATE_ROUNDS>,
        },
        /// Party 1 has begun the next evaluation of this batch: the next part of its round, or of Export-All; or, with [`LATE`], of late
        /// rankings. The order of these frames is that of the engine's work.
        19 = Next {
            seq: Seq,
        },
        /// Party 1 orders correlations, which both make in the order in which they were ordered.
        13 = Refill {
            /// (width, correlations): a chunk each.
            demand: Vec<(u32, u64)> as List32<64>,
        },
        /// A message of the two-party computation.
        14 = Engine {
            stream: EngineStream,
            /// Counts the messages of this stream on this link, from 0.
            step: u64,
            bytes: Vec<u8> as Blob<MAX_FRAME>,
        },
        /// Party 1 drops objects that have not reached both parties in time, that differ, or that it refuses. It tells their members why.
        15 = Drop {
            /// (slot, version).
            objects: Vec<(u32, u64)> as Long,
        },
        /// Party 2's operator has a newer directory, which party 1 is to put into a batch.
        16 = Members {
            set: Arc<[u8]> as Blob<MAX_SET>,
        },
        /// What the peer party may send since the link came up ([`crate::credit`]).
        17 = Credit {
            limit: u64,
        },
        /// Opens what this party's hello committed to: the key of the order of candidates is drawn.
        21 = OrderShare {
            opening: [u8; 32],
            share: Seed as SeedCodec,
        },
        /// The key of the order of candidates, to a peer party that has none.
        25 = OrderKey {
            key: Seed as SeedCodec,
        },
        /// Whether a member takes up too little of what party 2 sends to it, so that it can get nothing more now, and whether it could not
        /// be sent something.
        18 = Held {
            slot: u32,
            held: bool,
            lacks: bool,
        },
        /// The parties agree, in this version. Of the second version that is built for tests.
        24 since 8 if (feature = "next-version") = Raised {
            version: u16,
        },
    }
}

/// What later versions add to a greeting: it is passed over.
type Later = Blob<MAX_LATER>;
/// The name of an exchange.
type Name = Utf8<MAX_NAME>;
/// Places of prefixes in an object's list.
type Places = List32<MAX_PREFIXES>;
/// A list as long as a frame can hold.
type Long<C = Own> = List32<MAX_LIST, C>;

/// The candidates of a prefix: at least one, as a list, read in one allocation.
struct InstanceCodec;

impl Codec<Instance> for InstanceCodec {
    const LEAST: usize = 4 + CANDIDATE;

    fn write(value: &Instance, out: &mut Writer) {
        out.list32(value, |out, candidate| candidate.write(out));
    }

    fn read(from: &mut Reader<'_>) -> Result<Instance, Malformed> {
        let count = from.count32(CANDIDATE, MAX_CANDIDATES)?;
        if count == 0 {
            return Err(Malformed::Value("the number of candidates"));
        }
        let (candidates, _) = from.bytes(count * CANDIDATE)?.as_chunks::<CANDIDATE>();
        let split = |octets: &[u8; CANDIDATE]| {
            let (handle, place) = octets.split_first_chunk::<32>().expect("34 octets have 32");
            (Handle(*handle), u16::from_be_bytes([place[0], place[1]]))
        };
        Ok(candidates.iter().map(split).collect())
    }
}

const MAX_SET: usize = crate::directory::MAX_ENCODED;

impl Tick {
    /// About how many octets it takes: what is long in most ticks.
    pub(crate) fn octets(&self) -> usize {
        let body = |deliver: &Deliver| if let Body::Blob(blob) = &deliver.body { blob.len() } else { 32 };
        let delivered: usize = self.deliver.iter().map(|deliver| body(deliver) + 128).sum();
        let instances: usize = self.instances.iter().map(|instance| instance.len() * CANDIDATE + 4).sum();
        let own = (self.outside.len() + self.inside.len()) * NLRI;
        256 + delivered + instances + (self.dead.len() + self.gone.len()) * CANDIDATE + own
    }
}

/// Whether a frame that is there since a version may come in a session of another.
fn known_in(version: u16, since: Option<u16>) -> Result<(), Malformed> {
    if since.is_some_and(|since| since > version) { Err(Malformed::Value("a frame's type")) } else { Ok(()) }
}

impl FromMember {
    /// What a member says that holds nothing: it is sent everything.
    #[must_use]
    pub fn holds_nothing() -> Self {
        let through = Through { objects: 0, results: 0 };
        Self::Holds { seq: 0, epoch: 0, through, roots: Roots::of_nothing(), own: Digest::default() }
    }

    /// The frame's octets.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        wire::encode(self)
    }

    /// Reads a frame, of whatever version.
    pub fn decode(octets: &[u8]) -> Result<Self, Malformed> {
        wire::decode(octets)
    }

    /// Reads a frame of a session of this version: one that came later is none.
    pub fn decode_in(version: u16, octets: &[u8]) -> Result<Self, Malformed> {
        let frame = Self::decode(octets)?;
        known_in(version, frame.since())?;
        Ok(frame)
    }
}

impl ToMember {
    /// The frame's octets.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let capacity = if let Self::Tick(tick) = self { tick.octets() } else { 0 };
        let mut out = Writer::with_capacity(capacity);
        self.write(&mut out);
        out.finish()
    }

    /// Reads a frame, of whatever version.
    pub fn decode(octets: &[u8]) -> Result<Self, Malformed> {
        wire::decode(octets)
    }

    /// Reads a frame of a session of this version: one that came later is none.
    pub fn decode_in(version: u16, octets: &[u8]) -> Result<Self, Malformed> {
        let frame = Self::decode(octets)?;
        known_in(version, frame.since())?;
        Ok(frame)
    }
}

impl PartyFrame {
    /// The frame's octets.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        wire::encode(self)
    }

    /// Reads a frame, of whatever version.
    pub fn decode(octets: &[u8]) -> Result<Self, Malformed> {
        wire::decode(octets)
    }

    /// Reads a frame of a session of this version: one that came later is none.
    pub fn decode_in(version: u16, octets: &[u8]) -> Result<Self, Malformed> {
        let frame = Self::decode(octets)?;
        known_in(version, frame.since())?;
        Ok(frame)
    }
}
