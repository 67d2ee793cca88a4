//! The key server: DNS questions in, answers out (paper section 4.1).
//!
//! A look-up costs the MAC of its handle, the MAC that makes the secret, and one sealing, or a look into a table if the same was
//! answered lately; who does not hold a capability costs a look into a table. Without a cookie no answer is longer than its question (RFC 7873): what does not fit is truncated, so that
//! TCP follows, and a source prefix has so many answers a second. All that is not a good look-up has the same answer, so that it
//! tells nothing.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::opt::{EdnsCode, EdnsOption};
use hickory_proto::rr::rdata::{A, AAAA, NS, SOA, TXT};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};
use hickory_proto::serialize::binary::{BinDecodable, BinDecoder};
use wayleave_core::wire::Malformed;
use wayleave_core::{Now, UnixTime};
use wayleave_crypto::sign::{SigningKey, VerifyingKey};
use wayleave_crypto::signed::Signed;
use wayleave_packet::platypus::header::{Capability, Interval, Principal};
use wayleave_packet::platypus::mint::{WaypointKeys, epoch};
use wayleave_packet::platypus::sources::Sources;

use super::answer::{Answer, Denial, EpochSecret, SEALED};
use super::channel::RatePayer;
use super::cookie::{CookieKey, Presented};
use super::dns::{COOKIE, COOKIE_OPTION, HEADER, IN_CLASS, OPT, OPT_TYPE, PLAIN_UDP, TXT_TYPE};
use super::holder::{
    CapabilityStatus, DelegationPage, HeldDelegation, HolderContent, HolderReport, HolderUsage, PAGE_DELEGATIONS,
    report_length,
};
use super::index::EpochIndex;
use super::keys::{MasterKey, ProviderKey};
use super::message::{ANSWER_RECORD, MAX_UDP};
use super::name::{LookupName, NameError, RequestName};
use super::order_limits::{OrderBudgets, PastOrders};
use super::plain_question::PlainQuestion;
use super::policy::LookupPolicy;
use super::rate_limit::{RateLimit, Verdict};
use super::refusals::{HeldRefusals, RefusalReport, Refusals};
use super::request::{
    Acknowledgement, Order, SignedRequest, Status, WINDOW, delegated, may_end, revocation, shares_epochs,
};
use super::sealed::SealedSecrets;
use super::state::{Change, ChangeBody, ChangeError, Grant, State};
use super::statement::Statement;
use super::terms::Terms;
use super::usage::RouterNumber;
use super::zone::{MAX_ZONE, Zone};

/// Seconds that the zone's own records, and that nothing, may be cached.
const STATIC_TTL: u32 = 3_600;
const NEGATIVE_TTL: u32 = 5;
/// Seconds that a denial may be cached, at most.
const DENIAL_TTL: u32 = 60;
/// Octets of a character-string, at most (RFC 1035 section 3.3).
const STRING: usize = 255;
/// A sealed answer is one, and its record has a length of one octet.
const _: () = assert!(SEALED < STRING);
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
    /// What signs changes: the same at all key servers of a provider.
    pub signer: SigningKey,
    pub waypoints: HashMap<IpAddr, WaypointKeys>,
    pub policy: LookupPolicy,
    /// Answers by UDP that a source prefix (IPv4 /24, IPv6 /56) has in a second without a cookie; zero for any number.
    pub responses_per_second: u32,
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
    /// A holder asks how its capability stands: find out what it used, and send what [`KeyServer::answer_status`] returns.
    Status(Box<PendingStatus>),
}

/// An order that waits to be durable.
#[derive(Debug)]
pub struct PendingOrder {
    /// Already signed; `None` if it was done before.
    pub change: Option<Signed<Change>>,
    /// This very order was carried out: it costs nothing, and changes nothing whatever happened since.
    pub is_repeated: bool,
    request: SignedRequest,
    digest: [u8; 32],
    key: MasterKey,
    question: Question,
    query: Query,
}

/// A holder's question that waits for what it used.
#[derive(Debug)]
pub struct PendingStatus {
    /// With the times of what it was delegated from.
    pub grant: Grant,
    request: SignedRequest,
    key: MasterKey,
    question: Question,
    query: Query,
}

/// What becomes of an order that its holder may give.
enum Decided {
    /// Nothing: it was carried out.
    Repeated,
    /// Nothing: all is as it wants.
    AsIs,
    Change(Box<Signed<Change>>),
    /// The holder of this asks how it stands.
    Status(Grant),
    Report(HolderReport),
}

