//! Usage from routers to the key server: with crashes of both, links that are cut, lost memories and old backups, the ledger is never
//! above what was forwarded; and without lost memories it has, in the end, all that was durable.
//!
//! PLA, usage: random crashes, cut links, lost memories and old copies at routers and at the key server: sums never
//! above what was forwarded; without lost memories all that was durable.

use std::collections::{BTreeMap, VecDeque};

use wayleave_control::capability::{
    Calendar, JournalId, Ledger, MAX_ENTRIES, MAX_JOURNALS, Reporter, Usage, UsageAnswer, UsageRecord, UsageRefusal,
    UsageReport,
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
    let first = copy.report().expect("that it has one");
    assert!(!ledger.take(1, &first, 0).expect("taken").is_behind && first.entries.is_empty());
    copy.answered(UsageAnswer { number: first.number, is_behind: false });
    assert_eq!(copy.report(), None);
    copy.durable(7, usage(530));
    ledger.take(1, &copy.report().expect("more"), 0).expect("taken");
    reporter.durable(7, usage(510));
    reporter.answered(UsageAnswer { number: 1, is_behind: false });
    ledger.take(0, &reporter.report().expect("more"), 0).expect("taken");
    assert_eq!(ledger.by_router(), BTreeMap::from([((7, 0), usage(510)), ((7, 1), usage(30))]));
}

/// A hundred accounts each are one payer's, and none of them ever ends.
const PAYERS: Calendar<Account> = Calendar {
    payer: |account| account / 100,
    begins_at: |_| None,
    ended_at: |_| None,
    sum: |account, _| *account,
    late: |account, _, _| *account,
    coarse: |account| *account,
    folded: |account| *account,
    unfolded: |_| None,
    is_own: |_| false,
};

fn of_payers(limit: usize) -> Ledger<Account> {
    Ledger::new(limit).with_calendar(PAYERS, (0, 0))
}

#[test]
fn a_refused_report_leaves_nothing_behind_and_one_beyond_a_payers_limit_what_there_is_room_for() {
    let mut ledger = Ledger::new(3);
    let report = |journal: u8, accounts: std::ops::Range<Account>| {
        let entries = accounts.map(|account| (account, usage(1))).collect();
        UsageReport { journal: JournalId([journal; 16]), number: 1, entries }
    };
    let before = ledger.take(0, &report(0, 0..2), 0).expect("room for three").changed;
    assert_eq!(before.len(), 2);
    assert_eq!(ledger.take(0, &report(0, 0..MAX_ENTRIES as Account + 1), 0), Err(UsageRefusal::TooLong));
    assert_eq!(ledger.sums().len(), 2);
    let taken = ledger.take(0, &report(0, 0..4), 0).expect("entries are taken one by one");
    assert_eq!((taken.changed.len(), taken.untaken), (1, vec![3]));
    assert_eq!((ledger.sums().len(), ledger.len()), (3, 3));
    let mut ledger = Ledger::new(10_000);
    for journal in 0..MAX_JOURNALS as u8 {
        ledger.take(0, &report(journal, 0..1), 0).expect("as many as may be");
    }
    assert_eq!(ledger.take(0, &report(200, 0..1), 0), Err(UsageRefusal::TooManyJournals));
    ledger.take(1, &report(200, 0..1), 0).expect("another router's");
    ledger.take(0, &report(3, 1..2), 0).expect("a known journal");
}

/// An account of which everything that was counted was credited, since it could not be sent.
#[test]
fn a_total_of_nothing_is_taken_and_kept_nowhere() {
    let mut ledger = of_payers(1);
    let report = |number, entries| UsageReport { journal: JournalId([1; 16]), number, entries };
    let taken = ledger.take(1, &report(1, vec![(1, usage(0)), (2, usage(0)), (3, usage(5))]), 0).expect("taken");
    assert!(taken.untaken.is_empty() && !taken.is_behind);
    assert_eq!(taken.more.into_values().collect::<Vec<_>>(), [usage(5)]);
    assert_eq!(ledger.sums(), BTreeMap::from([(3, usage(5))]));
    // Of what is known it says that the router's memory is a copy.
    assert!(ledger.take(1, &report(2, vec![(3, usage(0))]), 0).expect("taken").is_behind);
}

