//! Work whose panic costs one route or one packet, and not the process.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    /// Calls of [`contained`] that this thread is in.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Runs `work`; `None` if it panicked. Everywhere else a panic ends the process, since nobody knows what it left half done: so
/// `work` must change nothing that is used after a panic. The caller reports what was lost.
#[expect(clippy::disallowed_methods, reason = "the one place where a panic is caught")]
pub fn contained<T>(work: impl FnOnce() -> T) -> Option<T> {
    DEPTH.set(DEPTH.get() + 1);
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        #[cfg(debug_assertions)]
        ordered::panic_if_due();
        work()
    }));
    DEPTH.set(DEPTH.get() - 1);
    outcome.ok()
}

/// Whether a panic of this thread, now, costs the work in hand alone.
#[must_use]
pub fn is_contained() -> bool {
    DEPTH.get() > 0
}

/// Panics that a test orders; not in release builds.
#[cfg(debug_assertions)]
mod ordered {
    use std::sync::atomic::{AtomicU32, Ordering};

    static DUE: AtomicU32 = AtomicU32::new(0);

    /// The next `count` calls of [`contained`](super::contained) panic, in any thread.
    pub fn order_contained_panics(count: u32) {
        DUE.store(count, Ordering::SeqCst);
    }

    pub(super) fn panic_if_due() {
        let is_due = DUE.try_update(Ordering::SeqCst, Ordering::SeqCst, |due| due.checked_sub(1)).is_ok();
        assert!(!is_due, "a panic that a test has ordered");
    }
}

#[cfg(debug_assertions)]
pub use ordered::order_contained_panics;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_contained_within_and_not_after() {
        assert!(!is_contained());
        assert_eq!(contained(|| contained(is_contained)), Some(Some(true)));
        assert_eq!(contained(|| -> u8 { panic!("a fault") }), None);
        assert!(!is_contained());
    }
}
