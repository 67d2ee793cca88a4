//! The key of the order of candidates ([`crate::order`]), which both parties have and no member.
//!
//! When their link comes up each party commits, in its hello, to a share that it has drawn for this link alone, and shows which key it has.
//! Before anything else is said, this is settled: if both have the same key, it stays; if one of them has none, as after the loss of its
//! store, it gets the other one's, so that nothing is numbered anew; if neither has one, or they have different ones, as after one came
//! back from an old copy, both open their shares, and the key follows from these. A party that cannot open what it committed to is named.
//!
//! A key belongs to the number of the order in both configurations, and counts until both operators change that. It is written before the
//! write of any batch, and a batch is delivered only once it is durable at both: so both stores have the key before anybody is listed
//! anything in its order. A process that ends before is one without a key, and gets it when the link is up again.

use super::PartyEvent;
use super::state::State;
use super::store;
use crate::frames::PartyFrame;
use crate::order::{OrderDraw, OrderKey};
use crate::rng::Rng;
use wayleave_crypto::secret::Seed;

/// What the peer party's hello says of the order.
#[derive(Clone, Copy)]
pub(super) struct PeerOrder {
    /// The number in its configuration.
    pub number: u32,
    pub commitment: [u8; 32],
    pub has_order: Option<[u8; 32]>,
}

/// What is awaited before the parties compare anything else.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Awaited {
    #[default]
    Hello,
    /// The peer party's share.
    Share,
    /// Its key.
    Key,
    Nothing,
}

pub(super) struct Order {
    /// The key of the number in this party's configuration.
    key: Option<OrderKey>,
    /// Of the link to the peer party.
    draw: Option<OrderDraw>,
    awaited: Awaited,
}

impl Order {
    /// `key`: what the store held, if it is of the number in the configuration.
    pub(super) fn new(key: Option<OrderKey>) -> Self {
        Self { key, draw: None, awaited: Awaited::Hello }
    }

    /// Whether both parties have the same key.
    pub(super) fn is_agreed(&self) -> bool {
        self.awaited == Awaited::Nothing
    }

    /// A link to the peer party is up. Returns what `party` says of the order in its hello with this nonce.
    pub(super) fn offer(&mut self, rng: &mut Rng, party: u8, nonce: &[u8; 16]) -> ([u8; 32], Option<[u8; 32]>) {
        let mut drawn = rng.draw(&[b"order", nonce]);
        let draw = OrderDraw { share: Seed::new(drawn.bytes()), opening: drawn.bytes() };
        let commitment = draw.commitment(party, nonce);
        (self.draw, self.awaited) = (Some(draw), Awaited::Hello);
        (commitment, self.key.as_ref().map(|key| key.check(party, nonce)))
    }
}

impl State {
    /// The peer party's hello has come, with this nonce: says what it has to know.
    pub(super) fn greet_order(&mut self, theirs: PeerOrder, nonce: &[u8; 16]) {
        let party = self.env.config.number.peer();
        let (awaited, frame) = match (&self.order.key, theirs.has_order) {
            (Some(key), Some(check)) if key.check(party, nonce) == check => (Awaited::Nothing, None),
            (Some(key), None) => (Awaited::Nothing, Some(PartyFrame::OrderKey { key: key.secret().clone() })),
            (None, Some(_)) => (Awaited::Key, None),
            (None, None) | (Some(_), Some(_)) => {
                let open =
                    |draw: &OrderDraw| PartyFrame::OrderShare { opening: draw.opening, share: draw.share.clone() };
                (Awaited::Share, self.order.draw.as_ref().map(open))
            }
        };
        self.order.awaited = awaited;
        frame.iter().for_each(|frame| self.send_to_peer(frame));
    }

    /// The peer party opens its share.
    ///
    /// # Errors
    /// How it erred.
    pub(super) fn order_opened(&mut self, opening: [u8; 32], share: Seed) -> Result<(), &'static str> {
        let hello = self.links.peer_hello().filter(|_| self.order.awaited == Awaited::Share);
        let own = self.order.draw.as_ref();
        let (hello, own) = hello.zip(own).ok_or("a share of the order of candidates that nobody awaits")?;
        let theirs = OrderDraw { share, opening };
        if !theirs.opens(&hello.order.commitment, hello.party, &hello.nonce) {
            return Err("its share of the order of candidates is not the one that it committed to");
        }
        let shares = if self.env.is_party_one() { [&own.share, &theirs.share] } else { [&theirs.share, &own.share] };
        let key = OrderKey::from_shares(&self.env.config.exchange, shares);
        self.adopt_order(key, true);
        Ok(())
    }

    /// The peer party says its key.
    ///
    /// # Errors
    /// How it erred.
    pub(super) fn order_told(&mut self, key: &Seed) -> Result<(), &'static str> {
        let hello = self.links.peer_hello().filter(|_| self.order.awaited == Awaited::Key);
        let hello = hello.ok_or("a key of the order of candidates that nobody awaits")?;
        let key = OrderKey::new(*key.expose());
        if hello.order.has_order != Some(key.check(hello.party, &hello.nonce)) {
            return Err("its key of the order of candidates is not the one that its hello shows");
        }
        self.adopt_order(key, false);
        Ok(())
    }

    fn adopt_order(&mut self, key: OrderKey, is_drawn: bool) {
        let number = self.env.config.order;
        self.persist(vec![store::order_change(number, &key)]);
        self.objects.set_order(key.clone());
        (self.order.key, self.order.awaited) = (Some(key), Awaited::Nothing);
        self.event(PartyEvent::Order { number, is_drawn });
    }
}
