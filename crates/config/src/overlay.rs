//! `[overlay]`: a node's part in a realm, as routers, gateways and consent servers have it.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::Deserialize;
use toml::Spanned;
use wayleave_control::advert::{
    Endpoint, Link, MAX_EPOCH, MAX_LIFETIME, MAX_LINKS, MAX_MEANING, MAX_TAGS, MIN_MTU, Relationship, TagOffer, TagUse,
};
use wayleave_control::node::{MIN_EPOCH, Profile, Realm};
use wayleave_control::realm::{MAX_LIST, MAX_SERVERS, MAX_STALENESS, Membership, Name, RealmKey, Roles, Server};
use wayleave_control::store::Record;
use wayleave_core::IdentityKey;
use wayleave_crypto::secret::Seed;
use wayleave_crypto::sign::SigningKey;
use wayleave_crypto::signed::Signed;
use wayleave_packet::icing::header::Tag;
use wayleave_packet::icing::mint::TagMaster;
use wayleave_runtime::store;

use super::machine::state_fault;
use super::parse::{self, HostPort, NodeKey, Text, TextValue};
use super::rs::{FileFault, range};
use super::{Fault, Source};
use crate::failure::{Failure, Outcome};
use crate::key_files::membership;
use crate::key_files::node::{self, KeyKind, TagKeyFile};
use crate::links::FIRST_OPEN;

/// The table of a node's or path server's state that has the records of the realm.
pub const RECORDS: &str = "records";
/// Requests of one node in a second that a server's configuration may allow.
pub const MAX_REQUESTS: u64 = 1_000_000;

/// `[overlay]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OverlaySection {
    /// The realm's public key.
    pub realm: Spanned<Text<parse::RealmKey>>,
    /// The node's membership, as `wayleave join` wrote it.
    pub membership: Spanned<PathBuf>,
    /// The file of the node's identity.
    pub identity: Spanned<PathBuf>,
    /// The file of a gateway's static key.
    pub noise: Option<Spanned<PathBuf>>,
    /// The file of the seed of the node's IDs; needed with neighbours.
    pub ids: Option<Spanned<PathBuf>>,
    /// The file of the keys of the node's tags. A router has them in its forwarding keys.
    pub tags: Option<Spanned<PathBuf>>,
    pub state: Spanned<PathBuf>,
    pub path_servers: Spanned<Vec<ServerEntry>>,
    /// The realm's operator, who renews the membership.
    pub operator: Option<ServerEntry>,
    /// Who consents for this node.
    pub consent: Option<ServerEntry>,
    /// That server gets the keys of the node's tags from the node itself.
    #[serde(default)]
    pub entrust: bool,
    /// Octets of the longest ICING packet that the node takes.
    #[serde(default = "default_mtu")]
    pub mtu: Spanned<u64>,
    #[serde(default = "default_lifetime")]
    pub lifetime_minutes: Spanned<u64>,
    #[serde(default = "default_epoch")]
    pub id_epoch_secs: Spanned<u64>,
    /// By how many seconds the next list of removed nodes may be overdue.
    #[serde(default = "default_staleness")]
    pub max_staleness_secs: Spanned<u64>,
    #[serde(default)]
    pub tags_offered: Vec<TagEntry>,
    #[serde(default)]
    pub neighbour: Vec<Spanned<NeighbourSection>>,
    /// The node serves members that it does not list.
    pub open: Option<OpenSection>,
    /// Neighbours reach the node over TLS too, where UDP does not pass.
    pub tls: Option<TlsSection>,
}

/// A server of the realm.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerEntry {
    pub identity: Text<NodeKey>,
    pub address: Text<HostPort>,
}

impl ServerEntry {
    pub fn server(&self) -> Server {
        Server { identity: identity(&self.identity), address: self.address.0.0.clone() }
    }
}

/// The key of a node as it stands in a configuration.
pub fn identity(key: &Text<NodeKey>) -> IdentityKey {
    key.0.identity()
}

