//! `check --deep`: what only the network and this machine tell of a configuration.
//!
//! A party and a role that does not run are reached as `run` would reach them. A role that runs has its links: then only the
//! other end's certificate is looked at, without a name, so that no link is disturbed.

use std::net::{SocketAddr, TcpListener, TcpStream};
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
use crate::config::rs::RsConfig;
use crate::config::{Source, status_of};
use crate::failure::{Failure, Outcome};
use crate::fetch::{self, Target};
use crate::roles::link_faults::{CLOCK_TOLERANCE, LinkEndpoint};
use crate::roles::{party_endpoints, party_verifier, peer_endpoint, peer_verifier};

/// How long a router may take to answer.
const TCP_WAIT: Duration = Duration::from_secs(3);

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
    use super::wrong_clock;

    #[test]
    fn a_clock_is_wrong_where_two_others_agree_and_it_differs_from_both() {
        assert!(wrong_clock(1_000, [5_000, 5_010]).is_some());
        for (ours, theirs) in [(1_000, [1_010, 990]), (1_000, [5_000, 1_000]), (1_000, [5_000, 9_000])] {
            assert_eq!(wrong_clock(ours, theirs), None, "{ours} {theirs:?}");
        }
    }
}
