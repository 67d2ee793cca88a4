//! The steps of the demonstration that play in an overlay: `ssh` over consent.
//!
//! The overlay is the one of `docs/examples/lab/demo.toml`, started as `wayleave-lab up` starts it.
//!
//! ICC, by demonstration: bogus consent, skipped node, changed octet, replay on the links of a running overlay; a
//! killed node; a consent that is not renewed: each dies at its node with its counter; the session goes on; `why` says
//! who refused.

use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::Options;
use super::exchange::DemoExchange;
use super::report::SKIPPED;
use super::session::{self, Session};
use crate::laboratory::Laboratory as _;
use crate::netns::Rung;
use crate::overlay::plan::Plan;
use crate::overlay::wire::{Capture, datagram, ends, inject, payload};
use crate::overlay::{Overlay, namespace, tun_problem};
use crate::process::{Daemon, wait_until};
use crate::routers::{CURL, Installation, SSH, SSHD, default_cache, locate_or_fetch_router};

type Facts = Vec<String>;

/// The overlay of the demonstration.
const DESCRIPTION: &str = include_str!("../../../../docs/examples/lab/demo.toml");
/// Limit on each wait.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Copies of each forged packet.
const COPIES: u64 = 3;
/// Octets of an ICING header in front of its path; of the sender's ID; of each further node; of a node's proofs.
const BEFORE_PATH: usize = 32;
const SENDER: usize = 32;
const NODE: usize = 40;
const PROOF: usize = 24;
/// Lines of the session during which a node is killed, and when that is.
const LINES: usize = 30;
const KILL_AFTER: Duration = Duration::from_millis(1_200);

/// What runs, once the first of these steps has been played.
pub struct SshDemo {
    pub(super) overlay: Overlay,
    session: Session,
}

/// Without root, the server runs as a user of its own namespace: a server that believes that it is root would drop rights that
/// a user namespace does not let it drop.
const PLAIN_USER: (&str, u32) = ("demo", 4_242);

impl SshDemo {
    /// Ends everything; how many processes had to be killed.
    pub(super) fn stop(&mut self) -> usize {
        self.session.stop();
        self.overlay.stop()
    }

    /// `ssh`, or what stands in for it.
    fn ssh(&self, name: &str, line: &str) -> Command {
        self.session.command(&self.overlay, name, line)
    }

    fn run(&self, name: &str, line: &str) -> Result<String, String> {
        let client = self.session.client();
        let output = self.ssh(name, line).output().map_err(|error| format!("{client}: {error}"))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
        }
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        let why = self.why(name).map(|why| why.to_string()).unwrap_or_default();
        Err(format!("{client} {name}: {said}\n{why}\n{}", self.session.log_tail()))
    }

    fn why(&self, name: &str) -> Result<Value, String> {
        self.overlay.page("a", &format!("/api/v1/why?name={name}"))
    }

    /// The nodes of the active path of a name.
    fn nodes(&self, name: &str) -> Result<Vec<String>, String> {
        let why = self.why(name)?;
        let nodes = why["active"]["nodes"].as_array().into_iter().flatten();
        Ok(nodes.filter_map(|node| node.as_str().map(str::to_owned)).collect())
    }

    /// How many packets a node has dropped for a reason.
    fn dropped(&self, node: &str, reason: &str) -> Result<u64, String> {
        let status = self.overlay.page(node, "/api/v1/status")?;
        let of = |reason: &str| status["reasons"][reason].as_u64().unwrap_or(0);
        // A packet with a wrong verifier may be a sample.
        Ok(of(reason) + if reason == "verifier" { of("sample") } else { 0 })
    }

    fn forwarded(&self, node: &str) -> Result<u64, String> {
        let status = self.overlay.page(node, "/api/v1/status")?;
        Ok(status["sent"].as_u64().unwrap_or(0))
    }
}

/// The overlay, or `None` with a fact that says why the step is skipped.
fn started<'a>(exchange: &'a mut DemoExchange, facts: &mut Facts) -> Option<&'a mut SshDemo> {
    if exchange.overlay.is_none() {
        facts.push(format!("{SKIPPED}the overlay does not run, see above"));
    }
    let demo = exchange.overlay.as_mut()?;
    facts.extend(demo.session.stand_in().map(str::to_owned));
    Some(demo)
}

