//! The step about paid transit: `curl` as one user crosses waypoints that two principals pay for, as another it does not, and the
//! bill is what was captured. Desk and web server are ordinary hosts; only the desk has a stamper, which looks up the secrets of two
//! capabilities at the provider's key server. The waypoints report to it, and the bill is its statement.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::Options;
use super::exchange::DemoExchange;
use super::http::get_json;
use super::report::SKIPPED;
use crate::netns::{Network, NetworkNamespace, ip};
use crate::overlay::tun_problem;
use crate::postgres::Postgres;
use crate::process::wait_until;
use crate::role_process::RoleProcess;
use crate::routers::{CURL, Installation, POSTGRESQL, default_cache, locate_or_fetch_router};
use crate::wire::Capture;

type Facts = Vec<String>;

const TIMEOUT: Duration = Duration::from_secs(30);
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
const DESK: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 10);
const WAYPOINTS: [Ipv4Addr; 2] = [Ipv4Addr::new(198, 51, 100, 1), Ipv4Addr::new(198, 51, 100, 2)];
const WEB: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 10);
const KEY_SERVER: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 53);
/// Where the waypoints report to it.
const REPORTS: u16 = 8_494;
/// Who pays at each waypoint.
const PRINCIPALS: [u32; 2] = [7, 8];
/// Whose packets are stamped: any user but the one that runs this.
const USER: u32 = 65_534;
/// Where each role's status pages are, in a namespace of its own.
const PAGE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8_486);
/// Octets of the page.
const BODY: usize = 100_000;
const PLATYPUS: u8 = 253;

/// A frame with a packet that is stamped for the first waypoint.
fn is_paid(frame: &[u8]) -> bool {
    frame.get(12..14) == Some(&[8, 0])
        && frame.get(23) == Some(&PLATYPUS)
        && frame.get(30..34) == Some(&WAYPOINTS[0].octets())
}

/// Machines on a LAN of their own, and what runs there.
struct PaidTransit {
    desk: NetworkNamespace,
    waypoints: [NetworkNamespace; 2],
    key_server: NetworkNamespace,
    roles: Vec<RoleProcess>,
    /// The key server's database, if it is not a file.
    _postgres: Option<Postgres>,
}

impl PaidTransit {
    fn start(network: &Network, (folder, binary): (&Path, &Path), postgres: Option<Postgres>) -> Result<Self, String> {
        let failed = |error: crate::netns::NetworkError| error.to_string();
        network.bridge("transit", "198.18.77.254/24").map_err(failed)?;
        let attach = |name: &str, address: Ipv4Addr| {
            let place = network.attach_to("transit", name, &[format!("{address}/24")])?;
            // Everybody is on the LAN, whatever the address.
            ip(&[format!("-n {name} route add default dev eth0")])?;
            Ok(place)
        };
        let desk = attach("paid-desk", DESK).map_err(failed)?;
        let web = attach("paid-web", WEB).map_err(failed)?;
        let key_server = attach("paid-key", KEY_SERVER).map_err(failed)?;
        let waypoints = [attach("paid-west", WAYPOINTS[0]), attach("paid-east", WAYPOINTS[1])];
        let [west, east] = waypoints.map(|place| place.map_err(failed));
        let waypoints = [west?, east?];
        serve(&web).map_err(|error| format!("web server: {error}"))?;
        fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let files = Files { folder, binary };
        let identity = files.key_server(postgres.as_ref().map(Postgres::url))?;
        let role = |name: &str, place: &NetworkNamespace, role, config: &str| {
            let log = folder.join(format!("{}.log", name.replace(' ', "-")));
            RoleProcess::new(name.to_owned(), place, binary, role, folder.join(config), log)
        };
        let mut roles = Vec::new();
        for (index, place) in waypoints.iter().enumerate() {
            files.waypoint(index, &identity)?;
            roles.push(role(&format!("waypoint {}", index + 1), place, "router", &format!("waypoint{index}.toml")));
        }
        files.stamper()?;
        roles.push(role("stamper", &desk, "stamper", "desk.toml"));
        roles.push(role("key server", &key_server, "key", "server/key.toml"));
        // The key server first: nobody has to try twice.
        for role in roles.iter_mut().rev() {
            role.start()?;
        }
        let transit = Self { desk, waypoints, key_server, roles, _postgres: postgres };
        transit.wait()?;
        Ok(transit)
    }

