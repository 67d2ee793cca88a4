//! Any text as `topology.json` and `router.toml` of an open-source SCION router: faults with their places, or a configuration each line of
//! which has a place.
#![no_main]

// The crate has clients of HTTP and of databases among its dependencies, and the module needs none of them.
#[allow(dead_code, unreachable_pub)]
#[path = "../../crates/config/src/scion_folder/mod.rs"]
mod scion_folder;

use libfuzzer_sys::fuzz_target;
use scion_folder::{FolderFiles, Translation};

/// One that names a router for which a topology may have an entry.
const ROUTER: &str = "[general]\nid = \"br\"\n";

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    // The router's own file stands in front of a zero octet, if there is one.
    let (router, topology) = text.split_once('\0').unwrap_or((ROUTER, &text));
    let translation = Translation::new(&FolderFiles { name: "router.toml", router, topology });
    assert_eq!(translation.text().is_empty(), !translation.faults().is_empty());
    for remark in translation.faults().iter().chain(translation.warnings()) {
        assert!(!remark.to_string().contains(['\n', '\u{1b}']));
    }
    if !translation.text().is_empty() {
        assert!(translation.text().parse::<toml::Table>().is_ok(), "{}", translation.text());
        for (at, _) in translation.text().match_indices('\n') {
            assert!(translation.place(at).is_some());
        }
    }
});
