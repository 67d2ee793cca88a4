//! `keys attest`, `anchor`, `profile`, `record`, `identity`, `addition`, `manifest`, `routers` and `objects`: attestation keys and
//! the signed objects that register them.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use wayleave_attestation::leaf::LeafKey;
use wayleave_attestation::pki::{
    Addition, Anchor, Manifest, ManifestEntry, Object, Profile, ProfileKey, Record, Role, Signed, Span, Strictness,
    TRUST_ANCHOR, object_hash,
};
use wayleave_attestation::suite::hbs::MAX_PARTS;
use wayleave_attestation::suite::{self, SuiteId, SuiteKey};
use wayleave_core::Asn;
use wayleave_runtime::clock::{unix_now, utc};
use wayleave_runtime::identity::{from_hex, to_hex};

use super::succession::{Earlier, follow, unseen};
use crate::config::kinds::{TextKind, refusal};
use crate::failure::{Failure, Outcome};
use crate::key_files::attestation::{
    Keys, Objects, folder_octets, keep_manifest, kept_manifest, load_anchor, object_file, save_anchor, save_object, set,
};
use crate::key_files::router_keys;
use crate::output::{objects, print, print_json, warn};
use clap::{Args, ValueEnum};
use wayleave_core::Prefix;

#[derive(Args, Debug)]
pub struct AttestKeys {
    /// The file to create.
    pub file: PathBuf,
    /// The AS whose routes it signs.
    #[arg(long)]
    pub asn: Asn,
    /// A signature suite, the preferred one first (may be repeated).
    #[arg(long, default_value = "kc-ed25519")]
    pub suite: Vec<String>,
    /// Hosts that sign with the file at one time; each has another part of a few-time key's signatures.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=i64::from(MAX_PARTS)))]
    pub parts: u16,
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct AnchorKeys {
    /// The private file to create; the public one gets the same name with `.pub`.
    pub file: PathBuf,
    /// The anchor's name.
    #[arg(long, default_value = "anchor")]
    pub name: String,
    /// Validity of the anchor.
    #[arg(long, default_value_t = 3650, value_parser = clap::value_parser!(u32).range(1..))]
    pub days: u32,
    /// An Ed25519 key alone: routes of origins that require post-quantum suites are then not valid anywhere.
    #[arg(long)]
    pub classical: bool,
    #[arg(long)]
    pub json: bool,
}

/// The anchor that signs, and the folder of the object.
#[derive(Args, Debug)]
pub struct ObjectKeys {
    /// The anchor's private file; the public file must be in the same folder.
    #[arg(long)]
    pub anchor: PathBuf,
    /// The folder of signed objects.
    #[arg(long)]
    pub objects: PathBuf,
    /// Validity of the object.
    #[arg(long, default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..))]
    pub days: u32,
    /// In how many days the next manifest is due at the latest.
    #[arg(long, default_value_t = MANIFEST_DAYS, value_parser = clap::value_parser!(u32).range(1..))]
    pub manifest_days: u32,
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct ProfileKeys {
    #[command(flatten)]
    pub objects: ObjectKeys,
    #[command(flatten)]
    pub earlier: Earlier,
    /// The AS. Default: that of the file of its keys.
    #[arg(long)]
    pub asn: Option<Asn>,
    /// A file of the AS's attestation keys, all of which are listed.
    #[arg(long)]
    pub attest: Option<PathBuf>,
    /// A public key as ROLE:SUITE:HEX (may be repeated).
    #[arg(long)]
    pub key: Vec<String>,
}

#[derive(Args, Debug)]
pub struct AdditionKeys {
    /// The AS's private identity key, which its profile lists.
    #[arg(long)]
    pub identity: PathBuf,
    /// The folder of signed objects.
    #[arg(long)]
    pub objects: PathBuf,
    /// A file of the AS's attestation keys, all of which are added.
    #[arg(long)]
    pub attest: Option<PathBuf>,
    /// A public key as attest:SUITE:HEX (may be repeated).
    #[arg(long)]
    pub key: Vec<String>,
    #[command(flatten)]
    pub earlier: Earlier,
    /// Validity of the addition.
    #[arg(long, default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..))]
    pub days: u32,
    /// In how many days the next manifest is due at the latest.
    #[arg(long, default_value_t = MANIFEST_DAYS, value_parser = clap::value_parser!(u32).range(1..))]
    pub manifest_days: u32,
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct ManifestKeys {
    /// The anchor's private file; the public file must be in the same folder.
    #[arg(long, conflicts_with = "identity", required_unless_present = "identity")]
    pub anchor: Option<PathBuf>,
    /// Or an AS's private identity key, for the list of its additions.
    #[arg(long)]
    pub identity: Option<PathBuf>,
    /// The folder of signed objects.
    #[arg(long)]
    pub objects: PathBuf,
    /// In how many days the next manifest is due at the latest.
    #[arg(long, default_value_t = MANIFEST_DAYS, value_parser = clap::value_parser!(u32).range(1..))]
    pub manifest_days: u32,
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct RecordKeys {
    #[command(flatten)]
    pub objects: ObjectKeys,
    #[command(flatten)]
    pub earlier: Earlier,
    /// The AS that the record is about.
    #[arg(long)]
    pub asn: Asn,
    /// A prefix that the AS may originate, with an optional maximum length: 192.0.2.0/24-26 (may be repeated).
    #[arg(long)]
    pub prefix: Vec<OwnedPrefix>,
    /// The AS attests its routes; the value is how a route without attestation is treated.
    #[arg(long, value_enum)]
    pub attested: Option<StrictnessName>,
    /// Since when, in seconds since 1970. Default: as before, or now.
    #[arg(long)]
    pub since: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum StrictnessName {
    /// It is invalid.
    Strict,
    /// It is less preferred.
    Prefer,
    /// It is invalid, and every AS on the path must sign with a post-quantum suite (kc-hbs); where one has none, the route is
    /// proved up to there.
    PostQuantum,
}

/// A prefix and its maximum length (RFC 9582).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OwnedPrefix {
    pub prefix: Prefix,
    pub max_length: u8,
}

impl std::str::FromStr for OwnedPrefix {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (prefix, most) = text.split_once('-').map_or((text, None), |(prefix, most)| (prefix, Some(most)));
        let prefix: Prefix = prefix.parse().map_err(|error| format!("{error}"))?;
        let max_length = most.map_or(Ok(prefix.len()), str::parse);
        let fits = |most: &u8| (prefix.len()..=prefix.afi().bits()).contains(most);
        let max_length = max_length.ok().filter(fits);
        max_length.map(|max_length| Self { prefix, max_length }).ok_or_else(|| {
            format!("the maximum length of {prefix} is a number from {} to {}", prefix.len(), prefix.afi().bits())
        })
    }
}

const DAY: u64 = 86_400;
/// Days until a publisher's next manifest is due.
const MANIFEST_DAYS: u32 = 30;
/// What begins now begins so many seconds earlier, for machines whose clocks are behind ours.
const MARGIN: u64 = 3600;

/// Creates an AS's private attestation keys.
pub fn attest(command: &AttestKeys) -> Outcome {
    let mut suites = Vec::new();
    for name in &command.suite {
        let suite = SuiteId::from_name(name).filter(|suite| suite::of(*suite).is_some());
        let known: Vec<&str> = SuiteId::ALL.iter().map(|suite| suite.name()).collect();
        let unknown = || Failure::usage(format!("no suite `{name}`")).help(format!("there are: {}", known.join(", ")));
        let suite = suite.ok_or_else(unknown)?;
        if suites.contains(&suite) {
            return Err(
                Failure::usage(format!("suite `{name}` is given twice; a file has one key for each suite")).into()
            );
        }
        suites.push(suite);
    }
    let keys = Keys::generate(Some(command.asn), &suites, command.parts)?;
    keys.save("attest", &command.file)?;
    show("attest", &command.file, &keys, command.json);
    Ok(())
}

/// The suites of the keys that sign objects.
fn object_suites(classical: bool) -> &'static [SuiteId] {
    if classical { &[SuiteId::KcEd25519] } else { &[SuiteId::KcEd25519, SuiteId::SlhDsa128s] }
}

/// Creates an AS's identity keys.
pub fn identity(file: &Path, asn: Asn, classical: bool, json: bool) -> Outcome {
    let keys = Keys::generate(Some(asn), object_suites(classical), 1)?;
    keys.save("identity", file)?;
    show("identity", file, &keys, json);
    Ok(())
}

/// Prints the public parts of an AS's keys for `role`.
pub fn show(role: &str, file: &Path, keys: &Keys, json: bool) {
    let pairs = keys.pairs();
    if json {
        // Their role is the name of the list.
        let public: Vec<String> = pairs.iter().map(|(suite, key)| spell(*suite, key.as_ref())).collect();
        print_json(json!({ "file": file, "asn": keys.asn, role: public }));
    } else {
        let asn = keys.asn.map_or(String::new(), |asn| format!("asn     {asn}\n"));
        let public = pairs.iter().map(|(suite, key)| spell_as(role, *suite, key.as_ref()));
        let lines: String = public.map(|key| format!("{role}  {key}\n")).collect();
        print(&format!("file    {}\n{asn}{lines}", file.display()));
    }
}

fn spell(suite: SuiteId, key: &dyn SuiteKey) -> String {
    format!("{}:{}", suite.name(), to_hex(key.public()))
}

/// A key with its role, as `--key` takes it.
fn spell_as(role: &str, suite: SuiteId, key: &dyn SuiteKey) -> String {
    format!("{role}:{}", spell(suite, key))
}

/// Creates a trust anchor: a private and a public file.
pub fn anchor(command: &AnchorKeys) -> Outcome {
    let public_file = command.file.with_extension("pub");
    if public_file.exists() {
        return Err(Failure::new(format!("{} exists; an anchor is never overwritten", public_file.display())).into());
    }
    let keys = Keys::generate(None, object_suites(command.classical), 1)?;
    keys.save("anchor", &command.file)?;
    let signer = Signer::of(&keys, &command.file)?;
    let now = unix_now().secs();
    let octets = |key: &dyn SuiteKey| -> Result<[u8; 32], Failure> {
        key.public().try_into().map_err(|_| Failure::new("an anchor's key has 32 octets"))
    };
    let anchor = Anchor {
        name: command.name.clone(),
        public: octets(signer.classical.as_ref())?,
        post_quantum: signer.post_quantum.as_ref().map(|key| octets(key.as_ref())).transpose()?,
        not_before: now.saturating_sub(MARGIN),
        not_after: now + u64::from(command.days) * DAY,
    };
    save_anchor(&anchor, &public_file)?;
    let key_text = format!("anchor:ed25519:{}", to_hex(&anchor.public));
    let post_quantum = anchor.post_quantum.map(|public| format!("anchor:{}:{}", SuiteId::SlhDsa128s, to_hex(&public)));
    if command.json {
        print_json(json!({
            "file": command.file, "public": public_file, "key": key_text, "post_quantum_key": post_quantum,
            "not_after": anchor.not_after,
        }));
    } else {
        let second = post_quantum.map_or(String::new(), |key| format!("key     {key}\n"));
        let (file, public_file) = (command.file.display(), public_file.display());
        print(&format!("file    {file}\npublic  {public_file}\nkey     {key_text}\n{second}"));
    }
    Ok(())
}

/// The keys of a publisher of objects.
struct Signer {
    classical: Box<dyn SuiteKey>,
    post_quantum: Option<Box<dyn SuiteKey>>,
}

impl Signer {
    fn of(keys: &Keys, file: &Path) -> Result<Self, Failure> {
        let mut pairs = keys.pairs();
        let mut take = |wanted| {
            let place = pairs.iter().position(|(suite, _)| *suite == wanted)?;
            Some(pairs.swap_remove(place).1)
        };
        let missing = || Failure::new(format!("{} has no Ed25519 key to sign objects with", file.display()));
        let classical = take(SuiteId::KcEd25519).ok_or_else(missing)?;
        Ok(Self { classical, post_quantum: take(SuiteId::SlhDsa128s) })
    }

