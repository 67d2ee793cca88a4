//! The routers' binaries: those of the system, or Debian packages unpacked into a cache without root.
//!
//! Nothing is installed. `apt-get download` and `dpkg -x` fill the cache, with the library packages that the system
//! lacks; the binaries then run with `LD_LIBRARY_PATH` set. The second run uses what the first one fetched.
//!
//! Routers of another [`Release`] than this system's come with all their libraries, the C library and its loader included,
//! and are started by scripts that call this loader.

mod cache;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use self::cache::Cache;
use crate::netns;

/// One router's binaries and what they need to run.
#[derive(Debug, Clone)]
pub struct Installation {
    /// Directories to search for binaries, in order.
    binaries: Vec<PathBuf>,
    /// Directories of libraries that the system lacks; empty if it has all.
    libraries: Vec<PathBuf>,
    pub version: String,
    /// Whether the binaries are the system's own.
    pub from_system: bool,
}

impl Installation {
    /// The path of one of the router's programs.
    #[must_use]
    pub fn program(&self, name: &str) -> PathBuf {
        find_program(name, &self.binaries).unwrap_or_else(|| PathBuf::from(name))
    }

    /// The value `LD_LIBRARY_PATH` must have, if any.
    #[must_use]
    pub fn library_path(&self) -> Option<OsString> {
        (!self.libraries.is_empty()).then(|| std::env::join_paths(&self.libraries).unwrap_or_default())
    }

    /// Sets what the programs need from their environment.
    pub fn prepare(&self, command: &mut Command) {
        if let Some(path) = self.library_path() {
            command.env("LD_LIBRARY_PATH", path);
        }
    }
}

/// The routers of a laboratory.
#[derive(Debug, Clone)]
pub struct Routers {
    /// BIRD 2: `bird`, `birdcl`.
    pub bird: Installation,
    /// FRR: `zebra`, `bgpd`, `vtysh`.
    pub frr: Installation,
    /// GoBGP: `gobgpd`, `gobgp`; where it is wanted.
    pub gobgp: Option<Installation>,
    /// OpenBGPD: `bgpd`, `bgpctl`; where it is wanted.
    pub openbgpd: Option<Installation>,
}

impl Routers {
    /// The binaries of a router, if they are among these.
    #[must_use]
    pub fn of(&self, router: &RouterPackage) -> Option<&Installation> {
        let all = [(&BIRD, Some(&self.bird)), (&FRR, Some(&self.frr))];
        let more = [(&GOBGP, self.gobgp.as_ref()), (&OPENBGPD, self.openbgpd.as_ref())];
        all.into_iter().chain(more).find(|(package, _)| *package == router)?.1
    }

    /// Finds GoBGP or OpenBGPD, or fetches it, unless it is among these. `progress` as for [`locate_or_fetch`].
    ///
    /// # Errors
    /// If it cannot be had.
    pub fn add(
        &mut self,
        router: &RouterPackage,
        cache: &Path,
        progress: &mut dyn FnMut(&str),
    ) -> Result<(), RoutersError> {
        if self.of(router).is_some() {
            return Ok(());
        }
        let found = locate_or_fetch_router(router, cache, progress)?;
        match *router {
            GOBGP => self.gobgp = Some(found),
            OPENBGPD => self.openbgpd = Some(found),
            _ => {}
        }
        Ok(())
    }
}

/// Why a router is not available.
#[derive(Debug, thiserror::Error)]
pub enum RoutersError {
    #[error(
        "{name} is not on this system, and it cannot be fetched because `{tool}` is missing; install {name} with your \
         package manager, or run on Debian or Ubuntu"
    )]
    NoPackages { name: &'static str, tool: &'static str },
    #[error(
        "{name}: {action} failed: {detail}; check that a Debian mirror can be reached, or install the package yourself"
    )]
    Tool { name: &'static str, action: String, detail: String },
    /// The binaries need a library that none of their packages has.
    #[error("{name} needs {libraries}, which neither this system nor the packages of {name} provide")]
    Libraries { name: &'static str, libraries: String },
    /// A namespace has no way to a mirror.
    #[error(
        "{name} is neither on this system nor in {}, and inside namespaces nothing can be fetched; the demonstration and \
         scripts/test do it before, and name what they cannot get", path.display()
    )]
    NotFetched { name: &'static str, path: PathBuf },
    /// The cache could not be written.
    #[error("the cache {} cannot be written: {error}", path.display())]
    Cache { path: PathBuf, error: std::io::Error },
}

