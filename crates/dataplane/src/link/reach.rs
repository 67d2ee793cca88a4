//! Whether a neighbour receives at an address, without a session there: an initiation that was made long ago is answered by a cookie, and
//! changes nothing at the neighbour.

use std::net::SocketAddr;
use std::time::Duration;

use wayleave_core::Instant;
use wayleave_crypto::dh::DhPublic;

use super::At;
use super::initiation_filter::open_cookie;
use super::message::{MAC, NONCE};

/// When such an initiation says that it was made: no neighbour takes it for one to answer.
pub(super) const LONG_AGO: u64 = 0;
/// It is sent so often, and so long one after the other.
const TRIES: u32 = 3;
const AGAIN: Duration = Duration::from_secs(1);

/// An address that was asked.
pub(super) struct Reach {
    to: At,
    pub(super) index: u32,
    mac: [u8; MAC],
    octets: Vec<u8>,
    begun: Instant,
    sent: u32,
    answered: Option<Duration>,
}

impl Reach {
    pub(super) fn new(to: At, index: u32, mac: [u8; MAC], octets: Vec<u8>, now: Instant) -> Self {
        Self { to, index, mac, octets, begun: now, sent: 0, answered: None }
    }

    /// When it is to be sent, the first time or again.
    pub(super) fn due(&self) -> Option<Instant> {
        (self.answered.is_none() && self.sent < TRIES).then(|| self.begun + AGAIN * self.sent)
    }

    /// What is to be sent now, and where.
    pub(super) fn repeats(&mut self, now: Instant) -> Option<(At, Vec<u8>)> {
        let is_due = self.due().is_some_and(|due| now >= due);
        self.sent += u32::from(is_due);
        is_due.then(|| (self.to, self.octets.clone()))
    }

    /// Takes a cookie; returns whether it is the neighbour's.
    pub(super) fn answered(
        &mut self,
        from: At,
        noise: &DhPublic,
        (nonce, sealed): (&[u8; NONCE], &[u8]),
        now: Instant,
    ) -> bool {
        let is_its = from == self.to && open_cookie(noise, &self.mac, nonce, sealed).is_some();
        if is_its && self.answered.is_none() {
            self.answered = Some(now.since(self.begun + AGAIN * self.sent.saturating_sub(1)));
        }
        is_its
    }

    /// The address, and how long its answer took.
    pub(super) fn status(&self) -> (SocketAddr, Option<Duration>) {
        (self.to.1, self.answered)
    }
}
