//! The switch of the paper of 2015 (sections 3.2 and 4.1): checks the interface and the MAC, and moves the pointer on.

use wayleave_crypto::lanes::LANES;
use wayleave_dataplane::frame::{BURST, Frame, Ingress};
use wayleave_dataplane::lanes::{VectorCode, prefetch_headers};
use wayleave_dataplane::scion::{Action, Counters, Reason};

use super::lanes::Lanes;
use super::{Layout, OpaqueKey, step};

/// One core's switch of one AS.
#[derive(Clone, Debug)]
pub struct Switch {
    key: OpaqueKey,
    /// Two groups: the fields of one are collected while the other is checked, so that stores reach the cache before vector
    /// loads read them. `None` while a burst is processed.
    lanes: Option<Box<[Lanes; 2]>>,
    /// Indexed by interface: whether it is on this switch. All others are a sibling's.
    own: Box<[bool]>,
    counters: Counters,
}

/// Cache lines that hold a header of a few fields.
const HEADER_LINES: usize = 1;

/// A packet that waits for its MAC.
#[derive(Clone, Copy, Default)]
struct PendingPacket {
    mac: u32,
    /// The MAC of the next field, if the packet changes from its up half to its down half here.
    second: u32,
    egress: u16,
    /// The pointer's new value, which must stay below `count`.
    pointer: u8,
    count: u8,
    changes: bool,
}

impl Switch {
    /// A switch with the interfaces `own`, verifying with `key`.
    #[must_use]
    pub fn new(key: OpaqueKey, own: &[u16]) -> Self {
        let count = own.iter().map(|&id| usize::from(id) + 1).max().unwrap_or(0);
        let mut ports = vec![false; count].into_boxed_slice();
        for &id in own {
            ports[usize::from(id)] = id != 0;
        }
        Self { key, lanes: Some(Box::default()), own: ports, counters: Counters::default() }
    }

