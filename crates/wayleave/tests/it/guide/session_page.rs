//! `attest-a-session.md`, played: two networks with a proxy each, one with BIRD and one with FRR, until the first route is proved.

use wayleave_core::Asn;
use wayleave_lab::bird::Bird;
use wayleave_lab::frr::Frr;
use wayleave_lab::netns::{Network, enter_for_test, skipped};
use wayleave_lab::routers::{Routers, default_cache, locate_or_fetch};
use wayleave_lab::table::Router;

use super::play::Play;
use super::{laid_over, snippet};

#[test]
fn two_networks_prove_a_route_by_the_page_alone() {
    let test = "guide::session_page::two_networks_prove_a_route_by_the_page_alone";
    let Routers { bird, frr, .. } = match locate_or_fetch(&default_cache(), &mut |line| eprintln!("{line}")) {
        Ok(routers) => routers,
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
    let routers = [attach("router-alpha", &[1]), attach("router-bravo", &[2])];
    let [of_alpha, of_bravo] = routers;
    let before = "log stderr all;\nrouter id 192.0.2.1;\nprotocol device { }\n";
    let text = before.to_owned() + &snippet("attest-a-session.md", "bird");
    let mut of_alpha = Bird::with_text(&bird, of_alpha, "alpha", text, network.state());
    let text = (Asn(64_498), snippet("attest-a-session.md", "frr"));
    let mut of_bravo = Frr::with_text(&frr, of_bravo, "bravo", text, network.state());
    of_alpha.start().expect("BIRD takes the page's configuration");
    of_bravo.start().expect("FRR takes the page's configuration");
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
