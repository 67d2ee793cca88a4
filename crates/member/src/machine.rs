//! The machine: what a driver gives it and what it asks for, and how its two halves are connected.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use wayleave_attestation::leaf::LeafKey;
use wayleave_attestation::member::{
    self as attestation, Explained, MemberAttestation, MemberAttestationConfig, MemberAttestationEvent, RouteId,
    SentRoute,
};
use wayleave_attestation::pipeline::policy::Policy as AttestationPolicy;
use wayleave_attestation::pipeline::{Job, JobResult, Reserve};
use wayleave_attestation::pki::View;
use wayleave_attestation::sign::KeyRing;
use wayleave_bgp::Attributes;
use wayleave_bgp::peer::{PeerEvent, Stale};
use wayleave_bgp::rpki::Records;
use wayleave_core::{Asn, Instant, Machine, Now, Prefix};
use wayleave_crypto::secret::Seed;
use wayleave_crypto::sign::SigningKey;
use wayleave_route_server::directory::{AttestKey, MemberSet, Neighbours};
use wayleave_route_server::member::{
    Announcer, Difference, Finding, ListPosition, ListedRoute, Member, MemberConfig, MemberCounters, MemberEvent,
    MemberInput, MemberOutput, MemberStatus, OfferedData, OwnExport, Part, RouteFilter, Tally, Unvalidated,
};
use wayleave_route_server::object::Handle;
use wayleave_route_server::party::{Change, LinkId, PartyNumber, PersistId, StoredRecord};
use wayleave_route_server::policy::{Policy, treatments};

/// How a member's proxy signs what its router announces and validates what other members announce.
pub struct AttestationConfig {
    pub settings: MemberAttestationConfig,
    /// The keys of the member's AS.
    pub key_ring: KeyRing,
    /// By encoded public key, the last slot of time in which a few-time key may have signed before this start.
    pub slots_seen: HashMap<Vec<u8>, u64>,
    /// What is known of the origins of routes.
    pub view: Arc<View>,
}

/// What a driver gives the proxy.
#[derive(Debug)]
pub enum Input {
    /// A link to a party is up, mutually authenticated.
    LinkUp {
        link: LinkId,
        party: PartyNumber,
        /// Keying material of its TLS session, which both ends export alike and nobody else knows.
        exporter: Seed,
    },
    LinkDown {
        link: LinkId,
    },
    Frame {
        link: LinkId,
        bytes: Vec<u8>,
    },
    /// The changes of [`Output::Persist`] are durable.
    Persisted(PersistId),
    /// From the BGP session with the member's router. An UPDATE goes through attestation, if there is any, before the
    /// exchange's half of the proxy takes it.
    Router(PeerEvent),
    /// The member's operator changed the policy for routes.
    Policy(Box<Policy>),
    /// The member's operator changed what follows from a verdict of validation.
    AttestationPolicy(AttestationPolicy),
    /// What is known of the origins of routes has changed.
    View(Arc<View>),
    /// What the RPKI says of origins (RFC 6811) and paths (ASPA), with or without attestation; `None` while nothing is known.
    Origins(Option<Records>),
    /// Data of the exchange that somebody offers.
    Data(Box<OfferedData>),
    /// A job of [`Output::Job`] has run.
    JobDone(JobResult),
    /// The slot of [`Output::PersistSlot`] is durable.
    SlotPersisted(u64),
    /// Whether the system says that the wall clock is synchronised; to be repeated every second or so, where keys are few-time
    /// keys.
    ClockSynchronised(bool),
}

/// What the proxy asks its driver to do.
#[derive(Debug)]
pub enum Output {
    Send {
        link: LinkId,
        frame: Vec<u8>,
    },
    /// Close a link and connect again; `reason` is for the log.
    Close {
        link: LinkId,
        reason: String,
        /// Whether what was said on it was refused, so that it is of no use to connect again soon.
        refused: bool,
    },
    /// Make changes durable, then give [`Input::Persisted`].
    Persist {
        id: PersistId,
        changes: Vec<Change>,
    },
    /// Announce this route to the member's router, or withdraw the prefix.
    Install {
        prefix: Prefix,
        attributes: Option<Attributes>,
    },
    /// In place of `Install`, where the router gets several routes to a prefix: these, by path identifier, the best first, and no
    /// others.
    InstallPaths {
        prefix: Prefix,
        paths: Vec<(u32, Attributes)>,
    },
    Event(MemberEvent),
    /// Run this on any thread, then give [`Input::JobDone`].
    Job(Job),
    /// Make durable that the few-time key `public` may have signed in every slot of time up to `slot`, then give
    /// [`Input::SlotPersisted`].
    PersistSlot {
        id: u64,
        public: Vec<u8>,
        slot: u64,
    },
    AttestationEvent(MemberAttestationEvent),
}

