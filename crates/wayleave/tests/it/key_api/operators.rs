//! What an operator does by the API: it counts when it is answered, beside commands that do the same.

use std::fs;
use std::thread;

use serde_json::{Value, json};
use wayleave_control::capability::InvitationLine;
use wayleave_runtime::api_tls::KeyPin;

use super::world::{WAYPOINT, World};
use crate::common::{eventually, text};

fn line_of(world: &World, file: &str, granted: &Value) {
    world.folder.write(file, granted["capability"].as_str().expect("a line"));
}

#[test]
fn an_account_is_opened_renamed_given_other_keys_and_closed_and_old_lines_end_with_it() {
    let mut world = World::new("accounts");
    let account = world.done("POST", "/v1/accounts", Some(&json!({ "principal": 7, "name": "customer" })));
    assert_eq!(account["grants"], 0);
    let again = world.call(Some(&world.full), "POST", "/v1/accounts", Some(&json!({ "principal": 7, "name": "x" })));
    assert!(again.is("conflict"), "{again:?}");
    let order = json!({ "principal": 7, "waypoint": WAYPOINT });
    let first = world.done("POST", "/v1/grants", Some(&order));
    line_of(&world, "first.line", &first);
    let look_up = |file: &str| world.folder.run(&["cap", "lookup", "--line", file, "--server", &world.listen]);
    assert!(look_up("first.line").status.success());
    // It is on the disk when it is answered.
    world.running.kill();
    world.running.resume();
    let tree = world.done("GET", "/v1/accounts/7", None);
    assert_eq!(tree["waypoints"][0]["grants"][0]["id"], first["id"]);
    let renamed = world.done("PATCH", "/v1/accounts/7", Some(&json!({ "name": "new name" })));
    assert_eq!((&renamed["name"], &renamed["generation"]), (&json!("new name"), &account["generation"]));
    assert!(world.folder.run(&["cap", "lookup", "--line", "first.line", "--server", &world.listen]).status.success());
    let number = world.running.count("number");
    world.done("PATCH", "/v1/accounts/7", Some(&json!({ "name": "new name" })));
    assert_eq!(world.running.count("number"), number, "what is so already is no change");
    let replaced = world.done("PATCH", "/v1/accounts/7", Some(&json!({ "replace_keys": true })));
    assert!(replaced["generation"].as_u64() > account["generation"].as_u64());
    let fails = |file: &str| {
        let output = world.folder.run(&["cap", "lookup", "--line", file, "--server", &world.listen]);
        assert!(text(&output.stderr).contains("does not know the capability"), "{}", text(&output.stderr));
    };
    fails("first.line");
    let second = world.done("POST", "/v1/grants", Some(&order));
    line_of(&world, "second.line", &second);
    world.done("DELETE", &format!("/v1/grants/7/{}", second["id"].as_str().expect("an ID")), None);
    fails("second.line");
    world.done("POST", "/v1/grants", Some(&order));
    // Rates over all routers: what is set twice is no change, and they end with the account.
    let rate = json!({ "principal": 7, "octets_per_second": 1_000_000 });
    let set = world.done("PUT", "/v1/rates", Some(&rate));
    assert_eq!(world.done("PUT", "/v1/rates", Some(&rate))["number"], set["number"]);
    let of_delegation = json!({
        "principal": 7, "delegation": 3, "octets_per_second": 5_000, "burst_octets": 2_000, "offline": "floor",
    });
    world.done("PUT", "/v1/rates", Some(&of_delegation));
    let rates = || world.done("GET", "/v1/rates", None)["rates"].clone();
    assert_eq!((&rates()[1], rates().as_array().map(Vec::len)), (&of_delegation, Some(2)));
    world.done("DELETE", "/v1/rates?principal=7&delegation=3", None);
    let refused = |method: &str, path: &str, body: Option<&Value>, kind: &str| {
        let answer = world.call(Some(&world.full), method, path, body);
        assert!(answer.is(kind), "{answer:?}");
    };
    refused("DELETE", "/v1/rates?principal=7&delegation=3", None, "not-found");
    refused("PUT", "/v1/rates", Some(&json!({ "principal": 99, "octets_per_second": 1 })), "not-found");
    for (key, value) in
        [("octets_per_second", 0_u64), ("octets_per_second", 1 << 41), ("burst_octets", 0), ("burst_octets", 1_499)]
    {
        let mut wrong = rate.clone();
        wrong[key] = value.into();
        refused("PUT", "/v1/rates", Some(&wrong), "request");
    }
    world.done("DELETE", "/v1/accounts/7", None);
    assert_eq!(rates(), json!([]));
    fails("second.line");
    // As long as what was looked up may be good, the number is given to nobody; whoever closed it by mistake lifts its revocations.
    let another = json!({ "principal": 7, "name": "another" });
    let lift = || {
        let revoked = world.done("GET", "/v1/revocations", None);
        let entries = revoked["revocations"].as_array().cloned().unwrap_or_default();
        assert_eq!(entries.len(), 3, "{revoked}");
        for entry in entries.iter().filter_map(serde_json::Value::as_str) {
            world.done("DELETE", &format!("/v1/revocations?entry={entry}"), None);
        }
    };
    let refused = world.call(Some(&world.full), "POST", "/v1/accounts", Some(&another));
    let said = refused.json().to_string();
    assert!(refused.status == 409 && said.contains("its number may be given again"), "{said}");
    let grant = ["cap", "grant", "--principal", "7", "--waypoint", WAYPOINT, "--config", "server/key.toml"];
    let at_the_machine = world.folder.run(&grant);
    assert!(text(&at_the_machine.stderr).contains("its number may be given again"), "{}", text(&at_the_machine.stderr));
    lift();
    // Opened anew, neither by the API nor by a command do old lines return.
    world.done("POST", "/v1/accounts", Some(&another));
    world.done("POST", "/v1/grants", Some(&order));
    ["first.line", "second.line"].into_iter().for_each(fails);
    world.done("DELETE", "/v1/accounts/7", None);
    lift();
    world.folder.ok(&grant);
    eventually("the server follows", || world.running.count("grants") == 1);
    ["first.line", "second.line"].into_iter().for_each(fails);
}

