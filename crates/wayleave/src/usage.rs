//! Statements: what principals sent through a provider's routers, as the key server has added it up.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Deserialize;
use serde_json::{Value, json};
use wayleave_control::capability::{AccountPeriods, ChargedAccount, Month, RouterNumber, Usage};
use wayleave_dataplane::platypus::record;
use wayleave_packet::platypus::header::{DelegationId, Principal};
use wayleave_packet::platypus::mint::epoch::epoch_begin;
use wayleave_runtime::clock::utc;

/// What reported totals say, a line for each account and router, of one principal or of all. Totals have more digits than a number
/// of JSON may have, so that they are texts.
pub fn lines(
    totals: &BTreeMap<(ChargedAccount, RouterNumber), Usage>,
    principal: Option<u32>,
    account: &dyn Fn(Principal) -> Option<String>,
    account_periods: &AccountPeriods,
    routers: &BTreeMap<RouterNumber, String>,
) -> Vec<Value> {
    let former = |key: &ChargedAccount, number: u32| {
        let at = |begins| account_periods.at(number, begins);
        let account_period =
            key.account_period().or_else(|| key.begins_at().map(at)).unwrap_or_else(|| account_periods.latest(number));
        account_periods.former(number, account_period)
    };
    let owner = |former: Option<u32>, principal: Principal| match former {
        // No account has a name that is not ASCII.
        Some(generation) => Some(format!("closed account – keys of generation {generation}")),
        None => account(principal),
    };
    let line = |((key, router), total): (&(ChargedAccount, RouterNumber), &Usage)| {
        let (month, late) = (key.month(), key.late_since());
        let charge = record::decode(&key.0)?;
        if principal.is_some_and(|principal| principal != charge.principal.number()) {
            return None;
        }
        let former = former(key, charge.principal.number());
        let begins = |epoch: u32| charge.interval.map(|interval| epoch_begin(interval, epoch));
        Some(json!({
            "principal": charge.principal.number(),
            "account": owner(former, charge.principal),
            "generation": former,
            "delegation": charge.delegation.map(|(id, _)| id.number()),
            "sub_delegation": charge.delegation.and_then(|(_, sub)| sub).map(DelegationId::number),
            "late": late.is_some(),
            "epoch": key.account_period().is_none().then_some(charge.epoch),
            "begins": late.or_else(|| month.map(Month::begin)).or_else(|| begins(charge.epoch)),
            "ends": month.map(|month| month.next().begin()).or_else(|| charge.epoch.checked_add(1).and_then(begins)),
            "router": router,
            "router_name": routers.get(router),
            "packets": total.packets.to_string(),
            "octets": total.octets.to_string(),
        }))
    };
    totals.iter().filter_map(line).collect()
}

/// Who is in reported totals.
pub fn principals(totals: &BTreeMap<(ChargedAccount, RouterNumber), Usage>) -> BTreeSet<Principal> {
    totals.keys().filter_map(|(key, _)| record::decode(&key.0)).map(|charge| charge.principal).collect()
}

wayleave_core::named! {
    /// By what a statement has its lines.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum, Deserialize, utoipa::ToSchema)]
    #[serde(rename_all = "lowercase")]
    pub enum By {
        /// Who pays.
        Principal = "principal",
        /// Delegations and sub-delegations of each principal.
        Delegation = "delegation",
        /// Key epochs, which begin and end with the interval of a capability.
        Epoch = "epoch",
        /// Routers that reported it, for each principal.
        Router = "router",
    }
}

impl By {
    /// All columns of a statement.
    pub fn all_columns(self) -> Vec<&'static str> {
        self.columns().iter().copied().chain(["late", "packets", "octets"]).collect()
    }

    /// What tells its lines apart, as numbers: a router's name follows from its number, an account's from its principal and, if it is
    /// closed, the generation of its keys.
    fn numbers(self) -> impl Iterator<Item = &'static str> {
        let texts = |column: &&str| !matches!(*column, "account" | "router_name");
        self.columns().iter().copied().filter(texts).chain(["generation", "late"])
    }

    /// The columns that tell lines apart.
    fn columns(self) -> &'static [&'static str] {
        match self {
            Self::Principal => &["principal", "account"],
            Self::Delegation => &["principal", "account", "delegation", "sub_delegation"],
            Self::Epoch => &["principal", "account", "delegation", "sub_delegation", "epoch", "begins", "ends"],
            Self::Router => &["principal", "account", "router", "router_name"],
        }
    }
}

