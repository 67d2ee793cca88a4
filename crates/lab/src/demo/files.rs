//! Keys, member set and configurations of the demonstration, made with `wayleave` commands.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::expect::EXCHANGE;
use super::layout::{Layout, MemberLayout, PartyLayout};
use crate::netns::Rung;

/// The exchange's name.
pub(super) const NAME: &str = "demo-ix";

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
    folder: PathBuf,
    binary: PathBuf,
    state: PathBuf,
    /// Public keys of party 1's and party 2's operators.
    operators: [String; 2],
    pins: [String; 2],
}

impl Files {
    /// Creates all keys, the member set and the configurations in the layout's state folder.
    pub fn write(layout: &Layout, binary: &Path) -> Result<Self, String> {
        let folder = layout.state.join("etc");
        fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let mut files = Self {
            folder,
            binary: binary.to_path_buf(),
            state: layout.state.clone(),
            operators: [String::new(), String::new()],
            pins: [String::new(), String::new()],
        };
        files.make_member_set(layout)?;
        files.pins = [files.new_key("party1")?.tls, files.new_key("party2")?.tls];
        files.put("recommendation.toml", "[recommendation]\n")?;
        for party in &layout.parties {
            files.put(&format!("party{}.toml", party.number), &files.party_configuration(layout, party))?;
        }
        for (slot, member) in layout.members.iter().enumerate() {
            let text = files.member_configuration(layout, member, slot);
            files.put(&format!("{}.toml", member.name), &text)?;
        }
        Ok(files)
    }

    /// A party's configuration.
    #[must_use]
    pub fn party(&self, number: u8) -> PathBuf {
        self.folder.join(format!("party{number}.toml"))
    }

    /// A member's configuration.
    #[must_use]
    pub fn member(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.toml"))
    }

    /// Writes a recommendation that prefers `favourite` to all others.
    pub fn recommend(&self, favourite: &str) -> Result<(), String> {
        self.put("recommendation.toml", &format!("[recommendation]\n{favourite} = 10\n"))
    }

    /// The path of a file in the folder of configurations.
    #[must_use]
    pub fn path(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    fn put(&self, name: &str, text: &str) -> Result<(), String> {
        let path = self.folder.join(name);
        fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))
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

    fn new_key(&self, name: &str) -> Result<PublicKeys, String> {
        let file = self.path(&format!("{name}.key"));
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
        self.operators = [self.new_key("operator1")?.sign, self.new_key("operator2")?.sign];
        for member in &layout.members {
            self.new_key(&member.name)?;
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
        let (file, key) = (self.path(&format!("{}.request", member.name)), self.path(&format!("{}.key", member.name)));
        let (asn, address) = (member.asn.0.to_string(), member.router.to_string());
        let address6 = member.router6().to_string();
        let mut arguments = vec!["members", "request", &file, "--key", &key, "--exchange", NAME, "--asn", &asn];
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
            let _ = fs::remove_file(self.path(&format!("operator{party}.key.signed")));
            self.tool(&["members", "init", &file, "--exchange", NAME, "--operator1", one, "--operator2", two])?;
        }
        Ok(())
    }

    /// The member set's file of a party.
    #[must_use]
    pub fn member_set(&self, party: u8) -> String {
        self.path(&format!("party{party}.members"))
    }

    /// Party 1's operator proposes what these members request.
    pub fn propose(&self, members: &[&str]) -> Result<String, String> {
        let (set, key, out) = (self.member_set(1), self.path("operator1.key"), self.path("proposal"));
        let requests: Vec<String> = members.iter().map(|name| self.path(&format!("{name}.request"))).collect();
        let mut arguments = vec!["members", "propose", &set, "--operator", &key, "--out", &out];
        arguments.extend(requests.iter().flat_map(|file| ["--request", file]));
        let limits: Vec<String> = members.iter().map(|name| format!("{name}={MAX_PREFIX}")).collect();
        arguments.extend(limits.iter().flat_map(|limit| ["--max-prefix", limit]));
        self.tool(&arguments)
    }

    /// Party 2's operator countersigns what was proposed last, in its own file.
    pub fn countersign(&self) -> Result<String, String> {
        let (set, key, proposal) = (self.member_set(2), self.path("operator2.key"), self.path("proposal"));
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
        let folder = self.folder.display();
        let (direction, pin, recommendation) = match number {
            1 => (
                "listen",
                &self.pins[1],
                format!("recommendation = \"{folder}/recommendation.toml\"\nlab = true\nepoch_secs = 0\n"),
            ),
            _ => ("connect", &self.pins[0], String::new()),
        };
        format!(
            "[party]
number = {number}
exchange = \"{NAME}\"
listen = \"{listen}\"
key = \"{folder}/party{number}.key\"
state = \"{state}/party{number}.redb\"
members = \"{folder}/party{number}.members\"
operators = [\"{operator1}\", \"{operator2}\"]
{recommendation}
[link]
{direction} = \"{link}\"
pin = \"{pin}\"

[status]
listen = \"{status}\"
shares = true
",
            listen = party.listen,
            state = self.state.display(),
            operator1 = self.operators[0],
            operator2 = self.operators[1],
            link = layout.link,
            status = party.process.status,
        )
    }

    fn member_configuration(&self, layout: &Layout, member: &MemberLayout, slot: usize) -> String {
        let folder = self.folder.display();
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
        format!(
            "[member]
name = \"{name}\"
slot = {slot}
key = \"{folder}/{name}.key\"
state = \"{state}/{name}.redb\"
settle_secs = 3
lab = true  # accepts documentation prefixes

[exchange]
name = \"{NAME}\"
asn = {exchange}
operators = [\"{operator1}\", \"{operator2}\"]
party1 = {party1}
party2 = {party2}

[router]
listen = \"{listen}\"
{only}asn = {asn}
router_id = \"{router_id}\"
hold_time = 9

[status]
listen = \"{status}\"
",
            state = self.state.display(),
            exchange = EXCHANGE.0,
            operator1 = self.operators[0],
            operator2 = self.operators[1],
            party1 = party(0),
            party2 = party(1),
            listen = member.bgp,
            asn = member.asn.0,
            router_id = member.proxy_id(),
            status = member.proxy.status,
        )
    }
}
