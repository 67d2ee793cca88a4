//! Has systemd-resolved ask the gateway for its names, as long as both run: it is told for the link of the TUN interface, told again when it
//! has begun anew, and what it was told is taken back at the end.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use wayleave_runtime::resolved::{LinkNames, Resolved};

use crate::roles::events::{EventLine, Events, event};

/// Interval between attempts where there is no bus, or where systemd-resolved refused; and between looks at what it was told.
const AGAIN: Duration = Duration::from_secs(30);
/// A bus that has ended may be back after this long.
const BACK: Duration = Duration::from_secs(2);
/// How long the end waits for what was told to be taken back. The interface's end does it, too.
const END: Duration = Duration::from_secs(3);

/// How it stands.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum State {
    /// It has not been looked for yet.
    #[default]
    Unknown,
    /// It does not run here.
    Absent,
    /// It asks here for names.
    Set,
    /// Why it does not, and what to do.
    Failed(String),
}

impl State {
    pub fn name(&self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Absent => "absent",
            Self::Set => "set",
            Self::Failed(_) => "failed",
        }
    }
}

/// The task that keeps systemd-resolved told.
pub struct Resolver {
    end: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Resolver {
    /// Begins to tell it of names; `state` is how that stands.
    pub fn start(interface: String, names: LinkNames, state: Arc<RwLock<State>>, log: Events) -> Self {
        let (end, has_ended) = oneshot::channel();
        let keeper = Keeper { interface, names, state, log, is_told: AtomicBool::new(false) };
        Self { end, task: tokio::spawn(keeper.run(has_ended)) }
    }

    /// Takes back what it was told.
    pub async fn stop(self) {
        let _ = self.end.send(()); // the task has ended by itself
        let _ = timeout(END, self.task).await;
    }
}

struct Keeper {
    interface: String,
    names: LinkNames,
    state: Arc<RwLock<State>>,
    log: Events,
    /// Whether it was told anything since the start.
    is_told: AtomicBool,
}

impl Keeper {
    async fn run(self, mut has_ended: oneshot::Receiver<()>) {
        loop {
            let kept = tokio::select! {
                kept = self.keep() => kept,
                _ = &mut has_ended => return self.revert().await,
            };
            let (state, again) = match kept {
                Ok(()) => continue,
                // There is no bus on this machine.
                Err(error) if error.kind() == io::ErrorKind::NotFound => (State::Absent, AGAIN),
                Err(error) => (State::Failed(self.bus_fault(&error)), if self.is_told() { BACK } else { AGAIN }),
            };
            self.note(state);
            tokio::select! {
                () = sleep(again) => {}
                _ = &mut has_ended => return self.revert().await,
            }
        }
    }

    /// Keeps it told over one connection to the bus, which has ended when this returns.
    async fn keep(&self) -> io::Result<()> {
        let mut resolved = Resolved::connect().await?;
        loop {
            let state = match resolved.is_there().await? {
                false => State::Absent,
                true if self.is_told() && resolved.holds(&self.names).await.unwrap_or(false) => State::Set,
                true => match resolved.set(&self.names).await {
                    Ok(()) => {
                        self.is_told.store(true, Relaxed);
                        State::Set
                    }
                    Err(error) => {
                        // Half of it would send it questions that are not for here.
                        let _ = resolved.revert(self.names.index).await;
                        State::Failed(self.fault(&error))
                    }
                },
            };
            let (is_there, has_failed) = (state != State::Absent, matches!(state, State::Failed(_)));
            self.note(state);
            if has_failed {
                // What was tried, and taken back, is told of as well.
                sleep(BACK).await;
            }
            tokio::select! {
                changed = resolved.changed() => changed?,
                // What was refused may be allowed by then, and what was set may be set otherwise.
                () = sleep(AGAIN), if is_there => {}
            }
        }
    }

    async fn revert(&self) {
        if !self.is_told() {
            return;
        }
        if let Ok(resolved) = Resolved::connect().await {
            let _ = resolved.revert(self.names.index).await; // the interface's end does it at the latest
        }
    }

    fn is_told(&self) -> bool {
        self.is_told.load(Relaxed)
    }

    fn fault(&self, error: &io::Error) -> String {
        let (by_hand, text) = (self.by_hand(), error.to_string());
        // What the bus, or systemd-resolved, says where polkit does not allow it.
        let is_denied = ["AccessDenied", "InteractiveAuthorizationRequired"].iter().any(|name| text.contains(name));
        let help = if is_denied {
            "install the polkit rule of packaging/polkit, or do it as root"
        } else {
            "it is tried again; or do it as root"
        };
        format!(
            "systemd-resolved does not ask this gateway for names ({text}), so programs here do not find them: {help}: {by_hand}"
        )
    }

    fn bus_fault(&self, error: &io::Error) -> String {
        let by_hand = self.by_hand();
        format!(
            "the system's bus does not answer this gateway ({error}), so that systemd-resolved may not know of its names: let the role reach \
             /run/dbus, or do it as root: {by_hand}"
        )
    }

    /// What does the same by hand.
    fn by_hand(&self) -> String {
        let LinkNames { server, zones, .. } = &self.names;
        let domains: Vec<String> = zones.iter().map(|zone| format!("'~{zone}'")).collect();
        let (interface, domains) = (&self.interface, domains.join(" "));
        format!("`resolvectl dns {interface} {server}`, `resolvectl domain {interface} {domains}`")
    }

    fn note(&self, state: State) {
        let before = std::mem::replace(&mut *self.state.write().unwrap_or_else(PoisonError::into_inner), state.clone());
        if before != state {
            self.log.report(line(&self.interface, &self.names, &state));
        }
    }
}

/// What the operator is told of systemd-resolved, which is to ask for these names by the link of this interface.
pub fn line(interface: &str, names: &LinkNames, state: &State) -> EventLine {
    let server = names.server.to_string();
    match state {
        State::Set => {
            let zones = names.zones.join(" ");
            event!(INFO "resolver-set" { interface, zones } "systemd-resolved asks this gateway for names")
        }
        State::Unknown | State::Absent => event!(INFO "resolver-absent" { interface, server }
                "systemd-resolved does not run here: once it does it is told of the names; any other resolver has to be told to ask the gateway"),
        State::Failed(why) => event!(WARN "resolver-failed" { interface; why } "{why}"),
    }
}
