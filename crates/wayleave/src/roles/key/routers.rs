//! The links to the provider's routers: their usage goes to the database, lists and shares of rates go to them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tracing::info;
use wayleave_control::capability::{
    MAX_MESSAGE, Position, RatePayer, RateTerms, RouterEvent, RouterNumber, RouterServer, RouterServerConfig,
    RouterServerInput, RouterServerOutput,
};
use wayleave_control::tenure::{Holder, RENEWAL, Tenure};
use wayleave_core::IdentityKey;
use wayleave_runtime::Clock;
use wayleave_runtime::clock::utc;
use wayleave_runtime::drive::Step;
use wayleave_runtime::links::{Limits, LinkEvent, Links, Listening};
use wayleave_runtime::node_tls::NodeIdentity;
use wayleave_runtime::tls::Role;
use wayleave_store::{KnownRouters, Store, StoreKey, patiently};

use crate::config::Source;
use crate::config::key::KeyFile;
use crate::failure::{Failure, Outcome};
use crate::key_files::node::{self, KeyKind};
use crate::roles::daemon::{QUEUE, Running};
use crate::roles::events::{EventLine, Events, event, shown};
use crate::roles::link_driver::{self, Driver, LinkIo};
use crate::roles::router::random;

use super::core::{Core, lock, wait_for_database};
use super::lessor::{LessorSignals, LessorState, LessorTask, LessorView};
use super::parts::Parts;
use super::usage::{RETRY, UsageProblem, UsageStep, UsageStore};
use super::usage_metrics::UsageMetrics;

/// Octets that may wait for one router: a whole list of revocations, and answers.
const LINK_QUEUE: usize = 96 << 20;
/// What reaches the machine's loop.
pub type Event = link_driver::Event<RouterServer, Own>;

pub enum Own {
    /// The database takes something no longer: what, and why; or does so again.
    Unwritten(Option<String>),
    /// The database has less usage than before, and this is what routers have confirmed of it.
    SetBack(BTreeMap<RouterNumber, u64>),
    /// All time up to this Unix second is on statements, of which this is the last.
    Closed(u64, u64),
    Configure(Box<KeyFile>),
    /// The rates that the routers share are these now.
    Rates(SharedRates),
    /// A router says that it has heard of a lessor with this epoch, which cannot be.
    MadeUp(u64),
}

/// Rates over all routers, by whose they are.
pub type SharedRates = BTreeMap<RatePayer, RateTerms>;

/// The running machine.
pub struct Routers {
    pub running: Running<Event>,
    /// What writes usage, and leases.
    parts: Parts,
    pub store: Store,
    pub problems: [UsageProblem; 3],
    pub lessor: Arc<Mutex<LessorView>>,
    pub metrics: UsageMetrics,
    pub strangers: Strangers,
    own: Holder,
    _listening: Listening,
}

