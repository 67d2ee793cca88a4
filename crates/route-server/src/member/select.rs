//! Selection: the member ranks the routes that it may have, sends shares of the ranking, and installs what Select-Best
//! returns.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use wayleave_bgp::Attributes;
use wayleave_core::{Instant, Now, Prefix, VerdictKind};
use wayleave_crypto::secret::Seed;

use super::listed::is_full;
use super::receive::Assessment;
use super::{Alarm, Member, MemberEvent, MemberOutput, Suspect, index, number};
use crate::frames::{Candidate, FromMember, Instance, Miss, Seq};
use crate::object::Handle;
use crate::party::PartyNumber;
use crate::policy::Imported;
use crate::policy::ranking::{Rank, rank, rank_all};
use crate::policy::validate::for_router;
use crate::rng::stream;

/// How long a round may show no progress, at either party, before the member's own ranking decides.
pub(super) const OUTCOME_WAIT: Duration = Duration::from_secs(10);

/// Rounds whose results are awaited at a time: our own limit, beyond what the parties have open. Of the first the member's own ranking
/// decides then.
const MAX_ROUNDS: usize = 64;

/// In the place of [`Member::rules`], where something came to be considered after the ranking.
const NOT_RANKED: u64 = u64::MAX;

/// The candidates for one prefix, and the state of the choice among them.
#[derive(Default)]
pub(super) struct Choice {
    /// All candidates in number order, those that it may not open included.
    pub candidates: Instance,
    /// What Select-Best returned for these candidates.
    pub chosen: Option<Candidate>,
    /// Whether Select-Best is still to choose.
    pub awaits: Awaits,
    /// The batch that listed these candidates, and the last one with which the choice was to be made anew.
    listed: Seq,
    anew: Seq,
    /// [`Member::rules`] when what Select-Best is to choose among was ranked, and when that was of which it chose.
    ranked_under: u64,
    pub(super) chosen_under: u64,
}

/// Whether a result of Select-Best is still to come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Awaits {
    /// None.
    #[default]
    Nothing,
    /// The one of this batch.
    Batch(Seq),
    /// The one that was to come does not. The member's own order decides until the choice is made anew, and changes nothing without need:
    /// what Select-Best chooses then is as a rule what the router has.
    Lost,
}

/// The route that the router has for a prefix.
pub(super) struct InstalledRoute {
    pub handle: Handle,
    pub announcer: u32,
    /// The announcer's path identifier.
    pub path_id: u32,
    pub attributes: Attributes,
}

/// What becomes of the choice when a prefix's candidates are listed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Choosing {
    /// It is made anew: by Select-Best, by the member's own order, or by that in place of Select-Best.
    Anew(Awaits),
    /// It stays.
    Stays,
}

/// A ranking that waits for its time: so far, of what has been looked at.
pub(super) struct DueRanking {
    pub at: Instant,
    /// The batch.
    pub seq: Seq,
    /// The valid bit and the class of each candidate in turn.
    pub ranking: Vec<u8>,
}

/// A round in which this member ranks.
pub(super) struct Round {
    /// Each instance with its number as it was listed, and with its prefix, once it was looked at, if this member may open a route of it.
    pub multi: Vec<(Instance, usize, Option<Prefix>)>,
    /// The epoch of the batch.
    epoch: u64,
    /// The ranking that was sent ([`DueRanking::ranking`]).
    pub ranking: Vec<u8>,
    /// Shares of the results so far.
    halves: [Vec<u8>; 2],
    /// Results so far, and octets of the ranking that are theirs.
    done: (usize, usize),
    /// When a party last showed that it goes on.
    pub heard: Instant,
}

impl Round {
    pub(super) fn new(epoch: u64, begin: Instant) -> Self {
        let halves = [Vec::new(), Vec::new()];
        Self { multi: Vec::new(), epoch, ranking: Vec::new(), halves, done: (0, 0), heard: begin }
    }
}

