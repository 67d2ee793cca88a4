//! Any octets as a row of a database, as the head of an earlier version's snapshot, and as its pieces under a head that the writer signed: a
//! refusal, or a state whose rows make the same state.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wayleave_control::capability::{ChangesEnd, ProviderKey, Row, RowError, SnapshotError, SnapshotHead, State};
use wayleave_crypto::hash::hash;
use wayleave_crypto::secret::Seed;
use wayleave_crypto::sign::SigningKey;
use wayleave_crypto::signed::Signed;

const SECOND: u64 = 1_800_000_000;

fuzz_target!(|data: &[u8]| {
    if let Ok(row) = Row::decode(data) {
        assert_eq!(row.encode(), data);
    }
    let (signer, provider) = (SigningKey::from_seed(&Seed::new([1; 32])), || ProviderKey::new(Seed::new([2; 32])));
    let restore = |head: &Signed<SnapshotHead>, pieces: &[&[u8]]| {
        let piece = |index: usize| Ok::<_, SnapshotError>(pieces[index].to_vec());
        State::from_snapshot(provider(), head, &signer.verifying_key(), piece)
    };
    if let Ok(head) = Signed::<SnapshotHead>::decode(data) {
        assert_eq!(&**head.octets(), data);
        assert!(restore(&head, &[]).is_err(), "nobody signed it");
    }
    // The first octet says where the octets are cut into two pieces, the last 32 of them what the last change was.
    let Some((cut, octets)) = data.split_first() else { return };
    let (first, second) = octets.split_at(octets.len() * usize::from(*cut) / 256);
    let pieces: Vec<&[u8]> = [first, second].into_iter().filter(|piece| !piece.is_empty()).collect();
    let Some(last) = octets.last_chunk::<32>() else { return };
    let named = pieces.iter().enumerate().map(|(index, piece)| {
        let parts = [&7_u64.to_be_bytes()[..], &(index as u64).to_be_bytes(), piece];
        (piece.len() as u32, hash("wayleave/capability/snapshot-piece/v1", &parts))
    });
    let head = SnapshotHead { number: 7, last: *last, issued: SECOND, pieces: named.collect() };
    let Ok(head) = Signed::sign(&head, &signer) else { return };
    let Ok(restored) = restore(&head, &pieces) else { return };
    let rows = restored.rows();
    let end = ChangesEnd { number: 7, last: *last, issued: vec![SECOND], times: Vec::new() };
    let again = rows.iter().map(|row| Row::decode(&row.encode()).map_err(|_| RowError::Content("its own row")));
    let again = State::from_rows(provider(), &end, again).expect("rows of a state");
    assert_eq!(again.rows(), rows);
});
