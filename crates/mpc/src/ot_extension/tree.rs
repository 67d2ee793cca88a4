//! The trees of seeds: whoever receives in the extension knows all leaves of a group, whoever sends all but one.
//!
//! A group of `k` columns has a tree with `k` levels below its root and `2^k` leaves, made from `k` random transfers (Goldreich,
//! Goldwasser and Micali's construction, punctured). The seeds of the first level are the two keys of the first transfer; each
//! further level sends, under the keys of its transfer, the sum of all left and the sum of all right children. The sender of
//! the extension chose `c` in the transfer of a level, and so learns every node of it but the one on the path of `D = not c`.
//!
//! A party that deviates could send sums that are right for some `D` only. So a leaf gives a seed and a tag, and the message ends
//! with the sum of all tags and a hash of them (Roy, CRYPTO 2022, the consistency check of punctured functions). Whoever receives knows all tags but
//! one, has that one from the sum, and compares the hash: if it fits, the seeds are those of one tree, whatever `D` is. Whether it fits
//! can depend on `D`: the sender guesses that `D` is among some leaves, and a guess that excludes half of them fails for half of all `D`.

use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};
use wayleave_crypto::hash::hash;
use wayleave_crypto::prg::Prg;
use wayleave_crypto::secret::Secret;
use zeroize::Zeroizing;

use crate::party::Role;

/// Bytes of one level of one tree: the sums of the left and of the right children.
pub(super) const LEVEL_BYTES: usize = 32;

/// Bytes of the check of one tree: the sum of its leaves' tags, and their hash.
pub(super) const CHECK_BYTES: usize = TAG_BYTES + 32;

/// Twice the security parameter, so that no two leaves with one tag are found.
const TAG_BYTES: usize = 32;

type Tag = [u8; TAG_BYTES];

/// Seeds of all leaves of a group, by their numbers. The highest bit of a number says left or right at the first level.
pub(crate) type Leaves = Vec<Secret<16>>;

/// Seeds of all leaves but one: the `n`-th is that of leaf `(n + 1) xor D`, where `D` is the number of the one that lacks.
pub(crate) type Punctured = Vec<Secret<16>>;

/// Which tree of a session it is: both parties' greetings, the party that knows all leaves, and the number of its group.
pub(crate) struct TreeName<'c> {
    pub(crate) context: &'c [u8; 32],
    pub(crate) owner: Role,
    pub(crate) number: u8,
}

/// The leaves of a tree whose transfers have these pairs of keys, one for each level; appends what the other party needs of
/// each level but the first, and of the check, to `message`.
pub(crate) fn all_leaves(name: &TreeName<'_>, pairs: &[[Secret<16>; 2]], message: &mut Vec<u8>) -> Leaves {
    let (first, further) = pairs.split_first().expect("a group has a column");
    let mut nodes: Vec<Zeroizing<[u8; 16]>> = first.iter().map(|key| Zeroizing::new(*key.expose())).collect();
    for pair in further {
        let mut children = Vec::with_capacity(2 * nodes.len());
        let mut sums = pair.each_ref().map(|key| *key.expose());
        for node in &nodes {
            for (child, sum) in children_of(node).into_iter().zip(&mut sums) {
                add(sum, &*child);
                children.push(child);
            }
        }
        sums.iter().for_each(|sum| message.extend_from_slice(sum));
        nodes = children;
    }
    let (seeds, tags) = seeds_and_tags(&nodes);
    message.extend_from_slice(&*sum_of(&tags));
    message.extend_from_slice(&name.hash(&tags));
    seeds
}

