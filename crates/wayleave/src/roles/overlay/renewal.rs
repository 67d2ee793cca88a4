//! A node's next membership, in time: asked of the realm's operator once half of the present one is over, written into the
//! membership's file, and handed on. Where the operator does not run, or says no, the present one holds until it ends.

use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tracing::warn;
use wayleave_control::frames::{Body, Frame, MAX_FRAME, PROTOCOLS};
use wayleave_control::realm::{JoinError, KeyRoll, Membership, Server, verify};
use wayleave_crypto::signed::Signed;
use wayleave_runtime::clock::{unix_now, utc};
use wayleave_runtime::links::{Limits, LinkEvent, Links};
use wayleave_runtime::node_tls::NodeIdentity;

use crate::key_files::membership;
use crate::roles::events::{EventLine, Events, event};

/// How long the operator's side is waited for.
const TIMEOUT: Duration = Duration::from_secs(10);
/// A clock may be set meanwhile: it is looked at this often.
const LOOK: Duration = Duration::from_secs(60);
/// Seconds between two attempts, at least and at most.
const LEAST: u64 = 1;
const MOST: u64 = 3_600;

/// What is to be kept up.
pub struct Renewal {
    /// Who renews; nobody, if the configuration does not say.
    pub operator: Option<Server>,
    pub identity: NodeIdentity,
    pub membership: Signed<Membership>,
    /// Where it lies.
    pub file: PathBuf,
    /// The rolls of the realm's key that are known.
    pub rolls: watch::Receiver<Vec<KeyRoll>>,
    pub log: Events,
}

/// Why there is no later membership yet.
pub enum Failed {
    Refused(JoinError),
    /// No answer, or one that does not hold.
    Other(String),
}

impl Failed {
    /// What it means for a membership that holds until then.
    pub fn describe(&self, until: u64, now: u64) -> String {
        let (end, until) = (if now > until { "ended on" } else { "ends on" }, utc(until));
        match self {
            Self::Refused(error) => {
                format!("the realm's operator does not renew this node's membership, which {end} {until}: {error}")
            }
            Self::Other(why) => format!("this node's membership, which {end} {until}, could not be renewed: {why}"),
        }
    }
}

pub fn renewed_line(until: u64) -> EventLine {
    event!(INFO "renewed" { until = utc(until); until } "the operator has renewed this node's membership")
}

pub fn not_renewed_line(why: &str) -> EventLine {
    event!(WARN "not-renewed" {; why } "{why}; afterwards others do not know it: ask the realm's operator")
}

impl Renewal {
    /// Renews from now on; later memberships go to `to`. The receiver has what an operator should see of it, if anything.
    pub fn start(self, to: mpsc::Sender<Signed<Membership>>) -> (JoinHandle<()>, watch::Receiver<Option<String>>) {
        let (problem, shown) = watch::channel(None);
        (tokio::spawn(self.run(to, problem)), shown)
    }

    async fn run(mut self, to: mpsc::Sender<Signed<Membership>>, problem: watch::Sender<Option<String>>) {
        let mut said = false;
        loop {
            let (from, until) = self.times();
            let now = unix_now().secs();
            if now < from {
                let pause = LOOK.min(Duration::from_secs(from - now));
                // A roll may end the membership at once. Whoever knew of rolls is gone where this fails: then the time decides.
                if let Ok(Err(_)) = timeout(pause, self.rolls.changed()).await {
                    tokio::time::sleep(pause).await;
                }
                continue;
            }
            match self.ask().await {
                Ok(Some(later)) => {
                    let ends = later.object().not_after;
                    if let Err(failures) = membership::save(&later, &self.file) {
                        // It holds in this process; after a restart it is asked for again.
                        let why: Vec<String> = failures.0.iter().map(ToString::to_string).collect();
                        warn!("the renewed membership could not be written: {}", why.join("; "));
                    }
                    self.log.report(renewed_line(ends));
                    self.membership = later.clone();
                    problem.send_replace(None);
                    said = false;
                    if to.send(later).await.is_err() {
                        return;
                    }
                    continue;
                }
                Ok(None) => {}
                Err(failed) => {
                    let text = failed.describe(until, now);
                    // An operator's side that is not there is nothing special while there is time.
                    let is_urgent = matches!(failed, Failed::Refused(_)) || now >= from + (until - from) / 2;
                    if is_urgent && !said {
                        said = true;
                        self.log.report(not_renewed_line(&text));
                    }
                    problem.send_replace(is_urgent.then_some(text));
                }
            }
            let pause = (until.saturating_sub(self.membership.object().not_before) / 32).clamp(LEAST, MOST);
            tokio::time::sleep(Duration::from_secs(pause)).await;
        }
    }

