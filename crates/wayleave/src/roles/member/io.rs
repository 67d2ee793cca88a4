//! The I/O of a member's proxy: links to both parties, the own router, the store, jobs, the log.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use tokio::sync::mpsc;
use tracing::{error, info, warn};
use wayleave_bgp::peer::PeerEvent;
use wayleave_crypto::secret::Seed;
use wayleave_member::{Input, MemberProxy, Output};
use wayleave_route_server::frames::{PROTOCOL, Rejection};
use wayleave_route_server::member::MemberEvent;
use wayleave_route_server::party::PartyNumber;
use wayleave_runtime::clock::{unix_now, utc};
use wayleave_runtime::drive::{Io, Query, Step};
use wayleave_runtime::links::{LinkEvent, Links};
use wayleave_runtime::log_limit::Line;
use wayleave_runtime::starts::PeerName;
use wayleave_runtime::store::{FileStore, Store};

use crate::failure::Failure;
use crate::roles::attestation::{self, slot_record};
use crate::roles::bgp_peer::RouteQueue;
use crate::roles::daemon::fresh;
use crate::roles::link_faults::{Fault, LinkEndpoint, LinkFaults};
use crate::roles::{Events, state};

/// What reaches the machine's loop.
pub enum Event {
    Link(LinkEvent),
    Input(Input),
    Query(Query<MemberProxy>),
    Stop,
}

impl From<LinkEvent> for Event {
    fn from(event: LinkEvent) -> Self {
        Event::Link(event)
    }
}

impl From<PeerEvent> for Event {
    fn from(event: PeerEvent) -> Self {
        Event::Input(Input::Router(event))
    }
}

impl From<Input> for Event {
    fn from(input: Input) -> Self {
        Event::Input(input)
    }
}

impl From<Query<MemberProxy>> for Event {
    fn from(query: Query<MemberProxy>) -> Self {
        Event::Query(query)
    }
}

/// What the configuration says of the exchange, for what is logged.
pub struct ExchangeLabels {
    pub name: String,
    pub slot: u32,
    /// Party 1 and party 2.
    pub parties: [LinkEndpoint; 2],
}

pub struct MemberIo {
    pub links: Links,
    pub faults: LinkFaults,
    pub exchange: ExchangeLabels,
    /// The party at the other end of each link that is up.
    pub up: HashMap<u64, u32>,
    /// Why the last link ended.
    pub last_end: String,
    pub store: Arc<FileStore>,
    pub events: mpsc::Sender<Event>,
    /// To the router.
    pub routes: RouteQueue,
    /// The router, as the log names it.
    pub router: PeerName,
    pub log: Events,
}

impl Io<MemberProxy> for MemberIo {
    type Event = Event;
    type Error = Failure;

    fn source<'a>(&'a self, event: &'a Event) -> Option<&'a PeerName> {
        match event {
            Event::Link(event) => event.source(),
            Event::Input(Input::Router(_)) => Some(&self.router),
            Event::Input(_) | Event::Query(_) | Event::Stop => None,
        }
    }

    fn step(&mut self, event: Event) -> Step<MemberProxy> {
        Step::Input(match event {
            Event::Link(LinkEvent::Up { link, pin, exporter, peer_clock, .. }) => {
                self.faults.up(pin.id, self.exchange.party(pin.id), peer_clock);
                self.up.insert(link, pin.id);
                let party = if pin.id == 1 { PartyNumber::One } else { PartyNumber::Two };
                Input::LinkUp { link, party, exporter: Seed::new(*exporter.0) }
            }
            Event::Link(LinkEvent::Frame { link, bytes, .. }) => Input::Frame { link, bytes },
            Event::Link(LinkEvent::Down { link, reason }) => {
                if let Some(party) = self.up.remove(&link) {
                    self.ended(party, &reason);
                }
                Input::LinkDown { link }
            }
            Event::Link(LinkEvent::Failed { pin, failure }) => {
                self.faults.failed(pin.id, self.exchange.party(pin.id), &failure);
                return Step::Ignore;
            }
            Event::Input(input) => input,
            Event::Query(query) => return Step::Query(query),
            Event::Stop => return Step::Stop,
        })
    }

    fn before(&mut self, machine: &mut MemberProxy) -> Result<(), Failure> {
        machine.reseed(&fresh()?);
        Ok(())
    }

