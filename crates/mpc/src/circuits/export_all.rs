//! Export-All in `mpc` mode: the route key where the policy allows it, the dummy key elsewhere (SIXPACK, section 5.4).

use crate::builder::Builder;
use crate::circuit::{Circuit, Kind};

const KEY_BITS: usize = 128;

/// A multiplexer of two 128-bit keys: a lane is one receiver of one route.
///
/// Inputs: `Export` (1 row, `P[receiver][route]`), `Key` (128 rows), `Dummy` (128 rows, provided by party 1). Outputs: 128
/// rows, `P (key xor dummy) xor dummy`. One product of 128 bits, one round.
#[must_use]
pub fn export_all() -> Circuit {
    let mut build = Builder::new();
    let export = build.input(Kind::Export, 0, 1);
    let key = build.input(Kind::Key, 0, KEY_BITS);
    let dummy = build.input(Kind::Dummy, 0, KEY_BITS);
    let out = build.choose(export[0], &key, &dummy);
    build.finish(&out)
}

/// What [`export_all`] computes in one lane.
#[must_use]
pub fn export_all_reference(export: bool, key: u128, dummy: u128) -> u128 {
    if export { key } else { dummy }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::BitRows;

    #[test]
    fn the_key_goes_where_the_policy_allows() {
        let circuit = export_all();
        let mut inputs = BitRows::zero(circuit.input_rows(), 2);
        for lane in 0..2 {
            inputs.set_bit(0, lane, lane == 1);
            inputs.set_number(1, 128, lane, 7 << 100);
            inputs.set_number(129, 128, lane, u128::MAX);
        }
        let out = circuit.oracle(&inputs);
        for lane in 0..2 {
            assert_eq!(out.number(0, 128, lane), export_all_reference(lane == 1, 7 << 100, u128::MAX));
        }
        assert_eq!((circuit.depth(), circuit.vector_ands()), (1, vec![(128, 1)]));
    }
}
