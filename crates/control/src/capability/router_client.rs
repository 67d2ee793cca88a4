//! A router's end of the channel with its provider's key servers: it reports usage to one of them, follows the lists of revocations of
//! all, and asks the one that leases rates for its shares ([`crate::tenure`]). Without I/O: links, the store and the clock are its
//! driver's.

use std::collections::BTreeMap;
use std::time::Duration;

use wayleave_core::Instant;
use wayleave_core::wire::Malformed;

use super::channel::{ChannelMessage, ChargedAccount, RatePayer, SharedRate};
use super::position::Position;
use super::refusals::RefusalReport;
use super::usage::{JournalId, Reporter, Usage, UsageRefusal};
use crate::leases::{self, Lease};

/// How long a report waits for its answer before the same totals are reported again.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How often it is seen what the server may be told to have; and by how much that has to have grown, in seconds.
const CONFIRM: Duration = Duration::from_secs(1);
const CONFIRM_STEP: u64 = 60;
/// How often a server is asked again whether its database has what another server has told. Two databases that went on from one copy may
/// have no number in common of what they tell.
const ASKED_AGAIN: Duration = Duration::from_secs(60);
/// By how many seconds a clock may go back: what ended before that is charged no more.
const CLOCK_MARGIN: u64 = 300;
/// How often a report is not answered before another server is reported to, if there is one; and how often that is doubled, at most, while
/// none answers.
const UNANSWERED: u32 = 3;
const DOUBLED: u32 = 5;
/// How long a report that was refused is not repeated.
const REFUSED: Duration = Duration::from_secs(30);
/// For how long after its end, in seconds, what the server had no room for holds its confirmation back: 30 days. One payer's records would
/// stop every statement.
const GIVEN_UP: u64 = 30 * 86_400;
/// How long what the server had no room for is not repeated.
const UNTAKEN: Duration = Duration::from_secs(600);

/// What the driver is to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RouterClientEvent {
    /// The server has a later list: its octets with the signature, not checked.
    List(Vec<u8>),
    /// The server had greater totals. The driver makes a new identity and hands it to [`RouterClient::begin`].
    Behind,
    /// The server does not take usage.
    Refused(UsageRefusal),
    /// It takes usage again.
    Taken,
    /// It has no room for so many accounts of those who pay for them.
    Untaken(usize),
    /// All rates that routers share, each with its burst in octets, or zero: to be kept, and handed to [`RouterClient::share`].
    Rates(Vec<(SharedRate, u64)>),
    /// The server at the other end of this link leases rates now, in the term with this epoch.
    Lessor { link: u64, epoch: u64 },
    /// The server's database has gone on to this change: to be kept.
    Seen(Position),
    /// The server's database lacks what was seen: it ends with `own`, or has another history. Nothing of it counts.
    Lacks { seen: Position, own: Position },
    /// The server at the other end of the link says that it leases rates, and there was one of this higher epoch: it is to be told so.
    Superseded { epoch: u64, octets: Vec<u8> },
}

/// A link to one of the key servers.
#[derive(Default)]
struct Link {
    /// Octets of the list that is on its way, and its length.
    pieces: Option<(u32, Vec<u8>)>,
    /// Whether the server's database continues what was seen, and when it is asked that again.
    continues: bool,
    asks_at: Option<Instant>,
    /// Whether it does not, by the server's word or, with another change under the same number, by this router's.
    lacks: bool,
    is_fork: bool,
    /// The rates that the server told.
    told: Option<Vec<(SharedRate, u64)>>,
    /// The epoch in which it said to be lessor.
    epoch: Option<u64>,
}

/// Why the link is closed: the server erred.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ServerFault {
    #[error("the key server sent a malformed message: {0}")]
    Malformed(#[from] Malformed),
    #[error("the key server sent a message that it never sends to a router")]
    Unexpected,
    #[error("the key server sent parts of a list that do not follow one another")]
    Pieces,
}

/// A rate that this router shares with others.
struct Share {
    rate: SharedRate,
    lease: Lease,
    demand: u64,
}

