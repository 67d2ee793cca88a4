//! Datagrams that ask and are answered: what came together is answered together.

use std::net::SocketAddr;

use super::{Burst, Outgoing, Port};

/// Requests that came together, and their replies.
#[derive(Default)]
pub struct RequestBatch {
    /// For [`Port::receive`].
    pub requests: Burst,
    replies: Burst,
    out: Vec<Outgoing>,
}

impl RequestBatch {
    /// Asks for the reply to each request, in order; a request without one stays unanswered.
    pub fn answer(&mut self, mut answer: impl FnMut(&[u8], SocketAddr) -> Option<Vec<u8>>) {
        self.replies.clear();
        self.out.clear();
        for request in 0..self.requests.len() {
            let from = self.requests.from(request);
            let Some(octets) = answer(self.requests.octets(request), from) else { continue };
            let packet = self.replies.len() as u32; // at most as many as requests
            if self.replies.push(&octets, from) {
                self.out.push(Outgoing { packet, to: from });
            }
        }
    }

    /// Sends the replies.
    pub fn send(&mut self, port: &mut impl Port) {
        // A full queue loses replies, as the network may; who asks repeats.
        let _ = port.send(&self.replies, &self.out);
    }
}
