//! The receiving side: from a route and its attribute to a [`Report`], for one UPDATE or a burst of them.

use std::collections::HashMap;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use wayleave_core::{Asn, Prefix};

use crate::cache::{KnownSignatures, SignatureHash, VerifiedSignatures, signature_hash};
use crate::chain::{Attestation, Exports, Hop, Next, SignedInput, Signer};
pub use crate::clock::{Clock, DEFAULT_UNCERTAINTY};
use crate::leaf::{KeyId, LeafKey, LeafView, Tree};
use crate::path::Path;
use crate::pki::{RegisteredKey, View};
use crate::report::{HopReport, KeyOrigin, Lack, Problem, Report};
use crate::suite::{self, Claim, Suite, SuiteId};

/// The attribute as the UPDATE carried it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Carried<'a> {
    /// There is none.
    Absent,
    /// Its value. Of several, the first (RFC 7606 section 3 (g)).
    Value(&'a [u8]),
    /// Its flags or length are wrong.
    Malformed,
}

/// A route to be validated.
#[derive(Clone, Copy, Debug)]
pub struct Route<'a> {
    /// The prefixes of the UPDATE.
    pub prefixes: &'a [Prefix],
    /// Its path as received.
    pub path: &'a Path,
    /// Its attribute.
    pub carried: Carried<'a>,
    /// The AS that received it.
    pub receiver: Asn,
}

/// What a verifier requires of every chain.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct Rules {
    /// Whether suites that are reserved for the laboratory may appear.
    pub lab: bool,
    /// Bits of strength below which no suite is accepted.
    pub least_strength: u16,
    /// Minutes that a hop may hold.
    pub longest_lifetime: u16,
    /// Whether signatures before a fault of form are checked too, to say more exactly who could have caused it.
    pub explain: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self { lab: false, least_strength: 112, longest_lifetime: 7 * 24 * 60, explain: false }
    }
}

/// What validation depends on besides the route.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    pub view: &'a View,
    pub rules: &'a Rules,
    pub clock: Clock,
    /// Trees over the members of the exchanges at which this receiver is (one for each member set), old and new while they change.
    pub directories: &'a [Tree],
}

/// Validates one route.
#[must_use]
pub fn validate(context: &Context<'_>, route: &Route<'_>) -> Report {
    // One route gives one report.
    validate_burst(context, std::slice::from_ref(route)).remove(0)
}

/// Validates a burst of routes, with the reports that each would have alone; signatures of one suite are checked
/// together.
#[must_use]
pub fn validate_burst(context: &Context<'_>, routes: &[Route<'_>]) -> Vec<Report> {
    read_burst(context, routes, |claims, proved| {
        claims.check(Claims::verify_together, proved);
    })
}

