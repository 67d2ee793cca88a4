//! The configuration of a party of the route server.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use toml::Spanned;
use wayleave_core::{Asn, Now};
use wayleave_crypto::secret::Secret;
use wayleave_route_server::directory::{Directory, MAX_EXCHANGE_NAME, MemberSet, Trust};
use wayleave_route_server::key_roles::{KeyRole, KeyRoles, SharedKey};
use wayleave_route_server::object::{ExportMode, MAX_BLOB, MAX_BLOB_DEFAULT};
use wayleave_route_server::party::{Budget, MAX_WAITING, Party, PartyConfig, PartyNumber, StartError};
use wayleave_route_server::versions::Speaks;
use wayleave_runtime::clock::unix_now;
use wayleave_runtime::identity::{Fingerprint, Identity, IdentityError};
use wayleave_runtime::tls::own_fault;

use super::check::{Checked, RoleConfig};
use super::machine::{absent_address, kind_fault, state_fault, stored, taken_by_status};
use super::parse::{HostPort, PublicKey, Text};
use super::{EXAMPLE_OPERATORS, EXAMPLE_PINS, Fault, Source};
use crate::failure::{Failure, Failures};
use crate::key_files::{member_set, signing_key};

/// `run rs`.
pub const ROLE: RoleConfig =
    RoleConfig { name: "rs", section: "party", sections: "[party] and [link]", check: RsConfig::checked, template };

/// The file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RsConfig {
    pub party: PartySection,
    pub link: Spanned<LinkSection>,
    #[serde(default)]
    pub budget: BudgetSection,
    pub status: Option<StatusSection>,
}

/// `[party]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartySection {
    pub number: Spanned<u8>,
    pub exchange: Spanned<String>,
    pub listen: Spanned<Text<SocketAddr>>,
    pub key: Spanned<PathBuf>,
    pub state: Spanned<PathBuf>,
    pub members: Spanned<PathBuf>,
    /// Of party 1's and of party 2's operator.
    pub operators: Spanned<[Text<PublicKey>; 2]>,
    #[serde(default = "default_tick")]
    pub tick_ms: Spanned<u64>,
    #[serde(default = "default_stale")]
    pub stale_secs: Spanned<u64>,
    /// How long party 1 waits for a member's ranking beyond the tick.
    #[serde(default = "default_rank_wait")]
    pub rank_wait_ms: Spanned<u64>,
    /// How much later than by the schedule a ranking may come before party 1 begins a round without it; by default as members' links
    /// answer.
    pub rank_allowance_ms: Option<Spanned<u64>>,
    /// Who multiplies export policies and route keys; the same at both parties.
    #[serde(default)]
    pub export: Export,
    /// The number of the order of candidates; the same at both parties. Once both have another one, they draw the key of the order anew.
    #[serde(default = "default_order")]
    pub order: Spanned<u64>,
    /// Octets of the largest sealed route that this party's operator agrees to; the lower value of both parties counts.
    #[serde(default = "default_max_blob")]
    pub max_blob: Spanned<u64>,
    /// Prefixes that the member set may let one member announce, at most. Both operators sign each limit, and none signs more than it
    /// agrees to: the lower value of both counts.
    #[serde(default = "default_max_prefix_limit")]
    pub max_prefix_limit: Spanned<u64>,
    /// MiB of objects of all members together that may wait to be applied.
    #[serde(default = "default_max_waiting")]
    pub max_waiting_mib: Spanned<u64>,
    pub recommendation: Option<Spanned<PathBuf>>,
    /// How long a recommendation counts at least.
    #[serde(default = "default_epoch")]
    pub epoch_secs: Spanned<u64>,
    /// Allows epochs as short as one likes; for a laboratory only.
    #[serde(default)]
    pub lab: bool,
    /// Of a trial, in which one person has all keys: the folder with both operators' key files.
    pub trial: Option<Spanned<PathBuf>>,
}

/// Who multiplies export policies and route keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Export {
    /// The announcer.
    #[default]
    Direct,
    /// The parties, by two-party computation.
    Mpc,
}

/// `[link]`: the link to the peer party.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkSection {
    pub listen: Option<Spanned<Text<SocketAddr>>>,
    pub connect: Option<Text<HostPort>>,
    pub pin: Spanned<Text<Fingerprint>>,
}

/// `[budget]`: what each member may cost this party.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BudgetSection {
    pub objects_per_second: Spanned<u64>,
    pub kib_per_second: Spanned<u64>,
    /// How often a member may be sent all routes.
    pub resyncs_per_hour: Spanned<u64>,
    /// How often Select-Best chooses for it among those.
    pub choices_per_hour: Spanned<u64>,
    /// Comparisons that are evaluated for it although its ranking came late.
    pub late_per_second: Spanned<u64>,
}

impl Default for BudgetSection {
    fn default() -> Self {
        let Budget { objects, octets, syncs, choices, late } = Budget::default();
        let spanned = |number: u32| Spanned::new(0..0, u64::from(number));
        Self {
            objects_per_second: spanned(objects),
            kib_per_second: spanned(octets / 1024),
            resyncs_per_hour: spanned(syncs),
            choices_per_hour: spanned(choices),
            late_per_second: spanned(late),
        }
    }
}

