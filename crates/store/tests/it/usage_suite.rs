//! What routers reported, and statements of it: one suite for SQLite and PostgreSQL, of which each test begins with an empty database.
//!
//! PLA, usage in the database: reports, confirmations and closings at random: what is taken, summed and confirmed is what the ledger in
//! memory says; two key servers at once lose nothing and take nothing twice.
//! PLA, one lessor at a time: the row is taken as it was seen or not at all, and renewed by who has it.
//! PLA, old statements: their sums leave, and later statements are what they were; a mark that no key server made, or sums that came
//! back: refused by name.
//! PLA, statements in parts: whoever completes one is killed after each part while others write: it is completed once, and is the same.
//! PLA, statements: one that is complete never changes, whatever comes late; one that was changed is refused by name.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use sqlx::AnyPool;
use wayleave_control::capability::{
    AccountPeriods, Billing, BillingSubject, ChangeBody, ChargedAccount, DelegationLimit, JournalId, Ledger, Month,
    Percentile, PriceTag, ProviderKey, RatePayer, Reopening, ReportOutcome, RouterNumber, SAMPLE_SECS, Usage,
    UsageChange, UsageRecord, UsageReport, discarded_samples,
};
use wayleave_control::tenure::{Holder, LessorRow};
use wayleave_core::UnixTime;
use wayleave_crypto::secret::Seed;
use wayleave_crypto::sign::SigningKey;
use wayleave_packet::platypus::header::{DelegationId, Principal};
use wayleave_store::{
    Appended, Closing, Details, KnownRouters, Loaded, Location, MAX_OF_PAYER, Note, Position, Store, StoreError,
    StoreKey,
};

/// The exponent of key epochs, and the one in which tests begin.
const INTERVAL: u8 = 12;
const FIRST: u32 = 440_000;
const NOTE: Note<'_> = Note { actor: "a test", reason: "the month is over" };

type Totals = BTreeMap<(ChargedAccount, RouterNumber), Usage>;

async fn store(place: &Location) -> Store {
    let key = StoreKey::new(ProviderKey::new(Seed::new([7; 32])).store_key());
    Store::create(place, key).await.expect("a store")
}

/// Whoever can write to the database, without the key servers' secret.
async fn write(place: &Location, sql: &str) -> u64 {
    sqlx::any::install_default_drivers();
    let uri = match place {
        Location::File(path) => format!("sqlite://{}", path.display()),
        Location::Postgres(uri) => uri.clone(),
    };
    let pool = AnyPool::connect(&uri).await.expect("connected");
    let done = sqlx::query(sql).execute(&pool).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    pool.close().await;
    done.rows_affected()
}

fn account(principal: u32, delegation: Option<u32>, epoch: u32) -> ChargedAccount {
    let mut octets = [0; ChargedAccount::LENGTH];
    octets[..3].copy_from_slice(&principal.to_be_bytes()[1..]);
    octets[3] = 4 | u8::from(delegation.is_some());
    octets[4..7].copy_from_slice(&delegation.unwrap_or(0).to_be_bytes()[1..]);
    octets[10] = INTERVAL;
    octets[11..].copy_from_slice(&epoch.to_be_bytes());
    ChargedAccount(octets)
}

/// The Unix second at which an epoch begins.
fn second(epoch: u32) -> u64 {
    u64::from(epoch) << INTERVAL
}

fn usage(packets: u128) -> Usage {
    Usage { packets, octets: packets * 100 }
}

fn journal(number: u8) -> JournalId {
    JournalId([number; 16])
}

fn report(router: RouterNumber, of: u8, entries: &[(ChargedAccount, u128)], at: u64) -> UsageChange {
    let entries = entries.iter().map(|(account, packets)| (*account, usage(*packets))).collect();
    let report = UsageReport { journal: journal(of), number: 1, entries };
    UsageChange::Report { router, report, received: UnixTime(at * 1_000_000) }
}

async fn take(store: &Store, change: UsageChange) -> ReportOutcome {
    let outcomes = store.change_usage(&[change], &AccountPeriods::default()).await.expect("the database works");
    outcomes.into_iter().next().expect("one").expect("taken")
}

/// What became of a closing; of one that was made, or is there, the number.
async fn close(store: &Store, before: u64, routers: &[RouterNumber]) -> (&'static str, u64) {
    let routers: BTreeSet<RouterNumber> = routers.iter().copied().collect();
    match store.close_usage(before, &routers, (before, NOTE)).await.expect("the database works") {
        Closing::Done(made) => ("done", made.number),
        Closing::Same(made) => ("same", made.number),
        Closing::Before(closed) => ("before", closed),
        Closing::Incomplete(number) => ("incomplete", number),
    }
}

async fn fold(store: &Store, most: usize, periods: &AccountPeriods) {
    while store.fold_usage(most, periods).await.expect("the database works") {}
}

/// All pages, of so many accounts each.
async fn all(store: &Store, most: usize) -> Totals {
    let (mut all, mut first) = (Totals::new(), Bound::Unbounded);
    loop {
        let page = store.usage_page(first, None, most).await.expect("the database works");
        let accounts: BTreeSet<ChargedAccount> = page.totals.keys().map(|(account, _)| *account).collect();
        assert!(accounts.len() <= most);
        for (key, total) in page.totals {
            assert_eq!(all.insert(key, total), None, "{key:?} comes once");
        }
        let Some(next) = page.next else { return all };
        first = Bound::Excluded(next);
    }
}

/// The sums of all statements that there are.
async fn billed(store: &Store) -> Totals {
    let mut all = Totals::new();
    for statement in store.statements(0, 1_000).await.expect("the database works") {
        let found = store.statement(statement.number, None).await.expect("as it was written").expect("there");
        for (key, total) in found.1 {
            let sum = all.entry(key).or_default();
            *sum = sum.plus(total);
        }
    }
    all
}

/// Numbers that look like chance.
struct Random(u64);

impl Random {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }
}

