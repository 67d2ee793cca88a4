//! Alice-LG, built from its Go module, shows what a member's proxy answers in birdwatcher's words.
//!
//! OPS, looking glass: Alice-LG with the guide's configuration beside a running exchange: its API has the members, a member's
//! routes, and finds a prefix.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use wayleave_lab::demo::http::get_json;
use wayleave_lab::netns::{NetworkNamespace, skipped};
use wayleave_lab::process::Daemon;
use wayleave_lab::table::Announcement;

use crate::guide::snippets;
use crate::members::{PREFIX, eventually, exchange, has, start};

/// The module, at the version with which the guide was compared. Its tags have no `v`.
const MODULE: &str = "github.com/alice-lg/alice-lg@6.1.0";
/// What the guide has.
const PROXY: &str = "127.0.0.1:8482";
const LISTEN: &str = "127.0.0.1:7340";

fn run(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("{:?}: {error}", command.get_program()))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(said);
    }
    Err(format!("{command:?}: {said}{}", String::from_utf8_lossy(&output.stderr)))
}

/// The program, built in a folder from a copy of the module, with a page in the place of its front end, which is not in the module.
fn build(folder: &Path) -> Result<PathBuf, String> {
    let (program, copy) = (folder.join("alice-lg"), folder.join("src"));
    if program.exists() {
        return Ok(program);
    }
    fs::create_dir_all(folder).map_err(|error| error.to_string())?;
    let said = run(Command::new("go").current_dir(folder).args(["mod", "download", "-json", MODULE]))?;
    let said: Value = serde_json::from_str(&said).map_err(|error| format!("{error}: {said}"))?;
    let module = said["Dir"].as_str().ok_or_else(|| said.to_string())?;
    let _ = fs::remove_dir_all(&copy);
    run(Command::new("cp").arg("-r").arg(module).arg(&copy))?;
    run(Command::new("chmod").args(["-R", "u+w"]).arg(&copy))?;
    let page = copy.join("ui/build");
    let written = fs::create_dir_all(&page).and_then(|()| fs::write(page.join("index.html"), "<!DOCTYPE html>\n"));
    written.map_err(|error| error.to_string())?;
    let mut build = Command::new("nice");
    build.current_dir(&copy).args(["go", "build", "-o"]).arg(&program).arg("./cmd/alice-lg");
    run(&mut build)?;
    Ok(program)
}

#[test]
#[ignore = "builds Alice-LG, where go reaches its module"]
fn alice_lg_shows_what_a_member_received() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("alice-lg");
    let program = match build(&folder) {
        Ok(program) => program,
        Err(why) => return skipped(&format!("Alice-LG cannot be built here: {why}")),
    };
    let mut exchange = exchange("alice");
    let names = [0, 1].map(|member: usize| exchange.members[member].at.name.clone());
    let configuration = exchange.files.member(&names[1]);
    let text = fs::read_to_string(&configuration).expect("a configuration");
    fs::write(&configuration, text.replace("[status]\n", "[status]\nbirdwatcher = true\n")).expect("written");
    start(&mut exchange, &[0, 1]);
    exchange.announce(&names[0], &[Announcement::of(PREFIX.parse().expect("a prefix"))]).expect("taken");
    eventually("the other member has the route", &mut exchange, |exchange| has(exchange, 1));

    let blocks = snippets("looking-glass.md", "text");
    let block = blocks.iter().find(|block| block.contains("[source.wayleave-v4]")).expect("the guide has one");
    assert!(block.contains(PROXY) && block.contains(LISTEN), "{block}");
    let own = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a free port");
    let proxy = exchange.members[1].at.proxy.status;
    let file = folder.join("alice.conf");
    let text = block.replace(PROXY, &proxy.to_string()).replace(LISTEN, &own.to_string());
    fs::write(&file, text).expect("written");
    let log = folder.join("log");
    let _ = fs::remove_file(&log);
    let alice = Daemon::start(Command::new(&program).arg("-config").arg(&file), &log).expect("started");
    let ask = |path: &str| get_json(&NetworkNamespace::Own, own, &format!("/api/v1/{path}")).unwrap_or_default();
    let mut last = Value::Null;
    let mut shows = |path: &str, what: &dyn Fn(&Value) -> bool| {
        eventually(path, &mut exchange, |_| {
            last = ask(path);
            what(&last)
        });
        last.clone()
    };
    shows("routeservers", &|found| found["routeservers"][0]["id"] == "wayleave-v4");
    shows("routeservers/wayleave-v4/status", &|found| found["status"]["message"] == "Daemon is up and running");
    let found = shows("routeservers/wayleave-v4/neighbors", &|found| found["neighbors"][0]["id"] == "R0");
    let first = &found["neighbors"][0];
    assert_eq!((&first["description"], &first["state"]), (&names[0].as_str().into(), &"up".into()), "{found}");
    assert_eq!((&first["routes_accepted"], &first["routes_filtered"]), (&1.into(), &0.into()), "{found}");
    let of_first = "routeservers/wayleave-v4/neighbors/R0/routes";
    let found = shows(&format!("{of_first}/received"), &|found| found["imported"][0]["network"] == PREFIX);
    assert_eq!(found["imported"][0]["primary"], true, "{found}");
    let found = ask(&format!("{of_first}/filtered"));
    assert!(found["filtered"].as_array().is_none_or(Vec::is_empty) && found["api"].is_object(), "{found}");
    let found =
        shows(&format!("lookup/prefix?q={PREFIX}"), &|found| found["imported"]["routes"][0]["network"] == PREFIX);
    assert_eq!(found["imported"]["routes"][0]["neighbor"]["id"], "R0", "{found}\n{}", alice.log_tail(20));
}
