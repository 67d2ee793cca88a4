//! What the machine's packet filter (nftables) and its settings of forwarding are told: an exit's address translation, with the limits
//! within which members may use it, and the mark of what comes for the gateway's own sockets.
//!
//! All of it is one nftables table, which is replaced as a whole and removed at the end. Settings are written down before any is changed,
//! and set back at the end, or at the next start after a kill. What was written down before the machine started counts for nothing.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use tracing::{info, warn};
use wayleave_core::{Afi, Prefix};
use wayleave_dataplane::gateway::internet::{CLOSED_V4, CLOSED_V6, OPEN_V6, is_wide};
use wayleave_runtime::store::{Change, FileStore, Store, StoreError};

use super::host_routes::{HostRoutes, user_of};
use crate::failure::{Failure, Outcome};

/// Table of the state: the former value of each setting that was changed, by its name, and the keys below.
const TABLE: &str = "host";
/// Keys there: numbers of a table of the filter, and of routes, that a gateway has made.
const FILTER: &str = "filter";
const ROUTES: &str = "routes";
/// How long the disk is waited for before settings are changed, and once they are set back.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
const END_TIMEOUT: Duration = Duration::from_secs(2);
/// Where the kernel's settings are.
const SETTINGS: &str = "/proc/sys";
/// Connections of one member's host (of IPv6, its /64) through an exit, so that no member takes the machine's table of connections.
const CONNECTIONS: u32 = 4_096;
/// The ports outside of translated connections: above those that the machine's own sockets are given (`ip_local_port_range`), so that a
/// member does not take what is meant for them.
const PORTS: &str = "61000-65535";

/// What is to be in the filter.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HostRules {
    pub exit: Option<Exit>,
    /// What comes for the gateway's own sockets gets their mark, so that a strict reverse path filter looks where answers go.
    pub has_mark: bool,
}

/// Members reach the Internet through this gateway.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Exit {
    /// The prefixes of the membership.
    pub granted: Vec<Prefix>,
    /// The networks beside the machine, which are not the Internet.
    pub beside: BTreeSet<Prefix>,
}

impl HostRules {
    fn is_exit(&self, afi: Afi) -> bool {
        let granted = self.exit.iter().flat_map(|exit| &exit.granted);
        granted.into_iter().any(|prefix| is_wide(prefix) && prefix.afi() == afi)
    }
}

/// Settings that are changed together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Group {
    Mark,
    Forwarding(Afi),
}

const GROUPS: [(Group, &str); 3] =
    [(Group::Mark, "mark"), (Group::Forwarding(Afi::Ipv4), "ipv4"), (Group::Forwarding(Afi::Ipv6), "ipv6")];

impl Group {
    /// The settings in the order in which they are changed, each with its new value; without one it changes with the others.
    fn settings(self, interface: &str) -> Vec<(String, Option<&'static str>)> {
        let of_interfaces = |family: &str, what: &str| -> Vec<String> {
            let all = fs::read_dir(format!("{SETTINGS}/net/{family}/conf")).into_iter().flatten().flatten();
            let all = all.filter_map(|entry| entry.file_name().into_string().ok());
            all.filter(|name| name != interface).map(|name| format!("net/{family}/conf/{name}/{what}")).collect()
        };
        let noted = |names: Vec<String>| names.into_iter().map(|name| (name, None));
        let mut settings: Vec<(String, Option<&'static str>)> = Vec::new();
        match self {
            Self::Mark => settings.push(("net/ipv4/conf/all/src_valid_mark".to_owned(), Some("1"))),
            Self::Forwarding(Afi::Ipv4) => {
                settings.push(("net/ipv4/conf/all/accept_redirects".to_owned(), None));
                settings.extend(noted(of_interfaces("ipv4", "forwarding")));
                settings.push((forwarding(Afi::Ipv4).to_owned(), Some("1")));
            }
            Self::Forwarding(Afi::Ipv6) => {
                // A machine that forwards ignores what routers advertise, its own default route among it, unless each interface is told otherwise.
                for name in of_interfaces("ipv6", "accept_ra") {
                    if read(&name).is_ok_and(|value| value == "1") {
                        settings.push((name, Some("2")));
                    }
                }
                settings.extend(noted(of_interfaces("ipv6", "forwarding")));
                settings.push((forwarding(Afi::Ipv6).to_owned(), Some("1")));
            }
        }
        settings
    }

    fn name(self) -> &'static str {
        GROUPS.iter().find(|(group, _)| *group == self).map_or("", |(_, name)| name)
    }
}

