//! Network namespaces for a whole exchange, which end with the process that created them.
//!
//! The laboratory runs as the first process of its own mount, pid and network namespaces. Inside, one bridge is the
//! exchange's LAN and every router, proxy and party has a network namespace of its own. When the first process ends,
//! for whatever reason, the kernel kills every other process and removes the namespaces.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Environment variable with the rung, inside the namespaces.
const RUNG_VARIABLE: &str = "WAYLEAVE_LAB_RUNG";

/// The directory of `ip netns`; on a private tmpfs.
const NAMES: &str = "/run/netns";
/// The user that OpenBGPD changes to. In the laboratory's namespaces this is root, since they have no other.
const OPENBGPD_USER: &str = "_openbgpd";
/// That user's home, in which OpenBGPD confines itself; on the laboratory's private `/run`.
pub const OPENBGPD_HOME: &str = "/run/openbgpd";

wayleave_core::named! {
    /// How much of a laboratory is real, from the highest rung to the lowest.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Rung {
        /// Real routers in namespaces created by root.
        Root = "root",
        /// Real routers in namespaces inside a user namespace; needs no privileges.
        Rootless = "rootless",
        /// The laboratory's own BGP speakers on loopback; the daemons and TLS are real.
        Simulated = "simulated",
    }
}

impl fmt::Display for Rung {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Rung {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let unknown = || format!("`{text}` is not a rung (root, rootless, simulated)");
        Rung::ALL.into_iter().find(|rung| rung.name() == text).ok_or_else(unknown)
    }
}

/// The highest rung that works here, and why the higher ones do not.
#[derive(Debug, Clone)]
pub struct Detection {
    pub rung: Rung,
    /// Rungs that are not available, with the system's reason.
    pub refused: Vec<(Rung, String)>,
}

/// Tries the rungs from the highest down by creating a small network on each.
#[must_use]
pub fn detect() -> Detection {
    let mut refused = Vec::new();
    for rung in [Rung::Root, Rung::Rootless] {
        match probe(rung) {
            Ok(()) => return Detection { rung, refused },
            Err(reason) => refused.push((rung, reason)),
        }
    }
    Detection { rung: Rung::Simulated, refused }
}

/// Creates the smallest network that uses everything that the laboratory needs.
const PROBE: &str = "set -e; mount -t tmpfs tmpfs /run; mkdir /run/netns; ip netns add probe
ip link add bridge0 type bridge; ip link add probe0 type veth peer name eth0 netns probe
ip link set probe0 master bridge0; ip -n probe addr add 192.0.2.1/24 dev eth0
nsenter --net=/run/netns/probe true";

fn probe(rung: Rung) -> Result<(), String> {
    if rung == Rung::Root && !rustix::process::geteuid().is_root() {
        return Err("not root".to_owned());
    }
    let mut command = unshare(rung);
    let output = command.args(["sh", "-c", PROBE]).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("setpriv or unshare (package util-linux): {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let reason = text.lines().next().unwrap_or("unshare failed").to_owned();
    Err(if reason.contains("ip: not found") { reason + "; install the package iproute2" } else { reason })
}

/// A command that creates a rung's namespaces and runs its further arguments as their first process. It ends with the
/// calling thread.
fn unshare(rung: Rung) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "unshare"]).args(namespaces(rung));
    command
}

/// What `unshare` is told: the first process ends with it.
fn namespaces(rung: Rung) -> Vec<&'static str> {
    let user: &[_] = if rung == Rung::Rootless { &["--user", "--map-root-user"] } else { &[] };
    [user, &["--mount", "--pid", "--net", "--fork", "--kill-child", "--mount-proc"]].concat()
}

/// Turns the calling process into the one that holds a rung's namespaces, in a session of its own: it runs this program with
/// `arguments` as their first process, which ends with it. Unlike [`enter`] it outlives the process that started it. Returns
/// only if it cannot.
pub fn hold<I, S>(rung: Rung, arguments: I) -> io::Error
where
    I: IntoIterator<Item = S>,
    S: AsRef<OsStr>,
{
    use std::os::unix::process::CommandExt as _;
    let mut command = Command::new("unshare");
    command.args(namespaces(rung));
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return error,
    };
    // A leader of a process group, as a shell's job is, cannot begin a session; it is no shell's job if that is so.
    let _ = rustix::process::setsid();
    command.arg(program).args(arguments).env(RUNG_VARIABLE, rung.to_string()).exec()
}

