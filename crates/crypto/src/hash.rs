//! Labelled SHA-256 over an injective encoding of its parts.

use sha2::{Digest, Sha256};

/// SHA-256 of `label` and `parts`, each with its length in front, so that no two lists of parts are hashed alike.
#[must_use]
pub fn hash(label: &str, parts: &[&[u8]]) -> [u8; 32] {
    let mut state = Sha256::new();
    state.update((label.len() as u64).to_be_bytes());
    state.update(label.as_bytes());
    for part in parts {
        state.update((part.len() as u64).to_be_bytes());
        state.update(part);
    }
    state.finalize().into()
}

/// SHA-256 of `bytes`, without a label: for names that others compute too (a certificate's fingerprint).
#[must_use]
pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// SHA-256 of `parts` one after another, without a label and without their lengths.
#[must_use]
pub fn sha256_of_parts(parts: &[&[u8]]) -> [u8; 32] {
    let mut state = Sha256::new();
    for part in parts {
        state.update(part);
    }
    state.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_border_between_parts_counts() {
        assert_ne!(hash("a", &[b"bc", b"d"]), hash("a", &[b"b", b"cd"]));
        assert_ne!(hash("a", &[b"b"]), hash("ab", &[]));
        assert_ne!(hash("a", &[b""]), hash("a", &[]));
    }
}
