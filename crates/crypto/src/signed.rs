//! Signed objects, all of one shape: the version, the fields, and an Ed25519 signature under the kind's own label. The
//! signature covers the octets as they came.

use std::fmt;
use std::sync::Arc;

use crate::hash::hash;
use crate::sign::{Signature, SigningKey, VerifyingKey};

use wayleave_core::wire::{Malformed, Reader, Wire, Writer};

/// Octets of a signature.
pub const SIGNATURE: usize = 64;

/// A kind of signed object. Different objects never write alike.
pub trait Object: Wire {
    /// The label of its signature, which no other kind has.
    const LABEL: &'static str;
    /// Octets of the longest one, signature included.
    const MAX: usize;
    /// The version of its encoding.
    const VERSION: u8 = 1;

    /// The version in which this one is written: another than [`Object::VERSION`] where those of before are read still.
    fn version(&self) -> u8 {
        Self::VERSION
    }

    /// Writes the fields as [`Object::version`] has them.
    fn write_version(&self, out: &mut Writer) {
        self.write(out);
    }

    /// Reads the fields of an object of this version.
    ///
    /// # Errors
    /// If they are malformed, or the version is not read.
    fn read_version(version: u8, from: &mut Reader<'_>) -> Result<Self, Malformed> {
        if version == Self::VERSION { Self::read(from) } else { Err(Malformed::Version(version)) }
    }
}

/// The signature is not that of the key that must have signed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the signature is not that of the key that must have signed")]
pub struct NotSigned;

/// An object with its signature, which may not have been verified.
#[derive(Clone)]
pub struct Signed<T> {
    object: T,
    octets: Arc<[u8]>,
}

impl<T: fmt::Debug> fmt::Debug for Signed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Signed").field(&self.object).finish()
    }
}

impl<T> PartialEq for Signed<T> {
    fn eq(&self, other: &Self) -> bool {
        self.octets == other.octets
    }
}

impl<T> Eq for Signed<T> {}

impl<T: Object> Signed<T> {
    /// Signs `object`.
    ///
    /// # Errors
    /// If [`Signed::decode`] would refuse it: the caller erred.
    pub fn sign(object: &T, key: &SigningKey) -> Result<Self, Malformed> {
        let mut octets = body(object);
        octets.extend_from_slice(&key.sign(T::LABEL, &octets));
        Self::decode(&octets)
    }

    /// Decodes all of `octets`. The signature is not verified.
    ///
    /// # Errors
    /// If they are not the encoding of an object of this kind.
    pub fn decode(octets: &[u8]) -> Result<Self, Malformed> {
        if octets.len() > T::MAX {
            return Err(Malformed::TooLong(octets.len() - T::MAX));
        }
        let mut reader = Reader::new(octets);
        let version = reader.u8()?;
        let object = T::read_version(version, &mut reader)?;
        reader.array::<SIGNATURE>()?;
        reader.end()?;
        Ok(Self { object, octets: octets.into() })
    }

    /// Whether `key` signed it.
    ///
    /// # Errors
    /// If not, or if `key` is no key.
    pub fn verify(&self, key: &[u8; 32]) -> Result<&T, NotSigned> {
        let (covered, signature) = self.octets.split_last_chunk::<SIGNATURE>().ok_or(NotSigned)?;
        let signature: &Signature = signature;
        let key = VerifyingKey::from_bytes(key).map_err(|_| NotSigned)?;
        key.verify(T::LABEL, covered, signature).map_err(|_| NotSigned)?;
        Ok(&self.object)
    }

    /// Names exactly this object with exactly this signature.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        hash("wayleave/control/object/v1", &[T::LABEL.as_bytes(), &self.octets])
    }
}

impl<T> Signed<T> {
    /// What is claimed.
    #[must_use]
    pub fn object(&self) -> &T {
        &self.object
    }

    /// The encoding, signature included.
    #[must_use]
    pub fn octets(&self) -> &Arc<[u8]> {
        &self.octets
    }
}

/// The octets with a four-octet count.
impl<T: Object> Wire for Signed<T> {
    const LEAST: usize = 4 + 1 + SIGNATURE;

    fn write(&self, out: &mut Writer) {
        out.blob(&self.octets);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Self::decode(from.blob(T::MAX)?)
    }
}

/// The octets that a signature covers.
pub(crate) fn body<T: Object>(object: &T) -> Vec<u8> {
    let mut out = Writer::new();
    out.u8(object.version());
    object.write_version(&mut out);
    out.finish()
}