/// Runs this program with `arguments` as the first process of a rung's namespaces, and waits for its end.
///
/// Everything inside is killed if the calling thread ends earlier.
pub fn enter<I, S>(rung: Rung, arguments: I, environment: Option<(&str, &OsStr)>) -> io::Result<ExitStatus>
where
    I: IntoIterator<Item = S>,
    S: AsRef<OsStr>,
{
    entering(rung)?.args(arguments).envs(environment).status()
}

/// A command that runs this program in a rung's namespaces, without arguments so far.
fn entering(rung: Rung) -> io::Result<Command> {
    let mut command = unshare(rung);
    command.arg(std::env::current_exe()?).env(RUNG_VARIABLE, rung.to_string());
    Ok(command)
}

/// The rung of the namespaces in which [`enter`] started this process; `None` outside.
#[must_use]
pub fn inside() -> Option<Rung> {
    let first = rustix::process::getpid().as_raw_nonzero().get() == 1;
    std::env::var(RUNG_VARIABLE).ok().filter(|_| first)?.parse().ok()
}

/// Runs a test inside namespaces. `name` is the test's name with its modules, as the test harness prints it. Outside, this
/// runs the test binary again for that one test inside, and returns `None`; inside it returns the rung.
///
/// Where namespaces are not available it reports the test as skipped and returns `None`.
///
/// # Panics
/// If the test fails inside, or no test has this name.
pub fn enter_for_test(name: &str) -> Option<Rung> {
    if let Some(rung) = inside() {
        return Some(rung);
    }
    let Detection { rung, refused } = detect();
    if rung == Rung::Simulated {
        skipped(&format!("{name}: network namespaces are not available: {refused:?}"));
        return None;
    }
    let mut command = entering(rung).expect("this program has a path");
    let output = command.args(["--exact", name, "--include-ignored", "--nocapture", "--test-threads=1"]).output();
    let output = output.expect("unshare runs, as it just did");
    let said = String::from_utf8_lossy(&output.stderr);
    // Printed by this process, so that the test harness captures it; but not what was skipped.
    print!("{}{said}", String::from_utf8_lossy(&output.stdout));
    said.lines().filter_map(what_was_skipped).for_each(|what| report_skipped(name, what));
    assert!(output.status.success(), "{name} failed inside ({rung})");
    // With a wrong name the harness runs no test and succeeds.
    let ran = String::from_utf8_lossy(&output.stdout).contains("1 passed");
    assert!(ran, "no test is named {name}: nothing ran inside ({rung})");
    None
}

/// How a line begins and ends that says which test was skipped, and why: `scripts/test` counts and names them.
const SKIPPED: (&str, &str) = ("*** SKIPPED ", " ***");

/// Reports a skipped test on the standard error itself, since the test harness captures what tests print.
pub fn skipped(what: &str) {
    // The harness runs each test on a thread with its name.
    report_skipped(std::thread::current().name().unwrap_or_default(), what);
}

fn report_skipped(test: &str, what: &str) {
    let _ = writeln!(io::stderr(), "\n{}", skip_line(test, what));
}

fn skip_line(test: &str, what: &str) -> String {
    // Inside namespaces the harness runs the one test on its main thread; [`enter_for_test`] adds the name.
    let name = if test == "main" || what.starts_with(test) { String::new() } else { format!("{test}: ") };
    format!("{}{name}{what}{}", SKIPPED.0, SKIPPED.1)
}

fn what_was_skipped(line: &str) -> Option<&str> {
    line.strip_prefix(SKIPPED.0)?.strip_suffix(SKIPPED.1)
}

/// Why a network could not be laid out.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    #[error("`{command}`: {detail}")]
    Command { command: String, detail: String },
    #[error("{what}: {error}")]
    System { what: String, error: io::Error },
}

impl NetworkError {
    fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |error| NetworkError::System { what, error }
    }
}

/// Where a process runs: in a namespace of the laboratory's network, or in the laboratory's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NetworkNamespace {
    /// A network namespace by its name.
    Named(String),
    /// The network of the laboratory's own process.
    Own,
}

