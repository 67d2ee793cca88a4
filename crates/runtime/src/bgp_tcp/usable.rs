//! What this machine's kernel has of what protects a BGP session.

use std::os::fd::AsFd;

use tokio::net::TcpSocket;

use super::options;

/// What a session could be protected by here. Nothing is sent, and nothing stays: each option is tried on a socket of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usable {
    /// TCP MD5 (RFC 2385).
    pub md5: bool,
    /// TTL security (RFC 5082).
    pub ttl_security: bool,
    /// TCP-AO (RFC 5925), which Wayleave does not offer.
    pub tcp_ao: bool,
}

impl Usable {
    /// As this machine has it.
    #[must_use]
    pub fn here() -> Self {
        let tried = |tries: fn(&TcpSocket) -> bool| TcpSocket::new_v4().is_ok_and(|socket| tries(&socket));
        Self {
            md5: tried(|socket| options::set_md5_key(socket.as_fd(), false, [127, 0, 0, 1].into(), b"trial").is_ok()),
            ttl_security: tried(|socket| options::set_least_ttl(socket.as_fd(), false, 255).is_ok()),
            tcp_ao: tried(|socket| options::knows_tcp_ao(socket.as_fd())),
        }
    }

    /// The same in words, for `check`.
    #[must_use]
    pub fn note(self) -> String {
        let usable = |is_usable| if is_usable { "is usable" } else { "is not usable" };
        let ao = if self.tcp_ao { "which this one has" } else { "which this one has not" };
        format!(
            "this machine: TCP MD5 (RFC 2385) {}, TTL security (RFC 5082) {}; TCP-AO (RFC 5925) is not offered: it needs a kernel that has \
             it (Linux 6.7 or later with CONFIG_TCP_AO), {ao}",
            usable(self.md5),
            usable(self.ttl_security)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_usable_is_said_and_that_tcp_ao_needs_a_kernel() {
        let all = Usable { md5: true, ttl_security: true, tcp_ao: false }.note();
        assert!(all.contains("TCP MD5 (RFC 2385) is usable") && all.contains("which this one has not"), "{all}");
        let none = Usable { md5: false, ttl_security: false, tcp_ao: true }.note();
        assert!(none.contains("TCP MD5 (RFC 2385) is not usable") && none.ends_with("which this one has"), "{none}");
        assert!(Usable::here().ttl_security, "every Linux has the TTL's option");
    }
}
