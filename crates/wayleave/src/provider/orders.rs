//! What is to be granted, as a command's options or a request's fields say it.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use wayleave_control::capability::{Billing, ChangeBody, Grant, MAX_NAME, RatePayer, State, Terms};
use wayleave_core::Prefix;
use wayleave_packet::platypus::header::{Delegation, DelegationId, Interval, Principal, Width};
use wayleave_packet::platypus::revocation::Revocation;
use wayleave_packet::platypus::sources::{MAX_PREFIXES, Sources};
use wayleave_runtime::clock::{unix_of_utc, utc};
use wayleave_runtime::identity::to_hex;
use wayleave_store::Recorded;

use super::billing::{BillingFields, Pairs};
use crate::failure::Failure;
use crate::key_files::revocation::RevocationEntry;

/// Binary logarithm of a key epoch's length in seconds, if none is named: 68 minutes.
pub const DEFAULT_INTERVAL: u8 = 12;
/// Days of a grant, if none are named, and at most.
pub const DEFAULT_DAYS: u64 = 365;
pub const MAX_DAYS: u64 = 36_500;
/// Seconds of a day.
pub const DAY: u64 = 86_400;

/// A capability that is to be granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GrantOrder {
    pub principal: u32,
    pub waypoint: IpAddr,
    pub interval: u8,
    pub narrow: bool,
    pub prefix: Option<Prefix>,
    pub delegation: Option<u32>,
}

impl GrantOrder {
    /// What the capability says.
    ///
    /// # Errors
    /// Which number is none, or what does not fit together.
    pub fn terms(&self) -> Result<Terms, Failure> {
        let interval = Interval::new(self.interval)
            .ok_or_else(|| Failure::usage(format!("{} is not an interval, which is 4 to 24", self.interval)))?;
        let delegation = match (self.prefix, self.delegation) {
            (Some(prefix), Some(number)) => Some(Delegation { prefix, id: delegation_id(number)?, sub: None }),
            (None, None) => None,
            _ => return Err(Failure::usage("a prefix needs the number of a delegation, and the other way round")),
        };
        let width = if self.narrow { Width::Narrow } else { Width::Full };
        let principal = principal_of(self.principal)?;
        let terms = Terms { waypoint: self.waypoint, principal, interval, width, delegation };
        if terms.capability(0).is_consistent() {
            return Ok(terms);
        }
        Err(Failure::usage("the prefix is of another address family than the waypoint"))
    }
}

/// Which sources the delegations of an account may name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Serialize, ToSchema, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum DelegateSources {
    /// Prefixes within the account's own.
    Own,
    /// Any prefixes.
    Any,
}

impl DelegateSources {
    /// What a principal's sources say of its delegations; of a delegation's own there is nothing to say.
    pub fn of(sources: &Sources) -> Option<Self> {
        sources.delegation.is_none().then_some(if sources.delegates_any { Self::Any } else { Self::Own })
    }
}

/// Where packets of an account, or of one of its delegations, may come from, as a grant of it says; what it leaves out stays as it is.
#[derive(Clone, Debug)]
pub struct SourcesOrder {
    payer: RatePayer,
    prefixes: Option<Vec<Prefix>>,
    delegates: Option<DelegateSources>,
}

impl SourcesOrder {
    /// What is said with a grant of these terms; none if nothing is.
    ///
    /// # Errors
    /// If there are too many prefixes, or a delegation would say what delegations may name.
    pub fn new(
        terms: &Terms,
        prefixes: Option<Vec<Prefix>>,
        delegates: Option<DelegateSources>,
    ) -> Result<Option<Self>, Failure> {
        let payer =
            RatePayer { principal: terms.principal, delegation: terms.delegation.map(|delegation| delegation.id) };
        if payer.delegation.is_some() && delegates.is_some() {
            return Err(Failure::usage("what delegations may name is said of an account, and this is a delegation"));
        }
        let prefixes = prefixes.map(|mut prefixes| {
            prefixes.sort_unstable();
            prefixes.dedup();
            prefixes
        });
        match prefixes.as_ref().map(Vec::len).filter(|count| *count > MAX_PREFIXES) {
            Some(count) => Err(Failure::usage(format!("{count} source prefixes, expected at most {MAX_PREFIXES}"))),
            None => Ok((prefixes.is_some() || delegates.is_some()).then_some(Self { payer, prefixes, delegates })),
        }
    }

