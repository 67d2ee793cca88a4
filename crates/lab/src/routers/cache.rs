//! The cache of fetched packages: `apt-get download` and `dpkg-deb -x` fill it, nothing is installed.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use super::{Installation, Keyring, OPENBGPD, Release, RouterPackage, RoutersError, find_program, installation};

/// The package of the C library and its dynamic loader.
const C_LIBRARY: &str = "libc6";
/// How often a fetched library may need further ones.
const LIBRARY_ROUNDS: usize = 12;
/// What is waited before each further attempt to reach a mirror: an attempt more than there are pauses.
const PAUSES: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(4), Duration::from_secs(10)];

/// A folder with `debs/` (packages), `root/` (what they hold) and `apt/` (package lists, if the system has none).
pub(super) struct Cache {
    pub(super) path: PathBuf,
    /// Where the packages come from; `None` for those of this system.
    pub(super) release: Option<&'static Release>,
    /// `apt-get`; another program in tests.
    apt: PathBuf,
    pub(super) pauses: &'static [Duration],
}

impl Cache {
    pub(super) fn at(path: PathBuf, release: Option<&'static Release>) -> Self {
        Self { path, release, apt: PathBuf::from("apt-get"), pauses: &PAUSES }
    }

    pub(super) fn open(path: &Path, release: Option<&'static Release>) -> Result<Self, RoutersError> {
        let cache = Self::at(path.to_path_buf(), release);
        for folder in ["debs", "root", "bin", "apt/parts", "apt/lists/partial", "apt/cache/archives/partial"] {
            fs::create_dir_all(cache.path.join(folder)).map_err(|error| cache.error(error))?;
        }
        // `apt-get` and `dpkg` run in these folders.
        let path = fs::canonicalize(path).map_err(|error| cache.error(error))?;
        Ok(Self { path, ..cache })
    }

    fn error(&self, error: std::io::Error) -> RoutersError {
        RoutersError::Cache { path: self.path.clone(), error }
    }

    /// Locks the cache against other processes until dropped.
    pub(super) fn lock(&self) -> Result<fs::File, RoutersError> {
        let file = fs::File::create(self.path.join("lock")).map_err(|error| self.error(error))?;
        file.lock().map_err(|error| self.error(error))?;
        Ok(file)
    }

    fn root(&self) -> PathBuf {
        self.path.join("root")
    }

    /// Where a router's own package is unpacked: for itself in a release's cache, since BIRD 2 and BIRD 3 have programs of
    /// one name.
    fn program_root(&self, router: &RouterPackage) -> PathBuf {
        if self.release.is_some() { self.path.join("programs").join(router.package) } else { self.root() }
    }

    fn binaries(&self, router: &RouterPackage) -> Vec<PathBuf> {
        router.directories.iter().map(|directory| self.program_root(router).join(directory)).collect()
    }

    /// Marks a router as completely unpacked.
    fn stamp(&self, router: &RouterPackage) -> PathBuf {
        self.root().join(format!(".{}-complete", router.package))
    }

    pub(super) fn installation(&self, router: &RouterPackage) -> Option<Installation> {
        self.stamp(router).exists().then_some(())?;
        match self.release {
            None => installation(router, self.binaries(router), self.libraries(router), false),
            Some(_) => installation(router, vec![self.scripts(router)], Vec::new(), false),
        }
    }

