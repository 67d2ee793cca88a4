//! Totals that are folded into sums of months: with crashes at every step, late and repeated reports, routers that forget, old copies
//! of either side, no packet is ever billed twice; and without losses every packet is billed once, in its month or late, and what is
//! closed does not change.
//!
//! PLA, folded usage: time is closed and totals are folded at random, with crashes, reports lost, late and repeated,
//! routers and servers that forget or are put back: no packet is on a bill twice; without losses each is once, in its
//! month.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;

use wayleave_control::capability::*;

use crate::common::Random;

/// A payer in an epoch; the sum of a payer's month of ten epochs has the month instead, and a thousand more; that of what came late,
/// when time was closed, and two thousand; what says how much of an account is in sums, three thousand.
type Account = (u32, u64);
const SUMS: u32 = 1_000;
const LATE: u32 = 2_000;
const FOLDED: u32 = 3_000;

const CALENDAR: Calendar<Account> = Calendar {
    payer: |(payer, _)| *payer,
    begins_at: |(_, epoch)| Some(*epoch),
    ended_at: |(payer, epoch)| (*payer < SUMS).then_some(*epoch + 3),
    sum: |(payer, epoch), _| (payer + SUMS, epoch / 10),
    late: |(payer, _), _, closed| (payer + LATE, closed),
    folded: |(payer, epoch)| (payer + FOLDED, *epoch),
    unfolded: |(payer, epoch)| {
        LOOKS.set(LOOKS.get() + 1);
        (*payer >= FOLDED).then(|| (payer - FOLDED, *epoch))
    },
    is_own: |(payer, _)| *payer >= SUMS,
};

thread_local! {
    /// How often the ledger has looked whether an account says how much is folded.
    static LOOKS: Cell<u64> = const { Cell::new(0) };
}

fn journal(random: &mut Random) -> JournalId {
    JournalId((u128::from(random.below(u64::MAX)) << 64 | 1).to_be_bytes())
}

fn usage(packets: u128) -> Usage {
    Usage { packets, octets: packets * 100 }
}

#[derive(Clone)]
struct Disk {
    journal: JournalId,
    base: BTreeMap<Account, Usage>,
    totals: BTreeMap<Account, u128>,
}

struct Router {
    disk: Disk,
    backups: Vec<Disk>,
    totals: BTreeMap<Account, u128>,
    /// Every total that was ever on the disk, the greatest.
    durable: BTreeMap<Account, u128>,
    reporter: Reporter<Account>,
    reports: VecDeque<UsageReport<Account>>,
    /// Reports of long ago, which the network may bring once more.
    old_reports: Vec<UsageReport<Account>>,
    answers: VecDeque<UsageAnswer>,
}

impl Router {
    fn new(random: &mut Random) -> Self {
        let disk = Disk { journal: journal(random), base: BTreeMap::new(), totals: BTreeMap::new() };
        let reporter = Reporter::new(disk.journal, BTreeMap::new());
        let (reports, old_reports, answers) = (VecDeque::new(), Vec::new(), VecDeque::new());
        let (totals, durable) = (BTreeMap::new(), BTreeMap::new());
        Self { disk, backups: Vec::new(), totals, durable, reporter, reports, old_reports, answers }
    }

    fn write(&mut self) {
        self.disk.totals = self.totals.clone();
        self.durable.extend(&self.totals);
        self.totals.iter().for_each(|(account, total)| self.reporter.durable(*account, usage(*total)));
    }

    fn start(&mut self, disk: Disk) {
        self.reporter = Reporter::new(disk.journal, disk.base.clone());
        self.totals = disk.totals.clone();
        self.disk = disk;
        self.write();
        self.cut();
    }

    fn cut(&mut self) {
        self.reports.clear();
        self.answers.clear();
        self.reporter.connected();
    }

    fn forget(&mut self, before: u64) {
        let mut is_busy = before.is_multiple_of(2);
        let over: Vec<Account> = self.totals.keys().filter(|(_, epoch)| epoch + 3 <= before).copied().collect();
        for account in over {
            if self.disk.totals.get(&account) == self.totals.get(&account) && self.reporter.is_forgettable(&account) {
                // A store that is busy takes nothing, and all stays as it was.
                is_busy = !is_busy;
                if is_busy {
                    continue;
                }
                self.reporter.forget(&account);
                self.totals.remove(&account);
                self.disk.totals.remove(&account);
                self.disk.base.remove(&account);
            }
        }
    }
}

