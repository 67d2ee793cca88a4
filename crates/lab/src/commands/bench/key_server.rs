//! `bench key-server`: what an answer costs in memory and over loopback, beside the same server's static record; what principals
//! cost.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use hickory_proto::op::{Message, MessageType, OpCode, Query};
use hickory_proto::rr::{Name, RecordType};
use serde_json::json;
use wayleave_control::capability::{
    ChangeBody, Client, Credential, Grant, KeyServer, KeyServerConfig, Lookup, LookupConfig, LookupInput, LookupOutput,
    LookupPolicy, MasterKey, NameServer, ProviderKey, Served, Terms, Transport, Zone,
};
use wayleave_core::{Instant, Machine, Now, UnixTime};
use wayleave_crypto::secret::{Key128, Seed};
use wayleave_crypto::sign::SigningKey;
use wayleave_packet::platypus::header::{Interval, Principal, Width};
use wayleave_packet::platypus::mint::{WaypointKey, WaypointKeys};
use wayleave_papers::report::Report;

use crate::commands::bench::{Bench, key_server_loopback};
use wayleave_config::failure::{Failure, Outcome};

const ZONE: &str = "keys.example.net";
const WAYPOINT: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1));
/// A second in the middle of a key epoch.
const SECOND: u64 = 1_800_001_000;
const CLIENT: Client = Client { address: IpAddr::V4(Ipv4Addr::LOCALHOST), transport: Transport::Udp };

/// Principals that ask again.
const AGAIN: usize = 1_000;
/// Answers a second: so many that none is refused, and each is counted against its source.
const UNLIMITED: u32 = u32::MAX;

fn waypoints() -> HashMap<IpAddr, WaypointKeys> {
    HashMap::from([(WAYPOINT, WaypointKeys::new(WaypointKey::new(&Key128::new([3; 16]))))])
}

/// A fault of the program's own.
pub fn bug() -> Failure {
    Failure::new("the benchmark's own server cannot be set up: a bug, please report it")
}

pub fn run(bench: &Bench) -> Outcome<Report> {
    let (principals, answers) = if bench.short { (10_000, 2_000) } else { (100_000, 20_000) };
    let repetitions = bench.repetitions.unwrap_or(if bench.short { 5 } else { 21 });
    let now = Now { instant: Instant(1_000_000_000), unix: UnixTime(SECOND * 1_000_000) };
    let mut server = server(principals, now)?;
    let zone: Zone = ZONE.parse().map_err(|_| bug())?;
    let provider = provider();
    let credential = |number: u32| {
        let terms = terms(number)?;
        Ok::<_, Failure>(Credential {
            zone: zone.clone(),
            terms,
            key: provider.account(terms.principal, 0).master(&terms),
        })
    };
    // Many principals, so that what is kept of each is not in the nearest cache, and each once: a first answer is made anew.
    let step = (principals / answers as u32).max(1);
    let known = (0..principals).step_by(step as usize).map(credential).collect::<Result<Vec<_>, _>>()?;
    let secrets = known.iter().map(question).collect::<Result<Vec<_>, _>>()?;
    let strangers = known
        .iter()
        .map(|known| question(&Credential { key: MasterKey::new(Key128::new([7; 16])), ..known.clone() }))
        .collect::<Result<Vec<_>, _>>()?;
    let fixed = [static_question(secrets[0].len())?];
    let mut report = Report::new("key-server", json!({ "principals": principals, "answers": answers, "cores": 1 }));
    // All kinds in turn, so that whatever else the machine does meets each alike, and processor time, which others do not add to.
    let kinds = [
        ("static", &fixed[..]),
        ("answers", &secrets),
        ("answers.again", &secrets[..AGAIN]),
        ("answers.unknown", &strangers),
    ];
    let mut samples = [(); 4].map(|()| Vec::new());
    for _ in 0..repetitions {
        // A reload forgets what was answered.
        server.reload(waypoints(), LookupPolicy::default(), UNLIMITED);
        for ((_, questions), samples) in kinds.iter().zip(&mut samples) {
            let begin = processor_time();
            for question in questions.iter().cycle().take(answers) {
                match server.serve(question, CLIENT, now) {
                    Served::Reply(_) => {}
                    _ => return Err(bug().into()),
                }
            }
            samples.push(processor_time().saturating_sub(begin).as_secs_f64() / answers as f64);
        }
    }
    let counted = server.counters();
    let loopback = over_loopback(&mut server, &kinds, answers as u64, repetitions, now)?;
    let questions = (answers * repetitions) as u64;
    if (counted.static_records, counted.secrets, counted.unknown) != (questions, 2 * questions, questions) {
        return Err(bug().into());
    }
    for ((name, _), seconds) in kinds.iter().zip(&samples) {
        report.add(*name, "answers/s", &seconds.iter().map(|seconds| 1.0 / seconds).collect::<Vec<_>>());
    }
    let [fixed, secret, again, unknown] = &samples;
    for (name, seconds) in [("ratio", secret), ("ratio.again", again), ("ratio.unknown", unknown)] {
        let ratios: Vec<f64> = seconds.iter().zip(fixed).map(|(seconds, fixed)| seconds / fixed).collect();
        report.add(name, "ratio", &ratios);
    }
    for ((name, _), seconds) in kinds.iter().zip(&loopback) {
        let rates: Vec<f64> = seconds.iter().map(|seconds| 1.0 / seconds).collect();
        report.add(format!("{name}.loopback"), "answers/s", &rates);
    }
    let ratios: Vec<f64> = loopback[1].iter().zip(&loopback[0]).map(|(secret, fixed)| secret / fixed).collect();
    report.add("ratio.loopback", "ratio", &ratios);
    report.exact("memory", "bytes", server.memory() as f64 / f64::from(principals));
    Ok(report)
}

