//! `make install`: what lies where, for whom, and that it can be taken away again.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::common::{Folder, text};

/// Runs `scripts/install` for the programs of these tests.
fn install(destination: &Path, prefix: &str, more: &[&str]) -> Output {
    let built = Path::new(env!("CARGO_BIN_EXE_wayleave")).parent().expect("a folder");
    install_from(built, destination, prefix, more)
}

fn install_from(built: &Path, destination: &Path, prefix: &str, more: &[&str]) -> Output {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/install");
    let mut command = Command::new(script);
    command.args(more).env("BUILT", built).env("DESTDIR", destination).env("PREFIX", prefix);
    command.output().expect("bash runs")
}

/// Every file below a folder, without the folder's own path.
fn files(folder: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).expect("a folder").map_while(Result::ok) {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                found.insert(Path::new("/").join(path.strip_prefix(folder).expect("below it")));
            }
        }
    }
    found
}

/// The names of a command's commands, all the way down, as manual pages are named: `wayleave-members-propose`.
fn commands(folder: &Folder, words: &[&str]) -> BTreeSet<String> {
    let (program, rest) = words.split_first().expect("a program");
    let of_lab = [&[*program][..], rest, &["--help"]].concat();
    let arguments = if *program == "wayleave" { &of_lab[1..] } else { &of_lab[..] };
    let help = folder.ok(arguments);
    let mut names = BTreeSet::from([words.join("-")]);
    // Commands stand at two spaces, in groups; options have longer indents or begin with a dash.
    let lines = help.lines().filter_map(|line| line.strip_prefix("  ")).filter_map(|line| {
        let (name, about) = line.split_once("  ")?;
        let is_name = !name.is_empty() && name.chars().all(|letter| letter.is_ascii_lowercase() || letter == '-');
        (is_name && !name.starts_with('-') && !about.trim().is_empty()).then(|| name.to_owned())
    });
    // Each names the other program, where to begin.
    let own = lines.filter(|name| !["help", "wayleave", "wayleave-lab"].contains(&name.as_str()));
    for name in own.collect::<Vec<_>>() {
        names.extend(commands(folder, &[words, &[name.as_str()]].concat()));
    }
    names
}

