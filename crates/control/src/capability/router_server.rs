//! The key server's end of the channel with its provider's routers: it takes usage, hands out the list of revocations, and leases
//! rates. Without I/O: links, the store and the clock are its driver's.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use wayleave_core::wire::Malformed;
use wayleave_core::{IdentityKey, Instant, Machine, Now, UnixTime};

use super::channel::{ChannelMessage, ChargedAccount, MAX_LIST, MAX_RATES, PIECE, RatePayer, RateTerms, SharedRate};
use super::position::Position;
use super::refusals::RefusalReport;
use super::state::ChangeTimes;
use super::usage::{JournalId, ReportOutcome, RouterNumber, UsageAnswer, UsageRefusal, UsageReport};
use crate::leases::{LeaseRequest, Lessor, floor};
use crate::tenure::Term;

/// How long a router may go on by the rates that it was told before.
const TELLING: Duration = Duration::from_secs(10);
/// How often it is seen whether the database has what a router has seen, if it had not: it may be the right one again.
const CHECKED: Duration = Duration::from_secs(5);
/// After this time nothing is left of what was given.
const FORGOTTEN: Duration = Duration::from_secs(400);
/// Steps that wait for the store, at most: a router has one report under way at a time. Beyond, reports are left unanswered, and routers
/// repeat them.
const MAX_WAITING: usize = 1_024;
/// Of one router: it repeats what is not answered.
const MAX_OF_ROUTER: usize = 4;

/// Seconds between two lists of the same changes of which a router needs one.
const SIGNED_ALIKE: u64 = 1_800;

/// What a provider's key server knows of its routers.
pub struct RouterServerConfig {
    /// Who they are, each with its number.
    pub routers: BTreeMap<IdentityKey, RouterNumber>,
    /// Rates that they share; each of the routers has a floor in every one.
    pub rates: BTreeMap<RatePayer, RateTerms>,
    /// Up to which Unix second routers have reported everything, by what the store has.
    pub confirmed: BTreeMap<RouterNumber, u64>,
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
    /// The store has carried out the step of [`RouterServerOutput::Store`] with this number, and those before: what became of it.
    Stored {
        step: u64,
        outcome: Result<ReportOutcome, UsageRefusal>,
    },
    /// The list of revocations in force: its number, its octets with the signature, and when changes of its state were signed.
    List {
        number: u64,
        octets: Arc<[u8]>,
        times: ChangeTimes,
    },
    /// Up to which Unix second routers have reported everything, by what the store has: other key servers may have been told.
    Confirmed(BTreeMap<RouterNumber, u64>),
    /// The store was set back, and has this: routers report all totals again.
    SetBack(BTreeMap<RouterNumber, u64>),
    /// This server is the lessor of rates in this term, or of none. The same epoch again prolongs it. These routers may use what lessors before
    /// gave.
    Term(Option<Term>, BTreeSet<RouterNumber>),
    /// Everything that the store had was read: changes up to this one.
    Read(Position),
    /// Whether the store continues what a router has seen, which [`RouterServerOutput::Check`] asked for.
    Checked {
        link: u64,
        seen: Position,
        continues: bool,
    },
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
    /// For the store, in the order of these steps.
    Store {
        step: u64,
        change: UsageChange,
    },
    /// For the store: whether it has what a router has seen. Without an answer the router is told nothing.
    Check {
        link: u64,
        seen: Position,
    },
    /// For [`super::KeyServer::take_refusals`].
    Refusals {
        router: RouterNumber,
        report: RefusalReport,
        received: UnixTime,
    },
    /// A router has connected: whether this server is the lessor still is to be seen at once.
    Renew,
    /// A router has heard of a lessor with this epoch, and this server's is lower.
    Superseded {
        router: RouterNumber,
        epoch: u64,
    },
    Event(RouterEvent),
}

