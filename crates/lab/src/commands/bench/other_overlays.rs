//! Overlays to compare with: one that does nothing but TUN and UDP, the kernel's WireGuard, and the user-space WireGuard programs.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::AsFd as _;
use wayleave_crypto::dh::DhSecret;
use wayleave_crypto::secret::Seed;
use wayleave_lab::netns;
use wayleave_lab::process::{Daemon, wait_until};
use wayleave_lab::routers::{
    Installation, RouterPackage, WIREGUARD_GO, WIREGUARD_TOOLS, default_cache, locate_or_fetch_router,
};
use wayleave_runtime::identity::to_hex;
use wayleave_runtime::packets::tun::{LONGEST, Tun};
use wayleave_runtime::packets::udp::{self, Intake, Udp};
use wayleave_runtime::packets::{Burst, Outgoing, Port};

use super::chain::{Chain, Pair, Result, said};

/// The version of boringtun that is built.
const BORINGTUN: &str = "0.7.1";
/// The module of wireguard-go, and the version that is built: it has UDP and TUN offloads.
const WIREGUARD_GO_MODULE: &str = "golang.zx2c4.com/wireguard";
const WIREGUARD_GO_VERSION: &str = "0.0.0-20260522210424-ecfc5a8d5446";
/// Packets of a WireGuard interface (its programs' default).
const WIREGUARD_MTU: u32 = 1_420;
/// Octets in front of each datagram of the null overlay: the message's number, its length, where this part begins.
const FRAMING: usize = 12;
/// Octets of a message in each of its datagrams.
const PART: usize = 1_440;
const NULL_MTU: u32 = 1_400;
/// Packets that are read before others have their turn.
const TURN: usize = 32;

/// The inner addresses of overlay `number`.
fn inner(number: u8) -> [Ipv4Addr; 2] {
    [Ipv4Addr::new(10, 9, number, 1), Ipv4Addr::new(10, 9, 100 + number, 1)]
}

fn set_up(chain: &Chain, pair: &Pair, interfaces: &[String; 2], number: u8, mtu: u32) -> Result<IpAddr> {
    let addresses = inner(number);
    for (end, name) in pair.ends.into_iter().enumerate() {
        let (own, other, interface) = (addresses[end], addresses[1 - end], &interfaces[end]);
        chain.shell(
            name,
            &format!(
                "ip link set {interface} mtu {mtu} up && ip addr add {own}/32 dev {interface} && ip route add {other}/32 dev {interface} src {own}"
            ),
        )?;
    }
    Ok(addresses[1].into())
}

/// TUN and UDP, and nothing else: what the system's interfaces cost any overlay in user space.
pub struct Null {
    pub address: IpAddr,
    is_done: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Null {
    pub fn start(chain: &Chain, pair: &Pair, number: u8) -> Result<Self> {
        let port = 51_000 + u16::from(number);
        let ends = pair.outer.map(|outer| SocketAddr::from((outer, port)));
        let interfaces = pair.ends.map(|name| format!("null{name}"));
        let is_done = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        for (end, name) in pair.ends.into_iter().enumerate() {
            let open = || {
                let tun = Tun::open(&interfaces[end], NULL_MTU)?;
                Ok::<_, std::io::Error>((tun, udp::open(ends[end], 1, Intake::Merged, None)?))
            };
            let (tun, group) = chain.place(name).within(open).map_err(said)?.map_err(said)?;
            let socket = group.data.into_iter().next().ok_or("no socket")?;
            let (is_done, to) = (Arc::clone(&is_done), ends[1 - end]);
            threads.push(thread::spawn(move || NullEnd::new(tun, socket, to).run(&is_done)));
        }
        let address = set_up(chain, pair, &interfaces, number, NULL_MTU)?;
        Ok(Self { address, is_done, threads })
    }
}

impl Drop for Null {
    fn drop(&mut self) {
        self.is_done.store(true, Ordering::Release);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// One end: what TUN hands over leaves cut into datagrams of one message, with the header of its offloads, and is put together
/// again at the other end.
struct NullEnd {
    tun: Tun,
    socket: Udp,
    to: SocketAddr,
    buffer: Vec<u8>,
    out: Burst,
    packets: Vec<Outgoing>,
    sent: u32,
    coming: u32,
    message: Vec<u8>,
}

impl NullEnd {
    fn new(tun: Tun, socket: Udp, to: SocketAddr) -> Self {
        let (buffer, message) = (vec![0; LONGEST], Vec::with_capacity(LONGEST));
        Self { tun, socket, to, buffer, out: Burst::default(), packets: Vec::new(), sent: 0, coming: 0, message }
    }

    fn run(mut self, is_done: &AtomicBool) {
        let mut burst = Burst::default();
        while !is_done.load(Ordering::Acquire) {
            let is_busy = self.leave() | self.arrive(&mut burst);
            if !is_busy {
                let timeout = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
                let fds = [self.tun.as_fd(), self.socket.as_fd()];
                let _ = poll(&mut fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)), Some(&timeout));
            }
        }
    }

