//! A stamper that is given lines of capabilities and looks their secrets up by DNS, at a key server of its own.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use wayleave_runtime::clock::unix_now;

use super::world::{self, PRINCIPALS, World, balance, body, text};
use crate::router::common::{Router, eventually};
use crate::router::platypus::{LAST, WAYPOINTS};

/// Key epochs of sixteen seconds.
const INTERVAL: &str = "4";

/// The key epoch of [`INTERVAL`] now.
fn epoch() -> u64 {
    unix_now().secs() >> 4
}

impl World {
    fn ok(&self, line: &[&str]) -> String {
        let output = self.folder.run(line);
        assert!(output.status.success(), "{line:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    /// A key server for both waypoints on the web server's machine, port 53.
    pub(super) fn key_server(&self) -> Router {
        self.key_server_named("{ name = \"ns1.example.net\", addresses = [] }")
    }

    /// The same, with this name server in its zone.
    pub(super) fn key_server_named(&self, name_server: &str) -> Router {
        let listen = format!("{LAST}:53");
        let zone = ["--zone", "keys.example.net", "--name-server", "ns1.example.net"];
        self.ok(&[&["cap", "init", "server", "--listen", &listen, "--status", "127.0.0.1:1"], &zone[..]].concat());
        let mut config = fs::read_to_string(self.folder.0.join("server/key.toml")).expect("there");
        config.truncate(config.find("[status]").expect("a section"));
        config = config.replace("{ name = \"ns1.example.net\", addresses = [] }", name_server);
        for file in ["accounts.key", "writer.key", "accounts.db", "revoked"] {
            config = config.replace(&format!("\"{file}\""), &format!("\"server/{file}\""));
        }
        for (which, address) in WAYPOINTS.into_iter().enumerate() {
            config += &format!("[[key.waypoint]]\naddress = \"{address}\"\nkey = \"{which}.key\"\n");
        }
        Router::start_role("key", &self.folder, "key", self.site.server.clone(), &config)
    }

    /// Grants what pays at one waypoint, as a line in a file that its owner alone reads.
    pub(super) fn grant(&self, which: usize) {
        self.grant_with(which, INTERVAL);
    }

    /// The same, with key epochs of this length.
    fn grant_with(&self, which: usize, interval: &str) {
        let (waypoint, principal) = (WAYPOINTS[which].to_string(), PRINCIPALS[which].to_string());
        let of = ["--waypoint", &waypoint, "--principal", &principal, "--interval", interval];
        let line = self.ok(&[&["cap", "grant", "--config", "key.toml"], &of[..]].concat());
        let file = format!("{which}.line");
        self.folder.write(&file, &line);
        let owners = fs::Permissions::from_mode(0o600);
        fs::set_permissions(self.folder.0.join(file), owners).expect("mode");
    }
}

#[test]
fn secrets_are_looked_up_by_lines_and_renewed_and_an_absence_of_the_key_server_is_bridged() {
    let name =
        "stamping::looked_up::secrets_are_looked_up_by_lines_and_renewed_and_an_absence_of_the_key_server_is_bridged";
    if world::enter(name).is_none() {
        return;
    }
    let world = World::start("stamping-looked-up", false);
    let mut keys = world.key_server();
    (0..2).for_each(|which| world.grant(which));
    let config = format!(
        "[host]\nresolvers = [\"{LAST}\"]\n[stamper]\n\
         routes = [{{ name = \"paid\", capabilities = [\"0.line\", \"1.line\"] }}]\n\
         rules = [{{ to = \"203.0.113.0/24\", route = \"paid\" }}]\n"
    );
    // The key server is away: packets leave as ever, and the operator reads why.
    keys.kill();
    let stamper = Router::start_role("stamper", &world.folder, "stamper", world.site.stamping.clone(), &config);
    let problems = || stamper.status()["problems"].to_string();
    assert_eq!(world.fetch(None), [0, 0], "not a packet is stamped without a secret");
    eventually("it is said what is missing", || problems().contains("no server answered"));
    let why = text(&stamper.show(&["why", &LAST.to_string()]).stdout);
    assert!(why.contains("leaves without a stamp: route paid: the secret of"), "{why}");

    // It comes up, and both secrets are there without anybody's doing.
    keys.start_process();
    eventually("both secrets are found", || problems() == "[]");
    let [first, second] = world.fetch(None);
    assert!(first > 10 && first == second, "{first} {second} {}", stamper.status());
    balance(&world);

    // Over the ends of key epochs: each secret is looked up once, and no packet leaves without a stamp.
    let found = || stamper.count("lookups", "found");
    let (before, without) = (found(), stamper.count("left", "epoch"));
    eventually("two more epochs of both", || {
        let [first, second] = world.fetch(None);
        assert!(first > 10 && first == second, "{first} {second} {}", stamper.status());
        found() >= before + 4
    });
    assert_eq!(stamper.count("left", "epoch"), without);
    assert!(keys.count("answers", "secrets") >= 4, "{}", keys.status());
    balance(&world);

    // A capability that the provider revokes: the next look-up says so.
    world.ok(&["cap", "revoke", &PRINCIPALS[1].to_string(), "--config", "key.toml"]);
    eventually("its holder learns it", || problems().contains("1.line") && problems().contains("revoked"));
    assert!(!problems().contains("0.line"), "{}", problems());
}

#[test]
fn a_user_registers_lines_and_its_packets_are_stamped_once_these_are_looked_up() {
    let name = "stamping::looked_up::a_user_registers_lines_and_its_packets_are_stamped_once_these_are_looked_up";
    if world::enter(name).is_none() {
        return;
    }
    let world = World::start("stamping-lines", false);
    let mut keys = world.key_server();
    (0..2).for_each(|which| world.grant(which));
    let config =
        format!("[host]\nresolvers = [\"{LAST}\"]\nsocket = \"stamper.sock\"\n[stamper]\nroutes = []\nrules = []\n");
    let stamper = Router::start_role("stamper", &world.folder, "stamper", world.site.stamping.clone(), &config);
    let forwarded = || [world.forwarded(0), world.forwarded(1)];
    let stamp = |program: &[&str]| {
        let mut command = world.site.client.command(env!("CARGO_BIN_EXE_wayleave"));
        command.args(["stamp", "--socket", "stamper.sock", "--to", "203.0.113.0/24"]);
        command.args(["--capability", "0.line", "--capability", "1.line", "--"]).args(program);
        world.with_curl(&mut command).current_dir(&world.folder.0).env("NO_COLOR", "1").output().expect("it runs")
    };
    let url = format!("http://{LAST}/");
    let curl = ["curl", "--silent", "--show-error", "--max-time", "20", &url];

    // The key server reads its records again now and then: the grants are a moment old.
    let began = epoch();
    let mut output = None;
    eventually("the page comes", || {
        let tried = stamp(&curl);
        let is_there = tried.status.success();
        output = Some(tried);
        is_there
    });
    assert!(output.is_some_and(|output| output.stdout == body()));
    balance(&world);
    eventually("both waypoints forwarded the same", || forwarded()[0] == forwarded()[1]);
    let [first, _] = forwarded();
    assert!(first > 10, "{first}");
    // Of each epoch, and of the one that comes next.
    let looked_up = stamper.count("lookups", "found");
    let most = 2 * (epoch() - began + 2);
    assert!((2..=most).contains(&looked_up), "each secret was looked up once an epoch: {}", stamper.status());
    eventually("with the command's end the registration ends", || stamper.status()["rules"] == 0);

    // While it is registered, secrets of the next key epochs are looked up too: twenty seconds pass over an end at least.
    let script = format!("curl -so page {url} && sleep 20 && curl -so page {url}");
    let output = stamp(&["sh", "-c", &script]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    eventually("both waypoints forwarded the same", || forwarded()[0] == forwarded()[1] && forwarded()[0] - first > 20);
    assert!(keys.count("answers", "secrets") >= 6, "{}", keys.status());
    assert_eq!(stamper.count("left", "epoch"), 0);

    // A command that sends nothing there is told so, and keeps its exit code.
    eventually("it is told that nothing was stamped", || {
        let output = stamp(&["false"]);
        assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
        // The last packets of the connection before may still leave.
        text(&output.stderr).contains("no packet was stamped: nothing went to 203.0.113.0/24")
    });

    // What cannot be looked up is refused with the reason, and the command is not run.
    world.ok(&["cap", "revoke", &PRINCIPALS[1].to_string(), "--config", "key.toml"]);
    eventually("the key server has it", || text(&stamp(&["true"]).stderr).contains("revoked"));
    assert!(text(&stamp(&["touch", "ran"]).stderr).contains("revoked"));
    keys.kill();
    let output = stamp(&["touch", "ran"]);
    assert!(text(&output.stderr).contains("no server answered"), "{}", text(&output.stderr));
    assert!(!world.folder.0.join("ran").exists());
    assert_eq!(stamper.status()["rules"], 0);
}

#[test]
fn a_revoked_customer_is_told_so_by_stamp_and_by_why_and_not_by_a_timeout() {
    let name = "stamping::looked_up::a_revoked_customer_is_told_so_by_stamp_and_by_why_and_not_by_a_timeout";
    if world::enter(name).is_none() {
        return;
    }
    let world = World::start("stamping-revoked", false);
    let keys = world.key_server();
    // Key epochs of an hour and more: none begins during the test.
    (0..2).for_each(|which| world.grant_with(which, "12"));
    let config = format!(
        "[host]\nresolvers = [\"{LAST}\"]\nsocket = \"stamper.sock\"\n[stamper]\n\
         routes = [{{ name = \"paid\", capabilities = [\"0.line\", \"1.line\"] }}]\n\
         rules = [{{ to = \"203.0.113.0/24\", route = \"paid\" }}]\n"
    );
    let stamper = Router::start_role("stamper", &world.folder, "stamper", world.site.stamping.clone(), &config);
    let why = || text(&stamper.show(&["why", &LAST.to_string()]).stdout);
    eventually("both secrets are found", || why().contains("is stamped for route paid; the key server answered at 2"));
    let stamp = |program: &[&str]| {
        let mut command = world.site.client.command(env!("CARGO_BIN_EXE_wayleave"));
        command.args(["stamp", "--socket", "stamper.sock", "--to", "203.0.113.0/24"]);
        command.args(["--capability", "0.line", "--capability", "1.line", "--"]).args(program);
        command.current_dir(&world.folder.0).env("NO_COLOR", "1").output().expect("it runs")
    };
    assert!(stamp(&["true"]).status.success());
    world.ok(&["cap", "revoke", &PRINCIPALS[0].to_string(), "--config", "key.toml"]);
    eventually("why says so", || why().contains("the capability is revoked; ask the provider"));
    assert!(why().contains("leaves without a stamp: route paid"), "{}", why());
    let output = stamp(&["touch", "ran"]);
    let said = text(&output.stderr).replace('│', " ").split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains("the capability is revoked; ask the provider") && said.contains("asked for at 20"), "{said}");
    assert!(output.status.code() == Some(1) && !world.folder.0.join("ran").exists());
    assert!(keys.count("answers", "revoked") >= 1, "{}", keys.status());
}
