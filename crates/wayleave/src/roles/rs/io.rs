//! The I/O of a party: links to members and to the peer party, the store, the log.

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::{mpsc, watch};
use tracing::info;
use wayleave_crypto::secret::Seed;
use wayleave_route_server::directory::MemberSet;
use wayleave_route_server::party::{OlderStore, Party, PartyEvent, PartyInput, PartyOutput, PeerId, SetupJob};
use wayleave_runtime::drive::Step;
use wayleave_runtime::links::{LinkEvent, Links, REPLACED};
use wayleave_runtime::store::{FileStore, Health, Store};
use wayleave_runtime::tls::{Pins, Role};

use super::member_set;
use super::replaced_links::ReplacedLinks;
use crate::failure::Failure;
use crate::roles::daemon::fresh;
use crate::roles::events::{EventLine, Events, event, shown};
use crate::roles::link_driver::{self, LinkIo, when_durable};
use crate::roles::link_faults::{Fault, LinkEndpoint, LinkFaults};
use crate::roles::state;

/// What reaches the machine's loop.
pub type Event = link_driver::Event<Party, NoPeer>;

/// The peer party should have connected by now; what to say of it.
pub struct NoPeer(pub String);

/// Why the peer party is refused while the store fails.
const STORE_FAILS: &str = "the peer party's link is refused while the state file cannot be written: members keep the routes that they have, and nothing changes";

/// The number under which faults with the peer party are kept.
pub const PEER: u32 = 0;

pub struct PartyIo {
    pub links: Links,
    pub store: Arc<FileStore>,
    pub events: mpsc::Sender<Event>,
    pub member_pins: Pins,
    pub log: Events,
    pub faults: LinkFaults,
    /// Members whose links take each other's place.
    pub replaced_links: ReplacedLinks,
    /// The slot at the other end of each member's link that is up.
    pub member_links: HashMap<u64, u32>,
    /// The peer party.
    pub peer: LinkEndpoint,
    /// The link to it, if one is up.
    pub peer_link: Option<u64>,
    /// Why the last one ended.
    pub last_end: String,
    /// The member set in force, for views.
    pub set: watch::Sender<MemberSet>,
    /// The configuration's file, which names the member set's file.
    pub configuration: PathBuf,
    /// The thread that makes correlations.
    pub setup: std::sync::mpsc::Sender<SetupJob>,
}

impl LinkIo<Party> for PartyIo {
    type Own = NoPeer;

    fn link(&mut self, event: LinkEvent) -> Option<PartyInput> {
        match event {
            LinkEvent::Up { link, pin, exporter, peer_clock, address } => {
                let peer = match pin.role {
                    // Each session begins with a write. While none succeeds, sessions would begin and end without end, and with each a write
                    // more would wait, until no more can: that ends the process, though all that it lacks is space.
                    Role::Party if matches!(&*self.store.health().borrow(), Health::Failing(_)) => {
                        self.links.close(link, "this party cannot write its state file");
                        self.faults.report(Fault::Link(PEER), STORE_FAILS, false);
                        return None;
                    }
                    Role::Party => {
                        self.faults.up(PEER, &self.peer, peer_clock);
                        self.peer_link = Some(link);
                        PeerId::Party
                    }
                    Role::Member => {
                        self.replaced_links.up(pin.id, address.ip().to_canonical(), Instant::now());
                        self.member_links.insert(link, pin.id);
                        PeerId::Member(pin.id)
                    }
                    // No port of a party accepts nodes, or who was removed.
                    Role::Node(_) | Role::Former => return None,
                };
                Some(PartyInput::LinkUp { link, peer, exporter: Seed::new(*exporter.0) })
            }
            LinkEvent::Frame { link, bytes, .. } => Some(PartyInput::Frame { link, bytes }),
            LinkEvent::Down { link, reason } => {
                if let Some(slot) = self.member_links.remove(&link) {
                    self.replaced_links.ended(slot, reason == REPLACED);
                }
                if self.peer_link.take_if(|up| *up == link).is_some() {
                    self.ended(reason);
                }
                Some(PartyInput::LinkDown { link })
            }
            LinkEvent::Failed { failure, .. } => {
                self.faults.failed(PEER, &self.peer, &failure);
                None
            }
        }
    }