/// A setting that was changed, and what it was.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Changed {
    group: Group,
    name: String,
    before: String,
}

/// What the filter was told, and which settings were changed.
pub struct HostFilter {
    interface: String,
    /// The gateway's routing table and mark, after which the filter's table is named.
    number: u32,
    /// This start of the machine.
    boot: String,
    store: Arc<FileStore>,
    changed: Vec<Changed>,
    has_table: bool,
    /// What is set; not known after a kill, and where it failed.
    is_set: Option<HostRules>,
    /// What of it could not be set.
    faults: Vec<String>,
}

impl HostFilter {
    /// Takes up what a gateway left that was killed, and sets back what it left under another number. The first [`HostFilter::set`] sets back
    /// what is not wanted of the rest.
    ///
    /// # Errors
    /// If the state cannot be read.
    pub fn open(interface: &str, number: u32, store: Arc<FileStore>) -> Result<Self, StoreError> {
        let boot = read("kernel/random/boot_id").unwrap_or_else(|_| "-".to_owned());
        let (mut changed, mut over, mut tables) = (Vec::new(), Vec::new(), Vec::new());
        for (key, value) in store.load(TABLE)? {
            let (name, value) =
                (String::from_utf8_lossy(&key).into_owned(), String::from_utf8_lossy(&value).into_owned());
            let mut parts = value.splitn(3, ' ');
            let (of, kind, before) = (parts.next(), parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
            let group = GROUPS.iter().find(|(_, known)| *known == kind).map(|(group, _)| *group);
            match group {
                _ if of != Some(&boot) => over.push(name),
                Some(group) => changed.push(Changed { group, name, before: before.to_owned() }),
                None => tables.push((name, before.parse::<u32>().unwrap_or(number))),
            }
        }
        // In the order in which a group is changed, of which the last one lets through.
        changed.sort_by_key(|changed| [Afi::Ipv4, Afi::Ipv6].iter().any(|afi| changed.name == forwarding(*afi)));
        let has_table = tables.iter().any(|(name, of)| name == FILTER && *of == number);
        let is_set = (changed.is_empty() && !has_table).then(HostRules::default);
        let filter = Self {
            interface: interface.to_owned(),
            number,
            boot,
            store,
            changed,
            has_table,
            is_set,
            faults: Vec::new(),
        };
        for (name, of) in tables.into_iter().filter(|(_, of)| *of != number) {
            // Another gateway may have taken the number up since.
            match (user_of(of, interface), name.as_str()) {
                (Some(_), _) => {}
                (None, FILTER) => remove_table(of),
                (None, _) => HostRoutes::clear(of),
            }
            over.push(name);
        }
        filter.forget(over);
        Ok(filter)
    }

    /// Writes down that routes are in the table of this number.
    ///
    /// # Errors
    /// If the disk does not take it.
    pub fn note_routes(&self) -> Outcome {
        self.note(vec![(ROUTES.to_owned(), Some(format!("{} routes {}", self.boot, self.number)))], WRITE_TIMEOUT)
    }

    /// Sets the filter and the settings to this; returns what could not be set. Without its table an exit is not to be used.
    ///
    /// # Errors
    /// If the table could not be set.
    pub fn set(&mut self, wanted: &HostRules) -> Outcome<Vec<String>> {
        if self.is_set.as_ref() == Some(wanted) {
            return Ok(self.faults.clone());
        }
        if *wanted == HostRules::default() {
            self.close();
            return Ok(Vec::new());
        }
        let before = self.is_set.take().unwrap_or_default();
        if !self.has_table {
            self.note(vec![(FILTER.to_owned(), Some(format!("{} filter {}", self.boot, self.number)))], WRITE_TIMEOUT)?;
            self.has_table = true;
        }
        let mut groups = Vec::new();
        groups.extend(wanted.has_mark.then_some(Group::Mark));
        groups.extend([Afi::Ipv4, Afi::Ipv6].into_iter().filter(|afi| wanted.is_exit(*afi)).map(Group::Forwarding));
        // First what forbids, then what lets through.
        let is_new = |group: &Group| !self.changed.iter().any(|changed| changed.group == *group);
        let forwards = |afi: Afi| read(forwarding(afi)).is_ok_and(|value| value != "0");
        let mut guards = [Afi::Ipv4, Afi::Ipv6].map(|afi| {
            let group = Group::Forwarding(afi);
            groups.contains(&group) && !(is_new(&group) && forwards(afi))
        });
        apply(&rules(self.number, &self.interface, wanted, guards))?;
        let (kept, over) = self.changed.drain(..).partition(|changed| groups.contains(&changed.group));
        self.changed = kept;
        self.set_back(over, WRITE_TIMEOUT);
        let mut faults = Vec::new();
        for group in groups {
            let is_noted = self.changed.iter().any(|changed| changed.group == group);
            let result = match group {
                Group::Forwarding(afi) if forwards(afi) => Ok(()),
                // Somebody has set it since.
                Group::Forwarding(afi) if is_noted => {
                    write(forwarding(afi), "1").map_err(|error| Failure::system(forwarding(afi), &error).into())
                }
                Group::Mark if is_noted => Ok(()),
                group => self.change(group),
            };
            if let Err(failures) = result {
                faults.extend(failures.0);
                if let Group::Forwarding(afi) = group {
                    guards[usize::from(afi == Afi::Ipv6)] = false;
                }
            }
        }
        if !faults.is_empty() {
            // What the machine forwards for others does not stand still for what could not be set.
            apply(&rules(self.number, &self.interface, wanted, guards))?;
        }
        if wanted.exit.is_some() && before.exit.is_none() {
            info!(interface = self.interface, "members reach the Internet through this machine");
        }
        self.is_set = Some(wanted.clone());
        self.faults = faults.iter().map(ToString::to_string).collect();
        Ok(self.faults.clone())
    }

    /// Whether all is there that was set: somebody may have flushed the filter, or set a setting.
    pub fn holds(&self) -> bool {
        let Some(wanted) = &self.is_set else { return false };
        // What could not be set then is not expected.
        let is_exit = |afi: Afi| wanted.is_exit(afi) && self.faults.is_empty();
        let forwards = |afi: Afi| !is_exit(afi) || read(forwarding(afi)).is_ok_and(|value| value != "0");
        *wanted == HostRules::default()
            || forwards(Afi::Ipv4)
                && forwards(Afi::Ipv6)
                && nft(&["list", "table", "inet", &table(self.number)], "").is_ok()
    }

    /// Whether these are the networks beside the machine that the filter knows.
    pub fn is_beside(&self, beside: &BTreeSet<Prefix>) -> bool {
        let exit = self.is_set.as_ref().and_then(|wanted| wanted.exit.as_ref());
        exit.is_none_or(|exit| exit.beside == *beside)
    }

    /// Whether what is there was set, or failed.
    pub fn is_known(&self) -> bool {
        self.is_set.is_some()
    }

    /// Whether anything is to be there, or failed to be.
    pub fn is_needed(&self) -> bool {
        self.is_set != Some(HostRules::default())
    }

    /// Has the next [`HostFilter::set`] set everything again.
    pub fn doubt(&mut self) {
        self.is_set = None;
    }

    /// Changes the settings of a group, once the former values of all are on disk.
    fn change(&mut self, group: Group) -> Outcome {
        let failed = |name: &str, error: io::Error| {
            Failure::system(format!("cannot set {name}"), &error).help(format!(
                "put `{name} = 1` into a file of /etc/sysctl.d, or let the role do it with `ProtectKernelTunables=no` in its unit"
            ))
        };
        let (mut changed, mut values) = (Vec::new(), Vec::new());
        for (name, value) in group.settings(&self.interface) {
            match read(&name) {
                Ok(before) => {
                    values.extend(value.map(|value| (name.clone(), value)));
                    changed.push(Changed { group, name, before });
                }
                // The interface went, or the machine has no such family.
                Err(error) if value != Some("1") && error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(failed(&name, error).into()),
            }
        }
        let of = |changed: &Changed| {
            (changed.name.clone(), Some(format!("{} {} {}", self.boot, group.name(), changed.before)))
        };
        self.note(changed.iter().map(of).collect(), WRITE_TIMEOUT)?;
        for (name, value) in values {
            match write(&name, value) {
                Err(error) if value != "1" && error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    self.set_back(changed, WRITE_TIMEOUT);
                    return Err(failed(&name, error).into());
                }
                Ok(()) => {}
            }
        }
        self.changed.extend(changed);
        Ok(())
    }

