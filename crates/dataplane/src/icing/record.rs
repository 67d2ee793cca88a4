//! The key of an account's record in a node's store: the account's number, 2 octets.

/// Writes the key of account `id`.
#[must_use]
pub fn encode(id: u16) -> [u8; 2] {
    id.to_be_bytes()
}

/// Reads a key; `None` if it is none of this format.
#[must_use]
pub fn decode(key: &[u8]) -> Option<u16> {
    Some(u16::from_be_bytes(key.try_into().ok()?))
}
