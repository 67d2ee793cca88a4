//! The octets of a tally: totals of accounts that a router has counted, and that its store may not have yet.
//!
//! A tally is appended to far more often than a store commits, and never forced to the disk: it outlives a process that is killed,
//! and after a loss of power the store alone counts. So whatever is read may be cut, damaged, or of another time, and all of it up to
//! the first frame that is not whole is taken.
//!
//! | octets | header |
//! |---|---|
//! | 7 | `WLTALLY` |
//! | 1 | version: 1 |
//! | 16 | run: random, made by each process, and kept in its store |
//! | 8 | the number of a batch that the store has; the tally has everything that was counted after it |
//! | 8 | the first octets of SHA-256 of what is in front |
//!
//! | octets | frame |
//! |---|---|
//! | 4 | octets of its body |
//! | 8 | the first octets of SHA-256 of run, place of the frame in the file (8 octets) and body |
//! | 8 | body: microseconds of Unix time until when this was counted |
//! | | then entries: octets of the key (1), key, packets (16), octets (16) |
//!
//! Numbers are in network byte order. Of an account that is there more than once, the greatest total counts.

use wayleave_crypto::hash::sha256_of_parts;

const MAGIC: &[u8; 7] = b"WLTALLY";
const VERSION: u8 = 1;
const CHECK: usize = 8;
/// Octets of a header.
pub const HEADER: usize = 7 + 1 + 16 + 8 + CHECK;
/// Octets in front of a frame's body.
const FRONT: usize = 4 + CHECK;
/// Entries of a frame, at most.
pub const MAX_ENTRIES: usize = 4_096;
/// Octets of a frame's body, at most.
const MAX_BODY: usize = 8 + MAX_ENTRIES * (1 + 255 + 32);

/// Whether a file begins as a tally of any version.
#[must_use]
pub fn is_one(octets: &[u8]) -> bool {
    octets.starts_with(MAGIC)
}

/// Which state of a store a tally goes on from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TallyStart {
    /// Random, another one for each process.
    pub run: [u8; 16],
    /// The number of a batch that the store has.
    pub batch: u64,
}

/// What an account has sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Total {
    pub packets: u128,
    /// Octets of IP packets, headers included.
    pub octets: u128,
}

impl Total {
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self { packets: self.packets + other.packets, octets: self.octets + other.octets }
    }

    /// What lies above `other`; zero where nothing does.
    #[must_use]
    pub fn above(self, other: Self) -> Self {
        Self { packets: self.packets.saturating_sub(other.packets), octets: self.octets.saturating_sub(other.octets) }
    }

    #[must_use]
    pub fn greatest(self, other: Self) -> Self {
        Self { packets: self.packets.max(other.packets), octets: self.octets.max(other.octets) }
    }
}

/// The total of an account.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TallyEntry {
    /// At most 255 octets.
    pub key: Vec<u8>,
    pub packets: u128,
    pub octets: u128,
}

/// Why a file is no tally, or from where on it is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TallyFault {
    #[error("cut at octet {0}")]
    Cut(usize),
    #[error("no tally")]
    Foreign,
    #[error("of version {0}, which this program does not read")]
    Version(u8),
    #[error("damaged at octet {0}")]
    Damaged(usize),
}

/// What a tally says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tally {
    pub start: TallyStart,
    /// Until when it was counted, in microseconds of Unix time: the latest of all frames.
    pub counted: Option<u64>,
    /// In the order of the file.
    pub entries: Vec<TallyEntry>,
    /// Why no more of the file is read, if there is more.
    pub rest: Option<TallyFault>,
}

fn check(parts: &[&[u8]]) -> [u8; CHECK] {
    let hash = sha256_of_parts(parts);
    std::array::from_fn(|octet| hash[octet])
}

impl TallyStart {
    /// The header of a tally.
    #[must_use]
    pub fn header(&self) -> Vec<u8> {
        let mut octets = [&MAGIC[..], &[VERSION], &self.run, &self.batch.to_be_bytes()].concat();
        let check = check(&[&octets]);
        octets.extend(check);
        octets
    }

    /// Appends frames with these entries, the first of which is at octet `place` of the file. `counted` is until when they were
    /// counted, in microseconds of Unix time.
    pub fn frames<'a>(
        &self,
        place: u64,
        counted: u64,
        entries: impl IntoIterator<Item = (&'a [u8], u128, u128)>,
    ) -> Vec<u8> {
        let (mut out, mut entries) = (Vec::new(), entries.into_iter().peekable());
        while entries.peek().is_some() {
            let mut body = counted.to_be_bytes().to_vec();
            for (key, packets, octets) in entries.by_ref().take(MAX_ENTRIES) {
                debug_assert!(key.len() <= 255, "keys of accounts have a few octets");
                body.push(key.len() as u8);
                body.extend(key);
                body.extend(packets.to_be_bytes());
                body.extend(octets.to_be_bytes());
            }
            let at = place + out.len() as u64;
            out.extend((body.len() as u32).to_be_bytes()); // at most MAX_BODY
            out.extend(self.check_frame(at, &body));
            out.extend(body);
        }
        out
    }

