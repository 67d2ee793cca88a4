//! Every message between routers and a key server, as `test-data/wire/key-channel.json` has its octets.
//!
//! `WAYLEAVE_WRITE_VECTORS=1` writes a new file.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use wayleave_control::capability::{
    ChannelMessage, ChargedAccount, JournalId, PayerRefusals, Position, RatePayer, RefusalReason, RefusalReport,
    SharedRate, Usage, UsageAnswer, UsageRefusal, UsageReport,
};
use wayleave_control::leases::{LeaseAnswer, LeaseRequest, Offline};
use wayleave_packet::platypus::header::{DelegationId, Principal};

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../test-data/wire/key-channel.json")
}

fn hex(octets: &[u8]) -> String {
    octets.iter().map(|octet| format!("{octet:02x}")).collect()
}

fn payer(delegation: Option<u32>) -> RatePayer {
    let delegation = delegation.map(|number| DelegationId::new(number).expect("24 bits"));
    RatePayer { principal: Principal::new(7).expect("24 bits"), delegation }
}

fn messages() -> Vec<ChannelMessage> {
    let rate =
        |delegation| SharedRate { payer: payer(delegation), rate: 1_000_000, routers: 2, offline: Offline::Floor };
    let request = LeaseRequest { session: 1, number: 2, uses: 3, share: 5, demand: 4 };
    let answer = LeaseAnswer { session: 1, number: 2, share: 3 };
    let entry = |octet, packets| (ChargedAccount([octet; ChargedAccount::LENGTH]), Usage { packets, octets: 1 << 70 });
    let report = UsageReport { journal: JournalId([1; 16]), number: 2, entries: vec![entry(3, 4), entry(5, 6)] };
    let position = Position { timeline: 1, number: 2, digest: [3; 32] };
    let refused =
        |principal: u32, packets| PayerRefusals { principal: Principal::new(principal).expect("24 bits"), packets };
    let revoked = vec![(RefusalReason::Revoked, 3), (RefusalReason::Rate, 1 << 40)];
    let payers = vec![refused(7, revoked), refused(70_000, vec![(RefusalReason::AccountsFull, 1)])];
    let refusals = RefusalReport { secs: 3_600, payers };
    let mut all = vec![
        ChannelMessage::Report(report),
        ChannelMessage::Confirm { through: 1_800_000_000 },
        ChannelMessage::Answer(UsageAnswer { number: 2, is_behind: true }),
        ChannelMessage::Follow { list: Some(9) },
        ChannelMessage::Follow { list: None },
        ChannelMessage::Piece { length: 10, offset: 7, octets: vec![1, 2, 3] },
        ChannelMessage::Lessor { epoch: 1_800_000_000 },
        ChannelMessage::Ask { epoch: 1_800_000_000, requests: vec![(rate(None), request), (rate(Some(5)), request)] },
        ChannelMessage::Leased { epoch: 1_800_000_000, answers: vec![(payer(None), answer), (payer(Some(5)), answer)] },
        ChannelMessage::Watch { seen: position },
        ChannelMessage::Continues { position },
        ChannelMessage::Lacks { position },
        ChannelMessage::Refusals(refusals),
        ChannelMessage::Rates(vec![(rate(None), 0), (rate(Some(5)), 65_535)]),
    ];
    let refusals = [UsageRefusal::TooLong, UsageRefusal::TooManyJournals, UsageRefusal::LedgerFull];
    all.extend(refusals.map(|why| ChannelMessage::Refused { number: 2, why }));
    all.push(ChannelMessage::Untaken { number: 2, entries: vec![0, 7, 511] });
    all
}

#[test]
fn every_message_has_the_published_octets() {
    let all: Vec<Vec<u8>> = messages().iter().map(ChannelMessage::encode).collect();
    for code in (1..=5).chain([16]).chain(18..=26) {
        assert!(all.iter().any(|octets| octets[1] == code), "no message of type {code}");
    }
    for (message, octets) in messages().into_iter().zip(&all) {
        assert_eq!(ChannelMessage::decode(octets), Ok(message));
    }
    let messages: Vec<String> = all.iter().map(|octets| hex(octets)).collect();
    let found =
        json!({ "format": "messages of a key server's channel; see docs/wire/capabilities.md", "messages": messages });
    if std::env::var("WAYLEAVE_WRITE_VECTORS").is_ok() {
        let text = serde_json::to_string_pretty(&found).expect("numbers and text") + "\n";
        std::fs::write(file(), text).expect("the folder is there");
    }
    let published: Value = serde_json::from_slice(&std::fs::read(file()).expect("the file is there")).expect("JSON");
    assert_eq!(found, published);
}

#[test]
fn a_key_server_that_cannot_read_its_database_says_so_in_octets_of_their_own() {
    let message = ChannelMessage::Refused { number: 2, why: UsageRefusal::Unreadable };
    assert_eq!(hex(&message.encode()), "0103000000000000000204");
    assert_eq!(ChannelMessage::decode(&message.encode()), Ok(message));
}
