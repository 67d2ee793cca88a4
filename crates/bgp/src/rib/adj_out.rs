//! Adj-RIB-Out: the routes that a peer is to have, those that it was sent, and the UPDATEs that lead from one to the other.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use wayleave_core::{Afi, Prefix};

use crate::{
    Attributes, Community, EncodeError, Message, Nlri, RefreshKind, RouteRefresh, SessionParams, encode_updates,
    end_of_rib,
};

const FAMILIES: [Afi; 2] = [Afi::Ipv4, Afi::Ipv6];

/// A route as it is to be and as the peer has it.
#[derive(Clone, Debug, Default)]
struct RouteState {
    desired: Option<Arc<Attributes>>,
    sent: Option<Arc<Attributes>>,
    /// To be sent even if the peer has it: an initial table or a refresh.
    forced: bool,
}

/// What a family still owes the peer besides routes.
#[derive(Clone, Copy, Debug, Default)]
struct Marks {
    /// Forced routes not yet sent.
    forced: usize,
    begin_refresh: bool,
    end_refresh: bool,
    end_of_rib: bool,
}

/// Routes that could not be put into messages of this session; whatever the peer had of them is withdrawn.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RejectedRoutes {
    pub routes: Vec<Nlri>,
    pub attributes: Arc<Attributes>,
    pub error: EncodeError,
}

/// Messages to send, in this order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Batch {
    /// Whole messages: withdrawals, then announcements, and the marks around them.
    pub messages: Vec<Vec<u8>>,
    pub announced: usize,
    pub withdrawn: usize,
    pub rejected: Vec<RejectedRoutes>,
}

/// The routes for one peer. It outlives sessions: while none is up, only the desired routes are kept.
///
/// Changes are not queued. However often a prefix changes between two batches, the peer gets the last state only, and
/// nothing if it has that already; so a peer that does not read costs no memory beyond its table.
///
/// A peer without ADD-PATH gets of each prefix the path that [`AdjRibOut::set_paths`] was given first, and otherwise the one with
/// the lowest path identifier.
#[derive(Clone, Debug, Default)]
pub struct AdjRibOut {
    routes: BTreeMap<Nlri, RouteState>,
    /// Keys as on the wire whose routes the peer has and must lose.
    to_withdraw: BTreeSet<Nlri>,
    /// Keys as on the wire whose routes the peer must get.
    to_announce: BTreeSet<Nlri>,
    /// The path of each prefix that a peer without ADD-PATH gets, where it is not the one with the lowest path identifier.
    best: BTreeMap<Prefix, u32>,
    /// IPv4, then IPv6.
    marks: [Marks; 2],
    session: Option<SessionParams>,
    desired: usize,
}

impl AdjRibOut {
    /// Empty, without a session.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes `attributes` the desired route of `nlri`.
    pub fn announce(&mut self, nlri: Nlri, attributes: Arc<Attributes>) {
        let route = self.routes.entry(nlri).or_default();
        self.desired += usize::from(route.desired.is_none());
        route.desired = Some(attributes);
        self.plan(nlri);
    }

    /// Leaves `nlri` without a desired route.
    pub fn withdraw(&mut self, nlri: &Nlri) {
        let Some(route) = self.routes.get_mut(nlri) else { return };
        self.desired -= usize::from(route.desired.take().is_some());
        self.plan(*nlri);
        self.tidy(nlri);
        self.tidy(&self.wire_key(*nlri));
    }

