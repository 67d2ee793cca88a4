//! Flows: to whom they belong, by which name, and since when they are idle.
//!
//! A flow by name has no other record of the address by which its application knows the other end, so this table outlives what is
//! known of peers, changes of policies, and, by its records, the process. Flows last as RFC 5382 (TCP), RFC 4787 (UDP) and RFC 5508
//! (ICMP) ask of a translator.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use wayleave_core::{IdentityKey, Instant, Now};
use wayleave_packet::icing::header::Handle;

use super::inner::{Inner, TCP, is_icmp};
use super::keyed::Keyed;

/// Flows that this end's hosts began; as many again that peers began.
pub const LIMIT_FLOWS: usize = 1 << 15;
/// Of a full half so many make room at a time, since each search takes all of the table; who has more loses flows before others do.
const SHARE: usize = LIMIT_FLOWS / 16;
/// Records that are written at a time.
const BATCH: usize = 4096;
/// Expired flows are removed after this long at the latest while anything is in use.
const SWEEP: Duration = Duration::from_secs(60);
/// An established TCP connection (RFC 5382 REQ-5), and one that is opening or closing.
const ESTABLISHED: Duration = Duration::from_secs(7_440);
const TRANSITORY: Duration = Duration::from_secs(240);
/// UDP (RFC 4787 REQ-5), and what has no ports.
const DATAGRAMS: Duration = Duration::from_secs(300);
/// ICMP queries (RFC 5508 REQ-1).
const QUERIES: Duration = Duration::from_secs(60);
/// What has no end of its own gives way to another name once this end has sent nothing for so long. Two applications that send at
/// intervals below it (RFC 3948: 20 s) do not take the ports from each other.
const SILENT: Duration = Duration::from_secs(30);

/// A flow, by this end's addresses.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct FlowKey {
    pub(super) local: IpAddr,
    pub(super) remote: IpAddr,
    pub(super) protocol: u8,
    pub(super) ports: (u16, u16),
}

impl FlowKey {
    /// The flow of a packet on its way out to `remote`.
    pub(super) fn out(inner: &Inner, remote: IpAddr) -> Self {
        Self { local: inner.source, remote, protocol: inner.protocol, ports: inner.ports }
    }

    /// The flow of a packet on its way in.
    pub(super) fn within(inner: &Inner) -> Self {
        let ports = (inner.ports.1, inner.ports.0);
        Self { local: inner.destination, remote: inner.source, protocol: inner.protocol, ports }
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = vec![if self.local.is_ipv4() { 4 } else { 6 }, self.protocol];
        out.extend(self.ports.0.to_be_bytes());
        out.extend(self.ports.1.to_be_bytes());
        write_address(self.local, &mut out);
        write_address(self.remote, &mut out);
        out
    }

    fn decode(octets: &[u8]) -> Option<Self> {
        let (&[family, protocol, a, b, c, d], addresses) = octets.split_first_chunk::<6>()?;
        let (local, rest) = read_address(family, addresses)?;
        let (remote, []) = read_address(family, rest)? else { return None };
        let ports = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        Some(Self { local, remote, protocol, ports })
    }
}

fn write_address(address: IpAddr, out: &mut Vec<u8>) {
    match address {
        IpAddr::V4(v4) => out.extend(v4.octets()),
        IpAddr::V6(v6) => out.extend(v6.octets()),
    }
}

fn read_address(family: u8, octets: &[u8]) -> Option<(IpAddr, &[u8])> {
    match family {
        4 => octets.split_first_chunk::<4>().map(|(v4, rest)| ((*v4).into(), rest)),
        6 => octets.split_first_chunk::<16>().map(|(v6, rest)| ((*v6).into(), rest)),
        _ => None,
    }
}

/// The direction of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Direction {
    Out = 0,
    In = 1,
}

/// What has been seen of a flow: bits of both directions, the one of packets on their way in above the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Progress(u8);

