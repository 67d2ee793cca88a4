//! What the machine's packet filter (nftables) and its settings of forwarding are told: an exit's address translation, with the limits
//! within which members may use it, and the mark of what comes for the gateway's own sockets.
//!
//! All of it is one nftables table, which is replaced as a whole and removed at the end. A setting that is changed is written down first,
//! and set back at the end, or at the next start after a kill.

use std::fs;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use tracing::{info, warn};
use wayleave_core::{Afi, Prefix};
use wayleave_runtime::store::{Change, FileStore, Store, StoreError};

use crate::failure::{Failure, Outcome};

/// Table of the state: the former value of each setting that was changed, by its name.
const TABLE: &str = "host";
/// Key there that says that the filter has a table.
const FILTER: &str = "filter";
/// How long the disk is waited for before a setting is changed.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// Where the kernel's settings are.
const SETTINGS: &str = "/proc/sys";
/// IPv4 addresses that are no hosts of the Internet: an exit passes nothing to them but what the membership grants (RFC 6890).
const CLOSED_V4: &str = "0.0.0.0/8, 10.0.0.0/8, 100.64.0.0/10, 127.0.0.0/8, 169.254.0.0/16, 172.16.0.0/12, 192.0.0.0/24, 192.168.0.0/16, \
                         198.18.0.0/15, 224.0.0.0/3";
/// The IPv6 addresses that are: global unicast (RFC 4291 section 2.4).
const OPEN_V6: &str = "2000::/3";

/// What is to be in the filter.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Wanted {
    /// The prefixes of the membership, if members reach the Internet through this gateway.
    pub exit: Option<Vec<Prefix>>,
    /// What comes for the gateway's own sockets gets their mark, so that a strict reverse path filter looks where answers go.
    pub has_mark: bool,
}

impl Wanted {
    fn is_exit(&self, afi: Afi) -> bool {
        self.exit.iter().flatten().any(|prefix| prefix.len() == 0 && prefix.afi() == afi)
    }
}

/// What the filter was told, and which settings were changed.
pub struct HostFilter {
    interface: String,
    /// The gateway's routing table and mark, after which the filter's table is named.
    number: u32,
    store: Arc<FileStore>,
    /// Settings that have another value now, and the former one.
    changed: Vec<(String, String)>,
    /// Whether the filter has a table of ours.
    has_table: bool,
    /// What is set; not known after a kill.
    is_set: Option<Wanted>,
}

impl HostFilter {
    /// Takes up what a gateway left that was killed; the first [`HostFilter::set`] sets back what is not wanted of it.
    ///
    /// # Errors
    /// If the state cannot be read.
    pub fn open(interface: &str, number: u32, store: Arc<FileStore>) -> Result<Self, StoreError> {
        let text = |octets: Vec<u8>| String::from_utf8_lossy(&octets).into_owned();
        let mut changed: Vec<_> = store.load(TABLE)?.into_iter().map(|(key, value)| (text(key), text(value))).collect();
        let left = changed.len();
        changed.retain(|(name, _)| name != FILTER);
        let has_table = changed.len() < left;
        let is_set = (left == 0).then(Wanted::default);
        Ok(Self { interface: interface.to_owned(), number, store, changed, has_table, is_set })
    }

    fn table(&self) -> String {
        format!("wayleave-{}", self.number)
    }

    /// Sets the filter and the settings to this.
    ///
    /// # Errors
    /// What the system said, and what helps. What forbids is there before what lets through.
    pub fn set(&mut self, wanted: &Wanted) -> Outcome {
        if self.is_set.as_ref() == Some(wanted) {
            return Ok(());
        }
        if *wanted == Wanted::default() {
            self.close();
            return Ok(());
        }
        let before = self.is_set.take().unwrap_or_default();
        let guards = [Afi::Ipv4, Afi::Ipv6].map(|afi| wanted.is_exit(afi) && !self.forwarded_before(afi));
        if !self.has_table {
            self.note(FILTER, Some(""))?;
            self.has_table = true;
        }
        apply(&rules(&self.table(), &self.interface, self.number, wanted, guards))?;
        let settings = self.settings(wanted);
        let (kept, over) = self.changed.drain(..).partition(|(name, _)| settings.iter().any(|(kept, _)| kept == name));
        self.changed = kept;
        self.set_back(over);
        settings.iter().try_for_each(|(name, value)| self.change(name, value))?;
        if wanted.exit.is_some() && wanted.exit != before.exit {
            info!(interface = self.interface, "members reach the Internet through this machine");
        }
        self.is_set = Some(wanted.clone());
        Ok(())
    }

