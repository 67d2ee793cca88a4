//! Reads the records for somebody else, a replica, while others append to them and compact them.
//!
//! A file that was replaced is read to its end before the one that replaced it, which begins with a snapshot of what is in both: so
//! whoever follows gets every change, however often the records are compacted meanwhile.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use wayleave_control::capability::Change;
use wayleave_crypto::signed::Signed;

use super::records::{Base, LENGTH, Layout, is_in_place};
use crate::failure::Failure;

/// Files that were replaced and not read to their end, at most: each takes a descriptor, and its room on the disk. Whoever is so far
/// behind that there are more begins with the snapshot of the last one.
const REPLACED: usize = 16;
/// Octets that are read at once.
const BLOCK: u64 = 4 << 20;

/// What there is for a replica.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    Nothing,
    Changes(Vec<Vec<u8>>),
    /// The changes that it wants are no longer there one by one.
    Compacted,
}

/// What a replica may be sent at once.
#[derive(Clone, Copy, Debug)]
pub struct Portion {
    pub changes: usize,
    /// About.
    pub octets: usize,
    /// No change after this one: it is not durable yet, and who has it would have more than its writer after a crash.
    pub up_to: u64,
}

/// The records of a path, also those that were replaced.
#[derive(Debug)]
pub struct ChangesReader {
    path: PathBuf,
    /// The one that is read.
    first: Records,
    /// Those that replaced it, the last of which is in place.
    later: VecDeque<Records>,
}

/// A file.
#[derive(Debug)]
struct Records {
    file: File,
    offset: u64,
    base: Option<Base>,
}

impl Records {
    fn open(path: &Path) -> Result<Self, Failure> {
        let file = File::open(path).map_err(|error| Failure::system(path.display(), &error))?;
        let Layout { base, changes_at } = Layout::read(&file, path)?;
        Ok(Self { file, offset: changes_at, base })
    }

    /// The next changes after the number `after`, or none; and whether the file has no others.
    fn next(&mut self, after: u64, portion: Portion) -> io::Result<(Vec<Vec<u8>>, bool)> {
        let (mut changes, mut length) = (Vec::new(), 0);
        loop {
            let mut block = Vec::new();
            self.file.seek(SeekFrom::Start(self.offset))?;
            (&self.file).take(BLOCK).read_to_end(&mut block)?;
            let mut rest = &block[..];
            while changes.len() < portion.changes && length < portion.octets {
                let Some((own, behind)) = rest.split_first_chunk::<LENGTH>() else { break };
                let own = usize::from(u16::from_be_bytes(*own));
                let Some((change, behind)) = behind.split_at_checked(own) else { break };
                // What is being written, or was interrupted, is read once it is whole.
                let Ok(read) = Signed::<Change>::decode(change) else { break };
                if read.object().number > portion.up_to {
                    return Ok((changes, false));
                }
                self.offset += (LENGTH + change.len()) as u64;
                if read.object().number > after {
                    length += change.len();
                    changes.push(change.to_vec());
                }
                rest = behind;
            }
            let is_end = (block.len() as u64) < BLOCK;
            // In a file that is damaged, nothing follows.
            if !changes.is_empty() || is_end || rest.len() == block.len() {
                return Ok((changes, is_end));
            }
        }
    }
}

impl ChangesReader {
    pub fn open(path: &Path) -> Result<Self, Failure> {
        Ok(Self { path: path.to_owned(), first: Records::open(path)?, later: VecDeque::new() })
    }

    /// Looks whether the file was replaced.
    pub fn follow(&mut self) -> Result<(), Failure> {
        let in_place = is_in_place(&self.newest().file, &self.path);
        if !in_place.map_err(|error| Failure::system(self.path.display(), &error))? {
            self.later.push_back(Records::open(&self.path)?);
            if self.later.len() > REPLACED {
                self.skip();
            }
        }
        Ok(())
    }

    fn newest(&self) -> &Records {
        self.later.back().unwrap_or(&self.first)
    }

    /// The snapshot that the file in place begins with.
    pub fn base(&self) -> Option<&Base> {
        self.newest().base.as_ref()
    }

    /// Leaves out all files but the one in place: its snapshot has what is in them.
    pub fn skip(&mut self) {
        if let Some(last) = self.later.pop_back() {
            self.first = last;
            self.later.clear();
        }
    }

    /// The next changes after the number `after`, whole.
    pub fn next(&mut self, after: u64, portion: Portion) -> io::Result<Next> {
        loop {
            if self.first.base.as_ref().is_some_and(|base| base.number() > after) {
                return Ok(Next::Compacted);
            }
            let (changes, is_end) = self.first.next(after, portion)?;
            if !changes.is_empty() {
                return Ok(Next::Changes(changes));
            }
            if !is_end {
                return Ok(Next::Nothing);
            }
            // Nothing is appended to a file that was replaced.
            match self.later.pop_front() {
                Some(next) => self.first = next,
                None => return Ok(Next::Nothing),
            }
        }
    }
}
