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
use crate::noise::{NotSealed, SealingKey, TAG};

/// Where outputs go, and what they are made with.
pub(super) struct Out {
    pub(super) queue: VecDeque<Output>,
    pub(super) stamper: Stamper,
    pub(super) counters: Counters,
    pub(super) message: Vec<u8>,
}

/// A packet, or the segments that it stands for, with all that sealing and stamping them takes: no two have the same numbers, whichever thread
/// writes them.
pub(super) struct Run {
    link: u16,
    form: Form,
    /// Octets of the longest packet on the path. The message of a longer one leaves in two.
    mtu: usize,
    /// The session as its receiver numbers it, the first message's number in it, and its key.
    to: u32,
    number: u64,
    key: Arc<SealingKey>,
    /// Of the first packet on the path: those of the others follow.
    nonce: Nonce,
    sender: Arc<Sender>,
    inner: Inner,
    offload: Offload,
}

impl Run {
    /// Seals and stamps the segments of `octets`, the packet as the machine left it; `buffer` is memory for that. What leaves is handed to `out`.
    pub(super) fn write(
        &self,
        octets: &[u8],
        stamper: &mut Stamper,
        buffer: Vec<u8>,
        out: &mut impl FnMut(Output),
    ) -> Result<(), Unwritten> {
        let segments = Segments::new(octets, self.inner, &self.offload).ok_or(Unwritten)?;
        if self.sender.header_length(self.form) + DATA + segments.lengths().0 + TAG > self.mtu {
            return self.write_parts(&segments, stamper, buffer, out);
        }
        out(self.write_whole(&segments, stamper, buffer)?);
        Ok(())
    }

    fn front(&self, part: Part, nonce: Nonce) -> Front {
        Front { form: self.form, part, protocol: SEALED, nonce }
    }

    /// Writes segments that fit, one behind the other.
    fn write_whole(
        &self,
        segments: &Segments<'_>,
        stamper: &mut Stamper,
        mut buffer: Vec<u8>,
    ) -> Result<Output, Unwritten> {
        let (header, count) = (self.sender.header_length(self.form), segments.count());
        let (length, last) = segments.lengths();
        let size = header + DATA + length + TAG;
        buffer.clear();
        buffer.reserve((count - 1) * size + header + DATA + last + TAG);
        // Each packet is written where it leaves from, and sealed there.
        for (index, number) in (0..count).zip(self.number..) {
            let message = buffer.len() + header;
            buffer.resize(message, 0);
            self.seal(segments, (index, number), &mut buffer)?;
        }
        let sender = &*self.sender;
        let nonces = std::iter::successors(Some(self.nonce), |nonce| Some(nonce.next()));
        let stamps = buffer.chunks_mut(size).zip(nonces);
        let mut stamps: Vec<Stamp<'_>> =
            stamps.map(|(octets, nonce)| Stamp { sender, front: self.front(Part::Whole, nonce), octets }).collect();
        stamps.chunks_mut(BURST).try_for_each(|burst| stamper.stamp(burst).map_err(|_| Unwritten))?;
        Ok(Output::Wire { link: self.link, octets: buffer, size })
    }

    /// Writes segments of which those that do not fit leave in two packets each.
    fn write_parts(
        &self,
        segments: &Segments<'_>,
        stamper: &mut Stamper,
        mut message: Vec<u8>,
        out: &mut impl FnMut(Output),
    ) -> Result<(), Unwritten> {
        let headroom = self.mtu.saturating_sub(self.sender.header_length(self.form));
        let mut nonce = self.nonce;
        for (index, number) in (0..segments.count()).zip(self.number..) {
            message.clear();
            self.seal(segments, (index, number), &mut message)?;
            let parts = if message.len() <= headroom {
                [Some((Part::Whole, &message[..])), None]
            } else {
                let (first, second) = cut(&message, headroom).ok_or(Unwritten)?;
                [Some((Part::First, first)), Some((Part::Second, second))]
            };
            for (part, payload) in parts.into_iter().flatten() {
                out(packet(stamper, &self.sender, (self.link, self.front(part, nonce)), payload)?);
                nonce = nonce.next();
            }
        }
        Ok(())
    }

    /// Appends a segment as a sealed message of this number.
    fn seal(&self, segments: &Segments<'_>, (index, number): (usize, u64), out: &mut Vec<u8>) -> Result<(), Unwritten> {
        let message = out.len();
        out.extend_from_slice(&Message::data(self.to, number));
        segments.append(index, out);
        out.resize(out.len() + TAG, 0);
        self.key.seal(number, &mut out[message + DATA..]).map_err(|_| Unwritten)
    }
}

