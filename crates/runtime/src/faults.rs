//! Faults that a test orders of a running process: a panic or a standstill, at a place by its name. Release builds have none of it.
//!
//! The variable [`VARIABLE`] names a file; once it has a line such as `panic task`, that happens, once. Places: `thread`, `task` and
//! `blocking`, each made for it; `contained`, the next work on a route; and where the program calls [`point`].
//!
//! The clocks take orders too: `asleep SECONDS`, both go ahead by so much more, as those of a machine that slept; `ahead SECONDS`, the
//! wall clock shows so much more than it should, or less.

use std::time::Duration;

#[cfg(debug_assertions)]
pub use ordered::{ahead, asleep, point, start};

/// Where a debug build reads what a test orders.
pub const VARIABLE: &str = "WAYLEAVE_TEST_FAULT";

/// A place where a test may have a fault.
#[cfg(not(debug_assertions))]
#[inline]
pub fn point(_place: &str) {}

/// Takes orders, within a runtime.
#[cfg(not(debug_assertions))]
pub fn start() {}

/// For how long a test says that the machine has slept.
#[cfg(not(debug_assertions))]
#[inline]
pub const fn asleep() -> Duration {
    Duration::ZERO
}

/// By how many seconds a test has the wall clock ahead.
#[cfg(not(debug_assertions))]
#[inline]
pub const fn ahead() -> i64 {
    0
}

/// Comes to [`point`] soon and again, for a loop that waits.
pub async fn turn() {
    if cfg!(debug_assertions) && std::env::var_os(VARIABLE).is_some() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    } else {
        std::future::pending::<()>().await;
    }
}

#[cfg(debug_assertions)]
mod ordered {
    use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
    use std::sync::{Mutex, PoisonError};
    use std::thread::sleep;
    use std::time::Duration;

    static IS_ORDERED: AtomicBool = AtomicBool::new(false);
    static ORDER: Mutex<Option<(String, String)>> = Mutex::new(None);

    /// Seconds.
    static ASLEEP: AtomicU64 = AtomicU64::new(0);
    static AHEAD: AtomicI64 = AtomicI64::new(0);

    /// Interval between looks at the file.
    const LOOK: Duration = Duration::from_millis(20);

    /// A place where a test may have a fault.
    pub fn point(place: &str) {
        if IS_ORDERED.load(Ordering::Acquire) && take(place) == Some("panic".to_owned()) {
            panic!("a test has ordered it ({place})");
        }
    }

    /// For how long a test says that the machine has slept.
    pub fn asleep() -> Duration {
        Duration::from_secs(ASLEEP.load(Ordering::Relaxed))
    }

    /// By how many seconds a test has the wall clock ahead.
    pub fn ahead() -> i64 {
        AHEAD.load(Ordering::Relaxed)
    }

    /// The order for this place, which is done by that; a standstill is done here.
    fn take(place: &str) -> Option<String> {
        let mut order = ORDER.lock().unwrap_or_else(PoisonError::into_inner);
        let (what, _) = order.take_if(|(_, at)| at == place)?;
        drop(order);
        IS_ORDERED.store(false, Ordering::Release);
        if what == "stall" {
            loop {
                sleep(LOOK);
            }
        }
        Some(what)
    }

    /// Takes orders, within a runtime.
    pub fn start() {
        let Some(file) = std::env::var_os(super::VARIABLE) else { return };
        let runtime = tokio::runtime::Handle::current();
        let _ = std::thread::Builder::new().name("faults".to_owned()).spawn(move || {
            loop {
                let order = std::fs::read_to_string(&file).unwrap_or_default();
                if let Some((what, place)) = order.trim().split_once(' ') {
                    match (what, place.parse::<i64>()) {
                        ("asleep", Ok(secs)) => _ = ASLEEP.fetch_add(secs.unsigned_abs(), Ordering::Relaxed),
                        ("ahead", Ok(secs)) => AHEAD.store(secs, Ordering::Relaxed),
                        _ => {}
                    }
                    // Who ordered it sees by that that it is so.
                    let _ = std::fs::remove_file(&file);
                    *ORDER.lock().unwrap_or_else(PoisonError::into_inner) = Some((what.to_owned(), place.to_owned()));
                    IS_ORDERED.store(true, Ordering::Release);
                    make(place, &runtime);
                }
                sleep(LOOK);
            }
        });
    }

    /// Makes what is to fail, where that is not a place of the program.
    fn make(place: &str, runtime: &tokio::runtime::Handle) {
        match place {
            "thread" => drop(std::thread::spawn(|| point("thread"))),
            "task" => drop(runtime.spawn(async { point("task") })),
            "blocking" => drop(runtime.spawn_blocking(|| point("blocking"))),
            // In the burst that a route came in, and alone.
            "contained" => wayleave_core::order_contained_panics(2),
            _ => {}
        }
    }
}
