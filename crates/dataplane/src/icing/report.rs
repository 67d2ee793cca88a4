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
/// Of a report without samples, and of one with samples.
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
    /// Packets that were dropped because that proof was wrong: most likely the payload was another than the sender's. They count nowhere else.
    pub failed: u64,
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

    /// A sample was dropped.
    pub(super) fn add_failed(&mut self, seconds: u32) {
        self.at(seconds).failed += 1;
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

    /// What arrived in window `number`, if it was counted from its beginning.
    pub(super) fn of(&self, number: u32) -> Option<Count> {
        // A packet's time may be ahead of the node's, by less than this.
        let begin = (number << WINDOW).wrapping_sub(MAX_FRESHNESS);
        let is_whole = begin.wrapping_sub(self.since).cast_signed() >= 0;
        let (window, count) = self.counts[number as usize % KEPT];
        is_whole.then(|| if window == number { count } else { Count::default() })
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
    pub count: Count,
}

impl Report {
    /// Octets of the longest signed report: handle, index, window, packets, octets, samples, failed, signature.
    pub const MAX: usize = Self::FIELDS_WITH_SAMPLES + SIGNATURE;
    const FIELDS: usize = HANDLE + 1 + 4 + 8 + 8;
    const FIELDS_WITH_SAMPLES: usize = Self::FIELDS + 8 + 8;

    /// The report under the node's long-term key, with samples only if there were any.
    #[must_use]
    pub fn sign(&self, identity: &SigningKey) -> Vec<u8> {
        let Count { packets, octets, samples, failed } = self.count;
        let mut out = self.handle.0.to_vec();
        out.push(self.index);
        out.extend(self.window.to_be_bytes());
        out.extend([packets, octets].map(u64::to_be_bytes).as_flattened());
        let mut label = LABEL;
        if samples > 0 || failed > 0 {
            out.extend([samples, failed].map(u64::to_be_bytes).as_flattened());
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
        Ok(Self {
            handle: Handle(std::array::from_fn(|n| fields[n])),
            index: fields[16],
            window: u32::from_be_bytes(std::array::from_fn(|n| fields[17 + n])),
            count: Count { packets: long(21), octets: long(29), samples: long(37), failed: long(45) },
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

/// Where packets of one window of one path vanished, by what the sender sent and what nodes report. A false report moves a
/// loss only between the two places next to the node that made it.
#[must_use]
pub fn locate(sent: u64, reports: &[Report]) -> Vec<Loss> {
    let mut by_index: Vec<(u8, u64)> = reports.iter().map(|report| (report.index, report.count.packets)).collect();
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

/// Sealed payloads were replaced between two nodes of a path, or by one of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Replaced {
    /// The last node in front that reports; 0 is the sender.
    pub from: u8,
    /// The first node whose samples failed.
    pub to: u8,
    /// How many. Had payloads been replaced further in front, each of these was as likely to fail there first: the place is another with a
    /// chance of one in `2^failed`.
    pub failed: u64,
}

/// Where payloads of one window of one path were replaced first, by what nodes report; behind that place samples fail too, until the payloads are
/// put back. A false report moves the place only to one next to the node that made it.
#[must_use]
pub fn replaced(reports: &[Report]) -> Option<Replaced> {
    let mut by_index: Vec<(u8, u64)> = reports.iter().map(|report| (report.index, report.count.failed)).collect();
    by_index.sort_unstable();
    let (to, failed) = *by_index.iter().find(|(_, failed)| *failed > 0)?;
    let from = by_index.iter().map(|(index, _)| *index).take_while(|index| *index < to).last().unwrap_or(0);
    Some(Replaced { from, to, failed })
}

#[cfg(test)]
mod tests {
    use super::*;
    use wayleave_crypto::secret::Seed;

    #[test]
    fn a_report_holds_under_its_nodes_signature_alone() {
        let identity = SigningKey::from_seed(&Seed::new([4; 32]));
        let count = Count { packets: 1_000, octets: 64_000, ..Count::default() };
        for (count, length) in [(count, Report::MAX - 16), (Count { samples: 14, failed: 2, ..count }, Report::MAX)] {
            let report = Report { handle: Handle([9; 16]), index: 3, window: 112_500_000, count };
            let signed = report.sign(&identity);
            assert_eq!(signed.len(), length);
            assert_eq!(Report::verify(&signed, &identity.verifying_key()), Ok(report));
            for bit in 0..8 * signed.len() {
                let mut other = signed.clone();
                other[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(Report::verify(&other, &identity.verifying_key()), Err(BadSignature), "bit {bit}");
            }
            assert!((0..length).all(|cut| Report::verify(&signed[..cut], &identity.verifying_key()).is_err()));
        }
    }

    #[test]
    fn windows_that_are_reported_are_not_overwritten_yet() {
        for second in 10_000..10_100u32 {
            let mut windows = Windows::new(UnixTime(0));
            (second - 200..=second + MAX_FRESHNESS).for_each(|stamped| windows.add(stamped, 1, false));
            let last = closed(UnixTime(u64::from(second) * 1_000_000));
            let whole = Some(Count { packets: 16, octets: 16, ..Count::default() });
            assert!((0..REPORTED).all(|before| windows.of(last - before) == whole), "{second}");
        }
    }

    #[test]
    fn a_window_counts_whole_or_not_at_all() {
        let at = |secs: u64| UnixTime(secs * 1_000_000);
        let mut windows = Windows::new(at(1_600));
        windows.add(1_601, 100, true);
        windows.add(1_640, 100, false);
        windows.add(1_647, 60, true);
        windows.add_failed(1_646);
        assert_eq!(windows.of(1_600 >> WINDOW), None);
        assert_eq!(windows.of(1_616 >> WINDOW), Some(Count::default()));
        assert_eq!(windows.of(1_632 >> WINDOW), Some(Count { packets: 2, octets: 160, samples: 1, failed: 1 }));
        assert_eq!(windows.of(1_648 >> WINDOW), Some(Count::default()));
        assert_eq!(closed(at(1_652)), 1_616 >> WINDOW);
        assert_eq!(closed(at(1_653)), 1_632 >> WINDOW);
    }
}