pub(crate) async fn the_database_takes_sums_and_closes_as_the_ledger_does(place: &Location) {
    let store = store(place).await;
    let periods: AccountPeriods =
        [Reopening { principal: 2, at: second(FIRST + 3), generation: 5 }].into_iter().collect();
    let mut ledger =
        Ledger::new(MAX_OF_PAYER).with_calendar(ChargedAccount::CALENDAR, (0, 0)).with_periods(periods.clone());
    let mut random = Random(17);
    let mut epoch = FIRST;
    let routers = 1..=3;
    for step in 0..250 {
        let router = 1 + random.below(3) as RouterNumber;
        match random.below(20) {
            0 => epoch += 1,
            1 => {
                let before = second(epoch.saturating_sub(random.below(4) as u32));
                let is_new = ledger.close(before, routers.clone());
                let closing = close(&store, before, &[1, 2, 3]).await;
                assert_eq!(closing.0 == "done", is_new, "{step}");
                while ledger.fold(100).is_some() {}
                fold(&store, 1 + random.below(30) as usize, &periods).await;
            }
            2 | 3 => {
                let through = second(epoch) - random.below(8) * 4_096;
                ledger.confirm(router, through);
                let change = UsageChange::Confirm { router, through };
                store.change_usage(&[change], &periods).await.expect("the database works");
                while ledger.fold(100).is_some() {}
                fold(&store, 10, &periods).await;
            }
            _ => {
                // Journals of other routers are among them: states that were copied.
                let of = router as u8 * 10 + random.below(12) as u8;
                let mut entries = Vec::new();
                for _ in 0..1 + random.below(6) {
                    let delegation = Some(random.below(3) as u32).filter(|id| *id > 0);
                    let account = account(1 + random.below(3) as u32, delegation, epoch - random.below(7) as u32);
                    entries.push((account, u128::from(random.below(500))));
                }
                let change = report(router, of, &entries, second(epoch));
                let UsageChange::Report { report: said, received, .. } = &change else { unreachable!("a report") };
                let expected = ledger.take(router, said, received.secs()).map(ReportOutcome::from);
                let outcome = store.change_usage(std::slice::from_ref(&change), &periods).await;
                assert_eq!(outcome.expect("the database works"), [expected], "{step}");
            }
        }
        if step % 10 == 0 {
            assert_eq!(all(&store, 7).await, ledger.by_router(), "{step}");
        }
    }
    let head = store.usage_head().await.expect("the database works");
    assert_eq!((head.statement, head.closed_before), (ledger.statement(), ledger.closed()));
    assert!(head.is_complete && head.statement > 5, "{head:?}");
    assert_eq!(store.known_routers().await.expect("the database works").confirmed, *ledger.confirmed());
    // What is on statements is what is in sums, once what came late is on one too.
    ledger.close(second(epoch + 10), routers.clone());
    while ledger.fold(1_000).is_some() {}
    close(&store, second(epoch + 10), &[1, 2, 3]).await;
    fold(&store, 1_000, &periods).await;
    assert_eq!((billed(&store).await, all(&store, 1_000).await), (ledger.by_router(), ledger.by_router()));
    assert!(ledger.by_router().keys().all(|(account, _)| account.is_own()), "nothing else is left");
}

pub(crate) async fn a_complete_statement_never_changes_and_what_comes_late_is_on_the_next(place: &Location) {
    let store = store(place).await;
    let of = [account(7, None, FIRST), account(7, Some(3), FIRST), account(8, None, FIRST)];
    take(&store, report(1, 1, &of.map(|account| (account, 100)), second(FIRST + 1))).await;
    let before = second(FIRST + 5);
    assert_eq!(close(&store, before, &[1, 2]).await, ("done", 1));
    assert_eq!(close(&store, before + 4_096, &[1, 2]).await, ("incomplete", 1));
    let half = store.statement(1, None).await.expect("read").expect("there");
    assert!(!half.0.is_complete && half.1.is_empty(), "{half:?}");
    fold(&store, 1, &AccountPeriods::default()).await;
    assert_eq!(close(&store, before, &[1, 2]).await, ("same", 1));
    assert_eq!(close(&store, before - 1, &[1, 2]).await, ("before", before));
    let first = store.statement(1, None).await.expect("read").expect("there");
    assert!(first.0.is_complete);
    assert_eq!((first.0.closed_after, first.0.closed_before, first.0.reason.as_str()), (0, before, NOTE.reason));
    assert_eq!(first.0.routers, BTreeMap::from([(1, None), (2, None)]));
    assert_eq!(first.1.values().map(|total| total.packets).sum::<u128>(), 300);
    // What comes late is on the next one, and the first stays as it is.
    let late = take(&store, report(1, 1, &[(of[0], 130), (account(9, None, FIRST), 5)], before + 86_400)).await;
    assert!(late.is_late);
    assert_eq!(store.statement(1, None).await.expect("read").expect("there"), first);
    assert_eq!(close(&store, before + 172_800, &[1, 2]).await, ("done", 2));
    fold(&store, 100, &AccountPeriods::default()).await;
    assert_eq!(store.statement(1, None).await.expect("read").expect("there"), first);
    let second = store.statement(2, None).await.expect("read").expect("there");
    assert_eq!(second.0.closed_after, before);
    assert!(second.1.keys().all(|(account, _)| account.late_since().is_some()), "{second:?}");
    assert_eq!(second.1.values().map(|total| total.packets).sum::<u128>(), 35);
    let own = store.statement(2, Some(9)).await.expect("read").expect("there");
    assert_eq!(own.1.len(), 1);
    assert_eq!(store.statements(1, 10).await.expect("read"), [second.0]);
    assert_eq!(store.statement(3, None).await.expect("read"), None);
}