    fn check_frame(&self, place: u64, body: &[u8]) -> [u8; CHECK] {
        check(&[&self.run, &place.to_be_bytes(), body])
    }

    fn read(octets: &[u8]) -> Result<Self, TallyFault> {
        let front = octets.get(..MAGIC.len() + 1);
        let version = match front {
            None if MAGIC.starts_with(octets) => return Err(TallyFault::Cut(octets.len())),
            Some(front) if front.starts_with(MAGIC) => front[MAGIC.len()],
            _ => return Err(TallyFault::Foreign),
        };
        if version != VERSION {
            return Err(TallyFault::Version(version));
        }
        let (header, _) = octets.split_first_chunk::<HEADER>().ok_or(TallyFault::Cut(octets.len()))?;
        let (header, found) = header.split_at(HEADER - CHECK);
        if found != check(&[header]) {
            return Err(TallyFault::Damaged(0));
        }
        let (run, batch) = header[MAGIC.len() + 1..].split_at(16);
        let run = run.try_into().map_err(|_| TallyFault::Damaged(0))?;
        Ok(Self { run, batch: u64::from_be_bytes(batch.try_into().map_err(|_| TallyFault::Damaged(0))?) })
    }

    /// Reads the body of the frame at `place`; returns it with what follows the frame.
    fn body<'a>(&self, place: usize, octets: &'a [u8]) -> Result<(&'a [u8], &'a [u8]), TallyFault> {
        let cut = TallyFault::Cut(place);
        let (front, rest) = octets.split_first_chunk::<FRONT>().ok_or(cut)?;
        let (length, found) = front.split_first_chunk::<4>().ok_or(cut)?;
        let length = u32::from_be_bytes(*length) as usize;
        if length > MAX_BODY {
            return Err(TallyFault::Damaged(place));
        }
        let (body, rest) = rest.split_at_checked(length).ok_or(cut)?;
        if found != self.check_frame(place as u64, body) {
            return Err(TallyFault::Damaged(place));
        }
        Ok((body, rest))
    }
}

impl TallyEntry {
    fn read(octets: &[u8]) -> Option<(Self, &[u8])> {
        let (length, rest) = octets.split_first()?;
        let (key, rest) = rest.split_at_checked(usize::from(*length))?;
        let (packets, rest) = rest.split_first_chunk::<16>()?;
        let (octets, rest) = rest.split_first_chunk::<16>()?;
        let (packets, octets) = (u128::from_be_bytes(*packets), u128::from_be_bytes(*octets));
        Some((Self { key: key.to_vec(), packets, octets }, rest))
    }
}

impl Tally {
    /// Reads a file, up to the first frame that is not whole.
    ///
    /// # Errors
    /// If it has no header that can be read: nothing of it counts.
    pub fn read(file: &[u8]) -> Result<Self, TallyFault> {
        let start = TallyStart::read(file)?;
        let mut tally = Self { start, counted: None, entries: Vec::new(), rest: None };
        let mut rest = &file[HEADER..];
        while !rest.is_empty() {
            let place = file.len() - rest.len();
            match start.body(place, rest).and_then(|(body, after)| Ok((tally.take(place, body)?, after))) {
                Ok(((), after)) => rest = after,
                Err(fault) => {
                    tally.rest = Some(fault);
                    break;
                }
            }
        }
        Ok(tally)
    }

