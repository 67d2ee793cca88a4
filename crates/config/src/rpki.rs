//! `[rpki]`: where a role learns who may originate what, and which keys the RPKI binds to routers.

use std::path::PathBuf;

use serde::Deserialize;
use toml::Spanned;
use wayleave_runtime::clock::unix_now;
use wayleave_runtime::rpki::rtr::{self, Cache};
use wayleave_runtime::rpki::{DataSource, PreferredSource, file as roas};

use super::rs::FileFault;
use super::{Fault, HostPort, Source, Text};
use crate::failure::{Failure, Outcome};

/// What makes a file of ROAs.
const WRITES_ROAS: &str = "`routinator vrps --format json --output FILE` writes it, and so does `rpki-client -j`";

/// Sources of one section: our own limit. Each that has answered is kept in memory.
const MAX_SOURCES: usize = 8;

/// `[rpki]`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RpkiSection {
    /// A relying party's cache, queried over RTR (RFC 8210).
    pub cache: Option<Spanned<Text<HostPort>>>,
    /// The version of RTR that it knows, where it does not answer to newer ones: 0, 1 or 2.
    pub version: Option<Spanned<u8>>,
    /// A file of validated ROAs, in place of a cache: the JSON of Routinator or rpki-client.
    pub file: Option<Spanned<PathBuf>>,
    /// TLS to the cache; without it plain TCP.
    pub tls: Option<Spanned<TlsSection>>,
    /// Several caches or files in place of these, of which the most preferred that is in order counts (RFC 8210 section 10).
    #[serde(default)]
    pub source: Vec<Spanned<SourceSection>>,
    /// Certificates of the trust anchors of those in `certificates`.
    #[serde(default)]
    pub anchors: Vec<Spanned<PathBuf>>,
    /// A folder of certificates (`.cer`) of authorities and routers (RFC 8209), and revocation lists (`.crl`).
    pub certificates: Option<Spanned<PathBuf>>,
}

/// `[[rpki.source]]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceSection {
    /// The lowest number is preferred; of equal ones the first in the file.
    pub preference: Spanned<u32>,
    pub cache: Option<Spanned<Text<HostPort>>>,
    pub version: Option<Spanned<u8>>,
    pub file: Option<Spanned<PathBuf>>,
    pub tls: Option<Spanned<TlsSection>>,
}

/// How a cache's TLS certificate is verified.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsSection {
    /// The name in its certificate.
    pub name: String,
    /// The authorities that may have issued it: certificates in PEM.
    pub authorities: PathBuf,
}

impl RpkiSection {
    /// The caches and files to follow, the most preferred first; empty without any.
    pub fn data_sources(&self, source: &Source) -> Outcome<Vec<PreferredSource>> {
        let mut all = Vec::new();
        if let Some(one) = self.own().data_source(source)? {
            all.push(PreferredSource { preference: 1, source: one });
        }
        for section in self.source.iter().map(Spanned::get_ref) {
            if let Some(one) = section.named().data_source(source)? {
                all.push(PreferredSource { preference: *section.preference.get_ref(), source: one });
            }
        }
        all.sort_by_key(|one| one.preference);
        Ok(all)
    }

