//! Times the charge of one packet: to an account that is there, and of a sub-delegation that has none, whose packets count in
//! their delegation; beside a table that this flood itself has filled, and beside one that others have.
#![allow(clippy::disallowed_methods, reason = "an example times; the crate does not")]

use std::time::Instant;

use wayleave_dataplane::platypus::account::Accounts;
use wayleave_packet::platypus::header::{DelegationId, Principal};
use wayleave_packet::platypus::verify::Charge;

const ACCOUNTS: u32 = 4_096;
const PACKETS: u32 = 1 << 20;

fn main() {
    let now = wayleave_core::Instant(0);
    for (name, others) in [("alone", 0), ("beside 64", 64)] {
        let mut accounts = Accounts::new(ACCOUNTS as usize, 1);
        for number in 0..2 * ACCOUNTS * others.min(1) {
            accounts.charge(&charge(2 + number % others, 1, Some(number)), 100, now);
        }
        for number in 0..ACCOUNTS {
            accounts.charge(&charge(1, 1, Some(number)), 100, now);
        }
        drop(accounts.journal());
        let known = |number: u32| charge(1, 1, Some(number % 16));
        let folded = |number: u32| charge(1, 1, Some(ACCOUNTS + number));
        let mut best = [f64::MAX; 2];
        for _ in 0..15 {
            for (best, of) in best.iter_mut().zip([&known as &dyn Fn(u32) -> Charge, &folded]) {
                let begin = Instant::now();
                for number in 0..PACKETS {
                    accounts.charge(&of(number), 100, now);
                }
                *best = best.min(begin.elapsed().as_secs_f64() * 1e9 / f64::from(PACKETS));
            }
        }
        println!("{name}: known {:.1} ns, folded {:.1} ns", best[0], best[1]);
    }
}

fn charge(principal: u32, delegation: u32, sub: Option<u32>) -> Charge {
    let id = |number: u32| DelegationId::new(number & 0xff_ffff).expect("24 bits");
    let delegation = Some((id(delegation), sub.map(id)));
    Charge { principal: Principal::new(principal).expect("24 bits"), delegation, interval: None, epoch: 0 }
}