/// What is on the server's disk.
#[derive(Clone, Default)]
struct Stored {
    totals: BTreeMap<(u16, JournalId, Account), Usage>,
    closed: u64,
    confirmed: BTreeMap<u16, u64>,
}

struct World {
    random: Random,
    time: u64,
    routers: Vec<Router>,
    ledger: Ledger<Account>,
    stored: Stored,
    backups: Vec<Stored>,
    forwarded: BTreeMap<(u32, u64), u128>,
    folds: u64,
    lates: u64,
    /// The bill of closed time, since it was closed.
    closed_bill: u128,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let routers = (0..3).map(|_| Router::new(&mut random)).collect();
        let ledger = Ledger::new(10_000).with_calendar(CALENDAR, 0);
        let (stored, backups, forwarded) = (Stored::default(), Vec::new(), BTreeMap::new());
        Self { random, time: 10, routers, ledger, stored, backups, forwarded, folds: 0, lates: 0, closed_bill: 0 }
    }

    /// The server starts on what its disk has, and routers connect again.
    fn restart(&mut self) {
        self.ledger = Ledger::new(10_000).with_calendar(CALENDAR, self.stored.closed);
        for ((router, journal, account), total) in &self.stored.totals {
            let (router, journal, account, total) = (*router, *journal, *account, *total);
            self.ledger.restore(&UsageRecord { router, journal, account, total });
        }
        for (router, second) in &self.stored.confirmed {
            self.ledger.restore_confirmed(*router, *second);
        }
        self.routers.iter_mut().for_each(Router::cut);
    }

    fn keep(&mut self, changed: Vec<UsageRecord<Account>>, removed: &[(u16, JournalId, Account)]) {
        for UsageRecord { router, journal, account, total } in changed {
            self.stored.totals.insert((router, journal, account), total);
        }
        for key in removed {
            self.stored.totals.remove(key);
        }
    }

    fn serve(&mut self, place: usize, report: Option<UsageReport<Account>>, is_kept: bool) {
        let Some(report) = report else { return };
        let taken = self.ledger.take(place as u16, &report, self.time).expect("within every limit");
        if !is_kept {
            return self.restart();
        }
        self.lates += u64::from(taken.is_late);
        self.keep(taken.changed, &taken.removed);
        let answer = UsageAnswer { number: report.number, is_behind: taken.is_behind };
        let router = &mut self.routers[place];
        router.answers.push_back(answer);
        router.old_reports.push(report);
    }

    fn hear(&mut self, place: usize) {
        let Some(answer) = self.routers[place].answers.pop_front() else { return };
        let journal = journal(&mut self.random);
        let router = &mut self.routers[place];
        if router.reporter.answered(answer) {
            let base = router.reporter.begin(journal).clone();
            router.disk = Disk { journal, base, totals: router.disk.totals.clone() };
        }
    }

    /// Closes time and folds a part; the server may die before either is durable.
    fn fold(&mut self, until: u64, is_kept: [bool; 2]) {
        if self.ledger.close(until, 0..3) {
            if !is_kept[0] {
                return self.restart();
            }
            (self.stored.closed, self.stored.confirmed) = (until, self.ledger.confirmed().clone());
            self.closed_bill = self.bill_of_closed();
        }
        let most = 1 + self.random.below(30) as usize;
        let Some(Fold { changed, removed }) = self.ledger.fold(most) else { return };
        if !is_kept[1] {
            return self.restart();
        }
        self.folds += removed.len() as u64;
        self.keep(changed, &removed);
    }

    /// A router says up to when the server has everything that it counted: what ended by then, it charges no more.
    fn confirm(&mut self, place: usize, is_kept: bool) {
        let router = &self.routers[place];
        if router.totals != router.disk.totals {
            return;
        }
        let ends = router.reporter.unknown().map(|(_, epoch)| epoch + 2);
        let through = ends.fold(self.time, u64::min);
        if self.ledger.confirm(place as u16, through) {
            if !is_kept {
                return self.restart();
            }
            self.stored.confirmed = self.ledger.confirmed().clone();
        }
    }

    /// What is billed of closed time, without what came late.
    fn bill_of_closed(&self) -> u128 {
        let is_closed = |(payer, time): &Account| match *payer {
            0..SUMS => time + 3 <= self.ledger.closed(),
            payer => payer < LATE,
        };
        self.ledger.sums().iter().filter(|(account, _)| is_closed(account)).map(|(_, sum)| sum.packets).sum()
    }

    fn step(&mut self, is_harsh: bool) {
        let place = self.random.below(3) as usize;
        let what = self.random.below(if is_harsh { 130 } else { 110 });
        if self.random.below(20) == 0 {
            let is_kept = self.random.below(4) > 0;
            self.confirm(place, is_kept);
        }
        let count = u128::from(self.random.below(1_000));
        let pick = self.random.below(1 << 40) as usize;
        let account = (self.random.below(3) as u32, self.time - self.random.below(3));
        let kept = [self.random.below(4) > 0, self.random.below(4) > 0];
        match what {
            0..40 => {
                *self.routers[place].totals.entry(account).or_default() += count;
                *self.forwarded.entry((account.0, account.1 / 10)).or_default() += count;
            }
            40..52 => self.routers[place].write(),
            52..64 => {
                let report = self.routers[place].reporter.report();
                self.routers[place].reports.extend(report);
            }
            64..76 => {
                let report = self.routers[place].reports.pop_front();
                self.serve(place, report, what > 64);
            }
            76..86 => self.hear(place),
            86..90 => self.routers[place].cut(),
            90..94 => self.time += 1,
            94..96 => {
                let disk = self.routers[place].disk.clone();
                self.routers[place].start(disk);
            }
            96..98 => self.restart(),
            98..102 => {
                let until = self.time.saturating_sub(self.random.below(12));
                self.fold(until, kept);
            }
            102..105 => {
                let before = self.time.saturating_sub(6);
                self.routers[place].forget(before);
            }
            // A report of any time comes again.
            105..110 if !self.routers[place].old_reports.is_empty() => {
                let report = self.routers[place].old_reports[pick % self.routers[place].old_reports.len()].clone();
                let taken = self.ledger.take(place as u16, &report, self.time).expect("within every limit");
                self.keep(taken.changed, &taken.removed);
            }
            110..113 => {
                let copy = self.routers[place].disk.clone();
                self.routers[place].backups.push(copy);
            }
            113..116 => self.backups.push(self.stored.clone()),
            116..119 if !self.routers[place].backups.is_empty() => {
                let backups = &self.routers[place].backups;
                let disk = backups[pick % backups.len()].clone();
                self.routers[place].start(disk);
            }
            119 | 120 if !self.backups.is_empty() => {
                self.stored = self.backups[pick % self.backups.len()].clone();
                self.restart();
                self.closed_bill = self.bill_of_closed();
            }
            121 => {
                let fresh = Disk { journal: journal(&mut self.random), base: BTreeMap::new(), totals: BTreeMap::new() };
                self.routers[place].start(fresh);
            }
            _ => {}
        }
    }

    /// What is billed to each payer in each month, and late.
    fn bills(&self) -> (BTreeMap<(u32, u64), u128>, BTreeMap<u32, u128>) {
        let (mut bills, mut late) = (BTreeMap::new(), BTreeMap::new());
        for ((payer, time), sum) in self.ledger.sums() {
            match payer {
                0..SUMS => *bills.entry((payer, time / 10)).or_default() += sum.packets,
                SUMS..LATE => *bills.entry((payer - SUMS, time)).or_default() += sum.packets,
                LATE..FOLDED => *late.entry(payer - LATE).or_default() += sum.packets,
                _ => panic!("no usage"),
            }
            assert_eq!(sum.octets, sum.packets * 100);
        }
        (bills, late)
    }

    fn check(&self) {
        let (bills, mut whole) = self.bills();
        for (key, billed) in bills {
            let forwarded = self.forwarded.get(&key).copied().unwrap_or_default();
            assert!(billed <= forwarded, "{key:?}: {billed} of {forwarded}");
            *whole.entry(key.0).or_default() += billed;
        }
        assert_eq!(self.bill_of_closed(), self.closed_bill, "what is closed does not change");
        for (payer, billed) in whole {
            let all: u128 = self.forwarded.iter().filter(|((of, _), _)| *of == payer).map(|(_, count)| count).sum();
            assert!(billed <= all, "{payer}: {billed} of {all}");
        }
    }

    fn settle(&mut self) {
        for place in 0..self.routers.len() {
            self.routers[place].cut();
            self.routers[place].write();
            while let Some(report) = self.routers[place].reporter.report() {
                self.serve(place, Some(report), true);
                self.hear(place);
            }
        }
    }
}

