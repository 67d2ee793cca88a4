//! Signed reports of how many packets of a path arrived here, from which others find where packets vanish, and where sealed payloads are
//! replaced by others.
//!
//! Packets are counted by the second that their sender wrote into them, 16 seconds to a window: so the same packets are in the
//! same window at every node, whenever they arrive. Only verified packets count, and once each where replays are dropped.

use std::collections::BTreeMap;

use wayleave_core::UnixTime;
use wayleave_crypto::sign::{BadSignature, Signature, SigningKey, VerifyingKey};
use wayleave_packet::icing::header::{HANDLE, Handle};
use wayleave_packet::icing::verify::MAX_FRESHNESS;

/// A window has `2^4` seconds.
pub const WINDOW: u32 = 4;
/// Windows that are kept of each path.
const KEPT: usize = 8;
/// Faulty packets of which copies are told.
const FAULTY: usize = 8;
/// Octets of a signature.
const SIGNATURE: usize = 64;
/// So many of the last closed windows are certainly kept, although a packet's time may be ahead of the node's.
pub const REPORTED: u32 = 3;
/// Of a report of a whole window without samples, and of any other one.
const LABEL: &str = "wayleave/icing/report/v1";
const LABEL_OF_SAMPLES: &str = "wayleave/icing/report/v2";

/// What arrived in one window.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Count {
    pub packets: u64,
    /// Of the packets' payloads.
    pub octets: u64,
    /// Of the packets, those with a sealed payload whose hash the sender's proof for this node covered.
    pub samples: u64,
    /// Samples that were dropped because that proof was wrong: the payload was another than the sender's, or the verifier was. They count
    /// nowhere else, as the next ones.
    pub failed: u64,
    /// Packets of the sealed profile that are no samples and were dropped for their verifier: another payload in the place of the middle of a
    /// whole one does not do that.
    pub spoiled: u64,
}

impl Count {
    /// Packets that came, those that were dropped among them.
    fn came(&self) -> u64 {
        self.packets.saturating_add(self.failed).saturating_add(self.spoiled)
    }

    /// Both together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            packets: self.packets.saturating_add(other.packets),
            octets: self.octets.saturating_add(other.octets),
            samples: self.samples.saturating_add(other.samples),
            failed: self.failed.saturating_add(other.failed),
            spoiled: self.spoiled.saturating_add(other.spoiled),
        }
    }
}

/// The last windows of one path at one node.
#[derive(Clone, Debug)]
pub(super) struct Windows {
    /// The second at which counting began.
    since: u32,
    counts: [(u32, Count); KEPT],
    /// Nonces of the last packets that were dropped for their verifier, the oldest at `place`: these have not passed the replay filter, and
    /// a copy of one counts once.
    faulty: [u64; FAULTY],
    place: usize,
}

impl Windows {
    /// Counting begins at `now`.
    pub(super) fn new(now: UnixTime) -> Self {
        Self { since: now.secs() as u32, counts: [(0, Count::default()); KEPT], faulty: [0; FAULTY], place: 0 }
    }

    #[inline]
    pub(super) fn add(&mut self, seconds: u32, octets: usize, is_sample: bool) {
        let count = self.at(seconds);
        count.packets += 1;
        count.octets += octets as u64;
        count.samples += u64::from(is_sample);
    }

    /// The packet of this nonce was dropped for its verifier.
    pub(super) fn add_fault(&mut self, nonce: u64, is_sample: bool) {
        if self.faulty.contains(&nonce) {
            return;
        }
        self.faulty[self.place] = nonce;
        self.place = (self.place + 1) % FAULTY;
        let count = self.at((nonce >> 32) as u32);
        count.failed += u64::from(is_sample);
        count.spoiled += u64::from(!is_sample);
    }

    #[inline]
    fn at(&mut self, seconds: u32) -> &mut Count {
        let number = seconds >> WINDOW;
        let (window, count) = &mut self.counts[number as usize % KEPT];
        if *window != number {
            (*window, *count) = (number, Count::default());
        }
        count
    }

    /// What arrived in window `number`, and whether it was counted from its beginning.
    pub(super) fn of(&self, number: u32) -> (Count, bool) {
        // A packet's time may be ahead of the node's, by less than this.
        let begin = (number << WINDOW).wrapping_sub(MAX_FRESHNESS);
        let is_whole = begin.wrapping_sub(self.since).cast_signed() >= 0;
        let (window, count) = self.counts[number as usize % KEPT];
        (if window == number { count } else { Count::default() }, is_whole)
    }
}