impl Member {
    /// Takes a prefix's candidates from a tick. If this member may open none of them it learns nothing and
    /// forgets them. Returns the prefix, if it may open one of them: something may follow for the router's table.
    pub(super) fn candidates_changed(
        &mut self,
        seq: u64,
        candidates: &Instance,
        assessments: &[Option<Assessment>],
        choosing: Choosing,
    ) -> Option<Prefix> {
        let mut known = assessments.iter().flatten().map(|assessment| assessment.prefix);
        let prefix = known.next()?;
        if known.any(|other| other != prefix) {
            let what = "the parties compare routes to different prefixes".to_owned();
            self.alarm(Alarm { what, handle: None, suspects: vec![Suspect::Party(1), Suspect::Party(2)] });
            return None;
        }
        let rules = self.rules;
        let choice = self.choices.entry(prefix).or_default();
        let is_latest = choice.listed <= seq;
        let is_unchanged = choice.candidates == *candidates;
        let mut replaced = None;
        if is_latest {
            replaced = Some(std::mem::replace(&mut choice.candidates, Arc::clone(candidates)));
            choice.listed = seq;
        }
        // The choice stays where an own route changed. What another batch brought before that may never have been looked at, since its ranking
        // had left and its list gave way to this one: what was chosen then did not consider it.
        let is_new = |(candidate, assessment): (&Candidate, &Option<Assessment>)| {
            let is_usable = assessment.is_some_and(|assessment| assessment.usable && assessment.rank.is_some());
            is_usable && replaced.as_ref().is_some_and(|before| !before.contains(candidate))
        };
        let is_missed = choosing == Choosing::Stays && candidates.iter().zip(assessments).any(is_new);
        let choosing = if is_missed { Choosing::Anew(Awaits::Lost) } else { choosing };
        match choosing {
            Choosing::Stays if is_latest => choice.chosen = choice.chosen.filter(|chosen| candidates.contains(chosen)),
            // Also if what was listed since, and looked at before, left the choice as it was.
            Choosing::Anew(awaits) if choice.anew <= seq => {
                choice.anew = seq;
                if matches!(awaits, Awaits::Batch(_)) {
                    choice.ranked_under = rules;
                }
                choice.chosen = choice.chosen.filter(|_| is_unchanged);
                choice.awaits = awaits;
            }
            _ => {}
        }
        if let Some(before) = replaced {
            self.note_displaced(prefix, &before, candidates);
        }
        Some(prefix)
    }

    /// Candidates of a prefix gave way to these: what lives of them, and of those that had to before, does not compete.
    fn note_displaced(&mut self, prefix: Prefix, before: &Instance, now: &Instance) {
        if !(is_full(before) || is_full(now) || self.not_competing.contains_key(&prefix)) {
            return;
        }
        let mut others = self.not_competing.remove(&prefix).unwrap_or_default();
        others.extend(before.iter());
        others.retain(|other| !now.contains(other) && self.lives(&prefix, other));
        if !others.is_empty() {
            self.not_competing.insert(prefix, others);
        }
    }

    /// An object was opened that came with no list, after what was listed was looked at: its prefixes that are in no instance do not
    /// compete. While this member is sent what it lacks the lists may be to come; then all are found at the end.
    pub(super) fn note_unlisted(&mut self, handle: &Handle) {
        if self.sync.is_some() || !self.instances.are_some_full() {
            return;
        }
        let Some(route) = self.routes.get(handle) else { return };
        for (prefix_index, nlri) in (0u16..).zip(route.opened.iter().flat_map(|open| &open.prefixes)) {
            let candidate = (*handle, prefix_index);
            if !route.dead.contains(&prefix_index) && !self.instances.lists(&candidate) {
                self.not_competing.entry(nlri.prefix).or_default().insert(candidate);
                self.touched.insert(nlri.prefix);
            }
        }
    }

    /// Finds all routes that this member may open and that do not compete. Where no prefix has as many candidates as can be there are none.
    pub(super) fn find_not_competing(&mut self) {
        self.touched.extend(std::mem::take(&mut self.not_competing).into_keys());
        if self.instances.are_some_full() {
            let open = self.routes.iter().filter(|(_, route)| route.opened.is_some());
            let all: Vec<Handle> = open.map(|(handle, _)| *handle).collect();
            all.iter().for_each(|handle| self.note_unlisted(handle));
        }
    }

