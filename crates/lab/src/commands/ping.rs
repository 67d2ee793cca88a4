//! `ping`: packets of a format through running routers, and answers to them.
//!
//! This program is both ends: the sender in front of the first router, and the receiver behind the last one. It makes every
//! proof itself, with the keys of the routers' own configurations, which is why this is for a laboratory.

mod icing;
mod platypus;
mod scion;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};
use wayleave_runtime::clock::unix_now;

use wayleave_config::Source;
use wayleave_config::failure::{Failure, Outcome};
use wayleave_config::fetch::{self, Target};
use wayleave_config::key_files::forwarding::ForwardingKeys;
use wayleave_config::key_files::node::fresh;
use wayleave_config::output::{print, print_json};
use wayleave_config::router::{FormatName, RouterFile};

/// What the payload of a question begins with, and that of an answer.
const MARKS: [&[u8; 8]; 2] = [b"wl-ask\0\0", b"wl-answr"];
/// Octets of a mark and a number.
const LEAST: usize = 12;
/// Routers of a path, at most.
const MAX_ROUTERS: usize = 15;
/// How often counters of routers are read after the last packet before they count as final.
const LATE: Duration = Duration::from_millis(300);

#[derive(Args, Debug)]
pub struct Ping {
    /// The packets' format.
    #[arg(long, value_enum)]
    pub format: FormatName,
    /// A router's configuration; once for each router, in the order of the path.
    #[arg(long, required = true)]
    pub via: Vec<PathBuf>,
    /// The sender. Platypus: an IPv4 address of this machine. SCION: address and port of an end host. ICING: where the first
    /// router's open link leads (default).
    #[arg(long)]
    pub from: Option<String>,
    /// The receiver, in the same way. ICING: the last router's service (default).
    #[arg(long)]
    pub to: Option<String>,
    /// How many packets.
    #[arg(long, short, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub count: u32,
    /// Octets of the payload.
    #[arg(long, default_value_t = 56, value_parser = clap::value_parser!(u16).range(12..=1_200))]
    pub size: u16,
    /// Pause between two packets.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(0..=60_000))]
    pub interval_ms: u64,
    /// How long an answer is waited for.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    pub wait_ms: u64,
    /// Platypus: the resource principal that pays.
    #[arg(long, default_value_t = 1)]
    pub principal: u32,
    /// Spoil the proof for the last router: to see who refuses it, and how.
    #[arg(long)]
    pub spoil: bool,
    #[arg(long)]
    pub json: bool,
}

/// A router of the path, as its configuration has it.
struct Via {
    name: String,
    path: PathBuf,
    source: Source,
    file: RouterFile,
}

impl Via {
    fn read(path: &Path, format: FormatName) -> Outcome<Self> {
        let source = Source::read(path)?;
        let file = RouterFile::parse(&source)?;
        let name = path.display().to_string();
        if file.forwarding.format != format {
            let has = file.forwarding.format.name();
            return Err(
                Failure::usage(format!("{name} is of a router of {has} packets, not of {}", format.name())).into()
            );
        }
        if file.overlay.is_some() {
            return Err(Failure::usage(format!(
                "{name} is of a node of a realm, whose IDs and consents come from servers"
            ))
            .help("ask a gateway of the realm: `wayleave ping NAME --config gateway.toml`")
            .into());
        }
        Ok(Self { name, path: path.to_path_buf(), source, file })
    }

    /// The key that is in force now.
    fn key(&self) -> Outcome<[u8; 16]> {
        let keys = self.source.resolve(self.file.forwarding.keys.get_ref());
        let keys = ForwardingKeys::load(self.file.forwarding.format, &keys)?;
        Ok(*keys.at(unix_now().secs()))
    }

    /// Why the router has dropped packets so far; `None` if it shows nothing.
    fn reasons(&self) -> Option<BTreeMap<String, u64>> {
        self.file.status.as_ref()?;
        let target = Target { url: None, config: Some(self.path.clone()) };
        let status = fetch::json(&target, "/api/v1/status").ok()?;
        let reasons = status["reasons"].as_object()?;
        Some(reasons.iter().filter_map(|(name, count)| Some((name.clone(), count.as_u64()?))).collect())
    }
}

