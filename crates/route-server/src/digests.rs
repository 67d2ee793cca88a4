//! Digests of what a member holds, which it compares with party 1 when it connects again, and names of it: only what lacks is sent.
//!
//! Objects fall into buckets by their handles and instances by their hashes, both of which are outputs of SHA-256. A bucket's digest
//! is a hash over its whole content in order. A sum or an exclusive-or of the hashes would be cheaper to keep, but who announces
//! chooses salts, and so handles: it could make some hundred whose sum is that of others, and a bucket that lacks
//! them would look complete.

use std::sync::Arc;

use wayleave_core::wire::{Codec, List32, Malformed, Reader, Wire, Writer};
use wayleave_crypto::hash::hash;

use crate::frames::{Candidate, OwnObject, Seq, SessionId};
use crate::object::Handle;

/// Buckets of objects, and of instances: the first 12 bits of a hash.
pub const BUCKETS: u16 = 4096;
/// Octets of a set of buckets.
const BITS: usize = BUCKETS as usize / 8;
const LABEL_OBJECTS: &str = "wayleave/route-server/held-objects/v1";
const LABEL_INSTANCE: &str = "wayleave/route-server/instance/v1";
const LABEL_INSTANCES: &str = "wayleave/route-server/held-instances/v1";
const LABEL_ROOT: &str = "wayleave/route-server/held/v1";
const LABEL_OWN: &str = "wayleave/route-server/own-objects/v1";
const LABEL_NAME: &str = "wayleave/route-server/held-name/v1";
const LABEL_DEAD: &str = "wayleave/route-server/held-dead/v1";

/// A digest of a bucket, or of all: the first half of a SHA-256.
pub type Digest = [u8; 16];
/// The hash of an instance's candidates.
pub type InstanceHash = [u8; 32];
/// The digests of the buckets with something in them, ascending.
pub type BucketDigests = Vec<(u16, Digest)>;

fn half(whole: [u8; 32]) -> Digest {
    *whole.first_chunk().expect("16 of 32")
}

/// The bucket of what has this hash.
#[must_use]
pub fn bucket_of(hash: &[u8; 32]) -> u16 {
    u16::from(hash[0]) << 4 | u16::from(hash[1] >> 4)
}

/// The lowest and the highest hash in a bucket.
pub(crate) fn bounds(bucket: u16) -> ([u8; 32], [u8; 32]) {
    let [high, low] = (bucket << 4).to_be_bytes();
    let (mut first, mut last) = ([0; 32], [0xff; 32]);
    (first[0], first[1]) = (high, low);
    (last[0], last[1]) = (high, low | 0xf);
    (first, last)
}

/// The digest of a bucket's objects, ascending by handle, each with the indices of its dead prefixes.
pub(crate) fn of_objects<'a, D>(objects: impl Iterator<Item = (&'a Handle, D)>) -> Option<Digest>
where
    D: ExactSizeIterator<Item = u16>,
{
    let (mut w, mut is_empty) = (Writer::new(), true);
    for (handle, dead) in objects {
        is_empty = false;
        w.bytes(&handle.0).u32(u32::try_from(dead.len()).expect("an object has few prefixes"));
        dead.for_each(|index| {
            w.u16(index);
        });
    }
    (!is_empty).then(|| half(hash(LABEL_OBJECTS, &[&w.finish()])))
}

/// The hash of an instance.
#[must_use]
pub fn instance(candidates: &[Candidate]) -> InstanceHash {
    let mut w = Writer::with_capacity(candidates.len() * 34);
    for (handle, index) in candidates {
        w.bytes(&handle.0).u16(*index);
    }
    hash(LABEL_INSTANCE, &[&w.finish()])
}

/// The digest of a bucket's instances, ascending.
pub(crate) fn of_instances<'a>(instances: impl Iterator<Item = &'a InstanceHash>) -> Option<Digest> {
    let mut w = Writer::new();
    for instance in instances {
        w.bytes(instance);
    }
    let content = w.finish();
    (!content.is_empty()).then(|| half(hash(LABEL_INSTANCES, &[&content])))
}

