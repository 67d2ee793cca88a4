//! The program `nft`: the system's, or a fetched one.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use wayleave_lab::netns::{self, NetworkNamespace};
use wayleave_lab::routers::{Installation, NFTABLES};

use super::world::text;

/// The program, to be asked for before the namespaces are entered: there is no way to a mirror in them.
pub(crate) fn fetched(what: &str) -> Option<Installation> {
    let found = crate::key::fetched(&NFTABLES, what)?;
    // A kernel may have none; who may make no network namespace tries it where it is tested.
    let tried = "table ip wayleave_try {}";
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--net"]).arg(found.program("nft")).arg(tried);
    found.prepare(&mut command);
    match command.output() {
        Ok(output) if text(&output.stderr).contains("not supported") => {
            netns::skipped(&format!("{what}: no nftables in this kernel: {}", text(&output.stderr)));
            None
        }
        _ => Some(found),
    }
}

/// Runs commands of `nft` at a machine.
pub(crate) fn set(nft: &Installation, place: &NetworkNamespace, commands: &str) {
    let mut command = place.command(nft.program("nft"));
    nft.prepare(&mut command);
    let output = command.arg(commands).output().expect("nft runs");
    assert!(output.status.success(), "{commands}: {}", text(&output.stderr));
}

/// Lets roles find the program by its name: a script in a folder of the test's own, in the place of one that programs are looked for
/// in. Only for this mount namespace.
pub(crate) fn install(nft: &Installation, folder: &Path) {
    let own = folder.join("bin");
    fs::create_dir_all(&own).expect("a folder");
    let libraries = nft.library_path().unwrap_or_default();
    let script = format!(
        "#!/bin/sh\nLD_LIBRARY_PATH={} exec {} \"$@\"\n",
        libraries.to_string_lossy(),
        nft.program("nft").display()
    );
    fs::write(own.join("nft"), script).expect("written");
    fs::set_permissions(own.join("nft"), fs::Permissions::from_mode(0o755)).expect("mode");
    let place = ["/usr/local/sbin", "/usr/local/bin"].into_iter().find(|place| {
        let path = std::env::var("PATH").unwrap_or_default();
        path.split(':').any(|one| one == *place) && Path::new(place).is_dir()
    });
    let place = place.expect("a folder of programs");
    let mounted = Command::new("mount").arg("--bind").args([own.as_path(), Path::new(place)]).status();
    assert!(mounted.is_ok_and(|status| status.success()));
}