/// A tag that the node offers.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TagEntry {
    pub tag: Spanned<Text<TagValue>>,
    #[serde(rename = "use")]
    pub usage: TagUseName,
    /// For people.
    pub meaning: Option<Spanned<String>>,
}

/// A tag in 8 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TagValue(pub Tag);

impl TextValue for TagValue {
    const EXPECTED: &'static str = "a tag of 8 hexadecimal digits, such as \"40000000\"";
    fn read(text: &str) -> Option<Self> {
        let is_hex = text.len() == 8 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
        is_hex.then(|| u32::from_str_radix(text, 16).ok()).flatten().map(|tag| Self(Tag(tag)))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TagUseName {
    Transit,
    Deliver,
    Service,
}

impl TagUseName {
    pub fn usage(self) -> TagUse {
        match self {
            Self::Transit => TagUse::Transit,
            Self::Deliver => TagUse::Deliver,
            Self::Service => TagUse::Service,
        }
    }
}

/// `[[overlay.neighbour]]`: a node on the other end of a link. Its keys, IDs and addresses come from its advert.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NeighbourSection {
    pub node: Spanned<Text<NodeRef>>,
    pub relationship: RelationshipName,
    /// Whether others may be told of the link.
    #[serde(default = "default_true")]
    pub public: bool,
    /// The link's number.
    pub interface: Spanned<u16>,
    /// Where we receive by UDP what the neighbour sends. Default: any address and port.
    pub local: Option<Spanned<Text<SocketAddr>>>,
    /// The same as the neighbour sees it. Default: `local`; without a port of its own, none.
    pub endpoint: Option<Text<Endpoint>>,
}

impl NeighbourSection {
    /// Where the neighbour begins sessions to us, if it can.
    pub fn endpoint(&self) -> Option<Endpoint> {
        let of_local = || self.local.as_ref().and_then(|local| as_endpoint(local.get_ref().0));
        self.endpoint.as_ref().map(|endpoint| endpoint.0.clone()).or_else(of_local)
    }
}

/// `[overlay.open]`: members that are not listed are served as customers.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpenSection {
    /// Where we receive by UDP what they send.
    pub local: Spanned<Text<SocketAddr>>,
    /// The same as they see it. Default: `local`.
    pub endpoint: Option<Text<Endpoint>>,
    /// Whom we serve. Default: every member of the realm.
    pub admit: Option<Spanned<Vec<Text<NodeRef>>>>,
}

impl OpenSection {
    /// Where members begin sessions to us.
    fn endpoint(&self) -> Option<Endpoint> {
        let endpoint = self.endpoint.as_ref().map(|endpoint| endpoint.0.clone());
        endpoint.or_else(|| as_endpoint(self.local.get_ref().0))
    }

    /// Whom it serves, for people.
    #[must_use]
    pub fn describe(&self) -> String {
        match &self.admit {
            None => "open to every member of the realm that has this node as its provider".to_owned(),
            Some(admit) => {
                let names: Vec<String> = admit.get_ref().iter().map(|node| node.0.to_string()).collect();
                format!("open to {}, where they have this node as their provider", names.join(", "))
            }
        }
    }
}

/// `[overlay.tls]`: links over TLS on TCP, for neighbours whose UDP does not pass.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsSection {
    /// Where connections are taken.
    pub local: Spanned<Text<SocketAddr>>,
    /// The same as neighbours see it. Default: `local`.
    pub endpoint: Option<Text<Endpoint>>,
}

impl TlsSection {
    fn endpoint(&self) -> Option<Endpoint> {
        let endpoint = self.endpoint.as_ref().map(|endpoint| endpoint.0.clone());
        endpoint.or_else(|| as_endpoint(self.local.get_ref().0))
    }
}

fn as_endpoint(local: SocketAddr) -> Option<Endpoint> {
    local.to_string().parse().ok()
}

