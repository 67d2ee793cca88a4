//! A tally that anything may have been written to: no octets make its decoder panic, and what it reads is what would be written.
//!
//! PLA, tally: any octets as a tally: never fatal.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wayleave_dataplane::tally::{HEADER, Tally, TallyEntry, TallyStart};

fn written(start: &TallyStart, counted: u64, entries: &[TallyEntry]) -> Vec<u8> {
    let mut file = start.header();
    let of = entries.iter().map(|entry| (&entry.key[..], entry.packets, entry.octets));
    file.extend(start.frames(HEADER as u64, counted, of));
    file
}

fuzz_target!(|data: &[u8]| {
    // As it is; behind a header; and as entries, in a file that is then cut and damaged.
    let _ = Tally::read(data);
    let start = TallyStart { run: [7; 16], batch: 9 };
    let behind = Tally::read(&[&start.header()[..], data].concat()).expect("its header is whole");
    assert!(behind.entries.len() * 33 <= data.len());
    let entry = |part: &[u8]| TallyEntry {
        key: part[..usize::from(part[0] % 8)].to_vec(),
        packets: u128::from(part[8]) << (part[9] % 121),
        octets: u128::from(part[10]) << (part[11] % 121),
    };
    let entries: Vec<TallyEntry> = data.chunks_exact(12).map(entry).collect();
    let counted = data.len() as u64;
    let mut file = written(&start, counted, &entries);
    let tally = Tally::read(&file).expect("a tally");
    assert!(tally.start == start && tally.entries == entries && tally.rest.is_none());
    if let [at, flip @ 1..=255, ..] = *data {
        let place = usize::from(at) % file.len();
        file[place] ^= flip;
        assert!(Tally::read(&file).is_err() || Tally::read(&file).is_ok_and(|tally| tally.rest.is_some()));
        assert!(Tally::read(&file[..place]).is_err() || place >= HEADER);
    }
});
