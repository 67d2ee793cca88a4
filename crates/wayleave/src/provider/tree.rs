//! Accounts with what they were granted, as a tree: waypoints, capabilities there, delegations of these, and theirs.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;
use wayleave_control::capability::{Billing, Grant, State, Terms};
use wayleave_core::UnixTime;
use wayleave_packet::platypus::header::{DelegationId, Principal, Width};
use wayleave_packet::platypus::mint::epoch;
use wayleave_packet::platypus::sources::Sources;
use wayleave_runtime::clock::utc;

use super::billing::{Pairs, pairs, some};
use super::orders::{DelegateSources, grant_id};
use super::waypoints::WaypointLabels;

/// An account with all its grants.
#[derive(Serialize, ToSchema)]
pub struct AccountTree {
    #[schema(maximum = 16_777_215)]
    pub principal: u32,
    name: String,
    /// Of the account's keys; a higher one has replaced all.
    generation: u32,
    /// Where packets may come from, if that was ever said of the account or of one of its delegations.
    sources: Vec<AccountSources>,
    /// The provider's own ID.
    #[schema(required)]
    external_id: Option<String>,
    /// The present price tag.
    #[schema(required)]
    price: Option<String>,
    /// What the provider noted; with a token for `own` nothing.
    metadata: Pairs,
    waypoints: Vec<GrantsAtWaypoint>,
}

/// Where packets of an account, or of one of its delegations, may come from.
#[derive(Serialize, ToSchema)]
pub struct AccountSources {
    /// The account itself if null.
    #[schema(required)]
    delegation: Option<u32>,
    /// None for any source; of a delegation, for those of its account.
    prefixes: Vec<String>,
    /// Of the account: what its delegations may name.
    #[schema(required)]
    delegate_sources: Option<DelegateSources>,
}

/// A waypoint, as the configuration names it.
#[derive(Serialize, ToSchema)]
pub struct Waypoint {
    #[schema(value_type = String)]
    address: IpAddr,
    /// Null if the configuration has no key of it.
    #[schema(required, value_type = Option<String>, pattern = "^(router|pop|as)$")]
    kind: Option<&'static str>,
    #[schema(required)]
    name: Option<String>,
}

impl Waypoint {
    /// The waypoint at this address.
    pub fn new(address: IpAddr, labels: &WaypointLabels) -> Self {
        let label = labels.get(&address);
        Self { address, kind: label.map(|label| label.kind.name()), name: label.and_then(|label| label.name.clone()) }
    }
}

/// What an account was granted at a waypoint.
#[derive(Serialize, ToSchema)]
pub struct GrantsAtWaypoint {
    #[serde(flatten)]
    waypoint: Waypoint,
    grants: Vec<GrantTree>,
}

/// A grant with all that was delegated from it.
#[derive(Serialize, ToSchema)]
pub struct GrantTree {
    #[schema(pattern = "^[0-9a-f]{16}$")]
    id: String,
    /// Binary logarithm of a key epoch's length in seconds.
    #[schema(minimum = 4, maximum = 24)]
    interval: u8,
    /// Whether bindings have 64 bits.
    narrow: bool,
    #[schema(required)]
    delegation: Option<u32>,
    #[schema(required)]
    sub_delegation: Option<u32>,
    /// Destinations that it is restricted to.
    #[schema(required)]
    prefix: Option<String>,
    /// Unix seconds.
    from: u64,
    /// Unix seconds.
    until: u64,
    state: GrantState,
    /// The provider's own ID.
    #[schema(required)]
    external_id: Option<String>,
    /// The present price tag.
    #[schema(required)]
    price: Option<String>,
    /// What the provider noted; with a token for `own` nothing.
    metadata: Pairs,
    #[schema(no_recursion)]
    delegations: Vec<GrantTree>,
}

/// How a grant stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum GrantState {
    Granted,
    /// Its time has not begun.
    Later,
    Ended,
    Revoked,
}

