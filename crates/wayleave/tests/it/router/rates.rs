//! Rates of principals by IP, in a namespace.
//!
//! PLA, rates: a principal above its rate; reloads with the same, a greater and no rate: exactly the burst passes; a
//! reload gives no credit.

use wayleave_lab::netns;

use super::common::eventually;
use super::platypus::{HOST, ICMP, LAST, PLATYPUS, Socket, config, lay_out, packet, start};

/// Octets of an inner packet that has 300 with one capability in front.
const INNER: usize = 252;

#[test]
fn a_principal_is_held_to_its_rate_and_a_reload_keeps_what_it_has_used() {
    if netns::enter_for_test("router::rates::a_principal_is_held_to_its_rate_and_a_reload_keeps_what_it_has_used")
        .is_none()
    {
        return;
    }
    let folder = lay_out();
    // At an octet a second no further packet passes while the test runs.
    let rates = |burst| format!("rates = [{{ principal = 7, rate = 1, burst = {burst} }}]\n");
    let router = start(&folder, 0, &rates(3_000));
    let (mut host, mut last) = (Socket::new(HOST, ICMP), Socket::new(LAST, PLATYPUS));
    let mut number = 0;
    let mut send = |count: u64| {
        let (passed, held) = (router.count("decided", "forwarded"), router.count("reasons", "rate"));
        for _ in 0..count {
            let packet = packet(&[0], number, INNER);
            assert_eq!(packet.len(), 300);
            host.send(&packet);
            number += 1;
        }
        let after = || (router.count("decided", "forwarded") - passed, router.count("reasons", "rate") - held);
        eventually("all are counted", || after().0 + after().1 == count);
        after().0
    };
    assert_eq!(send(25), 10);
    assert_eq!(last.all(10).len(), 10);
    // The pool, and the room of the payer: who is out of it, and of what.
    let rooms = router.status()["replay_filter"]["rooms"].clone();
    assert!(rooms[0]["payer"].is_null() && rooms[0]["packets"].as_u64() > Some(90_000), "{rooms}");
    assert_eq!(rooms[1]["payer"]["principal"], 7);
    assert_eq!((rooms[1]["over_rate"].as_u64(), rooms[1]["is_full"].as_bool()), (Some(15), Some(false)), "{rooms}");
    // The page stays where it is.
    let page = std::fs::read_to_string(folder.0.join("waypoint0.toml")).expect("its configuration");
    let status = page.split_once("[status]").expect("its page").1;
    for (more, passed) in [(rates(3_000), 0), (rates(6_000), 0), (String::new(), 25)] {
        folder.write("waypoint0.toml", &format!("{}[status]{status}", config(0, &more)));
        router.reload();
        assert_eq!(send(25), passed, "{more}");
    }
    // Nobody hears of it, and nothing is charged that did not pass.
    assert_eq!(router.count("decided", "answered"), 0);
}
