//! Servers to which no link comes up until an operator mends it, and those whose clock is another, for `show status`: the log says it once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wayleave_core::{IdentityKey, Now};
use wayleave_runtime::Clock;
use wayleave_runtime::clock::utc;
use wayleave_runtime::links::{ConnectFailure, LinkEvent};
use wayleave_runtime::tls::{Pin, Role};

use crate::roles::link_faults::CLOCK_TOLERANCE;

/// What is known of a server.
#[derive(Clone, Debug)]
enum Known {
    Fault(String),
    /// The Unix second that its clock showed when the link came up, and when that was.
    Clock(u64, Now),
}

/// What is wrong with each. Clones are views of the same.
#[derive(Clone, Debug)]
pub struct ServerFaults(Arc<Faults>);

#[derive(Debug)]
struct Faults {
    all: Mutex<BTreeMap<IdentityKey, Known>>,
    clock: Clock,
}

impl ServerFaults {
    pub fn new(clock: Clock) -> Self {
        Self(Arc::new(Faults { all: Mutex::default(), clock }))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<IdentityKey, Known>> {
        // Nothing that holds this lock can panic half-way through a change.
        self.0.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A link to a server came up, or did not; what is not `followed` any more, or only since somebody's advert names it, is not said.
    pub fn note(&self, event: &LinkEvent, followed: impl Fn(&IdentityKey) -> bool) {
        let (pin, known) = match event {
            LinkEvent::Up { pin, peer_clock, .. } => {
                (pin, peer_clock.map(|clock| Known::Clock(clock, self.0.clock.now())))
            }
            LinkEvent::Failed { pin, failure } => (pin, lasting(failure).map(Known::Fault)),
            LinkEvent::Frame { .. } | LinkEvent::Down { .. } => return,
        };
        let Pin { role: Role::Node(server), .. } = pin else { return };
        match known.filter(|_| followed(server)) {
            Some(known) => self.lock().insert(*server, known),
            None => self.lock().remove(server),
        };
    }

    /// The server is asked no more.
    pub fn forget(&self, server: &IdentityKey) {
        self.lock().remove(server);
    }

    pub fn problems(&self) -> Vec<String> {
        let now = self.0.clock.now();
        self.lock().iter().filter_map(|(server, known)| known.problem(server, now)).collect()
    }

    /// Of the problems those that are about clocks.
    pub fn clock_problems(&self) -> Vec<String> {
        let now = self.0.clock.now();
        let all = self.lock();
        let clocks = all.iter().filter(|(_, known)| matches!(known, Known::Clock(..)));
        clocks.filter_map(|(server, known)| known.problem(server, now)).collect()
    }
}

impl Known {
    fn problem(&self, server: &IdentityKey, now: Now) -> Option<String> {
        let (theirs, at) = match self {
            Self::Fault(fault) => return Some(format!("no link to the server {server}: {fault}")),
            Self::Clock(theirs, at) => (theirs, at),
        };
        // This machine's own clock may have been set since.
        let (theirs, ours) = (theirs.saturating_add(now.instant.since(at.instant).as_secs()), now.unix.secs());
        let (by, way) = if ours >= theirs { (ours - theirs, "ahead of") } else { (theirs - ours, "behind") };
        (by > CLOCK_TOLERANCE).then(|| {
            format!(
                "the clock of this machine is {by} s {way} that of the server {server}, as that was when the link came up on {}: one of the two \
                 is wrong, and what either signs may be refused: `timedatectl` or `chronyc tracking` says what sets it",
                utc(at.unix.secs())
            )
        })
    }
}

/// What does not pass by itself, as that a server does not run does.
fn lasting(failure: &ConnectFailure) -> Option<String> {
    match failure {
        ConnectFailure::NoProtocol | ConnectFailure::Refused(_) => Some(failure.to_string()),
        _ => None,
    }
}