    fn lives(&self, prefix: &Prefix, (handle, prefix_index): &Candidate) -> bool {
        self.routes.get(handle).and_then(|route| route.prefix(*prefix_index)) == Some(*prefix)
    }

    /// The candidates of a prefix, and after them the routes that this member may open and that do not compete. What it sends depends on
    /// the candidates alone.
    pub(super) fn known_routes(&self, prefix: &Prefix) -> Instance {
        let candidates = self.choices.get(prefix).map(|choice| choice.candidates.clone()).unwrap_or_default();
        let Some(others) = self.not_competing.get(prefix) else { return candidates };
        let others = others.iter().filter(|other| !candidates.contains(other) && self.lives(prefix, other));
        candidates.iter().chain(others).copied().collect()
    }

    /// The installed route, if it does not compete.
    fn installed_outside(&self, prefix: &Prefix) -> Option<Candidate> {
        let (installed, others) = (self.installed.get(prefix)?, self.not_competing.get(prefix)?);
        others.iter().find(|other| other.0 == installed.handle && self.lives(prefix, other)).copied()
    }

    /// Of prefixes whose candidates are no instance any more, what is listed is nothing that this member may open.
    pub(super) fn forget_unlisted(&mut self) {
        for (prefix, choice) in self.choices.iter_mut().filter(|(_, choice)| !self.instances.has(&choice.candidates)) {
            *choice = Choice::default();
            self.touched.insert(*prefix);
        }
    }

    /// The parties were away for longer than the stale timer: drops everything that they delivered.
    pub(super) fn forget_everything(&mut self) {
        self.event(MemberEvent::Stale { routes: self.installed.len() });
        let kept: Vec<Prefix> = self.kept.prefixes().collect();
        kept.into_iter().for_each(|prefix| self.keep_no_longer(prefix));
        let all: Vec<Handle> = self.routes.keys().copied().collect();
        all.iter().for_each(|handle| self.drop_route(handle));
        self.touched.extend(self.choices.keys().copied());
        self.choices.clear();
        self.not_competing.clear();
        self.instances.clear();
        self.complete = 0;
    }

    /// The usable candidates with their classes, in number order; those that import rules reject have none.
    pub(super) fn classes(&mut self, candidates: &[Candidate]) -> Vec<(usize, Candidate, Option<u8>)> {
        let assessments: Vec<Option<Assessment>> =
            candidates.iter().map(|candidate| self.assessment(candidate)).collect();
        let classes = self.class_of_each(candidates, &assessments);
        let all = candidates.iter().zip(assessments).zip(classes).enumerate();
        all.filter(|(_, ((_, assessment), _))| assessment.is_some_and(|assessment| assessment.usable))
            .map(|(number, ((candidate, _), class))| (number, *candidate, class))
            .collect()
    }

    /// Whether this member may use a candidate: then it has a class, whatever it is compared with.
    pub(super) fn is_accepted(&mut self, candidate: &Candidate) -> bool {
        self.assessment(candidate).is_some_and(|assessment| assessment.usable && assessment.rank.is_some())
    }

    /// The class of each candidate; none for those that this member does not use.
    pub(super) fn class_of_each(
        &self,
        candidates: &[Candidate],
        assessments: &[Option<Assessment>],
    ) -> Vec<Option<u8>> {
        if self.policy.ranking().strict {
            return self.strict_classes(candidates, assessments);
        }
        let ranks: Vec<Option<Rank>> = assessments.iter().map(|assessment| assessment.as_ref()?.rank).collect();
        rank_all(&self.policy, &ranks)
    }

