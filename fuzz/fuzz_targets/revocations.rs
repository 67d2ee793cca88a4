//! Any octets as signed lists of revocations, one after the other: a refusal that changes nothing, or a list that has this encoding
//! and no other. The number of the list in use never goes back, and what one list revokes stays revoked while others add to it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wayleave_core::UnixTime;
use wayleave_crypto::secret::Seed;
use wayleave_crypto::sign::SigningKey;
use wayleave_dataplane::platypus::revocation::{
    ListError, ListKind, RevocationList, RevocationTable, sign_list, sign_whole,
};

const LABEL: &str = "wayleave/platypus/revocations/v1";

fuzz_target!(|data: &[u8]| {
    let writer = SigningKey::from_seed(&Seed::new([1; 32]));
    let stranger = SigningKey::from_seed(&Seed::new([2; 32]));
    let mut table = RevocationTable::default();
    let mut held = None;
    let mut rest = data;
    while let Some(([what, length], behind)) = rest.split_first_chunk::<2>() {
        let (list, behind) = behind.split_at(behind.len().min(usize::from(*length) * 4));
        rest = behind;
        let (signer, before) = (if what % 16 == 15 { &stranger } else { &writer }, table.len());
        let signature = signer.sign(LABEL, list);
        let opened = RevocationList::open(list, &signature, &writer.verifying_key());
        match (table.apply(list, &signature, &writer.verifying_key()), opened) {
            (Ok(()), Ok(RevocationList { sequence, issued, kind, entries, sources })) => {
                assert!(what % 16 != 15);
                assert!(held < Some(sequence));
                held = Some(sequence);
                let now = UnixTime(issued.saturating_mul(1_000_000));
                if now.secs() == issued {
                    let again = match kind {
                        ListKind::Whole => sign_whole(&writer, sequence, now, &entries, &sources),
                        ListKind::Addition => sign_list(&writer, sequence, now, kind, &entries),
                    };
                    assert_eq!(again.0, list);
                }
                match kind {
                    ListKind::Whole => assert!(table.len() <= entries.len()),
                    ListKind::Addition => assert!((before..=before + entries.len()).contains(&table.len())),
                }
            }
            (Ok(()), Err(_)) => panic!("a list that cannot be opened is in use"),
            (Err(ListError::Old { .. } | ListError::Gap { .. } | ListError::TooMany), _) | (Err(_), Err(_)) => {
                assert_eq!(table.len(), before);
            }
            (Err(error), Ok(_)) => panic!("{error} of a list that opens"),
        }
        assert_eq!(table.is_loaded(), held.is_some());
    }
});
