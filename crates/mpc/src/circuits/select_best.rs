//! Select-Best: the best valid route of each lane, by a tournament (SIXPACK, section 5.5 and figure 9).

use thiserror::Error;

use crate::builder::Builder;
use crate::circuit::{Circuit, Kind, Wire};

const KEY_BITS: usize = 128;
/// Most routes of one evaluation; beyond 32, a prefix is better evaluated in groups, whose winners are compared in a further evaluation.
pub const MAX_ROUTES: usize = 128;
/// Most class or recommendation bits.
pub const MAX_BITS: usize = 32;

/// Whose bits decide first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Precedence {
    /// The member's class, then the exchange's recommendation (the paper's order).
    Member,
    /// The exchange's recommendation, then the member's class.
    Exchange,
}

/// What the member learns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Output {
    /// The winner's number, whose keys the member holds already.
    Index,
    /// The winner's route key, as in the paper: inputs have an export bit and a key for each route, and a dummy key.
    Key,
}

/// The public shape of a Select-Best circuit.
///
/// A lane is one member for one prefix. Inputs, for each route in order: `Valid` (1 row), `Class` (`class_bits` rows),
/// `Recommendation` (`recommendation_bits` rows, provided by party 1), and with key output `Export` (1 row) and `Key` (128
/// rows); after the last route, with key output, `Dummy` (128 rows, provided by party 1). Bigger numbers are better.
///
/// Outputs: the index in [`index_bits`](Self::index_bits) rows, then one row that is set if any route is valid (the
/// index is zero where it is not); or the key of the winner, or the dummy key, in 128 rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SelectBest {
    /// Routes to choose from: 1 to [`MAX_ROUTES`].
    pub routes: usize,
    /// Bits of the member's class: at most [`MAX_BITS`].
    pub class_bits: usize,
    /// Bits of the exchange's recommendation: at most [`MAX_BITS`].
    pub recommendation_bits: usize,
    /// Whose bits decide first.
    pub precedence: Precedence,
    pub output: Output,
}

/// A shape outside our limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("Select-Best takes 1 to {MAX_ROUTES} routes and at most {MAX_BITS} bits of each kind, not {0:?}")]
pub struct ShapeError(SelectBest);

impl SelectBest {
    /// The default: 8 bits of each kind, the member first, index output.
    #[must_use]
    pub fn standard(routes: usize) -> Self {
        let (precedence, output) = (Precedence::Member, Output::Index);
        Self { routes, class_bits: 8, recommendation_bits: 8, precedence, output }
    }

    /// The paper's: 4 bits of each kind, the member first, key output.
    #[must_use]
    pub fn paper(routes: usize) -> Self {
        let (precedence, output) = (Precedence::Member, Output::Key);
        Self { routes, class_bits: 4, recommendation_bits: 4, precedence, output }
    }

    /// Rows of the index: `ceil(log2(routes))`.
    #[must_use]
    pub fn index_bits(&self) -> usize {
        self.routes.next_power_of_two().ilog2() as usize
    }

    /// Builds the circuit; the same as [`select_best`].
    ///
    /// # Errors
    /// If the shape is outside our limits.
    pub fn circuit(&self) -> Result<Circuit, ShapeError> {
        select_best(*self)
    }
}

/// A route, or the winner of a match, as it enters the next match of the tournament.
#[derive(Clone)]
struct Contender {
    /// One if the route is valid.
    valid: Wire,
    /// Class and recommendation times `valid`, the most significant bit first.
    value: Vec<Wire>,
    /// The low bits of the route's number, one for each match so far.
    index: Vec<Wire>,
    /// The key, with key output.
    key: Vec<Wire>,
}

