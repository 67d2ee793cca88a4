//! A stamper that is given lines of capabilities and looks their secrets up by DNS, at a key server of its own.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use wayleave_lab::netns;

use super::world::{PRINCIPALS, World, balance, text};
use crate::router::common::{Router, eventually};
use crate::router::platypus::{LAST, WAYPOINTS};

/// Key epochs of sixteen seconds.
const INTERVAL: &str = "4";

impl World {
    fn ok(&self, line: &[&str]) -> String {
        let output = self.folder.run(line);
        assert!(output.status.success(), "{line:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    /// A key server for both waypoints on the web server's machine, port 53.
    fn key_server(&self) -> Router {
        let listen = format!("{LAST}:53");
        let zone = ["--zone", "keys.example.net", "--name-server", "ns1.example.net"];
        self.ok(&[&["cap", "init", "server", "--listen", &listen, "--status", "127.0.0.1:1"], &zone[..]].concat());
        let mut config = fs::read_to_string(self.folder.0.join("server/key.toml")).expect("there");
        config.truncate(config.find("[status]").expect("a section"));
        for file in ["accounts.key", "writer.key", "records", "revoked"] {
            config = config.replace(&format!("\"{file}\""), &format!("\"server/{file}\""));
        }
        for (which, address) in WAYPOINTS.into_iter().enumerate() {
            config += &format!("[[key.waypoint]]\naddress = \"{address}\"\nkey = \"{which}.key\"\n");
        }
        Router::start_role("key", &self.folder, "key", self.site.server.clone(), &config)
    }

    /// Grants what pays at one waypoint, as a line in a file that its owner alone reads.
    fn grant(&self, which: usize) {
        let (waypoint, principal) = (WAYPOINTS[which].to_string(), PRINCIPALS[which].to_string());
        let of = ["--waypoint", &waypoint, "--principal", &principal, "--interval", INTERVAL];
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
    if netns::enter_for_test(name).is_none() {
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
    let asked = stamper.count("lookups", "failed") + found();
    assert!(keys.count("answers", "secrets") <= asked, "{}", keys.status());
    balance(&world);

    // A capability that the provider revokes: the next look-up says so.
    world.ok(&["cap", "revoke", &PRINCIPALS[1].to_string(), "--config", "key.toml"]);
    eventually("its holder learns it", || problems().contains("1.line") && problems().contains("revoked"));
    assert!(!problems().contains("0.line"), "{}", problems());
}