/// How to find or fetch a router.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouterPackage {
    pub name: &'static str,
    package: &'static str,
    /// Programs that the laboratory runs.
    programs: &'static [&'static str],
    /// Directories of a package that contain them.
    directories: &'static [&'static str],
    /// The program that prints the version, and its argument.
    version: (&'static str, &'static str),
    /// Whether it does so among its errors.
    fails: bool,
    /// Further packages with files that the programs read.
    more: &'static [&'static str],
    /// Whether the programs of this system are passed over, since tests need one known version.
    is_always_fetched: bool,
}

/// BIRD 2.
pub const BIRD: RouterPackage = RouterPackage {
    name: "BIRD",
    package: "bird2",
    programs: &["bird", "birdcl"],
    directories: &["usr/sbin", "usr/bin", "usr/local/sbin"],
    version: ("bird", "--version"),
    fails: false,
    more: &[],
    is_always_fetched: false,
};

/// BIRD 3, with the programs and the configuration of BIRD 2.
pub const BIRD_3: RouterPackage = RouterPackage { package: "bird3", ..BIRD };

pub const FRR: RouterPackage = RouterPackage {
    name: "FRR",
    package: "frr",
    programs: &["zebra", "bgpd", "vtysh"],
    directories: &["usr/lib/frr", "usr/bin", "usr/sbin", "usr/libexec/frr"],
    version: ("bgpd", "--version"),
    fails: false,
    more: &[],
    is_always_fetched: false,
};

pub const OPENBGPD: RouterPackage = RouterPackage {
    name: "OpenBGPD",
    package: "openbgpd",
    programs: &["bgpd", "bgpctl"],
    directories: &["usr/sbin"],
    version: ("bgpd", "-V"),
    fails: false,
    more: &[],
    is_always_fetched: false,
};

pub const GOBGP: RouterPackage = RouterPackage {
    name: "GoBGP",
    package: "gobgpd",
    programs: &["gobgpd", "gobgp"],
    directories: &["usr/bin", "usr/sbin"],
    version: ("gobgpd", "--version"),
    fails: false,
    more: &[],
    is_always_fetched: false,
};

/// What applications need that talk over an overlay: unmodified ones.
pub const SSHD: RouterPackage = RouterPackage {
    name: "the OpenSSH server",
    package: "openssh-server",
    programs: &["sshd"],
    directories: &["usr/sbin"],
    version: ("sshd", "-V"),
    // Before 9.3 it is an unknown option, and the version stands before the usage.
    fails: true,
    more: &[],
    is_always_fetched: false,
};

/// The client of [`SSHD`], and what makes keys for both.
pub const SSH: RouterPackage = RouterPackage {
    name: "the OpenSSH client",
    package: "openssh-client",
    programs: &["ssh", "ssh-keygen"],
    directories: &["usr/bin"],
    version: ("ssh", "-V"),
    fails: false,
    more: &[],
    is_always_fetched: false,
};

pub const IPERF3: RouterPackage = RouterPackage {
    name: "iperf3",
    package: "iperf3",
    programs: &["iperf3"],
    directories: &["usr/bin"],
    version: ("iperf3", "--version"),
    fails: false,
    more: &[],
    is_always_fetched: false,
};

/// A browser without a window.
pub const CHROMIUM: RouterPackage = RouterPackage {
    name: "Chromium",
    package: "chromium-headless-shell",
    programs: &["chromium-headless-shell"],
    directories: &["usr/lib/chromium"],
    version: ("chromium-headless-shell", "--version"),
    fails: false,
    more: &["chromium-common"],
    is_always_fetched: false,
};

