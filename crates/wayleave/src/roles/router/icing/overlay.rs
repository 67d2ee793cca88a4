//! A node of an overlay as a router: its links follow from its neighbours' adverts, its IDs from its own epochs.

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::watch;
use wayleave_control::frames::Host;
use wayleave_control::node::Realm;
use wayleave_core::IdentityKey;
use wayleave_dataplane::icing::Link;
use wayleave_packet::Path;
use wayleave_packet::icing::mint::NodeSecret;
use wayleave_runtime::Clock;
use wayleave_runtime::http::{Parameters, ViewError};

use crate::config::links::LinkPeer;
use crate::config::overlay::{NodeRef, OverlaySection};
use crate::config::parse::TextValue;
use crate::failure::{Failure, Outcome};
use crate::roles::Events;
use crate::roles::links::neighbour_rows;
use crate::roles::overlay::{Handle, Overlay, OwnIds};
use crate::roles::router::settings::Settings;

/// Consents that are asked for to show whether there are any last this long, in seconds.
const PROBE: u32 = 30;

/// The running node, and what the threads' plan was made from.
pub struct OverlayNode {
    overlay: Overlay,
    realm: watch::Receiver<Arc<Realm>>,
    ids: watch::Receiver<Arc<OwnIds>>,
    resolutions: watch::Receiver<()>,
}

impl OverlayNode {
    /// Begins to publish, and waits for the node's first IDs.
    pub async fn start(settings: &Settings, section: &OverlaySection, clock: Clock, log: &Events) -> Outcome<Self> {
        let overlay = Overlay::start(&section.load(&settings.source)?, clock, log).await?;
        let (realm, mut ids) = (overlay.handle().realm(), overlay.handle().ids());
        if ids.wait_for(|ids| !ids.ids.is_empty()).await.is_err() {
            return Err(Failure::new("the node has no IDs: `ids` in [overlay] is missing").into());
        }
        let resolutions = overlay.handle().resolutions();
        Ok(Self { overlay, realm, ids, resolutions })
    }

    pub fn handle(&self) -> Handle {
        self.overlay.handle()
    }

    pub async fn failed(&mut self) -> Failure {
        self.overlay.failed().await
    }

    pub async fn stop(self) {
        self.overlay.stop().await;
    }

    /// Whether the realm, the IDs or addresses of names have changed since this was last asked.
    pub fn has_changed(&mut self) -> bool {
        let mut is_new = false;
        if self.realm.has_changed().unwrap_or(false) {
            self.realm.borrow_and_update();
            is_new = true;
        }
        if self.ids.has_changed().unwrap_or(false) {
            self.ids.borrow_and_update();
            is_new = true;
        }
        if self.resolutions.has_changed().unwrap_or(false) {
            self.resolutions.borrow_and_update();
            is_new = true;
        }
        is_new
    }
}

/// The node's own secrets.
pub fn secrets(handle: &Handle) -> Vec<NodeSecret> {
    handle.ids().borrow().ids.iter().map(|own| own.secret.clone()).collect()
}

/// The links of the node.
pub fn links(handle: &Handle, section: &OverlaySection) -> Vec<Link> {
    let mut seen = secrets(handle).iter().map(NodeSecret::id).collect::<HashSet<_>>();
    let link = |peer: LinkPeer| {
        // Nobody claims another's ID; should one do so all the same, it costs that link alone.
        let nodes = peer.ids.into_iter().filter(|id| seen.insert(*id)).collect();
        Link { id: peer.link, nodes, is_open: false }
    };
    handle.link_peers(section).into_iter().map(link).collect()
}

/// The neighbours for status pages.
pub fn describe(handle: &Handle, section: &OverlaySection) -> Vec<Value> {
    let realm = Arc::clone(&handle.realm().borrow());
    neighbour_rows(handle.link_peers(section), &realm)
}

/// The paths to `?host=`, and whether each node of the first consents.
pub async fn paths(handle: &Handle, parameters: &Parameters) -> Result<Value, ViewError> {
    let text = parameters.get("host").ok_or_else(|| ViewError::Request("?host=NAME is missing".to_owned()))?;
    let host = match text.parse() {
        Ok(address) => Host::Address(address),
        Err(_) => match NodeRef::read(text) {
            Some(NodeRef::Name(name)) => Host::Name(name),
            Some(NodeRef::Key(identity)) => Host::Identity(identity),
            None => return Err(ViewError::Request(format!("`{text}` is not a name, key or inner address"))),
        },
    };
    let paths = handle.find_paths(host).await.map_err(|none| ViewError::NotFound(handle.no_path(&none)))?;
    let realm = Arc::clone(&handle.realm().borrow());
    let mut rows: Vec<Value> = paths.iter().map(|path| describe_path(path, &realm)).collect();
    for (path, row) in paths.into_iter().zip(&mut rows) {
        let nodes: Vec<_> = path.nodes().map(|(node, ..)| node).collect();
        match handle.consents(path, PROBE).await {
            Ok(lease) => row["consented_until"] = json!(lease.path().expiry()),
            Err(none) => row["not_consented"] = json!(handle.no_consent(&none, &nodes)),
        }
    }
    Ok(json!({ "version": 1, "paths": rows }))
}

fn describe_path(path: &Path, realm: &Realm) -> Value {
    let name = |identity: &IdentityKey| {
        let member = realm.nodes.get(identity);
        let name = member.and_then(|member| member.membership.grants.names.first());
        name.map_or_else(|| identity.to_string(), ToString::to_string)
    };
    let nodes: Vec<String> = path.nodes().map(|(identity, ..)| name(&identity)).collect();
    json!({ "nodes": nodes, "mtu": path.mtu(), "until": path.expiry() })
}
