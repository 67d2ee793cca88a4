//! Any octets as a list of members that another program made, and as `members.csv`: faults, or members with names of their own whose list
//! is read again as it was written.
#![no_main]

use std::collections::BTreeSet;

use libfuzzer_sys::fuzz_target;
use wayleave_import::{self as import, Selection};

fuzz_target!(|data: &[u8]| {
    for (all, vlans) in [(false, vec![]), (true, vec!["0".to_owned()])] {
        let Ok(import) = import::parse(data, &Selection { all, ixp: None, vlans }) else { continue };
        let names: BTreeSet<&str> = import.members.iter().map(|member| member.name.as_str()).collect();
        assert_eq!(names.len(), import.members.len());
        let list = import::parse_list(&import::write_list(&import.members)).expect("what is written is a list");
        for (member, expected) in import.members.iter().zip(&list) {
            assert_eq!((&expected.name, expected.asn), (&member.name, member.asn));
            assert_eq!((&expected.addresses, expected.max_prefix), (&member.addresses(), member.max_prefix()));
        }
    }
    if let Ok(lists) = import::parse_registry(data) {
        assert!(lists.prefixes.iter().all(|range| range.prefix.len() <= range.least && range.least <= range.most));
    }
    if let Ok(text) = str::from_utf8(data) {
        let _ = import::parse_list(text);
    }
});
