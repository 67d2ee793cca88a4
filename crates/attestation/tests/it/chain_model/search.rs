//! The search: all chains that the adversary can make in a world, with what honest ASes sign in it.
//!
//! Chains are built from the origin on by the verifier's rules. A hop is either of a key that the adversary has, or its signature was made
//! by an honest AS and reached a corrupt one. What honest ASes sign depends on what reaches them, so that both grow until nothing is new.

use super::format::{Field, Format, Rule};
use super::term::{Content, HopOctets, Id, Key, Leaf, Map, NOTHING, Opening, Salt, Shape, Signer, Term, Terms};
use super::world::{Asn, BOTH, ORIGIN, P, Path, PrefixSet, Role, World, subsets};

/// Chains of one search, at most: a bound against a mistake in the model.
const MAX_CHAINS: usize = 2_000_000;
/// Entries of the path that a hop skips, at most.
const MAX_SKIPPED: u8 = 2;

/// A hop with what the path says of it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Hop {
    pub(super) asn: Asn,
    pub(super) signer: Signer,
    pub(super) skipped: Path,
    pub(super) prepend: u8,
    pub(super) expired: bool,
    /// Zero where the hop has none: at the origin, and in version 1.
    pub(super) bitmap: PrefixSet,
    pub(super) next: Asn,
    pub(super) leaf: Leaf,
    pub(super) shape: Shape,
    pub(super) key: Key,
    pub(super) signature: Id,
}

impl Hop {
    /// The signature, and which leaf of a burst it is.
    fn evidence(&self) -> (Id, Option<Salt>) {
        match self.shape {
            Shape::Burst(salt, _) => (self.signature, Some(salt)),
            _ => (self.signature, None),
        }
    }

    fn octets(&self) -> HopOctets {
        HopOctets {
            signer: self.signer,
            skipped: self.skipped.len(),
            prepend: self.prepend,
            expired: self.expired,
            bitmap: self.bitmap,
            leaf: self.leaf,
            shape: self.shape,
            signature: self.signature,
        }
    }
}

pub(super) type ChainId = usize;

/// No hop yet.
const START: ChainId = 0;

/// A chain that satisfies every rule but perhaps that of the times.
#[derive(Clone, Debug)]
pub(super) struct Chain {
    /// The chain without its last hop, and that hop.
    pub(super) last: Option<(ChainId, Hop)>,
    pub(super) list: PrefixSet,
    /// The prefixes that a verifier takes it for.
    pub(super) prefixes: PrefixSet,
    pub(super) path: Path,
    hash: Id,
    hops: u8,
    pub(super) has_expired: bool,
    /// Whether the adversary can make it.
    pub(super) is_adversarys: bool,
    is_extended: bool,
    /// Facts that were tried as its next hop.
    facts_tried: usize,
}

/// What an honest AS did when it signed: the export that the signature stands for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Export {
    pub(super) asn: Asn,
    pub(super) before: Path,
    pub(super) prefixes: PrefixSet,
    /// `None`: to the members of the exchange.
    pub(super) next: Option<Asn>,
    pub(super) prepend: u8,
    pub(super) expired: bool,
    pub(super) withdrawn: bool,
}

/// A signature of an honest AS that the adversary knows, as it first stood.
#[derive(Clone, Copy)]
struct Fact {
    hop: Hop,
    list: PrefixSet,
}

pub(super) struct Search<'w> {
    pub(super) world: &'w World,
    format: &'w Format,
    terms: Terms,
    pub(super) chains: Vec<Chain>,
    ids: Map<(ChainId, PrefixSet, Hop), ChainId>,
    /// For what honest ASes made a signature, or put a leaf with this salt under it.
    exports: Map<(Id, Option<Salt>), Vec<Export>>,
    /// Signatures that reached the adversary, by the chain's hash before them where that is signed.
    facts: Map<Id, Vec<Fact>>,
    known: Map<(Id, Hop), ()>,
    /// Openings of trees over all neighbours that reached the adversary.
    openings: Vec<(Asn, Leaf, Shape)>,
    /// What reached an AS: chain, entries of the path after it, receiver.
    received: Map<(ChainId, Path, Asn), PrefixSet>,
    salts: u32,
    grew: bool,
}