impl NetworkNamespace {
    /// A command that runs in this namespace. The started process is the program itself, so that signals reach it.
    #[must_use]
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        match self {
            NetworkNamespace::Own => Command::new(program),
            NetworkNamespace::Named(name) => {
                let mut command = Command::new("nsenter");
                command.arg(format!("--net={NAMES}/{name}")).arg("--").arg(program);
                command
            }
        }
    }

    /// A command that runs in this namespace of a laboratory from outside, in its user, mount and PID namespaces too. `holder`
    /// is the process that [`hold`] made; `folder` is where the command runs, else in `/`.
    #[must_use]
    pub fn command_from_outside(
        &self,
        holder: u32,
        rung: Rung,
        folder: Option<&Path>,
        program: impl AsRef<OsStr>,
    ) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &holder.to_string(), "--mount", "--net"]);
        command.arg(format!("--pid=/proc/{holder}/ns/pid_for_children"));
        if rung == Rung::Rootless {
            command.args(["--user", "--preserve-credentials"]);
        }
        command.arg("--");
        if let Some(folder) = folder {
            command.arg("env").arg("--chdir").arg(folder);
        }
        if let NetworkNamespace::Named(name) = self {
            command.arg("nsenter").arg(format!("--net={NAMES}/{name}")).arg("--");
        }
        command.arg(program);
        command
    }

    /// Calls `task` on a thread of its own in this namespace. Sockets that it opens belong to the namespace and may be
    /// returned.
    pub fn within<T: Send>(&self, task: impl FnOnce() -> T + Send) -> io::Result<T> {
        let NetworkNamespace::Named(name) = self else { return Ok(task()) };
        let namespace = fs::File::open(Path::new(NAMES).join(name))?;
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                move_into_link_name_space(std::os::fd::AsFd::as_fd(&namespace), Some(LinkNameSpaceType::Network))?;
                Ok(task())
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

/// The exchange's LAN: a bridge in the laboratory's own namespace, and what is attached to it.
#[derive(Debug)]
pub struct Network {
    state: PathBuf,
}

impl Network {
    /// Creates the LAN. To be called once, inside the namespaces.
    pub fn new() -> Result<Self, NetworkError> {
        make_private_folders().map_err(NetworkError::system("private /run"))?;
        ip(&["link set lo up", "link add lan type bridge", "link set lan up"])?;
        Ok(Self { state: PathBuf::from("/run/lab") })
    }

    /// A private folder on a tmpfs for configurations, sockets, state and logs.
    #[must_use]
    pub fn state(&self) -> &Path {
        &self.state
    }

    /// Creates a namespace whose `eth0` is on the LAN with the given addresses (`192.0.2.1/24`).
    pub fn attach(&self, name: &str, addresses: &[String]) -> Result<NetworkNamespace, NetworkError> {
        self.attach_to("lan", name, addresses)
    }

    /// Creates a further bridge, with an address of the laboratory's own process (`192.0.2.254/24`).
    pub fn bridge(&self, name: &str, address: &str) -> Result<(), NetworkError> {
        ip(&[
            format!("link add {name} type bridge"),
            format!("addr add {address} dev {name}"),
            format!("link set {name} up"),
        ])
    }

    /// Creates a namespace whose `eth0` is on a bridge.
    pub fn attach_to(&self, bridge: &str, name: &str, addresses: &[String]) -> Result<NetworkNamespace, NetworkError> {
        let mut lines = vec![
            format!("netns add {name}"),
            format!("link add {name} type veth peer name eth0 netns {name}"),
            format!("link set {name} master {bridge} up"),
            format!("-n {name} link set lo up"),
            // Without link-local addresses no next hop can be other than the addresses given here.
            format!("-n {name} link set eth0 addrgenmode none"),
            format!("-n {name} link set eth0 up"),
        ];
        lines.extend(addresses.iter().map(|a| format!("-n {name} addr add {a} dev eth0{}", without_dad(a))));
        ip(&lines)?;
        Ok(NetworkNamespace::Named(name.to_owned()))
    }

    /// Gives `eth0` of a namespace further addresses.
    pub fn add_addresses(&self, name: &str, addresses: &[String]) -> Result<(), NetworkError> {
        let lines = addresses.iter().map(|a| format!("-n {name} addr add {a} dev eth0{}", without_dad(a)));
        ip(&lines.collect::<Vec<_>>())
    }

    /// Creates a namespace without links.
    pub fn apart(&self, name: &str) -> Result<NetworkNamespace, NetworkError> {
        ip(&[format!("netns add {name}"), format!("-n {name} link set lo up")])?;
        Ok(NetworkNamespace::Named(name.to_owned()))
    }

    /// Joins two namespaces by a link of their own, named `interface` at both ends.
    pub fn join(&self, interface: &str, left: (&str, &str), right: (&str, &str)) -> Result<(), NetworkError> {
        let ((left, left_address), (right, right_address)) = (left, right);
        ip(&[
            format!("link add {interface} netns {left} type veth peer name {interface} netns {right}"),
            format!("-n {left} link set {interface} up"),
            format!("-n {left} addr add {left_address} dev {interface}"),
            format!("-n {right} link set {interface} up"),
            format!("-n {right} addr add {right_address} dev {interface}"),
        ])
    }

    /// Takes a namespace's LAN interface down, or up again.
    pub fn set_link(&self, name: &str, up: bool) -> Result<(), NetworkError> {
        ip(&[format!("link set {name} {}", if up { "up" } else { "down" })])
    }
}

/// Duplicate address detection would delay an IPv6 address by a second or two.
fn without_dad(address: &str) -> &'static str {
    if address.contains(':') { " nodad" } else { "" }
}

