//! A router with several key servers, whose databases are put back, go on by themselves and are put right in any order.
//!
//! PLA, several key servers: usage is on its way to a server whose database is the right one whenever one is connected, whatever the
//! others say, and is counted once; nothing is forgotten of what only a wrong one has.
//! PLA, a report that waited: a server that was left writes it late, which is no router that was put back.
//! PLA, two databases: a router that meets them in turn, and one that has a link to both, whose changes have no number in common.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::prelude::*;
use wayleave_control::capability::{
    ChannelMessage, ChargedAccount, JournalId, Ledger, Position, RouterClient, RouterClientEvent, RouterEvent,
    RouterServer, RouterServerConfig, RouterServerInput, RouterServerOutput, Usage, UsageAnswer, UsageChange,
    UsageReport,
};
use wayleave_core::{IdentityKey, Instant, Machine, Now, UnixTime};

const SERVERS: usize = 4;
/// Milliseconds after which a report that is not answered is repeated.
const TIMEOUT: u64 = 5_000;
/// Milliseconds after which a server is asked again what its database has.
const ASKED_AGAIN: u64 = 60_000;

fn account() -> ChargedAccount {
    ChargedAccount([7; ChargedAccount::LENGTH])
}

fn usage(packets: u128) -> Usage {
    Usage { packets, octets: packets * 100 }
}

fn now(millis: u64) -> Now {
    Now { instant: Instant(millis * 1_000_000), unix: UnixTime(1_800_000_000_000_000 + millis * 1_000) }
}

/// Where a history of changes ends; another one has other digests.
fn at(number: u64, history: u8) -> Position {
    Position { timeline: 0, number, digest: [history; 32] }
}

fn router(journal: u8) -> RouterClient {
    RouterClient::new(JournalId([journal; 16]), BTreeMap::new(), None)
}

fn report_of(octets: &[u8]) -> UsageReport<ChargedAccount> {
    let Ok(ChannelMessage::Report(report)) = ChannelMessage::decode(octets) else { panic!("no report") };
    report
}

/// A key server of the model.
#[derive(Default)]
struct Site {
    link: Option<u64>,
    /// Its database is an old copy, which has taken this meanwhile.
    wrong: Option<Ledger<ChargedAccount>>,
    reports: VecDeque<UsageReport<ChargedAccount>>,
    /// On their way to the router.
    messages: VecDeque<ChannelMessage>,
    /// By the last word that the router has heard from it on this link.
    is_believed: bool,
}

struct World {
    client: RouterClient,
    sites: [Site; SERVERS],
    /// What the right database has.
    ledger: Ledger<ChargedAccount>,
    total: u128,
    links: u64,
    /// The router has seen the last change of the right database.
    has_seen: bool,
    millis: u64,
}

impl World {
    fn new() -> Self {
        let (client, sites, ledger) = (router(1), Default::default(), Ledger::new(1_000));
        Self { client, sites, ledger, total: 0, links: 0, has_seen: false, millis: 0 }
    }

    fn connect(&mut self, which: usize) {
        if self.sites[which].link.is_none() {
            self.links += 1;
            self.sites[which].link = Some(self.links);
            self.client.connected(self.links);
        }
    }

    /// What waits at the server stays there; what is on its way to the router is lost.
    fn disconnect(&mut self, which: usize) {
        let site = &mut self.sites[which];
        site.messages.clear();
        site.is_believed = false;
        site.link.take().into_iter().for_each(|link| drop(self.client.disconnected(link)));
    }

    /// The server says what its database has. One that has gone on by itself may show it by the change that it tells.
    fn say(&mut self, which: usize, is_plain: bool) {
        let site = &mut self.sites[which];
        site.messages.push_back(match &site.wrong {
            None => ChannelMessage::Continues { position: at(1, 1) },
            Some(_) if self.has_seen && !is_plain => ChannelMessage::Continues { position: at(1, 2) },
            Some(_) => ChannelMessage::Lacks { position: at(1, 2) },
        });
    }

    fn report(&mut self) {
        self.millis += TIMEOUT;
        let Some((to, octets)) = self.client.report(now(self.millis).instant) else { return };
        let site = self.sites.iter_mut().find(|site| site.link == Some(to)).expect("a link that is up");
        site.reports.push_back(report_of(&octets));
    }

    fn serve(&mut self, which: usize) {
        let site = &mut self.sites[which];
        let Some(report) = site.reports.pop_front() else { return };
        let ledger = site.wrong.as_mut().unwrap_or(&mut self.ledger);
        let is_behind = ledger.take(1, &report, 0).expect("within every limit").is_behind;
        if site.link.is_some() {
            site.messages.push_back(ChannelMessage::Answer(UsageAnswer { number: report.number, is_behind }));
        }
    }

