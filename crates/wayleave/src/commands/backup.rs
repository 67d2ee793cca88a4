//! `backup` and `restore`: what is lost with a role's machine, in a folder or one file, and from there to where a role starts.
//!
//! The folder has `backup.json`, which says what is in it, and `files/` with each file under a number. One file is a tar of such a folder. What a role makes anew is left
//! out: an old copy of a party's state would be worse than none.

use std::fs::{self, File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown, lchown};
use std::path::{Component, Path, PathBuf};

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use wayleave_crypto::hash::sha256;
use wayleave_runtime::clock::{unix_now, utc};
use wayleave_runtime::identity::to_hex;

use crate::config::named_files::{Loss, NamedFile, loss_of, named_files};
use crate::config::{ROLES, Source, check};
use crate::failure::{Failure, Failures, Outcome};
use crate::key_files::database::DatabaseRecords;
use crate::key_files::private;
use crate::output::{print, print_json};

/// What the folder has.
pub const MANIFEST: &str = "backup.json";
const FILES: &str = "files";
/// The manifest's form.
const VERSION: u32 = 1;
/// How the name of a copy ends that is one file.
const ARCHIVE: &str = "tar";
/// The longest file that is copied, in octets: keys, sets and records are far shorter.
const LONGEST: u64 = 1 << 30;
/// What lies beside a file and goes with it: what an operator's key signed, what an anchor published.
const BESIDE: [&str; 2] = [".signed", ".manifest"];
/// Settings whose files may not have been written yet.
const MAY_BE_ABSENT: [&str; 4] = ["gateway.choices", "key.revocations", "path.membership", "realm.servers"];
/// Settings whose folders may have had no file.
const MAY_BE_EMPTY: [&str; 2] = ["attestation.keys.objects", "keys.objects"];
/// Reads of a file that a running role changes, until two in a row are alike.
const MOST_READS: usize = 20;
/// The setting of the configuration itself, and of what `--also` names.
const CONFIGURATION: &str = "(configuration)";
const ALSO: &str = "(also)";

