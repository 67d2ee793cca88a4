//! Every package that is fetched and what for, in one list.
//!
//! Inside namespaces there is no way to a mirror. So whoever enters some fetches first what it may need there, and names
//! what cannot be had.

use std::fmt;
use std::path::Path;

use crate::routers::{
    BIRD, BIRD_3, BOOKWORM, BULLSEYE, CHROMIUM, CURL, DBUS, DIG, FOCAL, FORKY, FRR, GOBGP, IPERF3, Installation, JAMMY,
    NFTABLES, NOBLE, OPENBGPD, POSTGRESQL, RESOLVED, Release, RouterPackage, RoutersError, SSH, SSHD, Source, TRIXIE,
    UNBOUND, WIREGUARD_GO, WIREGUARD_TOOLS,
};

/// Who needs a package.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// The demonstration.
    Demo,
    /// The ordinary tests.
    Tests,
    /// `bench`, for comparison.
    Bench,
    /// The long tests.
    Soak,
}

impl std::str::FromStr for Use {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "demo" => Ok(Self::Demo),
            "tests" => Ok(Self::Tests),
            "bench" => Ok(Self::Bench),
            "soak" => Ok(Self::Soak),
            _ => Err(format!("nothing is fetched for `{text}` (demo, tests, bench, soak)")),
        }
    }
}

/// A line of the list.
#[derive(Debug, Clone, Copy)]
pub struct Listed {
    pub package: &'static RouterPackage,
    /// `None`: what this system has, or the package of its own release.
    pub release: Option<&'static Release>,
    pub uses: &'static [Use],
    /// What happens where it is not to be had.
    pub without: &'static str,
}

const fn listed(package: &'static RouterPackage, uses: &'static [Use], without: &'static str) -> Listed {
    Listed { package, release: None, uses, without }
}

const fn old(package: &'static RouterPackage, release: &'static Release) -> Listed {
    let without = "its row is missing in the table of routers that carry the attribute";
    Listed { package, release: Some(release), uses: &[Use::Soak], without }
}

/// All of them. Routers of other releases: the old versions of each first.
pub const LIST: &[Listed] = &[
    listed(&BIRD, &[Use::Demo, Use::Tests, Use::Bench], NO_ROUTERS),
    listed(&FRR, &[Use::Demo, Use::Tests], NO_ROUTERS),
    listed(&CURL, &[Use::Demo, Use::Tests], "the paid transit is not shown, and its tests are skipped"),
    listed(&SSH, &[Use::Demo, Use::Tests], NO_SSH),
    listed(&SSHD, &[Use::Demo, Use::Tests], NO_SSH),
    listed(&IPERF3, &[Use::Tests], "tests that measure with it are skipped"),
    listed(&UNBOUND, &[Use::Tests], "tests of look-ups through a resolver are skipped"),
    listed(&DIG, &[Use::Tests], "tests that ask by it are skipped"),
    listed(&RESOLVED, &[Use::Tests], "tests of names by the system's resolver are skipped"),
    listed(&DBUS, &[Use::Tests], "tests of names by the system's resolver are skipped"),
    listed(&NFTABLES, &[Use::Tests], "tests of packet filters are skipped"),
    listed(&CHROMIUM, &[Use::Tests], "tests of pages in a browser are skipped"),
    listed(&POSTGRESQL, &[Use::Tests], "tests with PostgreSQL are skipped"),
    listed(&OPENBGPD, &[Use::Tests, Use::Bench], "exchange-peers lacks its rows, and its tests are skipped"),
    listed(&GOBGP, &[Use::Tests], "its tests as a member's router are skipped"),
    listed(&WIREGUARD_GO, &[Use::Bench], "the comparison lacks its column where it cannot be built"),
    listed(&WIREGUARD_TOOLS, &[Use::Bench], "the comparison lacks the kernel's WireGuard"),
    old(&BIRD, &BULLSEYE),
    old(&BIRD, &BOOKWORM),
    old(&BIRD, &NOBLE),
    old(&BIRD, &TRIXIE),
    old(&BIRD, &FORKY),
    old(&BIRD_3, &TRIXIE),
    old(&BIRD_3, &FORKY),
    old(&FRR, &FOCAL),
    old(&FRR, &BULLSEYE),
    old(&FRR, &JAMMY),
    old(&FRR, &BOOKWORM),
    old(&FRR, &TRIXIE),
    old(&FRR, &FORKY),
    old(&GOBGP, &BULLSEYE),
    old(&GOBGP, &BOOKWORM),
    old(&GOBGP, &TRIXIE),
    old(&GOBGP, &FORKY),
    old(&OPENBGPD, &JAMMY),
    old(&OPENBGPD, &BOOKWORM),
    old(&OPENBGPD, &TRIXIE),
    old(&OPENBGPD, &FORKY),
];

