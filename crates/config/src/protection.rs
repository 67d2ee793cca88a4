//! What protects a BGP session, in the configurations of `run member` and `run attest`: `password_file` and `ttl_security`.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use serde::de::{self, Deserialize, Deserializer, Unexpected, Visitor};
use toml::Spanned;
use wayleave_runtime::bgp_tcp::{Hops, Protection, Usable};

use super::rs::FileFault;
use super::{Fault, Source};
use crate::failure::Outcome;
use crate::key_files::password;

/// `ttl_security`: `true` for a neighbour on the same link, or the number of hops; `None` is `false`.
#[derive(Clone, Copy, Debug)]
pub struct TtlSecurity(pub Option<Hops>);

impl<'de> Deserialize<'de> for TtlSecurity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl Visitor<'_> for Reader {
            type Value = TtlSecurity;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("true, false, or how many hops away the speaker is, from 1 (the same link) to 254")
            }
            fn visit_bool<E: de::Error>(self, on: bool) -> Result<TtlSecurity, E> {
                Ok(TtlSecurity(on.then_some(Hops::ONE)))
            }
            fn visit_i64<E: de::Error>(self, number: i64) -> Result<TtlSecurity, E> {
                let hops = u8::try_from(number).ok().and_then(Hops::new);
                hops.map(|hops| TtlSecurity(Some(hops)))
                    .ok_or_else(|| E::invalid_value(Unexpected::Signed(number), &self))
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

/// The keys of a session that protect it, and those that say where its peer is.
#[derive(Clone, Copy, Debug)]
pub struct ProtectionKeys<'a> {
    pub listen: Option<SocketAddr>,
    pub connect: Option<SocketAddr>,
    pub address: Option<IpAddr>,
    pub ttl: Option<u8>,
    pub password_file: Option<&'a Spanned<PathBuf>>,
    pub ttl_security: Option<&'a Spanned<TtlSecurity>>,
}

impl ProtectionKeys<'_> {
    /// The only address that may connect. TCP MD5 has a key for each address, so that with a password it is always known.
    pub fn peer(&self) -> Option<IpAddr> {
        let connect = self.connect.filter(|_| self.password_file.is_some()).map(|address| address.ip());
        self.address.or(connect)
    }

    pub(super) fn faults(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        if let (Some(file), Some(listen)) = (self.password_file, self.listen) {
            match self.peer() {
                None => {
                    let message = "a password is for one address, expected `address` with the speaker's as well";
                    let help =
                        "TCP MD5 has a key for each address: without it, others would connect without a password";
                    faults.push(Fault::at(file.span(), message).help(help));
                }
                Some(peer) if !can_reach(peer, listen) => {
                    let message = format!("{peer} cannot connect to {listen}, expected addresses of one family");
                    faults.push(Fault::at(file.span(), message));
                }
                Some(_) => {}
            }
        }
        let is_on = |security: &&Spanned<TtlSecurity>| security.get_ref().0.is_some();
        if let (Some(security), Some(ttl)) = (self.ttl_security.filter(is_on), self.ttl.filter(|ttl| *ttl != 255)) {
            let message = format!("TTL security sends with TTL 255, but `ttl` is {ttl}, expected only one of them");
            faults.push(Fault::at(security.span(), message));
        }
        faults
    }

    /// What this machine has of what protects a session, where a protection is configured.
    pub(super) fn note(&self) -> Option<String> {
        let has_ttl = self.ttl_security.is_some_and(|security| security.get_ref().0.is_some());
        (self.password_file.is_some() || has_ttl).then(|| Usable::here().note())
    }

    pub(super) fn file_faults(&self, source: &Source) -> Option<FileFault> {
        let file = self.password_file?;
        let path = source.resolve(file.get_ref());
        if !path.exists() {
            let help = format!("create it with: (umask 077; cat > {}), and type the password", path.display());
            let fault = Fault::at(file.span(), format!("{} does not exist yet", path.display())).help(help);
            return Some(FileFault::Missing(fault));
        }
        let failure = password::read(&path).err()?;
        Some(FileFault::Unusable(Fault::of(file.span(), &failure)))
    }

    /// The protection, with the password read from its file.
    pub fn protection(&self, source: &Source) -> Outcome<Protection> {
        let password = match self.password_file {
            Some(file) => {
                let read = password::read(&source.resolve(file.get_ref()));
                Some(read.map_err(|failure| source.failure(Fault::of(file.span(), &failure)))?)
            }
            None => None,
        };
        Ok(Protection { password, ttl_security: self.ttl_security.and_then(|security| security.get_ref().0) })
    }
}

