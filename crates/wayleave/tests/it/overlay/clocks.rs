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

/// All processes of a world.
fn all(world: &mut World) -> impl Iterator<Item = &mut Running> {
    let World { realm, paths, consent, nodes, .. } = world;
    [&mut realm.operator, paths].into_iter().chain(consent).chain(nodes.values_mut())
}

/// Whether a text of the status says that this machine's clock is off by so much, in words.
fn names_clock(text: &Value, by: &str) -> bool {
    let text = text.to_string();
    text.contains("the clock of this machine is ") && text.contains(by)
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
    let world = world.settled();
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
    everybody.iter().for_each(|running| running.order("asleep 6000"));
    download.goes_on("it goes on after a sleep", &logs);
    everybody.iter().for_each(|running| running.order("asleep 172800"));
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
    for (order, by) in [("ahead 3600", " s ahead"), ("ahead -90", " s behind")] {
        a.order(order);
        eventually(&format!("the status names the clock: {}", logs()), || names_clock(&a.status("problems"), by));
        eventually(&format!("so does why: {}", logs()), || {
            names_clock(&a.json(&["why", "clean.b.overlay"])["why"], by)
        });
        let said = a.status("problems").to_string();
        let error = if by == " s ahead" { ["is 3600.", "is 3599."] } else { ["is 90.", "is 89."] };
        assert!(error.iter().any(|error| said.contains(error)), "{said}");
        a.order("ahead 0");
        download.goes_on("it goes on with the right clock", &logs);
        eventually(&format!("and nothing is said any more: {}", logs()), || a.status("problems") == json!([]));
    }

    // That of a forwarder: the others go round it, and it says why.
    let w2 = &world.nodes["w2"];
    w2.order("ahead 3600");
    download.goes_on("it goes round the node with the wrong clock", &logs);
    eventually(&format!("the node names its clock: {}", logs()), || names_clock(&w2.status("problems"), " s ahead"));
    w2.order("ahead 0");
    eventually(&format!("and says nothing any more: {}", logs()), || w2.status("problems") == json!([]));
    eventually(&format!("the path over it is used again: {}", logs()), || {
        let why = a.json(&["why", "clean.b.overlay"]);
        why["active"]["nodes"].as_array().is_some_and(|nodes| nodes.len() == 5) && why["active"]["dead"] == false
    });
    download.goes_on("it goes on over it", &logs);
}