#[test]
fn no_packet_is_billed_twice_whatever_is_folded_lost_forgotten_repeated_or_put_back() {
    let mut folds = 0;
    for seed in 0..150 {
        let mut world = World::new(seed);
        for step in 0..1_500 {
            world.step(true);
            if step % 8 == 0 {
                world.check();
            }
        }
        world.settle();
        world.check();
        folds += world.folds;
    }
    assert!(folds > 10_000, "{folds}");
}

#[test]
fn without_losses_every_packet_is_billed_once_in_its_month_or_late_and_the_ledger_stays_small() {
    let (mut folds, mut lates) = (0, 0);
    for seed in 0..150 {
        let mut world = World::new(10_000 + seed);
        for step in 0..3_000 {
            world.step(false);
            if step % 8 == 0 {
                world.check();
            }
        }
        world.settle();
        let (bills, late) = world.bills();
        // What a crash of a router took from it was on no disk; all else is billed, once.
        let mut expected: BTreeMap<u32, u128> = BTreeMap::new();
        for ((payer, _), total) in world.routers.iter().flat_map(|router| &router.durable) {
            *expected.entry(*payer).or_default() += total;
        }
        let mut whole = late.clone();
        bills.iter().for_each(|((payer, _), billed)| *whole.entry(*payer).or_default() += billed);
        assert_eq!(whole, expected, "seed {seed}");
        (folds, lates) = (folds + world.folds, lates + world.lates);
        world.time += 1_000;
        (0..3).for_each(|place| world.confirm(place, true));
        while world.ledger.close(world.time, 0..3) || world.ledger.fold(1_000).is_some() {}
        assert_eq!(world.bills(), (bills, late), "folding all changes no bill");
        // A sum for each payer, month and router is left, and for each time at which something came late.
        let (months, closings) = (world.time / 10 + 1, world.time);
        assert!(world.ledger.len() as u64 <= 3 * 3 * (months + closings), "{}", world.ledger.len());
        let own: BTreeSet<u32> = world.ledger.by_router().keys().map(|((payer, _), _)| payer / SUMS).collect();
        assert!(own.iter().all(|kind| [1, 2].contains(kind)), "{own:?}");
        assert_eq!(world.ledger.by_router().len(), world.ledger.len(), "what says how much is folded is gone");
    }
    assert!(folds > 1_000 && lates > 1_000, "{folds} {lates}");
}