/// `local` stands for the endpoint and is none that others can send to.
fn endpoint_fault(local: &Spanned<Text<SocketAddr>>) -> Fault {
    let message = format!("{} cannot be sent to, expected an address and port of this machine", local.get_ref().0);
    Fault::at(local.span(), message).help("if others reach it by another address, write that as `endpoint`")
}

/// What the neighbour is to the node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RelationshipName {
    Provider,
    Peer,
    Customer,
}

impl RelationshipName {
    pub fn relationship(self) -> Relationship {
        match self {
            Self::Provider => Relationship::Provider,
            Self::Peer => Relationship::Peer,
            Self::Customer => Relationship::Customer,
        }
    }
}

/// A member, by its name or its key.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum NodeRef {
    Name(Name),
    Key(IdentityKey),
}

impl TextValue for NodeRef {
    const EXPECTED: &'static str =
        "a node's name, such as \"b\", or its key: \"node:ed25519:\" and 64 hexadecimal digits";
    fn read(text: &str) -> Option<Self> {
        if let Some(key) = NodeKey::read(text) {
            return Some(Self::Key(key.identity()));
        }
        text.parse().ok().map(Self::Name)
    }
}

impl std::fmt::Display for NodeRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Name(name) => name.fmt(f),
            Self::Key(key) => key.fmt(f),
        }
    }
}

fn default_mtu() -> Spanned<u64> {
    Spanned::new(0..0, 1_400)
}

fn default_lifetime() -> Spanned<u64> {
    Spanned::new(0..0, 5)
}

fn default_epoch() -> Spanned<u64> {
    Spanned::new(0..0, 86_400)
}

pub(super) fn default_staleness() -> Spanned<u64> {
    Spanned::new(0..0, MAX_STALENESS)
}

fn default_true() -> bool {
    true
}

/// A node's part in a realm, ready to run.
pub struct Settings {
    pub identity: Seed,
    pub membership: Signed<Membership>,
    /// The static key of a gateway.
    #[allow(dead_code, reason = "for roles that seal")]
    pub noise: Option<Seed>,
    pub ids: Option<Seed>,
    /// The keys of the node's tags, each with the tag epoch from which it counts.
    #[allow(dead_code, reason = "for roles that deliver; a router has them in its forwarding keys")]
    pub tags: Vec<(u32, TagMaster)>,
    pub state: PathBuf,
    /// Where the membership lies.
    pub membership_file: PathBuf,
    pub section: OverlaySection,
}

impl Settings {
    pub fn own(&self) -> IdentityKey {
        self.membership.object().identity
    }

    /// The realm's operator granted this node a role.
    ///
    /// # Errors
    /// If not.
    pub fn require(&self, role: Roles, name: &str) -> Result<(), Failure> {
        if self.membership.object().grants.roles.has(role) {
            return Ok(());
        }
        let failure = Failure::new(format!("the membership is not for the role `{name}`"));
        Err(failure
            .help(format!("ask the realm's operator for an invitation: `wayleave realm invite NAME --role {name}`")))
    }

    pub fn signing_key(&self) -> SigningKey {
        SigningKey::from_seed(&self.identity)
    }
}

impl OverlaySection {
    pub fn realm(&self) -> RealmKey {
        RealmKey(self.realm.get_ref().0.0.to_bytes())
    }

    pub fn servers(&self) -> Vec<Server> {
        self.path_servers.get_ref().iter().map(ServerEntry::server).collect()
    }