const NO_ROUTERS: &str = "the demonstration takes the simulated rung, and tests with real routers are skipped";
const NO_SSH: &str = "ssh over the overlay is not shown (curl stands in where it can), and its tests are skipped";

/// What is listed for a use.
pub fn of(wanted: Use) -> impl Iterator<Item = &'static Listed> {
    LIST.iter().filter(move |listed| listed.uses.contains(&wanted))
}

/// A package that is not to be had.
#[derive(Debug)]
pub struct Missing {
    pub listed: &'static Listed,
    pub error: RoutersError,
}

impl Missing {
    /// Whether there are no real routers without it.
    #[must_use]
    pub fn is_router(&self) -> bool {
        [&BIRD, &FRR].contains(&self.listed.package)
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The error begins with the package's name.
        write!(f, "{}{}; {}", self.error, of_release(self.listed), self.listed.without)
    }
}

fn of_release(listed: &Listed) -> String {
    listed.release.map(|release| format!(" of {}", release.name)).unwrap_or_default()
}

/// Finds all packages of a use on this system or in `cache`, and fetches the rest into it. `found` gets what is there, `say` a
/// line before each step that takes long. Returns what is not to be had.
pub fn fetch_all(
    wanted: Use,
    cache: &Path,
    say: &mut dyn FnMut(&str),
    found: &mut dyn FnMut(&Listed, &Installation),
) -> Vec<Missing> {
    let mut missing = Vec::new();
    for listed in of(wanted) {
        // Who has waited in vain for one mirror does not wait again for each further package.
        let source = Source { cache, release: listed.release, is_patient: missing.is_empty() };
        match source.get(listed.package, say) {
            Ok(installation) => found(listed, &installation),
            Err(error) => missing.push(Missing { listed, error }),
        }
    }
    missing
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_demonstration_has_all_that_its_steps_run_before_it_enters_namespaces() {
        let names: Vec<&str> = of(Use::Demo).map(|listed| listed.package.name).collect();
        assert_eq!(names, ["BIRD", "FRR", "curl", "the OpenSSH client", "the OpenSSH server"]);
    }

    #[test]
    fn a_package_that_is_not_to_be_had_is_named_with_what_follows() {
        let listed = of(Use::Demo).find(|listed| listed.package == &SSHD).expect("it is listed");
        let error = RoutersError::Libraries { name: "the OpenSSH server", libraries: "libx.so.1".to_owned() };
        let text = Missing { listed, error }.to_string();
        assert!(
            text.starts_with("the OpenSSH server needs libx.so.1")
                && text.contains("ssh over the overlay is not shown"),
            "{text}"
        );
    }

    #[test]
    fn each_package_of_a_release_is_listed_once() {
        let mut lines: Vec<String> = LIST
            .iter()
            .map(|listed| format!("{}{}{:?}", listed.package.name, of_release(listed), listed.package))
            .collect();
        let before = lines.len();
        lines.sort();
        lines.dedup();
        assert_eq!(lines.len(), before);
    }
}
