//! The record of how the last runs of a role ended, and of the peer whose input each took last.
//!
//! A peer whose input ends the process would end it again as soon as it connects. So a role that starts for the third time within
//! a minute, after runs that did not end in order, says whose input it took last, and refuses that peer for a minute: the
//! others are served meanwhile.
//!
//! The record is one small file beside the state. It is written when input comes from another peer than before, not for each
//! input, and without a sync: it need survive the process, not the machine. Only peers that have proved who they are (or hold a
//! TCP connection from their configured address) are noted: who sends datagrams under another's address could have that one refused.
//! Nobody is refused for one run alone, but where its input was being handled when the process panicked: what is killed from outside,
//! or by want of memory, says little of whose input was last.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tracing::warn;

use crate::clock::unix_now;

/// Starts within [`WITHIN`] after which a peer is refused, for as long.
const STARTS: usize = 3;
const WITHIN: u64 = 60;
/// Runs in the file, and peers that are refused at one time.
const RUNS: usize = STARTS;
const REFUSED: usize = 4;
/// Octets of one entry: second 64 bits, kind 8, length of the name 8, name.
const ENTRY: usize = 256;
const KIND_AT: usize = 8;
const NAME_AT: usize = 10;
const LONGEST_NAME: usize = ENTRY - NAME_AT;
/// What the file begins with; the number is its version.
const MAGIC: [u8; 8] = *b"WLRUNS\0\x01";
const HEADER: usize = 16;

/// How a run ended, or that it goes on.
const RUNNING: u8 = 1;
const IN_ORDER: u8 = 2;
/// It panicked while it handled the input of the peer that the entry names.
const PANICKED: u8 = 3;
/// An entry of a peer that is refused, up to its second.
const IS_REFUSED: u8 = 4;

/// Whether a file begins as such a record.
#[must_use]
pub fn is_record(octets: &[u8]) -> bool {
    octets.starts_with(&MAGIC)
}

/// Whose input it is, as the log names it.
pub type PeerName = Arc<str>;

thread_local! {
    /// Whose input this thread handles.
    static HANDLED: RefCell<Option<PeerName>> = const { RefCell::new(None) };
}

static RECORD: OnceLock<Record> = OnceLock::new();

/// The record of this process.
struct Record {
    file: File,
    /// The peer that the file has as the last one.
    last: Mutex<Option<PeerName>>,
    /// Who is refused, and until when.
    refused: Vec<(String, Instant)>,
}

/// One entry of the file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Entry {
    kind: u8,
    second: u64,
    peer: String,
}

impl Entry {
    fn encode(&self) -> [u8; ENTRY] {
        let mut octets = [0; ENTRY];
        let name = named(&self.peer).as_bytes();
        octets[..8].copy_from_slice(&self.second.to_be_bytes());
        octets[KIND_AT] = self.kind;
        octets[9] = u8::try_from(name.len()).unwrap_or(u8::MAX);
        octets[NAME_AT..NAME_AT + name.len()].copy_from_slice(name);
        octets
    }

    fn decode(octets: &[u8]) -> Option<Self> {
        let second = u64::from_be_bytes(octets.get(..8)?.try_into().ok()?);
        let name = octets.get(NAME_AT..NAME_AT + usize::from(*octets.get(9)?))?;
        Some(Self { kind: *octets.get(KIND_AT)?, second, peer: String::from_utf8_lossy(name).into_owned() })
    }
}

/// As much of a name as an entry has room for.
fn named(name: &str) -> &str {
    &name[..name.floor_char_boundary(LONGEST_NAME)]
}

/// What follows from the runs before.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Verdict {
    /// The number of this start within a minute, if it follows runs that did not end in order.
    start: usize,
    /// Whose input the last run took last.
    last: Option<String>,
    /// Whether it is refused.
    is_refused: bool,
}

/// Judges the runs before, the latest first.
fn judge(runs: &[Entry], now: u64) -> Verdict {
    let is_recent = |run: &&Entry| run.second <= now && now - run.second < WITHIN;
    let failed: Vec<&Entry> =
        runs.iter().take_while(|run| matches!(run.kind, RUNNING | PANICKED)).take_while(is_recent).collect();
    let last = failed.first().filter(|run| !run.peer.is_empty()).map(|run| run.peer.clone());
    let was_handled = failed.first().is_some_and(|run| run.kind == PANICKED);
    let was_last_twice = failed.get(1).is_some_and(|run| Some(&run.peer) == last.as_ref());
    let is_refused = failed.len() + 1 >= STARTS && last.is_some() && (was_handled || was_last_twice);
    Verdict { start: failed.len() + 1, last, is_refused }
}