    fn perform(&mut self, output: Output, _: &mut VecDeque<Input>) -> Result<(), Failure> {
        match output {
            Output::Send { link, frame } => self.links.send(link, frame),
            Output::Close { link, reason, refused } => {
                if let Some(party) = self.up.get(&link).copied() {
                    self.ended(party, &reason);
                }
                if refused { self.links.close_refused(link, &reason) } else { self.links.close(link, &reason) }
            }
            Output::Persist { id, changes } => {
                state::submit(&self.store, changes, self.when_durable(Input::Persisted(id)))?;
            }
            Output::Install { prefix, attributes } => self.routes.set(prefix, attributes),
            Output::Event(event) => {
                if let Some(Line { suppressed }) =
                    kind(&event).map_or(Some(Line::default()), |kind| self.log.admit(kind, 0))
                {
                    self.log(&event, suppressed);
                    self.log.note(&event);
                }
            }
            Output::Job(job) => attestation::work(move || Input::JobDone(job.run()), &self.events),
            Output::PersistSlot { id, public, slot } => {
                let durable = self.when_durable(Input::SlotPersisted(id));
                self.store.submit(vec![slot_record(public, slot)], durable)?;
            }
            Output::AttestationEvent(event) => {
                attestation::log(&event, &self.log).iter().for_each(|noted| self.log.note(noted));
            }
        }
        Ok(())
    }
}

impl ExchangeLabels {
    fn party(&self, number: u32) -> &LinkEndpoint {
        &self.parties[usize::from(number != 1)]
    }

    /// What a party's refusal means, and what to do.
    fn rejection(&self, party: u8, why: &Rejection) -> String {
        let Self { name, slot, parties } = self;
        let at = &parties[usize::from(party != 1)].address;
        match why {
            Rejection::Protocol { ours } => format!(
                "party {party} at {at} speaks version {ours} of the protocol, and this proxy version {PROTOCOL}: run the version of \
                 Wayleave that the exchange runs"
            ),
            Rejection::Exchange { ours } => format!(
                "party {party} at {at} belongs to the exchange `{ours}`, and `[exchange] name` is `{name}`: correct the name, or \
                 the party's address"
            ),
            Rejection::Slot { proved } => format!(
                "party {party} at {at} knows this proxy's key as that of slot {proved}, and `[member] slot` is {slot}: set \
                 `slot = {proved}`, or use the key file of slot {slot}"
            ),
            Rejection::Removed { slot, set, by } => {
                let by = match by {
                    0 => "both operators".to_owned(),
                    by => format!("the operator of party {by}"),
                };
                format!(
                    "you are no member of `{name}` since member set {set}: {by} removed slot {slot}; party {party} said so at {}",
                    utc(unix_now().secs())
                )
            }
        }
    }
}

impl MemberIo {
    /// Keeps why a link ended, unless it only follows the end of the other one.
    fn ended(&mut self, party: u32, reason: &str) {
        let name = &self.exchange.party(party).name;
        self.faults.ended(party, name, reason);
        self.last_end = format!("the link to {name} ended: {reason}");
    }

    fn log(&self, event: &MemberEvent, suppressed: Option<u64>) {
        match event {
            MemberEvent::SessionDown => {
                warn!(
                    "session with the parties down: {}; routes in the router are kept for stale_secs, and both links are \
                     opened again",
                    self.last_end
                );
            }
            MemberEvent::Rejected { party, why } => {
                let words = self.exchange.rejection(*party, why);
                let about = match why {
                    Rejection::Removed { .. } => Fault::Removal(u32::from(*party)),
                    _ => Fault::Refusal(u32::from(*party)),
                };
                self.faults.report(about, &words, true);
            }
            MemberEvent::SetRefused { party, why } => {
                let words = format!(
                    "party {party} shows a member set {why}; nothing of it is used: compare `[exchange] operators` with what both \
                     operators give, and if they are right, tell both operators"
                );
                self.faults.report(Fault::Refusal(u32::from(*party)), &words, true);
            }
            event => {
                if matches!(event, MemberEvent::Synced { .. }) {
                    self.faults.well();
                }
                log(event, suppressed);
            }
        }
    }

    /// Sends `input` to the machine once a write of the store is durable.
    fn when_durable(&self, input: Input) -> Box<dyn FnOnce() + Send> {
        let events = self.events.clone();
        Box::new(move || drop(events.blocking_send(Event::Input(input))))
    }
}

/// What a line is about that others can cause again and again.
fn kind(event: &MemberEvent) -> Option<&'static str> {
    match event {
        MemberEvent::Alarm(_) => Some("alarm"),
        MemberEvent::Refused { .. } => Some("refused"),
        MemberEvent::OutcomeOverdue { .. } => Some("outcome-overdue"),
        MemberEvent::RankingMissed { .. } => Some("ranking-missed"),
        MemberEvent::SetRefused { .. } => Some("set-refused"),
        MemberEvent::OlderSet { .. } => Some("older-set"),
        MemberEvent::SetsDiffer { .. } => Some("sets-differ"),
        MemberEvent::ExportsDiffer { .. } => Some("exports-differ"),
        MemberEvent::NotAnnounced { .. } => Some("not-announced"),
        MemberEvent::Deferred { .. } => Some("deferred"),
        MemberEvent::OwnOrder { .. } => Some("own-order"),
        _ => None,
    }
}

