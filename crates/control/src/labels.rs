//! Statements about nodes with who signed them, as whoever verified the signatures fills them in.

use std::collections::{BTreeMap, BTreeSet};

use wayleave_core::IdentityKey;
use wayleave_packet::{Label, MAX_LABELS};

use wayleave_core::wire::is_text;

/// Characters of a label.
pub const MAX_LABEL: usize = 64;
/// Labels of one node.
pub const MAX_NODE_LABELS: usize = 16;

/// The verified labels of nodes. Of a node that was neither inserted nor noted as known, nothing is known: it may have any label.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Labels(BTreeMap<IdentityKey, BTreeSet<(String, IdentityKey)>>);

impl Labels {
    /// Notes that `signer` says `text` of `node`; refused if the text is too long or the node has too many.
    pub fn insert(&mut self, node: IdentityKey, text: &str, signer: IdentityKey) -> bool {
        let labels = self.0.entry(node).or_default();
        let fits = is_text(text, MAX_LABEL) && !text.is_empty() && labels.len() < MAX_NODE_LABELS;
        fits && labels.insert((text.to_owned(), signer))
    }

    /// Notes that all labels of `node` are known, also if it has none.
    pub fn know(&mut self, node: IdentityKey) {
        self.0.entry(node).or_default();
    }

    /// What is said of `node`, and by whom.
    pub fn of(&self, node: &IdentityKey) -> impl Iterator<Item = (&str, IdentityKey)> {
        self.0.get(node).into_iter().flatten().map(|(text, signer)| (text.as_str(), *signer))
    }

    /// Whether `signer` says `text` of `node`; `None` if the node's labels are not known.
    #[must_use]
    pub fn has(&self, node: &IdentityKey, text: &str, signer: &IdentityKey) -> Option<bool> {
        self.0.contains_key(node).then(|| self.of(node).any(|label| label == (text, *signer)))
    }

    /// The labels of a path's nodes, as many as a path can have.
    #[must_use]
    pub fn of_path(&self, nodes: &[IdentityKey]) -> Vec<Label> {
        let all = (0..).zip(nodes).flat_map(|(hop, node)| {
            self.of(node).map(move |(text, signer)| Label { hop, text: text.to_owned(), signer })
        });
        all.take(MAX_LABELS).collect()
    }
}
