//! `[data]`: where a member's proxy reads the data of its exchange.

use std::fs::File;
use std::io::Read as _;
use std::path::PathBuf;

use serde::Deserialize;
use toml::Spanned;
use wayleave_route_server::data::{DataObject, MAX_ENCODED};

use super::rs::FileFault;
use super::{Fault, Source};

/// `[data]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataSection {
    /// The file that both operators' machines signed; it is read again when it changes.
    pub file: Spanned<PathBuf>,
}

impl DataSection {
    pub(super) fn file_faults(&self, source: &Source) -> Option<FileFault> {
        let path = source.resolve(self.file.get_ref());
        let fault = |what: String| Fault::at(self.file.span(), format!("{}: {what}", path.display()));
        let length = match std::fs::metadata(&path) {
            Ok(found) if !found.is_file() => {
                return Some(FileFault::Unusable(fault("it is no regular file".to_owned())));
            }
            Ok(found) => found.len(),
            Err(error) => {
                let fault = fault(error.to_string()).help("the exchange's operators say where to get it");
                return Some(FileFault::Missing(fault));
            }
        };
        if length > MAX_ENCODED as u64 {
            return Some(FileFault::Unusable(fault(format!("longer than {} MiB", MAX_ENCODED >> 20))));
        }
        let mut octets = Vec::new();
        let file = File::open(&path).map(|file| file.take(MAX_ENCODED as u64 + 1));
        let read = file.and_then(|mut file| file.read_to_end(&mut octets)).map_err(|error| error.to_string());
        let read = read.and_then(|_| DataObject::decode(&octets).map_err(|error| error.to_string()));
        let help = "`wayleave members data show` prints what such a file has";
        read.err().map(|what| FileFault::Unusable(fault(what).help(help)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_data_is_a_regular_one_with_data() {
        let file = std::env::temp_dir().join(format!("wayleave-no-data-{}", std::process::id()));
        std::fs::write(&file, b"no data").expect("written");
        let source = Source::of_text("/member.toml", "");
        for (at, what) in [("/dev/zero", "it is no regular file"), (file.to_str().expect("a name"), "no-data")] {
            let section: DataSection = toml::from_str(&format!("file = \"{at}\"")).expect("a section");
            let fault = section.file_faults(&source).map(FileFault::into_fault);
            assert!(fault.is_some_and(|fault| fault.message.contains(what)), "{at}");
        }
        std::fs::remove_file(&file).expect("removed");
    }
}
