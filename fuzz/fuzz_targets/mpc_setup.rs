//! Any octets as the peer's message in any round of setup, alone or laid over an honest one: an error or a step, no panic,
//! and an end after the first error.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wayleave_mpc::{Chunk, Error, Misuse, Role, Rounds, SessionId, Setup, Step, Width};

fuzz_target!(|data: &[u8]| {
    let Some((&choice, bytes)) = data.split_first() else { return };
    let id = SessionId([1; 16]);
    let (mut one, mut two) = (Setup::new(Role::Party1, id, [1; 32]), Setup::new(Role::Party2, id, [2; 32]));
    for setup in [&mut one, &mut two] {
        setup
            .request(Chunk { width: Width::ALL[usize::from(choice >> 5)], count: 128 })
            .expect("a chunk within the limits");
    }
    let (mut first, mut second) = (one.round(None), two.round(None));
    for _ in 0..choice % 4 {
        let (Ok(Step::Send(a)), Ok(Step::Send(b))) = (&first, &second) else { panic!("honest ends go on") };
        let (a, b) = (a.clone(), b.clone());
        (first, second) = (one.round(Some(&b)), two.round(Some(&a)));
    }
    let Ok(Step::Send(honest)) = second else { panic!("honest ends go on") };
    assert_eq!(one.expects(), Some(honest.len()));
    let message = if choice & 0x10 == 0 {
        bytes.to_vec()
    } else {
        let mut message = honest;
        message.iter_mut().zip(bytes).for_each(|(to, from)| *to ^= from);
        message
    };
    if one.round(Some(&message)).is_err() {
        assert_eq!(one.round(None).map(drop), Err(Error::Caller(Misuse::Ended)));
    }
});
