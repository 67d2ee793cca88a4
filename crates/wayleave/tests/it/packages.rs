//! Debian packages: installed, started, upgraded over a running exchange, and removed, in a root of their own: this machine's, with what is
//! written laid over it.
//!
//! OPS, packages: an exchange of two members with BIRD, each role by its unit's command as the package's user; a route before and after
//! each role was started again with the upgraded program; what is left after the removal: configurations, keys and state.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use wayleave_core::Prefix;
use wayleave_lab::bird::Bird;
use wayleave_lab::netns::{Network, NetworkNamespace, Rung, enter_for_test, skipped};
use wayleave_lab::process::{Daemon, wait_until};
use wayleave_lab::routers::{default_cache, locate_or_fetch};
use wayleave_lab::table::Router;

use crate::common::{Folder, text};

const TIMEOUT: Duration = Duration::from_secs(60);
const OWNERS: [(&str, &str); 4] = [("rs", "party1"), ("rs", "party2"), ("member", "alpha"), ("member", "bravo")];

/// This machine's root with what is written laid over it; gone with the namespaces.
struct Root(PathBuf);

impl Root {
    fn new(folder: &Folder) -> Self {
        let root = folder.0.join("root");
        // The layer may not be below what it is laid over, so it is in memory.
        let script = "set -e; mkdir layers root; mount -t tmpfs layers layers; mkdir layers/upper layers/work; \
                      mount -t overlay -o lowerdir=/,upperdir=layers/upper,workdir=layers/work overlay root; \
                      mount -t proc proc root/proc; mount --rbind /dev root/dev";
        let made = Command::new("bash").args(["-c", script]).current_dir(&folder.0).output().expect("bash runs");
        assert!(made.status.success(), "{}", text(&made.stderr));
        Self(root)
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.join(path.strip_prefix('/').expect("absolute"))
    }

    fn run(&self, command: &[&str]) -> Output {
        Command::new("chroot").arg(&self.0).args(command).output().expect("chroot runs")
    }

    fn ok(&self, command: &[&str]) -> String {
        let output = self.run(command);
        assert!(output.status.success(), "{command:?}: {}{}", text(&output.stdout), text(&output.stderr));
        text(&output.stdout)
    }

    /// Starts a role as its unit does, with a path of the trial in the place of the unit's.
    fn start(&self, (role, owner): (&str, &str), machine: &NetworkNamespace, log: &Path) -> Daemon {
        let unit = fs::read_to_string(self.path(&format!("/usr/lib/systemd/system/wayleave-{role}@.service")));
        let unit = unit.expect("installed");
        let line = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).expect("a command");
        let line = line.replace("%i.toml", &format!("trial/{owner}/wayleave.toml"));
        let mut command = machine.command("chroot");
        command.arg(&self.0).args(["setpriv", "--reuid", "wayleave", "--regid", "wayleave", "--clear-groups"]);
        command.args(line.split_whitespace());
        Daemon::start(&mut command, log).expect("started")
    }
}

/// Makes the packages of a version in `made`, of the programs in `built`: folders that are named from where the caller is.
fn packages(folder: &Path, version: &str) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/deb");
    let mut command = Command::new(script);
    command.current_dir(folder).arg("made").env("BUILT", "built").env("VERSION", version).env("COMPRESS", "none");
    let output = command.output().expect("bash runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
}

/// The program that a process runs is the one that is installed now.
fn runs_what_is_installed(daemon: &Daemon) -> bool {
    fs::read_link(format!("/proc/{}/exe", daemon.id()))
        .is_ok_and(|path| !path.display().to_string().ends_with(" (deleted)"))
}

