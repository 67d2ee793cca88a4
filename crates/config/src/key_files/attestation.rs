//! Files of attestation: the AS's private keys, the trust anchor, and the folder of signed objects.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use wayleave_attestation::leaf::LeafKey;
use wayleave_attestation::pki::{
    Anchor, FolderContents, MAX_OBJECT_LEN, ManifestAlarm, Object, ObjectSet, Refused, RetainedObject, TRUST_ANCHOR,
};
use wayleave_attestation::sign::{KeyPair, KeyRing};
use wayleave_attestation::suite::hbs::{HbsKey, MAX_PARTS, Part};
use wayleave_attestation::suite::{self, SuiteId, SuiteKey};
use wayleave_core::Asn;
use wayleave_crypto::secret::{Secret, Seed};
use wayleave_runtime::clock::unix_now;
use wayleave_runtime::identity::{from_hex, to_hex};
use zeroize::Zeroizing;

use crate::failure::{Failure, Outcome};
use crate::replace::put;

/// Largest file that is read, in octets.
const MAX_OCTETS: u64 = 8 << 20;
/// Largest number of objects in a folder.
const MAX_OBJECTS: usize = 200_000;
/// The ending of the copy of the last manifest that a publisher keeps beside its private key.
const LAST_MANIFEST: &str = "manifest";
/// The ending of an object's file name.
const OBJECT: &str = "object";

/// A file of private keys: the seeds of an AS's attestation keys, the identity key or the anchor's key.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyFile {
    /// The purpose of the keys: `attest`, `identity` or `anchor`.
    role: String,
    /// The AS; an anchor's file has none.
    asn: Option<Asn>,
    /// Seeds in hexadecimal by suite, the preferred suite first.
    keys: Vec<KeyLine>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyLine {
    suite: String,
    seed: Zeroizing<String>,
    /// Of a few-time key: when it was created, in seconds since 1970.
    birth: Option<u64>,
    /// Of a few-time key: among how many hosts its signatures are divided.
    parts: Option<u16>,
}

/// What a few-time key is derived from beside its seed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Division {
    /// When the key was created, in seconds since 1970.
    pub birth: u64,
    /// Among how many hosts its signatures are divided.
    pub parts: u16,
}

/// A key pair's seed.
pub struct KeySeed {
    pub suite: SuiteId,
    seed: Seed,
    /// `None` if the key is no few-time key.
    pub division: Option<Division>,
}

/// Private keys of a file. They are never printed.
pub struct Keys {
    /// The AS; an anchor's file has none.
    pub asn: Option<Asn>,
    /// The seeds of the key pairs, that of the preferred suite first.
    pub seeds: Vec<KeySeed>,
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keys({:?}, {} keys)", self.asn, self.seeds.len())
    }
}

impl Keys {
    /// New keys of these suites; a few-time key for so many hosts.
    pub fn generate(asn: Option<Asn>, suites: &[SuiteId], parts: u16) -> Outcome<Self> {
        let mut seeds = Vec::new();
        for suite in suites {
            let mut seed = [0u8; 32];
            let failed = |error| Failure::new(format!("the system gave no randomness: {error}"));
            getrandom::fill(&mut seed).map_err(failed)?;
            let division = is_few_time(*suite).then(|| Division { birth: unix_now().secs(), parts });
            seeds.push(KeySeed { suite: *suite, seed: Secret::new(seed), division });
        }
        Ok(Self { asn, seeds })
    }

    /// Writes a new file that only its owner can read.
    pub fn save(&self, role: &str, path: &Path) -> Outcome {
        let line = |key: &KeySeed| KeyLine {
            suite: key.suite.name().to_owned(),
            seed: Zeroizing::new(to_hex(key.seed.expose())),
            birth: key.division.map(|division| division.birth),
            parts: key.division.map(|division| division.parts),
        };
        let file = KeyFile { role: role.to_owned(), asn: self.asn, keys: self.seeds.iter().map(line).collect() };
        let text = toml::to_string(&file).map(Zeroizing::new);
        let text = text.map_err(|error| Failure::new(format!("{}: {error}", path.display())))?;
        let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let mut made = made.map_err(|error| Failure::system(path.display(), &error))?;
        let written = made.write_all(text.as_bytes()).and_then(|()| made.sync_all());
        Ok(written.map_err(|error| Failure::system(path.display(), &error))?)
    }

