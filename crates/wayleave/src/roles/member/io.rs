//! The I/O of a member's proxy: links to both parties, the own router, the store, jobs, the log.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::convert::Infallible;
use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use wayleave_bgp::peer::PeerEvent;
use wayleave_core::Asn;
use wayleave_crypto::secret::Seed;
use wayleave_member::{Input, MemberProxy, Output};
use wayleave_route_server::directory::MemberSet;
use wayleave_route_server::frames::Rejection;
use wayleave_route_server::member::{Alarm, MemberEvent};
use wayleave_route_server::party::PartyNumber;
use wayleave_route_server::versions::{VERSIONS, Versions};
use wayleave_runtime::clock::{unix_now, utc};
use wayleave_runtime::drive::Step;
use wayleave_runtime::links::{LinkEvent, Links};
use wayleave_runtime::starts::PeerName;
use wayleave_runtime::store::{FileStore, Store};

use crate::config::named_peers::{self, NamedPeer};
use crate::failure::Failure;
use crate::roles::attestation::{self, slot_record};
use crate::roles::bgp_peer::RouteQueue;
use crate::roles::daemon::fresh;
use crate::roles::events::{EventLine, Events, event, shown};
use crate::roles::link_driver::{self, LinkIo, when_durable};
use crate::roles::link_faults::{Fault, LinkEndpoint, LinkFaults};
use crate::roles::state;

/// What reaches the machine's loop.
pub type Event = link_driver::Event<MemberProxy, Infallible>;

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
    /// The number and name of this pair of parties, where the proxy has several.
    pub pair: Option<(usize, String)>,
    pub named: NamedPeers,
}

/// The ASes that the rules name, compared with each member set in force, and with the same again after a reload.
pub struct NamedPeers {
    rules: watch::Receiver<Vec<NamedPeer>>,
    /// The set with which they were compared last.
    set: Option<u64>,
    /// Those that it had not.
    unknown: BTreeSet<Asn>,
}

impl NamedPeers {
    pub fn new(rules: watch::Receiver<Vec<NamedPeer>>) -> Self {
        Self { rules, set: None, unknown: BTreeSet::new() }
    }

    /// A line for each rule or group with ASes that no member of the set has, once for each reload.
    fn compare(&mut self, set: &MemberSet) -> Vec<EventLine> {
        let is_reloaded = self.rules.has_changed().unwrap_or(false);
        if self.set == Some(set.number) && !is_reloaded {
            return Vec::new();
        }
        self.set = Some(set.number);
        if is_reloaded {
            self.unknown.clear();
        }
        let rules = self.rules.borrow_and_update();
        let unknown = named_peers::unknown(&rules, set);
        let new = unknown.iter().copied().filter(|peer| !self.unknown.contains(&peer.asn));
        let lines = named_peers::by_place(new)
            .iter()
            .map(|peers| unknown_peers(&peers.names(), peers.place, &peers.describe(set.number)))
            .collect();
        self.unknown = unknown.iter().map(|peer| peer.asn).collect();
        lines
    }
}

/// What is told of ASes that a rule names and no member has.
pub fn unknown_peers(asns: &str, rule: &str, what: &str) -> EventLine {
    event!(WARN "unknown-peer" { asns; rule } "{what}: {}", named_peers::HELP)
}

impl LinkIo<MemberProxy> for MemberIo {
    type Own = Infallible;

    fn link(&mut self, event: LinkEvent) -> Option<Input> {
        match event {
            LinkEvent::Up { link, pin, exporter, peer_clock, .. } => {
                self.faults.up(pin.id, self.exchange.party(pin.id), peer_clock);
                self.up.insert(link, pin.id);
                let party = if pin.id == 1 { PartyNumber::One } else { PartyNumber::Two };
                Some(Input::LinkUp { link, party, exporter: Seed::new(*exporter.0) })
            }
            LinkEvent::Frame { link, bytes, .. } => Some(Input::Frame { link, bytes }),
            LinkEvent::Down { link, reason } => {
                if let Some(party) = self.up.remove(&link) {
                    self.ended(party, &reason);
                }
                Some(Input::LinkDown { link })
            }
            LinkEvent::Failed { pin, failure } => {
                self.faults.failed(pin.id, self.exchange.party(pin.id), &failure);
                None
            }
        }
    }

