//! The key server: DNS questions in, answers out (paper section 4.1).
//!
//! A look-up costs the MAC of its handle, the MAC that makes the secret, and one sealing; who does not hold a capability costs a
//! look into a table. Without a cookie no answer is longer than its question (RFC 7873): what does not fit is truncated, so that
//! TCP follows. All that is not a good look-up has the same answer, so that it tells nothing.

use std::collections::HashMap;
use std::net::IpAddr;

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::opt::{EdnsCode, EdnsOption};
use hickory_proto::rr::rdata::{A, AAAA, NS, SOA, TXT};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};
use wayleave_core::{Now, UnixTime};
use wayleave_crypto::sign::{SigningKey, VerifyingKey};
use wayleave_packet::platypus::header::Interval;
use wayleave_packet::platypus::mint::{WaypointKeys, epoch};

use super::answer::{Answer, Denial, EpochSecret, SEALED};
use super::cookie::{CookieKey, Presented};
use super::index::EpochIndex;
use super::keys::{MasterKey, ProviderKey};
use super::message::{ANSWER_RECORD, MAX_UDP};
use super::name::{LookupName, NameError, RequestName};
use super::policy::LookupPolicy;
use super::quick::{Quick, QuickAnswer, QuickSoa};
use super::request::{Acknowledgement, Order, SignedRequest, Status, WINDOW, delegated, revocation};
use super::sources::{Allowance, SourceLimit, Sources};
use super::state::{Change, ChangeBody, ChangeError, Grant, State};
use super::zone::{MAX_ZONE, Zone};
use crate::signed::Signed;

/// Seconds that the zone's own records, and that nothing, may be cached.
const STATIC_TTL: u32 = 3_600;
const NEGATIVE_TTL: u32 = 5;
/// Seconds that a denial may be cached, at most.
const DENIAL_TTL: u32 = 60;
/// Octets of a datagram to who does not say more (RFC 1035 section 4.2.1).
const PLAIN_UDP: usize = 512;
/// Number of the cookie option.
pub(super) const COOKIE: u16 = 10;
/// Octets of a header.
pub(super) const HEADER: usize = 12;
/// Octets of an OPT record without options (RFC 6891 section 6.1.2).
pub(super) const OPT: usize = 11;
/// The zone's mailbox, and its times for secondary servers, which it has not (RFC 1035 section 3.3.13).
const HOSTMASTER: &str = "hostmaster";
const SOA_TIMES: [u32; 3] = [3_600, 600, 86_400];
/// What the zone's apex has as a static record.
const STATIC_TEXT: &str = "a key server of wayleave: look-ups are made by holders of capabilities";

/// How a question came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
    Udp,
    Tcp,
}

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub struct Client {
    pub address: IpAddr,
    pub transport: Transport,
}

/// A name server of the zone; addresses are answered if its name is within the zone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NameServer {
    pub name: String,
    pub addresses: Vec<IpAddr>,
}

/// What a server needs to know.
pub struct KeyServerConfig {
    pub zone: Zone,
    /// At least one.
    pub name_servers: Vec<NameServer>,
    pub provider: ProviderKey,
    /// Who signs changes.
    pub writer: VerifyingKey,
    /// Present in the one process that takes orders.
    pub signer: Option<SigningKey>,
    pub waypoints: HashMap<IpAddr, WaypointKeys>,
    pub policy: LookupPolicy,
}

/// A name server whose name is no name.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{0}` is no name of a name server")]
pub struct BadNameServer(pub String);

/// What becomes of a message.
#[derive(Debug)]
pub enum Served {
    Reply(Vec<u8>),
    /// It deserves no answer.
    Nothing,
    /// An order of a holder: make the change durable, [`KeyServer::apply`] it, and send what [`KeyServer::acknowledge`] returns.
    Order(Box<PendingOrder>),
}

/// An order that waits to be durable.
#[derive(Debug)]
pub struct PendingOrder {
    /// Already signed; `None` if it was done before.
    pub change: Option<Signed<Change>>,
    request: SignedRequest,
    key: MasterKey,
    question: Message,
    length: usize,
    client: Client,
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// What a server did since its start.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct ServerCounters { $($(#[$doc])* pub $name: u64),* }

