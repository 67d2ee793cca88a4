//! Forwarding and stamping a burst allocates no memory, in every format.
//!
//! PLA, stamper: bursts stamped by rule: no allocation.
//! PLA, shares: accounts that open, and packets whose accounts have no place: no allocation.
//! FWD, no allocation: bursts of every format, forwarded and stamped, on every kernel: no memory is taken.
#![allow(unsafe_code, reason = "an allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;

use wayleave_crypto::lanes::CpuKernel;
use wayleave_packet::icing::mint::Form;
use wayleave_papers::bench::forward::{ForwardBench, ForwardTask};
use wayleave_papers::bench::icing::{IcingBench, IcingTask};
use wayleave_papers::bench::platypus::{PlatypusBench, PlatypusStampBench, PlatypusTask};
use wayleave_papers::bench::slots::{Headroom, PACKETS};

thread_local! {
    /// Allocations of this thread.
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: the system's allocator does the work; only a counter of the calling thread is incremented.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn bursts_are_forwarded_and_stamped_without_an_allocation() {
    let allocations = || COUNT.with(Cell::get);
    assert_eq!(
        {
            let before = allocations();
            drop(std::hint::black_box(vec![0u8; 10]));
            allocations() - before
        },
        1,
        "the counter counts"
    );
    for kernel in CpuKernel::available() {
        for work in
            [IcingTask::Forward, IcingTask::Full, IcingTask::Stamp, IcingTask::ForwardSealed, IcingTask::StampSealed]
        {
            for form in [Form::Path, Form::Handle] {
                let mut bench = IcingBench::new(work, 200, form, kernel, Headroom::Staggered);
                let before = allocations();
                let (done, _) = bench.pass(&mut || Duration::ZERO);
                assert_eq!(allocations() - before, 0, "{work:?} {form:?} on {}", kernel.name());
                assert!(done + 4 >= PACKETS);
            }
        }
    }
}

/// Forwarded with and without revocations, replay filter and accounts; and stamped.
#[test]
fn bursts_of_platypus_are_forwarded_and_stamped_without_an_allocation() {
    for kernel in CpuKernel::available() {
        for work in [PlatypusTask::Plain, PlatypusTask::Full] {
            let mut bench = PlatypusBench::with_rate(work, 348, kernel, Headroom::Staggered, 50_000);
            let mut counts = Vec::with_capacity(2);
            let (done, _) = bench.pass(&mut || {
                counts.push(COUNT.with(Cell::get));
                Duration::ZERO
            });
            assert_eq!(counts[1] - counts[0], 0, "{work:?} on {}", kernel.name());
            assert!(done + 4 >= PACKETS);
        }
        let mut bench = PlatypusStampBench::new(348, kernel, Headroom::Staggered);
        let before = COUNT.with(Cell::get);
        let mut within = 0;
        // The clock is read before and after the work; restoring the packets comes later.
        let mut clock = || {
            within = COUNT.with(Cell::get) - before;
            Duration::ZERO
        };
        assert_eq!(bench.pass(&mut clock).0, PACKETS);
        assert_eq!(within, 0, "stamping on {}", kernel.name());
    }
}

/// Sub-delegations without end, most of which count in their delegation; and their accounts, as they open and close.
#[test]
fn packets_of_accounts_that_have_no_place_are_charged_without_an_allocation() {
    use wayleave_core::Instant;
    use wayleave_dataplane::platypus::account::{Accounts, ChargeOutcome};
    use wayleave_packet::platypus::header::{DelegationId, Principal};
    use wayleave_packet::platypus::verify::Charge;

    let mut accounts = Accounts::new(4_096, 1);
    let id = |number| DelegationId::new(number).unwrap();
    let mut folded = 0;
    for epoch in 0..4 {
        let charge = |sub| Charge {
            principal: Principal::new(7).unwrap(),
            delegation: Some((id(3), Some(id(sub)))),
            interval: None,
            epoch,
        };
        let before = COUNT.with(Cell::get);
        for sub in 0..8_000 {
            folded += u32::from(accounts.charge(&charge(sub), 100, Instant(0)) == ChargeOutcome::Folded);
        }
        assert_eq!(COUNT.with(Cell::get) - before, 0, "epoch {epoch}");
        drop(accounts.journal());
        (0..8_000).for_each(|sub| assert!(accounts.close(&charge(sub))));
    }
    assert!(folded > 4 * 6_000, "{folded}");
}

