//! Sockets that a configuration asks for, and how each is opened.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use tracing::info;
use wayleave_core::Afi;
use wayleave_runtime::packets::Port;
use wayleave_runtime::packets::ethernet::{self, Ethernet};
use wayleave_runtime::packets::ip::Ip;
use wayleave_runtime::packets::steering::Steering;
use wayleave_runtime::packets::tls;
use wayleave_runtime::packets::udp::{self, Group, Intake};
use wayleave_runtime::packets::xdp::{self, Xdp};

use crate::config::links::LinkSocket;
use crate::config::router::Backend;
use crate::failure::Failure;
use crate::roles::links::{KINDS, MESSAGE};

/// The protocol number of raw sockets that only send.
const SEND_ONLY: u8 = 255;

/// What a port is to its format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PortKind {
    /// Hosts, services and other routers of this network.
    Internal,
    /// The neighbour behind the `[[interface]]` of this number.
    Interface(u16),
    /// The neighbour behind this `[[link]]`, counted from zero.
    Link(usize),
    /// Neighbours of an overlay at this one of its node's addresses, counted from zero.
    Overlay(usize),
    /// Any host, by IP of this family.
    Ip(Afi),
    /// Other routers' ICMP errors, by IP.
    Icmp,
}

/// An open port of one thread.
pub struct AttachedPort {
    pub port: Box<dyn Port>,
    pub kind: PortKind,
    /// Only control traffic comes here; it is served before anything else.
    pub is_control: bool,
    /// Names the socket across reloads.
    pub key: String,
}

/// A socket, or a group of them for all threads, that a configuration asks for.
#[derive(Clone)]
pub struct PortSpec {
    pub kind: PortKind,
    /// Equal for what stays open across a reload.
    pub key: String,
    socket: Socket,
    /// What messages call it.
    name: String,
}

#[derive(Clone)]
enum Socket {
    /// A socket for each thread, and one for control traffic.
    UdpGroup(SocketAddr, Intake, Steering),
    /// A socket for each thread: what one neighbour sends stays at one of them, in order of arrival.
    Udp(SocketAddr, Intake),
    /// The same, with one for messages, and no packet that is sent there is ever cut into fragments.
    UdpWhole(SocketAddr, Intake),
    /// Connections that carry packets over TLS, with an address for those that others open.
    Tls(Option<SocketAddr>),
    Xdp(xdp::Endpoint),
    Ethernet(ethernet::Endpoint),
    /// IP packets of a protocol to this address; other threads than the first only send.
    Ip(IpAddr, u8),
    /// IP packets with UDP to this address and port, at the first thread.
    Datagrams(IpAddr, u16),
}

/// The part of a configuration's section that says how a neighbour is reached.
pub struct Carrier<'a> {
    pub backend: Backend,
    pub device: Option<&'a String>,
    pub queue: u32,
    pub gateway: Option<Ipv4Addr>,
}

impl PortSpec {
    fn new(kind: PortKind, socket: Socket, name: String) -> Self {
        let key = match &socket {
            Socket::UdpGroup(local, intake, _) => format!("udp {local} {intake:?}"),
            Socket::Udp(local, intake) => format!("udp {local} {intake:?} alone"),
            Socket::UdpWhole(local, intake) => format!("udp {local} {intake:?} whole"),
            Socket::Tls(listen) => format!("tls {listen:?}"),
            Socket::Xdp(endpoint) => format!("{endpoint:?}"),
            Socket::Ethernet(endpoint) => format!("ethernet {endpoint:?}"),
            Socket::Ip(address, protocol) => format!("ip {address} {protocol}"),
            Socket::Datagrams(address, port) => format!("ip {}", SocketAddr::new(*address, *port)),
        };
        Self { kind, key, socket, name }
    }

