//! The keys that an AS offers its neighbour when a session opens: a capability that unmodified speakers ignore.
//!
//! The value is one octet of version, then each key in ascending order: its suite's number and 32 octets (the key, or
//! its hash where it is not 32 octets long). At most four keys.

use wayleave_bgp::Capability;

use crate::leaf::{LEAF_KEY_LEN, LeafKey, MAX_LEAF_KEYS};
use crate::suite::{self, SuiteId};

/// The version of the encoding.
const VERSION: u8 = 1;
/// Likewise, of one that asks the peer to make a pair and hand it over.
const ASKING: u8 = 2;
/// Octets of one key.
const ENTRY: usize = 1 + LEAF_KEY_LEN;
/// Where configuration says nothing else. RFC 8810 keeps 239 to 254 for experimental use.
pub const CAPABILITY_CODE: u8 = 240;

/// The capability that offers `keys`, the first four at most.
#[must_use]
pub fn offer(code: u8, keys: &[LeafKey]) -> Capability {
    let mut keys = keys.to_vec();
    keys.truncate(MAX_LEAF_KEYS);
    keys.sort_unstable();
    let mut value = vec![VERSION];
    for key in keys {
        value.push(key.suite);
        value.extend_from_slice(&key.key);
    }
    Capability::Unknown { code, value }
}

/// As [`offer`], and asks the peer to make a pair and hand it over (granted keys); without such a pair the offered keys
/// are to be endorsed.
#[must_use]
pub fn ask(code: u8, keys: &[LeafKey]) -> Capability {
    match offer(code, keys) {
        Capability::Unknown { code, mut value } => {
            value[0] = ASKING;
            Capability::Unknown { code, value }
        }
        other => other,
    }
}

/// Whether a peer asks for a pair of our making.
#[must_use]
pub fn asks(code: u8, capabilities: &[Capability]) -> bool {
    value(code, capabilities).is_some_and(|value| value.first() == Some(&ASKING))
}

fn value(code: u8, capabilities: &[Capability]) -> Option<&[u8]> {
    capabilities.iter().find_map(|capability| match capability {
        Capability::Unknown { code: found, value } if *found == code => Some(value.as_slice()),
        _ => None,
    })
}

/// The keys that a peer offers; empty if it offers none. What cannot be read, stands twice, is the third of its suite, or is of
/// a suite that we know and a key that it refuses, is left out: the peer counts as one that does not attest with it.
#[must_use]
pub fn offered(code: u8, capabilities: &[Capability]) -> Vec<LeafKey> {
    let Some([VERSION | ASKING, entries @ ..]) = value(code, capabilities) else { return Vec::new() };
    if !entries.len().is_multiple_of(ENTRY) || entries.len() > MAX_LEAF_KEYS * ENTRY {
        return Vec::new();
    }
    let keys = entries.chunks_exact(ENTRY).filter_map(|entry| {
        let key = LeafKey { suite: entry[0], key: entry[1..].try_into().ok()? };
        is_sound(&key).then_some(key)
    });
    let mut keys: Vec<LeafKey> = keys.collect();
    keys.sort_unstable();
    keys.dedup();
    // A leaf lists two keys of a suite: a third must not make the peer one without keys.
    let suites: Vec<u8> = keys.iter().map(|key| key.suite).collect();
    let is_third = |index: usize| index >= 2 && suites[index - 2] == suites[index];
    keys.into_iter().enumerate().filter(|(index, _)| !is_third(*index)).map(|(_, key)| key).collect()
}

/// A key that stands as itself is checked now; one that stands as its hash when it signs.
fn is_sound(key: &LeafKey) -> bool {
    let Some(suite) = SuiteId::from_byte(key.suite).and_then(suite::of) else { return true };
    suite.public_key_len() != LEAF_KEY_LEN || suite.check_key(&key.key).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use wayleave_crypto::secret::Secret;

    fn key(seed: u8) -> LeafKey {
        let suite = suite::of(SuiteId::KcEd25519).expect("known");
        LeafKey::of(SuiteId::KcEd25519, suite.generate(&Secret::new([seed; 32])).public())
    }

    #[test]
    fn what_is_offered_is_read_back_in_one_order() {
        let (a, b) = (key(1), key(2));
        let mut sorted = vec![a, b];
        sorted.sort_unstable();
        assert_eq!(offered(240, &[offer(240, &[b, a])]), sorted);
        assert!(offered(241, &[offer(240, &[a])]).is_empty());
    }

    #[test]
    fn who_asks_for_a_pair_still_offers_keys() {
        let request = ask(240, &[key(1)]);
        assert!(asks(240, std::slice::from_ref(&request)) && !asks(240, &[offer(240, &[key(1)])]));
        assert_eq!(offered(240, &[request]), [key(1)]);
        assert!(asks(240, &[ask(240, &[])]) && !asks(241, &[ask(240, &[])]));
    }

    #[test]
    fn what_is_no_offer_offers_nothing() {
        let offers = |value: Vec<u8>| offered(240, &[Capability::Unknown { code: 240, value }]);
        assert!(offers(Vec::new()).is_empty());
        assert!(offers(vec![3; 34]).is_empty());
        assert!(offers(vec![VERSION; 33]).is_empty());
        assert!(offers(vec![VERSION; 1 + 5 * ENTRY]).is_empty());
        // A key of small order.
        let mut weak = vec![VERSION, SuiteId::KcEd25519 as u8, 1];
        weak.resize(34, 0);
        assert!(offers(weak).is_empty());
    }
}