    fn sign(&mut self, object: &Object) -> Result<Vec<u8>, Failure> {
        let object = object.clone();
        let signed = match &mut self.post_quantum {
            Some(post_quantum) => object.sign_hybrid(self.classical.as_mut(), post_quantum.as_mut()),
            None => object.sign(self.classical.as_mut()),
        };
        signed.map_err(|error| Failure::new(format!("cannot sign: {error}")))
    }

    /// Whether these keys signed it.
    fn has_signed(&self, signed: &Signed<'_>) -> bool {
        match &self.post_quantum {
            Some(post_quantum) => signed.verify_hybrid(self.classical.public(), post_quantum.public()),
            None => signed.verify(self.classical.public()),
        }
    }
}

/// What a manifest lists, by the kind of object and the AS.
type Entries = BTreeMap<(u8, Asn), ManifestEntry>;

/// Who publishes objects, and where.
struct Publisher<'p> {
    signer: Signer,
    /// [`TRUST_ANCHOR`], or the AS.
    asn: Asn,
    key_file: &'p Path,
    folder: &'p Path,
    manifest_days: u32,
    json: bool,
}

impl Publisher<'_> {
    /// The objects of this publisher in its folder, with those of its last manifest, whether the folder has them or not: what was
    /// published stays listed until it expires or a later one takes its place.
    fn published(&self) -> Result<(Entries, u64), Failure> {
        let (mut entries, mut number) = (Entries::new(), 0);
        let now = unix_now().secs();
        let mut add = |entry: ManifestEntry| {
            let known = entries.entry((entry.kind, entry.asn)).or_insert(entry);
            if entry.sequence > known.sequence {
                *known = entry;
            }
        };
        for octets in folder_octets(self.folder)?.iter().chain(&kept_manifest(self.key_file)?) {
            let Some(signed) = Signed::decode(octets).ok().filter(|signed| self.signer.has_signed(signed)) else {
                continue;
            };
            match &signed.object {
                Object::Manifest(manifest) if manifest.publisher == self.asn => {
                    number = number.max(manifest.span.sequence);
                    manifest.entries.iter().copied().filter(|entry| entry.not_after >= now).for_each(&mut add);
                }
                Object::Manifest(_) => {}
                object if object.span().not_after >= now => {
                    ManifestEntry::of(object, octets).into_iter().for_each(&mut add)
                }
                _ => {}
            }
        }
        Ok((entries, number))
    }

