//! Members of a simulation that take and discard: so many that their own work would be all that a test does.

use wayleave_bgp::{Attributes, Nlri};
use wayleave_member::Input as MemberInput;
use wayleave_route_server::party::{LinkId, PartyNumber};

use super::{Node, Sim, member_key};
use crate::sink::{Sent, Sink, SinkTotals};

impl Sim {
    pub(super) fn start_sink(&mut self, slot: u32) {
        let selects = !self.setup.opted_out.contains(&slot);
        self.sinks.insert(slot, (Sink::new(self.setup.seed ^ self.lives << 32, slot, selects), [None; 2]));
    }

    /// Gives a sink what a member would be given.
    pub(super) fn sink_takes(&mut self, slot: u32, input: MemberInput) {
        let (at, mut out) = (self.now.instant, Vec::new());
        let Some((sink, up)) = self.sinks.get_mut(&slot) else { return };
        match input {
            MemberInput::LinkUp { link, party, .. } => {
                up[usize::from(party == PartyNumber::Two)] = Some(link);
                sink.link_up(party, at, &mut out);
            }
            MemberInput::LinkDown { link } if up.contains(&Some(link)) => {
                // The other is of no use, as with a member.
                let others: Vec<LinkId> = std::mem::take(up).into_iter().flatten().filter(|of| *of != link).collect();
                for party in [PartyNumber::One, PartyNumber::Two] {
                    sink.link_down(party);
                }
                return others.into_iter().for_each(|link| self.cut(link));
            }
            MemberInput::Frame { link, bytes } => {
                let Some((a, b)) = self.links.get(&link).copied() else { return };
                if let (Node::Party(party), _) | (_, Node::Party(party)) = (a, b) {
                    sink.frame(party, &bytes, at, &mut out);
                }
            }
            _ => {}
        }
        self.sink_sends(slot, out);
    }

    fn sink_sends(&mut self, slot: u32, out: Vec<Sent>) {
        let up = self.sinks.get(&slot).map_or([None; 2], |(_, up)| *up);
        for (party, bytes) in out {
            if let Some(link) = up[usize::from(party == PartyNumber::Two)] {
                self.send(Node::Member(slot), link, bytes.into());
            }
        }
    }

    pub(super) fn announce_by_sink(&mut self, slot: u32, prefixes: &[Nlri], attributes: &Attributes) {
        let Some((sink, _)) = self.sinks.get_mut(&slot) else { return };
        let (at, mut out) = (self.now.instant, Vec::new());
        let key = member_key(self.setup.seed, slot);
        sink.announce((&self.set, self.setup.export), &key, prefixes, attributes, (at, &mut out));
        self.sink_sends(slot, out);
    }

    pub(super) fn withdraw_by_sink(&mut self, slot: u32, prefixes: &[Nlri]) {
        let Some((sink, _)) = self.sinks.get_mut(&slot) else { return };
        let (at, mut out) = (self.now.instant, Vec::new());
        sink.withdraw(&self.set, &member_key(self.setup.seed, slot), prefixes, (at, &mut out));
        self.sink_sends(slot, out);
    }

    pub(super) fn sink_is_at_rest(&self, slot: u32) -> bool {
        self.sinks.get(&slot).is_some_and(|(sink, _)| sink.is_synced() && sink.has_sent())
    }

    /// What the sink in `slot` has taken.
    #[must_use]
    pub fn taken(&self, slot: u32) -> SinkTotals {
        self.sinks.get(&slot).map_or_else(SinkTotals::default, |(sink, _)| sink.taken)
    }
}
