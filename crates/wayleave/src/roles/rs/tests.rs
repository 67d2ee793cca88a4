//! A party's files, and what a reload applies.

use std::collections::BTreeMap;
use std::fs;

use wayleave_crypto::secret::Secret;
use wayleave_crypto::sign::SigningKey;

use wayleave_route_server::directory::Claim;

use super::member_set::write_if_newer;
use super::*;
use crate::config::{EXAMPLE_OPERATORS, PublicKey};

fn key(number: u8) -> SigningKey {
    SigningKey::from_seed(&Secret::new([number; 32]))
}

/// The member with key `number`, as both operators, whose keys are 21 and 22, add it.
fn admit(directory: &Directory, number: u8) -> Directory {
    let claim = Claim {
        serial: 1,
        asn: wayleave_core::Asn(64490 + u32::from(number)),
        name: if number == 7 { "alpha".to_owned() } else { format!("member-{number}") },
        tls: [number; 32],
        sign: key(number).verifying_key().to_bytes(),
        attest: Vec::new(),
        addresses: vec![[192, 0, 2, number].into()],
    };
    let join = directory.requested(&claim.sign("example-ix", &key(number)), 0).expect("of this exchange");
    directory.signed_by_both(vec![join], [&key(21), &key(22)]).expect("a sound set")
}

fn directory() -> Directory {
    let operators = [21, 22].map(|number| key(number).verifying_key().to_bytes());
    admit(&Directory::new("example-ix", operators).expect("sound"), 7)
}

/// A folder with a party's configuration, a signed set of one member and a recommendation.
fn folder(name: &str) -> std::path::PathBuf {
    let folder = std::env::temp_dir().join(format!("wayleave-rs-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("a folder");
    let mut config = crate::config::rs::template(1);
    for (example, number) in EXAMPLE_OPERATORS.iter().zip([21, 22]) {
        config = config.replace(example, &PublicKey(key(number).verifying_key()).to_string());
    }
    fs::write(folder.join("members"), directory().encode()).expect("written");
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
    let identity = Identity::generate("party1", wayleave_runtime::identity::DEFAULT_VALIDITY).expect("keys");
    let (events, mut inbox) = mpsc::channel(8);
    let mut recommended = async || {
        let source = Source::read(&path).expect("a configuration");
        let config = RsConfig::parse(&source).expect("a sound one");
        reload(&config, &source, &identity, &events, &peer_party, directory().set()).await.expect("read again");
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
    let first = directory();
    let second = admit(&first, 8);
    assert_eq!(write_if_newer(&config, &second.encode()).expect("written"), Some(2));
    assert_eq!(fs::read(&file).expect("the file"), second.encode());
    for old in [&first, &second] {
        assert_eq!(write_if_newer(&config, &old.encode()).expect("left"), None);
    }
    // Another set of the same number, and one of other operators.
    assert!(write_if_newer(&config, &admit(&first, 9).encode()).is_err());
    let strangers = [3, 4].map(|number| key(number).verifying_key().to_bytes());
    let foreign = Directory::new("example-ix", strangers).expect("sound");
    assert!(write_if_newer(&config, &foreign.encode()).is_err());
    assert_eq!(fs::read(&file).expect("the file"), second.encode());
    // A removal in the file that is not in force yet stays there.
    let removed = second.without(0, &key(21)).expect("an operator");
    fs::write(&file, removed.encode()).expect("written");
    let third = admit(&second, 10);
    assert_eq!(write_if_newer(&config, &third.encode()).expect("written"), Some(4));
    let both = Directory::decode(&fs::read(&file).expect("the file")).expect("sound");
    assert!(!both.set().slots[0].active && both.set().slots.len() == 3);
    fs::remove_file(&file).expect("removed");
    assert_eq!(write_if_newer(&config, &third.encode()).expect("written"), Some(3));
    fs::remove_dir_all(folder).expect("removed");
}