        impl ServerCounters {
            /// Name and value of each.
            #[must_use]
            pub fn all(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name)),*]
            }
        }
    };
}

counters! {
    /// Secrets that were given.
    secrets,
    /// Holders that were denied one by policy.
    not_now,
    /// Holders whose capability is revoked.
    revoked,
    /// Holders whose capability has ended or not begun.
    ended,
    /// Look-ups whose handle nobody holds.
    unknown,
    /// Look-ups for an epoch that is neither the previous, the current nor the next one.
    wrong_epoch,
    /// Look-ups for a waypoint or epoch whose key this server does not have.
    no_key,
    /// Questions about the zone itself.
    static_records,
    /// Names below the zone that are no message.
    nothing,
    /// Questions about other zones.
    foreign,
    /// Messages that are no question.
    malformed,
    /// Answers that were cut, so that TCP follows.
    truncated,
    /// Messages of networks beyond their limit that got no answer.
    limited,
    /// Questions of networks beyond their limit that were told to come by TCP.
    limited_to_tcp,
    /// Secrets that were sealed once before for the same epoch.
    repeated,
    /// Orders that were carried out.
    orders,
    /// Orders with a wrong MAC, or of nobody.
    orders_forged,
    /// Orders that a clock refused.
    orders_clock,
    /// Orders that the capability does not allow, or for which there is no room.
    orders_refused,
    /// Orders that came to a replica.
    orders_elsewhere,
}

/// What is in the sections of an answer.
#[derive(Default)]
struct Content {
    code: ResponseCode,
    answers: Vec<Record>,
    authorities: Vec<Record>,
    /// It would not fit, and was not made.
    is_cut: bool,
}

/// What a look-up finds.
enum Found {
    /// TTL and sealed answer.
    Answer(u32, [u8; SEALED]),
    /// Nobody has this handle now.
    Nothing,
    /// The waypoint's key is missing.
    Failure,
}

/// Answers that are kept because they are asked for again, by caches and by several stampers of one holder: a fixed number, whatever
/// the number of principals.
const KEPT: usize = 8_192;

/// A sealed secret, which is the same each time it is made.
struct Kept {
    /// Of the server's keys: see [`KeyServer::edition`].
    edition: u64,
    name: LookupName,
    slot: u32,
    sealed: [u8; SEALED],
}

/// A key server.
pub struct KeyServer {
    zone: Zone,
    apex: Name,
    name_servers: Vec<(Name, Vec<IpAddr>)>,
    cookies: CookieKey,
    writer: VerifyingKey,
    signer: Option<SigningKey>,
    waypoints: HashMap<IpAddr, WaypointKeys>,
    policy: LookupPolicy,
    state: State,
    indexes: Vec<EpochIndex>,
    counters: ServerCounters,
    /// The zone's name as it is in messages.
    zone_name: Vec<u8>,
    soa: QuickSoa,
    sources: Option<Sources>,
    kept: Vec<Option<Kept>>,
    /// Changes whenever keys may have changed.
    edition: u64,
    /// The second that is being counted, its answers, and those of the second before.
    load: (u64, u64, u64),
}

impl KeyServer {
    /// A server without accounts.
    ///
    /// # Errors
    /// If a name server has no name.
    pub fn new(config: KeyServerConfig) -> Result<Self, BadNameServer> {
        let KeyServerConfig { zone, name_servers, provider, writer, signer, waypoints, policy } = config;
        let mut servers = Vec::new();
        for NameServer { name, addresses } in name_servers {
            let absolute = format!("{}.", name.trim_end_matches('.'));
            let parsed = Name::from_ascii(&absolute).ok().filter(|_| absolute.len() <= MAX_ZONE + 64);
            servers.push((parsed.ok_or(BadNameServer(name))?, addresses));
        }
        let apex = super::message::name(&[], &zone);
        let zone_name: Vec<u8> = wire_name(zone.labels().map(str::as_bytes)).chain([0]).collect();
        let first = servers.first().map_or(&apex, |(name, _)| name);
        let names = [quick_name(first, &apex), (wire_name([HOSTMASTER.as_bytes()].into_iter()).collect(), true)];
        let [refresh, retry, expire] = SOA_TIMES;
        let numbers = [0, refresh, retry, expire, NEGATIVE_TTL];
        Ok(Self {
            zone_name,
            soa: QuickSoa { ttl: NEGATIVE_TTL, names, numbers },
            sources: None,
            kept: std::iter::repeat_with(|| None).take(KEPT).collect(),
            edition: 0,
            cookies: CookieKey::new(&provider.cookie_key()),
            state: State::new(provider),
            zone,
            apex,
            name_servers: servers,
            writer,
            signer,
            waypoints,
            policy,
            indexes: Vec::new(),
            counters: ServerCounters::default(),
            load: (0, 0, 0),
        })
    }

