//! Requests to the API's routes, without TLS and sockets.

use std::fs;
use std::net::{IpAddr, SocketAddr};

use axum::body::{Body, to_bytes};
use axum::extract::ConnectInfo;
use axum::http::{HeaderMap, Request, header};
use serde_json::{Value, json};
use tower::ServiceExt;
use wayleave_crypto::hash::sha256;
use wayleave_runtime::clock::utc;
use wayleave_runtime::connection_slots::ConnectionSlot;
use wayleave_runtime::https::{BodyRefused, Peer};
use wayleave_runtime::identity::{Identity, to_hex};

use super::*;
use crate::config::testing::Provider;
use crate::roles::Events;
use crate::roles::daemon::View;
use crate::roles::key::views::Connections;

const WAYPOINT: &str = "198.51.100.1";

struct World {
    api: Arc<Api>,
    peer: Peer,
    _slot: ConnectionSlot,
    provider: Provider,
}

/// An answer of the API.
struct Answer {
    status: u16,
    headers: HeaderMap,
    body: Value,
}

impl Answer {
    /// Whether it is a problem of this kind whose detail has this text.
    #[track_caller]
    fn is(&self, kind: &str, detail: &str) {
        let (body, text) = (&self.body, self.body["detail"].as_str().unwrap_or_default());
        assert!(body["type"] == format!("urn:wayleave:problem:{kind}") && text.contains(detail), "{body}");
    }
}

impl World {
    /// An API whose tokens are `operate` and `own`, of principal 7.
    fn new(name: &str) -> Self {
        let provider = Provider::new(&format!("api-{name}"));
        let identity = Identity::generate("api", Duration::from_secs(3_600)).expect("a certificate");
        identity.save(&provider.folder.join("api.key")).expect("saved");
        let token = |name: &str, access: &str| {
            let hash = to_hex(&sha256(name.as_bytes()));
            format!("[[key.api.token]]\nname = \"{name}\"\nhash = \"token:sha256:{hash}\"\n{access}\n")
        };
        let section = format!(
            "{}\n[key.api]\nlisten = \"192.0.2.9:8495\"\n{}{}",
            fs::read_to_string(provider.folder.join("key.toml")).expect("there"),
            token("operate", "access = \"operate\""),
            token("own", &format!("access = \"own\"\nprincipal = 7\nexpires = \"{}\"", utc(unix_now().secs() + 3_600))),
        );
        fs::write(provider.folder.join("key.toml"), section).expect("written");
        let (config, source) = provider.config();
        let clock = Clock::start();
        let (core, list) = Core::open(&config, &source, clock, Events::default()).expect("opened");
        let core = Arc::new(Mutex::new(core));
        list.into_iter().for_each(|list| drop(tokio::spawn(list.run(Arc::clone(&core), clock))));
        let slots = connection_slots();
        let view =
            KeyView::new(&core, &config, (None, Arc::default()), (None, Connections { dns: slots.clone(), api: None }));
        let stranger: IpAddr = [192, 0, 2, 1].into();
        let (slot, _) = slots.take(stranger).expect("the first");
        let (failed, _) = mpsc::channel(1);
        let key = config.key.api.as_ref().expect("a section").key(&source).expect("a certificate");
        let api = Api {
            core,
            view,
            clock,
            settings: Mutex::new(settings(&config)),
            limit: Mutex::new(RateLimit::new(Key128::new([1; 16]), 1_000)),
            counts: Arc::default(),
            shown: ShownKey::new(key),
            failed,
            zone: config.zone().to_string(),
            writer: config.key.writer.get_ref().0.to_string(),
            reading: tokio::sync::Semaphore::new(1),
            trail: Trail::of(&config, &source).expect("a key"),
        };
        let peer = Peer::new(SocketAddr::new(stranger, 1), slot.handle());
        Self { api: Arc::new(api), peer, _slot: slot, provider }
    }