    /// Classes by the whole decision process, which looks at more of a route than its rank.
    fn strict_classes(&self, candidates: &[Candidate], assessments: &[Option<Assessment>]) -> Vec<Option<u8>> {
        let (mut numbers, mut inputs) = (Vec::new(), Vec::new());
        let both = candidates.iter().zip(assessments).enumerate();
        for (number, ((handle, prefix_index), assessment)) in
            both.filter(|(_, (_, assessment))| assessment.is_some_and(|j| j.rank.is_some()))
        {
            let Some(open) = self.routes.get(handle).and_then(|route| route.opened.as_ref()) else { continue };
            let Some(nlri) = open.prefixes.get(usize::from(*prefix_index)) else { continue };
            let Some(announcer) = self.set.as_ref().and_then(|set| set.slot(open.slot)) else { continue };
            numbers.push(number);
            inputs.push(open.rank_input(nlri, announcer, assessment.map_or(VerdictKind::default(), |j| j.verdict)));
        }
        let mut classes = vec![None; candidates.len()];
        for (number, class) in numbers.into_iter().zip(rank(&self.policy, &inputs)) {
            classes[number] = class;
        }
        classes
    }

    /// Sends the rankings that are due, to both parties at once, with what has been looked at. Their time, their length and the work
    /// that is left until they leave are the same whatever that is.
    pub(super) fn rank_due(&mut self, now: Now) {
        while let Some(due) = self.rankings_due.pop_front_if(|due| due.at <= now.instant) {
            let [one, two] = self.shares_of(due.seq, &due.ranking);
            if let Some(round) = self.rounds.get_mut(&due.seq) {
                round.ranking = due.ranking;
            }
            self.counters.rankings += 1;
            self.send(PartyNumber::One, &one);
            self.send(PartyNumber::Two, &two);
        }
    }

    /// The valid bit and the class of each candidate in turn.
    pub(super) fn ranking_row(&self, candidates: &[Candidate], assessments: &[Option<Assessment>]) -> Vec<u8> {
        let classes = self.class_of_each(candidates, assessments);
        classes.into_iter().flat_map(|class| [u8::from(class.is_some()), class.unwrap_or(0)]).collect()
    }

    /// The ranking for a batch, as its two frames.
    fn shares_of(&mut self, seq: Seq, ranking: &[u8]) -> [FromMember; 2] {
        let mut draw = self.rng.draw(&[b"ranking", &seq.to_be_bytes(), ranking]);
        let (seed, row) = (Seed::new(draw.bytes()), draw.bytes());
        let mut share = stream(&seed, ranking.len());
        for (byte, plain) in share.iter_mut().zip(ranking) {
            *byte ^= plain;
        }
        [FromMember::RankOne { seq, row, seed }, FromMember::RankTwo { seq, row, share }]
    }

    /// A party says that the round of a batch goes on.
    pub(super) fn round_goes_on(&mut self, seq: u64, now: Now) {
        if let Some(round) = self.rounds.get_mut(&seq) {
            round.heard = now.instant;
        }
    }

    /// One party's share of a part of the results; the parts come in order.
    pub(super) fn half_outcome(&mut self, party: PartyNumber, seq: u64, first: u32, share: &[u8], now: Now) {
        let is_early = self.rankings_due.iter().any(|due| due.seq == seq);
        let awaited = |round: &&mut Round| {
            let so_far = round.halves[index(party)].len();
            let fits = first as usize == so_far && share.len() <= round.multi.len() - so_far;
            fits && (is_early || !round.ranking.is_empty())
        };
        let Some(round) = self.rounds.get_mut(&seq).filter(awaited) else {
            self.counters.replayed += 1;
            return;
        };
        if is_early {
            // Together with the other party's share, what comes later, it could look like a result.
            let what = format!("party {} sent a result before it could have the ranking", number(party));
            self.alarm(Alarm { what, handle: None, suspects: vec![Suspect::Party(number(party))] });
            return;
        }
        round.halves[index(party)].extend_from_slice(share);
        round.heard = now.instant;
        let Some(mut round) = self.rounds.remove(&seq) else { return };
        self.outcome(seq, &mut round);
        if round.done.0 < round.multi.len() {
            self.rounds.insert(seq, round);
        } else {
            self.counters.outcomes += 1;
        }
    }

