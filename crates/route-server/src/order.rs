//! The order of a prefix's candidates: numbers that both parties compute and no member can.
//!
//! A member sees the candidates of each prefix in their order, and knows which of them are its own or open to it. An order by slots would
//! tell it between whose slots a sealed candidate's announcer is. So candidates are numbered by a pseudorandom function of prefix, slot and
//! path identifier, under a key that the two parties draw together ([`OrderDraw`]) and that leaves neither of them. The key lasts: a
//! candidate keeps its place among others over new versions, and when it goes and returns.

use std::fmt;

use wayleave_bgp::Nlri;
use wayleave_core::Prefix;
use wayleave_core::wire::{Codec, Writer};
use wayleave_crypto::commit::{Commitment, commit};
use wayleave_crypto::hash::hash;
use wayleave_crypto::secret::{Secret, Seed};

use crate::codecs::NlriCodec;

const LABEL_PLACE: &str = "wayleave/route-server/place/v1";
const LABEL_NUMBER: &str = "wayleave/route-server/number/v1";
const LABEL_KEY: &str = "wayleave/route-server/order-key/v1";
const LABEL_CHECK: &str = "wayleave/route-server/order-check/v1";
const LABEL_SHARE: &str = "wayleave/route-server/order-share/v1";

/// The number of a candidate. The upper half decides where it stands. The lower half decides who competes where there are too many:
/// were that the upper half, those that are at an advantage there would also stand in other places than the others do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Number(u64);

impl Number {
    /// Which of too many candidates compete: the lowest.
    pub(crate) fn precedence(self) -> u32 {
        self.0 as u32
    }
}

/// Where a prefix stands in an order of all prefixes that says nothing of them; among equals the prefix itself decides.
pub type OrderPosition = (u64, Prefix);

/// The key of the numbers. No member may have it.
#[derive(Clone, PartialEq, Eq)]
pub struct OrderKey(Seed);

impl fmt::Debug for OrderKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OrderKey(..)")
    }
}

impl OrderKey {
    /// The key with these octets.
    #[must_use]
    pub fn new(octets: [u8; 32]) -> Self {
        Self(Seed::new(octets))
    }

    /// Its octets, for the store and the link between the parties.
    #[must_use]
    pub fn secret(&self) -> &Seed {
        &self.0
    }

    /// The number of the candidate that is the route of `slot`.
    #[must_use]
    pub fn number(&self, slot: u32, nlri: &Nlri) -> Number {
        let mut candidate = Writer::with_capacity(32);
        candidate.u32(slot);
        NlriCodec::write(nlri, &mut candidate);
        let number = hash(LABEL_NUMBER, &[self.0.expose(), &candidate.finish()]);
        Number(u64::from_be_bytes(*number.first_chunk().expect("8 of 32")))
    }

    /// Where a prefix stands among all prefixes.
    #[must_use]
    pub fn place(&self, prefix: &Prefix) -> OrderPosition {
        let mut encoded = Writer::with_capacity(32);
        NlriCodec::write(&Nlri::new(*prefix), &mut encoded);
        let place = hash(LABEL_PLACE, &[self.0.expose(), &encoded.finish()]);
        (u64::from_be_bytes(*place.first_chunk().expect("8 of 32")), *prefix)
    }

    /// What shows to whoever has the key that `party` has it, too, in the session of this nonce of its hello.
    #[must_use]
    pub fn check(&self, party: u8, nonce: &[u8; 16]) -> [u8; 32] {
        hash(LABEL_CHECK, &[self.0.expose(), &[party], nonce])
    }

    /// The key that follows from the shares of party 1 and party 2.
    #[must_use]
    pub fn from_shares(exchange: &str, [one, two]: [&Seed; 2]) -> Self {
        Self::new(hash(LABEL_KEY, &[exchange.as_bytes(), one.expose(), two.expose()]))
    }
}

/// A party's share of a key that is perhaps drawn, and what opens the commitment to it. Made anew for each link.
pub struct OrderDraw {
    pub share: Seed,
    pub opening: [u8; 32],
}

