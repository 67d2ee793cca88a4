//! An exchange: two parties, members' proxies, and real routers. The demonstration plays with one, `up` starts one from a
//! description.
//!
//! Everything is done as operators would do it: commands of the program make keys and member set, and each party and proxy is a
//! process of its own that runs the configuration in its folder.

pub mod files;
pub mod layout;
pub mod plan;

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use serde_json::{Value, json};
use wayleave_config::rs::Export;
use wayleave_core::Asn;

use self::files::{Files, Folders, Settings};
use self::layout::{Layout, MemberLayout, Software};
use self::plan::{Member, Plan};
use crate::bird::Bird;
use crate::frr::Frr;
use crate::gobgp::Gobgp;
use crate::laboratory::processes::{Processes, Role};
use crate::laboratory::routers::PlacedRouters;
use crate::laboratory::{Laboratory, until_nothing_is_missing};
use crate::netns::{Network, Rung};
use crate::openbgpd::OpenBgpd;
use crate::routers::Routers;
use crate::speaker::SpeakingRouter;
use crate::table::{Customer, Peering, Router};

/// A member's router: a real one, or the laboratory's own where there is none. Its files go to a folder in `state`.
pub(crate) fn router(
    at: &MemberLayout,
    exchange: Asn,
    customer: Option<Customer>,
    routers: Option<&Routers>,
    state: &Path,
) -> Result<Box<dyn Router>, String> {
    let peering = Peering {
        name: at.name.clone(),
        asn: at.asn,
        address: at.router,
        peer_asn: exchange,
        peer_address: match at.bgp.ip() {
            IpAddr::V4(address) => address,
            IpAddr::V6(_) => Ipv4Addr::UNSPECIFIED,
        },
        customer,
    };
    let namespace = at.router_namespace.clone();
    let Some(routers) = routers else {
        return Ok(Box::new(SpeakingRouter::new(namespace, &peering, at.bgp.port())));
    };
    let installation = routers.of(at.software.package());
    let installation = installation.ok_or_else(|| format!("{}: nobody has fetched its router", at.name))?;
    Ok(match at.software {
        Software::Bird => Box::new(Bird::new(installation, namespace, peering, state)),
        Software::Frr => Box::new(Frr::new(installation, namespace, peering, state)),
        Software::Gobgp => Box::new(Gobgp::new(installation, namespace, peering, state)),
        Software::OpenBgpd => Box::new(OpenBgpd::new(installation, namespace, peering, state)),
    })
}

/// A running exchange. Its processes end with it.
pub struct Exchange {
    plan: Plan,
    processes: Processes,
    /// In the order of members.
    routers: PlacedRouters,
    warnings: Vec<String>,
}

impl Exchange {
    /// Lays the plan out in `network`, with keys, configurations, state and logs in `folder`, and starts everything.
    ///
    /// # Errors
    /// What failed, and what the failing part said.
    pub fn start(
        plan: Plan,
        (network, rung, routers): (&Network, Rung, &Routers),
        folder: &Path,
        binary: &Path,
        say: &mut dyn FnMut(&str),
    ) -> Result<Self, String> {
        let members = plan.members.iter().map(|member| (member.name.clone(), member.asn, member.software));
        let layout = Layout::in_network(rung, network, members).map_err(|error| error.to_string())?;
        say(&format!("{} namespaces", plan.places().count()));
        let settings = Settings {
            name: plan.name.clone(),
            asn: plan.asn,
            export: match plan.export {
                Export::Direct => "direct",
                Export::Mpc => "mpc",
            },
            recommendation: plan.recommendation_lines(),
            members: plan.members.iter().map(|member| member.policy.clone()).collect(),
            routers: plan.members.iter().map(Member::router_lines).collect(),
        };
        Files::write(&layout, binary, Folders::Apart(folder.to_path_buf()), settings)?;
        say(&format!("two operators have signed the member set, with {} members", plan.members.len()));
        let mut exchange = Self {
            routers: PlacedRouters::new(folder, network),
            processes: Processes::new(folder, binary),
            warnings: Vec::new(),
            plan,
        };
        exchange.start_processes()?;
        exchange.start_routers(&layout, routers)?;
        let software = exchange.routers.software();
        say(&format!("every process answers; routers: {}", software.join(", ")));
        Ok(exchange)
    }

