//! A stamper on the client's own machine: by control group, with the system's own groups and nftables.
//!
//! PLA, stamper by process: stamping by control group (of version 2, with nftables): only packets of it and of groups
//! below, also of a group that is made later, or anew as with each start of a service.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;
use wayleave_lab::netns::{self, Rung};
use wayleave_lab::routers::Installation;

use super::nft;
use super::world::{self, World, body, settled, text};
use crate::router::common::eventually;
use crate::router::platypus::{HOST, LAST};

const GROUPS: &str = "/sys/fs/cgroup";

/// A control group that ends with the test.
struct Group(PathBuf);

impl Group {
    fn new(path: &str) -> std::io::Result<Self> {
        let path = Path::new(GROUPS).join(path);
        fs::create_dir(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// The hierarchy of version 2, where programs look for it: some systems have it beside version 1, in a place of its own.
fn mount_groups() -> Result<(), String> {
    if Path::new(GROUPS).join("cgroup.procs").exists() || Path::new(GROUPS).join("cgroup.controllers").exists() {
        return Ok(());
    }
    let output = Command::new("mount").args(["-t", "cgroup2", "none", GROUPS]).output();
    let output = output.map_err(|error| error.to_string())?;
    if output.status.success() { Ok(()) } else { Err(text(&output.stderr)) }
}

/// The machines, with control groups and the program nft at the client's.
fn start(name: &str, folder: &str, nft: &Installation) -> Option<World> {
    let world = World::start(folder, false);
    if let Err(why) = mount_groups() {
        netns::skipped(&format!("{name}: no control groups of version 2: {why}"));
        return None;
    }
    nft::install(nft, &world.folder.0);
    Some(world)
}

/// Fetches the page by a process in a group. Returns how many packets each waypoint forwards for it.
fn fetch(world: &World, group: Option<&str>) -> [u64; 2] {
    let forwarded = || [world.forwarded(0), world.forwarded(1)];
    let before = forwarded();
    let enter = group.map_or(String::new(), |group| format!("echo $$ >{GROUPS}/{group}/cgroup.procs && "));
    let line = format!("{enter}exec curl --silent --show-error --max-time 20 http://{LAST}/");
    let mut command = world.site.client.command("sh");
    let output = world.with_curl(&mut command).args(["-c", &line]).output().expect("sh runs");
    assert!(output.stdout == body(), "{group:?}: {}{}", text(&output.stderr), stamper_log(world));
    let after = settled(forwarded);
    [after[0] - before[0], after[1] - before[1]]
}

#[test]
fn packets_are_stamped_by_control_group_and_in_groups_below_it_and_in_no_other() {
    let name = "stamping::cgroup::packets_are_stamped_by_control_group_and_in_groups_below_it_and_in_no_other";
    let Some(nft) = nft::fetched(name) else { return };
    let Some(rung) = world::enter(name) else { return };
    if rung != Rung::Root {
        netns::skipped(&format!("{name}: who is not root has no control groups of their own"));
        return;
    }
    let Some(world) = start(name, "stamping-cgroup", &nft) else { return };
    let own = format!("wayleave-test-{}", std::process::id());
    let made = Group::new(&own).and_then(|outer| Ok((outer, Group::new(&format!("{own}/below"))?)));
    let (_outer, _below) = made.expect("control groups");
    let other = format!("{own}-other");
    let _other = Group::new(&other).expect("a control group");
    let rule = format!("{{ to = \"203.0.113.0/24\", route = \"paid\", cgroup = \"{own}\" }}");
    let mut stamper = world.stamper(&format!("address = \"{HOST}\"\n"), &rule);
    let fetch = |group: Option<&str>| fetch(&world, group);
    assert_eq!(fetch(None), [0, 0], "in no group");
    assert_eq!(fetch(Some(&other)), [0, 0], "in another group");
    for group in [own.clone(), format!("{own}/below")] {
        let [first, second] = fetch(Some(&group));
        assert!(first > 10 && first == second, "{group}: {first} {second}");
    }
    let why = stamper.show(&["why", &LAST.to_string()]);
    let said = text(&why.stdout);
    assert!(said.contains(&format!("from control group {own}: is stamped for route paid")), "{said}");
    let tables = || {
        let mut command = world.site.client.command(nft.program("nft"));
        nft.prepare(&mut command);
        text(&command.args(["list", "tables"]).output().expect("nft runs").stdout)
    };
    assert!(tables().contains("wayleave_stamper"), "{}", tables());
    // Killed, it leaves marks that lead nowhere. Started again and ended, it takes them back.
    stamper.kill();
    assert_eq!(fetch(Some(&own)), [0, 0], "without a stamper");
    stamper.start_process();
    assert!(fetch(Some(&own))[1] > 10);
    stamper.signal("-TERM");
    let mut child = stamper.child.take().expect("running");
    assert!(child.wait().expect("it ends").success(), "{}", stamper.log());
    assert_eq!(tables(), "");
    assert_eq!(fetch(Some(&own)), [0, 0], "after its end");
}

/// As systemd does with a service's group at each of its starts. The table of nftables has the group's number, and not its path.
#[test]
fn a_control_group_that_is_made_later_or_anew_is_waited_for_and_stamped_from_then_on() {
    let name = "stamping::cgroup::a_control_group_that_is_made_later_or_anew_is_waited_for_and_stamped_from_then_on";
    let Some(nft) = nft::fetched(name) else { return };
    let Some(rung) = world::enter(name) else { return };
    if rung != Rung::Root {
        netns::skipped(&format!("{name}: who is not root has no control groups of their own"));
        return;
    }
    let Some(world) = start(name, "stamping-cgroup-anew", &nft) else { return };
    let slice = format!("wayleave-test-{}-slice", std::process::id());
    let service = format!("{slice}/service");
    let rule = format!("{{ to = \"203.0.113.0/24\", route = \"paid\", cgroup = \"{service}\" }}");
    let stamper = world.stamper(&format!("address = \"{HOST}\"\n"), &rule);
    assert_eq!(stamper.status()["missing_groups"], json!([service]), "{}", stamper.log());
    let why = || text(&stamper.show(&["why", &LAST.to_string()]).stdout);
    assert!(why().contains("the group does not exist now"), "{}", why());
    let made = || stamper.log().matches(&format!("control group {service} was made")).count();
    for round in 1..=3 {
        // The slice is made anew too, once.
        let slice = Group::new(&slice).expect("a control group");
        let of_slice = if round < 3 { 1 } else { 2 };
        for _ in 0..of_slice {
            let before = made();
            let group = Group::new(&service).expect("a control group");
            eventually("the group is noticed", || made() == before + 1);
            eventually("it is in use", || stamper.status()["missing_groups"] == json!([]));
            let [first, second] = fetch(&world, Some(&service));
            assert!(first > 10 && first == second, "{round}: {first} {second}");
            assert!(!why().contains("does not exist"), "{}", why());
            drop(group);
            eventually("it is missed", || stamper.status()["missing_groups"] == json!([service]));
        }
        drop(slice);
    }
    // Whoever loads the machine's packet filter anew removes the table: it is set again.
    nft::set(&nft, &world.site.client, "flush ruleset");
    let (_slice, _service) = (Group::new(&slice).expect("a group"), Group::new(&service).expect("a group"));
    let tables = || {
        let mut command = world.site.client.command(nft.program("nft"));
        nft.prepare(&mut command);
        text(&command.args(["list", "tables"]).output().expect("nft runs").stdout)
    };
    eventually("the table is there", || tables().contains("wayleave_stamper"));
    assert!(fetch(&world, Some(&service))[1] > 10);
}

fn stamper_log(world: &World) -> String {
    fs::read_to_string(world.folder.0.join("stamper.log")).unwrap_or_default()
}