    /// Reads the keys for `role`; the file must be readable by its owner alone.
    pub fn load(role: &str, path: &Path) -> Result<Self, Failure> {
        let system = |error| Failure::system(path.display(), &error);
        let meta = fs::metadata(path).map_err(system)?;
        let text = Zeroizing::new(read(path)?);
        if is_public_anchor(&text) {
            let private = path.with_extension("key");
            return Err(Failure::new(format!(
                "{} is the public file of a trust anchor, expected a private file",
                path.display()
            ))
            .help(format!(
                "name the private file, such as {}, which `wayleave keys anchor` made beside it",
                private.display()
            )));
        }
        if meta.mode() & 0o077 != 0 {
            return Err(Failure::new(format!("{} can be read by others than its owner", path.display()))
                .help(format!("run: chmod 600 {}; if others may have read it, create new keys", path.display())));
        }
        // The parser's message would quote the line, which is secret.
        let malformed = || {
            Failure::new(format!("{} is not a file of attestation keys", path.display()))
                .help("`wayleave keys attest` creates one; `wayleave keys show FILE` says what a file is")
        };
        let file: KeyFile = toml::from_str(&text).map_err(|_| malformed())?;
        if file.role != role {
            return Err(Failure::new(format!("{} has keys for `{}`, not for `{role}`", path.display(), file.role))
                .help(format!("`wayleave keys {role}` creates one for `{role}`")));
        }
        let seeds = file.keys.iter().map(|line| {
            let signs = |suite: &SuiteId| suite::of_key_file(*suite).is_some();
            // Some suites sign objects and no hop of a chain.
            let signs_hops = |suite: &SuiteId| role != "attest" || suite::of(*suite).is_some();
            let suite = SuiteId::from_name(&line.suite).filter(signs).filter(signs_hops);
            let unknown = || Failure::new(format!("{}: suite `{}` is not known", path.display(), line.suite));
            let seed = from_hex(&line.seed).map(Secret::new).ok_or_else(malformed)?;
            let suite = suite.ok_or_else(unknown)?;
            let division = match (line.birth, line.parts) {
                (Some(birth), Some(parts @ 1..=MAX_PARTS)) if is_few_time(suite) => Some(Division { birth, parts }),
                (None, None) if !is_few_time(suite) => None,
                (None, None) => return Err(of_earlier_version(path, suite)),
                _ => return Err(malformed()),
            };
            Ok(KeySeed { suite, seed, division })
        });
        let seeds: Vec<KeySeed> = seeds.collect::<Result<_, Failure>>()?;
        // Two holders of one few-time key would sign with the same indices.
        for (number, seed) in seeds.iter().enumerate() {
            if seeds[..number].iter().any(|other| other.suite == seed.suite && other.seed == seed.seed) {
                return Err(Failure::new(format!("{} has one {} key twice", path.display(), seed.suite.name()))
                    .help("remove one of the two"));
            }
        }
        Ok(Self { asn: file.asn, seeds })
    }

    /// The key pairs, derived from their seeds; a few-time key as its first holder has it.
    pub fn pairs(&self) -> Vec<(SuiteId, Box<dyn SuiteKey>)> {
        self.pairs_of(0)
    }

    /// The key pairs, with only this part of a few-time key's signatures.
    fn pairs_of(&self, part: u16) -> Vec<(SuiteId, Box<dyn SuiteKey>)> {
        let make = |key: &KeySeed| {
            let pair: Box<dyn SuiteKey> = match key.division {
                Some(Division { birth, parts }) => Box::new(HbsKey::new(&key.seed, birth, Part::new(part, parts)?)),
                None => suite::of_key_file(key.suite)?.generate(&key.seed),
            };
            Some((key.suite, pair))
        };
        self.seeds.iter().filter_map(make).collect()
    }

    /// What a proxy signs with that has only this part of a few-time key's signatures.
    pub fn ring(&self, part: u16) -> KeyRing {
        let pairs = self.pairs_of(part).into_iter().map(|(suite, key)| KeyPair { suite, key, registered: false });
        KeyRing { pairs: pairs.collect() }
    }

    /// The part that `configured` says this host has, or what is wrong with it.
    pub fn part(&self, configured: Option<u16>) -> Result<u16, String> {
        let parts = self.seeds.iter().find_map(|key| key.division).map(|division| division.parts);
        match (parts, configured) {
            (None, None) | (Some(1), None) => Ok(0),
            (Some(parts), Some(part)) if part < parts => Ok(part),
            (Some(parts), None) => Err(format!(
                "the few-time key of this file was created for {parts} hosts, expected `part`, from 0 to {}, another for each host",
                parts - 1
            )),
            (Some(1), Some(part)) => {
                Err(format!("there is no part {part}: the few-time key of this file was created for one host"))
            }
            (Some(parts), Some(part)) => Err(format!(
                "there is no part {part}: the few-time key of this file was created for {parts} hosts, expected 0 to {}",
                parts - 1
            )),
            (None, Some(_)) => {
                Err("`part` is given, and this file has no few-time key to be divided, expected no such key: remove it"
                    .to_owned())
            }
        }
    }
}