    /// Gives settings their former values, the last one first.
    fn set_back(&self, settings: Vec<Changed>, timeout: Duration) {
        let mut over = Vec::new();
        for Changed { name, before, .. } in settings.into_iter().rev() {
            match write(&name, &before) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    warn!("cannot set {name} back: {error}; `sysctl {name}={before}` does");
                }
                // Or its interface is gone.
                _ => over.push(name),
            }
        }
        let over = over.into_iter().map(|name| (name, None)).collect();
        if let Err(failures) = self.note(over, timeout) {
            warn!("{failures}");
        }
    }

    /// Writes down what was there before, or forgets it.
    fn note(&self, notes: Vec<(String, Option<String>)>, timeout: Duration) -> Outcome {
        if notes.is_empty() {
            return Ok(());
        }
        let change = |(name, value): (String, Option<String>)| Change {
            table: TABLE,
            key: name.into_bytes(),
            value: value.map(String::into_bytes),
        };
        let (durable, is_durable) = channel();
        let notes = notes.into_iter().map(change).collect();
        let submitted = self.store.submit(notes, Box::new(move || _ = durable.send(())));
        submitted.map_err(|error| Failure::new(error.to_string()))?;
        is_durable.recv_timeout(timeout).map_err(|_| {
            Failure::new("the disk does not write down how the machine's packet filter and settings were")
                .help("they are set once it writes again")
        })?;
        Ok(())
    }

    fn forget(&self, names: Vec<String>) {
        if let Err(failures) = self.note(names.into_iter().map(|name| (name, None)).collect(), END_TIMEOUT) {
            warn!("{failures}");
        }
    }

    /// Takes everything back.
    pub fn close(&mut self) {
        // First what lets through, then what forbids.
        let changed = std::mem::take(&mut self.changed);
        self.set_back(changed, END_TIMEOUT);
        if std::mem::take(&mut self.has_table) {
            remove_table(self.number);
            self.forget(vec![FILTER.to_owned()]);
        }
        self.is_set = Some(HostRules::default());
        self.faults.clear();
    }
}

