//! `bench exchange-peers`: the private route server beside plain ones, which are given the same routes, policies and outages.

pub mod own;
pub mod servers;
pub mod speakers;
pub mod work;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde_json::json;
use wayleave_core::Instant;
use wayleave_papers::report::Report;

use crate::bench::exchange::{ExchangeError, now};
use crate::netns::NetworkNamespace;
use crate::routers::Installation;
use servers::{PlainServer, Software};
use speakers::Speakers;
use work::{Stage, Work};

/// The port of BGP.
const PORT: u16 = 179;
/// How long the speakers wait for something to happen before they look again.
const WAIT: Duration = Duration::from_millis(20);

/// How long something took, and the processor time of each part meanwhile.
#[derive(Clone, Debug)]
pub struct Stretch {
    pub elapsed: Duration,
    pub used: Vec<(&'static str, Duration)>,
    /// Prefixes of all compared tables that have a route then, but not the best one.
    pub wrong: usize,
}

/// What was measured of one server.
#[derive(Clone, Debug)]
pub struct Measured {
    /// From the start of its processes until the sessions of all members are up.
    pub sessions: Stretch,
    /// From the first route that is announced until all tables are whole.
    pub table: Stretch,
    /// The largest member hides its routes from a quarter of the members, and no longer does: until all tables follow.
    pub reload: [Stretch; 2],
    /// From the return of the quarter, which was down, until all tables are whole.
    pub back: Stretch,
    /// Octets, of all its processes.
    pub memory: u64,
    /// Members whose tables were compared, prefix by prefix, after each stage.
    pub whole: usize,
    /// Routes in these once they are whole.
    pub routes: usize,
    /// Of these, how many the policy that is loaded changes.
    pub changed: usize,
    /// How often the server told its operators what.
    pub events: BTreeMap<String, u64>,
    /// What is known of prefixes that stayed wrong.
    pub said: Vec<String>,
}

impl Measured {
    /// Adds the results of `server`.
    pub fn report(&self, server: &str, report: &mut Report) {
        if !self.events.is_empty() {
            report.params.insert(format!("events.{server}"), json!(self.events));
        }
        if !self.said.is_empty() {
            report.params.insert(format!("wrong.{server}"), json!(self.said));
        }
        let all = [&self.table, &self.reload[0], &self.reload[1], &self.back];
        report.counted(
            format!("wrong.{server}"),
            "count",
            all.iter().map(|stretch| stretch.wrong).max().unwrap_or(0) as f64,
            self.whole,
        );
        let seconds = |stretch: &Stretch| stretch.elapsed.as_secs_f64();
        report.exact(format!("sessions.{server}"), "s", seconds(&self.sessions));
        report.exact(format!("table.{server}"), "s", seconds(&self.table));
        let reload = self.reload.each_ref().map(seconds);
        // The slower of the two.
        report.summary(format!("reload.{server}"), "s", &reload, reload[0].max(reload[1]));
        report.exact(format!("return.{server}"), "s", seconds(&self.back));
        report.exact(format!("memory.{server}"), "bytes", self.memory as f64);
        report.counted(format!("routes.{server}"), "count", self.routes as f64, self.whole);
        report.counted(format!("reload.{server}.changed"), "count", self.changed as f64, self.whole);
        let stretches = [("table", &self.table), ("reload", &self.reload[0]), ("return", &self.back)];
        for (name, stretch) in stretches {
            for (part, time) in &stretch.used {
                report.exact(format!("{name}.{server}.{part}"), "s", time.as_secs_f64());
            }
        }
    }
}

/// Measures a plain server, on a namespace of its own. To be called in the members' namespace.
///
/// # Errors
/// If it does not start, it ends, or a table is not as it is to be within `limit`.
pub fn plain(
    software: Software,
    installation: &Installation,
    (namespace, state): (&NetworkNamespace, &Path),
    work: &Work,
    limit: Duration,
) -> Result<Measured, ExchangeError> {
    let begin = now().instant;
    let server = PlainServer::start(software, installation, namespace, state, work)?;
    let speakers = Speakers::new(work, (software.address(), PORT).into());
    let mut run = Run { server, speakers, limit };
    work.slots().for_each(|slot| run.speakers.start(slot));
    let sessions = run.measure(begin, "sessions are not up", |speakers| speakers.up() == work.members)?;

    let own_best = software.own_best();
    run.speakers.expect(work, Stage::Whole, own_best);
    let begin = now().instant;
    work.slots().for_each(|slot| run.speakers.announce(work, slot));
    let is_right = |speakers: &Speakers| speakers.wrong() == 0;
    let table = run.measure(begin, "tables are not whole", is_right)?;
    let routes = run.speakers.routes();

    let mut changed = [0; 2];
    let mut reload = |hides: bool| {
        run.speakers.expect(work, if hides { Stage::Hidden } else { Stage::Whole }, own_best);
        changed[usize::from(hides)] = run.speakers.wrong();
        let begin = now().instant;
        run.server.reload(work, hides)?;
        run.measure(begin, "tables do not follow the policy", is_right)
    };
    let reload = [reload(true)?, reload(false)?];
    let [_, changed] = changed;

    run.speakers.expect(work, Stage::Without, own_best);
    work.quarter().for_each(|slot| run.speakers.stop(slot));
    run.measure(now().instant, "routes of members that are down stay", is_right)?;
    run.speakers.expect(work, Stage::Whole, own_best);
    let begin = now().instant;
    work.quarter().for_each(|slot| run.speakers.start(slot));
    let back = run.measure(begin, "tables are not whole after the return", is_right)?;
    let memory = run.server.memory();
    Ok(Measured {
        sessions,
        table,
        reload,
        back,
        memory,
        whole: work.members,
        routes,
        changed,
        events: BTreeMap::new(),
        said: Vec::new(),
    })
}

struct Run {
    server: PlainServer,
    speakers: Speakers,
    limit: Duration,
}

impl Run {
    /// From `begin` until `holds` says so.
    fn measure(
        &mut self,
        begin: Instant,
        what: &'static str,
        holds: impl Fn(&Speakers) -> bool,
    ) -> Result<Stretch, ExchangeError> {
        let (server, speakers) = (self.server.used(), self.speakers.work);
        while !holds(&self.speakers) {
            self.speakers.step(WAIT)?;
            if !self.server.is_running() {
                let (server, said) = (self.server.software.name(), format!("it ended: {}", self.server.log_tail()));
                return Err(ExchangeError::Server { server, said });
            }
            if now().instant.since(begin) > self.limit {
                let state = format!("{}; {}", self.speakers.state(), self.server.log_tail());
                return Err(ExchangeError::Late { what, seconds: self.limit.as_secs(), state });
            }
        }
        let elapsed = now().instant.since(begin);
        let used = vec![("server", self.server.used() - server), ("members", self.speakers.work - speakers)];
        Ok(Stretch { elapsed, used, wrong: 0 })
    }
}
