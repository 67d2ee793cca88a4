//! A party's files, and what a reload applies.

use std::collections::BTreeMap;
use std::fs;

use wayleave_crypto::secret::Secret;
use wayleave_crypto::sign::SigningKey;

use wayleave_route_server::directory::{MemberSet, Slot};

use super::member_set::write_if_newer;
use super::*;
use crate::config::{EXAMPLE_OPERATOR, PublicKey};
use crate::key_files;

/// A folder with a party's configuration, a signed set of one member and a recommendation.
fn folder(name: &str) -> std::path::PathBuf {
    let folder = std::env::temp_dir().join(format!("wayleave-rs-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("a folder");
    let operator = SigningKey::from_seed(&Secret::new([7; 32]));
    let slot = Slot {
        active: true,
        asn: wayleave_core::Asn(64497),
        name: "alpha".to_owned(),
        addresses: vec!["192.0.2.1".parse().expect("an address")],
        tls: [1; 32],
        sign: SigningKey::from_seed(&Secret::new([8; 32])).verifying_key().to_bytes(),
        max_prefix: 0,
    };
    let set = MemberSet { exchange: "example-ix".to_owned(), number: 2, slots: vec![slot], attest: BTreeMap::new() };
    let signed = set.sign(&operator).expect("a sound set");
    let config =
        crate::config::rs::template(1).replace(EXAMPLE_OPERATOR, &PublicKey(operator.verifying_key()).to_string());
    fs::write(folder.join("members"), signed.encode()).expect("written");
    fs::write(folder.join("recommendation.toml"), "[recommendation]\nalpha = 9\n").expect("written");
    fs::write(folder.join("party.toml"), config.replace("#recommendation", "recommendation")).expect("written");
    folder
}

#[tokio::test]
async fn a_recommendation_that_the_configuration_no_longer_names_is_withdrawn() {
    let folder = folder("reload");
    let path = folder.join("party.toml");
    let before = Source::read(&path).expect("a configuration");
    let file = RsConfig::parse(&before).expect("a sound one");
    let peer_party = Pins::new([config::peer_pin(&file)]);
    let (events, mut inbox) = mpsc::channel(8);
    let mut recommended = async || {
        let source = Source::read(&path).expect("a configuration");
        let config = RsConfig::parse(&source).expect("a sound one");
        reload(&config, &source, &events, &peer_party).await.expect("read again");
        loop {
            match inbox.try_recv() {
                Ok(Event::Input(PartyInput::Recommendation(recommended))) => return recommended,
                Ok(_) => {}
                Err(_) => panic!("no recommendation reached the machine"),
            }
        }
    };
    assert_eq!(recommended().await, BTreeMap::from([(0, 9)]));
    let text = fs::read_to_string(&path).expect("the configuration");
    fs::write(&path, text.replace("\nrecommendation = ", "\n#recommendation = ")).expect("written");
    assert_eq!(recommended().await, BTreeMap::new());
    fs::remove_dir_all(folder).expect("removed");
}

#[test]
fn a_newer_member_set_replaces_the_file_and_an_older_one_does_not() {
    let folder = folder("newer");
    let (config, file) = (folder.join("party.toml"), folder.join("members"));
    let operator = SigningKey::from_seed(&Secret::new([7; 32]));
    let before =
        key_files::member_set::read(&file).expect("a set").verify(&operator.verifying_key()).expect("signed").clone();
    let signed =
        |number, key: &SigningKey| MemberSet { number, ..before.clone() }.sign(key).expect("a sound set").encode();
    assert_eq!(write_if_newer(&config, &signed(3, &operator)).expect("written"), Some(3));
    assert_eq!(fs::read(&file).expect("the file"), signed(3, &operator));
    for number in [2, 3] {
        assert_eq!(write_if_newer(&config, &signed(number, &operator)).expect("left"), None);
    }
    let stranger = SigningKey::from_seed(&Secret::new([9; 32]));
    assert!(write_if_newer(&config, &signed(4, &stranger)).is_err());
    assert_eq!(fs::read(&file).expect("the file"), signed(3, &operator));
    fs::remove_file(&file).expect("removed");
    assert_eq!(write_if_newer(&config, &signed(4, &operator)).expect("written"), Some(4));
    fs::remove_dir_all(folder).expect("removed");
}
