//! One link: its sessions, its neighbour's address, and what is measured.

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use wayleave_core::{IdentityKey, Instant, Now, UnixTime};

use super::initiation_filter::{cookie_mac, mac, open_cookie};
use super::message::{self, Choice, Content, LEAST, MAC, NONCE, Opening, SEALED, VERSIONS, initiation, response};
use super::reach::{LONG_AGO, Reach};
use super::size::Search;
use super::status::{Clock, LinkStatus, State, Transport, Volume};
use super::{At, COOKIE_LIFE, Core, MAX_AHEAD, Peer};
use crate::limit::TokenBucket;
use crate::noise::{OpenError, Session, Started, TAG, Window};

/// A session is renewed by who began it after this long, by the other end a little later, and ends.
const REKEY: Duration = Duration::from_secs(120);
const REKEY_LATE: Duration = Duration::from_secs(150);
pub const SESSION_LIFE: Duration = Duration::from_secs(180);
/// By how many messages of a session one may come late: neighbours say little to each other.
const WINDOW: Window = Window::of(1 << 13);
/// A ping is sent this often while data flow, and until this long after.
pub const DATA_PING: Duration = Duration::from_secs(1);
pub const FLOWING: Duration = Duration::from_secs(10);
/// And this often otherwise: NATs keep what they know of UDP for 30 seconds and more.
pub const IDLE_PING: Duration = Duration::from_secs(25);
/// An answer is waited for this long, and for two round trips.
const ANSWER: Duration = Duration::from_secs(1);
/// Pings whose answers still count.
const LATE: usize = 8;
/// Pings in a row without an answer until another session is begun.
const UNANSWERED: u32 = 3;
/// And a neighbour that has said nothing for this long has no address any more.
pub const SILENT: Duration = Duration::from_secs(30);
/// An initiation without an answer is repeated after this long, some times, and then ever later up to the second.
const RETRY: Duration = Duration::from_secs(1);
const RETRIES: u32 = 5;
const RETRY_MOST: Duration = Duration::from_secs(8);
/// The end with the greater identity lets the other begin first, so that one session is made and not two.
const POLITE: Duration = Duration::from_millis(200);
/// Initiations by UDP without an answer until the others go over TLS in turn: of a neighbour that has just fallen silent, and of another.
const UDP_TRIES: (u32, u32) = (1, 3);
/// A link over TLS asks again so often whether UDP passes; ever later, up to the second, if it went back there and did not last.
pub const UDP_RETRY: Duration = Duration::from_secs(30);
const UDP_RETRY_MOST: Duration = Duration::from_secs(600);
const UDP_LASTS: Duration = Duration::from_secs(60);
/// A neighbour without a common version is asked again after this long.
const RETRY_VERSION: Duration = Duration::from_secs(60);
/// Every so many pings under data are as large as the largest datagram that passes.
const LARGE_EVERY: u32 = 4;
/// Handshakes of the neighbour that are answered in a second, and at once.
const HANDSHAKES: (u32, u32) = (1, 5);
/// Changes of its address in a second, and at once.
const MOVES: (u32, u32) = (1, 5);
/// Addresses from which one initiation is answered: whoever copies it faster does not keep its sender out.
const COPIES: usize = 4;
/// Addresses of one neighbour that may show themselves at a time.
const CANDIDATES: usize = 2;
/// Two sessions that were begun so shortly after each other crossed on the way.
const CROSSED: Duration = Duration::from_secs(10);
/// What a neighbour's clock said counts for this long.
const CLOCK_LIFE: Duration = Duration::from_secs(60);
/// A neighbour is told so often where it is seen, and so long one after the other: nobody acknowledges it.
const TELLS: u8 = 3;
const TELL_AGAIN: Duration = Duration::from_secs(2);
/// Packets over which loss is measured, about.
const LOSS_WINDOW: u64 = 10_000;

/// A session.
struct Known {
    /// Our number and the neighbour's.
    index: u32,
    to: u32,
    session: Session,
    begun: UnixTime,
}

impl Known {
    /// Seals a message, with so many octets in front of what carries it at least, and sends it to an address.
    fn say(&mut self, core: &mut Core, to: At, content: &Content, padded: u16) {
        let content = content.encode(core.time);
        let length = content.len().max(usize::from(padded).saturating_sub(SEALED + TAG));
        let mut plain = vec![0; length];
        plain[..content.len()].copy_from_slice(&content);
        let mut sealed = vec![0; length + TAG];
        let Ok(number) = self.session.seal(&plain, &mut sealed) else { return };
        let mut octets = message::sealed(self.to, number, sealed.len());
        octets.extend(sealed);
        core.send(to, octets);
    }
}