    /// What the node `own` tells of itself, with those neighbours that are members of the realm.
    pub fn profile(&self, own: IdentityKey, realm: &Realm) -> Profile {
        let mut links = Vec::new();
        for neighbour in &self.neighbour {
            let neighbour = neighbour.get_ref();
            let identity = match &neighbour.node.get_ref().0 {
                NodeRef::Key(identity) => Some(*identity),
                NodeRef::Name(name) => realm.names.get(name).copied(),
            };
            let Some(identity) = identity.filter(|identity| *identity != own) else { continue };
            links.push(Link {
                neighbour: identity,
                relationship: neighbour.relationship.relationship(),
                public: neighbour.public,
                interface: *neighbour.interface.get_ref(),
                endpoint: neighbour.endpoint(),
            });
        }
        links.sort();
        links.dedup_by_key(|link| link.neighbour);
        let offer = |entry: &TagEntry| TagOffer {
            tag: entry.tag.get_ref().0.0,
            usage: entry.usage.usage(),
            meaning: entry.meaning.as_ref().map(|meaning| meaning.get_ref().clone()).unwrap_or_default(),
        };
        Profile {
            mtu: u16::try_from(*self.mtu.get_ref()).unwrap_or(u16::MAX),
            links,
            open: self.open.as_ref().and_then(OpenSection::endpoint),
            tls: self.tls.as_ref().and_then(TlsSection::endpoint),
            tags: self.tags_offered.iter().map(offer).collect(),
            consent: self.consent.as_ref().map(ServerEntry::server),
        }
    }

