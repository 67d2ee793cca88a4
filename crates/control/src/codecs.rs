//! How types of other crates stand in the control plane's encodings.

use wayleave_core::wire::{Codec, Malformed, Reader, Writer};
use wayleave_crypto::dh::DhPublic;
use wayleave_crypto::secret::Key128;
use wayleave_packet::icing::header::{NodeId, Tag, Version};
use wayleave_packet::icing::mint::TagMaster;

/// Implements [`Codec`] for a type that is so many octets, by what writes and what reads them.
macro_rules! octets {
    ($(#[$doc:meta])* $codec:ident: $type:ty, $octets:expr, $write:expr, $read:expr, $what:literal) => {
        $(#[$doc])*
        pub(crate) struct $codec;

        impl Codec<$type> for $codec {
            const LEAST: usize = $octets;

            fn write(value: &$type, out: &mut Writer) {
                out.bytes(&$write(value));
            }

            fn read(from: &mut Reader<'_>) -> Result<$type, Malformed> {
                let octets = from.array::<$octets>()?;
                $read(octets).ok_or(Malformed::Value($what))
            }
        }
    };
}

/// The version of packets in an object whose own version says it, so that no octet does.
pub(crate) struct ByObjectCodec;

impl Codec<Version> for ByObjectCodec {
    const LEAST: usize = 0;

    fn write(_: &Version, _: &mut Writer) {}

    fn read(_: &mut Reader<'_>) -> Result<Version, Malformed> {
        Ok(Version::Standard)
    }
}

octets!(NodeIdCodec: NodeId, 32, NodeId::to_bytes, NodeId::from_bytes, "a node ID");
octets!(TagCodec: Tag, 4, |tag: &Tag| tag.0.to_be_bytes(), |octets| Some(Tag(u32::from_be_bytes(octets))), "a tag");
octets!(
    /// The epoch from which a master of tag keys is used, and the master.
    MasterCodec: (u32, TagMaster),
    20,
    |(from, master): &(u32, TagMaster)| {
        let mut octets = [0; 20];
        octets[..4].copy_from_slice(&from.to_be_bytes());
        octets[4..].copy_from_slice(master.key().expose());
        octets
    },
    |octets: [u8; 20]| {
        let (from, key) = octets.split_first_chunk::<4>()?;
        Some((u32::from_be_bytes(*from), TagMaster::new(Key128::new(*key.first_chunk()?))))
    },
    "a master of tag keys"
);
octets!(
    /// An X25519 key in canonical form.
    DhPublicCodec: DhPublic, 32, DhPublic::to_bytes, |octets| DhPublic::from_bytes(octets).ok(), "the ephemeral key"
);
octets!(
    /// An X25519 key in canonical form and not of small order.
    NoiseKeyCodec: DhPublic,
    32,
    DhPublic::to_bytes,
    |octets| DhPublic::from_bytes(octets).ok().filter(|key| !key.is_small_order()),
    "the Noise key"
);
