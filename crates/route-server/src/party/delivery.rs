//! What a batch brings to each member that it serves, once it is durable at both parties, and the round that follows.
//!
//! First all of it is worked out ([`Plan`]), from the batch and the state as it is after it, the same at both parties; nothing is sent
//! meanwhile. Then it is sent. Whether a member's tick can be sent changes nothing of the plan, which the peer party makes
//! without knowing that.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use wayleave_core::{Asn, Prefix};

use super::batch::Applied;
use super::batches::{ActiveMember, Batches, Served};
use super::deliveries::{Brought, Deliveries};
use super::membership::Membership;
use super::objects::Objects;
use super::round::{Group, Round};
use super::state::State;
use super::status::Counters;
use crate::digests::InstanceHash;
use crate::frames::{Deliver, Instance, LostObject, Slice, SliceContent, Tick, ToMember};
use crate::object::ExportMode;
use crate::object_table::{Effects, ObjectEntry};
use crate::schedule;

/// What a batch sends, and whose rankings are waited for then.
pub(super) struct Delivery {
    /// By slot.
    ticks: Vec<(u32, Tick)>,
    /// Those who rank, by what they rank.
    groups: Vec<Group>,
    /// The most candidates of one prefix among these.
    widest: usize,
    /// For how long members that are up to date have work with it.
    work: Duration,
    /// The work that each member has by the schedule.
    works: BTreeMap<u32, Duration>,
}

impl State {
    /// Delivers the batch `seq`, and begins its round.
    pub(super) fn deliver(&mut self, seq: u64, applied: &Applied) {
        self.env.counters.batches += 1;
        // Before the ticks: a member for which there is no credit to be told owes the set, and then gets no tick that refers to it.
        if applied.renewed {
            self.tell_members();
        }
        let delivery = self.plan(seq, applied);
        self.send(seq, delivery);
    }

    fn plan(&mut self, seq: u64, applied: &Applied) -> Delivery {
        let (objects, membership) = (&mut self.objects, &self.membership);
        let active: Vec<(u32, ActiveMember)> =
            self.batches.active().iter().map(|(slot, active)| (*slot, active.clone())).collect();
        let deliveries = Deliveries::of(objects.table(), &applied.effects);
        let plan =
            Plan { seq, applied, objects, membership, deliveries, groups: BTreeMap::new(), changed_by_one: None };
        plan.of(active, &mut self.batches, &mut self.env.counters)
    }

    fn send(&mut self, seq: u64, delivery: Delivery) {
        let Delivery { ticks, groups, widest, work, works } = delivery;
        let mut without_tick = BTreeSet::new();
        let mut unfinished = Vec::new();
        for (slot, tick) in ticks {
            match self.env.config.export {
                // Party 1 decides for whose rankings the round waits. Party 2 reports a member that it could not send its tick as held, and
                // party 1 has it leave the round then.
                ExportMode::Direct => {
                    if !self.send_tick(slot, tick) && self.env.is_party_one() {
                        without_tick.insert(slot);
                    }
                }
                // The shares in it are still to be computed.
                ExportMode::Mpc => unfinished.push((slot, tick)),
            }
        }
        self.batches.note_work(work, self.env.now());
        self.rounds.expect(widest, self.batches.rankers(), self.env.now());
        self.export(seq, unfinished, PendingRound { groups, without_tick, works });
    }

    /// Sends a member its tick. `false` if it is not to have it.
    pub(super) fn send_tick(&mut self, slot: u32, tick: Tick) -> bool {
        let served = self.batches.session_of(slot);
        self.links.send_tick(&mut self.env, slot, served, &ToMember::Tick(Box::new(tick)))
    }

    /// Waits for rankings, but not for those who do not have their tick. Whether there is a round follows from the batch, as the
    /// peer party knows it: also if nobody is left in it.
    pub(super) fn begin_round(&mut self, seq: u64, pending: PendingRound) {
        let PendingRound { groups, without_tick, works } = pending;
        let (now, tick) = (self.env.now(), self.batches.tick());
        // As each member does, also where this batch has it rank nothing.
        let mut leaves = self.batches.schedule_rankings(&works, now);
        if groups.is_empty() {
            return;
        }
        let deadline = now + tick + self.env.config.rank_wait;
        let participants: BTreeSet<u32> = groups.iter().flat_map(|group| group.members.iter().copied()).collect();
        leaves.retain(|slot, _| participants.contains(slot) && !without_tick.contains(slot));
        if tick.is_zero() {
            // Rankings leave as soon as they are made, which is no time that anybody knows.
            leaves.values_mut().for_each(|at| *at = deadline);
        }
        let mut round = Round::new(seq, groups, (now, deadline), leaves);
        without_tick.iter().for_each(|slot| round.leave(*slot));
        self.rounds.open(seq, round);
    }
}

