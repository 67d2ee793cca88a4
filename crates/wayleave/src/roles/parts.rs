//! A role that does the same several times, beside each other: a member's proxy with several pairs of parties. Each of its pages is that
//! of one part, by `?pair=NAME`, or of all, and then what is listed says of which part it is.

use std::future::Future;

use serde_json::{Map, Value, json};
use wayleave_runtime::http::{Metric, Parameters, ViewError};
use wayleave_runtime::store::{Health, Store as _};

use super::daemon::View;
use crate::output::cell;
use crate::overview::Overview;

/// The parameter that names a part, the label of its metrics, and the field of what is listed.
pub const PAIR: &str = "pair";
/// Pages whose fields are about one part each, and that have the fields of each part under its name.
const EACH: [&str; 2] = ["status", "profile"];

/// The page `name` of the part that is asked for, or of all.
pub async fn answer<V, F, T>(view: V, name: &str, mut parameters: Parameters, page: F) -> Result<Value, ViewError>
where
    V: View,
    F: Fn(V, Parameters) -> T,
    T: Future<Output = Result<Value, ViewError>>,
{
    let asked = parameters.remove(PAIR);
    if let Some(asked) = asked {
        return page(part(&view, &asked)?, parameters).await;
    }
    let parts = view.parts().to_vec();
    if parts.is_empty() {
        return page(view, parameters).await;
    }
    let (mut pages, mut failed) = (Vec::with_capacity(parts.len()), Vec::new());
    for (of, view) in parts {
        match page(view, parameters.clone()).await {
            Ok(page) => pages.push((of, page)),
            Err(error) => failed.push((of, error)),
        }
    }
    if pages.is_empty() {
        return Err(failure_of_all(failed));
    }
    Ok(with_failures(merged(name, pages), &failed))
}

/// Why no part has an answer.
fn failure_of_all(failed: Vec<(String, ViewError)>) -> ViewError {
    let Some((_, first)) = failed.first().cloned() else { return ViewError::Unavailable };
    if failed.iter().all(|(_, error)| *error == first) {
        return first;
    }
    let all = failed.iter().map(|(of, error)| format!("{of}: {}", words(error))).collect::<Vec<_>>().join("; ");
    match first {
        ViewError::Request(_) => ViewError::Request(all),
        ViewError::NotFound(_) => ViewError::NotFound(all),
        ViewError::Failed(_) | ViewError::Unavailable => ViewError::Failed(all),
    }
}

fn words(error: &ViewError) -> &str {
    match error {
        ViewError::Request(why) | ViewError::NotFound(why) | ViewError::Failed(why) => why,
        ViewError::Unavailable => "it is starting or stopping",
    }
}

/// A page of those parts that have an answer, with why the others have none among its problems.
fn with_failures(mut page: Value, failed: &[(String, ViewError)]) -> Value {
    let failed: Vec<Value> = failed.iter().map(|(of, error)| json!(format!("{of}: {}", words(error)))).collect();
    if failed.is_empty() {
        return page;
    }
    match page["problems"].as_array_mut() {
        Some(problems) => problems.extend(failed),
        None => page["problems"] = failed.into(),
    }
    page
}

/// Refuses `?pair=NAME` for an order to the whole role.
pub fn of_all(order: &str, parameters: &Parameters) -> Result<(), ViewError> {
    match parameters.contains_key(PAIR) {
        true => Err(ViewError::Request(format!("`{order}` is of the whole role, expected a request without a pair"))),
        false => Ok(()),
    }
}

/// The part of this name.
pub fn part<V: View>(view: &V, name: &str) -> Result<V, ViewError> {
    let parts = view.parts();
    let names: Vec<&str> = parts.iter().map(|(name, _)| name.as_str()).collect();
    let none = || {
        ViewError::Request(match names[..] {
            [] => format!("no pair `{name}`: this role has no [[pair]], expected a request without a pair"),
            _ => format!("no pair `{name}`, expected {}", names.join(" or ")),
        })
    };
    parts.iter().find(|(of, _)| of == name).map(|(_, view)| view.clone()).ok_or_else(none)
}

/// The part with whose name a path begins, and the rest of the path; a role without parts, and the whole path.
pub fn part_of_path<V: View>(view: &V, path: String) -> Result<(V, String), ViewError> {
    if view.parts().is_empty() {
        return Ok((view.clone(), path));
    }
    let (name, rest) = path.trim_start_matches('/').split_once('/').unwrap_or((path.trim_start_matches('/'), ""));
    Ok((part(view, name)?, rest.to_owned()))
}

