//! A provider's key server in a folder of its own, for tests.

use std::fs;
use std::path::PathBuf;

use wayleave_control::capability::{Change, ChangeBody, KeyServer};
use wayleave_core::UnixTime;
use wayleave_crypto::signed::Signed;
use wayleave_packet::platypus::header::Principal;

use crate::Source;
use crate::key::{KeyFile, template};
use crate::key_files::account_records::AccountRecords;
use crate::key_files::changes::Changes;
use crate::key_files::node::{self, KeyKind};
use crate::key_files::records::record;

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
        Changes::create(&folder.join("records")).expect("created");
        let (listen, status) = ("127.0.0.1:5353", "127.0.0.1:8080");
        let text = template("keys.example.net", listen, "ns1.example.net", status, &writer.to_string(), None);
        fs::write(folder.join("key.toml"), text).expect("written");
        Self { folder }
    }

    /// A replica, which begins with the records as they are.
    pub fn replica(&self, name: &str) -> Self {
        let folder = self.folder.with_file_name(format!("wayleave-key-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).expect("a folder");
        for file in ["accounts.key", "records"] {
            fs::copy(self.folder.join(file), folder.join(file)).expect("copied");
        }
        let text = fs::read_to_string(self.folder.join("key.toml")).expect("there");
        let of_writer = |line: &&str| line.starts_with("writer_key") || line.starts_with("revocations");
        let text: String = text.lines().filter(|line| !of_writer(line)).map(|line| line.to_owned() + "\n").collect();
        fs::write(folder.join("key.toml"), text).expect("written");
        Self { folder }
    }

    pub fn records(&self) -> PathBuf {
        self.folder.join("records")
    }

    pub fn config(&self) -> (KeyFile, Source) {
        let source = Source::read(&self.folder.join("key.toml")).expect("a file");
        (KeyFile::parse(&source).expect("a configuration"), source)
    }

    pub fn server(&self) -> (KeyServer, Changes) {
        let (config, source) = self.config();
        match config.server(&source).expect("records") {
            (server, AccountRecords::File(changes)) => (server, changes),
            (_, AccountRecords::Database(_)) => panic!("the template has a file"),
        }
    }

    /// Opens so many accounts with long names, from the number of the next change on, without syncing each. Nobody else may append.
    pub fn open_accounts(&self, count: u32) {
        let (mut server, _) = self.server();
        let mut octets = fs::read(self.records()).expect("there");
        for _ in 0..count {
            octets.extend(record(&account(&mut server)));
        }
        fs::write(self.records(), octets).expect("written");
    }

    /// Appends one as a command does.
    pub fn append(&self) {
        let (mut server, mut changes) = self.server();
        let change = account(&mut server);
        assert!(changes.append(&change).expect("appended").is_empty());
    }
}

fn account(server: &mut KeyServer) -> Signed<Change> {
    let number = server.state().number() as u32 + 1; // few
    let principal = Principal::new(number).expect("24 bits");
    let body = ChangeBody::Account { principal, generation: number, name: format!("{number:064}") };
    let change = server.sign(body, NOW).expect("a writer").expect("allowed");
    server.apply(&change).expect("the next");
    change
}