/// What an answer repeats of its question beside the name, and what the client may have.
#[derive(Clone, Copy, Debug)]
struct Question {
    id: u16,
    recursion_desired: bool,
    /// It has an OPT record (RFC 6891).
    is_extended: bool,
    /// Octets of an answer, at most.
    limit: usize,
    cookie: Option<Presented>,
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
    /// Holders of a payer's capabilities whose quota of the month is used up.
    used_up,
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
    /// Orders that were carried out, and questions of holders that were looked at.
    orders,
    /// Orders that came again, and were answered as before.
    orders_repeated,
    /// Orders beyond the rate of their capability, their principal or all.
    orders_busy,
    /// Orders with a wrong MAC, or of nobody.
    orders_forged,
    /// Orders that a clock refused.
    orders_clock,
    /// Orders that the capability does not allow, or for which there is no room.
    orders_refused,
    /// Answers beyond the limit of their source prefix that were truncated, so that TCP follows.
    rate_slipped,
    /// Answers beyond the limit of their source prefix that were not sent.
    rate_dropped,
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

/// A key server.
pub struct KeyServer {
    zone: Zone,
    apex: Name,
    hostmaster: Name,
    name_servers: Vec<(Name, Vec<IpAddr>)>,
    cookies: CookieKey,
    rate_limit: RateLimit,
    longest_interval: Interval,
    writer: VerifyingKey,
    signer: SigningKey,
    waypoints: HashMap<IpAddr, WaypointKeys>,
    policy: LookupPolicy,
    state: State,
    indexes: Vec<EpochIndex>,
    sealed: SealedSecrets,
    budgets: OrderBudgets,
    past_orders: PastOrders,
    refusals: Refusals,
    counters: ServerCounters,
    /// The second that is being counted, its answers, and those of the second before.
    load: (u64, u64, u64),
}

impl KeyServer {
    /// A server without accounts.
    ///
    /// # Errors
    /// If a name server has no name.
    pub fn new(config: KeyServerConfig) -> Result<Self, BadNameServer> {
        let KeyServerConfig { zone, name_servers, provider, signer, waypoints, policy, responses_per_second } = config;
        let mut servers = Vec::new();
        for NameServer { name, addresses } in name_servers {
            let absolute = format!("{}.", name.trim_end_matches('.'));
            let parsed = Name::from_ascii(&absolute).ok().filter(|_| absolute.len() <= MAX_ZONE + 64);
            servers.push((parsed.ok_or(BadNameServer(name))?, addresses));
        }
        let apex = super::message::name(&[], &zone);
        Ok(Self {
            cookies: CookieKey::new(&provider.cookie_key()),
            rate_limit: RateLimit::new(provider.rate_limit_key(), responses_per_second),
            longest_interval: Interval::LONGEST,
            state: State::new(provider),
            zone,
            hostmaster: apex.prepend_label("hostmaster").unwrap_or_else(|_| apex.clone()),
            apex,
            name_servers: servers,
            writer: signer.verifying_key(),
            signer,
            waypoints,
            policy,
            indexes: Vec::new(),
            sealed: SealedSecrets::new(),
            budgets: OrderBudgets::new(),
            past_orders: PastOrders::new(),
            refusals: Refusals::default(),
            counters: ServerCounters::default(),
            load: (0, 0, 0),
        })
    }

    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The zone that it answers for.
    #[must_use]
    pub fn zone(&self) -> &Zone {
        &self.zone
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

    /// Other waypoints' keys, another policy and another limit of answers from now on.
    pub fn reload(
        &mut self,
        waypoints: HashMap<IpAddr, WaypointKeys>,
        policy: LookupPolicy,
        responses_per_second: u32,
    ) {
        (self.waypoints, self.policy) = (waypoints, policy);
        self.rate_limit.set(responses_per_second);
        self.sealed.clear();
    }

    /// Signs a statement for one who pays.
    ///
    /// # Errors
    /// If it has more than one may have.
    pub fn sign_statement(&self, statement: &Statement) -> Result<Signed<Statement>, Malformed> {
        Signed::sign(statement, &self.signer)
    }

    /// Signs a change of the operator's.
    ///
    /// # Errors
    /// If the change cannot be made.
    pub fn sign(&self, body: ChangeBody, now: UnixTime) -> Result<Signed<Change>, ChangeError> {
        self.check_interval(&body)?;
        self.state.sign(body, &self.signer, now)
    }

    /// What is granted anew has key epochs no longer than this: so long and twice more a secret is good that was looked up.
    pub fn limit_intervals(&mut self, longest: Interval) {
        self.longest_interval = longest;
    }

    fn check_interval(&self, body: &ChangeBody) -> Result<(), ChangeError> {
        let new = match body {
            ChangeBody::Several(bodies) => return bodies.iter().try_for_each(|body| self.check_interval(body)),
            ChangeBody::Grant(grant) => std::slice::from_ref(&grant.terms),
            ChangeBody::Invite(invitation) => &invitation.terms[..],
            ChangeBody::Redeem { invitation, .. } => {
                self.state.invitation(*invitation).map_or(&[][..], |(invitation, _)| &invitation.terms)
            }
            _ => &[],
        };
        let longest = self.longest_interval;
        let is_longer = |terms: &&Terms| terms.interval > longest && self.state.find(terms).is_none();
        match new.iter().find(is_longer) {
            None => Ok(()),
            Some(terms) => Err(ChangeError::Interval { got: terms.interval.exponent(), longest: longest.exponent() }),
        }
    }

    /// Takes a state over, whatever was before: what a database has.
    pub fn replace(&mut self, state: State) {
        self.state = state;
        // Both name grants by their slots in the state before.
        self.indexes.clear();
        self.sealed.clear();
    }

    /// Takes a durable change over.
    ///
    /// # Errors
    /// If it is not the next one of the writer's. Nothing has changed.
    pub fn apply(&mut self, change: &Signed<Change>) -> Result<(), ChangeError> {
        self.state.apply(change, &self.writer)?;
        let slots = self.take_over(&change.object().body);
        for index in &mut self.indexes {
            slots.iter().for_each(|slot| index.refresh(&self.state, *slot));
        }
        Ok(())
    }

    /// The grants whose handles are others since this change; sealed answers that it makes wrong are forgotten.
    fn take_over(&mut self, body: &ChangeBody) -> Vec<u32> {
        match body {
            ChangeBody::Several(bodies) => bodies.iter().flat_map(|body| self.take_over(body)).collect(),
            ChangeBody::Account { principal, .. } => self.state.slots_of(*principal).collect(),
            ChangeBody::Grant(grant) => self.state.find(&grant.terms).into_iter().collect(),
            ChangeBody::Redeem { invitation, .. } => {
                let invited = self.state.invitation(*invitation).map_or(&[][..], |(invitation, _)| &invitation.terms);
                invited.iter().filter_map(|terms| self.state.find(terms)).collect()
            }
            // It may be that secrets are bound now, or not any more.
            ChangeBody::SetSources(sources) => {
                let slots: BTreeSet<u32> = self.state.slots_of(sources.principal).collect();
                self.sealed.forget(&slots);
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    /// Makes the tables of handles that are asked for now, and soon, by work for at most so many grants; returns whether all is done.
    /// Called at start until it is, and then from time to time. Each length of epochs has its share of the work, so that one whose epochs end
    /// before their tables are made keeps no other from its own.
    pub fn prepare(&mut self, now: UnixTime, most: u32) -> bool {
        let mut left = most;
        self.indexes.retain(|index| epoch::is_accepted(index.interval, index.epoch, now));
        let all = (Interval::SHORTEST.exponent()..=Interval::LONGEST.exponent()).filter_map(Interval::new);
        let mut unfinished: Vec<Interval> = all.filter(|interval| self.state.uses(*interval)).collect();
        loop {
            unfinished.retain(|interval| self.next_index(*interval, now).is_some());
            if unfinished.is_empty() || left == 0 {
                return unfinished.is_empty();
            }
            let share = (left / unfinished.len() as u32).max(1); // at most 21 intervals
            for interval in &unfinished {
                left -= self.prepare_interval(*interval, now, share.min(left));
            }
        }
    }

    /// Makes the tables of one length of epochs; returns how much work that was.
    fn prepare_interval(&mut self, interval: Interval, now: UnixTime, most: u32) -> u32 {
        let mut left = most;
        while left > 0
            && let Some(at) = self.next_index(interval, now)
        {
            left -= self.indexes[at].advance(&self.state, left);
        }
        most - left
    }

    /// The table of this length of epochs that is to be made next: that of the current epoch, of the next, of the last.
    fn next_index(&mut self, interval: Interval, now: UnixTime) -> Option<usize> {
        let current = epoch::epoch_at(interval, now);
        for epoch in [Some(current), current.checked_add(1), current.checked_sub(1)].into_iter().flatten() {
            let at = self.indexes.iter().position(|index| index.interval == interval && index.epoch == epoch);
            let at = at.unwrap_or_else(|| {
                self.indexes.push(EpochIndex::new(interval, epoch, self.state.grants_with(interval)));
                self.indexes.len() - 1
            });
            if !self.indexes[at].is_complete(&self.state) {
                return Some(at);
            }
        }
        None
    }

    /// Handles one message.
    pub fn serve(&mut self, octets: &[u8], client: Client, now: Now) -> Served {
        match PlainQuestion::read(octets, &self.zone) {
            Some(plain) => self.serve_lookup(&plain, octets.len(), client, now),
            None => self.serve_any(octets, client, now),
        }
    }

    /// Answers a message while nothing can be answered.
    pub fn fail(&mut self, octets: &[u8], client: Client, now: Now) -> Served {
        self.reject(octets, ResponseCode::ServFail, client, now)
    }

    /// Handles a look-up as [`Self::serve_any`] does, without making more of the message than its answer needs.
    fn serve_lookup(&mut self, plain: &PlainQuestion<'_>, length: usize, client: Client, now: Now) -> Served {
        let question = Question {
            id: plain.id,
            recursion_desired: plain.recursion_desired,
            is_extended: plain.payload.is_some(),
            ..self.question(plain.payload, plain.cookie, length, client, now)
        };
        let content = match self.rate(&question, now) {
            Verdict::Answer => {
                self.count(now);
                match self.answer_lookup(&question, plain.wire, &plain.name, now) {
                    Ok(octets) => return Served::Reply(octets),
                    Err(content) => content,
                }
            }
            Verdict::Truncate => {
                self.counters.rate_slipped += 1;
                Content::cut()
            }
            Verdict::Drop => {
                self.counters.rate_dropped += 1;
                return Served::Nothing;
            }
        };
        let name = Name::read(&mut BinDecoder::new(plain.wire)).unwrap_or_else(|_| self.apex.clone()); // it was read once
        Served::Reply(self.respond(&question, Query::query(name, RecordType::TXT), content, now))
    }

    /// Handles one message of any shape, by the general decoder: what [`Self::serve`] makes quicker for look-ups, and must agree with.
    pub fn serve_any(&mut self, octets: &[u8], client: Client, now: Now) -> Served {
        let Ok(mut message) = Message::from_vec(octets) else {
            return self.reject(octets, ResponseCode::FormErr, client, now);
        };
        if message.metadata.message_type != MessageType::Query {
            self.counters.malformed += 1;
            return Served::Nothing;
        }
        if message.metadata.op_code != OpCode::Query {
            return self.reject(octets, ResponseCode::NotImp, client, now);
        }
        let (Some(query), true) = (message.queries.pop(), message.queries.is_empty()) else {
            return self.reject(octets, ResponseCode::FormErr, client, now);
        };
        let edns = message.edns.as_ref();
        let cookie = edns.and_then(|edns| match edns.option(EdnsCode::Cookie) {
            Some(EdnsOption::Unknown(_, option)) => Some(&option[..]),
            _ => None,
        });
        let question = Question {
            id: message.metadata.id,
            recursion_desired: message.metadata.recursion_desired,
            is_extended: edns.is_some(),
            ..self.question(edns.map(Edns::max_payload), cookie, octets.len(), client, now)
        };
        match self.rate(&question, now) {
            Verdict::Answer => {}
            Verdict::Truncate => {
                self.counters.rate_slipped += 1;
                return Served::Reply(self.respond(&question, query, Content::cut(), now));
            }
            Verdict::Drop => {
                self.counters.rate_dropped += 1;
                return Served::Nothing;
            }
        }
        if edns.is_some_and(|edns| edns.version() != 0) {
            let content = Content { code: ResponseCode::BADVERS, ..Content::default() };
            return Served::Reply(self.respond(&question, query, content, now));
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
                Ok(RequestName::Lookup(name)) => {
                    match self.answer_lookup(&question, &wire_name(query.name()), &name, now) {
                        Ok(octets) => return Served::Reply(octets),
                        Err(content) => content,
                    }
                }
                // Before anything is computed or done: it would be asked for again by TCP.
                Ok(_) if answer_length(&question, &wire_name(query.name())) > question.limit => Content::cut(),
                Ok(RequestName::Signed(request)) => match self.order(&request, (&question, &query), now) {
                    Err(content) => content,
                    Ok((request, key, Ok(Decided::Report(report)))) => text(&query, &report.seal(&request, &key)),
                    Ok((request, key, Ok(Decided::Status(grant)))) => {
                        return Served::Status(Box::new(PendingStatus { grant, request, key, question, query }));
                    }
                    Ok((request, key, Err(status))) => {
                        let acknowledgement = self.acknowledgement(status, now.unix);
                        text(&query, &acknowledgement.encode(&request, &key))
                    }
                    Ok((request, key, Ok(decided))) => {
                        let (is_repeated, change) = match decided {
                            Decided::Repeated => (true, None),
                            Decided::Change(change) => (false, Some(*change)),
                            _ => (false, None),
                        };
                        let digest = request.digest();
                        let order = PendingOrder { change, is_repeated, request, digest, key, question, query };
                        return Served::Order(Box::new(order));
                    }
                },
            }
        } else {
            self.foreign()
        };
        Served::Reply(self.respond(&question, query, content, now))
    }

    /// The answer to a look-up of the holder's, or what else there is to say.
    fn answer_lookup(
        &mut self,
        question: &Question,
        wire: &[u8],
        name: &LookupName,
        now: Now,
    ) -> Result<Vec<u8>, Content> {
        // Before anything is computed: it would be asked for again by TCP.
        if answer_length(question, wire) > question.limit {
            return Err(Content::cut());
        }
        let (ttl, sealed) = self.look_up(name, now.unix)?;
        Ok(self.sealed_answer(question, wire, ttl, &sealed, now))
    }

    /// The answer to what is no question that we understand; nothing if it is no question at all.
    fn reject(&mut self, octets: &[u8], code: ResponseCode, client: Client, now: Now) -> Served {
        self.counters.malformed += 1;
        let [high, low, flags, ..] = octets else { return Served::Nothing };
        if octets.len() < HEADER || flags & 0x80 != 0 {
            return Served::Nothing;
        }
        // Beyond the limit nothing is truncated: there is no question to ask again.
        if client.transport == Transport::Udp && self.rate_limit.take(client.address, now.instant) != Verdict::Answer {
            self.counters.rate_dropped += 1;
            return Served::Nothing;
        }
        Served::Reply(header(u16::from_be_bytes([*high, *low]), code))
    }

    /// What becomes of the answer to a question: who has a good cookie, or a connection, receives at its address.
    fn rate(&mut self, question: &Question, now: Now) -> Verdict {
        match (question.client.transport, question.cookie) {
            (Transport::Tcp, _) | (_, Some(Presented::Good(_))) => Verdict::Answer,
            (Transport::Udp, _) => self.rate_limit.take(question.client.address, now.instant),
        }
    }

    /// The answer to an order that is durable and applied, or that cannot be carried out.
    pub fn acknowledge(&mut self, order: &PendingOrder, outcome: Result<(), Status>, now: Now) -> Vec<u8> {
        let status = match outcome {
            Ok(()) if order.is_repeated => {
                self.counters.orders_repeated += 1;
                Status::Done
            }
            Ok(()) => {
                self.counters.orders += 1;
                // Not before it is durable: an order that could not be written may be given again.
                self.past_orders.insert(&order.digest, Status::Done, now.instant);
                Status::Done
            }
            Err(status) => {
                self.counters.orders_refused += 1;
                status
            }
        };
        let acknowledgement = self.acknowledgement(status, now.unix).encode(&order.request, &order.key);
        self.respond(&order.question, order.query.clone(), text(&order.query, &acknowledgement), now)
    }

    /// The answer to a holder that asks how its capability stands; `usage` is what it used, where that is known.
    pub fn answer_status(&mut self, status: &PendingStatus, usage: Option<HolderUsage>, now: Now) -> Vec<u8> {
        let PendingStatus { grant, request, key, question, query } = status;
        let terms = &grant.terms;
        let payer = RatePayer { principal: terms.principal, delegation: terms.delegation.map(|held| held.id) };
        let report = self.report(
            HolderContent::Status(CapabilityStatus {
                not_before: grant.not_before,
                not_after: grant.not_after,
                denied: self.decide(grant, epoch::epoch_at(terms.interval, now.unix), now.unix).err(),
                delegations: self.state.delegations_below(terms).len() as u32, // at most `MAX_GRANTS`
                rate: self.state.rate_of(&payer),
                month_octets: self.state.volume(&payer).and_then(|status| status.quota.hard),
                usage,
            }),
            now.unix,
        );
        self.respond(question, query.clone(), text(query, &report.seal(request, key)), now)
    }

    /// Takes over what a router refused, in the place of what it reported before.
    pub fn take_refusals(&mut self, router: RouterNumber, report: RefusalReport, received: UnixTime) {
        let Self { refusals, state, .. } = self;
        refusals.take(router, report, received, |principal| state.account(principal).is_some());
    }

    /// Forgets what other routers than these refused.
    pub fn retain_refusals(&mut self, routers: &BTreeSet<RouterNumber>) {
        self.refusals.retain(routers);
    }

    /// What was refused to an account, as its routers have reported it to this server.
    #[must_use]
    pub fn refusals_of(&self, principal: Principal) -> HeldRefusals {
        let of = self.state.reopened().iter().filter(|one| one.principal == principal.number());
        self.refusals.of(principal, of.map(|one| one.at).max().unwrap_or(0))
    }

    fn report(&self, content: HolderContent, now: UnixTime) -> HolderReport {
        HolderReport { number: self.state.number(), time: now.secs(), content }
    }

    /// A page of what the holder of `terms` delegated.
    fn delegations(&self, terms: &Terms, from: u32, now: UnixTime) -> DelegationPage {
        let all = self.state.delegations_below(terms);
        let (principal, epoch) = (terms.principal, epoch::epoch_at(terms.interval, now));
        let page = all.iter().skip(from as usize).take(PAGE_DELEGATIONS);
        let delegations = page.filter_map(|grant| {
            let held = grant.terms.delegation?;
            let denied = match () {
                () if self.state.is_revoked(&grant.terms, epoch) => Some(Denial::Revoked),
                () if grant.not_after < now.secs() => Some(Denial::Ended),
                () if self.state.is_used_up(&grant.terms, epoch) => Some(Denial::UsedUp),
                () => None,
            };
            let payer = RatePayer { principal, delegation: Some(held.id) };
            Some(HeldDelegation {
                id: (held.id, held.sub.map(|sub| sub.id)),
                prefix: held.prefix,
                not_after: grant.not_after,
                denied,
                rate: self.state.rate_of(&payer),
                month_octets: self.state.limit_of(&payer).month_octets,
            })
        });
        DelegationPage { all: all.len() as u32, from, delegations: delegations.collect() }
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

    /// TTL and sealed answer for the holder of a capability.
    fn look_up(&mut self, name: &LookupName, now: UnixTime) -> Result<(u32, [u8; SEALED]), Content> {
        if !epoch::is_accepted(name.interval, name.epoch, now) {
            self.counters.wrong_epoch += 1;
            return Err(self.no_name());
        }
        let kept = self.sealed.find(name, &self.state).map(|(slot, sealed)| (slot, *sealed));
        let Some(slot) = kept.map(|(slot, _)| slot).or_else(|| self.find(name)) else {
            self.counters.unknown += 1;
            return Err(self.no_name());
        };
        let (Some(grant), Some(key)) = (self.state.capped(slot), self.state.key(slot)) else {
            return Err(self.no_name());
        };
        let capability = grant.terms.capability(name.epoch);
        let end = epoch::epoch_begin(name.interval, name.epoch.saturating_add(1));
        let (answer, ttl) = match self.decide(&grant, name.epoch, now) {
            Err(denial) => (Answer::Denied(denial), denial_ttl(denial)),
            Ok(()) => {
                let rest = u32::try_from(end.saturating_sub(now.secs())).unwrap_or(u32::MAX);
                if let Some((_, sealed)) = kept {
                    self.counters.secrets += 1;
                    return Ok((rest, sealed));
                }
                let keys = self.waypoints.get(&grant.terms.waypoint);
                let Some(waypoint) = keys.and_then(|keys| keys.of_epoch(name.interval, name.epoch)) else {
                    self.counters.no_key += 1;
                    return Err(Content { code: ResponseCode::ServFail, ..Content::default() });
                };
                // Handle and sealing are those of the terms, which have no marks.
                let marks = self.state.marks_of(&grant.terms);
                let secret = EpochSecret::mint(Capability { marks, ..capability }, waypoint);
                (Answer::Secret { key: secret.key().clone(), marks }, rest)
            }
        };
        let sealed = answer.seal(key, &capability, &self.zone);
        match answer {
            Answer::Secret { .. } => {
                self.counters.secrets += 1;
                self.sealed.keep(name, slot, key, &sealed);
            }
            Answer::Denied(Denial::NotNow { .. }) => self.counters.not_now += 1,
            Answer::Denied(Denial::Revoked) => self.counters.revoked += 1,
            Answer::Denied(Denial::Ended) => self.counters.ended += 1,
            Answer::Denied(Denial::UsedUp) => self.counters.used_up += 1,
        }
        Ok((ttl, sealed))
    }

    /// Whether the holder of a grant with these times has the secret of the epoch that was asked for.
    fn decide(&self, grant: &Grant, requested: u32, now: UnixTime) -> Result<(), Denial> {
        let begin = epoch::epoch_begin(grant.terms.interval, requested);
        let end = epoch::epoch_begin(grant.terms.interval, requested.saturating_add(1));
        if self.state.is_revoked(&grant.terms, requested) {
            return Err(Denial::Revoked);
        }
        // A secret holds for a whole epoch: it is given if the grant holds in a part of it, and now or ahead of its beginning.
        if grant.not_after < begin.max(now.secs()) || grant.not_before >= end {
            return Err(Denial::Ended);
        }
        if self.state.is_used_up(&grant.terms, requested) {
            return Err(Denial::UsedUp);
        }
        match self.policy.denies(&grant.terms, begin.max(now.secs()), end, self.load.2) {
            Some(retry_secs) => Err(Denial::NotNow { retry_secs }),
            None => Ok(()),
        }
    }

    fn find(&self, name: &LookupName) -> Option<u32> {
        let index = self.indexes.iter().find(|index| index.interval == name.interval && index.epoch == name.epoch)?;
        index.find(&self.state, &name.handle)
    }

    /// The order, its sender's key, and what is to be done, or the status to answer with.
    #[allow(clippy::type_complexity, reason = "used once")]
    fn order(
        &mut self,
        octets: &[u8],
        (question, query): (&Question, &Query),
        now: Now,
    ) -> Result<(SignedRequest, MasterKey, Result<Decided, Status>), Content> {
        let Ok(signed) = SignedRequest::decode(octets) else {
            self.counters.orders_forged += 1;
            return Err(self.no_name());
        };
        let request = signed.request;
        // Before anything is done: it would be asked for again by TCP.
        let report = report_length(&request.order);
        if report.is_some_and(|octets| text_length(question, query, octets) > question.limit) {
            return Err(Content::cut());
        }
        let name = LookupName { interval: request.interval, epoch: request.epoch, handle: request.handle };
        let slot = self.find(&name);
        let found = slot.and_then(|slot| Some((self.state.capped(slot)?, self.state.key(slot)?.clone())));
        let Some((grant, key)) = found.filter(|(_, key)| signed.is_from(key)) else {
            self.counters.orders_forged += 1;
            return Err(self.no_name());
        };
        // Before the past orders are looked at: these are forgotten after a few windows, and an older order would be carried out again.
        if request.time.abs_diff(now.unix.secs()) > WINDOW {
            self.counters.orders_clock += 1;
            return Ok((signed, key, Err(Status::Clock)));
        }
        // What comes again counts for no rate, so that who repeats others' orders uses up nothing of theirs.
        let digest = signed.digest();
        match self.past_orders.answered(&digest) {
            // It is answered once, since it costs as much each time; who lost the answer asks anew.
            Some(Status::Done) if report.is_some() => {
                self.counters.orders_repeated += 1;
                return Ok((signed, key, Err(Status::Busy)));
            }
            Some(Status::Done) => return Ok((signed, key, Ok(Decided::Repeated))),
            Some(status) => {
                self.counters.orders_repeated += 1;
                return Ok((signed, key, Err(status)));
            }
            None => {}
        }
        if !self.budgets.take(&grant.terms, now.instant) {
            self.counters.orders_busy += 1;
            return Ok((signed, key, Err(Status::Busy)));
        }
        if report.is_some() {
            self.counters.orders += 1;
            self.past_orders.insert(&digest, Status::Done, now.instant);
            let content = match request.order {
                Order::Delegations { from } => {
                    HolderContent::Delegations(self.delegations(&grant.terms, from, now.unix))
                }
                // Routers count by principals, and what others of a principal were refused is not a delegate's to know.
                Order::Refusals if grant.terms.delegation.is_some() => {
                    return Ok((signed, key, Err(Status::NotAllowed)));
                }
                Order::Refusals => HolderContent::Refusals(self.refusals_of(grant.terms.principal)),
                _ => return Ok((signed, key, Ok(Decided::Status(grant)))),
            };
            return Ok((signed, key, Ok(Decided::Report(self.report(content, now.unix)))));
        }
        let outcome = self.change_of(&request.order, &grant, &signed, now.unix).and_then(|body| match body {
            None => Ok(Decided::AsIs),
            Some(body) => {
                let change = self.state.sign(body, &self.signer, now.unix);
                change.map(|change| Decided::Change(Box::new(change))).map_err(|error| match error {
                    ChangeError::SourcesBeyond => Status::NotAllowed,
                    _ => Status::Full,
                })
            }
        });
        if let Err(status) = outcome {
            self.counters.orders_refused += 1;
            self.past_orders.insert(&digest, status, now.instant);
        }
        Ok((signed, key, outcome))
    }

    /// The change that an order of the holder of `grant` needs; none if all is as it wants.
    fn change_of(
        &self,
        order: &Order,
        grant: &Grant,
        signed: &SignedRequest,
        now: UnixTime,
    ) -> Result<Option<ChangeBody>, Status> {
        if let Order::Delegate { id, prefix, until } = *order {
            let terms = delegated(&grant.terms, id, prefix).filter(|_| self.decide_ends(grant, now));
            let terms = terms.filter(|_| until.is_none_or(|until| until > now.secs())).ok_or(Status::NotAllowed)?;
            // It is answered no sooner and no longer than what it is delegated from, also when that is renewed.
            let wanted = Grant { terms, not_before: 0, not_after: until.unwrap_or(u64::MAX) };
            return match self.state.find(&terms).and_then(|slot| self.state.grant(slot)) {
                Some(held) if held.not_after == wanted.not_after => Ok(None),
                None if !self.state.is_within_delegation_quota(&grant.terms) => Err(Status::Full),
                _ => Ok(Some(ChangeBody::Grant(wanted))),
            };
        }
        if let Order::Withdraw { id, sub } = *order {
            if !may_end(&grant.terms, id, sub) || !self.decide_ends(grant, now) {
                return Err(Status::NotAllowed);
            }
            let is_there = self.state.has_delegation(&grant.terms, id, sub);
            if is_there && !self.state.is_within_withdrawal_quota(grant.terms.principal, now.secs()) {
                return Err(Status::Full);
            }
            return Ok(
                is_there.then_some(ChangeBody::WithdrawDelegation { holder: grant.terms, delegation: (id, sub) })
            );
        }
        if let Order::Sources { id, prefixes } = *order {
            let is_own = grant.terms.delegation.is_none() && self.state.has_delegation(&grant.terms, id, None);
            if !is_own || !self.decide_ends(grant, now) {
                return Err(Status::NotAllowed);
            }
            let (principal, prefixes) = (grant.terms.principal, prefixes.iter().collect());
            let sources = Sources { principal, delegation: Some(id), delegates_any: false, prefixes };
            return match self.state.has_sources(&sources) {
                true => Ok(None),
                false if !self.state.is_within_sources_quota(&sources) => Err(Status::Full),
                false => Ok(Some(ChangeBody::SetSources(sources))),
            };
        }
        if let Order::Limit { id, limit } = *order {
            let payer = RatePayer { principal: grant.terms.principal, delegation: Some(id) };
            // Routers have rates of principals and of delegations, and none of what was handed on.
            let is_own = grant.terms.delegation.is_none() && self.state.has_delegation(&grant.terms, id, None);
            if !is_own || !limit.is_sound() || !self.decide_ends(grant, now) {
                return Err(Status::NotAllowed);
            }
            return match self.state.limit_of(&payer) {
                held if held == limit => Ok(None),
                _ if !self.state.is_within_limit_quota(&payer, &limit) => Err(Status::Full),
                _ => Ok(Some(ChangeBody::LimitDelegation { payer, limit })),
            };
        }
        let entry = revocation(&grant.terms, &signed.request).ok_or(Status::NotAllowed)?;
        if self.state.is_listed(&entry) {
            return Ok(None);
        }
        let mut others = self.state.grants_of(grant.terms.principal).filter(|other| other.not_after >= now.secs());
        if entry.epoch.is_some() && others.any(|other| shares_epochs(&grant.terms, &other.terms)) {
            return Err(Status::Shared);
        }
        if entry.epoch.is_none() && !self.state.is_within_revocation_quota(&grant.terms, &entry) {
            return Err(Status::Full);
        }
        Ok(Some(ChangeBody::Revoke(entry)))
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
        let rname = self.hostmaster.clone();
        let serial = self.state.number() as u32;
        let minimum = NEGATIVE_TTL;
        Record::from_rdata(
            self.apex.clone(),
            ttl,
            RData::SOA(SOA::new(mname, rname, serial, 3_600, 600, 86_400, minimum)),
        )
    }

    /// Who asks with this OPT record in `length` octets, and what the answer may have.
    fn question(
        &self,
        payload: Option<u16>,
        cookie: Option<&[u8]>,
        length: usize,
        client: Client,
        now: Now,
    ) -> Question {
        let cookie = cookie.map(|option| self.cookies.read(option, client.address, now.unix.secs()));
        let payload = payload.map_or(PLAIN_UDP, |payload| usize::from(payload.max(512)));
        let payload = payload.min(usize::from(MAX_UDP));
        let limit = match (client.transport, cookie) {
            (Transport::Tcp, _) => usize::from(u16::MAX),
            (Transport::Udp, Some(Presented::Good(_))) => payload,
            (Transport::Udp, _) => payload.min(length),
        };
        Question { id: 0, recursion_desired: false, is_extended: false, limit, cookie, client }
    }

    /// The cookie option of an answer, if the question has one that is well-formed.
    fn cookie(&self, question: &Question, now: Now) -> Option<Vec<u8>> {
        let client_part = question.cookie.and_then(Presented::client)?;
        Some(self.cookies.option(client_part, question.client.address, now.unix.secs()))
    }

    /// The message with this content, or as much of it as the client may have.
    fn respond(&mut self, question: &Question, query: Query, content: Content, now: Now) -> Vec<u8> {
        let mut message = Message::response(question.id, OpCode::Query);
        message.metadata.recursion_desired = question.recursion_desired;
        message.metadata.authoritative = matches!(content.code, ResponseCode::NoError | ResponseCode::NXDomain);
        message.metadata.response_code = content.code;
        (message.answers, message.authorities) = (content.answers, content.authorities);
        if question.is_extended {
            let mut edns = Edns::new();
            edns.set_max_payload(MAX_UDP);
            edns.set_rcode_high(content.code.high());
            if let Some(cookie) = self.cookie(question, now) {
                edns.options_mut().insert(EdnsOption::Unknown(COOKIE, cookie));
            }
            message.set_edns(edns);
        }
        message.queries.push(query);
        let fits = |message: &Message| message.to_vec().ok().filter(|octets| octets.len() <= question.limit);
        if !content.is_cut {
            if let Some(octets) = fits(&message) {
                return octets;
            }
            // First the cookie goes, then what is of use to caches alone; then the answer, which TCP may have.
            if message.edns.as_mut().is_some_and(|edns| {
                let has_cookie = edns.option(EdnsCode::Cookie).is_some();
                edns.options_mut().remove(EdnsCode::Cookie);
                has_cookie
            }) && let Some(octets) = fits(&message)
            {
                return octets;
            }
            message.authorities.clear();
            if let Some(octets) = fits(&message) {
                return octets;
            }
        }
        self.counters.truncated += 1;
        message.answers.clear();
        message.authorities.clear();
        message.metadata.truncation = true;
        if let Some(octets) = fits(&message) {
            return octets;
        }
        if let Some(edns) = &mut message.edns {
            edns.options_mut().remove(EdnsCode::Cookie);
        }
        fits(&message).unwrap_or_else(|| header(question.id, ResponseCode::FormErr))
    }

    /// The answer to a look-up, octet for octet as [`Self::respond`] writes it, at a fraction of its cost: one TXT record, which
    /// the caller has seen to fit.
    fn sealed_answer(&self, question: &Question, wire: &[u8], ttl: u32, sealed: &[u8; SEALED], now: Now) -> Vec<u8> {
        let mut out = Vec::with_capacity(answer_length(question, wire) + COOKIE_OPTION);
        out.extend_from_slice(&question.id.to_be_bytes());
        // QR, AA, RD as asked; one question, one answer, and the OPT record.
        out.extend_from_slice(&[0x84 | u8::from(question.recursion_desired), 0]);
        out.extend_from_slice(&[0, 1, 0, 1, 0, 0, 0, u8::from(question.is_extended)]);
        out.extend_from_slice(wire);
        out.extend_from_slice(&[0, TXT_TYPE, 0, IN_CLASS]);
        // The name of the question, which begins behind the header.
        out.extend_from_slice(&[0xc0, HEADER as u8, 0, TXT_TYPE, 0, IN_CLASS]);
        out.extend_from_slice(&ttl.to_be_bytes());
        out.extend_from_slice(&[0, 1 + SEALED as u8, SEALED as u8]);
        out.extend_from_slice(sealed);
        if question.is_extended {
            let [high, low] = MAX_UDP.to_be_bytes();
            out.extend_from_slice(&[0, 0, OPT_TYPE, high, low, 0, 0, 0, 0]);
            let fits = out.len() + 2 + COOKIE_OPTION <= question.limit;
            match self.cookie(question, now).filter(|_| fits) {
                Some(cookie) => {
                    out.extend_from_slice(&[0, COOKIE_OPTION as u8, 0, COOKIE as u8, 0, cookie.len() as u8]);
                    out.extend_from_slice(&cookie);
                }
                None => out.extend_from_slice(&[0, 0]),
            }
        }
        out
    }
}

impl Content {
    fn cut() -> Self {
        Self { is_cut: true, ..Self::default() }
    }
}

/// A text for this question alone, in as many strings as it needs: it is never cached.
fn text(query: &Query, octets: &[u8]) -> Content {
    let data = RData::TXT(TXT::from_bytes(octets.chunks(STRING).collect()));
    Content { answers: vec![Record::from_rdata(query.name().clone(), 0, data)], ..Content::default() }
}

/// Octets of the answer to a look-up without a cookie; an acknowledgement is shorter.
fn answer_length(question: &Question, wire: &[u8]) -> usize {
    let options = if question.is_extended { OPT } else { 0 };
    HEADER + wire.len() + 4 + ANSWER_RECORD + options
}

/// The same of an answer with a text of so many octets.
fn text_length(question: &Question, query: &Query, octets: usize) -> usize {
    answer_length(question, &wire_name(query.name())) - SEALED - 1 + octets + octets.div_ceil(STRING)
}

/// A name's labels behind their lengths, the root's at the end.
fn wire_name(name: &Name) -> Vec<u8> {
    let mut out = Vec::with_capacity(name.len() + 1);
    for label in name {
        out.push(label.len() as u8); // at most 63
        out.extend_from_slice(label);
    }
    out.push(0);
    out
}

fn denial_ttl(denial: Denial) -> u32 {
    match denial {
        Denial::NotNow { retry_secs } => retry_secs.min(DENIAL_TTL),
        Denial::Revoked | Denial::Ended | Denial::UsedUp => DENIAL_TTL,
    }
}

/// The shortest answer: a header.
fn header(id: u16, code: ResponseCode) -> Vec<u8> {
    let [high, low] = id.to_be_bytes();
    let mut out = vec![0; HEADER];
    (out[0], out[1], out[2], out[3]) = (high, low, 0x80, code.low());
    out
}