impl Progress {
    /// A packet; of TCP one that acknowledges.
    const SEEN: u8 = 0b01;
    const ENDED: u8 = 0b100;
    const RESET: u8 = 0b1_0000;

    fn note(&mut self, direction: Direction, tcp_flags: Option<u8>) {
        const FIN: u8 = 1;
        const SYN: u8 = 2;
        const RST: u8 = 4;
        const ACK: u8 = 16;
        let shift = direction as u8;
        let Some(flags) = tcp_flags else {
            self.0 |= Self::SEEN << shift;
            return;
        };
        if flags & (SYN | ACK) == SYN && self.is_closed() {
            // Another connection between the same ports.
            *self = Self::default();
        }
        let seen = if flags & ACK == 0 || flags & RST != 0 { 0 } else { Self::SEEN << shift };
        if flags & (ACK | RST) == ACK {
            // RFC 7857 section 2.2: whoever goes on did not take the RST, which may have any sequence number.
            self.0 &= !Self::RESET;
        }
        let ended = if flags & FIN == 0 { 0 } else { Self::ENDED << shift };
        let reset = if flags & RST == 0 { 0 } else { Self::RESET };
        self.0 |= seen | ended | reset;
    }

    fn has_sent(self) -> bool {
        self.0 & Self::SEEN != 0
    }

    /// Both ends take part.
    fn is_answered(self) -> bool {
        self.0 & 0b11 == 0b11
    }

    /// TCP: reset, or both ends have said that they send no more.
    fn is_closed(self) -> bool {
        self.0 & Self::RESET != 0 || self.0 & 0b1100 == 0b1100
    }

    fn timeout(self, protocol: u8) -> Duration {
        match protocol {
            TCP if self.is_answered() && !self.is_closed() => ESTABLISHED,
            TCP => TRANSITORY,
            protocol if is_icmp(protocol) => QUERIES,
            _ => DATAGRAMS,
        }
    }
}

/// What is known of a flow.
pub(super) struct Flow {
    pub(super) peer: IdentityKey,
    /// The address of a name in the place of the remote one.
    pub(super) name: Option<IpAddr>,
    /// This end began it.
    pub(super) is_own: bool,
    /// The nodes over which the peer sends, reversed, if it began the flow.
    pub(super) mirror: Option<Arc<[IdentityKey]>>,
    /// The path of the last packet that came.
    pub(super) handle: Handle,
    progress: Progress,
    /// When this end last sent.
    sent: Instant,
    expires: Instant,
    /// Until when, in Unix seconds, the flow's record says that it lasts; none if it has no record.
    recorded: Option<u64>,
}

impl Flow {
    /// Whether this end has sent anything in it.
    pub(super) fn has_sent(&self) -> bool {
        self.is_own || self.progress.has_sent()
    }

    /// A flow that this end began, or that `peer` began on the path of `handle`.
    pub(super) fn new(peer: IdentityKey, name: Option<IpAddr>, handle: Option<Handle>) -> Self {
        Self {
            peer,
            name,
            is_own: handle.is_none(),
            mirror: None,
            handle: handle.unwrap_or(Handle([0; 16])),
            progress: Progress::default(),
            sent: Instant(0),
            expires: Instant(0),
            recorded: None,
        }
    }

    /// Whether the ports may serve another flow: it is closed, this end is silent under it (only TCP says when it ends), or the peer
    /// alone has sent, and nobody here asked for that.
    pub(super) fn gives_way(&self, protocol: u8, now: Instant) -> bool {
        let is_silent = protocol != TCP && now.since(self.sent) >= SILENT;
        self.progress.is_closed() || is_silent || !self.is_own && !self.progress.has_sent()
    }

    /// Since when it is idle.
    fn idle_since(&self, protocol: u8) -> Instant {
        self.expires.before(self.progress.timeout(protocol))
    }

    /// Until when, in Unix seconds, a record that is written now says that it lasts: half a timeout longer than it does, since the
    /// record is renewed once that much has passed.
    fn record_until(&self, protocol: u8, now: Now) -> u64 {
        let half = self.progress.timeout(protocol) / 2;
        now.unix.secs() + (self.expires + half).since(now.instant).as_secs()
    }