/// A member's proxy.
pub struct MemberProxy {
    pub(crate) member: Member,
    pub(crate) attestation: Option<MemberAttestation>,
    /// The exchange's, as communities name it.
    rs_asn: Asn,
    now: Now,
}

impl MemberProxy {
    /// A proxy with what its store held and fresh randomness in `seed`. Without `attestation` it signs and validates
    /// nothing, and every route counts as unattested.
    #[must_use]
    pub fn new(
        config: MemberConfig,
        policy: Box<Policy>,
        signing: SigningKey,
        seed: &Seed,
        stored: &[StoredRecord],
        attestation: Option<AttestationConfig>,
        now: Now,
    ) -> Self {
        let (validates, rs_asn) = (attestation.is_some(), config.rs_asn);
        let member = Member::new(MemberConfig { validates, ..config }, policy, signing, seed, stored, now);
        let attestation = attestation.map(|AttestationConfig { settings, key_ring, slots_seen, view }| {
            let mut attestation = MemberAttestation::new(settings, key_ring, &slots_seen, now);
            attestation.handle(attestation::Input::View(view), now);
            attestation
        });
        Self { member, attestation, rs_asn, now }
    }

    /// Takes fresh entropy of the system, before every input and timeout: what a copy of this process makes from then on
    /// differs from what this one makes.
    pub fn reseed(&mut self, fresh: &Seed) {
        self.member.reseed(fresh);
    }

    #[must_use]
    pub fn status(&self) -> MemberStatus {
        self.member.status()
    }

    /// What another policy would treat otherwise of others' routes, a part at a time ([`Member::import_differences`]).
    pub fn import_differences(&mut self, other: &Policy, after: Option<Prefix>, visits: usize) -> Part<Difference> {
        self.member.import_differences(other, after, visits)
    }

    /// The same of the router's own routes ([`Member::export_differences`]).
    #[must_use]
    pub fn export_differences(&self, other: &Policy, after: Option<Prefix>, visits: usize) -> Part<Difference> {
        self.member.export_differences(other, after, visits)
    }

    /// Routes by family and by whose they are.
    #[must_use]
    pub fn tally(&self) -> Tally {
        self.member.tally()
    }

    /// Counts since the start.
    #[must_use]
    pub fn counters(&self) -> &MemberCounters {
        self.member.counters()
    }

    /// The state of attestation, if it is configured.
    #[must_use]
    pub fn attestation_status(&self) -> Option<attestation::Status> {
        self.attestation.as_ref().map(MemberAttestation::status)
    }

    /// The routes that the member's router shall have: prefix, announcer's slot, attributes.
    pub fn installed(&self) -> impl Iterator<Item = (Prefix, u32, &Attributes)> {
        self.member.installed()
    }

