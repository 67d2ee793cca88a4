//! Collision detection (RFC 4271 section 6.8, RFC 6286 section 2.3): of two connections with one peer, which one stays.
//!
//! The RFC compares only with a connection in OpenConfirm. Taken to the letter, with simultaneous opens, one side can
//! see KEEPALIVE on the connection that loses before OPEN on the one that wins, and both go down. So an OPEN on the
//! losing connection, while the winning one still waits for its own, is deferred for a moment (the RFC allows to
//! examine OpenSent too): it is handled if the winner fails.

use std::time::Duration;

use wayleave_core::Instant;

use super::connection::{DeferredOpen, Stage};
use super::negotiate::Negotiated;
use super::{Cause, ConnectionId, Session};
use crate::Open;
use crate::notification::{Notification, cease, code};

/// How long an OPEN on the losing connection waits for the winning one.
pub(super) const DEFERRED_OPEN_TIMEOUT: Duration = Duration::from_secs(5);

/// What happens to a connection on which an acceptable OPEN has come.
pub(super) enum CollisionOutcome {
    /// It goes on.
    Proceeds,
    /// It is closed, or waits.
    Yields,
}

impl Session {
    /// Settles what `id`, whose OPEN has just been accepted, means for the other connection.
    pub(super) fn resolve_collision(
        &mut self,
        id: ConnectionId,
        open: &Open,
        negotiated: &Negotiated,
        patient: bool,
        now: Instant,
    ) -> CollisionOutcome {
        let Some(other) = self.connections.iter().find(|connection| connection.id != id) else {
            return CollisionOutcome::Proceeds;
        };
        let (other, other_stage, other_outgoing) = (other.id, other.stage, other.outgoing);
        if other_stage == Stage::Established {
            self.close_loser(id, now);
            return CollisionOutcome::Yields;
        }
        let other_wins = other_outgoing == self.ours_wins(negotiated);
        match (other_wins, other_stage) {
            (false, _) => {
                self.close_loser(other, now);
                CollisionOutcome::Proceeds
            }
            (true, Stage::OpenConfirm | Stage::Established) => {
                self.close_loser(id, now);
                CollisionOutcome::Yields
            }
            (true, Stage::OpenSent | Stage::OpenDelayed) if patient => {
                if let Some(connection) = self.connection(id) {
                    connection.deferred = Some(DeferredOpen { open: open.clone(), until: now + DEFERRED_OPEN_TIMEOUT });
                }
                CollisionOutcome::Yields
            }
            // The winner has been silent too long. If its OPEN still comes before this one is Established, it wins.
            (true, Stage::OpenSent | Stage::OpenDelayed) => CollisionOutcome::Proceeds,
        }
    }

    /// Closes a connection because the other stays.
    pub(super) fn close_loser(&mut self, id: ConnectionId, now: Instant) {
        self.counters.collisions += 1;
        self.send_notification(id, &Notification::new(code::CEASE, cease::CONNECTION_COLLISION));
        self.end(id, Cause::Collision, now);
    }

    /// Whether the connection that we opened is the one to keep: the greater identifier's, or with equal ones the
    /// greater AS's.
    fn ours_wins(&self, negotiated: &Negotiated) -> bool {
        let ours = (self.config.router_id, self.config.local_asn);
        ours > (negotiated.peer_id, negotiated.params.peer_asn)
    }
}