/// The events of the part that is asked for, or all.
pub fn events<V: View>(view: &V, mut list: Value, parameters: &Parameters) -> Result<Value, ViewError> {
    let Some(asked) = parameters.get(PAIR) else { return Ok(list) };
    part(view, asked)?;
    if let Some(events) = list["events"].as_array_mut() {
        events.retain(|event| event["what"][PAIR] == json!(asked));
    }
    Ok(list)
}

/// One page of those of all parts.
fn merged(name: &str, pages: Vec<(String, Value)>) -> Value {
    if name == "overview" {
        let read = |(of, page)| Some((of, serde_json::from_value(page).ok()?));
        return crate::output::versioned(json!(overview(pages.into_iter().filter_map(read).collect())));
    }
    let version = pages.first().map_or(Value::Null, |(_, page)| page["version"].clone());
    if EACH.contains(&name) {
        let problems = problems(pages.iter().map(|(of, page)| (of.as_str(), texts(&page["problems"]))).collect());
        let named = |(of, mut page): (String, Value)| {
            page["name"] = json!(of);
            page
        };
        let pairs: Vec<Value> = pages.into_iter().map(named).collect();
        let mut whole = json!({ "version": version, "pairs": pairs, "problems": problems });
        if let Some(choices) = choices(&pairs) {
            whole["choices_of_all_pairs"] = choices;
        }
        return whole;
    }
    let mut all = Map::new();
    for (of, page) in &pages {
        for (key, value) in page.as_object().into_iter().flatten() {
            // Where a list of routes goes on is of one part: whoever reads on asks for that one.
            if name == "routes" && ["next", "installed"].contains(&key.as_str()) {
                continue;
            }
            let before = all.remove(key);
            let joined = match (key.as_str(), value) {
                ("problems", _) => continue,
                (_, Value::Array(rows)) => rows_of(before, of, rows),
                (_, Value::Bool(is)) => json!(*is || before == Some(json!(true))),
                ("summary" | "removed", Value::String(text)) => {
                    let before = before.filter(Value::is_string).map_or(String::new(), |text| cell(&text) + "; ");
                    json!(format!("{before}{of}: {text}"))
                }
                (_, value) => before.filter(|before| !before.is_null()).unwrap_or_else(|| value.clone()),
            };
            all.insert(key.clone(), joined);
        }
    }
    if pages.iter().any(|(_, page)| page["problems"].is_array()) {
        let each = pages.iter().map(|(of, page)| (of.as_str(), texts(&page["problems"]))).collect();
        all.insert("problems".to_owned(), json!(problems(each)));
    }
    all.into()
}

/// How often Select-Best could choose for this member, by what the parties of all pairs said last: what a member can learn of the
/// exchange's recommendation it learns from all of them. `None` while a pair has said nothing.
fn choices(pairs: &[Value]) -> Option<Value> {
    let sum = |name: &str| pairs.iter().map(|pair| pair["budget"][name].as_u64()).sum::<Option<u64>>();
    Some(json!({ "left": sum("choices_left")?, "per_hour": sum("choices_per_hour")? }))
}

/// The rows of the parts before and of this one, each with its part; of what is no object each once.
fn rows_of(before: Option<Value>, of: &str, rows: &[Value]) -> Value {
    let mut all = match before {
        Some(Value::Array(all)) => all,
        _ => Vec::new(),
    };
    for row in rows {
        if let Value::Object(fields) = row {
            let mut fields = fields.clone();
            fields.insert(PAIR.to_owned(), json!(of));
            all.push(fields.into());
        } else if !all.contains(row) {
            all.push(row.clone());
        }
    }
    all.into()
}

fn texts(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().map(cell).collect()
}

/// The problems of all parts: those that all have once, the others with the name of the part.
fn problems(each: Vec<(&str, Vec<String>)>) -> Vec<String> {
    let mut all = Vec::new();
    for (of, problems) in &each {
        for problem in problems {
            let is_of_all = each.iter().all(|(_, others)| others.contains(problem));
            let words = if is_of_all { problem.clone() } else { format!("{of}: {problem}") };
            if !all.contains(&words) {
                all.push(words);
            }
        }
    }
    all
}

