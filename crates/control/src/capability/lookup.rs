//! The look-up of one temporal secret through DNS, by a resolver or a key server itself.
//!
//! One question by UDP, one round trip. What is truncated, damaged or denied by one server is asked for again by TCP, then of the
//! next server: who can change answers can delay a key, never replace it.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use hickory_proto::rr::Name;
use wayleave_core::{Instant, Machine, Now};
use wayleave_crypto::secret::Seed;
use wayleave_packet::platypus::header::Capability;
use wayleave_packet::platypus::mint::epoch;

use super::answer::{Answer, Denial, EpochSecret};
use super::credential::Credential;
use super::message::{self, Reply, ReplyError};
use super::name::LookupName;
use crate::rng::Rng;

/// How long an answer by UDP, and by TCP with its connection, may take.
const UDP_PATIENCE: Duration = Duration::from_millis(1_500);
const TCP_PATIENCE: Duration = Duration::from_secs(4);
/// Servers that are asked, at most.
const MAX_SERVERS: usize = 8;
/// Seconds by which a TTL may exceed the rest of its epoch: two clocks are never equal.
const TTL_TOLERANCE: u64 = 5;

/// What a look-up needs to know.
#[derive(Clone, Debug)]
pub struct LookupConfig {
    pub credential: Credential,
    /// The full number of the key epoch.
    pub epoch: u32,
    /// Resolvers or key servers, in the order in which they are asked; at most eight.
    pub servers: Vec<SocketAddr>,
    /// Uniformly random, and used for nothing else.
    pub seed: Seed,
}

/// What a look-up is given.
#[derive(Clone, Debug)]
pub enum LookupInput {
    /// Ask.
    Start,
    /// A datagram came from this address.
    Datagram { from: SocketAddr, octets: Vec<u8> },
    /// The message that a server sent over TCP, without its length.
    Stream { from: SocketAddr, octets: Vec<u8> },
    /// The connection to this server failed or closed without a message.
    StreamFailed(SocketAddr),
}

/// What a look-up asks of its driver, and reports.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LookupOutput {
    /// Send a datagram.
    Datagram { to: SocketAddr, octets: Vec<u8> },
    /// Connect by TCP, send the message behind its length in two octets (RFC 1035 section 4.2.2), and hand in what comes back.
    Stream { to: SocketAddr, octets: Vec<u8> },
    /// Something that an operator may want to know; the look-up goes on.
    Event(LookupEvent),
    /// The end: the secret, or why there is none.
    Done(Result<Obtained, LookupFailure>),
}

/// A secret, and until when it is current.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Obtained {
    pub secret: EpochSecret,
    /// The Unix second at which its epoch ends, whatever TTL the answer had. Waypoints accept it for one more epoch.
    pub until: u64,
}

/// What somebody on the way did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LookupEvent {
    /// Not from a server that was asked, or not to the question: it counts for nothing.
    #[error("stray message ignored: {0}")]
    Stray(ReplyError),
    #[error("datagram from an address that was not asked ignored")]
    Foreign,
    #[error("{0} answered with a record that is not from the key server: poisoned or damaged")]
    Forged(SocketAddr),
    /// The key server never sends such a TTL: a resolver changed it. The secret is used until its epoch ends all the same.
    #[error("{server} answered with a TTL of {ttl} s, and the epoch ends in {rest} s: the TTL was changed on its way")]
    Ttl { server: SocketAddr, ttl: u32, rest: u64 },
}

/// Why there is no secret. The last and most telling reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LookupFailure {
    #[error("no server to ask")]
    NoServer,
    /// In ascending order of how much it tells.
    #[error("no server answered: check that the key server runs and that the resolvers which are asked reach it")]
    Silent,
    #[error(
        "every server answered with a failure (response code {0}); check that the zone is delegated to the key server"
    )]
    Failed(u16),
    #[error(
        "the key server does not know the capability in this epoch: it was withdrawn or replaced, or a clock is wrong; ask the provider"
    )]
    Unknown,
    #[error(
        "answers came that the key server did not make, and no others: a resolver poisons or damages them; ask the key server itself"
    )]
    Forged,
    #[error("the key server denies the secret: {0}")]
    Denied(Denial),
}

