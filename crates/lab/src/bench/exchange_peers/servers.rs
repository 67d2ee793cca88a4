//! Plain route servers: BIRD and OpenBGPD, configured as exchanges configure them. Each member has import filters, communities say to
//! whom its routes go, and a member to which the best route does not go gets the next best.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use super::work::{OwnBest, Work};
use crate::bench::exchange::{cpu, most_memory};
use crate::netns::{NetworkNamespace, OPENBGPD_HOME};
use crate::process::Daemon;
use crate::routers::Installation;
use crate::sim::{RS_ASN, member_address, member_asn};

/// Which program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Software {
    Bird,
    OpenBgpd,
}

impl Software {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Bird => "bird",
            Self::OpenBgpd => "openbgpd",
        }
    }

    /// What it sends to a member whose own route is the best.
    #[must_use]
    pub fn own_best(self) -> OwnBest {
        match self {
            Self::Bird => OwnBest::NextIsSent,
            Self::OpenBgpd => OwnBest::NotCompared,
        }
    }

    /// Its address on the members' network, a /16.
    #[must_use]
    pub fn address(self) -> Ipv4Addr {
        match self {
            Self::Bird => Ipv4Addr::new(10, 0, 255, 254),
            Self::OpenBgpd => Ipv4Addr::new(10, 0, 255, 253),
        }
    }
}

/// A running route server.
#[derive(Debug)]
pub struct PlainServer {
    pub software: Software,
    installation: Installation,
    namespace: NetworkNamespace,
    folder: PathBuf,
    daemon: Daemon,
}

impl PlainServer {
    /// Starts it in a namespace that has its address; its files go to `state`.
    ///
    /// # Errors
    /// If its files cannot be written, or it does not start.
    pub fn start(
        software: Software,
        installation: &Installation,
        namespace: &NetworkNamespace,
        state: &Path,
        work: &Work,
    ) -> io::Result<Self> {
        let folder = state.join(format!("{}-server", software.name()));
        fs::create_dir_all(&folder)?;
        let path = write(software, &folder, work, false)?;
        let mut command = match software {
            Software::Bird => {
                let mut command = namespace.command(installation.program("bird"));
                command.arg("-f").arg("-c").arg(path).arg("-s").arg(folder.join("socket"));
                command
            }
            Software::OpenBgpd => {
                fs::create_dir_all(OPENBGPD_HOME)?;
                let mut command = namespace.command(installation.program("bgpd"));
                command.arg("-d").arg("-f").arg(path);
                command
            }
        };
        installation.prepare(&mut command);
        let daemon = Daemon::start(&mut command, &folder.join("log"))?;
        Ok(Self { software, installation: installation.clone(), namespace: namespace.clone(), folder, daemon })
    }

    /// Loads the policy anew: whether the largest member's routes are hidden from the quarter.
    ///
    /// # Errors
    /// If it refuses.
    pub fn reload(&mut self, work: &Work, hides: bool) -> io::Result<()> {
        write(self.software, &self.folder, work, hides)?;
        match self.software {
            Software::Bird => {
                let mut command: Command = self.namespace.command(self.installation.program("birdcl"));
                self.installation.prepare(command.arg("-s").arg(self.folder.join("socket")).arg("configure"));
                let output = command.output()?;
                let said = String::from_utf8_lossy(&output.stdout).into_owned();
                let is_done = said.contains("Reconfigured") || said.contains("Reconfiguration in progress");
                if is_done { Ok(()) } else { Err(io::Error::other(said)) }
            }
            Software::OpenBgpd => self.daemon.signal(Signal::HUP),
        }
    }

    /// Its processes: OpenBGPD has three.
    fn processes(&self) -> Vec<u32> {
        let id = self.daemon.id();
        let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
        std::iter::once(id).chain(children.split_whitespace().filter_map(|child| child.parse().ok())).collect()
    }

    /// The most memory that its processes have had, in octets.
    #[must_use]
    pub fn memory(&self) -> u64 {
        self.processes().into_iter().map(most_memory).sum()
    }

