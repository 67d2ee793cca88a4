//! The configuration and the keys that a router runs by.

use wayleave_core::UnixTime;
use wayleave_runtime::clock::unix_now;

use crate::config::router::RouterFile;
use crate::config::{Fault, Source};
use crate::failure::{Failure, Outcome};
use crate::key_files::forwarding::ForwardingKeys;

/// A configuration file as read at one time, with the keys that it names.
pub struct Settings {
    pub source: Source,
    pub file: RouterFile,
    pub keys: ForwardingKeys,
    /// When this router began, for its replay filter: later than the clock says if the clock has gone back since the router
    /// ran before.
    pub started: UnixTime,
}

impl Settings {
    /// Reads the keys that the configuration names.
    ///
    /// # Errors
    /// What is wrong with their file.
    pub fn load(file: RouterFile, source: &Source) -> Result<Self, Failure> {
        let named = &file.forwarding.keys;
        let keys = ForwardingKeys::load(file.forwarding.format, &source.resolve(named.get_ref()))
            .map_err(|failure| source.failure(Fault::of(named.span(), &failure)))?;
        Ok(Self { source: source.clone(), file, keys, started: unix_now() })
    }

    /// Threads that forward; at least one.
    pub fn workers(&self) -> u64 {
        (*self.file.forwarding.workers.get_ref()).max(1)
    }

    /// One thread's share of a limit: at least one, unless the limit is zero.
    pub fn share(&self, limit: u64) -> u32 {
        let share = (limit / self.workers()).max(u64::from(limit > 0));
        u32::try_from(share).unwrap_or(u32::MAX)
    }

    /// The keys that are live now, from the older on, each with the second from which it counts.
    pub fn live_keys(&self, ahead: u64) -> &[(u64, [u8; 16])] {
        self.keys.live(unix_now().secs(), ahead)
    }

    /// The beginnings of the keys that are live at `now`.
    pub fn live_times(&self, now: UnixTime, ahead: u64) -> Vec<u64> {
        self.keys.live(now.secs(), ahead).iter().map(|(from, _)| *from).collect()
    }
}

/// Fresh random octets.
///
/// # Errors
/// If the system gives none.
pub fn random<const N: usize>() -> Outcome<[u8; N]> {
    let mut octets = [0; N];
    getrandom::fill(&mut octets).map_err(|error| Failure::new(format!("the system gave no randomness: {error}")))?;
    Ok(octets)
}
