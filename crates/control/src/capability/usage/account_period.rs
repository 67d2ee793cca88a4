//! Owners of a principal's number one after the other. An account that was closed may be opened anew for somebody else, who does not
//! pay for the first one's packets; a packet names the number alone, so that time tells whose it is.

use std::collections::BTreeMap;

/// A number got another owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reopening {
    pub principal: u32,
    /// The Unix second: key epochs that begin from then on are the new owner's.
    pub at: u64,
    /// The generation of the keys of the account that was closed.
    pub generation: u32,
}

/// All reopenings, in order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AccountPeriods(BTreeMap<u32, Vec<Reopening>>);

/// From reopenings in any order.
impl FromIterator<Reopening> for AccountPeriods {
    fn from_iter<I: IntoIterator<Item = Reopening>>(reopenings: I) -> Self {
        let mut sorted: Vec<Reopening> = reopenings.into_iter().collect();
        sorted.sort_unstable_by_key(|reopening| (reopening.principal, reopening.generation));
        let mut periods = Self::default();
        for reopening in sorted {
            periods.insert(reopening);
        }
        periods
    }
}

impl AccountPeriods {
    /// Takes a reopening over, unless it is known. A clock that went back moves it to the one before: the order is that of generations.
    /// Returns it as it is kept, if it is new.
    pub fn insert(&mut self, reopening: Reopening) -> Option<Reopening> {
        let all = self.0.entry(reopening.principal).or_default();
        let last = all.last().copied();
        if last.is_some_and(|last| last.generation >= reopening.generation) {
            return None;
        }
        let kept = Reopening { at: reopening.at.max(last.map_or(0, |last| last.at)), ..reopening };
        all.push(kept);
        Some(kept)
    }

    /// Which owner a key epoch has that begins at this Unix second; the 256th and later are one.
    #[must_use]
    pub fn at(&self, principal: u32, second: u64) -> u8 {
        let before = self.0.get(&principal).map_or(0, |all| all.iter().filter(|one| one.at <= second).count());
        u8::try_from(before).unwrap_or(u8::MAX)
    }

    /// The owner of today.
    #[must_use]
    pub fn latest(&self, principal: u32) -> u8 {
        self.at(principal, u64::MAX)
    }

    /// The generation of the keys that a former owner had last; `None` for the owner of today.
    #[must_use]
    pub fn former(&self, principal: u32, account_period: u8) -> Option<u32> {
        self.0.get(&principal)?.get(usize::from(account_period)).map(|one| one.generation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_epochs_belong_to_whoever_had_the_number_when_they_began() {
        let mut all = AccountPeriods::default();
        let reopening = |at, generation| Reopening { principal: 7, at, generation };
        assert_eq!(all.insert(reopening(100, 5)), Some(reopening(100, 5)));
        assert_eq!(all.insert(reopening(150, 5)), None, "it is reported again after a restart");
        assert_eq!(all.insert(reopening(90, 9)), Some(reopening(100, 9)), "the clock went back");
        assert_eq!(all.insert(reopening(200, 12)), Some(reopening(200, 12)));
        assert_eq!([99, 100, 199, 200].map(|second| all.at(7, second)), [0, 2, 2, 3]);
        assert_eq!(
            [0, 1, 2, 3].map(|account_period| all.former(7, account_period)),
            [Some(5), Some(9), Some(12), None]
        );
        assert_eq!((all.at(8, 500), all.former(8, 0), all.latest(7)), (0, None, 3));
    }
}