/// What is read of an account at once: no grant of it can change meanwhile.
pub struct AccountGrants {
    principal: Principal,
    name: String,
    generation: u32,
    sources: Vec<Sources>,
    /// Each with the times in which it is answered, and its state now.
    grants: Vec<(Grant, GrantState)>,
    /// What billing knows of the account (`None`) and of its grants.
    billing: HashMap<Option<Terms>, Billing>,
}

impl AccountGrants {
    /// Reads an account; `None` if there is none.
    pub fn read(state: &State, principal: Principal, now: UnixTime) -> Option<Self> {
        let (name, generation) = state.account(principal)?;
        let status = |grant: Grant| {
            let current = epoch::epoch_at(grant.terms.interval, now);
            let status = match () {
                () if state.is_revoked(&grant.terms, current) => GrantState::Revoked,
                () if grant.not_after < now.secs() => GrantState::Ended,
                () if grant.not_before > now.secs() => GrantState::Later,
                () => GrantState::Granted,
            };
            (grant, status)
        };
        let grants = state.capped_grants_of(principal).map(status).collect();
        let sources = state.sources_of(principal).cloned().collect();
        let billing = state.billing_of(principal).map(|(of, record)| (of.grant, record.present())).collect();
        Some(Self { principal, name: name.to_owned(), generation, sources, grants, billing })
    }

    /// Without what the provider noted for itself.
    pub fn for_customer(mut self) -> Self {
        self.billing.values_mut().for_each(|billing| billing.metadata.clear());
        self
    }

    /// Keeps what the provider knows by this ID: all grants if it is the account's; whether that is anything.
    pub fn keep_known_as(&mut self, external_id: &str) -> bool {
        let billing = &self.billing;
        let is_known = |of: Option<Terms>| billing.get(&of).is_some_and(|billing| billing.external_id == external_id);
        let is_all = is_known(None);
        self.grants.retain(|(grant, _)| is_all || is_known(Some(grant.terms)));
        is_all || !self.grants.is_empty()
    }

    /// Keeps what is granted at this waypoint; whether that is anything.
    pub fn keep_at(&mut self, waypoint: IpAddr) -> bool {
        self.grants.retain(|(grant, _)| grant.terms.waypoint == waypoint);
        !self.grants.is_empty()
    }

    /// Number of grants.
    pub fn len(&self) -> usize {
        self.grants.len()
    }

    /// The account as a tree.
    pub fn tree(&self, labels: &WaypointLabels) -> AccountTree {
        let mut waypoints: BTreeMap<IpAddr, Vec<&(Grant, GrantState)>> = BTreeMap::new();
        for grant in &self.grants {
            waypoints.entry(grant.0.terms.waypoint).or_default().push(grant);
        }
        let waypoints = waypoints
            .into_iter()
            .map(|(address, mut grants)| {
                grants.sort_by_cached_key(|(grant, _)| rank(&grant.terms));
                let waypoint = Waypoint::new(address, labels);
                GrantsAtWaypoint { waypoint, grants: below(None, &by_parent(&grants), &self.billing) }
            })
            .collect();
        let sources = self.sources.iter().map(|of| AccountSources {
            delegation: of.delegation.map(DelegationId::number),
            prefixes: of.prefixes.iter().map(ToString::to_string).collect(),
            delegate_sources: DelegateSources::of(of),
        });
        let (principal, name) = (self.principal.number(), self.name.clone());
        let (external_id, price, metadata) = known(self.billing.get(&None));
        let (generation, sources) = (self.generation, sources.collect());
        AccountTree { principal, name, generation, sources, external_id, price, metadata, waypoints }
    }
}

/// By what grants of one waypoint are in order: interval, width, then delegation, prefix and sub-delegation.
type Rank = (u8, bool, Option<(u32, String, Option<u32>)>);

