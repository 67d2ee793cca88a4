//! `keys node` and `keys delegate-tags`: the key files of a node of an overlay.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};
use wayleave_packet::icing::mint::{TAG_EPOCH, tag_epoch};
use wayleave_runtime::clock::{unix_now, utc};
use wayleave_runtime::identity::to_hex;

use crate::config::kinds::TextKind;
use crate::config::parse::TextValue;
use crate::config::router::FormatName;
use crate::config::router::icing::TagPrefix;
use crate::failure::{Failure, Outcome};
use crate::key_files::forwarding::ForwardingKeys;
use crate::key_files::node::{self, KeyKind, TagKeyFile};
use crate::output::{print, print_json};

#[derive(Args, Debug)]
pub struct NodeKeys {
    /// The file to create.
    pub file: PathBuf,
    /// What the key is for: each file has one use.
    #[arg(long, value_enum)]
    pub kind: KeyKind,
    /// For tags: take those of a router's forwarding keys, for its consent server.
    #[arg(long, value_name = "ROUTER.KEY")]
    pub of_router: Option<PathBuf>,
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct DelegateTags {
    /// The file of the node's tag keys.
    pub tags: PathBuf,
    /// The first bits of the tags, such as 40000000/2.
    #[arg(long)]
    pub prefix: String,
    /// A second (since 1970) of the epoch. Default: now. An epoch lasts 4096 seconds.
    #[arg(long, value_name = "SECONDS")]
    pub at: Option<u32>,
    /// The file for the delegate; whoever has it can consent under these tags until the epoch ends.
    #[arg(long, short)]
    pub out: PathBuf,
    #[arg(long)]
    pub json: bool,
}

pub fn create(command: &NodeKeys) -> Outcome {
    let NodeKeys { file, kind, of_router, json } = command;
    match (kind, of_router) {
        (KeyKind::Tags, Some(router)) => {
            TagKeyFile::of_forwarding(&ForwardingKeys::load(FormatName::Icing, router)?).save(file)?;
        }
        (KeyKind::Tags, None) => TagKeyFile::generate()?.save(file)?,
        (_, Some(_)) => return Err(Failure::usage("--of-router belongs to --kind tags").into()),
        (kind, None) => {
            node::create(*kind, file)?;
        }
    }
    show(*kind, file, *json)
}

/// Prints what is public of a key file.
pub fn show(kind: KeyKind, file: &Path, json: bool) -> Outcome {
    let public: Value = match kind {
        KeyKind::Realm | KeyKind::Identity | KeyKind::Writer | KeyKind::Holder => {
            let label = if kind == KeyKind::Identity { "node" } else { kind.name() };
            json!(format!("{label}:{}", node::identity_of(&node::load(kind, file)?)))
        }
        KeyKind::Noise => json!(format!("x25519:{}", to_hex(&node::noise_of(&node::load(kind, file)?).to_bytes()))),
        KeyKind::Ids | KeyKind::Accounts => {
            node::load(kind, file)?;
            Value::Null
        }
        KeyKind::Tags => {
            TagKeyFile::load(file)?;
            Value::Null
        }
    };
    if json {
        print_json(json!({ "file": file, "kind": kind.name(), "public": public }));
        return Ok(());
    }
    print(&format!("file    {}\nkind    {}\n", file.display(), kind.name()));
    if let Some(public) = public.as_str() {
        let into = TextKind::of(public).map_or("", TextKind::goes_into);
        print(&format!("public  {public}\ninto    {into}\n"));
    }
    Ok(())
}

pub fn delegate(command: &DelegateTags) -> Outcome {
    let TagPrefix(bits, depth) = TagPrefix::read(&command.prefix)
        .ok_or_else(|| Failure::usage(format!("`{}` is not {}", command.prefix, TagPrefix::EXPECTED)))?;
    let second = command.at.unwrap_or(unix_now().secs() as u32);
    let epoch = tag_epoch(second);
    let branch = node::branch(&TagKeyFile::load(&command.tags)?, epoch, bits, depth)
        .ok_or_else(|| Failure::usage(format!("`{}` has more bits than it says", command.prefix)))?;
    node::save_branch(&branch, &command.out)?;
    let until = ((u64::from(epoch) + 1) << TAG_EPOCH) - 1;
    if command.json {
        print_json(json!({ "file": command.out, "prefix": command.prefix, "until": until }));
    } else {
        let (out, prefix, until) = (command.out.display(), &command.prefix, utc(until));
        print(&format!("file    {out}\nprefix  {prefix}\nuntil   {until}\n"));
    }
    Ok(())
}
