//! Routes of the own router whose session was lost, while they stay announced (RFC 4724, RFC 9494).
//!
//! To the parties a stale route looks like one that did not change. When it becomes a long-lived one it is announced again, with LLGR_STALE
//! inside, and when it goes it is withdrawn: they see that the router was lost for so long, as they saw it when all of its routes went at
//! once.

use std::collections::{BTreeMap, BTreeSet};

use wayleave_bgp::peer::Stale;
use wayleave_bgp::{Attributes, Community, Nlri};
use wayleave_core::Afi;

use super::Announcements;

impl Announcements {
    /// What becomes of the router's routes after a loss of its session.
    pub(in crate::member) fn router_stale(&mut self, stale: &Stale) {
        match stale {
            Stale::Kept(families) => {
                self.settles_at = None;
                self.long_lived.clear();
                let were_stale = std::mem::take(&mut self.stale);
                let stays = |nlri: &Nlri| families.contains(&nlri.prefix.afi()) && !were_stale.contains(nlri);
                let (stay, go): (BTreeSet<Nlri>, BTreeSet<Nlri>) = self.router.keys().partition(|nlri| stays(nlri));
                self.stale = stay;
                self.drop_each(go);
            }
            Stale::LongLived(afi) => {
                self.long_lived.insert(*afi);
                self.make_long_lived(*afi);
            }
            Stale::Gone(afi) => {
                self.long_lived.remove(afi);
                let gone = self.stale_of(*afi);
                self.drop_each(gone);
            }
        }
    }

    /// The router has said something of these routes, whatever attestation makes of it, and however late.
    pub(in crate::member) fn not_stale(&mut self, routes: &[Nlri]) {
        for nlri in routes {
            self.stale.remove(nlri);
        }
    }

    /// Routes of before a loss of which the router has said nothing since.
    pub(in crate::member) fn stale(&self) -> &BTreeSet<Nlri> {
        &self.stale
    }

    /// The router has sent all that it has: what it did not announce again is gone.
    pub(in crate::member) fn end_of_rib(&mut self) {
        self.settled();
        self.long_lived.clear();
        let gone = std::mem::take(&mut self.stale);
        self.drop_each(gone);
    }

    pub(super) fn is_long_lived(&self, nlri: &Nlri) -> bool {
        self.long_lived.contains(&nlri.prefix.afi()) && self.stale.contains(nlri)
    }

    fn stale_of(&self, afi: Afi) -> BTreeSet<Nlri> {
        self.stale.iter().filter(|nlri| nlri.prefix.afi() == afi).copied().collect()
    }

    /// RFC 9494 section 4.2: a route with NO_LLGR goes, any other gets LLGR_STALE. As the other family of an UPDATE does not get it,
    /// what shared one is no longer of that UPDATE.
    fn make_long_lived(&mut self, afi: Afi) {
        let mut updates: BTreeMap<u64, u64> = BTreeMap::new();
        let mut gone = Vec::new();
        for nlri in self.stale_of(afi) {
            let Some(route) = self.router.get_mut(&nlri) else { continue };
            let Some(attributes) = with_stale(&route.attributes) else {
                gone.push(nlri);
                continue;
            };
            route.attributes = attributes;
            route.update = *updates.entry(route.update).or_insert_with(|| {
                self.updates += 1;
                self.updates
            });
            self.mark(nlri);
        }
        self.drop_each(gone.iter().copied());
        // Attestation may sign such a one again until it is gone there too.
        self.stale.extend(gone);
    }

    /// These routes of the router are gone.
    fn drop_each(&mut self, gone: impl IntoIterator<Item = Nlri>) {
        for nlri in gone {
            self.stale.remove(&nlri);
            if self.router.remove(&nlri).is_some() {
                self.barred.remove(&nlri);
                self.mark(nlri);
                self.make_place(&nlri);
            }
        }
    }
}

/// The attributes with LLGR_STALE; `None` if they have NO_LLGR.
pub(super) fn with_stale(attributes: &Attributes) -> Option<Attributes> {
    let mut communities: Vec<Community> = attributes.communities().collect();
    if communities.contains(&Community::NO_LLGR) {
        return None;
    }
    if !communities.contains(&Community::LLGR_STALE) {
        communities.push(Community::LLGR_STALE);
    }
    Some(attributes.edit().communities(&communities).finish())
}

#[cfg(test)]
mod tests {
    use wayleave_bgp::Origin;
    use wayleave_core::Instant;
    use wayleave_crypto::secret::Seed;

    use super::*;

    fn nlri(prefix: &str) -> Nlri {
        Nlri::new(prefix.parse().expect("a prefix"))
    }

    fn attributes(communities: &[Community]) -> Attributes {
        let mut editor = Attributes::builder();
        editor.origin(Origin::Igp).communities(communities);
        editor.finish()
    }

    const COLOUR: Community = Community(64_497 << 16 | 7);

    /// Announcements of a router with three IPv4 routes, of which the last has NO_LLGR, and one IPv6 route.
    fn announcements() -> Announcements {
        let mut own = Announcements::new(&[], &Seed::new([1; 32]), Instant(0));
        own.router_up(Instant(30_000_000_000));
        own.router_update(&[], &[nlri("20.1.0.0/16"), nlri("20.2.0.0/16")], Some(&attributes(&[COLOUR])));
        own.router_update(&[], &[nlri("20.3.0.0/16")], Some(&attributes(&[Community::NO_LLGR])));
        own.router_update(&[], &[nlri("2a00::/16")], Some(&attributes(&[])));
        own.end_of_rib();
        own
    }

