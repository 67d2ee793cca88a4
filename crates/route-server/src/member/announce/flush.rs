//! A flush: decides what leaves the member, and submits it one object at a time.
//!
//! Three kinds of objects leave, in this order. Withdrawals go first, because they make room under the slot's prefix limit for
//! what is announced after them. Then what changed, by UPDATE. Then repeats, which only hide what a reload concerned and have
//! time. The first object that cannot be sent ends the flush, so that nothing overtakes it; what is left stays dirty.

use std::collections::{HashMap, VecDeque};

use wayleave_bgp::{Attributes, Nlri};
use wayleave_core::{Afi, Instant};

use super::repeats::Turn;
use super::{AnnouncedRoute, Announcements, Bar, Context, Effect, WINDOW};
use crate::directory::{MemberSet, Slot};
use crate::frames::MAX_PATHS;
use crate::object::MAX_PREFIXES;
use crate::policy::ExportSet;
use crate::policy::validate::{Known, validate, validate_own_known};

/// Prefixes that one flush looks at: our own limit, so that a table that is confirmed again stalls nothing.
const MAX_SCAN: usize = 8_192;

/// Prefixes that are announced with the same attributes to the same receivers: one object, or several where one object may
/// not have them all.
pub(super) struct Group {
    pub(super) attributes: Attributes,
    pub(super) exported: ExportSet,
    pub(super) prefixes: VecDeque<Nlri>,
}

impl Group {
    pub(super) fn new(attributes: &Attributes, exported: ExportSet) -> Self {
        Self { attributes: attributes.clone(), exported, prefixes: VecDeque::new() }
    }

    /// Takes the prefixes of the next object, `most` at most.
    fn take(&mut self, most: usize) -> Vec<Nlri> {
        self.prefixes.drain(..most.min(self.prefixes.len())).collect()
    }
}

/// What one flush still has to send. Empty, if nothing may leave.
#[derive(Default)]
pub(in super::super) struct Flush {
    /// Prefixes of one object each.
    withdrawals: VecDeque<Vec<Nlri>>,
    groups: VecDeque<Group>,
    repeats: Turn,
}

/// What the flush decides of the dirty prefixes that it looks at.
#[derive(Default)]
struct Decisions {
    withdrawn: Vec<Nlri>,
    announced: Vec<Group>,
    /// By UPDATE and receivers, which of these.
    places: HashMap<(u64, ExportSet), usize>,
    /// What is dirty no longer though nothing leaves for it now.
    clean: Vec<Nlri>,
    barred: Vec<(Nlri, Bar)>,
}

impl Decisions {
    /// The route is not announced; what the parties have of it goes.
    fn bar(&mut self, nlri: Nlri, bar: Bar, is_known: bool) {
        if is_known {
            self.withdrawn.push(nlri);
        } else {
            self.clean.push(nlri);
        }
        self.barred.push((nlri, bar));
    }

    fn announce(&mut self, nlri: Nlri, update: u64, attributes: &Attributes, exported: ExportSet) {
        let place = *self.places.entry((update, exported.clone())).or_insert_with(|| {
            self.announced.push(Group::new(attributes, exported));
            self.announced.len() - 1
        });
        self.announced[place].prefixes.push_back(nlri);
    }
}

/// A limit of prefixes.
struct PrefixLimit {
    limit: u32,
    /// Prefixes that may still be announced that the parties do not know.
    left: usize,
    /// Prefixes that the parties have and that are too many: the limit was lowered.
    surplus: usize,
}

impl PrefixLimit {
    /// `limit`: zero for none. `at_parties` is only called if there is one.
    fn new(limit: u32, at_parties: impl FnOnce() -> usize, withdrawn: usize) -> Self {
        if limit == 0 {
            return Self { limit, left: usize::MAX, surplus: 0 };
        }
        // What is withdrawn goes first, and makes room.
        let (most, stays) = (limit as usize, at_parties().saturating_sub(withdrawn));
        Self { limit, left: most.saturating_sub(stays), surplus: stays.saturating_sub(most) }
    }
}

/// The slot's prefix limit in the member set, and those of its families in the exchange's data.
struct PrefixLimits {
    of_slot: PrefixLimit,
    /// Of IPv4 and of IPv6.
    of_families: [PrefixLimit; 2],
}

impl PrefixLimits {
    /// Takes a place for a prefix, or says which limit has none.
    fn take(&mut self, afi: Afi, is_known: bool) -> Result<(), Bar> {
        let of_slot = &mut self.of_slot;
        // The parties themselves hold the slot to its limit, and what they have counts: a lowered one bars new prefixes alone.
        if of_slot.left == 0 && !is_known {
            return Err(Bar::OverLimit(of_slot.limit));
        }
        let places = usize::from(!is_known);
        let of_family = &mut self.of_families[usize::from(afi == Afi::Ipv6)];
        // Receivers hold a family to its limit by leaving it out whole: what is too many goes.
        if of_family.surplus > 0 && is_known {
            of_family.surplus -= 1;
            return Err(Bar::MaxPrefixes { afi, limit: of_family.limit });
        }
        if of_family.left == 0 && !is_known {
            return Err(Bar::MaxPrefixes { afi, limit: of_family.limit });
        }
        of_family.left -= places;
        of_slot.left -= places;
        Ok(())
    }
}

