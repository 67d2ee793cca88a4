//! Huge pages for large tables. A replay filter of 48 MB is read at random places: with pages of 4 KiB nearly every packet
//! waits for the processor to walk the page tables, and for two walks where the machine is virtual.
#![allow(unsafe_code, reason = "an allocator that asks the system for huge pages, and otherwise is the system's")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes of a huge page of x86-64, and of other processors with pages of 4 KiB.
const HUGE: usize = 2 << 20;
/// Bytes of the least allocation that is sure to hold a whole huge page.
const LARGE: usize = 2 * HUGE;

static ENABLED: AtomicBool = AtomicBool::new(false);

/// From now on the process' large allocations may have huge pages. A forwarding role enables them before it makes its
/// tables; other roles do without, since a large vector that grows is then copied: the system does not move pages of
/// different kinds as one piece.
///
/// This needs [`Allocator`] as the program's allocator, and a system that gives huge pages to those who ask
/// (`/sys/kernel/mm/transparent_hugepage/enabled` is `madvise` or `always`). Elsewhere it changes nothing.
pub fn enable() {
    ENABLED.store(true, Ordering::Relaxed);
}

/// The system's allocator, which after [`enable`] advises the system where huge pages are worth having.
#[derive(Clone, Copy, Debug)]
pub struct Allocator;

// SAFETY: every call goes to the system's allocator with what it was called with; advice changes no byte.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `GlobalAlloc`, which is the same.
        advise(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        advise(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above; `memory` came from the system's allocator under this layout.
        advise(unsafe { System.realloc(memory, layout, size) }, size)
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

/// Advises the system to use huge pages for the whole ones within an allocation, which may have failed.
#[inline]
fn advise(memory: *mut u8, size: usize) -> *mut u8 {
    if size >= LARGE && ENABLED.load(Ordering::Relaxed) && !memory.is_null() {
        let first = memory.addr().next_multiple_of(HUGE);
        let length = (memory.addr() + size - first) / HUGE * HUGE;
        // SAFETY: the bytes are the caller's, and the advice is about nothing but how they are mapped.
        unsafe { libc::madvise(memory.with_addr(first).cast(), length, libc::MADV_HUGEPAGE) };
    }
    memory
}
