//! Laboratory tools. `lab speak` replays the UPDATEs of an MRT file as a BGP speaker; `overlay` has whole networks.

mod overlay;
mod ping;

use std::fs::File;
use std::io::{BufReader, Read};
use std::time::Duration;

use serde_json::json;
use tokio::sync::mpsc;
use tracing::warn;
use wayleave_bgp::session::{Config, PeerAsn};
use wayleave_bgp::{Ipv6NextHop, Message, Update, mrt};
use wayleave_core::{Afi, UnixTime};
use wayleave_runtime::Clock;
use wayleave_runtime::bgp_tcp::TcpOptions;
use wayleave_runtime::logs;
use wayleave_runtime::signals::Signals;

use crate::failure::{Failure, Outcome};
use crate::output::{print, print_json};
use crate::roles::bgp_peer::{Endpoint, Peer, PeerEvent};
use clap::{Args, Subcommand};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use wayleave_core::Asn;

#[derive(Subcommand, Debug)]
pub enum Lab {
    /// Start the overlay that a file describes: a realm, its servers, nodes, gateways and hosts, in network namespaces.
    Up(overlay::Up),
    /// Show the processes of a running laboratory.
    Status(overlay::Status),
    /// Run a command at a node, gateway, server or host.
    Exec(overlay::Exec),
    /// Draw a laboratory: DOT, or lines of text.
    Graph(overlay::Graph),
    /// End a laboratory: exactly what `up` started.
    Down(overlay::Down),
    /// Send packets of a format through running routers, answer them, and show what came back.
    Ping(ping::Ping),
    /// Replay the UPDATEs of an MRT file as a BGP speaker.
    Speak(Speak),
    /// Hold a laboratory's namespaces: what `up` starts.
    #[command(hide = true)]
    Hold(overlay::Hold),
    /// Look at a laboratory from inside: what `status` starts.
    #[command(hide = true)]
    Look(overlay::Look),
}

#[derive(Args, Debug)]
pub struct Speak {
    /// The MRT file, may be compressed by gzip or bzip2.
    #[arg(long)]
    pub mrt: PathBuf,
    /// Address of the peer.
    #[arg(long)]
    pub connect: SocketAddr,
    /// The speaker's AS, prepended to every path.
    #[arg(long)]
    pub asn: Asn,
    /// The peer's AS. Default: any.
    #[arg(long)]
    pub peer_asn: Option<Asn>,
    /// The speaker's router identifier.
    #[arg(long)]
    pub router_id: Ipv4Addr,
    /// Next hop of IPv4 routes. Default: the router identifier.
    #[arg(long)]
    pub next_hop: Option<Ipv4Addr>,
    /// Next hop of IPv6 routes; without it they are left out.
    #[arg(long)]
    pub next_hop6: Option<std::net::Ipv6Addr>,
    /// The local address to connect from.
    #[arg(long)]
    pub bind: Option<IpAddr>,
    /// UPDATEs per second, or `real-time` for the recorded pauses. Default: as fast as the peer reads.
    #[arg(long)]
    pub rate: Option<Rate>,
    /// Number of UPDATEs to send.
    #[arg(long)]
    pub limit: Option<u64>,
    /// End the session once everything is sent, instead of keeping it until interrupted.
    #[arg(long)]
    pub once: bool,
    #[arg(long)]
    pub json: bool,
}

/// How fast to replay.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Rate {
    PerSecond(f64),
    RealTime,
}

impl std::str::FromStr for Rate {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if text == "real-time" {
            return Ok(Rate::RealTime);
        }
        let number = text.strip_suffix("/s").unwrap_or(text).parse::<f64>().ok();
        let positive = number.filter(|number| number.is_finite() && *number > 0.0);
        positive.map(Rate::PerSecond).ok_or_else(|| "a number of UPDATEs per second, or real-time".to_owned())
    }
}

/// UPDATEs read ahead of what is sent.
const AHEAD: usize = 1024;

