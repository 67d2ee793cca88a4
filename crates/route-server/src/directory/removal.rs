//! The removal of a member, which one operator signs alone.

use wayleave_core::Asn;
use wayleave_core::wire::{Malformed, Reader, Writer};
use wayleave_crypto::sign::{Signature, SigningKey};

use super::SlotId;
use super::claim::is_signed;

const LABEL: &str = "wayleave/directory/removal/v2";
/// Octets of an encoded removal.
pub(super) const LENGTH: usize = 8 + 4 + 4 + 1 + 64;

/// Ends a slot. It holds whatever else is signed before or after, and cannot be taken back: a member that returns gets a
/// new slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Removal {
    /// How many signed sets there were when it was made; the operator's key of that time signs it.
    pub under: u64,
    pub slot: SlotId,
    /// The AS of the slot, for whoever reads it.
    pub asn: Asn,
    /// The party, 1 or 2, whose operator signs.
    pub party: u8,
    pub signature: Signature,
}

impl Removal {
    /// Signs for the directory that begins with `origin` ([`super::Directory::origin`]).
    pub(super) fn sign(origin: &[u8; 32], under: u64, slot: SlotId, asn: Asn, party: u8, key: &SigningKey) -> Self {
        let mut removal = Self { under, slot, asn, party, signature: [0; 64] };
        removal.signature = key.sign(LABEL, &removal.signed_bytes(origin));
        removal
    }

    pub(super) fn is_signed(&self, origin: &[u8; 32], operator: &[u8; 32]) -> bool {
        is_signed(LABEL, &self.signed_bytes(origin), operator, &self.signature)
    }

    fn signed_bytes(&self, origin: &[u8; 32]) -> Vec<u8> {
        let mut out = Writer::new();
        out.bytes(origin).u64(self.under).u32(self.slot).u32(self.asn.0).u8(self.party);
        out.finish()
    }

    pub(super) fn write(&self, out: &mut Writer) {
        out.u64(self.under).u32(self.slot).u32(self.asn.0).u8(self.party).bytes(&self.signature);
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            under: reader.u64()?,
            slot: reader.u32()?,
            asn: Asn(reader.u32()?),
            party: match reader.u8()? {
                party @ 1..=2 => party,
                _ => return Err(Malformed::Value("the number of a party")),
            },
            signature: reader.array()?,
        })
    }
}
