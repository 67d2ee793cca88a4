//! Which lists of removed nodes a path server was sent by its link, and when they are sent again.

use std::time::Duration;

use wayleave_control::database::Refusal;
use wayleave_core::Instant;

/// After so long a list is sent again to a server that did not take it and gave no lasting reason.
const AGAIN: Duration = Duration::from_secs(5);

/// What orders lists: their generation, and their number.
pub type Order = (u64, u64);

/// A list that was sent.
#[derive(Clone, Copy)]
struct Sent {
    order: Order,
    /// Not before this it is sent again; never if the server has it, or will not take it.
    again: Option<Instant>,
}

impl Sent {
    fn settle(&mut self) {
        self.again = None;
    }
}

/// What one path server has of the lists, as far as it has said so by this link.
#[derive(Default)]
pub struct Submission {
    latest: Option<Sent>,
    /// The list that began a generation, which some servers take before later ones.
    opening: Option<Sent>,
}

impl Submission {
    /// Whether the latest list is to be sent now; then it is.
    pub fn sends(&mut self, order: Order, now: Instant) -> bool {
        sends(&mut self.latest, order, now)
    }

    /// Whether the list that began the generation is to be sent again now, since the server has not said what becomes of it, or could not take it
    /// yet; then it is.
    pub fn opens_again(&mut self, order: Order, now: Instant) -> bool {
        self.opening.is_some_and(|opening| opening.order == order) && sends(&mut self.opening, order, now)
    }

    /// The server took the list of this number: the latest one, or an earlier one that says nothing of it.
    pub fn taken(&mut self, number: u64) {
        self.latest.iter_mut().filter(|sent| sent.order.1 == number).for_each(Sent::settle);
    }

    /// The server took the list that began the generation: now it takes later ones.
    pub fn opened(&mut self) {
        self.opening.iter_mut().for_each(Sent::settle);
        self.latest = None;
    }

    /// The server refused the latest list. Returns whether it is to be sent `opening`, the list that began the generation, now; then it is.
    pub fn refused(&mut self, refusal: Refusal, opening: Option<Order>, now: Instant) -> bool {
        if is_lasting(refusal) {
            self.latest.iter_mut().for_each(Sent::settle);
        }
        let is_missing = matches!(refusal, Refusal::LeavesOut(_));
        opening.filter(|_| is_missing).is_some_and(|opening| sends(&mut self.opening, opening, now))
    }

    /// The server refused the list that began the generation. It is sent again if the reason may pass.
    pub fn opening_refused(&mut self, refusal: Refusal) {
        if is_lasting(refusal) {
            self.opening.iter_mut().for_each(Sent::settle);
        }
    }
}

/// Whether a list is another than the one that was sent, or that one waits for too long.
fn sends(sent: &mut Option<Sent>, order: Order, now: Instant) -> bool {
    let is_due = match sent {
        Some(sent) if sent.order == order => sent.again.is_some_and(|again| now >= again),
        _ => true,
    };
    if is_due {
        *sent = Some(Sent { order, again: Some(now + AGAIN) });
    }
    is_due
}

/// Whether a server that refuses a list like this has one that says more: then this one is not sent again. Other reasons pass, as that it is busy
/// or its clock behind.
pub fn is_lasting(refusal: Refusal) -> bool {
    matches!(
        refusal,
        Refusal::Older(_) | Refusal::Conflict | Refusal::LeavesOut(_) | Refusal::ListKey | Refusal::RealmKey
    )
}

#[cfg(test)]
mod tests {
    use wayleave_core::IdentityKey;

    use super::*;

    const FIRST: Order = (2, 1);
    const LATEST: Order = (2, 7);
    const LEFT_OUT: Refusal = Refusal::LeavesOut(IdentityKey([9; 32]));

    fn at(secs: u64) -> Instant {
        Instant(1) + Duration::from_secs(secs)
    }

    #[test]
    fn a_list_is_sent_once_and_again_while_nobody_has_said_what_becomes_of_it() {
        let mut server = Submission::default();
        assert!(server.sends(LATEST, at(0)));
        assert!(!server.sends(LATEST, at(4)) && server.sends(LATEST, at(5)), "no answer came");
        assert!(!server.refused(Refusal::TooOften, Some(FIRST), at(6)));
        assert!(!server.sends(LATEST, at(9)) && server.sends(LATEST, at(10)), "it may be taken by now");
        server.taken(LATEST.1 - 1);
        assert!(server.sends(LATEST, at(15)), "an earlier one was taken");
        server.taken(LATEST.1);
        assert!(!server.sends(LATEST, at(1_000)));
        assert!(server.sends((2, 8), at(1_000)), "a later one");
        assert!(!server.refused(Refusal::Older(9), Some(FIRST), at(1_000)));
        assert!(!server.sends((2, 8), at(2_000)), "it would be refused once more");
    }

    #[test]
    fn the_list_that_began_a_generation_is_sent_again_until_it_is_taken_and_then_the_latest_one_is() {
        let mut server = Submission::default();
        assert!(!server.opens_again(FIRST, at(0)), "no server has missed it");
        assert!(server.sends(LATEST, at(0)));
        assert!(server.refused(LEFT_OUT, Some(FIRST), at(1)), "it lacks what that one says");
        assert!(!server.opens_again(FIRST, at(2)), "an answer is on its way");
        server.opening_refused(Refusal::TooOften);
        assert!(!server.opens_again(FIRST, at(5)) && server.opens_again(FIRST, at(6)));
        assert!(server.opens_again(FIRST, at(11)), "no answer came");
        assert!(!server.sends(LATEST, at(12)), "before that one it is not taken");
        server.opened();
        assert!(server.sends(LATEST, at(12)) && !server.opens_again(FIRST, at(100)));
        // A server that refuses the latest one all the same is not sent the first one for ever.
        assert!(!server.refused(LEFT_OUT, Some(FIRST), at(13)));
    }

    #[test]
    fn what_will_not_be_taken_is_not_sent_again_and_the_next_generation_is_another_list() {
        let mut server = Submission::default();
        assert!(server.sends(LATEST, at(0)) && server.refused(LEFT_OUT, Some(FIRST), at(0)));
        server.opening_refused(Refusal::Older(3));
        assert!(!server.opens_again(FIRST, at(100)));
        assert!(server.sends((3, 2), at(200)) && server.refused(LEFT_OUT, Some((3, 1)), at(200)));
        assert!(!server.opens_again(FIRST, at(300)), "of before");
        assert!(server.opens_again((3, 1), at(300)));
    }
}