impl BudgetSection {
    fn faults(&self) -> impl Iterator<Item = Fault> {
        let objects = range(&self.objects_per_second, 10, 1_000_000, "objects a second");
        let octets = range(&self.kib_per_second, 64, 2_000_000, "KiB a second");
        let syncs = range(&self.resyncs_per_hour, 1, 1_000_000, "times an hour");
        let choices = range(&self.choices_per_hour, 1, 1_000_000, "times an hour");
        let late = range(&self.late_per_second, 1, 1_000_000, "comparisons a second");
        [objects, octets, syncs, choices, late].into_iter().flatten()
    }

    /// `faults` has checked every number.
    fn budget(&self) -> Budget {
        let number = |of: &Spanned<u64>| u32::try_from(*of.get_ref()).unwrap_or(u32::MAX);
        Budget {
            objects: number(&self.objects_per_second),
            octets: number(&self.kib_per_second).saturating_mul(1024),
            syncs: number(&self.resyncs_per_hour),
            choices: number(&self.choices_per_hour),
            late: number(&self.late_per_second),
        }
    }
}

/// `[status]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StatusSection {
    pub listen: Spanned<Text<SocketAddr>>,
    /// Show this party's shares; for a laboratory only, since both parties' shares together reveal the policies.
    #[serde(default = "no_shares")]
    pub shares: Spanned<bool>,
    /// Answer what a looking glass asks of birdwatcher; a member's proxy alone, which has routes.
    #[serde(default = "no_shares")]
    pub birdwatcher: Spanned<bool>,
}

fn no_shares() -> Spanned<bool> {
    Spanned::new(0..0, false)
}

/// A key that two have.
pub(super) fn shared_fault(span: std::ops::Range<usize>, shared: &SharedKey) -> Fault {
    let message = format!("{} is also {}, expected a key of its own", shared.second, shared.first);
    Fault::at(span, message).help(OWN_KEY)
}

/// What to do about a key that has two roles.
const OWN_KEY: &str = "each role needs a key of its own: `wayleave keys new` creates one, `keys show` prints a file's";

/// What to do about a file of state that is none.
pub(super) const OTHER_STATE: &str =
    "is it another role's? each needs a file of its own: name another path, or move it away";

fn default_tick() -> Spanned<u64> {
    Spanned::new(0..0, 50)
}

fn default_stale() -> Spanned<u64> {
    Spanned::new(0..0, 120)
}

fn default_rank_wait() -> Spanned<u64> {
    Spanned::new(0..0, 1000)
}

/// How much later than a tick after its batch a member's ranking leaves at most (docs/protocol.md), and what it may take besides: for the
/// tick to reach a member, over a continent and on a busy machine, and for its ranking to come from there.
const LATEST_RANKING_MS: u64 = 500;
const RANKING_ON_ITS_WAY_MS: u64 = 100;

/// Prefixes that a member may announce at most, where the operator sets nothing else: about a whole table.
pub const MAX_PREFIX_LIMIT: u32 = 1_000_000;
/// What the operator may set.
const MOST_PREFIXES: u64 = 100_000_000;

/// How the names of trials begin, and no others: members see by it that nobody is neutral.
pub const TRIAL: &str = "trial-";
/// The operators' key files in a trial's folder of them.
pub const TRIAL_OPERATORS: [&str; 2] = ["operator1.key", "operator2.key"];

/// A quarter of an hour, the shortest outside a laboratory.
const SHORTEST_EPOCH: u64 = 900;

fn default_epoch() -> Spanned<u64> {
    Spanned::new(0..0, SHORTEST_EPOCH)
}

fn default_max_prefix_limit() -> Spanned<u64> {
    Spanned::new(0..0, u64::from(MAX_PREFIX_LIMIT))
}

fn default_max_waiting() -> Spanned<u64> {
    Spanned::new(0..0, (MAX_WAITING >> 20) as u64)
}

fn default_order() -> Spanned<u64> {
    Spanned::new(0..0, 1)
}

fn default_max_blob() -> Spanned<u64> {
    Spanned::new(0..0, u64::from(MAX_BLOB_DEFAULT))
}

impl RsConfig {
    /// Reads and checks the file, not the files that it names.
    pub fn parse(source: &Source) -> Result<Self, Failures> {
        let config: Self = source.parse()?;
        let faults = config.faults();
        if faults.is_empty() {
            return Ok(config);
        }
        Err(Failures(faults.into_iter().map(|fault| source.failure(fault)).collect()))
    }