    /// Notes a packet of it. Returns whether its record is to be written: what lasts a few packets has none, and one that is renewed
    /// after half of its time costs little.
    pub(super) fn note(&mut self, protocol: u8, direction: Direction, tcp_flags: Option<u8>, now: Now) -> bool {
        if direction == Direction::Out {
            self.sent = now.instant;
        }
        let before = self.progress;
        self.progress.note(direction, tcp_flags);
        let timeout = self.progress.timeout(protocol);
        self.expires = now.instant + timeout;
        let is_due = |until| self.progress != before || until < now.unix.secs() + timeout.as_secs();
        self.name.is_some() && self.progress.is_answered() && self.recorded.is_none_or(is_due)
    }
}

/// A change of a flow's record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlowChange {
    pub key: Vec<u8>,
    /// `None` if the flow is over.
    pub value: Option<Vec<u8>>,
}

/// Who began flows, and bears their number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Payer {
    Host(IpAddr),
    Peer(IdentityKey),
}

impl Payer {
    fn of(key: &FlowKey, flow: &Flow) -> Self {
        if flow.is_own { Self::Host(key.local) } else { Self::Peer(flow.peer) }
    }
}

/// Which flows of a full half give way first; within a rank those that are idle for longest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Rank {
    /// Beyond its payer's [`SHARE`], and no established connection.
    Excess,
    /// Beyond that of a peer, and established: no peer can pass for many, as a host can by as many addresses.
    PeerExcess,
    Fleeting,
    EstablishedExcess,
    Established,
}

impl Rank {
    fn of(payer: Payer, is_established: bool, is_excess: bool) -> Self {
        match (is_excess, is_established) {
            (true, false) => Self::Excess,
            (true, true) if matches!(payer, Payer::Peer(_)) => Self::PeerExcess,
            (false, false) => Self::Fleeting,
            (true, true) => Self::EstablishedExcess,
            (false, true) => Self::Established,
        }
    }
}

/// The flows of all peers.
///
/// Half of the table is for flows that this end's hosts began, half for those that peers began. In a full half flows give way in the
/// order of [`Rank`].
pub(super) struct FlowTable {
    flows: HashMap<FlowKey, Flow, Keyed>,
    counts: HashMap<Payer, usize, Keyed>,
    /// Flows that hosts began, and that peers began.
    totals: [usize; 2],
    /// Flows whose records are not as they are.
    changed: HashSet<FlowKey, Keyed>,
    swept: Instant,
}

impl FlowTable {
    pub(super) fn new(keyed: &Keyed) -> Self {
        Self {
            flows: HashMap::with_hasher(keyed.clone()),
            counts: HashMap::with_hasher(keyed.clone()),
            totals: [0; 2],
            changed: HashSet::with_hasher(keyed.clone()),
            swept: Instant(0),
        }
    }

    /// A flow with `peer` that has not expired.
    pub(super) fn get(&mut self, key: &FlowKey, peer: &IdentityKey, now: Instant) -> Option<&mut Flow> {
        self.flows.get_mut(key).filter(|flow| flow.peer == *peer && now < flow.expires)
    }

    /// Notes a packet of a flow, which is there.
    pub(super) fn note(&mut self, key: &FlowKey, direction: Direction, tcp_flags: Option<u8>, now: Now) {
        let Some(flow) = self.flows.get_mut(key) else { return };
        if flow.note(key.protocol, direction, tcp_flags, now) && self.changed.len() < LIMIT_FLOWS {
            flow.recorded = Some(flow.record_until(key.protocol, now));
            self.changed.insert(*key);
        }
    }

