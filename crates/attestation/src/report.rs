//! What validation found: a verdict, and for each hop what is proved, who could have signed, and what broke.

use std::fmt;

use serde::Serialize;
use wayleave_core::{Asn, Prefix, UnixTime, Verdict, VerdictKind};

use crate::SuiteId;
use crate::chain::DecodeError;
use crate::leaf::KeyId;
use crate::pki::OriginValidity;

/// Who vouches for the key of a hop.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeyOrigin {
    /// The PKI registers it, and the hop begins a chain or follows a gap.
    Registered,
    /// The AS before endorsed it, and the PKI registers it for this AS too.
    EndorsedAndRegistered,
    /// The AS before named it as this AS's own key; no registry says so.
    Endorsed,
    /// The AS before made it and handed the private half over.
    Granted,
}

impl KeyOrigin {
    /// Whether the AS before could have signed in this AS's name.
    #[must_use]
    pub fn issuer_could_sign(self) -> bool {
        matches!(self, Self::Endorsed | Self::Granted)
    }
}

/// What was found of one hop.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct HopReport {
    pub asn: Asn,
    pub suite: u8,
    /// Who vouches for its key.
    pub key: KeyOrigin,
    /// Which of its keys, if the route was validated to be explained, and it can be but one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_id: Option<KeyId>,
    /// How many times the AS appears in the path.
    pub prepend: u8,
    /// Entries of AS_PATH just before this hop that nobody attests.
    pub skipped: u8,
    /// Seconds since 1970 from which it holds.
    pub not_before: u64,
    /// Seconds since 1970 until which it holds.
    pub not_after: u64,
    /// Whether its signature is right.
    pub proved: bool,
}

impl HopReport {
    /// The suite, if this verifier knows it.
    #[must_use]
    pub fn suite_id(&self) -> Option<SuiteId> {
        SuiteId::from_byte(self.suite)
    }
}

/// Something false, or something missing that must be there: the route is invalid.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(tag = "problem", rename_all = "kebab-case")]
pub enum Problem {
    /// The attribute does not decode, or its flags are wrong.
    Malformed,
    /// A prefix of the UPDATE is not in the signed list.
    PrefixNotSigned { prefix: Prefix },
    /// A hop does not pass a prefix of the UPDATE on, and the origin signed it.
    PrefixNotExported { prefix: Prefix },
    /// The hop passes a prefix on that the hop before does not.
    ExportsMore,
    /// There are more hops than the path has ASes for.
    PathTooShort,
    /// The AS appears in the path more or less often than it signed.
    Prepend,
    /// An AS, or the receiver itself, is on the path twice with others between.
    Loop { asn: Asn },
    /// The hop before gave the AS a key, and it signed with a registered key or was skipped.
    CapableSkipped {
        /// The AS that must have signed.
        asn: Asn,
    },
    /// The hop before gave the AS no key.
    NoKeyGiven,
    /// The hop before lists no key of the suite with which this one is signed, or another than it carries.
    KeyNotListed,
    /// The AS registered its keys, and this is none of them.
    KeyNotRegistered,
    /// The suite is weaker than the hop before allows, or than this verifier does.
    Downgrade {
        /// Bits of the suite.
        have: u16,
        /// Bits that are the least.
        least: u16,
    },
    /// Post-quantum suites are required, and the hop has another although its AS has a key for one.
    NotPostQuantum,
    /// A suite of the paper or a baseline, outside the lab.
    LabOnly,
    /// The hop holds longer than this verifier allows.
    LifetimeTooLong,
    /// The signature is not one of this key over this content.
    BadSignature,
    /// A hop's time has not come, beyond doubt of our clock.
    NotYetValid,
    /// The origin may not originate the prefix.
    OriginNotAuthorised { prefix: Prefix },
    /// The origin's record says that its routes carry attestations, strictly, and this one has none that counts.
    Stripped,
}

/// Why a route without a problem is not wholly proved.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(tag = "lack", rename_all = "kebab-case")]
pub enum Lack {
    /// No attribute, and nothing says that there should be one.
    NoAttribute,
    /// No attribute that counts, from an origin that says its routes are better preferred with one.
    PreferredMissing,
    /// The route is our own or has no path.
    NoPath,
    /// The path has an AS_SET.
    Aggregate,
    /// AS 23456 stands for a number that was lost (RFC 6793): nobody can tell two such ASes apart.
    AsTrans,
    /// A later version of the format.
    Version,
    /// The origin signed with a suite that this verifier does not know.
    OriginSuiteUnknown { suite: u8 },
    /// A later hop has a suite that this verifier does not know: nothing from it on is proved.
    UnknownSuite { suite: u8 },
    /// Post-quantum suites are required, and the AS has no key for one: nothing from its hop on is proved.
    NotPostQuantum { asn: Asn },
    /// Post-quantum suites are required, and this verifier has no post-quantum half of the trust anchor that vouches for the keys.
    ClassicalAnchor,
    /// The origin registered no key.
    OriginUnregistered,
    /// The AS that re-anchors registered no key: nothing from the gap on is proved.
    AnchorUnregistered { asn: Asn },
    /// The receivers' directory that the last hop is for is not known here.
    DirectoryUnknown,
    /// Parts of the path passed ASes that do not attest.
    Gap,
    /// No record and no VRP says who may originate a prefix.
    OriginUnknown { prefix: Prefix },
    /// A hop has expired, beyond doubt of our clock.
    Expired,
}

