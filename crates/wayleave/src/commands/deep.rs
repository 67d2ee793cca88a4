//! `check --deep`: what only the network and this machine tell of a configuration.
//!
//! A party and a role that does not run are reached as `run` would reach them. A role that runs has its links: then only the
//! other end's certificate is looked at, without a name, so that no link is disturbed.

use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
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
use crate::config::named_files::named_files;
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

fn good(about: impl Into<String>, words: impl Into<String>) -> Finding {
    Finding { about: about.into(), is_good: true, words: words.into() }
}

fn bad(about: impl Into<String>, words: impl Into<String>) -> Finding {
    Finding { about: about.into(), is_good: false, words: words.into() }
}

/// Tries what a valid configuration of `role` names.
pub fn look(role: &str, source: &Source) -> Outcome<Vec<Finding>> {
    let mut found = match role {
        "member" => member(&MemberConfig::parse(source)?, source)?,
        "rs" => party(&RsConfig::parse(source)?, source)?,
        _ => Vec::new(),
    };
    let state = named_files(source).into_iter().find(|file| file.setting.ends_with(".state"));
    if state.is_some_and(|state| is_running(&source.resolve(&state.path))) || runs(role, source.path()) {
        found.push(good("ports", "not tried, since this role runs and has them"));
    } else {
        found.extend(ports(source, !matches!(role, "member" | "rs")));
    }
    found.push(kernel_clock());
    Ok(found)
}

fn member(config: &MemberConfig, source: &Source) -> Outcome<Vec<Finding>> {
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
    for ((number, party), endpoint) in (1..).zip(parties).zip(party_endpoints(config, &identity)) {
        let probed = ask(&endpoint.address, own, &party_verifier(number, party))?;
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
fn runs(role: &str, file: &Path) -> bool {
    let wanted = fs::canonicalize(file).ok();
    let is_of = |process: &Path| {
        let command = fs::read(process.join("cmdline")).unwrap_or_default();
        let arguments: Vec<&OsStr> = command.split(|octet| *octet == 0).map(OsStr::from_bytes).collect();
        let Some(config) = configuration(role, &arguments) else { return false };
        match fs::canonicalize(process.join("cwd").join(config)) {
            Ok(config) => Some(config) == wanted,
            // Another user's, whose folder is not told.
            Err(_) => config.file_name() == file.file_name(),
        }
    };
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    { processes }.any(|process| is_of(&process.path()))
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

/// Whether the ports that a configuration names are free: of the status pages, and with `all` every other one.
fn ports(source: &Source, all: bool) -> Vec<Finding> {
    let table: toml::Table = source.text().parse().unwrap_or_default();
    let mut named = Vec::new();
    gather("", &toml::Value::Table(table), &mut named);
    let named = named.into_iter().filter(|(setting, _)| all || setting == "status.listen");
    named.filter_map(|(setting, address)| is_free(&setting, address)).collect()
}

/// The settings at which a role listens or receives, with their addresses.
fn gather(setting: &str, value: &toml::Value, found: &mut Vec<(String, SocketAddr)>) {
    match value {
        toml::Value::Table(table) => {
            for (key, value) in table {
                let setting = if setting.is_empty() { key.clone() } else { format!("{setting}.{key}") };
                gather(&setting, value, found);
            }
        }
        toml::Value::Array(all) => all.iter().for_each(|value| gather(setting, value, found)),
        toml::Value::String(text) if LISTENING.iter().any(|name| setting.ends_with(name)) => {
            found.extend(text.parse().ok().map(|address| (setting.to_owned(), address)));
        }
        _ => {}
    }
}

/// Tries an address by the protocols of its setting. Nothing is said of one that this machine has not: that is a warning of its own.
fn is_free(setting: &str, address: SocketAddr) -> Option<Finding> {
    let is_udp = [".local", "key.listen"].iter().any(|name| setting.ends_with(name));
    let by_udp = || if is_udp { UdpSocket::bind(address).map(drop) } else { Ok(()) };
    let by_tcp = || if setting.ends_with(".local") { Ok(()) } else { TcpListener::bind(address).map(drop) };
    let about = format!("`{setting}`");
    match by_tcp().and_then(|()| by_udp()) {
        Ok(()) => Some(good(about, format!("{address} is free"))),
        Err(error) if error.kind() == ErrorKind::AddrNotAvailable => None,
        Err(error) => {
            let failure = Failure::listen_bgp(format!("{address}: {error}"), &error);
            let cure = failure.remedy().map_or(String::new(), |cure| format!("; {cure}"));
            Some(bad(about, format!("{address} cannot be opened ({error}){cure}")))
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
    match TcpListener::bind(address) {
        Ok(_) => good(format!("listening for {who}"), format!("{address} is free")),
        Err(error) => {
            let failure = Failure::listen_bgp(format!("{address}: {error}"), &error);
            let cure = failure.remedy().map_or(String::new(), |cure| format!("; {cure}"));
            bad(format!("listening for {who}"), format!("{address} cannot be opened ({error}){cure}"))
        }
    }
}

/// What the kernel says of the clock. It is no proof: a time service may itself be wrong.
fn kernel_clock() -> Finding {
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
    use std::net::{TcpListener, UdpSocket};
    use std::path::Path;

    use super::{configuration, gather, is_free, wrong_clock};

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
        let tcp = TcpListener::bind("127.0.0.1:0").expect("a port");
        let datagrams = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let [by_tcp, udp] = [tcp.local_addr(), datagrams.local_addr()].map(|address| address.expect("bound"));
        let is_taken = |setting, address| is_free(setting, address).is_some_and(|finding| !finding.is_good);
        assert!(is_taken("status.listen", by_tcp) && is_taken("key.listen", by_tcp) && !is_taken("link.local", by_tcp));
        assert!(is_taken("link.local", udp) && is_taken("key.listen", udp));
        let text = format!(
            "[key]\nlisten = \"{udp}\"\n[status]\nlisten = \"{udp}\"\n[[link]]\nlocal = \"{udp}\"\nremote = \"{udp}\"\n"
        );
        let mut named = Vec::new();
        gather("", &toml::Value::Table(text.parse().expect("TOML")), &mut named);
        let settings: Vec<&str> = named.iter().map(|(setting, _)| setting.as_str()).collect();
        assert_eq!(settings, ["key.listen", "link.local", "status.listen"]);
    }

    #[test]
    fn a_clock_is_wrong_where_two_others_agree_and_it_differs_from_both() {
        assert!(wrong_clock(1_000, [5_000, 5_010]).is_some());
        for (ours, theirs) in [(1_000, [1_010, 990]), (1_000, [5_000, 1_000]), (1_000, [5_000, 9_000])] {
            assert_eq!(wrong_clock(ours, theirs), None, "{ours} {theirs:?}");
        }
    }
}
