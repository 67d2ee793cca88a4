//! A node of an overlay as a router: its links follow from its neighbours' adverts, its IDs from its own epochs.

use std::net::SocketAddr;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::watch;
use wayleave_control::frames::Host;
use wayleave_control::node::{Member, Realm};
use wayleave_core::IdentityKey;
use wayleave_dataplane::icing::Link;
use wayleave_packet::Path;
use wayleave_packet::icing::mint::NodeSecret;
use wayleave_runtime::Clock;
use wayleave_runtime::clock::unix_now;
use wayleave_runtime::http::{Parameters, ViewError};
use wayleave_runtime::identity::to_hex;
use wayleave_runtime::packets::ethernet::NEIGHBOR;

use crate::config::overlay::{NeighbourSection, NodeRef, OverlaySection};
use crate::config::parse::TextValue;
use crate::failure::{Failure, Outcome};
use crate::roles::Events;
use crate::roles::overlay::{Handle, Overlay, OwnIds};
use crate::roles::router::settings::Settings;

/// Consents that are asked for to show whether there are any last this long, in seconds.
const PROBE: u32 = 30;

/// The running node, and what the threads' plan was made from.
pub struct OverlayNode {
    overlay: Overlay,
    realm: watch::Receiver<Arc<Realm>>,
    ids: watch::Receiver<Arc<OwnIds>>,
}

/// A neighbour, as its advert has it.
struct Neighbour {
    identity: IdentityKey,
    member: Arc<Member>,
    /// Where it receives what we send; none if it does not list the link as we do.
    endpoint: Option<SocketAddr>,
}

impl OverlayNode {
    /// Begins to publish, and waits for the node's first IDs.
    pub async fn start(settings: &Settings, section: &OverlaySection, clock: Clock, log: &Events) -> Outcome<Self> {
        let overlay = Overlay::start(&section.load(&settings.source)?, clock, log).await?;
        let (realm, mut ids) = (overlay.handle().realm(), overlay.handle().ids());
        if ids.wait_for(|ids| !ids.ids.is_empty()).await.is_err() {
            return Err(Failure::new("the node has no IDs: `ids` in [overlay] is missing").into());
        }
        Ok(Self { overlay, realm, ids })
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

    /// Whether the realm or the IDs have changed since this was last asked.
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
        is_new
    }
}

/// The node's own secrets.
pub fn secrets(handle: &Handle) -> Vec<NodeSecret> {
    handle.ids().borrow().ids.iter().map(|own| own.secret.clone()).collect()
}

fn neighbour(realm: &Realm, own: IdentityKey, section: &NeighbourSection) -> Option<Neighbour> {
    let identity = match &section.node.get_ref().0 {
        NodeRef::Key(identity) => *identity,
        NodeRef::Name(name) => *realm.names.get(name)?,
    };
    let member = Arc::clone(realm.nodes.get(&identity)?);
    let theirs = member.advert.as_ref().and_then(|advert| advert.link(&own));
    // What it is to us, and what we are to it, must agree; otherwise one of two operators erred.
    let agrees =
        |link: &&wayleave_control::advert::Link| link.relationship == section.relationship.relationship().reversed();
    let endpoint = theirs.filter(agrees).map(|link| link.endpoint);
    let is_same_family = |there: &SocketAddr| there.is_ipv4() == section.local.get_ref().0.is_ipv4();
    Some(Neighbour { identity, endpoint: endpoint.filter(is_same_family), member })
}

/// The links of the node, and the other end of each; an address that nobody has stands for one that is not known.
pub fn links(handle: &Handle, section: &OverlaySection) -> (Vec<Link>, Vec<(u16, SocketAddr)>) {
    let realm = Arc::clone(&handle.realm().borrow());
    let mut seen = secrets(handle).iter().map(NodeSecret::id).collect::<Vec<_>>();
    let (mut links, mut addresses) = (Vec::new(), Vec::new());
    for section in section.neighbour.iter().map(toml::Spanned::get_ref) {
        let id = *section.interface.get_ref();
        let known = neighbour(&realm, handle.own(), section).filter(|known| known.endpoint.is_some());
        let mut nodes = Vec::new();
        for key in known.iter().flat_map(|known| &known.member.ids) {
            // Nobody claims another's ID; should one do so all the same, it costs that link alone.
            if !seen.contains(&key.node) {
                seen.push(key.node);
                nodes.push(key.node);
            }
        }
        links.push(Link { id, nodes, is_open: false });
        addresses.push((id, known.and_then(|known| known.endpoint).unwrap_or(NEIGHBOR)));
    }
    (links, addresses)
}

/// The neighbours for status pages.
pub fn describe(handle: &Handle, section: &OverlaySection) -> Vec<Value> {
    let realm = Arc::clone(&handle.realm().borrow());
    let row = |section: &NeighbourSection| {
        let known = neighbour(&realm, handle.own(), section);
        let state = match &known {
            None => "no member of this name or key",
            Some(Neighbour { member, .. }) if member.advert.is_none() => "has no advert",
            Some(Neighbour { endpoint: None, .. }) => "does not list this link, or with another relationship",
            Some(_) => "known",
        };
        json!({
            "node": section.node.get_ref().0.to_string(),
            "identity": known.as_ref().map(|known| known.identity.to_string()),
            "interface": section.interface.get_ref(),
            "state": state,
            "local": section.local.get_ref().0.to_string(),
            "remote": known.as_ref().and_then(|known| known.endpoint).map(|endpoint| endpoint.to_string()),
            "id": known.as_ref().and_then(|known| current_id(&known.member)),
            "ids": known.map_or(0, |known| known.member.ids.len()),
        })
    };
    section.neighbour.iter().map(|section| row(section.get_ref())).collect()
}

/// The ID by which packets name a node now.
fn current_id(member: &Member) -> Option<String> {
    let key = member.advert.as_ref()?.current(unix_now().secs())?;
    Some(to_hex(&key.node.to_bytes()))
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
    let paths = handle.find_paths(host).await.map_err(|none| ViewError::NotFound(none.to_string()))?;
    let realm = Arc::clone(&handle.realm().borrow());
    let mut rows: Vec<Value> = paths.iter().map(|path| describe_path(path, &realm)).collect();
    for (path, row) in paths.into_iter().zip(&mut rows) {
        match handle.consents(path, PROBE).await {
            Ok(lease) => row["consented_until"] = json!(lease.path().expiry()),
            Err(none) => row["not_consented"] = json!(none.to_string()),
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