/// The leaves that are known with one key of each transfer: `keys`, chosen by the bits of `choices` from the lowest on, and the
/// other party's `message` for this tree. And whether the message passes the check: the leaves must not be used if not.
pub(crate) fn punctured_leaves(
    name: &TreeName<'_>,
    keys: &[Secret<16>],
    choices: u128,
    message: &[u8],
) -> (Punctured, Choice) {
    let (first, further) = keys.split_first().expect("a group has a column");
    let (levels, check) = message.split_at(message.len() - CHECK_BYTES);
    let mut nodes = vec![Zeroizing::new(*first.expose())];
    let levels = levels.as_chunks::<16>().0.chunks_exact(2);
    for (level, (key, sums)) in (1u32..).zip(further.iter().zip(levels)) {
        let choice = (((choices >> level) & 1) as u8).wrapping_neg();
        // The children of the node that lacks: one is what is left of its side's sum.
        let mut rest = Zeroizing::new(*key.expose());
        rest.iter_mut()
            .zip(sums[0].iter().zip(&sums[1]))
            .for_each(|(to, (zero, one))| *to ^= zero ^ (choice & (zero ^ one)));
        let mut children = Vec::with_capacity(2 * nodes.len() + 1);
        for node in &nodes {
            // The child on the side of `D` first, which is the left one where the choice was 1.
            let [mut near, mut far] = children_of(node);
            near.iter_mut().zip(far.iter_mut()).for_each(|(near, far)| {
                let change = (*near ^ *far) & !choice;
                (*near, *far) = (*near ^ change, *far ^ change);
            });
            add(&mut *rest, &*far);
            children.extend([near, far]);
        }
        children.insert(0, rest);
        nodes = children;
    }
    let (seeds, mut tags) = seeds_and_tags(&nodes);
    let (sum, digest) = check.split_at(TAG_BYTES);
    let mut missing = sum_of(&tags);
    add(&mut *missing, sum);
    tags.insert(0, *missing);
    // From the order of `number xor D` to that of the numbers; the last level has the lowest bit of a number.
    for (place, level) in (0..keys.len()).rev().enumerate() {
        swap_by(&mut tags, 1 << place, Choice::from((!(choices >> level) & 1) as u8));
    }
    let passes = name.hash(&tags).as_slice().ct_eq(digest);
    (seeds, passes)
}

/// Swaps each tag with that whose number differs in this bit, or does not, in the same time.
fn swap_by(tags: &mut [Tag], bit: usize, choice: Choice) {
    for pair in tags.chunks_exact_mut(2 * bit) {
        let (zero, one) = pair.split_at_mut(bit);
        for (zero, one) in zero.as_flattened_mut().iter_mut().zip(one.as_flattened_mut()) {
            u8::conditional_swap(zero, one, choice);
        }
    }
}

impl TreeName<'_> {
    fn hash(&self, tags: &[Tag]) -> [u8; 32] {
        hash("wayleave/mpc/tree/v1", &[self.context, &[self.owner.number(), self.number], tags.as_flattened()])
    }
}

/// What a leaf is used for: the seed of its stream, and the tag of the check.
fn seeds_and_tags(leaves: &[Zeroizing<[u8; 16]>]) -> (Vec<Secret<16>>, Zeroizing<Vec<Tag>>) {
    // One more has space, so that the wiped memory is all that there was.
    let mut tags = Zeroizing::new(Vec::with_capacity(leaves.len() + 1));
    let seeds = leaves.iter().map(|leaf| {
        let mut blocks = Zeroizing::new([[0; 16]; 3]);
        Prg::new(leaf).blocks(0, blocks.as_mut());
        let [seed, tag @ ..] = &*blocks;
        tags.push(*tag.as_flattened().first_chunk().expect("two blocks are a tag"));
        Secret::new(*seed)
    });
    let seeds = seeds.collect();
    (seeds, tags)
}

fn sum_of(tags: &[Tag]) -> Zeroizing<Tag> {
    let mut sum = Zeroizing::new([0; TAG_BYTES]);
    tags.iter().for_each(|tag| add(&mut *sum, tag));
    sum
}

fn children_of(node: &[u8; 16]) -> [Zeroizing<[u8; 16]>; 2] {
    let mut blocks = Zeroizing::new([[0; 16]; 2]);
    Prg::new(node).blocks(0, blocks.as_mut());
    blocks.map(Zeroizing::new)
}

fn add(to: &mut [u8], what: &[u8]) {
    to.iter_mut().zip(what).for_each(|(to, what)| *to ^= what);
}

#[cfg(test)]
mod tests {
    //! MPC-06: all but one leaf of each tree: the leaf that lacks stays unknown.
    //! MPC-12: sums, tags or trees of a party that deviates: refused, but for the choices that it guessed.

    use super::*;

    const NAME: TreeName<'_> = TreeName { context: &[7; 32], owner: Role::Party1, number: 3 };

