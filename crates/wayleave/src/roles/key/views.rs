//! What the status pages show of a key server.

use std::sync::{Arc, Mutex};

use serde_json::{Map, Value, json};
use wayleave_control::capability::Zone;
use wayleave_runtime::http::{Metric, Unit, ViewError};
use wayleave_runtime::store::FileStore;

use super::core::{Core, lock};
use crate::config::PublicKey;
use crate::roles::daemon::{View, Views};

#[derive(Clone)]
pub struct KeyView {
    core: Arc<Mutex<Core>>,
    zone: String,
    writer: String,
}

impl KeyView {
    pub fn new(core: &Arc<Mutex<Core>>, zone: &Zone, writer: &PublicKey) -> Self {
        Self { core: Arc::clone(core), zone: zone.to_string(), writer: writer.to_string() }
    }
}

impl View for KeyView {
    async fn status(&self) -> Result<Value, ViewError> {
        let core = lock(&self.core);
        let (server, state) = (&core.server, core.server.state());
        let counters: Map<String, Value> =
            server.counters().all().into_iter().map(|(name, value)| (name.to_owned(), json!(value))).collect();
        Ok(json!({
            "zone": self.zone,
            "writer": self.writer,
            "number": state.number(),
            "accounts": state.accounts(),
            "grants": state.grants(),
            "revocations": state.revocations().len(),
            "list": core.list_number(),
            "load": server.load(),
            "octets": server.memory(),
            "answers": counters,
        }))
    }

    async fn metrics(&self) -> Option<Vec<Metric>> {
        let core = lock(&self.core);
        let (server, state, of) = (&core.server, core.server.state(), core.server.counters());
        let (gauge, counter) = (Metric::gauge, Metric::counter);
        let denied = of.not_now + of.revoked + of.ended;
        let unknown = of.unknown + of.wrong_epoch;
        let refused = of.orders_forged + of.orders_clock + of.orders_refused + of.orders_elsewhere;
        Some(vec![
            gauge("account", Unit::Members, "Accounts of principals", state.accounts() as f64),
            gauge("grant", Unit::Keys, "Capabilities that are granted", state.grants() as f64),
            gauge("revoked", Unit::Keys, "Revocations in force", state.revocations().len() as f64),
            gauge(
                "change",
                Unit::Number,
                "Number of the last change of accounts and revocations",
                state.number() as f64,
            ),
            gauge("state", Unit::Bytes, "Memory of accounts and handles", server.memory() as f64),
            counter("secret", Unit::Messages, "Secrets that were answered", of.secrets),
            counter("denied", Unit::Messages, "Holders that were denied a secret", denied),
            counter("unknown", Unit::Messages, "Look-ups that no capability fits", unknown),
            counter("unanswerable", Unit::Messages, "Look-ups for which the waypoint's key is missing", of.no_key),
            counter("static", Unit::Messages, "Questions about the zone itself", of.static_records + of.nothing),
            counter("foreign", Unit::Messages, "Questions about other zones", of.foreign),
            counter("malformed", Unit::Messages, "Messages that are no question", of.malformed),
            counter("truncated", Unit::Messages, "Answers that were cut, so that TCP follows", of.truncated),
            counter("order", Unit::Messages, "Orders of holders that were carried out", of.orders),
            counter("order_refused", Unit::Messages, "Orders that were refused", refused),
        ])
    }

    async fn readiness(&self) -> Option<Result<(), String>> {
        let is_prepared = lock(&self.core).is_prepared();
        Some(if is_prepared { Ok(()) } else { Err("handles of the next key epoch are being made".to_owned()) })
    }

    fn store(&self) -> Option<&Arc<FileStore>> {
        None
    }

    fn pages(views: Views<Self>) -> Views<Self> {
        views
    }
}
