//! IPv4 longest-prefix match by DIR-24-8-BASIC (Gupta, Lin, McKeown, INFOCOM 1998): the baseline of the paper of 2015.

use thiserror::Error;

/// Set in an entry that is the number of a block of `second`, for prefixes longer than 24 bits.
const LONG: u16 = 0x8000;
/// The next hop of addresses without a route.
const NONE: u16 = 0x7fff;

/// Why routes do not make a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum TableError {
    #[error("a prefix of {0} bits, which is more than an IPv4 address has")]
    PrefixLength(u8),
    #[error("next hop {0} does not fit 15 bits")]
    NextHop(u16),
    #[error("more than 32,768 blocks of prefixes longer than 24 bits")]
    Blocks,
}

/// A routing table of 32 MiB: one memory access for most lookups, two for prefixes longer than 24 bits.
#[derive(Clone)]
pub struct Dir24 {
    first: Vec<u16>,
    second: Vec<u16>,
}

impl std::fmt::Debug for Dir24 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Dir24 with {} blocks of longer prefixes", self.second.len() / 256)
    }
}

impl Dir24 {
    /// The table of `routes`: address, prefix length, next hop.
    ///
    /// # Errors
    /// If a route is invalid or the table is full.
    pub fn new(routes: &[(u32, u8, u16)]) -> Result<Self, TableError> {
        let mut sorted = routes.to_vec();
        sorted.sort_by_key(|(_, length, _)| *length);
        let mut table = Self { first: vec![NONE; 1 << 24], second: Vec::new() };
        for (address, length, next_hop) in sorted {
            table.add(address, length, next_hop)?;
        }
        Ok(table)
    }

    /// Adds a route whose prefix is at least as long as all before it, so that it overwrites only shorter ones.
    fn add(&mut self, address: u32, length: u8, next_hop: u16) -> Result<(), TableError> {
        if length > 32 {
            return Err(TableError::PrefixLength(length));
        }
        if next_hop >= NONE {
            return Err(TableError::NextHop(next_hop));
        }
        let index = (address >> 8) as usize;
        if length <= 24 {
            let size = 1usize << (24 - length);
            self.first[index & !(size - 1)..][..size].fill(next_hop);
            return Ok(());
        }
        let block = match self.first[index] {
            entry if entry & LONG != 0 => usize::from(entry & !LONG),
            entry => {
                let block = self.second.len() / 256;
                if block >= usize::from(LONG) {
                    return Err(TableError::Blocks);
                }
                self.second.resize(self.second.len() + 256, entry);
                self.first[index] = LONG | block as u16;
                block
            }
        };
        let size = 1usize << (32 - length);
        let start = block * 256 + ((address & 0xff) as usize & !(size - 1));
        self.second[start..][..size].fill(next_hop);
        Ok(())
    }

    /// The next hop for `address`.
    #[inline]
    #[must_use]
    pub fn lookup(&self, address: u32) -> Option<u16> {
        let mut entry = self.first[(address >> 8) as usize];
        if entry & LONG != 0 {
            entry = self.second[usize::from(entry & !LONG) * 256 + (address & 0xff) as usize];
        }
        (entry != NONE).then_some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_prefix_wins_as_in_a_list_of_all() {
        let mut seed = 1u32;
        let mut random = || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            seed >> 8
        };
        // Few address bits, so that prefixes nest.
        let routes: Vec<(u32, u8, u16)> = (0..2_000)
            .map(|next_hop| {
                let length = 8 + (random() % 25) as u8;
                let address = 0x0a00_0000 | (random() & 0x3) << 16 | (random() & 0x7) << 8 | (random() & 0xff);
                (address & (u32::MAX << (32 - length)), length, next_hop)
            })
            .collect();
        let table = Dir24::new(&routes).unwrap();
        for _ in 0..20_000 {
            let address = 0x0a00_0000 | (random() & 0x3) << 16 | (random() & 0xf) << 8 | (random() & 0xff);
            let matching = |(prefix, length, _): &&(u32, u8, u16)| address & (u32::MAX << (32 - length)) == *prefix;
            // Of routes for one prefix the last one counts.
            let longest = routes.iter().filter(matching).max_by_key(|(_, length, _)| *length);
            assert_eq!(table.lookup(address), longest.map(|(_, _, next_hop)| *next_hop));
        }
        assert_eq!(table.lookup(0x0b00_0000), None);
    }
}
