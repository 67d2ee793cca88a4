//! How a realm's key rolls: the key before signs which one is next and from when, and the realm goes on to be known by its first key.
//!
//! What the realm's key signs carries the rolls up to that key, so that whoever knows the first key verifies it without knowing more.
//! Lists of removed nodes carry all that there are: from these a reader knows that a key's time is over.

use wayleave_core::wire::{Codec, List16, Malformed, Reader, Wire, Writer};
use wayleave_crypto::sign::SigningKey;
use wayleave_crypto::signed::{NotSigned, Object, SIGNATURE, Signed};

use super::{MAX_MEMBERSHIP, RealmKey};
use crate::advert::MAX_AHEAD;

/// Rolls of a realm's key.
pub const MAX_ROLLS: usize = 16;
/// A roll may be announced so many seconds before its date: a year.
pub const MAX_NOTICE: u64 = 366 * 86_400;

wayleave_core::wire! {
    /// A realm has another key from a date on. Signed by the key before.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub struct KeyRoll: Self::check {
        /// The realm's first key, by which it is known.
        pub realm: RealmKey,
        /// 1 of the realm's first roll, and so on.
        pub number: u8,
        pub next: RealmKey,
        pub issued: u64,
        /// The Unix second from which the next key signs, and the one before no more.
        pub from: u64,
        /// The last Unix second at which anything counts that the key before signed.
        pub until: u64,
    }

    /// The rolls of a realm's key, in order.
    #[derive(Clone, PartialEq, Eq, Debug, Default)]
    pub struct Rolls(Vec<Signed<KeyRoll>> as List16<MAX_ROLLS>);
}

impl KeyRoll {
    fn check(&self) -> Result<(), Malformed> {
        let is_valid = (1..=MAX_ROLLS).contains(&usize::from(self.number))
            && self.from.checked_sub(self.issued).is_some_and(|notice| notice <= MAX_NOTICE)
            && self.until.checked_sub(self.from).is_some_and(|lasts| lasts <= MAX_MEMBERSHIP);
        if is_valid { Ok(()) } else { Err(Malformed::Value("the times of a roll")) }
    }
}

impl Object for KeyRoll {
    const LABEL: &'static str = "wayleave/control/key-roll/v1";
    const MAX: usize = 1 + 32 + 1 + 32 + 3 * 8 + SIGNATURE;
}

impl Rolls {
    /// Of a realm whose key never rolled.
    pub(crate) const NONE: Self = Self(Vec::new());
    /// Octets of the longest.
    pub(super) const MAX: usize = 2 + MAX_ROLLS * (4 + KeyRoll::MAX);

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = &KeyRoll> {
        self.0.iter().map(Signed::object)
    }

    /// The end of the key after so many rolls, if there is one: what it made after the first of these Unix seconds does not count, and nothing of
    /// it after the second. A later roll may bring both forward: also of a key that was rolled in order somebody may have a copy.
    #[must_use]
    pub fn end_of(&self, key: usize) -> Option<(u64, u64)> {
        let later = || self.iter().skip(key);
        Some((later().map(|roll| roll.from).min()?, later().map(|roll| roll.until).min()?))
    }

    /// Whether these are all of `other`, and more perhaps.
    #[must_use]
    pub fn begins_with(&self, other: &Self) -> bool {
        self.0.starts_with(&other.0)
    }

    /// The rolls up to the key that rules at the Unix second `at`: one that comes at once passes over those before it that wait.
    #[must_use]
    pub fn up_to(&self, at: u64) -> Self {
        let count = self.0.iter().rposition(|roll| roll.object().from <= at).map_or(0, |last| last + 1);
        Self(self.0[..count].to_vec())
    }

    /// These and the roll to `next`, which `key` signs: the last one of these.
    ///
    /// # Errors
    /// If there are too many, or the times are not in order.
    pub fn and(&self, realm: RealmKey, key: &SigningKey, next: RealmKey, times: [u64; 3]) -> Result<Self, Malformed> {
        let number = u8::try_from(self.len() + 1).unwrap_or(u8::MAX);
        let [issued, from, until] = times;
        let roll = Signed::sign(&KeyRoll { realm, number, next, issued, from, until }, key)?;
        let mut all = self.clone();
        all.0.push(roll);
        all.keys(&realm).map(|_| all).map_err(|_| Malformed::Value("a roll of the realm's key"))
    }

