//! What `bench forward` and `bench stamp` measure: every format at its sizes, in memory.

use std::time::Duration;

use wayleave_crypto::lanes::CpuKernel;
use wayleave_packet::icing::mint::Form;

use super::forward::{ForwardBench, ForwardTask, ScionStampBench};
use super::icing::{IcingBench, IcingTask};
use super::platypus::{PlatypusBench, PlatypusStampBench, PlatypusTask};
use super::slots::Headroom;
use crate::dir24::TableError;

/// What is done with packets.
#[derive(Clone, Copy, Debug)]
pub enum Subject {
    Forward(ForwardTask),
    Platypus(PlatypusTask),
    Icing(IcingTask),
    StampPlatypus,
    StampScion,
}

/// A subject, its name in the results, and the sizes of packets in octets.
#[derive(Clone, Copy, Debug)]
pub struct Measure {
    pub name: &'static str,
    pub subject: Subject,
    /// The first one is also measured on all cores.
    pub sizes: &'static [usize],
}

const fn measure(name: &'static str, subject: Subject, sizes: &'static [usize]) -> Measure {
    Measure { name, subject, sizes }
}

/// Of `bench forward`.
pub const FORWARD: [Measure; 11] = [
    measure("none", Subject::Forward(ForwardTask::None), &[64, 1_518]),
    measure("ip", Subject::Forward(ForwardTask::Ip), &[64, 1_518]),
    measure("scion-2015", Subject::Forward(ForwardTask::Scion2015), &[64, 1_518]),
    measure("scion", Subject::Forward(ForwardTask::Scion), &[64, 1_518]),
    measure("scion-mixed", Subject::Forward(ForwardTask::ScionMixed), &[64]),
    measure("platypus-macs", Subject::Platypus(PlatypusTask::Macs), &[64, 348, 1_500]),
    measure("platypus-mixed", Subject::Platypus(PlatypusTask::Mixed), &[64]),
    measure("platypus", Subject::Platypus(PlatypusTask::Plain), &[64, 348, 1_500]),
    measure("platypus-full", Subject::Platypus(PlatypusTask::Full), &[64, 348, 1_500]),
    measure("icing", Subject::Icing(IcingTask::Forward), &[64, 1_500]),
    measure("icing-full", Subject::Icing(IcingTask::Full), &[64, 1_500]),
];

/// Of `bench stamp`.
pub const STAMP: [Measure; 3] = [
    measure("platypus", Subject::StampPlatypus, &[64, 40, 348, 1_500]),
    measure("scion", Subject::StampScion, &[64, 1_500]),
    measure("icing", Subject::Icing(IcingTask::Stamp), &[64, 1_500]),
];

impl Measure {
    /// The name of the result for packets of `size` octets. Where the subject's name does not depend on the size, the
    /// first size has the subject's name alone.
    #[must_use]
    pub fn result_name(&self, size: usize) -> String {
        let is_bare = size == 64 && matches!(self.subject, Subject::Forward(_));
        if is_bare { self.name.to_owned() } else { format!("{}.{size}", self.name) }
    }

    /// The name of the result on all cores.
    #[must_use]
    pub fn cores_name(&self) -> String {
        format!("{}.cores", self.name)
    }

    /// The names of all its results.
    pub fn result_names(&self) -> impl Iterator<Item = String> {
        self.sizes.iter().map(|size| self.result_name(*size)).chain([self.cores_name()])
    }
}

/// One pass over all packets, timed by the clock that it is given: how many went through, and how long it took.
pub type Pass = Box<dyn FnMut(&mut dyn FnMut() -> Duration) -> (usize, Duration)>;

/// IPv4 routes: address, prefix length, next hop.
pub type Routes = Vec<(u32, u8, u16)>;

/// Makes the packets of `length` octets and what processes them.
///
/// # Errors
/// If `routes` make no table.
pub fn prepare(subject: Subject, length: usize, routes: &Routes, headroom: Headroom) -> Result<Pass, TableError> {
    let kernel = CpuKernel::best();
    Ok(match subject {
        Subject::Forward(work) => {
            let mut bench = ForwardBench::new(work, length, routes, kernel, headroom, 7)?;
            Box::new(move |mut clock| bench.pass(&mut clock))
        }
        Subject::Platypus(work) => {
            let mut bench = PlatypusBench::new(work, length, kernel, headroom);
            Box::new(move |mut clock| bench.pass(&mut clock))
        }
        Subject::Icing(work) => {
            let mut bench = IcingBench::new(work, length, Form::Path, kernel, headroom);
            Box::new(move |mut clock| bench.pass(&mut clock))
        }
        Subject::StampPlatypus => {
            let mut bench = PlatypusStampBench::new(length, kernel, headroom);
            Box::new(move |mut clock| bench.pass(&mut clock))
        }
        Subject::StampScion => {
            let mut bench = ScionStampBench::new(length, headroom, 7);
            Box::new(move |mut clock| bench.pass(&mut clock))
        }
    })
}

/// Packets a second of one repetition: the best of 20 passes, since other programs on the machine only ever slow a pass
/// down.
pub fn rate(pass: &mut Pass, clock: &mut dyn FnMut() -> Duration) -> f64 {
    let one = |_| {
        let (packets, took) = pass(clock);
        packets as f64 / took.as_secs_f64()
    };
    (0..20).map(one).fold(0.0, f64::max)
}
