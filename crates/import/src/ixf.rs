//! The member export of IX-F (the Euro-IX JSON schema), versions 0.6 to 1.0.

use std::collections::{BTreeMap, BTreeSet};

use super::settings;
use super::tree::Node;
use super::view::View;
use super::{Entry, Faults, ImportError, Lan, Selection, shown};

const VERSIONS: [&str; 5] = ["0.6", "0.7", "0.8", "1", "1.0"];
/// States of a connection over which packets go, as exports name them.
const CONNECTED: [&str; 3] = ["active", "connected", "operational"];

pub(super) struct Found {
    pub entries: Vec<Entry>,
    /// Addresses that were left out, by the reason.
    pub left_out: BTreeMap<String, usize>,
}

struct Reader<'a> {
    selection: &'a Selection,
    found: Found,
    /// The LANs on which there are addresses of a family.
    lans: [BTreeMap<Lan, usize>; 2],
    pools: usize,
}

pub(super) fn read(tree: &Node, selection: &Selection, faults: &mut Faults) -> Result<Found, ImportError> {
    let top = View::top(tree);
    match top.get("version") {
        Some(version) if version.text().is_some_and(|text| VERSIONS.contains(&text)) => {}
        Some(version) => {
            let text = shown(version.text().unwrap_or("no text"));
            faults.at(&version.place(), format!("version `{text}` is not known, expected 0.6, 0.7, 0.8 or 1.0"));
        }
        None => faults.at(&top.place(), "no `version`, expected 0.6, 0.7, 0.8 or 1.0"),
    }
    let found = Found { entries: Vec::new(), left_out: BTreeMap::new() };
    let mut reader = Reader { selection, found, lans: [BTreeMap::new(), BTreeMap::new()], pools: 0 };
    if let Some(list) = top.get("member_list") {
        for member in list.items(faults) {
            reader.member(&member, faults);
        }
    }
    let [four, six] = &reader.lans;
    let all: BTreeSet<&Lan> = four.keys().chain(six.keys()).collect();
    let exchanges: BTreeSet<&String> = all.iter().map(|(ixp, _)| ixp).collect();
    if four.len() > 1 || six.len() > 1 || exchanges.len() > 1 {
        let count = |lan: &Lan| four.get(lan).unwrap_or(&0) + six.get(lan).unwrap_or(&0);
        return Err(ImportError::SeveralLans(all.into_iter().map(|lan| (lan.clone(), count(lan))).collect()));
    }
    Ok(reader.found)
}

impl Reader<'_> {
    fn leave_out(&mut self, why: &str, count: usize) {
        if count > 0 {
            *self.found.left_out.entry(why.to_owned()).or_default() += count;
        }
    }

    fn member(&mut self, member: &View<'_>, faults: &mut Faults) {
        let asn = match member.get("asnum") {
            Some(asn) => asn.asn(faults),
            None => {
                faults.at(&member.place(), "no `asnum`");
                None
            }
        };
        let name = member.get("name");
        let name = name.and_then(|name| name.text().map(shown)).filter(|name| !name.is_empty());
        let kind = member.get("member_type");
        let is_route_server = kind.is_some_and(|kind| kind.text() == Some("routeserver"));
        let Some(connections) = member.get("connection_list") else { return };
        for connection in connections.items(faults) {
            let pool = self.pools;
            self.pools += 1;
            let state = connection.get("state");
            let state =
                state.and_then(|state| state.text().map(str::to_ascii_lowercase)).filter(|text| !text.is_empty());
            let is_down = state.as_deref().is_some_and(|state| !CONNECTED.contains(&state));
            let ixp = connection.get("ixp_id").and_then(|id| id.text().map(shown)).unwrap_or_default();
            let Some(lans) = connection.get("vlan_list") else { continue };
            for lan in lans.items(faults) {
                let count =
                    ["ipv4", "ipv6"].iter().filter(|family| lan.get(family).is_some_and(|at| at.is_map())).count();
                let vlan = lan.get("vlan_id").and_then(|id| id.text().map(shown)).unwrap_or_default();
                let selection = self.selection;
                if selection.ixp.as_ref().is_some_and(|only| *only != ixp)
                    || !(selection.vlans.is_empty() || selection.vlans.contains(&vlan))
                {
                    self.leave_out("on other LANs", count);
                } else if is_down {
                    self.leave_out("of connections that are not active", count);
                } else if is_route_server {
                    self.leave_out("of the exchange's own route servers", count);
                } else {
                    self.lan(&lan, (ixp.clone(), vlan), (asn, &name, pool), faults);
                }
            }
        }
    }

    /// A connection's addresses on one LAN.
    fn lan(
        &mut self,
        lan: &View<'_>,
        on: Lan,
        (asn, name, pool): (Option<wayleave_core::Asn>, &Option<String>, usize),
        faults: &mut Faults,
    ) {
        let (mut addresses, mut limits, mut as_sets) = (Vec::new(), [None, None], Vec::new());
        let mut not_taken = Vec::new();
        for (family, key) in ["ipv4", "ipv6"].into_iter().enumerate() {
            let Some(at) = lan.get(key) else { continue };
            if !at.is_map() {
                // PHP writes an empty list where there is no entry.
                if !at.is_unset() {
                    faults.at(&at.place(), "expected `address` and what belongs to it");
                }
                continue;
            }
            let uses_server = at.get("routeserver").map(|value| value.truth(faults));
            if !self.selection.all && uses_server != Some(Some(true)) {
                // A value that is no truth value is a fault.
                let says_no = uses_server.is_some();
                self.leave_out(
                    if says_no {
                        "without a session with the route server"
                    } else {
                        "that say nothing of the route server"
                    },
                    1,
                );
                continue;
            }
            let Some(value) = at.get("address") else {
                faults.at(&at.place(), "no `address`");
                continue;
            };
            let Some(address) = value.address(faults) else { continue };
            if address.is_ipv6() != (family == 1) {
                faults.at(&value.place(), format!("`{address}` is no address of {key}"));
                continue;
            }
            addresses.push((address, value.place()));
            *self.lans[family].entry(on.clone()).or_default() += 1;
            limits[family] = at.get("max_prefix").and_then(|value| settings::limit(&value, faults));
            if let Some(macros) = at.get("as_macro") {
                for set in settings::as_sets(&macros, &mut not_taken) {
                    if !as_sets.contains(&set) {
                        as_sets.push(set);
                    }
                }
            }
        }
        // A member without an AS number is a fault already.
        let Some(asn) = asn.filter(|_| !addresses.is_empty()) else { return };
        let entry = Entry {
            place: lan.place(),
            asn,
            name: name.clone(),
            pool,
            addresses,
            next_hops: Vec::new(),
            limits,
            as_sets,
            refused: Vec::new(),
            not_taken,
        };
        self.found.entries.extend(entry.bounded(faults));
    }
}
