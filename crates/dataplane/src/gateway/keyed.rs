//! The hash of tables whose keys are chosen by peers.

use std::collections::hash_map::DefaultHasher;
use std::hash::{BuildHasher, Hasher};

/// Keys of tables that peers choose are hashed under a secret.
#[derive(Clone)]
pub(super) struct Keyed(pub(super) [u8; 16]);

impl BuildHasher for Keyed {
    type Hasher = DefaultHasher;

    fn build_hasher(&self) -> DefaultHasher {
        let mut hasher = DefaultHasher::new();
        hasher.write(&self.0);
        hasher
    }
}
