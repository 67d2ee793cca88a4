//! Setup: base OTs once for each session, then chunks of correlations, all independent of inputs and circuits.

use std::collections::VecDeque;
use std::fmt;

use subtle::Choice;
use wayleave_crypto::hash::hash;
use wayleave_crypto::kdf::derive;
use wayleave_crypto::prg::Prg;
use wayleave_crypto::secret::{Secret, Seed};

use crate::base_ot::{self, ANSWER_BYTES, Direction, POINT_BYTES};
use crate::demand::Chunk;
use crate::error::{Error, Fault, Misuse};
use crate::ot_extension::{GroupBits, Leaves, OtExtension, TreeName, all_leaves, punctured_leaves};
use crate::party::Role;
use crate::pool::Correlations;
use crate::rounds::{Rounds, Step};

/// The version of the engine's messages.
const VERSION: u8 = 3;
/// Version, role, group, session id, nonce, point.
const GREETING: usize = 1 + 1 + 1 + 16 + 32 + POINT_BYTES;

/// The session's name, agreed by both parties; public. It must differ from that of every other session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionId(pub [u8; 16]);

/// The public name of a completed setup: a hash of its id and of all that both parties sent in the base
/// transfers, fresh nonces of both included. Two lives of a process never have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionTag(pub [u8; 16]);

/// One end of setup, for one session: a link-up makes a new one, with a new seed and a new [`Pool`](crate::Pool).
///
/// Request chunks with [`request`](Self::request), then call `round` until `Done`, which returns the correlations of one
/// chunk; then again for the next. The first time, two rounds of base OTs come first, and one for the trees of the extension. Between two chunks the link is free
/// for evaluations. **Both parties must request the same chunks in the same order**, so make the plan a function of what
/// both know: [`Demand::chunks`](crate::Demand::chunks) of what [`Pool::missing_for`](crate::Pool::missing_for) says, since the two pools
/// hold the same counts whenever both have done the same evaluations. A chunk out of step is refused.
pub struct Setup {
    role: Role,
    id: SessionId,
    group: GroupBits,
    seed: Seed,
    requested: VecDeque<Chunk>,
    state: State,
}

enum State {
    Start,
    Greeted { own: [u8; GREETING], sender: base_ot::Sender },
    Answered { partial: Box<Partial> },
    Grown { trees: Box<Trees> },
    Ready(Box<OtExtension>),
    Sent(Box<OtExtension>),
    Ended,
}

/// State between the two rounds of the base OTs.
struct Partial {
    context: [u8; 32],
    sender: base_ot::Sender,
    choices: Secret<16>,
    received: base_ot::ReceiverOutput,
}

/// State between the base OTs and the first chunk.
struct Trees {
    context: [u8; 32],
    /// The hash of all base transfers, of which the tag is a part.
    session: [u8; 32],
    /// Our message about the trees that we grew.
    message: Vec<u8>,
    choices: Secret<16>,
    /// Our key of each base OT in which we received.
    keys: Vec<Secret<16>>,
    leaves: Vec<Leaves>,
}

impl Setup {
    /// Starts a session in [`GroupBits::STANDARD`]. `seed` must be fresh from the system's generator at every link-up, and have no other use.
    #[must_use]
    pub fn new(role: Role, id: SessionId, seed: [u8; 32]) -> Self {
        Self::with_group(role, id, GroupBits::STANDARD, seed)
    }

    /// Starts a session with groups of this size. Both parties need the same.
    #[must_use]
    pub fn with_group(role: Role, id: SessionId, group: GroupBits, seed: [u8; 32]) -> Self {
        Self { role, id, group, seed: Seed::new(seed), requested: VecDeque::new(), state: State::Start }
    }

    /// Queues a chunk behind those requested before.
    ///
    /// # Errors
    /// If its count is zero, above [`Chunk::MAX`] or no multiple of 128.
    pub fn request(&mut self, chunk: Chunk) -> Result<(), Misuse> {
        if chunk.count == 0 || chunk.count > Chunk::MAX || !chunk.count.is_multiple_of(128) {
            return Err(Misuse::ChunkCount(chunk.count));
        }
        self.requested.push_back(chunk);
        Ok(())
    }

