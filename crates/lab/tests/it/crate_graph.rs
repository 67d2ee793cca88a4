//! The rules between the crates: dependencies point one way only, pure crates do no I/O, the simulator runs the member's
//! machine, and roles import no commands.

#![allow(clippy::disallowed_methods, reason = "reads the workspace's manifests")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Each crate, and the crates of the workspace it may depend on (`docs/ARCHITECTURE.md`).
const ALLOWED: &[(&str, &[&str])] = &[
    ("wayleave-core", &[]),
    ("wayleave-crypto", &["wayleave-core"]),
    ("wayleave-bgp", &["wayleave-core"]),
    ("wayleave-mpc", &["wayleave-core", "wayleave-crypto"]),
    ("wayleave-attestation", &["wayleave-core", "wayleave-crypto", "wayleave-bgp"]),
    ("wayleave-packet", &["wayleave-core", "wayleave-crypto"]),
    ("wayleave-dataplane", &["wayleave-core", "wayleave-crypto", "wayleave-packet"]),
    // Neither knows the other: they meet in `packet::Path`.
    ("wayleave-control", &["wayleave-core", "wayleave-crypto", "wayleave-packet"]),
    ("wayleave-route-server", &["wayleave-core", "wayleave-crypto", "wayleave-bgp", "wayleave-mpc"]),
    ("wayleave-import", &["wayleave-core", "wayleave-route-server"]),
    (
        "wayleave-member",
        &[
            "wayleave-core",
            "wayleave-crypto",
            "wayleave-bgp",
            "wayleave-mpc",
            "wayleave-attestation",
            "wayleave-route-server",
        ],
    ),
    (
        "wayleave-papers",
        &[
            "wayleave-core",
            "wayleave-crypto",
            "wayleave-bgp",
            "wayleave-mpc",
            "wayleave-packet",
            "wayleave-attestation",
            "wayleave-dataplane",
            "wayleave-route-server",
            "wayleave-member",
        ],
    ),
    ("wayleave-runtime", &["wayleave-core"]),
    ("wayleave-store", &["wayleave-core", "wayleave-crypto", "wayleave-packet", "wayleave-control"]),
    (
        "wayleave-config",
        &[
            "wayleave-core",
            "wayleave-crypto",
            "wayleave-bgp",
            "wayleave-attestation",
            "wayleave-packet",
            "wayleave-dataplane",
            "wayleave-control",
            "wayleave-route-server",
            "wayleave-runtime",
            "wayleave-store",
        ],
    ),
    (
        "wayleave-lab",
        &[
            "wayleave-core",
            "wayleave-crypto",
            "wayleave-bgp",
            "wayleave-mpc",
            "wayleave-attestation",
            "wayleave-packet",
            "wayleave-dataplane",
            "wayleave-control",
            "wayleave-route-server",
            "wayleave-member",
            "wayleave-papers",
            "wayleave-runtime",
            "wayleave-store",
            "wayleave-config",
        ],
    ),
    (
        "wayleave",
        &[
            "wayleave-core",
            "wayleave-crypto",
            "wayleave-bgp",
            "wayleave-mpc",
            "wayleave-attestation",
            "wayleave-packet",
            "wayleave-dataplane",
            "wayleave-control",
            "wayleave-route-server",
            "wayleave-member",
            "wayleave-runtime",
            "wayleave-store",
            "wayleave-config",
            "wayleave-import",
        ],
    ),
];

/// Crates without sockets, files, threads, clocks or randomness of their own.
const PURE: &[&str] = &[
    "wayleave-core",
    "wayleave-crypto",
    "wayleave-bgp",
    "wayleave-mpc",
    "wayleave-attestation",
    "wayleave-packet",
    "wayleave-dataplane",
    "wayleave-control",
    "wayleave-route-server",
    "wayleave-member",
    "wayleave-import",
    "wayleave-papers",
];

/// Crates for I/O or randomness, which a pure crate must not depend on.
const IO_CRATES: &[&str] = &[
    "axum",
    "getrandom",
    "hyper",
    "libc",
    "mio",
    "nix",
    "quinn",
    "rand",
    "rayon",
    "redb",
    "rustix",
    "rustls",
    "socket2",
    "tokio",
    "tokio-rustls",
    "tracing-subscriber",
];

/// The limit of the design, and one more: what parses strangers' YAML is apart from what reads configurations.
const MOST_CRATES: usize = 17;

struct Package {
    /// Names of its ordinary dependencies, those of build scripts too, but not those of tests.
    dependencies: Vec<String>,
    test_dependencies: Vec<String>,
}

fn packages() -> BTreeMap<String, Package> {
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.toml");
    let arguments = ["metadata", "--no-deps", "--offline", "--format-version", "1", "--manifest-path", manifest];
    let output = Command::new(env!("CARGO")).args(arguments).output().expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo prints JSON");
    metadata["packages"].as_array().expect("packages").iter().map(package).collect()
}

