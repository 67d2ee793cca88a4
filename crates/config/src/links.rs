//! Who is at the other end of each link of a node, by its configuration and by what the realm says.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use wayleave_control::advert::{Advert, Endpoint, Relationship};
use wayleave_control::node::{Member, Realm};
use wayleave_control::realm::{Membership, Roles};
use wayleave_core::IdentityKey;
use wayleave_crypto::dh::DhPublic;
use wayleave_crypto::kdf;
use wayleave_crypto::secret::Seed;
use wayleave_dataplane::link::{Config, Links, Peer};
use wayleave_packet::icing::header::NodeId;

use crate::failure::Outcome;
use crate::key_files::node::fresh;
use crate::overlay::{NeighbourSection, NodeRef, OpenSection, OverlaySection, Settings};

/// The first number of a link to a member that an open node does not list.
pub const FIRST_OPEN: u16 = 0x8000;
/// Members that an open node serves.
pub const MAX_OPEN: usize = 4_096;
/// Where a link without `local` begins sessions: at any address and port.
pub const ANYWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// The same as [`ANYWHERE`] for IPv6.
const ANYWHERE_V6: SocketAddr = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0);
/// Octets of the largest datagram that is worth a try: a jumbo frame's.
const JUMBO: u16 = 9_000;

/// A socket of links: what carries their datagrams, and where.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkSocket {
    Udp(SocketAddr),
    /// Over TLS on TCP: connections that this node opens, and those that it takes at an address.
    Tls(Option<SocketAddr>),
}

/// What is known of the other end of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PeerState {
    /// No member has the configured name or key.
    Unknown,
    /// It is a member, and no advert of it counts now.
    NoAdvert,
    /// It does not list this node, or as something else than what it is to this node: one of two operators erred.
    Disagrees,
    Known,
}

impl PeerState {
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::Unknown => "no member of this name or key",
            Self::NoAdvert => "has no advert",
            Self::Disagrees => "does not list this link, or with another relationship",
            Self::Known => "known",
        }
    }
}

/// The other end of a link.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LinkPeer {
    /// The link's number at this node: the configured one, or one of [`FIRST_OPEN`] and above.
    pub link: u16,
    /// As the configuration names it; a member that came by `open` by its first name.
    pub node: NodeRef,
    /// Of a member.
    pub identity: Option<IdentityKey>,
    /// With which it proves itself; none if it is [`PeerState::Unknown`] or [`PeerState::Disagrees`].
    pub noise: Option<DhPublic>,
    /// What it is to this node.
    pub relationship: Relationship,
    /// What this node is to it, by its advert; none if that does not list this node.
    pub claimed: Option<Relationship>,
    /// Where this node receives by UDP what it sends; the unspecified address with port 0 stands for any.
    pub local: SocketAddr,
    /// Where sessions to it begin, as its advert says; none if it cannot be reached, or is not [`PeerState::Known`].
    pub endpoint: Option<Endpoint>,
    /// The same over TLS on TCP.
    pub tls: Option<Endpoint>,
    /// Those that it may use, ascending by epoch; none if it is not [`PeerState::Known`].
    pub ids: Vec<NodeId>,
    /// It is served since this node is open, and is not configured.
    pub is_open: bool,
    /// It is an open forwarder, which serves members that it does not list.
    pub serves: bool,
    pub state: PeerState,
}

impl LinkPeer {
    /// Why it is not [`PeerState::Known`], and what to do.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        let node = &self.node;
        match (self.state, self.claimed) {
            (PeerState::Known, _) => None,
            (PeerState::Unknown, _) => Some(format!("no member that is known here has the name or key {node}")),
            (PeerState::NoAdvert, _) => {
                Some(format!("no advert of {node} counts now: it has not run lately, or no path server has the advert"))
            }
            (PeerState::Disagrees, None) if self.serves => Some(format!(
                "{node} is open, and does not list this node: it is a provider to those whom it does not list, and by this configuration a \
                 {} of this node: write `relationship = \"provider\"`, or its operator adds this node (`wayleave link add`)",
                relationship_name(self.relationship)
            )),
            (PeerState::Disagrees, None) => Some(format!(
                "{node} does not list this node as a neighbour: its operator adds it (`wayleave link add`)"
            )),
            (PeerState::Disagrees, Some(claimed)) => Some(format!(
                "by this configuration {node} is a {} of this node, and by that of {node} this node is a {} of {node}: one of the two \
                 operators corrects `relationship` (`peer` at both ends, or `provider` at one and `customer` at the other)",
                relationship_name(self.relationship),
                relationship_name(claimed)
            )),
        }
    }
}

