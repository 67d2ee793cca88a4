//! An exchange for benchmarks of size: each party is a process of its own with its store in a file, killed by `kill -9` like any; all
//! members are in the benchmark's process, whose one thread does their work. Links are pipes: no TLS.

pub mod members;
pub mod party;
pub mod pipe;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, BufReader, BufWriter, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::time::Duration;

use thiserror::Error;
use wayleave_core::{Instant, Now, UnixTime};
use wayleave_crypto::hash::hash;
use wayleave_crypto::secret::Seed;
use wayleave_route_server::object::ExportMode;
use wayleave_route_server::party::{LinkId, PartyNumber};

use members::{Members, ToParty, Work};
use party::PartyArguments;
use pipe::{Answer, Record, Say};

/// Both parties.
pub const BOTH: [PartyNumber; 2] = [PartyNumber::One, PartyNumber::Two];
/// Records that wait for the members' thread; the parties wait beyond that.
const WAITING: usize = 1 << 10;
/// Records that are taken before what they caused is sent.
const AT_ONCE: usize = 256;
/// Octets of the pipes' buffers in this process.
const BUFFER: usize = 1 << 18;
/// The link between the parties.
const PEER_LINKS: LinkId = 1 << 60;
/// How often it is asked whether the parties are at rest.
pub(crate) const QUERY_INTERVAL: Duration = Duration::from_millis(20);
/// How long links stay down before they are connected again.
const RECONNECT: Duration = Duration::from_millis(100);

pub(crate) fn index(party: PartyNumber) -> usize {
    usize::from(party == PartyNumber::Two)
}

/// Monotonic time of the system, the same in all processes, and Unix time.
pub(crate) fn now() -> Now {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let nanos = time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs();
    let unix = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Now { instant: Instant(nanos), unix: UnixTime(u64::try_from(unix.as_micros()).unwrap_or(u64::MAX)) }
}

/// Processor time of this thread.
pub(crate) fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Randomness that is good enough for a benchmark.
pub(crate) fn fresh() -> Seed {
    static DRAWN: AtomicU64 = AtomicU64::new(0);
    let drawn = DRAWN.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    let process = std::process::id().to_be_bytes();
    Seed::new(hash("wayleave/lab/bench/v1", &[&process, &now().instant.0.to_be_bytes(), &drawn]))
}

