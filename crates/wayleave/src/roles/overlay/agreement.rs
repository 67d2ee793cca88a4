//! Keys with the IDs of other nodes are agreed on when adverts bring these, beside the threads that forward: a packet that names members
//! of the realm alone costs no agreement then, whatever others send.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::spawn_blocking;
use wayleave_packet::icing::header::NodeId;
use wayleave_packet::icing::mint::NodeSecret;

use super::{OwnIds, Realm};

/// Agreements after which those computed so far are handed over, about a tenth of a second's work: in a large realm those with the first
/// members need not wait for those with the last.
const TOGETHER: usize = 2048;

/// Agrees on keys whenever the realm or the node's own IDs change, until the node ends.
pub async fn agree(mut realm: watch::Receiver<Arc<Realm>>, ids: watch::Sender<Arc<OwnIds>>) {
    let mut own = ids.subscribe();
    loop {
        let (members, now) = (realm.borrow_and_update().clone(), own.borrow_and_update().clone());
        let next = spawn_blocking(move || {
            let secrets: Vec<NodeSecret> = now.ids.iter().map(|own| own.secret.clone()).collect();
            let others: Vec<NodeId> =
                members.nodes.values().flat_map(|member| &member.ids).map(|key| key.node).collect();
            now.agreed.next(&secrets, &others, TOGETHER)
        });
        match next.await {
            Ok(Some(agreed)) => {
                let agreed = Arc::new(agreed);
                ids.send_modify(|own| *own = Arc::new(OwnIds { ids: own.ids.clone(), agreed }));
                continue;
            }
            Ok(None) => {}
            // The runtime ends, or the task panicked, which ends the process.
            Err(_) => return,
        }
        let changed = tokio::select! {
            changed = realm.changed() => changed,
            changed = own.changed() => changed,
        };
        if changed.is_err() {
            return; // the node has stopped
        }
    }
}