/// As [`validate_burst`], with the same reports. What is known to be right is not verified again, and what stands twice in
/// the burst once. `alone`: each signature is verified by itself, which costs less where many are wrong.
#[must_use]
pub fn validate_burst_with(
    context: &Context<'_>,
    routes: &[Route<'_>],
    known: &mut VerifiedSignatures,
    alone: bool,
) -> (Vec<Report>, VerificationWork) {
    validate_burst_knowing(context, routes, known, alone)
}

/// As [`validate_burst_with`], whatever knows which signatures are right.
pub(crate) fn validate_burst_knowing(
    context: &Context<'_>,
    routes: &[Route<'_>],
    known: &mut impl KnownSignatures,
    alone: bool,
) -> (Vec<Report>, VerificationWork) {
    let mut work = VerificationWork::default();
    let reports = read_burst(context, routes, |claims, proved| {
        let verify =
            |claims: &Claims<'_>, tried: &[&Pending<'_>]| claims.verify_unknown(tried, known, alone, &mut work);
        let wrong = claims.check(verify, proved);
        work.wrong += wrong;
    });
    (reports, work)
}

/// Reads all chains, lets `check` say which of their signatures are right, and concludes.
fn read_burst(
    context: &Context<'_>,
    routes: &[Route<'_>],
    check: impl FnOnce(&Claims<'_>, &mut dyn FnMut(usize, usize)),
) -> Vec<Report> {
    let mut claims = Claims::default();
    let mut walks: Vec<Walk> = Vec::with_capacity(routes.len());
    for (number, route) in routes.iter().enumerate() {
        let start = claims.pending.len();
        let walk = Walk::of(context, route, number, &mut claims);
        if matches!(walk.end, End::Broken(..)) && !context.rules.explain {
            claims.pending.truncate(start);
        }
        walks.push(walk);
    }
    check(&claims, &mut |number, hop| walks[number].hops[hop].proved = true);
    routes.iter().zip(walks).map(|(route, walk)| walk.conclude(context, route)).collect()
}

/// Signatures tried for one hop, at most: two keys that share a tag, under each of a few directories. What goes beyond is
/// not tried, so that neither keys nor directories multiply the work that a hop may cost.
pub const MAX_TRIES: usize = 8;

wayleave_core::counters! {
    /// What the signatures of a burst cost, in units of some 25 microseconds of a thread.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct VerificationWork {
        /// Signatures that were verified, right or wrong.
        pub verified: u64,
        /// What they cost.
        pub units: u64,
        /// What hops cost for which no signature was right.
        pub wrong: u64,
    }
}

/// What one verification costs, in units of some 25 microseconds of a thread (`docs/benchmarks.md`).
#[must_use]
pub fn verification_units(suite: SuiteId) -> u64 {
    match suite {
        SuiteId::KcEd25519 | SuiteId::KcRsa2048 => 2,
        SuiteId::KcRsa => 3,
        SuiteId::KcP256 => 5,
        _ => 1,
    }
}

/// The signatures of a burst.
#[derive(Default)]
struct Claims<'a> {
    messages: Vec<u8>,
    pending: Vec<Pending<'a>>,
}

/// A signature that would prove a hop. Where keys or directories leave a choice, a hop has several; one suffices.
struct Pending<'a> {
    suite: SuiteId,
    route: usize,
    hop: usize,
    public: &'a [u8],
    message: Range<usize>,
    signature: &'a [u8],
}

