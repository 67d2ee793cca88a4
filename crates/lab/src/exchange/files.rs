//! Keys, member set and configurations of an exchange, made with `wayleave` commands.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use wayleave_core::Asn;

use super::layout::{Layout, MemberLayout, PartyLayout, Software};
use crate::netns::Rung;

/// What an exchange is, beside its addresses.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Its name, which all its members sign.
    pub name: String,
    /// The route server's AS, as communities name it.
    pub asn: Asn,
    /// Who multiplies policies and route keys: a value of `[party] export`.
    pub export: &'static str,
    /// The lines of `[recommendation]`.
    pub recommendation: String,
    /// Further lines of members' configurations, in the order of slots.
    pub members: Vec<String>,
    /// Further lines of their `[router]`, in the same order.
    pub routers: Vec<String>,
}

/// Where the files are.
#[derive(Debug, Clone)]
pub enum Folders {
    /// Keys and configurations of all in one folder, their state in another one.
    Together { configurations: PathBuf, state: PathBuf },
    /// Each party and member has a folder of its own in this one, named after it.
    Apart(PathBuf),
}

/// Prefixes that each member may announce.
const MAX_PREFIX: u32 = 1_000;

/// The public parts of a key file.
#[derive(Debug, Clone)]
struct PublicKeys {
    /// Fingerprint of the certificate, `sha256:...`.
    tls: String,
    /// The signing key, `sign:ed25519:...`.
    sign: String,
}

/// Paths of the files, and what all configurations share.
#[derive(Debug)]
pub struct Files {
    folders: Folders,
    binary: PathBuf,
    settings: Settings,
    /// Public keys of party 1's and party 2's operators.
    operators: [String; 2],
    pins: [String; 2],
}

impl Files {
    /// Creates all keys, the member set and the configurations.
    pub fn write(layout: &Layout, binary: &Path, folders: Folders, settings: Settings) -> Result<Self, String> {
        let mut files = Self {
            folders,
            binary: binary.to_path_buf(),
            settings,
            operators: [String::new(), String::new()],
            pins: [String::new(), String::new()],
        };
        let parties = ["party1", "party2"].into_iter();
        for owner in parties.chain(layout.members.iter().map(|member| member.name.as_str())) {
            let folder = files.folder_of(owner);
            fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        }
        files.make_member_set(layout)?;
        files.pins = [files.new_key("party1", "party1")?.tls, files.new_key("party2", "party2")?.tls];
        put(&files.recommendation(), &format!("[recommendation]\n{}", files.settings.recommendation))?;
        for party in &layout.parties {
            put(&files.party(party.number), &files.party_configuration(layout, party))?;
        }
        for (slot, member) in layout.members.iter().enumerate() {
            let more = files.settings.members.get(slot).map_or("", String::as_str);
            put(&files.member(&member.name), &(files.member_configuration(layout, member, slot) + more))?;
        }
        Ok(files)
    }

    /// A party's configuration.
    #[must_use]
    pub fn party(&self, number: u8) -> PathBuf {
        self.configuration(&format!("party{number}"))
    }

    /// A member's configuration.
    #[must_use]
    pub fn member(&self, name: &str) -> PathBuf {
        self.configuration(name)
    }

    fn configuration(&self, owner: &str) -> PathBuf {
        match &self.folders {
            Folders::Together { configurations, .. } => configurations.join(format!("{owner}.toml")),
            Folders::Apart(folder) => folder.join(owner).join("wayleave.toml"),
        }
    }

    fn recommendation(&self) -> PathBuf {
        self.folder_of("party1").join("recommendation.toml")
    }

    /// The folder with an owner's keys and configuration.
    fn folder_of(&self, owner: &str) -> PathBuf {
        match &self.folders {
            Folders::Together { configurations, .. } => configurations.clone(),
            Folders::Apart(folder) => folder.join(owner),
        }
    }

    /// A file of an owner.
    fn of(&self, owner: &str, file: &str) -> String {
        self.folder_of(owner).join(file).display().to_string()
    }

    /// The same as the owner's configuration has it: there a file of the same folder has no folder before it.
    fn named(&self, owner: &str, file: &str) -> String {
        match &self.folders {
            Folders::Together { .. } => self.of(owner, file),
            Folders::Apart(_) => file.to_owned(),
        }
    }

    /// An owner's state, as its configuration has it.
    fn state(&self, owner: &str) -> String {
        let file = format!("{owner}.redb");
        match &self.folders {
            Folders::Together { state, .. } => state.join(file).display().to_string(),
            Folders::Apart(_) => file,
        }
    }

