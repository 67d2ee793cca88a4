//! Rates over all routers: listed, set, ended.

use std::sync::Arc;

use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use wayleave_control::capability::{ChangeBody, RatePayer, RateTerms};
use wayleave_control::leases::Offline;
use wayleave_packet::platypus::header::{DelegationId, Principal};

use super::super::core::lock;
use super::caller::{Caller, Operator, Reader};
use super::extract::{Json, NoBody, NoQuery, PrincipalNumber, Query};
use super::problem::{Problem, ProblemKind};
use super::{Answer, Api, Changed};

/// What becomes of a router's share while it hears nothing from the key server: it stays for a minute and dwindles in four, or it ends.
#[derive(Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum WhenOffline {
    #[default]
    Decay,
    Floor,
}

/// What a principal with all its delegations, or one delegation, may send a second through all routers together.
#[derive(Clone, Copy, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "principal": 7, "delegation": 3, "octets_per_second": 1_250_000 }))]
pub struct Rate {
    #[schema(maximum = 16_777_215)]
    principal: u32,
    #[serde(default)]
    #[schema(maximum = 16_777_215)]
    delegation: Option<u32>,
    /// Octets of IP packets.
    #[schema(minimum = 1, maximum = 1_099_511_627_776_u64)]
    octets_per_second: u64,
    /// Octets at once at each router; null for a tenth of a second's, and at least the longest packet.
    #[serde(default)]
    #[schema(minimum = 1_500, maximum = 1_099_511_627_776_u64)]
    burst_octets: Option<u64>,
    #[serde(default)]
    offline: WhenOffline,
}

/// Which rates.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub struct Filter {
    /// Only this principal's, and those of its delegations.
    #[param(value_type = Option<u32>, maximum = 16_777_215, example = 7)]
    principal: Option<PrincipalNumber>,
}

/// Rates.
#[derive(Serialize, ToSchema)]
pub struct Rates {
    /// Number of the last change.
    number: u64,
    rates: Vec<Rate>,
}

/// Whose rate.
#[derive(Clone, Copy, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub struct Whose {
    /// Of whom.
    #[param(maximum = 16_777_215, example = 7)]
    principal: u32,
    /// Of this delegation of the principal's.
    #[param(maximum = 16_777_215, example = 3)]
    delegation: Option<u32>,
}

fn payer(principal: u32, delegation: Option<u32>) -> Result<RatePayer, Problem> {
    let none = || Problem::new(ProblemKind::Request, "a principal or a delegation has 24 bits");
    Ok(RatePayer {
        principal: Principal::new(principal).ok_or_else(none)?,
        delegation: delegation.map(|id| DelegationId::new(id).ok_or_else(none)).transpose()?,
    })
}

impl Rate {
    fn of(payer: &RatePayer, terms: &RateTerms) -> Self {
        Self {
            principal: payer.principal.number(),
            delegation: payer.delegation.map(DelegationId::number),
            octets_per_second: terms.rate,
            burst_octets: Some(terms.burst).filter(|burst| *burst > 0),
            offline: match terms.offline {
                Offline::Decay => WhenOffline::Decay,
                Offline::Floor => WhenOffline::Floor,
            },
        }
    }

    fn terms(&self) -> Result<RateTerms, Problem> {
        let offline = match self.offline {
            WhenOffline::Decay => Offline::Decay,
            WhenOffline::Floor => Offline::Floor,
        };
        let terms = RateTerms { rate: self.octets_per_second, burst: self.burst_octets.unwrap_or(0), offline };
        if terms.is_sound() && self.burst_octets != Some(0) {
            return Ok(terms);
        }
        let (most, least) = (RateTerms::MOST, RateTerms::LEAST_BURST);
        let why = format!("octets_per_second is from 1 to {most}, burst_octets from {least} to {most}");
        Err(Problem::new(ProblemKind::Request, why))
    }
}

/// Rates by whose they are
#[utoipa::path(
    get,
    path = "/v1/rates",
    operation_id = "listRates",
    security(("token" = ["read"])),
    params(Filter),
    responses((status = 200, description = "Done.", body = Rates))
)]
pub async fn list(
    State(api): State<Arc<Api>>,
    _: Caller<Reader>,
    Query(filter): Query<Filter>,
    _: NoBody,
) -> Answer<Rates> {
    api.run(move |api| {
        let core = lock(&api.core);
        let state = core.server.state();
        let is_wanted = |payer: &RatePayer| filter.principal.is_none_or(|only| only.0 == payer.principal);
        let rates = state.rates().iter().filter(|(payer, _)| is_wanted(payer));
        let rates = rates.map(|(payer, terms)| Rate::of(payer, terms)).collect();
        Ok(Json(Rates { number: state.number(), rates }))
    })
    .await
}

/// Set a rate, in the place of one that there is; this server's routers are told at once
#[utoipa::path(
    put,
    path = "/v1/rates",
    operation_id = "setRate",
    security(("token" = ["operate"])),
    responses(
        (status = 200, description = "Done.", body = Changed),
        (status = 404, description = "There is no such account.")
    )
)]
pub async fn set(
    State(api): State<Arc<Api>>,
    caller: Caller<Operator>,
    _: NoQuery,
    Json(rate): Json<Rate>,
) -> Answer<Changed> {
    let (payer, terms) = (payer(rate.principal, rate.delegation)?, rate.terms()?);
    api.change_for(caller, move |state| {
        if state.account(payer.principal).is_none() {
            let why = format!("principal {} has no account", payer.principal.number());
            return Err(Problem::new(ProblemKind::NotFound, why));
        }
        let is_set = state.rates().get(&payer) == Some(&terms);
        Ok((!is_set).then_some(ChangeBody::SetRate { payer, terms }))
    })
    .await
}

/// End a rate over all routers
#[utoipa::path(
    delete,
    path = "/v1/rates",
    operation_id = "endRate",
    security(("token" = ["operate"])),
    params(Whose),
    responses((status = 200, description = "Done.", body = Changed), (status = 404, description = "There is no such thing."))
)]
pub async fn end(
    State(api): State<Arc<Api>>,
    caller: Caller<Operator>,
    Query(whose): Query<Whose>,
    _: NoBody,
) -> Answer<Changed> {
    let payer = payer(whose.principal, whose.delegation)?;
    api.change_for(caller, move |state| {
        if state.rates().contains_key(&payer) {
            return Ok(Some(ChangeBody::EndRate(payer)));
        }
        Err(Problem::new(ProblemKind::NotFound, format!("{payer} has no rate")))
    })
    .await
}
