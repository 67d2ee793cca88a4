//! The waypoints that packets were refused from since nobody named them: what an operator needs, whose paths end here.

use std::net::IpAddr;

use super::outer;

/// Waypoints that are kept until they are asked for: whoever sends writes their addresses.
const MOST: usize = 8;

/// Outer sources of packets from waypoints that are not named, each once, and the first ones only.
#[derive(Clone, Debug, Default)]
pub(super) struct ForeignWaypoints(Vec<IpAddr>);

impl ForeignWaypoints {
    /// Notes the outer source of a packet.
    #[cold]
    pub(super) fn note(&mut self, octets: &[u8]) {
        if let Some(source) = outer::source(octets).filter(|source| self.0.len() < MOST && !self.0.contains(source)) {
            self.0.push(source);
        }
    }

    /// Those that were noted since this was last called.
    pub(super) fn take(&mut self) -> Vec<IpAddr> {
        std::mem::take(&mut self.0)
    }
}