/// Builds the Select-Best circuit of `shape`.
///
/// A product of each route's `v` with its bits comes first, so that an invalid route counts as zero. The value compared
/// is (class, recommendation, `v`), so that a valid route never ties with the dummy. In each match the route of the
/// higher number wins only if its value is greater: ties go to the lowest number, and number 0 comes out where none is
/// valid. A match takes `2 + ceil(log2(bits))` rounds.
///
/// # Errors
/// If the shape is outside our limits.
pub fn select_best(shape: SelectBest) -> Result<Circuit, ShapeError> {
    let bits = shape.class_bits.max(shape.recommendation_bits);
    if shape.routes == 0 || shape.routes > MAX_ROUTES || bits > MAX_BITS {
        return Err(ShapeError(shape));
    }
    let mut build = Builder::new();
    let routes: Vec<_> = (0..shape.routes).map(|route| RouteWires::declare(&mut build, &shape, route)).collect();
    let dummy = match shape.output {
        Output::Index => Vec::new(),
        Output::Key => build.input(Kind::Dummy, 0, KEY_BITS),
    };
    let mut contenders: Vec<_> = routes.into_iter().map(|route| route.enter(&mut build, &shape)).collect();
    while contenders.len() > 1 {
        let last = contenders.len() == 2;
        let pairs = contenders.chunks(2).map(|pair| play(&mut build, pair, last)).collect();
        contenders = pairs;
    }
    let winner = contenders.swap_remove(0);
    let outputs = match shape.output {
        Output::Index => [winner.index, vec![winner.valid]].concat(),
        Output::Key => build.choose(winner.valid, &winner.key, &dummy),
    };
    Ok(build.finish(&outputs))
}

/// The input wires of one route.
struct RouteWires {
    valid: Wire,
    class: Vec<Wire>,
    recommendation: Vec<Wire>,
    export: Option<Wire>,
    key: Vec<Wire>,
}

impl RouteWires {
    fn declare(build: &mut Builder, shape: &SelectBest, route: usize) -> Self {
        let with_key = shape.output == Output::Key;
        Self {
            valid: build.input(Kind::Valid, route, 1)[0],
            class: build.input(Kind::Class, route, shape.class_bits),
            recommendation: build.input(Kind::Recommendation, route, shape.recommendation_bits),
            export: with_key.then(|| build.input(Kind::Export, route, 1)[0]),
            key: if with_key { build.input(Kind::Key, route, KEY_BITS) } else { Vec::new() },
        }
    }

    fn enter(self, build: &mut Builder, shape: &SelectBest) -> Contender {
        let valid = match self.export {
            Some(export) => build.and(self.valid, export),
            None => self.valid,
        };
        let mut value = match shape.precedence {
            Precedence::Member => [self.recommendation, self.class].concat(),
            Precedence::Exchange => [self.class, self.recommendation].concat(),
        };
        value.reverse();
        // A single route has no opponent, and its value is not an output.
        let value = if shape.routes == 1 { Vec::new() } else { build.product(valid, &value) };
        Contender { valid, value, index: Vec::new(), key: self.key }
    }
}

/// The winner of a match; a route without an opponent wins. After the last match the winner's value is not needed.
fn play(build: &mut Builder, pair: &[Contender], last: bool) -> Contender {
    let low = &pair[0];
    let Some(high) = pair.get(1) else {
        let mut alone = low.clone();
        alone.index.push(build.constant(false));
        return alone;
    };
    let high_wins = greater(build, high, low);
    let value_bits = if last { 0 } else { low.value.len() };
    let carried = |contender: &Contender| {
        [&[contender.valid], &contender.value[..value_bits], &contender.index[..], &contender.key[..]].concat()
    };
    let winner = build.choose(high_wins, &carried(high), &carried(low));
    let (valid, rest) = (winner[0], &winner[1..]);
    let (value, rest) = rest.split_at(value_bits);
    let (index, key) = rest.split_at(low.index.len());
    Contender { valid, value: value.to_vec(), index: [index, &[high_wins]].concat(), key: key.to_vec() }
}