    /// The other ASes in whose profile one of these keys is, too.
    fn others_with(&self, keys: &[ProfileKey], asn: Asn) -> Result<BTreeSet<Asn>, Failure> {
        let now = unix_now().secs();
        let mut others = BTreeSet::new();
        for octets in folder_octets(self.folder)? {
            let signed = Signed::decode(&octets).ok().filter(|signed| self.signer.has_signed(signed));
            let Some(Object::Profile(profile)) = signed.map(|signed| signed.object) else { continue };
            let is_same = |key: &ProfileKey| keys.iter().any(|new| new.suite == key.suite && new.public == key.public);
            if profile.asn != asn && profile.span.not_after >= now && profile.keys.iter().any(is_same) {
                others.insert(profile.asn);
            }
        }
        Ok(others)
    }

    /// The object of this kind and AS that is in force, as the folder has it.
    fn present(&self, kind: u8, asn: Asn) -> Result<Option<Object>, Failure> {
        let now = unix_now().secs();
        let mut latest: Option<Object> = None;
        for octets in folder_octets(self.folder)? {
            let Ok(signed) = Signed::decode(&octets) else { continue };
            if !self.signer.has_signed(&signed) {
                continue;
            }
            let object = signed.object;
            let is_one = object.kind() == kind && object.asn() == asn && object.span().not_after >= now;
            if is_one && latest.as_ref().is_none_or(|latest| latest.span().sequence < object.span().sequence) {
                latest = Some(object);
            }
        }
        Ok(latest)
    }