/// A statement: lines with the same columns added up, in the order of the columns.
pub struct Statement {
    pub columns: Vec<&'static str>,
    pub lines: Vec<Value>,
}

/// Whether a line's key epoch begins within these Unix seconds. A line without an epoch (version 0) belongs to no time.
pub fn is_within(line: &Value, from: Option<u64>, to: Option<u64>) -> bool {
    if from.is_none() && to.is_none() {
        return true;
    }
    let begins = line["begins"].as_u64();
    begins.is_some_and(|begins| from.is_none_or(|from| begins >= from) && to.is_none_or(|to| begins < to))
}

/// Whether some line is of a whole month of which these Unix seconds cut off a part: what is said of it is said of all of it, or
/// of nothing.
pub fn is_cut(lines: &[Value], from: Option<u64>, to: Option<u64>) -> bool {
    let cuts = |line: &Value, second: u64| {
        let bounds = line["begins"].as_u64().zip(line["ends"].as_u64());
        line["epoch"].is_null() && bounds.is_some_and(|(begins, ends)| begins < second && second < ends)
    };
    lines.iter().any(|line| from.into_iter().chain(to).any(|second| cuts(line, second)))
}

/// Adds the lines up.
pub fn statement<'a>(lines: impl Iterator<Item = &'a Value>, by: By) -> Statement {
    let mut sums = StatementPage::new(by, None, usize::MAX);
    lines.for_each(|line| sums.add(line));
    sums.finish().0
}

/// The numbers that tell a line of a statement apart, in the order of its columns: an absent one is the least.
type LineKey = Vec<Option<u64>>;

/// Where a page of a statement begins: behind this line of one with the same columns. In text the line's numbers with dots between
/// them, and `-` for what it lacks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StatementCursor(LineKey);

impl StatementCursor {
    /// The cursor that a page gave; `None` if the text is none of a statement by this.
    pub fn parse(text: &str, by: By) -> Option<Self> {
        let number = |part: &str| match part {
            "-" => Some(None),
            digits => digits.parse().ok().map(Some),
        };
        let key: LineKey = text.split('.').map(number).collect::<Option<_>>()?;
        (key.len() == by.numbers().count() && key[0].is_some()).then_some(Self(key))
    }

    /// The principal of the line.
    pub fn principal(&self) -> u64 {
        self.0[0].unwrap_or(0)
    }
}

impl fmt::Display for StatementCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> =
            self.0.iter().map(|number| number.map_or_else(|| "-".to_owned(), |number| number.to_string())).collect();
        f.write_str(&parts.join("."))
    }
}

/// Where a page of a listing begins: behind a line, and at the time of the first page, by how many totals had been added to sums. In
/// text both, with `~` between them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListingCursor {
    pub line: StatementCursor,
    pub moved: u64,
}

impl ListingCursor {
    /// The cursor that a page gave; `None` if the text is none of a statement by this.
    pub fn parse(text: &str, by: By) -> Option<Self> {
        let (line, moved) = text.split_once('~')?;
        Some(Self { line: StatementCursor::parse(line, by)?, moved: moved.parse().ok()? })
    }
}

impl fmt::Display for ListingCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}~{}", self.line, self.moved)
    }
}

/// A statement of which some lines are added up: those behind a cursor, and no more than a page has.
#[derive(Clone)]
pub struct StatementPage {
    by: By,
    after: Option<LineKey>,
    most: usize,
    /// One more than the page has, which tells that it is not the last. A line beyond these is not among the first ones, whatever
    /// is still to come.
    sums: BTreeMap<LineKey, (Value, u128, u128)>,
}

impl StatementPage {
    /// A page of at most `most` lines.
    pub fn new(by: By, after: Option<StatementCursor>, most: usize) -> Self {
        Self { by, after: after.map(|cursor| cursor.0), most, sums: BTreeMap::new() }
    }

