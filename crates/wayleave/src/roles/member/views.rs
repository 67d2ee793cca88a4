//! What a member's proxy shows to its operator.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use wayleave_attestation::member;
use wayleave_core::Prefix;
use wayleave_member::MemberProxy;
use wayleave_route_server::member::{FurtherSlot, MemberStatus, OwnBudget};
use wayleave_runtime::http::{Metric, Parameters, ViewError};
use wayleave_runtime::identity::Identity;
use wayleave_runtime::links::Links;
use wayleave_runtime::metrics;
use wayleave_runtime::store::FileStore;

use super::io::Event;
use crate::config::PublicKey;
use crate::config::member::MemberConfig;
use crate::config::named_peers::{self, NamedPeer, UnknownPeers};
use crate::key_files::signing_key;
use crate::output::{cell, versioned};
use crate::overview::Overview;
use crate::roles::attestation::{self, keys_problem};
use crate::roles::bgp_peer::PeerView;
use crate::roles::daemon::{self, View, Views, most, prefix};
use crate::roles::link_faults::LinkFaults;

/// What is said where the driver has not said why.
const ROUTER_DOWN: &str = "the BGP session with the router is down";

#[derive(Clone)]
pub struct MemberView {
    events: mpsc::Sender<Event>,
    links: Links,
    store: Arc<FileStore>,
    router: PeerView,
    faults: LinkFaults,
    /// The parties' addresses.
    parties: [String; 2],
    keys: Arc<Value>,
    /// What the rules in force name.
    named: watch::Receiver<Vec<NamedPeer>>,
}

impl MemberView {
    pub fn new(
        config: &MemberConfig,
        identity: &Identity,
        (links, store): (&Links, &Arc<FileStore>),
        (router, faults): (&PeerView, &LinkFaults),
        (events, named): (&mpsc::Sender<Event>, watch::Receiver<Vec<NamedPeer>>),
    ) -> Self {
        let exchange = &config.file.exchange;
        let sign = PublicKey(signing_key(identity).verifying_key()).to_string();
        let [operator1, operator2] = exchange.operators.get_ref().each_ref().map(|key| key.0.to_string());
        let keys = json!({
            "version": 1,
            "keys": [
                { "of": "this member", "tls": identity.fingerprint().to_string(), "sign": sign, "reload": "restart" },
                { "of": "party 1", "tls": exchange.party1.pin.get_ref().0.to_string(), "reload": "restart" },
                { "of": "party 2", "tls": exchange.party2.pin.get_ref().0.to_string(), "reload": "restart" },
                { "of": "party 1's operator", "sign": operator1, "reload": "restart" },
                { "of": "party 2's operator", "sign": operator2, "reload": "restart" },
            ],
        });
        Self {
            events: events.clone(),
            links: links.clone(),
            store: Arc::clone(store),
            router: router.clone(),
            faults: faults.clone(),
            parties: [exchange.party1.address.0.to_string(), exchange.party2.address.0.to_string()],
            keys: Arc::new(keys),
            named,
        }
    }

