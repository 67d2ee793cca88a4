//! A format for tests of what is generic over formats.

use std::net::SocketAddr;
use std::sync::Arc;

use wayleave_core::Now;
use wayleave_dataplane::frame::Ingress;
use wayleave_runtime::store::FileStore;

use super::batch::Batch;
use super::counters::FormatCounters;
use super::format::{Control, Format};
use super::journal::{NoAccount, Total};
use super::output::OutputQueues;
use super::ports::{AttachedPort, PortKind, PortSpec};
use super::settings::Settings;
use crate::config::router::FormatName;
use crate::failure::{Failure, Outcome};

/// Sends every packet back to where it came from, and notes which could not be sent.
#[derive(Default)]
pub struct Echo {
    pub unsent: Vec<usize>,
}

impl Format for Echo {
    type Plan = ();
    type Account = NoAccount;
    type Control = ();

    fn open((): &mut (), _: &Settings, _: usize, _: &[AttachedPort], _: Vec<(NoAccount, Total)>) -> Outcome<Self> {
        Ok(Self::default())
    }

    fn reload(&mut self, (): (), _: &[AttachedPort], _: Now) -> Result<(), Failure> {
        Ok(())
    }

    fn classify(&self, _: PortKind, _: &SocketAddr) -> Option<Ingress> {
        Some(Ingress::Internal)
    }

    fn process(&mut self, batch: &mut Batch<'_>, _: Now, out: &mut OutputQueues) {
        for (packet, _, from) in batch.packets() {
            out.data(batch.port, packet, from);
        }
    }

    fn unsent(&mut self, packet: usize) {
        self.unsent.push(packet);
    }

    fn counters(&self, _: Now) -> FormatCounters {
        FormatCounters::default()
    }
}

impl Control<Echo> for () {
    const NAME: FormatName = FormatName::Scion;
    const KEYS_AHEAD: u64 = 0;
    const LIVE: &'static [&'static str] = &[];
    type View = ();

    fn load(_: &Settings, _: Option<&Arc<FileStore>>) -> Outcome<Self> {
        Ok(())
    }

    fn ports(_: &Settings) -> Vec<PortSpec> {
        Vec::new()
    }

    fn plan(&self, _: &Settings) -> Result<(), Failure> {
        Ok(())
    }

    fn view(&self) {}
}
