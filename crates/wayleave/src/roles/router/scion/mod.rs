//! SCION: which port and address each decision of the router means.

pub mod bfd;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use serde_json::{Map, Value};
use toml::Spanned;
use wayleave_core::Now;
use wayleave_dataplane::frame::Ingress;
use wayleave_dataplane::scion::delivery::LocalDelivery;
use wayleave_dataplane::scion::steering;
use wayleave_dataplane::scion::{Action, Config, ConfigError, EpochKey, Interface, Keys, Link, Owner, Reason, Router};
use wayleave_packet::scion::{ForwardingKey, HostAddress};
use wayleave_runtime::packets::steering::Steering;
use wayleave_runtime::store::FileStore;

use super::batch::Batch;
use super::counters::FormatCounters;
use super::format::{Context, Control, Format};
use super::journal::{NoAccount, Total};
use super::output::OutputQueues;
use super::ports::{AttachedPort, Carrier, PortKind, PortSpec};
use super::settings::Settings;
use crate::config::router::FormatName;
use crate::config::router::scion::{InterfaceSection, LinkKind, ScionSection};
use crate::failure::{Failure, Outcome};
use bfd::{Sessions, SessionsSpec};

/// BFD, SCMP and one-hop paths come apart from data, whose flow IDs choose the thread.
const STEERING: Steering = Steering::Header { control: &steering::CONTROL, flow: steering::FLOW };

/// One thread's router.
pub struct Scion {
    router: Router,
    addresses: Addresses,
    /// The port of each interface, by its number, and the internal one, of this thread.
    ports: Vec<Option<usize>>,
    internal: usize,
}

/// What threads forward by.
#[derive(Clone)]
pub struct Plan {
    config: Box<Config>,
    addresses: Addresses,
}

/// Addresses of what a decision can name.
#[derive(Clone)]
struct Addresses {
    /// The numbers of all interfaces of the AS.
    interfaces: Vec<u16>,
    /// The neighbour's end of each interface that is this router's, by the interface's number.
    remotes: Vec<Option<SocketAddr>>,
    siblings: Vec<SocketAddr>,
    local: LocalDelivery,
    /// Wrong MACs of an interface a second, and at once, before this thread checks none of its MACs.
    bad_mac_limit: Option<(u32, u32)>,
}

impl Addresses {
    fn new(settings: &Settings, section: &ScionSection) -> Self {
        let interfaces = settings.file.interface.iter().map(Spanned::get_ref);
        let mut remotes = Vec::new();
        for section in interfaces.clone() {
            let id = usize::from(*section.id.get_ref());
            if remotes.len() <= id {
                remotes.resize(id + 1, None);
            }
            remotes[id] = section.remote.as_ref().map(|remote| remote.get_ref().0);
        }
        Self {
            interfaces: interfaces.map(|section| *section.id.get_ref()).collect(),
            remotes,
            siblings: section.siblings.iter().map(|sibling| sibling.get_ref().0).collect(),
            local: local(section),
            bad_mac_limit: bad_mac_limit(settings, section),
        }
    }
}

fn local(section: &ScionSection) -> LocalDelivery {
    LocalDelivery {
        discovery: section.discovery.as_ref().map(|address| address.0),
        control: section.control.as_ref().map(|address| address.0),
        end_host_ports: *section.end_host_ports.get_ref(),
        shared_port: section.shared_port,
        is_on_loopback: section.internal.get_ref().0.ip().is_loopback(),
    }
}

/// A thread's share of the limit on wrong MACs.
fn bad_mac_limit(settings: &Settings, section: &ScionSection) -> Option<(u32, u32)> {
    let rate = *section.bad_macs_per_second.as_ref()?.get_ref();
    let burst = section.bad_macs_at_once.as_ref().map_or(rate, |burst| *burst.get_ref());
    let share = |limit: u64| u32::try_from(limit / settings.workers()).unwrap_or(u32::MAX);
    Some((share(rate), share(burst)))
}

fn section(settings: &Settings) -> Result<&ScionSection, Failure> {
    let section = settings.file.scion.as_ref().map(Spanned::get_ref);
    section.ok_or_else(|| Failure::new("no section [scion]"))
}