/// The public keys as the member set lists them.
pub fn listed(keys: &Keys) -> Vec<[u8; 32]> {
    keys.pairs().iter().map(|(suite, key)| LeafKey::of(*suite, key.public()).key).collect()
}

/// Whether keys of the suite sign in slots of time.
fn is_few_time(suite: SuiteId) -> bool {
    suite == SuiteId::KcHbs
}

fn of_earlier_version(path: &Path, suite: SuiteId) -> Failure {
    Failure::new(format!(
        "{}: the {} key is of an earlier version, which counted its signatures",
        path.display(),
        suite.name()
    ))
    .help("create a new key with `wayleave keys attest` and publish a new profile")
}

fn read(path: &Path) -> Result<String, Failure> {
    let system = |error| Failure::system(path.display(), &error);
    if fs::metadata(path).map_err(system)?.len() > MAX_OCTETS {
        return Err(Failure::new(format!("{}: longer than 8 MiB", path.display())));
    }
    fs::read_to_string(path).map_err(system)
}

/// The public file of an anchor.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AnchorFile {
    name: String,
    /// `ed25519:` and 64 hexadecimal digits.
    key: String,
    /// `slh-dsa-sha2-128s:` and 64 hexadecimal digits. With it both keys must have signed each object.
    post_quantum_key: Option<String>,
    /// Seconds since 1970.
    not_before: u64,
    not_after: u64,
}

/// Writes an anchor's public file, which must not exist.
pub fn save_anchor(anchor: &Anchor, path: &Path) -> Outcome {
    let file = AnchorFile {
        name: anchor.name.clone(),
        key: format!("ed25519:{}", to_hex(&anchor.public)),
        post_quantum_key: anchor.post_quantum.map(|public| format!("{}:{}", SuiteId::SlhDsa128s, to_hex(&public))),
        not_before: anchor.not_before,
        not_after: anchor.not_after,
    };
    let text = toml::to_string(&file).map_err(|error| Failure::new(format!("{}: {error}", path.display())))?;
    let made = OpenOptions::new().write(true).create_new(true).open(path);
    let written = made.and_then(|mut made| made.write_all(text.as_bytes()));
    Ok(written.map_err(|error| Failure::system(path.display(), &error))?)
}

/// Reads an anchor's public file.
pub fn load_anchor(path: &Path) -> Result<Anchor, Failure> {
    let text = Zeroizing::new(read(path)?);
    if text.starts_with("role = \"anchor\"") {
        let public = path.with_extension("pub");
        return Err(Failure::new(format!(
            "{} is the private file of a trust anchor, expected its public file",
            path.display()
        ))
        .help(format!(
            "name the public file, such as {}; the private one stays with the anchor's operator",
            public.display()
        )));
    }
    let malformed = |why: &dyn fmt::Display| {
        Failure::new(format!("{} is not a trust anchor: {why}", path.display()))
            .help("`wayleave keys anchor` creates one")
    };
    let file: AnchorFile = toml::from_str(&text).map_err(|error| malformed(&error.message()))?;
    let public = file.key.strip_prefix("ed25519:").and_then(from_hex);
    let public = public.ok_or_else(|| malformed(&"its key is not `ed25519:` and 64 hexadecimal digits"))?;
    let wrong = || malformed(&"its post-quantum key is not `slh-dsa-sha2-128s:` and 64 hexadecimal digits");
    let key = |text: &String| text.strip_prefix(SuiteId::SlhDsa128s.name())?.strip_prefix(':').and_then(from_hex);
    let post_quantum = file.post_quantum_key.as_ref().map(|text| key(text).ok_or_else(wrong)).transpose()?;
    let AnchorFile { name, not_before, not_after, .. } = file;
    Ok(Anchor { name, public, post_quantum, not_before, not_after })
}

/// Names, sizes and times of files, by which changes are noticed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FileSnapshot(Vec<(PathBuf, u64, i64, i64)>);

