//! Members of a simulation whose proxies attest: an attestor beside each, as in the daemon, and what a test does to them.

use std::collections::HashMap;
use std::sync::Arc;

use wayleave_attestation::attest::{KeyRing, Pair};
use wayleave_attestation::chain::TYPE_CODE;
use wayleave_attestation::leaf::LeafKey;
use wayleave_attestation::pki::{RegisteredKey, View};
use wayleave_attestation::proxy::MOST_OCTETS;
pub(super) use wayleave_attestation::proxy::attestor::Input as Told;
use wayleave_attestation::proxy::attestor::{Attestor, AttestorConfig, Output as Wanted};
use wayleave_attestation::proxy::policy::Policy;
use wayleave_attestation::suite::{self, SuiteId};
use wayleave_attestation::validate::Rules;
use wayleave_bgp::AttributeCode;
use wayleave_core::{Asn, Machine};
use wayleave_route_server::directory::{AttestKey, MemberSet};
use wayleave_route_server::member::{Finding, MemberInput, MemberOutput};
use wayleave_route_server::object::Handle;

use super::{Input, Node, Sim, member_asn, seed_of};

/// Seconds since 1970 between which the keys of a simulation hold.
const KEYS_HOLD: (u64, u64) = (1_600_000_000, 2_000_000_000);

/// The keys with which `asn` attests.
#[must_use]
pub fn attest_ring(seed: u64, asn: Asn) -> KeyRing {
    let suite = SuiteId::KcEd25519;
    let of = seed_of(seed, b"attest", u64::from(asn.0));
    let key = suite::of(suite).expect("it is built in").generate(&of);
    KeyRing { pairs: vec![Pair { suite, key, registered: false }] }
}

/// The same as a profile lists them.
#[must_use]
pub fn registered_key(seed: u64, asn: Asn) -> RegisteredKey {
    let (not_before, not_after) = KEYS_HOLD;
    let ring = attest_ring(seed, asn);
    RegisteredKey { suite: ring.pairs[0].suite, public: ring.pairs[0].key.public().to_vec(), not_before, not_after }
}

/// The same as the member set lists them.
pub(super) fn listed_keys(seed: u64, asn: Asn) -> Vec<AttestKey> {
    let keys = attest_ring(seed, asn).pairs.iter().map(Pair::leaf_key).collect::<Vec<_>>();
    keys.iter().map(|key| AttestKey { suite: key.suite, key: key.key }).collect()
}

impl Sim {
    /// From now on this is known of origins, to every member that attests and after every restart.
    pub fn set_view(&mut self, view: View) {
        self.view = Arc::new(view);
        let slots: Vec<u32> = self.attestors.keys().copied().collect();
        for slot in slots {
            let told = Told::View(Arc::clone(&self.view));
            self.inputs.push_back((Node::Member(slot), Input::Attestor(told)));
        }
    }

    /// The attestor of a member that runs and attests.
    #[must_use]
    pub fn attestor(&self, slot: u32) -> Option<&Attestor> {
        self.attestors.get(&slot)
    }

    /// From now on work of these members waits, until [`Sim::release_work`].
    pub fn hold_work(&mut self, slots: &[u32]) {
        for slot in slots {
            self.held_work.entry(*slot).or_default();
        }
    }

    /// The work that waited is done, and from now on none waits.
    pub fn release_work(&mut self) {
        for (slot, jobs) in std::mem::take(&mut self.held_work) {
            let done = jobs.into_iter().map(|job| (Node::Member(slot), Input::Attestor(Told::Done(job.run()))));
            self.inputs.extend(done);
        }
    }

    pub(super) fn start_attestor(&mut self, slot: u32) {
        if !self.setup.attesting.contains(&slot) {
            return;
        }
        let config = AttestorConfig {
            asn: member_asn(slot),
            attribute: AttributeCode(TYPE_CODE),
            rules: Rules::default(),
            uncertainty: 600,
            lifetime: 24 * 60,
            policy: Policy::default(),
            own: None,
            most: MOST_OCTETS,
        };
        let ring = attest_ring(self.setup.seed, member_asn(slot));
        self.attestors.insert(slot, Attestor::new(config, ring, &HashMap::new(), self.now));
        let told = Told::View(Arc::clone(&self.view));
        self.inputs.push_back((Node::Member(slot), Input::Attestor(told)));
    }

    /// What a member is told of its router goes by its attestor, if it has one.
    pub(super) fn by_attestor(&self, slot: u32, input: MemberInput) -> Result<Told, MemberInput> {
        if !self.attestors.contains_key(&slot) {
            return Err(input);
        }
        match input {
            MemberInput::RouterUpdate { withdrawn, announced, attributes } => {
                Ok(Told::RouterUpdate { withdrawn, announced, attributes })
            }
            MemberInput::RouterEndOfRib => Ok(Told::RouterEndOfRib),
            other => Err(other),
        }
    }

    pub(super) fn tell_attestor(&mut self, slot: u32, told: Told) {
        let now = self.now;
        if let Some(attestor) = self.attestors.get_mut(&slot) {
            attestor.handle(told, now);
        }
    }

    /// Does what the attestor of `slot` wants done.
    pub(super) fn drain_attestor(&mut self, slot: u32) {
        while let Some(wanted) = self.attestors.get_mut(&slot).and_then(Machine::poll) {
            let input = match wanted {
                Wanted::Announce { announced, attributes: Some(attributes), under: Some(under), .. } => {
                    Input::Member(MemberInput::Signed { announced, attributes, under })
                }
                Wanted::Announce { withdrawn, announced, attributes, .. } => {
                    Input::Signed(MemberInput::RouterUpdate { withdrawn, announced, attributes })
                }
                Wanted::EndOfRib => Input::Signed(MemberInput::RouterEndOfRib),
                Wanted::Found { id, findings } => {
                    let finding = |found: wayleave_attestation::proxy::attestor::Finding| Finding {
                        verdict: found.verdict,
                        attributes: found.attributes,
                    };
                    let findings = findings.into_iter().map(finding).collect();
                    Input::Member(MemberInput::Findings { handle: Handle(id), findings })
                }
                Wanted::Work(job) => match self.held_work.get_mut(&slot) {
                    Some(held) => {
                        held.push(job);
                        continue;
                    }
                    None => Input::Attestor(Told::Done(job.run())),
                },
                Wanted::Persist { id, .. } => Input::Attestor(Told::Persisted(id)),
                Wanted::Event(event) => {
                    self.attestor_events.push((slot, event));
                    continue;
                }
            };
            self.inputs.push_back((Node::Member(slot), input));
        }
    }

    /// What a member wants of its attestor.
    pub(super) fn attestor_output(&mut self, slot: u32, output: MemberOutput) {
        let told = match output {
            MemberOutput::Validate { handle, slot: announcer, prefixes, attributes, set } => {
                Told::Route { id: handle.0, announcer, set, prefixes, attributes }
            }
            MemberOutput::Forget { handle } => Told::Gone(handle.0),
            MemberOutput::Members(set) => members(&set),
            _ => return,
        };
        self.inputs.push_back((Node::Member(slot), Input::Attestor(told)));
    }
}

/// A member set as attestors take it.
fn members(set: &MemberSet) -> Told {
    let keys = |keys: &[AttestKey]| keys.iter().map(|key| LeafKey { suite: key.suite, key: key.key }).collect();
    let neighbours = set.neighbours().map(|(asn, listed)| (asn, keys(listed))).collect();
    Told::Members { set: set.number, digest: set.neighbours_digest(), neighbours }
}