/// The router's end.
pub struct RouterClient {
    reporter: Reporter<ChargedAccount>,
    links: BTreeMap<u64, Link>,
    /// The link by which usage is reported: one whose server has said that its database continues what was seen. What another took would be
    /// lost with its database.
    reports_to: Option<u64>,
    /// The last change of the database that a server has told, and the link to it.
    seen: Position,
    told_by: Option<u64>,
    /// The highest epoch of a lessor that was heard of, and the link to it.
    epoch: u64,
    lessor: Option<u64>,
    /// The highest epoch that there can be.
    last_epoch: u64,
    /// When the last report went out, how often it was not answered, and until when none goes out.
    reported: Option<Instant>,
    unanswered: u32,
    /// How often another server was reported to since one has answered; and whether the last report was refused.
    turns: u32,
    is_refused: bool,
    /// Another server's rates may count.
    is_recounted: bool,
    refused_until: Option<Instant>,
    /// When what the server had no room for is reported again.
    untaken_until: Option<Instant>,
    /// A new identity is not durable yet: nothing is reported.
    is_held: bool,
    /// The Unix second until which everything counted is durable here; what the server was told on this link to have; when that was seen
    /// last.
    counted_until: Option<u64>,
    confirmed: Option<u64>,
    looked: Option<Instant>,
    list: Option<u64>,
    shares: Vec<Share>,
    /// The greatest number of a request for a share that is no longer there.
    asked: u64,
}

impl RouterClient {
    /// Reports what `journal` holds above `base`, and has the list of revocations with the number `list`.
    #[must_use]
    pub fn new(journal: JournalId, base: BTreeMap<ChargedAccount, Usage>, list: Option<u64>) -> Self {
        Self {
            reporter: Reporter::new(journal, base),
            links: BTreeMap::new(),
            reports_to: None,
            seen: Position::default(),
            told_by: None,
            epoch: 0,
            lessor: None,
            last_epoch: u64::MAX,
            reported: None,
            unanswered: 0,
            turns: 0,
            is_refused: false,
            is_recounted: false,
            refused_until: None,
            untaken_until: None,
            is_held: false,
            counted_until: None,
            confirmed: None,
            looked: None,
            list,
            shares: Vec::new(),
            asked: 0,
        }
    }

    /// No lessor below this epoch is asked: a process before this one has heard of it.
    #[must_use]
    pub fn with_epoch(self, epoch: u64) -> Self {
        Self { epoch, ..self }
    }

    /// A server whose database does not continue this is not believed: a process before this one has seen it.
    #[must_use]
    pub fn with_seen(self, seen: Position) -> Self {
        Self { seen, ..self }
    }

    /// An epoch above what the time allows was made up, or is by a clock that is wrong ([`crate::tenure::last_epoch`]).
    pub fn set_last_epoch(&mut self, epoch: u64) {
        self.last_epoch = epoch;
    }

    /// The rates that are shared; `session` is that of this process ([`leases::LeaseRequest`]), the same in each call. What the router
    /// has of a rate that was shared before stays.
    pub fn share(&mut self, rates: &[SharedRate], session: u64) {
        // A rate that is taken out and put back goes on behind what was asked for it before.
        self.asked = self.shares.iter().map(|share| share.lease.number()).max().max(Some(self.asked)).unwrap_or(0);
        let (mut before, asked) = (std::mem::take(&mut self.shares), self.asked);
        let mut share = |rate: &SharedRate| {
            let held = before.iter().position(|share| share.rate.payer == rate.payer);
            let mut lease = match held {
                Some(held) => before.swap_remove(held).lease,
                None => Lease::new(rate.rate, rate.offline, rate.routers.into(), (session, asked)),
            };
            lease.change(rate.rate, rate.offline, rate.routers.into());
            Share { rate: *rate, lease, demand: 0 }
        };
        self.shares = rates.iter().map(&mut share).collect();
    }

    /// The total of an account is durable.
    pub fn durable(&mut self, account: ChargedAccount, total: Usage) {
        self.reporter.durable(account, total);
    }

    /// Whether an account to which nothing more is charged may leave the store, since the server has its total.
    #[must_use]
    pub fn is_forgettable(&self, account: &ChargedAccount) -> bool {
        self.reports_to.is_some() && !self.is_held && self.reporter.is_forgettable(account)
    }

    /// Forgets such an account, once the store has taken the removal of its total and of its base.
    pub fn forget(&mut self, account: &ChargedAccount) {
        self.reporter.forget(account);
    }

