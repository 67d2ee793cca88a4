//! Reading big-endian fields from octets, without a panic.

/// The first two octets as a number, and the rest.
#[inline]
pub(crate) fn u16(octets: &[u8]) -> Option<(u16, &[u8])> {
    let (head, rest) = octets.split_first_chunk::<2>()?;
    Some((u16::from_be_bytes(*head), rest))
}

/// The first four octets as a number, and the rest.
#[inline]
pub(crate) fn u32(octets: &[u8]) -> Option<(u32, &[u8])> {
    let (head, rest) = octets.split_first_chunk::<4>()?;
    Some((u32::from_be_bytes(*head), rest))
}

/// A field of exactly four octets.
pub(crate) fn exact_u32(octets: &[u8]) -> Option<u32> {
    octets.try_into().ok().map(u32::from_be_bytes)
}

/// A field whose length is in the two octets before it, and the rest.
#[inline]
pub(crate) fn field_u16(octets: &[u8]) -> Result<(&[u8], &[u8]), usize> {
    let Some((length, rest)) = u16(octets) else { return Err(0) };
    rest.split_at_checked(usize::from(length)).ok_or(usize::from(length))
}
