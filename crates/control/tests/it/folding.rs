//! Totals that are folded into sums of months: with crashes at every step, late and repeated reports, routers that forget, old copies
//! of either side, no packet is ever billed twice; and without losses every packet that was reported in time is billed once.

use std::collections::{BTreeMap, VecDeque};

use wayleave_control::capability::*;

/// A payer in an epoch; the sum of a payer's month of ten epochs has the month instead, and a thousand more.
type Account = (u32, u64);
const SUMS: u32 = 1_000;

const CALENDAR: Calendar<Account> = Calendar {
    ended_at: |(payer, epoch)| (*payer < SUMS).then_some(*epoch + 3),
    sum: |(payer, epoch)| (payer + SUMS, epoch / 10),
    is_sum: |(payer, _)| *payer >= SUMS,
};

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }

    fn journal(&mut self) -> JournalId {
        JournalId((u128::from(self.below(u64::MAX)) << 64 | 1).to_be_bytes())
    }
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
        let disk = Disk { journal: random.journal(), base: BTreeMap::new(), totals: BTreeMap::new() };
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
        let over: Vec<Account> = self.totals.keys().filter(|(_, epoch)| epoch + 3 <= before).copied().collect();
        for account in over {
            if self.disk.totals.get(&account) == self.totals.get(&account) && self.reporter.forget(&account) {
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
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let routers = (0..3).map(|_| Router::new(&mut random)).collect();
        let ledger = Ledger::new(10_000).with_calendar(CALENDAR, 0);
        let (stored, backups, forwarded) = (Stored::default(), Vec::new(), BTreeMap::new());
        Self { random, time: 10, routers, ledger, stored, backups, forwarded, folds: 0 }
    }

    /// The server starts on what its disk has, and routers connect again.
    fn restart(&mut self) {
        self.ledger = Ledger::new(10_000).with_calendar(CALENDAR, self.stored.closed);
        for ((router, journal, account), total) in &self.stored.totals {
            let (router, journal, account, total) = (*router, *journal, *account, *total);
            self.ledger.restore(&UsageRecord { router, journal, account, total });
        }
        self.routers.iter_mut().for_each(Router::cut);
    }

    fn keep(&mut self, records: Vec<UsageRecord<Account>>) {
        for UsageRecord { router, journal, account, total } in records {
            self.stored.totals.insert((router, journal, account), total);
        }
    }

    fn serve(&mut self, place: usize, report: Option<UsageReport<Account>>, is_kept: bool) {
        let Some(report) = report else { return };
        let taken = self.ledger.take(place as u16, &report).expect("within every limit");
        if !is_kept {
            return self.restart();
        }
        self.keep(taken.changed);
        let answer = UsageAnswer { number: report.number, is_behind: taken.is_behind };
        let router = &mut self.routers[place];
        router.answers.push_back(answer);
        router.old_reports.push(report);
    }

    fn hear(&mut self, place: usize) {
        let Some(answer) = self.routers[place].answers.pop_front() else { return };
        let journal = self.random.journal();
        let router = &mut self.routers[place];
        if router.reporter.answered(answer) {
            let base = router.reporter.begin(journal).clone();
            router.disk = Disk { journal, base, totals: router.disk.totals.clone() };
        }
    }

    /// Closes time and folds a part; the server may die before either is durable.
    fn fold(&mut self, until: u64, is_kept: [bool; 2]) {
        if self.ledger.close(until) {
            if !is_kept[0] {
                return self.restart();
            }
            self.stored.closed = until;
        }
        let most = 1 + self.random.below(30) as usize;
        let Some(Fold { sums, removed }) = self.ledger.fold(most) else { return };
        if !is_kept[1] {
            return self.restart();
        }
        self.folds += removed.len() as u64;
        self.keep(sums);
        for key in &removed {
            self.stored.totals.remove(key);
        }
    }

    fn step(&mut self, is_harsh: bool) {
        let place = self.random.below(3) as usize;
        let what = self.random.below(if is_harsh { 130 } else { 110 });
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
                // Long ago for those that lose nothing: everything that old was reported.
                let until = self.time.saturating_sub(if is_harsh { self.random.below(12) } else { 40 });
                if is_harsh || self.is_all_reported(until) {
                    self.fold(until, kept);
                }
            }
            102..105 => {
                let before = self.time.saturating_sub(6);
                self.routers[place].forget(before);
            }
            // A report of any time comes again.
            105..110 if !self.routers[place].old_reports.is_empty() => {
                let report = self.routers[place].old_reports[pick % self.routers[place].old_reports.len()].clone();
                let taken = self.ledger.take(place as u16, &report).expect("within every limit");
                self.keep(taken.changed);
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
            }
            121 => {
                let fresh = Disk { journal: self.random.journal(), base: BTreeMap::new(), totals: BTreeMap::new() };
                self.routers[place].start(fresh);
            }
            _ => {}
        }
    }

    /// Whether the server has every total of epochs that had ended by then.
    fn is_all_reported(&self, until: u64) -> bool {
        self.routers.iter().all(|router| {
            let ended = router.totals.iter().filter(|((_, epoch), _)| epoch + 3 <= until);
            ended.into_iter().all(|(account, total)| {
                router.disk.totals.get(account) == Some(total) && router.reporter.is_known(account)
            })
        })
    }

    /// What is billed to each payer in each month.
    fn bills(&self) -> BTreeMap<(u32, u64), u128> {
        let mut bills = BTreeMap::new();
        for ((payer, time), sum) in self.ledger.sums() {
            let key = if payer >= SUMS { (payer - SUMS, time) } else { (payer, time / 10) };
            *bills.entry(key).or_default() += sum.packets;
            assert_eq!(sum.octets, sum.packets * 100);
        }
        bills
    }

    fn check(&self) {
        for (key, billed) in self.bills() {
            let forwarded = self.forwarded.get(&key).copied().unwrap_or_default();
            assert!(billed <= forwarded, "{key:?}: {billed} of {forwarded}");
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
        for _ in 0..1_500 {
            world.step(true);
            world.check();
        }
        world.settle();
        world.check();
        folds += world.folds;
    }
    assert!(folds > 10_000, "{folds}");
}

