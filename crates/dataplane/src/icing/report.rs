//! Signed reports of how many packets of a path arrived here, from which others find where packets vanish, and where sealed payloads are
//! replaced by others.
//!
//! Packets are counted by the second that their sender wrote into them, 16 seconds to a window: so the same packets are in the
//! same window at every node, whenever they arrive. Only verified packets count, and once each where replays are dropped.

use wayleave_core::UnixTime;
use wayleave_crypto::sign::{BadSignature, Signature, SigningKey, VerifyingKey};
use wayleave_packet::icing::header::{HANDLE, Handle};
use wayleave_packet::icing::verify::MAX_FRESHNESS;

/// A window has `2^4` seconds.
pub const WINDOW: u32 = 4;
/// Windows that are kept of each path.
const KEPT: usize = 8;
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
    /// Other packets of the kind that were dropped for their verifier: a payload in its place does not do that.
    pub spoiled: u64,
}

impl Count {
    /// What two threads counted of the same packets.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            packets: self.packets + other.packets,
            octets: self.octets + other.octets,
            samples: self.samples + other.samples,
            failed: self.failed + other.failed,
            spoiled: self.spoiled + other.spoiled,
        }
    }
}

/// The last windows of one path at one node.
#[derive(Clone, Debug)]
pub(super) struct Windows {
    /// The second at which counting began.
    since: u32,
    counts: [(u32, Count); KEPT],
}

impl Windows {
    /// Counting begins at `now`.
    pub(super) fn new(now: UnixTime) -> Self {
        Self { since: now.secs() as u32, counts: [(0, Count::default()); KEPT] }
    }

    #[inline]
    pub(super) fn add(&mut self, seconds: u32, octets: usize, is_sample: bool) {
        let count = self.at(seconds);
        count.packets += 1;
        count.octets += octets as u64;
        count.samples += u64::from(is_sample);
    }

