//! A node's side of the control plane: what it publishes, follows, finds and obtains, against real servers as machines.
//!
//! ICC, node: a node with its servers, as machines: adverts durable before they are sent, renewed, above what servers
//! know; leases that outlive adverts; IDs that roll; servers that are silent: by rule.
//! ICC, renewal: a later membership is published and used for requests; an older one, or another's, is not.

use std::collections::BTreeMap;
use std::sync::Arc;

use wayleave_control::advert::{Advert, Extension, Link, PACKETS_EXTENSION, Relationship, TagOffer, TagUse};
use wayleave_control::consent::{
    ConsentServer, ConsentServerConfig, ConsentServerInput, ConsentServerOutput, HopFault, Policy, PolicyFile, Rule,
    TagKeys,
};
use wayleave_control::database::Refusal;
use wayleave_control::frames::{Body, Frame, Host};
use wayleave_control::node::{Member, Node, NodeConfig, NodeEvent, NodeInput, NodeOutput, Profile, PublisherConfig};
use wayleave_control::path::{
    PathFailure, PathServer, PathServerConfig, PathServerEvent, PathServerInput, PathServerOutput,
};
use wayleave_control::realm::{Freshness, ListSigner, MAX_STALENESS, Membership, RevocationList, Rolls, Server};
use wayleave_control::store::{Record, Store};
use wayleave_core::{IdentityKey, Instant, Machine, Now, UnixTime};
use wayleave_crypto::signed::Signed;
use wayleave_packet::Path;
use wayleave_packet::icing::header::Version;

use super::common::*;

const PATHS: u32 = 900;
const CONSENT: u32 = 950;
const EPOCH: u32 = 3_600;
const DAY: u64 = 86_400;

fn config(node: u32, servers: Vec<Server>, store: Store) -> NodeConfig {
    NodeConfig {
        publisher: PublisherConfig {
            identity: identity_key(node),
            membership: signed_membership(node),
            ids: Some(seed(3, node)),
            epoch: EPOCH,
            lifetime: 2,
            last: None,
        },
        servers,
        capacity: 100,
        max_staleness: MAX_STALENESS,
        store,
        seed: seed(9, node),
    }
}

fn profile(node: u32, links: &[(u32, Relationship)]) -> Profile {
    let link = |(neighbour, relationship): &(u32, Relationship)| Link {
        neighbour: identity(*neighbour),
        relationship: *relationship,
        public: true,
        interface: *neighbour as u16 + 1,
        endpoint: Some(endpoint(&format!("198.51.100.{node}:49252"))),
    };
    let offer = |tag, usage| TagOffer { tag, usage, meaning: String::new() };
    Profile {
        mtu: 1400,
        links: links.iter().map(link).collect(),
        open: None,
        tls: Some(endpoint(&format!("198.51.100.{node}:443"))),
        tags: vec![offer(TRANSIT, TagUse::Transit), offer(DELIVER, TagUse::Deliver)],
        consent: Some(server(CONSENT)),
    }
}

/// Nodes, one path server and one consent server for all of them, connected by queues that lose nothing.
struct World {
    now: Now,
    nodes: BTreeMap<u32, Node>,
    paths: Option<PathServer>,
    consent: Option<ConsentServer>,
    /// What nodes reported, the latest last.
    outputs: BTreeMap<u32, Vec<NodeOutput>>,
    /// The records that each node stored.
    stored: BTreeMap<u32, Vec<Record>>,
    /// What the path server reported.
    path_events: Vec<PathServerEvent>,
    /// By how many seconds the clocks of a node are behind: that of the wall, and the monotonic one.
    behind: BTreeMap<u32, (i64, i64)>,
}

fn rules(seconds: u32) -> Policy {
    let rule = Rule { name: "all".to_owned(), allow: true, seconds, ..Rule::default() };
    Policy::new(&PolicyFile { rule: vec![rule], test: Vec::new() }).expect("in order")
}

impl World {
    fn new(nodes: &[u32]) -> Self {
        let mut world = Self::apart(nodes);
        for node in nodes {
            world.connect(*node);
        }
        world
    }

    /// The same before anybody has connected.
    fn apart(nodes: &[u32]) -> Self {
        let now = at(0);
        let paths = PathServer::new(PathServerConfig {
            realm: realm(0),
            capacity: 100,
            peers: Vec::new(),
            store: Store::New,
            requests: 20,
            max_staleness: MAX_STALENESS,
            instance: 7,
        });
        let masters = |node: &u32| (identity(*node), TagKeys::new(vec![(0, master(*node))]));
        let consent = ConsentServerConfig {
            identity: identity_key(CONSENT),
            realm: realm(0),
            capacity: 100,
            nodes: nodes.iter().map(masters).collect(),
            policy: rules(60),
            store: Store::New,
            requests: 100,
            max_staleness: MAX_STALENESS,
            seed: seed(8, 0),
        };
        let consent = ConsentServer::new(consent, UnixTime((NOW - 100) * 1_000_000));
        let node = |node: &u32| (*node, Node::new(config(*node, vec![server(PATHS)], Store::New)));
        Self {
            now,
            nodes: nodes.iter().map(node).collect(),
            paths: Some(paths),
            consent: Some(consent),
            outputs: BTreeMap::new(),
            stored: BTreeMap::new(),
            path_events: Vec::new(),
            behind: BTreeMap::new(),
        }
    }

