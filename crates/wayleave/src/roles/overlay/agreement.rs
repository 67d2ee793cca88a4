//! Keys with the IDs of other nodes are agreed on when adverts bring these, beside the threads that forward: a packet that names members
//! of the realm alone costs no agreement then, whatever others send.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::spawn_blocking;
use wayleave_packet::icing::header::NodeId;
use wayleave_packet::icing::mint::NodeSecret;

use super::{OwnIds, Realm};

/// Agreements after which those computed so far are handed over at first, about a tenth of a second's work; later as many as there are
/// already. In a large realm those with the first members need not wait for those with the last, and each is copied a few times only.
const TOGETHER: usize = 2048;

/// Agrees on keys whenever the realm or the node's own IDs change, until the node ends.
pub async fn agree(mut realm: watch::Receiver<Arc<Realm>>, ids: watch::Sender<Arc<OwnIds>>) {
    let mut own = ids.subscribe();
    // All IDs for which nothing is missing.
    let mut done: Option<[Vec<NodeId>; 2]> = None;
    loop {
        let (members, now) = (realm.borrow_and_update().clone(), own.borrow_and_update().clone());
        let others = members.nodes.values().flat_map(|member| &member.ids).map(|key| key.node).collect();
        let all = [now.ids.iter().map(|own| own.secret.id()).collect(), others];
        // Most changes of the realm bring no other ID.
        if done.as_ref() != Some(&all) {
            done = None;
            let next = spawn_blocking(move || {
                let secrets: Vec<NodeSecret> = now.ids.iter().map(|own| own.secret.clone()).collect();
                let next = now.agreed.next(&secrets, &all[1], TOGETHER.max(now.agreed.len()));
                (next, all)
            });
            match next.await {
                Ok((Some(agreed), _)) => {
                    let agreed = Arc::new(agreed);
                    ids.send_modify(|own| *own = Arc::new(OwnIds { ids: own.ids.clone(), agreed }));
                    continue;
                }
                Ok((None, all)) => done = Some(all),
                // The runtime ends, or the task panicked, which ends the process.
                Err(_) => return,
            }
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
