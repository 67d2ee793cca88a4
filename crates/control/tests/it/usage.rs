//! Usage from routers to the key server: with crashes of both, links that are cut, lost memories and old backups, the ledger is never
//! above what was forwarded; and without lost memories it has, in the end, all that was durable.
//!
//! PLA, usage: random crashes, cut links, lost memories and old copies at routers and at the key server: sums never
//! above what was forwarded; without lost memories all that was durable.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;

use wayleave_control::capability::{
    JournalId, Ledger, MAX_ENTRIES, MAX_JOURNALS, Reporter, Usage, UsageAnswer, UsageRecord, UsageRefusal, UsageReport,
};

use crate::common::Random;

/// Accounts are numbers here.
type Account = u32;

fn journal(random: &mut Random) -> JournalId {
    JournalId((u128::from(random.next()) << 64 | u128::from(random.next())).to_be_bytes())
}

fn usage(packets: u128) -> Usage {
    Usage { packets, octets: packets * 100 }
}

/// What a router has on its disk.
#[derive(Clone)]
struct Disk {
    journal: JournalId,
    base: BTreeMap<Account, Usage>,
    totals: BTreeMap<Account, u128>,
}

impl Disk {
    fn empty(random: &mut Random) -> Self {
        Self { journal: journal(random), base: BTreeMap::new(), totals: BTreeMap::new() }
    }

    fn reporter(&self) -> Reporter<Account> {
        let mut reporter = Reporter::new(self.journal, self.base.clone());
        self.totals.iter().for_each(|(account, total)| reporter.durable(*account, usage(*total)));
        reporter
    }
}

struct Router {
    disk: Disk,
    backups: Vec<Disk>,
    totals: BTreeMap<Account, u128>,
    reporter: Reporter<Account>,
    reports: VecDeque<UsageReport<Account>>,
    answers: VecDeque<UsageAnswer>,
}

impl Router {
    fn new(random: &mut Random) -> Self {
        let disk = Disk::empty(random);
        let reporter = disk.reporter();
        let (reports, answers) = (VecDeque::new(), VecDeque::new());
        Self { disk, backups: Vec::new(), totals: BTreeMap::new(), reporter, reports, answers }
    }

    fn write(&mut self) {
        self.disk.totals = self.totals.clone();
        self.totals.iter().for_each(|(account, total)| self.reporter.durable(*account, usage(*total)));
    }

    /// A new life on what the disk has.
    fn start(&mut self, disk: Disk) {
        self.cut();
        (self.totals, self.reporter) = (disk.totals.clone(), disk.reporter());
        self.disk = disk;
    }

    fn cut(&mut self) {
        self.reports.clear();
        self.answers.clear();
        self.reporter.connected();
    }
}