    /// What was offered to this router under a rate since the last request, in octets a second.
    pub fn demand(&mut self, payer: &RatePayer, demand: u64) {
        if let Some(share) = self.shares.iter_mut().find(|share| share.rate.payer == *payer) {
            share.demand = demand;
        }
    }

    /// Octets a second that this router may let pass now under each shared rate.
    pub fn rates(&self, now: Instant) -> impl Iterator<Item = (RatePayer, u64)> {
        self.shares.iter().map(move |share| (share.rate.payer, share.lease.rate(now)))
    }

    /// The rates that are shared.
    pub fn shared(&self) -> impl Iterator<Item = SharedRate> {
        self.shares.iter().map(|share| share.rate)
    }

    /// The shared rates, each with the octets a second beyond this router's floor, and until when.
    pub fn leases(&self, now: Instant) -> impl Iterator<Item = (RatePayer, (u64, Instant))> {
        self.shares.iter().map(move |share| (share.rate.payer, share.lease.share(now).unwrap_or((0, now))))
    }

    /// Nothing is reported until [`RouterClient::begun`]: the identity is not durable yet.
    pub fn hold(&mut self) {
        self.is_held = true;
    }

    /// A link to a server is up. Returns what to send by it.
    pub fn connected(&mut self, link: u64) -> Vec<u8> {
        self.links.insert(link, Link::default());
        ChannelMessage::Follow { list: self.list }.encode()
    }

    /// Reports by another link than before: whoever is there has everything that was durable at the other.
    fn report_to(&mut self, link: u64) {
        (self.reports_to, self.reported, self.unanswered) = (Some(link), None, 0);
        (self.confirmed, self.looked) = (None, None);
        self.reporter.connected();
    }

    /// What to send on a new link to be told the rates that routers share.
    #[must_use]
    pub fn watch(&self) -> Vec<u8> {
        ChannelMessage::Watch { seen: self.seen }.encode()
    }

    /// The question, due from time to time, whether a server's database has what another server has told; and by which link it goes.
    pub fn watch_again(&mut self, now: Instant) -> Option<(u64, Vec<u8>)> {
        let told_by = self.told_by;
        let is_due = |link: u64, of: &Link| told_by != Some(link) || of.told.is_none();
        let others = self.links.iter_mut().filter(|(link, of)| of.continues && is_due(**link, of));
        let mut due = others.filter_map(|(link, of)| {
            let is_due = now >= *of.asks_at.get_or_insert(now + ASKED_AGAIN);
            is_due.then(|| of.asks_at = Some(now + ASKED_AGAIN)).map(|()| *link)
        });
        let link = due.next()?;
        Some((link, self.watch()))
    }

    /// The link after the one by which usage is reported, in turn, whose server may be reported to.
    fn next_link(&self) -> Option<u64> {
        let after = self.reports_to.map_or(0, |to| to.saturating_add(1));
        let turn = self.links.range(after..).chain(self.links.range(..after));
        let mut others = turn.filter(|(link, of)| self.reports_to != Some(**link) && of.continues);
        others.next().map(|(link, _)| *link)
    }

    /// Reports by another link, if there is one. The server that was reported to is up, and cannot take usage.
    fn report_to_next(&mut self) {
        if let Some(next) = self.next_link() {
            self.report_to(next);
            (self.turns, self.is_recounted) = (self.turns + 1, true);
        }
    }

    /// After links or what is known of them have changed: leaves a server that may be reported to no longer, and begins with one that may, if
    /// there is one.
    fn report_to_any(&mut self) {
        let present = self.reports_to.and_then(|to| self.links.get(&to));
        if present.is_some_and(|of| of.continues) {
            return;
        }
        let next = self.next_link();
        self.reports_to = None;
        next.into_iter().for_each(|next| self.report_to(next));
    }

    /// The rates that count, if usage went to another server since this was last asked.
    pub fn recounted(&mut self) -> Option<RouterClientEvent> {
        if std::mem::take(&mut self.is_recounted) && self.lessor.is_none() { self.recount(None) } else { None }
    }

    /// The link whose server's rates count: what others tell may be older than what the lessor has, or newer.
    fn counted(&self) -> Option<u64> {
        self.lessor.or(self.reports_to)
    }

