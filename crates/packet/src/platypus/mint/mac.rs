//! AES-128-CMAC (RFC 4493) of a single message.

use wayleave_crypto::lanes::{Block, CpuKernel, Parts, cmac_each};
use wayleave_crypto::secret::Key128;

/// The MAC of whole blocks followed by octets. It uses the portable kernel: with one message a vector kernel's other lanes
/// would stay empty.
pub(crate) fn cmac(key: &Key128, head: &[Block], tail: &[u8]) -> Block {
    let mut tag = [[0; 16]];
    cmac_each(CpuKernel::PORTABLE, std::slice::from_ref(key.expose()), &[Parts { head, tail }], &mut tag);
    tag[0]
}

/// A key derived from a key: the MAC of one block with a label and fields of fixed width.
pub(crate) fn derive(key: &Key128, block: Block) -> Key128 {
    Key128::new(cmac(key, &[block], &[]))
}
