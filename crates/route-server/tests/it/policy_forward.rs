//! What a route looks like to those who may have it.

use wayleave_bgp::{AttributeCode, AttributeFlags, Attributes, Origin};
use wayleave_core::Asn;
use wayleave_route_server::policy::sealed_attributes;

fn with(code: u8, flags: u8, value: &[u8]) -> Attributes {
    let mut editor = Attributes::builder();
    editor.prepend(Asn(64497), 1).origin(Origin::Igp).ipv4_next_hop([192, 0, 2, 1].into());
    editor.set(AttributeCode(code), AttributeFlags(flags), value).finish()
}

#[test]
fn an_unknown_transitive_attribute_passes_unchanged_with_the_partial_bit() {
    let value: Vec<u8> = (0..=255).collect();
    let sealed = sealed_attributes(&with(99, 0xc0, &value), Asn(64496));
    let found = sealed.get(AttributeCode(99)).expect("it passes");
    assert_eq!(found.value, value);
    assert!(found.flags.is_partial() && found.flags.is_transitive());
}

#[test]
fn an_unknown_attribute_that_is_not_transitive_ends_here() {
    let sealed = sealed_attributes(&with(99, 0x80, &[1, 2, 3]), Asn(64496));
    assert!(sealed.get(AttributeCode(99)).is_none());
}