/// Mounts private copies of what the routers write or read: `/run`, `/var/tmp`, and the files of groups and users, where FRR
/// looks for its groups and OpenBGPD for its user.
fn make_private_folders() -> io::Result<()> {
    for folder in ["/run", "/var/tmp"] {
        mount(&["-t", "tmpfs", "tmpfs", folder])?;
    }
    fs::create_dir_all(NAMES)?;
    fs::create_dir_all("/run/lab")?;
    let (user, home) = (OPENBGPD_USER, OPENBGPD_HOME);
    let more = [
        ("group", format!("frrvty:x:0:\nfrr:x:0:\n{user}:x:0:\n")),
        ("passwd", format!("{user}:x:0:0::{home}:/bin/false\n")),
    ];
    for (name, lines) in more {
        let (own, private) = (format!("/etc/{name}"), format!("/run/lab/{name}"));
        fs::write(&private, fs::read_to_string(&own).unwrap_or_default() + &lines)?;
        mount(&["--bind", &private, &own])?;
    }
    Ok(())
}

pub(crate) fn mount(arguments: &[&str]) -> io::Result<()> {
    let output = Command::new("mount").args(arguments).output()?;
    let detail = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if output.status.success() { Ok(()) } else { Err(io::Error::other(detail)) }
}

/// Runs lines of `ip`, in order; a line may begin with `-n NAMESPACE`.
pub(crate) fn ip<S: AsRef<str>>(lines: &[S]) -> Result<(), NetworkError> {
    let mut rest = lines;
    while let Some(first) = rest.first() {
        let namespace = namespace_of(first.as_ref());
        let same = rest.iter().take_while(|line| namespace_of(line.as_ref()) == namespace).count();
        let (batch, later) = rest.split_at(same);
        ip_batch(namespace, batch.iter().map(|line| without_namespace(line.as_ref())))?;
        rest = later;
    }
    Ok(())
}

fn namespace_of(line: &str) -> Option<&str> {
    line.strip_prefix("-n ")?.split(' ').next()
}

fn without_namespace(line: &str) -> &str {
    line.strip_prefix("-n ").and_then(|rest| rest.split_once(' ')).map_or(line, |(_, command)| command)
}

fn ip_batch<'a>(namespace: Option<&str>, lines: impl Iterator<Item = &'a str>) -> Result<(), NetworkError> {
    let mut arguments: Vec<OsString> = Vec::new();
    arguments.extend(namespace.into_iter().flat_map(|name| ["-n".into(), name.into()]));
    arguments.extend(["-batch".into(), "-".into()]);
    let text: String = lines.flat_map(|line| [line, "\n"]).collect();
    let failed = |detail: String| NetworkError::Command { command: format!("ip: {}", text.trim()), detail };
    let mut child = Command::new("ip")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| failed(format!("{error}; install the package iproute2")))?;
    let written = child.stdin.take().map(|mut stdin| stdin.write_all(text.as_bytes()));
    let output = child.wait_with_output().map_err(|error| failed(error.to_string()))?;
    match (output.status.success(), written) {
        (true, Some(Ok(()))) => Ok(()),
        _ => Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_test_skips_inside_namespaces_is_reported_outside_with_its_name() {
        let inside = skip_line("main", "no nftables in this kernel");
        let what = what_was_skipped(&inside).expect("a report");
        assert_eq!(skip_line("nft::a_packet", what), "*** SKIPPED nft::a_packet: no nftables in this kernel ***");
        assert_eq!(skip_line("nft::a_packet", "nft::a_packet: why"), "*** SKIPPED nft::a_packet: why ***");
        assert_eq!(what_was_skipped("running 1 test"), None);
    }

    #[test]
    fn lines_of_ip_are_told_apart_by_namespace() {
        assert_eq!(namespace_of("-n alpha link set lo up"), Some("alpha"));
        assert_eq!(namespace_of("link set lo up"), None);
        assert_eq!(without_namespace("-n alpha link set lo up"), "link set lo up");
    }

    #[test]
    fn some_rung_always_stands() {
        let detection = detect();
        let tried = detection.refused.len();
        assert_eq!([Rung::Root, Rung::Rootless, Rung::Simulated][tried], detection.rung);
    }
}
