//! A router's tally: what it counted since its store last committed, in a file beside the store that is never forced to the disk.
//!
//! The store commits a few times a second, which a kill of the process would take; the file is in the memory of the system when a
//! write returns, which a kill does not take. A loss of power may take it, or leave any part of it: then the store alone counts.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tracing::{info, warn};
use wayleave_core::UnixTime;
use wayleave_dataplane::tally::{Tally, TallyStart};

/// Octets of a tally that are read.
const MAX_OCTETS: u64 = 1 << 30;
/// Octets beyond those that it began with and as many again: it is begun anew, without what was counted again since.
const SLACK: u64 = 8 << 20;

/// An account's total, as the store has it: key, packets, octets.
pub type Entry<'a> = (&'a [u8], u128, u128);

/// The file.
pub struct TallyFile {
    path: PathBuf,
    start: TallyStart,
    /// `None` before it is begun, and after it could not be written.
    file: Option<File>,
    /// The file in place is of this run, or was before it could not be written.
    was_begun: bool,
    /// Octets of the file, and when it was begun.
    length: u64,
    begun_length: u64,
    has_entries: bool,
    /// That it cannot be written was said.
    is_failing: bool,
}

impl TallyFile {
    /// The tally beside a state file. `run` is random; nothing is written before [`Self::begin`].
    pub fn beside(state: &Path, run: [u8; 16]) -> Self {
        let start = TallyStart { run, batch: 0 };
        let path = with_suffix(state, ".tally");
        Self {
            path,
            start,
            file: None,
            was_begun: false,
            length: 0,
            begun_length: 0,
            has_entries: false,
            is_failing: false,
        }
    }

    /// What a process before this one left. `stored` is what its store says: the process's number, and the number of its last batch.
    /// A file that does not go on from that state counts for nothing, since totals of other accounts would be missing. `taken` is the
    /// process whose tally that state has in it already: nothing is missing if its file is still there.
    pub fn left(&self, stored: Option<TallyStart>, taken: Option<[u8; 16]>) -> Option<Tally> {
        let mut octets = Vec::new();
        let read = File::open(&self.path).and_then(|file| file.take(MAX_OCTETS).read_to_end(&mut octets));
        let path = self.path.display();
        if let Err(error) = read {
            if error.kind() != io::ErrorKind::NotFound {
                warn!(%path, %error, "the tally cannot be read: what was counted since the last commit is missing");
            }
            return None;
        }
        let tally = match Tally::read(&octets) {
            Ok(tally) => tally,
            Err(fault) => {
                warn!(%path, %fault, "the tally is not taken over: what was counted since the last commit is missing");
                return None;
            }
        };
        let goes_on = stored.is_some_and(|stored| stored.run == tally.start.run && stored.batch >= tally.start.batch);
        if !goes_on {
            if !tally.entries.is_empty() && taken != Some(tally.start.run) {
                warn!(%path, "the tally is not taken over: it belongs to another state file, or to another copy of this one");
            }
            return None;
        }
        if let Some(fault) = tally.rest {
            warn!(%path, %fault, "a part of the tally is not taken over: what was counted last may be missing");
        }
        Some(tally)
    }

    /// The process's number.
    pub fn run(&self) -> [u8; 16] {
        self.start.run
    }

    /// The batch of the store from which it goes on; `None` if it is not begun.
    pub fn batch(&self) -> Option<u64> {
        self.file.is_some().then_some(self.start.batch)
    }

    /// Whether totals that the store has had since may be in the file, which is this run's and is not written any more. One that this run
    /// never began has nothing of it, and goes on from no batch of it.
    pub fn may_be_stale(&self) -> bool {
        self.was_begun && self.file.is_none()
    }

    /// Whether totals are in it, as far as this process knows.
    pub fn has_entries(&self) -> bool {
        self.has_entries
    }

    /// Whether it could not be written: it is to be begun anew, now and then.
    pub fn is_failing(&self) -> bool {
        self.is_failing
    }

    /// Whether much of it is there in a later version too.
    pub fn is_long(&self) -> bool {
        self.length > 2 * self.begun_length + SLACK
    }

