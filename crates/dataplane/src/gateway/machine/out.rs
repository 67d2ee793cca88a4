//! Sealing and stamping: messages and segments become ICING packets.

use std::collections::VecDeque;
use std::sync::Arc;

use wayleave_core::Now;
use wayleave_packet::icing::header::Part;
use wayleave_packet::icing::mint::{Form, Front, Nonce, Sender, cut};

use super::super::counters::{Counters, Reason};
use super::super::inner::Inner;
use super::super::lane::Lane;
use super::super::message::{Content, DATA, Message, SEALED};
use super::super::offload::{Offload, Segments};
use super::super::peer::{Candidate, Known};
use super::{LIMIT_OUTPUTS, Output};
use crate::frame::BURST;
use crate::icing::{Stamp, Stamper};
use crate::noise::{SealingKey, TAG};

/// Where outputs go, and what they are made with.
pub(super) struct Out {
    pub(super) queue: VecDeque<Output>,
    pub(super) stamper: Stamper,
    pub(super) counters: Counters,
    pub(super) segment: Vec<u8>,
    pub(super) message: Vec<u8>,
}

/// A packet, or the segments that it stands for, with all that sealing and stamping them takes: no two have the same numbers, whichever thread
/// writes them.
pub(super) struct Run {
    link: u16,
    form: Form,
    /// The session as its receiver numbers it, the first message's number in it, and its key.
    to: u32,
    number: u64,
    key: Arc<SealingKey>,
    /// Of the first packet on the path.
    nonce: Nonce,
    sender: Arc<Sender>,
    inner: Inner,
    offload: Offload,
}

impl Run {
    /// Seals and stamps the segments of `octets`, the packet as the machine left it, in `room`, which is empty.
    pub(super) fn write(&self, octets: &[u8], stamper: &mut Stamper, mut room: Vec<u8>) -> Result<Output, Unwritten> {
        let segments = Segments::new(octets, self.inner, &self.offload).ok_or(Unwritten)?;
        let (header, count) = (self.sender.header_length(self.form), segments.count());
        let (length, last) = segments.lengths();
        let size = header + DATA + length + TAG;
        room.clear();
        room.reserve((count - 1) * size + header + DATA + last + TAG);
        // Each packet is written where it leaves from, and sealed there.
        for (index, number) in (0..count).zip(self.number..) {
            let message = room.len() + header;
            room.resize(message, 0);
            room.extend_from_slice(&Message::data(self.to, number));
            segments.append(index, &mut room);
            room.resize(room.len() + TAG, 0);
            self.key.seal(number, &mut room[message + DATA..]).map_err(|_| Unwritten)?;
        }
        let front = |nonce| Front { form: self.form, part: Part::Whole, protocol: SEALED, nonce };
        let sender = &*self.sender;
        let nonces = std::iter::successors(Some(self.nonce), |nonce| Some(nonce.next()));
        let stamps = room.chunks_mut(size).zip(nonces);
        let mut stamps: Vec<Stamp<'_>> =
            stamps.map(|(octets, nonce)| Stamp { sender, front: front(nonce), octets }).collect();
        stamps.chunks_mut(BURST).try_for_each(|burst| stamper.stamp(burst).map_err(|_| Unwritten))?;
        Ok(Output::Wire { link: self.link, octets: room, size })
    }
}

/// A packet that cannot be sealed or stamped: it is dropped, and its numbers are no other's.
#[derive(Debug)]
pub(super) struct Unwritten;

impl Out {
    pub(super) fn push(&mut self, output: Output) {
        if self.queue.len() < LIMIT_OUTPUTS {
            self.queue.push_back(output);
        } else {
            self.counters.drop(Reason::NotSent);
        }
    }

