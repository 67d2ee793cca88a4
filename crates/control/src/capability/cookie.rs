//! DNS cookies (RFC 7873), with the fields of RFC 9018 and a MAC of our own: who shows one receives at the address that it
//! claims.

use std::net::IpAddr;

use subtle::ConstantTimeEq;
use wayleave_crypto::lanes::{CmacKey, CpuKernel};
use wayleave_crypto::secret::Key128;

/// Octets of the client's part, and of the server's.
const CLIENT: usize = 8;
const SERVER: usize = 16;
/// Octets of a client's longest option (RFC 7873 section 4).
const LONGEST: usize = 40;
/// Seconds for which a cookie is good, and by which its time may be ahead (RFC 9018 section 4.3).
const LIFETIME: u32 = 3_600;
const AHEAD: u32 = 300;
const VERSION: u8 = 1;

/// Makes and checks cookies.
pub(super) struct CookieKey(CmacKey);

/// What a question's option says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Presented {
    /// The client's part, without a server's part that is good.
    Client([u8; CLIENT]),
    /// It was made here for this client, a short time ago.
    Good([u8; CLIENT]),
    Malformed,
}

impl Presented {
    pub(super) fn client(self) -> Option<[u8; CLIENT]> {
        match self {
            Self::Client(client) | Self::Good(client) => Some(client),
            Self::Malformed => None,
        }
    }
}

impl CookieKey {
    pub(super) fn new(key: &Key128) -> Self {
        Self(CmacKey::with_kernel(key.expose(), CpuKernel::PORTABLE))
    }

    /// The whole option for a client at `address`.
    pub(super) fn option(&self, client: [u8; CLIENT], address: IpAddr, now: u64) -> Vec<u8> {
        [&client[..], &self.server(client, address, now as u32)].concat()
    }

    fn server(&self, client: [u8; CLIENT], address: IpAddr, seconds: u32) -> [u8; SERVER] {
        let mut out = [0; SERVER];
        out[0] = VERSION;
        out[4..8].copy_from_slice(&seconds.to_be_bytes());
        let mut message = [&client[..], &out[..8]].concat();
        match address {
            IpAddr::V4(v4) => message.extend_from_slice(&v4.octets()),
            IpAddr::V6(v6) => message.extend_from_slice(&v6.octets()),
        }
        out[8..].copy_from_slice(&self.0.tag(&message)[..8]);
        out
    }

    /// What an option in a question of `address` says.
    pub(super) fn read(&self, option: &[u8], address: IpAddr, now: u64) -> Presented {
        let Some((client, server)) = option.split_first_chunk::<CLIENT>() else { return Presented::Malformed };
        if server.is_empty() {
            return Presented::Client(*client);
        }
        if server.len() < 8 || option.len() > LONGEST {
            return Presented::Malformed;
        }
        let Ok(server) = <[u8; SERVER]>::try_from(server) else { return Presented::Client(*client) };
        let seconds = u32::from_be_bytes([server[4], server[5], server[6], server[7]]);
        // Serial arithmetic (RFC 9018 section 4.3), so that 2106 is no edge.
        let age = (now as u32).wrapping_sub(seconds);
        let is_recent = age <= LIFETIME || age.wrapping_neg() <= AHEAD;
        let is_ours = bool::from(self.server(*client, address, seconds).ct_eq(&server));
        if is_recent && is_ours { Presented::Good(*client) } else { Presented::Client(*client) }
    }
}