    /// UDP at `local` for all threads, sorted into flows and control traffic.
    pub fn udp_group(kind: PortKind, local: SocketAddr, backend: Backend, steering: Steering, name: String) -> Self {
        Self::new(kind, Socket::UdpGroup(local, intake(backend), steering), name)
    }

    /// UDP at `local`, by neighbour.
    pub fn udp(kind: PortKind, local: SocketAddr, backend: Backend, name: String) -> Self {
        Self::new(kind, Socket::Udp(local, intake(backend)), name)
    }

    /// For neighbours of an overlay.
    pub fn overlay(number: usize, local: LinkSocket) -> Self {
        let (socket, name) = match local {
            LinkSocket::Udp(local) => (Socket::UdpWhole(local, Intake::Merged), format!("links at {local}")),
            LinkSocket::Tls(listen) => (Socket::Tls(listen), "links over TLS".to_owned()),
        };
        Self::new(PortKind::Overlay(number), socket, name)
    }

    /// A neighbour at `remote`: by AF_XDP where the configuration says so, by a UDP group otherwise.
    pub fn neighbor(
        kind: PortKind,
        [local, remote]: [SocketAddr; 2],
        carrier: &Carrier<'_>,
        steering: Steering,
        name: String,
    ) -> Self {
        match (carrier.backend, carrier.device, local, remote.ip()) {
            (Backend::AfXdp, Some(device), SocketAddr::V4(local), IpAddr::V4(remote)) => {
                let neighbor = carrier.gateway.unwrap_or(remote);
                let endpoint = xdp::Endpoint { interface: device.clone(), queue: carrier.queue, local, neighbor };
                Self::new(kind, Socket::Xdp(endpoint), name)
            }
            (backend, ..) => Self::udp_group(kind, local, backend, steering, name),
        }
    }

    /// Frames of `ether_type` to and from one neighbour on an Ethernet.
    pub fn ethernet(kind: PortKind, device: &str, neighbor: [u8; 6], ether_type: u16, name: String) -> Self {
        let endpoint = ethernet::Endpoint { interface: device.to_owned(), neighbor, ether_type };
        Self::new(kind, Socket::Ethernet(endpoint), name)
    }

    /// IP packets of `protocol` to `address`.
    pub fn ip(kind: PortKind, address: IpAddr, protocol: u8, name: String) -> Self {
        Self::new(kind, Socket::Ip(address, protocol), name)
    }

    /// IP packets with UDP to `port` at `address`.
    pub fn datagrams(kind: PortKind, address: IpAddr, port: u16, name: String) -> Self {
        Self::new(kind, Socket::Datagrams(address, port), name)
    }

    /// The address that only one socket or group can have at a time.
    pub fn address(&self) -> String {
        match &self.socket {
            Socket::UdpGroup(local, ..) | Socket::Udp(local, _) | Socket::UdpWhole(local, _) => local.to_string(),
            Socket::Tls(listen) => format!("tls {listen:?}"),
            Socket::Xdp(endpoint) => endpoint.local.to_string(),
            Socket::Ethernet(endpoint) => format!("{endpoint:?}"),
            Socket::Ip(address, protocol) => format!("{address} {protocol}"),
            Socket::Datagrams(address, port) => SocketAddr::new(*address, *port).to_string(),
        }
    }

    /// Why a reload cannot put this in the place of another.
    pub fn needs_restart(&self) -> Failure {
        Failure::new(format!("{}: another backend or gateway at the same address needs a restart", self.name))
    }