#[derive(Args, Debug)]
pub struct Backup {
    /// The folder to make, or the one file if its name ends with `.tar`. It has private keys: keep it as them.
    pub folder: PathBuf,
    /// The role's configuration. The role may run meanwhile.
    #[arg(long, short)]
    pub config: PathBuf,
    /// A further file, such as an operator's key (may be repeated); `FILE.signed` and `FILE.manifest` beside it go with it.
    #[arg(long)]
    pub also: Vec<PathBuf>,
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct Restore {
    /// The folder, or the file, that `backup` made.
    pub folder: PathBuf,
    /// The folder in which the configuration is to lie; made if it is not there.
    #[arg(long, value_name = "FOLDER")]
    pub to: PathBuf,
    /// Also write files that the configuration names outside that folder, to where it names them. Only of a backup that you made.
    #[arg(long)]
    pub outside: bool,
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
    left_out: Vec<SkippedFile>,
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
struct SkippedFile {
    setting: String,
    path: PathBuf,
}

/// Whether this is what [`MANIFEST`] has.
pub fn is_manifest(value: &Value) -> bool {
    Manifest::deserialize(value).is_ok()
}

fn system(path: &Path) -> impl FnOnce(io::Error) -> Failures + use<'_> {
    move |error| Failure::system(path.display(), &error).into()
}

pub fn backup(wanted: &Backup) -> Outcome {
    let source = Source::read(&wanted.config)?;
    if source.is_folder() {
        let what = format!("{} is a folder of a SCION router, and no file", wanted.config.display());
        return Err(Failure::new(what).help("copy the folder as it is: this router writes nothing into it").into());
    }
    let role = role_of(&source)?;
    let name = wanted.config.file_name().ok_or_else(|| Failure::usage("--config names no file"))?;
    let named = named_files(&source);
    let is_archive = wanted.folder.extension().is_some_and(|ending| ending == ARCHIVE);
    // Of an archive, the folder that becomes it.
    let folder = if is_archive { with_ending(&wanted.folder, ".part") } else { wanted.folder.clone() };
    if is_archive && fs::symlink_metadata(&wanted.folder).is_ok() {
        return Err(occupied(&wanted.folder).into());
    }
    for file in &wanted.also {
        if fs::metadata(file).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            return Err(Failure::new(format!("{} is not there, which --also names", file.display()))
                .help("nothing has been copied; correct its name, or leave it out")
                .into());
        }
    }
    fs::DirBuilder::new().mode(0o700).create(&folder).map_err(|error| {
        let failure = Failure::system(format!("cannot make {}", folder.display()), &error);
        Failures::from(match (error.kind(), folder.parent()) {
            (io::ErrorKind::NotFound, Some(above)) => failure.help(format!(
                "is the disk mounted? `mkdir -p {}` makes the folder that it is to be in",
                above.display()
            )),
            _ => failure,
        })
    })?;
    let made = Copy::begin(&folder).and_then(|mut copy| {
        let mut absent = Vec::new();
        for file in named.iter().filter(|file| is_copied(file.loss)) {
            let (from, before) = (source.resolve(&file.path), copy.entries.len());
            let is_there = from.try_exists().map_err(system(&from))?;
            if is_there {
                copy.add_all(&file.setting, &file.path, &from)?;
            }
            // A folder without a file is as good as none.
            let is_empty = copy.entries.len() == before;
            if !is_there || is_empty && !MAY_BE_EMPTY.contains(&file.setting.as_str()) {
                absent.push(file);
            }
        }
        copy.add(CONFIGURATION, name.as_ref(), &wanted.config)?;
        for file in &wanted.also {
            copy.add(ALSO, file.file_name().unwrap_or_default().as_ref(), file)?;
        }
        let left = named.iter().filter(|file| !is_copied(file.loss));
        let left_out =
            left.map(|file| SkippedFile { setting: file.setting.clone(), path: file.path.clone() }).collect();
        let manifest = Manifest {
            version: VERSION,
            role: role.to_owned(),
            made: unix_now().secs(),
            files: copy.entries,
            left_out,
        };
        // The last file: a folder without it is no backup.
        let text = serde_json::to_string_pretty(&manifest).map_err(|error| Failure::new(error.to_string()))?;
        write(&folder.join(MANIFEST), format!("{text}\n").as_bytes(), 0o600, None)?;
        if is_archive {
            pack(&folder, &manifest, &wanted.folder)?;
        }
        Ok((manifest, absent))
    });
    if is_archive || made.is_err() {
        // It was made just now, and is in the file, or is none.
        let _ = fs::remove_dir_all(&folder);
    }
    let (manifest, absent) = made?;
    if wanted.json {
        let shown = |setting: &str, path: &Path| json!({ "setting": setting, "path": path });
        print_json(json!({
            "folder": wanted.folder,
            "role": role,
            "files": manifest.files.iter().map(|entry| shown(&entry.setting, &entry.path)).collect::<Vec<_>>(),
            "left_out": manifest.left_out,
            "absent": absent.iter().map(|file| shown(&file.setting, &file.path)).collect::<Vec<_>>(),
        }));
    } else {
        let line = |setting: &str, path: &Path| format!("  {setting:<28} {}\n", path.display());
        let mut text = format!("{}: a copy of {role}, with private keys: keep it as them\n", wanted.folder.display());
        text.extend(manifest.files.iter().map(|entry| line(&entry.setting, &entry.path)));
        if !manifest.left_out.is_empty() {
            text += "left out, since the role makes it anew or it is kept elsewhere:\n";
            text.extend(manifest.left_out.iter().map(|left| line(&left.setting, &left.path)));
        }
        if !absent.is_empty() {
            text += "named, and not there:\n";
            text.extend(absent.iter().map(|file| line(&file.setting, &file.path)));
        }
        print(&text);
    }
    let missing = absent.iter().find(|file| !MAY_BE_ABSENT.contains(&file.setting.as_str()));
    missing.map_or(Ok(()), |file| {
        if wanted.json {
            return Err(Failures(Vec::new())); // the result has it
        }
        Err(Failure::new(format!("not a whole copy: {}, {}, is not there", file.path.display(), file.origin()))
            .help("what is there has been copied; `wayleave check` says what the role lacks")
            .into())
    })
}

