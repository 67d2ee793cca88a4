//! `bench exchange-stress`: how many routes and prefixes the parties alone take, by the number of workers (the paper's Figure 11). A worker
//! is a pair of threads, one of each party, with a link over loopback TCP; no member takes part.

use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use wayleave_mpc::{DEFAULT_CHUNK, Role};
use wayleave_papers::bench::circuits::{End, Workload};
use wayleave_papers::bench::direct::Announced;

use super::circuits::{CircuitError, Loopback};

/// What is done so many times by each worker.
#[derive(Clone, Debug)]
pub enum Job {
    /// Export-All `direct`: the parties check a route and make every member's share.
    Direct { members: usize },
    /// A circuit, from a pool that was filled before.
    Filled(Box<Workload>),
    /// A circuit with its setup.
    Sustained(Box<Workload>),
}

/// Routes or prefixes a second of `workers` workers that do `job` `times` times each.
///
/// # Errors
/// If a link or an evaluation fails.
pub fn rate(job: &Job, workers: usize, times: usize) -> Result<f64, CircuitError> {
    let (workers, times) = (workers.max(1), times.max(1));
    // All ends have filled their pools before any begins.
    let ready = Arc::new(Barrier::new(2 * workers + 1));
    let mut threads = Vec::new();
    for worker in 0..workers {
        for (role, link) in [Role::Party1, Role::Party2].into_iter().zip(Loopback::pair(None)?) {
            let (job, ready) = (job.clone(), Arc::clone(&ready));
            threads.push(thread::spawn(move || end(&job, role, link, times, worker, &ready)));
        }
    }
    ready.wait();
    let begin = Instant::now();
    let mut took = Duration::ZERO;
    for thread in threads {
        let ended = thread.join().map_err(|_| CircuitError::Panicked)?.map_err(CircuitError::Party)?;
        took = took.max(ended.saturating_duration_since(begin));
    }
    Ok((workers * times) as f64 / took.as_secs_f64().max(f64::MIN_POSITIVE))
}

/// What one thread does; returns when it was done.
fn end(job: &Job, role: Role, link: Loopback, times: usize, worker: usize, ready: &Barrier) -> Result<Instant, String> {
    let (workload, is_filled) = match job {
        Job::Filled(workload) => (workload, true),
        Job::Sustained(workload) => (workload, false),
        Job::Direct { members } => {
            let announced: Vec<Announced> =
                (0..times).map(|number| Announced::new(*members, (worker * times + number) as u64)).collect();
            ready.wait();
            for one in &announced {
                std::hint::black_box(match role {
                    Role::Party1 => one.at_party_one(),
                    Role::Party2 => one.at_party_two(),
                });
            }
            return Ok(Instant::now());
        }
    };
    let mut seed = [role.number(); 32];
    seed[..8].copy_from_slice(&(worker as u64).to_be_bytes());
    let mut end = End::new(role, Workload::clone(workload), seed, DEFAULT_CHUNK, link);
    let prepared = end.link().and_then(|()| if is_filled { end.set_up_for(times).map(drop) } else { Ok(()) });
    // Who failed arrives too, or the others would wait for ever.
    ready.wait();
    prepared.map_err(|error| error.to_string())?;
    for _ in 0..times {
        if !is_filled {
            end.set_up().map_err(|error| error.to_string())?;
        }
        end.evaluate().map_err(|error| error.to_string())?;
    }
    Ok(Instant::now())
}