/// What the store is to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum UsageChange {
    /// To take a report over.
    Report { router: RouterNumber, report: UsageReport<ChargedAccount>, received: UnixTime },
    /// To note up to which Unix second a router has reported everything.
    Confirm { router: RouterNumber, through: u64 },
    /// To note that a router has a list of another database than this one, with this number; or has one no longer.
    Ahead { router: RouterNumber, has: Option<u64> },
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
    /// Of a report of the router so many entries are not taken: who pays for them has as many records as one may have.
    Untaken {
        router: RouterNumber,
        entries: usize,
    },
    /// The router's totals were older than those that it reported before, or another router's, and it has gone on under another journal.
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
    /// The router has seen a change that the database has not, which ends with `own`: it was set back.
    Lacks {
        router: RouterNumber,
        seen: u64,
        own: u64,
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
    /// What it has seen of the database, if it waits to be told rates; whether it has been told that the database lacks that.
    seen: Option<Position>,
    pub lacks: bool,
    /// When that was looked at last.
    checked: Option<Instant>,
    /// Whether it was said on this link that it goes on by others.
    differs: bool,
    /// When it asked to be told, until it has heard that this server leases rates.
    watched: Option<Instant>,
    /// It has a list of later changes than this server's store had when it said so: how often that was read since.
    later: Option<u8>,
    /// Whether its list is later than this server's, or was at some time and it is not known whether the database has what that list
    /// has; or is of another database. The server's was set back, and it is sent no other list.
    pub is_ahead: bool,
    /// Reports that were taken since the server's start, and refused ones.
    pub reports: u64,
    pub refused: u64,
    /// Totals in reports that are on no statement: of time that was closed before the router was configured.
    pub too_late: u64,
    /// Entries that were not taken, since who pays for them has no room.
    pub untaken: u64,
}

/// A step that waits for the store.
struct Waiting {
    step: u64,
    router: RouterNumber,
    for_whom: WaitingFor,
}

enum WaitingFor {
    /// The report with this number was sent by this link.
    Report {
        link: u64,
        number: u64,
        journal: JournalId,
    },
    Nobody,
}

/// Who is at the other end of a link, and the number that it had when it connected.
struct Link {
    peer: IdentityKey,
    number: RouterNumber,
    /// A journal of which the router was told that the store has greater totals.
    behind: Option<JournalId>,
}