    async fn query<T: Send + 'static>(
        &self,
        query: impl FnOnce(&mut MemberProxy) -> T + Send + 'static,
    ) -> Result<T, ViewError> {
        daemon::query(&self.events, query).await
    }

    /// The member's status, and that of its attestation if it is configured.
    async fn proxy(&self) -> Result<(MemberStatus, Option<member::Status>), ViewError> {
        self.query(|proxy| (proxy.status(), proxy.attestation_status())).await
    }

    /// The ASes that rules in force name and no member has.
    async fn unknown_peers(&self) -> Result<Vec<String>, ViewError> {
        let named = self.named.borrow().clone();
        self.query(move |proxy| {
            let Some(set) = proxy.member_set() else { return Vec::new() };
            let unknown = named_peers::unknown(&named, set);
            let describe = |peers: UnknownPeers<'_>| format!("{}: {}", peers.describe(set.number), named_peers::HELP);
            named_peers::by_place(unknown).into_iter().map(describe).collect()
        })
        .await
    }

    async fn routes(self, most: usize) -> Result<Value, ViewError> {
        let installed = self.query(move |proxy| {
            let route = |(prefix, slot, attributes): (Prefix, u32, &wayleave_bgp::Attributes)| {
                let next_hop = match attributes.ipv4_next_hop() {
                    Some(hop) if prefix.address().is_ipv4() => Some(hop.to_string()),
                    _ => attributes.ipv6_next_hop().map(|hop| hop.global.to_string()),
                };
                let path: Vec<u32> = attributes.as_path().asns().map(|asn| asn.0).collect();
                let announcer = proxy.announcer(slot);
                json!({ "prefix": prefix, "announcer": announcer, "next_hop": next_hop, "as_path": path })
            };
            proxy.installed().take(most.saturating_add(1)).map(route).collect::<Vec<_>>()
        });
        Ok(daemon::routes(installed.await?, most))
    }

    async fn peers(self) -> Result<Value, ViewError> {
        let (status, _) = self.proxy().await?;
        let party = |index: usize| {
            let name = format!("party {}", index + 1);
            let why = self.faults.of(index as u32 + 1).filter(|_| !status.parties[index]);
            json!({ "peer": name, "up": status.parties[index], "address": self.parties[index], "last_end": why })
        };
        Ok(json!({ "version": 1, "peers": [party(0), party(1), self.router.json()] }))
    }

    /// That a chosen route is not in the router, if it is not.
    fn at_router(&self, prefix: Prefix, route: &mut Value) {
        let router = self.router.json();
        let words = if let Some(error) = self.router.rejected(&prefix) {
            Some((
                format!("chosen, and not in your router: {error}"),
                "RFC 4271 section 4.1: a message has 4,096 octets; RFC 8654: more where both ends agree",
                "turn on extended messages at the router, or have the announcer send a shorter path or fewer communities",
            ))
        } else if router["up"] != json!(true) {
            let why = router_down(&router);
            Some((
                format!("chosen, and not in your router: {why}"),
                "RFC 4271 section 8",
                "see `wayleave show peers`, and the router's log",
            ))
        } else {
            None
        };
        if let Some((outcome, rule, cure)) = words {
            (route["outcome"], route["rule"], route["cure"]) = (json!(outcome), json!(rule), json!(cure));
        }
    }

    /// The prefix of a request; of an address, the longest that is known, or the address alone.
    async fn prefix_of(&self, parameters: &Parameters) -> Result<Prefix, ViewError> {
        let address = parameters.get("name").filter(|_| !parameters.contains_key("prefix"));
        let Some(address) = address.and_then(|name| name.parse::<IpAddr>().ok()) else { return prefix(parameters) };
        let longest = self.query(move |proxy| proxy.longest_match(address)).await?;
        let alone = || Prefix::truncated(address, if address.is_ipv4() { 32 } else { 128 });
        longest.map_or_else(alone, Ok).map_err(|error| ViewError::Request(error.to_string()))
    }

    async fn why(self, prefix: Prefix) -> Result<Value, ViewError> {
        let mut value = versioned(json!(self.query(move |proxy| proxy.why(prefix)).await?));
        for route in
            value["routes"].as_array_mut().into_iter().flatten().filter(|route| route["outcome"] == "installed")
        {
            self.at_router(prefix, route);
        }
        if let Some(said) = self.faults.removal() {
            not_a_member(&mut value, &said);
        }
        Ok(value)
    }
}

impl View for MemberView {
    async fn status(&self) -> Result<Value, ViewError> {
        let (status, attestation) = self.proxy().await?;
        let mut value = json!(status);
        let keys_problem = attestation.as_ref().and_then(|status| keys_problem(status.asn, &status.unregistered_keys));
        if let Some(attestation) = attestation {
            value["attestation"] = json!(attestation);
        }
        let router = self.router.json();
        value["router"] = router["state"].clone();
        value["router_protection"] = router["protection"].clone();
        let mut problems = self.faults.list();
        problems.extend(router["problem"].as_str().map(str::to_owned));
        problems.extend(keys_problem);
        problems.extend(too_large(&status));
        problems.extend(deferred(&status));
        problems.extend(status.budget.as_ref().and_then(over_limit));
        problems.extend(held(status.slot, &status.further_slots));
        problems.extend(self.unknown_peers().await?);
        value["problems"] = json!(problems);
        Ok(value)
    }

    async fn overview(&self, status: &Value) -> Result<Overview, ViewError> {
        let title = format!("member in slot {} of {}", status["slot"], cell(&status["exchange"]));
        let mut overview = Overview::new(title, &["peer", "state", "address", "protection"]);
        for (index, address) in self.parties.iter().enumerate() {
            let up = status["parties"][index] == true;
            let name = format!("party {}", index + 1);
            overview.row(up, [json!(name), json!(if up { "up" } else { "down" }), json!(address), Value::Null]);
        }
        let router = self.router.json();
        let address = router["router_id"].as_str().map(|id| format!("{id} (AS{})", cell(&router["asn"])));
        overview.row(
            router["up"] == true,
            [json!("your router"), router["state"].clone(), json!(address), router["protection"].clone()],
        );
        overview.count(format!("{} routes of your router", status["router_routes"]));
        overview.count(format!("{} of them not announced", status["not_announced"]));
        overview.count(match router["up"] == true {
            true => format!("{} prefixes installed in it", status["installed"]),
            false => format!("{} prefixes to install in it once its session is up", status["installed"]),
        });
        if status["kept"] != 0 {
            overview.count(format!("{} of them kept, whose objects a party lost", status["kept"]));
        }
        if let Some(budget) = status["budget"].as_object() {
            overview.count(format!("{} of {} prefixes announced", budget["prefixes"], budget["max_prefixes"]));
        }
        overview.count(format!("{} changes unconfirmed", status["unconfirmed"]));
        overview.count(format!("member set {}", cell(&status["member_set"])));
        Ok(overview)
    }

