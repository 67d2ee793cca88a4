//! SIGINT and SIGTERM, for commands that have something to end or to print before they end.

use std::io;

use tokio::signal::unix::{SignalKind, signal};
use wayleave_config::failure::{Failure, Outcome};

/// From here on neither ends the process. Each call of what is returned waits for the next one, and gives its number.
pub fn listen() -> Outcome<impl FnMut() -> i32 + Send + 'static> {
    let failed = |error: io::Error| Failure::system("signals", &error);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().map_err(failed)?;
    let guard = runtime.enter();
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    drop(guard);
    Ok(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => 2,
                _ = terminate.recv() => 15,
            }
        })
    })
}