struct World {
    random: Random,
    routers: Vec<Router>,
    ledger: Ledger<Account>,
    stored: BTreeMap<(u16, JournalId, Account), Usage>,
    forwarded: BTreeMap<Account, u128>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let routers = (0..3).map(|_| Router::new(&mut random)).collect();
        let (ledger, stored, forwarded) = (Ledger::new(10_000), BTreeMap::new(), BTreeMap::new());
        Self { random, routers, ledger, stored, forwarded }
    }

    fn restored(&self) -> Ledger<Account> {
        let mut ledger = Ledger::new(10_000);
        for ((router, journal, account), total) in &self.stored {
            ledger.restore(&UsageRecord { router: *router, journal: *journal, account: *account, total: *total });
        }
        ledger
    }

    /// The server takes the oldest report; `is_kept` is false if it dies before the totals are durable.
    fn serve(&mut self, place: usize, is_kept: bool) {
        let Some(report) = self.routers[place].reports.pop_front() else { return };
        let number = u16::try_from(place).expect("few");
        let taken = self.ledger.take(number, &report, 0).expect("within every limit");
        if !is_kept {
            self.ledger = self.restored();
            self.routers.iter_mut().for_each(Router::cut);
            return;
        }
        for record in taken.changed {
            self.stored.insert((record.router, record.journal, record.account), record.total);
        }
        self.routers[place].answers.push_back(UsageAnswer { number: report.number, is_behind: taken.is_behind });
    }

    fn hear(&mut self, place: usize) {
        let Some(answer) = self.routers[place].answers.pop_front() else { return };
        let journal = journal(&mut self.random);
        let router = &mut self.routers[place];
        if router.reporter.answered(answer) {
            let base = router.reporter.begin(journal).clone();
            // The totals are as durable as the new base.
            router.disk = Disk { journal, base, totals: router.disk.totals.clone() };
        }
    }

    /// One thing happens; `is_harsh`: memories may be lost, and backups put back.
    fn step(&mut self, is_harsh: bool) {
        let place = self.random.below(3) as usize;
        let what = self.random.below(if is_harsh { 100 } else { 96 });
        let (account, count) = (self.random.below(12) as Account, u128::from(self.random.below(1_000)));
        let fresh = Disk::empty(&mut self.random);
        let pick = self.random.next() as usize;
        let router = &mut self.routers[place];
        match what {
            0..40 => {
                *router.totals.entry(account).or_default() += count;
                *self.forwarded.entry(account).or_default() += count;
            }
            40..55 => router.write(),
            55..68 => router.reports.extend(router.reporter.report()),
            68..80 => self.serve(place, true),
            80..90 => self.hear(place),
            90 => self.serve(place, false),
            91 | 92 => router.cut(),
            93 => router.start(router.disk.clone()),
            94 | 95 => router.backups.push(router.disk.clone()),
            96 | 97 => {
                if !router.backups.is_empty() {
                    router.start(router.backups[pick % router.backups.len()].clone());
                }
            }
            _ => router.start(fresh),
        }
    }

    fn check(&self) {
        for (account, sum) in self.ledger.sums() {
            let forwarded = self.forwarded.get(&account).copied().unwrap_or_default();
            assert!(sum.packets <= forwarded, "account {account}: {sum:?} of {forwarded}");
            assert!(sum.octets <= forwarded * 100, "account {account}: {sum:?} of {forwarded}");
        }
    }

    fn settle(&mut self) {
        for place in 0..self.routers.len() {
            self.routers[place].cut();
            self.routers[place].write();
            while let Some(report) = self.routers[place].reporter.report() {
                self.routers[place].reports.push_back(report);
                self.serve(place, true);
                self.hear(place);
            }
            assert_eq!(self.routers[place].reporter.waiting(), 0);
        }
    }
}

#[test]
fn sums_are_never_above_what_was_forwarded_whatever_is_lost_or_put_back() {
    for seed in 0..200 {
        let mut world = World::new(seed);
        for _ in 0..1_500 {
            world.step(true);
            world.check();
        }
        world.settle();
        world.check();
        assert_eq!(world.restored().sums(), world.ledger.sums());
    }
}

#[test]
fn without_lost_memories_the_ledger_has_in_the_end_every_durable_total() {
    for seed in 0..200 {
        let mut world = World::new(1_000 + seed);
        for _ in 0..1_500 {
            world.step(false);
            world.check();
        }
        world.settle();
        let mut sums: BTreeMap<Account, Usage> = BTreeMap::new();
        for (account, total) in world.routers.iter().flat_map(|router| &router.disk.totals) {
            let sum = sums.entry(*account).or_default();
            *sum = usage(sum.packets + total);
        }
        assert_eq!(world.ledger.sums(), sums);
    }
}

#[test]
fn a_report_repeated_or_late_changes_nothing_and_a_memory_put_back_is_told_so() {
    let journal = JournalId([1; 16]);
    let report = |number, packets| UsageReport { journal, number, entries: vec![(7, usage(packets))] };
    let mut ledger = Ledger::new(100);
    let first = ledger.take(0, &report(1, 5), 0).expect("taken");
    assert_eq!((first.changed.len(), first.is_behind), (1, false));
    let again = ledger.take(0, &report(1, 5), 0).expect("taken");
    assert_eq!((again.changed.len(), again.is_behind), (0, false));
    let back = ledger.take(0, &report(2, 3), 0).expect("taken");
    assert_eq!((back.changed.len(), back.is_behind), (0, true));
    assert_eq!(ledger.by_router(), BTreeMap::from([((7, 0), usage(5))]));
}