    /// Chunks requested and not done.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.requested.len()
    }

    #[must_use]
    pub fn role(&self) -> Role {
        self.role
    }

    /// The session's tag, once the base OTs are done.
    #[must_use]
    pub fn tag(&self) -> Option<SessionTag> {
        match &self.state {
            State::Ready(extension) | State::Sent(extension) => Some(extension.tag()),
            _ => None,
        }
    }

    /// Bytes that each party sends before the first chunk.
    #[must_use]
    pub fn base_bytes(group: GroupBits) -> usize {
        GREETING + ANSWER_BYTES + group.tree_bytes()
    }

    fn advance(&mut self, received: Option<&[u8]>) -> Result<Step<Correlations>, Error> {
        match (std::mem::replace(&mut self.state, State::Ended), received) {
            (State::Start, None) => {
                let sender = base_ot::Sender::new(&self.stream("point", &[]));
                let own = self.greeting(&sender.point);
                self.state = State::Greeted { own, sender };
                Ok(Step::Send(own.to_vec()))
            }
            (State::Greeted { own, sender }, Some(theirs)) => {
                let theirs = self.check_greeting(theirs)?;
                let partial = self.answer(&own, &theirs, sender)?;
                let points = partial.received.points.clone();
                self.state = State::Answered { partial: Box::new(partial) };
                Ok(Step::Send(points))
            }
            (State::Answered { partial }, Some(theirs)) => {
                let trees = self.finish_base(*partial, theirs)?;
                let message = trees.message.clone();
                self.state = State::Grown { trees: Box::new(trees) };
                Ok(Step::Send(message))
            }
            (State::Grown { trees }, Some(theirs)) => self.begin(*trees, theirs),
            (State::Ready(mut extension), None) => {
                let chunk = *self.requested.front().ok_or(Misuse::NoChunk)?;
                let message = extension.send(chunk);
                self.state = State::Sent(extension);
                Ok(Step::Send(message))
            }
            (State::Sent(mut extension), Some(theirs)) => {
                let correlations = extension.receive(theirs).map_err(|fault| self.peer(fault))?;
                self.requested.pop_front();
                self.state = State::Ready(extension);
                Ok(Step::Done(correlations))
            }
            (State::Ended, _) => Err(Misuse::Ended.into()),
            _ => Err(Misuse::OutOfTurn.into()),
        }
    }

    fn greeting(&self, point: &[u8; POINT_BYTES]) -> [u8; GREETING] {
        let nonce: Secret<32> = derive("wayleave/mpc/setup-nonce/v1", self.seed.expose(), &self.id.0);
        let mut out = [0u8; GREETING];
        (out[0], out[1], out[2]) = (VERSION, self.role.number(), self.group.octet());
        out[3..19].copy_from_slice(&self.id.0);
        out[19..51].copy_from_slice(nonce.expose());
        out[51..].copy_from_slice(point);
        out
    }

    fn check_greeting(&self, theirs: &[u8]) -> Result<[u8; GREETING], Error> {
        let length = Fault::Length { expected: GREETING, got: theirs.len() };
        let theirs: [u8; GREETING] = theirs.try_into().map_err(|_| self.peer(length))?;
        let fault = match theirs {
            [version, ..] if version != VERSION => Fault::Version(version),
            [_, role, ..] if role != self.role.peer().number() => Fault::Role(role),
            [_, _, group, ..] if group != self.group.octet() => Fault::Group(group),
            _ if theirs[3..19] != self.id.0 => Fault::Session,
            _ => return Ok(theirs),
        };
        Err(self.peer(fault))
    }

    fn answer(&self, own: &[u8; GREETING], theirs: &[u8; GREETING], sender: base_ot::Sender) -> Result<Partial, Error> {
        let (one, two) = in_order(self.role, own.as_slice(), theirs.as_slice());
        let context = hash("wayleave/mpc/greetings/v1", &[one, two]);
        let choices = derive("wayleave/mpc/base-choices/v1", self.seed.expose(), &context);
        let point: &[u8; POINT_BYTES] = theirs[51..].first_chunk().expect("a greeting ends with a point");
        let (bits, random) = (u128::from_le_bytes(*choices.expose()), self.stream("answers", &context));
        let direction = Direction { context: &context, sender: self.role.peer() };
        let received =
            base_ot::receive(direction, point, &sender.point, bits, &random).map_err(|fault| self.peer(fault))?;
        Ok(Partial { context, sender, choices, received })
    }

    /// The trees that this party grows, with its message about them.
    fn finish_base(&self, partial: Partial, theirs: &[u8]) -> Result<Trees, Error> {
        let Partial { context, sender, choices, received } = partial;
        let (points, _) = theirs.as_chunks::<POINT_BYTES>();
        if theirs.len() != ANSWER_BYTES {
            return Err(self.peer(Fault::Length { expected: ANSWER_BYTES, got: theirs.len() }));
        }
        let direction = Direction { context: &context, sender: self.role };
        let pairs = sender.keys(direction, points).map_err(|fault| self.peer(fault))?;
        let (one, two) = in_order(self.role, received.points.as_slice(), theirs);
        let session = hash("wayleave/mpc/session/v1", &[&context, one, two]);
        let mut message = Vec::with_capacity(self.group.tree_bytes());
        let pairs = (0..).zip(pairs.chunks_exact(self.group.get()));
        let grown = pairs.map(|(number, pairs)| {
            all_leaves(&TreeName { context: &context, owner: self.role, number }, pairs, &mut message)
        });
        let leaves = grown.collect();
        Ok(Trees { context, session, message, choices, keys: received.keys, leaves })
    }

    /// Ends the base transfers with the peer's message about its trees.
    fn begin(&mut self, trees: Trees, theirs: &[u8]) -> Result<Step<Correlations>, Error> {
        let (group, expected) = (self.group, self.group.tree_bytes());
        if theirs.len() != expected {
            return Err(self.peer(Fault::Length { expected, got: theirs.len() }));
        }
        let choices = u128::from_le_bytes(*trees.choices.expose());
        let mut passes = Choice::from(1);
        let each = theirs.chunks_exact(group.tree_bytes_each());
        let trees_of_peer = (0u8..).zip(trees.keys.chunks_exact(group.get()).zip(each));
        let punctured: Vec<_> = trees_of_peer
            .map(|(number, (keys, theirs))| {
                let name = TreeName { context: &trees.context, owner: self.role.peer(), number };
                let (leaves, is_whole) =
                    punctured_leaves(&name, keys, choices >> (usize::from(number) * group.get()), theirs);
                passes &= is_whole;
                leaves
            })
            .collect();
        // Of all trees at once: which of them failed would say more about our choices than that one did.
        if !bool::from(passes) {
            return Err(self.peer(Fault::Trees));
        }
        let delta = Secret::new((!choices).to_le_bytes());
        let tag = SessionTag(*trees.session.first_chunk().expect("32 bytes have 16"));
        // Chunks are checked under a name that covers the trees too: their seeds are chosen before any challenge is known.
        let (one, two) = in_order(self.role, trees.message.as_slice(), theirs);
        let session = hash("wayleave/mpc/trees/v1", &[&trees.session, one, two]);
        let extension = OtExtension::new(self.role, tag, session, group, &trees.leaves, &punctured, delta);
        let nothing = Correlations::empty(self.role, extension.tag());
        self.state = State::Ready(Box::new(extension));
        if self.requested.is_empty() { Ok(Step::Done(nothing)) } else { self.advance(None) }
    }

    /// A stream of the seed. After the greeting the `context` holds the peer's nonce, so that even a repeated seed, as in a
    /// copied virtual machine, gives other secrets.
    fn stream(&self, purpose: &str, context: &[u8]) -> Prg {
        let label = format!("wayleave/mpc/setup-{purpose}/v1");
        Prg::new(derive::<16>(&label, self.seed.expose(), context).expose())
    }

    fn peer(&self, fault: Fault) -> Error {
        Error::Peer { peer: self.role.peer(), fault }
    }
}