    /// Adds a flow in the place of one with the same key. Returns how many others gave way.
    pub(super) fn insert(&mut self, key: FlowKey, mut flow: Flow, now: Instant) -> usize {
        self.remove(&key);
        let half = usize::from(!flow.is_own);
        let given_way = if self.totals[half] < LIMIT_FLOWS { 0 } else { self.make_room(half, now) };
        *self.counts.entry(Payer::of(&key, &flow)).or_default() += 1;
        self.totals[half] += 1;
        flow.expires = now + flow.progress.timeout(key.protocol);
        self.flows.insert(key, flow);
        given_way
    }

    fn remove(&mut self, key: &FlowKey) {
        let Some(flow) = self.flows.remove(key) else { return };
        self.totals[usize::from(!flow.is_own)] -= 1;
        let payer = Payer::of(key, &flow);
        if let Some(count) = self.counts.get_mut(&payer) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&payer);
            }
        }
        // A record that is not removed is when it is loaded: it has expired by then.
        if flow.recorded.is_some() && self.changed.len() < LIMIT_FLOWS {
            self.changed.insert(*key);
        }
    }

    /// Makes room for [`SHARE`] flows in a half; returns how many gave way that had not expired.
    fn make_room(&mut self, half: usize, now: Instant) -> usize {
        self.sweep(now);
        let leave = self.totals[half].saturating_sub(LIMIT_FLOWS - SHARE);
        if leave == 0 {
            return 0;
        }
        // What a payer keeps comes first: established connections, and of each kind what was in use last.
        type Kept = (bool, Reverse<Instant>, FlowKey);
        let mut by_payer: HashMap<Payer, Vec<Kept>, Keyed> = HashMap::with_hasher(self.counts.hasher().clone());
        for (key, flow) in self.flows.iter().filter(|(_, flow)| usize::from(!flow.is_own) == half) {
            let is_fleeting = flow.progress.timeout(key.protocol) != ESTABLISHED;
            let entry = (is_fleeting, Reverse(flow.idle_since(key.protocol)), *key);
            by_payer.entry(Payer::of(key, flow)).or_default().push(entry);
        }
        let mut all: Vec<(Rank, Instant, FlowKey)> = Vec::with_capacity(self.totals[half]);
        for (payer, mut its) in by_payer {
            if its.len() > SHARE {
                its.select_nth_unstable_by_key(SHARE, |(is_fleeting, idle, _)| (*is_fleeting, *idle));
            }
            let ranked = its.into_iter().enumerate();
            all.extend(ranked.map(|(place, (is_fleeting, Reverse(idle), key))| {
                (Rank::of(payer, !is_fleeting, place >= SHARE), idle, key)
            }));
        }
        if leave < all.len() {
            all.select_nth_unstable_by_key(leave, |(rank, idle, _)| (*rank, *idle));
        }
        all.iter().take(leave).for_each(|(_, _, key)| self.remove(key));
        leave
    }

    fn sweep(&mut self, now: Instant) {
        self.swept = now;
        let is_over = |(key, flow): (&FlowKey, &Flow)| (flow.expires <= now).then_some(*key);
        let over: Vec<FlowKey> = self.flows.iter().filter_map(is_over).collect();
        over.iter().for_each(|key| self.remove(key));
    }

    /// Removes what has expired, now and then.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        if now.since(self.swept) >= SWEEP {
            self.sweep(now);
        }
    }

    /// Flows that have not expired, by peer.
    pub(super) fn counts(&self, now: Instant) -> HashMap<IdentityKey, usize> {
        let mut counts = HashMap::new();
        let live = self.flows.values().filter(|flow| now < flow.expires);
        live.for_each(|flow| *counts.entry(flow.peer).or_default() += 1);
        counts
    }

    /// Some of the records that are to be written.
    pub(super) fn take_changes(&mut self, now: Now) -> Vec<FlowChange> {
        let keys: Vec<FlowKey> = self.changed.iter().take(BATCH).copied().collect();
        let change = |key: FlowKey| {
            self.changed.remove(&key);
            let flow = self.flows.get(&key).filter(|flow| now.instant < flow.expires);
            let value = flow.and_then(|flow| {
                let mut value = vec![flow.progress.0];
                value.extend(flow.record_until(key.protocol, now).to_be_bytes());
                value.extend(flow.peer.0);
                write_address(flow.name?, &mut value);
                Some(value)
            });
            FlowChange { key: key.encode(), value }
        };
        keys.into_iter().map(change).collect()
    }

    /// Changes that could not be written are to be taken again, removals too.
    pub(super) fn return_changes(&mut self, changes: &[FlowChange]) {
        self.changed.extend(changes.iter().filter_map(|change| FlowKey::decode(&change.key)));
    }

    /// Takes a record of an earlier life. Returns whether it is one of a flow that goes on.
    pub(super) fn restore(&mut self, key: &[u8], value: &[u8], now: Now) -> bool {
        let Some((key, mut flow, until)) = read_record(key, value) else { return false };
        let timeout = flow.progress.timeout(key.protocol);
        // Neither a record written a moment ago nor a clock that went back makes it last longer than one in use.
        let left = Duration::from_secs(until.saturating_sub(now.unix.secs())).min(timeout);
        if left.is_zero() || self.totals[0] >= LIMIT_FLOWS {
            return false;
        }
        (flow.recorded, flow.sent) = (Some(until), now.instant);
        self.insert(key, flow, now.instant);
        if let Some(flow) = self.flows.get_mut(&key) {
            flow.expires = now.instant + left;
        }
        true
    }
}

