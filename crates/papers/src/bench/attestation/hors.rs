//! HORS trees of all shapes in the paper's figure 4 (section V-A1): their cost, and how many signatures they allow.

use std::collections::HashSet;

use super::Clock;
use crate::kc_x::hors::{HorsSignature, SPV, Shape, Tree, roots};
use crate::kc_x::mmo::{Digest, Mmo, message};

/// The mean path length for which the paper computes the cost of an UPDATE.
pub const MEAN_PATH: f64 = 3.7;

/// The shapes of figure 4: 256 to 1,024 leaves, of which two to six are disclosed.
#[must_use]
pub fn shapes() -> Vec<Shape> {
    (8..=10).flat_map(|height| (2..=6).map(move |m| Shape { height, m })).collect()
}

/// The probability that one attempt at a forgery succeeds after `signatures` signatures: that all `m` leaves of its hash are
/// disclosed, if each signature disclosed `m` random leaves. Exact, by inclusion and exclusion over the leaves that are not.
#[must_use]
pub fn forgery_probability(shape: Shape, signatures: u32) -> f64 {
    let (n, m) = (shape.leaves(), shape.m);
    // The probability that one signature discloses none of `missing` given leaves.
    let spares = |missing: usize| (0..m).map(|i| (n - missing - i) as f64 / (n - i) as f64).product::<f64>();
    let choose = |k: usize| (0..k).map(|i| (m - i) as f64 / (i + 1) as f64).product::<f64>();
    (0..=m)
        .map(|missing| {
            let sign = if missing % 2 == 0 { 1.0 } else { -1.0 };
            sign * choose(missing) * spares(missing).powi(signatures as i32)
        })
        .sum::<f64>()
        .max(0.0)
}

/// Sigma: the most signatures of a tree after which a forgery is no more probable than for SPV's shape after 15, which is
/// 2^-10.6. For KC-MT's shape it is 2^-10.8 after 15.
#[must_use]
pub fn sigma(shape: Shape) -> u32 {
    // The margin covers rounding in the powers.
    let bound = forgery_probability(SPV, 15) * (1.0 + 1e-9);
    (1..).take_while(|signatures| forgery_probability(shape, *signatures) <= bound).last().unwrap_or(1)
}

/// The same by experiment: the share of `tries` messages whose leaves are all disclosed by the signatures of `signatures`
/// other messages, over `trees` trees. Messages are hashed as in the suites.
#[must_use]
pub fn forgeries(shape: Shape, signatures: u32, trees: u32, tries: u32) -> f64 {
    let digest =
        |kind: u8, tree: u32, number: u32| message(&[&[kind][..], &tree.to_be_bytes(), &number.to_be_bytes()].concat());
    let mut forged = 0u64;
    for tree in 0..trees {
        let disclosed: HashSet<usize> =
            (0..signatures).flat_map(|number| shape.chosen(&digest(0, tree, number)).to_vec()).collect();
        let all = |number: &u32| shape.chosen(&digest(1, tree, *number)).iter().all(|leaf| disclosed.contains(leaf));
        forged += (0..tries).filter(all).count() as u64;
    }
    forged as f64 / f64::from(trees) / f64::from(tries)
}

/// One shape in figure 4; times in nanoseconds.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Cost {
    /// S1: the first signature with a granted key, which makes the tree.
    pub first: f64,
    /// S2: any later one.
    pub next: f64,
    /// V: one verification.
    pub verify: f64,
    /// Bytes of a signature, on average.
    pub bytes: f64,
    /// Signatures of a tree, at most.
    pub sigma: u32,
}

impl Cost {
    /// The cost of an UPDATE over the mean path: equation (5).
    #[must_use]
    pub fn update(&self) -> f64 {
        let sigma = f64::from(self.sigma);
        MEAN_PATH * self.verify + self.first / sigma + (1.0 - 1.0 / sigma) * self.next
    }
}

/// Measures one shape once, with `trees` trees of Sigma signatures each.
pub fn cost(shape: Shape, trees: u32, clock: Clock<'_>) -> Cost {
    let (mmo, sigma) = (Mmo::default(), sigma(shape));
    let (mut first, mut next, mut verify, mut bytes) = (0, 0, 0, 0);
    for number in 0..trees {
        let digests: Vec<Digest> =
            (0..sigma).map(|i| message(&[number.to_be_bytes(), i.to_be_bytes()].concat())).collect();
        let mut signatures = vec![Vec::with_capacity(512); digests.len()];
        let start = clock();
        let tree = Tree::new(&mmo, shape, &u128::from(number).to_be_bytes());
        tree.sign(&digests[0], &mut signatures[0]);
        let signed = clock();
        digests.iter().zip(&mut signatures).skip(1).for_each(|(digest, signature)| tree.sign(digest, signature));
        let all_signed = clock();
        for (digest, signature) in digests.iter().zip(&signatures) {
            let claimed = HorsSignature::new(shape, digest, signature).expect("an honest signature");
            assert_eq!(roots(&mmo, shape, &[claimed]), [tree.root()], "an honest signature was refused");
        }
        (first, next, verify) = (first + signed - start, next + all_signed - signed, verify + clock() - all_signed);
        bytes += signatures.iter().map(Vec::len).sum::<usize>();
    }
    let each = |sum: u64, count: u32| sum as f64 / f64::from((count * trees).max(1));
    Cost {
        first: each(first, 1),
        next: each(next, sigma - 1),
        verify: each(verify, sigma),
        bytes: each(bytes as u64, sigma),
        sigma,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kc_x::hors::KC_MT;

    #[test]
    fn kc_mt_after_fifteen_signatures_is_as_forgeable_as_spv() {
        // Both "around 2^-11".
        let bits = |shape| -forgery_probability(shape, 15).log2();
        assert!((10.7..10.9).contains(&bits(KC_MT)), "{}", bits(KC_MT));
        assert!((10.5..10.8).contains(&bits(SPV)), "{}", bits(SPV));
        assert_eq!((sigma(KC_MT), sigma(SPV)), (15, 15));
    }

    #[test]
    fn the_probability_of_a_forgery_is_what_is_found_when_it_is_tried() {
        for (shape, signatures) in [(KC_MT, 15), (KC_MT, 40), (SPV, 15), (SPV, 25)] {
            let (expected, found) = (forgery_probability(shape, signatures), forgeries(shape, signatures, 200, 2_000));
            // Messages of one tree depend on each other, so that the spread is wider than of independent tries.
            assert!((0.6..1.6).contains(&(found / expected)), "{shape:?} {signatures}: {found} {expected}");
        }
        // One signature gives away one choice of leaves, and its own message.
        assert!(forgery_probability(KC_MT, 1) * 22_238_720.0 < 1.1);
    }

    #[test]
    fn every_shape_bears_more_signatures_the_more_leaves_it_has() {
        for m in 2..=6 {
            let [small, middle, large] = [8, 9, 10].map(|height| sigma(Shape { height, m }));
            assert!(small < middle && middle < large, "{small} {middle} {large}");
        }
    }

    #[test]
    fn costs_add_up_by_equation_5() {
        let mut time = 0;
        let mut clock = || {
            time += 1_000;
            time
        };
        let cost = cost(KC_MT, 2, &mut clock);
        assert_eq!((cost.sigma, cost.first), (15, 1_000.0));
        let expected = 3.7 * cost.verify + cost.first / 15.0 + 14.0 / 15.0 * cost.next;
        assert!((cost.update() - expected).abs() < 1e-9);
        assert!((200.0..225.0).contains(&cost.bytes));
    }
}