    /// The clocks of a node.
    fn now_of(&self, node: u32) -> Now {
        let (wall, monotonic) = self.behind.get(&node).copied().unwrap_or_default();
        Now {
            unix: UnixTime(self.now.unix.0.saturating_add_signed(-wall * 1_000_000)),
            instant: Instant(self.now.instant.0.saturating_add_signed(-monotonic * 1_000_000_000)),
        }
    }

    fn connect(&mut self, node: u32) {
        if let Some(paths) = &mut self.paths {
            paths.handle(PathServerInput::Connected { link: node.into(), peer: identity(node) }, self.now);
            self.give(node, NodeInput::Connected(identity(PATHS)));
        }
        if let Some(consent) = &mut self.consent {
            consent.handle(ConsentServerInput::Connected { link: node.into(), peer: identity(node) }, self.now);
        }
    }

    fn give(&mut self, node: u32, input: NodeInput) {
        let now = self.now_of(node);
        self.nodes.get_mut(&node).expect("a node").handle(input, now);
        self.settle();
    }

    /// Runs everything until nobody has anything to say.
    fn settle(&mut self) {
        loop {
            let mut is_idle = true;
            let numbers: Vec<u32> = self.nodes.keys().copied().collect();
            for number in numbers {
                for output in drain(self.nodes.get_mut(&number).expect("a node")) {
                    is_idle = false;
                    self.perform(number, output);
                }
            }
            is_idle &= self.servers_are_idle();
            if is_idle {
                return;
            }
        }
    }

    fn perform(&mut self, number: u32, output: NodeOutput) {
        let (now, link) = (self.now, u64::from(number));
        match output {
            NodeOutput::Send { to, octets } if to.identity == identity(PATHS) => match &mut self.paths {
                Some(paths) => paths.handle(PathServerInput::Frame { link, octets }, now),
                None => self.unreachable(number, to.identity),
            },
            NodeOutput::Send { to, octets } if to.identity == identity(CONSENT) => match &mut self.consent {
                Some(consent) => consent.handle(ConsentServerInput::Frame { link, octets: octets.into() }, now),
                None => self.unreachable(number, to.identity),
            },
            NodeOutput::Send { .. } => {}
            NodeOutput::Persist { id, records } => {
                self.stored.entry(number).or_default().extend(records);
                let now = self.now_of(number);
                self.nodes.get_mut(&number).expect("a node").handle(NodeInput::Persisted(id), now);
            }
            other => self.outputs.entry(number).or_default().push(other),
        }
    }

    fn unreachable(&mut self, number: u32, server: IdentityKey) {
        self.nodes.get_mut(&number).expect("a node").handle(NodeInput::Unreachable(server), self.now);
    }

    fn servers_are_idle(&mut self) -> bool {
        let mut is_idle = true;
        let mut to_nodes = Vec::new();
        if let Some(paths) = &mut self.paths {
            for output in drain(paths) {
                is_idle = false;
                match output {
                    PathServerOutput::Send { link, octets } => to_nodes.push((link, identity(PATHS), octets)),
                    PathServerOutput::Persist { id, .. } => paths.handle(PathServerInput::Persisted(id), self.now),
                    PathServerOutput::Event(event) => self.path_events.push(event),
                    PathServerOutput::Close { .. } => {}
                }
            }
        }
        if let Some(consent) = &mut self.consent {
            for output in drain(consent) {
                is_idle = false;
                if let ConsentServerOutput::Send { link, octets } = output {
                    to_nodes.push((link, identity(CONSENT), octets));
                }
            }
        }
        for (link, from, octets) in to_nodes {
            let now = self.now_of(link as u32);
            let node = self.nodes.get_mut(&(link as u32)).expect("a node");
            node.handle(NodeInput::Frame { from, octets }, now);
        }
        is_idle
    }

    /// Lets time pass in steps of 100 ms.
    fn pass(&mut self, secs: u64) {
        let begin = self.now.unix.secs() - NOW;
        for step in 1..=secs * 10 {
            self.now = at_ms(begin * 1_000 + step * 100);
            for number in self.nodes.keys().copied().collect::<Vec<_>>() {
                let now = self.now_of(number);
                let node = self.nodes.get_mut(&number).expect("a node");
                if node.deadline().is_some_and(|deadline| deadline <= now.instant) {
                    node.handle_timeout(now);
                }
            }
            if let Some(paths) =
                self.paths.as_mut().filter(|paths| paths.deadline().is_some_and(|at| at <= self.now.instant))
            {
                paths.handle_timeout(self.now);
                // The consent server follows the same records.
                let records: Vec<Record> = paths.database().all_records().collect();
                if let Some(consent) = &mut self.consent {
                    consent.handle(ConsentServerInput::Records { records, complete: true }, self.now);
                }
            }
            self.settle();
        }
    }

    /// Nobody runs for a while, and everybody a moment after it.
    fn skip(&mut self, secs: u64) {
        self.now = at(self.now.unix.secs() - NOW + secs);
        self.pass(3);
    }

