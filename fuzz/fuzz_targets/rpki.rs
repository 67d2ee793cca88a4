//! Any octets as the answer of an RTR cache, of each version, and as the JSON of a validator.
//!
//! OPS, origins: a cache or a file of any content: refused, or taken within the limits.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use tokio::runtime::{Builder, Runtime};
use wayleave_runtime::rpki::file::roas;
use wayleave_runtime::rpki::rtr::{NEWEST_VERSION, OLDEST_VERSION, read_answer};

static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| Builder::new_current_thread().enable_time().build().expect("a runtime"));

fuzz_target!(|data: &[u8]| {
    let _ = roas(data, 1_000);
    for version in OLDEST_VERSION..=NEWEST_VERSION {
        if let Ok(read) = RUNTIME.block_on(read_answer(data, version)) {
            // An item takes eight octets at least.
            assert!(read.vrps.len() + read.router_keys.len() + read.aspas.len() <= data.len() / 4);
        }
    }
});