#[test]
fn a_grant_that_is_put_again_changes_nothing_and_gives_its_line() {
    let world = World::new("put");
    world.done("POST", "/v1/accounts", Some(&json!({ "principal": 7, "name": "customer" })));
    let order = |ends: &str| json!({ "principal": 7, "waypoint": WAYPOINT, "ends": ends });
    let put = |ends: &str| world.done("PUT", "/v1/grants", Some(&order(ends)));
    let first = put("2100-01-01T00:00:00Z");
    line_of(&world, "put.line", &first);
    world.folder.ok(&["cap", "lookup", "--line", "put.line", "--server", &world.listen]);
    let (number, times) = (world.running.count("number"), |tree: &Value| {
        let grant = &tree["waypoints"][0]["grants"][0];
        (grant["from"].clone(), grant["until"].clone())
    });
    let before = times(&world.done("GET", "/v1/accounts/7", None));
    assert_eq!(first["ends"], "2100-01-01T00:00:00Z");
    assert_eq!(first["previous_ends"], Value::Null);
    let mut same = first.clone();
    same["previous_ends"] = same["ends"].clone();
    assert_eq!([put("2100-01-01T00:00:00Z"), put("2100-01-01T02:00:00+02:00")], [same.clone(), same]);
    assert_eq!(world.running.count("number"), number, "nothing has changed");
    let later = put("2100-01-01T00:00:01Z");
    assert_eq!((&later["capability"], &later["number"]), (&first["capability"], &json!(number + 1)));
    let after = times(&world.done("GET", "/v1/accounts/7", None));
    assert_eq!((&after.0, after.1.as_u64()), (&before.0, before.1.as_u64().map(|until| until + 1)), "its begin stays");
    let mut both = order("2100-01-01T00:00:00Z");
    both["days"] = json!(30);
    let none = json!({ "principal": 7, "waypoint": WAYPOINT });
    for wrong in [order("2020-01-01T00:00:00Z"), order("9999-01-01T00:00:00Z"), order("tomorrow"), both, none] {
        let answer = world.call(Some(&world.full), "PUT", "/v1/grants", Some(&wrong));
        assert!(answer.is("request"), "{wrong}: {answer:?}");
    }
    let of_nobody = json!({ "principal": 8, "waypoint": WAYPOINT, "ends": "2100-01-01T00:00:00Z" });
    assert!(world.call(Some(&world.full), "PUT", "/v1/grants", Some(&of_nobody)).is("not-found"));
    let post = |order: &Value| world.done("POST", "/v1/grants", Some(order));
    assert_eq!(post(&order("2099-01-01T00:00:00Z"))["ends"], "2099-01-01T00:00:00Z");
    // Without an end it is a question for the line.
    let number = world.running.count("number");
    let again = post(&json!({ "principal": 7, "waypoint": WAYPOINT }));
    assert_eq!((&again["ends"], &again["capability"]), (&json!("2099-01-01T00:00:00Z"), &first["capability"]));
    assert_eq!(world.running.count("number"), number);
}

