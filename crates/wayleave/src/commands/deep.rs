//! `check --deep`: what only the network and this machine tell of a configuration.
//!
//! A party and a role that does not run are reached as `run` would reach them. A role that runs has its links: then only the
//! other end's certificate is looked at, without a name, so that no link is disturbed.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use wayleave_runtime::clock::{unix_now, utc};
use wayleave_runtime::identity::Identity;
use wayleave_runtime::kernel_clock::is_synchronised;
use wayleave_runtime::links::{ConnectFailure, Probed, probe};
use wayleave_runtime::store;
use wayleave_runtime::tls::PinVerifier;

use crate::config::member::MemberConfig;
use crate::config::named_files::{each_text, named_files};
use crate::config::rs::RsConfig;
use crate::config::{Source, status_of};
use crate::failure::{Failure, Outcome};
use crate::fetch::{self, Target};
use crate::roles::link_faults::{CLOCK_TOLERANCE, LinkEndpoint};
use crate::roles::{party_endpoints, party_verifier, peer_endpoint, peer_verifier};

/// How long a router may take to answer.
const TCP_WAIT: Duration = Duration::from_secs(3);

/// How the names of settings end at whose addresses a role listens, and of those at which it receives by UDP.
const LISTENING: [&str; 2] = ["listen", ".local"];

/// Something that was tried.
pub struct Finding {
    pub about: String,
    pub is_good: bool,
    pub words: String,
}

impl Finding {
    /// With the name of the pair of parties, of a proxy that has several.
    fn of_pair(self, pair: Option<&str>) -> Self {
        match pair {
            Some(pair) => Self { about: format!("{} of {pair}", self.about), ..self },
            None => self,
        }
    }
}

fn good(about: impl Into<String>, words: impl Into<String>) -> Finding {
    Finding { about: about.into(), is_good: true, words: words.into() }
}

fn bad(about: impl Into<String>, words: impl Into<String>) -> Finding {
    Finding { about: about.into(), is_good: false, words: words.into() }
}

/// Tries what a valid configuration of `role` names.
pub fn look(role: &str, source: &Source) -> Outcome<Vec<Finding>> {
    let mut found = match role {
        "member" => {
            let (config, mut found) = (MemberConfig::parse(source)?, Vec::new());
            for of_pair in config.pairs() {
                let pair = (!config.further.is_empty()).then(|| of_pair.pair_name());
                found.extend(member(of_pair, pair, source)?.into_iter().map(|finding| finding.of_pair(pair)));
            }
            found
        }
        "rs" => party(&RsConfig::parse(source)?, source)?,
        _ => Vec::new(),
    };
    let state = named_files(source).into_iter().find(|file| file.setting.ends_with(".state"));
    let is_open = state.is_some_and(|state| is_running(&source.resolve(&state.path)));
    match if is_open { Runs::Yes } else { runs(role, source.path()) } {
        Runs::Yes => found.push(good("ports", "not tried, since this role runs and has them")),
        runs => found.extend(ports(source, !matches!(role, "member" | "rs"), runs == Runs::NotKnown)),
    }
    Ok(found)
}

fn member(config: &MemberConfig, pair: Option<&str>, source: &Source) -> Outcome<Vec<Finding>> {
    let file = &config.file;
    let identity = Identity::load(&source.resolve(file.member.key.get_ref()))?;
    let is_running = is_running(&source.resolve(file.member.state.get_ref()));
    let own = (!is_running).then_some(&identity);
    let mut found = Vec::new();
    if is_running {
        found.extend(other_key(file.member.key.get_ref(), &identity, source));
    }
    let mut clocks = Vec::new();
    let parties = [&file.exchange.party1, &file.exchange.party2];
    for ((number, party), endpoint) in (1..).zip(parties).zip(party_endpoints(config, &identity, None)) {
        let probed = ask(&endpoint.address, own, &party_verifier(number, party, pair))?;
        clocks.extend(probed.as_ref().ok().and_then(|probed| probed.peer_clock));
        found.push(reached(&endpoint, probed));
    }
    if let [one, two] = clocks[..]
        && let Some(words) = wrong_clock(unix_now().secs(), [one, two])
    {
        found.push(bad("clock", words));
    }
    let router = file.router.get_ref();
    if let Some(connect) = router.connect.filter(|_| router.password_file.is_none()) {
        found.push(match TcpStream::connect_timeout(&connect.0, TCP_WAIT) {
            Ok(_) => good("router", format!("{} takes connections; BGP itself is not tried", connect.0)),
            Err(error) => bad("router", format!("{} cannot be reached ({error}): is BGP on there?", connect.0)),
        });
    }
    if let Some(listen) = router.listen.as_ref().filter(|_| !is_running) {
        found.push(can_listen("the router", listen.get_ref().0));
    }
    Ok(found)
}