pub(crate) async fn the_sums_of_old_statements_leave_and_later_ones_are_what_they_were(place: &Location) {
    let store = store(place).await;
    for (number, epoch) in [(1_u64, FIRST), (2, FIRST + 10), (3, FIRST + 20)] {
        let of = [account(7, None, epoch), account(8, Some(3), epoch)];
        take(&store, report(1, 1, &of.map(|account| (account, 100 * u128::from(number))), second(epoch + 1))).await;
        assert_eq!(close(&store, second(epoch + 5), &[1]).await, ("done", number));
        // The last one is not added up yet.
        if number < 3 {
            fold(&store, 100, &AccountPeriods::default()).await;
        }
    }
    let heads = store.statements(0, 10).await.expect("read");
    let moved = store.usage_head().await.expect("read").moved;
    assert_eq!(store.remove_sums(0, 5).await, Ok(Vec::new()));
    assert_eq!(store.remove_sums(1, 5).await, Ok(vec![1]));
    assert_eq!(store.remove_sums(1, 6).await, Ok(Vec::new()), "once");
    assert!(store.usage_head().await.expect("read").moved > moved, "pages begin again");
    for principal in [None, Some(7)] {
        assert_eq!(store.statement(1, principal).await, Err(StoreError::Removed(1)));
    }
    assert_eq!(store.statements(0, 10).await.expect("read"), heads);
    let second_sums = store.statement(2, None).await.expect("read").expect("there").1;
    assert_eq!(second_sums.values().map(|total| total.packets).sum::<u128>(), 400);
    assert!(all(&store, 10).await.values().all(|total| total.packets >= 200));
    // Time goes on, and so do the statements.
    fold(&store, 100, &AccountPeriods::default()).await;
    let third = store.statement(3, None).await.expect("read").expect("there");
    assert!(third.0.is_complete);
    let late = take(&store, report(1, 1, &[(account(7, None, FIRST), 130)], second(FIRST + 40))).await;
    assert!(late.is_late);
    assert_eq!(store.remove_sums(9, 7).await, Ok(vec![2, 3]));
    assert_eq!(close(&store, second(FIRST + 70), &[1]).await, ("done", 4));
    fold(&store, 100, &AccountPeriods::default()).await;
    assert_eq!(store.statement(4, None).await.expect("read").expect("there").1.len(), 1);
    // Nobody else marks a statement so, nor moves a mark.
    for set in ["(SELECT removed FROM usage_statement WHERE number = 1)", "mac", "x''"] {
        let set =
            if matches!(place, Location::Postgres(_)) { set.replace("x''", "'\\x'::bytea") } else { set.to_owned() };
        write(place, &format!("UPDATE usage_statement SET removed = {set} WHERE number = 4")).await;
        assert!(matches!(store.statement(4, None).await, Err(StoreError::Row { .. })), "{set}");
        assert!(store.remove_sums(9, 8).await.is_err(), "{set}");
    }
    write(place, "UPDATE usage_statement SET removed = NULL WHERE number = 4").await;
    assert!(store.statement(4, None).await.is_ok());
    // One whose mark was taken away lacks its sums.
    write(place, "UPDATE usage_statement SET removed = NULL WHERE number = 1").await;
    assert!(matches!(store.statement(1, None).await, Err(StoreError::Row { .. })));
}

/// The state of a key server that has one principal with price tags, set at these times.
async fn priced(store: &Store, tags: &[(&str, u64)]) -> Position {
    let of = BillingSubject::account(Principal::new(7).expect("24 bits"));
    let set =
        |price: &str| ChangeBody::SetBilling { of, billing: Billing { price: price.to_owned(), ..Billing::default() } };
    changed(store, tags.iter().map(|(price, at)| (set(price), *at)).collect()).await
}

/// The state of a key server that has one principal, and these changes of it, made at these times.
async fn changed(store: &Store, bodies: Vec<(ChangeBody, u64)>) -> Position {
    let signer = SigningKey::from_seed(&Seed::new([8; 32]));
    let provider = ProviderKey::new(Seed::new([7; 32]));
    let Loaded { mut state, mut position } = store.load(&provider, None).await.expect("loaded");
    let principal = Principal::new(7).expect("24 bits");
    let open = ChangeBody::Account { principal, generation: 1, name: "customer".to_owned() };
    let open = state.account(principal).is_none().then_some((open, 1));
    for (body, at) in open.into_iter().chain(bodies) {
        let change = state.sign(body, &signer, UnixTime(at * 1_000_000)).expect("possible");
        let effects = state.effects(change.object());
        let appended = store.append(&position, &change, &effects, (state.settled(), NOTE)).await;
        assert_eq!(appended, Ok(Appended::Done));
        state.apply(&change, &signer.verifying_key()).expect("the next");
        position = Position { number: change.object().number, digest: change.digest(), ..position };
    }
    position
}

/// A statement has the price tags of its time, whatever becomes of them later, and nobody changes them.
pub(crate) async fn a_statement_has_the_price_tags_that_were_in_force_and_keeps_them(place: &Location) {
    let store = store(place).await;
    let (month, before) = (Month::of(second(FIRST)).begin(), second(FIRST + 5));
    priced(&store, &[("old", month - 9), ("gold", month), ("silver", second(FIRST + 1)), ("tin", before)]).await;
    let of = [account(7, None, FIRST), account(8, None, FIRST)];
    take(&store, report(1, 1, &of.map(|account| (account, 100)), second(FIRST + 1))).await;
    assert_eq!(close(&store, before, &[1]).await, ("done", 1));
    assert_eq!(store.statement(1, None).await.expect("read").expect("there").2, Details::default(), "not yet");
    fold(&store, 100, &AccountPeriods::default()).await;
    let first = store.statement(1, None).await.expect("read").expect("there");
    let tag = |price: &str, since, until| PriceTag { grant: None, price: price.to_owned(), since, until };
    let expected = [tag("gold", month, Some(second(FIRST + 1))), tag("silver", second(FIRST + 1), None)];
    assert_eq!(first.2.prices, BTreeMap::from([(7, expected.to_vec())]));
    priced(&store, &[("", before + 1), ("lead", before + 2)]).await;
    assert_eq!(store.statement(1, Some(7)).await.expect("read").expect("there").2, first.2);
    assert_eq!(store.statement(1, Some(8)).await.expect("read").expect("there").2, Details::default());
    write(
        place,
        "UPDATE usage_part SET details = (SELECT details FROM usage_part WHERE principal = 8) WHERE principal = 7",
    )
    .await;
    let refused = store.statement(1, Some(7)).await;
    assert!(matches!(&refused, Err(StoreError::Row { row, .. }) if row == "statement 1"), "{refused:?}");
    write(place, "UPDATE usage_part SET details = NULL").await;
    assert!(store.statement(1, Some(8)).await.is_err());
}

