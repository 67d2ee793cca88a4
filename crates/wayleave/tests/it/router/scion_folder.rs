//! `run router --scion`: the files of an open-source SCION router.
//!
//! SCI, folder: packets under the key that follows from the master key pass; a changed topology is taken by SIGHUP under traffic: no
//! packet lost, the new interface forwards; one with a fault changes nothing, and the log has its place; `check` says what differs.

use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use wayleave_lab::netns::NetworkNamespace;
use wayleave_packet::scion::{Direction, ForwardingKey, Segment};

use super::common::{Folder, Router, eventually, free};
use super::scion::{DOWN, UP, name, now, packet, path, receive, socket};

/// The master key of the AS in the middle, 16 octets of 2, and the forwarding key that follows from it, by Python's
/// `hashlib.pbkdf2_hmac`.
const MASTER: &str = "AgICAgICAgICAgICAgICAg==\n";
const DERIVED: u128 = 0x94e4_3e01_740e_c3d8_3538_43bb_9b85_aa11;
/// An interface that a reload adds.
const NEW: u16 = 7;
/// Longest time without a packet in which more may come.
const SILENCE: Duration = Duration::from_secs(5);

/// Ends the sender also where an assertion fails: the scope waits for it.
struct EndAtDrop<'a>(&'a AtomicBool);

impl Drop for EndAtDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// An interface as the topology has it.
struct Interface<'a> {
    id: u16,
    link: &'a str,
    neighbor: usize,
    local: &'a str,
    remote: &'a UdpSocket,
}

fn topology(internal: &str, others: &str, interfaces: &[Interface<'_>]) -> String {
    let one = |Interface { id, link, neighbor, local, remote }: &Interface<'_>| {
        let remote = remote.local_addr().expect("bound");
        let neighbor = name(*neighbor);
        format!(
            "\"{id}\": {{ \"underlay\": {{ \"local\": \"{local}\", \"remote\": \"{remote}\" }}, \"isd_as\": \"{neighbor}\", \
             \"link_to\": \"{link}\", \"mtu\": 1472 }}"
        )
    };
    let interfaces: Vec<String> = interfaces.iter().map(one).collect();
    format!(
        "{{ \"isd_as\": \"{}\", \"attributes\": [], \"mtu\": 1472, \"dispatched_ports\": \"31000-32767\",\n\
         \"border_routers\": {{ {others} \"br-b\": {{ \"internal_addr\": \"{internal}\", \"interfaces\": {{\n{}\n}} }} }} }}\n",
        name(1),
        interfaces.join(",\n")
    )
}

/// The folder of a router, whose interfaces have no BFD.
fn write(folder: &Folder, page: &str, topology: &str) {
    fs::create_dir_all(folder.0.join("middle/keys")).expect("a folder");
    let router = format!(
        "[general]\nid = \"br-b\"\nconfig_dir = \"middle\"\n[metrics]\nprometheus = \"{page}\"\n\
         [router]\nbatch_size = 256\nbfd.disable = true\n"
    );
    folder.write("middle/router.toml", &router);
    folder.write("middle/topology.json", topology);
    folder.write("middle/keys/master0.key", MASTER);
    let key = folder.0.join("middle/keys/master0.key");
    fs::set_permissions(key, fs::Permissions::from_mode(0o600)).expect("mode");
}

/// The segment from 1-1 down to 1-3 by this interface of the AS in the middle.
fn segment(down: u16) -> Segment {
    let mut segment = Segment::new(0x1234, now() - 60);
    let [other, own] = [ForwardingKey::new(&[1; 16]), ForwardingKey::new(&DERIVED.to_be_bytes())];
    segment.extend(&other, 63, 0, DOWN, &[]);
    segment.extend(&own, 63, UP, down, &[]);
    segment.extend(&other, 63, UP, 0, &[]);
    segment
}

