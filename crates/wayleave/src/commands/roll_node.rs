//! `keys roll-node`: a node of an overlay has new keys, and what it was granted stays. The identity of before asks for it, and is removed.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use serde::Deserialize;
use serde_json::json;
use wayleave_control::frames::Body;
use wayleave_control::realm::{JoinError, NodeKeys, Server, Token};
use wayleave_crypto::dh::DhSecret;
use wayleave_crypto::secret::Seed;
use wayleave_crypto::sign::SigningKey;
use wayleave_runtime::clock::{unix_now, utc};
use wayleave_runtime::node_tls::NodeIdentity;

use super::join::{load_or_create, noise_of_identity};
use crate::ask::ask;
use crate::config::Source;
use crate::config::overlay::ServerEntry;
use crate::config::replace::{PRIVATE, keep_owner, open_own};
use crate::failure::{Failure, Outcome};
use crate::key_files::node::{self, KeyKind, fresh, node_text};
use crate::key_files::{membership, private};
use crate::output::{print, print_json};

/// How long the operator's side is waited for.
const TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Args, Debug)]
pub struct RollNode {
    /// The node's configuration, which names its key files and the realm's operator.
    #[arg(long, short)]
    pub config: PathBuf,
    #[arg(long)]
    pub json: bool,
}

/// What of a node's configuration is needed.
#[derive(Deserialize)]
struct NodeFile {
    overlay: Option<Section>,
    path: Option<Section>,
}

#[derive(Deserialize)]
struct Section {
    identity: PathBuf,
    membership: Option<PathBuf>,
    noise: Option<PathBuf>,
    ids: Option<PathBuf>,
    operator: Option<ServerEntry>,
}

/// A file beside another, until the new keys are in force.
fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(ending);
    path.with_file_name(name)
}

/// Puts a new key file in the place of the one before, if that has not happened yet.
fn put(path: &Path) -> Outcome {
    let next = beside(path, ".next");
    let file = match open_own(&next) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        opened => opened.map_err(|error| Failure::system(next.display(), &error))?,
    };
    keep_owner(&file, path, PRIVATE);
    fs::rename(&next, path).map_err(|error| Failure::system(path.display(), &error))?;
    private::sync_folder(path)
}

/// The one-time token for the new keys: that of a try before whose answer was lost, or a new one, which the old identity asks for.
fn token(file: &Path, identity: &Path, operator: &Server) -> Outcome<Token> {
    if file.exists() {
        let text = private::read(file)?;
        return Ok(Token::from_str(&text).map_err(|error| Failure::new(format!("{}: {error}", file.display())))?);
    }
    let own = NodeIdentity::from_seed(node::load(KeyKind::Identity, identity)?.expose())?;
    let secret = Seed::new(*fresh()?);
    let key = SigningKey::from_seed(&secret).verifying_key().to_bytes();
    let token = match ask(operator, &own, Body::Roll { key }, TIMEOUT)? {
        Body::Invited(invitation) => Token::of(invitation, secret).map_err(|error| Failure::new(error.to_string()))?,
        Body::Joined(Err(error)) => return Err(refused(operator, error).into()),
        _ => return Err(Failure::new(format!("{} answered something else", operator.address)).into()),
    };
    private::create(file, &token.expose())?;
    Ok(token)
}

fn refused(operator: &Server, error: JoinError) -> Failure {
    Failure::new(format!("{} gives this node no other keys: {error}", operator.address))
        .help("the keys in use are as before")
}

/// Whether nobody joins by this token, and another is asked for. The operator's side keeps one for an hour and while it runs: afterwards it counts
/// as withdrawn.
fn is_unused(error: JoinError) -> bool {
    matches!(error, JoinError::Taken | JoinError::Expired | JoinError::RecordsLost | JoinError::Withdrawn)
}

