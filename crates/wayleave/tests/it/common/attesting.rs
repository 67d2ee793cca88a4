//! Running attesting proxies, and speakers beside them.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Output};

use serde_json::Value;
use wayleave_bgp::{AsPathBuf, Attributes, Origin};
use wayleave_core::{Asn, Prefix};
use wayleave_lab::netns::NetworkNamespace;
use wayleave_lab::speaker::{Identity, Routes, Speaker};

use super::{Folder, free};

/// The prefix that these tests announce.
pub const PREFIX: &str = "192.0.2.0/24";

/// Where what the folder's anchor signed lies, under `[keys]`.
pub const UNDER_THE_ANCHOR: &str = "anchor = \"anchor.pub\"\nobjects = \"objects\"\n";

/// A running proxy with one pair.
pub struct Proxy {
    name: String,
    folder: PathBuf,
    child: Option<Child>,
    pub inside: String,
    pub page: String,
}

impl Proxy {
    /// Its keys lie in `ASN.key`, and what the anchor signed in `objects`; `more` is configuration between `[keys]` and
    /// `[[pair]]`.
    pub fn new(folder: &Folder, asn: u32, outside: &str, more: &str) -> Self {
        Self::with_keys(folder, asn, outside, &format!("signing = \"{asn}.key\"\n{UNDER_THE_ANCHOR}"), more)
    }

    /// Likewise, with these lines under `[keys]`.
    pub fn with_keys(folder: &Folder, asn: u32, outside: &str, keys: &str, more: &str) -> Self {
        Self::with_pair(folder, asn, outside, "", keys, more)
    }

    /// Likewise, with these further lines of its pair.
    pub fn with_pair(folder: &Folder, asn: u32, outside: &str, pair: &str, keys: &str, more: &str) -> Self {
        let (inside, page, name) = (free(), free(), format!("as{asn}"));
        let config = format!(
            "[attest]\nasn = {asn}\nstate = \"{name}.redb\"\n[keys]\n{keys}{more}[[pair]]\nname = \"there\"\n\
             inside = {{ listen = \"{inside}\" }}\noutside = {{ {outside} }}\n{pair}[status]\nlisten = \"{page}\"\n"
        );
        folder.write(&format!("{name}.toml"), &config);
        let mut proxy = Self { name, folder: folder.0.clone(), child: None, inside, page };
        proxy.start();
        proxy
    }

    /// Starts it again as one that announces what no record lets its AS originate.
    pub fn announce_unauthorised(&mut self) {
        let file = self.folder.join(format!("{}.toml", self.name));
        let config = fs::read_to_string(&file).expect("its configuration");
        fs::write(file, config.replacen("[keys]\n", "announce_unauthorised = true\n[keys]\n", 1)).expect("written");
        self.kill();
        self.start();
    }

    pub fn start(&mut self) {
        self.start_with(&[]);
    }

    /// Likewise, with these variables.
    pub fn start_with(&mut self, environment: &[(&str, &str)]) {
        let log = fs::OpenOptions::new().create(true).append(true).open(self.folder.join(format!("{}.log", self.name)));
        let mut command = Command::new(env!("CARGO_BIN_EXE_wayleave"));
        command
            .args(["run", "attest", "--refuse-nobody", "--config", &format!("{}.toml", self.name)])
            .current_dir(&self.folder);
        command.envs(environment.iter().copied());
        self.child = Some(command.stderr(log.expect("a log")).spawn().expect("the program runs"));
    }

    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.child.as_ref().expect("running").id()
    }

    pub fn signal(&self, name: &str) {
        let id = self.id().to_string();
        assert!(Command::new("kill").args([name, &id]).status().expect("kill").success());
    }

    pub fn ask(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_wayleave"));
        command.args(arguments).args(["--url", &self.page]).env("NO_COLOR", "1").output().expect("the program runs")
    }

    pub fn json(&self, arguments: &[&str]) -> Value {
        let output = self.ask(&[arguments, &["--json"]].concat());
        serde_json::from_slice(&output.stdout).unwrap_or(Value::Null)
    }

    /// The class of the only route.
    pub fn class(&self) -> Value {
        self.json(&["why", PREFIX])["routes"][0]["class"].clone()
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.join(format!("{}.log", self.name))).expect("a log")
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A speaker of `asn` inside of `proxy`, which sees the neighbour `peer_asn` there.
pub fn speaker(asn: u32, peer_asn: u32, number: u8, proxy: &Proxy) -> Speaker {
    speaker_at(asn, peer_asn, number, &proxy.inside)
}

/// A speaker of `asn`, which sees the neighbour `peer_asn` at this address.
pub fn speaker_at(asn: u32, peer_asn: u32, number: u8, at: &str) -> Speaker {
    let identity = Identity {
        name: format!("speaker of AS{asn}"),
        asn: Asn(asn),
        address: [192, 0, 2, number].into(),
        address6: "2001:db8::1".parse().expect("an address"),
        peer_asn: Asn(peer_asn),
        peer: at.parse().expect("an address"),
    };
    Speaker::start(identity, NetworkNamespace::Own)
}

pub fn prefix() -> Prefix {
    PREFIX.parse().expect("a prefix")
}

/// The prefix as a route of its origin's.
pub fn own(asn: u32) -> Routes {
    let mut edit = Attributes::builder();
    edit.origin(Origin::Igp).as_path(AsPathBuf::from_sequence(&[Asn(asn)]).as_path());
    edit.ipv4_next_hop([192, 0, 2, 1].into());
    Routes::from([(prefix(), edit.finish())])
}