#[cfg(test)]
std::thread_local! {
    /// How often [`root`] hashed.
    pub(crate) static ROOTS_HASHED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// The digest of all buckets.
pub(crate) fn root(buckets: &[(u16, Digest)]) -> Digest {
    #[cfg(test)]
    ROOTS_HASHED.set(ROOTS_HASHED.get() + 1);
    let mut w = Writer::with_capacity(buckets.len() * 18);
    for (bucket, digest) in buckets {
        w.u16(*bucket).bytes(digest);
    }
    half(hash(LABEL_ROOT, &[&w.finish()]))
}

/// The digest of an announcer's own live objects: ascending by version, each with its live prefixes in order.
#[must_use]
pub fn own(objects: impl IntoIterator<Item = OwnObject>) -> Digest {
    let mut w = Writer::new();
    objects.into_iter().for_each(|object| object.write(&mut w));
    half(hash(LABEL_OWN, &[&w.finish()]))
}

/// Groups what is ascending by hash into buckets.
pub(crate) fn by_bucket<'a, T>(
    sorted: &'a [T],
    hash_of: impl Fn(&T) -> &[u8; 32] + 'a,
    digest: impl Fn(&'a [T]) -> Option<Digest> + 'a,
) -> BucketDigests {
    let same = |a: &T, b: &T| bucket_of(hash_of(a)) == bucket_of(hash_of(b));
    let runs = sorted.chunk_by(same);
    runs.filter_map(|run| Some((bucket_of(hash_of(run.first()?)), digest(run)?))).collect()
}

wayleave_core::wire! {
    /// Some of the buckets.
    #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
    pub enum BucketSet: "a set of buckets" {
        #[default]
        0 = Nothing,
        1 = Everything,
        /// Bit *i* mod 8 of octet *i* / 8 for bucket *i*.
        2 = Some(Arc<[u8; BITS]>),
    }
}

impl BucketSet {
    /// Whether a bucket is one of them.
    #[must_use]
    pub fn has(&self, bucket: u16) -> bool {
        match self {
            Self::Nothing => false,
            Self::Everything => true,
            Self::Some(bits) => bits[usize::from(bucket) / 8] >> (bucket % 8) & 1 == 1,
        }
    }

    /// Those of them from a bucket on, ascending.
    pub fn from(&self, bucket: u16) -> impl Iterator<Item = u16> + '_ {
        (bucket..BUCKETS).filter(|bucket| self.has(*bucket))
    }

    /// Whether none is.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        *self == Self::Nothing
    }

    /// The buckets that two sides have different digests of.
    #[must_use]
    pub fn differing(one: &[(u16, Digest)], other: &[(u16, Digest)]) -> Self {
        let differs = |these: &[(u16, Digest)], those: &[(u16, Digest)]| -> Vec<u16> {
            let theirs = |bucket: &u16| those.binary_search_by_key(bucket, |(bucket, _)| *bucket).ok();
            let differing =
                these.iter().filter(|(bucket, digest)| theirs(bucket).map(|at| those[at].1) != Some(*digest));
            differing.map(|(bucket, _)| *bucket).collect()
        };
        let mut all = Self::Nothing;
        all.extend(differs(one, other).into_iter().chain(differs(other, one)));
        all
    }

    /// Adds buckets.
    pub fn extend(&mut self, buckets: impl IntoIterator<Item = u16>) {
        let mut bits = match self {
            Self::Everything => return,
            Self::Nothing => [0; BITS],
            Self::Some(bits) => **bits,
        };
        for bucket in buckets {
            bits[usize::from(bucket) / 8] |= 1 << (bucket % 8);
        }
        *self = if bits == [0; BITS] { Self::Nothing } else { Self::Some(Arc::new(bits)) };
    }

    /// Leaves those from a bucket on.
    pub fn retain_from(&mut self, first: u16) {
        if first > 0 {
            let left: Vec<u16> = self.from(first).collect();
            *self = Self::Nothing;
            self.extend(left);
        }
    }
}

/// What stands for a hash in a list of what a member holds: short, and of one session, so that nobody can make another hash that has the
/// same name.
pub type ShortName = [u8; 8];

/// The name of an object or of a list of candidates in a session.
#[must_use]
pub fn name(session: &SessionId, hash_of: &[u8; 32]) -> ShortName {
    *hash(LABEL_NAME, &[session, hash_of]).first_chunk().expect("8 of 32")
}