    fn faults(&self) -> Vec<Fault> {
        let (party, link) = (&self.party, self.link.get_ref());
        let mut faults = Vec::new();
        if !(1..=2).contains(party.number.get_ref()) {
            faults.push(Fault::at(
                party.number.span(),
                "there is no such party, expected 1 (the exchange) or 2 (neutral)",
            ));
        }
        faults.extend(exchange_fault(&party.exchange));
        faults.extend(operators_fault(&party.operators));
        faults.extend(self.trial_name_fault());
        if let Some(file) = party.recommendation.as_ref().filter(|_| *party.number.get_ref() == 2) {
            let message = "only party 1 has the exchange's recommendation, expected no such key";
            faults.push(Fault::at(file.span(), message).help("party 2 must not know it"));
        }
        faults.extend(range(&party.tick_ms, 0, 60_000, "milliseconds"));
        faults.extend(range(&party.stale_secs, 1, 86_400, "seconds"));
        faults.extend(range(&party.rank_wait_ms, 1, 60_000, "milliseconds"));
        if let Some(allowance) = &party.rank_allowance_ms {
            faults.extend(range(allowance, 1, *party.rank_wait_ms.get_ref(), "milliseconds").map(|fault| {
                fault.help(
                    "rankings are taken for rank_wait_ms, and those that come after the allowance are evaluated later",
                )
            }));
        }
        let shortest = if party.lab { 0 } else { SHORTEST_EPOCH };
        faults.extend(range(&party.epoch_secs, shortest, 31_536_000, "seconds").map(|fault| {
            fault.help("members learn more of a recommendation that changes often; a laboratory with `lab = true` may")
        }));
        faults.extend(range(&party.order, 1, u64::from(u32::MAX), "the number of an order"));
        faults.extend(range(&party.max_blob, 512, MAX_BLOB as u64, "octets"));
        faults.extend(range(&party.max_prefix_limit, 1, MOST_PREFIXES, "prefixes"));
        faults.extend(range(&party.max_waiting_mib, 64, 65_536, "MiB"));
        faults.extend(self.budget.faults());
        if link.listen.is_some() == link.connect.is_some() {
            let message =
                "both or neither of `listen` and `connect`, expected one: one party listens, the other connects";
            faults.push(Fault::at(self.link.span(), message));
        }
        let members = party.listen.get_ref().0;
        if let Some(listen) = link.listen.as_ref().filter(|listen| listen.get_ref().0 == members) {
            let message = format!("members connect to {members} already, expected an address or port of its own");
            faults.push(Fault::at(listen.span(), message));
        }
        let listening: Vec<SocketAddr> =
            std::iter::once(members).chain(link.listen.iter().map(|listen| listen.get_ref().0)).collect();
        faults.extend(taken_by_status(self.status.as_ref(), &listening));
        let shares = self.status.iter().map(|status| &status.shares).find(|shares| *shares.get_ref() && !party.lab);
        let looking_glass = self.status.iter().map(|status| &status.birdwatcher).find(|shown| *shown.get_ref());
        faults.extend(looking_glass.map(|shown| {
            let message = "a party has no routes to show, expected false";
            Fault::at(shown.span(), message).help("a member's proxy has the looking glass of its own routes")
        }));
        faults.extend(shares.map(|shares| {
            let message = "shows shares from which, with those of the other party, all policies follow, expected false";
            Fault::at(shares.span(), message).help("a laboratory may, with `[party] lab = true`")
        }));
        faults
    }

    /// A trial whose name does not say so, or the name of one without its mark.
    fn trial_name_fault(&self) -> Option<Fault> {
        let (name, trial) = (&self.party.exchange, &self.party.trial);
        match (name.get_ref().starts_with(TRIAL), trial) {
            (true, None) => {
                let message = format!("names that begin with `{TRIAL}` are those of trials, expected another one");
                Some(Fault::at(name.span(), message).help(
                    "in a trial one person has the keys of both operators (`wayleave exchange new`, which writes \
                     `trial = FOLDER`); an exchange of two organisations begins with `wayleave members init`",
                ))
            }
            (false, Some(trial)) => {
                let message =
                    format!("`{}` is not the name of a trial, expected one that begins with `{TRIAL}`", name.get_ref());
                Some(Fault::at(trial.span(), message).help("members see by the name that nobody is neutral"))
            }
            _ => None,
        }
    }

    /// A trial is one person's: it has both operators' keys. Where one of them is somebody else's, this is no trial.
    ///
    /// # Errors
    /// At `operators`, with the operator whose key is another or not there.
    pub fn check_trial(&self, source: &Source) -> Result<(), Failures> {
        self.operators_apart_fault(source).map_or(Ok(()), |fault| Err(source.failure(fault).into()))
    }

    fn operators_apart_fault(&self, source: &Source) -> Option<Fault> {
        const APART: &str = "two operators make no trial but an exchange, with keys, a member set and a name of its own: \
                             `wayleave members init` begins it";
        const ABSENT: &str = "in a trial the folder of `trial` has both operators' keys: put it back, or make another \
                              trial with `wayleave exchange new`; an exchange of two organisations has no such line";
        let folder = source.resolve(self.party.trial.as_ref()?.get_ref());
        let operators = (1..).zip(TRIAL_OPERATORS).zip(self.party.operators.get_ref());
        let (why, help) = operators.into_iter().find_map(|((number, file), expected)| {
            let path = folder.join(file);
            let key = Identity::load(&path).map(|identity| signing_key(&identity).verifying_key().to_bytes());
            match key {
                Ok(key) if key == expected.0.0.to_bytes() => None,
                Ok(_) => Some((format!("{} is not the key of party {number}'s operator", path.display()), APART)),
                Err(error) => {
                    Some((format!("the key of party {number}'s operator is not in the trial: {error}"), ABSENT))
                }
            }
        })?;
        let message = format!("{why}, expected one person with both operators' keys");
        Some(Fault::at(self.party.operators.span(), message).help(help))
    }

