//! What a rule matches a route by: prefixes, AS paths, communities; and their text.

use std::fmt;
use std::str::FromStr;

use regex::bytes::{Regex, RegexBuilder};
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer};
use wayleave_bgp::{AsPath, Attributes, Community, ExtendedCommunity, LargeCommunity, SegmentKind};
use wayleave_core::{Asn, ParsePrefixError, Prefix};

/// Octets of an AS path expression: our limit.
const MAX_EXPRESSION: usize = 1024;
/// Octets of a compiled AS path expression, and of the table that its matching may build: our limits.
const MAX_COMPILED: usize = 1 << 20;
/// Depth of groups in an AS path expression: our limit.
const MAX_NESTING: u32 = 32;

/// The text is no prefix pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParsePrefixPatternError {
    #[error("`{0}` is not a prefix pattern: PREFIX, PREFIX+, PREFIX{{16,24}}, PREFIX ge 16 le 24, PREFIX orlonger")]
    Form(String),
    #[error(transparent)]
    Prefix(#[from] ParsePrefixError),
    /// The lengths are not ordered, or not between the prefix's own and the family's.
    #[error("lengths {least} to {most} of {prefix}: must rise, from {own} to {limit}", own = prefix.len(), limit = prefix.afi().bits())]
    Lengths { prefix: Prefix, least: u8, most: u8 },
}

/// A prefix and the lengths of the prefixes inside it that match.
///
/// `10.0.0.0/8` or `10.0.0.0/8 exact`: itself. `10.0.0.0/8+` or `10.0.0.0/8 orlonger`: itself and all inside.
/// `10.0.0.0/8{16,24}` or `10.0.0.0/8 ge 16 le 24`: those inside of these lengths; `ge` alone goes up to the longest,
/// `le` alone starts at the prefix's own length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PrefixPattern {
    prefix: Prefix,
    least: u8,
    most: u8,
}

impl PrefixPattern {
    /// Whether `prefix` lies inside and has one of the lengths.
    #[must_use]
    pub fn matches(&self, prefix: &Prefix) -> bool {
        self.prefix.contains(prefix) && (self.least..=self.most).contains(&prefix.len())
    }

    fn new(prefix: Prefix, least: u8, most: u8) -> Result<Self, ParsePrefixPatternError> {
        if prefix.len() <= least && least <= most && most <= prefix.afi().bits() {
            Ok(Self { prefix, least, most })
        } else {
            Err(ParsePrefixPatternError::Lengths { prefix, least, most })
        }
    }
}

impl FromStr for PrefixPattern {
    type Err = ParsePrefixPatternError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let form = || ParsePrefixPatternError::Form(text.to_owned());
        let length = |digits: &str| digits.trim().parse::<u8>().map_err(|_| form());
        let text_ = text.trim();
        let end = text_.find(['{', '+', ' ']).unwrap_or(text_.len());
        let (prefix, tail) = text_.split_at(end);
        let prefix: Prefix = prefix.parse()?;
        let (own, limit) = (prefix.len(), prefix.afi().bits());
        if let Some(range) = tail.strip_prefix('{') {
            let (least, most) = range.strip_suffix('}').and_then(|range| range.split_once(',')).ok_or_else(form)?;
            return Self::new(prefix, length(least)?, length(most)?);
        }
        match tail.split_whitespace().collect::<Vec<_>>()[..] {
            [] | ["exact"] => Self::new(prefix, own, own),
            ["+" | "orlonger"] => Self::new(prefix, own, limit),
            ["ge", least] => Self::new(prefix, length(least)?, limit),
            ["le", most] => Self::new(prefix, own, length(most)?),
            ["ge", least, "le", most] | ["le", most, "ge", least] => Self::new(prefix, length(least)?, length(most)?),
            _ => Err(form()),
        }
    }
}

/// The text is no AS path expression.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParsePathPatternError {
    /// Longer than `MAX_EXPRESSION`.
    #[error("an AS path expression of {0} octets, the limit is {MAX_EXPRESSION}")]
    TooLong(usize),
    /// Not a regular expression, or one that compiles to too much.
    #[error("`{expression}` is not an AS path expression: {reason}")]
    Expression { expression: String, reason: String },
}

/// A regular expression over the AS path as routers print it: numbers with one space between them, sets as `{1,2}`,
/// confederation sequences as `(1 2)`, confederation sets as `[1,2]`.
///
/// `_` stands for a boundary, as in routers: the start, the end, a space, a comma, a brace, bracket or parenthesis.
/// Inside `[...]` it is plain. Everything else is the syntax of the `regex` crate, ASCII only. Matching takes
/// time linear in the path.
#[derive(Clone, Debug)]
pub struct PathPattern {
    expression: String,
    regex: Regex,
}

