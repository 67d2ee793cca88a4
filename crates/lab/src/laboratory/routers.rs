//! The real routers of a laboratory: in namespaces of their own, with the commands that ask them.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::exchange::layout::Software;
use crate::netns::Network;
use crate::table::{Announcement, Router};

/// What follows a network's name in that of its router.
pub(crate) const ROUTER: &str = "-router";
/// The folder of commands in a place's folder.
const COMMANDS: &str = "bin";

/// The folder with a place's own commands.
#[must_use]
pub fn commands_of(folder: &Path) -> PathBuf {
    folder.join(COMMANDS)
}

/// A question to a router, as its operator asks it.
pub(crate) fn question(software: Software) -> &'static str {
    match software {
        Software::Bird => "birdc show route",
        Software::Frr => "vtysh -c 'show bgp ipv4 unicast'",
        Software::Gobgp => "gobgp global rib",
        Software::OpenBgpd => "bgpctl show rib",
    }
}

/// A network's router.
struct PlacedRouter {
    network: String,
    software: Software,
    router: Box<dyn Router>,
}

/// The routers of a laboratory. They end with it.
pub(crate) struct PlacedRouters {
    /// With a folder for each place.
    folder: PathBuf,
    /// Where routers have their sockets: the path of a socket is short.
    state: PathBuf,
    all: Vec<PlacedRouter>,
}

impl PlacedRouters {
    pub(crate) fn new(folder: &Path, network: &Network) -> Self {
        Self { folder: folder.to_path_buf(), state: network.state().to_path_buf(), all: Vec::new() }
    }

    /// Makes the folder of a network's router, starts it with these routes, and puts the command that asks it beside the network's
    /// other files.
    pub(crate) fn start(
        &mut self,
        network: &str,
        software: Software,
        routes: &[Announcement],
        make: impl FnOnce(&Path) -> Result<Box<dyn Router>, String>,
    ) -> Result<(), String> {
        make_folder(&self.folder, &self.state, network)?;
        let mut router = make(&self.state)?;
        router.announce(routes).map_err(|error| error.to_string())?;
        router.start().map_err(|error| error.to_string())?;
        put_commands(&self.folder, network, &*router)?;
        self.all.push(PlacedRouter { network: network.to_owned(), software, router });
        Ok(())
    }

    /// The software of all, each once.
    pub(crate) fn software(&self) -> Vec<String> {
        let mut all: Vec<String> = self.all.iter().map(|one| one.router.software()).collect();
        all.sort();
        all.dedup();
        all
    }

    /// The first router of which a session is not up.
    pub(crate) fn first_down(&mut self) -> Result<Option<String>, String> {
        for one in &mut self.all {
            match one.router.is_established() {
                Ok(true) => {}
                Ok(false) => return Ok(Some(format!("the router of {} has no BGP session", one.network))),
                Err(error) => return Err(format!("{error}\n{}", one.router.log_tail())),
            }
        }
        Ok(None)
    }

    /// How many routes a network's router has learned.
    pub(crate) fn routes(&mut self, network: &str) -> Result<usize, String> {
        let found = self.all.iter_mut().find(|one| one.network == network);
        let router = &mut found.ok_or_else(|| format!("{network} has no router"))?.router;
        let table = router.table().map_err(|error| error.to_string())?;
        // Several to one prefix count, where ADD-PATH gave them.
        let mut routes: Vec<_> = table.into_iter().map(|route| (route.prefix, route.next_hop)).collect();
        routes.sort_unstable();
        routes.dedup();
        Ok(routes.len())
    }

    /// A row for each, as `status` shows it.
    pub(crate) fn describe(&self) -> Vec<Value> {
        self.all.iter().map(|one| row(&self.folder, &one.network, one.software, &*one.router)).collect()
    }

    /// Ends all.
    pub(crate) fn stop(&mut self) {
        self.all.iter_mut().for_each(|one| one.router.kill());
        self.all.clear();
    }
}

/// Makes the folder of a network's router in `folder`. What the router writes to `state` lies there: the path of a socket is short.
pub(crate) fn make_folder(folder: &Path, state: &Path, network: &str) -> Result<(), String> {
    let place = format!("{network}{ROUTER}");
    let own = folder.join(&place);
    let linked = fs::create_dir_all(&own).and_then(|()| symlink(&own, state.join(&place)));
    linked.map_err(|error| format!("{}: {error}", own.display()))
}

/// Puts the command that asks a network's router into the network's folders.
pub(crate) fn put_commands(folder: &Path, network: &str, router: &dyn Router) -> Result<(), String> {
    let Some((name, command)) = router.shell() else { return Ok(()) };
    for place in [network.to_owned(), format!("{network}{ROUTER}")] {
        let commands = commands_of(&folder.join(place));
        let written = write_command(&commands, name, &command);
        written.map_err(|error| format!("{}: {error}", commands.display()))?;
    }
    Ok(())
}

/// A router's row, as `status` shows it.
pub(crate) fn row(folder: &Path, network: &str, software: Software, router: &dyn Router) -> Value {
    let place = format!("{network}{ROUTER}");
    json!({
        "node": place, "role": software.name(), "pid": router.id(), "detail": router.software(),
        "log": folder.join(&place).join("log"),
    })
}

/// A script that runs a command with further arguments.
fn write_command(folder: &Path, name: &str, command: &Command) -> io::Result<()> {
    let quoted = |text: &std::ffi::OsStr| format!("'{}'", text.to_string_lossy().replace('\'', "'\\''"));
    let mut words: Vec<String> = vec!["env".to_owned()];
    for (key, value) in command.get_envs() {
        if let Some(value) = value {
            words.push(format!("{}={}", key.to_string_lossy(), quoted(value)));
        }
    }
    words.push(quoted(command.get_program()));
    words.extend(command.get_args().map(quoted));
    fs::create_dir_all(folder)?;
    let path = folder.join(name);
    fs::write(&path, format!("#!/bin/sh\nexec {} \"$@\"\n", words.join(" ")))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))
}
