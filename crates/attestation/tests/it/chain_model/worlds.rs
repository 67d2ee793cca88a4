//! All worlds up to a number of ASes, the smaller ones first. ASes of equal roles are interchangeable, so that roles are in order.

use super::world::{Asn, Role, World};

/// How many worlds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Extent {
    /// Variants one by one beside ways of signing, and with five ASes only those in which two are corrupt.
    Short,
    /// All variants with each other.
    Long,
}

const MOST_ASES: usize = 5;
const MOST_CORRUPT: usize = 2;

/// Worlds of five ASes in which honest ones deny each other and corrupt ones half of all exports, at random.
pub(super) fn random_policies(count: usize) -> impl Iterator<Item = World> {
    let mut state = 0x6368_6169_6e73_u64;
    let mut next = move || {
        // SplitMix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    };
    let roles = all_roles(MOST_ASES);
    (0..count).map(move |number| {
        let plain = World::new(&roles[number % roles.len()]);
        let (denied, choice) = (next(), next());
        let members = if choice & 1 == 0 { 0 } else { choice as u8 >> 3 & everyone(&plain) };
        World { denied, members, many: choice & 2 != 0, corrupt_offer_keys: choice & 4 != 0, ..plain }
    })
}

pub(super) fn worlds(extent: Extent) -> impl Iterator<Item = World> {
    (2..=MOST_ASES).flat_map(all_roles).flat_map(move |roles| variants(extent, &roles))
}

/// All roles of `count` ASes, of which one or two are corrupt and the first originates with a registered key.
fn all_roles(count: usize) -> Vec<Vec<Role>> {
    let mut all: Vec<Vec<Role>> = vec![vec![Role::Registered], vec![Role::Corrupt]];
    for _ in 1..count {
        all = all.iter().flat_map(|roles| with_one_more(roles)).collect();
    }
    let corrupt = |roles: &[Role]| roles.iter().filter(|role| **role == Role::Corrupt).count();
    all.retain(|roles| (1..=MOST_CORRUPT).contains(&corrupt(roles)) && corrupt(roles) < count);
    all
}

fn with_one_more(roles: &[Role]) -> Vec<Vec<Role>> {
    let least = roles[1..].last().copied().unwrap_or(Role::Corrupt);
    let more = [Role::Corrupt, Role::Registered, Role::Unregistered, Role::Legacy];
    more.into_iter().filter(|role| *role >= least).map(|role| [roles, &[role]].concat()).collect()
}

fn variants(extent: Extent, roles: &[Role]) -> Vec<World> {
    let plain = World::new(roles);
    match extent {
        Extent::Long => {
            let signing = ways_of_signing(extent, &plain).into_iter().flat_map(|world| ways_of_offering(&world));
            signing.flat_map(|world| sessions(&world)).flat_map(|world| times(&world)).collect()
        }
        Extent::Short if roles.len() < MOST_ASES => {
            let signing = ways_of_signing(extent, &plain).into_iter().flat_map(|world| ways_of_offering(&world));
            let everyone = everyone(&plain);
            let is_uniform = |world: &World| world.corrupt_offer_keys && [0, everyone].contains(&world.members);
            signing.flat_map(|world| if is_uniform(&world) { one_change(&world) } else { vec![world] }).collect()
        }
        Extent::Short if roles.iter().filter(|role| **role == Role::Corrupt).count() < MOST_CORRUPT => Vec::new(),
        Extent::Short => {
            let many = World { many: true, direct: false, ..plain.clone() };
            let exchange = World { members: everyone(&plain), ..plain.clone() };
            let keyless = World { corrupt_offer_keys: false, ..plain.clone() };
            one_change(&plain).into_iter().chain([many, exchange, keyless]).collect()
        }
    }
}

fn everyone(world: &World) -> u8 {
    (1 << world.roles.len()) - 1
}

/// Alone or in bursts, or both; among neighbours only, or at an exchange as well that has all ASes, or all but one.
fn ways_of_signing(extent: Extent, world: &World) -> Vec<World> {
    let everyone = everyone(world);
    let absent = world.ases().filter(|asn| !world.is_corrupt(*asn)).map(|asn| everyone & !(1 << asn));
    let ways: &[(bool, bool)] = if extent == Extent::Long { &[(true, true)] } else { &[(true, false), (false, true)] };
    let mut worlds = Vec::new();
    for members in [0, everyone].into_iter().chain(absent) {
        for &(direct, many) in ways {
            worlds.push(World { members, many, direct, ..world.clone() });
        }
    }
    worlds
}

/// Corrupt ASes offer keys, or pass for legacy ASes.
fn ways_of_offering(world: &World) -> [World; 2] {
    [true, false].map(|corrupt_offer_keys| World { corrupt_offer_keys, ..world.clone() })
}

/// The world, and what differs from it by one session or one AS's exports.
fn one_change(world: &World) -> Vec<World> {
    sessions(world).into_iter().chain(times(world).into_iter().skip(1)).collect()
}

/// All ASes have sessions with each other, or all but a corrupt one with one other.
fn sessions(world: &World) -> Vec<World> {
    let mut worlds = vec![world.clone()];
    for corrupt in world.ases().filter(|asn| world.is_corrupt(*asn)) {
        for other in world.ases().filter(|other| *other != corrupt && !(world.is_corrupt(*other) && *other < corrupt)) {
            worlds.push(World { no_session: Some((corrupt, other)), ..world.clone() });
        }
    }
    worlds
}

/// All exports stand, or those of an honest AS were withdrawn or have expired.
fn times(world: &World) -> Vec<World> {
    let mut worlds = vec![world.clone()];
    let signers: Vec<Asn> = world.ases().filter(|asn| world.is_verifier(*asn)).collect();
    worlds.extend(signers.iter().map(|asn| World { withdrawn: Some(*asn), ..world.clone() }));
    worlds.extend(signers.iter().map(|asn| World { expired: Some(*asn), ..world.clone() }));
    worlds
}
