//! The key server's end of the channel with its provider's routers: it takes usage, hands out the list of revocations, and leases
//! rates. Without I/O: links, the store and the clock are its driver's.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use wayleave_core::wire::Malformed;
use wayleave_core::{IdentityKey, Instant, Machine, Now, UnixTime};

use super::channel::{ChannelMessage, ChargedAccount, MAX_LIST, MAX_RATES, PIECE, RatePayer, RateTerms, SharedRate};
use super::state::ChangeTimes;
use super::usage::{
    Fold, JournalId, Ledger, Reopening, RouterNumber, UsageAnswer, UsageRecord, UsageRefusal, UsageReport,
};
use crate::leases::{LeaseRequest, Lessor, floor};

/// Totals, and batches of them, that wait to be durable, at most: beyond, reports are left unanswered, and routers repeat them.
const MAX_UNDURABLE: usize = 1 << 16;
const MAX_BATCHES: usize = 1_024;
/// Seconds after its end for which usage of a key epoch is kept as it was reported: a year, and a month to bill it.
const KEPT_SECS: u64 = 400 * DAY_SECS;
const DAY_SECS: u64 = 86_400;
/// Totals that are looked at for folding at a time.
const FOLDED: usize = 5_000;
/// How long a router may go on by the rates that it was told before.
const TELLING: Duration = Duration::from_secs(10);
/// After this time nothing is left of what was given.
const FORGOTTEN: Duration = Duration::from_secs(400);
/// Answers that wait for the store, at most: a router has one report under way at a time.
const MAX_WAITING: usize = 4_096;

/// What a provider's key server knows of its routers.
pub struct RouterServerConfig {
    /// Who they are, each with its number.
    pub routers: BTreeMap<IdentityKey, RouterNumber>,
    /// Rates that they share; each of the routers has a floor in every one.
    pub rates: BTreeMap<RatePayer, RateTerms>,
    /// What the store has.
    pub ledger: Ledger<ChargedAccount>,
    /// Routers that had a later list than the database has, or one of another, by what the store has; and the number of that list.
    pub ahead: BTreeMap<RouterNumber, u64>,
}

pub enum RouterServerInput {
    Connected {
        link: u64,
        peer: IdentityKey,
    },
    Frame {
        link: u64,
        octets: Vec<u8>,
    },
    Disconnected {
        link: u64,
    },
    /// The batch of [`RouterServerOutput::Persist`] with this number is durable.
    Persisted(u64),
    /// The list of revocations in force: its number, its octets with the signature, and when changes of its state were signed.
    List {
        number: u64,
        octets: Arc<[u8]>,
        times: ChangeTimes,
    },
    /// Time to close what is long over, and to fold a part of what is closed; the operator closed the time up to this Unix second, or
    /// none (0).
    Settle {
        closed: u64,
    },
    /// The number of an account that was closed has another owner.
    Reopened(Reopening),
    /// Other routers or rates are configured.
    Configure {
        routers: BTreeMap<IdentityKey, RouterNumber>,
        rates: BTreeMap<RatePayer, RateTerms>,
    },
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RouterServerOutput {
    Send {
        link: u64,
        octets: Vec<u8>,
    },
    Close {
        link: u64,
        why: &'static str,
    },
    /// To be durable at once.
    Persist(UsageBatch),
    Event(RouterEvent),
}

/// Changes of what the store has.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct UsageBatch {
    pub id: u64,
    pub records: Vec<UsageRecord<ChargedAccount>>,
    /// Totals that are in sums of `records` now.
    pub removed: Vec<(RouterNumber, JournalId, ChargedAccount)>,
    /// Time is closed up to this Unix second.
    pub closed: Option<u64>,
    /// Up to when routers have reported everything.
    pub confirmed: Vec<(RouterNumber, u64)>,
    pub reopened: Option<Reopening>,
    /// A router has a list of another database than this one, with this number; or has one no longer.
    pub ahead: Option<(RouterNumber, Option<u64>)>,
}

