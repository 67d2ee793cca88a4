//! What routers refused of a payer's packets, on its way to key servers, and from there to its holder.
//!
//! Routers count packets with a right MAC alone: what is forged in somebody's name is refused before it is known whose it is, and is in
//! no payer's counts. They count since their process has started, and report all counts again and again, so that a report may be lost,
//! and a key server that starts again has them with the next one. A router that starts again counts from zero: nothing of it is billed.

use std::collections::{BTreeMap, BTreeSet};

use wayleave_core::UnixTime;
use wayleave_core::wire::{List16, Malformed};
use wayleave_packet::platypus::header::Principal;

use super::codecs::PrincipalCodec;
use super::usage::RouterNumber;

/// Payers of one report, at most: as many as a thread of a router tells apart.
pub const MAX_REFUSED: usize = 1_024;
const REASONS: usize = RefusalReason::ALL.len();

wayleave_core::wire! {
    /// Why a router refuses a packet with a right MAC.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
    pub enum RefusalReason: "the reason of a refusal" {
        0 = Revoked,
        1 = RevocationsUnknown,
        2 = Sources,
        3 = SourcesUnknown,
        4 = BeforeStart,
        5 = Replayed,
        6 = ReplayFull,
        7 = Rate,
        8 = AccountsFull,
    }

    /// What was refused to a principal with all its delegations.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub struct PayerRefusals: Self::check {
        pub principal: Principal as PrincipalCodec,
        /// Packets by reason, in ascending order of reasons.
        pub packets: Vec<(RefusalReason, u64)> as List16<REASONS>,
    }

    /// What a router refused since it began to count.
    #[derive(Clone, PartialEq, Eq, Debug, Default)]
    pub struct RefusalReport: Self::check {
        /// For how many seconds it has counted, rounded up: by no wall clock, which may have been wrong.
        pub secs: u64,
        /// In ascending order of principals.
        pub payers: Vec<PayerRefusals> as List16<MAX_REFUSED>,
    }

    /// What a holder is told of it.
    #[derive(Clone, PartialEq, Eq, Debug, Default)]
    pub struct HeldRefusals {
        /// Routers that have reported; those that began to count when the number was another's are not among them.
        pub routers: u16,
        /// Unix second since which the first of these has counted; zero if there is none.
        pub since: u64,
        /// Unix second at which the one that was heard of longest ago has reported; zero if there is none.
        pub as_of: u64,
        /// Packets by reason, over these routers.
        pub packets: Vec<(RefusalReason, u64)> as List16<REASONS>,
    }
}

impl RefusalReason {
    pub const ALL: [Self; 9] = [
        Self::Revoked,
        Self::RevocationsUnknown,
        Self::Sources,
        Self::SourcesUnknown,
        Self::BeforeStart,
        Self::Replayed,
        Self::ReplayFull,
        Self::Rate,
        Self::AccountsFull,
    ];

    /// Its name in metrics of routers.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Revoked => "revoked",
            Self::RevocationsUnknown => "revocations-unknown",
            Self::Sources => "sources",
            Self::SourcesUnknown => "sources-unknown",
            Self::BeforeStart => "before-start",
            Self::Replayed => "replayed",
            Self::ReplayFull => "replay-full",
            Self::Rate => "rate",
            Self::AccountsFull => "accounts-full",
        }
    }
}

/// Packets by reason.
pub type RefusedPackets = BTreeMap<RefusalReason, u64>;

impl PayerRefusals {
    fn check(&self) -> Result<(), Malformed> {
        let ascends = self.packets.is_sorted_by(|(a, _), (b, _)| a < b);
        if ascends { Ok(()) } else { Err(Malformed::Order("reasons of refusals")) }
    }
}

impl RefusalReport {
    /// Of these counts those of the payers with most packets.
    #[must_use]
    pub fn largest(secs: u64, of: BTreeMap<Principal, RefusedPackets>) -> Self {
        let all = of.into_iter().filter_map(|(principal, packets)| {
            let packets: Vec<_> = packets.into_iter().filter(|(_, count)| *count > 0).collect();
            (!packets.is_empty()).then_some(PayerRefusals { principal, packets })
        });
        let mut payers: Vec<PayerRefusals> = all.collect();
        let sum = |of: &PayerRefusals| of.packets.iter().fold(0_u64, |sum, (_, count)| sum.saturating_add(*count));
        payers.sort_by_key(|of| std::cmp::Reverse(sum(of)));
        payers.truncate(MAX_REFUSED);
        payers.sort_by_key(|of| of.principal);
        Self { secs, payers }
    }

    fn check(&self) -> Result<(), Malformed> {
        let ascends = self.payers.is_sorted_by(|a, b| a.principal < b.principal);
        if ascends { Ok(()) } else { Err(Malformed::Order("principals of refusals")) }
    }
}

/// The last report of each router.
#[derive(Default)]
pub(super) struct Refusals(BTreeMap<RouterNumber, RouterRefusals>);

struct RouterRefusals {
    /// Unix seconds at the server.
    since: u64,
    received: u64,
    payers: BTreeMap<Principal, Vec<(RefusalReason, u64)>>,
}

impl Refusals {
    /// Takes a report in the place of the router's last one; of payers that are not known, nothing.
    pub(super) fn take(
        &mut self,
        router: RouterNumber,
        report: RefusalReport,
        received: UnixTime,
        is_known: impl Fn(Principal) -> bool,
    ) {
        let received = received.secs();
        let known = report.payers.into_iter().filter(|of| is_known(of.principal));
        let payers = known.map(|of| (of.principal, of.packets)).collect();
        self.0.insert(router, RouterRefusals { since: received.saturating_sub(report.secs), received, payers });
    }

    /// Forgets all other routers.
    pub(super) fn retain(&mut self, routers: &BTreeSet<RouterNumber>) {
        self.0.retain(|router, _| routers.contains(router));
    }

    /// What was refused to a principal whose number is its holder's since this Unix second. Who had the number before is refused nothing
    /// any more by then: routers that began to count later have nothing of it.
    pub(super) fn of(&self, principal: Principal, held_since: u64) -> HeldRefusals {
        let (mut told, mut packets) = (HeldRefusals::default(), RefusedPackets::new());
        let routers: Vec<_> = self.0.values().filter(|of| of.since >= held_since).collect();
        for (reason, count) in routers.iter().filter_map(|of| of.payers.get(&principal)).flatten() {
            let sum = packets.entry(*reason).or_default();
            *sum = sum.saturating_add(*count);
        }
        told.routers = u16::try_from(routers.len()).unwrap_or(u16::MAX);
        told.since = routers.iter().map(|of| of.since).min().unwrap_or(0);
        told.as_of = routers.iter().map(|of| of.received).min().unwrap_or(0);
        told.packets = packets.into_iter().collect();
        told
    }
}
