//! Any octets as the head of a snapshot, and as pieces under a head that the writer signed: a refusal, or a state whose own snapshot has
//! these pieces and no others.
#![no_main]

use std::convert::Infallible;

use libfuzzer_sys::fuzz_target;
use wayleave_control::capability::{ProviderKey, SnapshotHead, State};
use wayleave_core::UnixTime;
use wayleave_crypto::hash::hash;
use wayleave_crypto::secret::Seed;
use wayleave_crypto::sign::SigningKey;
use wayleave_crypto::signed::Signed;

const SECOND: u64 = 1_800_000_000;

fuzz_target!(|data: &[u8]| {
    let signer = SigningKey::from_seed(&Seed::new([1; 32]));
    let state = State::new(ProviderKey::new(Seed::new([2; 32])));
    if let Ok(head) = Signed::<SnapshotHead>::decode(data) {
        assert_eq!(&**head.octets(), data);
        assert!(state.restoring(head, &signer.verifying_key()).is_err(), "nobody signed it");
    }
    // The first octet says where the octets are cut into two pieces, the last 32 of them what the last change was.
    let Some((cut, octets)) = data.split_first() else { return };
    let (first, second) = octets.split_at(octets.len() * usize::from(*cut) / 256);
    let pieces: Vec<&[u8]> = [first, second].into_iter().filter(|piece| !piece.is_empty()).collect();
    let (number, last) = match octets.last_chunk::<32>() {
        Some(last) => (7, *last),
        None => (0, [0; 32]),
    };
    let named = pieces.iter().enumerate().map(|(index, piece)| {
        let parts = [&7_u64.to_be_bytes()[..], &(index as u64).to_be_bytes(), piece];
        let parts = if number == 0 { [&[0; 8][..], parts[1], parts[2]] } else { parts };
        (piece.len() as u32, hash("wayleave/capability/snapshot-piece/v1", &parts))
    });
    let head = SnapshotHead { number, last, issued: SECOND, pieces: named.collect() };
    let Ok(head) = Signed::sign(&head, &signer) else { return };
    let mut restoring = state.restoring(head, &signer.verifying_key()).expect("signed");
    if pieces.iter().any(|piece| restoring.take(piece).is_err()) {
        return;
    }
    let Ok(restored) = restoring.finish() else { return };
    let mut again = Vec::new();
    let take = |piece: &[u8]| -> Result<(), Infallible> {
        again.extend_from_slice(&piece[1..]);
        Ok(())
    };
    let Ok(made) = restored.snapshot(&signer, UnixTime(SECOND * 1_000_000), take);
    assert!(made.is_some_and(|made| (made.object().number, made.object().last) == (number, last)));
    let records: Vec<u8> = pieces.iter().flat_map(|piece| &piece[1..]).copied().collect();
    assert_eq!(again, records);
});