/// A percentile is of the month that ended, in samples by when routers reported; what a router kept for long is spread, and named as rough.
pub(crate) async fn a_statement_has_the_percentiles_of_the_months_that_ended_in_its_time(place: &Location) {
    let (store, none) = (store(place).await, AccountPeriods::default());
    let month = Month::of(second(FIRST)).next();
    let (begins, ends) = (month.begin(), month.next().begin());
    let discarded = discarded_samples((begins, ends));
    let epoch = |at: u64| (at >> INTERVAL) as u32;
    take(&store, UsageChange::Confirm { router: 1, through: begins }).await;
    let (mut sums, mut last) = (BTreeMap::new(), begins);
    for number in 0..=discarded {
        last = begins + number * SAMPLE_SECS + 7;
        let sum: &mut u128 = sums.entry(epoch(last)).or_default();
        *sum += if number == 3 { 6_000 } else { 3_000 };
        let mut entries = vec![(account(7, None, epoch(last)), *sum)];
        // One sample fewer: all that it has sent counts for nothing.
        entries.extend((number == 0).then_some((account(8, None, epoch(last)), 1_000_000)));
        // As a router does: five minutes behind, once a minute.
        let confirm = UsageChange::Confirm { router: 1, through: last - 300 - 59 };
        store.change_usage(&[report(1, 1, &entries, last), confirm], &none).await.expect("the database works");
    }
    // Of a key epoch that has not ended when time is closed: there is no line of it.
    take(&store, report(1, 1, &[(account(10, None, epoch(ends + 3 * 86_400)), 5)], last)).await;
    // The router was cut off for three samples, and then for weeks: of that nobody knows when it was.
    let of = |number: u128| [(account(9, None, epoch(last)), number)];
    take(&store, report(1, 1, &of(30), last + 900)).await;
    take(&store, report(1, 1, &of(90), ends - 1)).await;
    assert_eq!(close(&store, ends + 86_400, &[1]).await, ("done", 1));
    fold(&store, 1_000, &none).await;
    let found = store.statement(1, None).await.expect("read").expect("there").2.percentiles;
    let of = |octets_per_second, rough| vec![Percentile { owner: 0, begins, ends, octets_per_second, rough }];
    assert_eq!(found, BTreeMap::from([(7, of(1_000, 0)), (8, of(0, 0)), (9, of(0, 7)), (10, of(0, 0))]));
    let without_line = store.statement(1, Some(10)).await.expect("read").expect("there");
    assert_eq!((without_line.1.len(), &without_line.2.percentiles[&10]), (0, &found[&10]));
    assert_eq!(store.statement(1, Some(7)).await.expect("read").expect("there").2.percentiles[&7], found[&7]);
    assert_eq!(write(place, "DELETE FROM usage_sample").await, 0, "what is closed is gone");
}

/// Whoever completes a statement stops after each part: others write in between, and another process goes on to the very same statement.
pub(crate) async fn a_statement_is_completed_in_parts_whoever_is_killed_between_them(place: &Location) {
    let (first, none) = (store(place).await, AccountPeriods::default());
    let month = Month::of(second(FIRST)).next();
    let (begins, ends) = (month.begin(), month.next().begin());
    let epoch = |at: u64| (at >> INTERVAL) as u32;
    priced(&first, &[("gold", begins)]).await;
    take(&first, UsageChange::Confirm { router: 1, through: begins + 7_000 }).await;
    let of = [(7, None), (8, None), (9, None), (9, Some(1)), (9, Some(2)), (10, None), (11, None)];
    let mut entries = of.map(|(principal, id)| (account(principal, id, epoch(begins + 7_000)), 100)).to_vec();
    // Of a key epoch that has not ended when time is closed: there is no line of it.
    entries.push((account(12, None, epoch(ends + 3 * 86_400)), 100));
    take(&first, report(1, 1, &entries, begins + 8_000)).await;
    take(&first, UsageChange::Confirm { router: 1, through: ends }).await;
    // The other router has not reported everything when time is closed.
    let late_account = account(8, None, epoch(begins + 7_000));
    take(&first, report(2, 2, &[(late_account, 100)], begins + 8_000)).await;
    assert_eq!(close(&first, ends + 86_400, &[1, 2]).await, ("done", 1));
    let (mut late, mut written) = (0, 0);
    let whole = loop {
        // A process that ends after this part.
        let store = store(place).await;
        assert!(store.fold_usage(1, &none).await.expect("the database works"), "it is not complete");
        let found = store.statement(1, None).await.expect("read").expect("there");
        if found.0.is_complete {
            break found;
        }
        let parts = write(place, "UPDATE usage_part SET statement = 1").await;
        assert!(parts <= written + 1, "one part at a time, not {}", parts - written);
        written = parts;
        late += 1;
        assert!(take(&first, report(2, 2, &[(late_account, 100 + late)], ends + 86_400)).await.is_late);
    };
    assert_eq!(written, 6, "each has one");
    assert_eq!(whole.1.values().map(|total| total.packets).sum::<u128>(), 800);
    assert_eq!(whole.2.percentiles.keys().copied().collect::<Vec<u32>>(), [7, 8, 9, 10, 11, 12]);
    assert_eq!(whole.2.prices.keys().copied().collect::<Vec<u32>>(), [7]);
    // By one that is not killed it is the same, and by two at a time.
    let begin_anew = async || {
        write(place, "UPDATE usage_statement SET mac = NULL").await;
        write(place, "DELETE FROM usage_part").await;
        write(place, "UPDATE usage_head SET is_complete = 0").await;
    };
    begin_anew().await;
    // Samples are there as long as they are needed, and go next.
    while !first.usage_head().await.expect("read").is_complete {
        first.fold_usage(1_000, &none).await.expect("the database works");
    }
    assert_eq!(first.statement(1, None).await.expect("read").expect("there"), whole);
    begin_anew().await;
    let other = store(place).await;
    tokio::join!(fold(&first, 1, &none), fold(&other, 1, &none));
    assert_eq!(other.statement(1, None).await.expect("read").expect("there"), whole);
    assert_eq!(write(place, "DELETE FROM usage_sample").await, 0, "what is closed is gone");
    assert_eq!(close(&first, ends + 2 * 86_400, &[1, 2]).await, ("done", 2));
    fold(&first, 1_000, &none).await;
    let second = first.statement(2, None).await.expect("read").expect("there");
    assert_eq!(second.1.values().map(|total| total.packets).sum::<u128>(), late);
}

