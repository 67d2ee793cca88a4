//! The records of a realm's operator: who was admitted by which token, and who was removed. A file to which whole batches are
//! appended, shared by the process that answers joins and by commands.
//!
//! Each batch has its length and a digest behind it. What a crash left of the last one is cut off: nobody was told of it. One that is too long is
//! several, all but the last of which say that another belongs to them.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use wayleave_control::store::{MAX_RECORD, Record};
use wayleave_crypto::hash::hash;

use super::private::sync_folder;
use crate::failure::{Failure, Outcome};

/// At the beginning of the file.
pub const HEADER: &[u8] = b"wayleave-realm-records-v1\n";
/// Octets of a digest.
const DIGEST: usize = 32;
/// Octets of a batch, at most.
const MAX_BATCH: usize = 4 << 20;
/// In the place of a record's length, at the end of a batch that the next one belongs to.
const GOES_ON: [u8; 4] = u32::MAX.to_be_bytes();

/// The file, and how much of it was read.
#[derive(Debug)]
pub struct Ledger {
    path: PathBuf,
    file: File,
    offset: u64,
    /// Other processes wait until this one is done.
    is_held: bool,
}

impl Ledger {
    /// Makes a new file. Refuses to overwrite.
    pub fn create(path: &Path) -> Outcome {
        let system = |error| Failure::system(path.display(), &error);
        let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let mut file = made.map_err(system)?;
        file.write_all(HEADER).and_then(|()| file.sync_all()).map_err(system)?;
        sync_folder(path)
    }

    /// Opens the file; nothing was read yet.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let opened = OpenOptions::new().read(true).write(true).open(path);
        let mut file = opened.map_err(|error| {
            let failure = Failure::system(path.display(), &error);
            match error.kind() {
                ErrorKind::NotFound => failure.help(
                    "these are the realm's records of used tokens and removed nodes: restore them from a backup; without them a \
                     used token would work again and a removed node could return. `wayleave realm init` begins a new realm",
                ),
                _ => failure,
            }
        })?;
        let mut header = [0; HEADER.len()];
        if file.read_exact(&mut header).is_err() || header != HEADER {
            return Err(Failure::new(format!("{} has no records of a realm", path.display()))
                .help("restore the file from a backup"));
        }
        Ok(Self { path: path.to_owned(), file, offset: HEADER.len() as u64, is_held: false })
    }

    /// The records that were appended since this was last called.
    pub fn read_new(&mut self) -> Result<Vec<Record>, Failure> {
        let length = self.file.metadata().map_err(|error| self.system(&error))?.len();
        if length <= self.offset {
            return Ok(Vec::new());
        }
        let lock = self.lock()?;
        let records = self.read_on();
        drop(lock);
        records
    }

    /// Appends a batch, and makes it durable; returns what others appended in between.
    pub fn append(&mut self, records: &[Record]) -> Result<Vec<Record>, Failure> {
        let lock = self.lock()?;
        let unread = self.read_on()?;
        let mut batch = Vec::new();
        let mut body = Vec::new();
        for record in records {
            let octets = record.encode();
            if body.len() + octets.len() + 2 * GOES_ON.len() > MAX_BATCH {
                body.extend_from_slice(&GOES_ON);
                put(&mut batch, &std::mem::take(&mut body));
            }
            body.extend_from_slice(&(octets.len() as u32).to_be_bytes());
            body.extend_from_slice(&octets);
        }
        put(&mut batch, &body);
        let at = self.offset;
        let mut write = || -> std::io::Result<()> {
            self.file.seek(SeekFrom::Start(at))?;
            self.file.write_all(&batch)?;
            self.file.sync_data()
        };
        if let Err(error) = write() {
            // Also what was written in full and could not be made durable is cut off: its records were refused, and would count later.
            let _ = self.file.set_len(at);
            return Err(self.system(&error));
        }
        self.offset = at + batch.len() as u64;
        drop(lock);
        Ok(unread)
    }

    /// Lets no other process append until [`Ledger::release`], so that what an order rests on is what it changes. Returns what others appended
    /// before.
    pub fn hold(&mut self) -> Result<Vec<Record>, Failure> {
        let Lock(held) = &mut self.lock()?;
        *held = None;
        self.is_held = true;
        self.read_on()
    }

    /// Others go on.
    pub fn release(&mut self) {
        self.is_held = false;
        let _ = flock(&self.file, FlockOperation::Unlock);
    }

    fn system(&self, error: &std::io::Error) -> Failure {
        Failure::system(self.path.display(), error)
    }

    /// Keeps other processes from writing until it is dropped.
    fn lock(&self) -> Result<Lock, Failure> {
        if self.is_held {
            return Ok(Lock(None));
        }
        let file = self.file.try_clone().map_err(|error| self.system(&error))?;
        flock(&file, FlockOperation::LockExclusive).map_err(|error| self.system(&error.into()))?;
        Ok(Lock(Some(file)))
    }

    /// Reads whole batches from the offset on, with the lock held; cuts off what is left of a batch that a crash interrupted.
    fn read_on(&mut self) -> Result<Vec<Record>, Failure> {
        let read = |ledger: &mut Self| -> std::io::Result<Vec<u8>> {
            ledger.file.seek(SeekFrom::Start(ledger.offset))?;
            let mut octets = Vec::new();
            ledger.file.read_to_end(&mut octets)?;
            Ok(octets)
        };
        let octets = read(self).map_err(|error| self.system(&error))?;
        let mut rest = &octets[..];
        // Behind the offset there may be whole batches to which another belongs: they count with that one alone.
        let (mut records, mut waiting, mut passed) = (Vec::new(), Vec::new(), 0);
        while !rest.is_empty() || passed > 0 {
            let Some((batch, behind)) = split_batch(rest) else {
                if is_interrupted(rest) {
                    self.file.set_len(self.offset).map_err(|error| self.system(&error))?;
                    break;
                }
                return Err(self.damaged(passed));
            };
            let (decoded, goes_on) = decode(batch).ok_or_else(|| self.damaged(passed))?;
            waiting.extend(decoded);
            passed += (rest.len() - behind.len()) as u64;
            rest = behind;
            if !goes_on {
                records.append(&mut waiting);
                self.offset += std::mem::take(&mut passed);
            }
        }
        Ok(records)
    }

    fn damaged(&self, passed: u64) -> Failure {
        Failure::new(format!("{} is damaged at octet {}", self.path.display(), self.offset + passed))
            .help("restore the file from a backup: used tokens and removed nodes are recorded in it")
    }
}

