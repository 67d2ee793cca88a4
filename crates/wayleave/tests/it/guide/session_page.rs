//! `attest-a-session.md`, played: two networks with BIRD and a proxy each, until the first route is proved.

use wayleave_lab::bird::Bird;
use wayleave_lab::netns::{Network, enter_for_test, skipped};
use wayleave_lab::routers::{BIRD, default_cache, locate_or_fetch_router};
use wayleave_lab::table::Router;

use super::laid_over;
use super::play::Play;

#[test]
fn two_networks_prove_a_route_by_the_page_alone() {
    let test = "guide::session_page::two_networks_prove_a_route_by_the_page_alone";
    let bird = match locate_or_fetch_router(&BIRD, &default_cache(), &mut |line| eprintln!("{line}")) {
        Ok(bird) => bird,
        Err(error) => return skipped(&format!("{test}: {error}")),
    };
    if enter_for_test(test).is_none() {
        return;
    }
    let network = Network::new().expect("a network");
    let attach = |name: &str, hosts: &[u8]| {
        let addresses: Vec<String> = hosts.iter().map(|host| format!("192.0.2.{host}/24")).collect();
        network.attach(name, &addresses).expect("attached")
    };
    let (alpha, bravo) = (attach("alpha", &[11, 12]), attach("bravo", &[21, 22]));
    let mut routers =
        [("alpha", 1, 11, 64_497, 64_498, "198.51.100.0/24"), ("bravo", 2, 21, 64_498, 64_497, "203.0.113.0/24")].map(
            |(name, own, proxy, asn, other, prefix)| {
                let text = format!(
                    "log stderr all;\nrouter id 192.0.2.{own};\nprotocol device {{ }}\nprotocol direct {{ ipv4; }}\n\
                 protocol static own {{ ipv4; route {prefix} blackhole; }}\n\
                 protocol bgp neighbour {{ local 192.0.2.{own} as {asn}; neighbor 192.0.2.{proxy} as {other};\n\
                 ipv4 {{ import all; export where proto = \"own\"; }}; }}\n"
                );
                Bird::with_text(&bird, attach(&format!("router-{name}"), &[own]), name, text, network.state())
            },
        );
    for router in &mut routers {
        router.start().expect("started");
    }
    let mut play = Play::new("attest-a-session.md", &[("alpha", &alpha), ("bravo", &bravo), ("anchor", &alpha)]);
    play.run(|play, fence| {
        if fence.starts_with(" alpha's router") {
            return true; // a drawing
        }
        if fence.starts_with("[[pair]]") {
            let (machine, asn) = if fence.contains("name = \"bravo\"") { ("alpha", 64_497) } else { ("bravo", 64_498) };
            let more = format!("[attest]\nasn = {asn}\n{fence}");
            play.write(machine, "attest.toml", &laid_over(&play.file(machine, "attest.toml"), &more));
            return true;
        }
        // What the proxy does with a false origination is told by tests of its own.
        fence.starts_with("bravo$ wayleave why 203.0.113.128/25")
    });
}