/// A flow by name, and until when it lasts, in Unix seconds.
fn read_record(key: &[u8], value: &[u8]) -> Option<(FlowKey, Flow, u64)> {
    let flow_key = FlowKey::decode(key)?;
    let (&[progress], rest) = value.split_first_chunk::<1>()?;
    let (until, rest) = rest.split_first_chunk()?;
    let (peer, rest) = rest.split_first_chunk()?;
    let (name, []) = read_address(*key.first()?, rest)? else { return None };
    let flow = Flow { progress: Progress(progress), ..Flow::new(IdentityKey(*peer), Some(name), None) };
    Some((flow_key, flow, u64::from_be_bytes(*until)))
}

#[cfg(test)]
mod tests {
    //! ICC, table of flows: one host, or one peer, makes flows without end: others lose none, and its own established connections
    //! go last.

    use wayleave_core::UnixTime;

    use super::*;

    fn at(secs: u64) -> Now {
        Now { instant: Instant(secs * 1_000_000_000), unix: UnixTime(secs * 1_000_000) }
    }

    fn key(local: u8, number: usize, protocol: u8) -> FlowKey {
        let ports = (number as u16, (number >> 16) as u16);
        FlowKey { local: IpAddr::from([10, 0, 0, local]), remote: IpAddr::from([10, 0, 1, 1]), protocol, ports }
    }

    const BOTH: [Direction; 2] = [Direction::Out, Direction::In];
    const UDP: u8 = 17;
    const ACK: u8 = 16;
    const PEER: IdentityKey = IdentityKey([1; 32]);
    const OTHER: IdentityKey = IdentityKey([2; 32]);

    fn own() -> Flow {
        Flow::new(PEER, None, None)
    }

