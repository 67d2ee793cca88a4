//! When a key server gives keys: the paper's temporal traffic engineering (section 4.1), as rules that an operator writes.

use std::net::IpAddr;

use serde::Deserialize;

use super::terms::Terms;

/// Rules, at most.
pub const MAX_RULES: usize = 1_024;
/// What a holder is told to wait, at most.
const MAX_RETRY: u32 = 86_400;

/// A rule as it is written. A list that is left out matches everything.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LookupRule {
    /// For logs.
    pub name: String,
    /// Whether keys are given.
    pub allow: bool,
    /// From and to, in UTC, such as `08:00-18:00`; over midnight if from is later than to.
    pub hours: Option<String>,
    #[serde(default)]
    pub principals: Vec<u32>,
    #[serde(default)]
    pub waypoints: Vec<IpAddr>,
    /// The rule matches while the server answers at least so many questions a second.
    pub load: Option<u64>,
    /// Seconds after which a holder that is denied a key should ask again.
    #[serde(default = "default_retry")]
    pub retry_secs: u32,
}

fn default_retry() -> u32 {
    60
}

/// What is wrong with a rule: the operator erred.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LookupPolicyError {
    #[error("{0} rules; the limit is {MAX_RULES}")]
    Count(usize),
    #[error("rule {name:?}: `{value}` is not hours such as 08:00-18:00")]
    Hours { name: String, value: String },
    #[error("rule {name:?}: retry_secs is {value}, expected 1 to {MAX_RETRY}")]
    Retry { name: String, value: u32 },
}

#[derive(Clone, Debug)]
struct Rule {
    rule: LookupRule,
    /// Minutes of the day.
    hours: Option<(u32, u32)>,
}

/// Rules in order: the first that matches decides; without one a key is given, since the grant allows it.
#[derive(Clone, Debug, Default)]
pub struct LookupPolicy(Vec<Rule>);

impl LookupPolicy {
    /// Checks rules.
    ///
    /// # Errors
    /// The first that is wrong.
    pub fn new(rules: &[LookupRule]) -> Result<Self, LookupPolicyError> {
        if rules.len() > MAX_RULES {
            return Err(LookupPolicyError::Count(rules.len()));
        }
        let mut checked = Vec::with_capacity(rules.len());
        for rule in rules {
            let hours = match &rule.hours {
                None => None,
                Some(text) => {
                    let wrong = || LookupPolicyError::Hours { name: rule.name.clone(), value: text.clone() };
                    let (from, to) = text.split_once('-').ok_or_else(wrong)?;
                    Some((minutes(from).ok_or_else(wrong)?, minutes(to).ok_or_else(wrong)?))
                }
            };
            if !(1..=MAX_RETRY).contains(&rule.retry_secs) {
                return Err(LookupPolicyError::Retry { name: rule.name.clone(), value: rule.retry_secs });
            }
            checked.push(Rule { rule: rule.clone(), hours });
        }
        Ok(Self(checked))
    }

    /// After how many seconds to ask again, if no key is given at Unix second `now` under a load of so many answers a second.
    #[must_use]
    pub fn denies(&self, terms: &Terms, now: u64, load: u64) -> Option<u32> {
        let minute = (now / 60 % 1_440) as u32;
        let is_within = |(from, to): (u32, u32)| match from <= to {
            true => (from..to).contains(&minute),
            false => minute >= from || minute < to,
        };
        let matches = |rule: &&Rule| {
            let LookupRule { principals, waypoints, load: least, .. } = &rule.rule;
            rule.hours.is_none_or(is_within)
                && (principals.is_empty() || principals.contains(&terms.principal.number()))
                && (waypoints.is_empty() || waypoints.contains(&terms.waypoint))
                && least.is_none_or(|least| load >= least)
        };
        let rule = self.0.iter().find(matches)?;
        (!rule.rule.allow).then_some(rule.rule.retry_secs)
    }
}

/// Minutes since midnight of `HH:MM`; 24:00 is the end of a day.
fn minutes(text: &str) -> Option<u32> {
    let (hours, minutes) = text.split_once(':')?;
    let number = |text: &str| (text.len() == 2).then(|| text.parse::<u32>().ok()).flatten();
    let all = number(hours)? * 60 + number(minutes).filter(|minutes| *minutes < 60)?;
    (all <= 1_440).then_some(all)
}
