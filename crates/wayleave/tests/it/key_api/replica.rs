//! A replica answers what is read, and refuses changes with the name of the writer.

use std::fs;

use serde_json::{Value, json};
use wayleave_control::capability::InvitationLine;
use wayleave_runtime::api_tls::KeyPin;
use wayleave_runtime::clock::unix_now;

use super::description::redemption;
use super::world::World;
use crate::common::{eventually, free};
use crate::overlay::harness::Running;

#[test]
fn a_replica_reads_and_refuses_every_change_and_names_the_writer() {
    let links = free();
    let mut writer = World::with(
        "replica",
        &format!("[key.routers]\nlisten = \"{links}\"\nidentity = \"identity.key\"\nusage = \"usage\"\n"),
    );
    let folder = &writer.folder;
    fs::create_dir(folder.0.join("replica")).expect("a folder");
    let public = |file: &str| {
        let shown: Value = serde_json::from_str(&folder.ok(&["keys", "show", file, "--json"])).expect("JSON");
        shown["public"].as_str().expect("a key").to_owned()
    };
    folder.ok(&["keys", "node", "replica/identity.key", "--kind", "identity"]);
    folder.ok(&["keys", "new", "replica/api.key"]);
    let (own, of_replica) = (public("server/identity.key"), public("replica/identity.key"));
    let path = folder.0.join("server/key.toml");
    let first = fs::read_to_string(&path).expect("there");
    fs::write(&path, first.clone() + &format!("[[key.replica]]\nidentity = \"{of_replica}\"\n")).expect("written");
    writer.running.kill();
    for file in ["accounts.key", "records"] {
        fs::copy(folder.0.join("server").join(file), folder.0.join("replica").join(file)).expect("copied");
    }
    let [listen, status, api, routers] = [free(), free(), free(), free()];
    let without = |line: &&str| !line.starts_with("writer_key") && !line.starts_with("revocations");
    let text: String = first.lines().filter(without).map(|line| line.to_owned() + "\n").collect();
    let text = text.replace(&writer.listen, &listen).replace(&writer.running.page, &status);
    let text = text.replace(&writer.api, &api).replace(&links, &routers);
    let follow = format!(
        "[key.follow]\nidentity = \"identity.key\"\nserver = {{ identity = \"{own}\", address = \"{links}\" }}\n"
    );
    folder.write("replica/key.toml", &(text + &follow));
    folder.ok(&["check", "replica/key.toml"]);
    writer.running.resume();
    let replica = Running::start("replica", folder.0.join("replica"), "key", &status);
    eventually("the replica is connected", || replica.status("following")["connected"] == true);
    let invited = json!({ "principal": 7, "name": "customer", "waypoints": ["198.51.100.1"] });
    let invited = writer.done("POST", "/v1/invitations", Some(&invited));
    let line: InvitationLine = invited["invitation"].as_str().expect("a line").parse().expect("an invitation");
    eventually("the replica has it", || replica.counted("invitations", "open") == 1);
    // From here on requests go to the replica.
    let at_writer = std::mem::replace(&mut writer.api, api);
    let pin_of_writer = writer.pin;
    let log = replica.log();
    let pin = log.split("pin=").nth(1).and_then(|rest| rest.split_whitespace().next()).expect("a pin");
    writer.pin = pin.parse::<KeyPin>().expect("a pin");
    assert_ne!(writer.pin, pin_of_writer);
    assert_eq!(writer.done("GET", "/v1/server", None)["is_writer"], false);
    let number = replica.count("number");
    let refused = [
        ("POST", "/v1/accounts", json!({ "principal": 9, "name": "x" })),
        ("POST", "/v1/revocations", json!({ "entry": "7" })),
        ("POST", "/v1/redemptions", redemption(&line, 1, unix_now())),
    ];
    for (method, path, body) in refused {
        let answer = writer.call(Some(&writer.full), method, path, Some(&body));
        assert!(answer.is("replica"), "{path}: {answer:?}");
        let detail = answer.json()["detail"].as_str().expect("a text").to_owned();
        let of_writer = replica.status("writer").as_str().expect("a key").to_owned();
        assert!(detail.contains(&of_writer) && detail.contains(&links), "{detail}");
    }
    assert_eq!(replica.count("number"), number);
    (writer.api, writer.pin) = (at_writer, pin_of_writer);
    let answer = writer.call(None, "POST", "/v1/redemptions", Some(&redemption(&line, 1, unix_now())));
    assert_eq!(answer.status, 200, "{answer:?}");
    eventually("the replica follows", || replica.counted("invitations", "used") == 1 && replica.count("grants") == 1);
}