/// A relationship as configurations write it.
#[must_use]
pub fn relationship_name(relationship: Relationship) -> &'static str {
    match relationship {
        Relationship::Provider => "provider",
        Relationship::Peer => "peer",
        Relationship::Customer => "customer",
    }
}

/// What a resolver has said of an endpoint.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Resolution {
    pub addresses: Vec<SocketAddr>,
    /// Why there are none, or why there are none since.
    pub fault: Option<String>,
}

/// The numbers of links to members that an open node serves and does not list. A member keeps its number for as long as it is a member,
/// unless all are given away and it does not name this node any more.
#[derive(Debug, Default)]
pub struct OpenLinks {
    numbers: BTreeMap<IdentityKey, u16>,
    used: BTreeSet<u16>,
    next: usize,
    problem: Option<String>,
}

impl OpenLinks {
    /// What an operator has to see to.
    #[must_use]
    pub fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    fn retain(&mut self, is_kept: impl Fn(&IdentityKey) -> bool) {
        let used = &mut self.used;
        self.numbers.retain(|member, number| is_kept(member) || !used.remove(number));
    }

    fn number(&mut self, member: IdentityKey) -> Option<u16> {
        if let Some(known) = self.numbers.get(&member) {
            return Some(*known);
        }
        // One after the other, so that a number that became free is not given to another at once.
        let mut numbers = (0..MAX_OPEN).map(|number| FIRST_OPEN + ((self.next + number) % MAX_OPEN) as u16);
        let number = numbers.find(|number| !self.used.contains(number))?;
        self.next = usize::from(number - FIRST_OPEN) + 1;
        self.used.insert(number);
        self.numbers.insert(member, number);
        Some(number)
    }
}

/// The other ends of all links of the node `own`: those that the configuration lists, in its order, and those of members that the node
/// serves since it is open.
#[must_use]
pub fn peers(own: IdentityKey, section: &OverlaySection, realm: &Realm, numbers: &mut OpenLinks) -> Vec<LinkPeer> {
    let listed = section.neighbour.iter().map(toml::Spanned::get_ref);
    let mut peers: Vec<LinkPeer> = listed.map(|neighbour| configured(own, neighbour, realm)).collect();
    numbers.retain(|member| realm.nodes.contains_key(member));
    numbers.problem = None;
    let Some(open) = &section.open else { return peers };
    let names_us = |member: &Member| {
        let link = member.advert.as_ref().and_then(|advert| advert.link(&own));
        link.is_some_and(|link| link.relationship == Relationship::Provider)
    };
    let is_listed = |member: &IdentityKey| peers.iter().any(|peer| peer.identity == Some(*member));
    let served: BTreeMap<IdentityKey, &Arc<Member>> = realm
        .nodes
        .iter()
        .filter(|(identity, member)| {
            **identity != own && names_us(member) && admits(open, &member.membership) && !is_listed(identity)
        })
        .map(|(identity, member)| (*identity, member))
        .collect();
    let new = served.keys().filter(|member| !numbers.numbers.contains_key(member)).count();
    if numbers.used.len() + new > MAX_OPEN {
        numbers.retain(|member| served.contains_key(member));
    }
    for (identity, member) in &served {
        let Some(link) = numbers.number(*identity) else { continue };
        let name = member.membership.grants.names.first();
        peers.push(LinkPeer {
            link,
            node: name.map_or(NodeRef::Key(*identity), |name| NodeRef::Name(name.clone())),
            identity: Some(*identity),
            noise: Some(member.membership.noise),
            relationship: Relationship::Customer,
            claimed: Some(Relationship::Provider),
            local: open.local.get_ref().0,
            endpoint: member.advert.as_ref().and_then(|advert| advert.link(&own)?.endpoint.clone()),
            tls: member.advert.as_ref().and_then(Advert::tls),
            ids: member.ids.iter().map(|key| key.node).collect(),
            is_open: true,
            serves: false,
            state: PeerState::Known,
        });
    }
    if served.len() > MAX_OPEN {
        numbers.problem = Some(format!(
            "{} members have this open node as their provider, and it serves {MAX_OPEN} of them: open another \
             forwarder, or name those to serve in `admit`",
            served.len()
        ));
    }
    peers
}