    /// Adds a line of [`lines`], in any order.
    pub fn add(&mut self, line: &Value) {
        let number = |column: &str| line[column].as_u64().or_else(|| line[column].as_bool().map(u64::from));
        let key: LineKey = self.by.numbers().map(number).collect();
        if self.after.as_ref().is_some_and(|after| key <= *after) {
            return;
        }
        let number = |of: &str| line[of].as_str().and_then(|text| text.parse::<u128>().ok()).unwrap_or(0);
        let (_, packets, octets) = self.sums.entry(key).or_insert_with(|| (line.clone(), 0, 0));
        *packets = packets.saturating_add(number("packets"));
        *octets = octets.saturating_add(number("octets"));
        if self.sums.len() > self.most.saturating_add(1) {
            self.sums.pop_last();
        }
    }

    /// Whether lines of this principal, and of those above, are of later pages.
    pub fn is_full_before(&self, principal: u64) -> bool {
        let is_earlier = |key: &LineKey| key[0].is_some_and(|last| last < principal);
        self.sums.len() > self.most && self.sums.last_key_value().is_some_and(|(last, _)| is_earlier(last))
    }

    /// The page, and the cursor of the next one if there is one.
    pub fn finish(mut self) -> (Statement, Option<StatementCursor>) {
        let is_more = self.sums.len() > self.most;
        if is_more {
            self.sums.pop_last();
        }
        let last = self.sums.last_key_value().map(|(key, _)| StatementCursor(key.clone()));
        let by = self.by;
        let lines = self.sums.into_values().map(|(line, packets, octets)| summed(by, &line, packets, octets));
        (Statement { columns: by.all_columns(), lines: lines.collect() }, last.filter(|_| is_more))
    }
}

/// A line of a statement.
fn summed(by: By, line: &Value, packets: u128, octets: u128) -> Value {
    let mut out = serde_json::Map::new();
    for column in by.columns() {
        let value = match *column {
            "begins" | "ends" => line[*column].as_u64().map(utc).map_or(Value::Null, Value::from),
            column => line[column].clone(),
        };
        out.insert((*column).to_owned(), value);
    }
    out.insert("late".to_owned(), line["late"].clone());
    out.insert("packets".to_owned(), packets.to_string().into());
    out.insert("octets".to_owned(), octets.to_string().into());
    Value::Object(out)
}

/// The statement as comma-separated values (RFC 4180), with a line of names in front.
pub fn csv(statement: &Statement) -> String {
    statement.columns.join(",") + "\r\n" + &csv_lines(statement)
}

/// The same without the names, for what follows another page.
pub fn csv_lines(statement: &Statement) -> String {
    let mut out = String::new();
    for line in &statement.lines {
        let cells: Vec<String> = statement.columns.iter().map(|column| field(&line[*column])).collect();
        out += &(cells.join(",") + "\r\n");
    }
    out
}

