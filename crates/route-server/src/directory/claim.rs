//! What a member signs about its own slot, and how a key that the exchange knows signs for another.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use wayleave_core::Asn;
use wayleave_core::wire::{Malformed, Reader, Writer};
use wayleave_crypto::hash::hash;
use wayleave_crypto::sign::{Signature, SigningKey, VerifyingKey};

use super::set::is_name;
use super::{AttestKey, MAX_ADDRESSES, MAX_ATTEST_KEYS, MAX_EXCHANGE_NAME, MAX_SLOT_NAME};

const LABEL_CLAIM: &str = "wayleave/directory/claim/v2";
const LABEL_RENEWAL: &str = "wayleave/directory/renewal/v2";
const LABEL_FURTHER: &str = "wayleave/directory/further-slot/v2";
/// Version of an encoded [`Request`].
const VERSION: u8 = 2;

/// What the holder of a slot signs, for one exchange.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Claim {
    /// Rises with each claim of one member, so that an old one cannot come back; microseconds since 1970 by custom.
    pub serial: u64,
    pub asn: Asn,
    pub name: String,
    /// SHA-256 fingerprint of the certificate by which it proves itself in TLS.
    pub tls: [u8; 32],
    /// The Ed25519 public key that signs its route objects, and this claim.
    pub sign: [u8; 32],
    /// The keys with which its AS signs paths, by ascending suite. Those of the AS's lowest active slot that lists any and is
    /// not held count for the AS.
    pub attest: Vec<AttestKey>,
    /// Addresses on the exchange's network that a NEXT_HOP of this slot may have.
    pub addresses: Vec<IpAddr>,
}

/// What the signature of a key that the exchange knows says about a claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Consent {
    /// The claim takes the place of the one with the signing key.
    Renewal,
    /// The claim is for a further slot of the signer's AS.
    Further,
}

/// A claim with its holder's signature, as a member sends it to both operators.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    pub exchange: String,
    pub claim: Claim,
    /// By the claim's own key.
    pub signature: Signature,
    /// By a key that the exchange knows: what it consents to, the key, the signature.
    pub consent: Option<(Consent, [u8; 32], Signature)>,
}

impl Consent {
    const fn label(self) -> &'static str {
        match self {
            Self::Renewal => LABEL_RENEWAL,
            Self::Further => LABEL_FURTHER,
        }
    }

    /// Signs.
    #[must_use]
    pub fn sign(self, exchange: &str, claim: &Claim, key: &SigningKey) -> Signature {
        key.sign(self.label(), &claim.signed_bytes(exchange))
    }

    pub(super) fn holds(self, exchange: &str, claim: &Claim, key: &[u8; 32], signature: &Signature) -> bool {
        is_signed(self.label(), &claim.signed_bytes(exchange), key, signature)
    }
}

impl Claim {
    /// Signs the claim with the member's own key.
    #[must_use]
    pub fn sign(self, exchange: &str, key: &SigningKey) -> Request {
        let signature = key.sign(LABEL_CLAIM, &self.signed_bytes(exchange));
        Request { exchange: exchange.to_owned(), claim: self, signature, consent: None }
    }

    /// The hash of all that the holder signs, for one exchange. The member tells it to both operators: whoever compares it has
    /// compared every key and every address.
    #[must_use]
    pub fn digest(&self, exchange: &str) -> [u8; 32] {
        hash(LABEL_CLAIM, &[&self.signed_bytes(exchange)])
    }

    pub(super) fn is_signed(&self, exchange: &str, signature: &Signature) -> bool {
        is_signed(LABEL_CLAIM, &self.signed_bytes(exchange), &self.sign, signature)
    }

    fn signed_bytes(&self, exchange: &str) -> Vec<u8> {
        let mut out = Writer::new();
        out.blob(exchange.as_bytes());
        self.write(&mut out);
        out.finish()
    }

