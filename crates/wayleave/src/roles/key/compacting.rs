//! The writer compacts its records when most of them are changes that a snapshot of the state replaces.

use std::time::Duration;

use tracing::error;
use wayleave_runtime::Clock;

use crate::config::Source;
use crate::config::key::KeyFile;
use crate::key_files::compaction::{Compacted, is_due};
use crate::roles::events::{Events, event};

/// How often the file is looked at, and how soon after a failure.
const LOOK: Duration = Duration::from_secs(60);
const RETRY: Duration = Duration::from_secs(3_600);

/// Compacts the records of a writer for as long as it runs.
pub async fn compact_when_due(config: KeyFile, source: Source, clock: Clock, log: Events) {
    let Ok(path) = config.records().map(|named| source.resolve(named.get_ref())) else { return };
    loop {
        let (config, source, path) = (config.clone(), source.clone(), path.clone());
        // Beside the server, which answers meanwhile: it reads the file itself, and locks it at the end alone.
        let work = tokio::task::spawn_blocking(move || match is_due(&path) {
            Ok(true) => config.compact(&source, clock.now().unix).map(Some),
            Ok(false) => Ok(None),
            Err(failure) => Err(failure.into()),
        });
        let mut pause = LOOK;
        match work.await {
            Ok(Ok(Some(Compacted { number, before, after }))) => {
                log.report(event!(INFO "compacted" { number, before, after } "records compacted"));
            }
            Ok(Err(failures)) => {
                pause = RETRY;
                for failure in failures.0 {
                    error!("the records are not compacted, and go on as they are: {failure}");
                }
            }
            Ok(Ok(None)) => {}
            // It has nothing in hand that others use: the file in use is as before.
            Err(_) => {
                pause = RETRY;
                error!(
                    "a compaction stopped, and the records go on as they are: a bug, please report it with the lines above"
                );
            }
        }
        tokio::time::sleep(pause).await;
    }
}