impl Claims<'_> {
    /// What the signature of `hop` is over: its content or, in a burst, the root to which its opening leads.
    fn signed(&mut self, hop: &Hop<'_>, content: Range<usize>) -> Range<usize> {
        if hop.burst.is_none() {
            return content;
        }
        let mut message = Vec::with_capacity(80);
        hop.encode_signed(&self.messages[content], &mut message);
        let start = self.messages.len();
        self.messages.extend_from_slice(&message);
        start..self.messages.len()
    }

    /// Calls `proved` with route and hop of each hop for which `verify` says that a signature is right, suite by suite; the
    /// first of each hop together, then the second of those that are not proved, and so on. Returns the units that were
    /// spent on hops for which none is right.
    fn check<'b>(
        &'b self,
        mut verify: impl FnMut(&'b Self, &[&'b Pending<'b>]) -> Vec<bool>,
        proved: &mut dyn FnMut(usize, usize),
    ) -> u64 {
        let mut left: Vec<&[Pending<'_>]> =
            self.pending.chunk_by(|one, next| (one.route, one.hop) == (next.route, next.hop)).collect();
        let mut wrong = 0;
        for attempt in 0..MAX_TRIES {
            let mut unproved = Vec::new();
            for id in SuiteId::ALL {
                let of_suite = || left.iter().filter(|tries| tries[0].suite == id);
                let tried: Vec<&Pending<'_>> = of_suite().map(|tries| &tries[attempt]).collect();
                if tried.is_empty() {
                    continue;
                }
                for (tries, is_right) in of_suite().zip(verify(self, &tried)) {
                    match is_right {
                        true => proved(tries[0].route, tries[0].hop),
                        false if attempt + 1 < tries.len().min(MAX_TRIES) => unproved.push(*tries),
                        false => wrong += (attempt as u64 + 1) * verification_units(id),
                    }
                }
            }
            if unproved.is_empty() {
                break;
            }
            left = unproved;
        }
        wrong
    }

    /// Verifies signatures of one suite together.
    fn verify_together(&self, tried: &[&Pending<'_>]) -> Vec<bool> {
        let Some(suite) = tried.first().and_then(|first| suite::of(first.suite)) else {
            return vec![false; tried.len()];
        };
        let claims: Vec<Claim<'_>> = tried.iter().map(|pending| self.claim(pending)).collect();
        suite.verify_batch(&claims)
    }

    /// Verifies those of one suite that are not known to be right, each once.
    fn verify_unknown(
        &self,
        tried: &[&Pending<'_>],
        known: &mut impl KnownSignatures,
        alone: bool,
        work: &mut VerificationWork,
    ) -> Vec<bool> {
        let Some(id) = tried.first().map(|first| first.suite) else { return Vec::new() };
        let hashes: Vec<SignatureHash> = tried.iter().map(|pending| signature_hash(id, &self.claim(pending))).collect();
        let mut unknown: Vec<&Pending<'_>> = Vec::new();
        let mut place_of: HashMap<&SignatureHash, usize> = HashMap::new();
        for (pending, hash) in tried.iter().zip(&hashes) {
            if !place_of.contains_key(hash) && !known.contains(hash) {
                place_of.insert(hash, unknown.len());
                unknown.push(pending);
            }
        }
        let verified = match alone {
            false => self.verify_together(&unknown),
            true => unknown.iter().flat_map(|pending| self.verify_together(&[*pending])).collect(),
        };
        work.verified += unknown.len() as u64;
        work.units += unknown.len() as u64 * verification_units(id);
        let answers = hashes.iter().map(|hash| place_of.get(hash).is_none_or(|place| verified[*place])).collect();
        place_of.iter().filter(|(_, place)| verified[**place]).for_each(|(hash, _)| known.insert(**hash));
        answers
    }

    fn claim<'b>(&'b self, pending: &Pending<'b>) -> Claim<'b> {
        Claim { public: pending.public, message: &self.messages[pending.message.clone()], signature: pending.signature }
    }
}

/// How reading a chain ended.
pub(crate) enum End {
    /// At the receiver: every entry of the path has a hop, or is in a gap.
    Whole,
    /// Before something that cannot be checked here.
    Lacks(Lack),
    /// At something false.
    Broken(Problem, Option<usize>),
}

/// A chain read along its path; signatures apart.
pub(crate) struct Walk {
    pub(crate) hops: Vec<HopReport>,
    /// How many entries of the path the hops reach.
    pub(crate) reached: usize,
    has_gap: bool,
    /// Whether the origin's record, or a leaf so far, requires post-quantum suites from here on.
    requires_post_quantum: bool,
    /// Whether a registered key was taken on the word of a trust anchor's classical half alone where post-quantum suites are required.
    trusts_classical_anchor: bool,
    /// Until when the keys and records hold that were used, in seconds since 1970.
    pub(crate) keys_until: u64,
    pub(crate) end: End,
}

impl Walk {
    fn of<'a>(context: &Context<'a>, route: &Route<'a>, number: usize, claims: &mut Claims<'a>) -> Self {
        let now = context.clock.now.secs();
        let origin = route.path.origin();
        let requires_post_quantum = origin.is_some_and(|origin| context.view.requires_post_quantum(origin, now));
        let mut walk = Self {
            hops: Vec::new(),
            reached: 0,
            has_gap: false,
            requires_post_quantum,
            trusts_classical_anchor: false,
            keys_until: u64::MAX,
            end: End::Whole,
        };
        walk.end = match route.attestation() {
            Err(end) => end,
            Ok(attestation) => walk.read(context, route, &attestation, number, claims),
        };
        walk
    }

    fn read<'a>(
        &mut self,
        context: &Context<'a>,
        route: &Route<'a>,
        attestation: &Attestation<'a>,
        number: usize,
        claims: &mut Claims<'a>,
    ) -> End {
        if let Some(&prefix) = route.prefixes.iter().find(|prefix| attestation.position(prefix).is_none()) {
            return End::Broken(Problem::PrefixNotSigned { prefix }, None);
        }
        if route.path.entries().contains(&route.receiver) {
            return End::Broken(Problem::Loop { asn: route.receiver }, None);
        }
        // What a hop does not pass on is not attested, whichever hop the chain reaches.
        if let Some(&prefix) = route.prefixes.iter().find(|prefix| !attestation.is_exported(prefix)) {
            return End::Broken(Problem::PrefixNotExported { prefix }, None);
        }
        self.hops.reserve(attestation.hop_count());
        let mut before = Before { leaf: None, hash: [0; 32], exports: attestation.head().listed() };
        for (index, hop) in attestation.hops().enumerate() {
            let step =
                Step { context, route, attestation, number, index, requires_post_quantum: self.requires_post_quantum };
            match self.step(&step, &hop, before, claims) {
                Ok(next) => before = next,
                Err(end) => return end,
            }
        }
        self.read_tail(route, before.leaf)
    }

    /// One hop: its position on the path, whether its AS may sign so, and the claim that it did.
    fn step<'a>(
        &mut self,
        step: &Step<'_, 'a>,
        hop: &Hop<'a>,
        before: Before<'a>,
        claims: &mut Claims<'a>,
    ) -> Result<Before<'a>, End> {
        let broken = |problem| End::Broken(problem, Some(step.index));
        let position = PathPosition::of(hop, step.route, self.reached).map_err(broken)?;
        if !hop.exports.is_subset(before.exports) {
            return Err(broken(Problem::ExportsMore));
        }
        step.may_sign(hop, &position, &before)?;
        let suite = step.suite(hop, position.asn, &before)?;
        let key = step.key(hop, suite, position.asn, &before)?;
        let commitments = step.commitments(hop, position.next)?;
        let base_time = step.attestation.head().base_time;
        if hop.lifetime > step.context.rules.longest_lifetime {
            return Err(broken(Problem::LifetimeTooLong));
        }
        self.keys_until = self.keys_until.min(key.until());
        let is_registered = matches!(key.origin(), KeyOrigin::Registered | KeyOrigin::EndorsedAndRegistered);
        self.trusts_classical_anchor |=
            is_registered && step.requires_post_quantum && step.context.view.has_classical_anchor();
        self.has_gap |= !position.skipped.is_empty();
        self.reached = position.end;
        self.hops.push(HopReport {
            asn: position.asn,
            suite: hop.suite,
            key: key.origin(),
            key_id: if step.context.rules.explain { key.id(suite.id()) } else { None },
            prepend: hop.prepend,
            // The format has one octet for it.
            skipped: position.skipped.len() as u8,
            not_before: hop.not_before(base_time),
            not_after: hop.not_after(base_time),
            proved: false,
        });
        let mut content = 0..0;
        for commitment in commitments.as_slice() {
            let start = claims.messages.len();
            // At most 64 hops.
            let index = step.index as u8;
            let input =
                SignedInput { index, asn: position.asn, skipped: position.skipped, previous: &before.hash, commitment };
            input.encode(step.attestation.head(), hop, &mut claims.messages);
            content = start..claims.messages.len();
            let message = claims.signed(hop, content.clone());
            key.for_each(|public| {
                claims.pending.push(Pending {
                    suite: suite.id(),
                    route: step.number,
                    hop: step.index,
                    public,
                    message: message.clone(),
                    signature: hop.signature,
                });
            });
        }
        let is_last = step.index + 1 == step.attestation.hop_count();
        let hash = if is_last { [0; 32] } else { hop.chain_hash(&claims.messages[content]) };
        let leaf = step.leaf(hop, position.next);
        self.requires_post_quantum |= leaf.is_some_and(LeafView::requires_post_quantum);
        Ok(Before { leaf, hash, exports: hop.exports })
    }

    /// What follows the last hop: nothing, or ASes that attest nothing because none of them was given a key.
    fn read_tail(&mut self, route: &Route<'_>, leaf: Option<LeafView<'_>>) -> End {
        let tail = &route.path.entries()[self.reached..];
        match tail.first() {
            None => {}
            Some(&asn) if leaf.is_none_or(|leaf| gives_keys(leaf, self.requires_post_quantum)) => {
                return End::Broken(Problem::CapableSkipped { asn }, self.hops.len().checked_sub(1));
            }
            Some(_) => self.has_gap = true,
        }
        match (self.has_gap, self.trusts_classical_anchor) {
            (true, _) => End::Lacks(Lack::Gap),
            (false, true) => End::Lacks(Lack::ClassicalAnchor),
            (false, false) => End::Whole,
        }
    }
}

