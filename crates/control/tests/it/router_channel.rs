//! The channel between a provider's routers and its key server: usage arrives whatever is cut, lists are pushed, rates are leased,
//! and whoever errs is named.
//!
//! PLA-06, behind and set back: a router with a later list, or one of other records under the same numbers: it is sent
//! no other list, also by the next process.
//! PLA, several key servers: one that takes no usage is left for another; rates are the lessor's; lists of others are no sign of an old
//! database.
//! PLA, folded usage: a router's clock that is ahead, usage that comes after its time was closed: no more is confirmed
//! than has passed; it is billed once, as late.
//! PLA, usage: reports lost, late and repeated, and another router in the place of one: totals are answered once they
//! are durable, and never counted twice.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use wayleave_control::capability::{
    ChangeTimes, ChannelMessage, ChargedAccount, Fold, JournalId, Ledger, MAX_REFUSED, PayerRefusals, Position,
    RatePayer, RateTerms, RefusalReason, RefusalReport, ReportOutcome, RouterClient, RouterClientEvent, RouterEvent,
    RouterServer, RouterServerConfig, RouterServerInput, RouterServerOutput, ServerFault, SharedRate, Usage,
    UsageAnswer, UsageChange, UsageRecord, UsageRefusal, UsageReport,
};
use wayleave_control::leases::{LeaseAnswer, LeaseRequest, Offline, floor};
use wayleave_control::tenure::Term;
use wayleave_core::{IdentityKey, Instant, Machine, Now, UnixTime};
use wayleave_packet::platypus::header::{DelegationId, Principal};

const RATE: u64 = 1_000_000;

fn account(number: u8) -> ChargedAccount {
    ChargedAccount([number; ChargedAccount::LENGTH])
}

fn usage(packets: u128) -> Usage {
    Usage { packets, octets: packets * 100 }
}

fn router(number: u8) -> IdentityKey {
    IdentityKey([number; 32])
}

fn payer(delegation: Option<u32>) -> RatePayer {
    let delegation = delegation.map(|id| DelegationId::new(id).expect("24 bits"));
    RatePayer { principal: Principal::new(7).expect("24 bits"), delegation }
}

/// A term without an end.
fn lasting() -> Term {
    Term { epoch: 1, renewed: Now { instant: Instant(u64::MAX), unix: UnixTime(u64::MAX) } }
}

/// Where the changes of a database end, or of another one.
fn at_change_of(number: u64, history: u8) -> Position {
    Position { timeline: 0, number, digest: [history; 32] }
}

fn at_change(number: u64) -> Position {
    at_change_of(number, 1)
}

/// What a router sends by its one link.
fn by_link((link, octets): (u64, Vec<u8>)) -> Vec<u8> {
    assert_eq!(link, 1);
    octets
}

/// The router at this end has heard that the database of the server at this link has what it has seen.
fn believe(client: &mut RouterClient, link: u64) {
    let octets = ChannelMessage::Continues { position: Position::default() }.encode();
    assert_eq!(client.frame(link, &octets, now(0).instant), Ok(Vec::new()));
}

/// The router at this end has a link to such a server.
fn connect(client: &mut RouterClient, link: u64) {
    client.connected(link);
    believe(client, link);
}

/// The router at this end has heard that the server leases rates.
fn lease_from(client: &mut RouterClient, epoch: u64) {
    believe(client, 1);
    let octets = ChannelMessage::Lessor { epoch }.encode();
    let heard = RouterClientEvent::Lessor { link: 1, epoch };
    assert_eq!(client.frame(1, &octets, now(0).instant), Ok(vec![heard]));
}

fn now(millis: u64) -> Now {
    Now { instant: Instant(millis * 1_000_000), unix: UnixTime(1_800_000_000_000_000 + millis * 1_000) }
}

type Stored = BTreeMap<(u16, JournalId, ChargedAccount), Usage>;

/// A server, its store, and what it said to its driver.
struct Server {
    machine: RouterServer,
    /// What a store decides by, which has every step at once, and what of it is durable.
    ledger: Ledger<ChargedAccount>,
    limit: usize,
    stored: Stored,
    /// Steps that the store is not at yet.
    pending: Vec<(u64, UsageChange)>,
    sent: Vec<(u64, Vec<u8>)>,
    closed: Vec<(u64, &'static str)>,
    events: Vec<RouterEvent>,
    superseded: Option<u64>,
    checks: Vec<(u64, Position)>,
    refused: Vec<(u16, RefusalReport, UnixTime)>,
    /// The second up to which time is closed, and the number of the statement, in the store.
    closed_up_to: (u64, u64),
    confirmed: BTreeMap<u16, u64>,
}

fn terms(rate: u64) -> RateTerms {
    RateTerms { rate, ..RateTerms::default() }
}

impl Server {
    /// How many routers have been told rates.
    fn status_told(&self) -> usize {
        self.machine.status().values().filter(|status| status.told.is_some()).count()
    }

    fn new(stored: Stored, millis: u64) -> Self {
        Self::with_limit(stored, 1_000, millis)
    }

    /// One that keeps so many records of each payer.
    fn with_limit(stored: Stored, limit: usize, millis: u64) -> Self {
        let routers = BTreeMap::from([(router(1), 10), (router(2), 20)]);
        let rates = BTreeMap::from([(payer(None), terms(RATE)), (payer(Some(9)), terms(RATE))]);
        let (confirmed, ahead) = (BTreeMap::new(), BTreeMap::new());
        let config = RouterServerConfig { routers, rates, confirmed, ahead };
        let mut server = Self {
            machine: RouterServer::new(config, now(millis).instant),
            ledger: Ledger::new(limit),
            limit,
            stored,
            pending: Vec::new(),
            sent: Vec::new(),
            closed: Vec::new(),
            events: Vec::new(),
            superseded: None,
            checks: Vec::new(),
            refused: Vec::new(),
            closed_up_to: (0, 0),
            confirmed: BTreeMap::new(),
        };
        server.ledger = server.restored();
        server.input(RouterServerInput::Term(Some(lasting()), BTreeSet::new()), millis);
        server
    }

    fn input(&mut self, input: RouterServerInput, millis: u64) {
        self.machine.handle(input, now(millis));
        while let Some(output) = self.machine.poll() {
            match output {
                RouterServerOutput::Send { link, octets } => self.sent.push((link, octets)),
                RouterServerOutput::Close { link, why } => self.closed.push((link, why)),
                RouterServerOutput::Store { step, change } => self.pending.push((step, change)),
                RouterServerOutput::Check { link, seen } => self.checks.push((link, seen)),
                RouterServerOutput::Refusals { router, report, received } => {
                    self.refused.push((router, report, received))
                }
                RouterServerOutput::Renew => {
                    self.machine.handle(RouterServerInput::Term(Some(lasting()), BTreeSet::new()), now(millis));
                }
                RouterServerOutput::Superseded { epoch, .. } => self.superseded = Some(epoch),
                RouterServerOutput::Event(event) => self.events.push(event),
            }
        }
    }

    fn frame(&mut self, link: u64, message: &ChannelMessage, millis: u64) {
        self.input(RouterServerInput::Frame { link, octets: message.encode() }, millis);
    }

    fn list(&mut self, number: u64, octets: Arc<[u8]>, times: ChangeTimes) {
        self.input(RouterServerInput::List { number, octets, times }, 0);
    }

    fn connect(&mut self, link: u64, number: u8) {
        self.input(RouterServerInput::Connected { link, peer: router(number) }, 0);
    }

    /// What a step does in the store.
    fn carry_out(&mut self, change: UsageChange) -> Result<ReportOutcome, UsageRefusal> {
        match change {
            UsageChange::Report { router, report, received } => {
                let mut taken = self.ledger.take(router, &report, received.secs())?;
                let (changed, removed) = (std::mem::take(&mut taken.changed), std::mem::take(&mut taken.removed));
                self.keep(changed, &removed);
                return Ok(taken.into());
            }
            UsageChange::Confirm { router, through } => {
                self.ledger.confirm(router, through);
                self.confirmed.clone_from(self.ledger.confirmed());
            }
            UsageChange::Ahead { .. } => {}
        }
        Ok(ReportOutcome::default())
    }

    fn keep(&mut self, changed: Vec<UsageRecord<ChargedAccount>>, removed: &[(u16, JournalId, ChargedAccount)]) {
        for UsageRecord { router, journal, account, total } in changed {
            self.stored.insert((router, journal, account), total);
        }
        for total in removed {
            self.stored.remove(total);
        }
    }

    /// All that waits becomes durable.
    fn sync(&mut self, millis: u64) {
        for (step, change) in std::mem::take(&mut self.pending) {
            let outcome = self.carry_out(change);
            self.input(RouterServerInput::Stored { step, outcome }, millis);
        }
    }

    /// The store closes time up to this second, behind all that waits, and folds it.
    fn close(&mut self, second: u64) {
        self.sync(0);
        assert!(self.ledger.close(second, self.machine.status().keys().copied()));
        self.closed_up_to = (self.ledger.closed(), self.ledger.statement());
        self.confirmed.clone_from(self.ledger.confirmed());
        self.fold();
        self.input(RouterServerInput::Confirmed(self.confirmed.clone()), 0);
    }

    fn fold(&mut self) {
        while let Some(Fold { changed, removed }) = self.ledger.fold(2) {
            self.keep(changed, &removed);
        }
    }

    /// What a new process has, which starts on what is stored.
    fn restored(&self) -> Ledger<ChargedAccount> {
        let mut ledger = Ledger::new(self.limit).with_calendar(ChargedAccount::CALENDAR, self.closed_up_to);
        for ((router, journal, account), total) in &self.stored {
            ledger.restore(&UsageRecord { router: *router, journal: *journal, account: *account, total: *total });
        }
        self.confirmed.iter().for_each(|(router, second)| ledger.restore_confirmed(*router, *second));
        ledger
    }

    /// Which lists of other databases routers have, as the store is to note it.
    fn ahead(&self) -> Vec<(u16, Option<u64>)> {
        let ahead = |(_, change): &(u64, UsageChange)| match change {
            UsageChange::Ahead { router, has } => Some((*router, *has)),
            _ => None,
        };
        self.pending.iter().filter_map(ahead).collect()
    }