    /// Folders of the cache with shared objects: `usr/lib`, `lib` and what lies up to two levels below.
    fn libraries(&self, router: &RouterPackage) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for root in [self.program_root(router), self.root()] {
            for top in ["usr/lib", "lib"] {
                collect_library_folders(&root.join(top), 2, &mut found);
            }
        }
        found.sort();
        found.dedup();
        found
    }

    pub(super) fn fetch(&self, router: &RouterPackage) -> Result<(), RoutersError> {
        for tool in ["apt-get", "dpkg-deb", "ldd"] {
            let path = ["/usr/bin", "/bin", "/usr/sbin"].map(PathBuf::from);
            find_program(tool, &path).ok_or(RoutersError::NoPackages { name: router.name, tool })?;
        }
        self.prepare_lists(router)?;
        let first = [Some(router.package), self.release.map(|_| C_LIBRARY)];
        let mut depends = self.depends_so_far(router)?;
        depends.extend(self.unpack(router, router.more)?);
        depends.extend(self.unpack(router, &first.into_iter().flatten().collect::<Vec<_>>())?);
        for _ in 0..LIBRARY_ROUNDS {
            let missing = self.missing_libraries(router);
            if missing.is_empty() {
                if self.release.is_some() {
                    self.write_scripts(router)?;
                }
                return fs::write(self.stamp(router), "").map_err(|error| self.error(error));
            }
            let mut packages = packages_of(&missing, &depends);
            if packages.is_empty() {
                packages = self.further(&depends);
            }
            if packages.is_empty() {
                return Err(RoutersError::Libraries { name: router.name, libraries: missing.join(", ") });
            }
            let packages: Vec<&str> = packages.iter().map(String::as_str).collect();
            depends.extend(self.unpack(router, &packages)?);
        }
        Err(RoutersError::Libraries { name: router.name, libraries: self.missing_libraries(router).join(", ") })
    }

    /// Downloads packages and unpacks them; returns the names of the packages that they depend on.
    fn unpack(&self, router: &RouterPackage, packages: &[&str]) -> Result<Vec<String>, RoutersError> {
        if packages.is_empty() {
            return Ok(Vec::new());
        }
        self.download(router, packages)?;
        let mut depends = Vec::new();
        for package in packages {
            depends.extend(self.unpack_one(router, package)?);
        }
        Ok(depends)
    }

    fn unpack_one(&self, router: &RouterPackage, package: &str) -> Result<Vec<String>, RoutersError> {
        let deb = self.newest_deb(package).ok_or_else(|| RoutersError::Tool {
            name: router.name,
            action: format!("apt-get download {package}"),
            detail: "no package file appeared".to_owned(),
        })?;
        let mut extract = Command::new("dpkg-deb");
        let root = if package == router.package { self.program_root(router) } else { self.root() };
        fs::create_dir_all(&root).map_err(|error| self.error(error))?;
        run(router, extract.arg("-x").arg(&deb).arg(root))?;
        depends_of(router, &deb)
    }

    /// What the packages depend on that are there already, from other routers or an attempt that failed.
    fn depends_so_far(&self, router: &RouterPackage) -> Result<Vec<String>, RoutersError> {
        let mut depends = Vec::new();
        for deb in fs::read_dir(self.path.join("debs")).map_err(|error| self.error(error))?.flatten() {
            depends.extend(depends_of(router, &deb.path())?);
        }
        Ok(depends)
    }

    /// Library packages among `depends` that neither the cache nor this system has: where no package is named as a library that
    /// is missing, it is in one of them.
    fn further(&self, depends: &[String]) -> Vec<String> {
        let is_installed = |package: &str| {
            let mut query = Command::new("dpkg-query");
            let shown = query.args(["-W", "-f", "${db:Status-Status}", package]).output();
            self.release.is_none() && shown.is_ok_and(|shown| shown.stdout == b"installed")
        };
        let libraries: BTreeSet<&String> = depends.iter().filter(|package| package.starts_with("lib")).collect();
        let further =
            libraries.into_iter().filter(|package| self.newest_deb(package).is_none() && !is_installed(package));
        further.cloned().collect()
    }

    /// Makes a release's package lists, unless they are there.
    fn prepare_lists(&self, router: &RouterPackage) -> Result<(), RoutersError> {
        let Some(release) = self.release else { return Ok(()) };
        let keyring = match release.keyring {
            Keyring::System(path) => PathBuf::from(path),
            Keyring::Package { release: other, package, file } => {
                let other = Cache::open(&self.path.with_file_name(other.name), Some(other))?;
                let _alone = other.lock()?;
                let path = other.root().join(file);
                if !path.exists() {
                    other.prepare_lists(router)?;
                    other.unpack(router, &[package])?;
                }
                path
            }
        };
        let (mirror, components) = (release.mirror, release.components);
        let line = |suite: &&str| format!("deb [signed-by={}] {mirror} {suite} {components}\n", keyring.display());
        let sources: String = release.suites.iter().map(line).collect();
        let file = self.path.join("apt/sources.list");
        if fs::read_to_string(&file).is_ok_and(|before| before == sources) {
            return Ok(());
        }
        let update = self.path.join("apt/sources.list.new");
        fs::write(&update, sources).map_err(|error| self.error(error))?;
        // These sources are ours alone: each has to answer.
        let more = [format!("Dir::Etc::SourceList={}", update.display()), "APT::Update::Error-Mode=any".to_owned()];
        self.again(|| self.update(router, &more))?;
        fs::rename(update, file).map_err(|error| self.error(error))
    }

    /// Downloads with the system's package lists; if they are missing or too old, with private ones, which are made anew if
    /// they lack the package. A release has private ones only.
    fn download(&self, router: &RouterPackage, packages: &[&str]) -> Result<(), RoutersError> {
        let with_private_lists = || {
            let mut download = self.apt_get();
            run(router, download.args(self.private_lists()).arg("download").args(packages)).map(drop)
        };
        if self.release.is_some() {
            return self.again(with_private_lists);
        }
        if run(router, self.apt_get().arg("download").args(packages)).is_ok()
            || (self.has_lists() && with_private_lists().is_ok())
        {
            return Ok(());
        }
        self.again(|| self.update(router, &[]).and_then(|()| with_private_lists()))
    }

    /// Makes the private package lists. `apt-get` succeeds even if no mirror has answered: lists that came back empty are a
    /// failure.
    fn update(&self, router: &RouterPackage, options: &[String]) -> Result<(), RoutersError> {
        let mut command = self.apt_get();
        command.args(self.private_lists()).args(options.iter().flat_map(|option| ["-o", option])).arg("update");
        let said = run(router, &mut command)?;
        if self.has_lists() {
            return Ok(());
        }
        let said: Vec<&str> = said.lines().filter(|line| line.starts_with("Err") || line.starts_with("  ")).collect();
        Err(RoutersError::Tool {
            name: router.name,
            action: "apt-get update".to_owned(),
            detail: format!("the package lists came back empty {}", said.join(" / ")).trim_end().to_owned(),
        })
    }

    /// Whether there is a private package list with anything in it.
    fn has_lists(&self) -> bool {
        let lists = fs::read_dir(self.path.join("apt/lists")).into_iter().flatten().flatten();
        let mut lists = lists.filter(|list| list.file_name().to_string_lossy().contains("_Packages"));
        lists.any(|list| list.metadata().is_ok_and(|data| data.len() > 0))
    }

    /// Tries what depends on a mirror, and tries it again after each pause.
    fn again(&self, attempt: impl Fn() -> Result<(), RoutersError>) -> Result<(), RoutersError> {
        for pause in self.pauses {
            if attempt().is_ok() {
                return Ok(());
            }
            sleep(*pause);
        }
        attempt()
    }

    fn apt_get(&self) -> Command {
        let mut command = Command::new(&self.apt);
        command.current_dir(self.path.join("debs")).env("LC_ALL", "C").env("DEBIAN_FRONTEND", "noninteractive");
        command.args(["-q", "-o", "APT::Sandbox::User=root"]);
        command
    }

    /// Options that make apt keep its package lists here, so that it needs no root.
    fn private_lists(&self) -> Vec<String> {
        let apt = self.path.join("apt");
        let option = |name: &str, folder: &str| [String::from("-o"), format!("{name}={}", apt.join(folder).display())];
        let mut options = vec![option("Dir::State::Lists", "lists"), option("Dir::Cache", "cache")];
        if self.release.is_some() {
            options.extend([option("Dir::Etc::SourceList", "sources.list"), option("Dir::Etc::SourceParts", "parts")]);
            // What this system has installed is no other release's.
            for other in ["Acquire::Languages=none", "Dir::State::status=/dev/null"] {
                options.push(["-o".to_owned(), other.to_owned()]);
            }
        }
        options.into_iter().flatten().collect()
    }

    fn newest_deb(&self, package: &str) -> Option<PathBuf> {
        let start = format!("{package}_");
        let debs = fs::read_dir(self.path.join("debs")).ok()?.flatten();
        let of_package = debs.filter(|deb| deb.file_name().to_string_lossy().starts_with(&start));
        of_package.max_by_key(|deb| deb.metadata().and_then(|data| data.modified()).ok()).map(|deb| deb.path())
    }

    /// Shared objects that the router's programs need and neither the system nor the cache has.
    fn missing_libraries(&self, router: &RouterPackage) -> Vec<String> {
        let libraries = std::env::join_paths(self.libraries(router)).unwrap_or_default();
        let mut missing = Vec::new();
        if self.release.is_some() {
            let Some(loader) = self.loader(router) else { return vec!["ld-linux".to_owned()] };
            for program in router.programs.iter().filter_map(|name| find_program(name, &self.binaries(router))) {
                let mut list = Command::new(&loader);
                list.args(["--inhibit-cache", "--library-path"]).arg(&libraries).arg(program);
                // As `ldd` does it. The loader's own option `--list` ends at the first library that is missing.
                list.env("LD_TRACE_LOADED_OBJECTS", "1");
                let text = list.output().map(|output| output.stdout).unwrap_or_default();
                missing.extend(not_below(&self.path, &String::from_utf8_lossy(&text)));
            }
            missing.sort();
            missing.dedup();
            return missing;
        }
        for program in router.programs.iter().filter_map(|name| find_program(name, &self.binaries(router))) {
            let output = Command::new("ldd").arg(program).env("LD_LIBRARY_PATH", &libraries).output();
            let text = output.map(|output| output.stdout).unwrap_or_default();
            missing.extend(not_found(&String::from_utf8_lossy(&text)));
        }
        missing.sort();
        missing.dedup();
        missing
    }
}

