//! What the system is told, so that packets reach the stamper: an interface with a routing table for each kind of sender, rules
//! that look there first, and marks for control groups.
//!
//! What leaves the stamper has a mark of its own, which the first rule sends past all the others. Interfaces and their routes end
//! with the process; rules that a killed process left lead to empty tables, so that packets take their usual path.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::process::{Command, Stdio};

use tracing::warn;
use wayleave_core::{Afi, Prefix};
use wayleave_dataplane::stamper::SenderClass;
use wayleave_runtime::packets::tun::Tun;
use wayleave_runtime::routes::{MAIN, Routes, RoutingRule};

use super::worker::{End, Handle};
use crate::config::stamper::{HostFile, MAX_SENDERS};
use crate::failure::{Failure, Outcome};

/// The table of nftables that marks control groups.
const NFTABLES: &str = "wayleave_stamper";

/// User and mark.
type Sender = (Option<u32>, Option<u32>);

/// An interface in use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Interface {
    pub number: u32,
    pub name: String,
    pub index: u32,
    pub to: Vec<Prefix>,
    mtu: u32,
    rules: Vec<RoutingRule>,
}

/// Interfaces, tables and rules in use.
pub struct System {
    routes: Routes,
    prefix: String,
    table: u32,
    address: Option<IpAddr>,
    sources: Vec<Prefix>,
    pub interfaces: BTreeMap<Sender, Interface>,
    priorities: Vec<u32>,
    has_nftables: bool,
}

impl System {
    /// Removes what an earlier process left, and lets what leaves the stamper pass.
    pub fn open(file: &HostFile) -> Outcome<Self> {
        let host = file.host.get_ref();
        let failed = |error: io::Error| {
            Failure::system("cannot set routing rules", &error)
                .help("this needs root or CAP_NET_ADMIN; the unit file grants it")
        };
        let mut routes = Routes::open().map_err(failed)?;
        let priorities: Vec<u32> = host.priorities().collect();
        for priority in &priorities {
            routes.remove_rules(Afi::Ipv4, *priority).map_err(failed)?;
        }
        let past = RoutingRule { mark: Some(*host.mark.get_ref()), ..RoutingRule::of(Afi::Ipv4, host.table(), MAIN) };
        routes.add_rule(&past).map_err(failed)?;
        Ok(Self {
            routes,
            prefix: host.interface.get_ref().clone(),
            table: host.table(),
            address: host.address.as_ref().map(|address| IpAddr::V4(address.0)),
            sources: host.sources.iter().map(|prefix| *prefix.get_ref()).collect(),
            interfaces: BTreeMap::new(),
            priorities,
            has_nftables: false,
        })
    }

    /// Hands the packets of these classes to the worker, each class by an interface of its own with this MTU, and no others.
    pub async fn set(&mut self, classes: &[(SenderClass, u32)], worker: &Handle) -> Outcome {
        let is_kept = |sender: &Sender, interface: &Interface| {
            let same =
                |(class, mtu): &&(SenderClass, u32)| (class.user, class.mark) == *sender && *mtu == interface.mtu;
            classes.iter().any(|class| same(&class))
        };
        let ended = self.interfaces.iter().filter(|(sender, interface)| !is_kept(sender, interface));
        let ended: Vec<Sender> = ended.map(|(sender, _)| *sender).collect();
        for sender in ended {
            self.remove(sender, worker).await;
        }
        for (class, mtu) in classes {
            self.set_class(class, *mtu, worker)?;
        }
        Ok(())
    }

    fn set_class(&mut self, class: &SenderClass, mtu: u32, worker: &Handle) -> Outcome {
        let sender = (class.user, class.mark);
        if !self.interfaces.contains_key(&sender) {
            self.add(class, mtu, worker)?;
        }
        let Self { routes, interfaces, table, address, .. } = self;
        let Some(interface) = interfaces.get_mut(&sender) else { return Ok(()) };
        let of_class = *table + interface.number;
        for prefix in interface.to.iter().filter(|prefix| !class.to.contains(prefix)) {
            if let Err(error) = routes.remove_from_table(of_class, prefix, interface.index) {
                warn!(%prefix, "cannot remove a route to the stamper: {error}");
            }
        }
        let before = std::mem::take(&mut interface.to);
        for prefix in &class.to {
            if !before.contains(prefix) {
                routes.add_to_table(of_class, prefix, interface.index, *address).map_err(|error| {
                    Failure::system(format!("cannot lead packets to {prefix} to the stamper"), &error)
                        .help("`address` in [host] must be one of this machine's")
                })?;
            }
            interface.to.push(*prefix);
        }
        Ok(())
    }

