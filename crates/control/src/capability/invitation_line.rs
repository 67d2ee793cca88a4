//! An invitation in the invited's hands: one line of text, which is a secret and works once.

use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use wayleave_core::UnixTime;
use wayleave_core::wire::{Malformed, Reader, Writer, is_text};
use wayleave_crypto::hash::hash;
use wayleave_crypto::secret::Seed;
use wayleave_crypto::sign::SigningKey;

use super::invitation::InvitationId;
use super::redemption::RedemptionRequest;

/// How every line begins.
pub const INVITATION_PREFIX: &str = "wayleave-invitation-";
const VERSION: u8 = 1;
/// Octets behind the rest that show a line that was cut or changed by accident.
const CHECK: usize = 4;
/// Characters of the address, at most.
pub const MAX_URL: usize = 200;
/// How every address begins.
const SCHEME: &str = "https://";
/// Octets of a line's content, at most.
const MAX: usize = 1 + 1 + MAX_URL + 32 + 8 + 32 + 8 + CHECK;

/// Where an API of a key server is reached: `https://HOST[:PORT]`, and nothing behind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ApiUrl(String);

/// The text is no address of an API.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("expected https://HOST or https://HOST:PORT of at most {MAX_URL} characters, without a path")]
pub struct BadApiUrl;

impl ApiUrl {
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Host and port, as a request names them.
    #[must_use]
    pub fn authority(&self) -> &str {
        self.0.strip_prefix(SCHEME).unwrap_or_default()
    }

    /// The host, without the brackets of an IPv6 address.
    #[must_use]
    pub fn host(&self) -> &str {
        let authority = self.authority();
        let host = split_port(authority).map_or(authority, |(host, _)| host);
        host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
    }

    /// The port; 443 if none is named.
    #[must_use]
    pub fn port(&self) -> u16 {
        split_port(self.authority()).and_then(|(_, port)| port.parse().ok()).unwrap_or(443)
    }
}

/// Host and port, if there is one: the colons of a bracketed address are none.
fn split_port(authority: &str) -> Option<(&str, &str)> {
    authority.rsplit_once(':').filter(|(_, port)| !port.contains(']'))
}

impl FromStr for ApiUrl {
    type Err = BadApiUrl;

    fn from_str(text: &str) -> Result<Self, BadApiUrl> {
        let authority = text.strip_prefix(SCHEME).ok_or(BadApiUrl)?;
        let (host, port) = split_port(authority).map_or((authority, None), |(host, port)| (host, Some(port)));
        let is_port = port.is_none_or(|port| {
            port.bytes().all(|octet| octet.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|port| port > 0)
        });
        let is_host = match host.strip_prefix('[') {
            Some(rest) => rest.strip_suffix(']').is_some_and(|host| host.parse::<std::net::Ipv6Addr>().is_ok()),
            None => {
                !host.is_empty()
                    && host.bytes().all(|octet| octet.is_ascii_alphanumeric() || matches!(octet, b'-' | b'.'))
            }
        };
        let is_one = is_text(text, MAX_URL) && is_port && is_host;
        is_one.then(|| Self(text.to_owned())).ok_or(BadApiUrl)
    }
}

impl fmt::Display for ApiUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The line. Whoever has it can redeem the invitation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InvitationLine {
    /// Where it is redeemed.
    pub url: ApiUrl,
    /// SHA-256 of the server's SubjectPublicKeyInfo: who else answers there is refused.
    pub pin: [u8; 32],
    pub id: InvitationId,
    /// The seed of the one-time key.
    pub secret: Seed,
    /// The last Unix second at which it can be redeemed.
    pub not_after: u64,
}

/// Why a text is no invitation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InvitationLineError {
    #[error("not an invitation: one begins with {INVITATION_PREFIX}")]
    Text,
    #[error("the line was cut or changed on its way: copy all of it")]
    Check,
    #[error("the line is malformed: {0}")]
    Malformed(#[from] Malformed),
    #[error("the line names no server: {0}")]
    Url(#[from] BadApiUrl),
}

impl InvitationLine {
    /// The public half of the one-time key, for the database.
    #[must_use]
    pub fn key(&self) -> [u8; 32] {
        SigningKey::from_seed(&self.secret).verifying_key().to_bytes()
    }

    /// What its holder asks the server for, by the holder's own key.
    #[must_use]
    pub fn redeem(&self, holder: &SigningKey, now: UnixTime) -> RedemptionRequest {
        RedemptionRequest::sign(self.id, &SigningKey::from_seed(&self.secret), holder, now)
    }

    /// The line, which is a secret.
    #[must_use]
    pub fn expose(&self) -> String {
        let mut out = Writer::new();
        out.u8(VERSION).text(self.url.as_str()).bytes(&self.pin).bytes(&self.id.0).bytes(self.secret.expose());
        out.u64(self.not_after);
        let mut octets = out.finish();
        octets.extend_from_slice(&check(&octets));
        format!("{INVITATION_PREFIX}{}", URL_SAFE_NO_PAD.encode(octets))
    }
}

impl FromStr for InvitationLine {
    type Err = InvitationLineError;

    fn from_str(text: &str) -> Result<Self, InvitationLineError> {
        let text = text.trim().strip_prefix(INVITATION_PREFIX).ok_or(InvitationLineError::Text)?;
        if text.len() > 2 * MAX {
            return Err(InvitationLineError::Check);
        }
        let octets = URL_SAFE_NO_PAD.decode(text).map_err(|_| InvitationLineError::Check)?;
        let (body, found) = octets.split_last_chunk::<CHECK>().ok_or(InvitationLineError::Check)?;
        if *found != check(body) {
            return Err(InvitationLineError::Check);
        }
        let mut reader = Reader::new(body);
        match reader.u8()? {
            VERSION => {}
            other => return Err(Malformed::Version(other).into()),
        }
        let line = Self {
            url: reader.text(MAX_URL)?.parse()?,
            pin: reader.array()?,
            id: InvitationId(reader.array()?),
            secret: Seed::new(reader.array()?),
            not_after: reader.u64()?,
        };
        reader.end()?;
        Ok(line)
    }
}

fn check(octets: &[u8]) -> [u8; CHECK] {
    let [a, b, c, d, ..] = hash("wayleave/capability/invitation/line/v1", &[octets]);
    [a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_and_perhaps_a_port_and_nothing_else() {
        let good = [
            ("https://keys.example.net", "keys.example.net", 443),
            ("https://keys.example.net:8495", "keys.example.net", 8_495),
            ("https://192.0.2.1:1", "192.0.2.1", 1),
            ("https://[2001:db8::1]", "2001:db8::1", 443),
            ("https://[2001:db8::1]:8495", "2001:db8::1", 8_495),
        ];
        for (text, host, port) in good {
            let url: ApiUrl = text.parse().expect(text);
            assert_eq!((url.as_str(), url.host(), url.port()), (text, host, port));
        }
        let bad = [
            "http://keys.example.net",
            "https://",
            "https://:1",
            "https://a:0",
            "https://a:65536",
            "https://a:+1",
            "https://a:",
            "https://a/b",
            "https://u@a",
            "https://a b",
            "https://2001:db8::1",
            "https://[a]",
            "https://[::1",
        ];
        for text in bad {
            assert!(text.parse::<ApiUrl>().is_err(), "{text}");
        }
    }
}