/// A session of the neighbour's that we answered and that it has not used yet.
struct Answered {
    known: Known,
    initiation: Vec<u8>,
    response: Vec<u8>,
    /// Where the response went.
    to: Vec<At>,
}

/// A handshake that waits for its response.
struct Starting {
    index: u32,
    started: Started,
    at: Instant,
    to: At,
    mac: [u8; MAC],
}

/// An address from which messages have come, and which has not shown yet that it receives.
struct Candidate {
    address: At,
    token: u64,
    /// Octets that have come from it, and that were sent there.
    received: usize,
    sent: usize,
    heard: Instant,
}

/// A ping that waits for its answer.
#[derive(Clone, Copy)]
struct PendingPing {
    number: u32,
    at: Instant,
    sent: u64,
    is_large: bool,
    /// It was waited for long enough.
    is_late: bool,
}

/// Packets that were sent and that arrived, as two answered pings a while apart have it.
#[derive(Default)]
struct Loss {
    last: Option<(u64, u64)>,
    sent: u64,
    /// What comes behind a ping that left after it counts as lost for a while, and then as the contrary.
    lost: i64,
}

impl Loss {
    fn note(&mut self, sent: u64, received: u64) {
        if let Some((sent_before, received_before)) = self.last.replace((sent, received))
            && let (Some(sent), Some(received)) = (sent.checked_sub(sent_before), received.checked_sub(received_before))
        {
            self.sent = self.sent.saturating_add(sent);
            self.lost = self.lost.saturating_add_unsigned(sent).saturating_sub_unsigned(received);
            if self.sent > LOSS_WINDOW {
                (self.sent, self.lost) = (self.sent / 2, self.lost / 2);
            }
        }
    }

    fn per_million(&self) -> Option<u32> {
        let lost = u64::try_from(self.lost).unwrap_or(0).min(self.sent);
        let share = u128::from(lost) * 1_000_000 / u128::from(self.sent.max(1));
        (self.sent > 0).then_some(u32::try_from(share).unwrap_or(1_000_000))
    }
}

pub(super) struct Entry {
    pub(super) peer: Peer,
    /// When the latest initiation of the neighbour was made that was answered, in microseconds of Unix time.
    pub(super) made: u64,
    /// Where the neighbour is: what it has proved.
    pub(super) address: Option<At>,
    candidates: Vec<Candidate>,
    current: Option<Known>,
    previous: Option<Known>,
    next: Option<Answered>,
    handshakes: TokenBucket,
    moves: TokenBucket,
    starting: Option<Starting>,
    begin_at: Instant,
    attempts: u32,
    /// Of a link over TLS: when UDP is tried next, how long after that again, and how often it was. `by_udp`: since when it goes by UDP.
    udp_at: Instant,
    udp_wait: Duration,
    udp_tried: usize,
    by_udp: Option<Instant>,
    cookie: Option<([u8; MAC], Instant)>,
    number: u32,
    asked: VecDeque<PendingPing>,
    pinged: Instant,
    unanswered: u32,
    flowed: Option<Instant>,
    heard: Option<Instant>,
    search: Search,
    pub(super) sent: Volume,
    pub(super) received: Volume,
    round_trip: Option<Duration>,
    /// How its clock was, and when.
    clock: Option<(Clock, Instant)>,
    loss: Loss,
    other_versions: Option<(u8, u8)>,
    /// Where the neighbour sees this end, by its last word.
    seen: Option<SocketAddr>,
    /// How often it is still to be told where it is seen, and when.
    tells: u8,
    tell_at: Instant,
    /// The endpoints of it that were asked for themselves.
    pub(super) reaches: Vec<Reach>,
    /// The neighbour said that it ends, and has not come back.
    has_stopped: bool,
    begun: u64,
    moved: u64,
    /// When something is due, as the timers of all have it.
    pub(super) timer: Instant,
}

impl Entry {
    pub(super) fn new(peer: Peer, own: IdentityKey, now: Instant) -> Self {
        let begin_at = if own > peer.identity { now + POLITE } else { now };
        Self {
            peer,
            made: 0,
            address: None,
            candidates: Vec::new(),
            current: None,
            previous: None,
            next: None,
            handshakes: TokenBucket::new(HANDSHAKES.0, HANDSHAKES.1),
            moves: TokenBucket::new(MOVES.0, MOVES.1),
            starting: None,
            begin_at,
            attempts: 0,
            udp_at: now,
            udp_wait: UDP_RETRY,
            udp_tried: 0,
            by_udp: None,
            cookie: None,
            number: 0,
            asked: VecDeque::new(),
            pinged: now,
            unanswered: 0,
            flowed: None,
            heard: None,
            search: Search::default(),
            sent: Volume::default(),
            received: Volume::default(),
            round_trip: None,
            clock: None,
            loss: Loss::default(),
            other_versions: None,
            seen: None,
            tells: 0,
            tell_at: now,
            reaches: Vec::new(),
            has_stopped: false,
            begun: 0,
            moved: 0,
            timer: Instant::default(),
        }
    }