#[test]
fn a_grant_names_sources_which_a_repeat_leaves_as_they_are() {
    let world = World::new("sources");
    world.done("POST", "/v1/accounts", Some(&json!({ "principal": 7, "name": "customer" })));
    let order = |more: Value| {
        let mut order = json!({ "principal": 7, "waypoint": WAYPOINT, "ends": "2100-01-01T00:00:00Z" });
        let fields = more.as_object().into_iter().flatten();
        fields.for_each(|(name, value)| order[name] = value.clone());
        order
    };
    let put = |more: Value| drop(world.done("PUT", "/v1/grants", Some(&order(more))));
    let post = |more: Value| world.call(Some(&world.full), "POST", "/v1/grants", Some(&order(more)));
    let sources = || world.done("GET", "/v1/accounts/7", None)["sources"].clone();
    put(json!({}));
    assert_eq!(sources(), json!([]));
    put(json!({ "sources": ["198.18.1.0/24", "198.18.0.0/24", "198.18.1.0/24"] }));
    let own =
        |which: &str, prefixes: &[&str]| json!({ "delegation": null, "prefixes": prefixes, "delegate_sources": which });
    let both = ["198.18.0.0/24", "198.18.1.0/24"];
    assert_eq!(sources(), json!([own("own", &both)]));
    let number = world.running.count("number");
    put(json!({ "sources": both, "delegate_sources": "own" }));
    put(json!({}));
    // Outside what its account may use nothing is granted.
    let part = |prefix: &str| json!({ "prefix": "203.0.113.0/24", "delegation": 3, "sources": [prefix] });
    assert!(post(part("192.0.2.0/24")).is("conflict"));
    assert_eq!((world.running.count("number"), sources()), (number, json!([own("own", &both)])));
    // Nor is anything else done of what is refused: key epochs of this length are not granted, and the sources stay.
    let long = json!({ "interval": 24, "sources": ["192.0.2.0/24"], "price": "gold", "ends": "2100-01-01T00:00:00Z" });
    assert!(post(long.clone()).is("conflict"));
    let refused = world.call(Some(&world.full), "PUT", "/v1/grants", Some(&order(long)));
    assert!(refused.is("conflict"), "{refused:?}");
    assert_eq!((world.running.count("number"), sources()), (number, json!([own("own", &both)])));
    assert_eq!(post(part("198.18.1.128/25")).status, 201);
    put(json!({ "delegate_sources": "any" }));
    assert_eq!(post(part("192.0.2.0/24")).status, 201);
    let of_part = json!({ "delegation": 3, "prefixes": ["192.0.2.0/24"], "delegate_sources": null });
    assert_eq!(sources(), json!([own("any", &both), of_part]));
    // They are named no more, which is known as long as the account is there.
    put(json!({ "sources": [], "delegate_sources": "own" }));
    assert_eq!(sources(), json!([own("own", &[]), of_part]));
    let many: Vec<String> = (0..17).map(|at| format!("198.18.{at}.0/24")).collect();
    let speaks_for_others = json!({ "prefix": "203.0.113.0/24", "delegation": 3, "delegate_sources": "any" });
    for wrong in [json!({ "sources": many }), json!({ "sources": ["198.18.0.0"] }), speaks_for_others] {
        assert!(post(wrong.clone()).is("request"), "{wrong}");
    }
    world.done("DELETE", "/v1/accounts/7", None);
    assert_eq!(world.running.count("sources"), 0);
}

