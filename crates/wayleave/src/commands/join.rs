//! `join`: a node enters a realm by a token. It makes its keys here, gets its membership, and has a configuration.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use wayleave_control::frames::Body;
use wayleave_control::realm::{Invitation, JoinError, NodeKeys, Roles, Server, Token, TokenError};
use wayleave_crypto::dh::DhSecret;
use wayleave_crypto::kdf;
use wayleave_crypto::secret::Seed;
use wayleave_crypto::sign::SigningKey;
use wayleave_runtime::clock::{unix_now, utc};
use wayleave_runtime::node_tls::NodeIdentity;

use super::realm::write_new;
use crate::ask::ask;
use crate::config::consent::{self, ConsentValues, POLICY_TEMPLATE};
use crate::config::overlay::{self, OverlayValues};
use crate::config::parse::{self, NodeKey, endpoint};
use crate::config::path::{self, PathValues};
use crate::config::router::{self, FormatName};
use crate::config::{HostPort, Source, check};
use crate::failure::{Failure, Failures, Outcome};
use crate::key_files::forwarding::ForwardingKeys;
use crate::key_files::membership;
use crate::key_files::node::{self, KeyKind, TagKeyFile, node_text};
use crate::output::{print, print_json};
use crate::roles::records;

/// How long the operator's side is waited for.
const TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Args, Debug)]
pub struct Join {
    /// The line that `wayleave realm invite` printed; `-` reads it from standard input.
    pub token: String,
    /// The folder of the node's keys and configuration.
    #[arg(long, short)]
    pub dir: PathBuf,
    /// Where a server listens, or a router's links begin.
    #[arg(long, value_parser = endpoint)]
    pub listen: Option<SocketAddr>,
    /// The node's status pages.
    #[arg(long, value_parser = endpoint)]
    pub status: Option<SocketAddr>,
    /// Who consents for the node: its key (`node:ed25519:...`), `@` and HOST:PORT.
    #[arg(long, value_name = "KEY@ADDRESS")]
    pub consent: Option<String>,
    /// The realm's key, if you know it: a token of another realm is refused.
    #[arg(long)]
    pub realm: Option<parse::RealmKey>,
    #[arg(long)]
    pub json: bool,
}

/// What a configuration of a node that joined is made of.
pub struct Joined {
    pub name: String,
    pub realm: String,
    /// Who answered.
    pub operator: (String, String),
    pub path_servers: Vec<(String, String)>,
    pub consent: Option<(String, String)>,
    pub listen: Option<SocketAddr>,
    pub status: Option<SocketAddr>,
}

