//! Tells of the waypoints that packets are refused from: each once a minute, and no more than a few, since any sender can write
//! their addresses.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use tokio::time::Instant;

use super::super::threads::Threads;
use super::Platypus;
use crate::roles::Events;
use crate::roles::events::{event, shown};

/// How long a waypoint that was told of is not told of again.
const AGAIN: Duration = Duration::from_secs(60);
/// Waypoints that are told of in that time.
const MOST: usize = 8;

/// When each waypoint was last told of.
#[derive(Debug, Default)]
pub struct ForeignReports(BTreeMap<IpAddr, Instant>);

impl ForeignReports {
    /// Tells of those that the threads have met.
    pub async fn report(&mut self, threads: &Threads<Platypus>, log: &Events) {
        let met = threads.query_all(|worker| worker.format.router.take_foreign_waypoints()).await;
        for waypoint in met.into_iter().flatten().flatten().filter(|waypoint| self.is_due(*waypoint, Instant::now())) {
            log.report(event!(WARN "foreign-waypoint" { waypoint = shown(waypoint) }
                "packets from waypoint {waypoint} are refused, since nothing here names it: paths behind it end here; if a router of yours, or \
                 of a peer that checks sources, has it, name it in `own_waypoints`, `peer_waypoints` or the `waypoints` of its link"));
        }
    }

    fn is_due(&mut self, waypoint: IpAddr, now: Instant) -> bool {
        self.0.retain(|_, then| now.duration_since(*then) < AGAIN);
        let is_due = self.0.len() < MOST && !self.0.contains_key(&waypoint);
        if is_due {
            self.0.insert(waypoint, now);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waypoint_is_told_of_once_a_minute_and_no_more_than_eight_are() {
        let (mut reports, begin) = (ForeignReports::default(), Instant::now());
        let waypoint = |number: u8| IpAddr::from([192, 0, 2, number]);
        let mut told = |secs: u64, number: u8| reports.is_due(waypoint(number), begin + Duration::from_secs(secs));
        assert!(told(0, 1));
        assert!((0..60).all(|secs| !told(secs, 1)));
        assert!(told(60, 1));
        // Who sends from ever other addresses.
        assert_eq!((2..=255).filter(|number| told(61, *number)).count(), MOST - 1);
        assert!(!told(119, 200));
        assert!(told(121, 200));
    }
}
