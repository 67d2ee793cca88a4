//! The provider's commands from elsewhere: they do and say the same by the API as at the records.

use serde_json::Value;

use super::world::{WAYPOINT, World};
use crate::common::{eventually, free, text};

#[test]
fn a_providers_commands_do_the_same_by_the_api_as_at_the_records() {
    let routers = format!("[key.routers]\nlisten = \"{}\"\nidentity = \"identity.key\"\n", free());
    let world = World::with("remote", &routers);
    let (url, pin) = (format!("https://{}", world.api), world.pin.to_string());
    let at = |token: &'static str| ["--api", url.as_str(), "--token", token, "--pin", pin.as_str()];
    let full = at("full.token");
    let by_api = |command: &[&str]| world.folder.ok(&[command, &full].concat());
    let here = |command: &[&str]| world.folder.ok(&[command, &["--config", "server/key.toml"]].concat());
    // An account is opened, renamed, and left as it is. A grant renames none: the name would be another customer's.
    let grant = ["cap", "grant", "--principal", "7", "--waypoint", WAYPOINT];
    let first = by_api(&[&grant[..], &["--name", "customer"]].concat());
    world.folder.write("own.line", &first);
    world.folder.ok(&["cap", "lookup", "--line", "own.line", "--server", &world.listen]);
    for place in [&full[..], &["--config", "server/key.toml"]] {
        let said = world.folder.fails(1, &[&grant[..], &["--name", "other"], place].concat());
        assert!(said.contains("principal 7 has an account already, `customer`"), "{said}");
    }
    by_api(&["cap", "account", "7", "--name", "renamed"]);
    by_api(&[&grant[..], &["--prefix", "203.0.113.0/24", "--delegation", "3", "--name", "renamed"]].concat());
    assert_eq!(here(&grant), first, "the same capability by either way");
    assert_eq!(world.list(&[])["principals"][0]["name"], "renamed");
    // Sources are named at either place.
    let part = [&grant[..], &["--prefix", "203.0.113.0/24", "--delegation", "3"]].concat();
    let elsewhere = [&part[..], &["--sources", "192.0.2.0/24"]].concat();
    let own = ["--sources", "198.18.1.0/24,198.18.0.0/24", "--delegate-sources"];
    by_api(&[&grant[..], &own, &["own"]].concat());
    for place in [&full[..], &["--config", "server/key.toml"]] {
        let said = world.folder.fails(1, &[&elsewhere[..], place].concat());
        assert!(said.contains("a delegation's sources lie within those of its principal"), "{said}");
    }
    here(&[&grant[..], &["--delegate-sources", "any"]].concat());
    by_api(&elsewhere);
    let listed = here(&["cap", "list"]);
    let own = "\n  sources: 198.18.0.0/24, 198.18.1.0/24; delegations may name others\n";
    assert!(listed.contains(own) && listed.contains("\n  sources of delegation 3: 192.0.2.0/24\n"), "{listed}");
    here(&[&part[..], &["--any-source"]].concat());
    by_api(&[&grant[..], &["--any-source", "--delegate-sources", "own"]].concat());
    let listed = here(&["cap", "list"]);
    let none = "\n  sources: any\n  sources of delegation 3: those of its principal\n";
    assert!(listed.contains(none), "{listed}");
    by_api(&["cap", "revoke", "7/3", "8", "9/1/2"]);
    by_api(&["cap", "revoke", "8", "--lift"]);
    for more in [&[][..], &["--json"], &["--principal", "7"], &["--principal", "7", "--json"], &["--principal", "8"]] {
        eventually("both have all changes", || {
            by_api(&[&["cap", "list"], more].concat()) == here(&[&["cap", "list"], more].concat())
        });
    }
    // Rates are set at either place, listed alike, and ended.
    by_api(&["cap", "rate", "7", "1000000"]);
    here(&["cap", "rate", "7", "5000", "--delegation", "3", "--burst", "2000", "--offline", "floor"]);
    for more in [&[][..], &["--json"], &["7", "--delegation", "3"]] {
        eventually("both have all rates", || {
            by_api(&[&["cap", "rate"], more].concat()) == here(&[&["cap", "rate"], more].concat())
        });
    }
    by_api(&["cap", "rate", "7", "--delegation", "3", "--end"]);
    here(&["cap", "rate", "7", "--end"]);
    assert_eq!(by_api(&["cap", "rate"]), "no rates over all routers\n");
    world.folder.fails(1, &[&["cap", "rate", "7", "--end"], &full[..]].concat());
    let line = by_api(&["cap", "invite", "--name", "third", "--principal", "9", "--waypoint", WAYPOINT]);
    world.folder.write("third.invitation", &line);
    assert_eq!(by_api(&["cap", "invitations"]), here(&["cap", "invitations"]));
    world.folder.ok(&["cap", "accept", "--line", "third.invitation"]);
    let again = ["cap", "invite", "--name", "x", "--principal", "9", "--waypoint", WAYPOINT];
    for place in [&full[..], &["--config", "server/key.toml"]] {
        let said = world.folder.fails(1, &[&again[..], place].concat());
        assert!(said.contains("principal 9 has an account already") && said.contains("--again"), "{said}");
    }
    let second = by_api(&[&again[..], &["--again", "--json"]].concat());
    let second: Value = serde_json::from_str(&second).expect("JSON");
    by_api(&["cap", "invitations", "--withdraw", second["id"].as_str().expect("an ID")]);
    assert_eq!(by_api(&["cap", "invitations", "--json"]), here(&["cap", "invitations", "--json"]));
    for by in ["principal", "delegation", "epoch", "router"] {
        for form in [&[][..], &["--csv"], &["--json"]] {
            let command = [&["cap", "usage", "--by", by, "--from", "2026-01-01"], form].concat();
            assert_eq!(by_api(&command), here(&command), "{by} {form:?}");
        }
    }
    // Each change says why, wherever it was made, and both places show the same trail.
    by_api(&["cap", "revoke", "8/5", "--reason", "contract 2026-117, § 4"]);
    by_api(&["cap", "rate", "7", "7000", "--reason", "more was paid for"]);
    here(&["cap", "revoke", "8/5", "--lift", "--reason", "it was paid"]);
    for more in [&[][..], &["--json"], &["--after", "2"], &["--after", "2", "--most", "3", "--json"], &["--most", "2"]]
    {
        let command = [&["cap", "changes"], more].concat();
        assert_eq!(by_api(&command), here(&command), "{more:?}");
    }
    let trail: Value = serde_json::from_str(&by_api(&["cap", "changes", "--most", "3", "--json"])).expect("JSON");
    let said = trail["changes"].as_array().expect("changes").iter();
    let said: Vec<[&str; 3]> =
        said.map(|of| ["by", "what", "reason"].map(|name| of[name].as_str().expect("a text"))).collect();
    assert_eq!(said[0], ["operator", "revoked: 8/5", "contract 2026-117, § 4"]);
    assert_eq!((said[1][0], said[1][2]), ("operator", "more was paid for"));
    assert!(said[2][0].starts_with("user ") && said[2][2] == "it was paid", "{said:?}");
    let long = "x".repeat(201);
    for reason in ["two\nlines", long.as_str()] {
        let command = [&["cap", "revoke", "8", "--reason", reason], &full[..]].concat();
        assert!(world.folder.fails(2, &command).contains("expected at most 200 octets"), "{reason}");
    }
    for header in [format!("Wayleave-Reason: {long}"), "Wayleave-Reason: a\r\nWayleave-Reason: b".to_owned()] {
        let head = format!("Authorization: Bearer {}\r\n{header}\r\n", world.full);
        let answer = world.request("POST", "/v1/revocations", &head, "{\"entry\":\"8/6\"}").expect("an answer");
        assert!(answer.status == 400 && answer.body.contains("Wayleave-Reason"), "{}", answer.body);
    }
    // An account is opened by mistake, gets other keys, loses a grant, and is closed; at either place.
    for (place, principal) in [(&full[..], "70"), (&["--config", "server/key.toml"], "71")] {
        let of = |command: &[&str]| world.folder.run(&[&["cap", "account", principal], command, place].concat());
        let says = |command: &[&str]| {
            let output = of(&[command, &["--json"]].concat());
            assert!(output.status.success(), "{command:?}: {}", text(&output.stderr));
            serde_json::from_str::<Value>(&text(&output.stdout)).expect("JSON")
        };
        for command in [&["--close"][..], &["--replace-keys"], &["--withdraw", "0011223344556677"]] {
            assert_eq!(of(command).status.code(), Some(1), "{command:?}: it has no account");
        }
        let opened = of(&["--price", "x"]);
        assert!(text(&opened.stderr).contains("had no account: one without a name was opened"), "{opened:?}");
        let grant = [&["cap", "grant", "--principal", principal, "--waypoint", WAYPOINT], place].concat();
        let (before, generation) = (world.folder.ok(&grant), says(&[])["generation"].as_u64());
        assert!(says(&["--replace-keys", "--name", "again"])["generation"].as_u64() > generation);
        assert_ne!(world.folder.ok(&grant), before, "the line of before has ended");
        let listed: Value =
            serde_json::from_str(&here(&["cap", "list", "--principal", principal, "--json"])).expect("JSON");
        let id = listed["principals"][0]["waypoints"][0]["grants"][0]["id"].as_str().expect("an ID").to_owned();
        let ended = says(&["--withdraw", &id]);
        assert!(ended["withdrawn"] == *id && ended["ended"] == serde_json::json!([]), "{ended}");
        assert_eq!(says(&["--close"])["closed"].to_string(), principal);
        eventually("nobody has it", || here(&["cap", "list", "--principal", principal]).contains("has no account"));
    }
    // What the token or the pin does not allow.
    let refused = |command: &[&str], code: i32, why: &str| {
        let output = world.folder.run(command);
        let said = text(&output.stderr).split_whitespace().filter(|word| *word != "│").collect::<Vec<_>>().join(" ");
        assert!(output.status.code() == Some(code) && said.contains(why), "{command:?}: {said}");
    };
    let number = world.running.count("number");
    let read = at("read.token");
    world.folder.ok(&[&["cap", "list"], &read[..]].concat());
    refused(&[&grant[..], &["--interval", "16"], &read].concat(), 1, "this token is for `read`");
    let other = format!("spki:sha256:{}", "00".repeat(32));
    let other = ["--api", url.as_str(), "--token", "full.token", "--pin", &other];
    refused(&[&["cap", "list"], &other[..]].concat(), 1, "another server answers there");
    refused(&["cap", "list", "--api", &url], 2, "--token");
    // Another secret stays here.
    world.folder.ok(&["keys", "token", "line.token"]);
    std::fs::write(world.folder.0.join("line.token"), &first).expect("written");
    refused(&[&["cap", "list"], &at("line.token")[..]].concat(), 1, "has the line of a capability, which is secret");
    refused(&["cap", "list"], 2, "--config");
    refused(&["cap", "revoke", "7"], 2, "no key server given");
    refused(&[&["cap", "revoke"], &full[..]].concat(), 2, "nothing to revoke");
    refused(&[&["cap", "list", "--config", "server/key.toml"], &full[..]].concat(), 2, "cannot be used with");
    assert_eq!(world.running.count("number"), number);
}
