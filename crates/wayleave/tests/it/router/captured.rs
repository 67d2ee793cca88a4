//! Packets of a running SCION network (`test-data/scion`) through a router of each AS: what comes out is, octet by octet,
//! what the library's router makes of them.
//!
//! SCI, captured, by process: six captured packets, as they are (expired) and minted afresh at each hop, and with a bit
//! of the MAC flipped, through a router of each AS: every packet that comes out is octet by octet the library's.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use wayleave_core::{Instant, Now};
use wayleave_dataplane::frame::{Frame, Ingress};
use wayleave_dataplane::scion::delivery::LocalDelivery;
use wayleave_dataplane::scion::{Action, Config, Interface, Keys, Link, Owner, Router as Model};
use wayleave_lab::netns::NetworkNamespace;
use wayleave_packet::scion::{ForwardingKey, Hop, HostAddress, IsdAs, Packet, Path};
use wayleave_runtime::clock::unix_now;

use super::common::{Folder, Router, eventually, free};

const PACKETS: &str = include_str!("../../../../../test-data/scion/packets.txt");
/// The network's interfaces: AS, number, kind of link, the neighbour.
const INTERFACES: [(&str, u16, Link, &str); 6] = [
    ("110", 1, Link::Child, "111"),
    ("110", 2, Link::Child, "112"),
    ("111", 41, Link::Parent, "110"),
    ("111", 51, Link::Peer, "112"),
    ("112", 42, Link::Parent, "110"),
    ("112", 52, Link::Peer, "111"),
];

struct Captured {
    kind: &'static str,
    asn: &'static str,
    key: [u8; 16],
    octets: Vec<u8>,
}

fn captured() -> Vec<Captured> {
    let digit = |c: u8| (c as char).to_digit(16).expect("a hexadecimal digit") as u8;
    let hex = |text: &str| text.as_bytes().chunks(2).map(|two| digit(two[0]) << 4 | digit(two[1])).collect::<Vec<u8>>();
    let packet = |line: &'static str| {
        let fields: Vec<&str> = line.split(" | ").collect();
        let key = hex(fields[2]).try_into().expect("sixteen octets");
        Captured { kind: fields[0], asn: fields[1], key, octets: hex(fields[3]) }
    };
    PACKETS.lines().filter(|line| !line.starts_with('#')).map(packet).collect()
}

fn isd_as(asn: &str) -> IsdAs {
    format!("1-ff00:0:{asn}").parse().expect("an AS of the network")
}

impl Captured {
    /// The interface by which it came; none from within the AS.
    fn came_by(&self) -> Option<u16> {
        let Path::Standard(path) = Packet::decode(&self.octets).expect("sound").header.path else { panic!("a path") };
        let (info, hop) =
            (path.infos[usize::from(path.meta.current_info)], path.hops[usize::from(path.meta.current_hop)]);
        self.kind.starts_with("ext").then_some(if info.construction { hop.cons_ingress } else { hop.cons_egress })
    }

    /// The same packet, minted a minute ago: its segments' time, this hop's MAC and what that does to the accumulator.
    fn afresh(&self) -> Vec<u8> {
        let mut packet = Packet::decode(&self.octets).expect("sound");
        let Path::Standard(path) = &mut packet.header.path else { panic!("a path") };
        path.infos.iter_mut().for_each(|info| info.timestamp = unix_now().secs() as u32 - 60);
        let info = &mut path.infos[usize::from(path.meta.current_info)];
        let field = &mut path.hops[usize::from(path.meta.current_hop)];
        field.mac = ForwardingKey::new(&self.key).hop_mac(&Hop::new(info, field).mac_input());
        if self.kind == "ext rev" {
            info.seg_id ^= u16::from_be_bytes([field.mac[0], field.mac[1]]);
        }
        packet.encode()
    }

    /// Where the AS's router delivers it to: the host that it names, at its own port.
    fn host(&self) -> Option<SocketAddr> {
        let packet = Packet::decode(&self.octets).expect("sound");
        let HostAddress::V4(host) = packet.header.dst_host else { return None };
        (packet.header.dst == isd_as(self.asn))
            .then(|| SocketAddr::from((host, u16::from_be_bytes([packet.payload[2], packet.payload[3]]))))
    }
}

fn socket(address: impl std::net::ToSocketAddrs) -> UdpSocket {
    let socket = UdpSocket::bind(address).expect("a free port");
    socket.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
    socket
}

fn received(socket: &UdpSocket) -> Vec<u8> {
    let mut octets = [0; 4096];
    let length = socket.recv(&mut octets).expect("a packet in time");
    octets[..length].to_vec()
}

/// One AS: its router as a process, the same one from the library, and everybody around them.
struct As {
    router: Router,
    model: Model,
    inside: String,
    inner: UdpSocket,
    /// Number, the router's end, the neighbour's end.
    links: Vec<(u16, String, UdpSocket)>,
}