impl Routers {
    /// Listens for routers; `None` if the configuration has none.
    pub async fn start(
        config: KeyFile,
        source: Source,
        (core, rates): (Arc<Mutex<Core>>, SharedRates),
        (clock, log): (Clock, Events),
    ) -> Outcome<Option<Self>> {
        let (source, mut parts) = (&source, Parts::default());
        let Some(section) = &config.key.routers else { return Ok(None) };
        let seed = node::load(KeyKind::Identity, &source.resolve(section.identity.get_ref()))?;
        let identity = NodeIdentity::from_seed(seed.expose())?;
        drop(seed);
        let place = config.database(source);
        let key = StoreKey::new(config.provider(source)?.store_key());
        let unusable = |error| Failure::new(format!("{place}: {error}"));
        let open = || async { Store::open_patiently(&place, &key, wait_for_database).await.map_err(unusable) };
        let store = open().await?;
        let known = patiently(&place, || store.known_routers(), wait_for_database).await;
        let KnownRouters { confirmed, ahead, .. } = known.map_err(unusable)?;
        let machine = RouterServer::new(
            RouterServerConfig { routers: config.routers(), rates: rates.clone(), confirmed, ahead },
            clock.now().instant,
        );
        let (events, inbox) = mpsc::channel(QUEUE);
        let links = Links::new(Limits { queue: LINK_QUEUE, frame: MAX_MESSAGE as u32, ..Limits::default() });
        let at = section.listen.get_ref().0;
        let listening = links.listen_nodes(at, &identity, events.clone()).await;
        let listening =
            listening.map_err(|error| Failure::system(format!("cannot listen for routers at {at}"), &error))?;
        info!(identity = %identity.identity(), listen = %listening.address, routers = config.key.router.len(), "listening for routers");
        let names = config.router_names();
        // Bounded by the machine, which has no more steps under way than it may have.
        let (usage, steps) = mpsc::unbounded_channel();
        let numbers = Arc::new(Mutex::new(config.routers().into_values().collect()));
        let problems = <[UsageProblem; 3]>::default();
        // Readers have connections of their own: whoever reads much holds no report up.
        let read = open().await?;
        let task = UsageStore {
            store,
            core: Arc::clone(&core),
            events: events.clone(),
            era: Arc::default(),
            doing: "what routers report, which they keep,",
            problem: problems[0].clone(),
            heavy: problems[2].clone(),
            metrics: UsageMetrics::default(),
        };
        let usage_metrics = task.metrics.clone();
        parts.spawn("usage", task.clone().write(steps));
        let task = UsageStore { doing: "statements of usage", problem: problems[1].clone(), ..task };
        let own = Holder(random()?);
        let name = identity.identity().to_string();
        // Nobody else's work holds its connection up.
        let (signals, lessor) = (Arc::<LessorSignals>::default(), Arc::<Mutex<LessorView>>::default());
        let leasing = LessorTask {
            store: open().await?,
            core: Arc::clone(&core),
            clock,
            events: events.clone(),
            name,
            routers: Arc::clone(&numbers),
            signals: Arc::clone(&signals),
            view: Arc::clone(&lessor),
            tenure: Tenure::new(own),
            state: LessorState::default(),
        };
        let (checks, to_check) = mpsc::unbounded_channel();
        parts.spawn("what routers have seen", check_seen(read.clone(), to_check, events.clone()));
        parts.spawn("statements", task.settle(Arc::clone(&numbers), clock));
        parts.spawn("who leases rates", leasing.run());
        let (routers, connected) = (config.routers(), BTreeSet::new());
        let strangers = Strangers::default();
        let io = RouterIo {
            links,
            core,
            usage,
            checks,
            era: 0,
            names,
            routers,
            numbers,
            rates,
            signals,
            connected,
            strangers: strangers.clone(),
            log,
        };
        let running = Running::start(machine, Driver(io), clock, (events, inbox));
        Ok(Some(Self {
            running,
            parts,
            store: read,
            problems,
            lessor,
            metrics: usage_metrics,
            strangers,
            own,
            _listening: listening,
        }))
    }

    /// Waits until the machine or a task ends without being stopped, and returns why. Cancel safe.
    pub async fn failed(&mut self) -> Failure {
        tokio::select! {
            failure = self.running.failed() => failure,
            failure = self.parts.failed() => failure,
        }
    }

    /// Ends the machine, then its tasks, and leaves leasing to another.
    pub async fn stop(mut self) {
        self.running.stop(Event::Stop).await;
        self.parts.end().await;
        let _ = timeout(RENEWAL, self.store.give_up_lessor(self.own)).await; // without, others wait until it is vacant
    }
}

