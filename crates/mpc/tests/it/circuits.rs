//! MPC-01: every circuit, through the real protocol of two parties, against a plain reference.

use crate::common::{Pair, Random};
use proptest::prelude::*;
use wayleave_mpc::circuit::{Circuit, Gate, Kind, Wire};
use wayleave_mpc::circuits::{
    Output, Precedence, Route, SelectBest, export_all, export_all_reference, select_best_reference,
};
use wayleave_mpc::{BitRows, Program};

/// Writes the routes of one lane to the input rows.
fn put(program: &Program, inputs: &mut BitRows, lane: usize, routes: &[Route]) {
    for (number, route) in routes.iter().enumerate() {
        let mut set = |kind, value: u128| {
            let input = program.input(kind, number).unwrap();
            inputs.set_number(input.first, input.bits, lane, value);
        };
        set(Kind::Valid, route.valid.into());
        set(Kind::Class, route.class.into());
        set(Kind::Recommendation, route.recommendation.into());
    }
}

/// Evaluates all lanes privately and compares the index output of each with the reference.
fn check_index(pair: &mut Pair, shape: SelectBest, lanes: &[Vec<Route>], random: &mut Random) {
    let program = Program::new(shape.circuit().unwrap()).unwrap();
    let mut inputs = BitRows::zero(program.input_rows(), lanes.len());
    for (lane, routes) in lanes.iter().enumerate() {
        put(&program, &mut inputs, lane, routes);
    }
    let out = pair.evaluate(&program, &inputs, random);
    assert!(out == program.oracle(&inputs), "the oracle differs for {shape:?}");
    for (lane, routes) in lanes.iter().enumerate() {
        let choice = select_best_reference(routes, shape.precedence);
        let bits = shape.index_bits();
        assert_eq!(out.number(0, bits, lane), choice.index as u128, "{shape:?} {routes:?}");
        assert_eq!(out.bit(bits, lane), choice.valid, "{shape:?} {routes:?}");
    }
}

fn random_routes(shape: &SelectBest, random: &mut Random) -> Vec<Route> {
    let few = random.below(2) == 0;
    let mut number = |bits: usize| random.word() as u32 & if few { 1 } else { u32::MAX } & ((1u64 << bits) - 1) as u32;
    (0..shape.routes)
        .map(|_| Route {
            valid: number(1) == 1,
            class: number(shape.class_bits),
            recommendation: number(shape.recommendation_bits),
        })
        .collect()
}

#[test]
fn every_case_of_up_to_4_routes_by_3_bits_equals_the_reference() {
    let (mut pair, mut random) = (Pair::new(1), Random::new(1));
    for routes in 1..=4 {
        for class_bits in 0..=3 {
            for precedence in [Precedence::Member, Precedence::Exchange] {
                let recommendation_bits = 3 - class_bits;
                let output = Output::Index;
                let shape = SelectBest { routes, class_bits, recommendation_bits, precedence, output };
                let route = |digit: usize| Route {
                    valid: digit & 1 == 1,
                    class: (digit >> 1) as u32 & ((1 << class_bits) - 1),
                    recommendation: (digit >> (1 + class_bits)) as u32,
                };
                let lanes: Vec<Vec<Route>> = (0..1usize << (4 * routes))
                    .map(|case| (0..routes).map(|number| route(case >> (4 * number) & 15)).collect())
                    .collect();
                check_index(&mut pair, shape, &lanes, &mut random);
            }
        }
    }
}

#[test]
fn random_lanes_of_any_number_of_routes_equal_the_reference() {
    let (mut pair, mut random) = (Pair::new(2), Random::new(2));
    for routes in (1..=40).chain([64, 127, 128]) {
        let shape = SelectBest::standard(routes);
        let lanes: Vec<_> = (0..20 + random.below(100)).map(|_| random_routes(&shape, &mut random)).collect();
        check_index(&mut pair, shape, &lanes, &mut random);
    }
}

#[test]
fn two_thousand_members_by_32_routes_equal_the_reference() {
    let (mut pair, mut random) = (Pair::new(3), Random::new(3));
    for lanes in [1, 63, 64, 65, 750, 2000] {
        let precedence = if lanes % 2 == 0 { Precedence::Member } else { Precedence::Exchange };
        let shape = SelectBest { precedence, ..SelectBest::standard(32) };
        let lanes: Vec<_> = (0..lanes).map(|_| random_routes(&shape, &mut random)).collect();
        check_index(&mut pair, shape, &lanes, &mut random);
    }
}

#[test]
fn a_member_that_votes_all_ones_does_not_touch_the_recommendation() {
    let (mut pair, mut random) = (Pair::new(4), Random::new(4));
    let shape = SelectBest { precedence: Precedence::Exchange, ..SelectBest::standard(2) };
    let route = |class, recommendation| Route { valid: true, class, recommendation };
    check_index(&mut pair, shape, &[vec![route(0, 1), route(0xff, 0)]], &mut random);
    let program = Program::new(shape.circuit().unwrap()).unwrap();
    for route in 0..2 {
        let class = program.input(Kind::Class, route).unwrap();
        let recommendation = program.input(Kind::Recommendation, route).unwrap();
        assert!(class.first + class.bits <= recommendation.first);
    }
}