    /// Makes these the desired routes to `prefix`, by path identifier, the best first; every other path is withdrawn. A path that
    /// keeps its identifier and its attributes is not sent again (RFC 7911 section 3).
    pub fn set_paths(&mut self, prefix: Prefix, paths: &[(u32, Arc<Attributes>)]) {
        let all = Nlri { prefix, path_id: 0 }..=Nlri { prefix, path_id: u32::MAX };
        let is_wanted = |nlri: &Nlri| paths.iter().any(|(path_id, _)| *path_id == nlri.path_id);
        let desired = self.routes.range(all).filter(|(_, route)| route.desired.is_some()).map(|(nlri, _)| *nlri);
        let gone: Vec<Nlri> = desired.filter(|nlri| !is_wanted(nlri)).collect();
        let lowest = paths.iter().map(|(path_id, _)| *path_id).min();
        match paths.first().map(|(path_id, _)| *path_id).filter(|best| Some(*best) != lowest) {
            Some(best) => self.best.insert(prefix, best),
            None => self.best.remove(&prefix),
        };
        for (path_id, attributes) in paths {
            self.announce(Nlri { prefix, path_id: *path_id }, Arc::clone(attributes));
        }
        gone.iter().for_each(|nlri| self.withdraw(nlri));
    }

    /// Leaves no desired route.
    pub fn withdraw_all(&mut self) {
        self.best.clear();
        let wanted: Vec<Nlri> = self.desired().map(|(nlri, _)| *nlri).collect();
        for nlri in &wanted {
            self.withdraw(nlri);
        }
    }

    /// A session is up, and the peer has nothing: all desired routes of the agreed families are due, then, if the peer
    /// understands it ([`Established::end_of_rib`](crate::session::Established::end_of_rib)), End-of-RIB of each.
    pub fn session_up(&mut self, params: SessionParams, end_of_rib: bool) {
        self.session_down();
        self.session = Some(params);
        for afi in FAMILIES.into_iter().filter(|&afi| params.has_family(afi)) {
            self.force(afi);
            self.marks[index(afi)].end_of_rib = end_of_rib;
        }
    }

    /// The session is down: nothing is due.
    pub fn session_down(&mut self) {
        self.session = None;
        self.to_withdraw.clear();
        self.to_announce.clear();
        self.marks = [Marks::default(); 2];
        self.routes.retain(|_, route| {
            route.sent = None;
            route.forced = false;
            route.desired.is_some()
        });
    }

    /// The peer requests all routes of `afi` again (RFC 2918); `marked`: both ends mark the begin and the end
    /// (RFC 7313).
    pub fn refresh(&mut self, afi: Afi, marked: bool) {
        if self.session.is_some_and(|params| params.has_family(afi)) {
            self.force(afi);
            self.marks[index(afi)].begin_refresh = marked;
            self.marks[index(afi)].end_refresh = marked;
        }
    }

    /// Whether a batch would hold anything.
    #[must_use]
    pub fn is_due(&self) -> bool {
        let mark = |marks: &Marks| marks.begin_refresh || marks.end_refresh || marks.end_of_rib;
        self.due() > 0 || self.marks.iter().any(mark)
    }

    /// Routes to be announced or withdrawn.
    #[must_use]
    pub fn due(&self) -> usize {
        self.to_announce.len() + self.to_withdraw.len()
    }

    /// The next messages, for at most `most_routes` routes: withdrawals first, then announcements in as few messages as
    /// equal attributes allow. What is in them counts as sent. A larger batch packs better; call again while
    /// [`AdjRibOut::is_due`] and the session is writable.
    pub fn next_batch(&mut self, most_routes: usize) -> Batch {
        let mut batch = Batch::default();
        let Some(params) = self.session else { return batch };
        self.begin_refreshes(&params, &mut batch);
        let withdrawn = self.take_withdrawals(most_routes);
        self.encode_withdrawals(&withdrawn, &params, &mut batch);
        let groups = self.take_announcements(most_routes.saturating_sub(withdrawn.len()));
        for (attributes, routes) in groups {
            self.encode_announcements(&attributes, routes, &params, &mut batch);
        }
        self.end_families(&params, &mut batch);
        batch
    }

    /// The desired routes in prefix order.
    pub fn desired(&self) -> impl Iterator<Item = (&Nlri, &Arc<Attributes>)> {
        self.routes.iter().filter_map(|(nlri, route)| Some((nlri, route.desired.as_ref()?)))
    }