    /// The rates that count now, if these are another server's than before.
    fn recount(&self, before: Option<u64>) -> Option<RouterClientEvent> {
        let counted = self.counted().filter(|counted| before != Some(*counted))?;
        self.links.get(&counted)?.told.clone().map(RouterClientEvent::Rates)
    }

    /// A link is down. Returns what follows from it.
    pub fn disconnected(&mut self, link: u64) -> Vec<RouterClientEvent> {
        let before = self.counted();
        self.links.remove(&link);
        self.report_to_any();
        self.lessor.take_if(|lessor| *lessor == link);
        // A newer link to the same server may be up before this one is known to be down.
        let same = self.links.iter().find(|(_, of)| of.epoch == Some(self.epoch)).map(|(other, _)| *other);
        match same.filter(|_| self.lessor.is_none()) {
            Some(other) => self.take_lessor(other, self.epoch),
            None => self.recount(before).into_iter().collect(),
        }
    }

    /// Whether there is a link.
    #[must_use]
    pub fn is_up(&self) -> bool {
        !self.links.is_empty()
    }

    /// The link to the server that leases rates.
    #[must_use]
    pub fn lessor(&self) -> Option<u64> {
        self.lessor
    }

    /// The link by which usage is reported.
    #[must_use]
    pub fn reports_to(&self) -> Option<u64> {
        self.reports_to
    }

    /// The driver has taken over the list with this number. Returns by which links to say so: whoever has not sent it need not send its own.
    pub fn has_list(&mut self, number: u64) -> Option<(Vec<u64>, Vec<u8>)> {
        let is_new = self.list < Some(number);
        self.list = self.list.max(Some(number));
        let others = self.links.keys().copied().collect();
        (is_new && self.links.len() > 1).then(|| (others, ChannelMessage::Follow { list: self.list }.encode()))
    }

    /// Whether a list with this number is later than the one that is in force.
    #[must_use]
    pub fn is_later(&self, number: u64) -> bool {
        self.list < Some(number)
    }