    async fn metrics(&self) -> Option<Vec<Metric>> {
        let (status, attestation) = self.proxy().await.ok()?;
        let mut all = metrics(&status, &self.links, &self.router.json());
        all.extend(status.budget.iter().flat_map(of_budget));
        all.extend(attestation.iter().flat_map(attestation::metrics));
        Some(all)
    }

    async fn readiness(&self) -> Option<Result<(), String>> {
        let (status, _) = self.proxy().await.ok()?;
        let down = status.parties.iter().position(|up| !up);
        let down = down.map(|index| {
            let why = self.faults.of(index as u32 + 1).map_or(String::new(), |why| format!(": {why}"));
            format!("the link to party {} is down{why}", index + 1)
        });
        let syncing = (!status.synced).then(|| "the parties have not sent all routes yet".to_owned());
        let router = self.router.json();
        let router = (router["up"] != json!(true)).then(|| router_down(&router).to_owned());
        Some(down.or(syncing).or(router).map_or(Ok(()), Err))
    }

    fn store(&self) -> Option<&Arc<FileStore>> {
        Some(&self.store)
    }

    fn pages(views: Views<Self>) -> Views<Self> {
        views
            .page("routes", |view, parameters| async move { view.routes(most(&parameters)?).await })
            .page("peers", |view, _| view.peers())
            .page("why", |view, parameters| async move {
                let prefix = view.prefix_of(&parameters).await?;
                view.why(prefix).await
            })
            .page("keys", |view, _| async move { Ok(Value::clone(&view.keys)) })
    }
}

/// Why there is no session with the router.
fn router_down(router: &Value) -> &str {
    let why = router["problem"].as_str().or_else(|| router["missing"].as_str());
    why.unwrap_or(ROUTER_DOWN)
}

/// What `why` says of a member that was removed: nothing of what it announced is at the parties any more.
fn not_a_member(value: &mut Value, said: &str) {
    const RULE: &str = "an operator alone removes a member; its slot and its keys are never used again";
    const CURE: &str = "ask both operators why; to come back: a new key (`wayleave keys new`), and a new request, signed with the old one too \
        (`wayleave members request --beside OLD.key`), or other members hold the new slot";
    value["removed"] = json!(said);
    value["summary"] = json!(format!("{said}; {CURE}"));
    for own in value["own"].as_array_mut().into_iter().flatten() {
        own["outcome"] = json!(format!("withdrawn: {said}"));
        own["rule"] = json!(RULE);
        own["cure"] = json!(CURE);
    }
}

/// That all routes were asked for too often.
fn deferred(status: &MemberStatus) -> Option<String> {
    let seconds = status.deferred?;
    Some(format!(
        "this proxy connected, or asked for all routes, more often than the exchange allows: they come within {seconds} seconds; look for what ends its links in its log"
    ))
}

/// That other members hold this one's slot, which is public in the member set.
fn held(slot: u32, further: &[FurtherSlot]) -> Option<String> {
    let FurtherSlot { name, asn, .. } = further.iter().find(|of| of.slot == slot && of.held)?;
    Some(format!(
        "this member's slot {slot} is held: no key of an earlier slot of AS{asn} signed for it, and other members give it no routes unless \
         they release it. Sign for it with such a key, also that of a removed slot, and send the file to both operators: `wayleave members \
         endorse FILE --members MEMBERS --name {name} --key OLD.key`"
    ))
}

/// That the router announces more prefixes than the limit, as after it was lowered.
fn over_limit(budget: &OwnBudget) -> Option<String> {
    let OwnBudget { prefixes, max_prefixes: most, max_in_set: in_set, .. } = *budget;
    let (allows, ask) = if most == in_set {
        ("the member set", "both operators for more (`wayleave members propose --max-prefix`)")
    } else {
        ("party 1", "its operator for more: it is the party's own limit, `max_prefix_limit`, and not the member set's")
    };
    (prefixes > most as usize).then(|| {
        format!(
            "{prefixes} prefixes are announced, and {allows} allows {most} since the limit was lowered: those that are announced stay, \
             and no new one is. Withdraw some at the router, or ask {ask}"
        )
    })
}

/// Routes that are larger than the parties take.
fn too_large(status: &MemberStatus) -> Option<String> {
    let routes = status.too_large;
    (routes > 0).then(|| {
        format!(
            "{routes} routes of the router are larger than the parties take and are not announced; `wayleave show status` lists some \
             under `withheld`: announce them with fewer communities, or ask both operators for a larger `max_blob`"
        )
    })
}