    /// Makes the interface of a class, and the rules that look in its table.
    fn add(&mut self, class: &SenderClass, mtu: u32, worker: &Handle) -> Outcome {
        let taken: Vec<u32> = self.interfaces.values().map(|interface| interface.number).collect();
        let free = (0..MAX_SENDERS as u32).find(|number| !taken.contains(number));
        let number = free.ok_or_else(|| Failure::new(format!("more than {MAX_SENDERS} senders are told apart")))?;
        let name = format!("{}{number}", self.prefix);
        let tun = Tun::open(&name, mtu).map_err(|error| {
            Failure::system(format!("cannot make the TUN interface {name}"), &error)
                .help("this needs /dev/net/tun and root or CAP_NET_ADMIN; the unit file grants it")
        })?;
        let rule = RoutingRule {
            mark: class.mark,
            user: class.user,
            // Who marks packets of others, by nftables, means them.
            is_own: class.mark.is_none(),
            ..RoutingRule::of(Afi::Ipv4, self.table + 1 + class.rank(), self.table + number)
        };
        let mut rules = vec![rule.clone()];
        if (class.user, class.mark) == (None, None) {
            let of_source = |source: &Prefix| RoutingRule { source: Some(*source), is_own: false, ..rule.clone() };
            rules.extend(self.sources.iter().map(of_source));
        }
        for rule in &rules {
            let added = self.routes.add_rule(rule);
            added.map_err(|error| Failure::system("cannot set a routing rule", &error))?;
        }
        let interface =
            Interface { number, name: tun.name().to_owned(), index: tun.index(), to: Vec::new(), mtu, rules };
        self.interfaces.insert((class.user, class.mark), interface);
        let end = End { number, user: class.user, mark: class.mark, tun };
        worker.send(move |worker| worker.ends.push(end));
        Ok(())
    }

    async fn remove(&mut self, sender: Sender, worker: &Handle) {
        let Some(interface) = self.interfaces.remove(&sender) else { return };
        for rule in &interface.rules {
            if let Err(error) = self.routes.remove_rule(rule) {
                warn!("cannot remove a routing rule: {error}");
            }
        }
        // The interface ends with its descriptor; another of that name may follow at once.
        let _ = worker.ask(move |worker| worker.ends.retain(|end| end.number != interface.number)).await;
    }

    /// Lets nftables mark the packets of control groups.
    pub fn mark_cgroups(&mut self, file: &HostFile) -> Outcome {
        let groups = file.cgroups();
        if groups.is_empty() && !self.has_nftables {
            return Ok(());
        }
        let rules: String = groups
            .iter()
            .enumerate()
            .map(|(index, path)| {
                let level = path.split('/').count();
                format!("    socket cgroupv2 level {level} \"{path}\" meta mark set {}\n", file.cgroup_mark(index))
            })
            .collect();
        // A table is replaced as a whole: whoever reads it sees the old rules or the new ones.
        let table = format!(
            "table ip {NFTABLES}\ndelete table ip {NFTABLES}\ntable ip {NFTABLES} {{\n  chain marks {{\n    \
             type route hook output priority mangle; policy accept;\n    meta mark {} accept\n{rules}  }}\n}}\n",
            file.host.get_ref().mark.get_ref()
        );
        nft(&table)?;
        self.has_nftables = true;
        Ok(())
    }

    /// Takes back everything that would stay.
    pub fn close(mut self) {
        for priority in &self.priorities {
            if let Err(error) = self.routes.remove_rules(Afi::Ipv4, *priority) {
                warn!(priority, "cannot remove routing rules: {error}; `ip rule del priority {priority}` does");
            }
        }
        if self.has_nftables && nft(&format!("delete table ip {NFTABLES}\n")).is_err() {
            warn!("cannot remove the table {NFTABLES} of nftables; `nft delete table ip {NFTABLES}` does");
        }
    }
}

/// Runs the program `nft` with these commands.
fn nft(commands: &str) -> Outcome {
    let help = "control groups need the program nft (package nftables) and version 2 of control groups";
    let failed = |error: io::Error| Failure::system("cannot mark control groups with nft", &error).help(help);
    let mut child = Command::new("nft")
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let written = child.stdin.take().map(|mut stdin| stdin.write_all(commands.as_bytes()));
    let output = child.wait_with_output().map_err(failed)?;
    if output.status.success() && written.is_some_and(|written| written.is_ok()) {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or("it failed").to_owned();
    Err(Failure::new(format!("nft did not mark control groups: {said}")).help(help).into())
}