    fn sent(&mut self) -> Vec<(u64, ChannelMessage)> {
        let all = std::mem::take(&mut self.sent).into_iter();
        all.map(|(link, octets)| (link, ChannelMessage::decode(&octets).expect("what was encoded"))).collect()
    }
}

fn report(number: u64, entries: Vec<(ChargedAccount, Usage)>) -> ChannelMessage {
    ChannelMessage::Report(UsageReport { journal: JournalId([1; 16]), number, entries })
}

#[test]
fn a_report_is_answered_once_its_totals_are_durable_also_when_it_is_repeated() {
    let mut server = Server::new(BTreeMap::new(), 0);
    server.connect(1, 1);
    server.frame(1, &report(1, vec![(account(1), usage(5))]), 0);
    // The same again before the store has it: no answer may say that it does.
    server.frame(1, &report(2, vec![(account(1), usage(5))]), 0);
    assert_eq!((server.sent(), server.machine.waiting()), (Vec::new(), 2));
    server.sync(0);
    let answer = |number| (1, ChannelMessage::Answer(UsageAnswer { number, is_behind: false }));
    assert_eq!(server.sent(), [answer(1), answer(2)]);
    assert_eq!(server.stored.values().copied().collect::<Vec<_>>(), [usage(5)]);
}

#[test]
fn strangers_malformed_messages_and_those_that_routers_do_not_send_are_named_and_end_the_link() {
    let mut server = Server::new(BTreeMap::new(), 0);
    server.connect(1, 3);
    assert_eq!(server.events, [RouterEvent::Stranger(router(3))]);
    assert_eq!(server.closed, [(1, "no router of this provider")]);
    // What a stranger sent before its link was closed.
    server.frame(1, &report(1, vec![(account(1), usage(5))]), 0);
    assert!(server.pending.is_empty());

    server.connect(2, 1);
    server.input(RouterServerInput::Frame { link: 2, octets: vec![1, 1, 0] }, 0);
    assert!(server.events.iter().any(|event| matches!(event, RouterEvent::Malformed { router: 10, .. })));
    assert_eq!(server.closed.last(), Some(&(2, "a malformed message")));
    server.connect(3, 1);
    server.frame(3, &ChannelMessage::Answer(UsageAnswer { number: 1, is_behind: true }), 0);
    assert!(server.events.contains(&RouterEvent::Unexpected(10)));
    assert_eq!(server.closed.last(), Some(&(3, "a message that routers do not send")));
    // A second link of the same router takes the place of the first.
    server.connect(4, 1);
    server.connect(5, 1);
    assert_eq!(server.closed.last(), Some(&(4, "this router has connected again")));
    assert_eq!(server.machine.status()[&10].link, Some(5));
}

/// A holder asks any of the key servers: each has what was refused from the router itself, also one that it does not report usage to.
#[test]
fn what_was_refused_goes_to_every_server_that_is_believed_and_waits_for_no_store() {
    let mut client = RouterClient::new(JournalId([1; 16]), BTreeMap::new(), None);
    connect(&mut client, 1);
    connect(&mut client, 2);
    client.connected(3);
    let packets = BTreeMap::from([(RefusalReason::Rate, 40), (RefusalReason::Revoked, 0)]);
    let report = RefusalReport::largest(90, BTreeMap::from([(payer(None).principal, packets)]));
    let (links, octets) = client.tell_refusals(report.clone());
    assert_eq!(links, [1, 2], "nothing is known of the database of the third");
    let mut server = Server::new(Stored::new(), 0);
    server.connect(1, 1);
    server.connect(2, 2);
    server.sent.clear();
    for link in [1, 2, 9] {
        server.input(RouterServerInput::Frame { link, octets: octets.clone() }, 5_000);
    }
    assert_eq!(server.refused, [(10, report.clone(), now(5_000).unix), (20, report.clone(), now(5_000).unix)]);
    assert!(server.pending.is_empty() && server.sent.is_empty() && server.closed.is_empty());
    // A server never sends it.
    let answer = client.frame(1, &ChannelMessage::Refusals(report).encode(), now(0).instant);
    assert_eq!(answer, Err(ServerFault::Unexpected));
}

#[test]
fn reports_of_refusals_are_bounded_and_have_one_order() {
    let of = |number: u32, packets: u64| {
        (Principal::new(number).expect("24 bits"), BTreeMap::from([(RefusalReason::Replayed, packets)]))
    };
    // Those with most are told, however many there are.
    let most = MAX_REFUSED as u32;
    let report = RefusalReport::largest(1, (0..most + 10).map(|number| of(number, number.into())).collect());
    assert_eq!(report.payers.len(), MAX_REFUSED);
    assert_eq!(report.payers[0].principal.number(), 10);
    let octets = ChannelMessage::Refusals(report.clone()).encode();
    assert_eq!(ChannelMessage::decode(&octets), Ok(ChannelMessage::Refusals(report.clone())));
    let mut payers = report.payers.clone();
    payers.push(PayerRefusals { principal: Principal::new(most + 10).expect("24 bits"), packets: Vec::new() });
    let is_refused =
        |report: RefusalReport| ChannelMessage::decode(&ChannelMessage::Refusals(report).encode()).is_err();
    assert!(is_refused(RefusalReport { secs: 1, payers }), "too many");
    let mut payers = report.payers[..2].to_vec();
    payers.reverse();
    assert!(is_refused(RefusalReport { secs: 1, payers }), "not in order");
    assert!(is_refused(RefusalReport { secs: 1, payers: vec![report.payers[0].clone(); 2] }), "twice");
    let twice = vec![(RefusalReason::Rate, 1); 2];
    let payers = vec![PayerRefusals { principal: payer(None).principal, packets: twice }];
    assert!(is_refused(RefusalReport { secs: 1, payers }), "a reason twice");
}

#[test]
fn a_refused_report_names_why_and_the_router_pauses() {
    let mut server = Server::new(BTreeMap::new(), 0);
    server.connect(1, 1);
    for journal in 0..64_u8 {
        let report =
            UsageReport { journal: JournalId([journal; 16]), number: 1, entries: vec![(account(1), usage(1))] };
        server.frame(1, &ChannelMessage::Report(report), 0);
        server.sync(0);
    }
    let mut client = RouterClient::new(JournalId([200; 16]), BTreeMap::new(), None);
    connect(&mut client, 1);
    client.durable(account(1), usage(1));
    let report = client.report(now(0).instant).map(by_link).expect("there is usage");
    server.sent.clear();
    server.input(RouterServerInput::Frame { link: 1, octets: report }, 0);
    assert!(server.sent.is_empty(), "the store says so");
    server.sync(0);
    assert_eq!(server.machine.status()[&10].refused, 1);
    let refused = RouterEvent::Refused { router: 10, why: UsageRefusal::TooManyJournals };
    assert_eq!(server.events.last(), Some(&refused));
    let (_, answer) = server.sent.pop().expect("an answer");
    let events = client.frame(1, &answer, now(0).instant).expect("well formed");
    assert_eq!(events, [RouterClientEvent::Refused(UsageRefusal::TooManyJournals)]);
    assert_eq!(client.report(now(29_000).instant).map(by_link), None);
    assert!(client.report(now(41_000).instant).map(by_link).is_some(), "it is tried again");
    // So does a server that cannot read what its database has.
    server.frame(
        1,
        &ChannelMessage::Report(UsageReport { journal: JournalId([1; 16]), number: 7, entries: vec![] }),
        0,
    );
    let (step, _) = server.pending.remove(0);
    server.input(RouterServerInput::Stored { step, outcome: Err(UsageRefusal::Unreadable) }, 0);
    let (_, answer) = server.sent.pop().expect("an answer");
    let events = client.frame(1, &answer, now(41_000).instant).expect("well formed");
    assert_eq!(events, [RouterClientEvent::Refused(UsageRefusal::Unreadable)]);
}

#[test]
fn a_list_goes_once_to_whoever_follows_and_has_an_older_one_and_in_pieces() {
    let mut server = Server::new(BTreeMap::new(), 0);
    let list: Arc<[u8]> = (0..600_000_u32).map(|octet| octet as u8).collect();
    server.connect(1, 1);
    server.connect(2, 2);
    let mut client = RouterClient::new(JournalId([1; 16]), BTreeMap::new(), Some(3 << 32));
    server.input(RouterServerInput::Frame { link: 1, octets: client.connected(1) }, 0);
    server.list(3 << 32, Arc::clone(&list), ChangeTimes::default());
    assert!(server.sent.is_empty(), "it has that list");
    server.list(4 << 32, Arc::clone(&list), ChangeTimes::default());
    server.list(2 << 32, Arc::from([9_u8]), ChangeTimes::default());
    let sent = std::mem::take(&mut server.sent);
    assert!(sent.len() == 3 && sent.iter().all(|(link, _)| *link == 1), "nobody else follows");
    let mut events = Vec::new();
    for (_, octets) in &sent {
        events.extend(client.frame(1, octets, now(0).instant).expect("in order"));
    }
    assert_eq!(events, [RouterClientEvent::List(list.to_vec())]);
    assert_eq!(client.has_list(4 << 32), None, "there is no other server");
    server.input(RouterServerInput::Frame { link: 1, octets: client.connected(1) }, 0);
    assert!(server.sent.is_empty(), "it has said that it has it");

    // Pieces that do not follow one another are the server's fault.
    client.frame(1, &sent[0].1, now(0).instant).expect("the first");
    assert_eq!(client.frame(1, &sent[2].1, now(0).instant), Err(ServerFault::Pieces));
    assert_eq!(client.frame(1, &report(1, Vec::new()).encode(), now(0).instant), Err(ServerFault::Unexpected));
}

#[test]
fn a_router_with_a_later_list_than_the_server_shows_that_it_was_set_back_and_is_sent_no_list() {
    let mut server = Server::new(BTreeMap::new(), 0);
    let list: Arc<[u8]> = Arc::from([9_u8; 100]);
    server.connect(1, 1);
    server.connect(2, 2);
    let of_change = |change: u64| change << 32 | 7;
    server.frame(1, &ChannelMessage::Follow { list: Some(of_change(8)) }, 0);
    server.frame(2, &ChannelMessage::Follow { list: Some(of_change(5)) }, 0);
    server.events.clear();
    server.list(of_change(6), Arc::clone(&list), ChangeTimes::default());
    let links = |server: &mut Server| server.sent().iter().map(|(link, _)| *link).collect::<Vec<_>>();
    assert_eq!((links(&mut server), server.events.len()), (vec![2], 0), "another key server may have more");
    // The store was read since the router said so, and has no more.
    let read = |server: &mut Server, number| server.input(RouterServerInput::Read(at_change(number)), 0);
    read(&mut server, 6);
    assert_eq!(server.events, []);
    read(&mut server, 6);
    assert_eq!(server.events, [RouterEvent::Ahead { router: 10, has: of_change(8), own: of_change(6) }]);
    // Also once the number is higher, since the list lacks what was lost; the other router was never ahead.
    server.list(of_change(9), Arc::clone(&list), ChangeTimes::default());
    assert_eq!(links(&mut server), [2]);
    server.input(RouterServerInput::Disconnected { link: 1 }, 0);
    server.connect(3, 1);
    server.frame(3, &ChannelMessage::Follow { list: Some(of_change(8)) }, 0);
    assert!(links(&mut server).is_empty());
    let status = |server: &Server| server.machine.status().values().map(|of| of.is_ahead).collect::<Vec<_>>();
    assert_eq!(status(&server), [true, false]);
    assert_eq!(server.events.iter().filter(|event| matches!(event, RouterEvent::Ahead { .. })).count(), 1);
    // Its usage and its shares of rates do not depend on lists.
    server.frame(3, &report(1, vec![(account(1), usage(5))]), 0);
    server.sync(0);
    assert_eq!(server.sent().len(), 1);
}

/// A router has lists of two key servers, of which one has read the store later, or has signed the same changes later.
#[test]
fn a_list_of_another_key_server_is_no_sign_of_a_database_that_was_set_back() {
    let mut server = Server::new(BTreeMap::new(), 0);
    let list: Arc<[u8]> = Arc::from([9_u8; 100]);
    let times = |last: u64| ChangeTimes { last, seconds: (0..=last).map(|change| 100 + change).collect() };
    let at = |change: u64, second: u64| change << 32 | second;
    server.connect(1, 1);
    server.list(at(6, 2_000), Arc::clone(&list), times(6));
    // It is signed anew each hour.
    for (has, behind) in [(at(6, 200), 1), (at(6, 201), 0), (at(6, 2_000), 0), (at(6, 2_100), 0)] {
        server.frame(1, &ChannelMessage::Follow { list: Some(has) }, 0);
        assert_eq!(server.sent().len(), behind, "{has:x}");
    }
    server.frame(1, &ChannelMessage::Follow { list: Some(at(8, 250)) }, 0);
    // It has read change 8, and its list of that is still being written.
    for _ in 0..5 {
        server.input(RouterServerInput::Read(at_change(8)), 0);
    }
    server.list(at(7, 260), Arc::clone(&list), times(7));
    server.list(at(8, 270), Arc::clone(&list), times(8));
    assert_eq!(server.sent().len(), 0, "another's of the same changes is as good");
    assert!(!server.machine.status()[&10].is_ahead && server.ahead().is_empty() && server.events.len() == 1);
}

/// The router's part is played by a client; what the server says goes to it, and what it makes of that is returned.
fn hear(server: &mut Server, client: &mut RouterClient, link: u64) -> Vec<RouterClientEvent> {
    let sent = std::mem::take(&mut server.sent);
    let heard = sent.iter().flat_map(|(_, octets)| client.frame(link, octets, now(0).instant).expect("sound"));
    heard.collect()
}

#[test]
fn a_server_whose_database_lacks_what_the_router_has_seen_tells_it_nothing_until_it_is_adopted() {
    let mut client = RouterClient::new(JournalId([1; 16]), BTreeMap::new(), None);
    let watch = |server: &mut Server, client: &mut RouterClient, link| {
        server.connect(link, 1);
        client.connected(link);
        server.input(RouterServerInput::Frame { link, octets: client.watch() }, 0);
    };
    let mut server = Server::new(BTreeMap::new(), 0);
    server.input(RouterServerInput::Read(at_change(5)), 0);
    watch(&mut server, &mut client, 1);
    let events = hear(&mut server, &mut client, 1);
    assert_eq!(events.first(), Some(&RouterClientEvent::Seen(at_change(5))));
    assert!(
        matches!(events[1..], [RouterClientEvent::Rates(_), RouterClientEvent::Lessor { link: 1, .. }, ..]),
        "{events:?}"
    );
    server.input(RouterServerInput::Read(at_change(6)), 0);
    assert_eq!(hear(&mut server, &mut client, 1), [RouterClientEvent::Seen(at_change(6))]);
    server.input(RouterServerInput::Read(at_change(6)), 0);
    assert_eq!(server.sent(), []);
    client.disconnected(1);

    // Another process on an old copy, which has gone on from there: to the same number, and further.
    let mut server = Server::new(BTreeMap::new(), 0);
    server.input(RouterServerInput::Read(at_change_of(7, 2)), 0);
    watch(&mut server, &mut client, 2);
    assert_eq!((server.checks.clone(), server.sent.len()), (vec![(2, at_change(6))], 0), "the store says it first");
    let checked = |seen, continues| RouterServerInput::Checked { link: 2, seen, continues };
    server.input(checked(at_change(5), true), 0);
    assert_eq!(server.sent.len(), 0, "of what it had not asked for");
    server.input(checked(at_change(6), false), 0);
    let own = at_change_of(7, 2);
    assert_eq!(hear(&mut server, &mut client, 2), [RouterClientEvent::Lacks { seen: at_change(6), own }]);
    assert!(server.events.contains(&RouterEvent::Lacks { router: 10, seen: 6, own: 7 }));
    assert!(server.machine.status()[&10].lacks && client.lessor().is_none());
    // Whatever it says later, and more changes.
    server.input(RouterServerInput::Read(at_change_of(8, 2)), 0);
    server
        .input(RouterServerInput::Configure { routers: BTreeMap::from([(router(1), 10)]), rates: BTreeMap::new() }, 0);
    assert_eq!((hear(&mut server, &mut client, 2), server.checks.len()), (Vec::new(), 1));
    // Usage would be lost with what is set back.
    client.durable(account(1), usage(1));
    assert_eq!((client.report(now(0).instant), client.is_forgettable(&account(2))), (None, false));
    // From time to time it is looked again: the database may be the right one again.
    server.input(RouterServerInput::Read(at_change_of(8, 2)), 5_000);
    server.input(RouterServerInput::Read(at_change_of(8, 2)), 5_200);
    assert_eq!(server.checks.len(), 2);
    server.input(checked(at_change(6), false), 5_300);
    assert_eq!(server.sent.len(), 0, "it was said");
    for message in [ChannelMessage::Rates(Vec::new()), ChannelMessage::Lessor { epoch: 9 }] {
        assert_eq!(client.frame(2, &message.encode(), now(0).instant), Ok(Vec::new()));
    }
    // Its operator accepts it.
    let adopted = Position { timeline: 1, number: 1_000, digest: [3; 32] };
    server.input(RouterServerInput::Read(adopted), 0);
    assert_eq!(server.checks.last(), Some(&(2, at_change(6))));
    server.input(checked(at_change(6), true), 0);
    let events = hear(&mut server, &mut client, 2);
    assert_eq!(events.first(), Some(&RouterClientEvent::Seen(adopted)));
    assert!(
        matches!(events[1..], [RouterClientEvent::Rates(_), RouterClientEvent::Lessor { link: 2, .. }, ..]),
        "{events:?}"
    );
}

/// Two key servers, of which one is on a copy of the database that has gone on by itself: the router tells them apart by itself.
#[test]
fn of_two_databases_with_one_number_the_router_believes_the_one_that_it_has_seen() {
    let mut client = RouterClient::new(JournalId([1; 16]), BTreeMap::new(), None);
    for link in [1, 2] {
        client.connected(link);
    }
    let mut hear =
        |link, message: ChannelMessage| client.frame(link, &message.encode(), now(0).instant).expect("sound");
    hear(1, ChannelMessage::Continues { position: at_change(5) });
    hear(2, ChannelMessage::Continues { position: at_change(4) });
    hear(2, ChannelMessage::Lessor { epoch: 3 });
    let (seen, own) = (at_change(5), at_change_of(5, 2));
    let events = hear(2, ChannelMessage::Continues { position: own });
    assert_eq!(events, [RouterClientEvent::Lacks { seen, own }]);
    assert_eq!(hear(2, ChannelMessage::Lessor { epoch: 4 }), []);
    // Nor what the other one goes on to.
    hear(2, ChannelMessage::Continues { position: at_change_of(6, 2) });
    assert_eq!(hear(2, ChannelMessage::Lessor { epoch: 5 }), []);
    assert_eq!(hear(1, ChannelMessage::Continues { position: at_change(6) }), [RouterClientEvent::Seen(at_change(6))]);
    assert_eq!(hear(1, ChannelMessage::Lessor { epoch: 3 }), [RouterClientEvent::Lessor { link: 1, epoch: 3 }]);
    assert_eq!(hear(2, ChannelMessage::Rates(Vec::new())), []);
}

/// The writer's disk is lost after change 100, and the backup ends with change 90. It goes on from there to change 101.
#[test]
fn a_router_with_a_list_of_other_records_is_told_from_one_that_is_behind_also_after_a_restart() {
    let list: Arc<[u8]> = Arc::from([9_u8; 100]);
    // Changes up to 90 were signed in the second of their number; later ones, of the new history, from second 5,000 on.
    let times = |last: u64| ChangeTimes {
        last,
        seconds: (80..=last).map(|change| if change > 90 { 4_909 + change } else { change }).collect(),
    };
    let at = |change: u64, second: u64| change << 32 | second;
    let follow = |server: &mut Server, number: u8, list: Option<u64>| {
        let link = 100 + u64::from(number);
        server.connect(link, number);
        server.frame(link, &ChannelMessage::Follow { list }, 0);
        let sent = server.sent().len();
        server.input(RouterServerInput::Disconnected { link }, 0);
        sent
    };
    let mut server = Server::new(BTreeMap::new(), 0);
    server.list(at(101, 6_000), Arc::clone(&list), times(101));
    // What was revoked by changes 91 to 100 is not in this list, though its number is higher.
    assert_eq!(follow(&mut server, 1, Some(at(100, 4_000))), 0);
    assert!(server.events.contains(&RouterEvent::Ahead { router: 10, has: at(100, 4_000), own: at(101, 6_000) }));
    // A list that both histories have, one of the new history, and one so old that nothing is known of it.
    for behind in [at(90, 3_999), at(95, 5_100), at(3, 3)] {
        assert_eq!(follow(&mut server, 2, Some(behind)), 1, "{behind:x}");
    }
    assert_eq!(server.ahead(), [(10, Some(at(100, 4_000)))]);
    // The next process knows nothing of change 100, as it began with a snapshot; the mark stays.
    let restarted = |ahead: BTreeMap<u16, u64>, times: ChangeTimes| {
        let mut server = Server::new(BTreeMap::new(), 0);
        let routers = BTreeMap::from([(router(1), 10), (router(2), 20)]);
        let (rates, confirmed) = (BTreeMap::new(), BTreeMap::new());
        let config = RouterServerConfig { routers, rates, confirmed, ahead };
        server.machine = RouterServer::new(config, now(0).instant);
        server.list(at(200, 9_000), Arc::clone(&list), times);
        server
    };
    let mark = BTreeMap::from([(10, at(100, 4_000))]);
    let mut server = restarted(mark.clone(), ChangeTimes { last: 200, seconds: Arc::from([8_000]) });
    assert!(server.machine.status()[&10].is_ahead);
    for _ in 0..2 {
        assert_eq!(follow(&mut server, 1, Some(at(100, 4_000))), 0);
    }
    let is_ahead = |event: &&RouterEvent| matches!(event, RouterEvent::Ahead { router: 10, .. });
    assert_eq!(server.events.iter().filter(is_ahead).count(), 1, "each process says it once");
    assert_eq!(follow(&mut server, 2, Some(at(150, 7_000))), 1);
    // Once the router has forgotten its list, and once the records that were lost are back, it is as any other.
    assert_eq!(follow(&mut server, 1, None), 1);
    let whole = ChangeTimes { last: 200, seconds: (0..=200).map(|change| change * 30).collect() };
    let mut restored = restarted(mark, whole);
    assert_eq!(follow(&mut restored, 1, Some(at(100, 4_000))), 1);
    for server in [&server, &restored] {
        assert_eq!(server.ahead(), [(10, None)]);
        assert!(!server.machine.status()[&10].is_ahead);
    }
}

/// Change 11 was signed by a clock that was ahead by a day; the lists of it and of the changes after it were too.
#[test]
fn a_list_whose_second_is_before_a_change_of_a_clock_that_was_ahead_is_not_taken_for_one_of_other_records() {
    let begin = now(0).unix.secs();
    let seconds: Arc<[u64]> = (0..=20).map(|change| if change > 10 { begin + 86_400 } else { begin }).collect();
    let times = ChangeTimes { last: 20, seconds };
    let at = |change: u64, second: u64| change << 32 | second;
    let after = |second: u64| UnixTime((begin + second) * 1_000_000);
    let of_change = |change: u64, second: u64, now: u64| times.has_list(at(change, begin + second), after(now));
    assert_eq!(of_change(15, 50, 100), None, "that time is still to come");
    assert_eq!(of_change(15, 50, 86_400), Some(false));
    assert_eq!(of_change(15, 86_400, 100), Some(true));
    assert_eq!((of_change(5, 50, 100), times.has_list(at(5, begin - 1), after(100))), (Some(true), Some(false)));
    // A router with such a list is sent the next one.
    let mut server = Server::new(BTreeMap::new(), 0);
    server.connect(1, 1);
    server.frame(1, &ChannelMessage::Follow { list: Some(at(15, begin + 50)) }, 0);
    server.list(at(20, begin + 86_400), Arc::from([9_u8; 100]), times.clone());
    assert_eq!((server.sent().len(), server.machine.status()[&10].is_ahead), (1, false));
}

#[test]
fn routers_share_a_rate_and_one_that_is_told_nothing_and_has_another_gets_no_more_of_it() {
    let mut server = Server::new(BTreeMap::new(), 0);
    let shared = |rate, routers| SharedRate { payer: payer(None), rate, routers, offline: Offline::Decay };
    let mut clients: Vec<RouterClient> = (0..2)
        .map(|which| {
            let mut client = RouterClient::new(JournalId([which; 16]), BTreeMap::new(), None);
            client.share(&[shared(RATE, 2)], u64::from(which) + 1);
            client
        })
        .collect();
    for (link, client) in clients.iter_mut().enumerate() {
        server.connect(link as u64, link as u8 + 1);
        connect(client, 1);
        lease_from(client, 1);
        client.demand(&payer(None), [900_000, 300_000][link]);
    }
    let floor = floor(RATE, 2);
    for millis in (0..3_000).step_by(100) {
        for (link, client) in clients.iter_mut().enumerate() {
            let octets = client.ask(now(millis).instant).map(by_link).expect("a rate is shared");
            server.input(RouterServerInput::Frame { link: link as u64, octets }, millis);
            for (to, octets) in std::mem::take(&mut server.sent) {
                assert_eq!(to, link as u64);
                assert_eq!(client.frame(1, &octets, now(millis).instant), Ok(Vec::new()));
            }
        }
    }
    let rates: Vec<u64> =
        clients.iter().map(|client| client.rates(now(2_950).instant).next().expect("one").1).collect();
    assert!(rates.iter().sum::<u64>() <= RATE && rates.iter().sum::<u64>() > RATE * 98 / 100, "{rates:?}");
    assert!(rates[0] > rates[1] * 2, "by demand: {rates:?}");
    // Cut off, each has what it had for a minute, and its floor in the end.
    let at = |seconds: u64| now(2_950).instant + Duration::from_secs(seconds);
    let sum = |of: Instant| clients.iter().flat_map(|client| client.rates(of)).map(|(_, rate)| rate).sum::<u64>();
    assert_eq!(sum(at(59)), rates.iter().sum::<u64>());
    assert!(sum(at(150)) < RATE * 70 / 100 && sum(at(150)) > RATE / 2);
    assert_eq!(sum(at(301)), 2 * floor);

    for other in [shared(RATE + 1, 2), shared(RATE, 3), SharedRate { offline: Offline::Floor, ..shared(RATE, 2) }] {
        clients[0].share(&[other], 1);
        let octets = clients[0].ask(now(5_000).instant).map(by_link).expect("a rate is shared");
        server.input(RouterServerInput::Frame { link: 0, octets }, 5_000);
        assert_eq!((server.sent.len(), server.closed.len()), (0, 0));
        assert!(server.events.contains(&RouterEvent::Differs { router: 10, rate: shared(RATE + 1, 2) }), "said once");
        let later = now(5_000).instant + Duration::from_secs(300);
        assert!(clients[0].rates(later).all(|(_, rate)| rate <= RATE / 100));
    }
}

/// A server that has run for long gave nothing of a rate that is set now, though a router is silent; of one that was taken out a
/// moment ago it did.
#[test]
fn a_rate_that_is_new_is_given_at_once_and_one_that_was_taken_out_when_what_was_given_is_over() {
    let mut server = Server::new(BTreeMap::new(), 0);
    let mut client = RouterClient::new(JournalId([1; 16]), BTreeMap::new(), None);
    server.connect(0, 1);
    connect(&mut client, 1);
    server.input(RouterServerInput::Frame { link: 0, octets: client.watch() }, 0);
    let known = || BTreeMap::from([(router(1), 10), (router(2), 20)]);
    let mut share_at = |server: &mut Server, millis: u64, rates: BTreeMap<RatePayer, RateTerms>| {
        server.input(RouterServerInput::Configure { routers: known(), rates }, millis);
        for _ in 0..2 {
            for (_, octets) in std::mem::take(&mut server.sent) {
                for event in client.frame(1, &octets, now(millis).instant).expect("sound") {
                    let RouterClientEvent::Rates(rates) = event else { continue };
                    client.share(&rates.into_iter().map(|(rate, _)| rate).collect::<Vec<_>>(), 1);
                }
            }
            client.demand(&payer(Some(3)), RATE);
            let Some(octets) = client.ask(now(millis).instant).map(by_link) else { return 0 };
            server.input(RouterServerInput::Frame { link: 0, octets }, millis);
        }
        let of = |(_, octets): &(u64, Vec<u8>)| match ChannelMessage::decode(octets) {
            Ok(ChannelMessage::Leased { answers, .. }) => answers.iter().map(|(_, answer)| answer.share).max(),
            _ => None,
        };
        server.sent.iter().filter_map(of).max().unwrap_or(0)
    };
    let set = || BTreeMap::from([(payer(Some(3)), terms(RATE))]);
    let day = 86_400_000;
    assert_eq!(share_at(&mut server, day, BTreeMap::new()), 0);
    assert_eq!(share_at(&mut server, day + 1_000, set()), RATE - RATE / 100);
    share_at(&mut server, day + 2_000, BTreeMap::new());
    assert_eq!(share_at(&mut server, day + 3_000, set()), 0, "the silent one may have had something");
    assert_eq!(share_at(&mut server, day + 2_000 + 400_000, set()), RATE - RATE / 100);
}

/// The rate is lowered, raised, and shared with one router more: whoever has not been told yet is served, and all of them never have
/// more together than the greater rate before, and the present one after they were told.
#[test]
fn routers_are_told_rates_and_go_on_by_those_of_before_until_they_are() {
    let mut server = Server::new(BTreeMap::new(), 0);
    let mut clients: Vec<RouterClient> =
        (0..2).map(|which| RouterClient::new(JournalId([which; 16]), BTreeMap::new(), None)).collect();
    for (link, client) in clients.iter_mut().enumerate() {
        server.connect(link as u64, link as u8 + 1);
        connect(client, 1);
        server.input(RouterServerInput::Frame { link: link as u64, octets: client.watch() }, 0);
    }
    // Each takes what it is told, the second one late.
    let mut told: [Vec<Vec<u8>>; 2] = Default::default();
    let deliver = |server: &mut Server,
                   told: &mut [Vec<Vec<u8>>; 2],
                   clients: &mut [RouterClient],
                   millis: u64,
                   is_late: bool| {
        for (to, octets) in std::mem::take(&mut server.sent) {
            told[to as usize].push(octets);
        }
        for (which, client) in clients.iter_mut().enumerate().filter(|(which, _)| !is_late || *which == 0) {
            for octets in std::mem::take(&mut told[which]) {
                for event in client.frame(1, &octets, now(millis).instant).expect("sound") {
                    let RouterClientEvent::Rates(rates) = event else { continue };
                    let rates: Vec<SharedRate> = rates.into_iter().map(|(rate, _)| rate).collect();
                    client.share(&rates, which as u64 + 1);
                }
            }
        }
    };
    deliver(&mut server, &mut told, &mut clients, 0, false);
    let of = |client: &RouterClient, millis: u64| client.rates(now(millis).instant).next().map_or(0, |(_, rate)| rate);
    let (mut millis, mut rate) = (0, RATE);
    for (next, routers) in [(RATE, 2u16), (RATE / 4, 2), (RATE * 2, 2), (RATE, 3), (RATE, 2)] {
        let known = [(router(1), 10), (router(2), 20), (router(3), 30)].into_iter().take(routers.into()).collect();
        let rates = BTreeMap::from([(payer(None), RateTerms { burst: 70_000, ..terms(next) })]);
        server.input(RouterServerInput::Configure { routers: known, rates }, millis);
        let changed = millis;
        while millis < changed + 9_000 {
            let is_late = millis < changed + 2_000;
            deliver(&mut server, &mut told, &mut clients, millis, is_late);
            for (link, client) in clients.iter_mut().enumerate() {
                client.demand(&payer(None), RATE);
                let octets = client.ask(now(millis).instant).map(by_link).expect("a rate is shared");
                server.input(RouterServerInput::Frame { link: link as u64, octets }, millis);
            }
            deliver(&mut server, &mut told, &mut clients, millis, is_late);
            let sum = of(&clients[0], millis) + of(&clients[1], millis);
            let most = if millis < changed + 3_000 { rate.max(next) } else { next };
            assert!(sum <= most, "{sum} of {most} at {} of {next} over {routers}", millis - changed);
            millis += 100;
        }
        let sum = of(&clients[0], millis - 100) + of(&clients[1], millis - 100);
        assert!(sum >= next.min(2 * RATE) * 98 / 100, "{sum} of {next}");
        assert_eq!((server.closed.len(), server.status_told()), (0, 2));
        rate = next;
    }
    // The bursts are told too, once for each change; one whose payer has no rate any more asks for nothing.
    server.input(
        RouterServerInput::Configure { routers: [(router(1), 10), (router(2), 20)].into(), rates: BTreeMap::new() },
        millis,
    );
    let octets = clients[0].ask(now(millis).instant).map(by_link).expect("not told yet");
    server.input(RouterServerInput::Frame { link: 0, octets: octets.clone() }, millis);
    assert_eq!(ChannelMessage::decode(&server.sent[0].1), Ok(ChannelMessage::Rates(Vec::new())));
    assert_eq!(server.sent.len(), 2, "told both, and answered nothing");
    server.sent.clear();
    // One that was told long ago, and goes on by another rate, gets no more of it, which is said once.
    let rates = BTreeMap::from([(payer(None), terms(RATE * 3))]);
    let known = [(router(1), 10), (router(2), 20)];
    server.input(RouterServerInput::Configure { routers: known.into(), rates }, millis);
    server.sent.clear();
    for late in [10_000, 10_100] {
        server.input(RouterServerInput::Frame { link: 0, octets: octets.clone() }, millis + late);
    }
    assert_eq!((server.sent.len(), server.closed.len()), (0, 0));
    let differs = |event: &&RouterEvent| matches!(event, RouterEvent::Differs { router: 10, .. });
    assert_eq!(server.events.iter().filter(differs).count(), 1);
}

#[test]
fn another_router_in_the_place_of_one_gets_nothing_until_all_have_said_what_they_use() {
    let mut server = Server::new(BTreeMap::new(), 0);
    let shared = SharedRate { payer: payer(None), rate: RATE, routers: 2, offline: Offline::Decay };
    let mut first = RouterClient::new(JournalId([1; 16]), BTreeMap::new(), None);
    first.share(&[shared], 1);
    first.connected(1);
    lease_from(&mut first, 1);
    first.demand(&payer(None), RATE);
    server.connect(1, 1);
    server.connect(2, 2);
    let mut second = RouterClient::new(JournalId([2; 16]), BTreeMap::new(), None);
    second.share(&[shared], 1);
    second.connected(1);
    lease_from(&mut second, 1);
    let ask = |server: &mut Server, client: &mut RouterClient, link: u64, millis: u64| {
        client.demand(&payer(None), RATE);
        let octets = client.ask(now(millis).instant).map(by_link).expect("a rate is shared");
        server.input(RouterServerInput::Frame { link, octets }, millis);
        for (_, octets) in std::mem::take(&mut server.sent) {
            client.frame(1, &octets, now(millis).instant).expect("well formed");
        }
        client.rates(now(millis).instant).next().expect("one").1
    };
    ask(&mut server, &mut second, 2, 900);
    ask(&mut server, &mut first, 1, 1_000);
    let whole = ask(&mut server, &mut first, 1, 1_020);
    assert!(whole > RATE / 4, "{whole}");
    // Its number is above the new one's now: who is which must not be mixed up.
    let routers = BTreeMap::from([(router(1), 10), (router(3), 5)]);
    let rates = BTreeMap::from([(payer(None), terms(RATE))]);
    server.input(RouterServerInput::Configure { routers, rates }, 1_050);
    server.connect(3, 3);
    let mut other = RouterClient::new(JournalId([3; 16]), BTreeMap::new(), None);
    other.share(&[shared], 2);
    other.connected(1);
    lease_from(&mut other, 1);
    for millis in (1_100..1_500).step_by(100) {
        let sum = ask(&mut server, &mut other, 3, millis) + first.rates(now(millis).instant).next().expect("one").1;
        assert!(sum <= RATE, "{sum} at {millis}");
    }
    // The first has what it had, and gives up what is the other's part.
    for millis in (1_500..2_500).step_by(100) {
        let first = ask(&mut server, &mut first, 1, millis);
        let sum = first + ask(&mut server, &mut other, 3, millis + 50);
        assert!(sum <= RATE && first >= whole.min(RATE * 45 / 100), "{sum} {first} at {millis}");
    }
    assert!(ask(&mut server, &mut other, 3, 2_500) > RATE * 45 / 100);
}

/// The identity of router 10 was stolen, and the operator has given the number to another.
#[test]
fn a_reload_ends_the_link_of_an_identity_that_is_no_longer_configured_though_its_number_is() {
    let mut server = Server::new(BTreeMap::new(), 0);
    server.connect(1, 1);
    server.connect(2, 2);
    let configure = |server: &mut Server, routers: [(IdentityKey, u16); 2]| {
        let (routers, rates) = (BTreeMap::from(routers), BTreeMap::new());
        server.input(RouterServerInput::Configure { routers, rates }, 0);
        std::mem::take(&mut server.closed).iter().map(|(link, _)| *link).collect::<Vec<_>>()
    };
    assert_eq!(configure(&mut server, [(router(3), 10), (router(2), 20)]), [1]);
    server.frame(1, &report(1, vec![(account(1), usage(5))]), 0);
    server.sync(0);
    assert!(server.stored.is_empty(), "nothing is billed on its word");
    // An identity that has another number now connects anew under it.
    assert_eq!(configure(&mut server, [(router(3), 20), (router(2), 10)]), [2]);
}

/// The store stalls while a report waits for it; the repetition is dropped, and the answer to the first comes late.
#[test]
fn a_router_repeats_its_report_after_an_answer_that_was_late_or_to_another_one() {
    let mut server = Server::new(BTreeMap::new(), 0);
    server.connect(1, 1);
    let mut client = RouterClient::new(JournalId([1; 16]), BTreeMap::new(), None);
    connect(&mut client, 1);
    client.durable(account(1), usage(5));
    let first = client.report(now(0).instant).map(by_link).expect("a report");
    server.input(RouterServerInput::Frame { link: 1, octets: first }, 0);
    assert_eq!(client.report(now(4_999).instant).map(by_link), None, "it waits for the answer");
    let second = client.report(now(5_000).instant).map(by_link).expect("no answer came");
    drop(second);
    // To a report that nobody waits for.
    let other = ChannelMessage::Answer(UsageAnswer { number: 7, is_behind: false }).encode();
    assert_eq!(client.frame(1, &other, now(5_500).instant), Ok(Vec::new()));
    assert_eq!(client.report(now(9_999).instant).map(by_link), None, "the repetition waits");
    assert!(client.report(now(10_000).instant).map(by_link).is_some(), "it is lost, and repeated");
    // Where every answer comes after the repetition, the totals arrive all the same.
    server.sync(11_000);
    for (_, octets) in std::mem::take(&mut server.sent) {
        assert_eq!(client.frame(1, &octets, now(11_000).instant), Ok(Vec::new()));
    }
    assert_eq!(client.waiting(), 0);
    client.durable(account(1), usage(6));
    assert!(client.report(now(11_000).instant).map(by_link).is_some());
}

/// A server of so many routers, each on the link of its number.
fn of_many(routers: u16) -> Server {
    let mut server = Server::new(BTreeMap::new(), 0);
    let identity = |number: u16| {
        let mut identity = IdentityKey([7; 32]);
        identity.0[..2].copy_from_slice(&number.to_be_bytes());
        identity
    };
    let known = (1..=routers).map(|number| (identity(number), number)).collect();
    server.input(RouterServerInput::Configure { routers: known, rates: BTreeMap::new() }, 0);
    for number in 1..=routers {
        server.input(RouterServerInput::Connected { link: number.into(), peer: identity(number) }, 0);
    }
    server
}

/// The report of one packet count by the router with this number.
fn report_of(link: u64, number: u64, packets: u128) -> ChannelMessage {
    let journal = JournalId((u128::from(link) + 1).to_be_bytes());
    ChannelMessage::Report(UsageReport { journal, number, entries: vec![(account(1), usage(packets))] })
}

fn answer(link: u64, number: u64) -> (u64, ChannelMessage) {
    (link, ChannelMessage::Answer(UsageAnswer { number, is_behind: false }))
}

#[test]
fn reports_beyond_four_of_one_router_that_wait_for_the_store_are_left_unanswered_and_hold_up_no_other_router() {
    let mut server = of_many(2);
    for number in 0..5_000_u32 {
        server.frame(1, &report_of(1, number.into(), number.into()), 0);
    }
    assert_eq!((server.pending.len(), server.machine.waiting(), server.sent.len()), (4, 4, 0));
    server.frame(2, &report_of(2, 1, 9), 0);
    assert_eq!((server.pending.len(), server.machine.waiting()), (5, 5));
    // On a new link the same router has no more.
    let peer = IdentityKey([&[0, 1][..], &[7; 30]].concat().try_into().expect("32 octets"));
    server.input(RouterServerInput::Connected { link: 3, peer }, 0);
    server.frame(3, &report_of(1, 1, 6_000), 0);
    assert_eq!(server.pending.len(), 5);
    server.sync(0);
    assert_eq!(server.sent(), [answer(2, 1)], "the other link is closed");
    assert_eq!(server.stored.values().copied().collect::<Vec<_>>(), [usage(3), usage(9)]);
    // As soon as the store has one of them, there is room for another.
    for number in 1..=6 {
        server.frame(3, &report_of(1, number, 6_000 + u128::from(number)), 0);
    }
    assert_eq!(server.machine.waiting(), 4);
    let (step, change) = server.pending.remove(0);
    let outcome = server.carry_out(change);
    server.input(RouterServerInput::Stored { step, outcome }, 0);
    for number in 7..=8 {
        server.frame(3, &report_of(1, number, 6_000 + u128::from(number)), 0);
    }
    server.sync(0);
    assert_eq!(server.sent(), [1, 2, 3, 4, 7].map(|number| answer(3, number)));
    assert_eq!(server.machine.waiting(), 0);
    assert_eq!(server.stored.values().copied().collect::<Vec<_>>(), [usage(6_007), usage(9)]);
}

#[test]
fn reports_beyond_a_thousand_and_twenty_four_steps_that_wait_for_the_store_are_left_unanswered() {
    let mut server = of_many(300);
    let links = || (0..5_000_u64).map(|number| (number % 300 + 1, number));
    for (link, number) in links() {
        server.frame(link, &report_of(link, number, number.into()), 0);
    }
    // Nor is more confirmed than the store is at.
    server.frame(300, &ChannelMessage::Confirm { through: 1_000 }, 0);
    assert_eq!((server.pending.len(), server.machine.waiting(), server.sent.len()), (1_024, 1_024, 0));
    assert!(server.machine.confirmed().is_empty());
    server.sync(0);
    let answers: Vec<_> = links().take(1_024).map(|(link, number)| answer(link, number)).collect();
    assert_eq!(server.sent(), answers);
    assert_eq!(server.machine.waiting(), 0);
    server.frame(300, &report_of(300, 9_000, 6_000), 0);
    server.frame(300, &ChannelMessage::Confirm { through: 1_000 }, 0);
    server.sync(0);
    assert_eq!(server.sent(), [answer(300, 9_000)]);
    assert_eq!(server.ledger.by_router()[&(account(1), 300)], usage(6_000));
    assert_eq!(server.confirmed, BTreeMap::from([(300, 1_000)]));
}

/// A backup of the database was put back: it lacks what was answered since, and what routers have confirmed is lower again.
#[test]
fn routers_report_all_totals_again_to_a_server_whose_database_was_set_back() {
    let mut server = Server::new(BTreeMap::new(), 0);
    let mut client = RouterClient::new(JournalId([1; 16]), BTreeMap::new(), None);
    server.connect(1, 1);
    server.connect(2, 2);
    connect(&mut client, 1);
    let confirm = |server: &mut Server, through: u64| {
        server.frame(2, &ChannelMessage::Confirm { through }, 0);
        server.sync(0);
    };
    confirm(&mut server, 700);
    let backup = (server.stored.clone(), server.confirmed.clone());
    [(1, 5), (2, 6)].iter().for_each(|(number, packets)| client.durable(in_epoch(*number), usage(*packets)));
    let reported = |server: &mut Server, client: &mut RouterClient, link: u64| {
        let octets = client.report(now(0).instant).map(by_link).expect("something to report");
        server.input(RouterServerInput::Frame { link, octets }, 0);
        server.sync(0);
        for (_, octets) in std::mem::take(&mut server.sent).into_iter().filter(|(to, _)| *to == link) {
            assert_eq!(client.frame(1, &octets, now(0).instant), Ok(Vec::new()));
        }
    };
    reported(&mut server, &mut client, 1);
    assert_eq!((client.waiting(), server.stored.len()), (0, 2));
    confirm(&mut server, 900);
    // One report is under way when it is put back: its answer goes to nobody.
    client.durable(in_epoch(2), usage(7));
    let octets = client.report(now(0).instant).map(by_link).expect("more");
    server.input(RouterServerInput::Frame { link: 1, octets }, 0);
    (server.stored, server.confirmed) = backup;
    server.ledger = server.restored();
    server.events.clear();
    server.input(RouterServerInput::SetBack(server.confirmed.clone()), 0);
    let why = "the database was set back: report all totals again";
    assert_eq!(server.closed, [(1, why), (2, why)]);
    assert_eq!(server.events, [RouterEvent::Disconnected(10), RouterEvent::Disconnected(20)]);
    assert!(server.machine.status().values().all(|status| status.link.is_none()));
    assert_eq!(server.machine.confirmed(), &BTreeMap::from([(20, 700)]), "also lower ones");
    server.sync(0);
    server.frame(1, &report(9, vec![(in_epoch(3), usage(1))]), 0);
    assert_eq!((server.sent(), server.pending.len()), (Vec::new(), 0));

    client.disconnected(1);
    server.connect(3, 1);
    connect(&mut client, 1);
    reported(&mut server, &mut client, 3);
    assert_eq!(server.ledger.sums(), BTreeMap::from([(in_epoch(1), usage(5)), (in_epoch(2), usage(7))]));
    assert_eq!(client.waiting(), 0);
    // What was confirmed before is confirmed anew.
    server.connect(2, 2);
    confirm(&mut server, 800);
    assert_eq!((&server.confirmed, server.machine.confirmed()[&20]), (&BTreeMap::from([(20, 800)]), 800));
}

/// The link ends while its report waits for the store, and the router's next link has reports with the same numbers.
#[test]
fn a_report_whose_link_has_ended_is_taken_and_its_answer_goes_to_no_other_link() {
    let mut server = Server::new(BTreeMap::new(), 0);
    server.connect(1, 1);
    server.frame(1, &report(1, vec![(account(1), usage(5))]), 0);
    server.input(RouterServerInput::Disconnected { link: 1 }, 0);
    server.connect(2, 1);
    server.frame(2, &report(1, vec![(account(1), usage(9))]), 0);
    let (step, change) = server.pending.remove(0);
    let outcome = server.carry_out(change);
    server.input(RouterServerInput::Stored { step, outcome }, 0);
    assert_eq!(server.sent(), []);
    assert_eq!(server.stored.values().copied().collect::<Vec<_>>(), [usage(5)]);
    server.sync(0);
    assert_eq!(server.sent(), [(2, ChannelMessage::Answer(UsageAnswer { number: 1, is_behind: false }))]);
    assert_eq!(server.machine.status()[&10].reports, 2);
}

/// Several key servers share a store: what a router has told one of them, it tells the others after it has connected to them.
#[test]
fn what_another_key_server_was_told_to_be_confirmed_is_no_step_for_the_store() {
    let mut server = Server::new(BTreeMap::new(), 0);
    server.connect(1, 1);
    server.input(RouterServerInput::Confirmed(BTreeMap::from([(10, 500), (20, 900)])), 0);
    server.input(RouterServerInput::Confirmed(BTreeMap::from([(10, 400)])), 0);
    assert_eq!(server.machine.confirmed(), &BTreeMap::from([(10, 500), (20, 900)]), "never back");
    for through in [300, 500, 501, 501] {
        server.frame(1, &ChannelMessage::Confirm { through }, 0);
    }
    let change = UsageChange::Confirm { router: 10, through: 501 };
    assert_eq!(server.pending.iter().map(|(_, change)| change).collect::<Vec<_>>(), [&change]);
}

#[test]
fn what_a_router_counted_is_at_the_server_in_the_end_although_links_and_both_processes_die() {
    let mut stored = BTreeMap::new();
    let mut total = 0;
    let mut state = 7_u64;
    let mut random = move |bound: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % bound
    };
    let (mut server, mut link) = (Server::new(BTreeMap::new(), 0), 0);
    let fresh = |total: u128| {
        let mut client = RouterClient::new(JournalId([1; 16]), BTreeMap::new(), None);
        (0..4).for_each(|number| client.durable(account(number), usage(total)));
        client
    };
    let mut client = fresh(0);
    for millis in (0..600_000).step_by(100) {
        match random(40) {
            0 => {
                // The server dies with what is not durable.
                stored.clone_from(&server.stored);
                server = Server::new(stored.clone(), millis);
                client.disconnected(1);
            }
            1 => client = fresh(total),
            2 => drop(client.disconnected(1)),
            3..6 => server.sync(millis),
            6..20 => {
                total += 1;
                (0..4).for_each(|number| client.durable(account(number), usage(total)));
            }
            _ => {}
        }
        if !client.is_up() {
            link += 1;
            server.connect(link, 1);
            server.sent.clear();
            let octets = client.connected(1);
            believe(&mut client, 1);
            server.input(RouterServerInput::Frame { link, octets }, millis);
        }
        if let Some(octets) = client.report(now(millis).instant).map(by_link) {
            server.input(RouterServerInput::Frame { link, octets }, millis);
        }
        for (to, octets) in std::mem::take(&mut server.sent) {
            if to == link {
                assert_eq!(client.frame(1, &octets, now(millis).instant), Ok(Vec::new()));
            }
        }
        assert!(server.ledger.sums().values().all(|sum| sum.packets <= total));
    }
    for millis in (600_000..620_000).step_by(100) {
        client
            .report(now(millis).instant)
            .map(by_link)
            .into_iter()
            .for_each(|octets| server.input(RouterServerInput::Frame { link, octets }, millis));
        server.sync(millis);
        for (_, octets) in std::mem::take(&mut server.sent) {
            client.frame(1, &octets, now(millis).instant).expect("well formed");
        }
    }
    assert_eq!(client.waiting(), 0);
    assert!(total > 1_000 && server.stored.values().all(|stored| *stored == usage(total)), "{total}");
}

