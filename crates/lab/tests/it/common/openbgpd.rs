//! OpenBGPD as a transit: it passes routes on between its neighbours, and nobody asks it for its tables.

#![allow(clippy::disallowed_methods, reason = "a test of the laboratory does I/O")]

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use wayleave_lab::netns::{NetworkNamespace, OPENBGPD_HOME};
use wayleave_lab::process::Daemon;
use wayleave_lab::router_config::RouterConfig;
use wayleave_lab::routers::Installation;

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
    fs::create_dir_all(OPENBGPD_HOME)?;
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
