//! Totals that are folded into sums of months: with crashes at every step, late and repeated reports, routers that forget, old copies
//! of either side, no packet is ever billed twice; and without losses every packet is billed once, in its month or late, and what is
//! closed does not change. A statement whose sums are complete never changes, and a ledger of the records that a step touches decides as
//! the whole one.
//!
//! PLA, folded usage: time is closed and totals are folded at random, with crashes, reports lost, late and repeated,
//! routers and servers that forget or are put back: no packet is on a bill twice; without losses each is once, in its
//! month.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use wayleave_control::capability::*;

use crate::common::Random;

/// A payer and ten times the number of a delegation, or none (0), in an epoch; the sum of a month of ten epochs has the month instead, and a
/// thousand more; that of what came late, when time was closed, and two thousand; what says how much of an account is in sums, three thousand.
type Account = (u32, u64);
/// Payers are below it.
const PAYERS: u32 = 10;
const SUMS: u32 = 1_000;
const LATE: u32 = 2_000;
const FOLDED: u32 = 3_000;

const CALENDAR: Calendar<Account> = Calendar {
    payer: |(number, _)| number % PAYERS,
    begins_at: |(_, epoch)| Some(*epoch),
    ended_at: |(number, epoch)| (*number < SUMS).then_some(*epoch + 3),
    sum: |(number, epoch), _| (number + SUMS, epoch / 10),
    late: |(number, _), _, closed| (number + LATE, closed),
    coarse: |(number, time)| (number / SUMS * SUMS + number % PAYERS, *time),
    folded: |(number, epoch)| (number + FOLDED, *epoch),
    unfolded: |(number, epoch)| (*number >= FOLDED).then(|| (number - FOLDED, *epoch)),
    is_own: |(number, _)| *number >= SUMS,
};