    /// The realm as a node's state has it; empty if there is no state, or a role has it open.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn stored_realm(&self, source: &Source) -> Outcome<Realm> {
        let records = store::peek(&source.resolve(self.state.get_ref()), RECORDS)?.unwrap_or_default();
        let records: Vec<Record> = records.iter().filter_map(|(_, octets)| Record::decode(octets).ok()).collect();
        let realm = Realm::of_records(self.realm(), &records);
        Ok(realm.map_err(|refusal| Failure::new(format!("the node's state is damaged: {refusal}")))?)
    }

    /// The names of members of which the node's state knows; `None` if it has none, or cannot be read since the role runs.
    pub fn known_names(&self, source: &Source) -> Option<BTreeSet<Name>> {
        let records = store::peek(&source.resolve(self.state.get_ref()), RECORDS).ok()??;
        let names = records.iter().filter_map(|(_, octets)| match Record::decode(octets) {
            Ok(Record::Membership(membership)) => Some(membership.object().grants.names.clone()),
            _ => None,
        });
        let names: BTreeSet<Name> = names.flatten().collect();
        (!names.is_empty()).then_some(names)
    }

    /// What is wrong with the section itself.
    pub fn faults(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        let servers = self.path_servers.get_ref();
        if servers.is_empty() || servers.len() > MAX_SERVERS {
            let message = format!("{} path servers, expected 1 to {MAX_SERVERS}", servers.len());
            faults.push(Fault::at(self.path_servers.span(), message));
        }
        faults.extend(range(&self.mtu, MIN_MTU.into(), u64::from(u16::MAX), "octets"));
        faults.extend(range(&self.lifetime_minutes, 1, MAX_LIFETIME.into(), "minutes"));
        faults.extend(range(&self.max_staleness_secs, 1, MAX_LIST, "seconds"));
        faults.extend(range(&self.id_epoch_secs, MIN_EPOCH.into(), u64::from(MAX_EPOCH) / 2, "seconds"));
        if self.entrust && self.consent.is_none() {
            let message =
                "`entrust` without `consent`, expected the consent server that gets the keys of this node's tags";
            faults.push(Fault { span: None, message: message.to_owned(), help: None });
        }
        if self.neighbour.len() > MAX_LINKS {
            let message = format!("{} neighbours, expected at most {MAX_LINKS}", self.neighbour.len());
            faults.push(Fault { span: None, message, help: None });
        }
        if self.tags_offered.len() > MAX_TAGS {
            let message = format!("{} tags, expected at most {MAX_TAGS}", self.tags_offered.len());
            faults.push(Fault { span: None, message, help: None });
        }
        for (at, entry) in self.tags_offered.iter().enumerate() {
            let tag = entry.tag.get_ref().0;
            if self.tags_offered[..at].iter().any(|other| other.tag.get_ref().0 == tag) {
                faults.push(Fault::at(entry.tag.span(), "the tag is offered already, expected another one"));
            }
            if let Some(meaning) = &entry.meaning
                && (meaning.get_ref().len() > MAX_MEANING
                    || !meaning.get_ref().bytes().all(|octet| (0x20..0x7f).contains(&octet)))
            {
                let message = format!("not a meaning, expected at most {MAX_MEANING} printable ASCII characters");
                faults.push(Fault::at(meaning.span(), message));
            }
        }
        for (at, section) in self.neighbour.iter().enumerate() {
            let (span, section) = (section.span(), section.get_ref());
            let before = self.neighbour[..at].iter().map(Spanned::get_ref);
            for other in before {
                if other.node.get_ref().0 == section.node.get_ref().0 {
                    faults.push(Fault::at(section.node.span(), "a neighbour already, expected one link to each node"));
                }
                if other.interface.get_ref() == section.interface.get_ref() {
                    faults.push(Fault::at(section.interface.span(), "another link has this number, expected its own"));
                }
            }
            if *section.interface.get_ref() == 0 {
                faults.push(Fault::at(section.interface.span(), "0 is no link's number, expected 1 to 65535"));
            }
            if self.open.is_some() && *section.interface.get_ref() >= FIRST_OPEN {
                let message = "the links of an open node to its members have numbers from 32768 on, expected one below";
                faults.push(Fault::at(section.interface.span(), message));
            }
            if let Some(local) = &section.local
                && local.get_ref().0.port() > 0
                && section.endpoint().is_none()
            {
                faults.push(endpoint_fault(local));
            }
            if self.ids.is_none() {
                let message = "a neighbour, but no `ids`, expected the file of the seed of this node's IDs";
                faults.push(Fault::at(span, message).help("`wayleave keys node ids.key --kind ids` creates one"));
            }
        }
        if let Some(open) = &self.open {
            if open.endpoint().is_none() {
                faults.push(endpoint_fault(&open.local));
            }
            if self.ids.is_none() {
                let message = "an open node without `ids`, expected the file of the seed of this node's IDs";
                let help = "`wayleave keys node ids.key --kind ids` creates one";
                faults.push(Fault::at(open.local.span(), message).help(help));
            }
            if let Some(admit) = open.admit.as_ref().filter(|admit| admit.get_ref().is_empty()) {
                let message = "an open node that admits nobody, expected names or keys of members";
                let help = "without `admit` every member is served; without [overlay.open] none is";
                faults.push(Fault::at(admit.span(), message).help(help));
            }
        }
        if let Some(tls) = self.tls.as_ref().filter(|tls| tls.endpoint().is_none()) {
            faults.push(endpoint_fault(&tls.local));
        }
        faults
    }

    /// What is wrong with it for a node that forwards nothing.
    pub fn end_faults(&self, role: &str) -> Option<Fault> {
        let open = self.open.iter().map(|open| (&open.local, "open"));
        let (local, section) = open.chain(self.tls.iter().map(|tls| (&tls.local, "tls"))).next()?;
        Some(Fault::at(local.span(), format!("a {role} forwards nothing, expected no [overlay.{section}]")))
    }

    /// What is wrong with the files that it names.
    pub fn file_faults(&self, source: &Source) -> Vec<FileFault> {
        let mut faults = Vec::new();
        let mut check = |named: &Spanned<PathBuf>, loaded: Result<(), Failure>| {
            let path = source.resolve(named.get_ref());
            let Err(failure) = loaded else { return };
            let fault = Fault::of(named.span(), &failure);
            faults.push(if path.exists() { FileFault::Unusable(fault) } else { FileFault::Missing(fault) });
        };
        let seeds = [
            (Some(&self.identity), KeyKind::Identity),
            (self.noise.as_ref(), KeyKind::Noise),
            (self.ids.as_ref(), KeyKind::Ids),
        ];
        for (named, kind) in seeds {
            if let Some(named) = named {
                check(named, node::load(kind, &source.resolve(named.get_ref())).map(drop));
            }
        }
        if let Some(named) = &self.tags {
            check(named, TagKeyFile::load(&source.resolve(named.get_ref())).map(drop));
        }
        check(&self.membership, membership::load(&source.resolve(self.membership.get_ref())).map(drop));
        if faults.is_empty()
            && let Err(failures) = self.load(source)
        {
            let unusable = |failure: &Failure| FileFault::Unusable(Fault::of(self.membership.span(), failure));
            faults.extend(failures.0.iter().map(unusable));
        }
        faults.extend(state_fault(&self.state, source));
        faults
    }

    /// Reads the files that it names.
    ///
    /// # Errors
    /// What is wrong with a file, or with all of them together.
    pub fn load(&self, source: &Source) -> Outcome<Settings> {
        let path = |named: &Spanned<PathBuf>| source.resolve(named.get_ref());
        let at = |named: &Spanned<PathBuf>, failure: Failure| source.failure(Fault::of(named.span(), &failure));
        let seed = |named: &Spanned<PathBuf>, kind| node::load(kind, &path(named)).map_err(|error| at(named, error));
        let identity = seed(&self.identity, KeyKind::Identity)?;
        let noise = self.noise.as_ref().map(|named| seed(named, KeyKind::Noise)).transpose()?;
        let ids = self.ids.as_ref().map(|named| seed(named, KeyKind::Ids)).transpose()?;
        let membership = membership::load(&path(&self.membership)).map_err(|error| at(&self.membership, error))?;
        membership::check(&membership, self.realm(), node::identity_of(&identity))
            .map_err(|error| at(&self.membership, error))?;
        if let Some(noise) = &noise
            && node::noise_of(noise) != membership.object().noise
        {
            let failure = Failure::new("the Noise key is not the one of the membership")
                .help("use the file that `wayleave join` wrote together with the membership");
            return Err(at(&self.membership, failure).into());
        }
        // One key, one use.
        let seeds: Vec<&Seed> = [Some(&identity), noise.as_ref(), ids.as_ref()].into_iter().flatten().collect();
        for (index, seed) in seeds.iter().enumerate() {
            if seeds[..index].contains(seed) {
                let failure = Failure::new("two of the node's key files have the same key")
                    .help("each key has one use: create another file with `wayleave keys node`");
                return Err(at(&self.identity, failure).into());
            }
        }
        let tags = match &self.tags {
            Some(named) => TagKeyFile::load(&path(named)).map_err(|error| at(named, error))?.masters(),
            None => Vec::new(),
        };
        let (state, membership_file) = (path(&self.state), path(&self.membership));
        Ok(Settings { identity, membership, noise, ids, tags, state, membership_file, section: self.clone() })
    }
}

