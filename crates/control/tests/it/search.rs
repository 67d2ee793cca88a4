//! The search for paths against one by brute force, which restates what a path is.
//!
//! ICC-03: 16, 17 and 10,000 partial paths, loops, a dense graph: refused, or the links looked at stay below the limit.
//! ICC-05: links that one end lists: no path leads over them.
//! ICC-06: 1,000 random topologies (`WAYLEAVE_TOPOLOGIES`) against a search that tries every path: every path up to the
//! cap, the shortest first, and none with a valley.

use std::collections::{BTreeMap, BTreeSet};

use wayleave_control::advert::{Advert, Relationship};
use wayleave_control::database::Database;
use wayleave_control::labels::Labels;
use wayleave_control::path::{PathFault, build};
use wayleave_control::topology::{
    MAX_HOPS, MAX_PATHS, MAX_STEPS, PartialError, PartialPath, Phase, SearchResult, Step, Topology,
};
use wayleave_core::IdentityKey;

use super::common::{
    Edge, NOW, Random, advert, cases, database, identity, realm, signed_advert, signed_membership, small,
};

/// The model: what one node is to the other, from both ends.
type Links = BTreeMap<(u32, u32), Relationship>;

fn links(edges: &[Edge]) -> Links {
    let both = |(from, to, what): &Edge| [((*from, *to), *what), ((*to, *from), what.reversed())];
    edges.iter().flat_map(both).collect()
}

/// Valley-free, restated over the whole path at once: some steps to providers, then at most one to a peer, then some to
/// customers.
fn is_valley_free(path: &[u32], links: &Links) -> bool {
    let steps: Vec<Relationship> = path.windows(2).map(|pair| links[&(pair[0], pair[1])]).collect();
    let up = steps.iter().take_while(|step| **step == Relationship::Provider).count();
    let rest = &steps[up..];
    let down = rest.iter().rev().take_while(|step| **step == Relationship::Customer).count();
    let over = &rest[..rest.len() - down];
    over.is_empty() || over == [Relationship::Peer]
}

/// Every path without a loop from `from` to `to` over at most `most` nodes, by trying all.
fn all_paths(from: u32, to: u32, links: &Links, most: usize) -> Vec<Vec<u32>> {
    let mut found = Vec::new();
    let mut neighbours: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    links.keys().for_each(|(node, next)| neighbours.entry(*node).or_default().push(*next));
    let mut open = vec![vec![from]];
    while let Some(path) = open.pop() {
        let last = *path.last().expect("never empty");
        if last == to {
            found.push(path);
            continue;
        }
        if path.len() == most {
            continue;
        }
        for next in neighbours.get(&last).into_iter().flatten() {
            if !path.contains(next) {
                let mut longer = path.clone();
                longer.push(*next);
                // No valley later makes good one that is there already.
                if is_valley_free(&longer, links) {
                    open.push(longer);
                }
            }
        }
    }
    found.retain(|path| path.len() > 1);
    found
}

fn numbers(found: &SearchResult, count: u32) -> Vec<Vec<u32>> {
    let by_key: BTreeMap<IdentityKey, u32> = (0..count).map(|node| (identity(node), node)).collect();
    found.paths.iter().map(|path| path.iter().map(|node| by_key[node]).collect()).collect()
}

/// Random links: any node may be anything to any other, cycles of providers too.
fn random_edges(random: &mut Random, count: u32) -> Vec<Edge> {
    let mut edges = Vec::new();
    let per_node = 1 + random.below(3);
    for from in 0..count {
        for to in from + 1..count {
            if random.below(u64::from(count)) < per_node {
                let what = match random.below(5) {
                    0 => Relationship::Peer,
                    1 | 2 => Relationship::Provider,
                    _ => Relationship::Customer,
                };
                edges.push((from, to, what));
            }
        }
    }
    edges
}

