//! One link: its sessions, its neighbour's address, and what is measured.

use std::time::Duration;

use wayleave_core::{IdentityKey, Instant, Now, UnixTime};

use super::gate::{cookie_mac, mac, open_cookie};
use super::message::{
    self, CONTENT, Choice, Content, LEAST, MAC, NONCE, Opening, SEALED, VERSIONS, initiation, response,
};
use super::size::Search;
use super::status::{LinkStatus, State, Volume};
use super::{At, COOKIE_LIFE, Core, PROLOGUE, Peer};
use crate::noise::{Session, Started, TAG, prologue};

/// A session is renewed by who began it after this long, by the other end a little later, and ends.
const REKEY: Duration = Duration::from_secs(120);
const REKEY_LATE: Duration = Duration::from_secs(150);
pub const SESSION_LIFE: Duration = Duration::from_secs(180);
/// A ping is sent this often while data flow, and until this long after.
pub const DATA_PING: Duration = Duration::from_secs(1);
pub const FLOWING: Duration = Duration::from_secs(10);
/// And this often otherwise: NATs keep what they know of UDP for 30 seconds and more.
pub const IDLE_PING: Duration = Duration::from_secs(25);
/// An answer is waited for this long.
const ANSWER: Duration = Duration::from_secs(1);
/// Pings in a row without an answer until another session is begun.
const UNANSWERED: u32 = 3;
/// And a neighbour that has said nothing for this long has no address any more.
pub const SILENT: Duration = Duration::from_secs(30);
/// An initiation without an answer is repeated after this long, and ever later up to the second.
const RETRY: Duration = Duration::from_secs(1);
const RETRY_MOST: Duration = Duration::from_secs(8);
/// The end with the greater identity lets the other begin first, so that one session is made and not two.
const POLITE: Duration = Duration::from_millis(500);
/// A neighbour without a common version is asked again after this long.
const RETRY_VERSION: Duration = Duration::from_secs(60);
/// Every so many pings under data are as large as the largest datagram that passes.
const LARGE_EVERY: u32 = 4;
/// Packets over which loss is measured, about.
const LOSS_WINDOW: u64 = 10_000;

/// A session.
struct Known {
    /// Our number and the neighbour's.
    index: u32,
    to: u32,
    session: Session,
    /// Where the handshake came from.
    from: At,
    begun: UnixTime,
}

/// A handshake that waits for its response.
struct Starting {
    index: u32,
    started: Started,
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
}

/// A ping that waits for its answer.
#[derive(Clone, Copy)]
struct Asked {
    number: u32,
    at: Instant,
    sent: u64,
    is_large: bool,
}

/// Packets that were sent and that arrived, as two answered pings a while apart have it.
#[derive(Default)]
struct Loss {
    last: Option<(u64, u64)>,
    sent: u64,
    lost: u64,
}

impl Loss {
    fn note(&mut self, sent: u64, received: u64) {
        if let Some((sent_before, received_before)) = self.last.replace((sent, received))
            && let (Some(sent), Some(received)) = (sent.checked_sub(sent_before), received.checked_sub(received_before))
        {
            self.sent += sent;
            self.lost += sent.saturating_sub(received);
            if self.sent > LOSS_WINDOW {
                (self.sent, self.lost) = (self.sent / 2, self.lost / 2);
            }
        }
    }

    fn per_million(&self) -> Option<u32> {
        let share = u128::from(self.lost) * 1_000_000 / u128::from(self.sent.max(1));
        (self.sent > 0).then_some(u32::try_from(share).unwrap_or(1_000_000))
    }
}