/// What stands for the dead prefixes of an object beside its name: 0 for none.
#[must_use]
pub fn dead_check(session: &SessionId, handle: &Handle, dead: impl IntoIterator<Item = u16>) -> u32 {
    let mut w = Writer::new();
    dead.into_iter().for_each(|index| {
        w.u16(index);
    });
    let dead = w.finish();
    if dead.is_empty() {
        return 0;
    }
    let [a, b, c, d, ..] = hash(LABEL_DEAD, &[session, &handle.0, &dead]);
    u32::from_be_bytes([a, b, c, d]).max(1)
}

wayleave_core::wire! {
    /// The last batches through which a member has everything.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
    pub struct Through: Self::check {
        /// Objects, and lists of candidates.
        pub objects: Seq,
        /// The results, too; no later one.
        pub results: Seq,
    }

    /// The digests of all objects and of all instances that one member has, or is to have.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Roots {
        pub objects: Digest,
        pub instances: Digest,
    }
}

impl Through {
    fn check(&self) -> Result<(), Malformed> {
        if self.results > self.objects { Err(Malformed::Order("batches")) } else { Ok(()) }
    }
}

impl Roots {
    /// Of whoever holds nothing.
    #[must_use]
    pub fn of_nothing() -> Self {
        Self { objects: root(&[]), instances: root(&[]) }
    }
}

/// The digests of buckets: ascending, none twice.
#[derive(Debug)]
pub struct Buckets;

impl Codec<BucketDigests> for Buckets {
    const LEAST: usize = 4;

    fn write(value: &BucketDigests, out: &mut Writer) {
        List32::<{ BUCKETS as usize }>::write(value, out);
    }

    fn read(from: &mut Reader<'_>) -> Result<BucketDigests, Malformed> {
        let buckets: BucketDigests = List32::<{ BUCKETS as usize }>::read(from)?;
        if buckets.last().is_some_and(|(last, _)| *last >= BUCKETS) {
            return Err(Malformed::Value("a bucket"));
        }
        if !buckets.is_sorted_by(|(a, _), (b, _)| a < b) {
            return Err(Malformed::Order("buckets"));
        }
        Ok(buckets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_has_the_hashes_between_its_bounds() {
        for bucket in [0, 1, 15, 16, 255, 2048, BUCKETS - 1] {
            let (first, last) = bounds(bucket);
            assert_eq!((bucket_of(&first), bucket_of(&last)), (bucket, bucket));
        }
        assert_eq!(bounds(0).0, [0; 32]);
        assert_eq!(bounds(BUCKETS - 1).1, [0xff; 32]);
    }

    #[test]
    fn buckets_that_one_side_lacks_or_has_otherwise_differ() {
        let (a, b) = ([1; 16], [2; 16]);
        let one = [(0, a), (7, a), (4095, a)];
        let other = [(0, a), (7, b), (100, a)];
        let mut differing = BucketSet::differing(&one, &other);
        assert_eq!(differing.from(0).collect::<Vec<u16>>(), [7, 100, 4095]);
        assert_eq!(BucketSet::differing(&one, &one), BucketSet::Nothing);
        differing.retain_from(100);
        differing.extend([8]);
        assert_eq!(differing.from(0).collect::<Vec<u16>>(), [8, 100, 4095]);
        differing.retain_from(BUCKETS);
        assert!(differing.is_nothing());
    }

    #[test]
    fn buckets_out_of_order_twice_or_out_of_bounds_are_malformed() {
        for bad in [vec![(2, [0; 16]), (1, [0; 16])], vec![(1, [0; 16]), (1, [0; 16])], vec![(4096, [0; 16])]] {
            let mut w = Writer::new();
            Buckets::write(&bad, &mut w);
            assert!(Buckets::read(&mut Reader::new(&w.finish())).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn what_died_of_an_object_shows_in_the_digest_of_its_bucket() {
        let handle = Handle([7; 32]);
        let digest = |dead: &[u16]| of_objects([(&handle, dead.iter().copied())].into_iter());
        assert_ne!(digest(&[]), digest(&[0]));
        assert_ne!(digest(&[0]), digest(&[1]));
        assert_eq!(digest(&[1]), digest(&[1]));
    }
}
