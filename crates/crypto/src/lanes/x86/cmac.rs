//! CMAC of a burst: messages of similar length in lanes, under one key for all or a key for each.
//!
//! Every lane computes the chain of its own message, and a vector holds one or four lanes; several vectors run side by side,
//! since an AES round takes several cycles but can begin every cycle. Branches depend on lengths and on the order of
//! messages alone.

use super::super::{BURST, Block, LANES, Parts};
use super::{Keys, Vector, encrypt_vectors, schedule, splat_all};

/// The CMAC of at most [`BURST`] messages. The caller has the features of `V`.
#[inline(always)]
pub(super) unsafe fn cmac_in<V: Vector>(keys: Keys<'_>, messages: &[Parts<'_>], tags: &mut [Block]) {
    // SAFETY: the caller has the features.
    unsafe {
        if V::BLOCKS == 4 {
            // Sixteen messages: where messages lie 2 KiB apart, more of them push each other out of the nearest cache.
            cmac_with::<V, 4>(keys, messages, tags);
        } else {
            cmac_with::<V, 8>(keys, messages, tags);
        }
    }
}

/// With `VECTORS` vectors at a time.
#[inline(always)]
unsafe fn cmac_with<V: Vector, const VECTORS: usize>(keys: Keys<'_>, messages: &[Parts<'_>], tags: &mut [Block]) {
    // Sorting by length puts messages of similar length into one group. The length is in the high bits of a number and the
    // message's index in the low eight, so that one sort moves both.
    let mut order = [0u64; BURST];
    for (index, (entry, message)) in order.iter_mut().zip(messages).enumerate() {
        *entry = (message.blocks() as u64) << 8 | index as u64;
    }
    let order = &mut order[..messages.len()];
    if !order.is_sorted() {
        order.sort_unstable();
    }
    for group in order.chunks(VECTORS * V::BLOCKS) {
        let group = Group::new(group);
        // SAFETY: the caller has the features.
        unsafe {
            match keys {
                Keys::One(round_keys, k1, k2) => {
                    let round_keys: [V; 11] = splat_all(round_keys);
                    let subkeys = (V::splat(k1), V::splat(k2));
                    group.compute::<V, VECTORS>(messages, tags, |_| subkeys, |round, _| round_keys[round]);
                }
                Keys::Each(keys) => {
                    let mut own = [V::zero(); VECTORS];
                    for (number, own) in own.iter_mut().enumerate() {
                        *own = V::gather(|lane| &keys[group.lanes[number * V::BLOCKS + lane]]);
                    }
                    let own = schedule(own);
                    let mut once = [V::zero(); VECTORS];
                    encrypt_vectors(&mut once, |round, number| own[round][number]);
                    for once in &mut once {
                        *once = once.double();
                    }
                    group.compute::<V, VECTORS>(
                        messages,
                        tags,
                        |number| (once[number], once[number].double()),
                        |round, number| own[round][number],
                    );
                }
            }
        }
    }
}

/// Messages that are computed together.
struct Group<'a> {
    /// Length and index of each message, in ascending order.
    order: &'a [u64],
    /// The index of each lane's message; lanes behind the last message repeat it, and their results are not written.
    lanes: [usize; LANES],
}

impl<'a> Group<'a> {
    fn new(order: &'a [u64]) -> Self {
        let index = |lane: usize| (order[lane.min(order.len() - 1)] & 0xff) as usize;
        Self { order, lanes: std::array::from_fn(index) }
    }

    /// The number of blocks of the lane's message.
    #[inline(always)]
    fn length(&self, lane: usize) -> usize {
        (self.order[lane.min(self.order.len() - 1)] >> 8) as usize
    }

    /// The index of the first message, if the messages follow one another and fill `lanes` lanes.
    #[inline(always)]
    fn run(&self, lanes: usize) -> Option<usize> {
        let (first, last) = (self.lanes[0], self.lanes[lanes - 1]);
        let is_run = self.order.len() == lanes && last.wrapping_sub(first) == lanes - 1;
        is_run.then_some(first)
    }