    /// The change that it takes; none if all is as it says.
    pub fn change(&self, state: &State) -> Option<ChangeBody> {
        let wanted = self.wanted(state);
        (!state.has_sources(&wanted)).then_some(ChangeBody::SetSources(wanted))
    }

    /// The same beside a grant, even if all is as it says: a grant makes place where one of before has ended, whose sources leave with it.
    pub fn beside_grant(&self, state: &State) -> ChangeBody {
        ChangeBody::SetSources(self.wanted(state))
    }

    fn wanted(&self, state: &State) -> Sources {
        let RatePayer { principal, delegation } = self.payer;
        let none = Sources { principal, delegation, delegates_any: false, prefixes: Vec::new() };
        let held = state.sources_of_payer(&self.payer).cloned().unwrap_or(none);
        Sources {
            delegates_any: self.delegates.map_or(held.delegates_any, |delegates| delegates == DelegateSources::Any),
            prefixes: self.prefixes.clone().unwrap_or(held.prefixes),
            ..held
        }
    }
}

/// The principal with this number.
///
/// # Errors
/// If it has more than 24 bits.
pub fn principal_of(number: u32) -> Result<Principal, Failure> {
    Principal::new(number).ok_or_else(|| Failure::usage(format!("{number} is not a principal, which has 24 bits")))
}

/// The delegation with this number.
///
/// # Errors
/// If it has more than 24 bits.
pub fn delegation_id(number: u32) -> Result<DelegationId, Failure> {
    DelegationId::new(number)
        .ok_or_else(|| Failure::usage(format!("{number} is not a delegation's number, which has 24 bits")))
}

/// A name of an account.
///
/// # Errors
/// If it is too long, or no printable ASCII.
pub fn check_name(name: &str) -> Result<(), Failure> {
    if wayleave_core::wire::is_text(name, MAX_NAME) {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "`{}` is not a name of at most {MAX_NAME} printable ASCII characters",
        name.escape_debug()
    )))
}

/// The change that opens a principal's account or renames it; none if there is one of this name.
pub fn open_or_rename(state: &State, principal: Principal, name: Option<&str>) -> Option<ChangeBody> {
    let known = state.account(principal);
    let (held, generation) = known.unwrap_or_else(|| ("", state.next_generation(principal)));
    let name = name.unwrap_or(held);
    (known.is_none() || name != held).then(|| ChangeBody::Account { principal, generation, name: name.to_owned() })
}

/// Why a grant with this name of an account is none for this principal: the account that there is has another name, and whoever is
/// granted anything of it has its keys and its bill.
///
/// # Errors
/// If the account has another name.
pub fn check_same_name(number: u32, held: Option<&str>, name: Option<&str>) -> Result<(), Failure> {
    match (held, name) {
        (Some(held), Some(name)) if !held.is_empty() && held != name => Err(Failure::new(format!(
            "principal {number} has an account already, `{held}`: whoever has this capability too shares its keys and its bill"
        ))
        .help(format!(
            "choose another --principal; or leave --name out if it is the same customer, whom `wayleave cap account {number} --name` renames"
        ))),
        _ => Ok(()),
    }
}

