//! A local file of validated ROA payloads, as Routinator (`json`) and rpki-client (`-j`) write it, read again whenever it changes.
//!
//! What cannot be read as a whole changes nothing: what was read before stays in force.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Deserialize;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use tokio::sync::watch;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::sleep;
use wayleave_core::{Asn, Prefix};

use super::rtr::{CacheState, MAX_ITEMS, Snapshot};
use super::{RpkiData, Vrp};
use crate::clock::unix_now;

/// How often the file is looked at.
const CHECK: Duration = Duration::from_secs(2);
/// How long ROAs that have expired may still count: the file is not read more often for that.
const EXPIRY: u64 = 60;
/// Octets of the longest file: our own limit, some four times what Routinator writes for the whole world today.
pub const MAX_OCTETS: u64 = 256 << 20;

/// Why a file does not count.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("{0}")]
    Unreadable(#[from] io::Error),
    #[error("it has more than {} MiB", MAX_OCTETS >> 20)]
    TooLong,
    /// The place is in the text.
    #[error("it is no list of ROAs: {0}")]
    Malformed(#[from] serde_json::Error),
}

/// What a file says at one moment.
#[derive(Debug, Default)]
pub struct Roas {
    pub vrps: BTreeSet<Vrp>,
    /// When the first of them expires, in seconds since 1970.
    pub expires: Option<u64>,
}

/// Reads a file; what has expired at `now`, in seconds since 1970, is left out.
pub fn read(path: &Path, now: u64) -> Result<Roas, FileError> {
    let mut octets = Vec::new();
    File::open(path)?.take(MAX_OCTETS + 1).read_to_end(&mut octets)?;
    if octets.len() as u64 > MAX_OCTETS {
        return Err(FileError::TooLong);
    }
    let List { roas } = serde_json::from_slice(&octets)?;
    let mut read = Roas::default();
    for Roa { vrp, expires } in roas.0 {
        if expires.is_none_or(|expires| expires > now) {
            read.vrps.insert(vrp);
            read.expires = read.expires.into_iter().chain(expires).min();
        }
    }
    Ok(read)
}

/// The file: all else that it has is not used.
#[derive(Deserialize)]
struct List {
    roas: RoaList,
}

/// At most [`MAX_ITEMS`].
struct RoaList(Vec<Roa>);

#[derive(Deserialize)]
#[serde(try_from = "RoaFields")]
struct Roa {
    vrp: Vrp,
    expires: Option<u64>,
}

#[derive(Deserialize)]
struct RoaFields {
    asn: OriginAs,
    prefix: Prefix,
    #[serde(rename = "maxLength")]
    max_length: Option<u8>,
    /// Seconds since 1970, as rpki-client has it.
    expires: Option<u64>,
}

impl TryFrom<RoaFields> for Roa {
    type Error = String;

    fn try_from(fields: RoaFields) -> Result<Self, String> {
        let RoaFields { asn: OriginAs(asn), prefix, max_length, expires } = fields;
        let (least, most) = (prefix.len(), prefix.afi().bits());
        let max_length = max_length.unwrap_or(least);
        if !(least..=most).contains(&max_length) {
            return Err(format!("`maxLength` {max_length} of {prefix}, expected {least} to {most}"));
        }
        Ok(Self { vrp: Vrp { prefix, max_length, asn }, expires })
    }
}

impl<'de> Deserialize<'de> for RoaList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Roas;
        impl<'de> Visitor<'de> for Roas {
            type Value = RoaList;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of ROAs")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<RoaList, A::Error> {
                let mut roas = Vec::new();
                while let Some(roa) = list.next_element()? {
                    if roas.len() == MAX_ITEMS {
                        return Err(A::Error::custom(format!("more than {MAX_ITEMS} ROAs")));
                    }
                    roas.push(roa);
                }
                Ok(RoaList(roas))
            }
        }
        deserializer.deserialize_seq(Roas)
    }
}