impl<'w> Search<'w> {
    pub(super) fn run(world: &'w World, format: &'w Format) -> Self {
        let start = Chain {
            last: None,
            list: 0,
            prefixes: 0,
            path: Path::default(),
            hash: NOTHING,
            hops: 0,
            has_expired: false,
            is_adversarys: true,
            is_extended: false,
            facts_tried: 0,
        };
        let mut search = Self {
            world,
            format,
            terms: Terms::new(),
            chains: vec![start],
            ids: Map::default(),
            exports: Map::default(),
            facts: Map::default(),
            known: Map::default(),
            openings: Vec::new(),
            received: Map::default(),
            salts: 0,
            grew: true,
        };
        if world.is_verifier(ORIGIN) {
            for list in subsets(BOTH) {
                search.sign_onward(START, list, ORIGIN, Path::default(), list);
            }
        }
        while std::mem::take(&mut search.grew) {
            let mut chain = 0;
            while chain < search.chains.len() {
                if search.chains[chain].is_adversarys && !search.chains[chain].has_expired {
                    search.attack_from(chain);
                }
                chain += 1;
            }
        }
        search
    }

    /// For what an honest AS made what the hop shows.
    pub(super) fn exports(&self, hop: &Hop) -> &[Export] {
        self.exports.get(&hop.evidence()).map_or(&[], Vec::as_slice)
    }

    /// The hops of a chain, the origin's first.
    pub(super) fn hops(&self, mut chain: ChainId) -> Vec<Hop> {
        let mut hops = Vec::new();
        while let Some((before, hop)) = self.chains[chain].last {
            hops.push(hop);
            chain = before;
        }
        hops.reverse();
        hops
    }

    /// The AS that the last hop names, and the keys that it gives.
    pub(super) fn turn(&self, chain: ChainId) -> Option<(Asn, Leaf)> {
        self.chains[chain].last.map(|(_, hop)| (hop.next, hop.leaf))
    }
}