/// Whether a strict reverse path filter is in force on any interface (RFC 3704 section 2.2).
pub fn is_strict() -> bool {
    let interfaces = fs::read_dir(format!("{SETTINGS}/net/ipv4/conf")).into_iter().flatten().flatten();
    let mut settings = interfaces.map(|entry| entry.path().join("rp_filter"));
    settings.any(|path| fs::read_to_string(path).is_ok_and(|value| value.trim() == "1"))
}

fn forwarding(afi: Afi) -> &'static str {
    match afi {
        Afi::Ipv4 => "net/ipv4/ip_forward",
        Afi::Ipv6 => "net/ipv6/conf/all/forwarding",
    }
}

fn table(number: u32) -> String {
    format!("wayleave-{number}")
}

fn read(name: &str) -> io::Result<String> {
    fs::read_to_string(PathBuf::from(SETTINGS).join(name)).map(|value| value.trim().to_owned())
}

fn write(name: &str, value: &str) -> io::Result<()> {
    fs::write(PathBuf::from(SETTINGS).join(name), value)
}

fn remove_table(number: u32) {
    let table = table(number);
    if let Err(failures) = apply(&format!("table inet {table}\ndelete table inet {table}\n")) {
        warn!("cannot remove the table of the packet filter: {failures}; `nft delete table inet {table}` does");
    }
}

