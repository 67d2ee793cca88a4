//! Key files of realms and their nodes. Each file has keys of one kind, for one use.

use std::path::Path;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use wayleave_core::IdentityKey;
use wayleave_crypto::dh::{DhPublic, DhSecret};
use wayleave_crypto::secret::{Key128, Seed};
use wayleave_crypto::sign::SigningKey;
use wayleave_packet::icing::header::Tag;
use wayleave_packet::icing::mint::{TAG_EPOCH, TagBranch, TagMaster};
use wayleave_runtime::identity::{from_hex, to_hex};
use zeroize::Zeroizing;

use super::forwarding::{ForwardingKeys, icing_master, read_secret};
use super::private;
use crate::failure::{Failure, Outcome};

/// Tag keys of a file: the previous, the current and the next one.
const MAX_TAG_KEYS: usize = 3;

/// What a key is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum KeyKind {
    /// A realm's key (Ed25519), which signs memberships. The realm's operator has it, and no server.
    Realm,
    /// A node's identity (Ed25519): it signs what the node publishes, and proves the node in TLS.
    Identity,
    /// A gateway's static key (X25519, Noise).
    Noise,
    /// The seed of a node's IDs (X25519), one for each epoch.
    Ids,
    /// The keys of a node's tags, from which proofs of consent are made.
    Tags,
    /// What a provider's key servers derive all accounts from.
    Accounts,
    /// The key (Ed25519) that signs a provider's accounts, revocations and lists. Every key server of their database has it.
    Writer,
    /// The key (Ed25519) of whoever accepted an invitation: with it the acceptance can be repeated.
    Holder,
}

