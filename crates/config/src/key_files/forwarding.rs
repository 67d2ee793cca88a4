//! Files of forwarding keys, each with the second from which it is valid; and a SCION AS's master key, from which one follows.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use wayleave_crypto::kdf;
use wayleave_crypto::secret::Seed;
use wayleave_packet::icing::mint::{NodeSecret, TagMaster};
use wayleave_runtime::clock::utc;
use zeroize::{Zeroize, Zeroizing};

use crate::failure::{Failure, Outcome};
use crate::key_files::private;

/// Largest number of keys in a file: the previous, the current and the next one.
const MOST: usize = 3;
/// The role in a file's header.
const ROLE: &str = "router";
/// How the processes of a SCION AS derive the forwarding key from their master key: PBKDF2-HMAC-SHA256 (scionproto/scion,
/// `router/control`, `DeriveHFMacKey`). Segments of its control service verify by no other.
const SCION_SALT: &[u8] = b"Derive OF Key";
const SCION_ROUNDS: u32 = 1_000;
/// Bounds of a master key's length, in octets. Others take any length; the manual asks for 16.
const SCION_MASTER: std::ops::RangeInclusive<usize> = 16..=1_024;

/// The packet format.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum FormatName {
    /// SCION.
    Scion,
    /// Platypus.
    Platypus,
    /// ICING.
    Icing,
}