/// Seconds of a processor for an answer of each kind, sockets included.
fn over_loopback(
    server: &mut KeyServer,
    kinds: &[(&'static str, &[Vec<u8>]); 4],
    count: u64,
    repetitions: usize,
    now: Now,
) -> Outcome<[Vec<f64>; 4]> {
    let mut samples = [(); 4].map(|()| Vec::new());
    for _ in 0..repetitions {
        for ((_, questions), samples) in kinds.iter().zip(&mut samples) {
            // Each principal is asked for once, so that a first answer is one.
            server.reload(waypoints(), LookupPolicy::default(), UNLIMITED);
            samples.push(key_server_loopback::seconds_per_answer(server, questions, count, now)?);
        }
    }
    Ok(samples)
}

/// What this thread has had of a processor.
pub fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default() // it is never negative
}

fn provider() -> ProviderKey {
    ProviderKey::new(Seed::new([1; 32]))
}

fn terms(number: u32) -> Result<Terms, Failure> {
    let principal = Principal::new(number).ok_or_else(bug)?;
    let interval = Interval::new(12).ok_or_else(bug)?;
    Ok(Terms { waypoint: WAYPOINT, principal, interval, width: Width::Full, delegation: None })
}

fn server(principals: u32, now: Now) -> Result<KeyServer, Failure> {
    let config = KeyServerConfig {
        zone: ZONE.parse().map_err(|_| bug())?,
        name_servers: vec![NameServer { name: "ns1.example.net".to_owned(), addresses: Vec::new() }],
        provider: provider(),
        signer: SigningKey::from_seed(&Seed::new([2; 32])),
        waypoints: waypoints(),
        policy: LookupPolicy::default(),
        responses_per_second: UNLIMITED,
    };
    let mut server = KeyServer::new(config).map_err(|_| bug())?;
    for number in 0..principals {
        let terms = terms(number)?;
        let account = ChangeBody::Account { principal: terms.principal, generation: 0, name: String::new() };
        for body in [account, ChangeBody::Grant(Grant { terms, not_before: 0, not_after: u64::MAX })] {
            let change = server.sign(body, now.unix).map_err(|_| bug())?;
            server.apply(&change).map_err(|_| bug())?;
        }
    }
    while !server.prepare(now.unix, u32::MAX) {}
    Ok(server)
}

/// The question of a look-up in the current epoch.
fn question(credential: &Credential) -> Result<Vec<u8>, Failure> {
    let server = (WAYPOINT, 53).into();
    let epoch = (SECOND >> 12) as u32;
    let config =
        LookupConfig { credential: credential.clone(), epoch, servers: vec![server], seed: Seed::new([4; 32]) };
    let mut lookup = Lookup::new(config);
    lookup.handle(LookupInput::Start, Now::default());
    match lookup.poll() {
        Some(LookupOutput::Datagram { octets, .. }) => Ok(octets),
        _ => Err(bug()),
    }
}

/// A question for the zone's own text, as long as a look-up.
fn static_question(length: usize) -> Result<Vec<u8>, Failure> {
    use hickory_proto::op::Edns;
    use hickory_proto::rr::rdata::opt::EdnsOption;
    let padded = |padding: usize| {
        let mut message = Message::new(1, MessageType::Query, OpCode::Query);
        message.add_query(Query::query(Name::from_ascii(format!("{ZONE}.")).map_err(|_| bug())?, RecordType::TXT));
        let mut edns = Edns::new();
        edns.set_max_payload(1_232);
        edns.options_mut().insert(EdnsOption::Unknown(12, vec![0; padding]));
        message.set_edns(edns);
        message.to_vec().map_err(|_| bug())
    };
    let bare = padded(0)?.len();
    padded(length.saturating_sub(bare))
}