impl LookupFailure {
    fn weight(self) -> u8 {
        match self {
            Self::NoServer => 0,
            Self::Silent => 1,
            Self::Failed(_) => 2,
            Self::Unknown => 3,
            Self::Forged => 4,
            Self::Denied(_) => 5,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Transport {
    Udp,
    Tcp,
}

/// A question that waits for its answer.
struct Pending {
    server: SocketAddr,
    transport: Transport,
    id: u16,
    deadline: Instant,
}

/// The look-up as a machine: it is over after [`LookupOutput::Done`].
pub struct Lookup {
    credential: Credential,
    epoch: u32,
    name: Name,
    rng: Rng,
    attempts: VecDeque<(SocketAddr, Transport)>,
    pending: Option<Pending>,
    failure: LookupFailure,
    outputs: VecDeque<LookupOutput>,
    is_over: bool,
}

impl Lookup {
    #[must_use]
    pub fn new(config: LookupConfig) -> Self {
        let LookupConfig { credential, epoch, mut servers, seed } = config;
        servers.truncate(MAX_SERVERS);
        let name = LookupName { interval: credential.terms.interval, epoch, handle: credential.handle(epoch) };
        let name = message::name(&name.labels(), &credential.zone);
        let by = |transport| servers.iter().map(move |server| (*server, transport));
        let attempts = by(Transport::Udp).chain(by(Transport::Tcp)).collect();
        Self {
            credential,
            epoch,
            name,
            rng: Rng::new(seed),
            attempts,
            pending: None,
            failure: LookupFailure::NoServer,
            outputs: VecDeque::new(),
            is_over: false,
        }
    }

    /// The name that is asked for, without a dot at its end.
    #[must_use]
    pub fn name(&self) -> String {
        self.name.to_ascii().trim_end_matches('.').to_owned()
    }

    /// The next question, or the end.
    fn ask(&mut self, now: Now) {
        let Some((server, transport)) = self.attempts.pop_front() else {
            self.pending = None;
            return self.finish(Err(self.failure));
        };
        let id = u16::from_be_bytes(self.rng.bytes());
        let octets = message::question(id, &self.name);
        let (timeout, output) = match transport {
            Transport::Udp => (UDP_PATIENCE, LookupOutput::Datagram { to: server, octets }),
            Transport::Tcp => (TCP_PATIENCE, LookupOutput::Stream { to: server, octets }),
        };
        self.note(LookupFailure::Silent);
        self.pending = Some(Pending { server, transport, id, deadline: now.instant + timeout });
        self.outputs.push_back(output);
    }

    fn finish(&mut self, result: Result<Obtained, LookupFailure>) {
        if !std::mem::replace(&mut self.is_over, true) {
            self.outputs.push_back(LookupOutput::Done(result));
        }
        self.pending = None;
    }

    fn note(&mut self, failure: LookupFailure) {
        if failure.weight() >= self.failure.weight() {
            self.failure = failure;
        }
    }

    /// The same server is asked by TCP next: who can forge a datagram cannot always forge a connection.
    fn prefer_tcp(&mut self, server: SocketAddr) {
        let attempt = (server, Transport::Tcp);
        if let Some(at) = self.attempts.iter().position(|other| *other == attempt) {
            self.attempts.remove(at);
            self.attempts.push_front(attempt);
        }
    }

    fn reply(&mut self, from: SocketAddr, transport: Transport, octets: &[u8], now: Now) {
        let Some(pending) =
            self.pending.as_ref().filter(|pending| pending.server == from && pending.transport == transport)
        else {
            return self.outputs.push_back(LookupOutput::Event(LookupEvent::Foreign));
        };
        match Reply::read(octets, pending.id, &self.name) {
            Err(error) => {
                self.outputs.push_back(LookupOutput::Event(LookupEvent::Stray(error)));
                // Over TCP nothing else will come.
                if transport == Transport::Tcp {
                    self.ask(now);
                }
                return;
            }
            Ok(Reply::Texts { ttl, texts }) => {
                let capability = self.credential.terms.capability(self.epoch);
                let open =
                    |text: &Vec<u8>| Answer::open(text, &self.credential.key, &capability, &self.credential.zone).ok();
                match texts.iter().find_map(open) {
                    Some(Answer::Secret { key, marks }) => {
                        let until = epoch::epoch_begin(self.credential.terms.interval, self.epoch.saturating_add(1));
                        let rest = until.saturating_sub(now.unix.secs());
                        if u64::from(ttl) > rest + TTL_TOLERANCE {
                            let event = LookupEvent::Ttl { server: from, ttl, rest };
                            self.outputs.push_back(LookupOutput::Event(event));
                        }
                        let secret = EpochSecret::new(Capability { marks, ..capability }, key);
                        return self.finish(Ok(Obtained { secret, until }));
                    }
                    // Authentic, and perhaps of earlier: no denial has a time in it, and a resolver may repeat one after the operator
                    // has lifted a revocation, granted anew, or the hour has passed. The others are asked too.
                    Some(Answer::Denied(denial)) => self.note(LookupFailure::Denied(denial)),
                    None => {
                        self.outputs.push_back(LookupOutput::Event(LookupEvent::Forged(from)));
                        self.note(LookupFailure::Forged);
                    }
                }
            }
            Ok(Reply::Truncated) => {}
            Ok(Reply::Nothing) => self.note(LookupFailure::Unknown),
            Ok(Reply::Failed(code)) => self.note(LookupFailure::Failed(code)),
        }
        if transport == Transport::Udp {
            self.prefer_tcp(from);
        }
        self.ask(now);
    }
}

impl Machine for Lookup {
    type Input = LookupInput;
    type Output = LookupOutput;

    fn handle(&mut self, input: LookupInput, now: Now) {
        if self.is_over {
            return;
        }
        match input {
            LookupInput::Start => {
                if self.pending.is_none() {
                    self.ask(now);
                }
            }
            LookupInput::Datagram { from, octets } => self.reply(from, Transport::Udp, &octets, now),
            LookupInput::Stream { from, octets } => self.reply(from, Transport::Tcp, &octets, now),
            LookupInput::StreamFailed(server) => {
                let is_pending = |pending: &Pending| pending.server == server && pending.transport == Transport::Tcp;
                if self.pending.as_ref().is_some_and(is_pending) {
                    self.ask(now);
                }
            }
        }
    }

    fn handle_timeout(&mut self, now: Now) {
        if self.pending.as_ref().is_some_and(|pending| pending.deadline <= now.instant) {
            self.ask(now);
        }
    }

    fn poll(&mut self) -> Option<LookupOutput> {
        self.outputs.pop_front()
    }

    fn deadline(&self) -> Option<Instant> {
        self.pending.as_ref().map(|pending| pending.deadline)
    }
}
