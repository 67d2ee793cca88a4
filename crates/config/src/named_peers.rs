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

/// So many ASes of one place are named, and the others counted.
const NAMED_AT_MOST: usize = 5;

/// An AS that a rule names, and where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamedPeer {
    pub asn: Asn,
    /// Such as "`hide_from` of rule 2 (group `rivals`)".
    pub place: String,
    span: Range<usize>,
}

/// Of the ASes that a rule, or a group in it, names, those that no member has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownPeers<'a> {
    pub asns: Vec<Asn>,
    pub place: &'a str,
    span: Range<usize>,
}

impl UnknownPeers<'_> {
    /// The first few of them, and how many more there are.
    #[must_use]
    pub fn names(&self) -> String {
        let mut names: Vec<String> = self.asns.iter().take(NAMED_AT_MOST).map(ToString::to_string).collect();
        let more = self.asns.len() - names.len();
        names.extend((more > 0).then(|| format!("{more} more")));
        match names.split_last() {
            Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
            _ => names.concat(),
        }
    }

    /// What is wrong with them.
    #[must_use]
    pub fn describe(&self, set: u64) -> String {
        let expected = if self.asns.len() == 1 { "the AS number of a member" } else { "AS numbers of members" };
        format!("no member has {} in member set {set}, expected {expected} in {}", self.names(), self.place)
    }
}

/// Those of these peers that no active slot of the set has, each once.
pub fn unknown<'a>(named: &'a [NamedPeer], set: &MemberSet) -> Vec<&'a NamedPeer> {
    let known: BTreeSet<Asn> = set.iter().filter(|(_, slot)| slot.active).map(|(_, slot)| slot.asn).collect();
    let mut seen = BTreeSet::new();
    named.iter().filter(|peer| !known.contains(&peer.asn) && seen.insert(peer.asn)).collect()
}

/// The same for each place, in the order of the places.
pub fn by_place<'a>(unknown: impl IntoIterator<Item = &'a NamedPeer>) -> Vec<UnknownPeers<'a>> {
    let mut all: Vec<UnknownPeers<'a>> = Vec::new();
    for NamedPeer { asn, place, span } in unknown {
        match all.last_mut().filter(|last| last.place == place) {
            Some(last) => last.asns.push(*asn),
            None => all.push(UnknownPeers { asns: vec![*asn], place, span: span.clone() }),
        }
    }
    all
}

/// The same as warnings of `check`.
pub(super) fn faults(file: &MemberFile, set: &MemberSet) -> Vec<Fault> {
    let fault = |peers: UnknownPeers<'_>| Fault::at(peers.span.clone(), peers.describe(set.number)).help(HELP);
    by_place(unknown(&file.named_peers(), set)).into_iter().map(fault).collect()
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

    #[test]
    fn the_ases_of_one_place_are_told_together_and_of_many_the_first() {
        let named = |asns: Range<u32>, place: &str| -> Vec<NamedPeer> {
            asns.map(|asn| NamedPeer { asn: Asn(asn), place: place.to_owned(), span: 0..1 }).collect()
        };
        let all = [named(1..3, "rule 1"), named(3..4, "rule 2"), named(4..104, "rule 2 (group `a`)")].concat();
        let names: Vec<String> = by_place(&all).iter().map(UnknownPeers::names).collect();
        assert_eq!(names, ["AS1 and AS2", "AS3", "AS4, AS5, AS6, AS7, AS8 and 95 more"]);
    }
}