    /// Computes the tags. `subkeys` gives K1 and K2 of a vector, `key` the key of a round for a vector.
    #[inline(always)]
    unsafe fn compute<V: Vector, const VECTORS: usize>(
        &self,
        messages: &[Parts<'_>],
        tags: &mut [Block],
        subkeys: impl Fn(usize) -> (V, V),
        key: impl Fn(usize, usize) -> V + Copy,
    ) {
        let used = VECTORS * V::BLOCKS;
        let mut heads: [&[Block]; LANES] = [&[]; LANES];
        let mut tails: [&[Block]; LANES] = [&[]; LANES];
        // The last block of each, complete or not.
        let mut ends: [&[u8]; LANES] = [&[]; LANES];
        let head = messages[self.lanes[0]].head.len();
        let mut is_even = true;
        for lane in 0..used {
            let message = &messages[self.lanes[lane]];
            let (whole, rest) = message.tail.as_chunks();
            (heads[lane], tails[lane]) = (message.head, whole);
            is_even &= message.head.len() == head;
            ends[lane] = match whole.last().or(message.head.last()) {
                Some(block) if rest.is_empty() => block,
                _ => rest,
            };
        }
        let (shortest, longest) = (self.length(0), self.length(used - 1));
        // So many blocks every message has complete, before its last one, and in the same part: these need no choice.
        let whole = if is_even { shortest - 1 } else { 0 };
        // SAFETY: the caller has the features. A message of `length` blocks has at least `length - 1` complete ones in head
        // and tail together, `head` of them in its head if all heads are of one length; no index below reaches beyond
        // `shortest - 1`.
        unsafe {
            let mut last = [V::zero(); VECTORS];
            for (number, last) in last.iter_mut().enumerate() {
                let ends = &ends[number * V::BLOCKS..][..V::BLOCKS];
                let bits = (0..V::BLOCKS).fold(0, |bits, lane| bits | u8::from(ends[lane].len() == 16) << lane);
                let (k1, k2) = subkeys(number);
                *last = V::gather_padded(|lane| ends[lane]).xor(V::choose(bits, k1, k2));
            }
            let mut state = [V::zero(); VECTORS];
            for index in 0..whole.min(head) {
                for (number, vector) in state.iter_mut().enumerate() {
                    *vector = vector.xor(V::gather(|lane| heads[number * V::BLOCKS + lane].get_unchecked(index)));
                }
                encrypt_vectors(&mut state, key);
            }
            // Where a vector holds four blocks, four blocks of each message at a time as long as there are as many: so a
            // cache line is read once, though the messages push each other's lines out of the cache.
            let (mut index, fours) = (head, if V::BLOCKS == 4 { whole.saturating_sub(head) / 4 } else { 0 });
            for _ in 0..fours {
                let mut four = [[V::zero(); 4]; VECTORS];
                for (number, four) in four.iter_mut().enumerate() {
                    let begin = index - head;
                    *four = V::gather_four(|lane| {
                        let blocks = tails[number * V::BLOCKS + lane].get_unchecked(begin..begin + 4);
                        &*blocks.as_ptr().cast()
                    });
                }
                for block in 0..4 {
                    for (vector, four) in state.iter_mut().zip(&four) {
                        *vector = vector.xor(four[block]);
                    }
                    encrypt_vectors(&mut state, key);
                }
                index += 4;
            }
            for index in index..whole {
                for (number, vector) in state.iter_mut().enumerate() {
                    *vector =
                        vector.xor(V::gather(|lane| tails[number * V::BLOCKS + lane].get_unchecked(index - head)));
                }
                encrypt_vectors(&mut state, key);
            }
            if is_even && shortest == longest {
                for (state, last) in state.iter_mut().zip(last) {
                    *state = state.xor(last);
                }
                encrypt_vectors(&mut state, key);
                self.put(&state, longest, tags);
                return;
            }
            // Messages end at different blocks: each lane takes its own blocks, its padded last one, and whatever it had
            // before from then on. A tag is written when its message has ended.
            let mut lasts = [[0; 16]; LANES];
            for (number, last) in last.iter().enumerate() {
                last.store(&mut lasts[number * V::BLOCKS..]);
            }
            for index in whole..longest {
                for (number, vector) in state.iter_mut().enumerate() {
                    *vector = vector.xor(V::gather(|lane| {
                        let lane = number * V::BLOCKS + lane;
                        let is_inner = index + 1 < self.length(lane);
                        if is_inner { messages[self.lanes[lane]].block(index) } else { &lasts[lane] }
                    }));
                }
                encrypt_vectors(&mut state, key);
                if index + 1 >= shortest {
                    self.put(&state, index + 1, tags);
                }
            }
        }
    }

    /// Writes the tags of the messages of `length` blocks.
    #[inline(always)]
    unsafe fn put<V: Vector, const VECTORS: usize>(&self, state: &[V; VECTORS], length: usize, tags: &mut [Block]) {
        let used = VECTORS * V::BLOCKS;
        if let Some(first) = self.run(used).filter(|_| self.length(0) == length && self.length(used - 1) == length) {
            for (state, tags) in state.iter().zip(tags[first..][..used].chunks_exact_mut(V::BLOCKS)) {
                // SAFETY: the caller has the features, and there are as many blocks as the vector has.
                unsafe { state.store(tags) };
            }
            return;
        }
        let mut out = [[0; 16]; LANES];
        for (number, vector) in state.iter().enumerate() {
            // SAFETY: the caller has the features; slicing checks that there is room.
            unsafe { vector.store(&mut out[number * V::BLOCKS..]) };
        }
        for (lane, entry) in self.order.iter().enumerate() {
            if (entry >> 8) as usize == length {
                tags[self.lanes[lane]] = out[lane];
            }
        }
    }
}