    /// Puts a new file into place that goes on from `batch`, which is durable. It has all that was counted after it, until `counted`.
    pub fn begin<'a>(&mut self, batch: u64, counted: UnixTime, entries: impl Iterator<Item = Entry<'a>>) {
        self.start.batch = batch;
        let mut octets = self.start.header();
        let frames = self.start.frames(octets.len() as u64, counted.0, entries);
        self.has_entries = !frames.is_empty();
        octets.extend(frames);
        match self.put(&octets) {
            Ok(file) => {
                (self.length, self.begun_length) = (octets.len() as u64, octets.len() as u64);
                (self.file, self.was_begun) = (Some(file), true);
                if std::mem::take(&mut self.is_failing) {
                    info!(path = %self.path.display(), "the tally can be written again");
                }
            }
            Err(error) => self.fail(&error),
        }
    }

    /// Under another name first: whoever is killed meanwhile leaves the old one.
    fn put(&self, octets: &[u8]) -> io::Result<File> {
        let fresh = with_suffix(&self.path, ".new");
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
        // One that was left there may have another mode.
        file.set_permissions(Permissions::from_mode(0o600))?;
        file.write_all(octets)?;
        fs::rename(&fresh, &self.path)?;
        Ok(file)
    }

    /// Appends totals that were counted until `counted`.
    pub fn append<'a>(&mut self, counted: UnixTime, entries: impl Iterator<Item = Entry<'a>>) {
        let Some(file) = &mut self.file else { return };
        let octets = self.start.frames(self.length, counted.0, entries);
        if octets.is_empty() {
            return;
        }
        match file.write_all(&octets) {
            Ok(()) => {
                self.length += octets.len() as u64;
                self.has_entries = true;
            }
            // What is in front of a part of a frame counts.
            Err(error) => self.fail(&error),
        }
    }

    fn fail(&mut self, error: &io::Error) {
        self.file = None;
        if !std::mem::replace(&mut self.is_failing, true) {
            warn!(
                path = %self.path.display(), %error,
                "the tally cannot be written: a kill of this process would lose what was counted since the state file's last commit; \
                 check the disk"
            );
        }
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

#[cfg(test)]
mod tests {
    //! PLA, tally: a later version, an empty, foreign or unreadable file, a full disk: never fatal; it counts for
    //! nothing beside another store, or an older copy.

    use super::*;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("wayleave-tally-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&folder);
            fs::create_dir_all(&folder).expect("a folder");
            Self(folder)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    const RUN: [u8; 16] = [1; 16];
    const NOW: UnixTime = UnixTime(5);

    fn packets(tally: Option<Tally>) -> Option<Vec<u128>> {
        Some(tally?.entries.into_iter().map(|entry| entry.packets).collect())
    }

    #[test]
    fn a_tally_is_taken_over_by_whoever_has_the_state_that_it_goes_on_from() {
        let scratch = Scratch::new("states");
        let state = scratch.0.join("state.redb");
        let mut tally = TallyFile::beside(&state, RUN);
        let at = |run, batch| Some(TallyStart { run, batch });
        assert_eq!(tally.left(at(RUN, 5), None), None, "there is none");
        assert_eq!((tally.batch(), tally.has_entries()), (None, false));
        tally.append(NOW, [(&b"a"[..], 9, 9)].into_iter());
        assert!(!scratch.0.join("state.redb.tally").exists(), "it is not begun");
        tally.begin(5, NOW, [(&b"a"[..], 1, 10)].into_iter());
        assert_eq!(fs::metadata(&tally.path).expect("there").permissions().mode() & 0o777, 0o600);
        tally.append(NOW, [(&b"b"[..], 2, 20), (&b"a"[..], 3, 30)].into_iter());
        tally.append(NOW, std::iter::empty());
        let next = TallyFile::beside(&state, [2; 16]);
        for (stored, expected) in [
            (at(RUN, 5), Some(vec![1, 2, 3])),
            (at(RUN, 6), Some(vec![1, 2, 3])),
            (at(RUN, 4), None),
            (at([3; 16], 5), None),
            (None, None),
        ] {
            assert_eq!(packets(next.left(stored, None)), expected, "{stored:?}");
        }
        assert_eq!((tally.batch(), tally.has_entries()), (Some(5), true));
        tally.begin(6, NOW, std::iter::empty());
        assert_eq!(packets(next.left(at(RUN, 6), None)), Some(Vec::new()));
        assert!(!tally.has_entries());
        let names: Vec<_> = fs::read_dir(&scratch.0).expect("there").collect();
        assert_eq!(names.len(), 1, "{names:?}");
    }

    #[test]
    fn what_cannot_be_read_or_written_ends_nothing_and_is_tried_again() {
        let scratch = Scratch::new("faults");
        let state = scratch.0.join("state.redb");
        let mut tally = TallyFile::beside(&state, RUN);
        let stored = Some(TallyStart { run: RUN, batch: 1 });
        for bad in [&b""[..], b"WLTALLY\x02 of a later version", b"something else", &[0; 4_096]] {
            fs::write(&tally.path, bad).expect("written");
            assert_eq!(tally.left(stored, None), None);
        }
        fs::remove_file(&tally.path).expect("there");
        fs::create_dir(&tally.path).expect("made");
        assert_eq!(tally.left(stored, None), None);
        tally.begin(1, NOW, std::iter::empty());
        assert_eq!((tally.batch(), tally.may_be_stale()), (None, false), "it was never begun");
        tally.append(NOW, [(&b"a"[..], 1, 10)].into_iter());
        fs::remove_dir(&tally.path).expect("empty");
        tally.begin(1, NOW, [(&b"a"[..], 1, 10)].into_iter());
        assert_eq!((tally.batch(), packets(tally.left(stored, None))), (Some(1), Some(vec![1])));
        // A device without space.
        tally.file = Some(OpenOptions::new().write(true).open("/dev/full").expect("Linux has it"));
        tally.append(NOW, [(&b"a"[..], 2, 20)].into_iter());
        assert_eq!((tally.batch(), packets(tally.left(stored, None))), (None, Some(vec![1])), "what was there counts");
        assert!(tally.may_be_stale());
        tally.begin(1, NOW, [(&b"a"[..], 3, 30)].into_iter());
        assert_eq!((tally.may_be_stale(), packets(tally.left(stored, None))), (false, Some(vec![3])));
    }
}