/// One screen of those of all parts.
pub fn overview(mut each: Vec<(String, Overview)>) -> Overview {
    let titles: Vec<&str> = each.iter().map(|(_, one)| one.title.as_str()).collect();
    let mut whole = Overview { title: titles.join(", "), ..Overview::default() };
    whole.ready = each.iter().any(|(_, one)| one.ready);
    whole.problems = problems(each.iter().map(|(of, one)| (of.as_str(), one.problems.clone())).collect());
    for (of, one) in &mut each {
        whole.columns = [PAIR.to_owned()].into_iter().chain(one.columns.clone()).collect();
        for mut row in one.rows.drain(..) {
            row.cells.insert(0, of.clone());
            whole.rows.push(row);
        }
        whole.counts.extend(one.counts.drain(..).map(|words| format!("{of}: {words}")));
    }
    whole.rows.sort_by_key(|row| row.well);
    whole
}

/// The metrics of a role, with the part of each if it has parts.
pub async fn metrics<V: View>(view: &V) -> Option<Vec<Metric>> {
    if view.parts().is_empty() {
        return view.metrics().await;
    }
    let mut all = Vec::new();
    for (of, view) in view.parts() {
        all.extend(view.metrics().await?.into_iter().map(|metric| metric.labelled(PAIR, of)));
    }
    Some(Metric::joined(all))
}

/// Whether a role does its work, with the state of its store. Of parts one suffices: each does the work of all.
pub async fn readiness<V: View>(view: &V) -> Option<Result<(), String>> {
    if view.parts().is_empty() {
        return of_one(view).await;
    }
    // All are asked: a machine that hangs must not go unnoticed because another one answers.
    let (mut missing, mut is_ready) = (Vec::new(), false);
    for (of, view) in view.parts() {
        match of_one(view).await? {
            Ok(()) => is_ready = true,
            Err(why) => missing.push(format!("{of}: {why}")),
        }
    }
    Some(if is_ready { Ok(()) } else { Err(missing.join("; ")) })
}