    /// From when the next membership is asked for, and until when the present one holds: at most until the key ends that signed it.
    fn times(&self) -> (u64, u64) {
        let membership = self.membership.object();
        let (from, until) = (membership.renewable_at(), membership.not_after);
        let rolls = self.rolls.borrow();
        let later = rolls.iter().filter(|roll| usize::from(roll.number) > membership.rolls.len());
        match later.min_by_key(|roll| roll.until) {
            Some(roll) if roll.until < until => (roll.from.min(from), roll.until),
            _ => (from, until),
        }
    }

    /// The later membership; none if the operator's side has none later.
    async fn ask(&self) -> Result<Option<Signed<Membership>>, Failed> {
        let Some(operator) = &self.operator else {
            let why = "the configuration names no `operator`; `wayleave join` writes it";
            return Err(Failed::Other(why.to_owned()));
        };
        let mut silence = "it was not reached".to_owned();
        let answer = timeout(TIMEOUT, self.exchange(operator, &mut silence)).await;
        let answer = answer.unwrap_or(Err(silence));
        let answer = answer.map_err(|why| Failed::Other(format!("operator at {}: {why}", operator.address)))?;
        let later = answer.map_err(Failed::Refused)?;
        let (before, object) = (self.membership.object(), later.object());
        if object.number == before.number {
            return Ok(None);
        }
        let holds = object.identity == before.identity
            && object.noise == before.noise
            && object.number > before.number
            && verify(&later, &before.realm).is_ok();
        if holds { Ok(Some(later)) } else { Err(Failed::Other("the answer is no membership of this node".to_owned())) }
    }

    /// Asks until somebody answers; meanwhile `silence` says why nobody has.
    async fn exchange(
        &self,
        operator: &Server,
        silence: &mut String,
    ) -> Result<Result<Signed<Membership>, JoinError>, String> {
        let (to, mut events) = mpsc::channel::<LinkEvent>(64);
        let links = Links::new(Limits { frame: MAX_FRAME as u32, protocols: PROTOCOLS, ..Limits::default() });
        let connecting = links.connect_node(operator.address.clone(), &self.identity, operator.identity, to);
        let _connecting = connecting.map_err(|error| error.to_string())?;
        let request = Frame { request: 1, body: Body::Renew { number: self.membership.object().number } }.encode();
        while let Some(event) = events.recv().await {
            match event {
                LinkEvent::Up { link, .. } => {
                    links.send(link, request.clone());
                    "no answer".clone_into(silence);
                }
                // A path server is told of removed nodes by the same link.
                LinkEvent::Frame { bytes, .. } => match Frame::decode(&bytes) {
                    Ok(Frame { request: 1, body: Body::Joined(answer) }) => return Ok(answer),
                    Ok(_) => {}
                    Err(error) => return Err(format!("malformed: {error}")),
                },
                LinkEvent::Failed { failure, .. } => *silence = failure.to_string(),
                LinkEvent::Down { .. } => return Err("the connection was closed".to_owned()),
            }
        }
        Err("no link".to_owned())
    }
}