/// An exclusive lock of the file; nothing where it is held anyway.
struct Lock(Option<File>);

impl Drop for Lock {
    fn drop(&mut self) {
        if let Some(file) = &self.0 {
            let _ = flock(file, FlockOperation::Unlock);
        }
    }
}

fn digest(body: &[u8]) -> [u8; DIGEST] {
    hash("wayleave/realm/records/v1", &[body])
}

/// Appends a batch with its length and digest.
fn put(out: &mut Vec<u8>, body: &[u8]) {
    out.extend_from_slice(&(body.len() as u32).to_be_bytes());
    out.extend_from_slice(body);
    out.extend_from_slice(&digest(body));
}

fn split_batch(octets: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = octets.split_first_chunk::<4>()?;
    let length = u32::from_be_bytes(*length) as usize;
    if length > MAX_BATCH || rest.len() < length + DIGEST {
        return None;
    }
    let (body, rest) = rest.split_at(length);
    let (found, rest) = rest.split_at(DIGEST);
    (found == digest(body)).then_some((body, rest))
}

/// Whether these octets can be what a crash left of one last batch: nothing whole is behind them.
fn is_interrupted(octets: &[u8]) -> bool {
    // A file system may have made the file longer before it wrote the octets: then the last ones are zero.
    if octets.iter().all(|octet| *octet == 0) {
        return true;
    }
    let Some((length, rest)) = octets.split_first_chunk::<4>() else { return true };
    let whole = u32::from_be_bytes(*length) as usize + DIGEST;
    whole <= MAX_BATCH + DIGEST && (rest.len() < whole || rest.len() == whole && rest.ends_with(&[0; DIGEST]))
}

/// A batch's records, and whether the next batch belongs to it.
fn decode(mut body: &[u8]) -> Option<(Vec<Record>, bool)> {
    let mut records = Vec::new();
    while !body.is_empty() {
        if body == GOES_ON {
            return Some((records, true));
        }
        let (length, rest) = body.split_first_chunk::<4>()?;
        let length = u32::from_be_bytes(*length) as usize;
        if length > MAX_RECORD + 64 || rest.len() < length {
            return None;
        }
        let (octets, rest) = rest.split_at(length);
        records.push(Record::decode(octets).ok()?);
        body = rest;
    }
    Some((records, false))
}

#[cfg(test)]
mod tests {
    //! ICC, join, by process: records cut by a crash or damaged: the cut batch is gone, a changed octet is reported.

    use std::fs;

    use super::*;

