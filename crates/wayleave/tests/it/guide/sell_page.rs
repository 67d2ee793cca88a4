//! `sell-transit.md`, played on three machines: until a packet is paid for, and until a customer is revoked.

use wayleave_lab::netns::{Network, enter_for_test, skipped};
use wayleave_lab::process::Daemon;

use super::laid_over;
use super::play::Play;
use crate::common::serves_pages;

#[test]
fn a_provider_sells_transit_bills_it_and_revokes_by_the_page_alone() {
    let test = "guide::sell_page::a_provider_sells_transit_bills_it_and_revokes_by_the_page_alone";
    if !serves_pages() {
        return skipped(&format!("{test}: no python3 that serves pages"));
    }
    if enter_for_test(test).is_none() {
        return;
    }
    let network = Network::new().expect("a network");
    // One network has all three addresses.
    let attach = |name: &str, address: &str| network.attach(name, &[format!("{address}/1")]).expect("attached");
    let (pro, desk, web) = (attach("pro", "198.51.100.1"), attach("desk", "192.0.2.10"), attach("web", "203.0.113.10"));
    let mut server = web.command("python3");
    server.args(["-m", "http.server", "80", "--bind", "203.0.113.10"]).current_dir(network.state());
    let _server = Daemon::start(&mut server, &network.state().join("web.log")).expect("started");
    let mut play = Play::new("sell-transit.md", &[("pro", &pro), ("desk", &desk)]);
    play.run(|play, fence| {
        let fence = play.filled(fence);
        match fence.lines().next().unwrap_or_default() {
            "[[key.waypoint]]" => {
                let file = "server/key.toml";
                play.write("pro", file, &laid_over(&play.file("pro", file), &fence));
            }
            "[forwarding]" => play.write("pro", "waypoint.toml", &fence),
            "[host]" => play.write("desk", "desk.toml", &fence),
            _ => return false,
        }
        true
    });
}