    /// Signs the object that `make` makes with this span and from the one in force, and the manifest that lists it, and writes
    /// both into the folder. Nothing that is in force is dropped unless that is wanted.
    fn publish(
        mut self,
        (kind, asn): (u8, Asn),
        days: u32,
        how: Earlier,
        make: impl FnOnce(Span, Option<&Object>) -> Object,
    ) -> Outcome {
        let (mut entries, number) = self.published()?;
        let now = unix_now();
        // Later than what was published, also where the clock has gone back.
        let listed = entries.get(&(kind, asn)).copied();
        let last = listed.map_or(0, |entry| entry.sequence);
        let (not_before, not_after) = (now.secs().saturating_sub(MARGIN), now.secs() + u64::from(days) * DAY);
        let present = self.present(kind, asn)?;
        let span = Span { sequence: now.0.max(last.saturating_add(1)), not_before, not_after };
        let mut object = make(span, present.as_ref());
        let shown = present.as_ref().map_or(0, |present| present.span().sequence);
        if !how.replace && shown < last {
            let why = format!("the last manifest lists it, and {} does not have it", self.folder.display());
            return Err(unseen(object.kind_name(), asn, &why).into());
        }
        let file = object_file(self.folder, &object);
        if !how.replace && present.is_none() && file.exists() && !self.has_expired(&file, now.secs()) {
            let why = format!("{} is not signed by this publisher", file.display());
            return Err(unseen(object.kind_name(), asn, &why).into());
        }
        let mut dropped = Vec::new();
        if let Some(present) = &present {
            (object, dropped) = follow(how, present, object)?;
        }
        let octets = self.signer.sign(&object)?;
        let file = save_object(self.folder, &object, &octets)?;
        entries.extend(ManifestEntry::of(&object, &octets).map(|entry| ((kind, asn), entry)));
        let manifest = self.list(entries.into_values().collect(), number)?;
        if self.json {
            print_json(json!({
                "file": file, "object": describe(&object), "manifest": manifest, "dropped": dropped,
            }));
        } else {
            let lines: String = dropped.iter().map(|what| format!("dropped {what}\n")).collect();
            print(&format!("{lines}wrote {}\nwrote {}\n", file.display(), manifest.display()));
        }
        Ok(())
    }