pub fn run(command: &Join) -> Outcome {
    let line = match command.token.as_str() {
        "-" => read_line()?,
        token => token.to_owned(),
    };
    let token = Token::from_str(&line).map_err(|error| not_token(&command.token, error))?;
    let invitation = token.invitation().clone();
    if let Some(realm) = &command.realm
        && realm.0.to_bytes() != invitation.realm.0
    {
        return Err(Failure::new(format!("the token is of the realm realm:{}, not of {realm}", invitation.realm))
            .help("ask the operator of the realm that you mean")
            .into());
    }
    let roles = invitation.grants.roles;
    let consent = command.consent.as_deref().map(read_consent).transpose()?;
    let operator = invitation.servers.first().cloned();
    let operator = operator.ok_or_else(|| Failure::new("the token names no server"))?;

    let dir = &command.dir;
    fs::create_dir_all(dir).map_err(|error| Failure::system(dir.display(), &error))?;
    let identity_file = dir.join("identity.key");
    // Keys that are there already are this node's: its earlier answer may have been lost.
    let identity = load_or_create(KeyKind::Identity, &identity_file)?;
    let noise = match roles.has(Roles::GATEWAY) {
        true => load_or_create(KeyKind::Noise, &dir.join("noise.key"))?,
        // A node that seals nothing has no key but its identity, from which this one follows, so that it may ask again with the same.
        false => noise_of_identity(&identity),
    };
    let keys = NodeKeys { identity: SigningKey::from_seed(&identity), noise: DhSecret::from_seed(&noise) };
    let own = NodeIdentity::from_seed(identity.expose())?;
    let refused = |error: JoinError| {
        let failure = Failure::new(format!("{} did not admit this node: {error}", operator.address));
        match error {
            JoinError::Revoked | JoinError::NoiseTaken => failure.help(format!(
                "its keys lie in {}: join with a new token into an empty folder (`--dir`), which makes new ones",
                dir.display()
            )),
            _ => failure,
        }
    };
    let request = token.join(&keys).map_err(|error| Failure::new(error.to_string()))?;
    let answer = match ask(&operator, &own, Body::Join(request), TIMEOUT)? {
        Body::Joined(answer) => answer.map_err(refused)?,
        _ => return Err(Failure::new(format!("{} answered something else", operator.address)).into()),
    };
    let signed = token.accept(&keys, answer.octets(), unix_now()).map_err(|error| {
        Failure::new(format!("the membership that {} sent does not hold: {error}", operator.address))
            .help("nothing was written but the keys; ask the realm's operator")
    })?;
    membership::save(&signed, &dir.join("membership"))?;

    let joined = Joined {
        name: invitation.grants.names.first().map(ToString::to_string).unwrap_or_default(),
        realm: format!("realm:{}", invitation.realm),
        operator: (node_text(&operator.identity), operator.address.clone()),
        path_servers: servers(&invitation),
        consent,
        listen: command.listen,
        status: command.status,
    };
    let mut files = Vec::new();
    for (role, write) in WRITERS {
        if roles.has(role) {
            files.push(write(dir, &joined)?);
        }
    }
    for file in &files {
        let checked = check(&Source::read(file)?);
        if !checked.errors.is_empty() {
            return Err(Failures(checked.errors));
        }
    }
    let object = signed.object();
    if command.json {
        print_json(json!({
            "name": joined.name,
            "identity": node_text(&object.identity),
            "realm": joined.realm,
            "until": object.not_after,
            "configurations": files,
        }));
        return Ok(());
    }
    let (names, until) = (&joined.name, utc(object.not_after));
    print(&format!("joined as {names}, until {until}\nidentity  {}\n", node_text(&object.identity)));
    for file in &files {
        let (role, file) = (file.file_stem().unwrap_or_default().to_string_lossy(), file.display());
        if role == "gateway" || role == "router" {
            let tags = dir.join("tags.key");
            print(&format!(
                "first: wayleave link add NODE RELATIONSHIP --config {file}, for each neighbour, here and there; {} to the consent server's \
                 operator, by a way that you trust\n",
                tags.display()
            ));
        }
        print(&format!("next: wayleave run {role} --config {file}\n"));
    }
    if roles.has(Roles::GATEWAY) {
        print(
            "then: wayleave show routes has what the realm offers, what of it this machine's own routes cover, and the line that accepts the rest\n",
        );
    }
    Ok(())
}

/// Why a text is no token; most who give the name of a file mean what is in it.
fn not_token(text: &str, error: TokenError) -> Failure {
    if text != "-" && Path::new(text).is_file() {
        let help = format!("`wayleave join - --dir DIR <{text}` reads the token from it");
        return Failure::usage(format!("`{text}` is a file, and no token")).help(help);
    }
    Failure::usage(error.to_string())
}

type Writer = fn(&Path, &Joined) -> Outcome<PathBuf>;

/// What is written for each role that a node may have.
const WRITERS: [(Roles, Writer); 4] = [
    (Roles::PATH_SERVER, path_server),
    (Roles::CONSENT_SERVER, consent_server),
    (Roles::FORWARDER, forwarder),
    (Roles::GATEWAY, gateway),
];

fn gateway(dir: &Path, joined: &Joined) -> Outcome<PathBuf> {
    new_state(&dir.join("overlay.redb"))?;
    load_or_create(KeyKind::Ids, &dir.join("ids.key"))?;
    let tags = dir.join("tags.key");
    if !tags.exists() {
        TagKeyFile::generate()?.save(&tags)?;
    }
    let values = OverlayValues {
        realm: joined.realm.clone(),
        path_servers: joined.path_servers.clone(),
        operator: Some(joined.operator.clone()),
        has_noise: true,
        has_ids: true,
        has_tags: true,
        consent: joined.consent.clone(),
        offers: Some(("deliver", "80000000")),
        local: joined.listen.map(|listen| listen.to_string()),
        ..OverlayValues::example("overlay.redb")
    };
    let status = joined.status.map_or("127.0.0.1:8492".to_owned(), |status| status.to_string());
    configuration(
        dir.join("gateway.toml"),
        &crate::config::gateway::template_with(&overlay::template_with(&values), &status),
    )
}

fn read_line() -> Outcome<String> {
    let mut line = String::new();
    let read = std::io::stdin().read_line(&mut line);
    read.map_err(|error| Failure::system("standard input", &error))?;
    Ok(line)
}