/// The server that a router reports to is up, and its database is not: another one takes usage.
#[test]
fn a_server_that_cannot_take_usage_is_left_for_another() {
    let mut client = RouterClient::new(JournalId([1; 16]), BTreeMap::new(), None);
    connect(&mut client, 1);
    connect(&mut client, 2);
    client.durable(account(1), usage(1));
    let sent = |client: &mut RouterClient, secs: u64| {
        let (link, octets) = client.report(now(secs * 1_000).instant)?;
        let Ok(ChannelMessage::Report(report)) = ChannelMessage::decode(&octets) else { panic!("no report") };
        Some((link, report.number))
    };
    let all: Vec<(u64, u64)> = (0..=80).step_by(5).filter_map(|secs| sent(&mut client, secs)).collect();
    let links: Vec<u64> = all.iter().map(|(link, _)| *link).collect();
    // Twice as long each time: a database that is slow is not made slower.
    assert_eq!(links, [[1; 4].as_slice(), &[2; 7], &[1; 6]].concat());
    assert_eq!((all[0].1, all[4].1, all[11].1), (1, 2, 3), "numbers go on");
    // What came to the first report is of none that followed, though it is by the same link.
    let answered = |client: &mut RouterClient, link: u64, message: ChannelMessage| {
        client.frame(link, &message.encode(), now(81_000).instant).expect("sound")
    };
    for is_behind in [true, false] {
        let late = ChannelMessage::Answer(UsageAnswer { number: 1, is_behind });
        assert_eq!(answered(&mut client, 1, late), []);
    }
    assert_eq!(client.waiting(), 1);
    let refused = |number| ChannelMessage::Refused { number, why: UsageRefusal::Unreadable };
    // A late word of the one that is not reported to is nothing.
    assert_eq!(answered(&mut client, 2, refused(2)), []);
    assert_eq!(answered(&mut client, 1, refused(3)).len(), 1);
    assert_eq!((client.reports_to(), sent(&mut client, 110), sent(&mut client, 112)), (Some(2), None, Some((2, 4))));
    let taken = ChannelMessage::Answer(UsageAnswer { number: 4, is_behind: false });
    assert_eq!(answered(&mut client, 2, taken), [RouterClientEvent::Taken]);
    assert_eq!(client.waiting(), 0);
    // Alone it is asked again and again.
    client.disconnected(1);
    client.durable(account(1), usage(2));
    let links: Vec<u64> =
        (120..=150).step_by(5).filter_map(|secs| sent(&mut client, secs)).map(|(link, _)| link).collect();
    assert_eq!(links, [2; 7]);
}

