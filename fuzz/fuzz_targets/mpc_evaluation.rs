//! Any octets as the peer's messages of an evaluation, alone or laid over honest ones: an error or a step, no panic, no step
//! on a wrong length, and an end after the first error.
#![no_main]

use std::cell::RefCell;

use libfuzzer_sys::fuzz_target;
use wayleave_mpc::circuits::SelectBest;
use wayleave_mpc::{
    BitRows, Demand, Error, Evaluation, Misuse, Pool, Program, Role, Rounds, SessionId, Setup, Step, lockstep,
};

struct Ends {
    setups: [Setup; 2],
    pools: [Pool; 2],
    programs: Vec<Program>,
}

thread_local! {
    static ENDS: RefCell<Ends> = RefCell::new(Ends::new());
}

impl Ends {
    fn new() -> Self {
        let id = SessionId([1; 16]);
        let setups = [Setup::new(Role::Party1, id, [1; 32]), Setup::new(Role::Party2, id, [2; 32])];
        let program =
            |routes| Program::new(SelectBest::standard(routes).circuit().expect("few routes")).expect("valid");
        let mut ends =
            Self { setups, pools: [Pool::new(1 << 24), Pool::new(1 << 24)], programs: (1..6).map(program).collect() };
        ends.link();
        ends
    }

    fn link(&mut self) {
        let [one, two] = &mut self.setups;
        let (first, second) = lockstep(one, two).expect("honest ends");
        self.pools[0].add(first).expect("room");
        self.pools[1].add(second).expect("room");
    }

    fn start(&mut self, program: &Program, lanes: usize) -> [Evaluation; 2] {
        for chunk in self.pools[0].missing_for(&Demand::of(program, lanes)).chunks(1 << 14) {
            self.setups.iter_mut().for_each(|setup| setup.request(chunk).expect("a chunk within the limits"));
            self.link();
        }
        let inputs = BitRows::zero(program.input_rows(), lanes);
        self.pools.each_mut().map(|pool| Evaluation::new(program, &inputs, pool).expect("enough correlations"))
    }
}

fuzz_target!(|data: &[u8]| {
    let [choice, lanes, skip, bytes @ ..] = data else { return };
    ENDS.with_borrow_mut(|ends| {
        let program = ends.programs[usize::from(choice % 5)].clone();
        let [mut one, mut two] = ends.start(&program, usize::from(lanes % 80));
        let (mut first, mut second) = (one.round(None), two.round(None));
        let mut round = 0;
        while let (Ok(Step::Send(a)), Ok(Step::Send(mut b))) = (first, second) {
            assert_eq!(one.expects(), Some(b.len()));
            if round == *skip % 32 {
                if choice & 0x80 == 0 {
                    b = bytes.to_vec();
                } else {
                    b.iter_mut().skip(usize::from(*choice & 8)).zip(bytes).for_each(|(to, from)| *to ^= from);
                }
            }
            let due = one.expects();
            first = one.round(Some(&b));
            second = two.round(Some(&a));
            round += 1;
            if first.is_err() {
                assert_eq!(one.round(None).map(drop), Err(Error::Caller(Misuse::Ended)));
                return;
            }
            assert_eq!(due, Some(b.len()));
        }
    });
});