/// A machine without neighbours yet, for the node of `settings`.
///
/// # Errors
/// If the system gives no randomness.
pub fn machine(settings: &Settings) -> Outcome<Links> {
    Ok(Links::new(Config {
        identity: settings.own(),
        realm: settings.section.realm().0,
        noise: static_key(settings),
        seed: Seed::new(*fresh()?),
    }))
}

/// The static key of the node's membership: a gateway's lies in a file, another node's follows from its identity, as `join` made it.
fn static_key(settings: &Settings) -> Seed {
    let derived = || kdf::derive("wayleave/node/join-noise/v1", settings.identity.expose(), b"");
    settings.noise.clone().unwrap_or_else(derived)
}

/// Where the node receives what its neighbours send, each address once. A link that has none is at one of both families, as far as the
/// machine has them. The last is for TLS.
pub fn sockets(section: &OverlaySection) -> Vec<LinkSocket> {
    let mut all = Vec::new();
    let mut add = |local: SocketAddr| {
        if !all.contains(&local) {
            all.push(local);
        }
    };
    for neighbour in &section.neighbour {
        match &neighbour.get_ref().local {
            Some(local) => add(local.get_ref().0),
            None => {
                add(ANYWHERE);
                if has_ipv6() {
                    add(ANYWHERE_V6);
                }
            }
        }
    }
    section.open.iter().for_each(|open| add(open.local.get_ref().0));
    let tls = section.tls.as_ref().map(|tls| tls.local.get_ref().0);
    let has_links = !all.is_empty();
    let udp = all.into_iter().map(LinkSocket::Udp);
    udp.chain(has_links.then_some(LinkSocket::Tls(tls))).collect()
}

/// Whether the machine has IPv6. Once it had, it has: a passing want of ports or descriptors closes no socket.
fn has_ipv6() -> bool {
    static HAD: AtomicBool = AtomicBool::new(false);
    if !HAD.load(Ordering::Relaxed) {
        HAD.store(UdpSocket::bind(ANYWHERE_V6).is_ok(), Ordering::Relaxed);
    }
    HAD.load(Ordering::Relaxed)
}

/// The neighbours that can prove themselves, with `sockets` as [`sockets`] has them. `largest`: octets of the longest packet that is
/// worth a try. `resolve` gives the addresses of an endpoint that are known, those of the family of the second argument first.
pub fn session_peers(
    peers: Vec<LinkPeer>,
    sockets: &[LinkSocket],
    largest: u16,
    resolve: impl Fn(&Endpoint, SocketAddr) -> Vec<SocketAddr>,
) -> Vec<Peer> {
    let peer = |peer: LinkPeer| {
        let (identity, noise) = peer.identity.zip(peer.noise)?;
        let is_ours = |at: SocketAddr| at == peer.local || peer.local == ANYWHERE && at == ANYWHERE_V6;
        let udp = sockets.iter().enumerate().filter_map(|(number, socket)| match socket {
            LinkSocket::Udp(at) if is_ours(*at) => Some((number, *at)),
            _ => None,
        });
        let ours: Vec<(usize, SocketAddr)> = udp.collect();
        let tls = sockets.iter().position(|socket| matches!(socket, LinkSocket::Tls(_)));
        let tls_endpoints = peer.tls.iter().flat_map(|endpoint| resolve(endpoint, peer.local)).collect();
        let resolved = peer.endpoint.iter().flat_map(|endpoint| resolve(endpoint, peer.local));
        let by = |there: SocketAddr| {
            let (number, _) = ours.iter().find(|(_, at)| at.is_ipv4() == there.is_ipv4())?;
            Some((*number, there))
        };
        let endpoints = resolved.filter_map(by).collect();
        let sockets = ours.iter().map(|(number, _)| *number).collect();
        let (link, largest) = (peer.link, largest.min(JUMBO));
        Some(Peer { link, identity, noise, sockets, endpoints, tls, tls_endpoints, largest })
    };
    peers.into_iter().filter_map(peer).collect()
}