    /// Takes what is new of the same neighbour.
    pub(super) fn change(&mut self, peer: Peer, now: Instant) {
        let before = std::mem::replace(&mut self.peer, peer);
        if self.address.is_some_and(|(socket, _)| !self.is_at(socket)) {
            // That socket is its own no more: it has to show itself anew.
            self.candidates.clear();
            self.lose_address(now);
        }
        let is_elsewhere = before.endpoints != self.peer.endpoints || before.tls_endpoints != self.peer.tls_endpoints;
        if is_elsewhere && self.current.is_none() {
            (self.begin_at, self.attempts) = (now, 0);
        }
        if before.largest != self.peer.largest {
            self.search.limit(self.peer.largest, now);
        }
    }

    /// Enters what it has into the maps of all.
    pub(super) fn register(&mut self, core: &mut Core) {
        let next = self.next.as_ref().map(|next| &next.known);
        let known = [self.current.as_ref(), self.previous.as_ref(), next];
        let known = known.into_iter().flatten().map(|known| known.index);
        let starting = self.starting.iter().map(|starting| starting.index);
        let starting = starting.chain(self.reaches.iter().map(|reach| reach.index));
        core.by_index.extend(known.chain(starting).map(|index| (index, self.peer.link)));
        if let Some(address) = self.address {
            core.enter_address(address, self.peer.link);
        }
        core.endpoints.extend(self.peer.endpoints.iter().copied());
    }

    pub(super) fn is_at(&self, socket: usize) -> bool {
        self.peer.sockets.contains(&socket) || self.peer.tls == Some(socket)
    }

    /// Whether it goes over TLS now.
    fn is_by_tls(&self) -> bool {
        self.address.is_some_and(|(socket, _)| self.peer.tls == Some(socket))
    }

    pub(super) fn size(&self) -> Option<u16> {
        self.search.size
    }

    /// Notes that data flow; returns when something is due for that reason.
    pub(super) fn flows(&mut self, now: Instant) -> Instant {
        let flowed = self.flowed.replace(now);
        let is_new = flowed.is_none_or(|flowed| now.since(flowed) >= DATA_PING);
        if is_new { self.pinged + DATA_PING } else { Instant(u64::MAX) }
    }

    fn is_flowing(&self, now: Instant) -> bool {
        self.flowed.is_some_and(|flowed| now.since(flowed) < FLOWING)
    }

    // Handshakes.

    /// Where a session may be begun: where the neighbour was last, and where it says that it is; over TLS in every other attempt, after
    /// some by UDP.
    fn target(&self) -> Option<At> {
        let (attempt, count) = (self.attempts as usize, self.targets().count());
        let by_tls = || self.peer.tls_endpoints.iter().filter_map(|there| Some((self.peer.tls?, *there)));
        let nth_by_tls = |nth: usize| by_tls().nth(nth.checked_rem(by_tls().count())?);
        if count == 0 {
            return nth_by_tls(attempt);
        }
        let has_been_silent = self.address.is_some() && self.unanswered >= UNANSWERED;
        let tries = if has_been_silent { UDP_TRIES.0 } else { UDP_TRIES.1 } as usize;
        let nth = match attempt.checked_sub(tries.max(count)) {
            None => attempt,
            Some(beyond) if beyond.is_multiple_of(2) => match nth_by_tls(beyond / 2) {
                Some(target) => return Some(target),
                None => attempt,
            },
            Some(beyond) => beyond / 2,
        };
        self.targets().nth(nth % count)
    }

    fn targets(&self) -> impl Iterator<Item = At> {
        let others = self.peer.endpoints.iter().copied().filter(|endpoint| self.address != Some(*endpoint));
        self.address.into_iter().chain(others)
    }

    fn begin(&mut self, core: &mut Core, now: Now) {
        let targets = self.targets().count() + self.peer.tls_endpoints.len();
        let rounds = self.attempts.checked_div(targets as u32).unwrap_or(0);
        let delay = RETRY_MOST.min(RETRY * (1 << rounds.saturating_sub(RETRIES).min(5)));
        // Not all neighbours of a node that was away at one time.
        let spread = Duration::from_nanos(core.random.number() % 250_000_000);
        self.begin_at = now.instant + delay + spread;
        let Some(to) = self.target() else { return };
        self.attempts += 1;
        self.initiate(core, to, now);
    }