    /// Whom this party trusts to say who is a member.
    pub fn trust(&self) -> Trust {
        member_set::trust(self.party.exchange.get_ref(), &self.party.operators.get_ref().each_ref().map(|key| key.0))
    }

    /// The keys of the parties and operators that this party knows, with its own.
    pub fn keys(&self, identity: &Identity) -> Vec<(KeyRole, [u8; 32])> {
        let own = *self.party.number.get_ref();
        let [first, second] = self.party.operators.get_ref().each_ref().map(|key| key.0.0.to_bytes());
        vec![
            (KeyRole::PartyCertificate(own), identity.fingerprint().0),
            (KeyRole::PartySigning(own), signing_key(identity).verifying_key().to_bytes()),
            (KeyRole::PartyCertificate(3 - own), self.link.get_ref().pin.get_ref().0.0),
            (KeyRole::Operator(1), first),
            (KeyRole::Operator(2), second),
        ]
    }

    /// The same, each in one role.
    pub fn key_roles(&self, identity: &Identity) -> Result<KeyRoles, SharedKey> {
        KeyRoles::of(self.keys(identity))
    }

    /// A key that has two roles, at the value that says so.
    fn shared_key_fault(&self, source: &Source) -> Option<Fault> {
        let identity = Identity::load(&source.resolve(self.party.key.get_ref())).ok()?;
        let members = source.resolve(self.party.members.get_ref());
        let directory = member_set::verified(&members, &self.trust()).ok().map(|(_, directory)| directory);
        let roles = self.key_roles(&identity);
        let shared =
            roles.and_then(|mut roles| directory.map_or(Ok(()), |members| roles.add_directory(&members))).err()?;
        let own = *self.party.number.get_ref();
        let (span, help) = match (shared.first, shared.second) {
            (KeyRole::PartyCertificate(_), KeyRole::PartyCertificate(_)) => {
                let help = "this pin is of this party's own key file: put in the line `pin` of the peer party's, as its operator read it out; if `key` names the peer's file, name this party's";
                (self.link.get_ref().pin.span(), help)
            }
            (KeyRole::PartySigning(_), KeyRole::Operator(_)) => {
                let help = "each has a key file of its own: name the party's here (`wayleave keys new` creates one), and give `members init` the lines `sign` of the operators'";
                (self.party.key.span(), help)
            }
            (KeyRole::PartyCertificate(number) | KeyRole::PartySigning(number), _) if number == own => {
                (self.party.key.span(), OWN_KEY)
            }
            (KeyRole::PartyCertificate(_), _) => (self.link.get_ref().pin.span(), OWN_KEY),
            (KeyRole::Operator(_), _) => (self.party.operators.span(), OWN_KEY),
            _ => (self.party.members.span(), OWN_KEY),
        };
        Some(shared_fault(span, &shared).help(help))
    }

    /// Faults of the files that it names: all that `run` reads.
    fn file_faults(&self, source: &Source) -> Vec<FileFault> {
        let party = &self.party;
        let mut faults: Vec<FileFault> = key_fault(&party.key, source).into_iter().collect();
        faults.extend(self.shared_key_fault(source).map(FileFault::Unusable));
        faults.extend(state_fault(&party.state, source));
        faults.extend(self.operators_apart_fault(source).map(FileFault::Unusable));
        let members = source.resolve(party.members.get_ref());
        let mut directory = None;
        if let Some(fault) = kind_fault(&party.members, source, false) {
            faults.push(fault);
        } else if !members.exists() {
            let message = format!("{} does not exist yet", members.display());
            let fault = Fault::at(party.members.span(), message).help("`wayleave members init` creates it");
            faults.push(FileFault::Missing(fault));
        } else if !self.has_examples() {
            match member_set::verified(&members, &self.trust()) {
                Ok((octets, read)) => {
                    faults.extend(self.stored_set_fault(&octets, &read, source));
                    faults.extend(self.limit_faults(read.set()).map(FileFault::Unusable));
                    directory = Some(read);
                }
                Err(failures) => {
                    let unusable = |failure: &Failure| Fault::of(party.members.span(), failure);
                    faults.extend(failures.0.iter().map(unusable).map(FileFault::Unusable));
                }
            }
        }
        faults.extend(self.recommendation_faults(source, directory.as_ref().map(|directory| &**directory.set())));
        faults
    }

