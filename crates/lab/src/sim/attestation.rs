//! Members of a simulation whose proxies sign and validate: their keys, and what a test does to them.

use std::collections::HashMap;
use std::sync::Arc;

use wayleave_attestation::chain::TYPE_CODE;
use wayleave_attestation::member::{MOST_MEMORY, MemberAttestationConfig};
use wayleave_attestation::pipeline::PipelineConfig;
use wayleave_attestation::pipeline::policy::Policy;
use wayleave_attestation::pki::{RegisteredKey, View};
use wayleave_attestation::proxy::MAX_OCTETS;
use wayleave_attestation::sign::{KeyPair, KeyRing};
use wayleave_attestation::suite::{self, SuiteId};
use wayleave_attestation::validate::Rules;
use wayleave_bgp::AttributeCode;
use wayleave_core::Asn;
use wayleave_member::{AttestationConfig, Input as MemberInput};
use wayleave_route_server::directory::AttestKey;

use super::{Input, Node, Sim, member_asn, seed_of};

/// Seconds since 1970 between which the keys of a simulation hold.
const KEYS_HOLD: (u64, u64) = (1_600_000_000, 2_000_000_000);

/// The keys with which `asn` attests.
#[must_use]
pub fn attest_ring(seed: u64, asn: Asn) -> KeyRing {
    let suite = SuiteId::KcEd25519;
    let of = seed_of(seed, b"attest", u64::from(asn.0));
    let key = suite::of(suite).expect("it is built in").generate(&of);
    KeyRing { pairs: vec![KeyPair { suite, key, registered: false }] }
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
    let keys = attest_ring(seed, asn).pairs.iter().map(KeyPair::leaf_key).collect::<Vec<_>>();
    keys.iter().map(|key| AttestKey { suite: key.suite, key: key.key }).collect()
}

impl Sim {
    /// Sets what is known of origins, for every member that attests and after every restart.
    pub fn set_view(&mut self, view: View) {
        self.view = Arc::new(view);
        let attesting = self.members.keys().copied().filter(|slot| self.setup.attesting.contains(slot));
        let view = || MemberInput::View(Arc::clone(&self.view));
        self.inputs.extend(attesting.map(|slot| (Node::Member(slot), Input::Member(view()))));
    }

    /// Holds back the jobs of these members until [`Sim::release_jobs`].
    pub fn hold_jobs(&mut self, slots: &[u32]) {
        for slot in slots {
            self.held_jobs.entry(*slot).or_default();
        }
    }

    /// Runs the jobs that were held back, and holds back none from now on.
    pub fn release_jobs(&mut self) {
        for (slot, jobs) in std::mem::take(&mut self.held_jobs) {
            let done = |job: wayleave_attestation::pipeline::Job| MemberInput::JobDone(job.run());
            self.inputs.extend(jobs.into_iter().map(|job| (Node::Member(slot), Input::Member(done(job)))));
        }
    }

    /// How the member in `slot` attests, if it does.
    pub(super) fn attestation(&self, slot: u32) -> Option<AttestationConfig> {
        if !self.setup.attesting.contains(&slot) {
            return None;
        }
        let asn = self.set.slots.get(slot as usize).map_or(member_asn(slot), |of| of.asn);
        let settings = MemberAttestationConfig {
            pipeline: PipelineConfig {
                asn,
                attribute: AttributeCode(TYPE_CODE),
                rules: Rules::default(),
                uncertainty: 600,
                lifetime: 24 * 60,
                policy: Policy::default(),
                own: None,
                announces_unauthorised: false,
            },
            max_octets: MAX_OCTETS,
            most_memory: MOST_MEMORY,
        };
        let key_ring = attest_ring(self.setup.seed, asn);
        Some(AttestationConfig { settings, key_ring, slots_seen: HashMap::new(), view: Arc::clone(&self.view) })
    }
}