    fn own(&mut self, own: Infallible) -> Step<MemberProxy> {
        match own {}
    }

    fn source(&self, input: &Input) -> Option<&PeerName> {
        matches!(input, Input::Router(_)).then_some(&self.router)
    }

    fn before(&mut self, machine: &mut MemberProxy) -> Result<(), Failure> {
        if let Some(set) = machine.member_set() {
            let lines = self.named.compare(set);
            lines.into_iter().for_each(|line| self.tell(line));
        }
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
                state::submit(&self.store, changes, when_durable(&self.events, Input::Persisted(id)))?;
            }
            Output::Install { prefix, attributes } => self.routes.set(prefix, attributes),
            Output::InstallPaths { prefix, paths } => self.routes.set_paths(prefix, paths),
            Output::Event(event) => {
                if matches!(event, MemberEvent::Synced { .. }) {
                    self.faults.well();
                }
                self.report(&event);
            }
            Output::Job(job) => attestation::work(move || Input::JobDone(job.run()), &self.events),
            Output::PersistSlot { id, public, slot } => {
                let durable = when_durable(&self.events, Input::SlotPersisted(id));
                self.store.submit(vec![slot_record(public, slot)], durable)?;
            }
            Output::AttestationEvent(event) => self.tell(attestation::line(&event)),
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
            Rejection::Protocol { ours } => versions(party, at, Versions { least: *ours, highest: *ours }),
            Rejection::Versions { ours, .. } => versions(party, at, *ours),
            Rejection::Format { ours } => format!(
                "other members of `{name}` announce in format {ours} of route objects, as party {party} at {at} says, and this proxy reads it \
                 no more: run the release of Wayleave before this one until they are upgraded"
            ),
            Rejection::Told { told, ours } => format!(
                "the parties do not say the same of the versions that they speak: party {} told this proxy {told}, and party {party} at \
                 {at} {ours}; one of them was just started again with another version, which mends itself, or one of them lies: tell both \
                 operators if this is said again",
                3 - party
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

/// A party speaks no version of the protocol that this proxy does.
fn versions(party: u8, at: &str, theirs: Versions) -> String {
    let what = if theirs.highest < VERSIONS.least {
        "the party is the older of the two: run the release of Wayleave that the exchange runs until it is upgraded"
    } else {
        "this proxy is the older of the two: upgrade it to the release of Wayleave that the exchange runs, or the one before that"
    };
    format!("party {party} at {at} speaks version {theirs} of the protocol, and this proxy {VERSIONS}: {what}")
}

impl MemberIo {
    /// Keeps why a link ended, unless it only follows the end of the other one.
    fn ended(&mut self, party: u32, reason: &str) {
        let name = &self.exchange.party(party).name;
        self.faults.ended(party, name, reason);
        self.last_end = format!("the link to {name} ended: {reason}");
    }

    /// Reports an event. What a party says against this member stays in the status until it is mended, and is told once.
    fn report(&self, event: &MemberEvent) {
        let line = line(event, &self.exchange, &self.last_end);
        let fault = match event {
            MemberEvent::Rejected { party, why: Rejection::Removed { .. } } => Some(Fault::Removal(u32::from(*party))),
            MemberEvent::Rejected { party, .. } | MemberEvent::SetRefused { party, .. } => {
                Some(Fault::Refusal(u32::from(*party)))
            }
            _ => None,
        };
        if fault.is_none_or(|about| self.faults.keep(about, line.text())) {
            self.tell(line);
        }
    }

    /// Logs a line, with the name of the pair where there are several.
    fn tell(&self, line: EventLine) {
        self.log.report(match &self.pair {
            Some((number, name)) => line.of_pair(*number, name),
            None => line,
        });
    }
}

/// What the operator is told; `last_end` is why the last link to a party ended.
pub fn line(event: &MemberEvent, exchange: &ExchangeLabels, last_end: &str) -> EventLine {
    match event {
        MemberEvent::Alarm(Alarm { what, handle, suspects }) => {
            let names: Vec<String> = suspects.iter().map(ToString::to_string).collect();
            let names = names.join(", ");
            event!(ERROR "alarm" by 0, { route = handle, suspects = names; what, handle, suspects }
                "misbehaviour detected: {what}; possible causes: {names}; `wayleave show events` keeps it")
        }
        MemberEvent::SessionDown => event!(WARN "session-down" {}
            "session with the parties down: {last_end}; routes in the router are kept for stale_secs, and both links are opened again"),
        MemberEvent::Rejected { party, why } => event!(ERROR "rejected" by *party, {; party, why = shown(why) }
            "{}", exchange.rejection(*party, why)),
        MemberEvent::SetRefused { party, why } => event!(ERROR "set-refused" by *party, {; party, why }
            "party {party} shows a member set {why}; nothing of it is used: compare `[exchange] operators`, and their order, with what both operators give, \
             and if they are right, tell both operators"),
        MemberEvent::Deferred { seconds } => event!(WARN "deferred" by 0, { seconds }
            "this member asked for all routes, or connected again, more often than the exchange allows; they come in {seconds} seconds \
             at the earliest"),
        MemberEvent::OwnOrder { seconds } => event!(WARN "own-order" by 0, { seconds }
            "this member asked for all routes, or connected again, more often than the exchange has Select-Best choose among them: its \
             own order decides until routes change; Select-Best chooses among all again in {seconds} seconds"),
        MemberEvent::Queued { ahead } => event!(INFO "queued" { ahead }
            "the parties send all routes to {ahead} members before this one"),
        MemberEvent::Synced { objects, own } => event!(INFO "synced" { objects, own }
            "session with the parties up: all routes received"),
        MemberEvent::Refused { version, reason } => event!(WARN "refused" by 0, { version; reason = shown(reason) }
            "a party refused a route of this member: {reason}; the route is not announced"),
        MemberEvent::Column { from, to, objects } => event!(INFO "column" { slots_before = from, slots = to, objects }
            "the exchange has new members: own routes extended to them"),
        MemberEvent::NewMember { slot, name, asn, earlier, held } => {
            let what = match (earlier, held) {
                (Some(first), true) => format!(
                    "its AS has slot {first} already; it is held and gets no routes; if its holder confirms it, add {slot} to `released`"
                ),
                (Some(first), false) => {
                    format!("its AS has slot {first} already; ask its holder whether the slot is theirs")
                }
                (None, true) => "it is held and gets no routes; to serve it, add it to `released`".to_owned(),
                (None, false) => "it gets routes as your policy says".to_owned(),
            };
            if earlier.is_some() || *held {
                event!(WARN "new-member" { slot, name, asn; earlier, held } "new slot {slot} at the exchange, {name} (AS{asn}): {what}")
            } else {
                event!(INFO "new-member" { slot, name, asn; earlier, held } "new slot {slot} at the exchange, {name} (AS{asn}): {what}")
            }
        }
        MemberEvent::NotAMember { slot } => event!(ERROR "not-a-member" { slot }
            "the member set does not list this member's key in slot {slot}; compare `wayleave keys show` with what the exchange has"),
        MemberEvent::OlderSet { party, shown, in_force } => event!(ERROR "older-set" by 0, { party, shown, in_force }
            "party {party} shows member set {shown}, which is past or lacks a removal; nothing is used until it shows what was in force \
             (set {in_force}): tell its operator"),
        MemberEvent::SetsDiffer { numbers: numbers @ [one, two] } => event!(ERROR "sets-differ" by 0, {; numbers }
            "the parties show different member sets (party 1 number {one}, party 2 number {two}); nothing is used until they show one: \
             tell both operators"),
        MemberEvent::ExportsDiffer { modes: modes @ [one, two] } => event!(ERROR "exports-differ" by 0, {; modes }
            "party 1 has `export = \"{one}\"` and party 2 `export = \"{two}\"`; nothing is announced until they have the same: tell both \
             operators"),
        MemberEvent::NoVersion { parties: [one, two], ours } => {
            event!(ERROR "no-version" by 0, {; parties = [one, two].map(ToString::to_string), ours = ours.to_string() }
            "party 1 speaks version {one} of the protocol, party 2 {two} and this proxy {ours}, so that there is none that all three \
             speak: whichever is behind has to be upgraded")
        }
        MemberEvent::RankingMissed { batch, why } => {
            event!(WARN "ranking-missed" by 0, { batch; why = why.to_string() }
            "a ranking of this member does not count, and its own order decided: {why}; if that happens again, look at the load and the \
             links of this machine")
        }
        MemberEvent::OutcomeOverdue { batch } => event!(WARN "outcome-overdue" by 0, { batch }
            "no result of Select-Best in time; routes are chosen by this member's own ranking"),
        MemberEvent::NotCompeting { routes, prefix } => event!(WARN "not-competing" by 0, { routes, prefix }
            "{routes} routes of the router, one to {prefix} among them, do not compete any more, since more others do than the exchange \
             compares; receivers use them where they have no better one, and `wayleave why --announced {prefix}` says what to do"),
        MemberEvent::NotAnnounced { prefix, why } => event!(WARN "not-announced" by 0, { prefix; why }
            "the router's route to {prefix} is not announced: {why}; `wayleave why --announced {prefix}` says what to do"),
        MemberEvent::DataTaken { number, members } => event!(INFO "data-taken" { number, members }
            "data {number} of the exchange count: both operators' machines signed them"),
        MemberEvent::DataRefused { number, why } => event!(WARN "data-refused" by 0, { number; why }
            "data {number} of the exchange are not taken: {why}; what was in force before goes on to count"),
        MemberEvent::MaxPrefixes { slot, name, asn, afi, prefixes, limit, is_out } => {
            let family = afi.to_string();
            if *is_out {
                event!(WARN "max-prefixes" by *slot, { slot, name, asn; family, prefixes, limit }
                "{name} (AS{asn}) has {prefixes} prefixes of {family}, and may have {limit} by the exchange's data: all of them are left \
                 out for 15 minutes at least; ask it why, or both operators for a higher limit")
            } else {
                event!(INFO "max-prefixes" by *slot, { slot, name, asn; family, prefixes, limit }
                "{name} (AS{asn}) has {prefixes} prefixes of {family} again, and may have {limit}: its routes count again")
            }
        }
        MemberEvent::Stale { routes } => event!(WARN "stale" { routes }
            "the parties have been unreachable for longer than stale_secs: {routes} routes withdrawn"),
        MemberEvent::Kept { routes } => event!(WARN "kept" { routes }
            "a party lost what it had stored: {routes} routes stay in the router until their announcers have said what became of them"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use wayleave_route_server::directory::Slot;

    use super::*;
    use crate::config::member::{self, MemberFile};

    fn named(hide_from: &str) -> Vec<NamedPeer> {
        let rule = format!("[[rule]]\ndirection = \"export\"\nhide_from = {hide_from}\n");
        let text = (member::ROLE.template)(1) + &rule;
        toml::from_str::<MemberFile>(&text).expect("a configuration").named_peers()
    }

    fn set(number: u64, asns: &[u32]) -> MemberSet {
        let slot = |asn: &u32| Slot {
            active: true,
            asn: Asn(*asn),
            name: asn.to_string(),
            addresses: Vec::new(),
            tls: [0; 32],
            sign: [0; 32],
            max_prefix: 1,
            held: false,
        };
        let (exchange, slots) = ("example-ix".to_owned(), asns.iter().map(slot).collect());
        MemberSet { exchange, number, slots, attest: BTreeMap::new(), profile: None, data: None }
    }

    #[test]
    fn an_as_that_a_rule_names_and_no_member_has_is_told_once_for_each_reload() {
        let (rules, read) = watch::channel(named("64489"));
        let mut named_peers = NamedPeers::new(read);
        let lines = named_peers.compare(&set(1, &[64_497, 64_498]));
        let [line] = &lines[..] else { panic!("{lines:?}") };
        let begins =
            "no member has AS64489 in member set 1, expected the AS number of a member in `hide_from` of rule 1";
        assert!(line.text().starts_with(begins), "{}", line.text());
        assert!(named_peers.compare(&set(1, &[64_497, 64_498])).is_empty(), "it is known");
        assert!(named_peers.compare(&set(2, &[64_497])).is_empty(), "the same in another set");
        rules.send_replace(named("[64489, 64498]"));
        let lines = named_peers.compare(&set(2, &[64_497]));
        let [line] = &lines[..] else { panic!("one for the rule: {lines:?}") };
        let begins = "no member has AS64489 and AS64498 in member set 2, expected AS numbers of members";
        assert!(line.text().starts_with(begins), "a reload, and a member that has left: {}", line.text());
        assert!(named_peers.compare(&set(3, &[64_489, 64_498])).is_empty());
    }
}
