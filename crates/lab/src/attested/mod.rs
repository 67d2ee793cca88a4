//! Networks that attest: real routers behind attesting proxies, and others without, from a description.
//!
//! Everything is done as operators would do it: commands of the program make the trust anchor, keys, profiles and records, and each
//! proxy is a process of its own that runs the configuration in its folder.

pub mod plan;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use wayleave_core::Prefix;

use self::plan::{AsPlan, Plan};
use crate::demo::internet::{self, Internet, ProxyPlan, Testbed};
use crate::laboratory::processes::{self, Role};
use crate::laboratory::routers;
use crate::laboratory::{Laboratory, until_nothing_is_missing};
use crate::netns::Network;
use crate::routers::Routers;

/// Host number of the first router on the LAN.
const FIRST_HOST: u8 = 1;
/// Routes of a proxy that are looked at, at most.
const MOST_ROUTES: usize = 20_000;
/// How long a proxy has to end by itself.
const END: Duration = Duration::from_secs(5);

/// Networks that run. Their processes end with this value.
pub struct Attested {
    plan: Plan,
    internet: Internet,
    folder: PathBuf,
}

/// What became of a prefix on its way out of a proxy, or into it, by the name of the neighbour.
struct RouteSeen {
    neighbour: String,
    is_from_outside: bool,
    prefix: String,
    verdict: String,
    is_passed: bool,
}

impl Attested {
    /// Lays the plan out in `network`, with keys, configurations, state and logs in `folder`, and starts everything.
    ///
    /// # Errors
    /// What failed, and what the failing part said.
    pub fn start(
        plan: Plan,
        (network, routers): (&Network, &Routers),
        folder: &Path,
        binary: &Path,
        say: &mut dyn FnMut(&str),
    ) -> Result<Self, String> {
        for one in &plan.networks {
            routers::make_folder(folder, network.state(), &one.name)?;
        }
        let testbed = Testbed::Lan(network, routers, FIRST_HOST);
        let mut internet = Internet::apart(sites(&plan), testbed, binary, folder)?;
        let attesting = plan.networks.iter().filter(|one| one.proxy.is_some()).count();
        say(&format!(
            "{} networks, {attesting} of them with a profile and a record that the trust anchor signed",
            plan.networks.len()
        ));
        for one in &plan.networks {
            internet.site(&one.name).router.announce(&one.routes).map_err(|error| error.to_string())?;
        }
        internet.start()?;
        let mut software = BTreeSet::new();
        for one in &plan.networks {
            let router = &*internet.site(&one.name).router;
            routers::put_commands(folder, &one.name, router)?;
            software.insert(router.software());
        }
        say(&format!("routers: {}", software.into_iter().collect::<Vec<_>>().join(", ")));
        Ok(Self { plan, internet, folder: folder.to_path_buf() })
    }

    /// What each proxy has made of its routes, by its network.
    fn seen(&mut self) -> Result<BTreeMap<String, Vec<RouteSeen>>, String> {
        let mut all = BTreeMap::new();
        for one in self.plan.networks.iter().filter(|one| one.proxy.is_some()) {
            let answer = self.internet.site(&one.name).ask(&format!("/api/v1/routes?most={MOST_ROUTES}"))?;
            let text = |route: &Value, key: &str| route[key].as_str().unwrap_or_default().to_owned();
            let route = |route: &Value| RouteSeen {
                neighbour: text(route, "pair"),
                is_from_outside: route["direction"] == "in",
                prefix: text(route, "prefix"),
                verdict: text(route, "verdict"),
                is_passed: route["passed"] == true,
            };
            let routes = answer["routes"].as_array().into_iter().flatten();
            all.insert(one.name.clone(), routes.map(route).collect());
        }
        Ok(all)
    }

