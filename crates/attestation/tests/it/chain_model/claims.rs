//! What a hop is taken to prove, and what the design excludes from it.

use std::collections::HashSet;

use super::format::{Format, Rule};
use super::search::{ChainId, Export, Hop, Search};
use super::term::{Key, Leaf, Shape};
use super::world::{Asn, BOTH, Claim, P, Path, PrefixSet, Q, World};

/// What no chain can exclude.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum Exclusion {
    /// The export was withdrawn, and its signature has not expired.
    Replay,
    /// A hop of the adversary named a key of its own for an AS that registered none.
    KeyOfIssuer,
    /// The AS announced to all slots of an exchange, of which the next AS has one.
    Exchange,
    /// A corrupt AS signed as the neighbour of an AS with which the other corrupt AS has a session, or which is the other.
    TwoCorrupt,
}

impl Exclusion {
    pub(super) const ALL: [Self; 4] = [Self::Replay, Self::KeyOfIssuer, Self::Exchange, Self::TwoCorrupt];
}

/// In what an accepted route differs from what was exported.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum Attack {
    /// The prefix was not exported.
    Prefix,
    /// The route was exported to another.
    Neighbour,
    /// Another path was exported.
    Path,
    /// The AS stands on the path more or less often.
    Prepend,
    /// The signature has expired.
    Expired,
    /// The AS never signed.
    Key,
    /// There is no such session.
    Session,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum Verdict {
    Excluded(Exclusion),
    Attack(Attack),
}

/// A hop of a route that an honest AS accepts, and what it says is not so.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Violation {
    pub(super) verdict: Verdict,
    pub(super) claim: Claim,
    pub(super) chain: ChainId,
}

/// All violations in the routes that honest ASes accept from the adversary, the shortest first, and one for each claim.
pub(super) fn violations(search: &Search<'_>, format: &Format) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut of_claim = HashSet::new();
    let mut chains: Vec<ChainId> = (1..search.chains.len()).filter(|chain| is_accepted(search, *chain)).collect();
    chains.sort_by_key(|chain| search.chains[*chain].path.len());
    for chain in chains {
        let hops = search.hops(chain);
        for prefix in [P, Q].into_iter().filter(|prefix| accepted_prefixes(search, format, chain) & prefix != 0) {
            let mut before = Path::default();
            for (index, hop) in hops.iter().enumerate() {
                before = before.join(hop.skipped);
                let claim = Claim { asn: hop.asn, before, prefix, next: hop.next, prepend: hop.prepend };
                for verdict in verdicts(search, &hops, index, &claim) {
                    if of_claim.insert((verdict, claim)) {
                        found.push(Violation { verdict, claim, chain });
                    }
                }
                before = (0..hop.prepend).fold(before, |before, _| before.and(hop.asn));
            }
        }
    }
    found
}

/// Whether some honest AS takes the chain: the named one as a whole; or one farther on as the proved part of a path, which goes on with
/// a gap, or with a hop of a suite that it does not know.
fn is_accepted(search: &Search<'_>, chain: ChainId) -> bool {
    let (Some((next, _)), of) = (search.turn(chain), &search.chains[chain]) else { return false };
    let world = search.world;
    let is_behind = |asn: Asn| asn != next && world.takes(asn) && !of.path.contains(asn);
    of.is_adversarys && !of.has_expired && (world.takes(next) || world.ases().any(is_behind))
}

fn accepted_prefixes(search: &Search<'_>, format: &Format, chain: ChainId) -> PrefixSet {
    let of = &search.chains[chain];
    // Behind the proved part there may be hops that nobody checks, with any bitmap.
    if format.checks(Rule::EveryBitmap) { of.prefixes } else { of.list }
}

/// What is wrong with a claim: for each purpose for which the hop's signature was made, at most one thing.
fn verdicts(search: &Search<'_>, hops: &[Hop], index: usize, claim: &Claim) -> Vec<Verdict> {
    let (world, hop) = (search.world, &hops[index]);
    if world.is_corrupt(hop.asn) {
        return of_corrupt(world, hops, index).into_iter().collect();
    }
    if hop.key == Key::Adversary {
        let is_issuers = !world.is_registered(hop.asn) && index > 0 && is_adversarys(world, &hops[index - 1]);
        let verdict = if is_issuers { Verdict::Excluded(Exclusion::KeyOfIssuer) } else { Verdict::Attack(Attack::Key) };
        return vec![verdict];
    }
    search.exports(hop).iter().filter_map(|export| compare(world, claim, export)).collect()
}

