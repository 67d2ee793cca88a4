//! The member's own objects: announcements and withdrawals, as they are made.
//!
//! An object is made in one step, and all the state with it: its prefixes are no longer dirty, they are in flight, and what was
//! last announced of them is what the object says. So a version is taken, and randomness drawn, only where the object certainly
//! leaves: [`Announcements::describe`] asks for the window and for credit first. The one exception is a blob that the parties
//! would not take, whose length is known only once it is sealed: its version is never used.

use wayleave_bgp::{Attributes, Nlri};
use wayleave_core::wire;
use wayleave_crypto::secret::{Key128, Seed};

use super::{AnnouncedRoute, Announcements, Bar, Context, Effect, WINDOW};
use crate::frames::FromMember;
use crate::object::{self, Description, Format, Fresh, Handle, Kind};
use crate::policy::{ExportSet, sealed_for};
use crate::rng::Draw;

/// An own object since the start of the process, as far as columns need it.
pub(super) struct OwnObject {
    /// As others know it.
    pub(super) handle: Handle,
    pub(super) prefixes: Vec<Nlri>,
    pub(super) key: Key128,
    pub(super) seed: Seed,
    pub(super) epoch: u64,
    /// Slots that its row covers, with its columns.
    pub(super) width: u32,
}

/// One octet for each decision.
pub(super) fn octets(exported: &[bool]) -> Vec<u8> {
    exported.iter().map(|exported| u8::from(*exported)).collect()
}

impl Announcements {
    /// Describes the next object, and draws its randomness. `hidden`: what that will hide. `None` with a full window, without
    /// credit, or without a version.
    pub(super) fn describe(
        &mut self,
        kind: Kind,
        hidden: &[&[u8]],
        context: &mut Context<'_>,
    ) -> Option<(Description, Draw)> {
        if self.in_flight.len() >= WINDOW || !context.has_credit {
            return None;
        }
        let version = self.versions.take()?;
        let (slot, set, epoch) = (context.config.slot, context.set.number, context.epoch);
        let format = Format::of(context.format, version);
        let mut description = Description { format, slot, set, epoch, version, salt: [0; 32], kind };
        let described = wire::encode(&description);
        let mut draw = context.rng.draw(&[&[b"object", described.as_slice()], hidden].concat());
        description.salt = draw.bytes();
        Some((description, draw))
    }

    /// Makes a withdrawal; `None` if it cannot leave now.
    pub(super) fn submit_withdrawal(&mut self, prefixes: &[Nlri], context: &mut Context<'_>) -> Option<Vec<Effect>> {
        let kind = Kind::Withdraw { prefixes: prefixes.to_vec() };
        // Before anything is forgotten: with a full window, or without credit, the prefixes stay dirty.
        let (description, _) = self.describe(kind, &[], context)?;
        let version = description.version;
        let header = Box::new(object::withdraw(&context.config.exchange, description, context.signing));
        for nlri in prefixes {
            if let Some(old) = self.announced.remove(nlri) {
                self.forget_object(old.version);
            }
            self.leftover.remove(nlri);
            self.dirty.remove(nlri);
            self.repeats.remove(nlri);
        }
        // After the loop, which would take the mark from a prefix that is announced instead.
        self.make_room(prefixes);
        self.in_flight.insert(version, prefixes.to_vec());
        context.counters.withdrawals += 1;
        let one = FromMember::SubmitOne { header: header.clone(), body: None };
        let two = FromMember::SubmitTwo { header, share: None };
        Some(vec![Effect::Submit { one, two }])
    }

    /// Makes an announcement of prefixes that share an UPDATE and their receivers, or bars them; `None` if it cannot leave
    /// now.
    pub(super) fn submit_announcement(
        &mut self,
        prefixes: &[Nlri],
        attributes: &Attributes,
        exported: &ExportSet,
        context: &mut Context<'_>,
    ) -> Option<Vec<Effect>> {
        let kind = Kind::Announce { prefixes: prefixes.to_vec() };
        let row = exported.to_bools();
        let inside = sealed_for(attributes, context.config.rs_asn, context.policy.per_peer()).encode();
        let route = prefixes.first().and_then(|nlri| self.router.get(nlri));
        let signed_for = route.and_then(|route| route.under).unwrap_or(context.neighbours);
        let hidden: [&[u8]; 3] = [&inside, &signed_for, &octets(&row)];
        let (description, mut draw) = self.describe(kind, &hidden, context)?;
        let handle = description.handle(&context.config.exchange);
        let (version, epoch, format) = (description.version, description.epoch, description.format.number());
        let fresh = Fresh { key: draw.bytes(), seed: draw.bytes(), openings: [draw.bytes(), draw.bytes()] };
        let (exchange, signing) = (&context.config.exchange, context.signing);
        let sealed =
            object::announce(context.export, exchange, description, (&inside, &signed_for), &row, &fresh, signing);
        if sealed.blob.len() > context.max_blob as usize {
            return Some(self.bar_too_large(prefixes, sealed.blob.len(), context.max_blob));
        }
        let width = super::width(exported);
        let own = OwnObject {
            handle,
            prefixes: prefixes.to_vec(),
            key: sealed.key,
            seed: sealed.one.seed.clone(),
            epoch,
            width,
        };
        self.objects.insert(version, own);
        for nlri in prefixes {
            let last = AnnouncedRoute { version, format, attributes: attributes.clone(), exported: exported.clone() };
            if let Some(old) = self.announced.insert(*nlri, last) {
                self.forget_object(old.version);
            }
            self.leftover.remove(nlri);
            self.dirty.remove(nlri);
            self.repeats.remove(nlri);
        }
        self.in_flight.insert(version, prefixes.to_vec());
        context.counters.announcements += 1;
        let header = Box::new(sealed.header);
        let one = FromMember::SubmitOne { header: header.clone(), body: Some((sealed.one, sealed.blob.into())) };
        let two = FromMember::SubmitTwo { header, share: Some(sealed.two) };
        Some(vec![Effect::Submit { one, two }])
    }

    /// The parties would not take these routes: they are not announced, and what the parties have of them is withdrawn.
    fn bar_too_large(&mut self, prefixes: &[Nlri], octets: usize, most: u32) -> Vec<Effect> {
        let mut effects = Vec::new();
        for nlri in prefixes {
            let is_known = self.is_known(nlri);
            self.dirty.remove(nlri);
            self.repeats.remove(nlri);
            effects.push(self.bar_with_event(*nlri, Bar::TooLarge { octets, most }));
            // After the bar: so it is marked as one to withdraw.
            if is_known {
                self.mark(*nlri);
            }
        }
        effects
    }

    /// Forgets the keys of an object that owns none of its prefixes any more.
    fn forget_object(&mut self, version: u64) {
        let owns = |nlri: &Nlri| self.announced.get(nlri).is_some_and(|last| last.version == version);
        if !self.objects.get(&version).is_some_and(|own| own.prefixes.iter().any(owns)) {
            self.objects.remove(&version);
        }
    }
}
