//! What a provider's billing knows accounts and grants by, as requests and commands say it.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;
use wayleave_control::capability::{
    AccountPeriods, Billing, BillingRecord, BillingSubject, ChangeBody, ChangeError, Metadata, Percentile, PriceTag,
    State,
};
use wayleave_runtime::clock::utc;

use crate::failure::Failure;

/// Pairs, by their keys.
pub type Pairs = BTreeMap<String, String>;

/// What is to be set; what is absent stays as it is, and an empty text ends what there is.
#[derive(Clone, Default, Debug)]
pub struct BillingFields {
    pub external_id: Option<String>,
    pub price: Option<String>,
    /// In the place of all pairs.
    pub metadata: Option<Pairs>,
}

impl BillingFields {
    /// Whether nothing is to be set.
    pub fn is_empty(&self) -> bool {
        self.external_id.is_none() && self.price.is_none() && self.metadata.is_none()
    }

    /// # Errors
    /// If it is too long, or no printable ASCII.
    pub fn check(&self) -> Result<(), Failure> {
        let is_sound = self.over(Billing::default()).is_sound();
        if is_sound { Ok(()) } else { Err(Failure::usage(ChangeError::Billing.to_string())) }
    }

    fn over(&self, held: Billing) -> Billing {
        let pairs = |pairs: &Pairs| {
            let pair = |(key, value): (&String, &String)| Metadata { key: key.clone(), value: value.clone() };
            pairs.iter().map(pair).collect()
        };
        Billing {
            external_id: self.external_id.clone().unwrap_or(held.external_id),
            price: self.price.clone().unwrap_or(held.price),
            metadata: self.metadata.as_ref().map_or(held.metadata, pairs),
        }
    }

    /// The change that sets it, if any is needed.
    pub fn change(&self, state: &State, of: BillingSubject) -> Option<ChangeBody> {
        let held = present(state, of);
        let billing = self.over(held.clone());
        (billing != held).then_some(ChangeBody::SetBilling { of, billing })
    }
}

/// What is known of an account or a grant now.
pub fn present(state: &State, of: BillingSubject) -> Billing {
    state.billing(&of).map(BillingRecord::present).unwrap_or_default()
}

/// A text that is none if it is empty.
pub fn some(text: &str) -> Option<String> {
    Some(text.to_owned()).filter(|text| !text.is_empty())
}

/// Metadata by its keys.
pub fn pairs(billing: &Billing) -> Pairs {
    billing.metadata.iter().map(|pair| (pair.key.clone(), pair.value.clone())).collect()
}

/// A pair of a command line: KEY=VALUE.
///
/// # Errors
/// If it is none.
pub fn pair(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').filter(|(key, _)| !key.is_empty());
    let (key, value) = pair.ok_or_else(|| "expected KEY=VALUE".to_owned())?;
    Ok((key.to_owned(), value.to_owned()))
}

/// A price tag that was in force in the time of a statement.
#[derive(Serialize, ToSchema)]
pub struct Price {
    #[schema(maximum = 16_777_215)]
    principal: u32,
    /// Which of the owners that the principal's number had one after the other, from 0.
    owner: u8,
    /// Of the grant at this address; null for the account's.
    #[schema(required)]
    waypoint: Option<String>,
    #[schema(required)]
    delegation: Option<u32>,
    #[schema(required)]
    sub_delegation: Option<u32>,
    price: String,
    /// From when it was in force.
    #[schema(format = DateTime)]
    since: String,
    /// Until when, if it had ended before the statement's time did.
    #[schema(required, format = DateTime)]
    until: Option<String>,
}

/// The columns of a list of them.
pub const PRICE_COLUMNS: [&str; 8] =
    ["principal", "owner", "waypoint", "delegation", "sub_delegation", "price", "since", "until"];

/// Price tags of a statement's principal, with whose they are.
pub fn prices(principal: u32, tags: &[PriceTag], periods: &AccountPeriods) -> Vec<Price> {
    let price = |tag: &PriceTag| {
        let delegation = tag.grant.and_then(|terms| terms.delegation);
        Price {
            principal,
            owner: periods.at(principal, tag.since),
            waypoint: tag.grant.map(|terms| terms.waypoint.to_string()),
            delegation: delegation.map(|delegation| delegation.id.number()),
            sub_delegation: delegation.and_then(|delegation| delegation.sub).map(|sub| sub.id.number()),
            price: tag.price.clone(),
            since: utc(tag.since),
            until: tag.until.map(utc),
        }
    };
    tags.iter().map(price).collect()
}

/// The 95th percentile of what a principal sent in a month, in samples of five minutes.
#[derive(Serialize, ToSchema)]
pub struct MonthPercentile {
    #[schema(maximum = 16_777_215)]
    principal: u32,
    /// Which of the owners that the principal's number had one after the other, from 0.
    owner: u8,
    #[schema(format = DateTime)]
    begins: String,
    #[schema(format = DateTime)]
    ends: String,
    /// What 95 of 100 samples of the month do not exceed.
    octets_per_second: u64,
    /// Samples that are known only roughly, since a router was cut off: more than a few make the percentile rough too.
    rough_samples: u32,
}

/// The columns of a list of them.
pub const PERCENTILE_COLUMNS: [&str; 6] =
    ["principal", "owner", "begins", "ends", "octets_per_second", "rough_samples"];

/// Percentiles of a statement's principal.
pub fn percentiles(principal: u32, all: &[Percentile]) -> Vec<MonthPercentile> {
    let shown = |of: &Percentile| MonthPercentile {
        principal,
        owner: of.owner,
        begins: utc(of.begins),
        ends: utc(of.ends),
        octets_per_second: of.octets_per_second,
        rough_samples: of.rough,
    };
    all.iter().map(shown).collect()
}

/// Price tags that one owner of the number had.
pub fn of_owner(tags: &[PriceTag], (principal, owner): (u32, u8), periods: &AccountPeriods) -> Vec<PriceTag> {
    tags.iter().filter(|tag| periods.at(principal, tag.since) == owner).cloned().collect()
}

/// The fields of a request that sets it.
pub fn body(fields: &BillingFields) -> Value {
    let mut body = json!({});
    let all = [
        ("external_id", json!(fields.external_id)),
        ("price", json!(fields.price)),
        ("metadata", json!(fields.metadata)),
    ];
    for (name, value) in all {
        if !value.is_null() {
            body[name] = value;
        }
    }
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_absent_stays_and_an_empty_text_ends_what_there_is() {
        let held = Billing { external_id: "c".to_owned(), price: "gold".to_owned(), metadata: Vec::new() };
        let price =
            |price: &str| BillingFields { price: some(price).or(Some(String::new())), ..BillingFields::default() };
        assert_eq!(price("silver").over(held.clone()), Billing { price: "silver".to_owned(), ..held.clone() });
        assert_eq!(price("").over(held.clone()), Billing { price: String::new(), ..held.clone() });
        assert_eq!(BillingFields::default().over(held.clone()), held);
        assert_eq!(body(&price("x")), json!({ "price": "x" }));
        assert_eq!(pair("a=b=c"), Ok(("a".to_owned(), "b=c".to_owned())));
        assert!(pair("=b").is_err() && pair("a").is_err());
    }
}
