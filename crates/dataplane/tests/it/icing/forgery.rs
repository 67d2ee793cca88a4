//! How many random verifiers pass.

use wayleave_dataplane::frame::{BURST, Frame, Ingress};
use wayleave_dataplane::icing::{Action, Router};
use wayleave_packet::icing::mint::Form;

use super::world::{self, LINK, Random, TIME, at, packet, sender, times};

/// Of `tries` packets with a random verifier, how many `router` forwards.
fn accepted(mut router: Router, tries: usize) -> usize {
    let sender = sender(&[0, 1, 2]);
    world::process(&mut router, &packet(&sender, Form::Path, 0, b""), LINK);
    let handle = packet(&sender, Form::Handle, 1, b"");
    // Proofs begin behind the handle; node 1's verifier behind its pre-check.
    let verifier = 32 + 8..32 + 24;
    let mut random = Random(6);
    let mut passed = 0;
    for _ in 0..tries.div_ceil(BURST) {
        let mut octets: [Vec<u8>; BURST] = std::array::from_fn(|_| handle.clone());
        for octets in &mut octets {
            octets[verifier.clone()][..8].copy_from_slice(&random.next().to_be_bytes());
            octets[verifier.clone()][8..].copy_from_slice(&random.next().to_be_bytes());
        }
        let mut frames = octets.each_mut().map(|octets| Frame { octets, ingress: Ingress::External(LINK) });
        let actions = router.process(&mut frames, at(TIME));
        passed += actions.iter().filter(|action| !matches!(action, Action::Drop(_))).count();
    }
    passed
}

/// ICD-10, within three standard deviations. `WAYLEAVE_ICING_FORGERIES=100000000` expects 1,526 +- 117.
#[test]
fn one_forgery_in_65_536_passes_if_16_bits_are_compared_and_none_if_all_are() {
    let tries = times("WAYLEAVE_ICING_FORGERIES", 1_000_000);
    // Repeated packets pass: every forgery is of one packet.
    let router = || {
        let config = wayleave_dataplane::icing::Config { replay_capacity: 0, ..world::config(1, 3) };
        Router::new(config, wayleave_crypto::lanes::CpuKernel::best()).unwrap()
    };
    let lucky = accepted(router().with_16_bit_verifiers(), tries) as f64;
    let mean = tries as f64 / 65_536.0;
    assert!((lucky - mean).abs() <= 3.0 * mean.sqrt(), "{lucky} of {tries}, {mean} expected");
    assert_eq!(accepted(router(), tries / 4), 0);
}
