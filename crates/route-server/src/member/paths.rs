//! Several routes to a prefix for a router with ADD-PATH (RFC 7911): the one that is chosen, as for any router, and the best others by the
//! member's own order.
//!
//! All of them are routes that this member may open and uses: its proxy holds them in any case. Which of them the router gets follows from
//! what this member ranks by itself, and changes nothing that it sends to the parties: Select-Best still chooses one route, with the
//! same ranking, as often as without.

use std::collections::BTreeSet;

use wayleave_bgp::Attributes;
use wayleave_core::Prefix;
use wayleave_crypto::hash::hash;

use super::{Member, MemberOutput};
use crate::frames::Candidate;

/// Above all identifiers of slots.
const FURTHER: u32 = 1 << 31;

const LABEL_GIVEN: &str = "wayleave/route-server/given-path/v1";

/// A route that the router was given. Its attributes are with whoever sends them; here is what tells that they changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct GivenPath {
    path_id: u32,
    /// The first half of a SHA-256 of the attributes.
    digest: [u8; 16],
}

impl GivenPath {
    fn of(path_id: u32, attributes: &Attributes) -> Self {
        let mut digest = [0; 16];
        digest.copy_from_slice(&hash(LABEL_GIVEN, &[&attributes.encode()])[..16]);
        Self { path_id, digest }
    }
}

/// The path identifier (RFC 7911 section 3) of an announcer's route: the same for as long as there is one, whatever else comes and goes,
/// and after a restart of either side. The first path of slot 0 has 1, that of slot 1 has 2. Further paths of one announcer have its slot
/// and their own identifier in it: of two that agree in its last 16 bits the router gets one.
pub(super) fn path_identifier(slot: u32, path_id: u32) -> u32 {
    match path_id {
        0 => slot + 1,
        further => FURTHER | (slot & 0x7fff) << 16 | further & 0xffff, // a set has 4,096 slots at most
    }
}

impl Member {
    /// Gives the router the routes to a prefix that it is to have, if it has others.
    pub(super) fn install_paths(&mut self, prefix: Prefix) {
        let paths = self.wanted_paths(&prefix);
        if paths.is_empty() {
            if self.paths.remove(&prefix).is_some() {
                self.output.push_back(MemberOutput::InstallPaths { prefix, paths });
            }
            return;
        }
        let given: Vec<GivenPath> =
            paths.iter().map(|(path_id, attributes)| GivenPath::of(*path_id, attributes)).collect();
        if self.paths.get(&prefix) != Some(&given) {
            self.paths.insert(prefix, given);
            self.output.push_back(MemberOutput::InstallPaths { prefix, paths });
        }
    }

    /// What is installed, and behind it the best others, each with its identifier. Nothing while nothing is installed.
    fn wanted_paths(&mut self, prefix: &Prefix) -> Vec<(u32, Attributes)> {
        let Some(installed) = self.installed.get(prefix) else { return Vec::new() };
        let best = path_identifier(installed.announcer, installed.path_id);
        let mut paths = vec![(best, self.with_role(&installed.attributes))];
        let mut taken = BTreeSet::from([best]);
        for (handle, place) in self.others_in_order(prefix) {
            if paths.len() >= usize::from(self.config.paths) {
                break;
            }
            // Also the successor of what is installed, while that stays: they have one identifier.
            if let Some((slot, path_id, attributes)) = self.router_attributes(*prefix, &handle, place)
                && taken.insert(path_identifier(slot, path_id))
            {
                paths.push((path_identifier(slot, path_id), self.with_role(&attributes)));
            }
        }
        paths
    }

    /// The routes to a prefix that this member uses, bigger classes first, then the lowest number.
    fn others_in_order(&mut self, prefix: &Prefix) -> Vec<Candidate> {
        let candidates = self.known_routes(prefix);
        let mut usable: Vec<(u8, usize, Candidate)> = self
            .classes(&candidates)
            .into_iter()
            .filter_map(|(number, candidate, class)| Some((class?, number, candidate)))
            .collect();
        usable.sort_unstable_by_key(|(class, number, _)| (std::cmp::Reverse(*class), *number));
        usable.into_iter().map(|(.., candidate)| candidate).collect()
    }

    /// Routes that the router has beside the chosen ones.
    pub(super) fn further_paths(&self) -> usize {
        self.paths.values().map(|paths| paths.len().saturating_sub(1)).sum()
    }

    /// The path identifier under which the router has this route, if it has it.
    pub(super) fn installed_path(&self, prefix: &Prefix, (handle, place): &Candidate) -> Option<u32> {
        let (slot, path_id, attributes) = self.router_attributes(*prefix, handle, *place)?;
        let wanted = GivenPath::of(path_identifier(slot, path_id), &self.with_role(&attributes));
        self.paths.get(prefix).is_some_and(|paths| paths.contains(&wanted)).then_some(wanted.path_id)
    }
}

#[cfg(test)]
mod tests {
    use wayleave_bgp::Origin;

    use super::*;

    #[test]
    fn a_given_path_is_told_from_one_with_another_identifier_or_other_attributes() {
        let with = |med| {
            let mut editor = Attributes::builder();
            editor.origin(Origin::Igp).med(Some(med));
            editor.finish()
        };
        let given = GivenPath::of(1, &with(7));
        assert_eq!(given, GivenPath::of(1, &with(7)));
        assert!(![GivenPath::of(2, &with(7)), GivenPath::of(1, &with(8))].contains(&given));
        assert_eq!(size_of::<GivenPath>(), 20, "what each further path costs here");
    }

    #[test]
    fn every_announcer_and_each_of_its_paths_has_an_identifier_of_its_own() {
        assert_eq!((path_identifier(0, 0), path_identifier(4_095, 0)), (1, 4_096));
        let mut seen = BTreeSet::new();
        for slot in [0, 1, 7, 4_095] {
            for path_id in [0, 1, 2, 4, 0xffff] {
                assert!(seen.insert(path_identifier(slot, path_id)), "{slot} {path_id}");
            }
        }
        assert!(!seen.contains(&0), "zero is what a session without identifiers has");
        assert_eq!(path_identifier(3, 0x0001_0002), path_identifier(3, 2), "who chooses such harms itself alone");
    }
}