/// `64500`, as rpki-client writes it, or `"AS64500"`, as Routinator does.
struct OriginAs(Asn);

impl<'de> Deserialize<'de> for OriginAs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Number;
        impl Visitor<'_> for Number {
            type Value = OriginAs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an AS number, such as 64500 or \"AS64500\"")
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<OriginAs, E> {
                let number = u32::try_from(number);
                number.map(|number| OriginAs(Asn(number))).map_err(|_| E::custom("an AS number has 32 bits"))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<OriginAs, E> {
                text.parse().map(OriginAs).map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Number)
    }
}

/// By which a change is noticed.
type Stamp = (SystemTime, u64);

/// Follows the file until the task is aborted; the receiver sees every change.
#[must_use]
pub fn follow(path: PathBuf) -> (watch::Receiver<Snapshot>, JoinHandle<()>) {
    let (changes, receiver) = watch::channel(Snapshot::default());
    (receiver, tokio::spawn(Following { path, changes, seen: None, expires: None }.run()))
}

struct Following {
    path: PathBuf,
    changes: watch::Sender<Snapshot>,
    /// The file when it was last read, or `None` while there is none.
    seen: Option<Stamp>,
    /// When the first of its ROAs expires.
    expires: Option<u64>,
}

impl Following {
    async fn run(mut self) {
        let mut last = 0;
        loop {
            let now = unix_now().secs();
            let stamp = stamp(&self.path);
            let is_over = self.expires.is_some_and(|expires| expires <= now) && last + EXPIRY <= now;
            match stamp {
                Ok(stamp) if self.seen == Some(stamp) && !is_over => {}
                Ok(stamp) => {
                    self.seen = Some(stamp);
                    last = now;
                    let path = self.path.clone();
                    match spawn_blocking(move || read(&path, now)).await {
                        Ok(Ok(roas)) => self.publish(roas, stamp),
                        Ok(Err(error)) => self.failed(&error),
                        Err(_) => return, // the process ends
                    }
                }
                Err(error) => {
                    self.seen = None;
                    self.failed(&error.into());
                }
            }
            sleep(CHECK).await;
        }
    }

    fn publish(&mut self, roas: Roas, (modified, _): Stamp) {
        self.expires = roas.expires;
        let validated = RpkiData { vrps: roas.vrps, ..RpkiData::default() };
        self.changes.send_modify(|snapshot| {
            if *snapshot.validated != validated {
                snapshot.validated = Arc::new(validated);
                snapshot.generation += 1;
            }
            snapshot.state = CacheState::Current;
            snapshot.problem = None;
            snapshot.updated = modified.duration_since(UNIX_EPOCH).ok().map(|since| since.as_secs());
        });
    }

    /// What was read before stays.
    fn failed(&mut self, error: &FileError) {
        self.expires = None;
        let problem: Arc<str> = error.to_string().into();
        self.changes.send_if_modified(|snapshot| {
            if snapshot.state == CacheState::Current {
                snapshot.state = CacheState::Stale;
            }
            snapshot.problem.replace(Arc::clone(&problem)) != Some(problem)
        });
    }
}

fn stamp(path: &Path) -> io::Result<Stamp> {
    let about = fs::metadata(path)?;
    Ok((about.modified()?, about.len()))
}

#[cfg(test)]
mod tests {
    //! OPS, origins: a file of ROAs that is malformed: refused as a whole, with the place.

    use super::*;

    /// A file of a name of its own, which is removed at the end.
    struct Written(PathBuf);

    impl Written {
        fn new(name: &str) -> Self {
            Self(std::env::temp_dir().join(format!("wayleave-roas-{name}-{}", std::process::id())))
        }

        fn read(&self, text: &str, now: u64) -> Result<Roas, String> {
            fs::write(&self.0, text).expect("written");
            read(&self.0, now).map_err(|error| error.to_string())
        }
    }

