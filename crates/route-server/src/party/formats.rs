//! Which formats of objects the members' programs read, and up to which one this party says that members may announce: the highest that
//! it and all of them read. A member cannot be helped with what it does not read, since no party can translate it.
//!
//! What a slot said last is durable: a member that is away counts with it, or its routes would be announced to it in vain until it is
//! back. A slot that has said nothing yet has nothing to lose, and does not count: a member that is new to the exchange would otherwise
//! have everybody announce everything twice before it is even there.
//!
//! A lower format counts at once. All that was announced in a higher one is then announced again, so a higher one counts only some time
//! after the last fall: a member that says now this and now that costs others no more than that.

use std::collections::BTreeMap;
use std::time::Duration;

use wayleave_core::Instant;

use crate::directory::MemberSet;
use crate::versions::Versions;

/// How long after a fall it takes at least until the format rises: our own limit.
const RISES_AFTER: Duration = Duration::from_secs(3600);

pub(super) struct Formats {
    own: Versions,
    /// What each slot's member last said that it reads.
    heard: BTreeMap<u32, Versions>,
    highest: u16,
    /// The format before the last fall, and when that was.
    fell: Option<(u16, Instant)>,
    /// When it rises, if it only waits for the time.
    rises_at: Option<Instant>,
}

impl Formats {
    /// `heard`: what the store held.
    pub(super) fn new(own: Versions, heard: BTreeMap<u32, Versions>, set: &MemberSet) -> Self {
        let mut formats = Self { own, heard, highest: own.highest, fell: None, rises_at: None };
        formats.highest = formats.of_all(set);
        formats
    }

    /// The highest format in which members may announce.
    pub(super) fn highest(&self) -> u16 {
        self.highest
    }

    fn of_all(&self, set: &MemberSet) -> u16 {
        let of_slots = self.heard.iter().filter(|(slot, _)| set.active(**slot).is_some());
        of_slots.map(|(_, formats)| formats.highest).fold(self.own.highest, u16::min)
    }

    /// The last that a slot's member said that it reads.
    pub(super) fn of(&self, slot: u32) -> Option<Versions> {
        self.heard.get(&slot).copied()
    }

    /// Active slots that keep the format below what this party reads.
    pub(super) fn holding_back(&self, set: &MemberSet) -> Vec<u32> {
        let holds = |(slot, formats): (&u32, &Versions)| {
            (formats.highest < self.own.highest && set.active(*slot).is_some()).then_some(*slot)
        };
        self.heard.iter().filter_map(holds).collect()
    }

    /// A slot's member says what it reads. Returns whether that is new, and is to be stored.
    pub(super) fn hear(&mut self, slot: u32, formats: Versions) -> bool {
        self.heard.insert(slot, formats) != Some(formats)
    }

    /// Looks again up to which format members may announce. Returns whether that has changed.
    pub(super) fn review(&mut self, set: &MemberSet, now: Instant) -> bool {
        let (before, next) = (self.highest, self.of_all(set));
        self.rises_at = None;
        if next < before {
            self.fell = Some((before, now));
        } else if let Some(at) = self.fell.map(|(_, at)| at + RISES_AFTER)
            && next > before
            && now < at
        {
            self.rises_at = Some(at);
            return false;
        }
        self.highest = next;
        next != before
    }

    /// When it is to be looked at again.
    pub(super) fn rises_at(&self) -> Option<Instant> {
        self.rises_at
    }

    /// Whether objects of this format are taken. One that was on its way when the format fell, within `wait`, is taken too: its announcer
    /// announces it again.
    pub(super) fn takes(&self, format: u16, now: Instant, wait: Duration) -> bool {
        let is_recent = |(before, at): (u16, Instant)| format <= before && now.since(at) < wait;
        format <= self.highest || self.fell.is_some_and(is_recent)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::directory::Slot;
    use wayleave_core::Asn;

    const FIRST: Versions = Versions { least: 0, highest: 0 };
    const BOTH: Versions = Versions { least: 0, highest: 1 };
    const LATER: Instant = Instant(1_000_000_000);

    fn set(active: &[bool]) -> MemberSet {
        let slot = |(place, active): (usize, &bool)| Slot {
            active: *active,
            asn: Asn(64500),
            name: format!("m{place}"),
            addresses: Vec::new(),
            tls: [0; 32],
            sign: [0; 32],
            max_prefix: 1,
            held: false,
        };
        let slots = active.iter().enumerate().map(slot).collect();
        MemberSet { exchange: "test-ix".into(), number: 1, slots, attest: BTreeMap::new(), profile: None, data: None }
    }

    #[test]
    fn members_announce_in_what_all_of_them_and_the_party_read() {
        let set = set(&[true, true, false, true]);
        // Slot 2 has left, and slot 3 has said nothing yet.
        let heard = BTreeMap::from([(0, BOTH), (1, FIRST), (2, FIRST)]);
        let mut formats = Formats::new(BOTH, heard, &set);
        assert_eq!((formats.highest(), formats.holding_back(&set)), (0, vec![1]));
        assert!(formats.hear(1, BOTH) && formats.review(&set, LATER));
        assert_eq!((formats.highest(), formats.holding_back(&set)), (1, vec![]));
        assert!(!formats.hear(1, BOTH), "nothing new");
        // A party that reads no more itself takes no more.
        assert_eq!(Formats::new(FIRST, BTreeMap::from([(0, BOTH)]), &set).highest(), 0);
    }

    #[test]
    fn a_fall_counts_at_once_and_a_rise_after_it_an_hour_later() {
        let set = set(&[true, true]);
        let mut formats = Formats::new(BOTH, BTreeMap::from([(0, BOTH), (1, BOTH)]), &set);
        let wait = Duration::from_secs(2);
        assert!(formats.takes(1, LATER, wait));
        assert!(formats.hear(1, FIRST) && formats.review(&set, LATER));
        assert_eq!(formats.highest(), 0);
        assert!(formats.takes(1, LATER + wait / 2, wait), "it was on its way");
        assert!(!formats.takes(1, LATER + wait, wait) && !formats.takes(2, LATER, wait));
        formats.hear(1, BOTH);
        assert!(!formats.review(&set, LATER + wait));
        let at = formats.rises_at().expect("it waits");
        assert_eq!((formats.highest(), at), (0, LATER + RISES_AFTER));
        assert!(formats.review(&set, at));
        assert_eq!((formats.highest(), formats.rises_at()), (1, None));
    }
}
