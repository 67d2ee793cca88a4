//! The 128 base OTs of one direction: Chou and Orlandi's oblivious transfer over Ristretto; received points are checked.
//!
//! The sender sends `A = a G`. For choice bit `s_i` the receiver sends `B_i = b_i G + s_i A`. The sender's keys are hashes of
//! `a B_i` and `a (B_i - A)`, the receiver's of `b_i A`, each bound to the greeting of both parties, the direction, `i`, `A`
//! and `B_i`. ("The simplest protocol for oblivious transfer", Latincrypt 2015; semi-honest parties here.)

use curve25519_dalek::ristretto::{CompressedRistretto, RistrettoPoint};
use curve25519_dalek::scalar::Scalar;
use curve25519_dalek::traits::{Identity, IsIdentity};
use subtle::{Choice, ConditionallySelectable};
use wayleave_crypto::kdf::derive;
use wayleave_crypto::prg::Prg;
use wayleave_crypto::secret::Secret;
use zeroize::Zeroizing;

use crate::error::{Fault, PointFault};
use crate::party::Role;

/// Base OTs of one direction: the security parameter.
pub(crate) const BASE_OTS: usize = 128;
pub(crate) const POINT_BYTES: usize = 32;

const LABEL: &str = "wayleave/mpc/base-ot/v1";

/// A sender of base OTs: two keys for each, of which the receiver gets one.
pub(crate) struct Sender {
    secret: Zeroizing<Scalar>,
    pub(crate) point: [u8; POINT_BYTES],
}

impl Sender {
    /// Draws `a` from the start of `random`.
    pub(crate) fn new(random: &Prg) -> Self {
        let secret = Zeroizing::new(scalar(random, 0));
        Self { point: RistrettoPoint::mul_base(&secret).compress().0, secret }
    }

    /// The pairs of keys for the receiver's points. `context` is the hash of both greetings, `sender` this party.
    pub(crate) fn keys(
        &self,
        context: &[u8; 32],
        sender: Role,
        points: &[[u8; POINT_BYTES]],
    ) -> Result<Vec<[Secret<16>; 2]>, Fault> {
        let own = RistrettoPoint::mul_base(&self.secret) * *self.secret;
        let mut keys = Vec::with_capacity(points.len());
        for (number, bytes) in points.iter().enumerate() {
            let place = number + 1;
            let point = checked(place, bytes)?;
            if points[..number].contains(bytes) || *bytes == self.point {
                return Err(Fault::Point { index: place, fault: PointFault::Repeated });
            }
            let shared = point * *self.secret;
            let key = |shared: RistrettoPoint| key(context, sender, number, &self.point, bytes, &shared);
            keys.push([key(shared), key(shared - own)]);
        }
        Ok(keys)
    }
}

/// The receiver's points, to be sent, and its keys.
pub(crate) struct ReceiverOutput {
    /// The points to send, one after another.
    pub(crate) points: Vec<u8>,
    /// One key for each transfer.
    pub(crate) keys: Vec<Secret<16>>,
}

/// Answers the sender's point `theirs`; bit `i` of `choices` chooses in transfer `i`. `own` is this party's point as a
/// sender: a peer that sends it back would make us run the protocol with ourselves.
pub(crate) fn receive(
    context: &[u8; 32],
    sender: Role,
    theirs: &[u8; POINT_BYTES],
    own: &[u8; POINT_BYTES],
    choices: u128,
    random: &Prg,
) -> Result<ReceiverOutput, Fault> {
    let point = checked(0, theirs)?;
    if theirs == own {
        return Err(Fault::Point { index: 0, fault: PointFault::Repeated });
    }
    let mut output =
        ReceiverOutput { points: Vec::with_capacity(BASE_OTS * POINT_BYTES), keys: Vec::with_capacity(BASE_OTS) };
    for number in 0..BASE_OTS {
        let secret = Zeroizing::new(scalar(random, number as u64));
        let chosen = Choice::from(((choices >> number) & 1) as u8);
        let added = RistrettoPoint::conditional_select(&RistrettoPoint::identity(), &point, chosen);
        let answer = (RistrettoPoint::mul_base(&secret) + added).compress().0;
        output.keys.push(key(context, sender, number, theirs, &answer, &(point * *secret)));
        output.points.extend_from_slice(&answer);
    }
    Ok(output)
}

/// Decodes a point that a peer sent: canonical and not the identity. Ristretto has no points of low order besides.
fn checked(index: usize, bytes: &[u8; POINT_BYTES]) -> Result<RistrettoPoint, Fault> {
    let refused = |fault| Fault::Point { index, fault };
    let point = CompressedRistretto(*bytes).decompress().ok_or(refused(PointFault::NotCanonical))?;
    if point.is_identity() {
        return Err(refused(PointFault::Identity));
    }
    Ok(point)
}

fn scalar(random: &Prg, number: u64) -> Scalar {
    let mut wide = Zeroizing::new([0u8; 64]);
    random.fill(4 * number, wide.as_mut());
    Scalar::from_bytes_mod_order_wide(&wide)
}

