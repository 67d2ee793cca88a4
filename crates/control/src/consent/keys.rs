//! The tag keys of one node that a consent server has.

use wayleave_packet::icing::header::{PathHash, Tag};
use wayleave_packet::icing::mint::{Consent, TAG_EPOCH, TagBranch, TagMaster, tag_epoch};

/// Branches that others delegated, at most.
const MAX_BRANCHES: usize = 256;

/// All tags of a node, or delegated prefixes of them for certain epochs.
#[derive(Clone, Debug, Default)]
pub struct TagKeys {
    /// With the epoch from which each is used, ascending.
    masters: Vec<(u32, TagMaster)>,
    branches: Vec<TagBranch>,
    /// The node itself gives its masters by a link, while both run.
    is_entrusted: bool,
}

impl TagKeys {
    /// The provider's own keys: each is used from its epoch on, until the next one is.
    #[must_use]
    pub fn new(mut masters: Vec<(u32, TagMaster)>) -> Self {
        masters.sort_by_key(|(from, _)| *from);
        Self { masters, ..Self::default() }
    }

    /// Of a node that gives its keys itself, none yet.
    #[must_use]
    pub fn entrusted() -> Self {
        Self { is_entrusted: true, ..Self::default() }
    }

    /// Whether the node gives its keys itself.
    #[must_use]
    pub fn is_entrusted(&self) -> bool {
        self.is_entrusted
    }

    /// Whether the node is to give its keys itself, and has not. What others delegate are not its own keys.
    #[must_use]
    pub fn are_awaited(&self) -> bool {
        self.is_entrusted && self.masters.is_empty()
    }

    /// Takes what the node gives; `false` if it is not to, and would go by other keys in an epoch from `current` on than those that are there from
    /// elsewhere.
    pub fn entrust(&mut self, mut masters: Vec<(u32, TagMaster)>, current: u32) -> bool {
        masters.sort_by_key(|(from, _)| *from);
        if !self.is_entrusted {
            let changes = self.masters.iter().chain(&masters).map(|(from, _)| *from).filter(|from| *from > current);
            return [current].into_iter().chain(changes).all(|epoch| {
                let (ours, given) = (in_force(&self.masters, epoch), in_force(&masters, epoch));
                ours.zip(given).is_some_and(|(ours, given)| ours.key() == given.key())
            });
        }
        self.masters = masters;
        true
    }

    /// Where the node gives its keys itself, goes by those under the configuration of before until it does: what it gave, or what a file had.
    pub fn keep(&mut self, before: Self) {
        if self.is_entrusted {
            self.masters = before.masters;
        }
    }

    /// Adds a delegated prefix of tags for its epoch. Branches of epochs before `current` are dropped; `false` if there is no
    /// room.
    pub fn delegate(&mut self, branch: TagBranch, current: u32) -> bool {
        self.branches.retain(|known| known.scope().0 >= current);
        let has_capacity = self.branches.len() < MAX_BRANCHES;
        if has_capacity {
            self.branches.push(branch);
        }
        has_capacity
    }

    /// The consent of the node at `index` of the path whose hash is `path`, until `expiry` or until an earlier second for which
    /// there is a key, but not before `now`; and that second. `None` if there is no key for the tag.
    #[must_use]
    pub fn consent(&self, path: &PathHash, index: usize, tag: Tag, expiry: u32, now: u32) -> Option<(u32, Consent)> {
        let mut expiry = expiry;
        loop {
            let epoch = tag_epoch(expiry);
            if let Some(master) = in_force(&self.masters, epoch) {
                return Some((expiry, master.consent(path, index, tag, expiry)));
            }
            if let Some(consent) = self.branches.iter().find_map(|branch| branch.consent(path, index, tag, expiry)) {
                return Some((expiry, consent));
            }
            // Delegated keys end with their epoch: the last second of the one before.
            expiry = (epoch << TAG_EPOCH).checked_sub(1).filter(|expiry| *expiry > now)?;
        }
    }
}

