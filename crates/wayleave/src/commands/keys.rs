//! `keys`: creates key files and prints their public keys, never the private ones.

use std::path::Path;
use std::time::Duration;

use serde_json::json;
use wayleave_crypto::hash::sha256;
use wayleave_runtime::api_tls::KeyPin;
use wayleave_runtime::clock::unix_of_time;
use wayleave_runtime::identity::{Identity, to_hex};
use zeroize::Zeroizing;

use super::node_keys::{DelegateTags, NodeKeys};
use super::pki::{AdditionKeys, AnchorKeys, AttestKeys, ManifestKeys, ProfileKeys, RecordKeys};
use super::roll_node::{self, RollNode};
use super::{key_show, node_keys, pki};
use crate::config::PublicKey;
use crate::config::kinds::{TOKEN_PREFIX, TextKind};
use crate::config::parse::TokenHash;
use crate::config::router::FormatName;
use crate::failure::{Failure, Outcome};
use crate::key_files::forwarding;
use crate::key_files::node::fresh;
use crate::key_files::private;
use crate::key_files::signing_key;
use crate::output::{cell_of, print, print_json};
use clap::{Args, Subcommand};
use std::path::PathBuf;
use wayleave_core::Asn;

#[derive(Subcommand, Debug)]
pub enum Keys {
    /// Create a key file: a TLS key with its certificate, and a signing key. Prints the public keys.
    New {
        /// The file to create.
        file: PathBuf,
        /// The name in the certificate. Default: the file's.
        #[arg(long)]
        name: Option<String>,
        /// Validity of the certificate.
        #[arg(long, default_value_t = 3650, value_parser = clap::value_parser!(u32).range(1..))]
        days: u32,
        #[arg(long)]
        json: bool,
    },
    /// Say what any file or line of text that Wayleave makes is, and print its public parts with the settings that they go into.
    Show {
        /// The file, - for a line on standard input, or a public text itself (a key, pin or claim).
        file: PathBuf,
        #[arg(long)]
        json: bool,
    },
    /// Create an AS's private attestation keys. Prints the public keys.
    Attest(AttestKeys),
    /// Create a file of forwarding keys, or add the next key to one.
    Forwarding(ForwardingKeys),
    /// Create a key file of a node of an overlay, or of a realm. Prints what is public of it.
    Node(NodeKeys),
    /// Give a node of an overlay new keys; its names, prefixes and roles stay, and the keys of before are removed.
    RollNode(RollNode),
    /// Create a token for the API of a key server, in a file. Prints its hash, which the configuration names.
    Token {
        /// The file to create.
        file: PathBuf,
        #[arg(long)]
        json: bool,
    },
    /// Delegate a prefix of a node's tags to another consent server, for one epoch.
    DelegateTags(DelegateTags),
    /// Create a trust anchor: a private file, and a public one with the ending `.pub`; an Ed25519 and an SLH-DSA key.
    Anchor(AnchorKeys),
    /// Sign an AS's profile, which lists its key for each role.
    Profile(ProfileKeys),
    /// Sign an AS's record: prefixes that it may originate, and since when it attests.
    Record(RecordKeys),
    /// Create an AS's identity keys (Ed25519 and SLH-DSA), which sign additions to its profile.
    Identity {
        /// The file to create.
        file: PathBuf,
        /// The AS whose identity it is.
        #[arg(long)]
        asn: Asn,
        /// An Ed25519 key alone: what it signs does not count where post-quantum suites are required.
        #[arg(long)]
        classical: bool,
        #[arg(long)]
        json: bool,
    },
    /// Sign the list of a publisher's objects again before the next is due (`record`, `profile` and `addition` do so themselves).
    Manifest(ManifestKeys),
    /// Add attestation keys to an AS's profile with its identity key; the anchor is not needed.
    Addition(AdditionKeys),
    /// List the router keys (RFC 8209) in a folder of certificates and revocation lists.
    Routers {
        /// A trust anchor's certificate (may be repeated).
        #[arg(long, required = true)]
        anchor: Vec<PathBuf>,
        /// The folder of certificates (.cer) and revocation lists (.crl).
        #[arg(long)]
        certificates: PathBuf,
        #[arg(long)]
        json: bool,
    },
    /// List the profiles and records in a folder that an anchor has signed.
    Objects {
        /// The anchor's public file.
        #[arg(long)]
        anchor: PathBuf,
        /// The folder of signed objects.
        #[arg(long)]
        objects: PathBuf,
        #[arg(long)]
        json: bool,
    },
}

#[derive(Args, Debug)]
pub struct ForwardingKeys {
    /// The file to create, or to add a key to.
    pub file: PathBuf,
    /// The packet format that the keys are for.
    #[arg(long, value_enum)]
    pub format: FormatName,
    /// Add a key that is valid from this time on (2027-01-15T08:00:00Z, a day, or seconds since 1970). Routers must have it before then.
    #[arg(long, value_name = "TIME", value_parser = time_of)]
    pub next: Option<u64>,
    /// Take the key that follows from this master key of a SCION AS (`keys/master0.key` of the open-source router and control service)
    /// in the place of a random one.
    #[arg(long, value_name = "MASTER_KEY")]
    pub import: Option<PathBuf>,
    #[arg(long)]
    pub json: bool,
}