    fn initiate(&mut self, core: &mut Core, to: At, now: Now) {
        if let Some(before) = self.starting.take() {
            core.by_index.remove(&before.index);
        }
        let opening = Opening { identity: core.identity, made: now.unix.0, versions: VERSIONS };
        let index = core.fresh_index(self.peer.link);
        let Some((started, mut octets, mac)) = self.initiation(core, index, &opening) else {
            core.by_index.remove(&index);
            return;
        };
        let cookie = self.cookie.filter(|(_, since)| now.instant.since(*since) < COOKIE_LIFE);
        if let Some((cookie, _)) = cookie {
            let end = octets.len() - 2 * MAC;
            let second = cookie_mac(&cookie, &octets[..end], &mac);
            octets[end + MAC..].copy_from_slice(&second);
        }
        self.starting = Some(Starting { index, started, at: now.instant, to, mac });
        core.send(to, octets);
    }

    /// A handshake, its initiation without a cookie, and the first MAC of that.
    fn initiation(&self, core: &mut Core, index: u32, opening: &Opening) -> Option<(Started, Vec<u8>, [u8; MAC])> {
        let prologue = core.prologue(&self.peer.identity, index);
        let begun = core.key.initiate(&self.peer.noise, &prologue, core.random.secret(), &opening.encode());
        let (started, first) = begun.ok()?;
        let mut octets = initiation(index, &first);
        let mac = mac(&self.peer.noise, &octets);
        octets.extend(mac);
        octets.extend([0; MAC]);
        Some((started, octets, mac))
    }

    /// Whether an initiation is answered: it is later than those before, and made now; or it is fresh since it has a cookie of this life.
    pub(super) fn is_fresh(&self, made: u64, has_cookie: bool, now: Now) -> bool {
        let around = now.unix.0.saturating_sub(MAX_AHEAD)..=now.unix.0.saturating_add(MAX_AHEAD);
        has_cookie || made > self.made && around.contains(&made)
    }

    /// Sends the response of before to another address, if this is the initiation of before; returns whether it is.
    pub(super) fn answers_again(&mut self, core: &mut Core, from: At, initiation: &[u8]) -> bool {
        let Some(next) = self.next.as_mut().filter(|next| next.initiation == initiation) else { return false };
        if next.to.len() < COPIES && !next.to.contains(&from) {
            next.to.push(from);
            core.send(from, next.response.clone());
        }
        true
    }

    /// Answers an initiation of the neighbour.
    pub(super) fn answer(
        &mut self,
        core: &mut Core,
        (from, to, initiation): (At, u32, &[u8]),
        answering: Started,
        opening: &Opening,
        now: Now,
    ) {
        if !self.handshakes.take(now.instant) {
            core.counters.busy += 1;
            return;
        }
        // A clock that is wrong keeps nobody out once it is right.
        self.made = self.made.max(opening.made.min(now.unix.0.saturating_add(MAX_AHEAD)));
        let index = core.fresh_index(self.peer.link);
        let choice = Choice::of(opening.versions, index);
        let Ok((session, second)) = answering.respond(&choice.encode(), WINDOW, now.instant) else {
            core.by_index.remove(&index);
            return;
        };
        let response = response(to, &second);
        core.send(from, response.clone());
        if choice.chosen.is_none() {
            core.by_index.remove(&index);
            self.other_versions = Some(opening.versions);
            return;
        }
        let known = Known { index, to, session, begun: now.unix };
        let next = Answered { known, initiation: initiation.to_vec(), response, to: vec![from] };
        if let Some(before) = self.next.replace(next) {
            core.by_index.remove(&before.known.index);
        }
    }

    /// Takes a response; returns whether it is one to our handshake.
    pub(super) fn responded(&mut self, core: &mut Core, from: At, (index, noise): (u32, &[u8]), now: Now) -> bool {
        // It comes from where the initiation went, so that this address has answered.
        let Some(starting) = &mut self.starting else { return false };
        if starting.index != index || starting.to != from {
            return false;
        }
        let Some(choice) = starting.started.read(noise).ok().and_then(|payload| Choice::decode(&payload)) else {
            return false;
        };
        let Some(Ok(session)) = self.starting.take().map(|starting| starting.started.finish(WINDOW, now.instant))
        else {
            return false;
        };
        if choice.chosen.is_none() {
            self.begin_at = now.instant + RETRY_VERSION;
            core.by_index.remove(&index);
            self.other_versions = Some(choice.versions);
            return true;
        }
        self.other_versions = None;
        let known = Known { index, to: choice.number, session, begun: now.unix };
        self.use_session(core, known, now);
        // The neighbour knows by a ping that its response has come.
        if self.address == Some(from) {
            self.ping(core, 0, now);
        } else {
            self.set_address(core, from, now);
        }
        true
    }