/// ICC-06. What the search finds in a signed database is built, too, for some.
#[test]
fn a_thousand_random_topologies_give_every_valley_free_path_and_no_other() {
    let mut random = Random(6);
    for case in 0..cases("WAYLEAVE_TOPOLOGIES", 1_000) {
        let count = 2 + random.below(11) as u32;
        let edges = random_edges(&mut random, count);
        let adverts = super::common::adverts(count, &edges);
        let there: Vec<(&Advert, bool)> = adverts.iter().map(|advert| (advert, true)).collect();
        let topology = Topology::of_adverts(&there);
        let links = links(&edges);
        let (from, to) = (random.below(count.into()) as u32, random.below(count.into()) as u32);
        let found = topology.search(&identity(from), &[], &[identity(to)], MAX_STEPS);
        assert!(!found.is_cut, "case {case}");
        let paths = numbers(&found, count);
        let mut all = if from == to { Vec::new() } else { all_paths(from, to, &links, MAX_HOPS) };
        all.sort_by_key(Vec::len);
        // As many as there are up to the cap, and of these the shortest.
        let lengths = |paths: &[Vec<u32>]| paths.iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(lengths(&paths), lengths(&all[..all.len().min(MAX_PATHS)]), "case {case}");
        let all: BTreeSet<Vec<u32>> = all.into_iter().collect();
        let different: BTreeSet<&Vec<u32>> = paths.iter().collect();
        assert_eq!(different.len(), paths.len(), "case {case}");
        assert!(paths.iter().all(|path| all.contains(path)), "case {case}: {paths:?}");
        if case % 50 == 0 {
            let database = database(count, &edges);
            assert_eq!(Topology::new(&database, NOW).search(&identity(from), &[], &[identity(to)], MAX_STEPS), found);
            for path in &found.paths {
                build(&database, &Labels::default(), &[], path, NOW).expect("a valley-free path");
            }
        }
    }
}

#[test]
fn a_link_counts_if_both_ends_list_it_alike_and_publicly() {
    let links = |change: &dyn Fn(&mut wayleave_control::advert::Advert)| {
        let mut database = Database::new(realm(0), 100);
        let mut adverts = [advert(0, &[(1, Relationship::Provider)]), advert(1, &[(0, Relationship::Customer)])];
        change(&mut adverts[1]);
        for (node, advert) in (0..).zip(&adverts) {
            database.apply_membership(signed_membership(node), NOW).expect("in order");
            database.apply_advert(signed_advert(advert, node), NOW).expect("in order");
        }
        Topology::new(&database, NOW).size().1
    };
    assert_eq!(links(&|_| {}), 2);
    assert_eq!(links(&|advert| advert.links[0].relationship = Relationship::Peer), 0);
    assert_eq!(links(&|advert| advert.links[0].relationship = Relationship::Provider), 0);
    assert_eq!(links(&|advert| advert.links[0].public = false), 0);
    assert_eq!(links(&|advert| advert.links[0].neighbour = identity(7)), 0);
    // A departure.
    assert_eq!(links(&|advert| advert.links.clear()), 0);
}

/// A link to an open node counts by what the member says alone.
#[test]
fn a_link_to_an_open_node_counts_when_the_member_lists_it_as_its_provider() {
    use wayleave_control::realm::{Membership, Roles};
    use wayleave_crypto::signed::Signed;

    type Change<'a> = &'a dyn Fn(&mut Advert, &mut Advert, &mut Membership);
    let links = |change: Change<'_>| {
        let mut database = Database::new(realm(0), 100);
        let mut adverts = [advert(0, &[(1, Relationship::Provider)]), advert(1, &[])];
        adverts[1].open = Some(super::common::endpoint("open.example.net:49252"));
        let mut open = super::common::membership(1);
        let [member, of_open] = &mut adverts;
        change(member, of_open, &mut open);
        database.apply_membership(signed_membership(0), NOW).expect("in order");
        let open = Signed::sign(&open, &super::common::realm_key(0)).expect("in order");
        database.apply_membership(open, NOW).expect("in order");
        for (node, advert) in (0..).zip(&adverts) {
            database.apply_advert(signed_advert(advert, node), NOW).expect("in order");
        }
        let topology = Topology::new(&database, NOW);
        let found = |from, to| topology.search(&identity(from), &[], &[identity(to)], MAX_STEPS).paths.len();
        let built = |nodes: [u32; 2]| build(&database, &Labels::default(), &[], &nodes.map(identity), NOW).is_ok();
        assert_eq!((found(0, 1), found(1, 0)), (usize::from(built([0, 1])), usize::from(built([1, 0]))));
        (topology.size().1, found(0, 1), found(1, 0))
    };
    assert_eq!(links(&|_, _, _| {}), (2, 1, 1));
    assert_eq!(links(&|_, open, _| open.open = None), (0, 0, 0));
    // Only as a customer, and publicly.
    for relationship in [Relationship::Peer, Relationship::Customer] {
        assert_eq!(links(&|member, _, _| member.links[0].relationship = relationship), (0, 0, 0));
    }
    assert_eq!(links(&|member, _, _| member.links[0].public = false), (0, 0, 0));
    // A node that forwards nothing is not open, whatever it says.
    assert_eq!(links(&|_, _, open| open.grants.roles = Roles::GATEWAY), (0, 0, 0));
    // What it lists itself it says itself.
    let listed = |relationship, public| {
        links(&|_, open, _| {
            open.links = advert(1, &[(0, relationship)]).links;
            open.links[0].public = public;
        })
    };
    assert_eq!(listed(Relationship::Customer, true), (2, 1, 1));
    assert_eq!(listed(Relationship::Customer, false), (0, 0, 0));
    assert_eq!(listed(Relationship::Peer, true), (0, 0, 0));
}

