//! What the attesting proxy and a route-server member share: queues of routes, the jobs that validate and sign them, keys,
//! policy, and the clock.
//!
//! A machine names its routes as it likes (`K`), and decides where routes go; `Pipeline` decides with which keys, rules
//! and times they are validated and signed.

mod counts;
mod event;
pub mod explain;
pub(crate) mod jobs;
pub(crate) mod keys;
pub mod policy;
pub(crate) mod queue;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use wayleave_bgp::{AttributeCode, Attributes};
use wayleave_core::{Asn, Instant, Now, Prefix};
use wayleave_crypto::secret::Seed;

pub use self::counts::Counts;
pub use self::event::{ProcessEvent, RouteEvent};
pub use self::jobs::{Job, JobResult};
use self::jobs::{
    JobKind, PeerSignatures, RouteGroup, RouteSigner, SigningJob, SigningOutcome, SigningResults, Validated,
    ValidationJob, Validator, carried_octets,
};
pub use self::keys::{FewTimeStatus, KeyEnd, KeyWait, Reserve, WaitReason};
use self::keys::{KeyEvent, KeyUse, SigningKeys};
use self::policy::Policy;
use self::queue::{RevalidationSchedule, estimated_units};
use crate::clock::{stepped, wake};
use crate::clock_doubt::{ClockDoubt, ClockWatch};
use crate::leaf::{KeyId, Tree};
use crate::path::Path;
use crate::pki::{PrefixSet, View};
use crate::sign::KeyRing;
use crate::validate::{Clock, Rules};

/// How long a signature that is not used stays in a cache, at least; at most twice as long.
pub(crate) const CACHE_AGE: Duration = Duration::from_secs(3600);

/// The memory of each kind of table.
pub type Memory = BTreeMap<&'static str, MemoryUse>;

/// The memory of one kind of table, and its bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct MemoryUse {
    pub octets: usize,
    pub most_octets: usize,
}

impl From<[usize; 2]> for MemoryUse {
    fn from([octets, most_octets]: [usize; 2]) -> Self {
        Self { octets, most_octets }
    }
}

impl MemoryUse {
    /// Adds the tables of one peer to those of all.
    pub(crate) fn add(all: &mut Memory, of_one: &Memory) {
        for (table, one) in of_one {
            let sum = all.entry(table).or_insert_with(|| [0; 2].into());
            sum.octets += one.octets;
            sum.most_octets = sum.most_octets.saturating_add(one.most_octets);
        }
    }
}

/// The configuration that both machines have in common.
#[derive(Clone, Debug)]
pub struct PipelineConfig {
    /// The AS that signs.
    pub asn: Asn,
    /// The attribute's type code.
    pub attribute: AttributeCode,
    /// What is required of every chain.
    pub rules: Rules,
    /// Seconds by which clocks may be wrong.
    pub uncertainty: u64,
    /// Minutes for which a signed hop holds.
    pub lifetime: u16,
    pub policy: Policy,
    /// Own prefixes that are signed, with those within them; `None`: all.
    pub own: Option<Vec<Prefix>>,
    /// Announce own routes that no record or VRP lets this AS originate, though others cover their prefix.
    pub announces_unauthorised: bool,
}

/// What a new view of the PKI changes.
pub(crate) struct ViewChange {
    /// The view before.
    before: Arc<View>,
    /// Prefixes with other VRPs, as every few minutes in the RPKI.
    vrps: PrefixSet,
    /// ASes of which other keys or records are known now.
    ases: BTreeSet<Asn>,
    /// Other keys of this AS are registered than before, and it must sign again.
    pub(crate) own_keys: bool,
}

/// The state that both machines have in common.
pub(crate) struct Pipeline<K> {
    pub(crate) config: PipelineConfig,
    own: Option<Arc<Vec<Prefix>>>,
    pub(crate) view: Arc<View>,
    pub(crate) keys: SigningKeys,
    /// Which keys sign, as operators were told last; `None` before the first view.
    key_use: Option<KeyUse>,
    pub(crate) schedule: RevalidationSchedule<K>,
    clock_watch: ClockWatch,
    pub(crate) doubt: Option<ClockDoubt>,
    /// A job holds the key ring, to sign or to make keys ahead. One at a time, so that no thread of the pool waits for it.
    pub(crate) signing: bool,
    pub(crate) now: Now,
}

