//! `two-organisations.md`, played on six machines: until two routers have each other's routes.

use std::time::Duration;

use wayleave_core::{Asn, Prefix};
use wayleave_lab::bird::Bird;
use wayleave_lab::frr::Frr;
use wayleave_lab::netns::{Network, enter_for_test, skipped};
use wayleave_lab::process::wait_until;
use wayleave_lab::routers::{default_cache, locate_or_fetch};
use wayleave_lab::table::Router;

use super::play::Play;
use super::{laid_over, snippet};

const TIMEOUT: Duration = Duration::from_secs(60);

#[test]
fn two_organisations_and_two_members_get_to_routes_by_the_page_alone() {
    let test = "guide::organisations_page::two_organisations_and_two_members_get_to_routes_by_the_page_alone";
    let routers = match locate_or_fetch(&default_cache(), &mut |line| eprintln!("{line}")) {
        Ok(routers) => routers,
        Err(error) => return skipped(&format!("{test}: {error}")),
    };
    if enter_for_test(test).is_none() {
        return;
    }
    let network = Network::new().expect("a network");
    let attach = |name: &str, addresses: &[&str]| {
        let addresses: Vec<String> = addresses.iter().map(|&address| address.to_owned()).collect();
        network.attach(name, &addresses).expect("attached")
    };
    let party1 = attach("party1", &["192.0.2.251/24", "10.0.0.1/24"]);
    let party2 = attach("party2", &["192.0.2.252/24", "10.0.0.2/24"]);
    let [alpha, bravo] = ["101", "102"].map(|host| attach(&format!("proxy{host}"), &[&format!("192.0.2.{host}/24")]));
    let [router1, router2] = ["1", "2"].map(|host| attach(&format!("router{host}"), &[&format!("192.0.2.{host}/24")]));
    let machines = [
        ("party1", &party1),
        ("party2", &party2),
        ("operator1", &party1),
        ("operator2", &party2),
        ("alpha", &alpha),
        ("bravo", &bravo),
    ];
    let mut play = Play::new("two-organisations.md", &machines);
    let text = format!(
        "log stderr all;\nrouter id 192.0.2.1;\nprotocol device {{ }}\nprotocol direct {{ ipv4; }}\n{}",
        snippet("member.md", "bird")
    );
    let mut bird = Bird::with_text(&routers.bird, router1, "alpha", text, network.state());
    let of_bravo = [
        ("64497", "64498"),
        ("192.0.2.101", "192.0.2.102"),
        ("198.51.100.0/24", "203.0.113.0/24"),
        ("2001:db8:100::", "2001:db8:200::"),
    ];
    let text = of_bravo.iter().fold(snippet("member.md", "frr"), |text, (from, to)| text.replace(from, to));
    let mut frr = Frr::with_text(&routers.frr, router2, "bravo", (Asn(64_498), text), network.state());
    play.run(|play, fence| {
        if fence.starts_with("[router]") || fence.starts_with("[member]") {
            // Lines of each member's own.
            for (member, host) in [("alpha", "101"), ("bravo", "102")] {
                let file = format!("{member}.toml");
                let own = fence.replace("192.0.2.101", &format!("192.0.2.{host}"));
                play.write(member, &file, &laid_over(&play.file(member, &file), &own));
            }
            return true;
        }
        if fence.starts_with("bravo$ wayleave why") {
            bird.start().expect("started");
            frr.start().expect("started");
            has(&mut frr, "198.51.100.0/24", 64_497, play);
            has(&mut bird, "203.0.113.0/24", 64_498, play);
        }
        false
    });
}

/// Waits until a router uses a route.
fn has(router: &mut dyn Router, prefix: &str, asn: u32, play: &Play) {
    let prefix: Prefix = prefix.parse().expect("a prefix");
    let found = wait_until(TIMEOUT, || {
        let table = router.table().ok()?;
        table.into_iter().find(|route| route.prefix == prefix && route.as_path == [Asn(asn)] && route.best)
    });
    if found.is_none() {
        let (name, log) = (router.name().to_owned(), router.log_tail());
        panic!("{name} never got {prefix}: {:?}\n{log}\n{}", router.table(), play.logs());
    }
}