    fn start_processes(&mut self) -> Result<(), String> {
        let parties = ["party1", "party2"].map(|party| (party.to_owned(), Role::Party)).into_iter();
        let members = self.plan.members.iter().map(|member| (member.name.clone(), Role::Member));
        let all: Vec<(String, Role)> = parties.chain(members).collect();
        for (place, role) in &all {
            self.processes.begin(place, *role, self.plan.namespace(place))?;
        }
        all.iter().try_for_each(|(place, _)| self.processes.wait_for(place))
    }

    fn start_routers(&mut self, layout: &Layout, routers: &Routers) -> Result<(), String> {
        for (member, at) in self.plan.members.iter().zip(&layout.members) {
            let router = |state: &Path| router(at, self.plan.asn, None, Some(routers), state);
            self.routers.start(&member.name, member.software, &member.routes, router)?;
        }
        Ok(())
    }

    /// The first member whose router does not have yet all that it is to have.
    fn first_missing(&mut self) -> Result<Option<String>, String> {
        self.processes.first_ended().map_or(Ok(()), Err)?;
        if let Some(down) = self.routers.first_down()? {
            return Ok(Some(down));
        }
        let status = self.plan.members.iter().map(|member| self.processes.page(&member.name, "/api/v1/status"));
        let status: Vec<Value> = match status.collect() {
            Ok(status) => status,
            Err(reason) => return Ok(Some(reason)),
        };
        for (member, status) in self.plan.members.iter().zip(&status) {
            let (name, number) = (&member.name, |key: &str| status[key].as_u64().unwrap_or_default());
            let announces = member.routes.len() as u64;
            let missing = match () {
                () if number("router_routes") != announces => {
                    format!("{name}'s proxy has {} of the {announces} routes of its router", number("router_routes"))
                }
                () if status["synced"] != true => format!("{name} has not been sent all routes"),
                () if number("unconfirmed") > 0 => {
                    format!("the parties have not applied {} routes of {name}", number("unconfirmed"))
                }
                () if number("awaiting") > 0 => format!("{name} awaits the choice of {} routes", number("awaiting")),
                () => continue,
            };
            return Ok(Some(missing));
        }
        // Whoever may not open a route learns that it exists all the same.
        let all = match self.processes.page("party1", "/api/v1/status") {
            Ok(party) if party["rounds"] != 0 => {
                return Ok(Some(format!("{} choices are being made", party["rounds"])));
            }
            Ok(party) => party["objects"].clone(),
            Err(reason) => return Ok(Some(reason)),
        };
        for (member, status) in self.plan.members.iter().zip(&status) {
            if status["objects"] != all {
                return Ok(Some(format!("{} knows {} of {all} routes", member.name, status["objects"])));
            }
            let further = status["further_paths"].as_u64().unwrap_or_default();
            let installed = status["installed"].as_u64().map(|installed| installed + further);
            let has = self.routers.routes(&member.name)?;
            if Some(has as u64) != installed {
                let of = installed.unwrap_or_default();
                return Ok(Some(format!("the router of {} has {has} of {of} routes", member.name)));
            }
        }
        Ok(None)
    }

    /// Routes that a proxy does not announce, each as a warning.
    fn warn_of_withheld(&mut self) {
        for member in &self.plan.members {
            let Ok(status) = self.processes.page(&member.name, "/api/v1/status") else { continue };
            for route in status["withheld"].as_array().into_iter().flatten() {
                let (prefix, why) = (route["prefix"].as_str(), route["why"].as_str());
                let [prefix, why] = [prefix, why].map(Option::unwrap_or_default);
                self.warnings.push(format!("{} does not announce {prefix}: {why}", member.name));
            }
        }
    }
}

impl Laboratory for Exchange {
    fn settle(&mut self, say: &mut dyn FnMut(&str)) -> Result<(), String> {
        until_nothing_is_missing(|| self.first_missing())?;
        self.warn_of_withheld();
        let mut counts = Vec::new();
        for member in &self.plan.members {
            counts.push(format!("{} {}", member.name, self.routers.routes(&member.name)?));
        }
        let announced: usize = self.plan.members.iter().map(|member| member.routes.len()).sum();
        say(&format!("{announced} routes are announced; in the routers' tables: {}", counts.join(", ")));
        Ok(())
    }

    fn describe(&self) -> Value {
        let rows = [self.processes.describe(), self.routers.describe()].concat();
        json!({ "processes": rows, "commands": [], "warnings": self.warnings })
    }

    fn reap(&mut self) {
        self.processes.reap();
    }

    fn stop(&mut self) -> usize {
        self.routers.stop();
        self.processes.stop()
    }
}
