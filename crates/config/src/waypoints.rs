//! What waypoints are to people: a router, a POP or an AS, and a name.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::Deserialize;

/// What a waypoint's address stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WaypointKind {
    #[default]
    Router,
    /// A point of presence: several routers share the address.
    Pop,
    /// All routers of an AS share it.
    As,
}

impl WaypointKind {
    /// As in a configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Router => "router",
            Self::Pop => "pop",
            Self::As => "as",
        }
    }
}

/// A waypoint of the configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WaypointLabel {
    pub kind: WaypointKind,
    pub name: Option<String>,
}

/// All of a configuration.
pub type WaypointLabels = BTreeMap<IpAddr, WaypointLabel>;

/// The label of a waypoint.
pub fn label_of(kind: WaypointKind, name: Option<&str>) -> WaypointLabel {
    WaypointLabel { kind, name: name.map(str::to_owned) }
}