    /// What the section's own keys name.
    fn own(&self) -> Named<'_> {
        Named {
            cache: self.cache.as_ref(),
            version: self.version.as_ref(),
            file: self.file.as_ref(),
            tls: self.tls.as_ref(),
        }
    }

    /// Whether it names neither a cache, nor a file, nor certificates.
    pub(super) fn is_empty(&self) -> bool {
        self.cache.is_none() && self.file.is_none() && self.source.is_empty() && self.certificates.is_none()
    }

    /// Of a member's own `[rpki]`, which serves the validation of origins alone.
    pub(super) fn origin_faults(&self) -> Vec<Fault> {
        let mut faults = self.faults();
        if let Some(given) = self.certificates.as_ref().or(self.anchors.first()) {
            let message = "router certificates validate attestations, expected `cache` or `file`";
            faults.push(Fault::at(given.span(), message).help("they belong into [attestation.rpki]"));
        }
        faults
    }

    pub(super) fn faults(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        self.own().faults(&mut faults);
        self.source_faults(&mut faults);
        match (&self.certificates, self.anchors.first()) {
            (Some(folder), None) => {
                let message = "certificates without a trust anchor, expected `anchors` as well";
                faults.push(Fault::at(folder.span(), message));
            }
            (None, Some(anchor)) => {
                let message = "trust anchors without certificates, expected `certificates` as well";
                faults.push(Fault::at(anchor.span(), message));
            }
            _ => {}
        }
        faults
    }

    pub(super) fn file_faults(&self, source: &Source) -> Vec<FileFault> {
        let mut faults = Vec::new();
        for named in std::iter::once(self.own()).chain(self.source.iter().map(|one| one.get_ref().named())) {
            named.file_faults(source, &mut faults);
        }
        for file in self.anchors.iter().chain(&self.certificates) {
            let path = source.resolve(file.get_ref());
            if !path.exists() {
                let message = format!("{} does not exist yet", path.display());
                faults.push(FileFault::Missing(Fault::at(file.span(), message)));
            }
        }
        faults
    }

    fn source_faults(&self, faults: &mut Vec<Fault>) {
        if let (Some(first), true) = (self.source.first(), self.cache.is_some() || self.file.is_some()) {
            let message = "[[rpki.source]] beside `cache` or `file` of the section itself, expected one of the two";
            let help = "make the cache or file of the section a [[rpki.source]] with a `preference` of its own";
            faults.push(Fault::at(first.span(), message).help(help));
        }
        if let Some(surplus) = self.source.get(MAX_SOURCES) {
            let message = format!("{} [[rpki.source]], expected {MAX_SOURCES} at most", self.source.len());
            faults.push(Fault::at(surplus.span(), message));
        }
        let mut known = Vec::new();
        for section in &self.source {
            let named = section.get_ref().named();
            named.faults(faults);
            if named.cache.is_none() && named.file.is_none() {
                let message = "a [[rpki.source]] without a source, expected `cache` or `file`";
                faults.push(Fault::at(section.span(), message));
                continue;
            }
            let name = (named.cache.map(|cache| cache.get_ref().0.to_string()), named.file.map(Spanned::get_ref));
            if known.contains(&name) {
                let message = "the same source as one before, expected it once";
                faults.push(Fault::at(section.span(), message));
            }
            known.push(name);
        }
    }
}

impl SourceSection {
    fn named(&self) -> Named<'_> {
        Named {
            cache: self.cache.as_ref(),
            version: self.version.as_ref(),
            file: self.file.as_ref(),
            tls: self.tls.as_ref(),
        }
    }
}

/// A cache or a file, as a section names it.
#[derive(Clone, Copy)]
struct Named<'a> {
    cache: Option<&'a Spanned<Text<HostPort>>>,
    version: Option<&'a Spanned<u8>>,
    file: Option<&'a Spanned<PathBuf>>,
    tls: Option<&'a Spanned<TlsSection>>,
}

impl Named<'_> {
    fn data_source(self, source: &Source) -> Outcome<Option<DataSource>> {
        let Some(address) = self.cache else {
            return Ok(self.file.map(|file| DataSource::File(source.resolve(file.get_ref()))));
        };
        let tls = match self.tls {
            None => None,
            Some(section) => {
                let read = read_tls(section.get_ref(), source);
                Some(read.map_err(|failure| source.failure(Fault::of(section.span(), &failure)))?)
            }
        };
        let version = self.version.map(|version| *version.get_ref());
        Ok(Some(DataSource::Cache(Cache { address: address.get_ref().0.to_string(), tls, version })))
    }

    fn faults(self, faults: &mut Vec<Fault>) {
        if let (Some(_), Some(file)) = (self.cache, self.file) {
            let message = "`file` beside `cache`, expected one of the two";
            let help = "a route is invalid where one of two sources lacks what the other has; to fall back from one to the other, make \
                        each a [[rpki.source]]";
            faults.push(Fault::at(file.span(), message).help(help));
        }
        if let (None, Some(tls)) = (self.cache, self.tls) {
            faults.push(Fault::at(tls.span(), "`tls` without a cache, expected `cache` as well"));
        }
        if let Some(version) = self.version {
            let known = rtr::OLDEST_VERSION..=rtr::NEWEST_VERSION;
            if !known.contains(version.get_ref()) {
                let message = format!("RTR has no version {}, expected 0, 1 or 2", version.get_ref());
                faults.push(Fault::at(version.span(), message));
            } else if self.cache.is_none() {
                faults.push(Fault::at(version.span(), "`version` without a cache, expected `cache` as well"));
            }
        }
    }

    fn file_faults(self, source: &Source, faults: &mut Vec<FileFault>) {
        if let Some(file) = self.file {
            let path = source.resolve(file.get_ref());
            if path.exists() {
                let read = roas::read(&path, unix_now().secs());
                faults.extend(read.err().map(|error| {
                    let fault = Fault::at(file.span(), format!("{}: {error}", path.display()));
                    FileFault::Unusable(fault.help(WRITES_ROAS))
                }));
            } else {
                let fault = Fault::at(file.span(), format!("{} does not exist yet", path.display()));
                faults.push(FileFault::Missing(fault.help(WRITES_ROAS)));
            }
        }
        if let Some(section) = self.tls {
            let path = source.resolve(&section.get_ref().authorities);
            if !path.exists() {
                let message = format!("{} does not exist yet", path.display());
                faults.push(FileFault::Missing(Fault::at(section.span(), message)));
            } else if let Err(failure) = read_tls(section.get_ref(), source) {
                faults.push(FileFault::Unusable(Fault::of(section.span(), &failure)));
            }
        }
    }
}