#[test]
fn without_losses_every_packet_is_billed_once_in_its_month_and_the_ledger_stays_small() {
    let mut folds = 0;
    for seed in 0..150 {
        let mut world = World::new(10_000 + seed);
        for _ in 0..3_000 {
            world.step(false);
            world.check();
        }
        world.settle();
        let bills = world.bills();
        // What a crash of a router took from it was on no disk; all else is billed.
        let mut expected: BTreeMap<(u32, u64), u128> = BTreeMap::new();
        for ((payer, epoch), total) in world.routers.iter().flat_map(|router| &router.durable) {
            *expected.entry((*payer, epoch / 10)).or_default() += total;
        }
        assert_eq!(bills, expected, "seed {seed}");
        folds += world.folds;
        let before: u128 = bills.values().sum();
        world.time += 1_000;
        while world.ledger.close(world.time) || world.ledger.fold(1_000).is_some() {}
        assert_eq!(world.bills(), bills, "folding all changes no bill");
        assert_eq!(world.bills().values().sum::<u128>(), before);
        // A sum for each payer, month and router is left.
        let months = world.time / 10 + 1;
        assert!(world.ledger.len() as u64 <= 3 * 3 * months, "{}", world.ledger.len());
        assert!(world.ledger.sums().keys().all(|(payer, _)| *payer >= SUMS));
    }
    assert!(folds > 1_000, "{folds}");
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
            let taken = ledger.take(0, &report).expect("there is room");
            router.reporter.answered(UsageAnswer { number: report.number, is_behind: taken.is_behind });
        }
        ledger.close(time.saturating_sub(20));
        while ledger.fold(1_000).is_some() {}
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
    let taken = ledger.take(0, &report).expect("taken");
    assert!(taken.changed.is_empty() && !taken.is_behind);
    assert_eq!(ledger.sums(), sums);
    assert!(!ledger.close(10), "never back");
    assert_eq!(ledger.closed(), 480);
}