#[test]
fn a_payer_without_room_takes_none_from_others_and_may_report_more_of_what_it_has() {
    let mut ledger = of_payers(3);
    let report = |entries: &[(Account, u128)]| UsageReport {
        journal: JournalId([1; 16]),
        number: 1,
        entries: entries.iter().map(|(account, packets)| (*account, usage(*packets))).collect(),
    };
    // Between accounts of the full payer are some of others.
    let all = [(0, 5), (1, 5), (100, 5), (2, 5), (3, 5), (101, 5), (4, 5), (200, 5)];
    let taken = ledger.take(0, &report(&all), 0).expect("taken");
    assert_eq!((taken.changed.len(), taken.untaken, taken.is_behind), (6, vec![4, 6], false));
    assert_eq!(ledger.counts(), &BTreeMap::from([(0, 3), (1, 2), (2, 1)]));
    // What needs no room is taken, and an account that is there twice needs it once.
    let more = [(3, 9), (2, 9), (102, 1), (102, 2), (5, 1), (0, 6)];
    let taken = ledger.take(0, &report(&more), 0).expect("taken");
    assert_eq!(taken.untaken, [0, 4]);
    assert_eq!(ledger.counts(), &BTreeMap::from([(0, 3), (1, 3), (2, 1)]));
    let sums = [(0, 6), (1, 5), (2, 9), (100, 5), (101, 5), (102, 2), (200, 5)];
    assert_eq!(ledger.sums(), sums.map(|(account, packets)| (account, usage(packets))).into());
    // The limit is one for all routers together, and for all of their journals.
    let other = UsageReport { journal: JournalId([2; 16]), number: 1, entries: vec![(0, usage(1)), (201, usage(1))] };
    assert_eq!(ledger.take(1, &other, 0).expect("taken").untaken, [0]);
    assert_eq!(ledger.take(0, &UsageReport { journal: JournalId([3; 16]), ..other }, 0).expect("taken").untaken, [0]);
    // Entries without room leave a router without a journal.
    let only = UsageReport { journal: JournalId([4; 16]), number: 1, entries: vec![(7, usage(1))] };
    assert_eq!(ledger.take(2, &only, 0).expect("not taken, and no fault").untaken, [0]);
    assert!(!ledger.take(3, &only, 0).expect("no other router's").is_behind);
}

#[test]
fn sums_of_statements_are_never_changed_by_a_report_under_their_journals() {
    let mut ledger = of_payers(100);
    let sums = JournalId::of_statement(1);
    for (router, account) in [(0, 7), (1, 8)] {
        ledger.restore(&UsageRecord { router, journal: sums, account, total: usage(50) });
    }
    let before = ledger.by_router();
    for number in [0, 1, 2, u64::MAX] {
        let (journal, entries) = (JournalId::of_statement(number), vec![(7, usage(900)), (9, usage(900))]);
        let report = UsageReport { journal, number: 1, entries };
        // A router that has met such a number by chance goes on under another.
        for router in [0, 1, 2] {
            let taken = ledger.take(router, &report, 0).expect("answered");
            assert_eq!((taken.changed.len(), taken.removed.len(), taken.is_behind), (0, 0, true), "{number} {router}");
        }
    }
    assert_eq!((ledger.by_router(), ledger.len()), (before, 2));
}

fn accounts(report: &UsageReport<Account>) -> Vec<Account> {
    report.entries.iter().map(|(account, _)| *account).collect()
}