    /// Serial 64, AS 32, name (counted), certificate 256, key 256, attestation keys (counted) of suite 8 and key 256,
    /// addresses (counted) of family 8 (4 or 6) and octets; counts have 32 bits.
    pub(super) fn write(&self, out: &mut Writer) {
        out.u64(self.serial).u32(self.asn.0).blob(self.name.as_bytes()).bytes(&self.tls).bytes(&self.sign);
        out.list32(&self.attest, |out, key| {
            out.u8(key.suite).bytes(&key.key);
        });
        write_addresses(out, &self.addresses);
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let claim = Self {
            serial: reader.u64()?,
            asn: Asn(reader.u32()?),
            name: text(reader, MAX_SLOT_NAME)?,
            tls: reader.array()?,
            sign: reader.array()?,
            attest: reader.list32(33, MAX_ATTEST_KEYS, |reader| {
                Ok::<_, Malformed>(AttestKey { suite: reader.u8()?, key: reader.array()? })
            })?,
            addresses: read_addresses(reader)?,
        };
        if claim.attest.is_sorted_by(|a, b| a.suite < b.suite) {
            Ok(claim)
        } else {
            Err(Malformed::Order("attestation keys"))
        }
    }
}

impl Request {
    /// Adds the consent of a key that the exchange knows.
    #[must_use]
    pub fn with_consent(mut self, consent: Consent, key: &SigningKey) -> Self {
        let signature = consent.sign(&self.exchange, &self.claim, key);
        self.consent = Some((consent, key.verifying_key().to_bytes(), signature));
        self
    }

    /// Whether the claim's own key signed it, and the consent's key the consent.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let (exchange, claim) = (&self.exchange, &self.claim);
        is_name(exchange, MAX_EXCHANGE_NAME)
            && claim.is_signed(exchange, &self.signature)
            && self.consent.is_none_or(|(consent, key, signature)| consent.holds(exchange, claim, &key, &signature))
    }

    /// The encoding: version 8, exchange (counted), claim, signature 512, consent 8 (0 none, 1 renewal, 2 further slot) with
    /// key 256 and signature 512.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        out.u8(VERSION).blob(self.exchange.as_bytes());
        self.claim.write(&mut out);
        out.bytes(&self.signature);
        match &self.consent {
            None => out.u8(0),
            Some((consent, key, signature)) => {
                out.u8(if *consent == Consent::Renewal { 1 } else { 2 }).bytes(key).bytes(signature)
            }
        };
        out.finish()
    }

    /// Reads what [`Request::encode`] wrote, all of it. Signatures are not checked here.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        if reader.u8()? != VERSION {
            return Err(Malformed::Value("the version of a member's request"));
        }
        let exchange = text(&mut reader, MAX_EXCHANGE_NAME)?;
        let claim = Claim::read(&mut reader)?;
        let signature = reader.array()?;
        let consent = match reader.u8()? {
            0 => None,
            1 => Some((Consent::Renewal, reader.array()?, reader.array()?)),
            2 => Some((Consent::Further, reader.array()?, reader.array()?)),
            _ => return Err(Malformed::Value("the kind of a consent")),
        };
        reader.end()?;
        Ok(Self { exchange, claim, signature, consent })
    }
}

/// Whether `key` is one, and signed.
pub(super) fn is_signed(label: &str, bytes: &[u8], key: &[u8; 32], signature: &Signature) -> bool {
    VerifyingKey::from_bytes(key).is_ok_and(|key| key.verify(label, bytes, signature).is_ok())
}

pub(super) fn text(reader: &mut Reader<'_>, most: usize) -> Result<String, Malformed> {
    let text = std::str::from_utf8(reader.blob(most)?).map_err(|_| Malformed::Value("a name"))?;
    Ok(text.to_owned())
}

pub(super) fn write_addresses(out: &mut Writer, addresses: &[IpAddr]) {
    out.list32(addresses, |out, address| {
        match address {
            IpAddr::V4(v4) => out.u8(4).bytes(&v4.octets()),
            IpAddr::V6(v6) => out.u8(6).bytes(&v6.octets()),
        };
    });
}

pub(super) fn read_addresses(reader: &mut Reader<'_>) -> Result<Vec<IpAddr>, Malformed> {
    // The smallest address has five octets.
    reader.list32(5, MAX_ADDRESSES, |reader| match reader.u8()? {
        4 => Ok(Ipv4Addr::from(reader.array::<4>()?).into()),
        6 => Ok(Ipv6Addr::from(reader.array::<16>()?).into()),
        _ => Err(Malformed::Value("an address family")),
    })
}
