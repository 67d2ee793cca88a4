//! The 128 base OTs of one direction: Masny and Rindal's oblivious transfer over Ristretto; received points are checked.
//!
//! The sender sends `A = a G`. For choice bit `s` the receiver sends two points `R_0`, `R_1`: the one that it did not choose is
//! random, and `R_s = b G - H_s(R_(1-s))`, where `H_0` and `H_1` hash to the group. The sender's keys are hashes of
//! `a (R_j + H_j(R_(1-j)))`, the receiver's of `b A`. Both hashes are bound to the greetings of both parties, the direction and the
//! transfer.
//!
//! "Endemic oblivious transfer", CCS 2019. It is secure against either party that deviates, in the random-oracle model, under the gap
//! Diffie-Hellman assumption: two uniform points say nothing of `s`, and whoever knows both keys has solved Diffie and Hellman's problem
//! for a point that the hash chose. Each party may choose its own keys, which the extension allows: there they are seeds.

use curve25519_dalek::ristretto::{CompressedRistretto, RistrettoPoint};
use curve25519_dalek::scalar::Scalar;
use curve25519_dalek::traits::IsIdentity;
use subtle::{Choice, ConditionallySelectable};
use wayleave_crypto::hash::hash512;
use wayleave_crypto::kdf::derive;
use wayleave_crypto::prg::Prg;
use wayleave_crypto::secret::Secret;
use zeroize::Zeroizing;

use crate::error::{Fault, PointFault};
use crate::party::Role;

/// Base OTs of one direction: the security parameter.
pub(crate) const BASE_OTS: usize = 128;
pub(crate) const POINT_BYTES: usize = 32;
/// Bytes of the receiver's answer: two points for each transfer.
pub(crate) const ANSWER_BYTES: usize = 2 * BASE_OTS * POINT_BYTES;

const KEY_LABEL: &str = "wayleave/mpc/base-ot/v2";
const POINT_LABEL: &str = "wayleave/mpc/base-ot-point/v2";

/// Blocks of the receiver's randomness for each transfer: a scalar, and the point that it did not choose.
const RANDOM_BLOCKS: u64 = 8;

/// An encoded point.
type Encoded = [u8; POINT_BYTES];

/// What the hashes of one direction are bound to.
#[derive(Clone, Copy)]
pub(crate) struct Direction<'c> {
    /// The hash of both greetings.
    pub(crate) context: &'c [u8; 32],
    pub(crate) sender: Role,
}

/// A sender of base OTs: two keys for each, of which the receiver gets one.
pub(crate) struct Sender {
    secret: Zeroizing<Scalar>,
    pub(crate) point: Encoded,
}

impl Sender {
    /// Draws `a` from the start of `random`.
    pub(crate) fn new(random: &Prg) -> Self {
        let secret = Zeroizing::new(scalar(random, 0));
        Self { point: RistrettoPoint::mul_base(&secret).compress().0, secret }
    }

    /// The pairs of keys for the receiver's points, two for each transfer.
    pub(crate) fn keys(&self, direction: Direction<'_>, points: &[Encoded]) -> Result<Vec<[Secret<16>; 2]>, Fault> {
        let mut decoded = Vec::with_capacity(points.len());
        for (number, bytes) in points.iter().enumerate() {
            let place = number + 1;
            decoded.push(checked(place, bytes)?);
            if points[..number].contains(bytes) || *bytes == self.point {
                return Err(Fault::Point { index: place, fault: PointFault::Repeated });
            }
        }
        let pairs = decoded.as_chunks::<2>().0.iter().zip(points.as_chunks::<2>().0);
        let keys = pairs.enumerate().map(|(number, (points, encoded))| {
            [0, 1].map(|side| {
                let shared = (points[side] + direction.point(number, side as u8, &encoded[1 - side])) * *self.secret;
                direction.key(number, &self.point, encoded, &shared)
            })
        });
        Ok(keys.collect())
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
    direction: Direction<'_>,
    theirs: &Encoded,
    own: &Encoded,
    choices: u128,
    random: &Prg,
) -> Result<ReceiverOutput, Fault> {
    let point = checked(0, theirs)?;
    if theirs == own {
        return Err(Fault::Point { index: 0, fault: PointFault::Repeated });
    }
    let mut output = ReceiverOutput { points: Vec::with_capacity(ANSWER_BYTES), keys: Vec::with_capacity(BASE_OTS) };
    for number in 0..BASE_OTS {
        let first = RANDOM_BLOCKS * number as u64;
        let secret = Zeroizing::new(scalar(random, first));
        let other = RistrettoPoint::from_uniform_bytes(&wide(random, first + 4)).compress().0;
        let side = ((choices >> number) & 1) as u8;
        let chosen = (RistrettoPoint::mul_base(&secret) - direction.point(number, side, &other)).compress().0;
        let side = Choice::from(side);
        let select = |zero: &Encoded, one: &Encoded| -> Encoded {
            std::array::from_fn(|octet| u8::conditional_select(&zero[octet], &one[octet], side))
        };
        let pair = [select(&chosen, &other), select(&other, &chosen)];
        output.keys.push(direction.key(number, theirs, &pair, &(point * *secret)));
        output.points.extend_from_slice(pair.as_flattened());
    }
    Ok(output)
}

impl Direction<'_> {
    /// The hash of a point to the group, `H_side`.
    fn point(self, number: usize, side: u8, other: &Encoded) -> RistrettoPoint {
        let place = [self.sender.number(), octet(number), side];
        RistrettoPoint::from_uniform_bytes(&hash512(POINT_LABEL, &[self.context, &place, other]))
    }