#[test]
fn durable_totals_are_billed_exactly_although_old_ones_are_folded_and_forgotten() {
    let (mut random, mut router) = (Random(7), Router::new(&mut Random(8)));
    let mut ledger = Ledger::new(250).with_calendar(CALENDAR, 0);
    let (mut all, mut time) = (0, 0);
    // Far more totals in the course of time than the ledger has room for.
    for _ in 0..500 {
        time += 1;
        for payer in 0..3 {
            let count = u128::from(random.below(100));
            *router.totals.entry((payer, time)).or_default() += count;
            all += count;
        }
        router.write();
        while let Some(report) = router.reporter.report() {
            let taken = ledger.take(0, &report, time).expect("there is room");
            router.reporter.answered(UsageAnswer { number: report.number, is_behind: taken.is_behind });
        }
        ledger.confirm(0, time);
        ledger.close(time.saturating_sub(20), [0]);
        let sums = |ledger: &Ledger<Account>| ledger.page(Bound::Unbounded, None, 1_000).totals.len();
        let (before, length) = (ledger.page(Bound::Unbounded, None, 1).moved, sums(&ledger));
        while ledger.fold(1_000).is_some() {}
        // Whoever read a page before sees that the next one is of another time.
        assert!(sums(&ledger) == length || ledger.page(Bound::Unbounded, None, 1).moved > before);
        router.forget(time.saturating_sub(10));
        // Sums of long ago are three a month.
        if time % 100 == 0 {
            assert!(router.totals.len() <= 3 * 14, "{}", router.totals.len());
        }
    }
    assert_eq!(ledger.sums().values().map(|sum| sum.packets).sum::<u128>(), all);
    assert!(ledger.len() < 3 * 75);
    // A router that reports sums, or that repeats what is closed, changes nothing.
    let sums = ledger.sums();
    let entries = vec![((SUMS, 3), usage(1 << 60)), ((0, 5), usage(1 << 60))];
    let report = UsageReport { journal: JournalId([9; 16]), number: 1, entries };
    let taken = ledger.take(0, &report, time).expect("taken");
    assert!(taken.changed.is_empty() && !taken.is_behind);
    assert_eq!(ledger.sums(), sums);
    assert!(!ledger.close(10, [0]), "never back");
    assert_eq!(ledger.closed(), 480);
}

