//! What the kernel says of its wall clock.

#![allow(unsafe_code, reason = "a system call that only reads, for which no library that we have gives a safe call")]

use std::io;

/// Microseconds by which a synchronised clock may be wrong, by the kernel's own bound.
const MAX_ERROR: libc::c_long = 4_000_000;

/// Whether a time service keeps the wall clock (NTP, PTP), and the error is at most four seconds by the bound that it gives.
/// Setting the clock by hand ends that until the service has set it right.
pub fn is_synchronised() -> io::Result<bool> {
    // SAFETY: `timex` has only integers, of which each may be zero; `modes` of zero changes nothing.
    let mut state: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a whole `timex` that lives longer than the call.
    let result = unsafe { libc::adjtimex(&raw mut state) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    let is_bounded = state.maxerror <= MAX_ERROR;
    Ok(result != libc::TIME_ERROR && state.status & libc::STA_UNSYNC == 0 && is_bounded)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_kernel_answers() {
        // Either way: that depends on the machine.
        assert!(super::is_synchronised().is_ok());
    }
}
