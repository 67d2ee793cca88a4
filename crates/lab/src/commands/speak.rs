//! `speak`: replays the UPDATEs of an MRT file as a BGP speaker.

use std::fs::File;
use std::io::{BufReader, Read};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::json;
use tracing::{info, warn};
use wayleave_bgp::{Ipv6NextHop, Message, Update, mrt};
use wayleave_config::failure::{Failure, Outcome};
use wayleave_config::output::{print, print_json};
use wayleave_config::parse::endpoint;
use wayleave_core::{Afi, Asn, UnixTime};
use wayleave_lab::replay::{Replay, ReplayError, Speaker, StopHandle};
use wayleave_runtime::logs;
use wayleave_runtime::signals::Signals;

#[derive(Args, Debug)]
pub struct Speak {
    /// The MRT file, may be compressed by gzip or bzip2.
    #[arg(long)]
    pub mrt: PathBuf,
    /// Address of the peer.
    #[arg(long, value_parser = endpoint)]
    pub connect: SocketAddr,
    /// The speaker's AS, prepended to every path.
    #[arg(long)]
    pub asn: Asn,
    /// The peer's AS. Default: any.
    #[arg(long)]
    pub peer_asn: Option<Asn>,
    /// The speaker's BGP identifier.
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
    /// Print one JSON object.
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
/// How long the session is served before it is looked at.
const WAIT: Duration = Duration::from_secs(1);

pub fn run(command: &Speak) -> Outcome {
    logs::start(logs::Format::Text, None)?;
    // The file is opened here, so that a wrong name is reported before anything else happens.
    let wrong = |error: std::io::Error| Failure::new(format!("{}: {error}", command.mrt.display()));
    let file = BufReader::new(File::open(&command.mrt).map_err(wrong)?);
    let (to, updates) = sync_channel(AHEAD);
    let as_ours = (command.asn, command.next_hop.unwrap_or(command.router_id), command.next_hop6);
    let name = command.mrt.display().to_string();
    std::thread::spawn(move || {
        if let Err(error) = read(file, as_ours, &to) {
            let _ = to.send(Err(Failure::new(format!("{name}: {error}")))); // fails if the receiver has gone
        }
    });
    replay(command, &updates)
}

/// An UPDATE with its recorded time, or why the file ends early.
type Recorded = Result<(UnixTime, Update), Failure>;

/// Reads the UPDATEs of a dump, as far as it is readable, until the receiver has gone.
fn read(file: impl Read, as_ours: AsOurs, to: &SyncSender<Recorded>) -> Result<(), Box<dyn std::error::Error>> {
    let (mut any, mut tables) = (false, 0u64);
    for record in mrt::MrtReader::new(mrt::decompress(file)?) {
        let message = match record {
            Ok(mrt::Record::Message(message)) => message,
            Ok(mrt::Record::Rib(_)) => {
                tables += 1;
                continue;
            }
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
            if to.send(Ok((message.time, update))).is_err() {
                return Ok(());
            }
        }
    }
    match tables {
        _ if any => Ok(()),
        0 => Err("no UPDATE in it that could be sent".into()),
        _ => Err(format!(
            "{tables} table entries (TABLE_DUMP_V2) and no UPDATE that could be sent: take a file of updates"
        )
        .into()),
    }
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

/// Stops the replay at the first SIGTERM or SIGINT.
fn stop_at_signals(stop: StopHandle) -> Outcome {
    let failed = |error: std::io::Error| Failure::new(format!("cannot listen for signals: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let mut signals = runtime.block_on(async { Signals::listen() }).map_err(failed)?;
    std::thread::spawn(move || {
        runtime.block_on(signals.next());
        stop.stop();
    });
    Ok(())
}

fn replay(command: &Speak, updates: &Receiver<Recorded>) -> Outcome {
    // A file without UPDATEs is reported before a session is opened.
    let mut next = updates.recv().ok().transpose()?;
    let mut session = Replay::start(&Speaker {
        asn: command.asn,
        router_id: command.router_id,
        peer_asn: command.peer_asn,
        connect: command.connect,
        bind: command.bind,
    });
    stop_at_signals(session.stop_handle())?;
    let ended = |error: ReplayError| Failure::new(&error);
    while !session.is_established() {
        session.run(WAIT).map_err(ended)?;
        if let Some(why) = session.take_failure() {
            warn!(peer = %command.connect, "no BGP session: {why}; it is tried again");
        }
        if session.is_stopped() {
            return Ok(());
        }
    }
    info!(peer = %command.connect, "BGP session established");
    let begin = Instant::now();
    let (mut sent, mut first) = (0u64, None);
    let (mut broken, mut lost) = (None, None);
    while let Some((time, update)) = next.take() {
        if command.limit.is_some_and(|limit| sent >= limit) {
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
        let outcome = session.run(due.saturating_sub(begin.elapsed()));
        if session.is_stopped() {
            break;
        }
        if let Err(error) = outcome.and_then(|()| session.send(update)) {
            lost = Some(error);
            break;
        }
        sent += 1;
        match updates.recv() {
            Ok(Ok(update)) => next = Some(update),
            Ok(Err(failure)) => broken = Some(failure),
            Err(_) => {}
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    let is_over = command.once || broken.is_some() || lost.is_some() || session.is_stopped();
    let report = || {
        if command.json {
            print_json(json!({ "sent": sent, "seconds": seconds }));
        } else {
            print(&format!("{sent} UPDATEs sent in {seconds:.1} s\n"));
        }
    };
    if let Some(error) = lost {
        // Of what TCP had taken the peer may have read less.
        return Err(Failure::new(format!(
            "{error}; {sent} UPDATEs were handed to TCP, and the peer may have read fewer"
        ))
        .into());
    }
    if !is_over {
        report();
        while !session.is_stopped() {
            session.run(WAIT).map_err(ended)?;
        }
    }
    // Only now it is known that the peer has read everything.
    session.close().map_err(ended)?;
    if is_over {
        report();
    }
    broken.map_or(Ok(()), |failure| Err(failure.into()))
}
