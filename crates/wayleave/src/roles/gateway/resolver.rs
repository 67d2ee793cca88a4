//! Has systemd-resolved ask the gateway for its names, as long as both run: it is told for the link of the TUN interface, told again when it
//! has begun anew, and what it was told is taken back at the end.

use std::io;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use wayleave_runtime::resolved::{LinkNames, Resolved};

use crate::roles::events::{EventLine, Events, event};

/// Interval between attempts where there is no bus, or where systemd-resolved refused.
const AGAIN: Duration = Duration::from_secs(30);
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
        let keeper = Keeper { interface, names, state, log };
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
}

impl Keeper {
    async fn run(self, mut has_ended: oneshot::Receiver<()>) {
        loop {
            let kept = tokio::select! {
                kept = self.keep() => kept,
                _ = &mut has_ended => return self.revert().await,
            };
            // There is no bus, or it has ended.
            if kept.is_err() {
                self.note(State::Absent);
            }
            tokio::select! {
                () = sleep(AGAIN) => {}
                _ = &mut has_ended => return,
            }
        }
    }

    /// Keeps it told over one connection to the bus, which has ended when this returns.
    async fn keep(&self) -> io::Result<()> {
        let mut resolved = Resolved::connect().await?;
        loop {
            let state = match resolved.is_there().await? {
                false => State::Absent,
                true => match resolved.set(&self.names).await {
                    Ok(()) => State::Set,
                    Err(error) => State::Failed(self.fault(&error)),
                },
            };
            let has_failed = matches!(state, State::Failed(_));
            self.note(state);
            tokio::select! {
                changed = resolved.changed() => changed?,
                // What was refused may be allowed by then.
                () = sleep(AGAIN), if has_failed => {}
            }
        }
    }

    async fn revert(&self) {
        if *self.state.read().unwrap_or_else(PoisonError::into_inner) != State::Set {
            return;
        }
        if let Ok(resolved) = Resolved::connect().await {
            let _ = resolved.revert(self.names.index).await; // the interface's end does it at the latest
        }
    }

    fn fault(&self, error: &io::Error) -> String {
        let by_hand = self.by_hand();
        format!(
            "systemd-resolved does not ask this gateway for names ({error}), so programs here do not find them: where the role is not root, \
             install the polkit rule of packaging/polkit; or do it as root: {by_hand}"
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
            self.log.report(self.line(&state));
        }
    }

    fn line(&self, state: &State) -> EventLine {
        let interface = self.interface.clone();
        let server = self.names.server.to_string();
        match state {
            State::Set => {
                let zones = self.names.zones.join(" ");
                event!(INFO "resolver-set" { interface, zones } "systemd-resolved asks this gateway for names")
            }
            State::Unknown | State::Absent => event!(INFO "resolver-absent" { interface, server }
                "systemd-resolved does not run here: once it does it is told of the names; any other resolver has to be told to ask the gateway"),
            State::Failed(why) => event!(WARN "resolver-failed" { interface; why } "{why}"),
        }
    }
}