/// A router's servers tell rates, and do not lease them: those of the one that it reports to count, and the next one's when that is gone.
#[test]
fn rates_are_those_of_the_lessor_or_of_the_server_that_takes_usage() {
    let mut client = RouterClient::new(JournalId([1; 16]), BTreeMap::new(), None);
    (1..=3).for_each(|link| connect(&mut client, link));
    let told = |rate: u64| {
        let shared = SharedRate { payer: payer(None), rate, routers: 2, offline: Offline::Decay };
        vec![(shared, 0)]
    };
    let tell = |client: &mut RouterClient, link: u64| {
        client.frame(link, &ChannelMessage::Rates(told(link)).encode(), now(0).instant).expect("sound")
    };
    assert_eq!(tell(&mut client, 2), []);
    assert_eq!(tell(&mut client, 3), []);
    assert_eq!(client.disconnected(1), [RouterClientEvent::Rates(told(2))]);
    let leads = |client: &mut RouterClient, link: u64, epoch: u64| {
        client.frame(link, &ChannelMessage::Lessor { epoch }.encode(), now(0).instant).expect("sound")
    };
    assert_eq!(
        leads(&mut client, 3, 7),
        [RouterClientEvent::Lessor { link: 3, epoch: 7 }, RouterClientEvent::Rates(told(3))]
    );
    assert_eq!(tell(&mut client, 2), []);
    assert_eq!(tell(&mut client, 3), [RouterClientEvent::Rates(told(3))]);
    let [RouterClientEvent::Superseded { epoch: 7, .. }] = leads(&mut client, 2, 6)[..] else { panic!("it is lower") };
    assert_eq!((client.lessor(), client.disconnected(3)), (Some(3), vec![RouterClientEvent::Rates(told(2))]));
    // One that reports elsewhere goes by that one's.
    connect(&mut client, 4);
    believe(&mut client, 4);
    assert_eq!(tell(&mut client, 4), []);
    client.durable(account(1), usage(1));
    (0..=4).for_each(|turn| drop(client.report(now(turn * 5_000).instant)));
    assert_eq!((client.reports_to(), client.recounted()), (Some(4), Some(RouterClientEvent::Rates(told(4)))));
    assert_eq!(client.recounted(), None);
    // After a restart too.
    let mut client = RouterClient::new(JournalId([1; 16]), BTreeMap::new(), None).with_epoch(7);
    connect(&mut client, 1);
    believe(&mut client, 1);
    assert!(matches!(leads(&mut client, 1, 6)[..], [RouterClientEvent::Superseded { .. }]));
    assert_eq!(leads(&mut client, 1, 7).len(), 1);
    // One that the time does not allow is nobody's.
    client.set_last_epoch(100);
    assert_eq!((leads(&mut client, 1, 101), leads(&mut client, 1, 100).len()), (Vec::new(), 1));
}

