//! How a process ends that cannot go on: at once, whatever its threads wait for, and with a code that says so. The system releases
//! its locks and sockets; what was durable stays, as after `kill -9`.
#![allow(unsafe_code, reason = "_exit and a timer of the system, which wait for no thread of the process")]

use std::panic::PanicHookInfo;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use wayleave_core::is_contained;

use crate::logs;
use crate::signals::{Request, Signals};
use crate::starts;

/// The exit code after a panic: a fault of the program (`EX_SOFTWARE` of sysexits.h).
pub const PANICKED: u8 = 70;
/// The exit code of a process that did not stop within its limit.
pub const NOT_STOPPED: u8 = 71;
/// How long a process may take to stop. The units of systemd give it five seconds more.
pub const STOP_LIMIT: Duration = Duration::from_secs(15);
/// A panic whose report takes longer, such as one within an allocation, ends the process by SIGALRM.
const REPORT_LIMIT_MICROS: libc::suseconds_t = 500_000;

/// The process has its outcome, and only drops what it has.
static IS_OVER: AtomicBool = AtomicBool::new(false);

/// The role has ended, well or not, and its tasks are about to be dropped. A task that looks at a timer while its runtime shuts down
/// panics in tokio, which is no fault of the program and must not replace the outcome. The caller bounds what follows in time.
pub fn is_over() {
    IS_OVER.store(true, Ordering::Release);
}

/// From now on a panic of any thread or task ends the process, unless it is [contained](wayleave_core::contained).
pub fn end_on_panic() {
    std::panic::set_hook(Box::new(|panic| {
        if IS_OVER.load(Ordering::Acquire) {
            return;
        }
        let is_contained = is_contained();
        if !is_contained {
            // The alarm first: what follows allocates and writes, which may never end after a panic within an allocation.
            end_by_alarm();
            starts::panicking();
        }
        let consequence = match is_contained {
            true => "the work in hand is left out, and the process goes on".to_owned(),
            false => format!("the process ends with code {PANICKED}"),
        };
        logs::write_last(&logs::line("ERROR", &format!("{}; {consequence}", describe(panic))));
        if !is_contained {
            exit(PANICKED);
        }
    }));
}

/// What panicked, where and why, in one line.
fn describe(panic: &PanicHookInfo<'_>) -> String {
    let message = panic.payload_as_str().unwrap_or("no message").replace('\n', " ");
    let place = panic.location().map_or_else(|| "an unknown place".to_owned(), ToString::to_string);
    let current = std::thread::current();
    let thread = current.name().unwrap_or("without a name");
    format!("panic at {place} (thread {thread}): {message}: a bug, please report it with this line")
}

/// Ends the process by SIGALRM soon, whatever becomes of this thread.
fn end_by_alarm() {
    let soon = libc::timeval { tv_sec: 0, tv_usec: REPORT_LIMIT_MICROS };
    let once = libc::itimerval { it_interval: libc::timeval { tv_sec: 0, tv_usec: 0 }, it_value: soon };
    // SAFETY: the structures live through the calls; nothing else in the process uses this signal or timer.
    unsafe {
        let mut alarm = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&raw mut alarm);
        libc::sigaddset(&raw mut alarm, libc::SIGALRM);
        // Whoever started the process may have left it ignored or blocked.
        libc::signal(libc::SIGALRM, libc::SIG_DFL);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const alarm, std::ptr::null_mut());
        libc::setitimer(libc::ITIMER_REAL, &raw const once, std::ptr::null_mut());
    }
}

/// Ends the process now. No destructor runs, and no other thread is waited for.
pub fn exit(code: u8) -> ! {
    // SAFETY: the call takes a number and does not return.
    unsafe { libc::_exit(code.into()) }
}

/// From now on SIGTERM or SIGINT ends the process after [`STOP_LIMIT`] at the latest. A thread of its own sees to that, since those
/// that should stop may all be stuck. Call it after [`Signals::listen`].
///
/// # Errors
/// What the system said.
pub fn limit_stop() -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let watch = async {
        let mut signals = Signals::listen()?;
        while signals.next().await != Request::Stop {}
        tokio::time::sleep(STOP_LIMIT).await;
        Ok::<(), std::io::Error>(())
    };
    let work = move || {
        if runtime.block_on(watch).is_ok() {
            let secs = STOP_LIMIT.as_secs();
            let text = format!("did not stop within {secs} seconds: the process ends with code {NOT_STOPPED}");
            logs::write_last(&logs::line("ERROR", &text));
            exit(NOT_STOPPED);
        }
    };
    std::thread::Builder::new().name("stop-limit".to_owned()).spawn(work)?;
    Ok(())
}

/// The process ends with `code` after `limit` if it still runs then: for one that has failed and drops what it has.
pub fn within(limit: Duration, code: u8) {
    let work = move || {
        std::thread::sleep(limit);
        exit(code);
    };
    // Without a thread to spare it ends now.
    if std::thread::Builder::new().name("end-limit".to_owned()).spawn(work).is_err() {
        exit(code);
    }
}