/// What was seen at one of the ends.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    /// A question came to the receiver.
    Arrived(u32),
    /// An answer came back to the sender.
    Answered(u32),
    /// A router, or what lies behind it, said why not.
    Error(String),
}

/// Both ends of a path in one format.
trait Ends {
    /// Sends the question with this number; `spoil` makes its last proof wrong.
    fn ask(&mut self, payload: &[u8], spoil: bool) -> Outcome;

    /// Takes what waits at both ends, answers questions, and tells what it was.
    fn look(&mut self) -> io::Result<Vec<Seen>>;

    /// Why there are no answers, if there cannot be any.
    fn one_way(&self) -> Option<&'static str> {
        None
    }
}

/// A number in a payload.
fn marked(mark: &[u8; 8], number: u32, size: usize) -> Vec<u8> {
    let mut payload = [&mark[..], &number.to_be_bytes()].concat();
    payload.resize(size.max(LEAST), 0x2e);
    payload
}

/// A question's or an answer's number.
fn number(mark: &[u8; 8], payload: &[u8]) -> Option<u32> {
    let rest = payload.strip_prefix(mark)?;
    Some(u32::from_be_bytes(*rest.first_chunk()?))
}

/// The answer to a question, as long as the question.
fn answer_to(payload: &[u8]) -> Option<(u32, Vec<u8>)> {
    let number = number(MARKS[0], payload)?;
    Some((number, marked(MARKS[1], number, payload.len())))
}

/// A random number to begin with: packets of an earlier run are no repeats of these.
fn first_number() -> Outcome<u32> {
    Ok(u32::from_be_bytes(*fresh::<4>()?) >> 1)
}

/// What the user gave as an end, or what the configuration says.
fn end(given: Option<&str>, what: &str, example: &str) -> Outcome<SocketAddr> {
    let text = given.ok_or_else(|| Failure::usage(format!("no {what}")).help(format!("add --{what} {example}")))?;
    let wrong = || Failure::usage(format!("--{what} {text}: not an end")).help(format!("it looks like {example}"));
    Ok(text.parse().map_err(|_| wrong())?)
}

/// What happened to all packets.
#[derive(Default)]
struct Tally {
    sent: u32,
    arrived: BTreeMap<u32, Duration>,
    answered: BTreeMap<u32, Duration>,
    errors: Vec<String>,
}