/// Whether two export decisions are the same for every present member. The slots of former members do not matter.
fn same_for_members(last: &ExportSet, now: &ExportSet, set: &MemberSet) -> bool {
    let same = |(slot, _): (u32, &Slot)| last.contains(slot) == now.contains(slot);
    last.width() == now.width() && set.iter().filter(|(_, slot)| slot.active).all(same)
}

impl Announcements {
    /// Begins a flush, if something is due, a version is reserved, the time for it has come, and there is credit. The next one
    /// begins at `next` at the earliest.
    pub(in super::super) fn begin_flush(
        &mut self,
        now: Instant,
        next: Instant,
        context: &mut Context<'_>,
    ) -> (Flush, Vec<Effect>) {
        let is_repeat_due = self.repeats_at().is_some_and(|at| now >= at);
        if !self.has_dirty() && !is_repeat_due {
            return (Flush::default(), Vec::new());
        }
        // Versions first: without one there is no deadline, and the store wakes this up.
        let mut effects = self.reserve_versions(context);
        if !self.versions.has_reserved() || now < self.next_flush || !context.has_credit {
            return (Flush::default(), effects);
        }
        self.next_flush = next;
        let (withdrawn, announced) = self.sort_dirty(context, &mut effects);
        let flush = Flush {
            withdrawals: withdrawn.chunks(MAX_PREFIXES).map(<[Nlri]>::to_vec).collect(),
            groups: announced.into(),
            repeats: if is_repeat_due { Turn::new(now) } else { Turn::default() },
        };
        (flush, effects)
    }

    /// Makes the next object of a flush, or bars its prefixes; `None` once the flush is over. The effects are to be carried
    /// out before the next call, whose context has the credit that is left then.
    pub(in super::super) fn next_object(
        &mut self,
        flush: &mut Flush,
        context: &mut Context<'_>,
    ) -> Option<Vec<Effect>> {
        if let Some(prefixes) = flush.withdrawals.pop_front() {
            return self.submit_withdrawal(&prefixes, context);
        }
        while flush.groups.pop_front_if(|group| group.prefixes.is_empty()).is_some() {}
        if let Some(group) = flush.groups.front_mut() {
            let prefixes = group.take(super::prefixes_per_object(context.policy));
            return self.submit_announcement(&prefixes, &group.attributes, &group.exported, context);
        }
        let Group { attributes, exported, prefixes } = self.next_repeat(&mut flush.repeats, context)?;
        let effects = self.submit_announcement(&Vec::from(prefixes), &attributes, &exported, context);
        if effects.is_none() {
            self.put_back(&mut flush.repeats);
        }
        effects
    }

    /// Splits what is dirty into withdrawals and announcements; what the parties already know is no longer dirty.
    ///
    /// Prefixes share an object if they shared an UPDATE, and then they have one policy. Where rules look at prefixes
    /// that need not be so, and each prefix is an object of its own, always: to split only where policies differ would
    /// show that they do.
    ///
    /// It looks at all withdrawals, and at announcements until they fill what may be in flight.
    fn sort_dirty(&mut self, context: &mut Context<'_>, effects: &mut Vec<Effect>) -> (Vec<Nlri>, Vec<Group>) {
        let mut decisions = Decisions::default();
        // Before the routes: how many of those leave depends on what is withdrawn.
        self.sort_gone(&mut decisions);
        self.sort_routes(&mut decisions, context);
        let Decisions { withdrawn, announced, clean, mut barred, .. } = decisions;
        // Before the bars: a bar marks the prefixes that take its place, and those have to stay dirty.
        for nlri in clean {
            self.dirty.remove(&nlri);
        }
        // Those that others kept from competing first: they take the places of what is barred now.
        barred.sort_by_key(|(_, bar)| *bar != Bar::SurplusPath);
        effects.extend(barred.into_iter().map(|(nlri, bar)| self.bar_with_event(nlri, bar)));
        (withdrawn, announced)
    }

    /// Decides of the prefixes without a route that could be announced.
    fn sort_gone(&self, decisions: &mut Decisions) {
        for nlri in self.dirty.gone() {
            let is_there = self.announced.contains_key(nlri);
            if is_there || (self.leftover.contains(nlri) && !self.waits_for_router(nlri)) {
                decisions.withdrawn.push(*nlri);
            } else {
                decisions.clean.push(*nlri);
            }
        }
    }