    /// Somebody hands a list in at the path server.
    fn publish(&mut self, list: &Signed<RevocationList>) {
        let octets = Frame { request: 1, body: Body::SubmitRevocations(list.clone()) }.encode();
        let (link, peer) = (u64::from(u32::MAX), identity(PATHS + 1));
        let paths = self.paths.as_mut().expect("a path server");
        paths.handle(PathServerInput::Connected { link, peer }, self.now);
        paths.handle(PathServerInput::Frame { link, octets }, self.now);
        // Its answer is nobody's of this world.
        let (now, outputs) = (self.now, drain(paths));
        for output in outputs {
            if let PathServerOutput::Persist { id, .. } = output {
                self.paths.as_mut().expect("a path server").handle(PathServerInput::Persisted(id), now);
            }
        }
        drain(self.paths.as_mut().expect("a path server"));
        self.pass(12);
    }

    /// What a node reported of the list of removed nodes since this was last asked.
    fn freshness(&mut self, node: u32) -> Vec<Freshness> {
        let outputs = self.take(node).into_iter();
        let list = |output| match output {
            NodeOutput::Event(NodeEvent::List(freshness)) => Some(freshness),
            _ => None,
        };
        outputs.filter_map(list).collect()
    }

    /// Why node 1 gets no consent to its path to node 3.
    fn refusal(&mut self) -> Option<HopFault> {
        let path = self.found(1, n3()).expect("a path").remove(0);
        self.give(1, NodeInput::Obtain { id: 9, path, seconds: 30 });
        let outputs = self.take(1).into_iter();
        let failed = |output| match output {
            NodeOutput::NoConsent { reasons, .. } => reasons.first().map(|reason| reason.fault),
            _ => None,
        };
        let fault = outputs.filter_map(failed).next();
        self.give(1, NodeInput::Release { id: 9 });
        fault
    }

    fn take(&mut self, node: u32) -> Vec<NodeOutput> {
        self.outputs.remove(&node).unwrap_or_default()
    }

    fn found(&mut self, node: u32, host: Host) -> Result<Vec<Path>, Vec<(IdentityKey, PathFailure)>> {
        self.take(node);
        self.give(node, NodeInput::Find(host));
        for _ in 0..100 {
            for output in self.take(node) {
                match output {
                    NodeOutput::Paths { paths, .. } => return Ok(paths),
                    NodeOutput::NoPath { reasons, .. } => return Err(reasons),
                    _ => {}
                }
            }
            self.pass(1);
        }
        panic!("no answer");
    }

    fn ready(&mut self, node: u32) -> Option<Path> {
        self.take(node).into_iter().rev().find_map(|output| match output {
            NodeOutput::Ready { path, .. } => Some(path),
            _ => None,
        })
    }
}

/// 1 - 2 - 3, 2 the provider of both.
fn row() -> World {
    use Relationship::{Customer, Provider};
    let mut world = World::new(&[1, 2, 3]);
    world.give(1, NodeInput::Profile(profile(1, &[(2, Provider)])));
    world.give(2, NodeInput::Profile(profile(2, &[(1, Customer), (3, Customer)])));
    world.give(3, NodeInput::Profile(profile(3, &[(2, Provider)])));
    world.pass(3);
    world
}

fn n3() -> Host {
    Host::Name(name("n3"))
}

#[test]
fn nodes_that_publish_themselves_find_each_other_and_obtain_consent() {
    let mut world = row();
    let paths = world.found(1, n3()).expect("a path");
    assert_eq!(paths.len(), 1);
    let nodes: Vec<IdentityKey> = paths[0].nodes().map(|(node, ..)| node).collect();
    assert_eq!(nodes, [1, 2, 3].map(identity));
    world.give(1, NodeInput::Obtain { id: 5, path: paths[0].clone(), seconds: 30 });
    let path = world.ready(1).expect("consents");
    assert!(path.icing_path().is_ok(), "with every proof");
    assert_eq!(world.nodes[&1].status().registered, 1);
}

#[test]
fn a_path_is_asked_for_once_and_consents_are_renewed_without_another_search() {
    let mut world = row();
    let path = world.found(1, n3()).expect("a path").remove(0);
    world.give(1, NodeInput::Obtain { id: 5, path, seconds: 30 });
    let first = world.ready(1).expect("consents").expiry();
    let searched = world.nodes[&1].status().path_requests;
    world.pass(300);
    let last = world.ready(1).expect("renewed").expiry();
    // Adverts last two minutes: the path outlived them, since it was extended as they were renewed.
    assert!(last >= first + 290, "{first} {last}");
    assert_eq!(world.nodes[&1].status().path_requests, searched, "nobody waited for a search");
    world.give(1, NodeInput::Release { id: 5 });
    let requests = world.nodes[&1].status().consent_requests;
    world.pass(120);
    assert_eq!(world.nodes[&1].status().consent_requests, requests, "a path that was released is not renewed");
}

#[test]
fn an_advert_is_durable_before_anybody_has_it_and_is_renewed_at_half_of_its_time() {
    let mut node = Node::new(config(1, vec![server(PATHS)], Store::New));
    node.handle(NodeInput::Connected(identity(PATHS)), at(0));
    let outputs = drain(&mut node);
    assert!(outputs.iter().all(|output| !matches!(output, NodeOutput::Send { .. })), "nothing is sent");
    let id = outputs.iter().find_map(|output| match output {
        NodeOutput::Persist { id, .. } => Some(*id),
        _ => None,
    });
    node.handle(NodeInput::Persisted(id.expect("to store")), at(0));
    let is_registration = |output: &NodeOutput| {
        let NodeOutput::Send { octets, .. } = output else { return false };
        matches!(Frame::decode(octets).map(|frame| frame.body), Ok(Body::Register { .. }))
    };
    assert!(drain(&mut node).iter().any(is_registration), "now it is sent");
    let mut world = row();
    let sequence = world.nodes[&2].status().sequence;
    world.pass(50);
    assert_eq!(world.nodes[&2].status().sequence, sequence);
    world.pass(20);
    assert!(world.nodes[&2].status().sequence > sequence, "adverts last 120 seconds");
}

