//! Two waypoints on a LAN, a server behind them, and a client: alone at its own machine, or behind one that forwards.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use wayleave_lab::netns::{self, Network, NetworkNamespace, Rung};
use wayleave_lab::routers::{CURL, Installation};

use crate::key::fetched;
use crate::router::common::{Folder, Router, eventually};
use crate::router::platypus::{HOST, KEYS, LAST, WAYPOINTS};

/// Principals: who pays at the first waypoint, and who at the second.
pub(crate) const PRINCIPALS: [u32; 2] = [7, 8];
/// Octets of what the server answers.
pub(crate) const BODY: usize = 300_000;
/// The address of the machine that forwards, on the client's side and on the LAN.
pub(crate) const GATEWAY: [&str; 2] = ["192.0.2.1", "198.51.100.9"];

/// The machines.
pub(crate) struct Site {
    pub(crate) network: Network,
    pub(crate) client: NetworkNamespace,
    /// Where the stamper runs: the client's own machine, or the one in front of it.
    pub(crate) stamping: NetworkNamespace,
    pub(crate) server: NetworkNamespace,
    pub(crate) waypoints: Vec<NetworkNamespace>,
    /// Who asked the server for its page.
    pub(crate) peers: Arc<Mutex<Vec<IpAddr>>>,
}

/// The machines with their waypoints running.
pub(crate) struct World {
    pub(crate) site: Site,
    pub(crate) folder: Folder,
    pub(crate) routers: Vec<Router>,
    curl: Installation,
}

/// Enters the namespaces for a test, with curl at hand: there is no way to a mirror in them.
pub(crate) fn enter(test: &str) -> Option<Rung> {
    fetched(&CURL, test)?;
    netns::enter_for_test(test)
}

pub(crate) fn ip(line: &str) {
    let output = Command::new("ip").args(line.split(' ')).output().expect("ip runs");
    assert!(output.status.success(), "ip {line}: {}", String::from_utf8_lossy(&output.stderr));
}

pub(crate) fn text(octets: &[u8]) -> String {
    String::from_utf8_lossy(octets).into_owned()
}

impl Site {
    /// Lays out the network. Everybody reaches everybody; the client is behind the machine that stamps, or is that machine.
    pub(crate) fn new(is_behind: bool) -> Self {
        let network = Network::new().expect("a network");
        let attach = |name: &str, address: &str| {
            let place = network.attach(name, &[format!("{address}/24")]).expect("a namespace");
            // Everybody is on the LAN, whatever the address.
            ip(&format!("-n {name} route add default dev eth0"));
            place
        };
        let server = attach("server", &LAST.to_string());
        let waypoints: Vec<NetworkNamespace> =
            (0..2).map(|which| attach(&format!("waypoint{which}"), &WAYPOINTS[which].to_string())).collect();
        let (client, stamping) = match is_behind {
            false => {
                let client = attach("client", &HOST.to_string());
                (client.clone(), client)
            }
            true => {
                let stamping = attach("edge", GATEWAY[1]);
                let client = network.apart("client").expect("a namespace");
                network
                    .join("inside", ("client", &format!("{HOST}/24")), ("edge", &format!("{}/24", GATEWAY[0])))
                    .expect("a link");
                ip(&format!("-n client route add default via {}", GATEWAY[0]));
                for place in ["server", "waypoint0", "waypoint1"] {
                    ip(&format!("-n {place} route add 192.0.2.0/24 via {} onlink dev eth0", GATEWAY[1]));
                }
                let forward = || std::fs::write("/proc/sys/net/ipv4/ip_forward", "1");
                stamping.within(forward).expect("in its place").expect("it forwards");
                (client, stamping)
            }
        };
        let peers = serve(&server, LAST.into());
        Self { network, client, stamping, server, waypoints, peers }
    }
}

impl World {
    /// Lays out the network and starts the waypoints, which take the header off for the server.
    pub(crate) fn start(name: &str, is_behind: bool) -> Self {
        Self::start_with(name, is_behind, "decapsulate = [\"203.0.113.0/24\"]\n")
    }

    /// The same with more lines in the waypoints' sections.
    pub(crate) fn start_with(name: &str, is_behind: bool, more: &str) -> Self {
        let site = Site::new(is_behind);
        let folder = Folder::new(name);
        let routers = (0..2)
            .map(|which| {
                folder.keys(&format!("{which}.key"), "platypus", &[(0, KEYS[which])]);
                let config = format!(
                    "[forwarding]\nformat = \"platypus\"\nkeys = \"{which}.key\"\nstate = \"{which}.redb\"\n[platypus]\n\
                     waypoints = [\"{}\"]\nown_waypoints = [\"{}/32\"]\nreplay_capacity = 100000\n{more}",
                    WAYPOINTS[which],
                    WAYPOINTS[1 - which]
                );
                Router::start(&folder, &format!("waypoint{which}"), site.waypoints[which].clone(), &config)
            })
            .collect();
        let curl = fetched(&CURL, name).expect("it is there since the test began");
        let world = Self { site, folder, routers, curl };
        for (which, principal) in PRINCIPALS.into_iter().enumerate() {
            world.mint(which, principal, &[]);
        }
        world
    }

    /// Makes the file of capabilities of one waypoint.
    pub(crate) fn mint(&self, which: usize, principal: u32, more: &[&str]) {
        self.mint_file(&format!("{which}.cap"), which, principal, more);
    }