impl PathPattern {
    /// Whether the expression matches `path`, a text of [`path_text`].
    #[must_use]
    pub fn matches(&self, path: &str) -> bool {
        self.regex.is_match(path.as_bytes())
    }

    /// The expression as it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.expression
    }
}

impl PartialEq for PathPattern {
    fn eq(&self, other: &Self) -> bool {
        self.expression == other.expression
    }
}

impl Eq for PathPattern {}

impl FromStr for PathPattern {
    type Err = ParsePathPatternError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.len() > MAX_EXPRESSION {
            return Err(ParsePathPatternError::TooLong(text.len()));
        }
        let error = |reason| ParsePathPatternError::Expression { expression: text.to_owned(), reason };
        let build = |expression: &str| {
            RegexBuilder::new(expression)
                .unicode(false)
                .size_limit(MAX_COMPILED)
                .dfa_size_limit(MAX_COMPILED)
                .nest_limit(MAX_NESTING)
                .build()
                .map_err(|reason| error(last_line(&reason.to_string())))
        };
        // The text by itself first, so that a message speaks of what was written and not of what `_` became.
        build(text)?;
        Ok(Self { expression: text.to_owned(), regex: build(&with_boundaries(text))? })
    }
}

/// A compiler's message ends with a line that says what is wrong; those above draw the place.
fn last_line(message: &str) -> String {
    let line = message.lines().last().unwrap_or_default();
    line.strip_prefix("error: ").unwrap_or(line).to_owned()
}

/// Replaces each `_` that is neither escaped nor in a class.
fn with_boundaries(expression: &str) -> String {
    let mut out = String::with_capacity(expression.len() * 2);
    let (mut escaped, mut depth) = (false, 0u32);
    // A `]` right behind the opening bracket, or behind its `^`, is plain.
    let mut opening = false;
    for c in expression.chars() {
        let opened = std::mem::take(&mut opening);
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '[' => (depth, opening) = (depth + 1, true),
            '^' if opened => opening = true,
            ']' if !opened => depth = depth.saturating_sub(1),
            '_' if depth == 0 => {
                out.push_str(r"(?:^|$|[ ,{}()\[\]])");
                continue;
            }
            _ => {}
        }
        out.push(c);
    }
    out
}

/// The AS path as routers print it and as [`PathPattern`] matches it.
#[must_use]
pub fn path_text(path: AsPath<'_>) -> String {
    let segments: Vec<String> = path
        .segments()
        .map(|segment| {
            let numbers: Vec<String> = segment.asns().map(|asn| asn.0.to_string()).collect();
            match segment.kind {
                SegmentKind::Sequence => numbers.join(" "),
                SegmentKind::Set => format!("{{{}}}", numbers.join(",")),
                SegmentKind::ConfedSequence => format!("({})", numbers.join(" ")),
                SegmentKind::ConfedSet => format!("[{}]", numbers.join(",")),
            }
        })
        .collect();
    segments.join(" ")
}

/// The text is no community, or no community pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseCommunityPatternError {
    #[error("`{0}` is not a community: 64496:1, 64496:1:2, rt:64496:1, ro:64496:1, or a name such as no-export")]
    Form(String),
    /// A part is not a number that fits.
    #[error("`{part}` in community `{text}` must be {allowed}")]
    Part { text: String, part: String, allowed: &'static str },
}

/// A community with `*` for any number: `64496:*` (standard), `64496:*:*` (large), `rt:64496:*` or `ro:*:*` (extended),
/// or a well-known name such as `no-export`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CommunityPattern {
    /// Upper and lower half; `None` is any.
    Standard(Option<u16>, Option<u16>),
    /// Global administrator and both local parts.
    Large(Option<u32>, Option<u32>, Option<u32>),
    /// Subtype (2 route target, 3 route origin), global and local administrator, of either AS-specific type.
    Extended(u8, Option<u32>, Option<u32>),
}

impl CommunityPattern {
    /// Whether a community of the route matches.
    #[must_use]
    pub fn matches(&self, attributes: &Attributes) -> bool {
        match *self {
            Self::Standard(upper, lower) => {
                attributes.communities().any(|c| any_or(upper, c.upper()) && any_or(lower, c.lower()))
            }
            Self::Large(global, local1, local2) => attributes
                .large_communities()
                .any(|c| any_or(global, c.global) && any_or(local1, c.local1) && any_or(local2, c.local2)),
            Self::Extended(subtype, global, local) => attributes
                .extended_communities()
                .filter_map(administrators)
                .any(|(s, g, l)| s == subtype && any_or(global, g) && any_or(local, l)),
        }
    }
}

fn any_or<T: PartialEq>(wanted: Option<T>, value: T) -> bool {
    wanted.is_none_or(|wanted| wanted == value)
}

