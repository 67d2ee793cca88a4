//! The thread on which a party makes correlations, beside everything else that it does.

use std::sync::mpsc::{Sender, channel};

use tokio::sync::mpsc;
use tracing::debug;
use wayleave_route_server::party::{PartyInput, SetupJob};

use super::io::Event;
use crate::failure::{Failure, Outcome};

/// By how much other threads go before this one where processors are few. Small, so that it goes on under any load: what is
/// evaluated may wait for it.
const NICE: i32 = 5;

/// Starts the thread; it ends with the machine's loop. The machine has one job out at a time, so the queue holds one at most.
pub fn start(events: mpsc::Sender<Event>) -> Outcome<Sender<SetupJob>> {
    let (jobs, queue) = channel::<SetupJob>();
    let work = move || {
        // On Linux a thread's own. Without it, setup competes with the rest on equal terms.
        if let Err(error) = rustix::process::nice(NICE) {
            debug!(%error, "the thread of setup keeps its priority");
        }
        for job in queue {
            if events.blocking_send(Event::Input(PartyInput::SetupDone(job.run()))).is_err() {
                return;
            }
        }
    };
    let thread = std::thread::Builder::new().name("setup".to_owned()).spawn(work);
    thread.map_err(|error| Failure::system("cannot start the thread of setup", &error))?;
    Ok(jobs)
}
