//! `[rpki]`: where a role learns who may originate what, and which keys the RPKI binds to routers.

use std::path::PathBuf;

use serde::Deserialize;
use toml::Spanned;
use wayleave_runtime::clock::unix_now;
use wayleave_runtime::rpki::rtr::{self, Cache};
use wayleave_runtime::rpki::{DataSource, file as roas};

use super::rs::FileFault;
use super::{Fault, HostPort, Source, Text};
use crate::failure::{Failure, Outcome};

/// What makes a file of ROAs.
const WRITES_ROAS: &str = "`routinator vrps --format json --output FILE` writes it, and so does `rpki-client -j`";

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
    /// Certificates of the trust anchors of those in `certificates`.
    #[serde(default)]
    pub anchors: Vec<Spanned<PathBuf>>,
    /// A folder of certificates (`.cer`) of authorities and routers (RFC 8209), and revocation lists (`.crl`).
    pub certificates: Option<Spanned<PathBuf>>,
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
    /// The cache or the file to follow; `Ok(None)` without one.
    pub fn data_source(&self, source: &Source) -> Outcome<Option<DataSource>> {
        let Some(address) = &self.cache else {
            return Ok(self.file.as_ref().map(|file| DataSource::File(source.resolve(file.get_ref()))));
        };
        let tls = match &self.tls {
            None => None,
            Some(section) => {
                let read = read_tls(section.get_ref(), source);
                Some(read.map_err(|failure| source.failure(Fault::of(section.span(), &failure)))?)
            }
        };
        let version = self.version.as_ref().map(|version| *version.get_ref());
        Ok(Some(DataSource::Cache(Cache { address: address.get_ref().0.to_string(), tls, version })))
    }

    /// Whether it names neither a cache, nor a file, nor certificates.
    pub(super) fn is_empty(&self) -> bool {
        self.cache.is_none() && self.file.is_none() && self.certificates.is_none()
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
        if let (Some(_), Some(file)) = (&self.cache, &self.file) {
            let message = "`file` beside `cache`, expected one of the two";
            let help = "a route is invalid where one of two sources lacks what the other has";
            faults.push(Fault::at(file.span(), message).help(help));
        }
        if let (None, Some(tls)) = (&self.cache, &self.tls) {
            faults.push(Fault::at(tls.span(), "`tls` without a cache, expected `cache` as well"));
        }
        if let Some(version) = &self.version {
            let known = rtr::OLDEST_VERSION..=rtr::NEWEST_VERSION;
            if !known.contains(version.get_ref()) {
                let message = format!("RTR has no version {}, expected 0, 1 or 2", version.get_ref());
                faults.push(Fault::at(version.span(), message));
            } else if self.cache.is_none() {
                faults.push(Fault::at(version.span(), "`version` without a cache, expected `cache` as well"));
            }
        }
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
        if let Some(file) = &self.file {
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
        for file in self.anchors.iter().chain(&self.certificates) {
            let path = source.resolve(file.get_ref());
            if !path.exists() {
                let message = format!("{} does not exist yet", path.display());
                faults.push(FileFault::Missing(Fault::at(file.span(), message)));
            }
        }
        if let Some(section) = &self.tls {
            let path = source.resolve(&section.get_ref().authorities);
            if !path.exists() {
                let message = format!("{} does not exist yet", path.display());
                faults.push(FileFault::Missing(Fault::at(section.span(), message)));
            } else if let Err(failure) = read_tls(section.get_ref(), source) {
                faults.push(FileFault::Unusable(Fault::of(section.span(), &failure)));
            }
        }
        faults
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