/// The files of an anchor and of a folder's objects, and `more`; nothing is read.
pub fn snapshot(anchor: Option<PathBuf>, folder: Option<&Path>, more: Vec<PathBuf>) -> FileSnapshot {
    let mut files: Vec<PathBuf> = anchor.into_iter().collect();
    if let Some(folder) = folder {
        files.extend(object_files(folder).unwrap_or_default());
    }
    files.extend(more);
    let snapshot = files.into_iter().map(|file| match fs::metadata(&file) {
        Ok(meta) => (file, meta.len(), meta.mtime(), meta.mtime_nsec()),
        Err(_) => (file, 0, 0, 0),
    });
    FileSnapshot(snapshot.collect())
}

/// What a folder of objects and those that were remembered come to.
pub struct Objects {
    /// Files that do not count, with the reason.
    pub refused: Vec<String>,
    pub set: ObjectSet,
    /// Of those: their signer is none that is known here.
    pub strangers: usize,
    /// Files in the folder.
    pub files: usize,
    /// Objects that still count although the folder does not have them.
    pub kept: Vec<RetainedObject>,
    /// What the publishers' manifests say of the folder.
    pub alarms: Vec<ManifestAlarm>,
}

/// The verified objects of a folder under an anchor, and what was refused.
pub fn set(anchor: &Path, folder: &Path, now: u64) -> Result<Objects, Failure> {
    read_objects(anchor, folder, std::iter::empty(), now)
}

/// The same, with those that are `remembered` from an earlier reading.
pub fn read_objects<'o>(
    anchor: &Path,
    folder: &Path,
    remembered: impl Iterator<Item = &'o [u8]>,
    now: u64,
) -> Result<Objects, Failure> {
    let anchor = load_anchor(anchor)?;
    let set = ObjectSet::new(anchor, now);
    let mut set = set.map_err(|error| {
        Failure::new(error.to_string()).help("create or fetch a new anchor, or set this machine's clock")
    })?;
    for octets in remembered {
        // What another anchor signed, or has expired, is refused.
        let _ = set.insert(octets, now);
        set.remember(octets, now);
    }
    let mut refused = Vec::new();
    let mut refuse = |file: &Path, why: &dyn fmt::Display| refused.push(format!("{}: {why}", file.display()));
    // Profiles first, since additions and manifests belong to them. The octet after the version is the kind. Files are read one
    // by one: whoever can write the folder may fill it with long ones.
    let mut by_kind = BTreeMap::<u8, Vec<PathBuf>>::new();
    let found = object_files(folder)?;
    let files = found.len();
    for file in found {
        match read_octets(&file, 2) {
            Ok(octets) => by_kind.entry(octets.get(1).copied().unwrap_or_default()).or_default().push(file),
            Err(why) => refuse(&file, &why),
        }
    }
    let (mut contents, mut strangers) = (FolderContents::default(), 0);
    for file in by_kind.into_values().flatten() {
        match read_object(&file) {
            Ok(octets) => {
                contents.add(&octets);
                if let Err(error) = set.insert(&octets, now) {
                    match error {
                        Refused::Signature(_) => strangers += 1,
                        Refused::Expired(_) => contents.add_expired(&octets),
                        _ => {}
                    }
                    refuse(&file, &error);
                }
            }
            Err(why) => refuse(&file, &why),
        }
    }
    let (kept, alarms) = (set.kept(&contents, now), set.manifest_alarms(&contents, now));
    Ok(Objects { refused, strangers, files, set, kept, alarms })
}

impl Objects {
    /// That no object of the folder counts, nor one that was remembered, because another anchor signed them than the one in the file
    /// `anchor`, and what to do.
    pub fn other_anchor(&self, anchor: &Path) -> Option<(String, &'static str)> {
        let is_one = self.strangers > 0 && self.set.objects().next().is_none();
        let message = format!(
            "{} of {} objects are refused: they are signed by another anchor than {}",
            self.strangers,
            self.files,
            anchor.display()
        );
        is_one.then_some((
            message,
            "put the public file of the anchor that signed them in its place, or that anchor's objects into the folder",
        ))
    }
}

/// Reads no more than an object may have: whoever can write the folder may have no key.
fn read_object(file: &Path) -> Result<Vec<u8>, String> {
    let octets = read_octets(file, MAX_OBJECT_LEN + 1)?;
    if octets.len() > MAX_OBJECT_LEN { Err("longer than any object".to_owned()) } else { Ok(octets) }
}