impl<'a> Route<'a> {
    /// The attestation, if there is one and its path has an order.
    fn attestation(&self) -> Result<Attestation<'a>, End> {
        let octets = match self.carried {
            _ if self.path.entries().is_empty() && !self.path.has_set() => return Err(End::Lacks(Lack::NoPath)),
            Carried::Malformed => return Err(End::Broken(Problem::Malformed, None)),
            Carried::Absent => return Err(End::Lacks(Lack::NoAttribute)),
            Carried::Value(octets) => octets,
        };
        let attestation = Attestation::decode(octets).map_err(|error| {
            if error.is_unsupported() { End::Lacks(Lack::Version) } else { End::Broken(Problem::Malformed, None) }
        })?;
        if self.path.has_set() {
            return Err(End::Lacks(Lack::Aggregate));
        }
        if self.path.entries().contains(&Asn::TRANS) {
            return Err(End::Lacks(Lack::AsTrans));
        }
        Ok(attestation)
    }
}

/// What a hop knows of the one before it.
#[derive(Clone, Copy)]
struct Before<'a> {
    /// The leaf that names the AS whose turn it is; `None` at the origin.
    leaf: Option<LeafView<'a>>,
    hash: [u8; 32],
    /// The prefixes that it passes on.
    exports: Exports,
}

