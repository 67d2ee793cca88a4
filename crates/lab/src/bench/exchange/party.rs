//! The process of one party in a benchmark: the shipped machine and the shipped store; its links are records on standard input and
//! output, so there is no TLS.

use std::io::{self, BufReader, BufWriter, Write};
use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::Duration;

use wayleave_core::{Machine, Now};
use wayleave_crypto::secret::Seed;
use wayleave_route_server::object::{ExportMode, MAX_BLOB_DEFAULT};
use wayleave_route_server::party::{
    Budget, MAX_WAITING, Party, PartyConfig, PartyInput, PartyNumber, PartyOutput, PeerId, StoredRecord,
};
use wayleave_route_server::versions::Speaks;
use wayleave_runtime::store::{self, FileStore, Store};

use super::pipe::{self, Answer, Record, Say};
use super::{fresh, now};
use crate::sim::{EXCHANGE, Setup, directory_of, operator_keys};

/// Octets that are written to the pipe at once.
const WRITTEN: usize = 1 << 20;
/// How long it waits where it has nothing due.
const PAUSE: Duration = Duration::from_secs(60);

/// What a party of a benchmark is started with; its process gets it as [`PartyArguments::to_words`].
#[derive(Clone, Debug)]
pub struct PartyArguments {
    pub number: PartyNumber,
    /// Slots of the member set.
    pub slots: usize,
    pub seed: u64,
    pub tick: Duration,
    pub export: ExportMode,
    /// Its store's file.
    pub store: PathBuf,
}

impl PartyArguments {
    /// The words of a command line.
    #[must_use]
    pub fn to_words(&self) -> Vec<String> {
        let number = if self.number == PartyNumber::One { 1 } else { 2 };
        let words = format!("{number} {} {} {} {}", self.slots, self.seed, self.tick.as_millis(), self.export);
        words.split(' ').map(str::to_owned).chain([self.store.display().to_string()]).collect()
    }

    /// `None` if these are not such words.
    #[must_use]
    pub fn from_words(words: &[String]) -> Option<Self> {
        let [number, slots, seed, tick, export, store] = words else { return None };
        let modes = [ExportMode::Direct, ExportMode::Mpc];
        Some(Self {
            number: if number == "1" { PartyNumber::One } else { PartyNumber::Two },
            slots: slots.parse().ok()?,
            seed: seed.parse().ok()?,
            tick: Duration::from_millis(tick.parse().ok()?),
            export: modes.into_iter().find(|mode| mode.to_string() == *export)?,
            store: store.into(),
        })
    }

    pub(crate) fn setup(&self) -> Setup {
        Setup { members: self.slots, tick: self.tick, seed: self.seed, export: self.export, ..Setup::default() }
    }

    /// The party with what its store held.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start(&self, stored: Vec<StoredRecord>, seed: &Seed, now: Now) -> io::Result<Party> {
        let setup = self.setup();
        let config = PartyConfig {
            number: self.number,
            exchange: EXCHANGE.to_owned(),
            operators: operator_keys(self.seed).map(|key| key.verifying_key()),
            keys: Vec::new(),
            tick: self.tick,
            stale: Duration::from_secs(3600),
            rank_wait: Duration::from_secs(1),
            rank_allowance: None,
            match_wait: Duration::from_secs(10),
            export: self.export,
            order: 1,
            max_blob: MAX_BLOB_DEFAULT,
            max_prefix_limit: 1_000_000,
            max_waiting: MAX_WAITING,
            budget: Budget::default(),
            epoch: Duration::ZERO,
            speaks: Speaks::default(),
        };
        Party::new(config, seed, &directory_of(&setup).encode(), stored, now).map_err(io::Error::other)
    }
}

