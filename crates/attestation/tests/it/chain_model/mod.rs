//! A model of the chain as a bounded search: what an adversary of one or two corrupt ASes can make honest ones believe.
//!
//! The model restates the rules by itself and calls nothing of the product. `docs/attestation-security.md` says what it shows.
//!
//! KCX, model: a search for all that one or two corrupt ASes can make others accept, among up to five, with fields and
//! rules left out: in version 1 an opening transplanted, a filtered prefix, nothing else; in version 2 the four
//! exclusions of `docs/attestation-security.md`; an attack for each field and rule that is needed.
#![allow(clippy::print_stdout, reason = "what is found is printed for the reader of the test")]

mod claims;
mod format;
mod search;
mod term;
mod world;
mod worlds;

use std::collections::BTreeMap;

use claims::{Attack, Exclusion, Verdict, Violation, describe, is_confirmed, violations};
use format::{Field, Format, Rule};
use search::{Chain, Search};
use world::{BOTH, Path, Role, World};
use worlds::{Extent, random_policies, worlds};

/// Violations of one world that are tried before none of it counts as confirmed.
const MAX_TRIES: usize = 64;

/// How many violations of each kind the worlds have, and how many worlds there are. Confirmed or not: in version 2 every
/// signature stands for one export, so that even what is not confirmed would be a mistake.
fn sweep(format: &Format, worlds: impl IntoIterator<Item = World>) -> (BTreeMap<Verdict, usize>, usize) {
    let (mut found, mut count) = (BTreeMap::new(), 0);
    for world in worlds {
        let search = Search::run(&world, format);
        for violation in violations(&search, format) {
            *found.entry(violation.verdict).or_default() += 1;
        }
        count += 1;
    }
    (found, count)
}

/// The first violation of a kind that is wanted, confirmed, in the smallest world that has one.
fn find(
    format: &Format,
    worlds: impl IntoIterator<Item = World>,
    is_wanted: impl Fn(&World, &Violation) -> bool,
) -> Option<(Verdict, String)> {
    worlds.into_iter().find_map(|world| {
        let search = Search::run(&world, format);
        let found = violations(&search, format);
        let mut wanted = found.iter().filter(|violation| is_wanted(&world, violation)).take(MAX_TRIES);
        let confirmed = wanted.find(|violation| is_confirmed(&world, format, violation))?;
        Some((confirmed.verdict, describe(&search, confirmed)))
    })
}

fn find_attack(format: &Format, worlds: impl IntoIterator<Item = World>) -> Option<Attack> {
    let is_attack = |_: &World, violation: &Violation| matches!(violation.verdict, Verdict::Attack(_));
    let (verdict, story) = find(format, worlds, is_attack)?;
    println!("{story}");
    match verdict {
        Verdict::Attack(attack) => Some(attack),
        Verdict::Excluded(_) => None,
    }
}

fn exclusions() -> Vec<Verdict> {
    Exclusion::ALL.map(Verdict::Excluded).to_vec()
}

/// What is not accepted cannot be violated.
#[test]
fn honest_routes_are_accepted_in_both_versions() {
    let roles = [Role::Registered, Role::Unregistered, Role::Registered, Role::Corrupt];
    let plain = World::new(&roles);
    let many = World { many: true, direct: false, ..plain.clone() };
    let exchange = World { members: 0b1111, ..plain.clone() };
    for version in [1, 2] {
        for world in [&plain, &many, &exchange] {
            let format = Format::version(version);
            let search = Search::run(world, &format);
            let is_whole = |chain: &Chain| chain.is_adversarys && chain.path == Path::of(&[0, 1, 2]);
            let of_honest = (1..search.chains.len()).filter(|chain| is_whole(&search.chains[*chain]));
            let mut of_honest =
                of_honest.filter(|chain| search.hops(*chain).iter().all(|hop| !search.exports(hop).is_empty()));
            assert!(of_honest.any(|chain| search.chains[chain].prefixes == BOTH), "version {version}: {world:?}");
        }
    }
}

/// The shortest attack of a kind on version 1 by which a corrupt AS passes for the next.
fn attack_on_version_1(kind: Attack) -> Option<String> {
    let is_wanted =
        |world: &World, found: &Violation| found.verdict == Verdict::Attack(kind) && world.is_corrupt(found.claim.next);
    find(&Format::version(1), worlds(Extent::Short), is_wanted).map(|(_, story)| story)
}

#[test]
fn in_version_1_a_neighbour_puts_its_opening_into_a_route_that_it_was_not_given() {
    let story = attack_on_version_1(Attack::Neighbour).expect("the attack");
    println!("{story}");
    assert!(story.contains("an opening of the tree of all neighbours"));
}

#[test]
fn in_version_1_a_prefix_that_a_transit_filtered_verifies_behind_it() {
    println!("{}", attack_on_version_1(Attack::Prefix).expect("the attack"));
}