    /// Opens it for `threads` threads; each socket comes with its thread's number.
    ///
    /// # Errors
    /// What the system said, and what to do about it.
    pub fn open(&self, threads: usize) -> Result<Vec<(usize, AttachedPort)>, Failure> {
        let Self { kind, key, socket, name } = self;
        let raw = |address: &IpAddr, error: io::Error| {
            let failure = Failure::system(format!("{name}: cannot receive at {address}"), &error);
            // Of other causes it knows what to do.
            match error.kind() {
                ErrorKind::PermissionDenied => failure.help("raw sockets need CAP_NET_RAW"),
                _ => failure,
            }
        };
        let attached = |port, is_control| AttachedPort { port, kind: *kind, is_control, key: key.clone() };
        match socket {
            Socket::UdpGroup(local, intake, steering) => {
                let Group { data, control } = udp::open(*local, threads, *intake, Some(*steering))
                    .map_err(|error| Failure::system(format!("{name}: cannot receive at {local}"), &error))?;
                let data = data.into_iter().map(|port| attached(Box::new(port) as _, false)).enumerate();
                let control = control.map(|port| (0, attached(Box::new(port) as _, true)));
                Ok(control.into_iter().chain(data).collect())
            }
            Socket::Udp(local, intake) | Socket::UdpWhole(local, intake) => {
                let is_whole = matches!(socket, Socket::UdpWhole(..));
                let control = if is_whole { MESSAGE } else { 0 };
                let steering = (threads > 1).then_some(Steering::Source { control });
                let opened = udp::open(*local, threads, *intake, steering).and_then(|group| {
                    let all = group.data.iter().chain(&group.control);
                    all.filter(|_| is_whole).try_for_each(udp::Udp::never_fragment)?;
                    Ok(group)
                });
                let Group { data, control } =
                    opened.map_err(|error| Failure::system(format!("{name}: cannot receive at {local}"), &error))?;
                let data = data.into_iter().map(|port| attached(Box::new(port) as _, false)).enumerate();
                let control = control.map(|port| (0, attached(Box::new(port) as _, true)));
                Ok(control.into_iter().chain(data).collect())
            }
            Socket::Tls(listen) => {
                let port = tls::open(*listen, KINDS).map_err(|error| {
                    let at = listen.map(|listen| format!(" at {listen}")).unwrap_or_default();
                    Failure::system(format!("{name}: cannot take connections{at}"), &error)
                        .help("a port below 1024 needs CAP_NET_BIND_SERVICE; no other server may have it")
                })?;
                Ok(vec![(0, attached(Box::new(port), false))])
            }
            Socket::Xdp(endpoint) => {
                let port = Xdp::open(endpoint).map_err(|error| {
                    Failure::new(format!("{name}: no AF_XDP on {}: {error}", endpoint.interface)).help(
                        "it needs CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF outside of user namespaces, and no other XDP program \
                         there; or set backend = \"udp-gso\"",
                    )
                })?;
                info!(
                    interface = endpoint.interface,
                    in_driver = port.is_in_driver(),
                    "AF_XDP socket open; in_driver=false means the slower generic mode"
                );
                Ok(vec![(0, attached(Box::new(port), false))])
            }
            Socket::Ethernet(endpoint) => {
                let port = Ethernet::open(endpoint).map_err(|error| {
                    Failure::system(format!("{name}: cannot receive from device {}", endpoint.interface), &error)
                        .help("packet sockets need CAP_NET_RAW, and the device must be an Ethernet")
                })?;
                Ok(vec![(0, attached(Box::new(port), false))])
            }
            Socket::Ip(address, protocol) => {
                let mut all = Vec::new();
                for thread in 0..threads {
                    // Every raw socket gets every packet: only one may receive.
                    let protocol = if thread == 0 { *protocol } else { SEND_ONLY };
                    let port = Ip::open(*address, protocol).map_err(|error| raw(address, error))?;
                    all.push((thread, attached(Box::new(port) as _, false)));
                }
                Ok(all)
            }
            Socket::Datagrams(address, port) => {
                let port = Ip::open_datagrams(*address, *port).map_err(|error| raw(address, error))?;
                Ok(vec![(0, attached(Box::new(port) as _, false))])
            }
        }
    }
}

fn intake(backend: Backend) -> Intake {
    if backend == Backend::UdpBatch { Intake::Single } else { Intake::Merged }
}