/// Whether the machine has the program.
pub fn has_nft() -> bool {
    nft(&["--version"], "").is_ok()
}

/// Has `nft` carry out commands, all or none of them.
fn apply(text: &str) -> Outcome {
    nft(&["-f", "-"], text)
}

fn nft(arguments: &[&str], text: &str) -> Outcome {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new("nft");
    // An ordinary user's path lacks it.
    command.env("PATH", format!("{path}:/usr/sbin:/sbin")).args(arguments);
    let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let mut child = child.map_err(|error| {
        Failure::system("cannot run nft", &error).help("install nftables, by which the machine's packet filter is told")
    })?;
    // It reads everything before it says anything; one that ends early has said why.
    let _ = child.stdin.take().map(|mut stdin| stdin.write_all(text.as_bytes()));
    let output = child.wait_with_output().map_err(|error| Failure::system("cannot run nft", &error))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.lines().next().unwrap_or_default().trim_start_matches("Error: ").to_owned();
    Err(Failure::new(format!("nft refused the packet filter's table: {said}"))
        .help("this needs root or CAP_NET_ADMIN, and a kernel with nftables (nft_masq, nft_reject, nft_socket, nft_connlimit)")
        .into())
}

/// The elements of a set, if it has any.
fn elements<'a>(prefixes: impl Iterator<Item = &'a Prefix>) -> String {
    let all: Vec<String> = prefixes.map(ToString::to_string).collect();
    if all.is_empty() { String::new() } else { format!("elements = {{ {} }}\n", all.join(", ")) }
}

/// The table. `guards` say for IPv4 and IPv6 whether the machine is to forward nothing between the interfaces that it has now, since it
/// forwarded nothing before.
fn rules(number: u32, interface: &str, wanted: &HostRules, guards: [bool; 2]) -> String {
    let table = table(number);
    let mut out = format!("table inet {table}\ndelete table inet {table}\ntable inet {table} {{\n");
    if wanted.has_mark {
        out += &format!(
            "chain marked {{ type filter hook prerouting priority raw; policy accept;\nsocket mark {number} meta mark set {number}\n}}\n"
        );
    }
    let Some(Exit { granted, beside }) = &wanted.exit else { return out + "}\n" };
    let own = |afi: Afi| elements(granted.iter().filter(move |prefix| prefix.afi() == afi && !is_wide(prefix)));
    let near = |afi: Afi| elements(beside.iter().filter(move |prefix| prefix.afi() == afi));
    let refuse = "reject with icmpx admin-prohibited";
    let name = format!("\"{interface}\"");
    let closed = CLOSED_V4.join(", ");
    let closed_v6 = CLOSED_V6.join(", ");
    for (set, kind, elements) in [
        ("own4", "ipv4_addr", own(Afi::Ipv4)),
        ("own6", "ipv6_addr", own(Afi::Ipv6)),
        ("beside4", "ipv4_addr", near(Afi::Ipv4)),
        ("beside6", "ipv6_addr", near(Afi::Ipv6)),
    ] {
        out += &format!("set {set} {{ type {kind}; flags interval; auto-merge\n{elements}}}\n");
    }
    out += &format!(
        "set members4 {{ type ipv4_addr; size 65536; flags dynamic\n}}\n\
         set members6 {{ type ipv6_addr; size 65536; flags dynamic\n}}\n\
         chain input {{ type filter hook input priority filter; policy accept;\n\
         iifname {name} ip daddr != @own4 {refuse}\n\
         iifname {name} ip6 daddr != @own6 {refuse}\n\
         }}\n\
         chain forward {{ type filter hook forward priority filter; policy accept;\n\
         iifname {name} oifname {name} drop\n\
         iifname {name} ip daddr @own4 accept\n\
         iifname {name} ip6 daddr @own6 accept\n\
         iifname {name} ct state invalid drop\n\
         iifname {name} ip daddr @beside4 {refuse}\n\
         iifname {name} ip6 daddr @beside6 {refuse}\n\
         iifname {name} ip daddr {{ {closed} }} {refuse}\n\
         iifname {name} ip6 daddr != {OPEN_V6} {refuse}\n\
         iifname {name} ip6 daddr {{ {closed_v6} }} {refuse}\n\
         iifname {name} ct state new add @members4 {{ ip saddr ct count over {CONNECTIONS} }} {refuse}\n\
         iifname {name} ct state new add @members6 {{ ip6 saddr & ffff:ffff:ffff:ffff:: ct count over {CONNECTIONS} }} {refuse}\n\
         iifname {name} accept\n\
         oifname {name} ct state established,related accept\n\
         oifname {name} fib saddr . iif oif missing drop\n\
         oifname {name} ip saddr @own4 accept\n\
         oifname {name} ip6 saddr @own6 accept\n\
         oifname {name} {refuse}\n",
    );
    let present = present(interface);
    for (is_guarded, family) in guards.into_iter().zip(["ipv4", "ipv6"]) {
        // Who brings interfaces of its own later (containers, virtual machines) has them forwarded as it says.
        if is_guarded && !present.is_empty() {
            out += &format!("meta nfproto {family} iifname {{ {present} }} oifname {{ {present} }} drop\n");
        }
    }
    out += &format!(
        "}}\n\
         chain translated {{ type nat hook postrouting priority srcnat; policy accept;\n\
         iifname {name} oifname {name} accept\n\
         iifname {name} ip daddr @own4 accept\n\
         iifname {name} ip6 daddr @own6 accept\n\
         iifname {name} meta l4proto {{ tcp, udp }} masquerade to :{PORTS} fully-random\n\
         iifname {name} masquerade\n\
         }}\n"
    );
    out + "}\n"
}