    /// The settings that are needed, in their order.
    fn settings(&self, wanted: &Wanted) -> Vec<(String, &'static str)> {
        let mut settings = Vec::new();
        if wanted.has_mark {
            settings.push(("net/ipv4/conf/all/src_valid_mark".to_owned(), "1"));
        }
        if wanted.is_exit(Afi::Ipv4) {
            settings.push((forwarding(Afi::Ipv4).to_owned(), "1"));
        }
        if wanted.is_exit(Afi::Ipv6) {
            // A machine that forwards ignores what routers advertise, its own default route among it, unless each interface is told otherwise.
            let interfaces = fs::read_dir(format!("{SETTINGS}/net/ipv6/conf")).into_iter().flatten().flatten();
            for interface in interfaces.filter_map(|entry| entry.file_name().into_string().ok()) {
                let name = format!("net/ipv6/conf/{interface}/accept_ra");
                let is_ours = self.changed.iter().any(|(changed, _)| *changed == name);
                if interface != self.interface && (is_ours || read(&name).is_ok_and(|value| value == "1")) {
                    settings.push((name, "2"));
                }
            }
            settings.push((forwarding(Afi::Ipv6).to_owned(), "1"));
        }
        settings
    }

    /// Whether the machine forwarded packets before the gateway came: then what it forwards for others is its operator's matter.
    fn forwarded_before(&self, afi: Afi) -> bool {
        let name = forwarding(afi);
        let before = self.changed.iter().find(|(changed, _)| changed == name).map(|(_, before)| before.clone());
        before.or_else(|| read(name).ok()).is_some_and(|value| value != "0")
    }

    /// Gives a setting another value, once its former one is on disk.
    fn change(&mut self, name: &str, value: &str) -> Outcome {
        let failed = |error: io::Error| {
            let key = name.replace('/', ".");
            Failure::system(format!("cannot set {key}"), &error).help(format!(
                "put `{key} = {value}` into a file of /etc/sysctl.d, or let the role do it: ProtectKernelTunables=no and ProcSubset=all in its unit"
            ))
        };
        let before = read(name).map_err(failed)?;
        if before == value {
            return Ok(());
        }
        if !self.changed.iter().any(|(changed, _)| changed == name) {
            self.note(name, Some(&before))?;
            self.changed.push((name.to_owned(), before));
        }
        write(name, value).map_err(failed)?;
        Ok(())
    }