/// The setting of a database, which may be a SQLite file that a running role writes to.
const DATABASE: &str = "key.database";

/// Whose configuration this is.
fn role_of(source: &Source) -> Result<&'static str, Failures> {
    source.parse::<toml::Table>()?;
    let role = check(source).role;
    if ROLES.iter().any(|known| known.name == role) {
        return Ok(role);
    }
    Err(Failure::new("no role's configuration, expected one that `wayleave run` takes").into())
}

/// The configuration of the other party in the folder of a party's.
fn other_party_beside(configuration: &Path, source: &Source) -> Option<PathBuf> {
    let number = |source: &Source| source.parse::<toml::Table>().ok()?.get("party")?.get("number")?.as_integer();
    let own = number(source)?;
    let is_other = |path: &PathBuf| {
        let is_configuration = path.extension().is_some_and(|ending| ending == "toml") && path.is_file();
        is_configuration && Source::read(path).is_ok_and(|other| number(&other).is_some_and(|number| number != own))
    };
    fs::read_dir(configuration.parent()?).ok()?.flatten().map(|entry| entry.path()).find(is_other)
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

    /// A file, or all files of a folder and of those in it. What is no file, such as a link, is no signed object.
    fn add_all(&mut self, setting: &str, path: &Path, from: &Path) -> Outcome {
        if !from.is_dir() {
            return self.add(setting, path, from);
        }
        let mut names: Vec<_> = fs::read_dir(from)
            .and_then(|entries| entries.map(|entry| Ok(entry?.file_name())).collect::<io::Result<_>>())
            .map_err(system(from))?;
        names.sort_unstable();
        for name in names {
            let (path, from) = (path.join(&name), from.join(&name));
            match fs::symlink_metadata(&from) {
                Ok(about) if about.is_dir() && !self.is_own(&from) => self.add_all(setting, &path, &from)?,
                Ok(about) if about.is_file() => self.add(setting, &path, &from)?,
                Ok(_) => {}
                // A temporary one, which is another by now.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(system(&from)(error)),
            }
        }
        Ok(())
    }

    /// Whether a folder is the copy itself.
    fn is_own(&self, folder: &Path) -> bool {
        let real = |path: &Path| fs::canonicalize(path).ok();
        real(folder).is_some() && real(folder) == real(self.folder)
    }

    /// A file, and what goes with it.
    fn add(&mut self, setting: &str, path: &Path, from: &Path) -> Outcome {
        self.add_one(setting, path, from)?;
        for ending in BESIDE {
            let [path, from] = [path, from].map(|path| with_ending(path, ending));
            if from.is_file() {
                self.add_one(setting, &path, &from)?;
            }
        }
        Ok(())
    }

    fn add_one(&mut self, setting: &str, path: &Path, from: &Path) -> Outcome {
        if self.entries.iter().any(|entry| entry.path == path) {
            return Err(Failure::new(format!("two files that would be restored to {}", path.display()))
                .help("give one of them another name; two operators' keys belong into two copies")
                .into());
        }
        let octets = if setting == DATABASE { DatabaseRecords::copy(from)? } else { read(from)? };
        let mode = fs::metadata(from).map_err(system(from))?.mode();
        let name = from.file_name().unwrap_or_default().to_string_lossy();
        let stored = format!("{:03}-{name}", self.entries.len());
        write(&self.folder.join(FILES).join(&stored), &octets, 0o600, None)?;
        // Of its owner alone, or not: no other difference means anything.
        let mode = if mode & 0o077 == 0 { 0o600 } else { 0o644 };
        let sha256 = to_hex(&sha256(&octets));
        self.entries.push(Entry { setting: setting.to_owned(), path: path.to_owned(), stored, sha256, mode });
        Ok(())
    }
}