    #[test]
    fn who_makes_flows_without_end_loses_its_own_and_nobody_elses() {
        let mut table = FlowTable::new(&Keyed([7; 16]));
        let now = at(1_000);
        for local in 1..=3 {
            for number in 0..100 {
                table.insert(key(local, number, TCP), own(), now.instant);
            }
        }
        for direction in BOTH {
            table.note(&key(1, 7, TCP), direction, Some(ACK), now);
        }
        table.insert(key(9, 0, UDP), Flow::new(OTHER, None, Some(Handle([1; 16]))), now.instant);
        let mut given_way = 0;
        for number in 1_000..1_000 + 3 * LIMIT_FLOWS {
            given_way += table.insert(key(1, number, UDP), own(), at(1_001).instant);
            assert!(table.get(&key(1, number, UDP), &PEER, at(1_001).instant).is_some());
        }
        assert!(table.totals[0] <= LIMIT_FLOWS && given_way >= 2 * LIMIT_FLOWS, "{given_way}");
        let mut has =
            |local, number, protocol, peer| table.get(&key(local, number, protocol), peer, at(1_001).instant).is_some();
        for local in 2..=3 {
            assert!((0..100).all(|number| has(local, number, TCP, &PEER)), "{local}");
        }
        assert!(has(1, 7, TCP, &PEER) && !has(1, 8, TCP, &PEER), "of its own the established one stays");
        assert!(has(9, 0, UDP, &OTHER));
        // A peer's flood neither.
        for number in 1_000..1_000 + 2 * LIMIT_FLOWS {
            table.insert(key(8, number, UDP), Flow::new(PEER, None, Some(Handle([1; 16]))), at(1_001).instant);
        }
        let mut has =
            |local, number, protocol, peer| table.get(&key(local, number, protocol), peer, at(1_001).instant).is_some();
        assert!(has(9, 0, UDP, &OTHER) && has(2, 0, TCP, &PEER));
        assert_eq!(table.counts.values().sum::<usize>(), table.totals.iter().sum::<usize>());
        assert_eq!(table.flows.len(), table.totals.iter().sum::<usize>());
    }

    /// Whoever has a /64 has as many sources as there are flows.
    #[test]
    fn sources_without_end_push_out_no_connection_and_nothing_that_is_in_use() {
        let mut table = FlowTable::new(&Keyed([7; 16]));
        let name = Some(IpAddr::from([198, 18, 0, 1]));
        let uses = |table: &mut FlowTable, key: &FlowKey, flags, secs| {
            BOTH.into_iter().for_each(|direction| table.note(key, direction, flags, at(secs)));
        };
        for number in 0..50 {
            let key = key(1, number, TCP);
            table.insert(key, Flow::new(PEER, name, None), at(1_000).instant);
            uses(&mut table, &key, Some(ACK), 1_000);
        }
        let datagrams = key(1, 0, UDP);
        table.insert(datagrams, Flow::new(PEER, name, None), at(1_000).instant);
        let mut searches = 0;
        let count = 40_000;
        for number in 0..count {
            let secs = 1_001 + number as u64 / 1_000;
            uses(&mut table, &datagrams, None, secs);
            let [_, a, b, c] = (number as u32).to_be_bytes();
            let before = table.totals[0];
            table.insert(FlowKey { local: IpAddr::from([11, a, b, c]), ..datagrams }, own(), at(secs).instant);
            searches += usize::from(table.totals[0] <= before);
        }
        let mut has = |key| table.get(&key, &PEER, at(1_041).instant).is_some();
        assert_eq!((0..50).filter(|number| has(key(1, *number, TCP))).count(), 50);
        assert!(has(datagrams));
        assert!(searches <= count / 2_000, "{searches}");
    }

    #[test]
    fn a_peer_with_connections_without_end_pushes_out_no_other_peers_flows() {
        let mut table = FlowTable::new(&Keyed([7; 16]));
        let begun = |peer| Flow::new(peer, None, Some(Handle([1; 16])));
        for number in 0..100 {
            table.insert(key(9, number, UDP), begun(OTHER), at(1_000).instant);
        }
        let mut searches = 0;
        for number in 0..2 * LIMIT_FLOWS {
            let key = key(1, number, TCP);
            let before = table.totals[1];
            table.insert(key, begun(PEER), at(1_001).instant);
            searches += usize::from(table.totals[1] <= before);
            BOTH.into_iter().for_each(|direction| table.note(&key, direction, Some(ACK), at(1_001)));
        }
        let mut has = |key| table.get(&key, &OTHER, at(1_001).instant).is_some();
        assert_eq!((0..100).filter(|number| has(key(9, *number, UDP))).count(), 100);
        assert!(searches <= 2 * LIMIT_FLOWS / 2_000, "{searches}");
    }