impl Cache {
    /// The release's own dynamic loader. What `/lib64` has is a link that leads to this system's.
    fn loader(&self, router: &RouterPackage) -> Option<PathBuf> {
        let files =
            self.libraries(router).into_iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten();
        let mut loaders = files.filter(|file| file.file_name().to_string_lossy().starts_with("ld-linux"));
        loaders.next().map(|file| file.path())
    }

    /// The folder with the scripts that start a router's programs.
    fn scripts(&self, router: &RouterPackage) -> PathBuf {
        self.path.join("bin").join(router.package)
    }

    /// Commands that tell libyang below version 2, which FRR needs, where its plugins are; empty for other routers.
    fn yang_plugins(&self, router: &RouterPackage) -> String {
        let folders =
            self.libraries(router).into_iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten();
        let mut folders = folders.map(|folder| folder.path()).filter(|path| path.join("extensions").is_dir());
        let Some(path) = folders.next() else { return String::new() };
        format!(
            "export LIBYANG_EXTENSIONS_PLUGINS_DIR='{0}/extensions' LIBYANG_USER_TYPES_PLUGINS_DIR='{0}/user_types'\n",
            path.display()
        )
    }

    fn write_scripts(&self, router: &RouterPackage) -> Result<(), RoutersError> {
        let folder = self.scripts(router);
        let libraries = std::env::join_paths(self.libraries(router)).unwrap_or_default();
        let loader = self.loader(router).unwrap_or_default();
        let plugins = self.yang_plugins(router);
        // OpenBGPD starts itself again by the name that it was started by; loaders before 2.33 cannot set this name.
        let named = if router.package == OPENBGPD.package { "--argv0 \"$0\" " } else { "" };
        let write = |name: &&str| {
            let program = find_program(name, &self.binaries(router)).unwrap_or_default();
            let text = format!(
                "#!/bin/sh\n{plugins}exec '{}' --inhibit-cache --library-path '{}' {named}'{}' \"$@\"\n",
                loader.display(),
                libraries.display(),
                program.display()
            );
            let path = folder.join(name);
            fs::write(&path, text)?;
            fs::set_permissions(path, fs::Permissions::from_mode(0o755))
        };
        let all = fs::create_dir_all(&folder).and_then(|()| router.programs.iter().try_for_each(write));
        all.map_err(|error| self.error(error))
    }
}

