//! Keys, member set and configurations of the demonstration, made with `wayleave` commands.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::expect::EXCHANGE;
use super::layout::{Layout, MemberLayout, PartyLayout};
use crate::netns::Rung;

/// The exchange's name.
const NAME: &str = "demo-ix";

/// The public parts of a key file.
#[derive(Debug, Clone)]
struct PublicKeys {
    /// Fingerprint of the certificate, `sha256:...`.
    tls: String,
    /// The signing key, `ed25519:...`.
    sign: String,
}

/// Paths of the files, and what all configurations share.
#[derive(Debug)]
pub struct Files {
    folder: PathBuf,
    binary: PathBuf,
    state: PathBuf,
    operator: String,
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
            operator: String::new(),
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

    fn path(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    fn put(&self, name: &str, text: &str) -> Result<(), String> {
        let path = self.folder.join(name);
        fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))
    }

    fn tool(&self, arguments: &[&str]) -> Result<String, String> {
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
        Ok(PublicKeys { tls: part("sha256:")?, sign: part("ed25519:")? })
    }

    /// Signs the member set with the operator's key, members in the order of slots.
    fn make_member_set(&mut self, layout: &Layout) -> Result<(), String> {
        let (set, operator) = (self.path("members"), self.path("operator.key"));
        self.tool(&["members", "init", &set, "--exchange", NAME, "--operator", &operator])?;
        self.operator = self.public(&operator)?.sign;
        for member in &layout.members {
            let PublicKeys { tls, sign } = self.new_key(&member.name)?;
            let (asn, address) = (member.asn.0.to_string(), member.router.to_string());
            let address6 = member.router6().to_string();
            let mut arguments = vec!["members", "add", &set, "--operator", &operator, "--asn", &asn];
            arguments.extend(["--name", &member.name, "--address", &address, "--address6", &address6]);
            arguments.extend(["--tls", &tls, "--sign", &sign]);
            self.tool(&arguments)?;
        }
        Ok(())
    }

    /// Party 1 listens for party 2. Only party 1 has the recommendation.
    fn party_configuration(&self, layout: &Layout, party: &PartyLayout) -> String {
        let number = party.number;
        let folder = self.folder.display();
        let (direction, pin, recommendation) = match number {
            1 => ("listen", &self.pins[1], format!("recommendation = \"{folder}/recommendation.toml\"\n")),
            _ => ("connect", &self.pins[0], String::new()),
        };
        format!(
            "[party]
number = {number}
exchange = \"{NAME}\"
listen = \"{listen}\"
key = \"{folder}/party{number}.key\"
state = \"{state}/party{number}.redb\"
members = \"{folder}/members\"
operator = \"{operator}\"
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
            operator = self.operator,
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
operator = \"{operator}\"
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
            operator = self.operator,
            party1 = party(0),
            party2 = party(1),
            listen = member.bgp,
            asn = member.asn.0,
            router_id = member.proxy_id(),
            status = member.proxy.status,
        )
    }
}