impl As {
    fn new(folder: &Folder, asn: &'static str, key: [u8; 16]) -> Self {
        folder.keys(&format!("{asn}.key"), "scion", &[(0, key)]);
        let (inside, mut links, mut interfaces) = (free(), Vec::new(), Vec::new());
        let mut text = format!(
            "[forwarding]\nformat = \"scion\"\nkeys = \"{asn}.key\"\n[scion]\nisd_as = \"{}\"\ninternal = \"{inside}\"\n\
             end_host_ports = [1024, 65535]\nanswers_per_second = 1000\n",
            isd_as(asn)
        );
        for (_, id, link, neighbor) in INTERFACES.into_iter().filter(|interface| interface.0 == asn) {
            let (local, remote) = (free(), socket("127.0.0.1:0"));
            let kind = format!("{link:?}").to_lowercase();
            text += &format!(
                "[[interface]]\nid = {id}\nlink = \"{kind}\"\nneighbor = \"{}\"\nlocal = \"{local}\"\nremote = \"{}\"\n",
                isd_as(neighbor),
                remote.local_addr().expect("bound")
            );
            interfaces.push(Interface { id, link, neighbor: isd_as(neighbor), owner: Owner::This });
            links.push((id, local, remote));
        }
        let config = Config {
            isd_as: isd_as(asn),
            address: HostAddress::V4([127, 0, 0, 1].into()),
            siblings: 0,
            interfaces,
            keys: Keys::one(ForwardingKey::new(&key)),
            local: LocalDelivery {
                discovery: None,
                control: None,
                end_host_ports: [1_024, 65_535],
                shared_port: 30_041,
                is_on_loopback: true,
            },
            answers_per_second: 1_000,
            answers_burst: 100,
        };
        let model = Model::new(&config).expect("a sound configuration");
        let router = Router::start(folder, asn, NetworkNamespace::Own, &text);
        Self { router, model, inside, inner: socket("127.0.0.1:0"), links }
    }

    /// Sends a packet in at its place, and compares what comes out; returns what became of it.
    fn compare(&mut self, captured: &Captured, octets: &[u8]) -> Action {
        let (from, to, ingress) = match captured.came_by() {
            None => (&self.inner, &self.inside, Ingress::Internal),
            Some(id) => {
                let (_, local, remote) = self.links.iter().find(|link| link.0 == id).expect("the interface");
                (remote, local, Ingress::External(id))
            }
        };
        let mut expected = octets.to_vec();
        let mut frames = [Frame { octets: &mut expected, ingress }];
        let action = self.model.process(&mut frames, Now { unix: unix_now(), instant: Instant(1_000_000_000) })[0];
        let answer = self.model.answers().next();
        let expected = answer.unwrap_or(frames[0].octets).to_vec();
        let host = captured.host().filter(|_| action == Action::Deliver).map(socket);
        from.send_to(octets, to).expect("sent");
        let came = match action {
            Action::Forward(id) => received(&self.links.iter().find(|link| link.0 == id).expect("the interface").2),
            Action::Deliver => received(host.as_ref().expect("a host")),
            Action::Answer(_) => received(from),
            other => panic!("{}: {other:?}", captured.kind),
        };
        assert_eq!(came, expected, "{}", captured.kind);
        action
    }
}

#[test]
fn captured_packets_leave_a_router_as_they_leave_the_library() {
    let folder = Folder::new("captured");
    let packets = captured();
    let mut sent = 0;
    for asn in ["110", "111", "112"] {
        let own: Vec<&Captured> = packets.iter().filter(|captured| captured.asn == asn).collect();
        let mut here = As::new(&folder, asn, own.first().expect("a packet of each AS").key);
        for captured in own {
            // As it was captured its hop fields have expired, and the sender is told.
            assert!(matches!(here.compare(captured, &captured.octets), Action::Answer(_)), "{}", captured.kind);
            let action = here.compare(captured, &captured.afresh());
            let expected = match captured.kind {
                "int rev" | "int cons" | "int rev peerhop" => matches!(action, Action::Forward(_)),
                "ext rev" | "ext cons" => action == Action::Deliver,
                // A traceroute whose alert is for this router.
                _ => matches!(action, Action::Answer(_)),
            };
            assert!(expected, "{}: {action:?}", captured.kind);
            // One bit of this hop's MAC.
            let mut forged = captured.afresh();
            let path = path_begin(&forged);
            let hop = usize::from(forged[path] & 63);
            let segments = if captured.kind.ends_with("peerhop") { 2 } else { 1 };
            forged[path + 4 + 8 * segments + 12 * hop + 6] ^= 0x80;
            assert!(matches!(here.compare(captured, &forged), Action::Answer(_)), "{}", captured.kind);
            sent += 3;
        }
        eventually("all are counted", || here.router.status()["sent"] == here.router.status()["received"]);
    }
    assert_eq!(sent, 18);
}

/// Where the path begins: hosts of four octets each.
fn path_begin(octets: &[u8]) -> usize {
    assert_eq!(octets[9] & 0x33, 0, "hosts of four octets");
    12 + 16 + 8
}