    /// Members without a prefix limit, or with a higher one than this party's operator agrees to.
    fn limit_faults(&self, set: &MemberSet) -> impl Iterator<Item = Fault> {
        let most = *self.party.max_prefix_limit.get_ref();
        let (span, number) = (self.party.members.span(), set.number);
        let active = set.iter().filter(|(_, slot)| slot.active).map(|(_, slot)| (slot.name.clone(), slot.max_prefix));
        let faults = active.filter_map(move |(name, limit)| {
            let what = match limit {
                0 => format!("member set {number} has no prefix limit for `{name}`, expected one of at most {most}"),
                limit if u64::from(limit) > most => {
                    format!("member set {number} lets `{name}` announce {limit} prefixes, expected at most {most}")
                }
                _ => return None,
            };
            let help = format!(
                "`wayleave members propose --max-prefix {name}=NUMBER` sets it, countersigned by the other operator; \
                 `max_prefix_limit` in [party] is the largest that this party agrees to"
            );
            Some(Fault::at(span.clone(), what).help(help))
        });
        faults.collect::<Vec<_>>().into_iter()
    }

    /// What is wrong with the recommendation's file. Without a member set its names are not looked at.
    fn recommendation_faults(&self, source: &Source, set: Option<&MemberSet>) -> Vec<FileFault> {
        let Some(file) = &self.party.recommendation else { return Vec::new() };
        let path = source.resolve(file.get_ref());
        if !path.exists() {
            let message = format!("{} does not exist", path.display());
            let help = "write it: `[recommendation]`, and below it lines such as `alpha = 10`; or remove this line";
            return vec![FileFault::Unusable(Fault::at(file.span(), message).help(help))];
        }
        match Recommendation::read(&path, set) {
            Ok((_, unknown)) => {
                let doubtful = |failure: &Failure| FileFault::Doubtful(Fault::within(file.span(), failure));
                unknown.iter().map(doubtful).collect()
            }
            Err(failures) => {
                let unusable = |failure: &Failure| FileFault::Unusable(Fault::within(file.span(), failure));
                failures.0.iter().map(unusable).collect()
            }
        }
    }

    /// What was in force at this party, against the file: the rule of a start. Nothing while the role runs, whose state no
    /// other process can read.
    fn stored_set_fault(&self, octets: &[u8], in_file: &Directory, source: &Source) -> Option<FileFault> {
        let identity = Identity::load(&source.resolve(self.party.key.get_ref())).ok()?;
        let records = match stored(&source.resolve(self.party.state.get_ref())) {
            Ok(records) => records?,
            Err(error) => {
                return Some(FileFault::Unusable(
                    Fault::at(self.party.state.span(), error.to_string()).help(OTHER_STATE),
                ));
            }
        };
        let span = self.party.members.span();
        let now = Now { instant: wayleave_core::Instant(0), unix: unix_now() };
        match Party::new(self.machine(&identity), &Secret::new([0; 32]), octets, records, now) {
            Ok(party) if party.members().number > in_file.set().number => {
                let (newer, older) = (party.members().number, in_file.set().number);
                let message = format!("the file has member set {older}, and set {newer} was in force at this party");
                let help = "the party starts with the newer one, which its state has, and writes it to the file";
                Some(FileFault::Doubtful(Fault::at(span, message).help(help)))
            }
            Ok(_) => None,
            Err(error @ StartError::Store) => {
                Some(FileFault::Unusable(Fault::at(self.party.state.span(), error.to_string()).help(OTHER_STATE)))
            }
            // Named already, at the key that has two.
            Err(StartError::Keys(_)) => None,
            Err(error @ (StartError::StoredOperators | StartError::StoredExchange(_))) => {
                let help = self.other_state_help(source);
                Some(FileFault::Unusable(Fault::at(self.party.state.span(), error.to_string()).help(help)))
            }
            Err(error) => Some(FileFault::Unusable(Fault::at(span, error.to_string()).help(
                "the party's state has the set that was in force: restore the file that it had, or settle with the other operator which counts",
            ))),
        }
    }

    /// What to do about a state that is of another exchange than the file and the configuration.
    fn other_state_help(&self, source: &Source) -> String {
        let state = source.resolve(self.party.state.get_ref());
        format!(
            "where this party was never connected to the peer party with that state, remove it: rm {}*. Otherwise restore the file and \
             the configuration that this party had",
            state.display()
        )
    }

    /// What to do about a party that cannot start.
    #[must_use]
    pub fn start_help(&self, error: &StartError, source: &Source) -> String {
        match error {
            StartError::StoredOperators | StartError::StoredExchange(_) => self.other_state_help(source),
            _ => {
                let set = source.resolve(self.party.members.get_ref());
                format!("see {} and {}", source.path().display(), set.display())
            }
        }
    }