    /// Whether a file has an object of this publisher that holds no more.
    fn has_expired(&self, file: &Path, now: u64) -> bool {
        let octets = std::fs::read(file).unwrap_or_default();
        let signed = Signed::decode(&octets).ok().filter(|signed| self.signer.has_signed(signed));
        signed.is_some_and(|signed| signed.object.span().not_after < now)
    }

    /// Signs the list of these objects, which follows manifest `last`, and writes it.
    fn list(&mut self, entries: Vec<ManifestEntry>, last: u64) -> Outcome<PathBuf> {
        let now = unix_now();
        let listed = entries.iter().map(|entry| entry.sequence).max().unwrap_or(0);
        let span = Span {
            sequence: now.0.max(last.max(listed).saturating_add(1)),
            not_before: now.secs().saturating_sub(MARGIN),
            not_after: now.secs() + u64::from(self.manifest_days) * DAY,
        };
        let folder: HashSet<[u8; 32]> = folder_octets(self.folder)?.iter().map(|octets| object_hash(octets)).collect();
        for entry in entries.iter().filter(|entry| !folder.contains(&entry.hash)) {
            let (kind, asn, sequence) = (entry.kind_name(), entry.asn, entry.sequence);
            warn(&format!(
                "the last manifest lists the {kind} of {asn} with sequence {sequence}, and {} does not have it; it stays listed, and \
                 readers will miss it: put the file back, or sign a new one",
                self.folder.display()
            ));
        }
        let manifest = Object::Manifest(Manifest { publisher: self.asn, span, entries });
        let octets = self.signer.sign(&manifest)?;
        let file = save_object(self.folder, &manifest, &octets)?;
        keep_manifest(self.key_file, &octets)?;
        Ok(file)
    }
}