/// A round that begins once all ticks of its batch have left.
pub(super) struct PendingRound {
    pub groups: Vec<Group>,
    /// Members that have gone, or have no tick: nobody waits for their rankings.
    pub without_tick: BTreeSet<u32>,
    /// The work that each member has with the batch, by the schedule.
    pub works: BTreeMap<u32, Duration>,
}

/// Which prefixes a member's tick lists; members with equal ones share the work. Those that lack nothing come first, so that their results
/// do, too.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Listing {
    /// What a slice lists.
    of_slice: Vec<Prefix>,
    /// Whether columns opened objects to the member.
    is_new: bool,
}

impl Listing {
    /// Whether the prefix is evaluated again whatever changed.
    fn evaluates_again(&self, prefix: &Prefix, effects: &Effects) -> bool {
        effects.relisted.contains(prefix) || self.is_new && effects.opened.contains(prefix)
    }

    /// The prefixes that changed just now, and those that are evaluated again, each in order.
    fn prefixes(&self, effects: &Effects) -> [BTreeSet<Prefix>; 2] {
        let live: BTreeSet<Prefix> = effects.touched.clone();
        let mut later: BTreeSet<Prefix> =
            effects.relisted.union(&self.of_slice.iter().copied().collect()).copied().collect();
        if self.is_new {
            later.extend(&effects.opened);
        }
        later.retain(|prefix| !live.contains(prefix));
        [live, later]
    }
}

/// A delivery as far as it is worked out.
struct Plan<'a> {
    seq: u64,
    applied: &'a Applied,
    objects: &'a mut Objects,
    membership: &'a Membership,
    deliveries: Deliveries,
    /// Members whose ticks list the same share the work.
    groups: BTreeMap<Listing, Group>,
    /// Prefixes of which only routes of one AS changed, by AS, once somebody asks.
    changed_by_one: Option<BTreeMap<Asn, BTreeSet<Prefix>>>,
}