    /// Counters of this core.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Processes at most [`BURST`] packets in place. A packet for another switch of the AS goes to sibling 0.
    pub fn process(&mut self, frames: &mut [Frame<'_>]) -> [Action; BURST] {
        let mut actions = [Action::default(); BURST];
        let mut lanes = self.lanes.take().unwrap_or_default();
        let count = frames.len().min(BURST);
        let kernel = self.key.kernel();
        let burst = Burst { switch: self, frames: &mut frames[..count], actions: &mut actions, lanes: &mut lanes };
        burst.run_on(kernel);
        self.lanes = Some(lanes);
        actions
    }

    /// Checks one group of packets after the other. The fields of the next group are collected first, and the cache lines of
    /// the one after it prefetched, so that no group waits for memory.
    #[inline(always)]
    fn process_burst(
        &mut self,
        frames: &mut [Frame<'_>],
        actions: &mut [Action; BURST],
        [this, next]: &mut [Lanes; 2],
    ) {
        let (mut this, mut next) = (this, next);
        prefetch_headers::<HEADER_LINES>(&frames[..frames.len().min(2 * LANES)]);
        put(this, &frames[..frames.len().min(LANES)]);
        let (mut rest, mut actions) = (frames, &mut actions[..]);
        while !rest.is_empty() {
            let (group, behind) = rest.split_at_mut(rest.len().min(LANES));
            let (group_actions, behind_actions) = actions.split_at_mut(group.len());
            prefetch_headers::<HEADER_LINES>(&behind[behind.len().min(LANES)..behind.len().min(2 * LANES)]);
            put(next, &behind[..behind.len().min(LANES)]);
            self.process_group(group, group_actions, this);
            std::mem::swap(&mut this, &mut next);
            (rest, actions) = (behind, behind_actions);
        }
    }

    #[inline(always)]
    fn process_group(&mut self, frames: &mut [Frame<'_>], actions: &mut [Action], lanes: &mut Lanes) {
        let passed = lanes.check(&self.key, &self.own);
        let wrong = if passed == 0 { 0 } else { lanes.wrong(passed, &self.key) };
        if passed.count_ones() as usize != frames.len() || wrong != 0 {
            return self.process_others(frames, actions, lanes, (passed, wrong));
        }
        self.counters.forwarded += frames.len() as u64;
        for (lane, (frame, action)) in frames.iter_mut().zip(actions).enumerate() {
            *action = lanes.leave(lane, frame.octets);
        }
    }

    /// The general path, for a group in which some packet did not pass in lanes.
    #[inline(never)]
    fn process_others(
        &mut self,
        frames: &mut [Frame<'_>],
        actions: &mut [Action],
        lanes: &Lanes,
        (passed, wrong): (u16, u16),
    ) {
        let mut refused = [None; LANES];
        let mut pending = [PendingPacket::default(); LANES];
        let mut blocks = [[0; 16]; LANES];
        let mut seconds = [[0; 16]; LANES];
        let mut changes = false;
        for (index, frame) in frames.iter().enumerate().take(LANES) {
            let packet = &mut pending[index];
            if passed >> index & 1 != 0 {
                refused[index] = (wrong >> index & 1 != 0).then_some(Reason::BadMac);
                continue;
            }
            refused[index] = check(frame, packet, &mut blocks[index], &mut seconds[index]).err();
            changes |= packet.changes;
        }
        if passed.count_ones() as usize != frames.len() {
            self.key.tag_blocks(&mut blocks);
        }
        if changes {
            self.key.tag_blocks(&mut seconds);
        }
        for (index, (frame, action)) in frames.iter_mut().zip(actions).enumerate().take(LANES) {
            let reason = match refused[index] {
                None if passed >> index & 1 != 0 => {
                    *action = lanes.leave(index, frame.octets);
                    None
                }
                None => self.decide(frame, &pending[index], &blocks[index], &seconds[index], action).err(),
                refused => refused,
            };
            if let Some(reason) = reason {
                *action = Action::Drop(reason);
            }
            self.counters.count(*action);
        }
    }

    #[inline(always)]
    fn decide(
        &self,
        frame: &mut Frame<'_>,
        packet: &PendingPacket,
        tag: &[u8; 16],
        second: &[u8; 16],
        action: &mut Action,
    ) -> Result<(), Reason> {
        let first_four = |tag: &[u8; 16]| u32::from_be_bytes([tag[0], tag[1], tag[2], tag[3]]);
        let mut wrong = first_four(tag) ^ packet.mac;
        if packet.changes {
            wrong |= first_four(second) ^ packet.second;
        }
        if wrong != 0 {
            return Err(Reason::BadMac);
        }
        if packet.egress == 0 {
            *action = Action::Deliver;
            return Ok(());
        }
        let ours = self.own.get(usize::from(packet.egress)).is_some_and(|own| *own);
        // The egress switch moves the pointer on. The ingress switch moves it only over the change of halves.
        let pointer = packet.pointer + u8::from(ours);
        if pointer >= packet.count {
            return Err(Reason::PathEnd);
        }
        frame.octets[Layout::POINTER] = pointer;
        *action = if ours { Action::Forward(packet.egress) } else { Action::Sibling(0) };
        Ok(())
    }
}

/// A burst of packets for one switch.
struct Burst<'a, 'f> {
    switch: &'a mut Switch,
    frames: &'a mut [Frame<'f>],
    actions: &'a mut [Action; BURST],
    lanes: &'a mut [Lanes; 2],
}

impl VectorCode for Burst<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { switch, frames, actions, lanes } = self;
        switch.process_burst(frames, actions, lanes);
    }
}

/// Collects the fields of a group's packets.
#[inline(always)]
fn put(lanes: &mut Lanes, frames: &[Frame<'_>]) {
    lanes.clear();
    for (lane, frame) in frames.iter().enumerate().take(LANES) {
        if let Ingress::External(interface) = frame.ingress {
            lanes.put(lane, frame.octets, interface);
        }
    }
}

#[inline(always)]
fn check(
    frame: &Frame<'_>,
    packet: &mut PendingPacket,
    block: &mut [u8; 16],
    second: &mut [u8; 16],
) -> Result<(), Reason> {
    let layout = Layout::decode(frame.octets).map_err(|_| Reason::Malformed)?;
    let this = step(frame.octets, layout, layout.pointer);
    if let Ingress::External(interface) = frame.ingress
        && (interface == 0 || this.ingress() != interface)
    {
        return Err(Reason::WrongIngress);
    }
    *block = this.mac_input();
    packet.mac = this.mac();
    packet.egress = this.egress();
    packet.pointer = layout.pointer;
    packet.count = layout.count;
    // The core AS has two opaque fields, the last of the up half and the first of the down half.
    packet.changes = layout.pointer + 1 == layout.up && layout.up < layout.count;
    if packet.changes {
        let next = step(frame.octets, layout, layout.up);
        *second = next.mac_input();
        packet.second = next.mac();
        packet.egress = next.egress();
        packet.pointer = layout.up;
    }
    Ok(())
}