/// The values in which nodes' sections differ.
pub struct OverlayValues {
    pub realm: String,
    pub state: String,
    /// Identity and address of each.
    pub path_servers: Vec<(String, String)>,
    /// Identity and address of the realm's operator.
    pub operator: Option<(String, String)>,
    pub has_noise: bool,
    pub has_ids: bool,
    pub has_tags: bool,
    /// Identity and address of who consents for the node.
    pub consent: Option<(String, String)>,
    /// What it is for: `transit` or `deliver`, with its tag.
    pub offers: Option<(&'static str, &'static str)>,
    /// Where links begin, for the example of a neighbour.
    pub local: Option<String>,
}

impl OverlayValues {
    /// Those of a template, for a node without neighbours.
    pub fn example(state: &str) -> Self {
        Self {
            realm: super::EXAMPLE_REALM.to_owned(),
            state: state.to_owned(),
            path_servers: vec![(super::EXAMPLE_NODE.to_owned(), "192.0.2.7:7100".to_owned())],
            operator: None,
            has_noise: false,
            has_ids: false,
            has_tags: false,
            consent: None,
            offers: None,
            local: None,
        }
    }
}

/// The line that names the realm's operator.
pub fn operator_line(operator: Option<&(String, String)>) -> String {
    let line = match operator {
        Some((identity, address)) => format!("operator = {{ identity = \"{identity}\", address = \"{address}\" }}\n"),
        None => "#operator = { identity = \"node:ed25519:64 hexadecimal digits\", address = \"192.0.2.8:7000\" }\n"
            .to_owned(),
    };
    format!("# The realm's operator, who is asked for the next membership once half of this one is over.\n{line}")
}