    fn used(octet: u8) -> Record {
        Record::Used { key: [octet; 32], by: None }
    }

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("wayleave-ledger-{name}-{}", std::process::id()));
        let _ = fs::remove_file(&path);
        path
    }

    #[test]
    fn what_one_process_appends_another_reads_and_nothing_twice() {
        let path = scratch("two");
        Ledger::create(&path).expect("made");
        let (mut one, mut two) = (Ledger::open(&path).expect("opened"), Ledger::open(&path).expect("opened"));
        assert_eq!(one.append(&[used(1), used(2)]).expect("written"), []);
        assert_eq!(two.append(&[used(3)]).expect("written"), [used(1), used(2)]);
        assert_eq!(one.read_new().expect("read"), [used(3)]);
        assert_eq!(one.read_new().expect("read"), []);
        assert_eq!(Ledger::open(&path).expect("opened").read_new().expect("read"), [used(1), used(2), used(3)]);
        assert!(Ledger::create(&path).is_err(), "never overwritten");
        fs::remove_file(&path).expect("removed");
    }

    #[test]
    fn an_order_that_holds_the_file_sees_what_others_appended_and_they_wait_for_it() {
        let path = scratch("held");
        Ledger::create(&path).expect("made");
        let (mut one, mut two) = (Ledger::open(&path).expect("opened"), Ledger::open(&path).expect("opened"));
        two.append(&[used(1)]).expect("written");
        assert_eq!(one.hold().expect("held"), [used(1)]);
        let waiting = std::thread::spawn(move || two.append(&[used(3)]).expect("written"));
        assert_eq!(one.append(&[used(2)]).expect("written"), []);
        one.release();
        assert_eq!(waiting.join().expect("ended"), [used(2)], "it came after");
        fs::remove_file(&path).expect("removed");
    }

    #[test]
    fn what_is_too_long_for_one_batch_is_read_whole_or_not_at_all() {
        let path = scratch("long");
        Ledger::create(&path).expect("made");
        let mut ledger = Ledger::open(&path).expect("opened");
        ledger.append(&[used(1)]).expect("written");
        let before = fs::metadata(&path).expect("there").len();
        let many = vec![used(2); MAX_BATCH / 30];
        ledger.append(&many).expect("written");
        let whole = fs::read(&path).expect("read");
        assert!(whole.len() > MAX_BATCH + 200);
        assert_eq!(ledger.append(&[used(3)]).expect("written"), []);
        let all = [&[used(1)][..], &many, &[used(3)]].concat();
        assert!(Ledger::open(&path).expect("opened").read_new().expect("read") == all);
        // Whole batches to which another belongs are nothing without it.
        let first =
            before as usize + 4 + u32::from_be_bytes(*whole[before as usize..].first_chunk().expect("long")) as usize;
        for length in [first, first + DIGEST, first + DIGEST + 1, whole.len() - 1] {
            fs::write(&path, &whole[..length]).expect("written");
            assert_eq!(Ledger::open(&path).expect("opened").read_new().expect("read"), [used(1)], "{length}");
            assert_eq!(fs::metadata(&path).expect("there").len(), before, "it is cut off");
        }
        fs::remove_file(&path).expect("removed");
    }

    #[test]
    fn a_batch_that_a_crash_cut_off_is_gone_and_a_changed_octet_is_reported() {
        let path = scratch("cut");
        Ledger::create(&path).expect("made");
        let mut ledger = Ledger::open(&path).expect("opened");
        ledger.append(&[used(1)]).expect("written");
        let whole = fs::read(&path).expect("read");
        ledger.append(&[used(2)]).expect("written");
        let longer = fs::read(&path).expect("read");
        for length in whole.len()..longer.len() {
            fs::write(&path, &longer[..length]).expect("written");
            let mut again = Ledger::open(&path).expect("opened");
            assert_eq!(again.read_new().expect("read"), [used(1)], "{length}");
            again.append(&[used(9)]).expect("written");
            assert_eq!(Ledger::open(&path).expect("opened").read_new().expect("read"), [used(1), used(9)]);
        }
        // In a batch before the last, and in the last one.
        for at in [HEADER.len() + 10, whole.len() + 10] {
            let mut damaged = longer.clone();
            damaged[at] ^= 1;
            fs::write(&path, &damaged).expect("written");
            let failure = Ledger::open(&path).expect("opened").read_new().expect_err("damaged");
            assert!(failure.to_string().contains("damaged"), "{failure}");
            assert_eq!(fs::read(&path).expect("read"), damaged, "nothing is cut off");
        }
        fs::remove_file(&path).expect("removed");
    }
}