pub fn run(command: &Keys) -> Outcome {
    match command {
        Keys::New { file, name, days, json } => {
            let stem = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let validity = Duration::from_secs(u64::from(*days) * 86_400);
            let identity = Identity::generate(name.as_deref().unwrap_or(&stem), validity)?;
            identity.save(file)?;
            show(file, &identity, *json);
        }
        Keys::Show { file, json } => key_show::run(file, *json)?,
        Keys::Attest(command) => pki::attest(command)?,
        Keys::Forwarding(command) => forwarding(command)?,
        Keys::Node(command) => node_keys::create(command)?,
        Keys::RollNode(command) => roll_node::run(command)?,
        Keys::Token { file, json } => token(file, *json)?,
        Keys::DelegateTags(command) => node_keys::delegate(command)?,
        Keys::Anchor(command) => pki::anchor(command)?,
        Keys::Profile(command) => pki::profile(command)?,
        Keys::Record(command) => pki::record(command)?,
        Keys::Identity { file, asn, classical, json } => pki::identity(file, *asn, *classical, *json)?,
        Keys::Manifest(command) => pki::manifest(command)?,
        Keys::Addition(command) => pki::addition(command)?,
        Keys::Routers { anchor, certificates, json } => pki::routers(anchor, certificates, *json)?,
        Keys::Objects { anchor, objects, json } => pki::list(anchor, objects, *json)?,
    }
    Ok(())
}

/// Makes a token of the API.
fn token(file: &Path, json: bool) -> Outcome {
    let text = Zeroizing::new(format!("{TOKEN_PREFIX}{}", *Zeroizing::new(to_hex(fresh::<32>()?.as_ref()))));
    private::create(file, &Zeroizing::new(format!("{}\n", *text)))?;
    let hash = TokenHash(sha256(text.as_bytes())).to_string();
    if json {
        print_json(json!({ "file": file, "hash": hash }));
    } else {
        print(&format!("file  {}\nhash  {hash}\n", file.display()));
    }
    Ok(())
}

/// A time, a day, or Unix seconds.
fn time_of(text: &str) -> Result<u64, String> {
    unix_of_time(text).ok_or_else(|| "expected a time, such as 2027-01-15T08:00:00Z, a day, or Unix seconds".to_owned())
}

/// Creates forwarding keys, or adds one.
fn forwarding(command: &ForwardingKeys) -> Outcome {
    let ForwardingKeys { file, format, next, import, json } = command;
    let format = *format;
    if import.is_some() && format != FormatName::Scion {
        return Err(Failure::usage("`--import` takes a SCION AS's master key, expected `--format scion`").into());
    }
    let imported = import.as_deref().map(forwarding::ForwardingKeys::import).transpose()?;
    let keys = match next {
        None => {
            let keys = imported.map_or_else(|| forwarding::ForwardingKeys::generate(format), Ok)?;
            keys.save(file)?;
            keys
        }
        Some(from) => {
            let mut keys = forwarding::ForwardingKeys::load_own(format, file)?;
            match &imported {
                Some(imported) => keys.add_imported(*from, imported)?,
                None => keys.add(*from)?,
            }
            keys.replace(file)?;
            keys
        }
    };
    show_forwarding(file, &keys, *json);
    Ok(())
}

/// Prints from when on forwarding keys hold, and the names of ICING nodes.
pub fn show_forwarding(file: &Path, keys: &forwarding::ForwardingKeys, json: bool) {
    let format = keys.format();
    let times: Vec<u64> = keys.times().collect();
    let nodes: Vec<String> = icing_nodes(keys);
    if json {
        print_json(json!({ "file": file, "format": format.name(), "from": times, "nodes": nodes }));
    } else {
        print(&format!(
            "file    {}\nformat  {}\nfrom    {}\n",
            file.display(),
            format.name(),
            cell_of("from", &json!(times))
        ));
        nodes.iter().for_each(|node| print(&format!("node    {node}\n")));
    }
}

/// The node IDs of ICING keys, in the order of the keys; neighbours and senders use them as the node's name.
fn icing_nodes(keys: &forwarding::ForwardingKeys) -> Vec<String> {
    if keys.format() != FormatName::Icing {
        return Vec::new();
    }
    let hex = |node: [u8; 32]| node.iter().map(|octet| format!("{octet:02x}")).collect();
    keys.live(u64::MAX, 0).iter().map(|(_, key)| hex(forwarding::icing_secret(key).id().to_bytes())).collect()
}

/// Prints the public parts of a key file, each with the settings that it goes into. JSON has the certificate's fingerprint as `tls`, too,
/// the name that claims and member sets have for it.
pub fn show(file: &Path, identity: &Identity, json: bool) {
    let pin = identity.fingerprint().to_string();
    let sign = PublicKey(signing_key(identity).verifying_key()).to_string();
    // What clients of an API pin: of the key alone, so that a renewed certificate keeps it.
    let api_pin = KeyPin::of(identity.certificate()).map(|pin| pin.to_string());
    if json {
        print_json(json!({ "file": file, "pin": pin, "tls": pin, "sign": sign, "api_pin": api_pin }));
        return;
    }
    print(&format!("file     {}\n", file.display()));
    for (name, text) in [("pin", pin), ("sign", sign), ("api_pin", api_pin.unwrap_or_default())] {
        let into = TextKind::of(&text).map_or("", TextKind::goes_into);
        print(&format!("{name:<7}  {text}\n         into {into}\n"));
    }
}
