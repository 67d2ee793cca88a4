//! Tells of the waypoints that packets are refused from: each once a minute, and no more than a few, since whoever pays for packets
//! can write their addresses.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;
use toml::Spanned;
use wayleave_dataplane::platypus::ForeignWaypoint;
use wayleave_packet::platypus::verify::Arrival;

use super::super::threads::Threads;
use super::Platypus;
use crate::config::router::LinkSection;
use crate::roles::Events;
use crate::roles::events::{EventLine, event, shown};

/// How long a waypoint that was told of is not told of again.
const AGAIN: Duration = Duration::from_secs(60);
/// Waypoints that are told of in that time.
const MOST: usize = 8;

/// When each waypoint was last told of.
#[derive(Debug, Default)]
pub struct ForeignReports(BTreeMap<ForeignWaypoint, Instant>);

impl ForeignReports {
    /// Tells of those that the threads have met, by IP or over one of `links`.
    pub async fn report(&mut self, links: &[Spanned<LinkSection>], threads: &Threads<Platypus>, log: &Events) {
        let met = threads.query_all(|worker| worker.format.router.take_foreign_waypoints()).await;
        for foreign in met.into_iter().flatten().flatten().filter(|foreign| self.is_due(*foreign, Instant::now())) {
            log.report(line(foreign, links));
        }
    }

    fn is_due(&mut self, foreign: ForeignWaypoint, now: Instant) -> bool {
        self.0.retain(|_, then| now.duration_since(*then) < AGAIN);
        let is_due = self.0.len() < MOST && foreign.is_unreported(self.0.keys().copied());
        if is_due {
            self.0.insert(foreign, now);
        }
        is_due
    }
}

pub fn line(ForeignWaypoint { waypoint, arrival, .. }: ForeignWaypoint, links: &[Spanned<LinkSection>]) -> EventLine {
    let link = match arrival {
        Arrival::Ip => None,
        Arrival::Link(number) => usize::from(number).checked_sub(1).and_then(|index| links.get(index)),
    };
    let link = link.map(|link| link.get_ref().remote.get_ref().0.to_string());
    let (way, section) = match &link {
        None => ("by IP".to_owned(), "[platypus]"),
        Some(remote) => (format!("over the link to {remote}"), "its [[link]]"),
    };
    event!(WARN "foreign-waypoint" { waypoint = shown(waypoint), link }
        "packets from waypoint {waypoint}, which come {way}, are refused, since nothing names it there: paths behind it end here; if a \
         router of yours has it, or of a peer that checks sources, name it in `own_waypoints` or `peer_waypoints` of {section}")
}

#[cfg(test)]
mod tests {
    use wayleave_dataplane::platypus::MOST_OF_PRINCIPAL;
    use wayleave_packet::platypus::header::Principal;

    use super::*;
    use crate::config::router::RouterFile;

    #[test]
    fn a_waypoint_is_told_of_once_a_minute_and_no_more_than_eight_are() {
        let (mut reports, begin) = (ForeignReports::default(), Instant::now());
        let of = |number: u8, principal: u32| {
            let principal = Principal::new(principal).expect("24 bits");
            ForeignWaypoint { waypoint: [192, 0, 2, number].into(), arrival: Arrival::Ip, principal }
        };
        let foreign = |number: u8| of(number, number.into());
        let mut told = |secs: u64, number: u8| reports.is_due(foreign(number), begin + Duration::from_secs(secs));
        assert!(told(0, 1));
        assert!((0..60).all(|secs| !told(secs, 1)));
        assert!(told(60, 1));
        // Who sends from ever other addresses.
        assert_eq!((2..=255).filter(|number| told(61, *number)).count(), MOST - 1);
        assert!(!told(119, 200));
        assert!(told(121, 200));
        // Who holds one capability leaves places to what others' packets show.
        let mut reports = ForeignReports::default();
        assert_eq!((1..=255).filter(|number| reports.is_due(of(*number, 1), begin)).count(), MOST_OF_PRINCIPAL);
        assert!(reports.is_due(of(9, 2), begin) && !reports.is_due(of(9, 3), begin));
    }

    /// By IP and over a link it is another key that has to name it.
    #[test]
    fn the_operator_is_told_where_a_waypoint_would_be_named() {
        let link = "[forwarding]\nformat = \"platypus\"\nkeys = \"k\"\n[platypus]\nwaypoints = []\naccounts = 0\n[stamper]\nroutes = []\n\
                    rules = []\n[[link]]\nlocal = \"192.0.2.1:1\"\nremote = \"192.0.2.2:2\"\n";
        let file = toml::from_str::<RouterFile>(link).expect("sound");
        let principal = Principal::new(7).expect("24 bits");
        let told = |arrival| {
            line(ForeignWaypoint { waypoint: [198, 51, 100, 9].into(), arrival, principal }, &file.link).to_string()
        };
        let (by_ip, by_link) = (told(Arrival::Ip), told(Arrival::Link(1)));
        assert!(by_ip.contains("by IP") && by_ip.contains("`peer_waypoints` of [platypus]"), "{by_ip}");
        assert!(by_link.contains("over the link to 192.0.2.2:2") && by_link.contains("of its [[link]]"), "{by_link}");
    }
}