/// A change in a few words, for a log.
pub fn summary(body: &ChangeBody) -> String {
    match body {
        ChangeBody::Account { principal, generation, .. } => {
            format!("account {}, keys of generation {generation}", principal.number())
        }
        ChangeBody::Close { principal } => format!("account {} closed", principal.number()),
        ChangeBody::Grant(grant) => format!("granted: {}", grant.terms),
        ChangeBody::Withdraw(terms) => format!("withdrawn: {terms}"),
        ChangeBody::WithdrawBranch(terms) => format!("withdrawn with all that was delegated from it: {terms}"),
        ChangeBody::WithdrawDelegation { holder, delegation } => {
            let entry = Revocation { principal: holder.principal, delegation: Some(*delegation), epoch: None };
            format!("withdrawn by its holder: {}", RevocationEntry(entry))
        }
        ChangeBody::Revoke(entry) => format!("revoked: {}", RevocationEntry(*entry)),
        ChangeBody::Lift(entry) => format!("revocation lifted: {}", RevocationEntry(*entry)),
        ChangeBody::SetRate { payer, terms } => format!("rate of {payer} set to {} octets a second", terms.rate),
        ChangeBody::EndRate(payer) => format!("rate of {payer} ended"),
        ChangeBody::SetSources(sources) => {
            let prefixes: Vec<String> = sources.prefixes.iter().map(ToString::to_string).collect();
            let prefixes = if prefixes.is_empty() { "none named".to_owned() } else { prefixes.join(", ") };
            let delegates = if sources.delegates_any { "; delegations may name any" } else { "" };
            format!("sources of {}: {prefixes}{delegates}", RatePayer::from(sources))
        }
        ChangeBody::SetBilling { of, billing } => {
            let whose =
                of.grant.map_or_else(|| format!("account {}", of.principal.number()), |terms| terms.to_string());
            format!("billing of {whose}: {}", described(billing))
        }
        ChangeBody::SetQuota { principal, quota } => {
            let limit = |name: &str, octets: Option<u64>| octets.map(|octets| format!("{name} {octets}"));
            let limits: Vec<String> = limit("soft", quota.soft).into_iter().chain(limit("hard", quota.hard)).collect();
            format!("quota of principal {} set to {} octets a month", principal.number(), limits.join(", "))
        }
        ChangeBody::EndQuota { principal } => format!("quota of principal {} ended", principal.number()),
        ChangeBody::UseUpQuota { payer, month } => {
            format!("{payer} has used up its quota of the month that began at {}", utc(*month))
        }
        ChangeBody::LimitDelegation { payer, limit } => {
            let rate = limit.rate.map(|terms| format!("{} octets a second", terms.rate));
            let volume = limit.month_octets.map(|octets| format!("{octets} octets a month"));
            let limits: Vec<String> = rate.into_iter().chain(volume).collect();
            if limits.is_empty() {
                return format!("limit of {payer} ended by its holder");
            }
            format!("{payer} limited by its holder to {}", limits.join(", "))
        }
        ChangeBody::Several(bodies) => bodies.iter().map(summary).collect::<Vec<_>>().join("; "),
        ChangeBody::Invite(invitation) => format!("invitation {}", invitation.id),
        ChangeBody::Redeem { invitation, .. } => format!("invitation {invitation} redeemed"),
        ChangeBody::Uninvite(invitation) => format!("invitation {invitation} withdrawn"),
    }
}

fn described(billing: &Billing) -> String {
    let named = |name: &str, text: &str| (!text.is_empty()).then(|| format!("{name} {text}"));
    let pairs = billing.metadata.iter().map(|pair| format!("{}={}", pair.key, pair.value));
    let known = named("external ID", &billing.external_id).into_iter().chain(named("price", &billing.price));
    let all: Vec<String> = known.chain(pairs).collect();
    if all.is_empty() { "nothing".to_owned() } else { all.join(", ") }
}

/// A grant by its ID and terms.
#[derive(Serialize, ToSchema)]
pub struct NamedGrant {
    #[schema(pattern = "^[0-9a-f]{16}$")]
    id: String,
    terms: String,
}

/// Grants by their IDs and terms.
pub fn named(grants: &[Grant]) -> Vec<NamedGrant> {
    let named = |grant: &Grant| NamedGrant { id: grant_id(&grant.terms), terms: grant.terms.to_string() };
    grants.iter().map(named).collect()
}

/// What was delegated from these terms and lasts beyond this Unix second.
pub fn beyond(state: &State, terms: &Terms, not_after: u64) -> Vec<Grant> {
    state.delegated_from(*terms).filter(|grant| grant.not_after > not_after).collect()
}

/// Names a grant of an account: 16 hexadecimal digits that follow from its terms.
pub fn grant_id(terms: &Terms) -> String {
    to_hex(&terms.digest()[..8])
}

/// A time in a request (RFC 3339), in Unix seconds.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, ToSchema)]
#[serde(try_from = "String")]
#[schema(value_type = String, format = DateTime)]
pub struct Time(pub u64);

impl TryFrom<String> for Time {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        let seconds = unix_of_utc(&text);
        seconds.map(Self).ok_or_else(|| format!("`{}` is not a time such as 2027-01-31T00:00:00Z", text.escape_debug()))
    }
}

