//! `backup` and `restore`: what is lost with a role's machine, in a folder, and from there to where a role starts.
//!
//! The folder has `backup.json`, which says what is in it, and `files/` with each file under a number. What a role makes anew is left
//! out: an old copy of a party's state would be worse than none.

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Component, Path, PathBuf};

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::json;
use wayleave_crypto::hash::sha256;
use wayleave_runtime::clock::{unix_now, utc};
use wayleave_runtime::identity::to_hex;

use crate::config::named_files::{Loss, NamedFile, loss_of, named_files};
use crate::config::{Source, check};
use crate::failure::{Failure, Failures, Outcome};
use crate::output::{print, print_json};

/// What the folder has.
const MANIFEST: &str = "backup.json";
const FILES: &str = "files";
/// The manifest's form.
const VERSION: u32 = 1;
/// The longest file that is copied, in octets: keys, sets and records are far shorter.
const LONGEST: u64 = 4 << 30;
/// The setting of the configuration itself, and of what `--also` names.
const CONFIGURATION: &str = "(configuration)";
const ALSO: &str = "(also)";

#[derive(Args, Debug)]
pub struct Backup {
    /// The folder to make. It has private keys: keep it as them.
    pub folder: PathBuf,
    /// The role's configuration. The role may run meanwhile.
    #[arg(long, short)]
    pub config: PathBuf,
    /// A further file, such as an operator's key (may be repeated); `FILE.signed` beside it goes with it.
    #[arg(long)]
    pub also: Vec<PathBuf>,
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct Restore {
    /// The folder that `backup` made.
    pub folder: PathBuf,
    /// The folder in which the configuration is to lie; made if it is not there. Files that the configuration names by an absolute path
    /// go there.
    #[arg(long, value_name = "FOLDER")]
    pub to: PathBuf,
    #[arg(long)]
    pub json: bool,
}

/// `backup.json`.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    version: u32,
    role: String,
    /// Unix seconds.
    made: u64,
    files: Vec<Entry>,
    /// Settings whose files the role makes anew, or keeps elsewhere.
    left_out: Vec<Left>,
}

/// A file of a backup.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    setting: String,
    /// As the configuration has it; a folder's files each with the folder before them.
    path: PathBuf,
    /// Below `files`.
    stored: String,
    sha256: String,
    mode: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Left {
    setting: String,
    path: PathBuf,
}

fn system(path: &Path) -> impl FnOnce(io::Error) -> Failures + use<'_> {
    move |error| Failure::system(path.display(), &error).into()
}

pub fn backup(wanted: &Backup) -> Outcome {
    let source = Source::read(&wanted.config)?;
    let role = check(&source).role;
    let name = wanted.config.file_name().ok_or_else(|| Failure::usage("--config names no file"))?;
    let named = named_files(&source);
    fs::DirBuilder::new().mode(0o700).create(&wanted.folder).map_err(system(&wanted.folder))?;
    let made = Copy::begin(&wanted.folder).and_then(|mut copy| {
        copy.add(CONFIGURATION, name.as_ref(), &wanted.config)?;
        let mut absent = Vec::new();
        for NamedFile { setting, path, .. } in named.iter().filter(|file| is_copied(file.loss)) {
            let from = source.resolve(path);
            if from.exists() { copy.add_all(setting, path, &from)? } else { absent.push((setting, path)) }
        }
        for file in &wanted.also {
            let name = |file: &Path| file.file_name().map(PathBuf::from).unwrap_or_default();
            copy.add(ALSO, &name(file), file)?;
            let mut signed = file.as_os_str().to_owned();
            signed.push(".signed");
            let signed = PathBuf::from(signed);
            if signed.exists() {
                copy.add(ALSO, &name(&signed), &signed)?;
            }
        }
        let left = named.iter().filter(|file| !is_copied(file.loss));
        let left_out = left.map(|file| Left { setting: file.setting.clone(), path: file.path.clone() }).collect();
        let manifest = Manifest {
            version: VERSION,
            role: role.to_owned(),
            made: unix_now().secs(),
            files: copy.entries,
            left_out,
        };
        // The last file: a folder without it is no backup.
        let text = serde_json::to_string_pretty(&manifest).map_err(|error| Failure::new(error.to_string()))?;
        write(&wanted.folder.join(MANIFEST), format!("{text}\n").as_bytes(), 0o600)?;
        Ok((manifest, absent))
    });
    let (manifest, absent) = match made {
        Ok(made) => made,
        Err(failures) => {
            // It was made just now, and is none.
            let _ = fs::remove_dir_all(&wanted.folder);
            return Err(failures);
        }
    };
    if wanted.json {
        let absent: Vec<_> = absent.iter().map(|(setting, path)| json!({ "setting": setting, "path": path })).collect();
        print_json(json!({
            "folder": wanted.folder, "role": role, "files": manifest.files, "left_out": manifest.left_out, "absent": absent,
        }));
        return Ok(());
    }
    let line = |setting: &str, path: &Path| format!("  {setting:<28} {}\n", path.display());
    let mut text = format!("{}: a copy of {role}, with private keys: keep it as them\n", wanted.folder.display());
    text.extend(manifest.files.iter().map(|entry| line(&entry.setting, &entry.path)));
    if !manifest.left_out.is_empty() {
        text += "left out, since the role makes it anew or does not own it:\n";
        text.extend(manifest.left_out.iter().map(|left| line(&left.setting, &left.path)));
    }
    if !absent.is_empty() {
        text += "named, and not there:\n";
        text.extend(absent.iter().map(|(setting, path)| line(setting, path)));
    }
    print(&text);
    Ok(())
}

