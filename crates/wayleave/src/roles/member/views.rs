//! What a member's proxy shows to its operator.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::timeout;
use wayleave_attestation::member;
use wayleave_bgp::EncodeError;
use wayleave_core::{Afi, Asn, Prefix};
use wayleave_member::MemberProxy;
use wayleave_route_server::member::{FurtherSlot, MemberStatus, OwnBudget, Tally};
use wayleave_runtime::clock::{unix_now, utc};
use wayleave_runtime::http::{Metric, Parameters, Unit, ViewError};
use wayleave_runtime::identity::Identity;
use wayleave_runtime::links::Links;
use wayleave_runtime::metrics;
use wayleave_runtime::store::FileStore;

use super::birdwatcher;
use super::data::{self, FileState};
use super::io::Event;
use super::listing::{self, Asked, Place, VISITS};
use crate::config::PublicKey;
use crate::config::member::MemberConfig;
use crate::config::named_peers::{self, NamedPeer, UnknownPeers};
use crate::config::profile;
use crate::key_files::signing_key;
use crate::output::{cell, versioned};
use crate::overview::Overview;
use crate::roles::attestation::{self, keys_problem};
use crate::roles::bgp_peer::{Order, Peer, PeerOrders, PeerView};
use crate::roles::bmp::Station;
use crate::roles::daemon::{self, View, Views, most, prefix};
use crate::roles::link_faults::LinkFaults;
use crate::roles::origins::rov::{OriginData, SourceStatus};

/// What is said where the driver has not said why.
const ROUTER_DOWN: &str = "the BGP session with the router is down";

#[derive(Clone)]
pub struct MemberView {
    events: mpsc::Sender<Event>,
    links: Links,
    store: Arc<FileStore>,
    router: PeerView,
    /// The BMP station that hears of its session.
    station: Option<Station>,
    orders: PeerOrders,
    faults: LinkFaults,
    /// The parties' addresses.
    parties: [String; 2],
    keys: Arc<Value>,
    /// What the RPKI says of origins.
    rpki: watch::Receiver<OriginData>,
    /// What the rules in force name.
    named: watch::Receiver<Vec<NamedPeer>>,
    /// How the file of the exchange's data stands.
    data: watch::Receiver<FileState>,
    glass: Arc<Glass>,
    /// One list of routes is made at a time.
    lists: Turn,
    /// The section that names a source of origins.
    origins_in: &'static str,
    /// Of a proxy with several pairs of parties, the view of each by its name.
    pairs: Arc<[(String, MemberView)]>,
}

/// What a looking glass is told beside routes.
struct Glass {
    /// Whether one is answered.
    is_on: bool,
    slot: u32,
    rs_asn: Asn,
    router_id: Ipv4Addr,
    started: u64,
    /// One table is made at a time.
    turn: Turn,
    /// The routes of all members are counted once at a time.
    count_turn: Turn,
}

/// How long a request may wait for its turn.
const TURN_PATIENCE: Duration = Duration::from_secs(5);

/// What is made for one reader at a time.
#[derive(Clone)]
struct Turn(Arc<Semaphore>);

impl Turn {
    fn new() -> Self {
        Self(Arc::new(Semaphore::new(1)))
    }

    /// Waits for it, but not for long.
    async fn wait(&self) -> Result<OwnedSemaphorePermit, ViewError> {
        self.wait_for(TURN_PATIENCE).await
    }

    async fn wait_for(&self, patience: Duration) -> Result<OwnedSemaphorePermit, ViewError> {
        match timeout(patience, Arc::clone(&self.0).acquire_owned()).await {
            Ok(turn) => turn.map_err(|_| ViewError::Unavailable),
            Err(_) => {
                let why = "another program reads a large page, and one is made at a time; ask again in a minute";
                Err(ViewError::Failed(why.to_owned()))
            }
        }
    }
}

/// What changes beside the machine.
pub struct Watched {
    pub rpki: watch::Receiver<OriginData>,
    /// What the rules name.
    pub named: watch::Receiver<Vec<NamedPeer>>,
    /// The file of the exchange's data.
    pub data: watch::Receiver<FileState>,
}