/// The west: all links into its nodes.
const WEST: [(&str, &str); 4] = [("a", "w1"), ("w2", "w3"), ("a", "w4"), ("w5", "w6")];
/// Both links of the east, in both directions.
const EAST: [(&str, &str); 4] = [("a", "e"), ("e", "b"), ("b", "e"), ("e", "a")];

fn captures(links: &[(&str, &str)]) -> Result<Vec<Capture>, String> {
    let start =
        |(from, to): &(&str, &str)| Capture::start(from, to).map_err(|error| format!("{from} to {to}: {error}"));
    links.iter().map(start).collect()
}

fn sum(captures: &[Capture]) -> u64 {
    captures.iter().map(Capture::count).sum()
}

pub(super) fn by_name(exchange: &mut DemoExchange, _: &Options, facts: &mut Facts) -> Result<(), String> {
    if let Some(reason) = tun_problem() {
        facts.push(format!("{SKIPPED}{reason}; gateways need it"));
        return Ok(());
    }
    let tools = match tools() {
        Ok(tools) => tools,
        Err(reason) => {
            facts.push(format!("{SKIPPED}{reason}"));
            return Ok(());
        }
    };
    let begin = Instant::now();
    let plan = Plan::parse(DESCRIPTION).map_err(|mistakes| format!("{mistakes:?}"))?;
    let folder = exchange.state().join("overlay");
    let counts = (plan.nodes.len(), plan.gateways.len(), plan.consent_servers.len());
    let network = exchange.network().ok_or("this rung has no network namespaces")?;
    let overlay = Overlay::start(plan, network, &folder, exchange.binary(), &mut |_| ())?;
    let session = start_session(&overlay, tools, &folder, exchange.rung)?;
    // The checks are made all the same; what the step is there to show is not shown.
    if let (Some(what), Some(reason)) = (session.stand_in(), session.reason()) {
        facts.push(format!("{SKIPPED}{what}: {reason}"));
    }
    let demo = exchange.overlay.insert(SshDemo { overlay, session });
    facts.push(format!(
        "{} nodes, {} gateways, a path server and {} consent servers run after {:.1} s",
        counts.0,
        counts.1,
        counts.2,
        begin.elapsed().as_secs_f64()
    ));
    let (west, east) = (captures(&WEST)?, captures(&EAST)?);
    // Until the nodes know each other there is no path, and no such host can be reached.
    let mut last = String::new();
    let came = wait_until(TIMEOUT, || match demo.run("clean.b.demo", "echo $SSH_CONNECTION") {
        Ok(text) => Some(text),
        Err(reason) => {
            last = reason;
            None
        }
    });
    let came = came.ok_or(last)?;
    facts.push(format!(
        "first octets of `ssh clean.b.demo` {:.1} s after nothing: {came}",
        begin.elapsed().as_secs_f64()
    ));
    if came.split(' ').next() != Some("10.0.1.1") {
        return Err(format!("the session does not come from a: {came}"));
    }
    let secret = "3.1415926 is no secret";
    let echoed = demo.run("clean.b.demo", &format!("echo {secret}"))?;
    if echoed != secret {
        return Err(format!("the session says `{echoed}`"));
    }
    let (in_west, in_east) = (sum(&west), sum(&east));
    let nodes = demo.nodes("clean.b.demo")?.join(" ");
    facts.push(format!(
        "captured: {in_west} packets on the links of the west, {in_east} on those of the east; path {nodes}"
    ));
    if in_west == 0 || in_east != 0 {
        return Err("packets of a clean session crossed the east, or none crossed the west".to_owned());
    }
    if west.iter().any(|capture| capture.holds(secret.as_bytes())) {
        return Err("what was said can be read on a link".to_owned());
    }
    demo.run("fast.b.demo", "true")?;
    let after = sum(&east);
    let nodes = demo.nodes("fast.b.demo")?.join(" ");
    facts.push(format!("`ssh fast.b.demo`: {after} packets on the links of the east; path {nodes}"));
    if after == 0 || nodes != "a e b" {
        return Err("a fast session does not cross the east".to_owned());
    }
    Ok(())
}

