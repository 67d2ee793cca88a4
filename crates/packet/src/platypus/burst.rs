//! A waypoint's checks over a burst of packets, with secrets and bindings computed in lanes; the verdicts are those of
//! [`Waypoint::verify`].
//!
//! A packet of the commonest shape is checked in place (`lean`). Whatever does not pass there goes the general way,
//! which knows the reason.

use subtle::ConstantTimeEq;
use wayleave_core::UnixTime;
use wayleave_crypto::lanes::{BURST, Block, Kernel, Parts, cmac_each, prefetch_octet};

use super::delegations::Delegations;
use super::header::{Packet, Version};
use super::lean::{self, Lean, lean};
use super::mint::{HEAD_BLOCKS, WaypointKey, write_head};
use super::verify::{Forward, Reason, Verdict, Waypoint};

/// Packets whose first octets are on their way from memory while one is read.
const AHEAD: usize = 16;

/// One core's scratch, and the stamping keys of the delegations that it verified last.
pub struct Verifier {
    kernel: Kernel,
    keys: [Block; BURST],
    heads: Box<[[Block; HEAD_BLOCKS]; BURST]>,
    lean_heads: [[Block; lean::HEAD]; BURST],
    waiting: [Waiting; BURST],
    tags: [Block; BURST],
    delegations: Delegations,
}

impl std::fmt::Debug for Verifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Verifier on {}", self.kernel.name())
    }
}

/// A packet that waits for its tag.
#[derive(Clone, Copy)]
struct Waiting {
    forward: Forward,
    /// Its place in the burst.
    place: u8,
    /// Octets of its binding.
    width: u8,
    /// Octets of the tag that are compared.
    compared: u8,
    /// A delegation whose stamping key is worth keeping once it has verified a packet.
    is_new: bool,
}

impl Waiting {
    const NONE: Self = Self { forward: Forward::lean(0, 0), place: 0, width: 0, compared: 0, is_new: false };

    #[inline(always)]
    fn lean(lean: &Lean<'_, '_>, place: usize) -> Self {
        Self {
            forward: Forward::lean(lean.ttl, lean.pointer),
            place: place as u8,
            width: lean.width as u8,
            compared: lean.compared as u8,
            is_new: false,
        }
    }
}

impl Verifier {
    /// A verifier that keeps the keys of `delegations` delegations.
    #[must_use]
    pub fn new(kernel: Kernel, delegations: usize) -> Self {
        Self {
            kernel,
            keys: [[0; 16]; BURST],
            heads: Box::new([[[0; 16]; HEAD_BLOCKS]; BURST]),
            lean_heads: [[[0; 16]; lean::HEAD]; BURST],
            waiting: [Waiting::NONE; BURST],
            tags: [[0; 16]; BURST],
            delegations: Delegations::new(delegations),
        }
    }

    /// Forgets delegations: the waypoints' keys are others now.
    pub fn forget(&mut self) {
        self.delegations.clear();
    }

    /// Decides on up to [`BURST`] IP packets of version 1 for any of `waypoints`. Verdicts beyond the packets are left.
    pub fn verify(&mut self, waypoints: &[Waypoint], datagrams: &[&[u8]], now: UnixTime, verdicts: &mut [Verdict]) {
        let Self { kernel, keys, heads, lean_heads, waiting, tags, delegations } = self;
        let datagrams = &datagrams[..datagrams.len().min(verdicts.len()).min(BURST)];
        let mut inputs: [Option<&WaypointKey>; BURST] = [None; BURST];
        let mut messages = [Parts::default(); BURST];
        let (mut count, mut kins) = (0, [const { None }; 8]);
        let (soon, later) = datagrams.split_at(datagrams.len().min(AHEAD));
        soon.iter().for_each(|datagram| fetch(datagram));
        let mut later = later.iter();
        let heads = lean_heads.iter_mut().zip(heads.iter_mut());
        for ((place, datagram), (lean_head, head)) in datagrams.iter().enumerate().zip(heads) {
            later.next().inspect(|datagram| fetch(datagram));
            let (key, input, message) = (&mut keys[count], &mut inputs[count], &mut messages[count]);
            let one = &mut waiting[count];
            if let Some(lean) = lean(datagram, &mut kins, waypoints, now, key, lean_head) {
                *input = Some(lean.key);
                *message = Parts { head: lean_head, tail: lean.payload };
                *one = Waiting::lean(&lean, place);
            } else {
                match general(waypoints, datagram, now, delegations, key, head) {
                    Ok((this, parts)) => (*one, *message) = (Waiting { place: place as u8, ..this }, parts),
                    Err(refused) => {
                        verdicts[place] = refused;
                        continue;
                    }
                }
            }
            count += 1;
        }
        derive_secrets(&inputs[..count], keys);
        cmac_each(*kernel, &keys[..count], &messages[..count], &mut tags[..count]);
        for ((one, tag), key) in waiting.iter().zip(&*tags).zip(&*keys).take(count) {
            let place = usize::from(one.place);
            let datagram = datagrams[place];
            let is_right = matches(tag, one, datagram);
            verdicts[place] = if is_right { Verdict::Forward(one.forward) } else { Reason::Binding.into() };
            if is_right && one.is_new {
                delegations.insert(one.forward.capability(datagram), key);
            }
        }
    }
}

