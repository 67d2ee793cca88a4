//! Two honest routers and one that says anything share a rate over links that lose, delay and repeat: what the honest ones let pass
//! never sums to more than the rate.
#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use wayleave_control::leases::{Lease, LeaseAnswer, LeaseRequest, Lessor, Offline};
use wayleave_core::Instant;

const RATE: u64 = 1_000_000;
const ROUTERS: usize = 3;
const STRANGER: u16 = 2;

fuzz_target!(|data: &[u8]| {
    let mut now = Instant(1_000_000_000_000);
    let offline = if data.first().is_some_and(|octet| octet % 2 == 0) { Offline::Decay } else { Offline::Floor };
    let routers = (0..ROUTERS as u16).collect();
    let mut lessor = Lessor::new(RATE, offline, &routers, now);
    // No two processes have the same, and each is a later start of its router.
    let mut session = 1_000_u64;
    let mut next = || {
        session += 1;
        Lease::new(RATE, offline, ROUTERS, (session << 32, 0))
    };
    let mut leases = [next(), next()];
    let (mut requests, mut answers): (Vec<(u16, LeaseRequest)>, Vec<(u16, LeaseAnswer)>) = (Vec::new(), Vec::new());
    for step in data.chunks_exact(4) {
        let [what, which, a, b] = [step[0], step[1], step[2], step[3]];
        let pick = |length: usize| usize::from(a) % length.max(1);
        match what % 8 {
            0 => now = now + Duration::from_millis(u64::from(a) << (which % 10)),
            1 | 2 => {
                let router = usize::from(which % 2);
                requests.push((router as u16, leases[router].request(u64::from(a) << (b % 40), now)));
            }
            3 => {
                let number = u64::from(a);
                let request = LeaseRequest {
                    session: u64::from(b % 4),
                    number,
                    uses: u64::from(which),
                    share: u64::MAX >> (which % 64),
                    demand: u64::MAX >> (b % 64),
                };
                requests.push((STRANGER + u16::from(which) % 2, request));
            }
            4 | 5 if !requests.is_empty() => {
                // The oldest, or any again.
                let at = if b % 2 == 0 { 0 } else { pick(requests.len()) };
                let (router, request) = if b % 4 < 3 { requests.remove(at) } else { requests[at] };
                answers.extend(lessor.handle(router, &request, now).map(|answer| (router, answer)));
            }
            6 if !answers.is_empty() => {
                let at = pick(answers.len());
                let (router, answer) = if b % 4 < 3 { answers.remove(at) } else { answers[at] };
                if let Some(lease) = leases.get_mut(usize::from(router)) {
                    lease.handle(&answer, now);
                }
            }
            7 if a < 8 => {
                // Whoever connects to another lessor takes no answers of the one before.
                lessor = Lessor::new(RATE, offline, &routers, now);
                requests.clear();
                answers.clear();
                leases.iter_mut().for_each(Lease::reconnected);
            }
            // A process that has ended uses nothing, and says nothing any more.
            7 if a < 16 => {
                let router = which % 2;
                leases[usize::from(router)] = next();
                requests.retain(|(of, _)| *of != u16::from(router));
            }
            _ => {}
        }
        let all: u64 = leases.iter().map(|lease| lease.rate(now)).sum();
        assert!(all + leases[0].floor() <= RATE, "{all}");
    }
});
