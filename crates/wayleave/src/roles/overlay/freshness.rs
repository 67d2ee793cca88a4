//! What an operator is told when the realm's list of removed nodes is not of today.

use wayleave_control::realm::{Freshness, KeyRoll};
use wayleave_runtime::clock::utc;

use crate::roles::events::{EventLine, event, shown};

/// What every problem of that list names.
pub const LIST: &str = "list of removed nodes";

/// What is wrong and what to do, if anything.
pub fn problem(freshness: Freshness) -> Option<String> {
    let help =
        "the realm's operator starts `wayleave run realm`, or signs a list elsewhere: `wayleave realm list sign`";
    match freshness {
        Freshness::Fresh => None,
        Freshness::Overdue(due) => {
            Some(format!("the realm's next list of removed nodes is overdue since {}: {help}", utc(due)))
        }
        Freshness::Stale(due) => Some(format!(
            "the realm's list of removed nodes is too old to trust, since the next one was due on {}: who was removed since then is not \
             known, and consent servers give no consent; {help}",
            utc(due)
        )),
    }
}

/// The line of the log about a change.
pub fn line(freshness: Freshness) -> EventLine {
    match problem(freshness) {
        None => event!(INFO "list-fresh" {} "the realm's list of removed nodes is of today again"),
        Some(text) if matches!(freshness, Freshness::Stale(_)) => event!(ERROR "list-stale" {; why = text } "{text}"),
        Some(text) => event!(WARN "list-overdue" {; why = text } "{text}"),
    }
}

/// The same about a roll of the realm's key.
pub fn roll_line(roll: &KeyRoll) -> EventLine {
    event!(INFO "realm-key-rolls" { next = shown(roll.next), from = utc(roll.from); from = roll.from, until = roll.until }
        "the realm has another key from a date on; this node follows by itself, and its configuration goes on to name the first one")
}