    /// The machine's configuration; `parse` has checked every number.
    pub fn machine(&self, identity: &Identity) -> PartyConfig {
        let party = &self.party;
        PartyConfig {
            number: if *party.number.get_ref() == 1 { PartyNumber::One } else { PartyNumber::Two },
            exchange: party.exchange.get_ref().clone(),
            operators: party.operators.get_ref().each_ref().map(|key| key.0.0),
            keys: self.keys(identity),
            tick: Duration::from_millis(*party.tick_ms.get_ref()),
            stale: Duration::from_secs(*party.stale_secs.get_ref()),
            rank_wait: Duration::from_millis(*party.rank_wait_ms.get_ref()),
            rank_allowance: party.rank_allowance_ms.as_ref().map(|ms| Duration::from_millis(*ms.get_ref())),
            match_wait: Duration::from_secs(2),
            export: match party.export {
                Export::Direct => ExportMode::Direct,
                Export::Mpc => ExportMode::Mpc,
            },
            order: u32::try_from(*party.order.get_ref()).unwrap_or(1),
            max_blob: u32::try_from(*party.max_blob.get_ref()).unwrap_or(MAX_BLOB_DEFAULT),
            max_prefix_limit: u32::try_from(*party.max_prefix_limit.get_ref()).unwrap_or(MAX_PREFIX_LIMIT),
            max_waiting: usize::try_from(*party.max_waiting_mib.get_ref() << 20).unwrap_or(MAX_WAITING),
            budget: self.budget.budget(),
            epoch: Duration::from_secs(*party.epoch_secs.get_ref()),
            speaks: Speaks::default(),
        }
    }

    fn examples(&self) -> Vec<Fault> {
        let mut examples = Vec::new();
        if has_example_operators(&self.party.operators) {
            examples
                .push(example(self.party.operators.span(), "both operators' keys, as `wayleave members init` prints"));
        }
        let pin = &self.link.get_ref().pin;
        if EXAMPLE_PINS.contains(&pin.get_ref().0.to_string().as_str()) {
            examples.push(example(pin.span(), "the line `pin` of the peer party's `wayleave keys show`"));
        }
        examples
    }

    /// Warnings: status pages that others can reach, and the like.
    fn warnings(&self) -> Vec<Fault> {
        let mut warnings = Vec::new();
        let listening = std::iter::once(&self.party.listen).chain(&self.link.get_ref().listen);
        warnings.extend(listening.filter_map(absent_address));
        warnings.extend(self.status.as_ref().and_then(status_warning));
        warnings.extend(self.rank_wait_warning());
        if let Some(trial) = &self.party.trial {
            let message = format!(
                "`{}` is a trial: whoever reads this machine reads every policy",
                self.party.exchange.get_ref()
            );
            warnings.push(
                Fault::at(trial.span(), message).help("fine to try things out; nothing of it goes into an exchange"),
            );
        }
        if *self.party.epoch_secs.get_ref() < SHORTEST_EPOCH {
            let message = format!("a recommendation may change after {} seconds", self.party.epoch_secs.get_ref());
            let help = "for a laboratory only: members that try rankings learn its order sooner";
            warnings.push(Fault::at(self.party.epoch_secs.span(), message).help(help));
        }
        warnings
    }

    /// A wait in which the ranking of an honest member may be late. Party 1's counts.
    fn rank_wait_warning(&self) -> Option<Fault> {
        let (wait, enough) = (*self.party.rank_wait_ms.get_ref(), LATEST_RANKING_MS + RANKING_ON_ITS_WAY_MS);
        (*self.party.number.get_ref() == 1 && wait < enough).then(|| {
            let message = format!("honest members may rank later than {wait} ms after a tick, and are then waited for no more");
            let help = format!(
                "after a batch of thousands of routes a ranking leaves up to {LATEST_RANKING_MS} ms later, and takes its time to arrive: set {enough} or more"
            );
            Fault::at(self.party.rank_wait_ms.span(), message).help(help)
        })
    }

    /// Whether it still has example values from `init`, with which the role cannot run.
    pub fn has_examples(&self) -> bool {
        let pin = self.link.get_ref().pin.get_ref().0.to_string();
        has_example_operators(&self.party.operators) || EXAMPLE_PINS.contains(&pin.as_str())
    }

    pub(super) fn checked(source: &Source) -> Checked {
        match Self::parse(source) {
            Ok(config) => {
                let (mut errors, mut warnings) = (Vec::new(), config.warnings());
                for fault in config.file_faults(source) {
                    match fault {
                        // A new configuration needs no files yet.
                        FileFault::Missing(fault) if config.has_examples() => warnings.push(fault),
                        FileFault::Doubtful(fault) => warnings.push(fault),
                        fault => errors.push(fault.into_fault()),
                    }
                }
                Checked::found("rs", source, errors, warnings).with_examples(source, config.examples())
            }
            Err(failures) => Checked::wrong("rs", failures),
        }
    }
}

/// Two operators have two keys: who has both decides alone who is a member.
pub(super) fn operators_fault(operators: &Spanned<[Text<PublicKey>; 2]>) -> Option<Fault> {
    let [one, two] = operators.get_ref();
    (one == two).then(|| {
        let message = "the same key twice, expected party 1's operator's and party 2's operator's";
        Fault::at(operators.span(), message).help("whoever has both decides alone who is a member")
    })
}

pub(super) fn has_example_operators(operators: &Spanned<[Text<PublicKey>; 2]>) -> bool {
    operators.get_ref().iter().any(|key| EXAMPLE_OPERATORS.contains(&key.0.to_string().as_str()))
}