    fn own(&mut self, NoPeer(words): NoPeer) -> Step<Party> {
        // If it has connected, its link ended or was refused, and that is the fault.
        if self.peer_link.is_none() && self.faults.of(PEER).is_none() {
            self.faults.report(Fault::Link(PEER), &words, false);
        }
        Step::Ignore
    }

    fn before(&mut self, machine: &mut Party) -> Result<(), Failure> {
        machine.reseed(&fresh()?);
        Ok(())
    }

    fn perform(&mut self, output: PartyOutput, _: &mut VecDeque<PartyInput>) -> Result<(), Failure> {
        match output {
            PartyOutput::Send { link, frame } => self.links.send(link, frame),
            PartyOutput::Close { link, reason } => {
                if self.peer_link == Some(link) {
                    self.ended(reason.clone());
                }
                self.links.close(link, &reason);
            }
            PartyOutput::Persist { id, changes } => {
                state::submit(&self.store, changes, when_durable(&self.events, PartyInput::Persisted(id)))?;
            }
            PartyOutput::Setup(job) => {
                let ended = || Failure::new("the thread that makes correlations has ended; start the party again");
                self.setup.send(job).map_err(|_| ended())?;
            }
            PartyOutput::Members(set) => {
                info!(number = set.number, slots = set.slots.len(), "member set in force");
                self.member_pins.replace(member_set::pins(&set));
                self.set.send_replace(*set);
                tokio::spawn(member_set::save(self.events.clone(), self.configuration.clone()));
            }
            PartyOutput::Event(event) => {
                if matches!(event, PartyEvent::Agreed { .. }) {
                    self.faults.well();
                }
                self.log.report(line(&event, &self.last_end));
            }
        }
        Ok(())
    }
}

impl PartyIo {
    fn ended(&mut self, reason: String) {
        self.faults.ended(PEER, &self.peer.name, &reason);
        self.last_end = reason;
    }
}

