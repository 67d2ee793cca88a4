//! Lists of an exchange's members that other programs made: arouteserver's `clients.yml` and the member export of IX-F (versions 0.6
//! to 1.0), which IXP Manager has too.
//!
//! What a file says of connections becomes entries, and of them what a member set has: routers with names, addresses and limits. A
//! file comes from a stranger, so that sizes, nesting and counts have bounds, and every fault is named with its
//! place.

mod clients;
mod fault;
mod ixf;
mod list;
mod members;
mod registry;
mod settings;
mod tree;
mod view;

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use wayleave_core::Asn;

use one_line as shown;

pub use fault::{Faults, ImportFault};
pub use list::{ExpectedMember, parse as parse_list, write_list};
pub use members::{ImportedMember, MAX_IMPORT_NAME, RESERVED_NAMES};
pub use registry::{MAX_REGISTRY_OCTETS, RegistryLists, parse_registry};
pub use settings::{NotTaken, Refused};

/// Octets of a file; whoever reads one reads no more.
pub const MAX_OCTETS: u64 = 16 << 20;
/// Addresses, next hops, AS sets, refused prefixes and settings of one entry, each: what is said of it is copied to each of its routers.
const MAX_OF_ENTRY: usize = 256;
/// Characters of a description, and of what a fault repeats of a file.
const MAX_TEXT: usize = 128;

/// Which connections of a file are taken.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Selection {
    /// Those without a session with the route server, too (IX-F).
    pub all: bool,
    /// Those of one exchange, by its `ixp_id` (IX-F).
    pub ixp: Option<String>,
    /// Those of these LANs, by `vlan_id` (IX-F).
    pub vlans: Vec<String>,
}

/// What a file is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    Arouteserver,
    Ixf,
}

impl Format {
    pub fn name(self) -> &'static str {
        match self {
            Self::Arouteserver => "arouteserver's clients",
            Self::Ixf => "an IX-F member export",
        }
    }
}

/// What a file says of an exchange's members.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Import {
    pub format: Format,
    /// Addresses of connections that were read.
    pub addresses: usize,
    pub members: Vec<ImportedMember>,
    /// Addresses that were left out, by the reason.
    pub left_out: BTreeMap<String, usize>,
}

/// Addresses of one AS that stand together in a file.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Entry {
    /// Line and path.
    place: Place,
    asn: Asn,
    /// What the member is called, if the file says it.
    name: Option<String>,
    /// Entries of one pool are of one connection: an IPv4 address and an IPv6 address of them may be those of one router.
    pool: usize,
    addresses: Vec<(IpAddr, Place)>,
    /// Further addresses that routes may have as their next hop.
    next_hops: Vec<(IpAddr, Place)>,
    /// Prefixes that it may announce, of IPv4 and of IPv6.
    limits: [Option<u32>; 2],
    as_sets: Vec<String>,
    refused: Vec<Refused>,
    not_taken: Vec<NotTaken>,
}

impl Entry {
    /// Octets of what is copied to each of its routers, about.
    fn octets(&self) -> usize {
        let texts = |texts: &[String]| texts.iter().map(|text| text.len() + size_of::<String>()).sum::<usize>();
        let settings =
            |of: &NotTaken| of.setting.len() + of.value.as_ref().map_or(0, String::len) + size_of::<NotTaken>();
        let hops = self.next_hops.iter().map(|(_, place)| place.path.len() + size_of::<(IpAddr, Place)>());
        texts(&self.as_sets)
            + self.refused.iter().map(|refused| texts(&refused.prefixes)).sum::<usize>()
            + self.not_taken.iter().map(settings).sum::<usize>()
            + hops.sum::<usize>()
            + self.place.path.len()
    }

    /// It, if none of its lists is too long.
    fn bounded(self, faults: &mut Faults) -> Option<Self> {
        let prefixes = self.refused.iter().map(|refused| refused.prefixes.len()).sum();
        let lists = [
            (self.addresses.len(), "addresses"),
            (self.next_hops.len(), "next hops"),
            (self.as_sets.len(), "AS sets"),
            (prefixes, "refused prefixes"),
            (self.not_taken.len(), "settings"),
        ];
        for (_, what) in lists.iter().filter(|(count, _)| *count > MAX_OF_ENTRY) {
            faults.at(&self.place, format!("more than {MAX_OF_ENTRY} {what}"));
        }
        lists.iter().all(|(count, _)| *count <= MAX_OF_ENTRY).then_some(self)
    }
}

/// Where something stands in a file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Place {
    pub line: Option<usize>,
    /// As `clients[3].cfg`.
    pub path: String,
}

/// As a comment names it.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{} (line {line})", self.path),
            None => f.write_str(&self.path),
        }
    }
}

/// Which LAN a connection is on: the exchange's number and the LAN's.
pub type Lan = (String, String);

/// Why a file gives no members.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ImportError {
    /// The file is wrong.
    Faults(Faults),
    /// Connections are on several LANs of one family, or of several exchanges, each with so many addresses, and a member set is of one.
    SeveralLans(Vec<(Lan, usize)>),
    /// No connection that was asked for; what was left out, by the reason.
    Nothing(BTreeMap<String, usize>),
}

impl From<ImportFault> for ImportError {
    fn from(fault: ImportFault) -> Self {
        let mut faults = Faults::default();
        faults.push(fault);
        Self::Faults(faults)
    }
}

/// Reads what a file has.
///
/// # Errors
/// Every fault, with its place.
pub fn parse(text: &[u8], selection: &Selection) -> Result<Import, ImportError> {
    let text = str::from_utf8(text).map_err(|error| {
        let before = &text[..error.valid_up_to()];
        let line = before.iter().filter(|octet| **octet == b'\n').count() + 1;
        ImportFault::new(&Place { line: Some(line), path: String::new() }, "no UTF-8 text")
    })?;
    let tree = tree::parse(text)
        .map_err(|error| ImportFault::new(&Place { line: error.line, path: String::new() }, error.message))?;
    let mut faults = Faults::default();
    let is_ixf = tree.get("member_list").is_some();
    let (format, entries, left_out) = if is_ixf {
        let found = ixf::read(&tree, selection, &mut faults)?;
        (Format::Ixf, found.entries, found.left_out)
    } else if tree.get("clients").is_some() {
        (Format::Arouteserver, clients::read(&tree, &mut faults), BTreeMap::new())
    } else {
        let place = Place { line: tree.line, path: String::new() };
        let message = "neither `clients` (arouteserver) nor `member_list` (IX-F member export)";
        return Err(ImportFault::new(&place, message).into());
    };
    let addresses = entries.iter().map(|entry| entry.addresses.len()).sum();
    let members = members::members(entries, &mut faults);
    if !faults.is_empty() {
        return Err(ImportError::Faults(faults));
    }
    if members.is_empty() {
        return Err(ImportError::Nothing(left_out));
    }
    Ok(Import { format, addresses, members, left_out })
}

/// Text of a stranger as it may be shown and written: in one line, without what does not print, and not long.
pub fn one_line(text: &str) -> String {
    let printable = |c: char| {
        !c.is_control()
            && !matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
    };
    let spaced = text.chars().map(|c| if c.is_whitespace() { ' ' } else { c });
    let mut short: String = spaced.filter(|c| printable(*c)).take(MAX_TEXT + 1).collect::<String>().trim().to_owned();
    if short.chars().count() > MAX_TEXT {
        short = short.chars().take(MAX_TEXT - 3).collect::<String>() + "...";
    }
    short
}

#[cfg(test)]
mod tests;