    /// The same under a name of the file's own.
    pub(crate) fn mint_file(&self, file: &str, which: usize, principal: u32, more: &[&str]) {
        let key = format!("{which}.key");
        let (waypoint, principal) = (WAYPOINTS[which].to_string(), principal.to_string());
        let line = ["cap", "mint", file, "--key", &key, "--waypoint", &waypoint, "--principal", &principal];
        let output = self.folder.run(&[&line[..], more].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
    }

    /// Starts the stamper, with its route through both waypoints.
    pub(crate) fn stamper(&self, host: &str, rules: &str) -> Router {
        let place = self.site.stamping.clone();
        Router::start_role("stamper", &self.folder, "stamper", place, &config(host, rules))
    }

    /// Packets that a waypoint has forwarded so far.
    pub(crate) fn forwarded(&self, which: usize) -> u64 {
        self.routers[which].count("decided", "forwarded")
    }

    /// Packets of a delegation in a waypoint's books.
    pub(crate) fn delegated(&self, which: usize, delegation: u32) -> u64 {
        let accounts = self.routers[which].json("accounts");
        let rows = accounts["accounts"].as_array().into_iter().flatten();
        let of = rows.filter(|row| row["delegation"] == delegation);
        of.filter_map(|row| row["packets"].as_str()?.parse::<u64>().ok()).sum()
    }

    /// What a waypoint's books say of its principals: number and packets, in order.
    pub(crate) fn books(&self, which: usize) -> Vec<(u64, u64)> {
        let accounts = self.routers[which].json("accounts");
        let row = |row: &Value| Some((row["principal"].as_u64()?, row["packets"].as_str()?.parse().ok()?));
        let mut rows: Vec<(u64, u64)> = accounts["accounts"].as_array().into_iter().flatten().filter_map(row).collect();
        rows.sort_unstable();
        rows
    }

    /// Fetches the server's page from the client's machine, as its user or as another, by curl.
    pub(crate) fn curl(&self, user: Option<u32>) -> Output {
        self.curl_from(&self.site.client, user, &[])
    }

    /// The same from another machine, with more options.
    pub(crate) fn curl_from(&self, place: &NetworkNamespace, user: Option<u32>, more: &[&str]) -> Output {
        let program = self.curl.program("curl");
        let mut command = match user {
            None => place.command(program),
            Some(user) => {
                let mut command = place.command("setpriv");
                command.args([&format!("--reuid={user}"), &format!("--regid={user}"), "--clear-groups"]).arg(program);
                command
            }
        };
        self.curl.prepare(&mut command);
        command.args(["--silent", "--show-error", "--max-time", "20"]).args(more).arg(format!("http://{LAST}/"));
        command.output().expect("curl runs")
    }

    /// A command of a shell that finds curl by its name.
    pub(crate) fn with_curl<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        let program = self.curl.program("curl");
        let folder = program.parent().unwrap_or(Path::new("/usr/bin")).display().to_string();
        let path = std::env::var("PATH").unwrap_or_default();
        self.curl.prepare(command);
        command.env("PATH", format!("{folder}:{path}"))
    }

    /// Fetches the page by curl, and returns how many packets each waypoint forwarded for it, the last ones included.
    pub(crate) fn fetch(&self, user: Option<u32>) -> [u64; 2] {
        let forwarded = || [self.forwarded(0), self.forwarded(1)];
        let before = forwarded();
        let output = self.curl(user);
        assert!(output.status.success(), "{} {}", text(&output.stderr), self.routers[0].status());
        assert!(output.stdout == body(), "{} octets arrived", output.stdout.len());
        let after = settled(forwarded);
        [after[0] - before[0], after[1] - before[1]]
    }
}

pub(crate) fn config(host: &str, rules: &str) -> String {
    format!(
        "[host]\n{host}[stamper]\nroutes = [{{ name = \"paid\", capabilities = [\"0.cap\", \"1.cap\"] }}]\n\
         rules = [{rules}]\n"
    )
}

/// Waits until packets in flight have been counted: a counter that has not changed for a while.
pub(crate) fn settled<T: PartialEq>(count: impl Fn() -> T) -> T {
    let mut last = count();
    loop {
        std::thread::sleep(Duration::from_millis(200));
        let next = count();
        if next == last {
            return next;
        }
        last = next;
    }
}

pub(crate) fn body() -> Vec<u8> {
    (0..BODY as u32).map(|number| (number * 7 + number / 251) as u8).collect()
}

/// An ordinary web server; it notes who asks.
pub(crate) fn serve(place: &NetworkNamespace, address: IpAddr) -> Arc<Mutex<Vec<IpAddr>>> {
    let listener = place.within(|| TcpListener::bind((address, 80))).expect("in its place");
    let listener = listener.expect("port 80");
    let peers = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&peers);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            noted.lock().expect("noted").push(stream.peer_addr().expect("connected").ip());
            std::thread::spawn(move || answer(&mut stream));
        }
    });
    peers
}

fn answer(stream: &mut TcpStream) -> std::io::Result<()> {
    let mut request = Vec::new();
    let mut part = [0; 1024];
    while !request.ends_with(b"\r\n\r\n") {
        let length = stream.read(&mut part)?;
        if length == 0 {
            return Ok(());
        }
        request.extend_from_slice(&part[..length]);
    }
    let body = body();
    write!(stream, "HTTP/1.0 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len())?;
    stream.write_all(&body)
}

/// Waits until both waypoints' books say the same as their counters.
pub(crate) fn balance(world: &World) {
    for which in 0..2 {
        let forwarded = settled(|| world.forwarded(which));
        eventually("the books have every packet", || {
            world.books(which).iter().map(|(_, packets)| packets).sum::<u64>() == forwarded
        });
    }
}
