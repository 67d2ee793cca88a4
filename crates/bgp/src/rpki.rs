//! What one source says of the RPKI: who may originate what, and who buys transit from whom.

use std::sync::Arc;

use crate::aspa::Aspas;
use crate::origins::Vrps;

/// The records of one source. They are taken over together, so that those of two sources are never mixed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Records {
    pub vrps: Arc<Vrps>,
    pub aspas: Arc<Aspas>,
}

impl From<Vrps> for Records {
    fn from(vrps: Vrps) -> Self {
        Self { vrps: Arc::new(vrps), ..Self::default() }
    }
}
