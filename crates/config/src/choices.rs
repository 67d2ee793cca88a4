//! The file of what a user decides while a gateway runs: `wayleave path pin` and `path avoid` write it, the gateway looks at it.
//!
//! A file and not a page of the gateway: whoever may write it is whom the system lets, and no page that a browser can reach changes
//! what is forwarded.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use serde::Deserialize;

use super::overlay::NodeRef;
use super::parse::{Text, TextValue as _};
use super::replace::replace;
use crate::failure::{Failure, Outcome};

/// Octets of the file, nodes that are avoided, pins, and nodes of a pin, at most.
const MAX_OCTETS: u64 = 64 << 10;
pub const MAX_AVOIDED: usize = 64;
pub const MAX_PINS: usize = 256;
const MAX_OVER: usize = 14;

/// The file.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChoicesFile {
    /// No path over one of these.
    #[serde(default)]
    pub avoid: Vec<Text<NodeRef>>,
    #[serde(default)]
    pub pin: Vec<PinSection>,
}

/// `[[pin]]`: to this node by this policy only over exactly these nodes, in this order.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PinSection {
    pub policy: String,
    pub node: Text<NodeRef>,
    pub over: Vec<Text<NodeRef>>,
}

impl ChoicesFile {
    /// Reads the file; nothing is decided if there is none.
    pub fn load(path: &Path) -> Outcome<Self> {
        let failed = |error: std::io::Error| Failure::system(path.display(), &error);
        match fs::metadata(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(failed(error).into()),
            Ok(data) if data.len() > MAX_OCTETS => {
                return Err(Failure::new(format!("{}: longer than 64 KiB", path.display())).into());
            }
            Ok(_) => {}
        }
        let text = fs::read_to_string(path).map_err(failed)?;
        let wrong = |why: String| {
            Failure::new(format!("{}: {why}", path.display()))
                .help("`wayleave path pin` and `path avoid` write this file; remove it to decide nothing")
        };
        let file: Self = toml::from_str(&text).map_err(|error| wrong(error.message().to_owned()))?;
        match file.is_within_limits() {
            true => Ok(file),
            false => Err(wrong("more nodes or pins than a gateway takes".to_owned()).into()),
        }
    }

    pub fn is_within_limits(&self) -> bool {
        self.avoid.len() <= MAX_AVOIDED
            && self.pin.len() <= MAX_PINS
            && self.pin.iter().all(|pin| pin.over.len() <= MAX_OVER)
    }

    /// Writes the file in one step; it is on disk when this returns.
    pub fn save(&self, path: &Path) -> Outcome {
        replace(path, &self.text())
    }

    fn text(&self) -> String {
        let list =
            |nodes: &[Text<NodeRef>]| nodes.iter().map(|node| format!("\"{}\"", node.0)).collect::<Vec<_>>().join(", ");
        let mut text = format!(
            "# What `wayleave path pin` and `path avoid` decided; `path unpin` and `path allow` undo it.\navoid = [{}]\n",
            list(&self.avoid)
        );
        for PinSection { policy, node, over } in &self.pin {
            // Policies' names are labels, and nodes' are labels or keys: nothing is to be escaped.
            text += &format!("\n[[pin]]\npolicy = \"{policy}\"\nnode = \"{}\"\nover = [{}]\n", node.0, list(over));
        }
        text
    }
}

/// A node as a command names it.
pub fn node(text: &str) -> Outcome<Text<NodeRef>> {
    let read = NodeRef::read(text).map(Text);
    Ok(read.ok_or_else(|| Failure::usage(format!("`{text}` is not {}", NodeRef::EXPECTED)))?)
}

#[cfg(test)]
mod tests {
    //! ICC-11, decided: what was written is read again, and a missing file decides nothing.

    use super::*;

    #[test]
    fn what_was_written_is_read_again_and_a_missing_file_decides_nothing() {
        let path = std::env::temp_dir().join(format!("wayleave-choices-{}.toml", std::process::id()));
        assert_eq!(ChoicesFile::load(&path).unwrap(), ChoicesFile::default());
        let key = format!("ed25519:{}", "3b6a27bcceb6a42d62a3a8d02a6f0d73653215771de243a63ac048a18b59da29");
        let file = ChoicesFile {
            avoid: vec![node("e").unwrap(), node(&key).unwrap()],
            pin: vec![PinSection {
                policy: "clean".to_owned(),
                node: node("b").unwrap(),
                over: vec![node("w1").unwrap(), node(&key).unwrap()],
            }],
        };
        file.save(&path).unwrap();
        assert_eq!(ChoicesFile::load(&path).unwrap(), file);
        for wrong in ["avoid = 1", "[[pin]]\npolicy = \"x\"\n", "other = 1", "avoid = [\"a b\"]"] {
            fs::write(&path, wrong).unwrap();
            assert!(ChoicesFile::load(&path).is_err(), "{wrong}");
        }
        let many = ChoicesFile { avoid: vec![node("e").unwrap(); MAX_AVOIDED + 1], ..ChoicesFile::default() };
        many.save(&path).unwrap();
        assert!(ChoicesFile::load(&path).is_err(), "too many");
        fs::remove_file(path).unwrap();
    }
}