#[test]
fn what_is_installed_has_a_page_for_every_command_and_a_unit_for_every_role_and_can_be_removed() {
    let folder = Folder::new("install");
    let root = folder.0.join("root");
    let output = install(&root, "/usr", &[]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let installed = files(&root);
    let pages = |name: &str| Path::new("/usr/share/man/man1").join(format!("{name}.1"));
    let all: BTreeSet<String> =
        ["wayleave", "wayleave-lab"].iter().flat_map(|name| commands(&folder, &[name])).collect();
    assert!(all.contains("wayleave-members-propose") && all.contains("wayleave-lab-up"), "{all:?}");
    for name in &all {
        let page = fs::read_to_string(root.join(pages(name).strip_prefix("/").expect("absolute"))).expect(name);
        assert!(page.contains(&format!(".TH {name}")), "{name}: {page}");
    }
    for file in [
        "/usr/bin/wayleave",
        "/usr/bin/wayleave-lab",
        "/usr/share/bash-completion/completions/wayleave",
        "/usr/share/zsh/site-functions/_wayleave",
        "/usr/share/fish/vendor_completions.d/wayleave-lab.fish",
        "/usr/lib/systemd/system/wayleave-gateway@.service",
        "/usr/lib/systemd/user/wayleave-proxy@.service",
        "/usr/lib/systemd/user/wayleave-proxy@.socket",
        "/usr/lib/sysusers.d/wayleave.conf",
        "/usr/share/polkit-1/rules.d/wayleave.rules",
        "/usr/share/wayleave/grafana/member.json",
        "/usr/share/wayleave/prometheus/wayleave.rules.yml",
        "/usr/share/doc/wayleave/docs/guide/install.md",
        "/usr/share/doc/wayleave/README.md",
    ] {
        assert!(installed.contains(Path::new(file)), "{file}: {installed:?}");
    }
    // The list is complete but for itself, and what it names is there.
    let list = fs::read_to_string(root.join("usr/share/wayleave/installed")).expect("the list");
    let mut listed: BTreeSet<PathBuf> = list.lines().map(PathBuf::from).collect();
    listed.insert("/usr/share/wayleave/installed".into());
    assert_eq!(listed, installed);
    let mode = |file: &str| fs::metadata(root.join(file)).expect(file).permissions().mode() & 0o777;
    assert_eq!((mode("usr/bin/wayleave"), mode("usr/share/man/man1/wayleave.1")), (0o755, 0o644));

    // A second time changes nothing, and what others put there stays.
    assert!(install(&root, "/usr", &[]).status.success());
    assert_eq!(files(&root), installed);
    let own = root.join("usr/share/doc/wayleave/notes");
    fs::write(&own, "mine").expect("written");
    let output = install(&root, "/usr", &["--uninstall"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(files(&root), BTreeSet::from([PathBuf::from("/usr/share/doc/wayleave/notes")]));
    let again = install(&root, "/usr", &["--uninstall"]);
    assert!(!again.status.success() && text(&again.stderr).contains("nothing is installed below"), "{again:?}");
}

#[test]
fn units_run_the_program_that_was_installed_and_nothing_is_installed_before_it_is_built() {
    let folder = Folder::new("install-prefix");
    let root = folder.0.join("root");
    assert!(install(&root, "/opt/with space", &[]).status.success());
    let units = root.join("opt/with space/lib/systemd/system");
    for unit in fs::read_dir(units).expect("units").map_while(Result::ok) {
        let lines = fs::read_to_string(unit.path()).expect("a unit");
        let runs: Vec<&str> = lines.lines().filter(|line| line.starts_with("ExecStart")).collect();
        assert!(
            runs.len() == 2 && runs.iter().all(|line| line.contains("=\"/opt/with space/bin/wayleave\" ")),
            "{runs:?}"
        );
    }
    let empty = folder.0.join("empty");
    fs::create_dir(&empty).expect("a folder");
    let output = install_from(&empty, &folder.0.join("other"), "/usr", &[]);
    assert!(!output.status.success() && text(&output.stderr).contains("`make release` builds it"), "{output:?}");
    assert!(!folder.0.join("other").exists(), "half an installation");
}

#[test]
fn a_manual_page_is_printed_by_the_words_of_its_command() {
    let folder = Folder::new("manual");
    assert!(folder.ok(&["man"]).contains(".TH wayleave 1"));
    let page = folder.ok(&["man", "members", "propose"]);
    assert!(page.contains(".TH wayleave-members-propose 1") && page.contains("max"), "{page}");
    let error = folder.fails(1, &["man", "members", "propse"]);
    assert!(error.contains("`wayleave members` has no command `propse`") && error.contains("countersign"), "{error}");
    let title = page.lines().find(|line| line.starts_with(".TH")).expect("a title");
    assert!(title.contains(env!("CARGO_PKG_VERSION")), "{title}");
    assert!(page.contains("<NAME>") || page.contains("[OPTIONS]"), "{page}");
    folder.ok(&["man", "--folder", "made"]);
    assert!(
        fs::read_to_string(folder.0.join("made/wayleave-members-propose.1")).is_ok_and(|text| text.contains(title))
    );
    folder.write("file", "");
    let error = folder.fails(1, &["man", "--folder", "file/pages"]);
    assert!(error.contains("cannot write manual pages into file/pages"), "{error}");
}

/// The stanzas of a control file, each with its fields; lines that continue one are joined to it.
fn stanzas(control: &str) -> Vec<std::collections::BTreeMap<String, String>> {
    let of = |stanza: &str| {
        let mut fields: Vec<(String, String)> = Vec::new();
        for line in stanza.lines() {
            match (line.strip_prefix(' '), fields.last_mut()) {
                (Some(more), Some((_, value))) => *value += &format!("\n{more}"),
                _ => {
                    let (name, value) = line.split_once(": ").expect("a field");
                    fields.push((name.to_owned(), value.to_owned()));
                }
            }
        }
        fields.into_iter().collect()
    };
    control.split("\n\n").filter(|stanza| !stanza.trim().is_empty()).map(of).collect()
}

#[test]
fn the_source_package_and_the_image_are_of_the_same_program_files_and_user_as_the_packages() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |file: &str| fs::read_to_string(root.join(file)).expect(file);
    let source = stanzas(&read("packaging/debian-source/control"));
    let version = format!("(>= {})", env!("CARGO_PKG_RUST_VERSION"));
    assert_eq!(source[0]["Build-Depends"].matches(&version).count(), 2, "cargo and rustc as Cargo.toml asks for them");
    assert_eq!(source.len(), 3);
    for package in &source[1..] {
        let binary = stanzas(&read(&format!("packaging/debian/{}.control", package["Package"])));
        for field in ["Package", "Description", "Recommends", "Suggests"] {
            assert_eq!(package.get(field), binary[0].get(field), "{field} of {}", package["Package"]);
        }
        assert_eq!(
            (&binary[0]["Section"], &binary[0]["Maintainer"]),
            (&source[0]["Section"], &source[0]["Maintainer"])
        );
    }
    assert_eq!(read("packaging/debian-source/source/format"), "3.0 (native)\n");
    // What the rules and the image run is there, and can be run.
    let (rules, image) = (read("packaging/debian-source/rules"), read("packaging/oci/Containerfile"));
    assert!(rules.starts_with("#!/usr/bin/make -f\n"));
    for target in ["clean", "build", "build-arch", "build-indep", "binary", "binary-arch", "binary-indep"] {
        assert!(rules.contains(&format!("\n{target}:")), "Debian's policy asks for the target {target}");
    }
    let mut make = Command::new("make");
    make.args(["-n", "-f", "packaging/debian-source/rules", "clean"]).current_dir(&root);
    let made = make.output().expect("make runs");
    assert!(made.status.success(), "{}", text(&made.stderr));
    let scripts = [&rules, &image].into_iter().flat_map(|text| text.split_whitespace());
    let scripts: BTreeSet<&str> = scripts.filter(|word| word.starts_with("scripts/")).collect();
    assert!(scripts.contains("scripts/install") && scripts.contains("scripts/deb"), "{scripts:?}");
    for script in scripts.into_iter().chain(["scripts/deb-source", "packaging/debian-source/rules"]) {
        let script = script.trim_end_matches(['.', ',']);
        let mode = fs::metadata(root.join(script)).expect(script).permissions().mode();
        assert!(mode & 0o111 != 0, "{script} can be run");
    }

    let toolchain = read("rust-toolchain.toml");
    let channel = toolchain.lines().find_map(|line| line.strip_prefix("channel = ")).expect("a channel");
    assert!(image.contains(&format!("/rust:{}-", channel.trim_matches('"'))), "the image's toolchain is {channel}");
    assert!(image.contains("COPY --from=build /image /\n") && image.contains("DESTDIR=/image scripts/install"));
    let user = read("packaging/systemd/wayleave.sysusers");
    let name = user.lines().find_map(|line| line.strip_prefix("u ")).and_then(|line| line.split_whitespace().next());
    let name = name.expect("a user");
    assert!(image.contains(&format!("\nUSER {name}\n")), "the role of a container is not root");
    // The commands in it are commands of the program: what they would do needs a role.
    let folder = Folder::new("image");
    let words: Vec<String> = image
        .lines()
        .filter_map(|line| line.split_once("CMD ["))
        .map(|(_, list)| list.trim_end_matches(']').replace(['"', ','], ""))
        .collect();
    assert!(words[0].starts_with("/usr/bin/wayleave show status --config /etc/wayleave/"), "{words:?}");
    assert!(image.contains("ENTRYPOINT [\"/usr/bin/wayleave\"]"));
    let health: Vec<&str> = words[0].split_whitespace().skip(1).collect();
    let said = folder.fails(1, &health);
    assert!(said.contains("/etc/wayleave/wayleave.toml"), "{said}");
    folder.ok(&words[1].split_whitespace().collect::<Vec<_>>());
}
