//! Quotas by volume: how much of one who pays a provider takes in a calendar month (UTC), as statements have it: a key epoch counts for the
//! month in which it begins.

use super::channel::RateTerms;

/// Payers that have a quota.
pub const MAX_QUOTAS: usize = 65_536;

wayleave_core::wire! {
    /// Octets of IP packets in a month, of a principal with all its delegations.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct VolumeQuota {
        /// What is beyond is reported.
        pub soft: Option<u64>,
        /// Once it is used up, the principal gets no secrets of the month's key epochs, and those that were looked up are revoked.
        pub hard: Option<u64>,
    }

    /// A quota, and whether it is used up.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct QuotaStatus {
        pub quota: VolumeQuota,
        /// The month whose hard quota is used up, by the Unix second at which it begins; and when that was found.
        pub used_up: Option<(u64, u64)>,
        /// The same of a month before that one, whose last secrets may still be good.
        pub before: Option<(u64, u64)>,
    }
}

wayleave_core::wire! {
    /// What the holder of a capability limits a delegation of it to; nothing if it has neither.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct DelegationLimit {
        /// Over all routers.
        pub rate: Option<RateTerms>,
        /// Octets of IP packets in a calendar month, counted from when it is limited. Once they are used up, it is as with a hard quota.
        pub month_octets: Option<u64>,
    }
}

impl DelegationLimit {
    /// Whether the numbers make sense.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.rate.is_none_or(|rate| rate.is_sound()) && self.quota().is_none_or(|quota| quota.is_sound())
    }

    /// Whether it limits nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Its volume as a quota.
    #[must_use]
    pub fn quota(&self) -> Option<VolumeQuota> {
        self.month_octets.map(|octets| VolumeQuota { soft: None, hard: Some(octets) })
    }
}

wayleave_core::named! {
    /// How a payer stands in a month.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub enum QuotaState {
        Within = "within",
        /// Beyond the soft limit.
        Exceeded = "exceeded",
        /// The hard limit is used up.
        UsedUp = "used-up",
    }
}

impl QuotaStatus {
    /// The months whose hard quotas are used up, each with when that was found.
    pub fn months(&self) -> impl Iterator<Item = (u64, u64)> {
        [self.used_up, self.before].into_iter().flatten()
    }

    /// Whether it may be said of a month that its quota is used up: it was not said, and not of two later ones.
    #[must_use]
    pub fn may_use_up(&self, begins: u64) -> bool {
        let is_later = |of: Option<(u64, u64)>| of.is_none_or(|(month, _)| month < begins);
        is_later(self.used_up) || is_later(self.before) && self.used_up.is_some_and(|(month, _)| month > begins)
    }

    /// The hard quota of a month is used up, as was found at a Unix second.
    pub fn use_up(&mut self, begins: u64, found: u64) {
        if self.used_up.is_none_or(|(month, _)| month < begins) {
            (self.used_up, self.before) = (Some((begins, found)), self.used_up);
        } else {
            self.before = Some((begins, found));
        }
    }

    /// How a payer stands that has sent so many octets in the month that begins at a Unix second.
    #[must_use]
    pub fn state(&self, begins: u64, octets: u64) -> QuotaState {
        match () {
            () if self.months().any(|(month, _)| month == begins) => QuotaState::UsedUp,
            () if self.quota.is_exceeded(octets) => QuotaState::Exceeded,
            () => QuotaState::Within,
        }
    }

    /// Whether the hard limit is used up in a month with so many octets, and nobody has said so.
    #[must_use]
    pub fn is_newly_used_up(&self, begins: u64, octets: u64) -> bool {
        self.quota.is_used_up(octets) && self.may_use_up(begins)
    }
}

impl VolumeQuota {
    /// Octets of a month, at most.
    pub const MOST: u64 = 1 << 60;

    /// Whether the numbers make sense: one of them is there, none is zero, and what is reported comes before what ends.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let is_number = |octets: Option<u64>| octets.is_none_or(|octets| (1..=Self::MOST).contains(&octets));
        let is_any = self.soft.is_some() || self.hard.is_some();
        let is_ordered = self.soft.zip(self.hard).is_none_or(|(soft, hard)| soft <= hard);
        is_any && is_ordered && is_number(self.soft) && is_number(self.hard)
    }

    /// Whether a month with so many octets has used up the hard one.
    #[must_use]
    pub fn is_used_up(&self, octets: u64) -> bool {
        self.hard.is_some_and(|hard| octets >= hard)
    }

    /// Whether it is beyond the soft one.
    #[must_use]
    pub fn is_exceeded(&self, octets: u64) -> bool {
        self.soft.is_some_and(|soft| octets >= soft)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payer_is_within_its_quota_beyond_the_soft_one_or_has_used_up_the_hard_one() {
        let quota = VolumeQuota { soft: Some(8), hard: Some(10) };
        let of = |used_up| QuotaStatus { quota, used_up, before: None };
        assert_eq!(of(None).state(100, 7), QuotaState::Within);
        assert_eq!(of(None).state(100, 8), QuotaState::Exceeded);
        assert_eq!(of(Some((100, 150))).state(100, 10), QuotaState::UsedUp);
        assert_eq!(of(Some((100, 150))).state(200, 0), QuotaState::Within, "another month");
        assert_eq!([9, 10].map(|octets| of(None).is_newly_used_up(100, octets)), [false, true]);
        assert_eq!([100, 200].map(|month| of(Some((100, 150))).is_newly_used_up(month, 10)), [false, true]);
        // Whatever is found first, the last two months are known.
        for months in [[100, 200], [200, 100]] {
            let mut both = of(None);
            for month in months {
                assert!(both.is_newly_used_up(month, 10));
                both.use_up(month, 250);
            }
            assert_eq!(both.months().collect::<Vec<_>>(), [(200, 250), (100, 250)]);
            assert!(![50, 100, 200].into_iter().any(|month| both.is_newly_used_up(month, 10)));
            both.use_up(300, 350);
            assert_eq!(both.months().collect::<Vec<_>>(), [(300, 350), (200, 250)]);
        }
        for (soft, hard) in [(None, None), (Some(0), None), (Some(9), Some(8)), (None, Some(VolumeQuota::MOST + 1))] {
            assert!(!VolumeQuota { soft, hard }.is_sound(), "{soft:?} {hard:?}");
        }
    }
}
