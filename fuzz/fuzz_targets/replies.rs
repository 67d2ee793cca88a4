//! A client's and a server's stamper agree on replies while somebody between them sends options of any octets, and repeats, changes
//! and reorders theirs: a refusal, or an answer to whom it names; nobody but the client has its packets stamped.
#![no_main]

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr};

use libfuzzer_sys::fuzz_target;
use wayleave_core::{Instant, Now, Prefix, UnixTime};
use wayleave_crypto::lanes::CpuKernel;
use wayleave_crypto::secret::{Key128, Seed};
use wayleave_dataplane::stamper::replies::{Answer, ReplyGrants, ReplyRequests};
use wayleave_dataplane::stamper::{Config, Location, Stamper};
use wayleave_packet::platypus::header::{Capability, DelegationId, Interval, Marks, Packet, Principal, Width};
use wayleave_packet::platypus::mint::reply::Granted;
use wayleave_packet::platypus::mint::{WaypointKey, epoch};

const NOW: u64 = 1_795_240_800;
const CLIENT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 10);
const SERVER: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 10);
const WAYPOINT: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);

thread_local! {
    static CARRIER: RefCell<Stamper> = RefCell::new(
        Stamper::new(Config { location: Location::Host, routes: Vec::new(), rules: Vec::new(), share: (0, 1) }, CpuKernel::best())
            .expect("no rules"),
    );
}

fn granted(now: UnixTime) -> Granted {
    let (interval, principal) = (Interval::new(12).expect("in range"), Principal::new(11).expect("24 bits"));
    let epoch = epoch::epoch_at(interval, now);
    let held = WaypointKey::new(&Key128::new([7; 16])).secret(WAYPOINT.into(), principal, interval, epoch);
    let prefix = Prefix::new(CLIENT.into(), 32).expect("a host");
    let held = held.delegate(DelegationId::new(5).expect("24 bits"), prefix).expect("of the family");
    let delegation = Some(held.delegation());
    let capability = Capability {
        waypoint: WAYPOINT.into(),
        principal,
        interval,
        epoch,
        marks: Marks::default(),
        delegation,
        width: Width::Full,
    };
    Granted { capability, key: held.stamp_key() }
}

/// The packet that carries an option from one to the other.
fn carried(option: &[u8], (from, to): (Ipv4Addr, Ipv4Addr), now: Now) -> Option<Vec<u8>> {
    let ends = (from.into(), to.into());
    CARRIER.with_borrow_mut(|carrier| carrier.carry(option, ends, None, now.unix).ok())
}

fuzz_target!(|data: &[u8]| {
    let mut requests = ReplyRequests::default();
    let mut grants = ReplyGrants::new(&Seed::new([9; 32]), vec![Prefix::new(WAYPOINT.into(), 32).expect("a host")]);
    let mut seconds = 0;
    // Options on their way, and where to.
    let mut under_way: Vec<(bool, Vec<u8>)> = Vec::new();
    let mut rest = data;
    let mut count = 0;
    while let Some(([what, a, b], behind)) = rest.split_first_chunk::<3>() {
        rest = behind;
        count += 1;
        let now = Now { instant: Instant(seconds * 1_000_000_000), unix: UnixTime((NOW + seconds) * 1_000_000) };
        let pick = |length: usize| usize::from(*a) % length.max(1);
        match what % 6 {
            0 => seconds += u64::from(*a),
            1 => {
                let epoch = granted(now.unix).capability.epoch;
                let hello = requests.leaves(SERVER.into(), epoch, now.instant, || Some(Seed::new([count; 32])));
                under_way.extend(hello.map(|hello| (true, hello)));
            }
            // An octet of one that is under way changes.
            2 if !under_way.is_empty() => {
                let at = pick(under_way.len());
                let mut changed = under_way[at].clone();
                let octet = usize::from(*b) % changed.1.len().max(1);
                if let Some(octet) = changed.1.get_mut(octet) {
                    *octet ^= 1 << (a % 8);
                }
                under_way.push(changed);
            }
            3 => {
                let (octets, behind) = rest.split_at(rest.len().min(usize::from(*b)));
                rest = behind;
                under_way.push((a % 2 == 0, octets.to_vec()));
            }
            4 | 5 if !under_way.is_empty() => {
                let at = pick(under_way.len());
                let (to_server, option) = if b % 4 == 0 { under_way[at].clone() } else { under_way.remove(at) };
                let ends = if to_server { (CLIENT, SERVER) } else { (SERVER, CLIENT) };
                let Some(octets) = carried(&option, ends, now) else { continue };
                let Ok(packet) = Packet::decode(&octets) else { continue };
                if to_server {
                    match grants.receive(&packet, SERVER.into(), now) {
                        Some(Answer::Option(to, answer) | Answer::Granted(to, answer)) => {
                            assert_eq!(to, IpAddr::V4(CLIENT));
                            assert!(answer.len() <= option.len(), "an answer longer than its question");
                            under_way.push((false, answer));
                        }
                        None => {}
                    }
                } else if requests.acknowledged(&packet, now.instant) {
                    assert_eq!(requests.granted(), 1);
                } else if let Some((to, grant)) = requests.offered(&packet, CLIENT.into(), |_| Some(granted(now.unix)))
                {
                    assert_eq!(to, IpAddr::V4(SERVER));
                    under_way.push((true, grant));
                }
            }
            _ => {}
        }
        grants.expire(now.unix);
        for (client, hop, _) in grants.clients() {
            assert_eq!(client, IpAddr::V4(CLIENT));
            assert!(epoch::is_accepted(hop.capability.interval, hop.capability.epoch, now.unix));
        }
        under_way.truncate(32);
    }
});