    async fn send(&self, mut request: Request<Body>) -> Answer {
        request.extensions_mut().insert(ConnectInfo(self.peer.clone()));
        let response = routes(&self.api).oneshot(request).await.expect("an answer");
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let body = to_bytes(response.into_body(), usize::MAX).await.expect("a body");
        Answer { status, headers, body: serde_json::from_slice(&body).unwrap_or(Value::Null) }
    }

    fn request(token: &str, method: &str, path: &str, body: &str) -> axum::http::request::Builder {
        let request = Request::builder().method(method).uri(path).header(header::CONTENT_LENGTH, body.len());
        request.header(header::AUTHORIZATION, format!("Bearer {token}"))
    }

    async fn call(&self, method: &str, path: &str, body: Option<Value>) -> Answer {
        let body = body.map_or_else(String::new, |body| body.to_string());
        self.send(Self::request("operate", method, path, &body).body(body.into()).expect("a request")).await
    }

    /// The same with an `Idempotency-Key`.
    async fn named(&self, key: &str, method: &str, path: &str, body: &Value) -> Answer {
        let body = body.to_string();
        let request = Self::request("operate", method, path, &body).header("Idempotency-Key", key);
        self.send(request.body(body.into()).expect("a request")).await
    }

    /// A request that must succeed.
    async fn done(&self, method: &str, path: &str, body: Value) -> Value {
        let answer = self.call(method, path, Some(body).filter(|body| !body.is_null())).await;
        assert!((200..300).contains(&answer.status), "{method} {path}: {}", answer.body);
        answer.body
    }

    fn number(&self) -> u64 {
        lock(&self.api.core).server.state().number()
    }
}

#[tokio::test]
async fn what_a_request_does_not_take_is_refused_and_nothing_is_done() {
    let world = World::new("strict");
    world.done("POST", "/v1/accounts", json!({ "principal": 7, "name": "customer" })).await;
    let number = world.number();
    let rename = json!({ "name": "other", "replace_keys": true });
    for (method, path, body) in [
        ("PATCH", "/v1/accounts/7", &rename),
        ("PUT", "/v1/accounts/7", &json!({ "name": "other" })),
        ("POST", "/v1/accounts", &json!({ "principal": 8, "name": "x" })),
        ("DELETE", "/v1/accounts/7", &json!("")),
        ("POST", "/v1/revocations", &json!({ "entry": "7" })),
    ] {
        world.named("order-1", method, path, body).await.is("request", "no `Idempotency-Key`");
    }
    for path in ["/v1/accounts/7", "/v1/grants/7/0123456789abcdef", "/v1/invitations/0123456789abcdef"] {
        world.call("DELETE", path, Some(json!({}))).await.is("request", "has a body");
        let mut broken = World::request("operate", "DELETE", path, "").body(Body::empty()).expect("a request");
        broken.extensions_mut().insert(BodyRefused);
        world.send(broken).await.is("too-large", "ended in the middle");
    }
    world.call("GET", "/v1/accounts", Some(json!({}))).await.is("request", "has a body");
    world.call("GET", "/v1/openapi.json?none=1", None).await.is("request", "parameters");
    let long = format!("/v1/accounts?after={}", "0".repeat(4_096));
    let answer = world.call("GET", &long, None).await;
    answer.is("long-query", "longer than 4096 octets");
    assert_eq!((answer.status, world.number()), (414, number));
}

#[tokio::test]
async fn a_token_has_a_rate_and_one_for_its_own_a_small_one() {
    let world = World::new("rate");
    let ask = async |token: &str, path: &str| {
        world.send(World::request(token, "GET", path, "").body(Body::empty()).expect("a request")).await
    };
    world.done("POST", "/v1/accounts", json!({ "principal": 7, "name": "customer" })).await;
    let mut answered = 0;
    let limited = loop {
        let answer = ask("own", "/v1/accounts/7").await;
        if answer.status == 429 {
            break answer;
        }
        assert_eq!(answer.status, 200);
        answered += 1;
        assert!(answered < 10_000, "there is no limit");
    };
    assert!(answered >= 20, "as many at once as in two seconds: {answered}");
    limited.is("too-many", "with this token");
    assert_eq!(limited.headers[header::RETRY_AFTER], "1");
    for _ in 0..100 {
        assert_eq!(ask("operate", "/v1/accounts/7").await.status, 200, "others go on");
    }
    assert!(world.api.counts.all().iter().any(|(name, count)| *name == "limited" && *count > 0));
}

