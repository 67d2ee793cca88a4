//! What probes and counts say of a path: how much is lost, how large packets may be, and whether data pass as probes do.
//!
//! Probes test what data do. Some go by the handle as data do, some are as large as data may be, and answers say how many data packets
//! came. A node that passes only what looks like a probe is found out by that.

use std::time::Duration;

use wayleave_core::Instant;
use wayleave_packet::icing::mint::Form;

/// Times in a row that probes on a path stay unanswered until it is dead, until one is answered: of one on which nothing else is lost.
pub const MOST_UNANSWERED: u8 = 3;
/// The same of a path that loses half of its packets, or more.
const MOST_UNANSWERED_WITH_LOSS: u8 = 6;
/// Probes at a time once one is unanswered: what is lost now and then is not dead.
pub(super) const PROBES_IN_DOUBT: u8 = 3;
/// A path that lives is taken for dead, or a fault is seen where there is none, no more often than this.
const FALSE_DEATH: f64 = 1e-4;
/// Probes of one kind in a row whose loss is a fault, at most.
const MOST_LOST: u8 = 14;
/// Plain probes whose fate is remembered, and as many answered ones are supposed before the first.
const HISTORY: u32 = 32;
const SUPPOSED: u32 = 8;
/// Data packets of a window in which next to none, one of so many, arrived; twice in a row is a fault.
const WINDOW: u64 = 32;
const DEAF: u8 = 2;
/// Loss is that of the last packets: of this many to twice as many, or in this time to twice the time.
const MEASURED: u64 = 2048;
const MEASURED_FOR: Duration = Duration::from_secs(30);
/// Fewer packets tell nothing of loss.
const FEWEST: u64 = 32;
/// Octets of packets that are tried where the largest do not pass.
const SIZES: [u16; 10] = [576, 800, 1_000, 1_200, 1_280, 1_352, 1_412, 1_452, 4_352, 8_952];
/// Rounds of a search.
const ROUNDS: u8 = 3;
/// A path with a fault is tried again after this long: as wide as its nodes say, and with data.
pub const RETRIED: Duration = Duration::from_secs(300);

/// A probe that may still be answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Probe {
    pub(super) number: u32,
    pub(super) form: Form,
    /// Octets of its packet, if it is padded.
    pub(super) size: Option<u16>,
    /// It searches for a size: that it is lost is no fault.
    pub(super) is_search: bool,
    /// Data packets that had been sent on the path.
    pub(super) sent: u64,
    pub(super) at: Instant,
}

impl Probe {
    /// It says whether the path is alive, and nothing else.
    fn is_plain(&self) -> bool {
        self.form == Form::Path && self.size.is_none()
    }
}

/// What was sent and what arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Count {
    sent: u64,
    arrived: u64,
}

impl Count {
    fn add(&mut self, sent: u64, arrived: u64) {
        self.sent = self.sent.saturating_add(sent);
        self.arrived = self.arrived.saturating_add(arrived);
    }
}

/// The share of packets that are lost, over the last of them.
#[derive(Clone, Debug)]
pub(super) struct Loss {
    /// Both ends' counts at the last probe.
    last: Option<Count>,
    before: Count,
    current: Count,
    since: Instant,
}

impl Default for Loss {
    fn default() -> Self {
        Self { last: None, before: Count::default(), current: Count::default(), since: Instant(0) }
    }
}

impl Loss {
    /// Takes both ends' counts; returns what was sent and has arrived since the last ones. An end that counts anew has no last ones.
    pub(super) fn note(&mut self, sent: u64, received: u64, now: Instant) -> Option<Count> {
        let last = self.last.replace(Count { sent, arrived: received })?;
        let (sent, arrived) = (sent.checked_sub(last.sent)?, received.checked_sub(last.arrived)?);
        if self.current.sent >= MEASURED || now.since(self.since) >= MEASURED_FOR {
            (self.before, self.current, self.since) = (std::mem::take(&mut self.current), Count::default(), now);
        }
        // What came out of order was counted as lost.
        self.current.add(sent, arrived);
        Some(Count { sent, arrived })
    }

    /// Another count of packets begins.
    fn rebase(&mut self) {
        self.last = None;
    }

    /// Millionths of the packets.
    pub(super) fn ppm(&self) -> Option<u32> {
        let mut all = self.before;
        all.add(self.current.sent, self.current.arrived);
        let lost = u128::from(all.sent.saturating_sub(all.arrived)) * 1_000_000;
        (all.sent >= FEWEST).then(|| (lost / u128::from(all.sent)) as u32) // at most a million
    }
}

/// A search for the largest size that passes.
#[derive(Clone, Copy, Debug, Default)]
struct Search {
    best: Option<u16>,
    rounds: u8,
    /// Nothing is known to be lost.
    is_upward: bool,
}

/// What is known of a path. Later proofs of it go on with that.
#[derive(Clone, Debug, Default)]
pub(super) struct Quality {
    /// Of the last plain probes: ones for those that were lost.
    history: u32,
    seen: u32,
    pub(super) loss: Loss,
    /// Probes in a row by the handle that stayed unanswered, though one with the path was answered after each.
    handles_lost: u8,
    /// The same of large ones, where small ones were answered.
    large_lost: u8,
    /// Octets of the largest packet that passes, if that is less than the nodes say.
    size: Option<u16>,
    search: Option<Search>,
    retry: Option<Instant>,
    window: Count,
    deaf: u8,
    /// Until when the path is not believed to carry data.
    distrusted: Option<Instant>,
}

impl Quality {
    /// Octets of the largest packet that passes, on a path for `mtu`.
    pub(super) fn size(&self, mtu: u16) -> u16 {
        self.size.map_or(mtu, |size| size.min(mtu))
    }