pub(super) struct Entry {
    pub(super) peer: Peer,
    /// When the latest initiation of the neighbour was made that was answered, in microseconds of Unix time.
    pub(super) made: u64,
    /// Where the neighbour is: what it has proved.
    pub(super) address: Option<At>,
    candidate: Option<Candidate>,
    current: Option<Known>,
    previous: Option<Known>,
    /// Answered by us, not used yet by the neighbour.
    next: Option<Known>,
    starting: Option<Starting>,
    begin_at: Instant,
    attempts: u32,
    cookie: Option<([u8; MAC], Instant)>,
    number: u32,
    asked: Option<Asked>,
    pinged: Instant,
    unanswered: u32,
    flowed: Option<Instant>,
    heard: Option<Instant>,
    search: Search,
    pub(super) sent: Volume,
    pub(super) received: Volume,
    round_trip: Option<Duration>,
    loss: Loss,
    other_versions: Option<(u8, u8)>,
    begun: u64,
    moved: u64,
}

impl Entry {
    pub(super) fn new(peer: Peer, own: IdentityKey, now: Instant) -> Self {
        let begin_at = if own > peer.identity { now + POLITE } else { now };
        Self {
            peer,
            made: 0,
            address: None,
            candidate: None,
            current: None,
            previous: None,
            next: None,
            starting: None,
            begin_at,
            attempts: 0,
            cookie: None,
            number: 0,
            asked: None,
            pinged: now,
            unanswered: 0,
            flowed: None,
            heard: None,
            search: Search::default(),
            sent: Volume::default(),
            received: Volume::default(),
            round_trip: None,
            loss: Loss::default(),
            other_versions: None,
            begun: 0,
            moved: 0,
        }
    }

    /// Takes what is new of the same neighbour.
    pub(super) fn change(&mut self, peer: Peer, now: Instant) {
        let before = std::mem::replace(&mut self.peer, peer);
        if self.address.is_some_and(|(socket, _)| !self.is_at(socket)) {
            // That socket is its own no more: it has to show itself anew.
            self.lose_address();
            (self.candidate, self.begin_at, self.attempts) = (None, now, 0);
        }
        if before.endpoints != self.peer.endpoints && self.current.is_none() {
            (self.begin_at, self.attempts) = (now, 0);
        }
        if before.largest != self.peer.largest {
            self.search.begin(now);
        }
    }

    /// Enters what it has into the maps of all.
    pub(super) fn register(&mut self, core: &mut Core) {
        let known = [&self.current, &self.previous, &self.next].into_iter().flatten().map(|known| known.index);
        let starting = self.starting.iter().map(|starting| starting.index);
        core.by_index.extend(known.chain(starting).map(|index| (index, self.peer.link)));
        if let Some(address) = self.address {
            core.by_address.insert(address, self.peer.link);
        }
    }