    /// What the peer has, in prefix order, by the keys on the wire.
    pub fn sent(&self) -> impl Iterator<Item = (&Nlri, &Arc<Attributes>)> {
        self.routes.iter().filter_map(|(nlri, route)| Some((nlri, route.sent.as_ref()?)))
    }

    /// Desired routes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.desired
    }

    /// Whether there is no desired route.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.desired == 0
    }

    /// The key under which the peer knows `nlri`.
    fn wire_key(&self, nlri: Nlri) -> Nlri {
        match self.session {
            Some(params) if params.add_path_send.has(nlri.prefix.afi()) => nlri,
            _ => Nlri::new(nlri.prefix),
        }
    }

    /// The desired route of a key on the wire.
    fn desired_at(&self, key: &Nlri, params: &SessionParams) -> Option<&Arc<Attributes>> {
        let with = |nlri: &Nlri| self.routes.get(nlri).and_then(|route| route.desired.as_ref());
        if params.add_path_send.has(key.prefix.afi()) {
            return with(key);
        }
        let best = self.best.get(&key.prefix).and_then(|path_id| with(&Nlri { path_id: *path_id, ..*key }));
        let last = Nlri { path_id: u32::MAX, ..*key };
        best.or_else(|| self.routes.range(*key..=last).find_map(|(_, route)| route.desired.as_ref()))
    }

    /// Files the key of `nlri` under what is due for it.
    fn plan(&mut self, nlri: Nlri) {
        let Some(params) = self.session.filter(|params| params.has_family(nlri.prefix.afi())) else { return };
        let key = self.wire_key(nlri);
        let desired = self.desired_at(&key, &params);
        let route = self.routes.get(&key);
        let sent = route.and_then(|route| route.sent.as_ref());
        let forced = route.is_some_and(|route| route.forced);
        let (announce, withdraw) = match (desired, sent) {
            (Some(desired), Some(sent)) => (forced || desired != sent, false),
            (Some(_), None) => (true, false),
            (None, sent) => (false, sent.is_some()),
        };
        if !announce && forced {
            self.unforce(&key);
        }
        file(&mut self.to_announce, key, announce);
        file(&mut self.to_withdraw, key, withdraw);
    }

    /// Makes every desired route of a family due, whether the peer has it or not.
    fn force(&mut self, afi: Afi) {
        let keys: BTreeSet<Nlri> = self
            .routes
            .iter()
            .filter(|(nlri, route)| nlri.prefix.afi() == afi && route.desired.is_some())
            .map(|(nlri, _)| self.wire_key(*nlri))
            .collect();
        for &key in &keys {
            let route = self.routes.entry(key).or_default();
            self.marks[index(afi)].forced += usize::from(!route.forced);
            route.forced = true;
        }
        self.to_announce.extend(keys);
    }

    fn unforce(&mut self, key: &Nlri) {
        if let Some(route) = self.routes.get_mut(key).filter(|route| route.forced) {
            route.forced = false;
            self.marks[index(key.prefix.afi())].forced -= 1;
        }
    }

    /// Drops a route that holds nothing.
    fn tidy(&mut self, key: &Nlri) {
        if self.routes.get(key).is_some_and(|route| route.desired.is_none() && route.sent.is_none() && !route.forced) {
            self.routes.remove(key);
        }
    }

    fn take_withdrawals(&mut self, most: usize) -> Vec<Nlri> {
        let mut taken = Vec::with_capacity(most.min(self.to_withdraw.len()));
        while taken.len() < most
            && let Some(key) = self.to_withdraw.pop_first()
        {
            self.set_sent(&key, None);
            taken.push(key);
        }
        taken
    }

    /// Routes to announce, those with equal attributes of one family together, in the order of their first prefixes.
    fn take_announcements(&mut self, most: usize) -> Vec<(Arc<Attributes>, Vec<Nlri>)> {
        let Some(params) = self.session else { return Vec::new() };
        let mut groups: Vec<(Arc<Attributes>, Vec<Nlri>)> = Vec::new();
        let mut places: HashMap<(Afi, Arc<Attributes>), usize> = HashMap::new();
        let mut taken = 0;
        while taken < most
            && let Some(key) = self.to_announce.pop_first()
        {
            self.unforce(&key);
            let Some(attributes) = self.desired_at(&key, &params).cloned() else { continue };
            taken += 1;
            let place = *places.entry((key.prefix.afi(), Arc::clone(&attributes))).or_insert_with(|| {
                groups.push((attributes, Vec::new()));
                groups.len() - 1
            });
            groups[place].1.push(key);
        }
        groups
    }

    fn encode_withdrawals(&self, routes: &[Nlri], params: &SessionParams, batch: &mut Batch) {
        if routes.is_empty() {
            return;
        }
        // Withdrawals carry no attributes, so that nothing about them can be too long.
        if let Ok(messages) = encode_updates(None, &[], routes, params) {
            batch.messages.extend(messages);
            batch.withdrawn += routes.len();
        }
    }

    fn encode_announcements(
        &mut self,
        attributes: &Arc<Attributes>,
        routes: Vec<Nlri>,
        params: &SessionParams,
        batch: &mut Batch,
    ) {
        let is_stale = || attributes.communities().any(|community| community == Community::LLGR_STALE);
        let encoded = match params.withholds_stale && is_stale() {
            true => Err(EncodeError::Stale),
            false => encode_updates(Some(attributes), &routes, &[], params),
        };
        match encoded {
            Ok(messages) => {
                batch.messages.extend(messages);
                batch.announced += routes.len();
                routes.iter().for_each(|key| self.set_sent(key, Some(attributes)));
            }
            Err(error) => {
                let had: Vec<Nlri> = routes.iter().filter(|key| self.is_sent(key)).copied().collect();
                self.encode_withdrawals(&had, params, batch);
                routes.iter().for_each(|key| self.set_sent(key, None));
                batch.rejected.push(RejectedRoutes { routes, attributes: Arc::clone(attributes), error });
            }
        }
    }

    fn is_sent(&self, key: &Nlri) -> bool {
        self.routes.get(key).is_some_and(|route| route.sent.is_some())
    }

    fn set_sent(&mut self, key: &Nlri, attributes: Option<&Arc<Attributes>>) {
        match attributes {
            Some(attributes) => self.routes.entry(*key).or_default().sent = Some(Arc::clone(attributes)),
            None => {
                if let Some(route) = self.routes.get_mut(key) {
                    route.sent = None;
                }
                self.tidy(key);
            }
        }
    }

    fn begin_refreshes(&mut self, params: &SessionParams, batch: &mut Batch) {
        for afi in FAMILIES {
            if std::mem::take(&mut self.marks[index(afi)].begin_refresh) {
                push_mark(afi, RefreshKind::Begin, params, batch);
            }
        }
    }

    /// Marks the end of each family whose forced routes are out.
    fn end_families(&mut self, params: &SessionParams, batch: &mut Batch) {
        for afi in FAMILIES {
            let marks = &mut self.marks[index(afi)];
            if marks.forced > 0 {
                continue;
            }
            if std::mem::take(&mut marks.end_of_rib) {
                batch.messages.push(end_of_rib(afi));
            }
            if std::mem::take(&mut marks.end_refresh) {
                push_mark(afi, RefreshKind::End, params, batch);
            }
        }
    }
}

fn push_mark(afi: Afi, kind: RefreshKind, params: &SessionParams, batch: &mut Batch) {
    let mark = Message::RouteRefresh(RouteRefresh { kind, ..RouteRefresh::request(afi) });
    batch.messages.extend(mark.encode(params));
}

fn file(set: &mut BTreeSet<Nlri>, key: Nlri, wanted: bool) {
    if wanted {
        set.insert(key);
    } else {
        set.remove(&key);
    }
}

fn index(afi: Afi) -> usize {
    match afi {
        Afi::Ipv4 => 0,
        Afi::Ipv6 => 1,
    }
}