fn party(config: &RsConfig, source: &Source) -> Outcome<Vec<Finding>> {
    let identity = Identity::load(&source.resolve(config.party.key.get_ref()))?;
    let is_running = is_running(&source.resolve(config.party.state.get_ref()));
    let (link, mut found) = (config.link.get_ref(), Vec::new());
    if is_running {
        found.extend(other_key(config.party.key.get_ref(), &identity, source));
    }
    if let Some(connect) = &link.connect {
        let endpoint = peer_endpoint(config, &identity);
        let probed = ask(&connect.0.to_string(), (!is_running).then_some(&identity), &peer_verifier(config))?;
        found.push(reached(&endpoint, probed));
    } else {
        let words = "it connects to this party, which cannot reach it: run `wayleave check --deep` there, or see `wayleave show status`";
        found.push(good("the peer party", words));
    }
    if !is_running {
        found.push(can_listen("members", config.party.listen.get_ref().0));
        found.extend(link.listen.as_ref().map(|listen| can_listen("the peer party", listen.get_ref().0)));
    }
    Ok(found)
}

/// Whether a process of this machine runs the role with this configuration.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Runs {
    No,
    /// One of another user does, whose folder is not told, with a file of the same name.
    NotKnown,
    Yes,
}

fn runs(role: &str, file: &Path) -> Runs {
    process(role, file).map_or(Runs::No, |(runs, _)| runs)
}

/// The process of this machine that runs the role with this configuration, as far as that is known.
pub fn process(role: &str, file: &Path) -> Option<(Runs, u32)> {
    let of = |process: &Path| {
        let command = fs::read(process.join("cmdline")).unwrap_or_default();
        let arguments: Vec<&OsStr> = command.split(|octet| *octet == 0).map(OsStr::from_bytes).collect();
        configuration(role, &arguments).map_or(Runs::No, |config| is_file(&process.join("cwd"), config, file))
    };
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let number = |process: &fs::DirEntry| process.file_name().to_str()?.parse::<u32>().ok();
    let all = processes.filter_map(|process| Some((of(&process.path()), number(&process)?)));
    all.filter(|(runs, _)| *runs > Runs::No).max()
}

/// Whether `config`, as a process in this folder names it, is `file`.
fn is_file(folder: &Path, config: &Path, file: &Path) -> Runs {
    match fs::canonicalize(folder.join(config)) {
        Ok(config) if fs::canonicalize(file).is_ok_and(|file| file == config) => Runs::Yes,
        Err(_) if config.is_relative() && config.file_name() == file.file_name() => Runs::NotKnown,
        _ => Runs::No,
    }
}

/// The configuration of a process with these arguments, if it runs the role.
fn configuration<'a>(role: &str, arguments: &[&'a OsStr]) -> Option<&'a Path> {
    let program = Path::new(arguments.first()?).file_name()?;
    let at = arguments.iter().position(|argument| *argument == "run")?;
    if program != "wayleave" || !arguments[at..].iter().any(|argument| *argument == role) {
        return None;
    }
    let short = arguments.iter().position(|argument| *argument == "--config" || *argument == "-c");
    let joined = || arguments.iter().find_map(|argument| argument.to_str()?.strip_prefix("--config="));
    short.and_then(|at| arguments.get(at + 1)).map(|file| Path::new(*file)).or_else(|| joined().map(Path::new))
}

/// Whether the ports that a configuration names are free: of the status pages, and with `all` every other one. This role `may_run`, and
/// then may have those that are not.
fn ports(source: &Source, all: bool, may_run: bool) -> Vec<Finding> {
    let table: toml::Table = source.text().parse().unwrap_or_default();
    let named = listening(&table).into_iter().filter(|(setting, _)| all || setting == "status.listen");
    named.filter_map(|(setting, address)| is_free(&setting, address, may_run)).collect()
}

/// The settings at which a role listens or receives, with their addresses.
pub fn listening(file: &toml::Table) -> Vec<(String, SocketAddr)> {
    let mut found = Vec::new();
    each_text(file, &mut |setting, text| {
        if LISTENING.iter().any(|name| setting.ends_with(name)) {
            found.extend(text.parse().ok().map(|address| (setting.to_owned(), address)));
        }
    });
    found
}

