//! The switch of the paper of 2015 (sections 3.2 and 4.1): interface, MAC, pointer. For benchmarks and the laboratory.

use wayleave_packet::scion_2015::{Layout, OpaqueKey, Step, step};

use crate::counters::{Counters, Reason};
use crate::frame::{Action, BURST, Frame, Ingress};

/// One core's switch of one AS.
#[derive(Clone, Debug)]
pub struct Switch {
    key: OpaqueKey,
    /// Interfaces of the AS that are on this switch; all others are a sibling's.
    own: Box<[bool]>,
    counters: Counters,
}

/// A packet that waits for its MAC.
#[derive(Clone, Copy, Default)]
struct Pending {
    reason: Option<Reason>,
    mac: u32,
    egress: u16,
    pointer: u8,
    count: u8,
    /// The packet changes from its up half to its down half here: this field's MAC counts too.
    changed: bool,
    second: u32,
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
        Self { key, own: ports, counters: Counters::default() }
    }

    /// What this core has counted.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Processes at most [`BURST`] packets in place. A packet for another switch of the AS goes to sibling 0.
    pub fn process(&mut self, frames: &mut [Frame<'_>]) -> [Action; BURST] {
        let mut actions = [Action::default(); BURST];
        let mut pending = [Pending::default(); BURST];
        let mut blocks = [[0; 16]; BURST];
        let mut seconds = [[0; 16]; BURST];
        let mut changes = false;
        let frames = if frames.len() > BURST { &mut frames[..BURST] } else { frames };
        let count = frames.len();
        for (index, frame) in frames.iter().enumerate() {
            pending[index] = match check(frame, &mut blocks[index], &mut seconds[index]) {
                Ok(pending) => pending,
                Err(reason) => Pending { reason: Some(reason), ..Pending::default() },
            };
            changes |= pending[index].changed;
        }
        self.key.tag_blocks(&mut blocks[..count]);
        if changes {
            self.key.tag_blocks(&mut seconds[..count]);
        }
        for (index, frame) in frames.iter_mut().enumerate() {
            let packet = &pending[index];
            let decided = match packet.reason {
                Some(reason) => Err(reason),
                None => self.decide(frame, packet, &blocks[index], &seconds[index]),
            };
            actions[index] = decided.unwrap_or_else(Action::Drop);
            self.counters.count(actions[index]);
        }
        actions
    }

    #[inline]
    fn decide(
        &self,
        frame: &mut Frame<'_>,
        packet: &Pending,
        tag: &[u8; 16],
        second: &[u8; 16],
    ) -> Result<Action, Reason> {
        let first_four = |tag: &[u8; 16]| u32::from_be_bytes([tag[0], tag[1], tag[2], tag[3]]);
        let wrong =
            (first_four(tag) ^ packet.mac) | if packet.changed { first_four(second) ^ packet.second } else { 0 };
        if wrong != 0 {
            return Err(Reason::BadMac);
        }
        if packet.egress == 0 {
            return Ok(Action::Deliver);
        }
        let ours = self.own.get(usize::from(packet.egress)).is_some_and(|own| *own);
        // The switch at the way out moves the pointer on; the one at the way in only over the change of halves.
        let pointer = packet.pointer + u8::from(ours);
        if pointer >= packet.count {
            return Err(Reason::PathEnd);
        }
        frame.octets[Layout::POINTER] = pointer;
        Ok(if ours { Action::Forward(packet.egress) } else { Action::Sibling(0) })
    }
}

#[inline]
fn check(frame: &Frame<'_>, block: &mut [u8; 16], second: &mut [u8; 16]) -> Result<Pending, Reason> {
    let layout = Layout::decode(frame.octets).map_err(|_| Reason::Malformed)?;
    let Step { ingress, egress, mac, input } = step(frame.octets, layout, layout.pointer);
    if let Ingress::External(interface) = frame.ingress
        && (interface == 0 || ingress != interface)
    {
        return Err(Reason::WrongIngress);
    }
    *block = input;
    let mut pending = Pending {
        mac: u32::from_be_bytes(mac),
        egress,
        pointer: layout.pointer,
        count: layout.count,
        ..Pending::default()
    };
    // The core AS has two opaque fields, the last of the up half and the first of the down half.
    if layout.pointer + 1 == layout.up && layout.up < layout.count {
        let next = step(frame.octets, layout, layout.up);
        *second = next.input;
        pending = Pending {
            changed: true,
            second: u32::from_be_bytes(next.mac),
            egress: next.egress,
            pointer: layout.up,
            ..pending
        };
    }
    Ok(pending)
}