#[test]
fn version_1_has_no_other_attacks() {
    let (found, count) = sweep(&Format::version(1), worlds(Extent::Short));
    println!("{count} worlds: {found:?}");
    let expected = [Attack::Prefix, Attack::Neighbour].map(Verdict::Attack);
    assert_eq!(found.into_keys().collect::<Vec<_>>(), [exclusions(), expected.to_vec()].concat());
}

fn assert_only_exclusions(worlds: impl IntoIterator<Item = World>) {
    let (found, count) = sweep(&Format::version(2), worlds);
    println!("{count} worlds: {found:?}");
    assert_eq!(found.into_keys().collect::<Vec<_>>(), exclusions());
}

#[test]
fn version_2_proves_every_export_but_for_the_exclusions_of_the_design() {
    assert_only_exclusions(worlds(Extent::Short));
}

#[test]
#[ignore = "minutes: 22,860 worlds"]
fn version_2_proves_every_export_in_all_worlds_of_the_model() {
    assert_only_exclusions(worlds(Extent::Long));
}

#[test]
fn version_2_proves_every_export_under_random_policies() {
    let (found, count) = sweep(&Format::version(2), random_policies(500));
    println!("{count} worlds: {found:?}");
    assert!(found.into_keys().all(|verdict| exclusions().contains(&verdict)));
}

#[test]
fn every_exclusion_of_the_design_is_found() {
    for exclusion in exclusions() {
        let (_, story) =
            find(&Format::version(2), worlds(Extent::Short), |_, found| found.verdict == exclusion).expect("found");
        println!("{story}");
    }
}

#[test]
fn a_field_that_is_not_signed_can_be_forged() {
    let cases = [
        (Field::Bitmap, Attack::Prefix),
        (Field::List, Attack::Prefix),
        (Field::NextAsn, Attack::Neighbour),
        (Field::NextKeys, Attack::Key),
        (Field::SlotAsn, Attack::Neighbour),
        (Field::Previous, Attack::Path),
        (Field::Skipped, Attack::Path),
        (Field::Prepend, Attack::Prepend),
        (Field::Times, Attack::Expired),
        (Field::BurstContent, Attack::Neighbour),
    ];
    for (field, attack) in cases {
        println!("without {field:?}");
        assert_eq!(find_attack(&Format::without(&[field]), worlds(Extent::Short)), Some(attack), "without {field:?}");
    }
}

#[test]
fn a_rule_that_is_not_checked_can_be_broken() {
    let cases =
        [(Rule::BitmapsShrink, Attack::Prefix), (Rule::EveryBitmap, Attack::Prefix), (Rule::KeyOfProfile, Attack::Key)];
    for (rule, attack) in cases {
        println!("without {rule:?}");
        assert_eq!(find_attack(&Format::ignoring(rule), worlds(Extent::Short)), Some(attack), "without {rule:?}");
    }
}

fn small_worlds() -> impl Iterator<Item = World> {
    worlds(Extent::Short).take_while(|world| world.roles.len() < 5)
}

/// What these fields say follows from others: index, signer and AS from the hash before the hop, with what the hop before commits to and
/// with keys that one AS alone has; what the commitment is, from its label. They are signed so that no proof depends on that.
#[test]
fn fields_that_follow_from_others_bind_nothing_alone_or_together() {
    let fields = [Field::Index, Field::Signer, Field::IsRoot, Field::Asn, Field::Version];
    let (found, count) = sweep(&Format::without(&fields), small_worlds());
    println!("{count} worlds: {found:?}");
    assert_eq!(found.into_keys().collect::<Vec<_>>(), exclusions());
}

/// The hop as it stands has no AS number, and the content has no signature: either tells later hops whose hop came before.
#[test]
fn the_chain_hash_binds_the_signer_by_its_number_or_its_signature() {
    let (found, _) = sweep(&Format::without(&[Field::Octets]), small_worlds());
    assert_eq!(found.into_keys().collect::<Vec<_>>(), exclusions());
    let without = Format::without(&[Field::Octets, Field::Asn]);
    assert_eq!(find_attack(&without, worlds(Extent::Short)), Some(Attack::Path));
}

/// While origins sign by both versions, nothing of the one may open in the other.
#[test]
fn the_version_keeps_openings_of_version_1_out() {
    let both = || small_worlds().filter(|world| world.many).map(|world| World { also_version_1: true, ..world });
    let opens = Format::ignoring(Rule::SlotsOnly);
    assert_eq!(sweep(&opens, both()).0.into_keys().collect::<Vec<_>>(), exclusions());
    let without = Format::without(&[Field::Version]).and_ignoring(Rule::SlotsOnly);
    assert_eq!(find_attack(&without, both()), Some(Attack::Neighbour));
    assert_eq!(sweep(&Format::without(&[Field::Version]), both()).0.into_keys().collect::<Vec<_>>(), exclusions());
}
