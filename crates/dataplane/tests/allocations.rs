//! The fast path takes no memory: a burst allocates nothing, forwarded or stamped, in every format.
#![allow(unsafe_code, reason = "an allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;

use wayleave_crypto::lanes::Kernel;
use wayleave_dataplane::icing::bench::{Bench, Work};
use wayleave_dataplane::{bench, platypus};
use wayleave_packet::icing::mint::Form;

thread_local! {
    /// Allocations of this thread.
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: everything is done by the system's allocator; a thread's own counter is counted up beside it.
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
    for kernel in Kernel::available() {
        for work in [Work::Forward, Work::Full, Work::Stamp] {
            for form in [Form::Path, Form::Handle] {
                let mut bench = Bench::new(work, 200, form, kernel);
                let before = allocations();
                let (done, _) = bench.pass(&mut || Duration::ZERO);
                assert_eq!(allocations() - before, 0, "{work:?} {form:?} on {}", kernel.name());
                assert!(done + 4 >= bench.packets());
            }
        }
    }
}

/// With revocations, replay filter and accounts, and stamped.
#[test]
fn bursts_of_platypus_are_forwarded_and_stamped_without_an_allocation() {
    use platypus::bench::{Bench, StampBench, Work};
    for kernel in Kernel::available() {
        for work in [Work::Plain, Work::Full] {
            let mut bench = Bench::new(work, 348, kernel);
            let before = COUNT.with(Cell::get);
            let (done, _) = bench.pass(&mut || Duration::ZERO);
            assert_eq!(COUNT.with(Cell::get) - before, 0, "{work:?} on {}", kernel.name());
            assert!(done + 4 >= bench.packets());
        }
        let mut bench = StampBench::new(348, kernel);
        let before = COUNT.with(Cell::get);
        let mut within = 0;
        // The clock is asked before and after; the packets are put back behind it.
        let mut clock = || {
            within = COUNT.with(Cell::get) - before;
            Duration::ZERO
        };
        assert_eq!(bench.pass(&mut clock).0, bench.packets());
        assert_eq!(within, 0, "stamping on {}", kernel.name());
    }
}

#[test]
fn bursts_of_scion_are_forwarded_without_an_allocation() {
    for kernel in Kernel::available() {
        for work in [bench::Work::Scion, bench::Work::Scion2015] {
            let mut bench = bench::Bench::new(work, 1_500, &[], kernel, 5).expect("no routes");
            let before = COUNT.with(Cell::get);
            assert_eq!(bench.pass(&mut || Duration::ZERO).0, bench.packets());
            assert_eq!(COUNT.with(Cell::get) - before, 0, "{work:?} on {}", kernel.name());
        }
    }
}
