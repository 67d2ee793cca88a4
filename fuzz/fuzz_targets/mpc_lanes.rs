//! Any octets as the byte rows of a share: what is read is written as it was, but for bits that belong to no row.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wayleave_mpc::BitRows;

fuzz_target!(|data: &[u8]| {
    let [rows, lanes, bytes @ ..] = data else { return };
    let (rows, lanes) = (usize::from(*rows), usize::from(*lanes));
    let Some(matrix) = BitRows::from_lanes(rows, lanes, bytes) else {
        assert_ne!(rows.div_ceil(8) * lanes, bytes.len());
        return;
    };
    let again = matrix.to_lanes();
    assert_eq!(again.len(), bytes.len());
    assert!(BitRows::from_lanes(rows, lanes, &again).is_some_and(|same| same == matrix));
    for lane in 0..lanes {
        assert_eq!(matrix.lane(lane), again[lane * rows.div_ceil(8)..][..rows.div_ceil(8)]);
    }
});