pub fn ping(command: &Ping) -> Outcome {
    if command.via.len() > MAX_ROUTERS {
        let message = format!("{} routers, expected at most {MAX_ROUTERS}", command.via.len());
        return Err(Failure::usage(message).into());
    }
    let via = command.via.iter().map(|path| Via::read(path, command.format)).collect::<Outcome<Vec<_>>>()?;
    let mut ends: Box<dyn Ends> = match command.format {
        FormatName::Icing => Box::new(icing::IcingEnds::open(command, &via)?),
        FormatName::Scion => Box::new(scion::ScionEnds::open(command, &via)?),
        FormatName::Platypus => Box::new(platypus::PlatypusEnds::open(command, &via)?),
    };
    let before: Vec<_> = via.iter().map(Via::reasons).collect();
    let say = |line: &str| {
        if !command.json {
            print(&format!("{line}\n"));
        }
    };
    let names: Vec<&str> = via.iter().map(|via| via.name.as_str()).collect();
    say(&format!("{} packets of {} octets over {}", command.format.name(), command.size, names.join(", ")));
    let one_way = ends.one_way();
    if let Some(why) = one_way {
        say(&format!("arrivals are shown, and no answers: {why}"));
    }
    let mut tally = Tally::default();
    let mut sent_at = Vec::new();
    for number in 0..command.count {
        sent_at.push(Instant::now());
        ends.ask(&marked(MARKS[0], number, command.size.into()), command.spoil)?;
        tally.sent += 1;
        let is_last = number + 1 == command.count;
        let pause = Duration::from_millis(if is_last { command.wait_ms } else { command.interval_ms });
        let end = Instant::now() + pause;
        loop {
            for seen in ends.look().map_err(|error| Failure::system("cannot receive", &error))? {
                note(seen, &sent_at, &mut tally, one_way.is_some(), &say);
            }
            let done = if one_way.is_some() { tally.arrived.len() } else { tally.answered.len() };
            let is_done = is_last && done + tally.errors.len() >= sent_at.len();
            if is_done || Instant::now() >= end {
                break;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }
    let done = if one_way.is_some() { tally.arrived.len() } else { tally.answered.len() };
    let mut dropped = Vec::new();
    if done < sent_at.len() {
        // Counters are read where they are; what was dropped just now is there a moment later.
        std::thread::sleep(LATE);
        for (via, before) in via.iter().zip(before) {
            for (reason, count) in via.reasons().unwrap_or_default() {
                let earlier = before.as_ref().and_then(|before| before.get(&reason)).copied().unwrap_or(0);
                if count > earlier {
                    say(&format!("{} dropped {}: {reason}", via.name, count - earlier));
                    dropped.push(json!({ "router": via.name, "reason": reason, "packets": count - earlier }));
                }
            }
        }
    }
    report(command, &tally, &dropped, one_way.is_some());
    if done > 0 {
        return Ok(());
    }
    Err(Failure::new(format!("none of {} packets came through", tally.sent))
        .help("routers with [status] say why they drop: `wayleave show status --config FILE`")
        .into())
}

fn note(seen: Seen, sent_at: &[Instant], tally: &mut Tally, is_one_way: bool, say: &dyn Fn(&str)) {
    let since = |number: u32| sent_at.get(number as usize).map(Instant::elapsed);
    match seen {
        Seen::Arrived(number) => {
            let Some(span) = since(number) else { return };
            if tally.arrived.insert(number, span).is_none() && is_one_way {
                say(&format!("{} arrived after {}", number + 1, millis(span)));
            }
        }
        Seen::Answered(number) => {
            let Some(span) = since(number) else { return };
            if tally.answered.insert(number, span).is_none() {
                say(&format!("{} answered after {}", number + 1, millis(span)));
            }
        }
        Seen::Error(what) => {
            say(&what);
            tally.errors.push(what);
        }
    }
}

fn millis(span: Duration) -> String {
    format!("{:.3} ms", span.as_secs_f64() * 1e3)
}

fn report(command: &Ping, tally: &Tally, dropped: &[Value], is_one_way: bool) {
    let spans: Vec<Duration> = if is_one_way { &tally.arrived } else { &tally.answered }.values().copied().collect();
    let (arrived, answered) = (tally.arrived.len(), tally.answered.len());
    if command.json {
        print_json(json!({
            "format": command.format.name(), "sent": tally.sent, "arrived": arrived, "answered": answered,
            "micros": spans.iter().map(|span| span.as_micros() as u64).collect::<Vec<_>>(),
            "one_way": is_one_way, "errors": tally.errors, "dropped": dropped,
        }));
        return;
    }
    let mut text = format!("{} sent, {arrived} arrived, {answered} answered", tally.sent);
    if let (Some(least), Some(most)) = (spans.iter().min(), spans.iter().max()) {
        let mean = spans.iter().sum::<Duration>() / u32::try_from(spans.len()).unwrap_or(1);
        let _ = write!(text, "; {} to {}, {} on average", millis(*least), millis(*most), millis(mean));
    }
    print(&format!("{text}\n"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_the_questions_number_and_length() {
        let question = marked(MARKS[0], 7, 40);
        let (sequence, answer) = answer_to(&question).expect("a question");
        assert_eq!((sequence, answer.len(), number(MARKS[1], &answer)), (7, 40, Some(7)));
        assert!(answer_to(&answer).is_none(), "an answer is not answered");
        assert!((0..LEAST).all(|length| answer_to(&question[..length]).is_none()));
    }
}