/// Why a conclusion is so, for people.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Advice {
    /// What must hold.
    pub rule: &'static str,
    /// What an operator does about it.
    pub cure: &'static str,
}

const ASK_SUSPECTS: &str =
    "nothing here; the route is not used, and the operators of the ASes named as possible causes can find out";
const UNSIGNED_OR_STRIPPED: &str = "the origin did not sign it, or somebody on the path took the attribute away: ask the origin's operator \
                                    whether it signs (`wayleave show keys` there); if so, look for a neighbour that drops unknown attributes";
const ASK_ORIGIN: &str = "nothing here; tell the origin's operator if the route should be attested";

impl Problem {
    /// The rule that the problem breaks, and what to do.
    #[must_use]
    pub fn advice(self) -> Advice {
        let (rule, cure) = match self {
            Self::Malformed => ("the attribute decodes, and is optional and transitive", ASK_SUSPECTS),
            Self::PrefixNotSigned { .. } => ("the origin signs each prefix of the UPDATE", ASK_SUSPECTS),
            Self::PrefixNotExported { .. } => ("each hop passes on only what it signs for the next AS", ASK_SUSPECTS),
            Self::ExportsMore => ("a hop passes no prefix on that the hop before did not", ASK_SUSPECTS),
            Self::PathTooShort => ("AS_PATH has an entry for each hop", ASK_SUSPECTS),
            Self::Prepend => ("an AS is on the path as often as it signed", ASK_SUSPECTS),
            Self::Loop { .. } => {
                ("no AS is on the path twice with others between (RFC 4271 section 9.1.2)", ASK_SUSPECTS)
            }
            Self::CapableSkipped { .. } => ("an AS to which the hop before gave a key signs", ASK_SUSPECTS),
            Self::NoKeyGiven => ("a hop signs with a key that the hop before gave it", ASK_SUSPECTS),
            Self::KeyNotListed => ("the hop before lists the key of the next one", ASK_SUSPECTS),
            Self::KeyNotRegistered => (
                "an AS that registered keys signs with one of them",
                "if the AS has new keys, bring its new profile into the folder of objects; otherwise somebody else signed",
            ),
            Self::Downgrade { .. } => (
                "a suite is as strong as the hop before and this verifier ask for",
                "tell the operator of the hop to sign with a stronger suite",
            ),
            Self::NotPostQuantum => (
                "`require_post_quantum`: an AS that has a post-quantum key signs with it",
                "tell the operator of the hop to sign with its post-quantum key",
            ),
            Self::LabOnly => (
                "suites of the papers count in the laboratory only",
                "tell the operator of the hop to sign with a suite of the standard profile",
            ),
            Self::LifetimeTooLong => (
                "a hop holds no longer than this verifier allows",
                "tell the operator of the hop to sign for a shorter time",
            ),
            Self::BadSignature => ("each signature is one of the hop's key over its content", ASK_SUSPECTS),
            Self::NotYetValid => (
                "a hop's time has come",
                "compare this machine's clock with a time service; if it is right, the clock of the hop's AS is ahead",
            ),
            Self::OriginNotAuthorised { .. } => (
                "a record or a VRP (RFC 6811) lets the origin announce the prefix",
                "if the origin is right, its record, or its ROA, must name it; otherwise the route is a hijack",
            ),
            Self::Stripped => (
                "the origin's record says that its routes carry attestations (`--attested strict`)",
                UNSIGNED_OR_STRIPPED,
            ),
        };
        Advice { rule, cure }
    }
}

