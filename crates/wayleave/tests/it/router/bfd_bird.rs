//! BFD with BIRD, whose packets a relay moves between UDP and SCION.
//!
//! BFD-04: BIRD (2.0 or later), whose packets a relay puts into SCION and takes out of it; a changed interval, BIRD
//! killed, the router killed: a session with the slower of both intervals; the poll is answered; each notices the
//! other's end, and the session comes back.

use std::fs;
use std::net::UdpSocket;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::json;
use wayleave_lab::netns::{self, Network, NetworkNamespace};
use wayleave_lab::process::Daemon;
use wayleave_lab::routers::{Installation, default_cache, locate_or_fetch};
use wayleave_packet::scion::{ForwardingKey, Header, HostAddress, Packet, Path, next_header};

use super::bfd::{are, with_bfd};
use super::common::{Folder, Router, eventually};
use super::scion::{KEYS, UP, config, name, now, socket};

/// The port of control packets for a single hop, and a time to live that no packet from further away has (RFC 5881).
const PORT: u16 = 3784;
const TTL: u32 = 255;

struct Bird {
    installation: Installation,
    place: NetworkNamespace,
    folder: PathBuf,
    daemon: Option<Daemon>,
}

impl Bird {
    /// Writes a configuration by which it sends every so many milliseconds.
    fn configure(&self, transmit_ms: u32) {
        let text = format!(
            "router id 10.9.0.2;\nprotocol device {{ }}\nprotocol bfd relayed {{\n  interface \"wire\" {{ min rx interval 100 ms; \
             min tx interval {transmit_ms} ms; multiplier 7; }};\n  neighbor 10.9.0.1 dev \"wire\";\n}}\n"
        );
        fs::write(self.folder.join("bird.conf"), text).expect("written");
    }

    fn start(&mut self) {
        let mut command = self.place.command(self.installation.program("bird"));
        self.installation.prepare(&mut command);
        command.arg("-f").arg("-c").arg(self.folder.join("bird.conf")).arg("-s").arg(self.folder.join("bird.ctl"));
        let mut daemon = Daemon::start(&mut command, &self.folder.join("bird.log")).expect("BIRD starts");
        eventually("BIRD answers", || {
            assert!(daemon.is_running(), "{}", daemon.log_tail(9));
            self.ask("show status").contains("is up")
        });
        self.daemon = Some(daemon);
    }

    fn ask(&self, question: &str) -> String {
        let mut command = self.place.command(self.installation.program("birdcl"));
        self.installation.prepare(command.arg("-s").arg(self.folder.join("bird.ctl")));
        let output = command.args(question.split(' ')).output().expect("birdcl runs");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// State, interval and timeout of its session, in seconds.
    fn is(&self, expected: [&str; 3]) -> bool {
        let answer = self.ask("show bfd sessions");
        let line = answer.lines().find(|line| line.starts_with("10.9.0.1"));
        let words: Vec<&str> = line.unwrap_or_default().split_whitespace().collect();
        words.len() >= 5 && [words[2], words[words.len() - 2], words[words.len() - 1]] == expected
    }
}

/// Passes control packets on between a SCION link and BIRD until told to end.
fn relay(link: &UdpSocket, router: &str, is_over: &AtomicBool) {
    let input = UdpSocket::bind(("10.9.0.1", PORT)).expect("BFD's port");
    let output = UdpSocket::bind(("10.9.0.1", 0)).expect("a port");
    output.set_ttl(TTL).expect("a time to live");
    let step = Some(Duration::from_millis(50));
    [link, &input].iter().for_each(|socket| socket.set_read_timeout(step).expect("a timeout"));
    let key = ForwardingKey::new(&KEYS[0]);
    let host = HostAddress::V4([127, 0, 0, 1].into());
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut octets = [0; 2048];
            while !is_over.load(Ordering::Acquire) {
                let Ok(length) = link.recv(&mut octets) else { continue };
                let packet = Packet::decode(&octets[..length]).expect("sound");
                assert_eq!(packet.header.next_header, next_header::BFD);
                // Refused while no BIRD runs.
                let _ = output.send_to(&packet.payload, ("10.9.0.2", PORT));
            }
        });
        let mut octets = [0; 2048];
        while !is_over.load(Ordering::Acquire) {
            let Ok(length) = input.recv(&mut octets) else { continue };
            let header = Header {
                traffic_class: 0,
                flow_id: 1,
                next_header: next_header::BFD,
                dst: name(1),
                src: name(0),
                dst_host: host,
                src_host: host,
                path: Path::OneHop(key.one_hop(0, now(), 63, 77)),
            };
            let payload = octets[..length].to_vec();
            let _ = link.send_to(&Packet { header, payload }.encode(), router);
        }
    });
}

#[test]
fn bird_and_a_router_keep_a_session_and_notice_each_others_end() {
    let test = "router::bfd_bird::bird_and_a_router_keep_a_session_and_notice_each_others_end";
    // Found, or fetched, where there is a network to fetch by: outside.
    let bird = match locate_or_fetch(&default_cache(), &mut |line| eprintln!("{line}")) {
        Ok(routers) => routers.bird,
        Err(error) => return netns::skipped(&error.to_string()),
    };
    let Some(_) = netns::enter_for_test(test) else { return };
    let network = Network::new().expect("a network");
    let (here, there) = (network.apart("router").expect("a namespace"), network.apart("bird").expect("a namespace"));
    network.join("wire", ("router", "10.9.0.1/24"), ("bird", "10.9.0.2/24")).expect("joined");
    let folder = Folder(network.state().join("bfd"));
    fs::create_dir_all(&folder.0).expect("a folder");
    folder.keys("1.key", "scion", &[(0, KEYS[1])]);
    let (own, link) = ("127.0.0.1:5000", here.within(|| socket("127.0.0.1:5001")).expect("in its place"));
    let config = with_bfd(&config(1, "127.0.0.1:30042", "", &[(UP, "parent", 0, own, "127.0.0.1:5001")]), "");
    let mut bird = Bird { installation: bird, place: there, folder: folder.0.clone(), daemon: None };
    bird.configure(200);
    bird.start();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| here.within(|| relay(&link, own, &is_over)).expect("in its place"));
        let _ends = Ends(&is_over);
        let mut router = Router::start(&folder, "router", here.clone(), &config);
        let session = |state: &str| json!({ "interface 1": state });
        are(&router, session("up"));
        // Each takes the other's intervals: BIRD sends as seldom as it likes to, and waits ten of our tenths.
        eventually("BIRD's session is up", || bird.is(["Up", "0.200", "1.000"]));
        // A change while the session is up takes effect when the other end has answered a poll (section 6.8.3).
        bird.configure(300);
        assert!(bird.ask("configure").contains("Reconfigur"));
        eventually("BIRD's poll is answered", || bird.is(["Up", "0.300", "1.000"]));
        are(&router, session("up"));
        bird.daemon = None;
        are(&router, session("down"));
        bird.start();
        are(&router, session("up"));
        router.kill();
        eventually("BIRD notices", || bird.ask("show bfd sessions").contains("Down"));
        router.start_process();
        are(&router, session("up"));
        eventually("BIRD's session is up again", || bird.is(["Up", "0.300", "1.000"]));
        assert_eq!(router.status()["bfd"]["malformed"], 0);
    });
}

/// Ends the relay, whatever becomes of the test.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}
