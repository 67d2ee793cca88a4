//! The file of `wayleave shadow`: the exchange as it runs today, and where its route server's tables are to be had.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::Spanned;
use wayleave_core::Asn;
use wayleave_route_server::directory::{MAX_SLOTS, MemberSet, Profile, Slot, SlotId};
use wayleave_route_server::policy::validate::Martians;
use wayleave_route_server::policy::{Policy, PolicyConfig};

use super::check::{Checked, RoleConfig};
use super::member::policy_fault;
use super::parse::Text;
use super::{Fault, Source, profile};
use crate::failure::Failures;

/// The section that shows that a file is for `wayleave shadow`, and the command's name.
pub const SHADOW: &str = "shadow";

/// As of a role, for `init` and `check`; nothing runs as a daemon.
pub const COMMAND: RoleConfig = RoleConfig {
    name: SHADOW,
    section: SHADOW,
    sections: "[shadow] and [[member]]",
    check: ShadowConfig::checked,
    template: |_| template(),
};

/// The file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShadowFile {
    pub shadow: ShadowSection,
    /// Dumps of what the server learned.
    #[serde(default)]
    pub learned: LearnedSection,
    pub session: Option<Spanned<SessionSection>>,
    pub bmp: Option<Spanned<BmpSection>>,
    #[serde(default)]
    pub member: Vec<Spanned<MemberSection>>,
}

/// `[shadow]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShadowSection {
    /// The route server's AS, as it stands in communities.
    pub asn: Spanned<Asn>,
    /// The exchange's name, for the report.
    #[serde(default = "default_exchange")]
    pub exchange: String,
    /// The profile that the operators would sign; without it its defaults.
    pub profile: Option<Spanned<PathBuf>>,
    /// Validated ROAs and ASPA records in JSON; without it no origin and no path is refused.
    pub roas: Option<Spanned<PathBuf>>,
    /// How long nothing may change before a live source counts as complete.
    #[serde(default = "default_settle")]
    pub settle_secs: Spanned<u64>,
    /// How long live sources have to become complete.
    #[serde(default = "default_wait")]
    pub wait_secs: Spanned<u64>,
    /// Accept documentation and private prefixes and AS numbers; for a laboratory only.
    #[serde(default)]
    pub lab: bool,
}

/// `[learned]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LearnedSection {
    /// MRT dumps (RFC 6396) of the server's tables, gzip and bzip2 included.
    #[serde(default)]
    pub mrt: Vec<Spanned<PathBuf>>,
    /// What BIRD's client printed of them: `birdc show route all`.
    #[serde(default)]
    pub bird: Vec<Spanned<PathBuf>>,
}

/// `[session]`: the server announces all routes that it has, by ADD-PATH. Nothing is announced to it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SessionSection {
    pub listen: Option<Text<SocketAddr>>,
    pub connect: Option<Text<SocketAddr>>,
    /// The local address of outgoing connections.
    pub bind: Option<Text<IpAddr>>,
    /// Only the server at this address may connect.
    pub address: Option<Text<IpAddr>>,
    /// The AS of this end, as the server has it.
    pub asn: Spanned<Asn>,
    pub router_id: Text<Ipv4Addr>,
}

/// `[bmp]`: the server sends what each member announces, before its import policy, and if it can what it gives each member.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BmpSection {
    pub listen: Text<SocketAddr>,
    /// Only the server at this address may connect.
    pub address: Option<Text<IpAddr>>,
}

/// `[[member]]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemberSection {
    pub name: String,
    pub asn: Asn,
    /// The addresses that the next hops of its routes have.
    pub addresses: Vec<Text<IpAddr>>,
    /// Its rules and ranking, as in a member's own configuration.
    pub policy: Option<Spanned<PathBuf>>,
    /// What the server gives it: a file of BIRD's client, birdwatcher, bgpctl or MRT.
    #[serde(default)]
    pub given: Vec<Spanned<PathBuf>>,
}

/// A file that is sound by itself.
#[derive(Clone, Debug)]
pub struct ShadowConfig {
    pub file: ShadowFile,
    pub members: MemberSet,
    pub policies: BTreeMap<SlotId, Policy>,
    /// The profile has `[profile.data]`. Which routes the data refuse is not known here: nobody has signed any yet.
    pub profile_has_data: bool,
}

fn default_exchange() -> String {
    "exchange".to_owned()
}