/// A resolver that caches.
pub const UNBOUND: RouterPackage = RouterPackage {
    name: "Unbound",
    package: "unbound",
    programs: &["unbound"],
    directories: &["usr/sbin"],
    version: ("unbound", "-V"),
    fails: false,
    more: &[],
    is_always_fetched: false,
};

/// A client that asks name servers.
pub const DIG: RouterPackage = RouterPackage {
    name: "dig",
    package: "bind9-dnsutils",
    programs: &["dig"],
    directories: &["usr/bin"],
    version: ("dig", "-v"),
    fails: false,
    more: &["bind9-libs", "libfstrm0", "liblmdb0", "libmaxminddb0"],
    is_always_fetched: false,
};

/// The resolver of many systems, and what asks it.
pub const RESOLVED: RouterPackage = RouterPackage {
    name: "systemd-resolved",
    package: "systemd-resolved",
    programs: &["systemd-resolved", "resolvectl"],
    directories: &["usr/lib/systemd", "lib/systemd", "usr/bin"],
    version: ("resolvectl", "--version"),
    fails: false,
    more: &[],
    is_always_fetched: false,
};

/// The bus by which [`RESOLVED`] is told things.
pub const DBUS: RouterPackage = RouterPackage {
    name: "the D-Bus daemon",
    package: "dbus-daemon",
    programs: &["dbus-daemon"],
    directories: &["usr/bin"],
    version: ("dbus-daemon", "--version"),
    fails: false,
    more: &[],
    is_always_fetched: false,
};

/// A client of the Web that knows nothing of us.
pub const CURL: RouterPackage = RouterPackage {
    name: "curl",
    package: "curl",
    programs: &["curl"],
    directories: &["usr/bin"],
    version: ("curl", "--version"),
    fails: false,
    more: &[],
    is_always_fetched: false,
};

/// The program that sets the system's packet filter.
pub const NFTABLES: RouterPackage = RouterPackage {
    name: "nftables",
    package: "nftables",
    programs: &["nft"],
    directories: &["usr/sbin"],
    version: ("nft", "--version"),
    fails: false,
    more: &[],
    is_always_fetched: false,
};

/// A database server with its client, of Debian 12. Its libraries are found by name, but for three: the server opens that of `libpq5` only
/// when it follows another server, and the other packages have other names than their libraries.
pub const POSTGRESQL: RouterPackage = RouterPackage {
    name: "PostgreSQL",
    package: "postgresql-15",
    programs: &["postgres", "initdb", "psql", "pg_basebackup"],
    directories: &["usr/lib/postgresql/15/bin"],
    version: ("postgres", "--version"),
    fails: false,
    more: &["postgresql-client-15", "libpq5", "libicu72", "libxml2"],
    is_always_fetched: true,
};

/// A user-space WireGuard, to compare overlays with.
pub const WIREGUARD_GO: RouterPackage = RouterPackage {
    name: "wireguard-go",
    package: "wireguard-go",
    programs: &["wireguard-go"],
    directories: &["usr/bin"],
    version: ("wireguard-go", "--version"),
    fails: false,
    more: &[],
    is_always_fetched: false,
};

/// What configures the kernel's WireGuard.
pub const WIREGUARD_TOOLS: RouterPackage = RouterPackage {
    name: "wireguard-tools",
    package: "wireguard-tools",
    programs: &["wg"],
    directories: &["usr/bin"],
    version: ("wg", "--version"),
    fails: false,
    more: &[],
    is_always_fetched: false,
};

/// A release of a distribution, whose packages can be fetched on any system with `apt-get`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Release {
    pub name: &'static str,
    mirror: &'static str,
    /// Suites and components, as in a line of `sources.list`.
    suites: &'static [&'static str],
    components: &'static str,
    keyring: Keyring,
}