/// The machine's interfaces but this one, as a set has them.
fn present(interface: &str) -> String {
    let all = fs::read_dir(format!("{SETTINGS}/net/ipv4/conf")).into_iter().flatten().flatten();
    let all = all.filter_map(|entry| entry.file_name().into_string().ok());
    let mut all: Vec<String> =
        all.filter(|name| !["all", "default", "lo", interface].contains(&name.as_str())).collect();
    all.sort();
    all.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefixes(all: &[&str]) -> Vec<Prefix> {
        all.iter().map(|text| text.parse().expect("a prefix")).collect()
    }

    #[test]
    fn the_table_is_replaced_as_a_whole_and_says_what_is_wanted_alone() {
        let mark = HostRules { exit: None, has_mark: true };
        assert_eq!(
            rules(20_520, "way0", &mark, [false; 2]),
            "table inet wayleave-20520\ndelete table inet wayleave-20520\ntable inet wayleave-20520 {\nchain marked { type filter hook \
             prerouting priority raw; policy accept;\nsocket mark 20520 meta mark set 20520\n}\n}\n"
        );
        let granted = prefixes(&["0.0.0.0/0", "128.0.0.0/1", "10.0.2.0/24", "fd00:2::/64"]);
        let beside = prefixes(&["192.168.7.0/24", "2001:db8:7::/64"]).into_iter().collect();
        let exit = HostRules { exit: Some(Exit { granted, beside }), has_mark: false };
        assert!(exit.is_exit(Afi::Ipv4) && !exit.is_exit(Afi::Ipv6));
        let text = rules(1, "way0", &exit, [true, false]);
        for part in [
            "set own4 { type ipv4_addr; flags interval; auto-merge\nelements = { 10.0.2.0/24 }\n",
            "set own6 { type ipv6_addr; flags interval; auto-merge\nelements = { fd00:2::/64 }\n",
            "elements = { 192.168.7.0/24 }\n",
            "elements = { 2001:db8:7::/64 }\n",
        ] {
            assert_eq!(text.matches(part).count(), 1, "{part}: {text}");
        }
        assert!(!text.contains("marked") && !text.contains("nfproto ipv6"), "{text}");
    }
}
