//! Recorded BGP traces as announcements of members of a simulated exchange.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use wayleave_bgp::mrt::{self, RecordedMessage};
use wayleave_bgp::{AttributeCode, Attributes, Ipv6NextHop, Message, Nlri};
use wayleave_core::{Asn, UnixTime};

use crate::sim::{member_address, member_address6, member_asn};

/// The recorded table or trace of this name that comes with Wayleave: beside the sources, or where it is installed.
#[must_use]
pub fn recorded(name: &str) -> Option<PathBuf> {
    let program = std::env::current_exe().unwrap_or_default();
    let mut folders: Vec<&Path> = program.ancestors().collect();
    folders.push(Path::new(""));
    let places = ["test-data/bgp", "share/wayleave/bgp"];
    let mut files = folders.iter().flat_map(|folder| places.map(|place| folder.join(place).join(name)));
    files.find(|file| file.exists())
}

/// One UPDATE of a trace.
#[derive(Clone, Debug)]
pub struct TraceUpdate {
    pub time: UnixTime,
    /// The collector's peer, numbered in order of appearance.
    pub peer: usize,
    pub withdrawn: Vec<Nlri>,
    pub announced: Vec<Nlri>,
    pub attributes: Option<Attributes>,
}

/// The UPDATEs of an MRT file (plain, gzip or bzip2) until `most_prefixes` different prefixes were announced.
///
/// # Errors
/// If the file cannot be read. Records that are malformed are left out.
pub fn load(source: impl Read, most_prefixes: usize) -> io::Result<Vec<TraceUpdate>> {
    let mut peers: BTreeMap<(Asn, String), usize> = BTreeMap::new();
    let mut seen = std::collections::HashSet::new();
    let mut updates = Vec::new();
    for record in mrt::messages(io::BufReader::new(mrt::decompress(source)?)) {
        let next = peers.len();
        let peer = *peers.entry((record.peer_asn, format!("{:?}", record.peer_address))).or_insert(next);
        if let Some(update) = update_of(&record, peer) {
            seen.extend(update.announced.iter().map(|nlri| nlri.prefix));
            updates.push(update);
            if seen.len() >= most_prefixes {
                break;
            }
        }
    }
    Ok(updates)
}

fn update_of(record: &RecordedMessage, peer: usize) -> Option<TraceUpdate> {
    let (Message::Update(update), _) = Message::decode(&record.octets, &record.params()).ok()? else { return None };
    let bare = |list: Vec<Nlri>| list.into_iter().map(|nlri| Nlri::new(nlri.prefix)).collect::<Vec<_>>();
    let (withdrawn, announced) = (bare(update.withdrawn), bare(update.announced));
    if withdrawn.is_empty() && announced.is_empty() {
        return None;
    }
    Some(TraceUpdate { time: record.time, peer, withdrawn, announced, attributes: update.attributes })
}

/// The attributes as the member in `slot` announces them: its AS in front, its own next hops, and no attribute that is
/// for internal sessions only.
#[must_use]
pub fn as_member(attributes: &Attributes, slot: u32) -> Attributes {
    let mut editor = attributes.edit();
    editor.prepend(member_asn(slot), 1).local_pref(None);
    editor.remove(AttributeCode::ORIGINATOR_ID).remove(AttributeCode::CLUSTER_LIST);
    if attributes.ipv4_next_hop().is_some() {
        editor.ipv4_next_hop(member_address(slot));
    }
    if attributes.ipv6_next_hop().is_some() {
        editor.ipv6_next_hop(Some(Ipv6NextHop { global: member_address6(slot), link_local: None }));
    }
    editor.finish()
}