/// The last window of which no more packets can come at `now`.
#[must_use]
pub fn closed(now: UnixTime) -> u32 {
    (now.secs() as u32).wrapping_sub(MAX_FRESHNESS + (1 << WINDOW)) >> WINDOW
}

/// A node's report of one window of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Report {
    /// Stands for the path.
    pub handle: Handle,
    /// The node's index on the path.
    pub index: u8,
    /// Unix seconds shifted right by [`WINDOW`].
    pub window: u32,
    /// Counted from the window's beginning. Of a part samples that failed say as much, and the number of packets nothing.
    pub is_whole: bool,
    pub count: Count,
}

impl Report {
    /// Octets of the longest signed report: handle, index, window, packets, octets, samples, failed, spoiled, whole, signature.
    pub const MAX: usize = Self::FIELDS_WITH_SAMPLES + SIGNATURE;
    const FIELDS: usize = HANDLE + 1 + 4 + 8 + 8;
    const FIELDS_WITH_SAMPLES: usize = Self::FIELDS + 8 + 8 + 8 + 1;

    /// Whether it is on a whole window without samples.
    fn is_short(&self) -> bool {
        let Count { samples, failed, spoiled, .. } = self.count;
        self.is_whole && [samples, failed, spoiled] == [0; 3]
    }

    /// The report under the node's long-term key; of a whole window without samples it is the shorter one.
    #[must_use]
    pub fn sign(&self, identity: &SigningKey) -> Vec<u8> {
        let Count { packets, octets, samples, failed, spoiled } = self.count;
        let mut out = self.handle.0.to_vec();
        out.push(self.index);
        out.extend(self.window.to_be_bytes());
        out.extend([packets, octets].map(u64::to_be_bytes).as_flattened());
        let mut label = LABEL;
        if !self.is_short() {
            out.extend([samples, failed, spoiled].map(u64::to_be_bytes).as_flattened());
            out.push(self.is_whole.into());
            label = LABEL_OF_SAMPLES;
        }
        let signature = identity.sign(label, &out);
        out.extend(signature);
        out
    }

    /// The report of the node whose long-term key is `identity`.
    ///
    /// # Errors
    /// If the signature is not that of this key, or the octets are no report.
    pub fn verify(octets: &[u8], identity: &VerifyingKey) -> Result<Self, BadSignature> {
        let (signed, signature) = octets.split_last_chunk::<SIGNATURE>().ok_or(BadSignature)?;
        let label = match signed.len() {
            Self::FIELDS => LABEL,
            Self::FIELDS_WITH_SAMPLES => LABEL_OF_SAMPLES,
            _ => return Err(BadSignature),
        };
        let signature: &Signature = signature;
        identity.verify(label, signed, signature)?;
        let mut fields = [0; Self::FIELDS_WITH_SAMPLES];
        fields[..signed.len()].copy_from_slice(signed);
        let long = |at: usize| u64::from_be_bytes(std::array::from_fn(|n| fields[at + n]));
        let is_whole = match (label, fields[61]) {
            (LABEL, _) | (_, 1) => true,
            (_, 0) => false,
            _ => return Err(BadSignature),
        };
        let report = Self {
            handle: Handle(std::array::from_fn(|n| fields[n])),
            index: fields[16],
            window: u32::from_be_bytes(std::array::from_fn(|n| fields[17 + n])),
            is_whole,
            count: Count {
                packets: long(21),
                octets: long(29),
                samples: long(37),
                failed: long(45),
                spoiled: long(53),
            },
        };
        // Each has one encoding.
        if report.is_short() == (label == LABEL) { Ok(report) } else { Err(BadSignature) }
    }
}

/// Packets that vanished between two nodes of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Loss {
    /// The last node that had them; 0 is the sender.
    pub from: u8,
    /// The first node behind it that reports, and did not have them.
    pub to: u8,
    pub packets: u64,
}

