//! `cap accept`: whoever is invited redeems the invitation, with a key made here.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};
use wayleave_control::capability::{Credential, InvitationLine};
use wayleave_crypto::sign::SigningKey;
use wayleave_runtime::api_tls::KeyPin;
use wayleave_runtime::clock::{unix_now, utc};
use wayleave_runtime::identity::to_hex;
use zeroize::Zeroizing;

use super::cap::read_text;
use crate::api_client::ApiTarget;
use crate::failure::{Failure, Outcome};
use crate::key_files::node::{self, KeyKind};
use crate::key_files::private;
use crate::output::{print, print_json};

#[derive(Args, Debug)]
pub struct Accept {
    /// The invitation. Other users of this machine see arguments: --line is for them not to.
    #[arg(required_unless_present = "line", conflicts_with = "line")]
    pub invitation: Option<String>,
    /// The file with the invitation; - is the standard input.
    #[arg(long)]
    pub line: Option<PathBuf>,
    /// A new file for the capability, readable by its owner alone; the second and further ones get .2, .3 and so on behind the
    /// name. Default: they are printed.
    #[arg(long, short)]
    pub out: Option<PathBuf>,
    /// The key that is made for this; with it the command can be repeated if the answer was lost. Default: invitation-ID.key beside
    /// --out, or here.
    #[arg(long)]
    pub key: Option<PathBuf>,
    #[arg(long)]
    pub json: bool,
}

/// Redeems an invitation.
pub fn accept(command: &Accept) -> Outcome {
    let line = read(command)?;
    let out = command.out.as_deref();
    if let Some(taken) = out.filter(|out| out.exists()) {
        return Err(Failure::new(format!("{} exists already", taken.display()))
            .help("choose another file; the invitation was not used")
            .into());
    }
    let key_file = command
        .key
        .clone()
        .unwrap_or_else(|| out.unwrap_or(Path::new("")).with_file_name(format!("invitation-{}.key", line.id)));
    // On the disk before anything is sent: with another key nobody could repeat what the server has done.
    let seed = match key_file.exists() {
        true => node::load(KeyKind::Holder, &key_file)?,
        false => {
            let seed = node::create(KeyKind::Holder, &key_file)?;
            private::sync_folder(&key_file)?;
            seed
        }
    };
    let request = line.redeem(&SigningKey::from_seed(&seed), unix_now());
    drop(seed);
    let target = ApiTarget { url: line.url.clone(), pin: KeyPin(line.pin), token: None, reason: None };
    let body = json!({
        "invitation": request.id.to_string(), "holder": to_hex(&request.holder), "time": request.time,
        "proof": to_hex(&request.proof), "possession": to_hex(&request.possession),
    });
    let answer = target.json("POST", "/v1/redemptions", Some(&body))?;
    let capabilities = capabilities(&answer).ok_or_else(|| {
        Failure::new(format!("{} answers with something else than capabilities", line.url)).help("tell the provider")
    })?;
    let mut files = Vec::new();
    if let Some(out) = out {
        for (at, (credential, _)) in capabilities.iter().enumerate() {
            let file = numbered(out, at);
            private::create(&file, &Zeroizing::new(format!("{}\n", *Zeroizing::new(credential.expose()))))?;
            private::sync_folder(&file)?;
            files.push(file);
        }
    }
    show(command, &answer, &capabilities, &files);
    Ok(())
}

fn read(command: &Accept) -> Result<InvitationLine, Failure> {
    let (text, name) = match (&command.line, &command.invitation) {
        (Some(path), _) => (read_text(path)?, path.display().to_string()),
        (None, text) => (Zeroizing::new(text.clone().unwrap_or_default()), "the invitation".to_owned()),
    };
    text.trim().parse().map_err(|error| {
        Failure::new(format!("{name}: {error}")).help("`wayleave cap invite` prints such a line, for the provider")
    })
}

/// The capabilities of an answer, each with the second until which it is granted.
fn capabilities(answer: &Value) -> Option<Vec<(Credential, u64)>> {
    let all = answer["capabilities"].as_array()?.iter();
    let all = all.map(|given| Some((given["capability"].as_str()?.parse().ok()?, given["until"].as_u64()?)));
    all.collect::<Option<Vec<_>>>().filter(|all| !all.is_empty())
}

/// The file of the capability with this index.
fn numbered(out: &Path, at: usize) -> PathBuf {
    if at == 0 {
        return out.to_owned();
    }
    let mut name = out.as_os_str().to_owned();
    name.push(format!(".{}", at + 1));
    name.into()
}

fn show(command: &Accept, answer: &Value, capabilities: &[(Credential, u64)], files: &[PathBuf]) {
    let rows: Vec<Value> = capabilities
        .iter()
        .enumerate()
        .map(|(at, (credential, until))| {
            let line = files.is_empty().then(|| credential.expose());
            json!({
                "terms": credential.terms.to_string(), "until": utc(*until), "file": files.get(at), "capability": line,
            })
        })
        .collect();
    if command.json {
        print_json(json!({ "capabilities": rows, "repeated": answer["repeated"] }));
        return;
    }
    for (at, (credential, until)) in capabilities.iter().enumerate() {
        match files.get(at) {
            None => print(&format!("{}\n", *Zeroizing::new(credential.expose()))),
            Some(file) => print(&format!("{}: {}, until {}\n", file.display(), credential.terms, utc(*until))),
        }
    }
}
