//! `run console`: what other roles say, on one page. It reads their status pages, has no logic of its own, and gives no order.

mod sources;
mod views;

use std::sync::Arc;

use tracing::info;
use wayleave_runtime::http::Token;

use super::daemon::{Daemon, Role};
use crate::config::Source;
use crate::config::console::ConsoleFile;
use crate::config::rs::StatusSection;
use crate::failure::{Failure, Outcome};
use sources::Sources;
use views::ConsoleView;

/// A running console.
pub struct ConsoleRole {
    sources: Arc<Sources>,
    view: ConsoleView,
    _watching: tokio::task::JoinSet<()>,
}

impl Role for ConsoleRole {
    const NAME: &'static str = "console";
    const LIVE: &'static [&'static str] = &[];
    type Config = ConsoleFile;
    type View = ConsoleView;
    type Event = std::convert::Infallible;

    fn parse(source: &Source) -> Outcome<ConsoleFile> {
        ConsoleFile::parse(source)
    }

    fn status(config: &ConsoleFile) -> Option<&StatusSection> {
        config.status.as_ref()
    }

    async fn start(config: ConsoleFile, daemon: &Daemon) -> Outcome<Self> {
        if config.status.is_none() {
            return Err(Failure::new("there is no [status], so that the console is nowhere")
                .help("add [status] with `listen = \"127.0.0.1:8470\"`")
                .into());
        }
        let token = config.token(&daemon.source)?.map(Token::new);
        let sources = Arc::new(Sources::new(&config));
        let watching = sources.watch();
        info!(sources = config.sources.len(), "reading status pages");
        Ok(Self { view: ConsoleView::new(Arc::clone(&sources), token), sources, _watching: watching })
    }

    fn view(&self) -> ConsoleView {
        self.view.clone()
    }

    async fn reload(&mut self, _: ConsoleFile, _: &Source) -> Outcome {
        Ok(())
    }

    async fn next(&mut self) -> Result<Self::Event, Failure> {
        Err(self.sources.refused().await)
    }

    async fn stop(self) {}
}