fn config(settings: &Settings, section: &ScionSection) -> Config {
    let address = match section.internal.get_ref().0.ip() {
        IpAddr::V4(v4) => HostAddress::V4(v4),
        IpAddr::V6(v6) => HostAddress::V6(v6),
    };
    let answers = settings.share(*section.answers_per_second.get_ref());
    Config {
        isd_as: section.isd_as.get_ref().0,
        address,
        siblings: section.siblings.len() as u16,
        interfaces: settings.file.interface.iter().map(|section| interface(section.get_ref())).collect(),
        keys: keys(settings),
        local: local(section),
        answers_per_second: answers,
        // A tenth of a second's answers may come at once.
        answers_burst: (answers / 10).max(u32::from(answers > 0)),
    }
}

fn interface(section: &InterfaceSection) -> Interface {
    Interface {
        id: *section.id.get_ref(),
        link: match section.link {
            LinkKind::Core => Link::Core,
            LinkKind::Parent => Link::Parent,
            LinkKind::Child => Link::Child,
            LinkKind::Peer => Link::Peer,
        },
        neighbor: section.neighbor.get_ref().0,
        owner: section.sibling.as_ref().map_or(Owner::This, |sibling| Owner::Sibling(*sibling.get_ref())),
    }
}

/// The live keys: which one verifies a segment follows from the segment's timestamp.
fn keys(settings: &Settings) -> Keys {
    let live = settings.live_keys(ScionControl::KEYS_AHEAD);
    let (_, first) = live[0];
    let mut keys = Keys::one(ForwardingKey::new(&first));
    for (from, key) in &live[1..] {
        keys = keys.rotated(EpochKey { from: u32::try_from(*from).unwrap_or(u32::MAX), key: ForwardingKey::new(key) });
    }
    keys
}

fn refused(error: &ConfigError) -> Failure {
    Failure::new(error.to_string())
}

impl Scion {
    fn take_over(&mut self, addresses: Addresses, ports: &[AttachedPort]) {
        self.addresses = addresses;
        self.router.set_bad_mac_limit(self.addresses.bad_mac_limit);
        self.ports = vec![None; self.addresses.remotes.len()];
        for (number, attached) in ports.iter().enumerate().filter(|(_, attached)| !attached.is_control) {
            match attached.kind {
                PortKind::Interface(id) => {
                    if let Some(port) = self.ports.get_mut(usize::from(id)) {
                        *port = Some(number);
                    }
                }
                _ => self.internal = number,
            }
        }
    }

    /// Sets whether links are up, by the numbers of their interfaces.
    fn set_links(&mut self, links: &[(u16, bool)]) {
        links.iter().for_each(|(id, is_up)| self.router.set_link(*id, *is_up));
    }
}

impl Format for Scion {
    type Plan = Plan;
    type Account = NoAccount;
    type Control = ScionControl;

    fn open(
        control: &mut ScionControl,
        settings: &Settings,
        _: usize,
        ports: &[AttachedPort],
        _: Vec<(NoAccount, Total)>,
    ) -> Outcome<Self> {
        let Plan { config, addresses } = control.plan(settings)?;
        let router = Router::new(&config).map_err(|error| refused(&error))?;
        let mut scion = Self { router, addresses: addresses.clone(), ports: Vec::new(), internal: 0 };
        scion.take_over(addresses, ports);
        Ok(scion)
    }

    fn reload(&mut self, plan: Plan, ports: &[AttachedPort], _: Now) -> Result<(), Failure> {
        self.router.reload(&plan.config).map_err(|error| refused(&error))?;
        self.take_over(plan.addresses, ports);
        Ok(())
    }

    #[inline]
    fn classify(&self, port: PortKind, from: &SocketAddr) -> Option<Ingress> {
        if let PortKind::Interface(id) = port {
            let remote = self.addresses.remotes.get(usize::from(id)).and_then(Option::as_ref);
            return (remote == Some(from)).then_some(Ingress::External(id));
        }
        Some(match self.addresses.siblings.iter().position(|sibling| sibling == from) {
            Some(sibling) => Ingress::Sibling(sibling as u16),
            None => Ingress::Internal,
        })
    }