/// What the adversary does.
impl Search<'_> {
    fn attack_from(&mut self, chain: ChainId) {
        if !std::mem::replace(&mut self.chains[chain].is_extended, true) {
            self.grew = true;
            self.send(chain);
            self.sign_as_adversary(chain);
        }
        let previous = self.bound(self.chains[chain].hash);
        let facts = self.facts.get(&previous).map_or(0, Vec::len);
        let tried = std::mem::replace(&mut self.chains[chain].facts_tried, facts);
        for number in tried..facts {
            self.grew = true;
            let fact = self.facts[&previous][number];
            self.replay(chain, fact);
        }
    }

    /// The hash under which facts are looked for: all are tried where the hash is not signed.
    fn bound(&self, hash: Id) -> Id {
        if self.format.omits(Field::Previous) || self.format.omits(Field::BurstContent) { NOTHING } else { hash }
    }

    /// Sends a chain to whoever would take it: the named AS, or any other behind ASes that do not attest.
    fn send(&mut self, chain: ChainId) {
        let Some((next, leaf)) = self.turn(chain) else { return };
        let prefixes = self.chains[chain].prefixes;
        if self.world.takes(next) {
            self.receive(chain, Path::default(), next, prefixes);
        }
        if leaf == Leaf::Keyless {
            let world = self.world;
            for asn in world.ases().filter(|asn| world.takes(*asn)) {
                for skipped in self.gaps(chain, asn) {
                    self.receive(chain, skipped, asn, prefixes);
                }
            }
        }
    }

    /// What may stand between a hop that gives no key and a hop of `asn`.
    fn gaps(&self, chain: ChainId, asn: Asn) -> Vec<Path> {
        let Some((next, Leaf::Keyless)) = self.turn(chain) else { return vec![Path::default()] };
        let path = self.chains[chain].path;
        if asn == next || path.contains(asn) {
            return vec![Path::default()];
        }
        let one = Path::of(&[next]);
        let more = self.world.ases().filter(|more| ![next, asn].contains(more) && !path.contains(*more));
        std::iter::once(one).chain(more.map(|more| one.and(more))).collect()
    }

    /// Hops of keys that the adversary has.
    fn sign_as_adversary(&mut self, chain: ChainId) {
        match self.turn(chain) {
            None if self.world.is_corrupt(ORIGIN) => {
                for list in subsets(BOTH) {
                    self.sign_as(chain, list, ORIGIN, Path::default(), Key::Of(ORIGIN));
                }
            }
            None => {}
            Some((next, Leaf::Key(key))) => {
                let has_key = match key {
                    Key::Adversary => true,
                    Key::Of(asn) => self.world.is_corrupt(asn),
                };
                if has_key {
                    self.sign_as(chain, self.chains[chain].list, next, Path::default(), key);
                }
            }
            Some((_, Leaf::Keyless)) => {
                for asn in self.world.ases().filter(|asn| self.world.is_corrupt(*asn)) {
                    for skipped in self.gaps(chain, asn) {
                        self.sign_as(chain, self.chains[chain].list, asn, skipped, Key::Of(asn));
                    }
                }
            }
        }
    }

    /// A hop of a key that the adversary has, for every next AS. It can sign whatever it likes, so that trees of its own and smaller
    /// bitmaps would give it nothing more.
    fn sign_as(&mut self, chain: ChainId, list: PrefixSet, asn: Asn, skipped: Path, key: Key) {
        let before = self.chains[chain].path.join(skipped);
        for next in self.world.ases().filter(|next| *next != asn && !before.contains(*next)) {
            for leaf in self.leaves(next) {
                let has_bitmap = self.format.version == 2 && chain != START;
                let most = if self.format.checks(Rule::BitmapsShrink) { self.chains[chain].prefixes } else { list };
                let mut hop = Hop {
                    asn,
                    signer: self.signer(chain, skipped),
                    skipped,
                    prepend: 1,
                    expired: false,
                    bitmap: if has_bitmap { most } else { 0 },
                    next,
                    leaf,
                    shape: Shape::Direct,
                    key,
                    signature: NOTHING,
                };
                if let Some(message) = self.message(self.format.version, chain, list, &hop) {
                    hop.signature = self.terms.id(Term::Signature { key, message });
                    self.add(chain, list, hop, true);
                }
            }
        }
    }

    /// The leaves that an adversary may name for an AS.
    fn leaves(&self, next: Asn) -> Vec<Leaf> {
        let own = Leaf::Key(Key::Of(next));
        let of_adversary = Leaf::Key(Key::Adversary);
        let mut leaves = match self.world.role(next) {
            Role::Corrupt => vec![Leaf::Keyless, own],
            Role::Registered if self.format.checks(Rule::KeyOfProfile) => vec![Leaf::Keyless, own],
            Role::Registered | Role::Unregistered => vec![Leaf::Keyless, own, of_adversary],
            Role::Legacy => vec![Leaf::Keyless, of_adversary],
        };
        // What others sign serves as a signature of this AS only if the AS is not signed.
        if self.format.omits(Field::Asn) && !self.world.is_registered(next) {
            let others = self.world.ases().filter(|other| *other != next && self.world.is_verifier(*other));
            leaves.extend(others.map(|other| Leaf::Key(Key::Of(other))));
        }
        leaves
    }

    fn signer(&self, chain: ChainId, skipped: Path) -> Signer {
        match self.turn(chain) {
            Some((_, Leaf::Key(_))) => Signer::Chained,
            _ if skipped.len() == 0 => Signer::Registered,
            _ => Signer::AfterGap,
        }
    }

    /// Puts a known signature of an honest AS after `chain`, with all values of the fields that it does not cover.
    fn replay(&mut self, chain: ChainId, fact: Fact) {
        let turn = self.turn(chain);
        let may_sign = match turn {
            None => fact.hop.asn == ORIGIN,
            Some((next, Leaf::Key(key))) => {
                key == fact.hop.key && (next == fact.hop.asn || self.format.omits(Field::Asn))
            }
            Some((_, Leaf::Keyless)) => self.world.is_registered(fact.hop.asn),
        };
        let asn = match turn {
            Some((next, Leaf::Key(_))) => next,
            _ => fact.hop.asn,
        };
        if !may_sign || self.chains[chain].path.contains(asn) {
            return;
        }
        let of_burst = matches!(fact.hop.shape, Shape::Burst(..)) && self.format.omits(Field::BurstContent);
        let is_free = |field| of_burst || self.format.omits(field);
        let has_bitmap = self.format.version == 2 && chain != START;
        let lists = match chain {
            START if is_free(Field::List) => subsets(BOTH).collect(),
            START => vec![fact.list],
            _ => vec![self.chains[chain].list],
        };
        let gaps = if is_free(Field::Skipped) { self.gaps(chain, asn) } else { vec![fact.hop.skipped] };
        let bitmaps = match fact.hop.bitmap {
            _ if !has_bitmap => vec![0],
            _ if is_free(Field::Bitmap) => subsets(BOTH).collect(),
            bitmap => vec![bitmap],
        };
        let prepends = if is_free(Field::Prepend) { vec![1, 2] } else { vec![fact.hop.prepend] };
        let expired = fact.hop.expired && !is_free(Field::Times);
        let nexts = self.nexts(&fact, is_free(Field::NextAsn), is_free(Field::NextKeys));
        let mut hops = vec![Hop { asn, expired, ..fact.hop }];
        let signer = |skipped| self.signer(chain, skipped);
        hops = vary(&hops, &gaps, |hop, skipped| Hop { signer: signer(skipped), skipped, ..hop });
        hops = vary(&hops, &bitmaps, |hop, bitmap| Hop { bitmap, ..hop });
        hops = vary(&hops, &prepends, |hop, prepend| Hop { prepend, ..hop });
        hops = vary(&hops, &nexts, |hop, (next, leaf, shape)| Hop { next, leaf, shape, ..hop });
        for list in lists {
            hops.iter().for_each(|hop| self.verify(chain, list, *hop));
        }
    }

    /// What may stand as the next AS in a hop with a known signature.
    fn nexts(&self, fact: &Fact, any_asn: bool, any_keys: bool) -> Vec<(Asn, Leaf, Shape)> {
        let Hop { next, leaf, shape, .. } = fact.hop;
        match shape {
            Shape::Direct | Shape::Burst(..) => {
                let ases: Vec<Asn> = if any_asn { self.world.ases().collect() } else { vec![next] };
                let leaves = |next| if any_keys { self.leaves(next) } else { vec![leaf] };
                ases.into_iter()
                    .flat_map(|next| leaves(next).into_iter().map(move |leaf| (next, leaf, shape)))
                    .collect()
            }
            Shape::Directory(opening) => {
                let slots = self.members().enumerate();
                let slots = slots.map(|(position, member)| (member, Opening { position: position as u8, ..opening }));
                let names =
                    |member| if self.format.omits(Field::SlotAsn) { self.world.ases().collect() } else { vec![member] };
                slots
                    .flat_map(|(member, opening)| {
                        let (leaf, shape) = (self.offered(member), Shape::Directory(opening));
                        names(member).into_iter().map(move |next| (next, leaf, shape))
                    })
                    .collect()
            }
            Shape::Neighbours(..) => self.openings.clone(),
        }
    }

    /// Adds a hop of an honest AS to a chain of the adversary's if its signature is right for what stands there.
    fn verify(&mut self, chain: ChainId, list: PrefixSet, hop: Hop) {
        let Some(message) = self.message(self.format.version, chain, list, &hop) else { return };
        if self.terms.id(Term::Signature { key: hop.key, message }) == hop.signature {
            self.add(chain, list, hop, true);
        }
    }
}