    /// Gives settings their former values, the last one first.
    fn set_back(&self, settings: Vec<(String, String)>) {
        for (name, before) in settings.into_iter().rev() {
            let key = name.replace('/', ".");
            match write(&name, &before) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    warn!("cannot set {key} back: {error}; `sysctl {key}={before}` does");
                }
                // Or its interface is gone.
                _ => self.forget(&name),
            }
        }
    }

    /// Writes down what was there before.
    fn note(&self, name: &str, value: Option<&str>) -> Outcome {
        let change = Change { table: TABLE, key: name.into(), value: value.map(|value| value.as_bytes().to_vec()) };
        let (durable, is_durable) = channel();
        let submitted = self.store.submit(vec![change], Box::new(move || _ = durable.send(())));
        submitted.map_err(|error| Failure::new(error.to_string()))?;
        is_durable.recv_timeout(WRITE_TIMEOUT).map_err(|_| {
            Failure::new("the disk does not write down how the machine's packet filter and settings were")
                .help("they stay as they are; make the disk write again")
        })?;
        Ok(())
    }

    fn forget(&self, name: &str) {
        if let Err(failure) = self.note(name, None) {
            warn!("{failure}");
        }
    }

    /// Takes everything back.
    pub fn close(&mut self) {
        // First what lets through, then what forbids.
        let changed = std::mem::take(&mut self.changed);
        self.set_back(changed);
        if std::mem::take(&mut self.has_table) {
            let table = self.table();
            match apply(&format!("table inet {table}\ndelete table inet {table}\n")) {
                Ok(()) => self.forget(FILTER),
                Err(failures) => {
                    warn!(
                        "cannot remove the table of the packet filter: {failures}; `nft delete table inet {table}` does"
                    );
                }
            }
        }
        self.is_set = Some(Wanted::default());
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

fn read(name: &str) -> io::Result<String> {
    fs::read_to_string(PathBuf::from(SETTINGS).join(name)).map(|value| value.trim().to_owned())
}

fn write(name: &str, value: &str) -> io::Result<()> {
    fs::write(PathBuf::from(SETTINGS).join(name), value)
}

/// Has `nft` carry out commands, all or none of them.
fn apply(text: &str) -> Outcome {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new("nft");
    // An ordinary user's path lacks it.
    command.env("PATH", format!("{path}:/usr/sbin:/sbin")).args(["-f", "-"]);
    let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let mut child = child.map_err(|error| {
        Failure::system("cannot run nft", &error).help("install nftables, which sets the packet filter of an exit")
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
        .help("this needs root or CAP_NET_ADMIN, and a kernel with nftables (nft_masq, nft_reject, nft_socket)")
        .into())
}

/// The table. `guards` say for IPv4 and IPv6 whether the machine is to forward nothing but what the overlay needs.
fn rules(table: &str, interface: &str, mark: u32, wanted: &Wanted, guards: [bool; 2]) -> String {
    let mut out = format!("table inet {table}\ndelete table inet {table}\ntable inet {table} {{\n");
    if wanted.has_mark {
        out += &format!(
            "chain marked {{ type filter hook prerouting priority raw; policy accept;\nsocket mark {mark} meta mark set {mark}\n}}\n"
        );
    }
    if let Some(granted) = &wanted.exit {
        let own = |afi: Afi| {
            let of_it = granted.iter().filter(|prefix| prefix.afi() == afi && prefix.len() > 0);
            let all: Vec<String> = of_it.map(ToString::to_string).collect();
            if all.is_empty() { String::new() } else { format!("elements = {{ {} }}\n", all.join(", ")) }
        };
        let refuse = "reject with icmpx admin-prohibited";
        let name = format!("\"{interface}\"");
        out += &format!(
            "set own4 {{ type ipv4_addr; flags interval; auto-merge\n{}}}\n\
             set own6 {{ type ipv6_addr; flags interval; auto-merge\n{}}}\n\
             chain input {{ type filter hook input priority filter; policy accept;\n\
             iifname {name} ip daddr != @own4 {refuse}\n\
             iifname {name} ip6 daddr != @own6 {refuse}\n\
             }}\n\
             chain forward {{ type filter hook forward priority filter; policy accept;\n\
             iifname {name} oifname {name} drop\n\
             iifname {name} ip daddr @own4 accept\n\
             iifname {name} ip6 daddr @own6 accept\n\
             iifname {name} ip daddr {{ {CLOSED_V4} }} {refuse}\n\
             iifname {name} ip6 daddr != {OPEN_V6} {refuse}\n\
             iifname {name} accept\n\
             oifname {name} ct state established,related accept\n\
             oifname {name} ip saddr @own4 accept\n\
             oifname {name} ip6 saddr @own6 accept\n\
             oifname {name} {refuse}\n",
            own(Afi::Ipv4),
            own(Afi::Ipv6),
        );
        for (is_guarded, family) in guards.into_iter().zip(["ipv4", "ipv6"]) {
            if is_guarded {
                out += &format!("meta nfproto {family} drop\n");
            }
        }
        out += &format!(
            "}}\n\
             chain translated {{ type nat hook postrouting priority srcnat; policy accept;\n\
             iifname {name} oifname != {name} ip daddr != @own4 masquerade\n\
             iifname {name} oifname != {name} ip6 daddr != @own6 masquerade\n\
             }}\n"
        );
    }
    out + "}\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefixes(all: &[&str]) -> Vec<Prefix> {
        all.iter().map(|text| text.parse().expect("a prefix")).collect()
    }

    #[test]
    fn the_table_is_replaced_as_a_whole_and_says_what_is_wanted_alone() {
        let mark = Wanted { exit: None, has_mark: true };
        let text = rules("wayleave-20520", "way0", 20_520, &mark, [false; 2]);
        assert_eq!(
            text,
            "table inet wayleave-20520\ndelete table inet wayleave-20520\ntable inet wayleave-20520 {\nchain marked { type filter hook \
             prerouting priority raw; policy accept;\nsocket mark 20520 meta mark set 20520\n}\n}\n"
        );
        let exit = Wanted { exit: Some(prefixes(&["0.0.0.0/0", "10.0.2.0/24", "fd00:2::/64"])), has_mark: false };
        assert!(exit.is_exit(Afi::Ipv4) && !exit.is_exit(Afi::Ipv6));
        let text = rules("t", "way0", 1, &exit, [true, false]);
        for part in ["elements = { 10.0.2.0/24 }\n", "elements = { fd00:2::/64 }\n", "meta nfproto ipv4 drop\n"] {
            assert_eq!(text.matches(part).count(), 1, "{part}: {text}");
        }
        assert!(!text.contains("marked") && !text.contains("0.0.0.0/0 ") && !text.contains("nfproto ipv6"), "{text}");
    }
}