/// The members of an open node are not looked at one by one.
#[test]
fn a_search_over_an_open_node_costs_the_same_however_many_members_it_has() {
    let steps = |count: u32| {
        let mut adverts: Vec<Advert> =
            (0..count).map(|node| advert(node, &[(count, Relationship::Provider)])).collect();
        let mut open = advert(count, &[]);
        open.open = Some(super::common::endpoint("192.0.2.1:49252"));
        adverts.push(open);
        let there: Vec<(&Advert, bool)> =
            adverts.iter().zip(0..).map(|(advert, node)| (advert, node == count)).collect();
        let found = Topology::of_adverts(&there).search(&identity(0), &[], &[identity(count - 1)], MAX_STEPS);
        assert_eq!(numbers(&found, count + 1), [vec![0, count, count - 1]]);
        found.steps
    };
    assert_eq!(steps(200), steps(3));
}

/// ICC-06 where some nodes are open and some pass nothing on.
#[test]
fn open_nodes_and_ends_in_random_topologies_give_the_paths_that_links_listed_by_both_would() {
    let mut random = Random(38);
    for case in 0..cases("WAYLEAVE_TOPOLOGIES", 300) {
        let count = 3 + random.below(9) as u32;
        let edges = random_edges(&mut random, count);
        let adverts = super::common::adverts(count, &edges);
        let is_forwarder: Vec<bool> = (0..count).map(|_| random.below(3) > 0).collect();
        let mut open = adverts.clone();
        for node in (0..count as usize).filter(|node| is_forwarder[*node]) {
            if random.below(2) == 0 {
                // Its customers say it themselves, unless two open nodes would leave it to each other.
                open[node].open = Some(super::common::endpoint("192.0.2.1:49252"));
                open[node].links.retain(|link| link.relationship != Relationship::Customer);
            }
        }
        let topology = |adverts: &[Advert]| {
            let there: Vec<(&Advert, bool)> = adverts.iter().zip(is_forwarder.iter().copied()).collect();
            Topology::of_adverts(&there)
        };
        let (plain, open) = (topology(&adverts), topology(&open));
        assert_eq!(plain.size(), open.size(), "case {case}");
        for (from, to) in (0..count).flat_map(|from| (0..count).map(move |to| (from, to))) {
            let search = |topology: &Topology| topology.search(&identity(from), &[], &[identity(to)], MAX_STEPS);
            let (found, expected) = (search(&open), search(&plain));
            assert_eq!(found, expected, "case {case}");
            let links = links(&edges);
            let mut all = if from == to { Vec::new() } else { all_paths(from, to, &links, MAX_HOPS) };
            all.retain(|path| path[1..path.len() - 1].iter().all(|node| is_forwarder[*node as usize]));
            let paths = numbers(&found, count);
            assert_eq!(paths.len(), all.len().min(MAX_PATHS), "case {case}");
            assert!(paths.iter().all(|path| all.contains(path)), "case {case}: {paths:?}");
        }
    }
}

#[test]
fn nodes_that_are_no_forwarders_are_ends_only() {
    use wayleave_control::realm::Roles;
    let mut database = Database::new(realm(0), 100);
    let adverts = super::common::adverts(3, &[(0, 1, Relationship::Provider), (2, 1, Relationship::Provider)]);
    for (node, advert) in (0..).zip(&adverts) {
        let mut membership = super::common::membership(node);
        if node == 1 {
            membership.grants.roles = Roles::GATEWAY;
        }
        let membership = wayleave_crypto::signed::Signed::sign(&membership, &super::common::realm_key(0));
        database.apply_membership(membership.expect("in order"), NOW).expect("in order");
        database.apply_advert(signed_advert(advert, node), NOW).expect("in order");
    }
    let topology = Topology::new(&database, NOW);
    let paths = |to| topology.search(&identity(0), &[], &[identity(to)], MAX_STEPS).paths.len();
    assert_eq!((paths(1), paths(2)), (1, 0));
    let nodes = [0, 1, 2].map(identity);
    assert_eq!(build(&database, &Labels::default(), &[], &nodes, NOW).err(), Some(PathFault::Tag(1)));
}

