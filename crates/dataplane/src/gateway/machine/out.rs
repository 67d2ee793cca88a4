//! Sealing and stamping: messages and segments become ICING packets.

use std::collections::VecDeque;

use wayleave_core::Now;
use wayleave_packet::icing::header::Part;
use wayleave_packet::icing::mint::{Form, Front, Nonce, cut};

use super::super::counters::{Counters, Reason};
use super::super::lane::Lane;
use super::super::message::{Content, DATA, Message, SEALED};
use super::super::offload::Segments;
use super::super::peer::{Candidate, Known};
use super::{LIMIT_OUTPUTS, Output};
use crate::frame::BURST;
use crate::icing::{Stamp, Stamper};
use crate::noise::TAG;

/// Where outputs go, and what they are made with.
pub(super) struct Out {
    pub(super) queue: VecDeque<Output>,
    pub(super) stamper: Stamper,
    pub(super) counters: Counters,
    pub(super) segment: Vec<u8>,
    pub(super) message: Vec<u8>,
    /// Memory of packets that have left.
    pub(super) spare: Vec<Vec<u8>>,
}

impl Out {
    /// Empty memory with room for so many octets.
    fn room(&mut self, octets: usize) -> Vec<u8> {
        let mut room = self.spare.pop().unwrap_or_default();
        room.clear();
        room.reserve(octets);
        room
    }

    pub(super) fn push(&mut self, output: Output) {
        if self.queue.len() < LIMIT_OUTPUTS {
            self.queue.push_back(output);
        } else {
            self.counters.drop(Reason::NotSent);
        }
    }

    /// Sends each of `segments`, sealed.
    pub(super) fn segments(
        &mut self,
        lane: &mut Lane,
        known: &mut Known,
        link: u16,
        mtu: usize,
        segments: &Segments<'_>,
        now: Now,
    ) -> Result<(), ()> {
        let form = lane.form();
        let header = lane.sender.header_length(form);
        let around = header + DATA + TAG;
        let (length, last) = segments.lengths();
        let mut segment = std::mem::take(&mut self.segment);
        let count = segments.count();
        let result = if around + length > mtu {
            // The path itself takes the room until every node holds it; or the packet must pass.
            (0..count).try_for_each(|index| {
                segment.clear();
                segments.append(index, &mut segment);
                self.seal(known, &segment)?;
                let message = std::mem::take(&mut self.message);
                self.message(lane, link, mtu, (form, &message), now);
                self.message = message;
                Ok(())
            })
        } else {
            let size = around + length;
            let mut octets = self.room((count - 1) * size + around + last);
            // Each packet is written where it leaves from, and sealed there.
            let sealed = (0..count).try_for_each(|index| {
                let message = octets.len() + header;
                octets.resize(message + DATA, 0);
                segments.append(index, &mut octets);
                octets.resize(octets.len() + TAG, 0);
                let number = known.session.seal_in_place(&mut octets[message + DATA..]).map_err(|_| ())?;
                octets[message..message + DATA].copy_from_slice(&Message::data(known.to, number));
                Ok(())
            });
            sealed.and_then(|()| {
                let front = |nonce| Front { form, part: Part::Whole, protocol: SEALED, nonce };
                let nonces: Vec<Nonce> = (0..count).map(|_| lane.nonce(now)).collect();
                let sender = &lane.sender;
                let mut stamps: Vec<Stamp<'_>> = octets
                    .chunks_mut(size)
                    .zip(nonces)
                    .map(|(octets, nonce)| Stamp { sender, front: front(nonce), octets })
                    .collect();
                stamps.chunks_mut(BURST).try_for_each(|burst| self.stamper.stamp(burst).map_err(|_| ()))?;
                self.push(Output::Wire { link, octets, size });
                Ok(())
            })
        };
        self.segment = segment;
        lane.sent += if result.is_ok() { count as u64 } else { 0 };
        result
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
