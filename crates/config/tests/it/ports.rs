//! The ports in the table of `install.md` are those of the templates, and status pages of roles do not collide.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use wayleave_config::ROLES;

use super::pages::GUIDE;

/// What a template of `wayleave init` has.
struct Ports {
    status: u16,
    /// Those of all addresses in it, commented out or not.
    all: BTreeSet<u16>,
}

fn of_template(text: &str) -> Ports {
    let table: toml::Table = text.parse().expect("TOML");
    let status: SocketAddr = table["status"]["listen"].as_str().expect("a text").parse().expect("an address");
    let quoted = text.split('"').skip(1).step_by(2);
    let port = |value: &str| {
        let (host, port) = value.rsplit_once(':')?;
        // `sha256:1111` and the like have no host of an address before the colon, and hardware addresses more colons.
        let is_host = host.contains('.') && !host.contains(':');
        is_host.then(|| port.parse().ok()).flatten()
    };
    Ports { status: status.port(), all: quoted.filter_map(port).collect() }
}

fn numbers(text: &str) -> BTreeSet<u16> {
    text.split(|letter: char| !letter.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
}

/// The rows of the table: the role, and the numbers in its cells and in the last one.
fn rows() -> Vec<(String, BTreeSet<u16>, BTreeSet<u16>)> {
    let page = fs::read_to_string(Path::new(GUIDE).join("install.md")).expect("the page");
    let table = page.split("\n## Ports\n").nth(1).expect("the section").split("\n## ").next().expect("its text");
    let row = |line: &str| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let role = cells[0].strip_prefix('`')?.split('`').next()?;
        Some((role.to_owned(), numbers(&cells[1..].join(" ")), numbers(cells.last()?)))
    };
    table.lines().filter(|line| line.starts_with("| `")).filter_map(row).collect()
}

#[test]
fn the_table_has_the_ports_of_every_template_and_no_two_status_pages_share_one() {
    let rows = rows();
    let mut pages = BTreeMap::new();
    for role in ROLES {
        let parties: &[u8] = if role.name == "rs" { &[1, 2] } else { &[1] };
        for party in parties {
            let name = if role.name == "rs" { format!("rs --party {party}") } else { role.name.to_owned() };
            let ports = of_template(&(role.template)(*party));
            let named: Vec<_> = rows.iter().filter(|(of, ..)| *of == name).collect();
            assert!(!named.is_empty(), "{name} has no row");
            let written: BTreeSet<u16> = named.iter().flat_map(|(_, all, _)| all.iter().copied()).collect();
            let missing: Vec<_> = ports.all.difference(&written).collect();
            assert!(missing.is_empty(), "{name}: {missing:?} are in its template and not in the table");
            for (_, _, status) in named {
                assert_eq!(*status, BTreeSet::from([ports.status]), "the status page of {name}");
            }
            if let Some(other) = pages.insert(ports.status, name.clone()) {
                panic!("{name} and {other} have one port for their status pages, {}", ports.status);
            }
        }
    }
    let known: BTreeSet<&String> = pages.values().collect();
    assert!(rows.iter().all(|(role, ..)| known.contains(role)), "a row is of no role");
}