/// Begins a run: reads how those before ended, and says what follows. Without a file that can be written there is no record.
/// Unless it `refuses`, nobody is refused, and whoever was is not any more.
pub fn begin(path: &Path, refuses: bool) {
    match try_begin(path, refuses) {
        // Another process has it, and with it the role's state: this one ends soon.
        Ok(None) => {}
        Ok(Some(record)) => drop(RECORD.set(record)),
        Err(error) => warn!(
            path = %path.display(), %error,
            "cannot keep the record of starts: a peer whose input ends this role again and again would not be refused"
        ),
    }
}

fn try_begin(path: &Path, refuses: bool) -> io::Result<Option<Record>> {
    let file = File::options().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    // Locked before it is read, and for as long as the process runs: a run that goes on is no run that did not end in order.
    if file.try_lock().is_err() {
        return Ok(None);
    }
    let now = unix_now().secs();
    let (runs, mut refused) = read(&file)?;
    refused.retain(|entry| refuses && entry.second > now && entry.second - now <= WITHIN);
    let verdict = judge(&runs, now);
    if refuses && let (true, Some(peer)) = (verdict.is_refused, &verdict.last) {
        refused.retain(|entry| entry.peer != *peer);
        refused.insert(0, Entry { kind: IS_REFUSED, second: now + WITHIN, peer: peer.clone() });
        refused.truncate(REFUSED);
    }
    tell(&verdict, refuses);
    let this = Entry { kind: RUNNING, second: now, peer: String::new() };
    let entries = [this].into_iter().chain(runs).take(RUNS);
    let mut octets = vec![0; HEADER + (RUNS + REFUSED) * ENTRY];
    octets[..MAGIC.len()].copy_from_slice(&MAGIC);
    for (index, entry) in entries.enumerate() {
        octets[HEADER + index * ENTRY..][..ENTRY].copy_from_slice(&entry.encode());
    }
    for (index, entry) in refused.iter().enumerate() {
        octets[HEADER + (RUNS + index) * ENTRY..][..ENTRY].copy_from_slice(&entry.encode());
    }
    file.write_all_at(&octets, 0)?;
    let until = |second: u64| Instant::now() + Duration::from_secs(second - now);
    let refused = refused.into_iter().map(|entry| (entry.peer, until(entry.second))).collect();
    Ok(Some(Record { file, last: Mutex::default(), refused }))
}

/// The runs of a record and the peers that it refuses; none of a file that is new or of another version.
fn read(file: &File) -> io::Result<(Vec<Entry>, Vec<Entry>)> {
    let mut octets = vec![0; HEADER + (RUNS + REFUSED) * ENTRY];
    match file.read_exact_at(&mut octets, 0) {
        Ok(()) if octets.starts_with(&MAGIC) => {}
        Ok(()) => return Ok(Default::default()),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(Default::default()),
        Err(error) => return Err(error),
    }
    let entries: Vec<Entry> = octets[HEADER..].chunks(ENTRY).filter_map(Entry::decode).collect();
    let (runs, refused) = entries.split_at(RUNS);
    Ok((runs.to_vec(), refused.iter().filter(|entry| entry.kind == IS_REFUSED).cloned().collect()))
}

fn tell(verdict: &Verdict, refuses: bool) {
    let Verdict { start, last, is_refused } = verdict;
    if *start < STARTS {
        return;
    }
    let input = match last {
        Some(peer) => format!("the last input was that of {peer}"),
        None => "no peer's input had been taken".to_owned(),
    };
    let consequence = match (is_refused, refuses) {
        (true, true) => "this peer is refused for a minute",
        (true, false) => "it is not refused, since `--refuse-nobody` says so",
        (false, _) => "nobody is refused",
    };
    warn!(
        start,
        "started again within a minute, after runs that did not end in order: {input}; {consequence}; the log of the runs before \
         says how they ended, and a panic is a bug: please report it"
    );
}