/// Why a benchmark of an exchange failed.
#[derive(Debug, Error)]
pub enum ExchangeError {
    #[error("{0}")]
    System(#[from] io::Error),
    #[error("party {0} ended: its own message is above")]
    PartyEnded(u8),
    #[error("after {seconds} s {what}; {state}")]
    Late { what: &'static str, seconds: u64, state: String },
    #[error("links were closed, so this measures something else: {0}")]
    Closed(String),
    #[error("{server}: {said}")]
    Server { server: &'static str, said: String },
}

/// What an exchange is made of.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The program that runs a party, to which [`PartyArguments::to_words`] is appended.
    pub program: Vec<OsString>,
    /// Where the stores are.
    pub folder: PathBuf,
    pub slots: usize,
    pub tick: Duration,
    pub export: ExportMode,
    /// The longest that anything may take.
    pub limit: Duration,
}

/// Seed of keys and sessions.
const SEED: u64 = 20;

struct Process {
    child: Child,
    input: BufWriter<ChildStdin>,
    ready: bool,
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Of which party and of which of its processes.
type FromParty = (PartyNumber, u64, Record);

/// What the processes have used so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Used {
    pub parties: [Duration; 2],
    pub members: Work,
    /// All of this process, with the threads that read the pipes.
    pub process: Duration,
}

impl Used {
    /// What was used since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let less = |now: Duration, before: Duration| now.saturating_sub(before);
        Self {
            parties: std::array::from_fn(|i| less(self.parties[i], before.parties[i])),
            members: std::array::from_fn(|i| less(self.members[i], before.members[i])),
            process: less(self.process, before.process),
        }
    }

    /// Each part by name.
    #[must_use]
    pub fn parts(&self) -> [(&'static str, Duration); 6] {
        let [announcer, receivers, sinks] = self.members;
        let pipes = self.process.saturating_sub(announcer + receivers + sinks);
        [
            ("party-1", self.parties[0]),
            ("party-2", self.parties[1]),
            ("announcer", announcer),
            ("receivers", receivers),
            ("sinks", sinks),
            ("pipes", pipes),
        ]
    }
}

/// A running exchange.
pub struct Exchange {
    plan: Plan,
    pub members: Members,
    parties: [Option<Process>; 2],
    /// How often each was started.
    lives: [u64; 2],
    sender: SyncSender<FromParty>,
    records: Receiver<FromParty>,
    peer_link: Option<LinkId>,
    next_peer_link: LinkId,
    queries: u64,
    answers: [Option<(u64, Answer)>; 2],
    /// When links may be connected.
    connect_at: Instant,
    /// Octets between the parties.
    pub party_link: u64,
    /// What parties reported to their operators; the first hundred.
    pub events: Vec<String>,
    /// How often they reported what.
    pub event_counts: BTreeMap<String, u64>,
}

impl Exchange {
    /// Starts both parties, without members.
    ///
    /// # Errors
    /// If a process does not start.
    pub fn start(plan: Plan) -> Result<Self, ExchangeError> {
        let (sender, records) = mpsc::sync_channel(WAITING);
        let mut exchange = Self {
            members: Members::new(&arguments(&plan, PartyNumber::One).setup()),
            plan,
            parties: [None, None],
            lives: [0; 2],
            sender,
            records,
            peer_link: None,
            next_peer_link: PEER_LINKS,
            queries: 0,
            answers: [None, None],
            connect_at: now().instant,
            party_link: 0,
            events: Vec::new(),
            event_counts: BTreeMap::new(),
        };
        for party in BOTH {
            exchange.start_party(party)?;
        }
        Ok(exchange)
    }

    /// Starts a party's process; it is connected once it is ready.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start_party(&mut self, party: PartyNumber) -> Result<(), ExchangeError> {
        let (program, first) = self.plan.program.split_first().ok_or_else(|| io::Error::other("no program"))?;
        let mut command = Command::new(program);
        command.args(first).args(arguments(&self.plan, party).to_words());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let missing = || io::Error::other("no pipe to the party");
        let input = BufWriter::with_capacity(BUFFER, child.stdin.take().ok_or_else(missing)?);
        let mut output = BufReader::with_capacity(BUFFER, child.stdout.take().ok_or_else(missing)?);
        self.lives[index(party)] += 1;
        let (sender, life) = (self.sender.clone(), self.lives[index(party)]);
        std::thread::spawn(move || {
            loop {
                let end = Record { say: Say::End, number: 0, octets: Vec::new() };
                let record = pipe::read(&mut output).unwrap_or(end);
                let ends = record.say == Say::End;
                if sender.send((party, life, record)).is_err() || ends {
                    return;
                }
            }
        });
        self.parties[index(party)] = Some(Process { child, input, ready: false });
        Ok(())
    }

    /// Kills a party's process, whose store stays.
    pub fn kill(&mut self, party: PartyNumber) {
        self.parties[index(party)] = None;
        self.gone(party);
    }

    fn gone(&mut self, party: PartyNumber) {
        if let Some(link) = self.peer_link.take() {
            for other in BOTH {
                self.write(other, Say::Down, link, &[]);
            }
        }
        self.members.party_gone(party);
        self.members.closed.clear();
    }

    fn write(&mut self, party: PartyNumber, say: Say, number: u64, octets: &[u8]) {
        if let Some(process) = &mut self.parties[index(party)] {
            // A process that has gone shows by the end of its other pipe.
            let _ = pipe::write(&mut process.input, say, number, octets);
        }
    }

    fn is_up(&self) -> [bool; 2] {
        self.parties.each_ref().map(|party| party.as_ref().is_some_and(|process| process.ready))
    }

    /// Connects what is up and has no link.
    fn connect(&mut self) {
        if now().instant < self.connect_at {
            return;
        }
        self.connect_at = now().instant + RECONNECT;
        let is_up = self.is_up();
        if self.peer_link.is_none() && is_up == [true; 2] {
            let link = self.next_peer_link;
            self.next_peer_link += 1;
            self.peer_link = Some(link);
            let exporter = fresh();
            for party in BOTH {
                self.write(party, Say::PeerUp, link, exporter.expose());
            }
        }
        self.members.connect(is_up);
    }

    /// Takes what has come, or waits for it for at most so long.
    ///
    /// # Errors
    /// If a party has ended.
    pub fn step(&mut self, wait: Duration) -> Result<(), ExchangeError> {
        self.connect();
        self.send();
        let due = self.members.deadline().map_or(wait, |at| at.since(now().instant).min(wait));
        let mut next = self.records.recv_timeout(due).ok();
        for _ in 0..AT_ONCE {
            let Some((party, life, record)) = next.take() else { break };
            if life == self.lives[index(party)] {
                self.take(party, record)?;
            }
            next = self.records.try_recv().ok();
        }
        // The last one that was received is not lost.
        if let Some((party, life, record)) = next
            && life == self.lives[index(party)]
        {
            self.take(party, record)?;
        }
        self.members.timers();
        self.send();
        Ok(())
    }

    fn take(&mut self, party: PartyNumber, record: Record) -> Result<(), ExchangeError> {
        let Record { say, number, octets } = record;
        match say {
            Say::Ready => {
                if let Some(process) = &mut self.parties[index(party)] {
                    process.ready = true;
                }
                self.connect_at = now().instant;
            }
            Say::Frame if Some(number) == self.peer_link => {
                self.party_link += octets.len() as u64;
                let other = BOTH[1 - index(party)];
                self.write(other, Say::Frame, number, &octets);
            }
            Say::Frame => self.members.frame(number, octets),
            Say::Closed if number >= PEER_LINKS => self.peer_closed(party, number, &octets),
            Say::Closed => self.members.party_closed(number, &String::from_utf8_lossy(&octets)),
            Say::Answer => self.answers[index(party)] = Answer::decode(&octets).map(|answer| (number, answer)),
            Say::Event => {
                let text = String::from_utf8_lossy(&octets);
                let kind = text.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_owned();
                *self.event_counts.entry(kind).or_default() += 1;
                if self.events.len() < 100 {
                    self.events.push(format!("party {}: {text}", index(party) + 1));
                }
            }
            Say::End if self.parties[index(party)].is_some() => {
                return Err(ExchangeError::PartyEnded(if party == PartyNumber::One { 1 } else { 2 }));
            }
            _ => {}
        }
        Ok(())
    }

    /// A party has closed the link to its peer party, unless that is gone already.
    fn peer_closed(&mut self, party: PartyNumber, link: LinkId, why: &[u8]) {
        if self.peer_link.take_if(|up| *up == link).is_some() {
            let why = String::from_utf8_lossy(why);
            self.members.closed.push(format!("the link between the parties: {why}"));
            self.write(BOTH[1 - index(party)], Say::Down, link, &[]);
        }
    }

    fn send(&mut self) {
        for one in std::mem::take(&mut self.members.out) {
            match one {
                ToParty::Up { party, link, slot, exporter } => {
                    let octets = [&slot.to_be_bytes()[..], &exporter].concat();
                    self.write(party, Say::MemberUp, link, &octets);
                }
                ToParty::Down { party, link } => self.write(party, Say::Down, link, &[]),
                ToParty::Frame { party, link, bytes } => self.write(party, Say::Frame, link, &bytes),
            }
        }
        for process in self.parties.iter_mut().flatten() {
            let _ = process.input.flush();
        }
    }

    /// How both parties stand, after they have taken all that was sent to them before, and the members all that they sent.
    ///
    /// # Errors
    /// If a party ends.
    pub fn ask(&mut self) -> Result<[Answer; 2], ExchangeError> {
        self.queries += 1;
        let query = self.queries;
        for party in BOTH {
            self.write(party, Say::Ask, query, &[]);
        }
        let begin = now().instant;
        loop {
            self.step(Duration::from_millis(5))?;
            if let [Some((one, first)), Some((two, second))] = self.answers
                && (one, two) == (query, query)
            {
                return Ok([first, second]);
            }
            self.check_time(begin, "the parties do not answer")?;
        }
    }

    fn check_time(&self, begin: Instant, what: &'static str) -> Result<(), ExchangeError> {
        if now().instant.since(begin) < self.plan.limit {
            return Ok(());
        }
        let members = self.members.synced();
        let (answers, closed) = (&self.answers, &self.members.closed);
        let (parties, own) = (&self.events, &self.members.events);
        let state = format!("{members:?} {answers:?} {closed:?} {parties:?} {own:?}");
        Err(ExchangeError::Late { what, seconds: self.plan.limit.as_secs(), state })
    }

    /// Goes on until `holds` says so.
    ///
    /// # Errors
    /// If a party ends, or it takes too long.
    pub fn until(&mut self, what: &'static str, mut holds: impl FnMut(&Self) -> bool) -> Result<(), ExchangeError> {
        let begin = now().instant;
        while !holds(self) {
            self.step(Duration::from_millis(20))?;
            self.check_time(begin, what)?;
        }
        Ok(())
    }

    /// Goes on until everything that was announced has reached everybody.
    ///
    /// # Errors
    /// If a party ends, or it takes too long.
    pub fn rest(&mut self) -> Result<[Answer; 2], ExchangeError> {
        let begin = now().instant;
        loop {
            self.until("members have not come to rest", |exchange| exchange.members.are_at_rest())?;
            let answers = self.ask()?;
            if answers.iter().all(|answer| answer.is_at_rest) && self.members.are_at_rest() {
                return Ok(answers);
            }
            self.check_time(begin, "the parties have not come to rest")?;
            self.step(QUERY_INTERVAL)?;
        }
    }

    /// The same, with the pools of correlations full.
    ///
    /// # Errors
    /// If a party ends, or it takes too long.
    pub fn stocked(&mut self) -> Result<(), ExchangeError> {
        let begin = now().instant;
        loop {
            self.rest()?;
            if self.ask()?.iter().all(|answer| answer.is_stocked) {
                return Ok(());
            }
            self.check_time(begin, "the parties have not filled their pools")?;
            self.step(QUERY_INTERVAL)?;
        }
    }

    /// Fails if a link was closed.
    ///
    /// # Errors
    /// If one was.
    pub fn check_links(&self) -> Result<(), ExchangeError> {
        match self.members.closed.first() {
            None => Ok(()),
            Some(first) => Err(ExchangeError::Closed(format!("{first}, of {}", self.members.closed.len()))),
        }
    }

    /// Processor time of the processes so far.
    #[must_use]
    pub fn used(&self) -> Used {
        let parties = self.parties.each_ref().map(|party| party.as_ref().map_or(Duration::ZERO, |p| cpu(p.child.id())));
        Used { parties, members: self.members.work, process: cpu(std::process::id()) }
    }

    /// The most memory that the process of each party has had, in octets.
    #[must_use]
    pub fn memory(&self) -> [u64; 2] {
        self.parties.each_ref().map(|party| party.as_ref().map_or(0, |process| most_memory(process.child.id())))
    }
}

fn arguments(plan: &Plan, number: PartyNumber) -> PartyArguments {
    let store = plan.folder.join(format!("party-{}.redb", index(number) + 1));
    PartyArguments { number, slots: plan.slots, seed: SEED, tick: plan.tick, export: plan.export, store }
}

/// Processor time of a process, from `/proc`, in steps of a hundredth of a second.
pub(crate) fn cpu(process: u32) -> Duration {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The name, in brackets, may contain anything.
    let fields = text.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
    let ticks: u64 = fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second().max(1))
}

/// The most memory that a process has had, in octets (`VmHWM`).
#[must_use]
pub fn most_memory(process: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0) * 1024
}

/// The prefix number `number` of a table, a /24, without path identifier.
///
/// # Panics
/// If there is no such prefix: they are some twelve million.
#[must_use]
pub fn prefix(number: usize) -> wayleave_bgp::Nlri {
    let octets = (u32::try_from(number).expect("few prefixes") << 8) + (20 << 24);
    let address = std::net::Ipv4Addr::from(octets);
    wayleave_bgp::Nlri::new(wayleave_core::Prefix::truncated(address.into(), 24).expect("24 bits fit"))
}