    /// Decides of the prefixes with a route. The order of the reasons why one does not leave matters; each has its comment.
    fn sort_routes(&self, decisions: &mut Decisions, context: &mut Context<'_>) {
        let own = context.set.slot(context.config.slot);
        let most_objects = self.window_left(decisions.withdrawn.len());
        let mut limits = self.prefix_limits(own, &decisions.withdrawn, context);
        let mut last_update = None;
        for (number, (update, nlri)) in self.dirty.routes().enumerate() {
            // An UPDATE is never cut, since its prefixes share objects.
            let is_another = last_update.replace(update) != Some(update);
            if is_another && (decisions.announced.len() >= most_objects || number >= MAX_SCAN) {
                break;
            }
            let Some(route) = self.router.get(nlri) else { continue };
            let is_known = self.is_known(nlri);
            // Before whatever leaves a prefix out because the parties have it: if it is barred now, what they have must go.
            let bar = self.bar_of(nlri, &route.attributes, context);
            // Before the checks below, though they leave prefixes out: only such as the parties know, which take no place.
            let bar = bar.or_else(|| limits.take(nlri.prefix.afi(), is_known).err());
            if let Some(bar) = bar {
                decisions.bar(*nlri, bar, is_known);
                continue;
            }
            let same = self.announced.get(nlri).filter(|last| last.attributes == route.attributes);
            // Before the export decision: if that counted, what a reload concerned would leave at once, and show by that.
            if same.is_some() && self.waits_for_its_turn(nlri, update) {
                decisions.clean.push(*nlri);
                continue;
            }
            context.counters.export_decisions += 1;
            let exported = context.export_set(nlri, &route.attributes);
            if same.is_some_and(|last| self.is_up_to_date(nlri, last, &exported, context.set)) {
                decisions.clean.push(*nlri);
                continue;
            }
            decisions.announce(*nlri, update, &route.attributes, exported);
        }
    }

    /// A leftover without a route waits until the router has sent all its routes, which marks it again. One whose route is
    /// barred need not: the router has sent that.
    fn waits_for_router(&self, nlri: &Nlri) -> bool {
        !self.is_settled && !self.barred.contains(nlri)
    }

    /// Objects that may be announced once `withdrawn` prefixes are in flight as well.
    fn window_left(&self, withdrawn: usize) -> usize {
        WINDOW.saturating_sub(self.in_flight.len() + withdrawn.div_ceil(MAX_PREFIXES))
    }

    /// What limits leave room for, once these are withdrawn.
    fn prefix_limits(&self, own: Option<&Slot>, withdrawn: &[Nlri], context: &Context<'_>) -> PrefixLimits {
        let data = context.data.filter(|_| context.set.data.is_some());
        let lists = own.zip(data).and_then(|(own, data)| data.of(own.asn));
        let [of_v4, of_v6] = lists.map_or([0; 2], |lists| lists.max_prefixes);
        let of_family = |afi: Afi, limit: u32| {
            let withdrawn = withdrawn.iter().filter(|nlri| nlri.prefix.afi() == afi).count();
            PrefixLimit::new(limit, || self.at_parties_of(afi), withdrawn)
        };
        PrefixLimits {
            of_slot: PrefixLimit::new(own.map_or(0, |own| own.max_prefix), || self.at_parties(), withdrawn.len()),
            of_families: [of_family(Afi::Ipv4, of_v4), of_family(Afi::Ipv6, of_v6)],
        }
    }

    /// Why no receiver would use the route, or the parties would refuse it. Limits come after it: what is barred for another reason
    /// takes no place under them.
    fn bar_of(&self, nlri: &Nlri, attributes: &Attributes, context: &Context<'_>) -> Option<Bar> {
        let own = context.set.slot(context.config.slot);
        let rules = context.config.own_rules(Some(context.set), context.data);
        let checked = own.map_or(Ok(()), |own| validate(nlri.prefix, attributes, own, rules));
        if let Err(invalid) = checked {
            return Some(Bar::Invalid(invalid));
        }
        let rpki = Known { vrps: context.origins, aspas: context.aspas };
        let known = own.map_or(Ok(()), |own| validate_own_known(nlri.prefix, attributes, own, rpki, rules));
        if let Err(invalid) = known {
            return Some(Bar::Origin(invalid));
        }
        self.is_surplus(nlri).then_some(Bar::SurplusPath)
    }

    /// Whether so many paths with lower identifiers compete for the prefix that the parties would not let this one.
    fn is_surplus(&self, nlri: &Nlri) -> bool {
        let lower = self.router.range(Nlri { path_id: 0, ..*nlri }..*nlri).map(|(lower, _)| lower);
        lower.filter(|lower| !self.barred.contains(lower)).take(MAX_PATHS).count() == MAX_PATHS
    }

    /// A route of which only the policy may have changed is announced again whether that has or not: in its turn, if that is
    /// still to come. Another UPDATE that ended with the same attributes has taken it from there.
    fn waits_for_its_turn(&self, nlri: &Nlri, update: u64) -> bool {
        self.repeats.update_of(nlri) == Some(update)
    }

    /// Whether the parties have the route as it would be announced now; `last` has the same attributes. If it was to be
    /// announced again, and its turn will not come, it is announced all the same.
    fn is_up_to_date(&self, nlri: &Nlri, last: &AnnouncedRoute, exported: &ExportSet, set: &MemberSet) -> bool {
        same_for_members(&last.exported, exported, set) && self.repeats.update_of(nlri).is_none()
    }
}