/// Stamps a packet by itself.
fn packet(
    stamper: &mut Stamper,
    sender: &Sender,
    (link, front): (u16, Front),
    payload: &[u8],
) -> Result<Output, Unwritten> {
    let header = sender.header_length(front.form);
    let mut octets = vec![0; header + payload.len()];
    octets[header..].copy_from_slice(payload);
    stamper.stamp(&mut [Stamp { sender, front, octets: &mut octets }]).map_err(|_| Unwritten)?;
    let size = octets.len();
    Ok(Output::Wire { link, octets, size })
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

    /// Numbers `segments`; returns how they are sealed and sent.
    pub(super) fn prepare(
        &mut self,
        lane: &mut Lane,
        known: &mut Known,
        (link, mtu): (u16, usize),
        (segments, inner, offload): (&Segments<'_>, Inner, Offload),
        now: Now,
    ) -> Result<Run, NotSealed> {
        let form = lane.form();
        let capacity = mtu.saturating_sub(lane.sender.header_length(form) + DATA + TAG);
        let ((length, last), count) = (segments.lengths(), segments.count());
        // The path itself takes the octets until every node holds it; or the packet must pass.
        let split = if length > capacity { count - usize::from(last <= capacity) } else { 0 };
        let (number, key) = known.session.numbers(count)?;
        let nonce = lane.nonces(count + split, now);
        lane.sent += count as u64;
        self.counters.split += split as u64;
        let sender = Arc::clone(&lane.sender);
        Ok(Run { link, form, mtu, to: known.to, number, key, nonce, sender, inner, offload })
    }

    /// Seals and sends what was numbered.
    pub(super) fn run(&mut self, run: &Run, octets: &[u8]) {
        let mut made = Vec::new();
        if run.write(octets, &mut self.stamper, Vec::new(), &mut |output| made.push(output)).is_err() {
            self.counters.drop(Reason::NotSent);
        }
        made.into_iter().for_each(|output| self.push(output));
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
                let inner_mtu = probe.size.map_or(0, |size| lane.inner_mtu(size.into(), probe.form));
                content.resize(content.len().max(inner_mtu), 0);
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

    fn packet(&mut self, lane: &Lane, link: u16, front: Front, payload: &[u8]) {
        match packet(&mut self.stamper, &lane.sender, (link, front), payload) {
            Ok(output) => self.push(output),
            Err(Unwritten) => self.counters.drop(Reason::NotSent),
        }
    }
}

#[cfg(test)]
mod tests {
    //! ICD-11, gateway: segments that leave in two packets each: numbered in order, sealed elsewhere, and whole once joined.

    use wayleave_core::{Instant, UnixTime};
    use wayleave_crypto::lanes::CpuKernel;
    use wayleave_crypto::secret::{Key128, Seed};
    use wayleave_packet::icing::header::{Hop, Packet, Path, Tag, Version};
    use wayleave_packet::icing::mint::{Joiner, NodeSecret, TagMaster};

    use super::super::super::inner::tests::tcp;
    use super::super::super::offload::Kind;
    use super::*;
    use crate::noise::tests::pair;

    const NOW: Now = Now { instant: Instant(5), unix: UnixTime(1_800_000_000_000_000) };

    /// A path of two nodes, which the other one does not hold yet.
    fn lane() -> Lane {
        let secret = |node| NodeSecret::from_seed(&Seed::new([node; 32]));
        let expiry = NOW.unix.secs() as u32 + 60;
        let path = Path::new(secret(1).id(), &[Hop { node: secret(2).id(), tag: Tag(7), expiry }]).unwrap();
        let consent = TagMaster::new(Key128::new([3; 16])).consent(&path.hash(Version::Sealed), 1, Tag(7), expiry);
        Lane::new(Sender::new(Version::Sealed, &path, &secret(1), &[consent]).unwrap(), expiry.into(), 9, NOW)
    }

    #[test]
    fn segments_that_leave_in_parts_are_numbered_under_the_lock_and_sealed_outside() {
        let kernel = CpuKernel::best();
        let mut out = Out {
            queue: VecDeque::new(),
            stamper: Stamper::new(kernel),
            counters: Counters::default(),
            message: Vec::new(),
        };
        let ((session, other), mut lane) = (pair(), lane());
        let mut known = Known { index: 1, to: 2, session, is_confirmed: true };
        // Two segments that do not fit, and one that does.
        let payload: Vec<u8> = (0..2_500u32).map(|n| n as u8).collect();
        let big = tcp(("10.0.1.1", "10.0.2.1"), (9, 22), (100, 0x10), &[], &payload);
        let offload = Offload { needs_checksum: true, kind: Kind::Tcp4, size: 1_200, ..Offload::default() };
        let inner = Inner::decode(&big).unwrap();
        let segments = Segments::new(&big, inner, &offload).unwrap();
        let mtu = lane.sender.header_length(Form::Path) + DATA + TAG + 1_000;
        let mut prepare =
            |out: &mut Out| out.prepare(&mut lane, &mut known, (7, mtu), (&segments, inner, offload), NOW);
        let runs = [prepare(&mut out).unwrap(), prepare(&mut out).unwrap()];
        assert!(out.queue.is_empty(), "nothing is made before the thread has let go of the machine");
        assert_eq!((runs.each_ref().map(|run| run.number), out.counters.split), ([0, 3], 4));
        let (mut joiner, mut stamper) = (Joiner::default(), Stamper::new(kernel));
        let (mut nonces, mut opened) = (Vec::new(), Vec::new());
        for run in &runs {
            run.write(&big, &mut stamper, Vec::new(), &mut |output| {
                let Output::Wire { link: 7, octets, size } = output else { panic!("{output:?}") };
                assert!(octets.len() == size && size <= mtu, "{size} octets");
                let packet = Packet::decode(&octets, Version::Standard).unwrap();
                nonces.push(u64::from_be_bytes(packet.nonce()));
                let mut joined = Vec::new();
                let (handle, nonce, part) = (packet.handle(), packet.nonce(), packet.part());
                if part == Part::Whole {
                    joined.extend_from_slice(packet.payload());
                } else if !joiner.join(handle, nonce, part, packet.payload(), NOW.instant, &mut joined) {
                    return;
                }
                let Some(Message::Data { to: 2, number, .. }) = Message::decode(&joined) else { panic!("a message") };
                opened.push(other.opening_key().open(number, &mut joined[DATA..]).unwrap().to_vec());
            })
            .unwrap();
        }
        assert!(nonces.windows(2).all(|two| two[1] == two[0] + 1) && nonces.len() == 10, "{nonces:?}");
        let expected = (0..3).map(|index| {
            let mut segment = Vec::new();
            segments.append(index, &mut segment);
            segment
        });
        let expected: Vec<Vec<u8>> = expected.collect();
        assert_eq!(opened, [&expected[..], &expected[..]].concat());
    }
}