pub(super) fn exchange_fault(name: &Spanned<String>) -> Option<Fault> {
    let text = name.get_ref();
    let is_fine = (1..=MAX_EXCHANGE_NAME).contains(&text.len()) && !text.chars().any(char::is_control);
    (!is_fine).then(|| {
        let message = format!("not a valid name, expected 1 to {MAX_EXCHANGE_NAME} octets of printable text");
        Fault::at(name.span(), message)
    })
}

pub(super) fn range(value: &Spanned<u64>, least: u64, most: u64, unit: &str) -> Option<Fault> {
    let number = *value.get_ref();
    (!(least..=most).contains(&number))
        .then(|| Fault::at(value.span(), format!("{number} is out of range, expected {least} to {most} {unit}")))
}

/// A fault of a file that a configuration names.
pub enum FileFault {
    Missing(Fault),
    Unusable(Fault),
    /// It can be used, and is probably not what was meant.
    Doubtful(Fault),
}

impl FileFault {
    pub(super) fn into_fault(self) -> Fault {
        let (Self::Missing(fault) | Self::Unusable(fault) | Self::Doubtful(fault)) = self;
        fault
    }
}

pub(super) fn key_fault(key: &Spanned<PathBuf>, source: &Source) -> Option<FileFault> {
    if let Some(fault) = kind_fault(key, source, false) {
        return Some(fault);
    }
    let path = source.resolve(key.get_ref());
    let error = match Identity::load(&path) {
        Ok(identity) => {
            let reason = own_fault(&identity, unix_now().secs())?;
            let message = format!("{}: {reason} by this machine's clock", path.display());
            let help = "set the clock, or make a new key with `wayleave keys new`; others must pin it, or sign it as a renewal";
            return Some(FileFault::Unusable(Fault::at(key.span(), message).help(help)));
        }
        Err(error) => error,
    };
    let fault = Fault::at(key.span(), error.to_string());
    if path.exists() {
        let help = match error {
            IdentityError::TooOpen(_) => {
                format!("run: chmod 600 {}; if others may have read it, make a new key", path.display())
            }
            _ => "`wayleave keys new` creates such a file; `wayleave keys show FILE` says what a file is".to_owned(),
        };
        return Some(FileFault::Unusable(fault.help(help)));
    }
    Some(FileFault::Missing(fault.help(format!("`wayleave keys new {}` creates it", path.display()))))
}

pub(super) fn status_warning(status: &StatusSection) -> Option<Fault> {
    let address = status.listen.get_ref().0;
    (!address.ip().is_loopback()).then(|| {
        let message = "the status pages are reachable from other machines";
        Fault::at(status.listen.span(), message).help("they show the role's internal state to anyone who can connect")
    })
}

pub(super) fn example(span: std::ops::Range<usize>, what: &str) -> Fault {
    Fault::at(span, format!("still the example's value, expected {what}"))
}

/// The file of the exchange's recommendation: `[recommendation]` with a number of 0 to 255 by member name or `AS64497`,
/// larger is preferred; members that are not named get 0.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recommendation {
    pub recommendation: BTreeMap<Spanned<String>, u8>,
}

impl Recommendation {
    /// Reads the file: the number of each active slot of `set` that it names, and the names that no member has. Those are
    /// left out and no error, so that a member can be removed before its line is. Without a set no name is looked at.
    pub fn read(
        path: &std::path::Path,
        set: Option<&MemberSet>,
    ) -> Result<(BTreeMap<u32, u8>, Vec<Failure>), Failures> {
        let source = Source::read_named(path, "recommendation")?;
        let file: Self = source.parse()?;
        let Some(set) = set else { return Ok((BTreeMap::new(), Vec::new())) };
        let (mut slots, mut unknown) = (BTreeMap::new(), Vec::new());
        for (name, number) in &file.recommendation {
            let text = name.get_ref();
            let named: Vec<u32> = match set.slot_by_name(text) {
                Some(slot) => vec![slot],
                None => text.parse::<Asn>().map(|asn| set.slots_of(asn).collect()).unwrap_or_default(),
            };
            if named.is_empty() {
                let message = format!("no member `{text}`, expected a name or AS number of the member set");
                let help = "the line has no effect; remove it if the member has left";
                unknown.push(source.failure(Fault::at(name.span(), message).help(help)));
            }
            slots.extend(named.into_iter().map(|slot| (slot, *number)));
        }
        Ok((slots, unknown))
    }
}

/// The error of a role whose configuration still has example values.
pub fn examples_left() -> Failure {
    Failure::new("the configuration still has example values").help("`wayleave check` shows them")
}

/// What `wayleave init rs` prints.
pub fn template(party: u8) -> String {
    template_with(&PartyValues {
        number: party,
        exchange: "example-ix",
        operators: EXAMPLE_OPERATORS,
        pin: EXAMPLE_PINS[if party == 1 { 1 } else { 0 }],
        listen: default_listen(party, Ipv4Addr::LOCALHOST.into()),
        link: DEFAULT_LINK,
        members: "members",
        trial: None,
    })
}

/// The port on which party 1 listens for members; party 2 has the next one.
pub const MEMBERS_PORT: u16 = 7001;

