//! What the API did since its start.

use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Map, Value, json};

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        #[derive(Debug, Default)]
        pub struct ApiCounts { $($(#[$doc])* pub $name: AtomicU64),* }

        impl ApiCounts {
            /// Name and value of each.
            pub fn all(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.load(Ordering::Relaxed))),*]
            }
        }
    };
}

counts! {
    requests,
    /// Requests that changed something.
    changes,
    /// Requests without a valid token.
    unauthenticated,
    /// Requests whose token allows less.
    forbidden,
    /// Requests beyond the limit of their source prefix, or of their token.
    limited,
    /// Requests that were refused for any other reason.
    refused,
    /// Invitations that were redeemed.
    redeemed,
    /// Redemptions that their holder repeated.
    repeated,
    /// Redemptions of no invitation, or with wrong signatures.
    redemptions_forged,
    /// Redemptions of an invitation that another holder used.
    redemptions_used,
    redemptions_withdrawn,
    redemptions_expired,
    /// Redemptions by a clock that is wrong.
    redemptions_clock,
    /// Redemptions that were repeated after what they gave was taken back.
    redemptions_gone,
    /// Redemptions for a number of which another holder's secrets may still be good.
    redemptions_too_soon,
}

impl ApiCounts {
    pub fn json(&self) -> Value {
        Value::Object(
            self.all().into_iter().map(|(name, value)| (name.to_owned(), json!(value))).collect::<Map<_, _>>(),
        )
    }
}

/// Counts one.
pub fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
