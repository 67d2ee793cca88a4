//! Records on the pipes between a benchmark and the processes of its parties.

use std::io::{self, Read, Write};

wayleave_core::numbered! {
    /// What a record says. The first five go to a party, the others come from it.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub enum Say {
        /// A member's link is up: its slot in four octets, and the link's keying material.
        MemberUp = 1,
        /// The link to the peer party is up: its keying material.
        PeerUp = 2,
        Down = 3,
        /// Of a member or of the peer party, in either direction.
        Frame = 4,
        /// How it stands is asked; the number is the question's.
        Ask = 5,
        /// A party answers: [`Answer`].
        Answer = 6,
        /// A party has started, with so many objects in its store.
        Ready = 7,
        /// A party closed a link, and why.
        Closed = 8,
        /// A party's operator would read this.
        Event = 9,
        /// Inside a party's process: the store has written a batch.
        Persisted = 10,
        /// The pipe has ended.
        End = 11,
    }
}

/// The longest record: the longest frame, with room.
const MAX: usize = 17 << 20;
const HEAD: usize = 13;

/// One record: what it says, the number of a link or of a question, and octets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    pub say: Say,
    pub number: u64,
    pub octets: Vec<u8>,
}

/// How a party stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Answer {
    pub is_at_rest: bool,
    pub is_stocked: bool,
    pub objects: u64,
    pub delivered: u64,
    pub lanes: u64,
}

impl Answer {
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let flags = u64::from(self.is_at_rest) | u64::from(self.is_stocked) << 1;
        [flags, self.objects, self.delivered, self.lanes].iter().flat_map(|word| word.to_be_bytes()).collect()
    }

    /// `None` if it is no answer.
    #[must_use]
    pub fn decode(octets: &[u8]) -> Option<Self> {
        let words: Vec<u64> = octets.as_chunks::<8>().0.iter().map(|word| u64::from_be_bytes(*word)).collect();
        let [flags, objects, delivered, lanes] = *words.as_slice() else { return None };
        Some(Self { is_at_rest: flags & 1 > 0, is_stocked: flags & 2 > 0, objects, delivered, lanes })
    }
}

/// Writes a record.
///
/// # Errors
/// If the pipe fails.
pub fn write(pipe: &mut impl Write, say: Say, number: u64, octets: &[u8]) -> io::Result<()> {
    let mut head = [0; HEAD];
    head[0] = say as u8;
    head[1..9].copy_from_slice(&number.to_be_bytes());
    head[9..].copy_from_slice(&u32::try_from(octets.len()).map_err(io::Error::other)?.to_be_bytes());
    pipe.write_all(&head)?;
    pipe.write_all(octets)
}

/// Reads a record; [`Say::End`] where the pipe ends.
///
/// # Errors
/// If the pipe fails, or what comes is no record.
pub fn read(pipe: &mut impl Read) -> io::Result<Record> {
    let mut head = [0; HEAD];
    match pipe.read_exact(&mut head) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            return Ok(Record { say: Say::End, number: 0, octets: Vec::new() });
        }
        read => read?,
    }
    let say = Say::from_octet(head[0]).ok_or_else(|| io::Error::other("no such record"))?;
    let number = u64::from_be_bytes(*head[1..].first_chunk().expect("12 octets"));
    let length = u32::from_be_bytes(*head[9..].first_chunk().expect("4 octets")) as usize;
    if length > MAX {
        return Err(io::Error::other(format!("a record of {length} octets")));
    }
    let mut octets = Vec::new();
    // A sender may be killed in the middle of a record.
    if pipe.take(length as u64).read_to_end(&mut octets)? < length {
        return Ok(Record { say: Say::End, number: 0, octets: Vec::new() });
    }
    Ok(Record { say, number, octets })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_as_they_were_written_and_a_torn_one_ends_the_pipe() {
        let answer = Answer { is_at_rest: true, is_stocked: false, objects: 7, delivered: 9, lanes: 2 };
        let mut pipe = Vec::new();
        write(&mut pipe, Say::Answer, 3, &answer.encode()).expect("memory");
        let whole = read(&mut pipe.as_slice()).expect("a record");
        assert_eq!((whole.say, whole.number, Answer::decode(&whole.octets)), (Say::Answer, 3, Some(answer)));
        for torn in 0..pipe.len() {
            assert_eq!(read(&mut &pipe[..torn]).expect("an end").say, Say::End);
        }
        assert!(read(&mut [99u8; 20].as_slice()).is_err());
        let mut long = pipe.clone();
        long[9] = 0xff;
        assert!(read(&mut long.as_slice()).is_err(), "longer than any record");
        assert_eq!(Answer::decode(&[0; 31]), None);
    }
}