/// Where the keys lie that a release's package lists are signed with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keyring {
    /// A file of this system.
    System(&'static str),
    /// A file of a package of another release.
    Package { release: &'static Release, package: &'static str, file: &'static str },
}

const fn debian(name: &'static str, suites: &'static [&'static str]) -> Release {
    let keyring = Keyring::System("/usr/share/keyrings/debian-archive-keyring.gpg");
    Release { name, mirror: "http://deb.debian.org/debian", suites, components: "main", keyring }
}

const fn ubuntu(name: &'static str, suites: &'static [&'static str]) -> Release {
    let file = "usr/share/keyrings/ubuntu-archive-keyring.gpg";
    let keyring = Keyring::Package { release: &TRIXIE, package: "ubuntu-keyring", file };
    Release { name, mirror: "http://archive.ubuntu.com/ubuntu", suites, components: "main universe", keyring }
}

/// Debian 11 (2021).
pub const BULLSEYE: Release = debian("bullseye", &["bullseye"]);
/// Debian 12 (2023).
pub const BOOKWORM: Release = debian("bookworm", &["bookworm"]);
/// Debian 13 (2025).
pub const TRIXIE: Release = debian("trixie", &["trixie"]);
/// What is to become Debian 14.
pub const FORKY: Release = debian("forky", &["forky"]);
/// Ubuntu 20.04.
pub const FOCAL: Release = ubuntu("focal", &["focal", "focal-updates"]);
/// Ubuntu 22.04.
pub const JAMMY: Release = ubuntu("jammy", &["jammy", "jammy-updates"]);
/// Ubuntu 24.04.
pub const NOBLE: Release = ubuntu("noble", &["noble", "noble-updates"]);

/// Fetches a release's router into a folder of `cache`, unless it is there. `progress` as for [`locate_or_fetch`].
pub fn fetch_from(
    release: &'static Release,
    router: &RouterPackage,
    cache: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<Installation, RoutersError> {
    Source { cache, release: Some(release), is_patient: true }.get(router, progress)
}

/// What an earlier [`fetch_from`] left in `cache`.
#[must_use]
pub fn fetched_from(release: &'static Release, router: &RouterPackage, cache: &Path) -> Option<Installation> {
    let path = fs::canonicalize(cache.join("releases").join(release.name)).ok()?;
    Cache::at(path, Some(release)).installation(router)
}

/// Finds a router on this system, else in `cache`, else fetches it there. `progress` as for [`locate_or_fetch`].
pub fn locate_or_fetch_router(
    router: &RouterPackage,
    cache: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<Installation, RoutersError> {
    Source { cache, release: None, is_patient: true }.get(router, progress)
}

/// Where a router comes from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Source<'a> {
    pub(crate) cache: &'a Path,
    /// `None`: what this system has, or the package of its own release.
    pub(crate) release: Option<&'static Release>,
    /// Whether to try again where a mirror does not answer.
    pub(crate) is_patient: bool,
}

impl Source<'_> {
    pub(crate) fn get(
        self,
        router: &RouterPackage,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Installation, RoutersError> {
        let path = match self.release {
            Some(release) => self.cache.join("releases").join(release.name),
            None => self.cache.to_path_buf(),
        };
        if self.release.is_none() {
            if !router.is_always_fetched
                && let Some(found) = on_this_system(router)
            {
                return Ok(found);
            }
            // A complete cache may be read-only; only filling it needs write access.
            if let Some(found) =
                fs::canonicalize(&path).ok().and_then(|path| Cache::at(path, None).installation(router))
            {
                return Ok(found);
            }
        }
        if netns::inside().is_some() {
            return Err(RoutersError::NotFetched { name: router.name, path });
        }
        let mut cache = Cache::open(&path, self.release)?;
        if !self.is_patient {
            cache.pauses = &[];
        }
        fetch_into(cache, router, progress)
    }
}

/// Finds BIRD and FRR on this system, else in `cache`, else fetches them into `cache`. `progress` gets one line before
/// each step that takes long.
pub fn locate_or_fetch(cache: &Path, progress: &mut dyn FnMut(&str)) -> Result<Routers, RoutersError> {
    let bird = locate_or_fetch_router(&BIRD, cache, progress)?;
    let frr = locate_or_fetch_router(&FRR, cache, progress)?;
    Ok(Routers { bird, frr, gobgp: None, openbgpd: None })
}

/// The cache of a build tree: `target/routers` beside the running program's build, or in the current directory.
#[must_use]
pub fn default_cache() -> PathBuf {
    let program = std::env::current_exe().unwrap_or_default();
    let target = program.ancestors().find(|a| a.file_name().is_some_and(|name| name == "target"));
    match target {
        Some(target) => target.join("routers"),
        None => user_cache(std::env::var_os("XDG_CACHE_HOME"), std::env::var_os("HOME")),
    }
}

/// That of an installed program: the user's own (XDG Base Directory Specification), not the folder in which it happens to be started.
fn user_cache(cache: Option<OsString>, home: Option<OsString>) -> PathBuf {
    let absolute = |path: Option<OsString>| path.map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = absolute(cache).or_else(|| absolute(home).map(|home| home.join(".cache")));
    cache.unwrap_or_else(std::env::temp_dir).join("wayleave/routers")
}

fn fetch_into(
    cache: Cache,
    router: &RouterPackage,
    progress: &mut dyn FnMut(&str),
) -> Result<Installation, RoutersError> {
    let _alone = cache.lock()?;
    if let Some(found) = cache.installation(router) {
        return Ok(found);
    }
    let of_release = cache.release.map(|release| format!(" of {}", release.name)).unwrap_or_default();
    let into = cache.path.display();
    progress(&format!("fetching {} as a Debian package{of_release} into {into} (nothing is installed)", router.name));
    cache.fetch(router)?;
    cache.installation(router).ok_or_else(|| RoutersError::Tool {
        name: router.name,
        action: "running the fetched binaries".to_owned(),
        detail: format!("{} does not print its version", router.version.0),
    })
}

fn on_this_system(router: &RouterPackage) -> Option<Installation> {
    let mut binaries: Vec<PathBuf> = router.directories.iter().map(|d| Path::new("/").join(d)).collect();
    binaries.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    installation(router, binaries, Vec::new(), true)
}

fn installation(
    router: &RouterPackage,
    binaries: Vec<PathBuf>,
    libraries: Vec<PathBuf>,
    from_system: bool,
) -> Option<Installation> {
    let complete = router.programs.iter().all(|name| find_program(name, &binaries).is_some());
    let mut found = Installation { binaries, libraries, version: String::new(), from_system };
    found.version = complete.then(|| version(router, &found))??;
    Some(found)
}

/// The first version number that the router prints; `None` if it cannot run.
fn version(router: &RouterPackage, installed: &Installation) -> Option<String> {
    let mut command = Command::new(installed.program(router.version.0));
    installed.prepare(command.arg(router.version.1));
    let Output { stdout, stderr, status } = command.output().ok()?;
    let text = String::from_utf8_lossy(&stdout).into_owned() + &String::from_utf8_lossy(&stderr);
    // Some put a letter in front of it, or their name.
    let bare = |word| str::strip_prefix(word, 'v').or(word.strip_prefix("OpenSSH_")).unwrap_or(word);
    let mut words = text.split_whitespace().map(bare);
    let number = words.find(|word| word.starts_with(|c: char| c.is_ascii_digit()))?;
    (status.success() || router.fails).then(|| number.trim_end_matches(',').to_owned())
}

fn find_program(name: &str, directories: &[PathBuf]) -> Option<PathBuf> {
    directories.iter().map(|directory| directory.join(name)).find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_of_a_test_lies_in_the_target_folder() {
        assert!(default_cache().ends_with("target/routers"));
    }

    #[test]
    fn an_installed_programs_packages_are_in_the_users_cache() {
        let at = |cache: Option<&str>, home: Option<&str>| user_cache(cache.map(Into::into), home.map(Into::into));
        assert_eq!(at(Some("/c"), Some("/h")), PathBuf::from("/c/wayleave/routers"));
        assert_eq!(at(Some("relative"), Some("/h")), PathBuf::from("/h/.cache/wayleave/routers"));
        assert!(at(None, None).is_absolute());
    }
}