fn key(
    context: &[u8; 32],
    sender: Role,
    number: usize,
    sent: &[u8; POINT_BYTES],
    answer: &[u8; POINT_BYTES],
    shared: &RistrettoPoint,
) -> Secret<16> {
    let mut info = [0u8; 98];
    info[..32].copy_from_slice(context);
    info[32] = sender.number();
    info[33] = u8::try_from(number).expect("128 transfers");
    info[34..66].copy_from_slice(sent);
    info[66..].copy_from_slice(answer);
    derive(LABEL, Zeroizing::new(shared.compress().0).as_slice(), &info)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTEXT: [u8; 32] = [3; 32];

    fn points(bytes: &[u8]) -> Vec<[u8; POINT_BYTES]> {
        bytes.as_chunks::<POINT_BYTES>().0.to_vec()
    }

    #[test]
    fn the_receiver_gets_the_key_of_its_choice_and_not_the_other() {
        let (sender, choices) = (Sender::new(&Prg::new(&[1; 16])), 0x0123_4567_89ab_cdef_u128 << 50);
        let random = Prg::new(&[2; 16]);
        let received = receive(&CONTEXT, Role::Party1, &sender.point, &[0; 32], choices, &random).unwrap();
        let keys = sender.keys(&CONTEXT, Role::Party1, &points(&received.points)).unwrap();
        for (number, (pair, key)) in keys.iter().zip(&received.keys).enumerate() {
            let chosen = ((choices >> number) & 1) as usize;
            assert_eq!(pair[chosen], *key);
            assert_ne!(pair[1 - chosen], *key);
        }
    }

    #[test]
    fn another_context_or_direction_gives_other_keys() {
        let sender = Sender::new(&Prg::new(&[1; 16]));
        let received = receive(&CONTEXT, Role::Party1, &sender.point, &[0; 32], 0, &Prg::new(&[2; 16])).unwrap();
        for (context, role) in [([4; 32], Role::Party1), (CONTEXT, Role::Party2)] {
            let keys = sender.keys(&context, role, &points(&received.points)).unwrap();
            assert!(keys.iter().zip(&received.keys).all(|(pair, key)| pair[0] != *key));
        }
    }

    #[test]
    fn bad_points_are_refused() {
        let sender = Sender::new(&Prg::new(&[1; 16]));
        let good = receive(&CONTEXT, Role::Party1, &sender.point, &[0; 32], 5, &Prg::new(&[2; 16])).unwrap().points;
        let refused = |point: [u8; 32]| {
            let answer = receive(&CONTEXT, Role::Party1, &point, &[0; 32], 5, &Prg::new(&[2; 16])).map(|_| ());
            let mut all = points(&good);
            all[77] = point;
            (answer, sender.keys(&CONTEXT, Role::Party1, &all).map(|_| ()))
        };
        let both = |fault| (Err(Fault::Point { index: 0, fault }), Err(Fault::Point { index: 78, fault }));
        for point in not_canonical() {
            assert_eq!(refused(point), both(PointFault::NotCanonical), "{point:02x?}");
        }
        assert_eq!(refused([0; 32]), both(PointFault::Identity));
    }

    #[test]
    fn repeated_points_are_refused() {
        let sender = Sender::new(&Prg::new(&[1; 16]));
        let good = receive(&CONTEXT, Role::Party1, &sender.point, &[0; 32], 5, &Prg::new(&[2; 16])).unwrap().points;
        let repeated = |index| Err(Fault::Point { index, fault: PointFault::Repeated });
        let mut all = points(&good);
        all[100] = all[3];
        assert_eq!(sender.keys(&CONTEXT, Role::Party1, &all).map(|_| ()), repeated(101));
        all = points(&good);
        all[0] = sender.point;
        assert_eq!(sender.keys(&CONTEXT, Role::Party1, &all).map(|_| ()), repeated(1));
        let random = Prg::new(&[2; 16]);
        let echoed = receive(&CONTEXT, Role::Party1, &sender.point, &sender.point, 5, &random);
        assert_eq!(echoed.map(|_| ()), repeated(0));
    }

    /// Encodings that are no Ristretto point: values past the prime, negative ones, those off the curve, and every
    /// encoding of an Edwards point of low order but the identity.
    fn not_canonical() -> Vec<[u8; 32]> {
        let number = |low: u8, middle: u8, high: u8| {
            let mut bytes = [middle; 32];
            (bytes[0], bytes[31]) = (low, high);
            bytes
        };
        let order_8: [[u8; 32]; 2] = [
            [
                0x26, 0xe8, 0x95, 0x8f, 0xc2, 0xb2, 0x27, 0xb0, 0x45, 0xc3, 0xf4, 0x89, 0xf2, 0xef, 0x98, 0xf0, 0xd5,
                0xdf, 0xac, 0x05, 0xd3, 0xc6, 0x33, 0x39, 0xb1, 0x38, 0x02, 0x88, 0x6d, 0x53, 0xfc, 0x05,
            ],
            [
                0xc7, 0x17, 0x6a, 0x70, 0x3d, 0x4d, 0xd8, 0x4f, 0xba, 0x3c, 0x0b, 0x76, 0x0d, 0x10, 0x67, 0x0f, 0x2a,
                0x20, 0x53, 0xfa, 0x2c, 0x39, 0xcc, 0xc6, 0x4e, 0xc7, 0xfd, 0x77, 0x92, 0xac, 0x03, 0x7a,
            ],
        ];
        let mut all = vec![
            number(0xed, 0xff, 0x7f), // p, which is zero
            number(0xee, 0xff, 0x7f), // p + 1
            number(0xef, 0xff, 0x7f),
            number(0xff, 0xff, 0x7f),
            number(0xff, 0xff, 0xff),
            number(0xec, 0xff, 0x7f), // p - 1, the Edwards point of order 2
            number(0x00, 0x00, 0x80),
            number(0x01, 0x00, 0x00), // negative: odd
            number(0x01, 0x00, 0x80),
        ];
        for mut point in order_8 {
            all.push(point);
            point[31] |= 0x80;
            all.push(point);
        }
        all
    }
}