    /// Limits answers by UDP to each network whose clients show no cookie.
    pub fn limit_sources(&mut self, limit: Option<SourceLimit>) {
        self.sources = limit.map(Sources::new);
    }

    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    #[must_use]
    pub fn counters(&self) -> ServerCounters {
        self.counters
    }

    /// Answers of the last whole second.
    #[must_use]
    pub fn load(&self) -> u64 {
        self.load.2
    }

    /// Octets of memory that accounts, grants and handles take.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.state.memory() + self.indexes.iter().map(EpochIndex::memory).sum::<usize>()
    }

    /// Other waypoints' keys and another policy from now on.
    pub fn reload(&mut self, waypoints: HashMap<IpAddr, WaypointKeys>, policy: LookupPolicy) {
        (self.waypoints, self.policy) = (waypoints, policy);
        self.edition += 1;
    }

    /// Signs a change of the operator's, if this is the writer.
    ///
    /// # Errors
    /// If the change cannot be made.
    pub fn sign(&self, body: ChangeBody, now: UnixTime) -> Option<Result<Signed<Change>, ChangeError>> {
        self.signer.as_ref().map(|signer| self.state.sign(body, signer, now))
    }

    /// Whether a change is the writer's next one.
    ///
    /// # Errors
    /// Why it is not.
    pub fn accepts(&self, change: &Signed<Change>) -> Result<(), ChangeError> {
        self.state.accepts(change, &self.writer)
    }

    /// Takes a durable change over.
    ///
    /// # Errors
    /// If it is not the next one of the writer's. Nothing has changed.
    pub fn apply(&mut self, change: &Signed<Change>) -> Result<(), ChangeError> {
        self.state.apply(change, &self.writer)?;
        self.edition += 1;
        let slots = match &change.object().body {
            ChangeBody::Account { principal, .. } => {
                self.state.grants_of(*principal).filter_map(|grant| self.state.find(&grant.terms)).collect()
            }
            ChangeBody::Grant(grant) => self.state.find(&grant.terms).into_iter().collect(),
            _ => Vec::new(),
        };
        for index in &mut self.indexes {
            slots.iter().for_each(|slot| index.refresh(&self.state, *slot));
        }
        Ok(())
    }

    /// Makes the tables of handles that are asked for now, and soon, for at most so many grants; returns whether all is done.
    /// Called at start until it is, and then from time to time.
    pub fn prepare(&mut self, now: UnixTime, most: u32) -> bool {
        let mut left = most;
        self.indexes.retain(|index| epoch::is_accepted(index.interval, index.epoch, now));
        for n in Interval::SHORTEST.exponent()..=Interval::LONGEST.exponent() {
            let Some(interval) = Interval::new(n).filter(|interval| self.state.uses(*interval)) else { continue };
            let current = epoch::epoch_at(interval, now);
            let wanted = [Some(current), current.checked_add(1), current.checked_sub(1)];
            for epoch in wanted.into_iter().flatten() {
                let at = self.indexes.iter().position(|index| index.interval == interval && index.epoch == epoch);
                let at = at.unwrap_or_else(|| {
                    self.indexes.push(EpochIndex::new(interval, epoch, self.state.grants()));
                    self.indexes.len() - 1
                });
                left -= self.indexes[at].advance(&self.state, left);
                if !self.indexes[at].is_complete(&self.state) {
                    return false;
                }
            }
        }
        true
    }

    /// Handles one message.
    pub fn serve(&mut self, octets: &[u8], client: Client, now: Now) -> Served {
        let quick = Quick::read(octets, &self.zone_name);
        let presented = quick.as_ref().and_then(|quick| quick.cookie);
        let presented = presented.map(|cookie| self.cookies.read(cookie, client.address, now.unix.secs()));
        // Whoever shows a cookie receives at its address, as who comes by TCP does: a limit would only hurt itself.
        if client.transport == Transport::Udp
            && !matches!(presented, Some(Presented::Good(_)))
            && let Some(sources) = &mut self.sources
        {
            match (sources.take(client.address, now.instant), &quick) {
                (Allowance::Answer, _) => {}
                (Allowance::ComeByTcp, Some(quick)) => {
                    self.counters.limited_to_tcp += 1;
                    let nothing = QuickAnswer { code: 0, text: None, soa: None, cookie: None, is_cut: true };
                    return quick.answer(&nothing, octets.len()).map_or(Served::Nothing, |(out, _)| Served::Reply(out));
                }
                _ => {
                    self.counters.limited += 1;
                    return Served::Nothing;
                }
            }
        }
        if let Some(quick) = &quick
            && let Some(answer) = self.serve_quick(quick, octets.len(), client, presented, now)
        {
            return Served::Reply(answer);
        }
        self.serve_any(octets, client, now)
    }

    /// The answer to a look-up, or to a question for the zone's own text; `None` for all else.
    fn serve_quick(
        &mut self,
        quick: &Quick<'_>,
        length: usize,
        client: Client,
        presented: Option<Presented>,
        now: Now,
    ) -> Option<Vec<u8>> {
        let mut labels = quick.labels().peekable();
        let name = match labels.peek() {
            None => None,
            Some(_) => match RequestName::of(labels) {
                Ok(RequestName::Lookup(name)) => Some(name),
                _ => return None,
            },
        };
        self.count(now);
        let limit = limit_of(quick.payload, length, client, presented);
        let sealed;
        let mut answer = QuickAnswer { code: 0, text: None, soa: None, cookie: None, is_cut: false };
        match name {
            None => {
                self.counters.static_records += 1;
                answer.text = Some((STATIC_TTL, STATIC_TEXT.as_bytes()));
            }
            // Before anything is computed: it would be asked for again by TCP.
            Some(_) if quick.length(ANSWER_RECORD) > limit => answer.is_cut = true,
            Some(name) => match self.look_up(&name, now.unix) {
                Found::Answer(ttl, octets) => {
                    sealed = octets;
                    answer.text = Some((ttl, &sealed));
                }
                Found::Nothing => {
                    answer.code = 3;
                    self.soa.numbers[0] = self.state.number() as u32; // serial arithmetic (RFC 1982)
                    answer.soa = Some(&self.soa);
                }
                Found::Failure => answer.code = 2,
            },
        }
        let option = presented
            .and_then(Presented::client)
            .map(|client_part| self.cookies.option(client_part, client.address, now.unix.secs()));
        answer.cookie = option.as_deref();
        match quick.answer(&answer, limit) {
            Some((out, is_cut)) => {
                self.counters.truncated += u64::from(is_cut);
                Some(out)
            }
            None => {
                self.counters.truncated += 1;
                Some(header(quick.id(), ResponseCode::FormErr))
            }
        }
    }

    /// Handles one message of any shape.
    fn serve_any(&mut self, octets: &[u8], client: Client, now: Now) -> Served {
        let Ok(question) = Message::from_vec(octets) else {
            self.counters.malformed += 1;
            return reject(octets, ResponseCode::FormErr);
        };
        if question.metadata.message_type != MessageType::Query {
            self.counters.malformed += 1;
            return Served::Nothing;
        }
        if question.metadata.op_code != OpCode::Query {
            self.counters.malformed += 1;
            return reject(octets, ResponseCode::NotImp);
        }
        let [query] = &question.queries[..] else {
            self.counters.malformed += 1;
            return reject(octets, ResponseCode::FormErr);
        };
        let query = query.clone();
        if question.edns.as_ref().is_some_and(|edns| edns.version() != 0) {
            let content = Content { code: ResponseCode::BADVERS, ..Content::default() };
            return Served::Reply(self.respond(&question, octets.len(), client, content, now));
        }
        self.count(now);
        let content = if query.query_class() == DNSClass::IN {
            match RequestName::read(query.name().iter(), &self.zone) {
                Err(NameError::Foreign) => self.foreign(),
                Err(NameError::Unknown) => self.own(&query),
                Ok(_) if query.query_type() != RecordType::TXT => {
                    self.counters.nothing += 1;
                    self.no_data()
                }
                // Before anything is computed or done: it would be asked for again by TCP.
                Ok(_) if answer_length(&question) > self.limit(&question, octets.len(), client, now).0 => {
                    Content { is_cut: true, ..Content::default() }
                }
                Ok(RequestName::Lookup(name)) => match self.look_up(&name, now.unix) {
                    Found::Answer(ttl, sealed) => self.text(&query, ttl, &sealed),
                    Found::Nothing => self.no_name(),
                    Found::Failure => Content { code: ResponseCode::ServFail, ..Content::default() },
                },
                Ok(RequestName::Signed(request)) => match self.order(&request, now.unix) {
                    Err(content) => content,
                    Ok((request, key, Err(status))) => {
                        let acknowledgement = self.acknowledgement(status, now.unix);
                        self.text(&query, 0, &acknowledgement.encode(&request, &key))
                    }
                    Ok((request, key, Ok(change))) => {
                        let length = octets.len();
                        return Served::Order(Box::new(PendingOrder {
                            change,
                            request,
                            key,
                            question,
                            length,
                            client,
                        }));
                    }
                },
            }
        } else {
            self.foreign()
        };
        Served::Reply(self.respond(&question, octets.len(), client, content, now))
    }

    /// The answer to an order that is durable and applied, or that cannot be carried out.
    pub fn acknowledge(&mut self, order: &PendingOrder, outcome: Result<(), Status>, now: Now) -> Vec<u8> {
        let status = match outcome {
            Ok(()) => {
                self.counters.orders += 1;
                Status::Done
            }
            Err(status) => {
                self.counters.orders_refused += 1;
                status
            }
        };
        let acknowledgement = self.acknowledgement(status, now.unix);
        let content = match &order.question.queries[..] {
            [query] => self.text(query, 0, &acknowledgement.encode(&order.request, &order.key)),
            _ => Content { code: ResponseCode::ServFail, ..Content::default() },
        };
        self.respond(&order.question, order.length, order.client, content, now)
    }

    fn acknowledgement(&self, status: Status, now: UnixTime) -> Acknowledgement {
        Acknowledgement { status, number: self.state.number(), time: now.secs() }
    }

    fn count(&mut self, now: Now) {
        let second = now.instant.0 / 1_000_000_000;
        let (counted, answers, _) = self.load;
        self.load = match second {
            _ if second == counted => (counted, answers + 1, self.load.2),
            _ if second == counted + 1 => (second, 1, answers),
            _ => (second, 1, 0),
        };
    }

    fn look_up(&mut self, name: &LookupName, now: UnixTime) -> Found {
        if !epoch::is_accepted(name.interval, name.epoch, now) {
            self.counters.wrong_epoch += 1;
            return Found::Nothing;
        }
        let place = name.handle.0[15] as usize | (name.handle.0[14] as usize) << 8;
        let place = place % KEPT;
        let kept = self.kept[place].as_ref().filter(|kept| kept.edition == self.edition && kept.name == *name);
        let kept = kept.map(|kept| (kept.slot, kept.sealed));
        let Some(slot) = kept.map(|(slot, _)| slot).or_else(|| self.find(name)) else {
            self.counters.unknown += 1;
            return Found::Nothing;
        };
        let (Some(grant), Some(key)) = (self.state.grant(slot), self.state.key(slot)) else {
            return Found::Nothing;
        };
        let capability = grant.terms.capability(name.epoch);
        let end = epoch::epoch_begin(name.interval, name.epoch.saturating_add(1));
        let rest = u32::try_from(end.saturating_sub(now.secs())).unwrap_or(u32::MAX);
        if let Err(denial) = self.decide(&grant, name.epoch, now) {
            match denial {
                Denial::NotNow { .. } => self.counters.not_now += 1,
                Denial::Revoked => self.counters.revoked += 1,
                Denial::Ended => self.counters.ended += 1,
            }
            return Found::Answer(denial_ttl(denial), Answer::Denied(denial).seal(key, &capability, &self.zone));
        }
        if let Some((_, sealed)) = kept {
            self.counters.repeated += 1;
            self.counters.secrets += 1;
            return Found::Answer(rest, sealed);
        }
        let keys = self.waypoints.get(&grant.terms.waypoint);
        let Some(waypoint) = keys.and_then(|keys| keys.of_epoch(name.interval, name.epoch)) else {
            self.counters.no_key += 1;
            return Found::Failure;
        };
        let secret = EpochSecret::mint(capability, waypoint);
        let sealed = Answer::Secret(secret.key().clone()).seal(key, &capability, &self.zone);
        self.counters.secrets += 1;
        self.kept[place] = Some(Kept { edition: self.edition, name: *name, slot, sealed });
        Found::Answer(rest, sealed)
    }

    fn decide(&self, grant: &Grant, asked: u32, now: UnixTime) -> Result<(), Denial> {
        let begin = epoch::epoch_begin(grant.terms.interval, asked);
        let end = epoch::epoch_begin(grant.terms.interval, asked.saturating_add(1));
        if self.state.is_revoked(&grant.terms, asked) {
            return Err(Denial::Revoked);
        }
        // A secret holds for a whole epoch: it is given if the grant holds in a part of it, and now or ahead of its beginning.
        if grant.not_after < begin.max(now.secs()) || grant.not_before >= end {
            return Err(Denial::Ended);
        }
        match self.policy.denies(&grant.terms, now.secs(), self.load.2) {
            Some(retry_secs) => Err(Denial::NotNow { retry_secs }),
            None => Ok(()),
        }
    }

    fn find(&self, name: &LookupName) -> Option<u32> {
        let index = self.indexes.iter().find(|index| index.interval == name.interval && index.epoch == name.epoch)?;
        index.find(&self.state, &name.handle)
    }

    /// The order, its sender's key, and the change that it needs, if any, or the status to answer with.
    #[allow(clippy::type_complexity, reason = "used once")]
    fn order(
        &mut self,
        octets: &[u8],
        now: UnixTime,
    ) -> Result<(SignedRequest, MasterKey, Result<Option<Signed<Change>>, Status>), Content> {
        let Ok(signed) = SignedRequest::decode(octets) else {
            self.counters.orders_forged += 1;
            return Err(self.no_name());
        };
        let request = signed.request;
        let name = LookupName { interval: request.interval, epoch: request.epoch, handle: request.handle };
        let slot = self.find(&name);
        let found = slot.and_then(|slot| Some((self.state.grant(slot)?, self.state.key(slot)?.clone())));
        let Some((grant, key)) = found.filter(|(_, key)| signed.is_from(key)) else {
            self.counters.orders_forged += 1;
            return Err(self.no_name());
        };
        if request.time.abs_diff(now.secs()) > WINDOW {
            self.counters.orders_clock += 1;
            return Ok((signed, key, Err(Status::Clock)));
        }
        let Some(signer) = &self.signer else {
            // Another server of the zone is the writer.
            self.counters.orders_elsewhere += 1;
            return Err(Content { code: ResponseCode::ServFail, ..Content::default() });
        };
        let body = match request.order {
            Order::Delegate { id, prefix } => {
                let is_current = self.decide_ends(&grant, now);
                delegated(&grant.terms, id, prefix)
                    .filter(|_| is_current)
                    .map(|terms| (self.state.find(&terms).is_some(), ChangeBody::Grant(Grant { terms, ..grant })))
            }
            _ => revocation(&grant.terms, &request)
                .map(|entry| (self.state.is_listed(&entry), ChangeBody::Revoke(entry))),
        };
        let outcome = match body {
            None => Err(Status::NotAllowed),
            Some((true, _)) => Ok(None),
            Some((false, body)) => self.state.sign(body, signer, now).map(Some).map_err(|_| Status::Full),
        };
        if outcome.is_err() {
            self.counters.orders_refused += 1;
        }
        Ok((signed, key, outcome))
    }

    fn decide_ends(&self, grant: &Grant, now: UnixTime) -> bool {
        let current = epoch::epoch_at(grant.terms.interval, now);
        grant.not_after >= now.secs() && !self.state.is_revoked(&grant.terms, current)
    }

    /// A name within the zone that is no message: the apex, a name server, or nothing.
    fn own(&mut self, query: &Query) -> Content {
        let record = |name: &Name, data| Record::from_rdata(name.clone(), STATIC_TTL, data);
        let mut content = Content::default();
        if *query.name() == self.apex {
            match query.query_type() {
                RecordType::SOA => content.answers.push(self.soa(STATIC_TTL)),
                RecordType::NS => {
                    content.answers = self
                        .name_servers
                        .iter()
                        .map(|(name, _)| record(&self.apex, RData::NS(NS(name.clone()))))
                        .collect();
                }
                RecordType::TXT => {
                    content.answers.push(record(&self.apex, RData::TXT(TXT::new(vec![STATIC_TEXT.to_owned()]))));
                }
                _ => return self.no_data(),
            }
            self.counters.static_records += 1;
            return content;
        }
        if let Some((name, addresses)) = self.name_servers.iter().find(|(name, _)| name == query.name()) {
            for address in addresses {
                match (address, query.query_type()) {
                    (IpAddr::V4(v4), RecordType::A) => content.answers.push(record(name, RData::A(A(*v4)))),
                    (IpAddr::V6(v6), RecordType::AAAA) => content.answers.push(record(name, RData::AAAA(AAAA(*v6)))),
                    _ => {}
                }
            }
            self.counters.static_records += 1;
            return if content.answers.is_empty() { self.no_data() } else { content };
        }
        // Not NXDOMAIN: it may be the end of a longer name that exists (RFC 8020, RFC 9156).
        self.counters.nothing += 1;
        self.no_data()
    }

    fn foreign(&mut self) -> Content {
        self.counters.foreign += 1;
        Content { code: ResponseCode::Refused, ..Content::default() }
    }

    fn no_data(&self) -> Content {
        Content { authorities: vec![self.soa(NEGATIVE_TTL)], ..Content::default() }
    }

    fn no_name(&self) -> Content {
        Content { code: ResponseCode::NXDomain, authorities: vec![self.soa(NEGATIVE_TTL)], ..Content::default() }
    }

    fn soa(&self, ttl: u32) -> Record {
        let mname = self.name_servers.first().map_or_else(|| self.apex.clone(), |(name, _)| name.clone());
        let rname = self.apex.prepend_label(HOSTMASTER).unwrap_or_else(|_| self.apex.clone());
        let serial = self.state.number() as u32;
        let [refresh, retry, expire] = SOA_TIMES;
        Record::from_rdata(
            self.apex.clone(),
            ttl,
            RData::SOA(SOA::new(mname, rname, serial, refresh as i32, retry as i32, expire as i32, NEGATIVE_TTL)),
        )
    }

    fn text(&self, query: &Query, ttl: u32, octets: &[u8]) -> Content {
        let data = RData::TXT(TXT::from_bytes(vec![octets]));
        Content { answers: vec![Record::from_rdata(query.name().clone(), ttl, data)], ..Content::default() }
    }

    /// Octets of an answer, at most, and the cookie that the question shows.
    fn limit(&self, question: &Message, length: usize, client: Client, now: Now) -> (usize, Option<Presented>) {
        let presented = question.edns.as_ref().and_then(|edns| match edns.option(EdnsCode::Cookie) {
            Some(EdnsOption::Unknown(_, option)) => Some(self.cookies.read(option, client.address, now.unix.secs())),
            _ => None,
        });
        let payload = question.edns.as_ref().map(|edns| edns.max_payload());
        let limit = limit_of(payload, length, client, presented);
        (limit, presented)
    }

    /// The message with this content, or as much of it as the client may have.
    fn respond(&mut self, question: &Message, length: usize, client: Client, content: Content, now: Now) -> Vec<u8> {
        let mut message = Message::response(question.metadata.id, OpCode::Query);
        message.metadata.recursion_desired = question.metadata.recursion_desired;
        message.metadata.authoritative = matches!(content.code, ResponseCode::NoError | ResponseCode::NXDomain);
        message.metadata.response_code = content.code;
        message.queries.clone_from(&question.queries);
        (message.answers, message.authorities) = (content.answers, content.authorities);
        let (limit, presented) = self.limit(question, length, client, now);
        if question.edns.is_some() {
            let mut edns = Edns::new();
            edns.set_max_payload(MAX_UDP);
            edns.set_rcode_high(content.code.high());
            if let Some(client_part) = presented.and_then(Presented::client) {
                let option = self.cookies.option(client_part, client.address, now.unix.secs());
                edns.options_mut().insert(EdnsOption::Unknown(COOKIE, option));
            }
            message.set_edns(edns);
        }
        let fits = |message: &Message| message.to_vec().ok().filter(|octets| octets.len() <= limit);
        if let Some(octets) = fits(&message).filter(|_| !content.is_cut) {
            return octets;
        }
        // First the cookie goes, then what is of use to caches alone; then the answer, which TCP may have.
        if let Some(edns) = &mut message.edns {
            edns.options_mut().remove(EdnsCode::Cookie);
        }
        if let Some(octets) = fits(&message).filter(|_| !content.is_cut) {
            return octets;
        }
        message.authorities.clear();
        if let Some(octets) = fits(&message).filter(|_| !content.is_cut) {
            return octets;
        }
        self.counters.truncated += 1;
        message.answers.clear();
        message.metadata.truncation = true;
        fits(&message).unwrap_or_else(|| header(question.metadata.id, ResponseCode::FormErr))
    }
}