impl Lack {
    /// The rule by which something lacks, and what to do.
    #[must_use]
    pub fn advice(self) -> Advice {
        let (rule, cure) = match self {
            Self::NoAttribute => ("a route without an attestation proves nothing", ASK_ORIGIN),
            Self::PreferredMissing => {
                ("the origin's record prefers routes with an attestation (`--attested prefer`)", UNSIGNED_OR_STRIPPED)
            }
            Self::NoPath => ("a route of one's own has no hops", "nothing"),
            Self::Aggregate => (
                "RFC 9774 section 3: a route with an AS_SET is treated as withdrawn; the set names nobody who could have signed",
                "tell the AS that aggregates to do so without a set; `aggregate = {}` in [policy] takes such routes all the same",
            ),
            Self::AsTrans => {
                ("AS 23456 stands for any AS (RFC 6793)", "tell the neighbour to speak four-octet AS numbers")
            }
            Self::Version => {
                ("this verifier knows the versions of the format up to its own", "bring this proxy up to date")
            }
            Self::OriginSuiteUnknown { .. } | Self::UnknownSuite { .. } => {
                ("this verifier checks only suites that it knows", "bring this proxy up to date")
            }
            Self::NotPostQuantum { .. } => (
                "`require_post_quantum`: only post-quantum suites count",
                "nothing here; tell the operator of the AS to register a post-quantum key",
            ),
            Self::ClassicalAnchor => (
                "`require_post_quantum`: a post-quantum key of the trust anchor vouches for all keys",
                "put the trust anchor's file with both public keys in the place of the present one",
            ),
            Self::OriginUnregistered => ("the origin has a profile, or a router certificate", ASK_ORIGIN),
            Self::AnchorUnregistered { .. } => (
                "after a gap the chain goes on only from an AS with a profile",
                "nothing here; tell the operator of the AS that its profile is not in the folder of objects",
            ),
            Self::DirectoryUnknown => (
                "the last hop is for a list of receivers that this proxy knows",
                "wait for the member set to arrive; if it does not, compare it with the sender's",
            ),
            Self::Gap => (
                "only what an AS signs is proved, and one on the path does not attest",
                "nothing; what the other ASes signed is proved",
            ),
            Self::OriginUnknown { .. } => (
                "a record or a VRP (RFC 6811) says who may announce a prefix",
                "nothing here; tell the origin's operator to publish a record or a ROA",
            ),
            Self::Expired => (
                "a hop's time is not over",
                "compare this machine's clock with a time service; if it is right, the hop's AS has not signed again in time",
            ),
        };
        Advice { rule, cure }
    }
}

/// A problem, where it is, and who could have caused it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Broken {
    /// What is wrong.
    #[serde(flatten)]
    pub problem: Problem,
    /// At which hop, counted from the origin's 0; `None` where it concerns the whole.
    pub hop: Option<usize>,
    /// The AS whose hop it is.
    pub asn: Option<Asn>,
    /// Every AS that handled the route after the last hop that is proved, in order of travel: one of them is the cause.
    pub suspects: Vec<Asn>,
}

/// What validation found.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Report {
    /// The conclusion for the UPDATE: the worst of its prefixes'.
    pub kind: VerdictKind,
    /// What is false.
    pub broken: Option<Broken>,
    /// Why it is not wholly proved, where nothing is false.
    pub lack: Option<Lack>,
    /// The hops, the origin's first, as far as they could be read.
    pub hops: Vec<HopReport>,
    /// The entries of AS_PATH after the last hop, which nobody attests.
    pub tail: Vec<Asn>,
    /// The conclusion for each prefix of the UPDATE, in order: prefixes may differ in what their origin may do.
    pub prefixes: Vec<PrefixReport>,
    /// When the route must be validated again.
    pub until: Option<UnixTime>,
    /// Whether a bound of time lies within our clock's uncertainty.
    pub in_doubt: bool,
}

/// The conclusion for one prefix.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct PrefixReport {
    pub prefix: Prefix,
    /// Whether the origin may announce it.
    pub origin: OriginValidity,
    /// The conclusion.
    pub kind: VerdictKind,
    /// Why this prefix is not wholly proved, where nothing is false.
    pub lack: Option<Lack>,
}