/// Makes one file of a copy: of its owner alone, and whole or not there.
fn pack(folder: &Path, manifest: &Manifest, to: &Path) -> Outcome {
    let file = File::options().write(true).create_new(true).mode(0o600).open(to).map_err(system(to))?;
    let pack = || {
        let mut archive = tar::Builder::new(io::BufWriter::new(file));
        archive.mode(tar::HeaderMode::Deterministic);
        archive.append_path_with_name(folder.join(MANIFEST), MANIFEST)?;
        for entry in &manifest.files {
            let name = Path::new(FILES).join(&entry.stored);
            archive.append_path_with_name(folder.join(&name), &name)?;
        }
        archive.into_inner()?.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()
    };
    let packed = pack().map_err(system(to)).and_then(|()| private::sync_folder(to));
    if packed.is_err() {
        let _ = fs::remove_file(to);
    }
    packed
}

/// A copy as a folder. One that was unpacked for that is removed in the end.
struct Opened {
    folder: PathBuf,
    is_unpacked: bool,
}

impl Opened {
    fn of(wanted: &Restore) -> Outcome<Self> {
        if !wanted.folder.is_file() {
            return Ok(Self { folder: wanted.folder.clone(), is_unpacked: false });
        }
        // Where the secrets go anyway.
        fs::create_dir_all(wanted.to.parent().unwrap_or(Path::new("."))).map_err(system(&wanted.to))?;
        let folder = with_ending(&wanted.to, ".restoring");
        fs::DirBuilder::new().mode(0o700).create(&folder).map_err(|error| {
            Failures::from(
                Failure::system(folder.display(), &error).help("if nothing is being restored there, remove it"),
            )
        })?;
        let opened = Self { folder, is_unpacked: true };
        opened.unpack(&wanted.folder)?;
        Ok(opened)
    }

