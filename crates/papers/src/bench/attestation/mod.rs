//! `bench attest-ops`, `attest-trace` and `attest-memory`: every suite and baseline on the same UPDATEs, in one thread.
//!
//! Every scheme does the same work: a router receives an attested UPDATE, verifies all of it, and signs it onward, one
//! signature for all its neighbours (section III-D, equation 1). What the product does for several is in [`neighbours`].

pub mod hors;
pub mod memory;
pub mod neighbours;
pub mod ops;
pub mod queue;
pub mod trace;
pub mod workload;

use std::collections::HashMap;
use std::fmt;

use serde_json::json;
use sha2::{Digest, Sha256};
use wayleave_attestation::suite::{self, SuiteId};
use wayleave_core::{Asn, Prefix};
use wayleave_crypto::secret::Secret;

use crate::kc_x::hors::{KC_MT, Tree};
use crate::kc_x::hybrid::{KcHybrid, Mix};
use crate::kc_x::mmo::Mmo;
use crate::kc_x::mt::KcMt;
use crate::kc_x::origin::OriginStatement;
use crate::kc_x::raw::{Exponent, Moduli, RawPrivate};
use crate::report::Report;
use crate::scheme::{Announcement, Scheme, SchemeError};
use crate::standard::standard_scheme;
use crate::{baseline, kc_x};

/// Nanoseconds of a thread's processor time, which other programs on the machine do not lengthen.
pub type Clock<'a> = &'a mut dyn FnMut() -> u64;

/// UPDATEs verified together, at most.
pub const BURST: usize = 64;
/// From which all workloads follow.
pub const SEED: u64 = 1;

/// What of a benchmark is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Part {
    #[default]
    All,
    /// One signature, its verification, and a whole UPDATE, as tables I and III have them.
    Operations,
    /// The trees of figure 4.
    Trees,
    /// What arrives, as table IV and figure 5 have it: no suite serves it.
    Arrivals,
}

/// What to measure, and how long.
#[derive(Clone, Debug)]
pub struct Options {
    pub part: Part,
    /// The suites; all if there is none.
    pub suites: Vec<SuiteId>,
    /// A minute at most.
    pub short: bool,
    pub repetitions: Option<usize>,
    /// Nanoseconds of this thread's processor time, which other programs on the machine do not lengthen.
    pub clock: fn() -> u64,
}

impl Options {
    /// The variants of the requested suites: of the hybrid all mixes.
    fn variants(&self) -> Vec<SuiteVariant> {
        let is_wanted = |one: &SuiteVariant| self.suites.is_empty() || self.suites.contains(&one.suite);
        SuiteVariant::all().into_iter().filter(is_wanted).collect()
    }
}

/// A scheme that could not do the work of a benchmark.
#[derive(Clone, Debug)]
pub struct SuiteFailure {
    pub variant: SuiteVariant,
    pub error: SchemeError,
}

impl fmt::Display for SuiteFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.variant.name(), self.error)
    }
}

impl std::error::Error for SuiteFailure {}

fn failed(variant: SuiteVariant) -> impl Fn(SchemeError) -> SuiteFailure {
    move |error| SuiteFailure { variant, error }
}

/// All keys come from this.
fn seed() -> Secret<32> {
    Secret::new([7; 32])
}

/// Suites without an implementation.
fn note_missing(report: &mut Report, missing: &[String]) {
    if !missing.is_empty() {
        report.params.insert("not_there".into(), json!(missing));
    }
}

/// The router that verifies and signs.
pub const ROUTER: Asn = Asn(64_500);
/// The neighbour that it sends to.
pub const NEIGHBOUR: Asn = Asn(64_501);

/// A suite in one of the variants in which it is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SuiteVariant {
    pub suite: SuiteId,
    /// Who signs with KC-MT in the paper's hybrid.
    pub mix: Mix,
    /// How often verifiers of KC-MT and SPV check the origin's RSA signature.
    pub statement: OriginStatement,
    /// Public exponent of those origins' keys.
    pub exponent: Exponent,
    /// Whether verifiers of S-BGP have tables of the powers of public keys.
    pub tables: bool,
}

impl SuiteVariant {
    /// The variant in the paper's tables. In the hybrid the router has KC-MT as its primary suite and all ASes before it
    /// KC-RSA, the worst case of section V-A2.
    #[must_use]
    pub fn new(suite: SuiteId) -> Self {
        let (mix, statement) = (Mix::Only(ROUTER), OriginStatement::Remembered);
        Self { suite, mix, statement, exponent: Exponent::F4, tables: true }
    }