impl KeyKind {
    /// As in the file's first line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Realm => "realm",
            Self::Identity => "identity",
            Self::Noise => "noise",
            Self::Ids => "ids",
            Self::Tags => "tags",
            Self::Accounts => "accounts",
            Self::Writer => "writer",
            Self::Holder => "holder",
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SeedFile {
    kind: String,
    secret: Zeroizing<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TagFile {
    kind: String,
    key: Vec<TagLine>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TagLine {
    /// The Unix second from which it counts.
    from: u64,
    secret: Zeroizing<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct BranchFile {
    kind: String,
    epoch: u32,
    /// The first bits of the tags.
    prefix: String,
    secret: Zeroizing<String>,
}

/// The kind of a file of secrets that somebody delegated.
const BRANCH: &str = "tag-branch";

fn refused(path: &Path, what: &str, kind: &str) -> Failure {
    Failure::new(format!("{} {what}", path.display())).help(format!(
        "`wayleave keys node FILE --kind {kind}` creates one; `wayleave join` creates all that a node needs"
    ))
}

/// The text of a file of this kind.
fn read(kind: &str, path: &Path) -> Result<Zeroizing<String>, Failure> {
    let text = private::read(path)?;
    // The parser's message would quote the line, which is secret.
    let table: toml::Table = toml::from_str(&text).unwrap_or_default();
    match table.get("kind").and_then(toml::Value::as_str) {
        Some(found) if found == kind => Ok(text),
        Some(found) => Err(refused(path, &format!("has a key of the kind `{found}`, not `{kind}`"), kind)),
        None => Err(refused(path, "is not a key file of a node", kind)),
    }
}

/// The kind of a key file of this module, if it is one.
pub fn kind_of(path: &Path) -> Option<KeyKind> {
    let text = private::read(path).ok()?;
    let table: toml::Table = toml::from_str(&text).ok()?;
    KeyKind::from_str(table.get("kind")?.as_str()?, false).ok()
}

fn to_text(path: &Path, file: &impl Serialize) -> Outcome<Zeroizing<String>> {
    let text = toml::to_string(file).map(Zeroizing::new);
    Ok(text.map_err(|error| Failure::new(format!("{}: {error}", path.display())))?)
}

/// A new random secret.
pub fn fresh<const N: usize>() -> Result<Zeroizing<[u8; N]>, Failure> {
    let mut octets = Zeroizing::new([0; N]);
    getrandom::fill(octets.as_mut())
        .map_err(|error| Failure::new(format!("the system gave no randomness: {error}")))?;
    Ok(octets)
}

/// Makes a new key file of one secret. Refuses to overwrite.
pub fn create(kind: KeyKind, path: &Path) -> Outcome<Seed> {
    let secret = fresh::<32>()?;
    let file = SeedFile { kind: kind.name().to_owned(), secret: Zeroizing::new(to_hex(secret.as_ref())) };
    private::create(path, &to_text(path, &file)?)?;
    Ok(Seed::new(*secret))
}

/// Reads a key file of one secret, which only its owner may be able to read.
pub fn load(kind: KeyKind, path: &Path) -> Result<Seed, Failure> {
    let text = read(kind.name(), path)?;
    let damaged = || refused(path, "is a damaged key file", kind.name());
    let file: SeedFile = toml::from_str(&text).map_err(|_| damaged())?;
    from_hex(&file.secret).map(Seed::new).ok_or_else(damaged)
}

/// The public half of an identity or a realm.
pub fn identity_of(seed: &Seed) -> IdentityKey {
    IdentityKey(SigningKey::from_seed(seed).verifying_key().to_bytes())
}

/// A node's identity as text that says what it is.
pub fn node_text(identity: &IdentityKey) -> String {
    format!("node:{identity}")
}

/// The public half of a Noise key.
pub fn noise_of(seed: &Seed) -> DhPublic {
    DhSecret::from_seed(seed).public()
}

/// The keys of a node's tags, each with the Unix second from which it counts.
pub struct TagKeyFile(Vec<(u64, Key128)>);

impl TagKeyFile {
    /// One new key, valid from second 0.
    pub fn generate() -> Outcome<Self> {
        Ok(Self(vec![(0, Key128::new(*fresh()?))]))
    }

    /// The tag keys of a router's forwarding keys; nothing else follows from them.
    pub fn of_forwarding(keys: &ForwardingKeys) -> Self {
        Self(keys.all().map(|(from, key)| (from, icing_master(key).key().clone())).collect())
    }

    pub fn load(path: &Path) -> Result<Self, Failure> {
        let kind = KeyKind::Tags.name();
        let text = read(kind, path)?;
        let damaged = || refused(path, "is a damaged key file", kind);
        let file: TagFile = toml::from_str(&text).map_err(|_| damaged())?;
        let line = |line: &TagLine| Some((line.from, Key128::new(read_secret(&line.secret)?)));
        let keys: Option<Vec<_>> = file.key.iter().map(line).collect();
        let keys = keys.filter(|keys| !keys.is_empty() && keys.len() <= MAX_TAG_KEYS);
        Ok(Self(keys.filter(|keys| keys.is_sorted_by(|a, b| a.0 < b.0)).ok_or_else(damaged)?))
    }

    pub fn save(&self, path: &Path) -> Outcome {
        let line = |(from, key): &(u64, Key128)| TagLine { from: *from, secret: Zeroizing::new(to_hex(key.expose())) };
        let file = TagFile { kind: KeyKind::Tags.name().to_owned(), key: self.0.iter().map(line).collect() };
        private::create(path, &to_text(path, &file)?)
    }

    /// The keys with the tag epochs from which they count.
    pub fn masters(&self) -> Vec<(u32, TagMaster)> {
        self.0.iter().map(|(from, key)| ((*from >> TAG_EPOCH) as u32, TagMaster::new(key.clone()))).collect()
    }

    /// The key that counts in a tag epoch.
    pub fn master(&self, epoch: u32) -> TagMaster {
        let all = self.masters();
        let known = all.iter().rfind(|(from, _)| *from <= epoch).or(all.first());
        known.map_or_else(|| TagMaster::new(Key128::new([0; 16])), |(_, master)| master.clone())
    }
}

/// Writes a delegated prefix of tags.
pub fn save_branch(branch: &TagBranch, path: &Path) -> Outcome {
    let (epoch, bits, depth) = branch.scope();
    let secret = Zeroizing::new(to_hex(branch.key().expose()));
    let file = BranchFile { kind: BRANCH.to_owned(), epoch, prefix: format!("{bits:08x}/{depth}"), secret };
    private::create(path, &to_text(path, &file)?)
}

/// Reads a delegated prefix of tags.
pub fn load_branch(path: &Path) -> Result<TagBranch, Failure> {
    let text = read(BRANCH, path)?;
    let damaged = || {
        Failure::new(format!("{} is a damaged file of delegated tags", path.display()))
            .help("`wayleave keys delegate-tags` writes one")
    };
    let file: BranchFile = toml::from_str(&text).map_err(|_| damaged())?;
    let (bits, depth) = file.prefix.split_once('/').ok_or_else(damaged)?;
    let bits = u32::from_str_radix(bits, 16).map_err(|_| damaged())?;
    let depth: u8 = depth.parse().map_err(|_| damaged())?;
    let key = Key128::new(read_secret(&file.secret).ok_or_else(damaged)?);
    TagBranch::from_parts(key, file.epoch, bits, depth).ok_or_else(damaged)
}

/// The branch of a node's tags with these first bits, for one epoch.
pub fn branch(keys: &TagKeyFile, epoch: u32, bits: u32, depth: u8) -> Option<TagBranch> {
    keys.master(epoch).root(epoch).descend(Tag(bits), depth)
}
