//! A local file of validated ROA payloads, as Routinator (`json`) and rpki-client (`-j`) write it, read again whenever it changes.
//!
//! What cannot be read as a whole changes nothing: what was read before stays in force.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use tokio::sync::watch;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::sleep;
use wayleave_core::{Asn, Prefix};

use super::rtr::{CacheState, MAX_ITEMS, MAX_PROVIDERS, Snapshot};
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
    /// Such as a pipe, whose reader might wait for ever.
    #[error("it is no regular file, expected one that your validator writes")]
    NotRegular,
    #[error("it has more than {} MiB", MAX_OCTETS >> 20)]
    TooLong,
    /// The place is in the text.
    #[error("it is no list of ROAs: {0}")]
    Malformed(#[from] serde_json::Error),
}

/// What a file says at one moment.
#[derive(Debug, Default)]
pub struct Roas {
    pub vrps: Items<Vrp>,
    /// Customers, each with one of its providers.
    pub aspas: Items<(Asn, Asn)>,
}

impl Roas {
    /// When the first of them expires.
    #[must_use]
    pub fn expires(&self) -> Option<u64> {
        self.vrps.expires().into_iter().chain(self.aspas.expires()).min()
    }
}

/// Items of one kind.
#[derive(Debug)]
pub struct Items<T> {
    pub all: BTreeSet<T>,
    /// When those of them expire that do, in seconds since 1970.
    pub ends: BTreeMap<T, u64>,
}

impl<T> Default for Items<T> {
    fn default() -> Self {
        Self { all: BTreeSet::new(), ends: BTreeMap::new() }
    }
}

impl<T: Ord + Copy> Items<T> {
    fn insert(&mut self, item: T, expires: Option<u64>) {
        let is_new = self.all.insert(item);
        match (expires, self.ends.get_mut(&item)) {
            (None, _) => {
                let _ = self.ends.remove(&item);
            }
            (Some(expires), Some(end)) => *end = expires.max(*end),
            (Some(expires), None) if is_new => {
                let _ = self.ends.insert(item, expires);
            }
            (Some(_), None) => {} // it is there without an end
        }
    }

    fn expires(&self) -> Option<u64> {
        self.ends.values().min().copied()
    }
}

/// What is left of `all` once those have ended whose end is past at `now`.
fn lasting<T: Ord + Copy>(all: &BTreeSet<T>, ends: &mut BTreeMap<T, u64>, now: u64) -> BTreeSet<T> {
    let over: BTreeSet<T> = ends.iter().filter(|(_, end)| **end <= now).map(|(item, _)| *item).collect();
    ends.retain(|_, end| *end > now);
    all.difference(&over).copied().collect()
}

/// Reads a file; what has expired at `now`, in seconds since 1970, is left out.
pub fn read(path: &Path, now: u64) -> Result<Roas, FileError> {
    if !fs::metadata(path)?.is_file() {
        return Err(FileError::NotRegular);
    }
    let mut octets = Vec::new();
    File::open(path)?.take(MAX_OCTETS + 1).read_to_end(&mut octets)?;
    if octets.len() as u64 > MAX_OCTETS {
        return Err(FileError::TooLong);
    }
    Ok(roas(&octets, now)?)
}

/// The same from the octets of a file.
pub fn roas(octets: &[u8], now: u64) -> Result<Roas, serde_json::Error> {
    let List { roas, aspas } = serde_json::from_slice(octets)?;
    let mut read = Roas::default();
    let lasts = |expires: &Option<u64>| expires.is_none_or(|expires| expires > now);
    for Roa { vrp, expires } in roas.0.into_iter().filter(|roa| lasts(&roa.expires)) {
        read.vrps.insert(vrp, expires);
    }
    for Aspa { customer, providers, expires } in aspas.0.into_iter().filter(|aspa| lasts(&aspa.expires)) {
        providers.into_iter().for_each(|OriginAs(provider)| read.aspas.insert((customer.0, provider), expires));
    }
    Ok(read)
}

/// The file: all else that it has is not used.
#[derive(Deserialize)]
struct List {
    roas: RoaList,
    #[serde(default)]
    aspas: AspaList,
}

/// At most [`MAX_ITEMS`].
struct RoaList(Vec<Roa>);

/// At most [`MAX_PROVIDERS`] providers.
#[derive(Default)]
struct AspaList(Vec<Aspa>);

