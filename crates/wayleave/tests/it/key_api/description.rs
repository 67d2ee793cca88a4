//! The description (OpenAPI 3.1) against the running server: every operation is tried with its own example, and every answer is as
//! its schema says.
//!
//! PLA, API: every operation of the description, with and without its right: every answer is as described, a refusal is
//! a problem that says who erred, and changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use wayleave_control::capability::InvitationLine;
use wayleave_core::UnixTime;
use wayleave_crypto::secret::Seed;
use wayleave_crypto::sign::SigningKey;
use wayleave_runtime::clock::unix_now;
use wayleave_runtime::identity::to_hex;

use super::schema::check;
use super::world::{Answer, World};
use crate::common::{eventually, free};

/// An operation of the description.
struct Operation {
    method: String,
    path: String,
    of: Value,
}

fn description() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/api/key-server.json");
    serde_json::from_str(&fs::read_to_string(path).expect("there")).expect("JSON")
}

fn operations(description: &Value) -> BTreeMap<String, Operation> {
    let paths = description["paths"].as_object().expect("paths").iter();
    let all = paths.flat_map(|(path, methods)| {
        methods.as_object().expect("methods").iter().map(move |(method, of)| {
            let id = of["operationId"].as_str().expect("an ID").to_owned();
            (id, Operation { method: method.to_uppercase(), path: path.clone(), of: of.clone() })
        })
    });
    all.collect()
}

fn encoded(value: &Value) -> String {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    text.replace('%', "%25").replace('/', "%2F").replace('@', "%40").replace(':', "%3A")
}

/// The operation's path with its examples, but for names that are given.
fn filled(operation: &Operation, names: &[(&str, &str)]) -> String {
    let mut path = operation.path.clone();
    let mut query = Vec::new();
    for parameter in operation.of["parameters"].as_array().into_iter().flatten() {
        let name = parameter["name"].as_str().expect("a name");
        let given = names.iter().find(|(of, _)| *of == name).map(|(_, value)| json!(value));
        let value = encoded(given.as_ref().unwrap_or(&parameter["example"]));
        assert!(value != "null" || parameter["in"] == "header", "{name} has an example");
        match parameter["in"].as_str() {
            Some("header") => {}
            Some("path") => path = path.replace(&format!("{{{name}}}"), &value),
            _ => query.push(format!("{name}={value}")),
        }
    }
    if query.is_empty() { path } else { format!("{path}?{}", query.join("&")) }
}

/// The schema of an operation's body, and its example.
fn body(description: &Value, operation: &Operation) -> (Value, Option<Value>) {
    let content = &operation.of["requestBody"]["content"]["application/json"];
    let schema = &content["schema"];
    let named = schema["$ref"].as_str().and_then(|text| description.pointer(text.strip_prefix('#')?));
    (schema.clone(), content.get("example").or_else(|| named?.get("example")).cloned())
}

/// Whether an answer is described, by its status and its schema.
fn is_described(description: &Value, operation: &Operation, answer: &Answer) {
    let of = format!("{} {} {}", operation.method, operation.path, answer.status);
    let response = &operation.of["responses"][answer.status.to_string()];
    let content = response["content"].as_object().unwrap_or_else(|| panic!("{of} is not described: {answer:?}"));
    let kind = content.keys().find(|kind| answer.head.contains(&format!("content-type: {kind}")));
    let kind = kind.unwrap_or_else(|| panic!("{of}: {answer:?}"));
    if kind.ends_with("json") {
        check(description, &content[kind]["schema"], &answer.json(), &of).unwrap_or_else(|fault| panic!("{fault}"));
    }
}

pub(super) fn redemption(line: &InvitationLine, holder: u8, now: UnixTime) -> Value {
    let request = line.redeem(&SigningKey::from_seed(&Seed::new([holder; 32])), now);
    json!({
        "invitation": request.id.to_string(), "holder": to_hex(&request.holder), "time": request.time,
        "proof": to_hex(&request.proof), "possession": to_hex(&request.possession),
    })
}

/// What a server that folds usage, or begins or ends, answers to anything.
#[test]
fn every_operation_describes_the_answer_of_a_server_that_cannot_answer_now() {
    for (id, operation) in operations(&description()) {
        let problem = &operation.of["responses"]["503"]["content"]["application/problem+json"]["schema"]["$ref"];
        assert_eq!(problem, "#/components/schemas/Problem", "{id}");
    }
}