    fn leave(&mut self) -> bool {
        let mut turn = 0;
        while turn < TURN
            && let Ok(Some(length)) = self.tun.read(&mut self.buffer)
        {
            turn += 1;
            self.sent = self.sent.wrapping_add(1);
            let buffer = std::mem::take(&mut self.buffer);
            for (index, part) in buffer[..length].chunks(PART).enumerate() {
                let mut octets = [0; FRAMING + PART];
                octets[..4].copy_from_slice(&self.sent.to_be_bytes());
                octets[4..8].copy_from_slice(&(length as u32).to_be_bytes());
                octets[8..12].copy_from_slice(&((index * PART) as u32).to_be_bytes());
                octets[FRAMING..FRAMING + part.len()].copy_from_slice(part);
                let octets = &octets[..FRAMING + part.len()];
                if !self.out.push(octets, self.to) {
                    self.flush();
                    self.out.push(octets, self.to);
                }
                self.packets.push(Outgoing { packet: self.out.len() as u32 - 1, to: self.to });
            }
            self.buffer = buffer;
        }
        self.flush();
        turn > 0
    }

    fn flush(&mut self) {
        if !self.packets.is_empty() {
            let _ = self.socket.send(&self.out, &self.packets);
            self.packets.clear();
            self.out.clear();
        }
    }

    fn arrive(&mut self, burst: &mut Burst) -> bool {
        if !matches!(self.socket.receive(burst), Ok(1..)) {
            return false;
        }
        for packet in 0..burst.len() {
            let Some((framing, part)) = burst.octets(packet).split_first_chunk::<FRAMING>() else { continue };
            let word = |at: usize| u32::from_be_bytes([framing[at], framing[at + 1], framing[at + 2], framing[at + 3]]);
            let (number, length, begin) = (word(0), word(4) as usize, word(8) as usize);
            if begin == 0 {
                self.message.clear();
                self.coming = number;
            }
            // A message of which a part was lost is lost.
            if number != self.coming || begin != self.message.len() {
                continue;
            }
            self.message.extend_from_slice(part);
            if self.message.len() == length
                && let Some((header, octets)) = self.message.split_first_chunk()
            {
                let _ = self.tun.write(header, octets);
            }
        }
        true
    }
}

/// A WireGuard, and what it needs to run.
pub struct Program {
    pub name: &'static str,
    pub version: String,
    kind: Kind,
}

enum Kind {
    /// The kernel's, configured by `wg`.
    Kernel { tools: Installation },
    /// A program of its own, configured over its socket.
    UserSpace { path: PathBuf, from: Option<Installation>, arguments: &'static [&'static str] },
}

/// The kernel's own. Whether the kernel has it shows when an interface is made, which needs rights that there are only inside
/// namespaces.
pub fn kernel_wireguard(progress: &mut dyn FnMut(&str)) -> Result<Program> {
    const TOOLS: RouterPackage = WIREGUARD_TOOLS;
    let tools = locate_or_fetch_router(&TOOLS, &default_cache(), progress).map_err(said)?;
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let version = format!("Linux {}", release.trim());
    Ok(Program { name: "kernel-wireguard", version, kind: Kind::Kernel { tools } })
}