    fn hear(&mut self, which: usize) {
        let site = &mut self.sites[which];
        let (Some(link), Some(message)) = (site.link, site.messages.pop_front()) else { return };
        let events = self.client.frame(link, &message.encode(), now(self.millis).instant).expect("sound");
        assert!(!events.contains(&RouterClientEvent::Behind), "its totals only rise");
        match message {
            ChannelMessage::Continues { position } if position == at(1, 1) => {
                (site.is_believed, self.has_seen) = (true, true);
            }
            ChannelMessage::Continues { .. } | ChannelMessage::Lacks { .. } => site.is_believed = false,
            _ => {}
        }
    }

    fn step(&mut self, what: u8, which: usize) {
        match what {
            0 | 1 => self.connect(which),
            2 => self.disconnect(which),
            // What takes its database away ends it.
            3 => {
                self.disconnect(which);
                self.sites[which].reports.clear();
                self.sites[which].wrong = Some(Ledger::new(1_000));
            }
            4 | 5 => {
                self.sites[which].wrong = None;
                self.say(which, true);
            }
            6..9 => self.say(which, what != 8),
            9..12 => {
                self.total += 1;
                self.client.durable(account(), usage(self.total));
            }
            12..15 => self.report(),
            15..18 => self.serve(which),
            _ => self.hear(which),
        }
    }

    fn billed(&self) -> u128 {
        self.ledger.sums().values().map(|sum| sum.packets).sum()
    }

    fn check(&self) {
        let believed: BTreeSet<u64> =
            self.sites.iter().filter(|site| site.is_believed).filter_map(|site| site.link).collect();
        let to = self.client.reports_to();
        assert_eq!(to.is_some(), !believed.is_empty(), "{believed:?}");
        assert!(to.is_none_or(|to| believed.contains(&to)), "{to:?} of {believed:?}");
        assert!(self.billed() <= self.total);
        assert!(!self.client.is_forgettable(&account()) || self.billed() == self.total);
    }

    /// Everything arrives, and time passes.
    fn settle(&mut self) {
        for _ in 0..20 {
            for which in 0..SERVERS {
                if self.sites[which].link.is_some() {
                    self.say(which, true);
                    while !self.sites[which].messages.is_empty() {
                        self.hear(which);
                    }
                }
            }
            self.report();
            (0..SERVERS).for_each(|which| (0..100).for_each(|_| self.serve(which)));
        }
    }
}

proptest! {
    #[test]
    fn usage_is_on_its_way_to_a_server_with_the_right_database_whenever_one_is_connected(
        steps in prop::collection::vec((0_u8..22, 0..SERVERS), 1..300),
    ) {
        let mut world = World::new();
        for (what, which) in steps {
            world.step(what, which);
            world.check();
        }
        world.connect(0);
        world.sites[0].wrong = None;
        world.settle();
        world.check();
        prop_assert_eq!((world.client.waiting(), world.billed()), (0, world.total));
    }
}

/// A key server, of which the store is played by the test.
struct Server {
    machine: RouterServer,
    steps: VecDeque<(u64, UsageChange)>,
    sent: VecDeque<(u64, Vec<u8>)>,
    checks: Vec<(u64, Position)>,
    events: Vec<RouterEvent>,
}

impl Server {
    /// It has read changes up to this one.
    fn new(position: Position) -> Self {
        let routers = BTreeMap::from([(IdentityKey([1; 32]), 10)]);
        let (rates, confirmed, ahead) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let config = RouterServerConfig { routers, rates, confirmed, ahead };
        let machine = RouterServer::new(config, now(0).instant);
        let (steps, sent) = (VecDeque::new(), VecDeque::new());
        let mut server = Self { machine, steps, sent, checks: Vec::new(), events: Vec::new() };
        server.input(RouterServerInput::Read(position), 0);
        server
    }

    fn input(&mut self, input: RouterServerInput, millis: u64) {
        self.machine.handle(input, now(millis));
        while let Some(output) = self.machine.poll() {
            match output {
                RouterServerOutput::Send { link, octets } => self.sent.push_back((link, octets)),
                RouterServerOutput::Store { step, change } => self.steps.push_back((step, change)),
                RouterServerOutput::Check { link, seen } => self.checks.push((link, seen)),
                RouterServerOutput::Event(event) => self.events.push(event),
                _ => {}
            }
        }
    }

    fn frame(&mut self, (link, octets): (u64, Vec<u8>)) {
        self.input(RouterServerInput::Frame { link, octets }, 0);
    }

    /// The router connects to it.
    fn connect(&mut self, client: &mut RouterClient, link: u64) {
        client.connected(link);
        self.input(RouterServerInput::Connected { link, peer: IdentityKey([1; 32]) }, 0);
        self.frame((link, client.watch()));
    }