/// The trust anchor as a publisher.
fn anchor_publisher<'p>(
    key_file: &'p Path,
    folder: &'p Path,
    manifest_days: u32,
    json: bool,
) -> Result<Publisher<'p>, Failure> {
    let keys = Keys::load("anchor", key_file)?;
    let signer = Signer::of(&keys, key_file)?;
    let public_file = key_file.with_extension("pub");
    let public = load_anchor(&public_file)?;
    if unix_now().secs() > public.not_after {
        return Err(Failure::new("the trust anchor has expired").help("`wayleave keys anchor` creates a new one"));
    }
    let second = signer.post_quantum.as_ref().map(|key| key.public());
    if public.public != signer.classical.public() || public.post_quantum.as_ref().map(|key| &key[..]) != second {
        return Err(Failure::new(format!(
            "{} and {} do not belong together",
            key_file.display(),
            public_file.display()
        ))
        .help("readers would refuse what is signed; put the anchor's own public file beside its private one"));
    }
    Ok(Publisher { signer, asn: TRUST_ANCHOR, key_file, folder, manifest_days, json })
}

/// An AS with its identity keys as a publisher.
fn identity_publisher<'p>(
    key_file: &'p Path,
    folder: &'p Path,
    manifest_days: u32,
    json: bool,
) -> Result<Publisher<'p>, Failure> {
    let keys = Keys::load("identity", key_file)?;
    let Some(asn) = keys.asn else {
        return Err(Failure::new(format!("{} does not name its AS", key_file.display())));
    };
    Ok(Publisher { signer: Signer::of(&keys, key_file)?, asn, key_file, folder, manifest_days, json })
}

/// Signs a publisher's manifest again.
pub fn manifest(command: &ManifestKeys) -> Outcome {
    let ManifestKeys { anchor, identity, objects, manifest_days, json } = command;
    let mut publisher = match (anchor, identity) {
        (Some(file), _) => anchor_publisher(file, objects, *manifest_days, *json)?,
        (None, Some(file)) => identity_publisher(file, objects, *manifest_days, *json)?,
        (None, None) => {
            return Err(Failure::usage("no publisher given").help("add --anchor FILE or --identity FILE").into());
        }
    };
    let (entries, number) = publisher.published()?;
    let count = entries.len();
    let file = publisher.list(entries.into_values().collect(), number)?;
    if *json {
        print_json(json!({ "manifest": file, "objects": count }));
    } else {
        print(&format!("wrote {} with {count} objects\n", file.display()));
    }
    Ok(())
}

/// Signs an AS's profile.
pub fn profile(command: &ProfileKeys) -> Outcome {
    let mut keys = Vec::new();
    for text in &command.key {
        keys.push(profile_key(text)?);
    }
    let mut asn = command.asn;
    if let Some(file) = &command.attest {
        let (whose, public) = attest_keys(file, asn)?;
        asn = whose;
        keys.extend(public);
    }
    let Some(asn) = asn else {
        return Err(Failure::usage("no AS given: `--key` does not name one")
            .help("add --asn NUMBER; or --attest FILE, a file of the AS's private keys, in place of --key")
            .into());
    };
    keys.sort();
    let ObjectKeys { anchor, objects, days, manifest_days, json } = &command.objects;
    let publisher = anchor_publisher(anchor, objects, *manifest_days, *json)?;
    for other in publisher.others_with(&keys, asn)? {
        warn(&format!(
            "the profile of {other} lists a key of this one, too: a key that two ASes list counts for neither; ask both operators for their \
             own keys"
        ));
    }
    publisher.publish((1, asn), *days, command.earlier, |span, _| Object::Profile(Profile { asn, span, keys }))
}

/// Signs an AS's addition to its own profile.
pub fn addition(command: &AdditionKeys) -> Outcome {
    let AdditionKeys { identity, objects, days, manifest_days, json, .. } = command;
    let publisher = identity_publisher(identity, objects, *manifest_days, *json)?;
    let asn = publisher.asn;
    let mut keys = Vec::new();
    for text in &command.key {
        let key = profile_key(text)?;
        if key.role != Role::Attest {
            return Err(Failure::usage("an addition can have attestation keys only")
                .help("other roles' keys go into the profile, which the anchor signs")
                .into());
        }
        keys.push(key);
    }
    if let Some(file) = &command.attest {
        keys.extend(attest_keys(file, Some(asn))?.1);
    }
    if keys.is_empty() {
        return Err(Failure::usage("no keys given").help("add --attest FILE, or --key attest:SUITE:HEX").into());
    }
    keys.sort();
    publisher.publish((3, asn), *days, command.earlier, |span, _| Object::Addition(Addition { asn, span, keys }))
}