    /// The realm's keys, the first one first.
    ///
    /// # Errors
    /// If a roll is not signed by the key before, is of another realm, goes back to a key, or comes before the one before without ending that
    /// one's time at once.
    pub fn keys(&self, realm: &RealmKey) -> Result<Vec<RealmKey>, NotSigned> {
        let (mut keys, mut latest, mut from) = (vec![*realm], *realm, 0);
        for (number, signed) in (1..).zip(&self.0) {
            let roll = signed.verify(&latest.0)?;
            let is_early = roll.from < from && roll.until != roll.from;
            if roll.realm != *realm || roll.number != number || is_early || keys.contains(&roll.next) {
                return Err(NotSigned);
            }
            (latest, from) = (roll.next, roll.from);
            keys.push(latest);
        }
        Ok(keys)
    }

    /// The last key.
    ///
    /// # Errors
    /// As [`Rolls::keys`].
    pub fn last_key(&self, realm: &RealmKey) -> Result<RealmKey, NotSigned> {
        Ok(self.keys(realm)?.last().copied().unwrap_or(*realm))
    }
}

/// Behind the other fields of an object, in front of its signature: nothing where it says nothing, as in version 1.
pub(super) struct Behind;

impl<T: Wire + Default + PartialEq> Codec<T> for Behind {
    const LEAST: usize = 0;

    fn write(value: &T, out: &mut Writer) {
        if *value != T::default() {
            value.write(out);
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<T, Malformed> {
        if from.left() <= SIGNATURE { Ok(T::default()) } else { T::read(from) }
    }
}

/// What the realm's key signs.
pub trait OfRealm: Object {
    fn realm(&self) -> RealmKey;
    /// The rolls up to the key that signed.
    fn rolls(&self) -> &Rolls;
    /// The Unix second from which it counts.
    fn made(&self) -> u64;
}

/// 1 of an object with nothing [`Behind`] it, and 2 of others.
pub(super) fn version<T: Default + PartialEq>(behind: &T) -> u8 {
    if *behind == T::default() { 1 } else { 2 }
}

/// Reads such an object.
pub(super) fn read_version<T: Object>(number: u8, from: &mut Reader<'_>) -> Result<T, Malformed> {
    if !(1..=2).contains(&number) {
        return Err(Malformed::Version(number));
    }
    let object = T::read(from)?;
    if object.version() == number { Ok(object) } else { Err(Malformed::Value("the rolls of the realm's key")) }
}

/// Verifies what the realm with this first key signed. Whether that key's time was over only a list of removed nodes tells.
///
/// # Errors
/// If it is of another realm or not signed by the last key of its rolls.
pub fn verify<'a, T: OfRealm>(signed: &'a Signed<T>, realm: &RealmKey) -> Result<&'a T, NotSigned> {
    let object = signed.object();
    if object.realm() != *realm {
        return Err(NotSigned);
    }
    signed.verify(&object.rolls().last_key(realm)?.0)
}

/// Why what a key of the realm signed does not count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyFault {
    /// It names another roll than the one that is known.
    Other,
    /// The key's time is over, or was when this was made.
    Ended,
    /// Its date has not come.
    Ahead,
}

/// Whether what was `made` then by the key at the end of `rolls` counts at the Unix second `now`, as far as `known` tells.
///
/// # Errors
/// If not.
pub fn check_key(rolls: &Rolls, made: u64, known: &Rolls, now: u64) -> Result<(), KeyFault> {
    if !known.begins_with(rolls) && !rolls.begins_with(known) {
        return Err(KeyFault::Other);
    }
    if rolls.iter().last().is_some_and(|roll| roll.from > now + MAX_AHEAD) {
        return Err(KeyFault::Ahead);
    }
    match known.end_of(rolls.len()) {
        Some((from, until)) if made > from || now > until => Err(KeyFault::Ended),
        _ => Ok(()),
    }
}
