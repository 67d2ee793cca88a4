//! What `bench forward` and `bench stamp` measure: every format at its sizes, in memory.

use std::time::Duration;

use wayleave_crypto::lanes::CpuKernel;
use wayleave_dataplane::replay::{TURN, memory_of};
use wayleave_packet::icing::mint::Form;

use super::forward::{ForwardBench, ForwardTask, ScionStampBench};
use super::icing::{self, IcingBench, IcingTask};
use super::platypus::{self, PlatypusBench, PlatypusStampBench, PlatypusTask};
use super::slots::Headroom;
use super::sustained::PASSES;
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
pub const FORWARD: [Measure; 12] = [
    measure("none", Subject::Forward(ForwardTask::None), &[64, 1_518]),
    measure("ip", Subject::Forward(ForwardTask::Ip), &[64, 1_518]),
    measure("scion-2015", Subject::Forward(ForwardTask::Scion2015), &[64, 1_518]),
    measure("scion", Subject::Forward(ForwardTask::Scion), &[64, 1_518]),
    measure("scion-mixed", Subject::Forward(ForwardTask::ScionMixed), &[64]),
    measure("platypus-macs", Subject::Platypus(PlatypusTask::Macs), &[64, 68, 348, 1_500]),
    measure("platypus-mixed", Subject::Platypus(PlatypusTask::Mixed), &[64]),
    measure("platypus", Subject::Platypus(PlatypusTask::Plain), &[64, 68, 348, 1_500]),
    measure("platypus-full", Subject::Platypus(PlatypusTask::Full), &[64, 68, 348, 1_500]),
    measure("icing", Subject::Icing(IcingTask::Forward), &[64, 1_500]),
    measure("icing-full", Subject::Icing(IcingTask::Full), &[64, 1_500]),
    measure("icing-sealed", Subject::Icing(IcingTask::ForwardSealed), &[64, 1_500]),
];

/// Of `bench stamp`.
pub const STAMP: [Measure; 4] = [
    measure("platypus", Subject::StampPlatypus, &[64, 40, 348, 1_500]),
    measure("scion", Subject::StampScion, &[64, 1_500]),
    measure("icing", Subject::Icing(IcingTask::Stamp), &[64, 1_500]),
    measure("icing-sealed", Subject::Icing(IcingTask::StampSealed), &[64, 1_500]),
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
type RunPass = Box<dyn FnMut(&mut dyn FnMut() -> Duration) -> (usize, Duration)>;

/// A measure that is ready to run.
pub struct Pass {
    run: RunPass,
    /// Whether its passes differ: those with a replay filter are spread over one of its turns, and count together.
    is_spread: bool,
}

impl std::fmt::Debug for Pass {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pass {{ is_spread: {} }}", self.is_spread)
    }
}

/// A result with a replay filter: its name, the packets a second for which the filter is made, and the octets of its memory.
pub fn filters() -> impl Iterator<Item = (String, u64, usize)> {
    FORWARD.iter().filter(|measure| measure.subject.has_filter()).flat_map(|measure| {
        measure.sizes.iter().map(|size| {
            let rate = match measure.subject {
                Subject::Icing(_) => icing::sustained_rate(*size),
                _ => platypus::sustained_rate(*size),
            };
            (measure.result_name(*size), rate, memory_of((rate * TURN) as usize))
        })
    })
}

impl Subject {
    fn has_filter(self) -> bool {
        matches!(self, Self::Platypus(PlatypusTask::Full) | Self::Icing(IcingTask::Full))
    }
}

/// IPv4 routes: address, prefix length, next hop.
pub type Routes = Vec<(u32, u8, u16)>;

/// Makes the packets of `length` octets and what processes them.
///
/// # Errors
/// If `routes` make no table.
pub fn prepare(subject: Subject, length: usize, routes: &Routes, headroom: Headroom) -> Result<Pass, TableError> {
    let kernel = CpuKernel::best();
    let run: RunPass = match subject {
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
    };
    Ok(Pass { run, is_spread: subject.has_filter() })
}

/// Packets a second of one repetition: the best of 20 passes, since other programs on the machine only ever slow a pass
/// down; or the mean of as many where they are spread over a turn of a replay filter.
pub fn rate(pass: &mut Pass, clock: &mut dyn FnMut() -> Duration) -> f64 {
    let passes: Vec<(usize, Duration)> = (0..PASSES).map(|_| (pass.run)(clock)).collect();
    if pass.is_spread {
        let sum = |(packets, took): (usize, Duration), one: &(usize, Duration)| (packets + one.0, took + one.1);
        let (packets, took) = passes.iter().fold((0, Duration::ZERO), sum);
        return packets as f64 / took.as_secs_f64();
    }
    passes.iter().map(|(packets, took)| *packets as f64 / took.as_secs_f64()).fold(0.0, f64::max)
}