#[tokio::test]
async fn an_answer_says_until_when_it_was_granted_before_and_no_later_than_its_parent() {
    let world = World::new("ends");
    world.done("POST", "/v1/accounts", json!({ "principal": 7, "name": "customer" })).await;
    let whole = |ends: &str| json!({ "principal": 7, "waypoint": WAYPOINT, "ends": ends });
    let (late, soon) = ("2099-01-01T00:00:00Z", "2098-01-01T00:00:00Z");
    let ends = |answer: Value| (answer["previous_ends"].clone(), answer["ends"].clone());
    assert_eq!(ends(world.done("PUT", "/v1/grants", whole(late)).await), (Value::Null, json!(late)));
    assert_eq!(ends(world.done("PUT", "/v1/grants", whole(late)).await), (json!(late), json!(late)));
    assert_eq!(ends(world.done("PUT", "/v1/grants", whole(soon)).await), (json!(late), json!(soon)), "it is shorter");
    let part =
        json!({ "principal": 7, "waypoint": WAYPOINT, "prefix": "203.0.113.0/24", "delegation": 3, "ends": late });
    let delegated = world.done("PUT", "/v1/grants", part.clone()).await;
    assert_eq!(ends(delegated.clone()), (Value::Null, json!(soon)), "it ends with what it was delegated from");
    assert_eq!(Some(utc(delegated["until"].as_u64().expect("seconds"))).as_deref(), Some(soon));
    let number = world.number();
    assert_eq!(ends(world.done("PUT", "/v1/grants", part).await), (json!(soon), json!(soon)));
    assert_eq!(world.number(), number, "a repeat changes nothing");
    let mut days = whole(late);
    days["days"] = json!(30);
    world.call("PUT", "/v1/grants", Some(days)).await.is("request", "unknown field `days`");
}

#[tokio::test]
async fn a_repeated_invitation_is_the_same_or_the_answer_says_what_became_of_it() {
    let world = World::new("repeat");
    let invite = async |key: &str, body: &Value| world.named(key, "POST", "/v1/invitations", body).await;
    let order = |expires: u64| {
        let expires = utc(unix_now().secs() + expires);
        json!({ "principal": 7, "name": "customer", "waypoints": [WAYPOINT], "expires": expires })
    };
    let lasting = order(3_600);
    let first = invite("lasting", &lasting).await;
    assert_eq!((first.status, invite("lasting", &lasting).await.body), (201, first.body.clone()));
    invite("lasting", &order(7_200)).await.is("repeated", "another request");
    let id = first.body["id"].as_str().expect("an ID").to_owned();
    world.done("DELETE", &format!("/v1/invitations/{id}"), Value::Null).await;
    let withdrawn = invite("lasting", &lasting).await;
    withdrawn.is("gone", &format!("made invitation {id}, which was withdrawn"));
    assert!(withdrawn.body["help"].as_str().is_some_and(|help| help.contains("wayleave cap changes")));
}

#[tokio::test]
async fn lists_take_a_principal_beside_the_entry_behind_which_they_begin() {
    let world = World::new("lists");
    for principal in [7, 8] {
        world.done("POST", "/v1/accounts", json!({ "principal": principal, "name": "" })).await;
    }
    let found = async |query: &str| {
        let page = world.done("GET", &format!("/v1/grants?{query}"), Value::Null).await;
        (page["principals"].as_array().map(Vec::len), page["next"].clone())
    };
    assert_eq!(found("principal=7").await, (Some(1), Value::Null));
    assert_eq!(found("principal=7&after=6").await, (Some(1), Value::Null));
    assert_eq!(found("principal=7&after=7").await, (Some(0), Value::Null));
    assert_eq!(found("most=1").await, (Some(1), json!(7)));
}