    #[test]
    fn flows_last_as_the_rfcs_say() {
        let mut table = FlowTable::new(&Keyed([7; 16]));
        let icmp = 1;
        for (protocol, is_answered, secs) in
            [(TCP, true, 7_440), (TCP, false, 240), (UDP, true, 300), (UDP, false, 300), (icmp, false, 60)]
        {
            let key = key(1, 0, protocol);
            table.insert(key, own(), at(1_000).instant);
            let flags = (protocol == TCP).then_some(ACK);
            table.note(&key, Direction::Out, flags, at(1_000));
            if is_answered {
                table.note(&key, Direction::In, flags, at(1_000));
            }
            assert!(table.get(&key, &PEER, at(1_000 + secs - 1).instant).is_some(), "{protocol}");
            assert!(table.get(&key, &PEER, at(1_000 + secs).instant).is_none(), "{protocol}");
            assert!(table.get(&key, &OTHER, at(1_000).instant).is_none(), "it is with its peer alone");
        }
    }

    #[test]
    fn a_record_is_written_when_it_begins_renewed_before_half_its_time_and_removed_at_the_end() {
        let mut table = FlowTable::new(&Keyed([7; 16]));
        let name = Some(IpAddr::from([198, 18, 0, 1]));
        let key = key(1, 0, UDP);
        table.insert(key, Flow::new(PEER, name, None), at(1_000).instant);
        let mut written = Vec::new();
        for secs in 1_000..1_600 {
            table.note(&key, Direction::Out, None, at(secs));
            table.note(&key, Direction::In, None, at(secs));
            written.extend(table.take_changes(at(secs)).into_iter().map(|change| (secs, change.value.is_some())));
        }
        assert_eq!(written, [(1_000, true), (1_151, true), (1_302, true), (1_453, true)]);
        table.sweep(at(1_899).instant);
        let changes = table.take_changes(at(1_899));
        assert_eq!((changes.len(), changes[0].value.is_none()), (1, true));
        assert!(table.flows.is_empty() && table.counts.is_empty());
    }

    #[test]
    fn after_a_restart_a_flow_lasts_as_long_as_it_would_have_and_no_longer_than_one_in_use() {
        let mut table = FlowTable::new(&Keyed([7; 16]));
        let key = key(1, 0, UDP);
        table.insert(key, Flow::new(PEER, Some(IpAddr::from([198, 18, 0, 1])), None), at(1_000).instant);
        // The record of the last packet but one is not due yet.
        let mut records = Vec::new();
        for secs in [1_000, 1_150] {
            BOTH.into_iter().for_each(|direction| table.note(&key, direction, None, at(secs)));
            records.extend(table.take_changes(at(secs)));
        }
        let [FlowChange { key: octets, value: Some(value) }] = &records[..] else { panic!("one record") };
        for (restored, last) in [(1_151, 1_449), (1_000, 1_299)] {
            let mut next = FlowTable::new(&Keyed([8; 16]));
            assert!(next.restore(octets, value, at(restored)));
            assert!(next.get(&key, &PEER, at(last).instant).is_some(), "{restored}");
            assert!(next.get(&key, &PEER, at(restored + 300).instant).is_none(), "{restored}");
        }
    }

    #[test]
    fn a_removal_that_could_not_be_written_is_taken_again() {
        let mut table = FlowTable::new(&Keyed([7; 16]));
        let key = key(1, 0, UDP);
        table.insert(key, Flow::new(PEER, Some(IpAddr::from([198, 18, 0, 1])), None), at(1_000).instant);
        BOTH.into_iter().for_each(|direction| table.note(&key, direction, None, at(1_000)));
        assert_eq!(table.take_changes(at(1_000)).len(), 1);
        table.sweep(at(1_300).instant);
        let removal = [FlowChange { key: key.encode(), value: None }];
        for _ in 0..2 {
            assert_eq!(table.take_changes(at(1_300)), removal);
            table.return_changes(&removal);
        }
    }
}