/// A claim is `from` and each further node with the step to it.
fn partial(nodes: &[u32], steps: &[Step]) -> PartialPath {
    PartialPath { nodes: nodes.iter().map(|node| identity(*node)).collect(), steps: steps.to_vec() }
}

#[test]
fn a_partial_path_is_joined_with_the_links_that_count_behind_it() {
    // 0 is not linked to 1 publicly; 1 to 3 and 4 is.
    let edges: Vec<Edge> =
        small().into_iter().filter(|(from, ..)| *from != 0).chain([(0, 2, Relationship::Provider)]).collect();
    let database = database(6, &edges);
    let topology = Topology::new(&database, NOW);
    let claim = partial(&[0, 1], &[Step::Up]);
    let phase = topology.check_partial(&claim, &identity(0)).expect("in order");
    assert_eq!(phase, Phase::Climbing);
    let alone = topology.search(&identity(0), &[], &[identity(4)], MAX_STEPS);
    assert_eq!(numbers(&alone, 6), [vec![0, 2, 3, 4]]);
    let joined = topology.search(&identity(0), &[(claim.clone(), phase)], &[identity(4)], MAX_STEPS);
    let mut paths = numbers(&joined, 6);
    paths.sort();
    assert_eq!(paths, [vec![0, 1, 3, 4], vec![0, 1, 5, 4], vec![0, 2, 3, 4]]);
    // Whoever does not claim the first step does not get to use it.
    let nodes = [0, 1, 5, 4].map(identity);
    assert_eq!(build(&database, &Labels::default(), &[], &nodes, NOW).err(), Some(PathFault::Link(0)));
    build(&database, &Labels::default(), &[claim], &nodes, NOW).expect("claimed");
}

#[test]
fn partial_paths_that_lie_are_refused_with_the_reason() {
    let topology = Topology::new(&database(6, &small()), NOW);
    let check = |nodes: &[u32], steps: &[Step]| topology.check_partial(&partial(nodes, steps), &identity(0)).err();
    assert_eq!(check(&[0, 1, 3], &[Step::Up, Step::Up]), None);
    assert_eq!(check(&[1, 3], &[Step::Up]), Some(PartialError::Start));
    assert_eq!(check(&[], &[]), Some(PartialError::Length(0)));
    assert_eq!(check(&[0, 1], &[]), Some(PartialError::Length(2)));
    assert_eq!(check(&[0; 17], &[Step::Up; 16]), Some(PartialError::Length(17)));
    assert_eq!(check(&[0, 9], &[Step::Up]), Some(PartialError::Unknown(1)));
    assert_eq!(check(&[0, 1, 0], &[Step::Up, Step::Down]), Some(PartialError::Loop(2)));
    assert_eq!(check(&[0, 1], &[Step::Down]), Some(PartialError::Contradiction(0)));
    // 0 and 4 are not linked: as far as the claim goes they are, but then it makes a valley.
    assert_eq!(check(&[0, 4, 3], &[Step::Down, Step::Up]), Some(PartialError::Valley(1)));
}

/// ICC-03: the densest graph, and partial paths that all lead into it, cost no more than the limit.
#[test]
fn a_search_looks_at_no_more_links_than_its_limit_however_dense_the_graph() {
    let count = 40;
    // Everybody is everybody's provider and customer in turn: long loops of providers, and nothing leads to node 39, whose
    // only link goes up from a peer of a peer.
    let mut edges = Vec::new();
    for from in 0..count - 2 {
        for to in from + 1..count - 2 {
            let what = if (from + to) % 2 == 0 { Relationship::Provider } else { Relationship::Customer };
            edges.push((from, to, what));
        }
    }
    edges.push((0, 38, Relationship::Peer));
    edges.push((38, 39, Relationship::Peer));
    let database = database(count, &edges);
    let topology = Topology::new(&database, NOW);
    let none = topology.search(&identity(5), &[], &[identity(39)], MAX_STEPS);
    assert_eq!((none.paths.len(), none.is_cut), (0, false));
    // The search back rules it out at once.
    assert!(none.steps < 5_000, "{}", none.steps);
    let claims: Vec<(PartialPath, Phase)> =
        (1..=MAX_PATHS as u32).map(|to| (partial(&[0, to], &[Step::Up]), Phase::Climbing)).collect();
    for most in [1, 10, 100, 1_000, 10_000, MAX_STEPS] {
        let found = topology.search(&identity(0), &claims, &[identity(20)], most);
        assert!(found.steps <= most);
        assert!(found.paths.len() <= MAX_PATHS);
    }
}