pub fn run(command: &Lab) -> Outcome {
    match command {
        Lab::Up(command) => overlay::up(command),
        Lab::Status(command) => overlay::status(command),
        Lab::Exec(command) => overlay::exec(command),
        Lab::Graph(command) => overlay::graph(command),
        Lab::Down(command) => overlay::down(command),
        Lab::Ping(command) => ping::ping(command),
        Lab::Speak(command) => speak(command),
        Lab::Hold(command) => overlay::hold(command),
        Lab::Look(command) => overlay::look(command),
    }
}

fn speak(command: &Speak) -> Outcome {
    logs::start(logs::Format::Text, None)?;
    // The file is opened here, so that a wrong name is reported before anything else happens.
    let wrong = |error: std::io::Error| Failure::new(format!("{}: {error}", command.mrt.display()));
    let file = BufReader::new(File::open(&command.mrt).map_err(wrong)?);
    let (to, updates) = mpsc::channel(AHEAD);
    let reading = {
        let as_ours = (command.asn, command.next_hop.unwrap_or(command.router_id), command.next_hop6);
        let name = command.mrt.display().to_string();
        std::thread::spawn(move || {
            if let Err(error) = read(file, as_ours, &to) {
                let _ = to.blocking_send(Err(Failure::new(format!("{name}: {error}")))); // fails if the receiver has gone
            }
        })
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().worker_threads(2).build();
    let runtime = runtime.map_err(|error| Failure::new(format!("cannot start threads: {error}")))?;
    let outcome = runtime.block_on(replay(command, updates));
    runtime.shutdown_timeout(Duration::from_millis(100));
    let _ = reading.join();
    outcome
}

/// An UPDATE with its recorded time, or why the file ends early.
type Recorded = Result<(UnixTime, Update), Failure>;

/// Reads the UPDATEs of a dump, as far as it is readable, until the receiver has gone.
fn read(file: impl Read, as_ours: AsOurs, to: &mpsc::Sender<Recorded>) -> Result<(), Box<dyn std::error::Error>> {
    let mut any = false;
    for record in mrt::MrtReader::new(mrt::decompress(file)?) {
        let message = match record {
            Ok(mrt::Record::Message(message)) => message,
            Ok(_) => continue,
            Err(error @ mrt::MrtError::Body { .. }) => {
                warn!(%error, "record left out: its message cannot be read");
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let Ok((Message::Update(update), _)) = Message::decode(&message.octets, &message.params()) else { continue };
        for update in rewrite(update, as_ours) {
            any = true;
            if to.blocking_send(Ok((message.time, update))).is_err() {
                return Ok(());
            }
        }
    }
    if any { Ok(()) } else { Err("no UPDATE in it that could be sent".into()) }
}

/// The speaker's AS and next hops.
type AsOurs = (wayleave_core::Asn, std::net::Ipv4Addr, Option<std::net::Ipv6Addr>);

/// The UPDATE as the speaker forwards it: its AS prepended, itself as next hop. Routes of both families in one message are
/// split, since each family has a next hop of its own.
fn rewrite(update: Update, (asn, next_hop, next_hop6): AsOurs) -> Vec<Update> {
    let mut parts = Vec::new();
    let family = |nlri: &wayleave_bgp::Nlri, afi| nlri.prefix.afi() == afi;
    for afi in [Afi::Ipv4, Afi::Ipv6] {
        let announced: Vec<_> = update.announced.iter().filter(|nlri| family(nlri, afi)).copied().collect();
        let withdrawn: Vec<_> = update.withdrawn.iter().filter(|nlri| family(nlri, afi)).copied().collect();
        if (announced.is_empty() && withdrawn.is_empty()) || (afi == Afi::Ipv6 && next_hop6.is_none()) {
            continue;
        }
        let attributes = update.attributes.as_ref().filter(|_| !announced.is_empty()).map(|attributes| {
            let mut edit = attributes.to_forward().edit();
            edit.prepend(asn, 1).local_pref(None);
            match (afi, next_hop6) {
                (Afi::Ipv6, Some(global)) => edit.ipv6_next_hop(Some(Ipv6NextHop { global, link_local: None })),
                _ => edit.ipv4_next_hop(next_hop),
            };
            edit.finish()
        });
        let strip = |mut nlri: wayleave_bgp::Nlri| {
            nlri.path_id = 0;
            nlri
        };
        parts.push(Update {
            withdrawn: withdrawn.into_iter().map(strip).collect(),
            announced: announced.into_iter().map(strip).collect(),
            attributes,
            end_of_rib: None,
            ignored: Vec::new(),
            problems: Vec::new(),
        });
    }
    parts
}

async fn replay(command: &Speak, mut updates: mpsc::Receiver<Recorded>) -> Outcome {
    // A file without UPDATEs is reported before a session is opened.
    let mut next = updates.recv().await.transpose()?;
    let expected = command.peer_asn.map_or(PeerAsn::Any, PeerAsn::Exactly);
    let mut config = Config::new(command.asn, command.router_id, expected);
    config.connect_retry = Duration::from_secs(1);
    let options = TcpOptions { bind: command.bind, ..TcpOptions::default() };
    let endpoint = Endpoint { listen: None, connect: Some(command.connect), options };
    let (events, mut peer_events) = mpsc::channel(AHEAD);
    let mut signals = Signals::listen().map_err(|error| Failure::new(format!("cannot listen for signals: {error}")))?;
    let peer = Peer::start(config, endpoint, Clock::start(), events).await;
    let peer = peer.map_err(|error| Failure::new(format!("cannot start the BGP session: {error}")))?;
    loop {
        tokio::select! {
            event = peer_events.recv() => if matches!(event, Some(PeerEvent::Up) | None) { break },
            _ = signals.next() => {
                peer.stop().await;
                return Ok(());
            }
        }
    }
    // The peer's routes are read and dropped; the task ends with the session.
    let mut received =
        tokio::spawn(async move { while !matches!(peer_events.recv().await, Some(PeerEvent::Down) | None) {} });
    let begin = tokio::time::Instant::now();
    let (mut sent, mut first) = (0u64, None);
    let mut broken = None;
    while let Some((time, update)) = next.take() {
        if command.limit.is_some_and(|limit| sent >= limit) || received.is_finished() {
            break;
        }
        let due = match command.rate {
            Some(Rate::PerSecond(rate)) => Duration::from_secs_f64(sent as f64 / rate),
            Some(Rate::RealTime) => {
                let start: UnixTime = *first.get_or_insert(time);
                Duration::from_micros(time.0.saturating_sub(start.0))
            }
            None => Duration::ZERO,
        };
        tokio::select! {
            () = tokio::time::sleep_until(begin + due) => {}
            _ = signals.next() => break,
        }
        if peer.replay.send(Box::new(update)).await.is_err() {
            break;
        }
        sent += 1;
        match updates.recv().await {
            Some(Ok(update)) => next = Some(update),
            Some(Err(failure)) => broken = Some(failure),
            None => {}
        }
    }
    drop(updates);
    // The queue is sent before the result is printed.
    while peer.replay.capacity() < peer.replay.max_capacity() && !received.is_finished() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let seconds = begin.elapsed().as_secs_f64();
    if command.json {
        print_json(json!({ "sent": sent, "seconds": seconds }));
    } else {
        print(&format!("{sent} UPDATEs sent in {seconds:.1} s\n"));
    }
    if let Some(failure) = broken {
        peer.stop().await;
        return Err(failure.into());
    }
    if !command.once {
        tokio::select! {
            _ = signals.next() => {}
            _ = &mut received => {}
        }
    }
    let lost = received.is_finished();
    peer.stop().await;
    if lost { Err(Failure::new("the peer ended the session").into()) } else { Ok(()) }
}
