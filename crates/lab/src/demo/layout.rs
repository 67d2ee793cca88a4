//! Who is where: addresses, ports and places of the demonstration on each rung.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use wayleave_core::Asn;

use crate::netns::{Network, NetworkError, Place, Rung};
use crate::ports::free_address;

/// What software a member's router is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Software {
    /// BIRD 2.
    Bird,
    /// FRR.
    Frr,
}

/// The cast, in the order of slots. The last has a customer whose real table it passes on.
pub const MEMBERS: [(&str, u32, Software); 6] = [
    ("alpha", 64497, Software::Bird),
    ("bravo", 64498, Software::Frr),
    ("charlie", 64499, Software::Bird),
    ("delta", 64500, Software::Bird),
    ("echo", 64501, Software::Frr),
    ("foxtrot", 64502, Software::Bird),
];

/// The neighbour behind foxtrot that has a real table.
pub const CUSTOMER: (&str, Asn) = ("west", Asn(64503));

/// A listening socket of the demonstration, and from where it can be asked.
#[derive(Debug, Clone)]
pub struct Seat {
    /// Where the process runs.
    pub place: Place,
    /// Its status page, seen from that place.
    pub status: SocketAddr,
}

/// One member's addresses.
#[derive(Debug, Clone)]
pub struct MemberSeat {
    /// Name.
    pub name: String,
    /// AS number.
    pub asn: Asn,
    /// What its router is, where routers are real.
    pub software: Software,
    /// Its router's address on the LAN, its BGP identifier and next hop.
    pub router: Ipv4Addr,
    /// Where the router runs.
    pub router_place: Place,
    /// Where the proxy waits for the router.
    pub bgp: SocketAddr,
    /// The proxy.
    pub proxy: Seat,
}

impl MemberSeat {
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
pub struct PartySeat {
    /// 1 or 2.
    pub number: u8,
    /// Where members connect.
    pub listen: SocketAddr,
    /// The process.
    pub seat: Seat,
}

/// Every place and address.
#[derive(Debug)]
pub struct Layout {
    /// The rung.
    pub rung: Rung,
    /// The namespaces' network, where there is one.
    pub network: Option<Network>,
    /// Folder for configurations, keys, state and logs.
    pub state: PathBuf,
    /// Party 1 and party 2.
    pub parties: [PartySeat; 2],
    /// Where party 1 waits for party 2.
    pub link: SocketAddr,
    /// The members by slot.
    pub members: Vec<MemberSeat>,
}

impl Layout {
    /// Lays the exchange out in the namespaces that this process stands in.
    pub fn real(rung: Rung) -> Result<Self, NetworkError> {
        let network = Network::new()?;
        let members = MEMBERS.iter().zip(1..).map(|(member, n)| real_member(&network, member, n));
        let members = members.collect::<Result<_, _>>()?;
        let parties = [real_party(&network, 1)?, real_party(&network, 2)?];
        // The parties' own line carries nothing but their computation.
        network.join("between", ("party1", "198.51.100.1/30"), ("party2", "198.51.100.2/30"))?;
        let (customer, behind) = (CUSTOMER.0, MEMBERS[MEMBERS.len() - 1].0);
        network.apart(customer)?;
        network.join("customer", (customer, "198.18.0.1/30"), (behind, "198.18.0.2/30"))?;
        let link = SocketAddr::from(([198, 51, 100, 1], 7000));
        Ok(Self { rung, state: network.state().to_path_buf(), network: Some(network), parties, link, members })
    }

    /// Everything on loopback ports that are free now.
    pub fn simulated(state: &Path) -> std::io::Result<Self> {
        let members = MEMBERS.iter().zip(1..).map(|(member, n)| simulated_member(member, n));
        let members = members.collect::<Result<_, _>>()?;
        let parties = [simulated_party(1)?, simulated_party(2)?];
        let (state, link) = (state.to_path_buf(), free_address()?);
        Ok(Self { rung: Rung::Simulated, network: None, state, parties, link, members })
    }

    /// Each member's next hop, by AS.
    #[must_use]
    pub fn next_hops(&self) -> BTreeMap<Asn, Ipv4Addr> {
        self.members.iter().map(|member| (member.asn, member.router)).collect()
    }
}

fn lan(host: u8) -> Ipv4Addr {
    Ipv4Addr::new(192, 0, 2, host)
}

fn lan_addresses(host: u8) -> [String; 2] {
    [format!("192.0.2.{host}/24"), format!("2001:db8::{host}/64")]
}

/// Inside a namespace of its own every status page may have the same address.
fn own_status() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 8480))
}

/// Router at host `n` of the LAN, proxy at host `100 + n`.
fn real_member(
    network: &Network,
    (name, asn, software): &(&str, u32, Software),
    n: u8,
) -> Result<MemberSeat, NetworkError> {
    let router_place = network.attach(name, &lan_addresses(n))?;
    let place = network.attach(&format!("{name}-proxy"), &lan_addresses(100 + n))?;
    Ok(MemberSeat {
        name: (*name).to_owned(),
        asn: Asn(*asn),
        software: *software,
        router: lan(n),
        router_place,
        bgp: (lan(100 + n), 179).into(),
        proxy: Seat { place, status: own_status() },
    })
}

fn real_party(network: &Network, number: u8) -> Result<PartySeat, NetworkError> {
    let host = 250 + number;
    let place = network.attach(&format!("party{number}"), &lan_addresses(host))?;
    Ok(PartySeat { number, listen: (lan(host), 7001).into(), seat: Seat { place, status: own_status() } })
}

fn simulated_member((name, asn, software): &(&str, u32, Software), n: u8) -> std::io::Result<MemberSeat> {
    Ok(MemberSeat {
        name: (*name).to_owned(),
        asn: Asn(*asn),
        software: *software,
        router: lan(n),
        router_place: Place::Here,
        bgp: free_address()?,
        proxy: Seat { place: Place::Here, status: free_address()? },
    })
}

fn simulated_party(number: u8) -> std::io::Result<PartySeat> {
    Ok(PartySeat { number, listen: free_address()?, seat: Seat { place: Place::Here, status: free_address()? } })
}
