//! The fast path takes no memory: a burst on kept paths allocates nothing, forwarded or stamped.
#![allow(unsafe_code, reason = "an allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;

use wayleave_crypto::lanes::Kernel;
use wayleave_dataplane::icing::bench::{Bench, Work};
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