/// The account of principal 7 in an epoch of 4,096 s.
fn in_epoch(epoch: u32) -> ChargedAccount {
    let [a, b, c, d] = epoch.to_be_bytes();
    ChargedAccount([0, 0, 7, 4, 0, 0, 0, 0, 0, 0, 12, a, b, c, d])
}

#[test]
fn no_more_is_confirmed_than_has_passed_and_what_is_closed_and_confirmed_is_billed_once() {
    let mut server = Server::new(BTreeMap::new(), 0);
    server.connect(1, 1);
    let (first, second) = (400_000_u32, 408_480);
    let all = vec![(in_epoch(first), usage(5)), (in_epoch(first + 1), usage(6)), (in_epoch(second), usage(7))];
    server.frame(1, &report(1, all.clone()), 0);
    // A router whose clock is ahead confirms no more than what has passed here.
    server.frame(1, &ChannelMessage::Confirm { through: u64::MAX }, 0);
    server.sync(0);
    assert_eq!(server.confirmed, BTreeMap::from([(10, now(0).unix.secs())]));
    assert_eq!(server.machine.confirmed(), &server.confirmed);
    server.close((u64::from(first) + 4) << 12);
    assert_eq!(server.ledger.sums().len(), 2, "one sum, and what ends later");
    assert_eq!(server.stored.len(), 2);
    assert_eq!(server.ledger.sums()[&in_epoch(first).sum(0)], usage(11));
    assert!(matches!(server.events[..], [RouterEvent::Connected(_)]), "{:?}", server.events);
    // The router reports all of it again: it is acknowledged, and billed once.
    server.sent.clear();
    server.frame(1, &report(2, all), 0);
    server.sync(0);
    assert_eq!(server.sent(), [(1, ChannelMessage::Answer(UsageAnswer { number: 2, is_behind: false }))]);
    assert_eq!(server.ledger.sums()[&in_epoch(first).sum(0)], usage(11));
    let end = (u64::from(second) + 3) << 12;
    server.close(end - 1);
    assert_eq!(server.ledger.sums()[&in_epoch(second)], usage(7));
    server.close(end);
    assert_eq!(server.ledger.sums()[&in_epoch(second).sum(0)], usage(7));
    assert_eq!((server.stored.len(), server.closed_up_to), (2, (end, 3)));
    // A new process goes on from what is stored.
    let mut ledger = server.restored();
    assert_eq!(ledger.sums(), server.ledger.sums());
    assert!(ledger.fold(100).is_some_and(|fold| fold.removed.is_empty()));
}

