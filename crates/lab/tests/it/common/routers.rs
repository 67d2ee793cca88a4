//! Real routers for tests in network namespaces.

use std::time::Duration;

use wayleave_lab::netns::skipped;
use wayleave_lab::routers::{Routers, default_cache, locate_or_fetch};

/// Limit on each wait for a router.
pub const ROUTER_TIMEOUT: Duration = Duration::from_secs(40);

/// The routers' binaries; `None`, reported as a skipped test, where there are none.
pub fn routers() -> Option<Routers> {
    match locate_or_fetch(&default_cache(), &mut |line| eprintln!("{line}")) {
        Ok(routers) => Some(routers),
        Err(error) => {
            skipped(&error.to_string());
            None
        }
    }
}
