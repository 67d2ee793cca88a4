//! What the system is told, so that packets reach the stamper: an interface with a routing table for each kind of sender, rules
//! that look there first, marks for control groups, and what drops packets that must not leave unstamped.
//!
//! What leaves the stamper has a mark of its own, which the first rule sends past all the others. Interfaces and their routes end
//! with the process; rules that a killed process left lead to empty tables, so that packets take their usual path.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::path::Path;
use std::process::{Command, Stdio};

use tracing::{info, warn};
use wayleave_core::{Afi, Prefix};
use wayleave_dataplane::stamper::{Rule, SenderClass};
use wayleave_runtime::folder_watch::FolderWatch;
use wayleave_runtime::packets::tun::Tun;
use wayleave_runtime::routes::{MAIN, Routes, RoutingRule};

use super::filter::{self, Filter};
use super::worker::{End, Handle};
use crate::config::stamper::{Addresses, HostFile, MAX_SENDERS};
use crate::failure::{Failure, Outcome};
use crate::roles::events::{EventLine, Events, event};

/// The root of control groups of version 2, where nft looks for them.
const GROUPS: &str = "/sys/fs/cgroup";
/// Where a system with IPv6 lists its addresses.
const IPV6: &str = "/proc/net/if_inet6";
/// Whether new interfaces have none.
const NO_IPV6: &str = "/proc/sys/net/ipv6/conf/default/disable_ipv6";
const NEEDS: &str =
    "control groups and `otherwise = \"drop\"` need the program nft (package nftables), groups also their version 2";

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
    /// Those that the system has.
    families: Vec<Afi>,
    addresses: Addresses,
    sources: Vec<Prefix>,
    pub interfaces: BTreeMap<Sender, Interface>,
    priorities: Vec<u32>,
    watch: FolderWatch,
    /// What nftables was told last, if that is known.
    filter: Option<Filter>,
    /// Whether nftables did as it was told, and whether there may be a table of ours.
    is_set: bool,
    has_table: bool,
    /// Packets that the kernel has dropped, by the last look.
    pub dropped: u64,
    log: Events,
}

impl System {
    /// Removes what an earlier process left, and lets what leaves the stamper pass.
    pub fn open(file: &HostFile, log: Events) -> Outcome<Self> {
        let host = file.host.get_ref();
        let failed = |error: io::Error| {
            Failure::system("cannot set routing rules", &error)
                .help("this needs root or CAP_NET_ADMIN; the unit file grants it")
        };
        let mut routes = Routes::open().map_err(failed)?;
        let priorities: Vec<u32> = host.priorities().collect();
        let v6 = Path::new(IPV6).exists().then_some(Afi::Ipv6);
        let families: Vec<Afi> = [Afi::Ipv4].into_iter().chain(v6).collect();
        for afi in &families {
            for priority in &priorities {
                routes.remove_rules(*afi, *priority).map_err(failed)?;
            }
            let past = RoutingRule { mark: Some(*host.mark.get_ref()), ..RoutingRule::of(*afi, host.table(), MAIN) };
            routes.add_rule(&past).map_err(failed)?;
        }
        Ok(Self {
            routes,
            prefix: host.interface.get_ref().clone(),
            table: host.table(),
            families,
            addresses: host.addresses(),
            sources: host.sources.iter().map(|prefix| *prefix.get_ref()).collect(),
            interfaces: BTreeMap::new(),
            priorities,
            watch: FolderWatch::default(),
            filter: None,
            is_set: false,
            has_table: false,
            dropped: 0,
            log,
        })
    }