fn collect_library_folders(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    let mut holds_libraries = false;
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            if depth > 0 {
                collect_library_folders(&entry.path(), depth - 1, found);
            }
        } else {
            holds_libraries |= entry.file_name().to_string_lossy().contains(".so");
        }
    }
    if holds_libraries {
        found.push(folder.to_path_buf());
    }
}

/// Runs a tool to its end and returns what it printed.
fn run(router: &RouterPackage, command: &mut Command) -> Result<String, RoutersError> {
    let action = format!("{command:?}").replace('"', "");
    let failed = |detail: String| RoutersError::Tool { name: router.name, action: action.clone(), detail };
    let output = command.output().map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        let last: Vec<&str> = text.lines().rev().take(3).collect();
        return Err(failed(last.into_iter().rev().collect::<Vec<_>>().join(" / ")));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The names of the packages that a package depends on.
fn depends_of(router: &RouterPackage, deb: &Path) -> Result<Vec<String>, RoutersError> {
    let mut depends = Vec::new();
    for field in ["Depends", "Pre-Depends"] {
        let mut fields = Command::new("dpkg-deb");
        depends.extend(names_of_dependencies(&run(router, fields.arg("-f").arg(deb).arg(field))?));
    }
    Ok(depends)
}

/// Names in the lines `libyang.so.2 => not found` of `ldd`.
fn not_found(ldd: &str) -> Vec<String> {
    let lines = ldd.lines().filter(|line| line.trim_end().ends_with("not found"));
    lines.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

/// Names in the lines `libyang.so.3 => /lib/libyang.so.3 (0x7f…)` of a loader's list whose file is not below `root`.
fn not_below(root: &Path, list: &str) -> Vec<String> {
    let lines = list.lines().filter_map(|line| line.split_once(" => "));
    let outside = lines.filter(|(_, file)| !Path::new(file.split(" (").next().unwrap_or_default()).starts_with(root));
    outside.map(|(name, _)| name.trim().to_owned()).filter(|name| !name.contains('/')).collect()
}

/// Names in a Debian `Depends` field: `libc6 (>= 2.34), libyang2 | libyang3` gives all three.
fn names_of_dependencies(field: &str) -> Vec<String> {
    let alternatives = field.split([',', '|']);
    alternatives.filter_map(|item| item.split_whitespace().next()).map(|name| name.replace(":any", "")).collect()
}

/// The packages among `depends` that bring `libraries`. Debian names a library's package after its soname:
/// `libyang.so.2` comes in `libyang2`, `libssh-gcrypt.so.4` in `libssh-gcrypt-4`, either with `t64` after it; `libpam.so.0`
/// in `libpam0g`, for the C library of 1997, and `libvorbis.so.0` in `libvorbis0a`.
fn packages_of(libraries: &[String], depends: &[String]) -> Vec<String> {
    let bare = |text: &str| match text {
        "libz.so.1" => "zlib1".to_owned(),
        "libjpeg.so.62" => "libjpeg62turbo".to_owned(),
        "libbrotlicommon.so.1" | "libbrotlidec.so.1" => "libbrotli1".to_owned(),
        // Debian 13 names the package after the library's second version.
        "libldap.so.2" | "liblber.so.2" => "libldap2".to_owned(),
        // Both libraries of OpenSSL come in the package of one, as those of OpenLDAP; those of NSS have the version before `.so`.
        other => {
            let other = other.replace("libcrypto.so", "libssl.so").replace("liblber-", "libldap-").replace(".so.", "");
            other.trim_end_matches(".so").replace(['-', '.', '_'], "").to_ascii_lowercase()
        }
    };
    let mut packages = BTreeSet::new();
    for library in libraries {
        let wanted = bare(library);
        let found =
            depends.iter().find(|package| bare(package.trim_end_matches("t64").trim_end_matches(['g', 'a'])) == wanted);
        packages.extend(found.cloned());
    }
    packages.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routers::BIRD;

    #[test]
    fn a_missing_library_names_its_package() {
        let depends = names_of_dependencies("libc6 (>= 2.34), libssh-gcrypt-4 (>= 0.8.0), libyang2t64 (>= 2.0.0~)");
        let missing =
            not_found("\tlibyang.so.2 => not found\n\tlibssh-gcrypt.so.4 => not found\n\tlibc.so.6 => /lib/x\n");
        assert_eq!(packages_of(&missing, &depends), ["libssh-gcrypt-4", "libyang2t64"]);
        let depends = names_of_dependencies(
            "libx11-6, libflac12 (>= 1.3.0), libjpeg62-turbo (>= 1:1.5.0), libnspr4 (>= 2:4.9-2~)",
        );
        let missing = ["libX11.so.6", "libFLAC.so.12", "libjpeg.so.62", "libnspr4.so"].map(str::to_owned);
        assert_eq!(packages_of(&missing, &depends), ["libflac12", "libjpeg62-turbo", "libnspr4", "libx11-6"]);
        // Those of curl's that are named after another library of their package.
        let depends =
            names_of_dependencies("libbrotli1 (>= 0.6.0), libldap-2.5-0 (>= 2.5.4), libgssapi-krb5-2 (>= 1.17)");
        let missing = ["libbrotlidec.so.1", "libldap-2.5.so.0", "liblber-2.5.so.0", "libgssapi_krb5.so.2"];
        assert_eq!(
            packages_of(&missing.map(str::to_owned), &depends),
            ["libbrotli1", "libgssapi-krb5-2", "libldap-2.5-0"]
        );
    }

    #[test]
    fn a_library_of_this_system_is_none_of_another_release() {
        let list = "\tlinux-vdso.so.1 (0x1)\n\tlibz.so.1 => /lib/libz.so.1 (0x2)\n\tlibcap.so.2 => /c/root/usr/lib/libcap.so.2 \
                    (0x3)\n\tlibpam.so.0 => not found\n\t/lib64/ld-linux-x86-64.so.2 => /c/ld (0x4)\n";
        let missing = not_below(Path::new("/c/root"), list);
        assert_eq!(missing, ["libz.so.1", "libpam.so.0"]);
        let depends = names_of_dependencies("libpam0g (>= 0.99), zlib1g (>= 1:1.1.4)");
        assert_eq!(packages_of(&missing, &depends), ["libpam0g", "zlib1g"]);
    }

    /// A cache whose `apt-get` is a script. It finds the number of its call in `$call`.
    fn with_apt(script: &str) -> Cache {
        let path = std::env::temp_dir().join(format!("wayleave-routers-{}-{}", std::process::id(), script.len()));
        let cache = Cache::open(&path, None).expect("a folder");
        let apt = cache.path.join("apt-get");
        let text = format!("#!/bin/sh\necho \"$*\" >>../calls; call=$(wc -l <../calls)\n{script}\n");
        fs::write(&apt, text).expect("written");
        fs::set_permissions(&apt, fs::Permissions::from_mode(0o755)).expect("its mode");
        Cache { apt, pauses: &[Duration::ZERO; 2], ..cache }
    }

    fn calls(cache: &Cache, command: &str) -> usize {
        let calls = fs::read_to_string(cache.path.join("calls")).unwrap_or_default();
        calls.lines().filter(|line| line.split(' ').any(|word| word == command)).count()
    }

    #[test]
    fn package_lists_that_come_back_empty_are_tried_again_and_then_named() {
        let cache = with_apt("case $* in *update*) echo 'Err:1 http://mirror: no answer';; *) exit 100;; esac");
        let error = cache.download(&BIRD, &["bird2"]).expect_err("no list, no package").to_string();
        assert!(error.contains("the package lists came back empty Err:1 http://mirror: no answer"), "{error}");
        assert!(error.starts_with("BIRD: apt-get update failed"), "{error}");
        assert_eq!(calls(&cache, "update"), 3, "once, and after each pause");
        fs::remove_dir_all(&cache.path).expect("removed");
    }

    #[test]
    fn a_mirror_that_answers_at_the_third_attempt_is_enough() {
        let script = "case $* in *update*) [ $call -lt 4 ] || echo Package: bird2 >../apt/lists/mirror_Packages;;
            *) [ -s ../apt/lists/mirror_Packages ] || exit 100;; esac";
        let cache = with_apt(script);
        cache.download(&BIRD, &["bird2"]).expect("downloaded");
        assert_eq!((calls(&cache, "update"), calls(&cache, "download")), (3, 2));
        // The lists are there now, and are not made again.
        cache.download(&BIRD, &["bird2"]).expect("downloaded");
        assert_eq!(calls(&cache, "update"), 3);
        fs::remove_dir_all(&cache.path).expect("removed");
    }
}