    /// Takes out what a copy has, and nothing else.
    fn unpack(&self, from: &Path) -> Outcome {
        let no_backup =
            |error: io::Error| Failures::from(damaged(&format!("{} is no backup: {error}", from.display())));
        fs::DirBuilder::new().mode(0o700).create(self.folder.join(FILES)).map_err(system(&self.folder))?;
        let mut archive = tar::Archive::new(io::BufReader::new(File::open(from).map_err(system(from))?));
        for entry in archive.entries().map_err(no_backup)? {
            let mut entry = entry.map_err(no_backup)?;
            let name = entry.path().map_err(no_backup)?.into_owned();
            let is_of_copy = name == Path::new(MANIFEST)
                || name.strip_prefix(FILES).is_ok_and(|file| plain(&file.to_string_lossy()).is_ok());
            if !is_of_copy || !entry.header().entry_type().is_file() || entry.size() > LONGEST {
                return Err(damaged(&format!("{}: {} is no part of a backup", from.display(), name.display())).into());
            }
            let mut octets = Vec::new();
            entry.read_to_end(&mut octets).map_err(no_backup)?;
            write(&self.folder.join(name), &octets, 0o600, None)?;
        }
        Ok(())
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if self.is_unpacked {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// Reads a file that a running role may be changing in place: what two reads in a row have in common was so at a moment between them.
fn read(from: &Path) -> Outcome<Vec<u8>> {
    let about = fs::metadata(from).map_err(system(from))?;
    if !about.is_file() || about.len() > LONGEST {
        return Err(Failure::new(format!("{} is no file that can be copied", from.display())).into());
    }
    let once = || fs::read(from).map_err(system(from));
    let mut before = once()?;
    for _ in 0..MOST_READS {
        let now = once()?;
        if now == before {
            return Ok(now);
        }
        before = now;
    }
    Err(Failure::new(format!("{} changes all the time", from.display()))
        .help("stop the role, or try when it has less to do")
        .into())
}

/// Writes a file that is not there yet, durably; what was begun and failed is removed.
fn write(path: &Path, octets: &[u8], mode: u32, owner: Option<(u32, u32)>) -> Outcome {
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(path).map_err(system(path))?;
    let mut written = || {
        file.write_all(octets)?;
        if let Some((user, group)) = owner {
            // By the open file: what lies at its path may be another's by now.
            fchown(&file, Some(user), Some(group))?;
        }
        file.set_permissions(Permissions::from_mode(mode))?;
        file.sync_all()
    };
    let written = written();
    if written.is_err() {
        let _ = fs::remove_file(path);
    }
    written.map_err(system(path))?;
    private::sync_folder(path)
}

/// A file that is to be put somewhere.
struct Placed {
    setting: String,
    to: PathBuf,
    octets: Vec<u8>,
    mode: u32,
}

pub fn restore(wanted: &Restore) -> Outcome {
    let opened = Opened::of(wanted)?;
    let folder = &opened.folder;
    let manifest = read_manifest(folder)?;
    let begins = manifest.files.iter().find(|entry| entry.setting == CONFIGURATION);
    let begins = begins.ok_or_else(|| Failure::new(format!("{} has no configuration", wanted.folder.display())))?;
    let source = Source::read(&folder.join(FILES).join(plain(&begins.stored)?))?;
    let (named, role) = (named_files(&source), role_of(&source)?);
    let placed =
        manifest.files.iter().map(|entry| place((wanted, folder), entry, &named)).collect::<Outcome<Vec<Placed>>>()?;
    for (at, file) in placed.iter().enumerate() {
        if placed[..at].iter().any(|other| other.to == file.to) {
            return Err(damaged(&format!("two files for {}", file.to.display())).into());
        }
    }
    // Everything was read and is as it was copied; now nothing may be in its way. What another role's copy has put there already, octet by octet the same, stays.
    let is_same = |file: &Placed| file.to.is_file() && fs::read(&file.to).is_ok_and(|octets| octets == file.octets);
    let (same, placed): (Vec<Placed>, Vec<Placed>) = placed.into_iter().partition(is_same);
    let is_there = |file: &&Placed| fs::symlink_metadata(&file.to).is_ok();
    let exist: Vec<Failure> = placed.iter().filter(is_there).map(|file| occupied(&file.to)).collect();
    if !exist.is_empty() {
        return Err(Failures(exist));
    }
    placed.iter().try_for_each(|file| refuse_links(&wanted.to, &file.to))?;
    let (mut done, mut made): (Vec<&Path>, Vec<PathBuf>) = (Vec::new(), Vec::new());
    let restored = placed.iter().try_for_each(|file| {
        put(file, &mut made)?;
        done.push(&file.to);
        Ok(())
    });
    if let Err(failures) = restored {
        for file in done {
            let _ = fs::remove_file(file);
        }
        for folder in made.iter().rev() {
            let _ = fs::remove_dir(folder);
        }
        return Err(failures);
    }
    let missing = missing(&manifest, &named);
    let configuration =
        placed.iter().chain(&same).find(|file| file.setting == CONFIGURATION).map(|file| file.to.clone());
    let configuration = configuration.unwrap_or_default();
    let other_party = other_party_beside(&configuration, &source);
    let is_continued =
        |file: &&Placed| loss_of(&file.setting) == Some(Loss::Continued) || file.setting == ALSO && is_signed(&file.to);
    let continued: Vec<&Placed> = placed.iter().filter(is_continued).collect();
    if wanted.json {
        print_json(json!({
            "role": role, "configuration": configuration, "files": placed.iter().map(|file| &file.to).collect::<Vec<_>>(),
            "continued": continued.iter().map(|file| &file.to).collect::<Vec<_>>(), "left_out": manifest.left_out,
            "other_party": other_party, "absent": missing.iter().map(|file| json!({ "setting": file.setting, "path": file.path })).collect::<Vec<_>>(),
        }));
        // The result has them.
        return if missing.is_empty() { Ok(()) } else { Err(Failures(Vec::new())) };
    }
    let mut text = format!("restored {role}, as it was at {}:\n", utc(manifest.made));
    text.extend(placed.iter().map(|file| format!("  {}\n", file.to.display())));
    text.extend(same.iter().map(|file| format!("  {} (there already, the same)\n", file.to.display())));
    for file in continued {
        text += &format!("{} may lack what came later: {}\n", file.to.display(), what_to_do(&file.setting));
    }
    for left in &manifest.left_out {
        if let Some(what) = what_is_missing(&left.setting) {
            text += &format!("{} is not in the copy: {what}\n", left.path.display());
        }
    }
    if let Some(other) = other_party {
        text += &format!(
            "warning: {} beside it is the other party's configuration: whoever holds both parties' keys reads every policy, and one machine \
             must not have them; move one of the two away\n",
            other.display()
        );
    }
    let configuration = configuration.display();
    text += &format!("next: wayleave check {configuration}; wayleave run {role} --config {configuration}\n");
    print(&text);
    whole(&missing)
}

/// What a configuration names and its copy lacks, as `backup` said when it made it.
fn missing<'a>(manifest: &Manifest, named: &'a [NamedFile]) -> Vec<&'a NamedFile> {
    let is_there = |file: &NamedFile| {
        manifest.files.iter().any(|entry| entry.setting == file.setting && entry.path.starts_with(&file.path))
    };
    let may_lack = |file: &NamedFile| {
        MAY_BE_ABSENT.contains(&file.setting.as_str()) || MAY_BE_EMPTY.contains(&file.setting.as_str())
    };
    named.iter().filter(|file| is_copied(file.loss) && !may_lack(file) && !is_there(file)).collect()
}

/// Whether a copy has all that its configuration names.
fn whole(missing: &[&NamedFile]) -> Outcome {
    let failure = |file: &&NamedFile| {
        let what = format!("not a whole copy: {}, {}, is not in it", file.path.display(), file.origin());
        Failure::new(what)
            .help("what the copy has was restored; bring this file, or have it made anew, before the role starts")
    };
    let all: Vec<Failure> = missing.iter().map(failure).collect();
    if all.is_empty() { Ok(()) } else { Err(Failures(all)) }
}

/// What to do about a copy that may be old.
fn what_to_do(setting: &str) -> &'static str {
    match setting {
        "party.members" => "take the other party's file; a party whose peer has a newer one takes it by itself",
        "realm.records" => {
            "compare with `wayleave show members` of a path server; a node that was removed since is to be removed again"
        }
        DATABASE => {
            "it is refused where later changes were seen: `wayleave cap adopt` accepts it; then revoke again what was revoked since; routers \
             report again what they have, and what was closed since is to be closed again"
        }
        "key.records" => "`wayleave cap import` brings it into a database; then revoke again what was revoked since",
        "key.revocations" => "routers refuse a list that is older than theirs: `wayleave cap new-list` signs it anew",
        "platypus.revocations.file" => {
            "a router without its state takes only a list signed recently: fetch the present one"
        }
        ALSO => "compare with the newest member set before this key signs: two sets of one number divide the exchange",
        _ => "fetch the publisher's present objects",
    }
}

