//! Fetches what a use needs (`demo`, `tests`, `bench`, `soak`; `tests` if none is given) into the build tree's cache, unless
//! this system or the cache has it. Names what is not to be had, and fails then.

use std::process::ExitCode;

use wayleave_lab::packages::{Use, fetch_all};
use wayleave_lab::routers::default_cache;

fn main() -> ExitCode {
    let wanted = std::env::args().nth(1).map_or(Ok(Use::Tests), |text| text.parse());
    let wanted = match wanted {
        Ok(wanted) => wanted,
        Err(reason) => {
            eprintln!("{reason}");
            return ExitCode::FAILURE;
        }
    };
    let mut versions = Vec::new();
    let missing = fetch_all(wanted, &default_cache(), &mut |line| println!("{line}"), &mut |listed, found| {
        versions.push(format!("{} {}", listed.package.name, found.version));
    });
    println!("{}", versions.join(", "));
    for one in &missing {
        println!("not to be had: {one}");
    }
    if missing.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
