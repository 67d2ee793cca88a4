//! What a provider's billing knows an account or a grant by: an ID of its own, a price tag, further pairs. Nothing here computes money:
//! statements have the price tags that were in force, and whoever writes bills reads them.

use wayleave_core::wire::{Ascii, List16, Malformed, is_text};
use wayleave_packet::platypus::header::Principal;

use super::codecs::PrincipalCodec;
use super::terms::Terms;

/// Characters of an ID of the provider's billing, and of a price tag.
pub const MAX_EXTERNAL_ID: usize = 128;
pub const MAX_PRICE: usize = 64;
/// Pairs of one account or grant, and characters of a key and of a value.
pub const MAX_METADATA: usize = 16;
pub const MAX_METADATA_KEY: usize = 40;
pub const MAX_METADATA_VALUE: usize = 128;
/// Accounts and grants that have any of it.
pub const MAX_BILLED: usize = 1 << 20;
/// Price tags of one account or grant that are remembered, and how many of them may be set: the last one is for its end.
pub(super) const MAX_PRICES: usize = 32;
pub const SET_PRICES: usize = MAX_PRICES - 1;
/// Seconds for which the price tags of what has ended are remembered at least: time is closed by itself after 400 days, and a month.
const PRICES_KEPT: u64 = 500 * 86_400;

wayleave_core::wire! {
    /// An account, or a grant of it.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct BillingSubject: Self::check {
        pub principal: Principal as PrincipalCodec,
        pub grant: Option<Terms>,
    }

    /// A pair that the provider gave.
    #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
    pub struct Metadata {
        pub key: String as Ascii<MAX_METADATA_KEY>,
        pub value: String as Ascii<MAX_METADATA_VALUE>,
    }

    /// What is set of an account or a grant, in the place of what there is. All of it empty: nothing.
    #[derive(Clone, PartialEq, Eq, Debug, Default)]
    pub struct Billing: Self::check {
        /// Empty if there is none.
        pub external_id: String as Ascii<MAX_EXTERNAL_ID>,
        /// A label, or an amount with its currency, as the provider's billing reads it. Empty if there is none.
        pub price: String as Ascii<MAX_PRICE>,
        /// By key, each once.
        pub metadata: Vec<Metadata> as List16<MAX_METADATA>,
    }

    /// A price tag, and the Unix second from which on it holds. An empty one: none.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub struct PriceSince {
        pub since: u64,
        pub price: String as Ascii<MAX_PRICE>,
    }

    /// The same as it is kept, with the price tags of before.
    #[derive(Clone, PartialEq, Eq, Debug, Default)]
    pub struct BillingRecord {
        pub external_id: String as Ascii<MAX_EXTERNAL_ID>,
        pub metadata: Vec<Metadata> as List16<MAX_METADATA>,
        /// In ascending order.
        pub prices: Vec<PriceSince> as List16<MAX_PRICES>,
    }

    /// A price tag that was in force.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub struct PriceTag {
        /// Of this grant; of the account without one.
        pub grant: Option<Terms>,
        pub price: String as Ascii<MAX_PRICE>,
        /// Unix seconds: from when, and until when, if it had ended.
        pub since: u64,
        pub until: Option<u64>,
    }
}

impl BillingSubject {
    /// An account.
    #[must_use]
    pub fn account(principal: Principal) -> Self {
        Self { principal, grant: None }
    }

    /// A grant.
    #[must_use]
    pub fn grant(terms: Terms) -> Self {
        Self { principal: terms.principal, grant: Some(terms) }
    }

    fn check(&self) -> Result<(), Malformed> {
        let is_own = self.grant.is_none_or(|terms| terms.principal == self.principal);
        if is_own { Ok(()) } else { Err(Malformed::Value("a grant of another principal")) }
    }
}

impl Billing {
    /// Octets of the longest encoding.
    pub(super) const MAX: usize =
        2 + MAX_EXTERNAL_ID + MAX_PRICE + 2 + MAX_METADATA * (2 + MAX_METADATA_KEY + MAX_METADATA_VALUE);

    /// Whether it can be recorded: printable ASCII, keys that are none twice and not empty, within the limits.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let is_pair = |pair: &Metadata| {
            !pair.key.is_empty() && is_text(&pair.key, MAX_METADATA_KEY) && is_text(&pair.value, MAX_METADATA_VALUE)
        };
        is_text(&self.external_id, MAX_EXTERNAL_ID)
            && is_text(&self.price, MAX_PRICE)
            && self.metadata.len() <= MAX_METADATA
            && self.metadata.iter().all(is_pair)
            && self.metadata.is_sorted_by(|a, b| a.key < b.key)
    }

    fn check(&self) -> Result<(), Malformed> {
        if self.is_sound() { Ok(()) } else { Err(Malformed::Value("what billing knows of an account or a grant")) }
    }
}