/// One capability and two, first stamped and then appended.
#[test]
fn bursts_are_stamped_by_rule_without_an_allocation() {
    use wayleave_core::{Prefix, UnixTime};
    use wayleave_crypto::secret::Key128;
    use wayleave_dataplane::stamper::{
        Config, LeaveReason, Location, Outcome, OutgoingPacket, Route, Rule, RuleAction, Stamper,
    };
    use wayleave_packet::platypus::header::{Capability, Carriage, Interval, Marks, Principal, Width};
    use wayleave_packet::platypus::mint::{Hop, Position, StampKey, epoch};

    let now = UnixTime(1_795_240_800_000_000);
    let interval = Interval::new(12).unwrap();
    let hop = |number: u8| {
        let capability = Capability {
            waypoint: [198, 51, 100, number].into(),
            principal: Principal::new(7).unwrap(),
            interval,
            epoch: epoch::epoch_at(interval, now),
            marks: Marks::default(),
            delegation: None,
            width: Width::Full,
        };
        Hop { capability, key: StampKey::new(Key128::new([number; 16])) }
    };
    let route = |hops| Route { hops, sealed: false, carriage: Carriage::Ip, mtu: 1_500, only_from: None };
    let to = Prefix::truncated([0, 0, 0, 0].into(), 0).unwrap();
    let rules =
        [0u16, 1].map(|place| Rule { to, user: None, mark: Some(place.into()), action: RuleAction::Take(place) });
    let config = Config {
        location: Location::Network(Position::Next),
        routes: vec![route(vec![hop(1)]), route(vec![hop(2), hop(3)])],
        rules: rules.to_vec(),
        share: (0, 1),
    };
    let mut inner = vec![0x45, 0, 0, 100, 0, 0, 0, 0, 64, 6, 0, 0, 192, 0, 2, 7, 203, 0, 113, 9];
    inner.resize(100, 9);
    for kernel in CpuKernel::available() {
        let mut stamper = Stamper::new(config.clone(), kernel).unwrap();
        let mut buffers: Vec<Vec<u8>> = (0..64).map(|_| [&[0; 300][..], &inner].concat()).collect();
        let mut outcomes = vec![Outcome::from(LeaveReason::Rule); 64];
        let mut begins = vec![300; 64];
        for round in 0..2 {
            let mut packets: Vec<OutgoingPacket<'_>> = (0u32..)
                .zip(buffers.iter_mut().zip(&begins))
                .map(|(mark, (buffer, &begin))| OutgoingPacket { buffer, begin, user: None, mark: mark % 2 })
                .collect();
            let before = COUNT.with(Cell::get);
            stamper.stamp(&mut packets, now, &mut outcomes);
            assert_eq!(COUNT.with(Cell::get) - before, 0, "round {round} on {}", kernel.name());
            for (begin, outcome) in begins.iter_mut().zip(&outcomes) {
                let Outcome::Stamped(place) = outcome else { panic!("{outcome:?}") };
                *begin = place.start;
            }
        }
        assert_eq!((stamper.counters().stamped, stamper.counters().appended), (64, 64));
    }
}

#[test]
fn bursts_of_scion_are_forwarded_without_an_allocation() {
    for kernel in CpuKernel::available() {
        for work in [ForwardTask::Scion, ForwardTask::Scion2015] {
            let mut bench = ForwardBench::new(work, 1_500, &[], kernel, Headroom::Staggered, 5).expect("no routes");
            let before = COUNT.with(Cell::get);
            assert_eq!(bench.pass(&mut || Duration::ZERO).0, PACKETS);
            assert_eq!(COUNT.with(Cell::get) - before, 0, "{work:?} on {}", kernel.name());
        }
    }
}
