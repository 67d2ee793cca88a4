//! CMAC of sixteen messages under a key for each, which may be derived from another one, as a capability's secret is from a
//! waypoint's key.

use zeroize::Zeroizing;

#[cfg(target_arch = "x86_64")]
use super::Code;
use super::{Block, CmacKey, Columns, CpuKernel, LANES, Parts, cmac_each, rows};

/// Of how many blocks all of them are, the last one perhaps incomplete; `None` if they differ.
#[inline(always)]
pub(super) fn common_blocks(tails: &[&[u8]; LANES]) -> Option<usize> {
    let blocks = |tail: &[u8]| tail.len().div_ceil(16);
    let differ = tails.iter().fold(0, |differ, tail| differ | (blocks(tail) ^ blocks(tails[0])));
    (differ == 0).then(|| blocks(tails[0]))
}

/// A key or what it is derived from, and the first three blocks of a message.
pub type Row = [Block; 4];

/// As [`tag_rows`], for rows that lie by columns: word `w` of row `p` is `columns[w][p]`.
pub fn tag_columns(
    kernel: CpuKernel,
    keys: &[(&CmacKey, u16)],
    columns: &Columns,
    tails: &[&[u8]; LANES],
    tags: &mut [Block; LANES],
) -> bool {
    #[cfg(target_arch = "x86_64")]
    if kernel.0 == Code::Vaes512 && keys.iter().all(|(key, _)| key.single().kernel().0 != Code::Portable) {
        return super::x86::tag_columns(kernel, keys, columns, tails, tags);
    }
    let mut out = Zeroizing::new([[[0; 16]; 4]; LANES]);
    rows(kernel, columns, &mut out);
    tag_rows(kernel, keys, &out, tails, tags)
}

/// The tags of [`LANES`] messages, each made of the last three blocks of a row and of a tail. The key of a message is
/// the CMAC of its row's first block under the one of `keys` whose bit is set at the message's place, or that block itself
/// where none is. Returns whether it did: tails must be of as many blocks each.
pub fn tag_rows(
    kernel: CpuKernel,
    keys: &[(&CmacKey, u16)],
    rows: &[Row; LANES],
    tails: &[&[u8]; LANES],
    tags: &mut [Block; LANES],
) -> bool {
    #[cfg(target_arch = "x86_64")]
    if kernel.0 == Code::Vaes512 && keys.iter().all(|(key, _)| key.single().kernel().0 != Code::Portable) {
        return super::x86::tag_rows(kernel, keys, rows, tails, tags);
    }
    if common_blocks(tails).is_none() {
        return false;
    }
    let mut secrets = Zeroizing::new(rows.each_ref().map(|row| row[0]));
    for (key, lanes) in keys {
        let mut out = Zeroizing::new(rows.each_ref().map(|row| row[0]));
        key.tag_blocks(&mut *out);
        for (lane, (secret, out)) in secrets.iter_mut().zip(&*out).enumerate() {
            if lanes >> lane & 1 != 0 {
                *secret = *out;
            }
        }
    }
    let messages: [Parts<'_>; LANES] = std::array::from_fn(|lane| Parts { head: &rows[lane][1..], tail: tails[lane] });
    cmac_each(kernel, &*secrets, &messages, tags);
    true
}
