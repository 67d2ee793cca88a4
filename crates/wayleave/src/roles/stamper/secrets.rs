//! Secrets of capabilities that routes name by their lines: looked up through DNS, and again before each key epoch ends.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use tokio::sync::mpsc;
use tracing::warn;
use wayleave_control::capability::{Credential, LookupEvent, LookupFailure, Obtained, Renewal, Terms, Zone};
use wayleave_core::UnixTime;

use super::registration::Registration;
use crate::failure::Failure;
use crate::key_files::capability::Capabilities;
use crate::look_up::{DNS_PORT, look_up, resolvers};
use crate::roles::daemon::{QUEUE, seed};
use crate::roles::events::{EventLine, Events, event, shown};
use crate::roles::stamping::{Known, Lines};

/// A look-up that has ended.
pub struct LookedUp {
    credential: Credential,
    result: Result<Obtained, LookupFailure>,
    events: Vec<LookupEvent>,
}

impl LookedUp {
    pub fn credential(&self) -> &Credential {
        &self.credential
    }
}

/// What the look-ups came to.
#[derive(Clone, Copy, Default, Debug)]
pub struct LookupCounters {
    pub found: u64,
    pub failed: u64,
    /// Answers that nobody with the capability's key made, strays and changed TTLs.
    pub events: u64,
    /// Times that nothing had to be asked for to know whether the secrets hold.
    pub known: u64,
}

/// A capability that is looked up, without its key.
pub type Line = (Zone, Terms);

/// When the key server last answered for each line.
pub type Answers = HashMap<Line, UnixTime>;

/// What names a capability where it is shown.
pub fn line_of(credential: &Credential) -> Line {
    (credential.zone.clone(), credential.terms)
}

/// The secrets of all lines in use.
pub struct Secrets {
    held: Vec<Renewal>,
    /// As configured; the machine's own without any.
    configured: Vec<IpAddr>,
    sender: mpsc::Sender<LookedUp>,
    ended: mpsc::Receiver<LookedUp>,
    pub counters: LookupCounters,
    log: Events,
}

impl Secrets {
    pub fn new(configured: Vec<IpAddr>, log: Events) -> Self {
        let (sender, ended) = mpsc::channel(QUEUE);
        Self { held: Vec::new(), configured, sender, ended, counters: LookupCounters::default(), log }
    }

    pub fn set_resolvers(&mut self, configured: Vec<IpAddr>) {
        self.configured = configured;
    }

    /// Forgets capabilities that no line names any more.
    pub fn keep(&mut self, used: &[Credential]) {
        self.held.retain(|renewal| used.contains(renewal.credential()));
    }

    fn servers(&self) -> Vec<SocketAddr> {
        match &self.configured[..] {
            [] => resolvers(),
            configured => configured.iter().map(|address| SocketAddr::new(*address, DNS_PORT)).collect(),
        }
    }

    /// Finds out whether the secrets that are there still hold: all, or those of a registration.
    pub fn confirm(&mut self, of: Option<&Registration>, now: UnixTime) {
        let is_of = |renewal: &&mut Renewal| {
            let named = |registration: &Registration| {
                registration.capabilities.iter().any(|held| held.line.as_ref() == Some(renewal.credential()))
            };
            of.is_none_or(named)
        };
        self.held.iter_mut().filter(is_of).for_each(|renewal| renewal.confirm(now));
        if !self.held.iter().any(Renewal::is_confirming) {
            self.counters.known += 1;
        }
    }

    /// Begins the look-ups that are due.
    pub fn ask(&mut self, now: UnixTime) {
        let due: Vec<(Credential, u32)> = self
            .held
            .iter_mut()
            .filter_map(|renewal| Some((renewal.due(now)?, renewal.credential().clone())))
            .map(|(epoch, credential)| (credential, epoch))
            .collect();
        if due.is_empty() {
            return;
        }
        let servers = self.servers();
        for (credential, epoch) in due {
            let (sender, servers) = (self.sender.clone(), servers.clone());
            tokio::task::spawn_blocking(move || {
                let mut events = Vec::new();
                let result = look_up(&credential, epoch, &servers, &mut |event| events.push(event));
                // Without randomness nothing can be asked: tried again like any failure.
                let result = result.unwrap_or(Err(LookupFailure::NoServer));
                // Fails if the role has ended.
                let _ = sender.blocking_send(LookedUp { credential, result, events });
            });
        }
    }

    /// The next look-up that ends.
    pub async fn next(&mut self) -> LookedUp {
        match self.ended.recv().await {
            Some(ended) => ended,
            // There is a sender for as long as this lives.
            None => std::future::pending().await,
        }
    }

