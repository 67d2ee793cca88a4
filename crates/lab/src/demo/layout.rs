//! The demonstration's members, and their addresses, ports and namespaces on each rung.

use std::path::Path;

use wayleave_core::Asn;

use crate::exchange::layout::lan;
pub use crate::exchange::layout::{Layout, MemberLayout, PartyLayout, ProcessLayout, Software};
use crate::netns::{Network, NetworkError, NetworkNamespace, Rung};
use crate::ports::free_address;

/// The members, in the order of slots. The last one has a customer with a recorded table.
pub const MEMBERS: [(&str, u32, Software); 6] = [
    ("alpha", 64497, Software::Bird),
    ("bravo", 64498, Software::Frr),
    ("charlie", 64499, Software::Bird),
    ("delta", 64500, Software::Bird),
    ("echo", 64501, Software::Frr),
    ("foxtrot", 64502, Software::Bird),
];

/// The customer behind foxtrot that announces a recorded table.
pub const CUSTOMER: (&str, Asn) = ("west", Asn(64503));

impl Layout {
    /// Lays the demonstration's exchange out in the namespaces of this process.
    pub fn real(rung: Rung) -> Result<Self, NetworkError> {
        let network = Network::new()?;
        let members = MEMBERS.iter().map(|(name, asn, software)| ((*name).to_owned(), Asn(*asn), *software));
        let layout = Self::in_network(rung, &network, members)?;
        let (customer, behind) = (CUSTOMER.0, MEMBERS[MEMBERS.len() - 1].0);
        network.apart(customer)?;
        network.join("customer", (customer, "198.18.0.1/30"), (behind, "198.18.0.2/30"))?;
        Ok(Self { network: Some(network), ..layout })
    }

    /// Lays it out on free loopback ports.
    pub fn simulated(state: &Path) -> std::io::Result<Self> {
        let members = MEMBERS.iter().zip(1..).map(|(member, n)| simulated_member(member, n));
        let members = members.collect::<Result<_, _>>()?;
        let parties = [simulated_party(1)?, simulated_party(2)?];
        let (state, link) = (state.to_path_buf(), free_address()?);
        Ok(Self { rung: Rung::Simulated, network: None, state, parties, link, members })
    }
}

fn simulated_member((name, asn, software): &(&str, u32, Software), n: u8) -> std::io::Result<MemberLayout> {
    Ok(MemberLayout {
        name: (*name).to_owned(),
        asn: Asn(*asn),
        software: *software,
        router: lan(n),
        router_namespace: NetworkNamespace::Own,
        bgp: free_address()?,
        proxy: ProcessLayout { namespace: NetworkNamespace::Own, status: free_address()? },
    })
}

fn simulated_party(number: u8) -> std::io::Result<PartyLayout> {
    Ok(PartyLayout {
        number,
        listen: free_address()?,
        process: ProcessLayout { namespace: NetworkNamespace::Own, status: free_address()? },
    })
}