    impl Drop for Written {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.0);
        }
    }

    fn vrp(prefix: &str, max_length: u8, asn: u32) -> Vrp {
        Vrp { prefix: prefix.parse().expect("a prefix"), max_length, asn: Asn(asn) }
    }

    #[test]
    fn files_of_both_validators_are_read_and_what_has_expired_is_not() {
        let file = Written::new("both");
        // Routinator.
        let text = r#"{ "metadata": { "generated": 1700000000, "generatedTime": "2023-11-14T22:13:20Z" },
            "roas": [ { "asn": "AS64496", "prefix": "192.0.2.0/24", "maxLength": 24, "ta": "arin" },
                      { "asn": "AS0", "prefix": "2001:db8::/32", "maxLength": 128, "ta": "ripe" } ],
            "routerKeys": [], "aspas": [ { "customer": "AS1", "providers": ["AS2"] } ] }"#;
        let expected = BTreeSet::from([vrp("192.0.2.0/24", 24, 64496), vrp("2001:db8::/32", 128, 0)]);
        let read = file.read(text, 0).expect("a list");
        assert_eq!((read.vrps, read.expires), (expected, None));
        // rpki-client.
        let text = r#"{ "metadata": { "roas": 2 }, "roas": [
            { "asn": 64496, "prefix": "192.0.2.0/24", "maxLength": 25, "ta": "arin", "expires": 2000 },
            { "asn": 64497, "prefix": "192.0.2.0/24", "ta": "arin", "expires": 1000 } ] }"#;
        let read = file.read(text, 999).expect("a list");
        assert_eq!((read.vrps.len(), read.expires), (2, Some(1000)));
        assert!(read.vrps.contains(&vrp("192.0.2.0/24", 24, 64497)), "without `maxLength` it is the prefix's own");
        let read = file.read(text, 1000).expect("a list");
        assert_eq!((read.vrps, read.expires), (BTreeSet::from([vrp("192.0.2.0/24", 25, 64496)]), Some(2000)));
    }

    #[test]
    fn a_malformed_file_is_refused_with_the_place() {
        let file = Written::new("malformed");
        let roa = |fields: &str| format!("{{ \"roas\": [\n  {{ {fields} }} ] }}");
        let good = r#""asn": 1, "prefix": "10.0.0.0/8", "maxLength": 8"#;
        assert!(file.read(&roa(good), 0).is_ok());
        for (text, expected) in [
            (roa(&good.replace(": 8", ": 7")), "`maxLength` 7 of 10.0.0.0/8, expected 8 to 32 at line 2"),
            (roa(&good.replace(": 8", ": 33")), "`maxLength` 33 of 10.0.0.0/8, expected 8 to 32 at line 2"),
            (roa(&good.replace(": 8", ": 256")), "at line 2"),
            (roa(&good.replace("10.0.0.0/8", "10.0.0.1/8")), "at line 2"),
            (roa(&good.replace(": 1,", ": 4294967296,")), "an AS number has 32 bits at line 2"),
            (roa(&good.replace(": 1,", ": \"ASx\",")), "ASx"),
            (roa(&good.replace(": 1,", ": \"AS+1\",")), "AS+1"),
            (roa(&good.replace(": 1,", ": -1,")), "expected an AS number"),
            (roa("\"asn\": 1"), "missing field `prefix`"),
            (roa(good)[..roa(good).len() - 3].to_owned(), "at line 2"),
            (roa(good) + "x", "trailing characters at line 2"),
            ("{}".to_owned(), "missing field `roas`"),
            ("{ \"roas\": 3 }".to_owned(), "expected a list of ROAs"),
            (String::new(), "at line 1"),
        ] {
            let error = file.read(&text, 0).expect_err(&text);
            assert!(error.starts_with("it is no list of ROAs: ") && error.contains(expected), "{text}: {error}");
        }
        assert!(
            read(Path::new("/nonexistent/roas.json"), 0).is_err_and(|error| matches!(error, FileError::Unreadable(_)))
        );
    }
}