    /// Numbers `segments`; returns how they are sealed and sent. Those that leave in parts leave here, at once.
    pub(super) fn prepare(
        &mut self,
        lane: &mut Lane,
        known: &mut Known,
        (link, mtu): (u16, usize),
        (segments, inner, offload): (&Segments<'_>, Inner, Offload),
        now: Now,
    ) -> Result<Option<Run>, ()> {
        let form = lane.form();
        let around = lane.sender.header_length(form) + DATA + TAG;
        let (length, _) = segments.lengths();
        let count = segments.count();
        if around + length <= mtu {
            let (number, key) = known.session.numbers(count).map_err(|_| ())?;
            let nonce = lane.nonces(count, now);
            lane.sent += count as u64;
            let sender = Arc::clone(&lane.sender);
            return Ok(Some(Run { link, form, to: known.to, number, key, nonce, sender, inner, offload }));
        }
        // The path itself takes the room until every node holds it; or the packet must pass.
        let mut segment = std::mem::take(&mut self.segment);
        let result = (0..count).try_for_each(|index| {
            segment.clear();
            segments.append(index, &mut segment);
            self.seal(known, &segment)?;
            let message = std::mem::take(&mut self.message);
            self.message(lane, link, mtu, (form, &message), now);
            self.message = message;
            Ok(())
        });
        self.segment = segment;
        lane.sent += if result.is_ok() { count as u64 } else { 0 };
        result.map(|()| None)
    }

    /// Seals and sends what was numbered.
    pub(super) fn run(&mut self, run: &Run, octets: &[u8]) {
        match run.write(octets, &mut self.stamper, Vec::new()) {
            Ok(output) => self.push(output),
            Err(_) => self.counters.drop(Reason::NotSent),
        }
    }

    /// Seals `plain` as a message into `self.message`.
    pub(super) fn seal(&mut self, known: &mut Known, plain: &[u8]) -> Result<(), ()> {
        self.message.clear();
        self.message.resize(DATA + plain.len() + TAG, 0);
        let number = known.session.seal(plain, &mut self.message[DATA..]).map_err(|_| ())?;
        self.message[..DATA].copy_from_slice(&Message::data(known.to, number));
        Ok(())
    }

    /// Sends a message of which nothing is sealed here, with the path.
    pub(super) fn control(&mut self, candidate: &mut Candidate, message: &[u8], now: Now) {
        let (link, mtu) = (candidate.link, usize::from(candidate.path.mtu()));
        if let Some(lane) = &mut candidate.lane {
            self.message(lane, link, mtu, (Form::Path, message), now);
        }
    }

    /// Sends a sealed content, with the path.
    pub(super) fn sealed(&mut self, candidate: &mut Candidate, known: &mut Known, content: &[u8], now: Now) {
        if self.seal(known, content).is_ok() {
            let message = std::mem::take(&mut self.message);
            self.control(candidate, &message, now);
            self.message = message;
        }
    }

    /// Probes a path if that is due, by the proofs in use and by the next ones.
    pub(super) fn probe(&mut self, candidate: &mut Candidate, known: &mut Known, now: Now) {
        let (link, mtu) = (candidate.link, candidate.path.mtu());
        let nodes = candidate.nodes.to_vec();
        let mut is_probed = false;
        for lane in candidate.lanes() {
            for probe in lane.next_probes(mtu, now.instant) {
                is_probed = true;
                let mut content =
                    Content::Probe { number: probe.number, sent: probe.sent, nodes: nodes.clone(), padding: 0 }
                        .encode();
                let room = probe.size.map_or(0, |size| lane.inner_mtu(size.into(), probe.form));
                content.resize(content.len().max(room), 0);
                if self.seal(known, &content).is_ok() {
                    self.counters.probes += 1;
                    let message = std::mem::take(&mut self.message);
                    self.message(lane, link, mtu.into(), (probe.form, &message), now);
                    self.message = message;
                }
            }
        }
        if is_probed {
            candidate.was_probed(now.instant);
        }
    }

    /// Sends one message in one packet, or in two if it does not fit.
    pub(super) fn message(&mut self, lane: &mut Lane, link: u16, mtu: usize, (form, message): (Form, &[u8]), now: Now) {
        let headroom = mtu.saturating_sub(lane.sender.header_length(form));
        if message.len() <= headroom {
            let nonce = lane.nonce(now);
            return self.packet(lane, link, Front { form, part: Part::Whole, protocol: SEALED, nonce }, message);
        }
        let Some((first, second)) = cut(message, headroom) else { return self.counters.drop(Reason::NotSent) };
        self.counters.split += 1;
        let (nonce, next) = lane.two_nonces(now);
        self.packet(lane, link, Front { form, part: Part::First, protocol: SEALED, nonce }, first);
        self.packet(lane, link, Front { form, part: Part::Second, protocol: SEALED, nonce: next }, second);
    }

    pub(super) fn packet(&mut self, lane: &Lane, link: u16, front: Front, payload: &[u8]) {
        let header = lane.sender.header_length(front.form);
        let mut octets = vec![0; header + payload.len()];
        octets[header..].copy_from_slice(payload);
        let stamped = self.stamper.stamp(&mut [Stamp { sender: &lane.sender, front, octets: &mut octets }]);
        match stamped {
            Ok(()) => {
                let size = octets.len();
                self.push(Output::Wire { link, octets, size });
            }
            Err(_) => self.counters.drop(Reason::NotSent),
        }
    }
}