/// What this member may cost the exchange, and what it has spent.
fn of_budget(budget: &OwnBudget) -> Vec<Metric> {
    metrics! {
        gauge "announced" Prefixes "Prefixes that this member announces" = budget.prefixes;
        gauge "allowed" Prefixes "Prefixes that this member may announce" = budget.max_prefixes;
        gauge "stored" Bytes "This member's sealed routes at party 1, as it said at the last connection" = budget.stored;
        gauge "storable" Bytes "What party 1 stores of them at most" = budget.max_stored;
        gauge "resyncs_left" Number "How often this member could be sent all routes at once, as party 1 said at the last connection" =
            budget.resyncs_left;
        gauge "choices_left" Number "How often Select-Best could choose among those, as party 1 said at the last connection" =
            budget.choices_left;
    }
}

fn metrics(status: &MemberStatus, links: &Links, router: &Value) -> Vec<Metric> {
    let counters = &status.counters;
    let of_router = |name: &str| router["counters"][name].as_u64().unwrap_or(0);
    let refused = links.counters().refused.load(Ordering::Relaxed);
    metrics! {
        gauge "party1" Up "Whether the link to party 1 is up" = status.parties[0];
        gauge "party2" Up "Whether the link to party 2 is up" = status.parties[1];
        gauge "router" Up "Whether the session with the router is up" = router["up"] == json!(true);
        gauge "router" Routes "Routes that the router announces" = status.router_routes;
        gauge "known" Objects "Route objects known, sealed ones included" = status.objects;
        gauge "installed" Prefixes "Prefixes installed in the router" = status.installed;
        gauge "kept" Prefixes "Prefixes whose route stays in the router though a party lost what it had of it" = status.kept;
        gauge "unconfirmed" Changes "Changes that the parties have not applied yet" = status.unconfirmed;
        counter "announced" Objects "Route objects announced" = counters.announcements;
        counter "withdrawn" Objects "Route objects withdrawn" = counters.withdrawals;
        counter "refused" Objects "Own objects that a party refused" = counters.refused;
        counter "delivered" Objects "Route objects delivered" = counters.delivered;
        counter "opened" Objects "Route objects opened" = counters.opened;
        counter "sealed" Objects "Route objects not exported to this member" = counters.sealed;
        counter "sent" Rankings "Rankings sent" = counters.rankings;
        counter "select_best" Outcomes "Results of Select-Best combined" = counters.outcomes;
        counter "misbehaviour" Alarms "Alarms about misbehaviour" = counters.alarms;
        counter "invalid" Frames "Invalid frames received" = counters.bad_frames;
        counter "link_received" Bytes "Received in frames" = counters.bytes_received;
        counter "link_sent" Bytes "Sent in frames" = counters.bytes_sent;
        counter "certificate_refused" Connections "Connections refused for the party's certificate" = refused;
        counter "router_malformed" Updates "Malformed UPDATEs of the router (RFC 7606)" = of_router("malformed_updates");
        counter "router_established" Sessions "Times that the session with the router came up" = of_router("established");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_announces_too_much_is_told_whose_limit_it_is() {
        let budget = |max_prefixes, max_in_set| OwnBudget {
            prefixes: 4,
            max_prefixes,
            max_in_set,
            stored: 0,
            max_stored: 0,
            objects_per_second: 0,
            octets_per_second: 0,
            resyncs_per_hour: 0,
            resyncs_left: 0,
            choices_per_hour: 0,
            choices_left: 0,
        };
        let of_set = over_limit(&budget(3, 3)).expect("a problem");
        assert!(of_set.contains("the member set allows 3") && of_set.contains("ask both operators"), "{of_set}");
        for in_set in [9, 0] {
            let of_party = over_limit(&budget(3, in_set)).expect("a problem");
            assert!(of_party.contains("party 1 allows 3") && of_party.contains("`max_prefix_limit`"), "{of_party}");
            assert!(!of_party.contains("both operators"), "{of_party}");
        }
        assert_eq!(over_limit(&budget(4, 4)), None);
    }

    #[test]
    fn a_member_whose_own_slot_is_held_is_told_what_to_do() {
        let further = |slot, held| FurtherSlot { slot, asn: 64_498, name: "bravo".to_owned(), held };
        let said = held(3, &[further(2, false), further(3, true)]).expect("a problem");
        assert!(said.contains("slot 3 is held: no key of an earlier slot of AS64498"), "{said}");
        assert!(
            said.contains("`wayleave members endorse FILE --members MEMBERS --name bravo --key OLD.key`"),
            "{said}"
        );
        assert_eq!(held(3, &[further(2, true), further(3, false)]), None, "another's slot, or one that is signed for");
    }
}