/// What the operator is told; `last_end` is why the last link to the peer party ended.
pub fn line(event: &PartyEvent, last_end: &str) -> EventLine {
    match event {
        PartyEvent::Agreed { objects, dropped, lost } => event!(INFO "agreed" { objects, dropped, lost }
            "link to the peer party up: both parties store the same objects"),
        PartyEvent::PeerPartyDown => event!(WARN "other-gone" {}
            "link to the peer party down: {last_end}; nothing is computed until it is up, and members keep their routes"),
        PartyEvent::BadFrame { slot: Some(slot), what } => event!(WARN "bad-frame" by *slot, { slot; what }
            "frame of the member in slot {slot} refused ({what}); link closed"),
        PartyEvent::BadFrame { slot: slot @ None, what } => event!(WARN "bad-frame" by u32::MAX, {; slot, what }
            "frame of the peer party refused: {what}; link closed"),
        PartyEvent::Refused { slot, version, reason } => {
            event!(INFO "refused" by *slot, { slot, version; reason = shown(reason) }
            "route object of the member in slot {slot} refused: {reason}")
        }
        PartyEvent::Mismatch { slot, version } => event!(WARN "mismatch" by *slot, { slot, version }
            "the parties received different versions of a route object; the member must send it again"),
        PartyEvent::Behind { slot, begins: begins @ true } => event!(WARN "behind" by *slot, { slot; begins }
            "the member in slot {slot} reads too slowly: updates to it are paused until it has caught up, and then it is sent everything; \
             tell its operator to look at its link"),
        PartyEvent::Behind { slot, begins: begins @ false } => event!(INFO "behind" by *slot, { slot; begins }
            "the member in slot {slot} has caught up and is sent everything"),
        PartyEvent::Deferred { slot, seconds } => event!(WARN "deferred" by *slot, { slot, seconds }
            "the member in slot {slot} asks for all routes, or connects again, too often: it is sent them in {seconds} seconds at the \
             earliest"),
        PartyEvent::OwnOrder { slot, seconds } => event!(WARN "own-order" by *slot, { slot, seconds }
            "the member in slot {slot} is sent all routes too often to have Select-Best choose among them each time: its own order \
             decides; again in {seconds} seconds"),
        PartyEvent::EpochLater { seconds } => event!(INFO "epoch-later" by u32::MAX, { seconds }
            "the new recommendation counts in {seconds} seconds, once the present one has counted for epoch_secs"),
        PartyEvent::Stalled { slot: Some(slot) } => event!(WARN "stalled" by *slot, { slot }
            "the member in slot {slot} read nothing of what was sent to it; link closed"),
        PartyEvent::Stalled { slot: slot @ None } => event!(WARN "stalled" by u32::MAX, {; slot }
            "the peer party read nothing of what was sent to it; link closed"),
        PartyEvent::MissedRanking { slot } => event!(INFO "missed-ranking" by *slot, { slot }
            "no ranking from the member in slot {slot} in time; this round goes on without it"),
        PartyEvent::LateRankings { slot } => event!(WARN "late-rankings" by *slot, { slot }
            "rankings of the member in slot {slot} come late again and again: its budget for late ones (late_per_second) is spent, and its \
             own order decides"),
        PartyEvent::Probation { slot, begins: begins @ true } => event!(WARN "probation" by *slot, { slot; begins }
            "two rankings in a row of the member in slot {slot} did not come in time: nobody waits for it until it has been in time for \
             a while; its own order decides for it"),
        PartyEvent::Probation { slot, begins: begins @ false } => event!(INFO "probation" by *slot, { slot; begins }
            "the member in slot {slot} has been in time again: its rankings are waited for"),
        PartyEvent::Expired { slot } => event!(INFO "expired" by *slot, { slot }
            "the member in slot {slot} has been away for longer than stale_secs: its routes are withdrawn"),
        PartyEvent::OtherExport { objects } => event!(WARN "other-export" { objects }
            "`export` has changed: {objects} stored route objects were secret-shared in the other mode and are removed; their members \
             send them again"),
        PartyEvent::Order { number, is_drawn: is_drawn @ true } => event!(INFO "order" by *number, { number; is_drawn }
            "both parties have drawn the key of the order of candidates (`order = {number}`): all members are sent all lists of candidates \
             again"),
        PartyEvent::Order { number, is_drawn: is_drawn @ false } => {
            event!(WARN "order" by *number, { number; is_drawn }
            "this party had no key of the order of candidates (`order = {number}`) and has taken over the peer party's: that is right if \
             this party's store is new")
        }
        PartyEvent::OlderStore(OlderStore { party, holds, agreed }) => {
            event!(WARN "older-store" by *party, { party, holds, agreed }
            "the store of party {party} holds less than the parties had agreed on, as when it was replaced by an older copy: what it \
             lacks is dropped at both, and members send it again; find out who put it there")
        }
        PartyEvent::OlderStores { slot, took, holds } => event!(WARN "older-stores" by *slot, { slot, took, holds }
            "the member in slot {slot} says that it took batch {took}, and the newest in either party's store was {holds}: both stores may be \
             older copies, and routes that were withdrawn since then come back until their announcers' lists are complete; find out who put \
             them there, or whether that member errs"),
        PartyEvent::MembersRefused { why } => event!(ERROR "members-refused" {; why }
            "the member set's file is refused: {why}; the set in force stays, and `wayleave members show` prints the file's"),
        PartyEvent::Format { format, before } if format > before => {
            event!(INFO "format" { format, format_before = before }
            "all members read format {format} of route objects: they announce in it from now on")
        }
        PartyEvent::Format { format, before } => event!(WARN "format" { format, format_before = before }
            "a member reads format {format} of route objects at most, and others announced in {before}: they announce their routes again; \
             `wayleave show status` says which slot it is"),
        PartyEvent::VersionsDiffer { slot, told, ours } => {
            event!(WARN "versions-differ" by *slot, { slot; told = told.to_string(), ours = ours.to_string() }
            "the peer party told the member in slot {slot} that it speaks version {told} of the protocol, and told this party {ours}: it \
             was just started again with another version, which mends itself, or one of the two lies; the member's link is closed")
        }
        PartyEvent::Engine { what } => event!(ERROR "engine" {; what }
            "computation with the peer party failed: {what}; it starts again when both parties are ready"),
    }
}