impl Plan<'_> {
    fn of(mut self, active: Vec<(u32, ActiveMember)>, batches: &mut Batches, counters: &mut Counters) -> Delivery {
        let (mut ticks, mut most) = (Vec::with_capacity(active.len()), Duration::ZERO);
        let mut works = BTreeMap::new();
        for (slot, active) in active {
            let (listing, mut tick, served) = self.tick(slot, &active, counters);
            if served.is_none() && active.served.is_none() {
                batches.forget_chosen(slot);
            }
            // Whether its tick can be sent or not. A member without its tick is paused, and sent what it lacks later.
            batches.was_sent(slot, served);
            let candidates = tick.instances.iter().map(|instance| instance.len()).sum();
            let work = schedule::work(tick.deliver.len(), candidates);
            works.insert(slot, work);
            // What columns open to one member alone keeps nobody from announcing.
            if tick.slice.is_none() && !self.deliveries.widens(slot) {
                most = most.max(work);
            }
            if tick.rank {
                self.have_rank(slot, &active, (listing, &mut tick), batches);
            }
            ticks.push((slot, tick));
        }
        let widest = self.groups.values().flat_map(|group| &group.multi).map(|instance| instance.len()).max();
        let mut groups: Vec<Group> = self.groups.into_values().filter(|group| !group.members.is_empty()).collect();
        groups.iter_mut().for_each(|group| group.note_announcers(&self.applied.effects.changed_by));
        Delivery { ticks, groups, widest: widest.unwrap_or(0), work: schedule::with_spare(most), works }
    }

    /// What the batch brings to a member: what its tick lists, the tick, and how far the member has been sent what it lacks by then.
    fn tick(&mut self, slot: u32, active: &ActiveMember, counters: &mut Counters) -> (Listing, Tick, Option<Served>) {
        let effects = &self.applied.effects;
        let content = self.applied.slices.get(&slot);
        let begins = self.applied.begins.get(&slot).copied();
        let of_slice = content.map(|content| content.prefixes.clone()).unwrap_or_default();
        let listing = Listing { of_slice, is_new: self.deliveries.widens(slot) };
        // The digests of all that it is to have go with the last part of what it lacks.
        let ends = content.is_some_and(|content| content.ends).then(|| self.objects.roots(slot));
        let table = self.objects.table();
        let group = self.groups.entry(listing.clone()).or_insert_with(|| group_of(&listing, self.objects, effects));
        let chooses = active.chooses || active.served.is_none();
        let Brought { new, widened } = self.deliveries.to(slot);
        let competition = self.applied.competition.get(&slot).cloned().unwrap_or_default();
        let mut tick = Tick {
            seq: self.seq,
            view: self.applied.view,
            applied: effects.applied.get(&slot).cloned().unwrap_or_default(),
            dead: self.deliveries.dead().to_vec(),
            gone: self.deliveries.gone().to_vec(),
            deliver: new,
            outside: competition.outside,
            inside: competition.inside,
            instances: group.instances.clone(),
            live: u32::try_from(group.live).expect("a tick has few million instances"),
            rank: active.select_best && chooses && !group.multi.is_empty(),
            ..Tick::default()
        };
        // For the slots below both parties have it.
        let not_lost = effects.not_lost.iter().filter(|(_, from)| *from <= slot);
        tick.dead.extend(not_lost.map(|(candidate, _)| *candidate));
        let entries = |objects: &[(u32, u64)]| {
            let all = objects.iter().filter_map(|(slot, version)| table.entry(*slot, *version));
            all.filter(|entry| !table.has_ended(entry.header.description.slot)).collect::<Vec<_>>()
        };
        tick.deliver.extend(entries(&widened).into_iter().filter_map(|entry| delivery(slot, entry)));
        // Of what a slice brings, party 1 counts what it looked at.
        counters.scanned += tick.deliver.len() as u64;
        if let Some(content) = content {
            let others = entries(&content.objects);
            let others = others.into_iter().filter(|entry| !self.deliveries.has(slot, &entry.handle));
            tick.deliver.extend(others.filter_map(|entry| delivery(slot, entry)));
        }
        if content.is_some() || begins.is_some() {
            let default = SliceContent::default();
            let content = content.map_or(&default, |content| content);
            let died = entries(&content.died).into_iter();
            let died = died.flat_map(|entry| entry.dead.iter().map(|index| (entry.handle, *index))).collect();
            let own = |version: &u64| {
                let lost = || table.lost().get(slot, *version).map(LostObject::as_own);
                table.entry(slot, *version).map(|entry| table.own_object(entry)).or_else(lost)
            };
            let lost = |(of, version, seconds): &(u32, u64, u32)| {
                table.lost().get(*of, *version).map(|object| object.as_told(slot, *seconds))
            };
            tick.slice = Some(Slice {
                begins,
                ends,
                own: content.own.iter().filter_map(own).collect(),
                own_ends: content.own_ends || begins == Some(false),
                died,
                gone: content.gone.clone(),
                gone_instances: content.gone_instances.clone(),
                lost: content.lost.iter().filter_map(lost).collect(),
            });
        }
        counters.delivered += tick.deliver.len() as u64;
        counters.listed += tick.instances.iter().map(|instance| instance.len() as u64).sum::<u64>();
        let served = match content {
            Some(content) if content.ends => None,
            Some(SliceContent { settled: Some(settled), .. }) => Some(Served::Instances(*settled)),
            Some(_) => Some(Served::Objects),
            None => active.served,
        };
        (listing, tick, served)
    }

    /// Below which hash a member has the instances that it is sent, if this batch finds it with all objects, or makes that so. What it lacks
    /// of lists is sent after that, with whatever changed before.
    fn settled(&self, slot: u32, active: &ActiveMember) -> Option<InstanceHash> {
        if let Served::Instances(settled) = active.served? {
            return Some(settled);
        }
        let content = self.applied.slices.get(&slot)?;
        let lacked_nothing = self.applied.begins.contains_key(&slot) && content.ends && content.prefixes.is_empty();
        (content.settled.is_some() && !lacked_nothing).then(InstanceHash::default)
    }

    /// Has a member rank with its group, but for the prefixes for which the choice stays.
    fn have_rank(
        &mut self,
        slot: u32,
        active: &ActiveMember,
        (listing, tick): (Listing, &mut Tick),
        batches: &mut Batches,
    ) {
        let (effects, settled) = (&self.applied.effects, self.settled(slot, active));
        let changed_by_one = self.changed_by_one.get_or_insert_with(|| changed_by_one_as(self.membership, effects));
        let Some(group) = self.groups.get_mut(&listing) else { return };
        let own = self.membership.set().slot(slot).and_then(|of| changed_by_one.get(&of.asn));
        let own = own.into_iter().flatten().copied().filter(|prefix| group.is_contested(prefix)).collect();
        let stays = match settled {
            Some(settled) => stays_while_sent(batches.chosen(slot), &settled, (&listing, own), self.applied),
            None => own.into_iter().filter(|prefix| !listing.evaluates_again(prefix, effects)).collect(),
        };
        tick.unranked = stays.iter().filter_map(|prefix| group.leave_out(prefix, slot)).collect();
        tick.unranked.sort_unstable();
        // By the batch alone, so that both parties have the same groups. Who gets no tick leaves the round afterwards.
        group.members.push(slot);
    }
}