#[test]
fn usage_of_closed_time_that_a_router_had_not_confirmed_is_billed_once_as_late() {
    let mut server = Server::new(BTreeMap::new(), 0);
    server.connect(1, 1);
    server.connect(2, 2);
    let epoch = 400_000;
    let end = (u64::from(epoch) + 3) << 12;
    let (plain, month) = (in_epoch(epoch), in_epoch(epoch).sum(0));
    // The days on which this server has the packets: it goes by its own clock, and not by when time was closed.
    let day = |days: u64| now(0).unix.secs() / 86_400 * 86_400 + days * 86_400;
    let late = |days: u64| plain.late(0, day(days));
    server.frame(1, &report(1, vec![(plain, usage(10))]), 0);
    server.frame(2, &ChannelMessage::Confirm { through: end }, 0);
    server.close(end);
    assert_eq!(server.confirmed, BTreeMap::from([(10, 0), (20, end)]), "the first one owes something");
    assert_eq!(server.ledger.sums(), BTreeMap::from([(month, usage(10))]));
    // It comes twice, and in parts; the bill of the closed time stays what it was.
    for (number, total, so_far) in [(2, 15, 5), (3, 15, 5), (4, 17, 7)] {
        server.frame(1, &report(number, vec![(plain, usage(total))]), 0);
        server.sync(0);
        let sums = BTreeMap::from([(month, usage(10)), (late(0), usage(so_far))]);
        assert_eq!((server.ledger.sums(), server.restored().sums()), (sums.clone(), sums));
    }
    assert_eq!(server.events.iter().filter(|event| **event == RouterEvent::Late(10)).count(), 2);
    // On the next day it is late for that, by when the server had it and not by when the store is at it.
    server.close(end + 100);
    server.frame(1, &report(5, vec![(plain, usage(20))]), 86_400_000);
    server.sync(0);
    let sums = BTreeMap::from([(month, usage(10)), (late(0), usage(7)), (late(1), usage(3))]);
    assert_eq!(server.ledger.sums(), sums);
    // What came between two closings is on the statement of the second one.
    let statement = |number| JournalId::of_statement(number);
    let stated = [(1, month, 10), (2, late(0), 7), (3, late(1), 3)];
    for (number, account, packets) in stated {
        assert_eq!(server.stored.get(&(10, statement(number), account)), Some(&usage(packets)));
    }
    // An old copy of its memory is told apart, as ever.
    server.sent.clear();
    server.frame(1, &report(6, vec![(plain, usage(19))]), 0);
    server.sync(0);
    assert_eq!(server.sent(), [(1, ChannelMessage::Answer(UsageAnswer { number: 6, is_behind: true }))]);
    // From whoever has confirmed, and from a router that was not there when time was closed, nothing of it is taken.
    server.frame(1, &ChannelMessage::Confirm { through: end + 100 }, 0);
    for (link, number) in [(1, 7), (2, 1)] {
        server.frame(link, &report(number, vec![(plain, usage(50))]), 0);
    }
    let routers = BTreeMap::from([(router(1), 10), (router(3), 30)]);
    server.input(RouterServerInput::Configure { routers, rates: BTreeMap::new() }, 0);
    server.connect(3, 3);
    let copy = UsageReport { journal: JournalId([9; 16]), number: 1, entries: vec![(plain, usage(50))] };
    server.sync(0);
    assert_eq!(server.machine.status()[&10].too_late, 0, "it is repeated, by what the router has confirmed");
    server.frame(3, &ChannelMessage::Report(copy), 0);
    server.sync(0);
    // That it is on no statement is said.
    assert_eq!(server.machine.status()[&30].too_late, 1);
    assert_eq!(server.events.last(), Some(&RouterEvent::TooLate(30)));
    server.fold();
    assert_eq!((server.ledger.sums(), server.restored().sums()), (sums.clone(), sums));
    assert_eq!(server.stored.len(), 3, "how much was folded is known no more");
}

