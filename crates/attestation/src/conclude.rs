//! From a chain that has been read and whose signatures have been checked to its report.

use wayleave_core::{Asn, Prefix, VerdictKind};

use crate::clock::Bounds;
use crate::pki::{OriginValidity, Strictness};
use crate::report::{Broken, HopReport, Lack, PrefixReport, Problem, Report};
use crate::validate::{Context, End, Route, Walk};

/// A conclusion in the making: it only ever gets worse.
struct Conclusion {
    kind: VerdictKind,
    lack: Option<Lack>,
    /// What is false, and at which hop.
    broken: Option<(Problem, Option<usize>)>,
}

impl Conclusion {
    fn valid() -> Self {
        Self { kind: VerdictKind::Valid, lack: None, broken: None }
    }

    fn lacks(lack: Lack) -> Self {
        let kind = match lack {
            Lack::Gap
            | Lack::AnchorUnregistered { .. }
            | Lack::UnknownSuite { .. }
            | Lack::NotPostQuantum { .. }
            | Lack::ClassicalAnchor => VerdictKind::Gap,
            Lack::Expired => VerdictKind::Expired,
            _ => VerdictKind::Unattested,
        };
        Self { kind, lack: Some(lack), broken: None }
    }

    fn broken(problem: Problem, hop: Option<usize>) -> Self {
        Self { kind: VerdictKind::Invalid, lack: None, broken: Some((problem, hop)) }
    }

    /// Of the chain: what is false, then its times, then what it lacks.
    fn of_chain(walk: &Walk, explain: bool, bounds: &mut Bounds) -> Self {
        let unproved = walk.hops.iter().position(|hop| !hop.proved);
        match (&walk.end, unproved) {
            // Signatures before a fault of form were checked only to explain it.
            (End::Broken(problem, hop), None) => return Self::broken(*problem, *hop),
            (End::Broken(problem, hop), Some(_)) if !explain => return Self::broken(*problem, *hop),
            (_, Some(hop)) => return Self::broken(Problem::BadSignature, Some(hop)),
            (_, None) => {}
        }
        if let Some(hop) = walk.hops.iter().position(|hop| bounds.is_early(hop.not_before)) {
            return Self::broken(Problem::NotYetValid, Some(hop));
        }
        let mut expired = false;
        for hop in &walk.hops {
            expired |= bounds.is_late(hop.not_after);
        }
        match walk.end {
            _ if expired => Self::lacks(Lack::Expired),
            End::Lacks(lack) => Self::lacks(lack),
            End::Whole | End::Broken(..) => Self::valid(),
        }
    }

    /// Of a route without an attestation that counts: what its origin's record says of that.
    fn heed_record(&mut self, context: &Context<'_>, origin: Option<Asn>, bounds: &mut Bounds) {
        let Some(record) = origin.and_then(|asn| context.view.attested_since(asn)) else { return };
        // The report ends where the record begins or ends, also for an attested route: other suites are required then.
        let concerns = self.kind == VerdictKind::Unattested || record.strictness == Strictness::PostQuantum;
        let holds = concerns && bounds.holds(record.since, record.not_after);
        if holds && self.kind == VerdictKind::Unattested {
            *self = match record.strictness {
                Strictness::Strict | Strictness::PostQuantum => Self::broken(Problem::Stripped, None),
                Strictness::Prefer => Self::lacks(Lack::PreferredMissing),
            };
        }
    }

    /// Gets worse if the origin may not announce `prefix`, or if nothing says that it may.
    fn heed_origin(&mut self, prefix: Prefix, validity: OriginValidity) {
        let of_prefix = match validity {
            OriginValidity::Valid => return,
            OriginValidity::NotFound => Self::lacks(Lack::OriginUnknown { prefix }),
            OriginValidity::Invalid => Self::broken(Problem::OriginNotAuthorised { prefix }, None),
        };
        if of_prefix.kind > self.kind {
            *self = of_prefix;
        }
    }
}

impl Walk {
    /// The report, once every signature has been checked.
    pub(crate) fn conclude(self, context: &Context<'_>, route: &Route<'_>) -> Report {
        let mut bounds = Bounds::new(context.clock);
        let mut conclusion = Conclusion::of_chain(&self, context.rules.explain, &mut bounds);
        // A route without a path comes from within the receiver's AS, which is its origin (RFC 6811 section 2); no
        // record asks for an attestation before a route has left its AS.
        let is_own = conclusion.lack == Some(Lack::NoPath);
        let origin = if is_own { Some(route.receiver) } else { route.path.origin() };
        if !is_own {
            conclusion.heed_record(context, origin, &mut bounds);
        }
        // Whatever else it lacks: nobody could have attested it, and RFC 9774 section 3 has it withdrawn.
        if route.path.has_set() && conclusion.kind == VerdictKind::Unattested {
            conclusion = Conclusion::lacks(Lack::Aggregate);
        }
        let mut of_update = Conclusion { ..conclusion };
        let mut prefixes = Vec::with_capacity(route.prefixes.len());
        for &prefix in route.prefixes {
            let validity = context.view.origin_validity(&prefix, origin);
            let mut of_prefix = Conclusion { ..conclusion };
            of_prefix.heed_origin(prefix, validity);
            of_update.heed_origin(prefix, validity);
            prefixes.push(PrefixReport { prefix, origin: validity, kind: of_prefix.kind, lack: of_prefix.lack });
        }
        let entries = if route.path.has_set() { &[] } else { route.path.entries() };
        let tail = if self.hops.is_empty() { &[] } else { entries.get(self.reached..).unwrap_or(&[]) };
        Report {
            kind: of_update.kind,
            broken: of_update.broken.map(|(problem, hop)| blame(problem, hop, &self.hops, entries)),
            lack: of_update.lack,
            tail: tail.to_vec(),
            hops: self.hops,
            prefixes,
            until: bounds.until(self.keys_until),
            in_doubt: bounds.in_doubt,
        }
    }
}

/// Names who could have caused a problem: whoever handled the route after the last hop that is proved.
fn blame(problem: Problem, hop: Option<usize>, hops: &[HopReport], entries: &[Asn]) -> Broken {
    let reach = |hop: &HopReport| usize::from(hop.skipped) + usize::from(hop.prepend);
    let before = &hops[..hop.unwrap_or(0).min(hops.len())];
    let proved: usize = before.iter().take_while(|hop| hop.proved).map(reach).sum();
    let mut suspects = entries.get(proved..).unwrap_or(&[]).to_vec();
    suspects.dedup();
    let unread = || entries.get(before.iter().map(reach).sum::<usize>()).copied();
    let asn = hop.and_then(|hop| hops.get(hop).map(|hop| hop.asn).or_else(unread));
    Broken { problem, hop, asn, suspects }
}