/// Says whether the database has what routers have seen. What cannot be read now is tried again.
async fn check_seen(store: Store, mut seen: mpsc::UnboundedReceiver<(u64, Position)>, events: mpsc::Sender<Event>) {
    while let Some((link, seen)) = seen.recv().await {
        let continues = loop {
            match store.has(&seen).await {
                Ok(continues) => break continues,
                Err(error) if error.is_outage() => sleep(RETRY).await,
                // Rows that were changed by hand: nothing of it is believed.
                Err(_) => break false,
            }
        };
        let checked = Event::Input(RouterServerInput::Checked { link, seen, continues });
        let _ = events.send(checked).await; // fails if the role has stopped
    }
    // The machine that asks has ended, and says why.
    std::future::pending::<()>().await;
}

struct RouterIo {
    links: Links,
    core: Arc<Mutex<Core>>,
    usage: mpsc::UnboundedSender<UsageStep>,
    /// At most one for each link at a time, and for each adoption.
    checks: mpsc::UnboundedSender<(u64, Position)>,
    era: u64,
    names: BTreeMap<RouterNumber, String>,
    routers: BTreeMap<IdentityKey, RouterNumber>,
    numbers: Arc<Mutex<BTreeSet<RouterNumber>>>,
    rates: SharedRates,
    signals: Arc<LessorSignals>,
    /// Routers that are connected.
    connected: BTreeSet<RouterNumber>,
    strangers: Strangers,
    log: Events,
}

/// Who was refused of late since no [[key.router]] has its identity. Clones are views of the same.
#[derive(Clone, Debug, Default)]
pub struct Strangers(Arc<Mutex<BTreeMap<IdentityKey, Stranger>>>);

/// When it came first and last.
#[derive(Clone, Copy, Debug)]
struct Stranger {
    first: Instant,
    last: Instant,
}

impl Strangers {
    /// Those that are remembered, at most, and of them those that are named: anybody may connect, with as many keys as he likes.
    const MOST: usize = 1_024;
    const MOST_NAMED: usize = 3;
    /// A router tries again more often.
    const LATELY: Duration = Duration::from_secs(300);

    fn note(&self, identity: IdentityKey, now: Instant) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= Self::MOST && !all.contains_key(&identity) {
            all.retain(|_, stranger| now.duration_since(stranger.last) < Self::LATELY);
        }
        // Whoever came before is not pushed out by those who come later.
        if all.len() < Self::MOST || all.contains_key(&identity) {
            all.entry(identity).or_insert(Stranger { first: now, last: now }).last = now;
        }
    }

    /// Who is configured now is none.
    fn configure(&self, routers: &BTreeMap<IdentityKey, RouterNumber>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|identity, _| !routers.contains_key(identity));
    }

    /// What an operator has to see to.
    pub fn problem(&self, now: Instant) -> Option<String> {
        let mut lately: Vec<(Instant, IdentityKey)> = {
            let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let lately = all.iter().filter(|(_, stranger)| now.duration_since(stranger.last) < Self::LATELY);
            lately.map(|(identity, stranger)| (stranger.first, *identity)).collect()
        };
        lately.sort_unstable();
        let named: Vec<String> =
            lately.iter().take(Self::MOST_NAMED).map(|(_, identity)| node::node_text(identity)).collect();
        let named = named.join(", ");
        match lately.len() {
            0 => None,
            1 => Some(format!(
                "{named} was refused: no [[key.router]] has this identity: if it is a router of yours, add it"
            )),
            count => {
                let more = if count > Self::MOST_NAMED { ", first" } else { "" };
                Some(format!(
                    "{count} identities were refused in the last {} minutes{more}: {named}: no [[key.router]] has them: if one is a router of yours, add it",
                    Self::LATELY.as_secs() / 60
                ))
            }
        }
    }
}

impl LinkIo<RouterServer> for RouterIo {
    type Own = Own;

    fn link(&mut self, event: LinkEvent) -> Option<RouterServerInput> {
        match event {
            LinkEvent::Up { link, pin, .. } => {
                let Role::Node(peer) = pin.role else { return None };
                Some(RouterServerInput::Connected { link, peer })
            }
            LinkEvent::Frame { link, bytes, .. } => Some(RouterServerInput::Frame { link, octets: bytes }),
            LinkEvent::Down { link, .. } => Some(RouterServerInput::Disconnected { link }),
            LinkEvent::Failed { .. } => None,
        }
    }

