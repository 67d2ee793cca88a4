//! What members hold, as follows from the ticks that came to them: whatever they could open of it.

use std::collections::{BTreeMap, BTreeSet};

use wayleave_lab::sim::{Node, PARTIES};
use wayleave_route_server::digests::{self, BucketSet, InstanceHash, ShortName};
use wayleave_route_server::frames::{Candidate, FromMember, SessionId, Tick, ToMember};
use wayleave_route_server::object::Handle;

/// All members.
#[derive(Default)]
pub struct ExpectedHoldings {
    members: BTreeMap<u32, HeldByOne>,
    /// Times that a member said what it holds by buckets.
    pub compared: usize,
    /// Times that a member named it.
    pub named: usize,
    /// Whether two objects, or two instances, were in one bucket.
    pub shares_a_bucket: bool,
}

#[derive(Default)]
struct HeldByOne {
    parts: [Vec<u8>; 2],
    halves: BTreeMap<u64, [Option<Box<Tick>>; 2]>,
    last: u64,
    is_synced: bool,
    session: SessionId,
    /// Whether what it lacks is being sent.
    is_served: bool,
    /// What it was asked last: the number, and of which buckets from where on.
    asked: BTreeMap<u32, (BucketSet, [u8; 32])>,
    objects: BTreeSet<Handle>,
    instances: BTreeMap<InstanceHash, Vec<Candidate>>,
    /// Buckets of objects and of instances with something in them, after each batch.
    buckets: BTreeMap<u64, [Vec<u16>; 2]>,
}

impl ExpectedHoldings {
    /// A frame arrives.
    ///
    /// # Panics
    /// If it is a member's buckets, and they are not those of what came to it.
    pub fn frame(&mut self, from: Node, to: Node, bytes: &[u8]) {
        match (from, to) {
            (Node::Party(_), Node::Member(slot)) => {
                let party = usize::from(from == PARTIES[1]);
                self.members.entry(slot).or_default().party_sent(party, bytes, &mut self.shares_a_bucket);
            }
            (Node::Member(slot), party) if party == PARTIES[0] => self.member_sent(slot, bytes),
            _ => {}
        }
    }

    fn member_sent(&mut self, slot: u32, bytes: &[u8]) {
        let member = self.members.entry(slot).or_default();
        match FromMember::decode(bytes) {
            Ok(FromMember::Hello { session, .. }) => {
                (member.parts, member.halves) = Default::default();
                (member.is_synced, member.is_served, member.session) = (false, false, session);
            }
            // It has just started.
            Ok(FromMember::Holds { seq: 0, .. }) => {
                *member = HeldByOne { session: member.session, ..HeldByOne::default() };
            }
            Ok(FromMember::Buckets { seq, objects, instances, .. }) => {
                let said = [objects, instances].map(|all| all.iter().map(|(bucket, _)| *bucket).collect::<Vec<u16>>());
                // Before the first batch it holds nothing.
                let held = member.buckets.get(&seq).cloned().or_else(|| (seq == 0).then(Default::default));
                assert_eq!(Some(&said), held.as_ref(), "member {slot}, batch {seq}");
                let length = 1 + 8 + 16 + 8 + 16 + said.iter().map(|buckets| 4 + 18 * buckets.len()).sum::<usize>();
                assert_eq!(bytes.len(), length, "member {slot}");
                self.compared += 1;
            }
            Ok(FromMember::ObjectNames { question, through, names }) => {
                let named = names.iter().map(|(name, _)| *name).collect();
                let held: Vec<[u8; 32]> = member.objects.iter().map(|handle| handle.0).collect();
                member.check_names(question, (&held, through.0), &named);
                self.named += 1;
            }
            Ok(FromMember::InstanceNames { question, through, names, open }) => {
                let named = names.iter().chain(&open).copied().collect();
                let held: Vec<[u8; 32]> = member.instances.keys().copied().collect();
                member.check_names(question, (&held, through), &named);
                self.named += 1;
            }
            _ => {}
        }
    }
}