    /// Takes the results of which both shares are there.
    fn outcome(&mut self, seq: u64, round: &mut Round) {
        let [one, two] = &round.halves;
        let (done, mut at) = round.done;
        for (((candidates, number_then, prefix), a), b) in round.multi.iter().zip(one).zip(two).skip(done) {
            let ranking = &round.ranking[at..at + candidates.len() * 2];
            at += candidates.len() * 2;
            let (valid, number) = ((a ^ b) >> 7 == 1, usize::from((a ^ b) & 0x7f));
            // The member's class goes before the recommendation, so that only a route of its best class can win.
            let best = ranking.chunks_exact(2).filter(|row| row[0] == 1).map(|row| row[1]).max();
            let possible = match best {
                Some(class) => valid && ranking.chunks_exact(2).nth(number) == Some(&[1, class]),
                None => !valid && number == 0,
            };
            if !possible {
                let what = "Select-Best returned a route that is not among the best of the ranking".to_owned();
                self.alarm(Alarm { what, handle: None, suspects: vec![Suspect::Party(1), Suspect::Party(2)] });
            }
            // Whatever it is: what this member holds must not tell the parties.
            self.instances.evaluated((*number_then, candidates), seq, round.epoch);
            let chosen = (possible && valid).then(|| candidates[number]);
            self.chosen(seq, *prefix, chosen);
        }
        round.done = (one.len().min(two.len()), at);
    }

    fn chosen(&mut self, seq: u64, prefix: Option<Prefix>, chosen: Option<Candidate>) {
        let Some(prefix) = prefix else { return };
        let Some(choice) = self.choices.get_mut(&prefix).filter(|choice| choice.awaits == Awaits::Batch(seq)) else {
            return;
        };
        choice.awaits = Awaits::Nothing;
        (choice.chosen, choice.chosen_under) = (chosen, choice.ranked_under);
        self.touched.insert(prefix);
    }

    /// A route was opened after its prefixes were ranked, if they were: what Select-Best chose, or chooses, did not consider it.
    pub(super) fn was_not_ranked(&mut self, handle: &Handle) {
        let Some(open) = self.routes.get(handle).and_then(|route| route.opened.as_ref()) else { return };
        for nlri in &open.prefixes {
            if let Some(choice) = self.choices.get_mut(&nlri.prefix) {
                (choice.ranked_under, choice.chosen_under) = (NOT_RANKED, NOT_RANKED);
            }
        }
    }

    /// Routes to these prefixes are assessed otherwise than when they were ranked: whether what Select-Best chose, or chooses, is right
    /// is to be looked at.
    pub(super) fn ranked_otherwise(&mut self, prefixes: &BTreeSet<Prefix>) {
        for prefix in prefixes {
            if let Some(choice) = self.choices.get_mut(prefix) {
                (choice.ranked_under, choice.chosen_under) = (NOT_RANKED, NOT_RANKED);
            }
        }
    }

    /// Results that did not come: the member's own ranking decides, and a resynchronisation is requested.
    pub(super) fn overdue_choices(&mut self, now: Now) {
        let due = |round: &Round| now.instant.since(round.heard) >= OUTCOME_WAIT;
        let overdue: Vec<u64> = self.rounds.iter().filter(|(_, round)| due(round)).map(|(seq, _)| *seq).collect();
        for seq in overdue {
            self.decide_alone(seq);
            self.event(MemberEvent::OutcomeOverdue { batch: seq });
            self.request_resync();
        }
    }

    /// Party 1 goes on without the ranking of a batch.
    pub(super) fn ranking_missed(&mut self, seq: u64, why: Miss) {
        if self.rounds.contains_key(&seq) {
            self.counters.missed_rankings += 1;
            self.event(MemberEvent::RankingMissed { batch: seq, why });
            self.decide_alone(seq);
        }
    }

    /// A round begins: its results are awaited.
    pub(super) fn open_round(&mut self, seq: u64, round: Round) {
        self.rounds.insert(seq, round);
        if self.rounds.len() > MAX_ROUNDS
            && let Some(first) = self.rounds.keys().next().copied()
        {
            self.decide_alone(first);
            self.request_resync();
        }
    }

    /// There will be no result for this batch: the member's own order decides.
    fn decide_alone(&mut self, seq: u64) {
        let Some(round) = self.rounds.remove(&seq) else { return };
        for prefix in round.multi.iter().filter_map(|(.., prefix)| *prefix) {
            if let Some(choice) = self.choices.get_mut(&prefix).filter(|choice| choice.awaits == Awaits::Batch(seq)) {
                choice.awaits = Awaits::Lost;
                self.touched.insert(prefix);
            }
        }
    }