/// Whether a leaf lets its AS sign: where post-quantum suites are required, one without such a key does not.
fn gives_keys(leaf: LeafView<'_>, requires_post_quantum: bool) -> bool {
    let may_sign = |(suite, _): (u8, _)| !requires_post_quantum || is_post_quantum(suite);
    leaf.keys().any(may_sign)
}

fn is_post_quantum(suite: u8) -> bool {
    SuiteId::from_byte(suite).and_then(suite::of).is_some_and(Suite::is_post_quantum)
}

/// The position of a hop on the path.
struct PathPosition<'a> {
    asn: Asn,
    skipped: &'a [Asn],
    /// The first entry after the hop's own.
    end: usize,
    /// The AS at that entry, or the receiver.
    next: Asn,
}

impl<'a> PathPosition<'a> {
    fn of(hop: &Hop<'_>, route: &Route<'a>, reached: usize) -> Result<Self, Problem> {
        let skipped = hop.signer.skipped();
        let entries = route.path.entries();
        let (start, end) = (reached + skipped, reached + skipped + usize::from(hop.prepend));
        let (skipped, own) = match (entries.get(reached..start), entries.get(start..end)) {
            (Some(skipped), Some(own)) => (skipped, own),
            _ => return Err(Problem::PathTooShort),
        };
        // At least one: a hop's prepend count is not zero.
        let asn = own[0];
        let next = entries.get(end).copied();
        if own.iter().any(|other| *other != asn) || next == Some(asn) {
            return Err(Problem::Prepend);
        }
        if entries[..start].contains(&asn) {
            return Err(Problem::Loop { asn });
        }
        Ok(Self { asn, skipped, end, next: next.unwrap_or(route.receiver) })
    }
}

/// A hop with what its check depends on.
struct Step<'s, 'a> {
    context: &'s Context<'a>,
    route: &'s Route<'a>,
    attestation: &'s Attestation<'a>,
    number: usize,
    index: usize,
    requires_post_quantum: bool,
}

