//! Clocks.
//!
//! ICC, time, by processes in namespaces: every machine sleeps for two days under a download, longer than adverts, consents and lists of
//! removed nodes last; the clock of a gateway, and then of a forwarder, is set wrong, which is named with its error, and set right again.

use serde_json::{Value, json};
use wayleave_lab::netns;

use super::applications::serve;
use super::harness::Running;
use super::nat::Download;
use super::world::{World, use_names};
use crate::common::eventually;

/// Seconds that all machines sleep: no longer than idle connections last, and longer than anything that nodes know of each other.
const SHORT: u64 = 6_000;
const LONG: u64 = 2 * 86_400;

/// All processes of a world.
fn all(world: &mut World) -> impl Iterator<Item = &mut Running> {
    let World { realm, paths, consent, nodes, .. } = world;
    [&mut realm.operator, paths].into_iter().chain(consent).chain(nodes.values_mut())
}

/// Whether a text of the status says that this machine's clock is off, and one of these numbers.
fn names_clock(text: &Value, by: [&str; 2]) -> bool {
    let text = text.to_string();
    text.contains("the clock of this machine is ") && by.iter().any(|by| text.contains(by))
}

#[test]
fn traffic_goes_on_after_all_machines_slept_and_a_wrong_clock_is_named_with_its_error() {
    let test = "overlay::clocks::traffic_goes_on_after_all_machines_slept_and_a_wrong_clock_is_named_with_its_error";
    if netns::enter_for_test(test).is_none() {
        return;
    }
    let mut world = World::new("clocks");
    all(&mut world).for_each(Running::take_orders);
    all(&mut world).for_each(Running::wait);
    let mut world = world.settled();
    use_names(&world.network);
    let page: Vec<u8> = (0..12_000_000u32).flat_map(u32::to_be_bytes).collect();
    serve(&world.places["b"], &["10.0.2.1:8080"], &page, &world.realm.folder.0);
    let logs = || format!("{}\n{}", world.logs(), world.statuses());
    let mut download = Download::start(&world.places["a"], "clean.b.overlay", &world.realm.folder.0);
    download.goes_on("a download", &logs);

    // Everybody sleeps, and wakes at the same time: what they had of each other has expired, and nobody was there to renew it.
    let everybody: Vec<&Running> =
        [&world.realm.operator, &world.paths].into_iter().chain(&world.consent).chain(world.nodes.values()).collect();
    // Connections outlive as long a pause as TCP's idle ones do (RFC 5382, section 5).
    everybody.iter().for_each(|running| running.order(&format!("asleep {SHORT}")));
    download.goes_on("it goes on after a sleep", &logs);
    everybody.iter().for_each(|running| running.order(&format!("asleep {LONG}")));
    drop(download);
    let reached = || world.nodes["a"].ask(&["ping", "clean.b.overlay"]).status.success();
    eventually("b is reached after two days of sleep", reached);
    let mut download = Download::start(&world.places["a"], "clean.b.overlay", &world.realm.folder.0);
    download.goes_on("a download after two days of sleep", &logs);
    eventually(&format!("nobody has anything to say of it: {}", logs()), || {
        everybody.iter().all(|running| {
            let problems = running.status("problems");
            problems == json!([]) || problems == Value::Null
        })
    });

    // The clock of a gateway is set wrong: its packets are refused, and it says why.
    let a = &world.nodes["a"];
    for (order, by) in [("ahead 3600", ["is 3600.", "is 3599."]), ("ahead -90", ["is 90.", "is 89."])] {
        a.order(order);
        eventually("the status names the clock", || names_clock(&a.status("problems"), by));
        eventually("so does why", || names_clock(&a.json(&["why", "clean.b.overlay"])["why"], by));
        a.order("ahead 0");
        download.goes_on("it goes on with the right clock", &logs);
        eventually("and nothing is said any more", || a.status("problems") == json!([]));
    }

    // That of a forwarder: the others go round it, and it says why.
    let w2 = &world.nodes["w2"];
    w2.order("ahead 3600");
    download.goes_on("it goes round the node with the wrong clock", &logs);
    eventually("the node names its clock", || names_clock(&w2.status("problems"), ["is 3600.", "is 3599."]));
    w2.order("ahead 0");
    eventually("and says nothing any more", || w2.status("problems") == json!([]));
    eventually("the path over it is used again", || {
        let why = a.json(&["why", "clean.b.overlay"]);
        why["active"]["nodes"].as_array().is_some_and(|nodes| nodes.len() == 5) && why["active"]["dead"] == false
    });
    download.goes_on("it goes on over it", &logs);

    // That of the path server, from its start: everybody who follows it names it with its error, until it is right.
    let restart = |world: &mut World, slept: u64| {
        world.paths.kill();
        std::fs::write(world.path("paths").join("order"), format!("asleep {slept}")).expect("written");
        world.paths.resume();
    };
    restart(&mut world, SHORT + LONG - 3_600);
    let names_paths = |running: &Running| {
        let said = running.status("problems").to_string();
        ["3599", "3600", "3601"]
            .iter()
            .any(|by| said.contains(&format!("this machine is {by} s ahead of that of the server ")))
    };
    let followers = |world: &World| -> Vec<bool> {
        ["a", "w1", "b"]
            .iter()
            .map(|name| names_paths(&world.nodes[name]))
            .chain(world.consent.iter().map(names_paths))
            .collect()
    };
    eventually("those who follow the path server name its clock", || !followers(&world).contains(&false));
    restart(&mut world, SHORT + LONG);
    eventually("and say nothing any more", || !followers(&world).contains(&true));
}