    /// All suites. The hybrid comes also with KC-RSA and KC-MT signatures in the ratios 1:1 and 2:1.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let mixes = |suite| match suite {
            SuiteId::KcHybridPaper => vec![Mix::Only(ROUTER), Mix::OneIn(2), Mix::OneIn(3)],
            _ => vec![Mix::Only(ROUTER)],
        };
        let of = |suite| mixes(suite).into_iter().map(move |mix| Self { mix, ..Self::new(suite) });
        SuiteId::ALL.into_iter().chain(SuiteId::RESERVED).flat_map(of).collect()
    }

    /// The name in the results: the suite's and the variant's.
    #[must_use]
    pub fn name(self) -> String {
        match (self.suite, self.mix) {
            (SuiteId::KcHybridPaper, Mix::OneIn(every)) => format!("{}-{}to1", self.suite, every - 1),
            (SuiteId::SBgp, _) if !self.tables => format!("{}-without-tables", self.suite),
            _ => self.suite.to_string(),
        }
    }

    /// The scheme with keys from `seed`; `None` if the suite is not implemented.
    #[must_use]
    pub fn scheme(self, seed: &Secret<32>) -> Option<Box<dyn Scheme>> {
        let Self { suite, mix, statement, exponent, tables } = self;
        match suite {
            SuiteId::KcMtPaper => Some(Box::new(KcMt::with_exponent(seed, statement, exponent))),
            SuiteId::KcHybridPaper => Some(Box::new(KcHybrid::new(seed, mix))),
            SuiteId::Spv => Some(Box::new(baseline::spv::Spv::with_exponent(seed, statement, exponent))),
            SuiteId::SBgp if !tables => Some(Box::new(baseline::s_bgp::SBgp::without_tables(seed))),
            other => standard_scheme(other, seed)
                .or_else(|| kc_x::scheme(other, seed))
                .or_else(|| baseline::scheme(other, seed)),
        }
    }

    /// Signatures of an UPDATE over `hops` ASes that equation (1) counts: in KC-MT not the origin's, which is RSA.
    #[must_use]
    pub fn own_signatures(self, hops: usize) -> usize {
        if self.suite == SuiteId::KcMtPaper { hops - 1 } else { hops }
    }
}

/// Makes one key pair of the suite.
pub fn generate(suite: SuiteId, seed: &Secret<32>) {
    match suite {
        SuiteId::KcMtPaper => drop(Tree::new(&Mmo::default(), KC_MT, seed.expose().first_chunk().expect("16 of 32"))),
        SuiteId::KcRsaPaper => drop(RawPrivate::generate(seed, Moduli::High)),
        other => match suite::of(other) {
            Some(suite) => drop(suite.generate(seed)),
            None => {
                if let Some(mut scheme) = SuiteVariant::new(other).scheme(seed) {
                    scheme.prepare(&[ROUTER]);
                }
            }
        },
    }
}

/// An attested UPDATE as the router receives it.
#[derive(Clone, Debug)]
pub struct ReceivedUpdate {
    pub announcement: Announcement,
    pub attestation: Vec<u8>,
    /// What the router announces in turn.
    pub onward: Announcement,
}

/// Lets every AS of `path` sign in turn, up to the router.
///
/// # Errors
/// If one of them cannot sign, as with SPV on a path longer than its positions.
pub fn receive(scheme: &mut dyn Scheme, path: &[Asn], prefixes: &[Prefix]) -> Result<ReceivedUpdate, SchemeError> {
    let mut announcement = Announcement { prefixes: prefixes.to_vec(), path: Vec::with_capacity(path.len()) };
    let mut attestation = Vec::new();
    for (index, asn) in path.iter().enumerate() {
        announcement.path.push(*asn);
        let to = path.get(index + 1).copied().unwrap_or(ROUTER);
        attestation = scheme.attest(&announcement, &attestation, to)?;
    }
    let mut onward = announcement.clone();
    onward.path.push(ROUTER);
    Ok(ReceivedUpdate { announcement, attestation, onward })
}

/// The same for each route, after its keys were made.
///
/// # Errors
/// As [`receive`].
pub fn receive_all(scheme: &mut dyn Scheme, routes: &[workload::Route]) -> Result<Vec<ReceivedUpdate>, SchemeError> {
    for route in routes {
        let mut path = route.path.clone();
        path.extend([ROUTER, NEIGHBOUR]);
        scheme.prepare(&path);
    }
    routes.iter().map(|route| receive(scheme, &route.path, &route.prefixes)).collect()
}

/// A cache of the UPDATEs that were verified. When it is full, the older half is removed.
#[derive(Debug, Default)]
pub struct VerifiedUpdates {
    entries: HashMap<[u8; 32], u64>,
    added: u64,
}

impl VerifiedUpdates {
    /// Entries, at most: our own limit.
    pub const LIMIT: usize = 1 << 17;