impl<'a> Step<'_, 'a> {
    fn broken(&self, problem: Problem) -> End {
        End::Broken(problem, Some(self.index))
    }

    /// The suite of the hop, if it is one that may be used here.
    fn suite(&self, hop: &Hop<'_>, asn: Asn, before: &Before<'_>) -> Result<&'static dyn Suite, End> {
        let id = SuiteId::from_byte(hop.suite);
        if id.is_some_and(SuiteId::is_reserved) && !self.context.rules.lab {
            return Err(self.broken(Problem::LabOnly));
        }
        let Some(suite) = id.and_then(suite::of) else { return Err(self.unknown_suite(hop)) };
        if self.requires_post_quantum && !suite.is_post_quantum() {
            return Err(self.classical(hop, asn, before));
        }
        self.is_strong(suite, self.context.rules.least_strength)?;
        Ok(suite)
    }

    /// A suite that the hop before lists, or of a registered key: the chain is proved up to here. Where post-quantum suites are
    /// required nobody knows whether it is one.
    fn unknown_suite(&self, hop: &Hop<'_>) -> End {
        match self.index {
            _ if self.requires_post_quantum => self.broken(Problem::NotPostQuantum),
            0 => End::Lacks(Lack::OriginSuiteUnknown { suite: hop.suite }),
            _ => End::Lacks(Lack::UnknownSuite { suite: hop.suite }),
        }
    }

    /// A classical signature where post-quantum ones are required: false of the origin and of an AS that was given a key for
    /// one; else the AS counts as one that does not attest.
    fn classical(&self, hop: &Hop<'_>, asn: Asn, before: &Before<'_>) -> End {
        let has_key = hop.signer.is_chained() && before.leaf.is_none_or(|leaf| gives_keys(leaf, true));
        if self.index == 0 || has_key {
            self.broken(Problem::NotPostQuantum)
        } else {
            End::Lacks(Lack::NotPostQuantum { asn })
        }
    }

    fn is_strong(&self, suite: &dyn Suite, least: u16) -> Result<(), End> {
        let have = suite.strength();
        if have >= least { Ok(()) } else { Err(self.broken(Problem::Downgrade { have, least })) }
    }

    /// Whether the hop before lets this AS sign with this kind of key and this suite.
    fn may_sign(&self, hop: &Hop<'_>, position: &PathPosition<'_>, before: &Before<'_>) -> Result<(), End> {
        let gave_keys = before.leaf.is_some_and(|leaf| !leaf.is_keyless());
        let must_sign = before.leaf.is_some_and(|leaf| gives_keys(leaf, self.requires_post_quantum));
        match (hop.signer, before.leaf) {
            (Signer::Registered { .. }, _) if must_sign => {
                let asn = position.skipped.first().copied().unwrap_or(position.asn);
                Err(self.broken(Problem::CapableSkipped { asn }))
            }
            (Signer::Registered { .. }, _) => Ok(()),
            (Signer::Chained { .. }, Some(leaf)) if gave_keys => {
                let is_listed = leaf.keys().any(|(suite, _)| suite == hop.suite);
                if is_listed { Ok(()) } else { Err(self.broken(Problem::KeyNotListed)) }
            }
            (Signer::Chained { .. }, _) => Err(self.broken(Problem::NoKeyGiven)),
        }
    }

    /// The key that must have signed the hop.
    fn key(&self, hop: &Hop<'a>, suite: &dyn Suite, asn: Asn, before: &Before<'a>) -> Result<Key<'a>, End> {
        match (hop.signer, before.leaf) {
            (Signer::Registered { tag, .. }, _) => self.registered(suite, asn, tag),
            (Signer::Chained { second }, Some(leaf)) => {
                self.is_strong(suite, leaf.least_strength())?;
                self.chained(hop, second, suite, asn, leaf)
            }
            (Signer::Chained { .. }, None) => Err(self.broken(Problem::NoKeyGiven)),
        }
    }

    fn registered(&self, suite: &dyn Suite, asn: Asn, tag: [u8; 2]) -> Result<Key<'a>, End> {
        let clock = self.context.clock;
        let keys = self.context.view.keys_that_count(asn, suite.id(), tag, self.requires_post_quantum);
        let keys: Vec<&RegisteredKey> = keys.filter(|key| clock.allows(key.not_before, key.not_after)).collect();
        if !keys.is_empty() {
            return Ok(Key::Registered(keys));
        }
        if self.context.view.is_registered(asn) {
            return Err(self.broken(Problem::KeyNotRegistered));
        }
        let is_origin = self.index == 0;
        Err(End::Lacks(if is_origin { Lack::OriginUnregistered } else { Lack::AnchorUnregistered { asn } }))
    }

    fn chained(
        &self,
        hop: &Hop<'a>,
        second: bool,
        suite: &dyn Suite,
        asn: Asn,
        leaf: LeafView<'a>,
    ) -> Result<Key<'a>, End> {
        let not_listed = || self.broken(Problem::KeyNotListed);
        let named = leaf.key(hop.suite, second).ok_or_else(not_listed)?;
        let is_carried = suite.public_key_len() != named.len();
        let public = if is_carried { hop.public } else { &named[..] };
        let named = LeafKey { suite: hop.suite, key: *named };
        if is_carried == hop.public.is_empty() || LeafKey::of(suite.id(), public) != named {
            return Err(not_listed());
        }
        let registered = self.context.view.leaf_key_that_counts(asn, &named, self.requires_post_quantum);
        let registered = registered.filter(|_| !leaf.is_granted());
        match registered.filter(|key| self.context.clock.allows(key.not_before, key.not_after)) {
            Some(key) => Ok(Key::Chained { public, origin: KeyOrigin::EndorsedAndRegistered, until: key.not_after }),
            // Where the AS has a profile, a key that is not in it is its issuer's own.
            None if self.context.view.is_registered(asn) => Err(self.broken(Problem::KeyNotRegistered)),
            None => {
                let origin = if leaf.is_granted() { KeyOrigin::Granted } else { KeyOrigin::Endorsed };
                Ok(Key::Chained { public, origin, until: u64::MAX })
            }
        }
    }

    /// What may stand for the next AS in the signed input.
    fn commitments(&self, hop: &Hop<'_>, next: Asn) -> Result<Commitments, End> {
        if let Some(commitment) = hop.commitment(next) {
            return Ok(Commitments::One(commitment));
        }
        let listing = self.context.directories.iter().filter(|tree| tree.leaf(next).is_some());
        let roots: Vec<[u8; 32]> = listing.map(Tree::root).collect();
        if roots.is_empty() { Err(End::Lacks(Lack::DirectoryUnknown)) } else { Ok(Commitments::Roots(roots)) }
    }

    fn leaf(&self, hop: &Hop<'a>, next: Asn) -> Option<LeafView<'a>> {
        match hop.next {
            Next::Directory => self.context.directories.iter().find_map(|tree| tree.leaf(next)),
            _ => hop.next.leaf(),
        }
    }
}