/// Whether it is of a delegation.
fn is_delegated((number, _): &Account) -> bool {
    number % SUMS >= PAYERS
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
    /// Each behind the places of entries that are not taken.
    answers: VecDeque<(Vec<u16>, UsageAnswer)>,
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

type Totals = BTreeMap<(u16, JournalId, Account), Usage>;

/// What is on the server's disk.
#[derive(Clone, Default)]
struct Stored {
    totals: Totals,
    closed: u64,
    statement: u64,
    confirmed: BTreeMap<u16, u64>,
    /// Sums of statements at the moment when they were complete.
    complete: BTreeMap<u64, BTreeMap<(u16, Account), Usage>>,
}

impl Stored {
    /// A ledger that knows nothing but up to when time is closed, and what routers confirmed.
    fn head(&self, limit: usize) -> Ledger<Account> {
        let mut ledger = Ledger::new(limit).with_calendar(CALENDAR, (self.closed, self.statement));
        self.confirmed.iter().for_each(|(router, second)| ledger.restore_confirmed(*router, *second));
        ledger
    }

    fn restore(&self, ledger: &mut Ledger<Account>, records: impl IntoIterator<Item = (u16, JournalId, Account)>) {
        for (router, journal, account) in records {
            if let Some(total) = self.totals.get(&(router, journal, account)).copied() {
                ledger.restore(&UsageRecord { router, journal, account, total });
            }
        }
    }

    /// How many records that are no sums each payer has.
    fn counts(&self) -> BTreeMap<u32, usize> {
        let mut counts = BTreeMap::new();
        let counted = self.totals.keys().filter(|(_, journal, _)| !journal.is_of_sums());
        counted.for_each(|(_, _, account)| *counts.entry((CALENDAR.payer)(account)).or_default() += 1);
        counts
    }

    fn keep(&mut self, changed: Vec<UsageRecord<Account>>, removed: &[(u16, JournalId, Account)]) {
        for UsageRecord { router, journal, account, total } in changed {
            self.totals.insert((router, journal, account), total);
        }
        for key in removed {
            self.totals.remove(key);
        }
    }

    /// A ledger of what decides about a report, and of nothing else: what a database has to read for it.
    fn partial(&self, limit: usize, router: u16, report: &UsageReport<Account>, now: u64) -> Ledger<Account> {
        let mut ledger = self.head(limit);
        for (of, journal, _) in self.totals.keys() {
            if (*of == router && !journal.is_of_sums()) || *journal == report.journal {
                ledger.restore_journal(*of, *journal);
            }
        }
        let read = ledger.read_by(router, report, now);
        self.restore(&mut ledger, read);
        let counts = self.counts();
        for (account, _) in &report.entries {
            let payer = (CALENDAR.payer)(account);
            ledger.restore_count(payer, counts.get(&payer).copied().unwrap_or(0));
        }
        ledger
    }

    /// What folding changes: totals of closed time, and behind them what says how much is in sums of time that is confirmed.
    fn due(&self) -> Vec<(u16, JournalId, Account)> {
        let has_ended =
            |account: &Account, second: u64| (CALENDAR.ended_at)(account).is_some_and(|ended| ended <= second);
        let settled = |router: &u16| self.confirmed.get(router).copied().unwrap_or(self.closed);
        let totals = self.totals.keys().filter(|(_, _, account)| has_ended(account, self.closed));
        let folded = self.totals.keys().filter(|(router, _, account)| {
            (CALENDAR.unfolded)(account).is_some_and(|of| has_ended(&of, settled(router)))
        });
        totals.chain(folded).copied().collect()
    }

    /// Folds all in portions, each with a ledger of nothing but its records and those that they go into.
    fn folded_in_portions(&self, limit: usize, of: usize) -> Totals {
        let mut stored = self.clone();
        for portion in self.due().chunks(of) {
            let mut ledger = stored.head(limit);
            let mut records: BTreeSet<(u16, JournalId, Account)> = portion.iter().copied().collect();
            for (router, journal, account) in portion {
                records.extend(ledger.sums_of(account).into_iter().map(|(sums, sum)| (*router, sums, sum)));
                records.insert((*router, *journal, (CALENDAR.folded)(account)));
            }
            stored.restore(&mut ledger, records);
            for (payer, count) in stored.counts() {
                ledger.restore_count(payer, count);
            }
            while let Some(Fold { changed, removed }) = ledger.fold(usize::MAX) {
                stored.keep(changed, &removed);
            }
            assert_eq!(counts(&ledger), stored.counts());
        }
        stored.totals
    }

    /// The same with all sums without delegations: which of them are depends on how many records there are when each is folded.
    fn coarse(totals: &Totals) -> Totals {
        let mut coarse = Totals::new();
        for ((router, journal, account), total) in totals {
            let account = if journal.is_of_sums() { (CALENDAR.coarse)(account) } else { *account };
            let sum = coarse.entry((*router, *journal, account)).or_default();
            *sum = Usage::plus(*sum, *total);
        }
        coarse
    }

    /// The sums of a statement.
    fn sums(&self, statement: u64) -> BTreeMap<(u16, Account), Usage> {
        let of = self.totals.iter().filter(|((_, journal, _), _)| *journal == JournalId::of_statement(statement));
        of.map(|((router, _, account), total)| ((*router, *account), *total)).collect()
    }
}

/// What a ledger counts of each payer who has anything.
fn counts(ledger: &Ledger<Account>) -> BTreeMap<u32, usize> {
    ledger.counts().iter().filter(|(_, count)| **count > 0).map(|(payer, count)| (*payer, *count)).collect()
}

/// With this limit, no payer has so many records that its sums are without delegations.
const FINE: usize = 10_000;

struct World {
    random: Random,
    time: u64,
    routers: Vec<Router>,
    /// Records of one payer, at most.
    limit: usize,
    ledger: Ledger<Account>,
    stored: Stored,
    backups: Vec<Stored>,
    /// By router, payer with its delegation, and month.
    forwarded: BTreeMap<(u16, u32, u64), u128>,
    folds: u64,
    lates: u64,
    untaken: u64,
    closings: u64,
    /// The bill of closed time, since it was closed.
    closed_bill: u128,
}

impl World {
    fn new(seed: u64, limit: usize) -> Self {
        let mut random = Random(seed);
        let routers = (0..3).map(|_| Router::new(&mut random)).collect();
        let stored = Stored::default();
        let ledger = stored.head(limit);
        let (backups, forwarded) = (Vec::new(), BTreeMap::new());
        let (folds, lates, untaken, closings, closed_bill) = (0, 0, 0, 0, 0);
        Self {
            random,
            time: 10,
            routers,
            limit,
            ledger,
            stored,
            backups,
            forwarded,
            folds,
            lates,
            untaken,
            closings,
            closed_bill,
        }
    }

    /// The server starts on what its disk has, and routers connect again.
    fn restart(&mut self) {
        self.ledger = self.stored.head(self.limit);
        self.stored.restore(&mut self.ledger, self.stored.totals.keys().copied());
        self.routers.iter_mut().for_each(Router::cut);
    }

    /// The ledger takes a report, as one does that has only what the report touches.
    fn take(&mut self, place: usize, report: &UsageReport<Account>) -> Accepted<Account> {
        let router = place as u16;
        let mut partial = self.stored.partial(self.limit, router, report, self.time);
        let taken = self.ledger.take(router, report, self.time);
        assert_eq!(partial.take(router, report, self.time), taken, "by what a database reads for it");
        for (account, _) in &report.entries {
            let payer = (CALENDAR.payer)(account);
            let [count, of_partial] = [&self.ledger, &partial].map(|ledger| ledger.counts().get(&payer).copied());
            assert_eq!(count.unwrap_or(0), of_partial.unwrap_or(0));
            assert!(count <= Some(self.limit));
        }
        taken.expect("as many journals as may be")
    }

    fn serve(&mut self, place: usize, report: Option<UsageReport<Account>>, is_kept: bool) {
        let Some(report) = report else { return };
        let taken = self.take(place, &report);
        if !is_kept {
            return self.restart();
        }
        self.lates += u64::from(taken.is_late);
        self.untaken += taken.untaken.len() as u64;
        self.stored.keep(taken.changed, &taken.removed);
        let answer = UsageAnswer { number: report.number, is_behind: taken.is_behind };
        let router = &mut self.routers[place];
        router.answers.push_back((taken.untaken, answer));
        router.old_reports.push(report);
    }

    fn hear(&mut self, place: usize) {
        let Some((untaken, answer)) = self.routers[place].answers.pop_front() else { return };
        let journal = journal(&mut self.random);
        let router = &mut self.routers[place];
        router.reporter.untaken(answer.number, &untaken);
        if router.reporter.answered(answer) {
            let base = router.reporter.begin(journal).clone();
            router.disk = Disk { journal, base, totals: router.disk.totals.clone() };
        }
    }

    /// Folds a part; what was closed before is folded completely before time is closed again. The server may die before either is durable.
    fn fold(&mut self, until: u64, is_kept: [bool; 2]) {
        let most = if self.random.below(3) == 0 { usize::MAX } else { 1 + self.random.below(30) as usize };
        if let Some(Fold { changed, removed }) = self.ledger.fold(most) {
            if !is_kept[1] {
                return self.restart();
            }
            self.folds += removed.len() as u64;
            self.stored.keep(changed, &removed);
        }
        // A clone tells whether more is left.
        if self.ledger.clone().fold(1).is_some() {
            return;
        }
        let sums = self.stored.sums(self.stored.statement);
        let first = self.stored.complete.entry(self.stored.statement).or_insert_with(|| sums.clone());
        assert_eq!(*first, sums, "a statement that was complete before");
        if self.ledger.close(until, 0..3) {
            if !is_kept[0] {
                return self.restart();
            }
            (self.stored.closed, self.stored.statement) = (until, self.ledger.statement());
            self.stored.confirmed = self.ledger.confirmed().clone();
            self.closings += 1;
            self.closed_bill = self.bill_of_closed();
            self.fold_in_portions();
        }
    }

    /// What is closed now is folded in portions as it is at once.
    fn fold_in_portions(&mut self) {
        let mut whole = (self.ledger.clone(), self.stored.clone());
        while let Some(Fold { changed, removed }) = whole.0.fold(usize::MAX) {
            whole.1.keep(changed, &removed);
        }
        let of = 1 + self.random.below(20) as usize;
        let in_portions = self.stored.folded_in_portions(self.limit, of);
        assert_eq!(Stored::coarse(&in_portions), Stored::coarse(&whole.1.totals), "in portions of {of}");
        if self.limit >= FINE {
            assert_eq!(in_portions, whole.1.totals, "in portions of {of}");
        }
        assert_eq!(whole.1.due(), []);
        assert_eq!((whole.1.counts(), whole.1.totals.len()), (counts(&whole.0), whole.0.len()));
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
        let number = (self.random.below(3) + self.random.below(3) * u64::from(PAYERS)) as u32;
        let account = (number, self.time - self.random.below(3));
        let kept = [self.random.below(4) > 0, self.random.below(4) > 0];
        match what {
            0..40 => {
                *self.routers[place].totals.entry(account).or_default() += count;
                *self.forwarded.entry((place as u16, account.0, account.1 / 10)).or_default() += count;
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
            86..89 => self.routers[place].cut(),
            89 => self.routers[place].reporter.try_again(),
            90..94 => self.time += 1,
            94..96 => {
                let disk = self.routers[place].disk.clone();
                self.routers[place].start(disk);
            }
            96..98 => self.restart(),
            98..103 => {
                let until = self.time.saturating_sub(self.random.below(12));
                self.fold(until, kept);
            }
            103..105 => {
                let before = self.time.saturating_sub(6);
                self.routers[place].forget(before);
            }
            // A report of any time comes again.
            105..110 if !self.routers[place].old_reports.is_empty() => {
                let report = self.routers[place].old_reports[pick % self.routers[place].old_reports.len()].clone();
                let taken = self.take(place, &report);
                self.stored.keep(taken.changed, &taken.removed);
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

    /// What is billed to each payer in each month, and late; by delegations, or without.
    fn bills(&self, is_by_delegation: bool) -> (BTreeMap<(u32, u64), u128>, BTreeMap<u32, u128>) {
        let (mut bills, mut late) = (BTreeMap::new(), BTreeMap::new());
        for ((number, time), sum) in self.ledger.sums() {
            let of = number % if is_by_delegation { SUMS } else { PAYERS };
            match number {
                0..SUMS => *bills.entry((of, time / 10)).or_default() += sum.packets,
                SUMS..LATE => *bills.entry((of, time)).or_default() += sum.packets,
                LATE..FOLDED => *late.entry(of).or_default() += sum.packets,
                _ => panic!("no usage"),
            }
            assert_eq!(sum.octets, sum.packets * 100);
        }
        (bills, late)
    }

    /// How many bills of a month without delegation are of more than was forwarded without one: sums of delegations are in them.
    fn merged(&self) -> u64 {
        let forwarded = |number: u32, month: u64| {
            self.forwarded.iter().filter(|((_, of, at), _)| (*of, *at) == (number, month)).map(|(_, count)| count).sum()
        };
        let bills = self.bills(true).0.into_iter().filter(|((number, _), _)| *number < PAYERS);
        bills.filter(|((number, month), billed)| *billed > forwarded(*number, *month)).count() as u64
    }

    /// What is on all statements, by router and payer.
    fn stated(&self) -> BTreeMap<(u16, u32), u128> {
        let mut stated = BTreeMap::new();
        for ((router, journal, account), total) in &self.stored.totals {
            if journal.is_of_sums() {
                assert!((SUMS..FOLDED).contains(&account.0), "sums, and nothing else");
                *stated.entry((*router, account.0 % PAYERS)).or_default() += total.packets;
            }
        }
        stated
    }

    fn check(&self) {
        let all = |is_of: &dyn Fn(u16, u32, u64) -> bool| -> u128 {
            let of = self.forwarded.iter().filter(|((router, number, month), _)| is_of(*router, *number, *month));
            of.map(|(_, count)| count).sum()
        };
        let (bills, mut whole) = self.bills(false);
        for ((payer, month), billed) in bills {
            let forwarded = all(&|_, number, of| (number % PAYERS, of) == (payer, month));
            assert!(billed <= forwarded, "{payer} {month}: {billed} of {forwarded}");
            *whole.entry(payer).or_default() += billed;
        }
        assert_eq!(self.bill_of_closed(), self.closed_bill, "what is closed does not change");
        for (payer, billed) in whole {
            let forwarded = all(&|_, number, _| number % PAYERS == payer);
            assert!(billed <= forwarded, "{payer}: {billed} of {forwarded}");
        }
        // A sum of a delegation has nothing of others.
        for ((number, month), billed) in self.bills(true).0 {
            let forwarded = all(&|_, of, at| (of, at) == (number, month));
            assert!(billed <= forwarded || number < PAYERS && self.limit < FINE, "{number} {month}");
        }
        for (statement, sums) in &self.stored.complete {
            assert_eq!(self.stored.sums(*statement), *sums, "statement {statement} does not change");
        }
        // No packet is on two statements.
        for ((router, payer), stated) in self.stated() {
            let forwarded = all(&|of, number, _| (of, number % PAYERS) == (router, payer));
            assert!(stated <= forwarded, "{router} {payer}: {stated} of {forwarded}");
        }
        // Of months, a statement has no more sums of a payer's delegations than that payer may have records without being coarse.
        let mut delegated: BTreeMap<(JournalId, u32), usize> = BTreeMap::new();
        for (_, journal, account) in self.stored.totals.keys() {
            let is_of_month = journal.is_of_sums() && (SUMS..LATE).contains(&account.0);
            if is_of_month && is_delegated(account) {
                *delegated.entry((*journal, (CALENDAR.payer)(account))).or_default() += 1;
            }
        }
        assert!(delegated.values().all(|sums| *sums <= self.limit / 10), "{delegated:?}");
    }

    fn settle(&mut self) {
        for place in 0..self.routers.len() {
            self.routers[place].cut();
            self.routers[place].write();
            self.routers[place].reporter.try_again();
            while let Some(report) = self.routers[place].reporter.report() {
                self.serve(place, Some(report), true);
                self.hear(place);
            }
        }
    }
}

#[test]
fn no_packet_is_billed_twice_whatever_is_folded_lost_forgotten_repeated_or_put_back() {
    let (mut folds, mut closings, mut untaken, mut merged) = (0, 0, 0, 0);
    for seed in 0..150 {
        // In every third world some have no room; in others some have so many records that sums are without delegations.
        let mut world = World::new(seed, [20, 200, FINE][seed as usize % 3]);
        for step in 0..2_000 {
            world.step(true);
            if step % 8 == 0 {
                world.check();
            }
        }
        world.settle();
        world.check();
        (folds, closings, untaken) = (folds + world.folds, closings + world.closings, untaken + world.untaken);
        merged += world.merged();
    }
    assert!(folds > 10_000 && closings > 1_000 && untaken > 1_000, "{folds} {closings} {untaken}");
    assert!(merged > 50, "{merged}");
}

#[test]
fn without_losses_every_packet_is_billed_once_in_its_month_or_late_and_the_ledger_stays_small() {
    let (mut folds, mut lates, mut closings, mut merged) = (0, 0, 0, 0);
    for seed in 0..150 {
        let mut world = World::new(10_000 + seed, if seed % 2 == 0 { 400 } else { FINE });
        for step in 0..3_000 {
            world.step(false);
            if step % 8 == 0 {
                world.check();
            }
        }
        world.settle();
        assert_eq!(world.untaken, 0, "there is room");
        let is_by_delegation = world.limit >= FINE;
        let (bills, late) = world.bills(is_by_delegation);
        // What a crash of a router took from it was on no disk; all else is billed, once.
        let mut expected: BTreeMap<u32, u128> = BTreeMap::new();
        let mut of_routers: BTreeMap<(u16, u32), u128> = BTreeMap::new();
        for (place, router) in (0..).zip(&world.routers) {
            for ((number, _), total) in &router.durable {
                *expected.entry(number % if is_by_delegation { SUMS } else { PAYERS }).or_default() += total;
                *of_routers.entry((place, number % PAYERS)).or_default() += total;
            }
        }
        let mut whole = late.clone();
        bills.iter().for_each(|((payer, _), billed)| *whole.entry(*payer).or_default() += billed);
        assert_eq!(whole, expected, "seed {seed}");
        (folds, lates, closings) = (folds + world.folds, lates + world.lates, closings + world.closings);
        world.time += 1_000;
        (0..3).for_each(|place| world.confirm(place, true));
        while world.stored.closed < world.time {
            world.fold(world.time, [true; 2]);
        }
        while let Some(Fold { changed, removed }) = world.ledger.fold(1_000) {
            world.stored.keep(changed, &removed);
        }
        world.check();
        assert_eq!(world.bills(is_by_delegation), (bills, late), "folding all changes no bill");
        // Each packet is on one statement.
        assert!(world.stored.totals.keys().all(|(_, journal, _)| journal.is_of_sums()), "nothing else is left");
        assert_eq!(world.stated(), of_routers, "seed {seed}");
        // A sum for each payer and delegation, month and router is left, one more where a closing parts a month, and what came late between
        // two.
        let (months, closings) = (world.time / 10 + 1, world.stored.statement);
        assert!(world.ledger.len() as u64 <= 3 * 9 * (months + 2 * closings), "{}", world.ledger.len());
        let own: BTreeSet<u32> = world.ledger.by_router().keys().map(|((payer, _), _)| payer / SUMS).collect();
        assert!(own.iter().all(|kind| [1, 2].contains(kind)), "{own:?}");
        assert_eq!(world.ledger.len(), world.stored.totals.len(), "what says how much is folded is gone");
        assert_eq!(counts(&world.ledger), BTreeMap::new());
        merged += world.merged();
    }
    assert!(folds > 1_000 && lates > 1_000 && closings > 1_000, "{folds} {lates} {closings}");
    assert!(merged > 100, "{merged}");
}

#[test]
fn durable_totals_are_billed_exactly_although_old_ones_are_folded_and_forgotten() {
    let (mut random, mut router) = (Random(7), Router::new(&mut Random(8)));
    let mut ledger = Ledger::new(40).with_calendar(CALENDAR, (0, 0));
    let (mut all, mut time) = (BTreeMap::<u32, u128>::new(), 0);
    // Far more totals in the course of time than the ledger has room for, and far more sums.
    for _ in 0..500 {
        time += 1;
        for payer in 0..3 {
            let count = u128::from(random.below(100));
            *router.totals.entry((payer + random.below(3) as u32 * PAYERS, time)).or_default() += count;
            *all.entry(payer).or_default() += count;
        }
        router.write();
        while let Some(report) = router.reporter.report() {
            let taken = ledger.take(0, &report, time).expect("taken");
            assert!(taken.untaken.is_empty(), "there is room");
            router.reporter.answered(UsageAnswer { number: report.number, is_behind: taken.is_behind });
        }
        ledger.confirm(0, time);
        // Each statement has the end of one month and the beginning of the next.
        if time % 10 == 0 {
            ledger.close(time.saturating_sub(20), [0]);
        }
        let (before, length) = (ledger.moved(), ledger.sums().len());
        while ledger.fold(1_000).is_some() {}
        // Whoever read a page before sees that the next one is of another time.
        assert!(ledger.sums().len() == length || ledger.moved() > before);
        router.forget(time.saturating_sub(10));
        // Sums of long ago are three a month.
        if time % 100 == 0 {
            assert!(router.totals.len() <= 3 * 14, "{}", router.totals.len());
        }
    }
    let mut sums: BTreeMap<u32, u128> = BTreeMap::new();
    for (account, sum) in ledger.sums() {
        *sums.entry((CALENDAR.payer)(&account)).or_default() += sum.packets;
        assert!(!is_delegated(&account) || account.0 < SUMS, "there are too many records for that");
    }
    assert_eq!(sums, all);
    // Two months are on each statement.
    assert!(counts(&ledger).values().all(|count| *count <= 30), "{:?}", ledger.counts());
    assert!(ledger.len() <= 3 * (30 + 2 * 48), "{}", ledger.len());
    // A router that reports sums, or that repeats what is closed, changes nothing.
    let sums = ledger.sums();
    let entries = vec![((SUMS, 3), usage(1 << 60)), ((0, 5), usage(1 << 60))];
    let report = UsageReport { journal: JournalId([9; 16]), number: 1, entries };
    let taken = ledger.take(0, &report, time).expect("taken");
    assert!(taken.changed.is_empty() && taken.untaken.is_empty() && !taken.is_behind);
    assert_eq!(ledger.sums(), sums);
    let (closed, statement) = (ledger.closed(), ledger.statement());
    assert!(!ledger.close(10, [0]) && !ledger.close(closed, [0]), "never back");
    assert_eq!((ledger.closed(), ledger.statement()), (closed, statement));
    assert_eq!((closed, statement), (480, 48));
}

/// A report of one journal of the first router.
fn report(entries: &[(Account, u128)]) -> UsageReport<Account> {
    let entries = entries.iter().map(|(account, total)| (*account, usage(*total))).collect();
    UsageReport { journal: JournalId([9; 16]), number: 1, entries }
}

/// A ledger of so many totals of one payer, of which time is closed and folded up to an epoch, and which the router may still report.
fn owed(limit: usize, epochs: u64, closed: u64) -> Ledger<Account> {
    let mut ledger = Ledger::new(limit).with_calendar(CALENDAR, (0, 0));
    for epoch in 0..epochs {
        let taken = ledger.take(0, &report(&[((0, epoch), 5)]), 0).expect("taken");
        assert!(taken.untaken.is_empty(), "there is room");
    }
    ledger.close(closed, [0]);
    while ledger.fold(1_000).is_some() {}
    ledger
}

#[test]
fn what_a_full_ledger_has_already_may_be_reported_again_and_again() {
    // Eight are folded into one sum, and kept as what is folded; two are not.
    let mut ledger = owed(10, 10, 10);
    assert_eq!((ledger.len(), ledger.sums().len()), (11, 3), "sums need no room");
    assert_eq!(ledger.counts(), &BTreeMap::from([(0, 10)]), "full");
    let all: Vec<(Account, u128)> = (0..10).map(|epoch| ((0, epoch), 5)).collect();
    let taken = ledger.take(0, &report(&all), 0).expect("it has all of it");
    assert_eq!(taken, Accepted::default());
    // More of a total needs no room, be it of closed time, or not.
    for (epoch, changed) in [(8, 1), (2, 2)] {
        let taken = ledger.take(0, &report(&[((0, epoch), 7)]), 0).expect("it has that one");
        assert_eq!((taken.changed.len(), taken.is_late), (changed, epoch == 2));
    }
    // Of a new one there is a record more, also if its time is closed.
    for entry in [((0, 10), 1), ((10, 3), 7)] {
        let taken = ledger.take(0, &report(&[entry]), 0).expect("answered");
        assert_eq!(taken, Accepted { untaken: vec![0], ..Accepted::default() }, "it leaves nothing behind");
    }
    // Another payer has room, and so has what needs none.
    let mixed = [((0, 3), 7), ((1, 3), 7), ((0, 9), 6), ((0, 10), 1), ((1, 9), 1), ((0, 4), 5), ((20, 9), 1)];
    let taken = ledger.take(0, &report(&mixed), 0).expect("answered");
    assert_eq!((taken.untaken, taken.changed.len(), taken.is_late), (vec![3, 6], 6, true));
    assert_eq!(ledger.counts(), &BTreeMap::from([(0, 10), (1, 2)]));
    let mut ledger = owed(10, 10, 10);
    for total in [7, 7, 9] {
        let taken = ledger.take(0, &report(&[((0, 3), total), ((0, 4), total)]), 0).expect("one sum of both");
        assert!(taken.untaken.is_empty());
    }
    assert_eq!((ledger.len(), ledger.sums()[&(LATE, 10)]), (12, usage(8)));
}

#[test]
fn a_payer_at_the_limit_has_room_once_time_is_closed_and_the_router_has_confirmed_it() {
    let mut ledger = owed(10, 10, 10);
    let (fresh, more) = (report(&[((0, 10), 1), ((10, 11), 2)]), report(&[((0, 9), 6)]));
    let untaken = |ledger: &mut Ledger<Account>| ledger.take(0, &fresh, 0).expect("answered").untaken;
    // As long as the router may report more of what is folded, that is kept.
    assert_eq!(untaken(&mut ledger), [0, 1]);
    ledger.confirm(0, 3);
    while ledger.fold(1).is_some() {}
    assert_eq!(ledger.counts()[&0], 9, "an epoch has ended by then");
    assert_eq!(untaken(&mut ledger), [1]);
    assert!(ledger.take(0, &more, 0).expect("it has that one").untaken.is_empty());
    ledger.confirm(0, 10);
    while ledger.fold(1).is_some() {}
    assert_eq!(ledger.counts()[&0], 3);
    assert!(untaken(&mut ledger).is_empty());
    assert_eq!(ledger.sums().values().map(|sum| sum.packets).sum::<u128>(), 10 * 5 + 1 + 1 + 2);
}

#[test]
fn of_a_payer_of_many_records_there_are_few_sums_which_are_exact_and_others_keep_theirs_by_delegation() {
    // A payer has sums by delegation as long as there are thirty records.
    const LIMIT: usize = 300;
    let mut ledger = Ledger::new(LIMIT).with_calendar(CALENDAR, (0, 0));
    let delegations = |of: std::ops::Range<u32>, epoch: u64| of.map(move |number| (number * PAYERS, epoch));
    let many: Vec<(Account, u128)> = delegations(0..99, 1).map(|account| (account, 5)).collect();
    let few: Vec<(Account, u128)> = delegations(0..30, 1).map(|(number, epoch)| ((number + 1, epoch), 7)).collect();
    for entries in [&many, &few] {
        assert!(ledger.take(0, &report(entries), 0).expect("taken").untaken.is_empty());
    }
    ledger.close(10, [0]);
    let read = ledger.sums_of(&(50, 1));
    let sums = JournalId::of_statement(1);
    assert_eq!(read, [(sums, (SUMS + 50, 0)), (sums, (SUMS, 0))], "a store has to have both");
    ledger.confirm(0, 10);
    while ledger.fold(7).is_some() {}
    let of = |ledger: &Ledger<Account>, payer: u32| {
        let of = ledger.sums().into_iter().filter(|(account, _)| (CALENDAR.payer)(account) == payer);
        of.map(|(account, sum)| (account, sum.packets)).collect::<Vec<_>>()
    };
    // The last ones are so few that each is alone.
    let expected = delegations(69..99, 0).map(|(number, month)| ((SUMS + number, month), 5));
    assert_eq!(of(&ledger, 0), [((SUMS, 0), 69 * 5)].into_iter().chain(expected).collect::<Vec<_>>());
    let fine = delegations(0..30, 0).map(|(number, month)| ((SUMS + number + 1, month), 7));
    assert_eq!(of(&ledger, 1), fine.collect::<Vec<_>>());

    // What comes late is on the next statement, without delegations as soon as there are many.
    ledger.close(20, [0]);
    let late: Vec<(Account, u128)> = delegations(0..99, 12).map(|account| (account, 3)).collect();
    let taken = ledger.take(0, &report(&late), 0).expect("taken");
    assert_eq!((taken.untaken.len(), taken.is_late), (0, true));
    let late: Vec<(Account, u128)> = of(&ledger, 0).into_iter().filter(|(account, _)| account.0 >= LATE).collect();
    assert_eq!((late.len(), late.iter().map(|(_, packets)| packets).sum::<u128>()), (30, 99 * 3));
    assert_eq!(late[0], ((LATE, 20), 70 * 3));
    assert!(late[1..].iter().all(|(account, packets)| is_delegated(account) && *packets == 3));
}

#[test]
fn sums_of_a_payer_with_more_delegations_than_are_kept_apart_have_none_in_their_accounts() {
    let account = |delegation: u16, sub_delegation: u8, epoch: u32| {
        let ([high, low], [a, b, c, d]) = (delegation.to_be_bytes(), epoch.to_be_bytes());
        ChargedAccount([0, 0, 7, 7, 0, high, low, 0, 0, sub_delegation, 12, a, b, c, d])
    };
    let mut ledger = Ledger::new(100).with_calendar(ChargedAccount::CALENDAR, (0, 0));
    let epoch = 400_000;
    let entries = (0..90).map(|number| (account(number, number as u8, epoch), usage(1))).collect();
    let report = UsageReport { journal: JournalId([9; 16]), number: 1, entries };
    assert!(ledger.take(0, &report, 0).expect("taken").untaken.is_empty());
    ledger.close(u64::from(epoch + 3) << 12, []);
    while ledger.fold(11).is_some() {}
    // The router may report more, and so the records do not become fewer.
    let sum = account(0, 0, epoch).sum(0).coarse();
    assert_eq!(sum, account(77, 5, epoch).sum(0).coarse());
    assert_eq!((ledger.sums(), ledger.len(), ledger.counts()[&7]), (BTreeMap::from([(sum, usage(90))]), 91, 90));
    assert_eq!((sum.principal(), sum.delegation(), sum.sub_delegation()), (7, None, None));
    assert_eq!((sum.month(), sum.account_period()), (Some(Month::of(u64::from(epoch) << 12)), Some(0)));
    ledger.confirm(0, u64::from(epoch + 3) << 12);
    while ledger.fold(11).is_some() {}
    assert_eq!((ledger.sums(), ledger.len()), (BTreeMap::from([(sum, usage(90))]), 1));
    // Ten more are kept apart.
    let entries = (0..10).map(|number| (account(number, 0, epoch + 1), usage(1))).collect();
    assert!(ledger.take(0, &UsageReport { entries, ..report }, 0).expect("taken").untaken.is_empty());
    ledger.close(u64::from(epoch + 4) << 12, []);
    while ledger.fold(11).is_some() {}
    let mut expected: BTreeMap<_, _> = (0..10).map(|number| (account(number, 0, epoch + 1).sum(0), usage(1))).collect();
    expected.insert(sum, usage(90));
    assert_eq!(ledger.sums(), expected);
}

/// The records of a ledger under a statement's number.
fn of_statement(stored: &Totals, number: u64) -> Vec<(Account, u128)> {
    let of = stored.iter().filter(|((_, journal, _), _)| *journal == JournalId::of_statement(number));
    of.map(|((_, _, account), total)| (*account, total.packets)).collect()
}

#[test]
fn what_comes_after_a_closing_is_on_the_next_statement_also_before_all_of_it_is_folded() {
    let mut stored = Stored::default();
    let mut ledger = stored.head(100);
    let take = |ledger: &mut Ledger<Account>, stored: &mut Stored, entries: &[(Account, u128)]| {
        let taken = ledger.take(0, &report(entries), 0).expect("taken");
        stored.keep(taken.changed, &taken.removed);
        assert!(!taken.is_behind && taken.untaken.is_empty());
    };
    take(&mut ledger, &mut stored, &[((0, 1), 5), ((0, 2), 6), ((1, 1), 7)]);
    assert!(ledger.close(10, [0]));
    assert_eq!((ledger.closed(), ledger.statement()), (10, 1));
    // Before the fold: what was there at the closing is on its statement, and what came after it on the next one.
    take(&mut ledger, &mut stored, &[((0, 1), 8), ((2, 1), 9)]);
    while let Some(Fold { changed, removed }) = ledger.fold(1) {
        stored.keep(changed, &removed);
    }
    let first = vec![((SUMS, 0), 11), ((1 + SUMS, 0), 7)];
    assert_eq!(of_statement(&stored.totals, 1), first);
    assert_eq!(of_statement(&stored.totals, 2), [((LATE, 10), 3), ((2 + LATE, 10), 9)]);
    // After it, and after the next closing, whose statement has both.
    take(&mut ledger, &mut stored, &[((0, 2), 7), ((0, 11), 1)]);
    assert!(ledger.close(20, [0]));
    take(&mut ledger, &mut stored, &[((0, 1), 18)]);
    while let Some(Fold { changed, removed }) = ledger.fold(1) {
        stored.keep(changed, &removed);
    }
    assert_eq!(of_statement(&stored.totals, 1), first);
    assert_eq!(of_statement(&stored.totals, 2), [((SUMS, 1), 1), ((LATE, 10), 4), ((2 + LATE, 10), 9)]);
    assert_eq!(of_statement(&stored.totals, 3), [((LATE, 20), 10)]);
    assert_eq!(ledger.statement(), 2);
}

#[test]
fn usage_of_before_a_number_got_another_owner_is_in_a_sum_of_its_own_whatever_the_order_in_which_that_is_known() {
    // Principal 7, in epochs of 4,096 s of one month.
    let account = |epoch: u32| {
        let [a, b, c, d] = epoch.to_be_bytes();
        ChargedAccount([0, 0, 7, 4, 0, 0, 0, 0, 0, 0, 12, a, b, c, d])
    };
    let begins = |epoch: u32| u64::from(epoch) << 12;
    let (first, all) = (400_000, [(0, 5_u128), (1, 6), (2, 7), (3, 8), (4, 9)]);
    let mut reopenings = [
        Reopening { principal: 7, at: begins(first + 1), generation: 1 },
        Reopening { principal: 7, at: begins(first + 4), generation: 2 },
        Reopening { principal: 8, at: 0, generation: 1 },
    ];
    for _ in 0..2 {
        reopenings.reverse();
        let periods: AccountPeriods = reopenings.iter().copied().collect();
        let mut ledger = Ledger::new(100).with_calendar(ChargedAccount::CALENDAR, (0, 0)).with_periods(periods);
        let entries = all.map(|(epoch, packets)| (account(first + epoch), usage(packets))).to_vec();
        let report = UsageReport { journal: JournalId([9; 16]), number: 1, entries };
        ledger.take(0, &report, 0).expect("taken");
        ledger.close(begins(first + 8), [0]);
        while ledger.fold(2).is_some() {}
        let sums = [(0, 5), (1, 21), (2, 9)].map(|(period, packets)| (account(first).sum(period), usage(packets)));
        assert_eq!(ledger.sums(), sums.into());
        // Late usage is that owner's too.
        let late = UsageReport { entries: vec![(account(first + 3), usage(10))], ..report };
        let (router, read) = (0, ledger.read_by(0, &late, begins(first + 8)));
        assert!(ledger.take(router, &late, begins(first + 8)).expect("taken").is_late);
        let of: Vec<_> = ledger.sums().into_iter().filter(|(account, _)| account.late_since().is_some()).collect();
        assert!(matches!(of[..], [(sum, Usage { packets: 2, .. })] if sum.account_period() == Some(1)), "{of:?}");
        assert!(read.contains(&(router, JournalId::of_statement(2), of[0].0)));
    }
}
