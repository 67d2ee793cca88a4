//! Announcements, and the attestations that honest ASes make for them.

use wayleave_core::Asn;
use wayleave_papers::scheme::{Announcement, Scheme};

pub(crate) fn announcement(prefixes: &[&str], path: &[u32]) -> Announcement {
    let prefixes = prefixes.iter().map(|text| text.parse().expect("a prefix")).collect();
    Announcement { prefixes, path: path.iter().copied().map(Asn).collect() }
}

/// The attestation with which the last AS of `path` sends `prefixes` to `to`.
pub(crate) fn chain(scheme: &mut dyn Scheme, prefixes: &[&str], path: &[u32], to: u32) -> Vec<u8> {
    let mut attestation = Vec::new();
    for hops in 1..=path.len() {
        let next = path.get(hops).copied().unwrap_or(to);
        let so_far = announcement(prefixes, &path[..hops]);
        attestation = scheme.attest(&so_far, &attestation, Asn(next)).expect("attests");
    }
    attestation
}
