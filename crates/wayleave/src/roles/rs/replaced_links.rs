//! Links of one member that take each other's place: two processes have its key.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// So many links in a row, each in the place of one that was up, are no accident of the network.
const REPLACED_AT_LEAST: usize = 3;

/// Within this time.
const WINDOW: Duration = Duration::from_secs(120);

/// The latest of a member's links that took another's place, with the addresses of both.
#[derive(Debug, Default)]
struct OfMember {
    /// The address of the latest link.
    last: Option<IpAddr>,
    /// Whether it ended because the member connected again.
    was_replaced: bool,
    replaced: Vec<(Instant, [IpAddr; 2])>,
}

/// The members' links. Clones are views of the same.
#[derive(Clone, Debug, Default)]
pub struct ReplacedLinks(Arc<Mutex<BTreeMap<u32, OfMember>>>);

impl ReplacedLinks {
    /// A link of the member in `slot` ended. `is_replaced`: since the member connected again.
    pub fn ended(&self, slot: u32, is_replaced: bool) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(slot).or_default().was_replaced = is_replaced;
    }

    /// A link of the member in `slot` came up.
    pub fn up(&self, slot: u32, address: IpAddr, now: Instant) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of = all.entry(slot).or_default();
        of.replaced.retain(|(at, _)| now.saturating_duration_since(*at) < WINDOW);
        if let Some(before) = of.last.filter(|_| std::mem::take(&mut of.was_replaced)) {
            if of.replaced.len() == REPLACED_AT_LEAST {
                of.replaced.remove(0);
            }
            of.replaced.push((now, [before, address]));
        }
        of.last = Some(address);
    }

    /// The members whose links took each other's place again and again, by slot, and what is wrong.
    pub fn problems(&self, now: Instant) -> Vec<(u32, String)> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let problem = |(slot, of): (&u32, &OfMember)| {
            let is_recent = |(at, _): &(Instant, _)| now.saturating_duration_since(*at) < WINDOW;
            let [.., (_, [one, two])] = of.replaced[..] else { return None };
            if of.replaced.len() < REPLACED_AT_LEAST || !of.replaced.iter().all(is_recent) {
                return None;
            }
            let words = if one == two {
                format!(
                    "connects from {one} again and again while it is connected: two processes there have its key, or its connection \
                     breaks unnoticed"
                )
            } else {
                format!(
                    "connects from two addresses in turn, {one} and {two}: two processes have its key, of which one has to end"
                )
            };
            Some((*slot, words))
        };
        all.iter().filter_map(problem).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_whose_links_take_each_others_place_is_named_with_both_addresses() {
        let [one, two] = [[192, 0, 2, 1], [192, 0, 2, 9]].map(IpAddr::from);
        let (links, mut now) = (ReplacedLinks::default(), Instant::now());
        links.up(0, one, now);
        for (number, address) in [two, one, two].into_iter().enumerate() {
            assert_eq!(links.problems(now), [], "{number} are few");
            links.ended(0, true);
            now += Duration::from_secs(5);
            links.up(0, address, now);
        }
        let problems = links.problems(now);
        assert!(
            matches!(&problems[..], [(0, words)] if words.contains("in turn, 192.0.2.1 and 192.0.2.9")),
            "{problems:?}"
        );
        assert_eq!(links.problems(now + WINDOW), [], "one of them has ended");
        // Whose links end by themselves has a bad network.
        for _ in 0..4 {
            links.ended(1, false);
            links.up(1, one, now);
        }
        assert!(links.problems(now).iter().all(|(slot, _)| *slot == 0));
    }
}
