//! Where the changes of a database end.

/// The last change that was seen of a database. What continues it has this very change, or a later timeline that an operator began above
/// it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Position {
    /// How often an operator adopted a database that was behind.
    pub timeline: u64,
    /// Zero before the first change.
    pub number: u64,
    pub digest: [u8; 32],
}

/// Octets of a position that is kept in a file.
const OCTETS: usize = 8 + 8 + 32;

impl Position {
    /// For a file.
    #[must_use]
    pub fn octets(&self) -> [u8; OCTETS] {
        let mut octets = [0; OCTETS];
        octets[..8].copy_from_slice(&self.timeline.to_be_bytes());
        octets[8..16].copy_from_slice(&self.number.to_be_bytes());
        octets[16..].copy_from_slice(&self.digest);
        octets
    }

    /// From a file; `None` if these are the octets of none.
    #[must_use]
    pub fn from_octets(octets: &[u8]) -> Option<Self> {
        let octets: &[u8; OCTETS] = octets.try_into().ok()?;
        let number = |at: usize| u64::from_be_bytes(*octets[at..].first_chunk().expect("8 octets"));
        Some(Self { timeline: number(0), number: number(8), digest: *octets[16..].first_chunk().expect("32 octets") })
    }
}
