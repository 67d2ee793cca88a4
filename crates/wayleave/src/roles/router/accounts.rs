//! Accounts of every format, as the journal and the pages know them.

use std::collections::BTreeMap;

use wayleave_dataplane::platypus::account::Total;
use wayleave_packet::platypus::verify::Charge;

use super::platypus;

/// Who pays for a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Payer {
    /// Platypus: a principal, its delegation, a key epoch.
    Platypus(Charge),
    /// ICING: the account that a tag names.
    Icing(u16),
}

/// The thread that counted, who pays, and what was sent.
pub type Account = (usize, Payer, Total);

/// A record of the journal: the key is the thread's number and the account, the value its totals.
pub fn record(worker: usize, payer: &Payer, total: &Total) -> (Vec<u8>, Vec<u8>) {
    match payer {
        Payer::Platypus(charge) => platypus::record(worker, charge, total),
        Payer::Icing(id) => {
            let key = [(worker as u16).to_be_bytes(), id.to_be_bytes()].concat();
            (key, [total.packets.to_be_bytes(), total.octets.to_be_bytes()].concat())
        }
    }
}

/// Reads a record again: those of ICING have a key of four octets, those of Platypus one of seventeen.
pub fn read_record(key: &[u8], value: &[u8]) -> Option<Account> {
    let &[w0, w1, id0, id1] = key else {
        let (worker, charge, total) = platypus::read_record(key, value)?;
        return Some((worker, Payer::Platypus(charge), total));
    };
    let (packets, octets) = value.split_first_chunk::<16>()?;
    let total = Total { packets: u128::from_be_bytes(*packets), octets: u128::from_be_bytes(octets.try_into().ok()?) };
    Some((u16::from_be_bytes([w0, w1]).into(), Payer::Icing(u16::from_be_bytes([id0, id1])), total))
}

/// Totals by account, over all threads.
pub fn totals(accounts: &BTreeMap<Vec<u8>, Account>) -> Vec<(Payer, Total)> {
    let mut out: BTreeMap<Vec<u8>, (Payer, Total)> = BTreeMap::new();
    for (_, payer, total) in accounts.values() {
        let (key, _) = record(0, payer, total);
        let (_, sum) = out.entry(key).or_insert((*payer, Total::default()));
        sum.packets += total.packets;
        sum.octets += total.octets;
    }
    out.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_of_an_account_by_tag_is_read_as_it_was_written() {
        let total = Total { packets: 7, octets: u128::from(u64::MAX) * 9 };
        let account = (3, Payer::Icing(0xfedc), total);
        let (key, value) = record(account.0, &account.1, &account.2);
        assert_eq!(read_record(&key, &value), Some(account));
        assert_eq!(read_record(&key[1..], &value), None);
        assert_eq!(read_record(&key, &value[1..]), None);
    }
}