/// The sums of months are those of what routers reported, once each, whatever is closed and comes again.
pub(crate) async fn months_have_what_was_reported_of_their_key_epochs(place: &Location) {
    let (store, none) = (store(place).await, AccountPeriods::default());
    let month = Month::of(second(FIRST));
    let last = ((month.next().begin() - 1) >> INTERVAL) as u32;
    let of = |store: &Store, month: Month, periods: &AccountPeriods| {
        let (store, periods) = (store.clone(), periods.clone());
        let payers = [7, 8, 9].into_iter().filter_map(Principal::new);
        let payers = payers.map(|principal| RatePayer { principal, delegation: None }).collect();
        async move {
            let found = store.month_usage(month.begin(), &payers, &periods).await.expect("read");
            found.into_iter().map(|(payer, octets)| (payer.principal.number(), octets)).collect::<BTreeMap<u32, u64>>()
        }
    };
    let entries = [(account(7, None, FIRST), 10), (account(7, Some(3), last), 5), (account(8, None, last + 1), 1)];
    take(&store, report(1, 1, &entries, second(FIRST))).await;
    take(&store, report(1, 1, &entries, second(FIRST))).await;
    take(&store, report(2, 2, &[(account(7, None, FIRST), 1)], second(FIRST))).await;
    take(&store, report(1, 1, &[(account(7, None, FIRST), 12)], second(FIRST))).await;
    let first = BTreeMap::from([(7, 1_800)]);
    assert_eq!(of(&store, month, &none).await, first);
    assert_eq!(of(&store, month.next(), &none).await, BTreeMap::from([(8, 100)]));
    // What is closed is counted already; what comes late is of no month.
    assert_eq!(close(&store, second(FIRST + 5), &[1, 2]).await, ("done", 1));
    fold(&store, 100, &none).await;
    take(&store, report(1, 1, &[(account(7, None, FIRST), 20)], second(FIRST + 6))).await;
    assert_eq!(of(&store, month, &none).await, first);
    // The number has another owner since, who has sent nothing.
    let reopened: AccountPeriods =
        [Reopening { principal: 7, at: second(FIRST + 9), generation: 5 }].into_iter().collect();
    assert_eq!(of(&store, month, &reopened).await, BTreeMap::new());
    let more = report(1, 1, &[(account(7, None, FIRST + 20), 3)], second(FIRST + 20));
    store.change_usage(&[more], &reopened).await.expect("the database works");
    assert_eq!(of(&store, month, &reopened).await, BTreeMap::from([(7, 300)]));
    // No count makes a sum that no column holds.
    let most = report(
        1,
        1,
        &[(account(9, None, FIRST + 20), u128::MAX / 100), (account(9, None, FIRST + 21), u128::MAX / 100)],
        0,
    );
    take(&store, most).await;
    take(&store, report(2, 2, &[(account(9, None, FIRST + 21), 5)], 0)).await;
    assert_eq!(of(&store, month, &none).await.get(&9), Some(&(1 << 62)));
}

/// Delegations have sums of their own while they are limited, and others none, however many somebody makes.
pub(crate) async fn months_of_delegations_are_kept_while_they_are_limited(place: &Location) {
    let (store, none) = (store(place).await, AccountPeriods::default());
    let begins = Month::of(second(FIRST)).begin();
    let principal = Principal::new(7).expect("24 bits");
    let payer = |id: Option<u32>| RatePayer { principal, delegation: id.and_then(DelegationId::new) };
    let payers = [None, Some(3), Some(4)].map(payer).into_iter().collect();
    let limited = |month_octets| ChangeBody::LimitDelegation {
        payer: payer(Some(3)),
        limit: DelegationLimit { rate: None, month_octets },
    };
    let entries = |count: u128| [3, 4].map(|id| (account(7, Some(id), FIRST), count));
    let octets = async || {
        let found = store.month_usage(begins, &payers, &none).await.expect("read");
        [None, Some(3), Some(4)].map(|id| found.get(&payer(id)).copied())
    };
    take(&store, report(1, 1, &entries(10), second(FIRST))).await;
    assert_eq!(octets().await, [Some(2_000), None, None]);
    changed(&store, vec![(limited(Some(5_000)), 1)]).await;
    take(&store, report(1, 1, &entries(15), second(FIRST))).await;
    take(&store, report(1, 1, &entries(15), second(FIRST))).await;
    assert_eq!(octets().await, [Some(3_000), Some(500), None], "from when it is limited");
    changed(&store, vec![(limited(None), 2)]).await;
    take(&store, report(1, 1, &entries(20), second(FIRST))).await;
    assert_eq!(octets().await, [Some(4_000), Some(500), None]);
}