/// What sessions are made with.
enum Tools {
    Ssh {
        client: Installation,
        server: Installation,
    },
    Curl {
        client: Installation,
        /// Why it is not `ssh`.
        reason: String,
    },
}

/// `ssh` and `sshd`, else `curl`; an error is why there is none of them. They were fetched before the namespaces began.
fn tools() -> Result<Tools, String> {
    let find = |what| locate_or_fetch_router(what, &default_cache(), &mut |_| ()).map_err(|error| error.to_string());
    match (find(&SSH), find(&SSHD)) {
        (Ok(client), Ok(server)) => Ok(Tools::Ssh { client, server }),
        (Err(reason), _) | (_, Err(reason)) => match find(&CURL) {
            Ok(client) => Ok(Tools::Curl { client, reason }),
            Err(curl) => Err(format!("{reason}; and nothing stands in for it: {curl}")),
        },
    }
}

fn start_session(overlay: &Overlay, tools: Tools, folder: &Path, rung: Rung) -> Result<Session, String> {
    match tools {
        Tools::Ssh { client, server } => {
            let sshd = start_sshd(overlay, (&client, &server), folder, rung)?;
            let user = if rung == Rung::Rootless { PLAIN_USER.0 } else { "root" };
            Ok(Session::Ssh { client, sshd, user, key: folder.join("user") })
        }
        Tools::Curl { client, reason } => {
            let at = (Ipv4Addr::UNSPECIFIED, session::PORT).into();
            session::serve(&namespace("b"), at).map_err(|error| format!("the server of our own: {error}"))?;
            Ok(Session::Curl { client, reason })
        }
    }
}

/// A real server, unmodified, at gateway b, for one key.
fn start_sshd(
    overlay: &Overlay,
    (ssh, sshd): (&Installation, &Installation),
    folder: &Path,
    rung: Rung,
) -> Result<Daemon, String> {
    let text = |error: std::io::Error| format!("the OpenSSH server: {error}");
    // It wants a user to be harmless as; inside there is only one.
    let users = fs::read_to_string("/etc/passwd").map_err(text)?;
    let (name, id) = PLAIN_USER;
    let more = format!("sshd:x:0:0::/run/sshd:/bin/false\n{name}:x:{id}:{id}::/tmp:/bin/sh\n");
    fs::write("/etc/passwd", users + &more).map_err(text)?;
    fs::create_dir_all("/run/sshd").map_err(text)?;
    for key in ["host", "user"] {
        let mut command = Command::new(ssh.program("ssh-keygen"));
        ssh.prepare(&mut command);
        let made =
            command.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(folder.join(key)).status().map_err(text)?;
        if !made.success() {
            return Err("ssh-keygen made no key".to_owned());
        }
    }
    let authorized = "/run/sshd/authorized";
    fs::copy(folder.join("user.pub"), authorized).map_err(text)?;
    fs::set_permissions(authorized, fs::Permissions::from_mode(0o600)).map_err(text)?;
    let config = folder.join("sshd_config");
    let lines = format!(
        "HostKey {}\nAuthorizedKeysFile {authorized}\nPermitRootLogin yes\nUsePAM no\nStrictModes no\nPidFile none\n\
         PasswordAuthentication no\nListenAddress 0.0.0.0\nListenAddress ::\nUseDNS no\n",
        folder.join("host").display()
    );
    fs::write(&config, lines).map_err(text)?;
    let program = sshd.program("sshd");
    let mut command = match rung {
        Rung::Rootless => {
            let ports = || fs::write("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0");
            namespace("b").within(ports).and_then(|written| written).map_err(text)?;
            let mut command = overlay.command("b", "unshare");
            command.args(["--user", &format!("--map-user={id}"), &format!("--map-group={id}"), "--"]).arg(program);
            command
        }
        _ => overlay.command("b", program),
    };
    sshd.prepare(&mut command);
    command.args(["-D", "-e", "-f"]).arg(&config);
    Daemon::start(&mut command, &folder.join("sshd.log")).map_err(text)
}