/// What the operator should know.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RouterEvent {
    Connected(RouterNumber),
    Disconnected(RouterNumber),
    /// Whoever connected is none of the routers.
    Stranger(IdentityKey),
    Malformed {
        router: RouterNumber,
        error: Malformed,
    },
    /// A message that a router never sends.
    Unexpected(RouterNumber),
    Refused {
        router: RouterNumber,
        why: UsageRefusal,
    },
    /// The usage of key epochs that had ended at this Unix second is closed.
    Closed(u64),
    /// The router's totals are older than those that it reported before, or another router's.
    Behind(RouterNumber),
    /// The router reported usage of closed time, which is on the next statement.
    Late(RouterNumber),
    /// The router reported usage of time that was closed before it was configured, which is on no statement.
    TooLate(RouterNumber),
    /// The router goes on by another rate than this, and not because it has just been told another one.
    Differs {
        router: RouterNumber,
        rate: SharedRate,
    },
    /// The router has a list of revocations that is later than this server's, or of another database under the same numbers: the database
    /// was set back.
    Ahead {
        router: RouterNumber,
        has: u64,
        own: u64,
    },
}

/// A router as the server sees it.
#[derive(Clone, Debug, Default)]
pub struct RouterStatus {
    /// Its link, if it is connected.
    pub link: Option<u64>,
    /// The number of the list of revocations that it has, as far as it has said so or was sent one.
    pub list: Option<u64>,
    /// Whether it wants lists.
    pub follows: bool,
    /// When it was last told all rates, if it wants to be.
    pub told: Option<Instant>,
    /// Whether it was said on this link that it goes on by others.
    differs: bool,
    /// Whether its list is later than this server's, or was at some time and it is not known whether the database has what that list
    /// has; or is of another database. The server's was set back, and it is sent no other list.
    pub is_ahead: bool,
    /// Reports that were taken since the server's start, and refused ones.
    pub reports: u64,
    pub refused: u64,
    /// Totals in reports that are on no statement: of time that was closed before the router was configured.
    pub too_late: u64,
}

/// An answer that waits for the store.
struct Waiting {
    persisted: u64,
    link: u64,
    answer: UsageAnswer,
}

/// Who is at the other end of a link, and the number that it had when it connected.
struct Link {
    peer: IdentityKey,
    number: RouterNumber,
}

/// The machine.
pub struct RouterServer {
    routers: BTreeMap<IdentityKey, RouterNumber>,
    links: BTreeMap<u64, Link>,
    status: BTreeMap<RouterNumber, RouterStatus>,
    rates: BTreeMap<RatePayer, RateTerms>,
    lessors: BTreeMap<RatePayer, Lessor>,
    /// When the server began, and when rates were taken out: routers may use what was given of these before.
    begun: Instant,
    taken_out: BTreeMap<RatePayer, Instant>,
    ledger: Ledger<ChargedAccount>,
    list: Option<(u64, Arc<[u8]>)>,
    /// When changes of the list's state were signed.
    times: ChangeTimes,
    /// Routers that have a list of another database, and those that were reported to the operator since the start.
    ahead: BTreeMap<RouterNumber, u64>,
    reported: BTreeSet<RouterNumber>,
    waiting: VecDeque<Waiting>,
    submitted: u64,
    persisted: u64,
    /// Numbers of records in batches that are not durable.
    undurable: VecDeque<(u64, usize)>,
    outputs: VecDeque<RouterServerOutput>,
}

