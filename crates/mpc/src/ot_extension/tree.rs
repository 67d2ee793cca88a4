//! The trees of seeds: whoever receives in the extension knows all leaves of a group, whoever sends all but one.
//!
//! A group of `k` columns has a tree with `k` levels below its root and `2^k` leaves, made from `k` random transfers (Goldreich,
//! Goldwasser and Micali's construction, punctured). The seeds of the first level are the two keys of the first transfer; each
//! further level sends, under the keys of its transfer, the sum of all left and the sum of all right children. The sender of
//! the extension chose `c` in the transfer of a level, and so learns every node of it but the one on the path of `D = not c`.

use wayleave_crypto::prg::Prg;
use wayleave_crypto::secret::Secret;
use zeroize::Zeroizing;

/// Bytes of one level of one tree: the sums of the left and of the right children.
pub(super) const LEVEL_BYTES: usize = 32;

/// Seeds of all leaves of a group, by their numbers. The highest bit of a number says left or right at the first level.
pub(crate) type Leaves = Vec<Secret<16>>;

/// Seeds of all leaves but one: the `n`-th is that of leaf `(n + 1) xor D`, where `D` is the number of the one that lacks.
pub(crate) type Punctured = Vec<Secret<16>>;

/// The leaves of a tree whose transfers have these pairs of keys, one for each level; appends what the other party needs of
/// each level but the first to `message`.
pub(crate) fn all_leaves(pairs: &[[Secret<16>; 2]], message: &mut Vec<u8>) -> Leaves {
    let (first, further) = pairs.split_first().expect("a group has a column");
    let mut nodes: Vec<Zeroizing<[u8; 16]>> = first.iter().map(|key| Zeroizing::new(*key.expose())).collect();
    for pair in further {
        let mut children = Vec::with_capacity(2 * nodes.len());
        let mut sums = pair.each_ref().map(|key| *key.expose());
        for node in &nodes {
            for (child, sum) in children_of(node).into_iter().zip(&mut sums) {
                add(sum, &child);
                children.push(child);
            }
        }
        sums.iter().for_each(|sum| message.extend_from_slice(sum));
        nodes = children;
    }
    secrets(&nodes)
}

/// The leaves that are known with one key of each transfer: `keys`, chosen by the bits of `choices` from the lowest on, and the
/// other party's `message` for this tree.
pub(crate) fn punctured_leaves(keys: &[Secret<16>], choices: u128, message: &[u8]) -> Punctured {
    let (first, further) = keys.split_first().expect("a group has a column");
    let mut nodes = vec![Zeroizing::new(*first.expose())];
    let levels = message.as_chunks::<16>().0.chunks_exact(2);
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
            add(&mut rest, &far);
            children.extend([near, far]);
        }
        children.insert(0, rest);
        nodes = children;
    }
    secrets(&nodes)
}

fn children_of(node: &[u8; 16]) -> [Zeroizing<[u8; 16]>; 2] {
    let mut blocks = Zeroizing::new([[0; 16]; 2]);
    Prg::new(node).blocks(0, blocks.as_mut());
    blocks.map(Zeroizing::new)
}

fn add(to: &mut [u8; 16], what: &[u8; 16]) {
    to.iter_mut().zip(what).for_each(|(to, what)| *to ^= what);
}

fn secrets(nodes: &[Zeroizing<[u8; 16]>]) -> Vec<Secret<16>> {
    nodes.iter().map(|node| Secret::new(**node)).collect()
}

#[cfg(test)]
mod tests {
    //! MPC-06: all but one leaf of each tree: the leaf that lacks stays unknown.

    use super::*;

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

    #[test]
    fn all_leaves_but_that_of_the_choices_are_known() {
        for levels in [1, 2, 4, 8] {
            let pairs = pairs(levels);
            let mut message = Vec::new();
            let all = all_leaves(&pairs, &mut message);
            assert_eq!((all.len(), message.len()), (1 << levels, (levels - 1) * LEVEL_BYTES));
            for missing in 0..1usize << levels {
                // The first level has the highest bit of a leaf's number and the lowest of the choices.
                let side = |level: usize| (missing >> (levels - 1 - level)) & 1;
                let choices = (0..levels).fold(0u128, |bits, level| bits | ((1 - side(level)) as u128) << level);
                let keys: Vec<_> = (0..levels).map(|level| pairs[level][1 - side(level)].clone()).collect();
                let known = punctured_leaves(&keys, choices, &message);
                assert_eq!(known.len(), all.len() - 1);
                for (number, leaf) in (1..).zip(&known) {
                    assert_eq!(*leaf, all[number ^ missing], "{levels} levels without {missing}: {number}");
                }
                assert!(!known.contains(&all[missing]));
            }
        }
    }
}
