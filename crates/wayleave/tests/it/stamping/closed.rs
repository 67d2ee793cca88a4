//! Packets that may leave in no other way than stamped.
//!
//! PLA, stamper fails closed: a rule with `otherwise = "drop"`: nothing leaves without a stamp while the stamper is killed or stopped, and
//! while it has no secret; all is counted. A rule without it lets packets leave as ever.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use serde_json::Value;
use wayleave_control::capability::{Credential, MasterKey, Terms};
use wayleave_crypto::secret::Key128;
use wayleave_lab::routers::Installation;
use wayleave_packet::platypus::header::{Interval, Principal, Width};

use super::nft;
use super::world::{self, World, body, config, settled, text};
use crate::router::common::{Router, eventually};
use crate::router::platypus::{HOST, WAYPOINTS};

/// Fails to fetch the page, whose server hears nothing of it.
fn is_refused(world: &World) {
    let before = (world.site.peers.lock().expect("noted").len(), world.forwarded(0));
    let output = world.curl_from(&world.site.client, None, &["--max-time", "2"]);
    assert!(!output.status.success() && output.stdout.is_empty(), "{}", text(&output.stdout));
    assert_eq!((world.site.peers.lock().expect("noted").len(), world.forwarded(0)), before);
}

fn tables(world: &World, nft: &Installation) -> String {
    let mut command = world.site.client.command(nft.program("nft"));
    nft.prepare(&mut command);
    text(&command.args(["list", "tables"]).output().expect("nft runs").stdout)
}

fn stop(stamper: &mut Router) {
    stamper.signal("-TERM");
    let mut child = stamper.child.take().expect("running");
    assert!(child.wait().expect("it ends").success(), "{}", stamper.log());
}

fn dropped_by_kernel(stamper: &Router) -> u64 {
    stamper.status()["dropped_by_kernel"].as_u64().expect("a count")
}

/// The line of a capability whose secrets nobody has.
fn lost() -> String {
    let terms = Terms {
        waypoint: WAYPOINTS[1].into(),
        principal: Principal::new(8).expect("24 bits"),
        interval: Interval::new(12).expect("in range"),
        width: Width::Full,
        delegation: None,
    };
    let zone = "keys.example.net".parse().expect("a zone");
    Credential { zone, terms, key: MasterKey::new(Key128::new([1; 16])) }.expose()
}

#[test]
fn nothing_leaves_without_a_stamp_while_the_stamper_is_down_or_has_no_secret() {
    let name = "stamping::closed::nothing_leaves_without_a_stamp_while_the_stamper_is_down_or_has_no_secret";
    let Some(nft) = nft::fetched(name) else { return };
    if world::enter(name).is_none() {
        return;
    }
    let world = World::start("stamping-closed", false);
    nft::install(&nft, &world.folder.0);
    // Nobody is there to be asked for secrets.
    let host = format!("address = \"{HOST}\"\nresolvers = [\"{HOST}\"]\n");
    let rule = "{ to = \"203.0.113.0/24\", route = \"paid\", otherwise = \"drop\" }";
    let mut stamper = world.stamper(&host, rule);
    let is_stamped = || {
        let [first, second] = world.fetch(None);
        assert!(first > 10 && first == second, "{first} {second}");
    };
    is_stamped();
    assert_eq!(dropped_by_kernel(&stamper), 0);

    // Killed: the interface is gone, and the table stays. Its counter is read by the next process.
    stamper.kill();
    is_refused(&world);
    stamper.start_process();
    is_stamped();
    eventually("what was dropped meanwhile is counted", || dropped_by_kernel(&stamper) > 0);

    // Stopped.
    stop(&mut stamper);
    is_refused(&world);
    assert!(stamper.log().contains("nft delete table inet wayleave_stamper"), "{}", stamper.log());
    stamper.start_process();
    is_stamped();

    // Without a secret: the stamper drops them itself.
    let file = world.folder.0.join("1.cap");
    let sound = fs::read(&file).expect("its capabilities");
    fs::remove_file(&file).expect("removed");
    fs::write(&file, lost()).expect("written");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("mode");
    eventually("the file is read", || stamper.status()["problems"].to_string().contains("1.cap"));
    let count = |of: &str| stamper.status()[of]["epoch"].as_u64().expect("a count");
    let sent = stamper.status()["sent"].clone();
    is_refused(&world);
    assert!(settled(|| count("dropped")) > 0 && count("left") == 0, "{}", stamper.status());
    assert_eq!(stamper.status()["sent"], sent);
    let why = text(&stamper.show(&["why", "203.0.113.10"]).stdout);
    assert!(why.contains("is dropped: route paid"), "{why}");
    let rules = stamper.json("stamping")["rules"].clone();
    assert_eq!((&rules[0]["otherwise"], rules[0]["missing"].as_bool()), (&Value::from("drop"), Some(false)));
    fs::remove_file(&file).expect("removed");
    fs::write(&file, sound).expect("written");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("mode");
    eventually("there is a secret", || stamper.status()["problems"] == Value::Array(Vec::new()));
    is_stamped();
    assert!(tables(&world, &nft).contains("wayleave_stamper"));

    // A rule that says nothing of the sort: the table goes, and packets leave as ever, stamped or not.
    let page = fs::read_to_string(world.folder.0.join("stamper.toml")).expect("its configuration");
    let status = page.split_once("[status]").expect("a section").1;
    let open = "{ to = \"203.0.113.0/24\", route = \"paid\" }";
    world.folder.write("stamper.toml", &format!("{}[status]{status}", config(&host, open)));
    stamper.reload();
    assert_eq!(tables(&world, &nft), "");
    is_stamped();
    stop(&mut stamper);
    assert_eq!(world.fetch(None), [0, 0], "without a stamper");
    assert!(world.curl(None).stdout == body());
}
