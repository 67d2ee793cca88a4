//! W-OTS under a Merkle tree: one level of trees as SLH-DSA has it (FIPS 205 sections 5 and 6), stateful here.

use wayleave_crypto::secret::Secret;
use zeroize::Zeroizing;

use super::{Address, Job, NODE, Node, PublicSeed, Use, Walk, hash_all, walk_all};

/// Key pairs whose chains are computed together when a tree is made.
const GROUP: u32 = 16;

/// W-OTS's parameter: each chain signs so many bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Winternitz {
    /// FIPS 205's `lg_w`: 1 to 8.
    pub bits: u32,
}

impl Winternitz {
    const fn message_digits(self) -> usize {
        (8 * NODE as u32).div_ceil(self.bits) as usize
    }

    const fn checksum_digits(self) -> usize {
        let most = self.message_digits() as u32 * self.longest() as u32;
        (most.ilog2() / self.bits + 1) as usize
    }

    const fn longest(self) -> u8 {
        ((1u16 << self.bits) - 1) as u8
    }

    /// How many chains a key pair has.
    #[must_use]
    pub const fn chains(self) -> usize {
        self.message_digits() + self.checksum_digits()
    }

    /// Whether whoever saw a signature of `signed` can make one of `other`: every chain goes on from where it was.
    #[cfg(test)]
    pub(crate) fn covers(self, signed: &Node, other: &Node) -> bool {
        self.digits(signed).iter().zip(self.digits(other)).all(|(signed, other)| *signed <= other)
    }

    /// How far along each chain the signature of `message` lies: its digits, then those of their checksum
    /// (FIPS 205 algorithm 7). Where `bits` does not divide 128, zeros fill the last digit.
    fn digits(self, message: &Node) -> Vec<u8> {
        let digit = |number: usize| {
            (0..self.bits as usize).fold(0u8, |digit, bit| {
                let bit = number * self.bits as usize + bit;
                digit << 1 | message.get(bit / 8).map_or(0, |octet| octet >> (7 - bit % 8) & 1)
            })
        };
        let mut out: Vec<u8> = (0..self.message_digits()).map(digit).collect();
        let checksum: u32 = out.iter().map(|digit| u32::from(self.longest() - digit)).sum();
        for digit in (0..self.checksum_digits() as u32).rev() {
            out.push((checksum >> (digit * self.bits)) as u8 & self.longest());
        }
        out
    }
}

/// Which tree of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TreeId {
    /// 0 signs messages, each further layer the roots of the one below.
    pub layer: u8,
    /// Its number among the trees of its layer.
    pub tree: u64,
}

impl TreeId {
    fn address(self, kind: Use, words: [u32; 3]) -> Address {
        Address { layer: self.layer, tree: self.tree, kind, words }
    }
}

/// The secret and the public seed of a key.
#[derive(Clone, Debug)]
pub struct Seeds {
    /// All chains start from it (FIPS 205's `SK.seed`).
    pub secret: Secret<NODE>,
    /// Compressed once.
    pub public: PublicSeed,
}

impl Seeds {
    /// The starts of the chains of some key pairs.
    fn starts(&self, tree_id: TreeId, pairs: std::ops::Range<u32>, chains: usize) -> Zeroizing<Vec<Node>> {
        let jobs: Vec<Job<'_>> = pairs
            .flat_map(|pair| (0..chains as u32).map(move |chain| tree_id.address(Use::Secret, [pair, chain, 0])))
            .map(|address| Job { seed: &self.public, address, input: self.secret.expose() })
            .collect();
        Zeroizing::new(hash_all(&jobs))
    }

    /// The W-OTS signature of `message` with one key pair, which must sign nothing else ever.
    #[must_use]
    pub fn sign(&self, winternitz: Winternitz, tree_id: TreeId, pair: u32, message: &Node) -> Vec<u8> {
        let starts = self.starts(tree_id, pair..pair + 1, winternitz.chains());
        let walks: Vec<Walk<'_>> = winternitz
            .digits(message)
            .into_iter()
            .zip(starts.iter())
            .zip(0..)
            .map(|((steps, start), chain)| Walk {
                seed: &self.public,
                address: tree_id.address(Use::Chain, [pair, chain, 0]),
                from: 0,
                steps,
                value: *start,
            })
            .collect();
        walk_all(&walks).concat()
    }
}

/// All nodes of a tree.
#[derive(Clone, Debug)]
pub struct Tree {
    height: u32,
    /// The leaves, then level by level to the root.
    nodes: Vec<Node>,
}

/// The leaves of a tree, made some at a time.
#[derive(Clone, Debug)]
pub struct Leaves {
    winternitz: Winternitz,
    tree_id: TreeId,
    height: u32,
    nodes: Vec<Node>,
}