    /// Takes a cookie for the next initiation, which leaves as soon as another may. The handshake goes on: a cookie may be anybody's who
    /// has seen the initiation.
    pub(super) fn takes_cookie(
        &mut self,
        from: At,
        (index, nonce, sealed): (u32, &[u8; NONCE], &[u8]),
        now: Now,
    ) -> bool {
        if let Some(reach) = self.reaches.iter_mut().find(|reach| reach.index == index) {
            return reach.answered(from, &self.peer.noise, (nonce, sealed), now.instant);
        }
        let Some(starting) = self.starting.as_ref().filter(|starting| starting.index == index && starting.to == from)
        else {
            return false;
        };
        let Some(cookie) = open_cookie(&self.peer.noise, &starting.mac, nonce, sealed) else { return false };
        self.cookie = Some((cookie, now.instant));
        self.begin_at = self.begin_at.min(starting.at + RETRY);
        true
    }

    fn use_session(&mut self, core: &mut Core, known: Known, now: Now) {
        self.heard = Some(now.instant);
        self.has_stopped = false;
        // Attempts go on until a ping is answered: where handshakes pass and nothing else, the next one goes elsewhere.
        self.unanswered = 0;
        if let Some(ended) = std::mem::replace(&mut self.previous, self.current.replace(known)) {
            core.by_index.remove(&ended.index);
        }
    }

    // Messages.

    /// What a sealed message of the present session says, with its padding.
    #[cfg(test)]
    pub(super) fn content_of(&mut self, number: u64, sealed: &[u8]) -> Option<Vec<u8>> {
        let mut out = vec![0; sealed.len()];
        let content = self.current.as_mut()?.session.open(number, sealed, &mut out).ok()?;
        Some(content.to_vec())
    }

    /// Says something in the present session, to the neighbour's address if no other is named.
    pub(super) fn say(&mut self, core: &mut Core, to: Option<At>, content: Content, padded: u16) {
        if let (Some(known), Some(to)) = (&mut self.current, to.or(self.address)) {
            known.say(core, to, &content, padded);
        }
    }

    /// Says that this end goes, by each session that may be the neighbour's present one: that is the one which it has begun as soon as it
    /// has our response, and by an earlier one nobody ends a later one.
    pub(super) fn close(&mut self, core: &mut Core) {
        self.say(core, None, Content::Close, 0);
        if let Some(Answered { known, to, .. }) = &mut self.next {
            to.iter().for_each(|to| known.say(core, *to, &Content::Close, 0));
        }
    }

    fn ping(&mut self, core: &mut Core, padded: u16, now: Now) {
        self.number = self.number.wrapping_add(1);
        let is_large = usize::from(padded) > LEAST;
        let asked =
            PendingPing { number: self.number, at: now.instant, sent: self.sent.packets, is_large, is_late: false };
        if self.asked.len() == LATE {
            self.asked.pop_front();
        }
        self.asked.push_back(asked);
        self.pinged = now.instant;
        self.say(core, None, Content::Ping { number: self.number, sent: self.sent.packets }, padded);
    }

    /// Takes a sealed message; returns whether it is the neighbour's, and new.
    pub(super) fn opened(
        &mut self,
        core: &mut Core,
        from: At,
        (index, number, sealed): (u32, u64, &[u8]),
        now: Now,
    ) -> bool {
        let may_move = self.may_move(from);
        let next = self.next.as_mut().map(|next| &mut next.known);
        let sessions = [self.current.as_mut(), self.previous.as_mut(), next];
        let Some(known) = sessions.into_iter().flatten().find(|known| known.index == index) else { return false };
        let order = known.session.order(number);
        let mut plain = vec![0; sealed.len()];
        let length = SEALED + sealed.len();
        let plain = match known.session.open(number, sealed, &mut plain) {
            Ok(plain) => plain,
            // A copy of the newest message: of two addresses it is not known which is the neighbour's.
            Err(OpenError::Replayed) if order == Ordering::Equal && may_move => {
                if known.session.is_sealed(number, sealed, &mut plain) {
                    self.challenge(core, from, length, false, now);
                }
                return false;
            }
            Err(_) => return false,
        };
        let Some((content, time)) = Content::decode(plain) else { return false };
        self.heard = Some(now.instant);
        if let Some(Answered { known, to, .. }) = self.next.take_if(|next| next.known.index == index) {
            // Its sender has our response, at the address to which that went; if it went to several, one of them is somebody else's.
            self.confirmed(core, known, now);
            if to == [from] {
                self.set_address(core, from, now);
            }
        }
        if self.may_move(from) && order == Ordering::Greater {
            self.challenge(core, from, length, matches!(content, Content::Challenge { .. }), now);
        }
        match content {
            Content::Ping { number, .. } => {
                let size = u16::try_from(length).unwrap_or(u16::MAX);
                // Not to an address that has not shown that it receives.
                self.say(core, None, Content::Pong { number, received: self.received.packets, size }, 0);
            }
            Content::Pong { number, received, size } => self.answered((number, received, size), time, now),
            // A connection of TLS is shown by a handshake alone: who may be heard by it has proved itself by then.
            Content::Challenge { .. } if self.peer.tls == Some(from.0) && self.address != Some(from) => {}
            Content::Challenge { token } => self.say(core, Some(from), Content::Shown { token }, 0),
            Content::Shown { token } => {
                // The address to which it went, wherever this comes from (RFC 9000 section 8.2.3): who copies everything faster is not it.
                let shown = self.candidates.iter().find(|candidate| candidate.token == token);
                let shown = shown.map(|candidate| candidate.address);
                if let Some(address) = shown.filter(|_| self.address.is_none() || self.moves.take(now.instant)) {
                    self.set_address(core, address, now);
                }
            }
            Content::Seen { address } => self.seen = Some(address),
            // An earlier life's may come late: it ends its own session.
            Content::Close if self.current.as_ref().is_none_or(|known| known.index != index) => {
                if let Some(ended) = self.previous.take_if(|known| known.index == index) {
                    core.by_index.remove(&ended.index);
                }
            }
            Content::Close => {
                self.end(core);
                let begun = self.starting.take().map(|starting| starting.index);
                for index in begun.into_iter().chain(self.next.take().map(|next| next.known.index)) {
                    core.by_index.remove(&index);
                }
                self.has_stopped = true;
                core.closed = Some(self.peer.link);
                self.begin_at = now.instant + RETRY;
            }
        }
        true
    }