/// One if `(a.value, a.valid)` is greater than `(b.value, b.valid)`.
///
/// Each bit gives (greater, equal); neighbours are joined in a tree. The lowest bit of the value and `valid` are one
/// leaf: an invalid route has value zero, so the two bits are one of three digits 00 < 01 < 11, and of digits
/// `(a1, a0)`, `(b1, b0)` the first is greater where `not b0 and (a0 xor a1)` differs from `not b1 and a1`.
fn greater(build: &mut Builder, a: &Contender, b: &Contender) -> Wire {
    let mut nodes = Vec::with_capacity(a.value.len().max(1));
    for (place, (a1, b1)) in a.value.iter().zip(&b.value).enumerate() {
        let not_b1 = build.not(*b1);
        let one_bit = build.and(not_b1, *a1);
        if place + 1 < a.value.len() {
            nodes.push((one_bit, Some(build.xor(*a1, not_b1))));
        } else {
            let not_b0 = build.not(b.valid);
            let one_of_two = build.xor(a.valid, *a1);
            let lowest = build.and(not_b0, one_of_two);
            nodes.push((build.xor(one_bit, lowest), None));
        }
    }
    if nodes.is_empty() {
        let not_b0 = build.not(b.valid);
        nodes.push((build.and(not_b0, a.valid), None));
    }
    while nodes.len() > 1 {
        nodes = nodes.chunks(2).map(|pair| join(build, pair)).collect();
    }
    nodes[0].0
}

/// Joins the (greater, equal) of a higher and a lower part; the lowest part of all has no `equal`, since nothing uses it.
fn join(build: &mut Builder, pair: &[(Wire, Option<Wire>)]) -> (Wire, Option<Wire>) {
    let &[(greater_high, Some(equal_high)), (greater_low, equal_low)] = pair else {
        return pair[0];
    };
    let vector: Vec<Wire> = [greater_low].into_iter().chain(equal_low).collect();
    let kept = build.product(equal_high, &vector);
    (build.xor(greater_high, kept[0]), kept.get(1).copied())
}

/// One route of one lane in plain numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Route {
    /// Opened and valid (with key output: and exported).
    pub valid: bool,
    pub class: u32,
    pub recommendation: u32,
}

/// The result of Select-Best in one lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The winner's number; zero where none is valid.
    pub index: usize,
    /// Whether any route is valid.
    pub valid: bool,
}

/// What [`select_best`] computes in one lane, as a plain search.
#[must_use]
pub fn select_best_reference(routes: &[Route], precedence: Precedence) -> Choice {
    let mut best: Option<(usize, (u32, u32))> = None;
    for (index, route) in routes.iter().enumerate().filter(|(_, route)| route.valid) {
        let value = match precedence {
            Precedence::Member => (route.class, route.recommendation),
            Precedence::Exchange => (route.recommendation, route.class),
        };
        if best.is_none_or(|(_, other)| value > other) {
            best = Some((index, value));
        }
    }
    Choice { index: best.map_or(0, |(index, _)| index), valid: best.is_some() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_circuit_of_32_routes_is_31_deep_and_costs_1055_correlations_a_lane() {
        let circuit = SelectBest::standard(32).circuit().unwrap();
        assert_eq!(circuit.depth(), 31);
        assert_eq!(circuit.products().count(), 1055);
        assert_eq!(circuit.outputs.len(), 6);
    }

    #[test]
    fn shapes_outside_the_limits_are_refused() {
        for (routes, class_bits) in [(0, 8), (129, 8), (2, 33)] {
            let shape = SelectBest { class_bits, ..SelectBest::standard(routes) };
            assert_eq!(shape.circuit(), Err(ShapeError(shape)));
        }
    }

    #[test]
    fn every_shape_within_the_limits_is_valid() {
        for routes in (1..=40).chain([64, 100, 128]) {
            for output in [Output::Index, Output::Key] {
                for (class_bits, recommendation_bits) in [(8, 8), (4, 4), (0, 0), (1, 0), (0, 3), (32, 32)] {
                    let precedence = Precedence::Exchange;
                    let shape = SelectBest { routes, class_bits, recommendation_bits, precedence, output };
                    assert_eq!(shape.circuit().unwrap().validate(), Ok(()));
                }
            }
        }
    }

    #[test]
    fn the_reference_prefers_class_then_recommendation_then_the_lowest_number() {
        let route = |valid, class, recommendation| Route { valid, class, recommendation };
        let routes = [route(true, 1, 9), route(true, 2, 0), route(true, 2, 0), route(false, 3, 3)];
        assert_eq!(select_best_reference(&routes, Precedence::Member), Choice { index: 1, valid: true });
        assert_eq!(select_best_reference(&routes, Precedence::Exchange), Choice { index: 0, valid: true });
        assert_eq!(select_best_reference(&routes[3..], Precedence::Member), Choice { index: 0, valid: false });
    }
}
