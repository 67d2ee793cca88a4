//! The routes, in one table: a test holds it and the description together.

use std::collections::BTreeMap;

use super::problem::{Problem, ProblemKind};
use super::{Api, Call, Reply, accounts, grants, invitations, revocations, server};

/// Who may ask.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Who {
    /// No token is needed.
    Anybody,
    /// Any token.
    Reader,
    /// A token with full access.
    Operator,
}

/// What carries a request out.
#[derive(Clone, Copy)]
pub enum Handler {
    /// It may wait for the disk, or for the lock of the server.
    Waits(fn(&Api, &Call) -> Result<Reply, Problem>),
    /// The one that asks the machine of routers.
    Usage,
}

/// A route.
pub struct Route {
    pub method: &'static str,
    /// Words in braces are names.
    pub path: &'static str,
    pub who: Who,
    /// Parameters of the query.
    pub parameters: &'static [&'static str],
    pub handler: Handler,
}

type Plain = fn(&Api, &Call) -> Result<Reply, Problem>;

const fn reads(path: &'static str, parameters: &'static [&'static str], handler: Plain) -> Route {
    let handler = Handler::Waits(handler);
    Route { method: "GET", path, who: Who::Reader, parameters, handler }
}

const fn changes(method: &'static str, path: &'static str, handler: Plain) -> Route {
    Route { method, path, who: Who::Operator, parameters: &[], handler: Handler::Waits(handler) }
}

const PAGE: &[&str] = &["after", "most"];

/// All of them.
pub const ROUTES: &[Route] = &[
    Route { who: Who::Anybody, ..reads("/v1/openapi.json", &[], server::description) },
    reads("/v1/server", &[], server::describe),
    reads("/v1/accounts", PAGE, accounts::list),
    changes("POST", "/v1/accounts", accounts::open),
    reads("/v1/accounts/{principal}", &[], accounts::show),
    changes("PATCH", "/v1/accounts/{principal}", accounts::amend),
    changes("DELETE", "/v1/accounts/{principal}", accounts::close),
    reads("/v1/grants", PAGE, grants::list),
    changes("POST", "/v1/grants", grants::grant),
    changes("DELETE", "/v1/grants/{principal}/{grant}", grants::withdraw),
    reads("/v1/revocations", PAGE, revocations::list),
    changes("POST", "/v1/revocations", revocations::revoke),
    Route { parameters: &["entry"], ..changes("DELETE", "/v1/revocations", revocations::lift) },
    Route {
        handler: Handler::Usage,
        ..reads("/v1/usage", &["principal", "by", "from", "to", "format", "after", "most"], server::describe)
    },
    reads("/v1/invitations", PAGE, invitations::list),
    changes("POST", "/v1/invitations", invitations::create),
    changes("DELETE", "/v1/invitations/{invitation}", invitations::withdraw),
    Route { who: Who::Anybody, ..changes("POST", "/v1/redemptions", invitations::redeem) },
];

/// What stands in a path for the names of its route.
pub type Names = BTreeMap<&'static str, String>;

/// The route of a request, and what stands in its path for names.
///
/// # Errors
/// There is none; with the methods that the path has, if it has any.
pub fn find(method: &str, path: &str) -> Result<(&'static Route, Names), Problem> {
    let fitting: Vec<_> = ROUTES.iter().filter_map(|route| Some((route, fits(route.path, path)?))).collect();
    if fitting.is_empty() {
        let problem = Problem::new(ProblemKind::NotFound, "the API has no such path");
        return Err(problem.help("GET /v1/openapi.json describes all"));
    }
    let allow = fitting.iter().map(|(route, _)| route.method).collect::<Vec<_>>().join(", ");
    fitting.into_iter().find(|(route, _)| route.method == method).ok_or_else(|| {
        let problem = Problem::new(ProblemKind::Method, format!("the path has {allow}, and no other method"));
        problem.allow(allow)
    })
}

/// What stands for the names in a route's path, if the path is one of it. No value has characters that would have to be encoded.
fn fits(route: &'static str, path: &str) -> Option<Names> {
    let (mut expected, mut found) = (route.split('/'), path.split('/'));
    let mut names = BTreeMap::new();
    loop {
        match (expected.next(), found.next()) {
            (None, None) => return Some(names),
            (Some(expected), Some(found)) => match expected.strip_prefix('{').and_then(|name| name.strip_suffix('}')) {
                Some(name) if !found.is_empty() => drop(names.insert(name, found.to_owned())),
                None if expected == found => {}
                _ => return None,
            },
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;
    use crate::roles::key::api::DESCRIPTION;

    /// Of each operation: method and path, whether a token is needed, whether that must have full access, parameters of the query.
    type Operation = (String, bool, bool, BTreeSet<String>);

    #[test]
    fn the_description_has_every_route_with_its_parameters_and_no_other() {
        let description: Value = serde_json::from_str(DESCRIPTION).expect("JSON");
        let mut described: BTreeSet<Operation> = BTreeSet::new();
        for (path, operations) in description["paths"].as_object().expect("paths") {
            for (method, operation) in operations.as_object().expect("operations") {
                let parameters = operation["parameters"].as_array().into_iter().flatten();
                let query = parameters.filter(|parameter| parameter["in"] == "query");
                let query = query.map(|parameter| parameter["name"].as_str().expect("a name").to_owned()).collect();
                let is_open = operation["security"].as_array().is_some_and(Vec::is_empty);
                let is_full = operation["x-access"] == "full";
                described.insert((format!("{} {path}", method.to_uppercase()), !is_open, is_full, query));
            }
        }
        let routes: BTreeSet<Operation> = ROUTES
            .iter()
            .map(|route| {
                let query = route.parameters.iter().map(|name| (*name).to_owned()).collect();
                let (needs, is_full) = (route.who != Who::Anybody, route.who == Who::Operator);
                (format!("{} {}", route.method, route.path), needs, is_full, query)
            })
            .collect();
        assert_eq!(routes, described);
        assert_eq!(ROUTES.len(), described.len(), "each route once");
    }

    #[test]
    fn names_stand_in_their_places_and_other_paths_have_no_route() {
        let (route, names) = find("DELETE", "/v1/grants/7/00ff").expect("a route");
        assert_eq!(
            (route.path, names["principal"].as_str(), names["grant"].as_str()),
            ("/v1/grants/{principal}/{grant}", "7", "00ff")
        );
        for path in ["", "/", "/v1", "/v1/accounts/", "/v1/accounts//", "//v1/accounts", "/v1/grants/7", "/v2/accounts"]
        {
            let Err(problem) = find("GET", path) else { panic!("{path}") };
            assert_eq!(problem.kind, ProblemKind::NotFound, "{path}");
        }
        let Err(problem) = find("PUT", "/v1/accounts") else { panic!("a method") };
        assert_eq!((problem.kind, problem.allow.as_deref()), (ProblemKind::Method, Some("GET, POST")));
    }
}