    /// An UPDATE that attestation lets through at once.
    fn update(own: &mut Announcements, withdrawn: &[Nlri], announced: &[Nlri], with: &Attributes) {
        own.not_stale(&[withdrawn, announced].concat());
        own.router_update(withdrawn, announced, Some(with));
    }

    fn has(own: &Announcements) -> Vec<String> {
        own.router.keys().map(|nlri| nlri.prefix.to_string()).collect()
    }

    #[test]
    fn a_lost_routers_routes_stay_until_it_has_sent_all_it_has_again() {
        let mut own = announcements();
        own.router_stale(&Stale::Kept(vec![Afi::Ipv4]));
        assert_eq!(has(&own), ["20.1.0.0/16", "20.2.0.0/16", "20.3.0.0/16"], "the other family was not kept");
        own.router_up(Instant(60_000_000_000));
        own.handle_timeout(Instant(60_000_000_000));
        assert_eq!(own.router_routes(), 3, "that it may send no End-of-RIB says nothing of what it keeps");
        update(&mut own, &[nlri("20.3.0.0/16")], &[nlri("20.1.0.0/16")], &attributes(&[COLOUR]));
        own.end_of_rib();
        assert_eq!((has(&own), own.stale.len()), (vec!["20.1.0.0/16".to_owned()], 0));
    }

    #[test]
    fn a_long_lived_stale_route_says_so_and_one_that_must_not_be_is_gone() {
        let mut own = announcements();
        own.router_stale(&Stale::Kept(vec![Afi::Ipv4, Afi::Ipv6]));
        own.router_stale(&Stale::LongLived(Afi::Ipv4));
        assert_eq!(has(&own), ["20.1.0.0/16", "20.2.0.0/16", "2a00::/16"]);
        let communities = |prefix| own.router[&nlri(prefix)].attributes.communities().collect::<Vec<_>>();
        assert_eq!(communities("20.1.0.0/16"), [COLOUR, Community::LLGR_STALE]);
        assert_eq!(communities("2a00::/16"), [], "the other family's time for a restart goes on");
        own.router_stale(&Stale::Gone(Afi::Ipv4));
        assert_eq!(has(&own), ["2a00::/16"]);
    }

    #[test]
    fn a_second_loss_before_the_router_has_sent_all_ends_what_was_stale_already() {
        let mut own = announcements();
        own.router_stale(&Stale::Kept(vec![Afi::Ipv4]));
        own.router_up(Instant(60_000_000_000));
        update(&mut own, &[], &[nlri("20.2.0.0/16")], &attributes(&[COLOUR]));
        own.router_stale(&Stale::Kept(vec![Afi::Ipv4]));
        assert_eq!(has(&own), ["20.2.0.0/16"]);
        own.router_down();
        assert_eq!((has(&own).len(), own.stale.len()), (0, 0));
    }

    #[test]
    fn what_was_announced_again_and_is_not_signed_yet_outlives_a_second_loss() {
        let mut own = announcements();
        own.router_stale(&Stale::Kept(vec![Afi::Ipv4]));
        own.router_up(Instant(60_000_000_000));
        own.not_stale(&[nlri("20.1.0.0/16"), nlri("20.2.0.0/16")]);
        own.router_stale(&Stale::Kept(vec![Afi::Ipv4]));
        assert_eq!(has(&own), ["20.1.0.0/16", "20.2.0.0/16"]);
        assert_eq!(own.stale_routes(), 2);
        own.router_stale(&Stale::Gone(Afi::Ipv4));
        assert_eq!(has(&own).len(), 0);
    }

    #[test]
    fn a_stale_route_that_is_signed_again_stays_what_it_is() {
        let mut own = announcements();
        own.router_stale(&Stale::Kept(vec![Afi::Ipv4, Afi::Ipv6]));
        own.signed(&[nlri("20.1.0.0/16")], &attributes(&[COLOUR]), [1; 32]);
        assert_eq!(own.stale_routes(), 4, "the router has not said it");
        own.router_stale(&Stale::LongLived(Afi::Ipv4));
        own.signed(&[nlri("20.1.0.0/16"), nlri("2a00::/16")], &attributes(&[COLOUR]), [2; 32]);
        own.signed(&[nlri("20.3.0.0/16")], &attributes(&[Community::NO_LLGR]), [2; 32]);
        assert_eq!(has(&own), ["20.1.0.0/16", "20.2.0.0/16", "2a00::/16"]);
        let route = |prefix| &own.router[&nlri(prefix)];
        let communities = |prefix| route(prefix).attributes.communities().collect::<Vec<_>>();
        assert_eq!(communities("20.1.0.0/16"), [COLOUR, Community::LLGR_STALE]);
        assert_eq!(communities("2a00::/16"), [COLOUR]);
        assert_ne!(route("20.1.0.0/16").update, route("2a00::/16").update, "they differ, and share no object");
        own.end_of_rib();
        assert_eq!((has(&own).len(), own.stale_routes()), (0, 0));
    }

    #[test]
    fn families_of_one_update_part_when_one_of_them_becomes_long_lived() {
        let mut own = Announcements::new(&[], &Seed::new([1; 32]), Instant(0));
        own.router_up(Instant(30_000_000_000));
        let all = [nlri("20.1.0.0/16"), nlri("20.2.0.0/16"), nlri("2a00::/16")];
        own.router_update(&[], &all, Some(&attributes(&[COLOUR])));
        own.router_stale(&Stale::Kept(vec![Afi::Ipv4, Afi::Ipv6]));
        own.router_stale(&Stale::LongLived(Afi::Ipv4));
        let [one, two, six] = all.map(|nlri| own.router[&nlri].update);
        assert_eq!(one, two, "what shared an UPDATE still does");
        assert_ne!(one, six);
    }
}
