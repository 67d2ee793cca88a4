//! Any octets as the body of an UPDATE: nothing malformed is sent on.
//!
//! BGP-13: any octets as an UPDATE: an error or a value with this encoding.
#![no_main]

mod session;

use libfuzzer_sys::fuzz_target;
use wayleave_bgp::{Action, Attributes, Message, SessionParams, Update, UpdateView, encode_updates};

fuzz_target!(|data: &[u8]| {
    let Some((&kind, body)) = data.split_first() else { return };
    let params = session::session(kind);
    if body.len() > params.max_message_len() - 19 {
        return;
    }
    let view = UpdateView::decode(body, &params);
    let update = Update::decode(body, &params);
    assert_eq!(view.is_ok(), update.is_ok());
    let (Ok(view), Ok(update)) = (view, update) else { return };

    // Whatever could be read to its end is written as it came.
    let mut written = Vec::new();
    view.encode(&mut written);
    let is_whole = view.problems().iter().all(|problem| problem.action < Action::TreatAsWithdraw);
    if is_whole && params.ipv4_unicast {
        assert_eq!(&written[19..], body);
    }

    // Whoever gets it has nothing to complain about.
    let onward = SessionParams { ipv4_unicast: true, ipv6_unicast: true, enforce_first_as: false, ..params };
    let attributes = update.attributes.as_ref().map(Attributes::to_forward);
    let Ok(messages) = encode_updates(attributes.as_ref(), &update.announced, &update.withdrawn, &onward) else {
        return;
    };
    let (mut announced, mut withdrawn) = (0, 0);
    for octets in messages {
        assert!(octets.len() <= onward.max_message_len());
        let Ok((Message::Update(again), [])) = Message::decode(&octets, &onward) else { panic!("an UPDATE") };
        assert_eq!(again.problems, []);
        announced += again.announced.len();
        withdrawn += again.withdrawn.len();
    }
    assert_eq!((announced, withdrawn), (update.announced.len(), update.withdrawn.len()));
});
