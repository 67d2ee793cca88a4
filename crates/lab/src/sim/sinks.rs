//! Members of a simulation that take and discard: so many that their own work would be all that a test does.

use wayleave_bgp::{Attributes, Nlri};
use wayleave_member::Input as MemberInput;
use wayleave_route_server::party::PartyNumber;

use super::{Node, Sim, member_key};
use crate::sink::{Sent, Sink, Taken};

impl Sim {
    pub(super) fn start_sink(&mut self, slot: u32) {
        let selects = !self.setup.opted_out.contains(&slot);
        self.sinks.insert(slot, Sink::new(self.setup.seed ^ self.lives << 32, slot, selects));
    }

    /// Gives a sink what a member would be given.
    pub(super) fn sink_takes(&mut self, slot: u32, input: MemberInput) {
        let (at, mut out) = (self.now.instant, Vec::new());
        let Some(sink) = self.sinks.get_mut(&slot) else { return };
        match input {
            MemberInput::LinkUp { party, .. } => sink.link_up(party, at, &mut out),
            MemberInput::LinkDown { .. } => {
                // It was one of the two. The other is of no use, as with a member.
                for party in [PartyNumber::One, PartyNumber::Two] {
                    sink.link_down(party);
                }
                return self.cut_links_of(slot);
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

    fn cut_links_of(&mut self, slot: u32) {
        let node = Node::Member(slot);
        let of_it: Vec<_> = self.links.iter().filter(|(_, (a, b))| *a == node || *b == node).map(|l| *l.0).collect();
        of_it.into_iter().for_each(|link| self.cut(link));
    }

    fn sink_sends(&mut self, slot: u32, out: Vec<Sent>) {
        for (party, bytes) in out {
            let ends = (Node::Member(slot), Node::Party(party));
            let link = self.by_ends.get(&ends).copied();
            if let Some(link) = link {
                self.send(ends.0, link, bytes.into());
            }
        }
    }

    pub(super) fn announce_by_sink(&mut self, slot: u32, prefixes: &[Nlri], attributes: &Attributes) {
        let Some(sink) = self.sinks.get_mut(&slot) else { return };
        let (at, mut out) = (self.now.instant, Vec::new());
        let key = member_key(self.setup.seed, slot);
        sink.announce((&self.set, self.setup.export), &key, prefixes, attributes, (at, &mut out));
        self.sink_sends(slot, out);
    }

    pub(super) fn sink_is_at_rest(&self, slot: u32) -> bool {
        self.sinks.get(&slot).is_some_and(|sink| sink.is_synced() && sink.has_sent())
    }

    /// What the sink in `slot` has taken.
    #[must_use]
    pub fn taken(&self, slot: u32) -> Taken {
        self.sinks.get(&slot).map_or_else(Taken::default, |sink| sink.taken)
    }
}
