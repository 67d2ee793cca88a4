//! Changes of the member set.

use wayleave_route_server::directory::{Change as SetChange, Claim, Consent, Directory, MemberSet};

use super::keys::{admit, claim_as};
use super::{EXCHANGE, Node, PARTIES, Sim, attestation, member_asn, member_key, operator_key, operator_keys};

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

    fn change_set(&mut self, changes: Vec<SetChange>) {
        let [one, two] = operator_keys(self.setup.seed);
        let next = self.directory.signed_by_both(changes, [&one, &two]).expect("a sound set");
        self.publish(PARTIES[0], next);
    }
}