/// What to do about what a copy leaves out.
fn what_is_missing(setting: &str) -> Option<&'static str> {
    match setting {
        "path.state" => Some(
            "with no other path server to ask, removed nodes are known only once the realm's operator has handed the list in",
        ),
        "party.trial" => Some("a party of a trial starts only where both operators' keys are in that folder"),
        "consent.audit" => Some("nobody can make it anew: keep it as you keep logs"),
        _ => None,
    }
}

fn is_signed(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == "signed")
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
fn place((wanted, folder): (&Restore, &Path), entry: &Entry, named: &[NamedFile]) -> Outcome<Placed> {
    let stored = folder.join(FILES).join(plain(&entry.stored)?);
    let octets = fs::read(&stored).map_err(system(&stored))?;
    if to_hex(&sha256(&octets)) != entry.sha256 {
        return Err(damaged(&format!("{} is not what was copied", stored.display())).into());
    }
    let is_of = |file: &&NamedFile| {
        let below = entry.path.strip_prefix(&file.path).ok();
        let is_below = below.is_some_and(|rest| rest.components().all(|part| matches!(part, Component::Normal(_))));
        let is_beside = BESIDE.iter().any(|ending| with_ending(&file.path, ending) == entry.path);
        file.setting == entry.setting && is_copied(file.loss) && (is_below || is_beside)
    };
    if entry.setting == CONFIGURATION || entry.setting == ALSO {
        plain(&entry.path.to_string_lossy())?;
    } else if !named.iter().any(|file| is_of(&file)) {
        let what = format!("{}: its configuration does not name {}", entry.setting, entry.path.display());
        return Err(damaged(&what).into());
    }
    let is_inside = entry.path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    if !is_inside && !wanted.outside {
        return Err(Failure::new(format!("{} is outside of {}", entry.path.display(), wanted.to.display()))
            .help("its configuration names it there: if you made this backup, add --outside")
            .into());
    }
    let mode = if entry.mode == 0o600 { 0o600 } else { 0o644 };
    Ok(Placed { setting: entry.setting.clone(), to: reached(&wanted.to.join(&entry.path)), octets, mode })
}