fn default_settle() -> Spanned<u64> {
    Spanned::new(0..0, 10)
}

fn default_wait() -> Spanned<u64> {
    Spanned::new(0..0, 600)
}

impl ShadowConfig {
    /// Whether a source is live, so that it has to become complete.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.file.session.is_some() || self.file.bmp.is_some()
    }

    #[must_use]
    pub fn martians(&self) -> Martians {
        if self.file.shadow.lab { Martians::AllowDocumentation } else { Martians::Refuse }
    }

    /// Reads the file and those that it names but for tables.
    ///
    /// # Errors
    /// Every fault, with its place.
    pub fn parse(source: &Source) -> Result<Self, Failures> {
        let file: ShadowFile = source.parse()?;
        let mut faults = file.faults();
        let (profile, data) = match &file.shadow.profile {
            None => (Profile::default(), None),
            Some(path) => match profile::read(&source.resolve(path.get_ref())) {
                Ok(read) => read,
                Err(failures) => {
                    faults.extend(failures.0.iter().map(|failure| Fault::within(path.span(), failure)));
                    (Profile::default(), None)
                }
            },
        };
        let mut policies = BTreeMap::new();
        for (slot, member) in (0..).zip(&file.member) {
            let Some(path) = &member.get_ref().policy else { continue };
            match read_policy(&source.resolve(path.get_ref())) {
                Ok(policy) => drop(policies.insert(slot, policy)),
                Err(failures) => {
                    faults.extend(failures.0.iter().map(|failure| Fault::within(path.span(), failure)));
                }
            }
        }
        if !faults.is_empty() {
            return Err(Failures(faults.into_iter().map(|fault| source.failure(fault)).collect()));
        }
        let members = member_set(&file, profile);
        Ok(Self { file, members, policies, profile_has_data: data.is_some() })
    }

    fn checked(source: &Source) -> Checked {
        let config = match Self::parse(source) {
            Ok(config) => config,
            Err(failures) => return Checked::wrong(SHADOW, failures),
        };
        let (file, mut warnings) = (&config.file, Vec::new());
        let tables = file.member.iter().flat_map(|member| &member.get_ref().given);
        let named = file.learned.mrt.iter().chain(&file.learned.bird).chain(tables).chain(&file.shadow.roas);
        for path in named {
            let resolved = source.resolve(path.get_ref());
            if let Err(error) = std::fs::metadata(&resolved) {
                let fault = Fault::at(path.span(), format!("{}: {error}", resolved.display()));
                warnings.push(fault.help("it has to be there when `wayleave shadow` reads it"));
            }
        }
        if file.bmp.is_none() && file.member.iter().all(|member| member.get_ref().given.is_empty()) {
            let fault = Fault::at(file.shadow.asn.span(), "nothing says what the server gives its members");
            let help = "without `given` of a member, or [bmp] with Adj-RIB-Out, there is nothing to compare with";
            warnings.push(fault.help(help));
        }
        Checked::found(SHADOW, source, Vec::new(), warnings)
    }
}

impl ShadowFile {
    fn faults(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        let learned = &self.learned;
        if learned.mrt.is_empty() && learned.bird.is_empty() && self.session.is_none() && self.bmp.is_none() {
            let message =
                "nothing says what the server learned, expected `mrt` or `bird` of [learned], [session] or [bmp]";
            faults.push(Fault::at(self.shadow.asn.span(), message));
        }
        if self.member.is_empty() {
            faults.push(Fault::at(self.shadow.asn.span(), "no member, expected [[member]] for each"));
        }
        if self.member.len() > MAX_SLOTS {
            let message = format!("{} members, expected {MAX_SLOTS} at most", self.member.len());
            faults.push(Fault::at(self.shadow.asn.span(), message));
        }
        if let Some(session) = &self.session {
            let of = session.get_ref();
            if of.listen.is_some() == of.connect.is_some() {
                let message = "where the server is, expected one of `listen` and `connect`";
                faults.push(Fault::at(session.span(), message));
            }
            if !of.asn.get_ref().is_routable() {
                faults.push(Fault::at(of.asn.span(), format!("{} is reserved, expected another AS", of.asn.get_ref())));
            }
        }
        let (mut names, mut addresses) = (BTreeSet::new(), BTreeMap::new());
        for member in &self.member {
            let of = member.get_ref();
            if of.name.is_empty() || !names.insert(&of.name) {
                faults.push(Fault::at(member.span(), format!("the name `{}` twice, expected one for each", of.name)));
            }
            if of.addresses.is_empty() {
                faults.push(Fault::at(member.span(), "no address, expected those of its router"));
            }
            if !of.asn.is_routable() {
                faults.push(Fault::at(member.span(), format!("{} is reserved, expected the member's AS", of.asn)));
            }
            for address in &of.addresses {
                if addresses.insert(address.0, of.asn).is_some_and(|other| other != of.asn) {
                    let message = format!("{} is another member's too, expected it once", address.0);
                    faults.push(Fault::at(member.span(), message));
                }
            }
        }
        faults
    }
}