/// A packet with its whole path, among those that were captured.
fn with_path(capture: &Capture) -> Option<Vec<u8>> {
    let is_whole = |packet: &Vec<u8>| payload(packet).is_some_and(|icing| matches!(icing.first(), Some(0x10 | 0x20)));
    capture.packets().into_iter().rev().find(is_whole)
}

/// The first packet of a datagram with its path. A capture on a link sees datagrams that were sent at once as one (UDP segmentation
/// offload): packets of the same length, one behind another.
fn first_of(datagram: &[u8]) -> &[u8] {
    let [_, _, count, _, high, low, ..] = *datagram else { return datagram };
    let further = usize::from(count).saturating_sub(1);
    let length = BEFORE_PATH + SENDER + (NODE + PROOF) * further + usize::from(u16::from_be_bytes([high, low]));
    datagram.get(..length).unwrap_or(datagram)
}

pub(super) fn attacks(exchange: &mut DemoExchange, _: &Options, facts: &mut Facts) -> Result<(), String> {
    let Some(demo) = started(exchange, facts) else { return Ok(()) };
    let path = demo.nodes("clean.b.demo")?;
    let [a, first, second, third, _] = &path[..] else { return Err(format!("the path is {path:?}")) };
    let links = [(a, first), (first, second)].map(|(from, to)| (from.as_str(), to.as_str()));
    let both = captures(&links)?;
    let [to_first, to_second] = &both[..] else { return Err("two links, two captures".to_owned()) };
    demo.run("clean.b.demo", "true")?;
    let captured = wait_until(TIMEOUT, || Some((with_path(to_first)?, with_path(to_second)?)));
    let (at_first, at_second) = captured.ok_or("no packet with its path was captured")?;
    let icing = |packet: &[u8]| first_of(payload(packet).unwrap_or_default()).to_vec();
    let of = |packet: &[u8]| ends(packet).ok_or("no datagram");
    // As a sender has it that has no consent of the first node.
    let mut bogus = icing(&at_first);
    let count = usize::from(bogus[2]);
    let proofs = BEFORE_PATH + SENDER + NODE * (count - 1);
    bogus[proofs..proofs + PROOF].copy_from_slice(&[0x55; PROOF]);
    // The first node is left out: what it was to get goes to the second, at whose turn it is.
    let mut skipped = icing(&at_first);
    skipped[3] += 1;
    let mut changed = icing(&at_second);
    if let Some(last) = changed.last_mut() {
        *last ^= 1;
    }
    let forged = [
        ("a bogus consent", a, first, "consent", datagram(of(&at_first)?, &bogus)),
        ("a skipped node", first, second, "verifier", datagram(of(&at_second)?, &skipped)),
        ("a changed octet", first, second, "verifier", datagram(of(&at_second)?, &changed)),
        ("a replay", first, second, "replayed", datagram(of(&at_second)?, &icing(&at_second))),
    ];
    for (what, from, at, reason, packet) in forged {
        let before = demo.dropped(at, reason)?;
        let behind = if at == first { second } else { third };
        let all = |node: &str| -> Result<u64, String> {
            ["consent", "verifier", "replayed"].iter().map(|reason| demo.dropped(node, reason)).sum()
        };
        let later = all(behind)?;
        let copies = vec![packet; COPIES as usize];
        inject(from, at, &copies).map_err(|error| format!("{what}: {error}"))?;
        let died = wait_until(TIMEOUT, || {
            let count = demo.dropped(at, reason).ok()? - before;
            (count >= COPIES).then_some(count)
        });
        let died = died.ok_or_else(|| {
            let counted = demo.dropped(at, reason).unwrap_or(0) - before;
            let reasons = |node: &str| demo.overlay.page(node, "/api/v1/status").map(|status| status["reasons"].to_string());
            let [here, there] = [at, behind].map(|node| reasons(node).unwrap_or_default());
            format!(
                "{what}: {counted} of {COPIES} died at {at} with `{reason}`; {at} dropped {here}, {behind} behind it {there}"
            )
        })?;
        if all(behind)? != later {
            return Err(format!("{what}: {behind} saw it too"));
        }
        facts.push(format!(
            "{what}: sent {COPIES} times as {from}, died {died} times at {at} (`{reason}`), never seen behind it"
        ));
    }
    Ok(())
}

