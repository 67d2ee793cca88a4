//! The demonstration's exchange: processes of parties and proxies, routers, and the routes that they announce.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;
use wayleave_core::{Asn, Prefix};
use wayleave_route_server::policy::validate::Martians;

use super::expect;
use super::http;
use super::internet::{Internet, Testbed};
use super::layout::{CUSTOMER, Layout, MemberLayout, PartyLayout};
use super::overlay::SshDemo;
use crate::exchange::files::{Files, Folders, Settings};
use crate::exchange::router;
use crate::netns::{Network, NetworkNamespace, Rung};
use crate::process::wait_until;
use crate::role_process::RoleProcess;
use crate::routers::Routers;
use crate::speaker::{Identity, Routes, Speaker, routes_of_mrt};
use crate::table::{Announcement, Customer, LearnedRoute, Router, RouterError};

/// The exchange's name.
pub(super) const NAME: &str = "demo-ix";

/// Limit on each wait of a step.
pub const TIMEOUT: Duration = Duration::from_secs(90);

/// A party of the route server.
#[derive(Debug)]
pub struct Party {
    pub at: PartyLayout,
    pub role: RoleProcess,
}

impl Party {
    /// Reads a status page.
    pub fn ask(&self, path: &str) -> Result<Value, String> {
        let answer = http::get_json(&self.at.process.namespace, self.at.process.status, path);
        answer.map_err(|error| format!("party {} {path}: {error}", self.at.number))
    }
}

/// A member: its router and its proxy.
pub struct Member {
    pub at: MemberLayout,
    pub router: Box<dyn Router>,
    pub role: RoleProcess,
    announced: Vec<Announcement>,
}

impl Member {
    /// Reads a status page of its proxy.
    pub fn ask(&self, path: &str) -> Result<Value, String> {
        let answer = http::get_json(&self.at.proxy.namespace, self.at.proxy.status, path);
        answer.map_err(|error| format!("{} {path}: {error}", self.at.name))
    }
}

/// The processes and routers of the exchange, and the tables that are expected of them.
pub struct DemoExchange {
    pub rung: Rung,
    /// Configurations and keys.
    pub files: Files,
    /// Party 1, party 2.
    pub parties: [Party; 2],
    pub members: Vec<Member>,
    /// Expected contents of each member's table.
    pub expected: expect::ExpectedTables,
    /// The customer behind the last member's real router, once it announces.
    customer: Option<Speaker>,
    customer_routes: Vec<Announcement>,
    /// The internet of attesting sites, once it runs.
    pub attested: Option<Internet>,
    /// The overlay, once it runs.
    pub overlay: Option<SshDemo>,
    routers: Option<Routers>,
    binary: PathBuf,
    layout: Layout,
}

impl DemoExchange {
    /// Creates keys and configurations; starts nothing.
    pub fn new(layout: Layout, binary: &Path, routers: Option<&Routers>) -> Result<Self, String> {
        Self::named(NAME, layout, binary, routers)
    }

    /// The same under another name, as the second pair of parties of one exchange has one.
    pub fn named(name: &str, layout: Layout, binary: &Path, routers: Option<&Routers>) -> Result<Self, String> {
        let (configurations, state) = (layout.state.join("etc"), layout.state.clone());
        let settings = Settings {
            name: name.to_owned(),
            asn: expect::EXCHANGE,
            export: "direct",
            recommendation: String::new(),
            members: Vec::new(),
            routers: Vec::new(),
        };
        let files = Files::write(&layout, binary, Folders::Together { configurations, state }, settings)?;
        let role = |name: String, namespace: &NetworkNamespace, kind: &str, config: PathBuf| {
            let log = layout.state.join(format!("{name}.log"));
            RoleProcess::new(name, namespace, binary, kind, config, log)
        };
        let parties = layout.parties.clone().map(|at| Party {
            role: role(format!("party{}", at.number), &at.process.namespace, "rs", files.party(at.number)),
            at,
        });
        let member = |at: &MemberLayout| {
            Ok(Member {
                router: router(at, expect::EXCHANGE, customer(&layout, at), routers, &layout.state)?,
                role: role(format!("{}-proxy", at.name), &at.proxy.namespace, "member", files.member(&at.name)),
                at: at.clone(),
                announced: Vec::new(),
            })
        };
        let members = layout.members.iter().map(member).collect::<Result<_, String>>()?;
        Ok(Self {
            rung: layout.rung,
            members,
            parties,
            expected: expect::ExpectedTables::new(layout.next_hops()),
            customer: None,
            customer_routes: Vec::new(),
            attested: None,
            overlay: None,
            routers: routers.cloned(),
            binary: binary.to_path_buf(),
            files,
            layout,
        })
    }