/// Each of `hops` with each of `values`.
fn vary<T: Copy>(hops: &[Hop], values: &[T], with: impl Fn(Hop, T) -> Hop) -> Vec<Hop> {
    hops.iter().flat_map(|hop| values.iter().map(|value| with(*hop, *value))).collect()
}

/// What the format says.
impl Search<'_> {
    /// What `hop` signs after `chain`; `None` if its opening does not lead to a root that anyone signs.
    fn message(&mut self, version: u8, chain: ChainId, list: PrefixSet, hop: &Hop) -> Option<Id> {
        let content = self.content(version, chain, list, hop)?;
        let Shape::Burst(salt, opening) = hop.shape else { return Some(content) };
        let leaf = self.burst_leaf(salt, content);
        let root = self.terms.root(opening, leaf)?;
        Some(self.burst(version, root))
    }

    fn burst_leaf(&mut self, salt: Salt, content: Id) -> Id {
        let content = self.format.signs(Field::BurstContent, content).unwrap_or(NOTHING);
        self.terms.id(Term::BurstLeaf { salt, content })
    }

    fn burst(&mut self, version: u8, root: Id) -> Id {
        self.terms.id(Term::Burst { version: self.format.signs(Field::Version, version), root })
    }

    fn content(&mut self, version: u8, chain: ChainId, list: PrefixSet, hop: &Hop) -> Option<Id> {
        let commitment = self.commitment(hop)?;
        let format = self.format;
        let Chain { hash, hops, .. } = self.chains[chain];
        let is_root = matches!(hop.shape, Shape::Directory(_) | Shape::Neighbours(..));
        let has_bitmap = version == 2 && chain != START;
        Some(self.terms.id(Term::Content(Content {
            version: format.signs(Field::Version, version),
            index: format.signs(Field::Index, hops),
            signer: format.signs(Field::Signer, hop.signer),
            is_root: format.signs(Field::IsRoot, is_root),
            prepend: format.signs(Field::Prepend, hop.prepend),
            asn: format.signs(Field::Asn, hop.asn),
            expired: format.signs(Field::Times, hop.expired),
            bitmap: format.signs(Field::Bitmap, hop.bitmap).filter(|_| has_bitmap),
            previous: format.signs(Field::Previous, hash).unwrap_or(NOTHING),
            commitment,
            list: format.signs(Field::List, list),
            skipped: format.signs(Field::Skipped, hop.skipped),
        })))
    }

    /// What stands for the next AS in the content.
    fn commitment(&mut self, hop: &Hop) -> Option<Id> {
        let Hop { next, leaf, shape, .. } = *hop;
        match shape {
            Shape::Direct | Shape::Burst(..) => {
                let (next, leaf) = (self.format.signs(Field::NextAsn, next), self.format.signs(Field::NextKeys, leaf));
                Some(self.terms.id(Term::Direct { next, leaf }))
            }
            Shape::Directory(opening) => {
                let slot = self.slot(next, leaf);
                self.terms.root(opening, slot)
            }
            Shape::Neighbours(salt, opening) => {
                if self.format.version == 2 && self.format.checks(Rule::SlotsOnly) {
                    return None;
                }
                let neighbour = self.terms.id(Term::Neighbour { salt, next, leaf });
                self.terms.root(opening, neighbour)
            }
        }
    }

    fn slot(&mut self, next: Asn, leaf: Leaf) -> Id {
        let next = self.format.signs(Field::SlotAsn, next);
        self.terms.id(Term::Slot { next, leaf })
    }

    /// Adds a chain of one more hop, whose signature is right, if the verifier's other rules allow it.
    fn add(&mut self, chain: ChainId, list: PrefixSet, hop: Hop, is_adversarys: bool) -> Option<ChainId> {
        if !self.is_allowed(chain, list, &hop) {
            return None;
        }
        if let Some(&id) = self.ids.get(&(chain, list, hop)) {
            if is_adversarys && !self.chains[id].is_adversarys {
                self.chains[id].is_adversarys = true;
                self.grew = true;
            }
            return Some(id);
        }
        let content = self.content(self.format.version, chain, list, &hop)?;
        let octets = self.format.signs(Field::Octets, hop.octets());
        let hash = self.terms.id(Term::Chain { content, octets });
        let before = &self.chains[chain];
        let added = Chain {
            last: Some((chain, hop)),
            list,
            prefixes: if hop.bitmap == 0 { list } else { hop.bitmap },
            path: (0..hop.prepend).fold(before.path.join(hop.skipped), |path, _| path.and(hop.asn)),
            hash,
            hops: before.hops + 1,
            has_expired: before.has_expired || hop.expired,
            is_adversarys,
            is_extended: false,
            facts_tried: 0,
        };
        let id = self.chains.len();
        assert!(id < MAX_CHAINS, "the world has too many chains");
        self.chains.push(added);
        self.ids.insert((chain, list, hop), id);
        self.grew = true;
        Some(id)
    }

    /// The verifier's rules but those of signature and times.
    fn is_allowed(&self, chain: ChainId, list: PrefixSet, hop: &Hop) -> bool {
        let before = &self.chains[chain];
        let is_keys = match self.turn(chain) {
            None => hop.asn == ORIGIN && self.world.is_registered(ORIGIN) && hop.key == Key::Of(ORIGIN),
            Some((next, Leaf::Key(key))) => {
                let is_profiles = key == Key::Of(next) || !self.world.is_registered(next);
                hop.asn == next && hop.key == key && (is_profiles || !self.format.checks(Rule::KeyOfProfile))
            }
            Some((next, Leaf::Keyless)) => {
                let starts = *hop.skipped.entries().first().unwrap_or(&hop.asn);
                starts == next && self.world.is_registered(hop.asn) && hop.key == Key::Of(hop.asn)
            }
        };
        let has_bitmap = self.format.version == 2 && chain != START;
        let within = if self.format.checks(Rule::BitmapsShrink) { before.prefixes } else { list };
        let is_bitmap = (hop.bitmap != 0) == has_bitmap && hop.bitmap & !within == 0;
        let path = before.path.join(hop.skipped);
        let is_loop = path.contains(hop.asn) || path.contains(hop.next) || hop.asn == hop.next;
        is_keys && is_bitmap && !is_loop && hop.skipped.len() <= MAX_SKIPPED
    }
}

