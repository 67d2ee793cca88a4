//! `two-gateways.md`, played on three machines: until a page is fetched through both gateways, and one of them is removed.

use wayleave_lab::netns::{Network, enter_for_test, skipped};
use wayleave_lab::overlay::tun_problem;

use super::laid_over;
use super::play::Play;
use crate::common::serves_pages;

#[test]
fn two_gateways_reach_each_other_by_the_page_alone() {
    let test = "guide::gateways_page::two_gateways_reach_each_other_by_the_page_alone";
    if !serves_pages() {
        return skipped(&format!("{test}: no python3 that serves pages"));
    }
    if enter_for_test(test).is_none() {
        return;
    }
    if let Some(problem) = tun_problem() {
        return skipped(&format!("{test}: {problem}"));
    }
    let network = Network::new().expect("a network");
    // One network has all three addresses.
    let attach = |name: &str, address: &str| network.attach(name, &[format!("{address}/1")]).expect("attached");
    let (ops, a, b) =
        (attach("ops", "192.0.2.1"), attach("gateway-a", "203.0.113.10"), attach("gateway-b", "203.0.113.130"));
    let mut play = Play::new("two-gateways.md", &[("ops", &ops), ("a", &a), ("b", &b)]);
    play.put("/tmp/page", ".");
    play.run(|play, fence| {
        if fence.starts_with("[[consent.node]]") {
            let file = "consent/consent.toml";
            play.write("ops", file, &laid_over(&play.file("ops", file), &play.filled(fence)));
            return true;
        }
        false
    });
}
