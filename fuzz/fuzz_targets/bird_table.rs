//! Any text as a table that BIRD's client prints.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wayleave_route_server::shadow::text::{bird_routes, path};

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    let _ = path(&text);
    if let Ok(routes) = bird_routes(&text) {
        for route in routes {
            let _ = route.attributes.as_path().to_string();
        }
    }
});
