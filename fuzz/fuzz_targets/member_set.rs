//! Any octets as a directory, a proposal, a profile and a member's request: an error, or something that has this encoding and no other.
//! No directory that was read follows one whose operators are others.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wayleave_crypto::secret::Seed;
use wayleave_crypto::sign::SigningKey;
use wayleave_core::wire::{decode, encode};
use wayleave_route_server::directory::{Directory, Profile, Proposal, Request};

fuzz_target!(|data: &[u8]| {
    let public = |of: u8| SigningKey::from_seed(&Seed::new([of; 32])).verifying_key().to_bytes();
    let ours = Directory::new("fuzz-ix", [public(1), public(2)]).expect("a name and two keys");
    if let Ok(directory) = Directory::decode(data) {
        assert_eq!(directory.encode(), data);
    }
    if let Ok(proposal) = Proposal::decode(data) {
        assert_eq!(proposal.encode(), data);
        assert!(proposal.check(&ours).is_err(), "no operator signed it");
    }
    if let Ok(request) = Request::decode(data) {
        assert_eq!(request.encode(), data);
    }
    if let Ok(profile) = decode::<Profile>(data) {
        assert_eq!(encode(&profile), data);
        assert_eq!(profile.check(), Ok(()));
    }
    // Only a removal or a step that our operators signed could go on from ours.
    assert!(!matches!(ours.succeed(data), Ok(wayleave_route_server::directory::Succession::Newer(..))));
});
