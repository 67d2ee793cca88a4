//! What a console shows: the files of the page, the roles' own pages behind it, and what is new as server-sent events.

use std::sync::Arc;

use serde_json::{Value, json};
use wayleave_runtime::http::{Encoding, Metric, Pages, Parameters, Reply, Token, ViewError};
use wayleave_runtime::metrics;
use wayleave_runtime::store::FileStore;

use super::sources::Sources;
use crate::config::fetch::percent_encoded;
use crate::overview::Overview;
use crate::roles::daemon::{View, Views};

/// The page, as `web/` builds it.
const FILES: [(&str, &str, Encoding, &[u8]); 3] = [
    ("/", "text/html; charset=utf-8", Encoding::Plain, include_bytes!("../../../console/index.html")),
    ("/console.js", "text/javascript; charset=utf-8", Encoding::Gzip, include_bytes!("../../../console/console.js.gz")),
    ("/console.css", "text/css; charset=utf-8", Encoding::Plain, include_bytes!("../../../console/console.css")),
];

/// Octets of the name of a page.
const MAX_NAME: usize = 64;

#[derive(Clone)]
pub struct ConsoleView {
    sources: Arc<Sources>,
    token: Option<Token>,
}

impl ConsoleView {
    pub fn new(sources: Arc<Sources>, token: Option<Token>) -> Self {
        Self { sources, token }
    }

    /// `/api/v1/source/NAME/PAGE`: a page of a role, as it is. Orders are POSTs, which the console neither takes nor sends.
    async fn page_of_source(self, rest: String, parameters: Parameters) -> Result<Reply, ViewError> {
        let (name, page) = rest.split_once('/').unwrap_or((&rest, ""));
        let is_fit = |octet: u8| octet.is_ascii_lowercase() || b"_-/".contains(&octet);
        // `ping` sends packets; the others are of a console, which shows what it may.
        let is_left_out = ["ping", "stream", "source", "sources"].contains(&page) || page.starts_with("source/");
        if page.is_empty() || page.len() > MAX_NAME || !page.bytes().all(is_fit) || is_left_out {
            return Err(ViewError::NotFound("a source has no such page".to_owned()));
        }
        let given: Vec<String> = parameters
            .iter()
            .map(|(name, value)| format!("{}={}", percent_encoded(name), percent_encoded(value)))
            .collect();
        let path = if given.is_empty() { page.to_owned() } else { format!("{page}?{}", given.join("&")) };
        self.sources.page(name, path).await.map(Reply::Json)
    }
}

impl View for ConsoleView {
    async fn status(&self) -> Result<Value, ViewError> {
        let list = self.sources.list();
        let absent = |source: &Value| {
            let why = source["absent"].as_str()?;
            Some(format!("{}: {why}", source["name"].as_str().unwrap_or_default()))
        };
        let problems: Vec<String> = list["sources"].as_array().into_iter().flatten().filter_map(absent).collect();
        Ok(json!({ "sources": self.sources.len(), "answering": self.sources.answering(), "problems": problems }))
    }

    async fn overview(&self, status: &Value) -> Result<Overview, ViewError> {
        let mut overview = Overview::new("console", &["source", "state", "pages"]);
        let list = self.sources.list();
        for source in list["sources"].as_array().into_iter().flatten() {
            let state = match (&source["absent"], &source["overview"]) {
                (Value::Null, Value::Null) => "not asked yet",
                (Value::Null, overview) if overview["ready"] == true => "ready",
                (Value::Null, _) => "not ready",
                _ => "no answer",
            };
            overview.row(state == "ready", [source["name"].clone(), json!(state), source["at"].clone()]);
        }
        overview.count(format!("{} of {} roles answer", status["answering"], status["sources"]));
        Ok(overview)
    }

    async fn metrics(&self) -> Option<Vec<Metric>> {
        Some(metrics! {
            gauge "sources_answering" Number "Roles that answer, of those that are shown" = self.sources.answering();
        })
    }

    async fn readiness(&self) -> Option<Result<(), String>> {
        Some(Ok(()))
    }

    fn store(&self) -> Option<&Arc<FileStore>> {
        None
    }

    fn pages(views: Views<Self>) -> Views<Self> {
        let view = views.view().clone();
        let sources = Arc::clone(&view.sources);
        let views = views.page("sources", |view: Self, _| async move { Ok(view.sources.list()) }).tree(
            "/api/v1/source",
            "",
            |view: Self, rest, parameters| view.page_of_source(rest, parameters),
        );
        views.site(move |pages: Pages| {
            let pages = FILES
                .into_iter()
                .fold(pages, |pages, (path, kind, encoding, octets)| pages.file(path, kind, encoding, octets));
            let pages = pages.stream("/api/v1/stream", move || {
                let sources = Arc::clone(&sources);
                async move { sources.stream() }
            });
            match view.token {
                Some(token) => pages.guarded_by(token),
                None => pages,
            }
        })
    }
}