impl Leaves {
    /// None yet, of `2^height`.
    #[must_use]
    pub fn new(winternitz: Winternitz, tree_id: TreeId, height: u32) -> Self {
        Self { winternitz, tree_id, height, nodes: Vec::with_capacity(2 << height) }
    }

    /// The tree that they belong to.
    #[must_use]
    pub fn tree_id(&self) -> TreeId {
        self.tree_id
    }

    /// Whether all are made.
    #[must_use]
    pub fn are_complete(&self) -> bool {
        self.nodes.len() >> self.height == 1
    }

    /// Makes the next `count`, or as many as there are to be made: all chains of each walked to their ends.
    pub fn grow(&mut self, seeds: &Seeds, count: u32) {
        let Self { winternitz, tree_id, height, nodes } = self;
        let begin = nodes.len() as u32;
        let end = begin.saturating_add(count).min(1 << *height);
        for first in (begin..end).step_by(GROUP as usize) {
            let pairs = first..(first + GROUP).min(end);
            let starts = seeds.starts(*tree_id, pairs.clone(), winternitz.chains());
            let walks: Vec<Walk<'_>> = pairs
                .clone()
                .flat_map(|pair| (0..winternitz.chains() as u32).map(move |chain| [pair, chain, 0]))
                .zip(starts.iter())
                .map(|(words, start)| Walk {
                    seed: &seeds.public,
                    address: tree_id.address(Use::Chain, words),
                    from: 0,
                    steps: winternitz.longest(),
                    value: *start,
                })
                .collect();
            let ends = walk_all(&walks);
            let jobs: Vec<Job<'_>> = pairs
                .zip(ends.chunks_exact(winternitz.chains()))
                .map(|(pair, ends)| Job {
                    seed: &seeds.public,
                    address: tree_id.address(Use::Leaf, [pair, 0, 0]),
                    input: ends.as_flattened(),
                })
                .collect();
            nodes.extend(hash_all(&jobs));
        }
    }
}

impl Tree {
    /// Makes the tree: `2^height` key pairs.
    #[must_use]
    pub fn new(seeds: &Seeds, winternitz: Winternitz, tree_id: TreeId, height: u32) -> Self {
        Self::over(seeds, Leaves::new(winternitz, tree_id, height))
    }

    /// Makes the tree over leaves, those first that are still to be made.
    #[must_use]
    pub fn over(seeds: &Seeds, mut leaves: Leaves) -> Self {
        leaves.grow(seeds, u32::MAX);
        let Leaves { tree_id, height, mut nodes, .. } = leaves;
        let mut below = 0;
        for level in 1..=height {
            let pairs: Vec<[Node; 2]> = nodes[below..].as_chunks::<2>().0.to_vec();
            below = nodes.len();
            let jobs: Vec<Job<'_>> = (0..)
                .zip(&pairs)
                .map(|(index, pair)| Job {
                    seed: &seeds.public,
                    address: tree_id.address(Use::Inner, [0, level, index]),
                    input: pair.as_flattened(),
                })
                .collect();
            nodes.extend(hash_all(&jobs));
        }
        Self { height, nodes }
    }

    /// The root.
    #[must_use]
    pub fn root(&self) -> Node {
        *self.nodes.last().expect("a tree has at least one leaf")
    }

    /// The siblings on the way from leaf `pair` to the root.
    #[must_use]
    pub fn path(&self, pair: u32) -> Vec<u8> {
        let (mut out, mut level) = (Vec::with_capacity(NODE * self.height as usize), 0);
        for height in 0..self.height {
            out.extend_from_slice(&self.nodes[level + (pair as usize >> height ^ 1)]);
            level += 1 << (self.height - height);
        }
        out
    }
}

/// What one signature says about one tree.
#[derive(Clone, Copy, Debug)]
pub struct Claimed<'a> {
    /// The key.
    pub seed: &'a PublicSeed,
    /// The tree.
    pub tree_id: TreeId,
    /// The leaf.
    pub pair: u32,
    /// What the leaf's key pair signed.
    pub message: Node,
    /// The chains' values.
    pub chains: &'a [Node],
    /// The siblings on the way to the root.
    pub path: &'a [Node],
}

