//! From a member's configuration to its policy: names resolved, senseless rules refused with their place in the text.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use serde_spanned::Spanned;
use wayleave_core::Asn;

use super::config::{Announce, Direction, OneOrMany, PolicyConfig, RuleConfig};
use super::pattern::PeerName;
use super::rules::{Audience, ExportRule, ImportRule, Match, Policy};

/// Rules of one member: our own limit.
pub const MAX_RULES: usize = 1024;

/// Why a configuration is not a policy, and where in its text.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{problem}")]
pub struct PolicyError {
    pub problem: PolicyProblem,
    /// Byte range of the configuration's text, where known.
    pub span: Option<Range<usize>>,
}

/// What is wrong with a configuration.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PolicyProblem {
    #[error("no group `{name}` in [groups], which has: {}", known.join(", "))]
    UnknownGroup { name: String, known: Vec<String> },
    /// A group's name could be read as something else.
    #[error("`{0}` cannot name a group: it reads as an AS number, `all` or `none`")]
    GroupName(String),
    #[error("`{0}` may stand only by itself, and only in `announce`")]
    AllOrNone(String),
    #[error("`{field}` has no meaning in an {direction} rule")]
    WrongDirection { direction: Direction, field: &'static str },
    #[error("the rule does nothing: give it {0}")]
    NoAction(&'static str),
    #[error("a rule that rejects the route cannot also have `{0}`")]
    RejectAnd(&'static str),
    /// `ignore_communities` without anything that permits.
    #[error("`ignore_communities` needs `announce` with \"all\" or a list in the same rule")]
    IgnoreWithoutAnnounce,
    /// A class of zero or more than eight bits.
    #[error("width {0}: a class has 1 to 8 bits")]
    Width(u8),
    /// More rules than [`MAX_RULES`].
    #[error("{0} rules, the limit is {MAX_RULES}")]
    TooManyRules(usize),
}

/// Groups by name.
type Groups = BTreeMap<String, Vec<Asn>>;

pub(super) fn compile(config: &PolicyConfig) -> Result<Policy, PolicyError> {
    let nowhere = |problem| PolicyError { problem, span: None };
    if config.rules.len() > MAX_RULES {
        return Err(nowhere(PolicyProblem::TooManyRules(config.rules.len())));
    }
    if let Some(name) = config.groups.keys().find(|name| is_reserved(name) || name.parse::<Asn>().is_ok()) {
        return Err(nowhere(PolicyProblem::GroupName(name.clone())));
    }
    let mut policy = Policy::default();
    policy.per_peer = config.communities.unwrap_or_default().per_peer;
    if let Some(ranking) = &config.ranking {
        policy.ranking = *ranking.get_ref();
        if !(1..=8).contains(&policy.ranking.width) {
            return Err(at(ranking, PolicyProblem::Width(policy.ranking.width)));
        }
    }
    for (number, rule) in config.rules.iter().enumerate() {
        check(rule.get_ref()).map_err(|problem| at(rule, problem))?;
        match rule.get_ref().direction {
            Direction::Export => policy.export.push(export_rule(number, rule.get_ref(), &config.groups)?),
            Direction::Import => policy.import.push(import_rule(number, rule.get_ref(), &config.groups)?),
        }
    }
    Ok(policy)
}

fn at<T>(place: &Spanned<T>, problem: PolicyProblem) -> PolicyError {
    let span = place.span();
    PolicyError { problem, span: (!span.is_empty()).then_some(span) }
}

/// Whether the rule's fields go together.
fn check(rule: &RuleConfig) -> Result<(), PolicyProblem> {
    let export = [
        ("announce", rule.announce.is_some()),
        ("hide_from", rule.hide_from.is_some()),
        ("ignore_communities", rule.ignore_communities.is_some()),
    ];
    let changes = [
        ("accept", rule.accept == Some(true)),
        ("local_pref", rule.local_pref.is_some()),
        ("class", rule.class.is_some()),
        ("add_community", !rule.add_community.0.is_empty()),
        ("set_med", rule.set_med.is_some()),
    ];
    let only_import = [("reject", rule.reject.is_some()), ("verdict", !rule.verdict.0.is_empty())];
    let first = |fields: &[(&'static str, bool)]| fields.iter().find(|(_, there)| *there).map(|(field, _)| *field);
    let direction = rule.direction;
    match direction {
        Direction::Export => {
            if let Some(field) = first(&changes).or_else(|| first(&only_import)) {
                return Err(PolicyProblem::WrongDirection { direction, field });
            }
            let announce = rule.announce.as_ref().map(Spanned::get_ref);
            if rule.ignore_communities == Some(true) && matches!(announce, None | Some(Announce::None)) {
                return Err(PolicyProblem::IgnoreWithoutAnnounce);
            }
            if announce.is_none() && rule.hide_from.is_none() {
                return Err(PolicyProblem::NoAction("`announce` or `hide_from`"));
            }
        }
        Direction::Import => {
            if let Some(field) = first(&export) {
                return Err(PolicyProblem::WrongDirection { direction, field });
            }
            match (rule.reject == Some(true), first(&changes)) {
                (true, Some(field)) => return Err(PolicyProblem::RejectAnd(field)),
                (false, None) => {
                    let actions = "`reject`, `accept`, `local_pref`, `class`, `add_community` or `set_med`";
                    return Err(PolicyProblem::NoAction(actions));
                }
                _ => {}
            }
        }
    }
    Ok(())
}

fn export_rule(number: usize, rule: &RuleConfig, groups: &Groups) -> Result<ExportRule, PolicyError> {
    let audience = match &rule.announce {
        None => None,
        Some(announce) => Some(match announce.get_ref() {
            Announce::All => Audience::All,
            Announce::None => Audience::Only(BTreeSet::new()),
            Announce::Only(names) => Audience::Only(resolve(names, groups).map_err(|problem| at(announce, problem))?),
        }),
    };
    Ok(ExportRule {
        number,
        conditions: conditions(rule, groups)?,
        announce: audience,
        hide_from: peers(rule.hide_from.as_ref(), groups)?,
        ignore_communities: rule.ignore_communities == Some(true),
    })
}

fn import_rule(number: usize, rule: &RuleConfig, groups: &Groups) -> Result<ImportRule, PolicyError> {
    Ok(ImportRule {
        number,
        conditions: conditions(rule, groups)?,
        reject: rule.reject == Some(true),
        accept: rule.accept == Some(true),
        local_pref: rule.local_pref,
        class: rule.class,
        add_community: rule.add_community.0.clone(),
        set_med: rule.set_med,
    })
}

fn conditions(rule: &RuleConfig, groups: &Groups) -> Result<Match, PolicyError> {
    let by_peer = rule.peer.is_some() || rule.peer_group.is_some();
    let mut named = peers(rule.peer.as_ref(), groups)?;
    if let Some(list) = &rule.peer_group {
        let names: Vec<_> = list.get_ref().0.iter().cloned().map(PeerName::Group).collect();
        named.extend(resolve(&names, groups).map_err(|problem| at(list, problem))?);
    }
    Ok(Match {
        prefixes: rule.prefix.0.clone(),
        as_paths: rule.as_path.0.clone(),
        communities: rule.community.0.clone(),
        peers: by_peer.then_some(named),
        family: rule.family,
        verdicts: rule.verdict.0.clone(),
    })
}

fn peers(list: Option<&Spanned<OneOrMany<PeerName>>>, groups: &Groups) -> Result<BTreeSet<Asn>, PolicyError> {
    match list {
        None => Ok(BTreeSet::new()),
        Some(list) => resolve(&list.get_ref().0, groups).map_err(|problem| at(list, problem)),
    }
}

fn resolve(names: &[PeerName], groups: &Groups) -> Result<BTreeSet<Asn>, PolicyProblem> {
    let mut asns = BTreeSet::new();
    for name in names {
        match name {
            PeerName::As(asn) => drop(asns.insert(*asn)),
            PeerName::Group(name) if is_reserved(name) => return Err(PolicyProblem::AllOrNone(name.clone())),
            PeerName::Group(name) => asns.extend(groups.get(name).ok_or_else(|| PolicyProblem::UnknownGroup {
                name: name.clone(),
                known: groups.keys().cloned().collect(),
            })?),
        }
    }
    Ok(asns)
}

fn is_reserved(name: &str) -> bool {
    matches!(name, "all" | "none")
}