/// wireguard-go, built by its module's name beside the routers' cache. Without Go or a network: of this system or as a Debian package
/// that is unpacked and not installed, which lacks the offloads of later versions.
pub fn wireguard_go(progress: &mut dyn FnMut(&str)) -> Result<Program> {
    const PACKAGE: RouterPackage = WIREGUARD_GO;
    let program = |path, from, version| {
        let kind = Kind::UserSpace { path, from, arguments: &["-f"] };
        Program { name: "wireguard-go", version, kind }
    };
    let root = peers().join(format!("wireguard-go-{WIREGUARD_GO_VERSION}"));
    let built = root.join("bin/wireguard");
    // Inside namespaces there is no network to build from.
    if !built.is_file() && netns::inside().is_none() {
        progress("building wireguard-go by its module's name (nothing is installed)");
        if let Err(why) = build_wireguard_go(&root) {
            progress(&format!("wireguard-go is not built, its Debian package is used, which is older: {why}"));
        }
    }
    if built.is_file() {
        return Ok(program(fs::canonicalize(&built).unwrap_or(built), None, WIREGUARD_GO_VERSION.to_owned()));
    }
    let found = locate_or_fetch_router(&PACKAGE, &default_cache(), progress).map_err(said)?;
    let version = format!("{} (a package, older than {WIREGUARD_GO_VERSION}, which was not built)", found.version);
    Ok(program(found.program("wireguard-go"), Some(found), version))
}

