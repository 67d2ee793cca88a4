//! Which sockets a configuration wants, and how each is opened.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use toml::Spanned;
use tracing::info;
use wayleave_packet::icing::header::ETHERTYPE;
use wayleave_runtime::packets::ethernet::{self, Ethernet};
use wayleave_runtime::packets::ip::Ip;
use wayleave_runtime::packets::udp::{self, Group, Intake, Sorting};
use wayleave_runtime::packets::xdp::{Place, Xdp};

use super::worker::{Attached, Way};
use crate::config::EthernetAddress;
use crate::config::router::{Backend, RouterFile};
use crate::failure::Failure;

/// Platypus over IP (`docs/wire/platypus.md`).
const PROTOCOL: u8 = 253;
/// The protocol number of raw sockets that only send.
const SEND_ONLY: u8 = 255;
const ICMP: u8 = 1;

/// A socket, or a group of them for all threads.
#[derive(Clone)]
pub struct Wanted {
    pub way: Way,
    /// Equal for what stays open across a reload.
    pub key: String,
    what: What,
    /// What it is called when it cannot be opened.
    name: String,
}

#[derive(Clone)]
enum What {
    Udp(SocketAddr, Intake, Sorting),
    Xdp(Place),
    /// ICING in UDP: one thread takes all, nothing is sorted.
    Whole(SocketAddr, Intake),
    /// ICING straight over Ethernet.
    Ethernet(ethernet::Place),
    /// By IP to this address; other threads than the first only send.
    Ip(Ipv4Addr, u8),
}

/// All sockets of a configuration, in its order.
pub fn wanted(file: &RouterFile) -> Vec<Wanted> {
    let mut all = Vec::new();
    if let Some(section) = file.scion.as_ref().map(Spanned::get_ref) {
        let local = section.internal.get_ref().0;
        let what = udp(local, *section.backend.get_ref(), Sorting::Scion);
        all.push(Wanted::new(Way::Internal, what, "the internal interface".to_owned()));
    }
    for section in file.interface.iter().map(Spanned::get_ref) {
        let (Some(local), Some(remote)) = (&section.local, &section.remote) else { continue };
        let (local, remote, id) = (local.get_ref().0, remote.get_ref().0, *section.id.get_ref());
        let gateway = section.gateway.as_ref().map(|gateway| gateway.0);
        let what = match (section.backend.get_ref(), &section.device) {
            (Backend::AfXdp, Some(device)) => xdp(device, section.queue, local, remote, gateway),
            (backend, _) => udp(local, *backend, Sorting::Scion),
        };
        all.push(Wanted::new(Way::Interface(id), what, format!("interface {id}")));
    }
    if let Some(section) = file.platypus.as_ref().map(Spanned::get_ref) {
        for address in section.waypoints.get_ref() {
            let what = |protocol| What::Ip(address.0, protocol);
            all.push(Wanted::new(Way::Ip, what(PROTOCOL), format!("waypoint {}", address.0)));
            all.push(Wanted::new(Way::Icmp, what(ICMP), format!("errors for waypoint {}", address.0)));
        }
    }
    if let Some(section) = file.icing.as_ref().map(Spanned::get_ref)
        && let Some(local) = &section.internal
    {
        let what = udp(local.get_ref().0, *section.backend.get_ref(), Sorting::Ip);
        all.push(Wanted::new(Way::Internal, what, "the services' end".to_owned()));
    }
    for (number, section) in file.link.iter().map(Spanned::get_ref).enumerate() {
        let (local, remote) = (section.local.get_ref().0, section.remote.get_ref().0);
        let gateway = section.gateway.as_ref().map(|gateway| gateway.0);
        let (what, name) = match (section.backend.get_ref(), &section.device, &section.neighbor) {
            (Backend::AfXdp, Some(device), _) => {
                (xdp(device, section.queue, local, remote, gateway), format!("link {local}"))
            }
            (Backend::Ethernet, Some(device), Some(neighbor)) => {
                (ethernet(device, neighbor.get_ref().0), format!("link to {} at {device}", neighbor.get_ref().0))
            }
            (backend, ..) => (udp(local, *backend, Sorting::Ip), format!("link {local}")),
        };
        all.push(Wanted::new(Way::Link(number), what, name));
    }
    if file.icing.is_some() {
        for wanted in &mut all {
            if let What::Udp(local, intake, _) = wanted.what {
                *wanted = Wanted::new(wanted.way, What::Whole(local, intake), wanted.name.clone());
            }
        }
    }
    all
}