/// The first octets of a file, at most `most`. What is no file (a pipe, a device) may never answer, and is not waited for.
fn read_octets(file: &Path, most: usize) -> Result<Vec<u8>, String> {
    let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
    let opened = OpenOptions::new().read(true).custom_flags(nonblocking).open(file);
    let opened = opened.map_err(|error| error.to_string())?;
    if !opened.metadata().is_ok_and(|metadata| metadata.is_file()) {
        return Err("not a file".to_owned());
    }
    let mut octets = Vec::new();
    opened.take(most as u64).read_to_end(&mut octets).map_err(|error| error.to_string())?;
    Ok(octets)
}

fn object_files(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let system = |error| Failure::system(folder.display(), &error);
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(system)? {
        let path = entry.map_err(system)?.path();
        if path.extension().is_some_and(|extension| extension == OBJECT) {
            files.push(path);
        }
        if files.len() > MAX_OBJECTS {
            return Err(Failure::new(format!("{} holds more than {MAX_OBJECTS} objects", folder.display())));
        }
    }
    files.sort();
    Ok(files)
}

/// Where an object lies in its folder.
pub fn object_file(folder: &Path, object: &Object) -> PathBuf {
    match object {
        Object::Manifest(manifest) if manifest.publisher == TRUST_ANCHOR => folder.join(format!("manifest.{OBJECT}")),
        _ => folder.join(format!("{}-{}.{OBJECT}", object.kind_name(), object.asn().0)),
    }
}

/// Writes a signed object into a folder, replacing an earlier one of its kind and AS; returns its path.
pub fn save_object(folder: &Path, object: &Object, octets: &[u8]) -> Outcome<PathBuf> {
    let path = object_file(folder, object);
    fs::create_dir_all(folder).map_err(|error| Failure::system(folder.display(), &error))?;
    replace(&path, octets)?;
    Ok(path)
}

/// Writes a file in one step, so that a reader never sees half of it.
pub(crate) fn replace(path: &Path, octets: &[u8]) -> Outcome {
    let temporary = path.with_added_extension(format!("{}.new", std::process::id()));
    Ok(put(path, &temporary, &[octets]).map_err(|error| Failure::system(path.display(), &error))?)
}

/// Keeps a copy of a publisher's last manifest beside its private key, so that it never lists less because its folder lost
/// something.
pub fn keep_manifest(key_file: &Path, octets: &[u8]) -> Outcome {
    replace(&key_file.with_extension(LAST_MANIFEST), octets)
}

/// The copy that [`keep_manifest`] made; `None` if there is none.
pub fn kept_manifest(key_file: &Path) -> Result<Option<Vec<u8>>, Failure> {
    let path = key_file.with_extension(LAST_MANIFEST);
    if !path.exists() {
        return Ok(None);
    }
    read_object(&path).map(Some).map_err(|why| Failure::new(format!("{}: {why}", path.display())))
}

/// The objects of a folder as their files hold them, genuine or not; none if there is no folder yet.
pub fn folder_octets(folder: &Path) -> Result<Vec<Vec<u8>>, Failure> {
    if !folder.exists() {
        return Ok(Vec::new());
    }
    Ok(object_files(folder)?.iter().filter_map(|file| read_object(file).ok()).collect())
}

/// Whether this is the text of a trust anchor's public file. Private keys, which a parser would copy, are told by their lines.
fn is_public_anchor(text: &str) -> bool {
    let has = |key: &str| text.lines().any(|line| line.starts_with(key));
    has("key = \"ed25519:") && !has("seed = ") && toml::from_str::<AnchorFile>(text).is_ok()
}

/// The purpose of a file of attestation keys, of an identity key or of an anchor: what its first line says.
pub fn role(path: &Path) -> Option<&'static str> {
    // No more than the first line: keys follow.
    let octets = read_octets(path, 32).ok()?;
    ["attest", "identity", "anchor"]
        .into_iter()
        .find(|role| octets.starts_with(format!("role = \"{role}\"").as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_anchors_public_file_is_told_from_a_private_one_which_is_not_parsed_for_it() {
        let key = format!("key = \"ed25519:{}\"\nnot_before = 1\nnot_after = 2\n", "11".repeat(32));
        assert!(is_public_anchor(&format!("name = \"lab\"\n{key}")));
        assert!(is_public_anchor(&format!("# by hand\nname = \"lab\"\n{key}")));
        let private =
            format!("role = \"anchor\"\n\n[[keys]]\nsuite = \"kc-ed25519\"\nseed = \"{}\"\n", "11".repeat(32));
        assert!(!is_public_anchor(&private));
        assert!(!is_public_anchor("key = \"ed25519:\"\n"));
    }
}
