//! How types of other crates, and what names a delegation, are written in objects and messages of this module.

use wayleave_core::wire::{Codec, Malformed, Reader, Writer};
use wayleave_packet::platypus::header::{DelegationId, Interval, Principal};
use wayleave_packet::platypus::revocation::Revocation;

/// A principal's three octets.
pub(super) struct PrincipalCodec;

impl Codec<Principal> for PrincipalCodec {
    const LEAST: usize = 3;

    fn write(value: &Principal, out: &mut Writer) {
        out.bytes(&value.octets());
    }

    fn read(from: &mut Reader<'_>) -> Result<Principal, Malformed> {
        from.array().map(Principal::from_octets)
    }
}

/// A delegation, and a sub-delegation of it, or zeros.
pub(super) struct DelegationCodec;

impl Codec<(DelegationId, Option<DelegationId>)> for DelegationCodec {
    const LEAST: usize = 3 + 1 + 3;

    fn write((id, sub): &(DelegationId, Option<DelegationId>), out: &mut Writer) {
        out.bytes(&id.octets()).bool(sub.is_some()).bytes(&sub.unwrap_or_default().octets());
    }

    fn read(from: &mut Reader<'_>) -> Result<(DelegationId, Option<DelegationId>), Malformed> {
        let id = DelegationId::from_octets(from.array()?);
        let (has_sub, sub) = (from.bool()?, DelegationId::from_octets(from.array()?));
        if !has_sub && sub != DelegationId::default() {
            return Err(Malformed::Value("a sub-delegation"));
        }
        Ok((id, has_sub.then_some(sub)))
    }
}

/// Principal, which delegations are named (bits 0 and 1), both of them or zeros, the interval and the epoch or zeros.
pub(super) struct RevocationCodec;

impl Codec<Revocation> for RevocationCodec {
    const LEAST: usize = 3 + 1 + 3 + 3 + 1 + 4;

    fn write(revocation: &Revocation, out: &mut Writer) {
        let (id, sub) = revocation.delegation.map_or((None, None), |(id, sub)| (Some(id), sub));
        let (interval, epoch) = revocation.epoch.map_or((0, 0), |(interval, epoch)| (interval.exponent(), epoch));
        out.bytes(&revocation.principal.octets()).u8(u8::from(id.is_some()) | u8::from(sub.is_some()) << 1);
        out.bytes(&id.unwrap_or_default().octets()).bytes(&sub.unwrap_or_default().octets()).u8(interval).u32(epoch);
    }

    fn read(from: &mut Reader<'_>) -> Result<Revocation, Malformed> {
        let principal = PrincipalCodec::read(from)?;
        let flags = from.u8()?;
        let (id, sub) = (DelegationId::from_octets(from.array()?), DelegationId::from_octets(from.array()?));
        let none = DelegationId::default();
        let delegation = match flags {
            0 if id == none && sub == none => None,
            1 if sub == none => Some((id, None)),
            3 => Some((id, Some(sub))),
            _ => return Err(Malformed::Value("the scope of a revocation")),
        };
        let epoch = match (from.u8()?, from.u32()?) {
            (0, 0) => None,
            (n, epoch) => Some((Interval::new(n).ok_or(Malformed::Value("an interval"))?, epoch)),
        };
        Ok(Revocation { principal, delegation, epoch })
    }
}

/// The exponent of an interval.
pub(super) struct IntervalCodec;

impl Codec<Interval> for IntervalCodec {
    const LEAST: usize = 1;

    fn write(value: &Interval, out: &mut Writer) {
        out.u8(value.exponent());
    }

    fn read(from: &mut Reader<'_>) -> Result<Interval, Malformed> {
        Interval::new(from.u8()?).ok_or(Malformed::Value("an interval"))
    }
}
