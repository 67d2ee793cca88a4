//! The two versions of the format, and mutants that leave something out.

/// A part of what is signed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Field {
    Version,
    Index,
    Signer,
    IsRoot,
    Prepend,
    Asn,
    Times,
    Bitmap,
    Previous,
    List,
    Skipped,
    /// The next AS's number in the commitment to a neighbour.
    NextAsn,
    /// Its keys there.
    NextKeys,
    /// The AS's number in a slot of a directory.
    SlotAsn,
    /// The hop as it stands, in the chain's hash.
    Octets,
    /// The content in the leaf of a burst.
    BurstContent,
}

/// A rule of the verifier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rule {
    /// A bitmap is a subset of the one before.
    BitmapsShrink,
    /// A prefix is in the bitmap of every proved hop, not only in that of the last hop of the value, which may stand after the end of the
    /// proved part.
    EveryBitmap,
    /// A signed root is that of a directory's tree, and no tree over all neighbours of an AS opens.
    SlotsOnly,
    /// Where the AS has a profile, the named key is one of it.
    KeyOfProfile,
}

/// What is signed and checked.
#[derive(Clone, Debug)]
pub(super) struct Format {
    pub(super) version: u8,
    omitted: Vec<Field>,
    ignored: Vec<Rule>,
}

impl Format {
    pub(super) fn version(version: u8) -> Self {
        Self { version, omitted: Vec::new(), ignored: Vec::new() }
    }

    /// Version 2 without `fields` in what is signed.
    pub(super) fn without(fields: &[Field]) -> Self {
        Self { omitted: fields.to_vec(), ..Self::version(2) }
    }

    /// Version 2 for a verifier that does not check `rule`.
    pub(super) fn ignoring(rule: Rule) -> Self {
        Self { ignored: vec![rule], ..Self::version(2) }
    }

    pub(super) fn and_ignoring(mut self, rule: Rule) -> Self {
        self.ignored.push(rule);
        self
    }

    pub(super) fn omits(&self, field: Field) -> bool {
        self.omitted.contains(&field)
    }

    pub(super) fn checks(&self, rule: Rule) -> bool {
        !self.ignored.contains(&rule)
    }

    pub(super) fn signs<T>(&self, field: Field, value: T) -> Option<T> {
        (!self.omits(field)).then_some(value)
    }
}