/// The root that each signature leads to (FIPS 205 algorithms 8 and 11), all at once. Every claim has as many chains as
/// `winternitz` says, and all have paths of one length.
#[must_use]
pub fn roots(winternitz: Winternitz, claims: &[Claimed<'_>]) -> Vec<Node> {
    let mut walks = Vec::with_capacity(claims.len() * winternitz.chains());
    for claim in claims {
        for ((digit, value), chain) in winternitz.digits(&claim.message).into_iter().zip(claim.chains).zip(0..) {
            walks.push(Walk {
                seed: claim.seed,
                address: claim.tree_id.address(Use::Chain, [claim.pair, chain, 0]),
                from: digit,
                steps: winternitz.longest() - digit,
                value: *value,
            });
        }
    }
    let ends = walk_all(&walks);
    let leaves: Vec<Job<'_>> = claims
        .iter()
        .zip(ends.chunks_exact(winternitz.chains()))
        .map(|(claim, ends)| Job {
            seed: claim.seed,
            address: claim.tree_id.address(Use::Leaf, [claim.pair, 0, 0]),
            input: ends.as_flattened(),
        })
        .collect();
    let mut nodes = hash_all(&leaves);
    let height = claims.first().map_or(0, |claim| claim.path.len());
    for level in 0..height {
        let pairs: Vec<[Node; 2]> = claims
            .iter()
            .zip(&nodes)
            .map(|(claim, node)| match claim.pair >> level & 1 {
                0 => [*node, claim.path[level]],
                _ => [claim.path[level], *node],
            })
            .collect();
        let jobs: Vec<Job<'_>> = claims
            .iter()
            .zip(&pairs)
            .map(|(claim, pair)| Job {
                seed: claim.seed,
                address: claim.tree_id.address(Use::Inner, [0, level as u32 + 1, claim.pair >> (level + 1)]),
                input: pair.as_flattened(),
            })
            .collect();
        nodes = hash_all(&jobs);
    }
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digits_are_those_of_fips_205() {
        let winternitz = Winternitz { bits: 4 };
        assert_eq!(winternitz.chains(), 35);
        let mut message = [0; NODE];
        message[0] = 0x5f;
        let digits = winternitz.digits(&message);
        assert_eq!(digits[..3], [5, 15, 0]);
        // 32 * 15 - 20 = 460 = 0x1cc.
        assert_eq!(digits[32..], [1, 12, 12]);
        assert_eq!(Winternitz { bits: 5 }.chains(), 28);
        assert_eq!(Winternitz { bits: 6 }.chains(), 24);
        assert_eq!(Winternitz { bits: 7 }.chains(), 21);
        assert_eq!(Winternitz { bits: 8 }.chains(), 18);
    }

    #[test]
    fn raising_one_digit_lowers_another() {
        // What W-OTS rests on: no message's digits are all at least another's.
        for bits in [2, 4, 5, 6, 7, 8] {
            let winternitz = Winternitz { bits };
            for a in 0..40u8 {
                for b in (0..40u8).filter(|b| *b != a) {
                    let (a, b) = (winternitz.digits(&[a; NODE]), winternitz.digits(&[b; NODE]));
                    assert!(a.iter().zip(&b).any(|(a, b)| a < b));
                }
            }
        }
    }

    #[test]
    fn leaves_made_some_at_a_time_are_those_that_are_made_at_once() {
        let seeds = Seeds { secret: Secret::new([1; NODE]), public: PublicSeed::new(&[2; NODE]) };
        let (winternitz, tree_id) = (Winternitz { bits: 4 }, TreeId { layer: 1, tree: 9 });
        let mut leaves = Leaves::new(winternitz, tree_id, 6);
        for _ in 0..4 {
            assert!(!leaves.are_complete());
            leaves.grow(&seeds, 19);
        }
        assert!(leaves.are_complete());
        assert_eq!(Tree::over(&seeds, leaves).nodes, Tree::new(&seeds, winternitz, tree_id, 6).nodes);
    }

    #[test]
    fn every_leaf_leads_to_the_root() {
        let seeds = Seeds { secret: Secret::new([1; NODE]), public: PublicSeed::new(&[2; NODE]) };
        for bits in [4, 5, 7] {
            let winternitz = Winternitz { bits };
            let tree_id = TreeId { layer: 0, tree: 3 };
            let tree = Tree::new(&seeds, winternitz, tree_id, 3);
            for pair in 0..8 {
                let message = [pair as u8 * 31; NODE];
                let (chains, path) = (seeds.sign(winternitz, tree_id, pair, &message), tree.path(pair));
                let claimed = Claimed {
                    seed: &seeds.public,
                    tree_id,
                    pair,
                    message,
                    chains: chains.as_chunks().0,
                    path: path.as_chunks().0,
                };
                assert_eq!(roots(winternitz, &[claimed]), [tree.root()]);
                let other = Claimed { pair: pair ^ 1, ..claimed };
                assert_ne!(roots(winternitz, &[other]), [tree.root()]);
            }
        }
    }
}