/// The group of those whose ticks list this, without members so far.
fn group_of(listing: &Listing, objects: &Objects, effects: &Effects) -> Group {
    let table = objects.table();
    let instances = |prefixes: BTreeSet<Prefix>| {
        // By what they are listed as: the order of prefixes would tell between which of those that a member knows a sealed one lies.
        let hashed = prefixes.into_iter().filter_map(|prefix| Some((table.instance_of(&prefix)?, prefix)));
        let mut hashed: Vec<(InstanceHash, Prefix)> = hashed.collect();
        hashed.sort_unstable();
        let all = hashed.into_iter().map(|(_, prefix)| (prefix, Instance::from(table.candidates(&prefix))));
        all.filter(|(_, instance)| !instance.is_empty()).collect()
    };
    let [live, later] = listing.prefixes(effects);
    Group::new(instances(live), instances(later))
}

/// Prefixes of which only routes of one AS changed, by AS. Its own slots use none of these routes, so that for them the choice
/// among the others stays; to make it anew would let them ask for the order of the recommendation as often as they like.
fn changed_by_one_as(membership: &Membership, effects: &Effects) -> BTreeMap<Asn, BTreeSet<Prefix>> {
    let mut prefixes: BTreeMap<Asn, BTreeSet<Prefix>> = BTreeMap::new();
    let slots_of = &membership.set().slots;
    for (prefix, slots) in &effects.changed_by {
        let mut asns = slots.iter().filter_map(|slot| slots_of.get(*slot as usize)).map(|slot| slot.asn);
        if let Some(asn) = asns.next().filter(|first| asns.all(|other| other == *first)) {
            prefixes.entry(asn).or_default().insert(*prefix);
        }
    }
    prefixes
}

/// The prefixes for which the choice stays of a member that is sent what it lacks: of those of which only routes of its `own` AS changed,
/// all that it does not lack, or has had (`chosen`). One that it may lack it is owed a choice for, which it has paid for: with the first
/// such change, since the instance is another one then, which perhaps no slice lists. With no later change or slice, or a member that
/// takes up little would have as many choices as it changes its routes.
fn stays_while_sent(
    chosen: &mut BTreeSet<Prefix>,
    settled: &InstanceHash,
    (listing, own): (&Listing, Vec<Prefix>),
    applied: &Applied,
) -> Vec<Prefix> {
    let effects = &applied.effects;
    let is_listed = |prefix: &&Prefix| !effects.touched.contains(prefix) && chosen.contains(prefix);
    let mut stays: Vec<Prefix> = listing.of_slice.iter().filter(is_listed).copied().collect();
    for prefix in own {
        let is_owed = applied.before.get(&prefix).is_some_and(|hash| settled <= hash);
        if !chosen.insert(prefix) || !is_owed {
            stays.push(prefix);
        }
    }
    stays.retain(|prefix| !listing.evaluates_again(prefix, effects));
    stays
}

fn delivery(receiver: u32, entry: &ObjectEntry) -> Option<Deliver> {
    let share = match entry.mode {
        ExportMode::Direct => entry.key_share(receiver)?,
        // Export-All puts it there.
        ExportMode::Mpc if receiver < entry.width => [0; 16],
        ExportMode::Mpc => return None,
    };
    Some(entry.deliver(share))
}
