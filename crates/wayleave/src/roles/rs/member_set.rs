//! The member set and the exchange's recommendation of a party: read at start and reload; a newer set in force is saved.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tokio::sync::mpsc;
use tracing::{info, warn};
use wayleave_route_server::directory::{Directory, MemberSet, Slot, Succession};
use wayleave_route_server::party::Party;
use wayleave_runtime::drive::ask;
use wayleave_runtime::identity::Fingerprint;
use wayleave_runtime::tls::{Pin, Role};

use super::io::Event;
use crate::config::Source;
use crate::config::rs::{Recommendation, RsConfig};
use crate::failure::Outcome;
use crate::key_files::member_set;

/// The sets in the file that the configuration names: their octets and their content, signed by both operators.
pub fn read(config: &RsConfig, source: &Source) -> Outcome<(Vec<u8>, Directory)> {
    member_set::verified(&source.resolve(config.party.members.get_ref()), &config.trust())
}

/// The exchange's recommendation by slot; empty if the configuration names none. A name that no member of the set has is only
/// logged: a member that left must not keep a party from starting.
pub fn recommendation(config: &RsConfig, source: &Source, set: &MemberSet) -> Outcome<BTreeMap<u32, u8>> {
    let Some(file) = &config.party.recommendation else { return Ok(BTreeMap::new()) };
    let (by_slot, unknown) = Recommendation::read(&source.resolve(file.get_ref()), Some(set))?;
    unknown.iter().for_each(|failure| warn!("an entry of the recommendation is ignored: {}", failure.in_one_line()));
    Ok(by_slot)
}

/// The certificates of all members; those of removed ones too, which are refused in words of their own.
pub fn pins(set: &MemberSet) -> Vec<(Fingerprint, Pin)> {
    let of_role = |slot: &Slot| if slot.active { Role::Member } else { Role::Former };
    let pin =
        |(id, slot): (u32, &Slot)| (Fingerprint(slot.tls), Pin { name: slot.name.clone(), role: of_role(slot), id });
    let mut pins: Vec<(Fingerprint, Pin)> = set.iter().map(pin).collect();
    // Of two entries for one certificate the last counts.
    pins.sort_by_key(|(_, pin)| pin.role == Role::Member);
    pins
}

/// Writes the member set in force to its file if the file has an older one: the peer party may have sent a newer set, and a
/// restart must not begin with a member that has left.
pub async fn save(events: mpsc::Sender<Event>, configuration: PathBuf) {
    let Some(octets) = ask(&events, |party: &mut Party| party.member_set_bytes()).await else { return };
    let written = tokio::task::spawn_blocking(move || write_if_newer(&configuration, &octets)).await;
    match written {
        Ok(Ok(Some(number))) => info!(number, "member set written to its file"),
        Ok(Ok(None)) | Err(_) => {}
        Ok(Err(failures)) => {
            warn!(
                "the member set in force could not be written to its file: {failures}; copy it there before a restart"
            );
        }
    }
}

/// Returns the number of the set if it was written.
pub fn write_if_newer(configuration: &Path, octets: &[u8]) -> Outcome<Option<u64>> {
    let source = Source::read(configuration)?;
    let config = RsConfig::parse(&source)?;
    let file = source.resolve(config.party.members.get_ref());
    let new = Directory::open(octets, &config.trust())?;
    let _lock = member_set::locked(&file)?;
    if !file.exists() {
        member_set::replace(&file, octets)?;
        return Ok(Some(new.set().number));
    }
    match read(&config, &source)?.1.succeed(octets)? {
        // A removal that only the file has is its operator's, and stays there until a reload.
        Succession::Newer(both, _) => {
            member_set::replace(&file, &both.encode())?;
            Ok(Some(both.set().number))
        }
        Succession::Same | Succession::Older(_) => Ok(None),
    }
}