/// The line on lists of removed nodes.
pub const STALENESS_LINE: &str = "# By how many seconds the realm's next list of removed nodes may be overdue: then a consent server gives no consent any more, and\n\
     # other roles say so.\n\
     #max_staleness_secs = 86400\n";

/// The section `[overlay]` with these values.
pub fn template_with(values: &OverlayValues) -> String {
    let entry =
        |(identity, address): &(String, String)| format!("{{ identity = \"{identity}\", address = \"{address}\" }}");
    let servers: Vec<String> = values.path_servers.iter().map(entry).collect();
    let file = |is_there: bool, what: &str, line: &str| match is_there {
        true => format!("# {what}\n{line}\n"),
        false => String::new(),
    };
    let mut text = format!(
        "# The node's part in a realm: keys and membership, as `wayleave join TOKEN` writes them.\n\
         [overlay]\n\
         realm = \"{}\"\n\
         membership = \"membership\"\n\
         identity = \"identity.key\"\n",
        values.realm
    );
    text += &file(values.has_noise, "The static key with which gateways seal.", "noise = \"noise.key\"");
    text += &file(values.has_ids, "The seed of the node's IDs, of which each epoch has its own.", "ids = \"ids.key\"");
    text +=
        &file(values.has_tags, "The keys of the node's tags; its consent server has them too.", "tags = \"tags.key\"");
    text += &format!("state = \"{}\"\npath_servers = [{}]\n", values.state, servers.join(", "));
    text += &operator_line(values.operator.as_ref());
    text += STALENESS_LINE;
    if values.has_ids {
        text += "# Who consents for this node.\n";
        text += &match &values.consent {
            Some(consent) => format!("consent = {}\n", entry(consent)),
            None => "#consent = { identity = \"node:ed25519:64 hexadecimal digits\", address = \"192.0.2.9:7200\" }\n"
                .to_owned(),
        };
        text += "# Whether that server gets the keys of this node's tags by a link from here, and not by a file.\n#entrust = true\n";
        if let Some((usage, tag)) = values.offers {
            text += "# The tags that the node offers, and what for: transit, deliver or service.\n";
            text += &format!("tags_offered = [{{ tag = \"{tag}\", use = \"{usage}\" }}]\n");
        }
        text += "# Octets of the longest packet that the node takes.\n#mtu = 1400\n\
                 # How long an advert lasts, and an epoch of the node's IDs.\n#lifetime_minutes = 5\n#id_epoch_secs = 86400\n";
        let local = values.local.as_deref().unwrap_or("192.0.2.1:49252");
        if values.offers.is_some_and(|(usage, _)| usage == "transit") {
            text += "# Members that are not listed below are served as customers, if they have this node as their provider.\n\
                     #[overlay.open]\n\
                     #local = \"192.0.2.1:49251\"\n\
                     #endpoint = \"node.example.net:49251\"\n\
                     #admit = [\"a\", \"c\"]\n\
                     # Where neighbours whose UDP does not pass reach this node by TCP.\n\
                     #[overlay.tls]\n\
                     #local = \"0.0.0.0:443\"\n\
                     #endpoint = \"node.example.net:443\"\n";
        }
        text += &format!(
            "# One for each neighbour, by its name or key, and what it is to this node: provider, peer or customer. Both ends\n\
             # list the link, unless the provider is open. Addresses, IDs and keys come from the neighbour's advert.\n\
             #[[overlay.neighbour]]\n\
             #node = \"b\"\n\
             #relationship = \"peer\"\n\
             #public = true\n\
             #interface = 1\n\
             # Where the neighbour's packets arrive; without it the neighbour cannot begin, as behind address translation.\n\
             #local = \"{local}\"\n\
             # If the neighbour reaches it by another address, or a name:\n\
             #endpoint = \"198.51.100.1:49252\"\n"
        );
    }
    text
}