fn udp(local: SocketAddr, backend: Backend, sorting: Sorting) -> What {
    let intake = if backend == Backend::UdpBatch { Intake::Single } else { Intake::Merged };
    What::Udp(local, intake, sorting)
}

fn xdp(device: &str, queue: u32, local: SocketAddr, remote: SocketAddr, gateway: Option<Ipv4Addr>) -> What {
    match (local, remote.ip()) {
        (SocketAddr::V4(local), IpAddr::V4(remote)) => {
            What::Xdp(Place { interface: device.to_owned(), queue, local, neighbor: gateway.unwrap_or(remote) })
        }
        // The configuration has been checked for this.
        _ => udp(local, Backend::UdpGso, Sorting::Scion),
    }
}

fn ethernet(device: &str, neighbor: EthernetAddress) -> What {
    What::Ethernet(ethernet::Place { interface: device.to_owned(), neighbor: neighbor.0, ether_type: ETHERTYPE })
}

impl Wanted {
    fn new(way: Way, what: What, name: String) -> Self {
        let key = match &what {
            What::Udp(local, intake, _) => format!("udp {local} {intake:?}"),
            What::Whole(local, intake) => format!("udp {local} {intake:?} whole"),
            What::Xdp(place) => format!("{place:?}"),
            What::Ethernet(place) => format!("ethernet {place:?}"),
            What::Ip(address, protocol) => format!("ip {address} {protocol}"),
        };
        Self { way, key, what, name }
    }

    /// The place that one socket or group has at a time.
    pub fn stands_at(&self) -> String {
        match &self.what {
            What::Udp(local, ..) | What::Whole(local, _) => local.to_string(),
            What::Xdp(place) => place.local.to_string(),
            What::Ethernet(place) => format!("{place:?}"),
            What::Ip(address, protocol) => format!("{address} {protocol}"),
        }
    }

    /// Why a reload cannot put this in the place of another.
    pub fn needs_restart(&self) -> Failure {
        Failure::new(format!("{}: another backend or gateway at the same address needs a restart", self.name))
    }

    /// Opens it for `threads` threads; each socket comes with its thread's number.
    pub fn open(&self, threads: usize) -> Result<Vec<(usize, Attached)>, Failure> {
        let Self { way, key, what, name } = self;
        let attached = |port, is_control| Attached { port, way: *way, is_control, key: key.clone() };
        match what {
            What::Udp(local, intake, sorting) => {
                let Group { data, control } = udp::open(*local, threads, *intake, Some(*sorting))
                    .map_err(|error| Failure::system(format!("{name}: cannot receive at {local}"), &error))?;
                let data = data.into_iter().map(|port| attached(Box::new(port) as _, false)).enumerate();
                let control = control.map(|port| (0, attached(Box::new(port) as _, true)));
                Ok(control.into_iter().chain(data).collect())
            }
            What::Whole(local, intake) => {
                let Group { data, .. } = udp::open(*local, 1, *intake, None)
                    .map_err(|error| Failure::system(format!("{name}: cannot receive at {local}"), &error))?;
                Ok(data.into_iter().map(|port| (0, attached(Box::new(port) as _, false))).collect())
            }
            What::Xdp(place) => {
                let port = Xdp::open(place).map_err(|error| {
                    Failure::new(format!("{name}: no AF_XDP on {}: {error}", place.interface)).help(
                        "it needs CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF outside of user namespaces, and no other XDP program \
                         there; or say backend = \"udp-gso\"",
                    )
                })?;
                info!(interface = place.interface, in_driver = port.is_in_driver(), "AF_XDP");
                Ok(vec![(0, attached(Box::new(port), false))])
            }
            What::Ethernet(place) => {
                let port = Ethernet::open(place).map_err(|error| {
                    Failure::system(format!("{name}: no packets from {}", place.interface), &error)
                        .help("packet sockets need CAP_NET_RAW, and the device must be an Ethernet")
                })?;
                Ok(vec![(0, attached(Box::new(port), false))])
            }
            What::Ip(address, protocol) => {
                let mut all = Vec::new();
                for thread in 0..threads {
                    // Every raw socket gets every packet: only one may receive.
                    let protocol = if thread == 0 { *protocol } else { SEND_ONLY };
                    let port = Ip::open(*address, protocol).map_err(|error| {
                        Failure::system(format!("{name}: cannot receive at {address}"), &error)
                            .help("raw sockets need CAP_NET_RAW, and the address must be one of this machine's")
                    })?;
                    all.push((thread, attached(Box::new(port) as _, false)));
                }
                Ok(all)
            }
        }
    }
}