/// Runs a party until standard input ends. `tables` are those of its store.
///
/// # Errors
/// If the party does not start, or the store or a pipe fails.
pub fn run(arguments: &PartyArguments, tables: &[&'static str]) -> io::Result<()> {
    let store = FileStore::open(&arguments.store).map_err(io::Error::other)?;
    let mut stored = Vec::new();
    for table in tables {
        let records = store.load(table).map_err(io::Error::other)?.into_iter();
        stored.extend(records.map(|(key, value)| StoredRecord { table: (*table).to_owned(), key, value }));
    }
    let mut party = arguments.start(stored, &fresh(), now())?;
    let (sender, records) = mpsc::channel();
    let input = sender.clone();
    std::thread::spawn(move || {
        let mut pipe = BufReader::with_capacity(WRITTEN, io::stdin());
        while let Ok(record) = pipe::read(&mut pipe) {
            let ends = record.say == Say::End;
            if input.send(record).is_err() || ends {
                return;
            }
        }
    });
    let mut out = BufWriter::with_capacity(WRITTEN, io::stdout().lock());
    pipe::write(&mut out, Say::Ready, party.status().objects as u64, &[])?;
    loop {
        drain(&mut party, &store, &sender, &mut out)?;
        let due = party.deadline();
        let left = due.map_or(PAUSE, |at| at.since(now().instant));
        let record = match records.try_recv() {
            Ok(record) => Some(record),
            Err(_) => {
                out.flush()?;
                match records.recv_timeout(left) {
                    Ok(record) => Some(record),
                    Err(RecvTimeoutError::Timeout) => None,
                    Err(RecvTimeoutError::Disconnected) => return Ok(()),
                }
            }
        };
        if let Some(record) = record
            && !take(&mut party, record, &mut out)?
        {
            return Ok(());
        }
        if due.is_some_and(|at| at <= now().instant) {
            party.reseed(&fresh());
            party.handle_timeout(now());
        }
    }
}

/// Gives the party what a record says. `false` at the end.
fn take(party: &mut Party, record: Record, out: &mut impl Write) -> io::Result<bool> {
    let Record { say, number, octets } = record;
    let exporter = |octets: &[u8]| octets.last_chunk::<32>().map_or(Seed::new([0; 32]), |octets| Seed::new(*octets));
    let input = match say {
        Say::MemberUp => {
            let slot = u32::from_be_bytes(*octets.first_chunk().ok_or_else(|| io::Error::other("no slot"))?);
            PartyInput::LinkUp { link: number, peer: PeerId::Member(slot), exporter: exporter(&octets) }
        }
        Say::PeerUp => PartyInput::LinkUp { link: number, peer: PeerId::Party, exporter: exporter(&octets) },
        Say::Down => PartyInput::LinkDown { link: number },
        Say::Frame => PartyInput::Frame { link: number, bytes: octets },
        Say::Persisted => PartyInput::Persisted(number),
        Say::Ask => {
            let counters = party.counters();
            let (delivered, lanes) = (counters.delivered, counters.lanes);
            let answer = Answer {
                is_at_rest: party.is_at_rest(),
                is_stocked: party.is_stocked(),
                objects: counters.objects,
                delivered,
                lanes,
            };
            pipe::write(out, Say::Answer, number, &answer.encode())?;
            return Ok(true);
        }
        Say::End => return Ok(false),
        _ => return Err(io::Error::other("a record that a party sends")),
    };
    party.reseed(&fresh());
    party.handle(input, now());
    Ok(true)
}

fn drain(party: &mut Party, store: &FileStore, sender: &Sender<Record>, out: &mut impl Write) -> io::Result<()> {
    while let Some(output) = party.poll() {
        match output {
            PartyOutput::Send { link, frame } => pipe::write(out, Say::Frame, link, &frame)?,
            PartyOutput::Close { link, reason } => pipe::write(out, Say::Closed, link, reason.as_bytes())?,
            PartyOutput::Persist { id, changes } => {
                let change = |change: wayleave_route_server::party::Change| store::Change {
                    table: change.table,
                    key: change.key,
                    value: change.value,
                };
                let (sender, changes) = (sender.clone(), changes.into_iter().map(change).collect());
                let durable = move || drop(sender.send(Record { say: Say::Persisted, number: id, octets: Vec::new() }));
                store.submit(changes, Box::new(durable)).map_err(io::Error::other)?;
            }
            // At once: this thread is the party's processor, and all its time counts.
            PartyOutput::Setup(job) => {
                let done = job.run();
                party.reseed(&fresh());
                party.handle(PartyInput::SetupDone(done), now());
            }
            PartyOutput::Members(_) => {}
            PartyOutput::Event(event) => pipe::write(out, Say::Event, 0, format!("{event:?}").as_bytes())?,
        }
    }
    Ok(())
}