pub(super) fn killed(exchange: &mut DemoExchange, _: &Options, facts: &mut Facts) -> Result<(), String> {
    let Some(demo) = started(exchange, facts) else { return Ok(()) };
    let before = demo.nodes("clean.b.demo")?;
    let victim = before.get(2).cloned().ok_or_else(|| format!("the path is {before:?}"))?;
    let east = demo.forwarded("e")?;
    let line = format!("for n in $(seq {LINES}); do echo $n; sleep 0.1; done");
    let mut command = demo.ssh("clean.b.demo", &line);
    let child: Child = command.stdout(Stdio::piped()).spawn().map_err(|error| format!("ssh: {error}"))?;
    std::thread::sleep(KILL_AFTER);
    demo.overlay.process(&victim)?.kill();
    let output = child.wait_with_output().map_err(|error| format!("ssh: {error}"))?;
    let lines: Vec<String> = String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
    let expected: Vec<String> = (1..=LINES).map(|n| n.to_string()).collect();
    if !output.status.success() || lines != expected {
        return Err(format!("the session broke after {} of {LINES} lines", lines.len()));
    }
    let after = demo.nodes("clean.b.demo")?;
    facts.push(format!("kill -9 of {victim}, {} s into a session: all {LINES} lines came", KILL_AFTER.as_secs_f64()));
    facts.push(format!("path before: {}; after: {}", before.join(" "), after.join(" ")));
    if after.contains(&victim) || after.iter().any(|node| node == "e") {
        return Err("the session did not go over to the other clean path".to_owned());
    }
    let status = demo.overlay.page("a", "/api/v1/status")?;
    facts.push(format!("gateway a counts {} dead paths, {} failovers", status["dead"], status["failovers"]));
    // `fast` is probed for a while after its session; nothing else crosses the east.
    facts.push(format!("the east forwarded {} packets meanwhile, probes of `fast`", demo.forwarded("e")? - east));
    demo.overlay.process(&victim)?.start()
}

pub(super) fn refused(exchange: &mut DemoExchange, _: &Options, facts: &mut Facts) -> Result<(), String> {
    let Some(demo) = started(exchange, facts) else { return Ok(()) };
    demo.run("clean.b.demo", "true")?;
    let policy = demo.overlay.folder_of("ends").join("policy.toml");
    let text = |error: std::io::Error| format!("{}: {error}", policy.display());
    let kept = fs::read(&policy).map_err(text)?;
    fs::write(&policy, "[[rule]]\nname = \"nobody\"\nallow = false\n").map_err(text)?;
    let begin = Instant::now();
    demo.overlay.process("ends")?.reload()?;
    let state = |demo: &SshDemo| Some(demo.why("clean.b.demo").ok()?).filter(|why| why["state"] == "no-consent");
    let why = wait_until(TIMEOUT, || state(demo)).ok_or_else(|| format!("{:?}", demo.why("clean.b.demo")))?;
    let said = why["why"].as_str().unwrap_or_default();
    facts.push(format!(
        "b's consent server refuses: {:.1} s later its last consent has ended",
        begin.elapsed().as_secs_f64()
    ));
    facts.push(format!("wayleave why clean.b.demo: {said}"));
    if !said.contains("refused") {
        return Err("why does not say who refused".to_owned());
    }
    let failed = demo.ssh("clean.b.demo", "true").output();
    let failed = failed.map_err(|error| format!("ssh: {error}"))?;
    if failed.status.success() {
        return Err("a session began without consent".to_owned());
    }
    let last = String::from_utf8_lossy(&failed.stderr).trim().lines().last().unwrap_or_default().to_owned();
    facts.push(format!("{}: {last}", demo.session.client()));
    fs::write(&policy, kept).map_err(text)?;
    demo.overlay.process("ends")?.reload()
}