    /// Pairs of keys of one tree.
    fn pairs(levels: usize) -> Vec<[Secret<16>; 2]> {
        let random = Prg::new(&[levels as u8; 16]);
        let key = |number| {
            let mut out = [0; 16];
            random.fill(number, &mut out);
            Secret::new(out)
        };
        (0..levels as u64).map(|level| [key(2 * level), key(2 * level + 1)]).collect()
    }

    /// The choices that leave the leaf `missing` out, and the keys of these choices.
    fn choose(pairs: &[[Secret<16>; 2]], missing: usize) -> (u128, Vec<Secret<16>>) {
        // The first level has the highest bit of a leaf's number and the lowest of the choices.
        let levels = pairs.len();
        let side = |level: usize| (missing >> (levels - 1 - level)) & 1;
        let choices = (0..levels).fold(0u128, |bits, level| bits | ((1 - side(level)) as u128) << level);
        (choices, (0..levels).map(|level| pairs[level][1 - side(level)].clone()).collect())
    }

    fn passes(pairs: &[[Secret<16>; 2]], message: &[u8], missing: usize) -> bool {
        let (choices, keys) = choose(pairs, missing);
        punctured_leaves(&NAME, &keys, choices, message).1.into()
    }

    #[test]
    fn all_leaves_but_that_of_the_choices_are_known() {
        for levels in [1, 2, 4, 8] {
            let pairs = pairs(levels);
            let mut message = Vec::new();
            let all = all_leaves(&NAME, &pairs, &mut message);
            assert_eq!((all.len(), message.len()), (1 << levels, (levels - 1) * LEVEL_BYTES + CHECK_BYTES));
            for missing in 0..1usize << levels {
                let (choices, keys) = choose(&pairs, missing);
                let (known, passes) = punctured_leaves(&NAME, &keys, choices, &message);
                assert!(bool::from(passes));
                assert_eq!(known.len(), all.len() - 1);
                for (number, leaf) in (1..).zip(&known) {
                    assert_eq!(*leaf, all[number ^ missing], "{levels} levels without {missing}: {number}");
                }
                assert!(!known.contains(&all[missing]));
            }
        }
    }

    #[test]
    fn a_changed_sum_passes_for_the_half_of_all_choices_that_does_not_use_it() {
        for levels in [2, 4, 8] {
            let pairs = pairs(levels);
            let mut honest = Vec::new();
            all_leaves(&NAME, &pairs, &mut honest);
            for place in (0..(levels - 1) * LEVEL_BYTES).step_by(16) {
                let mut message = honest.clone();
                message[place + 5] ^= 0x10;
                let passing = (0..1 << levels).filter(|missing| passes(&pairs, &message, *missing)).count();
                assert_eq!(passing, 1 << (levels - 1), "{levels} levels, sum {}", place / 16);
            }
        }
    }

    #[test]
    fn a_changed_check_or_another_tree_passes_for_no_choices() {
        for levels in [1, 2, 4, 8] {
            let pairs = pairs(levels);
            let mut honest = Vec::new();
            all_leaves(&NAME, &pairs, &mut honest);
            for octet in honest.len() - CHECK_BYTES..honest.len() {
                let mut message = honest.clone();
                message[octet] ^= 1;
                assert!((0..1 << levels).all(|missing| !passes(&pairs, &message, missing)), "octet {octet}");
            }
            for other in [
                TreeName { context: &[8; 32], ..NAME },
                TreeName { owner: Role::Party2, ..NAME },
                TreeName { number: 4, ..NAME },
            ] {
                let mut message = Vec::new();
                all_leaves(&other, &pairs, &mut message);
                assert!((0..1 << levels).all(|missing| !passes(&pairs, &message, missing)));
            }
        }
    }

    #[test]
    fn two_trees_of_which_the_sender_hopes_for_one_pass_for_no_more_choices_than_were_guessed() {
        // Another key on the left of the first level, which is used for all choices that leave out a leaf on the right: the check is made for
        // the leaves with the true key, so that it passes for the other half.
        let mut pairs = pairs(2);
        let mut message = Vec::new();
        all_leaves(&NAME, &pairs, &mut message);
        pairs[0][0] = Secret::new([9; 16]);
        let passing: Vec<_> = (0..4).filter(|missing| passes(&pairs, &message, *missing)).collect();
        assert_eq!(passing, [0, 1]);
    }
}
