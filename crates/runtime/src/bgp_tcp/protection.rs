//! What protects a BGP session's TCP connections: a password (TCP MD5, RFC 2385) and TTL security (GTSM, RFC 5082).

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use tokio::net::TcpSocket;
use zeroize::Zeroizing;

use super::options;

/// The TTL of what a peer sends that uses TTL security.
const MAX_TTL: u8 = 255;

/// The password of TCP MD5, 1 to 80 octets. It has no printed form, and is wiped when its last copy is dropped.
#[derive(Clone)]
pub struct Password(Arc<Zeroizing<Vec<u8>>>);

impl Password {
    /// Octets of the longest password that the kernel takes (`TCP_MD5SIG_MAXKEYLEN`).
    pub const MAX_OCTETS: usize = options::MAX_KEY;

    /// `None` if it is empty or too long.
    #[must_use]
    pub fn new(octets: &[u8]) -> Option<Self> {
        (1..=Self::MAX_OCTETS).contains(&octets.len()).then(|| Self(Arc::new(Zeroizing::new(octets.to_vec()))))
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(..)")
    }
}

/// How many hops away a peer may be, 1 to 254; 1 is a neighbour on the same link, as BIRD and FRR count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hops(u8);

impl Hops {
    /// A neighbour on the same link.
    pub const ONE: Self = Self(1);

    #[must_use]
    pub fn new(hops: u8) -> Option<Self> {
        (1..MAX_TTL).contains(&hops).then_some(Self(hops))
    }

    /// The least TTL that the peer's packets arrive with. On the same link no router lowers it.
    fn least_ttl(self) -> u8 {
        MAX_TTL - (self.0 - 1)
    }
}

/// What protects the connections of one session. `Display` is for logs and status pages: it names the kind, and no secret.
#[derive(Clone, Debug, Default)]
pub struct Protection {
    /// Segments without this password are dropped.
    pub password: Option<Password>,
    /// Segments from further away are dropped, and ours leave with TTL 255.
    pub ttl_security: Option<Hops>,
}

impl fmt::Display for Protection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.password, self.ttl_security) {
            (None, None) => f.write_str("none"),
            (Some(_), None) => f.write_str("TCP MD5"),
            (None, Some(hops)) => write!(f, "{hops}"),
            (Some(_), Some(hops)) => write!(f, "TCP MD5, {hops}"),
        }
    }
}

impl fmt::Display for Hops {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TTL security ({} hop{})", self.0, if self.0 == 1 { "" } else { "s" })
    }
}

/// Why a socket could not be protected. No connection is made without the protection that was asked for.
#[derive(Debug, thiserror::Error)]
pub enum ProtectionError {
    /// The kernel does not know the option.
    #[error(
        "this kernel has no TCP MD5 (CONFIG_TCP_MD5SIG): sessions with a password need another kernel, or another protection"
    )]
    NoMd5,
    #[error("cannot set the password of TCP MD5 for {peer}: {error}")]
    Password { peer: IpAddr, error: io::Error },
    /// A listener that does not know the peer's address would take connections from others without the password.
    #[error("a listener with a password needs the address of its peer")]
    UnknownPeer,
    #[error("cannot set the TTL: {0}")]
    Ttl(io::Error),
}

impl From<ProtectionError> for io::Error {
    fn from(error: ProtectionError) -> Self {
        let kind = match &error {
            ProtectionError::NoMd5 => io::ErrorKind::Unsupported,
            ProtectionError::UnknownPeer => io::ErrorKind::InvalidInput,
            ProtectionError::Password { error, .. } | ProtectionError::Ttl(error) => error.kind(),
        };
        io::Error::new(kind, error)
    }
}

impl Protection {
    /// Fails if this kernel does not have what is asked for.
    pub fn check(&self) -> io::Result<()> {
        if self.password.is_none() {
            return Ok(()); // every kernel has the TTL's options
        }
        let socket = TcpSocket::new_v4()?;
        Ok(self.protect_password(socket.as_fd(), false, Some([127, 0, 0, 1].into()))?)
    }

    /// Protects a socket before it listens or connects. `ttl` is the TTL of what it sends, if TTL security does not set it.
    pub(super) fn protect(
        &self,
        socket: BorrowedFd<'_>,
        is_ipv6: bool,
        peer: Option<IpAddr>,
        ttl: Option<u8>,
    ) -> Result<(), ProtectionError> {
        self.protect_ttl(socket, is_ipv6, ttl)?;
        self.protect_password(socket, is_ipv6, peer)
    }

    /// The part of [`Protection::protect`] that is repeated on an accepted connection. The kernel lets it inherit the
    /// listener's options; nothing depends on that.
    pub(super) fn protect_ttl(
        &self,
        socket: BorrowedFd<'_>,
        is_ipv6: bool,
        ttl: Option<u8>,
    ) -> Result<(), ProtectionError> {
        if let Some(ttl) = self.ttl_security.map(|_| MAX_TTL).or(ttl) {
            options::set_ttl(socket, is_ipv6, ttl).map_err(ProtectionError::Ttl)?;
        }
        if let Some(hops) = self.ttl_security {
            options::set_least_ttl(socket, is_ipv6, hops.least_ttl()).map_err(ProtectionError::Ttl)?;
        }
        Ok(())
    }

    fn protect_password(
        &self,
        socket: BorrowedFd<'_>,
        is_ipv6: bool,
        peer: Option<IpAddr>,
    ) -> Result<(), ProtectionError> {
        let Some(password) = &self.password else { return Ok(()) };
        let peer = peer.ok_or(ProtectionError::UnknownPeer)?;
        options::set_md5_key(socket, is_ipv6, peer, &password.0).map_err(|error| match error.raw_os_error() {
            Some(libc::ENOPROTOOPT) => ProtectionError::NoMd5,
            _ => ProtectionError::Password { peer, error },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_has_1_to_80_octets_and_is_never_shown() {
        assert!(Password::new(b"").is_none());
        assert!(Password::new(&[b'x'; 81]).is_none());
        let password = Password::new(&[b'x'; 80]).expect("the longest");
        let protection = Protection { password: Some(password), ttl_security: Some(Hops::ONE) };
        let shown = format!("{protection:?} {protection}");
        assert!(!shown.contains("xx") && shown.contains("Password(..)"), "{shown}");
    }

    #[test]
    fn hops_are_counted_as_routers_count_them() {
        // FRR: `ttl-security hops N`; BIRD: `multihop N; ttl security on`.
        let least = |hops| Hops::new(hops).map(Hops::least_ttl);
        assert_eq!([0, 1, 2, 254, 255].map(least), [None, Some(255), Some(254), Some(2), None]);
    }

    #[test]
    fn a_protection_is_named_without_its_secret() {
        let password = || Password::new(b"secret");
        let name = |password, hops| Protection { password, ttl_security: Hops::new(hops) }.to_string();
        assert_eq!(name(None, 0), "none");
        assert_eq!(name(password(), 0), "TCP MD5");
        assert_eq!(name(None, 1), "TTL security (1 hop)");
        assert_eq!(name(password(), 2), "TCP MD5, TTL security (2 hops)");
    }
}