    /// Waits until all answer, the waypoints accept what is stamped now and report, and the stamper has its secrets.
    fn wait(&self) -> Result<(), String> {
        let places = self.waypoints.iter().chain([&self.desk, &self.key_server]);
        for (place, role) in places.zip(&self.roles) {
            let is_ready = || {
                let status = get_json(place, PAGE, "/api/v1/status").ok()?;
                let problems = status["problems"].as_array().map_or(0, Vec::len);
                let routers = status["routers"].as_array().into_iter().flatten();
                let are_connected = routers.filter(|router| router["connected"] != true).count() == 0;
                (status["refuses_until"].is_null() && problems == 0 && are_connected).then_some(())
            };
            wait_until(TIMEOUT, is_ready)
                .ok_or_else(|| format!("a role of the paid transit does not run: {}", role.log_tail()))?;
        }
        Ok(())
    }

    /// Fetches the page by curl, as this user or another.
    fn curl(&self, curl: &Installation, user: Option<u32>) -> Result<(), String> {
        let program = curl.program("curl");
        let mut command = match user {
            None => self.desk.command(program),
            Some(user) => {
                let mut command = self.desk.command("setpriv");
                command.args([&format!("--reuid={user}"), "--clear-groups"]);
                if !curl.from_system {
                    // What was fetched lies in the build's folder, which may be below a home that is its owner's alone.
                    command.args(["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]);
                }
                command.arg(program);
                command
            }
        };
        curl.prepare(&mut command);
        command.args(["--silent", "--show-error", "--max-time", "20", &format!("http://{WEB}/")]);
        let output = command.output().map_err(|error| format!("curl: {error}"))?;
        match output.stdout.len() {
            BODY => Ok(()),
            length => Err(format!("{length} of {BODY} octets: {}", String::from_utf8_lossy(&output.stderr))),
        }
    }

    /// Principal, packets and octets of a waypoint on the key server's statement; zeros if it has none.
    fn bill(&self, waypoint: usize) -> Result<(u64, u64, u64), String> {
        let statement = get_json(&self.key_server, PAGE, "/api/v1/usage").map_err(|error| error.to_string())?;
        let lines = statement["usage"].as_array().cloned().unwrap_or_default();
        let of: Vec<&Value> = lines.iter().filter(|line| line["router"] == waypoint + 1).collect();
        let number =
            |field: &str| -> u64 { of.iter().filter_map(|line| line[field].as_str()?.parse::<u64>().ok()).sum() };
        let principal = of.first().and_then(|line| line["principal"].as_u64()).unwrap_or(0);
        match of.iter().all(|line| line["principal"] == principal) {
            true => Ok((principal, number("packets"), number("octets"))),
            false => Err("accounts of several principals, expected one's".to_owned()),
        }
    }
}

/// The configurations, and the program that makes keys for them.
struct Files<'a> {
    folder: &'a Path,
    binary: &'a Path,
}

impl Files<'_> {
    fn run(&self, arguments: &[&str]) -> Result<String, String> {
        let output = Command::new(self.binary).args(arguments).current_dir(self.folder).output();
        let output = output.map_err(|error| error.to_string())?;
        let said = String::from_utf8_lossy(&output.stderr);
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        } else {
            Err(format!("{}: {said}", arguments.join(" ")))
        }
    }

    fn write(&self, name: &str, text: &str) -> Result<(), String> {
        fs::write(self.folder.join(name), text).map_err(|error| format!("{name}: {error}"))
    }

    /// Makes an identity; returns its public key.
    fn identity(&self, file: &str) -> Result<String, String> {
        let made = self.run(&["keys", "node", file, "--kind", "identity", "--json"])?;
        let made: Value = serde_json::from_str(&made).map_err(|error| error.to_string())?;
        made["public"].as_str().map(str::to_owned).ok_or_else(|| format!("{file}: no public key"))
    }

    /// Makes the key server with a capability for each principal, as lines; returns its public key.
    fn key_server(&self, database: Option<String>) -> Result<String, String> {
        let (listen, status) = (format!("{KEY_SERVER}:53"), PAGE.to_string());
        let zone = ["--zone", "keys.demo", "--name-server", "ns.keys.demo"];
        let at = ["--listen", &listen, "--status", &status];
        let database: Vec<&str> = database.iter().flat_map(|url| ["--database", url]).collect();
        self.run(&[&["cap", "init", "server"], &zone[..], &at[..], &database[..]].concat())?;
        let identity = self.identity("server/identity.key")?;
        let mut more = format!("[key.routers]\nlisten = \"{KEY_SERVER}:{REPORTS}\"\nidentity = \"identity.key\"\n");
        for (index, waypoint) in WAYPOINTS.into_iter().enumerate() {
            let key = format!("{index}.key");
            self.run(&["keys", "forwarding", &key, "--format", "platypus"])?;
            let router = self.identity(&format!("{index}.identity"))?;
            more += &format!(
                "[[key.waypoint]]\naddress = \"{waypoint}\"\nkey = \"../{key}\"\n\
                 [[key.router]]\nnumber = {}\nidentity = \"{router}\"\n",
                index + 1
            );
        }
        let file = "server/key.toml";
        let text = fs::read_to_string(self.folder.join(file)).map_err(|error| format!("{file}: {error}"))?;
        self.write(file, &(text + &more))?;
        for (index, (waypoint, principal)) in WAYPOINTS.into_iter().zip(PRINCIPALS).enumerate() {
            let (waypoint, principal) = (waypoint.to_string(), principal.to_string());
            let of = ["--waypoint", &waypoint, "--principal", &principal, "--config", file];
            let line = self.run(&[&["cap", "grant"], &of[..]].concat())?;
            let name = format!("{index}.line");
            self.write(&name, &line)?;
            fs::set_permissions(self.folder.join(&name), fs::Permissions::from_mode(0o600))
                .map_err(|error| format!("{name}: {error}"))?;
        }
        Ok(identity)
    }

    fn waypoint(&self, index: usize, server: &str) -> Result<(), String> {
        // The last one takes the header off, for a server that knows nothing of it.
        let bare = if index == 1 { "decapsulate = [\"203.0.113.0/24\"]\n" } else { "" };
        let (waypoint, other) = (WAYPOINTS[index], WAYPOINTS[1 - index]);
        self.write(
            &format!("waypoint{index}.toml"),
            &format!(
                "[forwarding]\nformat = \"platypus\"\nkeys = \"{index}.key\"\nstate = \"{index}.redb\"\n[platypus]\n\
                 waypoints = [\"{waypoint}\"]\nown_waypoints = [\"{other}/32\"]\nreplay_capacity = 100000\n{bare}\
                 [platypus.provider]\n\
                 identity = \"{index}.identity\"\n\
                 server = {{ identity = \"{server}\", address = \"{KEY_SERVER}:{REPORTS}\" }}\n\
                 [status]\nlisten = \"{PAGE}\"\n"
            ),
        )
    }

    fn stamper(&self) -> Result<(), String> {
        self.write(
            "desk.toml",
            &format!(
                "[host]\naddress = \"{DESK}\"\nresolvers = [\"{KEY_SERVER}\"]\n[stamper]\n\
                 routes = [{{ name = \"paid\", capabilities = [\"0.line\", \"1.line\"] }}]\n\
                 rules = [{{ to = \"203.0.113.0/24\", route = \"paid\", user = {USER} }}]\n[status]\nlisten = \"{PAGE}\"\n"
            ),
        )
    }
}