fn read_policy(path: &Path) -> Result<Policy, Failures> {
    let source = Source::read_named(path, "policy")?;
    let policy: PolicyConfig = source.parse()?;
    Policy::compile(&policy).map_err(|error| source.failure(policy_fault(&error)).into())
}

/// The members as slots. Keys are those of nobody: nothing is signed or opened.
fn member_set(file: &ShadowFile, profile: Profile) -> MemberSet {
    let slot = |(number, member): (u32, &Spanned<MemberSection>)| {
        let member = member.get_ref();
        let mut key = [0; 32];
        key[..4].copy_from_slice(&number.to_be_bytes());
        Slot {
            active: true,
            asn: member.asn,
            name: member.name.clone(),
            addresses: member.addresses.iter().map(|address| address.0).collect(),
            tls: key,
            sign: key,
            max_prefix: 0,
            held: false,
        }
    };
    MemberSet {
        exchange: file.shadow.exchange.clone(),
        number: 1,
        slots: (0..).zip(&file.member).map(slot).collect(),
        attest: BTreeMap::new(),
        profile: Some(profile),
        data: None,
    }
}

/// A member of a list that another program made.
#[derive(Clone, Debug)]
pub struct ListedMember {
    pub name: String,
    pub asn: Asn,
    pub addresses: Vec<IpAddr>,
}

/// What `wayleave init shadow --import` prints: the template with these members in place of its own.
#[must_use]
pub fn template_with(members: &[ListedMember]) -> String {
    let whole = template();
    let head = whole.split("[[member]]\n").next().unwrap_or_default();
    members.iter().fold(head.to_owned(), |text, member| {
        let name = toml::Value::from(member.name.as_str());
        let addresses: Vec<String> = member.addresses.iter().map(|address| format!("\"{address}\"")).collect();
        let (asn, addresses) = (member.asn.0, addresses.join(", "));
        text + &format!(
            "[[member]]\nname = {name}\nasn = {asn}\naddresses = [{addresses}]\n#given = [\"{}.txt\"]\n\n",
            member.name
        )
    })
}