/// The run ends in order: the next start does not count it.
pub fn end_in_order() {
    if let Some(record) = RECORD.get() {
        let _ = record.file.write_all_at(&[IN_ORDER], (HEADER + KIND_AT) as u64); // the next start then counts it
    }
}

/// The process panics: if this thread handles a peer's input, that is what did it. Waits for nothing.
pub(crate) fn panicking() {
    let Some(record) = RECORD.get() else { return };
    let peer = HANDLED.try_with(|handled| handled.try_borrow().ok().and_then(|peer| peer.clone()));
    if let Ok(Some(peer)) = peer {
        let _ = write_peer(&record.file, PANICKED, &peer);
    }
}

fn write_peer(file: &File, kind: u8, peer: &str) -> io::Result<()> {
    let name = named(peer).as_bytes();
    let length = u8::try_from(name.len()).unwrap_or(u8::MAX);
    file.write_all_at(&[&[kind, length], name].concat(), (HEADER + KIND_AT) as u64)
}

/// Why this peer is refused at present, if it is.
#[must_use]
pub fn refusal(peer: &str) -> Option<&'static str> {
    let record = RECORD.get()?;
    let is_refused = record.refused.iter().any(|(name, until)| *name == named(peer) && Instant::now() < *until);
    is_refused.then_some(
        "its input was the last before this role ended, again and again: it is refused for a minute after the last start",
    )
}

/// Input of a peer is handled by this thread while this lives.
#[derive(Debug)]
pub struct Handling(());

impl Handling {
    /// Notes whose input is handled from now on.
    #[must_use]
    pub fn begin(peer: &PeerName) -> Self {
        HANDLED.set(Some(Arc::clone(peer)));
        if let Some(record) = RECORD.get() {
            let mut last = record.last.lock().unwrap_or_else(PoisonError::into_inner);
            if last.as_ref() != Some(peer) {
                // A full disk does not fail it: the file has its length.
                let _ = write_peer(&record.file, RUNNING, peer);
                *last = Some(Arc::clone(peer));
            }
        }
        Self(())
    }
}

impl Drop for Handling {
    fn drop(&mut self) {
        // The hook of a panic has run by now.
        HANDLED.set(None);
    }
}

#[cfg(test)]
mod tests {
    //! OPS, starts: a peer is refused at the third start in a minute if it was the last twice or its input panicked.

    use super::*;

    fn run(kind: u8, second: u64, peer: &str) -> Entry {
        Entry { kind, second, peer: peer.to_owned() }
    }

    #[test]
    fn an_entry_is_read_as_it_was_written_and_a_long_name_is_cut() {
        let entry = run(PANICKED, 1_700_000_000, "alpha (sha256:aa)");
        assert_eq!(Entry::decode(&entry.encode()), Some(entry));
        let long = run(RUNNING, 1, &"ä".repeat(200));
        let read = Entry::decode(&long.encode()).expect("an entry");
        assert_eq!(read.peer, named(&long.peer));
    }

    #[test]
    fn a_peer_is_refused_at_the_third_start_in_a_minute_if_it_was_the_last_twice_or_its_input_panicked() {
        let judged = |runs: &[Entry]| {
            let Verdict { start, is_refused, .. } = judge(runs, 100);
            (start, is_refused)
        };
        assert_eq!(judged(&[run(RUNNING, 90, "a")]), (2, false));
        assert_eq!(judged(&[run(RUNNING, 90, "a"), run(RUNNING, 50, "a")]), (3, true));
        assert_eq!(judged(&[run(RUNNING, 90, "a"), run(RUNNING, 50, "b")]), (3, false));
        assert_eq!(judged(&[run(PANICKED, 90, "a"), run(RUNNING, 50, "b")]), (3, true));
        // No input, too long ago, a clock that went back, an orderly end between.
        assert_eq!(judged(&[run(RUNNING, 90, ""), run(RUNNING, 50, "")]), (3, false));
        assert_eq!(judged(&[run(RUNNING, 90, "a"), run(RUNNING, 40, "a")]), (2, false));
        assert_eq!(judged(&[run(RUNNING, 101, "a"), run(RUNNING, 50, "a")]), (1, false));
        assert_eq!(judged(&[run(IN_ORDER, 90, "a"), run(RUNNING, 50, "a"), run(RUNNING, 45, "a")]), (1, false));
    }
}