/// Whether a listener at `listen` takes connections of `peer`'s family. `[::]` takes both.
fn can_reach(peer: IpAddr, listen: SocketAddr) -> bool {
    let takes_both = listen.is_ipv6() && listen.ip().is_unspecified();
    takes_both || peer.is_ipv4() == listen.ip().to_canonical().is_ipv4()
}

#[cfg(test)]
mod tests {
    use super::super::attest::AttestFile;
    use super::*;

    /// What is wrong with a pair whose inside end has these keys: message, text at the caret, and the text from there on.
    fn faults(inside: &str) -> Vec<(String, String, String)> {
        let text = format!(
            "[attest]\nasn = 64497\nstate = \"x\"\n[keys]\n[[pair]]\nname = \"a\"\ninside = {{ {inside} }}\n\
             outside = {{ connect = \"192.0.2.2:179\" }}\n"
        );
        let source = Source::of_text("attest.toml", &text);
        let Err(failures) = AttestFile::parse(&source) else { return Vec::new() };
        let fault = |failure: &crate::failure::Failure| {
            let (line, column) = failure.line_column().expect("a place");
            let at = text.lines().nth(line - 1).and_then(|line| line.get(column - 1..)).expect("a line");
            (failure.to_string(), failure.label().unwrap_or_default().to_owned(), at.to_owned())
        };
        failures.0.iter().map(fault).collect()
    }

    const PASSWORD: &str = "password_file = \"p\"";

    #[test]
    fn a_listener_with_a_password_needs_the_address_of_its_speaker() {
        for good in [
            "listen = \"192.0.2.9:179\", address = \"192.0.2.1\"",
            "listen = \"192.0.2.9:179\", connect = \"192.0.2.1:179\"",
            "listen = \"[::]:179\", address = \"192.0.2.1\"",
            "listen = \"[::]:179\", address = \"2001:db8::1\"",
            "connect = \"192.0.2.1:179\"",
        ] {
            assert_eq!(faults(&format!("{good}, {PASSWORD}")), [], "{good}");
        }
        let found = faults(&format!("listen = \"192.0.2.9:179\", {PASSWORD}"));
        assert!(
            matches!(&found[..], [(_, label, at)] if label.contains("`address`") && at.starts_with("\"p\"")),
            "{found:?}"
        );
        for other in
            [("192.0.2.9:179", "2001:db8::1"), ("0.0.0.0:179", "2001:db8::1"), ("[2001:db8::9]:179", "192.0.2.1")]
        {
            let found = faults(&format!("listen = \"{}\", address = \"{}\", {PASSWORD}", other.0, other.1));
            assert!(matches!(&found[..], [(what, ..)] if what.contains("cannot connect")), "{found:?}");
        }
    }

    #[test]
    fn ttl_security_is_a_truth_value_or_a_number_of_hops() {
        let with = |value: &str| faults(&format!("connect = \"192.0.2.1:179\", ttl_security = {value}"));
        for good in ["true", "false", "1", "254", "true, ttl = 255", "false, ttl = 64"] {
            assert_eq!(with(good), [], "{good}");
        }
        for bad in ["0", "255", "-1", "\"on\"", "1.5"] {
            let found = with(bad);
            assert!(
                matches!(&found[..], [(_, label, at)] if label.contains("from 1 (the same link) to 254") && at.starts_with(bad)),
                "{bad}: {found:?}"
            );
        }
        let found = with("true, ttl = 64");
        assert!(
            matches!(&found[..], [(what, _, at)] if what.contains("`ttl` is 64") && at.starts_with("true")),
            "{found:?}"
        );
    }
}