/// The wall clock is `secs` after the beginning, and the monotonic one is not: a clock was set, or the machine slept.
fn jumped(secs: u64) -> Now {
    Now { unix: at(secs).unix, ..at(1) }
}

#[test]
fn an_advert_that_has_expired_by_the_wall_clock_is_replaced_at_once_and_not_sent_again() {
    let mut node = Node::new(config(1, vec![server(PATHS)], Store::New));
    let adverts = |node: &mut Node, now: Now| {
        let (mut sent, mut waits) = (Vec::new(), true);
        while waits {
            waits = false;
            for output in drain(node) {
                match output {
                    NodeOutput::Persist { id, .. } => {
                        node.handle(NodeInput::Persisted(id), now);
                        waits = true;
                    }
                    NodeOutput::Send { octets, .. } => {
                        if let Body::Register { advert, .. } = Frame::decode(&octets).expect("its own").body {
                            sent.push(advert.object().issued - NOW);
                        }
                    }
                    _ => {}
                }
            }
        }
        sent
    };
    node.handle(NodeInput::Connected(identity(PATHS)), at(0));
    assert_eq!(adverts(&mut node, at(0)), [0]);
    // Two minutes are over in which the monotonic clock stood still. The link is down, and comes back.
    node.handle(NodeInput::Disconnected(identity(PATHS)), jumped(600));
    node.handle(NodeInput::Connected(identity(PATHS)), jumped(600));
    assert_eq!(adverts(&mut node, jumped(600)), [600]);
    // The clock is set back: what was issued in the future is replaced too.
    let later = Now { instant: at(3).instant, ..jumped(300) };
    node.handle_timeout(later);
    assert_eq!(adverts(&mut node, later), [300]);
    // A server whose clock is ahead calls it expired: it is made anew, but not as often as it is refused.
    let mut made = 0;
    for second in 0..300 {
        let now = at(400 + second);
        let refused = Frame { request: u32::MAX, body: Body::Refused(Refusal::Expired) }.encode();
        node.handle(NodeInput::Frame { from: identity(PATHS), octets: refused }, now);
        let fresh: std::collections::BTreeSet<u64> = adverts(&mut node, now).into_iter().collect();
        made += fresh.iter().filter(|issued| **issued == 400 + second).count();
    }
    assert!((2..=5).contains(&made), "one server alone has no say in how often others are told: {made}");
}

/// What others said while its clock was wrong it refused, and it was told once.
#[test]
fn a_node_whose_clock_was_wrong_knows_the_others_within_seconds_once_it_is_right() {
    use Relationship::{Customer, Provider};
    const DAYS: i64 = 2 * 86_400;
    // The wall clock alone is set; or the machine slept, and was told before it woke what others had said.
    for behind in [(DAYS, 0), (DAYS, DAYS), (600, 0), (-600, 0), (-DAYS, 0)] {
        let mut world = World::apart(&[1, 2, 3]);
        world.now = at(DAYS.unsigned_abs());
        world.behind.insert(1, behind);
        (1..=3).for_each(|node| world.connect(node));
        world.give(1, NodeInput::Profile(profile(1, &[(2, Provider)])));
        world.give(2, NodeInput::Profile(profile(2, &[(1, Customer), (3, Customer)])));
        world.give(3, NodeInput::Profile(profile(3, &[(2, Provider)])));
        let knows = |world: &mut World| {
            let realms = world.take(1).into_iter().rev().find_map(|output| match output {
                NodeOutput::Realm(realm) => Some(realm),
                _ => None,
            });
            realms.map(|realm| realm.nodes.values().filter(|member| member.advert.is_some()).count())
        };
        // Adverts last 120 seconds: none is new when the clock is right again.
        world.pass(20);
        assert_ne!(knows(&mut world), Some(3), "{behind:?}");
        world.behind.clear();
        world.pass(15);
        assert_eq!(knows(&mut world), Some(3), "{behind:?}");
    }
}

