//! An end of the paper's chain as a program by itself, as the publication's prototype was: the control plane's machine of a node,
//! its links to servers, and nothing else. It keeps no state: what it published before, it asks of the path server.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::path::Path as FilePath;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;
use wayleave_config::Source;
use wayleave_config::gateway::GatewayFile;
use wayleave_config::key_files::node::fresh;
use wayleave_config::links::{self, LinkSocket, OpenLinks};
use wayleave_config::overlay::Settings;
use wayleave_config::receiving::{Known, of_realm};
use wayleave_control::advert::Endpoint;
use wayleave_control::database::MAX_MEMBERS;
use wayleave_control::frames::{Host, MAX_FRAME, PROTOCOLS};
use wayleave_control::node::{Node, NodeConfig, NodeInput, NodeOutput, OwnId, PublisherConfig, Realm};
use wayleave_control::realm::Server;
use wayleave_control::store::Store;
use wayleave_core::{IdentityKey, Machine as _};
use wayleave_crypto::secret::Secret;
use wayleave_dataplane::icing::AgreedKeys;
use wayleave_dataplane::link::{self, message::is_message};
use wayleave_packet::Path;
use wayleave_packet::icing::header::{NodeId, Version};
use wayleave_packet::icing::mint::{NodeSecret, Sender};
use wayleave_runtime::Clock;
use wayleave_runtime::links::{Connecting, Limits, LinkEvent, Links};
use wayleave_runtime::node_tls::NodeIdentity;
use wayleave_runtime::packets::udp::{self, Intake, Udp};
use wayleave_runtime::packets::{Burst, Outgoing, Port, wait};
use wayleave_runtime::tls::Role;

use super::chain::{Result, said};

const QUEUE: usize = 256;
const LINK_QUEUE: usize = 8 << 20;
const TIMEOUT: Duration = Duration::from_secs(30);
/// The only path whose consents are asked for at a time.
const LEASE: u64 = 1;

/// An end of a link.
pub struct LinkEnd {
    pub link: u16,
    machine: link::Links,
    socket: Udp,
    out: Burst,
    clock: Clock,
}

impl LinkEnd {
    /// Receives a burst, and lets the session go on. Returns the number of packets, messages of the session among them.
    pub fn turn(&mut self, burst: &mut Burst) -> usize {
        let now = self.clock.now();
        let count = self.socket.receive(burst).unwrap_or(0);
        for (from, octets) in burst.packets_mut(0).take(count) {
            if is_message(octets) {
                self.machine.receive((0, *from), octets, now);
            }
        }
        self.machine.note_received(self.link, count as u64, 0, now.instant);
        self.machine.handle_timeout(now);
        while let Some(datagram) = self.machine.poll() {
            self.put(datagram.to, &datagram.octets);
        }
        count
    }

    /// Waits for packets, a little.
    pub fn wait(&self) {
        let _ = wait([&self.socket as &dyn Port].into_iter(), Duration::from_millis(5));
    }

    /// Sends a packet to the neighbour, if it has proved itself.
    pub fn send(&mut self, octets: &[u8]) {
        if let Some((_, to)) = self.machine.address(self.link) {
            self.machine.note_sent(self.link, 1, octets.len() as u64, self.clock.now().instant);
            self.put(to, octets);
        }
    }

    fn put(&mut self, to: SocketAddr, octets: &[u8]) {
        self.out.clear();
        if self.out.push(octets, to) {
            let _ = self.socket.send(&self.out, &[Outgoing { packet: 0, to }]);
        }
    }
}

/// A server, and what waits for its link.
struct Connection {
    link: Option<u64>,
    waiting: VecDeque<Vec<u8>>,
    _connecting: Connecting,
}

/// What a question was answered with.
enum Answer {
    Paths(Vec<Path>),
    Ready(Path),
    None(String),
}

/// A running node; it does its work while it is asked or [served](PaperNode::serve).
pub struct PaperNode {
    machine: Node,
    clock: Clock,
    settings: Settings,
    identity: NodeIdentity,
    links: Links,
    events: mpsc::Sender<LinkEvent>,
    inbox: mpsc::Receiver<LinkEvent>,
    servers: HashMap<IdentityKey, Connection>,
    by_link: HashMap<u64, IdentityKey>,
    realm: Arc<Realm>,
    ids: Vec<OwnId>,
    agreed: Arc<AgreedKeys>,
    answer: Option<Answer>,
    pub known: Known,
}