    /// Its store takes a report that waits.
    fn take(&mut self, ledger: &mut Ledger<ChargedAccount>) {
        let Some((step, UsageChange::Report { router, report, .. })) = self.steps.pop_front() else {
            panic!("no report waits");
        };
        let outcome = ledger.take(router, &report, 0).map(Into::into);
        self.input(RouterServerInput::Stored { step, outcome }, 0);
    }

    /// Whether its database has what the router has seen: changes up to `common` are those of the router's database too.
    fn look(&mut self, common: u64) {
        for (link, seen) in std::mem::take(&mut self.checks) {
            let continues = seen.number <= common;
            self.input(RouterServerInput::Checked { link, seen, continues }, 0);
        }
    }

    /// The router hears what it has sent by links that are up.
    fn heard(&mut self, client: &mut RouterClient) -> Vec<RouterClientEvent> {
        let sent = std::mem::take(&mut self.sent).into_iter();
        sent.flat_map(|(link, octets)| client.frame(link, &octets, now(0).instant).expect("sound")).collect()
    }

    fn alarms(&self) -> usize {
        self.events.iter().filter(|event| **event == RouterEvent::Behind(10)).count()
    }
}

#[test]
fn a_report_that_a_server_that_was_left_writes_late_is_no_alarm() {
    let (mut client, mut ledger) = (router(1), Ledger::new(1_000));
    let mut servers = [Server::new(Position::default()), Server::new(Position::default())];
    for (server, link) in servers.iter_mut().zip([1, 2]) {
        server.connect(&mut client, link);
        server.heard(&mut client);
    }
    client.durable(account(), usage(5));
    // The store of the first one stands still: its report waits there, and is repeated.
    for turn in 0..4 {
        servers[0].frame(client.report(now(turn * TIMEOUT).instant).expect("it waits"));
    }
    client.durable(account(), usage(9));
    let (to, octets) = client.report(now(4 * TIMEOUT).instant).expect("by the other");
    assert_eq!((to, client.reports_to()), (2, Some(2)));
    servers[1].frame((to, octets));
    servers[1].take(&mut ledger);
    assert_eq!((servers[1].heard(&mut client), client.waiting()), (Vec::new(), 0));
    // It goes on, and says to each of them that it had greater totals.
    (0..4).for_each(|_| servers[0].take(&mut ledger));
    assert_eq!((servers[0].sent.len(), servers[0].heard(&mut client)), (4, Vec::new()));
    // The router comes back to it, and goes on under the same journal.
    client.disconnected(2);
    servers[0].frame(client.report(now(5 * TIMEOUT).instant).expect("all again"));
    servers[0].take(&mut ledger);
    assert_eq!((servers[0].heard(&mut client), client.waiting()), (Vec::new(), 0));
    assert_eq!(servers.map(|server| server.alarms()), [0, 0]);
    assert_eq!(ledger.sums().values().copied().collect::<Vec<_>>(), [usage(9)]);
}

#[test]
fn a_router_that_was_put_back_is_an_alarm_as_soon_as_it_goes_on_under_another_journal() {
    let (mut client, mut ledger) = (router(1), Ledger::new(1_000));
    let full = UsageReport { journal: JournalId([1; 16]), number: 1, entries: vec![(account(), usage(9))] };
    ledger.take(10, &full, 0).expect("taken");
    let mut server = Server::new(Position::default());
    server.connect(&mut client, 1);
    server.heard(&mut client);
    client.durable(account(), usage(5));
    server.frame(client.report(now(0).instant).expect("usage"));
    server.take(&mut ledger);
    assert_eq!((server.heard(&mut client), server.alarms()), (vec![RouterClientEvent::Behind], 0));
    client.begin(JournalId([2; 16]));
    client.begun();
    // Although it has counted nothing since.
    server.frame(client.report(now(0).instant).expect("its journal"));
    server.take(&mut ledger);
    assert_eq!((server.heard(&mut client), client.waiting()), (Vec::new(), 0));
    client.durable(account(), usage(6));
    server.frame(client.report(now(0).instant).expect("usage"));
    server.take(&mut ledger);
    assert_eq!((server.heard(&mut client), server.alarms()), (Vec::new(), 1));
    assert_eq!(ledger.sums().values().copied().collect::<Vec<_>>(), [usage(10)]);
}

