//! `keys`: makes key files and prints their public parts, never more.

use std::path::Path;
use std::time::Duration;

use serde_json::json;
use wayleave_crypto::secret::Secret;
use wayleave_crypto::sign::SigningKey;
use wayleave_runtime::identity::Identity;

use crate::cli::Keys;
use crate::config::PublicKey;
use crate::failure::Outcome;
use crate::output::{print, print_json};

pub fn run(command: &Keys) -> Outcome {
    match command {
        Keys::New { file, name, days, json } => {
            let stem = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let validity = Duration::from_secs(u64::from(*days) * 86_400);
            let identity = Identity::generate(name.as_deref().unwrap_or(&stem), validity)?;
            identity.save(file)?;
            show(file, &identity, *json);
        }
        Keys::Show { file, json } => show(file, &Identity::load(file)?, *json),
    }
    Ok(())
}

/// The key that signs for an identity.
pub fn signing_key(identity: &Identity) -> SigningKey {
    SigningKey::from_seed(&Secret::new(*identity.signing_seed()))
}

fn show(file: &Path, identity: &Identity, json: bool) {
    let tls = identity.fingerprint().to_string();
    let sign = PublicKey(signing_key(identity).verifying_key()).to_string();
    if json {
        print_json(json!({ "file": file, "tls": tls, "sign": sign }));
    } else {
        print(&format!("file  {}\ntls   {tls}\nsign  {sign}\n", file.display()));
    }
}