impl HeldByOne {
    /// What it names is what came to it, in the buckets that it was asked for.
    fn check_names(&mut self, question: u32, (held, through): (&[[u8; 32]], [u8; 32]), named: &BTreeSet<ShortName>) {
        let (buckets, from) = self.asked.remove(&question).expect("it was asked");
        let is_asked = |hash: &&[u8; 32]| (from..=through).contains(*hash) && buckets.has(digests::bucket_of(hash));
        let held: BTreeSet<ShortName> =
            held.iter().filter(is_asked).map(|hash| digests::name(&self.session, hash)).collect();
        assert_eq!(*named, held);
    }

    fn party_sent(&mut self, party: usize, bytes: &[u8], shares_a_bucket: &mut bool) {
        match ToMember::decode(bytes) {
            Ok(ToMember::Part { last, bytes }) => {
                self.parts[party].extend_from_slice(&bytes);
                if last {
                    let whole = std::mem::take(&mut self.parts[party]);
                    self.party_sent(party, &whole, shares_a_bucket);
                }
            }
            Ok(ToMember::NameObjects { question, buckets, from, .. }) => {
                self.asked.insert(question, (buckets, from.0));
            }
            Ok(ToMember::NameInstances { question, buckets, from, .. }) => {
                self.asked.insert(question, (buckets, from));
            }
            Ok(ToMember::Tick(tick)) if tick.seq > self.last => {
                let seq = tick.seq;
                self.halves.entry(seq).or_default()[party] = Some(tick);
                if let [Some(_), Some(_)] = self.halves[&seq]
                    && let Some([Some(tick), _]) = self.halves.remove(&seq)
                {
                    self.tick(&tick, shares_a_bucket);
                }
            }
            _ => {}
        }
    }

    fn tick(&mut self, tick: &Tick, shares_a_bucket: &mut bool) {
        self.last = tick.seq;
        let begins = tick.slice.as_ref().is_some_and(|slice| slice.begins.is_some());
        let is_ignored = !(begins || self.is_served) && (!self.is_synced || tick.slice.is_some());
        if !is_ignored {
            self.is_served |= begins;
            self.apply(tick);
        }
        let [objects, instances] = self.bucket_numbers();
        *shares_a_bucket |= objects.len() < self.objects.len() || instances.len() < self.instances.len();
        self.buckets.insert(tick.seq, [objects, instances]);
    }

    fn apply(&mut self, tick: &Tick) {
        let dead: BTreeSet<&Candidate> = tick.dead.iter().collect();
        self.instances.retain(|_, candidates| !candidates.iter().any(|candidate| dead.contains(candidate)));
        self.objects.retain(|handle| !tick.gone.contains(handle));
        self.objects.extend(tick.deliver.iter().map(|deliver| deliver.handle));
        if let Some(slice) = &tick.slice {
            let is_gone = |hash: &[u8; 32], gone: &[ShortName]| gone.contains(&digests::name(&self.session, hash));
            self.objects.retain(|handle| !is_gone(&handle.0, &slice.gone));
            self.instances.retain(|hash, _| !is_gone(hash, &slice.gone_instances));
            self.is_served &= slice.ends.is_none();
            self.is_synced |= slice.own_ends;
        }
        for candidates in &tick.instances {
            self.instances.retain(|_, other| !other.iter().any(|candidate| candidates.contains(candidate)));
            self.instances.insert(digests::instance(candidates), candidates.to_vec());
        }
    }

    fn bucket_numbers(&self) -> [Vec<u16>; 2] {
        let distinct = |hashes: &mut dyn Iterator<Item = &[u8; 32]>| {
            hashes.map(digests::bucket_of).collect::<BTreeSet<u16>>().into_iter().collect()
        };
        [distinct(&mut self.objects.iter().map(|handle| &handle.0)), distinct(&mut self.instances.keys())]
    }
}
