//! Records, and how many there are of each who pays.

use std::collections::{BTreeMap, BTreeSet};

use sqlx::query;
use wayleave_control::capability::{ChargedAccount, JournalId, Ledger, RouterNumber, Usage, UsageRecord};

use super::Step;
use super::rows::{Key, NAMED, WRITTEN, account_of, bad_record, counted, named, number, places, usage};
use crate::error::StoreError;
use crate::store::Store;
use crate::table::signed;

/// Records of one who pays, at most, without sums. Key epochs of an hour at ten routers make 84,000 in the 400 days after which time is closed
/// by itself; from a tenth of this on sums are without delegations.
pub const MAX_OF_PAYER: usize = 1 << 20;

/// From how many on the operator should close time.
pub const MANY_OF_PAYER: usize = MAX_OF_PAYER / 10 * 7;

/// The columns of a record.
const COLUMNS: usize = 12;

/// Records as they are in the database.
pub(super) type Records = BTreeMap<Key, Usage>;

impl Store {
    /// Who has many records: more than seven tenths of what one may have.
    ///
    /// # Errors
    /// If the database cannot be used.
    pub async fn heavy_payers(&self) -> Result<Vec<(u32, u64)>, StoreError> {
        let mut connection = self.database.pool.acquire().await?;
        let select = "SELECT principal, records FROM usage_payer WHERE records > $1 ORDER BY principal LIMIT 100";
        let rows = query(select).bind(signed(MANY_OF_PAYER as u64)).fetch_all(&mut *connection).await?;
        rows.iter().map(|read| Ok((number(read, 0)?, number(read, 1)?))).collect()
    }
}

impl Step {
    /// Those of some records that there are.
    pub(super) async fn find(&mut self, keys: &BTreeSet<Key>) -> Result<Records, StoreError> {
        let mut of: BTreeMap<(RouterNumber, JournalId), Vec<ChargedAccount>> = BTreeMap::new();
        for (router, journal, account) in keys {
            of.entry((*router, *journal)).or_default().push(*account);
        }
        let mut found = Records::new();
        for ((router, journal), accounts) in of {
            for portion in accounts.chunks(NAMED) {
                let select = format!(
                    "SELECT account, packets, octets FROM usage_record WHERE router = $1 AND journal = $2 AND account IN ({})",
                    places(3, portion.len())
                );
                let select = named(&select, (router, journal), portion);
                for read in select.fetch_all(&mut *self.transaction).await? {
                    let account = account_of(&read, 0)?;
                    let total = usage(&read, 1).map_err(|_| bad_record(router, account))?;
                    found.insert((router, journal, account), total);
                }
            }
        }
        Ok(found)
    }

    /// How many records those have who pay for some accounts.
    pub(super) async fn restore_counts(
        &mut self,
        ledger: &mut Ledger<ChargedAccount>,
        accounts: impl Iterator<Item = &ChargedAccount>,
    ) -> Result<(), StoreError> {
        let payers: Vec<u32> = accounts.map(ChargedAccount::principal).collect::<BTreeSet<_>>().into_iter().collect();
        for portion in payers.chunks(NAMED) {
            portion.iter().for_each(|payer| ledger.restore_count(*payer, 0));
            let select =
                format!("SELECT principal, records FROM usage_payer WHERE principal IN ({})", places(1, portion.len()));
            let select = portion.iter().fold(query(&select), |query, payer| query.bind(i64::from(*payer)));
            for read in select.fetch_all(&mut *self.transaction).await? {
                ledger
                    .restore_count(number(&read, 0)?, usize::try_from(number::<u64>(&read, 1)?).unwrap_or(usize::MAX));
            }
        }
        Ok(())
    }

