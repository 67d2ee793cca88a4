//! Any octets as data of an exchange: an error, or data that have this encoding and no other, and that count for nobody who did not sign them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wayleave_crypto::secret::Seed;
use wayleave_crypto::sign::SigningKey;
use wayleave_route_server::data::{DataObject, PrefixList};
use wayleave_route_server::directory::DataRules;

fuzz_target!(|data: &[u8]| {
    let Ok(object) = DataObject::decode(data) else { return };
    assert_eq!(object.encode(), data);
    let keys = [1, 2].map(|of| SigningKey::from_seed(&Seed::new([of; 32])).verifying_key().to_bytes());
    let rules = DataRules { keys, ..DataRules::default() };
    assert!(object.check(&object.data.exchange, &rules).is_err(), "no machine signed them");
    let lists = object.data.members.values().filter_map(|lists| lists.prefixes.as_ref()).chain([&object.data.bogons]);
    for list in lists {
        for range in list.ranges() {
            assert!(list.covering(&range.prefix).is_some_and(|prefix| prefix.contains(&range.prefix)));
            assert!(range.least > range.prefix.len() || list.allows(&range.prefix));
        }
        assert_eq!(PrefixList::of(list.ranges()).as_ref(), Ok(list));
    }
});