/// Where a path leads once the folders on it are there: out of one that is not there yet, to the one above. Where a folder is there,
/// it may be a link, and the system follows it.
fn reached(path: &Path) -> PathBuf {
    let mut reached = PathBuf::new();
    for part in path.components() {
        let is_out =
            part == Component::ParentDir && matches!(reached.components().next_back(), Some(Component::Normal(_)));
        if is_out && fs::symlink_metadata(&reached).is_err() {
            reached.pop();
        } else {
            reached.push(part);
        }
    }
    reached
}

/// Below the folder that was said nothing is reached through a link: whoever owns it could have put one there.
fn refuse_links(to: &Path, file: &Path) -> Outcome {
    let is_link = |path: &&Path| fs::symlink_metadata(path).is_ok_and(|about| about.is_symlink());
    let between = file.ancestors().skip(1).take_while(|above| *above != to && above.starts_with(to));
    match { between }.find(is_link) {
        Some(link) => Err(Failure::new(format!("{} is a symbolic link", link.display()))
            .help("remove it, or restore to another folder")
            .into()),
        None => Ok(()),
    }
}

/// Writes a file; it and the folders that are made for it belong to the owner of the folder in which they begin.
fn put(file: &Placed, made: &mut Vec<PathBuf>) -> Outcome {
    let folder = file.to.parent().unwrap_or(Path::new("."));
    let mut missing = Vec::new();
    let mut above = folder;
    while !above.as_os_str().is_empty() && !above.exists() {
        missing.push(above);
        above = above.parent().unwrap_or(Path::new(""));
    }
    let above = if above.as_os_str().is_empty() { Path::new(".") } else { above };
    let about = fs::metadata(above).map_err(system(above))?;
    let owner = rustix::process::geteuid().is_root().then_some((about.uid(), about.gid()));
    for folder in missing.iter().rev() {
        fs::DirBuilder::new().mode(0o700).create(folder).map_err(system(folder))?;
        made.push(folder.to_path_buf());
        if let Some((user, group)) = owner {
            lchown(folder, Some(user), Some(group)).map_err(system(folder))?;
        }
    }
    write(&file.to, &file.octets, file.mode, owner)
}
