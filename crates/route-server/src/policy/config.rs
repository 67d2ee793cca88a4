//! A member's policy as the configuration has it.
//!
//! ```toml
//! [groups]
//! rivals = [64500, 64501]
//!
//! [[rule]]
//! direction = "export"
//! prefix = "192.0.2.0/24+"
//! hide_from = "rivals"
//!
//! [[rule]]
//! direction = "import"
//! as_path = "_64511_"
//! local_pref = 50
//!
//! [ranking]
//! strict = false
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::value::{I64Deserializer, MapAccessDeserializer, SeqAccessDeserializer, StrDeserializer};
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer};
use serde_spanned::Spanned;
use wayleave_core::{Afi, Asn, VerdictKind};

use super::pattern::{AnyCommunity, CommunityPattern, PathPattern, PeerName, PrefixPattern};

/// Rules, the groups that they name, and how routes are ranked. [`Policy::compile`](super::Policy::compile) makes a policy of it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyConfig {
    #[serde(default)]
    pub groups: BTreeMap<String, Vec<Asn>>,
    #[serde(default, rename = "rule")]
    pub rules: Vec<Spanned<RuleConfig>>,
    pub ranking: Option<Spanned<RankingConfig>>,
    pub communities: Option<CommunitiesConfig>,
}

/// One `[[rule]]`. Within a condition any value may match; every condition that is there must.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleConfig {
    pub direction: Direction,

    /// Condition: the prefix.
    #[serde(default)]
    pub prefix: OneOrMany<PrefixPattern>,
    /// Condition: the AS path.
    #[serde(default)]
    pub as_path: OneOrMany<PathPattern>,
    /// Condition: a community of the route.
    #[serde(default)]
    pub community: OneOrMany<CommunityPattern>,
    /// Condition: the other member, by AS number or group: who receives (export) or who announces (import).
    pub peer: Option<Spanned<OneOrMany<PeerName>>>,
    /// Condition: the other member, by group only.
    pub peer_group: Option<Spanned<OneOrMany<String>>>,
    /// Condition: the address family.
    pub family: Option<Afi>,
    /// Condition, import only: what validation concluded.
    #[serde(default)]
    pub verdict: OneOrMany<VerdictKind>,

    /// Export: `"all"`, `"none"`, or the only ones who may have the route.
    pub announce: Option<Spanned<Announce>>,
    /// Export: who may not have the route.
    pub hide_from: Option<Spanned<OneOrMany<PeerName>>>,
    /// Export: what `announce` permits is permitted whatever the route's communities.
    pub ignore_communities: Option<bool>,

    /// Import: the route is not used.
    pub reject: Option<bool>,
    /// Import: no later rule is read.
    pub accept: Option<bool>,
    /// Import: the degree of preference.
    pub local_pref: Option<u32>,
    /// Import: the class in the member's own order; routes without one stand at 128.
    pub class: Option<u8>,
    /// Import: communities to add.
    #[serde(default)]
    pub add_community: OneOrMany<AnyCommunity>,
    /// Import: the MED to set.
    pub set_med: Option<u32>,
}

/// Which routes a rule is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    Export,
    Import,
}

/// Who may have a route.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Announce {
    All,
    None,
    Only(Vec<PeerName>),
}

/// How routes are ranked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RankingConfig {
    /// Rank by all of BGP's decision process, which leaves nothing for the exchange's recommendation to decide.
    pub strict: bool,
    /// Bits of a class: 1 to 8.
    pub width: u8,
    /// Between which routes MED is compared.
    pub med: MedRule,
    /// Rank a route with GRACEFUL_SHUTDOWN behind all that have none (RFC 8326), unless an import rule that matches it names the
    /// community.
    pub graceful_shutdown: bool,
}

impl Default for RankingConfig {
    fn default() -> Self {
        Self { strict: false, width: 8, med: MedRule::default(), graceful_shutdown: true }
    }
}

/// What is done with communities of own routes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CommunitiesConfig {
    pub per_peer: PerPeer,
}

/// What becomes of prepending, NO_EXPORT and NO_ADVERTISE for one peer ([`treatments`](super::treatments)).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PerPeer {
    /// It is not done, and nobody learns of it.
    #[default]
    Private,
    /// Receivers' proxies do it, and every receiver of the route can read which peers are named.
    Readable,
}

/// Between which routes MED is compared (RFC 4271 section 9.1.2.2 c).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MedRule {
    /// Between those of one neighbouring AS, which is the announcer's.
    #[default]
    SameNeighbour,
    /// Between any two.
    Always,
    /// Between none.
    Never,
}

/// A list, where one value may stand by itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OneOrMany<T>(pub Vec<T>);

impl<T> Default for OneOrMany<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for OneOrMany<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OneOrManyVisitor(PhantomData))
    }
}

struct OneOrManyVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for OneOrManyVisitor<T> {
    type Value = OneOrMany<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value or a list of values")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<OneOrMany<T>, E> {
        Ok(OneOrMany(vec![T::deserialize(StrDeserializer::new(text))?]))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<OneOrMany<T>, E> {
        Ok(OneOrMany(vec![T::deserialize(I64Deserializer::new(number))?]))
    }

    fn visit_seq<A: de::SeqAccess<'de>>(self, list: A) -> Result<OneOrMany<T>, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(list)).map(OneOrMany)
    }

    fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<OneOrMany<T>, A::Error> {
        Ok(OneOrMany(vec![T::deserialize(MapAccessDeserializer::new(map))?]))
    }
}

impl<'de> Deserialize<'de> for Announce {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let OneOrMany(names) = OneOrMany::<PeerName>::deserialize(deserializer)?;
        Ok(match &names[..] {
            [PeerName::Group(word)] if word == "all" => Self::All,
            [PeerName::Group(word)] if word == "none" => Self::None,
            _ => Self::Only(names),
        })
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Direction::Export => "export",
            Direction::Import => "import",
        })
    }
}