    /// Takes a session that the neighbour began, and uses. Of two that crossed, the one of the lesser identity is for sending.
    fn confirmed(&mut self, core: &mut Core, known: Known, now: Now) {
        self.other_versions = None;
        if let Some(starting) = self.starting.take() {
            core.by_index.remove(&starting.index);
        }
        let is_crossed = |own: &Known| own.session.is_initiator() && now.instant.since(own.session.begun) < CROSSED;
        let stays = core.identity < self.peer.identity && self.current.as_ref().is_some_and(is_crossed);
        if !stays {
            self.use_session(core, known, now);
        } else if let Some(ended) = self.previous.replace(known) {
            core.by_index.remove(&ended.index);
        }
    }

    /// Whether a message from there may move the neighbour. From UDP to TLS only a handshake does: messages of both cross while two ends go
    /// back to UDP, and would send them round in circles.
    fn may_move(&self, from: At) -> bool {
        let leaves_udp = self.peer.tls == Some(from.0) && self.address.is_some() && !self.is_by_tls();
        self.address != Some(from) && !leaves_udp
    }

    /// Asks whether an address receives, with no more octets than have come from it; if an answer goes there too, that counts.
    fn challenge(&mut self, core: &mut Core, from: At, length: usize, is_answered: bool, now: Now) {
        let place = self.candidates.iter().position(|candidate| candidate.address == from);
        let place = place.unwrap_or_else(|| {
            // The one that was heard longest ago gives way.
            if self.candidates.len() == CANDIDATES {
                let oldest = (0..CANDIDATES).min_by_key(|place| self.candidates[*place].heard).unwrap_or(0);
                self.candidates.remove(oldest);
            }
            let token = core.random.number();
            self.candidates.push(Candidate { address: from, token, received: 0, sent: 0, heard: now.instant });
            self.candidates.len() - 1
        });
        let candidate = &mut self.candidates[place];
        candidate.heard = now.instant;
        candidate.received = candidate.received.saturating_add(length);
        candidate.sent += if is_answered { LEAST } else { 0 };
        if candidate.sent + LEAST <= candidate.received {
            candidate.sent += LEAST;
            let token = candidate.token;
            self.say(core, Some(from), Content::Challenge { token }, 0);
        }
    }

    fn answered(&mut self, (number, received, size): (u32, u64, u16), time: UnixTime, now: Now) {
        if self.search.answered(number, size) {
            return;
        }
        let Some(place) = self.asked.iter().position(|asked| asked.number == number) else { return };
        let Some(asked) = self.asked.remove(place) else { return };
        (self.unanswered, self.attempts) = (0, 0);
        if asked.is_large {
            self.search.large(true, now.instant);
        }
        let measured = now.instant.since(asked.at);
        // The mean of RFC 6298 section 2.
        self.round_trip = Some(self.round_trip.map_or(measured, |mean| (mean * 7 + measured) / 8));
        self.loss.note(asked.sent, received);
        self.clock = Some((Clock::of(time, measured, now.unix), now.instant));
    }