impl<K: Ord + Copy> Pipeline<K> {
    /// `seen`: by encoded public key, the last slot of time in which a few-time key may have signed before this start.
    pub(crate) fn new(config: PipelineConfig, ring: KeyRing, seen: &HashMap<Vec<u8>, u64>, now: Now) -> Self {
        Self {
            own: config.own.clone().map(Arc::new),
            view: Arc::new(View::new(0)),
            keys: SigningKeys::new(ring, seen, now),
            key_use: None,
            schedule: RevalidationSchedule::new(),
            clock_watch: ClockWatch::default(),
            doubt: None,
            signing: false,
            now,
            config,
        }
    }

    /// Seconds since 1970.
    pub(crate) fn unix(&self) -> u64 {
        self.now.unix.secs()
    }

    pub(crate) fn clock(&self) -> Clock {
        Clock { now: self.now.unix, uncertainty: self.config.uncertainty }
    }

    /// Sets the time. An event says that somebody has set the wall clock: then everything must be validated and signed
    /// again.
    #[must_use]
    pub(crate) fn set_now(&mut self, now: Now) -> Option<ProcessEvent> {
        let before = std::mem::replace(&mut self.now, now);
        self.keys.few_time.on_now(now);
        stepped(before, now).map(ProcessEvent::ClockStepped)
    }