#[test]
fn lists_have_what_their_filters_say_and_no_more() {
    let world = World::new("filters");
    let other = "198.51.100.2";
    for (principal, waypoint) in [(7, WAYPOINT), (8, other), (9, WAYPOINT)] {
        world.done("POST", "/v1/accounts", Some(&json!({ "principal": principal, "name": "" })));
        world.done("POST", "/v1/grants", Some(&json!({ "principal": principal, "waypoint": waypoint })));
        let expires = "2099-01-01T00:00:00Z";
        let invitation =
            json!({ "principal": principal, "name": "x", "waypoints": [waypoint], "again": true, "expires": expires });
        let made = world.done("POST", "/v1/invitations", Some(&invitation));
        if principal == 9 {
            world.done("DELETE", &format!("/v1/invitations/{}", made["id"].as_str().expect("an ID")), None);
        }
    }
    let listed = |path: &str, list: &str| {
        let page = world.done("GET", path, None);
        page[list].as_array().expect("a list").iter().map(|entry| entry["principal"].clone()).collect::<Vec<_>>()
    };
    let grants = |filter: &str| listed(&format!("/v1/grants?{filter}"), "principals");
    assert_eq!(grants(&format!("waypoint={WAYPOINT}")), [json!(7), json!(9)]);
    assert_eq!(grants("principal=8"), [json!(8)]);
    assert_eq!(grants(&format!("principal=8&waypoint={WAYPOINT}")).len(), 0);
    assert_eq!(grants("principal=10").len(), 0);
    let invitations = |filter: &str| listed(&format!("/v1/invitations?{filter}"), "invitations");
    assert_eq!(invitations("principal=8"), [json!(8)]);
    assert_eq!(invitations("principal=9&state=open").len(), 0);
    assert_eq!(invitations("principal=9&state=withdrawn"), [json!(9)]);
    assert_eq!(invitations("state=open").len(), 2);
    for wrong in ["/v1/invitations?state=lost", "/v1/grants?waypoint=x", "/v1/grants?principal=x"] {
        assert!(world.call(Some(&world.full), "GET", wrong, None).is("request"), "{wrong}");
    }
}

#[test]
fn what_was_delegated_ends_with_the_grant_and_answers_name_it() {
    let world = World::new("delegated");
    world.done("POST", "/v1/accounts", Some(&json!({ "principal": 7, "name": "customer" })));
    let order = |days: u64| json!({ "principal": 7, "waypoint": WAYPOINT, "days": days });
    let whole = world.done("POST", "/v1/grants", Some(&order(30)));
    let part = json!({ "prefix": "203.0.113.0/24", "delegation": 3, "principal": 7, "waypoint": WAYPOINT, "days": 30 });
    let branch = world.done("POST", "/v1/grants", Some(&part));
    line_of(&world, "branch.line", &branch);
    let look_up = || world.folder.run(&["cap", "lookup", "--line", "branch.line", "--server", &world.listen]);
    assert!(look_up().status.success());
    let named = json!([{ "id": branch["id"], "terms": branch["terms"] }]);
    // The grant lasts shorter than its delegation was made for, and once more no longer.
    let sooner = world.done("POST", "/v1/grants", Some(&order(10)));
    assert_eq!((&whole["shortened"], &sooner["shortened"]), (&json!([]), &named));
    let tree = world.done("GET", "/v1/accounts/7", None);
    let shown = &tree["waypoints"][0]["grants"][0]["delegations"][0];
    assert_eq!((&shown["id"], &shown["until"]), (&branch["id"], &sooner["until"]));
    let again = world.done("POST", "/v1/grants", Some(&order(20)));
    assert_eq!(again["shortened"], json!([]));
    assert!(look_up().status.success());
    // It is withdrawn, and its delegation with it.
    let path = format!("/v1/grants/7/{}", whole["id"].as_str().expect("an ID"));
    assert_eq!(world.done("DELETE", &path, None)["ended"], named);
    assert!(text(&look_up().stderr).contains("does not know the capability"));
    assert_eq!(world.running.count("grants"), 0);
}

#[test]
fn revocations_by_the_api_are_in_the_routers_list_before_they_are_answered() {
    let mut world = World::new("revocations");
    for entry in ["7", "7/3", "8/1/2"] {
        world.done("POST", "/v1/revocations", Some(&json!({ "entry": entry })));
    }
    let number = world.running.count("number");
    world.done("POST", "/v1/revocations", Some(&json!({ "entry": "7/3" })));
    assert_eq!(world.running.count("number"), number, "it is revoked already");
    let writer = world.running.status("writer").as_str().expect("a key").to_owned();
    world.running.kill();
    let list = world.folder.ok(&["cap", "revoked", "server/revoked", "--key", &writer, "--json"]);
    let list: Value = serde_json::from_str(&list).expect("JSON");
    assert_eq!(list["entries"], json!(["7", "7/3", "8/1/2"]));
    world.running.resume();
    let page = world.done("GET", "/v1/revocations?most=2", None);
    assert_eq!((&page["revocations"], &page["next"]), (&json!(["7", "7/3"]), &json!("7/3")));
    let rest = world.done("GET", "/v1/revocations?most=2&after=7%2F3", None);
    assert_eq!((&rest["revocations"], &rest["next"]), (&json!(["8/1/2"]), &Value::Null));
    world.done("DELETE", "/v1/revocations?entry=7", None);
    let again = world.call(Some(&world.full), "DELETE", "/v1/revocations?entry=7", None);
    assert!(again.is("not-found"), "{again:?}");
    let without = world.call(Some(&world.full), "DELETE", "/v1/revocations", None);
    assert!(without.is("request"), "{without:?}");
}