fn rank(terms: &Terms) -> Rank {
    let delegation = terms.delegation.map(|delegation| {
        (delegation.id.number(), delegation.prefix.to_string(), delegation.sub.map(|sub| sub.id.number()))
    });
    (terms.interval.exponent(), terms.width == Width::Narrow, delegation)
}

/// Grants of one waypoint by what they were delegated from; by `None` those whose own parent was not granted.
type ByParent<'a> = HashMap<Option<Terms>, Vec<&'a (Grant, GrantState)>>;

fn by_parent<'a>(all: &[&'a (Grant, GrantState)]) -> ByParent<'a> {
    let granted: HashSet<Terms> = all.iter().map(|(grant, _)| grant.terms).collect();
    let mut by_parent = ByParent::new();
    for entry in all {
        let parent = entry.0.terms.parent().filter(|parent| granted.contains(parent));
        by_parent.entry(parent).or_default().push(entry);
    }
    by_parent
}

/// The grants that were delegated from `parent`, with theirs: three levels at most, since a sub-delegation is not delegated further.
fn below(parent: Option<Terms>, all: &ByParent<'_>, billing: &HashMap<Option<Terms>, Billing>) -> Vec<GrantTree> {
    let own = all.get(&parent).into_iter().flatten();
    own.map(|(grant, state)| {
        let Grant { terms, not_before, not_after } = grant;
        let delegation = terms.delegation;
        let (external_id, price, metadata) = known(billing.get(&Some(*terms)));
        GrantTree {
            id: grant_id(terms),
            interval: terms.interval.exponent(),
            narrow: terms.width == Width::Narrow,
            delegation: delegation.map(|delegation| delegation.id.number()),
            sub_delegation: delegation.and_then(|delegation| delegation.sub).map(|sub| sub.id.number()),
            prefix: delegation.map(|delegation| delegation.prefix.to_string()),
            from: *not_before,
            until: *not_after,
            state: *state,
            external_id,
            price,
            metadata,
            delegations: below(Some(*terms), all, billing),
        }
    })
    .collect()
}

/// External ID, price tag and metadata.
pub fn known(billing: Option<&Billing>) -> (Option<String>, Option<String>, Pairs) {
    let shown = |billing: &Billing| (some(&billing.external_id), some(&billing.price), pairs(billing));
    billing.map(shown).unwrap_or_default()
}

/// Trees as indented text.
pub fn text(principals: &[Value]) -> String {
    let mut out = String::new();
    for account in principals {
        let of_account = billing(account);
        out += &format!("principal {} {}{of_account}\n", account["principal"], named(&account["name"]));
        account["sources"].as_array().into_iter().flatten().for_each(|of| sources(&mut out, of));
        for waypoint in account["waypoints"].as_array().into_iter().flatten() {
            let address = waypoint["address"].as_str().unwrap_or_default();
            let kind = waypoint["kind"].as_str().unwrap_or("waypoint without a key here,");
            let name = named(&waypoint["name"]);
            out += format!("  {kind} {address} {name}").trim_end();
            out.push('\n');
            grants(&mut out, &waypoint["grants"], 4);
        }
    }
    out
}

fn sources(out: &mut String, of: &Value) {
    let prefixes: Vec<&str> = of["prefixes"].as_array().into_iter().flatten().map(named).collect();
    let (whose, none) = match of["delegation"].as_u64() {
        Some(id) => (format!("sources of delegation {id}"), "those of its principal"),
        None => ("sources".to_owned(), "any"),
    };
    let prefixes = if prefixes.is_empty() { none.to_owned() } else { prefixes.join(", ") };
    let delegates = if of["delegate_sources"] == "any" { "; delegations may name others" } else { "" };
    *out += &format!("  {whose}: {prefixes}{delegates}\n");
}

fn named(name: &Value) -> &str {
    name.as_str().unwrap_or_default()
}

