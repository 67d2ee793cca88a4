//! GoBGP as a transit: it passes routes on between its neighbours, and nobody asks it for its tables.

#![allow(clippy::disallowed_methods, reason = "a test of the laboratory does I/O")]

use std::fs;
use std::io;
use std::path::Path;

use wayleave_lab::netns::NetworkNamespace;
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
    let path = folder.join("gobgpd.toml");
    fs::write(&path, configuration(site))?;
    let mut command = namespace.command(installation.program("gobgpd"));
    installation.prepare(&mut command);
    // Its API listens in the namespace alone.
    command.args(["--pprof-disable", "--api-hosts", "127.0.0.1:50051", "-t", "toml", "-f"]).arg(path);
    Daemon::start(&mut command, &folder.join("log"))
}

fn configuration(site: &RouterConfig) -> String {
    let mut text = format!(
        "# {}: written by the laboratory.
[global.config]
as = {}
router-id = \"{id}\"
local-address-list = [\"{id}\"]
",
        site.name,
        site.asn.0,
        id = site.router_id
    );
    for neighbour in &site.neighbours {
        text += &format!(
            "[[neighbors]]
[neighbors.config]
neighbor-address = \"{}\"
peer-as = {}
[neighbors.timers.config]
hold-time = 9.0
connect-retry = 1.0
[neighbors.transport.config]
local-address = \"{}\"
passive-mode = {}
[[neighbors.afi-safis]]
[neighbors.afi-safis.config]
afi-safi-name = \"ipv4-unicast\"
",
            neighbour.address, neighbour.asn.0, neighbour.local, neighbour.passive
        );
    }
    text
}