/// A server of the version before cannot read the advert, nor say which request it refuses.
#[test]
fn a_server_that_cannot_read_the_advert_refused_it() {
    let mut node = Node::new(config(1, vec![server(PATHS)], Store::New));
    node.handle(NodeInput::Connected(identity(PATHS)), at(0));
    let refused = |node: &mut Node, now| {
        let octets = Frame { request: 0, body: Body::Refused(Refusal::Malformed) }.encode();
        node.handle(NodeInput::Frame { from: identity(PATHS), octets }, now);
        let event = |output: &NodeOutput| matches!(output, NodeOutput::Event(NodeEvent::NotRegistered { .. }));
        let outputs = drain(node);
        (outputs.iter().filter(|output| event(output)).count(), outputs)
    };
    let (events, outputs) = refused(&mut node, at(0));
    assert_eq!(events, 0, "nothing was sent yet");
    let persist = outputs.iter().find_map(|output| match output {
        NodeOutput::Persist { id, .. } => Some(*id),
        _ => None,
    });
    node.handle(NodeInput::Persisted(persist.expect("to store")), at(0));
    drain(&mut node);
    assert_eq!(refused(&mut node, at(1)).0, 1);
    // It is not sent again at once, for nobody has mended it.
    let sends = |node: &mut Node, now| {
        node.handle_timeout(now);
        let is_sent = |output: &NodeOutput| {
            let NodeOutput::Send { octets, .. } = output else { return false };
            matches!(Frame::decode(octets).map(|frame| frame.body), Ok(Body::Register { .. }))
        };
        drain(node).iter().filter(|output| is_sent(output)).count()
    };
    assert_eq!((sends(&mut node, at(20)), sends(&mut node, at(31))), (0, 1));
}

#[test]
fn a_server_that_says_that_the_highest_number_was_used_does_not_have_a_node_use_it() {
    let mut world = row();
    let node = world.nodes.get_mut(&2).expect("a node");
    let before = node.status().sequence;
    let refused = Frame { request: u32::MAX, body: Body::Refused(Refusal::Older(u64::MAX)) }.encode();
    node.handle(NodeInput::Frame { from: identity(PATHS), octets: refused }, at(30));
    world.pass(400);
    let after = world.nodes[&2].status();
    assert!(before < after.sequence && after.sequence < u64::MAX / 2, "{after:?}");
    assert_eq!(after.registered, 1, "{after:?}");
}

#[test]
fn a_node_that_lost_its_store_goes_on_above_what_servers_know() {
    let mut world = row();
    let before = world.nodes[&2].status().sequence;
    // Its clock is behind now, too.
    let mut node = Node::new(config(2, vec![server(PATHS)], Store::Lost));
    let early = at(0);
    node.handle(NodeInput::Profile(profile(2, &[(1, Relationship::Customer)])), early);
    world.nodes.insert(2, node);
    world.settle();
    world.connect(2);
    world.pass(4);
    let status = world.nodes[&2].status();
    assert!(status.sequence > before && status.registered == 1, "{status:?}");
    // One that kept it continues without being refused.
    let kept = Store::Kept(world.stored[&2].clone());
    world.take(2);
    world.nodes.insert(2, Node::new(config(2, vec![server(PATHS)], kept)));
    world.connect(2);
    world.pass(4);
    let refused = |output: &NodeOutput| matches!(output, NodeOutput::Event(NodeEvent::NotRegistered { .. }));
    assert!(!world.take(2).iter().any(refused));
    assert!(world.nodes[&2].status().sequence > status.sequence);
}

#[test]
fn ids_roll_with_the_epochs_and_the_previous_one_is_still_known() {
    let mut world = row();
    let ids = |world: &mut World| {
        let outputs = world.take(2);
        outputs.into_iter().rev().find_map(|output| match output {
            NodeOutput::Ids(ids) => Some(ids),
            _ => None,
        })
    };
    let first = ids(&mut world).expect("made at the start");
    assert_eq!(first.len(), 3);
    let left = u64::from(EPOCH) - NOW % u64::from(EPOCH);
    world.take(1);
    world.pass(left + 5);
    let next = ids(&mut world).expect("rolled");
    assert_eq!([next[0].key, next[1].key], [first[1].key, first[2].key], "each moves up");
    // Others know all of them that may still be in use.
    let realm = world.take(1).into_iter().rev().find_map(|output| match output {
        NodeOutput::Realm(realm) => Some(realm),
        _ => None,
    });
    let realm = realm.expect("a snapshot");
    let known: Vec<u32> = realm.nodes[&identity(2)].ids.iter().map(|id| id.epoch).collect();
    assert_eq!(known, [first[1].key.epoch, next[1].key.epoch, next[2].key.epoch]);
    let path = world.found(1, n3()).expect("a path").remove(0);
    let on_path: Vec<_> = path.nodes().map(|(_, id, _)| id).collect();
    assert_eq!(on_path[1], next[1].key.node, "by the ID of now");
    world.give(1, NodeInput::Obtain { id: 1, path, seconds: 30 });
    assert!(world.ready(1).is_some(), "and the sender's own is the right one too");
}

#[test]
fn servers_that_are_silent_or_gone_are_named_and_the_next_one_is_asked() {
    let mut world = row();
    let mut config = config(1, vec![server(901), server(PATHS)], Store::New);
    config.publisher.last = None;
    let mut node = Node::new(config);
    node.handle(NodeInput::Profile(profile(1, &[(2, Relationship::Provider)])), world.now);
    world.nodes.insert(1, node);
    world.connect(1);
    world.pass(3);
    let paths = world.found(1, n3()).expect("what the second server sent");
    assert_eq!(paths.len(), 1);
    // Server 901 never answers: it is asked last from then on.
    let reasons = world.found(1, Host::Name(name("n9"))).expect_err("nobody knows it");
    let unknown = PathFailure::Refused(Refusal::NoSuchHost);
    assert_eq!(reasons, [(identity(901), PathFailure::Silent), (identity(PATHS), unknown)]);
    world.paths = None;
    let reasons = world.found(1, Host::Name(name("n8"))).expect_err("both fail");
    assert_eq!(reasons, [(identity(PATHS), PathFailure::Unreachable), (identity(901), PathFailure::Silent)]);
    world.consent = None;
    world.give(1, NodeInput::Obtain { id: 9, path: paths[0].clone(), seconds: 30 });
    let failed = world.take(1).into_iter().find_map(|output| match output {
        NodeOutput::NoConsent { reasons, .. } => Some(reasons),
        _ => None,
    });
    let faults: Vec<_> = failed.expect("refused").iter().map(|reason| (reason.index, reason.fault)).collect();
    assert_eq!(faults, [(1, HopFault::Unreachable), (2, HopFault::Unreachable)]);
}