    /// The routes that this member may open, a part at a time ([`Member::list_routes`]).
    pub fn list_routes<T>(
        &mut self,
        filter: &RouteFilter,
        after: Option<Prefix>,
        visits: usize,
        row: impl FnMut(&ListedRoute<'_>) -> T,
    ) -> Part<T> {
        self.member.list_routes(filter, after, visits, row)
    }

    /// The same behind a position, with the position of each row ([`Member::list_behind`]).
    pub fn list_behind<T>(
        &mut self,
        filter: &RouteFilter,
        position: Option<ListPosition>,
        visits: usize,
        row: impl FnMut(&ListedRoute<'_>) -> T,
    ) -> Part<(ListPosition, T)> {
        self.member.list_behind(filter, position, visits, row)
    }

    /// Prefixes that the member's router is to have a route to.
    #[must_use]
    pub fn installed_prefixes(&self) -> usize {
        self.member.installed_prefixes()
    }

    /// The first `most` prefixes behind `after` to which the member's router announces routes.
    #[must_use]
    pub fn own_prefixes(&self, after: Option<Prefix>, most: usize) -> Vec<Prefix> {
        self.member.own_prefixes(after, most)
    }

    /// To whom the router's routes to a prefix go by the member's policy.
    #[must_use]
    pub fn exports(&self, prefix: Prefix) -> Vec<OwnExport> {
        self.member.exports(prefix)
    }

    /// The longest prefix with this address of which something is known.
    #[must_use]
    pub fn longest_match(&self, address: IpAddr) -> Option<Prefix> {
        self.member.longest_match(address)
    }

    /// The member set in force; none before both parties have shown one.
    #[must_use]
    pub fn member_set(&self) -> Option<&MemberSet> {
        self.member.member_set()
    }

    /// The member in a slot.
    #[must_use]
    pub fn announcer(&self, slot: u32) -> Announcer {
        self.member.announcer(slot)
    }

    /// Whether all that the proxy knows has had its effect.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        self.member.is_at_rest() && !self.attestation.as_ref().is_some_and(MemberAttestation::has_renewals)
    }

    /// The chain of another member's route for one of its prefixes, validated again to name the exact fault.
    #[must_use]
    pub fn explain(&self, route: &RouteId, prefix: Prefix) -> Option<Explained> {
        self.attestation.as_ref()?.explain(route, prefix)
    }

    /// How the member's own routes to a prefix were signed.
    #[must_use]
    pub fn sent(&self, prefix: Prefix) -> Vec<SentRoute> {
        self.attestation.as_ref().map(|attestation| attestation.sent(prefix)).unwrap_or_default()
    }

    /// Frees what no route needs any more; to be called now and then.
    pub fn sweep(&mut self) {
        if let Some(attestation) = &mut self.attestation {
            attestation.sweep();
        }
    }

    fn attest(&mut self, input: attestation::Input) {
        if let Some(attestation) = &mut self.attestation {
            attestation.handle(input, self.now);
        }
    }

    /// The router's announcements pass attestation first; without it they are cleared as they are.
    fn on_router(&mut self, mut event: PeerEvent) {
        if let PeerEvent::Update(update) = &mut event {
            if !self.member.stale().is_empty() {
                let said = update.withdrawn.iter().chain(&update.announced).copied().collect();
                self.member.handle(MemberInput::NotStale(said), self.now);
            }
            // Before anything looks at the path: receivers check, and signatures cover, the one that they get.
            update.attributes =
                update.attributes.take().map(|attributes| treatments::prepended(attributes, self.rs_asn));
        }
        let input = match (event, &mut self.attestation) {
            (PeerEvent::Up, _) => MemberInput::RouterUp,
            (PeerEvent::Down, _) => {
                self.attest(attestation::Input::RouterDown);
                MemberInput::RouterDown
            }
            (PeerEvent::Stale(stale), _) => return self.on_stale(stale),
            (PeerEvent::Update(update), Some(attestation)) => {
                let (withdrawn, announced, attributes) = (update.withdrawn, update.announced, update.attributes);
                return attestation
                    .handle(attestation::Input::RouterUpdate { withdrawn, announced, attributes }, self.now);
            }
            (PeerEvent::Update(update), None) => MemberInput::ClearedUpdate {
                withdrawn: update.withdrawn,
                announced: update.announced,
                attributes: update.attributes,
            },
            (PeerEvent::EndOfRib, Some(attestation)) => {
                return attestation.handle(attestation::Input::RouterEndOfRib, self.now);
            }
            (PeerEvent::EndOfRib, None) => MemberInput::ClearedEndOfRib,
        };
        self.member.handle(input, self.now);
    }

    /// What stays announced goes on being signed.
    fn on_stale(&mut self, stale: Stale) {
        self.member.handle(MemberInput::RouterStale(stale.clone()), self.now);
        match stale {
            Stale::Kept(_) if self.attestation.is_some() => {
                let stays = self.member.stale().clone();
                self.attest(attestation::Input::RouterLost { stays });
            }
            Stale::Gone(afi) => self.attest(attestation::Input::StaleGone(afi)),
            Stale::Kept(_) | Stale::LongLived(_) => {}
        }
    }

    /// Gives attestation what the member's half wants validated; returns what the driver shall do.
    fn on_member_output(&mut self, output: MemberOutput) -> Option<Output> {
        let input = match output {
            MemberOutput::Send { link, frame } => return Some(Output::Send { link, frame }),
            MemberOutput::Close { link, reason, refused } => return Some(Output::Close { link, reason, refused }),
            MemberOutput::Persist { id, changes } => return Some(Output::Persist { id, changes }),
            MemberOutput::Install { prefix, attributes } => return Some(Output::Install { prefix, attributes }),
            MemberOutput::InstallPaths { prefix, paths } => return Some(Output::InstallPaths { prefix, paths }),
            MemberOutput::Event(event) => return Some(Output::Event(event)),
            MemberOutput::Validate(route) => {
                let Unvalidated { handle, slot: announcer, prefixes, attributes, set } = *route;
                attestation::Input::Route { id: handle.0, announcer, set, prefixes, attributes }
            }
            MemberOutput::Forget { handle } => attestation::Input::Gone(handle.0),
            MemberOutput::Members { set, neighbours } => members(set, &neighbours),
        };
        self.attest(input);
        None
    }

    /// Gives the member's half what attestation has signed, cleared or found; returns what the driver shall do.
    fn on_attestor_output(&mut self, output: attestation::Output) -> Option<Output> {
        let input = match output {
            attestation::Output::Announce { announced, attributes: Some(attributes), under: Some(under), .. } => {
                MemberInput::Signed { announced, attributes, under }
            }
            attestation::Output::Announce { withdrawn, announced, attributes, .. } => {
                MemberInput::ClearedUpdate { withdrawn, announced, attributes }
            }
            attestation::Output::EndOfRib => MemberInput::ClearedEndOfRib,
            attestation::Output::Findings { id, findings } => {
                let finding =
                    |found: attestation::Finding| Finding { verdict: found.verdict, attributes: found.attributes };
                MemberInput::Findings { handle: Handle(id), findings: findings.into_iter().map(finding).collect() }
            }
            attestation::Output::Job(job) => return Some(Output::Job(job)),
            attestation::Output::Persist(Reserve { id, public, slot }) => {
                return Some(Output::PersistSlot { id, public, slot });
            }
            attestation::Output::Event(event) => return Some(Output::AttestationEvent(event)),
        };
        self.member.handle(input, self.now);
        None
    }
}

impl Machine for MemberProxy {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, input: Input, now: Now) {
        self.now = now;
        let input = match input {
            Input::LinkUp { link, party, exporter } => MemberInput::LinkUp { link, party, exporter },
            Input::LinkDown { link } => MemberInput::LinkDown { link },
            Input::Frame { link, bytes } => MemberInput::Frame { link, bytes },
            Input::Persisted(id) => MemberInput::Persisted(id),
            Input::Policy(policy) => MemberInput::Policy(policy),
            Input::Origins(origins) => MemberInput::Origins(origins),
            Input::Data(offered) => MemberInput::Data(offered),
            Input::Router(event) => return self.on_router(event),
            Input::AttestationPolicy(policy) => return self.attest(attestation::Input::Policy(policy)),
            Input::View(view) => return self.attest(attestation::Input::View(view)),
            Input::JobDone(done) => return self.attest(attestation::Input::JobDone(done)),
            Input::SlotPersisted(id) => return self.attest(attestation::Input::Persisted(id)),
            Input::ClockSynchronised(is_synchronised) => {
                return self.attest(attestation::Input::ClockSynchronised(is_synchronised));
            }
        };
        self.member.handle(input, now);
    }