#[test]
fn a_router_reports_others_while_some_are_untaken_and_keeps_these_until_they_are_taken() {
    let mut reporter = Reporter::new(JournalId([1; 16]), BTreeMap::new());
    [1, 2, 3, 4].iter().for_each(|account| reporter.durable(*account, usage(5)));
    let answer = |number| UsageAnswer { number, is_behind: false };
    let first = reporter.report().expect("four");
    // What is said of another report, or of entries that it does not have, counts nothing.
    reporter.untaken(first.number + 1, &[0]);
    reporter.untaken(first.number, &[1, 3, 4, u16::MAX]);
    reporter.answered(answer(first.number));
    assert_eq!(reporter.unknown().copied().collect::<Vec<_>>(), [2, 4]);
    for account in [1, 2, 3, 4] {
        let is_taken = [1, 3].contains(&account);
        assert_eq!((reporter.is_known(&account), reporter.is_forgettable(&account)), (is_taken, is_taken));
    }
    assert_eq!(reporter.report(), None, "the untaken wait");
    // More of an untaken one waits with it; others are reported.
    [(2, 8), (3, 8), (5, 8)].iter().for_each(|(account, total)| reporter.durable(*account, usage(*total)));
    let second = reporter.report().expect("two");
    assert_eq!(accounts(&second), [3, 5]);
    assert!([2, 4].iter().all(|account| !reporter.is_known(account) && !reporter.is_forgettable(account)));
    reporter.answered(answer(second.number));
    assert_eq!((reporter.report(), reporter.waiting()), (None, 2));

    // In time they are tried again, with what they are then: one of them is taken.
    reporter.try_again();
    let third = reporter.report().expect("again");
    assert_eq!(third.entries, [(2, usage(8)), (4, usage(5))]);
    reporter.untaken(third.number, &[1]);
    reporter.answered(answer(third.number));
    assert_eq!([2, 4].map(|account| reporter.is_forgettable(&account)), [true, false]);
    // What comes twice is of a report that waits no longer.
    reporter.untaken(third.number, &[0]);
    assert_eq!((reporter.report(), reporter.waiting()), (None, 1));

    // On a new connection all are reported, and those among them.
    reporter.connected();
    let again = reporter.report().expect("all");
    assert_eq!(accounts(&again), [1, 2, 3, 4, 5]);
    reporter.untaken(again.number, &[3]);
    reporter.answered(answer(again.number));
    assert!(!reporter.is_forgettable(&4) && reporter.is_forgettable(&5));
    // A new identity has in its base what the old one could not report: it is on no bill twice.
    assert!(reporter.begin(JournalId([2; 16])).contains_key(&4));
    // The server hears of it at once.
    let first = reporter.report().expect("a report of the new journal");
    assert_eq!((first.journal, first.entries, reporter.report()), (JournalId([2; 16]), Vec::new(), None));
    reporter.answered(answer(first.number));
    assert_eq!(reporter.report(), None);
    reporter.durable(4, usage(6));
    assert_eq!(reporter.report().expect("one").entries, [(4, usage(1))]);
}

/// Reports go on until all of the others is there, however many accounts have no room.
#[test]
fn many_untaken_accounts_hold_back_no_others() {
    let mut ledger = of_payers(10);
    let mut reporter = Reporter::new(JournalId([1; 16]), BTreeMap::new());
    let all = 30 * 100;
    (0..all).for_each(|account| reporter.durable(account, usage(1)));
    let mut reports = 0;
    while let Some(report) = reporter.report() {
        let taken = ledger.take(0, &report, 0).expect("taken");
        reporter.untaken(report.number, &taken.untaken);
        reporter.answered(UsageAnswer { number: report.number, is_behind: taken.is_behind });
        reports += 1;
    }
    assert_eq!((reports, reporter.waiting(), ledger.len()), (6, 30 * 90, 30 * 10));
    assert!(ledger.counts().values().all(|count| *count == 10));
}