impl MemberView {
    pub fn new(
        config: &MemberConfig,
        identity: &Identity,
        (links, store): (&Links, &Arc<FileStore>),
        (router, faults): (&Peer, &LinkFaults),
        events: &mpsc::Sender<Event>,
        Watched { rpki, named, data }: Watched,
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
            router: router.view.clone(),
            station: router.station().cloned(),
            orders: router.orders.clone(),
            faults: faults.clone(),
            parties: [exchange.party1.address.0.to_string(), exchange.party2.address.0.to_string()],
            keys: Arc::new(keys),
            rpki,
            glass: Arc::new(Glass {
                is_on: config.file.status.as_ref().is_some_and(|status| *status.birdwatcher.get_ref()),
                slot: *config.file.member.slot.get_ref(),
                rs_asn: *exchange.asn.get_ref(),
                router_id: config.file.router.get_ref().router_id.get_ref().0,
                started: unix_now().secs(),
                turn: Turn::new(),
                count_turn: Turn::new(),
            }),
            lists: Turn::new(),
            origins_in: match config.file.attestation {
                Some(_) => "[attestation.rpki]",
                None => "[rpki]",
            },
            named,
            data,
            pairs: Arc::new([]),
        }
    }

    /// The view of a proxy with these pairs of parties: of one alone its own.
    pub fn of_pairs(first: &Self, pairs: Vec<(String, Self)>) -> Self {
        Self { pairs: if pairs.len() > 1 { pairs.into() } else { Arc::new([]) }, ..first.clone() }
    }

    pub async fn query<T: Send + 'static>(
        &self,
        query: impl FnOnce(&mut MemberProxy) -> T + Send + 'static,
    ) -> Result<T, ViewError> {
        daemon::query(&self.events, query).await
    }

    /// How the source of what the RPKI says stands; `None` without one.
    fn source(&self) -> Option<SourceStatus> {
        self.rpki.borrow().source.clone()
    }

    /// The member's status, and that of its attestation if it is configured.
    async fn proxy(&self) -> Result<(MemberStatus, Option<member::Status>), ViewError> {
        self.query(|proxy| (proxy.status(), proxy.attestation_status())).await
    }

    async fn routes(self, asked: Asked) -> Result<Value, ViewError> {
        let Asked { filter, address, most, mut after, attributes } = asked;
        if let Some(address) = address {
            let of_address = move |proxy: &mut MemberProxy| {
                (listing::longest(proxy, &filter, address, attributes), proxy.installed_prefixes())
            };
            let (mut rows, installed) = self.query(of_address).await?;
            rows.retain(|(position, _)| after.is_none_or(|after| *position > after));
            return Ok(listing::page(rows, most, false, installed));
        }
        let _turn = self.lists.wait().await?;
        let mut all = Vec::new();
        loop {
            let filter = filter.clone();
            let part = move |proxy: &mut MemberProxy| {
                (listing::rows(proxy, &filter, after, VISITS, attributes), proxy.installed_prefixes())
            };
            let ((rows, next), installed) = self.query(part).await?;
            all.extend(rows);
            after = next;
            if after.is_none() || all.len() > most {
                return Ok(listing::page(all, most, after.is_some(), installed));
            }
        }
    }

    /// To whom the own router's routes go by the policy.
    async fn exports(self, parameters: Parameters) -> Result<Value, ViewError> {
        let (place, most) = (Place::of(&parameters)?, most(&parameters)?);
        if let Some(to) = parameters.get("to").cloned()
            && !self.query(move |proxy| listing::knows(proxy, &to)).await?
        {
            let why =
                format!("no member `{}` in the member set, expected a member's name or AS number", parameters["to"]);
            return Err(ViewError::Request(why));
        }
        let _turn = self.lists.wait().await?;
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            let (mut exports, next) = self.query(move |proxy| listing::own(proxy, place, after)).await?;
            if let Some(to) = parameters.get("to") {
                listing::only_to(&mut exports, to);
            }
            all.extend(exports);
            after = next;
            if after.is_none() || all.len() > most {
                break;
            }
        }
        let more = all.len() > most;
        all.truncate(most);
        let removed = self.faults.removal();
        Ok(json!({ "version": 1, "exports": all, "more": more, "removed": removed }))
    }

    /// That what the profile has receivers do depends on origins, and this one knows none.
    async fn lacks_origins(&self) -> Result<Option<String>, ViewError> {
        let section = self.origins_in;
        let refuses = move |proxy: &mut MemberProxy| {
            let set = proxy.member_set()?;
            let refuses = set.profile.as_ref().is_some_and(|profile| profile.refuse_rpki_invalid);
            let lets_pass = set.data.as_ref().is_some_and(|rules| rules.irr_prefix && rules.rpki_before_irr);
            no_origins(refuses, lets_pass, section)
        };
        self.query(refuses).await
    }

    /// That the exchange's profile has receivers refuse leaked paths, and the source that counts has no ASPA record.
    async fn lacks_aspas(&self, source: &SourceStatus) -> Result<Option<String>, ViewError> {
        if source.standing != "current" || source.aspas > 0 {
            return Ok(None);
        }
        let text = no_aspas(&source.source);
        let refuses = move |proxy: &mut MemberProxy| {
            let profile = proxy.member_set()?.profile.as_ref()?;
            profile.refuse_aspa_invalid.then_some(text)
        };
        self.query(refuses).await
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

    async fn peers(self) -> Result<Value, ViewError> {
        let (status, _) = self.proxy().await?;
        let party = |index: usize| {
            let name = format!("party {}", index + 1);
            let why = self.faults.of(index as u32 + 1).filter(|_| !status.parties[index]);
            let link = status.party_links[index];
            json!({
                "peer": name, "up": status.parties[index], "address": self.parties[index], "last_end": why,
                "uptime_secs": link.up.map(|up| up.as_secs()), "octets_received": link.received, "octets_sent": link.sent,
                "prefixes_in": status.open_prefixes, "prefixes_out": status.own_prefixes,
            })
        };
        let mut router = self.router.json();
        let up_since = router["up_since"].as_u64();
        router["uptime_secs"] = json!(up_since.map(|since| unix_now().secs().saturating_sub(since)));
        router["prefixes_in"] = json!(status.router_routes);
        router["prefixes_out"] = router["announced"].clone();
        router["stale_routes"] = json!(status.stale_routes);
        Ok(json!({ "version": 1, "peers": [party(0), party(1), router] }))
    }

    /// What a looking glass is told of this proxy.
    pub fn slot(&self) -> u32 {
        self.glass.slot
    }

    pub fn rs_asn(&self) -> Asn {
        self.glass.rs_asn
    }

    pub fn router_id(&self) -> Ipv4Addr {
        self.glass.router_id
    }

    /// When this proxy started, in seconds since 1970.
    pub fn started(&self) -> u64 {
        self.glass.started
    }

    /// Waits until nobody else is given a table.
    pub async fn turn(&self) -> Result<OwnedSemaphorePermit, ViewError> {
        self.glass.turn.wait().await
    }

    /// Waits until routes are counted for nobody else: never for the reader of a table.
    pub async fn count_turn(&self) -> Result<OwnedSemaphorePermit, ViewError> {
        self.glass.count_turn.wait().await
    }

    /// The profile of the member set in force.
    async fn profile(self) -> Result<Value, ViewError> {
        let described = self.query(|proxy| {
            let set = proxy.member_set()?;
            Some((set.exchange.clone(), set.number, profile::describe_set(set)))
        });
        let (exchange, number, profile) = described.await?.unwrap_or_default();
        let number = Some(number).filter(|_| !exchange.is_empty());
        Ok(json!({
            "version": 1, "exchange": exchange, "member_set": number, "profile": profile,
            "not_checked": profile::RESTS_ON_ANNOUNCERS,
        }))
    }

    /// That a chosen route is not in the router, if it is not.
    fn at_router(&self, prefix: Prefix, route: &mut Value) {
        let router = self.router.json();
        // Where the router gets several paths of a prefix, this one's.
        let path_id = route["path_id"].as_u64().and_then(|path_id| u32::try_from(path_id).ok()).unwrap_or_default();
        let words = if let Some(error) = self.router.rejected(prefix, path_id) {
            let (rule, cure) = match error {
                EncodeError::Stale => (
                    "RFC 9494 section 4.3: long-lived stale routes go to routers that know them",
                    "none is needed while its announcer's router is gone; BIRD and FRR state the capability with `long lived graceful restart aware`, `bgp long-lived-graceful-restart stale-time`",
                ),
                _ => (
                    "RFC 4271 section 4.1: a message has 4,096 octets; RFC 8654: more where both ends agree",
                    "turn on extended messages at the router, or have the announcer send a shorter path or fewer communities",
                ),
            };
            Some((format!("chosen, and not in your router: {error}"), rule, cure))
        } else if router["up"] != json!(true) {
            let why = router_down(&router);
            let cure = match router["disabled"].is_string() {
                true => "`wayleave session enable`",
                false => "see `wayleave show peers`, and the router's log",
            };
            Some((format!("chosen, and not in your router: {why}"), "RFC 4271 section 8", cure))
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
        let router = self.router.json();
        if router["disabled"].is_string() {
            // The router's own routes are gone with it.
            match value["problems"].as_array_mut() {
                Some(problems) => problems.push(router["problem"].clone()),
                None => value["problems"] = json!([router["problem"]]),
            }
        }
        Ok(value)
    }

    /// An order for the session with the router.
    async fn order(self, order: Order) -> Result<Value, ViewError> {
        Ok(versioned(self.orders.give(order).await?))
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
        value["router_role"] = router["role"].clone();
        value["router_disabled"] = router["disabled"].clone();
        let mut problems = self.faults.list();
        problems.extend(router["problem"].as_str().map(str::to_owned));
        problems.extend(self.station.as_ref().and_then(Station::problem));
        problems.extend(keys_problem);
        problems.extend(too_large(&status));
        problems.extend(deferred(&status));
        problems.extend(status.budget.as_ref().and_then(over_limit));
        problems.extend(held(status.slot, &status.further_slots));
        let rpki = self.source();
        problems.extend(rpki.as_ref().and_then(|source| source.problem_at(unix_now().secs())));
        problems.extend(rpki.iter().flat_map(|source| source.others_at(unix_now().secs())));
        match rpki {
            Some(rpki) => {
                problems.extend(self.lacks_aspas(&rpki).await?);
                value["rpki"] = json!(rpki);
            }
            None => problems.extend(self.lacks_origins().await?),
        }
        problems.extend(data::problems(status.data.as_ref(), &self.data.borrow(), unix_now().secs()));
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
        let state = if router["disabled"].is_string() { json!("disabled") } else { router["state"].clone() };
        overview.row(router["up"] == true, [json!("your router"), state, json!(address), router["protection"].clone()]);
        overview.count(format!("{} routes of your router", status["router_routes"]));
        overview.count(format!("{} of them not announced", status["not_announced"]));
        if status["stale_routes"] != 0 {
            overview.count(format!("{} of them from before its session was lost", status["stale_routes"]));
        }
        overview.count(match router["up"] == true {
            true => format!("{} prefixes installed in it", status["installed"]),
            false => format!("{} prefixes to install in it once its session is up", status["installed"]),
        });
        if status["further_paths"] != 0 {
            overview.count(format!("{} further routes to them for its ADD-PATH", status["further_paths"]));
        }
        if status["kept"] != 0 {
            overview.count(format!("{} of them kept, whose objects a party lost", status["kept"]));
        }
        if let Some(budget) = status["budget"].as_object() {
            overview.count(format!("{} of {} prefixes announced", budget["prefixes"], budget["max_prefixes"]));
        }
        overview.count(format!("{} changes unconfirmed", status["unconfirmed"]));
        overview.count(format!("member set {}", cell(&status["member_set"])));
        if let Some(data) = status["data"].as_object() {
            let until = data["until"].as_u64().map_or(String::new(), |until| format!(", current until {}", utc(until)));
            overview.count(format!("data {} of {} members{until}", cell(&data["number"]), data["members"]));
        }
        if let Some(source) = self.source() {
            overview.count(source.line(unix_now().secs()));
        }
        Ok(overview)
    }

    async fn metrics(&self) -> Option<Vec<Metric>> {
        let (status, attestation) = self.proxy().await.ok()?;
        let tally = self.query(|proxy| proxy.tally()).await.ok()?;
        let mut all = metrics(&status, &self.links, &self.router.json());
        all.extend(self.station.iter().flat_map(Station::metrics));
        all.push(refused(&status));
        all.extend(tallied(&tally));
        all.extend(status.budget.iter().flat_map(of_budget));
        all.extend(attestation.iter().flat_map(attestation::metrics));
        all.extend(self.source().iter().flat_map(SourceStatus::metrics));
        all.extend(status.data.iter().flat_map(|status| data::metrics(status, unix_now().secs())));
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

    fn parts(&self) -> &[(String, Self)] {
        &self.pairs
    }

    fn pages(views: Views<Self>) -> Views<Self> {
        // Only where it was asked for: whoever reads the pages learns who lets this member have routes.
        let views = match views.view().glass.is_on {
            true => views.tree("/birdwatcher", "status", birdwatcher::answer),
            false => views,
        };
        views
            .page_with("routes", listing::OF_ROUTES, |view: Self, parameters| async move {
                view.routes(Asked::of(&parameters)?).await
            })
            .page_with("exports", listing::OF_EXPORTS, |view: Self, parameters| view.exports(parameters))
            .page("peers", |view, _| view.peers())
            .page("why", |view, parameters| async move {
                let prefix = view.prefix_of(&parameters).await?;
                view.why(prefix).await
            })
            .page("profile", |view, _| view.profile())
            .page("keys", |view, _| async move { Ok(Value::clone(&view.keys)) })
            .local_order("session/disable", |view, mut parameters| {
                view.order(Order::Disable(parameters.remove("message").unwrap_or_default()))
            })
            .local_order("session/enable", |view, _| view.order(Order::Enable))
            .local_order("session/refresh", |view, _| view.order(Order::Refresh))
            .local_order("session/clear", |view, _| view.order(Order::Clear))
    }
}

/// That nothing is known of origins where a profile refuses by them, or lets pass by them what the registries do not have; and where to name
/// a source.
fn no_origins(refuses: bool, lets_pass: bool, section: &str) -> Option<String> {
    let what = match (refuses, lets_pass) {
        (true, _) => "refuses routes whose origin the RPKI says is not the prefix's",
        (false, true) => "takes routes that are valid by the RPKI and not in the registries' lists (rpki_before_irr)",
        (false, false) => return None,
    };
    Some(format!("the exchange's profile {what}, and this proxy knows no origins: name a cache or a file in {section}"))
}

/// That nothing is known of paths, and which source would say it.
fn no_aspas(source: &str) -> String {
    format!(
        "the exchange's profile refuses paths that ASPA records call invalid, and {source} has no such record: no path is refused; have it \
         speak version 2 of RTR, or write `aspas` to its file"
    )
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

/// Routes that are not announced, or not used, by the reason.
fn refused(status: &MemberStatus) -> Metric {
    let at = [("announce", &status.refused_at_announce), ("receive", &status.refused_at_receive)];
    let sample = |at: &'static str, reason: &'static str, count: usize| {
        (vec![("at", at.to_owned()), ("reason", reason.to_owned())], count as f64)
    };
    let values = at.into_iter().flat_map(|(at, by)| by.iter().map(move |(reason, count)| sample(at, reason, *count)));
    Metric::gauges("refused", Unit::Routes, "Routes that are not announced, or not used, and why", values.collect())
}

/// Routes by family and by whose they are.
fn tallied(tally: &Tally) -> [Metric; 2] {
    let family = |afi: Afi| ("family", afi.to_string().to_lowercase());
    let installed = tally.installed.iter().map(|((slot, name, afi), count)| {
        (vec![("member", name.clone()), ("slot", slot.to_string()), family(*afi)], *count as f64)
    });
    let of_router = tally.router.iter().map(|(afi, count)| (vec![family(*afi)], *count as f64));
    let help = "Prefixes installed in the router, by their announcer and by family";
    [
        Metric::gauges("installed_from", Unit::Prefixes, help, installed.collect()),
        Metric::gauges(
            "router_family",
            Unit::Routes,
            "Routes that the router announces, by family",
            of_router.collect(),
        ),
    ]
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
        gauge "router_stale" Routes "Routes of the router that it has not announced again since its session was lost" = status.stale_routes;
        gauge "further" Routes "Routes that the router gets beside the installed ones (ADD-PATH)" = status.further_paths;
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

    #[tokio::test]
    async fn who_waits_too_long_for_a_large_page_is_told_to_ask_again() {
        let turn = Turn::new();
        let held = turn.wait().await.expect("nobody has it");
        let said = turn.wait_for(Duration::ZERO).await.expect_err("another has it");
        assert!(matches!(&said, ViewError::Failed(why) if why.contains("ask again")), "{said:?}");
        drop(held);
        assert!(turn.wait().await.is_ok());
    }

    #[test]
    fn the_section_of_origins_is_the_one_that_is_read() {
        let said = |refuses, lets_pass| no_origins(refuses, lets_pass, "[attestation.rpki]");
        let ends = |said: Option<String>| {
            said.is_some_and(|said| said.ends_with("name a cache or a file in [attestation.rpki]"))
        };
        assert!(ends(said(true, true)) && ends(said(true, false)) && said(false, false).is_none());
        assert!(ends(said(false, true)) && said(false, true).is_some_and(|said| said.contains("rpki_before_irr")));
    }

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