    /// Their processor time.
    #[must_use]
    pub fn used(&self) -> Duration {
        self.processes().into_iter().map(cpu).sum()
    }

    #[must_use]
    pub fn is_running(&mut self) -> bool {
        self.daemon.is_running()
    }

    #[must_use]
    pub fn log_tail(&self) -> String {
        self.daemon.log_tail(20)
    }
}

fn write(software: Software, folder: &Path, work: &Work, hides: bool) -> io::Result<PathBuf> {
    let path = folder.join("conf");
    let text = match software {
        Software::Bird => bird(work, hides),
        Software::OpenBgpd => openbgpd(work, hides, &folder.join("control")),
    };
    fs::write(&path, text)?;
    // OpenBGPD refuses a configuration that others may read.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
    Ok(path)
}

/// One table for all, sorted, so that a channel goes on to the next route where its filter rejects the first (`secondary`).
fn bird(work: &Work, hides: bool) -> String {
    let (rs, own) = (RS_ASN.0, Software::Bird.address());
    let mut text = format!(
        "log stderr {{ warning, error, auth, fatal, bug }};
router id {own};
ipv4 table exchange sorted;
protocol device {{ }}
function is_open_to(int peer)
{{
  if (0, peer) ~ bgp_community then return false;
  if ({rs}, peer) ~ bgp_community then return true;
  if (0, {rs}) ~ bgp_community then return false;
  return true;
}}
"
    );
    let largest = member_asn(work.largest()).0;
    for slot in work.slots() {
        let (asn, address) = (member_asn(slot).0, member_address(slot));
        let hidden = if hides && work.is_of_quarter(slot) {
            format!("  if bgp_path.first = {largest} then reject;\n")
        } else {
            String::new()
        };
        let _ = write!(
            text,
            "filter from_{slot} {{
  if net.len > 24 then reject;
  if bgp_path.len > 64 then reject;
  if bgp_path.first != {asn} then reject;
  if bgp_next_hop != {address} then reject;
  accept;
}}
filter to_{slot} {{
{hidden}  if !is_open_to({asn}) then reject;
  bgp_community.delete([(0, *), ({rs}, *)]);
  accept;
}}
protocol bgp member_{slot} {{
  local {own} as {rs};
  neighbor {address} as {asn};
  passive; rs client;
  hold time 240;
  error wait time 1, 2; error forget time 2;
  ipv4 {{ table exchange; import filter from_{slot}; export filter to_{slot}; secondary; }};
}}
"
        );
    }
    text
}

/// `rde evaluate all`: where a filter rejects the best route, the next is sent; but most often not to the member whose own route is the best.
fn openbgpd(work: &Work, hides: bool, socket: &Path) -> String {
    let (rs, own) = (RS_ASN.0, Software::OpenBgpd.address());
    let mut text = format!(
        "AS {rs}
router-id {own}
listen on {own}
socket \"{}\"
fib-update no
holdtime 240
transparent-as yes
rde evaluate all
group \"members\" {{
  passive
  announce IPv4 unicast
  enforce neighbor-as yes
",
        socket.display()
    );
    for slot in work.slots() {
        let _ = writeln!(text, "  neighbor {} {{ remote-as {} }}", member_address(slot), member_asn(slot).0);
    }
    let _ = write!(
        text,
        "}}
allow from group \"members\"
deny quick from any max-as-len 64
deny quick from any prefix 0.0.0.0/0 prefixlen > 24
allow to group \"members\"
deny to group \"members\" community 0:{rs}
allow to group \"members\" community {rs}:neighbor-as
deny to group \"members\" community 0:neighbor-as
match to group \"members\" set {{ community delete 0:* community delete {rs}:* }}
"
    );
    if hides {
        for slot in work.quarter() {
            let _ = writeln!(text, "deny quick to {} peer-as {}", member_address(slot), member_asn(work.largest()).0);
        }
    }
    text
}
