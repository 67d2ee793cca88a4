//! OpenBGPD as a transit: it passes routes on between its neighbours, and nobody asks it for its tables.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::netns::NetworkNamespace;
use crate::process::Daemon;
use crate::router_config::RouterConfig;
use crate::routers::Installation;

/// The user that OpenBGPD changes to. In the laboratory's namespaces this is root, since they have no other.
pub const USER: &str = "_openbgpd";
/// That user's home, in which OpenBGPD confines itself; on the laboratory's private `/run`.
pub const HOME: &str = "/run/openbgpd";

/// Starts a router whose files go to `state/NAME-router`.
///
/// # Errors
/// If the files cannot be written, or the program cannot be started.
pub fn start(
    installation: &Installation,
    namespace: &NetworkNamespace,
    site: &RouterConfig,
    state: &Path,
) -> io::Result<Daemon> {
    let folder = state.join(format!("{}-router", site.name));
    fs::create_dir_all(&folder)?;
    fs::create_dir_all(HOME)?;
    let path = folder.join("bgpd.conf");
    fs::write(&path, configuration(site, &folder.join("socket")))?;
    // It refuses a configuration that others may read, which may hold keys.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
    let mut command = namespace.command(installation.program("bgpd"));
    installation.prepare(&mut command);
    Daemon::start(command.arg("-d").arg("-f").arg(path), &folder.join("log"))
}

fn configuration(site: &RouterConfig, socket: &Path) -> String {
    let mut text = format!(
        "# {}: written by the laboratory.
AS {}
router-id {id}
listen on {id}
socket \"{}\"
fib-update no
allow from any
allow to any
",
        site.name,
        site.asn.0,
        socket.display(),
        id = site.router_id,
    );
    for neighbour in &site.neighbours {
        let passive = if neighbour.passive { "  passive\n" } else { "" };
        text += &format!(
            "neighbor {} {{\n  remote-as {}\n  local-address {}\n  holdtime 9\n{passive}  announce IPv4 unicast\n}}\n",
            neighbour.address, neighbour.asn.0, neighbour.local
        );
    }
    text
}