#[test]
fn every_operation_works_with_its_example_and_answers_as_it_is_described() {
    let routers = format!("[key.routers]\nlisten = \"{}\"\nidentity = \"identity.key\"\n", free());
    let world = World::with("description", &routers);
    let description = description();
    let all = operations(&description);
    let mut tried = BTreeSet::new();
    let mut attempt = |id: &str, names: &[(&str, &str)], body: Option<Value>| {
        let operation = &all[id];
        let (schema, example) = self::body(&description, operation);
        let body = body.or(example);
        if let Some(body) = &body {
            check(&description, &schema, body, id).unwrap_or_else(|fault| panic!("{fault}"));
        }
        let answer = world.call(Some(&world.full), &operation.method, &filled(operation, names), body.as_ref());
        assert!((200..300).contains(&answer.status), "{id}: {answer:?}");
        is_described(&description, operation, &answer);
        tried.insert(id.to_owned());
        answer.json()
    };
    assert_eq!(attempt("description", &[], None), description, "what is served is what is checked in");
    assert_eq!(attempt("server", &[], None)["waypoints"][0]["kind"], "pop");
    let invited = attempt("invite", &[], None);
    attempt("openAccount", &[], None);
    attempt("putAccount", &[], None);
    attempt("setRate", &[], None);
    assert_eq!(attempt("listRates", &[], None)["rates"][0]["delegation"], 3);
    attempt("endRate", &[], None);
    attempt("setQuota", &[], None);
    let quota = attempt("listQuotas", &[], None)["quotas"][0].clone();
    assert_eq!((&quota["principal"], &quota["state"]), (&json!(7), &json!("within")));
    attempt("endQuota", &[], None);
    assert_eq!(attempt("listInvitations", &[], None)["invitations"].as_array().map(Vec::len), Some(1));
    assert_eq!(attempt("listAccounts", &[], None)["accounts"][0]["name"], "customer");
    let granted = attempt("grant", &[], None);
    let tree = attempt("showAccount", &[], None);
    assert_eq!(tree["waypoints"][0]["grants"][0]["id"], granted["id"]);
    assert_eq!(attempt("listGrants", &[], None)["principals"][0], tree);
    attempt("putGrant", &[], None);
    attempt("revoke", &[], None);
    assert_eq!(attempt("listRevocations", &[], None)["revocations"], json!(["7/3"]));
    attempt("liftRevocation", &[], None);
    let changes = attempt("listChanges", &[], None);
    assert!(changes["changes"].as_array().is_some_and(|changes| changes.len() > 5), "{changes}");
    attempt("usage", &[], None);
    attempt("closeUsage", &[], None);
    eventually("it is complete", || {
        let statement = world.call(Some(&world.read), "GET", "/v1/statements/1", None);
        statement.json()["complete"] == true
    });
    assert_eq!(attempt("listStatements", &[], None)["statements"][0]["statement"], 1);
    attempt("statement", &[], None);
    attempt("statementBilling", &[], None);
    attempt("signedStatement", &[], None);
    let line: InvitationLine = invited["invitation"].as_str().expect("a line").parse().expect("an invitation");
    let redeemed = attempt("redeem", &[], Some(redemption(&line, 5, unix_now())));
    assert_eq!(redeemed["repeated"], false);
    let body = body(&description, &all["invite"]).1.expect("an example");
    let refused = world.call(Some(&world.full), "POST", "/v1/invitations", Some(&body));
    assert!(refused.is("conflict"), "the principal has an account: {refused:?}");
    is_described(&description, &all["invite"], &refused);
    let again = json!({ "again": true });
    let body = body.as_object().into_iter().chain(again.as_object()).flatten();
    let body: serde_json::Map<String, Value> = body.map(|(name, value)| (name.clone(), value.clone())).collect();
    let second = attempt("invite", &[], Some(body.into()));
    attempt("withdrawInvitation", &[("invitation", second["id"].as_str().expect("an ID"))], None);
    attempt("withdrawGrant", &[("grant", granted["id"].as_str().expect("an ID"))], None);
    attempt("amendAccount", &[], None);
    attempt("closeAccount", &[], None);
    let described: BTreeSet<String> = all.keys().cloned().collect();
    assert_eq!(tried, described, "each operation is tried");
    let csv = world.call(Some(&world.read), "GET", "/v1/usage?format=csv", None);
    is_described(&description, &all["usage"], &csv);
    assert!(csv.body.starts_with("principal,account,delegation,sub_delegation,late,packets,octets"), "{csv:?}");
}

#[test]
fn what_is_refused_is_a_problem_that_is_described_and_changes_nothing() {
    let world = World::with("problems", "");
    let description = description();
    let before = world.running.count("number");
    for (id, operation) in operations(&description) {
        let path = filled(&operation, &[]);
        let call = |token: Option<&str>, path: &str, body: Option<&Value>| {
            let answer = world.call(token, &operation.method, path, body);
            is_described(&description, &operation, &answer);
            answer
        };
        if operation.of["responses"].get("401").is_some() {
            for token in [None, Some("wayleave-token-0")] {
                eventually(&format!("{id}: strangers may ask, and are refused"), || {
                    call(token, &path, None).is("credential")
                });
            }
        }
        if ["sell", "operate"].contains(&operation.of["security"][0]["token"][0].as_str().unwrap_or_default()) {
            assert!(call(Some(&world.read), &path, Some(&json!({}))).is("access"), "{id}");
        }
        if operation.of["responses"].get("400").is_some() {
            let more = if path.contains('?') { "&none=1" } else { "?none=1" };
            assert!(call(Some(&world.full), &format!("{path}{more}"), None).is("request"), "{id}");
            if operation.of["requestBody"].is_object() {
                for body in [json!({}), json!([]), json!({ "none": 1 }), json!(7)] {
                    let answer = call(Some(&world.full), &path, Some(&body));
                    assert!(answer.is("request") || id == "amendAccount" && answer.is("not-found"), "{id}: {answer:?}");
                }
            }
        }
        if operation.of["responses"].get("404").is_some() && id != "redeem" && id != "usage" {
            let example = body(&description, &operation).1;
            assert!(call(Some(&world.full), &path, example.as_ref()).is("not-found"), "{id}");
        }
    }
    assert_eq!(world.running.count("number"), before);
}