/// Where packets of one window of one path vanished, by what the sender sent and what nodes report that counted the whole window. What a node
/// dropped for its verifier came to it: it is in [`Wrong`]. A false report moves a loss only between the two places next to the node that
/// made it.
#[must_use]
pub fn locate(sent: u64, reports: &[Report]) -> Vec<Loss> {
    let mut whole: Vec<&Report> = reports.iter().filter(|report| report.is_whole).collect();
    whole.sort_unstable_by_key(|report| report.index);
    let mut before = (0, sent);
    let mut losses = Vec::new();
    for Report { index, count, .. } in whole {
        if count.came() < before.1 {
            losses.push(Loss { from: before.0, to: *index, packets: before.1 - count.came() });
        }
        before = (*index, count.packets);
    }
    losses
}

/// Sealed payloads were replaced between two nodes of a path, or by one of them, or by the sender together with a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Replaced {
    /// The last node in front of `to` that passed at least as much as `to` did in each window with a fault, and found none; 0 is the sender.
    pub from: u8,
    /// The first node whose samples failed.
    pub to: u8,
    /// How many. Had payloads been replaced in front of `from`, each of these was as likely to fail at `from` first: that is so with a chance of
    /// one in `2^failed`.
    pub failed: u64,
}

/// Packets were dropped for their verifiers on the way to a node: the sender, or any node in front, spoiled these, or what nodes cover of every
/// packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spoiled {
    pub at: u8,
    /// Samples that failed, and other packets.
    pub failed: u64,
    pub spoiled: u64,
}

/// What is wrong with sealed packets of one path.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Wrong {
    pub replaced: Option<Replaced>,
    /// By node, in their order.
    pub spoiled: Vec<Spoiled>,
}

/// Fewer samples name nobody: a node that spoils a single verifier hits a sample's with a chance of one in 64.
const LEAST_FAILED: u64 = 3;