/// Subtype, global and local administrator of a route target or route origin of an AS.
fn administrators(community: ExtendedCommunity) -> Option<(u8, u32, u32)> {
    match community.0 {
        [0x00, subtype @ 2..=3, a, b, c, d, e, f] => {
            Some((subtype, u32::from_be_bytes([0, 0, a, b]), u32::from_be_bytes([c, d, e, f])))
        }
        [0x02, subtype @ 2..=3, a, b, c, d, e, f] => {
            Some((subtype, u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([0, 0, e, f])))
        }
        _ => None,
    }
}

impl FromStr for CommunityPattern {
    type Err = ParseCommunityPatternError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts: Vec<&str> = text.split(':').collect();
        match parts[..] {
            [kind @ ("rt" | "ro"), global, local] => {
                let subtype = if kind == "rt" { 2 } else { 3 };
                Ok(Self::Extended(subtype, number(text, global)?, number(text, local)?))
            }
            [global, local1, local2] => {
                Ok(Self::Large(number(text, global)?, number(text, local1)?, number(text, local2)?))
            }
            [upper, lower] => Ok(Self::Standard(half(text, upper)?, half(text, lower)?)),
            [name] if !name.is_empty() && !name.bytes().all(|octet| octet.is_ascii_digit()) => {
                let community: Community =
                    name.parse().map_err(|_| ParseCommunityPatternError::Form(text.to_owned()))?;
                Ok(Self::Standard(Some(community.upper()), Some(community.lower())))
            }
            _ => Err(ParseCommunityPatternError::Form(text.to_owned())),
        }
    }
}

fn number(text: &str, part: &str) -> Result<Option<u32>, ParseCommunityPatternError> {
    part_of(text, part, "0 to 4294967295, or *")
}

fn half(text: &str, part: &str) -> Result<Option<u16>, ParseCommunityPatternError> {
    part_of(text, part, "0 to 65535, or *")
}

fn part_of<T: FromStr>(text: &str, part: &str, allowed: &'static str) -> Result<Option<T>, ParseCommunityPatternError> {
    if part == "*" {
        return Ok(None);
    }
    let error = || ParseCommunityPatternError::Part { text: text.to_owned(), part: part.to_owned(), allowed };
    if part.is_empty() || !part.bytes().all(|octet| octet.is_ascii_digit()) {
        return Err(error());
    }
    part.parse().map(Some).map_err(|_| error())
}

/// One community of any kind.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum AnyCommunity {
    Standard(Community),
    Large(LargeCommunity),
    Extended(ExtendedCommunity),
}

impl FromStr for AnyCommunity {
    type Err = ParseCommunityPatternError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let form = || ParseCommunityPatternError::Form(text.to_owned());
        match text.parse()? {
            CommunityPattern::Standard(Some(upper), Some(lower)) => Ok(Self::Standard(Community::new(upper, lower))),
            CommunityPattern::Large(Some(global), Some(local1), Some(local2)) => {
                Ok(Self::Large(LargeCommunity::new(global, local1, local2)))
            }
            CommunityPattern::Extended(..) => text.parse().map(Self::Extended).map_err(|_| form()),
            _ => Err(form()),
        }
    }
}

/// Which ASes a rule speaks of: one AS, or a group of `[groups]`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PeerName {
    As(Asn),
    Group(String),
}

impl FromStr for PeerName {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(text.parse().map_or_else(|_| Self::Group(text.to_owned()), Self::As))
    }
}

/// Deserializes by [`FromStr`] inside the visitor, so that a format which knows where the value stands can say so.
struct Text<T>(std::marker::PhantomData<T>, &'static str);

impl<T: FromStr<Err: fmt::Display>> Visitor<'_> for Text<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.1)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }
}

macro_rules! from_text {
    ($($name:ident: $expecting:literal,)*) => {$(
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_str(Text(std::marker::PhantomData, $expecting))
            }
        }
    )*};
}

from_text! {
    PrefixPattern: "a prefix such as \"192.0.2.0/24\" or \"10.0.0.0/8{16,24}\"",
    PathPattern: "an AS path expression such as \"^64497_\"",
    CommunityPattern: "a community such as \"64496:100\", \"64496:*:*\" or \"rt:64496:*\"",
    AnyCommunity: "a community such as \"64496:100\", \"64496:1:2\" or \"rt:64496:1\"",
}

struct PeerNameVisitor;

impl Visitor<'_> for PeerNameVisitor {
    type Value = PeerName;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an AS number or the name of a group")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<PeerName, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<PeerName, E> {
        let asn = u32::try_from(number).map_err(|_| E::invalid_value(de::Unexpected::Unsigned(number), &self))?;
        Ok(PeerName::As(Asn(asn)))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<PeerName, E> {
        let asn = u32::try_from(number).map_err(|_| E::invalid_value(de::Unexpected::Signed(number), &self))?;
        Ok(PeerName::As(Asn(asn)))
    }
}

impl<'de> Deserialize<'de> for PeerName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PeerNameVisitor)
    }
}