    fn set_address(&mut self, core: &mut Core, address: At, now: Now) {
        if self.address == Some(address) {
            return;
        }
        let link = self.peer.link;
        self.candidates.retain(|candidate| candidate.address != address);
        match self.address.replace(address) {
            Some(before) => {
                core.forget_address(before, link);
                self.moved += 1;
            }
            None => self.begun += 1,
        }
        (self.tells, self.tell_at) = (TELLS, now.instant);
        if self.is_by_tls() {
            let did_last = self.by_udp.take().is_none_or(|since| now.instant.since(since) >= UDP_LASTS);
            self.udp_wait = if did_last { UDP_RETRY } else { UDP_RETRY_MOST.min(self.udp_wait * 2) };
            self.udp_at = now.instant + self.udp_wait;
        } else {
            self.by_udp.get_or_insert(now.instant);
        }
        self.ping(core, 0, now);
        core.displaced = core.enter_address(address, link);
        self.search.begin(now.instant);
    }

    /// Another neighbour has shown that it is there where this one was.
    pub(super) fn lose_address(&mut self, now: Instant) {
        self.address = None;
        self.begins_anew(now);
    }

    /// Once until the neighbour has answered: a connection that does not come about ends too.
    pub(super) fn connection_ended(&mut self, now: Instant) {
        if self.is_by_tls() && self.unanswered < UNANSWERED {
            self.begins_anew(now);
        }
    }

    /// It counts as silent, and a session is begun at once.
    fn begins_anew(&mut self, now: Instant) {
        self.asked.clear();
        self.unanswered = self.unanswered.max(UNANSWERED);
        (self.begin_at, self.attempts) = (now, 0);
    }

    /// The neighbour has no address any more, and no session.
    fn end(&mut self, core: &mut Core) {
        for known in [self.current.take(), self.previous.take()].into_iter().flatten() {
            core.by_index.remove(&known.index);
        }
        self.asked.clear();
        self.unanswered = 0;
        if let Some(address) = self.address.take() {
            core.forget_address(address, self.peer.link);
        }
    }

    // Time.

    /// Does what is due; returns when to look again.
    pub(super) fn work(&mut self, core: &mut Core, now: Now) -> Instant {
        let instant = now.instant;
        if let Some(ended) = self.previous.take_if(|known| instant.since(known.session.begun) >= SESSION_LIFE) {
            core.by_index.remove(&ended.index);
        }
        let is_over = |known: &Known| instant.since(known.session.begun) >= SESSION_LIFE;
        if let Some(ended) = self.next.take_if(|next| is_over(&next.known)) {
            core.by_index.remove(&ended.known.index);
        }
        let is_silent = self.unanswered >= UNANSWERED && self.heard.is_none_or(|heard| instant.since(heard) >= SILENT);
        if self.current.as_ref().is_some_and(|known| is_silent || is_over(known)) {
            self.end(core);
        }
        let wait = self.wait();
        for asked in self.asked.iter_mut().filter(|asked| !asked.is_late && instant.since(asked.at) >= wait) {
            asked.is_late = true;
            self.unanswered += 1;
            if asked.is_large {
                self.search.large(false, instant);
            }
        }
        if self.wants_session(instant) && instant >= self.begin_at {
            self.begin(core, now);
        } else if let Some(to) = self.udp_target().filter(|_| instant >= self.udp_due()) {
            self.udp_at = instant + self.udp_wait / self.peer.endpoints.len().max(1) as u32;
            self.udp_tried = self.udp_tried.wrapping_add(1);
            self.initiate(core, to, now);
        }
        if self.current.is_some() && self.address.is_some() {
            if instant >= self.ping_at(instant) {
                let is_large =
                    self.number.is_multiple_of(LARGE_EVERY) && self.is_flowing(instant) && self.unanswered == 0;
                self.ping(core, self.search.size.filter(|_| is_large).unwrap_or(0), now);
            }
            if let Some((_, address)) = self.address.filter(|_| self.tells > 0 && instant >= self.tell_at) {
                (self.tells, self.tell_at) = (self.tells - 1, instant + TELL_AGAIN);
                self.say(core, None, Content::Seen { address }, 0);
            }
            for size in self.search.sizes(self.peer.largest, instant) {
                self.number = self.number.wrapping_add(1);
                self.search.asked(self.number, size);
                self.say(core, None, Content::Ping { number: self.number, sent: self.sent.packets }, size);
            }
        }
        self.reaches
            .iter_mut()
            .filter_map(|reach| reach.repeats(instant))
            .for_each(|(to, octets)| core.send(to, octets));
        self.deadline(instant)
    }