    fn key(received: &ReceivedUpdate) -> [u8; 32] {
        let mut hash = Sha256::new();
        for prefix in &received.announcement.prefixes {
            hash.update(prefix.octets());
            hash.update([prefix.len(), prefix.afi().code().to_be_bytes()[1]]);
        }
        hash.update((received.announcement.path.len() as u64).to_be_bytes());
        for asn in &received.announcement.path {
            hash.update(asn.0.to_be_bytes());
        }
        hash.update(&received.attestation);
        hash.finalize().into()
    }

    fn add(&mut self, key: [u8; 32]) {
        if self.entries.len() >= Self::LIMIT {
            let oldest = self.added - Self::LIMIT as u64 / 2;
            self.entries.retain(|_, added| *added > oldest);
        }
        self.added += 1;
        self.entries.insert(key, self.added);
    }
}

/// The router's work on the UPDATEs that wait at one moment: verifies all, then signs each onward.
///
/// # Panics
/// If an honest UPDATE is refused, since then nothing was measured.
pub fn process(scheme: &mut dyn Scheme, burst: &[&ReceivedUpdate], mut seen: Option<&mut VerifiedUpdates>) {
    let keys: Vec<[u8; 32]> =
        if seen.is_some() { burst.iter().map(|one| VerifiedUpdates::key(one)).collect() } else { Vec::new() };
    let known = |number: usize| seen.as_ref().is_some_and(|seen| seen.entries.contains_key(&keys[number]));
    let new: Vec<usize> = (0..burst.len()).filter(|number| !known(*number)).collect();
    let claims: Vec<(&Announcement, &[u8])> =
        new.iter().map(|number| (&burst[*number].announcement, burst[*number].attestation.as_slice())).collect();
    if !claims.is_empty() {
        let verdicts = scheme.verify_burst(&claims, ROUTER);
        assert!(verdicts.iter().all(|right| *right), "{}: an honest UPDATE was refused", scheme.name());
    }
    if let Some(seen) = seen.as_mut() {
        new.iter().for_each(|number| seen.add(keys[*number]));
    }
    for received in burst {
        let sent = scheme.attest(&received.onward, &received.attestation, NEIGHBOUR);
        assert!(sent.is_ok(), "{}: the router could not attest: {sent:?}", scheme.name());
    }
}

/// Times of one suite's operations, in nanoseconds each.
#[derive(Clone, Debug, Default)]
pub struct Operations {
    /// Sign an UPDATE onward.
    pub sign: Vec<f64>,
    /// Verify an UPDATE by itself, divided by its hops.
    pub verify: Vec<f64>,
    /// The same in bursts.
    pub verify_burst: Vec<f64>,
    /// A whole UPDATE by itself: verify all hops and sign.
    pub update_alone: Vec<f64>,
    /// The same in bursts.
    pub update: Vec<f64>,
}

/// Measures the operations on `received`, `repetitions` times, in bursts of `burst`.
pub fn operations(
    scheme: &mut dyn Scheme,
    received: &[ReceivedUpdate],
    burst: usize,
    repetitions: usize,
    clock: Clock<'_>,
) -> Operations {
    let hops: usize = received.iter().map(|one| one.announcement.path.len()).sum();
    let count = received.len() as f64;
    let mut out = Operations::default();
    let mut pass = |scheme: &mut dyn Scheme, work: &mut dyn FnMut(&mut dyn Scheme, &[ReceivedUpdate])| {
        let mut taken = 0.0;
        for some in received.chunks(burst) {
            // What a router makes ahead in the background (keys to grant, DSA's k) is not measured.
            scheme.prepare(&[ROUTER]);
            let start = clock();
            work(scheme, some);
            taken += (clock() - start) as f64;
        }
        taken
    };
    for _ in 0..repetitions {
        let taken = pass(scheme, &mut |scheme, some| {
            for one in some {
                let _ = std::hint::black_box(scheme.attest(&one.onward, &one.attestation, NEIGHBOUR));
            }
        });
        out.sign.push(taken / count);
        let taken = pass(scheme, &mut |scheme, some| {
            let right = |one: &&ReceivedUpdate| scheme.verify(&one.announcement, &one.attestation, ROUTER);
            assert_eq!(some.iter().filter(right).count(), some.len(), "an honest UPDATE was refused");
        });
        out.verify.push(taken / hops as f64);
        let taken = pass(scheme, &mut |scheme, some| {
            let claims: Vec<(&Announcement, &[u8])> =
                some.iter().map(|one| (&one.announcement, one.attestation.as_slice())).collect();
            std::hint::black_box(scheme.verify_burst(&claims, ROUTER));
        });
        out.verify_burst.push(taken / hops as f64);
        let taken = pass(scheme, &mut |scheme, some| some.iter().for_each(|one| process(scheme, &[one], None)));
        out.update_alone.push(taken / count);
        let taken = pass(scheme, &mut |scheme, some| process(scheme, &some.iter().collect::<Vec<_>>(), None));
        out.update.push(taken / count);
    }
    out
}