impl Rounds for Setup {
    type Output = Correlations;

    fn round(&mut self, received: Option<&[u8]>) -> Result<Step<Correlations>, Error> {
        // A caller's mistake in `Ready` loses nothing, so that it can request a chunk and try again.
        if let (State::Ready(_), None, None) = (&self.state, received, self.requested.front()) {
            return Err(Misuse::NoChunk.into());
        }
        self.advance(received)
    }

    fn expects(&self) -> Option<usize> {
        match self.state {
            State::Start | State::Ready(_) | State::Ended => None,
            State::Greeted { .. } => Some(GREETING),
            State::Answered { .. } => Some(ANSWER_BYTES),
            State::Grown { .. } => Some(self.group.tree_bytes()),
            State::Sent(_) => self.requested.front().map(|chunk| self.group.chunk_bytes(chunk.count)),
        }
    }
}

impl fmt::Debug for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            State::Start => "start",
            State::Greeted { .. } => "greeted",
            State::Answered { .. } => "answered",
            State::Grown { .. } => "grown",
            State::Ready(_) => "ready",
            State::Sent(_) => "sent",
            State::Ended => "ended",
        };
        write!(f, "Setup {{ role: {}, state: {state}, requested: {:?}, .. }}", self.role, self.requested)
    }
}

