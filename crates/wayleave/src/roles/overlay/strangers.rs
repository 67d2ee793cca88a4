//! Links of nodes that are no members. Anybody may connect, since who is a member is learned over a link; so only some of those
//! who are none are kept, the latest.

use std::collections::BTreeMap;

use wayleave_core::{IdentityKey, Machine};
use wayleave_runtime::drive::Step;
use wayleave_runtime::links::Links;

/// Links of nodes that are no members. Beyond, the oldest are closed: a node that means to join has said so long before.
const MAX_STRANGERS: usize = 256;

/// Why a server closes a node's older link.
pub const MORE_LINKS: &str = "the node has newer links to this server";

/// Who is at the other end of each link.
#[derive(Debug, Default)]
pub struct Ends(BTreeMap<u64, IdentityKey>);

impl Ends {
    /// A link is up; returns whether it is time to look for strangers.
    pub fn up(&mut self, link: u64, end: IdentityKey) -> bool {
        self.0.insert(link, end);
        self.0.len() > MAX_STRANGERS
    }

    pub fn down(&mut self, link: u64) {
        self.0.remove(&link);
    }

    /// All links, the oldest first: numbers rise.
    fn all(&self) -> Vec<(u64, IdentityKey)> {
        self.0.iter().map(|(link, end)| (*link, *end)).collect()
    }
}

/// Time to close links of strangers.
pub struct Sweep;

/// Closes those too many, by what the machine knows of nodes.
pub fn sweep<M: Machine>(
    ends: &Ends,
    links: &Links,
    is_known: impl Fn(&M, &IdentityKey) -> bool + Send + 'static,
) -> Step<M> {
    let (ends, links) = (ends.all(), links.clone());
    Step::Query(Box::new(move |machine: &mut M| {
        for link in surplus(&ends, |end| is_known(machine, end)) {
            links.close(link, "too many nodes that are no members");
        }
    }))
}

/// The links to be closed.
fn surplus(ends: &[(u64, IdentityKey)], is_known: impl Fn(&IdentityKey) -> bool) -> Vec<u64> {
    let strangers: Vec<u64> = ends.iter().filter(|(_, end)| !is_known(end)).map(|(link, _)| *link).collect();
    strangers[..strangers.len().saturating_sub(MAX_STRANGERS)].to_vec()
}

#[cfg(test)]
mod tests {
    //! ICC, strangers: more links of strangers than are kept: the oldest go, members stay.

    use super::*;

    #[test]
    fn the_oldest_strangers_go_and_members_stay_however_many_they_are() {
        let mut ends = Ends::default();
        for link in 0..1_000u64 {
            // Every third is a member.
            ends.up(link, IdentityKey([u8::from(link % 3 == 0); 32]));
        }
        let gone = surplus(&ends.all(), |end| end.0[0] == 1);
        assert_eq!(gone.len(), 666 - MAX_STRANGERS);
        assert!(gone.is_sorted() && gone.iter().all(|link| link % 3 != 0));
        gone.iter().for_each(|link| ends.down(*link));
        assert_eq!(surplus(&ends.all(), |end| end.0[0] == 1), [0; 0]);
    }
}