/// What honest ASes do.
impl Search<'_> {
    /// A route reaches `receiver`: a chain, and entries of the path behind it.
    fn receive(&mut self, chain: ChainId, behind: Path, receiver: Asn, prefixes: PrefixSet) {
        let path = self.chains[chain].path.join(behind);
        let known = self.received.get(&(chain, behind, receiver)).copied().unwrap_or(0);
        if path.contains(receiver) || prefixes & !known == 0 {
            return;
        }
        self.received.insert((chain, behind, receiver), prefixes | known);
        self.grew = true;
        let Some((next, leaf)) = self.turn(chain) else { return };
        let is_turn = behind.len() == 0 && next == receiver;
        match self.world.role(receiver) {
            Role::Corrupt => self.learn(chain),
            // Legacy ASes verify nothing.
            Role::Registered | Role::Unregistered if self.chains[chain].has_expired => {}
            Role::Registered if leaf == Leaf::Keyless => {
                self.sign_onward(chain, self.chains[chain].list, receiver, behind, prefixes);
            }
            Role::Registered | Role::Unregistered if leaf == Leaf::Key(Key::Of(receiver)) && is_turn => {
                self.sign_onward(chain, self.chains[chain].list, receiver, behind, prefixes);
            }
            Role::Legacy | Role::Unregistered if leaf == Leaf::Keyless && behind.len() < MAX_SKIPPED => {
                for next in self.neighbours(receiver, path) {
                    self.receive(chain, behind.and(receiver), next, prefixes);
                }
            }
            _ => {}
        }
    }

    fn neighbours(&self, asn: Asn, path: Path) -> Vec<Asn> {
        let is_neighbour = |next: &Asn| *next != asn && !path.contains(*next) && self.world.has_session(asn, *next);
        self.world.ases().filter(is_neighbour).collect()
    }

    fn members(&self) -> impl Iterator<Item = Asn> + use<> {
        let members = self.world.members;
        self.world.ases().filter(move |asn| members >> asn & 1 == 1)
    }

    /// The leaf by which an honest AS names a neighbour, and a directory its member.
    fn offered(&self, asn: Asn) -> Leaf {
        match self.world.role(asn) {
            Role::Legacy => Leaf::Keyless,
            Role::Corrupt if !self.world.corrupt_offer_keys => Leaf::Keyless,
            _ => Leaf::Key(Key::Of(asn)),
        }
    }

    /// `asn` signs `chain` on for each neighbour, for every set of `prefixes`.
    fn sign_onward(&mut self, chain: ChainId, list: PrefixSet, asn: Asn, skipped: Path, prefixes: PrefixSet) {
        let before = self.chains[chain].path.join(skipped);
        // The origin's list is what it exports.
        let sets: Vec<PrefixSet> = if chain == START { vec![list] } else { subsets(prefixes).collect() };
        let mut neighbours: Vec<Option<Asn>> = self.neighbours(asn, before).into_iter().map(Some).collect();
        if self.world.is_member(asn) {
            neighbours.push(None);
        }
        let exports = sets.iter().flat_map(|prefixes| neighbours.iter().map(|next| (*prefixes, *next)));
        let exports = exports.map(|(prefixes, next)| self.export(asn, before, prefixes, next));
        let exports = exports.filter(|export| !self.is_excepted(export));
        let (at_exchange, to_neighbours): (Vec<Export>, Vec<Export>) =
            exports.partition(|export| export.next.is_none());
        for export in &to_neighbours {
            if self.world.direct {
                self.announce(chain, list, skipped, export, Shape::Direct);
            }
        }
        if self.world.many && self.format.version == 2 {
            self.announce_in_burst(chain, list, skipped, &to_neighbours);
        }
        if self.world.many && (self.format.version == 1 || self.world.also_version_1 && chain == START) {
            self.announce_under_one_tree(chain, list, skipped, &to_neighbours);
        }
        for export in &at_exchange {
            self.announce_at_exchange(chain, list, skipped, export);
        }
    }

    fn export(&self, asn: Asn, before: Path, prefixes: PrefixSet, next: Option<Asn>) -> Export {
        let has_p = prefixes & P != 0;
        let expired = has_p && self.world.expired == Some(asn);
        let withdrawn = has_p && self.world.withdrawn == Some(asn);
        Export { asn, before, prefixes, next, prepend: 1, expired, withdrawn }
    }

    /// Whether the world excepts the export.
    fn is_excepted(&self, export: &Export) -> bool {
        if export.next.is_some_and(|next| self.world.is_denied(export.asn, next, export.prefixes)) {
            return true;
        }
        let Some((claim, also_at_exchange)) = self.world.not_exported else { return false };
        let is_claims = claim.asn == export.asn && claim.before == export.before && claim.prepend == export.prepend;
        is_claims
            && export.prefixes & claim.prefix != 0
            && match export.next {
                Some(next) => next == claim.next,
                None => also_at_exchange && self.world.is_member(claim.next),
            }
    }

    fn hop(&self, chain: ChainId, skipped: Path, export: &Export, next: Asn, shape: Shape) -> Hop {
        let has_bitmap = self.format.version == 2 && chain != START;
        Hop {
            asn: export.asn,
            signer: self.signer(chain, skipped),
            skipped,
            prepend: export.prepend,
            expired: export.expired,
            bitmap: if has_bitmap { export.prefixes } else { 0 },
            next,
            leaf: self.offered(next),
            shape,
            key: Key::Of(export.asn),
            signature: NOTHING,
        }
    }

    fn announce(&mut self, chain: ChainId, list: PrefixSet, skipped: Path, export: &Export, shape: Shape) {
        let Some(next) = export.next else { return };
        let hop = self.hop(chain, skipped, export, next, shape);
        if let Some(message) = self.message(self.format.version, chain, list, &hop) {
            self.send_signed(chain, list, hop, message, export);
        }
    }

    /// Signs `message` for `export`, and sends the hop to the AS that it names.
    fn send_signed(&mut self, chain: ChainId, list: PrefixSet, mut hop: Hop, message: Id, export: &Export) {
        hop.signature = self.terms.id(Term::Signature { key: hop.key, message });
        let exports = self.exports.entry(hop.evidence()).or_default();
        if !exports.contains(export) {
            exports.push(*export);
        }
        if let Some(onward) = self.add(chain, list, hop, false) {
            self.receive(onward, Path::default(), hop.next, export.prefixes);
        }
    }

    /// One signature over the contents for all neighbours and sets of prefixes, each with a salt of its own.
    fn announce_in_burst(&mut self, chain: ChainId, list: PrefixSet, skipped: Path, exports: &[Export]) {
        let mut hops = Vec::new();
        let mut leaves = Vec::new();
        for export in exports {
            let Some(next) = export.next else { continue };
            let hop = self.hop(chain, skipped, export, next, Shape::Direct);
            let Some(content) = self.content(2, chain, list, &hop) else { continue };
            self.salts += 1;
            let salt = Salt(self.salts);
            leaves.push(self.burst_leaf(salt, content));
            hops.push((hop, salt, export));
        }
        let tree = self.terms.id(Term::Tree(leaves));
        let message = self.burst(2, tree);
        for (position, (hop, salt, export)) in hops.into_iter().enumerate() {
            let shape = Shape::Burst(salt, Opening { tree, position: position as u8 });
            self.send_signed(chain, list, Hop { shape, ..hop }, message, export);
        }
    }

    /// Version 1: the tree of all neighbours, the same for all routes.
    fn announce_under_one_tree(&mut self, chain: ChainId, list: PrefixSet, skipped: Path, exports: &[Export]) {
        for export in exports {
            let Some(next) = export.next else { continue };
            let all: Vec<Asn> = self.world.ases().filter(|other| *other != export.asn).collect();
            let salt = |next: Asn| Salt(u32::MAX - u32::from(export.asn) * 8 - u32::from(next));
            let leaf = |next: Asn| Term::Neighbour { salt: salt(next), next, leaf: self.offered(next) };
            let leaves: Vec<Term> = all.iter().map(|next| leaf(*next)).collect();
            let leaves = leaves.into_iter().map(|leaf| self.terms.id(leaf)).collect();
            let tree = self.terms.id(Term::Tree(leaves));
            let position = all.iter().position(|other| *other == next).unwrap_or(0) as u8;
            let shape = Shape::Neighbours(salt(next), Opening { tree, position });
            let hop = self.hop(chain, skipped, export, next, shape);
            if self.format.version == 1 {
                self.announce(chain, list, skipped, export, shape);
            } else {
                self.sign_as_version_1(chain, list, hop, tree, export);
            }
        }
    }

    /// What a verifier of version 2 refuses, but what the adversary may know.
    fn sign_as_version_1(&mut self, chain: ChainId, list: PrefixSet, mut hop: Hop, tree: Id, export: &Export) {
        let commitment = tree;
        let format = self.format;
        let content = Content {
            version: format.signs(Field::Version, 1),
            index: Some(0),
            signer: Some(hop.signer),
            is_root: Some(true),
            prepend: Some(hop.prepend),
            asn: Some(hop.asn),
            expired: Some(hop.expired),
            bitmap: None,
            previous: self.chains[chain].hash,
            commitment,
            list: Some(list),
            skipped: Some(hop.skipped),
        };
        let message = self.terms.id(Term::Content(content));
        hop.signature = self.terms.id(Term::Signature { key: hop.key, message });
        self.exports.entry(hop.evidence()).or_default().push(*export);
        if self.world.is_corrupt(hop.next) {
            self.learn_hop(NOTHING, list, hop);
        }
    }

    fn announce_at_exchange(&mut self, chain: ChainId, list: PrefixSet, skipped: Path, export: &Export) {
        let members: Vec<Asn> = self.members().collect();
        let slots = members.iter().map(|member| self.slot(*member, self.offered(*member))).collect();
        let tree = self.terms.id(Term::Tree(slots));
        for (position, &member) in members.iter().enumerate() {
            if member == export.asn || export.before.contains(member) {
                continue;
            }
            let shape = Shape::Directory(Opening { tree, position: position as u8 });
            let hop = self.hop(chain, skipped, export, member, shape);
            if let Some(message) = self.message(self.format.version, chain, list, &hop) {
                self.send_signed(chain, list, hop, message, export);
            }
        }
    }

    /// A corrupt AS received the chain: the adversary knows its signatures and openings.
    fn learn(&mut self, mut chain: ChainId) {
        while let Some((before, hop)) = self.chains[chain].last {
            let previous = self.bound(self.chains[before].hash);
            self.learn_hop(previous, self.chains[chain].list, hop);
            chain = before;
        }
    }

    fn learn_hop(&mut self, previous: Id, list: PrefixSet, hop: Hop) {
        let is_honest = matches!(hop.key, Key::Of(asn) if !self.world.is_corrupt(asn));
        if !is_honest || self.known.insert((hop.signature, hop), ()).is_some() {
            return;
        }
        self.grew = true;
        self.facts.entry(previous).or_default().push(Fact { hop, list });
        let opening = (hop.next, hop.leaf, hop.shape);
        if matches!(hop.shape, Shape::Neighbours(..)) && !self.openings.contains(&opening) {
            self.openings.push(opening);
            // What was tried before may succeed with it.
            self.chains.iter_mut().for_each(|chain| chain.facts_tried = 0);
        }
    }
}
