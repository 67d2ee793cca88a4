//! Changes of the member set.

use wayleave_crypto::sign::SigningKey;
use wayleave_member::Input as MemberInput;
use wayleave_route_server::data::{Data, DataObject, MemberLists};
use wayleave_route_server::directory::{Change as SetChange, Claim, Consent, DataRules, Directory, MemberSet};
use wayleave_route_server::member::OfferedData;

use super::keys::{admit, claim_as, seed_of};
use super::{EXCHANGE, Input, Node, PARTIES, Sim, attestation, member_asn, member_key, operator_key, operator_keys};

impl Sim {
    /// A member joins: both operators sign a longer set. Returns its slot.
    ///
    /// # Panics
    /// If the directory is full.
    pub fn join(&mut self) -> u32 {
        let slot = u32::try_from(self.set.slots.len()).expect("few members");
        self.publish(PARTIES[0], admit(&self.directory, &self.setup, slot..slot + 1));
        self.start(Node::Member(slot));
        slot
    }

    /// A further slot of the AS in slot `of` joins, for which that slot's key signed. Returns it.
    ///
    /// # Panics
    /// If the directory is full, or `of` may not sign.
    pub fn join_as(&mut self, of: u32) -> u32 {
        self.join_further(of, Some(Consent::Further))
    }

    /// A further slot of the AS in slot `of` joins, for which nobody signed. Returns it.
    ///
    /// # Panics
    /// If the directory is full.
    pub fn join_held_as(&mut self, of: u32) -> u32 {
        self.join_further(of, None)
    }

    fn join_further(&mut self, of: u32, consent: Option<Consent>) -> u32 {
        let slot = u32::try_from(self.set.slots.len()).expect("few members");
        let seed = self.setup.seed;
        let mut request = claim_as(&self.setup, slot, member_asn(of)).sign(EXCHANGE, &member_key(seed, slot));
        if let Some(consent) = consent {
            request = request.with_consent(consent, &member_key(seed, of));
        }
        let join = self.directory.requested(&request, self.setup.max_prefix).expect("of this exchange");
        self.change_set(vec![join]);
        self.start(Node::Member(slot));
        slot
    }

    /// A member leaves the exchange: one of the operators, in turn, removes it.
    ///
    /// # Panics
    /// If it has left before.
    pub fn leave(&mut self, slot: u32) {
        self.shut_router_for_good(slot);
        let party = PARTIES[slot as usize % 2];
        let Node::Party(number) = party else { return };
        let removed = self.directory.without(slot, &operator_key(self.setup.seed, number));
        self.publish(party, removed.expect("an active slot"));
        self.kill(Node::Member(slot));
        self.remove_port(slot);
        self.routers.remove(&slot);
        self.tables.remove(&slot);
    }

    /// Both parties' files get a newer directory, and one party reads its file again.
    pub fn publish(&mut self, party: Node, directory: Directory) {
        self.set = MemberSet::clone(directory.set());
        self.give_members(party, &directory.encode());
        self.directory = directory;
    }

    /// The key of slot `by` signs for a slot of its AS that is held.
    ///
    /// # Panics
    /// If it may not, or the other is not held.
    pub fn endorse(&mut self, slot: u32, by: u32) {
        let claim = self.directory.claim(slot).expect("a slot");
        let signature = Consent::Further.sign(EXCHANGE, claim, &member_key(self.setup.seed, by));
        self.change_set(vec![SetChange::Endorse { slot, by, signature }]);
    }

    /// The set lists other attestation keys of the member in `slot`, which does not have them.
    ///
    /// # Panics
    /// If the member has left.
    pub fn change_attest_keys(&mut self, slot: u32) {
        let (seed, before) = (self.setup.seed, self.directory.claim(slot).expect("a slot").clone());
        let attest = attestation::listed_keys(seed + 1, before.asn);
        let claim = Claim { serial: before.serial + 1, attest, ..before };
        let key = member_key(seed, slot);
        let request = claim.sign(EXCHANGE, &key).with_consent(Consent::Renewal, &key);
        let renewal = self.directory.requested(&request, 0).expect("of this exchange");
        self.change_set(vec![renewal]);
    }

    /// The operators let the member in `slot` announce one prefix more.
    ///
    /// # Panics
    /// If the member has left.
    pub fn change_limit(&mut self, slot: u32) {
        let before = self.set.active(slot).expect("it is active");
        let (addresses, max_prefix) = (before.addresses.clone(), before.max_prefix + 1);
        self.change_set(vec![SetChange::Amend { slot, addresses, max_prefix }]);
    }

    /// The exchange has data from now on, which limit nothing yet, and whose lists nobody has to be in.
    ///
    /// # Panics
    /// If it has.
    pub fn begin_data(&mut self) {
        let keys = self.machine_keys().map(|key| key.verifying_key().to_bytes());
        let rules = DataRules {
            keys,
            irr_origin: false,
            irr_prefix: false,
            rpki_before_irr: false,
            refuse_without_list: false,
        };
        self.change_set(vec![SetChange::Data(Some(rules))]);
    }

    /// Both operators' machines sign data with a number, that limit how many prefixes of IPv4 and of IPv6 members announce, and the
    /// members in `to` get them.
    ///
    /// # Panics
    /// If the exchange has no data.
    pub fn give_limits(&mut self, number: u64, limits: &[(u32, [u32; 2])], to: &[u32]) {
        let list = |(slot, max_prefixes): &(u32, [u32; 2])| {
            (member_asn(*slot), MemberLists { max_prefixes: *max_prefixes, ..MemberLists::default() })
        };
        let (exchange, members) = (self.directory.origin(), limits.iter().map(list).collect());
        let data = Data { exchange, number, made: 0, until: u64::MAX, members, ..Data::default() };
        let mut object = DataObject::new(data).expect("within its limits");
        let rules = self.set.data.clone().expect("the exchange has data");
        for key in self.machine_keys() {
            object.sign(&exchange, &rules, &key).expect("a machine key");
        }
        for slot in to {
            let offered = OfferedData::of(object.encode()).expect("data");
            self.inputs.push_back((Node::Member(*slot), Input::Member(MemberInput::Data(Box::new(offered)))));
        }
    }

    fn machine_keys(&self) -> [SigningKey; 2] {
        [1, 2].map(|party| SigningKey::from_seed(&seed_of(self.setup.seed, b"machine", party)))
    }

    fn change_set(&mut self, changes: Vec<SetChange>) {
        let [one, two] = operator_keys(self.setup.seed);
        let next = self.directory.signed_by_both(changes, [&one, &two]).expect("a sound set");
        self.publish(PARTIES[0], next);
    }
}