    /// Takes a frame's body over, all of it or nothing.
    fn take(&mut self, place: usize, body: &[u8]) -> Result<(), TallyFault> {
        let damaged = TallyFault::Damaged(place);
        let (counted, mut rest) = body.split_first_chunk::<8>().ok_or(damaged)?;
        let before = self.entries.len();
        while !rest.is_empty() {
            let Some((entry, after)) = TallyEntry::read(rest) else {
                self.entries.truncate(before);
                return Err(damaged);
            };
            self.entries.push(entry);
            rest = after;
        }
        self.counted = self.counted.max(Some(u64::from_be_bytes(*counted)));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    //! PLA, tally: every truncation and every flipped octet; frames of another process or place: read up to the first
    //! frame that is not whole; never fatal.

    use proptest::prelude::*;

    use super::*;

    const START: TallyStart = TallyStart { run: [7; 16], batch: 9 };

    fn entry(number: u8) -> TallyEntry {
        TallyEntry { key: vec![number; usize::from(number)], packets: u128::from(number) << 70, octets: u128::MAX }
    }

    fn appended(file: &mut Vec<u8>, counted: u64, entries: &[TallyEntry]) {
        let of = entries.iter().map(|entry| (&entry.key[..], entry.packets, entry.octets));
        let frames = START.frames(file.len() as u64, counted, of);
        file.extend(frames);
    }

    /// A file of three frames, and where each of them begins.
    fn file() -> (Vec<u8>, Vec<usize>, Vec<TallyEntry>) {
        let mut file = START.header();
        let entries: Vec<TallyEntry> = (0..6).map(entry).collect();
        let mut places = Vec::new();
        for (frame, of) in entries.chunks(2).enumerate() {
            places.push(file.len());
            appended(&mut file, [5, 8, 6][frame], of);
        }
        (file, places, entries)
    }

    /// Of a file that is damaged from an octet on, all frames in front of it are read and none behind.
    fn whole_before(octet: usize, places: &[usize]) -> usize {
        places.iter().skip(1).filter(|place| **place <= octet).count() * 2
    }

    #[test]
    fn what_was_written_is_read() {
        let (file, _, entries) = file();
        assert_eq!(Tally::read(&file), Ok(Tally { start: START, counted: Some(8), entries, rest: None }));
        let empty = Tally { start: START, counted: None, entries: Vec::new(), rest: None };
        assert_eq!(Tally::read(&START.header()), Ok(empty));
        assert!(START.frames(0, 7, []).is_empty());
    }

    #[test]
    fn many_entries_are_in_several_frames() {
        let mut file = START.header();
        let entries: Vec<TallyEntry> = (0..3 * MAX_ENTRIES).map(|number| entry(number as u8)).collect();
        appended(&mut file, 1, &entries);
        let tally = Tally::read(&file).expect("a tally");
        assert!(tally.entries == entries && tally.rest.is_none());
    }

    #[test]
    fn a_file_that_is_cut_at_any_octet_is_read_up_to_its_last_whole_frame() {
        let (file, mut places, entries) = file();
        places.push(file.len());
        for length in 0..file.len() {
            let read = Tally::read(&file[..length]);
            if length < HEADER {
                assert_eq!(read, Err(TallyFault::Cut(length)));
                continue;
            }
            let tally = read.expect("a header");
            assert_eq!(tally.entries, entries[..whole_before(length, &places)], "{length}");
            let begun = places.iter().rev().find(|place| **place <= length).expect("behind the header");
            assert_eq!(tally.rest, (*begun != length).then_some(TallyFault::Cut(*begun)), "{length}");
        }
    }

    #[test]
    fn a_file_with_any_octet_flipped_is_read_up_to_the_frame_that_has_it() {
        let (file, places, entries) = file();
        for octet in 0..file.len() {
            for flip in [1, 0x80] {
                let mut damaged = file.clone();
                damaged[octet] ^= flip;
                let read = Tally::read(&damaged);
                match octet {
                    0..7 => assert_eq!(read, Err(TallyFault::Foreign)),
                    7 => assert_eq!(read, Err(TallyFault::Version(VERSION ^ flip))),
                    8..HEADER => assert_eq!(read, Err(TallyFault::Damaged(0))),
                    _ => {
                        let tally = read.expect("a header");
                        assert_eq!(tally.entries, entries[..whole_before(octet, &places)], "{octet}");
                        assert!(tally.rest.is_some());
                    }
                }
            }
        }
    }

    #[test]
    fn a_frame_of_another_run_or_place_is_none_of_this_file() {
        let (file, places, entries) = file();
        // The second frame instead of the first, and the first once more.
        let moved = [&file[..HEADER], &file[places[1]..]].concat();
        let repeated = [&file[..], &file[places[0]..places[1]]].concat();
        let of = |file: &[u8]| Tally::read(file).expect("a header").entries;
        assert!(of(&moved).is_empty());
        assert_eq!(of(&repeated), entries);
        let other = TallyStart { run: [8; 16], ..START };
        assert!(of(&[&other.header()[..], &file[HEADER..]].concat()).is_empty());
    }

    #[test]
    fn a_frame_whose_entries_do_not_fill_it_is_damaged() {
        let body = |body: &[u8]| {
            let place = HEADER as u64;
            let front = [&(body.len() as u32).to_be_bytes()[..], &START.check_frame(place, body)].concat();
            Tally::read(&[&START.header()[..], &front, body].concat()).expect("a header")
        };
        for bad in [&[][..], &[0; 7], &[0; 9], &[0; 8 + 32], &[&[0; 8][..], &[200], &[0; 100]].concat()] {
            let tally = body(bad);
            assert_eq!((tally.entries.len(), tally.counted, tally.rest), (0, None, Some(TallyFault::Damaged(HEADER))));
        }
        assert_eq!(body(&[0; 8 + 33]).entries.len(), 1);
        let long = [&START.header()[..], &u32::MAX.to_be_bytes(), &[0; 100]].concat();
        assert_eq!(Tally::read(&long).expect("a header").rest, Some(TallyFault::Damaged(HEADER)));
    }

    proptest! {
        #[test]
        fn no_octets_make_it_panic(octets in prop::collection::vec(any::<u8>(), 0..300), is_behind: bool) {
            let mut file = if is_behind { START.header() } else { Vec::new() };
            file.extend(octets);
            if let Ok(tally) = Tally::read(&file) {
                prop_assert!(tally.entries.len() * 33 <= file.len());
            }
        }
    }
}