/// Of a corrupt AS only that it has a session with the next is claimed, where that one is proved or receives: what it says is its own
/// word.
fn of_corrupt(world: &World, hops: &[Hop], index: usize) -> Option<Verdict> {
    let (asn, next) = (hops[index].asn, hops[index].next);
    let after = hops.get(index + 1);
    let is_proved = after.map_or(world.takes(next), |after| after.asn == next);
    if world.has_session(asn, next) || !is_proved {
        return None;
    }
    let of_other = |other: Asn| other != asn && world.is_corrupt(other) && world.has_session(other, next);
    if after.is_some_and(|after| after.key == Key::Adversary) && !world.is_registered(next) {
        Some(Verdict::Excluded(Exclusion::KeyOfIssuer))
    } else if world.is_corrupt(next) || world.ases().any(of_other) {
        Some(Verdict::Excluded(Exclusion::TwoCorrupt))
    } else {
        Some(Verdict::Attack(Attack::Session))
    }
}

fn is_adversarys(world: &World, hop: &Hop) -> bool {
    match hop.key {
        Key::Adversary => true,
        Key::Of(asn) => world.is_corrupt(asn),
    }
}

/// What was signed for one export as the proof of a claim.
fn compare(world: &World, claim: &Claim, export: &Export) -> Option<Verdict> {
    let attack = |attack| Some(Verdict::Attack(attack));
    if export.asn != claim.asn || export.before != claim.before {
        return attack(Attack::Path);
    }
    if export.prefixes & claim.prefix == 0 {
        return attack(Attack::Prefix);
    }
    let to_slot = export.next.is_none() && world.is_member(claim.next);
    if export.next != Some(claim.next) && !to_slot {
        return attack(Attack::Neighbour);
    }
    if export.prepend != claim.prepend {
        return attack(Attack::Prepend);
    }
    if export.expired {
        return attack(Attack::Expired);
    }
    if export.withdrawn {
        return Some(Verdict::Excluded(Exclusion::Replay));
    }
    to_slot.then_some(Verdict::Excluded(Exclusion::Exchange))
}

/// Whether the violation is still found where what it claims was never exported. A signature may have been made for the very
/// export, and for another as well; then the violation is one only if the other suffices.
pub(super) fn is_confirmed(world: &World, format: &Format, violation: &Violation) -> bool {
    let also_at_exchange = match violation.verdict {
        // What these say is that it was exported once.
        Verdict::Attack(Attack::Expired) | Verdict::Excluded(Exclusion::Replay | Exclusion::TwoCorrupt) => return true,
        Verdict::Excluded(Exclusion::Exchange) => false,
        _ => true,
    };
    let without = World { not_exported: Some((violation.claim, also_at_exchange)), ..world.clone() };
    let search = Search::run(&without, format);
    violations(&search, format).iter().any(|again| again.claim == violation.claim && again.verdict == violation.verdict)
}

/// The violation as a story.
pub(super) fn describe(search: &Search<'_>, violation: &Violation) -> String {
    let Violation { verdict, claim, chain } = violation;
    let of = &search.chains[*chain];
    let roles = search.world.ases().map(|asn| format!("{} {:?}", name(asn), search.world.role(asn)));
    let roles: Vec<String> = roles.collect();
    let mut text = format!(
        "{verdict:?} among {}\n  accepted: {} by the path {}, list {}\n  but {} does not export {} with {} before it to {}\n",
        roles.join(", "),
        set(claim.prefix),
        names(of.path),
        set(of.list),
        name(claim.asn),
        set(claim.prefix),
        if claim.before.len() == 0 { "nothing".to_owned() } else { names(claim.before) },
        name(claim.next),
    );
    for hop in search.hops(*chain) {
        text += &describe_hop(search, &hop);
    }
    text
}

fn describe_hop(search: &Search<'_>, hop: &Hop) -> String {
    let leaf = match hop.leaf {
        Leaf::Keyless => "no keys".to_owned(),
        Leaf::Key(Key::Adversary) => "a key of the adversary's".to_owned(),
        Leaf::Key(Key::Of(asn)) => format!("keys of {}", name(asn)),
    };
    let shape = match hop.shape {
        Shape::Direct => "signed for it",
        Shape::Burst(..) => "a leaf of a burst",
        Shape::Directory(_) => "with the opening of its slot",
        Shape::Neighbours(..) => "with an opening of the tree of all neighbours",
    };
    let bitmap = if hop.bitmap == 0 { String::new() } else { format!(", bitmap {}", set(hop.bitmap)) };
    let exports = search.exports(hop).iter().map(|export| {
        let next = export.next.map_or("the exchange".to_owned(), name);
        format!("{} to {next}", set(export.prefixes))
    });
    let exports: Vec<String> = exports.collect();
    let made_for = if exports.is_empty() { "made by the adversary".to_owned() } else { exports.join(", ") };
    format!(
        "  hop of {}: next {} with {leaf}, {shape}{bitmap}; signed to export: {made_for}\n",
        name(hop.asn),
        name(hop.next)
    )
}

fn name(asn: Asn) -> String {
    format!("AS{}", asn + 1)
}

fn names(path: Path) -> String {
    path.entries().iter().map(|asn| name(*asn)).collect::<Vec<_>>().join(" ")
}

fn set(prefixes: PrefixSet) -> &'static str {
    match prefixes {
        P => "{P}",
        Q => "{Q}",
        BOTH => "{P, Q}",
        _ => "{}",
    }
}
