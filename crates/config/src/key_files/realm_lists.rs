//! Files of a realm's list keys, and lines of text of lists and of what the realm's key signed of list keys.

use std::fs;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use wayleave_control::realm::{ListKey, ListSigner, RevocationList};
use wayleave_crypto::secret::Seed;
use wayleave_crypto::sign::SigningKey;
use wayleave_crypto::signed::{Object, Signed};
use wayleave_runtime::identity::{from_hex, to_hex};
use zeroize::Zeroizing;

use super::node::fresh;
use super::private;
use crate::failure::{Failure, Outcome};

/// The kind in a file of a list key.
pub const KIND: &str = "list";
/// In front of every list of removed nodes.
const LIST: &str = "wayleave-list-v1.";
/// In front of what the realm's key signed of a list key.
const CERTIFICATE: &str = "wayleave-list-key-v1.";
/// Largest file of a list that is read, in octets.
const MAX_OCTETS: u64 = 2 << 20;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ListKeyFile {
    kind: String,
    secret: Zeroizing<String>,
    /// What the realm's key signed of it.
    certificate: String,
}

/// A new list key, of which nothing is signed yet.
pub fn generate() -> Outcome<Seed> {
    Ok(Seed::new(*fresh()?))
}

/// Writes a list key with its certificate. A file that is there is replaced only by the same key.
pub fn save(secret: &Seed, certificate: &Signed<ListKey>, path: &Path) -> Outcome {
    let file = ListKeyFile {
        kind: KIND.to_owned(),
        secret: Zeroizing::new(to_hex(secret.expose())),
        certificate: certificate_text(certificate),
    };
    let text = toml::to_string(&file).map(Zeroizing::new);
    let text = text.map_err(|error| Failure::new(format!("{}: {error}", path.display())))?;
    if path.exists() {
        if load(path)?.0 != *secret {
            return Err(Failure::new(format!("{} has another key", path.display())).into());
        }
        return private::replace(path, &text);
    }
    private::create(path, &text)
}

/// Reads a list key, which only its owner may be able to read: the secret, and what signs with it.
pub fn load(path: &Path) -> Result<(Seed, ListSigner), Failure> {
    let text = private::read(path)?;
    let not_one = || {
        Failure::new(format!("{} is not a file of a list key", path.display()))
            .help("`wayleave realm list-key new FILE` makes one, where the realm's key is")
    };
    // The parser's message would quote the line, which is secret.
    let file: ListKeyFile = toml::from_str(&text).map_err(|_| not_one())?;
    let secret = from_hex(&file.secret).map(Seed::new).filter(|_| file.kind == KIND).ok_or_else(not_one)?;
    let certificate = certificate(&file.certificate).ok_or_else(not_one)?;
    let signer = ListSigner::of_list_key(SigningKey::from_seed(&secret), certificate).ok_or_else(not_one)?;
    Ok((secret, signer))
}

fn line<T: Object>(prefix: &str, signed: &Signed<T>) -> String {
    format!("{prefix}{}", URL_SAFE_NO_PAD.encode(signed.octets()))
}

fn parse<T: Object>(prefix: &str, text: &str) -> Option<Signed<T>> {
    Signed::decode(&URL_SAFE_NO_PAD.decode(text.trim().strip_prefix(prefix)?).ok()?).ok()
}

/// What the realm's key signed of a list key, as a line of text. It is public.
#[must_use]
pub fn certificate_text(certificate: &Signed<ListKey>) -> String {
    line(CERTIFICATE, certificate)
}

/// What is in such a line; nothing is verified.
#[must_use]
pub fn certificate(text: &str) -> Option<Signed<ListKey>> {
    parse(CERTIFICATE, text)
}

/// A list as a line of text. It is public.
#[must_use]
pub fn list_text(list: &Signed<RevocationList>) -> String {
    line(LIST, list)
}

/// A list of such a line; nothing of it is verified.
#[must_use]
pub fn list(text: &str) -> Option<Signed<RevocationList>> {
    parse(LIST, text)
}

/// Reads a file of a list; nothing of it is verified.
pub fn read_list(path: &Path) -> Result<Signed<RevocationList>, Failure> {
    let system = |error| Failure::system(path.display(), &error);
    if fs::metadata(path).map_err(system)?.len() > MAX_OCTETS {
        return Err(Failure::new(format!("{}: longer than 2 MiB", path.display())));
    }
    let text = fs::read_to_string(path).map_err(system)?;
    list(&text).ok_or_else(|| {
        Failure::new(format!("{} is not a list of removed nodes, or is cut off", path.display()))
            .help("`wayleave realm list export` and `wayleave realm list sign` write one")
    })
}
