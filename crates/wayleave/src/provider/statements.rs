//! Statements of usage, as the API and commands say and sign them.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;
use wayleave_control::capability::{
    AccountPeriods, ChargedAccount, MAX_LINES, RouterNumber, State, Statement, StatementGap, StatementLine, Usage,
};
use wayleave_packet::platypus::header::Principal;
use wayleave_runtime::clock::{unix_of_day, unix_of_utc, utc};
use wayleave_store::{Details, UsageStatement};

use super::billing;
use crate::failure::Failure;

/// Seconds for which time has to be past that is closed, so that routers with other clocks have reported it.
const PAST: u64 = 86_400;
/// Unix seconds before this are days that somebody wrote without dashes.
const LEAST: u64 = 1_000_000_000;

/// A statement without its lines.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub struct StatementHead {
    pub statement: u64,
    /// It has the key epochs that had ended before `closed_before`, and are on no earlier statement: those closed time before
    /// `closed_after`. A key epoch has ended three of its lengths after it began.
    pub closed_after: String,
    pub closed_before: String,
    pub made: String,
    /// Who made it, and why; null for a token with access `own`.
    pub by: Option<String>,
    pub reason: Option<String>,
    /// Whether all of it is added up: from then on it has lines, and never changes.
    pub complete: bool,
    /// Routers that had not confirmed that all of its time was reported, by name or number: what they report later is on a later
    /// statement, marked as late.
    pub not_confirmed_by: Vec<String>,
}

impl StatementHead {
    pub fn of(statement: &UsageStatement, names: &BTreeMap<RouterNumber, String>) -> Self {
        Self {
            statement: statement.number,
            closed_after: utc(statement.closed_after),
            closed_before: utc(statement.closed_before),
            made: utc(statement.made_at),
            by: Some(statement.actor.clone()),
            reason: Some(statement.reason.clone()),
            complete: statement.is_complete,
            not_confirmed_by: gaps(statement).iter().map(|gap| router_name(names, gap.router)).collect(),
        }
    }

    /// What a customer is told.
    pub fn for_customer(self) -> Self {
        Self { by: None, reason: None, ..self }
    }
}

/// The columns of a list of them.
pub const COLUMNS: [&str; 8] =
    ["statement", "closed_after", "closed_before", "made", "by", "reason", "complete", "not_confirmed_by"];

/// Routers that had not confirmed, when a statement was made, that all of its time is reported.
fn gaps(statement: &UsageStatement) -> Vec<StatementGap> {
    let gap = |(router, confirmed): (&RouterNumber, &Option<u64>)| StatementGap {
        router: *router,
        confirmed: confirmed.unwrap_or(0),
    };
    statement.routers.iter().map(gap).filter(|gap| gap.confirmed < statement.closed_before).collect()
}

/// The name of a router, or its number.
fn router_name(names: &BTreeMap<RouterNumber, String>, router: RouterNumber) -> String {
    names.get(&router).cloned().unwrap_or_else(|| router.to_string())
}

/// Up to when time is to be closed: a day, a time of RFC 3339 or Unix seconds, past for a day at least.
///
/// # Errors
/// What is wrong with it.
pub fn closing(text: &str, now: u64) -> Result<u64, Failure> {
    let second = text.parse().ok().or_else(|| unix_of_day(text)).or_else(|| unix_of_utc(text));
    let second = second.filter(|second: &u64| *second >= LEAST);
    let none = || {
        Failure::usage(format!(
            "`{}` is no day (2026-11-01, UTC), no time (2026-11-01T00:00:00Z) and no Unix second",
            text.escape_debug()
        ))
    };
    let second = second.ok_or_else(none)?;
    if second.saturating_add(PAST) > now {
        return Err(Failure::usage(format!("{} is not a day ago yet: routers still report it", utc(second))).help(
            format!(
                "from {} on it can be closed; what was used until now, `wayleave cap usage` shows",
                utc(second.saturating_add(PAST))
            ),
        ));
    }
    Ok(second)
}

/// Checks that all routers have confirmed that they reported what ended before a Unix second, but for those that are named.
///
/// # Errors
/// Which have not, or which are named and not there.
pub fn check_confirmed(
    numbers: &BTreeSet<RouterNumber>,
    names: &BTreeMap<RouterNumber, String>,
    confirmed: &BTreeMap<RouterNumber, u64>,
    (before, without): (u64, &[String]),
) -> Result<(), Failure> {
    let is_named =
        |router: &RouterNumber, named: &String| *named == router_name(names, *router) || *named == router.to_string();
    if let Some(named) = without.iter().find(|named| !numbers.iter().any(|router| is_named(router, named))) {
        return Err(Failure::usage(format!("the key server has no router {named}")));
    }
    let through = |router: &RouterNumber| confirmed.get(router).copied().filter(|second| *second > 0);
    let lacks = |router: &&RouterNumber| {
        through(router).is_none_or(|second| second < before) && !without.iter().any(|named| is_named(router, named))
    };
    let shown = |router: &RouterNumber| {
        let through = through(router).map_or_else(|| "nothing".to_owned(), |second| format!("up to {}", utc(second)));
        format!("{} (confirmed: {through})", router_name(names, *router))
    };
    let lacking: Vec<String> = numbers.iter().filter(lacks).map(shown).collect();
    if lacking.is_empty() {
        return Ok(());
    }
    let (routers, before) = (lacking.join(", "), utc(before));
    let message = format!("not all usage before {before} is reported, by what these routers have confirmed: {routers}");
    Err(Failure::new(message).help(
        "wait until they have; or close without them (`without`), and what they report later is on the next statement, marked as late",
    ))
}

