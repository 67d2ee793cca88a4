//! A provider's key server in a folder of its own, for tests.

use std::fs;
use std::path::PathBuf;

use wayleave_control::capability::KeyServer;
use wayleave_core::UnixTime;

use crate::Source;
use crate::key::{EXAMPLE, KeyFile, NewKeyServer, template};
use crate::key_files::database::DatabaseRecords;
use crate::key_files::node::{self, KeyKind};

pub const NOW: UnixTime = UnixTime(1_800_000_000_000_000);

/// The folder is gone when the test ends well.
pub struct Provider {
    pub folder: PathBuf,
}

impl Drop for Provider {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}

impl Provider {
    /// A writer without a change. Each test has a name of its own.
    pub fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("wayleave-key-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).expect("a folder");
        node::create(KeyKind::Accounts, &folder.join("accounts.key")).expect("created");
        let writer = node::identity_of(&node::create(KeyKind::Writer, &folder.join("writer.key")).expect("created"));
        let text = template(&NewKeyServer { writer: &writer.to_string(), ..EXAMPLE });
        fs::write(folder.join("key.toml"), text).expect("written");
        let new = Self { folder };
        let (config, source) = new.config();
        let provider = config.provider(&source).expect("a key");
        DatabaseRecords::create(&config.database(&source), &provider).expect("created");
        new
    }

    pub fn config(&self) -> (KeyFile, Source) {
        let source = Source::read(&self.folder.join("key.toml")).expect("a file");
        (KeyFile::parse(&source).expect("a configuration"), source)
    }

    pub fn server(&self) -> (KeyServer, DatabaseRecords) {
        let (config, source) = self.config();
        config.server(&source).expect("a database")
    }
}