/// A router's state is copied to another machine, or the router gets another number: its totals are billed already.
#[test]
fn a_memory_that_another_router_has_reported_is_on_no_bill_twice() {
    let mut random = Random(7);
    let mut ledger = Ledger::new(100);
    let mut disk = Disk::empty(&mut random);
    disk.totals.insert(7, 500);
    let mut reporter = disk.reporter();
    let report = reporter.report().expect("there is usage");
    ledger.take(0, &report, 0).expect("taken");
    let mut copy = disk.reporter();
    let report = copy.report().expect("the same");
    let taken = ledger.take(1, &report, 0).expect("taken");
    assert_eq!((taken.changed.len(), taken.is_behind), (0, true));
    assert!(copy.answered(UsageAnswer { number: report.number, is_behind: true }));
    // It counts on under an identity of its own.
    copy.begin(journal(&mut random));
    assert_eq!(copy.report(), None);
    copy.durable(7, usage(530));
    ledger.take(1, &copy.report().expect("more"), 0).expect("taken");
    reporter.durable(7, usage(510));
    reporter.answered(UsageAnswer { number: 1, is_behind: false });
    ledger.take(0, &reporter.report().expect("more"), 0).expect("taken");
    assert_eq!(ledger.by_router(), BTreeMap::from([((7, 0), usage(510)), ((7, 1), usage(30))]));
}

#[test]
fn pages_have_every_total_once_and_look_at_no_more_than_they_hold() {
    let mut ledger = Ledger::new(10_000);
    for (router, journal, accounts) in [(0, 1, 0..300), (0, 2, 100..150), (1, 3, 0..500), (2, 4, 400..700)] {
        let entries = accounts.map(|account| (account, usage(u128::from(journal)))).collect();
        let report = UsageReport { journal: JournalId([journal; 16]), number: 1, entries };
        ledger.take(router, &report, 0).expect("taken");
    }
    for most in [1, 7, 350, 700, 10_000] {
        let (mut all, mut first, mut pages) = (BTreeMap::new(), Bound::Unbounded, 0);
        loop {
            let page = ledger.page(first, None, most);
            let accounts: BTreeSet<Account> = page.totals.keys().map(|(account, _)| *account).collect();
            assert!(accounts.len() <= most, "{most}");
            for (key, total) in page.totals {
                assert_eq!(all.insert(key, total), None, "{key:?} comes once");
            }
            pages += 1;
            let Some(next) = page.next else { break };
            first = Bound::Excluded(next);
        }
        assert!(pages <= 700 / most + 1, "{most}: {pages}");
        assert_eq!(all, ledger.by_router(), "{most}");
    }
    let part = ledger.page(Bound::Included(120), Some(140), 1_000);
    assert_eq!((part.totals.len(), part.next), (42, None));
    assert_eq!(ledger.page(Bound::Excluded(140), Some(120), 10).totals, BTreeMap::new(), "an end before its begin");
}

#[test]
fn a_refused_report_leaves_nothing_behind() {
    let mut ledger = Ledger::new(3);
    let report = |journal: u8, accounts: std::ops::Range<Account>| {
        let entries = accounts.map(|account| (account, usage(1))).collect();
        UsageReport { journal: JournalId([journal; 16]), number: 1, entries }
    };
    let before = ledger.take(0, &report(0, 0..2), 0).expect("room for three").changed;
    assert_eq!(before.len(), 2);
    assert_eq!(ledger.take(0, &report(0, 0..4), 0), Err(UsageRefusal::LedgerFull));
    assert_eq!(ledger.take(0, &report(0, 0..MAX_ENTRIES as Account + 1), 0), Err(UsageRefusal::TooLong));
    assert_eq!(ledger.sums().len(), 2);
    ledger.take(0, &report(0, 0..3), 0).expect("room for three");
    let mut ledger = Ledger::new(10_000);
    for journal in 0..MAX_JOURNALS as u8 {
        ledger.take(0, &report(journal, 0..1), 0).expect("as many as may be");
    }
    assert_eq!(ledger.take(0, &report(200, 0..1), 0), Err(UsageRefusal::TooManyJournals));
    ledger.take(1, &report(200, 0..1), 0).expect("another router's");
    ledger.take(0, &report(3, 1..2), 0).expect("a known journal");
}
