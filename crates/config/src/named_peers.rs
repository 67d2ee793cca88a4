//! The ASes that a member's rules name, against the member set: a number that no member has is probably a typing error, and a rule that
//! was to hide a route from it hides it from nobody.

use std::collections::BTreeSet;
use std::ops::Range;

use wayleave_core::Asn;
use wayleave_route_server::directory::MemberSet;
use wayleave_route_server::policy::config::{Announce, OneOrMany};
use wayleave_route_server::policy::pattern::PeerName;

use super::Fault;
use super::member::MemberFile;

/// What to do about it.
pub const HELP: &str =
    "correct the number; where its member has left, or has not joined yet, the rule does nothing until it does";

/// An AS that a rule names, and where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamedPeer {
    pub asn: Asn,
    /// Such as "`hide_from` of rule 2 (group `rivals`)".
    pub place: String,
    span: Range<usize>,
}

impl NamedPeer {
    /// What is wrong with it.
    #[must_use]
    pub fn unknown(&self, set: u64) -> String {
        let Self { asn, place, .. } = self;
        format!("no member has {asn} in member set {set}, expected the AS number of a member in {place}")
    }
}

/// Those of these peers that no active slot of the set has, each once.
pub fn unknown<'a>(named: &'a [NamedPeer], set: &MemberSet) -> Vec<&'a NamedPeer> {
    let known: BTreeSet<Asn> = set.iter().filter(|(_, slot)| slot.active).map(|(_, slot)| slot.asn).collect();
    let mut seen = BTreeSet::new();
    named.iter().filter(|peer| !known.contains(&peer.asn) && seen.insert(peer.asn)).collect()
}

/// The same as warnings of `check`.
pub(super) fn faults(file: &MemberFile, set: &MemberSet) -> Vec<Fault> {
    let fault = |peer: &NamedPeer| Fault::at(peer.span.clone(), peer.unknown(set.number)).help(HELP);
    unknown(&file.named_peers(), set).into_iter().map(fault).collect()
}

impl MemberFile {
    /// All ASes that the rules name, in the order of the rules.
    #[must_use]
    pub fn named_peers(&self) -> Vec<NamedPeer> {
        let mut named = Vec::new();
        for (number, rule) in (1..).zip(&self.rule) {
            let rule = rule.get_ref();
            let mut put = |key: &str, span: Range<usize>, names: &[PeerName]| {
                for name in names {
                    let (asns, group) = match name {
                        PeerName::As(asn) => (std::slice::from_ref(asn), String::new()),
                        PeerName::Group(group) => {
                            (self.groups.get(group).map_or(&[][..], Vec::as_slice), format!(" (group `{group}`)"))
                        }
                    };
                    named.extend(asns.iter().map(|asn| NamedPeer {
                        asn: *asn,
                        place: format!("`{key}` of rule {number}{group}"),
                        span: span.clone(),
                    }));
                }
            };
            if let Some(list) = &rule.hide_from {
                put("hide_from", list.span(), &list.get_ref().0);
            }
            if let Some(announce) = &rule.announce
                && let Announce::Only(names) = announce.get_ref()
            {
                put("announce", announce.span(), names);
            }
            if let Some(list) = &rule.peer {
                put("peer", list.span(), &list.get_ref().0);
            }
            if let Some(list) = &rule.peer_group {
                let OneOrMany(groups) = list.get_ref();
                let names: Vec<PeerName> = groups.iter().cloned().map(PeerName::Group).collect();
                put("peer_group", list.span(), &names);
            }
        }
        named
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Source, member};

    #[test]
    fn rules_name_ases_by_number_and_by_group() {
        let rules = "[groups]\nrivals = [64500, 64501]\n[[rule]]\ndirection = \"export\"\nhide_from = [64489, \"rivals\"]\n\
                     [[rule]]\ndirection = \"import\"\npeer_group = \"rivals\"\nlocal_pref = 50\n";
        let text = (member::ROLE.template)(1) + rules;
        let file: MemberFile = Source::of_text("alpha.toml", &text).parse().expect("a configuration");
        let named = file.named_peers();
        let all: Vec<(u32, &str)> = named.iter().map(|peer| (peer.asn.0, peer.place.as_str())).collect();
        assert_eq!(
            all,
            [
                (64_489, "`hide_from` of rule 1"),
                (64_500, "`hide_from` of rule 1 (group `rivals`)"),
                (64_501, "`hide_from` of rule 1 (group `rivals`)"),
                (64_500, "`peer_group` of rule 2 (group `rivals`)"),
                (64_501, "`peer_group` of rule 2 (group `rivals`)"),
            ]
        );
    }
}