/// The providers of an AS, as Routinator and rpki-client name the fields.
#[derive(Deserialize)]
struct Aspa {
    #[serde(alias = "customer_asid")]
    customer: OriginAs,
    providers: Vec<OriginAs>,
    /// Seconds since 1970, as rpki-client has it.
    expires: Option<u64>,
}

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

impl<'de> Deserialize<'de> for AspaList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Aspas;
        impl<'de> Visitor<'de> for Aspas {
            type Value = AspaList;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of ASPA records")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<AspaList, A::Error> {
                let (mut aspas, mut providers) = (Vec::new(), 0);
                while let Some(aspa) = list.next_element::<Aspa>()? {
                    // As RTR has it: an AS without providers lists AS 0.
                    if aspa.providers.is_empty() {
                        return Err(A::Error::custom(format!(
                            "an ASPA record of {} without providers",
                            aspa.customer.0
                        )));
                    }
                    providers += aspa.providers.len();
                    if providers > MAX_PROVIDERS {
                        return Err(A::Error::custom(format!("more than {MAX_PROVIDERS} providers in ASPA records")));
                    }
                    aspas.push(aspa);
                }
                Ok(AspaList(aspas))
            }
        }
        deserializer.deserialize_seq(Aspas)
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
type Stamp = ((i64, i64), u64);

/// Follows the file until the task is aborted; the receiver sees every change.
#[must_use]
pub fn follow(path: PathBuf) -> (watch::Receiver<Snapshot>, JoinHandle<()>) {
    let (changes, receiver) = watch::channel(Snapshot::default());
    (receiver, tokio::spawn(Following { path, changes, seen: None, ends: Ends::default(), expires: None }.run()))
}

struct Following {
    path: PathBuf,
    changes: watch::Sender<Snapshot>,
    /// The file when it was last read, or `None` while there is none.
    seen: Option<Stamp>,
    /// When its items expire, and the first of them.
    ends: Ends,
    expires: Option<u64>,
}

#[derive(Default)]
struct Ends {
    vrps: BTreeMap<Vrp, u64>,
    aspas: BTreeMap<(Asn, Asn), u64>,
}

impl Following {
    async fn run(mut self) {
        let mut last = 0;
        loop {
            let now = unix_now().secs();
            let path = self.path.clone();
            let Ok(stamp) = spawn_blocking(move || stamp(&path)).await else { return }; // the process ends
            let is_over = self.expires.is_some_and(|expires| expires <= now) && last + EXPIRY <= now;
            match stamp {
                Ok(stamp) if self.seen == Some(stamp) && !is_over => {}
                Ok(stamp) => {
                    self.seen = Some(stamp);
                    last = now;
                    let path = self.path.clone();
                    match spawn_blocking(move || read(&path, now)).await {
                        Ok(Ok(roas)) => self.publish(roas, stamp),
                        Ok(Err(error)) => self.failed(&error, now),
                        Err(_) => return, // the process ends
                    }
                }
                Err(error) => {
                    self.seen = None;
                    self.failed(&error.into(), now);
                }
            }
            sleep(CHECK).await;
        }
    }

    fn publish(&mut self, roas: Roas, (modified, _): Stamp) {
        self.expires = roas.expires();
        self.ends = Ends { vrps: roas.vrps.ends, aspas: roas.aspas.ends };
        let validated = RpkiData { vrps: roas.vrps.all, aspas: roas.aspas.all, ..RpkiData::default() };
        self.changes.send_modify(|snapshot| {
            if *snapshot.validated != validated {
                snapshot.validated = Arc::new(validated);
                snapshot.generation += 1;
            }
            snapshot.state = CacheState::Current;
            snapshot.problem = None;
            snapshot.updated = u64::try_from(modified.0).ok();
        });
    }

    /// What was read before stays, as long as it has not expired.
    fn failed(&mut self, error: &FileError, now: u64) {
        self.drop_expired(now);
        let problem: Arc<str> = error.to_string().into();
        self.changes.send_if_modified(|snapshot| {
            if snapshot.state == CacheState::Current {
                snapshot.state = CacheState::Stale;
            }
            snapshot.problem.replace(Arc::clone(&problem)) != Some(problem)
        });
    }
}