/// The general way: every shape of packet, or the reason for which it is refused. Writes its key and the head of what its
/// binding is computed over.
#[inline(never)]
fn general<'a>(
    waypoints: &[Waypoint],
    datagram: &'a [u8],
    now: UnixTime,
    delegations: &mut Delegations,
    key: &mut Block,
    head: &'a mut [Block; HEAD_BLOCKS],
) -> Result<(Waiting, Parts<'a>), Verdict> {
    let packet = Packet::decode(datagram, Version::Standard)?;
    let destination = packet.outer().destination;
    let here = waypoints.iter().find(|here| here.address() == destination).ok_or(Reason::NotForUs)?;
    let (index, capability) = here.check_before_mac(&packet, now)?;
    let is_delegated = capability.delegation.is_some();
    let is_cached = is_delegated && delegations.find(packet.capability_octets(index), key);
    if !is_cached {
        *key = *here.keys().stamp_key(&capability).ok_or(Reason::KeyGone)?.expose();
    }
    let waiting = Waiting {
        forward: Forward::of(&packet, index),
        place: 0,
        width: packet.binding(index).len() as u8,
        compared: here.compared() as u8,
        is_new: is_delegated && !is_cached,
    };
    let blocks = write_head(&packet, index, head);
    let payload = packet.payload_offset()..packet.datagram().len();
    Ok((waiting, Parts { head: &head[..blocks], tail: &datagram[payload] }))
}

/// Turns the inputs that wait for a waypoint's key into secrets, neighbours under one key together.
fn derive_secrets(inputs: &[Option<&WaypointKey>], keys: &mut [Block; BURST]) {
    let is_same = |a: &Option<&WaypointKey>, b: &Option<&WaypointKey>| match (a, b) {
        (Some(a), Some(b)) => std::ptr::eq(*a, *b),
        (None, None) => true,
        _ => false,
    };
    let mut begin = 0;
    for run in inputs.chunk_by(is_same) {
        let end = begin + run.len();
        if let Some(Some(key)) = run.first() {
            key.in_lanes().tag_blocks(&mut keys[begin..end]);
        }
        begin = end;
    }
}

/// Begins to fetch the first octets of a packet that is read soon.
#[inline(always)]
fn fetch(datagram: &[u8]) {
    // The headers of the commonest shape end in the second cache line.
    prefetch_octet(datagram, 0);
    if datagram.len() > 64 {
        prefetch_octet(datagram, 64);
    }
}

/// Whether the first octets of a tag are those presented, without a branch on any of them.
#[inline(always)]
fn matches(tag: &Block, one: &Waiting, datagram: &[u8]) -> bool {
    let presented = one.forward.binding(datagram);
    let half = |octets: &[u8], at: usize| Some(u64::from_be_bytes(*octets.get(at..)?.first_chunk()?));
    let (Some(upper), Some(tag_upper), Some(tag_lower)) = (half(presented, 0), half(tag, 0), half(tag, 8)) else {
        return false;
    };
    if usize::from(one.compared) < tag.len() {
        // What a forger's luck is measured with.
        let octets = usize::from(one.compared.min(one.width));
        return presented.get(..octets).is_some_and(|presented| presented.ct_eq(&tag[..octets]).into());
    }
    let lower = if one.width == 8 { Some(tag_lower) } else { half(presented, 8) };
    lower.is_some_and(|lower| ((upper ^ tag_upper) | (lower ^ tag_lower)).ct_eq(&0).into())
}
