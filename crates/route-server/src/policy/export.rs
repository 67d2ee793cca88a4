//! Who may have a route: one bit for each slot of the member set.

use std::collections::BTreeMap;
use std::fmt;

use wayleave_bgp::Attributes;
use wayleave_core::{Asn, Prefix};

use super::config::PerPeer;
use super::rules::{Exported, Policy, Route};
use super::treatments;
use crate::directory::{MemberSet, Slot, SlotId};

/// The column of the policy matrix `P[receiver][route]` that belongs to one route: a bit for each slot.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ExportSet {
    words: Vec<u64>,
    width: usize,
}

impl ExportSet {
    /// Nobody, of `width` slots.
    #[must_use]
    pub fn nobody(width: usize) -> Self {
        Self { words: vec![0; width.div_ceil(64)], width }
    }

    /// Slots that the set speaks of.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    /// Whether the member in this slot may have the route; no slot beyond the width may.
    #[must_use]
    pub fn contains(&self, slot: SlotId) -> bool {
        let slot = slot as usize;
        slot < self.width && self.words[slot / 64] >> (slot % 64) & 1 == 1
    }

    /// Adds a slot; one beyond the width is ignored.
    pub fn insert(&mut self, slot: SlotId) {
        let slot = slot as usize;
        if slot < self.width {
            self.words[slot / 64] |= 1 << (slot % 64);
        }
    }

    /// How many may have it.
    #[must_use]
    pub fn count(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Those who may have it, ascending.
    pub fn iter(&self) -> impl Iterator<Item = SlotId> {
        (0..self.width as SlotId).filter(|&slot| self.contains(slot))
    }

    /// The same decisions for the slots that it speaks of, and those of `wider` for the slots beyond.
    #[must_use]
    pub fn extended(&self, wider: &Self) -> Self {
        let mut set = Self::nobody(wider.width);
        (0..wider.width as SlotId)
            .filter(|&slot| if (slot as usize) < self.width { self.contains(slot) } else { wider.contains(slot) })
            .for_each(|slot| set.insert(slot));
        set
    }

    /// Those whom both let have it.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let words = self.words.iter().zip(&other.words).map(|(a, b)| a & b).collect();
        Self { words, width: self.width.min(other.width) }
    }

    /// One entry per slot.
    #[must_use]
    pub fn to_bools(&self) -> Vec<bool> {
        (0..self.width as SlotId).map(|slot| self.contains(slot)).collect()
    }

    /// Bit `i % 64` of word `i / 64` is slot `i`; bits beyond the width are zero.
    #[must_use]
    pub fn words(&self) -> &[u64] {
        &self.words
    }
}

/// Who may have the route to `prefix` with `attributes` (as the announcer's router sent them) that the member in slot
/// `announcer` announces.
///
/// The communities of the route and the member's export rules must both permit a receiver, unless the rule that decides
/// says `ignore_communities`; NO_ADVERTISE always holds, and so does what cannot be added for a receiver. A policy that names an AS covers all its slots. The
/// announcer's own slot, leavers' slots and slots that the member holds are never in the set.
#[must_use]
pub fn export_set(
    prefix: Prefix,
    attributes: &Attributes,
    announcer: SlotId,
    members: &MemberSet,
    rs: Asn,
    policy: &Policy,
) -> ExportSet {
    let mut set = ExportSet::nobody(members.slots.len());
    let Some(own) = members.slot(announcer) else { return set };
    let controls = policy.controls(attributes, rs);
    let rules = policy.export_rules(&Route::new(prefix, attributes, own.asn));
    let mut decided = BTreeMap::new();
    let may_have = |id: SlotId, slot: &Slot| slot.active && id != announcer && !policy.holds(id, slot);
    for (id, slot) in members.iter().filter(|(id, slot)| may_have(*id, slot)) {
        if *decided.entry(slot.asn).or_insert_with(|| rules.decide(slot.asn, &controls).permits()) {
            set.insert(id);
        }
    }
    set
}

/// Whether a member may have a route of this one, and why.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decision {
    /// This member holds the slot, which gets no routes.
    Held,
    /// Rules and communities settle it.
    Policy(Exported),
}

impl Decision {
    /// Whether the receiver may have the route.
    #[must_use]
    pub fn permits(self) -> bool {
        matches!(self, Self::Policy(exported) if exported.permits())
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Held => f.write_str("you hold its slot; `released` in [member] lets it have routes"),
            Self::Policy(exported) => exported.fmt(f),
        }
    }
}

/// What [`export_set`] decides of each other member, and why, by slot.
#[must_use]
pub fn export_decisions(
    prefix: Prefix,
    attributes: &Attributes,
    announcer: SlotId,
    members: &MemberSet,
    rs: Asn,
    policy: &Policy,
) -> Vec<(SlotId, Decision)> {
    let Some(own) = members.slot(announcer) else { return Vec::new() };
    let controls = policy.controls(attributes, rs);
    let rules = policy.export_rules(&Route::new(prefix, attributes, own.asn));
    let others = members.iter().filter(|(id, slot)| slot.active && *id != announcer);
    let decision = |id: SlotId, slot: &Slot| {
        if policy.holds(id, slot) { Decision::Held } else { Decision::Policy(rules.decide(slot.asn, &controls)) }
    };
    others.map(|(id, slot)| (id, decision(id, slot))).collect()
}

/// What goes into a route's blob: the attributes without the communities that controlled export, with those that they ask for, and without a
/// link-local next hop, whose owner no receiver could check.
///
/// As for every speaker that passes a route on, unknown non-transitive attributes end here, and unknown transitive ones
/// stay byte for byte, with the Partial bit set (RFC 4271 section 5).
#[must_use]
pub fn sealed_attributes(attributes: &Attributes, rs: Asn) -> Attributes {
    sealed_for(attributes, rs, PerPeer::Private)
}

/// [`sealed_attributes`], of a member that lets receivers read what its communities ask for one peer, or does not.
#[must_use]
pub fn sealed_for(attributes: &Attributes, rs: Asn, per_peer: PerPeer) -> Attributes {
    let stripped = treatments::sealed(attributes, rs, per_peer).to_forward();
    match stripped.ipv6_next_hop() {
        Some(mut next_hop) if next_hop.link_local.is_some() => {
            next_hop.link_local = None;
            stripped.edit().ipv6_next_hop(Some(next_hop)).finish()
        }
        _ => stripped,
    }
}