    fn own(&mut self, own: Own) -> Step<RouterServer> {
        if let Some(line) = own_line(&own) {
            self.log.report(line);
        }
        Step::Input(match own {
            Own::Unwritten(_) | Own::Closed(..) | Own::MadeUp(_) => return Step::Ignore,
            Own::SetBack(confirmed) => {
                self.era += 1;
                RouterServerInput::SetBack(confirmed)
            }
            Own::Configure(config) => {
                (self.names, self.routers) = (config.router_names(), config.routers());
                self.strangers.configure(&self.routers);
                let numbers: BTreeSet<RouterNumber> = self.routers.values().copied().collect();
                lock(&self.core).server.retain_refusals(&numbers);
                *self.numbers.lock().unwrap_or_else(PoisonError::into_inner) = numbers;
                self.configure()
            }
            Own::Rates(rates) => {
                self.rates = rates;
                self.configure()
            }
        })
    }

    fn perform(&mut self, output: RouterServerOutput, _: &mut VecDeque<RouterServerInput>) -> Result<(), Failure> {
        match output {
            RouterServerOutput::Send { link, octets } => self.links.send(link, octets),
            RouterServerOutput::Close { link, why } => self.links.close(link, why),
            RouterServerOutput::Store { step, change } => {
                let _ = self.usage.send(UsageStep { step, change, era: self.era }); // fails if the task has ended, which ends the role
            }
            RouterServerOutput::Check { link, seen } => {
                let _ = self.checks.send((link, seen)); // fails if the task has ended, which ends the role
            }
            RouterServerOutput::Refusals { router, report, received } => {
                lock(&self.core).server.take_refusals(router, report, received);
            }
            RouterServerOutput::Renew => self.signals.due.notify_one(),
            RouterServerOutput::Superseded { router, epoch } => {
                self.signals.heard.fetch_max(epoch, Ordering::AcqRel);
                self.log.report(superseded_line(router, name(&self.names, router), epoch));
            }
            RouterServerOutput::Event(event) => {
                self.count(&event);
                self.log.report(line(&event, &self.names));
            }
        }
        Ok(())
    }
}

impl RouterIo {
    fn configure(&self) -> RouterServerInput {
        RouterServerInput::Configure { routers: self.routers.clone(), rates: self.rates.clone() }
    }

    /// Who leases rates depends on whether routers are connected.
    fn count(&mut self, event: &RouterEvent) {
        match event {
            RouterEvent::Connected(router) => drop(self.connected.insert(*router)),
            RouterEvent::Disconnected(router) => drop(self.connected.remove(router)),
            RouterEvent::Stranger(identity) => return self.strangers.note(*identity, Instant::now()),
            _ => return,
        }
        self.signals.connected.store(self.connected.len(), Ordering::Release);
    }
}

fn name(names: &BTreeMap<RouterNumber, String>, router: RouterNumber) -> String {
    names.get(&router).cloned().unwrap_or_else(|| format!("router {router}"))
}

/// What the operator is told of what concerns no single router.
pub fn own_line(own: &Own) -> Option<EventLine> {
    Some(match own {
        Own::Unwritten(Some(why)) => event!(ERROR "usage-unwritten" by 0, {} "{why}"),
        Own::Unwritten(None) => event!(INFO "usage-written" by 0, {} "usage can be written again"),
        Own::SetBack(_) => event!(ERROR "usage-set-back" by 0, {}
            "the database has less usage than it had: it was set back to an old copy; routers report again what they have"),
        Own::Closed(statement, before) => event!(INFO "usage-closed" by 0, { statement, before = utc(*before) }
            "usage is closed: statement {statement} has all that ended before"),
        Own::MadeUp(epoch) => event!(ERROR "lessor-made-up" by 0, { epoch }
            "a router has heard of a lessor of rates with epoch {epoch}, years ahead: the clock of a key server was wrong, or the router's \
             word is: it asks nobody below that"),
        Own::Configure(_) | Own::Rates(_) => return None,
    })
}

