//! What a holder has of a capability, handed over in one line of text.

use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use wayleave_core::wire::{Malformed, Reader, Wire, Writer};
use wayleave_crypto::hash::hash;
use wayleave_crypto::secret::Key128;

use super::keys::{Handle, MasterKey};
use super::terms::Terms;
use super::zone::{MAX_ZONE, Zone};

/// How every line begins.
pub const PREFIX: &str = "wayleave-cap-";
const VERSION: u8 = 1;
/// Octets behind the rest that show a line that was cut or changed by accident.
const CHECK: usize = 4;
/// Octets of a line's content, at most.
const MAX: usize = 1 + 1 + MAX_ZONE + Terms::MAX + 16 + CHECK;

/// A capability in somebody's hands: with it the temporal secret of each key epoch is looked up.
///
/// Its text is a secret: who reads it can use the capability.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Credential {
    /// Where questions go.
    pub zone: Zone,
    pub terms: Terms,
    pub key: MasterKey,
}

/// Why a text is no credential.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CredentialError {
    #[error("not a capability: one begins with {PREFIX}")]
    Text,
    #[error("the line was cut or changed on its way: copy all of it")]
    Check,
    #[error("the line is malformed: {0}")]
    Malformed(#[from] Malformed),
    #[error("the line names no zone of a key server")]
    Zone,
}

impl Credential {
    /// The handle of the capability in one key epoch.
    #[must_use]
    pub fn handle(&self, epoch: u32) -> Handle {
        self.key.handle(&self.terms.capability(epoch))
    }

    /// The credential of a delegation.
    #[must_use]
    pub fn delegate(&self, terms: Terms) -> Self {
        Self { zone: self.zone.clone(), terms, key: self.key.delegate(&terms) }
    }

    /// The line, which is a secret.
    #[must_use]
    pub fn expose(&self) -> String {
        let mut out = Writer::new();
        out.u8(VERSION).text(self.zone.as_str());
        self.terms.write(&mut out);
        out.bytes(self.key.expose());
        let mut octets = out.finish();
        octets.extend_from_slice(&check(&octets));
        format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(octets))
    }
}

impl FromStr for Credential {
    type Err = CredentialError;

    fn from_str(text: &str) -> Result<Self, CredentialError> {
        let text = text.trim().strip_prefix(PREFIX).ok_or(CredentialError::Text)?;
        if text.len() > 2 * MAX {
            return Err(CredentialError::Check);
        }
        let octets = URL_SAFE_NO_PAD.decode(text).map_err(|_| CredentialError::Check)?;
        let (body, found) = octets.split_last_chunk::<CHECK>().ok_or(CredentialError::Check)?;
        if *found != check(body) {
            return Err(CredentialError::Check);
        }
        let mut reader = Reader::new(body);
        match reader.u8()? {
            VERSION => {}
            other => return Err(Malformed::Version(other).into()),
        }
        let zone = reader.text(MAX_ZONE)?;
        let canonical = zone.parse::<Zone>().map_err(|_| CredentialError::Zone)?;
        if canonical.as_str() != zone {
            return Err(CredentialError::Zone);
        }
        let terms = Terms::read(&mut reader)?;
        let key = MasterKey::new(Key128::new(reader.array()?));
        reader.end()?;
        Ok(Self { zone: canonical, terms, key })
    }
}

fn check(octets: &[u8]) -> [u8; CHECK] {
    let [a, b, c, d, ..] = hash("wayleave/capability/line/v1", &[octets]);
    [a, b, c, d]
}