#[test]
fn the_papers_key_output_is_the_winners_key_or_the_dummy() {
    let (mut pair, mut random) = (Pair::new(5), Random::new(5));
    for routes in [1, 2, 3, 5, 8] {
        let shape = SelectBest::paper(routes);
        let program = Program::new(shape.circuit().unwrap()).unwrap();
        let lanes: Vec<Vec<(bool, Route, u128)>> = (0..50)
            .map(|_| {
                let routes = random_routes(&shape, &mut random);
                let with_key = |route| (random.below(2) == 1, route, u128::from(random.word()) << 64 | 1);
                routes.into_iter().map(with_key).collect()
            })
            .collect();
        let mut inputs = BitRows::zero(program.input_rows(), lanes.len());
        let dummy = program.input(Kind::Dummy, 0).unwrap();
        for (lane, routes) in lanes.iter().enumerate() {
            inputs.set_number(dummy.first, dummy.bits, lane, 0xd);
            put(&program, &mut inputs, lane, &routes.iter().map(|(_, route, _)| *route).collect::<Vec<_>>());
            for (number, (export, _, key)) in routes.iter().enumerate() {
                inputs.set_bit(program.input(Kind::Export, number).unwrap().first, lane, *export);
                inputs.set_number(program.input(Kind::Key, number).unwrap().first, 128, lane, *key);
            }
        }
        let out = pair.evaluate(&program, &inputs, &mut random);
        for (lane, routes) in lanes.iter().enumerate() {
            let exported = routes.iter().map(|(export, route, _)| Route { valid: route.valid && *export, ..*route });
            let choice = select_best_reference(&exported.collect::<Vec<_>>(), Precedence::Member);
            let key = if choice.valid { routes[choice.index].2 } else { 0xd };
            assert_eq!(out.number(0, 128, lane), key);
        }
    }
}

#[test]
fn export_all_gives_the_key_to_those_the_policy_names() {
    let (mut pair, mut random) = (Pair::new(6), Random::new(6));
    let program = Program::new(export_all()).unwrap();
    for lanes in [1, 10, 750] {
        let mut inputs = random.rows(program.input_rows(), lanes);
        (0..lanes).for_each(|lane| inputs.set_number(129, 128, lane, 7));
        let out = pair.evaluate(&program, &inputs, &mut random);
        for lane in 0..lanes {
            let expected = export_all_reference(inputs.bit(0, lane), inputs.number(1, 128, lane), 7);
            assert_eq!(out.number(0, 128, lane), expected);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_shape_equals_the_reference(
        routes in 1usize..=40,
        class_bits in 0usize..=12,
        recommendation_bits in 0usize..=12,
        exchange_first in any::<bool>(),
        lanes in 1usize..=100,
        seed in any::<u64>(),
    ) {
        let precedence = if exchange_first { Precedence::Exchange } else { Precedence::Member };
        let shape = SelectBest { routes, class_bits, recommendation_bits, precedence, output: Output::Index };
        let mut random = Random::new(seed);
        let lanes: Vec<_> = (0..lanes).map(|_| random_routes(&shape, &mut random)).collect();
        check_index(&mut Pair::new(seed as u8), shape, &lanes, &mut random);
    }
}

/// Changes one number of a circuit.
fn change(circuit: &mut Circuit, random: &mut Random) {
    let wires = circuit.wires + 2;
    let layer = random.below(circuit.layers.len());
    let layer = &mut circuit.layers[layer];
    let wire = Wire(random.below(wires) as u32);
    let (gate, product) = (random.below(layer.local.len().max(1)), random.below(layer.products.len().max(1)));
    match random.below(7) {
        0 => circuit.wires = wires - random.below(5),
        1 => layer
            .local
            .get_mut(gate)
            .into_iter()
            .for_each(|gate| *gate = Gate::Not { input: wire, out: Wire(wire.0 + 1) }),
        2 => layer.local.get_mut(gate).into_iter().for_each(|gate| match gate {
            Gate::Xor { left, .. } => *left = wire,
            Gate::Not { input, .. } => *input = wire,
            Gate::Constant { bit, .. } => *bit = !*bit,
        }),
        3 => layer.products.get_mut(product).into_iter().for_each(|product| product.bit = wire),
        4 => layer.products.get_mut(product).into_iter().for_each(|product| product.vector[0] = wire),
        5 => drop(layer.products.pop()),
        _ => circuit.outputs.push(wire),
    }
}

#[test]
fn a_changed_circuit_is_refused_or_evaluated_right() {
    let (mut pair, mut random) = (Pair::new(7), Random::new(7));
    let (mut refused, mut evaluated) = (0, 0);
    for round in 0..600 {
        let shape = SelectBest { class_bits: 2, recommendation_bits: 1, ..SelectBest::standard(1 + round % 5) };
        let mut circuit = shape.circuit().unwrap();
        (0..1 + random.below(2)).for_each(|_| change(&mut circuit, &mut random));
        match Program::new(circuit) {
            Err(_) => refused += 1,
            Ok(program) => {
                let lanes = 1 + random.below(70);
                let inputs = random.rows(program.input_rows(), lanes);
                assert!(pair.evaluate(&program, &inputs, &mut random) == program.oracle(&inputs));
                evaluated += 1;
            }
        }
    }
    assert!(refused > 100 && evaluated > 100, "{refused} refused, {evaluated} evaluated");
}
