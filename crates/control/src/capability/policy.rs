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

    /// After how many seconds to ask again, if no key is given that is good from Unix second `from` until before `until`, under a load
    /// of so many answers a second: a key is not given if a rule refuses it at any minute of this time, since what was given cannot
    /// be taken back at that minute.
    #[must_use]
    pub fn denies(&self, terms: &Terms, from: u64, until: u64, load: u64) -> Option<u32> {
        let mut undecided = Minutes::of_time(from, until);
        for Rule { rule, hours } in &self.0 {
            let LookupRule { principals, waypoints, load: least, .. } = rule;
            let matches = (principals.is_empty() || principals.contains(&terms.principal.number()))
                && (waypoints.is_empty() || waypoints.contains(&terms.waypoint))
                && least.is_none_or(|least| load >= least);
            let decides = hours.map_or(Minutes::ALL, |(from, to)| Minutes::between(from, to));
            if matches && undecided.take(&decides) && !rule.allow {
                return Some(rule.retry_secs);
            }
        }
        None
    }
}

/// Minutes of a day, a bit each.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Minutes([u64; DAY.div_ceil(64) as usize]);

/// Minutes of a day.
const DAY: u32 = 1_440;

impl Minutes {
    const ALL: Self = Self([u64::MAX; DAY.div_ceil(64) as usize]);

    /// From one minute until before another, over midnight if that is earlier.
    fn between(from: u32, to: u32) -> Self {
        let mut all = Self([0; DAY.div_ceil(64) as usize]);
        let (first, second) = if from <= to { (from..to, 0..0) } else { (from..DAY, 0..to) };
        first.chain(second).for_each(|minute| all.0[minute as usize / 64] |= 1 << (minute % 64));
        all
    }

    /// Those that any part of the time from one Unix second until before another lies in, and at least that of the first.
    fn of_time(from: u64, until: u64) -> Self {
        let (first, last) = (from / 60, until.max(from + 1).div_ceil(60));
        if last - first >= u64::from(DAY) {
            return Self::between(0, DAY);
        }
        let of_day = |minute: u64| (minute % u64::from(DAY)) as u32;
        Self::between(of_day(first), of_day(last - 1) + 1)
    }

    /// Takes minutes out, and says whether any was there.
    fn take(&mut self, others: &Self) -> bool {
        let mut any = false;
        for (own, other) in self.0.iter_mut().zip(others.0) {
            any |= *own & other != 0;
            *own &= !other;
        }
        any
    }
}

/// Minutes since midnight of `HH:MM`; 24:00 is the end of a day.
fn minutes(text: &str) -> Option<u32> {
    let (hours, minutes) = text.split_once(':')?;
    let number = |text: &str| (text.len() == 2).then(|| text.parse::<u32>().ok()).flatten();
    let all = number(hours)? * 60 + number(minutes).filter(|minutes| *minutes < 60)?;
    (all <= DAY).then_some(all)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use proptest::prelude::*;
    use wayleave_packet::platypus::header::{Interval, Principal, Width};

    use super::*;

    fn terms(principal: u32) -> Terms {
        Terms {
            waypoint: Ipv4Addr::new(198, 51, 100, 1).into(),
            principal: Principal::new(principal).expect("24 bits"),
            interval: Interval::new(12).expect("in range"),
            width: Width::Full,
            delegation: None,
        }
    }

    fn rule(number: usize, hours: Option<(u32, u32)>, allow: bool, principals: Vec<u32>) -> LookupRule {
        let clock = |minute: u32| format!("{:02}:{:02}", minute / 60, minute % 60);
        let hours = hours.map(|(from, to)| format!("{}-{}", clock(from), clock(to)));
        LookupRule {
            name: format!("rule {number}"),
            allow,
            hours,
            principals,
            waypoints: Vec::new(),
            load: None,
            retry_secs: number as u32 + 1,
        }
    }

    proptest! {
        /// Against a clock that is looked at in each second.
        #[test]
        fn a_key_is_refused_if_it_would_be_refused_at_any_second_in_which_it_is_good(
            rules in prop::collection::vec((prop::option::of((0u32..1_440, 0u32..=1_440)), any::<bool>(), any::<bool>()), 0..6),
            begin in 1_800_000_000u64..1_800_200_000,
            lasts in prop_oneof![1u64..200, 1u64..9_000, 86_000u64..90_000],
        ) {
            let of = |is_other: bool| if is_other { vec![8] } else { Vec::new() };
            let rules: Vec<LookupRule> =
                rules.iter().enumerate().map(|(at, (hours, allow, other))| rule(at, *hours, *allow, of(*other))).collect();
            let policy = LookupPolicy::new(&rules).expect("rules");
            let at_once = |second: u64| {
                let minute = (second / 60 % 1_440) as u32;
                let is_within = |rule: &&Rule| rule.hours.is_none_or(|(from, to)| match from <= to {
                    true => (from..to).contains(&minute),
                    false => minute >= from || minute < to,
                });
                let applies = |rule: &&Rule| rule.rule.principals.is_empty() && is_within(rule);
                policy.0.iter().find(applies).is_some_and(|rule| !rule.rule.allow)
            };
            let expected = (begin..begin + lasts).any(at_once);
            prop_assert_eq!(policy.denies(&terms(7), begin, begin + lasts, 0).is_some(), expected);
        }
    }
}
