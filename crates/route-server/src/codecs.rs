//! How types of other crates stand in the route server's encodings.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use wayleave_bgp::Nlri;
use wayleave_core::wire::{Codec, Malformed, Reader, Writer};
use wayleave_core::{Afi, Prefix};
use wayleave_crypto::commit::Commitment;
use wayleave_crypto::secret::Seed;

/// A prefix with its path identifier: identifier (4), family (1: 4 or 6), length (1), address (4 or 16).
#[derive(Debug)]
pub struct NlriCodec;

impl Codec<Nlri> for NlriCodec {
    const LEAST: usize = 10;

    fn write(nlri: &Nlri, out: &mut Writer) {
        let prefix = &nlri.prefix;
        let octets = usize::from(prefix.afi().bits() / 8);
        out.u32(nlri.path_id).family(prefix.afi()).u8(prefix.len()).bytes(&prefix.octets()[..octets]);
    }

    fn read(from: &mut Reader<'_>) -> Result<Nlri, Malformed> {
        let (path_id, family, length) = (from.u32()?, from.family()?, from.u8()?);
        let address = match family {
            Afi::Ipv4 => IpAddr::V4(Ipv4Addr::from(from.array::<4>()?)),
            Afi::Ipv6 => IpAddr::V6(Ipv6Addr::from(from.array::<16>()?)),
        };
        let prefix = Prefix::new(address, length).map_err(|_| Malformed::Value("a prefix"))?;
        Ok(Nlri { path_id, prefix })
    }
}

/// The four octets of an IPv4 address.
#[derive(Debug)]
pub struct Ipv4Codec;

impl Codec<Ipv4Addr> for Ipv4Codec {
    const LEAST: usize = 4;

    fn write(address: &Ipv4Addr, out: &mut Writer) {
        out.bytes(&address.octets());
    }

    fn read(from: &mut Reader<'_>) -> Result<Ipv4Addr, Malformed> {
        from.array::<4>().map(Ipv4Addr::from)
    }
}

/// The sixteen octets of an IPv6 address.
#[derive(Debug)]
pub struct Ipv6Codec;

impl Codec<Ipv6Addr> for Ipv6Codec {
    const LEAST: usize = 16;

    fn write(address: &Ipv6Addr, out: &mut Writer) {
        out.bytes(&address.octets());
    }

    fn read(from: &mut Reader<'_>) -> Result<Ipv6Addr, Malformed> {
        from.array::<16>().map(Ipv6Addr::from)
    }
}

/// The octets of a seed.
pub(crate) struct SeedCodec;

impl Codec<Seed> for SeedCodec {
    const LEAST: usize = 32;

    fn write(seed: &Seed, out: &mut Writer) {
        out.bytes(seed.expose());
    }

    fn read(from: &mut Reader<'_>) -> Result<Seed, Malformed> {
        from.array().map(Seed::new)
    }
}

/// The octets of a commitment.
pub(crate) struct CommitmentCodec;

impl Codec<Commitment> for CommitmentCodec {
    const LEAST: usize = 32;

    fn write(commitment: &Commitment, out: &mut Writer) {
        out.bytes(&commitment.0);
    }

    fn read(from: &mut Reader<'_>) -> Result<Commitment, Malformed> {
        from.array().map(Commitment)
    }
}