/// What party 1 sent, then what party 2 sent.
fn in_order<T>(role: Role, own: T, theirs: T) -> (T, T) {
    match role {
        Role::Party1 => (own, theirs),
        Role::Party2 => (theirs, own),
    }
}

#[cfg(test)]
mod tests {
    //! MPC-12: a failed check ends a session, and the next one has another delta.

    use super::*;
    use crate::demand::Width;
    use crate::rounds::lockstep;

    /// Both ends of a session after the base transfers.
    fn ready(seeds: [u8; 2]) -> [Setup; 2] {
        let id = SessionId([1; 16]);
        let mut ends =
            [(Role::Party1, seeds[0]), (Role::Party2, seeds[1])].map(|(role, seed)| Setup::new(role, id, [seed; 32]));
        let [one, two] = &mut ends;
        lockstep(one, two).unwrap();
        ends
    }

    fn delta(setup: &Setup) -> Secret<16> {
        let State::Ready(extension) = &setup.state else { panic!("the base transfers are done") };
        extension.delta().clone()
    }

    #[test]
    fn the_session_after_a_failed_check_has_another_delta_even_where_a_seed_repeats() {
        let mut deltas = Vec::new();
        for other in 2..12 {
            // A process that was copied has its old seed; its peer's nonce is another one.
            let [mut one, mut two] = ready([1, other]);
            deltas.push(delta(&one));
            let chunk = Chunk { width: Width::ALL[0], count: 128 };
            one.request(chunk).unwrap();
            two.request(chunk).unwrap();
            let (Step::Send(_), Step::Send(mut message)) = (one.round(None).unwrap(), two.round(None).unwrap()) else {
                panic!("a chunk is a message of each")
            };
            message[20] ^= 1;
            let failed = Error::Peer { peer: Role::Party2, fault: Fault::Transfers };
            assert_eq!(one.round(Some(&message)).map(|_| ()), Err(failed));
            // Extension, trees and delta are dropped, which wipes them.
            assert!(matches!(one.state, State::Ended) && one.tag().is_none());
            assert_eq!(one.round(None).map(|_| ()), Err(Misuse::Ended.into()));
        }
        assert!((0..deltas.len()).all(|number| !deltas[..number].contains(&deltas[number])));
    }

    #[test]
    fn a_guess_at_one_tree_ends_half_of_all_sessions() {
        // Party 2 changes the sum of the left children in its first tree: it passes where party 1 asked for the right one.
        let passes = |seed: u8| {
            let id = SessionId([2; 16]);
            let (mut one, mut two) =
                (Setup::new(Role::Party1, id, [seed; 32]), Setup::new(Role::Party2, id, [255; 32]));
            let (mut first, mut second) = (one.round(None).unwrap(), two.round(None).unwrap());
            for round in 0..3 {
                let (Step::Send(a), Step::Send(mut b)) = (first, second) else { panic!("three rounds before a chunk") };
                if round == 2 {
                    b[3] ^= 1;
                    let failed = Error::Peer { peer: Role::Party2, fault: Fault::Trees };
                    return match one.round(Some(&b)) {
                        Ok(Step::Done(_)) => true,
                        other => {
                            assert_eq!(other.map(|_| ()), Err(failed));
                            false
                        }
                    };
                }
                (first, second) = (one.round(Some(&b)).unwrap(), two.round(Some(&a)).unwrap());
            }
            unreachable!("the last round returns")
        };
        let passing = (0..100).filter(|seed| passes(*seed)).count();
        assert!((25..=75).contains(&passing), "{passing} of 100");
    }
}