fn configured(own: IdentityKey, section: &NeighbourSection, realm: &Realm) -> LinkPeer {
    let node = &section.node.get_ref().0;
    let identity = match node {
        NodeRef::Key(identity) => Some(*identity),
        NodeRef::Name(name) => realm.names.get(name).copied(),
    };
    let member = identity.filter(|identity| *identity != own).and_then(|identity| realm.nodes.get(&identity));
    let relationship = section.relationship.relationship();
    let (state, endpoint) = match member.map(|member| (member, member.advert.as_ref())) {
        None => (PeerState::Unknown, None),
        Some((_, None)) => (PeerState::NoAdvert, None),
        Some((member, Some(advert))) => match stated(&own, relationship, &member.membership, advert) {
            Some(endpoint) => (PeerState::Known, endpoint.cloned()),
            None => (PeerState::Disagrees, None),
        },
    };
    let tls = member.filter(|_| state == PeerState::Known).and_then(|member| member.advert.as_ref()?.tls());
    let ids = member
        .filter(|_| state == PeerState::Known)
        .map_or_else(Vec::new, |member| member.ids.iter().map(|key| key.node).collect());
    let advert = member.and_then(|member| member.advert.as_ref());
    LinkPeer {
        link: *section.interface.get_ref(),
        node: node.clone(),
        identity: member.map(|member| member.membership.identity),
        noise: member.filter(|_| state != PeerState::Disagrees).map(|member| member.membership.noise),
        relationship,
        claimed: advert.and_then(|advert| advert.link(&own)).map(|link| link.relationship),
        local: section.local.as_ref().map_or(ANYWHERE, |local| local.get_ref().0),
        endpoint,
        tls,
        ids,
        is_open: false,
        serves: member.zip(advert).is_some_and(|(member, advert)| {
            advert.open.is_some() && member.membership.grants.roles.has(Roles::FORWARDER)
        }),
        state,
    }
}

/// Where the neighbour that is this to `own` receives, if it lists the link as `own` does, or is open and does not list it.
fn stated<'a>(
    own: &IdentityKey,
    relationship: Relationship,
    membership: &Membership,
    advert: &'a Advert,
) -> Option<Option<&'a Endpoint>> {
    match (advert.link(own), &advert.open) {
        (Some(link), _) => (link.relationship == relationship.reversed()).then_some(link.endpoint.as_ref()),
        (None, Some(open)) => {
            let serves = relationship == Relationship::Provider && membership.grants.roles.has(Roles::FORWARDER);
            serves.then_some(Some(open))
        }
        (None, None) => None,
    }
}

