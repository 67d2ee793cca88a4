//! The waypoints that packets were refused from since nobody named them: what an operator needs, whose paths end here.

use std::net::IpAddr;

use wayleave_core::Now;
use wayleave_packet::platypus::header::{Packet, Principal};
use wayleave_packet::platypus::verify::{Arrival, Waypoint, find_waypoint};

use super::router::{arrival, place};
use crate::answers::AnswerLimit;
use crate::frame::Frame;

/// Waypoints that are kept until they are asked for.
const MOST: usize = 8;
/// Of these, behind packets of one principal: with one right binding goes any list in front of it.
pub const MOST_OF_PRINCIPAL: usize = 2;
/// Refused packets a second whose binding is checked. Beyond them a waypoint that is named by honest packets too is noted
/// later, when one of these is among those that are checked.
const CHECKED_PER_SECOND: u32 = 100;

/// A waypoint that nobody named, and how its packets came.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ForeignWaypoint {
    pub waypoint: IpAddr,
    pub arrival: Arrival,
    /// Who pays for the packet.
    pub principal: Principal,
}

impl ForeignWaypoint {
    /// Whether it is worth telling of beside those that were `told`: it is none of them, and of those of its principal there are
    /// few.
    pub fn is_unreported(&self, told: impl Iterator<Item = Self> + Clone) -> bool {
        let is_same = |other: &Self| (other.waypoint, other.arrival) == (self.waypoint, self.arrival);
        !told.clone().any(|other| is_same(&other))
            && told.filter(|other| other.principal == self.principal).count() < MOST_OF_PRINCIPAL
    }
}

/// Waypoints in front of packets that would pass if they were named, each once, and the first ones only. Anybody can write an
/// address into a packet: those whose binding is wrong tell nothing.
#[derive(Clone, Debug)]
pub(super) struct ForeignWaypoints {
    noted: Vec<ForeignWaypoint>,
    checks: AnswerLimit,
}

impl ForeignWaypoints {
    pub(super) fn new() -> Self {
        let checks = AnswerLimit::new(CHECKED_PER_SECOND, CHECKED_PER_SECOND, 1);
        Self { noted: Vec::with_capacity(MOST), checks }
    }

    /// Divides the checks among the places where packets come in.
    pub(super) fn set_places(&mut self, places: usize) {
        self.checks.retune(CHECKED_PER_SECOND, CHECKED_PER_SECOND, places);
    }

    /// Notes the outer source of a packet to one of `waypoints`.
    #[cold]
    pub(super) fn note(&mut self, frame: &Frame<'_>, waypoints: &[Waypoint], now: Now) {
        let Ok(packet) = Packet::decode(frame.octets) else { return };
        let Some(current) = packet.current() else { return };
        let principal = packet.capability(current).principal;
        let foreign = ForeignWaypoint { waypoint: packet.outer().source, arrival: arrival(frame), principal };
        if self.noted.len() < MOST
            && foreign.is_unreported(self.noted.iter().copied())
            && self.checks.take(place(frame), now.instant)
            && find_waypoint(waypoints, &packet).is_ok_and(|here| here.would_pass(&packet, now.unix))
        {
            self.noted.push(foreign);
        }
    }

    /// Those that were noted since this was last called.
    pub(super) fn take(&mut self) -> Vec<ForeignWaypoint> {
        self.noted.drain(..).collect()
    }
}