/// Tries an address by the protocols of its setting. Nothing is said of one that this machine has not: that is a warning of its own.
fn is_free(setting: &str, address: SocketAddr, may_run: bool) -> Option<Finding> {
    let is_udp = [".local", "key.listen"].iter().any(|name| setting.ends_with(name));
    let by_udp = || if is_udp { UdpSocket::bind(address).map(drop) } else { Ok(()) };
    let by_tcp = || if setting.ends_with(".local") { Ok(()) } else { TcpListener::bind(address).map(drop) };
    let about = format!("`{setting}`");
    match by_tcp().and_then(|()| by_udp()) {
        Err(error) if error.kind() == ErrorKind::AddrNotAvailable => None,
        Err(error) if error.kind() == ErrorKind::AddrInUse && may_run => {
            let words = "is taken, and it is not known by whom: another user's process, which runs this role with a file \
                         of this name, may have it; ask as that user or as root";
            Some(good(about, format!("{address} {words}")))
        }
        opened => Some(of_port(about, address, opened)),
    }
}

/// What came of opening a port.
fn of_port(about: String, address: SocketAddr, opened: io::Result<()>) -> Finding {
    match opened {
        Ok(()) => good(about, format!("{address} is free")),
        // Whoever checks is not who runs the role.
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            let words = "ports below 1024 need CAP_NET_BIND_SERVICE, which the systemd unit has";
            good(about, format!("{address} is not tried, since this user may not open it ({error}): {words}"))
        }
        Err(error) => {
            let failure = Failure::system(format!("{address}: {error}"), &error);
            let cure = failure.remedy().map_or(String::new(), |cure| format!("; {cure}"));
            bad(about, format!("{address} cannot be opened ({error}){cure}"))
        }
    }
}

/// That the role which runs has another key than the configuration names, as far as its status pages say.
fn other_key(file: &Path, identity: &Identity, source: &Source) -> Option<Finding> {
    let url = status_of(source).ok()??.listen.get_ref().0.to_string();
    let keys = fetch::json(&Target { url: Some(url), config: None }, "/api/v1/keys").ok()?;
    let is_own = |key: &&Value| key["of"] == "this member" || key["of"] == "this party";
    let running = keys["keys"].as_array()?.iter().find(is_own)?["tls"].as_str()?.to_owned();
    let named = identity.fingerprint().to_string();
    (running != named).then(|| {
        bad(
            "the key",
            format!(
                "the role that runs has the certificate {running}, and {} has {named}: after a restart it would run with that one. \
                 Compare both with `wayleave members show`",
                file.display()
            ),
        )
    })
}

/// Whether a process has the role's state open.
fn is_running(state: &Path) -> bool {
    matches!(store::is_open(state), Ok(true))
}

fn ask(address: &str, identity: Option<&Identity>, verifier: &PinVerifier) -> Outcome<Result<Probed, ConnectFailure>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::new(format!("cannot start threads: {error}")))?;
    Ok(runtime.block_on(probe(address, identity, verifier)))
}

fn reached(endpoint: &LinkEndpoint, probed: Result<Probed, ConnectFailure>) -> Finding {
    let LinkEndpoint { name, address, .. } = endpoint;
    match probed {
        Ok(Probed { peer_clock: Some(clock) }) => match endpoint.describe_clock(clock) {
            Some(words) => bad(name, words),
            None => good(
                name,
                format!(
                    "{address} shows the pinned certificate and accepts this key; the clocks agree within {CLOCK_TOLERANCE} \
                     seconds. Not tried: slot and exchange name, which `run` reports"
                ),
            ),
        },
        Ok(Probed { peer_clock: None }) => good(
            name,
            format!(
                "{address} shows the pinned certificate. Not tried, since this role runs: its own key and the clocks, which \
                 `wayleave show status` has"
            ),
        ),
        Err(failure) => bad(name, endpoint.describe(&failure)),
    }
}

/// Where two others agree and this machine does not, it is wrong.
fn wrong_clock(ours: u64, theirs: [u64; 2]) -> Option<String> {
    let agree = theirs[0].abs_diff(theirs[1]) <= CLOCK_TOLERANCE;
    let differs = theirs.iter().all(|clock| clock.abs_diff(ours) > CLOCK_TOLERANCE);
    (agree && differs).then(|| {
        format!(
            "both parties agree, and this machine does not: it shows {}, and they {}: set it, and run a time service",
            utc(ours),
            utc(theirs[0])
        )
    })
}

/// Whether an address is free to listen at.
fn can_listen(who: &str, address: SocketAddr) -> Finding {
    of_port(format!("listening for {who}"), address, TcpListener::bind(address).map(drop))
}