impl Report {
    /// The conclusion as other crates take it.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        Verdict { kind: self.kind, until: self.until }
    }

    /// The conclusion for one prefix of the UPDATE.
    #[must_use]
    pub fn verdict_of(&self, prefix: &Prefix) -> Verdict {
        let kind = self.prefixes.iter().find(|report| report.prefix == *prefix).map_or(self.kind, |report| report.kind);
        Verdict { kind, until: self.until }
    }

    /// Why one prefix of the UPDATE is not wholly proved, where nothing is false.
    #[must_use]
    pub fn lack_of(&self, prefix: &Prefix) -> Option<Lack> {
        self.prefixes.iter().find(|report| report.prefix == *prefix).map_or(self.lack, |report| report.lack)
    }

    /// What it says of the UPDATE as a whole.
    #[must_use]
    pub fn without_prefixes(&self) -> Report {
        Report {
            broken: self.broken.clone(),
            hops: self.hops.clone(),
            tail: self.tail.clone(),
            prefixes: Vec::new(),
            ..*self
        }
    }

    /// The rule by which the conclusion for a prefix is so, and what to do about it.
    #[must_use]
    pub fn advice_of(&self, prefix: &Prefix) -> Advice {
        match (&self.broken, self.lack_of(prefix)) {
            (Some(broken), _) => broken.problem.advice(),
            (None, Some(lack)) => lack.advice(),
            (None, None) => Advice { rule: "every hop is signed with a key that counts, and in time", cure: "nothing" },
        }
    }

    /// Whether every AS of the path signed, in time: the conclusion but for who may originate the prefixes.
    #[must_use]
    pub fn path_is_proved(&self) -> bool {
        self.broken.is_none() && matches!(self.lack, None | Some(Lack::OriginUnknown { .. }))
    }

    /// Every AS that could have made the signature of `hop`: the AS itself, and as long as only the AS before vouches
    /// for a key, that one too.
    pub fn could_have_signed(&self, hop: usize) -> impl Iterator<Item = Asn> {
        let upto = self.hops.get(..=hop).unwrap_or(&[]);
        let mut goes_on = true;
        upto.iter().rev().map_while(move |hop| {
            let could = goes_on.then_some(hop.asn);
            goes_on = goes_on && hop.key.issuer_could_sign();
            could
        })
    }
}

impl From<DecodeError> for Problem {
    fn from(_: DecodeError) -> Self {
        Problem::Malformed
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed => f.write_str("the attestation attribute cannot be decoded"),
            Self::PrefixNotSigned { prefix } => write!(f, "{prefix} is not in the signed list of prefixes"),
            Self::PrefixNotExported { prefix } => {
                write!(f, "{prefix} is signed by the origin, and an AS on the path did not pass it on")
            }
            Self::ExportsMore => f.write_str("the hop passes on a prefix that the hop before does not"),
            Self::PathTooShort => f.write_str("the attestation has more hops than the path has ASes"),
            Self::Prepend => f.write_str("the AS appears on the path more or less often than it signed"),
            Self::Loop { asn } => write!(f, "{asn} appears twice on the path"),
            Self::CapableSkipped { asn } => write!(f, "{asn} was given a key and did not sign with it"),
            Self::NoKeyGiven => f.write_str("the previous hop gave this AS no key"),
            Self::KeyNotListed => f.write_str("the previous hop does not list the key of this hop"),
            Self::KeyNotRegistered => f.write_str("the key is not one that the AS registered"),
            Self::Downgrade { have, least } => {
                write!(f, "the suite has a strength of {have} bits, at least {least} are required")
            }
            Self::NotPostQuantum => f.write_str("a post-quantum signature is required, and this is none"),
            Self::LabOnly => f.write_str("the suite is for the laboratory only"),
            Self::LifetimeTooLong => f.write_str("the hop is valid for longer than this verifier allows"),
            Self::BadSignature => f.write_str("the signature is wrong"),
            Self::NotYetValid => f.write_str("the hop is not valid yet"),
            Self::OriginNotAuthorised { prefix } => write!(f, "the origin may not announce {prefix}"),
            Self::Stripped => f.write_str("the origin's record requires an attestation, and this route has none"),
        }
    }
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAttribute => f.write_str("no attestation"),
            Self::PreferredMissing => f.write_str("no attestation, though the origin usually sends one"),
            Self::NoPath => f.write_str("the route has no path"),
            Self::Aggregate => f.write_str("the route is an aggregate (AS_SET)"),
            Self::AsTrans => f.write_str("AS 23456 on the path stands for a number that was lost (RFC 6793)"),
            Self::Version => f.write_str("the attestation is of a later version of the format"),
            Self::OriginSuiteUnknown { suite } | Self::UnknownSuite { suite } => {
                write!(f, "suite {suite} is not known to this version")
            }
            Self::NotPostQuantum { asn } => {
                write!(f, "post-quantum signatures are required, and {asn} has no key for them")
            }
            Self::ClassicalAnchor => f.write_str(
                "post-quantum signatures are required, and the trust anchor was given without its post-quantum half",
            ),
            Self::OriginUnregistered => f.write_str("the origin registered no key"),
            Self::AnchorUnregistered { asn } => write!(f, "{asn} signs after a gap, but registered no key"),
            Self::DirectoryUnknown => f.write_str("the exchange's member set is not known here"),
            Self::Gap => f.write_str("the path passes ASes that do not attest"),
            Self::OriginUnknown { prefix } => write!(f, "no record and no VRP says who may originate {prefix}"),
            Self::Expired => f.write_str("a hop has expired"),
        }
    }
}