fn admits(open: &OpenSection, membership: &Membership) -> bool {
    let is_meant = |node: &NodeRef| match node {
        NodeRef::Name(name) => membership.grants.names.contains(name),
        NodeRef::Key(identity) => membership.identity == *identity,
    };
    open.admit.as_ref().is_none_or(|admit| admit.get_ref().iter().any(|node| is_meant(&node.0)))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    use wayleave_control::advert::{Extension, Link, TLS_EXTENSION};
    use wayleave_control::realm::{Grants, RealmKey};
    use wayleave_crypto::dh::DhSecret;
    use wayleave_crypto::secret::Seed;
    use wayleave_packet::icing::mint::{EpochKey, NodeSecret};

    const OWN: IdentityKey = IdentityKey([200; 32]);

    pub(crate) fn identity(number: u16) -> IdentityKey {
        let mut octets = [1; 32];
        octets[..2].copy_from_slice(&number.to_be_bytes());
        IdentityKey(octets)
    }

    fn noise(number: u16) -> DhPublic {
        DhSecret::from_seed(&Seed::new(identity(number).0)).public()
    }

    /// A forwarder `nNUMBER` that says this of its link to us, and whether it is open.
    pub(crate) fn member(number: u16, link: Option<(Relationship, Option<&str>)>, open: Option<&str>) -> Arc<Member> {
        let endpoint = |text: &str| text.parse().unwrap();
        let link = link.map(|(relationship, at)| Link {
            neighbour: OWN,
            relationship,
            public: true,
            interface: 9,
            endpoint: at.map(endpoint),
        });
        let secret = NodeSecret::derive(&Seed::new(identity(number).0), 1);
        let membership = Membership {
            realm: RealmKey([0; 32]),
            number: 1,
            identity: identity(number),
            noise: noise(number % 8),
            grants: Grants {
                roles: Roles::FORWARDER,
                names: vec![format!("n{number}").parse().unwrap()],
                prefixes: Vec::new(),
            },
            not_before: 1,
            not_after: 2,
            rolls: wayleave_control::realm::Rolls::default(),
        };
        let advert = Advert {
            realm: RealmKey([0; 32]),
            identity: identity(number),
            sequence: 1,
            issued: 1,
            lifetime: 1,
            mtu: 1_400,
            ids: Vec::new(),
            links: link.into_iter().collect(),
            tags: Vec::new(),
            consent: None,
            open: open.map(endpoint),
            extensions: Vec::new(),
        };
        let ids = vec![EpochKey { epoch: 1, not_before: 1, not_after: 2, node: secret.id() }];
        Arc::new(Member { membership, advert: Some(advert), ids })
    }

    pub(crate) fn realm(members: impl IntoIterator<Item = Arc<Member>>) -> Realm {
        let mut realm = Realm::default();
        for member in members {
            let identity = member.membership.identity;
            realm.names.insert(member.membership.grants.names[0].clone(), identity);
            realm.nodes.insert(identity, member);
        }
        realm
    }

    pub(crate) fn section(text: &str) -> OverlaySection {
        let head = format!(
            "realm = \"realm:ed25519:{0}\"\nmembership = \"m\"\nidentity = \"i\"\nstate = \"s\"\n\
             path_servers = [{{ identity = \"node:ed25519:{0}\", address = \"192.0.2.1:1\" }}]\n",
            "58".to_owned() + &"66".repeat(31)
        );
        toml::from_str(&format!("{head}{text}")).unwrap()
    }

    fn neighbour(node: &str, relationship: &str, rest: &str) -> String {
        format!("[[neighbour]]\nnode = \"{node}\"\nrelationship = \"{relationship}\"\ninterface = 1\n{rest}\n")
    }

    /// Where a session with the peer can begin from here.
    fn remote(peer: &LinkPeer) -> Option<SocketAddr> {
        let sockets = [peer.local, ANYWHERE_V6].map(LinkSocket::Udp);
        let literal = |endpoint: &Endpoint, _| endpoint.literal().into_iter().collect();
        let peers = session_peers(vec![peer.clone()], &sockets, 1_400, literal);
        peers.first()?.endpoints.first().map(|(_, address)| *address)
    }

    fn one(text: &str, member: Option<Arc<Member>>) -> LinkPeer {
        let peers = peers(OWN, &section(text), &realm(member), &mut OpenLinks::default());
        assert_eq!(peers.len(), 1);
        peers.into_iter().next().unwrap()
    }

    #[test]
    fn a_neighbour_is_what_its_advert_says_if_both_agree() {
        use Relationship::{Customer, Peer, Provider};
        let here = neighbour("n1", "provider", "local = \"192.0.2.9:7\"");
        let peer = one(&here, Some(member(1, Some((Customer, Some("192.0.2.1:5"))), None)));
        assert_eq!((peer.link, peer.identity, peer.noise), (1, Some(identity(1)), Some(noise(1))));
        assert_eq!((peer.relationship, peer.state, peer.is_open), (Provider, PeerState::Known, false));
        assert_eq!((peer.local.to_string(), remote(&peer)), ("192.0.2.9:7".into(), "192.0.2.1:5".parse().ok()));
        assert_eq!(peer.ids.len(), 1);
        // By name it is somebody else's to resolve; an address of the other family is not reached from here.
        for at in ["n.example.net:5", "[2001:db8::1]:5"] {
            let peer = one(&here, Some(member(1, Some((Customer, Some(at))), None)));
            assert_eq!((peer.endpoint.unwrap().as_str(), peer.state), (at, PeerState::Known));
            assert_eq!(remote(&one(&here, Some(member(1, Some((Customer, Some(at))), None)))), None);
        }
        // One that cannot be reached begins the session itself.
        let peer = one(&here, Some(member(1, Some((Customer, None)), None)));
        assert_eq!((peer.state, peer.endpoint, peer.ids.len()), (PeerState::Known, None, 1));
        // Without an address of its own, this node reaches both families.
        let peer = one(&neighbour("n1", "peer", ""), Some(member(1, Some((Peer, Some("[2001:db8::1]:5"))), None)));
        assert_eq!((peer.local.to_string(), remote(&peer).is_some()), ("0.0.0.0:0".into(), true));
        for (theirs, why) in [
            (
                Some((Peer, None)),
                "by this configuration n1 is a provider of this node, and by that of n1 this node is a peer of n1",
            ),
            (None, "n1 does not list this node as a neighbour"),
        ] {
            let peer = one(&here, Some(member(1, theirs, None)));
            assert!(peer.fault().is_some_and(|fault| fault.starts_with(why)), "{:?}", peer.fault());
            assert_eq!((peer.state, peer.noise, peer.endpoint, peer.ids.len()), (PeerState::Disagrees, None, None, 0));
        }
        let mut gone = Member::clone(&member(1, None, None));
        gone.advert = None;
        let peer = one(&here, Some(Arc::new(gone)));
        assert_eq!((peer.state, peer.noise, peer.ids.len()), (PeerState::NoAdvert, Some(noise(1)), 0));
        let peer = one(&here, None);
        assert_eq!((peer.state, peer.identity, peer.noise), (PeerState::Unknown, None, None));
    }

    #[test]
    fn a_provider_that_is_open_needs_not_list_us() {
        let open = || member(1, None, Some("open.example.net:5"));
        let peer = one(&neighbour("n1", "provider", ""), Some(open()));
        assert_eq!((peer.state, peer.endpoint), (PeerState::Known, "open.example.net:5".parse().ok()));
        for relationship in ["peer", "customer"] {
            let peer = one(&neighbour("n1", relationship, ""), Some(open()));
            assert_eq!(peer.state, PeerState::Disagrees);
            let fault = peer.fault().expect("it is not served");
            assert!(fault.starts_with("n1 is open") && fault.contains("`relationship = \"provider\"`"), "{fault}");
        }
        let mut no_forwarder = Member::clone(&open());
        no_forwarder.membership.grants.roles = Roles::GATEWAY;
        let peer = one(&neighbour("n1", "provider", ""), Some(Arc::new(no_forwarder)));
        assert_eq!(peer.state, PeerState::Disagrees);
        assert!(peer.fault().is_some_and(|fault| fault.starts_with("n1 does not list this node")));
        // What it says of the link itself counts.
        let listed = member(1, Some((Relationship::Customer, Some("192.0.2.1:6"))), Some("192.0.2.1:5"));
        let peer = one(&neighbour("n1", "provider", ""), Some(listed));
        assert_eq!(peer.endpoint, "192.0.2.1:6".parse().ok());
    }

    #[test]
    fn a_neighbour_that_can_be_reached_over_tls_is_by_the_socket_for_that() {
        let mut known = Member::clone(&member(1, Some((Relationship::Customer, None)), None));
        let advert = known.advert.as_mut().unwrap();
        advert.extensions = vec![Extension { kind: TLS_EXTENSION, value: b"192.0.2.1:443".to_vec() }];
        let section = section(&neighbour("n1", "provider", ""));
        let sockets = sockets(&section);
        assert_eq!(sockets.last(), Some(&LinkSocket::Tls(None)));
        let peers = peers(OWN, &section, &realm(Some(Arc::new(known))), &mut OpenLinks::default());
        let literal = |endpoint: &Endpoint, _| endpoint.literal().into_iter().collect();
        let peer = &session_peers(peers, &sockets, 1_400, literal)[0];
        assert_eq!((peer.tls, &peer.endpoints), (Some(sockets.len() - 1), &Vec::new()));
        assert_eq!(peer.tls_endpoints, ["192.0.2.1:443".parse().unwrap()]);
        assert!(!peer.sockets.is_empty() && !peer.sockets.contains(&(sockets.len() - 1)));
    }

    const OPEN: &str = "[open]\nlocal = \"192.0.2.9:7\"\n";

    fn links(peers: &[LinkPeer]) -> BTreeMap<IdentityKey, u16> {
        peers.iter().map(|peer| (peer.identity.unwrap(), peer.link)).collect()
    }

    #[test]
    fn an_open_node_serves_members_that_have_it_as_their_provider_and_that_it_admits() {
        use Relationship::{Customer, Peer, Provider};
        let all = || {
            realm([
                member(1, Some((Provider, None)), None),
                member(2, Some((Peer, None)), None),
                member(3, Some((Customer, None)), None),
                member(4, None, None),
                member(5, Some((Provider, Some("192.0.2.5:5"))), None),
                member(6, Some((Provider, None)), None),
            ])
        };
        let served = |text: &str| peers(OWN, &section(text), &all(), &mut OpenLinks::default());
        assert!(served("").is_empty());
        let found = served(OPEN);
        assert_eq!(links(&found).into_keys().collect::<Vec<_>>(), [1, 5, 6].map(identity));
        let peer = &found[1];
        assert_eq!((peer.link, &peer.noise, peer.ids.len()), (FIRST_OPEN + 1, &Some(noise(5)), 1));
        assert_eq!((peer.relationship, peer.state, peer.is_open), (Customer, PeerState::Known, true));
        assert_eq!((peer.local.to_string(), remote(peer)), ("192.0.2.9:7".into(), "192.0.2.5:5".parse().ok()));
        assert_eq!(peer.node.to_string(), "n5");
        let key = identity(6).to_string();
        let admitted = served(&format!("{OPEN}admit = [\"n1\", \"n4\", \"{key}\"]\n"));
        assert_eq!(links(&admitted).into_keys().collect::<Vec<_>>(), [1, 6].map(identity));
        // One that is configured has its own link.
        let found = served(&format!("{OPEN}{}", neighbour("n5", "customer", "local = \"192.0.2.9:8\"")));
        let of_five: Vec<_> = found.iter().filter(|peer| peer.identity == Some(identity(5))).collect();
        assert_eq!((of_five.len(), of_five[0].link, of_five[0].is_open), (1, 1, false));
    }

    #[test]
    fn the_number_of_a_members_link_stays_and_is_no_other_members() {
        let (section, mut numbers) = (section(OPEN), OpenLinks::default());
        let provider = Some((Relationship::Provider, None));
        let mut of = |realm: &Realm| {
            let peers = peers(OWN, &section, realm, &mut numbers);
            (links(&peers), numbers.problem().map(str::to_owned))
        };
        let (first, _) = of(&realm([1, 2, 3].map(|number| member(number, provider, None))));
        // 2 goes to another provider for a while, 1 leaves the realm, and 4 and 5 come.
        let away = realm([member(2, None, None), member(3, provider, None), member(4, provider, None)]);
        let (second, _) = of(&away);
        assert_eq!(second[&identity(3)], first[&identity(3)]);
        assert!(!first.values().any(|number| *number == second[&identity(4)]));
        let (third, _) = of(&realm([2, 4].map(|number| member(number, provider, None))));
        assert_eq!([third[&identity(2)], third[&identity(4)]], [first[&identity(2)], second[&identity(4)]]);
        // As many as there are numbers, each its own, and who is there keeps its own.
        let (full, problem) = of(&realm((2..MAX_OPEN as u16 + 2).map(|number| member(number, provider, None))));
        assert_eq!((full.len(), problem), (MAX_OPEN, None));
        assert_eq!(full.values().collect::<BTreeSet<_>>().len(), MAX_OPEN);
        assert!(full.values().all(|number| (FIRST_OPEN..FIRST_OPEN + MAX_OPEN as u16).contains(number)));
        assert_eq!(full[&identity(2)], third[&identity(2)]);
        let (more, problem) = of(&realm((1..MAX_OPEN as u16 + 2).map(|number| member(number, provider, None))));
        assert_eq!(more, full, "who came first stays");
        assert!(problem.unwrap().starts_with("4097 members have this open node as their provider"));
        // Who names another provider makes room.
        let one_left = (1..MAX_OPEN as u16 + 2).map(|number| member(number, provider.filter(|_| number != 7), None));
        let (last, problem) = of(&realm(one_left));
        assert_eq!((last.len(), last[&identity(1)], problem), (MAX_OPEN, full[&identity(7)], None));
    }
}