pub fn superseded_line(router: RouterNumber, name: String, epoch: u64) -> EventLine {
    event!(WARN "lessor-superseded" by router, { epoch; router = name }
        "the router has heard of another lessor of rates after this one: this server begins anew behind it, if it is the lessor still")
}

/// What the operator is told of a router.
pub fn line(event: &RouterEvent, names: &BTreeMap<RouterNumber, String>) -> EventLine {
    let name = |router: &RouterNumber| name(names, *router);
    match event {
        RouterEvent::Untaken { router: of, entries } => {
            event!(ERROR "usage-untaken" by *of, { router = name(of); entries = *entries }
                "{entries} accounts in a report of the router are not taken, since whoever pays for them has as many records as one may \
                 have: close the time before this month (`wayleave cap usage --close`); the router keeps them and reports them again")
        }
        RouterEvent::Connected(of) => event!(INFO "router-connected" by *of, { router = name(of) } "connected"),
        RouterEvent::Disconnected(of) => event!(INFO "router-disconnected" by *of, { router = name(of) }
                "disconnected: it keeps its usage until it connects again"),
        RouterEvent::Stranger(identity) => event!(WARN "stranger" by 0, { identity = shown(identity) }
                "connection refused: no [[key.router]] has this identity: if it is a router of yours, add it"),
        RouterEvent::Malformed { router: of, error } => {
            event!(ERROR "router-erred" by *of, { router = name(of); why = shown(error) }
                    "the router sent a malformed message: {error}")
        }
        RouterEvent::Unexpected(of) => event!(ERROR "router-erred" by *of, { router = name(of) }
                "the router sent a message that routers do not send"),
        RouterEvent::Refused { router: of, why } => {
            event!(ERROR "usage-refused" by *of, { router = name(of); why = shown(why) } "usage report of the router refused: {why}")
        }
        RouterEvent::Behind(of) => event!(WARN "router-behind" by *of, { router = name(of) }
                "the router's totals are older than those that it reported, or another router's: its state was put back, or copied; it \
                 goes on counting from there, and what it forwarded between is on no bill twice"),
        RouterEvent::Late(of) => event!(WARN "usage-late" by *of, { router = name(of) }
                "the router reported usage of closed time: it is on the next statement, marked as late"),
        RouterEvent::TooLate(of) => event!(ERROR "usage-too-late" by *of, { router = name(of) }
                "the router reported usage of time that was closed before this server knew it: it is on no statement, since it may be on \
                 another router's; if the router was never billed, see `wayleave show accounts` there"),
        RouterEvent::Differs { router: of, rate } => {
            let (principal, routers) = (rate.payer.principal.number(), rate.routers);
            event!(WARN "rate-differs" by *of, { router = name(of), principal, rate = rate.rate, routers }
                    "the router goes by another rate, number of routers or `offline` than it was told: it gets no more of it; one of an earlier \
                     version has these in its own configuration")
        }
        RouterEvent::Lacks { router: of, seen, own } => {
            event!(ERROR "router-ahead" by *of, { router = name(of) }
                "the router has seen change {seen} of another history than the database's, which ends with change {own}: it was set back to an \
                 old copy; the router goes on by the rates that it was told before and asks for no shares; restore the last backup and start \
                 again, or accept the database (`wayleave cap adopt`)")
        }
        RouterEvent::Ahead { router: of, has, own, .. } => {
            event!(ERROR "router-ahead" by *of, { router = name(of) }
                "the router has list {has} of revocations, which was made of change {} of another history than the database's, which makes \
                 list {own}: it was set back to an old copy, or is another one; the router keeps its list and is sent none, also after a restart; \
                 restore the last backup and start again; or revoke again what is missing here, then, once `waiting` in the router's \
                 `show status --all` is 0, stop it, remove its state and its list, and start it again", has >> 32)
        }
    }
}

