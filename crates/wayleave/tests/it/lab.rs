//! `wayleave-lab`: whole overlays from the example files, in namespaces.
//!
//! LAB, up: the paper's chain rootless, hosts behind a slow link: every process runs; policies choose whether the third
//! node is passed.
//! LAB, down: `up` killed under way; the holder of the namespaces killed; its number taken by another process: `down`
//! ends all that was started, and nothing else.
//! LAB, mistakes: mistakes in a description are shown where they are, before anything starts.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use wayleave_lab::netns::{self, Rung};
use wayleave_lab::overlay::tun_problem;

use crate::common::{Folder, eventually, laboratory, serves_pages, text};

/// Why there can be no laboratory here.
pub(crate) fn impossible() -> Option<String> {
    let found = netns::detect();
    let none = found.rung == Rung::Simulated;
    none.then(|| format!("network namespaces are not available: {:?}", found.refused)).or_else(tun_problem)
}

/// A laboratory in a folder of its own, which is taken down when the test ends.
pub(crate) struct Lab {
    pub(crate) folder: Folder,
    pub(crate) dir: String,
}

impl Lab {
    /// `None` where there are no namespaces.
    pub(crate) fn new(name: &str) -> Option<Self> {
        if let Some(reason) = impossible() {
            netns::skipped(&format!("a laboratory, {name}: {reason}"));
            return None;
        }
        let folder = Folder::new(&format!("lab-{name}"));
        let dir = folder.0.join("lab").display().to_string();
        Some(Self { folder, dir })
    }

    pub(crate) fn up(&self, arguments: &[&str]) -> Output {
        self.folder.run(&[&["wayleave-lab", "up", "--dir", &self.dir], arguments].concat())
    }

    pub(crate) fn lab(&self, verb: &str, arguments: &[&str]) -> Output {
        self.folder.run(&[&["wayleave-lab", verb, "--dir", &self.dir], arguments].concat())
    }