/// A capability to grant, as a request says it.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(
    as = NewGrant,
    example = json!({
        "principal": 7, "waypoint": "198.51.100.1", "interval": 12, "prefix": "203.0.113.0/24", "delegation": 3, "days": 30,
        "sources": ["192.0.2.0/24"],
        "external_id": "line-17", "price": "EUR 0.42/TB", "metadata": { "contract": "2026-117" },
    })
)]
pub struct GrantFields {
    #[schema(maximum = 16_777_215)]
    pub principal: u32,
    /// An IP address.
    #[schema(value_type = String)]
    pub waypoint: IpAddr,
    /// Binary logarithm of a key epoch's length in seconds; 12 by default.
    #[schema(minimum = 4, maximum = 24)]
    pub interval: Option<u8>,
    /// Whether bindings have 64 bits.
    #[serde(default)]
    pub narrow: bool,
    /// Destinations that it is restricted to; needs `delegation`.
    pub prefix: Option<String>,
    #[schema(maximum = 16_777_215)]
    pub delegation: Option<u32>,
    /// How long it is granted from now on; 365 by default.
    #[schema(minimum = 1, maximum = 36_500)]
    pub days: Option<u64>,
    /// Until when it is granted, in the place of `days`.
    pub ends: Option<Time>,
    /// Prefixes from which the principal's packets may come, or the delegation's if one is named: at all waypoints, and in the place of those
    /// that there are. Without it these stay; an empty list lets them come from anywhere, and a delegation's from where its principal's may.
    #[schema(max_items = 16)]
    pub sources: Option<Vec<String>>,
    /// Whether the principal's delegations may name prefixes outside its own; stays as it is if it is not said. Not with `delegation`.
    pub delegate_sources: Option<DelegateSources>,
    /// The provider's own ID of it; empty for none. Absent, it stays as it is.
    #[schema(max_length = 128, pattern = "^[ -~]*$")]
    pub external_id: Option<String>,
    /// A label, or an amount with its currency, that statements show; empty for none. Absent, it stays as it is.
    #[schema(max_length = 64, pattern = "^[ -~]*$")]
    pub price: Option<String>,
    /// Texts by their keys, 16 at most, in the place of all that there are. Absent, they stay as they are.
    pub metadata: Option<Pairs>,
}

/// A capability to grant until a time, as a request says it.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(
    as = PutGrant,
    example = json!({
        "principal": 7, "waypoint": "198.51.100.1", "ends": "2100-01-01T00:00:00Z",
        "sources": ["192.0.2.0/24", "2001:db8::/48"], "delegate_sources": "any",
    })
)]
pub struct PutGrantFields {
    #[schema(maximum = 16_777_215)]
    principal: u32,
    /// An IP address.
    #[schema(value_type = String)]
    waypoint: IpAddr,
    /// Binary logarithm of a key epoch's length in seconds; 12 by default.
    #[schema(minimum = 4, maximum = 24)]
    interval: Option<u8>,
    /// Whether bindings have 64 bits.
    #[serde(default)]
    narrow: bool,
    /// Destinations that it is restricted to; needs `delegation`.
    prefix: Option<String>,
    #[schema(maximum = 16_777_215)]
    delegation: Option<u32>,
    /// Until when it is granted, be that later or sooner than before. Days would be counted anew with each repeat.
    ends: Time,
    /// Prefixes from which the principal's packets may come, or the delegation's if one is named: at all waypoints, and in the place of those
    /// that there are. Without it these stay; an empty list lets them come from anywhere, and a delegation's from where its principal's may.
    #[schema(max_items = 16)]
    sources: Option<Vec<String>>,
    /// Whether the principal's delegations may name prefixes outside its own; stays as it is if it is not said. Not with `delegation`.
    delegate_sources: Option<DelegateSources>,
    /// The provider's own ID of it; empty for none. Absent, it stays as it is.
    #[schema(max_length = 128, pattern = "^[ -~]*$")]
    external_id: Option<String>,
    /// A label, or an amount with its currency, that statements show; empty for none. Absent, it stays as it is.
    #[schema(max_length = 64, pattern = "^[ -~]*$")]
    price: Option<String>,
    /// Texts by their keys, 16 at most, in the place of all that there are. Absent, they stay as they are.
    metadata: Option<Pairs>,
}

impl From<PutGrantFields> for GrantFields {
    fn from(put: PutGrantFields) -> Self {
        Self {
            principal: put.principal,
            waypoint: put.waypoint,
            interval: put.interval,
            narrow: put.narrow,
            prefix: put.prefix,
            delegation: put.delegation,
            days: None,
            ends: Some(put.ends),
            sources: put.sources,
            delegate_sources: put.delegate_sources,
            external_id: put.external_id,
            price: put.price,
            metadata: put.metadata,
        }
    }
}

