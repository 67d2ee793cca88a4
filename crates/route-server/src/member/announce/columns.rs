//! Columns: the shares of own objects for slots that the member set has gained since they were announced.

use std::collections::BTreeMap;

use wayleave_bgp::Nlri;

use super::objects::octets;
use super::{Announcements, Context, Effect};
use crate::directory::MemberSet;
use crate::frames::FromMember;
use crate::member::MemberEvent;
use crate::object::{self, ExportMode, Kind, MAX_COLUMN};
use crate::policy::ExportSet;

/// Octets of a column, about: our own limit.
const COLUMN_OCTETS: usize = 256 << 10;

/// A column that is still to be made: of objects whose rows cover the slots below `from`, for those up to `to`.
pub(in super::super) struct Column {
    from: u32,
    to: u32,
    versions: Vec<u64>,
}

impl Announcements {
    /// The columns that the own objects lack under the member set.
    pub(in super::super) fn missing_columns(&self, context: &Context<'_>) -> Vec<Column> {
        let to = slots(context.set);
        let mut by_width: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        for (version, own) in &self.objects {
            if own.width < to {
                by_width.entry(own.width).or_default().push(*version);
            }
        }
        let mut columns = Vec::new();
        for (from, versions) in by_width {
            // As many objects as fit the credit that any object needs.
            let most = COLUMN_OCTETS / (8 + context.export.column_bytes(to - from)).max(1);
            let parts = versions.chunks(most.clamp(1, MAX_COLUMN));
            columns.extend(parts.map(|versions| Column { from, to, versions: versions.to_vec() }));
        }
        columns
    }

    /// Makes a column. Without a version, or credit, it is left out: once the member's routes are marked, after the columns,
    /// whatever covers fewer slots than the member set is announced again.
    pub(in super::super) fn submit_column(&mut self, column: &Column, context: &mut Context<'_>) -> Vec<Effect> {
        let mut effects = self.reserve_versions(context);
        if self.versions.has_reserved() {
            effects.extend(self.make_column(column, context).into_iter().flatten());
        }
        effects
    }

    fn make_column(&mut self, column: &Column, context: &mut Context<'_>) -> Option<[Effect; 2]> {
        let Column { from, to, .. } = *column;
        let (mut versions, mut exports, mut hidden) = (Vec::new(), Vec::new(), Vec::new());
        for version in &column.versions {
            let Some(exported) = self.column_exports(*version, context) else { continue };
            versions.push(*version);
            hidden.extend(octets(&exported.to_bools()));
            exports.push(exported);
        }
        if versions.is_empty() {
            return None;
        }
        let kind = Kind::Column { from, to, versions: versions.clone() };
        let (description, mut draw) = self.describe(kind, &[&hidden], context)?;
        let number = description.version;
        let opening = draw.bytes();
        let parts = versions.iter().zip(&exports);
        let part = |(version, exported): (&u64, _)| self.part(&description.salt, *version, from, exported, context);
        let row = parts.flat_map(part).collect();
        let (header, two) = object::column(&context.config.exchange, description, opening, row, context.signing);
        let header = Box::new(header);
        let one = FromMember::SubmitOne { header: header.clone(), body: None };
        let two = FromMember::SubmitTwo { header, share: Some(two) };
        let objects = versions.len();
        self.widen(number, to, versions.into_iter().zip(exports));
        Some([Effect::Submit { one, two }, Effect::Event(MemberEvent::Column { from, to, objects })])
    }

    /// The objects have their new slots, by the column with this number.
    fn widen(&mut self, number: u64, to: u32, exports: impl Iterator<Item = (u64, ExportSet)>) {
        let mut covered = Vec::new();
        for (version, exported) in exports {
            let Some(own) = self.objects.get_mut(&version) else { continue };
            own.width = to;
            for nlri in &own.prefixes {
                if let Some(last) = self.announced.get_mut(nlri).filter(|last| last.version == version) {
                    last.exported = last.exported.extended(&exported);
                    covered.push(*nlri);
                }
            }
        }
        self.in_flight.insert(number, covered);
    }

    /// Party 2's shares of an object for the new slots.
    fn part(&self, salt: &[u8; 32], version: u64, from: u32, exported: &ExportSet, context: &Context<'_>) -> Vec<u8> {
        let bools = exported.to_bools();
        let (Some(own), Some(new)) = (self.objects.get(&version), bools.get(from as usize..)) else {
            return Vec::new();
        };
        let share = (&own.seed, Some(salt));
        match context.export {
            ExportMode::Direct => object::key_row(&context.config.exchange, share, &own.key, own.epoch, from, new),
            ExportMode::Mpc => object::policy_row(share.0, share.1, new),
        }
    }

    /// Who may have an object: whoever may have all prefixes that it still owns. Where a reload decides otherwise for some of
    /// them, that comes with the object's own turn; whether it does must not show in what a column leaves out.
    fn column_exports(&self, version: u64, context: &Context<'_>) -> Option<ExportSet> {
        let own = self.objects.get(&version)?;
        let is_owned = |nlri: &&Nlri| self.announced.get(nlri).is_some_and(|last| last.version == version);
        let mut decided: Option<ExportSet> = None;
        for nlri in own.prefixes.iter().filter(is_owned) {
            let exported = context.export_set(nlri, &self.router.get(nlri)?.attributes);
            decided = Some(decided.map_or_else(|| exported.clone(), |decided| decided.and(&exported)));
        }
        decided
    }
}

/// Slots of a member set.
fn slots(set: &MemberSet) -> u32 {
    u32::try_from(set.slots.len()).expect("the directory bounds the slots of a set")
}
