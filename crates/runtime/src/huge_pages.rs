//! Huge pages for large tables. A replay filter of 48 MB is met at random places: with pages of 4 KiB nearly every packet
//! waits for the processor to walk the page tables, twice where the machine is a virtual one.
#![allow(unsafe_code, reason = "an allocator that asks the system for huge pages, and otherwise is the system's")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, Ordering};

/// Octets of a huge page of x86-64, and of others with pages of 4 KiB.
const HUGE: usize = 2 << 20;
/// Octets of the least allocation that is sure to hold a whole one.
const LARGE: usize = 2 * HUGE;

static ASKED: AtomicBool = AtomicBool::new(false);

/// From now on the process' large allocations may have huge pages: a forwarding role asks for them before it makes its
/// tables. It needs [`Allocator`] as the program's allocator, and a system that gives huge pages to those who ask
/// (`/sys/kernel/mm/transparent_hugepage/enabled` is `madvise` or `always`); elsewhere this changes nothing. A large
/// vector that grows is copied from then on: the system does not move pages of different kinds as one piece.
pub fn ask() {
    ASKED.store(true, Ordering::Relaxed);
}

/// The system's allocator, which after [`ask`] tells the system where huge pages are worth having.
#[derive(Clone, Copy, Debug)]
pub struct Allocator;

// SAFETY: every call goes to the system's allocator with what it was called with; advice changes no octet.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `GlobalAlloc`, which is the same.
        advised(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        advised(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above; `place` came from the system's allocator under this layout.
        advised(unsafe { System.realloc(place, layout, size) }, size)
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(place, layout) }
    }
}

/// Tells the system about the whole huge pages of an allocation, which may have failed.
#[inline]
fn advised(place: *mut u8, size: usize) -> *mut u8 {
    if size >= LARGE && ASKED.load(Ordering::Relaxed) && !place.is_null() {
        let first = place.addr().next_multiple_of(HUGE);
        let length = (place.addr() + size - first) / HUGE * HUGE;
        // SAFETY: the octets are the caller's, and the advice is about nothing but how they are mapped.
        unsafe { libc::madvise(place.with_addr(first).cast(), length, libc::MADV_HUGEPAGE) };
    }
    place
}