/// What of a statement is of one owner of a principal's number: to be signed. With more lines than a signed one may have,
/// sub-delegations are in the line of their delegation, and then delegations in that of the principal.
pub fn of_owner(
    statement: &UsageStatement,
    zone: &str,
    (principal, owner): (u32, u8),
    (sums, details): (&BTreeMap<(ChargedAccount, RouterNumber), Usage>, &Details),
    periods: &AccountPeriods,
) -> Statement {
    const DAY: u64 = 86_400;
    fn of_principal<T>(of: &BTreeMap<u32, Vec<T>>, principal: u32) -> &[T] {
        of.get(&principal).map_or(&[], Vec::as_slice)
    }
    let is_own = |account: &ChargedAccount| (account.principal(), account.account_period()) == (principal, Some(owner));
    let lines_of = |delegation: fn(&ChargedAccount) -> (Option<u32>, Option<u32>)| {
        let mut lines: BTreeMap<_, Usage> = BTreeMap::new();
        for ((account, _), total) in sums.iter().filter(|((account, _), _)| is_own(account)) {
            let month = account.month().map(|month| (month.begin(), month.next().begin()));
            let Some((begins, ends)) = month.or(account.late_since().map(|day| (day, day + DAY))) else { continue };
            let line = lines.entry((delegation(account), begins, ends, account.late_since().is_some())).or_default();
            *line = line.plus(*total);
        }
        lines
    };
    let finest: fn(&ChargedAccount) -> _ = |account| (account.delegation(), account.sub_delegation());
    let coarser: fn(&ChargedAccount) -> _ = |account| (account.delegation(), None);
    let coarsest: fn(&ChargedAccount) -> _ = |_| (None, None);
    let mut lines = lines_of(finest);
    for delegation in [coarser, coarsest] {
        if lines.len() > MAX_LINES {
            lines = lines_of(delegation);
        }
    }
    let line = |(((delegation, sub_delegation), begins, ends, is_late), usage)| StatementLine {
        delegation,
        sub_delegation,
        begins,
        ends,
        is_late,
        usage,
    };
    Statement {
        zone: zone.to_owned(),
        number: statement.number,
        principal,
        owner,
        after: statement.closed_after,
        before: statement.closed_before,
        made: statement.made_at,
        gaps: gaps(statement),
        lines: lines.into_iter().map(line).collect(),
        prices: billing::of_owner(of_principal(&details.prices, principal), (principal, owner), periods),
        percentiles: of_principal(&details.percentiles, principal)
            .iter()
            .filter(|of| of.owner == owner)
            .copied()
            .collect(),
    }
}

/// Whether a statement is for a number that nobody ever had, and has nothing of it: a mistyped one is not signed for.
pub fn is_of_nobody(state: &State, statement: &Statement) -> bool {
    let is_empty = statement.lines.is_empty() && statement.prices.is_empty() && statement.percentiles.is_empty();
    is_empty && !Principal::new(statement.principal).is_some_and(|principal| state.is_ever_given(principal))
}

/// What a signed statement says.
pub fn shown(statement: &Statement) -> Value {
    // It is of one owner, and does not say which others there were.
    let prices: Vec<Value> = billing::prices(statement.principal, &statement.prices, &AccountPeriods::default())
        .into_iter()
        .map(|price| {
            let mut price = json!(price);
            price["owner"] = statement.owner.into();
            price
        })
        .collect();
    let line = |line: &StatementLine| {
        json!({
            "delegation": line.delegation,
            "sub_delegation": line.sub_delegation,
            "begins": utc(line.begins),
            "ends": utc(line.ends),
            "late": line.is_late,
            "packets": line.usage.packets.to_string(),
            "octets": line.usage.octets.to_string(),
        })
    };
    let gap = |gap: &StatementGap| {
        let confirmed = Some(gap.confirmed).filter(|second| *second > 0).map(utc);
        json!({ "router": gap.router, "confirmed": confirmed })
    };
    let total = statement.total();
    json!({
        "statement": statement.number,
        "provider": statement.zone,
        "principal": statement.principal,
        "owner": statement.owner,
        "closed_after": utc(statement.after),
        "closed_before": utc(statement.before),
        "made": utc(statement.made),
        "packets": total.packets.to_string(),
        "octets": total.octets.to_string(),
        "not_confirmed_by": statement.gaps.iter().map(gap).collect::<Vec<_>>(),
        "usage": statement.lines.iter().map(line).collect::<Vec<_>>(),
        "prices": prices,
        "percentiles": billing::percentiles(statement.principal, &statement.percentiles),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000;

    #[test]
    fn time_is_closed_by_days_and_times_that_are_past_and_never_by_a_day_without_dashes() {
        assert_eq!(closing("2026-11-01", NOW).expect("past"), 1_793_491_200);
        assert_eq!(closing("2026-11-01T00:00:00Z", NOW).expect("past"), 1_793_491_200);
        assert_eq!(closing("1793491200", NOW).expect("past"), 1_793_491_200);
        for text in ["20261101", "2026", "", "yesterday", "-5"] {
            assert!(closing(text, NOW).is_err_and(|failure| failure.to_string().contains("no day")), "{text}");
        }
        assert!(
            closing(&(NOW - 86_399).to_string(), NOW)
                .is_err_and(|failure| failure.to_string().contains("not a day ago"))
        );
        let early =
            closing(&(NOW - 86_399).to_string(), NOW).err().and_then(|failure| failure.remedy().map(str::to_owned));
        assert!(early.is_some_and(|help| help.contains(&format!("from {} on", utc(NOW + 1)))));
        assert!(closing(&(NOW - 86_400).to_string(), NOW).is_ok());
    }
}