/// A value as a field. A text that a spreadsheet would take for a formula gets an apostrophe in front: an account's name is chosen
/// by somebody else than whoever opens the file.
fn field(value: &Value) -> String {
    let text = match value {
        Value::Null => return String::new(),
        Value::String(text) if text.starts_with(['=', '+', '-', '@', '\t', '\r']) => format!("'{text}"),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    if text.contains([',', '"', '\r', '\n']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text }
}

#[cfg(test)]
mod tests {
    use wayleave_control::capability::Reopening;
    use wayleave_packet::platypus::header::Interval;
    use wayleave_packet::platypus::verify::Charge;

    use super::*;

    #[test]
    fn a_folded_month_is_a_line_of_its_own_time_and_keeps_every_other_sum() {
        let usage = |packets: u128| Usage { packets, octets: packets };
        let folded = |principal, delegation, epoch| key(principal, delegation, epoch).sum(0);
        let totals = BTreeMap::from([
            ((folded(7, None, 400_000), 1), usage(1)),
            ((key(7, None, 400_700), 1), usage(2)),
            ((folded(7, Some(9), 400_000), 2), usage(4)),
        ]);
        let all = lines(&totals, None, &|_| None, &AccountPeriods::default(), &BTreeMap::new());
        let month = Month::of(400_000 << 12);
        let (begin, end) = (month.begin(), month.next().begin());
        let of = |from, to| {
            let lines = all.iter().filter(|line| is_within(line, from, to));
            let statement = statement(lines, By::Delegation);
            statement.lines.iter().map(|line| line["packets"].as_str().expect("a text").to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(of(None, None), ["3", "4"]);
        assert_eq!(of(Some(begin), Some(end)), ["1", "4"]);
        assert_eq!(of(Some(end), None), ["2"]);
        assert!(!is_cut(&all, Some(begin), Some(end)));
        assert!(is_cut(&all, Some(begin + 1), None) && is_cut(&all, None, Some(end - 1)));
        let epochs = statement(all.iter(), By::Epoch);
        assert_eq!(epochs.lines.len(), 3);
        assert_eq!(epochs.lines[0]["epoch"], Value::Null);
        assert_eq!(epochs.lines[0]["begins"], utc(begin));
    }

    #[test]
    fn usage_of_a_closed_account_is_on_no_line_of_whoever_has_its_number_now() {
        let usage = |packets: u128| Usage { packets, octets: packets };
        let mut account_periods = AccountPeriods::default();
        let at = 400_700_u64 << 12;
        account_periods.insert(Reopening { principal: 7, at, generation: 3 });
        let totals = BTreeMap::from([
            ((key(7, None, 400_600), 1), usage(1)),
            ((key(7, None, 400_699), 2), usage(2)),
            ((key(7, None, 400_700), 1), usage(4)),
            ((key(7, None, 400_650).sum(0), 1), usage(8)),
            ((key(7, None, 400_710).sum(1), 1), usage(16)),
            ((key(7, None, 400_650).late(0, at), 1), usage(32)),
            ((key(8, None, 400_600), 1), usage(64)),
        ]);
        let account = |_: Principal| Some("desk".to_owned());
        let all = lines(&totals, None, &account, &account_periods, &BTreeMap::new());
        let former = "closed account – keys of generation 3";
        for by in [By::Principal, By::Delegation, By::Router, By::Epoch] {
            let mut sums: BTreeMap<(u64, String, bool), u64> = BTreeMap::new();
            for line in statement(all.iter(), by).lines {
                let text = |of: &str| line[of].as_str().expect("a text").to_owned();
                let of = (line["principal"].as_u64().expect("a number"), text("account"), line["late"] == true);
                *sums.entry(of).or_default() += text("packets").parse::<u64>().expect("a number");
            }
            let expected =
                [((7, former, false), 11), ((7, former, true), 32), ((7, "desk", false), 20), ((8, "desk", false), 64)];
            let expected = expected.map(|((number, name, late), sum)| ((number, name.to_owned(), late), sum));
            assert_eq!(sums, BTreeMap::from(expected), "{by:?}");
        }
        // What came late is of the time after the closing, in which it is billed.
        let late = |from, to| all.iter().filter(|line| line["late"] == true && is_within(line, from, to)).count();
        assert_eq!((late(Some(at), None), late(None, Some(at))), (1, 0));
        assert!(!is_cut(&all[all.len() - 1..], Some(at + 1), None));
    }

    fn key(principal: u32, delegation: Option<u32>, epoch: u32) -> ChargedAccount {
        let id = |id| DelegationId::new(id).expect("24 bits");
        ChargedAccount(record::encode(&Charge {
            principal: Principal::new(principal).expect("24 bits"),
            delegation: delegation.map(|of| (id(of), None)),
            interval: Interval::new(12),
            epoch,
        }))
    }

    fn all() -> Vec<Value> {
        let usage = |packets: u128| Usage { packets, octets: packets * u128::from(u64::MAX) };
        let totals = BTreeMap::from([
            ((key(7, None, 400_000), 1), usage(1)),
            ((key(7, None, 400_000), 2), usage(2)),
            ((key(7, Some(9), 400_001), 1), usage(4)),
            ((key(10, None, 400_000), 1), usage(8)),
        ]);
        let names = BTreeMap::from([(1, "fra1".to_owned())]);
        let account = |principal: Principal| (principal.number() == 7).then(|| "=1+1,\"x\"".to_owned());
        lines(&totals, None, &account, &AccountPeriods::default(), &names)
    }

    #[test]
    fn lines_are_added_up_by_what_is_asked_for() {
        let all = all();
        let packets = |by: By| -> Vec<String> {
            let statement = statement(all.iter(), by);
            statement.lines.iter().map(|line| line["packets"].as_str().expect("a text").to_owned()).collect()
        };
        assert_eq!(packets(By::Principal), ["7", "8"]);
        assert_eq!(packets(By::Delegation), ["3", "4", "8"]);
        assert_eq!(packets(By::Epoch), ["3", "4", "8"]);
        assert_eq!(packets(By::Router), ["5", "2", "8"]);
        let statement = statement(all.iter(), By::Principal);
        assert_eq!(statement.lines[0]["octets"], (u128::from(u64::MAX) * 7).to_string());
    }

    #[test]
    fn pages_of_a_statement_put_together_are_the_statement() {
        let mut totals = BTreeMap::new();
        for number in 0..600_u32 {
            let (principal, delegation) = (number % 5, (number % 3 > 0).then_some(number % 7));
            let of = key(principal, delegation, 400_000 + number % 11);
            let of = if number % 13 == 0 { of.sum(0) } else { of };
            totals.insert((of, (number % 4) as u16), Usage { packets: u128::from(number), octets: 1 });
        }
        let all = lines(&totals, None, &|_| None, &AccountPeriods::default(), &BTreeMap::new());
        for by in [By::Principal, By::Delegation, By::Epoch, By::Router] {
            let whole = statement(all.iter(), by);
            for most in [1, 3, 1_000] {
                let (mut put_together, mut after) = (Vec::new(), None);
                loop {
                    let mut page = StatementPage::new(by, after, most);
                    for line in &all {
                        page.add(line);
                        assert!(page.sums.len() <= most + 1);
                    }
                    let (page, next) = page.finish();
                    assert!(page.lines.len() <= most);
                    put_together.extend(page.lines);
                    let Some(next) = next else { break };
                    after = StatementCursor::parse(&next.to_string(), by);
                    assert_eq!(after, Some(next));
                }
                assert_eq!(put_together, whole.lines, "{by:?} {most}");
            }
        }
    }

    #[test]
    fn what_no_page_gave_is_no_cursor() {
        for text in
            ["", ".", "7", "7.", "-.-.-", "7.3", "7.-.-", "7.3.1.2", "7.x.-", "7.-.99999999999999999999", "7.+ .-"]
        {
            assert_eq!(StatementCursor::parse(text, By::Delegation), None, "{text}");
        }
        assert!(StatementCursor::parse("7.-.-.-.0", By::Delegation).is_some());
        for text in ["", "~", "7.-.-.-.0", "7.-.-.-.0~", "~5", "7.-.-.-.0~x", "7.-.-.-.0~5~5", "7.-.-.0~5"] {
            assert_eq!(ListingCursor::parse(text, By::Delegation), None, "{text}");
        }
        let cursor = ListingCursor::parse("7.-.-.-.0~5", By::Delegation).expect("a cursor");
        assert_eq!((cursor.moved, cursor.to_string().as_str()), (5, "7.-.-.-.0~5"));
    }

    #[test]
    fn a_time_takes_the_epochs_that_begin_within_it() {
        let all = all();
        let begin = 400_001_u64 << 12;
        let count = |from, to| all.iter().filter(|line| is_within(line, from, to)).count();
        assert_eq!(count(None, None), 4);
        assert_eq!((count(Some(begin), None), count(None, Some(begin))), (1, 3));
        assert_eq!(count(Some(begin), Some(begin)), 0);
    }

    #[test]
    fn names_are_no_formulas_and_do_not_break_the_columns() {
        let all = all();
        let text = csv(&statement(all.iter(), By::Principal));
        let octets = |packets: u128| packets * u128::from(u64::MAX);
        let expected = format!(
            "principal,account,late,packets,octets\r\n7,\"'=1+1,\"\"x\"\"\",false,7,{}\r\n10,,false,8,{}\r\n",
            octets(7),
            octets(8)
        );
        assert_eq!(text, expected);
    }
}