#[test]
fn pages_of_accounts_grants_and_invitations_have_each_once() {
    let world = World::new("pages");
    for principal in [30, 10, 20, 40, 50] {
        world.done("POST", "/v1/accounts", Some(&json!({ "principal": principal, "name": "" })));
        let order = json!({ "principal": principal, "waypoint": WAYPOINT });
        world.done("POST", "/v1/grants", Some(&order));
        let invitation = json!({ "principal": principal, "name": "x", "waypoints": [WAYPOINT], "again": true });
        world.done("POST", "/v1/invitations", Some(&invitation));
    }
    let pages = |path: &str, list: &str, key: &str| {
        let (mut all, mut after) = (Vec::new(), String::new());
        loop {
            let page = world.done("GET", &format!("{path}?most=2{after}"), None);
            let entries = page[list].as_array().expect("a list");
            assert!(entries.len() <= 2);
            all.extend(entries.iter().map(|entry| entry[key].clone()));
            match &page["next"] {
                Value::Null => return all,
                next => after = format!("&after={}", next.as_str().map_or_else(|| next.to_string(), str::to_owned)),
            }
        }
    };
    let expected = [10, 20, 30, 40, 50].map(|principal| json!(principal));
    assert_eq!(pages("/v1/accounts", "accounts", "principal"), expected);
    assert_eq!(pages("/v1/grants", "principals", "principal"), expected);
    let ids = pages("/v1/invitations", "invitations", "id");
    assert!(ids.len() == 6 && ids.is_sorted_by(|a, b| a.as_str() < b.as_str()), "{ids:?}");
    for path in ["/v1/accounts?most=0", "/v1/accounts?most=10001", "/v1/accounts?after=x", "/v1/grants?after=16777216"]
    {
        assert!(world.call(Some(&world.read), "GET", path, None).is("request"), "{path}");
    }
}

#[test]
fn commands_and_requests_at_the_same_time_all_count_once() {
    let world = World::new("beside");
    let before = world.running.count("number");
    thread::scope(|scope| {
        scope.spawn(|| {
            for principal in 1_000..1_010 {
                world.done("POST", "/v1/accounts", Some(&json!({ "principal": principal, "name": "by the API" })));
            }
        });
        for principal in 2_000..2_010 {
            let principal = principal.to_string();
            let of = ["--principal", &principal, "--waypoint", WAYPOINT, "--config", "server/key.toml"];
            world.folder.ok(&[&["cap", "grant"], &of[..]].concat());
        }
    });
    // A grant is one change with the account that it opens.
    eventually("the server follows", || world.running.count("number") == before + 20);
    assert_eq!(world.running.count("accounts"), 20);
    assert_eq!(world.list(&[])["number"], before + 20);
}