pub(crate) async fn a_statement_that_somebody_changed_is_refused_by_name_and_never_authenticated_anew(
    place: &Location,
) {
    let store = store(place).await;
    for (number, epoch) in [(1_u64, FIRST), (2, FIRST + 10)] {
        let of = [account(7, None, epoch), account(7, Some(3), epoch), account(8, None, epoch)];
        take(&store, report(1, 1, &of.map(|account| (account, 100 * u128::from(number))), second(epoch + 1))).await;
        assert_eq!(close(&store, second(epoch + 5), &[1]).await, ("done", number));
        fold(&store, 100, &AccountPeriods::default()).await;
    }
    let whole = [1, 2].map(|number| (number, None));
    let all_of = async |store: &Store| {
        for (number, principal) in whole {
            store.statement(number, principal).await?.expect("there");
        }
        store.statements(0, 10).await.map(|all| all.len())
    };
    assert_eq!(all_of(&store).await, Ok(2));
    // What is another's is refused, and what is one's own is read, but where the statement itself was changed.
    let one = "WHERE statement = 1 AND principal = 8";
    for (change, back) in [
        ("packets = packets + 1", "packets = packets - 1"),
        ("octets = octets - 1", "octets = octets + 1"),
        ("router = 2", "router = 1"),
        ("statement = 2", ""),
    ] {
        assert_eq!(write(place, &format!("UPDATE usage_record SET {change} {one}")).await, 1);
        for principal in [None, Some(8)] {
            let refused = store.statement(1, principal).await;
            assert!(
                matches!(&refused, Err(StoreError::Row { row, .. }) if row == "statement 1"),
                "{change}: {refused:?}"
            );
        }
        assert!(store.statement(1, Some(7)).await.is_ok(), "{change}");
        if !back.is_empty() {
            write(place, &format!("UPDATE usage_record SET {back} {one}")).await;
        }
    }
    assert!(store.statement(2, None).await.is_err(), "what was moved to it");
    write(place, "UPDATE usage_record SET statement = 1 WHERE statement = 2 AND principal = 8 AND packets = 100").await;
    assert_eq!(all_of(&store).await, Ok(2));
    for (change, back) in [
        (
            "usage_statement SET closed_before = closed_before + 1",
            "usage_statement SET closed_before = closed_before - 1",
        ),
        ("usage_statement SET reason = 'another'", "usage_statement SET reason = 'the month is over'"),
        ("usage_statement SET made_at = made_at - 1", "usage_statement SET made_at = made_at + 1"),
        ("usage_statement SET routers = '{}'", "usage_statement SET routers = '{\"1\":null}'"),
    ] {
        for number in [1, 2] {
            write(place, &format!("UPDATE {change} WHERE number = {number}")).await;
            let refused = store.statement(number, Some(7)).await;
            let named = format!("statement {number}");
            assert!(matches!(&refused, Err(StoreError::Row { row, .. }) if *row == named), "{change}: {refused:?}");
            assert!(store.statements(0, 10).await.is_err(), "{change}");
            write(place, &format!("UPDATE {back} WHERE number = {number}")).await;
        }
    }
    assert_eq!(all_of(&store).await, Ok(2));
    // Made incomplete again, so that a key server should authenticate other sums.
    for number in [1, 2] {
        write(place, &format!("UPDATE usage_head SET is_complete = 0, statement = {number}")).await;
        write(place, &format!("UPDATE usage_record SET packets = 7 WHERE statement = {number}")).await;
        let refused = store.fold_usage(100, &AccountPeriods::default()).await;
        assert!(matches!(&refused, Err(StoreError::Row { .. })) || refused.is_err(), "{refused:?}");
        assert!(store.statement(number, None).await.is_err());
        write(place, &format!("UPDATE usage_record SET packets = 100 * {number} WHERE statement = {number}")).await;
        write(place, "UPDATE usage_head SET is_complete = 1, statement = 2").await;
    }
    assert_eq!(all_of(&store).await, Ok(2));
    for change in
        ["UPDATE usage_statement SET mac = NULL WHERE number = 1", "DELETE FROM usage_statement WHERE number = 1"]
    {
        write(place, change).await;
        for number in [1, 2] {
            assert!(store.statement(number, Some(7)).await.is_err(), "{change}: {number}");
        }
    }
}

pub(crate) async fn two_key_servers_at_once_lose_nothing_and_take_nothing_twice(place: &Location) {
    let (one, other) = (store(place).await, store(place).await);
    let before = second(FIRST + 20);
    let reports = |store: Store, router: RouterNumber| async move {
        for total in 1..=40_u32 {
            let of = account(7, Some(total % 5), FIRST + total % 10);
            // Each is repeated to the same server, and the last ones come after the time was closed.
            for _ in 0..2 {
                take(&store, report(router, router as u8, &[(of, total.into())], before + 86_400)).await;
            }
        }
    };
    let closes = |store: Store| async move {
        close(&store, before, &[1, 2]).await;
        for _ in 0..20 {
            fold(&store, 3, &AccountPeriods::default()).await;
        }
    };
    // The same journal to both: a router that connects now here, now there.
    let same = (reports(one.clone(), 1), reports(other.clone(), 1), reports(other.clone(), 2));
    tokio::join!(same.0, same.1, same.2, closes(one.clone()), closes(other.clone()));
    fold(&one, 100, &AccountPeriods::default()).await;
    let mut greatest: BTreeMap<(u32, u32), u128> = BTreeMap::new();
    for total in 1..=40_u32 {
        let held = greatest.entry((total % 5, total % 10)).or_default();
        *held = (*held).max(total.into());
    }
    let expected: u128 = greatest.values().sum();
    let mut by_router: BTreeMap<RouterNumber, u128> = BTreeMap::new();
    for ((_, router), total) in all(&other, 1_000).await {
        *by_router.entry(router).or_default() += total.packets;
    }
    assert_eq!(by_router, BTreeMap::from([(1, expected), (2, expected)]));
    assert_eq!(one.usage_head().await.expect("read").statement, 1);
}

pub(crate) async fn who_has_no_room_holds_nobody_else_up(place: &Location) {
    let store = store(place).await;
    let of = |principal, epoch| account(principal, None, FIRST + epoch);
    take(&store, report(1, 1, &[(of(7, 0), 5), (of(8, 0), 5)], second(FIRST))).await;
    assert_eq!(store.heavy_payers().await.expect("read"), []);
    write(place, &format!("UPDATE usage_payer SET records = {MAX_OF_PAYER} WHERE principal = 7")).await;
    let taken = take(&store, report(1, 1, &[(of(7, 0), 6), (of(7, 1), 1), (of(8, 1), 1)], second(FIRST))).await;
    let more = BTreeMap::from([(7, usage(1)), (8, usage(1))]);
    assert_eq!(taken, ReportOutcome { untaken: vec![1], more, ..ReportOutcome::default() });
    assert_eq!(store.heavy_payers().await.expect("read"), [(7, MAX_OF_PAYER as u64)]);
    let expected = Totals::from([((of(7, 0), 1), usage(6)), ((of(8, 0), 1), usage(5)), ((of(8, 1), 1), usage(1))]);
    assert_eq!(all(&store, 10).await, expected);
}

