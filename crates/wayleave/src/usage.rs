//! Statements: what principals sent through a provider's routers, as the key server has added it up.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use wayleave_control::capability::{ChargedAccount, Month, RouterNumber, Tenancies, Usage};
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
    tenancies: &Tenancies,
    routers: &BTreeMap<RouterNumber, String>,
) -> Vec<Value> {
    let owner = |key: &ChargedAccount, principal: Principal| {
        let number = principal.number();
        let at = |begins| tenancies.at(number, begins);
        let tenancy = key.tenancy().or_else(|| key.begins_at().map(at)).unwrap_or_else(|| tenancies.latest(number));
        match tenancies.former(number, tenancy) {
            // No account has a name that is not ASCII.
            Some(generation) => Some(format!("closed account – keys of generation {generation}")),
            None => account(principal),
        }
    };
    let line = |((key, router), total): (&(ChargedAccount, RouterNumber), &Usage)| {
        let (month, late) = (key.month(), key.late_since());
        let charge = record::decode(&key.0)?;
        if principal.is_some_and(|principal| principal != charge.principal.number()) {
            return None;
        }
        let begins = |epoch: u32| charge.interval.map(|interval| epoch_begin(interval, epoch));
        Some(json!({
            "principal": charge.principal.number(),
            "account": owner(key, charge.principal),
            "delegation": charge.delegation.map(|(id, _)| id.number()),
            "sub_delegation": charge.delegation.and_then(|(_, sub)| sub).map(DelegationId::number),
            "late": late.is_some(),
            "epoch": key.tenancy().is_none().then_some(charge.epoch),
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

/// By what a statement has its lines.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum By {
    Principal,
    Delegation,
    /// Key epochs, which begin and end with the interval of a capability.
    Epoch,
    Router,
}

impl By {
    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Principal => "principal",
            Self::Delegation => "delegation",
            Self::Epoch => "epoch",
            Self::Router => "router",
        }
    }

    /// All columns of a statement.
    pub fn all_columns(self) -> Vec<&'static str> {
        self.columns().iter().copied().chain(["late", "packets", "octets"]).collect()
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
    let mut sums: BTreeMap<Vec<(u64, String)>, (Value, u128, u128)> = BTreeMap::new();
    // Numbers in their order, then texts; an absent one first.
    let part = |value: &Value| match value {
        Value::Number(number) => (number.as_u64().unwrap_or(u64::MAX).saturating_add(1), String::new()),
        Value::String(text) => (u64::MAX, text.clone()),
        Value::Bool(is_set) => ((*is_set).into(), String::new()),
        _ => (0, String::new()),
    };
    for line in lines {
        let key = by.columns().iter().chain(&["late"]).map(|column| part(&line[*column])).collect();
        let number = |of: &str| line[of].as_str().and_then(|text| text.parse::<u128>().ok()).unwrap_or(0);
        let (_, packets, octets) = sums.entry(key).or_insert_with(|| (line.clone(), 0, 0));
        *packets = packets.saturating_add(number("packets"));
        *octets = octets.saturating_add(number("octets"));
    }
    let lines = sums.into_values().map(|(line, packets, octets)| {
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
    });
    Statement { columns: by.all_columns(), lines: lines.collect() }
}

/// The statement as comma-separated values (RFC 4180), with a line of names in front.
pub fn csv(statement: &Statement) -> String {
    let mut out = statement.columns.join(",") + "\r\n";
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
        let all = lines(&totals, None, &|_| None, &Tenancies::default(), &BTreeMap::new());
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
        let mut tenancies = Tenancies::default();
        let at = 400_700_u64 << 12;
        tenancies.insert(Reopening { principal: 7, at, generation: 3 });
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
        let all = lines(&totals, None, &account, &tenancies, &BTreeMap::new());
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
        lines(&totals, None, &account, &Tenancies::default(), &names)
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