/// Where payloads of one path were replaced first, and whose verifiers were spoiled, by what nodes report of any windows.
///
/// Who spoils verifiers of a node behind it, without replacing anything, cannot tell samples from other packets, but for the sender: of 64 that
/// it spoils one is a sample's. So a place is found only where no node up to it has dropped others. Behind it samples fail too, until the
/// payloads are put back. A false report moves the place only to one next to the node that made it; a sender that spoils the verifiers of
/// samples alone makes any place look like this one.
#[must_use]
pub fn wrong(reports: &[Report]) -> Wrong {
    let mut nodes: BTreeMap<u8, Count> = BTreeMap::new();
    let mut windows: BTreeMap<(u8, u32), Count> = BTreeMap::new();
    for Report { index, window, count, .. } in reports {
        let known = nodes.entry(*index).or_default();
        *known = known.and(*count);
        windows.insert((*index, *window), *count);
    }
    let first = nodes.iter().find(|(_, count)| count.failed > 0 || count.spoiled > 0);
    let replaced = first.filter(|(_, count)| count.spoiled == 0 && count.failed >= LEAST_FAILED).map(|(to, count)| {
        let faulty: Vec<(u32, Count)> = windows
            .range((*to, 0)..=(*to, u32::MAX))
            .filter(|(_, count)| count.failed > 0)
            .map(|((_, window), count)| (*window, *count))
            .collect();
        // Whoever does not report one of these windows, or forgot a part of what it counted, may not know of what failed. What failed may have
        // come once more, and passed.
        let passed_all = |front: u8| {
            let passed = |window: u32| windows.get(&(front, window)).map_or(0, |count| count.packets);
            faulty
                .iter()
                .all(|(window, count)| windows.contains_key(&(front, *window)) && passed(*window) >= count.packets)
        };
        let from = nodes.range(..to).rev().map(|(front, _)| *front).find(|front| passed_all(*front));
        Replaced { from: from.unwrap_or(0), to: *to, failed: count.failed }
    });
    let spoiled = nodes.iter().filter(|(_, count)| count.spoiled > 0);
    let spoiled = spoiled.map(|(at, count)| Spoiled { at: *at, failed: count.failed, spoiled: count.spoiled });
    Wrong { replaced, spoiled: spoiled.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wayleave_crypto::secret::Seed;

    #[test]
    fn a_report_holds_under_its_nodes_signature_alone() {
        let identity = SigningKey::from_seed(&Seed::new([4; 32]));
        let count = Count { packets: 1_000, octets: 64_000, ..Count::default() };
        for (count, length) in
            [(count, Report::MAX - 25), (Count { samples: 14, failed: 2, spoiled: 1, ..count }, Report::MAX)]
        {
            let report = Report { handle: Handle([9; 16]), index: 3, window: 112_500_000, is_whole: true, count };
            let signed = report.sign(&identity);
            assert_eq!(signed.len(), length);
            assert_eq!(Report::verify(&signed, &identity.verifying_key()), Ok(report));
            for bit in 0..8 * signed.len() {
                let mut other = signed.clone();
                other[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(Report::verify(&other, &identity.verifying_key()), Err(BadSignature), "bit {bit}");
            }
            assert!((0..length).all(|cut| Report::verify(&signed[..cut], &identity.verifying_key()).is_err()));
            let part = Report { is_whole: false, ..report };
            let signed = part.sign(&identity);
            assert_eq!((signed.len(), Report::verify(&signed, &identity.verifying_key())), (Report::MAX, Ok(part)));
        }
    }

    #[test]
    fn a_report_has_one_encoding() {
        let identity = SigningKey::from_seed(&Seed::new([4; 32]));
        let signed = |fields: &[u8]| [fields, &identity.sign(LABEL_OF_SAMPLES, fields)].concat();
        let verify = |fields: &[u8]| Report::verify(&signed(fields), &identity.verifying_key());
        let mut fields = [0; Report::FIELDS_WITH_SAMPLES];
        assert!(verify(&fields).is_ok(), "of a part of a window");
        // A whole one without samples is the shorter report.
        fields[61] = 1;
        assert_eq!(verify(&fields), Err(BadSignature));
        fields[44] = 1;
        assert!(verify(&fields).is_ok(), "with a sample");
        fields[61] = 2;
        assert_eq!(verify(&fields), Err(BadSignature));
    }

    /// `test-data/wire/icing.json`, where reports are made octet by octet, apart from this.
    #[test]
    fn the_published_reports_are_what_is_signed() {
        let text = include_str!("../../../../test-data/wire/icing.json");
        let published: serde_json::Value = serde_json::from_str(text).unwrap();
        let octets = |value: &serde_json::Value| -> Vec<u8> {
            let pairs = value.as_str().unwrap().as_bytes().chunks(2);
            pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
        };
        let reports = published["reports"].as_array().unwrap();
        assert_eq!(reports.len(), 4);
        for entry in reports {
            let number = |name: &str| entry[name].as_u64().unwrap();
            let report = Report {
                handle: Handle(octets(&entry["handle"]).try_into().unwrap()),
                index: number("index") as u8,
                window: number("window") as u32,
                is_whole: entry["whole"].as_bool().unwrap(),
                count: Count {
                    packets: number("packets"),
                    octets: number("octets"),
                    samples: number("samples"),
                    failed: number("failed"),
                    spoiled: number("spoiled"),
                },
            };
            let identity = SigningKey::from_seed(&Seed::new(octets(&entry["identity_seed"]).try_into().unwrap()));
            let signed = octets(&entry["signed"]);
            assert_eq!(report.sign(&identity), signed);
            assert_eq!(Report::verify(&signed, &identity.verifying_key()), Ok(report));
        }
    }

    #[test]
    fn windows_that_are_reported_are_not_overwritten_yet() {
        for second in 10_000..10_100u32 {
            let mut windows = Windows::new(UnixTime(0));
            (second - 200..=second + MAX_FRESHNESS).for_each(|stamped| windows.add(stamped, 1, false));
            let last = closed(UnixTime(u64::from(second) * 1_000_000));
            let whole = (Count { packets: 16, octets: 16, ..Count::default() }, true);
            assert!((0..REPORTED).all(|before| windows.of(last - before) == whole), "{second}");
        }
    }

    #[test]
    fn a_window_that_was_not_counted_from_its_beginning_says_so() {
        let at = |secs: u64| UnixTime(secs * 1_000_000);
        let mut windows = Windows::new(at(1_600));
        windows.add(1_601, 100, true);
        let nonce = |secs: u64, number: u64| secs << 32 | number;
        windows.add_fault(nonce(1_602, 1), true);
        windows.add(1_640, 100, false);
        windows.add(1_647, 60, true);
        // A copy is no other one.
        for number in [1, 1, 2, 1, 2] {
            windows.add_fault(nonce(1_646, number), number == 1);
        }
        let part = Count { packets: 1, octets: 100, samples: 1, failed: 1, spoiled: 0 };
        assert_eq!(windows.of(1_600 >> WINDOW), (part, false));
        assert_eq!(windows.of(1_616 >> WINDOW), (Count::default(), true));
        let whole = Count { packets: 2, octets: 160, samples: 1, failed: 1, spoiled: 1 };
        assert_eq!(windows.of(1_632 >> WINDOW), (whole, true));
        assert_eq!(windows.of(1_648 >> WINDOW), (Count::default(), true));
        assert_eq!(closed(at(1_652)), 1_616 >> WINDOW);
        assert_eq!(closed(at(1_653)), 1_632 >> WINDOW);
    }

    fn reports(counts: &[(u64, u64, u64)]) -> Vec<Report> {
        let report = |(index, &(packets, failed, spoiled)): (u8, &(u64, u64, u64))| {
            let count = Count { packets, samples: 15, failed, spoiled, ..Count::default() };
            Report { handle: Handle([9; 16]), index, window: 1, is_whole: true, count }
        };
        (1..).zip(counts).map(report).collect()
    }

    #[test]
    fn a_node_whose_verifiers_are_spoiled_frames_nobody() {
        let place = |counts: &[(u64, u64, u64)]| wrong(&reports(counts)).replaced.map(|place| (place.from, place.to));
        assert_eq!(place(&[(900, 0, 0), (900, 0, 0), (900, 0, 0)]), None);
        assert_eq!(place(&[(900, 0, 0), (891, 9, 0), (891, 0, 0)]), Some((1, 2)));
        // Node 1 spoils the verifiers of node 3: nodes 2 and 3 did nothing. Nor is it they that lose the packets.
        let spoiling = reports(&[(6_400, 0, 0), (6_400, 0, 0), (0, 100, 6_300)]);
        let spoiled = vec![Spoiled { at: 3, failed: 100, spoiled: 6_300 }];
        assert_eq!(wrong(&spoiling), Wrong { replaced: None, spoiled });
        assert_eq!(locate(6_400, &spoiling), []);
        // However few, and however lucky: at once, and in many windows.
        for (failed, spoiled) in [(1, 0), (2, 0), (7, 127), (20, 1)] {
            assert_eq!(place(&[(900, 0, 0), (900, 0, 0), (700, failed, spoiled)]), None);
        }
        let of = |(window, failed, spoiled)| {
            let all = reports(&[(100, 0, 0), (100, 0, 0), (99, failed, spoiled)]);
            all.into_iter().map(move |report| Report { window, ..report })
        };
        let many: Vec<Report> =
            (0..64).map(|window| (window, u64::from(window < 5), u64::from(window >= 5))).flat_map(of).collect();
        assert_eq!(wrong(&many).replaced, None);
        // It replaces payloads, and spoils what would tell that at node 2: it stays among those that may have done so.
        assert_eq!(place(&[(900, 0, 0), (800, 20, 80), (788, 12, 0)]), None);
    }

    #[test]
    fn a_node_that_forgot_what_it_counted_does_not_move_the_place_behind_it() {
        // Node 1 replaced, node 2 knows only of what came after its restart, and of nothing that failed.
        let counted = reports(&[(900, 0, 0), (400, 0, 0), (891, 9, 0)]);
        assert_eq!(wrong(&counted).replaced, Some(Replaced { from: 1, to: 3, failed: 9 }));
    }

    #[test]
    fn a_node_that_does_not_report_the_window_of_a_fault_says_nothing_of_it() {
        let of = |index, windows: std::ops::Range<u32>, failed: u64| {
            windows.map(move |window| {
                let failed = if window == 103 { failed } else { 0 };
                let count = Count { packets: 900 - failed, samples: 15, failed, ..Count::default() };
                Report { handle: Handle([9; 16]), index, window, is_whole: true, count }
            })
        };
        // The files are of different times: node 1 may have had the faults of window 103 as well.
        let all: Vec<Report> = of(1, 100..103, 0).chain(of(2, 101..104, 9)).collect();
        assert_eq!(wrong(&all).replaced, Some(Replaced { from: 0, to: 2, failed: 9 }));
        let all: Vec<Report> = of(1, 101..104, 0).chain(of(2, 101..104, 9)).collect();
        assert_eq!(wrong(&all).replaced, Some(Replaced { from: 1, to: 2, failed: 9 }));
    }
}