fn log(event: &MemberEvent, suppressed: Option<u64>) {
    match event {
        MemberEvent::Alarm(alarm) => {
            let suspects: Vec<String> = alarm.suspects.iter().map(ToString::to_string).collect();
            let suspects = suspects.join(", ");
            error!(
                route = alarm.handle,
                suspects,
                suppressed,
                "misbehaviour detected: {}; possible causes: {suspects}; `wayleave show events` keeps it",
                alarm.what
            );
        }
        // With what the configuration says.
        MemberEvent::SessionDown | MemberEvent::Rejected { .. } | MemberEvent::SetRefused { .. } => {}
        MemberEvent::Deferred { seconds } => {
            warn!(
                seconds,
                suppressed,
                "this member asked for all routes, or connected again, more often than the exchange allows; they come in {seconds} seconds at the earliest"
            );
        }
        MemberEvent::OwnOrder { seconds } => {
            warn!(
                seconds,
                suppressed,
                "this member asked for all routes, or connected again, more often than the exchange has Select-Best choose among them: its own order decides until routes change; Select-Best chooses among all again in {seconds} seconds"
            );
        }
        MemberEvent::Queued { ahead } => {
            info!(ahead, "the parties send all routes to {ahead} members before this one");
        }
        MemberEvent::Synced { objects, own } => {
            info!(objects, own, "session with the parties up: all routes received");
        }
        MemberEvent::Refused { version, reason } => {
            warn!(version, suppressed, "a party refused a route of this member: {reason}; the route is not announced");
        }
        MemberEvent::Column { from, to, objects } => {
            info!(from, to, objects, "the exchange has new members: own routes extended to them");
        }
        MemberEvent::NewMember { slot, name, asn, earlier, held } => {
            let what = match (earlier, held) {
                (Some(first), true) => {
                    format!(
                        "its AS has slot {first} already; it is held and gets no routes; if its holder confirms it, add {slot} to `released`"
                    )
                }
                (Some(first), false) => {
                    format!("its AS has slot {first} already; ask its holder whether the slot is theirs")
                }
                (None, true) => "it is held and gets no routes; to serve it, add it to `released`".to_owned(),
                (None, false) => "it gets routes as your policy says".to_owned(),
            };
            if earlier.is_some() || *held {
                warn!(slot, name, asn, "new slot {slot} at the exchange, {name} (AS{asn}): {what}");
            } else {
                info!(slot, name, asn, "new slot {slot} at the exchange, {name} (AS{asn}): {what}");
            }
        }
        MemberEvent::NotAMember { slot } => {
            error!(
                slot,
                "the member set does not list this member's key in slot {slot}; compare `wayleave keys show` with what the exchange has"
            );
        }
        MemberEvent::OlderSet { party, shown, in_force } => {
            error!(
                party,
                shown,
                in_force,
                suppressed,
                "party {party} shows member set {shown}, which is past or lacks a removal; nothing is used until it shows what was in force (set {in_force}): tell its operator"
            );
        }
        MemberEvent::SetsDiffer { numbers: [one, two] } => {
            error!(
                suppressed,
                "the parties show different member sets (party 1 number {one}, party 2 number {two}); nothing is used until they show one: tell both operators"
            );
        }
        MemberEvent::ExportsDiffer { modes: [one, two] } => {
            error!(
                suppressed,
                "party 1 has `export = \"{one}\"` and party 2 `export = \"{two}\"`; nothing is announced until they have the same: tell both operators"
            );
        }
        MemberEvent::RankingMissed { batch } => {
            warn!(
                batch,
                suppressed,
                "this member's ranking did not reach both parties in time, and its own order decided; if that happens again, look at the load and the links of this machine"
            );
        }
        MemberEvent::OutcomeOverdue { batch } => {
            warn!(
                batch,
                suppressed, "no result of Select-Best in time; routes are chosen by this member's own ranking"
            );
        }
        MemberEvent::NotAnnounced { prefix, why } => {
            warn!(
                prefix,
                suppressed,
                "the router's route to {prefix} is not announced: {why}; `wayleave why --announced {prefix}` says what to do"
            );
        }
        MemberEvent::Stale { routes } => {
            warn!(routes, "the parties have been unreachable for longer than stale_secs: {routes} routes withdrawn");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_that_one_party_shows_again_and_again_do_not_fill_the_log() {
        let events = [
            MemberEvent::SetRefused { party: 1, why: "that does not count".to_owned() },
            MemberEvent::OlderSet { party: 1, shown: 1, in_force: 2 },
            MemberEvent::SetsDiffer { numbers: [1, 2] },
        ];
        assert!(events.iter().all(|event| kind(event).is_some()));
    }
}