    fn key(self, number: usize, sent: &Encoded, answer: &[Encoded; 2], shared: &RistrettoPoint) -> Secret<16> {
        let mut info = [0u8; 130];
        info[..32].copy_from_slice(self.context);
        info[32] = self.sender.number();
        info[33] = octet(number);
        info[34..66].copy_from_slice(sent);
        info[66..].copy_from_slice(answer.as_flattened());
        derive(KEY_LABEL, Zeroizing::new(shared.compress().0).as_slice(), &info)
    }
}

fn octet(number: usize) -> u8 {
    u8::try_from(number).expect("128 transfers")
}

/// Decodes a point that a peer sent: canonical and not the identity. Ristretto has no points of low order besides.
fn checked(index: usize, bytes: &Encoded) -> Result<RistrettoPoint, Fault> {
    let refused = |fault| Fault::Point { index, fault };
    let point = CompressedRistretto(*bytes).decompress().ok_or(refused(PointFault::NotCanonical))?;
    if point.is_identity() {
        return Err(refused(PointFault::Identity));
    }
    Ok(point)
}

fn wide(random: &Prg, first: u64) -> Zeroizing<[u8; 64]> {
    let mut wide = Zeroizing::new([0u8; 64]);
    random.fill(first, wide.as_mut());
    wide
}

fn scalar(random: &Prg, first: u64) -> Scalar {
    Scalar::from_bytes_mod_order_wide(&wide(random, first))
}

#[cfg(test)]
mod tests {
    //! MPC-11: points of a peer that deviates; a transfer gives one key of two.

    use super::*;

    const DIRECTION: Direction<'_> = Direction { context: &[3; 32], sender: Role::Party1 };

    fn points(bytes: &[u8]) -> Vec<Encoded> {
        bytes.as_chunks::<POINT_BYTES>().0.to_vec()
    }

    fn answer(sender: &Sender, choices: u128) -> ReceiverOutput {
        receive(DIRECTION, &sender.point, &[0; 32], choices, &Prg::new(&[2; 16])).unwrap()
    }

    #[test]
    fn the_receiver_gets_the_key_of_its_choice_and_not_the_other() {
        let (sender, choices) = (Sender::new(&Prg::new(&[1; 16])), 0x0123_4567_89ab_cdef_u128 << 50);
        let received = answer(&sender, choices);
        assert_eq!(received.points.len(), ANSWER_BYTES);
        let keys = sender.keys(DIRECTION, &points(&received.points)).unwrap();
        for (number, (pair, key)) in keys.iter().zip(&received.keys).enumerate() {
            let chosen = ((choices >> number) & 1) as usize;
            assert_eq!(pair[chosen], *key);
            assert_ne!(pair[1 - chosen], *key);
        }
    }

    #[test]
    fn another_context_direction_or_transfer_gives_other_keys() {
        let sender = Sender::new(&Prg::new(&[1; 16]));
        let received = answer(&sender, 0);
        let sent = points(&received.points);
        let context = Direction { context: &[4; 32], ..DIRECTION };
        let turned = Direction { sender: Role::Party2, ..DIRECTION };
        for direction in [context, turned] {
            let keys = sender.keys(direction, &sent).unwrap();
            assert!(keys.iter().zip(&received.keys).all(|(pair, key)| pair[0] != *key && pair[1] != *key));
        }
        let mut moved = sent;
        moved.rotate_left(2);
        let keys = sender.keys(DIRECTION, &moved).unwrap();
        assert!(keys.iter().zip(&received.keys[1..]).all(|(pair, key)| pair[0] != *key && pair[1] != *key));
    }

    #[test]
    fn the_scalars_of_both_points_give_neither_key() {
        // Both points are its own, and neither key is what their scalars give: each point is moved by the hash of the other.
        let sender = Sender::new(&Prg::new(&[1; 16]));
        let mut sent = points(&answer(&sender, 0).points);
        let scalars = [5u64, 6].map(Scalar::from);
        (sent[0], sent[1]) = (scalars.map(|scalar| RistrettoPoint::mul_base(&scalar).compress().0)).into();
        let pair = &sender.keys(DIRECTION, &sent).unwrap()[0];
        let point = CompressedRistretto(sender.point).decompress().unwrap();
        for (key, scalar) in pair.iter().zip(scalars) {
            assert_ne!(*key, DIRECTION.key(0, &sender.point, &[sent[0], sent[1]], &(point * scalar)));
        }
    }

    #[test]
    fn bad_points_are_refused() {
        let sender = Sender::new(&Prg::new(&[1; 16]));
        let good = answer(&sender, 5).points;
        let refused = |point: [u8; 32]| {
            let answer = receive(DIRECTION, &point, &[0; 32], 5, &Prg::new(&[2; 16])).map(|_| ());
            let mut all = points(&good);
            all[77] = point;
            (answer, sender.keys(DIRECTION, &all).map(|_| ()))
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
        let good = answer(&sender, 5).points;
        let repeated = |index| Err(Fault::Point { index, fault: PointFault::Repeated });
        for place in [1, 4, 200] {
            let mut all = points(&good);
            all[place] = all[0];
            assert_eq!(sender.keys(DIRECTION, &all).map(|_| ()), repeated(place + 1));
        }
        let mut all = points(&good);
        all[0] = sender.point;
        assert_eq!(sender.keys(DIRECTION, &all).map(|_| ()), repeated(1));
        let echoed = receive(DIRECTION, &sender.point, &sender.point, 5, &Prg::new(&[2; 16]));
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
