//! The attesting proxy's machine configuration, from its file.

use wayleave_attestation::pipeline::PipelineConfig;
use wayleave_attestation::proxy::handover::Handover;
use wayleave_attestation::proxy::{EndConfig, PairOptions, ProxyConfig};
use wayleave_attestation::validate::Rules;
use wayleave_bgp::AttributeCode;
use wayleave_bgp::rib::{LimitAction, MaxPrefixes};
use wayleave_bgp::session::PeerAsn;

use crate::config::attest::{AttestFile, EndSection, PairSection};

/// All of it; `check` has verified that each number fits.
pub fn machine(file: &AttestFile) -> ProxyConfig {
    let attest = &file.attest;
    let small = |number: u64| u8::try_from(number).unwrap_or(u8::MAX);
    let least_strength = u16::try_from(*attest.least_strength.get_ref()).unwrap_or(0);
    let lifetime = u16::try_from(*attest.lifetime_minutes.get_ref()).unwrap_or(u16::MAX);
    ProxyConfig {
        pipeline: PipelineConfig {
            asn: *attest.asn.get_ref(),
            attribute: AttributeCode(small(*attest.attribute.get_ref())),
            rules: Rules { lab: attest.lab, least_strength, ..Rules::default() },
            uncertainty: *attest.clock_uncertainty_secs.get_ref(),
            lifetime,
            policy: file.policy.policy(),
            own: attest.originate.clone(),
            announces_unauthorised: attest.announce_unauthorised,
        },
        capability: small(*attest.capability.get_ref()),
        least_strength,
        require_post_quantum: attest.require_post_quantum,
        pairs: file.pair.iter().map(|pair| options(file, pair.get_ref())).collect(),
    }
}

fn options(file: &AttestFile, pair: &PairSection) -> PairOptions {
    let end = |section: &EndSection, asn| EndConfig {
        peer_asn: section.asn.as_ref().map_or(asn, |asn| PeerAsn::Exactly(*asn.get_ref())),
        listens: section.listen.is_some(),
        connects: section.connect.is_some(),
        first_as: !section.route_server && asn == PeerAsn::Any,
        limits: match section.max_prefixes {
            Some(most) => {
                MaxPrefixes { ipv4: Some(most), ipv6: Some(most), warn_percent: 80, action: LimitAction::Stop }
            }
            None => MaxPrefixes::NONE,
        },
    };
    let octets = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    PairOptions {
        name: pair.name.clone(),
        ends: [
            end(pair.inside.get_ref(), PeerAsn::Exactly(*file.attest.asn.get_ref())),
            end(pair.outside.get_ref(), PeerAsn::Any),
        ],
        max_octets: octets(*pair.most_octets.get_ref()),
        max_octets_extended: octets(*pair.most_octets_extended.get_ref()),
        most_memory: octets(*pair.most_memory_mib.get_ref()).saturating_mul(1 << 20),
        handover: Handover {
            grants: pair.keys.is_granted(),
            takes: pair.take_granted.as_ref().is_some_and(|takes| *takes.get_ref()),
            is_protected: pair.outside.get_ref().protected,
        },
    }
}