/// What a hop may have signed as its next AS: one thing, or the roots of several directories that list it.
enum Commitments {
    One([u8; 32]),
    Roots(Vec<[u8; 32]>),
}

impl Commitments {
    fn as_slice(&self) -> &[[u8; 32]] {
        match self {
            Commitments::One(commitment) => std::slice::from_ref(commitment),
            Commitments::Roots(roots) => roots,
        }
    }
}

/// A key that may have signed, or several that share a tag.
enum Key<'a> {
    Registered(Vec<&'a RegisteredKey>),
    Chained { public: &'a [u8], origin: KeyOrigin, until: u64 },
}

impl<'a> Key<'a> {
    fn origin(&self) -> KeyOrigin {
        match self {
            Key::Registered(_) => KeyOrigin::Registered,
            Key::Chained { origin, .. } => *origin,
        }
    }

    /// Which key it is, if only one may have signed.
    fn id(&self, suite: SuiteId) -> Option<KeyId> {
        let public = match self {
            Key::Registered(keys) => match keys[..] {
                [key] => &key.public[..],
                _ => return None,
            },
            Key::Chained { public, .. } => public,
        };
        Some(LeafKey::of(suite, public).id())
    }

    /// Seconds since 1970 until which the PKI vouches for it.
    fn until(&self) -> u64 {
        match self {
            Key::Registered(keys) => keys.iter().map(|key| key.not_after).min().unwrap_or(u64::MAX),
            Key::Chained { until, .. } => *until,
        }
    }

    fn for_each(&self, mut each: impl FnMut(&'a [u8])) {
        match self {
            Key::Registered(keys) => keys.iter().for_each(|key| each(&key.public)),
            Key::Chained { public, .. } => each(public),
        }
    }
}