fn read_tls(section: &TlsSection, source: &Source) -> Result<rtr::Tls, Failure> {
    let path = source.resolve(&section.authorities);
    let pem = std::fs::read(&path).map_err(|error| Failure::system(path.display(), &error))?;
    rtr::tls(&section.name, &pem).map_err(|why| Failure::new(format!("{}: {why}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_members_own_section_takes_no_router_certificates() {
        let faults = |text: &str| toml::from_str::<RpkiSection>(text).expect("parses").origin_faults();
        let found = faults("anchors = [\"ta.cer\"]\ncertificates = \"rpki\"");
        let [fault] = &found[..] else { panic!("{found:?}") };
        assert!(fault.message.starts_with("router certificates validate attestations"), "{}", fault.message);
        assert!(faults("cache = \"127.0.0.1:3323\"").is_empty() && faults("file = \"roas.json\"").is_empty());
    }

    #[test]
    fn several_sources_are_followed_by_preference_and_each_names_one_thing_once() {
        let section = |text: &str| toml::from_str::<RpkiSection>(text).expect("parses");
        let one = |preference: u32, what: &str| format!("[[source]]\npreference = {preference}\n{what}\n");
        let (near, far, file) = ("cache = \"127.0.0.1:1\"", "cache = \"127.0.0.1:2\"", "file = \"roas.json\"");
        let all = one(20, far) + &one(30, file) + &one(10, near);
        assert!(section(&all).faults().is_empty() && !section(&all).is_empty());
        let sources = section(&all).data_sources(&Source::of_text("/member.toml", "")).expect("sources");
        let names: Vec<(u32, String)> = sources.iter().map(|one| (one.preference, one.source.name())).collect();
        let expected = [(10, "127.0.0.1:1"), (20, "127.0.0.1:2"), (30, "/roas.json")];
        assert_eq!(names, expected.map(|(preference, name)| (preference, name.to_owned())));
        let many: String = (1..=9).map(|at| one(at, &format!("cache = \"127.0.0.1:{at}\""))).collect();
        for (text, expected) in [
            (one(1, ""), "a [[rpki.source]] without a source"),
            (one(1, &format!("{near}\n{file}")), "`file` beside `cache`"),
            (one(1, "cache = \"127.0.0.1:1\"\nversion = 3"), "RTR has no version 3"),
            (one(1, near) + &one(2, near), "the same source as one before"),
            (format!("{far}\n") + &one(1, near), "[[rpki.source]] beside `cache` or `file`"),
            (many, "9 [[rpki.source]], expected 8 at most"),
        ] {
            let found = section(&text).faults();
            assert!(found.iter().any(|fault| fault.message.starts_with(expected)), "{text}: {found:?}");
        }
        assert!(toml::from_str::<RpkiSection>("[[source]]\ncache = \"127.0.0.1:1\"").is_err(), "no preference");
    }

    #[test]
    fn a_version_that_rtr_does_not_have_is_refused_and_one_that_it_has_is_asked_for() {
        let faults = |text: &str| toml::from_str::<RpkiSection>(text).expect("parses").faults();
        for (text, expected) in [
            ("cache = \"127.0.0.1:3323\"\nversion = 1", None),
            ("cache = \"127.0.0.1:3323\"\nversion = 3", Some("RTR has no version 3")),
            ("version = 1", Some("`version` without a cache")),
            ("file = \"roas.json\"", None),
            ("cache = \"127.0.0.1:3323\"\nfile = \"roas.json\"", Some("`file` beside `cache`")),
        ] {
            let found = faults(text);
            let first = found.first().map(|fault| fault.message.as_str());
            assert_eq!(first.is_some(), expected.is_some(), "{text}: {first:?}");
            assert!(
                expected.is_none_or(|expected| first.is_some_and(|first| first.starts_with(expected))),
                "{text}: {first:?}"
            );
        }
    }
}