#[test]
fn packages_are_installed_upgraded_over_a_running_exchange_and_removed() {
    let test = "packages::packages_are_installed_upgraded_over_a_running_exchange_and_removed";
    let routers = match locate_or_fetch(&default_cache(), &mut |line| eprintln!("{line}")) {
        Ok(routers) => routers,
        Err(error) => return skipped(&format!("{test}: {error}")),
    };
    if Command::new("dpkg-deb").arg("--version").output().is_err() {
        return skipped(&format!("{test}: dpkg-deb is not there"));
    }
    match enter_for_test(test) {
        Some(Rung::Root) => {}
        Some(_) => return skipped(&format!("{test}: dpkg needs root")),
        None => return,
    }
    let folder = Folder::new("packages");
    let (built, made) = (folder.0.join("built"), folder.0.join("made"));
    fs::create_dir(&built).expect("a folder");
    for program in ["wayleave", "wayleave-lab"] {
        let from = Path::new(env!("CARGO_BIN_EXE_wayleave")).with_file_name(program);
        let mut strip = Command::new("strip");
        let stripped = strip.arg("-o").arg(built.join(program)).arg(from).output().expect("strip runs");
        assert!(stripped.status.success(), "{}", text(&stripped.stderr));
    }
    ["1.0~1", "1.0~2"].iter().for_each(|version| packages(&folder.0, version));

    let root = Root::new(&folder);
    let architecture = root.ok(&["dpkg", "--print-architecture"]);
    let install = |version: &str| {
        let name = format!("wayleave_{version}_{}.deb", architecture.trim());
        fs::copy(made.join(&name), root.path(&format!("/tmp/{name}"))).expect("copied");
        root.ok(&["dpkg", "--no-triggers", "--install", &format!("/tmp/{name}")]);
    };
    let lab = made.join(format!("wayleave-lab_1.0~1_{}.deb", architecture.trim()));
    let listed = Command::new("dpkg-deb").arg("--contents").arg(&lab).output().expect("dpkg-deb runs");
    let listed = text(&listed.stdout);
    for file in ["./usr/bin/wayleave-lab", "./usr/share/doc/wayleave-lab/LICENSE-MIT"] {
        assert!(listed.contains(file), "{file}: {listed}");
    }
    // Of files alone: what folders take differs from one file system to another.
    let size = |line: &str| line.split_whitespace().nth(2)?.parse::<u64>().ok();
    let kib: u64 =
        listed.lines().filter(|line| line.starts_with('-')).filter_map(size).map(|size| size.div_ceil(1_024)).sum();
    let field =
        Command::new("dpkg-deb").arg("--field").arg(&lab).arg("Installed-Size").output().expect("dpkg-deb runs");
    assert_eq!(text(&field.stdout).trim(), kib.to_string());
    install("1.0~1");
    let owner =
        |path: &str| fs::metadata(root.path(path)).map(|found| (found.uid(), found.permissions().mode() & 0o777));
    let user: u32 = root.ok(&["id", "-u", "wayleave"]).trim().parse().expect("a number");
    assert_eq!(owner("/etc/wayleave").expect("made"), (0, 0o755));
    assert_eq!(owner("/var/lib/wayleave").expect("made"), (user, 0o700));
    assert!(!root.path("/usr/bin/wayleave-lab").exists(), "it has a package of its own");

    let members = ["--member", "alpha=64497@192.0.2.1", "--member", "bravo=64498@192.0.2.2"];
    let new = ["wayleave", "exchange", "new", "/etc/wayleave/trial", "--parties", "192.0.2.251"];
    root.ok(&[&new[..], &members].concat());
    root.ok(&["chown", "-R", "wayleave:wayleave", "/etc/wayleave/trial"]);
    let network = Network::new().expect("a network");
    let machine = |name: &str, address: &str| network.attach(name, &[format!("{address}/24")]).expect("attached");
    let exchange = machine("exchange", "192.0.2.251");
    let [at_alpha, at_bravo] =
        [("alpha", "192.0.2.1"), ("bravo", "192.0.2.2")].map(|(name, address)| machine(name, address));
    let machines = [&exchange, &exchange, &at_alpha, &at_bravo];
    let log = |owner: &str| folder.0.join(format!("{owner}.log"));
    let start = |which: usize| root.start(OWNERS[which], machines[which], &log(OWNERS[which].1));
    let mut roles: Vec<Daemon> = (0..OWNERS.len()).map(start).collect();
    let mut birds = [("alpha", at_alpha.clone()), ("bravo", at_bravo.clone())].map(|(name, at)| {
        let config = fs::read_to_string(root.path(&format!("/etc/wayleave/trial/{name}/bird.conf"))).expect("made");
        let mut bird = Bird::with_text(&routers.bird, at, name, config, network.state());
        bird.start().expect("started");
        bird
    });
    let mut has = |which: usize, prefix: &str| {
        let prefix: Prefix = prefix.parse().expect("a prefix");
        let found = wait_until(TIMEOUT, || {
            let table = birds[which].table().ok()?;
            table.iter().any(|route| route.prefix == prefix && route.best && !route.as_path.is_empty()).then_some(())
        });
        let logs = OWNERS.map(|(_, owner)| fs::read_to_string(log(owner)).unwrap_or_default());
        assert!(found.is_some(), "{prefix} is not at {which}: {}", logs.join("\n"));
    };
    let mut carries = || {
        has(1, "203.0.113.0/28");
        has(0, "203.0.113.16/28");
    };
    carries();

    // What runs goes on with the program that it has, and each role with the new one once it is started again.
    install("1.0~2");
    assert!(roles.iter().all(|role| !runs_what_is_installed(role)));
    carries();
    for (which, role) in roles.iter_mut().enumerate() {
        assert!(role.stop(TIMEOUT), "{}", role.log_tail(20));
        *role = start(which);
        carries();
        assert!(runs_what_is_installed(role));
    }
    roles.iter_mut().for_each(|role| assert!(role.stop(TIMEOUT), "{}", role.log_tail(20)));
    // Two units that were enabled, one of them of another package that is gone.
    let wants = root.path("/etc/systemd/system/multi-user.target.wants");
    fs::create_dir_all(&wants).expect("a folder");
    let links = [("wayleave-rs@party1.service", "wayleave-rs@.service"), ("other@a.service", "other@.service")];
    for (link, unit) in links {
        symlink(format!("/usr/lib/systemd/system/{unit}"), wants.join(link)).expect("a link");
    }
    root.ok(&["dpkg", "--no-triggers", "--purge", "wayleave"]);
    let is_there = links.map(|(link, _)| fs::symlink_metadata(wants.join(link)).is_ok());
    assert_eq!(is_there, [false, true]);
    for gone in ["/usr/bin/wayleave", "/usr/lib/systemd/system/wayleave-rs@.service", "/usr/share/doc/wayleave"] {
        assert!(!root.path(gone).exists(), "{gone}");
    }
    for left in ["/etc/wayleave/trial/party1/wayleave.toml", "/etc/wayleave/trial/alpha/alpha.key", "/var/lib/wayleave"]
    {
        assert!(root.path(left).exists(), "{left}");
    }
}
