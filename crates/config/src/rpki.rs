//! `[rpki]`: where a role learns who may originate what, and which keys the RPKI binds to routers.

use std::path::PathBuf;

use serde::Deserialize;
use toml::Spanned;
use wayleave_runtime::rpki::rtr::{self, Cache};

use super::rs::FileFault;
use super::{Fault, HostPort, Source, Text};
use crate::failure::{Failure, Outcome};

/// `[rpki]`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RpkiSection {
    /// A relying party's cache, queried over RTR (RFC 8210).
    pub cache: Option<Spanned<Text<HostPort>>>,
    /// The version of RTR that it knows, where it does not answer to newer ones: 0, 1 or 2.
    pub version: Option<Spanned<u8>>,
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
    /// The cache to follow; `Ok(None)` without one.
    pub fn cache(&self, source: &Source) -> Outcome<Option<Cache>> {
        let Some(address) = &self.cache else { return Ok(None) };
        let tls = match &self.tls {
            None => None,
            Some(section) => {
                let read = read_tls(section.get_ref(), source);
                Some(read.map_err(|failure| source.failure(Fault::of(section.span(), &failure)))?)
            }
        };
        let version = self.version.as_ref().map(|version| *version.get_ref());
        Ok(Some(Cache { address: address.get_ref().0.to_string(), tls, version }))
    }

    pub(super) fn faults(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
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
    fn a_version_that_rtr_does_not_have_is_refused_and_one_that_it_has_is_asked_for() {
        let faults = |text: &str| toml::from_str::<RpkiSection>(text).expect("parses").faults();
        for (text, expected) in [
            ("cache = \"127.0.0.1:3323\"\nversion = 1", None),
            ("cache = \"127.0.0.1:3323\"\nversion = 3", Some("RTR has no version 3")),
            ("version = 1", Some("`version` without a cache")),
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