fn is_copied(loss: Loss) -> bool {
    matches!(loss, Loss::ForGood | Loss::Continued)
}

/// A backup that is being made.
struct Copy<'a> {
    folder: &'a Path,
    entries: Vec<Entry>,
}

impl<'a> Copy<'a> {
    fn begin(folder: &'a Path) -> Outcome<Self> {
        let files = folder.join(FILES);
        fs::DirBuilder::new().mode(0o700).create(&files).map_err(system(&files))?;
        Ok(Self { folder, entries: Vec::new() })
    }

    /// A file, or all files of a folder and of those in it.
    fn add_all(&mut self, setting: &str, path: &Path, from: &Path) -> Outcome {
        if !from.is_dir() {
            return self.add(setting, path, from);
        }
        let mut names: Vec<_> = fs::read_dir(from)
            .and_then(|entries| entries.map(|entry| Ok(entry?.file_name())).collect::<io::Result<_>>())
            .map_err(system(from))?;
        names.sort_unstable();
        names.iter().try_for_each(|name| self.add_all(setting, &path.join(name), &from.join(name)))
    }

    fn add(&mut self, setting: &str, path: &Path, from: &Path) -> Outcome {
        let about = fs::metadata(from).map_err(system(from))?;
        if !about.is_file() || about.len() > LONGEST {
            return Err(Failure::new(format!("{} is no file that can be copied", from.display())).into());
        }
        let octets = fs::read(from).map_err(system(from))?;
        let name = from.file_name().unwrap_or_default().to_string_lossy();
        let stored = format!("{:03}-{name}", self.entries.len());
        write(&self.folder.join(FILES).join(&stored), &octets, 0o600)?;
        let (sha256, mode) = (to_hex(&sha256(&octets)), about.mode() & 0o777);
        self.entries.push(Entry { setting: setting.to_owned(), path: path.to_owned(), stored, sha256, mode });
        Ok(())
    }
}

/// Writes a file that is not there yet, durably.
fn write(path: &Path, octets: &[u8], mode: u32) -> Outcome {
    let made = File::options().write(true).create_new(true).mode(0o600).open(path).and_then(|mut file| {
        file.write_all(octets)?;
        file.set_permissions(Permissions::from_mode(mode))?;
        file.sync_all()
    });
    made.map_err(system(path))
}

/// A file that is to be put somewhere.
struct Placed {
    setting: String,
    to: PathBuf,
    octets: Vec<u8>,
    mode: u32,
}

pub fn restore(wanted: &Restore) -> Outcome {
    let manifest = read_manifest(&wanted.folder)?;
    let begins = manifest.files.iter().find(|entry| entry.setting == CONFIGURATION);
    let begins = begins.ok_or_else(|| Failure::new(format!("{} has no configuration", wanted.folder.display())))?;
    let named = named_files(&Source::read(&wanted.folder.join(FILES).join(plain(&begins.stored)?))?);
    let placed = manifest.files.iter().map(|entry| place(wanted, entry, &named)).collect::<Outcome<Vec<Placed>>>()?;
    // Everything was read and is as it was copied; now nothing may be in its way.
    let exist: Vec<Failure> = placed.iter().filter(|file| file.to.exists()).map(|file| occupied(&file.to)).collect();
    if !exist.is_empty() {
        return Err(Failures(exist));
    }
    let mut done: Vec<&Path> = Vec::new();
    let restored = placed.iter().try_for_each(|file| {
        put(file)?;
        done.push(&file.to);
        Ok(())
    });
    if let Err(failures) = restored {
        for file in done {
            let _ = fs::remove_file(file);
        }
        return Err(failures);
    }
    let configuration = placed.iter().find(|file| file.setting == CONFIGURATION).map(|file| file.to.clone());
    let configuration = configuration.unwrap_or_default();
    let continued: Vec<&Placed> =
        placed.iter().filter(|file| loss_of(&file.setting) == Some(Loss::Continued)).collect();
    if wanted.json {
        print_json(json!({
            "role": manifest.role, "configuration": configuration, "files": placed.iter().map(|file| &file.to).collect::<Vec<_>>(),
            "continued": continued.iter().map(|file| &file.to).collect::<Vec<_>>(), "left_out": manifest.left_out,
        }));
        return Ok(());
    }
    let mut text = format!("restored {}, as it was at {}:\n", manifest.role, utc(manifest.made));
    text.extend(placed.iter().map(|file| format!("  {}\n", file.to.display())));
    for file in continued {
        text += &format!("{} may lack what came later: {}\n", file.to.display(), what_to_do(&file.setting));
    }
    let configuration = configuration.display();
    text += &format!("next: wayleave check {configuration}; wayleave run {} --config {configuration}\n", manifest.role);
    print(&text);
    Ok(())
}