impl PaperNode {
    /// Publishes the node of the configuration that `join` wrote, and waits until it has a neighbour and a path server its advert.
    pub async fn start(config: &FilePath) -> Result<Self> {
        let source = Source::read(config).map_err(said)?;
        let file = GatewayFile::parse(&source).map_err(said)?;
        let settings = file.overlay.ok_or("no section [overlay]")?.get_ref().load(&source).map_err(said)?;
        let section = &settings.section;
        let publisher = PublisherConfig {
            identity: settings.signing_key(),
            membership: settings.membership.clone(),
            ids: settings.ids.clone(),
            epoch: u32::try_from(*section.id_epoch_secs.get_ref()).unwrap_or(u32::MAX),
            lifetime: u8::try_from(*section.lifetime_minutes.get_ref()).unwrap_or(u8::MAX),
            last: None,
        };
        let seed = Secret::new(*fresh().map_err(said)?);
        let servers = section.servers();
        let config = NodeConfig {
            publisher,
            servers: servers.clone(),
            capacity: MAX_MEMBERS,
            max_staleness: *section.max_staleness_secs.get_ref(),
            store: Store::Lost,
            seed,
        };
        let (events, inbox) = mpsc::channel(QUEUE);
        let realm: Arc<Realm> = Arc::default();
        let mut node = Self {
            machine: Node::new(config),
            clock: Clock::start(),
            identity: NodeIdentity::from_seed(settings.identity.expose()).map_err(said)?,
            links: Links::new(Limits { queue: LINK_QUEUE, frame: MAX_FRAME as u32, protocols: PROTOCOLS }),
            events,
            inbox,
            servers: HashMap::new(),
            by_link: HashMap::new(),
            known: of_realm(&settings, &settings.section, &realm, (&[], &Arc::default())),
            realm,
            ids: Vec::new(),
            agreed: Arc::default(),
            answer: None,
            settings,
        };
        for server in &servers {
            node.connect(server)?;
        }
        node.publish();
        let begin = Instant::now();
        while node.known.neighbours.is_empty()
            || node.known.receiver.secrets.is_empty()
            || node.machine.status().registered == 0
        {
            if begin.elapsed() > TIMEOUT {
                return Err(
                    "no neighbour has published where it is, or no path server has the node's advert".to_owned()
                );
            }
            node.serve(Duration::from_millis(20)).await?;
        }
        Ok(node)
    }

    /// The node's end of its only link, by which packets come and go once both ends have proved themselves.
    pub fn end(&self) -> Result<LinkEnd> {
        let section = &self.settings.section;
        let sockets = links::sockets(section);
        let peers = links::peers(self.settings.own(), section, &self.realm, &mut OpenLinks::default());
        let literal = |endpoint: &Endpoint, _| endpoint.literal().into_iter().collect();
        let peers =
            links::session_peers(peers, &sockets, u16::try_from(*section.mtu.get_ref()).unwrap_or(u16::MAX), literal);
        let link = peers.first().ok_or("no link")?.link;
        let Some(LinkSocket::Udp(local)) = sockets.first().copied() else { return Err("no socket".into()) };
        let group = udp::open(local, 1, Intake::Merged, None).map_err(said)?;
        let socket = group.data.into_iter().next().ok_or("no socket")?;
        let mut machine = links::machine(&self.settings).map_err(said)?;
        let clock = Clock::start();
        machine.set_peers(peers, clock.now());
        Ok(LinkEnd { link, machine, socket, out: Burst::default(), clock })
    }

    /// Asks for a path and for all consents, as a sender does that remembers nothing. Links to servers stay open.
    pub async fn ask(&mut self, host: IdentityKey) -> Result<Sender> {
        let host = Host::Identity(host);
        self.input(NodeInput::Forget(host.clone()));
        let paths = match self.question(NodeInput::Find(host)).await? {
            Answer::Paths(paths) => paths,
            Answer::Ready(_) => return Err("no path".to_owned()),
            Answer::None(why) => return Err(why),
        };
        let path = paths.into_iter().max_by_key(|path| path.nodes().len()).ok_or("no path")?;
        self.input(NodeInput::Release { id: LEASE });
        let path =
            match self.question(NodeInput::Obtain { id: LEASE, path, seconds: super::pocomon::CONSENT_SECS }).await? {
                Answer::Ready(path) => path,
                Answer::Paths(_) => return Err("no consent".to_owned()),
                Answer::None(why) => return Err(why),
            };
        let first = path.nodes().next().map(|(_, id, _)| id).ok_or("the path has no node")?;
        let secret = self.ids.iter().map(|own| &own.secret).find(|secret| secret.id() == first);
        let secret = secret.ok_or("the path begins elsewhere")?;
        // As every node of a realm it has agreed on its keys with others' IDs when it learned of these: no packet changes them.
        let agreed = |other: &NodeId| self.agreed.get(&secret.id(), other).cloned();
        path.sender_with(Version::Standard, secret, agreed).map_err(said)
    }

    /// Serves links and timers for so long.
    pub async fn serve(&mut self, time: Duration) -> Result<()> {
        let until = Instant::now() + time;
        while Instant::now() < until {
            self.step(until).await?;
        }
        Ok(())
    }