#[test]
fn usage_that_comes_long_after_its_time_was_closed_is_on_the_statement_of_the_day_on_which_it_came() {
    const DAY: u64 = 86_400;
    let mut server = Server::new(BTreeMap::new(), 0);
    server.connect(1, 1);
    server.connect(2, 2);
    let (first, today) = (400_000_u32, now(0).unix.secs());
    // The second router reports of today, and time long before that is closed.
    server.frame(2, &report(1, vec![(in_epoch((today >> 12) as u32 - 4), usage(1))]), 0);
    let closed = today - 400 * DAY;
    assert!(closed > (u64::from(first) + 3) << 12);
    server.close(closed);
    // The first one was away for longer than that. No statement of the time after that closing is still to be written.
    let entries = vec![(in_epoch(first), usage(5))];
    let own = UsageReport { journal: JournalId([9; 16]), number: 1, entries };
    server.frame(1, &ChannelMessage::Report(own), 0);
    server.sync(0);
    let late: Vec<u64> = server.ledger.sums().keys().filter_map(ChargedAccount::late_since).collect();
    assert_eq!(late, [today / DAY * DAY]);
    assert_eq!(server.restored().sums(), server.ledger.sums());
    assert_eq!(server.events.last(), Some(&RouterEvent::Late(10)));
}

/// Principal 7 has three accounts where the server keeps two.
#[test]
fn a_router_reports_others_while_the_server_has_no_room_for_one_and_that_again_ten_minutes_later() {
    let mut server = Server::with_limit(BTreeMap::new(), 2, 0);
    let mut client = RouterClient::new(JournalId([1; 16]), BTreeMap::new(), None);
    // Not long ago, by the clock of these tests.
    let first = (now(0).unix.secs() >> 12) as u32 - 50;
    let other = |number: u8| {
        let mut other = in_epoch(first);
        other.0[2] = number;
        other
    };
    let mut link = 1;
    server.connect(link, 1);
    connect(&mut client, 1);
    // Returns the accounts that are reported at this time, and what became of them.
    let reported = |server: &mut Server, client: &mut RouterClient, link: u64, millis: u64| {
        let octets = client.report(now(millis).instant).map(by_link)?;
        let Ok(ChannelMessage::Report(report)) = ChannelMessage::decode(&octets) else { panic!("no report") };
        server.input(RouterServerInput::Frame { link, octets }, millis);
        server.sync(millis);
        let mut events = Vec::new();
        for (_, octets) in std::mem::take(&mut server.sent) {
            events.extend(client.frame(1, &octets, now(millis).instant).expect("well formed"));
        }
        Some((report.entries.iter().map(|(account, _)| *account).collect::<Vec<_>>(), events))
    };
    let all = [in_epoch(first), in_epoch(first + 1), in_epoch(first + 2), other(8)];
    all.iter().for_each(|account| client.durable(*account, usage(5)));
    let untaken = || vec![RouterClientEvent::Untaken(1)];
    assert_eq!(reported(&mut server, &mut client, link, 0), Some((all.to_vec(), untaken())));
    assert_eq!(server.events.last(), Some(&RouterEvent::Untaken { router: 10, entries: 1 }));
    assert_eq!((server.machine.status()[&10].untaken, server.machine.status()[&10].reports), (1, 1));
    assert_eq!(server.stored.len(), 3);
    let is_forgettable = |client: &RouterClient| all.map(|account| client.is_forgettable(&account));
    assert_eq!((is_forgettable(&client), client.waiting()), ([true, true, false, true], 1));
    // Others meanwhile, also when there is more of that one.
    assert_eq!(reported(&mut server, &mut client, link, 1_000), None);
    client.durable(other(9), usage(1));
    client.durable(all[2], usage(6));
    assert_eq!(reported(&mut server, &mut client, link, 2_000), Some((vec![other(9)], Vec::new())));
    assert_eq!(reported(&mut server, &mut client, link, 599_999), None);
    assert_eq!(reported(&mut server, &mut client, link, 600_000), Some((vec![all[2]], untaken())));
    assert_eq!(reported(&mut server, &mut client, link, 1_199_999), None);

    // On a new link all are reported at once, and from then on it is ten minutes.
    client.disconnected(1);
    link += 1;
    server.connect(link, 1);
    connect(&mut client, 1);
    let whole: Vec<ChargedAccount> = [&all[..], &[other(9)]].concat();
    assert_eq!(reported(&mut server, &mut client, link, 1_200_000), Some((whole, untaken())));
    assert_eq!(reported(&mut server, &mut client, link, 1_799_999), None);
    // It holds the router's confirmation back, and time before it is closed: there is room.
    client.counted_until(now(0).unix.secs());
    let octets = client.confirm(now(1_799_999).instant).map(by_link).expect("something is new");
    let end = |epoch: u32| (u64::from(epoch) + 3) << 12;
    assert_eq!(ChannelMessage::decode(&octets), Ok(ChannelMessage::Confirm { through: end(first + 2) - 1 }));
    server.input(RouterServerInput::Frame { link, octets }, 1_799_999);
    server.close(end(first + 1));
    assert_eq!((server.ledger.counts()[&7], server.stored.len()), (0, 3), "the sum of both needs no room");
    assert_eq!(reported(&mut server, &mut client, link, 1_800_000), Some((vec![all[2]], Vec::new())));
    assert_eq!((client.waiting(), is_forgettable(&client)), (0, [true; 4]));
    assert_eq!(server.ledger.sums()[&all[2]], usage(6));
}