impl GrantFields {
    /// What billing is to know of it.
    ///
    /// # Errors
    /// If it is too long, or no printable ASCII.
    pub fn billing(&self) -> Result<BillingFields, Failure> {
        let (external_id, price, metadata) = (self.external_id.clone(), self.price.clone(), self.metadata.clone());
        let fields = BillingFields { external_id, price, metadata };
        fields.check()?;
        Ok(fields)
    }

    /// The order.
    ///
    /// # Errors
    /// If the prefix is none.
    pub fn order(&self) -> Result<GrantOrder, Failure> {
        let prefix = match &self.prefix {
            None => None,
            Some(text) => Some(text.parse().map_err(|error| Failure::usage(format!("`prefix`: {error}")))?),
        };
        let (principal, waypoint, narrow, delegation) = (self.principal, self.waypoint, self.narrow, self.delegation);
        let interval = self.interval.unwrap_or(DEFAULT_INTERVAL);
        Ok(GrantOrder { principal, waypoint, interval, narrow, prefix, delegation })
    }

    /// What it says of sources, where it grants these terms; none if that is nothing.
    ///
    /// # Errors
    /// If a prefix is none, or what [`SourcesOrder::new`] refuses.
    pub fn sources(&self, terms: &Terms) -> Result<Option<SourcesOrder>, Failure> {
        let parse = |text: &String| text.parse().map_err(|error| Failure::usage(format!("`sources`: {error}")));
        let prefixes = self.sources.as_ref().map(|all| all.iter().map(parse).collect()).transpose()?;
        SourcesOrder::new(terms, prefixes, self.delegate_sources)
    }
}

/// The last Unix second of what lasts until a time, or for days from now on.
///
/// # Errors
/// If both are named, or if it is over or more than a hundred years ahead.
pub fn end(ends: Option<Time>, named: Option<u64>, default: u64, now: u64) -> Result<u64, Failure> {
    match (ends, named) {
        (None, named) => Ok(now + days(named, default)?),
        (Some(_), Some(_)) => Err(Failure::usage("both a time and days say when it ends, expected one of them")),
        (Some(Time(ends)), None) if (now..=now + MAX_DAYS * DAY).contains(&ends) => Ok(ends),
        (Some(Time(ends)), None) => {
            Err(Failure::usage(format!("{} is over, or more than {MAX_DAYS} days ahead", utc(ends))))
        }
    }
}

/// Days of a grant or an invitation in seconds.
///
/// # Errors
/// If they are none, or more than a hundred years.
pub fn days(named: Option<u64>, default: u64) -> Result<u64, Failure> {
    let days = named.unwrap_or(default);
    if (1..=MAX_DAYS).contains(&days) {
        return Ok(days * DAY);
    }
    Err(Failure::usage(format!("{days} days, expected 1 to {MAX_DAYS}")))
}

/// Octets of the reason of a change, at most.
pub const MAX_REASON: usize = 200;

/// Whether the trail of changes takes a text as the reason of one.
pub fn is_reason(text: &str) -> bool {
    text.len() <= MAX_REASON && !text.chars().any(is_unshown)
}

/// Whether a character changes how others are shown: a control character, or one of direction or of no width (Unicode, categories Cc and
/// Cf).
fn is_unshown(character: char) -> bool {
    let is_format = matches!(character, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
    character.is_control() || is_format
}

/// A change, as commands and the API show it.
#[derive(Serialize, ToSchema)]
pub struct MadeChange {
    pub number: u64,
    /// ISO 8601.
    time: String,
    /// The name of a token, a user of the machine, or the holder.
    by: String,
    what: String,
    /// As whoever made it said.
    reason: String,
}

impl From<&Recorded> for MadeChange {
    fn from(recorded: &Recorded) -> Self {
        let what = recorded.change.as_ref().map(|change| summary(&change.object().body));
        Self {
            number: recorded.position.number,
            time: utc(recorded.issued),
            by: recorded.actor.clone(),
            what: what.unwrap_or_else(|| "another state was taken over".to_owned()),
            reason: recorded.reason.clone(),
        }
    }
}