    /// The machine's addresses.
    pub fn local(&mut self) -> io::Result<BTreeSet<IpAddr>> {
        self.routes.addresses()
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
        let Self { routes, interfaces, table, addresses, .. } = self;
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
                let source = addresses.of(prefix.afi());
                routes.add_to_table(of_class, prefix, interface.index, source).map_err(|error| {
                    let help = match prefix.afi() {
                        Afi::Ipv4 => "`address` in [host] must be one of this machine's",
                        Afi::Ipv6 => {
                            "`address6` in [host] must be one of this machine's, and new interfaces must have IPv6 \
                             (sysctl net.ipv6.conf.default.disable_ipv6 = 0)"
                        }
                    };
                    Failure::system(format!("cannot lead packets to {prefix} to the stamper"), &error).help(help)
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
        let mut rules = Vec::new();
        for afi in &self.families {
            let rule = RoutingRule {
                mark: class.mark,
                user: class.user,
                // Who marks packets of others, by nftables, means them.
                is_own: class.mark.is_none(),
                ..RoutingRule::of(*afi, self.table + 1 + class.rank(), self.table + number)
            };
            if (class.user, class.mark) == (None, None) {
                let of_source = |source: &Prefix| RoutingRule { source: Some(*source), is_own: false, ..rule.clone() };
                rules.extend(self.sources.iter().filter(|source| source.afi() == *afi).map(of_source));
            }
            rules.push(rule);
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

    /// Lets nftables mark the packets of control groups that are there, and drop those that by `rules` may leave in no other way than stamped
    /// where the stamper does not see them. Returns whether anything has changed since the last call; if not, nobody is asked.
    pub fn set_filter(&mut self, file: &HostFile, rules: &[Rule]) -> Outcome<bool> {
        let paths = file.cgroups();
        if self.filter.is_none() && !paths.is_empty() && !Path::new(GROUPS).join("cgroup.procs").exists() {
            return Err(Failure::new(format!("there is no version 2 of control groups at {GROUPS}"))
                .help(NEEDS)
                .into());
        }
        let there = self.watch.look(Path::new(GROUPS), paths.iter().copied());
        let host = file.host.get_ref();
        let filter = Filter {
            own: *host.mark.get_ref(),
            interface: self.prefix.clone(),
            there: there.into_iter().map(|(path, number)| (path.to_owned(), number)).collect(),
            groups: paths
                .iter()
                .enumerate()
                .map(|(index, path)| ((*path).to_owned(), file.cgroup_mark(index)))
                .collect(),
            rules: rules.to_vec(),
            sources: self.sources.clone(),
        };
        if self.filter.as_ref() == Some(&filter) {
            return Ok(false);
        }
        self.report_groups(&filter);
        let is_needed = filter.is_needed();
        // Whatever comes of it: `check` tries it again.
        self.filter = Some(filter);
        if is_needed {
            let commands = self.filter.as_ref().map(Filter::commands).unwrap_or_default();
            (self.is_set, self.has_table) = (false, true);
            nft(&commands)?;
            self.is_set = true;
        } else if let Err(failures) = nft(&filter::removal())
            && std::mem::take(&mut self.has_table)
        {
            // At a start there is rarely one, and a machine without rules of the sort need not have the program.
            warn!(
                "the table {} of nftables stays: {failures}; `nft delete table inet {}` removes it",
                filter::TABLE,
                filter::TABLE
            );
        }
        Ok(true)
    }

    /// Whether other control groups are there than nftables knows.
    pub fn groups_differ(&mut self, file: &HostFile) -> bool {
        let there = self.watch.look(Path::new(GROUPS), file.cgroups());
        let known = self.filter.iter().flat_map(|filter| &filter.there);
        !there.into_iter().eq(known.map(|(path, number)| (path.as_str(), *number)))
    }

    /// Reports the groups that are missing, and those that were made since the last look.
    fn report_groups(&self, filter: &Filter) {
        let before = self.filter.as_ref();
        for (index, (group, _)) in filter.groups.iter().enumerate() {
            let is_new = before.is_none_or(|before| !before.missing().any(|path| path == group));
            match (filter.there.get(group), before.and_then(|before| before.there.get(group))) {
                (None, _) if is_new => self.log.report(group_missing_line(index, group)),
                (Some(number), other) if before.is_some() && other != Some(number) => {
                    self.log.report(group_made_line(index, group));
                }
                _ => {}
            }
        }
    }

    /// Whether a group that rules name is there.
    pub fn has_group(&self, path: &str) -> bool {
        self.filter.as_ref().is_some_and(|filter| filter.there.contains_key(path))
    }

    /// Waits until a control group may have been made or removed.
    pub async fn groups_changed(&self) {
        self.watch.changed().await;
    }

    /// Reads how many packets the kernel has dropped. Where somebody has removed the table, or it could not be set, it is set.
    pub fn check(&mut self, file: &HostFile, rules: &[Rule]) {
        if !self.filter.as_ref().is_some_and(Filter::is_needed) {
            return;
        }
        if self.is_set {
            match nft(&filter::question()).map(|text| filter::answer(&text)) {
                Ok(Some(dropped)) => {
                    self.dropped = dropped;
                    return;
                }
                _ => self.log.report(filter_removed_line()),
            }
        }
        self.filter = None;
        if let Err(failures) = self.set_filter(file, rules) {
            self.log.report(filter_refused_line(&failures.to_string()));
        }
    }

    /// Takes back everything that would stay, but what drops packets that may leave in no other way than stamped.
    pub fn close(mut self) {
        for afi in &self.families {
            for priority in &self.priorities {
                if let Err(error) = self.routes.remove_rules(*afi, *priority) {
                    let family = if *afi == Afi::Ipv4 { "-4" } else { "-6" };
                    warn!(
                        priority,
                        "cannot remove routing rules: {error}; `ip {family} rule del priority {priority}` does"
                    );
                }
            }
        }
        let table = filter::TABLE;
        // Also if it could not be set: the one of before stands then, and drops.
        if self.filter.as_ref().is_some_and(Filter::is_closed) {
            info!(
                "packets of rules with `otherwise = \"drop\"` are dropped until the role runs again; `nft delete table inet {table}` lets them leave"
            );
        } else if self.has_table && nft(&filter::removal()).is_err() {
            warn!("cannot remove the table {table} of nftables; `nft delete table inet {table}` does");
        }
    }
}

/// Whether the role's interfaces have IPv6.
pub fn has_ipv6() -> bool {
    fs::read_to_string(NO_IPV6).map_or(Path::new(IPV6).exists(), |text| text.trim() == "0")
}

/// Runs the program `nft` with these commands, and returns what it prints.
fn nft(commands: &str) -> Outcome<String> {
    let failed = |error: io::Error| Failure::system("cannot set packet filters with nft", &error).help(NEEDS);
    let mut child = Command::new("nft")
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let written = child.stdin.take().map(|mut stdin| stdin.write_all(commands.as_bytes()));
    let output = child.wait_with_output().map_err(failed)?;
    if output.status.success() && written.is_some_and(|written| written.is_ok()) {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or("it failed").to_owned();
    Err(Failure::new(format!("nft did not set its table: {said}")).help(NEEDS).into())
}

pub fn group_missing_line(index: usize, group: &str) -> EventLine {
    event!(INFO "control-group-missing" by index, { group }
        "control group {group} does not exist: its packets are stamped from when it is made")
}

pub fn group_made_line(index: usize, group: &str) -> EventLine {
    event!(INFO "control-group-made" by index, { group }
        "control group {group} was made: its packets are stamped from now on")
}

pub fn filter_removed_line() -> EventLine {
    event!(WARN "filter-removed" by 0, {}
        "the table {} of nftables is gone: it is set again; whoever loads the machine's packet filter must leave it there",
        filter::TABLE)
}

pub fn filter_refused_line(why: &str) -> EventLine {
    event!(WARN "filter-refused" by 0, { why } "the table {} of nftables is missing: {why}", filter::TABLE)
}