/// Both went on by themselves from change 3, and the router has a link to one of them at a time: to whichever it comes second, that one is
/// refused by the digest of the change that the first one told last, or since it ends before that.
#[test]
fn of_two_databases_that_a_router_meets_in_turn_the_second_is_refused_whatever_their_numbers() {
    for (first, second) in [(4, 6), (6, 4), (5, 5), (4, 1_000), (1_000, 4)] {
        let mut client = router(1);
        client.durable(account(), usage(1));
        let mut servers = [Server::new(at(first, 1)), Server::new(at(second, 2))];
        for turn in 0..6 {
            let (server, link) = (&mut servers[turn % 2], turn as u64);
            // They change while the router is away.
            let goes_on = at(if turn % 2 == 0 { first } else { second } + turn as u64, turn as u8 % 2 + 1);
            server.input(RouterServerInput::Read(goes_on), 0);
            server.connect(&mut client, link);
            server.look(if turn % 2 == 0 { u64::MAX } else { 3 });
            let events = server.heard(&mut client);
            let is_refused = events.iter().any(|event| matches!(event, RouterClientEvent::Lacks { .. }));
            assert_eq!((is_refused, client.reports_to()), (turn % 2 == 1, (turn % 2 == 0).then_some(link)), "{turn}");
            client.disconnected(link);
            server.input(RouterServerInput::Disconnected { link }, 0);
        }
        assert!(servers[1].events.iter().any(|event| matches!(event, RouterEvent::Lacks { router: 10, .. })));
        assert!(!servers[0].events.iter().any(|event| matches!(event, RouterEvent::Lacks { .. })));
    }
}

/// A router with links 1 and 2 to two servers, whose databases are the same yet.
fn of_one_database() -> (RouterClient, [Server; 2]) {
    let mut client = router(1);
    let mut servers = [Server::new(at(3, 0)), Server::new(at(3, 0))];
    for (server, link) in servers.iter_mut().zip([1, 2]) {
        server.connect(&mut client, link);
        server.look(u64::MAX);
        server.heard(&mut client);
    }
    (client, servers)
}

/// The router has a link to both before they go on by themselves, and no two of the changes that they tell have one number.
#[test]
fn of_two_databases_without_a_number_in_common_one_is_refused_once_it_is_asked_again() {
    let (mut client, mut servers) = of_one_database();
    assert_eq!(client.watch_again(now(0).instant), None);
    for number in 4..8 {
        let which = (number % 2) as usize;
        servers[which].input(RouterServerInput::Read(at(number, which as u8 + 1)), 0);
        assert_eq!(servers[which].heard(&mut client), [RouterClientEvent::Seen(at(number, which as u8 + 1))]);
        assert_eq!(client.watch_again(now(1_000 * number).instant), None, "not at each change");
    }
    let (link, octets) = client.watch_again(now(5_000 + ASKED_AGAIN).instant).expect("it is due");
    assert_eq!(link, 1, "what the other has told is not asked of that one");
    servers[0].frame((link, octets));
    servers[0].look(3);
    let lacks = RouterClientEvent::Lacks { seen: at(7, 2), own: at(6, 1) };
    assert_eq!(servers[0].heard(&mut client), [lacks, RouterClientEvent::Rates(Vec::new())], "the other's count");
    assert_eq!((client.reports_to(), client.watch_again(now(2 * ASKED_AGAIN).instant)), (Some(2), None));
    // Of servers with one database each has what the other has told: nothing comes of it.
    let (mut client, mut servers) = of_one_database();
    servers[0].input(RouterServerInput::Read(at(4, 0)), 0);
    servers[0].heard(&mut client);
    assert_eq!(client.watch_again(now(0).instant), None);
    servers[1].frame(client.watch_again(now(ASKED_AGAIN).instant).expect("it is due"));
    servers[1].look(u64::MAX);
    let events = servers[1].heard(&mut client);
    assert!(events.iter().all(|event| matches!(event, RouterClientEvent::Rates(_))), "{events:?}");
    assert_eq!(client.watch_again(now(ASKED_AGAIN).instant), None);
}

/// The router finds the fork by itself, by two changes of one number: the server, which knows nothing of it, tells its rates once more.
#[test]
fn a_router_that_found_a_fork_by_itself_is_told_the_rates_of_the_database_that_is_adopted() {
    let (mut client, mut servers) = of_one_database();
    let mut read = |which: usize, position: Position, client: &mut RouterClient| {
        servers[which].input(RouterServerInput::Read(position), 0);
        servers[which].heard(client)
    };
    assert_eq!(read(0, at(4, 1), &mut client), [RouterClientEvent::Seen(at(4, 1))]);
    assert_eq!(read(1, at(4, 2), &mut client)[0], RouterClientEvent::Lacks { seen: at(4, 1), own: at(4, 2) });
    client.disconnected(1);
    let adopted = Position { timeline: 1, ..at(5, 2) };
    assert_eq!(read(1, adopted, &mut client), [RouterClientEvent::Seen(adopted)]);
    assert_eq!(client.reports_to(), Some(2));
    let (link, octets) = client.watch_again(now(ASKED_AGAIN).instant).expect("it has told no rates since");
    servers[1].frame((link, octets));
    servers[1].look(u64::MAX);
    assert!(servers[1].heard(&mut client).contains(&RouterClientEvent::Rates(Vec::new())));
    assert_eq!(client.watch_again(now(ASKED_AGAIN).instant), None);
}
