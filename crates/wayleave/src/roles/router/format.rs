//! What the role knows of a packet format. Everything else in this folder is generic over it.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use serde_json::{Map, Value};
use tokio::sync::mpsc::Receiver;
use wayleave_core::{Now, UnixTime};
use wayleave_dataplane::frame::Ingress;
use wayleave_dataplane::replay::ClockJumps;
use wayleave_runtime::Clock;
use wayleave_runtime::http::Metric;
use wayleave_runtime::packets::Burst;
use wayleave_runtime::store::{Change, FileStore};

use super::batch::Batch;
use super::counters::FormatCounters;
use super::journal::{Account, Total};
use super::output::{ControlPacket, OutputQueues};
use super::ports::{AttachedPort, PortKind, PortSpec};
use super::settings::Settings;
use super::threads::Threads;
use super::view::RouterView;
use crate::config::router::FormatName;
use crate::failure::{Failure, Outcome};
use crate::roles::Events;
use crate::roles::daemon::Views;

/// A packet format as one forwarding thread runs it. The thread's loop is compiled for each format: no call in it is
/// dynamic.
pub trait Format: Sized + Send + 'static {
    /// What a reload gives to every thread.
    type Plan: Clone + Send + 'static;
    /// Who pays for packets.
    type Account: Account;
    /// What the daemon does for the format in its own task.
    type Control: Control<Self>;

    /// Builds the router of thread number `thread` over its ports, with what the journal holds of that thread's accounts.
    ///
    /// # Errors
    /// What is wrong with the configuration.
    fn open(
        control: &mut Self::Control,
        settings: &Settings,
        thread: usize,
        ports: &[AttachedPort],
        accounts: Vec<(Self::Account, Total)>,
    ) -> Outcome<Self>;

    /// Takes another plan and other ports between two bursts; counters, accounts and filters stay.
    ///
    /// # Errors
    /// What is wrong with the plan. All stays as it was. [`Control::plan`] has tried it before.
    fn reload(&mut self, plan: Self::Plan, ports: &[AttachedPort], now: Now) -> Result<(), Failure>;

    /// Returns where packets that `from` sends to a port come in; `None` if nobody may send from there.
    fn classify(&self, port: PortKind, from: &SocketAddr) -> Option<Ingress>;

    /// Whether this is a message to the format itself, which it takes in [`Format::listen`], and no packet to be verified.
    #[inline]
    fn is_message(&self, _port: PortKind, _octets: &[u8]) -> bool {
        false
    }

    /// Takes the messages among what came in by a port.
    #[inline]
    fn listen(&mut self, _port: PortKind, _burst: &mut Burst, _now: Now) {}

    /// Returns the next message that the format itself sends, by a port of this kind; called until there is none.
    #[inline]
    fn speak(&mut self, _now: Now) -> Option<(PortKind, SocketAddr, Vec<u8>)> {
        None
    }

    /// Becomes readable when [`Format::speak`] has something that another thread left for it.
    fn waker(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Has something to say to neighbours, by [`Format::speak`], since the thread ends.
    fn leave(&mut self) {}

    /// Verifies the packets of `batch` in place and puts those that leave into `out`.
    fn process(&mut self, batch: &mut Batch<'_>, now: Now, out: &mut OutputQueues);

    /// The packet at this index of the burst, which [`Format::process`] gave to a port, was not sent: whoever was charged for
    /// it is credited. Called before [`Format::journal`] and [`Format::close`] see what the burst was charged with.
    #[inline]
    fn unsent(&mut self, _packet: usize) {}

    /// Returns the totals that changed since this was last called: the next records of the journal.
    fn journal(&mut self) -> Vec<(Self::Account, Total)> {
        Vec::new()
    }

    /// Frees the entry of an account that is over; returns whether it is free now.
    fn close(&mut self, _account: &Self::Account) -> bool {
        true
    }

    /// Returns what the thread counted since its start.
    fn counters(&self, now: Now) -> FormatCounters;

    /// Compares the clocks, whether packets come or not; returns how the wall clock jumped since the start.
    fn observe(&self, _now: Now) -> ClockJumps {
        ClockJumps::default()
    }

    /// Returns the Unix second from which on packets are accepted, by their stamps.
    fn accepts_from(&self) -> Option<u64> {
        None
    }
}

/// What the daemon does for a format in its own task: reads files, runs sessions, watches lists.
pub trait Control<F: Format>: Sized {
    const NAME: FormatName;
    /// Seconds before its beginning at which threads take the next key: clocks of routers and senders differ.
    const KEYS_AHEAD: u64;
    /// Configuration keys that a reload applies, with all keys below them. All others need a restart.
    const LIVE: &'static [&'static str];

    /// What the status pages read beside the threads' counters.
    type View: Clone + Send + Sync + 'static;

    /// Reads the files that the configuration names.
    ///
    /// # Errors
    /// What is wrong with a file; nothing has changed.
    fn load(settings: &Settings, store: Option<&Arc<FileStore>>) -> Outcome<Self>;

    /// Returns the sockets that the configuration asks for, in its order.
    fn ports(settings: &Settings) -> Vec<PortSpec>;

    /// Makes what threads forward by, and tries it.
    ///
    /// # Errors
    /// What is wrong with the configuration.
    fn plan(&self, settings: &Settings) -> Result<F::Plan, Failure>;

    /// Starts what the first plan needs; called once, before any thread.
    ///
    /// # Errors
    /// Why it cannot run.
    async fn begin(&mut self, _settings: &Settings, _clock: Clock, _log: &Events) -> Outcome {
        Ok(())
    }

    /// Waits until what runs beside the threads ends without being stopped. Cancel safe.
    async fn failed(&mut self) -> Failure {
        std::future::pending().await
    }

    /// Ends what [`Control::begin`] started.
    async fn end(self) {}

    /// Gives what runs to a control that a reload has read, so that it can make a plan.
    fn hand_over(&self, _next: &mut Self) {}

    /// Starts what runs beside the threads.
    fn start(&mut self, _context: Context<'_, F>) {}

    /// Checks whether a reload may put `next` in this one's place.
    ///
    /// # Errors
    /// What needs a restart.
    fn check_reload(&self, _next: &Self) -> Result<(), Failure> {
        Ok(())
    }

    /// Takes over what a reload has read.
    fn reload(&mut self, _next: Self) {}

    /// All threads have the plan that follows from `settings` now.
    async fn planned(&mut self, _settings: &Settings) {}

    /// Whether the time has made the threads' plan stale.
    fn is_stale(&mut self, _now: UnixTime) -> bool {
        false
    }

    /// These totals of accounts, over all threads, are durable; and with them everything that was counted until `_complete`.
    fn counted(&mut self, _totals: Vec<(F::Account, Total)>, _complete: Option<UnixTime>) {}

    /// Forgets those of these accounts, which ended long ago, whose totals are elsewhere too. `remove` takes their records out of the
    /// store, together with the changes that it is given; if it returns `false`, nothing has changed. Returns how many are forgotten.
    fn forget(
        &mut self,
        _accounts: Vec<F::Account>,
        _remove: impl FnOnce(&[F::Account], Vec<Change>) -> bool,
    ) -> usize {
        0
    }

    /// Does what is due; called once a second.
    async fn maintain(&mut self, _settings: &Settings, _threads: &Threads<F>, _log: &Events) {}

    /// Returns what the status pages read.
    fn view(&self) -> Self::View;

    /// The format's own metrics, beside what threads count.
    fn metrics(_view: &Self::View) -> Vec<Metric> {
        Vec::new()
    }

    /// Whether packets can be forwarded, as far as the format knows.
    ///
    /// # Errors
    /// What is missing.
    fn readiness(_view: &Self::View) -> Result<(), String> {
        Ok(())
    }

    /// The neighbours by name, where the format knows them by more than the configuration does.
    fn neighbours(_view: &Self::View) -> Option<Vec<Value>> {
        None
    }

    /// Adds the format's own members to the status view.
    fn status(_view: &Self::View, _members: &mut Map<String, Value>) {}

    /// Adds the format's own views.
    fn pages(views: Views<RouterView<F>>) -> Views<RouterView<F>> {
        views
    }
}

/// What [`Control::start`] may use.
pub struct Context<'a, F> {
    pub settings: &'a Settings,
    pub threads: &'a Threads<F>,
    /// This router's own control traffic, from all threads.
    pub received: Receiver<ControlPacket>,
    pub clock: Clock,
    pub log: &'a Events,
}