    #[inline]
    fn process(&mut self, batch: &mut Batch<'_>, now: Now, out: &mut OutputQueues) {
        let actions = self.router.process(batch.frames(), now);
        let mut answers = self.router.answers();
        for ((packet, frame, from), action) in batch.packets().zip(actions) {
            let to = match action {
                Action::Drop(_) => continue,
                Action::Forward(id) => {
                    // The address is copied in one piece: put together from parts, it would be slow to read as a whole.
                    let id = usize::from(id);
                    if let (Some(Some(port)), Some(Some(to))) = (self.ports.get(id), self.addresses.remotes.get(id)) {
                        out.data(*port, packet, to);
                        continue;
                    }
                    None
                }
                Action::Sibling(sibling) => self.addresses.siblings.get(usize::from(sibling)).copied(),
                Action::Deliver => self.addresses.local.locate(frame.octets),
                Action::Control => {
                    out.control(frame.ingress, frame.octets);
                    continue;
                }
                Action::Answer(_) => {
                    answers.next().into_iter().for_each(|answer| out.answer(batch.port, answer, *from));
                    continue;
                }
            };
            match to {
                Some(to) => out.data(self.internal, packet, &to),
                None => out.counters.unreachable += 1,
            }
        }
    }

    fn counters(&self, _: Now) -> FormatCounters {
        let of = self.router.counters();
        FormatCounters {
            decided: [
                ("forwarded", of.forwarded),
                ("to_siblings", of.to_siblings),
                ("delivered", of.delivered),
                ("answered", of.answered),
                ("unanswered", of.unanswered),
            ]
            .into(),
            reasons: Reason::ALL.iter().map(|reason| (reason.name(), of.of(*reason))).collect(),
            bad_macs: self.addresses.interfaces.iter().map(|id| (*id, self.router.bad_macs(*id))).collect(),
            ..FormatCounters::default()
        }
    }
}

/// BFD sessions, which set the links of the threads.
#[derive(Default)]
pub struct ScionControl {
    sessions: Option<Sessions>,
}

impl Control<Scion> for ScionControl {
    const NAME: FormatName = FormatName::Scion;
    const KEYS_AHEAD: u64 = 400;
    const LIVE: &'static [&'static str] = &["forwarding.keys", "scion", "interface"];
    type View = Option<Sessions>;

    fn load(_: &Settings, _: Option<&Arc<FileStore>>) -> Outcome<Self> {
        Ok(Self::default())
    }

    fn ports(settings: &Settings) -> Vec<PortSpec> {
        let mut all = Vec::new();
        if let Ok(section) = section(settings) {
            let (local, backend) = (section.internal.get_ref().0, *section.backend.get_ref());
            let name = "the internal interface".to_owned();
            all.push(PortSpec::udp_group(PortKind::Internal, local, backend, STEERING, name));
        }
        for section in settings.file.interface.iter().map(Spanned::get_ref) {
            let (Some(local), Some(remote)) = (&section.local, &section.remote) else { continue };
            let id = *section.id.get_ref();
            let carrier = Carrier {
                backend: *section.backend.get_ref(),
                device: section.device.as_ref(),
                queue: section.queue,
                gateway: section.gateway.as_ref().map(|gateway| gateway.0),
            };
            let ends = [local.get_ref().0, remote.get_ref().0];
            let name = format!("interface {id}");
            all.push(PortSpec::neighbor(PortKind::Interface(id), ends, &carrier, STEERING, name));
        }
        all
    }

    fn plan(&self, settings: &Settings) -> Result<Plan, Failure> {
        let section = section(settings)?;
        let config = Box::new(config(settings, section));
        Router::new(&config).map_err(|error| refused(&error))?;
        Ok(Plan { config, addresses: Addresses::new(settings, section) })
    }

    fn start(&mut self, context: Context<'_, Scion>) {
        self.sessions = Some(Sessions::start(context));
    }

    async fn planned(&mut self, settings: &Settings) {
        if let Some(sessions) = &self.sessions {
            sessions.reload(SessionsSpec::new(settings)).await;
        }
    }

    fn view(&self) -> Option<Sessions> {
        self.sessions.clone()
    }

    fn readiness(sessions: &Option<Sessions>) -> Result<(), String> {
        sessions.as_ref().map_or(Ok(()), Sessions::readiness)
    }

    fn status(sessions: &Option<Sessions>, members: &mut Map<String, Value>) {
        members.insert("bfd".to_owned(), sessions.as_ref().map_or(Value::Null, Sessions::json));
    }
}
