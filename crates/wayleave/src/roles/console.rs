//! `run console`: what other roles say, on one page. It reads their status pages, has no logic of its own, and gives no order.

mod answers;
mod sources;
mod standing;
mod views;

use std::path::PathBuf;
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
    /// The token that browsers need, and its file.
    token: Option<(Token, PathBuf)>,
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
        let token = config.token(&daemon.source)?.map(Token::new).zip(token_file(&config));
        let sources = Arc::new(Sources::new(&config));
        let watching = sources.watch();
        info!(sources = config.sources.len(), "reading status pages");
        let view = ConsoleView::new(Arc::clone(&sources), token.as_ref().map(|(token, _)| token.clone()));
        Ok(Self { view, sources, token, _watching: watching })
    }

    fn view(&self) -> ConsoleView {
        self.view.clone()
    }

    /// A token that was replaced in its file. Another file needs a restart, as all keys do.
    async fn reload(&mut self, config: ConsoleFile, source: &Source) -> Outcome {
        if let Some((token, file)) = &self.token
            && token_file(&config).as_ref() == Some(file)
            && let Some(text) = config.token(source)?
        {
            token.replace(text);
        }
        Ok(())
    }

    async fn next(&mut self) -> Result<Self::Event, Failure> {
        Err(self.sources.refused().await)
    }

    async fn stop(self) {}
}

/// The file of the token, as the configuration names it.
fn token_file(config: &ConsoleFile) -> Option<PathBuf> {
    config.console.token.as_ref().map(|file| file.get_ref().clone())
}