    /// The session has ended, and no result comes any more: what is open is chosen again in the next one.
    pub(super) fn close_rounds(&mut self) {
        self.rounds.clear();
        self.rankings_due.clear();
        for (prefix, choice) in &mut self.choices {
            if matches!(choice.awaits, Awaits::Batch(_)) {
                choice.awaits = Awaits::Lost;
                self.touched.insert(*prefix);
            }
        }
    }

    /// Installs in the router what follows from the member's state for a prefix.
    pub(super) fn install(&mut self, prefix: Prefix, now: Now) {
        self.install_best(prefix, now);
        if self.config.paths > 1 {
            self.install_paths(prefix);
        }
    }

    fn install_best(&mut self, prefix: Prefix, now: Now) {
        if self.config.validates {
            self.request_validations(prefix);
        }
        if self.install_kept(prefix) {
            return;
        }
        let Some(wanted) = self.selected(&prefix, now) else { return };
        self.successors.remove(&prefix);
        match wanted {
            Some((handle, prefix_index)) => {
                let Some((announcer, path_id, attributes)) = self.router_attributes(prefix, &handle, prefix_index)
                else {
                    return;
                };
                let new = InstalledRoute { handle, announcer, path_id, attributes: attributes.clone() };
                if self.installed.insert(prefix, new).is_some_and(|known| known.attributes == attributes) {
                    return;
                }
                self.install_at_router(prefix, &attributes);
            }
            None => {
                if self.installed.remove(&prefix).is_some() && self.config.paths <= 1 {
                    self.output.push_back(MemberOutput::Install { prefix, attributes: None });
                }
                // A prefix of which nothing lives that this member may open is forgotten.
                let lives = |(handle, prefix_index): &Candidate| {
                    self.routes.get(handle).is_some_and(|route| route.prefix(*prefix_index).is_some())
                };
                if !self.choices.get(&prefix).is_some_and(|choice| choice.candidates.iter().any(lives)) {
                    self.choices.remove(&prefix);
                }
                if !self.not_competing.get(&prefix).is_some_and(|others| others.iter().any(lives)) {
                    self.not_competing.remove(&prefix);
                }
            }
        }
    }

    /// The router is to have this route. As a route server to its client, the proxy adds OTC with the exchange's AS number (RFC 9234
    /// section 5): after validation, since no signature covers it, and at the last moment, since what is kept of a route is shared.
    pub(super) fn install_at_router(&mut self, prefix: Prefix, attributes: &Attributes) {
        if self.config.paths <= 1 {
            let attributes = Some(self.with_role(attributes));
            self.output.push_back(MemberOutput::Install { prefix, attributes });
        }
    }

    /// The route as the session's role has it.
    pub(super) fn with_role(&self, attributes: &Attributes) -> Attributes {
        match self.config.has_role && attributes.only_to_customer().is_none() {
            true => attributes.edit().only_to_customer(Some(self.config.rs_asn)).finish(),
            false => attributes.clone(),
        }
    }