impl RouterServer {
    #[must_use]
    pub fn new(config: RouterServerConfig, now: Instant) -> Self {
        let mut server = Self {
            routers: BTreeMap::new(),
            links: BTreeMap::new(),
            status: BTreeMap::new(),
            rates: BTreeMap::new(),
            lessors: BTreeMap::new(),
            begun: now,
            taken_out: BTreeMap::new(),
            ledger: config.ledger,
            list: None,
            times: ChangeTimes::default(),
            ahead: config.ahead,
            reported: BTreeSet::new(),
            waiting: VecDeque::new(),
            submitted: 0,
            persisted: 0,
            undurable: VecDeque::new(),
            outputs: VecDeque::new(),
        };
        server.configure(config.routers, config.rates, now);
        server
    }

    /// What routers reported.
    #[must_use]
    pub fn ledger(&self) -> &Ledger<ChargedAccount> {
        &self.ledger
    }

    /// The routers, by number.
    #[must_use]
    pub fn status(&self) -> &BTreeMap<RouterNumber, RouterStatus> {
        &self.status
    }

    /// Answers that wait for the store.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    fn configure(
        &mut self,
        routers: BTreeMap<IdentityKey, RouterNumber>,
        rates: BTreeMap<RatePayer, RateTerms>,
        now: Instant,
    ) {
        let numbers: BTreeSet<RouterNumber> = routers.values().copied().collect();
        // By identity: another router with the number of one has nothing of what that may use.
        let replaced = self.routers.iter().filter(|(identity, number)| routers.get(*identity) != Some(number));
        let replaced: Vec<RouterNumber> = replaced.map(|(_, number)| *number).collect();
        self.taken_out.retain(|_, then| now.since(*then) < FORGOTTEN);
        let taken_out = self.lessors.keys().filter(|payer| !rates.contains_key(payer)).map(|payer| (*payer, now));
        self.taken_out.extend(taken_out);
        self.lessors.retain(|payer, _| rates.contains_key(payer));
        for (payer, RateTerms { rate, offline, .. }) in &rates {
            let begun = self.taken_out.remove(payer).unwrap_or(self.begun);
            let new = || Lessor::new(*rate, *offline, &numbers, begun);
            let lessor = self.lessors.entry(*payer).or_insert_with(new);
            replaced.iter().for_each(|router| lessor.remove(*router));
            lessor.change(*rate, *offline, &numbers);
        }
        let is_told = (&self.rates, self.routers.len()) == (&rates, routers.len());
        self.rates = rates;
        // By identity: who has been replaced reports no more usage under a number that is another's now.
        let is_gone = |link: &Link| routers.get(&link.peer) != Some(&link.number);
        let gone: Vec<u64> = self.links.iter().filter(|(_, link)| is_gone(link)).map(|(link, _)| *link).collect();
        for link in gone {
            self.close(link, "this router is no longer configured, or has another number");
        }
        self.status.retain(|number, _| routers.values().any(|known| known == number));
        for number in routers.values() {
            self.status.entry(*number).or_default().is_ahead = self.ahead.contains_key(number);
        }
        self.routers = routers;
        if !is_told {
            let watching = self.status.iter().filter(|(_, status)| status.told.is_some());
            watching
                .map(|(router, _)| *router)
                .collect::<Vec<_>>()
                .into_iter()
                .for_each(|router| self.tell(router, now));
        }
    }

    /// Tells a router all rates.
    fn tell(&mut self, router: RouterNumber, now: Instant) {
        let Some(status) = self.status.get_mut(&router) else { return };
        let Some(link) = status.link else { return };
        (status.told, status.differs) = (Some(now), false);
        let routers = self.routers.len() as u16; // at most MAX_ROUTERS
        let rate = |(payer, terms): (&RatePayer, &RateTerms)| {
            (SharedRate { payer: *payer, rate: terms.rate, routers, offline: terms.offline }, terms.burst)
        };
        let message = ChannelMessage::Rates(self.rates.iter().take(MAX_RATES).map(rate).collect());
        self.send(link, &message);
    }

    fn event(&mut self, event: RouterEvent) {
        self.outputs.push_back(RouterServerOutput::Event(event));
    }

    fn send(&mut self, link: u64, message: &ChannelMessage) {
        self.outputs.push_back(RouterServerOutput::Send { link, octets: message.encode() });
    }

    fn close(&mut self, link: u64, why: &'static str) {
        self.disconnected(link);
        self.outputs.push_back(RouterServerOutput::Close { link, why });
    }

    fn connected(&mut self, link: u64, peer: &IdentityKey) {
        let Some(number) = self.routers.get(peer).copied() else {
            self.event(RouterEvent::Stranger(*peer));
            self.outputs.push_back(RouterServerOutput::Close { link, why: "no router of this provider" });
            return;
        };
        self.links.insert(link, Link { peer: *peer, number });
        let status = self.status.entry(number).or_default();
        let before = status.link.replace(link);
        (status.follows, status.told, status.differs, status.list) = (false, None, false, None);
        if let Some(before) = before {
            self.links.remove(&before);
            self.outputs.push_back(RouterServerOutput::Close { link: before, why: "this router has connected again" });
        }
        self.event(RouterEvent::Connected(number));
    }

    fn disconnected(&mut self, link: u64) {
        let Some(Link { number, .. }) = self.links.remove(&link) else { return };
        self.waiting.retain(|waiting| waiting.link != link);
        // A router that has connected again meanwhile has a newer link, which stays.
        if let Some(status) = self.status.get_mut(&number).filter(|status| status.link == Some(link)) {
            (status.link, status.follows, status.told) = (None, false, None);
            self.event(RouterEvent::Disconnected(number));
        }
    }

    fn frame(&mut self, link: u64, octets: &[u8], now: Now) {
        let Some(router) = self.links.get(&link).map(|link| link.number) else { return };
        let message = match ChannelMessage::decode(octets) {
            Ok(message) => message,
            Err(error) => {
                self.event(RouterEvent::Malformed { router, error });
                return self.close(link, "a malformed message");
            }
        };
        match message {
            ChannelMessage::Report(report) => self.report(link, router, &report, now),
            ChannelMessage::Confirm { through } => self.confirm(router, through, now),
            ChannelMessage::Follow { list } => {
                if let Some(status) = self.status.get_mut(&router) {
                    (status.follows, status.list) = (true, list);
                }
                self.hand_out(router, now.unix);
            }
            ChannelMessage::Watch => self.tell(router, now.instant),
            ChannelMessage::Ask(requests) => self.ask(link, router, &requests, now.instant),
            _ => {
                self.event(RouterEvent::Unexpected(router));
                self.close(link, "a message that routers do not send");
            }
        }
    }

    fn report(&mut self, link: u64, router: RouterNumber, report: &UsageReport<ChargedAccount>, now: Now) {
        if self.is_store_behind() {
            return;
        }
        let taken = match self.ledger.take(router, report, now.unix.secs()) {
            Ok(taken) => taken,
            Err(why) => {
                if let Some(status) = self.status.get_mut(&router) {
                    status.refused += 1;
                }
                self.send(link, &ChannelMessage::Refused { number: report.number, why });
                return self.event(RouterEvent::Refused { router, why });
            }
        };
        if let Some(status) = self.status.get_mut(&router) {
            status.reports += 1;
            status.too_late += taken.too_late;
        }
        if taken.too_late > 0 {
            self.event(RouterEvent::TooLate(router));
        }
        if taken.is_behind {
            self.event(RouterEvent::Behind(router));
        }
        if taken.is_late {
            self.event(RouterEvent::Late(router));
        }
        if !taken.changed.is_empty() {
            self.persist(UsageBatch { records: taken.changed, removed: taken.removed, ..UsageBatch::default() });
        }
        // Totals that changed nothing may be those of a batch that is not durable yet.
        let answer = UsageAnswer { number: report.number, is_behind: taken.is_behind };
        self.waiting.push_back(Waiting { persisted: self.submitted, link, answer });
        self.answer();
    }

    /// A router whose clock is ahead confirms nothing that has not passed here.
    fn confirm(&mut self, router: RouterNumber, through: u64, now: Now) {
        let through = through.min(now.unix.secs());
        if !self.is_store_behind() && self.ledger.confirm(router, through) {
            let confirmed = self.ledger.confirmed().get(&router).map(|second| (router, *second));
            self.persist(UsageBatch { confirmed: confirmed.into_iter().collect(), ..UsageBatch::default() });
        }
    }

    fn reopened(&mut self, reopening: Reopening) {
        if let Some(reopening) = self.ledger.reopen(reopening) {
            self.persist(UsageBatch { reopened: Some(reopening), ..UsageBatch::default() });
        }
    }

    fn persist(&mut self, batch: UsageBatch) {
        self.submitted += 1;
        self.undurable.push_back((self.submitted, batch.records.len() + batch.removed.len()));
        self.outputs.push_back(RouterServerOutput::Persist(UsageBatch { id: self.submitted, ..batch }));
    }

    fn is_store_behind(&self) -> bool {
        let undurable: usize = self.undurable.iter().map(|(_, records)| records).sum();
        undurable > MAX_UNDURABLE || self.undurable.len() >= MAX_BATCHES || self.waiting.len() >= MAX_WAITING
    }

    /// Closes the time that the operator closed, and what ended very long ago by this clock and by that of the routers. Then folds.
    fn settle(&mut self, operator: u64, now: Now) {
        let latest = self.ledger.latest().unwrap_or(0).min(now.unix.secs());
        let old = latest.saturating_sub(KEPT_SECS) / DAY_SECS * DAY_SECS;
        // A clock that is wrong closes nothing that has not ended.
        if self.ledger.close(old.max(operator.min(now.unix.secs())), self.routers.values().copied()) {
            let closed = self.ledger.closed();
            let confirmed = self.ledger.confirmed().iter().map(|(router, second)| (*router, *second)).collect();
            self.persist(UsageBatch { closed: Some(closed), confirmed, ..UsageBatch::default() });
            self.event(RouterEvent::Closed(closed));
        }
        if self.is_store_behind() {
            return;
        }
        // After the closing, also in the store, where batches become durable in this order: totals that were folded by a closing that is
        // not there would come again.
        if let Some(Fold { changed, removed }) = self.ledger.fold(FOLDED).filter(|fold| !fold.removed.is_empty()) {
            self.persist(UsageBatch { records: changed, removed, ..UsageBatch::default() });
        }
    }

    fn answer(&mut self) {
        while let Some(waiting) = self.waiting.pop_front_if(|waiting| waiting.persisted <= self.persisted) {
            self.send(waiting.link, &ChannelMessage::Answer(waiting.answer));
        }
    }

    fn persisted(&mut self, id: u64) {
        self.persisted = self.persisted.max(id);
        while self.undurable.pop_front_if(|(submitted, _)| *submitted <= id).is_some() {}
        self.answer();
    }

    fn set_list(&mut self, number: u64, octets: Arc<[u8]>, times: ChangeTimes, now: UnixTime) {
        if octets.len() > MAX_LIST || self.list.as_ref().is_some_and(|(last, _)| number <= *last) {
            return;
        }
        (self.list, self.times) = (Some((number, octets)), times);
        let all: Vec<RouterNumber> = self.status.keys().copied().collect();
        all.into_iter().for_each(|router| self.hand_out(router, now));
    }

    /// Sends the list to a router that follows and has an older one.
    fn hand_out(&mut self, router: RouterNumber, now: UnixTime) {
        let (Some((number, list)), Some(status)) = (self.list.clone(), self.status.get(&router)) else {
            return;
        };
        let Some(link) = status.link.filter(|_| status.follows) else { return };
        let has = status.list;
        // A list of a database that was set back lacks revocations, also once its number is higher: the router keeps the one that it has.
        match has.map(|has| if has > number { Some(false) } else { self.times.has_list(has, now) }) {
            Some(Some(false)) => self.set_ahead(router, has),
            Some(None) => {}
            // The database is in order again, or the operator has made the router forget its list.
            Some(Some(true)) | None => self.set_ahead(router, None),
        }
        if let Some(has) = self.ahead.get(&router).copied() {
            if self.reported.insert(router) {
                self.event(RouterEvent::Ahead { router, has, own: number });
            }
            return;
        }
        if has == Some(number) {
            return;
        }
        let Some(status) = self.status.get_mut(&router) else { return };
        // Ahead of the last piece: if the link ends before that, the router says with its next one what it has.
        status.list = Some(number);
        let length = list.len() as u32; // at most MAX_LIST
        for (piece, octets) in list.chunks(PIECE).enumerate() {
            let offset = (piece * PIECE) as u32; // less than the length
            self.send(link, &ChannelMessage::Piece { length, offset, octets: octets.to_vec() });
        }
    }

    /// Notes, durably, which list of another database a router has; or that it has none.
    fn set_ahead(&mut self, router: RouterNumber, has: Option<u64>) {
        let before = match has {
            Some(has) => self.ahead.insert(router, has),
            None => self.ahead.remove(&router),
        };
        if let Some(status) = self.status.get_mut(&router) {
            status.is_ahead = has.is_some();
        }
        if before == has {
            return;
        }
        if has.is_none() {
            self.reported.remove(&router);
        }
        self.persist(UsageBatch { ahead: Some((router, has)), ..UsageBatch::default() });
    }

    fn ask(&mut self, link: u64, router: RouterNumber, requests: &[(SharedRate, LeaseRequest)], now: Instant) {
        let (mut answers, routers) = (Vec::new(), self.routers.len() as u16); // at most MAX_ROUTERS
        // By the terms of before a router asks until it has been told of others: both are good together.
        let told = self.status.get(&router).and_then(|status| status.told);
        let may_be_old = told.is_some_and(|told| now.since(told) < TELLING);
        for (rate, request) in requests {
            // A rate that was taken out is asked for until the router has been told so.
            let (Some(own), Some(lessor)) = (self.rates.get(&rate.payer), self.lessors.get_mut(&rate.payer)) else {
                continue;
            };
            // What the router's floor takes is given to nobody.
            lessor.use_floor(router, floor(rate.rate, rate.routers.into()));
            if may_be_old || (own.rate, own.offline, routers) == (rate.rate, rate.offline, rate.routers) {
                answers.extend(lessor.handle(router, request, now).map(|answer| (rate.payer, answer)));
            } else if let Some(status) = self.status.get_mut(&router).filter(|status| !status.differs) {
                status.differs = true;
                self.event(RouterEvent::Differs { router, rate: *rate });
            }
        }
        if !answers.is_empty() {
            self.send(link, &ChannelMessage::Leased(answers));
        }
    }
}

impl Machine for RouterServer {
    type Input = RouterServerInput;
    type Output = RouterServerOutput;

    fn handle(&mut self, input: RouterServerInput, now: Now) {
        match input {
            RouterServerInput::Connected { link, peer } => self.connected(link, &peer),
            RouterServerInput::Frame { link, octets } => self.frame(link, &octets, now),
            RouterServerInput::Disconnected { link } => self.disconnected(link),
            RouterServerInput::Persisted(id) => self.persisted(id),
            RouterServerInput::Settle { closed } => self.settle(closed, now),
            RouterServerInput::Reopened(reopening) => self.reopened(reopening),
            RouterServerInput::List { number, octets, times } => self.set_list(number, octets, times, now.unix),
            RouterServerInput::Configure { routers, rates } => self.configure(routers, rates, now.instant),
        }
    }

    fn handle_timeout(&mut self, _: Now) {}

    fn poll(&mut self) -> Option<RouterServerOutput> {
        self.outputs.pop_front()
    }

    fn deadline(&self) -> Option<Instant> {
        None
    }
}