/// The public keys of a file of attestation keys, which must be of `asn` if one is given.
fn attest_keys(file: &Path, asn: Option<Asn>) -> Outcome<(Option<Asn>, Vec<ProfileKey>)> {
    let attest = Keys::load("attest", file)?;
    if asn.is_some() && attest.asn != asn {
        return Err(Failure::usage(format!("{} has keys of another AS", file.display())).into());
    }
    let public = |(suite, key): (SuiteId, Box<dyn SuiteKey>)| ProfileKey {
        role: Role::Attest,
        suite,
        public: key.public().to_vec(),
    };
    Ok((attest.asn, attest.pairs().into_iter().map(public).collect()))
}

/// An attestation key as `attest:SUITE:HEX`, or without its role.
pub fn attest_key(text: &str) -> Result<LeafKey, Failure> {
    let expected = "an attestation key: attest:SUITE:HEX, the line `attest` of `wayleave keys show`";
    let key = match TextKind::of(text) {
        Some(TextKind::Attestation) => profile_key(text).ok(),
        Some(TextKind::Suite) | None => profile_key(&format!("attest:{text}")).ok(),
        _ => None,
    };
    let key = key.ok_or_else(|| Failure::usage(refusal(text, expected)))?;
    Ok(LeafKey::of(key.suite, &key.public))
}

/// `ROLE:SUITE:HEX`.
fn profile_key(text: &str) -> Result<ProfileKey, Failure> {
    let wrong = || {
        Failure::usage(format!("`{text}` is not a key"))
            .help("a key is ROLE:SUITE:HEX, such as attest:kc-ed25519:3b6a...; roles are attest, identity, exchange-member, scion, icing, platypus")
    };
    let mut parts = text.splitn(3, ':');
    let (Some(role), Some(suite), Some(hex)) = (parts.next(), parts.next(), parts.next()) else { return Err(wrong()) };
    let role = Role::ALL.into_iter().find(|known| serde_json::to_value(known).is_ok_and(|name| name == role));
    let public = octets(hex);
    match (role, SuiteId::from_name(suite), public) {
        (Some(role), Some(suite), Some(public)) => Ok(ProfileKey { role, suite, public }),
        _ => Err(wrong()),
    }
}

fn octets(hex: &str) -> Option<Vec<u8>> {
    if !hex.len().is_multiple_of(2) || !hex.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).ok()).collect()
}

/// Signs an AS's record.
pub fn record(command: &RecordKeys) -> Outcome {
    let now = unix_now().secs();
    let attested_since = command.attested.map(|strictness| {
        let strictness = match strictness {
            StrictnessName::Strict => Strictness::Strict,
            StrictnessName::Prefer => Strictness::Prefer,
            StrictnessName::PostQuantum => Strictness::PostQuantum,
        };
        (command.since, strictness)
    });
    let mut prefixes: Vec<_> = command.prefix.iter().map(|owned| (owned.prefix, owned.max_length)).collect();
    prefixes.sort();
    let asn = command.asn;
    let ObjectKeys { anchor, objects, days, manifest_days, json } = &command.objects;
    let publisher = anchor_publisher(anchor, objects, *manifest_days, *json)?;
    publisher.publish((2, asn), *days, command.earlier, |span, present| {
        // Who signs the same again does not begin anew.
        let before = match present {
            Some(Object::Record(record)) => record.attested_since,
            _ => None,
        };
        let since = |(since, strictness): (Option<u64>, Strictness)| {
            (since.or(before.map(|(since, _)| since)).unwrap_or(now), strictness)
        };
        Object::Record(Record { asn, span, attested_since: attested_since.map(since), prefixes })
    })
}

