//! arouteserver's `clients.yml`.

use std::collections::BTreeMap;

use wayleave_core::Asn;

use super::settings;
use super::tree::Node;
use super::view::View;
use super::{Entry, Faults, MAX_OF_ENTRY, shown};

pub(super) fn read(tree: &Node, faults: &mut Faults) -> Vec<Entry> {
    let top = View::top(tree);
    let shared = as_sets_of_ases(&top, faults);
    let Some(clients) = top.get("clients") else { return Vec::new() };
    let mut pools: BTreeMap<(Asn, Option<String>), usize> = BTreeMap::new();
    let mut entries = Vec::new();
    for client in clients.items(faults) {
        entries.extend(entry(&client, &shared, &mut pools, faults));
    }
    entries
}

/// `asns`: what all clients of an AS have that say nothing else.
fn as_sets_of_ases(top: &View<'_>, faults: &mut Faults) -> BTreeMap<Asn, Vec<String>> {
    let mut shared = BTreeMap::new();
    let Some(asns) = top.get("asns") else { return shared };
    for (name, settings) in asns.entries(faults) {
        let Ok(asn) = name.parse::<Asn>() else {
            faults.at(&settings.place(), format!("`{}`, expected an AS number as AS64497", shown(name)));
            continue;
        };
        if let Some(sets) = settings.get("as_sets") {
            shared.insert(asn, settings::as_sets(&sets, &mut Vec::new()));
        }
    }
    shared
}

fn entry(
    client: &View<'_>,
    shared: &BTreeMap<Asn, Vec<String>>,
    pools: &mut BTreeMap<(Asn, Option<String>), usize>,
    faults: &mut Faults,
) -> Option<Entry> {
    if !client.is_map() {
        faults.at(&client.place(), "expected a client with `asn` and `ip`");
        return None;
    }
    let asn = match client.get("asn") {
        Some(asn) => asn.asn(faults),
        None => {
            faults.at(&client.place(), "no `asn`");
            None
        }
    };
    let mut addresses = Vec::new();
    match client.get("ip") {
        Some(list) => {
            for item in list.one_or_many().into_iter().take(MAX_OF_ENTRY + 1) {
                addresses.extend(item.address(faults).map(|address| (address, item.place())));
            }
        }
        None => faults.at(&client.place(), "no `ip`"),
    }
    let description = client.get("description");
    let name = description.and_then(|text| text.text().map(shown)).filter(|text| !text.is_empty());
    // A client without an AS number is a fault already.
    let asn = asn?;
    let next = pools.len();
    let pool = *pools.entry((asn, name.clone())).or_insert(next);
    let mut entry = Entry {
        place: client.place(),
        asn,
        name,
        pool,
        addresses,
        next_hops: Vec::new(),
        limits: [None, None],
        as_sets: Vec::new(),
        refused: Vec::new(),
        not_taken: Vec::new(),
    };
    if let Some(cfg) = client.get("cfg") {
        settings::read(&cfg, &mut entry, faults);
    }
    if entry.as_sets.is_empty() {
        entry.as_sets = shared.get(&asn).cloned().unwrap_or_default();
    }
    for (key, value) in client.entries(faults) {
        if matches!(key, "asn" | "ip" | "description" | "cfg") || value.is_unset() {
            continue;
        }
        entry.leave(key, &value);
    }
    entry.bounded(faults)
}