/// The machine.
pub struct RouterServer {
    routers: BTreeMap<IdentityKey, RouterNumber>,
    links: BTreeMap<u64, Link>,
    status: BTreeMap<RouterNumber, RouterStatus>,
    rates: BTreeMap<RatePayer, RateTerms>,
    /// The term in which this server leases rates, its epoch or that of the one before, and what it has leased in it.
    term: Option<Term>,
    epoch: Option<u64>,
    /// Routers that may use what lessors before gave.
    others: BTreeSet<RouterNumber>,
    lessors: BTreeMap<RatePayer, Lessor>,
    /// When the term began, and when rates were taken out: routers may use what was given of these before.
    begun: Instant,
    taken_out: BTreeMap<RatePayer, Instant>,
    confirmed: BTreeMap<RouterNumber, u64>,
    /// Where the changes end that were read.
    position: Position,
    list: Option<(u64, Arc<[u8]>)>,
    /// When changes of the list's state were signed.
    times: ChangeTimes,
    /// Routers that have a list of another database, and those that were reported to the operator since the start.
    ahead: BTreeMap<RouterNumber, u64>,
    reported: BTreeSet<RouterNumber>,
    waiting: VecDeque<Waiting>,
    steps: u64,
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
            term: None,
            epoch: None,
            others: BTreeSet::new(),
            lessors: BTreeMap::new(),
            begun: now,
            taken_out: BTreeMap::new(),
            confirmed: config.confirmed,
            position: Position::default(),
            list: None,
            times: ChangeTimes::default(),
            ahead: config.ahead,
            reported: BTreeSet::new(),
            waiting: VecDeque::new(),
            steps: 0,
            outputs: VecDeque::new(),
        };
        server.configure(config.routers, config.rates, now);
        server
    }

    /// Up to which Unix second routers have reported everything.
    #[must_use]
    pub fn confirmed(&self) -> &BTreeMap<RouterNumber, u64> {
        &self.confirmed
    }

    /// The routers, by number.
    #[must_use]
    pub fn status(&self) -> &BTreeMap<RouterNumber, RouterStatus> {
        &self.status
    }

    /// The term in which this server leases rates.
    #[must_use]
    pub fn term(&self) -> Option<Term> {
        self.term
    }

    /// Steps that wait for the store.
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
        for (payer, RateTerms { rate, offline, .. }) in rates.iter().filter(|_| self.epoch.is_some()) {
            let begun = self.taken_out.remove(payer).unwrap_or(self.begun);
            let new = || Lessor::after(*rate, *offline, (&numbers, &self.others), begun);
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

    /// Takes a term over, or none.
    fn set_term(&mut self, term: Option<Term>, others: BTreeSet<RouterNumber>, now: Instant) {
        let is_again = self.term.is_none() && term.is_some();
        self.term = term;
        // The same epoch goes on behind a pause in which nobody else was lessor.
        if let Some(epoch) = term.map(|term| term.epoch)
            && self.epoch.replace(epoch) != Some(epoch)
        {
            self.begin_term(others, now);
        } else if is_again {
            self.tell_anew(now);
        }
        let watching = self.status.iter().filter(|(_, status)| status.watched.is_some());
        let watching: Vec<RouterNumber> = watching.map(|(router, _)| *router).collect();
        watching.into_iter().for_each(|router| self.lead(router));
    }

    fn begin_term(&mut self, others: BTreeSet<RouterNumber>, now: Instant) {
        self.others = others;
        // What others gave is not known, and what this server gave in an earlier term is over, or routers say it.
        self.begun = now;
        self.taken_out.clear();
        self.lessors.clear();
        self.configure(self.routers.clone(), self.rates.clone(), now);
        self.tell_anew(now);
    }

    /// Rates of before count for a while yet, and all are told anew who is to be asked.
    fn tell_anew(&mut self, now: Instant) {
        let Some(Term { renewed, .. }) = self.term else { return };
        for status in self.status.values_mut().filter(|status| status.told.is_some()) {
            status.told = Some(now);
            status.watched.get_or_insert(renewed.instant);
        }
    }

    /// A router wants to be told rates: it is, if the store has what the router has seen of it.
    fn watch(&mut self, router: RouterNumber, seen: Position, now: Instant) {
        let Some(status) = self.status.get_mut(&router) else { return };
        let Some(link) = status.link else { return };
        if status.seen == Some(seen) {
            return; // it is being checked, or lacking: it is asked about again as soon as that may have changed
        }
        (status.seen, status.lacks, status.told, status.watched) = (Some(seen), false, None, None);
        if seen.number == 0 {
            self.checked(link, seen, true, now);
        } else {
            self.outputs.push_back(RouterServerOutput::Check { link, seen });
        }
    }

    /// Who leases rates the router hears once that is certain: a machine that was halted may have been succeeded.
    fn checked(&mut self, link: u64, seen: Position, continues: bool, now: Instant) {
        let Some(router) = self.links.get(&link).map(|link| link.number) else { return };
        let position = self.position;
        let Some(status) = self.status.get_mut(&router).filter(|status| status.seen == Some(seen)) else { return };
        status.checked = Some(now);
        if continues {
            (status.seen, status.lacks, status.watched) = (None, false, Some(now));
            self.send(link, &ChannelMessage::Continues { position });
            self.tell(router, now);
            self.outputs.push_back(RouterServerOutput::Renew);
        } else if !std::mem::replace(&mut status.lacks, true) {
            self.send(link, &ChannelMessage::Lacks { position });
            self.event(RouterEvent::Lacks { router, seen: seen.number, own: position.number });
        }
    }

    /// Says to a router that this server leases rates, if it was the lessor after the router had asked.
    fn lead(&mut self, router: RouterNumber) {
        let (Some(term), Some(status)) = (self.term, self.status.get_mut(&router)) else { return };
        let (Some(link), Some(watched)) = (status.link, status.watched) else { return };
        if term.renewed.instant >= watched {
            status.watched = None;
            self.send(link, &ChannelMessage::Lessor { epoch: term.epoch });
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
        self.links.insert(link, Link { peer: *peer, number, behind: None });
        let status = self.status.entry(number).or_default();
        let before = status.link.replace(link);
        (status.follows, status.told, status.differs, status.list) = (false, None, false, None);
        (status.later, status.watched, status.seen, status.lacks) = (None, None, None, false);
        if let Some(before) = before {
            self.links.remove(&before);
            self.outputs.push_back(RouterServerOutput::Close { link: before, why: "this router has connected again" });
        }
        self.event(RouterEvent::Connected(number));
    }

    fn disconnected(&mut self, link: u64) {
        let Some(Link { number, .. }) = self.links.remove(&link) else { return };
        // A router that has connected again meanwhile has a newer link, which stays.
        if let Some(status) = self.status.get_mut(&number).filter(|status| status.link == Some(link)) {
            (status.link, status.follows, status.told, status.watched) = (None, false, None, None);
            (status.seen, status.lacks) = (None, false);
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
            ChannelMessage::Report(report) => self.report(link, router, report, now),
            ChannelMessage::Confirm { through } => self.confirm(router, through, now),
            ChannelMessage::Follow { list } => {
                if let Some(status) = self.status.get_mut(&router) {
                    (status.follows, status.list, status.later) = (true, list, None);
                }
                self.hand_out(router, now.unix);
            }
            ChannelMessage::Watch { seen } => self.watch(router, seen, now.instant),
            ChannelMessage::Ask { epoch, requests } => self.ask((link, router), epoch, &requests, now),
            ChannelMessage::Refusals(report) => {
                self.outputs.push_back(RouterServerOutput::Refusals { router, report, received: now.unix });
            }
            _ => {
                self.event(RouterEvent::Unexpected(router));
                self.close(link, "a message that routers do not send");
            }
        }
    }

    fn report(&mut self, link: u64, router: RouterNumber, report: UsageReport<ChargedAccount>, now: Now) {
        if !self.has_room(router) {
            return;
        }
        // It took the word that it is behind. A router that reports to another server since does not: what was late here, that one had.
        let is_behind = |link: &mut Link| link.behind.take_if(|behind| *behind != report.journal).is_some();
        if self.links.get_mut(&link).is_some_and(is_behind) {
            self.event(RouterEvent::Behind(router));
        }
        let for_whom = WaitingFor::Report { link, number: report.number, journal: report.journal };
        self.store(router, for_whom, UsageChange::Report { router, report, received: now.unix });
    }

    /// A router whose clock is ahead confirms nothing that has not passed here.
    fn confirm(&mut self, router: RouterNumber, through: u64, now: Now) {
        let through = through.min(now.unix.secs());
        let is_new = self.confirmed.get(&router).is_none_or(|before| through > *before);
        if is_new && self.has_room(router) {
            self.confirmed.insert(router, through);
            self.store(router, WaitingFor::Nobody, UsageChange::Confirm { router, through });
        }
    }

    /// Whether one more step of a router's may wait for the store.
    fn has_room(&self, router: RouterNumber) -> bool {
        let of_router = self.waiting.iter().filter(|waiting| waiting.router == router).count();
        self.waiting.len() < MAX_WAITING && of_router < MAX_OF_ROUTER
    }

    fn store(&mut self, router: RouterNumber, for_whom: WaitingFor, change: UsageChange) {
        self.steps += 1;
        self.waiting.push_back(Waiting { step: self.steps, router, for_whom });
        self.outputs.push_back(RouterServerOutput::Store { step: self.steps, change });
    }

    /// The store has carried out a step: whoever waits for it is answered.
    fn stored(&mut self, step: u64, outcome: Result<ReportOutcome, UsageRefusal>) {
        while self.waiting.pop_front_if(|waiting| waiting.step < step).is_some() {}
        let Some(Waiting { router, for_whom, .. }) = self.waiting.pop_front_if(|waiting| waiting.step == step) else {
            return;
        };
        let WaitingFor::Report { link, number, journal } = for_whom else { return };
        let taken = match outcome {
            Ok(taken) => taken,
            Err(why) => {
                self.count(router, |status| status.refused += 1);
                self.answer(link, &ChannelMessage::Refused { number, why });
                return self.event(RouterEvent::Refused { router, why });
            }
        };
        let (too_late, untaken) = (taken.too_late, taken.untaken.len());
        self.count(router, |status| {
            status.reports += 1;
            status.too_late += too_late;
            status.untaken += untaken as u64;
        });
        if too_late > 0 {
            self.event(RouterEvent::TooLate(router));
        }
        if let Some(link) = self.links.get_mut(&link).filter(|_| taken.is_behind) {
            link.behind = Some(journal);
        }
        if taken.is_late {
            self.event(RouterEvent::Late(router));
        }
        if untaken > 0 {
            self.event(RouterEvent::Untaken { router, entries: untaken });
            self.answer(link, &ChannelMessage::Untaken { number, entries: taken.untaken });
        }
        self.answer(link, &ChannelMessage::Answer(UsageAnswer { number, is_behind: taken.is_behind }));
    }

    fn count(&mut self, router: RouterNumber, add: impl FnOnce(&mut RouterStatus)) {
        if let Some(status) = self.status.get_mut(&router) {
            add(status);
        }
    }

    /// Sends an answer, unless the link has ended meanwhile.
    fn answer(&mut self, link: u64, message: &ChannelMessage) {
        if self.links.contains_key(&link) {
            self.send(link, message);
        }
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
        let has_later_changes = |has: u64| has >> 32 > number >> 32;
        if has.is_some_and(has_later_changes) && !self.ahead.contains_key(&router) {
            // Of another key server, which has read the store later: until this one has, too.
            if let Some(status) = self.status.get_mut(&router) {
                status.later.get_or_insert(0);
            }
            return;
        }
        // A list of a database that was set back lacks revocations, also once its number is higher: the router keeps the one that it has.
        match has.map(|has| if has_later_changes(has) { Some(false) } else { self.times.has_list(has, now) }) {
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
        // Another key server may have signed a later one of the same changes, or one not much earlier.
        let is_alike = |has: u64| has >> 32 == number >> 32 && number.saturating_sub(has) < SIGNED_ALIKE;
        if has.is_some_and(|has| has >= number || is_alike(has)) {
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
        self.store(router, WaitingFor::Nobody, UsageChange::Ahead { router, has });
    }

    /// The store was read: a list of later changes than it has is of another one.
    fn read(&mut self, position: Position, now: Now) {
        let (number, before) = (position.number, std::mem::replace(&mut self.position, position));
        self.say_position(before, now.instant);
        let now = now.unix;
        let mut later = Vec::new();
        for (router, status) in &mut self.status {
            let Some(read) = &mut status.later else { continue };
            *read += 1;
            // The first may have begun before the router said so.
            if *read < 2 {
                continue;
            }
            status.later = None;
            later.extend(status.list.map(|has| (*router, has)));
        }
        for (router, has) in later {
            if has >> 32 > number {
                self.set_ahead(router, Some(has));
            }
            self.hand_out(router, now);
        }
    }

    /// Says to routers that were told rates where the changes end now, if that is new. Those whose changes the database lacked may be content
    /// with it, if an operator has adopted it since, or it is the one of before again.
    fn say_position(&mut self, before: Position, now: Instant) {
        let position = self.position;
        let is_due = |checked: Option<Instant>| {
            before.timeline != position.timeline || checked.is_none_or(|checked| now.since(checked) >= CHECKED)
        };
        let mut outputs = Vec::new();
        for status in self.status.values_mut() {
            match (status.link, status.seen) {
                (Some(link), Some(seen)) if status.lacks && is_due(status.checked) => {
                    status.checked = Some(now);
                    outputs.push(RouterServerOutput::Check { link, seen });
                }
                (Some(link), None) if status.told.is_some() && before != position => {
                    let octets = ChannelMessage::Continues { position }.encode();
                    outputs.push(RouterServerOutput::Send { link, octets });
                }
                _ => {}
            }
        }
        self.outputs.extend(outputs);
    }

    fn ask(
        &mut self,
        (link, router): (u64, RouterNumber),
        epoch: u64,
        requests: &[(SharedRate, LeaseRequest)],
        now: Now,
    ) {
        let Some(term) = self.term else { return };
        if epoch > term.epoch {
            self.outputs.push_back(RouterServerOutput::Superseded { router, epoch });
        }
        // A router takes no answer of another term: none is given, which would count as used. Nor after the term's end, when another may be
        // lessor: what was given until then stays known, should the term be prolonged after all.
        if epoch != term.epoch || term.is_over(now) {
            return;
        }
        let now = now.instant;
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
            self.send(link, &ChannelMessage::Leased { epoch, answers });
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
            RouterServerInput::Stored { step, outcome } => self.stored(step, outcome),
            RouterServerInput::SetBack(confirmed) => {
                self.confirmed = confirmed;
                let links: Vec<u64> = self.links.keys().copied().collect();
                links
                    .into_iter()
                    .for_each(|link| self.close(link, "the database was set back: report all totals again"));
            }
            RouterServerInput::Confirmed(confirmed) => {
                for (router, through) in confirmed {
                    let known = self.confirmed.entry(router).or_default();
                    *known = through.max(*known);
                }
            }
            RouterServerInput::Term(term, others) => self.set_term(term, others, now.instant),
            RouterServerInput::Read(position) => self.read(position, now),
            RouterServerInput::Checked { link, seen, continues } => self.checked(link, seen, continues, now.instant),
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