/// A packet as the provider sends it: the pointer is at the second hop field.
fn inbound(segment: &Segment, number: u32) -> Vec<u8> {
    let hosts = [SocketAddr::from(([10, 0, 0, 1], 31_001)), SocketAddr::from(([10, 0, 0, 2], 31_002))];
    let mut path = path(segment, Direction::Construction);
    path.infos[0].seg_id = segment.beta(1);
    path.meta.current_hop = 1;
    packet((0, hosts[0]), (2, hosts[1]), path, &number.to_be_bytes())
}

#[test]
fn a_scion_routers_folder_forwards_and_a_reload_takes_a_changed_topology_without_losing_a_packet() {
    let folder = Folder::new("scion-folder");
    let (page, inside, up, down, more) = (free(), free(), free(), free(), free());
    let (provider, customer, other) = (socket(&free()), socket(&free()), socket(&free()));
    let [first, second, third] = [
        Interface { id: UP, link: "PARENT", neighbor: 0, local: &up, remote: &provider },
        Interface { id: DOWN, link: "CHILD", neighbor: 2, local: &down, remote: &customer },
        Interface { id: NEW, link: "CHILD", neighbor: 2, local: &more, remote: &other },
    ];
    let before = topology(&inside, "", &[first, second]);
    write(&folder, &page, &before);
    let checked = folder.run(&["check", "middle"]);
    let printed = String::from_utf8(checked.stdout).expect("text");
    assert!(checked.status.success(), "{printed}");
    assert!(printed.contains("warning: router.toml: router.batch_size: not used"), "{printed}");
    assert!(printed.contains("a configuration for `wayleave run router`"), "{printed}");
    let router = Router::start_folder(&folder, "middle", NetworkNamespace::Own, &page);
    assert!(router.log().contains("router.toml: router.batch_size: not used"), "{}", router.log());

    let segment_before = segment(DOWN);
    let (is_done, arrived) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let end = EndAtDrop(&is_done);
        let sender = scope.spawn(|| {
            let mut number = 0;
            while !is_done.load(Ordering::Acquire) {
                provider.send_to(&inbound(&segment_before, number), &up).expect("sent");
                number += 1;
                // The test's own socket must not be what loses them.
                let begin = Instant::now();
                while arrived.load(Ordering::Acquire) + 64 < number as usize && begin.elapsed() < SILENCE {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            number as usize
        });
        let receiver = scope.spawn(|| {
            let mut octets = [0; 2048];
            while customer.recv(&mut octets).is_ok() {
                arrived.fetch_add(1, Ordering::AcqRel);
            }
        });
        eventually("packets pass", || arrived.load(Ordering::Acquire) > 100);
        // An interface more, and another router, which comes first by its name.
        let sibling = format!(
            "\"br-a\": {{ \"internal_addr\": \"{}\", \"interfaces\": {{ \"9\": {{ \"isd_as\": \"{}\", \"link_to\": \"CHILD\" }} }} }},",
            free(),
            name(2)
        );
        let first = Interface { id: UP, link: "PARENT", neighbor: 0, local: &up, remote: &provider };
        let second = Interface { id: DOWN, link: "CHILD", neighbor: 2, local: &down, remote: &customer };
        let after = topology(&inside, &sibling, &[first, second, third]);
        folder.write("middle/topology.json", &after);
        router.reload();
        provider.send_to(&inbound(&segment(NEW), 5), &up).expect("sent");
        assert_eq!(receive(&other).0.last_chunk(), Some(&5u32.to_be_bytes()));
        // A fault changes nothing, and has its place.
        folder.write("middle/topology.json", &after.replace("\"PARENT\"", "\"provider\""));
        router.signal("-HUP");
        let place = format!("topology.json: border_routers.br-b.interfaces.{UP}.link_to: expected");
        eventually("the fault is logged", || router.log().contains(&place));
        let refused = folder.run(&["check", "middle", "--json"]);
        let found: serde_json::Value = serde_json::from_slice(&refused.stdout).expect("JSON");
        let message = found["errors"][0]["message"].as_str().expect("a message");
        assert!(message.starts_with(&format!("middle/{place}")), "{found}");
        // And back, with an interface less.
        folder.write("middle/topology.json", &before);
        router.reload();
        drop(end);
        let sent = sender.join().expect("the sender");
        receiver.join().expect("the receiver");
        assert_eq!(arrived.load(Ordering::Acquire), sent, "{}", router.status());
        assert!(sent > 100, "{sent}");
    });
    // By the interface that is gone nothing goes on.
    provider.send_to(&inbound(&segment(NEW), 6), &up).expect("sent");
    eventually("it is counted", || router.status()["reasons"].as_object().is_some_and(|reasons| !reasons.is_empty()));
}