impl Following {
    fn drop_expired(&mut self, now: u64) {
        if self.expires.is_none_or(|expires| expires > now) {
            return;
        }
        let Ends { vrps: of_vrps, aspas: of_aspas } = &mut self.ends;
        self.changes.send_modify(|snapshot| {
            let vrps = lasting(&snapshot.validated.vrps, of_vrps, now);
            let aspas = lasting(&snapshot.validated.aspas, of_aspas, now);
            snapshot.validated = Arc::new(RpkiData { vrps, aspas, ..RpkiData::default() });
            snapshot.generation += 1;
        });
        self.expires = self.ends.vrps.values().chain(self.ends.aspas.values()).min().copied();
    }
}

fn stamp(path: &Path) -> io::Result<Stamp> {
    let about = fs::metadata(path)?;
    Ok(((about.mtime(), about.mtime_nsec()), about.len()))
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
        assert_eq!((read.expires(), read.vrps.all), (None, expected));
        assert_eq!(read.aspas.all, BTreeSet::from([(Asn(1), Asn(2))]));
        // rpki-client.
        let text = r#"{ "metadata": { "roas": 2 }, "roas": [
            { "asn": 64496, "prefix": "192.0.2.0/24", "maxLength": 25, "ta": "arin", "expires": 2000 },
            { "asn": 64497, "prefix": "192.0.2.0/24", "ta": "arin", "expires": 1000 } ],
            "aspas": [ { "customer_asid": 1, "expires": 1500, "providers": [ 2, 3 ] },
                       { "customer_asid": 1, "expires": 1000, "providers": [ 3, 4 ] } ] }"#;
        let read = file.read(text, 999).expect("a list");
        assert_eq!((read.vrps.all.len(), read.aspas.all.len(), read.expires()), (2, 3, Some(1000)));
        assert!(read.vrps.all.contains(&vrp("192.0.2.0/24", 24, 64497)), "without `maxLength` it is the prefix's own");
        let read = file.read(text, 1000).expect("a list");
        assert_eq!((read.expires(), read.vrps.all), (Some(1500), BTreeSet::from([vrp("192.0.2.0/24", 25, 64496)])));
        assert_eq!(read.aspas.all, BTreeSet::from([(Asn(1), Asn(2)), (Asn(1), Asn(3))]));
    }

    #[test]
    fn what_has_expired_counts_no_more_though_the_file_is_gone() {
        let (one, two, lasting) = (vrp("192.0.2.0/24", 24, 1), vrp("192.0.2.0/24", 24, 2), vrp("192.0.2.0/24", 24, 3));
        let mut roas = Roas::default();
        for (vrp, expires) in
            [(one, Some(1_000)), (two, Some(1_000)), (two, Some(2_000)), (lasting, Some(1_000)), (lasting, None)]
        {
            roas.vrps.insert(vrp, expires);
        }
        roas.aspas.insert((Asn(1), Asn(2)), Some(1_500));
        let (changes, snapshots) = watch::channel(Snapshot::default());
        let mut file = Following { path: PathBuf::new(), changes, seen: None, ends: Ends::default(), expires: None };
        file.publish(roas, ((0, 0), 0));
        let gone = || FileError::Unreadable(io::ErrorKind::NotFound.into());
        for (now, expected) in [
            (999, vec![one, two, lasting]),
            (1_000, vec![two, lasting]),
            (5_000, vec![lasting]),
            (9_000, vec![lasting]),
        ] {
            file.failed(&gone(), now);
            let snapshot = snapshots.borrow().clone();
            assert_eq!(snapshot.validated.vrps.iter().copied().collect::<Vec<_>>(), expected, "{now}");
            assert_eq!(snapshot.validated.aspas.len(), usize::from(now < 1_500), "{now}");
            assert_eq!(snapshot.state, CacheState::Stale);
        }
    }

    #[test]
    fn what_is_no_regular_file_is_not_opened() {
        assert!(matches!(read(Path::new("/dev/null"), 0), Err(FileError::NotRegular)));
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
            ("{ \"roas\": [], \"aspas\": 3 }".to_owned(), "expected a list of ASPA records"),
            ("{ \"roas\": [], \"aspas\": [ { \"customer\": 1 } ] }".to_owned(), "missing field `providers`"),
            (
                "{ \"roas\": [], \"aspas\": [ { \"customer\": 1, \"providers\": [] } ] }".to_owned(),
                "of AS1 without providers",
            ),
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