    /// The share of plain probes that are lost.
    fn share(&self) -> f64 {
        f64::from(self.history.count_ones()) / f64::from(self.seen.min(HISTORY) + SUPPOSED)
    }

    /// So many probes of one kind in a row are not lost by chance, unless very seldom.
    fn most_lost(&self) -> u8 {
        let share = self.share();
        let is_seldom = |count: &u8| share.powi(i32::from(*count)) < FALSE_DEATH;
        (MOST_UNANSWERED..MOST_LOST).find(is_seldom).unwrap_or(MOST_LOST)
    }

    /// So many times in a row all probes stay unanswered on a path that is dead.
    pub(super) fn most_unanswered(&self) -> u8 {
        // A path that loses most data has another fault.
        let of_data = self.loss.ppm().filter(|ppm| *ppm < 500_000).map_or(0.0, |ppm| f64::from(ppm) / 1e6);
        let share = self.share().max(of_data);
        let is_seldom = |count: &u8| share.powi(1 + i32::from((count - 1) * PROBES_IN_DOUBT)) < FALSE_DEATH;
        (MOST_UNANSWERED..MOST_UNANSWERED_WITH_LOSS).find(is_seldom).unwrap_or(MOST_UNANSWERED_WITH_LOSS)
    }

    /// Nodes pass no packets with the handle alone.
    pub(super) fn needs_path(&self) -> bool {
        self.handles_lost >= self.most_lost()
    }

    /// Data do not pass, though probes do.
    pub(super) fn is_faulty(&self, now: Instant) -> bool {
        self.needs_path() || self.distrusted.is_some_and(|until| now < until)
    }

    /// Some kind of probe was lost, and the next ones tell whether that was chance.
    pub(super) fn is_in_doubt(&self) -> bool {
        let most = self.most_lost();
        let is_doubtful = |lost: u8| (1..most).contains(&lost);
        is_doubtful(self.handles_lost) || is_doubtful(self.large_lost) || self.search.is_some()
    }

    /// The sizes of packets that are to be tried now, on a path for `mtu`, beside the next probe.
    pub(super) fn sizes(&mut self, mtu: u16, now: Instant) -> Vec<u16> {
        if self.search.is_none() {
            let is_lost = self.large_lost >= self.most_lost();
            if !is_lost && self.retry.is_none_or(|retry| now < retry) {
                return Vec::new();
            }
            (self.large_lost, self.retry) = (0, None);
            self.search = Some(Search { is_upward: !is_lost, ..Search::default() });
        }
        let Some(search) = &mut self.search else { return Vec::new() };
        let is_less = |size: u16| (size < mtu).then_some(size);
        // A host that is told of a size does not ask for a larger one for minutes: only what a whole round has told counts.
        if let (Some(best), false) = (search.best, search.is_upward) {
            self.size = is_less(best);
        }
        if search.rounds < ROUNDS && search.best.is_none_or(|best| best < mtu) {
            search.rounds += 1;
            let best = search.best.unwrap_or(0);
            return SIZES.into_iter().filter(|size| *size < mtu).chain([mtu]).filter(|size| *size > best).collect();
        }
        match search.best {
            Some(best) => {
                self.size = is_less(best);
                self.distrusted = None;
                self.retry = self.size.map(|_| now + RETRIED);
            }
            None => (self.distrusted, self.retry) = (Some(now + RETRIED), Some(now + RETRIED)),
        }
        self.search = None;
        Vec::new()
    }

    /// A probe was answered, and those of `lost`, which left before it, were not.
    pub(super) fn answered(&mut self, probe: &Probe, lost: &[Probe]) {
        for other in lost.iter().filter(|other| !other.is_search) {
            if probe.form == Form::Path && other.form == Form::Handle {
                self.handles_lost = self.handles_lost.saturating_add(1);
            }
            if probe.size.is_none() && other.size.is_some() && self.search.is_none() {
                self.large_lost = self.large_lost.saturating_add(1);
            }
            if other.is_plain() {
                self.remember(true);
            }
        }
        if probe.form == Form::Handle {
            self.handles_lost = 0;
        }
        if probe.is_plain() {
            self.remember(false);
        }
        match &mut self.search {
            Some(search) => search.best = search.best.max(probe.size),
            None if probe.size.is_some() => self.large_lost = 0,
            None => {}
        }
    }

    fn remember(&mut self, is_lost: bool) {
        self.history = self.history << 1 | u32::from(is_lost);
        self.seen = self.seen.saturating_add(1);
    }

    /// Takes both ends' counts of data packets, as they were when a probe passed.
    pub(super) fn counted(&mut self, sent: u64, received: u64, now: Instant) {
        let Some(count) = self.loss.note(sent, received, now) else { return };
        self.window.add(count.sent, count.arrived);
        if self.window.sent < WINDOW {
            return;
        }
        let window = std::mem::take(&mut self.window);
        if window.arrived.saturating_mul(WINDOW) > window.sent {
            // Data pass, whatever else is wrong.
            (self.deaf, self.distrusted) = (0, None);
            return;
        }
        self.deaf = (self.deaf + 1).min(DEAF);
        if self.deaf == DEAF {
            self.distrusted = Some(now + RETRIED);
        }
    }

    /// Nothing was answered for a while: what was lost meanwhile tells nothing of a path that is alive.
    pub(super) fn restart(&mut self) {
        self.loss.rebase();
        self.window = Count::default();
    }

    /// The same path by other proofs, whose packets are counted by themselves.
    pub(super) fn inherit(&self) -> Self {
        let mut next = self.clone();
        next.loss.rebase();
        next
    }
}