impl FormatName {
    /// Its name in configurations and key files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Scion => "scion",
            Self::Platypus => "platypus",
            Self::Icing => "icing",
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyFile {
    role: String,
    format: String,
    key: Vec<KeyLine>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyLine {
    /// Unix seconds.
    from: u64,
    secret: Zeroizing<String>,
}

/// The previous, current and next key of one format.
pub struct ForwardingKeys {
    format: FormatName,
    /// In ascending order of time.
    keys: Vec<(u64, [u8; 16])>,
}

impl Drop for ForwardingKeys {
    fn drop(&mut self) {
        self.keys.iter_mut().for_each(|(_, key)| key.zeroize());
    }
}

impl ForwardingKeys {
    /// One new key, valid from second 0.
    pub fn generate(format: FormatName) -> Outcome<Self> {
        Ok(Self { format, keys: vec![(0, fresh()?)] })
    }

    /// The packet format of the keys.
    pub fn format(&self) -> FormatName {
        self.format
    }

    /// Adds a new key that is valid from `from`; the oldest of more than three is dropped.
    pub fn add(&mut self, from: u64) -> Outcome {
        self.push(from, fresh()?)
    }

    fn push(&mut self, from: u64, key: [u8; 16]) -> Outcome {
        if let Some((newest, _)) = self.keys.last().filter(|(newest, _)| *newest >= from) {
            let message = format!("the newest key is valid from {}, which is not before {}", utc(*newest), utc(from));
            return Err(Failure::usage(message).into());
        }
        self.keys.push((from, key));
        if self.keys.len() > MOST {
            self.keys.remove(0);
        }
        Ok(())
    }

    /// The keys in use at `now`, the older first, each with the second from which it is valid: the previous and the current
    /// one, or the current and the next one once the next is less than `ahead` seconds away.
    pub fn live(&self, now: u64, ahead: u64) -> &[(u64, [u8; 16])] {
        let known = self.keys.iter().take_while(|(from, _)| *from <= now.saturating_add(ahead)).count().max(1);
        &self.keys[known.saturating_sub(2)..known]
    }

    /// The key that is valid at `second`.
    pub fn at(&self, second: u64) -> &[u8; 16] {
        let known = self.keys.iter().take_while(|(from, _)| *from <= second).count().max(1);
        &self.keys[known - 1].1
    }

    /// Every key with the second from which it is valid, in ascending order.
    pub fn all(&self) -> impl Iterator<Item = (u64, &[u8; 16])> {
        self.keys.iter().map(|(from, key)| (*from, key))
    }

    /// The second from which each key is valid, in ascending order.
    pub fn times(&self) -> impl Iterator<Item = u64> {
        self.keys.iter().map(|(from, _)| *from)
    }

    /// The key that follows from the master key of a SCION AS (`keys/master0.key` of the open-source router and control service),
    /// valid from second 0. The file must be readable by its owner alone.
    ///
    /// # Errors
    /// If it cannot be read, or is no master key.
    pub fn import(path: &Path) -> Result<Self, Failure> {
        Self::of_master(&private::read(path)?, path).unwrap_or_else(|| {
            let what = format!("{} is not the master key of a SCION AS", path.display());
            Err(Failure::new(what)
                .help("expected the base64 of 16 random octets, as in keys/master0.key of its control service"))
        })
    }

    /// `None` if the text is not base64.
    fn of_master(text: &str, path: &Path) -> Option<Result<Self, Failure>> {
        let line: Zeroizing<String> = Zeroizing::new(text.split_ascii_whitespace().collect());
        let master = Zeroizing::new(STANDARD.decode(line.as_bytes()).ok().filter(|master| !master.is_empty())?);
        if !SCION_MASTER.contains(&master.len()) {
            let what = format!("{} has a master key of {} octets", path.display(), master.len());
            return Some(Err(
                Failure::new(what).help("expected 16 random octets in base64; all processes of the AS have the same")
            ));
        }
        let key = *kdf::pbkdf2::<16>(&master, SCION_SALT, SCION_ROUNDS).expose();
        Some(Ok(Self { format: FormatName::Scion, keys: vec![(0, key)] }))
    }

    /// Adds the key of a master key, valid from `from`.
    pub fn add_imported(&mut self, from: u64, imported: &Self) -> Outcome {
        self.push(from, *imported.at(u64::MAX))
    }

    /// Reads the keys of `format`; the file must be readable by its owner alone. For SCION a master key does as well.
    pub fn load(format: FormatName, path: &Path) -> Result<Self, Failure> {
        let text = private::read(path)?;
        let imported = if format == FormatName::Scion { Self::of_master(&text, path) } else { None };
        imported.unwrap_or_else(|| Self::of_file(&text, format, path))
    }

    /// The same of a file that `wayleave keys forwarding` made, and no master key: that one is not ours to write.
    pub fn load_own(format: FormatName, path: &Path) -> Result<Self, Failure> {
        Self::of_file(&private::read(path)?, format, path)
    }

    fn of_file(text: &str, format: FormatName, path: &Path) -> Result<Self, Failure> {
        // The parser's message would quote the line, which is secret.
        let table: toml::Table = toml::from_str(text).unwrap_or_default();
        let field = |name: &str| table.get(name).and_then(toml::Value::as_str).unwrap_or_default().to_owned();
        let refused = |what: String| {
            Failure::new(format!("{} {what}", path.display()))
                .help(format!("`wayleave keys forwarding FILE --format {}` creates one", format.name()))
        };
        match field("role") {
            role if role == ROLE => {}
            role if role.is_empty() => return Err(refused("is not a file of forwarding keys".to_owned())),
            role => return Err(refused(format!("has keys for `{role}`, not for `{ROLE}`"))),
        }
        if field("format") != format.name() {
            return Err(refused(format!("has keys for {} packets, not for {}", field("format"), format.name())));
        }
        let malformed = || refused("is a damaged file of forwarding keys".to_owned());
        let file: KeyFile = toml::from_str(text).map_err(|_| malformed())?;
        let mut keys = Vec::new();
        for line in &file.key {
            keys.push((line.from, read_secret(&line.secret).ok_or_else(malformed)?));
        }
        if keys.is_empty() || keys.len() > MOST || !keys.is_sorted_by(|a, b| a.0 < b.0) {
            return Err(malformed());
        }
        Ok(Self { format, keys })
    }

    /// Writes a new file that only its owner can read.
    pub fn save(&self, path: &Path) -> Outcome {
        private::create(path, &self.text(path)?)
    }

    /// Replaces the file in one step: a router that reads it meanwhile sees the old keys or the new ones.
    pub fn replace(&self, path: &Path) -> Outcome {
        private::replace(path, &self.text(path)?)
    }

    fn text(&self, path: &Path) -> Outcome<Zeroizing<String>> {
        let line = |(from, key): &(u64, [u8; 16])| KeyLine {
            from: *from,
            secret: Zeroizing::new(format!("{:032x}", u128::from_be_bytes(*key))),
        };
        let (role, format) = (ROLE.to_owned(), self.format.name().to_owned());
        let file = KeyFile { role, format, key: self.keys.iter().map(line).collect() };
        let text = toml::to_string(&file).map(Zeroizing::new);
        Ok(text.map_err(|error| Failure::new(format!("{}: {error}", path.display())))?)
    }
}

fn icing_seed(key: &[u8; 16]) -> Seed {
    kdf::derive("wayleave/icing/file/v1", key, b"")
}

/// The ICING node's secret of one key of a file.
pub fn icing_secret(key: &[u8; 16]) -> NodeSecret {
    NodeSecret::from_seed(&icing_seed(key))
}

/// The ICING tag master of one key of a file.
pub fn icing_master(key: &[u8; 16]) -> TagMaster {
    TagMaster::derive(&icing_seed(key), 0)
}

/// 32 hexadecimal digits.
pub fn read_secret(text: &str) -> Option<[u8; 16]> {
    let is_sound = text.len() == 32 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_sound.then(|| u128::from_str_radix(text, 16).ok()).flatten().map(u128::to_be_bytes)
}

fn fresh() -> Outcome<[u8; 16]> {
    let mut key = [0; 16];
    getrandom::fill(&mut key).map_err(|error| Failure::new(format!("the system gave no randomness: {error}")))?;
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected keys are those of Python's `hashlib.pbkdf2_hmac("sha256", master, b"Derive OF Key", 1000, 16)`.
    #[test]
    fn a_scion_master_key_makes_the_forwarding_key_of_its_as() {
        let of = |text: &str| ForwardingKeys::of_master(text, Path::new("master0.key"));
        let key = |text| u128::from_be_bytes(*of(text).expect("base64").expect("long enough").at(0));
        assert_eq!(key("AAECAwQFBgcICQoLDA0ODw==\n"), 0x014f838b9e1db547479909e7710bc7c8);
        assert_eq!(key("AQEBAQEBAQEB\r\nAQEBAQEBAQ=="), 0x829900cb2f28d60d5b386ef7c0a261d2);
        assert_eq!(key("AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="), 0xdab4aa11096064a10443da2554705e5c);
        for short in ["AAECAwQFBgcICQoLDA0O", "AA=="] {
            assert!(of(short).expect("base64").is_err(), "{short}");
        }
        for no_key in ["", "\n", "AAECAwQFBgcICQoLDA0ODw", "role = \"router\"\nformat = \"scion\"\n", "!"] {
            assert!(of(no_key).is_none(), "{no_key}");
        }
    }

    #[test]
    fn the_next_key_is_taken_ahead_and_the_previous_one_kept_until_then() {
        let keys =
            ForwardingKeys { format: FormatName::Scion, keys: vec![(10, [1; 16]), (1_000, [2; 16]), (2_000, [3; 16])] };
        let live = |now| keys.live(now, 400).iter().map(|(from, _)| *from).collect::<Vec<_>>();
        assert_eq!(live(0), [10]);
        assert_eq!(live(599), [10]);
        assert_eq!(live(600), [10, 1_000]);
        assert_eq!(live(1_599), [10, 1_000]);
        assert_eq!(live(1_600), [1_000, 2_000]);
        assert_eq!(live(u64::MAX), [1_000, 2_000]);
    }
}