    /// A packet was dropped for its verifier.
    pub(super) fn add_fault(&mut self, seconds: u32, is_sample: bool) {
        let count = self.at(seconds);
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

    /// The report under the node's long-term key; of a whole window without samples it is the shorter one.
    #[must_use]
    pub fn sign(&self, identity: &SigningKey) -> Vec<u8> {
        let Count { packets, octets, samples, failed, spoiled } = self.count;
        let mut out = self.handle.0.to_vec();
        out.push(self.index);
        out.extend(self.window.to_be_bytes());
        out.extend([packets, octets].map(u64::to_be_bytes).as_flattened());
        let mut label = LABEL;
        if !self.is_whole || [samples, failed, spoiled] != [0; 3] {
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
        Ok(Self {
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
        })
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

/// Where packets of one window of one path vanished, by what the sender sent and what nodes report that counted the whole window. A false
/// report moves a loss only between the two places next to the node that made it.
#[must_use]
pub fn locate(sent: u64, reports: &[Report]) -> Vec<Loss> {
    let whole = reports.iter().filter(|report| report.is_whole);
    let mut by_index: Vec<(u8, u64)> = whole.map(|report| (report.index, report.count.packets)).collect();
    by_index.sort_unstable();
    let mut before = (0, sent);
    let mut losses = Vec::new();
    for (index, packets) in by_index {
        if packets < before.1 {
            losses.push(Loss { from: before.0, to: index, packets: before.1 - packets });
        }
        before = (index, packets);
    }
    losses
}

/// Sealed payloads were replaced between two nodes of a path, or by one of them, or by the sender together with a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Replaced {
    /// The last node that reports in front of the first one at which anything was wrong; 0 is the sender.
    pub from: u8,
    /// The first node at which more samples failed than its spoiled verifiers explain.
    pub to: u8,
    /// How many. Had payloads been replaced in front of a node in front of `from`, each of these was as likely to fail there first: that is so with a
    /// chance of one in `2^failed`.
    pub failed: u64,
}

/// Verifiers of a node were spoiled on the way to it: by the sender, or by any node in front. The sender alone knows which packets are samples,
/// so that of 64 verifiers that a node spoils one is a sample's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spoiled {
    pub at: u8,
    /// Samples that failed, and other packets that were dropped for their verifier.
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

/// Of 64 spoiled verifiers one is a sample's: half as many explain a sample that failed, and any explain a few. Too much explained is no harm:
/// who spoiled them is in front as well.
const SPOILED_EACH: u64 = 32;
const SPOILED_BY_CHANCE: u64 = 3;

/// Where payloads of one path were replaced first, and whose verifiers were spoiled, by what nodes report of the same time. Behind the first
/// place samples fail too, until the payloads are put back. A false report moves the place only to one next to the node that made it; a sender
/// that spoils the verifiers of samples alone makes any place look like this one.
#[must_use]
pub fn wrong(reports: &[Report]) -> Wrong {
    let mut by_index: Vec<(u8, Count)> = reports.iter().map(|report| (report.index, report.count)).collect();
    by_index.sort_unstable_by_key(|(index, _)| *index);
    let is_explained = |count: &Count| match count.spoiled {
        0 => count.failed == 0,
        spoiled => count.failed <= SPOILED_BY_CHANCE + spoiled / SPOILED_EACH,
    };
    let is_wrong = |count: &Count| count.failed > 0 || count.spoiled > 0;
    let from = by_index.iter().take_while(|(_, count)| !is_wrong(count)).last().map_or(0, |(index, _)| *index);
    let first = by_index.iter().find(|(_, count)| !is_explained(count));
    let spoiled = by_index.iter().filter(|(_, count)| count.spoiled > 0);
    Wrong {
        replaced: first.map(|(to, count)| Replaced { from, to: *to, failed: count.failed }),
        spoiled: spoiled.map(|(at, count)| Spoiled { at: *at, failed: count.failed, spoiled: count.spoiled }).collect(),
    }
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
        windows.add_fault(1_602, true);
        windows.add(1_640, 100, false);
        windows.add(1_647, 60, true);
        windows.add_fault(1_646, true);
        windows.add_fault(1_646, false);
        let part = Count { packets: 1, octets: 100, samples: 1, failed: 1, spoiled: 0 };
        assert_eq!(windows.of(1_600 >> WINDOW), (part, false));
        assert_eq!(windows.of(1_616 >> WINDOW), (Count::default(), true));
        let whole = Count { packets: 2, octets: 160, samples: 1, failed: 1, spoiled: 1 };
        assert_eq!(windows.of(1_632 >> WINDOW), (whole, true));
        assert_eq!(windows.of(1_648 >> WINDOW), (Count::default(), true));
        assert_eq!(closed(at(1_652)), 1_616 >> WINDOW);
        assert_eq!(closed(at(1_653)), 1_632 >> WINDOW);
    }

    fn wrong_of(counts: &[(u64, u64)]) -> Wrong {
        let report = |(index, &(failed, spoiled)): (u8, &(u64, u64))| {
            let count = Count { packets: 900, samples: 15, failed, spoiled, ..Count::default() };
            Report { handle: Handle([9; 16]), index, window: 1, is_whole: false, count }
        };
        wrong(&(1..).zip(counts).map(report).collect::<Vec<_>>())
    }

    #[test]
    fn a_node_whose_verifiers_are_spoiled_frames_nobody() {
        let place = |counts: &[(u64, u64)]| wrong_of(counts).replaced.map(|place| (place.from, place.to));
        assert_eq!(place(&[(0, 0), (0, 0), (0, 0)]), None);
        assert_eq!(place(&[(0, 0), (9, 0), (0, 0)]), Some((1, 2)));
        // Node 1 spoils the verifiers of node 3: nodes 2 and 3 did nothing.
        assert_eq!(place(&[(0, 0), (0, 0), (100, 6_300)]), None);
        assert_eq!(wrong_of(&[(0, 0), (0, 0), (100, 6_300)]).spoiled, [Spoiled { at: 3, failed: 100, spoiled: 6_300 }]);
        // It replaces payloads, and spoils what would tell that at node 2: it stays among those that may have done so.
        assert_eq!(place(&[(0, 0), (20, 1_000), (12, 0), (10, 0)]), Some((1, 3)));
        // A few spoiled ones explain little.
        assert_eq!(place(&[(0, 0), (20, 10), (0, 0)]), Some((1, 2)));
    }
}
