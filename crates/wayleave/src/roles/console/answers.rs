//! What a role answers, decoded once. Nothing else of an answer is kept: a role may be another's, and hostile.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::overview::Overview;

/// Octets of an event; of a longer one its kind is shown.
const MAX_EVENT: usize = 4 << 10;
/// Octets of the time of an event, of its kind, and of a name that tells roles apart.
const MAX_TEXT: usize = 255;

/// The overview of a role, with what the role is.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Said {
    /// As in `wayleave run ROLE`.
    pub role: String,
    /// What tells the process from any other at the same place.
    pub run: String,
    #[serde(flatten)]
    pub overview: Overview,
}

impl Said {
    /// # Errors
    /// What is wrong with it.
    pub fn of(answer: Value) -> Result<Self, String> {
        let said: Self = serde_json::from_value(answer).map_err(|error| {
            format!("its overview cannot be read: {error}; run the same version of Wayleave on both sides")
        })?;
        let texts = [Some(&said.role), Some(&said.run), said.overview.exchange.as_ref()];
        let is_fit = texts.into_iter().flatten().all(|text| text.len() <= MAX_TEXT);
        match is_fit {
            true => Ok(said),
            false => Err("its overview has a name that is too long".to_owned()),
        }
    }
}

/// An event of a role.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Event {
    /// As the console calls the role.
    pub source: String,
    pub time: String,
    pub unix: u64,
    pub number: u64,
    pub what: Map<String, Value>,
}

/// Events of a role, in the order of their numbers.
#[derive(Debug, Default)]
pub struct EventList {
    /// Which process they are of.
    pub run: String,
    pub events: Vec<Event>,
}

impl EventList {
    /// Leaves out whatever is no event, and what does not come after `after` or the event before it.
    pub fn of(source: &str, mut answer: Value, after: u64) -> Self {
        let run = answer["run"].as_str().unwrap_or_default().to_owned();
        let (mut events, mut last) = (Vec::new(), after);
        let Some(Value::Array(all)) = answer.get_mut("events").map(Value::take) else { return Self { run, events } };
        for value in all {
            if let Some(event) = event(source, value).filter(|event| event.number > last) {
                last = event.number;
                events.push(event);
            }
        }
        Self { run, events }
    }
}

fn event(source: &str, value: Value) -> Option<Event> {
    #[derive(Deserialize)]
    struct Given {
        time: String,
        unix: u64,
        number: u64,
        what: Map<String, Value>,
    }
    let given: Given = serde_json::from_value(value).ok().filter(|given: &Given| given.time.len() <= MAX_TEXT)?;
    let length = serde_json::to_string(&given.what).map_or(usize::MAX, |text| text.len());
    let what = if length <= MAX_EVENT { given.what } else { shortened(&given.what, length) };
    Some(Event { source: source.to_owned(), time: given.time, unix: given.unix, number: given.number, what })
}

fn shortened(what: &Map<String, Value>, length: usize) -> Map<String, Value> {
    let kind = what.get("event").and_then(Value::as_str).filter(|kind| kind.len() <= MAX_TEXT).unwrap_or("event");
    let why = format!("{length} octets are too many for the console: `wayleave show events` has them");
    Map::from_iter([("event".to_owned(), json!(kind)), ("left_out".to_owned(), json!(why))])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_no_event_is_left_out_and_a_repetition_is_not() {
        let event = |number: u64| json!({ "time": "t", "unix": 7, "number": number, "what": { "event": "same" } });
        let list = json!({ "run": "a", "events": ["x", null, 7, [], {}, event(1), event(2), event(2), event(1),
            { "time": 7, "unix": 7, "number": 3, "what": {} }, { "time": "t", "unix": -1, "number": 3, "what": {} },
            { "time": "t", "unix": 7, "number": 3, "what": "x" }, { "time": "x".repeat(999), "unix": 7, "number": 3, "what": {} },
            event(4)] });
        let numbers = |list: &Value, after| {
            EventList::of("alpha", list.clone(), after).events.iter().map(|event| event.number).collect::<Vec<_>>()
        };
        assert_eq!(numbers(&list, 0), [1, 2, 4]);
        assert_eq!(numbers(&list, 2), [4]);
        for wrong in [json!(null), json!("x"), json!([1]), json!({ "events": {} }), json!({ "events": ["x"] })] {
            assert!(numbers(&wrong, 0).is_empty(), "{wrong}");
        }
    }

    #[test]
    fn an_event_that_is_too_long_is_named() {
        let long = json!({ "events": [{ "time": "t", "unix": 7, "number": 1,
            "what": { "event": "refused", "why": "x".repeat(MAX_EVENT) } }] });
        let event = &EventList::of("alpha", long, 0).events[0];
        assert_eq!(event.what["event"], "refused");
        assert!(event.what["left_out"].as_str().is_some_and(|why| why.contains("`wayleave show events`")), "{event:?}");
    }

    #[test]
    fn an_overview_that_lacks_who_it_is_is_none() {
        let whole = json!({ "version": 1, "role": "rs", "run": "a", "title": "t", "ready": true, "problems": [], "columns": ["peer"],
            "rows": [{ "well": true, "cells": ["bravo"] }], "counts": [], "party": 1, "exchange": "ix", "more": "x" });
        let said = Said::of(whole.clone()).expect("an overview");
        assert_eq!((said.overview.party, said.overview.exchange.as_deref()), (Some(1), Some("ix")));
        assert_eq!(json!(said)["rows"][0]["cells"][0], "bravo");
        assert!(json!(said)["more"].is_null());
        for (key, wrong) in [("role", json!(null)), ("run", json!(7)), ("rows", json!(["x"])), ("problems", json!("x"))]
        {
            let mut other = whole.clone();
            other[key] = wrong;
            assert!(Said::of(other).is_err(), "{key}");
        }
        for wrong in [json!(null), json!([]), json!("x")] {
            assert!(Said::of(wrong).is_err());
        }
    }
}