    fn handle_timeout(&mut self, now: Now) {
        self.now = now;
        let is_due = |deadline: Option<Instant>| deadline.is_some_and(|deadline| deadline <= now.instant);
        if is_due(self.member.deadline()) {
            self.member.handle_timeout(now);
        }
        if let Some(attestation) = self.attestation.as_mut().filter(|attestation| is_due(attestation.deadline())) {
            attestation.handle_timeout(now);
        }
    }

    fn poll(&mut self) -> Option<Output> {
        // Each half's outputs may be inputs of the other, so the proxy is done only when both have nothing left.
        loop {
            if let Some(output) = self.member.poll() {
                match self.on_member_output(output) {
                    Some(output) => return Some(output),
                    None => continue,
                }
            }
            let output = self.attestation.as_mut()?.poll()?;
            if let Some(output) = self.on_attestor_output(output) {
                return Some(output);
            }
        }
    }

    fn deadline(&self) -> Option<Instant> {
        let attestation = self.attestation.as_ref().and_then(Machine::deadline);
        self.member.deadline().into_iter().chain(attestation).min()
    }
}

/// The attestation keys of a member set, by AS.
fn members(set: u64, neighbours: &Neighbours) -> attestation::Input {
    let keys = |keys: &[AttestKey]| keys.iter().map(|key| LeafKey { suite: key.suite, key: key.key }).collect();
    let listed = neighbours.iter().map(|(asn, listed)| (asn, keys(listed))).collect();
    attestation::Input::Members { set, digest: neighbours.digest(), neighbours: listed }
}