    /// The first thing that is still to happen; an error if it never will.
    fn first_missing(&mut self) -> Result<Option<String>, String> {
        if let Some(ended) = self.internet.exited().into_iter().next() {
            return Err(format!("a proxy has ended:\n{ended}"));
        }
        if let Some(missing) = self.internet.first_missing() {
            return Ok(Some(missing));
        }
        let seen = match self.seen() {
            Ok(seen) => seen,
            Err(reason) => return Ok(Some(reason)),
        };
        if let Some((network, route)) = seen
            .iter()
            .find_map(|(network, routes)| Some((network, routes.iter().find(|route| route.verdict == "waits")?)))
        {
            return Ok(Some(format!("{} waits in the proxy of {network}", route.prefix)));
        }
        let mut tables = BTreeMap::new();
        for one in &self.plan.networks {
            let table = self.internet.site(&one.name).router.table().map_err(|error| error.to_string())?;
            tables.insert(one.name.clone(), table.into_iter().map(|route| route.prefix).collect());
        }
        let routes = self.plan.networks.iter().flat_map(|one| one.routes.iter().map(move |route| (one, route.prefix)));
        Ok(routes.into_iter().find_map(|(origin, prefix)| self.first_without(origin, prefix, &seen, &tables)))
    }

    /// The first network that a route has not reached, though a neighbour has it and no proxy holds it back.
    fn first_without(
        &self,
        origin: &AsPlan,
        prefix: Prefix,
        seen: &BTreeMap<String, Vec<RouteSeen>>,
        tables: &BTreeMap<String, BTreeSet<Prefix>>,
    ) -> Option<String> {
        let text = prefix.to_string();
        let find = |at: &String, neighbour: &String, is_from_outside: bool| {
            let is_it = |route: &&RouteSeen| {
                route.prefix == text && route.neighbour == *neighbour && route.is_from_outside == is_from_outside
            };
            seen.get(at).and_then(|routes| routes.iter().find(is_it))
        };
        let mut reached = BTreeSet::from([&origin.name]);
        loop {
            let both = self.plan.sessions.iter().flat_map(|(from, to)| [(from, to), (to, from)]);
            let mut next = None;
            for (from, to) in both.filter(|(from, to)| reached.contains(from) && !reached.contains(to)) {
                let is_held_back = find(from, to, false).is_some_and(|route| !route.is_passed);
                let is_rejected = find(to, from, true).is_some_and(|route| !route.is_passed);
                if is_held_back || is_rejected {
                    continue;
                }
                if !tables.get(to).is_some_and(|table| table.contains(&prefix)) {
                    return Some(format!("the router of {to} does not have {prefix} from {from} yet"));
                }
                next = Some(to);
            }
            reached.insert(next?);
        }
    }
}

/// The plan as the demonstration's internets have theirs.
fn sites(plan: &Plan) -> internet::Plan {
    let sites = plan.networks.iter().fold(internet::Plan::default(), |sites, one| match &one.proxy {
        None => sites.legacy(&one.name, one.asn.0, one.software),
        Some(proxy) => {
            let of =
                ProxyPlan { policy: proxy.policy.clone(), since: proxy.since, ..ProxyPlan::strict(&proxy.originates) };
            sites.attesting(&one.name, one.asn.0, one.software, of)
        }
    });
    plan.sessions.iter().fold(sites, |sites, (from, to)| sites.link(from, to))
}

impl Laboratory for Attested {
    fn settle(&mut self, say: &mut dyn FnMut(&str)) -> Result<(), String> {
        until_nothing_is_missing(|| self.first_missing())?;
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for route in self.seen()?.into_values().flatten().filter(|route| route.is_from_outside) {
            *counts.entry(route.verdict).or_default() += 1;
        }
        let counts: Vec<String> = counts.into_iter().map(|(verdict, count)| format!("{verdict} {count}")).collect();
        say(&format!("every session is up; what the proxies say of routes from outside: {}", counts.join(", ")));
        Ok(())
    }

    fn describe(&self) -> Value {
        let sites = || self.internet.sites.iter();
        let proxies = sites().filter_map(|site| Some((site, site.proxy.as_ref()?)));
        let proxies =
            proxies.map(|(site, process)| processes::row(&self.folder, &site.plan.name, Role::Attest, process));
        let routers =
            sites().map(|site| routers::row(&self.folder, &site.plan.name, site.plan.software, &*site.router));
        json!({ "processes": proxies.chain(routers).collect::<Vec<_>>(), "commands": [], "warnings": [] })
    }

    fn reap(&mut self) {
        self.internet.exited();
    }

    fn stop(&mut self) -> usize {
        self.internet.sites.iter_mut().for_each(|site| site.router.kill());
        usize::from(!self.internet.stop(END))
    }
}