    /// Writes a recommendation that prefers `favourite` to all others.
    pub fn recommend(&self, favourite: &str) -> Result<(), String> {
        put(&self.recommendation(), &format!("[recommendation]\n{favourite} = 10\n"))
    }

    /// The path of a file in the one folder of configurations, or in party 1's.
    #[must_use]
    pub fn path(&self, name: &str) -> String {
        self.of("party1", name)
    }

    /// Runs a command of `wayleave`; what it printed, or why it failed.
    pub fn tool(&self, arguments: &[&str]) -> Result<String, String> {
        let output = Command::new(&self.binary).args(arguments).output();
        let output = output.map_err(|error| format!("{}: {error}", self.binary.display()))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            return Ok(text);
        }
        Err(format!("wayleave {}: {text}{}", arguments.join(" "), String::from_utf8_lossy(&output.stderr)))
    }

    fn new_key(&self, owner: &str, name: &str) -> Result<PublicKeys, String> {
        let file = self.of(owner, &format!("{name}.key"));
        self.tool(&["keys", "new", &file, "--name", name])?;
        self.public(&file)
    }

    fn public(&self, file: &str) -> Result<PublicKeys, String> {
        let text = self.tool(&["keys", "show", file])?;
        let part = |kind: &str| {
            let found =
                text.split(|c: char| c.is_whitespace() || "\",".contains(c)).find(|word| word.starts_with(kind));
            found.map(str::to_owned).ok_or_else(|| format!("wayleave keys show {file} prints no {kind}: {text}"))
        };
        Ok(PublicKeys { tls: part("sha256:")?, sign: part("sign:ed25519:")? })
    }

    /// Makes the operators' and the members' keys, and admits all members in the order of slots.
    fn make_member_set(&mut self, layout: &Layout) -> Result<(), String> {
        self.operators = [self.new_key("party1", "operator1")?.sign, self.new_key("party2", "operator2")?.sign];
        for member in &layout.members {
            self.new_key(&member.name, &member.name)?;
            self.request(member, &[])?;
        }
        self.begin_member_set()?;
        let names: Vec<&str> = layout.members.iter().map(|member| member.name.as_str()).collect();
        self.propose(&names)?;
        self.countersign()?;
        self.share_member_set()
    }

    /// The member signs what the exchange is to know of it, for `NAME.request`.
    pub fn request(&self, member: &MemberLayout, more: &[&str]) -> Result<String, String> {
        let name = &member.name;
        let [file, key] = ["request", "key"].map(|kind| self.of(name, &format!("{name}.{kind}")));
        let (asn, address) = (member.asn.0.to_string(), member.router.to_string());
        let address6 = member.router6().to_string();
        let mut arguments =
            vec!["members", "request", &file, "--key", &key, "--exchange", &self.settings.name, "--asn", &asn];
        arguments.extend(["--name", &member.name, "--address", &address, "--address6", &address6]);
        arguments.extend(more);
        self.tool(&arguments)
    }

    /// Both operators begin the member set's file that their party has, as if they had signed none yet.
    pub fn begin_member_set(&self) -> Result<(), String> {
        let [one, two] = &self.operators;
        for (party, file) in [1, 2].map(|party| (party, self.member_set(party))) {
            let _ = fs::remove_file(&file);
            // What it signed for a member set of the same name that was given up.
            let _ = fs::remove_file(self.of(&format!("party{party}"), &format!("operator{party}.key.signed")));
            self.tool(&[
                "members",
                "init",
                &file,
                "--exchange",
                &self.settings.name,
                "--operator1",
                one,
                "--operator2",
                two,
            ])?;
        }
        Ok(())
    }

    /// The member set's file of a party.
    #[must_use]
    pub fn member_set(&self, party: u8) -> String {
        let owner = format!("party{party}");
        match &self.folders {
            Folders::Together { .. } => self.of(&owner, &format!("{owner}.members")),
            Folders::Apart(_) => self.of(&owner, "members"),
        }
    }

    /// All that party 2 has on its machine.
    #[must_use]
    pub fn of_party_2(&self) -> [PathBuf; 4] {
        let key = self.of("party2", "party2.key");
        [self.party(2), key.into(), self.member_set(2).into(), self.state("party2").into()]
    }

    /// Party 1's operator proposes what these members request.
    pub fn propose(&self, members: &[&str]) -> Result<String, String> {
        let (set, key, out) = (self.member_set(1), self.of("party1", "operator1.key"), self.proposal());
        let requests: Vec<String> = members.iter().map(|name| self.of(name, &format!("{name}.request"))).collect();
        let mut arguments = vec!["members", "propose", &set, "--operator", &key, "--out", &out];
        arguments.extend(requests.iter().flat_map(|file| ["--request", file]));
        let limits: Vec<String> = members.iter().map(|name| format!("{name}={MAX_PREFIX}")).collect();
        arguments.extend(limits.iter().flat_map(|limit| ["--max-prefix", limit]));
        self.tool(&arguments)
    }

    fn proposal(&self) -> String {
        self.of("party1", "proposal")
    }

    /// Party 2's operator countersigns what was proposed last, in its own file.
    pub fn countersign(&self) -> Result<String, String> {
        let (set, key, proposal) = (self.member_set(2), self.of("party2", "operator2.key"), self.proposal());
        self.tool(&["members", "countersign", &set, &proposal, "--operator", &key, "--yes"])
    }

    /// Party 1 gets party 2's file, as before a first start.
    pub fn share_member_set(&self) -> Result<(), String> {
        let copied = fs::copy(self.member_set(2), self.member_set(1));
        copied.map(drop).map_err(|error| format!("{}: {error}", self.member_set(1)))
    }

    /// Party 1 listens for party 2. Only party 1 has the recommendation.
    fn party_configuration(&self, layout: &Layout, party: &PartyLayout) -> String {
        let number = party.number;
        let owner = format!("party{number}");
        let (direction, pin, recommendation) = match number {
            1 => (
                "listen",
                &self.pins[1],
                format!("recommendation = \"{}\"\nepoch_secs = 0\n", self.named(&owner, "recommendation.toml")),
            ),
            _ => ("connect", &self.pins[0], String::new()),
        };
        format!(
            "[party]
number = {number}
exchange = \"{name}\"
listen = \"{listen}\"
key = \"{key}\"
state = \"{state}\"
members = \"{members}\"
operators = [\"{operator1}\", \"{operator2}\"]
export = \"{export}\"
lab = true
{recommendation}
[link]
{direction} = \"{link}\"
pin = \"{pin}\"

[status]
listen = \"{status}\"
shares = true
",
            name = self.settings.name,
            listen = party.listen,
            key = self.named(&owner, &format!("{owner}.key")),
            state = self.state(&owner),
            members = match &self.folders {
                Folders::Together { .. } => self.member_set(number),
                Folders::Apart(_) => "members".to_owned(),
            },
            export = self.settings.export,
            operator1 = self.operators[0],
            operator2 = self.operators[1],
            link = layout.link,
            status = party.process.status,
        )
    }

    fn member_configuration(&self, layout: &Layout, member: &MemberLayout, slot: usize) -> String {
        let name = &member.name;
        let party = |index: usize| {
            let address: SocketAddr = layout.parties[index].listen;
            format!("{{ address = \"{address}\", pin = \"{}\" }}", self.pins[index])
        };
        // On loopback all routers have the same address.
        let only = match layout.rung {
            Rung::Simulated => String::new(),
            Rung::Root | Rung::Rootless => format!("address = \"{}\"\n", member.router),
        };
        // GoBGP and OpenBGPD let long times pass between their attempts to connect, so their proxies try, too.
        let connect = match member.software {
            Software::Gobgp | Software::OpenBgpd if layout.rung != Rung::Simulated => {
                format!("connect = \"{}:179\"\n", member.router)
            }
            _ => String::new(),
        };
        format!(
            "[member]
name = \"{name}\"
slot = {slot}
key = \"{key}\"
state = \"{state}\"
settle_secs = 3
lab = true  # accepts documentation prefixes

[exchange]
name = \"{of}\"
asn = {exchange}
operators = [\"{operator1}\", \"{operator2}\"]
party1 = {party1}
party2 = {party2}

[router]
listen = \"{listen}\"
{connect}{only}asn = {asn}
router_id = \"{router_id}\"
hold_time = 9
{more}
[status]
listen = \"{status}\"
",
            key = self.named(name, &format!("{name}.key")),
            state = self.state(name),
            of = self.settings.name,
            exchange = self.settings.asn.0,
            operator1 = self.operators[0],
            operator2 = self.operators[1],
            party1 = party(0),
            party2 = party(1),
            listen = member.bgp,
            asn = member.asn.0,
            router_id = member.proxy_id(),
            more = self.settings.routers.get(slot).map_or("", String::as_str),
            status = member.proxy.status,
        )
    }
}

fn put(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}