    /// `None`: wait, and leave the router as it is. `Some(None)`: the router is to have no route.
    #[expect(clippy::option_option, reason = "three answers: wait, none, this one")]
    fn selected(&mut self, prefix: &Prefix, now: Now) -> Option<Option<Candidate>> {
        let known = self.choices.get(prefix);
        if known.is_none() && !self.not_competing.contains_key(prefix) {
            return Some(None);
        }
        let is_contested = known.is_some_and(|choice| choice.candidates.len() > 1) && self.config.select_best;
        let (awaits, chosen) = known.map(|choice| (choice.awaits, choice.chosen)).unwrap_or_default();
        if is_contested {
            if matches!(awaits, Awaits::Batch(_)) && !self.is_refused(prefix) {
                // Between a tick and its outcome the installed route stays. If it is gone and nothing replaced it, the best that
                // is there by the member's own order takes its place, and the router loses the prefix only if there is none.
                let installed = self.installed.get(prefix)?;
                if self.lives_or_is_replaced(&installed.handle, installed.announcer, &self.known_routes(prefix)) {
                    return None;
                }
            } else if let Some(outside) = self.installed_outside(prefix)
                && self.is_best(prefix, outside)
            {
                // That others compete is no reason to replace it by one that is as good.
                return Some(Some(outside));
            } else if let Some(chosen) = chosen
                && self.is_still_best(prefix, chosen)
            {
                return Some(Some(chosen));
            } else if awaits == Awaits::Lost
                && let Some(kept) = self.kept(prefix)
            {
                return Some(Some(kept));
            }
        }
        if self.config.validates && self.waits_for_successor(prefix, now) {
            return None;
        }
        let candidates = self.known_routes(prefix);
        if let [candidate] = &candidates[..] {
            return Some(self.is_accepted(candidate).then_some(*candidate));
        }
        let classes = self.classes(&candidates);
        let accepted =
            || classes.iter().filter_map(|(number, candidate, class)| Some((*number, *candidate, (*class)?)));
        // Bigger classes first, then the lowest number.
        let best = accepted().max_by(|a, b| a.2.cmp(&b.2).then(b.0.cmp(&a.0)));
        Some(best.map(|(_, candidate, _)| candidate))
    }

    /// The installed route, or what its announcer replaced it by, if the member's own order puts nothing above it.
    fn kept(&mut self, prefix: &Prefix) -> Option<Candidate> {
        let (installed, choice) = (self.installed.get(prefix)?, self.choices.get(prefix)?);
        let lives =
            |(handle, index): &&Candidate| self.routes.get(handle).is_some_and(|route| route.prefix(*index).is_some());
        let is_announcers = |(handle, _): &&Candidate| {
            let open = self.routes.get(handle).and_then(|route| route.opened.as_ref());
            open.is_some_and(|open| open.slot == installed.announcer)
        };
        let live = || choice.candidates.iter().filter(lives);
        let kept = *live().find(|(handle, _)| *handle == installed.handle).or_else(|| live().find(is_announcers))?;
        self.is_best(prefix, kept).then_some(kept)
    }

    /// Whether the installed route lives among the candidates. A route that its announcer replaced is gone, but the
    /// outcome of the same tick is on its way.
    fn lives_or_is_replaced(&self, installed: &Handle, announcer: u32, candidates: &[Candidate]) -> bool {
        if self.set.as_ref().is_none_or(|set| set.active(announcer).is_none()) {
            return false;
        }
        // The candidates may be those of an earlier batch: a later one lists none if this member may open none.
        let lives =
            |(handle, index): &&Candidate| self.routes.get(handle).is_some_and(|route| route.prefix(*index).is_some());
        candidates.iter().filter(lives).any(|(handle, _)| {
            let open = self.routes.get(handle).and_then(|route| route.opened.as_ref());
            handle == installed || open.is_some_and(|open| open.slot == announcer)
        })
    }

    /// The announcer, its path identifier and the attributes for the router: the announcer's, with what import rules change.
    pub(super) fn router_attributes(
        &self,
        prefix: Prefix,
        handle: &Handle,
        prefix_index: u16,
    ) -> Option<(u32, u32, Attributes)> {
        let route = self.routes.get(handle)?;
        let open = route.opened.as_ref()?;
        let nlri = open.prefixes.get(usize::from(prefix_index)).filter(|nlri| nlri.prefix == prefix)?;
        let announcer = self.set.as_ref()?.slot(open.slot)?;
        let (mut verdict, mut attributes) = (VerdictKind::default(), &open.attributes);
        if self.config.validates {
            let finding = route.validation.of(usize::from(prefix_index))?;
            (verdict, attributes) = (finding.verdict, finding.attributes.as_ref()?);
        }
        match self.policy.import(&open.rank_input(nlri, announcer, verdict).route()) {
            Imported::Accepted(changes) => {
                Some((open.slot, nlri.path_id, for_router(prefix.afi(), changes.apply(attributes), self.route_rules())))
            }
            Imported::Rejected(_) => None,
        }
    }
}