fn build_wireguard_go(root: &Path) -> Result<()> {
    fs::create_dir_all(root).map_err(said)?;
    let root = fs::canonicalize(root).map_err(said)?;
    let mut go = Command::new("go");
    go.args(["install", &format!("{WIREGUARD_GO_MODULE}@v{WIREGUARD_GO_VERSION}")]).current_dir(&root);
    // What Go would keep in the user's folders goes where the program goes, and can be deleted with it.
    go.env("GOBIN", root.join("bin")).env("GOPATH", root.join("path")).env("GOCACHE", root.join("cache"));
    go.env("GOFLAGS", "-modcacherw -trimpath").env("CGO_ENABLED", "0").stdin(Stdio::null());
    let output = go.output().map_err(|error| format!("go: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(text.lines().last().unwrap_or("go install failed").to_owned())
}

/// Where programs are built that are compared with: beside the routers' cache.
fn peers() -> PathBuf {
    default_cache().with_file_name("peers")
}

/// boringtun, of this system or built from crates.io beside the routers' cache.
pub fn boringtun(progress: &mut dyn FnMut(&str)) -> Result<Program> {
    let root = peers().join("boringtun");
    let built = root.join("bin/boringtun-cli");
    let runs = |path: &Path| {
        let output = Command::new(path).arg("--version").output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.split_whitespace().last().map(str::to_owned).filter(|_| output.status.success())
    };
    let places = [PathBuf::from("boringtun-cli"), built.clone()];
    let mut found = places.iter().find_map(|path| Some((path.clone(), runs(path)?)));
    if found.is_none() {
        progress("building boringtun from crates.io (nothing is installed)");
        let mut cargo = Command::new("cargo");
        cargo.args(["install", "boringtun-cli", "--version", BORINGTUN, "--locked", "--quiet", "--root"]).arg(&root);
        cargo.arg("--target-dir").arg(root.join("build")).stdin(Stdio::null());
        let output = cargo.output().map_err(|error| format!("cargo: {error}"))?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(text.lines().last().unwrap_or("cargo install failed").to_owned());
        }
        found = runs(&built).map(|version| (built, version));
    }
    let (path, version) = found.ok_or("boringtun-cli does not print its version")?;
    let path = fs::canonicalize(&path).unwrap_or(path);
    let kind = Kind::UserSpace { path, from: None, arguments: &["-f", "--disable-drop-privileges"] };
    Ok(Program { name: "boringtun", version, kind })
}

/// Two ends of a WireGuard tunnel.
pub struct WireGuard {
    pub address: IpAddr,
    _ends: Vec<Daemon>,
}

impl WireGuard {
    pub fn start(chain: &Chain, pair: &Pair, program: &Program, number: u8) -> Result<Self> {
        let interfaces = pair.ends.map(|end| format!("wg{number}{end}"));
        let port = 51_000 + u16::from(number);
        let ends = match &program.kind {
            Kind::Kernel { tools } => {
                in_kernel(chain, pair, tools, &interfaces, port)?;
                Vec::new()
            }
            Kind::UserSpace { .. } => in_user_space(chain, pair, program, &interfaces, port)?,
        };
        let address = set_up(chain, pair, &interfaces, number, WIREGUARD_MTU)?;
        Ok(Self { address, _ends: ends })
    }
}

/// Makes both interfaces and configures them.
fn in_kernel(chain: &Chain, pair: &Pair, tools: &Installation, interfaces: &[String; 2], port: u16) -> Result<()> {
    let keys = interfaces.each_ref().map(|interface| chain.network.state().join(interface).display().to_string());
    let wg = tools.program("wg").display().to_string();
    let library_path = tools.library_path().unwrap_or_default().to_string_lossy().into_owned();
    let wg = if library_path.is_empty() { wg } else { format!("LD_LIBRARY_PATH={library_path} {wg}") };
    for (end, name) in pair.ends.into_iter().enumerate() {
        let (interface, key) = (&interfaces[end], &keys[end]);
        chain
            .shell(name, &format!("ip link add {interface} type wireguard"))
            .map_err(|why| format!("the kernel has no WireGuard: {why}"))?;
        chain.shell(name, &format!("umask 077 && {wg} genkey > {key} && {wg} pubkey < {key} > {key}.public"))?;
    }
    for (end, name) in pair.ends.into_iter().enumerate() {
        let (interface, key, other, outer) = (&interfaces[end], &keys[end], &keys[1 - end], pair.outer[1 - end]);
        chain.shell(
            name,
            &format!(
                "{wg} set {interface} listen-port {port} private-key {key} peer \"$(cat {other}.public)\" \
                 endpoint {outer}:{port} allowed-ips 0.0.0.0/0"
            ),
        )?;
    }
    Ok(())
}

/// Starts both ends, and configures each over its socket.
fn in_user_space(
    chain: &Chain,
    pair: &Pair,
    program: &Program,
    interfaces: &[String; 2],
    port: u16,
) -> Result<Vec<Daemon>> {
    let Kind::UserSpace { path, from, arguments } = &program.kind else { return Ok(Vec::new()) };
    let secrets = [1, 2].map(|end| Seed::new([end; 32]));
    let publics = secrets.each_ref().map(|secret| to_hex(&DhSecret::from_seed(secret).public().to_bytes()));
    let mut ends = Vec::new();
    for (end, name) in pair.ends.into_iter().enumerate() {
        let mut command = chain.place(name).command(path);
        if let Some(from) = from {
            from.prepare(&mut command);
        }
        command.args(*arguments).arg(&interfaces[end]).env("WG_LOG_FILE", "/run/lab/boringtun.log");
        // The interface is up once its socket is there.
        let log = chain.network.state().join(format!("{}.log", interfaces[end]));
        ends.push(Daemon::start(&mut command, &log).map_err(said)?);
        let socket = PathBuf::from(format!("/var/run/wireguard/{}.sock", interfaces[end]));
        let is_up = wait_until(Duration::from_secs(5), || UnixStream::connect(&socket).ok());
        let tail = || ends.last().map(|end| end.log_tail(5)).unwrap_or_default();
        let mut stream = is_up.ok_or_else(|| format!("{} did not start: {}", program.name, tail()))?;
        let text = format!(
            "set=1\nprivate_key={}\nlisten_port={port}\npublic_key={}\nendpoint={}:{port}\nallowed_ip=0.0.0.0/0\n\n",
            to_hex(secrets[end].expose()),
            publics[1 - end],
            pair.outer[1 - end]
        );
        stream.write_all(text.as_bytes()).map_err(said)?;
        stream.set_read_timeout(Some(Duration::from_secs(5))).map_err(said)?;
        let mut answer = [0; 64];
        let length = stream.read(&mut answer).map_err(said)?;
        let answer = String::from_utf8_lossy(&answer[..length]).into_owned();
        if !answer.contains("errno=0") {
            return Err(format!("{} refused its configuration: {answer}", program.name));
        }
    }
    Ok(ends)
}