/// What the kernel says of the clock. It is no proof: a time service may itself be wrong.
pub fn kernel_clock() -> Finding {
    let now = utc(unix_now().secs());
    match is_synchronised() {
        Ok(true) => good("clock", format!("it shows {now}, and the kernel says that a time service keeps it")),
        Ok(false) => good(
            "clock",
            format!(
                "it shows {now}; the kernel knows of no time service that keeps it: compare it by hand, or run one (chrony)"
            ),
        ),
        Err(error) => good("clock", format!("it shows {now}; the kernel does not say whether it is kept ({error})")),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::io::{self, ErrorKind};
    use std::net::{TcpListener, UdpSocket};
    use std::path::Path;

    use super::{Runs, configuration, is_file, is_free, listening, of_port, wrong_clock};

    #[test]
    fn a_process_that_runs_the_role_is_told_by_its_arguments() {
        let of = |line: &'static str| {
            let arguments: Vec<&OsStr> = line.split(' ').map(OsStr::new).collect();
            configuration("key", &arguments)
        };
        assert_eq!(of("/usr/bin/wayleave run key --config key.toml"), Some(Path::new("key.toml")));
        assert_eq!(of("wayleave run --log debug -c key.toml key"), Some(Path::new("key.toml")));
        assert_eq!(of("wayleave run key --config=key.toml"), Some(Path::new("key.toml")));
        for other in
            ["wayleave run router --config key.toml", "vi run key --config key.toml", "wayleave check key.toml", ""]
        {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn a_port_that_is_taken_is_named_by_its_setting_and_its_protocol() {
        // Addresses of their own: on another one a socket of another test might have the same port by the other protocol.
        let tcp = TcpListener::bind("127.0.0.78:0").expect("a port");
        let datagrams = UdpSocket::bind("127.0.0.79:0").expect("a port");
        let [by_tcp, udp] = [tcp.local_addr(), datagrams.local_addr()].map(|address| address.expect("bound"));
        let is_taken = |setting, address| is_free(setting, address, false).is_some_and(|finding| !finding.is_good);
        assert!(is_taken("status.listen", by_tcp) && is_taken("key.listen", by_tcp) && !is_taken("link.local", by_tcp));
        assert!(is_taken("link.local", udp) && is_taken("key.listen", udp));
        let text = format!(
            "[key]\nlisten = \"{udp}\"\n[status]\nlisten = \"{udp}\"\n[[link]]\nlocal = \"{udp}\"\nremote = \"{udp}\"\n"
        );
        let named = listening(&text.parse().expect("TOML"));
        let settings: Vec<&str> = named.iter().map(|(setting, _)| setting.as_str()).collect();
        assert_eq!(settings, ["key.listen", "link.local", "status.listen"]);
    }

    #[test]
    fn a_port_that_only_the_unit_may_open_is_no_fault() {
        let of =
            |kind| of_port(String::new(), "192.0.2.1:179".parse().expect("an address"), Err(io::Error::from(kind)));
        let denied = of(ErrorKind::PermissionDenied);
        assert!(denied.is_good && denied.words.starts_with("192.0.2.1:179 is not tried"), "{}", denied.words);
        assert!(!of(ErrorKind::AddrInUse).is_good);
    }

    #[test]
    fn whether_a_process_whose_folder_is_not_told_has_this_file_is_not_known_and_its_ports_are_tried() {
        let folder = std::env::temp_dir().join(format!("wayleave-deep-{}", std::process::id()));
        let [own, other] = ["own", "other"].map(|name| folder.join(name));
        for place in [&own, &other] {
            std::fs::create_dir_all(place).expect("made");
            std::fs::write(place.join("key.toml"), "").expect("written");
        }
        let file = own.join("key.toml");
        let of = |place: &Path, config: &str| is_file(place, Path::new(config), &file);
        assert_eq!((of(&own, "key.toml"), of(&other, "key.toml")), (Runs::Yes, Runs::No));
        let untold = folder.join("untold");
        assert_eq!((of(&untold, "key.toml"), of(&untold, "other.toml")), (Runs::NotKnown, Runs::No));
        assert_eq!(of(&untold, file.to_str().expect("text")), Runs::Yes);
        assert_eq!(of(&untold, "/nowhere/key.toml"), Runs::No);
        std::fs::remove_dir_all(&folder).expect("removed");

        let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
        let finding = is_free("status.listen", taken.local_addr().expect("bound"), true).expect("it was tried");
        assert!(finding.is_good && finding.words.contains("not known by whom"), "{}", finding.words);
    }

    #[test]
    fn a_clock_is_wrong_where_two_others_agree_and_it_differs_from_both() {
        assert!(wrong_clock(1_000, [5_000, 5_010]).is_some());
        for (ours, theirs) in [(1_000, [1_010, 990]), (1_000, [5_000, 1_000]), (1_000, [5_000, 9_000])] {
            assert_eq!(wrong_clock(ours, theirs), None, "{ours} {theirs:?}");
        }
    }
}