#[tokio::test]
async fn a_customer_sees_its_external_id_price_tag_and_quota_and_neither_notes_nor_what_is_others() {
    let world = World::new("customer");
    for principal in [7, 8] {
        let account = json!({
            "principal": principal, "name": "customer", "external_id": "c", "price": "gold", "metadata": { "margin": "3" },
        });
        world.done("POST", "/v1/accounts", account).await;
        world.done("PUT", "/v1/quotas", json!({ "principal": principal, "hard_octets": 5 })).await;
    }
    let own = async |path: &str| {
        world.send(World::request("own", "GET", path, "").body(Body::empty()).expect("a request")).await
    };
    let account = own("/v1/accounts/7").await.body;
    assert_eq!(
        (&account["external_id"], &account["price"], &account["metadata"]),
        (&json!("c"), &json!("gold"), &json!({}))
    );
    let all = world.done("GET", "/v1/accounts/7", Value::Null).await;
    assert_eq!(all["metadata"]["margin"], "3");
    let quotas = own("/v1/quotas").await.body;
    assert_eq!(quotas["quotas"].as_array().map(Vec::len), Some(1));
    assert_eq!((&quotas["quotas"][0]["hard_octets"], &quotas["quotas"][0]["used_octets"]), (&json!(5), &Value::Null));
    own("/v1/quotas?principal=8").await.is("access", "principal 7's");
    own("/v1/accounts?external_id=c").await.is("access", "`read`");
    // Two have the same ID: pages go on behind the first.
    let page = async |query: &str| world.done("GET", &format!("/v1/accounts?external_id=c&{query}"), Value::Null).await;
    assert_eq!(
        (page("most=1").await["next"].clone(), page("after=7").await["accounts"][0]["principal"].clone()),
        (json!(7), json!(8))
    );
    assert_eq!(page("name=none").await["accounts"], json!([]));
    let quotas = world.done("GET", "/v1/quotas?most=1", Value::Null).await;
    assert_eq!(quotas["next"], 7);
}

#[tokio::test]
async fn a_reload_whose_certificate_cannot_be_read_takes_nothing_and_says_so() {
    let world = World::new("reload");
    let path = world.provider.folder.join("key.toml");
    let text = fs::read_to_string(&path).expect("there");
    let without_operator = text.replace(&to_hex(&sha256(b"operate")), &"11".repeat(32));
    let reload = |text: String| {
        fs::write(&path, text).expect("written");
        let (config, source) = world.provider.config();
        RunningApi { api: Arc::clone(&world.api) }.configure(&config, &source)
    };
    let unreadable = "listen = \"192.0.2.9:8495\"\nidentity = \"none.key\"";
    let refused = reload(without_operator.replace("listen = \"192.0.2.9:8495\"", unreadable)).expect_err("refused");
    let said: Vec<String> = refused.0.iter().map(|failure| failure.in_one_line()).collect();
    assert!(said[0].contains("also those that were taken away") && said[0].contains("none.key"), "{said:?}");
    assert_eq!(world.call("GET", "/v1/accounts", None).await.status, 200);
    reload(without_operator).expect("taken");
    world.call("GET", "/v1/accounts", None).await.is("credential", "none of this key server's");
}

#[tokio::test]
async fn the_status_names_tokens_that_expire_soon() {
    let world = World::new("expiring");
    let status = world.api.view.status().await.expect("a status");
    let expires = status["next_token_expires"].as_str().expect("a time");
    let problem = status["problems"][0].as_str().expect("a problem");
    assert!(problem.contains(&format!("the token `own` expires soon, at {expires}")), "{problem}");
    assert!(problem.contains("wayleave keys token"), "{problem}");
}