/// The master in force in an epoch, of some that are in the order of their epochs.
fn in_force(masters: &[(u32, TagMaster)], epoch: u32) -> Option<&TagMaster> {
    masters.iter().rfind(|(from, _)| *from <= epoch).map(|(_, master)| master)
}

#[cfg(test)]
mod tests {
    use super::*;
    use wayleave_crypto::secret::Key128;

    const PATH: PathHash = PathHash([3; 32]);

    #[test]
    fn a_delegate_consents_under_its_prefix_until_the_epoch_ends_and_never_beside_it() {
        let master = TagMaster::new(Key128::new([7; 16]));
        let epoch = 440_000;
        let begin = epoch << TAG_EPOCH;
        let mut keys = TagKeys::default();
        let branch = master.root(epoch).descend(Tag(0x4000_0000), 2).expect("under the root");
        assert!(keys.delegate(branch, epoch));
        let now = begin + 4_000;
        let requested = begin + 4_600;
        let (expiry, consent) = keys.consent(&PATH, 3, Tag(0x4000_0001), requested, now).expect("under the prefix");
        assert_eq!(expiry, begin + 4_095);
        assert_eq!(consent, master.consent(&PATH, 3, Tag(0x4000_0001), expiry));
        assert_eq!(keys.consent(&PATH, 3, Tag(0x8000_0001), requested, now), None);
        // Neither before the epoch nor after it.
        assert_eq!(keys.consent(&PATH, 3, Tag(0x4000_0001), begin - 1, begin - 100), None);
        assert_eq!(keys.consent(&PATH, 3, Tag(0x4000_0001), begin + 5_000, begin + 4_100), None);
    }

    #[test]
    fn a_node_whose_keys_are_in_a_file_may_say_the_same_and_nothing_that_differs_from_now_on() {
        let master = |octet: u8| TagMaster::new(Key128::new([octet; 16]));
        let says =
            |masters: Vec<(u32, TagMaster)>| TagKeys::new(vec![(0, master(1)), (100, master(2))]).entrust(masters, 50);
        assert!(says(vec![(100, master(2)), (0, master(1))]));
        assert!(says(vec![(40, master(1)), (100, master(2))]), "what is over counts for nothing");
        for other in [
            vec![],
            vec![(0, master(1))],
            vec![(100, master(2))],
            vec![(0, master(1)), (100, master(3))],
            vec![(0, master(1)), (90, master(2))],
            vec![(0, master(1)), (100, master(2)), (200, master(3))],
        ] {
            assert!(!says(other));
        }
    }

    #[test]
    fn what_a_file_had_stays_until_the_node_gives_its_keys_and_branches_are_not_these() {
        let master = TagMaster::new(Key128::new([7; 16]));
        let mut keys = TagKeys::entrusted();
        let branch = master.root(9).descend(Tag(0), 1).expect("under the root");
        assert!(keys.delegate(branch, 9) && keys.are_awaited());
        keys.keep(TagKeys::new(vec![(0, master.clone())]));
        assert!(!keys.are_awaited() && keys.consent(&PATH, 1, Tag(1), 50, 0).is_some());
        assert!(keys.entrust(vec![(0, master)], 9));
    }

    #[test]
    fn the_master_that_came_into_force_last_makes_the_consent() {
        let masters = [1, 2].map(|octet| TagMaster::new(Key128::new([octet; 16])));
        let keys = TagKeys::new(vec![(11, masters[1].clone()), (10, masters[0].clone())]);
        for (epoch, master) in [(10, 0), (11, 1), (12, 1)] {
            let expiry = epoch << TAG_EPOCH;
            let consent = keys.consent(&PATH, 1, Tag(1), expiry, expiry - 1);
            assert_eq!(consent, Some((expiry, masters[master].consent(&PATH, 1, Tag(1), expiry))));
        }
        assert_eq!(keys.consent(&PATH, 1, Tag(1), 9 << TAG_EPOCH, 0), None);
    }
}