    pub(super) fn is_at(&self, socket: usize) -> bool {
        self.peer.sockets.contains(&socket)
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

    /// Where a session may be begun: where the neighbour was last, and where it says that it is.
    fn target(&self) -> Option<At> {
        let address = self.address.filter(|address| !self.peer.endpoints.contains(address));
        let count = self.peer.endpoints.len() + usize::from(address.is_some());
        let place = (self.attempts as usize).checked_rem(count)?;
        address.into_iter().chain(self.peer.endpoints.iter().copied()).nth(place)
    }

    fn begin(&mut self, core: &mut Core, now: Now) {
        if let Some(before) = self.starting.take() {
            core.by_index.remove(&before.index);
        }
        let delay = RETRY_MOST.min(RETRY * (1 << self.attempts.min(5)));
        // Not all neighbours of a node that was away at one time.
        let spread = Duration::from_nanos(core.random.number() % 250_000_000);
        self.begin_at = now.instant + delay + spread;
        let Some(to) = self.target() else { return };
        self.attempts += 1;
        let opening = Opening { identity: core.identity, made: now.unix.0, versions: VERSIONS };
        let prologue = prologue(PROLOGUE, &core.realm, &[&self.peer.identity]);
        let begun = core.key.initiate(&self.peer.noise, &prologue, core.random.secret(), &opening.encode());
        let Ok((started, first)) = begun else { return };
        let index = core.fresh_index(self.peer.link);
        let mut octets = initiation(index, &first);
        let mac = mac(&self.peer.noise, &octets);
        let cookie = self.cookie.filter(|(_, since)| now.instant.since(*since) < COOKIE_LIFE);
        let second = cookie.map_or([0; MAC], |(cookie, _)| cookie_mac(&cookie, &octets, &mac));
        octets.extend(mac);
        octets.extend(second);
        self.starting = Some(Starting { index, started, to, mac });
        core.send(to, octets);
    }

    /// Answers an initiation of the neighbour.
    #[expect(clippy::too_many_arguments, reason = "what an initiation consists of")]
    pub(super) fn answer(
        &mut self,
        core: &mut Core,
        from: At,
        to: u32,
        answering: Started,
        choice: Choice,
        theirs: (u8, u8),
        now: Now,
    ) {
        let Ok((session, second)) = answering.respond(&choice.encode(), now.instant) else { return };
        let index = core.fresh_index(self.peer.link);
        if choice.chosen.is_some() {
            let next = Known { index, to, session, from, begun: now.unix };
            if let Some(before) = self.next.replace(next) {
                core.by_index.remove(&before.index);
            }
        } else {
            core.by_index.remove(&index);
            self.other_versions = Some(theirs);
        }
        core.send(from, response(to, index, &second));
    }

    /// Takes a response; returns whether it is one to our handshake.
    pub(super) fn responded(
        &mut self,
        core: &mut Core,
        from: At,
        (index, to, noise): (u32, u32, &[u8]),
        now: Now,
    ) -> bool {
        // It comes from where the initiation went, so that this address has answered.
        let Some(starting) = &mut self.starting else { return false };
        if starting.index != index || starting.to != from {
            return false;
        }
        let Some(choice) = starting.started.read(noise).ok().and_then(|payload| Choice::decode(&payload)) else {
            return false;
        };
        let Some(Ok(session)) = self.starting.take().map(|starting| starting.started.finish(now.instant)) else {
            return false;
        };
        if choice.chosen.is_none() {
            self.begin_at = now.instant + RETRY_VERSION;
            core.by_index.remove(&index);
            self.other_versions = Some(choice.versions);
            return true;
        }
        self.other_versions = None;
        let known = Known { index, to, session, from, begun: now.unix };
        self.use_session(core, known, now);
        self.attempts = 0;
        self.set_address(core, from, now);
        // The neighbour knows by this that its response has come.
        self.ping(core, 0, now);
        true
    }

    /// Takes a cookie, and begins anew with it.
    pub(super) fn takes_cookie(
        &mut self,
        core: &mut Core,
        (index, nonce, sealed): (u32, &[u8; NONCE], &[u8]),
        now: Now,
    ) -> bool {
        let Some(starting) = self.starting.as_ref().filter(|starting| starting.index == index) else { return false };
        let Some(cookie) = open_cookie(&self.peer.noise, &starting.mac, nonce, sealed) else { return false };
        // One that did not help is no reason to hurry.
        let is_first = self.cookie.replace((cookie, now.instant)).is_none_or(|(before, _)| before != cookie);
        if is_first {
            self.attempts -= 1;
            self.begin(core, now);
        }
        true
    }

    fn use_session(&mut self, core: &mut Core, known: Known, now: Now) {
        self.heard = Some(now.instant);
        self.unanswered = 0;
        if let Some(ended) = std::mem::replace(&mut self.previous, self.current.replace(known)) {
            core.by_index.remove(&ended.index);
        }
    }

    // Messages.

    /// Says something in the present session, to the neighbour's address if no other is named.
    pub(super) fn say(&mut self, core: &mut Core, to: Option<At>, content: Content, padded: u16) {
        let (Some(known), Some(to)) = (&mut self.current, to.or(self.address)) else { return };
        let length = CONTENT.max(usize::from(padded).saturating_sub(SEALED + TAG));
        let mut plain = vec![0; length];
        plain[..CONTENT].copy_from_slice(&content.encode());
        let mut sealed = vec![0; length + TAG];
        let Ok(number) = known.session.seal(&plain, &mut sealed) else { return };
        let mut octets = message::sealed(known.to, number, sealed.len());
        octets.extend(sealed);
        core.send(to, octets);
    }

    fn ping(&mut self, core: &mut Core, padded: u16, now: Now) {
        self.number = self.number.wrapping_add(1);
        let is_large = usize::from(padded) > LEAST;
        self.asked = Some(Asked { number: self.number, at: now.instant, sent: self.sent.packets, is_large });
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
        let sessions = [&mut self.current, &mut self.previous, &mut self.next];
        let Some(known) = sessions.into_iter().flatten().find(|known| known.index == index) else { return false };
        let is_newest = known.session.is_newest(number);
        let mut plain = vec![0; sealed.len()];
        let Ok(plain) = known.session.open(number, sealed, &mut plain) else { return false };
        let Some(content) = Content::decode(plain) else { return false };
        let length = SEALED + sealed.len();
        self.heard = Some(now.instant);
        if let Some(known) = self.next.take_if(|known| known.index == index) {
            // Its sender has our response, at the address to which that went.
            let shown = known.from;
            self.use_session(core, known, now);
            self.other_versions = None;
            self.starting = None;
            if shown == from {
                self.set_address(core, from, now);
                self.ping(core, 0, now);
            }
        }
        if self.address != Some(from) && is_newest {
            self.challenge(core, from, length);
        }
        match content {
            Content::Ping { number, .. } => {
                let size = u16::try_from(length).unwrap_or(u16::MAX);
                // Not to an address that has not shown that it receives.
                self.say(core, None, Content::Pong { number, received: self.received.packets, size }, 0);
            }
            Content::Pong { number, received, size } => self.answered(number, received, size, now),
            Content::Challenge { token } => self.say(core, Some(from), Content::Shown { token }, 0),
            Content::Shown { token } => {
                let shows = |candidate: &mut Candidate| candidate.address == from && candidate.token == token;
                if self.candidate.take_if(shows).is_some() {
                    self.set_address(core, from, now);
                }
            }
            Content::Close => {
                let is_current = self.current.as_ref().is_some_and(|known| known.index == index);
                if is_current {
                    self.end(core);
                    self.begin_at = now.instant + RETRY;
                }
            }
        }
        true
    }

    /// Asks whether an address receives, with no more octets than have come from it.
    fn challenge(&mut self, core: &mut Core, from: At, length: usize) {
        if self.candidate.as_ref().is_none_or(|candidate| candidate.address != from) {
            let token = core.random.number();
            self.candidate = Some(Candidate { address: from, token, received: 0, sent: 0 });
        }
        let Some(candidate) = &mut self.candidate else { return };
        candidate.received = candidate.received.saturating_add(length);
        if candidate.sent + LEAST <= candidate.received {
            candidate.sent += LEAST;
            let token = candidate.token;
            self.say(core, Some(from), Content::Challenge { token }, 0);
        }
    }

    fn answered(&mut self, number: u32, received: u64, size: u16, now: Now) {
        if self.search.answered(number, size) {
            return;
        }
        let Some(asked) = self.asked.take_if(|asked| asked.number == number) else { return };
        self.unanswered = 0;
        if asked.is_large {
            self.search.large(true, now.instant);
        }
        let measured = now.instant.since(asked.at);
        // The mean of RFC 6298 section 2.
        self.round_trip = Some(self.round_trip.map_or(measured, |mean| (mean * 7 + measured) / 8));
        self.loss.note(asked.sent, received);
    }

    fn set_address(&mut self, core: &mut Core, address: At, now: Now) {
        self.candidate = None;
        let link = self.peer.link;
        if self.address == Some(address) {
            return;
        }
        match self.address.replace(address) {
            Some(before) => {
                core.forget_address(before, link);
                self.moved += 1;
            }
            None => self.begun += 1,
        }
        core.displaced = core.by_address.insert(address, link);
        self.search.begin(now.instant);
    }

    /// Another neighbour has shown that it is there where this one was.
    pub(super) fn lose_address(&mut self) {
        self.address = None;
        self.asked = None;
    }

    /// The neighbour has no address any more, and no session.
    fn end(&mut self, core: &mut Core) {
        for known in [self.current.take(), self.previous.take()].into_iter().flatten() {
            core.by_index.remove(&known.index);
        }
        self.asked = None;
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
        if let Some(ended) = self.next.take_if(|known| instant.since(known.session.begun) >= SESSION_LIFE) {
            core.by_index.remove(&ended.index);
        }
        let is_silent = self.unanswered >= UNANSWERED && self.heard.is_none_or(|heard| instant.since(heard) >= SILENT);
        let is_over = |known: &Known| instant.since(known.session.begun) >= SESSION_LIFE;
        if self.current.as_ref().is_some_and(|known| is_silent || is_over(known)) {
            self.end(core);
        }
        if let Some(asked) = self.asked.filter(|asked| instant.since(asked.at) >= ANSWER) {
            self.asked = None;
            self.unanswered += 1;
            if asked.is_large {
                self.search.large(false, instant);
            }
        }
        if self.wants_session(instant) && instant >= self.begin_at {
            self.begin(core, now);
        }
        if self.current.is_some() && self.address.is_some() {
            if self.asked.is_none() && instant >= self.ping_at(instant) {
                let is_large =
                    self.number.is_multiple_of(LARGE_EVERY) && self.is_flowing(instant) && self.unanswered == 0;
                self.ping(core, self.search.size.filter(|_| is_large).unwrap_or(0), now);
            }
            for size in self.search.sizes(self.peer.largest, instant) {
                self.number = self.number.wrapping_add(1);
                self.search.asked(self.number, size);
                self.say(core, None, Content::Ping { number: self.number, sent: self.sent.packets }, size);
            }
        }
        self.deadline(instant)
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

    fn deadline(&self, now: Instant) -> Instant {
        let mut next = Instant(u64::MAX);
        if self.target().is_some() {
            let rekey = self
                .current
                .as_ref()
                .filter(|_| self.unanswered < UNANSWERED)
                .map(|known| known.session.begun + if known.session.is_initiator() { REKEY } else { REKEY_LATE });
            next = next.min(self.begin_at.max(rekey.unwrap_or_default()));
        }
        for known in [&self.current, &self.previous, &self.next].into_iter().flatten() {
            next = next.min(known.session.begun + SESSION_LIFE);
        }
        if self.current.is_some() && self.address.is_some() {
            next = next.min(self.asked.map_or_else(|| self.ping_at(now), |asked| asked.at + ANSWER));
            if let Some(due) = self.search.due() {
                next = next.min(due);
            }
        }
        next
    }

    pub(super) fn status(&self, now: Now) -> LinkStatus {
        let state = match (&self.current, self.address) {
            (Some(_), Some(_)) => State::Up,
            _ if self.target().is_some() => State::Asked,
            _ => State::Awaited,
        };
        LinkStatus {
            link: self.peer.link,
            identity: self.peer.identity,
            state,
            address: self.address.map(|(_, address)| address),
            begun: self.begun,
            moved: self.moved,
            handshake: self.current.as_ref().map(|known| known.begun),
            heard: self.heard.map(|heard| now.instant.since(heard)),
            sent: self.sent,
            received: self.received,
            round_trip: self.round_trip,
            loss: self.loss.per_million(),
            size: self.search.size,
            other_versions: self.other_versions,
        }
    }
}
