//! Keys, addresses and claims of a simulation, from its seed.

use wayleave_core::Asn;
use wayleave_crypto::secret::Seed;
use wayleave_crypto::sign::SigningKey;
use wayleave_route_server::directory::{Change as SetChange, Claim, Directory};
use wayleave_route_server::party::PartyNumber;

use super::{EXCHANGE, Setup, attestation};

/// The signing key of the member in `slot`.
#[must_use]
pub fn member_key(seed: u64, slot: u32) -> SigningKey {
    SigningKey::from_seed(&seed_of(seed, b"member", u64::from(slot)))
}

/// The AS number of the member in `slot`.
#[must_use]
pub fn member_asn(slot: u32) -> Asn {
    // AS 65535 is reserved (RFC 7300).
    Asn(if slot < 500 { 65_000 + slot } else { 200_000 + slot })
}

/// The LAN address of the member in `slot`.
#[must_use]
pub fn member_address(slot: u32) -> std::net::Ipv4Addr {
    std::net::Ipv4Addr::from(0x0a00_0000 + 1 + slot)
}

/// Its IPv6 LAN address.
#[must_use]
pub fn member_address6(slot: u32) -> std::net::Ipv6Addr {
    std::net::Ipv6Addr::from(0x2001_0db8_u128 << 96 | u128::from(1 + slot))
}

pub(super) fn seed_of(seed: u64, purpose: &[u8], number: u64) -> Seed {
    let parts: [&[u8]; 3] = [&seed.to_be_bytes(), purpose, &number.to_be_bytes()];
    Seed::new(wayleave_crypto::hash::hash("wayleave/lab/sim/v1", &parts))
}

/// The signing key of the operator of party 1 or 2.
#[must_use]
pub fn operator_key(seed: u64, party: PartyNumber) -> SigningKey {
    SigningKey::from_seed(&seed_of(seed, b"operator", u64::from(party == PartyNumber::Two)))
}

/// The keys of both operators, which only a laboratory has in one place.
#[must_use]
pub fn operator_keys(seed: u64) -> [SigningKey; 2] {
    [PartyNumber::One, PartyNumber::Two].map(|party| operator_key(seed, party))
}

/// What the member in `slot` signs about itself.
#[must_use]
pub fn claim_of(setup: &Setup, slot: u32) -> Claim {
    claim_as(setup, slot, member_asn(slot))
}

pub(super) fn claim_as(setup: &Setup, slot: u32, asn: Asn) -> Claim {
    let key = member_key(setup.seed, slot).verifying_key().to_bytes();
    let attests = setup.attesting.contains(&slot);
    Claim {
        serial: 1,
        asn,
        name: format!("member-{slot}"),
        tls: wayleave_crypto::hash::sha256(&key),
        sign: key,
        attest: if attests { attestation::listed_keys(setup.seed, asn) } else { Vec::new() },
        addresses: vec![member_address(slot).into(), member_address6(slot).into()],
    }
}

/// The directory with all members of `setup`, as both operators sign it.
///
/// # Panics
/// If there are more than a set holds.
#[must_use]
pub fn directory_of(setup: &Setup) -> Directory {
    let operators = operator_keys(setup.seed).map(|key| key.verifying_key().to_bytes());
    let directory = Directory::new(EXCHANGE, operators).expect("a name and two keys");
    admit(&directory, setup, 0..u32::try_from(setup.members).expect("few members"))
}

/// `directory` with these members, as both operators sign it.
pub(super) fn admit(directory: &Directory, setup: &Setup, slots: std::ops::Range<u32>) -> Directory {
    let request = |slot| claim_of(setup, slot).sign(EXCHANGE, &member_key(setup.seed, slot));
    let joins = slots.map(|slot| directory.requested(&request(slot), setup.max_prefix).expect("of this exchange"));
    let joins: Vec<SetChange> = joins.collect();
    if joins.is_empty() {
        return directory.clone();
    }
    let [one, two] = operator_keys(setup.seed);
    directory.signed_by_both(joins, [&one, &two]).expect("a sound set")
}
