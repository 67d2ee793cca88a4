//! Any octets as a message of a link, as what is sealed in one, and to a machine with a neighbour.
#![no_main]

use std::cell::RefCell;

use libfuzzer_sys::fuzz_target;
use wayleave_core::{IdentityKey, Instant, Now, UnixTime};
use wayleave_crypto::dh::DhSecret;
use wayleave_crypto::secret::Secret;
use wayleave_dataplane::link::message::{Choice, Content, Message, Opening, cookie, initiation, response, sealed};
use wayleave_dataplane::link::{Config, Links, Peer};

thread_local! {
    static LINKS: RefCell<Links> = RefCell::new(links());
}

fn now() -> Now {
    Now { instant: Instant(1), unix: UnixTime(1) }
}

fn links() -> Links {
    let identity = IdentityKey([1; 32]);
    let mut links =
        Links::new(Config { identity, realm: [2; 32], noise: Secret::new([3; 32]), seed: Secret::new([4; 32]) });
    let noise = DhSecret::from_seed(&Secret::new([5; 32])).public();
    let endpoints = vec![(0, ([192, 0, 2, 1], 1).into())];
    let identity = IdentityKey([2; 32]);
    let (tls, tls_endpoints) = (Some(1), vec![([192, 0, 2, 1], 443).into()]);
    let peer = Peer { link: 1, identity, noise, sockets: vec![0], endpoints, tls, tls_endpoints, largest: 1_400 };
    links.set_peers(vec![peer], now());
    links.handle_timeout(now());
    links
}

fuzz_target!(|octets: &[u8]| {
    if let Some(message) = Message::decode(octets) {
        let again = match message {
            Message::Initiation { from, noise, mac, cookie, .. } => {
                [&initiation(from, noise)[..], mac, cookie].concat()
            }
            Message::Response { to, noise } => response(to, noise),
            Message::Cookie { to, nonce, sealed } => cookie(to, nonce, sealed),
            Message::Sealed { to, number, sealed: octets } => [&sealed(to, number, octets.len())[..], octets].concat(),
        };
        assert_eq!(again, octets);
    }
    if let Some((content, time)) = Content::decode(octets) {
        let again = content.encode(time);
        assert_eq!(again, octets[..again.len()]);
    }
    if let Ok(opening) = Opening::decode(octets) {
        assert_eq!(opening.encode(), octets);
    }
    if let Some(choice) = Choice::decode(octets) {
        assert_eq!(choice.encode(), octets);
    }
    LINKS.with_borrow_mut(|links| {
        links.receive((0, ([192, 0, 2, 1], 1).into()), octets, now());
        while links.poll().is_some() {}
    });
});