impl BillingRecord {
    /// What was set last.
    #[must_use]
    pub fn present(&self) -> Billing {
        let price = self.prices.last().map_or_else(String::new, |last| last.price.clone());
        Billing { external_id: self.external_id.clone(), price, metadata: self.metadata.clone() }
    }

    /// Sets it at a Unix second. A clock that went back moves that to the one of the price tag before.
    pub(super) fn set(&mut self, billing: Billing, second: u64) {
        let Billing { external_id, price, metadata } = billing;
        (self.external_id, self.metadata) = (external_id, metadata);
        let last = self.prices.last();
        if last.map_or("", |last| &last.price) == price {
            return;
        }
        let since = last.map_or(second, |last| second.max(last.since));
        self.prices.push(PriceSince { since, price });
        if self.prices.len() > MAX_PRICES {
            self.prices.remove(0);
        }
    }

    /// Whether another price tag has no place beside those that a statement may still need at this Unix second.
    pub(super) fn is_full(&self, price: &str, second: u64) -> bool {
        let is_other = self.prices.last().map_or("", |last| &last.price) != price;
        // The first one ended when the second one began.
        let is_needed = |ended: &PriceSince| ended.since.saturating_add(PRICES_KEPT) > second;
        is_other && self.prices.len() >= SET_PRICES && self.prices.get(1).is_some_and(is_needed)
    }

    /// Price tags that are remembered.
    pub(super) fn tags(&self) -> usize {
        self.prices.iter().filter(|tag| !tag.price.is_empty()).count()
    }

    /// Whether nothing is set, and no statement needs the price tags of before at this Unix second.
    pub(super) fn is_forgotten(&self, second: u64) -> bool {
        let is_priced = |last: &PriceSince| !last.price.is_empty() || last.since.saturating_add(PRICES_KEPT) > second;
        self.external_id.is_empty() && self.metadata.is_empty() && !self.prices.last().is_some_and(is_priced)
    }

    /// The price tags that were in force at any time from one Unix second on and before another.
    #[must_use]
    pub fn prices_within(&self, grant: Option<Terms>, from: u64, before: u64) -> Vec<PriceTag> {
        let ends = self.prices.iter().skip(1).map(|next| Some(next.since)).chain([None]);
        let tags = self.prices.iter().zip(ends).map(|(PriceSince { since, price }, until)| {
            let until = until.filter(|until| *until < before);
            PriceTag { grant, price: price.clone(), since: *since, until }
        });
        let is_within = |tag: &PriceTag| {
            !tag.price.is_empty()
                && tag.since < before
                && tag.until.is_none_or(|until| until > from && until > tag.since)
        };
        tags.filter(is_within).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn priced(price: &str) -> Billing {
        Billing { price: price.to_owned(), ..Billing::default() }
    }

    #[test]
    fn price_tags_of_a_time_are_those_that_were_in_force_in_it() {
        let mut record = BillingRecord::default();
        for (price, second) in [("gold", 100), ("gold", 150), ("silver", 200), ("", 300), ("tin", 400), ("lead", 400)] {
            record.set(priced(price), second);
        }
        let within = |from, before| {
            let tags = record.prices_within(None, from, before);
            tags.into_iter().map(|tag| (tag.price, tag.since, tag.until)).collect::<Vec<_>>()
        };
        let (gold, silver) = (("gold".to_owned(), 100, Some(200)), ("silver".to_owned(), 200, Some(300)));
        assert_eq!(within(0, 400), [gold.clone(), silver.clone()]);
        assert_eq!(within(199, 200), [("gold".to_owned(), 100, None)], "what came later is not known of that time");
        assert_eq!(within(200, 201), [("silver".to_owned(), 200, None)]);
        assert_eq!(within(300, 400), []);
        assert_eq!(within(400, 500), [("lead".to_owned(), 400, None)], "the other one held for no second");
        assert_eq!(within(0, 100), []);
        record.set(priced("later"), 10);
        assert_eq!(record.prices.last().map(|last| last.since), Some(400), "the clock went back");
    }

    #[test]
    fn what_is_too_long_or_twice_or_not_printable_is_not_recorded() {
        let pair = |key: &str, value: &str| Metadata { key: key.to_owned(), value: value.to_owned() };
        let with = |metadata: Vec<Metadata>| Billing { metadata, ..Billing::default() };
        assert!(with(vec![pair("a", ""), pair("b", "x")]).is_sound());
        for bad in [vec![pair("", "x")], vec![pair("b", ""), pair("a", "")], vec![pair("a", "x"), pair("a", "y")]] {
            assert!(!with(bad.clone()).is_sound(), "{bad:?}");
        }
        let many = (0..=MAX_METADATA).map(|number| pair(&format!("{number:02}"), "")).collect();
        assert!(!with(many).is_sound());
        assert!(!with(vec![pair("a", &"x".repeat(MAX_METADATA_VALUE + 1))]).is_sound());
        assert!(!priced("EUR\n1").is_sound() && !priced(&"x".repeat(MAX_PRICE + 1)).is_sound());
        assert!(priced("EUR 0.42/TB").is_sound());
    }
}
