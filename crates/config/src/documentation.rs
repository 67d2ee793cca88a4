//! Addresses and AS numbers of a configuration that are for documentation: nobody reaches them outside a laboratory.

use std::net::IpAddr;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};
use wayleave_core::Prefix;

use super::check::LABORATORY;
use super::{Fault, Source};

/// RFC 5737 section 3, RFC 3849 section 2, RFC 9637 section 2.
const NETWORKS: [&str; 5] = ["192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32", "3fff::/20"];
/// RFC 5398 section 4.
const AS_NUMBERS: [Range<i64>; 2] = [64_496..64_512, 65_536..65_552];
/// Values that a warning names, at most.
const NAMED: usize = 4;

/// One warning for all addresses, and one for all AS numbers; none in a laboratory.
pub(super) fn faults(role: &str, source: &Source) -> Vec<Fault> {
    let Ok(table) = DeTable::parse(source.text()) else { return Vec::new() };
    let mut found = Examples::default();
    found.table(table.get_ref());
    if found.is_laboratory {
        return Vec::new();
    }
    let help = match role {
        "member" => {
            "nobody reaches them outside a laboratory: put in your own, or `lab = true`, without which the proxy also refuses routes to \
             prefixes for documentation"
        }
        "rs" | "attest" => "nobody reaches them outside a laboratory: put in your own, or `lab = true`",
        _ => "nobody reaches them outside a laboratory: put in your own",
    };
    let fault = |what: &str, values: Vec<(Range<usize>, String)>| {
        let (span, _) = values.first()?.clone();
        let names: Vec<&str> = values.iter().take(NAMED).map(|(_, value)| value.as_str()).collect();
        let more = values.len().saturating_sub(NAMED);
        let more = if more == 0 { String::new() } else { format!(" and {more} more") };
        Some(
            Fault::at(span, format!("{what} for documentation ({}{more}), expected your own", names.join(", ")))
                .help(help),
        )
    };
    let Examples { addresses, as_numbers, .. } = found;
    [fault("addresses", addresses), fault("AS numbers", as_numbers)].into_iter().flatten().collect()
}

#[derive(Default)]
struct Examples {
    addresses: Vec<(Range<usize>, String)>,
    as_numbers: Vec<(Range<usize>, String)>,
    is_laboratory: bool,
}

impl Examples {
    fn table(&mut self, table: &DeTable<'_>) {
        for (name, value) in table {
            match (name.get_ref().as_ref(), value.get_ref()) {
                ("lab", DeValue::Boolean(true)) | ("laboratory" | LABORATORY, DeValue::Table(_)) => {
                    self.is_laboratory = true;
                }
                ("asn", DeValue::Integer(number)) => {
                    let number = i64::from_str_radix(number.as_str(), number.radix()).unwrap_or(0);
                    if AS_NUMBERS.iter().any(|range| range.contains(&number)) {
                        note(&mut self.as_numbers, value.span(), format!("AS{number}"));
                    }
                }
                _ => self.value(value),
            }
        }
    }

    fn value(&mut self, value: &Spanned<DeValue<'_>>) {
        match value.get_ref() {
            DeValue::Table(table) => self.table(table),
            DeValue::Array(values) => values.iter().for_each(|value| self.value(value)),
            DeValue::String(text) => {
                if let Some(address) = address(text).filter(|address| is_documentation(*address)) {
                    note(&mut self.addresses, value.span(), address.to_string());
                }
            }
            _ => {}
        }
    }
}

fn note(values: &mut Vec<(Range<usize>, String)>, span: Range<usize>, value: String) {
    if !values.iter().any(|(_, known)| *known == value) {
        values.push((span, value));
    }
}

/// The address in a text that is one, alone, with a port, or with a length and whatever follows.
fn address(text: &str) -> Option<IpAddr> {
    let text = text.strip_prefix("https://").unwrap_or(text);
    let text = text.split_once('/').map_or(text, |(address, _)| address);
    let bracketed = text.strip_prefix('[').and_then(|rest| Some(rest.split_once(']')?.0));
    let alone = || text.split_once(':').map_or(text, |(address, _)| address).parse().ok();
    bracketed.unwrap_or(text).parse().ok().or_else(alone)
}

fn is_documentation(address: IpAddr) -> bool {
    let contains = |network: &&str| {
        let network: Option<Prefix> = network.parse().ok();
        network.is_some_and(|network| Prefix::truncated(address, network.len()).is_ok_and(|of| of == network))
    };
    NETWORKS.iter().any(contains)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(text: &str) -> Vec<String> {
        faults("member", &Source::of_text("x.toml", text)).into_iter().map(|fault| fault.message).collect()
    }

    #[test]
    fn documentation_is_found_wherever_an_address_may_stand_and_named_once() {
        let text = "a = \"192.0.2.1:179\"\nb = [\"[2001:db8::1]:7001\", \"203.0.113.0/24+\"]\nc = { d = \"192.0.2.1\" }\nasn = 64497";
        let found = messages(text);
        assert!(found[0].contains("(192.0.2.1, 2001:db8::1, 203.0.113.0)"), "{found:?}");
        assert!(found[1].contains("(AS64497)"), "{found:?}");
        assert_eq!(messages("a = \"192.0.3.1:179\"\nasn = 3320\nb = \"64497\"\n# 192.0.2.1\n"), [""; 0]);
        let help = |role: &str| {
            faults(role, &Source::of_text("x.toml", "a = \"192.0.2.1\"")).remove(0).help.unwrap_or_default()
        };
        assert!(help("member").contains("`lab = true`") && !help("gateway").contains("lab = true"));
        assert_eq!(messages("[m]\nlab = true\na = \"192.0.2.1\"\n"), [""; 0]);
    }
}