#[test]
fn what_is_no_scion_routers_folder_is_refused_with_what_is_missing() {
    let folder = Folder::new("scion-folder-refused");
    let (page, inside, up) = (free(), free(), free());
    let provider = socket(&free());
    let interface = Interface { id: UP, link: "PARENT", neighbor: 0, local: &up, remote: &provider };
    let refused = |arguments: &[&str], message: &str| {
        let output = folder.run(arguments);
        let printed = String::from_utf8(output.stderr).expect("text");
        let printed = printed.replace('│', " ").split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(!output.status.success() && printed.contains(message), "{arguments:?}: {printed}");
    };
    refused(&["run", "router", "--scion", "."], "is not the folder of a SCION router");
    refused(&["run", "gateway", "--scion", "."], "`--scion` is for a router");
    refused(&["run", "router"], "--config");
    refused(&["run", "router", "--scion", ".", "--config", "a.toml"], "cannot be used with");
    write(&folder, &page, &topology(&inside, "", &[interface]));
    fs::remove_file(folder.0.join("middle/keys/master0.key")).expect("removed");
    refused(&["check", "middle"], "does not exist yet");
    refused(&["run", "router", "--scion", "middle"], "master0.key");
    fs::remove_file(folder.0.join("middle/router.toml")).expect("removed");
    refused(&["check", "middle"], "no router.toml beside topology.json");
    for name in ["br1.toml", "br2.toml"] {
        folder.write(&format!("middle/{name}"), "");
    }
    refused(&["check", "middle"], "files of several routers, as br1.toml and br2.toml");
}

#[test]
fn a_master_key_becomes_a_file_of_forwarding_keys_and_is_never_written_to() {
    let folder = Folder::new("scion-import");
    folder.write("master0.key", MASTER);
    let mode = |mode| {
        fs::set_permissions(folder.0.join("master0.key"), fs::Permissions::from_mode(mode)).expect("mode");
    };
    let import = |arguments: &[&str]| folder.run(&[&["keys", "forwarding"], arguments].concat());
    mode(0o644);
    let output = import(&["router.key", "--format", "scion", "--import", "master0.key"]);
    assert!(!output.status.success(), "others may read it");
    mode(0o600);
    let output = import(&["router.key", "--format", "scion", "--import", "master0.key"]);
    assert!(output.status.success(), "{output:?}");
    let secret = format!("secret = \"{DERIVED:032x}\"");
    let keys = || fs::read_to_string(folder.0.join("router.key")).expect("a file");
    assert!(keys().contains(&secret) && keys().contains("from = 0"));
    let output = import(&["router.key", "--format", "scion", "--import", "master0.key", "--next", "1800000000"]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(keys().matches(&secret).count(), 2);
    assert_eq!(import(&["b.key", "--format", "icing", "--import", "master0.key"]).status.code(), Some(2));
    assert!(!import(&["b.key", "--format", "scion", "--import", "router.key"]).status.success(), "no master key");
    assert!(!import(&["master0.key", "--format", "scion", "--next", "1800000000"]).status.success());
    assert_eq!(fs::read_to_string(folder.0.join("master0.key")).expect("a file"), MASTER);
}
