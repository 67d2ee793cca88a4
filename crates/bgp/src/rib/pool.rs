//! Equal attributes, kept once.

use std::collections::HashSet;
use std::sync::Arc;

use crate::Attributes;

/// Octets that a set of attributes takes besides its own: its allocations, counters and place in the table.
const OVERHEAD: usize = 128;
/// Octets that may become unused before the first sweep: smaller pools are not worth one.
const LEAST_SWEEP: usize = 4 << 20;

/// Makes equal attributes one allocation. What is no longer used stays until a sweep: the pool makes one itself whenever it
/// has doubled, so that it takes at most twice what is used, and [`AttributePool::SLACK`].
#[derive(Clone, Debug, Default)]
pub struct AttributePool {
    known: HashSet<Arc<Attributes>>,
    octets: usize,
    /// Octets that were used at the last sweep.
    used: usize,
}

fn octets_of(attributes: &Attributes) -> usize {
    attributes.as_octets().len() + OVERHEAD
}

impl AttributePool {
    /// Octets beyond twice those in use, at most: what may be unused in a small pool, and one set of attributes.
    pub const SLACK: usize = LEAST_SWEEP + (1 << 16) + OVERHEAD;

    /// Empty.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The one allocation for `attributes`.
    pub fn intern(&mut self, attributes: Attributes) -> Arc<Attributes> {
        match self.known.get(&attributes) {
            Some(known) => Arc::clone(known),
            None => self.add(Arc::new(attributes)),
        }
    }

    /// As [`AttributePool::intern`], of attributes that have an allocation already.
    pub fn intern_shared(&mut self, attributes: Arc<Attributes>) -> Arc<Attributes> {
        match self.known.get(&attributes) {
            Some(known) => Arc::clone(known),
            None => self.add(attributes),
        }
    }

    fn add(&mut self, shared: Arc<Attributes>) -> Arc<Attributes> {
        if self.octets > 2 * self.used + LEAST_SWEEP {
            self.sweep();
        }
        self.octets += octets_of(&shared);
        self.known.insert(Arc::clone(&shared));
        shared
    }

    /// Frees what nothing else holds. Call it now and then, to give memory back after much has gone.
    pub fn sweep(&mut self) {
        let mut octets = 0;
        self.known.retain(|attributes| {
            let is_used = Arc::strong_count(attributes) > 1;
            octets += if is_used { octets_of(attributes) } else { 0 };
            is_used
        });
        (self.octets, self.used) = (octets, octets);
        self.known.shrink_to(self.known.len() * 2);
    }

    /// Octets that it takes.
    #[must_use]
    pub fn octets(&self) -> usize {
        self.octets
    }

    /// Octets that it may take before it sweeps: twice what was in use at the last sweep, and [`AttributePool::SLACK`].
    #[must_use]
    pub fn octets_before_sweep(&self) -> usize {
        2 * self.used + Self::SLACK
    }

    /// Different attributes held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether it holds none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }
}

#[cfg(test)]
mod tests {
    //! KCX-34: attributes of routes that went: at most twice what is used without being swept.

    use super::*;
    use crate::{AttributeCode, AttributeFlags};

    fn attributes(number: u32, octets: usize) -> Attributes {
        let mut edit = Attributes::builder();
        let mut value = vec![7; octets];
        value[..4].copy_from_slice(&number.to_be_bytes());
        edit.set(AttributeCode(200), AttributeFlags::OPTIONAL_TRANSITIVE, &value);
        edit.finish()
    }

    #[test]
    fn a_pool_takes_at_most_twice_what_is_used_without_being_swept() {
        let mut pool = AttributePool::new();
        let mut routes: Vec<Arc<Attributes>> = Vec::new();
        for number in 0..20_000 {
            let one = pool.intern(attributes(number, 4_000));
            match routes.len() {
                0..=999 => routes.push(one),
                _ => routes[number as usize % 1_000] = one,
            }
            let used: usize = routes.iter().map(|one| octets_of(one)).sum();
            assert!(pool.octets() <= 2 * used + AttributePool::SLACK, "{} octets, {used} used", pool.octets());
            let recomputed: usize = pool.known.iter().map(|one| octets_of(one)).sum();
            assert!(number % 1_000 > 0 || pool.octets() == recomputed);
        }
        assert!(pool.octets() > 4_000_000, "what is used stays");
        routes.clear();
        pool.sweep();
        assert_eq!((pool.octets(), pool.len()), (0, 0));
    }

    #[test]
    fn what_has_an_allocation_is_not_copied() {
        let mut pool = AttributePool::new();
        let first = Arc::new(attributes(1, 10));
        assert!(Arc::ptr_eq(&pool.intern_shared(Arc::clone(&first)), &first));
        assert!(Arc::ptr_eq(&pool.intern(attributes(1, 10)), &first));
        assert!(Arc::ptr_eq(&pool.intern_shared(Arc::new(attributes(1, 10))), &first));
    }
}