/// Answers the report that is due at this time, of which the server has no room for entries at these places.
fn answered(client: &mut RouterClient, second: u64, untaken: &[u16]) -> Option<Vec<ChargedAccount>> {
    let at = Instant(second * 1_000_000_000);
    let octets = client.report(at).map(by_link)?;
    let Ok(ChannelMessage::Report(UsageReport { number, entries, .. })) = ChannelMessage::decode(&octets) else {
        panic!("no report")
    };
    let mut answers = vec![ChannelMessage::Answer(UsageAnswer { number, is_behind: false })];
    if !untaken.is_empty() {
        answers.insert(0, ChannelMessage::Untaken { number, entries: untaken.to_vec() });
    }
    answers.iter().for_each(|answer| drop(client.frame(1, &answer.encode(), at).expect("well formed")));
    Some(entries.into_iter().map(|(account, _)| account).collect())
}

/// There are always new accounts for which the server has no room.
#[test]
fn what_the_server_had_no_room_for_is_reported_again_ten_minutes_later_also_if_there_are_others_meanwhile() {
    let mut client = RouterClient::new(JournalId([1; 16]), BTreeMap::new(), None);
    connect(&mut client, 1);
    client.durable(in_epoch(1), usage(1));
    assert_eq!(answered(&mut client, 0, &[0]), Some(vec![in_epoch(1)]));
    for second in (1..600).step_by(60) {
        client.durable(in_epoch(second), usage(1));
        let fresh = (second > 1).then(|| vec![in_epoch(second)]);
        assert_eq!(answered(&mut client, second.into(), &[0]), fresh);
    }
    assert_eq!(answered(&mut client, 599, &[]), None);
    let all: Vec<ChargedAccount> = (1..600).step_by(60).map(in_epoch).collect();
    assert_eq!(answered(&mut client, 600, &[1]), Some(all.clone()));
    // From then on it is ten minutes again.
    assert_eq!(answered(&mut client, 1_199, &[]), None);
    assert_eq!(answered(&mut client, 1_200, &[]), Some(vec![all[1]]));
    assert_eq!((client.waiting(), answered(&mut client, 1_800, &[])), (0, None));
}

#[test]
fn what_the_server_has_no_room_for_holds_the_confirmation_back_for_thirty_days() {
    const DAYS: u64 = 30 * 86_400;
    let mut client = RouterClient::new(JournalId([1; 16]), BTreeMap::new(), None);
    let end = |epoch: u32| u64::from(epoch + 3) << 12;
    let mut second = 0;
    let mut through = |client: &mut RouterClient, counted: u64| {
        second += 2;
        client.counted_until(counted);
        client.confirm(Instant(second * 1_000_000_000)).map(by_link).map(|octets| {
            match ChannelMessage::decode(&octets) {
                Ok(ChannelMessage::Confirm { through }) => through,
                other => panic!("{other:?}"),
            }
        })
    };
    connect(&mut client, 1);
    let (first, second) = (400_000, 400_001);
    [first, second].iter().for_each(|epoch| client.durable(in_epoch(*epoch), usage(1)));
    // Not yet reported, it holds back for as long as it takes.
    assert_eq!(through(&mut client, end(first) + 2 * DAYS), Some(end(first) - 1));
    assert!(answered(&mut client, 0, &[0, 1]).is_some());
    // The clock may go back by five minutes.
    let counted = |epoch: u32| end(epoch) + DAYS + 300;
    assert_eq!(through(&mut client, counted(first)), None, "thirty days are not over");
    assert_eq!(through(&mut client, counted(first) + 1), Some(end(second) - 1), "it is the other one's turn");
    assert_eq!(through(&mut client, counted(second)), None);
    assert_eq!(through(&mut client, counted(second) + 1), Some(end(second) + DAYS + 1));
    // What is reported once more, or for the first time, holds back until it is untaken again; what was confirmed stays.
    assert!(client.report(Instant(600_000_000_000)).map(by_link).is_some());
    assert_eq!(through(&mut client, counted(second) + 100), None);
    client.disconnected(1);
    connect(&mut client, 1);
    assert_eq!(through(&mut client, counted(second) + 100), Some(end(first) - 1), "a server that has lost all");
    assert!(answered(&mut client, 700, &[0]).is_some());
    assert_eq!(through(&mut client, counted(second) + 200), Some(end(second) + DAYS + 200), "it has the other one");
}

#[test]
fn a_router_confirms_what_the_server_has_and_is_held_back_by_what_it_has_not() {
    let mut client = RouterClient::new(JournalId([1; 16]), BTreeMap::new(), None);
    let at = |second: u64| Instant(second * 1_000_000_000);
    let ends = (400_000 + 3) << 12;
    let through = |octets: Option<Vec<u8>>| match octets.map(|octets| ChannelMessage::decode(&octets)) {
        Some(Ok(ChannelMessage::Confirm { through })) => Some(through),
        None => None,
        other => panic!("{other:?}"),
    };
    connect(&mut client, 1);
    assert_eq!(client.confirm(at(1)).map(by_link), None, "nothing is known to be durable");
    client.durable(in_epoch(400_000), usage(1));
    client.counted_until(ends + 1_000);
    assert_eq!(client.confirm(at(1)).map(by_link), None, "it was seen just now");
    assert_eq!(through(client.confirm(at(3)).map(by_link)), Some(ends - 1));
    // A key epoch that has not ended holds nothing back, and the clock may go back by five minutes.
    client.durable(in_epoch(400_010), usage(1));
    let ChannelMessage::Report(report) =
        ChannelMessage::decode(&client.report(at(3)).map(by_link).expect("two")).expect("well formed")
    else {
        panic!("no report")
    };
    let answer = ChannelMessage::Answer(UsageAnswer { number: report.number, is_behind: false });
    assert_eq!(client.frame(1, &answer.encode(), at(4)), Ok(Vec::new()));
    client.durable(in_epoch(400_010), usage(2));
    assert_eq!(through(client.confirm(at(5)).map(by_link)), Some(ends + 700));
    client.counted_until(ends + 1_059);
    assert_eq!(client.confirm(at(6)).map(by_link), None, "hardly more");
    client.counted_until(ends + 1_060);
    assert_eq!(through(client.confirm(at(7)).map(by_link)), Some(ends + 760));
    // A server that has started again is told again; all totals are reported to it first.
    client.disconnected(1);
    assert_eq!(client.confirm(at(9)).map(by_link), None);
    connect(&mut client, 1);
    assert_eq!(through(client.confirm(at(9)).map(by_link)), Some(ends - 1));
}

fn positions() -> impl Strategy<Value = Position> {
    (any::<u64>(), any::<u64>(), any::<[u8; 32]>()).prop_map(|(timeline, number, digest)| Position {
        timeline,
        number,
        digest,
    })
}

fn refusal_reports() -> impl Strategy<Value = RefusalReport> {
    let reasons = prop::sample::select(RefusalReason::ALL.to_vec());
    let packets = prop::collection::btree_map(reasons, any::<u64>(), 0..5);
    let payers = prop::collection::btree_map(0..1_u32 << 24, packets, 0..5);
    (any::<u64>(), payers).prop_map(|(secs, payers)| {
        let of = |(principal, packets): (u32, BTreeMap<RefusalReason, u64>)| PayerRefusals {
            principal: Principal::new(principal).expect("24 bits"),
            packets: packets.into_iter().collect(),
        };
        RefusalReport { secs, payers: payers.into_iter().map(of).collect() }
    })
}

fn messages() -> impl Strategy<Value = ChannelMessage> {
    let usages = (any::<u128>(), any::<u128>()).prop_map(|(packets, octets)| Usage { packets, octets });
    let entries = prop::collection::vec((any::<[u8; 15]>().prop_map(ChargedAccount), usages), 0..20);
    let payers = (0..1_u32 << 24, prop::option::of(0..1_u32 << 24)).prop_map(|(principal, delegation)| RatePayer {
        principal: Principal::new(principal).expect("24 bits"),
        delegation: delegation.map(|id| DelegationId::new(id).expect("24 bits")),
    });
    let offline = prop_oneof![Just(Offline::Decay), Just(Offline::Floor)];
    let rates = (payers.clone(), any::<u64>(), any::<u16>(), offline)
        .prop_map(|(payer, rate, routers, offline)| SharedRate { payer, rate, routers, offline });
    let requests = (rates.clone(), any::<[u64; 5]>()).prop_map(|(rate, [session, number, uses, share, demand])| {
        (rate, LeaseRequest { session, number, uses, share, demand })
    });
    let answers = (payers, any::<[u64; 3]>())
        .prop_map(|(payer, [session, number, share])| (payer, LeaseAnswer { session, number, share }));
    let refusals = prop_oneof![
        Just(UsageRefusal::TooLong),
        Just(UsageRefusal::TooManyJournals),
        Just(UsageRefusal::LedgerFull),
        Just(UsageRefusal::Unreadable),
    ];
    prop_oneof![
        (any::<[u8; 16]>(), any::<u64>(), entries).prop_map(|(journal, number, entries)| ChannelMessage::Report(
            UsageReport { journal: JournalId(journal), number, entries }
        )),
        (any::<u64>(), any::<bool>())
            .prop_map(|(number, is_behind)| ChannelMessage::Answer(UsageAnswer { number, is_behind })),
        (any::<u64>(), refusals).prop_map(|(number, why)| ChannelMessage::Refused { number, why }),
        prop::option::of(any::<u64>()).prop_map(|list| ChannelMessage::Follow { list }),
        (0..1_000_u32, prop::collection::vec(any::<u8>(), 1..100)).prop_map(|(offset, octets)| {
            ChannelMessage::Piece { length: offset + octets.len() as u32, offset, octets }
        }),
        any::<u64>().prop_map(|epoch| ChannelMessage::Lessor { epoch }),
        (any::<u64>(), prop::collection::vec(requests, 0..5))
            .prop_map(|(epoch, requests)| ChannelMessage::Ask { epoch, requests }),
        (any::<u64>(), prop::collection::vec(answers, 0..5))
            .prop_map(|(epoch, answers)| ChannelMessage::Leased { epoch, answers }),
        positions().prop_map(|seen| ChannelMessage::Watch { seen }),
        positions().prop_map(|position| ChannelMessage::Continues { position }),
        positions().prop_map(|position| ChannelMessage::Lacks { position }),
        prop::collection::vec((rates, any::<u64>()), 0..5).prop_map(ChannelMessage::Rates),
        any::<u64>().prop_map(|through| ChannelMessage::Confirm { through }),
        refusal_reports().prop_map(ChannelMessage::Refusals),
        (any::<u64>(), prop::collection::vec(any::<u16>(), 0..20))
            .prop_map(|(number, entries)| ChannelMessage::Untaken { number, entries }),
    ]
}

proptest! {
    #[test]
    fn a_message_is_read_as_it_was_written_and_in_no_other_way(message in messages(), at in any::<prop::sample::Index>(), bit in 0..8_u32) {
        let octets = message.encode();
        prop_assert_eq!(ChannelMessage::decode(&octets), Ok(message.clone()));
        for length in 0..octets.len() {
            prop_assert!(ChannelMessage::decode(&octets[..length]).is_err());
        }
        prop_assert!(ChannelMessage::decode(&[&octets[..], &[0]].concat()).is_err());
        let mut changed = octets.clone();
        changed[at.index(octets.len())] ^= 1_u8 << bit;
        if let Ok(other) = ChannelMessage::decode(&changed) {
            prop_assert_ne!(&other, &message);
            prop_assert_eq!(other.encode(), changed);
        }
    }
}
