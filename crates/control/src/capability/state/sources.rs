//! Where packets of the payers of a state may come from.

use wayleave_packet::platypus::header::{Marks, Principal};
use wayleave_packet::platypus::sources::{MAX_SOURCES, Sources};

use super::{ChangeError, RatePayer, State, Terms, of_principal};

impl State {
    /// Where packets may come from, by payer in ascending order.
    pub fn sources(&self) -> impl ExactSizeIterator<Item = &Sources> {
        self.sources.values()
    }

    /// The same of a principal and of its delegations.
    pub fn sources_of(&self, principal: Principal) -> impl Iterator<Item = &Sources> {
        of_principal(&self.sources, principal).map(|(_, held)| held)
    }

    /// The same of one payer, if anything was ever said of it.
    #[must_use]
    pub fn sources_of_payer(&self, payer: &RatePayer) -> Option<&Sources> {
        self.sources.get(payer)
    }

    /// Whether to say this of a payer's sources changes nothing.
    #[must_use]
    pub fn has_sources(&self, sources: &Sources) -> bool {
        let names_any = sources.prefixes.is_empty() && !sources.delegates_any;
        self.sources.get(&sources.into()).map_or(names_any, |held| held == sources)
    }

    /// The marks of secrets that are looked up with these terms: bound if they are of a payer that names prefixes.
    #[must_use]
    pub fn marks_of(&self, terms: &Terms) -> Marks {
        let payer = |delegation| RatePayer { principal: terms.principal, delegation };
        let names = |payer: RatePayer| self.sources.get(&payer).is_some_and(|held| !held.prefixes.is_empty());
        let delegation = terms.delegation.map(|delegation| delegation.id);
        let is_bound = names(payer(None)) || delegation.is_some_and(|id| names(payer(Some(id))));
        if is_bound { Marks::BOUND } else { Marks::default() }
    }

    pub(super) fn check_sources(&self, sources: &Sources) -> Result<(), ChangeError> {
        if !sources.is_sound() {
            return Err(ChangeError::SourcesTerms);
        }
        let own = RatePayer { principal: sources.principal, delegation: None };
        if sources.delegation.is_some()
            && let Some(own) = self.sources.get(&own).filter(|own| !own.delegates_any && !own.prefixes.is_empty())
            && !sources.prefixes.iter().all(|prefix| own.prefixes.iter().any(|within| within.contains(prefix)))
        {
            return Err(ChangeError::SourcesBeyond);
        }
        let others = self.sources.iter().filter(|(payer, _)| **payer != sources.into());
        let listed: usize = others.map(|(_, held)| held.entries()).sum();
        if self.elsewhere.sources + listed + sources.entries() > MAX_SOURCES {
            Err(ChangeError::Sources)
        } else {
            Ok(())
        }
    }
}
