//! Who may be shown: nothing of a source before it has said what it is, no console, and of each exchange one party.

use std::collections::BTreeMap;

use super::answers::Said;

/// Exchanges whose party is known, at most: more than a console has sources.
const MAX_EXCHANGES: usize = 1_024;

/// Whether a source may be shown.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Standing {
    /// It has not said yet what it is, or not since it last failed to answer.
    #[default]
    Unknown,
    Allowed(Identity),
    Refused(String),
}

/// What a source is that may be shown.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    pub role: String,
    /// Which process it is.
    pub run: String,
}

/// The parties that have been shown, whatever stands in their places now: what was seen is known.
#[derive(Debug)]
pub struct Rule {
    is_lab: bool,
    /// By exchange: the number of the party, and the source.
    parties: BTreeMap<String, (u64, String)>,
}

/// Why a source may not be shown.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// It is no role that a console shows.
    Source(String),
    /// Together with another it is both parties of an exchange, and the console must end.
    BothParties(String),
}

impl Rule {
    pub fn new(is_lab: bool) -> Self {
        Self { is_lab, parties: BTreeMap::new() }
    }

    /// Decides by what a source says.
    ///
    /// # Errors
    /// It may not be shown.
    pub fn decide(&mut self, source: &str, said: &Said) -> Result<Identity, Refusal> {
        let refuse = |why: &str| Err(Refusal::Source(why.to_owned()));
        if said.role == "console" {
            return refuse("it is a console itself, behind which there may be anything: name the roles that it shows");
        }
        let identity = Identity { role: said.role.clone(), run: said.run.clone() };
        let party = said.overview.party.zip(said.overview.exchange.as_deref());
        let Some((number, exchange)) = party else {
            return match said.role == "rs" || said.overview.party.is_some() || said.overview.exchange.is_some() {
                true => refuse("it is a party and does not say of which exchange: run the same version of Wayleave"),
                false => Ok(identity),
            };
        };
        if self.is_lab {
            return Ok(identity);
        }
        match self.parties.get(exchange) {
            Some((known, other)) if *known != number => {
                let exchange = exchange.escape_debug();
                let who = match other == source {
                    true => format!("`{source}` was one party of the exchange {exchange} and is the other one now"),
                    false => format!("`{other}` and `{source}` are both parties of the exchange {exchange}"),
                };
                Err(Refusal::BothParties(format!("{who}: nobody may see both, since together they know every policy")))
            }
            Some(_) => Ok(identity),
            None if self.parties.len() == MAX_EXCHANGES => refuse("more exchanges than a console keeps apart"),
            None => {
                self.parties.insert(exchange.to_owned(), (number, source.to_owned()));
                Ok(identity)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn said(role: &str, run: &str, party: Value) -> Said {
        let mut overview = json!({ "role": role, "run": run, "title": "", "ready": true, "problems": [], "columns": [], "rows": [],
            "counts": [] });
        for (name, value) in party.as_object().into_iter().flatten() {
            overview[name] = value.clone();
        }
        Said::of(overview).expect("an overview")
    }

    fn party(number: u64) -> Said {
        said("rs", "a", json!({ "party": number, "exchange": "ix" }))
    }

    #[test]
    fn of_an_exchange_one_party_is_shown_and_both_in_a_laboratory() {
        let mut rule = Rule::new(false);
        assert!(rule.decide("one", &party(1)).is_ok());
        assert!(rule.decide("again", &party(1)).is_ok(), "the same party by another way");
        let Err(Refusal::BothParties(why)) = rule.decide("two", &party(2)) else { panic!("both") };
        assert!(why.starts_with("`one` and `two` are both parties of the exchange ix: nobody may see both"), "{why}");
        assert!(rule.decide("other", &said("rs", "b", json!({ "party": 2, "exchange": "iy" }))).is_ok());
        let mut lab = Rule::new(true);
        assert!([1, 2].into_iter().all(|number| lab.decide("any", &party(number)).is_ok()));
    }

    #[test]
    fn a_party_that_takes_the_place_of_the_other_is_refused() {
        let mut rule = Rule::new(false);
        assert!(rule.decide("alpha", &party(1)).is_ok());
        assert!(rule.decide("alpha", &said("member", "b", json!({}))).is_ok());
        let Err(Refusal::BothParties(why)) = rule.decide("alpha", &party(2)) else {
            panic!("both, one after the other")
        };
        assert!(why.starts_with("`alpha` was one party of the exchange ix"), "{why}");
    }

    #[test]
    fn a_console_and_a_party_that_does_not_say_which_are_refused() {
        for (role, party) in [
            ("console", json!({})),
            ("rs", json!({})),
            ("rs", json!({ "party": 1 })),
            ("rs", json!({ "exchange": "ix" })),
            ("member", json!({ "party": 2 })),
        ] {
            let refused = Rule::new(true).decide("alpha", &said(role, "a", party.clone()));
            assert!(matches!(refused, Err(Refusal::Source(_))), "{role} {party}");
        }
    }
}