/// What `wayleave init shadow` prints.
fn template() -> String {
    "# Shadow mode: what Wayleave would give each member of an exchange that BIRD or OpenBGPD serves, and where that differs.\n\
     # Nothing is announced or installed. Run it with: wayleave shadow --config FILE\n\
     # Paths are relative to this file. The guide: docs/guide/shadow.md\n\
     \n\
     [shadow]\n\
     # The route server's AS, as it stands in communities.\n\
     asn = 64500\n\
     exchange = \"example-ix\"\n\
     # The rules that both operators would sign (`wayleave members propose --profile`); without it their defaults.\n\
     #profile = \"profile.toml\"\n\
     # Validated ROAs and ASPA records (`routinator vrps --format json`); without them no origin and no path is refused.\n\
     #roas = \"vrps.json\"\n\
     # How long nothing may change before [session] and [bmp] count as complete, and how long they have for that.\n\
     #settle_secs = 10\n\
     #wait_secs = 600\n\
     # Accept documentation and private prefixes and AS numbers; for a laboratory only.\n\
     #lab = false\n\
     \n\
     # What the server learned: at least one of the three.\n\
     [learned]\n\
     # MRT dumps of its tables: BIRD's `mrt dump table \"master4\" to \"rib4.mrt\"`, OpenBGPD's `dump table-v2`.\n\
     mrt = [\"rib4.mrt\"]\n\
     # Or what BIRD's client prints: birdc show route all > routes.txt\n\
     #bird = [\"routes.txt\"]\n\
     \n\
     # A session in which the server announces all routes, by ADD-PATH.\n\
     #[session]\n\
     # Where the server is; with `listen` it connects.\n\
     #connect = \"192.0.2.253:179\"\n\
     #listen = \"192.0.2.10:179\"\n\
     # The local address of outgoing connections, and who may connect.\n\
     #bind = \"192.0.2.10\"\n\
     #address = \"192.0.2.253\"\n\
     # This end's AS and identifier.\n\
     #asn = 64510\n\
     #router_id = \"192.0.2.10\"\n\
     \n\
     # BMP (RFC 7854), with Adj-RIB-Out (RFC 8671) where the server has it.\n\
     #[bmp]\n\
     #listen = \"192.0.2.10:11019\"\n\
     #address = \"192.0.2.253\"\n\
     \n\
     # Each member, with its addresses on the exchange's network; `policy` names its rules and ranking, without which communities\n\
     # decide alone. `given` is what the server gives it: `birdc show route export alpha all`, birdwatcher's /routes/export/alpha,\n\
     # MRT, or `bgpctl -j show rib out neighbor 192.0.2.1 detail`. Members without it are not compared.\n\
     [[member]]\n\
     name = \"alpha\"\n\
     asn = 64501\n\
     addresses = [\"192.0.2.1\"]\n\
     #policy = \"alpha.policy.toml\"\n\
     given = [\"alpha.txt\"]\n\
     \n\
     [[member]]\n\
     name = \"bravo\"\n\
     asn = 64502\n\
     addresses = [\"192.0.2.2\"]\n\
     given = [\"bravo.txt\"]\n"
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = "[shadow]\nasn = 64500\n[learned]\nmrt = [\"a.mrt\"]\n[[member]]\nname = \"a\"\nasn = 64501\n\
                         addresses = [\"192.0.2.1\"]\n";

    fn faults(text: &str) -> Vec<String> {
        let parsed = ShadowConfig::parse(&Source::of_text("shadow.toml", text));
        parsed.err().map_or(Vec::new(), |failures| failures.0.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn the_template_is_sound_also_with_all_that_it_shows() {
        assert_eq!(faults(&template()), [""; 0]);
        let uncommented: String = template()
            .lines()
            .filter(|line| !line.starts_with("#listen = \"192.0.2.10:179\"") && !line.starts_with("#policy"))
            .filter(|line| !line.starts_with("#profile"))
            .map(|line| line.strip_prefix('#').filter(|rest| !rest.starts_with(' ')).unwrap_or(line).to_owned() + "\n")
            .collect();
        let config = ShadowConfig::parse(&Source::of_text("shadow.toml", &uncommented)).expect("sound");
        assert!(config.is_live() && config.members.slots.len() == 2);
        assert_eq!(config.members.profile, Some(Profile::default()));
        let member = |name: &str, host: u8| ListedMember {
            name: name.to_owned(),
            asn: Asn(64_500 + u32::from(host)),
            addresses: vec![IpAddr::from([192, 0, 2, host])],
        };
        let listed = template_with(&[member("one", 1), member("two", 2), member("three", 3)]);
        let config = ShadowConfig::parse(&Source::of_text("shadow.toml", &listed)).expect("sound");
        assert_eq!(config.members.slots[2].name, "three");
        assert!(!listed.contains("alpha\"\nasn"), "{listed}");
    }

    #[test]
    fn what_lacks_a_source_a_member_or_an_address_is_refused() {
        assert_eq!(faults(WHOLE), [""; 0]);
        for (from, to, what) in [
            ("mrt = [\"a.mrt\"]\n", "", "nothing says what the server learned"),
            ("[\"192.0.2.1\"]", "[]", "no address"),
            ("asn = 64501", "asn = 23456", "AS23456 is reserved"),
            ("[learned]", "[session]\nasn = 64510\nrouter_id = \"192.0.2.9\"\n[learned]", "where the server is"),
            (
                "[[member]]",
                "[[member]]\nname = \"b\"\nasn = 64502\naddresses = [\"192.0.2.1\"]\n[[member]]",
                "192.0.2.1 is another member's too",
            ),
            (
                "[[member]]",
                "[[member]]\nname = \"a\"\nasn = 64502\naddresses = [\"192.0.2.2\"]\n[[member]]",
                "the name `a`",
            ),
        ] {
            let found = faults(&WHOLE.replacen(from, to, 1));
            assert!(found.iter().any(|fault| fault.starts_with(what)), "{what}: {found:?}");
        }
        assert!(faults("[shadow]\nasn = 64500\n[learned]\nmrt = [\"a\"]\n")[0].starts_with("no member"));
    }
}