/// A report of one journal of the first router.
fn report(entries: &[(Account, u128)]) -> UsageReport<Account> {
    let entries = entries.iter().map(|(account, total)| (*account, usage(*total))).collect();
    UsageReport { journal: JournalId([9; 16]), number: 1, entries }
}

/// A ledger of so many totals of one payer, of which time is closed and folded up to an epoch, and which the router may still report.
fn owed(limit: usize, epochs: u64, closed: u64) -> Ledger<Account> {
    let mut ledger = Ledger::new(limit).with_calendar(CALENDAR, 0);
    for epoch in 0..epochs {
        ledger.take(0, &report(&[((0, epoch), 5)]), 0).expect("there is room");
    }
    ledger.close(closed, [0]);
    while ledger.fold(1_000).is_some() {}
    ledger
}

#[test]
fn what_a_full_ledger_has_already_may_be_reported_again_and_again() {
    // Eight are folded into one sum, and kept as what is folded; two are not.
    let mut ledger = owed(11, 10, 10);
    assert_eq!((ledger.len(), ledger.sums().len()), (11, 3), "full");
    let all: Vec<(Account, u128)> = (0..10).map(|epoch| ((0, epoch), 5)).collect();
    let taken = ledger.take(0, &report(&all), 0).expect("it has all of it");
    assert_eq!((taken.changed, taken.is_behind), (Vec::new(), false));
    // More of a total that is not closed needs no room either; more of a closed one needs a sum of what came late.
    assert_eq!(ledger.take(0, &report(&[((0, 8), 7)]), 0).expect("it has that one").changed.len(), 1);
    assert_eq!(ledger.take(0, &report(&[((0, 3), 7)]), 0), Err(UsageRefusal::LedgerFull));
    assert_eq!(ledger.take(0, &report(&[((0, 10), 1)]), 0), Err(UsageRefusal::LedgerFull));
    assert_eq!(ledger.len(), 11, "a refused report leaves nothing behind");
    let mut ledger = owed(12, 10, 10);
    for total in [7, 7, 9] {
        ledger.take(0, &report(&[((0, 3), total), ((0, 4), total)]), 0).expect("one sum of both");
    }
    assert_eq!((ledger.len(), ledger.sums()[&(LATE, 10)]), (12, usage(8)));
}

#[test]
fn a_page_looks_at_nothing_of_what_is_folded() {
    let ledger = owed(20_000, 5_000, 4_000);
    assert!(ledger.len() > 5_000 + 300, "what is folded is there, and sums");
    let before = LOOKS.get();
    let (mut first, mut pages, mut found) = (Bound::Unbounded, 0, BTreeMap::new());
    loop {
        let page = ledger.page(first, None, 10);
        found.extend(page.totals);
        pages += 1;
        let Some(next) = page.next else { break };
        first = Bound::Excluded(next);
    }
    assert_eq!((LOOKS.get(), found), (before, ledger.by_router()));
    assert!(pages > 100, "{pages}");
}