#[test]
fn a_node_that_leaves_or_is_removed_is_on_no_remembered_path() {
    let mut world = row();
    world.found(1, n3()).expect("a path");
    world.give(2, NodeInput::Profile(Profile { links: Vec::new(), ..profile(2, &[]) }));
    world.pass(2);
    assert!(world.found(1, n3()).is_err(), "it departed");
    use Relationship::Customer;
    world.give(2, NodeInput::Profile(profile(2, &[(1, Customer), (3, Customer)])));
    world.pass(3);
    world.found(1, n3()).expect("it is back");
    let list = Frame { request: 1, body: Body::SubmitRevocations(revocations(1, &[2])) }.encode();
    let now = world.now;
    let paths = world.paths.as_mut().expect("a server");
    paths.handle(PathServerInput::Connected { link: 77, peer: identity(77) }, now);
    paths.handle(PathServerInput::Frame { link: 77, octets: list }, now);
    // Nobody is behind link 77 any more.
    for output in drain(paths) {
        if let PathServerOutput::Persist { id, .. } = output {
            paths.handle(PathServerInput::Persisted(id), now);
        }
    }
    drain(paths);
    world.pass(2);
    assert!(world.found(1, n3()).is_err(), "it was removed");
    world.pass(70);
    let refused = |output: &NodeOutput| {
        matches!(output, NodeOutput::Event(NodeEvent::NotRegistered { refusal: Refusal::Revoked, .. }))
    };
    assert!(world.take(2).iter().any(refused), "and learns it");
}

#[test]
fn a_later_membership_is_published_and_used_for_requests_and_an_older_or_anothers_is_not() {
    let mut world = row();
    let path = world.found(1, n3()).expect("a path").remove(0);
    let known = |world: &World| {
        let database = world.paths.as_ref().expect("running").database();
        database.membership(&identity(1), NOW + 3).expect("a member").number
    };
    let before = membership(1);
    let later = Membership { number: before.number + 1, not_after: before.not_after + 1_000, ..before.clone() };
    let sign = |membership: &Membership, key: u32| Signed::sign(membership, &realm_key(key)).expect("in order");
    // Of another realm's key, and another node's.
    for wrong in [sign(&later, 1), sign(&Membership { number: 9, ..membership(2) }, 0), sign(&before, 0)] {
        world.give(1, NodeInput::Membership(Box::new(wrong)));
        world.pass(2);
        assert_eq!(known(&world), before.number);
    }
    world.give(1, NodeInput::Membership(Box::new(sign(&later, 0))));
    world.pass(2);
    assert_eq!((known(&world), world.nodes[&1].membership().object().number), (later.number, later.number));
    world.give(1, NodeInput::Obtain { id: 5, path, seconds: 30 });
    assert!(world.ready(1).is_some(), "consents are asked for with the later one");
}

/// A node of the small topology whose path servers are 900 and 901, of which the first has told it all that it knows.
fn follower(records: Vec<Record>) -> Node {
    let mut node = Node::new(config(0, vec![server(PATHS), server(PATHS + 1)], Store::New));
    for number in [PATHS, PATHS + 1] {
        node.handle(NodeInput::Connected(identity(number)), at(0));
    }
    node.handle_timeout(at(2));
    told(&mut node, PATHS, records, at(2));
    node
}

/// A path server sends all that it knows, by a subscription.
fn told(node: &mut Node, by: u32, records: Vec<Record>, now: Now) -> Vec<NodeOutput> {
    let body = Body::Records { instance: 1, version: 1, complete: true, records };
    drain(node);
    node.handle(NodeInput::Frame { from: identity(by), octets: Frame { request: 0, body }.encode() }, now);
    drain(node)
}

fn asks(outputs: &[NodeOutput]) -> usize {
    let is_question = |output: &&NodeOutput| {
        let NodeOutput::Send { octets, .. } = output else { return false };
        matches!(Frame::decode(octets).map(|frame| frame.body), Ok(Body::FindHost { .. }))
    };
    outputs.iter().filter(is_question).count()
}

