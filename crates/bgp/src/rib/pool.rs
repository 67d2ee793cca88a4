//! Equal attributes, kept once.

use std::collections::HashSet;
use std::sync::Arc;

use crate::Attributes;

/// Makes equal attributes one allocation. Holds every set of attributes until [`AttributePool::sweep`] finds it unused.
#[derive(Clone, Debug, Default)]
pub struct AttributePool {
    known: HashSet<Arc<Attributes>>,
}

impl AttributePool {
    /// Empty.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The one allocation for `attributes`.
    pub fn intern(&mut self, attributes: Attributes) -> Arc<Attributes> {
        if let Some(known) = self.known.get(&attributes) {
            return Arc::clone(known);
        }
        let shared = Arc::new(attributes);
        self.known.insert(Arc::clone(&shared));
        shared
    }

    /// Frees what nothing else holds. Call it now and then, such as when the pool has doubled.
    pub fn sweep(&mut self) {
        self.known.retain(|attributes| Arc::strong_count(attributes) > 1);
        self.known.shrink_to(self.known.len() * 2);
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