pub(crate) async fn pages_are_within_their_bounds(place: &Location) {
    let store = store(place).await;
    for (router, of, accounts) in [(1, 1, 0..60), (1, 2, 20..30), (2, 3, 0..100), (3, 4, 80..140)] {
        let entries: Vec<_> = accounts.map(|number| (account(number, None, FIRST), u128::from(of))).collect();
        take(&store, report(router, of, &entries, second(FIRST))).await;
    }
    let whole = all(&store, 1_000).await;
    assert_eq!((whole.len(), whole[&(account(25, None, FIRST), 1)]), (220, usage(3)));
    for most in [1, 7, 70, 140] {
        assert_eq!(all(&store, most).await, whole, "{most}");
    }
    let of = |number| account(number, None, FIRST);
    let part = store.usage_page(Bound::Included(of(20)), Some(of(24)), 1_000).await.expect("read");
    assert_eq!((part.totals.len(), part.next), (10, None));
    let none = store.usage_page(Bound::Excluded(of(24)), Some(of(20)), 10).await.expect("read");
    assert_eq!((none.totals.len(), none.next), (0, None));
}

pub(crate) async fn usage_of_a_file_is_brought_over_once_and_what_was_closed_is_on_no_statement_again(
    place: &Location,
) {
    let store = store(place).await;
    let of = |epoch: u32| account(7, None, FIRST + epoch);
    let record = |journal, account, packets| UsageRecord { router: 1, journal, account, total: usage(packets) };
    let sums = JournalId::of_statement(0);
    let records = [record(journal(1), of(9), 5), record(journal(1), of(0), 3), record(sums, of(1).sum(0), 100)];
    let known = KnownRouters { confirmed: BTreeMap::from([(1, second(FIRST + 8))]), ahead: BTreeMap::from([(2, 17)]) };
    // A key server that ran before it has been told some of that again: it is in the file.
    take(&store, report(1, 1, &[(of(0), 3), (of(1), 100)], second(FIRST))).await;
    assert_eq!(store.import_usage(&records, second(FIRST + 5), (&known, false)).await, Err(StoreError::Used));
    assert!(!store.take_set_back());
    store.import_usage(&records, second(FIRST + 5), (&known, true)).await.expect("no statement");
    // Who has seen more than that has routers report again.
    let other = self::store(place).await;
    take(&other, report(1, 1, &[], second(FIRST))).await;
    take(&other, report(1, 1, &[], second(FIRST))).await;
    other.import_usage(&records, second(FIRST + 5), (&known, true)).await.expect("no statement");
    other.usage_head().await.expect("read");
    // What was confirmed of what is gone counts no more.
    let confirm = UsageChange::Confirm { router: 1, through: second(FIRST + 90) };
    take(&other, confirm).await;
    assert_eq!(other.known_routers().await.expect("read").confirmed, known.confirmed);
    assert!(other.take_set_back() && !other.take_set_back());
    let held = store.known_routers().await.expect("read");
    assert_eq!((held.confirmed, held.ahead), (known.confirmed.clone(), known.ahead.clone()));
    let owing = async |epoch| store.routers_to_close(second(FIRST + epoch)).await.expect("read");
    assert_eq!((owing(11).await, owing(12).await), (BTreeSet::from([1]), BTreeSet::from([1])));
    let late = take(&store, report(1, 1, &[(of(1), 100)], second(FIRST + 6))).await;
    assert_eq!(late, ReportOutcome::default(), "its router had confirmed that time");
    fold(&store, 100, &AccountPeriods::default()).await;
    let expected = Totals::from([((of(9), 1), usage(5)), ((of(1).sum(0), 1), usage(103))]);
    assert_eq!(all(&store, 10).await, expected);
    assert_eq!(close(&store, second(FIRST + 5), &[1]).await, ("before", second(FIRST + 5)));
    assert_eq!(close(&store, second(FIRST + 20), &[1]).await, ("done", 1));
    assert_eq!(store.import_usage(&records, second(FIRST + 5), (&known, true)).await, Err(StoreError::Stated));
    fold(&store, 100, &AccountPeriods::default()).await;
    assert_eq!(billed(&store).await, Totals::from([((of(9).sum(0), 1), usage(5))]));
}

pub(crate) async fn a_count_that_no_column_holds_is_the_greatest_that_one_does(place: &Location) {
    let store = store(place).await;
    let of = account(7, None, FIRST);
    let entries = vec![(of, Usage { packets: u128::MAX, octets: u128::MAX }), (account(7, Some(1), FIRST), usage(1))];
    let said = UsageReport { journal: journal(1), number: 1, entries };
    for _ in 0..2 {
        let change = UsageChange::Report { router: 1, report: said.clone(), received: UnixTime(0) };
        let taken = take(&store, change).await;
        assert_eq!(ReportOutcome { more: BTreeMap::new(), ..taken }, ReportOutcome::default());
    }
    let most = i64::MAX as u128;
    let second_of = second(FIRST + 5);
    assert_eq!(all(&store, 10).await[&(of, 1)], Usage { packets: most, octets: most });
    // Two of them in one sum are no more either.
    let other = UsageReport { journal: journal(2), number: 1, entries: said.entries.clone() };
    take(&store, UsageChange::Report { router: 1, report: other, received: UnixTime(0) }).await;
    close(&store, second_of, &[1]).await;
    fold(&store, 100, &AccountPeriods::default()).await;
    assert_eq!(billed(&store).await[&(of.sum(0), 1)], Usage { packets: most, octets: most });
}