#[test]
fn an_operators_own_chain_is_shown_and_pinned_and_one_that_does_not_fit_is_named_by_check() {
    let mut world = World::new("chain");
    let certify = |name: &str| {
        let key = rcgen::KeyPair::generate().expect("a key");
        let certificate = rcgen::CertificateParams::new(vec!["keys.example.net".to_owned()]).expect("a name");
        let certificate = certificate.self_signed(&key).expect("signed");
        world.folder.write(&format!("server/{name}.pem"), &certificate.pem());
        world.folder.write(&format!("server/{name}.key"), &key.serialize_pem());
        let file = world.folder.0.join(format!("server/{name}.key"));
        fs::set_permissions(file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("set");
    };
    certify("chain");
    certify("other");
    let path = world.folder.0.join("server/key.toml");
    let before = fs::read_to_string(&path).expect("there");
    let with = |certificate: &str, key: &str| {
        let api = format!("[key.api]\n{certificate}{key}");
        fs::write(&path, before.replacen("[key.api]\n", &api, 1)).expect("written");
        let output = world.folder.run(&["check", "server/key.toml"]);
        text(&output.stderr) + &text(&output.stdout)
    };
    let (chain, key) = ("certificate = \"chain.pem\"\n", "private_key = \"chain.key\"\n");
    for (certificate, key, why) in [
        (chain, "", "without `private_key`"),
        ("", key, "without `certificate`"),
        (chain, "private_key = \"other.key\"\n", "is not that of the first"),
        ("certificate = \"chain.key\"\n", key, "no certificate in PEM"),
        (chain, "private_key = \"chain.pem\"\n", "can be read by others"),
        (chain, "identity = \"api.key\"\nprivate_key = \"chain.key\"\n", "both `identity` and `certificate`"),
    ] {
        let said = with(certificate, key).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(said.contains(why), "{why}: {said}");
    }
    let said = with(chain, key);
    assert!(said.contains("a configuration for `wayleave run key`"), "{said}");
    world.running.kill();
    world.running.resume();
    ["one", "two"]
        .iter()
        .for_each(|file| drop(world.invite(&format!("{file}.line"), &["--principal", "7", "--again"])));
    eventually("the server follows", || world.running.counted("invitations", "open") == 2);
    world.folder.ok(&["cap", "accept", "--line", "one.line"]);
    // A renewed certificate of the same key is shown after SIGHUP, and invitations stay good.
    let shown = || {
        let mut stream = world.connect_to(None).expect("a connection");
        let _ = stream.conn.complete_io(&mut stream.sock);
        stream.conn.peer_certificates().and_then(|all| all.first()).map(|first| first.to_vec())
    };
    let first = shown().expect("a certificate");
    let key = fs::read_to_string(world.folder.0.join("server/chain.key")).expect("there");
    let key = rcgen::KeyPair::from_pem(&key).expect("a key");
    let renewed = rcgen::CertificateParams::new(vec!["renewed.example.net".to_owned()]).expect("a name");
    world.folder.write("server/chain.pem", &renewed.self_signed(&key).expect("signed").pem());
    world.running.signal("-HUP");
    eventually("the renewed certificate is shown", || shown().is_some_and(|shown| shown != first));
    world.folder.ok(&["cap", "accept", "--line", "two.line"]);
    let line = fs::read_to_string(world.folder.0.join("two.line")).expect("there");
    world.pin = KeyPin(line.trim().parse::<InvitationLine>().expect("an invitation").pin);
    // One that does not fit is named in the log, and all that was in force stays, a token that is taken away too.
    fs::copy(world.folder.0.join("server/other.pem"), world.folder.0.join("server/chain.pem")).expect("copied");
    let without = fs::read_to_string(&path).expect("there").replace(
        "name = \"billing\"\nhash = \"token:sha256:",
        &format!("name = \"another\"\nhash = \"token:sha256:{}\"\n#", "11".repeat(32)),
    );
    fs::write(&path, without).expect("written");
    world.running.signal("-HUP");
    eventually("the log says so", || world.running.log().contains("is not that of the first certificate"));
    assert!(world.running.log().contains("also those that were taken away"));
    assert_eq!(world.call(Some(&world.read), "GET", "/v1/accounts", None).status, 200);
    world.folder.ok(&["cap", "accept", "--line", "two.line"]);
}

#[test]
fn a_token_allows_what_its_access_says_and_nothing_once_it_has_expired() {
    let world = World::new("access");
    for principal in [7, 8] {
        world.done("POST", "/v1/accounts", Some(&json!({ "principal": principal, "name": "customer" })));
    }
    let path = world.folder.0.join("server/key.toml");
    let token = |name: &str, more: &str| {
        let made: Value = serde_json::from_str(&world.folder.ok(&["keys", "token", name, "--json"])).expect("JSON");
        let config = fs::read_to_string(&path).expect("there");
        let entry = format!("[[key.api.token]]\nname = \"{name}\"\nhash = {}\n{more}\n[status]", made["hash"]);
        fs::write(&path, config.replace("[status]", &entry)).expect("written");
        fs::read_to_string(world.folder.0.join(name)).expect("there").trim().to_owned()
    };
    let own = token("own", "access = \"own\"\nprincipal = 7");
    let sell = token("sell", "access = \"sell\"");
    let old = token("old", "access = \"operate\"\nexpires = \"2020-01-01T00:00:00Z\"");
    let output = world.folder.run(&["check", "server/key.toml"]);
    let said = text(&output.stderr) + &text(&output.stdout);
    assert!(output.status.success() && said.contains("the token `old` has expired"), "{said}");
    world.running.signal("-HUP");
    eventually("the tokens count", || world.call(Some(&own), "GET", "/v1/accounts/7", None).status == 200);
    assert!(world.running.log().contains("the token `old` has expired"));
    let account = json!({ "principal": 9, "name": "another" });
    let revocation = json!({ "entry": "9" });
    for (token, method, path, body, kind) in [
        (&own, "GET", "/v1/accounts/8", None, Some("access")),
        (&own, "GET", "/v1/usage?principal=8", None, Some("access")),
        (&own, "GET", "/v1/accounts", None, Some("access")),
        (&own, "GET", "/v1/server", None, Some("access")),
        (&own, "POST", "/v1/accounts", Some(&account), Some("access")),
        (&world.read, "GET", "/v1/accounts/8", None, None),
        (&world.read, "POST", "/v1/accounts", Some(&account), Some("access")),
        (&sell, "POST", "/v1/accounts", Some(&account), None),
        (&sell, "POST", "/v1/revocations", Some(&revocation), Some("access")),
        (&world.full, "POST", "/v1/revocations", Some(&revocation), None),
        (&old, "GET", "/v1/accounts", None, Some("credential")),
    ] {
        let answer = world.call(Some(token), method, path, body);
        let is_so = kind.map_or((200..300).contains(&answer.status), |kind| answer.is(kind));
        assert!(is_so, "{method} {path}: {answer:?}");
        assert!(kind != Some("credential") || answer.body.contains("the token has expired"), "{answer:?}");
    }
}

#[test]
fn mistakes_in_the_section_are_named_by_check() {
    let world = World::new("mistakes");
    let path = world.folder.0.join("server/key.toml");
    let before = fs::read_to_string(&path).expect("there");
    let hash = format!("hash = \"token:sha256:{}\"", "11".repeat(32));
    let tokens =
        |second: &str| format!("[[key.api.token]]\nname = \"a\"\n{hash}\n[[key.api.token]]\n{second}\n[status]");
    let twice = tokens(&format!("name = \"b\"\n{hash}"));
    let renamed = tokens(&format!("name = \"a\"\nhash = \"token:sha256:{}\"", "22".repeat(32)));
    let status = world.running.page.clone();
    for (good, wrong, why) in [
        (world.api.as_str(), world.listen.as_str(), "in use by this configuration already"),
        (world.api.as_str(), status.as_str(), "in use by this configuration already"),
        ("[key.api]\n", "[key.api]\nurl = \"http://a\"\n", "https://keys.example.net:8495"),
        ("[key.api]\n", "[key.api]\nurl = \"https://a/b\"\n", "without a path"),
        ("[key.api]\n", "[key.api]\nrequests_per_second = 0\n", "requests a second"),
        ("access = \"operate\"", "access = \"full\"", "was its name before"),
        ("access = \"operate\"", "access = \"own\"", "without `principal`"),
        ("access = \"operate\"", "principal = 7", "not restricted to it"),
        ("access = \"operate\"", "access = \"own\"\nprincipal = 16777216", "24 bits"),
        ("access = \"operate\"", "expires = \"tomorrow\"", "a time such as"),
        ("kind = \"pop\"", "kind = \"city\"", "unknown variant"),
        ("[status]", twice.as_str(), "same name or hash"),
        ("[status]", renamed.as_str(), "same name or hash"),
        ("[key.api]\n", "[key.api]\nidentity = \"none.key\"\n", "none.key"),
    ] {
        fs::write(&path, before.replacen(good, wrong, 1)).expect("written");
        let output = world.folder.run(&["check", "server/key.toml"]);
        let said = text(&output.stderr) + &text(&output.stdout);
        assert!(!output.status.success() && said.contains(why), "{wrong}: {said}");
    }
    fs::write(&path, before.replace(&format!("listen = \"{}\"", world.api), "listen = \"0.0.0.0:1\""))
        .expect("written");
    let base = ["cap", "invite", "--name", "x", "--principal", "7", "--waypoint", WAYPOINT];
    let said = world.folder.fails(1, &[&base[..], &["--config", "server/key.toml"]].concat());
    assert!(said.contains("add `url"), "{said}");
}
