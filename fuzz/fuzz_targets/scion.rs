//! Any octets as a SCION packet of either wire: what is read is written as the same, and a router takes it without harm.
//!
//! SCI-07: any octets as a packet: refused or consistent.
#![no_main]

use std::sync::{LazyLock, Mutex};

use libfuzzer_sys::fuzz_target;
use wayleave_core::{Instant, Now, UnixTime};
use wayleave_dataplane::frame::{Frame, Ingress};
use wayleave_dataplane::scion::delivery::LocalDelivery;
use wayleave_dataplane::scion::{Action, Config, Interface, Keys, Link, Owner, Router};
use wayleave_packet::scion::verify::{HopPosition, check_peering};
use wayleave_packet::scion::{
    Extensions, ForwardingKey, Header, Hop, HostAddress, IsdAs, Layout, Packet, PathType, scmp,
};
use wayleave_papers::scion_2015::{self, Switch};

static SWITCH: LazyLock<Mutex<Switch>> =
    LazyLock::new(|| Mutex::new(Switch::new(scion_2015::OpaqueKey::new(&[0x87; 16]), &[41, 42, 1])));

static ROUTER: LazyLock<Mutex<Router>> = LazyLock::new(|| {
    let interface = |id, link| Interface { id, link, neighbor: IsdAs::new(1, 1_000), owner: Owner::This };
    let config = Config {
        isd_as: IsdAs::new(1, 0xff00_0000_0111),
        address: HostAddress::V4([127, 0, 0, 1].into()),
        siblings: 1,
        interfaces: vec![interface(41, Link::Parent), interface(42, Link::Child), interface(1, Link::Core)],
        keys: Keys::one(ForwardingKey::new(&[0x87; 16])),
        local: LocalDelivery {
            discovery: None,
            control: None,
            end_host_ports: [31_000, 32_767],
            shared_port: 30_041,
            is_on_loopback: false,
        },
        answers_per_second: 1_000_000_000,
        answers_burst: 1_000_000,
    };
    Mutex::new(Router::new(&config).expect("our own configuration"))
});

/// Gives the current hop field a right MAC, so that packets get past its check.
fn mint(octets: &mut [u8], from_neighbor: bool) {
    let Ok(layout) = Layout::decode(octets) else { return };
    if layout.path_type != PathType::Standard {
        return;
    }
    let (info, field) = (layout.info(layout.position.info), layout.hop(layout.position.hop));
    let hop = Hop::read(octets, info, field);
    let Ok(is_peering) = check_peering(&hop, &HopPosition::new(&layout.position)) else { return };
    let mac = ForwardingKey::new(&[0x87; 16]).hop_mac(&hop.mac_input());
    octets[field + 6..field + 12].copy_from_slice(&mac);
    // Against construction a packet enters with this hop's MAC in the accumulator.
    if from_neighbor && !hop.construction() && !is_peering {
        octets[info + 2] ^= mac[0];
        octets[info + 3] ^= mac[1];
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((&way, octets)) = input.split_first() else { return };
    let layout = Layout::decode(octets);
    if let Ok(packet) = Packet::decode(octets) {
        assert!(layout.is_ok());
        let written = packet.encode();
        assert_eq!(written.len(), octets.len());
        assert_eq!(Packet::decode(&written), Ok(packet.clone()));
        let _ = packet.header.path.reversed();
        if let Ok(inner) = Extensions::decode(packet.header.next_header, &packet.payload) {
            let _ = scmp::Message::decode(inner.rest);
        }
    }
    assert_eq!(Header::decode(octets).is_ok(), layout.is_ok());
    if let Ok((header, payload)) = scion_2015::Header::decode(octets) {
        let written = header.encode(payload);
        assert_eq!(scion_2015::Header::decode(&written), Ok((header, payload)));
    }
    let ingress = match way % 5 {
        0 => Ingress::Internal,
        1 => Ingress::Sibling(0),
        2 => Ingress::External(41),
        3 => Ingress::External(42),
        _ => Ingress::External(1),
    };
    // Half of the packets have a right MAC.
    let mut minted = octets.to_vec();
    if way >= 128 {
        mint(&mut minted, matches!(ingress, Ingress::External(_)));
    }
    let octets = &minted[..];
    let mut copy = octets.to_vec();
    let now = Now { instant: Instant(1), unix: UnixTime(1_795_226_300_000_000) };
    let mut frames = [Frame { octets: &mut copy, ingress }];
    let mut router = ROUTER.lock().expect("nothing panics");
    let action = router.process(&mut frames, now)[0];
    let answer = router.answers().next().map(<[u8]>::to_vec);
    // In a burst with a packet that differs in one octet, the same happens to both as to each alone.
    let mut other = octets.to_vec();
    if let [.., at, by] = *octets {
        let at = usize::from(at) % other.len();
        other[at] ^= by;
    }
    let (mut this, mut alone, mut again) = (octets.to_vec(), other.clone(), octets.to_vec());
    let expected = router.process(&mut [Frame { octets: &mut alone, ingress }], now)[0];
    let mut burst = [&mut this, &mut other, &mut again].map(|octets| Frame { octets, ingress });
    let actions = router.process(&mut burst, now);
    assert_eq!(actions[..3], [action, expected, action]);
    for (frame, alone) in burst.iter().zip([&*frames[0].octets, &alone, &*frames[0].octets]) {
        assert_eq!(frame.octets, alone);
    }
    // The switch of 2015 takes it as it takes each of many copies of it.
    let mut switch = SWITCH.lock().expect("nothing panics");
    let mut alone = octets.to_vec();
    let expected = switch.process(&mut [Frame { octets: &mut alone, ingress }])[0];
    let mut copies = vec![octets.to_vec(); 17];
    let mut burst: Vec<Frame<'_>> = copies.iter_mut().map(|octets| Frame { octets, ingress }).collect();
    assert_eq!(switch.process(&mut burst)[..17], [expected; 17]);
    assert!(copies.iter().all(|copy| *copy == alone));
    let length = frames[0].octets.len();
    match action {
        Action::Answer(_) => {
            let answer = answer.expect("composed");
            assert!(answer.len() <= 1_232);
            Packet::decode(&answer).expect("an answer is a packet");
            assert_eq!(frames[0].octets, octets, "what is answered is not touched");
        }
        Action::Drop(_) => assert_eq!(frames[0].octets, octets, "what is dropped is not touched"),
        _ => assert_eq!(length, octets.len()),
    }
});
