//! Which versions of the protocol, and which formats of objects, a program speaks, and which of them it uses with whom.
//!
//! Members and parties are upgraded one after the other, whenever their operators come to it. So a *version* of the protocol is what the
//! two ends of a link agree on: a member uses the highest that it and both parties speak, the parties between them the highest that both
//! do. A *format* is what a member says to other members through the parties, who cannot translate what they cannot read: an announcer uses
//! the highest that every member of the set reads.
//!
//! Greetings, in which ends tell each other what they speak, have one layout in all versions: first of all the range, and at their end
//! a counted rest that older readers pass over.

use serde::Serialize;
use wayleave_core::wire::{Malformed, Reader};

use crate::object::Format;

/// The first version whose greetings say a range. Programs of earlier ones say one version, and compare it for equality.
pub const FIRST: u16 = 7;
/// The highest version that this build can be set to speak.
const NEWEST: u16 = if cfg!(feature = "next-version") { 8 } else { FIRST };
/// Octets of a greeting that this version does not know, at most: our own limit.
pub(crate) const MAX_LATER: usize = 4096;
/// The first octet of each greeting.
const GREETING: u8 = 1;

wayleave_core::wire! {
    /// A range of versions, or of formats, both ends included.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
    pub struct Versions: Self::check {
        pub least: u16,
        pub highest: u16,
    }
}

/// The versions that a program speaks.
pub const VERSIONS: Versions = Versions { least: FIRST, highest: FIRST };
/// The formats of objects that a program reads, and up to which it announces.
pub const FORMATS: Versions = Versions { least: Format::FIRST, highest: Format::FIRST };

impl Versions {
    fn check(&self) -> Result<(), Malformed> {
        if self.least > self.highest {
            return Err(Malformed::Order("the least and the highest version"));
        }
        Ok(())
    }

    /// Whether it includes a version.
    #[must_use]
    pub fn include(self, version: u16) -> bool {
        (self.least..=self.highest).contains(&version)
    }
}

impl std::fmt::Display for Versions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.least == self.highest {
            write!(f, "{}", self.least)
        } else {
            write!(f, "{} to {}", self.least, self.highest)
        }
    }
}

/// The highest version that is in all of these ranges.
#[must_use]
pub fn common(all: &[Versions]) -> Option<u16> {
    let highest = all.iter().map(|versions| versions.highest).min()?;
    all.iter().all(|versions| versions.include(highest)).then_some(highest)
}

/// What one node speaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Speaks {
    /// Of the protocol, on its links.
    pub versions: Versions,
    /// Of objects.
    pub formats: Versions,
}

impl Default for Speaks {
    fn default() -> Self {
        Self { versions: VERSIONS, formats: FORMATS }
    }
}

impl Speaks {
    /// All that this build can: with the second version that is built for tests, that too.
    #[must_use]
    pub fn everything() -> Self {
        Self {
            versions: Versions { highest: NEWEST, ..VERSIONS },
            formats: Versions { highest: Format::NEWEST, ..FORMATS },
        }
    }
}

/// The range that a greeting says, whatever else is in it. Before version 7 a greeting began with the one version that its sender spoke,
/// and the count of a text, whose upper half is zero. `None` if the frame is no greeting, or begins as none does.
#[must_use]
pub(crate) fn greeted(frame: &[u8]) -> Option<Versions> {
    let mut from = Reader::new(frame);
    let (GREETING, least, highest) = (from.u8().ok()?, from.u16().ok()?, from.u16().ok()?) else { return None };
    let highest = if highest == 0 && least < FIRST { least } else { highest };
    (least <= highest).then_some(Versions { least, highest })
}

/// What to tell whoever runs a program that has no version in common with another one: which of the two is the older, and what to do.
pub(crate) fn nothing_common(theirs: Versions, ours: Versions) -> String {
    let (older, newer) = if theirs.highest < ours.least { ("it", "this one") } else { ("this program", "the other") };
    format!(
        "it speaks version {theirs} of the protocol, and this program {ours}: {older} is the older of the two and has to be upgraded, or {newer} runs the release before"
    )
}

#[cfg(test)]
mod tests {
    use wayleave_core::wire;

    use super::*;

    fn range(least: u16, highest: u16) -> Versions {
        Versions { least, highest }
    }

    #[test]
    fn the_highest_version_that_all_speak_is_used_and_none_if_there_is_none() {
        for (all, expected) in [
            (vec![range(7, 7), range(7, 7), range(7, 7)], Some(7)),
            (vec![range(7, 8), range(7, 8), range(7, 8)], Some(8)),
            // One of the parties, or the member, is not upgraded.
            (vec![range(7, 8), range(7, 8), range(7, 7)], Some(7)),
            (vec![range(7, 7), range(7, 8), range(7, 8)], Some(7)),
            // Each two have one in common, and not all.
            (vec![range(7, 8), range(7, 7), range(8, 8)], None),
            (vec![range(7, 9), range(6, 8), range(8, 12)], Some(8)),
            (vec![range(7, 7), range(8, 9)], None),
            (vec![range(3, 5)], Some(5)),
            (vec![], None),
        ] {
            assert_eq!(common(&all), expected, "{all:?}");
            let reversed: Vec<Versions> = all.into_iter().rev().collect();
            assert_eq!(common(&reversed), expected, "in another order");
        }
    }

    #[test]
    fn a_range_whose_least_is_above_its_highest_is_refused() {
        assert_eq!(wire::decode(&[0, 7, 0, 8]), Ok(range(7, 8)));
        let crossed = wire::decode::<Versions>(&[0, 8, 0, 7]);
        assert_eq!(crossed, Err(Malformed::Order("the least and the highest version")));
    }

    #[test]
    fn a_greeting_of_any_version_says_what_its_sender_speaks() {
        assert_eq!(greeted(&[1, 0, 7, 0, 8, 99, 99]), Some(range(7, 8)));
        assert_eq!(greeted(&[1, 0, 9, 0, 12]), Some(range(9, 12)));
        // Version 6: the version, and the four octets of a count.
        assert_eq!(greeted(&[1, 0, 6, 0, 0, 0, 7, b'e']), Some(range(6, 6)));
        for other in [&[2, 0, 7, 0, 8][..], &[1, 0, 8, 0, 7], &[1, 0, 7, 0, 0], &[1, 0, 7, 0], &[]] {
            assert_eq!(greeted(other), None, "{other:?}");
        }
    }

    #[test]
    fn whoever_has_no_version_in_common_is_told_which_side_is_older() {
        let older = nothing_common(range(6, 6), range(7, 8));
        assert!(
            older.starts_with("it speaks version 6 of the protocol, and this program 7 to 8: it is the older"),
            "{older}"
        );
        let newer = nothing_common(range(9, 10), range(7, 8));
        assert!(newer.contains("this program is the older"), "{newer}");
    }
}