/// What to do about a copy that may be old.
fn what_to_do(setting: &str) -> &'static str {
    match setting {
        "party.members" => "take the other party's file; a party whose peer has a newer one takes it by itself",
        "realm.records" => {
            "compare with `wayleave realm show` of the path servers' list; a node that was removed since is to be removed again"
        }
        "key.records" => {
            "another server of this zone with all records has the later ones; without one, revoke again what was revoked since"
        }
        "key.routers.usage" => "what routers reported since is not in it, and on no statement",
        "key.revocations" | "platypus.revocations.file" => {
            "routers refuse a list that is older than theirs; sign it anew"
        }
        _ => "fetch the publisher's present objects",
    }
}

fn occupied(path: &Path) -> Failure {
    Failure::new(format!("{} exists", path.display()))
        .help("nothing is overwritten: move it away, or restore to another folder")
}

fn read_manifest(folder: &Path) -> Outcome<Manifest> {
    let path = folder.join(MANIFEST);
    let no_backup = || format!("{} is no backup", folder.display());
    let text = fs::read_to_string(&path)
        .map_err(|error| Failure::new(format!("{}: {error}", no_backup())).help("`wayleave backup` makes one"))?;
    let manifest: Manifest = serde_json::from_str(&text)
        .map_err(|error| Failure::new(format!("{}: {}: {error}", no_backup(), path.display())))?;
    if manifest.version != VERSION {
        return Err(Failure::new(format!(
            "{} has the form {}, and this program reads {VERSION}",
            path.display(),
            manifest.version
        ))
        .help("restore it with the program that made it, or a later one")
        .into());
    }
    Ok(manifest)
}

fn damaged(what: &str) -> Failure {
    Failure::new(what).help("this backup was changed or is damaged: take another")
}

/// A name without folders.
fn plain(name: &str) -> Result<&str, Failure> {
    let parts: Vec<Component<'_>> = Path::new(name).components().collect();
    match parts[..] {
        [Component::Normal(_)] => Ok(name),
        _ => Err(damaged(&format!("`{name}` is no name of a file in a backup"))),
    }
}

/// Reads a file of a backup, and says where it goes: to the place that the configuration names, and nowhere else.
fn place(wanted: &Restore, entry: &Entry, named: &[NamedFile]) -> Outcome<Placed> {
    let stored = wanted.folder.join(FILES).join(plain(&entry.stored)?);
    let octets = fs::read(&stored).map_err(system(&stored))?;
    if to_hex(&sha256(&octets)) != entry.sha256 {
        return Err(damaged(&format!("{} is not what was copied", stored.display())).into());
    }
    let is_of = |file: &&NamedFile| {
        let below = entry.path.strip_prefix(&file.path).ok();
        let is_below = below.is_some_and(|rest| rest.components().all(|part| matches!(part, Component::Normal(_))));
        file.setting == entry.setting && is_copied(file.loss) && is_below
    };
    let is_beside = entry.setting == CONFIGURATION || entry.setting == ALSO;
    if is_beside {
        plain(&entry.path.to_string_lossy())?;
    } else if !named.iter().any(|file| is_of(&file)) {
        let what = format!("{}: its configuration does not name {}", entry.setting, entry.path.display());
        return Err(damaged(&what).into());
    }
    Ok(Placed { setting: entry.setting.clone(), to: wanted.to.join(&entry.path), octets, mode: entry.mode & 0o777 })
}

/// Writes a file; it and the folders that are made for it belong to the owner of the folder in which they begin.
fn put(file: &Placed) -> Outcome {
    let folder = file.to.parent().unwrap_or(Path::new("."));
    let mut missing = Vec::new();
    let mut above = folder;
    while !above.as_os_str().is_empty() && !above.exists() {
        missing.push(above);
        above = above.parent().unwrap_or(Path::new(""));
    }
    let above = if above.as_os_str().is_empty() { Path::new(".") } else { above };
    let owner = fs::metadata(above).map_err(system(above))?;
    let give = |path: &Path| {
        let is_root = rustix::process::geteuid().is_root();
        if is_root { chown(path, Some(owner.uid()), Some(owner.gid())) } else { Ok(()) }
    };
    for folder in missing.iter().rev() {
        fs::DirBuilder::new().mode(0o700).create(folder).and_then(|()| give(folder)).map_err(system(folder))?;
    }
    write(&file.to, &file.octets, file.mode)?;
    give(&file.to).map_err(system(&file.to))
}