/// The key in the place of a Noise key of a node that has none.
pub fn noise_of_identity(identity: &Seed) -> Seed {
    kdf::derive("wayleave/node/join-noise/v1", identity.expose(), b"")
}

pub fn load_or_create(kind: KeyKind, path: &Path) -> Outcome<Seed> {
    if path.exists() { Ok(node::load(kind, path)?) } else { node::create(kind, path) }
}

fn read_consent(text: &str) -> Outcome<(String, String)> {
    let Some((key, address)) = text.split_once('@') else {
        return Err(Failure::usage(format!("`{text}` is not a server: node:ed25519:KEY@HOST:PORT")).into());
    };
    let wrong = |error: String| Failure::usage(format!("--consent: {error}"));
    let (key, address): (NodeKey, HostPort) = (key.parse().map_err(wrong)?, address.parse().map_err(wrong)?);
    Ok((key.to_string(), address.0))
}

fn servers(invitation: &Invitation) -> Vec<(String, String)> {
    let text = |server: &Server| (node_text(&server.identity), server.address.clone());
    invitation.servers.iter().skip(1).map(text).collect()
}

/// Writes a configuration, unless there is one already: what an operator changed stays.
fn configuration(path: PathBuf, text: &str) -> Outcome<PathBuf> {
    if !path.exists() {
        write_new(&path, text, 0o644)?;
    }
    Ok(path)
}

/// A state that never was: what is not in it was not lost.
fn new_state(path: &Path) -> Outcome {
    if !path.exists() {
        records::create(path)?;
    }
    Ok(())
}

fn path_server(dir: &Path, joined: &Joined) -> Outcome<PathBuf> {
    new_state(&dir.join("path.redb"))?;
    let values = PathValues {
        realm: joined.realm.clone(),
        listen: joined.listen.map_or("127.0.0.1:7100".to_owned(), |listen| listen.to_string()),
        status: joined.status.map_or("127.0.0.1:8487".to_owned(), |status| status.to_string()),
        has_membership: true,
        operator: Some(joined.operator.clone()),
        peers: joined.path_servers.clone(),
    };
    configuration(dir.join("path.toml"), &path::template_with(&values))
}

fn consent_server(dir: &Path, joined: &Joined) -> Outcome<PathBuf> {
    new_state(&dir.join("consent.redb"))?;
    let policy = dir.join("policy.toml");
    if !policy.exists() {
        write_new(&policy, POLICY_TEMPLATE, 0o644)?;
    }
    let values = OverlayValues {
        realm: joined.realm.clone(),
        path_servers: joined.path_servers.clone(),
        operator: Some(joined.operator.clone()),
        ..OverlayValues::example("consent.redb")
    };
    let values = ConsentValues {
        overlay: overlay::template_with(&values),
        listen: joined.listen.map_or("127.0.0.1:7200".to_owned(), |listen| listen.to_string()),
        status: joined.status.map_or("127.0.0.1:8491".to_owned(), |status| status.to_string()),
    };
    configuration(dir.join("consent.toml"), &consent::template_with(&values))
}

fn forwarder(dir: &Path, joined: &Joined) -> Outcome<PathBuf> {
    new_state(&dir.join("overlay.redb"))?;
    load_or_create(KeyKind::Ids, &dir.join("ids.key"))?;
    let (router_keys, tags) = (dir.join("router.key"), dir.join("tags.key"));
    if !router_keys.exists() {
        ForwardingKeys::generate(FormatName::Icing)?.save(&router_keys)?;
    }
    if !tags.exists() {
        // For the consent server: nothing but consents follows from them.
        TagKeyFile::of_forwarding(&ForwardingKeys::load(FormatName::Icing, &router_keys)?).save(&tags)?;
    }
    let values = OverlayValues {
        realm: joined.realm.clone(),
        path_servers: joined.path_servers.clone(),
        operator: Some(joined.operator.clone()),
        has_ids: true,
        consent: joined.consent.clone(),
        offers: Some(("transit", "40000000")),
        local: joined.listen.map(|listen| listen.to_string()),
        ..OverlayValues::example("overlay.redb")
    };
    let status = joined.status.map_or("127.0.0.1:8486".to_owned(), |status| status.to_string());
    let text = router::overlay_template(&overlay::template_with(&values), &status);
    configuration(dir.join("router.toml"), &text)
}