/// Lists the objects of a folder that an anchor has signed.
pub fn list(anchor: &Path, folder: &Path, json: bool) -> Outcome {
    let now = unix_now().secs();
    let read = set(anchor, folder, now)?;
    let other_anchor = read.other_anchor(anchor).map(|(what, cure)| format!("{what}; none of them counts; {cure}"));
    let Objects { refused, set, alarms, .. } = read;
    let (_, omitted) = set.view(0, now);
    let omitted = omitted.iter().map(ToString::to_string);
    let alarms = other_anchor.into_iter().chain(alarms.iter().map(ToString::to_string)).chain(omitted);
    let alarms: Vec<String> = alarms.collect();
    let rows: Vec<Value> = set.objects().map(|(object, _)| describe(object)).collect();
    if json {
        print_json(json!({ "anchor": set.anchor().name, "objects": rows, "refused": refused, "alarms": alarms }));
        return Ok(());
    }
    print(&objects(&rows, &["kind", "asn", "not_after", "attested", "prefixes", "keys"]));
    refused.iter().for_each(|refused| print(&format!("refused: {refused}\n")));
    alarms.iter().for_each(|alarm| print(&format!("alarm: {alarm}\n")));
    Ok(())
}

/// Lists the router keys of a folder of certificates.
pub fn routers(anchors: &[PathBuf], folder: &Path, json: bool) -> Outcome {
    let router_keys::Imported { keys, mut refused, .. } = router_keys::read(anchors, folder, unix_now())?;
    let mut rows = Vec::new();
    for found in keys {
        match router_keys::registered(&found.key, found.not_before, found.not_after) {
            Ok((asn, key)) => rows.push(json!({
                "asn": asn, "suite": key.suite.name(), "ski": to_hex(&found.key.ski), "key": to_hex(&key.public),
                "not_after": key.not_after,
            })),
            Err(why) => refused.push(why),
        }
    }
    if json {
        print_json(json!({ "keys": rows, "refused": refused }));
        return Ok(());
    }
    print(&objects(&rows, &["asn", "suite", "ski", "not_after"]));
    refused.iter().for_each(|refused| print(&format!("refused: {refused}\n")));
    Ok(())
}

/// An object as JSON.
pub fn describe(object: &Object) -> Value {
    let keys = |keys: &[ProfileKey]| -> Vec<String> {
        keys.iter()
            .map(|key| {
                let role = serde_json::to_value(key.role).unwrap_or_default();
                let hex = to_hex(&key.public);
                let short = if from_hex(&hex).is_some() { hex } else { format!("{}...", &hex[..hex.len().min(32)]) };
                format!("{}:{}:{short}", role.as_str().unwrap_or_default(), key.suite.name())
            })
            .collect()
    };
    // The trust anchor is no AS.
    let asn = Some(object.asn()).filter(|asn| *asn != TRUST_ANCHOR);
    let mut row = json!({ "asn": asn, "not_after": object.span().not_after });
    match object {
        Object::Profile(profile) => {
            row["kind"] = json!("profile");
            row["keys"] = json!(keys(&profile.keys));
        }
        Object::Manifest(manifest) => {
            row["kind"] = json!("manifest");
            row["number"] = json!(manifest.span.sequence);
            row["objects"] = json!(manifest.entries.len());
        }
        Object::Addition(addition) => {
            row["kind"] = json!("addition");
            row["keys"] = json!(keys(&addition.keys));
        }
        Object::Record(record) => {
            let prefix = |(prefix, most): &(wayleave_core::Prefix, u8)| match *most == prefix.len() {
                true => prefix.to_string(),
                false => format!("{prefix}-{most}"),
            };
            row["kind"] = json!("record");
            row["prefixes"] = json!(record.prefixes.iter().map(prefix).collect::<Vec<_>>());
            row["attested"] = match record.attested_since {
                Some((since, strictness)) => {
                    let strictness = serde_json::to_value(strictness).unwrap_or_default();
                    json!(format!("{} since {}", strictness.as_str().unwrap_or_default(), utc(since)))
                }
                None => Value::Null,
            };
        }
    }
    row
}