/// Where party 1 of one machine listens for party 2.
pub const DEFAULT_LINK: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7000);

/// Where a party listens for members, at this address.
pub fn default_listen(party: u8, address: IpAddr) -> SocketAddr {
    SocketAddr::new(address, MEMBERS_PORT + u16::from(party) - 1)
}

/// The values in which parties' configurations differ.
pub struct PartyValues<'a> {
    pub number: u8,
    pub exchange: &'a str,
    /// Of party 1 and party 2.
    pub operators: [&'a str; 2],
    /// The other party's.
    pub pin: &'a str,
    /// Where it listens for members.
    pub listen: SocketAddr,
    /// Where party 1 listens for party 2.
    pub link: SocketAddr,
    /// The member set's file, for one who reads the configuration.
    pub members: &'a str,
    /// Of a trial: the folder with both operators' keys.
    pub trial: Option<&'a str>,
}

/// A party's configuration with these values.
pub fn template_with(values: &PartyValues<'_>) -> String {
    let PartyValues { number: party, exchange, operators: [operator1, operator2], pin, listen, link, members, trial } =
        values;
    let (exchange, members) = (toml::Value::from(*exchange), toml::Value::from(*members));
    let (link, recommendation) = match party {
        1 => (
            format!("# Party 1 listens for party 2 here.\nlisten = \"{link}\""),
            "# The exchange's recommendation by member, larger is preferred. Reloaded on SIGHUP.\n\
             #recommendation = \"recommendation.toml\"\n",
        ),
        _ => (format!("# Where party 1 listens for this party.\nconnect = \"{link}\""), ""),
    };
    let status = 8480 + u16::from(*party);
    let trial = trial.map_or(String::new(), |folder| {
        let folder = toml::Value::from(folder);
        format!("# One person has all keys of this exchange, both operators' among them, in this folder.\ntrial = {folder}\n")
    });
    format!(
        "# Party {party} of a private route server. Run it with: wayleave run rs --config FILE\n\
         # Paths are relative to this file.\n\
         \n\
         [party]\n\
         number = {party}\n\
         # The exchange's name, the same at both parties and every member.\n\
         exchange = {exchange}\n\
         # Where members connect.\n\
         listen = \"{listen}\"\n\
         # Created by: wayleave keys new party{party}.key\n\
         key = \"party{party}.key\"\n\
         # The state that must survive a restart.\n\
         state = \"party{party}.redb\"\n\
         # The member set that both operators signed, begun by: wayleave members init. Reloaded on SIGHUP.\n\
         members = {members}\n\
         # The public keys of party 1's and party 2's operators, who both sign the member set.\n\
         operators = [\"{operator1}\", \"{operator2}\"]\n\
         # Interval between batches in milliseconds; 0 handles each announcement at once. Only party 1's value is used.\n\
         #tick_ms = 50\n\
         # How long routes of a member that is away are kept, in seconds.\n\
         #stale_secs = 120\n\
         # How long a member's ranking is taken beyond the tick, in milliseconds.\n\
         #rank_wait_ms = 1000\n\
         # How much later than by its schedule a ranking may come before a round begins without it, in milliseconds; by default as\n\
         # members' links answer. Only party 1's value is used.\n\
         #rank_allowance_ms = 20\n\
         # Who multiplies export policies and route keys, the same at both parties: \"direct\", the announcer, or \"mpc\", the\n\
         # parties: announcers then send some hundred octets an object in place of 16 for each member.\n\
         #export = \"direct\"\n\
         # The number of the order of candidates, the same at both parties. Change it at both to have them draw the secret key of\n\
         # the order anew, as after one of the two was perhaps read by a stranger.\n\
         #order = 1\n\
         # Octets of the largest sealed route that members may announce; the lower value of both parties counts.\n\
         #max_blob = 8192\n\
         # Prefixes that the member set may let one member announce, at most: give both parties the same, since both operators\n\
         # sign each limit.\n\
         #max_prefix_limit = 1000000\n\
         # MiB of objects of all members together that may wait to be applied.\n\
         #max_waiting_mib = 256\n\
         # Party 1: how long a recommendation counts at least, in seconds. Members learn a little of each one.\n\
         #epoch_secs = 900\n\
         # In a laboratory: allow less.\n\
         #lab = true\n\
         {trial}{recommendation}\
         \n\
         [link]\n\
         {link}\n\
         # The line `pin` of the peer party's key file, from its operator: wayleave keys show\n\
         pin = \"{pin}\"\n\
         \n\
         # What each member may cost this party. One that sends more gets credit more slowly, and what comes all the same is refused.\n\
         #[budget]\n\
         #objects_per_second = 2000\n\
         #kib_per_second = 32768\n\
         # How often a member may be sent all routes, after it has connected or asked for them.\n\
         #resyncs_per_hour = 720\n\
         # How often Select-Best chooses for it among them; otherwise its own order decides.\n\
         #choices_per_hour = 32\n\
         \n\
         # Status pages and metrics. They do not show policies, but are for this party's operator alone.\n\
         [status]\n\
         listen = \"127.0.0.1:{status}\"\n"
    )
}
