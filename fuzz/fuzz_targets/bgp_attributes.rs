//! Any octets as the attributes of a route: what is accepted answers every question and survives every edit.
//!
//! BGP-13: any octets as attributes: an error or a value with this encoding.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wayleave_bgp::Attributes;
use wayleave_core::Asn;

fuzz_target!(|data: &[u8]| {
    let Ok(attributes) = Attributes::decode(data) else { return };
    assert_eq!(attributes.encode(), data);
    assert_eq!(attributes.edit().finish(), attributes);
    let _ = (attributes.origin(), attributes.med(), attributes.local_pref(), attributes.aggregator());
    let _ = (attributes.originator_id(), attributes.only_to_customer(), attributes.ipv4_next_hop());
    let path = attributes.as_path();
    assert!(path.length() <= path.asns().count());
    let _ = (path.to_string(), path.first_asn(), path.origin_asn(), format!("{attributes:?}"));

    let mut editor = attributes.to_forward().edit();
    editor.prepend(Asn(64_496), 2).med(None).local_pref(Some(1));
    editor.retain_communities(|community| community.lower() % 2 == 0);
    editor.retain_large_communities(|community| community.local1 % 2 == 0);
    editor.retain_extended_communities(|community| community.is_transitive());
    let edited = editor.finish();
    // Only a path that is at its limit cannot grow.
    assert!(edited.as_path().first_asn() == Some(Asn(64_496)) || path.octets().len() > 65_535 - 14);
    assert!(edited.communities().all(|community| community.lower() % 2 == 0));
    if edited.as_octets().len() <= 65_535 {
        assert_eq!(Attributes::decode(&edited.encode()), Ok(edited));
    }
});