    /// Accounts whose totals the server does not have.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.reporter.waiting()
    }

    /// The next report, if one is due, and by which link.
    pub fn report(&mut self, now: Instant) -> Option<(u64, Vec<u8>)> {
        if self.unanswered >= UNANSWERED << self.turns.min(DOUBLED) {
            self.report_to_next();
        }
        let to = self.reports_to?;
        if self.is_held || self.refused_until.is_some_and(|until| now < until) {
            return None;
        }
        if self.untaken_until.take_if(|until| now >= *until).is_some() {
            self.reporter.try_again();
        }
        let is_overdue = self.reported.is_none_or(|at| now.since(at) >= TIMEOUT);
        let report = match self.reporter.pending() {
            Some(report) if is_overdue => {
                self.unanswered += u32::from(self.reported.is_some());
                report.clone()
            }
            _ => self.reporter.report()?,
        };
        self.reported = Some(now);
        Some((to, ChannelMessage::Report(report).encode()))
    }

    /// Everything that was counted up to this Unix second is durable, and was said to be by [`RouterClient::durable`].
    pub fn counted_until(&mut self, second: u64) {
        self.counted_until = Some(second);
    }

    /// The Unix second until which everything that was counted is durable here; of that, the server lacks what is
    /// [`waiting`](Self::waiting).
    #[must_use]
    pub fn durable_until(&self) -> Option<u64> {
        self.counted_until
    }

    /// Tells the server up to when it has everything, if that is new. What is not there yet and has ended holds it back.
    pub fn confirm(&mut self, now: Instant) -> Option<(u64, Vec<u8>)> {
        let to = self.reports_to?;
        if self.is_held || self.looked.is_some_and(|at| now.since(at) < CONFIRM) {
            return None;
        }
        self.looked = Some(now);
        let counted = self.counted_until?.saturating_sub(CLOCK_MARGIN);
        let holds_back = |account: &&ChargedAccount| {
            let is_given_up = |end: u64| self.reporter.is_untaken(account) && end.saturating_add(GIVEN_UP) < counted;
            !account.ended_at().is_some_and(is_given_up)
        };
        let ends = self.reporter.unknown().filter(holds_back).filter_map(ChargedAccount::ended_at);
        let through = ends.map(|end| end.saturating_sub(1)).fold(counted, u64::min);
        if self.confirmed.is_some_and(|confirmed| through < confirmed.saturating_add(CONFIRM_STEP)) {
            return None;
        }
        self.confirmed = Some(through);
        Some((to, ChannelMessage::Confirm { through }.encode()))
    }

    /// The request for shares, to be sent every [`leases::INTERVAL`] by this link; none without a link to who leases, or without shared
    /// rates.
    pub fn ask(&mut self, now: Instant) -> Option<(u64, Vec<u8>)> {
        let to = self.lessor.filter(|_| !self.shares.is_empty())?;
        let request = |share: &mut Share| (share.rate, share.lease.request(share.demand, now));
        let requests = self.shares.iter_mut().map(request).collect();
        Some((to, ChannelMessage::Ask { epoch: self.epoch, requests }.encode()))
    }

    /// The message with what was refused, and by which links it goes: a holder asks any of the servers, and each has it from the router.
    #[must_use]
    pub fn tell_refusals(&self, report: RefusalReport) -> (Vec<u64>, Vec<u8>) {
        let links = self.links.iter().filter(|(_, of)| of.continues).map(|(link, _)| *link).collect();
        (links, ChannelMessage::Refusals(report).encode())
    }

    /// How often [`RouterClient::tell_refusals`] is called.
    pub const REFUSALS: Duration = Duration::from_secs(5);

    /// How often [`RouterClient::ask`] is called.
    pub const INTERVAL: Duration = leases::INTERVAL;

    /// Takes a message in that came by a link.
    ///
    /// # Errors
    /// What the server did wrong; the link is to be closed.
    pub fn frame(&mut self, link: u64, octets: &[u8], now: Instant) -> Result<Vec<RouterClientEvent>, ServerFault> {
        let message = ChannelMessage::decode(octets)?;
        // What comes by a link that has ended is of nobody.
        let Some(of) = self.links.get_mut(&link) else { return Ok(Vec::new()) };
        let is_reporting = self.reports_to == Some(link);
        match message {
            // Of a report that went there before another server was reported to.
            ChannelMessage::Answer(_) | ChannelMessage::Refused { .. } | ChannelMessage::Untaken { .. }
                if !is_reporting =>
            {
                Ok(Vec::new())
            }
            ChannelMessage::Answer(answer) => {
                let is_behind = self.reporter.answered(answer);
                (self.unanswered, self.turns) = (0, 0);
                let taken = std::mem::take(&mut self.is_refused).then_some(RouterClientEvent::Taken);
                // An answer to another report leaves the time of the one that waits, or that one would never be repeated.
                self.reported = self.reported.filter(|_| self.reporter.pending().is_some());
                Ok(is_behind.then_some(RouterClientEvent::Behind).into_iter().chain(taken).collect())
            }
            ChannelMessage::Refused { why, .. } => {
                self.reporter.refused();
                (self.reported, self.refused_until, self.is_refused) = (None, Some(now + REFUSED), true);
                self.report_to_next();
                Ok(vec![RouterClientEvent::Refused(why)])
            }
            ChannelMessage::Untaken { number, entries } => {
                self.reporter.untaken(number, &entries);
                self.untaken_until.get_or_insert(now + UNTAKEN);
                Ok(vec![RouterClientEvent::Untaken(entries.len())])
            }
            ChannelMessage::Piece { length, offset, octets } => of.piece(length, offset, &octets),
            ChannelMessage::Leased { epoch, answers } => {
                let is_lessor = (self.lessor, self.epoch) == (Some(link), epoch);
                for (payer, answer) in answers.into_iter().filter(|_| is_lessor) {
                    if let Some(share) = self.shares.iter_mut().find(|share| share.rate.payer == payer) {
                        share.lease.handle(&answer, now);
                    }
                }
                Ok(Vec::new())
            }
            // Nothing of a database that was set back counts.
            ChannelMessage::Rates(_) | ChannelMessage::Lessor { .. } if !of.continues => Ok(Vec::new()),
            ChannelMessage::Rates(rates) => {
                of.told = Some(rates.clone());
                let counts = self.counted() == Some(link);
                Ok(counts.then_some(RouterClientEvent::Rates(rates)).into_iter().collect())
            }
            ChannelMessage::Lessor { epoch } => Ok(self.take_lessor(link, epoch)),
            ChannelMessage::Continues { position } => {
                let is_fork = position.order() == self.seen.order() && position != self.seen && position.number > 0;
                if is_fork {
                    of.is_fork = true;
                    return Ok(self.take_back(link, position));
                }
                // What it goes on to from there is not believed either, until an operator has adopted it.
                if of.is_fork && position != self.seen && position.timeline <= self.seen.timeline {
                    return Ok(Vec::new());
                }
                let was_lacking = std::mem::take(&mut of.lacks);
                (of.continues, of.is_fork) = (true, false);
                let is_later = position.order() > self.seen.order();
                if is_later {
                    (self.seen, self.told_by) = (position, Some(link));
                }
                self.report_to_any();
                let has_changed = is_later || was_lacking;
                Ok(has_changed.then_some(RouterClientEvent::Seen(self.seen)).into_iter().collect())
            }
            ChannelMessage::Lacks { position } => {
                of.is_fork = false;
                Ok(self.take_back(link, position))
            }
            ChannelMessage::Report(_)
            | ChannelMessage::Confirm { .. }
            | ChannelMessage::Follow { .. }
            | ChannelMessage::Watch { .. }
            | ChannelMessage::Refusals(_)
            | ChannelMessage::Ask { .. } => Err(ServerFault::Unexpected),
        }
    }

    /// The database of the server at the other end of a link was set back: what that server told counts no longer.
    fn take_back(&mut self, link: u64, own: Position) -> Vec<RouterClientEvent> {
        let before = self.counted();
        if let Some(of) = self.links.get_mut(&link) {
            (of.continues, of.lacks, of.told, of.epoch) = (false, true, None, None);
            // A server that did not say so itself does not tell its rates again: it is asked as soon as it goes on.
            of.asks_at = Some(Instant(0));
        }
        self.lessor.take_if(|lessor| *lessor == link);
        self.report_to_any();
        let lacks = RouterClientEvent::Lacks { seen: self.seen, own };
        [lacks].into_iter().chain(self.recount(before)).collect()
    }

    /// The server at the other end of a link says that it leases rates.
    fn take_lessor(&mut self, link: u64, epoch: u64) -> Vec<RouterClientEvent> {
        if epoch > self.last_epoch {
            return Vec::new();
        }
        if let Some(of) = self.links.get_mut(&link) {
            of.epoch = Some(epoch);
        }
        if epoch < self.epoch {
            let octets = ChannelMessage::Ask { epoch: self.epoch, requests: Vec::new() }.encode();
            return vec![RouterClientEvent::Superseded { epoch: self.epoch, octets }];
        }
        // Of two that say the same the first counts.
        if epoch == self.epoch && self.lessor.is_some() {
            return Vec::new();
        }
        (self.epoch, self.lessor) = (epoch, Some(link));
        // Who is asked from now on does not know of answers that are still to come, nor who has a link to it again.
        self.shares.iter_mut().for_each(|share| share.lease.reconnected());
        let mut events = vec![RouterClientEvent::Lessor { link, epoch }];
        let told = self.links.get(&link).and_then(|of| of.told.clone());
        events.extend(told.map(RouterClientEvent::Rates));
        events
    }

    /// Goes on under a new identity, and reports nothing until [`RouterClient::begun`]. Returns the new base, which has to be
    /// durable together with the identity.
    pub fn begin(&mut self, journal: JournalId) -> &BTreeMap<ChargedAccount, Usage> {
        self.is_held = true;
        self.reporter.begin(journal)
    }

    /// The new identity and its base are durable.
    pub fn begun(&mut self) {
        self.is_held = false;
    }
}

impl Link {
    fn piece(&mut self, length: u32, offset: u32, octets: &[u8]) -> Result<Vec<RouterClientEvent>, ServerFault> {
        // A list may replace one that is still on its way.
        let (whole, mut list) = match self.pieces.take() {
            Some(begun) if offset != 0 => begun,
            _ => (length, Vec::new()),
        };
        if whole != length || list.len() != offset as usize {
            return Err(ServerFault::Pieces);
        }
        list.extend_from_slice(octets);
        if list.len() < length as usize {
            self.pieces = Some((length, list));
            return Ok(Vec::new());
        }
        Ok(vec![RouterClientEvent::List(list)])
    }
}