/// What is wrong where routers know of changes that the database lacks, and what to do.
pub fn set_back(server: &RouterServer, names: &BTreeMap<RouterNumber, String>) -> Vec<String> {
    let of = |number: &RouterNumber| names.get(number).cloned().unwrap_or_else(|| number.to_string());
    let named = |is: fn(&wayleave_control::capability::RouterStatus) -> bool| {
        let all: Vec<String> = server.status().iter().filter(|(_, status)| is(status)).map(|(at, _)| of(at)).collect();
        (!all.is_empty()).then(|| all.join(", "))
    };
    let lacks = named(|status| status.lacks).map(|routers| {
        format!(
            "the database was set back to an old copy, or is another one: it lacks changes that routers have seen ({routers}), which \
             take no rates and no shares from here; restore the last backup and start again, or accept the database: wayleave cap adopt"
        )
    });
    let ahead = named(|status| status.is_ahead).map(|routers| {
        format!(
            "the database was set back to an old copy, or is another one: the list of revocations that routers have ({routers}) is of changes \
             that it lacks, and they are sent none; restore the last backup and start again; or accept the database (wayleave cap adopt), \
             revoke again what is missing, then, once `waiting` in its `show status --all` is 0, stop each of these routers, remove its \
             state and its list, and start it again"
        )
    });
    lacks.into_iter().chain(ahead).collect()
}

/// The status of each router, for the status page.
pub fn status(server: &RouterServer, names: &BTreeMap<RouterNumber, String>) -> Value {
    let router = |(number, status): (&RouterNumber, &wayleave_control::capability::RouterStatus)| {
        json!({
            "number": number,
            "name": names.get(number),
            "connected": status.link.is_some(),
            "list": status.list,
            "told_rates": status.told.is_some(),
            "ahead": status.is_ahead || status.lacks,
            "reports": status.reports,
            "refused": status.refused,
            "too_late": status.too_late,
            "untaken": status.untaken,
            "confirmed": server.confirmed().get(number),
        })
    };
    server.status().iter().map(router).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_router_that_is_not_configured_is_a_problem_until_it_is_or_has_gone() {
        let (strangers, start) = (Strangers::default(), Instant::now());
        let key = |number: u8| IdentityKey([number; 32]);
        strangers.note(key(6), start);
        let alone = strangers.problem(start).expect("a problem");
        assert!(
            alone.contains(&key(6).to_string()) && alone.contains("no [[key.router]] has this identity"),
            "{alone}"
        );
        (1..=5).for_each(|number| strangers.note(key(number), start + Duration::from_secs(number.into())));
        // Somebody with more keys than are remembered pushes nobody out, and is one line.
        for number in 0..2_000u32 {
            let mut other = [0xff; 32];
            other[..4].copy_from_slice(&number.to_be_bytes());
            strangers.note(IdentityKey(other), start + Duration::from_secs(8));
        }
        let now = start + Duration::from_secs(10);
        let problem = strangers.problem(now).expect("a problem");
        assert!(problem.starts_with(&format!("{} identities", Strangers::MOST)), "{problem}");
        assert!([6, 1, 2].iter().all(|number| problem.contains(&key(*number).to_string())), "{problem}");
        assert!(!problem.contains(&key(3).to_string()), "{problem}");
        strangers.configure(&[(key(6), RouterNumber::MIN)].into());
        let problem = strangers.problem(now).expect("a problem");
        assert!(!problem.contains(&key(6).to_string()) && problem.contains(&key(3).to_string()), "{problem}");
        let later = now + Strangers::LATELY;
        assert_eq!(strangers.problem(later), None);
        // Those who have gone make room.
        strangers.note(key(7), later);
        assert!(strangers.problem(later).is_some_and(|problem| problem.contains(&key(7).to_string())));
    }
}
