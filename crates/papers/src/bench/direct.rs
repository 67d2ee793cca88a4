//! `bench export-all --mode direct`: the announcer multiplies policy and key itself; the parties check and expand.

use std::time::Duration;

use serde_json::json;
use wayleave_bgp::Nlri;
use wayleave_core::Prefix;
use wayleave_core::wire::{Wire, Writer};
use wayleave_crypto::secret::Secret;
use wayleave_crypto::sign::{SigningKey, VerifyingKey};
use wayleave_route_server::directory::MAX_SLOTS;
use wayleave_route_server::object::{
    Description, ExportMode, Format, Fresh, Kind, Sealed, announce, blob_hash, expand, open,
};

use crate::report::{Report, seconds};

const EXCHANGE: &str = "bench-ix";
/// Octets of attributes: a mean route with communities.
const ATTRIBUTES: usize = 120;

/// A route to one prefix, as an announcer gives it to the parties.
pub struct Announced {
    members: u32,
    key: VerifyingKey,
    sealed: Sealed,
}

impl Announced {
    /// Route number `number` to so many members.
    ///
    /// # Panics
    /// Never: 24 bits fit.
    #[must_use]
    pub fn new(members: usize, number: u64) -> Self {
        let members = members.clamp(1, MAX_SLOTS);
        let signing = SigningKey::from_seed(&Secret::new([5; 32]));
        let mut fresh = Fresh { key: [1; 16], seed: [2; 32], openings: [[3; 32], [4; 32]] };
        fresh.seed[..8].copy_from_slice(&number.to_be_bytes());
        let route = (&[7; ATTRIBUTES][..], &[0; 32]);
        let exported = exported(members);
        let sealed = announce(ExportMode::Direct, EXCHANGE, description(number), route, &exported, &fresh, &signing);
        Self { members: u32::try_from(members).unwrap_or(u32::MAX), key: signing.verifying_key(), sealed }
    }

    /// Party 1 checks it and makes every member's share. Returns an octet of them.
    ///
    /// # Panics
    /// If it is not sound.
    #[must_use]
    pub fn at_party_one(&self) -> u8 {
        let Sealed { header, one, blob, .. } = &self.sealed;
        let holds = header.is_signed_by(EXCHANGE, &self.key) && one.matches(header);
        assert!(holds && blob_hash(blob) == header.blob_hash, "what was just made is sound");
        expand(&one.seed, None, 0, self.members).last().copied().unwrap_or(0)
    }

    /// Party 2 checks it and copies every member's share. Returns an octet of them.
    ///
    /// # Panics
    /// If it is not sound.
    #[must_use]
    pub fn at_party_two(&self) -> u8 {
        let Sealed { header, two, .. } = &self.sealed;
        assert!(header.is_signed_by(EXCHANGE, &self.key) && two.matches(header), "what was just made is sound");
        two.row.to_vec().last().copied().unwrap_or(0)
    }
}

/// What is said of route number `number`.
fn description(number: u64) -> Description {
    let prefix = Prefix::truncated([203, 0, 113, 0].into(), 24).expect("24 bits fit");
    let kind = Kind::Announce { prefixes: vec![Nlri::new(prefix)] };
    Description { format: Format::default(), slot: 1, set: 1, epoch: 1, version: number + 1, salt: [9; 32], kind }
}

/// Two of three members may have it.
fn exported(members: usize) -> Vec<bool> {
    (0..members).map(|slot| slot % 3 != 0).collect()
}

/// Announces one route to `members` members, `repetitions` times. `clock` is any monotonic clock.
///
/// # Panics
/// If what was just made does not verify, since then nothing was measured.
pub fn run(members: usize, repetitions: usize, clock: &mut dyn FnMut() -> Duration) -> Report {
    let members = members.clamp(1, MAX_SLOTS);
    let signing = SigningKey::from_seed(&Secret::new([5; 32]));
    let exported = exported(members);
    let attributes = [7; ATTRIBUTES];
    let (mut online, mut octets) = (Vec::new(), 0);
    for number in 0..repetitions {
        let description = description(number as u64);
        let mut fresh = Fresh { key: [0; 16], seed: [0; 32], openings: [[3; 32], [4; 32]] };
        fresh.key[..8].copy_from_slice(&(number as u64).to_be_bytes());
        fresh.seed[..8].copy_from_slice(&(number as u64).to_be_bytes());
        let start = clock();
        // The announcer.
        let route = (&attributes[..], &[0; 32]);
        let sealed = announce(ExportMode::Direct, EXCHANGE, description, route, &exported, &fresh, &signing);
        // Both parties check what they got; party 1 expands its seed.
        let key = signing.verifying_key();
        let holds = sealed.header.is_signed_by(EXCHANGE, &key)
            && sealed.one.matches(&sealed.header)
            && sealed.two.matches(&sealed.header)
            && blob_hash(&sealed.blob) == sealed.header.blob_hash;
        assert!(holds, "what was just made is sound");
        let row = expand(&sealed.one.seed, None, 0, u32::try_from(members).unwrap_or(u32::MAX));
        // One receiver opens.
        let place = 16 * (members - 1);
        let share = |row: &[u8]| <[u8; 16]>::try_from(&row[place..place + 16]).expect("16 octets");
        let handle = sealed.header.description.handle(EXCHANGE);
        let opened = open(EXCHANGE, 1, &handle, [&share(&row), &share(&sealed.two.row)], &sealed.blob);
        online.push(clock().saturating_sub(start));
        assert_eq!(opened.is_ok_and(|opened| opened.is_some()), exported[members - 1]);
        let mut header = Writer::new();
        sealed.header.write(&mut header);
        // Header to both parties; seed, opening and blob to party 1; row and opening to party 2; then a share from each
        // party to every member.
        octets = 2 * header.finish().len() + 64 + sealed.blob.len() + 32 + sealed.two.row.len() + 2 * 16 * members;
    }
    let mut report = Report::new("export-all", json!({ "members": members, "mode": "direct" }));
    report.add("online", "s", &seconds(&online));
    report.exact("setup", "s", 0.0);
    report.exact("bytes_online", "bytes", octets as f64);
    report.exact("bytes_setup", "bytes", 0.0);
    report.exact("rounds", "count", 0.0);
    report.exact("memory", "bytes", (16 * members) as f64);
    report
}
