//! The addresses, ports and namespaces of an exchange.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use serde::Deserialize;
use wayleave_core::Asn;

use crate::netns::{Network, NetworkError, NetworkNamespace, Rung};
use crate::routers::{BIRD, FRR, GOBGP, OPENBGPD, RouterPackage};

/// Router software.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Software {
    Bird,
    Frr,
    /// A member's of an exchange alone.
    Gobgp,
    /// A member's of an exchange alone, and with root.
    OpenBgpd,
}

impl Software {
    /// As descriptions have it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Bird => "bird",
            Self::Frr => "frr",
            Self::Gobgp => "gobgp",
            Self::OpenBgpd => "openbgpd",
        }
    }

    /// How to find or fetch it.
    #[must_use]
    pub fn package(self) -> &'static RouterPackage {
        match self {
            Self::Bird => &BIRD,
            Self::Frr => &FRR,
            Self::Gobgp => &GOBGP,
            Self::OpenBgpd => &OPENBGPD,
        }
    }
}

/// Where a `wayleave` process runs.
#[derive(Debug, Clone)]
pub struct ProcessLayout {
    pub namespace: NetworkNamespace,
    /// Its status page, as seen from `place`.
    pub status: SocketAddr,
}

/// One member's addresses.
#[derive(Debug, Clone)]
pub struct MemberLayout {
    pub name: String,
    pub asn: Asn,
    /// Its router's software, where routers are real.
    pub software: Software,
    /// Its router's address on the LAN; also BGP identifier and next hop.
    pub router: Ipv4Addr,
    /// Where the router runs.
    pub router_namespace: NetworkNamespace,
    /// Where the proxy listens for the router.
    pub bgp: SocketAddr,
    pub proxy: ProcessLayout,
}

impl MemberLayout {
    /// Its router's IPv6 address on the LAN, the next hop of its IPv6 routes.
    #[must_use]
    pub fn router6(&self) -> Ipv6Addr {
        Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, u16::from(self.host()))
    }

    /// The proxy's BGP identifier: it must differ from the router's.
    #[must_use]
    pub fn proxy_id(&self) -> Ipv4Addr {
        lan(100 + self.host())
    }

    fn host(&self) -> u8 {
        self.router.octets()[3]
    }
}

/// One party's addresses.
#[derive(Debug, Clone)]
pub struct PartyLayout {
    pub number: u8,
    /// Where members connect.
    pub listen: SocketAddr,
    pub process: ProcessLayout,
}

/// All namespaces and addresses.
#[derive(Debug)]
pub struct Layout {
    pub rung: Rung,
    /// The namespaces' network, where there is one and it is this exchange's own.
    pub network: Option<Network>,
    /// Folder for configurations, keys, state and logs.
    pub state: PathBuf,
    /// Party 1 and party 2.
    pub parties: [PartyLayout; 2],
    /// Where party 1 listens for party 2.
    pub link: SocketAddr,
    pub members: Vec<MemberLayout>,
}

impl Layout {
    /// Lays an exchange with these members out in a network: each party, router and proxy in a namespace of its own.
    pub fn in_network(
        rung: Rung,
        network: &Network,
        members: impl Iterator<Item = (String, Asn, Software)>,
    ) -> Result<Self, NetworkError> {
        let members = members.zip(1..).map(|(member, n)| real_member(network, member, n));
        let members = members.collect::<Result<_, _>>()?;
        let parties = [real_party(network, 1)?, real_party(network, 2)?];
        // The link between the parties carries nothing but their computation.
        network.join("between", ("party1", "198.51.100.1/30"), ("party2", "198.51.100.2/30"))?;
        let link = SocketAddr::from(([198, 51, 100, 1], 7000));
        Ok(Self { rung, state: network.state().to_path_buf(), network: None, parties, link, members })
    }

    /// Each member's next hop, by AS.
    #[must_use]
    pub fn next_hops(&self) -> BTreeMap<Asn, Ipv4Addr> {
        self.members.iter().map(|member| (member.asn, member.router)).collect()
    }
}

pub(crate) fn lan(host: u8) -> Ipv4Addr {
    Ipv4Addr::new(192, 0, 2, host)
}

fn lan_addresses(host: u8) -> [String; 2] {
    [format!("192.0.2.{host}/24"), format!("2001:db8::{host}/64")]
}

/// Status pages in different namespaces can have the same address.
fn own_status() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 8480))
}

/// The namespace of a network's proxy; that of its router has the network's name.
#[must_use]
pub fn proxy_namespace(network: &str) -> String {
    format!("{network}-proxy")
}

/// Router at host `n` of the LAN, proxy at host `100 + n`.
fn real_member(
    network: &Network,
    (name, asn, software): (String, Asn, Software),
    n: u8,
) -> Result<MemberLayout, NetworkError> {
    let router_namespace = network.attach(&name, &lan_addresses(n))?;
    let namespace = network.attach(&proxy_namespace(&name), &lan_addresses(100 + n))?;
    Ok(MemberLayout {
        name,
        asn,
        software,
        router: lan(n),
        router_namespace,
        bgp: (lan(100 + n), 179).into(),
        proxy: ProcessLayout { namespace, status: own_status() },
    })
}

fn real_party(network: &Network, number: u8) -> Result<PartyLayout, NetworkError> {
    let host = 250 + number;
    let namespace = network.attach(&format!("party{number}"), &lan_addresses(host))?;
    Ok(PartyLayout {
        number,
        listen: (lan(host), 7001).into(),
        process: ProcessLayout { namespace, status: own_status() },
    })
}
