//! The header checksum of IPv4 (RFC 1071).

/// Writes the checksum of the header of twenty octets at the front of `packet`.
pub(crate) fn write_checksum(packet: &mut [u8]) {
    let Some(header) = packet.first_chunk_mut::<20>() else { return };
    header[10..12].fill(0);
    let sum: u32 = header.as_chunks::<2>().0.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
}