#[test]
fn who_follows_a_path_server_finds_paths_by_itself_and_asks_for_what_it_does_not_hold() {
    let mut node = follower(records(6, &small()));
    node.handle(NodeInput::Find(Host::Name(name("n4"))), at(3));
    let outputs = drain(&mut node);
    let found = outputs.iter().find_map(|output| match output {
        NodeOutput::Paths { paths, .. } => Some(paths.len()),
        _ => None,
    });
    assert_eq!((asks(&outputs), found), (0, Some(3)));
    node.handle(NodeInput::Find(Host::Name(name("n9"))), at(3));
    assert_eq!(asks(&drain(&mut node)), 1, "a member that is not known here");
    // Nobody that is followed is connected: others may know more by now.
    for number in [PATHS, PATHS + 1] {
        node.handle(NodeInput::Disconnected(identity(number)), at(4));
    }
    node.handle(NodeInput::Connected(identity(PATHS + 1)), at(4));
    drain(&mut node);
    node.handle(NodeInput::Find(Host::Name(name("n5"))), at(4));
    assert_eq!(asks(&drain(&mut node)), 1);
    // No server is left: what is held is used, whether somebody asked for it before or not.
    node.handle(NodeInput::Disconnected(identity(PATHS + 1)), at(4));
    node.handle(NodeInput::Unreachable(identity(PATHS)), at(4));
    node.handle(NodeInput::Unreachable(identity(PATHS + 1)), at(4));
    let is_found = |output: &NodeOutput| matches!(output, NodeOutput::Paths { paths, .. } if !paths.is_empty());
    assert!(drain(&mut node).iter().any(is_found));
    node.handle(NodeInput::Find(Host::Name(name("n4"))), at(4));
    let outputs = drain(&mut node);
    assert!(outputs.iter().any(is_found), "at once: {}", outputs.len());
}

#[test]
fn an_open_node_publishes_nothing_when_a_thousand_members_come_and_go() {
    let mut node = Node::new(NodeConfig { capacity: 2_000, ..config(0, vec![server(PATHS)], Store::New) });
    node.handle(NodeInput::Connected(identity(PATHS)), at(0));
    let open = Some(endpoint("open.example.net:49252"));
    node.handle(NodeInput::Profile(Profile { open, ..profile(0, &[]) }), at(0));
    let (mut published, mut members) = (0, 0);
    let mut settle = |node: &mut Node, second: u64| {
        node.handle_timeout(at(second));
        loop {
            let outputs = drain(node);
            if outputs.is_empty() {
                return (published, members);
            }
            for output in outputs {
                match output {
                    NodeOutput::Send { octets, .. } => {
                        let frame = Frame::decode(&octets).expect("its own");
                        if let Body::Register { advert, .. } = frame.body {
                            published += 1;
                            let body = Body::Registered { number: advert.object().sequence };
                            let octets = Frame { request: frame.request, body }.encode();
                            node.handle(NodeInput::Frame { from: identity(PATHS), octets }, at(second));
                        }
                    }
                    NodeOutput::Persist { id, .. } => node.handle(NodeInput::Persisted(id), at(second)),
                    NodeOutput::Realm(realm) => {
                        let is_there = |member: &&Arc<Member>| {
                            member.advert.as_ref().is_some_and(|advert| !advert.links.is_empty())
                        };
                        members = realm.nodes.values().filter(is_there).count();
                    }
                    _ => {}
                }
            }
        }
    };
    // Its own advert, as it began and with its profile.
    let (own, _) = settle(&mut node, 5);
    assert!(own > 0);
    let tell = |node: &mut Node, records: Vec<Record>, second: u64| {
        for part in records.chunks(500) {
            let body = Body::Records { instance: 1, version: 1, complete: true, records: part.to_vec() };
            let octets = Frame { request: 0, body }.encode();
            node.handle(NodeInput::Frame { from: identity(PATHS), octets }, at(second));
        }
    };
    let there = |number: u32| advert(number, &[(0, Relationship::Provider)]);
    let come = (10..1_010).flat_map(|number| {
        let member = Record::Membership(signed_membership(number));
        [member, Record::Advert(signed_advert(&there(number), number))]
    });
    tell(&mut node, come.collect(), 6);
    assert_eq!(settle(&mut node, 10), (own, 1_000));
    let go = (10..510).map(|number| {
        let gone = Advert { sequence: 2, links: Vec::new(), ids: Vec::new(), ..there(number) };
        Record::Advert(signed_advert(&gone, number))
    });
    tell(&mut node, go.collect(), 11);
    assert_eq!(settle(&mut node, 20), (own, 500));
}

#[test]
fn paths_say_which_nodes_do_not_read_packets_for_sealed_payloads() {
    let found = |node: &mut Node| {
        node.handle(NodeInput::Find(Host::Name(name("n4"))), at(3));
        let paths = drain(node).into_iter().find_map(|output| match output {
            NodeOutput::Paths { paths, .. } => Some(paths),
            _ => None,
        });
        paths.expect("at once")
    };
    let unsealed = |path: &Path| -> Vec<IdentityKey> {
        let nodes: Vec<IdentityKey> = path.nodes().map(|(node, ..)| node).collect();
        path.unread_by().map(|index| nodes[index]).collect()
    };
    // Nobody says so in adverts of before.
    let mut node = follower(records(6, &small()));
    for path in found(&mut node) {
        assert_eq!(unsealed(&path), path.nodes().skip(1).map(|(node, ..)| node).collect::<Vec<_>>());
    }
    let with = |values: &[(u32, &[u8])], sequence| {
        let adverts = adverts(6, &small());
        let later = values.iter().map(|(node, value)| {
            let extensions = vec![Extension { kind: PACKETS_EXTENSION, value: value.to_vec() }];
            let advert = Advert { sequence, extensions, ..adverts[*node as usize].clone() };
            Record::Advert(signed_advert(&advert, *node))
        });
        later.collect::<Vec<_>>()
    };
    // All say so; then one went back to a program of before, and one says what cannot be read.
    told(&mut node, PATHS, with(&[1, 2, 3, 4, 5].map(|node| (node, &[1, 2][..])), 2), at(3));
    assert!(found(&mut node).iter().all(|path| unsealed(path).is_empty()));
    told(&mut node, PATHS, with(&[(3, &[1]), (4, &[1, 1, 9])], 3), at(3));
    for path in found(&mut node) {
        let has_three = path.nodes().any(|(node, ..)| node == identity(3));
        let expected: Vec<IdentityKey> = [3, 4][usize::from(!has_three)..].iter().map(|node| identity(*node)).collect();
        assert_eq!(unsealed(&path), expected);
    }
}