    async fn question(&mut self, question: NodeInput) -> Result<Answer> {
        self.answer = None;
        self.input(question);
        let until = Instant::now() + TIMEOUT;
        loop {
            self.act()?;
            if let Some(answer) = self.answer.take() {
                return Ok(answer);
            }
            if Instant::now() >= until {
                return Err("the servers do not answer".to_owned());
            }
            self.step(until).await?;
        }
    }

    fn input(&mut self, input: NodeInput) {
        self.machine.handle(input, self.clock.now());
    }

    /// Tells the machine what the configuration and the realm say of the node.
    fn publish(&mut self) {
        let profile = self.settings.section.profile(self.identity.identity(), &self.realm);
        self.input(NodeInput::Profile(profile));
    }

    /// Performs what is due, and waits for one event or timer, not beyond `until`.
    async fn step(&mut self, until: Instant) -> Result<()> {
        self.act()?;
        let due = self.machine.deadline().map_or(until, |deadline| self.clock.at(deadline).min(until));
        tokio::select! {
            event = self.inbox.recv() => if let Some(event) = event {
                self.link(event);
            },
            () = tokio::time::sleep_until(due) => {}
        }
        let now = self.clock.now();
        if self.machine.deadline().is_some_and(|deadline| deadline <= now.instant) {
            self.machine.handle_timeout(now);
        }
        self.act()
    }

    fn act(&mut self) -> Result<()> {
        while let Some(output) = self.machine.poll() {
            match output {
                NodeOutput::Send { to, octets } => self.send(&to, octets)?,
                // Nothing is kept: what was stored is asked of the path server after a restart.
                NodeOutput::Persist { id, .. } => self.input(NodeInput::Persisted(id)),
                NodeOutput::Paths { paths, .. } => self.answer = Some(Answer::Paths(paths)),
                NodeOutput::NoPath { reasons, .. } => self.answer = Some(Answer::None(format!("no path: {reasons:?}"))),
                NodeOutput::Ready { id: LEASE, path } => self.answer = Some(Answer::Ready(path)),
                NodeOutput::NoConsent { reasons, .. } => {
                    self.answer = Some(Answer::None(format!("no consent: {reasons:?}")));
                }
                NodeOutput::Ids(ids) => {
                    self.ids = ids;
                    self.know();
                }
                NodeOutput::Realm(realm) => {
                    self.realm = realm;
                    self.publish();
                    self.know();
                }
                NodeOutput::Ready { .. } | NodeOutput::Records { .. } | NodeOutput::Event(_) => {}
            }
        }
        Ok(())
    }

    fn know(&mut self) {
        let secrets: Vec<NodeSecret> = self.ids.iter().map(|own| own.secret.clone()).collect();
        let others = self.realm.nodes.values().flat_map(|member| &member.ids).map(|key| key.node);
        if let Some(agreed) = self.agreed.next(&secrets, &others.collect::<Vec<_>>(), usize::MAX) {
            self.agreed = Arc::new(agreed);
        }
        self.known = of_realm(&self.settings, &self.settings.section, &self.realm, (&self.ids, &self.agreed));
    }

    fn connect(&mut self, server: &Server) -> Result<()> {
        if !self.servers.contains_key(&server.identity) {
            let (address, events) = (server.address.clone(), self.events.clone());
            let connecting = self.links.connect_node(address, &self.identity, server.identity, events).map_err(said)?;
            let connection = Connection { link: None, waiting: VecDeque::new(), _connecting: connecting };
            self.servers.insert(server.identity, connection);
        }
        Ok(())
    }

    fn send(&mut self, to: &Server, octets: Vec<u8>) -> Result<()> {
        self.connect(to)?;
        let Some(connection) = self.servers.get_mut(&to.identity) else { return Ok(()) };
        match connection.link {
            Some(link) => self.links.send(link, octets),
            None => connection.waiting.push_back(octets),
        }
        Ok(())
    }

    fn link(&mut self, event: LinkEvent) {
        let input = match event {
            LinkEvent::Up { link, pin, .. } => {
                let Role::Node(identity) = pin.role else { return };
                let Some(connection) = self.servers.get_mut(&identity) else { return };
                connection.link = Some(link);
                self.by_link.insert(link, identity);
                connection.waiting.drain(..).for_each(|octets| self.links.send(link, octets));
                NodeInput::Connected(identity)
            }
            LinkEvent::Frame { link, bytes, .. } => match self.by_link.get(&link) {
                Some(from) => NodeInput::Frame { from: *from, octets: bytes },
                None => return,
            },
            LinkEvent::Down { link, .. } => {
                let Some(identity) = self.by_link.remove(&link) else { return };
                if let Some(connection) = self.servers.get_mut(&identity) {
                    connection.link = None;
                }
                NodeInput::Disconnected(identity)
            }
            LinkEvent::Failed { .. } => return,
        };
        self.input(input);
    }
}