pub fn run(command: &RollNode) -> Outcome {
    let source = Source::read(&command.config)?;
    let file: NodeFile = source.parse()?;
    let section = file.overlay.or(file.path);
    let section = section.ok_or_else(|| Failure::usage("the configuration has no [overlay] and no [path]"))?;
    let (Some(operator), Some(membership_file)) = (&section.operator, &section.membership) else {
        let failure = Failure::usage("the configuration names no `operator` or no `membership`");
        return Err(failure.help("`wayleave join` writes both").into());
    };
    let (operator, membership_file) = (operator.server(), source.resolve(membership_file));
    let identity_file = source.resolve(&section.identity);
    let noise_file = section.noise.as_ref().map(|named| source.resolve(named));
    let ids_file = section.ids.as_ref().map(|named| source.resolve(named));
    let (roll, next) = (beside(&identity_file, ".roll"), beside(&identity_file, ".next"));
    let before = membership::load(&membership_file)?.object().identity;
    // The identity is put in place last: without the next one, a try before ended in between.
    let is_again = roll.exists();
    if !is_again || next.exists() {
        let identity = load_or_create(KeyKind::Identity, &next)?;
        // In a second try this one may be in its place already.
        let in_place = |path: &Path| if is_again { path.to_owned() } else { beside(path, ".next") };
        let key = |path: &PathBuf, kind| {
            let next = beside(path, ".next");
            load_or_create(kind, &if next.exists() { next } else { in_place(path) })
        };
        let noise = match &noise_file {
            Some(path) => key(path, KeyKind::Noise)?,
            None => noise_of_identity(&identity),
        };
        // What was claimed by the identity of before is nobody else's.
        ids_file.as_ref().map(|path| key(path, KeyKind::Ids)).transpose()?;
        let token = token(&roll, &identity_file, &operator)?;
        let keys = NodeKeys { identity: SigningKey::from_seed(&identity), noise: DhSecret::from_seed(&noise) };
        let request = token.join(&keys).map_err(|error| Failure::new(error.to_string()))?;
        let own = NodeIdentity::from_seed(identity.expose())?;
        let answer = match ask(&operator, &own, Body::Join(request), TIMEOUT)? {
            Body::Joined(Ok(answer)) => answer,
            Body::Joined(Err(error)) => {
                // Nobody has used the token: the next try asks for another. With any other reason it may have worked, and its answer was lost.
                if is_unused(error) {
                    fs::remove_file(&roll).map_err(|error| Failure::system(roll.display(), &error))?;
                }
                return Err(refused(&operator, error).into());
            }
            _ => return Err(Failure::new(format!("{} answered something else", operator.address)).into()),
        };
        let signed = token.accept(&keys, answer.octets(), unix_now()).map_err(|error| {
            Failure::new(format!("the membership that {} sent does not hold: {error}", operator.address))
        })?;
        membership::save(&signed, &membership_file)?;
        [noise_file, ids_file].iter().flatten().try_for_each(|path| put(path))?;
        put(&identity_file)?;
    }
    fs::remove_file(&roll).map_err(|error| Failure::system(roll.display(), &error))?;
    let membership = membership::load(&membership_file)?;
    let object = membership.object();
    if command.json {
        print_json(
            json!({ "before": node_text(&before), "identity": node_text(&object.identity), "until": object.not_after }),
        );
    } else {
        let (new, name) = (node_text(&object.identity), object.grants.names.first());
        let name = name.map_or("its name", |name| name.as_str());
        print(&format!(
            "identity  {new}, until {}\nbefore    {}, which is removed\nnext: restart the node's role; where others' configurations name it by its key (`[[consent.node]]`, `path_servers`, `consent`, `node` of neighbours), write the new one or, for neighbours, {name}\n",
            utc(object.not_after),
            node_text(&before),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_in_the_place_of_the_next_key_gives_no_file_away() {
        use std::os::unix::fs::{PermissionsExt as _, symlink};

        let folder = std::env::temp_dir().join(format!("wayleave-roll-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let (path, victim) = (folder.join("node.key"), folder.join("victim"));
        for (file, mode) in [(&path, 0o600), (&victim, 0o755)] {
            fs::write(file, "a").expect("written");
            fs::set_permissions(file, fs::Permissions::from_mode(mode)).expect("its own");
        }
        symlink(&victim, beside(&path, ".next")).expect("a link");
        assert!(put(&path).is_err());
        assert_eq!(fs::metadata(&victim).expect("there").permissions().mode() & 0o777, 0o755);
        fs::remove_file(beside(&path, ".next")).expect("removed");
        put(&path).expect("there is no next one");
        fs::remove_dir_all(folder).expect("removed");
    }

    #[test]
    fn another_token_is_asked_for_where_nobody_joins_by_the_last_one() {
        assert!([JoinError::Withdrawn, JoinError::Expired, JoinError::Taken].into_iter().all(is_unused));
        // It may have worked, and the answer was lost.
        assert!(![JoinError::Used, JoinError::Busy, JoinError::Revoked].into_iter().any(is_unused));
    }
}