/// Octets of an answer, at most, to a question of `length` octets.
fn limit_of(payload: Option<u16>, length: usize, client: Client, presented: Option<Presented>) -> usize {
    let payload = payload.map_or(PLAIN_UDP, |payload| usize::from(payload.max(512))).min(usize::from(MAX_UDP));
    match (client.transport, presented) {
        (Transport::Tcp, _) => usize::from(u16::MAX),
        (Transport::Udp, Some(Presented::Good(_))) => payload,
        (Transport::Udp, _) => payload.min(length),
    }
}

/// Labels as they are in messages.
fn wire_name<'a>(labels: impl Iterator<Item = &'a [u8]>) -> impl Iterator<Item = u8> {
    labels.flat_map(|label| std::iter::once(label.len() as u8).chain(label.iter().copied())) // at most 63
}

/// A name's labels, without those of the zone if it lies there.
fn quick_name(name: &Name, apex: &Name) -> (Vec<u8>, bool) {
    let is_within = apex.zone_of(name);
    let own = name.iter().count() - if is_within { apex.iter().count() } else { 0 };
    (wire_name(name.iter().take(own)).collect(), is_within)
}

/// Octets of the answer to a look-up without a cookie; an acknowledgement is shorter.
fn answer_length(question: &Message) -> usize {
    let name: usize = question.queries.iter().flat_map(|query| query.name().iter()).map(|label| label.len() + 1).sum();
    let options = if question.edns.is_some() { OPT } else { 0 };
    HEADER + name + 1 + 4 + ANSWER_RECORD + options
}

fn denial_ttl(denial: Denial) -> u32 {
    match denial {
        Denial::NotNow { retry_secs } => retry_secs.min(DENIAL_TTL),
        Denial::Revoked | Denial::Ended => DENIAL_TTL,
    }
}

/// The shortest answer: a header.
fn header(id: u16, code: ResponseCode) -> Vec<u8> {
    let [high, low] = id.to_be_bytes();
    let mut out = vec![0; HEADER];
    (out[0], out[1], out[2], out[3]) = (high, low, 0x80, code.low());
    out
}

/// The answer to what is no question that we understand; nothing if it is no question at all.
fn reject(octets: &[u8], code: ResponseCode) -> Served {
    match octets {
        [high, low, flags, ..] if octets.len() >= HEADER && flags & 0x80 == 0 => {
            Served::Reply(header(u16::from_be_bytes([*high, *low]), code))
        }
        _ => Served::Nothing,
    }
}