    pub(crate) fn status(&self) -> Value {
        let output = self.lab("status", &["--json"]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    /// What a command at a node prints, which must succeed.
    pub(crate) fn at(&self, node: &str, command: &[&str]) -> String {
        let output = self.lab("exec", &[&[node], command].concat());
        assert!(output.status.success(), "{node} {command:?}: {}{}", text(&output.stderr), self.logs());
        text(&output.stdout).trim().to_owned()
    }

    /// The nodes of a name's path, as gateway a has it.
    fn trace(&self, name: &str) -> Vec<String> {
        let traced = self.at("a", &["wayleave", "path", "trace", name, "--config", "gateway.toml"]);
        traced.lines().map(str::to_owned).collect()
    }

    pub(crate) fn logs(&self) -> String {
        fs::read_to_string(Path::new(&self.dir).join("log")).unwrap_or_default()
    }

    /// The processes in the laboratory's PID namespace, seen from outside.
    pub(crate) fn processes(&self) -> BTreeSet<Process> {
        let holder = fs::read_to_string(Path::new(&self.dir).join("holder")).expect("a holder");
        let holder: Value = serde_json::from_str(&holder).expect("JSON");
        // A holder that has just ended took all with it.
        let Ok(own) = fs::read_link(format!("/proc/{}/ns/pid_for_children", holder["pid"])) else {
            return BTreeSet::new();
        };
        // Before the holder has made its namespace, its children would be in that of the test.
        let has_none = fs::read_link("/proc/self/ns/pid").is_ok_and(|of_the_test| of_the_test == own);
        if has_none { BTreeSet::new() } else { of_namespace(&own) }
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if Path::new(&self.dir).exists() {
            self.lab("down", &[]);
        }
    }
}

/// A process by its ID and when it started: IDs come back within minutes where many tests start processes.
pub(crate) type Process = (u32, String);

/// Since the system's start, in ticks (proc(5), field 22 of `stat`); none if there is no such process.
fn start_time(id: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    let (_, behind_the_name) = stat.rsplit_once(')')?;
    behind_the_name.split_whitespace().nth(19).map(str::to_owned)
}

fn of_namespace(own: &Path) -> BTreeSet<Process> {
    let processes = fs::read_dir("/proc").expect("processes").flatten();
    let ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let inside = ids.filter(|id| fs::read_link(format!("/proc/{id}/ns/pid")).is_ok_and(|link| link == own));
    inside.filter_map(|id| Some((id, start_time(id)?))).collect()
}

/// Without root, if user namespaces are allowed.
pub(crate) fn lower_rung() -> &'static str {
    let tried = Command::new("unshare").args(["--user", "--map-root-user", "true"]).stderr(Stdio::null()).status();
    if tried.is_ok_and(|status| status.success()) { "rootless" } else { "root" }
}

/// Whether none of them runs; one that nobody has waited for yet has no root any more.
pub(crate) fn gone(processes: &BTreeSet<Process>) -> bool {
    let is_here = |(id, start): &Process| {
        Path::new(&format!("/proc/{id}/root")).exists() && start_time(*id).as_ref() == Some(start)
    };
    !processes.iter().any(is_here)
}

pub(crate) fn example(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/examples/lab").join(name);
    path.canonicalize().expect("an example").display().to_string()
}

#[test]
fn the_papers_chain_comes_up_without_root_and_policies_choose_whether_the_third_node_is_passed() {
    let Some(lab) = Lab::new("chain") else { return };
    let rung = lower_rung();
    let output = lab.up(&[&example("chain.toml"), "--rung", rung]);
    let said = text(&output.stdout);
    assert!(output.status.success(), "{said}{}{}", text(&output.stderr), lab.logs());
    assert!(said.contains("To try:") && said.contains("2 gateways have joined"), "{said}");
    // The figure of the paper: by length, with or without the node in the middle.
    assert_eq!(lab.trace("short.b.demo"), ["a", "w1", "w3", "b"]);
    assert_eq!(lab.trace("long.b.demo"), ["a", "w1", "w2", "w3", "b"]);
    let status = lab.status();
    assert_eq!((&status["state"], &status["rung"]), (&"up".into(), &rung.into()));
    let rows = status["processes"].as_array().expect("processes");
    let roles: BTreeSet<&str> = rows.iter().filter_map(|row| row["role"].as_str()).collect();
    assert_eq!(roles, BTreeSet::from(["realm", "path", "consent", "router", "gateway"]));
    assert!(rows.len() == 8 && rows.iter().all(|row| row["state"] == "up"), "{status}");
    // A second one of the same folder, and commands that go nowhere.
    let again = lab.up(&[&example("chain.toml")]);
    assert!(text(&again.stderr).contains("is up already"), "{}", text(&again.stderr));
    let nowhere = lab.lab("exec", &["w9", "true"]);
    assert_eq!(nowhere.status.code(), Some(2));
    assert!(text(&nowhere.stderr).contains("there are: a, b, consent"), "{}", text(&nowhere.stderr));
    assert_eq!(lab.lab("exec", &["w1", "sh", "-c", "exit 7"]).status.code(), Some(7));
    // A node dies: the status says so, and the picture; paths of `long` go past it.
    let dead = rows.iter().find(|row| row["node"] == "w2").expect("w2")["pid"].to_string();
    lab.at("w2", &["kill", "-9", &dead]);
    eventually("w2 has ended", || {
        lab.status()["processes"]
            .as_array()
            .is_some_and(|rows| rows.iter().all(|row| (row["node"] == "w2") == (row["state"] == "ended")))
    });
    let drawn = text(&lab.lab("graph", &["--text"]).stdout);
    assert!(drawn.contains("w2  (has ended)") && drawn.contains("└─"), "{drawn}");
    let dot = text(&lab.lab("graph", &[]).stdout);
    assert!(dot.starts_with("graph \"chain\" {") && dot.contains("\"w2\" [shape = ellipse, color = grey"), "{dot}");
    let table = text(&lab.lab("status", &[]).stdout);
    assert!(table.contains("laboratory chain is up") && table.contains("NODE"), "{table}");
    // Down: all of it, and nothing else.
    let inside = lab.processes();
    assert!(inside.len() >= 8, "{inside:?}");
    let output = lab.lab("down", &[]);
    assert!(text(&output.stdout).contains("every process has ended"), "{}", text(&output.stdout));
    eventually("all have ended", || gone(&inside));
    assert!(!Path::new(&lab.dir).exists());
    assert_eq!(lab.lab("down", &[]).status.code(), Some(1), "there is nothing to end");
}

#[test]
fn up_that_is_stopped_leaves_nothing() {
    let Some(lab) = Lab::new("stopped") else { return };
    let mut command = Command::new(laboratory());
    command.args(["up", &example("chain.toml"), "--dir", &lab.dir]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().expect("it starts");
    let has_begun = || Path::new(&lab.dir).join("holder").exists() && lab.processes().len() > 2;
    eventually("processes of it run", has_begun);
    let inside = lab.processes();
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill runs").success());
    let output = child.wait_with_output().expect("it ends");
    let said = text(&output.stderr);
    assert!(!output.status.success() && said.contains("every process of it has ended"), "{said}");
    eventually("all have ended", || gone(&inside));
    assert!(!Path::new(&lab.dir).exists());
}

#[test]
fn hosts_behind_gateways_speak_to_each_other_over_a_slow_link() {
    let Some(lab) = Lab::new("hosts") else { return };
    if !serves_pages() {
        netns::skipped("lab::hosts_behind_gateways_speak_to_each_other_over_a_slow_link: no python3 that serves pages");
        return;
    }
    let output = lab.up(&[&example("hosts.toml"), "--json"]);
    assert!(output.status.success(), "{}{}{}", text(&output.stdout), text(&output.stderr), lab.logs());
    let said: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(said["warnings"].as_array().map(Vec::len), Some(0), "{said}");
    eventually(&format!("the page: {}", lab.logs()), || {
        let page = lab.lab("exec", &["client", "curl", "-sS", "--max-time", "5", "http://10.0.2.10/"]);
        text(&page.stdout).contains("Directory listing")
    });
    // The link's delay, there and back.
    let ping = lab.at("a", &["wayleave", "ping", "short.b.demo", "--config", "gateway.toml", "--json"]);
    let ping: Value = serde_json::from_str(&ping).expect("JSON");
    assert!(ping["round_trip_micros"].as_u64() >= Some(40_000), "{ping}");
    // A host asks its gateway for names.
    let named = lab.at(
        "client",
        &["curl", "-sS", "-o", "/dev/null", "-w", "%{remote_ip}", "--max-time", "5", "http://10.0.2.10/"],
    );
    assert_eq!(named, "10.0.2.10");
    let status = lab.status();
    assert_eq!(status["commands"][0]["state"], "up", "{status}");
    assert!(lab.lab("down", &["--json"]).status.success());
}

#[test]
fn what_a_killed_up_or_a_killed_laboratory_leaves_is_ended_by_down() {
    let Some(lab) = Lab::new("killed") else { return };
    // `up` is killed while nodes join.
    let mut command = Command::new(laboratory());
    command.args(["up", "--dir", &lab.dir, &example("chain.toml")]).stdout(Stdio::null());
    let mut up = command.stdin(Stdio::null()).spawn().expect("the program runs");
    let has_said = || fs::read_to_string(Path::new(&lab.dir).join("progress")).is_ok_and(|said| said.contains("realm"));
    eventually("a realm", has_said);
    up.kill().expect("killed");
    up.wait().expect("waited for");
    let inside = lab.processes();
    assert!(!inside.is_empty());
    assert!(lab.lab("down", &[]).status.success());
    eventually("all have ended", || gone(&inside));
    // The holder of the namespaces is killed: everything ends with it.
    let output = lab.up(&[&example("chain.toml")]);
    assert!(output.status.success(), "{}{}", text(&output.stderr), lab.logs());
    let inside = lab.processes();
    let holder = fs::read_to_string(Path::new(&lab.dir).join("holder")).expect("a holder");
    let holder: Value = serde_json::from_str(&holder).expect("JSON");
    assert!(Command::new("kill").args(["-9", &holder["pid"].to_string()]).status().expect("kill runs").success());
    eventually("all have ended", || gone(&inside));
    assert_eq!(lab.status()["state"], "ended");
    let exec = lab.lab("exec", &["a", "true"]);
    assert!(text(&exec.stderr).contains("has ended"), "{}", text(&exec.stderr));
    let again = lab.up(&[&example("chain.toml")]);
    assert!(text(&again.stderr).contains("wayleave-lab down"), "{}", text(&again.stderr));
    // Another process has the holder's number now, as far as the folder tells: it is left alone.
    let mut innocent = Command::new("sleep").arg("60").spawn().expect("sleep runs");
    let claimed = serde_json::json!({ "pid": innocent.id(), "started": holder["started"], "rung": holder["rung"] });
    fs::write(Path::new(&lab.dir).join("holder"), claimed.to_string()).expect("written");
    assert!(text(&lab.lab("down", &[]).stdout).contains("it had ended already"));
    assert!(innocent.try_wait().expect("a child").is_none(), "another process was ended");
    innocent.kill().expect("killed");
    innocent.wait().expect("waited for");
}

#[test]
fn mistakes_in_a_description_are_shown_where_they_are() {
    let folder = Folder::new("lab-mistakes");
    let good = fs::read_to_string(example("chain.toml")).expect("an example");
    for name in [
        "chain.toml",
        "demo.toml",
        "hosts.toml",
        "transit.toml",
        "resale.toml",
        "egress.toml",
        "ingress.toml",
        "multihoming.toml",
    ] {
        let said = folder.ok(&["wayleave-lab", "check", &example(name)]);
        assert!(said.contains("fine, a description for `wayleave-lab up`"), "{said}");
    }
    folder.write("wrong.toml", &good.replacen("to = \"w1\"", "to = \"w7\"", 1));
    let line = good.lines().position(|line| line == "to = \"w1\"").expect("a link") + 1;
    for command in [
        &["wayleave-lab", "check", "wrong.toml"][..],
        &["wayleave-lab", "up", "wrong.toml"],
        &["wayleave-lab", "graph", "wrong.toml"],
    ] {
        let said = folder.fails(1, command);
        assert!(said.contains(&format!("wrong.toml:{line}:6")) && said.contains("no node `w7`"), "{said}");
    }
    let said = folder.run(&["wayleave-lab", "check", "wrong.toml", "--json"]);
    let said: Value = serde_json::from_slice(&said.stdout).expect("JSON");
    assert_eq!((&said["errors"][0]["line"], &said["role"]), (&line.into(), &"lab".into()));
    let policy = "seconds = 60\nsenders = [\"a\", \"b\"]";
    let hosts = fs::read_to_string(example("hosts.toml")).expect("an example");
    assert!(hosts.contains(policy));
    folder.write("policy.toml", &hosts.replace(policy, "seconds = 60"));
    let said = folder.fails(1, &["wayleave-lab", "check", "policy.toml"]);
    assert!(said.contains("the policy does not hold"), "{said}");
    let drawn = folder.ok(&["wayleave-lab", "graph", "--text", &example("demo.toml")]);
    assert!(drawn.starts_with("a  gateway of 10.0.1.0/24, fd00:1::/64\n├─ w1  provider\n"), "{drawn}");
    let drawn = folder.ok(&["wayleave-lab", "graph", "--text", &example("egress.toml")]);
    assert!(drawn.starts_with("gold  stamps to 203.0.113.0/24 with east\n├─ in\n└─ h1  host 192.0.2.10\n"), "{drawn}");
    assert!(drawn.contains("├─ east, cost 10\n") && drawn.contains("└─ keys  key server 198.51.100.53\n"), "{drawn}");
    let said = folder.fails(1, &["wayleave-lab", "status", "--dir", "nowhere"]);
    assert!(said.contains("no laboratory in nowhere") && said.contains("wayleave-lab up FILE"), "{said}");
}