    /// Takes a look-up's result in, and says what is to be said of it. Returns whether secrets, or why there are none, differ from before.
    pub fn done(&mut self, ended: LookedUp, now: UnixTime) -> bool {
        let LookedUp { credential, result, events } = ended;
        let Some(renewal) = self.held.iter_mut().find(|renewal| *renewal.credential() == credential) else {
            return false;
        };
        let before = (renewal.secrets().to_vec(), renewal.failure());
        let (terms, zone) = (credential.terms, credential.zone.as_str());
        for event in events {
            self.counters.events += 1;
            warn!(%terms, zone, "{event}");
        }
        match &result {
            Ok(obtained) => {
                self.counters.found += 1;
                let epoch = obtained.secret.capability.epoch;
                self.log.report(found_line(&terms, zone, epoch));
            }
            Err(failure) => {
                self.counters.failed += 1;
                if renewal.failure() != Some(*failure) {
                    self.log.report(missing_line(&terms, zone, *failure));
                }
            }
        }
        renewal.done(result, now);
        before != (renewal.secrets().to_vec(), renewal.failure())
    }
}

pub fn found_line(terms: &Terms, zone: &str, epoch: u32) -> EventLine {
    event!(INFO "secret-found" { terms = shown(terms), zone, epoch } "a secret was looked up")
}

pub fn missing_line(terms: &Terms, zone: &str, failure: LookupFailure) -> EventLine {
    event!(WARN "secret-missing" { terms = shown(terms), zone; why = shown(failure) }
        "no secret: {failure}; it is asked for again")
}

impl Secrets {
    /// When the key server last answered for each line for which it has.
    pub fn answers(&self) -> Answers {
        self.held.iter().filter_map(|renewal| Some((line_of(renewal.credential()), renewal.answered()?))).collect()
    }

    /// Puts what is known into the capabilities that a user named by lines. Returns `None` if there is a secret for each;
    /// otherwise why one is missing, or `None` inside while it is being looked up.
    ///
    /// # Errors
    /// The system gave no randomness.
    pub fn fill(&mut self, registration: &mut Registration) -> Result<Option<Option<LookupFailure>>, Failure> {
        let mut missing = None;
        for capability in &mut registration.capabilities {
            let Some(line) = &capability.line else { continue };
            let Known { secrets, failure } = self.hold(line)?;
            let confirms = self.held.iter().any(|held| held.credential() == line && held.is_confirming());
            capability.failure = failure.filter(|_| secrets.is_empty());
            if secrets.is_empty() && matches!(failure, Some(LookupFailure::Denied(_))) {
                // Not with the secret of before, which waypoints refuse.
                capability.capabilities = Capabilities::of_line(line, &[]);
            }
            if secrets.is_empty() || confirms {
                missing = Some(missing.flatten().or(failure.filter(|_| !confirms)));
                continue;
            }
            capability.capabilities = Capabilities::of_line(line, &secrets);
        }
        Ok(missing)
    }
}

impl Lines for Secrets {
    fn hold(&mut self, credential: &Credential) -> Result<Known, Failure> {
        let known = self.held.iter().find(|renewal| renewal.credential() == credential);
        if let Some(renewal) = known {
            return Ok(Known { secrets: renewal.secrets().to_vec(), failure: renewal.failure() });
        }
        let seed = seed().map_err(|_| Failure::new("the system gave no randomness"))?;
        self.held.push(Renewal::new(credential.clone(), seed));
        Ok(Known { secrets: Vec::new(), failure: None })
    }
}

#[cfg(test)]
mod tests {
    use wayleave_control::capability::{Denial, MasterKey};
    use wayleave_crypto::secret::Key128;
    use wayleave_packet::platypus::header::{Interval, Principal, Width};

    use super::*;

    #[test]
    fn a_look_up_that_fails_as_the_last_one_changes_nothing() {
        let terms = Terms {
            waypoint: "198.51.100.1".parse().expect("an address"),
            principal: Principal::new(8).expect("24 bits"),
            interval: Interval::new(4).expect("in range"),
            width: Width::Full,
            delegation: None,
        };
        let zone = "keys.example.net".parse().expect("a zone");
        let credential = Credential { zone, terms, key: MasterKey::new(Key128::new([1; 16])) };
        let mut secrets = Secrets::new(Vec::new(), Events::default());
        secrets.hold(&credential).expect("randomness");
        let begun = 1_795_240_800;
        let mut now = begun;
        let mut fails = |secrets: &mut Secrets, failure: LookupFailure| {
            // Beyond every pause.
            now += 10_000;
            let at = UnixTime(now * 1_000_000);
            assert!(secrets.held[0].due(at).is_some());
            secrets.done(LookedUp { credential: credential.clone(), result: Err(failure), events: Vec::new() }, at)
        };
        let changed = [LookupFailure::NoServer, LookupFailure::NoServer, LookupFailure::Forged, LookupFailure::Forged];
        assert_eq!(changed.map(|failure| fails(&mut secrets, failure)), [true, false, true, false]);
        assert_eq!((secrets.counters.found, secrets.counters.failed), (0, 4));
        assert!(secrets.answers().is_empty(), "no key server has said anything");
        fails(&mut secrets, LookupFailure::Denied(Denial::Revoked));
        fails(&mut secrets, LookupFailure::NoServer);
        let answered = UnixTime((begun + 50_000) * 1_000_000);
        assert_eq!(secrets.answers(), Answers::from([(line_of(&credential), answered)]));
    }
}
