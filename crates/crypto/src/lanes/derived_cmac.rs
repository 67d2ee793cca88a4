//! CMAC of sixteen messages, each under a key of its own that is derived from a common key on the way, as a capability's
//! secret is from a waypoint's key.

use zeroize::Zeroizing;

#[cfg(target_arch = "x86_64")]
use super::Code;
use super::{Block, CmacKey, Columns, CpuKernel, LANES, Parts, cmac_each, rows};

/// The number of blocks that every tail has, the last one perhaps incomplete; `None` if they differ.
#[inline(always)]
pub(super) fn common_blocks(tails: &[&[u8]; LANES]) -> Option<usize> {
    let blocks = |tail: &[u8]| tail.len().div_ceil(16);
    let differ = tails.iter().fold(0, |differ, tail| differ | (blocks(tail) ^ blocks(tails[0])));
    (differ == 0).then(|| blocks(tails[0]))
}

/// The input of a key's derivation, or the key itself, and then the first three blocks of a message.
pub type Row = [Block; 4];

/// [`tag_rows`] of rows in columns: word `w` of row `p` is `columns[w][p]`.
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

/// Computes the tags of [`LANES`] messages, each of which consists of the last three blocks of its row and of its tail.
///
/// Every one of `keys` has a mask of lanes. The key of a lane's message is the CMAC of the row's first block under the key
/// whose mask has the lane, or that block itself if no mask has it. Masks and lengths are public; the time depends on
/// nothing else.
///
/// Returns false, without tags, unless all tails have the same number of blocks.
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