fn package(value: &Value) -> (String, Package) {
    let all = value["dependencies"].as_array().expect("dependencies");
    let (tests, ordinary): (Vec<&Value>, Vec<&Value>) = all.iter().partition(|d| d["kind"].as_str() == Some("dev"));
    let names = |list: Vec<&Value>| list.iter().filter_map(|d| d["name"].as_str()).map(str::to_owned).collect();
    let name = value["name"].as_str().expect("a name").to_owned();
    (name, Package { dependencies: names(ordinary), test_dependencies: names(tests) })
}

fn allowed(name: &str) -> &'static [&'static str] {
    let entry = ALLOWED.iter().find(|(of, _)| *of == name);
    entry.unwrap_or_else(|| panic!("{name} is not in ALLOWED; add it there and to docs/ARCHITECTURE.md")).1
}

#[test]
fn dependencies_point_one_way() {
    for (name, package) in packages() {
        let inner = package.dependencies.iter().filter(|d| d.starts_with("wayleave"));
        for dependency in inner {
            assert!(allowed(&name).contains(&dependency.as_str()), "{name} must not depend on {dependency}");
        }
        // A pure crate's tests may use other pure crates, but no crate that does I/O.
        if PURE.contains(&name.as_str()) {
            for dependency in ["wayleave-runtime", "wayleave-config", "wayleave-lab", "wayleave"] {
                assert!(!package.test_dependencies.iter().any(|d| d == dependency), "{name}'s tests use {dependency}");
            }
        }
    }
}

/// Control and data plane meet in `packet::Path`, also in their tests.
#[test]
fn control_and_data_plane_do_not_know_each_other() {
    let packages = packages();
    for (name, other) in [("wayleave-control", "wayleave-dataplane"), ("wayleave-dataplane", "wayleave-control")] {
        let package = &packages[name];
        let mut all = package.dependencies.iter().chain(&package.test_dependencies);
        assert!(!all.any(|d| d == other), "{name} must not depend on {other}");
    }
}

/// What only reproduces the publications is for the laboratory; product crates do not know it, not even in tests. The product's
/// tests may use both, its program neither: `ALLOWED` has it so.
#[test]
fn only_the_laboratory_depends_on_papers_and_nothing_on_the_laboratory() {
    for (name, package) in packages() {
        let is_laboratory = name == "wayleave-lab";
        for dependency in ["wayleave-papers", "wayleave-lab"] {
            let is_used = package.dependencies.iter().any(|d| d == dependency);
            assert!(!is_used || is_laboratory, "{name} must not depend on {dependency}");
            let is_tested_with = package.test_dependencies.iter().any(|d| d == dependency);
            assert!(!is_tested_with || is_laboratory || name == "wayleave", "{name}'s tests use {dependency}");
        }
    }
}

#[test]
fn pure_crates_depend_on_no_crate_for_io() {
    let packages = packages();
    for name in PURE {
        for dependency in &packages[*name].dependencies {
            assert!(!IO_CRATES.contains(&dependency.as_str()), "{name} is pure and must not depend on {dependency}");
        }
    }
}

#[test]
fn every_crate_is_listed_and_there_are_not_too_many() {
    let packages = packages();
    for (name, _) in ALLOWED {
        assert!(
            packages.contains_key(*name),
            "{name} does not exist; remove it from ALLOWED and from docs/ARCHITECTURE.md"
        );
    }
    assert!(packages.len() <= MOST_CRATES, "{} crates", packages.len());
}

/// The Rust files of a folder of the workspace, by path.
fn sources(folder: &str) -> Vec<(PathBuf, String)> {
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(folder)];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
            let path = entry.expect("a directory entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).expect("a source file");
                files.push((path, text));
            }
        }
    }
    assert!(!files.is_empty(), "no source files in {folder}");
    files
}

/// The names that a file imports from a module, by `use MODULE::NAME;` or `use MODULE::{NAMES};`.
fn imported<'a>(text: &'a str, module: &str) -> Vec<&'a str> {
    let imports = text.split(module).skip(1).filter_map(|rest| rest.split(';').next());
    imports.flat_map(|names| names.split(|c: char| !c.is_alphanumeric() && c != '_')).collect()
}

#[test]
fn the_simulator_runs_the_members_machine_and_connects_no_halves_of_it() {
    for (path, text) in sources("lab/src/sim") {
        for half in ["Member", "MemberInput", "MemberOutput"] {
            let names = imported(&text, "use wayleave_route_server::member::");
            assert!(!names.contains(&half), "{} uses route_server's {half}; wayleave_member has it", path.display());
        }
        let names = imported(&text, "use wayleave_attestation::member::");
        assert!(!names.contains(&"MemberAttestation"), "{} runs the attestation of a member", path.display());
    }
}

#[test]
fn no_role_imports_a_command() {
    for (path, text) in sources("wayleave/src/roles") {
        // Unit tests may use a command to create their files.
        let code = text.split("mod tests {").next().unwrap_or_default();
        assert!(!code.contains("crate::commands"), "{} imports a command", path.display());
    }
}