async fn of_one<V: View>(view: &V) -> Option<Result<(), String>> {
    let readiness = view.readiness().await?;
    let failing = view.store().and_then(|store| match &*store.health().borrow() {
        Health::Good => None,
        Health::Failing(why) => Some(why.clone()),
    });
    Some(failing.map_or(readiness, Err))
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Arc;
    use std::task::{Context, Poll, Waker};

    use wayleave_runtime::store::FileStore;

    use super::super::daemon::Views;
    use super::*;

    /// A role, or a part of one: its readiness, `None` if its machine hangs; and its parts.
    #[derive(Clone)]
    struct Stub(Option<Result<(), String>>, Vec<(String, Stub)>);

    impl Stub {
        fn of(parts: [Option<Result<(), &str>>; 2]) -> Self {
            let stub = |ready: Option<Result<(), &str>>| Self(ready.map(|all| all.map_err(str::to_owned)), Vec::new());
            Self(None, ["rs1", "rs2"].map(str::to_owned).into_iter().zip(parts.map(stub)).collect())
        }
    }

    impl View for Stub {
        async fn status(&self) -> Result<Value, ViewError> {
            Err(ViewError::Unavailable)
        }

        async fn overview(&self, _: &Value) -> Result<Overview, ViewError> {
            Err(ViewError::Unavailable)
        }

        async fn metrics(&self) -> Option<Vec<Metric>> {
            None
        }

        async fn readiness(&self) -> Option<Result<(), String>> {
            match &self.0 {
                Some(ready) => Some(ready.clone()),
                None => std::future::pending().await,
            }
        }

        fn store(&self) -> Option<&Arc<FileStore>> {
            None
        }

        fn parts(&self) -> &[(String, Self)] {
            &self.1
        }

        fn pages(views: Views<Self>) -> Views<Self> {
            views
        }
    }

    #[tokio::test]
    async fn one_pair_that_is_ready_suffices_and_a_hung_machine_of_another_is_noticed() {
        let of = |parts| async move { readiness(&Stub::of(parts)).await };
        assert_eq!(of([Some(Ok(())), Some(Err("no router"))]).await, Some(Ok(())));
        assert_eq!(of([Some(Err("no router")), Some(Ok(()))]).await, Some(Ok(())));
        let both = of([Some(Err("no link")), Some(Err("no router"))]).await;
        assert_eq!(both, Some(Err("rs1: no link; rs2: no router".to_owned())));
        assert_eq!(at_once(of([Some(Ok(())), None])), None);
    }

    /// What a future has at once.
    fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }

    #[tokio::test]
    async fn a_pair_that_fails_leaves_the_answer_of_the_other_with_its_problem() {
        let ask = |parts| async move {
            answer(Stub::of(parts), "session/refresh", Parameters::new(), |view: Stub, _| async move {
                match view.0 {
                    Some(Ok(())) => Ok(json!({ "version": 1, "families": ["ipv4"] })),
                    Some(Err(why)) => Err(ViewError::Failed(why)),
                    None => Err(ViewError::NotFound("no such member".to_owned())),
                }
            })
            .await
        };
        let one = ask([Some(Ok(())), Some(Err("no session"))]).await;
        let whole = json!({ "version": 1, "families": ["ipv4"], "problems": ["rs2: no session"] });
        assert_eq!(one, Ok(whole));
        assert_eq!(ask([None, None]).await, Err(ViewError::NotFound("no such member".to_owned())));
        let both = ask([Some(Err("no session")), None]).await;
        assert_eq!(both, Err(ViewError::Failed("rs1: no session; rs2: no such member".to_owned())));
        let asked = Parameters::from([(PAIR.to_owned(), "rs2".to_owned())]);
        let refused = of_all("reload", &asked);
        assert!(matches!(&refused, Err(ViewError::Request(why)) if why.contains("whole role")), "{refused:?}");
        assert_eq!(of_all("reload", &Parameters::new()), Ok(()));
    }

    fn of_two(name: &str, one: Value, two: Value) -> Value {
        merged(name, vec![("rs1".to_owned(), one), ("rs2".to_owned(), two)])
    }

    #[test]
    fn what_is_listed_says_of_which_pair_it_is() {
        // The same route by both.
        let page = json!({ "version": 1, "routes": [{ "prefix": "10.1.0.0/16" }], "more": false });
        let more = json!({ "version": 1, "routes": [{ "prefix": "10.1.0.0/16" }], "more": true });
        let row = |pair: &str| json!({ "prefix": "10.1.0.0/16", "pair": pair });
        let whole = json!({ "version": 1, "routes": [row("rs1"), row("rs2")], "more": true });
        assert_eq!(of_two("routes", page, more), whole);
        let placed = |next: &str| json!({ "version": 1, "routes": [], "more": true, "next": next, "installed": 7 });
        let whole = json!({ "version": 1, "routes": [], "more": true });
        assert_eq!(of_two("routes", placed("10.1.0.0/16,1"), placed("10.2.0.0/16,1")), whole);
        let why = |summary: &str| json!({ "prefix": "10.1.0.0/16", "summary": summary, "own": [], "removed": null });
        let whole = of_two("why", why("installed"), why("no route"));
        assert_eq!(
            whole,
            json!({
                "prefix": "10.1.0.0/16", "summary": "rs1: installed; rs2: no route", "own": [], "removed": null,
            })
        );
        let enabled = |was_up: bool| json!({ "version": 1, "was_up": was_up, "families": ["ipv4"] });
        assert_eq!(of_two("session/refresh", enabled(true), enabled(false)), enabled(true));
    }

    #[test]
    fn a_status_has_each_pair_under_its_name_and_a_problem_of_all_once() {
        let page = |batch: u64, problems: &[&str]| json!({ "version": 1, "batch": batch, "problems": problems });
        let whole = of_two("status", page(7, &["no cache", "party 1 is away"]), page(9, &["no cache"]));
        assert_eq!(whole["problems"], json!(["no cache", "rs1: party 1 is away"]));
        assert_eq!((&whole["pairs"][0]["name"], &whole["pairs"][1]["batch"]), (&json!("rs1"), &json!(9)));
        assert!(whole.get("choices_of_all_pairs").is_none(), "a pair has said nothing");
        let page = |left: u64| json!({ "budget": { "choices_left": left, "choices_per_hour": 32 } });
        let whole = of_two("status", page(9), page(16));
        assert_eq!(whole["choices_of_all_pairs"], json!({ "left": 25, "per_hour": 64 }));
        let mut one = Overview::new("member in slot 0 of rs1", &["peer"]);
        one.row(false, [json!("party 1")]);
        one.count("3 routes");
        one.problems.push("party 1 is away".to_owned());
        let mut two = Overview::new("member in slot 4 of rs2", &["peer"]);
        two.ready = true;
        two.row(true, [json!("party 1")]);
        let whole: Overview = serde_json::from_value(of_two("overview", json!(one), json!(two))).expect("an overview");
        assert!(whole.ready, "the other does the work");
        let text = whole.text(true);
        assert!(text.starts_with("member in slot 0 of rs1, member in slot 4 of rs2: ready\n"), "{text}");
        assert!(text.contains("problem: rs1: party 1 is away\n") && text.contains("PAIR  PEER\n"), "{text}");
        assert!(text.contains("rs1: 3 routes"), "{text}");
    }
}