pub(super) fn transit(exchange: &mut DemoExchange, options: &Options, facts: &mut Facts) -> Result<(), String> {
    let network = exchange.network().ok_or("this rung has no network namespaces")?;
    if let Some(reason) = tun_problem() {
        facts.push(format!("{SKIPPED}{reason}; the stamper needs it"));
        return Ok(());
    }
    let curl = match locate_or_fetch_router(&CURL, &default_cache(), &mut |_| ()) {
        Ok(curl) => curl,
        Err(error) => {
            facts.push(format!("{SKIPPED}{error}"));
            return Ok(());
        }
    };
    let postgres = if options.postgresql {
        let installation = locate_or_fetch_router(&POSTGRESQL, &default_cache(), &mut |_| ());
        let installation = installation.map_err(|error| error.to_string())?;
        Some(Postgres::start(&installation).map_err(|error| error.to_string())?)
    } else {
        None
    };
    let database = if options.postgresql { "a PostgreSQL database" } else { "a SQLite file" };
    let mut transit = PaidTransit::start(network, (&exchange.state().join("paid"), exchange.binary()), postgres)?;
    let capture = Capture::start(&transit.waypoints[0], is_paid).map_err(|error| format!("capture: {error}"))?;

    transit.curl(&curl, None)?;
    if !capture.frames().is_empty() || transit.bill(0)?.1 != 0 {
        return Err("packets of a user without a rule were stamped".to_owned());
    }
    facts.push("curl as root: the page comes by the usual path, and nobody pays".to_owned());

    transit.curl(&curl, Some(USER))?;
    // The waypoints count last; the packets that end the connection may still be under way.
    let billed = || {
        let frames = capture.frames();
        let octets = frames.iter().map(|frame| u64::from(u16::from_be_bytes([frame[16], frame[17]]))).sum::<u64>();
        let captured = (u64::from(PRINCIPALS[0]), frames.len() as u64, octets);
        let (first, second) = (transit.bill(0).ok()?, transit.bill(1).ok()?);
        let is_even = captured.1 > 10 && first == captured && second == (u64::from(PRINCIPALS[1]), first.1, first.2);
        is_even.then_some(captured)
    };
    let bills = || format!("{:?} and {:?}, captured {}", transit.bill(0), transit.bill(1), capture.frames().len());
    let (_, packets, octets) =
        wait_until(TIMEOUT, billed).ok_or_else(|| format!("the bills are wrong: {}", bills()))?;
    facts.push(format!("curl as user {USER}: {packets} packets cross both waypoints; principals {PRINCIPALS:?} pay"));
    facts.push(format!(
        "the key server's statement, from {database}, has {packets} packets, {octets} octets for each waypoint: what was captured in \
         front of the first"
    ));

    transit.curl(&curl, None)?;
    if billed().is_none_or(|(_, again, _)| again != packets) {
        return Err(format!("packets of a user without a rule were billed: {}", bills()));
    }
    let killed = transit.roles.iter_mut().map(|role| role.stop(STOP_TIMEOUT)).filter(|in_order| !in_order).count();
    if killed > 0 {
        return Err(format!("{killed} processes had to be killed"));
    }
    Ok(())
}

/// An ordinary web server, for as long as this process lives.
fn serve(place: &NetworkNamespace) -> io::Result<()> {
    let listener = place.within(|| TcpListener::bind(SocketAddr::from((WEB, 80))))??;
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || answer(stream));
        }
    });
    Ok(())
}

fn answer(mut stream: TcpStream) -> io::Result<()> {
    let mut request = Vec::new();
    let mut part = [0; 1_024];
    while !request.ends_with(b"\r\n\r\n") && request.len() < 8_192 {
        match stream.read(&mut part)? {
            0 => return Ok(()),
            length => request.extend_from_slice(&part[..length]),
        }
    }
    write!(stream, "HTTP/1.0 200 OK\r\nContent-Length: {BODY}\r\n\r\n")?;
    stream.write_all(&vec![b'w'; BODY])
}
