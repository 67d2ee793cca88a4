//! Any octets as frames of a router at its key server, and of a key server at its router: messages have one encoding, nobody panics,
//! and a stranger gets nothing.
#![no_main]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use wayleave_control::capability::{
    ChangeTimes, ChannelMessage, ChargedAccount, JournalId, Ledger, MAX_REFUSED, Position, RatePayer, RateTerms, ReportOutcome,
    RouterClient, RouterClientEvent, RouterServer, RouterServerConfig, RouterServerInput, RouterServerOutput,
    SharedRate, Usage, UsageChange,
};
use wayleave_control::leases::Offline;
use wayleave_control::tenure::Term;
use wayleave_core::{IdentityKey, Instant, Machine, Now, UnixTime};
use wayleave_packet::platypus::header::Principal;

const RATE: u64 = 1_000_000;

fuzz_target!(|data: &[u8]| {
    let payer = RatePayer { principal: Principal::new(7).expect("24 bits"), delegation: None };
    let at = |millis: u64| Now { instant: Instant(millis * 1_000_000), unix: UnixTime(1_800_000_000_000_000) };
    // The store of the server.
    let mut ledger = Ledger::new(100).with_calendar(ChargedAccount::CALENDAR, (1_000_000_000, 1));
    let routers = BTreeMap::from([(IdentityKey([1; 32]), 1), (IdentityKey([2; 32]), 2)]);
    let rates = BTreeMap::from([(payer, RateTerms { rate: RATE, ..RateTerms::default() })]);
    let (confirmed, ahead) = (BTreeMap::new(), BTreeMap::new());
    let config = RouterServerConfig { routers, rates, confirmed, ahead };
    let mut server = RouterServer::new(config, at(0).instant);
    let mut client = RouterClient::new(JournalId([1; 16]), BTreeMap::new(), Some(3));
    client.share(&[SharedRate { payer, rate: RATE, routers: 2, offline: Offline::Decay }], 9);
    client.durable(ChargedAccount([3; 15]), Usage { packets: 1, octets: 1 });
    client.connected(1);
    client.connected(2);
    let renewed = Now { instant: Instant(u64::MAX), unix: UnixTime(u64::MAX) };
    server.handle(RouterServerInput::Term(Some(Term { epoch: 1, renewed }), BTreeSet::from([1, 2])), at(0));
    server.handle(RouterServerInput::Connected { link: 1, peer: IdentityKey([1; 32]) }, at(0));
    server.handle(RouterServerInput::Connected { link: 2, peer: IdentityKey([9; 32]) }, at(0));
    server.handle(
        RouterServerInput::List { number: 5, octets: Arc::from([7; 300]), times: ChangeTimes::default() },
        at(0),
    );
    while server.poll().is_some() {}
    // Frames behind their length in an octet.
    let (mut rest, mut millis) = (data, 1_000);
    while let Some((length, behind)) = rest.split_first() {
        let (frame, behind) = behind.split_at(usize::from(*length).min(behind.len()));
        (rest, millis) = (behind, millis + 50);
        if let Ok(message) = ChannelMessage::decode(frame) {
            assert_eq!(message.encode(), frame);
        }
        for link in [1, 2] {
            server.handle(RouterServerInput::Frame { link, octets: frame.to_vec() }, at(millis));
        }
        while let Some(output) = server.poll() {
            match output {
                RouterServerOutput::Store { step, change } => {
                    let outcome = match change {
                        UsageChange::Report { router, report, received } => {
                            ledger.take(router, &report, received.secs()).map(ReportOutcome::from)
                        }
                        UsageChange::Confirm { router, through } => {
                            ledger.confirm(router, through);
                            Ok(ReportOutcome::default())
                        }
                        UsageChange::Ahead { .. } => Ok(ReportOutcome::default()),
                    };
                    server.handle(RouterServerInput::Stored { step, outcome }, at(millis));
                }
                RouterServerOutput::Send { link, octets } => {
                    assert_eq!(link, 1, "the other is a stranger");
                    assert!(ChannelMessage::decode(&octets).is_ok());
                }
                RouterServerOutput::Superseded { epoch, .. } => assert!(epoch > 1),
                RouterServerOutput::Renew => {}
                RouterServerOutput::Refusals { router, report, .. } => {
                    assert!(router == 1 && report.payers.len() <= MAX_REFUSED);
                }
                RouterServerOutput::Check { link, seen } => {
                    let continues = seen.number <= 5;
                    server.handle(RouterServerInput::Checked { link, seen, continues }, at(millis));
                }
                RouterServerOutput::Close { .. } | RouterServerOutput::Event(_) => {}
            }
        }
        server.handle(RouterServerInput::Confirmed(ledger.confirmed().clone()), at(millis));
        server.handle(RouterServerInput::Read(Position { timeline: 0, number: 5, digest: [1; 32] }), at(millis));
        for link in [1, 2] {
            for event in client.frame(link, frame, at(millis).instant).unwrap_or_default() {
                if let RouterClientEvent::Rates(rates) = event {
                    client.share(&rates.into_iter().map(|(rate, _)| rate).collect::<Vec<_>>(), 9);
                }
            }
        }
        let _ = client.report(at(millis).instant);
        let _ = client.ask(at(millis).instant);
    }
    assert!(ledger.counts().values().all(|count| *count <= 100));
    assert_eq!(server.waiting(), 0);
});