    /// When the next route is due or may be tried again, or earlier, to notice in time that somebody set the wall clock.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let due = self.schedule.next().into_iter().chain(self.keys.few_time.retry()).min();
        due.map(|due| wake(self.now, due))
    }

    /// Validates with what is known now. Right signatures go into the cache `known`, and those in it are not verified again.
    /// `alone`: each signature is verified by itself.
    pub(crate) fn validator(&self, known: &PeerSignatures, alone: bool, directories: Arc<Vec<Tree>>) -> Validator {
        Validator {
            known: known.clone(),
            others: Vec::new(),
            alone,
            view: Arc::clone(&self.view),
            rules: self.config.rules,
            clock: self.clock(),
            directories,
            attribute: self.config.attribute,
            receiver: self.config.asn,
        }
    }

    /// The work of validating a route with these attributes, as far as their octets say.
    pub(crate) fn estimated_units(&self, attributes: &Attributes) -> u64 {
        estimated_units(carried_octets(attributes, self.config.attribute))
    }

    /// The job that validates routes of `source`.
    pub(crate) fn validation_job(&self, source: usize, validator: Validator, groups: Vec<RouteGroup>) -> Job {
        Job { source, kind: JobKind::Validate(ValidationJob { validator, groups }) }
    }

    /// Signs a burst of at most `routes` routes with the keys of now; `None` without keys. `burst`: one signature serves all,
    /// with salts from this secret.
    pub(crate) fn signer(&mut self, routes: usize, burst: Option<&Seed>) -> Option<RouteSigner> {
        self.keys.open(self.now.unix);
        let sequence = self.keys.sequence(self.now.unix, routes);
        (!self.keys.is_empty()).then(|| RouteSigner {
            ring: self.keys.shared(),
            asn: self.config.asn,
            view: Arc::clone(&self.view),
            now: self.now.unix.secs(),
            lifetime: self.config.lifetime,
            sequence,
            attribute: self.config.attribute,
            own: self.own.clone(),
            announces_unauthorised: self.config.announces_unauthorised,
            burst: burst.cloned(),
        })
    }

    /// The job that signs routes for `source`. No other signs until it is done.
    pub(crate) fn signing_job(&mut self, source: usize, job: SigningJob) -> Job {
        self.signing = true;
        Job { source, kind: JobKind::Sign(job) }
    }

    /// A signing job is done.
    pub(crate) fn signing_done(&mut self, results: &SigningResults) {
        self.signing = false;
        let waits = |outcome: &SigningOutcome| matches!(outcome, SigningOutcome::NotReserved);
        self.keys.signed(results.groups.iter().any(|signed| waits(&signed.outcome)), self.now.unix);
        let unix = self.unix();
        for signed in &results.groups {
            if let SigningOutcome::Signed { key, .. } = signed.outcome {
                self.keys.note_signed(key, unix);
            }
        }
    }

    /// The job that makes ready what few-time keys need for their next signatures; to be asked for where no route waits to be
    /// signed. `None` where routes need no such key.
    pub(crate) fn keys_ahead_job(&mut self, source: usize) -> Option<Job> {
        let slots = self.keys.few_time.ahead(self.now.unix);
        if slots.is_empty() {
            return None;
        }
        self.signing = true;
        Some(Job { source, kind: JobKind::MakeKeysAhead(self.keys.shared(), slots) })
    }

    /// Learns from reports what other ASes' clocks say of ours. An event says that the conclusion has changed.
    pub(crate) fn watch_clock(&mut self, validated: &[Validated]) -> Option<ProcessEvent> {
        for validated in validated {
            self.clock_watch.observe(&validated.report, self.now.unix);
        }
        let doubt = self.clock_watch.doubt(self.now.unix);
        let has_changed = std::mem::replace(&mut self.doubt, doubt) != doubt;
        has_changed.then_some(ProcessEvent::ClockInDoubt(doubt))
    }

    /// Takes in what the PKI lists now; returns what that changes.
    pub(crate) fn set_view(&mut self, view: Arc<View>) -> ViewChange {
        let before = std::mem::replace(&mut self.view, view);
        let ases = before.changed_ases(&self.view);
        let own_keys = self.keys.register(&self.view, self.config.asn);
        ViewChange { vrps: before.changed_vrps(&self.view), before, ases, own_keys }
    }

    /// Which key signs now, the first of those that are registered.
    pub(crate) fn signs_with(&self) -> Option<KeyId> {
        match self.keys.key_use(&self.view, self.config.asn) {
            KeyUse::Signs(key) => Some(key),
            KeyUse::Unbound | KeyUse::Unregistered => None,
        }
    }

    /// The keys of the ring, where none of them is registered and this AS registered others, or a record that asks for signatures: own
    /// routes leave unsigned then.
    pub(crate) fn unregistered_keys(&self) -> Vec<KeyId> {
        match self.keys.key_use(&self.view, self.config.asn) {
            KeyUse::Unregistered => self.keys.held().iter().map(|key| key.leaf.id()).collect(),
            KeyUse::Signs(_) | KeyUse::Unbound => Vec::new(),
        }
    }

    /// What operators should know of which keys sign, if that has changed: after another view or other keys.
    pub(crate) fn key_use_event(&mut self) -> Option<ProcessEvent> {
        let now = self.keys.key_use(&self.view, self.config.asn);
        let before = self.key_use.replace(now);
        match (before, now) {
            (before, now) if before == Some(now) => None,
            (_, KeyUse::Unregistered) => {
                Some(ProcessEvent::KeysUnregistered { asn: self.config.asn, keys: self.unregistered_keys() })
            }
            (Some(KeyUse::Signs(before)), KeyUse::Signs(key)) => {
                Some(ProcessEvent::OtherKeySigns { key, before: Some(before) })
            }
            (Some(_), KeyUse::Signs(key)) => Some(ProcessEvent::OtherKeySigns { key, before: None }),
            (None, KeyUse::Signs(_)) | (_, KeyUse::Unbound) => None,
        }
    }

    /// Whether a route must be validated again: its path names an AS of which other keys or records are known, or another AS
    /// may originate its prefix. The hops of a chain are on the path, and so are the ASes that it skips.
    pub(crate) fn concerns(&self, change: &ViewChange, prefix: &Prefix, attributes: &Attributes) -> bool {
        self.names_changed(change, attributes)
            || (change.vrps.covers(prefix) && self.origin_changed(&change.before, prefix, attributes))
    }

    /// Whether the path names an AS of which other keys or records are known now.
    pub(crate) fn names_changed(&self, change: &ViewChange, attributes: &Attributes) -> bool {
        let is_changed = |asn| change.ases.contains(&asn);
        !change.ases.is_empty() && attributes.as_path().asns().any(is_changed)
    }

    /// Whether another AS may originate `prefix` than in the view `before`.
    fn origin_changed(&self, before: &View, prefix: &Prefix, attributes: &Attributes) -> bool {
        let path = Path::from_as_path(attributes.as_path());
        let is_own = path.entries().is_empty() && !path.has_set();
        let origin = if is_own { Some(self.config.asn) } else { path.origin() };
        before.origin_validity(prefix, origin) != self.view.origin_validity(prefix, origin)
    }

    /// The slots of few-time keys that must be made durable now, and what operators should know of such keys.
    pub(crate) fn reserve(&mut self) -> (Vec<Reserve>, Vec<ProcessEvent>) {
        let (few_time, now) = (&mut self.keys.few_time, self.now.unix);
        let events = few_time.take_events(now).into_iter().map(|event| match event {
            KeyEvent::Waits(wait) => ProcessEvent::KeyWaits(wait),
            KeyEvent::Signs(suite) => ProcessEvent::KeySigns(suite),
            KeyEvent::Ends(end) => ProcessEvent::KeyEnds(end),
        });
        let events = events.collect();
        (few_time.due(now), events)
    }
}