#[test]
fn a_node_says_which_packets_it_reads() {
    let mut world = row();
    let own = world.stored[&2].iter().rev().find_map(|record| match record {
        Record::Advert(advert) => Some(advert.object().clone()),
        _ => None,
    });
    let own = own.expect("its own advert");
    assert!(own.reads(Version::Standard) && own.reads(Version::Sealed) && own.tls().is_some());
    assert!(world.found(1, n3()).expect("a path").iter().all(|path| path.unread_by().next().is_none()));
}

/// The first server leaves out what is not over its accomplice; what the second one knows is enough.
#[test]
fn a_path_server_that_leaves_nodes_out_does_not_choose_the_path() {
    let all = records(6, &small());
    let is_of = |record: &Record, node: u32| match record {
        Record::Membership(member) => member.object().identity == identity(node),
        Record::Advert(advert) => advert.object().identity == identity(node),
        _ => false,
    };
    let filtered = all.iter().filter(|record| !is_of(record, 2) && !is_of(record, 1)).cloned().collect();
    let mut node = follower(filtered);
    told(&mut node, PATHS + 1, all, at(2));
    node.handle(NodeInput::Find(Host::Name(name("n4"))), at(3));
    let paths = drain(&mut node).into_iter().find_map(|output| match output {
        NodeOutput::Paths { paths, .. } => Some(paths),
        _ => None,
    });
    assert_eq!(paths.expect("at once").len(), 3);
}

#[test]
fn two_adverts_of_one_node_and_number_are_an_alarm_with_both_once() {
    let mut node = follower(records(6, &small()));
    let first = adverts(6, &small()).remove(3);
    let second = Advert { mtu: first.mtu + 1, ..first.clone() };
    let forged = Signed::sign(&second, &identity_key(2)).expect("in order");
    let events = |outputs: Vec<NodeOutput>| -> Vec<NodeEvent> {
        let events = outputs.into_iter().filter_map(|output| match output {
            NodeOutput::Event(event) => Some(event),
            _ => None,
        });
        events.collect()
    };
    // What the node did not sign says nothing against it.
    let outputs = told(&mut node, PATHS + 1, vec![Record::Advert(forged)], at(3));
    assert_eq!(events(outputs), []);
    let other = Record::Advert(signed_advert(&second, 3));
    for round in 0..3 {
        let outputs = told(&mut node, PATHS + 1, vec![other.clone()], at(4 + round));
        let known = Record::Advert(signed_advert(&first, 3));
        let alarm = NodeEvent::Conflict { known: Box::new(known), other: Box::new(other.clone()) };
        assert_eq!(events(outputs), if round == 0 { vec![alarm] } else { Vec::new() });
    }
}

/// The drill of an operator's side that is gone: after an hour there are warnings, beyond `max_staleness` consent ends and paths go on, and a
/// list from another machine, which has a list key and the last list alone, brings consent back.
#[test]
fn without_the_operators_side_consent_ends_after_max_staleness_and_a_list_of_another_machine_brings_it_back() {
    let mut world = row();
    let signer = super::lists::list_key(1, 0, NOW + 30 * DAY);
    let first = ListSigner::Realm(realm_key(0))
        .sign(None, 0, Vec::new(), &Rolls::default(), 600, world.now.unix)
        .expect("in order");
    world.publish(&first);
    assert_eq!(world.refusal(), None);
    let due = first.object().next;
    world.skip(3_600);
    let overdue = [Freshness::Overdue(due)];
    assert_eq!([1, 2, 3].map(|node| world.freshness(node)), [overdue, overdue, overdue]);
    assert_eq!(world.refusal(), None, "a warning, and nothing else");
    world.path_events.clear();
    world.skip(2 * DAY);
    let stale = [Freshness::Stale(due)];
    assert_eq!([1, 2, 3].map(|node| world.freshness(node)), [stale, stale, stale]);
    assert!(world.path_events.contains(&PathServerEvent::List(Freshness::Stale(due))));
    assert_eq!(world.refusal(), Some(HopFault::Refused(Refusal::StaleList)));
    // It is signed ahead for a week.
    let second = signer.sign_again(&first, &[], 7 * DAY, world.now.unix).expect("in order");
    world.take(1);
    world.publish(&second);
    assert_eq!(world.freshness(1), [Freshness::Fresh]);
    assert_eq!(world.refusal(), None);
    world.skip(6 * DAY);
    assert_eq!(world.freshness(1), []);
    assert_eq!(world.refusal(), None);
    world.skip(2 * DAY + 60);
    assert_eq!(world.refusal(), Some(HopFault::Refused(Refusal::StaleList)));
}