impl OrderDraw {
    /// What `party` says in the hello with this nonce: it cannot choose its share by the other one.
    #[must_use]
    pub fn commitment(&self, party: u8, nonce: &[u8; 16]) -> [u8; 32] {
        commit(LABEL_SHARE, &self.opening, Self::value(&self.share, party, nonce).expose()).0
    }

    /// Whether this is what `party` committed to.
    #[must_use]
    pub fn opens(&self, commitment: &[u8; 32], party: u8, nonce: &[u8; 16]) -> bool {
        let value = Self::value(&self.share, party, nonce);
        Commitment(*commitment).opens_to(LABEL_SHARE, &self.opening, value.expose())
    }

    /// With party and nonce, so that no party can repeat another's commitment as its own.
    fn value(share: &Seed, party: u8, nonce: &[u8; 16]) -> Secret<49> {
        let mut value = [0; 49];
        value[..32].copy_from_slice(share.expose());
        value[32] = party;
        value[33..].copy_from_slice(nonce);
        Secret::new(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(byte: u8) -> OrderDraw {
        OrderDraw { share: Seed::new([byte; 32]), opening: [byte + 1; 32] }
    }

    #[test]
    fn a_commitment_is_opened_by_its_own_party_in_its_own_session() {
        let committed = draw(1).commitment(1, &[7; 16]);
        assert!(draw(1).opens(&committed, 1, &[7; 16]));
        assert!(!draw(1).opens(&committed, 2, &[7; 16]), "repeated by the other party");
        assert!(!draw(1).opens(&committed, 1, &[8; 16]), "repeated in another session");
        assert!(!draw(2).opens(&committed, 1, &[7; 16]), "another share");
    }

    #[test]
    fn a_key_prints_nothing_of_itself_and_follows_from_both_shares() {
        let [one, two, other] = [1, 2, 3].map(|byte| Seed::new([byte; 32]));
        let key = OrderKey::from_shares("ix", [&one, &two]);
        assert_eq!(format!("{key:?}"), "OrderKey(..)");
        assert_eq!(key, OrderKey::from_shares("ix", [&one, &two]));
        for shares in [[&two, &one], [&one, &other], [&other, &two]] {
            assert_ne!(key, OrderKey::from_shares("ix", shares));
        }
        assert_ne!(key.check(1, &[7; 16]), key.check(2, &[7; 16]));
        assert_ne!(key.check(1, &[7; 16]), key.check(1, &[8; 16]));
    }

    #[test]
    fn numbers_places_checks_and_keys_are_those_of_the_protocols_page() {
        let (key, nlri) =
            (OrderKey::new([5; 32]), Nlri { path_id: 1, prefix: "20.0.0.0/16".parse().expect("a prefix") });
        assert_eq!(key.number(3, &nlri).0, 0x039e_f6af_c6e5_af90);
        assert_eq!(key.place(&nlri.prefix).0, 0x171b_850f_3f81_5bbd);
        let first = |octets: [u8; 32]| u64::from_be_bytes(*octets.first_chunk().expect("8 of 32"));
        assert_eq!(first(key.check(2, &[7; 16])), 0xdc71_444a_d511_b80f);
        assert_eq!(first(draw(1).commitment(1, &[7; 16])), 0x7e77_e3c7_7a8f_2475);
        let [one, two] = [1, 2].map(|byte| Seed::new([byte; 32]));
        assert_eq!(first(*OrderKey::from_shares("ix", [&one, &two]).secret().expose()), 0xcf7b_dbad_345d_fea1);
    }

    #[test]
    fn a_number_depends_on_all_of_a_candidate() {
        let nlri = |path_id, prefix: &str| Nlri { path_id, prefix: prefix.parse().expect("a prefix") };
        let number = |byte, slot, path_id, prefix| OrderKey::new([byte; 32]).number(slot, &nlri(path_id, prefix));
        let first = number(1, 1, 1, "20.0.0.0/16");
        assert!(first == number(1, 1, 1, "20.0.0.0/16"));
        for other in [
            number(2, 1, 1, "20.0.0.0/16"),
            number(1, 2, 1, "20.0.0.0/16"),
            number(1, 1, 2, "20.0.0.0/16"),
            number(1, 1, 1, "20.0.0.0/17"),
        ] {
            assert!(first != other);
        }
    }
}