pub(crate) async fn what_ended_long_ago_is_closed_by_itself_and_by_no_clock_alone(place: &Location) {
    const KEPT: u64 = 400 * 86_400;
    let store = store(place).await;
    let routers = BTreeSet::from([1]);
    let old = async |now: u64| {
        store.close_old_usage(KEPT, &routers, (now, NOTE)).await.expect("the database works");
        fold(&store, 100, &AccountPeriods::default()).await;
        store.usage_head().await.expect("read").closed_before
    };
    let first = second(FIRST);
    assert_eq!(old(first).await, 0, "nothing was reported");
    take(&store, report(1, 1, &[(account(7, None, FIRST), 5)], first)).await;
    // This machine's clock is a year and a half ahead; then a router's is.
    assert_eq!(old(first + 550 * 86_400).await, 0);
    let ahead = FIRST + ((550 * 86_400) >> INTERVAL) as u32;
    take(&store, report(1, 1, &[(account(7, None, ahead), 5)], first)).await;
    assert_eq!(old(first + 86_400).await, 0);
    // Both agree: whole months, of which the last ended 400 days before.
    let closed = old(first + 550 * 86_400).await;
    assert!(closed > first + 3 * 4_096 && closed <= first + 150 * 86_400, "{closed}");
    assert_eq!(store.statements(0, 10).await.expect("read").len(), 1);
    assert_eq!(old(first + 551 * 86_400).await, closed, "within one month once");
}

/// Not in every run: how long a large ledger takes is printed, and its sums are checked.
pub(crate) async fn many_totals_are_closed_and_read(place: &Location) {
    const EACH: u32 = 1_000;
    const EPOCHS: u32 = 1_000;
    let store = store(place).await;
    let timed =
        async |what: &str, begun: tokio::time::Instant| println!("{what}: {:.1} s", begun.elapsed().as_secs_f64());
    let begun = tokio::time::Instant::now();
    let mut records = Vec::new();
    for number in 0..EPOCHS * EACH {
        let of = account(1 + number % EACH / 10, Some(1 + number % 10), FIRST + number / EACH);
        records.push(UsageRecord { router: 1, journal: journal(1), account: of, total: usage(1) });
    }
    store.import_usage(&records, 0, (&KnownRouters::default(), false)).await.expect("empty");
    timed("written", begun).await;
    let change = UsageChange::Confirm { router: 1, through: second(FIRST + EPOCHS + 5) };
    store.change_usage(&[change], &AccountPeriods::default()).await.expect("the database works");
    let begun = tokio::time::Instant::now();
    let page = store.usage_page(Bound::Unbounded, None, 1_000).await.expect("read");
    assert_eq!(page.totals.len(), 1_000);
    timed("a page of 1,000", begun).await;
    let begun = tokio::time::Instant::now();
    assert_eq!(close(&store, second(FIRST + EPOCHS + 5), &[1]).await, ("done", 1));
    store.fold_all_usage(10_000, &AccountPeriods::default()).await.expect("the database works");
    timed("closed", begun).await;
    let begun = tokio::time::Instant::now();
    let (_, sums, _) = store.statement(1, None).await.expect("read").expect("there");
    assert_eq!(sums.values().map(|total| total.packets).sum::<u128>(), u128::from(EPOCHS * EACH));
    timed("the statement", begun).await;
}

pub(crate) async fn one_process_at_a_time_holds_the_row_of_the_lessor(place: &Location) {
    let (one, other) = (store(place).await, store(place).await);
    let (first, second) = (Holder([1; 16]), Holder([2; 16]));
    let row = |epoch, holder, name: &str| LessorRow {
        epoch,
        renewed: 0,
        holder: Some(holder),
        name: name.to_owned(),
        routers: BTreeSet::from([1, 20, 65_535]),
    };
    let (of_first, of_second) = (row(1_800_000_000, first, "the first"), row(1_800_000_001, second, "the second"));
    let begin = one.lessor().await.expect("a row");
    assert_eq!(begin, LessorRow::default());
    assert!(one.take_lessor(&begin, &of_first).await.expect("it works"));
    assert!(!other.take_lessor(&begin, &of_second).await.expect("it works"), "it was taken");
    let seen = other.lessor().await.expect("a row");
    assert_eq!(seen, of_first);
    assert!(one.renew_lessor(seen.epoch, first, None).await.expect("it works"));
    assert!(!one.renew_lessor(seen.epoch, second, None).await.expect("it works"));
    assert!(!other.take_lessor(&seen, &of_second).await.expect("it works"), "it was renewed since");
    let seen = other.lessor().await.expect("a row");
    assert_eq!(seen, LessorRow { renewed: 1, ..of_first });
    assert!(other.take_lessor(&seen, &of_second).await.expect("it works"));
    assert!(!one.renew_lessor(1_800_000_000, first, None).await.expect("it works"), "another has it");
    one.give_up_lessor(first).await.expect("it works");
    assert_eq!(one.lessor().await.expect("a row"), of_second);
    other.give_up_lessor(second).await.expect("it works");
    let given_up = LessorRow { renewed: 1, holder: None, name: String::new(), ..of_second };
    assert_eq!(one.lessor().await.expect("a row"), given_up);
    for (column, value) in [("epoch", "-1"), ("epoch", "9223372036854775807"), ("routers", "'1,two'")] {
        write(place, &format!("UPDATE lessor SET {column} = {value}")).await;
        let refused = one.lessor().await.expect_err("no such row").to_string();
        assert!(refused.starts_with("the row of the lessor is not as"), "{refused}");
        write(place, "UPDATE lessor SET epoch = 7, routers = ''").await;
    }
    // On one machine a lock says that there is no other process.
    let lock = one.lock_lessor().expect("it works");
    assert_eq!(one.is_on_one_machine(), matches!(place, Location::File(_)));
    let Location::File(path) = place else { return assert!(lock.is_none()) };
    let lock = lock.expect("free");
    assert!(other.lock_lessor().expect("it works").is_none());
    drop(lock);
    let lock = other.lock_lessor().expect("it works").expect("free");
    assert!(other.renew_lessor(7, second, Some(&lock)).await.expect("it works"));
    assert_eq!(one.lessor().await.expect("a row").renewed, 1, "nothing is written");
    let file = path.with_file_name("store.db-lessor");
    std::fs::remove_file(&file).expect("there");
    assert!(one.lock_lessor().expect("another file").is_some());
    assert!(!other.renew_lessor(7, second, Some(&lock)).await.expect("it works"), "no longer the one that others lock");
    // What a link leads to is left alone.
    std::fs::remove_file(&file).expect("there");
    std::os::unix::fs::symlink("/dev/null", &file).expect("made");
    assert!(one.lock_lessor().is_err());
}