    /// Writes records, and takes others away. `found` are those of them that were there; `counts`, how many each payer has afterwards.
    pub(super) async fn write(
        &mut self,
        found: &Records,
        changed: Vec<UsageRecord<ChargedAccount>>,
        removed: &[Key],
        counts: &BTreeMap<u32, usize>,
    ) -> Result<(), StoreError> {
        if changed.is_empty() && removed.is_empty() {
            return Ok(());
        }
        // Of one that is here twice the last counts.
        let changed: Records = changed
            .into_iter()
            .map(|UsageRecord { router, journal, account, total }| ((router, journal, account), total))
            .collect();
        let rows: Vec<(&Key, &Usage)> = changed.iter().collect();
        for portion in rows.chunks(WRITTEN) {
            self.upsert(portion).await?;
        }
        let mut of: BTreeMap<(RouterNumber, JournalId), Vec<ChargedAccount>> = BTreeMap::new();
        for (router, journal, account) in removed {
            of.entry((*router, *journal)).or_default().push(*account);
        }
        for ((router, journal), accounts) in &of {
            for portion in accounts.chunks(NAMED) {
                let delete = format!(
                    "DELETE FROM usage_record WHERE router = $1 AND journal = $2 AND account IN ({})",
                    places(3, portion.len())
                );
                named(&delete, (*router, *journal), portion).execute(&mut *self.transaction).await?;
            }
        }
        // A router that has lost its memory often has room for new ones once nothing is kept of the old ones.
        let mut journals: BTreeMap<(RouterNumber, JournalId), i64> = BTreeMap::new();
        let came = changed.keys().filter(|key| !found.contains_key(key)).map(|key| (key, 1));
        let went =
            removed.iter().filter(|key| found.contains_key(key) || changed.contains_key(key)).map(|key| (key, -1));
        // Sums are under journals of their own, which are no router's.
        for ((router, journal, _), more) in came.chain(went).filter(|((_, journal, _), _)| !journal.is_of_sums()) {
            *journals.entry((*router, *journal)).or_default() += more;
        }
        for ((router, journal), more) in journals {
            let add = "INSERT INTO usage_journal (journal, router, records) VALUES ($1, $2, $3)
                       ON CONFLICT (journal) DO UPDATE SET records = usage_journal.records + excluded.records";
            let add = query(add).bind(journal.0.to_vec()).bind(i64::from(router)).bind(more);
            add.execute(&mut *self.transaction).await?;
        }
        query("DELETE FROM usage_journal WHERE records <= 0").execute(&mut *self.transaction).await?;
        let payers: BTreeSet<u32> = changed.keys().chain(removed).map(|(_, _, account)| account.principal()).collect();
        for payer in payers {
            let set = "INSERT INTO usage_payer (principal, records) VALUES ($1, $2)
                       ON CONFLICT (principal) DO UPDATE SET records = excluded.records";
            let records = counts.get(&payer).copied().unwrap_or(0) as u64;
            query(set).bind(i64::from(payer)).bind(signed(records)).execute(&mut *self.transaction).await?;
        }
        Ok(())
    }

    async fn upsert(&mut self, rows: &[(&Key, &Usage)]) -> Result<(), StoreError> {
        let tuples: Vec<String> =
            (0..rows.len()).map(|row| format!("({})", places(row * COLUMNS + 1, COLUMNS))).collect();
        let insert = format!(
            "INSERT INTO usage_record (router, journal, account, kind, principal, delegation, sub_delegation, begins_at, ends_at, \
             statement, packets, octets) VALUES {} ON CONFLICT (router, journal, account) DO UPDATE SET packets = excluded.packets, \
             octets = excluded.octets",
            tuples.join(", ")
        );
        let mut insert = query(&insert);
        for ((router, journal, account), Usage { packets, octets }) in rows {
            let plain = account.unfolded();
            let of = plain.unwrap_or(*account);
            let kind = match (plain, account.month(), account.late_since()) {
                (Some(_), ..) => 1,
                (_, Some(_), _) => 2,
                (_, _, Some(_)) => 3,
                _ => 0,
            };
            let month = account.month().map(|month| (month.begin(), month.next().begin())).unzip();
            let begins = of.begins_at().or(month.0).or(account.late_since());
            let ends = of.ended_at().filter(|_| kind < 2);
            insert = insert.bind(i64::from(*router)).bind(journal.0.to_vec()).bind(account.0.to_vec()).bind(kind);
            insert = insert.bind(i64::from(account.principal()));
            insert = insert.bind(account.delegation().map(i64::from)).bind(account.sub_delegation().map(i64::from));
            insert = insert.bind(begins.map(signed)).bind(ends.map(signed)).bind(journal.statement().map(signed));
            insert = insert.bind(counted(*packets)).bind(counted(*octets));
        }
        insert.execute(&mut *self.transaction).await?;
        Ok(())
    }
}

pub(super) fn restore(ledger: &mut Ledger<ChargedAccount>, found: &Records) {
    for ((router, journal, account), total) in found {
        ledger.restore(&UsageRecord { router: *router, journal: *journal, account: *account, total: *total });
    }
}