fn grants(out: &mut String, all: &Value, indent: usize) {
    for grant in all.as_array().into_iter().flatten() {
        let what = match (grant["delegation"].as_u64(), grant["sub_delegation"].as_u64()) {
            (Some(id), Some(sub)) => format!("delegation {id}/{sub} to {}", named(&grant["prefix"])),
            (Some(id), None) => format!("delegation {id} to {}", named(&grant["prefix"])),
            _ => "capability".to_owned(),
        };
        let narrow = if grant["narrow"] == true { ", narrow" } else { "" };
        let state = status(grant);
        let (interval, id) = (&grant["interval"], named(&grant["id"]));
        *out += &format!("{:indent$}{what}: {state}, interval {interval}{narrow}, {id}{}\n", "", billing(grant));
        grants(out, &grant["delegations"], indent + 2);
    }
}

/// What billing knows of an account or a grant, but for metadata.
fn billing(of: &Value) -> String {
    let known = [("known as", &of["external_id"]), ("price", &of["price"])];
    let texts = known.into_iter().filter(|(_, value)| value.is_string());
    texts.map(|(what, value)| format!(", {what} {}", named(value))).collect()
}

/// How a grant stands, and the times of what was granted: a revocation has no end.
fn status(grant: &Value) -> String {
    let time = |of: &str| grant[of].as_u64().map_or_else(String::new, utc);
    match named(&grant["state"]) {
        "revoked" => format!("revoked (was granted until {})", time("until")),
        "ended" => format!("ended {}", time("until")),
        "later" => format!("granted from {} until {}", time("from"), time("until")),
        state => format!("{state} until {}", time("until")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use wayleave_control::capability::{ChangeBody, ProviderKey};
    use wayleave_crypto::secret::Seed;
    use wayleave_crypto::sign::SigningKey;
    use wayleave_packet::platypus::header::{Delegation, DelegationId, Interval, SubDelegation};
    use wayleave_packet::platypus::revocation::Revocation;

    use super::*;
    use crate::provider::waypoints::{WaypointKind, label_of};

    const NOW: UnixTime = UnixTime(1_800_000_000 * 1_000_000);

    #[test]
    fn delegations_stand_below_what_they_were_delegated_from_and_orphans_at_their_waypoint() {
        let key = SigningKey::from_seed(&Seed::new([1; 32]));
        let mut state = State::new(ProviderKey::new(Seed::new([2; 32])));
        let mut change = |body| {
            let signed = state.sign(body, &key, NOW).expect("possible");
            state.apply(&signed, &key.verifying_key()).expect("the next");
        };
        let principal = Principal::new(7).expect("24 bits");
        let id = |id| DelegationId::new(id).expect("24 bits");
        let address: IpAddr = "198.51.100.1".parse().expect("an address");
        let interval = Interval::new(12).expect("in range");
        let root = Terms { waypoint: address, principal, interval, width: Width::Full, delegation: None };
        let prefix = "203.0.113.0/24".parse().expect("a prefix");
        let wide = "203.0.0.0/8".parse().expect("a prefix");
        let sub = Some(SubDelegation { at: 8, id: id(9) });
        let branch = Terms { delegation: Some(Delegation { prefix: wide, id: id(3), sub: None }), ..root };
        let desk = Terms { delegation: Some(Delegation { prefix, id: id(3), sub }), ..root };
        let orphan = Terms { interval: Interval::new(16).expect("in range"), ..branch };
        change(ChangeBody::Account { principal, generation: 0, name: "customer".to_owned() });
        for terms in [desk, orphan, root, branch] {
            change(ChangeBody::Grant(Grant { terms, not_before: 0, not_after: 1_800_000_001 }));
        }
        change(ChangeBody::Revoke(Revocation { principal, delegation: Some((id(3), Some(id(9)))), epoch: None }));
        let prefixes = vec!["192.0.2.0/25".parse().expect("a prefix"), "192.0.2.192/28".parse().expect("a prefix")];
        let own = Sources { principal, delegation: None, delegates_any: true, prefixes };
        let of_branch = Sources { delegation: Some(id(3)), delegates_any: false, prefixes: Vec::new(), ..own.clone() };
        let held = Sources { prefixes: vec!["198.18.0.0/24".parse().expect("a prefix")], ..of_branch.clone() };
        [own, held, of_branch].into_iter().for_each(|sources| change(ChangeBody::SetSources(sources)));
        let labels = [(address, label_of(WaypointKind::Pop, Some("fra")))].into();
        let tree = json!(AccountGrants::read(&state, principal, NOW).expect("an account").tree(&labels));
        assert_eq!(tree["waypoints"][0]["kind"], "pop");
        let grants = &tree["waypoints"][0]["grants"];
        assert_eq!(grants.as_array().map(Vec::len), Some(2));
        let nested = &grants[0]["delegations"][0]["delegations"][0];
        assert_eq!((&nested["sub_delegation"], &nested["state"]), (&json!(9), &json!("revoked")));
        assert_eq!((&grants[1]["interval"], &grants[1]["delegation"]), (&json!(16), &json!(3)));
        let text = text(&[tree]);
        assert!(text.contains("\n      delegation 3 to 203.0.0.0/8: granted"), "{text}");
        assert!(text.contains("\n        delegation 3/9 to 203.0.113.0/24: revoked"), "{text}");
        let head = "principal 7 customer\n  sources: 192.0.2.0/25, 192.0.2.192/28; delegations may name others\n  \
                    sources of delegation 3: those of its principal\n  pop 198.51.100.1 fra\n    capability: granted";
        assert!(text.starts_with(head), "{text}");
    }

    /// More than an account may have: with a look at every grant for each pair of them this does not end.
    #[test]
    fn twenty_thousand_delegations_are_a_tree_whether_they_are_beside_or_below_each_other() {
        const COUNT: u32 = 20_000;
        let principal = Principal::new(7).expect("24 bits");
        let id = |number| DelegationId::new(number).expect("24 bits");
        let interval = Interval::new(12).expect("in range");
        let waypoint = "198.51.100.1".parse().expect("an address");
        let root = Terms { waypoint, principal, interval, width: Width::Full, delegation: None };
        let prefix = "203.0.113.0/24".parse().expect("a prefix");
        let delegation = |number| Delegation { prefix, id: id(number), sub: None };
        let of = |all: Vec<Terms>| {
            let grants = all
                .into_iter()
                .map(|terms| (Grant { terms, not_before: 0, not_after: 1 }, GrantState::Granted))
                .collect();
            let (name, sources, billing) = (String::new(), Vec::new(), HashMap::new());
            let account = AccountGrants { principal, name, generation: 0, sources, grants, billing };
            json!(account.tree(&WaypointLabels::new()))
        };
        let count = |grants: &Value| grants.as_array().map_or(0, Vec::len);
        let branches = (1..=COUNT).map(|number| Terms { delegation: Some(delegation(number)), ..root });
        let fan = of(std::iter::once(root).chain(branches.clone()).collect());
        let fan = &fan["waypoints"][0]["grants"];
        assert_eq!((count(fan), count(&fan[0]["delegations"])), (1, COUNT as usize));
        // Each delegation is delegated on: no chain is longer.
        let leaves = branches.clone().map(|terms| {
            let sub = Some(SubDelegation { at: 24, id: id(1) });
            Terms { delegation: terms.delegation.map(|delegation| Delegation { sub, ..delegation }), ..terms }
        });
        let deep = of(leaves.chain(branches).chain([root]).collect());
        let branches = &deep["waypoints"][0]["grants"][0]["delegations"];
        let branches = branches.as_array().expect("a list");
        assert!(branches.len() == COUNT as usize && branches.iter().all(|branch| count(&branch["delegations"]) == 1));
    }
}
