//! Fetches BIRD and FRR into the build tree's cache, unless this system or the cache has them.

use wayleave_lab::routers::{default_cache, locate_or_fetch};

fn main() {
    match locate_or_fetch(&default_cache(), &mut |line| println!("{line}")) {
        Ok(routers) => println!("BIRD {}, FRR {}", routers.bird.version, routers.frr.version),
        // The tests that need them say loudly that they are skipped, and the demo takes the simulated rung.
        Err(error) => println!("*** {error} ***"),
    }
}