    /// Asks the endpoints of the families by which the neighbour is not reached whether they answer; returns how many were asked.
    pub(super) fn ask_endpoints(&mut self, core: &mut Core, most: usize, now: Now) -> usize {
        for reach in self.reaches.drain(..) {
            core.by_index.remove(&reach.index);
        }
        let by_udp = self.address.filter(|_| self.current.is_some() && !self.is_by_tls());
        let others = self.peer.endpoints.iter().copied();
        let others = others.filter(|(_, to)| by_udp.is_none_or(|(_, at)| at.is_ipv4() != to.is_ipv4())).take(most);
        for to in others {
            let opening = Opening { identity: core.identity, made: LONG_AGO, versions: VERSIONS };
            let index = core.fresh_index(self.peer.link);
            match self.initiation(core, index, &opening) {
                Some((_, octets, mac)) => self.reaches.push(Reach::new(to, index, mac, octets, now.instant)),
                None => {
                    core.by_index.remove(&index);
                }
            }
        }
        self.reaches.len()
    }

    /// Where a link over TLS tries UDP.
    fn udp_target(&self) -> Option<At> {
        let place = self.udp_tried.checked_rem(self.peer.endpoints.len())?;
        self.peer.endpoints.get(place).copied().filter(|_| self.is_by_tls())
    }

    /// When it does, without ending a handshake that was just begun.
    fn udp_due(&self) -> Instant {
        self.udp_at.max(self.starting.as_ref().map_or(Instant(0), |starting| starting.at + RETRY))
    }

    /// How long an answer is waited for.
    fn wait(&self) -> Duration {
        self.round_trip.map_or(ANSWER, |round_trip| ANSWER.max(round_trip * 2))
    }

    fn ping_at(&self, now: Instant) -> Instant {
        let is_soon = self.is_flowing(now) || self.unanswered > 0;
        self.pinged + if is_soon { DATA_PING } else { IDLE_PING }
    }

    /// Whether another session should be begun.
    fn wants_session(&self, now: Instant) -> bool {
        let Some(known) = &self.current else { return true };
        let age = if known.session.is_initiator() { REKEY } else { REKEY_LATE };
        self.unanswered >= UNANSWERED || now.since(known.session.begun) >= age
    }

    pub(super) fn deadline(&self, now: Instant) -> Instant {
        let mut next = self.reaches.iter().filter_map(Reach::due).min().unwrap_or(Instant(u64::MAX));
        if self.target().is_some() {
            let rekey = self
                .current
                .as_ref()
                .filter(|_| self.unanswered < UNANSWERED)
                .map(|known| known.session.begun + if known.session.is_initiator() { REKEY } else { REKEY_LATE });
            next = next.min(self.begin_at.max(rekey.unwrap_or_default()));
        }
        let answered = self.next.as_ref().map(|answered| &answered.known);
        for known in [self.current.as_ref(), self.previous.as_ref(), answered].into_iter().flatten() {
            next = next.min(known.session.begun + SESSION_LIFE);
        }
        if self.current.is_some() && self.address.is_some() {
            if self.tells > 0 {
                next = next.min(self.tell_at);
            }
            let late = self.asked.iter().find(|asked| !asked.is_late).map(|asked| asked.at + self.wait());
            next = next.min(self.ping_at(now)).min(late.unwrap_or(Instant(u64::MAX)));
            if self.udp_target().is_some() {
                next = next.min(self.udp_due());
            }
            if let Some(due) = self.search.due() {
                next = next.min(due);
            }
        }
        next
    }

    pub(super) fn status(&self, now: Now) -> LinkStatus {
        let state = match (&self.current, self.address) {
            (Some(_), Some(_)) => State::Up,
            _ if self.has_stopped => State::Stopped,
            _ if self.target().is_some() => State::Asked,
            _ => State::Awaited,
        };
        LinkStatus {
            link: self.peer.link,
            identity: self.peer.identity,
            state,
            address: self.address.map(|(_, address)| address),
            socket: self.address.map(|(socket, _)| socket),
            endpoints: self.peer.endpoints.iter().map(|(_, address)| *address).collect(),
            tls_endpoints: self.peer.tls_endpoints.clone(),
            transport: self.address.map(|_| if self.is_by_tls() { Transport::Tls } else { Transport::Udp }),
            begun: self.begun,
            moved: self.moved,
            handshake: self.current.as_ref().map(|known| known.begun),
            heard: self.heard.map(|heard| now.instant.since(heard)),
            sent: self.sent,
            received: self.received,
            round_trip: self.round_trip,
            clock: self.clock.filter(|(_, at)| now.instant.since(*at) < CLOCK_LIFE).map(|(clock, _)| clock),
            loss: self.loss.per_million(),
            seen: self.seen,
            reached: self.reaches.iter().map(Reach::status).collect(),
            size: self.search.size,
            attempts: self.attempts,
            other_versions: self.other_versions,
        }
    }
}