    /// Where the internet of attesting sites is laid out.
    pub(super) fn testbed(&self) -> Testbed<'_> {
        match (&self.layout.network, &self.routers) {
            (Some(network), Some(routers)) => Testbed::Lan(network, routers, 20),
            _ => Testbed::Loopback(&self.layout.state),
        }
    }

    /// The namespaces' network, where there is one.
    pub(super) fn network(&self) -> Option<&Network> {
        self.layout.network.as_ref()
    }

    /// The folder for configurations, keys, state and logs.
    pub(super) fn state(&self) -> &Path {
        &self.layout.state
    }

    /// The `wayleave` binary.
    pub(super) fn binary(&self) -> &Path {
        &self.binary
    }

    /// The member named `name`.
    ///
    /// # Panics
    /// If there is none.
    pub fn member(&mut self, name: &str) -> &mut Member {
        self.members.iter_mut().find(|member| member.at.name == name).expect("a member of the layout")
    }

    /// Makes `name` announce exactly `routes`.
    pub fn announce(&mut self, name: &str, routes: &[Announcement]) -> Result<(), String> {
        let member = self.member(name);
        member.announced = routes.to_vec();
        member.router.announce(routes).map_err(text)?;
        self.update_expected(name);
        Ok(())
    }

    /// Makes `name` announce one more route.
    pub fn announce_also(&mut self, name: &str, route: Announcement) -> Result<(), String> {
        let mut routes = self.member(name).announced.clone();
        routes.push(route);
        self.announce(name, &routes)
    }

    /// Makes `name` announce a route, instead of any other that it announces to this prefix.
    pub fn replace(&mut self, name: &str, route: Announcement) -> Result<(), String> {
        let mut routes = self.member(name).announced.clone();
        routes.retain(|announced| announced.prefix != route.prefix);
        routes.push(route);
        self.announce(name, &routes)
    }

    /// Makes `name` withdraw a prefix.
    pub fn withdraw(&mut self, name: &str, prefix: Prefix) -> Result<(), String> {
        let mut routes = self.member(name).announced.clone();
        routes.retain(|route| route.prefix != prefix);
        self.announce(name, &routes)
    }

    fn update_expected(&mut self, name: &str) {
        let member = self.member(name);
        let (asn, mut routes) = (member.at.asn, member.announced.clone());
        if self.members.last().is_some_and(|last| last.at.name == name) {
            routes.extend(self.customer_routes.iter().cloned());
        }
        self.expected.announce(asn, &routes);
    }

    /// Makes the last member's customer announce up to `most` prefixes of a recorded table. Returns how many are valid, and
    /// the prefixes that every route server refuses (RFC 7948 section 4: default route, special prefixes).
    pub fn announce_table(&mut self, file: &Path, most: usize) -> Result<(usize, Vec<Prefix>), String> {
        let identity = self.customer_identity();
        let members: Vec<Asn> = self.members.iter().map(|member| member.at.asn).collect();
        let routes = routes_of_mrt(file, &identity, most, &members);
        let routes = routes.map_err(|error| format!("{}: {error}", file.display()))?;
        let (refused, valid): (Vec<Prefix>, Vec<Prefix>) = routes.keys().copied().partition(is_refused);
        let count = valid.len();
        self.customer_routes = valid.into_iter().map(Announcement::of).collect();
        let name = self.members[self.members.len() - 1].at.name.clone();
        self.update_expected(&name);
        self.start_customer(identity, routes);
        Ok((count, refused))
    }

    fn customer_identity(&self) -> Identity {
        let last = &self.layout.members[self.layout.members.len() - 1];
        Identity {
            name: CUSTOMER.0.to_owned(),
            asn: CUSTOMER.1,
            address: [198, 18, 0, 1].into(),
            address6: std::net::Ipv6Addr::LOCALHOST,
            peer_asn: last.asn,
            peer: ([198, 18, 0, 2], 179).into(),
        }
    }

    /// With a real router the customer is a speaker behind it; a simulated router announces the routes itself.
    fn start_customer(&mut self, identity: Identity, routes: Routes) {
        let Some(last) = self.members.last_mut() else { return };
        if self.rung == Rung::Simulated {
            last.router.pass_on(routes);
            return;
        }
        let speaker = Speaker::start(identity, NetworkNamespace::Named(CUSTOMER.0.to_owned()));
        speaker.announce(routes);
        self.customer = Some(speaker);
    }

    /// Makes the exchange recommend `favourite` over all others.
    pub fn recommend(&mut self, favourite: &str) -> Result<(), String> {
        self.files.recommend(favourite)?;
        self.parties[0].role.reload()
    }

    /// Waits until every member's table is as expected. Returns the time that took, or the first difference.
    pub fn settle(&mut self) -> Result<Duration, String> {
        let begin = Instant::now();
        let mut wrong = String::new();
        let settled = wait_until(TIMEOUT, || match self.first_difference() {
            None => Some(()),
            Some(difference) => {
                wrong = difference;
                None
            }
        });
        settled.map(|()| begin.elapsed()).ok_or_else(|| format!("after {} s: {wrong}", TIMEOUT.as_secs()))
    }

    /// The first difference between a member's table and the expected one.
    pub(super) fn first_difference(&mut self) -> Option<String> {
        let expected = &self.expected;
        self.members.iter_mut().find_map(|member| {
            let difference = match member.router.table() {
                Ok(table) => expected.difference(member.at.asn, &table),
                Err(error) => Some(error.to_string()),
            };
            difference.map(|text| format!("{}: {text}", member.at.name))
        })
    }

    /// Every member's table.
    pub fn tables(&mut self) -> Result<Vec<Vec<LearnedRoute>>, String> {
        self.members.iter_mut().map(|member| member.router.table().map_err(text)).collect()
    }

    /// Processes that have exited, with the ends of their logs.
    pub fn exited(&mut self) -> Vec<String> {
        let parties = self.parties.iter_mut().map(|party| &mut party.role);
        let roles = parties.chain(self.members.iter_mut().map(|member| &mut member.role));
        let exited =
            roles.filter_map(|role| (!role.is_running()).then(|| format!("{}:\n{}", role.name(), role.log_tail())));
        exited.collect()
    }
}

fn is_refused(prefix: &Prefix) -> bool {
    prefix.len() == 0 || Martians::AllowDocumentation.block_of(prefix).is_some()
}

fn text(error: RouterError) -> String {
    error.to_string()
}

/// The customer of the last member.
fn customer(layout: &Layout, at: &MemberLayout) -> Option<Customer> {
    let behind = layout.members.last().is_some_and(|last| last.name == at.name);
    let customer = Customer { asn: CUSTOMER.1, address: [198, 18, 0, 1].into(), local_address: [198, 18, 0, 2].into() };
    behind.then_some(customer)
}
